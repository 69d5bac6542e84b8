//! One run: clients under a drawn fault plan until all have ended, then a last client that must find everything in
//! order.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use guira_check::history::{Answer, Call, History, HistoryError, SEARCH_STEPS};
use guira_check::{CheckOptions, Concurrency, check_table};
use guira_fabric::{MaskedCas, Profile, Region};
use guira_fabric_sim::{
    Card, ClientId, Cluster, Element, Event, EventKind, FaultPlan, MemoryLimit, Network, NodeEvent, Sim, SimOptions,
    Stopped,
};
use guira_layout::{RowId, Segments, SuperblockError};
use guira_rcuckoo::{Table, TableError, open_table};

use super::member::{FILLER, Member, Shared};
use super::monitor::Monitor;
use super::setup::{Setup, can_disconnect};
use super::tally::Tally;
use super::values::{key_bytes, key_number, value_of};
use crate::{BatchForms, Bench, Examiner, block_on};

/// The process number of the final check in the history; no client has it.
const AUDITOR: u64 = u64::MAX;
/// More virtual time than any run needs.
pub(super) const MOST_NS: u64 = 1 << 42;

/// The result of a run.
pub struct Run {
    /// The drawn parameters.
    pub setup: Setup,
    /// The fault plan.
    pub plan: FaultPlan,
    /// Counts of what the clients did.
    pub tally: Tally,
    /// Hash of all events.
    pub log_hash: u64,
    /// All faults, and as many of the last events as were asked for.
    pub events: Vec<Event>,
    /// All operations, in the order in which they began.
    pub history: History,
    /// The table at the end.
    pub bench: Bench,
    /// Violations; empty if the run passed.
    pub wrong: Vec<String>,
    /// The linearizability violation, if any.
    pub history_error: Option<HistoryError>,
}

/// Runs `seed`, and keeps the last `keep_events` events.
pub fn run(seed: u64, keep_events: usize) -> Run {
    run_setup(Setup::of_seed(seed), keep_events)
}

/// Runs `setup`, and keeps the last `keep_events` events.
pub fn run_setup(setup: Setup, keep_events: usize) -> Run {
    run_changed(setup, keep_events, |_| ())
}

/// Runs `setup` under its fault plan modified by `change`: for canaries, which do what no fabric may do.
pub fn run_changed(setup: Setup, keep_events: usize, change: impl FnOnce(&mut FaultPlan)) -> Run {
    run_seen(setup, keep_events, change, |_, _| Box::new(|_| ()))
}

/// Runs `setup` behind the element that `element` creates in front of its table.
pub fn run_behind<E: Element + 'static>(setup: Setup, keep_events: usize, element: impl FnOnce(&Table) -> E) -> Run {
    run_seen(
        setup,
        keep_events,
        |_| (),
        |bench, sim| {
            sim.pass_through(element(&bench.table));
            Box::new(|_| ())
        },
    )
}

/// Same as [`run_setup`], and examines every batch of the clients.
pub fn run_examined(setup: Setup, forms: &BatchForms) -> Run {
    run_seen(
        setup,
        0,
        |_| (),
        |bench, sim| {
            examine(bench, sim, forms);
            Box::new(|_| ())
        },
    )
}

/// Has every batch of `sim` examined.
pub fn examine(bench: &Bench, sim: &mut Sim, forms: &BatchForms) {
    let examiner = Examiner::new(bench, forms);
    sim.watch_batches(move |_, batch| examiner.see(batch));
}

/// Same as [`run_changed`], and passes every event to the observer that `watch` creates. It may also watch the batches
/// of the simulation.
pub fn run_seen(
    setup: Setup,
    keep_events: usize,
    change: impl FnOnce(&mut FaultPlan),
    watch: impl FnOnce(&Bench, &mut Sim) -> Box<dyn FnMut(&Event)>,
) -> Run {
    let bench = setup.bench();
    let mut plan = setup.plan(&bench.table);
    change(&mut plan);
    let shared = Shared {
        is_patient: setup.is_patient(&plan),
        can_flip: plan.node.iter().any(|fault| matches!(fault.fault, NodeEvent::Flip { .. })),
        can_restart: plan.node.iter().any(|fault| fault.fault == NodeEvent::Restart),
        can_disconnect: can_disconnect(&plan),
        shortage_ns: plan.memory.as_ref().map(|limit| limit.until_ns),
        setup: Rc::new(setup.clone()),
        table: Arc::clone(&bench.table),
        history: Rc::default(),
        tally: Rc::default(),
        wrong: Rc::default(),
        cut_off: Rc::default(),
    };
    fill(&bench, &shared);
    if let Some(limit) = &mut plan.memory {
        leave_segments(&bench, limit);
    }
    let testbed = match setup.is_on_cluster {
        true => SimOptions::on_cluster(setup.seed, Cluster::new(Card::ConnectX5)),
        false => SimOptions::new(setup.seed, Network::of(setup.profile)),
    };
    let options = SimOptions { faults: plan.clone(), keep_events, ..testbed };
    let mut sim = Sim::new(bench.region.clone(), &options);
    let mut also = watch(&bench, &mut sim);
    let watch = Rc::new(RefCell::new(Monitor::new(&bench)));
    let (watcher, faults) = (Rc::clone(&watch), Rc::new(RefCell::new(Vec::new())));
    let rewritten = Rc::new(Cell::new(0));
    let counted = Rc::clone(&rewritten);
    let recorded = Rc::clone(&faults);
    sim.watch(move |event| {
        watcher.borrow_mut().see(event);
        also(event);
        counted.set(counted.get() + u64::from(matches!(event.kind, EventKind::Rewritten(_))));
        if keep_events > 0 && is_fault(event) {
            recorded.borrow_mut().push(*event);
        }
    });
    let clients = swarm(&mut sim, &shared);
    run_last_client(&mut sim, &shared, &plan, clients.len() as u32);
    let events = with_last_events(faults.take(), &sim);
    let (log_hash, verbs) = (sim.log_hash(), sim.verbs());
    let deaths = clients.iter().filter(|client| sim.is_dead(**client)).count() as u64;
    drop(sim);
    audit(&bench, &shared);
    let (stats, problem) = watch.borrow().result();
    let mut wrong = shared.wrong.take();
    wrong.extend(problem);
    let history = shared.history.take();
    let mut tally = *shared.tally.borrow();
    let history_error = match history.check(SEARCH_STEPS) {
        Ok(checked) => {
            (tally.keys, tally.pending) = (checked.keys, checked.pending);
            None
        }
        Err(history_error) => Some(history_error),
    };
    wrong.extend(history_error.as_ref().map(ToString::to_string));
    tally.runs = 1;
    tally.deaths = deaths;
    tally.verbs = verbs;
    tally.rewritten = rewritten.get();
    tally.note(&stats);
    tally.flipped = u64::from(shared.can_flip);
    tally.reordered = u64::from(plan.relaxations.reorders());
    Run { setup, plan, tally, log_hash, events, history, bench, wrong, history_error }
}

/// Runs the last client, after `clients` others.
fn run_last_client(sim: &mut Sim, shared: &Shared, plan: &FaultPlan, clients: u32) {
    // The node's faults must be over when the last client begins, too.
    sim.run_until(plan.node.iter().map(|fault| fault.at_ns).max().unwrap_or(0));
    let without_memory = shared.tally.borrow().without_memory;
    let most = shared.setup.clients + shared.setup.newcomers;
    // The plan has no faults for clients beyond those that could have come.
    (clients..most).for_each(|_| {
        sim.spawn(|_| async {});
    });
    // Its deadline is long, and a lookup reaches it only at a damaged row whose lock a dead client holds.
    let last = Member::new(most, &Shared { is_patient: !shared.can_flip, ..shared.clone() });
    sim.spawn(|region| last.run_last(region));
    if sim.run_until(MOST_NS) != Stopped::Ended {
        shared.wrong.borrow_mut().push("the last client never ends".to_owned());
    }
    if shared.tally.borrow().without_memory > without_memory {
        shared.wrong.borrow_mut().push("the last client finds no memory, although there is enough".to_owned());
    }
}

/// Whether an event is a fault.
pub(super) fn is_fault(event: &Event) -> bool {
    use EventKind::{
        Delayed, Died, Disconnected, ElementReset, Fenced, Flipped, Refused, Restarted, ServiceStalled, Stalled,
    };
    let is_of_node = matches!(event.kind, Flipped(..) | Refused(..) | Restarted | ServiceStalled(_) | ElementReset);
    is_of_node || matches!(event.kind, Died | Stalled(_) | Delayed(_) | Disconnected | Fenced)
}

/// Returns the faults before the last events that `sim` kept, then these.
pub(super) fn with_last_events(mut faults: Vec<Event>, sim: &Sim) -> Vec<Event> {
    let last_events = sim.last_events();
    let from_ns = last_events.first().map_or(u64::MAX, |event| event.at_ns);
    faults.retain(|event| event.at_ns < from_ns);
    faults.extend(last_events);
    faults
}

/// Puts the first keys, in a simulation of its own without faults.
fn fill(bench: &Bench, shared: &Shared) {
    let setup = &shared.setup;
    let mut sim = Sim::new(bench.region.clone(), &SimOptions::new(setup.seed, Network::of(Profile::Shm)));
    let filler = Member::new(FILLER, shared);
    sim.spawn(|region| filler.fill(region));
    assert_eq!(sim.run(), Stopped::Ended, "no other client is in the way of the first one");
}

/// Takes the memory of the segments that were split while the first keys were put from the holes of `limit`.
fn leave_segments(bench: &Bench, limit: &mut MemoryLimit) {
    let segments = Segments::of(bench.table.config()).expect("only tables that grow lack memory");
    let rows = bench.rows();
    let existing = rows.ranges().map(|range| segments.of_row(RowId(range.start)));
    for part in existing.flat_map(|segment| bench.table.geometry().segment_bytes(&segments, segment)) {
        limit.holes.retain(|hole| *hole != part);
    }
}

/// Runs clients, and replaces those that died or lost their connection, until all have ended.
fn swarm(sim: &mut Sim, shared: &Shared) -> Vec<ClientId> {
    let setup = Rc::clone(&shared.setup);
    let mut clients = Vec::new();
    let spawn = |sim: &mut Sim, clients: &mut Vec<ClientId>| {
        let member = Member::new(clients.len() as u32, shared);
        clients.push(sim.spawn(|region| member.run(region)));
    };
    (0..setup.clients).for_each(|_| spawn(sim, &mut clients));
    let (most, mut until_ns) = ((setup.clients + setup.newcomers) as usize, 0);
    loop {
        let gone = |sim: &Sim, clients: &[ClientId]| {
            let dead = clients.iter().filter(|client| sim.is_dead(**client)).count();
            // A client that was cut off may also have died, on another lane; it is replaced once.
            let cut_off =
                shared.cut_off.borrow().iter().filter(|number| !sim.is_dead(clients[**number as usize])).count();
            dead + cut_off
        };
        until_ns = if clients.len() == most { MOST_NS } else { (until_ns + setup.replace_interval_ns()).min(MOST_NS) };
        let stopped = sim.run_until(until_ns);
        let wanted = (setup.clients as usize + gone(sim, &clients)).min(most);
        let follows = clients.len() < wanted;
        (clients.len()..wanted).for_each(|_| spawn(sim, &mut clients));
        match stopped {
            Stopped::Ended if !follows => return clients,
            Stopped::Ended => {}
            Stopped::TimeUp if until_ns < MOST_NS => {}
            Stopped::TimeUp | Stopped::Stuck => {
                shared.wrong.borrow_mut().push(format!("some clients never end: {stopped:?} at {} ns", sim.now_ns()));
                return clients;
            }
        }
    }
}

/// Checks the table once all clients have ended and all dead ones are recovered.
fn audit(bench: &Bench, shared: &Shared) {
    let bench = bench.under(Profile::Shm);
    let mut lane = bench.region.lane();
    if shared.can_restart
        && let Err(TableError::Superblock(SuperblockError::Empty)) =
            block_on(open_table(&mut lane, bench.region.main_bytes()))
    {
        shared.tally.borrow_mut().emptied += 1;
        return;
    }
    let mut wrong = shared.wrong.borrow_mut();
    for (word, value) in bench.lock_words() {
        wrong.push(format!("lock word {word} is {value:#x} although all dead clients are recovered"));
    }
    let options = CheckOptions { concurrency: Concurrency::Exclusive, ..CheckOptions::default() };
    let report = block_on(check_table(&mut lane, &bench.table, &options, &mut |_| ())).expect("the heap reads");
    if report.used_slots > 0 {
        wrong.push(format!("{} slots are in use although all dead clients are recovered", report.used_slots));
    }
    // Flipped bits may have damaged rows permanently.
    if !shared.can_flip {
        wrong.extend(report.problems.iter().map(|problem| format!("at the end: {problem}")));
        read_back(&bench, shared, &mut wrong);
    }
    let mut tally = shared.tally.borrow_mut();
    tally.extents += report.counts.extent_entries;
    let changes_map = shared.setup.profile.caps().masked_cas != MaskedCas::CasLoop;
    if changes_map && bench.table.geometry().full_rows_words() > 0 {
        tally.noted_rows += bench.table.config().rows;
        tally.misnoted_rows += bench.misnoted_rows().len() as u64;
    }
}

/// Reads every key, as one more client.
fn read_back(bench: &Bench, shared: &Shared, wrong: &mut Vec<String>) {
    let contents = match bench.contents() {
        Ok(contents) => contents,
        Err(what) => return wrong.push(what),
    };
    let mut history = shared.history.borrow_mut();
    for key in 0..shared.setup.keys {
        let begun = history.begin(AUDITOR, key, Call::Get, u64::MAX);
        match contents.get(&key_bytes(key)[..]).map(|value| value_of(value, &shared.setup.lengths)) {
            None => history.complete(begun, Answer::Absent, u64::MAX),
            Some(Ok(number)) => history.complete(begun, Answer::Found(number), u64::MAX),
            Some(Err(what)) => wrong.push(format!("at the end, key {key} has {what}")),
        }
    }
    let unknown = contents.keys().filter(|key| key_number(key).is_none_or(|key| key >= shared.setup.keys));
    wrong.extend(unknown.map(|key| format!("at the end there is key {key:x?}, which no client put")));
}

impl Run {
    /// Whether no invariant was violated.
    pub fn passed(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Returns the rows of `key`.
    pub fn rows_of(&self, key: u64) -> [RowId; 2] {
        let placement = self.bench.table.placement();
        let pair = placement.rows(placement.digest(&key_bytes(key)));
        [pair.first, pair.second]
    }
}
