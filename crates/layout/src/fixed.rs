//! The row interface of a lookup, and its two implementations with a layout known at compile time.
//!
//! A lookup is written once, over [`Rows`]. [`RowFormat`] implements it for every table, with branches on the geometry;
//! [`FixedRows`] implements it for `fixed:4:4` and `fixed:8:8` rows of the hardened geometry, where every length is a
//! constant and the lookup becomes straight-line code. Both read the same bytes in the same way: a test compares them.

use std::fmt::Debug;
use std::hint::select_unpredictable;

use crate::bytes::word_of;
use crate::config::EntryFormat;
use crate::{Candidate, ChecksumKind, ExtentRef, Probe, RowFormat, RowId, Sums, Torn, Trailer, Version};

/// Row access for lookups.
pub trait Rows: Copy + Send + Sync {
    /// A key prepared for lookups.
    type Probe<'k>: Copy + Send;
    /// The result of finding a key in a sampled row.
    type Hit: Copy + Debug + Send;

    /// Returns the number of words of a row.
    fn row_words(&self) -> usize;

    /// Whether a key of `bytes` bytes can be stored.
    fn accepts_key(&self, bytes: usize) -> bool;

    /// Prepares a key of an accepted length, whose digest is `digest`, for lookups.
    fn probe<'k>(&self, key: &'k [u8], digest: u64) -> Self::Probe<'k>;

    /// Finds the key in `row`, skipping the extents in `rejected`, which hold other keys. Safe on unverified words, for
    /// which the result means nothing.
    fn seek(&self, row: &[u64], probe: &Self::Probe<'_>, rejected: &[ExtentRef]) -> Option<Self::Hit>;

    /// Checks that the sample `words` of `row` is whole, by the checksums of its table.
    ///
    /// # Errors
    /// The row is torn or damaged.
    fn verify(&self, sums: &Sums, row: RowId, words: &[u64]) -> Result<(), Torn>;

    /// Returns the version of a sampled row.
    fn version(&self, row: &[u64]) -> Version;

    /// Returns the extent that the hit refers to, unless its value is in the row.
    fn extent_of(&self, row: &[u64], hit: &Self::Hit) -> Option<ExtentRef>;

    /// Appends the value of a hit that has no extent to `into`.
    fn append_value(&self, row: &[u64], hit: &Self::Hit, into: &mut Vec<u8>);
}

impl Rows for &RowFormat {
    type Probe<'k> = Probe<'k>;
    type Hit = Candidate;

    #[inline(always)]
    fn row_words(&self) -> usize {
        RowFormat::row_words(self)
    }

    #[inline(always)]
    fn accepts_key(&self, bytes: usize) -> bool {
        RowFormat::accepts_key(self, bytes)
    }

    #[inline(always)]
    fn probe<'k>(&self, key: &'k [u8], digest: u64) -> Probe<'k> {
        RowFormat::probe(self, key, digest)
    }

    #[inline(always)]
    fn seek(&self, row: &[u64], probe: &Probe<'_>, rejected: &[ExtentRef]) -> Option<Candidate> {
        let mut from = 0;
        loop {
            let candidate = self.find(row, probe, from)?;
            match candidate {
                Candidate::Extent(index) if rejected.contains(&RowFormat::extent_of(self, row, index)) => {
                    from = index + 1
                }
                _ => return Some(candidate),
            }
        }
    }

    #[inline(always)]
    fn verify(&self, _sums: &Sums, row: RowId, words: &[u64]) -> Result<(), Torn> {
        RowFormat::verify(self, row, words)
    }

    #[inline(always)]
    fn version(&self, row: &[u64]) -> Version {
        self.trailer(row).version()
    }

    #[inline(always)]
    fn extent_of(&self, row: &[u64], hit: &Candidate) -> Option<ExtentRef> {
        match hit {
            Candidate::Inline(_) => None,
            Candidate::Extent(index) => Some(RowFormat::extent_of(self, row, *index)),
        }
    }

    #[inline(always)]
    fn append_value(&self, row: &[u64], hit: &Candidate, into: &mut Vec<u8>) {
        let (Candidate::Inline(index) | Candidate::Extent(index)) = hit;
        self.append_inline_value(row, *index, into);
    }
}

/// Rows of `ENTRIES` entries of `ENTRY_WORDS` words, half key and half value, in `ROW_WORDS` words with NH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedRows<const ENTRY_WORDS: usize, const ENTRIES: usize, const ROW_WORDS: usize> {
    /// Private, so that a value exists only for tables with such rows.
    _checked: (),
}

/// Rows of `fixed:4:4` in 64 bytes.
pub type Rows4x4 = FixedRows<1, 6, 8>;
/// Rows of `fixed:8:8` in 128 bytes.
pub type Rows8x8 = FixedRows<2, 7, 16>;

/// The fastest [`Rows`] implementation for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowShape {
    /// Rows of `fixed:4:4` in 64 bytes.
    Fixed4x4(Rows4x4),
    /// Rows of `fixed:8:8` in 128 bytes.
    Fixed8x8(Rows8x8),
    /// All other rows.
    General,
}

impl RowFormat {
    /// Returns the fastest implementation of lookups in rows of this format.
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
    /// Length of a key, and of a value, in bytes.
    const HALF_BYTES: usize = ENTRY_WORDS * 4;
    const TRAILER_WORD: usize = ROW_WORDS - 2;

    fn of(format: &RowFormat) -> Option<Self> {
        const { assert!(ENTRY_WORDS == 1 || ENTRY_WORDS == 2) };
        const { assert!(ENTRY_WORDS * ENTRIES <= Self::TRAILER_WORD) };
        let half = Self::HALF_BYTES as u16;
        let fits = format.format == EntryFormat::Fixed { key_bytes: half, value_bytes: half }
            && format.entries() == ENTRIES
            && format.row_words() == ROW_WORDS
            && format.sums().kind() == ChecksumKind::Nh;
        fits.then_some(FixedRows { _checked: () })
    }
}

impl<const ENTRY_WORDS: usize, const ENTRIES: usize, const ROW_WORDS: usize>
    FixedRows<ENTRY_WORDS, ENTRIES, ROW_WORDS>
{
    /// Whether the entry that starts with `word` has `key`.
    #[inline(always)]
    fn has_key(word: u64, key: u64) -> bool {
        let differs = word ^ key;
        (if ENTRY_WORDS == 1 { differs << 32 } else { differs }) == 0
    }

    /// Returns the value in `entry`.
    #[inline(always)]
    fn value(entry: &[u64]) -> u64 {
        if ENTRY_WORDS == 1 { entry[0] >> 32 } else { entry[1] }
    }

    /// Finds the all-zero key. Free entries are zeros, too: only the occupancy tells them apart.
    #[cold]
    fn seek_zero_key(row: [u64; ROW_WORDS]) -> Option<u64> {
        let occupancy = Trailer(row[Self::TRAILER_WORD]).occupancy();
        let entry = |index: usize| &row[index * ENTRY_WORDS..][..ENTRY_WORDS];
        let is_hit = |index: &usize| Self::has_key(entry(*index)[0], 0) && occupancy >> index & 1 != 0;
        (0..ENTRIES).find(is_hit).map(|index| Self::value(entry(index)))
    }
}

impl<const ENTRY_WORDS: usize, const ENTRIES: usize, const ROW_WORDS: usize> Rows
    for FixedRows<ENTRY_WORDS, ENTRIES, ROW_WORDS>
{
    /// The key.
    type Probe<'k> = u64;
    /// The value.
    type Hit = u64;

    #[inline(always)]
    fn row_words(&self) -> usize {
        ROW_WORDS
    }

    #[inline(always)]
    fn accepts_key(&self, bytes: usize) -> bool {
        bytes == Self::HALF_BYTES
    }

    #[inline(always)]
    fn probe(&self, key: &[u8], _digest: u64) -> u64 {
        match key.len() {
            4 | 8 => word_of(key),
            // Not reached: such keys are not accepted.
            _ => 0,
        }
    }

    /// Compares all entries without a branch or a variable index, so that the sample stays in registers. A mispredicted
    /// branch would keep the processor from starting the next lookup while this one waits for memory.
    #[inline(always)]
    fn seek(&self, row: &[u64], key: &u64, _rejected: &[ExtentRef]) -> Option<u64> {
        let row: &[u64; ROW_WORDS] = row.try_into().ok()?;
        if *key == 0 {
            return Self::seek_zero_key(*row);
        }
        let entries = row[..ENTRIES * ENTRY_WORDS].chunks_exact(ENTRY_WORDS).enumerate();
        let (index, value) = entries.rev().fold((ENTRIES, 0), |(found, value), (index, entry)| {
            let is_hit = Self::has_key(entry[0], *key);
            (select_unpredictable(is_hit, index, found), select_unpredictable(is_hit, Self::value(entry), value))
        });
        // Damaged rows may have more bits. A check that the index is in range would be a branch.
        let occupancy = Trailer(row[Self::TRAILER_WORD]).occupancy() & ((1 << ENTRIES) - 1);
        (occupancy >> index & 1 != 0).then_some(value)
    }

    #[inline(always)]
    fn verify(&self, sums: &Sums, row: RowId, words: &[u64]) -> Result<(), Torn> {
        let torn = Torn { row };
        let words: &[u64; ROW_WORDS] = words.try_into().map_err(|_| torn)?;
        let sum = sums.nh_row(row, &words[..ROW_WORDS - 1]);
        if sum == words[ROW_WORDS - 1] { Ok(()) } else { Err(torn) }
    }

    #[inline(always)]
    fn version(&self, row: &[u64]) -> Version {
        Trailer(row[Self::TRAILER_WORD]).version()
    }

    #[inline(always)]
    fn extent_of(&self, _row: &[u64], _hit: &u64) -> Option<ExtentRef> {
        None
    }

    #[inline(always)]
    fn append_value(&self, _row: &[u64], hit: &u64, into: &mut Vec<u8>) {
        into.extend_from_slice(&hit.to_le_bytes()[..Self::HALF_BYTES]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::tests::row_format;
    use crate::{EntryKind, Preset};

    /// Looks `key` up in `words` with both implementations and compares the results. In a row that does not verify the
    /// results mean nothing and may differ.
    fn agree<R: Rows>(general: &RowFormat, fixed: R, words: &[u64], key: &[u8]) -> Result<(), TestCaseError> {
        for row in [RowId(3), RowId(4)] {
            prop_assert_eq!(general.verify(row, words), fixed.verify(general.sums(), row, words));
        }
        let by_fixed = fixed.seek(words, &fixed.probe(key, 0), &[]);
        let by_general = general.seek(words, &general.probe(key, 0), &[]);
        prop_assert_eq!(Rows::version(&general, words), fixed.version(words));
        if fixed.verify(general.sums(), RowId(3), words).is_err() {
            return Ok(());
        }
        prop_assert_eq!(by_general.is_some(), by_fixed.is_some());
        if let (Some(by_general), Some(by_fixed)) = (by_general, by_fixed) {
            prop_assert_eq!(fixed.extent_of(words, &by_fixed), None);
            let (mut one, mut other) = (Vec::new(), Vec::new());
            general.append_value(words, &by_general, &mut one);
            fixed.append_value(words, &by_fixed, &mut other);
            prop_assert_eq!(one, other);
        }
        Ok(())
    }

    fn compare(format: &str, keys: &[u64], occupied: u64, noise: Option<(usize, u64)>) -> Result<(), TestCaseError> {
        let general = row_format(Preset::Hardened, format);
        let key_bytes = general.entry_words() * 4;
        let mut words = vec![0; general.row_words()];
        general.format(RowId(3), &mut words);
        let mut entry = vec![0; general.entry_words()];
        for index in (0..general.entries()).filter(|index| occupied >> index & 1 != 0) {
            let key = keys[index].to_le_bytes();
            general.encode_inline(&mut entry, &general.probe(&key[..key_bytes], 0), &[index as u8; 8][..key_bytes]);
            general.put_entry(&mut words, index, &entry, EntryKind::Inline);
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
                RowShape::General => prop_assert!(false, "{} has a fixed shape", format),
            }
        }
        Ok(())
    }

    proptest! {
        /// [R-READ-1] Both implementations agree on every row, with all-zero keys, free entries and damage. The keys of
        /// a row differ, as in any row a client writes.
        #[test]
        fn fixed_and_general_rows_agree(
            keys in proptest::sample::subsequence((0..16u64).map(|i| i * 0x0101_0101_0101_0101).collect::<Vec<_>>(), 7)
                .prop_shuffle(),
            occupied in 0u64..128,
            noise in proptest::option::of((0usize..16, any::<u64>())),
        ) {
            for format in ["fixed:4:4", "fixed:8:8"] {
                let same_entry = noise.filter(|(word, _)| *word >= 14);
                compare(format, &keys, occupied, None)?;
                compare(format, &keys, occupied, same_entry)?;
            }
        }
    }

    /// An all-zero key is found behind free entries, which are all zero as well.
    #[test]
    fn free_entries_do_not_hide_the_zero_key() {
        for (format, entries) in [("fixed:4:4", 6), ("fixed:8:8", 7)] {
            for index in 0..entries {
                let mut keys = [1, 2, 3, 4, 5, 6, 7];
                keys[index] = 0;
                compare(format, &keys, 1 << index, None).expect("both find it");
            }
        }
    }

    /// Other geometries and checksums use the general implementation.
    #[test]
    fn other_formats_use_the_general_shape() {
        for (preset, format) in
            [(Preset::Hardened, "fixed:8:16"), (Preset::Hardened, "bytes:64"), (Preset::Paper, "fixed:4:4")]
        {
            assert_eq!(row_format(preset, format).shape(), RowShape::General, "{preset} {format}");
        }
    }
}
