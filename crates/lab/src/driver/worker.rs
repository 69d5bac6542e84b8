//! One worker: its client, its buffers, and the loop that executes and measures operations.

use std::fmt;
use std::time::Instant;

use guira::Client;
use guira::{Counters, Traffic};

use super::removal::WorkerState;
use super::tally::nanoseconds;
use super::{DriverError, LoadMode, PhaseTally, Plan, Verification};
use crate::workload::{Operation, ValueError, check_value};

/// A worker stops after this many consecutive failures: the table is full, fenced or gone, and each further operation
/// may take as long as its deadline.
const FAILURES_IN_A_ROW_MAX: u32 = 100;
/// Operations between two checks whether to stop, rare enough to cost nothing.
const STOP_INTERVAL: u64 = 64;

/// Records loaded between two calls of a progress function: at least a millisecond's work.
const PROGRESS_RECORDS: u64 = 4096;

/// One thread's part of one phase.
pub(super) struct Worker<'w> {
    plan: &'w Plan,
    number: u32,
    operations: u64,
    client: &'w mut Client,
    key: Vec<u8>,
    value: Vec<u8>,
    found: Vec<u8>,
    /// Version of the last value that this worker wrote; 0 is the version as loaded.
    version: u64,
    tally: PhaseTally,
    counters_before: Counters,
    started: Instant,
    stop: fn() -> bool,
}

/// The cause of a failed operation.
enum Failure {
    Store(guira::Error),
    Missing,
    Exists,
    Length { expected: usize, found: usize },
    Value(ValueError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Store(error) => error.fmt(f),
            Failure::Missing => f.write_str("the record is missing (was the table loaded with this seed?)"),
            Failure::Exists => f.write_str("the record exists already (was this workload run before?)"),
            Failure::Length { expected, found } => write!(f, "the value has {found} bytes instead of {expected}"),
            Failure::Value(error) => error.fmt(f),
        }
    }
}

impl Failure {
    /// Notes in `state` that the insert of `record` failed.
    fn note_in(&self, state: &mut WorkerState, record: u64) {
        match self {
            Failure::Store(error) => state.note_failed(record, error),
            _ => state.note_existing(record),
        }
    }
}

impl From<guira::Error> for Failure {
    fn from(error: guira::Error) -> Failure {
        Failure::Store(error)
    }
}

impl<'w> Worker<'w> {
    pub(super) fn new(
        plan: &'w Plan,
        number: u32,
        operations: u64,
        client: &'w mut Client,
        stop: fn() -> bool,
    ) -> Worker<'w> {
        Worker {
            plan,
            number,
            operations,
            key: Vec::with_capacity(plan.format.key_bytes()),
            value: Vec::with_capacity(plan.format.value_bytes()),
            found: Vec::with_capacity(plan.format.value_bytes()),
            version: 0,
            tally: PhaseTally::default(),
            counters_before: client.counters(),
            client,
            started: Instant::now(),
            stop,
        }
    }

    /// Returns the tally, with the time and the client's counters since the worker was created.
    pub(super) fn finish(mut self) -> PhaseTally {
        self.tally.counters = self.client.counters().since(&self.counters_before);
        self.tally.elapsed_ns = nanoseconds(self.started.elapsed());
        self.tally
    }

    /// Stores every record of this worker. Calls `progress` with the number stored since the previous call.
    pub(super) fn load(
        &mut self,
        mode: LoadMode,
        state: &mut WorkerState,
        progress: &dyn Fn(u64),
    ) -> Result<(), DriverError> {
        let mut traffic = self.client.traffic();
        let mut record = u64::from(self.number);
        let mut unreported = 0;
        while record < self.plan.spec.records {
            self.check_stop(record / u64::from(self.plan.workers))?;
            self.plan.format.key_into(record, &mut self.key);
            self.plan.format.value_into(record, 0, &mut self.value);
            let started = Instant::now();
            self.load_one(mode, state, record)?;
            let latency = started.elapsed();
            let cost = self.cost(&mut traffic);
            self.tally.operations.insert.success(&cost, Some(latency));
            record += u64::from(self.plan.workers);
            unreported += 1;
            if unreported == PROGRESS_RECORDS {
                progress(std::mem::take(&mut unreported));
            }
        }
        progress(unreported);
        Ok(())
    }

    /// Stores the record in the buffers.
    #[inline]
    fn load_one(&mut self, mode: LoadMode, state: &mut WorkerState, record: u64) -> Result<(), DriverError> {
        let failed = |source| DriverError::Store { attempt: format!("loading record {record}"), source };
        match mode {
            LoadMode::Replace => self.client.put(&self.key, &self.value).map(drop).map_err(failed),
            LoadMode::InsertOnly => match self.client.try_insert(&self.key, &self.value) {
                Ok(true) => {
                    state.note_loaded();
                    Ok(())
                }
                Ok(false) => Err(DriverError::Exists { record }),
                Err(error) => {
                    state.note_failed(record, &error);
                    Err(failed(error))
                }
            },
        }
    }

    /// Carries out and counts this worker's operations.
    pub(super) fn run(&mut self, state: &mut WorkerState) -> Result<(), DriverError> {
        let mut traffic = self.client.traffic();
        let (mut untimed, mut failures_in_a_row) = (0, 0);
        for done in 0..self.operations {
            self.check_stop(done)?;
            let (operation, record) = state.generator.next();
            self.plan.format.key_into(record, &mut self.key);
            untimed += 1;
            let started = (untimed == self.plan.latency_every).then(|| {
                untimed = 0;
                Instant::now()
            });
            let outcome = self.carry_out(operation, record);
            let latency = started.map(|started| started.elapsed());
            let cost = self.cost(&mut traffic);
            match outcome {
                Ok(()) => {
                    failures_in_a_row = 0;
                    self.tally.operations.of_mut(operation).success(&cost, latency);
                }
                Err(failure) => {
                    if operation == Operation::Insert {
                        failure.note_in(state, record);
                    }
                    // It may have waited until its deadline, and so may the next one.
                    self.stop_if_asked()?;
                    failures_in_a_row += 1;
                    self.tally.operations.of_mut(operation).failure();
                    self.tally.note(|| format!("{operation:?} of record {record}: {failure}"));
                    if failures_in_a_row == FAILURES_IN_A_ROW_MAX {
                        let number = self.number;
                        self.tally
                            .note(|| format!("worker {number} stopped after {failures_in_a_row} failures in a row"));
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends the phase if the caller wants it stopped; checks only every few operations.
    #[inline]
    fn check_stop(&self, done: u64) -> Result<(), DriverError> {
        if done.is_multiple_of(STOP_INTERVAL) { self.stop_if_asked() } else { Ok(()) }
    }

    fn stop_if_asked(&self) -> Result<(), DriverError> {
        if (self.stop)() { Err(DriverError::Stopped) } else { Ok(()) }
    }

    /// The traffic since `traffic`, which is then updated.
    #[inline]
    fn cost(&self, traffic: &mut Traffic) -> Traffic {
        let now = self.client.traffic();
        now.since(&std::mem::replace(traffic, now))
    }

    /// Carries out one operation on the record whose key is in `self.key`.
    #[inline]
    fn carry_out(&mut self, operation: Operation, record: u64) -> Result<(), Failure> {
        match operation {
            Operation::Read => self.read(record),
            Operation::Update => self.update(record),
            Operation::Insert => {
                self.plan.format.value_into(record, 0, &mut self.value);
                if self.client.try_insert(&self.key, &self.value)? { Ok(()) } else { Err(Failure::Exists) }
            }
            Operation::ReadModifyWrite => {
                self.read(record)?;
                self.update(record)
            }
        }
    }

    #[inline]
    fn read(&mut self, record: u64) -> Result<(), Failure> {
        self.found.clear();
        if !self.client.get_into(&self.key, &mut self.found)? {
            return Err(Failure::Missing);
        }
        match self.plan.verification {
            Verification::Off => Ok(()),
            Verification::EveryRead => self.verify(record),
        }
    }

    fn verify(&self, record: u64) -> Result<(), Failure> {
        let (expected, found) = (self.plan.format.value_bytes(), self.found.len());
        if expected != found {
            return Err(Failure::Length { expected, found });
        }
        check_value(record, &self.found).map(|_| ()).map_err(Failure::Value)
    }

    #[inline]
    fn update(&mut self, record: u64) -> Result<(), Failure> {
        self.version += 1;
        self.plan.format.value_into(record, self.version, &mut self.value);
        if self.client.update(&self.key, &self.value)? { Ok(()) } else { Err(Failure::Missing) }
    }
}
