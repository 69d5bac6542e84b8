//! Lookups: READs of the candidate slots of a key, all in one round trip or one after the other, and of the records in the
//! heap that have the key's signature.

use guira_fabric::{Addr, Lane, SplitMix64, WORD_BYTES};

use super::table::{Shape, WAYS};
use crate::baselines::record::{
    Layout, OFFSET_BYTES, ReadCounts, Reads, SIGNATURE_BYTES, append_value, bytes_at, checked_key, key_in,
    record_words, signature,
};
use crate::baselines::{Change, Client, Cost, Error, Outcome};

/// The way in which the candidates of a key are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Probing {
    /// All in one batch.
    Parallel,
    /// One after the other in a drawn order, until one has the key. If keys repeat, it finds the records of one slot only.
    Sequential,
    /// All, one after the other in a drawn order, as in algorithm 3.
    SequentialAll,
}

/// A client of a table.
pub struct CuckooClient {
    lane: Box<dyn Lane>,
    shape: Shape,
    probing: Probing,
    /// The order of candidates.
    draws: SplitMix64,
    reads: Reads,
    /// Offsets of records with the signature of the key, which are not read yet.
    matches: Vec<u64>,
    counts: ReadCounts,
}

impl CuckooClient {
    pub(super) fn new(lane: Box<dyn Lane>, shape: Shape, probing: Probing, number: u32) -> CuckooClient {
        let (draws, reads, matches) = (SplitMix64(number.into()), Reads::default(), Vec::new());
        CuckooClient { lane, shape, probing, draws, reads, matches, counts: ReadCounts::default() }
    }

    /// Returns the READs so far.
    pub fn reads(&self) -> ReadCounts {
        self.counts
    }

    /// Returns the candidate slots of a key in the order in which they are read. A slot that is a candidate twice is read
    /// twice, but looked at once.
    fn candidates(&mut self, key: u32) -> [u64; WAYS] {
        let mut candidates = self.shape.candidates(key);
        if self.probing != Probing::Parallel {
            for last in (1..WAYS).rev() {
                candidates.swap(last, self.draws.below(last as u64 + 1) as usize);
            }
        }
        candidates
    }

    /// Posts the READs of slots together with those of the records that match so far. Returns whether any of these, or of
    /// the records in the slots, has the key; its values are appended. `seen` are the candidates before `slots`.
    async fn read(&mut self, key: u32, seen: &[u64], slots: &[u64], values: &mut Vec<u8>) -> Result<bool, Error> {
        let (shape, mut is_found) = (self.shape, false);
        self.reads.clear();
        for offset in self.matches.drain(..) {
            self.reads.add(shape.record_addr(offset), record_words(shape.value_bytes));
        }
        let records = self.reads.len();
        for slot in slots {
            let (first, end) = (slot * shape.slot_bytes(), (slot + 1) * shape.slot_bytes());
            let first_word = first / WORD_BYTES;
            self.reads.add(Addr::main_word(first_word), end.div_ceil(WORD_BYTES) - first_word);
        }
        if self.reads.is_empty() {
            return Ok(false);
        }
        self.counts.heap += records as u64;
        self.counts.table += slots.len() as u64;
        self.reads.post(&mut *self.lane).await?;
        let mut see = |record: &[u64]| {
            if key_in(record) == key {
                append_value(record, shape.value_bytes, values);
                is_found = true;
            }
        };
        (0..records).for_each(|read| see(self.reads.words(read)));
        for (index, slot) in slots.iter().enumerate() {
            if seen.contains(slot) || slots[..index].contains(slot) {
                continue;
            }
            let words = self.reads.words(records + index);
            match shape.layout {
                Layout::Inline => words.chunks_exact(record_words(shape.value_bytes) as usize).for_each(&mut see),
                Layout::Heap => {
                    let first = slot * shape.slot_bytes() % WORD_BYTES;
                    let offset = bytes_at(words, first + shape.associativity * SIGNATURE_BYTES, OFFSET_BYTES);
                    let has_signature = |place: &u64| bytes_at(words, first + place, SIGNATURE_BYTES) == signature(key);
                    let places = (0..shape.associativity).filter(has_signature);
                    self.matches.extend(places.map(|place| offset + place));
                }
            }
        }
        Ok(is_found)
    }
}

impl Client for CuckooClient {
    /// Looks `key` up. Without a heap it takes one round trip in parallel, and one for each candidate that is read in
    /// sequence. With a heap, the READs of records are in the batch of the next candidate, or in one more round trip;
    /// [`Probing::Sequential`] awaits them before it reads the next candidate.
    ///
    /// # Errors
    /// `Refused` for key 0 and for keys of more than 32 bits; errors of the fabric.
    async fn get(&mut self, key: u64, values: &mut Vec<u8>) -> Result<bool, Error> {
        let key = checked_key(key)?;
        let candidates = self.candidates(key);
        self.matches.clear();
        let mut is_found = false;
        if self.probing == Probing::Parallel {
            is_found |= self.read(key, &[], &candidates, values).await?;
        } else {
            for index in 0..WAYS {
                let (seen, next) = (&candidates[..index], &candidates[index..=index]);
                is_found |= self.read(key, seen, next, values).await?;
                if self.probing == Probing::Sequential {
                    is_found |= self.read(key, &[], &[], values).await?;
                    if is_found {
                        return Ok(true);
                    }
                }
            }
        }
        is_found |= self.read(key, &[], &[], values).await?;
        Ok(is_found)
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
