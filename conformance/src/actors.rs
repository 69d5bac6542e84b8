//! Clients that act in turns chosen by a test, on one thread and one clock, with a stop before any verb.
//!
//! A client's operation advances by one verb (or as much of a WRITE as its fabric cannot tear) each time the test lets
//! it, and never otherwise: a client without turns is stopped, and a killed one leaves the memory as it is. Invariants:
//! equal turns give equal results; time passes only by turns and waits.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use guira_fabric::heap::{HeapLane, HeapRegion};
use guira_fabric::memory::{check, execute};
use guira_fabric::{Addr, Caps, FabricError, Lane, Profile, Region, Sent, Space, Submitted, Verb, WORD_BYTES};
use guira_layout::LockId;
use guira_rcuckoo::{ClientConfig, Counters, Error, Incident, LockIncident, Observer};

use crate::{Bench, Observed, Op, TestClient};

/// Duration of a turn in nanoseconds: a round trip of the paper's network takes a few of them.
const TURN_NS: u64 = 1_000;
/// More turns than any operation takes: a client that takes more never ends.
const MOST_TURNS: u64 = 10_000_000;

/// The kinds of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbKind {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// Any atomic.
    Atomic,
}

/// The step that a client takes in its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Executes a verb, or what remains of it.
    Verb {
        /// The kind of verb.
        kind: VerbKind,
        /// The address of its first word.
        addr: Addr,
        /// The number of its words.
        words: usize,
        /// The number of words that were already executed.
        done: usize,
    },
    /// Waits until this time, in nanoseconds.
    Pause(u64),
    /// None: its operations are done.
    Nothing,
}

impl NextStep {
    /// Whether a WRITE of a row of `bench` is next, of which nothing has been executed.
    pub fn writes_row(&self, bench: &Bench) -> bool {
        self.writes_some_row(bench, |done| done == 0)
    }

    /// Whether a WRITE of a row of `bench` is partly executed.
    pub fn tears_row(&self, bench: &Bench) -> bool {
        self.writes_some_row(bench, |done| done > 0)
    }

    fn writes_some_row(&self, bench: &Bench, done_so: impl Fn(usize) -> bool) -> bool {
        let geometry = bench.table.geometry();
        let rows = geometry.row(guira_layout::RowId(0)).offset()
            ..geometry.row(guira_layout::RowId(bench.table.config().rows)).offset();
        let NextStep::Verb { kind: VerbKind::Write, addr, done, .. } = *self else { return false };
        addr.space() == Space::Main && rows.contains(&addr.offset()) && done_so(done)
    }

    /// Whether an atomic on a lock word is next, which takes or releases locks.
    pub fn is_lock(&self) -> bool {
        matches!(self, NextStep::Verb { kind: VerbKind::Atomic, addr, .. } if addr.space() == Space::Device)
    }

    /// Whether an atomic on a repair lease of `bench` is next.
    pub fn is_lease(&self, bench: &Bench) -> bool {
        let regions = bench.table.config().repair_regions;
        let mut leases = (0..regions).map(|region| bench.table.geometry().lease(region));
        matches!(self, NextStep::Verb { kind: VerbKind::Atomic, addr, .. } if leases.any(|lease| lease == *addr))
    }
}

/// A batch in flight, copied out of its sender's buffers.
struct Flight {
    verbs: Vec<Sent>,
    /// The first verb that is not done, and how many of its words are.
    at: usize,
    done: usize,
}

fn next_step_of(sent: &Sent, done: usize) -> NextStep {
    let (kind, addr, words) = match sent {
        Sent::Read { addr, into } => (VerbKind::Read, *addr, into.len()),
        Sent::Write { addr, words } => (VerbKind::Write, *addr, words.len()),
        Sent::Cas { addr, .. } | Sent::FetchAdd { addr, .. } => (VerbKind::Atomic, *addr, 1),
    };
    NextStep::Verb { kind, addr, words, done }
}

impl Flight {
    /// Executes the next verb, or `unit_words` of a WRITE.
    fn advance(&mut self, region: &HeapRegion, unit_words: usize) {
        let sent = &mut self.verbs[self.at];
        if let Sent::Write { addr, words } = sent {
            let end = words.len().min(self.done.saturating_add(unit_words));
            let addr = addr.add_words(self.done as u64);
            let mut write = Verb::Write { addr, words: &words[self.done..end] };
            execute(region.memory(), &mut write).expect("the batch was checked");
            self.done = end;
            if end < words.len() {
                return;
            }
        } else {
            execute(region.memory(), &mut sent.as_verb()).expect("the batch was checked");
        }
        (self.at, self.done) = (self.at + 1, 0);
    }

    fn is_done(&self) -> bool {
        self.at == self.verbs.len()
    }
}

/// State that a test and a lane share.
struct Shared {
    may_act: bool,
    next_step: NextStep,
    now_ns: u64,
    /// Lock incidents that the client reported about holders it presumed dead.
    lock_incidents: Vec<(LockId, LockIncident)>,
}

/// An observer that records lock incidents.
struct Listener(Arc<Mutex<Shared>>);

impl Observer for Listener {
    fn observe(&mut self, _: u16, _: u64, _: &Incident) {}

    fn observe_lock(&mut self, lock: LockId, incident: &LockIncident) {
        self.0.lock().expect("no thread panics while it holds the lock").lock_incidents.push((lock, incident.clone()));
    }
}

/// A lane that acts when its client gets a turn.
pub struct ActorLane {
    region: HeapRegion,
    /// The source of promises and counters. Nothing is sent on it.
    lane: HeapLane,
    flight: Option<Flight>,
    shared: Arc<Mutex<Shared>>,
}

impl ActorLane {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no thread panics while it holds the lock")
    }
}

impl Lane for ActorLane {
    crate::delegate!(lane: caps, traffic, traffic_mut, forget);

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        if let Err(error) = check(self.region.memory(), self.region.caps(), batch) {
            return Submitted::Done(Err(error));
        }
        assert!(self.flight.is_none(), "one batch at a time");
        self.flight = Some(Flight { verbs: batch.iter().map(Sent::copy_of).collect(), at: 0, done: 0 });
        Submitted::InFlight
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], _: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        let unit_words = usize::try_from(self.caps().atomic_write_unit / WORD_BYTES).unwrap_or(usize::MAX);
        let may_act = std::mem::take(&mut self.shared().may_act);
        let Some(flight) = &mut self.flight else {
            return Poll::Ready(Err(FabricError::Backend("no batch is in flight on this lane".to_owned())));
        };
        if may_act && !flight.is_done() {
            flight.advance(&self.region, unit_words);
        }
        if !flight.is_done() {
            let next_step = next_step_of(&flight.verbs[flight.at], flight.done);
            self.shared().next_step = next_step;
            return Poll::Pending;
        }
        flight.verbs.iter().zip(batch).for_each(|(sent, verb)| sent.copy_to(verb));
        self.flight = None;
        Poll::Ready(Ok(()))
    }

    fn poll_drain(&mut self, found: &mut [u64], _: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        let Some(mut flight) = self.flight.take() else { return Poll::Ready(Ok(0)) };
        while !flight.is_done() {
            flight.advance(&self.region, usize::MAX);
        }
        let words: Vec<u64> = flight.verbs.iter().filter_map(Sent::found).collect();
        found.iter_mut().zip(&words).for_each(|(into, word)| *into = *word);
        Poll::Ready(Ok(words.len()))
    }

    fn poll_pause(&mut self, until_ns: u64, _: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.shared();
        if shared.now_ns >= until_ns {
            return Poll::Ready(());
        }
        shared.next_step = NextStep::Pause(until_ns);
        Poll::Pending
    }

    fn now_ns(&mut self) -> u64 {
        self.shared().now_ns
    }
}

type Answers = Vec<Result<Observed, Error>>;
type Work = Pin<Box<dyn Future<Output = (TestClient<ActorLane>, Answers)>>>;

struct Actor {
    shared: Arc<Mutex<Shared>>,
    work: Option<Work>,
    done: Option<(TestClient<ActorLane>, Answers)>,
}

/// Clients of one table, each with operations of its own.
pub struct Actors {
    bench: Bench,
    caps: Caps,
    now_ns: u64,
    actors: Vec<Actor>,
}

impl Actors {
    /// Creates a set without clients on `bench`, over a network whose WRITEs tear at multiples of `atomic_write_unit`
    /// bytes.
    pub fn new(bench: &Bench, atomic_write_unit: u64) -> Actors {
        let caps = Caps { atomic_write_unit, ..Profile::Tcp.caps() };
        let bench = Bench { region: bench.region.with_caps(caps), table: Arc::clone(&bench.table) };
        Actors { bench, caps, now_ns: 0, actors: Vec::new() }
    }

    /// Starts a client in slot `slot` that will carry out `ops` and recovers clients it finds dead. Returns its number.
    ///
    /// # Panics
    /// If the slot is taken.
    pub fn start(&mut self, slot: u16, config: ClientConfig, ops: Vec<Op>) -> usize {
        let number = self.actors.len();
        let shared = Arc::new(Mutex::new(Shared {
            may_act: false,
            next_step: NextStep::Nothing,
            now_ns: self.now_ns,
            lock_incidents: Vec::new(),
        }));
        let region = self.bench.region.with_caps(self.caps);
        let lane = ActorLane { lane: region.lane(), region, flight: None, shared: Arc::clone(&shared) };
        // Claiming a slot is not under test.
        let client = self.bench.client_with(slot, self.bench.region.lane(), config);
        let client = client.recovering(&self.bench).through(lane).observed(Box::new(Listener(Arc::clone(&shared))));
        self.actors.push(Actor { shared, work: Some(carry_out_all(client, ops)), done: None });
        self.poll(number);
        number
    }

    /// Gives more operations to a client that has carried out all it had; the answers to those are forgotten.
    ///
    /// # Panics
    /// If it has not finished them.
    pub fn continue_with(&mut self, actor: usize, ops: Vec<Op>) {
        let (client, _) = self.actors[actor].done.take().expect("its operations are done");
        self.actors[actor].work = Some(carry_out_all(client, ops));
        self.poll(actor);
    }

    /// Returns the next step of `actor`.
    pub fn next_step(&self, actor: usize) -> NextStep {
        self.actors[actor].shared.lock().expect("no thread panics while it holds the lock").next_step
    }

    /// Lets `actor` take one step; time passes if it has to wait.
    pub fn step(&mut self, actor: usize) {
        self.now_ns = match self.next_step(actor) {
            NextStep::Pause(until_ns) => self.now_ns.max(until_ns),
            _ => self.now_ns + TURN_NS,
        };
        self.actors[actor].shared.lock().expect("no thread panics while it holds the lock").may_act = true;
        self.poll(actor);
    }

    /// Lets `actor` continue until `stop` holds for its next step; returns false if its operations end before.
    ///
    /// # Panics
    /// If neither ever happens.
    pub fn run_until(&mut self, actor: usize, stop: impl Fn(&NextStep) -> bool) -> bool {
        for _ in 0..MOST_TURNS {
            let next_step = self.next_step(actor);
            if stop(&next_step) {
                return true;
            }
            if next_step == NextStep::Nothing {
                return false;
            }
            self.step(actor);
        }
        panic!("client {actor} never ends");
    }

    /// Returns the incidents that `actor` reported so far of locks whose holder it presumed dead, in preset `paper`.
    pub fn lock_incidents(&self, actor: usize) -> Vec<(LockId, LockIncident)> {
        self.actors[actor].shared.lock().expect("no thread panics while it holds the lock").lock_incidents.clone()
    }

    /// Lets `actor` carry out all its operations, and returns its answers and counters.
    ///
    /// # Panics
    /// If it was killed, or its reports and counters differ.
    pub fn finish(&mut self, actor: usize) -> (Answers, Counters) {
        self.run_until(actor, |next_step| *next_step == NextStep::Nothing);
        let (client, answers) = self.actors[actor].done.as_ref().expect("a client that was not killed");
        let counters = client.client.counters();
        assert_eq!(
            counts_of(&self.lock_incidents(actor)),
            repairs_of(&counters),
            "reported and counted leases, revocations and states differ"
        );
        (answers.clone(), counters)
    }

    /// Returns the nanoseconds since the first client started.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Kills `actor` before its next step.
    pub fn kill(&mut self, actor: usize) {
        let actor = &mut self.actors[actor];
        (actor.work, actor.done) = (None, None);
        actor.shared.lock().expect("no thread panics while it holds the lock").next_step = NextStep::Nothing;
    }

    /// Advances the clock.
    pub fn advance_ns(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    fn poll(&mut self, actor: usize) {
        let actor = &mut self.actors[actor];
        actor.shared.lock().expect("no thread panics while it holds the lock").now_ns = self.now_ns;
        let Some(work) = &mut actor.work else { return };
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            actor.shared.lock().expect("no thread panics while it holds the lock").next_step = NextStep::Nothing;
            (actor.work, actor.done) = (None, Some(done));
        }
    }
}

/// Counts leases, revocations, and how often each state was found, in the reported incidents.
fn counts_of(lock_incidents: &[(LockId, LockIncident)]) -> [u64; 6] {
    let mut counts = [0; 6];
    for (_, incident) in lock_incidents {
        match incident {
            LockIncident::Leased { revoked, .. } => {
                counts[0] += 1;
                counts[1] += u64::from(revoked.is_some());
            }
            LockIncident::Found { state } => counts[1 + usize::from(*state)] += 1,
            _ => {}
        }
    }
    counts
}

/// The same numbers from the client's counters.
fn repairs_of(counters: &Counters) -> [u64; 6] {
    let Counters { leases, revocations, repair_state_1, repair_state_2, repair_state_3, repair_state_4, .. } =
        *counters;
    [leases, revocations, repair_state_1, repair_state_2, repair_state_3, repair_state_4]
}

fn carry_out_all(mut client: TestClient<ActorLane>, ops: Vec<Op>) -> Work {
    Box::pin(async move {
        let mut answers = Answers::new();
        for op in &ops {
            answers.push(client.carry_out(op).await);
        }
        (client, answers)
    })
}

impl TestClient<ActorLane> {
    /// Same as [`TestClient::apply`], for values that fit in a row.
    async fn carry_out(&mut self, op: &Op) -> Result<Observed, Error> {
        let Some(change) = op.change(None) else {
            let mut value = Vec::new();
            let found = self.client.get(&mut self.lane, op.key(), &mut value).await?;
            return Ok(Observed::Value(found.is_some().then_some(value)));
        };
        self.client.change(&mut self.lane, op.key(), change).await.map(|changed| Observed::Outcome(changed.outcome))
    }
}
