//! Cause: unknown bits of the superblock, in the word of the rules and in the reserved words, were not checked,
//! although the fingerprint covers them.
//!
//! Effect: a table whose creator had set a later rule would have been changed by clients that do not obey it. The
//! fingerprint they computed of it was not the one it has.
//!
//! Fix: a superblock that decodes encodes to the same words; any other is refused, and the error names the word without
//! a meaning. [R-OPEN-1]

use guira_layout::{Preset, PresetOptions, SUPERBLOCK_WORDS, Secret, Superblock, SuperblockError};

/// Computes the fingerprint of a superblock's first 60 words, as docs/layout.md gives it.
fn fingerprint(words: &[u64]) -> u64 {
    let mut checked = words[..60].to_vec();
    checked[4] = 0;
    guira_layout::sum::bytes_checksum(&checked, 0x6775_6972_6131)
}

#[test]
fn unknown_rules_and_reserved_words_are_refused() {
    let options = PresetOptions {
        capacity: 1_000,
        format: "fixed:8:8".parse().unwrap(),
        extent_bytes: None,
        max_clients: None,
        hash_seed: 1,
        device_bytes: u64::MAX,
    };
    let config = Preset::Hardened.config(&options).unwrap();
    let mut words = Superblock { incarnation: 1, table: 2, secret: Secret([3; 4]), config }.encode();
    assert_eq!((words.len(), fingerprint(&words)), (SUPERBLOCK_WORDS, words[4]));
    for (word, bit) in [(22, 4), (22, 63), (5, 32), (6, 17), (7, 63)] {
        words[word] ^= 1 << bit;
        words[4] = fingerprint(&words);
        let found = words[word];
        assert_eq!(Superblock::decode(&words), Err(SuperblockError::Meaning { word, found }));
        words[word] ^= 1 << bit;
    }
}
