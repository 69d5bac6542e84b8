//! The executor: clients as tasks of one thread, polled when their lanes have news, while time stands still.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use guira_fabric::heap::HeapRegion;

use crate::fault::{FaultPlan, NodeEvent};
use crate::lane::{Shared, SimRegion, lock};
use crate::log::Event;
use crate::network::Network;
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
    world: Shared,
    tasks: Vec<Task>,
    ready: Arc<Ready>,
}

struct Task {
    /// `None` when it has ended, or its client is dead.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    signal: Arc<Signal>,
    waker: Waker,
}

/// Tasks to be polled, in the order in which they were woken.
#[derive(Default)]
struct Ready(Mutex<Vec<u32>>);

/// Wakes one task, once until it is polled.
struct Signal {
    task: u32,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Signal {
    fn wake(self: Arc<Signal>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Signal>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.task);
        }
    }
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
        let world = World::new(region, options);
        Sim { world: Arc::new(Mutex::new(world)), tasks: Vec::new(), ready: Arc::default() }
    }

    /// Adds a client, which starts when the simulation next runs. `client` gets its way to the region.
    pub fn spawn<F: Future<Output = ()> + 'static>(&mut self, client: impl FnOnce(SimRegion) -> F) -> ClientId {
        let id = lock(&self.world).add_client();
        let task = id.0;
        let future = Box::pin(client(SimRegion::new(Arc::clone(&self.world), id)));
        let signal = Arc::new(Signal { task, queued: AtomicBool::new(false), ready: Arc::clone(&self.ready) });
        signal.wake_by_ref();
        let waker = Waker::from(Arc::clone(&signal));
        self.tasks.push(Task { future: Some(future), signal, waker });
        id
    }

    /// Runs until every client has ended, or is stuck.
    pub fn run(&mut self) -> Stopped {
        self.run_until(u64::MAX)
    }

    /// Runs until virtual time `end_ns`, at most: nothing later has happened when it returns.
    pub fn run_until(&mut self, end_ns: u64) -> Stopped {
        lock(&self.world).end_ns = end_ns;
        let mut woken = Vec::new();
        loop {
            self.poll_ready(&mut woken);
            let mut world = lock(&self.world);
            let killed = loop {
                match world.step() {
                    Step::Silent => {}
                    Step::Woke => break None,
                    Step::Killed(client) => break Some(client),
                    Step::Over => return self.stopped(&world),
                }
            };
            drop(world);
            if let Some(client) = killed {
                self.tasks[client as usize].future = None;
            }
        }
    }

    fn stopped(&self, world: &World) -> Stopped {
        if self.tasks.iter().all(|task| task.future.is_none()) {
            Stopped::Ended
        } else if world.is_over() {
            Stopped::Stuck
        } else {
            Stopped::TimeUp
        }
    }

    /// Polls every task that was woken, and those they wake.
    fn poll_ready(&mut self, woken: &mut Vec<u32>) {
        loop {
            std::mem::swap(&mut *self.ready.0.lock().unwrap_or_else(PoisonError::into_inner), woken);
            if woken.is_empty() {
                return;
            }
            for task in woken.drain(..) {
                let task = &mut self.tasks[task as usize];
                task.signal.queued.store(false, Ordering::Relaxed);
                let Some(future) = &mut task.future else { continue };
                if let Poll::Ready(()) = future.as_mut().poll(&mut Context::from_waker(&task.waker)) {
                    task.future = None;
                }
            }
        }
    }

    /// Nanoseconds of virtual time since the simulation began.
    pub fn now_ns(&self) -> u64 {
        lock(&self.world).now_ns
    }

    /// Verbs that were carried out.
    pub fn verbs(&self) -> u64 {
        lock(&self.world).verbs
    }

    /// Verbs of `client` that were carried out: the boundaries at which a fault can befall it.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn verbs_of(&self, client: ClientId) -> u64 {
        lock(&self.world).clients[client.0 as usize].verbs
    }

    /// Whether `client` has died.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn is_dead(&self, client: ClientId) -> bool {
        lock(&self.world).clients[client.0 as usize].is_dead
    }

    /// The hash of everything that happened: every verb, what it found, and when.
    pub fn log_hash(&self) -> u64 {
        lock(&self.world).log.hash()
    }

    /// The last events, as many as the options say, oldest first.
    pub fn last_events(&self) -> Vec<Event> {
        lock(&self.world).log.last().copied().collect()
    }
}
