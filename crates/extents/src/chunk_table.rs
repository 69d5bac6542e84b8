//! The chunk table: finding, claiming, formatting, adopting and giving up chunks. [R-EXTENT-2]
//!
//! Invariants: a chunk word is changed by CAS only; a word that names this client is changed by no other client while
//! it lives. A chunk that is not formatted or not complete is `Claiming`, so a recoverer of a client that died at any
//! point in this module knows that nothing refers to it, and which tails belong to it: docs/decisions/0007.

use guira_fabric::{Addr, FabricError, Lane, Verb, post};
use guira_layout::{
    CHUNK_HEADER_WORDS, CHUNK_SWEPT_WORD, ChunkState, ChunkWord, ExtentClass, Generation, RECOVERIES_WORD,
};
use guira_rcuckoo::available_chunks;

use super::reclaim_scan::Orphan;
use super::{BATCH_VERBS, Extents, ZERO_WORDS};

/// Words of the chunk table that one READ fetches.
const TABLE_WORDS: u64 = 4096;
/// Divisor of the share of slots that makes an orphan worth adopting. If at least one slot in this many was free when
/// the orphan's word was written, it is adopted before a free chunk is claimed. To adopt it costs a round trip for each
/// 64 of its other slots, whose generations are read.
const ROOMY_SHARE: u64 = 8;
/// Number of different chunks that clients try first when they claim at the same moment.
const SPREAD: usize = 4;

/// The state of an adopted chunk's slots.
struct Adopted {
    /// Recoveries counted by now.
    recoveries: u64,
    header: Vec<u64>,
    marks: Vec<u64>,
    generations: Vec<u64>,
}

impl Extents {
    /// Claims a chunk, or a run of chunks, for `class`: an orphan with many free slots first, otherwise free chunks.
    /// Slots are cut from the highest free chunk and runs from the lowest, so that free chunks stay adjacent. Returns
    /// false if there is none.
    pub(super) async fn find_chunk(&mut self, lane: &mut dyn Lane, class: ExtentClass) -> Result<bool, FabricError> {
        let words = self.read_chunk_table(lane).await?;
        if self.find_orphan(lane, &words, class).await? {
            return Ok(true);
        }
        match class {
            ExtentClass::Run(chunks) => self.find_run(lane, &words, u64::from(chunks)).await,
            ExtentClass::Slot(_) => self.find_single(lane, &words, class).await,
        }
    }

    /// Adopts an orphan of `class` with many free slots: by its word, or else by a sample of some whose words may be
    /// out of date. 1 round trip for the sample, 2 or more for the orphan. Returns false if none was found.
    async fn find_orphan(
        &mut self,
        lane: &mut dyn Lane,
        words: &[ChunkWord],
        class: ExtentClass,
    ) -> Result<bool, FabricError> {
        let slots = class.slots(self.table.config().chunk_bytes);
        let is_roomy = |free: u64| free * ROOMY_SHARE >= slots.min(u16::MAX.into());
        let mut known: Vec<Orphan> = orphans(words).filter(|(_, of, _)| *of == class).collect();
        known.retain(|(index, ..)| self.is_possible(*index, class));
        known.sort_unstable_by_key(|(index, _, free)| (*free, *index));
        while let Some((index, ..)) = known.pop_if(|(_, _, free)| is_roomy(u64::from(*free))) {
            if self.adopt(lane, index, words[index as usize], class).await? && self.chunks.has_free(class) {
                return Ok(true);
            }
        }
        // Only a client that died leaves an empty run; reclaim scans find those.
        if known.is_empty() || matches!(class, ExtentClass::Run(_)) {
            return Ok(false);
        }
        let turn = self.generations.start as usize % known.len();
        known.rotate_left(turn);
        known.truncate(self.fitting_samples(&known));
        let estimates = self.estimate(lane, &known).await?;
        let mut roomy: Vec<(u64, u64)> = estimates.into_iter().zip(known.iter().map(|(index, ..)| *index)).collect();
        roomy.retain(|(free, _)| *free > 0 && is_roomy(*free));
        roomy.sort_unstable();
        for (_, index) in roomy.into_iter().rev() {
            if self.adopt(lane, index, words[index as usize], class).await? && self.chunks.has_free(class) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the words of all chunks that have memory. 1 round trip for 4,096 of them, 1 more if the table grows.
    pub(super) async fn read_chunk_table(&mut self, lane: &mut dyn Lane) -> Result<Vec<ChunkWord>, FabricError> {
        self.available = available_chunks(lane, &self.table).await?;
        let mut words = vec![0; self.available as usize];
        for (i, into) in words.chunks_mut(TABLE_WORDS as usize).enumerate() {
            let addr = self.table.geometry().chunk_word(i as u64 * TABLE_WORDS);
            post(lane, [Verb::Read { addr, into }]).await?;
        }
        let words: Vec<ChunkWord> = words.into_iter().map(ChunkWord).collect();
        self.free_at_end = words.iter().rev().take_while(|word| **word == ChunkWord::FREE).count() as u64;
        Ok(words)
    }

    async fn find_single(
        &mut self,
        lane: &mut dyn Lane,
        words: &[ChunkWord],
        class: ExtentClass,
    ) -> Result<bool, FabricError> {
        let mut free: Vec<u64> =
            (0..).zip(words).filter(|(_, word)| **word == ChunkWord::FREE).map(|(i, _)| i).collect();
        free.reverse();
        let first = SPREAD.min(free.len());
        free[..first].rotate_left(usize::from(self.owner.0) % first.max(1));
        for index in free {
            self.mark_pending([index]);
            if self.swap(lane, index, ChunkWord::FREE, self.claiming(class)).await? {
                self.format(lane, index, class).await?;
                self.clear_pending();
                return Ok(true);
            }
            self.clear_pending();
        }
        Ok(false)
    }

    /// Claims `chunks` neighbouring free chunks, first fit.
    async fn find_run(&mut self, lane: &mut dyn Lane, words: &[ChunkWord], chunks: u64) -> Result<bool, FabricError> {
        let class = ExtentClass::Run(chunks as u32);
        let mut free = 0;
        for (index, word) in words.iter().enumerate() {
            free = if *word == ChunkWord::FREE { free + 1 } else { 0 };
            if free < chunks {
                continue;
            }
            free = 0;
            let head = index as u64 + 1 - chunks;
            self.mark_pending([head]);
            if self.claim_run(lane, head, class).await? {
                self.format(lane, head, class).await?;
                self.clear_pending();
                return Ok(true);
            }
            self.clear_pending();
        }
        Ok(false)
    }

    /// Claims the head, then the tails, 64 a batch; gives back what it claimed if another client was faster.
    async fn claim_run(&self, lane: &mut dyn Lane, head: u64, class: ExtentClass) -> Result<bool, FabricError> {
        if !self.swap(lane, head, ChunkWord::FREE, self.claiming(class)).await? {
            return Ok(false);
        }
        let tail = tail_of(head);
        let mut won = Vec::new();
        for batch in tails(head, class).chunks(BATCH_VERBS) {
            let swaps: Vec<_> = batch.iter().map(|index| (*index, ChunkWord::FREE, tail)).collect();
            let found = self.swap_all(lane, &swaps).await?;
            let taken = batch.iter().zip(&found).filter(|(_, found)| **found == ChunkWord::FREE);
            won.extend(taken.map(|(index, _)| (*index, tail, ChunkWord::FREE)));
            if found.iter().any(|found| *found != ChunkWord::FREE) {
                won.push((head, self.claiming(class), ChunkWord::FREE));
                self.swap_all(lane, &won).await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Zeroes the header, the marks and the first word of every slot of a chunk that this client is claiming, which may
    /// have old content, and then owns it. Scattered WRITEs if they fit in a batch, otherwise the whole chunk, 1 MiB a
    /// verb.
    async fn format(&mut self, lane: &mut dyn Lane, index: u64, class: ExtentClass) -> Result<(), FabricError> {
        let chunk_bytes = self.table.config().chunk_bytes;
        let start = self.table.geometry().chunk(index);
        let slots = class.slots(chunk_bytes);
        let mut parts = Vec::new();
        if slots + 2 <= BATCH_VERBS as u64 {
            parts.push((0, CHUNK_HEADER_WORDS + slots));
            parts.extend((0..slots).map(|slot| (class.slot_at(slot, chunk_bytes) / 8, 1)));
        } else {
            let words = chunk_bytes / 8;
            let piece = |at: u64| (at, (words - at).min(ZERO_WORDS as u64));
            parts.extend((0..words).step_by(ZERO_WORDS).map(piece));
        }
        let zeros = vec![0; parts.iter().map(|(_, words)| *words).max().unwrap_or(0) as usize];
        let writes = |parts: &[(u64, u64)]| -> Vec<Verb<'_>> {
            let write =
                |(at, words): &(u64, u64)| Verb::Write { addr: start.add_words(*at), words: &zeros[..*words as usize] };
            parts.iter().map(write).collect()
        };
        let last = (parts.len() - 1) / BATCH_VERBS * BATCH_VERBS;
        for parts in parts[..last].chunks(BATCH_VERBS) {
            post(lane, writes(parts)).await?;
        }
        let mut found = 0;
        let mut batch = writes(&parts[last..]);
        let (addr, compare) = (self.table.geometry().chunk_word(index), self.claiming(class).0);
        batch.push(Verb::Cas { addr, compare, swap: self.owned(class).0, found: &mut found });
        post(lane, batch).await?;
        self.chunks.add(index, class, vec![0; slots as usize], 0);
        Ok(())
    }

    /// Takes over an orphan whose word is `seen`: its marks and its slots' generations say which slots are free, and a
    /// sweep finds leaked extents. 2 round trips, 1 more for each further 62 slots, and those of the sweep if a client
    /// was recovered since the last one. Returns false if another client was faster. [R-EXTENT-2] [R-RECOVER-7]
    pub(super) async fn adopt(
        &mut self,
        lane: &mut dyn Lane,
        index: u64,
        seen: ChunkWord,
        class: ExtentClass,
    ) -> Result<bool, FabricError> {
        if !self.is_possible(index, class) {
            return Ok(false);
        }
        self.mark_pending([index]);
        if !self.swap(lane, index, seen, self.owned(class)).await? {
            self.clear_pending();
            return Ok(false);
        }
        self.adopted_chunks += 1;
        let Adopted { recoveries, header, marks, mut generations } = self.read_slots(lane, index, class).await?;
        for (generation, mark) in generations.iter_mut().zip(&marks) {
            if generation == mark {
                *generation = 0;
            }
        }
        self.chunks.add(index, class, generations, header[CHUNK_SWEPT_WORD as usize]);
        self.clear_pending();
        self.sweep_leaked(lane, index, recoveries).await?;
        Ok(true)
    }

    /// Reads the state of the slots of a chunk of this client. 1 round trip for 62 of them, marks first: an extent
    /// whose generation equals its mark was freed.
    async fn read_slots(&self, lane: &mut dyn Lane, index: u64, class: ExtentClass) -> Result<Adopted, FabricError> {
        let slots = class.slots(self.table.config().chunk_bytes) as usize;
        let mut recoveries = [0];
        let mut head = vec![0; CHUNK_HEADER_WORDS as usize + slots];
        let mut generations = vec![0; slots];
        let mut first_batch = Some((&mut recoveries, &mut head[..]));
        let mut first = 0;
        for generations in generations.chunks_mut(BATCH_VERBS - 2) {
            let next = first + generations.len() as u64;
            let mut batch = Vec::with_capacity(BATCH_VERBS);
            if let Some((recoveries, head)) = first_batch.take() {
                let addr = self.table.geometry().superblock_word(RECOVERIES_WORD);
                batch.push(Verb::Read { addr, into: recoveries });
                batch.push(Verb::Read { addr: self.table.geometry().chunk(index), into: head });
            }
            for (into, slot) in generations.chunks_mut(1).zip(first..) {
                batch.push(Verb::Read { addr: self.slot_addr(index, class, slot), into });
            }
            post(lane, batch).await?;
            first = next;
        }
        generations.iter_mut().for_each(|word| *word = Generation::of_first_word(*word).0);
        let marks = head.split_off(CHUNK_HEADER_WORDS as usize);
        Ok(Adopted { recoveries: recoveries[0], header: head, marks, generations })
    }

    /// Makes chunks of this client orphans. 1 round trip for 64 of them, 2 for each slot that has yet to be marked.
    pub(super) async fn give_up(&mut self, lane: &mut dyn Lane, indices: &[u64]) -> Result<(), FabricError> {
        for index in indices {
            while let (Some(chunk), Some(slot)) = (self.chunks.get(*index), self.chunks.first_unmarked(*index)) {
                self.mark_free(lane, chunk.class, *index, slot).await?;
                self.chunks.note_marked(*index, slot);
            }
        }
        self.mark_pending(indices.iter().copied());
        let mut swaps = Vec::new();
        for index in indices {
            let Some(chunk) = self.chunks.remove(*index) else { continue };
            let orphan = ChunkWord::encode(ChunkState::Orphan { class: chunk.class, free: chunk.free_hint() });
            swaps.push((*index, self.owned(chunk.class), orphan));
        }
        self.swap_all(lane, &swaps).await?;
        self.clear_pending();
        Ok(())
    }

    /// Writes the mark of a slot whose extent nothing refers to, so that a client that adopts the chunk finds it free.
    /// The extent may never have been written: then the slot has an older extent's generation, which was freed already.
    async fn mark_free(
        &self,
        lane: &mut dyn Lane,
        class: ExtentClass,
        index: u64,
        slot: u64,
    ) -> Result<(), FabricError> {
        let mut first = [0];
        post(lane, [Verb::Read { addr: self.slot_addr(index, class, slot), into: &mut first }]).await?;
        let words = &[Generation::of_first_word(first[0]).0];
        post(lane, [Verb::Write { addr: self.mark_addr(index, class, slot), words }]).await
    }

    /// Gives back chunks of this client that hold nothing. The tails of a run go first, while its head is `Claiming`,
    /// so that a run is never partly claimed. 1 round trip for 64 chunks.
    pub(super) async fn give_back_chunks(&mut self, lane: &mut dyn Lane, indices: &[u64]) -> Result<(), FabricError> {
        let mut swaps = Vec::new();
        let empty: Vec<u64> = indices.iter().copied().filter(|index| self.chunks.is_empty(*index)).collect();
        self.mark_pending(empty.iter().copied());
        for &index in &empty {
            let Some(class) = self.chunks.get(index).map(|chunk| chunk.class) else { continue };
            if class.chunks() == 1 {
                swaps.push((index, self.owned(class), ChunkWord::FREE));
                continue;
            }
            swaps.push((index, self.owned(class), self.claiming(class)));
            swaps.extend(tails(index, class).into_iter().map(|tail| (tail, tail_of(index), ChunkWord::FREE)));
            swaps.push((index, self.claiming(class), ChunkWord::FREE));
        }
        self.swap_all(lane, &swaps).await?;
        // Not before: if this is dropped, a chunk whose word was not swapped is still this client's, with the marks that
        // it has not written. // [R-DROP-1]
        empty.into_iter().for_each(|index| drop(self.chunks.remove(index)));
        self.clear_pending();
        Ok(())
    }

    pub(super) async fn swap(
        &self,
        lane: &mut dyn Lane,
        index: u64,
        compare: ChunkWord,
        swap: ChunkWord,
    ) -> Result<bool, FabricError> {
        let found = self.swap_all(lane, &[(index, compare, swap)]).await?;
        Ok(found == [compare])
    }

    /// Swaps chunk words by CAS, in order, 64 a batch; returns the words found.
    pub(super) async fn swap_all(
        &self,
        lane: &mut dyn Lane,
        swaps: &[(u64, ChunkWord, ChunkWord)],
    ) -> Result<Vec<ChunkWord>, FabricError> {
        let mut found = vec![0; swaps.len()];
        for (swaps, found) in swaps.chunks(BATCH_VERBS).zip(found.chunks_mut(BATCH_VERBS)) {
            let mut batch: Vec<Verb<'_>> = Vec::with_capacity(swaps.len());
            for ((index, compare, swap), found) in swaps.iter().zip(found) {
                let addr = self.table.geometry().chunk_word(*index);
                batch.push(Verb::Cas { addr, compare: compare.0, swap: swap.0, found });
            }
            post(lane, batch).await?;
        }
        Ok(found.into_iter().map(ChunkWord).collect())
    }

    pub(super) fn owned(&self, class: ExtentClass) -> ChunkWord {
        ChunkWord::encode(ChunkState::Owned { owner: self.owner, class })
    }

    pub(super) fn claiming(&self, class: ExtentClass) -> ChunkWord {
        ChunkWord::encode(ChunkState::Claiming { owner: self.owner, class })
    }

    pub(super) fn mark_addr(&self, index: u64, class: ExtentClass, slot: u64) -> Addr {
        Addr::main(self.table.geometry().chunk(index).offset() + class.mark_at(slot))
    }

    pub(super) fn slot_addr(&self, index: u64, class: ExtentClass, slot: u64) -> Addr {
        let within = class.slot_at(slot, self.table.config().chunk_bytes);
        Addr::main(self.table.geometry().chunk(index).offset() + within)
    }
}

/// Returns the orphans among `words`, the chunk table: index, class, and free slots by its word.
pub(super) fn orphans(words: &[ChunkWord]) -> impl Iterator<Item = Orphan> {
    (0..).zip(words).filter_map(|(index, word)| match word.decode() {
        Some(ChunkState::Orphan { class, free }) => Some((index, class, free)),
        _ => None,
    })
}

pub(super) fn tail_of(head: u64) -> ChunkWord {
    ChunkWord::encode(ChunkState::Tail { head: head as u32 })
}

/// Returns the tails of the run at `head`.
pub(super) fn tails(head: u64, class: ExtentClass) -> Vec<u64> {
    (head + 1..head + class.chunks()).collect()
}
