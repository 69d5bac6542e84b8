//! Reads of the memory of Guira's table without a protocol, a hash or a check: the physical limit of this machine.
//!
//! The addresses are computed before anything is timed. A lookup reads 64 bytes, the first line of the key's first row;
//! for longer values it reads as many bytes as a value has, anywhere in the region. `get_many` reads the whole first
//! row of each key, and prefetches both rows 32 keys ahead.

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use guira::{Store, Url};
use guira_fabric::{Addr, Lane, Region};
use guira_fabric_shm::{Access, Location, ShmRegion};

use crate::draws::Draws;
use crate::error::PeersError;
use crate::measure::{Job, MANY, Runner, Task, keys_of, timed};
use crate::record::{Key, Records, WORD_BYTES};

/// Words of a cache line.
const LINE_WORDS: usize = 8;

/// The mapped memory of a table.
pub struct Raw {
    region: ShmRegion,
    store: Store,
    words_read: usize,
    buffer: Vec<u64>,
}

impl Raw {
    /// Maps the memory of the table in `file`.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn open(file: &Path, value_bytes: usize) -> Result<Raw, PeersError> {
        let store = Store::open(&Url::file(file).map_err(guira::Error::from)?)?;
        let region = ShmRegion::open(&Location::file(file), Access::ReadOnly);
        let region = region.map_err(guira::Error::from)?;
        let words_read = (value_bytes / WORD_BYTES).max(LINE_WORDS);
        Ok(Raw { region, store, words_read, buffer: vec![0; words_read] })
    }

    /// The offset of the first word to read for each key.
    fn places(&self, keys: &[Key]) -> Vec<u32> {
        let words = self.region.main_words().len();
        let lines = (words - self.words_read) / LINE_WORDS;
        let table = self.store.table();
        let place = |key: &Key| {
            let digest = table.placement().digest(key);
            if self.words_read > LINE_WORDS {
                (digest % lines as u64) * LINE_WORDS as u64
            } else {
                table.geometry().row(table.placement().rows(digest).first).word()
            }
        };
        keys.iter().map(|key| place(key) as u32).collect()
    }

    /// The offsets of the first words of both rows of each key.
    fn rows(&self, keys: &[Key]) -> Vec<[u32; 2]> {
        let table = self.store.table();
        let word = |row| table.geometry().row(row).word() as u32;
        let pair = |key: &Key| table.placement().rows(table.placement().digest(key));
        keys.iter().map(pair).map(|pair| [word(pair.first), word(pair.second)]).collect()
    }

    fn get(&mut self, places: &[u32]) {
        let words = self.region.main_words();
        let mut sum = 0;
        for place in places {
            sum ^= read(words, *place as usize, &mut self.buffer);
        }
        black_box(sum);
    }

    fn dependent_get(&mut self, places: &[u32]) {
        let words = self.region.main_words();
        // Zero, which the compiler must not know.
        let nothing = black_box(0);
        let mut at = 0;
        for _ in 0..places.len() {
            let Some(place) = places.get(at) else {
                break;
            };
            let sum = read(words, *place as usize, &mut self.buffer);
            at = at.wrapping_add(1).wrapping_add((sum & nothing) as usize);
        }
        black_box(at);
    }

    fn get_many(&self, rows: &[[u32; 2]]) {
        let words = self.region.main_words();
        let lane = self.region.lane();
        let row_words = self.store.table().rows().row_words();
        let mut sum = 0;
        let ahead = rows.iter().skip(MANY).map(Some).chain(std::iter::repeat(None));
        for (rows, ahead) in rows.iter().zip(ahead) {
            for row in ahead.into_iter().flatten() {
                lane.prefetch(Addr::main(u64::from(*row) * WORD_BYTES as u64), row_words);
            }
            let first = rows[0] as usize;
            sum ^= fold(&words[first..first + row_words]);
        }
        black_box(sum);
    }
}

/// Reads one cache line, or copies more to `buffer`, as a caller that keeps the value would do.
#[inline(always)]
fn read(words: &[AtomicU64], place: usize, buffer: &mut [u64]) -> u64 {
    if let Some(line) = words[place..].first_chunk::<LINE_WORDS>().filter(|_| buffer.len() == LINE_WORDS) {
        return fold(line);
    }
    for (kept, word) in buffer.iter_mut().zip(&words[place..]) {
        *kept = word.load(Ordering::Relaxed);
    }
    black_box(&*buffer)[0]
}

#[inline(always)]
fn fold(words: &[AtomicU64]) -> u64 {
    words.iter().fold(0, |sum, word| sum ^ word.load(Ordering::Relaxed))
}

impl Runner for Raw {
    fn run(&mut self, job: &Job, draws: &Draws) -> Result<u64, PeersError> {
        let keys = keys_of(job, draws)?;
        match job.task {
            Task::Get => {
                let places = self.places(keys);
                timed(job, || {
                    self.get(&places);
                    Ok(())
                })
            }
            Task::DependentGet => {
                let places = self.places(keys);
                timed(job, || {
                    self.dependent_get(&places);
                    Ok(())
                })
            }
            Task::GetMany => {
                let rows = self.rows(keys);
                timed(job, || {
                    self.get_many(&rows);
                    Ok(())
                })
            }
            Task::YcsbA | Task::Update => Err(PeersError::Options("raw memory has no updates".to_owned())),
        }
    }

    /// Compares nothing: the words read are those of whole rows, not of values.
    fn verify(&mut self, _keys: &[Key], _records: &Records) -> Result<(), PeersError> {
        Ok(())
    }
}
