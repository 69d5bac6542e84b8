//! The superblock, the first 4 KiB of the main space: the table's parameters, and a few words that change.

use std::fmt;

use crate::config::{EntryFormat, MAX_ZEROS};
use crate::{ChecksumKind, ConfigError, OffsetRule, Rules, TableConfig};

/// Bytes of the superblock.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Words of the superblock.
pub const SUPERBLOCK_WORDS: usize = 512;
/// Index of the word that holds the [`TableState`].
pub const STATE_WORD: usize = 64;
/// Index of the word from which extent generations are drawn, by FETCH-ADD.
pub const GENERATION_WORD: usize = 65;
/// Index of the word that counts recoveries of dead clients, by FETCH-ADD.
pub const RECOVERIES_WORD: usize = 66;
/// Index of the word with the number of chunks that have memory, if the table was created with fewer than it may have;
/// otherwise 0. [R-GROW-15]
pub const CHUNKS_WORD: usize = 67;
/// Index of the first of the words to which clients add their event counts, by FETCH-ADD. [R-TOTALS-1]
pub const TOTALS_WORD: usize = 128;
/// Number of words for event counts.
pub const TOTALS_WORDS: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"GUIRATAB");
/// Version of the layout, incremented whenever the meaning of a table's bytes changes.
const VERSION: u64 = 5;
const MAGIC_WORD: usize = 0;
const VERSION_WORD: usize = 1;
const INCARNATION_WORD: usize = 2;
const TABLE_WORD: usize = 3;
const FINGERPRINT_WORD: usize = 4;
/// Index of the word with the rows of a segment and, in its upper half, the segments of a new table that grows; 0 in a
/// table that is not divided, as in all tables of programs that know no segments, which refuse any other value.
const SEGMENT_WORD: usize = 5;
const INITIAL_SEGMENTS_SHIFT: u32 = 32;
/// Index of the word with the chunks that a table which grows is created with; 0 if it has all of them.
const INITIAL_CHUNKS_WORD: usize = 6;
const CONFIG_WORD: usize = 8;
const OFFSETS_WORD: usize = CONFIG_WORD + 15;
const SECRET_WORD: usize = OFFSETS_WORD + MAX_ZEROS + 1;
const SECRET_WORDS: usize = 4;
const CHECKED_WORDS: usize = SECRET_WORD + SECRET_WORDS;
/// Position of the path rows in the word of the client slots.
const PATH_ROWS_SHIFT: u32 = 32;
/// Position of the repair regions in the word of the client slots.
const REPAIR_REGIONS_SHIFT: u32 = 48;
const FINGERPRINT_SEED: u64 = 0x6775_6972_6131;

const _: () = assert!(CHECKED_WORDS <= STATE_WORD, "the words that change lie behind those that are checked");
const _: () = assert!(SUPERBLOCK_WORDS as u64 * 8 == SUPERBLOCK_BYTES);
// Clients that open the table or draw generations read cache lines to which no event counts are added.
const _: () = assert!(TOTALS_WORD >= GENERATION_WORD + 16 && TOTALS_WORD + TOTALS_WORDS <= SUPERBLOCK_WORDS);

/// State of a table. The two words differ in many bits, so that no single flipped bit turns one into the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableState {
    /// In use.
    Live,
    /// Destroyed, or being destroyed: clients may not change it any more.
    Destroyed,
}

impl TableState {
    const LIVE: u64 = 0x4c49_5645_4c49_5645;
    const DESTROYED: u64 = 0xdead_dead_dead_dead;

    /// Returns the word of the state.
    pub const fn encode(self) -> u64 {
        match self {
            TableState::Live => TableState::LIVE,
            TableState::Destroyed => TableState::DESTROYED,
        }
    }

    /// Returns the state that a word encodes, if any.
    pub const fn decode(word: u64) -> Option<TableState> {
        match word {
            TableState::LIVE => Some(TableState::Live),
            TableState::DESTROYED => Some(TableState::Destroyed),
            _ => None,
        }
    }
}

/// 256 random bits from which the keys of a table's checksums are derived. Anyone who may read the table knows them;
/// without them, nobody can choose bytes that make a torn row look whole. [R-ROW-1]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u64; SECRET_WORDS]);

impl fmt::Debug for Secret {
    /// Omits the bits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The superblock of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Random number, drawn each time the memory is formatted, and part of every checksum: memory that was lost or that
    /// belongs to an older table never verifies.
    pub incarnation: u64,
    /// Random number, drawn when the table is created.
    pub table: u64,
    /// Random bits, drawn when the table is created. Its checksums depend on them.
    pub secret: Secret,
    /// The table's parameters.
    pub config: TableConfig,
}

/// The first bytes of the region are not a superblock that this program can use. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// There are fewer words than a superblock has.
    #[error("the region holds {words} words, fewer than a superblock has")]
    Truncated {
        /// The number of words.
        words: usize,
    },
    /// The region is formatted, but not as a table.
    #[error("not a Guira table: its first word is {found:#018x}")]
    Foreign {
        /// The region's first word.
        found: u64,
    },
    /// The region was never formatted: its creator died, or the memory node lost its memory.
    #[error("the region holds no table: its superblock is empty")]
    Empty,
    /// The table has a later or an earlier format.
    #[error(
        "the table was made by another version of Guira: its format is {found}, but this program supports {supported}; \
         to carry its records over, dump it with the program that made it (guira dump), and load that into a new table \
         with this one (guira load)"
    )]
    Version {
        /// The table's format.
        found: u64,
        /// This program's format.
        supported: u64,
    },
    /// The parameters do not match their fingerprint.
    #[error("the superblock is damaged: fingerprint {stored:#018x}, computed {computed:#018x}")]
    Corrupt {
        /// The fingerprint in the superblock.
        stored: u64,
        /// The fingerprint of its words.
        computed: u64,
    },
    /// The parameters match their fingerprint, but this program does not know the value of one of them: a later version
    /// wrote it.
    #[error("the superblock's word {word} has the unknown value {found:#x}: another version of Guira may know it")]
    Meaning {
        /// The index of the word.
        word: usize,
        /// Its value.
        found: u64,
    },
    /// The state word is neither that of a live table nor that of a destroyed one.
    #[error("the superblock is damaged: the state word is {found:#018x}")]
    State {
        /// The state word.
        found: u64,
    },
    /// The parameters match their fingerprint, but they are not those of a valid table.
    #[error("the superblock has invalid parameters: {0}")]
    Config(ConfigError),
}

impl From<ConfigError> for SuperblockError {
    fn from(error: ConfigError) -> SuperblockError {
        SuperblockError::Config(error)
    }
}

impl Superblock {
    /// Encodes the superblock of a live table.
    pub fn encode(&self) -> Vec<u64> {
        let mut words = vec![0; SUPERBLOCK_WORDS];
        words[MAGIC_WORD] = MAGIC;
        words[VERSION_WORD] = VERSION;
        words[INCARNATION_WORD] = self.incarnation;
        words[TABLE_WORD] = self.table;
        encode_config(&self.config, &mut words);
        words[SECRET_WORD..][..SECRET_WORDS].copy_from_slice(&self.secret.0);
        words[FINGERPRINT_WORD] = fingerprint(&words);
        words[STATE_WORD] = TableState::Live.encode();
        words[GENERATION_WORD] = 1;
        words[CHUNKS_WORD] = self.config.initial_chunks.unwrap_or(0);
        words
    }

    /// Decodes the superblock in `words`, and the table's state.
    ///
    /// # Errors
    /// The words are not a superblock that this program can use.
    pub fn decode(words: &[u64]) -> Result<(Superblock, TableState), SuperblockError> {
        if words.len() < SUPERBLOCK_WORDS {
            return Err(SuperblockError::Truncated { words: words.len() });
        }
        match words[MAGIC_WORD] {
            MAGIC => {}
            0 if words[..CHECKED_WORDS].iter().all(|word| *word == 0) => return Err(SuperblockError::Empty),
            found => return Err(SuperblockError::Foreign { found }),
        }
        if words[VERSION_WORD] != VERSION {
            return Err(SuperblockError::Version { found: words[VERSION_WORD], supported: VERSION });
        }
        let (stored, computed) = (words[FINGERPRINT_WORD], fingerprint(words));
        if stored != computed {
            return Err(SuperblockError::Corrupt { stored, computed });
        }
        let unknown = |word| SuperblockError::Meaning { word, found: words[word] };
        if let Some(reserved) = (INITIAL_CHUNKS_WORD + 1..CONFIG_WORD).find(|word| words[*word] != 0) {
            return Err(unknown(reserved));
        }
        let config = decode_config(words).map_err(unknown)?;
        config.check()?;
        let found = words[STATE_WORD];
        let state = TableState::decode(found).ok_or(SuperblockError::State { found })?;
        let secret = Secret(std::array::from_fn(|i| words[SECRET_WORD + i]));
        Ok((Superblock { incarnation: words[INCARNATION_WORD], table: words[TABLE_WORD], secret, config }, state))
    }

    /// Returns the fingerprint of the superblock: the same for all clients of one formatting of one table, and almost
    /// certainly different for any other.
    pub fn fingerprint(&self) -> u64 {
        self.encode()[FINGERPRINT_WORD]
    }

    /// Returns the seed of every checksum in the table.
    pub fn checksum_seed(&self) -> u64 {
        self.table.rotate_left(32) ^ self.incarnation
    }
}

fn fingerprint(words: &[u64]) -> u64 {
    let mut checked = [0; CHECKED_WORDS];
    checked.copy_from_slice(&words[..CHECKED_WORDS]);
    checked[FINGERPRINT_WORD] = 0;
    crate::sum::bytes_checksum(&checked, FINGERPRINT_SEED)
}

fn encode_config(config: &TableConfig, words: &mut [u64]) {
    let fields = [
        config.rows,
        u64::from(config.row_bytes),
        u64::from(config.entries_per_row),
        config.format.encode(),
        u64::from(config.checksum.code()),
        u64::from(config.version_bits),
        match config.offset_rule {
            OffsetRule::Printed => 1,
            OffsetRule::Odd => 2,
            OffsetRule::Independent => 3,
        },
        u64::from(config.rows_per_lock),
        u64::from(config.lock_bits),
        config.physical_locks,
        u64::from(config.max_clients)
            | u64::from(config.max_path_rows) << PATH_ROWS_SHIFT
            | u64::from(config.repair_regions) << REPAIR_REGIONS_SHIFT,
        config.chunk_bytes,
        config.chunks,
        config.hash_seed,
        encode_rules(config.rules),
    ];
    let [rows, initial] = [config.segment_rows, config.initial_segments].map(|number| number.map_or(0, u64::from));
    words[SEGMENT_WORD] = rows | initial << INITIAL_SEGMENTS_SHIFT;
    words[INITIAL_CHUNKS_WORD] = config.initial_chunks.unwrap_or(0);
    words[CONFIG_WORD..OFFSETS_WORD].copy_from_slice(&fields);
    words[OFFSETS_WORD..SECRET_WORD].copy_from_slice(&config.offsets);
}

/// Decodes the parameters in `words`.
///
/// # Errors
/// The index of a word with an unknown value.
fn decode_config(words: &[u64]) -> Result<TableConfig, usize> {
    let fields = Fields(words);
    let [segment_rows, initial_segments] = decode_segments(words[SEGMENT_WORD]).ok_or(SEGMENT_WORD)?;
    let initial_chunks = Some(words[INITIAL_CHUNKS_WORD]).filter(|chunks| *chunks > 0);
    if initial_chunks.is_some() && initial_segments.is_none() {
        return Err(INITIAL_CHUNKS_WORD);
    }
    let mut offsets = [0; MAX_ZEROS + 1];
    offsets.copy_from_slice(&words[OFFSETS_WORD..SECRET_WORD]);
    Ok(TableConfig {
        rows: fields.number(0)?,
        segment_rows,
        initial_segments,
        row_bytes: fields.number(1)?,
        entries_per_row: fields.number(2)?,
        format: fields.read(3, EntryFormat::decode)?,
        checksum: fields.read(4, |code| ChecksumKind::from_code(code.try_into().ok()?))?,
        version_bits: fields.number(5)?,
        offset_rule: fields.read(6, decode_offset_rule)?,
        rows_per_lock: fields.number(7)?,
        lock_bits: fields.number(8)?,
        physical_locks: fields.number(9)?,
        max_clients: fields.read(10, |word| (word & 0xffff_ffff).try_into().ok())?,
        max_path_rows: fields.read(10, |word| (word >> PATH_ROWS_SHIFT & 0xffff).try_into().ok())?,
        repair_regions: fields.read(10, |word| (word >> REPAIR_REGIONS_SHIFT).try_into().ok())?,
        chunk_bytes: fields.number(11)?,
        chunks: fields.number(12)?,
        initial_chunks,
        hash_seed: fields.number(13)?,
        offsets,
        rules: fields.read(14, decode_rules)?,
    })
}

/// Decodes the rows of a segment, and the segments of a new table that grows; 0 stands for none. Only a table with
/// segments grows.
fn decode_segments(word: u64) -> Option<[Option<u32>; 2]> {
    let [rows, initial] =
        [word as u32, (word >> INITIAL_SEGMENTS_SHIFT) as u32].map(|number| (number != 0).then_some(number));
    (rows.is_some() || initial.is_none()).then_some([rows, initial])
}

/// The words of the parameters.
struct Fields<'w>(&'w [u64]);

impl Fields<'_> {
    /// Decodes parameter `field` by `read`; if that fails, returns the index of its word.
    fn read<T>(&self, field: usize, read: impl FnOnce(u64) -> Option<T>) -> Result<T, usize> {
        let word = CONFIG_WORD + field;
        read(self.0[word]).ok_or(word)
    }

    fn number<T: TryFrom<u64>>(&self, field: usize) -> Result<T, usize> {
        self.read(field, |word| word.try_into().ok())
    }
}

fn decode_offset_rule(word: u64) -> Option<OffsetRule> {
    match word {
        1 => Some(OffsetRule::Printed),
        2 => Some(OffsetRule::Odd),
        3 => Some(OffsetRule::Independent),
        _ => None,
    }
}

/// Decodes the rules. An unknown rule is an error, because this program would not follow it.
fn decode_rules(word: u64) -> Option<Rules> {
    let [commit_records, lock_both_rows, validate_misses, map_full_rows] =
        std::array::from_fn(|bit| word >> bit & 1 != 0);
    let rules = Rules { commit_records, lock_both_rows, validate_misses, map_full_rows };
    (encode_rules(rules) == word).then_some(rules)
}

fn encode_rules(rules: Rules) -> u64 {
    let bits = [rules.commit_records, rules.lock_both_rows, rules.validate_misses, rules.map_full_rows];
    bits.into_iter().rev().fold(0, |word, bit| word << 1 | u64::from(bit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Preset, PresetOptions};

    fn options() -> PresetOptions {
        PresetOptions {
            capacity: 5_000,
            format: "bytes:64".parse().unwrap(),
            extent_bytes: None,
            max_clients: None,
            hash_seed: 77,
            device_bytes: u64::MAX,
        }
    }

    fn superblock(preset: Preset) -> Superblock {
        let config = preset.config(&options()).unwrap();
        Superblock { incarnation: 5, table: 9, secret: Secret([1, 2, 3, 4]), config }
    }

    #[test]
    fn superblocks_round_trip() {
        for preset in Preset::ALL {
            let superblock = superblock(preset);
            assert_eq!(Superblock::decode(&superblock.encode()), Ok((superblock.clone(), TableState::Live)));
        }
    }

    /// [R-GROW-1] A table in segments says so, and has possible segments.
    #[test]
    fn segments_round_trip() {
        let options = PresetOptions { format: "fixed:8:8".parse().unwrap(), ..options() };
        let config = Preset::Hardened.config_of_segments(11, &options).unwrap();
        let superblock = Superblock { config, ..superblock(Preset::Hardened) };
        assert_eq!(Superblock::decode(&superblock.encode()), Ok((superblock.clone(), TableState::Live)));
        for segment_rows in [1, 32, 96, 2048, 1 << 31] {
            let config = TableConfig { segment_rows: Some(segment_rows), ..superblock.config.clone() };
            let refused = Superblock::decode(&Superblock { config, ..superblock.clone() }.encode());
            assert!(matches!(refused, Err(SuperblockError::Config(_))), "{segment_rows}: {refused:?}");
        }
    }

    /// [R-GROW-2] A table that grows says with how many segments it was created, and has room for more.
    #[test]
    fn growing_tables_round_trip() {
        let options = PresetOptions { format: "fixed:8:8".parse().unwrap(), ..options() };
        let config = Preset::Hardened.config_that_grows(11, 1 << 10, &options).unwrap();
        let superblock = Superblock { config, ..superblock(Preset::Hardened) };
        assert_eq!(Superblock::decode(&superblock.encode()), Ok((superblock.clone(), TableState::Live)));
        let refused = |change: &dyn Fn(&mut TableConfig), name: &str| {
            let mut config = superblock.config.clone();
            change(&mut config);
            match Superblock::decode(&Superblock { config, ..superblock.clone() }.encode()) {
                Err(SuperblockError::Config(ConfigError::OutOfRange { name: found, .. })) => assert_eq!(found, name),
                other => panic!("{name}: {other:?}"),
            }
        };
        for initial in [1 << 10, 1 << 11, 1 << 25] {
            refused(&|config| config.initial_segments = Some(initial), "initial_segments");
        }
        refused(&|config| config.rows = (1 << 19) * 1024, "rows");
        refused(&|config| config.rows = 1536 * 1024, "rows");
    }

    /// [R-GROW-15] A table whose extent space grows says with how many chunks it was created.
    #[test]
    fn initial_chunks_round_trip() {
        let config = Preset::Hardened.config_that_grows(2, 8, &options()).unwrap();
        for initial in [None, Some(1), Some(config.chunks)] {
            let config = TableConfig { initial_chunks: initial, ..config.clone() };
            let superblock = Superblock { config, ..superblock(Preset::Hardened) };
            let words = superblock.encode();
            assert_eq!(words[CHUNKS_WORD], initial.unwrap_or(0));
            assert_eq!(Superblock::decode(&words), Ok((superblock, TableState::Live)));
        }
        let refused = |config: TableConfig| {
            Superblock::decode(&Superblock { config, ..superblock(Preset::Hardened) }.encode()).expect_err("refused")
        };
        let too_many = refused(TableConfig { initial_chunks: Some(config.chunks + 1), ..config });
        let SuperblockError::Config(ConfigError::OutOfRange { name, .. }) = too_many else { panic!("{too_many}") };
        assert_eq!(name, "initial_chunks");
        let fixed = TableConfig { initial_chunks: Some(1), ..Preset::Hardened.config(&options()).unwrap() };
        assert_eq!(refused(fixed), SuperblockError::Meaning { word: INITIAL_CHUNKS_WORD, found: 1 });
    }

    /// [R-HASH-2] Tables that differ in their offset rule only have different fingerprints.
    #[test]
    fn every_offset_rule_round_trips() {
        let mut prints = Vec::new();
        for rule in [OffsetRule::Printed, OffsetRule::Odd, OffsetRule::Independent] {
            let mut superblock = superblock(Preset::Hardened);
            superblock.config.offset_rule = rule;
            assert_eq!(Superblock::decode(&superblock.encode()), Ok((superblock.clone(), TableState::Live)));
            prints.push(superblock.fingerprint());
        }
        assert!(prints[0] != prints[1] && prints[1] != prints[2] && prints[0] != prints[2]);
    }

    #[test]
    fn every_flipped_bit_of_the_checked_words_is_detected() {
        let words = superblock(Preset::Hardened).encode();
        for word in (0..CHECKED_WORDS).chain([STATE_WORD]) {
            for bit in 0..64 {
                let mut damaged = words.clone();
                damaged[word] ^= 1 << bit;
                assert!(Superblock::decode(&damaged).is_err(), "word {word} bit {bit}");
            }
        }
    }

    #[test]
    fn errors_say_why_words_are_no_superblock() {
        assert_eq!(Superblock::decode(&[0; 8]), Err(SuperblockError::Truncated { words: 8 }));
        assert_eq!(Superblock::decode(&[0; 512]), Err(SuperblockError::Empty));
        assert_eq!(Superblock::decode(&[7; 512]), Err(SuperblockError::Foreign { found: 7 }));
        let mut words = superblock(Preset::Tiny).encode();
        // [R-OPEN-1] The version is checked before all words whose meaning depends on it.
        for found in [0, 1, 2, 3, 4, 6] {
            words[VERSION_WORD] = found;
            words[CONFIG_WORD + 14] ^= 1 << 63;
            let error = Superblock::decode(&words).unwrap_err();
            assert_eq!(error, SuperblockError::Version { found, supported: VERSION });
            let text = error.to_string();
            assert!(text.contains("another version of Guira") && text.contains("(guira dump)"), "{text}");
        }
    }

    /// [R-OPEN-1] A superblock that is intact but has an unknown value is not opened.
    #[test]
    fn unknown_values_are_refused() {
        let unknown = [(SEGMENT_WORD, 1 << 32), (6, 1), (7, 1 << 63)];
        for (word, found) in
            unknown.into_iter().chain([(4, 4), (6, 4), (14, 31)].map(|(i, found)| (CONFIG_WORD + i, found)))
        {
            let mut words = superblock(Preset::Tiny).encode();
            words[word] = found;
            words[FINGERPRINT_WORD] = fingerprint(&words);
            assert_eq!(Superblock::decode(&words), Err(SuperblockError::Meaning { word, found }));
        }
    }
}
