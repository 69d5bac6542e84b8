//! What a lookup needs of a row, and the two formats whose rows are known at compile time.
//!
//! A lookup is written once, over [`Rows`]. [`RowFormat`] answers for every table, branching on its geometry;
//! [`FixedRows`] answers for `fixed:4:4` and `fixed:8:8` rows of the hardened geometry, where every length is a constant
//! and the lookup becomes straight-line code. Both read the same bytes in the same way: a test compares them.

use crate::config::EntryFormat;
use crate::row::seed_of_row;
use crate::{Candidate, ChecksumKind, ExtentRef, Probe, RowFormat, RowId, Torn, Trailer, Version};

/// Rows as a lookup reads them.
pub trait Rows: Copy + Send + Sync {
    /// Words of a row.
    fn row_words(&self) -> usize;

    /// The first entry of `row`, from slot `from` on, that holds or may hold the key. Safe on unverified words.
    fn find(&self, row: &[u64], probe: &Probe<'_>, from: usize) -> Option<Candidate>;

    /// Whether the sample `words` of `row` is whole.
    ///
    /// # Errors
    /// It is not.
    fn verify(&self, row: RowId, words: &[u64]) -> Result<(), Torn>;

    /// The version of a sampled row.
    fn version(&self, row: &[u64]) -> Version;

    /// Appends the value of the inline entry `slot` to `into`.
    fn append_inline_value(&self, row: &[u64], slot: usize, into: &mut Vec<u8>);

    /// What the extent entry `slot`, which [`Rows::find`] found, refers to.
    fn extent_of(&self, row: &[u64], slot: usize) -> ExtentRef;
}

impl Rows for RowFormat {
    #[inline(always)]
    fn row_words(&self) -> usize {
        self.row_words()
    }

    #[inline(always)]
    fn find(&self, row: &[u64], probe: &Probe<'_>, from: usize) -> Option<Candidate> {
        self.find(row, probe, from)
    }

    #[inline(always)]
    fn verify(&self, row: RowId, words: &[u64]) -> Result<(), Torn> {
        self.verify(row, words)
    }

    #[inline(always)]
    fn version(&self, row: &[u64]) -> Version {
        self.trailer(row).version()
    }

    #[inline(always)]
    fn append_inline_value(&self, row: &[u64], slot: usize, into: &mut Vec<u8>) {
        self.append_inline_value(row, slot, into);
    }

    #[inline(always)]
    fn extent_of(&self, row: &[u64], slot: usize) -> ExtentRef {
        self.extent_of(row, slot)
    }
}

/// Rows of `ENTRIES` entries of `ENTRY_WORDS` words, half key and half value, in `ROW_WORDS` words with XXH3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedRows<const ENTRY_WORDS: usize, const ENTRIES: usize, const ROW_WORDS: usize> {
    seed: u64,
}

/// Rows of `fixed:4:4` in 64 bytes.
pub type Rows4x4 = FixedRows<1, 6, 8>;
/// Rows of `fixed:8:8` in 128 bytes.
pub type Rows8x8 = FixedRows<2, 7, 16>;

/// A table's rows, as specially as they can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowShape {
    /// Rows of `fixed:4:4` in 64 bytes.
    Fixed4x4(Rows4x4),
    /// Rows of `fixed:8:8` in 128 bytes.
    Fixed8x8(Rows8x8),
    /// All others.
    General,
}

impl RowFormat {
    /// Whether there is a faster way to look keys up in rows of this format.
    pub fn shape(&self) -> RowShape {
        Rows4x4::of(self)
            .map(RowShape::Fixed4x4)
            .or_else(|| Rows8x8::of(self).map(RowShape::Fixed8x8))
            .unwrap_or(RowShape::General)
    }
}

impl<const ENTRY_WORDS: usize, const ENTRIES: usize, const ROW_WORDS: usize>
    FixedRows<ENTRY_WORDS, ENTRIES, ROW_WORDS>
{
    /// Bytes of a key, and of a value.
    const HALF_BYTES: usize = ENTRY_WORDS * 4;
    const TRAILER_WORD: usize = ROW_WORDS - 2;

    fn of(format: &RowFormat) -> Option<Self> {
        const { assert!(ENTRY_WORDS == 1 || ENTRY_WORDS == 2) };
        const { assert!(ENTRY_WORDS * ENTRIES <= Self::TRAILER_WORD) };
        let half = Self::HALF_BYTES as u16;
        let fits = format.format == EntryFormat::Fixed { key_bytes: half, value_bytes: half }
            && format.entries() == ENTRIES
            && format.row_words() == ROW_WORDS
            && format.checksum_kind() == ChecksumKind::Xxh3;
        fits.then(|| FixedRows { seed: format.seed() })
    }
}

impl<const ENTRY_WORDS: usize, const ENTRIES: usize, const ROW_WORDS: usize> Rows
    for FixedRows<ENTRY_WORDS, ENTRIES, ROW_WORDS>
{
    #[inline(always)]
    fn row_words(&self) -> usize {
        ROW_WORDS
    }

    /// Compares all entries without a branch: a mispredicted one would keep the processor from starting the next
    /// lookup while this one waits for memory.
    #[inline(always)]
    fn find(&self, row: &[u64], probe: &Probe<'_>, from: usize) -> Option<Candidate> {
        let row: &[u64; ROW_WORDS] = row.try_into().ok()?;
        let mut hits = 0;
        for slot in 0..ENTRIES {
            let differs = row[slot * ENTRY_WORDS] ^ probe.first();
            let differs = if ENTRY_WORDS == 1 { differs << 32 } else { differs };
            hits |= u64::from(differs == 0) << slot;
        }
        hits &= Trailer(row[Self::TRAILER_WORD]).occupancy() & (!0 << from);
        (hits != 0).then(|| Candidate::Inline(hits.trailing_zeros() as usize))
    }

    #[inline(always)]
    fn verify(&self, row: RowId, words: &[u64]) -> Result<(), Torn> {
        let torn = Torn { row };
        let words: &[u64; ROW_WORDS] = words.try_into().map_err(|_| torn)?;
        let sum = ChecksumKind::Xxh3.checksum(&words[..ROW_WORDS - 1], seed_of_row(self.seed, row));
        if sum == words[ROW_WORDS - 1] { Ok(()) } else { Err(torn) }
    }

    #[inline(always)]
    fn version(&self, row: &[u64]) -> Version {
        Trailer(row[Self::TRAILER_WORD]).version()
    }

    #[inline(always)]
    fn append_inline_value(&self, row: &[u64], slot: usize, into: &mut Vec<u8>) {
        let entry = &row[slot * ENTRY_WORDS..][..ENTRY_WORDS];
        if ENTRY_WORDS == 1 {
            into.extend_from_slice(&((entry[0] >> 32) as u32).to_le_bytes());
        } else {
            into.extend_from_slice(&entry[1].to_le_bytes());
        }
    }

    /// Rows of fixed formats refer to no extents, and [`Rows::find`] never says so.
    #[cold]
    fn extent_of(&self, _row: &[u64], _slot: usize) -> ExtentRef {
        unreachable!("an entry of a fixed format is inline")
    }
}
