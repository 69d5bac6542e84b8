//! Where values that do not fit in a row go: a client's own chunks, cut into slots of one size class each.
//!
//! Invariants: a slot is handed out by the owner of its chunk only; a slot is free if its mark equals the generation of
//! the extent in it, or if no extent ever was in it; a generation is used once in a table's life. Whoever takes the
//! last reference to an extent out of the index writes its mark, so owners learn of free slots by reading their marks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use guira_fabric::{Addr, FabricError, Lane, Verb, post};
use guira_layout::{ChunkState, ChunkWord, ExtentClass, ExtentRef, GENERATION_WORD, Generation, OwnerId, extent_words};
use guira_rcuckoo::Table;

/// Generations drawn at once. // [R-EXTENT-3]
const GENERATION_BLOCK: u64 = 1024;
/// Words of the chunk table looked at in one READ.
const TABLE_WORDS: u64 = 512;
/// Verbs in one batch of CAS or slot READs.
const BATCH_VERBS: usize = 64;
/// Words one WRITE zeroes, at most: the smallest `max_verb_words` of all fabrics.
const ZERO_WORDS: usize = 1 << 17;

/// There is no room for a value that needs an extent. Nothing was changed in the index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtentError {
    /// No chunk, or no run of neighbouring chunks, is free.
    #[error(
        "no room for a value of {value_bytes} bytes: it needs {chunks} neighbouring free chunks of {chunk_bytes} \
         bytes; {free} of {total} chunks are free, {longest_run} of them in a row; nothing was changed"
    )]
    Full {
        /// Bytes of the value.
        value_bytes: usize,
        /// Neighbouring chunks it needs.
        chunks: u32,
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// Free chunks, anywhere.
        free: u64,
        /// The longest run of neighbouring free chunks.
        longest_run: u64,
        /// All chunks.
        total: u64,
    },
    /// The fabric failed; nothing was changed in the index.
    #[error("cannot make room for a value: {0}")]
    Fabric(#[from] FabricError),
}

/// A client's chunks.
pub(crate) struct Extents {
    table: Arc<Table>,
    owner: OwnerId,
    generations: std::ops::Range<u64>,
    classes: BTreeMap<ExtentClass, Class>,
    cursor: u64,
}

/// The chunks of one size class.
#[derive(Default)]
struct Class {
    chunks: Vec<Chunk>,
    /// Free slots, first freed first: a reader that is late finds its extent as long as possible. // [R-EXTENT-4]
    free: VecDeque<(u64, u64)>,
    /// Free slots whose extent was, or may have been, written and never linked: their marks do not say that they are
    /// free.
    unmarked: BTreeSet<(u64, u64)>,
    /// Slots handed out since the marks were last read.
    since_sweep: u64,
}

/// A chunk worth claiming.
#[derive(Clone, Copy)]
enum Wanted {
    /// An orphan of the class that had free slots when it was given up.
    RoomyOrphan,
    /// A chunk nobody uses.
    Free,
    /// An orphan of the class that was full.
    FullOrphan,
}

impl Wanted {
    fn is(self, word: ChunkWord, class: ExtentClass) -> bool {
        match (self, word.decode()) {
            (Wanted::RoomyOrphan, Some(ChunkState::Orphan { class: of, free })) => of == class && free > 0,
            (Wanted::FullOrphan, Some(ChunkState::Orphan { class: of, free })) => of == class && free == 0,
            (Wanted::Free, Some(ChunkState::Free)) => true,
            _ => false,
        }
    }
}

struct Chunk {
    index: u64,
    /// The generation of the extent in each slot; 0 if it is free.
    slots: Vec<u64>,
}

impl Extents {
    pub(crate) fn new(table: Arc<Table>, owner: OwnerId) -> Extents {
        let chunks = table.config().chunks.max(1);
        // Clients start looking at different places, so that they rarely want the same chunk.
        let cursor = u64::from(owner.0).wrapping_mul(0x9e37_79b9) % chunks;
        Extents { table, owner, generations: 0..0, classes: BTreeMap::new(), cursor }
    }

    /// A place for `key` and `value`. No round trip as long as this client has a free slot of the class.
    pub(crate) async fn reserve(
        &mut self,
        lane: &mut dyn Lane,
        key: &[u8],
        value: &[u8],
    ) -> Result<ExtentRef, ExtentError> {
        let generation = self.next_generation(lane).await?;
        let chunk_bytes = self.table.config().chunk_bytes;
        let class = ExtentClass::of(extent_words(key.len(), value.len()), chunk_bytes);
        let (chunk, slot) = match self.take(class, generation) {
            Some(place) => place,
            None => {
                self.refill(lane, class, value.len()).await?;
                let place = self.take(class, generation);
                place.ok_or_else(|| self.full(class, value.len(), &[]))?
            }
        };
        Ok(ExtentRef {
            digest: self.table.placement().digest(key),
            offset: self.table.geometry().chunk(chunk).offset() + class.slot_at(slot, chunk_bytes),
            generation: Generation(generation),
            key_bytes: key.len() as u32,
            value_bytes: value.len() as u32,
        })
    }

    /// Takes back an extent that was reserved and never linked.
    pub(crate) fn cancel(&mut self, extent: &ExtentRef) {
        if let Some((class, place)) = self.give_back(extent)
            && let Some(owned) = self.classes.get_mut(&class)
        {
            owned.unmarked.insert(place);
        }
    }

    /// Takes back an extent whose mark is written, if it lies in one of this client's chunks; its class and place.
    pub(crate) fn give_back(&mut self, extent: &ExtentRef) -> Option<(ExtentClass, (u64, u64))> {
        let chunk_bytes = self.table.config().chunk_bytes;
        let class = ExtentClass::of(extent.words()?, chunk_bytes);
        let (index, within) = self.table.geometry().chunk_of(extent.offset)?;
        let slot = class.slot_of(within, chunk_bytes)?;
        let owned = self.classes.get_mut(&class)?;
        let chunk = owned.chunks.iter_mut().find(|chunk| chunk.index == index)?;
        let generation = &mut chunk.slots[slot as usize];
        if *generation != extent.generation.0 {
            return None;
        }
        *generation = 0;
        owned.free.push_back((index, slot));
        Some((class, (index, slot)))
    }

    fn take(&mut self, class: ExtentClass, generation: u64) -> Option<(u64, u64)> {
        let owned = self.classes.get_mut(&class)?;
        let (index, slot) = owned.free.pop_front()?;
        owned.unmarked.remove(&(index, slot));
        let chunk = owned.chunks.iter_mut().find(|chunk| chunk.index == index)?;
        chunk.slots[slot as usize] = generation;
        owned.since_sweep += 1;
        Some((index, slot))
    }

    async fn next_generation(&mut self, lane: &mut dyn Lane) -> Result<u64, FabricError> {
        if self.generations.is_empty() {
            let addr = self.table.geometry().superblock_word(GENERATION_WORD);
            let mut first = 0;
            post(lane, [Verb::FetchAdd { addr, add: GENERATION_BLOCK, found: &mut first }]).await?;
            self.generations = first..first + GENERATION_BLOCK;
        }
        let generation = self.generations.start;
        if generation > Generation::MAX {
            return Err(FabricError::Backend("the table has used up its extent generations".to_owned()));
        }
        self.generations.start += 1;
        Ok(generation)
    }

    /// Finds free slots: freed ones in chunks this client has, an orphan's, a free chunk's. // [R-EXTENT-2]
    async fn refill(&mut self, lane: &mut dyn Lane, class: ExtentClass, bytes: usize) -> Result<(), ExtentError> {
        let worthwhile = self.classes.get(&class).is_some_and(|owned| {
            let slots: u64 = owned.chunks.iter().map(|chunk| chunk.slots.len() as u64).sum();
            owned.since_sweep * 4 >= slots
        });
        if worthwhile && self.sweep(lane, class).await? {
            return Ok(());
        }
        if self.find_chunk(lane, class).await? {
            return Ok(());
        }
        // Nothing is free: give back what this client and the dead no longer need, and look once more.
        self.sweep_all(lane).await?;
        let adopted = self.adopt_orphans(lane).await?;
        self.return_empty(lane).await?;
        for (of, index) in adopted.into_iter().filter(|(of, _)| *of != class) {
            self.give_up(lane, of, index).await?;
        }
        if self.classes.get(&class).is_some_and(|owned| !owned.free.is_empty()) || self.find_chunk(lane, class).await? {
            return Ok(());
        }
        let words = self.read_chunk_table(lane).await?;
        Err(self.full(class, bytes, &words))
    }

    fn full(&self, class: ExtentClass, value_bytes: usize, words: &[ChunkWord]) -> ExtentError {
        let config = self.table.config();
        let free = words.iter().filter(|word| **word == ChunkWord::FREE).count() as u64;
        let runs = words.chunk_by(|a, b| a == b).filter(|run| run[0] == ChunkWord::FREE);
        let longest_run = runs.map(<[ChunkWord]>::len).max().unwrap_or(0) as u64;
        let chunks = if let ExtentClass::Run(chunks) = class { chunks } else { 1 };
        ExtentError::Full {
            value_bytes,
            chunks,
            chunk_bytes: config.chunk_bytes,
            free,
            longest_run,
            total: config.chunks,
        }
    }

    async fn sweep_all(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let classes: Vec<ExtentClass> = self.classes.keys().copied().collect();
        for class in classes {
            self.sweep(lane, class).await?;
        }
        Ok(())
    }

    /// Reads the marks of all chunks of `class`; true if a slot was freed. 1 round trip a chunk.
    async fn sweep(&mut self, lane: &mut dyn Lane, class: ExtentClass) -> Result<bool, FabricError> {
        let Some(owned) = self.classes.get_mut(&class) else { return Ok(false) };
        owned.since_sweep = 0;
        let mut marks = Vec::new();
        for chunk in &mut owned.chunks {
            marks.clear();
            marks.resize(chunk.slots.len(), 0);
            let addr = Addr::main(self.table.geometry().chunk(chunk.index).offset() + class.mark_at(0));
            post(lane, [Verb::Read { addr, into: &mut marks }]).await?;
            for (slot, (generation, mark)) in chunk.slots.iter_mut().zip(&marks).enumerate() {
                if *generation != 0 && generation == mark {
                    *generation = 0;
                    owned.free.push_back((chunk.index, slot as u64));
                }
            }
        }
        Ok(!owned.free.is_empty())
    }

    /// Claims a chunk, or for a run several: an orphan of the class first, else a free one. False if there is none.
    async fn find_chunk(&mut self, lane: &mut dyn Lane, class: ExtentClass) -> Result<bool, FabricError> {
        if let ExtentClass::Run(chunks) = class {
            return self.find_run(lane, u64::from(chunks)).await;
        }
        let words = self.read_chunk_table(lane).await?;
        let start = self.cursor as usize;
        let order = (start..words.len()).chain(0..start);
        // Orphans that were full when they were given up come last: adopting one costs many reads, for little hope.
        for wanted in [Wanted::RoomyOrphan, Wanted::Free, Wanted::FullOrphan] {
            for index in order.clone().filter(|index| wanted.is(words[*index], class)) {
                if !self.claim(lane, index as u64, words[index], class).await? {
                    continue;
                }
                self.cursor = index as u64;
                match wanted {
                    Wanted::Free => self.format_chunk(lane, index as u64, class).await?,
                    Wanted::RoomyOrphan | Wanted::FullOrphan => self.adopt(lane, index as u64, class).await?,
                }
                if self.classes.get(&class).is_some_and(|owned| !owned.free.is_empty()) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    async fn read_chunk_table(&self, lane: &mut dyn Lane) -> Result<Vec<ChunkWord>, FabricError> {
        let chunks = self.table.config().chunks;
        let mut words = vec![0; chunks as usize];
        for (i, into) in words.chunks_mut(TABLE_WORDS as usize).enumerate() {
            let addr = self.table.geometry().chunk_word(i as u64 * TABLE_WORDS);
            post(lane, [Verb::Read { addr, into }]).await?;
        }
        Ok(words.into_iter().map(ChunkWord).collect())
    }

    async fn claim(
        &self,
        lane: &mut dyn Lane,
        index: u64,
        seen: ChunkWord,
        class: ExtentClass,
    ) -> Result<bool, FabricError> {
        let mine = ChunkWord::encode(ChunkState::Owned { owner: self.owner, class });
        self.swap(lane, index, seen, mine).await
    }

    async fn swap(
        &self,
        lane: &mut dyn Lane,
        index: u64,
        compare: ChunkWord,
        swap: ChunkWord,
    ) -> Result<bool, FabricError> {
        let addr = self.table.geometry().chunk_word(index);
        let mut found = 0;
        post(lane, [Verb::Cas { addr, compare: compare.0, swap: swap.0, found: &mut found }]).await?;
        Ok(found == compare.0)
    }

    /// Zeroes a free chunk this client has just claimed: marks and slots may be left from its former use. All of its
    /// slots are free then. 1 round trip for 1 MiB.
    async fn format_chunk(&mut self, lane: &mut dyn Lane, index: u64, class: ExtentClass) -> Result<(), FabricError> {
        let start = self.table.geometry().chunk(index);
        let words = self.table.config().chunk_bytes / 8;
        let end = if matches!(class, ExtentClass::Run(_)) { class.slot_at(0, words * 8) / 8 + 1 } else { words };
        let zeros = vec![0; ZERO_WORDS.min(end as usize)];
        for at in (0..end).step_by(ZERO_WORDS) {
            let words = &zeros[..ZERO_WORDS.min((end - at) as usize)];
            post(lane, [Verb::Write { addr: start.add_words(at), words }]).await?;
        }
        let slots = class.slots(words * 8);
        let owned = self.classes.entry(class).or_default();
        owned.free.extend((0..slots).map(|slot| (index, slot)));
        owned.chunks.push(Chunk { index, slots: vec![0; slots as usize] });
        Ok(())
    }

    /// Takes over a chunk this client has just claimed: its marks and its slots' generations say which slots are free.
    async fn adopt(&mut self, lane: &mut dyn Lane, index: u64, class: ExtentClass) -> Result<(), FabricError> {
        let chunk_bytes = self.table.config().chunk_bytes;
        let start = self.table.geometry().chunk(index).offset();
        let slots = class.slots(chunk_bytes) as usize;
        let (mut marks, mut generations) = (vec![0; slots], vec![0; slots]);
        post(lane, [Verb::Read { addr: Addr::main(start + class.mark_at(0)), into: &mut marks }]).await?;
        for (i, generations) in generations.chunks_mut(BATCH_VERBS).enumerate() {
            let first = (i * BATCH_VERBS) as u64;
            let mut batch: Vec<Verb<'_>> = Vec::with_capacity(generations.len());
            for (slot, into) in generations.chunks_mut(1).enumerate() {
                let at = class.slot_at(first + slot as u64, chunk_bytes);
                batch.push(Verb::Read { addr: Addr::main(start + at), into });
            }
            post(lane, batch).await?;
        }
        let owned = self.classes.entry(class).or_default();
        for (slot, (generation, mark)) in generations.iter_mut().zip(&marks).enumerate() {
            if *generation == *mark {
                *generation = 0;
            }
            if *generation == 0 {
                owned.free.push_back((index, slot as u64));
            }
        }
        owned.chunks.push(Chunk { index, slots: generations });
        Ok(())
    }

    /// Claims `chunks` neighbouring free chunks, first fit.
    async fn find_run(&mut self, lane: &mut dyn Lane, chunks: u64) -> Result<bool, FabricError> {
        let words = self.read_chunk_table(lane).await?;
        let class = ExtentClass::Run(chunks as u32);
        let mut free = 0;
        for (index, word) in words.iter().enumerate() {
            free = if *word == ChunkWord::FREE { free + 1 } else { 0 };
            if free < chunks {
                continue;
            }
            free = 0;
            let head = index as u64 + 1 - chunks;
            if self.claim_run(lane, head, chunks).await? {
                self.format_chunk(lane, head, class).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Claims the head, then the tails, 64 a batch; gives back what it got if somebody else was faster.
    async fn claim_run(&self, lane: &mut dyn Lane, head: u64, chunks: u64) -> Result<bool, FabricError> {
        let class = ExtentClass::Run(chunks as u32);
        if !self.claim(lane, head, ChunkWord::FREE, class).await? {
            return Ok(false);
        }
        let tail = ChunkWord::encode(ChunkState::Tail);
        let tails: Vec<u64> = (head + 1..head + chunks).collect();
        let mut won = Vec::new();
        for batch in tails.chunks(BATCH_VERBS) {
            let found = self.swap_all(lane, batch, ChunkWord::FREE, tail).await?;
            won.extend(batch.iter().zip(&found).filter(|(_, found)| **found == 0).map(|(index, _)| *index));
            if found.iter().any(|found| *found != ChunkWord::FREE.0) {
                for won in won.chunks(BATCH_VERBS) {
                    self.swap_all(lane, won, tail, ChunkWord::FREE).await?;
                }
                let mine = ChunkWord::encode(ChunkState::Owned { owner: self.owner, class });
                self.swap(lane, head, mine, ChunkWord::FREE).await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One batch of CAS on chunk words; returns what each found.
    async fn swap_all(
        &self,
        lane: &mut dyn Lane,
        chunks: &[u64],
        compare: ChunkWord,
        swap: ChunkWord,
    ) -> Result<Vec<u64>, FabricError> {
        let mut found = vec![0; chunks.len()];
        let mut batch: Vec<Verb<'_>> = Vec::with_capacity(chunks.len());
        for (index, found) in chunks.iter().zip(&mut found) {
            let addr = self.table.geometry().chunk_word(*index);
            batch.push(Verb::Cas { addr, compare: compare.0, swap: swap.0, found });
        }
        post(lane, batch).await?;
        Ok(found)
    }

    /// Takes over every orphan, to learn which of them are empty. Returns them.
    async fn adopt_orphans(&mut self, lane: &mut dyn Lane) -> Result<Vec<(ExtentClass, u64)>, FabricError> {
        let mut adopted = Vec::new();
        for (index, word) in self.read_chunk_table(lane).await?.into_iter().enumerate() {
            if let Some(ChunkState::Orphan { class, .. }) = word.decode()
                && class.fits(self.table.config())
                && index as u64 + class.chunks() <= self.table.config().chunks
                && self.claim(lane, index as u64, word, class).await?
            {
                self.adopt(lane, index as u64, class).await?;
                adopted.push((class, index as u64));
            }
        }
        Ok(adopted)
    }

    /// Makes a chunk this client has an orphan, unless it was given back already.
    async fn give_up(&mut self, lane: &mut dyn Lane, class: ExtentClass, index: u64) -> Result<(), FabricError> {
        let Some(owned) = self.classes.get_mut(&class) else { return Ok(()) };
        let Some(at) = owned.chunks.iter().position(|chunk| chunk.index == index) else { return Ok(()) };
        let chunk = owned.chunks.swap_remove(at);
        owned.free.retain(|(of, _)| *of != index);
        let unmarked: Vec<_> = owned.unmarked.iter().copied().filter(|(of, _)| *of == index).collect();
        owned.unmarked.retain(|(of, _)| *of != index);
        for (_, slot) in unmarked {
            self.mark_free(lane, class, index, slot).await?;
        }
        let free = chunk.slots.iter().filter(|generation| **generation == 0).count();
        let free = u16::try_from(free).unwrap_or(u16::MAX);
        self.leave(lane, index, class, ChunkState::Orphan { class, free }).await
    }

    /// Writes the mark of a slot whose extent nothing refers to, so that whoever adopts the chunk finds it free. The
    /// extent may never have been written: then an older one's generation is there, and freed already.
    async fn mark_free(
        &self,
        lane: &mut dyn Lane,
        class: ExtentClass,
        index: u64,
        slot: u64,
    ) -> Result<(), FabricError> {
        let start = self.table.geometry().chunk(index).offset();
        let mut generation = [0];
        let head = Addr::main(start + class.slot_at(slot, self.table.config().chunk_bytes));
        post(lane, [Verb::Read { addr: head, into: &mut generation }]).await?;
        let mark = Addr::main(start + class.mark_at(slot));
        post(lane, [Verb::Write { addr: mark, words: &generation }]).await
    }

    /// Gives back every chunk without an extent.
    async fn return_empty(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let mut classes = std::mem::take(&mut self.classes);
        let mut result = Ok(());
        for (class, owned) in &mut classes {
            let mut kept = Vec::new();
            for chunk in owned.chunks.drain(..) {
                let is_empty = chunk.slots.iter().all(|generation| *generation == 0);
                if !is_empty || result.is_err() {
                    kept.push(chunk);
                    continue;
                }
                owned.free.retain(|(index, _)| *index != chunk.index);
                owned.unmarked.retain(|(index, _)| *index != chunk.index);
                result = self.leave(lane, chunk.index, *class, ChunkState::Free).await;
            }
            owned.chunks = kept;
        }
        classes.retain(|_, owned| !owned.chunks.is_empty());
        self.classes = classes;
        result
    }

    /// Gives up a chunk; the head of a run goes last, so that a run is never claimed in part.
    async fn leave(
        &self,
        lane: &mut dyn Lane,
        index: u64,
        class: ExtentClass,
        state: ChunkState,
    ) -> Result<(), FabricError> {
        if let (ExtentClass::Run(chunks), ChunkState::Free) = (class, state) {
            let tails: Vec<u64> = (index + 1..index + u64::from(chunks)).collect();
            for tails in tails.chunks(BATCH_VERBS) {
                self.swap_all(lane, tails, ChunkWord::encode(ChunkState::Tail), ChunkWord::FREE).await?;
            }
        }
        let mine = ChunkWord::encode(ChunkState::Owned { owner: self.owner, class });
        self.swap(lane, index, mine, ChunkWord::encode(state)).await.map(drop)
    }

    /// Gives up every chunk: empty ones become free, others orphans that the next client adopts. // [R-EXTENT-2]
    pub(crate) async fn close(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        self.sweep_all(lane).await?;
        self.return_empty(lane).await?;
        let chunks =
            self.classes.iter().flat_map(|(class, owned)| owned.chunks.iter().map(|chunk| (*class, chunk.index)));
        let chunks: Vec<(ExtentClass, u64)> = chunks.collect();
        for (class, index) in chunks {
            self.give_up(lane, class, index).await?;
        }
        Ok(())
    }
}
