//! Lookups: READs of slots from a key's home on, one a round trip, until one brings an empty slot; and READs of records in
//! the heap, in the round trip behind that of their slots.

use std::cell::RefCell;
use std::rc::Rc;

use guira_fabric::{Addr, Lane, WORD_BYTES};

use super::clusters::Clusters;
use super::table::Shape;
use crate::baselines::record::{
    Layout, OFFSET_BYTES, ReadCounts, Reads, SIGNATURE_BYTES, append_value, bytes_at, checked_key, key_in,
    record_words, signature,
};
use crate::baselines::{Change, Client, Cost, Error, Outcome};

/// A client of a table.
pub struct LinearClient {
    lane: Box<dyn Lane>,
    shape: Shape,
    read_slots: u64,
    /// The most slots of a READ.
    most_slots: u64,
    clusters: Rc<RefCell<Option<Clusters>>>,
    reads: Reads,
    /// Offsets of records with the signature of the key, which are not read yet.
    matches: Vec<u64>,
    counts: ReadCounts,
}

impl LinearClient {
    pub(super) fn new(
        lane: Box<dyn Lane>,
        shape: Shape,
        read_slots: u64,
        clusters: Rc<RefCell<Option<Clusters>>>,
    ) -> LinearClient {
        // A READ of some bytes may touch a word more at each end.
        let most_bytes = (lane.caps().max_verb_words as u64).saturating_mul(WORD_BYTES).saturating_sub(2 * WORD_BYTES);
        let most_slots = (most_bytes / shape.slot_bytes()).max(1);
        let (reads, matches, counts) = (Reads::default(), Vec::new(), ReadCounts::default());
        LinearClient { lane, shape, read_slots, most_slots, clusters, reads, matches, counts }
    }

    /// Returns the slots of the next READ, from `slot` on.
    fn next_slots(&self, slot: u64) -> u64 {
        let slots = match &mut *self.clusters.borrow_mut() {
            None => self.read_slots,
            Some(clusters) => {
                let slots = clusters.read_slots(slot);
                clusters.apply();
                slots
            }
        };
        slots.clamp(1, self.most_slots)
    }

    /// Returns the READs so far.
    pub fn reads(&self) -> ReadCounts {
        self.counts
    }

    /// Adds the READ of `count` slots from `slot` on, which lie before the table's end.
    fn add_slots(&mut self, slot: u64, count: u64) {
        let slot_bytes = self.shape.slot_bytes();
        let (first, end) = (slot * slot_bytes / WORD_BYTES, ((slot + count) * slot_bytes).div_ceil(WORD_BYTES));
        self.reads.add(Addr::main_word(first), end - first);
        self.counts.table += 1;
    }

    /// Looks at the slots that a READ has brought, `count` from `slot` on. Appends values of `key`, and notes records with
    /// its signature, up to the first empty slot. Returns that slot, if there is one.
    fn see_slots(&mut self, read: usize, slot: u64, count: u64, key: u32, found: &mut Found<'_>) -> Option<u64> {
        let (slot_bytes, words) = (self.shape.slot_bytes(), self.reads.words(read));
        let skipped = slot * slot_bytes % WORD_BYTES;
        for index in 0..count {
            let first = skipped + index * slot_bytes;
            match self.shape.layout {
                Layout::Inline => {
                    let record = &words[(first / WORD_BYTES) as usize..][..(slot_bytes / WORD_BYTES) as usize];
                    if key_in(record) == 0 {
                        return Some(slot + index);
                    }
                    found.see(record, key, self.shape.value_bytes);
                }
                Layout::Heap => {
                    let offset = bytes_at(words, first + SIGNATURE_BYTES, OFFSET_BYTES);
                    if offset == 0 {
                        return Some(slot + index);
                    }
                    if bytes_at(words, first, SIGNATURE_BYTES) == signature(key) {
                        self.matches.push(offset);
                    }
                }
            }
        }
        None
    }
}

/// The records that a lookup has found.
struct Found<'v> {
    values: &'v mut Vec<u8>,
    any: bool,
}

impl Found<'_> {
    /// Appends the value of a record if it has the key.
    fn see(&mut self, record: &[u64], key: u32, value_bytes: usize) {
        if key_in(record) == key {
            append_value(record, value_bytes, self.values);
            self.any = true;
        }
    }
}

impl Client for LinearClient {
    /// Looks `key` up. It takes a round trip for each READ of slots until one brings an empty slot, and one READ more where
    /// one goes across the end of the table. With records in a heap, the READs of those with the key's signature are in the
    /// batch of the next READ of slots, or alone in one more.
    ///
    /// # Errors
    /// `Refused` for key 0 and for keys of more than 32 bits; errors of the fabric.
    async fn get(&mut self, key: u64, values: &mut Vec<u8>) -> Result<bool, Error> {
        let key = checked_key(key)?;
        let (shape, mut found) = (self.shape, Found { values, any: false });
        let home = shape.home(key);
        let (mut slot, mut left) = (home, shape.slots);
        self.matches.clear();
        loop {
            self.reads.clear();
            for offset in self.matches.drain(..) {
                self.reads.add(shape.record_addr(offset), record_words(shape.value_bytes));
            }
            let records = self.reads.len();
            self.counts.heap += records as u64;
            let count = if left > 0 { self.next_slots(slot).min(left) } else { 0 };
            let before_end = count.min(shape.slots - slot);
            let parts = [(slot, before_end), (0, count - before_end)];
            for (slot, count) in parts.into_iter().filter(|(_, count)| *count > 0) {
                self.add_slots(slot, count);
            }
            if self.reads.is_empty() {
                return Ok(found.any);
            }
            self.reads.post(&mut *self.lane).await?;
            for read in 0..records {
                found.see(self.reads.words(read), key, shape.value_bytes);
            }
            for (part, (slot, count)) in parts.into_iter().enumerate().filter(|(_, (_, count))| *count > 0) {
                if left > 0
                    && let Some(empty) = self.see_slots(records + part, slot, count, key, &mut found)
                {
                    left = 0;
                    if let Some(clusters) = &mut *self.clusters.borrow_mut() {
                        clusters.note(home, empty);
                    }
                }
            }
            (slot, left) = ((slot + count) % shape.slots, left.saturating_sub(count));
        }
    }

    /// Refuses every change.
    ///
    /// # Errors
    /// `Refused`.
    async fn change(&mut self, _key: u64, _change: Change<'_>) -> Result<Outcome, Error> {
        Err(Error::refused("the table is built once, and then only read"))
    }

    fn cost(&self) -> Cost {
        self.lane.traffic().into()
    }
}
