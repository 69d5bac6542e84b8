//! Clover, to which RCuckoo is compared: operations take the round trips of the paper, and histories are linearizable,
//! whoever dies, stalls or loses a connection, wherever that is, also where entries are used again, and behind an element
//! that forgets everything at any time. Swarms without the version check find histories that are not.

mod steering;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use guira_check::history::{Answer, Call, History, SEARCH_STEPS};
use guira_conformance::swarm::{Baseline, Counts as RunCounts, StoreRun, StoreSetup};
use guira_fabric::memory::Ordering;
use guira_fabric::{Effect, Profile};
use guira_fabric_sim::{
    ClientId, EventKind, Fault, FaultPlan, Network, NodeEvent, NodeFault, Relaxations, Sim, SimOptions, SimRegion,
    Stopped,
};
use guira_lab::baselines::clover::{CloverClient, CloverStore, Counts, Reuse, Shape, Table};
use guira_lab::baselines::{BuildError, Change, Client, Cost, Error, ErrorKind, Outcome, Ports, Store};
use guira_testing::is_long;

const SEED: u64 = 41;
const NETWORK: Network = Network::of(Profile::Mlx5);
const VALUE_BYTES: usize = 8;
const KEYS: u64 = 40;
const ENTRIES: u64 = 20_000;
/// Values that operations store are larger than those with which a store is filled.
const FIRST_VALUE: u64 = 1_000;
/// The processes of a history that fill the store, and read it at the end.
const FILLER: u64 = u64::MAX;
const AUDITOR: u64 = u64::MAX - 1;

/// A store with keys `1..=records`, each of which has itself as its value.
fn store_of(shape: Shape, records: u64, cache_keys: u64) -> CloverStore {
    let value = |record: u64, value: &mut Vec<u8>| value.extend((record + 1).to_le_bytes());
    let key = |record: u64| record as u32 + 1;
    let table = Table::build(shape, Profile::Mlx5.caps(), records, key, value, &|| false);
    let table = table.expect("keys and values are right").expect("nobody stops it");
    CloverStore::new(table.fork(), Rc::new(|key| u64::from(key) - 1), cache_keys, 1)
}

fn store(records: u64, cache_keys: u64) -> CloverStore {
    let shape = Shape { keys: KEYS, entries: ENTRIES, value_bytes: VALUE_BYTES, reuse: Reuse::Never };
    store_of(shape, records, cache_keys)
}

/// A store with 10 records, and room for so many other entries, which are used again.
fn reusing(others: u64, reuse: Reuse) -> CloverStore {
    store_of(Shape { keys: KEYS, entries: 10 + others, value_bytes: VALUE_BYTES, reuse }, 10, KEYS)
}

/// The version of an entry in its link.
fn version_of(store: &CloverStore, entry: usize) -> u64 {
    /// Words of the shortcuts, and of an entry.
    const SHORTCUT_WORDS: usize = 48;
    const ENTRY_WORDS: usize = 16;
    store.nodes()[0].memory().main[SHORTCUT_WORDS + entry * ENTRY_WORDS].load(Ordering::Relaxed) >> 48 & 0x7fff
}

fn simulation(store: &CloverStore, options: &SimOptions) -> Sim {
    let mut sim = Sim::new(store.nodes()[0].clone(), options);
    let (threads, service) = store.service().expect("clients call it");
    sim.serve(threads, service);
    if let Some(element) = store.element() {
        sim.pass_through(element);
    }
    sim
}

/// A client whose operations are recorded.
struct Actor {
    client: CloverClient,
    region: SimRegion,
    process: u64,
    history: Rc<RefCell<History>>,
}

impl Actor {
    fn new(store: &CloverStore, region: &SimRegion, process: u64, history: &Rc<RefCell<History>>) -> Actor {
        let client = store.client(Ports::simulated(region), 0, &Rc::new(()), &Rc::new(store.thread()));
        Actor { client, region: region.clone(), process, history: Rc::clone(history) }
    }

    async fn call(&mut self, key: u32, call: Call) -> Result<Answer, Error> {
        // Stores are filled at 0.
        let now_ns = || self.region.now_ns() + 1;
        let pending = self.history.borrow_mut().begin(self.process, key.into(), call, now_ns());
        let answer = answer(&mut self.client, key, call).await;
        match &answer {
            Ok(answer) => self.history.borrow_mut().complete(pending, *answer, self.region.now_ns() + 1),
            Err(error) if error.effect == Effect::None => self.history.borrow_mut().fail(pending),
            Err(_) => {}
        }
        answer
    }

    /// Carries out an operation that cannot fail, and returns its answer and its cost.
    async fn costs(&mut self, key: u32, call: Call) -> (Answer, Cost) {
        let before = self.client.cost();
        let answer = self.call(key, call).await.expect("nothing fails here");
        (answer, self.client.cost().since(&before))
    }

    /// Asserts the answer and the round trips of an operation.
    async fn takes(&mut self, key: u32, call: Call, answer: Answer, round_trips: u64) {
        let (found, cost) = self.costs(key, call).await;
        assert_eq!((found, cost.round_trips), (answer, round_trips), "{call} of key {key}");
    }
}

async fn answer(client: &mut CloverClient, key: u32, call: Call) -> Result<Answer, Error> {
    let key = key.into();
    let outcome = match call {
        Call::Get => {
            let mut value = Vec::new();
            let found = client.get(key, &mut value).await?;
            let number = || u64::from_le_bytes(value.as_slice().try_into().expect("values have 8 bytes"));
            return Ok(if found { Answer::Found(number()) } else { Answer::Absent });
        }
        Call::Put(value) => client.change(key, Change::Put(&value.to_le_bytes())).await?,
        Call::Insert(value) => client.change(key, Change::Insert(&value.to_le_bytes())).await?,
        Call::Update(value) => client.change(key, Change::Update(&value.to_le_bytes())).await?,
        _ => client.change(key, Change::Remove).await?,
    };
    Ok(match (call, outcome) {
        (Call::Put(_), Outcome::Inserted) => Answer::Inserted,
        (Call::Put(_), Outcome::Replaced) => Answer::Replaced,
        (_, Outcome::Missing) => Answer::Missing,
        (_, Outcome::Exists) => Answer::Exists,
        _ => Answer::Done,
    })
}

/// Returns the history of a store with `records` records to which nothing has happened.
fn filled(records: u64) -> Rc<RefCell<History>> {
    let mut history = History::new();
    for key in 1..=records {
        let pending = history.begin(FILLER, key, Call::Put(key), 0);
        history.complete(pending, Answer::Done, 0);
    }
    Rc::new(RefCell::new(history))
}

/// Reads all keys when everybody else has ended, and checks the whole history.
fn audit(sim: &mut Sim, store: &CloverStore, history: &Rc<RefCell<History>>, context: &str) {
    assert_eq!(sim.run(), Stopped::Ended, "{context}");
    let (reader, recorded, done) = (store.clone(), Rc::clone(history), Rc::new(Cell::new(false)));
    let noted = Rc::clone(&done);
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&reader, &region, AUDITOR, &recorded);
        for key in 1..=KEYS as u32 {
            actor.call(key, Call::Get).await.expect("nothing fails now");
        }
        noted.set(true);
    });
    assert_eq!((sim.run(), done.get()), (Stopped::Ended, true), "{context}");
    if let Err(error) = history.borrow().check(SEARCH_STEPS) {
        panic!("{context}: {error}");
    }
}

/// Runs one client by itself.
fn alone<F: Future<Output = ()> + 'static>(store: &CloverStore, client: impl FnOnce(Actor) -> F + 'static) {
    let mut sim = simulation(store, &SimOptions::new(SEED, NETWORK));
    let (history, own) = (filled(0), store.clone());
    let done = Rc::new(Cell::new(false));
    let noted = Rc::clone(&done);
    sim.spawn(move |region| async move {
        client(Actor::new(&own, &region, 0, &history)).await;
        noted.set(true);
    });
    assert_eq!((sim.run(), done.get()), (Stopped::Ended, true));
}

/// A cached lookup takes one round trip, a change two, whether the key exists or was removed; an insert two, one of which is a
/// call. Nobody waits for entries, but for the first ones.
#[test]
fn operations_take_the_round_trips_of_the_paper() {
    alone(&store(10, KEYS), |mut actor| async move {
        actor.takes(1, Call::Get, Answer::Found(1), 1).await;
        actor.takes(1, Call::Update(1_000), Answer::Done, 3).await;
        assert_eq!(actor.client.counts(), Counts { waits: 1, ..Counts::default() });
        for value in 1_001..1_100 {
            actor.takes(1, Call::Update(value), Answer::Done, 2).await;
            actor.takes(1, Call::Get, Answer::Found(value), 1).await;
        }
        actor.takes(2, Call::Put(1), Answer::Replaced, 2).await;
        actor.takes(2, Call::Insert(1), Answer::Exists, 1).await;
        actor.takes(2, Call::Remove, Answer::Done, 2).await;
        actor.takes(2, Call::Get, Answer::Absent, 1).await;
        actor.takes(2, Call::Remove, Answer::Missing, 1).await;
        actor.takes(2, Call::Update(1), Answer::Missing, 1).await;
        actor.takes(2, Call::Insert(2_000), Answer::Done, 2).await;
        actor.takes(2, Call::Get, Answer::Found(2_000), 1).await;
        assert_eq!(actor.client.counts(), Counts { waits: 1, ..Counts::default() });
        // Keys without a chain: the server says so, and begins one.
        actor.takes(20, Call::Get, Answer::Absent, 1).await;
        actor.takes(20, Call::Update(1), Answer::Missing, 1).await;
        actor.takes(20, Call::Remove, Answer::Missing, 1).await;
        assert_eq!(actor.client.counts(), Counts { waits: 1, misses: 3, ..Counts::default() });
        actor.takes(20, Call::Insert(3_000), Answer::Done, 2).await;
        actor.takes(21, Call::Put(3_001), Answer::Inserted, 2).await;
        actor.takes(20, Call::Get, Answer::Found(3_000), 1).await;
        assert_eq!(actor.client.counts(), Counts { waits: 1, misses: 3, ..Counts::default() });
    });
}

/// A change is a WRITE and a CAS, and behind them a WRITE of the shortcut and a notice; every sixteenth asks for entries.
#[test]
fn changes_send_the_messages_of_the_paper() {
    alone(&store(10, KEYS), |mut actor| async move {
        actor.costs(1, Call::Update(1_000)).await;
        let mut messages = Vec::new();
        for value in 0..32 {
            messages.push(actor.costs(1, Call::Update(2_000 + value)).await.1.messages);
        }
        assert_eq!(messages.iter().filter(|messages| **messages == 5).count(), 2, "{messages:?}");
        assert_eq!(messages.iter().filter(|messages| **messages == 4).count(), 30, "{messages:?}");
        assert_eq!(actor.costs(20, Call::Insert(1)).await.1.messages, 2);
        assert_eq!(actor.costs(1, Call::Get).await.1.messages, 1);
    });
}

/// Another client changes a key so often; then `last` of a client that believes the first entry to be the last one is
/// measured. Returns its answer, its cost and its counts. `lags` entries are missing from the shortcut.
fn behind(changes: u64, lags: u64, last: Call) -> (Answer, Cost, Counts) {
    let store = store(10, KEYS);
    let mut sim = simulation(&store, &SimOptions::new(SEED, NETWORK));
    let history = filled(10);
    let (writer, recorded) = (store.clone(), Rc::clone(&history));
    let shortcuts = Rc::new(RefCell::new(vec![store.nodes()[0].memory().main[0].load(Ordering::Relaxed)]));
    let noted = Rc::clone(&shortcuts);
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&writer, &region, 0, &recorded);
        for change in 0..changes {
            actor.call(1, Call::Update(FIRST_VALUE + change)).await.expect("nothing fails here");
            // The shortcut is written meanwhile.
            for _ in 0..2 {
                actor.call(2, Call::Get).await.expect("nothing fails here");
            }
            noted.borrow_mut().push(writer.nodes()[0].memory().main[0].load(Ordering::Relaxed));
        }
    });
    assert_eq!(sim.run(), Stopped::Ended);
    let shown = shortcuts.borrow()[(changes - lags) as usize];
    store.nodes()[0].memory().main[0].store(shown, Ordering::Relaxed);
    let result = Rc::new(Cell::new(None));
    let (found, other, recorded) = (Rc::clone(&result), store.clone(), Rc::clone(&history));
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&other, &region, 1, &recorded);
        // It has entries.
        actor.call(5, Call::Update(77)).await.expect("nothing fails here");
        let before = actor.client.counts();
        let (answer, cost) = actor.costs(1, last).await;
        assert_eq!(before, Counts { waits: 1, ..Counts::default() });
        found.set(Some((answer, cost, actor.client.counts())));
    });
    audit(&mut sim, &store, &history, "behind");
    result.take().expect("it has ended")
}

/// Behind a stale entry, a client jumps to where the shortcut points, and goes on from there.
#[test]
fn stale_clients_follow_the_shortcut_and_then_the_chain() {
    let counts = |stale, passed| Counts { stale, passed, shortcuts: 1, waits: 1, ..Counts::default() };
    for changes in [1, 2, 50] {
        let current = Answer::Found(FIRST_VALUE + changes - 1);
        // The stale entry, the shortcut, the last entry.
        let (answer, cost, counted) = behind(changes, 0, Call::Get);
        assert_eq!((answer, cost.round_trips, cost.retries), (current, 3, 0));
        assert_eq!(counted, counts(0, 1));
        // A WRITE, a CAS in vain, the shortcut, the last entry, a CAS.
        let (answer, cost, counted) = behind(changes, 0, Call::Update(5_000));
        assert_eq!((answer, cost.round_trips, cost.retries), (Answer::Done, 5, 1));
        assert_eq!(counted, counts(1, 0));
    }
    // From where the shortcut points: one round trip for each entry.
    for lags in [1, 3, 15] {
        let (_, cost, counted) = behind(50, lags, Call::Get);
        assert_eq!((cost.round_trips, counted.passed), (3 + lags, 1 + lags));
    }
    // A shortcut that points to the stale entry itself does not lead back to it.
    let (_, cost, counted) = behind(3, 3, Call::Get);
    assert_eq!((cost.round_trips, counted.passed), (2 + 3, 3));
    // One that leads far back is tried again less and less often.
    let (answer, cost, counted) = behind(200, 190, Call::Get);
    assert_eq!((answer, counted.shortcuts), (Answer::Found(FIRST_VALUE + 199), 6));
    assert!(counted.passed > 190 && cost.round_trips == 1 + counted.passed + counted.shortcuts, "{counted:?}");
}

/// A shortcut is written the given time after the change, by the next operation of the client, and not before.
#[test]
fn shortcuts_lag_as_long_as_they_are_told_to() {
    const LAG_NS: u64 = 50_000;
    let store = store(10, KEYS).lagging(LAG_NS);
    let shortcut = {
        let region = store.nodes()[0].clone();
        move || region.memory().main[0].load(Ordering::Relaxed)
    };
    alone(&store, move |mut actor| async move {
        let first = shortcut();
        actor.costs(1, Call::Update(1_000)).await;
        let changed_ns = actor.region.now_ns();
        while actor.region.now_ns() < changed_ns + LAG_NS - 5_000 {
            actor.costs(2, Call::Get).await;
            assert_eq!(shortcut(), first, "{} ns after the change", actor.region.now_ns() - changed_ns);
        }
        while actor.region.now_ns() < changed_ns + LAG_NS + 5_000 {
            actor.costs(2, Call::Get).await;
        }
        assert_ne!(shortcut(), first);
    });
}

/// Two clients that change a key at the same time: one of them tries again, and says why.
#[test]
fn a_change_that_is_overtaken_is_tried_again() {
    let (mut stale, mut overtaken) = (0, 0);
    for seed in 0..20 {
        let store = store(10, KEYS);
        let (mut sim, history) = (simulation(&store, &SimOptions::new(seed, NETWORK)), filled(10));
        let counted: Rc<RefCell<Vec<Counts>>> = Rc::default();
        for process in 0..3 {
            let (store, history, counted) = (store.clone(), Rc::clone(&history), Rc::clone(&counted));
            sim.spawn(move |region| async move {
                let mut actor = Actor::new(&store, &region, process, &history);
                for value in 0..20 {
                    let value = FIRST_VALUE + process * 100 + value;
                    let (answer, cost) = actor.costs(1, Call::Update(value)).await;
                    assert_eq!(answer, Answer::Done);
                    assert!(cost.retries == 0 || cost.round_trips >= 5, "{cost:?}");
                }
                let counts = actor.client.counts();
                assert_eq!(actor.client.cost().retries, counts.stale + counts.overtaken);
                counted.borrow_mut().push(counts);
            });
        }
        audit(&mut sim, &store, &history, &format!("seed {seed}"));
        stale += counted.borrow().iter().map(|counts| counts.stale).sum::<u64>();
        overtaken += counted.borrow().iter().map(|counts| counts.overtaken).sum::<u64>();
    }
    // Who has just changed the key is the first to change it again; the others are overtaken.
    assert!(stale >= 40 && overtaken > 200, "{stale} stale, {overtaken} overtaken");
}

/// Of many inserts of one key, one begins its chain, and all others find it, with a cold cache or with one that knows of a
/// removal.
#[test]
fn one_of_many_inserts_is_made() {
    for seed in 0..20 {
        let store = store(10, KEYS);
        let (mut sim, history) = (simulation(&store, &SimOptions::new(seed, NETWORK)), filled(10));
        let answers: Rc<RefCell<Vec<(u32, Answer)>>> = Rc::default();
        for process in 0..6 {
            let (store, history, answers) = (store.clone(), Rc::clone(&history), Rc::clone(&answers));
            sim.spawn(move |region| async move {
                let mut actor = Actor::new(&store, &region, process, &history);
                if process == 0 {
                    actor.call(3, Call::Remove).await.expect("nothing fails here");
                }
                for key in [30, 31, 3] {
                    let answer = actor.call(key, Call::Insert(FIRST_VALUE + process)).await;
                    answers.borrow_mut().push((key, answer.expect("nothing fails here")));
                }
            });
        }
        audit(&mut sim, &store, &history, &format!("seed {seed}"));
        let made = |key| answers.borrow().iter().filter(|answer| **answer == (key, Answer::Done)).count();
        assert_eq!((made(30), made(31)), (1, 1), "seed {seed}");
    }
}

/// Runs the swarms of these seeds, as `change` has them, and passes each to `see`.
fn swarms(seeds: u64, change: impl Fn(StoreSetup) -> StoreSetup, mut see: impl FnMut(&StoreRun)) {
    (0..seeds).for_each(|seed| see(&change(StoreSetup::draw(Baseline::Clover, seed)).run(0)));
}

/// Seeds that are drawn; CI runs the fewer ones.
fn seeds() -> u64 {
    if is_long() { 20_000 } else { 600 }
}

/// Histories of drawn clients, keys and caches are linearizable, with deaths, stalls of clients and of the server, lost
/// connections and late verbs, and where entries are used again all the time.
#[test]
fn drawn_histories_are_linearizable() {
    let (mut counts, seeds) = (RunCounts::default(), seeds());
    swarms(
        seeds,
        |setup| setup,
        |run| {
            assert_eq!(run.wrong, [""; 0], "{}; {:?}", run.setup, run.plan);
            counts.add(run.counts.all());
        },
    );
    for (name, least) in [
        ("operations", 100 * seeds),
        ("deaths", seeds / 2),
        ("reconnections", seeds / 4),
        ("stale", 10 * seeds),
        ("overtaken", 5 * seeds),
        ("passed", 10 * seeds),
        ("misses", 10 * seeds),
        ("reused", 2 * seeds),
        ("steered", 4 * seeds),
    ] {
        assert!(counts.of(name) >= least, "{name}: {} of {least}", counts.of(name));
    }
}

/// Asserts that some of the seeds of [`drawn_histories_are_linearizable`] have histories that are not, once they are
/// changed.
fn some_fail(change: impl Fn(StoreSetup) -> StoreSetup) {
    /// Seeds that must fail, after which the test ends.
    const ENOUGH: u64 = 5;
    let (mut failed, mut ran) = (0, 0);
    for seed in 0..600 {
        let run = change(StoreSetup::draw(Baseline::Clover, seed)).run(0);
        (failed, ran) = (failed + u64::from(run.history_error.is_some()), ran + 1);
        if failed == ENOUGH {
            break;
        }
    }
    println!("{failed} of {ran} seeds failed");
    assert_eq!(failed, ENOUGH);
}

/// A canary: clients that take an entry for the one that is meant, whatever its version.
#[test]
fn swarms_without_the_version_check_fail() {
    some_fail(|setup| setup.with_reuse(Reuse::WithoutVersions));
}

/// Equal seeds give equal event logs.
#[test]
fn equal_seeds_give_equal_runs() {
    for seed in 0..20 {
        let [one, other] = [0, 1_000].map(|events| Baseline::Clover.run(seed, events));
        assert_eq!((one.log_hash, &one.counts), (other.log_hash, &other.counts), "seed {seed}");
        assert_eq!(one.setup.to_string(), other.setup.to_string());
    }
}

/// Changes without end fit in few entries, and cost what they cost without reuse.
#[test]
fn entries_are_used_again_without_end() {
    let store = reusing(30, Reuse::Checked);
    let used = store.clone();
    alone(&store, |mut actor| async move {
        actor.takes(1, Call::Update(1_000), Answer::Done, 3).await;
        for value in 0..500 {
            let key = 1 + value as u32 % 5;
            actor.takes(key, Call::Update(FIRST_VALUE + value), Answer::Done, 2).await;
            actor.takes(key, Call::Get, Answer::Found(FIRST_VALUE + value), 1).await;
            actor.takes(9, Call::Remove, Answer::Done, 2).await;
            actor.takes(9, Call::Insert(FIRST_VALUE + value), Answer::Done, 2).await;
        }
        assert_eq!(actor.client.counts(), Counts { waits: 1, ..Counts::default() });
    });
    assert!((1..=40).filter(|entry| version_of(&used, *entry) > 10).count() > 25);
}

/// The entry of a key's record is used again for other keys, up to a version; then a client that believes it to be the
/// last of the key's chain carries out `last`, whose answer, cost and counts are returned. `lags` shortcuts point to it
/// as well.
fn after_reuse(version: u64, lags: bool, last: Call) -> (Answer, Cost, Counts) {
    let store = reusing(40, Reuse::Checked);
    let (mut sim, history) = (simulation(&store, &SimOptions::new(SEED, NETWORK)), filled(10));
    let (writer, recorded) = (store.clone(), Rc::clone(&history));
    let shortcut = store.nodes()[0].memory().main[0].load(Ordering::Relaxed);
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&writer, &region, 0, &recorded);
        actor.call(1, Call::Update(FIRST_VALUE)).await.expect("nothing fails here");
        for value in 1.. {
            if version_of(&writer, 1) == version {
                break;
            }
            actor.call(2, Call::Update(FIRST_VALUE + value)).await.expect("nothing fails here");
        }
    });
    assert_eq!(sim.run(), Stopped::Ended);
    if lags {
        store.nodes()[0].memory().main[0].store(shortcut, Ordering::Relaxed);
    }
    let result = Rc::new(Cell::new(None));
    let (found, other, recorded) = (Rc::clone(&result), store.clone(), Rc::clone(&history));
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&other, &region, 1, &recorded);
        // It has entries.
        actor.call(5, Call::Update(77)).await.expect("nothing fails here");
        let (answer, cost) = actor.costs(1, last).await;
        found.set(Some((answer, cost, actor.client.counts())));
    });
    audit(&mut sim, &store, &history, "after reuse");
    result.take().expect("it has ended")
}

/// A client notices that the entry which it believes in was used again, and starts over: from where the shortcut
/// points, or, if that lags behind, from where the server says.
#[test]
fn a_pointer_to_an_entry_that_was_used_again_leads_nowhere() {
    let counts = |stale| Counts { stale, shortcuts: 1, reused: 1, waits: 1, ..Counts::default() };
    for version in [2, 3, 10] {
        let (answer, cost, counted) = after_reuse(version, false, Call::Get);
        assert_eq!((answer, cost.round_trips, counted), (Answer::Found(FIRST_VALUE), 3, counts(0)));
        // The call in place of the shortcut, which says nothing new.
        let (answer, cost, counted) = after_reuse(version, true, Call::Get);
        assert_eq!((answer, cost.round_trips, counted), (Answer::Found(FIRST_VALUE), 4, counts(0)));
        // A WRITE, a CAS in vain, the shortcut, the last entry, a CAS.
        let (answer, cost, counted) = after_reuse(version, false, Call::Update(5_000));
        assert_eq!((answer, cost.round_trips, counted), (Answer::Done, 5, counts(1)));
        let (answer, cost, counted) = after_reuse(version, true, Call::Remove);
        assert_eq!((answer, cost.round_trips, counted), (Answer::Done, 6, counts(1)));
    }
}

/// Returns the words of a store in which key 1 has another value, and its first entry is used again for key 2.
fn words_after_reuse(reuse: Reuse) -> Vec<u64> {
    let store = reusing(40, reuse);
    let (mut sim, writer) = (simulation(&store, &SimOptions::new(SEED, NETWORK)), store.clone());
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&writer, &region, 0, &filled(10));
        actor.call(1, Call::Update(FIRST_VALUE)).await.expect("nothing fails here");
        while version_of(&writer, 1) == 1 {
            actor.call(2, Call::Update(7_777 << 32)).await.expect("nothing fails here");
        }
    });
    assert_eq!(sim.run(), Stopped::Ended);
    store.nodes()[0].memory().main.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

/// Returns what a client reads of key 1 if the words of the store become `later` in the middle of its READ, which
/// samples some words before that and some afterwards, as the seed has it.
fn read_across_reuse(seed: u64, reuse: Reuse, later: Vec<u64>) -> Result<Option<u64>, Error> {
    let store = reusing(40, reuse);
    let relaxations = Relaxations { scatter_percent: 100, ..Relaxations::default() };
    let faults = FaultPlan { relaxations, ..FaultPlan::default() };
    let mut sim = simulation(&store, &SimOptions { faults, ..SimOptions::new(seed, NETWORK) });
    let (changed, is_first) = (store.clone(), Cell::new(true));
    sim.watch(move |event| {
        if matches!(event.kind, EventKind::Read(_)) && is_first.replace(false) {
            let words = changed.nodes()[0].memory().main.iter().zip(&later);
            words.for_each(|(word, later)| word.store(*later, Ordering::Relaxed));
        }
    });
    let result = Rc::new(Cell::new(None));
    let (own, found) = (store.clone(), Rc::clone(&result));
    sim.spawn(move |region| async move {
        let (mut actor, mut value) = (Actor::new(&own, &region, 0, &filled(10)), Vec::new());
        let read = actor.client.get(1, &mut value).await;
        found.set(Some(read.map(|_| value.first_chunk().copied().map(u64::from_le_bytes))));
    });
    assert_eq!(sim.run(), Stopped::Ended);
    result.take().expect("it has ended")
}

/// The link that a READ finds can be of one use of the entry, and words of the record of the next one. The checksum
/// does not fit then, and the client starts over; without it, a mixture of the values of two keys is found.
#[test]
fn a_read_across_two_uses_of_an_entry_is_noticed() {
    let read = |reuse| {
        let later = words_after_reuse(reuse);
        (0..400).map(move |seed| read_across_reuse(seed, reuse, later.clone()))
    };
    let is_value = |found: &Result<_, Error>| [Ok(Some(1)), Ok(Some(FIRST_VALUE))].contains(found);
    for (seed, found) in read(Reuse::Checked).enumerate() {
        assert!(is_value(&found), "seed {seed}: {found:?}");
    }
    let mixed: Vec<_> = read(Reuse::WithoutChecksums).filter(|found| !is_value(found)).collect();
    assert!(mixed.len() > 1 && mixed.iter().all(|found| *found == Ok(Some(7_777 << 32 | 1))), "{mixed:?}");
}

/// The calls of a client that dies, which also others make.
const SCRIPT: [(u32, Call); 8] = [
    (1, Call::Update(0)),
    (1, Call::Put(0)),
    (20, Call::Insert(0)),
    (1, Call::Remove),
    (1, Call::Insert(0)),
    (21, Call::Put(0)),
    (20, Call::Remove),
    (20, Call::Put(0)),
];

/// Runs the script so many times by two clients, of which the first dies after so many verbs, in the middle of a WRITE
/// after so many units. Returns its verbs.
fn dies_after(store: &CloverStore, times: usize, verbs: u64, units: u64) -> u64 {
    let history = filled(10);
    let mut sim = simulation(store, &SimOptions::new(SEED, NETWORK));
    let next_value = Rc::new(Cell::new(FIRST_VALUE));
    let survived = Rc::new(Cell::new(false));
    for process in 0..2 {
        let (store, history, next_value) = (store.clone(), Rc::clone(&history), Rc::clone(&next_value));
        let survived = Rc::clone(&survived);
        sim.spawn(move |region| async move {
            let mut actor = Actor::new(&store, &region, process, &history);
            for (key, call) in SCRIPT.repeat(times) {
                let value = next_value.replace(next_value.get() + 1);
                let call = match call {
                    Call::Update(_) => Call::Update(value),
                    Call::Put(_) => Call::Put(value),
                    Call::Insert(_) => Call::Insert(value),
                    call => call,
                };
                actor.call(key, call).await.expect("the node never fails, and has room");
            }
            survived.set(survived.get() || process == 1);
        });
    }
    sim.inject(ClientId(0), verbs, Fault::Die { units });
    audit(&mut sim, store, &history, &format!("death after {verbs} verbs and {units} units"));
    assert!(survived.get(), "a death blocks the other client");
    sim.verbs_of(ClientId(0))
}

/// Whatever the client has done when it dies: what it acknowledged stays, what it began happens at once or not at all, and
/// nobody waits for it.
#[test]
fn a_client_may_die_at_every_verb() {
    let all = dies_after(&store(10, KEYS), 1, 1 << 40, 0);
    assert!(all > 25, "{all}");
    for verbs in 0..all {
        (0..3).for_each(|units| assert_eq!(dies_after(&store(10, KEYS), 1, verbs, units), verbs));
    }
}

/// The same where entries are used again, of which a dead client keeps those that it has.
#[test]
fn a_client_may_die_at_every_verb_where_entries_are_used_again() {
    const TIMES: usize = 8;
    let whole = reusing(60, Reuse::Checked);
    let all = dies_after(&whole, TIMES, 1 << 40, 0);
    assert!(all > 200 && (1..=70).any(|entry| version_of(&whole, entry) > 1), "{all}");
    for verbs in 0..all {
        let dead = reusing(60, Reuse::Checked);
        assert_eq!(dies_after(&dead, TIMES, verbs, verbs % 3), verbs);
        assert!((1..=70).any(|entry| version_of(&dead, entry) > 1), "nothing is used again");
    }
}

/// Cached keys are read and changed while the server does nothing; others wait for it.
#[test]
fn cached_keys_are_served_while_the_server_is_stalled() {
    for store in [store(10, KEYS), reusing(50, Reuse::Checked)] {
        is_served_while_the_server_is_stalled(&store);
    }
}

fn is_served_while_the_server_is_stalled(store: &CloverStore) {
    const STALLED_NS: u64 = 1_000_000;
    let stall = NodeFault { at_ns: 20_000, fault: NodeEvent::StallService { for_ns: STALLED_NS } };
    let faults = FaultPlan { node: vec![stall], ..FaultPlan::default() };
    let history = filled(10);
    let mut sim = simulation(store, &SimOptions { faults, ..SimOptions::new(SEED, NETWORK) });
    let (own, recorded, done) = (store.clone(), Rc::clone(&history), Rc::new(Cell::new(false)));
    let noted = Rc::clone(&done);
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&own, &region, 0, &recorded);
        actor.call(1, Call::Update(FIRST_VALUE)).await.expect("nothing fails here");
        assert!(region.now_ns() < 20_000);
        while region.now_ns() < 30_000 {
            actor.call(1, Call::Get).await.expect("nothing fails here");
        }
        for value in 1..10 {
            actor.takes(1, Call::Update(FIRST_VALUE + value), Answer::Done, 2).await;
            actor.takes(1, Call::Get, Answer::Found(FIRST_VALUE + value), 1).await;
        }
        assert!(region.now_ns() < STALLED_NS / 2, "{}", region.now_ns());
        actor.takes(30, Call::Get, Answer::Absent, 1).await;
        assert!(region.now_ns() > STALLED_NS, "{}", region.now_ns());
        noted.set(true);
    });
    audit(&mut sim, store, &history, "a stalled server");
    assert!(done.get());
}

/// A client with room for fewer keys than it uses asks the server where chains are.
#[test]
fn keys_that_are_not_cached_cost_a_call() {
    alone(&store(10, 2), |mut actor| async move {
        actor.takes(1, Call::Get, Answer::Found(1), 1).await;
        actor.takes(2, Call::Get, Answer::Found(2), 1).await;
        actor.takes(7, Call::Get, Answer::Found(7), 2).await;
        // It has displaced the less popular one of the first two.
        actor.takes(1, Call::Get, Answer::Found(1), 1).await;
        actor.takes(7, Call::Get, Answer::Found(7), 1).await;
        actor.takes(2, Call::Get, Answer::Found(2), 2).await;
        assert_eq!(actor.client.counts().misses, 2);
        actor.costs(8, Call::Update(1_000)).await;
        actor.takes(9, Call::Update(1_001), Answer::Done, 3).await;
        actor.takes(8, Call::Get, Answer::Found(1_000), 1).await;
    });
}

fn refusal(result: Result<Answer, Error>) -> (ErrorKind, Effect) {
    let error = result.expect_err("it must fail");
    (error.kind, error.effect)
}

/// A store that is full says so, changes nothing, and still serves what it has.
#[test]
fn a_full_store_refuses_changes() {
    let full = (ErrorKind::Full, Effect::None);
    let shape = Shape { keys: 11, entries: 10 + 20, value_bytes: VALUE_BYTES, reuse: Reuse::Never };
    let expected = full.clone();
    alone(&store_of(shape, 10, KEYS), |mut actor| async move {
        actor.takes(11, Call::Insert(1_000), Answer::Done, 3).await;
        assert_eq!(refusal(actor.call(12, Call::Insert(1)).await), expected);
        assert_eq!(refusal(actor.call(12, Call::Put(1)).await), expected);
        actor.takes(11, Call::Remove, Answer::Done, 2).await;
        // The refused ones have given their entries back: 20, less two.
        for value in 0..18 {
            let answer = actor.call(1, Call::Update(FIRST_VALUE + value)).await;
            assert_eq!(answer, Ok(Answer::Done), "update {value}");
        }
        assert_eq!(refusal(actor.call(1, Call::Update(1)).await), expected);
        assert_eq!(refusal(actor.call(1, Call::Remove).await), expected);
        actor.takes(1, Call::Get, Answer::Found(FIRST_VALUE + 17), 1).await;
        actor.takes(1, Call::Insert(1), Answer::Exists, 1).await;
    });
}

#[test]
fn what_a_store_cannot_do_is_refused() {
    alone(&store(10, KEYS), |mut actor| async move {
        for (key, change) in [(0, Change::Remove), (1 << 32, Change::Remove), (1, Change::Update(b"seven b"))] {
            let error = actor.client.change(key, change).await.expect_err("it must fail");
            assert!(matches!(error.kind, ErrorKind::Refused(_)) && error.effect == Effect::None, "{error}");
        }
        assert_eq!(actor.client.cost().messages, 0);
    });
    let shape = Shape { keys: 4, entries: 4, value_bytes: VALUE_BYTES, reuse: Reuse::Never };
    let built = |shape, records, key, value_bytes: usize| {
        let value = move |_, value: &mut Vec<u8>| value.resize(value_bytes, 1);
        Table::build(shape, Profile::Mlx5.caps(), records, move |_| key, value, &|| false).err()
    };
    assert_eq!(built(shape, 5, 1, 8), Some(BuildError::Full { records: 4 }));
    assert_eq!(built(Shape { entries: 3, ..shape }, 4, 1, 8), Some(BuildError::Full { records: 3 }));
    assert_eq!(built(Shape { entries: 1 << 32, ..shape }, 1, 1, 8), Some(BuildError::Full { records: 4 }));
    assert_eq!(built(shape, 1, 0, 8), Some(BuildError::Key));
    assert_eq!(built(shape, 1, 1, 7), Some(BuildError::Value { bytes: 7, value_bytes: 8 }));
    assert_eq!(built(shape, 4, 1, 8), None);
}

/// When the memory node has lost its memory, clients that still believe in it find out: no zeros are taken for a value, and
/// nothing is appended to them.
#[test]
fn lost_memory_is_no_chain() {
    let restart = NodeFault { at_ns: 1_000, fault: NodeEvent::Restart };
    let faults = FaultPlan { node: vec![restart], ..FaultPlan::default() };
    let store = store(10, KEYS);
    let mut sim = simulation(&store, &SimOptions { faults, ..SimOptions::new(SEED, NETWORK) });
    sim.run_until(2_000);
    let (own, done) = (store.clone(), Rc::new(Cell::new(false)));
    let noted = Rc::clone(&done);
    sim.spawn(move |region| async move {
        let mut actor = Actor::new(&own, &region, 0, &filled(0));
        for call in [Call::Get, Call::Update(1), Call::Remove, Call::Insert(1)] {
            let (kind, _) = refusal(actor.call(1, call).await);
            assert!(kind.to_string().contains("lost its memory"), "{call}: {kind}");
        }
        actor.takes(30, Call::Insert(1_000), Answer::Done, 2).await;
        actor.takes(30, Call::Get, Answer::Found(1_000), 1).await;
        noted.set(true);
    });
    assert_eq!((sim.run(), done.get()), (Stopped::Ended, true));
}
