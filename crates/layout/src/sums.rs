//! The checksums of one table's rows and redo records, with the keys that belong to its secret.

use guira_sum::{Level, NhKeys};

use crate::row::seed_of_row;
use crate::{ChecksumKind, RowId, Superblock};

/// The checksums of one table. [R-ROW-1]
#[derive(Clone, Debug)]
pub struct Sums {
    kind: ChecksumKind,
    seed: u64,
    keys: NhKeys,
}

impl Sums {
    /// Those of the table `superblock` describes. Expands its secret: some microseconds.
    pub fn new(superblock: &Superblock) -> Sums {
        let (kind, seed) = (superblock.config.checksum, superblock.checksum_seed());
        Sums { kind, seed, keys: NhKeys::new(superblock.secret.0) }
    }

    /// The checksum of rows.
    pub fn kind(&self) -> ChecksumKind {
        self.kind
    }

    /// The checksum of `row`, whose words in front of it are `words`.
    #[inline(always)]
    pub(crate) fn row(&self, row: RowId, words: &[u64]) -> u64 {
        let seed = seed_of_row(self.seed, row);
        if self.kind == ChecksumKind::Nh {
            // Rows of `fixed:4:4` and `fixed:8:8`: without a loop, in two thirds of the instructions.
            if let Ok(words) = <&[u64; 15]>::try_from(words) {
                return guira_sum::nh(&self.keys, words, seed);
            }
            if let Ok(words) = <&[u64; 7]>::try_from(words) {
                return guira_sum::nh(&self.keys, words, seed);
            }
        }
        self.any(words, seed)
    }

    /// Not inlined: the rows above would save registers for it.
    #[inline(never)]
    fn any(&self, words: &[u64], seed: u64) -> u64 {
        self.kind.checksum(&self.keys, words, seed)
    }

    /// NH of the words of `row` in front of its checksum, whose number the compiler knows.
    #[inline(always)]
    pub(crate) fn nh_row(&self, row: RowId, words: &[u64]) -> u64 {
        guira_sum::nh(&self.keys, words, seed_of_row(self.seed, row))
    }

    /// NH of the words of the extent at `offset` behind its header, under a seed made of those in front of its
    /// checksum.
    pub(crate) fn extent(&self, offset: u64, header: &[u64], words: &[u64]) -> u64 {
        let seed = self.seed ^ offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        guira_sum::nh(&self.keys, words, guira_sum::nh_at(&self.keys, Level::Last, header, seed))
    }

    /// NH of a record's words: those in front of the seal, under a seed made of those behind it and the sequence
    /// number.
    #[inline(always)]
    pub(crate) fn record(&self, first: &[u64], further: &[u64], sequence: u32) -> u64 {
        let seed = u64::from(sequence);
        let seed = if further.is_empty() { seed } else { guira_sum::nh_at(&self.keys, Level::Second, further, seed) };
        guira_sum::nh_or_zero(&self.keys, first, seed)
    }
}
