//! Tests of compare-and-swap and compare-and-remove. By value they behave as a map's would; a token succeeds exactly as
//! long as the state it was read in is unchanged. Then clients increment one key together under drawn schedules, and a
//! key is removed and inserted between a client's read and its swap, at every step of either.
//!
//! Tests by value run on every preset; those of tokens on presets with 32-bit versions, because the narrow ones of
//! `paper` wrap around, which is why the public interface hands out no tokens there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use guira_conformance::{Bench, KeyFinder, Model, Observed, Op, Sampling, StepPoint, SteppedLane, TestClient};
use guira_fabric::{Profile, Region, SplitMix64};
use guira_layout::{EntryFormat, Preset};
use guira_rcuckoo::{Change, ClientConfig, Error, ErrorKind, Expected, Outcome, Token};
use shuttle::scheduler::{PctScheduler, RandomScheduler};

const SEED: u64 = 11;
const OPERATIONS: u64 = 1_000;
/// Tokens that a run keeps to use later.
const HELD_TOKENS: usize = 16;
/// Different values of a key: few, so that values repeat.
const VALUES: u64 = 8;
/// Schedules of one race, for each scheduler.
const SCHEDULES: usize = 200;
const PCT_DEPTH: usize = 3;

const FORMATS: [&str; 3] = ["fixed:4:4", "fixed:8:8", "bytes:64"];

/// Returns key `i`, of a size that `format` has. Its values are around the largest that fits in a row, two of one
/// length that does not, numbers, and empty ones.
fn key(format: EntryFormat, i: u64) -> Vec<u8> {
    let bytes = match format {
        EntryFormat::Fixed { key_bytes, .. } => usize::from(key_bytes),
        EntryFormat::Bytes { .. } => 8 + (i % 5) as usize,
    };
    i.wrapping_mul(0x9e37_79b9).to_le_bytes().iter().copied().cycle().take(bytes).collect()
}

fn value(format: EntryFormat, key_bytes: usize, i: u64) -> Vec<u8> {
    let bytes = match format {
        EntryFormat::Fixed { value_bytes, .. } => usize::from(value_bytes),
        EntryFormat::Bytes { inline_bytes } => {
            let room = usize::from(inline_bytes) - key_bytes;
            [0, 8, room, room + 1, room + 1, 300, 300, 1_000][i as usize]
        }
    };
    vec![i as u8; bytes]
}

/// A token, and how often its key had changed when it was read.
#[derive(Clone)]
struct Held {
    key: Vec<u8>,
    token: Token,
    changes: u64,
}

/// Counts of outcomes, which ensure that no run is vacuous.
#[derive(Debug, Default)]
struct Tally {
    by_value: BTreeMap<String, u64>,
    token_done: u64,
    token_stale: u64,
    token_stale_by_neighbour: u64,
    token_missing: u64,
}

/// A table, its expected contents, and how often each key has changed.
struct Run {
    bench: Bench,
    clients: [TestClient; 2],
    format: EntryFormat,
    rng: SplitMix64,
    model: Model,
    changes: BTreeMap<Vec<u8>, u64>,
    held: Vec<Held>,
    tally: Tally,
}

impl Run {
    fn new(preset: Preset, format: &str, profile: Profile, seed: u64) -> Run {
        println!("preset {preset}, {format}, profile {profile}, seed {seed}, {OPERATIONS} operations");
        let bench = Bench::of_rows(preset, format, 64, profile, seed);
        Run {
            clients: [bench.client(0), bench.client(1)],
            format: bench.table.config().format,
            rng: SplitMix64(seed),
            model: Model::default(),
            changes: BTreeMap::new(),
            held: Vec::new(),
            tally: Tally::default(),
            bench,
        }
    }

    /// Does one operation by value, by either client.
    fn step(&mut self, keys: u64) {
        let key = key(self.format, self.rng.below(keys));
        let value = value(self.format, key.len(), self.rng.below(VALUES));
        let now = self.model.0.get(&key).cloned().unwrap_or_default();
        let other = self::value(self.format, key.len(), self.rng.below(VALUES));
        let expected = if self.rng.below(2) == 0 { now } else { other };
        let takes_numbers = !matches!(self.format, EntryFormat::Fixed { value_bytes, .. } if value_bytes != 8);
        let op = match self.rng.below(8 + 2 * u64::from(takes_numbers)) {
            0 => Op::Get(key),
            1 | 2 => Op::Put(key, value),
            3 => Op::Remove(key),
            4..=6 => Op::Swap(key, expected, value),
            7 => Op::RemoveIf(key, expected),
            _ => Op::Add(key, [3; 8]),
        };
        let client = &mut self.clients[self.rng.below(2) as usize];
        let (before, expected) = (self.model.clone(), self.model.apply(&op));
        match client.apply(&op) {
            Err(Error { kind: ErrorKind::Full { .. }, .. }) if expected == Observed::Outcome(Outcome::Inserted) => {
                return self.model = before;
            }
            seen => assert_eq!(seen, Ok(expected.clone()), "{op:x?}"),
        }
        let Observed::Outcome(outcome) = expected else { return };
        if matches!(op, Op::Swap(..) | Op::RemoveIf(..)) {
            *self.tally.by_value.entry(format!("{outcome:?}")).or_default() += 1;
        }
        self.note(op.key(), outcome);
    }

    /// Puts every key, so that rows have several.
    fn fill(&mut self, keys: u64) {
        for i in 0..keys {
            let key = key(self.format, i);
            let put = Op::Put(key.clone(), value(self.format, key.len(), i % VALUES));
            if self.clients[0].apply(&put).is_ok() {
                self.model.apply(&put);
            }
        }
    }

    fn note(&mut self, key: &[u8], outcome: Outcome) {
        if matches!(outcome, Outcome::Inserted | Outcome::Replaced | Outcome::Removed) {
            *self.changes.entry(key.to_vec()).or_default() += 1;
        }
    }

    fn changes_of(&self, key: &[u8]) -> u64 {
        self.changes.get(key).copied().unwrap_or(0)
    }

    /// Reads a key, and keeps its token if it has one.
    fn hold(&mut self, keys: u64) {
        let key = key(self.format, self.rng.below(keys));
        let found = self.clients[self.rng.below(2) as usize].get_versioned(&key).expect("the heap reads");
        let (value, token) = found.unzip();
        assert_eq!(value.as_ref(), self.model.0.get(&key), "{key:x?}");
        let Some(token) = token else { return };
        if self.held.len() == HELD_TOKENS {
            self.held.remove(0);
        }
        self.held.push(Held { changes: self.changes_of(&key), key, token });
    }

    /// Uses one of the kept tokens, new or old.
    fn use_token(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held[self.rng.below(self.held.len() as u64) as usize].clone();
        let value = value(self.format, held.key.len(), self.rng.below(VALUES));
        let client = &mut self.clients[self.rng.below(2) as usize];
        // Whether the key's row has changed since decides for inline entries.
        let row_is_same = match held.token {
            Token::Inline { row, version } => {
                self.bench.table.rows().trailer(&self.bench.row_words(row)).version() == version
            }
            Token::Extent { .. } => true,
        };
        let expected = Expected::Unchanged(held.token);
        let (outcome, op) = if self.rng.below(4) == 0 {
            (client.remove_if(&held.key, expected), Op::Remove(held.key.clone()))
        } else {
            (client.swap(&held.key, expected, &value), Op::Update(held.key.clone(), value))
        };
        let outcome = outcome.expect("nothing is in the way");
        let is_unchanged = self.changes_of(&held.key) == held.changes;
        match outcome {
            Outcome::Replaced | Outcome::Removed => {
                assert!(is_unchanged, "[R-CAS-2] {held:x?} is stale, and was taken for fresh", held = held.key);
                assert_eq!(self.model.apply(&op), Observed::Outcome(outcome));
                self.tally.token_done += 1;
            }
            Outcome::Different => {
                assert!(self.model.0.contains_key(&held.key));
                assert!(!is_unchanged || !row_is_same, "[R-CAS-2] {:x?} is fresh, and was refused", held.key);
                let stale =
                    if is_unchanged { &mut self.tally.token_stale_by_neighbour } else { &mut self.tally.token_stale };
                *stale += 1;
            }
            Outcome::Missing => {
                assert!(!self.model.0.contains_key(&held.key));
                self.tally.token_missing += 1;
            }
            outcome => panic!("a conditional change came to {outcome:?}"),
        }
        self.note(&held.key, outcome);
    }

    fn finish(self, keys: u64) -> Tally {
        let Run { bench, mut clients, model, format, tally, .. } = self;
        for key in (0..keys).map(|i| key(format, i)) {
            assert_eq!(clients[1].get(&key), Ok(model.0.get(&key).cloned()));
        }
        assert_eq!(bench.audit(), Ok(model.0));
        tally
    }
}

/// [R-CAS-1] By value, on every preset, `paper` with its own locking too: a change takes effect if and only if the
/// value is the expected one.
#[test]
fn changes_by_value_match_a_map() {
    for (preset, format) in Preset::ALL.into_iter().flat_map(|preset| FORMATS.map(|format| (preset, format))) {
        for (profile, keys) in Profile::ALL.into_iter().flat_map(|profile| [(profile, 6), (profile, 250)]) {
            let mut run = Run::new(preset, format, profile, SEED + keys);
            (0..OPERATIONS).for_each(|_| run.step(keys));
            let tally = run.finish(keys);
            println!("{:?}", tally.by_value);
            for outcome in ["Replaced", "Removed", "Different", "Missing"] {
                assert!(tally.by_value.contains_key(outcome), "no change came to {outcome}: {tally:?}");
            }
        }
    }
}

/// [R-CAS-2] By token: a change never takes effect after a change of the key, whatever its value is now, and always if
/// neither the key nor, for an inline entry, its row has changed.
#[test]
fn changes_by_token_depend_on_the_state() {
    for (preset, format) in [Preset::Hardened, Preset::Tiny].into_iter().flat_map(|p| FORMATS.map(|f| (p, f))) {
        for (profile, keys) in Profile::ALL.into_iter().flat_map(|profile| [(profile, 6), (profile, 200)]) {
            let mut run = Run::new(preset, format, profile, SEED + 1 + keys);
            run.fill(keys);
            for _ in 0..OPERATIONS {
                match run.rng.below(3) {
                    0 => run.step(keys),
                    1 => run.hold(keys),
                    _ => run.use_token(),
                }
            }
            let tally = run.finish(keys);
            println!("{tally:?}");
            assert!(tally.token_done > 0 && tally.token_stale > 0 && tally.token_missing > 0, "{tally:?}");
            assert!(tally.token_stale_by_neighbour > 0 || keys == 6, "{tally:?}");
        }
    }
}

/// Returns pairs of values for each placement of one key: in its row, and in an extent if the format has them.
fn value_pairs(format: &str) -> &'static [(u64, u64)] {
    // Each pair has equal lengths: one key's first value, and another.
    if format == "bytes:64" { &[(1, 2), (3, 4), (5, 6)] } else { &[(1, 2)] }
}

/// [R-CAS-1] [R-CAS-2] A value that is replaced or removed and then restored is the same value, in another state.
#[test]
fn a_restored_value_is_not_the_same_state() {
    for (profile, format) in Profile::ALL.into_iter().flat_map(|profile| FORMATS.map(|format| (profile, format))) {
        for (first, second) in value_pairs(format) {
            for removes in [false, true] {
                println!("profile {profile}, {format}, values {first} and {second}, removed in between: {removes}");
                let bench = Bench::of_rows(Preset::Hardened, format, 64, profile, SEED);
                let (mut client, mut other) = (bench.client(0), bench.client(1));
                let format = bench.table.config().format;
                let key = key(format, 3);
                let [old, new] = [*first, *second].map(|i| value(format, key.len(), i));
                client.apply(&Op::Put(key.clone(), old.clone())).unwrap();
                let (_, token) = client.get_versioned(&key).unwrap().unwrap();
                let away = if removes { Op::Remove(key.clone()) } else { Op::Put(key.clone(), new.clone()) };
                other.apply(&away).unwrap();
                other.apply(&Op::Put(key.clone(), old.clone())).unwrap();
                let stale = Expected::Unchanged(token);
                assert_eq!(client.swap(&key, stale, &new), Ok(Outcome::Different), "[R-CAS-2] by token");
                assert_eq!(client.remove_if(&key, stale), Ok(Outcome::Different), "[R-CAS-2] by token");
                assert_eq!(client.get(&key), Ok(Some(old.clone())));
                assert_eq!(client.swap(&key, Expected::Value(&old), &new), Ok(Outcome::Replaced), "[R-CAS-1] by value");
                assert_eq!(client.remove_if(&key, Expected::Value(&old)), Ok(Outcome::Different));
                assert_eq!(client.remove_if(&key, Expected::Value(&new)), Ok(Outcome::Removed));
                assert_eq!(client.remove_if(&key, Expected::Value(&new)), Ok(Outcome::Missing));
                assert_eq!(bench.audit().unwrap().len(), 0);
            }
        }
    }
}

/// [R-CAS-2] A change of a neighbour in the row makes an inline token stale; a token of an extent stays valid, even
/// when the entry is moved to another row.
#[test]
fn neighbours_make_inline_tokens_stale_and_no_others() {
    for profile in Profile::ALL {
        let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 64, profile, SEED);
        let mut client = bench.client(0);
        let mut finder = KeyFinder::new(&bench.table, 20_000);
        let (inline, first, _) = finder.take_any(|_, _| true).expect("a key");
        let [large, neighbour] = [(); 2].map(|()| finder.take_any(|row, _| row == first).expect("a neighbour").0);
        for (key, bytes) in [(inline, 3), (large, 90)] {
            client.apply(&Op::Put(key.to_vec(), vec![1; bytes])).unwrap();
        }
        let [inline_token, large_token] = [inline, large].map(|key| client.get_versioned(&key).unwrap().unwrap().1);
        assert!(matches!(inline_token, Token::Inline { row, .. } if row == first));
        assert!(matches!(large_token, Token::Extent { .. }));
        client.apply(&Op::Put(neighbour.to_vec(), vec![2; 4])).unwrap();
        let refused = client.swap(&inline, Expected::Unchanged(inline_token), &[7]);
        assert_eq!(refused, Ok(Outcome::Different), "it was not changed, and yet");
        let (_, again) = client.get_versioned(&inline).unwrap().unwrap();
        assert_eq!(client.swap(&inline, Expected::Unchanged(again), &[7]), Ok(Outcome::Replaced), "read again");
        assert_eq!(client.swap(&large, Expected::Unchanged(large_token), &[8; 70]), Ok(Outcome::Replaced));
    }
}

/// [R-CAS-2] Entries that inserts move keep their extents, and the tokens of them.
#[test]
fn tokens_of_extents_move_with_their_entries() {
    for profile in Profile::ALL {
        let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 64, profile, SEED);
        let mut client = bench.client(0);
        let keys = bench.table.config().max_entries() / 2;
        let key = |i: u64| i.to_le_bytes();
        let rows_of = |bench: &Bench| (0..bench.table.config().rows).map(guira_layout::RowId).collect::<Vec<_>>();
        for i in 0..keys {
            client.apply(&Op::Put(key(i).to_vec(), vec![i as u8; 60])).unwrap();
        }
        let tokens: Vec<Token> = (0..keys).map(|i| client.get_versioned(&key(i)).unwrap().unwrap().1).collect();
        let before: Vec<Vec<u64>> = rows_of(&bench).into_iter().map(|row| bench.row_words(row)).collect();
        let moves = client.client.counters().moves;
        for i in keys.. {
            match client.apply(&Op::Put(key(i).to_vec(), vec![1; 3])) {
                Ok(_) if client.client.counters().moves < moves + 20 => {}
                _ => break,
            }
        }
        assert!(client.client.counters().moves >= moves + 20, "inserts move others");
        let after: Vec<Vec<u64>> = rows_of(&bench).into_iter().map(|row| bench.row_words(row)).collect();
        assert!(before.iter().zip(&after).filter(|(before, after)| before != after).count() > 20);
        for i in 0..keys {
            let outcome = client.swap(&key(i), Expected::Unchanged(tokens[i as usize]), &[5; 40]);
            assert_eq!(outcome, Ok(Outcome::Replaced), "{profile} key {i}");
        }
    }
}

/// The way in which a client detects other increments between its read and its swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Value,
    Token,
    /// No detection: it adds under the locks.
    Addition,
}

/// Returns a counter of `bytes` bytes.
fn counter(count: u64, bytes: usize) -> Vec<u8> {
    count.to_le_bytes().iter().copied().cycle().take(bytes).collect()
}

fn count_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("eight bytes"))
}

/// Creates a small table with a counter of `bytes` bytes at 0; returns it with the counter's key.
fn counter_bench(bytes: usize, profile: Profile) -> (Bench, Vec<u8>) {
    let format = if bytes > 8 { "bytes:24" } else { "fixed:8:8" };
    let bench = Bench::of_rows(Preset::Tiny, format, 64, Profile::Shm, SEED);
    let key = 7u64.to_le_bytes().to_vec();
    bench.client(9).apply(&Op::Put(key.clone(), counter(0, bytes))).expect("an empty table");
    (bench.under(profile), key)
}

fn stepped(bench: &Bench, slot: u16, step: Box<dyn FnMut(StepPoint) + Send>) -> TestClient<SteppedLane> {
    let config = ClientConfig { cache_bytes: 1 << 10, ..ClientConfig::for_table(&bench.table) };
    let quiet =
        bench.client_with(slot, SteppedLane::new(&bench.region, Sampling::Descending, Box::new(|_| ())), config);
    quiet.through(SteppedLane::new(&bench.region, Sampling::Descending, step))
}

/// Reads and swaps until one swap succeeds.
fn count_up(client: &mut TestClient<SteppedLane>, key: &[u8], by: By) {
    /// Far more than the other client's changes.
    const TRIES: usize = 100;
    if by == By::Addition {
        assert_eq!(client.change(key, Change::Add(&1u64.to_le_bytes())).map(|it| it.outcome), Ok(Outcome::Replaced));
        return;
    }
    for _ in 0..TRIES {
        let (value, token) = client.get_versioned(key).expect("a lookup").expect("it always exists");
        let expected = if by == By::Value { Expected::Value(&value) } else { Expected::Unchanged(token) };
        match client.swap(key, expected, &counter(count_of(&value) + 1, value.len())) {
            Ok(Outcome::Replaced) => return,
            Ok(Outcome::Different) => {}
            other => panic!("a swap of a key that always exists came to {other:?}"),
        }
    }
    panic!("{TRIES} swaps in a row met another change");
}

/// [R-CAS-1] [R-CAS-2] [R-ADD-1] Two clients increment one key, three times each, switching before any word: no
/// increment is lost.
#[test]
fn concurrent_increments_are_not_lost() {
    const COUNTS: u64 = 3;
    let ways = [By::Value, By::Token, By::Addition];
    for (profile, by) in Profile::ALL.into_iter().flat_map(|profile| ways.map(|by| (profile, by))) {
        for bytes in [8, 60].into_iter().filter(|bytes| by != By::Addition || *bytes == 8) {
            println!("{profile}, by {by:?}, {bytes} bytes, seed {SEED}, {SCHEDULES} schedules by each scheduler");
            let (bench, key) = counter_bench(bytes, profile);
            let race = move || {
                let bench = bench.fork();
                let point = Arc::new(shuttle::sync::atomic::AtomicUsize::new(0));
                let threads: Vec<_> = (0..2)
                    .map(|slot| {
                        let (bench, key, point) = (bench.clone(), key.clone(), Arc::clone(&point));
                        shuttle::thread::spawn(move || {
                            let step = move |moment| match moment {
                                StepPoint::Pause => shuttle::thread::yield_now(),
                                _ => _ = point.load(shuttle::sync::atomic::Ordering::SeqCst),
                            };
                            let mut client = stepped(&bench, slot, Box::new(step));
                            (0..COUNTS).for_each(|_| count_up(&mut client, &key, by));
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().expect("a client that counts"));
                let found = bench.audit().expect("a table in order");
                assert_eq!(count_of(&found[&key]), 2 * COUNTS, "a count was lost");
                assert_eq!(found[&key], counter(2 * COUNTS, bytes));
            };
            let mut config = shuttle::Config::new();
            config.stack_size = 1 << 18;
            config.silence_warnings = true;
            let schedule = config.clone();
            shuttle::Runner::new(RandomScheduler::new_from_seed(SEED, SCHEDULES), schedule).run(race.clone());
            shuttle::Runner::new(PctScheduler::new_from_seed(SEED, PCT_DEPTH, SCHEDULES), config).run(race);
        }
    }
}

/// Acts as the other client at one step of the first: removes the key and inserts it with the value it had. If it meets
/// the first client's lock, it does nothing.
fn remove_and_reinsert(other: &mut TestClient, key: &[u8], value: &[u8]) -> bool {
    match other.apply(&Op::Remove(key.to_vec())) {
        Ok(Observed::Outcome(Outcome::Removed)) => {
            assert_eq!(
                other.apply(&Op::Insert(key.to_vec(), value.to_vec())),
                Ok(Observed::Outcome(Outcome::Inserted))
            );
            true
        }
        Ok(Observed::Outcome(Outcome::Missing)) | Err(Error { kind: ErrorKind::Busy { .. }, .. }) => false,
        answer => panic!("the other client got {answer:?}"),
    }
}

/// Runs a read and a swap, with the other client's removal and insert at step `at`. Returns the outcome of the swap,
/// whether the other client acted, and when; `None` if there is no such step.
fn race_at(bytes: usize, profile: Profile, by: By, at: u64) -> Option<(Outcome, bool, u64)> {
    let (bench, key) = counter_bench(bytes, profile);
    let steps = Arc::new(AtomicU64::new(0));
    let acted = Arc::new(AtomicBool::new(false));
    let config = ClientConfig { deadline_ns: 1_000, ..ClientConfig::for_table(&bench.table) };
    let mut other = bench.client_with(1, bench.region.lane(), config);
    let (counted, did, of) = (Arc::clone(&steps), Arc::clone(&acted), key.clone());
    let step = move |_| {
        if counted.fetch_add(1, Ordering::Relaxed) == at {
            did.store(remove_and_reinsert(&mut other, &of, &counter(0, bytes)), Ordering::Relaxed);
        }
    };
    let mut client = stepped(&bench, 0, Box::new(step));
    let (value, token) = client.get_versioned(&key).expect("a lookup").expect("it is back before any lookup");
    let read_steps = steps.load(Ordering::Relaxed);
    let expected = if by == By::Value { Expected::Value(&value) } else { Expected::Unchanged(token) };
    let outcome = client.swap(&key, expected, &counter(1, bytes)).expect("a swap");
    let total = steps.load(Ordering::Relaxed);
    let acted = acted.load(Ordering::Relaxed);
    let count = count_of(&bench.audit().expect("a table in order")[&key]);
    // Only an insert after the swap puts the old value back.
    let is_late = acted && count == 0 && outcome == Outcome::Replaced;
    assert!(is_late || count == u64::from(outcome == Outcome::Replaced), "{profile} step {at}: {outcome:?}, {count}");
    (at < total).then_some((outcome, acted && !is_late, read_steps))
}

/// [R-CAS-1] [R-CAS-2] The key is removed and inserted with its old value, at every step of a read and a swap: by value
/// the swap cannot detect this, and takes effect; by token it is refused if that happened after the read.
#[test]
fn a_token_detects_a_key_removed_and_reinserted() {
    for (profile, bytes) in Profile::ALL.into_iter().flat_map(|profile| [(profile, 8), (profile, 60)]) {
        let (mut refused, mut done, mut before_lock) = (0, 0, 0);
        for at in 0.. {
            let Some((outcome, ..)) = race_at(bytes, profile, By::Value, at) else { break };
            assert_eq!(outcome, Outcome::Replaced, "{profile} step {at}: by value");
            let Some((outcome, acted, read_steps)) = race_at(bytes, profile, By::Token, at) else { break };
            match outcome {
                Outcome::Different => {
                    assert!(acted, "{profile} step {at}: refused although nothing happened");
                    refused += 1;
                }
                Outcome::Replaced => {
                    // The first step of the swap is its attempt at the lock: nothing may pass between read and lock.
                    assert!(!acted || at < read_steps, "{profile} step {at} of {read_steps}: not noticed");
                    done += 1;
                }
                outcome => panic!("{profile} step {at}: {outcome:?}"),
            }
            before_lock += u64::from(acted && at >= read_steps);
        }
        println!("{profile}, {bytes} bytes: {done} swaps done, {refused} refused, {before_lock} between read and lock");
        assert!(refused > 0 && done > 0 && before_lock > 0, "{profile}: every case has to occur");
    }
}
