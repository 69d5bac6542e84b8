//! Operations that are dropped halfway leave nothing behind.
//!
//! Batches complete two polls after they were sent. Each operation of each kind is polled once, twice, and so on until
//! it is complete, and then dropped; the same client continues, and afterwards the table is in order, every lock is
//! free, and the dropped operation took effect wholly or not at all. A batch that a drop leaves in flight takes effect
//! when it is drained, so these drops are those *before* a batch's effect as seen by others; another client also
//! overtakes such a batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use guira_conformance::{Bench, Model, Observed, Op, Prepared, TestClient, block_on};
use guira_fabric::heap::{Next, Pace, Step};
use guira_fabric::{Effect, Profile, Region};
use guira_layout::{OwnerId, Preset};
use guira_rcuckoo::{Change, ClientConfig, Error, ErrorKind, Outcome, Token};

const SEED: u64 = 5;
/// Polls for which a batch stays in flight.
const IN_FLIGHT_POLLS: u32 = 2;
/// A deadline that never passes.
const FAR_NS: u64 = 10_000_000_000;
/// Far more polls than any operation here takes.
const MOST_POLLS: usize = 400;

/// A nearly full table, its contents, and an operation of every kind on it.
struct Fixture {
    bench: Bench,
    model: Model,
    ops: Vec<Op>,
}

fn key(i: u64) -> Vec<u8> {
    i.to_le_bytes().to_vec()
}

impl Fixture {
    /// Fills a table until puts move up to four entries, and picks puts of new keys by their moves.
    fn new(preset: Preset) -> Fixture {
        println!("drops: preset {preset}, seed {SEED}, batches in flight for {IN_FLIGHT_POLLS} polls");
        let bench = Bench::of_rows(preset, "fixed:8:8", 64, Profile::Shm, SEED);
        let mut model = Model::default();
        let mut client = bench.client(9);
        for i in 0..bench.table.config().max_entries() * 3 / 4 {
            let op = Op::Put(key(i), key(i));
            if client.apply(&op).is_ok() {
                model.apply(&op);
            }
        }
        let exists = model.0.keys().next().expect("a filled table").clone();
        let absent = key(1 << 40);
        let mut ops = vec![
            Op::Get(exists.clone()),
            Op::Get(absent.clone()),
            Op::Put(exists.clone(), key(91)),
            Op::Insert(exists.clone(), key(92)),
            Op::Update(exists.clone(), key(93)),
            Op::Update(absent.clone(), key(94)),
            Op::Swap(exists.clone(), exists.clone(), key(95)),
            Op::Swap(exists.clone(), key(90), key(96)),
            Op::Swap(absent.clone(), key(90), key(97)),
            Op::RemoveIf(exists.clone(), exists.clone()),
            Op::RemoveIf(exists.clone(), key(90)),
            Op::Add(exists.clone(), [1; 8]),
            Op::Add(absent.clone(), [1; 8]),
            Op::Remove(exists),
            Op::Remove(absent),
        ];
        for moves in 0..4 {
            ops.extend(put_with_moves(&bench, moves).map(|key| Op::Put(key, vec![moves as u8; 8])));
        }
        assert!(ops.len() >= 10, "puts of new keys that move others");
        Fixture { bench, model, ops }
    }
}

/// Returns a put of a new key that moves exactly `moves` entries.
fn put_with_moves(bench: &Bench, moves: u64) -> Option<Vec<u8>> {
    (0..400).map(|i| key(1 << 32 | i)).find(|key| {
        let mut client = bench.fork().client(0);
        client.put(key, key).is_ok() && client.client.counters().moves == moves
    })
}

/// The end of an operation under test.
enum End {
    Finished(Result<Observed, Error>),
    Dropped,
}

/// Polls `op` at most `polls` times, then drops it. An extent, if the value needs one, is prepared first, through a
/// lane of its own.
fn poll_some(bench: &Bench, client: &mut TestClient, op: &Op, polls: usize) -> End {
    let mut value = Vec::new();
    let new = op.value().unwrap_or_default();
    let prepared = client.extents.prepare(&mut bench.under(Profile::Shm).region.lane(), op.key(), new);
    let (client, lane) = (&mut client.client, &mut client.lane);
    match op {
        Op::Get(key) => {
            let found = poll_at_most(client.get(lane, key, &mut value), polls);
            let seen = |found: Option<Token>| Observed::Value(found.map(|_| value));
            found.map_or(End::Dropped, |found| End::Finished(found.map(seen)))
        }
        _ => {
            let changed = poll_at_most(client.change(lane, op.key(), change_of(op, prepared.as_ref())), polls);
            changed.map_or(End::Dropped, |changed| {
                End::Finished(changed.map(|changed| Observed::Outcome(changed.outcome)))
            })
        }
    }
}

/// Returns the change that `op` is; a lookup stands for a remove.
fn change_of<'v>(op: &'v Op, prepared: Option<&'v Prepared>) -> Change<'v> {
    op.change(prepared.map(Prepared::value)).unwrap_or(Change::Remove)
}

fn poll_at_most<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
    }
    None
}

fn slow_client(bench: &Bench, slot: u16, deadline_ns: u64) -> TestClient {
    let config = ClientConfig { deadline_ns, ..ClientConfig::for_table(&bench.table) };
    bench.client_with(slot, bench.region.lane().paced(Pace::Deferred(IN_FLIGHT_POLLS)), config)
}

/// Asserts that the table's contents are those before `op`, or those after it.
fn whole_or_not_at_all(before: &Model, op: &Op, bench: &Bench) -> Result<(), String> {
    let now = Model(bench.audit()?);
    let mut after = before.clone();
    after.apply(op);
    if now == *before || now == after { Ok(()) } else { Err("the dropped operation took effect in part".to_owned()) }
}

/// Drops `op` after every possible number of polls, and calls `follow` as the client's next operation.
fn drop_everywhere(fixture: &Fixture, profile: Profile, op: &Op, follow: fn(&mut TestClient)) -> usize {
    for polls in 0..MOST_POLLS {
        let bench = fixture.bench.fork().under(profile);
        let mut client = slow_client(&bench, 0, FAR_NS);
        let end = poll_some(&bench, &mut client, op, polls);
        let finished = if let End::Finished(answer) = end {
            let mut model = fixture.model.clone();
            assert_eq!(answer, Ok(model.apply(op)), "{profile} {op:x?}");
            true
        } else {
            false
        };
        follow(&mut client);
        let context = || format!("{profile} {op:x?} dropped after {polls} polls");
        whole_or_not_at_all(&fixture.model, op, &bench).unwrap_or_else(|wrong| panic!("{}: {wrong}", context()));
        if finished {
            return polls;
        }
    }
    panic!("{op:x?} did not end within {MOST_POLLS} polls");
}

fn drop_all(preset: Preset, follow: fn(&mut TestClient)) {
    drop_all_in(&Fixture::new(preset), preset, follow);
}

fn drop_all_in(fixture: &Fixture, preset: Preset, follow: fn(&mut TestClient)) {
    for profile in Profile::ALL {
        let polls: usize = fixture.ops.iter().map(|op| drop_everywhere(fixture, profile, op, follow)).sum();
        println!("{preset} {profile}: {} operations dropped at {polls} points", fixture.ops.len());
    }
}

/// Does an operation after a drop that changes nothing by itself.
fn remove_nothing(client: &mut TestClient) {
    let seen = client.apply(&Op::Remove(key(1 << 50)));
    assert_eq!(seen, Ok(Observed::Outcome(Outcome::Missing)), "[R-DROP-1] the client is usable");
}

/// [R-DROP-1] With owner locks, a mutation follows the dropped operation.
#[test]
fn a_mutation_follows_a_drop() {
    drop_all(Preset::Tiny, remove_nothing);
    drop_all(Preset::Hardened, remove_nothing);
}

/// [R-DROP-1] The same with 1-bit locks, which do not identify their owner: the drained batch does.
#[test]
fn a_mutation_follows_a_drop_with_printed_locks() {
    drop_all(Preset::Paper, remove_nothing);
}

/// [R-DROP-1] Settling alone releases everything.
#[test]
fn settling_follows_a_drop() {
    drop_all(Preset::Tiny, |client| {
        block_on(client.client.settle(&mut client.lane)).expect("the heap loses nothing");
    });
}

/// [R-DROP-1] A change follows whose key or value the table cannot store: it still releases everything.
#[test]
fn a_refused_change_follows_a_drop() {
    drop_all(Preset::Tiny, |client| {
        let refused = client.change(&[1; 7], Change::Remove).map_err(|error| error.kind);
        assert!(matches!(refused, Err(ErrorKind::KeyLength { bytes: 7, .. })), "{refused:?}");
    });
    drop_all(Preset::Tiny, |client| {
        let refused = client.put(&key(1), &[1; 9]).map_err(|error| error.kind);
        assert!(matches!(refused, Err(ErrorKind::ValueLength { bytes: 9, .. })), "{refused:?}");
    });
}

/// [R-DROP-1] A lookup follows the dropped operation at once, and must answer; then the client settles.
#[test]
fn a_lookup_follows_a_drop() {
    drop_all(Preset::Tiny, |client| {
        assert_eq!(client.get(&key(1 << 50)), Ok(None), "[R-DROP-1] the lane is usable");
        block_on(client.client.settle(&mut client.lane)).expect("the heap loses nothing");
    });
}

/// Settles the client.
fn settle(client: &mut TestClient) {
    block_on(client.client.settle(&mut client.lane)).expect("the heap loses nothing");
}

/// [R-DROP-1] [R-EXTENT-1] [R-EXTENT-4] The same for values in extents, none of which is freed while in use.
#[test]
fn a_mutation_follows_a_drop_of_an_extent() {
    println!("drops of extents: preset tiny, seed {SEED}");
    let bench = Bench::of_rows(Preset::Tiny, "bytes:24", 64, Profile::Shm, SEED);
    let (mut client, mut model) = (bench.client(9), Model::default());
    for i in 0..bench.table.config().max_entries() / 2 {
        let op = Op::Put(key(i), vec![i as u8; 80]);
        assert_eq!(client.apply(&op), Ok(model.apply(&op)));
    }
    let ops = vec![
        Op::Get(key(1)),
        Op::Put(key(1), vec![1; 88]),
        Op::Put(key(1), vec![2; 3]),
        Op::Update(key(2), vec![3; 80]),
        Op::Insert(key(2), vec![4; 80]),
        Op::Insert(key(1 << 40), vec![5; 80]),
        Op::Swap(key(4), vec![4; 80], vec![6; 80]),
        Op::Swap(key(4), vec![5; 80], vec![6; 88]),
        Op::RemoveIf(key(4), vec![4; 80]),
        Op::Remove(key(3)),
    ];
    drop_all_in(&Fixture { bench, model, ops }, Preset::Tiny, remove_nothing);
}

/// [R-DROP-1] An operation is dropped, and so is the one after it, at every pair of polls.
#[test]
fn drops_follow_drops() {
    let fixture = Fixture::new(Preset::Tiny);
    let crowded = fixture.ops.last().expect("a put that moves others");
    let update = Op::Update(fixture.model.0.keys().next_back().expect("a filled table").clone(), key(95));
    for profile in Profile::ALL {
        for (first, second) in [(crowded, &update), (&update, crowded), (crowded, crowded), (&update, &update)] {
            let (mut polls, mut polls_after) = (0, 0);
            // Ends with the number of polls that completes the first operation, tried with all numbers for the second.
            loop {
                let (is_first_done, is_second_done) = {
                    let bench = fixture.bench.fork().under(profile);
                    let mut client = slow_client(&bench, 0, FAR_NS);
                    let ends = [(first, polls), (second, polls_after)];
                    let [one, two] = ends.map(|(op, polls)| poll_some(&bench, &mut client, op, polls));
                    settle(&mut client);
                    let context =
                        || format!("{profile} {first:x?} after {polls}, {second:x?} after {polls_after} polls");
                    let now = Model(bench.audit().unwrap_or_else(|wrong| panic!("{}: {wrong}", context())));
                    let possible = possible(&fixture.model, &[first, second]);
                    assert!(possible.contains(&now), "{}: in part", context());
                    (matches!(one, End::Finished(_)), matches!(two, End::Finished(_)))
                };
                match (is_first_done, is_second_done) {
                    (_, false) => polls_after += 1,
                    (false, true) => (polls, polls_after) = (polls + 1, 0),
                    (true, true) => break,
                }
                assert!(polls.max(polls_after) < 40, "both operations complete");
            }
        }
    }
}

/// Returns the possible contents of a table if each operation took effect in this order or not at all.
fn possible(before: &Model, ops: &[&Op]) -> Vec<Model> {
    ops.iter().fold(vec![before.clone()], |models, op| {
        let after = models.iter().cloned().map(|mut model| {
            model.apply(op);
            model
        });
        let after: Vec<Model> = after.collect();
        models.into_iter().chain(after).collect()
    })
}

/// [R-DROP-1] [R-LOCK-4] While the batch of a dropped operation is in flight, another client changes the same key, or
/// finds it `Busy` and changes nothing; afterwards the first client settles.
#[test]
fn another_client_overtakes_a_drop() {
    for preset in [Preset::Tiny, Preset::Paper] {
        let fixture = Fixture::new(preset);
        for profile in Profile::ALL {
            for op in fixture.ops.iter().filter(|op| !matches!(op, Op::Get(_))) {
                for polls in (0..40).step_by(if guira_testing::is_long() { 1 } else { 3 }) {
                    let bench = fixture.bench.fork().under(profile);
                    let mut client = slow_client(&bench, 0, FAR_NS);
                    poll_some(&bench, &mut client, op, polls);
                    let config = ClientConfig { deadline_ns: 20_000, ..ClientConfig::for_table(&bench.table) };
                    let mut other = bench.client_with(1, bench.region.lane(), config);
                    let change = Op::Put(op.key().to_vec(), key(96));
                    let possible = match other.apply(&change) {
                        Ok(Observed::Outcome(Outcome::Inserted | Outcome::Replaced)) => {
                            [possible(&fixture.model, &[op, &change]), possible(&fixture.model, &[&change, op])]
                                .concat()
                        }
                        Err(Error { kind: ErrorKind::Busy { owner, .. }, .. }) => {
                            assert!(owner.is_none_or(|owner| owner == OwnerId(1)), "[R-LOCK-1] {owner:?}");
                            possible(&fixture.model, &[op])
                        }
                        answer => panic!("{profile} {op:x?} after {polls} polls: the other client got {answer:?}"),
                    };
                    settle(&mut client);
                    let now = Model(bench.audit().unwrap_or_else(|wrong| panic!("{profile} {op:x?} {polls}: {wrong}")));
                    assert!(possible.contains(&now), "{profile} {op:x?} after {polls} polls: in part");
                }
            }
        }
    }
}

/// [R-DROP-1] [R-LOCK-3] An operation that waits for a lock is dropped, at every poll up to the phase in which it
/// holds one word and waits for the next.
#[test]
fn a_dropped_wait_leaves_nothing_behind() {
    for preset in [Preset::Tiny, Preset::Paper] {
        let fixture = Fixture::new(preset);
        for profile in Profile::ALL {
            for op in fixture.ops.iter().filter(|op| !matches!(op, Op::Get(_))) {
                for polls in (0..120).step_by(3) {
                    let bench = fixture.bench.fork().under(profile);
                    let config = ClientConfig {
                        deadline_ns: FAR_NS,
                        longest_backoff_ns: 2,
                        ..ClientConfig::for_table(&bench.table)
                    };
                    let lane = bench.region.lane().paced(Pace::Deferred(IN_FLIGHT_POLLS));
                    let mut client = bench.client_with(0, lane, config);
                    // Another client holds the key's last lock in address order.
                    let pair = bench.table.placement().rows(bench.table.placement().digest(op.key()));
                    let lock = |row| bench.table.locks().mask(bench.table.locks().lock_of(row));
                    let taken = [lock(pair.first), lock(pair.second)].into_iter().max_by_key(|lock| lock.word);
                    let taken = taken.expect("two rows");
                    let cell = &bench.region.memory().device[taken.word as usize];
                    let held = bench.table.locks().held(OwnerId(40), taken.mask);
                    cell.fetch_add(held, Ordering::AcqRel);
                    poll_some(&bench, &mut client, op, polls);
                    settle(&mut client);
                    assert_eq!(bench.lock_words(), [(taken.word, held)], "{profile} {op:x?} after {polls} polls");
                    cell.fetch_sub(held, Ordering::AcqRel);
                    assert_eq!(bench.audit().as_ref(), Ok(&fixture.model.0), "{profile} {op:x?} after {polls} polls");
                }
            }
        }
    }
}

/// [R-DROP-1] A panic between two polls unwinds the operation: the client continues as after any other drop.
#[test]
fn unwinding_is_a_drop() {
    let fixture = Fixture::new(Preset::Tiny);
    for profile in Profile::ALL {
        for op in &fixture.ops {
            for polls in 0..20 {
                let bench = fixture.bench.fork().under(profile);
                let mut client = slow_client(&bench, 0, FAR_NS);
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    let mut future = pin!(client.client.change(&mut client.lane, op.key(), change_of(op, None)));
                    let mut cx = Context::from_waker(Waker::noop());
                    for _ in 0..polls {
                        if future.as_mut().poll(&mut cx).is_ready() {
                            break;
                        }
                    }
                    std::panic::resume_unwind(Box::new("between two polls"));
                }));
                assert!(unwound.is_err());
                remove_nothing(&mut client);
                let op = if let Op::Get(key) = op { &Op::Remove(key.clone()) } else { op };
                whole_or_not_at_all(&fixture.model, op, &bench)
                    .unwrap_or_else(|wrong| panic!("{profile} {op:x?}: {wrong}"));
            }
        }
    }
}

/// [R-DROP-1] A fabric that panics before the first verb of any batch has changed nothing: the client releases its
/// locks.
#[test]
fn a_fabric_that_panics_before_a_batch_leaves_nothing_behind() {
    let fixture = Fixture::new(Preset::Tiny);
    for (profile, fatal) in Profile::ALL.into_iter().flat_map(|profile| (1..20).map(move |fatal| (profile, fatal))) {
        for op in fixture.ops.iter().filter(|op| !matches!(op, Op::Get(_))) {
            let bench = fixture.bench.fork().under(profile);
            let batches_left = Arc::new(AtomicU32::new(fatal));
            let left = Arc::clone(&batches_left);
            let hook = move |step| {
                let is_first = step == Step::Verb { index: 0 };
                let counts = is_first && left.load(Ordering::Relaxed) > 0;
                if counts && left.fetch_sub(1, Ordering::Relaxed) == 1 {
                    std::panic::resume_unwind(Box::new("before a batch"));
                }
                Next::Continue
            };
            let quiet = bench.client(0);
            let mut client = quiet.through(bench.region.lane().hooked(Box::new(hook)));
            let result = catch_unwind(AssertUnwindSafe(|| client.apply(op)));
            batches_left.store(0, Ordering::Relaxed);
            remove_nothing(&mut client);
            let now = Model(bench.audit().unwrap_or_else(|wrong| panic!("{profile} {op:x?} batch {fatal}: {wrong}")));
            let mut after = fixture.model.clone();
            after.apply(op);
            assert!(
                now == if result.is_ok() { after } else { fixture.model.clone() },
                "{profile} {op:x?} batch {fatal}"
            );
        }
    }
}

/// Asserts that a client that lost a batch refuses every operation, although the region can be reached again.
/// [R-DROP-2]
fn refuses_everything(client: &mut TestClient, fixture: &Fixture, bench: &Bench, context: &str) {
    let before = bench.words();
    for op in &fixture.ops {
        let refused = client.apply(op).expect_err(context);
        assert!(matches!(refused.kind, ErrorKind::Lost { .. }), "{context}: {refused}");
        assert_eq!(refused.effect(), Effect::None, "{context}");
        assert!(refused.to_string().contains("open a new client"), "{context}: {refused}");
    }
    let keys = [key(1), key(2)];
    let many = client.get_many(&keys);
    assert!(
        many.iter().all(|refused| matches!(refused, Err(Error { kind: ErrorKind::Lost { .. }, .. }))),
        "{context}: {many:?}"
    );
    assert_eq!(many.len(), keys.len(), "{context}");
    block_on(client.client.settle(&mut client.lane)).expect_err(context);
    assert!(before == bench.words(), "{context}: a client that refuses changed something");
}

/// [R-DROP-2] A batch is lost after each of its verbs: if it may have taken or released a lock, the client refuses all
/// that follows, and its locks stay as they are; if it had no effect, the client continues.
#[test]
fn a_client_that_lost_a_batch_refuses_everything() {
    for preset in [Preset::Tiny, Preset::Paper] {
        let fixture = Fixture::new(preset);
        let (mut lost, mut harmless) = (0, 0);
        for (profile, op) in Profile::ALL.iter().flat_map(|profile| fixture.ops.iter().map(move |op| (*profile, op))) {
            for fatal in 0.. {
                let bench = fixture.bench.fork().under(profile);
                let mut verbs = 0;
                let hook = move |step| {
                    let counts = !matches!(step, Step::Word { .. });
                    verbs += u32::from(counts);
                    if counts && verbs > fatal { Next::Die } else { Next::Continue }
                };
                let mut client = bench.client(0).through(bench.region.lane().hooked(Box::new(hook)));
                let result = client.apply(op);
                let mut client = client.through(bench.region.lane());
                let context = format!("{preset} {profile} {op:x?}, lost before step {fatal}");
                match result {
                    Ok(_) => break,
                    Err(error) if error.effect() == Effect::None => {
                        harmless += 1;
                        remove_nothing(&mut client);
                        assert_eq!(bench.audit().as_ref(), Ok(&fixture.model.0), "{context}");
                    }
                    Err(_) => {
                        lost += 1;
                        refuses_everything(&mut client, &fixture, &bench, &context);
                    }
                }
            }
        }
        println!("{preset}: {lost} batches lost, {harmless} more without effect");
        assert!(lost > 100 && harmless > 100);
    }
}

/// [R-DROP-2] [R-DROP-1] If the batch that a dropped operation left in flight is lost, the client is lost as well,
/// unless the batch had no effect.
#[test]
fn a_client_whose_dropped_batch_is_lost_refuses_everything() {
    let fixture = Fixture::new(Preset::Tiny);
    let mut lost = 0;
    for (profile, op) in Profile::ALL.iter().flat_map(|profile| fixture.ops.iter().map(move |op| (*profile, op))) {
        for polls in 0..20 {
            let bench = fixture.bench.fork().under(profile);
            let armed = Arc::new(AtomicBool::new(false));
            let fatal = Arc::clone(&armed);
            let dies = move |step| fatal.load(Ordering::Relaxed) && step == Step::Completion;
            let hook = move |step| if dies(step) { Next::Die } else { Next::Continue };
            let lane = bench.region.lane().paced(Pace::Deferred(IN_FLIGHT_POLLS)).hooked(Box::new(hook));
            let mut client = bench.client(0).through(lane);
            poll_some(&bench, &mut client, op, polls);
            armed.store(true, Ordering::Relaxed);
            let settled = block_on(client.client.settle(&mut client.lane));
            let mut client = client.through(bench.region.lane());
            let context = format!("{profile} {op:x?} dropped after {polls} polls");
            if settled.is_err_and(|error| error.effect() != Effect::None) {
                lost += 1;
                refuses_everything(&mut client, &fixture, &bench, &context);
            } else {
                remove_nothing(&mut client);
                whole_or_not_at_all(&fixture.model, op, &bench).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
            }
        }
    }
    println!("{lost} batches lost");
    assert!(lost > 100);
}
