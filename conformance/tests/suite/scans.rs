//! Scans that report whether they are a snapshot, and estimates of the number of entries.
//!
//! The writers run inside the scanning lane's steps, so a scan can be interrupted before any word it reads, and the
//! moment of each change is known: a stable scan must return the whole table as it was at one of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use guira_conformance::{Bench, Model, Observed, Op, Sampling, StepPoint, SteppedLane, TestClient, block_on};
use guira_fabric::heap::{Next, Step};
use guira_fabric::{Profile, Region, SplitMix64};
use guira_layout::{Preset, RowId};
use guira_rcuckoo::{ClientConfig, Error, ErrorKind, Outcome, Reader, Snapshot};

const SEED: u64 = 31;
/// More sweeps than any scan below that can become stable needs.
const MANY_SWEEPS: u32 = 64;
/// Seeds of an estimate, and how many of them have to lie within their stated error: the interval is one of 95 %.
const ESTIMATES: u64 = 100;
const NEAR_ENOUGH: u64 = 90;

fn number(i: u64) -> Vec<u8> {
    i.to_le_bytes().to_vec()
}

fn large(format: &str, i: u64) -> Vec<u8> {
    let bytes = if format == "fixed:8:8" || i.is_multiple_of(3) { 8 } else { 8 + (i * 7 % 90) as usize };
    number(i ^ 0xff).into_iter().cycle().take(bytes).collect()
}

/// Creates a table 85 % full, or as full as possible; returns it with its contents.
fn crowded(preset: Preset, format: &str, rows: u64) -> (Bench, Model) {
    let bench = Bench::of_rows(preset, format, rows, Profile::Shm, SEED);
    let (mut client, mut model) = (bench.client(9), Model::default());
    for i in 0..bench.table.config().max_entries() * 85 / 100 {
        let put = Op::Put(number(i), large(format, i));
        if client.apply(&put).is_ok() {
            model.apply(&put);
        }
    }
    (bench, model)
}

fn reader(bench: &Bench) -> Reader {
    Reader::new(Arc::clone(&bench.table), ClientConfig::for_table(&bench.table))
}

/// Returns the contents of a snapshot, and fails if it holds a key twice.
fn contents(snapshot: &Snapshot) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let mut contents = BTreeMap::new();
    for (key, value) in snapshot.iter() {
        if contents.insert(key.to_vec(), value.to_vec()).is_some() {
            return Err(format!("key {key:x?} is in it twice"));
        }
    }
    Ok(contents)
}

/// [R-SCAN-1] A table that no client changes is a snapshot after one sweep, on every profile, at the stated cost. Where
/// versions are too narrow (preset `paper`), it is read as well and not called a snapshot.
#[test]
fn a_quiet_table_is_a_snapshot_after_one_sweep() {
    for (preset, format) in Preset::ALL.into_iter().flat_map(|p| ["fixed:8:8", "bytes:24"].map(|format| (p, format))) {
        let (bench, model) = crowded(preset, format, 192);
        for profile in Profile::ALL {
            println!("preset {preset}, {format}, profile {profile}");
            let bench = bench.under(profile);
            let mut lane = bench.region.lane();
            let mut progress = Vec::new();
            let note = |done, all| progress.push((done, all));
            let snapshot = block_on(reader(&bench).snapshot(&mut lane, MANY_SWEEPS, note)).unwrap();
            let is_stable = bench.table.config().version_bits == 32;
            assert_eq!(is_stable, preset != Preset::Paper);
            assert_eq!((snapshot.rows(), snapshot.sweeps(), snapshot.is_stable()), (192, 1, is_stable));
            assert_eq!(contents(&snapshot), Ok(model.0.clone()));
            let extents = model.0.iter().filter(|(key, value)| {
                bench.table.rows().kind_for(key.len(), value.len()) == guira_layout::EntryKind::Extent
            });
            assert_eq!(guira_fabric::Lane::traffic(&lane).round_trips, 192 + extents.count() as u64 + 192 / 64);
            assert!(progress.is_sorted(), "{progress:?}");
            assert_eq!(progress.last(), Some(&(384, 384)));
        }
    }
}

/// [R-SCAN-1] Without a sweep, a scan is not called a snapshot.
#[test]
fn a_scan_without_a_sweep_is_not_a_snapshot() {
    let (bench, model) = crowded(Preset::Tiny, "fixed:8:8", 64);
    let snapshot = block_on(reader(&bench).snapshot(&mut bench.region.lane(), 0, |_, _| ())).unwrap();
    assert_eq!((snapshot.sweeps(), snapshot.is_stable()), (0, false));
    assert_eq!(contents(&snapshot), Ok(model.0));
}

/// A writer that acts inside the steps of the scanning lane, and the table's contents after each of its operations.
struct Writer {
    client: TestClient,
    rng: SplitMix64,
    model: Model,
    history: Vec<Model>,
    format: &'static str,
    next_key: u64,
}

impl Writer {
    /// Does one operation: mostly inserts of new keys, which move others, and removes, which make room.
    fn act(&mut self) {
        let existing = |rng: &mut SplitMix64, model: &Model| {
            let index = rng.below(model.0.len() as u64) as usize;
            model.0.keys().nth(index).expect("a index below the number of keys").clone()
        };
        let op = match self.rng.below(8) {
            0..=3 => {
                self.next_key += 1;
                Op::Put(number(1 << 32 | self.next_key), large(self.format, self.next_key))
            }
            4..=6 => Op::Remove(existing(&mut self.rng, &self.model)),
            _ => Op::Update(existing(&mut self.rng, &self.model), large(self.format, self.rng.below(1 << 20))),
        };
        let before = self.model.clone();
        let expected = self.model.apply(&op);
        match self.client.apply(&op) {
            Ok(seen) => assert_eq!(seen, expected),
            Err(Error { kind: ErrorKind::Full { .. }, .. }) => self.model = before,
            Err(error) => panic!("{op:x?}: {error}"),
        }
        self.history.push(self.model.clone());
    }
}

/// Creates a lane under `profile` that runs `writer` at drawn steps, `acts` times, one step in `one_in`.
fn lane_with_writer(bench: &Bench, writer: &Arc<Mutex<Writer>>, acts: u64, one_in: u64, seed: u64) -> SteppedLane {
    let (writer, mut rng, mut left) = (Arc::clone(writer), SplitMix64(seed), acts);
    let step = move |_: StepPoint| {
        if left > 0 && rng.below(one_in) == 0 {
            left -= 1;
            writer.lock().expect("one thread").act();
        }
    };
    SteppedLane::new(&bench.region, Sampling::Descending, Box::new(step))
}

/// [R-SCAN-1] A writer puts, removes and moves while the table is scanned, between any two words: a scan that is called
/// stable is the table as it was after one of the writer's operations, with each key once.
#[test]
fn a_stable_scan_is_the_table_at_one_moment() {
    for (format, profile) in ["fixed:8:8", "bytes:24"].into_iter().flat_map(|f| Profile::ALL.map(|p| (f, p))) {
        let (crowded_bench, model) = crowded(Preset::Tiny, format, 64);
        let (mut stable, mut late, mut moves) = (0, 0, 0);
        for seed in 1..=60 {
            let bench = crowded_bench.fork().under(profile);
            let writer = Writer {
                client: bench.client(0),
                rng: SplitMix64(seed),
                model: model.clone(),
                history: vec![model.clone()],
                format,
                next_key: 0,
            };
            let writer = Arc::new(Mutex::new(writer));
            // Some writers stop soon, and some go on for several sweeps.
            let (acts, one_in) = [(5, 40), (40, 20), (60, 60), (200, 30)][seed as usize % 4];
            let mut lane = lane_with_writer(&bench, &writer, acts, one_in, seed);
            let snapshot = block_on(reader(&bench).snapshot(&mut lane, MANY_SWEEPS, |_, _| ())).unwrap();
            drop(lane);
            let writer = Arc::into_inner(writer).expect("the lane is gone").into_inner().expect("no panic");
            moves += writer.client.client.counters().moves;
            assert_eq!(bench.audit(), Ok(writer.model.0), "{format} {profile} seed {seed}");
            if !snapshot.is_stable() {
                continue;
            }
            stable += 1;
            let found = Model(contents(&snapshot).unwrap_or_else(|wrong| panic!("{profile} seed {seed}: {wrong}")));
            let moment = writer.history.iter().position(|then| *then == found);
            assert!(moment.is_some(), "{format} {profile} seed {seed}: stable, and yet it was never so");
            late += u64::from(moment > Some(0));
        }
        println!("{format} {profile}: {stable} of 60 scans stable, {late} after changes, {moves} entries moved");
        assert!(stable > 30 && late > 20 && moves > 100, "{stable} {late} {moves}");
    }
}

/// [R-SCAN-1] A writer stops in the middle of a commit, before each of its words in turn, and the table is scanned:
/// although some rows of a path are written and others not, every key is in the scan exactly once, if the scan is
/// called stable.
#[test]
fn a_scan_in_the_middle_of_a_move_has_every_key_once() {
    for (format, profile) in ["fixed:8:8", "bytes:24"].into_iter().flat_map(|f| Profile::ALL.map(|p| (f, p))) {
        let (crowded_bench, model) = crowded(Preset::Tiny, format, 64);
        let put = put_that_moves(&crowded_bench, format);
        let (mut stable, mut torn) = (0, 0);
        for at in 0u64.. {
            let bench = crowded_bench.fork().under(profile);
            let scans = Arc::new(Mutex::new(None));
            let (steps, scanned, of) = (AtomicU64::new(0), Arc::clone(&scans), bench.clone());
            let hook = move |_: Step| {
                if steps.fetch_add(1, Ordering::Relaxed) == at {
                    let was_torn = of.contents().is_err_and(|wrong| wrong.contains("verify"));
                    *scanned.lock().expect("one thread") = Some((scan_quickly(&of), was_torn));
                }
                Next::Continue
            };
            let mut client = bench.client(0).through(bench.region.lane().hooked(Box::new(hook)));
            assert_eq!(client.apply(&put), Ok(Observed::Outcome(Outcome::Inserted)));
            let Some((scan, was_torn)) = scans.lock().expect("one thread").take() else { break };
            match scan {
                Err(error) => panic!("{profile} step {at}: {error}"),
                Ok(snapshot) => {
                    assert!(snapshot.is_stable(), "no client writes while it scans");
                    (stable, torn) = (stable + 1, torn + u64::from(was_torn));
                    let mut after = model.clone();
                    after.apply(&put);
                    let found = contents(&snapshot).unwrap_or_else(|wrong| panic!("{profile} step {at}: {wrong}"));
                    assert!(
                        found == model.0 || found == after.0,
                        "{format} {profile} step {at}: neither before nor after"
                    );
                }
            }
        }
        println!("{format} {profile}: {stable} stable scans, {torn} of them with a half-written row");
        assert!(stable > 20 && torn > 0);
    }
}

/// Returns a put that moves at least two entries.
fn put_that_moves(bench: &Bench, format: &str) -> Op {
    let puts = (0..4_000).map(|i| Op::Put(number(1 << 33 | i), large(format, i)));
    let moves = |put: &Op| {
        let mut client = bench.fork().client(0);
        client.apply(put).is_ok() && client.client.counters().moves >= 2
    };
    puts.into_iter().find(moves).expect("a put that moves two")
}

/// Scans with a short deadline.
fn scan_quickly(bench: &Bench) -> Result<Snapshot, Error> {
    let config = ClientConfig { deadline_ns: 1_000, row_samples: 2, ..ClientConfig::for_table(&bench.table) };
    let mut lane = SteppedLane::new(&bench.region, Sampling::Descending, Box::new(|_| ()));
    block_on(Reader::new(Arc::clone(&bench.table), config).snapshot(&mut lane, MANY_SWEEPS, |_, _| ()))
}

/// [R-SCAN-1] A writer changes a row in every sweep: the scan ends at its bound and reports that it is not a snapshot;
/// unchanged keys are still returned.
#[test]
fn a_scan_under_constant_writes_is_not_a_snapshot() {
    for profile in Profile::ALL {
        let (bench, model) = crowded(Preset::Tiny, "fixed:8:8", 64);
        let bench = bench.under(profile);
        let hot = model.0.keys().next().expect("a crowded table").clone();
        let mut writer = bench.client(0);
        let (of, mut count, mut steps) = (hot.clone(), 0u64, 0u64);
        let step = move |_: StepPoint| {
            steps += 1;
            if steps.is_multiple_of(50) {
                count += 1;
                let update = Op::Update(of.clone(), number(count));
                assert_eq!(writer.apply(&update), Ok(Observed::Outcome(Outcome::Replaced)));
            }
        };
        let mut lane = SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step));
        for max_sweeps in [1, 2, 7] {
            let snapshot = block_on(reader(&bench).snapshot(&mut lane, max_sweeps, |_, _| ())).unwrap();
            assert_eq!((snapshot.sweeps(), snapshot.is_stable()), (max_sweeps, false), "{profile}");
            let found = contents(&snapshot).unwrap();
            assert!(model.0.iter().all(|(key, value)| *key == hot || found.get(key) == Some(value)), "{profile}");
            assert!(found.contains_key(&hot), "{profile}: it was never moved");
        }
    }
}

/// [R-SCAN-1] A damaged row ends a scan.
#[test]
fn damage_ends_a_stable_scan() {
    let (bench, _) = crowded(Preset::Tiny, "fixed:8:8", 64);
    let mut words = bench.row_words(RowId(17));
    words[0] ^= 1;
    bench.store(bench.table.geometry().row(RowId(17)), &words);
    let error = block_on(reader(&bench).snapshot(&mut bench.region.lane(), 2, |_, _| ())).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Corrupt { item: guira_rcuckoo::DamagedItem::Row(RowId(17)) }), "{error}");
}

/// [R-SCAN-2] Up to 4,096 rows every row is counted: exact, in 1 round trip for 64 rows.
#[test]
fn small_tables_are_counted() {
    for (preset, rows) in Preset::ALL.into_iter().flat_map(|preset| [(preset, 64), (preset, 4_096)]) {
        for profile in Profile::ALL {
            let bench = Bench::of_rows(preset, "fixed:8:8", rows, profile, SEED);
            let mut client = bench.client(0);
            for fill_percent in [0, 1, 30, 80] {
                let keys = bench.table.config().max_entries() * fill_percent / 100;
                let stored =
                    (0..keys).filter(|i| client.apply(&Op::Put(number(*i), number(*i))).is_ok()).count() as u64;
                let mut lane = bench.region.lane();
                let len = block_on(reader(&bench).len(&mut lane, SEED)).unwrap();
                assert_eq!((len.entries, len.error), (stored, 0), "preset {preset}, {rows} rows, profile {profile}");
                assert_eq!(guira_fabric::Lane::traffic(&lane).round_trips, rows / 64);
            }
        }
    }
}

/// Creates a table of 65,536 rows with `keys` keys.
fn sparse_or_dense(keys: u64) -> Bench {
    let bench = Bench::of_rows(Preset::Hardened, "fixed:4:4", 1 << 16, Profile::Shm, SEED);
    let mut client = bench.client(0);
    for i in 0..keys {
        let key = &number(i)[..4];
        assert_eq!(client.put(key, key).expect("room").outcome, Outcome::Inserted);
    }
    bench
}

/// [R-SCAN-2] A sample of a large table lies within its stated error, for at least 90 of 100 seeds, at every fill, also
/// in a table so empty that a sample sees no entry.
#[test]
fn estimates_lie_within_their_stated_error() {
    let slots = Bench::of_rows(Preset::Hardened, "fixed:4:4", 1 << 16, Profile::Shm, SEED).table.config().max_entries();
    for keys in [0, 1, 7, 40, 300, 3_000, slots / 10, slots / 2, slots * 85 / 100] {
        let bench = sparse_or_dense(keys);
        let (mut near, mut widest) = (0, 0);
        for seed in 0..ESTIMATES {
            let mut lane = bench.region.lane();
            let len = block_on(reader(&bench).len(&mut lane, SEED + seed)).unwrap();
            near += u64::from(len.entries.abs_diff(keys) <= len.error);
            widest = widest.max(len.error);
            assert!(len.error > 0, "an estimate is not exact");
            assert_eq!(guira_fabric::Lane::traffic(&lane).round_trips, 64);
        }
        println!("{keys} keys: {near} of {ESTIMATES} estimates as near as they say, the widest {widest}");
        assert!(near >= NEAR_ENOUGH, "{keys} keys: {near}");
        // An interval that covers everything would not be an estimate.
        let most = keys / 25 + 160 + if keys < slots / 10 { keys / 5 } else { 0 };
        assert!(widest <= most, "{keys} keys: {widest}");
    }
}
