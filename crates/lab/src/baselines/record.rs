//! Records, and the ways to store them: in the slots of a table, or in a heap beside it.

use std::rc::Rc;

use guira_fabric::memory::{AtomicU64, Ordering};
use guira_fabric::{Addr, FabricError, Lane, SplitMix64, Verb, WORD_BYTES, post};

use crate::baselines::Error;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 4;
/// Bytes of a signature and of an offset, as slots have them whose records are in the heap.
pub(crate) const SIGNATURE_BYTES: u64 = 1;
pub(crate) const OFFSET_BYTES: u64 = 4;

/// The number of the record with a key, for every key that was stored when the store was built; another number for all others.
pub type Places = Rc<dyn Fn(u32) -> u64>;

/// Where records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// In the slots: a key, which is not 0, and a value, padded to whole words.
    Inline,
    /// In a heap behind the table: a slot has a signature of the key, and an offset of the record, which is not 0.
    Heap,
}

/// The reason why a table was not built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The number of slots is impossible.
    #[error("a table has 2 to {most} slots, not {slots}")]
    Slots {
        /// The slots asked for.
        slots: u64,
        /// The most slots.
        most: u64,
    },
    /// A key marks an empty slot.
    #[error("key 0 marks an empty slot, and no record can have it")]
    Key,
    /// A value has another length than those of the table.
    #[error("a value of {bytes} bytes does not go into a table of values of {value_bytes} bytes")]
    Value {
        /// Bytes of the value.
        bytes: usize,
        /// Bytes of the values of the table.
        value_bytes: usize,
    },
    /// The table has no room for another record.
    #[error("the table is full after {records} records")]
    Full {
        /// Records in the table.
        records: u64,
    },
    /// A record found no place after many moves of others.
    #[error("record {record} of {records} found no place after {moves} moves")]
    Moves {
        /// The record, from 1.
        record: u64,
        /// The records of the table.
        records: u64,
        /// Moves that were tried for it.
        moves: u64,
    },
}

/// Has the value of a record written, and checks that it has `value_bytes` bytes.
pub(crate) fn checked_value(
    record: u64,
    value: &mut impl FnMut(u64, &mut Vec<u8>),
    value_bytes: usize,
    bytes: &mut Vec<u8>,
) -> Result<(), BuildError> {
    bytes.clear();
    value(record, bytes);
    match bytes.len() == value_bytes {
        true => Ok(()),
        false => Err(BuildError::Value { bytes: bytes.len(), value_bytes }),
    }
}

/// Returns the words of a record.
pub(crate) fn record_words(value_bytes: usize) -> u64 {
    ((KEY_BYTES + value_bytes) as u64).div_ceil(WORD_BYTES)
}

/// Returns the words of a record, and zeros without end behind them.
pub(crate) fn words_of(key: u32, value: &[u8]) -> impl Iterator<Item = u64> {
    let mut bytes = key.to_le_bytes().into_iter().chain(value.iter().copied());
    std::iter::repeat_with(move || u64::from_le_bytes(std::array::from_fn(|_| bytes.next().unwrap_or(0))))
}

/// Returns a checksum of the words of a record, for one of many uses of their place: that of another use differs.
pub(crate) fn checksum(of_use: u64, record: &[u64]) -> u64 {
    record.iter().fold(of_use, |sum, word| SplitMix64(sum ^ word).next_u64())
}

/// Stores a record in its words.
pub(crate) fn store_record(words: &[AtomicU64], key: u32, value: &[u8]) {
    words.iter().zip(words_of(key, value)).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}

/// Stores the low bytes of `value` as byte `first` of `words` and the ones behind.
pub(crate) fn store_bytes(words: &[AtomicU64], first: u64, value: u64, bytes: u64) {
    for index in 0..bytes {
        let (byte, at) = (value >> (8 * index) & 0xff, first + index);
        let (word, shift) = (&words[(at / WORD_BYTES) as usize], 8 * (at % WORD_BYTES));
        let others = word.load(Ordering::Relaxed) & !(0xff << shift);
        word.store(others | byte << shift, Ordering::Relaxed);
    }
}

/// Returns `bytes` bytes of `words` from byte `first` on, at most 8, as a number.
#[inline]
pub(crate) fn bytes_at(words: &[u64], first: u64, bytes: u64) -> u64 {
    let (index, shift) = ((first / WORD_BYTES) as usize, 8 * (first % WORD_BYTES));
    let high = if shift == 0 { 0 } else { words.get(index + 1).copied().unwrap_or(0) << (64 - shift) };
    let value = words[index] >> shift | high;
    if bytes >= WORD_BYTES { value } else { value & ((1 << (8 * bytes)) - 1) }
}

/// Returns the key of a record; 0 if there is none.
#[inline]
pub(crate) fn key_in(record: &[u64]) -> u32 {
    record[0] as u32
}

/// Appends the value of a record.
pub(crate) fn append_value(record: &[u64], value_bytes: usize, values: &mut Vec<u8>) {
    let (mut skip, mut left) = (KEY_BYTES, value_bytes);
    for word in record {
        let part = &word.to_le_bytes()[skip..];
        let part = &part[..left.min(part.len())];
        values.extend_from_slice(part);
        (skip, left) = (0, left - part.len());
    }
}

/// Checks the key of a lookup.
pub(crate) fn checked_key(key: u64) -> Result<u32, Error> {
    match u32::try_from(key) {
        Ok(0) => Err(Error::refused("key 0 marks an empty slot, and no record has it")),
        Ok(key) => Ok(key),
        Err(_) => Err(Error::refused(format!("key {key} has more than {KEY_BYTES} bytes"))),
    }
}

/// Returns the signature of a key, which is not 0.
#[inline]
pub(crate) fn signature(key: u32) -> u64 {
    u64::from(key.wrapping_mul(0x85eb_ca6b) >> 16) % 255 + 1
}

/// The READs of one batch, and the words that they bring. It is used again from batch to batch.
#[derive(Default)]
pub(crate) struct Reads {
    /// The first word of each READ's part, and its address.
    parts: Vec<(usize, Addr)>,
    words: Vec<u64>,
}

impl Reads {
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.words.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Adds a READ.
    pub(crate) fn add(&mut self, addr: Addr, words: u64) {
        self.parts.push((self.words.len(), addr));
        self.words.resize(self.words.len() + words as usize, 0);
    }

    /// Carries out the READs in one round trip.
    pub(crate) async fn post(&mut self, lane: &mut dyn Lane) -> Result<(), FabricError> {
        let mut verbs: Vec<Verb<'_>> = Vec::with_capacity(self.parts.len());
        let mut rest = &mut self.words[..];
        for (index, (first, addr)) in self.parts.iter().enumerate() {
            let end = self.parts.get(index + 1).map_or(first + rest.len(), |(next, _)| *next);
            let (into, behind) = rest.split_at_mut(end - first);
            verbs.push(Verb::Read { addr: *addr, into });
            rest = behind;
        }
        post(lane, verbs).await
    }

    /// Returns the words that a READ brought.
    pub(crate) fn words(&self, index: usize) -> &[u64] {
        let first = self.parts[index].0;
        let end = self.parts.get(index + 1).map_or(self.words.len(), |(next, _)| *next);
        &self.words[first..end]
    }
}

/// READs of a client, by what they read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// READs of the table.
    pub table: u64,
    /// READs of the heap.
    pub heap: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_where_they_were_stored() {
        let words: Vec<AtomicU64> = (0..6).map(|_| AtomicU64::new(u64::MAX)).collect();
        for bytes in 1..=8 {
            for first in 0..32 {
                let value = 0x0102_0304_0506_0708_u64 & (u64::MAX >> (64 - 8 * bytes));
                store_bytes(&words, first, value, bytes);
                let read: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
                assert_eq!(bytes_at(&read, first, bytes), value, "{bytes} bytes at {first}");
                store_bytes(&words, first, u64::MAX, bytes);
                assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX));
            }
        }
    }

    #[test]
    fn a_checksum_is_of_one_use_and_one_record() {
        let mut sums: Vec<u64> = (0..100).map(|of_use| checksum(of_use, &[1, 2, 3])).collect();
        sums.extend([[1, 3, 2], [3, 2, 1], [1, 2, 4], [0, 0, 0]].map(|record| checksum(0, &record)));
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), 104);
    }

    #[test]
    fn signatures_are_spread_and_none_is_0() {
        let mut counts = [0_u32; 256];
        (1..=255_000).for_each(|key| counts[signature(key) as usize] += 1);
        assert!(counts[0] == 0 && counts[1..].iter().all(|count| (700..1_300).contains(count)), "{counts:?}");
    }
}
