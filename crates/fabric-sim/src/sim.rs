//! The executor, which polls clients as tasks of one thread when they are woken. Virtual time does not advance while a
//! client runs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use guira_fabric::Verb;
use guira_fabric::heap::HeapRegion;

use crate::card::{Cluster, Usage};
use crate::element::Element;
use crate::fault::{Fault, FaultPlan, NodeEvent};
use crate::lane::SimRegion;
use crate::log::Event;
use crate::network::Network;
use crate::running::{ExternalWakes, Running, TaskWaker, new_simulation};
use crate::service::{Service, Services};
use crate::world::{Step, World};

/// The model of the network that verbs cross.
#[expect(clippy::large_enum_variant, reason = "a simulation has one")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Latencies, and the capacity of one link: verbs take effect when they arrive.
    Network(Network),
    /// Network cards, links and client hosts: verbs take effect when they are served.
    Cluster(Cluster),
}

/// The options of a simulation. Equal options, equal bytes and equal clients give equal runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// The seed of all random choices in the run.
    pub seed: u64,
    /// The model of the network.
    pub model: Model,
    /// The faults.
    pub faults: FaultPlan,
    /// The number of recent events that are kept, to be read after a failure: see [`Sim::last_events`].
    pub keep_events: usize,
}

impl SimOptions {
    /// Creates options without faults that keep no events.
    pub fn new(seed: u64, network: Network) -> SimOptions {
        SimOptions { seed, model: Model::Network(network), faults: FaultPlan::default(), keep_events: 0 }
    }

    /// Creates options like [`SimOptions::new`], for a cluster with network cards. Its fault plans cannot contain the
    /// relaxations that execute a verb in parts: a card serves a verb as a whole.
    pub fn on_cluster(seed: u64, cluster: Cluster) -> SimOptions {
        SimOptions { seed, model: Model::Cluster(cluster), faults: FaultPlan::default(), keep_events: 0 }
    }
}

/// The number of a client of a simulation, in the order of spawning, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// The reason why a simulation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Every client has ended or is dead.
    Ended,
    /// Clients are left, but no event is left that they could wait for.
    Stuck,
    /// The requested virtual time was reached; the simulation can be continued.
    TimeUp,
}

/// A memory node and its clients, in one thread and in virtual time.
///
/// The node's bytes are those of a heap region. That region's own lanes access them at once, outside virtual time: use
/// these lanes to prepare and inspect the bytes. The region's [`guira_fabric::Caps`] are the guarantees of the
/// simulation.
pub struct Sim {
    /// `None` only while the simulation runs: see [`Running`].
    world: Option<Box<World>>,
    simulation: u64,
    tasks: Vec<Task>,
    /// The number of tasks that have not ended.
    living: usize,
    external_wakes: Arc<ExternalWakes>,
}

/// The panic message if a simulation is used from inside its own run.
const RUNNING: &str = "a simulation cannot be used while it runs";

struct Task {
    /// `None` if the task has ended or its client is dead.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    signal: Arc<TaskWaker>,
    waker: Waker,
}

impl Sim {
    /// Creates a simulation over the bytes of `region`, with its capabilities.
    ///
    /// # Panics
    /// If the plan flips bits outside the region.
    pub fn new(region: HeapRegion, options: &SimOptions) -> Sim {
        for fault in &options.faults.node {
            if let NodeEvent::Flip { addr, .. } = fault.fault {
                let word = region.memory().space(addr.space()).get(addr.word() as usize);
                assert!(word.is_some(), "a planned bit flip at {addr} lies outside the region");
            }
        }
        let simulation = new_simulation();
        let world = Box::new(World::new(region, options, simulation));
        Sim { world: Some(world), simulation, tasks: Vec::new(), living: 0, external_wakes: Arc::default() }
    }

    /// Adds a client on host 0, which starts when the simulation next runs. `client` gets the region as the client
    /// accesses it.
    pub fn spawn<F: Future<Output = ()> + 'static>(&mut self, client: impl FnOnce(SimRegion) -> F) -> ClientId {
        self.spawn_on(0, client)
    }

    /// Adds a client like [`Sim::spawn`], on `host`: the n-th client of a host is its n-th thread. A [`Network`] has no
    /// hosts; there `host` is only the client's answer to [`SimRegion::host`].
    ///
    /// # Panics
    /// If the cluster has no such host.
    pub fn spawn_on<F: Future<Output = ()> + 'static>(
        &mut self,
        host: u32,
        client: impl FnOnce(SimRegion) -> F,
    ) -> ClientId {
        let running = Running::new(&mut self.world);
        let (id, bytes) = running.with(|world| (world.add_client(host), world.region.clone()));
        let future = Box::pin(client(SimRegion::new(self.simulation, id, host, bytes)));
        let (external_wakes, is_queued) = (Arc::clone(&self.external_wakes), AtomicBool::new(false));
        let signal = Arc::new(TaskWaker { simulation: self.simulation, task: id.0, is_queued, external_wakes });
        self.external_wakes.push(id.0);
        let waker = Waker::from(Arc::clone(&signal));
        self.tasks.push(Task { future: Some(future), signal, waker });
        self.living += 1;
        // The tasks that `client` has woken while it created its future.
        let mut woken = Vec::new();
        running.take_woken(&mut woken);
        woken.into_iter().for_each(|task| {
            self.tasks[task as usize].signal.is_queued.store(false, Ordering::Relaxed);
            self.external_wakes.push(task);
        });
        id
    }

    /// Gives the memory node a service with so many threads, each on a core of its own. In a [`Network`] its work takes no
    /// time.
    ///
    /// # Panics
    /// If `threads` is 0, or if the node has a service already.
    pub fn serve(&mut self, threads: u32, service: impl Service + 'static) {
        let services = &mut self.world.as_mut().expect(RUNNING).services;
        assert!(services.is_none(), "a memory node has one service");
        *services = Some(Box::new(Services::new(threads, Box::new(service))));
    }

    /// Puts an element in front of the memory node.
    ///
    /// # Panics
    /// If there is one already, or if verbs execute in place.
    pub fn pass_through(&mut self, element: impl Element + 'static) {
        let world = self.world.as_mut().expect(RUNNING);
        assert!(!world.caps().local, "verbs that execute in place pass nothing");
        assert!(world.element.is_none(), "a memory node has one element in front of it");
        world.element = Some(Box::new(element));
    }

    /// Returns the bytes that the state of the element takes now; 0 if there is none.
    pub fn element_bytes(&self) -> u64 {
        self.world().element.as_ref().map_or(0, |element| element.state_bytes())
    }

    /// Runs until every client has ended or is stuck.
    pub fn run(&mut self) -> Stopped {
        self.run_until(u64::MAX)
    }

    /// Runs until virtual time `end_ns` at most: later events have not happened when it returns.
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

    /// Injects `fault` into `client` after `verbs` more of its verbs, in addition to the plan; 0 is before its next
    /// verb.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn inject(&mut self, client: ClientId, verbs: u64, fault: Fault) {
        let world = self.world.as_mut().expect(RUNNING);
        world.clients[client.0 as usize].add_fault(verbs, fault);
    }

    /// Sets a function that is called with every event, right after it happened: the node's bytes are as the event left
    /// them. `watcher` may read them through the heap region, but must not use this simulation. It replaces an earlier
    /// watcher.
    pub fn watch(&mut self, watcher: impl FnMut(&Event) + 'static) {
        self.world.as_mut().expect(RUNNING).log.watch(Box::new(watcher));
    }

    /// Sets a function that is called with each batch that a client sends, before any of its verbs is executed. It may
    /// read the node's bytes through the heap region, but must not use this simulation. It replaces an earlier one.
    pub fn watch_batches(&mut self, watcher: impl FnMut(ClientId, &[Verb<'_>]) + 'static) {
        self.world.as_mut().expect(RUNNING).batch_watcher = Some(Box::new(watcher));
    }

    fn world(&self) -> &World {
        self.world.as_ref().expect(RUNNING)
    }

    /// Returns the virtual time since the simulation began, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.world().now_ns
    }

    /// Returns the number of verbs executed.
    pub fn verbs(&self) -> u64 {
        self.world().verbs
    }

    /// Returns how long each resource of the cluster was busy since the simulation began. With a [`Network`] all times
    /// are 0.
    pub fn usage(&self) -> Usage {
        let world = self.world();
        world.cards.as_ref().map(|cards| cards.usage(world.now_ns)).unwrap_or_default()
    }

    /// Returns the number of verbs of `client` that were executed. A fault can be injected before each of them.
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

    /// Returns the hash of all events: every verb, its result and its time.
    pub fn log_hash(&self) -> u64 {
        self.world().log.hash()
    }

    /// Returns the last events, as many as [`SimOptions::keep_events`], oldest first.
    pub fn last_events(&self) -> Vec<Event> {
        self.world().log.last().copied().collect()
    }
}

/// Polls the tasks in `woken` and those that they wake. Returns the number of tasks that ended.
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
