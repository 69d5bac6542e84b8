//! Space for values that do not fit in a row: a client's own chunks, each cut into slots of one size class.
//!
//! As in the protocol, an operation is an `async fn` over a lane. docs/space.md explains the division of the space, and
//! docs/protocol.md has the rules that the comments cite.
//!
//! Invariants: a slot is handed out by the owner of its chunk only; a slot is free if its mark equals the generation of
//! the extent in it, or if it never held an extent; a generation is used once in a table's life. The client that
//! removes the last reference to an extent from the index writes the extent's mark, so owners find free slots by
//! reading their marks.
//!
//! Seven modules: the client's record of its chunks (`owned_chunks`); claiming and giving up chunks (`table`); adding
//! chunks to a table that grows (`growth`); chunks whose claim or release was interrupted by a drop (`pending_claims`);
//! finding what other clients have freed (`reclaim_scan`); finding extents that dead clients leaked (`leaked`); and
//! runs, which have no owner while they are in use (`runs`).

#![forbid(unsafe_code)]

mod chunk_table;
mod growth;
mod leaked;
mod owned_chunks;
mod pending_claims;
mod reclaim_scan;
mod runs;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use guira_fabric::{FabricError, Lane, Verb, pause_until, post};
use guira_layout::{ChunkState, ChunkWord, ExtentClass, ExtentRef, GENERATION_WORD, Generation, OwnerId, extent_words};
use guira_rcuckoo::{Key, NoSpace, Table};

use chunk_table::orphans;
use owned_chunks::{Freed, OwnedChunks};
use reclaim_scan::{Orphan, ReclaimScan};
use runs::Runs;

/// Generations drawn at once. [R-EXTENT-3]
const GENERATION_BLOCK: u64 = 1024;
/// Verbs in one batch of CAS, or of READs or WRITEs of single words: half of the smallest `max_batch` of all fabrics.
const BATCH_VERBS: usize = 64;
/// Maximum number of words that one WRITE zeroes: the smallest `max_verb_words` of all fabrics.
const ZERO_WORDS: usize = 1 << 17;
/// Maximum number of searches for space. A search is repeated because other clients may give back the chunks that they
/// are claiming: neither side of such a race should report that the table is full. The pauses add up to 0.3 ms, longer
/// than a claim takes.
const SEARCHES: u32 = 5;
/// Pause after the first search; it doubles with each further search.
const FIRST_PAUSE_NS: u64 = 20_000;

/// No space was reserved for a value that needs an extent. The index is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtentError {
    /// No chunk, or no run of neighbouring chunks, is free.
    #[error("{0}")]
    Full(NoSpace),
    /// The fabric failed; the index is unchanged.
    #[error("cannot reserve space for a value: {0}")]
    Fabric(FabricError),
}

impl From<FabricError> for ExtentError {
    fn from(error: FabricError) -> ExtentError {
        ExtentError::Fabric(error)
    }
}

/// The chunks of one client, and the extents it cuts from them.
pub struct Extents {
    table: Arc<Table>,
    owner: OwnerId,
    generations: std::ops::Range<u64>,
    chunks: OwnedChunks,
    scan: ReclaimScan,
    runs: Runs,
    /// Generations of extents that were handed out and neither linked nor taken back: no entry refers to them yet.
    handed_out: Vec<u64>,
    /// Chunks that have memory, as far as this client knows. [R-GROW-15]
    available: u64,
    /// Number of chunks up to which this client adds more without searching through those that it has.
    adds_until: u64,
    /// Chunks at the end of these that were free when this client last looked.
    free_at_end: u64,
    /// Why the current search added no chunks.
    refused: Option<FabricError>,
    /// Chunks whose words an operation is changing, or was changing when it was dropped.
    pending_claims: Vec<u64>,
    /// Leaked extents that this client found.
    swept: u64,
    adopted_chunks: u64,
}

impl Extents {
    /// Creates the state of `owner`, which has no chunks yet.
    pub fn new(table: Arc<Table>, owner: OwnerId) -> Extents {
        // Clients start their scans at different chunks, so that they look at different orphans.
        let available = table.config().initial_chunks.unwrap_or(table.config().chunks);
        let first = u64::from(owner.0).wrapping_mul(0x9e37_79b9) % available.max(1);
        let scan = ReclaimScan::starting_at(first);
        Extents {
            table,
            owner,
            generations: 0..0,
            chunks: OwnedChunks::default(),
            scan,
            runs: Runs::default(),
            handed_out: Vec::new(),
            available,
            adds_until: 0,
            free_at_end: 0,
            refused: None,
            pending_claims: Vec::new(),
            swept: 0,
            adopted_chunks: 0,
        }
    }

    /// Returns the number of orphaned chunks that this client has adopted.
    pub fn adopted_chunks(&self) -> u64 {
        self.adopted_chunks
    }

    /// Reserves space for `key` and `value` if a free slot is known and no maintenance is due. No round trip.
    #[inline]
    pub fn try_reserve(&mut self, key: &Key<'_>, value: &[u8]) -> Option<ExtentRef> {
        if self.is_due() {
            return None;
        }
        let generation = self.generation_at_hand()?;
        let class = self.class_of(key, value);
        let slot = self.chunks.take(class, generation)?;
        Some(self.hand_out(class, slot, generation, key, value))
    }

    /// Reserves space for `key` and `value`. No round trip as long as this client has a free slot of the class.
    pub async fn reserve(
        &mut self,
        lane: &mut dyn Lane,
        key: &Key<'_>,
        value: &[u8],
    ) -> Result<ExtentRef, ExtentError> {
        self.maintain(lane).await?;
        let generation = self.next_generation(lane).await?;
        let class = self.class_of(key, value);
        let slot = match self.chunks.take(class, generation) {
            Some(slot) => slot,
            None => {
                self.refill(lane, class, value.len()).await?;
                let slot = self.chunks.take(class, generation);
                slot.ok_or_else(|| self.full(class, value.len(), &[]))?
            }
        };
        Ok(self.hand_out(class, slot, generation, key, value))
    }

    fn hand_out(
        &mut self,
        class: ExtentClass,
        (chunk, slot): (u64, u64),
        generation: u64,
        key: &Key<'_>,
        value: &[u8],
    ) -> ExtentRef {
        self.scan.handled += 1;
        self.handed_out.push(generation);
        ExtentRef {
            digest: key.digest(),
            offset: self.slot_addr(chunk, class, slot).offset(),
            generation: Generation(generation),
            key_bytes: key.bytes().len() as u32,
            value_bytes: value.len() as u32,
        }
    }

    fn class_of(&self, key: &Key<'_>, value: &[u8]) -> ExtentClass {
        ExtentClass::of(extent_words(key.bytes().len(), value.len()), self.table.config().chunk_bytes)
    }

    /// Takes back an extent that was reserved and never linked.
    pub fn cancel(&mut self, extent: &ExtentRef) {
        self.settle_handed_out(extent);
        self.take_back(extent, Freed::Unlinked);
    }

    /// Takes back an extent whose mark is written, if it lies in one of this client's chunks, or is a run.
    #[inline]
    pub fn give_back(&mut self, extent: &ExtentRef) {
        self.scan.handled += 1;
        self.take_back(extent, Freed::Marked);
    }

    fn settle_handed_out(&mut self, extent: &ExtentRef) {
        if let Some(at) = self.handed_out.iter().position(|generation| *generation == extent.generation.0) {
            self.handed_out.swap_remove(at);
        }
    }

    fn take_back(&mut self, extent: &ExtentRef, how: Freed) {
        let chunk_bytes = self.table.config().chunk_bytes;
        let Some((index, within)) = self.table.geometry().chunk_of(extent.offset) else { return };
        match self.chunks.get(index).map(|chunk| chunk.class.slot_of(within, chunk_bytes)) {
            Some(Some(slot)) => self.chunks.give_back(index, slot, extent.generation.0, how),
            Some(None) => {}
            None => self.free_run(extent),
        }
    }

    async fn next_generation(&mut self, lane: &mut dyn Lane) -> Result<u64, FabricError> {
        if self.generations.is_empty() {
            let addr = self.table.geometry().superblock_word(GENERATION_WORD);
            let mut first = 0;
            post(lane, [Verb::FetchAdd { addr, add: GENERATION_BLOCK, found: &mut first }]).await?;
            self.generations = first..first + GENERATION_BLOCK;
        }
        let used_up = || FabricError::Backend("the table has used up its extent generations".to_owned());
        self.generation_at_hand().ok_or_else(used_up)
    }

    /// Returns the next generation of the block that was drawn. [R-EXTENT-3]
    fn generation_at_hand(&mut self) -> Option<u64> {
        self.generations.next().filter(|generation| *generation <= Generation::MAX)
    }

    /// Finds free slots: in this client's chunks, in an orphan, or in a free chunk; if there are none, adds chunks to a
    /// table that grows, as far as [`Extents::allow_chunks`] lets it, or reclaims space that this client or dead clients
    /// no longer need. [R-GROW-15]
    async fn refill(&mut self, lane: &mut dyn Lane, class: ExtentClass, bytes: usize) -> Result<(), ExtentError> {
        self.refused = None;
        if self.chunks.is_mark_read_due(class) && self.read_class_marks(lane, class).await? {
            return Ok(());
        }
        if self.find_chunk(lane, class).await? {
            return Ok(());
        }
        if self.available < self.adds_until && self.find_new_chunk(lane, class).await? {
            return Ok(());
        }
        for search in 0..SEARCHES {
            if self.reclaim_space(lane, class).await? {
                return Ok(());
            }
            let words = self.read_chunk_table(lane).await?;
            if !words.iter().any(|word| matches!(word.decode(), Some(ChunkState::Claiming { .. }))) {
                return Err(self.full(class, bytes, &words));
            }
            let until_ns = lane.now_ns().saturating_add(FIRST_PAUSE_NS << search);
            pause_until(lane, until_ns).await;
        }
        let words = self.read_chunk_table(lane).await?;
        Err(self.full(class, bytes, &words))
    }

    /// Reads every mark of this client, frees leaked extents in its chunks, gives back its empty chunks, then looks
    /// through the orphans, those of `class` first, taking over one at a time so that the others stay available to
    /// other clients. Returns true if there is a free slot of `class` afterwards. [R-EXTENT-5] [R-RECOVER-7]
    async fn reclaim_space(&mut self, lane: &mut dyn Lane, class: ExtentClass) -> Result<bool, FabricError> {
        self.settle_runs(lane).await?;
        self.read_all_marks(lane).await?;
        if !self.chunks.has_free(class) {
            self.sweep_own(lane).await?;
        }
        if self.chunks.has_free(class) {
            return Ok(true);
        }
        self.give_back_chunks(lane, &self.chunks.all_empty()).await?;
        if self.find_chunk(lane, class).await? {
            return Ok(true);
        }
        let words = self.read_chunk_table(lane).await?;
        let (same, others): (Vec<Orphan>, Vec<Orphan>) = orphans(&words).partition(|(_, of, _)| *of == class);
        for (index, ..) in same {
            if self.adopt(lane, index, words[index as usize], class).await? && self.chunks.has_free(class) {
                return Ok(true);
            }
            self.give_up(lane, &[index]).await?;
        }
        let mut others = &others[..];
        while !others.is_empty() {
            let (now, later) = others.split_at(self.fitting_samples(others).max(1));
            self.reclaim_drained(lane, now, |index| words[index as usize]).await?;
            others = later;
        }
        let words = self.read_chunk_table(lane).await?;
        self.sweep_orphans(lane, &words).await?;
        self.find_chunk(lane, class).await
    }

    /// Lets this client add chunks to a table that grows, once it has found no space: a quarter as many as there are,
    /// before it searches again. Returns false if it was allowed to already, or the table has all chunks that it may
    /// have. Recover the dead clients among [`Extents::owners`] first. [R-GROW-15]
    pub fn allow_chunks(&mut self) -> bool {
        let config = self.table.config();
        let is_due = config.initial_chunks.is_some() && self.adds_until <= self.available;
        if !is_due || self.available >= config.chunks {
            return false;
        }
        self.adds_until = self.available + (self.available / 4).max(1);
        true
    }

    /// Returns the other clients that own or are claiming chunks. 1 round trip for 4,096 chunks.
    pub async fn owners(&mut self, lane: &mut dyn Lane) -> Result<Vec<OwnerId>, FabricError> {
        let words = self.read_chunk_table(lane).await?;
        let mut owners: Vec<OwnerId> = words
            .iter()
            .filter_map(|word| match word.decode() {
                Some(ChunkState::Owned { owner, .. } | ChunkState::Claiming { owner, .. }) => Some(owner),
                _ => None,
            })
            .filter(|owner| *owner != self.owner)
            .collect();
        owners.sort_unstable();
        owners.dedup();
        Ok(owners)
    }

    fn full(&mut self, class: ExtentClass, value_bytes: usize, words: &[ChunkWord]) -> ExtentError {
        let config = self.table.config();
        let free = words.iter().filter(|word| **word == ChunkWord::FREE).count() as u64;
        let runs = words.chunk_by(|a, b| a == b).filter(|run| run[0] == ChunkWord::FREE);
        let longest_run = runs.map(<[ChunkWord]>::len).max().unwrap_or(0) as u64;
        let chunks = if let ExtentClass::Run(chunks) = class { chunks } else { 1 };
        ExtentError::Full(NoSpace {
            value_bytes,
            chunks,
            chunk_bytes: config.chunk_bytes,
            free,
            longest_run,
            total: self.available,
            refused: self.refused.take().map(Box::new),
        })
    }

    /// Gives up every chunk: empty ones become free, others become orphans that another client adopts. [R-EXTENT-2]
    pub async fn close(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        self.settle_pending_claims(lane).await?;
        self.settle_runs(lane).await?;
        self.read_all_marks(lane).await?;
        self.give_back_chunks(lane, &self.chunks.all_empty()).await?;
        let chunks: Vec<u64> = self.chunks.from(0).map(|(index, _)| index).collect();
        self.give_up(lane, &chunks).await
    }
}
