//! The state that a client must keep when its operation is dropped in the middle. [R-DROP-1]
//!
//! Invariant: before a batch with atomics is posted, `flight` says what it will do; after its completion was seen,
//! `held` says exactly which locks this client holds and `flight` is `None`. If its completion will never be seen, the
//! locks held are unknown, and `lost` says why.

use std::future::poll_fn;

use arrayvec::ArrayVec;
use guira_fabric::{Effect, FabricError, FenceProof, Lane, LocalLane, Verb, post, post_in_place};
use guira_in_place::in_place;
use guira_layout::{LockMask, OwnerId, RowId};

use super::LockSet;
use super::batch::clear_verbs;
use crate::{MAX_LOCKS, Table};

/// A lock word that a batch tries to take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Try {
    pub(crate) locks: LockMask,
    /// The word to compare with.
    pub(crate) compare: u64,
    /// The bits that are compared.
    pub(crate) compare_mask: u64,
}

impl Try {
    /// Creates a try by masked CAS, whatever the neighbours of `locks` are.
    #[inline(always)]
    pub(crate) fn masked(locks: LockMask) -> Try {
        Try { locks, compare: 0, compare_mask: locks.mask }
    }

    /// Creates a try by plain CAS of the whole word, presumed to be `word`. [R-LOCK-6]
    pub(crate) fn plain(locks: LockMask, word: u64) -> Try {
        Try { locks, compare: word, compare_mask: !0 }
    }

    fn won(&self, found: u64) -> bool {
        (found ^ self.compare) & self.compare_mask == 0
    }
}

/// The batch whose completion was not seen yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flight {
    /// No batch is in flight.
    #[default]
    None,
    /// A batch that first releases all locks held, and then makes the journal's tries.
    Acquire,
    /// A batch that makes the journal's tries, and keeps the locks held.
    Extend,
    /// A batch that releases all locks held, as its last step.
    Release,
    /// A batch that recovers or repairs after another client, while no lock is held.
    Recovery,
}

/// A client's locks, and the batch that is changing them.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) held: LockSet,
    pub(crate) flight: Flight,
    /// The tries of [`Flight::Acquire`] and [`Flight::Extend`].
    pub(crate) tries: ArrayVec<Try, MAX_LOCKS>,
    /// Proof that the client being recovered is dead. Kept until the last batch of its recovery has completed: before
    /// that no other client may recover it. [R-RECOVER-4]
    pub(crate) proof: Option<FenceProof>,
    /// The reason why it is unknown which locks are held. Never becomes `None` again. [R-DROP-2]
    pub(crate) lost: Option<FabricError>,
}

impl Journal {
    pub(crate) fn is_clean(&self) -> bool {
        self.held.is_empty() && self.has_completed() && self.lost.is_none()
    }

    /// Whether the completion of every batch was seen.
    pub(crate) fn has_completed(&self) -> bool {
        self.flight == Flight::None
    }

    /// Whether every lock in `locks` is held.
    pub(crate) fn holds(&self, locks: &LockMask) -> bool {
        self.held.iter().any(|held| held.word == locks.word && held.mask & locks.mask == locks.mask)
    }

    /// Whether the lock of `row` is held.
    pub(crate) fn holds_row(&self, table: &Table, row: RowId) -> bool {
        self.holds(&table.locks().mask(table.locks().lock_of(row)))
    }

    /// Records that a batch failed. If it may have taken effect, the client is lost, and its locks are left to
    /// recovery: releasing a lock twice would corrupt its neighbours. [R-DROP-2]
    pub(crate) fn failed(&mut self, error: &FabricError) {
        self.flight = Flight::None;
        if error.effect() != Effect::None {
            self.held.clear();
            self.lost = Some(error.clone());
        }
    }

    /// Records, before it is posted, that the next batch is `flight`, with these tries.
    #[inline(always)]
    pub(crate) fn expect_tries(&mut self, flight: Flight, tries: impl IntoIterator<Item = Try>) {
        self.tries.clear();
        self.tries.extend(tries);
        self.flight = flight;
    }

    /// Records the outcome of the batch in flight, whose atomics found `found`, in batch order.
    #[inline]
    pub(crate) fn completed(&mut self, found: &[u64]) {
        let skip = match std::mem::take(&mut self.flight) {
            Flight::None | Flight::Recovery => return,
            Flight::Release => return self.held.clear(),
            Flight::Acquire => {
                let released = self.held.len();
                self.held.clear();
                released
            }
            Flight::Extend => 0,
        };
        debug_assert!(found.len() >= skip + self.tries.len(), "a word was found for each try");
        self.hold_won(found.iter().skip(skip));
    }

    /// Records the outcome of the [`Flight::Acquire`] in flight, which released no lock: same as
    /// [`Journal::completed`], where the kind of batch is known.
    #[inline(always)]
    pub(crate) fn acquire_completed(&mut self, found: &[u64]) {
        debug_assert!(self.flight == Flight::Acquire && self.held.is_empty());
        self.flight = Flight::None;
        self.hold_won(found.iter());
    }

    #[inline(always)]
    fn hold_won<'f>(&mut self, found: impl Iterator<Item = &'f u64>) {
        for (attempt, found) in self.tries.iter().zip(found) {
            if attempt.won(*found) {
                self.held.push(attempt.locks);
            }
        }
    }

    /// Records that the [`Flight::Release`] in flight has released all locks: same as [`Journal::completed`], where the
    /// kind of batch is known.
    #[inline(always)]
    pub(crate) fn release_completed(&mut self) {
        debug_assert!(self.flight == Flight::Release);
        self.flight = Flight::None;
        self.held.clear();
    }

    /// Waits for a batch that a dropped operation left in flight, and records what it found. Returns false if the batch
    /// had no effect.
    pub(crate) async fn drain<L: Lane + ?Sized>(&mut self, lane: &mut L) -> Result<bool, FabricError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let mut found = [0; 2 * MAX_LOCKS];
        let drained = poll_fn(|cx| lane.poll_drain(&mut found, cx)).await;
        let atomics = drained.inspect_err(|error| self.failed(error))?;
        if atomics > 0 {
            self.completed(&found[..atomics.min(found.len())]);
        } else {
            // Nothing is in flight: the batch was refused, and had no effect.
            self.flight = Flight::None;
        }
        self.proof = None;
        Ok(atomics > 0)
    }

    /// Releases every lock held. 1 round trip, none if no lock is held.
    #[in_place]
    pub(crate) async fn release<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        table: &Table,
        owner: OwnerId,
    ) -> Result<(), FabricError> {
        if self.held.is_empty() {
            return Ok(());
        }
        let mut found = [0; MAX_LOCKS];
        let releases = clear_verbs(table, owner, lane.caps().masked_cas, &self.held, &mut found);
        let mut batch: ArrayVec<Verb<'_>, MAX_LOCKS> = releases.collect();
        self.flight = Flight::Release;
        let posted = post(lane, &mut batch[..]).await;
        match &posted {
            Ok(()) => self.completed(&[]),
            Err(error) => self.failed(error),
        }
        posted
    }
}
