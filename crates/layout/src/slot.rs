//! Client slots: who is alive, and the redo record of the commit a client has begun.
//!
//! Word 0 is the slot's state and generation, word 1 the seal of its record, words 2 to 6 say who the client is, and
//! from word 8 on lies the record: how many rows change, which extent is freed, then one *delta* a row. A delta
//! replaces one entry and the trailer, so applied to the row before, to the row after, and to any mixture of both it
//! gives the row after.

use crate::extent::is_mark;
use crate::row::Placement;
use crate::{Generation, Geometry, RowFormat, RowId, TableConfig, Trailer, Version};

const SEAL_WORD: usize = 1;
const RECORD_WORD: usize = 8;
const RECORD_HEADER_WORDS: usize = 3;
const DELTA_HEADER_WORDS: usize = 4;
/// Slots start at multiples of two cache lines, so that no two clients write one line.
const SLOT_ALIGN_WORDS: usize = 16;

const _: () = assert!(RECORD_WORD > SEAL_WORD);

/// Words of one client slot.
pub const fn slot_words(config: &TableConfig) -> usize {
    let delta = DELTA_HEADER_WORDS + config.format.entry_words();
    let words = RECORD_WORD + RECORD_HEADER_WORDS + config.max_path_rows as usize * delta;
    words.next_multiple_of(SLOT_ALIGN_WORDS)
}

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// By nobody.
    Free,
    /// By a client, dead or alive: its fabric's liveness tells.
    Live,
    /// Its dead client is being recovered.
    Recovering,
}

/// Word 0 of a slot: state 8 bits, generation 56. The generation grows each time the slot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotWord {
    /// What the slot is used for.
    pub state: SlotState,
    /// How often it was taken.
    pub generation: u64,
}

impl SlotWord {
    /// Index of this word in a slot.
    pub const WORD: usize = 0;
    /// Index of the word with the client's process id.
    pub const PROCESS_WORD: usize = 2;
    /// Index of the word with the time its client opened it, in nanoseconds since 1970.
    pub const SINCE_WORD: usize = 3;
    /// Index of the first of three words that tell the process from others of the same number: when it was started,
    /// its namespace, and the start of its machine, as the fabric has them; 0 where it does not say.
    pub const IDENTITY_WORD: usize = 4;

    /// As a word.
    pub const fn encode(self) -> u64 {
        let state = match self.state {
            SlotState::Free => 0,
            SlotState::Live => 1,
            SlotState::Recovering => 2,
        };
        state | self.generation << 8
    }

    /// What a word means; `None` if nothing (a damaged word).
    pub const fn decode(word: u64) -> Option<SlotWord> {
        let state = match word & 0xff {
            0 => SlotState::Free,
            1 => SlotState::Live,
            2 => SlotState::Recovering,
            _ => return None,
        };
        Some(SlotWord { state, generation: word >> 8 })
    }
}

/// Word 1 of a slot: sealed 1 bit, sequence 31, checksum of the record 32. One aligned word, so it is never torn.
///
/// A sealed record says: its rows may be half written, its locks are all still held, and replaying it completes the
/// operation. A retired one says: all of its rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(pub u64);

impl Seal {
    /// Index of this word in a slot.
    pub const WORD: usize = SEAL_WORD;
    const SEALED: u64 = 1 << 63;

    /// The seal of record `words`, the client's `sequence`th.
    pub fn of(words: &[u64], sequence: u32) -> Seal {
        Seal(Seal::SEALED | u64::from(sequence & 0x7fff_ffff) << 32 | u64::from(checksum(words, sequence)))
    }

    /// The word that retires the client's `sequence`th record.
    pub fn retired(sequence: u32) -> Seal {
        Seal(u64::from(sequence & 0x7fff_ffff) << 32)
    }

    /// Whether the record counts.
    pub fn is_sealed(self) -> bool {
        self.0 & Seal::SEALED != 0
    }

    /// The sequence number, 31 bits.
    pub fn sequence(self) -> u32 {
        (self.0 >> 32) as u32 & 0x7fff_ffff
    }
}

fn checksum(words: &[u64], sequence: u32) -> u32 {
    let sum = guira_sum::bytes_checksum(words, u64::from(sequence & 0x7fff_ffff));
    (sum ^ sum >> 32) as u32
}

/// What one row of a commit becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta<'r> {
    /// The row.
    pub row: RowId,
    /// Its version before.
    pub before: Version,
    /// The one slot that changes.
    pub slot: u8,
    /// The entry it holds afterwards; zeros if it is free.
    pub entry: &'r [u64],
    /// The two trailer words afterwards.
    pub trailer: [u64; 2],
}

/// A redo record in its encoded form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    words: Vec<u64>,
}

/// A sealed record cannot be replayed: it was damaged after it was sealed, or whoever sealed it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Its words are not those that were sealed.
    #[error("the redo record of sequence {sequence} does not match its seal")]
    Seal {
        /// The seal's sequence number.
        sequence: u32,
    },
    /// It changes a row that the table does not have.
    #[error("the redo record of sequence {sequence} changes {row} of {rows}")]
    Row {
        /// The seal's sequence number.
        sequence: u32,
        /// The row.
        row: RowId,
        /// How many rows the table has.
        rows: u64,
    },
    /// It changes an entry that rows do not have.
    #[error("the redo record of sequence {sequence} changes entry {slot} of {row}, and rows have {entries}")]
    Slot {
        /// The seal's sequence number.
        sequence: u32,
        /// The row.
        row: RowId,
        /// The entry.
        slot: u64,
        /// How many entries a row has.
        entries: usize,
    },
    /// It refers to an extent where none can be.
    #[error("the redo record of sequence {sequence} gives {row} an extent at offset {offset:#x}, where none can be")]
    Extent {
        /// The seal's sequence number.
        sequence: u32,
        /// The row.
        row: RowId,
        /// Byte offset in the main space.
        offset: u64,
    },
    /// It frees an extent by a mark where none can be.
    #[error(
        "the redo record of sequence {sequence} frees an extent by a mark at offset {offset:#x}, where none can be"
    )]
    Mark {
        /// The seal's sequence number.
        sequence: u32,
        /// Byte offset in the main space.
        offset: u64,
    },
}

impl Record {
    /// Index of the record's first word in a slot.
    pub const WORD: usize = RECORD_WORD;

    /// Starts an empty record, keeping the buffer.
    pub fn clear(&mut self) {
        self.words.clear();
        self.words.resize(RECORD_HEADER_WORDS, 0);
    }

    /// Notes that the extent whose mark lies at `mark_offset` is freed, by writing `generation` there.
    pub fn free_extent(&mut self, mark_offset: u64, generation: Generation) {
        self.words[1] = mark_offset;
        self.words[2] = generation.0;
    }

    /// Adds what `row` becomes: `after` is its finished image, in which only `slot` and the trailer differ from before.
    pub fn push(&mut self, format: &RowFormat, row: RowId, before: Version, slot: usize, after: &[u64]) {
        self.words[0] += 1;
        self.words.push(row.0);
        self.words.push(u64::from(before.0) | (slot as u64) << 32);
        self.words.extend_from_slice(&after[format.trailer_word()..][..2]);
        self.words.extend_from_slice(format.entry(after, slot));
    }

    /// The record's words.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The sealed record in `slot_words`, the words of a whole slot of the table of `config`. Whoever replays it writes
    /// only rows, entries and marks that the table has, and no row refers to an extent outside the chunks.
    ///
    /// # Errors
    /// The seal does not match, or the record names something that the table does not have.
    pub fn decode(
        slot_words: &[u64],
        format: &RowFormat,
        config: &TableConfig,
        geometry: &Geometry,
    ) -> Result<Option<Record>, RecordError> {
        let seal = Seal(slot_words[SEAL_WORD]);
        if !seal.is_sealed() {
            return Ok(None);
        }
        let damaged = || RecordError::Seal { sequence: seal.sequence() };
        let delta_words = DELTA_HEADER_WORDS + format.entry_words();
        let deltas = usize::try_from(slot_words[RECORD_WORD]).map_err(|_| damaged())?;
        let words = deltas.checked_mul(delta_words).and_then(|words| words.checked_add(RECORD_HEADER_WORDS));
        let end = words.and_then(|words| words.checked_add(RECORD_WORD)).ok_or_else(damaged)?;
        let words = slot_words.get(RECORD_WORD..end).ok_or_else(damaged)?;
        if Seal::of(words, seal.sequence()) != seal {
            return Err(damaged());
        }
        let record = Record { words: words.to_vec() };
        record.check(seal.sequence(), format, config, geometry)?;
        Ok(Some(record))
    }

    /// Whether the table has everything that the record names.
    fn check(
        &self,
        sequence: u32,
        format: &RowFormat,
        config: &TableConfig,
        geometry: &Geometry,
    ) -> Result<(), RecordError> {
        let delta_words = DELTA_HEADER_WORDS + format.entry_words();
        let slots = self.words[RECORD_HEADER_WORDS..].chunks_exact(delta_words).map(|words| words[1] >> 32);
        for (delta, slot) in self.deltas(format).zip(slots) {
            let (row, rows, entries) = (delta.row, config.rows, format.entries());
            if row.0 >= rows {
                return Err(RecordError::Row { sequence, row, rows });
            }
            if slot >= entries as u64 {
                return Err(RecordError::Slot { sequence, row, slot, entries });
            }
            if delta.placement(format) == Some(Placement::Extent) {
                // As the only entry of a row.
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

    /// What each row becomes, in the order of the commit.
    pub fn deltas<'r>(&'r self, format: &RowFormat) -> impl Iterator<Item = Delta<'r>> {
        let delta_words = DELTA_HEADER_WORDS + format.entry_words();
        self.words[RECORD_HEADER_WORDS..].chunks_exact(delta_words).map(|words| Delta {
            row: RowId(words[0]),
            before: Version(words[1] as u32),
            slot: (words[1] >> 32) as u8,
            trailer: [words[2], words[3]],
            entry: &words[DELTA_HEADER_WORDS..],
        })
    }

    /// Where the mark of the freed extent lies, and its generation.
    pub fn freed_extent(&self) -> Option<(u64, Generation)> {
        (self.words[1] != 0).then(|| (self.words[1], Generation(self.words[2])))
    }
}

impl Delta<'_> {
    /// Turns `words`, the row before, after, or any mixture of both, into the row after. // [R-COMMIT-3]
    pub fn apply(&self, format: &RowFormat, words: &mut [u64]) {
        match self.placement(format) {
            Some(placement) => format.put_entry(words, usize::from(self.slot), self.entry, placement),
            None => format.clear_entry(words, usize::from(self.slot)),
        }
        words[format.trailer_word()..][..2].copy_from_slice(&self.trailer);
    }

    /// What the entry is afterwards; `None` if its slot is free.
    fn placement(&self, format: &RowFormat) -> Option<Placement> {
        let (trailer, bit) = (Trailer(self.trailer[0]), 1 << self.slot);
        let extent = format.entry_format().has_extents() && trailer.extents() & bit != 0;
        let placement = if extent { Placement::Extent } else { Placement::Inline };
        (trailer.occupancy() & bit != 0).then_some(placement)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::row::tests::{row_format, superblock};
    use crate::{CHUNK_HEADER_WORDS, ExtentRef, Preset};

    /// A table: what records are decoded against.
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

        fn decode(&self, slot: &[u64]) -> Result<Option<Record>, RecordError> {
            Record::decode(slot, &self.format, &self.config, &self.geometry)
        }

        /// The words of a slot with `record` in it, sealed.
        fn sealed(&self, record: &Record) -> Vec<u64> {
            let mut slot = vec![0; slot_words(&self.config)];
            slot[RECORD_WORD..][..record.words().len()].copy_from_slice(record.words());
            slot[SEAL_WORD] = Seal::of(record.words(), 5).0;
            slot
        }

        /// Whether `bytes` bytes at `offset` lie in the chunks: counted from the areas' ends, not as `decode` does it.
        fn in_chunks(&self, offset: u64, bytes: u64) -> bool {
            let (first, last) = (self.geometry.chunk(0), self.geometry.chunk(self.config.chunks - 1));
            first.offset() <= offset
                && offset.checked_add(bytes).is_some_and(|end| end <= last.offset() + self.config.chunk_bytes)
        }
    }

    /// A number near one of `bounds`, or any.
    fn around(bounds: Vec<u64>) -> impl Strategy<Value = u64> {
        let near = (prop::sample::select(bounds), -70_i64..70).prop_map(|(bound, by)| bound.saturating_add_signed(by));
        prop_oneof![near, any::<u64>()]
    }

    proptest! {
        /// No sealed record names a row, an entry, an extent or a mark that the table does not have; one that names
        /// only what the table has is decoded.
        #[test]
        fn decoded_records_name_only_what_the_table_has(
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
            record.clear();
            record.words[0] = 1;
            record.words.extend_from_slice(&[row, slot << 32, trailer, 0]);
            record.words.extend_from_slice(&entry);
            record.free_extent(mark, Generation(3));
            let decoded = table.decode(&table.sealed(&record));
            let has_row = row < table.config.rows;
            let slot = slot & 0xffff_ffff;
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

    /// [R-COMMIT-3] A delta completes a row torn at any word, is idempotent, and clears as well as it sets.
    #[test]
    fn deltas_complete_rows_torn_anywhere() {
        for name in ["fixed:4:4", "fixed:8:8", "bytes:64"] {
            let format = row_format(Preset::Hardened, name);
            let mut before = vec![0; format.row_words()];
            format.format(RowId(3), &mut before);
            let entry = |seed: u64| vec![seed; format.entry_words()];
            format.put_entry(&mut before, 1, &entry(11), Placement::Inline);
            format.finish(RowId(3), &mut before);
            for clears in [false, true] {
                let mut after = before.clone();
                match clears {
                    true => format.clear_entry(&mut after, 1),
                    false => format.put_entry(&mut after, 1, &entry(22), Placement::Inline),
                }
                format.finish(RowId(3), &mut after);
                let mut record = Record::default();
                record.clear();
                record.push(&format, RowId(3), format.trailer(&before).version(), 1, &after);
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
    fn records_round_trip_and_notice_damage() {
        let table = Table::new("bytes:64");
        let format = &table.format;
        let mut row = vec![0; format.row_words()];
        format.format(RowId(3), &mut row);
        let mut record = Record::default();
        record.clear();
        record.push(format, RowId(3), Version(7), 1, &row);
        record.push(format, RowId(9), Version(8), 2, &row);
        let mark = table.geometry.chunk(0).offset() + CHUNK_HEADER_WORDS * 8;
        record.free_extent(mark, Generation(55));
        assert_eq!(table.decode(&vec![0; slot_words(&table.config)]), Ok(None));
        let mut slot = table.sealed(&record);
        assert_eq!(table.decode(&slot), Ok(Some(record.clone())));
        assert_eq!(record.freed_extent(), Some((mark, Generation(55))));
        assert_eq!(record.deltas(format).map(|delta| delta.row.0).collect::<Vec<_>>(), [3, 9]);
        for word in RECORD_WORD..RECORD_WORD + record.words().len() {
            for bit in 0..64 {
                slot[word] ^= 1 << bit;
                assert_eq!(table.decode(&slot), Err(RecordError::Seal { sequence: 5 }), "word {word} bit {bit}");
                slot[word] ^= 1 << bit;
            }
        }
        slot[SEAL_WORD] = Seal::retired(5).0;
        assert_eq!(table.decode(&slot), Ok(None));
    }

    /// Sealed records that name what the table does not have say what that is.
    #[test]
    fn records_of_another_table_are_refused() {
        let table = Table::new("bytes:64");
        let (format, rows, sequence) = (&table.format, table.config.rows, 5);
        let mut words = vec![0; format.row_words()];
        format.format(RowId(3), &mut words);
        let decoded = |change: &dyn Fn(&mut Record)| {
            let mut record = Record::default();
            record.clear();
            record.push(format, RowId(rows - 1), Version(7), format.entries() - 1, &words);
            change(&mut record);
            table.decode(&table.sealed(&record)).map(|record| record.is_some())
        };
        let (row, entries) = (RowId(rows - 1), format.entries());
        assert_eq!(decoded(&|_| ()), Ok(true));
        let error = Err(RecordError::Row { sequence, row: RowId(rows), rows });
        assert_eq!(decoded(&|record| record.words[RECORD_HEADER_WORDS] += 1), error);
        let error = Err(RecordError::Slot { sequence, row, slot: entries as u64, entries });
        assert_eq!(decoded(&|record| record.words[RECORD_HEADER_WORDS + 1] += 1 << 32), error);
        // Cut to 8 bits it would be an entry.
        let error = Err(RecordError::Slot { sequence, row, slot: entries as u64 - 1 + 256, entries });
        assert_eq!(decoded(&|record| record.words[RECORD_HEADER_WORDS + 1] += 1 << 40), error);
        let offset = table.geometry.row(RowId(0)).offset();
        let error = Err(RecordError::Mark { sequence, offset });
        assert_eq!(decoded(&|record| record.free_extent(offset, Generation(3))), error);
        let full = Trailer(0).with_entry(entries - 1, Placement::Extent).0;
        let error = Err(RecordError::Extent { sequence, row, offset: 0 });
        assert_eq!(decoded(&|record| record.words[RECORD_HEADER_WORDS + 2] = full), error);
    }

    #[test]
    fn slot_words_round_trip() {
        for state in [SlotState::Free, SlotState::Live, SlotState::Recovering] {
            let word = SlotWord { state, generation: 1 << 40 };
            assert_eq!(SlotWord::decode(word.encode()), Some(word));
        }
        assert_eq!(SlotWord::decode(9), None);
    }
}
