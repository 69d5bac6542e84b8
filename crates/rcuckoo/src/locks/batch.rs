//! The batch that takes locks and samples the rows they guard, and the verbs that release locks.

use guira_fabric::{Addr, FabricError, Lane, LocalLane, MaskedCas, Verb, post, post_in_place};
use guira_in_place::in_place;
use guira_layout::{ExtentRef, LockMask, OwnerId, RowId};

use super::LockSet;
use super::journal::Try;
use crate::change::full_rows::{FullRows, MAX_CORRECTED};
use crate::{Batch, Buffer, RowPair, Table};

/// Maximum number of extent words that one WRITE carries: the smallest `max_verb_words` of all fabrics.
pub(crate) const WRITE_WORDS: usize = 1 << 17;

/// An extent to be written before anything can refer to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentWrite<'v> {
    pub(crate) extent: ExtentRef,
    pub(crate) words: &'v [u64],
}

impl<'v> ExtentWrite<'v> {
    fn push_to<'b>(&self, batch: &mut Batch<'b>)
    where
        'v: 'b,
    {
        let mut addr = Addr::main(self.extent.offset);
        for words in self.words.chunks(WRITE_WORDS) {
            batch.push(Verb::Write { addr, words });
            addr = addr.add_words(words.len() as u64);
        }
    }
}

/// Returns the locks of `rows`: mapped, without duplicates, in address order. [R-LOCK-5]
#[inline(always)]
pub(crate) fn lock_set(table: &Table, rows: impl IntoIterator<Item = RowId>) -> LockSet {
    let mut set = LockSet::new();
    for row in rows {
        let locks = table.locks().mask(table.locks().lock_of(row));
        match set.iter().position(|other| other.word >= locks.word) {
            Some(at) if set[at].word == locks.word => set[at].mask |= locks.mask,
            Some(at) => set.insert(at, locks),
            None => set.push(locks),
        }
    }
    set
}

/// The batch that takes locks: `releases | extent | tries | READs`. [R-LOCK-2] [R-EXTENT-1]
///
/// The tries of one key's rows are written out, like the usual commits of [`crate::change`]; all others are
/// [`LockBatch::post_all`].
pub(crate) struct LockBatch<'l> {
    pub(crate) table: &'l Table,
    pub(crate) owner: OwnerId,
    pub(crate) masked_cas: MaskedCas,
    /// Locks to release first.
    pub(crate) released: &'l [LockMask],
    /// Extent to write before any lock is held.
    pub(crate) extent: Option<&'l ExtentWrite<'l>>,
    pub(crate) tries: &'l [Try],
    /// Corrections of the map of full rows, to be posted behind the tries. [R-INSERT-7]
    pub(crate) full: Option<&'l FullRows>,
}

impl LockBatch<'_> {
    /// Posts the tries of the one or two lock words of `pair`, and READs of both rows, and nothing else. `found`
    /// receives the previous lock words.
    #[in_place(inline(always))]
    pub(crate) async fn post_pair(
        &self,
        lane: &mut dyn Lane,
        pair: RowPair,
        first: &mut [u64],
        second: &mut [u64],
        [found_one, found_other]: &mut [u64; 2],
    ) -> Result<(), FabricError> {
        debug_assert!(self.released.is_empty() && self.extent.is_none() && (1..=2).contains(&self.tries.len()));
        let [one, others @ ..] = self.tries else { return Ok(()) };
        match others.first() {
            None => {
                let one = self.acquire(one, found_one);
                post(lane, [one, self.table.read_row(pair.first, first), self.table.read_row(pair.second, second)])
                    .await
            }
            Some(other) => {
                let (one, other) = (self.acquire(one, found_one), self.acquire(other, found_other));
                let (first, second) =
                    (self.table.read_row(pair.first, first), self.table.read_row(pair.second, second));
                post(lane, [one, other, first, second]).await
            }
        }
    }

    /// Posts the whole batch, with `reads` of ranges of rows, each from its first row on. `found` receives the previous
    /// lock words: those released, then those tried.
    #[in_place]
    pub(crate) async fn post_all<'b>(
        &'b self,
        lane: &mut dyn Lane,
        buffer: &mut Buffer,
        reads: impl Iterator<Item = (RowId, &'b mut [u64])>,
        found: &'b mut [u64],
    ) -> Result<(), FabricError> {
        let mut noted = [0; MAX_CORRECTED];
        let mut batch: Batch<'_> = buffer.take();
        debug_assert!(
            found.len() >= self.released.len() + self.tries.len(),
            "every lock word that is found has a place"
        );
        let (given_back, tried) = found.split_at_mut(self.released.len());
        batch.extend(clear_verbs(self.table, self.owner, self.masked_cas, self.released, given_back));
        if let Some(extent) = self.extent {
            extent.push_to(&mut batch);
        }
        for (attempt, found) in self.tries.iter().zip(tried) {
            batch.push(self.acquire(attempt, found));
        }
        if let Some(full) = self.full {
            batch.extend(full.corrections(self.table, &mut noted));
        }
        for (row, into) in reads {
            batch.push(self.table.read_row(row, into));
        }
        let posted = post(lane, &mut batch[..]).await;
        buffer.keep(batch);
        posted
    }

    #[inline(always)]
    fn acquire<'v>(&self, Try { locks, compare, compare_mask }: &Try, found: &'v mut u64) -> Verb<'v> {
        let layout = self.table.locks();
        let (addr, mask, held) = (layout.addr(locks.word), locks.mask, layout.held(self.owner, locks.mask));
        if self.masked_cas == MaskedCas::CasLoop {
            // Compares with all the neighbours' locks, as they were last seen. // [R-LOCK-6]
            debug_assert!(*compare_mask == !0, "a try of the whole word");
            return Verb::Cas { addr, compare: *compare, swap: *compare & !mask | held, found };
        }
        Verb::MaskedCas { addr, compare: 0, swap: held, compare_mask: mask, swap_mask: mask, found }
    }
}

/// Returns the verb that subtracts what `owner` has written from its locks in one word, which releases them. If it
/// holds them, that never fails, never disturbs a neighbour, needs no retry. [R-LOCK-2]
pub(crate) fn release_verb<'b>(table: &Table, owner: OwnerId, locks: &LockMask, found: &'b mut u64) -> Verb<'b> {
    let layout = table.locks();
    Verb::FetchAdd { addr: layout.addr(locks.word), add: layout.release_addend(owner, locks.mask), found }
}

/// Returns the verb that releases locks of one word, in tables of any preset. Locks that do not name their owners may
/// have been reclaimed, and be free or another client's, so they are cleared, as printed: a subtraction would borrow
/// from their neighbours. Where a region has no masked CAS there is no other way. [R-REPAIR-8]
#[inline]
pub(crate) fn clear_verb<'b>(
    table: &Table,
    owner: OwnerId,
    masked_cas: MaskedCas,
    locks: &LockMask,
    found: &'b mut u64,
) -> Verb<'b> {
    let layout = table.locks();
    if layout.has_owner_ids() || masked_cas == MaskedCas::CasLoop {
        return release_verb(table, owner, locks, found);
    }
    let addr = layout.addr(locks.word);
    Verb::MaskedCas { addr, compare: 0, swap: 0, compare_mask: 0, swap_mask: locks.mask, found }
}

/// Returns the verbs that release all of `held`, as [`clear_verb`] does.
pub(crate) fn clear_verbs<'b>(
    table: &Table,
    owner: OwnerId,
    masked_cas: MaskedCas,
    held: &[LockMask],
    found: &'b mut [u64],
) -> impl Iterator<Item = Verb<'b>> {
    held.iter().zip(found).map(move |(locks, found)| clear_verb(table, owner, masked_cas, locks, found))
}
