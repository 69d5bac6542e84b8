//! The format of a workload's records in a table of one entry format.
//!
//! Invariant: for one format, no two records below [`RecordFormat::records_max`] have the same key.

use guira::EntryFormat;

use super::DriverError;
use crate::workload::{fill_value, key_of};

/// Bytes of a record's key if the entry format allows any length: the whole word of [`key_of`].
const KEY_BYTES: usize = 8;
/// Bytes of a record's value if neither the entry format nor the caller gives a length: a field of YCSB.
pub const DEFAULT_VALUE_BYTES: usize = 100;
/// Maximum number of bytes of a value: the store's bound for keys and values outside a row.
const VALUE_BYTES_MAX: usize = 64 << 20;

/// Keys and values of a workload's records in a table of one format.
///
/// | format | key | value |
/// |---|---|---|
/// | `fixed:K:V`, K at least 8 | the 8 bytes of [`key_of`], then zeros | V bytes |
/// | `fixed:K:V`, K below 8 | a bijective scramble of the record's number in K bytes | V bytes |
/// | `bytes:N` | the 8 bytes of [`key_of`] | as asked, or 100 |
///
/// ```
/// use guira_lab::driver::RecordFormat;
///
/// let format = RecordFormat::new("fixed:8:32".parse()?, None, 7)?;
/// let mut key = Vec::new();
/// format.key_into(0, &mut key);
/// assert_eq!((key.len(), format.value_bytes()), (8, 32));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFormat {
    key_bytes: usize,
    value_bytes: usize,
    seed: u64,
}

impl RecordFormat {
    /// The format of records in a table of `format`, whose keys are drawn from `seed`. `value_bytes` is the length of
    /// every value; a fixed format has only one.
    ///
    /// # Errors
    /// [`DriverError::ValueBytes`] if the format cannot hold such values.
    pub fn new(format: EntryFormat, value_bytes: Option<usize>, seed: u64) -> Result<RecordFormat, DriverError> {
        let (key_bytes, held) = match format {
            EntryFormat::Fixed { key_bytes, value_bytes } => (usize::from(key_bytes), Some(usize::from(value_bytes))),
            EntryFormat::Bytes { .. } => (KEY_BYTES, None),
        };
        let wanted = value_bytes.or(held).unwrap_or(DEFAULT_VALUE_BYTES);
        if held.is_some_and(|held| held != wanted) || wanted > VALUE_BYTES_MAX {
            return Err(DriverError::ValueBytes { format: format.to_string(), value_bytes: wanted });
        }
        Ok(RecordFormat { key_bytes, value_bytes: wanted, seed })
    }

    /// Bytes of every key.
    #[must_use]
    pub const fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Bytes of every value.
    #[must_use]
    pub const fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Maximum number of records with unique keys; `u64::MAX` stands for any number.
    #[must_use]
    pub const fn records_max(&self) -> u64 {
        if self.key_bytes >= KEY_BYTES { u64::MAX } else { 1 << (8 * self.key_bytes) }
    }

    /// Replaces the content of `key` with the key of `record`.
    #[inline]
    pub fn key_into(&self, record: u64, key: &mut Vec<u8>) {
        debug_assert!(self.key_bytes >= KEY_BYTES || record < self.records_max());
        let word = if self.key_bytes >= KEY_BYTES { key_of(record, self.seed) } else { self.scramble(record) };
        key.clear();
        key.extend_from_slice(&word.to_le_bytes());
        key.resize(self.key_bytes, 0);
    }

    /// Replaces the content of `value` with the value of `record` at `version`.
    #[inline]
    pub fn value_into(&self, record: u64, version: u64, value: &mut Vec<u8>) {
        value.resize(self.value_bytes, 0);
        fill_value(record, version, value);
    }

    /// A bijection of the numbers of `key_bytes` bytes, different for each seed: addition and multiplication by odd
    /// numbers are invertible modulo a power of two, and so is xoring a word with its own upper half.
    fn scramble(&self, record: u64) -> u64 {
        let bits = 8 * self.key_bytes as u32;
        let mask = (1 << bits) - 1;
        let mut word = record.wrapping_add(key_of(0, self.seed)) & mask;
        for factor in [0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            word = word.wrapping_mul(factor) & mask;
            word ^= word >> (bits / 2);
        }
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record_format(format: &str, value_bytes: Option<usize>) -> Result<RecordFormat, DriverError> {
        RecordFormat::new(format.parse().unwrap(), value_bytes, 7)
    }

    #[test]
    fn lengths_follow_the_format() {
        let lengths = |format, value| record_format(format, value).map(|s| (s.key_bytes(), s.value_bytes())).unwrap();
        assert_eq!(lengths("fixed:8:8", None), (8, 8));
        assert_eq!(lengths("fixed:4:4", Some(4)), (4, 4));
        assert_eq!(lengths("fixed:32:0", None), (32, 0));
        assert_eq!(lengths("bytes:64", None), (8, DEFAULT_VALUE_BYTES));
        assert_eq!(lengths("bytes:64", Some(5000)), (8, 5000));
        for (format, value) in [("fixed:8:8", Some(9)), ("bytes:64", Some(VALUE_BYTES_MAX + 1))] {
            let error = record_format(format, value).unwrap_err();
            assert!(matches!(error, DriverError::ValueBytes { .. }), "{error}");
        }
    }

    #[test]
    fn long_keys_are_padded() {
        let mut key = vec![1; 99];
        record_format("fixed:12:4", None).unwrap().key_into(3, &mut key);
        assert_eq!(key[..8], key_of(3, 7).to_le_bytes());
        assert_eq!(key[8..], [0; 4]);
    }

    #[test]
    fn short_keys_are_a_bijection() {
        for (format, bytes) in [("fixed:1:1", 1), ("fixed:2:4", 2), ("fixed:3:4", 3)] {
            let records = record_format(format, None).unwrap();
            assert_eq!(records.records_max(), 1 << (8 * bytes));
            let mut seen = vec![false; records.records_max() as usize];
            let mut key = Vec::new();
            for record in 0..records.records_max() {
                records.key_into(record, &mut key);
                assert_eq!(key.len(), bytes);
                let at = key.iter().rev().fold(0, |word, byte| word << 8 | usize::from(*byte));
                assert!(!std::mem::replace(&mut seen[at], true), "{format}: record {record} shares its key");
            }
        }
    }

    #[test]
    fn keys_of_four_bytes_look_random() {
        let records = record_format("fixed:4:4", None).unwrap();
        let mut key = Vec::new();
        let mut keys: Vec<u32> = (0..1_000_000)
            .map(|record| {
                records.key_into(record, &mut key);
                u32::from_le_bytes(key[..].try_into().unwrap())
            })
            .collect();
        for bit in 0..32 {
            let set = keys.iter().filter(|key| **key >> bit & 1 == 1).count();
            assert!(set.abs_diff(500_000) < 5_000, "bit {bit}: {set}");
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 1_000_000);
    }
}
