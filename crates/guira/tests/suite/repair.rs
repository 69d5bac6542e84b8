//! Repair as users see it: counters, the table's totals and `tracing` events; and recovery and killing on request.
//!
//! The test program starts itself as clients that die or are stopped, which get their arguments in environment
//! variables.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

use std::fmt::Debug;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use guira::admin::{Cause, CheckReport, ClientState, Killed, ProblemKind};
use guira::errors::KillError;
use guira::{AdminError, Blame, CreateOptions, Error, OpenError, OpenOptions, Store, Url};
use guira_conformance::delegate;
use guira_fabric::{Lane, Region, SlotHold, Submitted, Verb};
use guira_fabric_shm::{Access, Location, ProcessIdentity, ShmLane, ShmRegion};
use guira_layout::{OwnerId, Preset, SlotState, SlotWord};
use guira_rcuckoo::{Change, ClientConfig, NewValue, SlotClient, claim_slot, open_table, release_slot};
use guira_testing::{ScratchFolder, patience, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::common::Table;

/// The environment variable that makes the program a client: it holds the URL.
const ACTOR: &str = "GUIRA_TEST_REPAIR_ACTOR";
/// Set if the client's process is to become another program.
const EXEC: &str = "GUIRA_TEST_REPAIR_EXEC";
/// Set to a key if the client is to change it, and to stop in the middle of recovering the dead client that holds its
/// lock.
const RECOVERER: &str = "GUIRA_TEST_REPAIR_RECOVERER";

/// Most tries of a test in which another process may be too fast.
const MOST_TRIES: usize = 100;

/// Runs as a client that does nothing, if the environment asks for it; does nothing otherwise.
#[test]
fn actor() {
    let Ok(url) = std::env::var(ACTOR) else { return };
    let store = Store::open(url).unwrap();
    if let Ok(key) = std::env::var(RECOVERER) {
        return stop_in_recovery(&store, &[key.parse().unwrap(); 8]);
    }
    let client = store.client().unwrap();
    println!("@@{}", client.slot());
    if std::env::var_os(EXEC).is_some() {
        panic!("{}", Command::new("sleep").arg("60").exec());
    }
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Changes `key`, whose lock a dead client holds, and stops this process as soon as it has written that it recovers
/// that client.
fn stop_in_recovery(store: &Store, key: &[u8]) {
    let region = region(store);
    let mut lane = StoppingLane { lane: region.lane(), is_stopped: false };
    let table = pollster::block_on(open_table(&mut lane, region.main_bytes())).unwrap();
    let ProcessIdentity { pid, start_ticks, namespaces, boot } = ProcessIdentity::current();
    let own = SlotClient { process: pid, since_unix_ns: 1, identity: [start_ticks, namespaces, boot] };
    let take = |slot| {
        let hold = region.hold(slot).unwrap()?;
        let owner = pollster::block_on(claim_slot(&mut region.lane(), &table, slot, &own)).unwrap()?;
        Some((slot, owner, hold))
    };
    let (slot, owner, _hold) = (0..table.config().max_clients).find_map(take).unwrap();
    let client = guira_rcuckoo::Client::new(Arc::clone(&table), owner, ClientConfig::for_table(&table));
    let mut client = client.with_liveness(Box::new(region.clone())).with_process(&own);
    println!("@@{slot}");
    let put = client.change(&mut lane, key, Change::Put(NewValue::Inline(&[7; 8])));
    assert!(pollster::block_on(put).unwrap().took_effect() && lane.is_stopped);
    pollster::block_on(release_slot(&mut region.lane(), &table, owner)).unwrap();
}

/// A lane that stops its process after the batch in which it writes that it recovers a client.
struct StoppingLane {
    lane: ShmLane,
    is_stopped: bool,
}

impl Lane for StoppingLane {
    delegate!(lane: caps, traffic, traffic_mut, poll, forget, poll_drain, poll_pause, now_ns);

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        let own = u64::from(std::process::id());
        let says_so = |verb: &Verb<'_>| matches!(verb, Verb::Write { words: [first, _, _, _, _], .. } if *first == own);
        let is_due = batch.iter().any(says_so) && !self.is_stopped;
        let submitted = self.lane.submit(batch);
        if is_due {
            self.is_stopped = true;
            kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
            // The signal may take a while, if another thread handles it.
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        submitted
    }
}

/// A process with a client. It is killed when this is dropped.
struct Actor {
    process: Child,
    slot: u16,
    /// The rest of the output, kept open because the client may print something at its end.
    _said: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    fn start(table: &Table) -> Actor {
        Actor::of(table, &mut Command::new(std::env::current_exe().unwrap()))
    }

    fn of(table: &Table, command: &mut Command) -> Actor {
        let mut process = command
            .args(["--exact", "repair::actor", "--nocapture"])
            .env(ACTOR, table.url.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let slot = lines.find_map(|line| line.unwrap().split_once("@@").map(|(_, slot)| slot.parse().unwrap()));
        Actor { process, slot: slot.unwrap(), _said: lines }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn stop(&self) {
        self.signal(Signal::STOP);
        self.wait_stopped();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn wait_stopped(&self) {
        let path = format!("/proc/{}/stat", self.process.id());
        wait_until("the process has stopped", || std::fs::read_to_string(&path).unwrap().contains(") T "));
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn store(max_clients: u16) -> (Table, Store) {
    let format = "fixed:8:8".parse().unwrap();
    // With this seed the keys of these tests have different locks.
    Table::create(&CreateOptions::new(1_000).format(format).max_clients(max_clients).seed(1))
}

fn region(store: &Store) -> ShmRegion {
    ShmRegion::open(&Location::file(&store.stat().unwrap().region.file().unwrap().path), Access::ReadWrite).unwrap()
}

fn submit(region: &ShmRegion, verb: Verb<'_>) {
    assert!(matches!(region.lane().submit(&mut [verb]), Submitted::Done(Ok(()))));
}

/// Makes the client in `slot` the holder of the lock of this key's first row, as in the middle of a change.
fn lock(store: &Store, slot: u16, key: &[u8]) {
    let table = store.table();
    let row = table.placement().rows(table.placement().digest(key)).first;
    let mask = table.locks().mask(table.locks().lock_of(row));
    let (addr, add) = (table.locks().addr(mask.word), table.locks().held(OwnerId::of_slot(slot), mask.mask));
    let mut found = 0;
    submit(&region(store), Verb::FetchAdd { addr, add, found: &mut found });
    assert_eq!(found & mask.mask, 0, "no other client holds it");
}

/// A subscriber that collects the events of all tests as lines: the message, then each field. A test looks for the
/// events of its own table.
struct EventCollector;

static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns the lines about `table` that begin with `message`.
fn events(table: &Table, message: &str) -> Vec<String> {
    let table = format!("table=\"{}\"", table.url);
    let lines = EVENTS.lock().unwrap();
    lines.iter().filter(|line| line.starts_with(message) && line.contains(&table)).cloned().collect()
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 = match field.name() {
            "message" => format!("{value:?}{}", self.0),
            name => format!("{} {name}={value:?}", self.0),
        };
    }
}

impl Subscriber for EventCollector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "guira"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        EVENTS.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Starts to collect the events of this program.
fn collect_events() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| tracing::subscriber::set_global_default(EventCollector).unwrap());
}

/// [R-RECOVER-1] [R-TOTALS-1] A client that waits for a living one counts and traces its probes and its timeout; one
/// that waits for a dead one, the recovery. The table's totals include all of it, and outlive the client.
#[test]
fn incidents_are_counted_and_traced() {
    collect_events();
    let (table, store) = store(8);
    let mut actor = Actor::start(&table);
    lock(&store, actor.slot, &[1; 8]);
    let hasty = OpenOptions::default().deadline(Duration::from_millis(200));
    let mut other = Store::open_with(&table.url, &hasty).unwrap().client().unwrap();
    assert_eq!(other.put(&[1; 8], &[2; 8]).unwrap_err().blame(), Blame::Busy);
    let counters = other.counters();
    assert!(counters.timeouts == 1 && counters.lock_conflicts > 0, "{counters:?}");
    assert!(
        counters.suspicions > 0 && counters.suspicions == counters.false_suspicions && counters.recoveries == 0,
        "{counters:?}"
    );
    assert_eq!(events(&table, "owner is alive").len() as u64, counters.false_suspicions);
    let timeouts = events(&table, "operation timed out");
    assert_eq!(timeouts.len(), 1);
    assert!(timeouts[0].contains(&format!("slot={}", actor.slot)) && timeouts[0].contains("put"), "{timeouts:?}");
    assert_eq!(store.stat().unwrap().totals, counters, "reported at once");

    actor.kill();
    other.put(&[1; 8], &[2; 8]).unwrap();
    let counters = other.counters();
    assert_eq!(
        (counters.recoveries, counters.released_locks, counters.replays, counters.idle_deaths),
        (1, 1, 0, 0),
        "{counters:?}"
    );
    assert_eq!((counters.suspicions - counters.false_suspicions, counters.take_overs), (1, 0), "{counters:?}");
    assert_eq!(events(&table, "recovery started").len(), 1);
    let recovered = events(&table, "recovered");
    assert!(recovered.len() == 1 && recovered[0].contains("locks=1") && recovered[0].contains("took_ns="));
    assert_eq!(store.stat().unwrap().totals, counters);
    drop(other);
    assert_eq!(store.stat().unwrap().totals, counters, "a client that closes reports what is new, and nothing twice");
    // A client without incidents traces nothing.
    let before = events(&table, "").len();
    let mut client = store.client().unwrap();
    (0..1_000_u64).for_each(|number| assert!(client.put(&number.to_le_bytes(), &[3; 8]).is_ok()));
    assert_eq!(events(&table, "").len(), before);
    assert_eq!(store.stat().unwrap().totals.records, counters.records);
    drop(client);
    assert!(store.stat().unwrap().totals.records > counters.records, "it reported when it was closed");
}

/// [R-REPAIR-1] [R-REPAIR-3] [R-REPAIR-6] [R-REPAIR-8] Events of a repair of preset `paper` name the lock and no
/// client, because the lock names none.
#[test]
fn repairs_as_printed_are_counted_and_traced() {
    collect_events();
    let format = "fixed:8:8".parse().unwrap();
    let (table, store) = Table::create(&CreateOptions::new(1_000).preset(Preset::Paper).format(format).seed(1));
    lock(&store, 7, &[1; 8]);
    let mut client = store.client().unwrap();
    client.put(&[1; 8], &[2; 8]).unwrap();
    let counters = client.counters();
    assert_eq!(
        (counters.suspicions, counters.false_suspicions, counters.leases, counters.repair_state_4),
        (1, 0, 1, 1),
        "{counters:?}"
    );
    for (message, field) in [
        ("holder suspected", "lock="),
        ("repair started", "region="),
        ("repair resumed", "state=4"),
        ("lock", "took_ns="),
    ] {
        let lines = events(&table, message);
        assert!(lines.len() == 1 && lines[0].contains("lock=") && lines[0].contains(field), "{message}: {lines:?}");
    }
    assert!(events(&table, "owner").is_empty(), "no client is named");
}

/// [R-RECOVER-3] [R-RECOVER-4] Dead clients are recovered on request, even if a recoverer died; living clients keep
/// what they hold, even if they are stopped.
#[test]
fn dead_clients_are_recovered_on_request() {
    let (table, store) = store(8);
    let mut dead = [(); 3].map(|()| Actor::start(&table));
    let living = Actor::start(&table);
    lock(&store, dead[0].slot, &[1; 8]);
    lock(&store, living.slot, &[2; 8]);
    living.stop();
    dead.iter_mut().for_each(Actor::kill);
    // As if a client had begun to recover the second one, and died.
    let addr = store.table().geometry().slot(dead[1].slot);
    let word = |state| SlotWord { state, generation: 1 }.encode();
    let (compare, swap, mut found) = (word(SlotState::Live), word(SlotState::Recovering), 0);
    submit(&region(&store), Verb::Cas { addr, compare, swap, found: &mut found });
    assert_eq!(found, compare);

    let mut looked_at = Vec::new();
    let repair = store.recover(&mut |done, total| looked_at.push((done, total))).unwrap();
    assert_eq!(looked_at, [(1, 4), (2, 4), (3, 4), (4, 4)]);
    assert!(repair.failed.is_empty() && repair.recovered.len() == 3, "{repair:?}");
    let of = |actor: &Actor| *repair.recovered.iter().find(|client| client.slot == actor.slot).unwrap();
    let [first, second, third] = &dead;
    assert_eq!((of(first).locks, of(first).was_begun), (1, false));
    assert_eq!((of(second).locks, of(second).was_begun, of(second).process), (0, true, second.process.id().into()));
    assert_eq!((of(third).locks, of(third).was_begun), (0, false));
    let [alive] = &repair.living[..] else { panic!("{repair:?}") };
    assert_eq!((alive.slot, alive.process), (living.slot, living.process.id().into()));
    assert!(alive.stopped && !alive.committing, "a stopped client is alive");
    let totals = store.stat().unwrap().totals;
    assert_eq!((totals.recoveries, totals.take_overs, totals.idle_deaths, totals.released_locks), (3, 1, 2, 1));
    let clients = store.stat().unwrap().clients;
    assert!(clients.len() == 1 && clients[0].slot == living.slot && clients[0].state == ClientState::Stopped);
    assert!(store.check().unwrap().is_clean());
    assert!(store.recover(&mut |_, _| ()).unwrap().recovered.is_empty(), "nothing is left to do");
    let read_only = Store::open_with(&table.url, &OpenOptions::default().read_only()).unwrap();
    assert_eq!(read_only.stat().unwrap().clients[0].state, ClientState::Unknown, "a reader cannot probe clients");
    let error = read_only.recover(&mut |_, _| ()).unwrap_err();
    assert!(matches!(error, Error::Open(OpenError::ReadOnly { .. })), "{error}");
}

/// Returns a client that waits 20 ms for locks of others.
fn hasty_client(table: &Table) -> guira::Client {
    let hasty = OpenOptions::default().deadline(Duration::from_millis(20));
    Store::open_with(&table.url, &hasty).unwrap().client().unwrap()
}

/// A put fails with `Busy` and names the client in `slot`.
fn refused_by(client: &mut guira::Client, slot: u16) {
    let error = client.put(&[1; 8], &[2; 8]).unwrap_err();
    let Error::Operation(guira::OperationError {
        kind: guira::OperationErrorKind::Busy { owner: Some(owner), .. },
        ..
    }) = &error
    else {
        panic!("{error}")
    };
    assert_eq!(owner.slot(), Some(slot), "{error}");
}

/// [R-RECOVER-1] A stopped client is killed on request, and recovered; a timeout alone never does that.
#[test]
fn a_stopped_client_is_killed_on_request() {
    let (table, store) = store(8);
    let mut actor = Actor::start(&table);
    lock(&store, actor.slot, &[1; 8]);
    actor.stop();
    let mut other = hasty_client(&table);
    refused_by(&mut other, actor.slot);
    let client = store.client_in(actor.slot).unwrap().unwrap();
    assert!(client.stopped && client.process == u64::from(actor.process.id()) && client.slot == actor.slot);
    let free = (0..8).find(|slot| ![actor.slot, other.slot()].contains(slot)).unwrap();
    assert_eq!((store.client_in(free).unwrap(), store.client_in(9_999).unwrap()), (None, None));
    assert_eq!(other.get(&[1; 8]).unwrap(), None, "reads go on");

    let killed = store.kill_client(actor.slot, patience()).unwrap();
    assert_eq!((killed.killed, killed.process), (true, actor.process.id().into()));
    let recovered = killed.recovered.unwrap();
    assert_eq!((recovered.locks, recovered.slot), (1, actor.slot));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&actor.process.wait().unwrap()), Some(9));
    other.put(&[1; 8], &[2; 8]).unwrap();
    let error = store.kill_client(actor.slot, patience()).unwrap_err();
    assert!(matches!(error, Error::Admin(AdminError::NoClient { .. })), "{error}");
    assert!(
        matches!(store.kill_client(9_999, patience()), Err(Error::Admin(AdminError::NoClient { .. }))),
        "there is no such slot"
    );
}

/// Returns the slot of a client that died in the middle of a change of `key`, and a process that stopped while it
/// recovered that client.
fn stopped_recoverer(table: &Table, store: &Store, key: u8) -> (u16, Actor) {
    let mut dead = Actor::start(table);
    lock(store, dead.slot, &[key; 8]);
    dead.kill();
    let program = std::env::current_exe().unwrap();
    let recoverer = Actor::of(table, Command::new(program).env(RECOVERER, key.to_string()));
    recoverer.wait_stopped();
    (dead.slot, recoverer)
}

/// [R-RECOVER-4] A process that stopped in the middle of a recovery is named: `Busy` names the dead client's slot, and
/// the statistics name the process there. It is killed on request, and the recovery is completed.
#[test]
fn a_stopped_recoverer_is_killed_on_request() {
    let (table, store) = store(8);
    let (slot, mut recoverer) = stopped_recoverer(&table, &store, 1);
    let mut other = hasty_client(&table);
    refused_by(&mut other, slot);
    let process = u64::from(recoverer.process.id());
    let stat = store.stat().unwrap();
    let there = stat.clients.iter().find(|client| client.slot == slot).unwrap();
    assert_eq!((there.state, there.process), (ClientState::Recovering, process));
    let repair = store.recover(&mut |_, _| ()).unwrap();
    assert!(repair.recovered.is_empty() && repair.failed.is_empty(), "{repair:?}");
    let there = repair.living.iter().find(|client| client.slot == slot).unwrap();
    assert_eq!((there.process, there.recovering, there.stopped), (process, true, true));

    let killed = store.kill_client(slot, patience()).unwrap();
    assert_eq!((killed.killed, killed.process), (true, process));
    let recovered = killed.recovered.unwrap();
    assert_eq!((recovered.slot, recovered.locks, recovered.was_begun), (slot, 1, true));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&recoverer.process.wait().unwrap()), Some(9));
    other.put(&[1; 8], &[2; 8]).unwrap();
    let repair = store.recover(&mut |_, _| ()).unwrap();
    assert!(
        repair.recovered.len() == 1 && repair.recovered[0].slot == recoverer.slot,
        "the recoverer's own slot is recovered: {repair:?}"
    );
    // A recovery by this process writes its identity into the slot, too.
    let at = store.table().geometry().slot(slot).add_words(SlotWord::PROCESS_WORD as u64);
    let mut words = [0; 5];
    submit(&region(&store), Verb::Read { addr: at, into: &mut words });
    let ProcessIdentity { pid, start_ticks, namespaces, boot } = ProcessIdentity::current();
    assert!(words[0] == pid && words[2..] == [start_ticks, namespaces, boot], "{words:?}");
}

/// [R-RECOVER-4] A process that recovers a client is not killed for that client if it makes progress in time.
#[test]
fn a_recoverer_that_makes_progress_is_not_killed() {
    let (table, store, mut recoverer) = (0..MOST_TRIES)
        .find_map(|_| {
            let (table, store) = store(8);
            let (slot, mut recoverer) = stopped_recoverer(&table, &store, 1);
            let killed = std::thread::scope(|scope| {
                let killing = scope.spawn(|| store.kill_client(slot, patience()));
                std::thread::sleep(Duration::from_millis(50));
                recoverer.signal(Signal::CONT);
                recoverer.process.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
                killing.join().unwrap()
            });
            match killed {
                Ok(killed) => assert!(!killed.killed && killed.recovered.is_none(), "{killed:?}"),
                // The recovery ended before this process looked at it.
                Err(Error::Admin(AdminError::NoClient { .. })) => return None,
                Err(error) => panic!("{error}"),
            }
            Some((table, store, recoverer))
        })
        .expect("every recovery ended too early");
    assert!(recoverer.process.wait().unwrap().success());
    let mut client = store.client().unwrap();
    assert_eq!(client.get(&[1; 8]).unwrap(), Some(vec![7; 8]), "it went on, and made its change");
    // A client of this process recovers a dead one by itself, and writes its identity into the slot.
    let mut dead = Actor::start(&table);
    lock(&store, dead.slot, &[1; 8]);
    dead.kill();
    client.put(&[1; 8], &[8; 8]).unwrap();
    let at = store.table().geometry().slot(dead.slot).add_words(SlotWord::PROCESS_WORD as u64);
    let mut words = [0; 1];
    submit(&region(&store), Verb::Read { addr: at, into: &mut words });
    assert_eq!(words, [u64::from(std::process::id())]);
}

/// [R-RECOVER-1] If several callers kill a client at the same time, its process is killed, the client is recovered
/// once, and every call returns in time.
#[test]
fn concurrent_kills_recover_a_client_once() {
    const KILLERS: usize = 3;
    const ROUNDS: u8 = 12;
    let (table, store) = store(8);
    let mut late = 0;
    for round in 1..=ROUNDS {
        let mut actor = Actor::start(&table);
        lock(&store, actor.slot, &[round; 8]);
        // A running client is killed as well as a stopped one.
        if round % 2 == 0 {
            actor.stop();
        }
        let kick = || store.kill_client(actor.slot, patience());
        let results: Vec<Result<Killed, Error>> = std::thread::scope(|scope| {
            let killers: Vec<_> = (0..KILLERS).map(|_| scope.spawn(kick)).collect();
            killers.into_iter().map(|killer| killer.join().unwrap()).collect()
        });
        let (done, refused): (Vec<_>, Vec<_>) = results.iter().partition(|result| result.is_ok());
        let done: Vec<&Killed> = done.into_iter().flatten().collect();
        // A call that came after the recovery found no client.
        assert!(
            refused.iter().all(|it| matches!(it, Err(Error::Admin(AdminError::NoClient { .. })))),
            "round {round}: {results:?}"
        );
        late += refused.len();
        // A call that came during the recovery found the recoverer: this process, which is not killed.
        let found_recoverer = |killed: &Killed| {
            killed.process == u64::from(std::process::id()) && !killed.killed && killed.recovered.is_none()
        };
        let found_it = |killed: &&Killed| killed.process == u64::from(actor.process.id()) || found_recoverer(killed);
        assert!(done.iter().all(found_it), "round {round}: {results:?}");
        assert!(done.iter().any(|killed| killed.killed), "round {round}: {results:?}");
        let recovered: Vec<u64> = done.iter().filter_map(|killed| Some(killed.recovered?.locks)).collect();
        assert_eq!(recovered, [1], "round {round}: {results:?}");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&actor.process.wait().unwrap()), Some(9));
        store.client().unwrap().put(&[round; 8], &[2; 8]).unwrap();
    }
    println!("{ROUNDS} clients, {KILLERS} callers each, of which {late} came too late");
    assert!(late < usize::from(ROUNDS), "no calls were concurrent");
}

/// A process is not killed for a slot that it has given up, whatever the slot says; nor is the calling process.
#[test]
fn no_process_is_killed_in_place_of_another() {
    let (table, store) = store(8);
    let mut client = store.client().unwrap();
    let error = store.kill_client(client.slot(), patience()).unwrap_err();
    assert!(matches!(error, Error::Admin(AdminError::Kill { source: KillError::Denied { .. }, .. })), "{error}");
    client.put(&[1; 8], &[1; 8]).unwrap();
    // As if the process id in the slot had been reused by another process.
    let mut actor = Actor::start(&table);
    let at = store.table().geometry().slot(actor.slot).add_words(SlotWord::IDENTITY_WORD as u64);
    submit(&region(&store), Verb::FetchAdd { addr: at, add: 1, found: &mut 0 });
    let error = store.kill_client(actor.slot, patience()).unwrap_err();
    assert!(matches!(error, Error::Admin(AdminError::Kill { source: KillError::Ended { .. }, .. })), "{error}");
    // As if the process were in another pid namespace.
    submit(&region(&store), Verb::FetchAdd { addr: at, add: u64::MAX, found: &mut 0 });
    submit(&region(&store), Verb::FetchAdd { addr: at.add_words(1), add: 1, found: &mut 0 });
    let error = store.kill_client(actor.slot, patience()).unwrap_err();
    assert!(matches!(error, Error::Admin(AdminError::Kill { source: KillError::Unproven { .. }, .. })), "{error}");
    assert!(actor.process.try_wait().unwrap().is_none(), "it lives");
    // A dead process is only recovered.
    actor.kill();
    let killed = store.kill_client(actor.slot, patience()).unwrap();
    assert!(!killed.killed && killed.recovered.is_some(), "{killed:?}");
}

/// [R-RECOVER-4] A client that probes a dead one holds its slot for a moment. A call waits for that, and the dead
/// client is recovered; if the slot is held for longer, the call reports that the process has ended.
#[test]
fn a_dead_client_whose_slot_is_held_is_waited_for() {
    let (table, store) = store(8);
    let mut actor = Actor::start(&table);
    actor.kill();
    let others = region(&store);
    let hold = others.hold(actor.slot).unwrap().unwrap();
    let error = store.kill_client(actor.slot, Duration::from_millis(20)).unwrap_err();
    assert!(matches!(error, Error::Admin(AdminError::Kill { source: KillError::Ended { .. }, .. })), "{error}");
    std::thread::scope(|scope| {
        let killing = scope.spawn(|| store.kill_client(actor.slot, patience()).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        drop(hold);
        let killed = killing.join().unwrap();
        assert!(!killed.killed && killed.recovered.is_some(), "{killed:?}");
    });
}

/// A process that became another program is not killed for the client it was before, even while another process holds
/// that client's slot.
#[test]
fn a_process_that_became_another_program_is_not_killed() {
    let (table, store) = store(8);
    let mut actor = Actor::of(&table, Command::new(std::env::current_exe().unwrap()).env(EXEC, "1"));
    let hold = hold_when_free(&region(&store), actor.slot);
    let error = store.kill_client(actor.slot, patience()).unwrap_err();
    assert!(matches!(error, Error::Admin(AdminError::Kill { source: KillError::Unproven { .. }, .. })), "{error}");
    assert!(actor.process.try_wait().unwrap().is_none(), "it lives");
    drop(hold);
    let killed = store.kill_client(actor.slot, patience()).unwrap();
    assert!(!killed.killed && killed.recovered.is_some(), "{killed:?}");
    assert!(actor.process.try_wait().unwrap().is_none(), "it still lives");
}

/// [R-RECOVER-2] [R-COMMIT-1] A row that is half written is no damage if its client has a record of the change, whether
/// the client is stopped or dead; without a record it is damage.
#[test]
fn recorded_changes_under_way_are_not_damage() {
    let (table, store) = store(8);
    let mut actor = Actor::start(&table);
    store.client().unwrap().put(&[1; 8], &[2; 8]).unwrap();
    let (region, there) = (region(&store), store.table());
    let row = there.placement().rows(there.placement().digest(&[1; 8])).first;
    let at = there.geometry().row(row);
    let mut words = vec![0; there.rows().row_words()];
    submit(&region, Verb::Read { addr: at, into: &mut words });
    let number = there.rows().occupancy(&words).trailing_zeros() as usize;
    actor.stop();
    lock(&store, actor.slot, &[1; 8]);
    let torn_at = at.add_words((number * there.rows().entry_words()) as u64);
    submit(&region, Verb::FetchAdd { addr: torn_at, add: 1, found: &mut 0 });
    let report = store.check().unwrap();
    assert_eq!((report.problems_total, report.under_way_total), (1, 0), "no client will complete it: {report:?}");
    assert_eq!(report.problems[0].kind, ProblemKind::RowTorn);

    let mut record = guira_layout::Record::default();
    record.clear();
    record.push(there.rows(), row, number, &words);
    record.seal(there.rows().sums(), 7);
    let (further, first) = record.parts();
    assert!(further.is_none());
    let addr = there.geometry().slot(actor.slot).add_words(first.word as u64);
    submit(&region, Verb::Write { addr, words: first.words });
    let causes = |report: &CheckReport| -> Vec<(ProblemKind, Cause)> {
        report.under_way.iter().map(|left| (left.kind, left.cause)).collect()
    };
    let report = store.check().unwrap();
    assert!(report.is_clean() && report.dead_clients == 0, "{report:?}");
    assert_eq!(causes(&report), [(ProblemKind::RowTorn, Cause::LivingClient)]);
    actor.kill();
    let report = store.check().unwrap();
    assert!(report.is_clean() && report.dead_clients == 1, "{report:?}");
    let left = [ProblemKind::UnfinishedCommit, ProblemKind::StuckLock, ProblemKind::RowTorn];
    assert_eq!(causes(&report), left.map(|kind| (kind, Cause::DeadClient)));
    let recovered = store.recover(&mut |_, _| ()).unwrap().recovered;
    assert_eq!((recovered[0].replayed_rows, recovered[0].torn_rows, recovered[0].locks), (1, 1, 1));
    let report = store.check().unwrap();
    assert_eq!((report.problems_total, report.under_way_total, report.dead_clients), (0, 0, 0), "{report:?}");
    assert_eq!(store.client().unwrap().get(&[1; 8]).unwrap(), Some(vec![2; 8]));
}

/// [R-RECOVER-1] A process that no longer holds its slot, and ends while it is looked at, counts as ended: its client
/// is recovered.
#[test]
fn a_client_that_dies_during_the_check_is_recovered() {
    let (table, store) = store(8);
    let mut actor = Actor::of(&table, Command::new(std::env::current_exe().unwrap()).env(EXEC, "1"));
    let hold = hold_when_free(&region(&store), actor.slot);
    std::thread::scope(|scope| {
        let (store, slot) = (&store, actor.slot);
        let killing = scope.spawn(move || store.kill_client(slot, patience()));
        std::thread::sleep(Duration::from_millis(150));
        actor.kill();
        drop(hold);
        let killed = killing.join().unwrap().unwrap();
        assert!(!killed.killed && killed.recovered.is_some(), "{killed:?}");
    });
}

/// Waits until the client in `slot` has ended, and holds its slot.
fn hold_when_free(region: &ShmRegion, slot: u16) -> SlotHold {
    let mut hold = None;
    wait_until("its client has ended", || {
        hold = region.hold(slot).unwrap();
        hold.is_some()
    });
    hold.unwrap()
}

/// [R-SLOT-2] A process that opens a client and finds no slot free looks again while another process claims or recovers
/// one. If all slots have clients, it fails at once.
#[test]
fn opening_a_client_waits_for_the_last_slot() {
    let (table, store) = store(1);
    let patient = Store::open_with(&table.url, &OpenOptions::default().deadline(patience())).unwrap();
    let others = region(&store);
    let addr = store.table().geometry().slot(0);
    let word = |state, generation| SlotWord { state, generation }.encode();
    let change = |from, to| {
        let (compare, swap, mut found) = (from, to, 0);
        submit(&others, Verb::Cas { addr, compare, swap, found: &mut found });
        assert_eq!(found, compare);
    };
    // As another process that holds the slot for a moment, to claim it or to recover its client.
    for (generation, state) in [(0, SlotState::Free), (1, SlotState::Recovering)] {
        let hold = others.hold(0).unwrap().unwrap();
        change(word(SlotState::Free, generation), word(state, generation));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| patient.client().map(|client| client.slot()));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!waiting.is_finished(), "{state:?}: it waits");
            change(word(state, generation), word(SlotState::Free, generation));
            drop(hold);
            assert_eq!(waiting.join().unwrap().unwrap(), 0);
        });
    }
    let hold = others.hold(0).unwrap().unwrap();
    let hasty = OpenOptions::default().deadline(Duration::from_millis(20));
    let hasty = Store::open_with(&table.url, &hasty).unwrap();
    for refused in [hasty.client().map(drop), pollster::block_on(hasty.to_async().client()).map(drop)] {
        assert!(matches!(refused, Err(Error::Open(OpenError::TooManyClients { max: 1, dead: 0, .. }))), "{refused:?}");
    }
    drop(hold);

    let _client = store.client().unwrap();
    // It would wait longer than any test lasts.
    let patient = Store::open_with(&table.url, &OpenOptions::default().deadline(100 * patience())).unwrap();
    let refused = patient.client().map(drop);
    assert!(matches!(refused, Err(Error::Open(OpenError::TooManyClients { .. }))), "a table in use is not waited for");
}

/// A process that may only read the file of a table, and locks all of it, blocks no client, and no recovery of a killed
/// one.
#[test]
fn a_read_only_user_of_a_table_blocks_no_client() {
    let folder = ScratchFolder::in_shared_memory();
    let path = folder.path().join("table");
    let url = Url::file(&path).unwrap();
    let store = Store::create(&url, &CreateOptions::new(100).max_clients(2).mode(0o644)).unwrap();
    let table = Table { url };
    let mut killed = Actor::start(&table);
    let file = std::fs::File::open(&path).unwrap();
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).unwrap();
    let mut client = store.client().unwrap();
    client.put(b"cuckoo", b"grey").unwrap();
    killed.kill();
    let dead = store.stat().unwrap().clients.iter().filter(|client| client.state == ClientState::Dead).count();
    assert_eq!(dead, 1);
    let mut second = store.client().unwrap();
    second.put(b"ani", b"black").unwrap();
    assert_eq!(store.slot_lock().unwrap(), None);
    drop((client, second, file, table));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the table and its lock file are gone");
}
