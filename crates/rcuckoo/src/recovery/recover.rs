//! Recovery: completes a dead client's commit, releases its locks, orphans its chunks, and frees its slot.
//!
//! Invariants: a recoverer has the proof of the client's death, which no other client can have at the same time, and
//! holds no lock of its own [R-RECOVER-4] [R-RECOVER-5]. Rows are written only while their locks still carry the dead
//! client's id [R-RECOVER-3]. Every step may be repeated from the first one on: a recoverer that dies is followed by
//! another, which does the same.

use guira_fabric::{Addr, FabricError, FenceProof, Lane, Verb, post};
use guira_layout::{
    ChunkState, ChunkWord, ExtentClass, LockMask, OwnerId, RECOVERIES_WORD, Record, RowId, STATE_WORD, Seal,
    SegmentSplit, SlotState, SlotWord, SplitImage, TableState,
};

use crate::change::split;
use crate::locks::batch::release_verb;
use crate::table::available_chunks;
use crate::table::session::CLIENT_WORDS;
use crate::{DamagedItem, Error, ErrorKind, Operation, SlotClient, Table};

/// Words of one READ of the lock table or the chunk table.
const SCAN_WORDS: u64 = 4096;
/// Verbs in one batch of releases or of CAS of chunk words: half of the smallest `max_batch` of all fabrics.
const BATCH_VERBS: usize = 64;

/// The work that the recovery of a dead client did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Rows that the client's pending commit was to change, all of which are written now; 0 if there was no such
    /// commit.
    pub replayed_rows: u64,
    /// Rows of that commit that were half written: they did not verify.
    pub torn_rows: u64,
    /// Locks that carried the client's id.
    pub locks: u64,
    /// Chunks that the client owned or was about to own or give back; a run counts as one.
    pub chunks: u64,
    /// Whether an earlier recoverer had begun, and died. [R-RECOVER-4]
    pub was_begun: bool,
}

impl Recovered {
    /// Whether the dead client left nothing but its slot.
    pub fn is_idle(&self) -> bool {
        self.replayed_rows == 0 && self.locks == 0 && self.chunks == 0
    }
}

/// A client whose death was proved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadClient {
    slot: u16,
    generation: u64,
}

impl DeadClient {
    pub(crate) fn of(proof: &FenceProof) -> DeadClient {
        DeadClient { slot: proof.slot(), generation: proof.generation() }
    }
}

/// Recovers the client whose death `proof` proves: completes its pending commit, releases its locks, makes its chunks
/// orphans or free, and frees its slot, which names `by` as the recoverer until then. The caller holds no lock, and
/// keeps the proof until the last batch has completed. Returns `None`, and changes nothing, if the client gave its slot
/// back before it ended, or was recovered already, or if the table is neither recoverable nor repairable. Where dead
/// clients' locks are reclaimed by repair (preset `paper`), they are left to it, and there is no commit to complete.
/// [R-REPAIR-1]
///
/// Round trips: 3, 2 more if a commit had begun, 1 more if the extent space grows (R-GROW-15), 1 for 4,096 lock words
/// and for 4,096 chunks, 1 for 64 lock words with the dead client's locks, 1 for 64 of its chunks and of the tails of a
/// run it was claiming. Source: R-RECOVER-2 to R-RECOVER-6.
///
/// # Errors
/// `Destroyed` if the table was: no row was written. `Corrupt` if the slot, or the record in it, is damaged: its locks
/// stay held. The fabric's. Completed steps stay done, and the next recoverer continues.
pub async fn recover(
    lane: &mut dyn Lane,
    table: &Table,
    proof: &FenceProof,
    by: &SlotClient,
) -> Result<Option<Recovered>, Error> {
    recover_dead(lane, table, DeadClient::of(proof), by).await.map_err(|kind| kind.during(Operation::Session))
}

/// Same as [`recover`], for another operation.
pub(crate) async fn recover_dead(
    lane: &mut dyn Lane,
    table: &Table,
    dead: DeadClient,
    by: &SlotClient,
) -> Result<Option<Recovered>, ErrorKind> {
    if !table.is_recoverable() && !table.is_repairable() {
        return Ok(None);
    }
    let recoverer = Some(by.words());
    let mut recovery = Recovery { lane, table, dead, recoverer, recovered: Recovered::default() };
    let Some(record) = recovery.claim().await? else { return Ok(None) };
    // [R-RECOVER-3]: from here on in this order, and each step is repeated by the successor of a recoverer that died.
    if let (Some(record), seal) = record {
        match record.split() {
            Some(split) => recovery.complete_split(&split, seal).await?,
            None => recovery.replay(&record, seal).await?,
        }
    }
    if table.is_recoverable() {
        recovery.release_locks().await?;
    }
    recovery.orphan_chunks().await?;
    recovery.free_slot().await?;
    Ok(Some(recovery.recovered))
}

struct Recovery<'r> {
    lane: &'r mut dyn Lane,
    table: &'r Table,
    dead: DeadClient,
    /// The recovering process, until it has been written to the slot.
    recoverer: Option<[u64; CLIENT_WORDS]>,
    recovered: Recovered,
}

impl Recovery<'_> {
    fn owner(&self) -> OwnerId {
        OwnerId::of_slot(self.dead.slot)
    }

    fn word(&self, state: SlotState) -> u64 {
        SlotWord { state, generation: self.dead.generation }.encode()
    }

    /// Marks the slot as being recovered, and reads the record of the client's pending commit, if there is one. Returns
    /// `None` if the slot is no longer the dead client's. A destroyed table's rows are not written again: its state is
    /// read in the same batch, so that a client that destroys it later finds the dead client's locks held, and waits. 1
    /// round trip. [R-RECOVER-4] [R-DESTROY-2]
    async fn claim(&mut self) -> Result<Option<(Option<Record>, Seal)>, ErrorKind> {
        let (table, addr) = (self.table, self.table.geometry().slot(self.dead.slot));
        let (live, recovering) = (self.word(SlotState::Live), self.word(SlotState::Recovering));
        let mut words = vec![0; table.geometry().slot_words()];
        let (mut found, mut state) = (0, [0]);
        let claim = Verb::Cas { addr, compare: live, swap: recovering, found: &mut found };
        let state_at = table.geometry().superblock_word(STATE_WORD);
        let record = Verb::Read { addr, into: &mut words };
        let look = Verb::Read { addr: state_at, into: &mut state };
        let posted = post(&mut *self.lane, [claim, record, look]).await;
        posted?;
        if TableState::decode(state[0]) == Some(TableState::Destroyed) {
            return Err(ErrorKind::Destroyed);
        }
        let corrupt = ErrorKind::Corrupt { item: DamagedItem::ClientSlot(self.dead.slot) };
        if SlotWord::decode(found).is_none() {
            return Err(corrupt);
        }
        // A recoverer that died left the slot `Recovering`.
        if found != live && found != recovering {
            return Ok(None);
        }
        self.recovered.was_begun = found == recovering;
        let record = Record::decode(&words, table.rows(), table.config(), table.geometry()).map_err(|_| corrupt)?;
        Ok(Some((record, Seal(words[Seal::word(table.rows())]))))
    }

    /// Posts a batch of the recovery; the first one begins by writing the recovering process into the slot, so that a
    /// recoverer that is stopped can be told from the dead client. Not before the claim has succeeded: a process must
    /// not be named, and perhaps killed, for a recovery that it is not doing. [R-RECOVER-4]
    async fn post<'v>(&mut self, batch: impl IntoIterator<Item = Verb<'v>>) -> Result<(), FabricError> {
        let addr = self.table.geometry().slot(self.dead.slot).add_words(SlotWord::PROCESS_WORD as u64);
        let recoverer = self.recoverer.take();
        let mut verbs: Vec<Verb<'_>> = recoverer.iter().map(|words| Verb::Write { addr, words }).collect();
        for verb in batch {
            verbs.push(verb);
        }
        post(&mut *self.lane, verbs).await
    }

    /// Completes the commit: `rows | retire | mark`, as its client would have. The rows' locks still carry the dead
    /// client's id, because a sealed record implies that none was released. A row torn anywhere becomes whole by its
    /// delta, with the checksum that its writer computed. 2 round trips. [R-RECOVER-2] [R-RECOVER-6] [R-COMMIT-3]
    async fn replay(&mut self, record: &Record, seal: Seal) -> Result<(), FabricError> {
        let (geometry, rows) = (self.table.geometry(), self.table.rows());
        let numbers: Vec<RowId> = record.deltas(rows).map(|delta| delta.row).collect();
        let mut images = vec![0; numbers.len() * rows.row_words()];
        self.post(self.table.read_rows(&numbers, &mut images)).await?;
        for (delta, image) in record.deltas(rows).zip(images.chunks_exact_mut(rows.row_words())) {
            self.recovered.torn_rows += u64::from(rows.verify(delta.row, image).is_err());
            delta.apply(rows, image);
        }
        let retired = [Seal::retired(seal.sequence()).0];
        let (mark, generation) = record.freed_extent().unwrap_or_default();
        let generation = [generation.0];
        let written = numbers.iter().zip(images.chunks_exact(rows.row_words()));
        // Linearization point of the dead client's operation, unless a reader saw it before: the WRITE of the last row.
        let mut batch: Vec<Verb<'_>> =
            written.map(|(row, words)| Verb::Write { addr: geometry.row(*row), words }).collect();
        let seal_at = geometry.slot(self.dead.slot).add_words(Seal::word(rows) as u64);
        batch.push(Verb::Write { addr: seal_at, words: &retired });
        if record.freed_extent().is_some() {
            // After the retirement, as in a commit: space that was marked may be in use again. // [R-EXTENT-4]
            batch.push(Verb::Write { addr: Addr::main(mark), words: &generation });
        }
        self.post(batch).await?;
        self.recovered.replayed_rows = numbers.len() as u64;
        Ok(())
    }

    /// Completes a split: `parent's rows | map | retire`, as its client would have. Its record was sealed after the
    /// child's rows had been written, and the locks of both still carry the dead client's id. A row that cannot be
    /// completed stays as it is. 2 round trips. [R-GROW-9] [R-GROW-10]
    async fn complete_split(&mut self, split: &SegmentSplit, seal: Seal) -> Result<(), FabricError> {
        let table = self.table;
        let (geometry, rows) = (table.geometry(), table.rows());
        // The record is that of a table that grows.
        let Some(segments) = table.growing_segments() else { return Ok(()) };
        let [first, child_first] = [split.segment, split.child].map(|segment| segments.first_row(segment));
        let (count, row_words) = (segments.rows(), rows.row_words());
        let [mut parent, mut child] = [0, 0].map(|word| vec![word; count as usize * row_words]);
        self.post([table.read_row(first, &mut parent), table.read_row(child_first, &mut child)]).await?;
        let images = parent.chunks_exact_mut(row_words).zip(child.chunks_exact(row_words));
        for (row, (words, child)) in (first.0..).map(RowId).zip(images) {
            self.recovered.torn_rows += u64::from(rows.verify(row, words).is_err());
            if !rows.complete_split_row(row, words, child, SplitImage::After) {
                self.split_without_child(split, row, words);
            }
        }
        let (depth, retired) = ([segments.map_word(split.level + 1)], [Seal::retired(seal.sequence()).0]);
        let seal_at = geometry.slot(self.dead.slot).add_words(Seal::word(rows) as u64);
        let retire = Verb::Write { addr: seal_at, words: &retired };
        self.post(split::completion(table, split, (first, &parent), &depth, retire)).await?;
        self.recovered.replayed_rows = count;
        Ok(())
    }

    /// Takes the entries that have moved out of a row that is whole, as it was before the split, and whose child's row is
    /// damaged: with another level than the rest of its segment, it would take keys that belong to the child.
    /// [R-GROW-9]
    fn split_without_child(&self, split: &SegmentSplit, row: RowId, words: &mut [u64]) {
        let (table, rows, mut key) = (self.table, self.table.rows(), Vec::new());
        if rows.verify(row, words).is_ok() && rows.trailer(words).level() == split.level {
            let mut child = vec![0; words.len()];
            rows.split_row((row, words), (row, &mut child), |words, index| {
                table.placement().has_left(row, split.level + 1, table.entry_digest(words, index, &mut key))
            });
        }
    }

    /// Releases every lock that carries the dead client's id. No other client takes or releases these, so each is
    /// released once. [R-RECOVER-3] [R-LOCK-2]
    async fn release_locks(&mut self) -> Result<(), FabricError> {
        let (table, owner, locks) = (self.table, self.owner(), self.table.locks());
        let mut words = Vec::new();
        for first in (0..locks.words()).step_by(SCAN_WORDS as usize) {
            words.resize(SCAN_WORDS.min(locks.words() - first) as usize, 0);
            self.post([Verb::Read { addr: locks.addr(first), into: &mut words }]).await?;
            let mut held: Vec<LockMask> = Vec::new();
            for (word, value) in (first..).zip(&words) {
                let its_own = locks.all_held(word, *value).filter(|(_, holder)| *holder == owner);
                let (count, mask) =
                    its_own.fold((0, 0), |(count, mask), (lock, _)| (count + 1, mask | locks.mask(lock).mask));
                self.recovered.locks += count;
                if count > 0 {
                    held.push(LockMask { word, mask });
                }
            }
            for held in held.chunks(BATCH_VERBS) {
                let mut found = [0; BATCH_VERBS];
                let releases = held.iter().zip(&mut found).map(|(held, found)| release_verb(table, owner, held, found));
                self.post(releases).await?;
            }
        }
        Ok(())
    }

    /// Makes the dead client's chunks orphans, and frees those that hold no linked extent: docs/decisions/0007. Each
    /// step is a CAS from a word that only the dead client and its recoverers change. [R-EXTENT-2]
    async fn orphan_chunks(&mut self) -> Result<(), FabricError> {
        let (chunks, owner) = (available_chunks(&mut *self.lane, self.table).await?, self.owner());
        let mut words = Vec::new();
        for first in (0..chunks).step_by(SCAN_WORDS as usize) {
            words.resize(SCAN_WORDS.min(chunks - first) as usize, 0);
            let addr = self.table.geometry().chunk_word(first);
            self.post([Verb::Read { addr, into: &mut words }]).await?;
            let mut swaps = Vec::new();
            for (chunk, word) in (first..).zip(words.iter().map(|word| ChunkWord(*word))) {
                match word.decode() {
                    Some(ChunkState::Owned { owner: of, class }) if of == owner => {
                        swaps.push((chunk, word, ChunkWord::encode(ChunkState::Orphan { class, free: 0 })));
                    }
                    Some(ChunkState::Claiming { owner: of, class }) if of == owner => {
                        swaps.extend(freed_tails(chunk, class, chunks));
                        swaps.push((chunk, word, ChunkWord::FREE));
                    }
                    _ => continue,
                }
                self.recovered.chunks += 1;
            }
            self.swap_chunks(&swaps).await?;
        }
        Ok(())
    }

    async fn swap_chunks(&mut self, swaps: &[(u64, ChunkWord, ChunkWord)]) -> Result<(), FabricError> {
        for swaps in swaps.chunks(BATCH_VERBS) {
            let mut found = [0; BATCH_VERBS];
            let geometry = self.table.geometry();
            let verbs = swaps.iter().zip(&mut found).map(|((chunk, compare, swap), found)| Verb::Cas {
                addr: geometry.chunk_word(*chunk),
                compare: compare.0,
                swap: swap.0,
                found,
            });
            self.post(verbs).await?;
        }
        Ok(())
    }

    /// Counts the recovery, and frees the slot. This comes last: afterwards the id may belong to another client. The
    /// recovery is counted before the slot is free, perhaps twice if the recoverer dies in between, so that extents
    /// that this death leaked are swept. [R-RECOVER-3] [R-RECOVER-7]
    async fn free_slot(&mut self) -> Result<(), FabricError> {
        let (compare, swap) = (self.word(SlotState::Recovering), self.word(SlotState::Free));
        let (geometry, mut found) = (self.table.geometry(), [0; 2]);
        let [counted, freed] = &mut found;
        let count = Verb::FetchAdd { addr: geometry.superblock_word(RECOVERIES_WORD), add: 1, found: counted };
        let free = Verb::Cas { addr: geometry.slot(self.dead.slot), compare, swap, found: freed };
        self.post([count, free]).await
    }
}

/// Returns the tails that a run being claimed at `head` may have, in a table of `chunks` chunks: freed before the head
/// is, so that they always have one.
fn freed_tails(head: u64, class: ExtentClass, chunks: u64) -> impl Iterator<Item = (u64, ChunkWord, ChunkWord)> {
    let tail = ChunkWord::encode(ChunkState::Tail { head: head as u32 });
    // A damaged word may give any length.
    let end = (head + class.chunks()).min(chunks);
    (head + 1..end).map(move |chunk| (chunk, tail, ChunkWord::FREE))
}
