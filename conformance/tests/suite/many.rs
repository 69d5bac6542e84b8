//! Lookups of many keys at once answer as single lookups would: on every profile, for every list, beside damage and
//! torn rows, under a writer that switches with the reader before any word, and after drops. Their round trips are
//! exactly the promised ones.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use guira_conformance::{Bench, Observed, Op, Sampling, StepPoint, SteppedLane, TestClient, block_on};
use guira_fabric::heap::Pace;
use guira_fabric::{Addr, Profile, Region, SplitMix64};
use guira_layout::{EntryFormat, MAX_KEY_BYTES, OwnerId, Preset, PresetOptions, RowId};
use guira_rcuckoo::{ClientConfig, DamagedItem, Error, ErrorKind, Outcome, Token};
use shuttle::scheduler::{PctScheduler, RandomScheduler};

const SEED: u64 = 23;
/// Keys whose accesses overlap.
const GROUP_KEYS: u64 = 32;
/// Drawn lists of each length.
const LISTS: u64 = 6;
/// Schedules of one race, for each scheduler.
const SCHEDULES: usize = 300;
const PCT_DEPTH: usize = 3;
/// Polls for which a batch of a slow lane stays in flight.
const IN_FLIGHT_POLLS: u32 = 2;

type Answer = Result<Option<Vec<u8>>, Error>;

fn number(i: u64) -> Vec<u8> {
    i.to_le_bytes().to_vec()
}

/// Returns the `i`th key of a table of `format`.
fn key(format: EntryFormat, i: u64) -> Vec<u8> {
    match format {
        EntryFormat::Fixed { key_bytes, .. } => number(i)[..usize::from(key_bytes)].to_vec(),
        EntryFormat::Bytes { .. } => format!("key {i}").into_bytes(),
    }
}

/// Returns the value of key `i`; in formats with extents every third is in one.
fn value(format: EntryFormat, i: u64) -> Vec<u8> {
    let bytes = match format {
        EntryFormat::Fixed { value_bytes, .. } => usize::from(value_bytes),
        EntryFormat::Bytes { .. } if i.is_multiple_of(3) => 70 + (i * 37 % 3_000) as usize,
        EntryFormat::Bytes { .. } => (i % 12) as usize,
    };
    number(i ^ 0x55).into_iter().cycle().take(bytes).collect()
}

/// Returns a key that no table of `format` takes.
fn wrong_key(format: EntryFormat) -> Vec<u8> {
    match format {
        EntryFormat::Fixed { key_bytes, .. } => vec![1; usize::from(key_bytes) + 1],
        EntryFormat::Bytes { .. } => vec![1; MAX_KEY_BYTES + 1],
    }
}

/// Creates a table that is two thirds full, with keys 0 to the number returned.
fn filled(preset: Preset, format: &str, profile: Profile) -> (Bench, TestClient, u64) {
    let bench = Bench::of_rows(preset, format, 64, profile, SEED);
    let format = bench.table.config().format;
    let (mut client, keys) = (bench.client(0), bench.table.config().max_entries() * 2 / 3);
    let stored = (0..keys).take_while(|i| client.apply(&Op::Put(key(format, *i), value(format, *i))).is_ok()).count();
    (bench, client, stored as u64)
}

/// [R-READ-8] Any list of keys, with duplicates, missing keys and keys that no table takes, on every preset, format and
/// profile: every answer equals that of a single lookup, in the same position.
#[test]
fn many_lookups_answer_as_single_ones() {
    for (preset, profile) in Preset::ALL.into_iter().flat_map(|p| Profile::ALL.map(|profile| (p, profile))) {
        for format in ["fixed:4:4", "fixed:8:8", "fixed:8:56", "bytes:24", "bytes:64"] {
            println!("preset {preset}, {format}, profile {profile}, seed {SEED}");
            let (bench, mut client, keys) = filled(preset, format, profile);
            let (format, mut rng) = (bench.table.config().format, SplitMix64(SEED));
            let (mut hits, mut misses, mut mistakes) = (0, 0, 0);
            for length in [0, 1, 2, 31, 32, 33, 64, 100].into_iter().flat_map(|length| [length; LISTS as usize]) {
                // There are few keys, so that some occur twice.
                let draw = |rng: &mut SplitMix64| match rng.below(8) {
                    0 => wrong_key(format),
                    1 | 2 => key(format, (1 << 30) + rng.below(9)),
                    _ => {
                        key(format, rng.clone().below(keys.min(60)) + rng.below(2) * rng.below(keys - keys.min(60) + 1))
                    }
                };
                let list: Vec<Vec<u8>> = (0..length)
                    .map(|_| {
                        rng.next_u64();
                        draw(&mut rng)
                    })
                    .collect();
                let answers = client.get_many(&list);
                assert_eq!(answers.len(), list.len());
                for (i, (key, answer)) in list.iter().zip(answers).enumerate() {
                    assert_eq!(answer, client.get(key), "key {i} of {length}: {key:x?}");
                    match answer {
                        Ok(Some(_)) => hits += 1,
                        Ok(None) => misses += 1,
                        Err(Error { kind: ErrorKind::KeyLength { bytes, .. }, .. }) if bytes == key.len() => {
                            mistakes += 1
                        }
                        Err(error) => panic!("key {i} of {length}: {error}"),
                    }
                }
            }
            assert!(hits > 100 && misses > 100 && mistakes > 100, "{hits} hits, {misses} misses, {mistakes} mistakes");
        }
    }
}

/// [R-READ-8] Values so large that a group's extents are not read together, beside small and inline ones.
#[test]
fn extents_longer_than_a_group_reads_are_returned_whole() {
    let options = PresetOptions {
        capacity: 1,
        format: "bytes:64".parse().expect("a valid format"),
        extent_bytes: Some(32 << 20),
        max_clients: Some(4),
        hash_seed: SEED,
        device_bytes: u64::MAX,
    };
    // 512 KiB are read together: the third exceeds what is left, the fourth fits again, the sixth is too large alone.
    let sizes = [3, 300 << 10, 300 << 10, 100 << 10, 0, 600 << 10, 70, 2 << 20, 90 << 10, 64 << 10];
    for profile in Profile::ALL {
        let config = Preset::Hardened.config_of_rows(64, &options).expect("valid parameters");
        let bench = Bench::of_config(config, profile, SEED);
        let mut client = bench.client(0);
        let keys: Vec<Vec<u8>> = (0..sizes.len() as u64).map(number).collect();
        let value = |i: usize| -> Vec<u8> { (0..sizes[i]).map(|at| (at * 31 + i) as u8).collect() };
        for (i, key) in keys.iter().enumerate() {
            client.apply(&Op::Put(key.clone(), value(i))).unwrap();
        }
        for (i, answer) in client.get_many(&keys).into_iter().enumerate() {
            assert!(answer.unwrap().unwrap() == value(i), "{profile}: value {i} of {} bytes", sizes[i]);
        }
    }
}

/// [R-READ-8] 32 inline keys take 1 round trip, 2 with extents among them, and misses 2 more each where READs of a
/// batch sample in any order; keys that no table takes cost nothing.
#[test]
fn many_lookups_cost_what_they_promise() {
    for profile in Profile::REMOTE {
        let (bench, mut client, keys) = filled(Preset::Hardened, "bytes:64", profile);
        let format = bench.table.config().format;
        let is_inline = |i: &u64| !i.is_multiple_of(3);
        let inline: Vec<_> = (0..keys).filter(is_inline).map(|i| key(format, i)).collect();
        let any: Vec<_> = (0..keys).map(|i| key(format, i)).collect();
        let mut trips = |list: &[Vec<u8>]| client.traffic_of(|client| client.get_many(list)).1.round_trips;
        for length in 1..100 {
            let groups = (length as u64).div_ceil(GROUP_KEYS);
            assert_eq!(trips(&inline[..length]), groups, "{profile}: {length} inline keys");
            let has_extents = |group: &[u64]| !group.iter().all(is_inline);
            let numbers: Vec<u64> = (0..length as u64).collect();
            let with_extents = numbers.chunks(GROUP_KEYS as usize).filter(|group| has_extents(group)).count() as u64;
            assert_eq!(trips(&any[..length]), groups + with_extents, "{profile}: {length} keys");
        }
        let each = if profile == Profile::Tcp { 0 } else { 2 };
        for missing in 0..=GROUP_KEYS {
            let mut list: Vec<_> = (0..missing).map(|i| key(format, (1 << 30) + i)).collect();
            list.extend_from_slice(&inline[..(GROUP_KEYS - missing) as usize]);
            assert_eq!(trips(&list), 1 + missing * each, "{profile}: {missing} of 32 are missing");
        }
        assert_eq!(trips(&[]), 0, "{profile}: no keys");
        assert_eq!(trips(&[wrong_key(format)]), 0, "{profile}: a key of the wrong length");
    }
}

/// [R-READ-8] Where verbs execute in place, a key in its first row takes 1 post, every other key 2.
#[test]
fn many_local_lookups_cost_what_they_promise() {
    let (bench, mut client, keys) = filled(Preset::Hardened, "fixed:8:8", Profile::Shm);
    let in_first = |key: &[u8]| {
        let pair = bench.table.placement().rows(bench.table.placement().digest(key));
        let probe = bench.table.rows().probe(key, bench.table.placement().digest(key));
        bench.table.rows().find(&bench.row_words(pair.first), &probe, 0).is_some()
    };
    let list: Vec<_> = (0..keys + 20).map(number).collect();
    let (_, traffic) = client.traffic_of(|client| client.get_many(&list));
    let first = list.iter().filter(|key| in_first(key)).count() as u64;
    assert!(first < keys, "some are in their second rows");
    assert_eq!(traffic.round_trips, first + 2 * (list.len() as u64 - first));
}

/// Stores `words` in `row`, and lets a client that is gone hold its lock, if one is given.
fn overwrite(bench: &Bench, row: RowId, words: &[u64], held_by: Option<OwnerId>) {
    bench.store(bench.table.geometry().row(row), words);
    let locks = bench.table.locks();
    if let Some(owner) = held_by {
        let mask = locks.mask(locks.lock_of(row));
        bench.store(locks.addr(mask.word), &[locks.held(owner, mask.mask)]);
    }
}

/// [R-READ-8] [R-READ-5] A half-written row whose lock is held is `Busy` for its keys, a damaged one `Corrupt`; all
/// other keys of the list are answered.
#[test]
fn torn_and_damaged_rows_affect_only_their_keys() {
    for (profile, held_by) in
        Profile::ALL.into_iter().flat_map(|profile| [(profile, None), (profile, Some(OwnerId(9)))])
    {
        let (bench, filler, keys) = filled(Preset::Hardened, "fixed:8:8", profile);
        drop(filler);
        // Damage is found by counting samples, however long they take; a held lock is waited for in vain.
        let deadline_ns = if held_by.is_some() { 3_000_000 } else { 60_000_000_000 };
        let config = ClientConfig { deadline_ns, ..ClientConfig::for_table(&bench.table) };
        let mut client = bench.client_with(1, bench.region.lane(), config);
        let list: Vec<_> = (0..keys.min(60)).map(number).collect();
        let row = match client.get_versioned(&list[40]).unwrap().unwrap().1 {
            Token::Inline { row, .. } => row,
            Token::Extent { .. } => unreachable!("a format without extents"),
        };
        let rows: Vec<_> = list.iter().map(|key| client.get_versioned(key).unwrap().unwrap().1).collect();
        let mut torn = bench.row_words(row);
        *torn.last_mut().unwrap() ^= 1 << 17;
        overwrite(&bench, row, &torn, held_by);
        let mut concerned = 0;
        for (i, (answer, token)) in client.get_many(&list).into_iter().zip(rows).enumerate() {
            if !matches!(token, Token::Inline { row: of, .. } if of == row) {
                assert_eq!(answer, Ok(Some(value(bench.table.config().format, i as u64))), "{profile}: key {i}");
                continue;
            }
            concerned += 1;
            match (answer, held_by) {
                (Err(Error { kind: ErrorKind::Corrupt { item }, .. }), None) => {
                    assert_eq!(item, DamagedItem::Row(row), "{profile}: key {i}")
                }
                (Err(Error { kind: ErrorKind::Busy { owner, .. }, .. }), Some(_)) => {
                    assert_eq!(owner, held_by, "{profile}: key {i}")
                }
                (answer, _) => panic!("{profile}, held by {held_by:?}: key {i} of the torn row: {answer:?}"),
            }
        }
        assert!(concerned > 0, "{profile}");
    }
}

/// [R-READ-8] [R-READ-6] A damaged extent, and an entry that points outside the memory, are `Corrupt` for their own
/// keys only, although the READs of all extents are sent together.
#[test]
fn damaged_extents_affect_only_their_keys() {
    for (profile, points_outside) in Profile::ALL.into_iter().flat_map(|profile| [(profile, false), (profile, true)]) {
        println!("{profile}, an entry that points outside: {points_outside}");
        let (bench, mut client, keys) = filled(Preset::Hardened, "bytes:24", profile);
        let format = bench.table.config().format;
        let victim = b"the victim".to_vec();
        let mut prepared = client.extents.prepare(&mut client.lane, &victim, &[7; 200]).expect("too long for a row");
        if points_outside {
            prepared.point_to(1 << 40);
        }
        let first = bench.table.placement().rows(bench.table.placement().digest(&victim)).first;
        bench.plant_entry(first, &prepared);
        let mut list: Vec<_> = (0..keys.min(50)).map(|i| key(format, i)).collect();
        list.insert(20, victim);
        for (i, answer) in client.get_many(&list).into_iter().enumerate() {
            if i == 20 {
                assert!(matches!(answer, Err(Error { kind: ErrorKind::Corrupt { .. }, .. })), "{profile}: {answer:?}");
            } else {
                let i = i as u64 - u64::from(i > 20);
                assert_eq!(answer, Ok(Some(value(format, i))), "{profile}: key {i}");
            }
        }
    }
}

/// A crowded table, a key whose put moves others, some to their first rows and some to their second, and these others.
struct Fixture {
    bench: Bench,
    put: Vec<u8>,
    moved: Vec<Vec<u8>>,
    stay: Vec<Vec<u8>>,
}

impl Fixture {
    fn new(format: &str) -> Fixture {
        let bench = Bench::of_rows(Preset::Tiny, format, 64, Profile::Shm, SEED);
        let (mut client, slots) = (bench.client(9), bench.table.config().max_entries());
        let keys: Vec<_> = (0..slots * 85 / 100)
            .map(number)
            .filter(|key| client.apply(&Op::Put(key.clone(), Fixture::value(format, key, 0))).is_ok())
            .collect();
        let rows_of = |bench: &Bench| -> Vec<RowId> {
            let row_of = |key: &Vec<u8>| {
                let digest = bench.table.placement().digest(key);
                let (pair, rows) = (bench.table.placement().rows(digest), bench.table.rows());
                let holds = |row| rows.find(&bench.row_words(row), &rows.probe(key, digest), 0).is_some();
                if holds(pair.first) { pair.first } else { pair.second }
            };
            keys.iter().map(row_of).collect()
        };
        let before = rows_of(&bench);
        for put in (0..2_000).map(|i| number(1 << 32 | i)) {
            let fork = bench.fork();
            let mut client = fork.client(0);
            if client.apply(&Op::Put(put.clone(), Fixture::value(format, &put, 0))).is_err() {
                continue;
            }
            if client.client.counters().moves < 2 {
                continue;
            }
            let after = rows_of(&fork);
            let (mut moved, mut stay, mut homecomers) = (Vec::new(), Vec::new(), 0);
            for (i, key) in keys.iter().enumerate() {
                if before[i] == after[i] { &mut stay } else { &mut moved }.push(key.clone());
                let first = bench.table.placement().rows(bench.table.placement().digest(key)).first;
                homecomers += usize::from(before[i] != after[i] && after[i] == first);
            }
            // A reader of L1 and then L2 can miss moves from L2 to L1, and a reader in the other order can miss the
            // others.
            if (1..moved.len()).contains(&homecomers) {
                stay.truncate(3);
                return Fixture { bench, put, moved, stay };
            }
        }
        panic!("no put moves entries both ways");
    }

    /// Returns the value that `writer` puts for `key`: in an extent, where the format has them.
    fn value(format: &str, key: &[u8], writer: u8) -> Vec<u8> {
        let mut value = key.to_vec();
        value[7] = writer;
        if format == "fixed:8:8" { value } else { value.repeat(8) }
    }
}

/// Runs a reader of many keys against a writer that moves some of them, under the current schedule.
fn race(fixture: &Fixture, format: &str, profile: Profile, sampling: Sampling) {
    let bench = fixture.bench.fork().under(profile);
    let point = Arc::new(shuttle::sync::atomic::AtomicUsize::new(0));
    let lane = |bench: &Bench| {
        let point = Arc::clone(&point);
        let step = move |moment| match moment {
            StepPoint::Pause => shuttle::thread::yield_now(),
            _ => _ = point.load(shuttle::sync::atomic::Ordering::SeqCst),
        };
        SteppedLane::new(&bench.region, sampling, Box::new(step))
    };
    let config = ClientConfig { cache_bytes: 1 << 10, ..ClientConfig::for_table(&bench.table) };
    let quiet = |slot| {
        let lane = SteppedLane::new(&bench.region, sampling, Box::new(|_| ()));
        bench.client_with(slot, lane, config)
    };
    let (mut reader, mut writer) = (quiet(0).through(lane(&bench)), quiet(1).through(lane(&bench)));
    let changed = fixture.moved[0].clone();
    let missing = number(1 << 40);
    let list: Vec<_> = [&fixture.moved[..], &[fixture.put.clone(), missing.clone()], &fixture.stay]
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let values = |key: &[u8]| [0, 1, 2].map(|writer| Fixture::value(format, key, writer));
    let writes = [
        Op::Put(fixture.put.clone(), Fixture::value(format, &fixture.put, 0)),
        Op::Update(changed.clone(), Fixture::value(format, &changed, 1)),
        Op::Update(changed.clone(), Fixture::value(format, &changed, 2)),
        Op::Remove(fixture.put.clone()),
    ];
    let expected = [Outcome::Inserted, Outcome::Replaced, Outcome::Replaced, Outcome::Removed];
    let writer = shuttle::thread::spawn(move || {
        for (op, outcome) in writes.iter().zip(expected) {
            assert_eq!(writer.apply(op), Ok(Observed::Outcome(outcome)), "{op:x?}");
        }
    });
    let mut last = 0;
    for _ in 0..2 {
        for (key, answer) in list.iter().zip(reader.get_many(&list)) {
            let value = answer.unwrap_or_else(|error| panic!("{profile} {key:x?}: {error}"));
            let version = value.as_ref().map(|value| values(key).iter().position(|written| written == value));
            match version {
                None => {
                    assert!(*key == fixture.put || *key == missing, "{profile}: {key:x?} always exists, and was missed")
                }
                Some(None) => panic!("{profile}: {key:x?} has a value that was never written: {value:x?}"),
                Some(Some(version)) if *key == changed => {
                    assert!(version >= last, "{profile}: {key:x?} went back");
                    last = version;
                }
                Some(Some(version)) => assert!(version == 0 && *key != missing, "{profile}: {key:x?}"),
            }
        }
    }
    writer.join().expect("a writer that writes");
}

/// [R-READ-8] [R-READ-3] [R-READ-6] While a writer moves some of the keys and changes one, no key is missed, none has a
/// value never written for it, and none goes back.
#[test]
fn many_lookups_are_linearizable_beside_a_writer() {
    for format in ["fixed:8:8", "bytes:24"] {
        let fixture = Arc::new(Fixture::new(format));
        for (profile, sampling) in
            Profile::ALL.into_iter().flat_map(|p| [Sampling::Ascending, Sampling::Descending].map(|s| (p, s)))
        {
            println!("{format}, {profile}, {sampling:?}, seed {SEED}, {SCHEDULES} schedules by each scheduler");
            let mut config = shuttle::Config::new();
            config.stack_size = 1 << 18;
            config.silence_warnings = true;
            for is_random in [true, false] {
                let (fixture, config) = (Arc::clone(&fixture), config.clone());
                let run = move || race(&fixture, format, profile, sampling);
                if is_random {
                    shuttle::Runner::new(RandomScheduler::new_from_seed(SEED, SCHEDULES), config).run(run);
                } else {
                    shuttle::Runner::new(PctScheduler::new_from_seed(SEED, PCT_DEPTH, SCHEDULES), config).run(run);
                }
            }
        }
    }
}

fn slow_client(bench: &Bench) -> TestClient {
    let lane = bench.region.lane().paced(Pace::Deferred(IN_FLIGHT_POLLS));
    bench.client_with(1, lane, ClientConfig::for_table(&bench.table))
}

/// Polls `future` at most `polls` times, then drops it; returns whether it ended.
fn poll_some(future: impl Future, polls: usize) -> bool {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    (0..polls).any(|_| matches!(future.as_mut().poll(&mut cx), Poll::Ready(_)))
}

/// [R-DROP-1] [R-READ-8] Lookups of many keys that are dropped after any number of polls leave nothing behind: the same
/// client looks up and changes at once.
#[test]
fn dropped_lookups_leave_nothing_behind() {
    for (format, profile) in ["fixed:8:8", "bytes:24"].into_iter().flat_map(|f| Profile::ALL.map(|p| (f, p))) {
        let (filled_bench, filler, keys) = filled(Preset::Hardened, format, Profile::Shm);
        drop(filler);
        let format = filled_bench.table.config().format;
        let mut list: Vec<_> = (0..keys.min(40)).map(|i| key(format, i)).collect();
        list.extend([key(format, 1 << 30), wrong_key(format)]);
        let before = filled_bench.audit().unwrap();
        let mut points = 0;
        for polls in 0.. {
            let bench = filled_bench.fork().under(profile);
            let mut client = slow_client(&bench);
            let ended = {
                let lookups = client.client.get_many(&mut client.lane, &list, |_, _| ());
                poll_some(lookups, polls)
            };
            for i in [0, 1, 2] {
                assert_eq!(client.get(&list[i]), Ok(before.get(&list[i]).cloned()), "{profile} after {polls} polls");
            }
            assert_eq!(answers(&mut client, &list), expected(&before, &list), "{profile} after {polls} polls");
            assert_eq!(client.apply(&Op::Remove(list[1].clone())), Ok(Observed::Outcome(Outcome::Removed)));
            let mut after = before.clone();
            after.remove(&list[1]);
            assert_eq!(bench.audit().unwrap(), after, "{profile} after {polls} polls");
            points += 1;
            if ended {
                break;
            }
        }
        println!("{profile}, {format}: dropped at {points} points");
        assert!(points > 4, "{profile}: {points}");
    }
}

fn answers(client: &mut TestClient, list: &[Vec<u8>]) -> Vec<Answer> {
    let mut answers = client.get_many(list);
    let mistake = answers.pop().expect("one answer for each key");
    assert!(matches!(mistake, Err(Error { kind: ErrorKind::KeyLength { .. }, .. })), "{mistake:?}");
    answers
}

/// Returns the answers of all keys but the last, which is invalid.
fn expected(now: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>, list: &[Vec<u8>]) -> Vec<Answer> {
    list[..list.len() - 1].iter().map(|key| Ok(now.get(key).cloned())).collect()
}

/// [R-DROP-1] [R-READ-8] Lookups of many keys follow a change that was dropped after any number of polls.
#[test]
fn many_lookups_follow_a_dropped_change() {
    for profile in Profile::ALL {
        let (filled_bench, filler, keys) = filled(Preset::Hardened, "fixed:8:8", Profile::Shm);
        drop(filler);
        let format = filled_bench.table.config().format;
        let mut list: Vec<_> = (0..keys.min(40)).map(|i| key(format, i)).collect();
        list.push(wrong_key(format));
        let before = filled_bench.audit().unwrap();
        let change = guira_rcuckoo::Change::Update(guira_rcuckoo::NewValue::Inline(&[0xee; 8]));
        for polls in 0.. {
            let bench = filled_bench.fork().under(profile);
            let mut client = slow_client(&bench);
            let ended = poll_some(client.client.change(&mut client.lane, &list[3], change), polls);
            let found = answers(&mut client, &list);
            block_on(client.client.settle(&mut client.lane)).unwrap();
            let now = bench.audit().unwrap();
            assert!(now == before || now[&list[3]] == [0xee; 8], "{profile} after {polls} polls");
            assert_eq!(found, expected(&now, &list), "{profile} after {polls} polls");
            if ended {
                break;
            }
        }
    }
}

/// An entry must point to an extent of its key: the damage that the tests above do is damage.
#[test]
fn an_entry_without_its_extent_is_damage() {
    let (bench, mut client, _) = filled(Preset::Hardened, "bytes:24", Profile::Shm);
    let victim = b"the victim".to_vec();
    let prepared = client.extents.prepare(&mut client.lane, &victim, &[7; 200]).expect("too long for a row");
    let first = bench.table.placement().rows(bench.table.placement().digest(&victim)).first;
    bench.plant_entry(first, &prepared);
    assert!(matches!(client.get(&victim), Err(Error { kind: ErrorKind::Corrupt { .. }, .. })));
    bench.store(Addr::main(prepared.offset()), prepared.words());
    assert_eq!(client.get(&victim), Ok(Some(vec![7; 200])));
}
