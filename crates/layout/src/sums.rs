//! Checksums of one table's rows, extents and redo records, with the keys derived from its secret.

use crate::sum::{Level, NhKeys};
use guira_fabric::memory::Word;

use crate::extent::CopyBlock;
use crate::row::seed_of_row;
use crate::{ChecksumKind, RowId, Superblock};

/// Checksum functions of one table. [R-ROW-1]
#[derive(Clone, Debug)]
pub struct Sums {
    kind: ChecksumKind,
    seed: u64,
    keys: NhKeys,
}

impl Sums {
    /// Makes the checksum functions of the table that `superblock` describes. Expanding its secret takes some
    /// microseconds.
    pub fn new(superblock: &Superblock) -> Sums {
        let (kind, seed) = (superblock.config.checksum, superblock.checksum_seed());
        Sums { kind, seed, keys: NhKeys::new(superblock.secret.0) }
    }

    /// Returns the kind of the checksum of rows.
    pub fn kind(&self) -> ChecksumKind {
        self.kind
    }

    /// Computes the checksum of `row` over `words`, the words in front of the checksum.
    #[inline(always)]
    pub(crate) fn row(&self, row: RowId, words: &[u64]) -> u64 {
        let seed = seed_of_row(self.seed, row);
        if self.kind == ChecksumKind::Nh {
            // Rows of `fixed:4:4` and `fixed:8:8` need no loop and two thirds of the instructions.
            if let Ok(words) = <&[u64; 15]>::try_from(words) {
                return crate::sum::nh(&self.keys, words, seed);
            }
            if let Ok(words) = <&[u64; 7]>::try_from(words) {
                return crate::sum::nh(&self.keys, words, seed);
            }
        }
        self.any(words, seed)
    }

    /// Computes the checksum for any row. Not inlined: it would make the fixed rows above save registers.
    #[inline(never)]
    fn any(&self, words: &[u64], seed: u64) -> u64 {
        self.kind.checksum(&self.keys, words, seed)
    }

    /// Computes the NH checksum of `row` over `words`, the words in front of the checksum. The number of words is a
    /// constant at each call.
    #[inline(always)]
    pub(crate) fn nh_row(&self, row: RowId, words: &[u64]) -> u64 {
        crate::sum::nh(&self.keys, words, seed_of_row(self.seed, row))
    }

    /// Computes the NH checksum of the extent at `offset`: of `words`, which follow its header, with a seed made from
    /// `header`, the words in front of the checksum.
    pub(crate) fn extent(&self, offset: u64, header: [u64; 2], words: &[u64]) -> u64 {
        crate::sum::nh(&self.keys, words, self.seed_of_extent(offset, header))
    }

    /// Same as [`Sums::extent`], of words that are copied through `block` meanwhile: [`crate::sum::nh_copying`].
    #[inline(always)]
    pub(crate) fn copied_extent<W: Word>(
        &self,
        offset: u64,
        header: [u64; 2],
        words: &[W],
        block: &mut CopyBlock,
        copied: impl FnMut(&[u64]),
    ) -> u64 {
        let seed = self.seed_of_extent(offset, header);
        crate::sum::nh_copying(&self.keys, words, W::load, W::prefetch, seed, block, copied)
    }

    /// Same as [`Sums::extent`], of `len` words that `next` makes in `block` meanwhile: [`crate::sum::nh_making`].
    #[inline(always)]
    pub(crate) fn made_extent(
        &self,
        offset: u64,
        header: [u64; 2],
        len: usize,
        block: &mut CopyBlock,
        next: impl FnMut(&mut [u64]),
    ) -> u64 {
        crate::sum::nh_making(&self.keys, len, self.seed_of_extent(offset, header), block, next)
    }

    #[inline(always)]
    fn seed_of_extent(&self, offset: u64, header: [u64; 2]) -> u64 {
        crate::sum::nh_at(&self.keys, Level::Last, &header, self.seed ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Computes the NH checksum of a record: of `first`, the words in front of the seal, with a seed made from
    /// `further`, the words behind it, and the sequence number.
    #[inline(always)]
    pub(crate) fn record(&self, first: &[u64], further: &[u64], sequence: u32) -> u64 {
        let seed = u64::from(sequence);
        let seed = if further.is_empty() { seed } else { crate::sum::nh_at(&self.keys, Level::Second, further, seed) };
        crate::sum::nh_or_zero(&self.keys, first, seed)
    }
}
