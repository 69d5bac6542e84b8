//! Eight real threads, each with a client, on one table with hot keys and constantly moving entries. Occasionally a
//! thread yields its processor between two words of a verb, so that half-written rows and held locks are met on few
//! processors too.
//!
//! There are three kinds of keys. *Steady* keys always exist, and one thread alone changes each of them: no lookup may
//! miss one or see its counter decrease. *Fickle* keys are inserted and removed by one thread each, which knows what
//! every answer must be; they force the steady ones to move. *Shared* keys are changed by all threads: a value that is
//! read must have been written for that key, and in the end the presence of a key must equal its inserts less its
//! removes. Afterwards the table is audited. Each table is worked on for 0.25 s, with `GUIRA_LONG=1` for 2.5 s, and on
//! until each thread has carried out [`LEAST_OPERATIONS`] and one has found a lock taken.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guira_conformance::{Bench, Observed, Op, TestClient};
use guira_fabric::heap::Next;
use guira_fabric::{Profile, Region, SplitMix64};
use guira_layout::Preset;
use guira_rcuckoo::{ClientConfig, Counters, Outcome};
use guira_testing::patience;

const THREADS: u64 = 8;
const SEED: u64 = 77;
/// Operations of each thread on each table, at least.
const LEAST_OPERATIONS: u64 = 100;
/// Average number of lane steps after which a thread yields its processor.
const YIELD_ONE_IN: u64 = 40;

/// The parameters of one case.
#[derive(Clone, Copy, Debug)]
struct Case {
    preset: Preset,
    format: &'static str,
    profile: Profile,
    rows: u64,
    /// The number of steady keys; there are half as many shared ones.
    steady: u64,
    /// The number of fickle keys of each thread.
    fickle: u64,
    time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Steady,
    Fickle,
    Shared,
}

fn key(kind: Kind, i: u64) -> Vec<u8> {
    (i.wrapping_mul(4) + kind as u64).to_le_bytes().to_vec()
}

impl Case {
    /// Returns a value that encodes its key, its writer, and the writer's counter. In formats with extents it is
    /// padded, with bytes of its own, to a size that varies from one to the next.
    fn value(&self, kind: Kind, i: u64, writer: u64, counter: u64) -> Vec<u8> {
        let word = ((kind as u64) << 62 | i << 46 | writer << 40 | counter).to_le_bytes();
        let bytes = if self.format.starts_with("bytes") { 8 + (counter * 13 % 120) as usize } else { 8 };
        word.iter().copied().cycle().take(bytes).collect()
    }

    /// Returns writer and counter of a value, after checking that it was written for this key, as a whole.
    fn parse(&self, kind: Kind, i: u64, value: &[u8]) -> (u64, u64) {
        let word = u64::from_le_bytes(value[..8].try_into().expect("eight bytes"));
        let (writer, counter) = (word >> 40 & 0x3f, word & 0xff_ffff_ffff);
        assert_eq!(value, self.value(kind, i, writer, counter), "{kind:?} key {i} has a value never written for it");
        (writer, counter)
    }
}

/// State that the threads of a case share, besides the table.
struct Shared {
    case: Case,
    /// Inserts minus removes of each shared key.
    presence: Vec<AtomicI64>,
    /// Threads that have carried out their least operations.
    ready: AtomicU64,
    /// Whether a thread has found a lock taken.
    has_conflict: AtomicBool,
    stop: AtomicBool,
}

/// One thread's client and its knowledge.
struct Worker<'s> {
    shared: &'s Shared,
    me: u64,
    client: TestClient,
    rng: SplitMix64,
    /// Counters of the steady keys that this thread changes.
    counters: HashMap<u64, u64>,
    /// Fickle keys of this thread that exist, with their counters.
    fickle: HashMap<u64, u64>,
    /// The last counter seen of each steady and fickle key.
    seen: HashMap<(Kind, u64), u64>,
    operations: u64,
}

impl Worker<'_> {
    fn apply(&mut self, op: &Op) -> Observed {
        self.operations += 1;
        self.client.apply(op).unwrap_or_else(|error| panic!("thread {} {op:x?}: {error}", self.me))
    }

    fn run(&mut self) {
        let (case, mut is_ready) = (self.shared.case, false);
        while !self.shared.stop.load(Ordering::Relaxed) {
            match self.rng.below(8) {
                0 | 1 => self.read(Kind::Steady, self.rng.clone().below(case.steady)),
                2 => self.read(Kind::Fickle, self.rng.clone().below(case.fickle * THREADS)),
                3 => self.change_steady(),
                4 | 5 => self.change_fickle(),
                _ => self.change_shared(),
            }
            self.rng.next_u64();
            if !is_ready && self.operations >= LEAST_OPERATIONS {
                is_ready = true;
                self.shared.ready.fetch_add(1, Ordering::Relaxed);
            }
            if self.client.client.counters().lock_conflicts > 0 {
                self.shared.has_conflict.store(true, Ordering::Relaxed);
            }
        }
    }

    fn read(&mut self, kind: Kind, i: u64) {
        let seen = self.apply(&Op::Get(key(kind, i)));
        let Observed::Value(value) = seen else { panic!("a lookup answers with a value") };
        let Some(value) = value else {
            assert_eq!(kind, Kind::Fickle, "thread {} missed {kind:?} key {i}, which always exists", self.me);
            return;
        };
        let (_, counter) = self.shared.case.parse(kind, i, &value);
        let last = self.seen.insert((kind, i), counter).unwrap_or(0);
        assert!(counter >= last, "thread {}: {kind:?} key {i} went back from {last} to {counter}", self.me);
    }

    /// Steady key i is changed by thread i mod 8 alone.
    fn change_steady(&mut self) {
        let case = self.shared.case;
        let i = self.rng.below(case.steady.div_ceil(THREADS)) * THREADS + self.me;
        if i >= case.steady {
            return;
        }
        let counter = self.counters.entry(i).or_insert(0);
        *counter += 1;
        let value = case.value(Kind::Steady, i, self.me, *counter);
        let key = key(Kind::Steady, i);
        let (op, wanted) = match self.rng.below(3) {
            0 => (Op::Put(key, value), Outcome::Replaced),
            1 => (Op::Update(key, value), Outcome::Replaced),
            // An insert of an existing key changes nothing, but the counter is used up.
            _ => (Op::Insert(key, value), Outcome::Exists),
        };
        assert_eq!(self.apply(&op), Observed::Outcome(wanted), "thread {} steady key {i}", self.me);
    }

    /// Fickle keys of a thread are numbered from its own on, in steps of 8.
    fn change_fickle(&mut self) {
        let case = self.shared.case;
        let i = self.rng.below(case.fickle) * THREADS + self.me;
        let known = self.fickle.get(&i).copied();
        let counter = self.counters.entry(case.steady + i).or_insert(0);
        *counter += 1;
        let (counter, key) = (*counter, key(Kind::Fickle, i));
        let value = case.value(Kind::Fickle, i, self.me, counter);
        let (op, outcome, after) = match (self.rng.below(4), known) {
            (0, known) => {
                let outcome = if known.is_some() { Outcome::Replaced } else { Outcome::Inserted };
                (Op::Put(key, value), outcome, Some(counter))
            }
            (1, None) => (Op::Update(key, value), Outcome::Missing, None),
            (1, Some(_)) => (Op::Update(key, value), Outcome::Replaced, Some(counter)),
            (_, None) => (Op::Insert(key, value), Outcome::Inserted, Some(counter)),
            (_, Some(_)) => (Op::Remove(key), Outcome::Removed, None),
        };
        assert_eq!(self.apply(&op), Observed::Outcome(outcome), "thread {} fickle key {i}, had {known:?}", self.me);
        match after {
            Some(counter) => self.fickle.insert(i, counter),
            None => self.fickle.remove(&i),
        };
        let Observed::Value(value) = self.apply(&Op::Get(op.key().to_vec())) else {
            panic!("a lookup answers with a value")
        };
        let read = value.map(|value| case.parse(Kind::Fickle, i, &value).1);
        assert_eq!(read, after, "thread {} reads its own change of fickle key {i}", self.me);
    }

    fn change_shared(&mut self) {
        let case = self.shared.case;
        let i = self.rng.below(self.shared.presence.len() as u64);
        let counter = self.operations;
        let (key, value) = (key(Kind::Shared, i), case.value(Kind::Shared, i, self.me, counter));
        let op = match self.rng.below(5) {
            0 => Op::Put(key, value),
            1 => Op::Insert(key, value),
            2 => Op::Update(key, value),
            3 => Op::Remove(key),
            _ => Op::Get(key),
        };
        match self.apply(&op) {
            Observed::Outcome(Outcome::Inserted) => {
                _ = self.shared.presence[i as usize].fetch_add(1, Ordering::Relaxed)
            }
            Observed::Outcome(Outcome::Removed) => _ = self.shared.presence[i as usize].fetch_sub(1, Ordering::Relaxed),
            Observed::Value(Some(value)) => _ = case.parse(Kind::Shared, i, &value),
            Observed::Outcome(_) | Observed::Value(None) => {}
        }
    }
}

/// A worker's result: its fickle keys, its operations, and its client's counters.
type Report = (HashMap<u64, u64>, u64, Counters);

fn work(bench: &Bench, shared: &Shared, me: u64) -> Report {
    let rng = SplitMix64(SEED ^ me << 32);
    let mut drawn = SplitMix64(!rng.0);
    let hook = move |_| {
        if drawn.below(YIELD_ONE_IN) == 0 {
            std::thread::yield_now();
        }
        Next::Continue
    };
    let lane = bench.region.lane().hooked(Box::new(hook));
    let client = bench.client_with(me as u16, lane, ClientConfig::for_table(&bench.table));
    let (counters, fickle, seen) = Default::default();
    let mut worker = Worker { shared, me, client, rng, counters, fickle, seen, operations: 1 };
    worker.run();
    (worker.fickle, worker.operations, worker.client.client.counters())
}

fn run(case: Case) {
    println!("{case:?}, {THREADS} threads, seed {SEED}");
    let bench = Bench::of_rows(case.preset, case.format, case.rows, case.profile, SEED);
    let mut first = bench.client(60);
    for i in 0..case.steady {
        let op = Op::Put(key(Kind::Steady, i), case.value(Kind::Steady, i, i % THREADS, 0));
        assert_eq!(first.apply(&op), Ok(Observed::Outcome(Outcome::Inserted)));
    }
    let presence = (0..case.steady.div_ceil(2)).map(|_| AtomicI64::new(0)).collect();
    let [has_conflict, stop] = Default::default();
    let shared = Shared { case, presence, ready: AtomicU64::new(0), has_conflict, stop };
    let started = Instant::now();
    let reports: Vec<Report> = std::thread::scope(|scope| {
        let (bench, shared) = (&bench, &shared);
        let threads: Vec<_> = (0..THREADS).map(|me| scope.spawn(move || work(bench, shared, me))).collect();
        let is_enough = || {
            let is_contended = shared.has_conflict.load(Ordering::Relaxed);
            started.elapsed() >= case.time && shared.ready.load(Ordering::Relaxed) == THREADS && is_contended
        };
        while !is_enough() && started.elapsed() < patience() && !threads.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let has_waited_enough = is_enough();
        shared.stop.store(true, Ordering::Relaxed);
        let reports = threads.into_iter().map(|thread| thread.join().expect("no thread fails")).collect();
        assert!(has_waited_enough, "too few operations or no conflict in {:?}", started.elapsed());
        reports
    });
    let contents = bench.audit().expect("a table in order");
    let exists = |kind, i| contents.contains_key(&key(kind, i));
    assert!((0..case.steady).all(|i| exists(Kind::Steady, i)), "a key that always exists is gone");
    for (i, count) in shared.presence.iter().enumerate() {
        assert_eq!(count.load(Ordering::Relaxed), i64::from(exists(Kind::Shared, i as u64)), "shared key {i}");
    }
    for (i, counter) in reports.iter().flat_map(|(fickle, _, _)| fickle) {
        let value = contents.get(&key(Kind::Fickle, *i)).expect("an inserted key");
        assert_eq!(case.parse(Kind::Fickle, *i, value).1, *counter, "fickle key {i} lost a change");
    }
    let fickle: usize = reports.iter().map(|(fickle, _, _)| fickle.len()).sum();
    let shared_keys = contents.len() - case.steady as usize - fickle;
    assert_eq!(shared_keys, (0..case.steady).filter(|i| exists(Kind::Shared, *i)).count(), "nothing else is there");
    let sum = |of: fn(&Counters) -> u64| reports.iter().map(|(_, _, counters)| of(counters)).sum::<u64>();
    println!(
        "  {} operations in {} ms; {} lock conflicts, {} moves, {} stale paths, {} rows read again",
        reports.iter().map(|(_, operations, _)| operations).sum::<u64>(),
        started.elapsed().as_millis(),
        sum(|counters| counters.lock_conflicts),
        sum(|counters| counters.moves),
        sum(|counters| counters.stale_paths),
        sum(|counters| counters.row_retries),
    );
}

/// Runs every profile in turn, each for a while.
fn run_all(preset: Preset, format: &'static str, rows: u64, steady: u64, fickle: u64) {
    let time = Duration::from_millis(if guira_testing::is_long() { 2_500 } else { 250 });
    for profile in Profile::ALL {
        run(Case { preset, format, profile, rows, steady, fickle, time });
    }
}

/// [R-LOCK-2] [R-LOCK-3] [R-READ-1] [R-READ-3] A thousand keys in a crowded table of small rows.
#[test]
fn a_thousand_keys_in_tiny_rows() {
    run_all(Preset::Tiny, "fixed:8:8", 896, 1000, 150);
}

/// [R-LOCK-3] [R-LOCK-4] [R-LOCK-5] [R-READ-5] Eight keys, four shared ones, and few rows to move in.
#[test]
fn eight_keys_in_tiny_rows() {
    run_all(Preset::Tiny, "fixed:8:8", 64, 8, 22);
}

/// [R-LOCK-3] [R-READ-3] [R-INSERT-3] A thousand keys in a crowded table of default rows.
#[test]
fn a_thousand_keys_in_hardened_rows() {
    run_all(Preset::Hardened, "fixed:8:8", 320, 1000, 160);
}

/// [R-LOCK-4] [R-READ-5] [R-UPDATE-1] Eight keys in default rows.
#[test]
fn eight_keys_in_hardened_rows() {
    run_all(Preset::Hardened, "fixed:8:8", 64, 8, 72);
}

/// [R-READ-6] [R-EXTENT-1] [R-EXTENT-4] [R-UPDATE-2] Hot keys whose values alternate between rows and extents.
#[test]
fn hot_keys_in_extents() {
    run_all(Preset::Tiny, "bytes:24", 64, 24, 18);
    run_all(Preset::Hardened, "bytes:64", 64, 24, 50);
}
