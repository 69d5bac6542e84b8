//! One run of a store: clients under a drawn fault plan until all have ended, then a last client that must find
//! everything in order.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use guira_check::history::{Answer, Call, History, HistoryError, SEARCH_STEPS};
use guira_fabric::{Effect, FabricError, Region, SplitMix64, pause_until};
use guira_fabric_sim::{ClientId, Event, EventKind, Fault, FaultPlan, Sim, SimRegion, Stopped};
use guira_lab::baselines::{Change, Client, Error, ErrorKind, Outcome, Ports, Store};

use super::StoreSetup;
use crate::swarm::describe::Description;
use crate::swarm::run::{MOST_NS, is_fault, with_last_events};
use crate::swarm::tally::Counts;
use crate::swarm::values::{value_bytes, value_number, value_of};

/// The processes of a history that fill the store, and read it at the end.
const FILLER: u64 = u64::MAX;
const AUDITOR: u64 = u64::MAX - 1;

/// The result of a run.
pub struct StoreRun {
    /// The drawn parameters.
    pub setup: StoreSetup,
    /// The fault plan.
    pub plan: FaultPlan,
    /// Counts of what the clients did.
    pub counts: Counts,
    /// Hash of all events.
    pub log_hash: u64,
    /// All faults, and as many of the last events as were asked for.
    pub events: Vec<Event>,
    /// All operations, in the order in which they began.
    pub history: History,
    /// Violations; empty if the run passed.
    pub wrong: Vec<String>,
    /// The linearizability violation, if any.
    pub history_error: Option<HistoryError>,
}

impl StoreRun {
    /// Whether no invariant was violated.
    pub fn passed(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Describes the run in words.
    pub fn describe(&self) -> String {
        let description = Description {
            setup: &self.setup,
            plan: &self.plan,
            events: &self.events,
            history: &self.history,
            history_error: self.history_error.as_ref(),
            log_hash: self.log_hash,
            counts: &self.counts,
            wrong: &self.wrong,
            place: &|_| "the store".to_owned(),
            touches: &|_, _| false,
        };
        description.text()
    }
}

/// The counts of a client.
type ClientCounts<S> = fn(&<S as Store>::Client) -> Vec<(&'static str, u64)>;

/// State of a run that its clients share.
struct Shared<S: Store> {
    setup: StoreSetup,
    store: S,
    host: Rc<S::Host>,
    counted: ClientCounts<S>,
    history: RefCell<History>,
    counts: RefCell<Counts>,
    wrong: RefCell<Vec<String>>,
    /// Whether the plan has lost connections.
    may_disconnect: bool,
    next_process: Cell<u64>,
    next_value: Cell<u32>,
}

/// A client, with what it needs to come back.
struct Actor<S: Store> {
    shared: Rc<Shared<S>>,
    region: SimRegion,
    thread: Rc<S::Thread>,
    client: S::Client,
    process: u64,
}

/// Runs a store, and keeps the last `keep_events` events.
pub(super) fn drive<S: Store + Clone + 'static>(
    setup: StoreSetup,
    store: &S,
    keep_events: usize,
    counted: ClientCounts<S>,
) -> StoreRun {
    let plan = setup.plan();
    let mut sim = Sim::new(store.nodes()[0].clone(), &setup.sim_options(&plan, keep_events));
    if let Some((threads, service)) = store.service() {
        sim.serve(threads, service);
    }
    let (faults, steered) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
    let (recorded, counted_here) = (Rc::clone(&faults), Rc::clone(&steered));
    if let Some(element) = store.element() {
        sim.pass_through(element);
    }
    sim.watch(move |event| {
        counted_here.set(counted_here.get() + u64::from(matches!(event.kind, EventKind::Rewritten(_))));
        if keep_events > 0 && is_fault(event) {
            recorded.borrow_mut().push(*event);
        }
    });
    let shared = Rc::new(Shared {
        host: Rc::new(store.host()),
        store: store.clone(),
        counted,
        history: RefCell::new(filled(setup.records)),
        counts: RefCell::new(Counts::of_names(&[
            "runs",
            "verbs",
            "operations",
            "full",
            "reconnections",
            "deaths",
            "steered",
        ])),
        wrong: RefCell::default(),
        may_disconnect: plan.clients.iter().any(|fault| matches!(fault.fault, Fault::LoseConnection(_))),
        next_process: Cell::new(0),
        next_value: Cell::new(1),
        setup,
    });
    spawn_clients(&mut sim, &shared);
    run_to_end(&mut sim, &shared, "some clients never end");
    let last = Rc::clone(&shared);
    sim.spawn(move |region| async move { read_all(last, region).await });
    run_to_end(&mut sim, &shared, "the last client never ends");
    let events = with_last_events(faults.take(), &sim);
    let (log_hash, verbs) = (sim.log_hash(), sim.verbs());
    let deaths = (0..shared.setup.clients).filter(|client| sim.is_dead(ClientId(*client))).count() as u64;
    drop(sim);
    let (mut wrong, history, mut counts) = (shared.wrong.take(), shared.history.take(), shared.counts.take());
    let history_error = history.check(SEARCH_STEPS).err();
    wrong.extend(history_error.as_ref().map(ToString::to_string));
    counts.add(&[
        ("runs", 1),
        ("verbs", verbs),
        ("operations", history.len() as u64),
        ("deaths", deaths),
        ("steered", steered.get()),
    ]);
    StoreRun { setup: shared.setup.clone(), plan, counts, log_hash, events, history, wrong, history_error }
}

/// Returns the history of a store with so many records to which nothing has happened.
fn filled(records: u64) -> History {
    let mut history = History::new();
    for record in 0..records {
        let pending = history.begin(FILLER, record + 1, Call::Put(StoreSetup::value_of_record(record)), 0);
        history.complete(pending, Answer::Done, 0);
    }
    history
}

/// Adds the clients, some of which begin late.
fn spawn_clients<S: Store + 'static>(sim: &mut Sim, shared: &Rc<Shared<S>>) {
    let mut draws = SplitMix64(shared.setup.seed ^ 0x436c_6965_6e74_7321);
    let mut thread = Rc::new(shared.store.thread());
    for number in 0..shared.setup.clients {
        if number % shared.setup.clients_per_thread == 0 {
            thread = Rc::new(shared.store.thread());
        }
        let start_ns = if draws.below(3) == 0 { draws.below(shared.setup.span_ns()) } else { 0 };
        let (shared, thread, mut draws) = (Rc::clone(shared), Rc::clone(&thread), SplitMix64(draws.next_u64()));
        sim.spawn(move |region| async move {
            pause_until(&mut region.lane(), start_ns).await;
            Actor::new(&shared, region, thread).work(&mut draws).await;
        });
    }
}

fn run_to_end<S: Store>(sim: &mut Sim, shared: &Shared<S>, problem: &str) {
    let stopped = sim.run_until(MOST_NS);
    if stopped != Stopped::Ended {
        shared.wrong.borrow_mut().push(format!("{problem}: {stopped:?} at {} ns", sim.now_ns()));
    }
}

/// Reads every key. A client that begins believes in the records with which the store was built.
async fn read_all<S: Store>(shared: Rc<Shared<S>>, region: SimRegion) {
    let thread = Rc::new(shared.store.thread());
    let mut actor = Actor::new(&shared, region, thread);
    actor.process = AUDITOR;
    for key in 1..=shared.setup.keys as u32 {
        if let Err(error) = actor.call(key, Call::Get).await {
            shared.wrong.borrow_mut().push(format!("the last client cannot read key {key}: {error}"));
        }
    }
}

impl<S: Store> Actor<S> {
    fn new(shared: &Rc<Shared<S>>, region: SimRegion, thread: Rc<S::Thread>) -> Actor<S> {
        let process = shared.next_process.replace(shared.next_process.get() + 1);
        let client = shared.store.client(Ports::simulated(&region), process as u32, &shared.host, &thread);
        Actor { shared: Rc::clone(shared), region, thread, client, process }
    }

    /// Carries out drawn operations, and comes back with new lanes if it loses its connection.
    async fn work(mut self, draws: &mut SplitMix64) {
        let mut reconnects = self.shared.setup.reconnects;
        for _ in 0..self.shared.setup.operations {
            let (key, call) = (self.drawn_key(draws), self.drawn_call(draws));
            match self.call(key, call).await {
                Ok(()) => {}
                Err(Error { kind: ErrorKind::Full, effect: Effect::None }) => self.count("full"),
                Err(Error { kind: ErrorKind::Fabric(FabricError::Disconnected { .. }), .. })
                    if self.shared.may_disconnect =>
                {
                    if reconnects == 0 {
                        break;
                    }
                    reconnects -= 1;
                    self.count("reconnections");
                    self.note_counts();
                    self = Actor::new(&self.shared, self.region.clone(), Rc::clone(&self.thread));
                }
                Err(error) => {
                    let what = format!("client {}: {call} of key {key} failed: {error}", self.process);
                    self.shared.wrong.borrow_mut().push(what);
                    break;
                }
            }
        }
        self.note_counts();
    }

    fn count(&self, name: &'static str) {
        self.shared.counts.borrow_mut().add(&[(name, 1)]);
    }

    fn note_counts(&self) {
        self.shared.counts.borrow_mut().add(&(self.shared.counted)(&self.client));
    }

    /// Draws a key. Most operations of a process are on a key of its own choice: what it knows of the others becomes
    /// old.
    fn drawn_key(&self, draws: &mut SplitMix64) -> u32 {
        let (keys, is_favourite) = (self.shared.setup.keys, draws.below(4) > 0);
        1 + if is_favourite { self.process % keys } else { draws.below(keys) } as u32
    }

    /// Draws a call, with a value of its own.
    fn drawn_call(&self, draws: &mut SplitMix64) -> Call {
        let serial = self.shared.next_value.replace(self.shared.next_value.get() + 1);
        let value = value_number(1, serial, 0);
        if draws.below(100) < self.shared.setup.read_percent {
            return Call::Get;
        }
        match draws.below(10) {
            0..=3 => Call::Update(value),
            4..=5 => Call::Put(value),
            6..=7 => Call::Insert(value),
            _ => Call::Remove,
        }
    }

    /// Carries out an operation, and records it.
    async fn call(&mut self, key: u32, call: Call) -> Result<(), Error> {
        // The records are those of time 0.
        let now_ns = || self.region.now_ns() + 1;
        let pending = self.shared.history.borrow_mut().begin(self.process, key.into(), call, now_ns());
        let answered = match call {
            Call::Get => self.client_get(key).await,
            _ => self.client_change(key, call).await,
        };
        let mut history = self.shared.history.borrow_mut();
        match answered {
            Ok(Some(answer)) => history.complete(pending, answer, self.region.now_ns() + 1),
            Ok(None) => history.fail(pending),
            Err(error) => {
                if error.effect == Effect::None {
                    history.fail(pending);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Looks a key up. `None` if what it found is no value.
    async fn client_get(&mut self, key: u32) -> Result<Option<Answer>, Error> {
        let mut value = Vec::new();
        if !self.client.get(key.into(), &mut value).await? {
            return Ok(Some(Answer::Absent));
        }
        match value_of(&value, &[self.shared.setup.value_bytes]) {
            Ok(number) => Ok(Some(Answer::Found(number))),
            Err(what) => {
                let what = format!("client {}: key {key} has {what}", self.process);
                self.shared.wrong.borrow_mut().push(what);
                Ok(None)
            }
        }
    }

    async fn client_change(&mut self, key: u32, call: Call) -> Result<Option<Answer>, Error> {
        let bytes = |number: u64| value_bytes(number, &[self.shared.setup.value_bytes]);
        let (key, client) = (key.into(), &mut self.client);
        let outcome = match call {
            Call::Put(value) => client.change(key, Change::Put(&bytes(value))).await?,
            Call::Insert(value) => client.change(key, Change::Insert(&bytes(value))).await?,
            Call::Update(value) => client.change(key, Change::Update(&bytes(value))).await?,
            _ => client.change(key, Change::Remove).await?,
        };
        Ok(Some(match (call, outcome) {
            (Call::Put(_), Outcome::Inserted) => Answer::Inserted,
            (Call::Put(_), Outcome::Replaced) => Answer::Replaced,
            (_, Outcome::Missing) => Answer::Missing,
            (_, Outcome::Exists) => Answer::Exists,
            _ => Answer::Done,
        }))
    }
}
