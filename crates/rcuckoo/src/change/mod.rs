//! Changes: put, insert, update, remove, compare-and-swap, compare-and-remove.
//!
//! All follow the same steps: lock both of the key's rows and sample them, look for the key, then change it in place or
//! find a free entry for it. Linearization point: the WRITE of the one row that holds the key afterwards, or held it
//! before.

mod ahead;
mod commit;
mod decide;
pub(crate) mod full_rows;
mod pair;
mod path;
mod predicted;
mod search;
pub(crate) mod split;
mod walk;
pub(crate) mod window;
mod workspace;

use guira_fabric::{Addr, FabricError, Lane, LocalLane, write_in_place};
use guira_layout::{EntryKind, ExtentRef, Probe, extent_words, store_extent};

pub use self::ahead::Grown;
pub(crate) use self::pair::Stage;
use self::pair::is_idle;
pub use self::pair::{Begun, Continuation};
use self::split::MAX_SPLITS;
pub(crate) use self::workspace::{ChangeProgress, Paths, Workspace};
use crate::locks::ExtentWrite;
use crate::lookup::block_of;
use crate::table::policy::LockedRows;
use crate::{Client, Error, ErrorKind, Key, Operation, RowPair, Token};

/// A value to be stored, in the row or in an extent.
#[derive(Clone, Copy, Debug)]
pub enum NewValue<'v> {
    /// A value in the row.
    Inline(&'v [u8]),
    /// A value in an extent, which the operation writes before it refers to it.
    Extent {
        /// The extent's location.
        extent: ExtentRef,
        /// The encoded extent, see [`guira_layout::encode_extent`]; empty if it is written already
        /// ([`Client::write_extent`]).
        words: &'v [u64],
    },
}

/// A change of a key.
#[derive(Clone, Copy, Debug)]
pub enum Change<'v> {
    /// Insert the key, or replace its value.
    Put(NewValue<'v>),
    /// Insert the key; change nothing if it exists.
    Insert(NewValue<'v>),
    /// Replace the key's value; change nothing if the key is missing.
    Update(NewValue<'v>),
    /// Add this little-endian number to the key's value, if that is a number, modulo 2^64; if the key is missing,
    /// insert it with this number as its value. [`Client::sum`] returns the new value. Only for keys so short that a
    /// value of eight bytes fits in the row with them: an entry that refers to an extent is not in the expected state.
    /// [R-ADD-1]
    Add(&'v [u8; 8]),
    /// Remove the key.
    Remove,
    /// Replace the key's value if it is the expected one; change nothing otherwise. [R-CAS-1]
    Swap(Expected<'v>, NewValue<'v>),
    /// Remove the key if its value is the expected one; change nothing otherwise. [R-CAS-1]
    RemoveIf(Expected<'v>),
}

/// The state that a key must have for a conditional change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected<'v> {
    /// The key has this value, whatever it had in the meantime. [R-CAS-1]
    Value(&'v [u8]),
    /// No client has changed the key since it was read. [R-CAS-2]
    Unchanged(Token),
    /// The key has a value of eight bytes, in its row. [R-ADD-1]
    Number,
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key is new.
    Inserted,
    /// The key had another value before.
    Replaced,
    /// The key was removed.
    Removed,
    /// Nothing changed: the key exists.
    Exists,
    /// Nothing changed: there is no such key.
    Missing,
    /// Nothing changed: the key is not in the expected state.
    Different,
}

/// A change that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The change's outcome.
    pub outcome: Outcome,
    /// The extent that the key no longer refers to. Its mark is already written.
    pub freed: Option<ExtentRef>,
    /// Whether the change was not carried out: it waited for its locks, and another client's write that was under way
    /// at the same time counts as the one that overwrote it. [R-LOCK-10]
    pub is_overwritten: bool,
}

impl Changed {
    /// Creates the result of a change that was carried out.
    pub(crate) fn done(outcome: Outcome, freed: Option<ExtentRef>) -> Changed {
        Changed { outcome, freed, is_overwritten: false }
    }

    /// Whether the table changed, so that an extent that came with the change is in use.
    pub fn took_effect(&self) -> bool {
        !self.is_overwritten && !matches!(self.outcome, Outcome::Exists | Outcome::Missing | Outcome::Different)
    }
}

impl<'v> Change<'v> {
    /// Returns the operation that corresponds to this change.
    pub fn operation(&self) -> Operation {
        match self {
            Change::Put(_) => Operation::Put,
            Change::Insert(_) => Operation::Insert,
            Change::Update(_) => Operation::Update,
            Change::Add(_) => Operation::Increment,
            Change::Remove => Operation::Remove,
            Change::Swap(..) => Operation::CompareAndSwap,
            Change::RemoveIf(_) => Operation::CompareAndRemove,
        }
    }

    pub(crate) fn expected(&self) -> Option<Expected<'v>> {
        match self {
            Change::Swap(expected, _) | Change::RemoveIf(expected) => Some(*expected),
            Change::Add(_) => Some(Expected::Number),
            _ => None,
        }
    }

    /// Returns the value that the change stores, at least if the key is new.
    pub(crate) fn value(&self) -> Option<NewValue<'v>> {
        match self {
            Change::Add(addend) => Some(NewValue::Inline(*addend)),
            Change::Put(value) | Change::Insert(value) | Change::Update(value) | Change::Swap(_, value) => Some(*value),
            Change::Remove | Change::RemoveIf(_) => None,
        }
    }

    /// Whether the change depends on nothing but whether the key exists.
    #[inline(always)]
    pub(crate) fn is_blind_write(&self) -> bool {
        matches!(self, Change::Put(_) | Change::Update(_))
    }

    /// Whether the change stores a key that does not exist.
    pub(crate) fn inserts(&self) -> bool {
        matches!(self, Change::Put(_) | Change::Insert(_) | Change::Add(_))
    }

    pub(crate) fn extent(&self) -> Option<ExtentWrite<'v>> {
        match self.value() {
            Some(NewValue::Extent { extent, words }) if !words.is_empty() => Some(ExtentWrite { extent, words }),
            _ => None,
        }
    }
}

/// A change with its key and the key's rows.
#[derive(Clone, Copy)]
pub(crate) struct Task<'t> {
    pub(crate) probe: &'t Probe<'t>,
    pub(crate) pair: RowPair,
    pub(crate) change: &'t Change<'t>,
}

impl Client {
    /// Carries out `change` on `key`.
    ///
    /// Round trips without contention: 2 for an existing inline key and for an insert whose rows have room (the usual
    /// case); 3 for an existing extent key, and for most inserts that have to move others.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::effect`] says whether anything changed. `Full` only if no path exists among rows
    /// sampled in this operation. [R-INSERT-5]
    pub async fn change(&mut self, lane: &mut dyn Lane, key: &[u8], change: Change<'_>) -> Result<Changed, Error> {
        match self.key(key) {
            Ok(key) => self.change_from(lane, &key, change, None).await,
            Err(refused) => Err(self.refuse(lane, refused).await.during(change.operation())),
        }
    }

    /// Ends a change that the table cannot carry out. Like any other change, it releases what a dropped operation left.
    // [R-DROP-1]
    async fn refuse(&mut self, lane: &mut dyn Lane, refused: ErrorKind) -> ErrorKind {
        match self.refuse_if_lost() {
            Err(lost) => lost,
            Ok(()) => self.settle(lane).await.map_or_else(ErrorKind::from, |()| refused),
        }
    }

    /// Carries out `change` on `key`, or completes it if [`Client::begin_in_place`] of this client began it. If the
    /// client, key or change differs then, or if the client was used in between, the change starts again.
    ///
    /// # Errors
    /// Same as [`Client::change`].
    pub async fn change_from(
        &mut self,
        lane: &mut dyn Lane,
        key: &Key<'_>,
        change: Change<'_>,
        begun: Option<Begun>,
    ) -> Result<Changed, Error> {
        let begun = match begun {
            // What was sampled then may have changed, and here it would be relied on. // [R-LOCK-7]
            Some(Begun::Continue(_)) if !lane.is_local() => Begun::Continue(Continuation::WHOLE),
            Some(begun) => begun,
            None => self.begin(lane, key, &change).await,
        };
        let result = match begun {
            Begun::Done(changed) => Ok(changed),
            Begun::Failed(error) => Err(error),
            Begun::Continue(rest) => self.continue_change(lane, key, change, rest).await,
        };
        if !self.journal.is_clean()
            && let Err(error) = self.settle(lane).await
            && result.is_ok()
        {
            return Err(ErrorKind::from(error).during(change.operation()));
        }
        result.map_err(|kind| kind.during(change.operation()))
    }

    async fn continue_change(
        &mut self,
        lane: &mut dyn Lane,
        key: &Key<'_>,
        change: Change<'_>,
        rest: Continuation,
    ) -> Result<Changed, ErrorKind> {
        if let Err(refused) = self.check_value(key, &change) {
            return Err(self.refuse(lane, refused).await);
        }
        // The extent is written, and no later batch of the client is in flight. // [R-EXTENT-1]
        let is_written = change.extent().is_none_or(|write| self.progress.written == Some(write.extent.generation));
        let goes_on = is_written && self.journal.lost.is_none() && self.journal.has_completed() && is_idle(lane);
        self.progress.stage = if goes_on { rest.0 } else { Stage::Start };
        if !matches!(self.progress.stage, Stage::Contended(_)) {
            // It may be from an earlier change of the key that was dropped, and older than this one. // [R-LOCK-10]
            self.progress.seen = None;
        }
        if self.progress.stage == Stage::Start {
            self.refuse_if_lost()?;
            self.settle(lane).await?;
        }
        self.progress.committed = false;
        self.progress.splits_left = if self.table.growing_segments().is_some() { MAX_SPLITS } else { 0 };
        self.progress.unsplit = None;
        self.progress.waiting_since_ns = self.progress.queued_since_ns.take();
        if self.progress.waiting_since_ns.is_some() {
            self.reader.failure_timers.clear();
        }
        let table = std::sync::Arc::clone(&self.table);
        let probe = table.probe(key);
        // Ends: a change that goes on does so in a segment that was split from the one before, or after one of a few
        // splits. // [R-GROW-5] [R-GROW-6]
        loop {
            let pair = table.placement().rows_by(&self.reader.segments, key.digest());
            let task = Task { probe: &probe, pair, change: &change };
            let changed = match table.policy().locked_rows {
                LockedRows::OfKeyAndPath => self.attempts(lane, task, &[pair.first, pair.second]).await?,
                LockedRows::OfPath => self.change_as_printed(lane, task).await?,
            };
            if let Some(changed) = changed {
                return Ok(changed);
            }
            self.progress.stage = Stage::Elsewhere;
        }
    }

    /// Begins a change on a lane that executes in place: writes `extent` with `key` and `value`, which pass through the
    /// processor once, while the rows of the key are loaded. Returns the value as the change takes it. Counted with the
    /// change's first round trip. [R-EXTENT-1]
    ///
    /// # Errors
    /// The lane refused; nothing was written.
    #[inline]
    pub fn write_extent(
        &mut self,
        lane: &mut impl LocalLane,
        extent: ExtentRef,
        key: &Key<'_>,
        value: &[u8],
    ) -> Result<NewValue<'static>, FabricError> {
        self.progress.committed = false;
        self.prefetch_pair(lane, key.rows());
        let (key, addr) = (key.bytes(), Addr::main(extent.offset));
        let words = extent_words(key.len(), value.len());
        lane.prefetch(addr, words);
        let (sums, block) = (self.table.rows().sums(), block_of(&mut self.reader.block));
        write_in_place(lane, addr, words, |words| store_extent(words, &extent, key, value, sums, block))?;
        Ok(NewValue::Extent { extent, words: &[] })
    }

    /// Refuses an inline value that does not belong in the row.
    #[inline]
    pub(crate) fn check_value(&self, key: &Key<'_>, change: &Change<'_>) -> Result<(), ErrorKind> {
        match change.value() {
            Some(NewValue::Inline(value)) => match self.table.place(key, value.len())? {
                EntryKind::Inline => Ok(()),
                EntryKind::Extent => Err(self.table.refuse_value(value.len())),
            },
            _ => Ok(()),
        }
    }
}
