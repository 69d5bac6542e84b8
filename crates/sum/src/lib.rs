//! Row and extent checksums of the Guira key/value store: 64 bits over 8-byte words, seeded, never zero.
//!
//! This crate owns the mapping from an image in remote memory to the checksum stored beside it, and nothing else: which
//! words a checksum covers and which seed a row uses is decided by the layout. Every client of a table must compute the
//! same value, so all of it is part of the format: results are the same on every CPU, in hardware and in software, and
//! in both byte orders.
//!
//! Invariants, for every [`Algorithm`]:
//! - The result is never 0. A row of zeros (fresh memory, a lost page) stores checksum 0 and therefore never verifies.
//! - The result depends on the number of words, also when all of them are zero.
//! - For [`Algorithm::Crc32cPair`] and [`Algorithm::Crc64`], two different seeds never give the same result for the
//!   same words, except through the one value that replaces 0: a row's image cannot verify as another row's.
//!   [`Algorithm::Xxh3`] and [`Algorithm::Nh`] promise this with probability 1 − 2⁻⁶⁴.
//!
//! These checksums find torn writes, stray writes and bit rot. None of them resists someone who chooses the bytes.
//!
//! ```
//! use guira_sum::{Algorithm, crc32c_pair};
//!
//! let row = [7_u64; 14];
//! let sum = crc32c_pair(&row, 42);
//! assert_eq!(sum, Algorithm::Crc32cPair.checksum(&row, 42));
//! assert_ne!(sum, crc32c_pair(&row, 43), "the same image in another row");
//! assert_eq!(Algorithm::from_code(1), Some(Algorithm::Crc32cPair));
//! ```

mod bytes;
mod crc32c;
mod nh;
#[cfg(test)]
mod tests;

pub use bytes::with_le_bytes;

/// Stored in place of a checksum that came out as 0, so that 0 stays the mark of an image nobody wrote.
/// ASCII "guira!Z1".
const ZERO_SUBSTITUTE: u64 = 0x6775_6972_6121_5a31;

/// Spreads a length over 64 bits. Odd, so different lengths give different words.
const LENGTH_MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;

// A substitute of 0 would let zeroed memory verify; an even multiplier would lose the top bit of the length.
const _: () = assert!(ZERO_SUBSTITUTE != 0 && LENGTH_MULTIPLIER % 2 == 1);

/// Which checksum a table's rows carry (stored in the superblock as a `u8` code).
///
/// The codes and the functions behind them are frozen: a change of either is a new format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// [`crc32c_pair`]: two CRC32C streams, in hardware on x86-64 (SSE4.2) and AArch64 (CRC).
    Crc32cPair = 1,
    /// [`bytes_checksum`]: XXH3-64 with the seed.
    Xxh3 = 2,
    /// CRC-64/NVME over the seed and the words.
    Crc64 = 3,
    /// [`nh()`]: products of keyed pairs of words, added up.
    Nh = 4,
}

impl Algorithm {
    /// Every algorithm, in the order of the codes.
    pub const ALL: [Self; 4] = [Self::Crc32cPair, Self::Xxh3, Self::Crc64, Self::Nh];

    /// The algorithm with this superblock code, or `None` when this build knows no such code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Crc32cPair),
            2 => Some(Self::Xxh3),
            3 => Some(Self::Crc64),
            4 => Some(Self::Nh),
            _ => None,
        }
    }

    /// The code that the superblock stores. Never 0, which is what a superblock of zeros holds.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The name users write and read: `crc32c-pair`, `xxh3`, `crc64-nvme` or `nh`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32cPair => "crc32c-pair",
            Self::Xxh3 => "xxh3",
            Self::Crc64 => "crc64-nvme",
            Self::Nh => "nh",
        }
    }

    /// Checksum of `words` (8-byte words, little-endian in memory) under `seed`. Never 0.
    #[inline]
    #[must_use]
    pub fn checksum(self, words: &[u64], seed: u64) -> u64 {
        match self {
            Self::Crc32cPair => crc32c_pair(words, seed),
            Self::Xxh3 => bytes_checksum(words, seed),
            Self::Crc64 => seal_with_length(bytes::crc64_nvme(words, seed), words.len()),
            Self::Nh => nh(words, seed),
        }
    }
}

/// Two CRC32C streams over `words`, one over each word `w`, one over `w · K` mod 2⁶⁴ (K odd), side by side in 64 bits.
///
/// The product is no linear function of the bits of `w`, so an error pattern that one stream misses (1 in 2³²) is
/// missed by the other only by chance again. The exception is a pattern made of the top bits of words alone, which both
/// streams see alike; there CRC32C's own guarantee remains: up to 5 flipped bits in up to 655 bytes are found.
/// A single flipped bit is always found, up to the one value that replaces 0.
///
/// The seed enters through the initial states and the length through the end. Never 0.
#[inline]
#[must_use]
pub fn crc32c_pair(words: &[u64], seed: u64) -> u64 {
    let (plain, scaled) = crc32c::streams(words, crc32c::initial_states(seed));
    seal_with_length(u64::from(scaled) << 32 | u64::from(plain), words.len())
}

/// XXH3-64 with `seed` over the little-endian bytes of `words`: the choice for extents, which are long. Never 0.
///
/// Equal to [`Algorithm::Xxh3`]'s checksum. The length is part of XXH3 itself.
#[inline]
#[must_use]
pub fn bytes_checksum(words: &[u64], seed: u64) -> u64 {
    seal(bytes::xxh3(words, seed))
}

/// NH over `words` and the seed, as one more word: the choice for rows, whose length the compiler knows. Never 0.
///
/// Before its halves are combined, the sum of two images of one length is the same for at most one in 2⁶⁴ choices of
/// keys. That the 64 bits left are as good is what any such checksum has to claim; and the keys are constants, so
/// whoever knows them can make two images with one sum.
#[inline(always)]
#[must_use]
pub fn nh(words: &[u64], seed: u64) -> u64 {
    seal(nh_or_zero(words, seed))
}

/// As [`nh`], but 0 where that is another number: for sums that are stored beside a bit that is never 0.
#[inline(always)]
#[must_use]
pub fn nh_or_zero(words: &[u64], seed: u64) -> u64 {
    with_length(nh::nh(words, seed), words.len())
}

#[inline]
const fn seal_with_length(raw: u64, words: usize) -> u64 {
    seal(with_length(raw, words))
}

/// Makes a checksum depend on the length also where its state stands at 0 and zeros would leave it there.
#[inline]
const fn with_length(raw: u64, words: usize) -> u64 {
    raw ^ (words as u64).wrapping_mul(LENGTH_MULTIPLIER)
}

/// Replaces 0, the one value that memory nobody wrote can hold.
#[inline]
const fn seal(raw: u64) -> u64 {
    if raw == 0 { ZERO_SUBSTITUTE } else { raw }
}
