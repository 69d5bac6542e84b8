//! Redo records: the changes of a commit, written to the client slot before the first row is written.
//!
//! ```text
//! mark, generation        of the extent that the commit frees; written only if it frees one
//! first delta             row and entry index, the trailer afterwards, the entry afterwards
//! seal                    its position depends on the size of the table's entries only
//! number of further deltas, further deltas        written only if there are any, in a separate WRITE
//! ```
//!
//! The seal is the last word of a WRITE, so a commit of one row is recorded by one WRITE; the seal's checksum covers
//! everything that was written. The record of a split has one delta, without an entry: the segment's first row, an index
//! that no entry has, and the segment's level before [R-GROW-8]. Any other delta replaces one entry and the trailer:
//! applied to the row before the commit, to the row after it, or to any mixture of both, it gives the row after the
//! commit. The version before the commit is not stored, because it is the one before the version in the trailer.

use crate::chunk::is_mark;
use crate::row::EntryKind;
use crate::slot::RECORD_WORD;
use crate::{
    Generation, Geometry, RowFormat, RowId, Seal, SegmentSplit, Segments, Sums, TableConfig, Trailer, Version,
};

/// Words that describe the freed extent, in front of the first delta.
const FREED_WORDS: usize = 2;
/// Words of a delta in front of its entry.
pub(crate) const DELTA_HEADER_WORDS: usize = 3;
/// Words of a record in front of the first delta's entry, which the seal follows.
pub(crate) const SEAL_AFTER_WORDS: usize = FREED_WORDS + DELTA_HEADER_WORDS;

/// A delta's first word: row 58 bits, entry index 4, and two bits that are set in the first delta only.
const INDEX_SHIFT: u32 = 58;
const INDEX_BITS: u64 = 0xf;
const ROW_BITS: u64 = (1 << INDEX_SHIFT) - 1;
/// Index in the record of a split.
const SPLIT_INDEX: u64 = INDEX_BITS;
/// Flag: the commit frees an extent.
const FREES_EXTENT: u64 = 1 << 62;
/// Flag: further deltas follow.
const HAS_FURTHER: u64 = 1 << 63;

const _: () = assert!(INDEX_BITS << INDEX_SHIFT < FREES_EXTENT && crate::MAX_ENTRIES_PER_ROW as u64 <= SPLIT_INDEX);
// Both spaces end below 2^62 bytes, and a row has an entry and a trailer.
const _: () = assert!(1 << 62 < (ROW_BITS as u128 + 1) * 24);

/// The change that a commit makes to one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta<'r> {
    /// The row.
    pub row: RowId,
    /// The row's version before the commit.
    pub before: Version,
    /// The index of the one entry that changes.
    pub index: u8,
    /// The words of that entry after the commit; zeros if it is free.
    pub entry: &'r [u64],
    /// The two words of the trailer after the commit.
    pub trailer: [u64; 2],
}

/// A redo record in its encoded form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The words of a client slot from the record's first word on; zeros in place of a freed extent if there is none.
    words: Vec<u64>,
    /// Index of the seal in `words`.
    seal: usize,
    /// The split that the record is of, instead of a commit.
    split: Option<SegmentSplit>,
}

/// Part of a record that is written by one WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'r> {
    /// Index of the first word in the client slot.
    pub word: usize,
    /// The words to write.
    pub words: &'r [u64],
}

/// A sealed record cannot be replayed: it was damaged after it was sealed, or the client that sealed it was faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The words are not those that were sealed.
    #[error("redo record {sequence} does not match its seal")]
    Seal {
        /// The seal's sequence number.
        sequence: u32,
    },
    /// The record changes a row that the table does not have.
    #[error("redo record {sequence} changes {row}, but the table has {rows} rows")]
    Row {
        /// The seal's sequence number.
        sequence: u32,
        /// The row.
        row: RowId,
        /// The number of rows of the table.
        rows: u64,
    },
    /// The record changes an entry that rows do not have.
    #[error("redo record {sequence} changes entry {index} of {row}, but rows have {entries} entries")]
    Entry {
        /// The seal's sequence number.
        sequence: u32,
        /// The row.
        row: RowId,
        /// The index of the entry.
        index: u8,
        /// The number of entries of a row.
        entries: usize,
    },
    /// The record is that of a split of a segment that the table does not have, or cannot split.
    #[error("redo record {sequence} splits the segment of {row}, which the table cannot split")]
    Split {
        /// The seal's sequence number.
        sequence: u32,
        /// The row with which the segment should begin.
        row: RowId,
    },
    /// The record writes an entry whose extent has an impossible address.
    #[error("redo record {sequence} gives {row} an extent at the impossible offset {offset:#x}")]
    Extent {
        /// The seal's sequence number.
        sequence: u32,
        /// The row.
        row: RowId,
        /// Byte offset in the main space.
        offset: u64,
    },
    /// The record frees an extent by a mark at an impossible address.
    #[error("redo record {sequence} frees an extent by a mark at the impossible offset {offset:#x}")]
    Mark {
        /// The seal's sequence number.
        sequence: u32,
        /// Byte offset in the main space.
        offset: u64,
    },
}

impl Record {
    /// Index of the record's first word in a client slot.
    pub const WORD: usize = RECORD_WORD;
    /// Index in a client slot of the first word that [`Record::of_one_row`] returns.
    pub const ONE_ROW_WORD: usize = RECORD_WORD + FREED_WORDS;

    /// Makes the record empty, and keeps its buffer.
    pub fn clear(&mut self) {
        self.words.clear();
        self.words.resize(FREED_WORDS, 0);
        self.seal = 0;
        self.split = None;
    }

    /// Makes the record that of a split, and seals it with the client's sequence number `sequence`. [R-GROW-8]
    pub fn seal_split(&mut self, format: &RowFormat, first_row: RowId, split: SegmentSplit, sequence: u32) {
        self.clear();
        self.split = Some(split);
        self.words.extend([row_word(first_row, SPLIT_INDEX as usize), split.level.into(), 0]);
        self.words.resize(self.words.len() + format.entry_words(), 0);
        self.seal = self.words.len();
        self.words.push(0);
        self.seal(format.sums(), sequence);
    }

    /// Records that the commit frees an extent by writing `generation` to its mark at `mark_offset`, which is not 0.
    pub fn free_extent(&mut self, mark_offset: u64, generation: Generation) {
        self.words[..FREED_WORDS].copy_from_slice(&[mark_offset, generation.0]);
    }

    /// Adds the change of `row`: `after` is the row after the commit, in which only entry `index` and the trailer
    /// differ from before.
    pub fn push(&mut self, format: &RowFormat, row: RowId, index: usize, after: &[u64]) {
        let is_first = self.seal == 0;
        if !is_first {
            self.words.resize(self.words.len().max(self.seal + 2), 0);
            self.words[FREED_WORDS] |= HAS_FURTHER;
            self.words[self.seal + 1] += 1;
        }
        self.words.push(row_word(row, index));
        self.words.extend_from_slice(&after[format.trailer_word()..][..2]);
        self.words.extend_from_slice(format.entry(after, index));
        if is_first {
            self.seal = self.words.len();
            self.words.push(0);
        }
    }

    /// Completes the record and seals it with the client's sequence number `sequence`.
    ///
    /// # Panics
    /// If no change was added.
    pub fn seal(&mut self, sums: &Sums, sequence: u32) -> Seal {
        assert!(self.seal != 0, "a record changes at least one row");
        if self.words[0] != 0 {
            self.words[FREED_WORDS] |= FREES_EXTENT;
        }
        let seal = self.seal_of(sums, sequence);
        self.words[self.seal] = seal.0;
        seal
    }

    /// Returns the words, from [`Record::ONE_ROW_WORD`] on, of the sealed record of a commit that changes entry `index`
    /// of one row and frees no extent. They are the same as [`Record::push`] and [`Record::seal`] make; the size of
    /// rows, `ROW` words, and of entries, `N - 4` words, is known at compile time.
    ///
    /// # Panics
    /// If the row has no such entry.
    #[inline(always)]
    pub fn of_one_row<const N: usize, const ROW: usize>(
        sums: &Sums,
        row: RowId,
        index: usize,
        after: &[u64; ROW],
        sequence: u32,
    ) -> [u64; N] {
        const { assert!(N > DELTA_HEADER_WORDS + 1 && ROW > 2) };
        let (entry_words, end) = (N - DELTA_HEADER_WORDS - 1, N - 1);
        let mut words = [0; N];
        words[0] = row_word(row, index);
        words[1..DELTA_HEADER_WORDS].copy_from_slice(&after[ROW - 2..]);
        let entry = index * entry_words;
        // One bounds check for all words of the entry.
        assert!(entry < ROW - entry_words, "entry {index} of a row of {ROW} words");
        words[DELTA_HEADER_WORDS..end].copy_from_slice(&after[entry..entry + entry_words]);
        words[end] = Seal::of(sums.record(&words[..end], &[], sequence & Seal::SEQUENCES), sequence).0;
        words
    }

    /// Returns the record's words, including the seal.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the parts to write, in order: the further deltas, if there are any, then everything else, with the seal
    /// at its end.
    // [R-COMMIT-1]
    pub fn parts(&self) -> (Option<Part<'_>>, Part<'_>) {
        let at = |word: usize, words| Part { word: RECORD_WORD + word, words };
        let further = self.words.get(self.seal + 1..).filter(|words| !words.is_empty());
        let first = self.first_word();
        (further.map(|words| at(self.seal + 1, words)), at(first, &self.words[first..=self.seal]))
    }

    /// Decodes the sealed record in `slot_words`, the words of a whole client slot of the table of `config`; `None` if
    /// the seal is not set. Replaying the record writes only rows, entries and marks that the table has, and no row
    /// refers to an extent outside the chunks.
    ///
    /// # Errors
    /// The seal does not match, or the record refers to something that the table does not have.
    pub fn decode(
        slot_words: &[u64],
        format: &RowFormat,
        config: &TableConfig,
        geometry: &Geometry,
    ) -> Result<Option<Record>, RecordError> {
        let (seal_word, first_word) = (Seal::word(format), Record::ONE_ROW_WORD);
        let seal = Seal(slot_words[seal_word]);
        if !seal.is_sealed() {
            return Ok(None);
        }
        let damaged = || RecordError::Seal { sequence: seal.sequence() };
        let mut end = seal_word + 1;
        if slot_words[first_word] & HAS_FURTHER != 0 {
            let deltas = slot_words.get(end).and_then(|deltas| usize::try_from(*deltas).ok());
            let words = deltas.and_then(|deltas| deltas.checked_mul(delta_words(format)));
            end = words.and_then(|words| words.checked_add(end + 1)).ok_or_else(damaged)?;
        }
        let mut words = slot_words.get(RECORD_WORD..end).ok_or_else(damaged)?.to_vec();
        if slot_words[first_word] & FREES_EXTENT == 0 {
            words[..FREED_WORDS].fill(0);
        }
        let mut record = Record { words, seal: seal_word - RECORD_WORD, split: None };
        if record.seal_of(format.sums(), seal.sequence()) != seal {
            return Err(damaged());
        }
        record.split =
            record.decode_split(format).map_err(|row| RecordError::Split { sequence: seal.sequence(), row })?;
        record.check(seal.sequence(), format, config, geometry)?;
        Ok(Some(record))
    }

    /// Returns the split that the record is of, if it is that of one.
    pub fn split(&self) -> Option<SegmentSplit> {
        self.split
    }

    /// Decodes the record of a split; `None` if it is that of a commit.
    ///
    /// # Errors
    /// The row that it names, if no segment that can be split begins with it, or if the record has more.
    fn decode_split(&self, format: &RowFormat) -> Result<Option<SegmentSplit>, RowId> {
        let [word, level, rest @ ..] = &self.words[FREED_WORDS..] else { return Ok(None) };
        if word >> INDEX_SHIFT & INDEX_BITS != SPLIT_INDEX {
            return Ok(None);
        }
        let Some(segments) = format.segments.filter(Segments::grows) else { return Ok(None) };
        let (row, (seal, others)) = (RowId(word & ROW_BITS), (self.seal - FREED_WORDS - 2, rest));
        let split = u8::try_from(*level).ok().and_then(|level| {
            let segment = segments.of_row(row);
            let is_first = segments.first_row(segment) == row && segment < segments.most();
            let is_possible = is_first && level >= segments.level(segment);
            SegmentSplit::of(&segments, segment, level).filter(|_| is_possible)
        });
        let is_alone = *word == row_word(row, SPLIT_INDEX as usize) && others[..seal].iter().all(|word| *word == 0);
        split.filter(|_| is_alone).map(Some).ok_or(row)
    }

    /// Checks that the table has everything that the record refers to.
    fn check(
        &self,
        sequence: u32,
        format: &RowFormat,
        config: &TableConfig,
        geometry: &Geometry,
    ) -> Result<(), RecordError> {
        for delta in self.deltas(format) {
            let (row, index, rows, entries) = (delta.row, delta.index, config.rows, format.entries());
            if row.0 >= rows {
                return Err(RecordError::Row { sequence, row, rows });
            }
            if usize::from(index) >= entries {
                return Err(RecordError::Entry { sequence, row, index, entries });
            }
            if delta.entry_kind(format) == Some(EntryKind::Extent) {
                // The entry's words are read as a row of one entry.
                let extent = format.extent_of(delta.entry, 0);
                if extent.mark_offset(config, geometry).is_none() {
                    return Err(RecordError::Extent { sequence, row, offset: extent.offset });
                }
            }
        }
        match self.freed_extent() {
            Some((offset, _)) if !is_mark(offset, config, geometry) => Err(RecordError::Mark { sequence, offset }),
            _ => Ok(()),
        }
    }

    /// Returns the changes of the rows, in the order of the commit; none if the record is that of a split.
    pub fn deltas<'r>(&'r self, format: &RowFormat) -> impl Iterator<Item = Delta<'r>> {
        let further = self.words.get(self.seal + 2..).unwrap_or_default();
        let all = std::iter::once(&self.words[FREED_WORDS..self.seal]).chain(further.chunks_exact(delta_words(format)));
        all.take(if self.split.is_some() { 0 } else { usize::MAX }).map(|words| Delta {
            row: RowId(words[0] & ROW_BITS),
            before: format.version_before(Trailer(words[1])),
            index: (words[0] >> INDEX_SHIFT & INDEX_BITS) as u8,
            trailer: [words[1], words[2]],
            entry: &words[DELTA_HEADER_WORDS..],
        })
    }

    /// Returns the offset of the freed extent's mark, and the extent's generation.
    pub fn freed_extent(&self) -> Option<(u64, Generation)> {
        (self.first_word() == 0).then(|| (self.words[0], Generation(self.words[1])))
    }

    /// Computes the seal of the words.
    fn seal_of(&self, sums: &Sums, sequence: u32) -> Seal {
        let (first, further) = (&self.words[self.first_word()..self.seal], &self.words[self.seal + 1..]);
        Seal::of(sums.record(first, further, sequence & Seal::SEQUENCES), sequence)
    }

    /// Returns the index of the first word that belongs to the record.
    fn first_word(&self) -> usize {
        if self.words[FREED_WORDS] & FREES_EXTENT != 0 { 0 } else { FREED_WORDS }
    }
}

fn row_word(row: RowId, index: usize) -> u64 {
    debug_assert!(row.0 <= ROW_BITS && index as u64 <= INDEX_BITS, "{row} and index {index} fit");
    row.0 | (index as u64) << INDEX_SHIFT
}

/// Returns the number of words of a delta.
fn delta_words(format: &RowFormat) -> usize {
    DELTA_HEADER_WORDS + format.entry_words()
}

impl Delta<'_> {
    /// Turns `words`, which are the row before the commit, after it, or any mixture of both, into the row after it.
    /// [R-COMMIT-3]
    pub fn apply(&self, format: &RowFormat, words: &mut [u64]) {
        match self.entry_kind(format) {
            Some(placement) => format.put_entry(words, usize::from(self.index), self.entry, placement),
            None => format.clear_entry(words, usize::from(self.index)),
        }
        words[format.trailer_word()..][..2].copy_from_slice(&self.trailer);
    }

    /// Returns the kind of the entry after the commit; `None` if it is free.
    fn entry_kind(&self, format: &RowFormat) -> Option<EntryKind> {
        let (trailer, bit) = (Trailer(self.trailer[0]), 1 << self.index);
        let extent = format.entry_format().has_extents() && trailer.extents() & bit != 0;
        let placement = if extent { EntryKind::Extent } else { EntryKind::Inline };
        (trailer.occupancy() & bit != 0).then_some(placement)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::sum::Level;

    use super::*;
    use crate::row::tests::{row_format, superblock};
    use crate::{CHUNK_HEADER_WORDS, ExtentRef, Preset, slot_words};

    /// A table that records are decoded for.
    struct Table {
        format: RowFormat,
        config: TableConfig,
        geometry: Geometry,
    }

    impl Table {
        fn new(format: &str) -> Table {
            let superblock = superblock(Preset::Hardened, format);
            let geometry = Geometry::new(&superblock.config).unwrap();
            Table { format: RowFormat::new(&superblock), config: superblock.config, geometry }
        }

        /// A table that grows from 3 segments to 64.
        fn growing() -> Table {
            let superblock = superblock(Preset::Hardened, "fixed:8:8");
            let options = crate::PresetOptions {
                capacity: 1,
                format: superblock.config.format,
                extent_bytes: None,
                max_clients: None,
                hash_seed: 1,
                device_bytes: u64::MAX,
            };
            let config = Preset::Hardened.config_that_grows(3, 64, &options).unwrap();
            let geometry = Geometry::new(&config).unwrap();
            let superblock = crate::Superblock { config: config.clone(), ..superblock };
            Table { format: RowFormat::new(&superblock), config, geometry }
        }

        fn decode(&self, slot: &[u64]) -> Result<Option<Record>, RecordError> {
            Record::decode(slot, &self.format, &self.config, &self.geometry)
        }

        /// Returns the words of a client slot after `record` was sealed and written over older contents.
        fn sealed(&self, record: &Record) -> Vec<u64> {
            let mut record = record.clone();
            record.seal(self.format.sums(), 5);
            let mut slot = vec![0x5555_5555; slot_words(&self.config)];
            let (further, first) = record.parts();
            for part in further.into_iter().chain([first]) {
                slot[part.word..][..part.words.len()].copy_from_slice(part.words);
            }
            slot
        }

        /// Seals `record`, writes it to a client slot, and decodes the slot.
        fn round_trip(&self, record: &Record) -> Result<Option<Record>, RecordError> {
            self.decode(&self.sealed(record))
        }

        /// Whether `bytes` bytes at `offset` lie in the chunks. Computed from the ends of the area, unlike in `decode`.
        fn in_chunks(&self, offset: u64, bytes: u64) -> bool {
            let (first, last) = (self.geometry.chunk(0), self.geometry.chunk(self.config.chunks - 1));
            first.offset() <= offset
                && offset.checked_add(bytes).is_some_and(|end| end <= last.offset() + self.config.chunk_bytes)
        }
    }

    /// Generates a number near one of `bounds`, or any number.
    fn around(bounds: Vec<u64>) -> impl Strategy<Value = u64> {
        let near = (prop::sample::select(bounds), -70_i64..70).prop_map(|(bound, by)| bound.saturating_add_signed(by));
        prop_oneof![near, any::<u64>()]
    }

    proptest! {
        /// A sealed record that refers to a row, an entry, an extent or a mark that the table does not have is refused;
        /// any other is decoded.
        #[test]
        fn records_with_impossible_references_are_refused(
            (row, slot, offset, mark) in {
                let Table { config, geometry, format } = Table::new("bytes:64");
                let (chunk, end) = (geometry.chunk(0).offset(), geometry.main_bytes());
                let second = geometry.chunk(1).offset();
                (
                    around(vec![0, config.rows]),
                    prop_oneof![around(vec![0, format.entries() as u64]), Just(1)],
                    around(vec![chunk, second, end, geometry.row(RowId(0)).offset()]),
                    prop_oneof![Just(0), around(vec![chunk, second, end])],
                )
            },
            aligned: bool,
            (key_bytes, value_bytes) in (0..1_u32 << 17, 0..1_u32 << 27),
            trailer: u64,
        ) {
            let table = Table::new("bytes:64");
            let (offset, mark) = if aligned { (offset / 32 * 32, mark / 8 * 8) } else { (offset, mark) };
            let offset = offset & 0xffff_ffff_ffff;
            let extent = ExtentRef { digest: 7, offset, generation: Generation(9), key_bytes, value_bytes };
            let mut entry = vec![0; table.format.entry_words()];
            table.format.encode_extent_entry(&mut entry, &extent);
            let stored = table.format.extent_of(&entry, 0);
            let mut record = Record::default();
            let (row, slot) = (row & ROW_BITS, slot & INDEX_BITS);
            let mut image = vec![0; table.format.row_words()];
            image[..entry.len()].copy_from_slice(&entry);
            image[table.format.trailer_word()] = trailer;
            record.clear();
            record.push(&table.format, RowId(row), 0, &image);
            record.words[FREED_WORDS] |= slot << INDEX_SHIFT;
            if mark != 0 {
                record.free_extent(mark, Generation(3));
            }
            let decoded = table.round_trip(&record);
            record.seal(table.format.sums(), 5);
            let has_row = row < table.config.rows;
            let has_slot = slot < table.format.entries() as u64;
            let is_extent = has_slot && Trailer(trailer).occupancy() & Trailer(trailer).extents() & 1 << slot != 0;
            let has_extent = !is_extent || stored.mark_offset(&table.config, &table.geometry).is_some();
            let bytes = stored.words().map_or(u64::MAX, |words| words as u64 * 8);
            let has_mark = mark == 0 || is_mark(mark, &table.config, &table.geometry);
            prop_assert_eq!(decoded.is_ok(), has_row && has_slot && has_extent && has_mark, "{:?}", decoded);
            if let Ok(decoded) = decoded {
                prop_assert_eq!(decoded, Some(record));
                prop_assert!(!is_extent || table.in_chunks(stored.offset, bytes), "{:?}", stored);
                prop_assert!(mark == 0 || mark % 8 == 0 && table.in_chunks(mark, 8), "{:#x}", mark);
            }
        }
    }

    /// [R-COMMIT-3] A delta completes a row torn at any word, is idempotent, and can set or clear an entry.
    #[test]
    fn deltas_complete_rows_torn_anywhere() {
        for name in ["fixed:4:4", "fixed:8:8", "bytes:64"] {
            let format = row_format(Preset::Hardened, name);
            let mut before = vec![0; format.row_words()];
            format.format(RowId(3), &mut before);
            let entry = |seed: u64| vec![seed; format.entry_words()];
            format.put_entry(&mut before, 1, &entry(11), EntryKind::Inline);
            format.finish(RowId(3), &mut before);
            for clears in [false, true] {
                let mut after = before.clone();
                match clears {
                    true => format.clear_entry(&mut after, 1),
                    false => format.put_entry(&mut after, 1, &entry(22), EntryKind::Inline),
                }
                format.finish(RowId(3), &mut after);
                let mut record = Record::default();
                record.clear();
                record.push(&format, RowId(3), 1, &after);
                let versions: Vec<Version> = record.deltas(&format).map(|delta| delta.before).collect();
                assert_eq!(versions, [format.trailer(&before).version()]);
                for cut in 0..=after.len() {
                    let mut torn = before.clone();
                    torn[..cut].copy_from_slice(&after[..cut]);
                    for _ in 0..2 {
                        record.deltas(&format).for_each(|delta| delta.apply(&format, &mut torn));
                        assert_eq!(torn, after, "{name} cut at word {cut}");
                    }
                }
            }
        }
    }

    #[test]
    fn records_round_trip_and_detect_damage() {
        for (rows, frees) in [(1, false), (1, true), (2, false), (3, true)] {
            let table = Table::new("bytes:64");
            let format = &table.format;
            let mut row = vec![0; format.row_words()];
            format.format(RowId(3), &mut row);
            let mut record = Record::default();
            record.clear();
            let mark = table.geometry.chunk(0).offset() + CHUNK_HEADER_WORDS * 8;
            if frees {
                record.free_extent(mark, Generation(55));
            }
            (0..rows).for_each(|i| record.push(format, RowId(3 + i), i as usize, &row));
            let mut slot = table.sealed(&record);
            record.seal(table.format.sums(), 5);
            assert_eq!(table.decode(&slot), Ok(Some(record.clone())));
            assert_eq!(record.freed_extent(), frees.then_some((mark, Generation(55))));
            let named = record.deltas(format).map(|delta| (delta.row.0, u64::from(delta.index)));
            assert!(named.eq((0..rows).map(|i| (3 + i, i))));
            let (further, first) = record.parts();
            assert_eq!(further.is_some(), rows > 1);
            for word in further.into_iter().chain([first]).flat_map(|part| part.word..part.word + part.words.len()) {
                for bit in 0..64 {
                    slot[word] ^= 1 << bit;
                    let decoded = table.decode(&slot);
                    // This bit of the seal says whether the record is sealed.
                    let unsealed = word == Seal::word(format) && bit == 63;
                    let noticed = matches!(decoded, Err(RecordError::Seal { .. })) || unsealed && decoded == Ok(None);
                    assert!(noticed, "word {word} bit {bit} of {rows} rows, {frees}: {decoded:?}");
                    slot[word] ^= 1 << bit;
                }
            }
            slot[Seal::word(format)] = Seal::retired(5).0;
            assert_eq!(table.decode(&slot), Ok(None));
            assert_eq!(table.decode(&vec![0; slot_words(&table.config)]), Ok(None));
        }
    }

    /// A record is sealed only when its last word is written. [R-COMMIT-1]
    #[test]
    fn a_record_is_sealed_by_its_last_word() {
        let table = Table::new("fixed:8:8");
        let mut row = vec![7; table.format.row_words()];
        table.format.finish(RowId(3), &mut row);
        let mut record = Record::default();
        record.clear();
        record.push(&table.format, RowId(3), 1, &row);
        record.push(&table.format, RowId(4), 2, &row);
        let before = table.sealed(&record);
        let mut record = Record::default();
        record.clear();
        record.push(&table.format, RowId(5), 1, &row);
        record.push(&table.format, RowId(6), 2, &row);
        record.seal(table.format.sums(), 6);
        let mut slot = before.clone();
        slot[Seal::word(&table.format)] = Seal::retired(5).0;
        let (further, first) = record.parts();
        let parts = further.into_iter().chain([first]);
        let words: Vec<(usize, u64)> = parts.flat_map(|part| (part.word..).zip(part.words.iter().copied())).collect();
        for (written, (word, value)) in words.iter().enumerate() {
            assert_eq!(table.decode(&slot), Ok(None), "{written} of {} words", words.len());
            slot[*word] = *value;
        }
        assert_eq!(table.decode(&slot), Ok(Some(record)));
    }

    /// [`Record::of_one_row`] makes the same words as [`Record::push`] and [`Record::seal`].
    #[test]
    fn both_encoders_make_the_same_record() {
        fn compare<const N: usize, const ROW: usize>(name: &str) {
            let format = row_format(Preset::Hardened, name);
            let mut after: Vec<u64> = (0..format.row_words() as u64).map(|i| i * 0x0123_4567).collect();
            for slot in 0..format.entries() {
                let row = RowId(0x3ff_ffff_ffff_ff00 + slot as u64);
                format.finish(row, &mut after);
                let mut record = Record::default();
                record.clear();
                record.push(&format, row, slot, &after);
                record.seal(format.sums(), 0x7fff_fff0 + slot as u32);
                let (further, first) = record.parts();
                assert_eq!((further, first.word), (None, Record::ONE_ROW_WORD));
                let image: &[u64; ROW] = after.as_slice().try_into().unwrap();
                let short = Record::of_one_row::<N, ROW>(format.sums(), row, slot, image, 0x7fff_fff0 + slot as u32);
                assert_eq!(first.words, short);
            }
        }
        compare::<5, 8>("fixed:4:4");
        compare::<6, 16>("fixed:8:8");
        compare::<13, 56>("bytes:64");
    }

    /// The words of a record are those of docs/layout.md.
    #[test]
    fn records_are_as_documented() {
        let format = row_format(Preset::Hardened, "fixed:8:8");
        let mut after: [u64; 16] = std::array::from_fn(|i| 0x100 + i as u64);
        after[14] = 0x0000_0070_0000_0009;
        let record = Record::of_one_row::<6, 16>(format.sums(), RowId(0xabc), 3, &after, 0x11);
        assert_eq!(record[..5], [0x0c00_0000_0000_0abc, 0x0000_0070_0000_0009, 0x10f, 0x106, 0x107]);
        let keys = crate::sum::NhKeys::new([1, 2, 3, 4]);
        let sum = crate::sum::nh(&keys, &record[..5], 0x11);
        assert_eq!(record[5], 1 << 63 | 0x11 << 32 | sum & 0xffff_ffff);
        assert_eq!((Record::ONE_ROW_WORD, Seal::word(&format)), (10, 15), "in one cache line");
        let mut records = Record::default();
        records.clear();
        records.free_extent(0x5000, Generation(0x77));
        records.push(&format, RowId(0xabc), 3, &after);
        records.push(&format, RowId(0xabd), 4, &after);
        records.seal(format.sums(), 0x11);
        let words = records.words();
        assert_eq!(words[..3], [0x5000, 0x77, 3 << 62 | 0x0c00_0000_0000_0abc]);
        assert_eq!(words[8..], [1, 0x1000_0000_0000_0abd, 0x0000_0070_0000_0009, 0x10f, 0x108, 0x109]);
        let sum = crate::sum::nh(&keys, &words[..7], crate::sum::nh_at(&keys, Level::Second, &words[8..], 0x11));
        assert_eq!(words[7], 1 << 63 | 0x11 << 32 | sum & 0xffff_ffff);
    }

    /// The error of a sealed record that refers to something the table does not have says what that is.
    #[test]
    fn records_of_another_table_are_refused() {
        let table = Table::new("bytes:64");
        let (format, rows, sequence) = (&table.format, table.config.rows, 5);
        let mut words = vec![0; format.row_words()];
        format.format(RowId(3), &mut words);
        let decoded = |change: &dyn Fn(&mut Record)| {
            let mut record = Record::default();
            record.clear();
            record.push(format, RowId(rows - 1), format.entries() - 1, &words);
            record.push(format, RowId(rows - 2), format.entries() - 1, &words);
            change(&mut record);
            table.round_trip(&record).map(|record| record.is_some())
        };
        let further = FREED_WORDS + delta_words(format) + 2;
        let (row, entries) = (RowId(rows - 1), format.entries());
        assert_eq!(decoded(&|_| ()), Ok(true));
        let error = Err(RecordError::Row { sequence, row: RowId(rows), rows });
        assert_eq!(decoded(&|record| record.words[FREED_WORDS] += 1), error);
        assert_eq!(decoded(&|record| record.words[further] += 2), error);
        let error = Err(RecordError::Entry { sequence, row, index: entries as u8, entries });
        assert_eq!(decoded(&|record| record.words[FREED_WORDS] += 1 << INDEX_SHIFT), error);
        let offset = table.geometry.row(RowId(0)).offset();
        let error = Err(RecordError::Mark { sequence, offset });
        assert_eq!(decoded(&|record| record.free_extent(offset, Generation(3))), error);
        let full = Trailer(0).with_entry(entries - 1, EntryKind::Extent).0;
        let error = Err(RecordError::Extent { sequence, row, offset: 0 });
        assert_eq!(decoded(&|record| record.words[FREED_WORDS + 1] = full), error);
        // A record longer than its client slot.
        let error = Err(RecordError::Seal { sequence });
        assert_eq!(decoded(&|record| record.words[further - 1] = 60), error);
        assert_eq!(decoded(&|record| record.words[further - 1] = u64::MAX), error);
    }

    /// [R-GROW-8] [R-GROW-10] The record of a split names a segment that can be split, and nothing else; only tables that
    /// grow have such records.
    #[test]
    fn records_of_splits_name_possible_ones() {
        let table = Table::growing();
        let segments = table.format.segments.unwrap();
        let of = |segment: u64, level: u8| {
            let mut record = Record::default();
            let split = SegmentSplit { segment, level, child: segments.child(segment, level).unwrap_or_default() };
            record.seal_split(&table.format, segments.first_row(segment), split, 5);
            record
        };
        // Segment 0 was split at creation; 40 is the right half of an interval of depth 5, which is level 4.
        for (segment, level) in [(0, 1), (1, 0), (0, 3), (2, 4), (40, 5)] {
            let record = of(segment, level);
            let child = segments.child(segment, level);
            let decoded = table.round_trip(&record);
            match child {
                Some(child) => {
                    let decoded = decoded.unwrap().expect("a sealed record");
                    assert_eq!(decoded.split(), Some(SegmentSplit { segment, level, child }));
                    assert_eq!(decoded, record);
                    assert_eq!((decoded.deltas(&table.format).count(), decoded.freed_extent()), (0, None));
                }
                None => assert!(matches!(decoded, Err(RecordError::Split { .. })), "{segment} {level}: {decoded:?}"),
            }
        }
        for (segment, level) in [(0, 0), (2, 1), (40, 2), (64, 5)] {
            let refused = table.round_trip(&of(segment, level));
            assert!(matches!(refused, Err(RecordError::Split { .. })) || level == 1, "{segment} {level}: {refused:?}");
        }
        for change in 0..4 {
            let mut record = of(1, 0);
            match change {
                // Another row of the segment; a level beyond 8 bits; an entry; a flag.
                0 => record.words[FREED_WORDS] += 1,
                1 => record.words[FREED_WORDS + 1] = 1 << 32,
                2 => record.words[FREED_WORDS + 3] = 1,
                _ => record.words[FREED_WORDS + 2] = 1,
            }
            let refused = table.round_trip(&record);
            assert!(matches!(refused, Err(RecordError::Split { sequence: 5, .. })), "{change}: {refused:?}");
        }
        let fixed = Table::new("fixed:8:8");
        let refused = fixed.round_trip(&of(0, 1));
        assert!(matches!(refused, Err(RecordError::Entry { index: 15, .. })), "{refused:?}");
    }
}
