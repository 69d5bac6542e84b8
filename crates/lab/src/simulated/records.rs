//! Records of simulated tables: the keys of record numbers, and values that name the write that stored them.
//!
//! Invariants: record numbers and keys map to each other one to one, so that a table's contents can be compared with
//! what was stored without a list of keys. Each value holds the serial number of its write, 32 bits, which fit even in
//! the values of `fixed:4:4`; loaded values have serial 0.

use guira_fabric::SplitMix64;
use guira_layout::EntryFormat;

use crate::workload::{Rng, Zipf};

/// The serial number of the values with which a table is filled.
pub const LOADED: u32 = 0;
/// Bytes of a serial number.
const SERIAL_BYTES: usize = 4;
/// Bytes of the part of a key that differs between records.
const WORD_BYTES: usize = 8;
/// Bytes of scattered keys.
const SCATTERED_KEY_BYTES: usize = 4;
/// Bytes of keys, and unless another length is asked for of values, of formats that allow any length.
const ANY_BYTES: usize = 8;
/// Odd: the multiplication by it is a bijection of the words of any number of bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const INVERSE: u64 = inverse_of(FACTOR);

const _: () = assert!(FACTOR.wrapping_mul(INVERSE) == 1);

/// The number by which a product with `odd` is multiplied to get the other factor back, modulo 2^64: Newton's
/// iteration, which doubles the right bits each time, from 3 to 96.
const fn inverse_of(odd: u64) -> u64 {
    let (mut inverse, mut step) = (odd, 0);
    while step < 5 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// The reason why a table cannot hold records with values of a length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The values cannot hold a serial number, which makes them verifiable.
    #[error("values of {value_bytes} bytes are too short: a value needs {SERIAL_BYTES} bytes")]
    Short {
        /// Bytes of a value.
        value_bytes: usize,
    },
    /// The values of the table's format have another length.
    #[error("values of {value_bytes} bytes do not go into a table of {format}")]
    Format {
        /// The table's format.
        format: EntryFormat,
        /// Bytes of a value that were asked for.
        value_bytes: usize,
    },
}

/// The format of the records of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    keys: Keys,
    key_bytes: usize,
    value_bytes: usize,
}

/// Records of which several have one key: that of the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeats {
    /// By record, the first record with its key.
    first: Vec<u32>,
    /// By first record, the records with its key.
    counts: Vec<u32>,
}

impl Repeats {
    /// Draws the keys of `records` records from as many by Zipf's law with exponent `theta`.
    pub fn drawn(records: u32, theta: f64, seed: u64) -> Repeats {
        let (popularity, mut rng) = (Zipf::new(records.into(), theta), Rng::new(seed));
        let first: Vec<u32> = (0..records).map(|_| popularity.sample(&mut rng) as u32).collect();
        let mut counts = vec![0; records as usize];
        first.iter().for_each(|first| counts[*first as usize] += 1);
        Repeats { first, counts }
    }

    /// Returns the number of the record whose key and value `record` has.
    #[inline]
    pub fn first(&self, record: u64) -> u64 {
        self.first[record as usize].into()
    }

    /// Returns the records with the key of record `first`.
    #[inline]
    pub fn count(&self, first: u64) -> u64 {
        self.counts[first as usize].into()
    }
}

/// The way from record numbers to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    /// Multiples of a constant: for tables whose hash spreads any keys.
    Multiples,
    /// Keys of 4 bytes that look drawn, none of them 0: for tables with a weak hash.
    Scattered {
        /// Odd: another one gives other keys.
        factor: u32,
    },
}

impl Records {
    /// Returns the format of records with values of `value_bytes` bytes in a table of `format`. `None` stands for the
    /// values of a fixed format, and for 8 bytes otherwise.
    ///
    /// # Errors
    /// The values cannot hold a serial number, or the format has values of another length.
    pub fn of(format: EntryFormat, value_bytes: Option<usize>) -> Result<Records, ValueError> {
        let (key_bytes, own_bytes) = match format {
            EntryFormat::Fixed { key_bytes, value_bytes } => (usize::from(key_bytes), Some(usize::from(value_bytes))),
            EntryFormat::Bytes { .. } => (ANY_BYTES, None),
        };
        let value_bytes = value_bytes.or(own_bytes).unwrap_or(ANY_BYTES);
        if own_bytes.is_some_and(|own_bytes| own_bytes != value_bytes) {
            return Err(ValueError::Format { format, value_bytes });
        }
        Records::new(Keys::Multiples, key_bytes, value_bytes)
    }

    /// Returns the format of records with keys of 4 bytes that look drawn with this seed, none of which is 0, and with
    /// values of `value_bytes` bytes.
    ///
    /// # Errors
    /// The values cannot hold a serial number.
    pub fn scattered(seed: u64, value_bytes: usize) -> Result<Records, ValueError> {
        let keys = Keys::Scattered { factor: SplitMix64::mix(seed) as u32 | 1 };
        Records::new(keys, SCATTERED_KEY_BYTES, value_bytes)
    }

    fn new(keys: Keys, key_bytes: usize, value_bytes: usize) -> Result<Records, ValueError> {
        if value_bytes < SERIAL_BYTES {
            return Err(ValueError::Short { value_bytes });
        }
        Ok(Records { keys, key_bytes, value_bytes })
    }

    /// Returns the bytes of a key.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Returns the bytes of a value.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Returns the number of records that have keys of their own.
    pub fn max(&self) -> u64 {
        match self.keys {
            Keys::Multiples if self.key_bytes >= WORD_BYTES => u64::MAX,
            Keys::Multiples => 1 << (8 * self.key_bytes),
            Keys::Scattered { .. } => u32::MAX.into(),
        }
    }

    /// Returns the key of `record`, which is below [`Records::max`], as a number. A longer key continues with zeros.
    #[inline]
    pub fn key(&self, record: u64) -> u64 {
        debug_assert!(record < self.max(), "record {record} has no key");
        match self.keys {
            Keys::Multiples => record.wrapping_mul(FACTOR) & self.key_mask(),
            Keys::Scattered { factor } => scatter((record as u32).wrapping_add(1).wrapping_mul(factor)).into(),
        }
    }

    /// Replaces the content of `key` with the key of `record`, which is below [`Records::max`].
    #[inline]
    pub fn key_into(&self, record: u64, key: &mut Vec<u8>) {
        self.bytes_into(self.key(record), key);
    }

    /// Replaces the content of `key` with the bytes of a key that is given as a number.
    #[inline]
    pub fn bytes_into(&self, number: u64, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(&number.to_le_bytes()[..self.key_bytes.min(WORD_BYTES)]);
        key.resize(self.key_bytes, 0);
    }

    /// Returns the record of `key`; `None` if no record has it.
    #[inline]
    pub fn record_of(&self, key: &[u8]) -> Option<u64> {
        let (own, rest) = key.split_at_checked(self.key_bytes.min(WORD_BYTES))?;
        let mut word = [0; WORD_BYTES];
        word[..own.len()].copy_from_slice(own);
        let is_key = key.len() == self.key_bytes && rest.iter().all(|byte| *byte == 0);
        let number = u64::from_le_bytes(word);
        is_key.then_some(match self.keys {
            Keys::Multiples => number.wrapping_mul(INVERSE) & self.key_mask(),
            Keys::Scattered { factor } => {
                let product = unscatter(number as u32).wrapping_mul(inverse_of(factor.into()) as u32);
                product.checked_sub(1)?.into()
            }
        })
    }

    /// Returns the bits of a number that are part of a key.
    #[inline]
    fn key_mask(&self) -> u64 {
        if self.key_bytes >= WORD_BYTES { u64::MAX } else { (1 << (8 * self.key_bytes)) - 1 }
    }

    /// Replaces the content of `value` with the value that write `serial` stores for `record`.
    #[inline]
    pub fn value_into(&self, record: u64, serial: u32, value: &mut Vec<u8>) {
        value.clear();
        value.resize(self.value_bytes, 0);
        let Some((stamp, rest)) = value.split_first_chunk_mut::<SERIAL_BYTES>() else { return };
        *stamp = (serial ^ mask(record)).to_le_bytes();
        for (part, index) in rest.chunks_mut(WORD_BYTES).zip(0..) {
            part.copy_from_slice(&filler(record, serial, index).to_le_bytes()[..part.len()]);
        }
    }

    /// Returns the serial number of the write that stored `value` for `record`; `None` if no write can have. Values of
    /// 4 bytes are nothing but a masked serial number: one of another record becomes an unlikely number.
    #[inline]
    pub fn serial_of(&self, record: u64, value: &[u8]) -> Option<u32> {
        let (stamp, rest) = value.split_first_chunk::<SERIAL_BYTES>()?;
        let serial = u32::from_le_bytes(*stamp) ^ mask(record);
        let is_own = |(part, index): (&[u8], u64)| *part == filler(record, serial, index).to_le_bytes()[..part.len()];
        let is_whole = value.len() == self.value_bytes && rest.chunks(WORD_BYTES).zip(0..).all(is_own);
        is_whole.then_some(serial)
    }
}

/// Mixes the bits of a word: the last step of MurmurHash3, a bijection that maps 0 to 0.
#[inline]
fn scatter(mut word: u32) -> u32 {
    word = (word ^ word >> 16).wrapping_mul(0x85eb_ca6b);
    word = (word ^ word >> 13).wrapping_mul(0xc2b2_ae35);
    word ^ word >> 16
}

/// Returns the word that [`scatter`] has mixed.
#[inline]
fn unscatter(mut word: u32) -> u32 {
    word = (word ^ word >> 16).wrapping_mul(inverse_of(0xc2b2_ae35) as u32);
    word = (word ^ word >> 13 ^ word >> 26).wrapping_mul(inverse_of(0x85eb_ca6b) as u32);
    word ^ word >> 16
}

/// The word by which the serial numbers of a record's values are masked.
#[inline]
fn mask(record: u64) -> u32 {
    (SplitMix64::mix(record.wrapping_add(1)) >> 32) as u32
}

/// Word `index` of the bytes after the serial number.
#[inline]
fn filler(record: u64, serial: u32, index: u64) -> u64 {
    SplitMix64::nth(record ^ u64::from(serial) << 32, index)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn records(format: &str) -> Records {
        of(format, None).expect("values hold a serial number")
    }

    fn of(format: &str, value_bytes: Option<usize>) -> Result<Records, ValueError> {
        Records::of(format.parse().expect("a valid format"), value_bytes)
    }

    #[test]
    fn keys_and_records_map_one_to_one() {
        for format in ["fixed:2:4", "fixed:4:4", "fixed:8:8", "fixed:12:32", "bytes:64"] {
            let (records, mut key, mut seen) = (records(format), Vec::new(), HashSet::new());
            let last = records.max() - 1;
            for record in (0..10_000).chain([last, last / 2]) {
                records.key_into(record, &mut key);
                assert_eq!(records.record_of(&key), Some(record), "{format}");
                assert!(seen.insert(key.clone()) || record == last / 2, "{format}, record {record}");
            }
            key.push(0);
            assert_eq!(records.record_of(&key), None, "{format}: a key of another length");
        }
        let mut key = Vec::new();
        records("fixed:12:32").key_into(5, &mut key);
        key[11] = 1;
        assert_eq!(records("fixed:12:32").record_of(&key), None);
    }

    #[test]
    fn scattered_keys_differ_by_seed_and_none_is_0() {
        let (one, other) = (Records::scattered(1, 4).expect("4 bytes"), Records::scattered(2, 4).expect("4 bytes"));
        assert_eq!(one.max(), u64::from(u32::MAX));
        let mut key = Vec::new();
        for record in (0..10_000).chain([one.max() / 3, one.max() - 1]) {
            assert!(one.key(record) != 0 && one.key(record) != other.key(record), "record {record}");
            one.key_into(record, &mut key);
            assert_eq!((key.len(), one.record_of(&key)), (4, Some(record)));
        }
        assert_eq!(one.record_of(&[0; 4]), None);
    }

    #[test]
    fn values_name_their_write_and_their_record() {
        for format in ["fixed:4:4", "fixed:8:8", "fixed:8:5", "fixed:8:100", "bytes:64"] {
            let (records, mut value) = (records(format), Vec::new());
            for (record, serial) in [(0, 0), (1, 0), (7, 1), (u64::from(u32::MAX), u32::MAX)] {
                records.value_into(record, serial, &mut value);
                assert_eq!(records.serial_of(record, &value), Some(serial), "{format}");
                // Of 4 bytes every word is some serial number, but hardly a small one.
                let other = records.serial_of(record + 1, &value);
                assert!(other.is_none_or(|other| other > 1_000_000), "{format}: {other:?}");
                value[0] ^= 1;
                assert_ne!(records.serial_of(record, &value), Some(serial), "{format}");
                value.push(0);
                assert_eq!(records.serial_of(record, &value), None, "{format}");
            }
        }
        assert_eq!(of("fixed:8:3", None), Err(ValueError::Short { value_bytes: 3 }));
    }

    #[test]
    fn values_have_the_length_asked_for() {
        for value_bytes in [4, 5, 8, 24, 1_024, 1_027] {
            let (records, mut value) = (of("bytes:24", Some(value_bytes)).expect("any length"), Vec::new());
            records.value_into(7, 3, &mut value);
            assert_eq!((value.len(), records.serial_of(7, &value)), (value_bytes, Some(3)));
            // A value that is torn at any word, after which it has the bytes of another write, is noticed.
            let mut other = Vec::new();
            records.value_into(7, 4, &mut other);
            for end in (SERIAL_BYTES..value_bytes).step_by(WORD_BYTES) {
                let torn = [&value[..end], &other[end..]].concat();
                assert_eq!(records.serial_of(7, &torn), None, "{value_bytes} bytes, torn at {end}");
            }
        }
        let format = "fixed:8:16".parse().expect("a valid format");
        assert_eq!(of("fixed:8:16", Some(8)), Err(ValueError::Format { format, value_bytes: 8 }));
        assert_eq!(of("fixed:8:16", Some(16)), of("fixed:8:16", None));
        assert_eq!(of("bytes:24", Some(8)), of("bytes:24", None));
        assert_eq!(of("bytes:24", Some(3)), Err(ValueError::Short { value_bytes: 3 }));
    }
}
