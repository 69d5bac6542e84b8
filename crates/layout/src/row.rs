//! Rows: entries, padding, and the trailer, by which a sampled row is verified.
//!
//! The last two words of a row are its trailer: word 0 holds version (32 bits), level (4), occupancy (14) and entry
//! types (14), whose top 4 bits say in rows of at most 10 entries which entry the last change replaced; word 1 is the
//! checksum of everything before it, seeded with table, incarnation and row number. A row of zeros, of another table,
//! of another incarnation or with another row number never verifies. Entry i occupies `entry_words` words from word i x
//! `entry_words`; an all-zero key is legal, because occupancy has bits of its own.

use guira_fabric::WORD_BYTES;

use crate::config::{EntryFormat, MAX_ROW_BYTES, TRAILER_BYTES};
use crate::{RowId, Segments, Sums, Superblock, TableState, Version};

/// Maximum number of words of a row.
pub const MAX_ROW_WORDS: usize = MAX_ROW_BYTES as usize / WORD_BYTES as usize;

const TRAILER_WORDS: usize = TRAILER_BYTES as usize / WORD_BYTES as usize;
pub(crate) const LEVEL_SHIFT: u32 = 32;
const OCCUPANCY_SHIFT: u32 = 36;
const TYPES_SHIFT: u32 = 50;
const ENTRY_BITS: u64 = (1 << 14) - 1;
/// Position of the number of the replaced entry: behind the type bits of [`MAX_MARKED_ENTRIES`] entries.
pub(crate) const REPLACED_SHIFT: u32 = 60;
/// The largest number of entries of a row whose trailer has room for the number of a replaced entry.
pub(crate) const MAX_MARKED_ENTRIES: usize = 10;

const _: () =
    assert!(TYPES_SHIFT + 14 == 64 && OCCUPANCY_SHIFT + 14 == TYPES_SHIFT && LEVEL_SHIFT + 4 == OCCUPANCY_SHIFT);
const _: () = assert!(crate::config::MAX_ENTRIES_PER_ROW == 14);
const _: () = assert!(TYPES_SHIFT as usize + MAX_MARKED_ENTRIES == REPLACED_SHIFT as usize);
const _: () = assert!(MAX_MARKED_ENTRIES < 1 << (64 - REPLACED_SHIFT), "each entry has a number, and 0 is none");

/// Trailer that destroying a table leaves in each row, so that no lookup finds anything any more. Its word is
/// practically never the checksum of a row. [R-DESTROY-2]
pub const DESTROYED_TRAILER: [u64; TRAILER_WORDS] = [TableState::Destroyed.encode(); TRAILER_WORDS];

/// A sampled row's checksum does not match its words: the row was read while it was written, or it is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The row.
    pub row: RowId,
}

/// The first word of a trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer(pub u64);

impl Trailer {
    /// Returns the row's version.
    pub fn version(self) -> Version {
        Version(self.0 as u32)
    }

    /// Returns the level of the row's segment. [R-GROW-3]
    pub fn level(self) -> u8 {
        (self.0 >> LEVEL_SHIFT & 0xf) as u8
    }

    /// Returns the occupancy bits: bit i is set if entry i is occupied.
    #[inline(always)]
    pub fn occupancy(self) -> u64 {
        self.0 >> OCCUPANCY_SHIFT & ENTRY_BITS
    }

    /// Returns the type bits: bit i is set if entry i refers to an extent. In rows of at most 10 entries the top 4 of
    /// the 14 bits are [`RowFormat::replaced_entry`], not types.
    #[inline(always)]
    pub fn extents(self) -> u64 {
        self.0 >> TYPES_SHIFT & ENTRY_BITS
    }

    /// Returns the same trailer with entry `index` occupied by an entry of kind `kind`.
    pub fn with_entry(self, index: usize, kind: EntryKind) -> Trailer {
        let types = match kind {
            EntryKind::Inline => self.extents() & !(1 << index),
            EntryKind::Extent => self.extents() | 1 << index,
        };
        self.with_bits(self.occupancy() | 1 << index, types)
    }

    /// Returns the same trailer with entry `index` free.
    pub fn without_entry(self, index: usize) -> Trailer {
        self.with_bits(self.occupancy() & !(1 << index), self.extents() & !(1 << index))
    }

    pub(crate) fn with_bits(self, occupancy: u64, extents: u64) -> Trailer {
        let kept = self.0 & ((1 << OCCUPANCY_SHIFT) - 1);
        Trailer(kept | (occupancy & ENTRY_BITS) << OCCUPANCY_SHIFT | (extents & ENTRY_BITS) << TYPES_SHIFT)
    }

    #[inline(always)]
    fn next_version(self, version_bits: u32) -> Trailer {
        let next = self.version().0.wrapping_add(1) & version_mask(version_bits);
        Trailer(self.0 & !0xffff_ffff | u64::from(next))
    }
}

fn version_mask(version_bits: u32) -> u32 {
    if version_bits >= 32 { u32::MAX } else { (1 << version_bits) - 1 }
}

/// Kind of an occupied entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The entry holds key and value.
    Inline,
    /// The entry refers to an extent that holds them.
    Extent,
}

/// Returns the seed of a row's checksum. The row number is spread over all bits, because the seeds of two tables may
/// differ in a few low bits only.
#[inline(always)]
pub(crate) fn seed_of_row(seed: u64, row: RowId) -> u64 {
    seed ^ (row.0 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Format of the rows of one table: reads and writes them.
#[derive(Clone, Debug)]
pub struct RowFormat {
    pub(crate) format: EntryFormat,
    entries: usize,
    entry_words: usize,
    row_words: usize,
    version_bits: u32,
    pub(crate) segments: Option<Segments>,
    sums: Sums,
}

impl RowFormat {
    /// Makes the row format of the table that `superblock` describes.
    pub fn new(superblock: &Superblock) -> RowFormat {
        let config = &superblock.config;
        RowFormat {
            format: config.format,
            entries: usize::from(config.entries_per_row),
            entry_words: config.format.entry_words(),
            row_words: config.row_bytes as usize / WORD_BYTES as usize,
            version_bits: u32::from(config.version_bits),
            segments: Segments::of(config),
            sums: Sums::new(superblock),
        }
    }

    /// Returns the number of words of a row.
    #[inline(always)]
    pub fn row_words(&self) -> usize {
        self.row_words
    }

    /// Returns the number of entries of a row.
    #[inline(always)]
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Returns the number of words of an entry.
    #[inline(always)]
    pub fn entry_words(&self) -> usize {
        self.entry_words
    }

    /// Returns the format of the entries.
    pub fn entry_format(&self) -> EntryFormat {
        self.format
    }

    /// Returns the index of the trailer's first word in a row.
    #[inline(always)]
    pub fn trailer_word(&self) -> usize {
        self.row_words - TRAILER_WORDS
    }

    /// Returns both trailer words of a sampled row.
    #[inline(always)]
    pub fn trailer_words(&self, row: &[u64]) -> [u64; TRAILER_WORDS] {
        let at = self.trailer_word();
        [row[at], row[at + 1]]
    }

    /// Returns the first trailer word of a sampled row.
    #[inline(always)]
    pub fn trailer(&self, row: &[u64]) -> Trailer {
        Trailer(row[self.trailer_word()])
    }

    /// Returns the occupancy bits: bit i is set if entry i is occupied. Bits beyond the row's entries are never set,
    /// not even in a damaged row.
    #[inline(always)]
    pub fn occupancy(&self, row: &[u64]) -> u64 {
        self.trailer(row).occupancy() & self.all_entries()
    }

    /// Returns the indices of the occupied entries of a row, in order.
    pub fn occupied_entries(&self, row: &[u64]) -> impl Iterator<Item = usize> + use<> {
        let occupancy = self.occupancy(row);
        (0..self.entries).filter(move |index| occupancy >> index & 1 != 0)
    }

    /// Whether a sampled row says that its table was destroyed. The superblock decides whether it was. [R-DESTROY-2]
    pub fn is_destroyed(&self, row: &[u64]) -> bool {
        row[self.trailer_word()..] == DESTROYED_TRAILER
    }

    /// Returns the lowest index of a free entry of a row.
    #[inline(always)]
    pub fn free_entry(&self, row: &[u64]) -> Option<usize> {
        let free = !self.occupancy(row) & self.all_entries();
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    /// Returns the number of occupied entries of a row whose trailer starts with the word `trailer`.
    pub fn occupied_by(&self, trailer: u64) -> u32 {
        (Trailer(trailer).occupancy() & self.all_entries()).count_ones()
    }

    /// Returns the number of occupied entries of a row.
    pub fn occupied(&self, row: &[u64]) -> u32 {
        self.occupancy(row).count_ones()
    }

    #[inline(always)]
    pub(crate) fn all_entries(&self) -> u64 {
        (1 << self.entries) - 1
    }

    /// Returns the words of entry `index` of a row.
    #[inline(always)]
    pub fn entry<'r>(&self, row: &'r [u64], index: usize) -> &'r [u64] {
        &row[index * self.entry_words..][..self.entry_words]
    }

    #[inline(always)]
    pub(crate) fn entry_mut<'r>(&self, row: &'r mut [u64], index: usize) -> &'r mut [u64] {
        &mut row[index * self.entry_words..][..self.entry_words]
    }

    /// Returns the kind of the occupied entry `index`.
    pub fn entry_kind(&self, row: &[u64], index: usize) -> EntryKind {
        // A damaged row of a format without extents may have the bit set.
        let extent = self.format.has_extents() && self.trailer(row).extents() & 1 << index != 0;
        if extent { EntryKind::Extent } else { EntryKind::Inline }
    }

    /// Checks that the sample `words` of `row` is whole: written for this row of this table in this incarnation.
    /// [R-ROW-1]
    ///
    /// # Errors
    /// The row is torn or damaged.
    #[inline(always)]
    pub fn verify(&self, row: RowId, words: &[u64]) -> Result<(), Torn> {
        if self.checksum(row, words) == words[self.row_words - 1] { Ok(()) } else { Err(Torn { row }) }
    }

    /// Computes the checksum of a row. Not inlined: it is as long as its callers.
    #[inline(never)]
    fn checksum(&self, row: RowId, words: &[u64]) -> u64 {
        self.sums.row(row, &words[..self.row_words - 1])
    }

    /// Returns the table's checksums.
    #[inline(always)]
    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// Returns the level of `row` in a new table. [R-GROW-3]
    pub fn level(&self, row: RowId) -> u8 {
        self.segments.map_or(0, |segments| segments.level(segments.of_row(row)))
    }

    /// Makes `words` an empty, valid row of a new table.
    pub fn format(&self, row: RowId, words: &mut [u64]) {
        words.fill(0);
        words[self.trailer_word()] = u64::from(self.level(row)) << LEVEL_SHIFT;
        words[self.row_words - 1] = self.checksum(row, words);
    }

    /// Completes a change of `words`: sets the next version, then the checksum. [R-ROW-2]
    pub fn finish(&self, row: RowId, words: &mut [u64]) {
        self.finish_marked(row, words, 0);
    }

    /// Completes a change of `words` in which a blind write replaced the value of the key in entry `index`: same as
    /// [`RowFormat::finish`], and the trailer says so until the next change, if it has room. [R-LOCK-10]
    #[inline(always)]
    pub fn finish_replaced(&self, row: RowId, words: &mut [u64], index: usize) {
        self.finish_marked(row, words, index as u64 + 1);
    }

    fn finish_marked(&self, row: RowId, words: &mut [u64], replaced: u64) {
        let mut trailer = self.trailer(words).next_version(self.version_bits).0;
        if self.marks_replaced_entries() {
            trailer = trailer & ((1 << REPLACED_SHIFT) - 1) | replaced << REPLACED_SHIFT;
        }
        words[self.trailer_word()] = trailer;
        words[self.row_words - 1] = self.checksum(row, words);
    }

    /// Whether trailers say which entry a blind write replaced: rows of at most 10 entries have room for it.
    #[inline(always)]
    pub fn marks_replaced_entries(&self) -> bool {
        self.entries <= MAX_MARKED_ENTRIES
    }

    /// Returns the entry whose value the last change of a row replaced, if that was a blind write. [R-LOCK-10]
    pub fn replaced_entry(&self, row: &[u64]) -> Option<usize> {
        let number = self.replaced_number(row);
        (1..=self.entries).contains(&number).then(|| number - 1)
    }

    /// Returns one more than the entry that a row's trailer names as replaced, whether the row has it or not; 0 if it
    /// names none.
    pub fn replaced_number(&self, row: &[u64]) -> usize {
        if self.marks_replaced_entries() { (self.trailer(row).0 >> REPLACED_SHIFT) as usize } else { 0 }
    }

    /// Returns the type bits of a row's entries, and of entries beyond them that its trailer has types for: bit i is
    /// set if entry i refers to an extent.
    pub fn extents(&self, row: &[u64]) -> u64 {
        let types = self.trailer(row).extents();
        if self.marks_replaced_entries() { types & ((1 << MAX_MARKED_ENTRIES) - 1) } else { types }
    }

    /// Returns the version that a row had before [`RowFormat::finish`] set the one in `trailer`.
    pub fn version_before(&self, trailer: Trailer) -> Version {
        Version(trailer.version().0.wrapping_sub(1) & version_mask(self.version_bits))
    }

    /// Makes `words` verify, whether half written or not, and keeps the version. Only the paper's repair does this.
    /// [R-REPAIR-7]
    pub fn rewrite_checksum(&self, row: RowId, words: &mut [u64]) {
        words[self.row_words - 1] = self.checksum(row, words);
    }

    /// Stores `entry`, of kind `kind`, at index `index`.
    ///
    /// # Panics
    /// If `entry` is not one entry long.
    pub fn put_entry(&self, words: &mut [u64], index: usize, entry: &[u64], kind: EntryKind) {
        self.entry_mut(words, index).copy_from_slice(entry);
        words[self.trailer_word()] = self.trailer(words).with_entry(index, kind).0;
    }

    /// Frees entry `index` and sets its words to zero.
    pub fn clear_entry(&self, words: &mut [u64], index: usize) {
        self.entry_mut(words, index).fill(0);
        words[self.trailer_word()] = self.trailer(words).without_entry(index).0;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::sum::NhKeys;
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

    /// Returns a row chosen to have the same checksum as others under `keys`: where the writer chooses the bytes, every
    /// other word cancels its key, so that the word beside it may be anything.
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

    /// Counts the mixtures of two rows, chosen by `keys`, that verify: the words of one up to some word, and those of
    /// the other from there on.
    fn halves_that_verify(row_format: &RowFormat, keys: &NhKeys, fills: [u64; 2]) -> usize {
        let [old, mut new] = fills.map(|fill| chosen(row_format, keys, fill));
        row_format.finish(RowId(7), &mut new);
        let cuts =
            (1..old.len()).flat_map(|cut| [[&old[..cut], &new[cut..]].concat(), [&new[..cut], &old[cut..]].concat()]);
        cuts.filter(|torn| *torn != old && *torn != new && row_format.verify(RowId(7), torn).is_ok()).count()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

        /// [R-ROW-1] Rows whose bytes were chosen without the table's secret do not verify half written. Rows chosen
        /// with the secret do, which shows that the choice is a good attack.
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

    /// [R-ROW-2] Each change increments the version; narrow versions wrap at their width.
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

    /// [R-LOCK-10] The trailer names the entry that a blind write replaced until the next change, and nothing else of
    /// it differs; rows with too many entries never name one.
    #[test]
    fn a_replaced_entry_is_named_until_the_next_change() {
        for (format, is_marked) in [("fixed:4:4", true), ("fixed:8:8", true), ("bytes:64", true)] {
            let row_format = row_format(Preset::Hardened, format);
            let mut words = vec![0; row_format.row_words()];
            row_format.format(RowId(3), &mut words);
            assert_eq!(row_format.replaced_entry(&words), None);
            let mut plain = words.clone();
            for index in 0..row_format.entries() {
                row_format.finish_replaced(RowId(3), &mut words, index);
                row_format.finish(RowId(3), &mut plain);
                row_format.verify(RowId(3), &words).unwrap();
                assert_eq!(row_format.replaced_entry(&words), is_marked.then_some(index));
                assert_eq!(row_format.extents(&words), 0);
                let trailers = [&words, &plain].map(|words| row_format.trailer(words));
                assert_eq!(trailers[0].version(), trailers[1].version());
                assert_eq!(trailers[0].occupancy(), trailers[1].occupancy());
            }
            let entry = vec![1; row_format.entry_words()];
            row_format.put_entry(&mut words, 0, &entry, EntryKind::Inline);
            row_format.finish(RowId(3), &mut words);
            assert_eq!(row_format.replaced_entry(&words), None);
        }
        let mut superblock = superblock(Preset::Hardened, "fixed:4:4");
        (superblock.config.entries_per_row, superblock.config.row_bytes) = (11, 128);
        let row_format = RowFormat::new(&superblock);
        let mut words = vec![0; row_format.row_words()];
        row_format.format(RowId(3), &mut words);
        row_format.finish_replaced(RowId(3), &mut words, 4);
        assert_eq!((row_format.replaced_entry(&words), row_format.extents(&words)), (None, 0));
    }

    #[test]
    fn entries_are_stored_and_cleared() {
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
