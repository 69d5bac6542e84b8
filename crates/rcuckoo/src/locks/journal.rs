//! What a client must not forget when its operation is dropped in the middle. // [R-DROP-1]
//!
//! Invariant: before a batch with atomics is posted, `flight` says what it will do; after its completion was seen,
//! `held` says exactly which locks this client holds and `flight` is `None`. If its completion never will be seen,
//! nobody knows which locks those are, and `lost` says why.

use std::future::poll_fn;

use arrayvec::ArrayVec;
use guira_fabric::{Effect, FabricError, FenceProof, Lane, LocalLane, MaskedCas, Verb, post, post_in_place};
use guira_in_place::in_place;
use guira_layout::{LockMask, OwnerId, RowId};

use crate::change::PAIR_WORDS;
use crate::locks::LockSet;
use crate::{MAX_LOCK_WORDS, Table};

/// A lock word a batch tries to take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Try {
    pub(crate) locks: LockMask,
    /// The word compared with.
    pub(crate) compare: u64,
    /// Which of its bits are compared.
    pub(crate) compare_mask: u64,
}

impl Try {
    pub(crate) fn won(&self, found: u64) -> bool {
        (found ^ self.compare) & self.compare_mask == 0
    }
}

/// The batch whose completion was not seen yet.
#[derive(Clone, Debug, Default)]
pub(crate) enum Flight {
    /// None is.
    #[default]
    None,
    /// One that first releases all that is held and then tries these.
    Acquire(ArrayVec<Try, MAX_LOCK_WORDS>),
    /// One that tries the first so many of these, while nothing is held.
    AcquirePair([Try; PAIR_WORDS], usize),
    /// One that tries these and keeps what is held.
    Extend(ArrayVec<Try, MAX_LOCK_WORDS>),
    /// One that releases all that is held, last of all.
    Release,
    /// One of those that recover somebody else, or repair what they left, while nothing is held.
    Recovery,
}

/// A client's locks.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) held: LockSet,
    pub(crate) flight: Flight,
    /// That the client which is being recovered is dead. Kept until the last batch of its recovery has completed:
    /// before that nobody else may recover it. // [R-RECOVER-4]
    pub(crate) proof: Option<FenceProof>,
    /// Why it is not known any more which locks are held. Never becomes `None` again. // [R-DROP-2]
    pub(crate) lost: Option<FabricError>,
}

impl Journal {
    pub(crate) fn is_clean(&self) -> bool {
        self.held.is_empty() && self.is_landed() && self.lost.is_none()
    }

    /// Whether the completion of every batch was seen.
    pub(crate) fn is_landed(&self) -> bool {
        matches!(self.flight, Flight::None)
    }

    /// Whether every lock in `locks` is held.
    pub(crate) fn holds(&self, locks: &LockMask) -> bool {
        self.held.iter().any(|held| held.word == locks.word && held.mask & locks.mask == locks.mask)
    }

    /// Whether the lock of `row` is held.
    pub(crate) fn holds_row(&self, table: &Table, row: RowId) -> bool {
        self.holds(&table.locks().mask(table.locks().lock_of(row)))
    }

    /// Books a batch that failed. If it may have taken effect, the client is lost, and what it held is for recovery to
    /// give back: releasing a lock twice would corrupt its neighbours. // [R-DROP-2]
    pub(crate) fn failed(&mut self, error: &FabricError) {
        self.flight = Flight::None;
        if error.effect() != Effect::None {
            self.held.clear();
            self.lost = Some(error.clone());
        }
    }

    /// Books the outcome of a flight whose atomics found `found`, in batch order.
    pub(crate) fn landed(&mut self, found: &[u64]) {
        let (tries, skip) = match std::mem::take(&mut self.flight) {
            Flight::None | Flight::Recovery => return,
            Flight::Release => return self.held.clear(),
            Flight::AcquirePair(tries, words) => return self.hold_won(&tries[..words], found),
            Flight::Acquire(tries) => (tries, std::mem::take(&mut self.held).len()),
            Flight::Extend(tries) => (tries, 0),
        };
        self.hold_won(&tries, &found[skip.min(found.len())..]);
    }

    /// Books that the tries of [`Flight::AcquirePair`] which is under way, `tries`, found `found`: as
    /// [`Journal::landed`], for who knows them.
    #[inline(always)]
    pub(crate) fn landed_pair(&mut self, tries: &[Try], found: &[u64]) {
        debug_assert!(matches!(self.flight, Flight::AcquirePair(..)));
        self.flight = Flight::None;
        self.hold_won(tries, found);
    }

    /// Books that the [`Flight::Release`] which is under way released all that is held: as [`Journal::landed`], for who
    /// knows that it is one.
    #[inline(always)]
    pub(crate) fn landed_release(&mut self) {
        debug_assert!(matches!(self.flight, Flight::Release));
        self.flight = Flight::None;
        self.held.clear();
    }

    /// Adds the locks of the tries that won, by what they found, to those that are held.
    #[inline(always)]
    fn hold_won(&mut self, tries: &[Try], found: &[u64]) {
        for (attempt, found) in tries.iter().zip(found) {
            if attempt.won(*found) {
                self.held.push(attempt.locks);
            }
        }
    }

    /// Waits for a batch that a dropped operation left in flight, and books what it found. False if it had no effect.
    pub(crate) async fn drain<L: Lane + ?Sized>(&mut self, lane: &mut L) -> Result<bool, FabricError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let mut found = [0; 2 * MAX_LOCK_WORDS];
        let drained = poll_fn(|cx| lane.poll_drain(&mut found, cx)).await;
        let atomics = drained.inspect_err(|error| self.failed(error))?;
        if atomics > 0 {
            self.landed(&found[..atomics.min(found.len())]);
        } else {
            // Nothing was forgotten: the batch was refused, and had no effect.
            self.flight = Flight::None;
        }
        self.proof = None;
        Ok(atomics > 0)
    }

    /// Releases everything that is held. 1 round trip, none if nothing is.
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
        let mut found = [0; MAX_LOCK_WORDS];
        let mut batch: ArrayVec<Verb<'_>, MAX_LOCK_WORDS> = ArrayVec::new();
        let masked_cas = lane.caps().masked_cas;
        for (locks, found) in self.held.iter().zip(found.iter_mut()) {
            batch.push(clear_verb(table, owner, masked_cas, locks, found));
        }
        self.flight = Flight::Release;
        let posted = post(lane, &mut batch[..]).await;
        match &posted {
            Ok(()) => self.landed(&[]),
            Err(error) => self.failed(error),
        }
        posted
    }
}

/// Gives back locks of one word. Never fails, never disturbs a neighbour, needs no retry. // [R-LOCK-2]
pub(crate) fn release_verb<'b>(table: &Table, owner: OwnerId, locks: &LockMask, found: &'b mut u64) -> Verb<'b> {
    let layout = table.locks();
    Verb::FetchAdd { addr: layout.addr(locks.word), add: layout.release_addend(owner, locks.mask), found }
}

/// Gives back locks of one word. Locks that name nobody may have been reclaimed, and be free or somebody else's, so
/// they are cleared, as printed: to subtract would borrow from their neighbours. Where a region has no masked CAS there
/// is no other way. // [R-REPAIR-8]
#[inline]
pub(crate) fn clear_verb<'b>(
    table: &Table,
    owner: OwnerId,
    masked_cas: MaskedCas,
    locks: &LockMask,
    found: &'b mut u64,
) -> Verb<'b> {
    let layout = table.locks();
    if layout.names_owners() || masked_cas == MaskedCas::CasLoop {
        return release_verb(table, owner, locks, found);
    }
    let addr = layout.addr(locks.word);
    Verb::MaskedCas { addr, compare: 0, swap: 0, compare_mask: 0, swap_mask: locks.mask, found }
}
