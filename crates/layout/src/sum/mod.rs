//! Checksums of rows and extents: 64 bits over 8-byte words, seeded, never zero.
//!
//! This module defines the mapping from an image in remote memory to the checksum stored beside it, and nothing else:
//! the layout decides which words a checksum covers and which seed a row uses. Every client of a table must compute the
//! same value, so all of it is part of the format: results are the same on every CPU and in both byte orders.
//!
//! Invariants, for every [`ChecksumKind`]:
//! - The result is never 0. A row of zeros (fresh memory, a lost page) stores checksum 0 and therefore never verifies.
//! - The result depends on the number of words, also when all of them are zero.
//! - Two different seeds never give the same result for the same words with [`ChecksumKind::Crc64`], except through the
//!   one value that replaces 0: a row's image cannot verify as another row's. With [`ChecksumKind::Nh`] they do for less
//!   than 2⁻⁵⁵ of all secrets.
//!
//! Both detect torn writes, stray writes and bit rot. [`ChecksumKind::Nh`] also resists an attacker who chooses the bytes
//! and does not know the table's secret: two images of one length that the attacker chooses have the same sum for less
//! than 2⁻⁵⁵ of all secrets; [`nh()`] says why. Nothing here resists an attacker who knows the secret.
//!
//! ```
//! use guira_layout::sum::{ChecksumKind, NhKeys};
//!
//! let keys = NhKeys::new([5, 3, 4, 1]);
//! let row = [7_u64; 14];
//! let sum = ChecksumKind::Nh.checksum(&keys, &row, 42);
//! assert_ne!(sum, ChecksumKind::Nh.checksum(&keys, &row, 43), "the same image in another row");
//! assert_ne!(sum, ChecksumKind::Nh.checksum(&NhKeys::new([0; 4]), &row, 42), "the same image in another table");
//! assert_eq!(ChecksumKind::from_code(5), Some(ChecksumKind::Nh));
//! ```

mod bytes;
mod nh;
#[cfg(test)]
mod tests;

pub use bytes::with_le_bytes;
pub use nh::{BLOCK_WORDS, Level, NhKeys};

/// Stored in place of a checksum of 0, so that 0 marks an image that was never written. ASCII "guira!Z1".
const ZERO_SUBSTITUTE: u64 = 0x6775_6972_6121_5a31;

/// Multiplier that spreads a length over 64 bits. Odd, so that different lengths give different words.
const LENGTH_MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;

// A substitute of 0 would let zeroed memory verify; an even multiplier would lose the top bit of the length.
const _: () = assert!(ZERO_SUBSTITUTE != 0 && LENGTH_MULTIPLIER % 2 == 1);

/// Checksum algorithm of a table's rows (stored in the superblock as a `u8` code).
///
/// The codes and their functions are frozen: a change of either is a new format. Codes 1, 2 and 4 belonged to
/// algorithms that no table uses any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChecksumKind {
    /// CRC-64/NVME over the seed and the words; it does not use the table's keys.
    Crc64 = 3,
    /// [`nh()`]: products of keyed pairs of words, added up.
    Nh = 5,
}

impl ChecksumKind {
    /// All algorithms, in the order of their codes.
    pub const ALL: [Self; 2] = [Self::Crc64, Self::Nh];

    /// Returns the algorithm with this superblock code; `None` if the code is unknown.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            3 => Some(Self::Crc64),
            5 => Some(Self::Nh),
            _ => None,
        }
    }

    /// Returns the code that the superblock stores. It is never 0, which is the code in a superblock of zeros.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the name that users see: `crc64-nvme` or `nh`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc64 => "crc64-nvme",
            Self::Nh => "nh",
        }
    }

    /// Computes the checksum of `words` (8-byte words, little-endian in memory) with `seed` and a table's `keys`. Never
    /// 0.
    #[inline]
    #[must_use]
    pub fn checksum(self, keys: &NhKeys, words: &[u64], seed: u64) -> u64 {
        match self {
            Self::Crc64 => nonzero(bytes::crc64_nvme(words, seed) ^ length_term(words.len())),
            Self::Nh => nh(keys, words, seed),
        }
    }
}

/// Computes XXH3-64 with `seed` over the little-endian bytes of `words`. Never 0.
///
/// The length is part of XXH3 itself.
#[inline]
#[must_use]
pub fn bytes_checksum(words: &[u64], seed: u64) -> u64 {
    nonzero(bytes::xxh3(words, seed))
}

/// Computes NH over `words` and the seed, as one more word, with a table's keys. Never 0.
///
/// Two images of one length, each with its seed, that were chosen without knowing the keys have the same sum for less
/// than 2⁻⁵⁵ of all secrets, if the keys from ChaCha20 are indistinguishable from random ones: 168 · 2⁻⁶⁴ by the proof
/// in `nh.rs` (three times that beyond 256 words), and twice as much again for the one value that replaces
/// 0. The same holds for [`nh_or_zero`]; the low half of its sum is the same for less than 2⁻²⁴ of all secrets.
#[inline(always)]
#[must_use]
pub fn nh(keys: &NhKeys, words: &[u64], seed: u64) -> u64 {
    nonzero(nh_or_zero(keys, words, seed))
}

/// Same as [`nh()`], of the words that `load` returns for `words`, which need not be the same at every load: each is
/// loaded once, and `copied` receives those that were summed, in order, in blocks of [`BLOCK_WORDS`] of which only the
/// last one may be shorter. So the words are copied and summed while they pass through the processor once. `buffer`
/// holds one block; its content before the call does not matter. `prefetch` is passed a word of each cache line behind
/// the first block, a block before it is loaded.
#[inline]
#[must_use]
pub fn nh_copying<W>(
    keys: &NhKeys,
    words: &[W],
    load: impl Fn(&W) -> u64,
    prefetch: impl Fn(&W),
    seed: u64,
    buffer: &mut [u64; BLOCK_WORDS],
    copied: impl FnMut(&[u64]),
) -> u64 {
    nonzero(nh::nh_copying(keys, words, load, prefetch, seed, buffer, copied).wrapping_add(length_term(words.len())))
}

/// Same as [`nh()`], of `len` words that `next` makes block by block: it is called with places for [`BLOCK_WORDS`] words,
/// the last time for fewer, and writes all of them. So what makes the words finds them in the nearest cache. `buffer`
/// holds one block; its content before the call does not matter.
#[inline]
#[must_use]
pub fn nh_making(
    keys: &NhKeys,
    len: usize,
    seed: u64,
    buffer: &mut [u64; BLOCK_WORDS],
    next: impl FnMut(&mut [u64]),
) -> u64 {
    nonzero(nh::nh_making(keys, len, seed, buffer, next).wrapping_add(length_term(len)))
}

/// Same as [`nh()`], with the keys of another level: for sums that become the seed of an image.
#[inline(always)]
#[must_use]
pub fn nh_at(keys: &NhKeys, level: Level, words: &[u64], seed: u64) -> u64 {
    nonzero(nh::nh(keys, level, words, seed).wrapping_add(length_term(words.len())))
}

/// Same as [`nh()`], but a sum of 0 stays 0. For sums beside which a bit that is always 1 is stored.
#[inline(always)]
#[must_use]
pub fn nh_or_zero(keys: &NhKeys, words: &[u64], seed: u64) -> u64 {
    // The length is added, not combined by exclusive or, because the proof is about differences.
    nh::nh(keys, Level::First, words, seed).wrapping_add(length_term(words.len()))
}

/// Returns a term that makes a checksum depend on the length, even if all words are zeros and the state remains 0.
#[inline]
const fn length_term(words: usize) -> u64 {
    (words as u64).wrapping_mul(LENGTH_MULTIPLIER)
}

/// Replaces 0, the checksum in memory that was never written.
#[inline]
const fn nonzero(raw: u64) -> u64 {
    if raw == 0 { ZERO_SUBSTITUTE } else { raw }
}
