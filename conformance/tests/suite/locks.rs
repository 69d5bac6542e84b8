//! Behaviour at a lock that another client holds, word by word: tries, retries, the ordered phase, deadlines, poison;
//! and rows that do not verify, with and without a held lock. There is no thread and no clock: other clients act at
//! chosen steps of a lane.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use guira_conformance::{
    Bench, KeyFinder, Model, Observed, Op, Sampling, StepPoint, SteppedLane, TestClient, block_on,
};
use guira_fabric::memory::Ordering;
use guira_fabric::{Profile, Region, Traffic};
use guira_layout::{LockMask, OwnerId, Preset, RowId};
use guira_rcuckoo::{
    Change, ClientConfig, DamagedItem, Error, ErrorKind, Expected, NewValue, Outcome, destroy_table,
    free_unowned_locks, unowned_locks,
};

const SEED: u64 = 3;
const STRANGER: OwnerId = OwnerId(40);
const DEADLINE_NS: u64 = 5_000_000;
/// Posts of plain CAS that a changing neighbour may cause before it counts as a conflict.
const NEIGHBOUR_TRIES: u64 = 16;
/// Tries to take all words before they are taken one by one.
const TRIES_AT_ONCE: usize = 3;

/// A table with two keys: one whose rows need two lock words, and one whose rows need one.
struct Fixture {
    bench: Bench,
    /// A key whose rows are in two lock words, the first in the lower one, and apart.
    wide: [u8; 8],
    /// A key whose rows are under locks of one word.
    narrow: [u8; 8],
}

impl Fixture {
    fn new(preset: Preset, profile: Profile) -> Fixture {
        println!("locks: preset {preset}, profile {profile}, seed {SEED}");
        let bench = Bench::of_rows(preset, "fixed:8:8", 4096, profile, SEED);
        let mut keys = KeyFinder::new(&bench.table, 50_000);
        let word = |row| bench.table.locks().mask(bench.table.locks().lock_of(row)).word;
        let apart = |a: RowId, b: RowId| a.0 + 1 < b.0;
        let wide = keys.take_any(|a, b| word(a) < word(b) && apart(a, b)).expect("a key of two words").0;
        let narrow = keys.take_any(|a, b| word(a) == word(b) && apart(a, b)).expect("a key of one word").0;
        let mut client = bench.client(9);
        for key in [wide, narrow] {
            assert_eq!(client.put(&key, &key).map(|changed| changed.outcome), Ok(Outcome::Inserted));
        }
        Fixture { bench, wide, narrow }
    }

    /// Returns the locks of a key's rows, in address order.
    fn locks(&self, key: &[u8]) -> Vec<LockMask> {
        let pair = self.bench.table.placement().rows(self.bench.table.placement().digest(key));
        let mut locks =
            [pair.first, pair.second].map(|row| self.bench.table.locks().mask(self.bench.table.locks().lock_of(row)));
        locks.sort_unstable_by_key(|lock| lock.word);
        locks.to_vec()
    }

    fn client(&self, step: impl FnMut(StepPoint) + Send + 'static) -> TestClient<SteppedLane> {
        let lane = SteppedLane::new(&self.bench.region, Sampling::Ascending, Box::new(step));
        let config = ClientConfig::for_table(&self.bench.table);
        // On this lane time passes only while a client waits, and clients of preset `paper` would never wait.
        let config = ClientConfig { deadline_ns: DEADLINE_NS, backoff_ns: 500, ..config };
        self.bench.client_with(0, lane, config)
    }

    /// Returns a client in whose wait number `waits` the other client gives `lock` back.
    fn client_until(&self, lock: LockMask, waits: u32) -> TestClient<SteppedLane> {
        let (bench, mut pauses) = (self.bench.clone(), 0);
        self.client(move |moment| {
            pauses += u32::from(moment == StepPoint::Pause);
            if moment == StepPoint::Pause && pauses == waits {
                give_back(&bench, lock);
            }
        })
    }

    /// Takes `lock` on behalf of another client.
    fn take(&self, lock: LockMask) {
        let held = self.bench.table.locks().held(STRANGER, lock.mask);
        let before = self.bench.region.memory().device[lock.word as usize].fetch_add(held, Ordering::AcqRel);
        assert_eq!(before & lock.mask, 0, "the lock was free");
    }

    fn row_of(&self, key: &[u8]) -> RowId {
        self.bench.table.placement().rows(self.bench.table.placement().digest(key)).first
    }
}

fn give_back(bench: &Bench, lock: LockMask) {
    let addend = bench.table.locks().release_addend(STRANGER, lock.mask);
    bench.region.memory().device[lock.word as usize].fetch_add(addend, Ordering::AcqRel);
}

/// Returns every change that can meet a lock.
fn changes(key: [u8; 8]) -> [Op; 4] {
    let (key, value) = (key.to_vec(), vec![9; 8]);
    [
        Op::Put(key.clone(), value.clone()),
        Op::Insert(key.clone(), value.clone()),
        Op::Update(key.clone(), value),
        Op::Remove(key),
    ]
}

/// [R-LOCK-1] [R-LOCK-4] A lock that stays held: `Busy` with its owner at the deadline, and no bit is changed.
#[test]
fn a_held_lock_is_waited_for_until_the_deadline() {
    for preset in [Preset::Hardened, Preset::Tiny, Preset::Paper] {
        for profile in Profile::ALL {
            let fixture = Fixture::new(preset, profile);
            let taken = fixture.locks(&fixture.wide);
            // Inserts of `paper` lock the primary row only, which is in the lower word.
            for (i, op) in changes(fixture.wide).into_iter().enumerate() {
                let lock = taken[if preset == Preset::Paper { 0 } else { i % 2 }];
                fixture.take(lock);
                let mut client = fixture.client(|_| ());
                let before = fixture.bench.words();
                let error = client.apply(&op).unwrap_err();
                let Error { kind: ErrorKind::Busy { owner, lock: busy, waited_ms }, .. } = error else {
                    panic!("{error}")
                };
                assert_eq!(owner, (preset != Preset::Paper).then_some(STRANGER), "{op:x?}");
                assert_eq!(fixture.bench.table.locks().mask(busy), lock, "{op:x?}");
                assert!((DEADLINE_NS / 1_000_000..DEADLINE_NS / 500_000).contains(&waited_ms), "{waited_ms} ms");
                assert!(before == fixture.bench.words(), "{op:x?} changed something");
                drop(client);
                free_slot(&fixture.bench);
                give_back(&fixture.bench, lock);
                fixture.bench.audit().unwrap();
            }
        }
    }
}

/// Releases slot 0 for the next client.
fn free_slot(bench: &Bench) {
    let mut lane = bench.region.lane();
    block_on(guira_rcuckoo::release_slot(&mut lane, &bench.table, OwnerId::of_slot(0))).expect("the heap swaps");
}

/// [R-LOCK-4] Retries carry only atomics: rows are read with the first try, and once more when all locks are held.
#[test]
fn retries_carry_only_atomics() {
    for profile in Profile::ALL {
        let fixture = Fixture::new(Preset::Hardened, profile);
        for given_back_at in [1, 2, 3, 5, 20] {
            for key in [fixture.wide, fixture.narrow] {
                let lock = *fixture.locks(&key).last().unwrap();
                fixture.take(lock);
                let mut client = fixture.client_until(lock, given_back_at);
                let swap = Change::Swap(Expected::Value(&key), NewValue::Inline(&key));
                let (changed, traffic) = client.traffic_of(|client| client.change(&key, swap).unwrap());
                assert_eq!(changed.outcome, Outcome::Replaced);
                let Traffic { verbs, retries, .. } = traffic;
                assert_eq!(verbs.reads, 2 + 2, "{profile}, lock free at wait {given_back_at}: rows are read twice");
                let record = if profile == Profile::Shm { 2 } else { 0 };
                assert_eq!(verbs.writes, 1 + record, "{profile}: one row");
                assert!(u64::from(given_back_at) <= retries, "{profile}: {retries} retries");
                drop(client);
                free_slot(&fixture.bench);
                fixture.bench.audit().unwrap();
            }
        }
    }
}

/// [R-LOCK-4] [R-LOCK-10] Retries of a put or update carry one READ, of the row of its key, and the try that wins needs
/// no other: the change takes one round trip less.
#[test]
fn retries_of_writes_read_the_row_of_their_key() {
    for profile in Profile::ALL {
        for given_back_at in [1, 2, 3, 5, 20] {
            let fixture = Fixture::new(Preset::Hardened, profile);
            for key in [fixture.wide, fixture.narrow] {
                let lock = *fixture.locks(&key).last().unwrap();
                fixture.take(lock);
                let mut client = fixture.client_until(lock, given_back_at);
                let update = Change::Update(NewValue::Inline(&key));
                let (changed, traffic) = client.traffic_of(|client| client.change(&key, update).unwrap());
                assert_eq!((changed.outcome, changed.is_overwritten), (Outcome::Replaced, false));
                let reads = 2 + u64::from(given_back_at);
                assert_eq!(traffic.verbs.reads, reads, "{profile}, lock free at wait {given_back_at}");
                drop(client);
                free_slot(&fixture.bench);
                fixture.bench.audit().unwrap();
            }
        }
    }
}

/// [R-LOCK-3] Three tries to take all words, each of which releases what it won; then one word after the other, lowest
/// first, holding.
#[test]
fn after_three_failures_words_are_taken_in_order() {
    for profile in Profile::ALL {
        let fixture = Fixture::new(Preset::Hardened, profile);
        let locks = fixture.locks(&fixture.wide);
        for (taken, other) in [(locks[1], locks[0]), (locks[0], locks[1])] {
            fixture.take(taken);
            // This records whether the free word is held at each wait.
            let holds = Arc::new(Mutex::new(Vec::new()));
            let (bench, seen) = (fixture.bench.clone(), Arc::clone(&holds));
            let mut client = fixture.client(move |moment| {
                if moment == StepPoint::Pause {
                    let word = bench.region.memory().device[other.word as usize].load(Ordering::Acquire);
                    seen.lock().unwrap().push(word & other.mask != 0);
                }
            });
            let busy = client.apply(&Op::Remove(fixture.wide.to_vec()));
            assert!(matches!(busy, Err(Error { kind: ErrorKind::Busy { owner: Some(STRANGER), .. }, .. })), "{busy:?}");
            let holds = holds.lock().unwrap();
            assert!(holds.len() > TRIES_AT_ONCE + 1, "{profile}: {} waits", holds.len());
            assert!(
                holds[..TRIES_AT_ONCE].iter().all(|held| !held),
                "{profile}: what was won is given back: {holds:?}"
            );
            let lower_is_free = other.word < taken.word;
            let after = &holds[TRIES_AT_ONCE..];
            assert!(after.iter().all(|held| *held == lower_is_free), "{profile}: lowest first, holding: {holds:?}");
            drop(client);
            free_slot(&fixture.bench);
            give_back(&fixture.bench, taken);
            fixture.bench.audit().unwrap();
        }
    }
}

/// Returns the lock next to `lock` in its word.
fn neighbour(fixture: &Fixture, lock: LockMask) -> LockMask {
    let layout = fixture.bench.table.locks();
    let mut of_word = (0..layout.locks()).map(|id| layout.mask(guira_layout::LockId(id)));
    let used: Vec<_> = fixture.locks(&fixture.narrow);
    of_word
        .find(|other| other.word == lock.word && used.iter().all(|used| used.mask != other.mask))
        .expect("a neighbour")
}

/// [R-LOCK-6] Without masked CAS a held neighbour costs one more post, with the READs behind the CAS: what the
/// operation builds on was sampled behind the CAS that won.
#[test]
fn a_neighbour_makes_a_plain_cas_try_again_with_its_reads() {
    let fixture = Fixture::new(Preset::Hardened, Profile::Rxe);
    let key = fixture.narrow;
    let lock = neighbour(&fixture, fixture.locks(&key)[0]);
    fixture.take(lock);
    let mut keys = KeyFinder::new(&fixture.bench.table, 200_000);
    let row = fixture.row_of(&key);
    let (newcomer, _, _) = keys.take_any(|a, b| a == row && b != row).expect("a key of this row");
    let (bench, mut verbs) = (fixture.bench.clone(), 0);
    let mut client = fixture.client(move |moment| {
        verbs += u32::from(moment == StepPoint::Verb);
        // This is after the first post (CAS and two READs), before the second: the samples are stale now.
        if moment == StepPoint::Verb && verbs == 4 {
            bench.fill_row(row, &[(&newcomer, &[5; 8])]);
        }
    });
    let update = Change::Update(NewValue::Inline(&[9; 8]));
    let (changed, traffic) = client.traffic_of(|client| client.change(&key, update).unwrap());
    assert_eq!(changed.outcome, Outcome::Replaced);
    assert_eq!((traffic.round_trips, traffic.verbs.swaps, traffic.verbs.reads), (3, 2, 4), "{traffic:?}");
    give_back(&fixture.bench, lock);
    let contents = fixture.bench.audit().unwrap();
    assert_eq!(contents.get(&newcomer[..]), Some(&vec![5; 8]), "a change between the posts is not undone");
    assert_eq!(contents.get(&key[..]), Some(&vec![9; 8]));
}

/// [R-LOCK-6] [R-LOCK-4] A neighbour that changes before each CAS: 16 posts are a conflict, and the deadline holds.
#[test]
fn constant_changes_by_a_neighbour_end_in_busy() {
    let fixture = Fixture::new(Preset::Hardened, Profile::Rxe);
    let key = fixture.narrow;
    let before = Model(fixture.bench.audit().unwrap());
    let lock = neighbour(&fixture, fixture.locks(&key)[0]);
    let (bench, pauses) = (fixture.bench.clone(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&pauses);
    let mut client = fixture.client(move |moment| match moment {
        StepPoint::Pause => _ = counted.fetch_add(1, Ordering::Relaxed),
        StepPoint::Word => {}
        StepPoint::Verb => {
            // There is another owner each time, so that no word is ever what it was.
            let cell = &bench.region.memory().device[lock.word as usize];
            let change = bench.table.locks().held(OwnerId(1), lock.mask);
            cell.fetch_add(change, Ordering::AcqRel);
        }
    });
    let (result, traffic) = client.traffic_of(|client| client.change(&key, Change::Remove));
    assert!(matches!(result, Err(Error { kind: ErrorKind::Busy { .. }, .. })), "{result:?}");
    let tries = pauses.load(Ordering::Relaxed);
    assert!(traffic.verbs.swaps.is_multiple_of(NEIGHBOUR_TRIES), "{traffic:?}");
    assert!(traffic.verbs.swaps >= NEIGHBOUR_TRIES * tries, "{tries} waits, {traffic:?}");
    drop(client);
    let cell = &fixture.bench.region.memory().device[lock.word as usize];
    let rest = cell.load(Ordering::Acquire);
    assert_eq!(rest & !lock.mask, 0, "[R-LOCK-2] only the neighbour's lock is left");
    cell.store(0, Ordering::Release);
    free_slot(&fixture.bench);
    assert_eq!(fixture.bench.audit(), Ok(before.0), "nothing changed");
}

/// [R-DESTROY-1] An operation that meets the poison of a destroyed table reports it; with 1-bit locks, where poison
/// looks like a held lock, at the deadline.
#[test]
fn a_poisoned_lock_means_a_destroyed_table() {
    for preset in Preset::ALL {
        for profile in Profile::ALL {
            let fixture = Fixture::new(preset, profile);
            let mut client = fixture.client(|_| ());
            let mut lane = fixture.bench.region.lane();
            block_on(destroy_table(&mut lane, &fixture.bench.table)).unwrap();
            let before = fixture.bench.words();
            for op in changes(fixture.wide).iter().chain(&changes(fixture.narrow)) {
                let error = client.apply(op).unwrap_err();
                assert!(matches!(error.kind, ErrorKind::Destroyed), "{preset} {profile} {op:x?}: {error}");
            }
            assert!(before == fixture.bench.words(), "{preset} {profile}: something changed");
        }
    }
}

/// [R-LOCK-9] A lock that names no client of the table is damage at once, for changes and for reads of a torn row; it
/// is freed on request, and its neighbours in the word stay as they are.
#[test]
fn an_unowned_lock_is_damage_at_once_and_is_freed() {
    for preset in [Preset::Hardened, Preset::Tiny] {
        for profile in Profile::ALL {
            let fixture = Fixture::new(preset, profile);
            let layout = *fixture.bench.table.locks();
            let beyond = OwnerId(fixture.bench.table.config().max_clients + 1);
            let row = fixture.row_of(&fixture.narrow);
            let lock = layout.lock_of(row);
            let mask = layout.mask(lock);
            let cell = &fixture.bench.region.memory().device[mask.word as usize];
            for value in [layout.held(beyond, mask.mask), mask.mask] {
                let pauses = Arc::new(AtomicU64::new(0));
                let counted = Arc::clone(&pauses);
                cell.store(value, Ordering::Release);
                let mut client = fixture.client(move |moment| {
                    _ = counted.fetch_add(u64::from(moment == StepPoint::Pause), Ordering::AcqRel)
                });
                let before = fixture.bench.words();
                let damaged = |error: &Error| error.kind == ErrorKind::Corrupt { item: DamagedItem::Lock(lock) };
                for op in changes(fixture.narrow) {
                    let error = client.apply(&op).unwrap_err();
                    assert!(damaged(&error), "{preset} {profile} {op:x?}: {error}");
                }
                assert_eq!(client.get(&fixture.narrow), Ok(Some(fixture.narrow.to_vec())), "the row is whole");
                let whole = fixture.bench.row_words(row);
                tear(&fixture, &fixture.narrow);
                let error = client.get(&fixture.narrow).unwrap_err();
                assert!(damaged(&error), "{preset} {profile}: {error}");
                fixture.bench.store(fixture.bench.table.geometry().row(row), &whole);
                assert_eq!(pauses.load(Ordering::Acquire), 0, "{preset} {profile}: it does not wait");
                assert!(before == fixture.bench.words(), "{preset} {profile}: something changed");
                // The neighbours are held.
                let neighbours = layout.held(STRANGER, layout.poison() & !mask.mask);
                cell.store(value | neighbours, Ordering::Release);
                let mut lane = fixture.bench.region.lane();
                let found = block_on(unowned_locks(&mut lane, &fixture.bench.table)).unwrap();
                assert_eq!(found, [lock], "{preset} {profile}");
                let freed = block_on(free_unowned_locks(&mut lane, &fixture.bench.table, &found)).unwrap();
                assert_eq!((freed, cell.load(Ordering::Acquire)), (vec![lock], neighbours), "{preset} {profile}");
                cell.store(0, Ordering::Release);
                let put = client.apply(&Op::Put(fixture.narrow.to_vec(), fixture.narrow.to_vec()));
                assert_eq!(put, Ok(Observed::Outcome(Outcome::Replaced)), "{preset} {profile}");
                drop(client);
                free_slot(&fixture.bench);
            }
        }
    }
}

/// [R-LOCK-9] The poison of a destroyed table is not damage, and is not removed.
#[test]
fn poison_of_a_destroyed_table_is_not_freed() {
    let fixture = Fixture::new(Preset::Hardened, Profile::Shm);
    let mut lane = fixture.bench.region.lane();
    block_on(destroy_table(&mut lane, &fixture.bench.table)).unwrap();
    let before = fixture.bench.words();
    assert_eq!(block_on(unowned_locks(&mut lane, &fixture.bench.table)), Ok(Vec::new()));
    let asked = [fixture.bench.table.locks().lock_of(RowId(0))];
    assert_eq!(block_on(free_unowned_locks(&mut lane, &fixture.bench.table, &asked)), Ok(Vec::new()));
    assert!(before == fixture.bench.words(), "something changed");
}

/// Tears the primary row of `key`, which holds it: another entry, with the old trailer.
fn tear(fixture: &Fixture, key: &[u8]) -> RowId {
    let row = fixture.row_of(key);
    let mut words = fixture.bench.row_words(row);
    words[fixture.bench.table.rows().entry_words()] ^= 0x5555;
    fixture.bench.store(fixture.bench.table.geometry().row(row), &words);
    row
}

/// [R-READ-5] A torn row that is not being written: `Corrupt`, after a bounded number of samples; for changes too, and
/// nothing changes.
#[test]
fn a_torn_row_with_a_free_lock_is_corrupt() {
    for profile in Profile::ALL {
        let fixture = Fixture::new(Preset::Hardened, profile);
        let mut client = fixture.client(|_| ());
        let samples = u64::from(ClientConfig::for_table(&fixture.bench.table).row_samples);
        let row = tear(&fixture, &fixture.narrow);
        let before = fixture.bench.words();
        let (found, traffic) = client.traffic_of(|client| client.get(&fixture.narrow));
        let corrupt = |error: &Error| error.kind == ErrorKind::Corrupt { item: DamagedItem::Row(row) };
        assert!(corrupt(found.as_ref().unwrap_err()), "{profile}: {found:?}");
        // There are 16 samples, 17 more with a READ of the lock each, and the last one; a sample takes one or two
        // posts. Reading through a record, which finds the lock free, takes 3 posts, and reading the state of the table
        // one. // [R-READ-9] [R-DESTROY-2]
        let most = 2 * samples + (samples + 1) * 3 + 1 + 3 + 1;
        assert!(traffic.round_trips <= most, "{profile}: {} round trips", traffic.round_trips);
        for op in changes(fixture.narrow) {
            let error = client.apply(&op).unwrap_err();
            assert!(corrupt(&error), "{profile} {op:x?}: {error}");
            assert!(before == fixture.bench.words(), "{profile} {op:x?} changed something");
        }
    }
}

/// [R-READ-5] A torn row whose lock is held: readers wait, and name the holder at the deadline; once it is whole, they
/// read it.
#[test]
fn a_torn_row_with_a_held_lock_is_busy() {
    for preset in Preset::ALL {
        for profile in Profile::ALL {
            let fixture = Fixture::new(preset, profile);
            let whole = fixture.bench.row_words(fixture.row_of(&fixture.narrow));
            let row = tear(&fixture, &fixture.narrow);
            let lock = fixture.bench.table.locks().mask(fixture.bench.table.locks().lock_of(row));
            fixture.take(lock);
            let mut client = fixture.client(|_| ());
            let error = client.get(&fixture.narrow).unwrap_err();
            let Error { kind: ErrorKind::Busy { owner, lock: busy, waited_ms }, .. } = error else {
                panic!("{preset} {profile}: {error}")
            };
            assert_eq!(owner, (preset != Preset::Paper).then_some(STRANGER));
            assert_eq!(fixture.bench.table.locks().mask(busy), lock);
            assert!(waited_ms >= DEADLINE_NS / 1_000_000, "{waited_ms} ms");
            drop(client);
            free_slot(&fixture.bench);
            let (bench, mut pauses) = (fixture.bench.clone(), 0);
            let mut client = fixture.client(move |moment| {
                pauses += u32::from(moment == StepPoint::Pause);
                if moment == StepPoint::Pause && pauses == 10 {
                    bench.store(bench.table.geometry().row(row), &whole);
                    give_back(&bench, lock);
                }
            });
            let found = client.get(&fixture.narrow);
            assert_eq!(found, Ok(Some(fixture.narrow.to_vec())), "{preset} {profile}");
        }
    }
}

/// [R-READ-1] A hit needs only the row that holds the key: the other one may be torn. A miss needs both.
#[test]
fn a_hit_does_not_need_the_other_row() {
    for profile in Profile::ALL {
        let fixture = Fixture::new(Preset::Hardened, profile);
        let pair = fixture.bench.table.placement().rows(fixture.bench.table.placement().digest(&fixture.narrow));
        let addr = fixture.bench.table.geometry().row(pair.second);
        fixture.bench.store(addr, &[0xabcd]);
        let mut client = fixture.client(|_| ());
        assert_eq!(client.get(&fixture.narrow), Ok(Some(fixture.narrow.to_vec())), "{profile}");
        let mut keys = KeyFinder::new(&fixture.bench.table, 100_000);
        let mut other = || keys.take_any(|a, b| a == pair.second || b == pair.second).expect("a key of this row").0;
        let missing = [other(), other()].into_iter().find(|key| *key != fixture.narrow && *key != fixture.wide);
        let error = client.get(&missing.unwrap()).unwrap_err();
        assert!(
            matches!(error.kind, ErrorKind::Corrupt { item: DamagedItem::Row(at) } if at == pair.second),
            "{profile}: {error}"
        );
    }
}

/// [R-LOCK-7] [R-UPDATE-1] A change of an inline key verifies its row alone, unless its locks are taken by plain CAS; a
/// missing key has both rows verified.
#[test]
fn only_a_miss_verifies_the_other_row() {
    for profile in Profile::ALL {
        let fixture = Fixture::new(Preset::Hardened, profile);
        let second =
            fixture.bench.table.placement().rows(fixture.bench.table.placement().digest(&fixture.narrow)).second;
        let torn = [0xabcd; 3];
        fixture.bench.store(fixture.bench.table.geometry().row(second), &torn);
        let mut client = fixture.client(|_| ());
        let corrupt = Err(Some(DamagedItem::Row(second)));
        let mut change = |op: &Op| {
            let damaged =
                |error| if let Error { kind: ErrorKind::Corrupt { item }, .. } = error { Some(item) } else { None };
            client.apply(op).map_err(damaged)
        };
        let (key, value) = (fixture.narrow.to_vec(), fixture.narrow.to_vec());
        for (op, outcome) in [
            (Op::Insert(key.clone(), vec![1; 8]), Outcome::Exists),
            (Op::Swap(key.clone(), vec![1; 8], vec![2; 8]), Outcome::Different),
            (Op::Swap(key.clone(), value, vec![2; 8]), Outcome::Replaced),
            (Op::Update(key.clone(), vec![3; 8]), Outcome::Replaced),
            (Op::Put(key.clone(), vec![4; 8]), Outcome::Replaced),
            (Op::Remove(key.clone()), Outcome::Removed),
        ] {
            let expected = if profile == Profile::Rxe { corrupt.clone() } else { Ok(Observed::Outcome(outcome)) };
            assert_eq!(change(&op), expected, "{profile} {op:x?}");
        }
        if profile == Profile::Rxe {
            continue;
        }
        for op in [Op::Insert(key.clone(), vec![1; 8]), Op::Update(key.clone(), vec![1; 8]), Op::Remove(key)] {
            assert_eq!(change(&op), corrupt, "{profile} {op:x?}");
        }
        assert_eq!(fixture.bench.row_words(second)[..3], torn, "what is damaged stays as it is");
    }
}

/// [R-ROW-1] Any flipped bit of a row gives `Corrupt` with that row, and never a wrong value, a wrong miss, or a
/// change.
#[test]
fn every_flipped_bit_of_a_row_is_noticed() {
    for profile in Profile::ALL {
        for preset in Preset::ALL {
            let fixture = Fixture::new(preset, profile);
            let mut client = fixture.client(|_| ());
            let row = fixture.row_of(&fixture.narrow);
            let addr = fixture.bench.table.geometry().row(row);
            let whole = fixture.bench.row_words(row);
            for bit in 0..whole.len() * 64 {
                let mut words = whole.clone();
                words[bit / 64] ^= 1 << (bit % 64);
                fixture.bench.store(addr, &words);
                let seen = client.get(&fixture.narrow);
                let corrupt = |error: &Error| error.kind == ErrorKind::Corrupt { item: DamagedItem::Row(row) };
                assert!(seen.as_ref().is_err_and(corrupt), "{preset} {profile} bit {bit}: {seen:?}");
                let put = client.apply(&Op::Put(fixture.narrow.to_vec(), vec![8; 8]));
                assert!(put.as_ref().is_err_and(corrupt), "{preset} {profile} bit {bit}: {put:?}");
                assert_eq!(fixture.bench.row_words(row), words, "{preset} {profile} bit {bit}: the row was changed");
            }
            fixture.bench.store(addr, &whole);
            let get = Op::Get(fixture.narrow.to_vec());
            assert_eq!(client.apply(&get), Ok(Observed::Value(Some(fixture.narrow.to_vec()))));
            fixture.bench.audit().unwrap();
        }
    }
}
