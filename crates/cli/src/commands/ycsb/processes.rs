//! The processes of a run: this one and its workers, which carry out the same phases at the same time.
//!
//! Invariant: when a phase has ended, successfully or not, no process is in it any more, so all remaining processes can
//! be ordered to remove the records they inserted.

use std::sync::Mutex;

use guira_lab::driver::{Driver, PhaseTally, Removal};
use serde::de::DeserializeOwned;

use super::share::{Order, Share};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use crate::units::{count, counted};
use crate::workers::Worker;

/// This process's driver, and the other processes.
pub struct Processes {
    own: Driver,
    others: Vec<Worker>,
}

impl Processes {
    /// Creates a set of this process alone.
    pub fn new(own: Driver) -> Processes {
        Processes { own, others: Vec::new() }
    }

    /// Starts another process, which prepares for its share.
    pub fn start(&mut self, number: u16, share: &Share) -> Result<(), Failure> {
        let mut worker = Worker::start(format!("process {number}"), &["ycsb-worker"])?;
        worker.send(&Order::Prepare(share.clone()))?;
        self.others.push(worker);
        Ok(())
    }

    /// Waits until the other processes are ready.
    pub fn ready(&mut self) -> Result<(), Failure> {
        self.others.iter_mut().try_for_each(Worker::receive)
    }

    /// Loads the shares of all processes.
    pub fn load(&mut self, output: &Output) -> Result<PhaseTally, Failure> {
        let shown = self.shown("loading", self.own.records(), output);
        let tally = self.phase(&Order::Load, &|own| shown.tick(own));
        shown.finish();
        tally
    }

    /// Runs the operations of all processes.
    pub fn run(&mut self) -> Result<PhaseTally, Failure> {
        self.phase(&Order::Run, &|_| ())
    }

    /// Makes all remaining processes remove the records they inserted.
    pub fn remove(&mut self, output: &Output) -> Removal {
        let shown = self.shown("removing", self.own.inserted(), output);
        let asked: Vec<Result<(), Failure>> = self.others.iter_mut().map(|other| other.send(&Order::Remove)).collect();
        let mut total = self.own.remove_with_progress(&|own| shown.tick(own));
        for (other, asked) in self.others.iter_mut().zip(asked) {
            let removal = asked.and_then(|()| other.receive());
            let lost = |failure: Failure| Removal { failure: Some(failure.to_string()), ..Removal::default() };
            total.merge(removal.unwrap_or_else(lost));
        }
        shown.finish();
        total
    }

    /// Carries out a phase in all processes, including this one. If it fails in one of them, the others stop.
    fn phase(&mut self, order: &Order, progress: &(dyn Fn(u64) + Sync)) -> Result<PhaseTally, Failure> {
        let mut sent = 0;
        let mut total = Ok(());
        for other in &mut self.others {
            total = other.send(order);
            if total.is_err() {
                break;
            }
            sent += 1;
        }
        let mut total = total.and_then(|()| order.carry_out(&mut self.own, progress));
        for number in 0..sent {
            if total.is_err() {
                // A process that has ended needs no order.
                self.others[number..sent].iter_mut().for_each(|other| _ = other.send(&Order::Stop));
            }
            total = merged(total, receive(&mut self.others[number]));
        }
        total
    }

    /// Starts the progress display. The progress of all processes is estimated from this one's: shares are equal.
    fn shown(&self, what: &'static str, own: u64, output: &Output) -> Shown {
        let processes = 1 + self.others.len() as u64;
        let total = own * processes;
        Shown { processes, total, progress: Mutex::new(Progress::new(output, what, Some(total))) }
    }
}

fn receive<T: DeserializeOwned>(worker: &mut Worker) -> Result<T, Failure> {
    worker.receive()
}

/// Merges both tallies, or returns the first failure.
fn merged(one: Result<PhaseTally, Failure>, two: Result<PhaseTally, Failure>) -> Result<PhaseTally, Failure> {
    let (mut one, two) = (one?, two?);
    one.merge(two);
    Ok(one)
}

/// The progress display of a phase of all processes.
struct Shown {
    processes: u64,
    total: u64,
    progress: Mutex<Progress>,
}

impl Shown {
    fn tick(&self, own: u64) {
        // If another thread is updating the display, this one skips it.
        if let Ok(mut progress) = self.progress.try_lock() {
            let done = own * self.processes;
            progress.tick(done, || format!("about {} of {}", count(done), counted(self.total, "record")));
        }
    }

    fn finish(&self) {
        if let Ok(mut progress) = self.progress.lock() {
            progress.finish();
        }
    }
}
