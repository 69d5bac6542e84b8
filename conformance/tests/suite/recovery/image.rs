//! Memory images: loaded into a region, changed word by word, and distinguished by a hash that follows each change.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use guira_conformance::Bench;
use guira_fabric::SplitMix64;
use guira_fabric::memory::Ordering;
use guira_layout::RowId;

use crate::recovery::lane::Written;

/// Every word of both spaces of a region.
#[derive(Clone)]
pub struct Image {
    words: Vec<u64>,
    hash: u128,
    /// The first word of the rows, which the chunk table and the chunks follow: these words are the table's contents.
    rows_at: usize,
    chunks_end: usize,
    /// The hash of these words alone.
    contents_hash: u128,
}

/// Returns what one word adds to the hash. It has 128 bits: among 10^8 memories two have the same hash with a
/// probability of 10^-22.
fn mix(word: usize, value: u64) -> u128 {
    let scramble =
        |seed: u64| SplitMix64::mix(value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (word as u64 + 1).wrapping_mul(seed));
    u128::from(scramble(0xd6e8_feb8_6659_fd93)) << 64 | u128::from(scramble(0xa076_1d64_78bd_642f))
}

impl Image {
    /// Copies the memory of `bench`.
    pub fn of(bench: &Bench) -> Image {
        let (rows_at, chunks_end) = (bench.table.geometry().row(RowId(0)).word(), bench.region.memory().main.len());
        let mut image =
            Image { words: bench.words(), hash: 0, rows_at: rows_at as usize, chunks_end, contents_hash: 0 };
        (0..image.words.len()).for_each(|word| image.mix_in(word));
        image
    }

    /// Stores the image in `bench`, where no client may be alive.
    pub fn load(&self, bench: &Bench) {
        let memory = bench.region.memory();
        let (main, device) = self.words.split_at(memory.main.len());
        for (cells, words) in [(memory.main, main), (memory.device, device)] {
            cells.iter().zip(words).for_each(|(cell, word)| cell.store(*word, Ordering::Relaxed));
        }
    }

    /// Adds a word to the hashes, or removes it.
    fn mix_in(&mut self, word: usize) {
        let mixed = mix(word, self.words[word]);
        self.hash ^= mixed;
        if (self.rows_at..self.chunks_end).contains(&word) {
            self.contents_hash ^= mixed;
        }
    }

    pub fn apply(&mut self, written: &Written) {
        self.mix_in(written.word);
        self.words[written.word] = written.value;
        self.mix_in(written.word);
    }

    pub fn word(&self, word: usize) -> u64 {
        self.words[word]
    }

    /// Returns the hash of this memory.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Returns the hash of the rows, the chunk table and the chunks.
    pub fn contents_hash(&self) -> u128 {
        self.contents_hash
    }
}

/// A hasher that returns the low half of a value that is already a hash.
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

/// A set of memories, by hash.
pub type ImageSet = HashSet<u128, BuildHasherDefault<Identity>>;
/// A map from memories, by hash.
pub type Known<V> = HashMap<u128, V, BuildHasherDefault<Identity>>;
