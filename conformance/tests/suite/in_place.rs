//! Changes where batches execute in place equal those of every other fabric: the same WRITEs and atomics in as many
//! batches, and the same bytes in memory afterwards, inline or in extents.

use guira_conformance::{Bench, Observed, Op, TestClient};
use guira_fabric::{Addr, Caps, Profile, Region, SplitMix64, Traffic};
use guira_layout::Preset;
use guira_rcuckoo::{Begun, Change, Continuation, Expected, NewValue, Outcome, Token, TryGet};

const SEED: u64 = 11;
const STEPS: u64 = 3_000;
/// Few keys, so that no row fills up: paths are found by other means elsewhere.
const KEYS: u64 = 40;
/// Steps between two comparisons of all bytes.
const WORDS_EVERY: u64 = 16;
/// Bytes of values: in the row, and in extents of three classes.
const VALUES: [usize; 5] = [3, 8, 60, 61, 500];

/// Creates a table in place, and an equal one through lanes with the same promises, except that they do not execute in
/// place.
fn twins() -> [(Bench, TestClient); 2] {
    [true, false].map(|local| {
        let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 512, Profile::Shm, SEED);
        let lane = bench.region.with_caps(Caps { local, ..Profile::Shm.caps() }).lane();
        let client = bench.client(0).through(lane);
        (bench, client)
    })
}

/// Returns the traffic that both must have in common. Neighbouring rows are one READ elsewhere, so READs are compared
/// by their bytes.
fn comparable(traffic: Traffic) -> (u64, u64, u64, u64, u64, u64) {
    let verbs = traffic.verbs;
    (traffic.round_trips, verbs.writes, verbs.swaps, verbs.adds, traffic.bytes_in, traffic.bytes_out)
}

/// Makes one change of `key`, by its kind; `token` is of an earlier state of the key.
fn act(client: &mut TestClient, kind: u64, key: &[u8], token: Option<Token>, values: [&[u8]; 2]) -> Option<Observed> {
    let [value, expected] = values.map(<[u8]>::to_vec);
    let key = key.to_vec();
    let op = match (kind, token) {
        (0, _) => Op::Put(key, value),
        (1, _) => Op::Insert(key, value),
        (2, _) => Op::Update(key, value),
        (3, _) => Op::Remove(key),
        (4, _) => Op::Swap(key, expected, value),
        (5, _) => Op::RemoveIf(key, expected),
        (8, _) => Op::Add(key, [3; 8]),
        (6, Some(token)) => return client.swap(&key, Expected::Unchanged(token), &value).ok().map(Observed::Outcome),
        (_, Some(token)) => return client.remove_if(&key, Expected::Unchanged(token)).ok().map(Observed::Outcome),
        (_, None) => Op::Get(key),
    };
    client.apply(&op).ok()
}

/// [R-UPDATE-1] [R-UPDATE-2] [R-CAS-1] [R-CAS-2] [R-COMMIT-1] [R-EXTENT-1] [R-EXTENT-4] [R-LOCK-3]
#[test]
fn a_change_in_place_equals_that_of_every_other_fabric() {
    println!("seed {SEED}, {STEPS} steps, {KEYS} keys");
    let mut twins = twins();
    let mut rng = SplitMix64(SEED);
    let mut tokens: Vec<Option<Token>> = vec![None; KEYS as usize];
    let mut outcomes = [0; 6];
    for step in 0..STEPS {
        let (number, kind, reads) = (rng.below(KEYS), rng.below(9), rng.below(2) == 0);
        let value = |rng: &mut SplitMix64| vec![rng.below(2) as u8; VALUES[rng.below(VALUES.len() as u64) as usize]];
        let (value, expected) = (value(&mut rng), value(&mut rng));
        let (key, compares) = (number.to_le_bytes(), step % WORDS_EVERY == 0);
        let seen = twins.each_mut().map(|(bench, client)| {
            let found = client.get_versioned(&key).unwrap();
            let expected = found.as_ref().filter(|_| reads).map_or(&expected, |(value, _)| value).clone();
            let token = found.map(|(_, token)| token).filter(|_| reads).or(tokens[number as usize]);
            let act = |client: &mut TestClient| act(client, kind, &key, token, [&value, &expected]);
            let (seen, traffic) = client.traffic_of(act);
            let is_get = matches!(seen, Some(Observed::Value(_)));
            (token, seen, (!is_get).then(|| comparable(traffic)), compares.then(|| bench.words()))
        });
        let [(token, seen, traffic, words), (_, other, other_traffic, other_words)] = seen;
        println!("step {step}: kind {kind}, key {number}, {} B: {seen:?} {traffic:?}", value.len());
        assert!(seen.is_some(), "no other client is in the way");
        assert_eq!((&seen, traffic), (&other, other_traffic), "step {step}");
        assert!(words == other_words, "step {step}: the bytes differ");
        tokens[number as usize] = token;
        if let Some(Observed::Outcome(outcome)) = other {
            outcomes[outcome as usize] += 1;
        }
    }
    println!("inserted, replaced, removed, exists, missing, different: {outcomes:?}");
    assert!(outcomes.iter().all(|times| *times > 50), "every outcome came up: {outcomes:?}");
    let [(place, _), (other, _)] = &twins;
    assert_eq!(place.audit(), other.audit());
}

/// [R-EXTENT-1] A change whose extent was written in place equals one that writes it in its first batch: the same
/// outcome, traffic and bytes in memory, also where it changes nothing, or cannot be done in place.
#[test]
fn an_extent_written_in_place_equals_one_that_is_written_by_the_change() {
    let mut twins = [true, false].map(|written| {
        let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 512, Profile::Shm, SEED);
        let client = bench.client(0);
        (written, bench, client)
    });
    let outcomes = [Outcome::Missing, Outcome::Inserted, Outcome::Replaced, Outcome::Exists];
    let lengths = [25, 100, 1_024, 2_030, 2_040, 2_048, 2_100, 70_001];
    for (bytes, outcome) in lengths.into_iter().flat_map(|bytes| outcomes.map(|outcome| (bytes, outcome))) {
        let key = format!("a key of {bytes}").into_bytes();
        let seen = twins.each_mut().map(|(written, bench, client)| {
            let value = vec![outcome as u8; bytes];
            let prepared = client.extents.prepare(&mut client.lane, &key, &value).expect("it needs an extent");
            let (begun, traffic) = client.traffic_of(|client| {
                let value = if *written { client.write(&key, &value, &prepared) } else { prepared.value() };
                let change = match outcome {
                    Outcome::Missing => Change::Update(value),
                    Outcome::Exists => Change::Insert(value),
                    _ => Change::Put(value),
                };
                client.begin(&key, &change)
            });
            let Begun::Done(changed) = begun else { panic!("no other client is in the way: {begun:?}") };
            if !changed.took_effect() {
                client.extents.give_back(prepared);
            }
            (changed, comparable(traffic), bench.words())
        });
        assert_eq!(seen[0].0.outcome, outcome);
        assert!(seen[0] == seen[1], "{bytes} B: {:?}, {:?}", (seen[0].0, seen[0].1), (seen[1].0, seen[1].1));
    }
}

/// Looks `key` up without a future, and appends its value to what is in the buffer. `None` if that has to wait: then the
/// buffer must be as it was.
fn look_up_in_place(client: &mut TestClient, key: &[u8]) -> Option<Option<Vec<u8>>> {
    const BEFORE: &[u8] = b"before";
    let mut into = BEFORE.to_vec();
    let found = client.client.try_get(&mut client.lane, key, &mut into);
    let value = into.strip_prefix(BEFORE).expect("what was there stays");
    match found {
        TryGet::Done(Some(_)) => Some(Some(value.to_vec())),
        TryGet::Done(None) => Some(None),
        TryGet::MustWait => {
            assert_eq!(value, b"", "nothing was settled");
            None
        }
    }
}

/// [R-READ-1] [R-READ-6] [R-READ-7] A lookup in place finds what every other lookup finds, by the same round trips,
/// READs and bytes: in rows, and in extents of one block of the checksum and of several.
#[test]
fn a_lookup_in_place_equals_that_of_every_other_fabric() {
    let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 512, Profile::Shm, SEED);
    let mut client = bench.client(0);
    let lengths = [0, 1, 8, 60, 61, 500, 2_030, 2_040, 2_048, 2_100, 4_096, 70_001];
    for (i, bytes) in lengths.into_iter().enumerate() {
        for key_bytes in [8, 13, 100, 2_060] {
            let key: Vec<u8> = (0..key_bytes).map(|at| (at * 7 + i) as u8).collect();
            let value: Vec<u8> = (0..bytes).map(|at| (at >> 3 ^ at ^ i) as u8).collect();
            assert_eq!(client.apply(&Op::Put(key.clone(), value.clone())), Ok(Observed::Outcome(Outcome::Inserted)));
            let (answer, traffic) = client.traffic_of(|client| client.get(&key).unwrap());
            let in_place = client.traffic_of(|client| look_up_in_place(client, &key));
            assert!(answer.as_ref() == Some(&value), "a key of {key_bytes} B, a value of {bytes} B");
            assert!(in_place == (Some(answer), traffic), "a key of {key_bytes} B, a value of {bytes} B: {traffic:?}");
        }
    }
    let (answer, traffic) = client.traffic_of(|client| client.get(b"nowhere").unwrap());
    let in_place = client.traffic_of(|client| look_up_in_place(client, b"nowhere"));
    assert_eq!((answer.clone(), in_place), (None, (Some(answer), traffic)));
}

/// [R-READ-6] In place, an extent that does not verify, one of another generation, and one of another key with the same
/// digest settle nothing, and nothing of them reaches the caller.
#[test]
fn a_lookup_in_place_returns_nothing_of_an_extent_that_does_not_match() {
    const VALUE_BYTES: usize = 5_000;
    let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 512, Profile::Shm, SEED);
    let mut client = bench.client(0);
    let (key, other) = (b"the key".to_vec(), b"another");
    let prepared = client.extents.prepare(&mut client.lane, &key, &[9; VALUE_BYTES]).expect("it needs an extent");
    assert_eq!(client.change(&key, Change::Put(prepared.value())).unwrap().outcome, Outcome::Inserted);
    let words = bench.words_at(Addr::main(prepared.offset()), prepared.words().len());
    for at in (0..words.len()).step_by(7).chain([0, 1, 2, 3, words.len() - 1]) {
        let addr = Addr::main(prepared.offset()).add_words(at as u64);
        bench.store(addr, &[words[at] ^ 1 << (at % 64)]);
        assert_eq!(look_up_in_place(&mut client, &key), None, "word {at} of {}", words.len());
        bench.store(addr, &[words[at]]);
    }
    assert_eq!(look_up_in_place(&mut client, &key), Some(Some(vec![9; VALUE_BYTES])));
    let digest = bench.table.placement().digest(other);
    let twin = client.extents.prepare_as(
        &mut client.lane,
        digest,
        b"another".map(|byte| byte ^ 1).as_slice(),
        &[8; VALUE_BYTES],
    );
    bench.plant(bench.table.placement().rows(digest).first, &twin);
    assert_eq!(look_up_in_place(&mut client, other), None, "it is for the lookup that skips this extent");
    assert_eq!(client.get(other).unwrap(), None);
}

/// Begins a put of a value in an extent that has to be handed over with its extent written, because its key's rows are
/// full.
fn handed_over(bench: &Bench, client: &mut TestClient) -> (Vec<u8>, Continuation) {
    for i in 0..1_000_u64 {
        let key = i.to_le_bytes().to_vec();
        let prepared = client.extents.prepare(&mut bench.region.lane(), &key, &[1; 60]).expect("it needs an extent");
        match client.begin(&key, &Change::Put(prepared.value())) {
            Begun::Done(changed) => assert_eq!(changed.outcome, Outcome::Inserted),
            Begun::Continue(rest) => {
                let words = bench.words_at(Addr::main(prepared.offset()), prepared.words().len());
                assert_eq!(words, prepared.words(), "it is written in the batch that locks");
                return (key, rest);
            }
            Begun::Failed(error) => panic!("{error}"),
        }
    }
    panic!("no put needs a path");
}

/// [R-EXTENT-1] A change that was begun with another extent writes the extent it is finished with.
#[test]
fn a_continuation_with_another_extent_starts_over() {
    let bench = Bench::of_rows(Preset::Tiny, "bytes:24", 64, Profile::Shm, SEED);
    let mut client = bench.client(0);
    let (key, rest) = handed_over(&bench, &mut client);
    let other = client.extents.prepare(&mut bench.region.lane(), &key, &[2; 60]).expect("it needs an extent");
    let change = Change::Put(other.value());
    let changed = client.finish(&key, change, rest).unwrap();
    assert_eq!(changed.outcome, Outcome::Inserted);
    assert_eq!(client.get(&key).unwrap(), Some(vec![2; 60]));
    bench.audit().unwrap();
}

/// [R-EXTENT-1] [R-DROP-1] A dropped continuation leaves no lock behind, and no entry that points to its extent.
#[test]
fn a_dropped_continuation_with_an_extent_changes_nothing() {
    let bench = Bench::of_rows(Preset::Tiny, "bytes:24", 64, Profile::Shm, SEED);
    let mut client = bench.client(0);
    let (key, _) = handed_over(&bench, &mut client);
    assert!(!bench.lock_words().is_empty(), "its locks are held");
    assert_eq!(client.get(&key).unwrap(), None);
    assert_eq!(bench.lock_words(), [], "the next operation gave them back");
    let update = Change::Update(NewValue::Inline(b"3"));
    assert_eq!(client.change(&key, update).unwrap().outcome, Outcome::Missing);
    bench.audit().unwrap();
}
