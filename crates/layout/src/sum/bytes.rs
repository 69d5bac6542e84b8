//! Checksums that are defined over bytes: XXH3-64 and CRC-64/NVME over the little-endian bytes of words.
//!
//! Invariant: the bytes are those that the words have in remote memory, whatever the byte order of this CPU.

use crc_fast::{CrcAlgorithm, Digest};
use xxhash_rust::xxh3::xxh3_64_with_seed;
#[cfg(target_endian = "little")]
use zerocopy::IntoBytes;

/// Computes XXH3-64 of the words with `seed`.
#[inline]
pub(crate) fn xxh3(words: &[u64], seed: u64) -> u64 {
    with_le_bytes(words, |bytes| xxh3_64_with_seed(bytes, seed))
}

/// Computes CRC-64/NVME of the seed, as one more word in front, and the words.
pub(crate) fn crc64_nvme(words: &[u64], seed: u64) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&seed.to_le_bytes());
    with_le_bytes(words, |bytes| digest.update(bytes));
    digest.finalize()
}

/// Passes the words' little-endian bytes, as remote memory holds them, to `read`. No copy is made, because this CPU has
/// the same byte order.
#[cfg(target_endian = "little")]
#[inline]
pub fn with_le_bytes<R>(words: &[u64], read: impl FnOnce(&[u8]) -> R) -> R {
    read(words.as_bytes())
}

/// Passes the words' little-endian bytes, as remote memory holds them, to `read`. A copy is made, because this CPU has
/// the other byte order.
#[cfg(target_endian = "big")]
pub fn with_le_bytes<R>(words: &[u64], read: impl FnOnce(&[u8]) -> R) -> R {
    read(&copy_le_bytes(words))
}

/// Copies the words' little-endian bytes.
#[cfg(any(test, target_endian = "big"))]
pub(crate) fn copy_le_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_little_endian() {
        for len in 0..40_u64 {
            let words: Vec<u64> = (0..len).map(|i| i.wrapping_mul(0x0102_0304_0506_0708) ^ len).collect();
            with_le_bytes(&words, |bytes| assert_eq!(bytes, copy_le_bytes(&words)));
        }
    }

    /// Published check values: XXH3 of nothing (xxHash's own sanity test), CRC-64/NVME of "123456789" (NVMe base spec).
    #[test]
    fn known_answers() {
        assert_eq!(xxh3(&[], 0), 0x2d06_8005_38d3_94c2);
        assert_eq!(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, b"123456789"), 0xae8b_1486_0a79_9888);
    }

    /// The seed is one more word, so the result is the CRC-64/NVME of a longer byte string.
    #[test]
    fn crc64_prepends_the_seed() {
        for len in 0..40 {
            let words: Vec<u64> = (0..len).map(|i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let seeded: Vec<u64> = std::iter::once(len).chain(words.iter().copied()).collect();
            let whole = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &copy_le_bytes(&seeded));
            assert_eq!(crc64_nvme(&words, len), whole);
        }
    }
}
