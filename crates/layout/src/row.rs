//! Rows: entries, padding, and the trailer that makes a sampled row trustworthy.
//!
//! The last two words of a row are its trailer: word 0 holds version (32 bits), level (4), occupancy (14) and entry
//! types (14); word 1 is the checksum of everything before it, seeded with table, incarnation and row number. A row of
//! zeros, a row of another table, another incarnation or another place never verifies. Entry i occupies `entry_words`
//! words from word i x `entry_words`; an all-zero key is legal because occupancy is not told by key bits.

use guira_fabric::WORD_BYTES;

use crate::config::{EntryFormat, MAX_ROW_BYTES, TRAILER_BYTES};
use crate::{RowId, Sums, Superblock, TableState, Version};

/// Words of a row, at most.
pub const MAX_ROW_WORDS: usize = MAX_ROW_BYTES as usize / WORD_BYTES as usize;

const TRAILER_WORDS: usize = TRAILER_BYTES as usize / WORD_BYTES as usize;
const LEVEL_SHIFT: u32 = 32;
const OCCUPANCY_SHIFT: u32 = 36;
const TYPES_SHIFT: u32 = 50;
const ENTRY_BITS: u64 = (1 << 14) - 1;

const _: () =
    assert!(TYPES_SHIFT + 14 == 64 && OCCUPANCY_SHIFT + 14 == TYPES_SHIFT && LEVEL_SHIFT + 4 == OCCUPANCY_SHIFT);
const _: () = assert!(crate::config::MAX_ENTRIES_PER_ROW == 14);

/// The trailer that destroying a table leaves in each of its rows, so that no lookup finds anything there any more: as
/// good as never the checksum of a row, nor a trailer word of one, whose level is small. [R-DESTROY-2]
pub const DESTROYED_TRAILER: [u64; TRAILER_WORDS] = [TableState::Destroyed.encode(); TRAILER_WORDS];

/// A sampled row's checksum does not match its words: it was read while being written, or it is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The row.
    pub row: RowId,
}

/// The first trailer word, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer(pub u64);

impl Trailer {
    /// The row's version.
    pub fn version(self) -> Version {
        Version(self.0 as u32)
    }

    /// How often the table has doubled since this row was last split.
    pub fn level(self) -> u8 {
        (self.0 >> LEVEL_SHIFT & 0xf) as u8
    }

    /// Bit i: entry i is occupied.
    #[inline(always)]
    pub fn occupancy(self) -> u64 {
        self.0 >> OCCUPANCY_SHIFT & ENTRY_BITS
    }

    /// Bit i: entry i refers to an extent.
    #[inline(always)]
    pub fn extents(self) -> u64 {
        self.0 >> TYPES_SHIFT & ENTRY_BITS
    }

    /// The same trailer with index `slot` occupied, inline or by an extent.
    pub fn with_entry(self, index: usize, extent: EntryKind) -> Trailer {
        let types = match extent {
            EntryKind::Inline => self.extents() & !(1 << index),
            EntryKind::Extent => self.extents() | 1 << index,
        };
        self.with_bits(self.occupancy() | 1 << index, types)
    }

    /// The same trailer with index `slot` free.
    pub fn without_entry(self, index: usize) -> Trailer {
        self.with_bits(self.occupancy() & !(1 << index), self.extents() & !(1 << index))
    }

    fn with_bits(self, occupancy: u64, extents: u64) -> Trailer {
        let kept = self.0 & ((1 << OCCUPANCY_SHIFT) - 1);
        Trailer(kept | (occupancy & ENTRY_BITS) << OCCUPANCY_SHIFT | (extents & ENTRY_BITS) << TYPES_SHIFT)
    }

    fn next_version(self, version_bits: u32) -> Trailer {
        let next = self.version().0.wrapping_add(1) & version_mask(version_bits);
        Trailer(self.0 & !0xffff_ffff | u64::from(next))
    }
}

fn version_mask(version_bits: u32) -> u32 {
    if version_bits >= 32 { u32::MAX } else { (1 << version_bits) - 1 }
}

/// Where an entry's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// In the row.
    Inline,
    /// In an extent the row refers to.
    Extent,
}

/// The seed of a row's checksum. Spread over the table's seed, because that may differ from another table's in a few
/// low bits only.
#[inline(always)]
pub(crate) fn seed_of_row(seed: u64, row: RowId) -> u64 {
    seed ^ (row.0 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// How the rows of one table are read and written.
#[derive(Clone, Debug)]
pub struct RowFormat {
    pub(crate) format: EntryFormat,
    entries: usize,
    entry_words: usize,
    row_words: usize,
    version_bits: u32,
    sums: Sums,
}

impl RowFormat {
    /// The rows of the table `superblock` describes.
    pub fn new(superblock: &Superblock) -> RowFormat {
        let config = &superblock.config;
        RowFormat {
            format: config.format,
            entries: usize::from(config.entries_per_row),
            entry_words: config.format.entry_words(),
            row_words: config.row_bytes as usize / WORD_BYTES as usize,
            version_bits: u32::from(config.version_bits),
            sums: Sums::new(superblock),
        }
    }

    /// Words of a row.
    #[inline(always)]
    pub fn row_words(&self) -> usize {
        self.row_words
    }

    /// Entries of a row.
    #[inline(always)]
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Words of an entry.
    #[inline(always)]
    pub fn entry_words(&self) -> usize {
        self.entry_words
    }

    /// How entries are stored.
    pub fn entry_format(&self) -> EntryFormat {
        self.format
    }

    /// The index of the trailer's first word in a row.
    #[inline(always)]
    pub fn trailer_word(&self) -> usize {
        self.row_words - TRAILER_WORDS
    }

    /// The first trailer word of a sampled row.
    #[inline(always)]
    pub fn trailer(&self, row: &[u64]) -> Trailer {
        Trailer(row[self.trailer_word()])
    }

    /// Bit i: entry i is occupied. Bits beyond the row's entries are never set, not even in a damaged row.
    #[inline(always)]
    pub fn occupancy(&self, row: &[u64]) -> u64 {
        self.trailer(row).occupancy() & self.all_entries()
    }

    /// The occupied slots of a row, in order.
    pub fn occupied_entries(&self, row: &[u64]) -> impl Iterator<Item = usize> + use<> {
        let occupancy = self.occupancy(row);
        (0..self.entries).filter(move |index| occupancy >> index & 1 != 0)
    }

    /// Whether a sampled row says that its table was destroyed. The superblock has the last word. [R-DESTROY-2]
    pub fn is_destroyed(&self, row: &[u64]) -> bool {
        row[self.trailer_word()..] == DESTROYED_TRAILER
    }

    /// The lowest free index of a row.
    #[inline(always)]
    pub fn free_entry(&self, row: &[u64]) -> Option<usize> {
        let free = !self.occupancy(row) & self.all_entries();
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    /// How many entries of a row are occupied whose trailer starts with the word `trailer`.
    pub fn occupied_by(&self, trailer: u64) -> u32 {
        (Trailer(trailer).occupancy() & self.all_entries()).count_ones()
    }

    /// How many entries of a row are occupied.
    pub fn occupied(&self, row: &[u64]) -> u32 {
        self.occupancy(row).count_ones()
    }

    #[inline(always)]
    pub(crate) fn all_entries(&self) -> u64 {
        (1 << self.entries) - 1
    }

    /// Entry `slot` of a row.
    #[inline(always)]
    pub fn entry<'r>(&self, row: &'r [u64], index: usize) -> &'r [u64] {
        &row[index * self.entry_words..][..self.entry_words]
    }

    #[inline(always)]
    pub(crate) fn entry_mut<'r>(&self, row: &'r mut [u64], index: usize) -> &'r mut [u64] {
        &mut row[index * self.entry_words..][..self.entry_words]
    }

    /// Where the value of the occupied entry `slot` is.
    pub fn entry_kind(&self, row: &[u64], index: usize) -> EntryKind {
        // A damaged row of a format without extents may have the bit set.
        let extent = self.format.has_extents() && self.trailer(row).extents() & 1 << index != 0;
        if extent { EntryKind::Extent } else { EntryKind::Inline }
    }

    /// Whether the sample `words` of `row` is whole: written for this row of this table in this incarnation.
    /// [R-ROW-1]
    #[inline(always)]
    pub fn verify(&self, row: RowId, words: &[u64]) -> Result<(), Torn> {
        if self.checksum(row, words) == words[self.row_words - 1] { Ok(()) } else { Err(Torn { row }) }
    }

    /// Not inlined: it is as long as all that surrounds it.
    #[inline(never)]
    fn checksum(&self, row: RowId, words: &[u64]) -> u64 {
        self.sums.row(row, &words[..self.row_words - 1])
    }

    /// The table's checksums.
    #[inline(always)]
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Makes `words` an empty, valid row.
    pub fn format(&self, row: RowId, words: &mut [u64]) {
        words.fill(0);
        words[self.row_words - 1] = self.checksum(row, words);
    }

    /// Ends a change of `words`: the next version, and the checksum over it. // [R-ROW-2]
    pub fn finish(&self, row: RowId, words: &mut [u64]) {
        let trailer = self.trailer(words).next_version(self.version_bits);
        words[self.trailer_word()] = trailer.0;
        words[self.row_words - 1] = self.checksum(row, words);
    }

    /// The version that a row had before [`RowFormat::finish`] gave it the one in `trailer`.
    pub fn version_before(&self, trailer: Trailer) -> Version {
        Version(trailer.version().0.wrapping_sub(1) & version_mask(self.version_bits))
    }

    /// Makes `words` verify as they are, half written or not, and leaves the version alone: what the printed repair
    /// does, and nobody else. [R-REPAIR-7]
    pub fn rewrite_checksum(&self, row: RowId, words: &mut [u64]) {
        words[self.row_words - 1] = self.checksum(row, words);
    }

    /// Stores the words of an entry in index `slot`.
    ///
    /// # Panics
    /// If `entry` is not one entry long.
    pub fn put_entry(&self, words: &mut [u64], index: usize, entry: &[u64], placement: EntryKind) {
        self.entry_mut(words, index).copy_from_slice(entry);
        words[self.trailer_word()] = self.trailer(words).with_entry(index, placement).0;
    }

    /// Frees index `slot`, and zeroes it: nothing is left of what it held.
    pub fn clear_entry(&self, words: &mut [u64], index: usize) {
        self.entry_mut(words, index).fill(0);
        words[self.trailer_word()] = self.trailer(words).without_entry(index).0;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use guira_sum::NhKeys;
    use proptest::prelude::*;

    use super::*;
    use crate::{Preset, PresetOptions, Secret};

    pub(crate) fn row_format(preset: Preset, format: &str) -> RowFormat {
        RowFormat::new(&superblock(preset, format))
    }

    pub(crate) fn superblock(preset: Preset, format: &str) -> Superblock {
        let options = PresetOptions {
            capacity: 1_000,
            format: format.parse().unwrap(),
            extent_bytes: None,
            max_clients: None,
            hash_seed: 3,
            device_bytes: u64::MAX,
        };
        Superblock { incarnation: 5, table: 9, secret: Secret([1, 2, 3, 4]), config: preset.config(&options).unwrap() }
    }

    /// [R-ROW-1] Zeroed, misdirected, foreign, older and damaged rows do not verify.
    #[test]
    fn only_the_right_row_verifies() {
        for preset in Preset::ALL {
            for format in ["fixed:4:4", "fixed:8:8", "bytes:64"] {
                let row_format = row_format(preset, format);
                let mut words = vec![0; row_format.row_words()];
                assert!(row_format.verify(RowId(0), &words).is_err(), "a zeroed row");
                row_format.format(RowId(7), &mut words);
                row_format.verify(RowId(7), &words).unwrap();
                assert!(row_format.verify(RowId(8), &words).is_err(), "a misdirected row");
                let mut superblock = superblock(preset, format);
                superblock.incarnation += 1;
                let other = RowFormat::new(&superblock);
                assert!(other.verify(RowId(7), &words).is_err(), "another incarnation");
                for word in 0..words.len() {
                    for bit in [0, 1, 31, 32, 62, 63] {
                        words[word] ^= 1 << bit;
                        assert!(row_format.verify(RowId(7), &words).is_err(), "word {word} bit {bit}");
                        words[word] ^= 1 << bit;
                    }
                }
            }
        }
    }

    /// Words that make two rows alike to one who guesses `keys`: every other word cancels its key, wherever the format
    /// leaves its bytes to who writes, and so the word beside it may be anything.
    fn chosen(row_format: &RowFormat, keys: &NhKeys, fill: u64) -> Vec<u64> {
        let mut words = vec![0; row_format.row_words()];
        row_format.format(RowId(7), &mut words);
        for index in 0..row_format.entries() {
            let first = index * row_format.entry_words();
            let word = |i: usize| if i.is_multiple_of(2) { keys.key(i).wrapping_neg() } else { fill ^ i as u64 };
            let entry: Vec<u64> = (first..first + row_format.entry_words()).map(word).collect();
            row_format.put_entry(&mut words, index, &entry, EntryKind::Inline);
        }
        row_format.finish(RowId(7), &mut words);
        words
    }

    /// How many halves of rows that were chosen by `keys` verify: an old and a new row, cut at each word, from either
    /// end.
    fn halves_that_verify(row_format: &RowFormat, keys: &NhKeys, fills: [u64; 2]) -> usize {
        let [old, mut new] = fills.map(|fill| chosen(row_format, keys, fill));
        row_format.finish(RowId(7), &mut new);
        let cuts =
            (1..old.len()).flat_map(|cut| [[&old[..cut], &new[cut..]].concat(), [&new[..cut], &old[cut..]].concat()]);
        cuts.filter(|torn| *torn != old && *torn != new && row_format.verify(RowId(7), torn).is_ok()).count()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

        /// [R-ROW-1] Rows whose bytes were chosen by one who knows everything but the table's secret do not verify half
        /// written; by one who knows the secret, they do, so the choice is a good one.
        #[test]
        fn chosen_rows_do_not_verify_half_written(secret: [u64; 4], fills: [u64; 2]) {
            prop_assume!(fills[0] != fills[1] && secret != [0; 4]);
            for format in ["fixed:4:4", "fixed:8:8", "fixed:16:32", "bytes:64", "bytes:256"] {
                let mut superblock = superblock(Preset::Hardened, format);
                superblock.secret = Secret(secret);
                let row_format = RowFormat::new(&superblock);
                prop_assert_eq!(halves_that_verify(&row_format, &NhKeys::new([0; 4]), fills), 0, "{}", format);
                prop_assert!(halves_that_verify(&row_format, &NhKeys::new(secret), fills) > 0, "{}", format);
            }
        }
    }

    /// [R-DESTROY-2] A row of a destroyed table says so and does not verify, whatever is in it.
    #[test]
    fn destroyed_rows_do_not_verify() {
        for preset in Preset::ALL {
            for format in ["fixed:4:4", "fixed:8:8", "bytes:64"] {
                let row_format = row_format(preset, format);
                let mut words = vec![0; row_format.row_words()];
                row_format.format(RowId(7), &mut words);
                assert!(!row_format.is_destroyed(&words));
                let at = row_format.trailer_word();
                words[at..].copy_from_slice(&DESTROYED_TRAILER);
                assert!(row_format.is_destroyed(&words) && row_format.verify(RowId(7), &words).is_err());
                words[at] = 0;
                assert!(!row_format.is_destroyed(&words) && row_format.verify(RowId(7), &words).is_err());
            }
        }
    }

    /// [R-ROW-2] Each change has the next version; narrow versions wrap at their width.
    #[test]
    fn versions_grow_and_wrap() {
        let row_format = row_format(Preset::Paper, "fixed:4:4");
        let mut words = vec![0; row_format.row_words()];
        row_format.format(RowId(0), &mut words);
        for i in 1..=300u32 {
            row_format.finish(RowId(0), &mut words);
            assert_eq!(row_format.trailer(&words).version(), Version(i % 256));
            row_format.verify(RowId(0), &words).unwrap();
        }
    }

    #[test]
    fn entries_come_and_go() {
        let row_format = row_format(Preset::Hardened, "fixed:8:8");
        let mut words = vec![0; row_format.row_words()];
        row_format.format(RowId(0), &mut words);
        for index in 0..row_format.entries() {
            assert_eq!(row_format.free_entry(&words), Some(index));
            row_format.put_entry(&mut words, index, &[0, index as u64], EntryKind::Inline);
        }
        assert_eq!(row_format.free_entry(&words), None);
        row_format.clear_entry(&mut words, 3);
        assert_eq!(row_format.free_entry(&words), Some(3));
        assert_eq!(row_format.entry(&words, 3), [0, 0]);
        assert_eq!(row_format.occupied(&words), 6);
    }
}
