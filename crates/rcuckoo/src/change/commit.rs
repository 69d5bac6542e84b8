//! The commit: one post that makes a change durable against its client's death, makes it visible, and releases its
//! locks.

use guira_fabric::{
    Addr, Caps, Effect, FabricError, Lane, LocalLane, MaskedCas, Verb, WORD_BYTES, post, post_in_place,
};
use guira_in_place::in_place;
use guira_layout::{ExtentRef, LockMask, OwnerId, Part, Record, RowId, Seal};

use crate::change::full_rows::FullBits;
use crate::locks::batch::{clear_verbs, release_verb};
use crate::locks::journal::Flight;
use crate::{Buffer, Client, ErrorKind, MAX_LOCKS, Table};

/// An extent, with the address of its mark.
#[derive(Clone, Copy)]
pub(crate) struct Marked {
    pub(crate) extent: ExtentRef,
    pub(crate) mark: Addr,
}

/// The new content of a row, and the index of the one entry in which it differs.
#[derive(Clone, Copy)]
pub(crate) struct Write<'c> {
    pub(crate) row: RowId,
    pub(crate) index: usize,
    pub(crate) words: &'c [u64],
}

/// A commit, posted as `sealed record | rows in order | retire | mark | release`. [R-COMMIT-1]
///
/// The linearization point is the WRITE of the last row: the row that holds the key afterwards, or held it before.
/// Commits of one row of usual lengths are written out: a batch that is built where it is posted, in an array of a
/// length known to the compiler, never exists in memory (docs/decisions/0010). All others are [`Commit::post_all`].
pub(crate) struct Commit<'c> {
    pub(crate) table: &'c Table,
    pub(crate) owner: OwnerId,
    /// Index of the first word of the client's slot.
    pub(crate) slot_word: u64,
    /// Rows of a path, from its empty end, that are written before the last one.
    pub(crate) moved: &'c [Write<'c>],
    pub(crate) last: Write<'c>,
    /// The extent that the commit frees.
    pub(crate) freed: Option<&'c Marked>,
    /// Bits of the map of full rows that the commit sets or clears.
    pub(crate) noted: Option<FullBits>,
    pub(crate) held: &'c [LockMask],
}

/// The locks of one word, and those of another, if there is one.
pub(crate) type FewLocks<'c> = (&'c LockMask, Option<&'c LockMask>);

/// Whether a client that dies in a commit of `rows` rows could leave it half done: more than one row changes, or a row
/// is larger than a WRITE that cannot be torn. [R-COMMIT-2]
#[inline(always)]
fn needs_record(table: &Table, caps: &Caps, rows: usize) -> bool {
    let row_bytes = table.rows().row_words() as u64 * WORD_BYTES;
    table.policy().keeps_records && (rows > 1 || row_bytes > caps.atomic_write_unit)
}

impl Commit<'_> {
    /// Posts the commit of one row of `ROW` words under `locks` in one word or two. If the commit needs a record, which
    /// has `RECORD` words, `sequence` is the record's number.
    #[in_place(inline(always))]
    pub(crate) async fn post_row<const RECORD: usize, const ROW: usize>(
        &self,
        lane: &mut dyn Lane,
        row: &[u64; ROW],
        locks: FewLocks<'_>,
        sequence: Option<u32>,
    ) -> Result<(), FabricError> {
        match sequence {
            None => self.post_plain(lane, row, locks).await,
            Some(sequence) => {
                let (sums, last) = (self.table.rows().sums(), &self.last);
                let words = Record::of_one_row::<RECORD, ROW>(sums, last.row, last.index, row, sequence);
                let record = Part { word: Record::ONE_ROW_WORD, words: &words };
                self.post_recorded(lane, row, record, locks, sequence).await
            }
        }
    }

    /// Posts one row without a record and without a mark: a separate function, so that this common case has the
    /// registers for itself.
    #[in_place(inline(never))]
    async fn post_plain<const ROW: usize>(
        &self,
        lane: &mut dyn Lane,
        row: &[u64; ROW],
        (one, other): FewLocks<'_>,
    ) -> Result<(), FabricError> {
        let row = Verb::Write { addr: self.table.geometry().row(self.last.row), words: row };
        let mut found = [0; 2];
        let [found_one, found_other] = &mut found;
        match other {
            None => post(lane, [row, self.release(one, found_one)]).await,
            Some(other) => post(lane, [row, self.release(one, found_one), self.release(other, found_other)]).await,
        }
    }

    /// Posts one row with a record and without a mark.
    #[in_place(inline(always))]
    async fn post_recorded(
        &self,
        lane: &mut dyn Lane,
        row: &[u64],
        record: Part<'_>,
        (one, other): FewLocks<'_>,
        sequence: u32,
    ) -> Result<(), FabricError> {
        let row = Verb::Write { addr: self.table.geometry().row(self.last.row), words: row };
        let retired = [Seal::retired(sequence).0];
        let retire = Verb::Write { addr: self.seal_of(&record), words: &retired };
        let record = Verb::Write { addr: self.slot_at(record.word), words: record.words };
        let mut found = [0; 2];
        let [found_one, found_other] = &mut found;
        match other {
            None => post(lane, [record, row, retire, self.release(one, found_one)]).await,
            Some(other) => {
                let (one, other) = (self.release(one, found_one), self.release(other, found_other));
                post(lane, [record, row, retire, one, other]).await
            }
        }
    }

    /// Posts any commit, with the client's record number `sequence`, built in `record`, if it needs one. Returns how
    /// many of the locks that it released had been reclaimed before.
    #[in_place]
    pub(crate) async fn post_all(
        &self,
        lane: &mut dyn Lane,
        (buffer, record): (&mut Buffer, &mut Record),
        sequence: Option<u32>,
    ) -> Result<u64, FabricError> {
        let (mut found, mut noted) = ([0; MAX_LOCKS], 0);
        let masked_cas = lane.caps().masked_cas;
        let retired = sequence.map(|sequence| [Seal::retired(sequence).0]);
        let generation = self.freed.map(|freed| [freed.extent.generation.0]);
        let parts = sequence.map(|sequence| self.seal(record, sequence));
        let mut batch = buffer.take();
        if let Some((further, first)) = &parts {
            let parts = further.iter().chain([first]);
            batch.extend(parts.map(|part| Verb::Write { addr: self.slot_at(part.word), words: part.words }));
        }
        for write in self.moved.iter().chain([&self.last]) {
            batch.push(Verb::Write { addr: self.table.geometry().row(write.row), words: write.words });
        }
        if let (Some((_, first)), Some(retired)) = (&parts, &retired) {
            batch.push(Verb::Write { addr: self.seal_of(first), words: retired });
        }
        if let (Some(freed), Some(generation)) = (self.freed, &generation) {
            // After the retirement: a sealed record implies that the extent it frees is still allocated, so replaying
            // it never writes into another client's extent. Before the release: once the lock is free, no other client
            // may free this extent again. // [R-EXTENT-4]
            batch.push(Verb::Write { addr: freed.mark, words: generation });
        }
        // Under the lock, so that the last note of a row is that of its last change. // [R-INSERT-7]
        let is_noted = masked_cas != MaskedCas::CasLoop;
        batch.extend(self.noted.filter(|_| is_noted).map(|bits| bits.verb(self.table, &mut noted)));
        batch.extend(clear_verbs(self.table, self.owner, masked_cas, self.held, &mut found));
        let posted = post(lane, &mut batch[..]).await;
        buffer.keep(batch);
        posted.map(|()| self.reclaimed(&found))
    }

    /// Returns how many of the released locks had been reclaimed before: `found` are the lock words as the release
    /// found them.
    fn reclaimed(&self, found: &[u64]) -> u64 {
        if !self.table.is_repairable() {
            return 0;
        }
        self.held.iter().zip(found).map(|(locks, found)| u64::from((locks.mask & !found).count_ones())).sum()
    }

    /// Builds the commit's record, and returns its parts: the further deltas, if there are any, and the rest.
    fn seal<'r>(&self, record: &'r mut Record, sequence: u32) -> (Option<Part<'r>>, Part<'r>) {
        record.clear();
        for write in self.moved.iter().chain([&self.last]) {
            record.push(self.table.rows(), write.row, write.index, write.words);
        }
        if let Some(freed) = self.freed {
            record.free_extent(freed.mark.offset(), freed.extent.generation);
        }
        record.seal(self.table.rows().sums(), sequence);
        record.parts()
    }

    #[inline(always)]
    fn slot_at(&self, word: usize) -> Addr {
        Addr::main_word(self.slot_word.wrapping_add(word as u64))
    }

    /// Returns the address of the seal: the last word of a record's first part.
    #[inline(always)]
    fn seal_of(&self, first: &Part<'_>) -> Addr {
        self.slot_at(first.word + first.words.len() - 1)
    }

    #[inline(always)]
    fn release<'v>(&self, locks: &LockMask, found: &'v mut u64) -> Verb<'v> {
        release_verb(self.table, self.owner, locks, found)
    }
}

impl Client {
    /// Finishes a commit that released all locks, with the number of locks that had been reclaimed before.
    #[inline(always)]
    pub(crate) fn finish_commit(&mut self, posted: Result<u64, FabricError>) -> Result<(), ErrorKind> {
        match posted {
            Ok(reclaimed) => {
                self.reader.counters.reclaimed_locks += reclaimed;
                self.journal.release_completed();
                Ok(())
            }
            Err(error) => Err(self.commit_failed(error)),
        }
    }

    #[cold]
    fn commit_failed(&mut self, source: FabricError) -> ErrorKind {
        self.progress.committed &= source.effect() != Effect::None;
        self.journal.failed(&source);
        ErrorKind::Fabric { source }
    }

    /// Records, before it is posted, that the next batch is a commit of `rows` rows: it releases all locks. Returns the
    /// number of its record, if it needs one. [R-DROP-1]
    #[inline(always)]
    pub(crate) fn expect_commit(&mut self, caps: &Caps, rows: usize) -> Option<u32> {
        self.journal.flight = Flight::Release;
        self.progress.committed = true;
        needs_record(&self.table, caps, rows).then(|| {
            self.reader.counters.records += 1;
            self.reader.counters.sequence()
        })
    }
}
