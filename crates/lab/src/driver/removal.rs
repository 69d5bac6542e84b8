//! Removal of the records that a run inserted: each worker keeps track of its inserts.
//!
//! Invariant: a record is removed only if this run inserted it. If that is unknown, because the connection was lost
//! during the insert, the record is removed only if it has this run's value.

use guira::Client;
use guira::{Effect, Error};
use serde::{Deserialize, Serialize};

use super::{Plan, RecordFormat};
use crate::workload::Generator;

/// Number of records that one call of the store removes.
const BATCH_RECORDS: usize = 64;
/// Number of consecutive calls that removed nothing after which a worker gives up.
const FAILURES_IN_A_ROW_MAX: u32 = 3;

/// The outcome of removing the records that a run had inserted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Records that are no longer in the table.
    pub removed: u64,
    /// Records that may still be in the table.
    pub left: u64,
    /// The first error.
    pub failure: Option<String>,
}

impl Removal {
    /// Adds the outcome of other records.
    pub fn merge(&mut self, other: Removal) {
        self.removed += other.removed;
        self.left += other.left;
        self.failure = self.failure.take().or(other.failure);
    }
}

/// One worker's future operations, and the records it has inserted.
pub(super) struct WorkerState {
    pub(super) generator: Generator,
    /// Number of records that it has inserted in the load phase: the first ones of its share.
    loaded: u64,
    /// Records whose insert failed or was refused, in order.
    refused: Vec<u64>,
    /// Records whose insert failed with an unknown effect.
    unsure: Vec<u64>,
    removal: Removal,
}

impl WorkerState {
    pub(super) fn new(generator: Generator) -> WorkerState {
        WorkerState { generator, loaded: 0, refused: Vec::new(), unsure: Vec::new(), removal: Removal::default() }
    }

    /// Notes that the next record to load was inserted.
    pub(super) fn note_loaded(&mut self) {
        self.loaded += 1;
    }

    /// Notes that a record which was to be inserted already exists.
    pub(super) fn note_existing(&mut self, record: u64) {
        self.refused.push(record);
    }

    /// Notes an insert that failed: of a record of the load phase, or of the generator's latest record.
    pub(super) fn note_failed(&mut self, record: u64, error: &Error) {
        self.refused.push(record);
        if error.effect() != Effect::None {
            self.unsure.push(record);
        }
    }

    /// The records that worker `number` has inserted.
    pub(super) fn inserted(&self, number: u32, plan: &Plan) -> impl Iterator<Item = u64> + use<'_> {
        let workers = u64::from(plan.workers);
        let loaded = (0..self.loaded).map(move |index| u64::from(number) + index * workers);
        let run = self.generator.inserted_records();
        loaded.chain(run.filter(|record| self.refused.binary_search(record).is_err()))
    }

    /// Removes the records that the worker inserted. Calls `progress` with the number removed since the previous call.
    /// Records that could not be removed count as left.
    pub(super) fn remove(&mut self, number: u32, plan: &Plan, client: &mut Client, progress: &dyn Fn(u64)) {
        let mut removal = self.nothing_removed(number, plan);
        let mut failures_in_a_row = 0;
        let mut records = self.inserted(number, plan).peekable();
        let mut keys: Vec<Vec<u8>> = Vec::with_capacity(BATCH_RECORDS);
        while records.peek().is_some() && failures_in_a_row < FAILURES_IN_A_ROW_MAX {
            keys.clear();
            keys.extend(records.by_ref().take(BATCH_RECORDS).map(|record| key(&plan.format, record)));
            let removed = removal.count(client.remove_many(&keys));
            failures_in_a_row = if removed == 0 { failures_in_a_row + 1 } else { 0 };
            progress(removed);
        }
        drop(records);
        let mut value = Vec::new();
        for record in &self.unsure {
            plan.format.value_into(*record, 0, &mut value);
            removal.count([client.compare_and_remove(&key(&plan.format, *record), &value)]);
        }
        self.removal = removal;
    }

    /// Counts all records that the worker inserted as left, because it could not open a client to remove them.
    pub(super) fn give_up(&mut self, number: u32, plan: &Plan, why: &Error) {
        self.removal = self.nothing_removed(number, plan);
        self.removal.failure = (self.removal.left > 0).then(|| why.to_string());
    }

    /// Takes the outcome of the worker's removal.
    pub(super) fn take_removal(&mut self) -> Removal {
        std::mem::take(&mut self.removal)
    }

    fn nothing_removed(&self, number: u32, plan: &Plan) -> Removal {
        let left = self.inserted(number, plan).count() + self.unsure.len();
        Removal { removed: 0, left: left as u64, failure: None }
    }
}

impl Removal {
    /// Counts the outcomes of more records. Returns the number of removed ones.
    fn count<T>(&mut self, results: impl IntoIterator<Item = Result<T, Error>>) -> u64 {
        let mut gone = 0;
        for result in results {
            match result {
                Ok(_) => gone += 1,
                Err(error) => _ = self.failure.get_or_insert_with(|| error.to_string()),
            }
        }
        self.removed += gone;
        self.left -= gone;
        gone
    }
}

fn key(format: &RecordFormat, record: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(format.key_bytes());
    format.key_into(record, &mut key);
    key
}
