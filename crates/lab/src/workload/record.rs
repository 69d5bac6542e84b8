//! Keys and values of records: keys that look random and never collide, and values from which a reader can verify the
//! record.
//!
//! A value is a function of its record, its version and its length. Versions count the writer's updates, from 0 as
//! loaded.
//!
//! ```text
//! 16 bytes or more    0..8  record      8..16  version          16..  filler of (record, version)
//! fewer, n bytes      0..n/2  low bytes of the version         n/2..  filler of (record, those bytes)
//! ```
//! Numbers are little-endian. Invariant: [`check_value`] accepts every value that [`fill_value`] made for that record,
//! and one in 256ⁿ values of random bytes, where n is the number of bytes outside the version.

use guira_fabric::SplitMix64;

/// Values of at least this length hold the whole record number and version.
const FULL_STAMP_BYTES: usize = 16;

/// Separates the seeds of fillers from all other uses of the mixer.
const FILLER_SALT: u64 = 0x6c61_625f_7661_6c75;

/// The key of a record: for each seed a bijection of 64-bit words, so keys look random and no two records share one.
///
/// It is the output number `record` of SplitMix64 (Steele, Lea and Flood, OOPSLA'14). Keys are in random order, and
/// for each seed some record has key 0. YCSB hashes record numbers to the same end ("hashed insert order").
#[inline]
#[must_use]
pub const fn key_of(record: u64, seed: u64) -> u64 {
    SplitMix64::nth(SplitMix64::mix(seed), record)
}

/// Fills `value` with the content of this record at this version. Any length is valid; see [`ValueStamp`] for how much
/// of the version the value holds.
///
/// ```
/// use guira_lab::workload::{check_value, fill_value};
///
/// let mut value = [0; 100];
/// fill_value(7, 3, &mut value);
/// assert!(check_value(7, &value)?.is_of(3));
/// value[50] ^= 1;
/// assert!(check_value(7, &value).is_err());
/// # Ok::<(), guira_lab::workload::ValueError>(())
/// ```
pub fn fill_value(record: u64, version: u64, value: &mut [u8]) {
    let (stamp, rest) = value.split_at_mut(stamp_bytes(value.len()));
    let held = version & mask_of(version_bytes(stamp.len()));
    if stamp.len() == FULL_STAMP_BYTES {
        stamp[..8].copy_from_slice(&record.to_le_bytes());
        stamp[8..].copy_from_slice(&held.to_le_bytes());
    } else {
        stamp.copy_from_slice(&held.to_le_bytes()[..stamp.len()]);
    }
    for (chunk, word) in rest.chunks_mut(8).zip(filler(record, held)) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// Verifies that `value` is the content of `record` at some version, and returns the version that it holds.
///
/// # Errors
/// [`ValueError::OtherRecord`] if it names another record, [`ValueError::Damaged`] if any other byte is wrong: the
/// value is torn, mixed from two versions, or not such a value at all. An empty value proves nothing and passes.
pub fn check_value(record: u64, value: &[u8]) -> Result<ValueStamp, ValueError> {
    let (stamp, rest) = value.split_at(stamp_bytes(value.len()));
    let mut version = [0; 8];
    if let Some((found, held)) = stamp.split_first_chunk::<8>() {
        let found = u64::from_le_bytes(*found);
        if found != record {
            return Err(ValueError::OtherRecord { record, found });
        }
        version.copy_from_slice(held);
    } else {
        version[..stamp.len()].copy_from_slice(stamp);
    }
    let version = u64::from_le_bytes(version);
    for (index, (chunk, word)) in rest.chunks(8).zip(filler(record, version)).enumerate() {
        let expected = word.to_le_bytes();
        if let Some(at) = chunk.iter().zip(expected).position(|(&found, expected)| found != expected) {
            let offset = stamp.len() + 8 * index + at;
            return Err(ValueError::Damaged { record, version, offset, value_bytes: value.len() });
        }
    }
    Ok(ValueStamp { version, version_bits: 8 * version_bytes(stamp.len()) as u32 })
}

/// The part of its version that a value holds: all 64 bits from 16 bytes on, the low 32 in an 8-byte value, the low 16
/// in a 4-byte value, none in a 1-byte or empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueStamp {
    /// The version modulo 2^`version_bits`.
    pub version: u64,
    /// Number of low bits of the version that the value holds, 0 to 64.
    pub version_bits: u32,
}

impl ValueStamp {
    /// Whether the value may be of this version: the bits it holds agree.
    #[must_use]
    pub const fn is_of(self, version: u64) -> bool {
        version & mask_of(self.version_bits as usize / 8) == self.version
    }
}

/// The reason why a value is not the record's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The value names another record.
    #[error("the value of record {record} belongs to record {found}")]
    OtherRecord {
        /// The record that was read.
        record: u64,
        /// The record that the value names.
        found: u64,
    },
    /// A byte after the stamp does not follow from record and version.
    #[error("the value of record {record} ({value_bytes} bytes, stamped version {version}) is wrong at byte {offset}")]
    Damaged {
        /// The record that was read.
        record: u64,
        /// The version that the value holds.
        version: u64,
        /// Offset of the first wrong byte.
        offset: usize,
        /// Length of the value.
        value_bytes: usize,
    },
}

/// Bytes of the stamp in a value of `value_bytes`.
const fn stamp_bytes(value_bytes: usize) -> usize {
    if value_bytes >= FULL_STAMP_BYTES { FULL_STAMP_BYTES } else { value_bytes / 2 }
}

/// Bytes of the version in a stamp. A short stamp holds nothing else.
const fn version_bytes(stamp_bytes: usize) -> usize {
    if stamp_bytes == FULL_STAMP_BYTES { 8 } else { stamp_bytes }
}

/// A word whose low `bytes` bytes are set.
const fn mask_of(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 }
}

/// The endless sequence of words after a stamp.
fn filler(record: u64, held_version: u64) -> impl Iterator<Item = u64> {
    let seed = SplitMix64::mix(key_of(record, FILLER_SALT) ^ held_version);
    (0..).map(move |index| SplitMix64::nth(seed, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(record: u64, version: u64, len: usize) -> Vec<u8> {
        let mut value = vec![0xee; len];
        fill_value(record, version, &mut value);
        value
    }

    #[test]
    fn keys_are_a_bijection() {
        let mut keys: Vec<u64> = (0..1_000_000).map(|record| key_of(record, 1)).collect();
        keys.extend((0..64).map(|bit| key_of(u64::MAX << bit, 1)));
        let total = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), total);
    }

    /// Every step of the key function has an inverse, which proves that it is a bijection; a sample could not.
    #[test]
    fn keys_can_be_inverted_to_their_records() {
        // Newton's iteration for the inverse of an odd number mod 2^64 doubles the right bits each time: 3, 6, ... 96.
        let inverse = |odd: u64| (0..5).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))));
        let unshift = |word: u64, by: u32| {
            let known = (1..=64 / by).fold(word, |known, _| word ^ known >> by);
            assert_eq!(known ^ known >> by, word);
            known
        };
        let unmix = |key: u64| {
            let word = unshift(key, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
            let word = unshift(word, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
            unshift(word, 30)
        };
        for seed in [0, 1, u64::MAX] {
            for record in (0..1000).chain((0..64).map(|bit| 1 << bit)).chain([u64::MAX]) {
                let counter = unmix(key_of(record, seed)).wrapping_sub(SplitMix64::mix(seed));
                assert_eq!(counter.wrapping_mul(inverse(0x9e37_79b9_7f4a_7c15)).wrapping_sub(1), record);
            }
        }
    }

    #[test]
    fn keys_look_random() {
        // Each bit of the keys of consecutive records is set about half of the time: five standard deviations.
        for bit in 0..64 {
            let set = (0..10_000).filter(|&record| key_of(record, 3) >> bit & 1 == 1).count();
            assert!(set.abs_diff(5000) < 250, "bit {bit}: {set}");
        }
        let shared = (0..10_000).filter(|&record| key_of(record, 3) == key_of(record, 4)).count();
        assert_eq!(shared, 0, "seeds share keys");
    }

    #[test]
    fn values_verify_at_every_length() {
        for len in 0..100 {
            for version in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
                let stamp = check_value(42, &value(42, version, len)).unwrap();
                assert!(stamp.is_of(version), "{len} bytes, {stamp:?}");
                assert_eq!(stamp.is_of(version ^ 1), stamp.version_bits == 0, "{len} bytes, {stamp:?}");
                assert_eq!(value(42, version, len), value(42, version, len));
            }
        }
        let bits = |len| check_value(42, &value(42, 5, len)).unwrap().version_bits;
        assert_eq!([0, 1, 2, 4, 8, 15, 16, 100].map(bits), [0, 0, 8, 16, 32, 56, 64, 64]);
    }

    #[test]
    fn stamps_have_the_documented_layout() {
        let full = value(0x0102, 0x0304, 20);
        assert_eq!(full[..16], [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(value(9, 0xaabb_ccdd_eeff, 8)[..4], [0xff, 0xee, 0xdd, 0xcc]);
    }

    #[test]
    fn values_of_other_records_are_detected() {
        let error = check_value(42, &value(43, 0, 16)).unwrap_err();
        assert_eq!(error, ValueError::OtherRecord { record: 42, found: 43 });
        assert!((0..10_000).all(|record| record == 42 || check_value(42, &value(record, 0, 8)).is_err()));
    }

    /// A value of exactly 16 bytes is only a stamp: a flip in its version makes another version. Every other flip is an
    /// error.
    #[test]
    fn flipped_bits_are_detected() {
        for len in 6..64 {
            let whole = value(42, 7, len);
            for bit in 0..8 * len {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                match check_value(42, &flipped) {
                    Ok(stamp) => assert!(len == 16 && bit >= 64 && !stamp.is_of(7), "{len} bytes, bit {bit}"),
                    Err(_) => assert!(len != 16 || bit < 64, "{len} bytes, bit {bit}"),
                }
            }
        }
    }

    #[test]
    fn torn_values_are_detected() {
        let (old, new) = (value(42, 1, 64), value(42, 2, 64));
        for words in 1..8 {
            // Both stamps have the record in their first word, so a cut after it changes nothing.
            let torn = [&new[..8 * words], &old[8 * words..]].concat();
            assert_eq!(check_value(42, &torn).is_ok(), words == 1, "cut after {words} words");
        }
        let mut damaged = new;
        damaged[40] ^= 0xff;
        let expected = ValueError::Damaged { record: 42, version: 2, offset: 40, value_bytes: 64 };
        assert_eq!(check_value(42, &damaged), Err(expected));
    }
}
