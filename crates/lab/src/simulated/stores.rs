//! Runs of other stores than RCuckoo.

use std::rc::Rc;
use std::sync::Arc;

use crate::baselines::{Ports, Store};
use guira_fabric_sim::SimRegion;

use super::in_flight::all_of;
use super::records::{Records, Repeats};
use super::run::{Load, RunError, RunStats, Testbed};
use super::worker::{Work, Worker};
use crate::steady::{PROGRESS_NS, Progress, steps};

/// Carries out a load on a store that was filled with records `0..filled`. Its clients change the store: fork it for each
/// run that starts from it. If keys repeat, clients can only look them up.
///
/// # Errors
/// The load is impossible, or `progress` ended the run. What clients did wrong is no error: see
/// [`RunStats::violations`].
///
/// # Panics
/// If the store has no node.
pub fn run_store<S: Store + 'static>(
    load: &Load,
    store: S,
    records: Records,
    filled: u64,
    repeats: Option<Arc<Repeats>>,
    testbed: &dyn Testbed,
    progress: Progress<'_>,
) -> Result<RunStats, RunError> {
    load.check(filled)?;
    let mut sim = testbed.simulation(store.nodes()[0].clone(), load.seed);
    if let Some((threads, service)) = store.service() {
        sim.serve(threads, service);
    }
    if let Some(element) = store.element() {
        sim.pass_through(element);
    }
    let work = Rc::new(Work::new(load.clone(), records, filled, Vec::new()).repeating(repeats));
    let hosts: Vec<Rc<S::Host>> = (0..load.hosts).map(|_| Rc::new(store.host())).collect();
    let (store, in_flight) = (Rc::new(store), load.in_flight);
    for place in 0..load.clients {
        let host = place % load.hosts;
        let (work, store, shared) = (Rc::clone(&work), Rc::clone(&store), Rc::clone(&hosts[host as usize]));
        let task = move |region: SimRegion| {
            let thread = Rc::new(store.thread());
            all_of(in_flight, move |index| {
                let number = place * in_flight + index;
                let client = store.client(Ports::simulated(&region), number, &shared, &thread);
                let (region, work) = (region.clone(), Rc::clone(&work));
                async move {
                    let mut worker = Worker::new(client, number, place, &region, &work);
                    while !work.is_over() {
                        worker.step(&region).await;
                    }
                }
            })
        };
        testbed.spawn(&mut sim, host, Box::new(task));
    }
    work.measure(&mut sim, |sim, window| {
        for until_ns in steps(window, PROGRESS_NS) {
            sim.run_until(until_ns);
            if progress(until_ns.saturating_sub(load.warm_ns)).is_break() {
                return Err(RunError::Stopped);
            }
        }
        Ok(())
    })?;
    work.stats.borrow_mut().verbs = sim.verbs();
    work.check_histories();
    Ok(work.stats.take())
}
