//! Row predictors of a run, as they are after many lookups: a run is too short for clients to fill them.
//!
//! Invariant: what a predictor has learned follows from the run's seed, its popularity and the filled table.

use std::sync::Arc;

use guira_fabric::memory::Ordering;
use guira_rcuckoo::RowPredictor;

use super::filled::FilledTable;
use super::run::{Queues, Run, RunError};
use crate::steady::Progress;
use crate::workload::{Rng, Zipf};

/// A predictor learns in lessons of this many lookups for each of its bytes.
const LOOKUPS_PER_BYTE: u64 = 4;
/// It has learned enough when a lesson has hardly fewer wrong guesses than the one before: 95 of 100.
const SAME_PERCENT: u64 = 95;
/// The most lessons.
const MOST_LESSONS: u64 = 16;
/// Lookups between two calls of the progress function.
const PROGRESS_LOOKUPS: u64 = 1 << 20;
/// The number of the stream of random numbers that are drawn for this, which no client has.
const STREAM: u64 = u64::MAX;

/// The predictors of all clients.
pub(super) struct Predictors {
    /// A predictor that has learned; each client or host has a copy.
    learned: Option<RowPredictor>,
    /// The copies that the clients of one host share.
    by_host: Vec<Arc<RowPredictor>>,
}

impl Predictors {
    /// Creates the predictors of a run.
    ///
    /// # Errors
    /// [`RunError::Stopped`].
    pub(super) fn new(
        run: &Run,
        filled: &FilledTable,
        popularity: Option<&Zipf>,
        progress: Progress<'_>,
    ) -> Result<Predictors, RunError> {
        let Some(popularity) = popularity.filter(|_| run.predictor_bytes > 0) else {
            return Ok(Predictors { learned: None, by_host: Vec::new() });
        };
        let learned = learned(run, filled, popularity, progress)?;
        let hosts = if run.queues == Queues::PerHost { run.load.hosts } else { 0 };
        let by_host = (0..hosts).map(|_| Arc::new(learned.clone())).collect();
        Ok(Predictors { learned: Some(learned), by_host })
    }

    /// Returns the predictor of a client on `host`.
    pub(super) fn of_client(&self, host: u32) -> Option<Arc<RowPredictor>> {
        let shared = self.by_host.get(host as usize).map(Arc::clone);
        shared.or_else(|| self.learned.as_ref().map(|learned| Arc::new(learned.clone())))
    }
}

/// Returns a predictor that has learned from lookups of `popularity`.
fn learned(
    run: &Run,
    filled: &FilledTable,
    popularity: &Zipf,
    progress: Progress<'_>,
) -> Result<RowPredictor, RunError> {
    let (bytes, _) = run.predictors();
    let (predictor, table) = (RowPredictor::new(bytes), filled.table());
    let (rows, memory) = (table.rows(), filled.region().memory());
    let mut rng = Rng::stream(run.load.seed, STREAM);
    let (mut key, mut words) = (Vec::new(), vec![0; rows.row_words()]);
    // A predictor remembers a record in a byte, and no record in more.
    let lesson = LOOKUPS_PER_BYTE * filled.count().min(bytes as u64);
    let (mut wrong, mut wrong_before) = (0, u64::MAX);
    for lookup in 0..MOST_LESSONS * lesson {
        if lookup.is_multiple_of(PROGRESS_LOOKUPS) && progress(0).is_break() {
            return Err(RunError::Stopped);
        }
        if lookup > 0 && lookup.is_multiple_of(lesson) {
            if wrong * 100 >= wrong_before.saturating_mul(SAME_PERCENT) {
                break;
            }
            (wrong, wrong_before) = (0, wrong);
        }
        filled.records().key_into(popularity.sample(&mut rng), &mut key);
        let Ok(key) = table.key(&key) else { continue };
        let pair = key.rows();
        let first = table.geometry().row(pair.first).word() as usize;
        for (word, cell) in words.iter_mut().zip(&memory.main[first..]) {
            *word = cell.load(Ordering::Relaxed);
        }
        let is_first = rows.find(&words, &rows.probe(key.bytes(), key.digest()), 0).is_some();
        wrong += u64::from(predictor.expects_second(key.digest()) == is_first);
        predictor.learn(key.digest(), pair, if is_first { pair.first } else { pair.second }, lookup as u32);
    }
    Ok(predictor)
}
