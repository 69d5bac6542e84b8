//! Destroyed tables: every lookup and scan that begins afterwards returns `Destroyed`, under every preset and profile,
//! within a bounded number of round trips, also for rows that were being written.

use std::sync::atomic::{AtomicU32, Ordering as Std};
use std::sync::{Arc, Mutex};

use guira_check::{CheckError, table_stats};
use guira_conformance::{Actors, Bench, Op, Sampling, StepPoint, SteppedLane, TestClient, block_on};
use guira_fabric::memory::{AtomicU64, Ordering};
use guira_fabric::{FenceProof, Lane, Profile, Region, Traffic};
use guira_layout::{DESTROYED_TRAILER, LockMask, OwnerId, Preset, RowId, STATE_WORD, TableState};
use guira_rcuckoo::{
    Change, ClientConfig, Error, ErrorKind, NewValue, Reader, RowItems, SlotClient, destroy_table, free_unowned_locks,
    read_slot, recover,
};

const SEED: u64 = 11;
const KEYS: u64 = 100;
const ROWS: u64 = 256;
const STRANGER: OwnerId = OwnerId(40);
/// Most round trips of a lookup, which samples its rows, samples them again, and reads the superblock; in place each
/// row takes a trip of its own.
const MOST_TRIPS: u64 = 6;

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// Creates a table with [`KEYS`] keys, every seventh of them in an extent if the format has any, and a client in slot
/// 0.
fn filled(preset: Preset, format: &str, profile: Profile) -> (Bench, TestClient) {
    println!("destroyed: preset {preset}, format {format}, profile {profile}, seed {SEED}");
    let bench = Bench::of_rows(preset, format, ROWS, profile, SEED);
    let mut client = bench.client(0);
    for i in 0..KEYS {
        let bytes = if format == "bytes:64" && i % 7 == 0 { 500 } else { 8 };
        client.apply(&Op::Put(key(i).to_vec(), vec![i as u8; bytes])).expect("there is room");
    }
    (bench, client)
}

fn reader(bench: &Bench) -> Reader {
    Reader::new(Arc::clone(&bench.table), ClientConfig::for_table(&bench.table))
}

fn is_destroyed<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error { kind: ErrorKind::Destroyed, .. }))
}

/// [R-DESTROY-2] Hits in both rows and in extents, misses, and lookups of many keys are refused, by readers and clients
/// that had found the keys before.
#[test]
fn lookups_of_a_destroyed_table_are_refused() {
    for preset in Preset::ALL {
        for format in ["fixed:8:8", "bytes:64"] {
            for profile in Profile::ALL {
                let (bench, mut client) = filled(preset, format, profile);
                let keys: Vec<_> = (0..2 * KEYS).map(key).collect();
                assert_eq!(
                    client.get_many(&keys).into_iter().filter(|found| matches!(found, Ok(Some(_)))).count(),
                    100
                );
                block_on(destroy_table(&mut bench.region.lane(), &bench.table)).unwrap();
                for key in &keys {
                    let (found, traffic) = client.traffic_of(|client| client.get(key));
                    assert!(is_destroyed(&found), "{found:?}");
                    let Traffic { round_trips, .. } = traffic;
                    assert!(round_trips <= MOST_TRIPS, "{profile}: {round_trips} round trips");
                }
                let many = client.get_many(&keys);
                assert!(many.len() == keys.len() && many.iter().all(is_destroyed), "{many:?}");
                let (mut reader, mut lane, mut value) = (reader(&bench), bench.region.lane(), Vec::new());
                assert!(is_destroyed(&block_on(reader.get(&mut lane, &keys[3], &mut value))) && value.is_empty());
            }
        }
    }
}

/// [R-DESTROY-2] Scans of rows in turn, samples of the number of entries, and snapshots are refused as well.
#[test]
fn scans_of_a_destroyed_table_are_refused() {
    for preset in Preset::ALL {
        for profile in [Profile::Shm, Profile::Tcp] {
            let (bench, _client) = filled(preset, "bytes:64", profile);
            let (mut reader, mut lane) = (reader(&bench), bench.region.lane());
            assert_eq!(block_on(reader.len(&mut lane, SEED)).unwrap().entries, KEYS);
            block_on(destroy_table(&mut bench.region.lane(), &bench.table)).unwrap();
            let mut items = RowItems::default();
            assert!(is_destroyed(&block_on(reader.read_row(&mut lane, RowId(ROWS - 1), &mut items))));
            assert!(is_destroyed(&block_on(reader.len(&mut lane, SEED))));
            assert!(
                block_on(reader.snapshot(&mut lane, 3, |_, _| ()))
                    .is_err_and(|error| is_destroyed(&Err::<(), _>(error)))
            );
        }
    }
}

/// Returns the lock of the first row of `key`, and that row.
fn lock_of(bench: &Bench, key: &[u8]) -> (LockMask, RowId) {
    let row = bench.table.placement().rows(bench.table.placement().digest(key)).first;
    (bench.table.locks().mask(bench.table.locks().lock_of(row)), row)
}

/// [R-DESTROY-2] A client that held a lock when the table was destroyed writes a row afterwards: the row is overwritten
/// if the client does so while destroying waits. Destroying waits only a bounded time for such clients.
#[test]
fn destroying_overwrites_rows_of_changes_in_progress() {
    for preset in Preset::ALL {
        for finishes_at_pause in [1, 5, u32::MAX] {
            let (bench, mut client) = filled(preset, "fixed:8:8", Profile::Shm);
            let (lock, row) = lock_of(&bench, &key(5));
            let words: Vec<u64> = bench.row_words(row);
            let device = move |bench: &Bench, add| {
                bench.region.memory().device[lock.word as usize].fetch_add(add, Ordering::AcqRel)
            };
            assert_eq!(device(&bench, bench.table.locks().held(STRANGER, lock.mask)) & lock.mask, 0);
            let (stranger, pauses) = (bench.clone(), Arc::new(AtomicU32::new(0)));
            let paused = Arc::clone(&pauses);
            let step = move |moment| {
                if moment == StepPoint::Pause && paused.fetch_add(1, Std::Relaxed) + 1 == finishes_at_pause {
                    stranger.store(stranger.table.geometry().row(row), &words);
                    device(&stranger, stranger.table.locks().release_addend(STRANGER, lock.mask));
                }
            };
            let mut lane = SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step));
            block_on(destroy_table(&mut lane, &bench.table)).unwrap();
            assert!((1..100).contains(&pauses.load(Std::Relaxed)), "{pauses:?}");
            assert!(is_destroyed(&client.get(&key(5))), "{preset}, at pause {finishes_at_pause}");
        }
    }
}

/// Clients that take one lock after the other, write a row each, and have not noticed yet that the table is destroyed.
struct Takers {
    bench: Bench,
    lock: LockMask,
    row: RowId,
    words: Vec<u64>,
    /// Clients that have not had the lock yet.
    left: u32,
    holds: bool,
    /// Verbs of the destroyer between a release and the next client's attempt.
    gap: u32,
    since_release: u32,
}

impl Takers {
    fn word(&self) -> &AtomicU64 {
        &self.bench.region.memory().device[self.lock.word as usize]
    }

    fn take(&mut self) {
        self.holds = self.word().fetch_or(self.lock.mask, Ordering::AcqRel) & self.lock.mask == 0;
        self.left -= u32::from(self.holds);
    }

    fn write_and_release(&mut self) {
        self.bench.store(self.bench.table.geometry().row(self.row), &self.words);
        self.word().fetch_and(!self.lock.mask, Ordering::AcqRel);
        (self.holds, self.since_release) = (false, 0);
    }

    fn step(&mut self, moment: StepPoint) {
        match moment {
            StepPoint::Pause if self.holds => self.write_and_release(),
            StepPoint::Verb if !self.holds && self.left > 0 => {
                if self.since_release >= self.gap {
                    self.take();
                }
                self.since_release += 1;
            }
            _ => {}
        }
    }
}

/// [R-DESTROY-1] [R-DESTROY-2] A 1-bit lock that its holder releases while destroying waits may be taken by the next
/// client, before destroying sees it free or right after: once it is seen free, no client gets it any more, and the row
/// is overwritten.
#[test]
fn one_bit_locks_are_poisoned_again() {
    for (takers, gap) in [(1, 0), (4, 0), (2, 1), (4, 1), (4, 2)] {
        let (bench, mut client) = filled(Preset::Paper, "fixed:8:8", Profile::Shm);
        let (lock, row) = lock_of(&bench, &key(5));
        let words = bench.row_words(row);
        let (left, holds, since_release) = (takers, false, 0);
        let mut takers = Takers { bench: bench.clone(), lock, row, words, left, holds, gap, since_release };
        takers.take();
        let takers = Arc::new(Mutex::new(takers));
        let stepped = Arc::clone(&takers);
        let step = move |moment| stepped.lock().unwrap().step(moment);
        let mut lane = SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step));
        block_on(destroy_table(&mut lane, &bench.table)).unwrap();
        let mut takers = takers.lock().unwrap();
        println!("gap {gap}: {} never got the lock", takers.left);
        if takers.holds {
            takers.write_and_release();
        }
        assert_eq!(takers.word().load(Ordering::Acquire) & lock.mask, lock.mask, "gap {gap}: it stays unowned");
        assert!(is_destroyed(&client.get(&key(5))), "gap {gap}");
    }
}

/// [R-DESTROY-2] [R-LOCK-7] A change that won its lock before the table was destroyed, and reads its rows after,
/// returns `Destroyed`, not `Corrupt`.
#[test]
fn changes_that_meet_rows_of_a_destroyed_table_report_it() {
    for preset in Preset::ALL {
        let (bench, client) = filled(preset, "fixed:8:8", Profile::Tcp);
        let other = bench.clone();
        let mut verbs = 0;
        // This is between the CAS of the locks and the READs behind it.
        let step = move |moment| {
            verbs += u32::from(moment == StepPoint::Verb);
            if moment == StepPoint::Verb && verbs == 2 {
                block_on(destroy_table(&mut other.region.lane(), &other.table)).unwrap();
            }
        };
        let mut client = client.through(SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step)));
        let changed = client.change(&key(5), Change::Update(NewValue::Inline(&[1; 8])));
        assert!(is_destroyed(&changed), "{preset}: {changed:?}");
    }
}

/// Lets a client in slot 1 die in the middle of writing the rows of key 5, one of which is torn.
fn die_in_a_row(bench: &Bench) {
    let mut actors = Actors::new(bench, 8);
    let who = actors.start(1, ClientConfig::for_table(&bench.table), vec![Op::Put(key(5).to_vec(), vec![77; 8])]);
    assert!(actors.run_until(who, |step| step.tears_row(bench)));
    let rows = bench.table.placement().rows(bench.table.placement().digest(&key(5)));
    let is_torn = |row| bench.table.rows().verify(row, &bench.row_words(row)).is_err();
    for _ in 0..bench.table.rows().row_words() {
        if is_torn(rows.first) || is_torn(rows.second) {
            return actors.kill(who);
        }
        actors.step(who);
    }
    panic!("no row was torn");
}

/// [R-DESTROY-2] [R-RECOVER-2] The recovery of a client of a destroyed table writes no row, however far the destroying
/// came: no lookup finds the client's rows again.
#[test]
fn rows_of_a_destroyed_table_are_not_recovered() {
    for (format, profile) in [("fixed:8:8", Profile::Tcp), ("fixed:8:8", Profile::Shm), ("bytes:64", Profile::Tcp)] {
        for whole in [true, false] {
            let (bench, mut client) = filled(Preset::Hardened, format, profile);
            die_in_a_row(&bench);
            if whole {
                block_on(destroy_table(&mut bench.region.lane(), &bench.table)).unwrap();
            } else {
                mark(&bench);
            }
            let rows = |bench: &Bench| (0..ROWS).map(|row| bench.row_words(RowId(row))).collect::<Vec<_>>();
            let (mut lane, before) = (bench.region.lane(), rows(&bench));
            // The second recovery finds the first one's claim.
            for _ in 0..2 {
                let generation = block_on(read_slot(&mut lane, &bench.table, 1)).unwrap().word.unwrap().generation;
                let hold = bench.region.hold(1).unwrap().expect("it is dead");
                let recovered = block_on(recover(
                    &mut lane,
                    &bench.table,
                    &FenceProof::new(1, generation, hold),
                    &SlotClient::default(),
                ));
                assert!(is_destroyed(&recovered), "{recovered:?}");
            }
            assert!(rows(&bench) == before, "{format}, {profile}: a row was written");
            if whole {
                assert!((0..KEYS).all(|i| is_destroyed(&client.get(&key(i)))));
            }
        }
    }
}

/// Does the first step of destroying.
fn mark(bench: &Bench) {
    bench.store(bench.table.geometry().superblock_word(STATE_WORD), &[TableState::Destroyed.encode()]);
}

/// [R-LOCK-9] Destroying begins while unowned locks are freed: locks that it poisons stay poisoned.
#[test]
fn poison_is_not_reported_as_damage_while_destroying_begins() {
    for marked_before in 0..8 {
        let (bench, _client) = filled(Preset::Hardened, "fixed:8:8", Profile::Shm);
        let (lock, row) = lock_of(&bench, &key(5));
        let word = &bench.region.memory().device[lock.word as usize];
        word.store(bench.table.locks().poison(), Ordering::Release);
        let (destroyer, mut verbs) = (bench.clone(), 0);
        let step = move |moment| {
            if moment == StepPoint::Verb {
                if verbs == marked_before {
                    mark(&destroyer);
                }
                verbs += 1;
            }
        };
        let mut lane = SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step));
        let locks = [bench.table.locks().lock_of(row)];
        let freed = block_on(free_unowned_locks(&mut lane, &bench.table, &locks)).unwrap();
        let is_poisoned = word.load(Ordering::Acquire) & lock.mask == lock.mask;
        println!("marked before verb {marked_before}: {freed:?}");
        // If the table was marked after the state was last read, and before a lock is poisoned, destroying poisons it.
        assert_eq!(is_poisoned, freed.is_empty());
        assert_eq!(freed.is_empty(), marked_before < 4, "marked before verb {marked_before}");
    }
}

/// [R-DESTROY-2] Destroying stops for good between poisoning the locks and overwriting the rows: an operation that
/// waits for a row that a dead client has torn returns `Destroyed` without waiting for its deadline.
#[test]
fn readers_waiting_for_a_poisoned_lock_report_a_destroyed_table() {
    for format in ["fixed:8:8", "bytes:64"] {
        let (bench, _client) = filled(Preset::Hardened, format, Profile::Tcp);
        die_in_a_row(&bench);
        mark(&bench);
        for word in 0..bench.table.locks().words() {
            bench.region.memory().device[word as usize].store(bench.table.locks().poison(), Ordering::Release);
        }
        let (mut reader, mut lane, mut value) = (reader(&bench), bench.region.lane(), Vec::new());
        let found = block_on(reader.get(&mut lane, &key(5), &mut value));
        assert!(is_destroyed(&found) && value.is_empty(), "{found:?}");
        let is_torn = |row: &RowId| bench.table.rows().verify(*row, &bench.row_words(*row)).is_err();
        let torn = (0..ROWS).map(RowId).find(is_torn).expect("it is torn still");
        let scanned = block_on(reader.read_row(&mut lane, torn, &mut RowItems::default()));
        assert!(is_destroyed(&scanned), "{scanned:?}");
        assert_eq!(reader.counters().timeouts, 0);
    }
}

/// [R-DESTROY-2] Locks of preset `paper` cannot represent poison: there operations wait for the deadline, with the same
/// answer. A row that was torn when its table was destroyed is not reported as damaged, either.
#[test]
fn readers_that_give_up_on_a_destroyed_row_report_a_destroyed_table() {
    for (preset, lock) in [(Preset::Paper, u64::MAX), (Preset::Hardened, 0)] {
        let (bench, _client) = filled(preset, "fixed:8:8", Profile::Tcp);
        let row = bench.table.placement().rows(bench.table.placement().digest(&key(5))).first;
        bench.store(bench.table.geometry().row(row), &[!bench.row_words(row)[0]]);
        mark(&bench);
        for word in 0..bench.table.locks().words() {
            bench.region.memory().device[word as usize].store(lock, Ordering::Release);
        }
        let config = ClientConfig { deadline_ns: 20_000_000, ..ClientConfig::for_table(&bench.table) };
        let mut reader = Reader::new(Arc::clone(&bench.table), config);
        let found = block_on(reader.get(&mut bench.region.lane(), &key(5), &mut Vec::new()));
        assert!(is_destroyed(&found), "{preset}: {found:?}");
    }
}

/// [R-DESTROY-2] Counting ends at the first rows that have the mark of destruction, if the superblock has it, too;
/// otherwise the remaining rows are counted.
#[test]
fn counting_ends_at_the_rows_of_a_destroyed_table() {
    let (bench, _client) = filled(Preset::Hardened, "fixed:8:8", Profile::Tcp);
    let marked = bench.table.geometry().trailer(RowId(70), bench.table.rows());
    bench.store(marked, &DESTROYED_TRAILER);
    let mut lane = bench.region.lane();
    let counted = block_on(table_stats(&mut lane, &bench.table)).expect("it is only damaged");
    assert_eq!((counted.unverified_rows, counted.rows), (1, ROWS));
    mark(&bench);
    let before = lane.traffic().round_trips;
    assert_eq!(block_on(table_stats(&mut lane, &bench.table)), Err(CheckError::Destroyed));
    assert_eq!(lane.traffic().round_trips - before, 3, "64 rows, 64 rows, the superblock");
}
