//! Memories as values: loaded into a region, changed word by word, and told apart by a hash that follows each change.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use guira_conformance::Bench;
use guira_fabric::memory::Ordering;

use crate::recovery::lane::Written;

/// Every word of both spaces of a region.
#[derive(Clone)]
pub struct Image {
    words: Vec<u64>,
    hash: u128,
}

/// What one word adds to the hash. 128 bits: among 10^8 memories two have the same with a probability of 10^-22.
fn mix(word: usize, value: u64) -> u128 {
    let scramble = |seed: u64| {
        let mut z = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (word as u64 + 1).wrapping_mul(seed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    u128::from(scramble(0xd6e8_feb8_6659_fd93)) << 64 | u128::from(scramble(0xa076_1d64_78bd_642f))
}

impl Image {
    /// What `bench` holds now.
    pub fn of(bench: &Bench) -> Image {
        let words = bench.words();
        let hash = words.iter().enumerate().fold(0, |hash, (word, value)| hash ^ mix(word, *value));
        Image { words, hash }
    }

    /// Makes `bench` hold it. Nobody may be alive there.
    pub fn load(&self, bench: &Bench) {
        let memory = bench.region.memory();
        for (cell, word) in memory.main.iter().chain(memory.device).zip(&self.words) {
            cell.store(*word, Ordering::Relaxed);
        }
    }

    pub fn apply(&mut self, written: &Written) {
        let word = &mut self.words[written.word];
        self.hash ^= mix(written.word, *word) ^ mix(written.word, written.value);
        *word = written.value;
    }

    pub fn word(&self, word: usize) -> u64 {
        self.words[word]
    }

    /// Of this memory, and of nothing else.
    pub fn hash(&self) -> u128 {
        self.hash
    }
}

/// Takes the low half of a hash that is one already.
#[derive(Default)]
pub struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[..8]);
        self.0 = u64::from_le_bytes(word);
    }
}

/// Memories that were seen.
pub type Seen = HashSet<u128, BuildHasherDefault<Identity>>;
