//! A harness for the superblock, and for the addresses that follow from it.

use guira_layout::{
    ChecksumKind, ConfigError, EntryFormat, Geometry, LockId, MAX_ROW_WORDS, OffsetRule, Preset, PresetOptions, RowId,
    STATE_WORD, SUPERBLOCK_BYTES, SUPERBLOCK_WORDS, Secret, Superblock, SuperblockError, TableState,
};

use super::case::{CASE_BYTES, Case, heads};
use super::feed::{Feed, bytes_of, words_of};
use super::{Answer, Seed};

// These values are as docs/layout.md says.
const MAGIC: u64 = 0x4241_5441_5249_5547;
const VERSION: u64 = 5;
const FINGERPRINT_WORD: usize = 4;
const CHECKED_WORDS: usize = 60;
const FINGERPRINT_SEED: u64 = 0x6775_6972_6131;
/// Words of a seed; those behind them are zero.
const SEED_WORDS: usize = STATE_WORD + 2;

/// Decodes the first words of a region.
///
/// # Panics
/// If a promise of superblocks or addresses is broken.
pub fn superblock(data: &[u8]) -> Answer {
    let mut words = words_of(data);
    let mut answer = decoded(&words);
    words.resize(words.len().max(SUPERBLOCK_WORDS), 0);
    if answer == Answer::Refused {
        answer = decoded(&words);
    }
    (words[0], words[1]) = (MAGIC, VERSION);
    words[FINGERPRINT_WORD] = fingerprint(&words);
    let found = Superblock::decode(&words);
    let is_known = |error: &SuperblockError| {
        use SuperblockError::{Config, Meaning, State};
        matches!(error, Config(_) | Meaning { .. } | State { .. })
    };
    assert!(found.as_ref().err().is_none_or(is_known), "its fingerprint is right: {found:?}");
    decoded(&words);
    words[STATE_WORD] = TableState::Live.encode();
    decoded(&words);
    answer
}

/// Computes the fingerprint of a superblock's words.
fn fingerprint(words: &[u64]) -> u64 {
    let mut checked = words[..CHECKED_WORDS].to_vec();
    checked[FINGERPRINT_WORD] = 0;
    guira_layout::sum::bytes_checksum(&checked, FINGERPRINT_SEED)
}

/// Checks that words that decode encode to themselves and describe a possible table, and that others are refused with
/// the right reason. [R-OPEN-1]
fn decoded(words: &[u64]) -> Answer {
    let error = match Superblock::decode(words) {
        Ok((superblock, state)) => {
            let again = superblock.encode();
            assert_eq!(again[..CHECKED_WORDS], words[..CHECKED_WORDS]);
            assert_eq!(state.encode(), words[STATE_WORD]);
            assert_eq!(superblock.fingerprint(), words[FINGERPRINT_WORD]);
            consistent(&superblock);
            return Answer::Accepted;
        }
        Err(error) => error,
    };
    match &error {
        SuperblockError::Truncated { words: count } => assert!(*count == words.len() && *count < SUPERBLOCK_WORDS),
        SuperblockError::Foreign { found } => assert!(*found == words[0] && *found != MAGIC),
        SuperblockError::Empty => assert!(words[..CHECKED_WORDS].iter().all(|word| *word == 0)),
        SuperblockError::Version { found, .. } => assert!(*found == words[1] && *found != VERSION),
        SuperblockError::Corrupt { stored, computed } => {
            assert_eq!((*stored, *computed), (words[FINGERPRINT_WORD], fingerprint(words)));
            assert_ne!(stored, computed);
        }
        SuperblockError::State { found } => {
            assert!(*found == words[STATE_WORD] && TableState::decode(*found).is_none());
        }
        SuperblockError::Meaning { word, found } => {
            assert!((5..CHECKED_WORDS).contains(word) && words[*word] == *found)
        }
        other => assert!(!other.to_string().is_empty()),
    }
    Answer::Refused
}

/// Checks what a superblock promises that was decoded or derived from a preset.
pub(super) fn consistent(superblock: &Superblock) {
    let config = &superblock.config;
    config.check().expect("the parameters were checked");
    assert_eq!(Superblock::decode(&superblock.encode()), Ok((superblock.clone(), TableState::Live)));
    let geometry = match Geometry::new(config) {
        Ok(geometry) => geometry,
        Err(error) => {
            assert!(matches!(error, ConfigError::TooLarge { .. }), "{error}");
            return;
        }
    };
    assert!(geometry.main_bytes() + geometry.device_bytes() < 1 << 62);
    areas_follow_each_other(&Case::of(superblock.clone()));
}

/// Checks that no two areas share a byte, and that all lie inside their space.
fn areas_follow_each_other(case: &Case) {
    let (config, geometry, rows) = (case.config(), &case.geometry, &case.rows);
    let slot_bytes = geometry.slot_words() as u64 * 8;
    let last_slot = geometry.slot(config.max_clients - 1).offset();
    let chunk_table = geometry.row(RowId(config.rows)).offset();
    let mut end = geometry.superblock_word(SUPERBLOCK_WORDS).offset();
    assert!(end == SUPERBLOCK_BYTES && geometry.slot(0).offset() == end);
    assert_eq!(last_slot + slot_bytes, end + slot_bytes * u64::from(config.max_clients));
    let leases_end = match config.repair_regions.checked_sub(1) {
        Some(last) => {
            assert_eq!(geometry.lease(0).offset(), last_slot + slot_bytes);
            geometry.lease(last).offset() + 8
        }
        None => last_slot + slot_bytes,
    };
    assert!(leases_end <= geometry.row(RowId(0)).offset());
    let trailer = geometry.trailer(RowId(config.rows - 1), rows).offset();
    assert_eq!(trailer + 16, chunk_table, "a row ends with its trailer");
    assert!(rows.entries() * rows.entry_words() + 2 <= rows.row_words() && rows.row_words() <= MAX_ROW_WORDS);
    end = chunk_table;
    if config.chunks > 0 {
        assert!(geometry.chunk_word(0).offset() >= end);
        assert!(geometry.chunk_word(config.chunks - 1).offset() + 8 <= geometry.chunk(0).offset());
        end = geometry.chunk(config.chunks - 1).offset() + config.chunk_bytes;
        assert_eq!(geometry.chunk_of(end - 1), Some((config.chunks - 1, config.chunk_bytes - 1)));
    } else {
        assert!(config.chunk_bytes == 0 && !config.format.has_extents());
    }
    assert!(end <= geometry.main_bytes() && geometry.chunk_of(end).is_none());
    let last_lock = case.locks.mask(LockId(config.physical_locks - 1));
    assert!(last_lock.word < case.locks.words());
    assert!(case.locks.addr(last_lock.word).offset() + 8 <= geometry.device_bytes());
    for row in [0, config.rows / 2, config.rows - 1] {
        assert!(case.locks.lock_of(RowId(row)).0 < config.physical_locks);
    }
}

/// Returns seeds: tables of every preset, tables with each parameter at one of its limits, a destroyed one, and
/// non-tables.
pub(super) fn seeds() -> Vec<Seed> {
    let words = |superblock: &Superblock| superblock.encode()[..SEED_WORDS].to_vec();
    let mut seeds = Vec::new();
    let mut add = |name: &str, words: &[u64]| seeds.push((name.to_owned(), bytes_of(words)));
    for preset in Preset::ALL {
        for format in ["fixed:8:8", "bytes:64"] {
            let superblock = superblock_of(preset, format);
            add(&format!("{preset}-{}", format.replace(':', "-")), &words(&superblock));
        }
    }
    for (name, head) in heads().into_iter().step_by(5) {
        assert_eq!(head.len(), CASE_BYTES);
        add(&format!("drawn-{name}"), &words(&Case::draw(&mut Feed(&head)).superblock));
    }
    let mut superblock = superblock_of(Preset::Paper, "fixed:4:4");
    superblock.config.checksum = ChecksumKind::Nh;
    superblock.config.offset_rule = OffsetRule::Odd;
    superblock.config.max_path_rows = 16;
    add("mixed", &words(&superblock));
    let mut compared = superblock_of(Preset::Paper, "fixed:4:4");
    compared.config.offset_rule = OffsetRule::Independent;
    compared.config.rows = 1024;
    compared.config.offsets = [1; 33];
    compared.config.rows_per_lock = 512;
    compared.config.physical_locks = 2;
    compared.config.repair_regions = 2;
    compared.config.max_path_rows = 32;
    add("independent-rows-wide-locks", &words(&compared));
    let mut divided = superblock_of(Preset::Hardened, "fixed:8:8");
    (divided.config.rows, divided.config.segment_rows, divided.config.offsets) = (11 * 1024, Some(1024), [1; 33]);
    divided.config.physical_locks = 64;
    add("segments", &words(&divided));
    let mut destroyed = words(&superblock);
    destroyed[STATE_WORD] = TableState::Destroyed.encode();
    add("destroyed", &destroyed);
    let mut reserved = words(&superblock);
    reserved[6] = 1;
    reserved[FINGERPRINT_WORD] = fingerprint(&reserved);
    add("reserved-word", &reserved);
    add("empty", &[0; 8]);
    add("whole", &superblock.encode());
    seeds
}

fn superblock_of(preset: Preset, format: &str) -> Superblock {
    let format: EntryFormat = format.parse().expect("a valid format");
    let options = PresetOptions {
        capacity: 5_000,
        format,
        extent_bytes: None,
        max_clients: None,
        hash_seed: 77,
        device_bytes: u64::MAX,
    };
    Superblock {
        incarnation: 5,
        table: 9,
        secret: Secret([3; 4]),
        config: preset.config(&options).expect("valid parameters"),
    }
}
