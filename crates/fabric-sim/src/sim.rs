//! The executor: clients as tasks of one thread, polled when their lanes have news, while time stands still.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use guira_fabric::heap::HeapRegion;

use crate::fault::{Fault, FaultPlan, NodeEvent};
use crate::lane::SimRegion;
use crate::log::Event;
use crate::network::Network;
use crate::running::{ExternalWakes, Running, TaskWaker, new_simulation};
use crate::world::{Step, World};

/// How a simulation runs. Equal options, equal bytes and equal clients give equal runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Everything that is drawn in the run comes from it.
    pub seed: u64,
    /// How long verbs take.
    pub network: Network,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// How many of the last events are kept, to be read after a failure: see [`Sim::last_events`].
    pub keep_events: usize,
}

impl SimOptions {
    /// A run in which nothing goes wrong and no event is kept.
    pub fn new(seed: u64, network: Network) -> SimOptions {
        SimOptions { seed, network, faults: FaultPlan::default(), keep_events: 0 }
    }
}

/// A client of a simulation, by the order in which they were spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// Why a simulation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Every client has ended or is dead.
    Ended,
    /// Clients are left, but nothing is left to happen that they could wait for.
    Stuck,
    /// Virtual time is up; the simulation can go on.
    TimeUp,
}

/// A memory node and its clients, in one thread and in virtual time.
///
/// The node's bytes are those of a heap region: its own lanes reach them at once, outside virtual time, to prepare and
/// to inspect them. Its [`guira_fabric::Caps`] are what the simulation promises.
pub struct Sim {
    /// `None` only while it runs: see [`Running`].
    world: Option<Box<World>>,
    simulation: u64,
    tasks: Vec<Task>,
    /// Tasks that have not ended.
    living: usize,
    external_wakes: Arc<ExternalWakes>,
}

struct Task {
    /// `None` when it has ended, or its client is dead.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    signal: Arc<TaskWaker>,
    waker: Waker,
}

impl Sim {
    /// A simulation over the bytes and the promises of `region`.
    ///
    /// # Panics
    /// If the plan flips bits outside the region.
    pub fn new(region: HeapRegion, options: &SimOptions) -> Sim {
        for fault in &options.faults.node {
            if let NodeEvent::Flip { addr, .. } = fault.fault {
                let word = region.memory().space(addr.space()).get(addr.word() as usize);
                assert!(word.is_some(), "{addr}, whose bits are to flip, lies outside the region");
            }
        }
        let simulation = new_simulation();
        let world = Box::new(World::new(region, options, simulation));
        Sim { world: Some(world), simulation, tasks: Vec::new(), living: 0, external_wakes: Arc::default() }
    }

    /// Adds a client, which starts when the simulation next runs. `client` gets its way to the region.
    pub fn spawn<F: Future<Output = ()> + 'static>(&mut self, client: impl FnOnce(SimRegion) -> F) -> ClientId {
        let running = Running::new(&mut self.world);
        let (id, bytes) = running.with(|world| (world.add_client(), world.region.clone()));
        let future = Box::pin(client(SimRegion::new(self.simulation, id, bytes)));
        let (external_wakes, is_queued) = (Arc::clone(&self.external_wakes), AtomicBool::new(false));
        let signal = Arc::new(TaskWaker { simulation: self.simulation, task: id.0, is_queued, external_wakes });
        self.external_wakes.push(id.0);
        let waker = Waker::from(Arc::clone(&signal));
        self.tasks.push(Task { future: Some(future), signal, waker });
        self.living += 1;
        // Whom `client` has woken at once.
        let mut woken = Vec::new();
        running.take_woken(&mut woken);
        woken.into_iter().for_each(|task| {
            self.tasks[task as usize].signal.is_queued.store(false, Ordering::Relaxed);
            self.external_wakes.push(task);
        });
        id
    }

    /// Runs until every client has ended, or is stuck.
    pub fn run(&mut self) -> Stopped {
        self.run_until(u64::MAX)
    }

    /// Runs until virtual time `end_ns`, at most: nothing later has happened when it returns.
    pub fn run_until(&mut self, end_ns: u64) -> Stopped {
        let running = Running::new(&mut self.world);
        running.with(|world| world.end_ns = end_ns);
        let mut woken = Vec::new();
        loop {
            self.external_wakes.drain_to(&mut woken);
            self.living -= poll_woken(&mut self.tasks, &running, &mut woken);
            let last = running.with(|world| {
                loop {
                    match world.step() {
                        Step::Silent => {}
                        step => return step,
                    }
                }
            });
            match last {
                Step::Killed(client) => {
                    let task = self.tasks[client as usize].future.take();
                    self.living -= usize::from(task.is_some());
                }
                Step::Over => break,
                Step::Silent | Step::Woke => {}
            }
        }
        let is_over = running.with(|world| world.is_over());
        match (self.living == 0, is_over) {
            (true, _) => Stopped::Ended,
            (false, true) => Stopped::Stuck,
            (false, false) => Stopped::TimeUp,
        }
    }

    /// Lets `fault` befall `client` after `verbs` more of its verbs, whatever the plan says; 0: before its next verb.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn inject(&mut self, client: ClientId, verbs: u64, fault: Fault) {
        let world = self.world.as_mut().expect("nobody can reach a simulation while it runs");
        world.clients[client.0 as usize].add_fault(verbs, fault);
    }

    /// Calls `watcher` with every event, right after it happened: the node's bytes are as the event left them. It may
    /// look at them through the heap region, and must not touch this simulation. One watcher at a time: the last one.
    pub fn watch(&mut self, watcher: impl FnMut(&Event) + 'static) {
        self.world.as_mut().expect("nobody can reach a simulation while it runs").log.watch(Box::new(watcher));
    }

    fn world(&self) -> &World {
        self.world.as_ref().expect("nobody can ask a simulation while it runs")
    }

    /// Nanoseconds of virtual time since the simulation began.
    pub fn now_ns(&self) -> u64 {
        self.world().now_ns
    }

    /// Verbs that were carried out.
    pub fn verbs(&self) -> u64 {
        self.world().verbs
    }

    /// Verbs of `client` that were carried out: the boundaries at which a fault can befall it.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn verbs_of(&self, client: ClientId) -> u64 {
        self.world().clients[client.0 as usize].verbs
    }

    /// Whether `client` has died.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn is_dead(&self, client: ClientId) -> bool {
        self.world().clients[client.0 as usize].is_dead
    }

    /// The hash of everything that happened: every verb, what it found, and when.
    pub fn log_hash(&self) -> u64 {
        self.world().log.hash()
    }

    /// The last events, as many as the options say, oldest first.
    pub fn last_events(&self) -> Vec<Event> {
        self.world().log.last().copied().collect()
    }
}

/// Polls the tasks in `woken` and those they wake. Returns how many ended.
fn poll_woken(tasks: &mut [Task], running: &Running<'_>, woken: &mut Vec<u32>) -> usize {
    let mut ended = 0;
    loop {
        for task in woken.drain(..) {
            let task = &mut tasks[task as usize];
            task.signal.is_queued.store(false, Ordering::Relaxed);
            let Some(future) = &mut task.future else { continue };
            if let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&task.waker)) {
                task.future = None;
                ended += 1;
            }
        }
        running.take_woken(woken);
        if woken.is_empty() {
            return ended;
        }
    }
}
