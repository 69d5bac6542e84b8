//! Workers: what one operation after the other of a run does, whatever its store is, and what is counted of it.
//!
//! Invariants: virtual time alone decides what happens; nothing here is ordered by addresses or hashes of a map. An
//! operation counts if it ends in the measured time.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::baselines::{Change, Client, Error, ErrorKind, Outcome};
use guira_fabric::Region;
use guira_fabric_sim::{Sim, SimLane, SimRegion, Stopped};

use super::records::{Records, Repeats};
use super::run::{Load, RunError, RunStats};
use super::watch::{Watch, WriteKind};
use crate::steady::{Counts, Measurement, Next, Span, Steadiness};
use crate::workload::{Operation, Rng, Zipf};

/// Draws of a record that the store holds, of which nearly every one succeeds.
const DRAWS: usize = 64;

/// State that the workers of a run share.
pub(super) struct Work {
    pub(super) load: Load,
    pub(super) records: Records,
    /// The records with equal keys, if keys repeat. Only lookups are possible then.
    repeats: Option<Arc<Repeats>>,
    /// Records with which the store was filled: those below, but for `absent`.
    filled: u64,
    /// The records below `filled` that found no room, in ascending order.
    absent: Vec<u64>,
    pub(super) popularity: Option<Zipf>,
    pub(super) stats: RefCell<RunStats>,
    pub(super) watch: RefCell<Watch>,
    /// Records that workers began to insert.
    inserts: Cell<u64>,
    /// Whether operations that end are counted.
    is_measured: Cell<bool>,
    /// Whether workers stop after their current operation.
    is_over: Cell<bool>,
    /// The time at which the last insert had begun, if the run ended with it.
    ended_ns: Cell<Option<u64>>,
}

impl Work {
    /// Creates the state of a run on a store that was filled with records `0..filled`, but for `absent`.
    pub(super) fn new(load: Load, records: Records, filled: u64, absent: Vec<u64>) -> Work {
        let stats = RunStats { counts: Counts::of_clients(load.clients), ..RunStats::default() };
        let popularity = (filled > 0).then(|| Zipf::new(filled, load.theta));
        Work {
            load,
            records,
            repeats: None,
            filled,
            absent,
            popularity,
            stats: RefCell::new(stats),
            watch: RefCell::new(Watch::new(filled)),
            inserts: Cell::new(0),
            is_measured: Cell::new(false),
            is_over: Cell::new(false),
            ended_ns: Cell::new(None),
        }
    }

    /// Lets keys repeat.
    pub(super) fn repeating(self, repeats: Option<Arc<Repeats>>) -> Work {
        Work { repeats, ..self }
    }

    /// Whether the run has ended, and workers stop.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Runs the workers of `sim` until the measurement has ended, and then until each has ended its operation. `run`
    /// advances virtual time over a range of nanoseconds.
    pub(super) fn measure(
        &self,
        sim: &mut Sim,
        mut run: impl FnMut(&mut Sim, Range<u64>) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let Load { warm_ns, span, most_inserts, .. } = self.load;
        run(sim, 0..warm_ns)?;
        self.is_measured.set(true);
        let (mut measurement, mut before, mut end_ns) = (Measurement::new(span), sim.usage(), warm_ns);
        loop {
            let begin_ns = end_ns;
            end_ns += measurement.window_ns();
            run(sim, begin_ns..end_ns)?;
            let inserts_left = most_inserts.saturating_sub(self.inserts.get());
            match measurement.end_window(&mut self.stats.borrow_mut().counts, inserts_left) {
                Next::Longer => {}
                Next::Anew => before = sim.usage(),
                Next::End => break,
            }
        }
        self.is_measured.set(false);
        self.is_over.set(true);
        let mut stats = self.stats.borrow_mut();
        stats.steadiness = Steadiness {
            span_ns: self.ended_ns.get().map_or(measurement.steadiness().span_ns, |ended_ns| ended_ns - warm_ns),
            ..measurement.steadiness()
        };
        stats.usage = sim.usage().since(&before);
        stats.element_bytes = sim.element_bytes();
        stats.inserts = self.inserts.get() - stats.full;
        if span == Span::UntilFull && warm_ns > 0 && self.ended_ns.get() == Some(warm_ns) {
            stats.violation(|| "the last record was inserted before the measurement began".to_owned());
        }
        drop(stats);
        if sim.run() != Stopped::Ended {
            self.stats.borrow_mut().violation(|| "some clients never end".to_owned());
        }
        Ok(())
    }

    /// Checks that the histories of sampled records are linearizable.
    pub(super) fn check_histories(&self) {
        let checked = self.watch.borrow().check();
        let mut stats = self.stats.borrow_mut();
        match checked {
            Ok(checked) => stats.watched = checked.answered + checked.pending,
            Err(refusal) => stats.violation(|| refusal.to_string()),
        }
    }

    /// Ends the run, and the measurement with it.
    fn end_at(&self, now_ns: u64) {
        self.is_measured.set(false);
        if !self.is_over.replace(true) {
            self.ended_ns.set(Some(now_ns.max(self.load.warm_ns)));
        }
    }

    /// Counts a failed operation. Only the deadline and lack of room are reasons to fail here; all others are
    /// violations.
    fn fail(&self, number: u32, operation: Operation, record: u64, error: &Error) {
        let mut stats = self.stats.borrow_mut();
        match error.kind {
            ErrorKind::Busy => stats.busy += 1,
            ErrorKind::Full if operation == Operation::Insert => stats.full += 1,
            _ => stats.violation(|| format!("client {number}: {operation:?} of record {record}: {error}")),
        }
    }
}

/// A client at work.
pub(super) struct Worker<C> {
    pub(super) client: C,
    /// The number of its client, which no other client of the run has.
    number: u32,
    /// The thread of its client, from 0. A client that replaces another has the same.
    place: u32,
    rng: Rng,
    values: Vec<u8>,
    /// A lane for computations only.
    processor: SimLane,
    work: Rc<Work>,
}

impl<C: Client> Worker<C> {
    /// Creates the worker of client `number` on thread `place`.
    pub(super) fn new(client: C, number: u32, place: u32, region: &SimRegion, work: &Rc<Work>) -> Worker<C> {
        let rng = Rng::stream(work.load.seed, number.into());
        let (values, processor, work) = (Vec::new(), region.lane(), Rc::clone(work));
        Worker { client, number, place, rng, values, processor, work }
    }

    /// Carries out one operation, and counts it.
    pub(super) async fn step(&mut self, region: &SimRegion) {
        let work = Rc::clone(&self.work);
        let Some((operation, record)) = self.draw(region) else { return };
        let (before, began_ns) = (self.client.cost(), region.now_ns());
        let compute_ns = work.load.compute.of(operation);
        if compute_ns > 0 {
            self.processor.compute(compute_ns).await;
        }
        let has_succeeded = match operation {
            Operation::Insert => self.write(region, record, WriteKind::Insert).await,
            Operation::Update | Operation::ReadModifyWrite => self.write(region, record, WriteKind::Update).await,
            Operation::Read => self.read(region, record).await,
        };
        let latency_ns = region.now_ns() - began_ns;
        let mut stats = work.stats.borrow_mut();
        stats.longest_ns = stats.longest_ns.max(latency_ns);
        if !work.is_measured.get() {
            return;
        }
        let tally = stats.counts.operations.of_mut(operation);
        if has_succeeded {
            tally.success(self.client.cost().since(&before), Some(Duration::from_nanos(latency_ns)));
            stats.counts.by_client[self.place as usize] += 1;
        } else {
            tally.failure();
        }
    }

    /// Draws an operation and its record; `None` if the run ends, because all of its inserts were begun.
    fn draw(&mut self, region: &SimRegion) -> Option<(Operation, u64)> {
        let work = &self.work;
        let (mix, percent) = (work.load.mix, self.rng.below(100) as u32);
        let operation = match percent {
            percent if percent < mix.read_percent => Operation::Read,
            percent if percent < mix.read_percent + mix.update_percent => Operation::Update,
            _ => Operation::Insert,
        };
        match &work.popularity {
            Some(popularity) if operation != Operation::Insert => {
                let is_present = |record: &u64| work.absent.binary_search(record).is_err();
                // At least 999 of 1,000 records are there, the most popular ones among them.
                let drawn = (0..DRAWS).map(|_| popularity.sample(&mut self.rng)).find(is_present);
                Some((operation, drawn.unwrap_or(0)))
            }
            _ => {
                let inserts = work.inserts.get();
                if work.load.span == Span::UntilFull && inserts >= work.load.most_inserts {
                    work.end_at(region.now_ns());
                    return None;
                }
                work.inserts.set(inserts + 1);
                Some((operation, work.filled + inserts))
            }
        }
    }

    /// Looks a record up. Returns whether it has a value that was written for it.
    async fn read(&mut self, region: &SimRegion, record: u64) -> bool {
        let (work, number) = (&self.work, self.number);
        // All records of a key have the value of the first of them.
        let record = work.repeats.as_ref().map_or(record, |repeats| repeats.first(record));
        let begun = work.watch.borrow_mut().begin_read(number, record, region.now_ns());
        self.values.clear();
        let found = match self.client.get(work.records.key(record), &mut self.values).await {
            Ok(found) => found,
            Err(error) => {
                work.watch.borrow_mut().fail_read(begun);
                work.fail(number, Operation::Read, record, &error);
                return false;
            }
        };
        let mut watch = work.watch.borrow_mut();
        let content = found.then(|| self.content(record)).flatten();
        let is_written = content.is_some_and(|serial| watch.is_known(serial));
        watch.end_read(begun, content, region.now_ns());
        if !is_written {
            let value = found.then_some(&self.values);
            work.stats.borrow_mut().violation(|| format!("client {number} found record {record} to have {value:x?}"));
        }
        is_written
    }

    /// Returns the serial number of the write that stored what a lookup has found; `None` if no write can have.
    fn content(&self, record: u64) -> Option<u32> {
        let Work { records, repeats, stats, is_measured, .. } = &*self.work;
        let Some(repeats) = repeats else { return records.serial_of(record, &self.values) };
        let mut values = self.values.chunks_exact(records.value_bytes());
        let matches = repeats.count(record);
        let serial = records.serial_of(record, values.next()?)?;
        let others = values.by_ref().filter(|value| records.serial_of(record, value) == Some(serial)).count();
        if is_measured.get() {
            stats.borrow_mut().counts.matches += matches;
        }
        (others as u64 + 1 == matches && self.values.len() as u64 == matches * records.value_bytes() as u64)
            .then_some(serial)
    }

    /// Stores a record. Returns whether it was stored.
    async fn write(&mut self, region: &SimRegion, record: u64, kind: WriteKind) -> bool {
        let (work, number) = (&self.work, self.number);
        let write = work.watch.borrow_mut().begin_write(number, record, kind, region.now_ns());
        work.records.value_into(record, write.serial, &mut self.values);
        let (change, stored, operation) = match kind {
            WriteKind::Update => (Change::Update(&self.values), Outcome::Replaced, Operation::Update),
            WriteKind::Insert => (Change::Insert(&self.values), Outcome::Inserted, Operation::Insert),
        };
        let done = self.client.change(work.records.key(record), change).await;
        let (mut watch, now_ns) = (work.watch.borrow_mut(), region.now_ns());
        match done {
            Ok(outcome) if outcome == stored => {
                watch.end_write(write, now_ns);
                true
            }
            Ok(outcome) => {
                watch.end_without_effect(write, Some(outcome), now_ns);
                let what = || format!("client {number}: {operation:?} of record {record}: {outcome:?}");
                work.stats.borrow_mut().violation(what);
                false
            }
            Err(error) => {
                watch.fail_write(write, error.effect, now_ns);
                work.fail(number, operation, record, &error);
                false
            }
        }
    }
}
