//! What a lookup needs of a row, and the two formats whose rows are known at compile time.
//!
//! A lookup is written once, over [`Rows`]. [`RowFormat`] answers for every table, branching on its geometry;
//! [`FixedRows`] answers for `fixed:4:4` and `fixed:8:8` rows of the hardened geometry, where every length is a
//! constant and the lookup becomes straight-line code. Both read the same bytes in the same way: a test compares them.

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
        // Damaged rows may have more bits.
        let occupancy = Trailer(row[Self::TRAILER_WORD]).occupancy() & ((1 << ENTRIES) - 1) & (!0 << from);
        let has_key = |slot: usize| {
            let differs = row[slot * ENTRY_WORDS] ^ probe.first();
            (if ENTRY_WORDS == 1 { differs << 32 } else { differs }) == 0
        };
        let first = (0..ENTRIES).rev().fold(ENTRIES, |found, slot| if has_key(slot) { slot } else { found });
        if occupancy >> first & 1 != 0 {
            return Some(Candidate::Inline(first));
        }
        // Keys of one row differ, but all free entries hold zeros: they hide an all-zero key.
        let hidden = (first + 1..ENTRIES).find(|slot| has_key(*slot) && occupancy >> slot & 1 != 0);
        hidden.map(Candidate::Inline)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::tests::row_format;
    use crate::{Placement, Preset};

    /// Looks `key` up in `words` by both, and compares what they say.
    fn agree<R: Rows>(general: &RowFormat, fixed: R, words: &[u64], key: &[u8]) -> Result<(), TestCaseError> {
        let probe = general.probe(key, 0);
        for from in 0..=general.entries() {
            let found = Rows::find(general, words, &probe, from);
            prop_assert_eq!(found, fixed.find(words, &probe, from));
            let Some(Candidate::Inline(slot)) = found else { continue };
            let (mut by_general, mut by_fixed) = (Vec::new(), Vec::new());
            Rows::append_inline_value(general, words, slot, &mut by_general);
            fixed.append_inline_value(words, slot, &mut by_fixed);
            prop_assert_eq!(by_general, by_fixed);
        }
        prop_assert_eq!(Rows::version(general, words), fixed.version(words));
        for row in [RowId(3), RowId(4)] {
            prop_assert_eq!(Rows::verify(general, row, words), fixed.verify(row, words));
        }
        Ok(())
    }

    fn compare(format: &str, keys: &[u64], occupied: u64, noise: Option<(usize, u64)>) -> Result<(), TestCaseError> {
        let general = row_format(Preset::Hardened, format);
        let key_bytes = general.entry_words() * 4;
        let mut words = vec![0; general.row_words()];
        general.format(RowId(3), &mut words);
        let mut entry = vec![0; general.entry_words()];
        for slot in (0..general.entries()).filter(|slot| occupied >> slot & 1 != 0) {
            let key = keys[slot].to_le_bytes();
            general.encode_inline(&mut entry, &general.probe(&key[..key_bytes], 0), &[slot as u8; 8][..key_bytes]);
            general.put_entry(&mut words, slot, &entry, Placement::Inline);
        }
        general.finish(RowId(3), &mut words);
        if let Some((word, bits)) = noise {
            let at = word % words.len();
            words[at] ^= bits;
        }
        for key in keys.iter().chain(&[0, 77]) {
            let key = &key.to_le_bytes()[..key_bytes];
            match general.shape() {
                RowShape::Fixed4x4(fixed) => agree(&general, fixed, &words, key)?,
                RowShape::Fixed8x8(fixed) => agree(&general, fixed, &words, key)?,
                RowShape::General => prop_assert!(false, "{} has a shape of its own", format),
            }
        }
        Ok(())
    }

    proptest! {
        /// [R-READ-1] Both readings of a row agree, all-zero keys, free entries and damage included. The keys of a row
        /// differ, as in any row a client writes.
        #[test]
        fn the_fixed_reading_is_the_general_one(
            keys in proptest::sample::subsequence((0..16u64).map(|i| i * 0x0101_0101_0101_0101).collect::<Vec<_>>(), 7),
            occupied in 0u64..128,
            noise in proptest::option::of((0usize..16, any::<u64>())),
        ) {
            for format in ["fixed:4:4", "fixed:8:8"] {
                let same_slot = noise.filter(|(word, _)| *word >= 14);
                compare(format, &keys, occupied, None)?;
                compare(format, &keys, occupied, same_slot)?;
            }
        }
    }

    /// Other geometries and checksums are read in general.
    #[test]
    fn other_formats_have_no_shape_of_their_own() {
        for (preset, format) in
            [(Preset::Hardened, "fixed:8:16"), (Preset::Hardened, "bytes:64"), (Preset::Paper, "fixed:4:4")]
        {
            assert_eq!(row_format(preset, format).shape(), RowShape::General, "{preset} {format}");
        }
    }
}
