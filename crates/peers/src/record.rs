//! Records: keys that every system accepts, and values from which a reader can verify the key.
//!
//! A key is 8 printable bytes, because memcached accepts no others. The first word of a value is a function of its key,
//! except for the low 16 bits, which count the updates. A longer value repeats that word at its end, and the bytes
//! between are a function of key and version. Therefore the timed loop detects a wrong answer by comparing two words;
//! an untimed pass compares every byte.

use guira_lab::driver::{DriverError, RecordFormat};

/// Bytes of a key.
pub const KEY_BYTES: usize = 8;
/// Bytes of the shortest value, and of the word that every value starts and ends with.
pub const WORD_BYTES: usize = 8;

/// A key.
pub type Key = [u8; KEY_BYTES];

/// Low bits of a value's word that count updates.
const VERSION_BITS: u32 = 16;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;
/// An odd number with about as many ones as zeros; multiplication by it is a bijection.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// 64 printable bytes without blanks; each encodes 6 bits of a key.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// Bits that one byte of a key encodes.
const DIGIT_BITS: usize = 6;
/// Bytes of a record's number before encoding: 48 bits, which take 8 digits.
const NUMBER_BYTES: u16 = 6;

const _: () = assert!(DIGIT_BITS * KEY_BYTES == 8 * NUMBER_BYTES as usize && 1 << DIGIT_BITS == ALPHABET.len());

/// The keys and values of one data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    format: RecordFormat,
    value_bytes: usize,
}

impl Records {
    /// Records with keys drawn from `seed` and values of `value_bytes` bytes: one word, or at least two.
    ///
    /// # Errors
    /// [`DriverError::ValueBytes`] for any other length.
    pub fn new(value_bytes: usize, seed: u64) -> Result<Records, DriverError> {
        let numbers = guira::EntryFormat::Fixed { key_bytes: NUMBER_BYTES, value_bytes: WORD_BYTES as u16 };
        if value_bytes != WORD_BYTES && value_bytes < 2 * WORD_BYTES {
            return Err(DriverError::ValueBytes { format: numbers.to_string(), value_bytes });
        }
        Ok(Records { format: RecordFormat::new(numbers, None, seed)?, value_bytes })
    }

    /// Bytes of every value.
    #[must_use]
    pub const fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// The key of `record`, which must be below 2⁴⁸. Keys are unique.
    #[must_use]
    pub fn key(&self, record: u64) -> Key {
        let mut number = Vec::with_capacity(KEY_BYTES);
        self.format.key_into(record, &mut number);
        let word = number.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        std::array::from_fn(|digit| ALPHABET[(word >> (DIGIT_BITS * digit)) as usize % ALPHABET.len()])
    }

    /// Replaces the content of `value` with the value of `key` after `version` updates.
    pub fn value_into(&self, key: &Key, version: u64, value: &mut Vec<u8>) {
        let word = value_word(key, version);
        value.clear();
        let mut filler = word;
        while value.len() < self.value_bytes {
            value.extend_from_slice(&filler.to_le_bytes());
            filler = filler.wrapping_mul(MULTIPLIER).rotate_left(VERSION_BITS);
        }
        value.truncate(self.value_bytes);
        value[self.value_bytes - WORD_BYTES..].copy_from_slice(&word.to_le_bytes());
    }

    /// Whether `value` is the value of `key` at some version, in every byte.
    #[must_use]
    pub fn is_whole(&self, key: &Key, value: &[u8]) -> bool {
        let ends = ValueEnds::of(value, self.value_bytes);
        if difference(key, ends) != 0 {
            return false;
        }
        let mut expected = Vec::with_capacity(self.value_bytes);
        self.value_into(key, ends.last & VERSION_MASK, &mut expected);
        expected == value
    }
}

/// The word that a value of `key` starts and ends with after `version` updates.
#[inline(always)]
#[must_use]
pub fn value_word(key: &Key, version: u64) -> u64 {
    u64::from_le_bytes(*key).wrapping_mul(MULTIPLIER) & !VERSION_MASK | version & VERSION_MASK
}

/// The first and the last word of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValueEnds {
    /// The first word.
    pub first: u64,
    /// The last word.
    pub last: u64,
}

impl ValueEnds {
    /// The ends of a value that must have `value_bytes` bytes. A value of another length gets ends that are never
    /// right.
    #[inline(always)]
    #[must_use]
    pub fn of(value: &[u8], value_bytes: usize) -> ValueEnds {
        match (value.first_chunk(), value.last_chunk()) {
            (Some(first), Some(last)) if value.len() == value_bytes => {
                ValueEnds { first: u64::from_le_bytes(*first), last: u64::from_le_bytes(*last) }
            }
            _ => ValueEnds { first: 0, last: u64::MAX },
        }
    }
}

/// Zero if and only if `ends` are those of a value of `key`. Costs one multiplication and a few logical operations.
#[inline(always)]
#[must_use]
pub fn difference(key: &Key, ends: ValueEnds) -> u64 {
    (ends.first ^ value_word(key, 0)) >> VERSION_BITS | (ends.first ^ ends.last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 5] = [8, 16, 17, 100, 1024];

    #[test]
    fn keys_are_printable_and_different() {
        let records = Records::new(8, 1).unwrap();
        let mut keys: Vec<Key> = (0..200_000).map(|record| records.key(record)).collect();
        assert!(keys.iter().flatten().all(u8::is_ascii_graphic));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 200_000);
        assert_ne!(records.key(0), Records::new(8, 2).unwrap().key(0));
    }

    #[test]
    fn a_value_is_valid_for_its_key_at_any_version_and_for_no_other_key() {
        for bytes in SIZES {
            let records = Records::new(bytes, 1).unwrap();
            let (key, other) = (records.key(5), records.key(6));
            let mut value = Vec::new();
            for version in [0, 1, 65_535, 65_536] {
                records.value_into(&key, version, &mut value);
                assert_eq!(value.len(), bytes);
                assert_eq!(difference(&key, ValueEnds::of(&value, bytes)), 0, "{bytes} bytes");
                assert_ne!(difference(&other, ValueEnds::of(&value, bytes)), 0, "{bytes} bytes");
                assert!(records.is_whole(&key, &value) && !records.is_whole(&other, &value));
            }
        }
    }

    #[test]
    fn every_changed_byte_but_a_version_is_found() {
        for bytes in [8, 16, 100] {
            let records = Records::new(bytes, 1).unwrap();
            let key = records.key(9);
            let mut value = Vec::new();
            records.value_into(&key, 3, &mut value);
            for at in 0..bytes {
                let mut changed = value.clone();
                changed[at] ^= 0x10;
                // The lowest two of 8 bytes are the version and may have any value.
                assert_eq!(records.is_whole(&key, &changed), bytes == 8 && at < 2, "{bytes} bytes, byte {at}");
            }
            assert!(!records.is_whole(&key, &value[1..]) && !records.is_whole(&key, &[]));
        }
    }

    #[test]
    fn values_whose_ends_would_overlap_are_refused() {
        assert!([0, 7, 9, 15].into_iter().all(|bytes| Records::new(bytes, 1).is_err()));
    }
}
