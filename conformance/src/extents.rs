//! A simple allocator of extents, with which tests put large values and reuse places as soon as the rules allow.
//!
//! Invariants: chunks are claimed by CAS and only their owner cuts them [R-EXTENT-2]; every extent has a generation of
//! its own [R-EXTENT-3]; a place is reused, oldest first, once its mark names the generation stored there [R-EXTENT-4].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use guira_fabric::{Addr, Lane, Verb, post};
use guira_layout::{
    CHUNKS_WORD, ChunkState, ChunkWord, EntryKind, ExtentClass, ExtentRef, GENERATION_WORD, Generation, OwnerId,
    encode_extent,
};
use guira_rcuckoo::{NewValue, Table, available_chunks};

use crate::block_on;

/// Places in use that one allocation checks before it takes a fresh one.
const REUSE_PROBES: usize = 4;

/// One client's chunks.
pub struct Extents {
    table: Arc<Table>,
    owner: OwnerId,
    classes: BTreeMap<ExtentClass, ClassPlaces>,
}

/// The places of one extent class.
#[derive(Default)]
struct ClassPlaces {
    /// The chunk being cut, and its next slot.
    cutting: Option<(u64, u64)>,
    /// Places that were never used, or were given back.
    free: Vec<u64>,
    /// Places in use, as far as this client knows: the offset, and the generation stored there.
    used: VecDeque<(u64, Generation)>,
}

/// An extent that nothing refers to yet.
pub struct Prepared {
    pub(crate) extent: ExtentRef,
    pub(crate) words: Vec<u64>,
}

impl Prepared {
    /// Returns the value as [`guira_rcuckoo::Client::change`] takes it.
    pub fn value(&self) -> NewValue<'_> {
        NewValue::Extent { extent: self.extent, words: &self.words }
    }

    /// Returns the extent's offset in the main space, in bytes.
    pub fn offset(&self) -> u64 {
        self.extent.offset
    }

    /// Returns the words that have to be stored at the offset.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Changes the offset, as damage would.
    pub fn point_to(&mut self, offset: u64) {
        self.extent.offset = offset;
    }

    /// Encodes `key` and `value` anew as an extent at `offset`.
    pub fn move_to(&mut self, offset: u64, table: &Table, key: &[u8], value: &[u8]) {
        self.extent.offset = offset;
        encode_extent(&mut self.words, &self.extent, key, value, table.rows().sums());
    }
}

impl Extents {
    /// Creates an allocator without chunks.
    pub fn new(table: &Arc<Table>, owner: OwnerId) -> Extents {
        Extents { table: Arc::clone(table), owner, classes: BTreeMap::new() }
    }

    /// Allocates an extent for `value`; `None` if it fits in a row. Takes a few round trips, always through `lane`.
    ///
    /// # Panics
    /// If no chunk is left, or the fabric fails.
    pub fn prepare(&mut self, lane: &mut dyn Lane, key: &[u8], value: &[u8]) -> Option<Prepared> {
        if self.table.rows().kind_for(key.len(), value.len()) == EntryKind::Inline {
            return None;
        }
        Some(self.prepare_as(lane, self.table.placement().digest(key), key, value))
    }

    /// Allocates an extent for `key` and `value` under a given digest, as if two keys had the same one.
    ///
    /// # Panics
    /// Same as [`Extents::prepare`].
    pub fn prepare_as(&mut self, lane: &mut dyn Lane, digest: u64, key: &[u8], value: &[u8]) -> Prepared {
        let words = guira_layout::extent_words(key.len(), value.len());
        let class = ExtentClass::of(words, self.table.config().chunk_bytes);
        let offset = self.allocate(lane, class);
        let extent = ExtentRef {
            digest,
            offset,
            generation: self.generation(lane),
            key_bytes: key.len() as u32,
            value_bytes: value.len() as u32,
        };
        let mut words = Vec::new();
        encode_extent(&mut words, &extent, key, value, self.table.rows().sums());
        self.classes.entry(class).or_default().used.push_back((offset, extent.generation));
        Prepared { extent, words }
    }

    /// Takes back an extent that no entry ever referred to.
    pub fn give_back(&mut self, prepared: Prepared) {
        for places in self.classes.values_mut() {
            if let Some(at) = places.used.iter().position(|(offset, _)| *offset == prepared.extent.offset) {
                places.used.remove(at);
                places.free.push(prepared.extent.offset);
            }
        }
    }

    fn allocate(&mut self, lane: &mut dyn Lane, class: ExtentClass) -> u64 {
        let chunk_bytes = self.table.config().chunk_bytes;
        let places = self.classes.entry(class).or_default();
        for _ in 0..REUSE_PROBES.min(places.used.len()) {
            let Some((offset, generation)) = places.used.pop_front() else { break };
            let (chunk, within) = self.table.geometry().chunk_of(offset).expect("it was cut from a chunk");
            let slot = class.slot_of(within, chunk_bytes).expect("it is a slot");
            let mark = self.table.geometry().chunk(chunk).offset() + class.mark_at(slot);
            if read_word(lane, Addr::main(mark)) == generation.0 {
                return offset;
            }
            places.used.push_back((offset, generation));
        }
        if let Some(offset) = places.free.pop() {
            return offset;
        }
        let (chunk, slot) = match places.cutting.take() {
            Some(cutting) => cutting,
            None => (claim(lane, &self.table, self.owner, class), 0),
        };
        if slot + 1 < class.slots(chunk_bytes) {
            places.cutting = Some((chunk, slot + 1));
        }
        self.table.geometry().chunk(chunk).offset() + class.slot_at(slot, chunk_bytes)
    }

    fn generation(&self, lane: &mut dyn Lane) -> Generation {
        let addr = self.table.geometry().superblock_word(GENERATION_WORD);
        let mut found = 0;
        block_on(post(lane, [Verb::FetchAdd { addr, add: 1, found: &mut found }])).expect("the heap adds");
        Generation(found)
    }
}

fn read_word(lane: &mut dyn Lane, addr: Addr) -> u64 {
    let mut word = [0];
    block_on(post(lane, [Verb::Read { addr, into: &mut word }])).expect("the heap reads");
    word[0]
}

fn swap_word(lane: &mut dyn Lane, addr: Addr, compare: ChunkWord, swap: ChunkWord) -> bool {
    let mut found = 0;
    let cas = Verb::Cas { addr, compare: compare.0, swap: swap.0, found: &mut found };
    block_on(post(lane, [cas])).expect("the heap swaps");
    found == compare.0
}

/// Claims the first free chunk, or the first run of free chunks. In a table that grows, adds all chunks that it may
/// have when there is none. [R-GROW-15]
fn claim(lane: &mut dyn Lane, table: &Table, owner: OwnerId, class: ExtentClass) -> u64 {
    let count = if let ExtentClass::Run(chunks) = class { u64::from(chunks) } else { 1 };
    let mut chunks = block_on(available_chunks(lane, table)).expect("the heap reads");
    let mut first = 0;
    while first + count <= chunks {
        let tail = ChunkState::Tail { head: first as u32 };
        let word = |place: u64| ChunkWord::encode(if place == 0 { ChunkState::Owned { owner, class } } else { tail });
        let addr = |place: u64| table.geometry().chunk_word(first + place);
        match (0..count).find(|place| !swap_word(lane, addr(*place), ChunkWord::FREE, word(*place))) {
            None => return first,
            Some(taken) => {
                for place in 0..taken {
                    assert!(
                        swap_word(lane, addr(place), word(place), ChunkWord::FREE),
                        "only the owner changes a claimed chunk's word"
                    );
                }
                first += taken + 1;
            }
        }
        let all = table.config().chunks;
        if first + count > chunks && chunks < all {
            let addr = table.geometry().superblock_word(CHUNKS_WORD);
            block_on(post(lane, [Verb::Write { addr, words: &[all] }])).expect("the heap writes");
            chunks = all;
        }
    }
    panic!("no {count} free chunks in a row among {chunks}");
}
