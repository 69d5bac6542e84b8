//! Splits: tables that grow while clients use them, what a split costs, and what a death in the middle of one leaves.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use guira_check::{CheckOptions, CheckReport, Concurrency, ProblemKind, check_table, table_stats};
use guira_conformance::{
    Bench, Model, Observed, Op, Sampling, SteppedLane, TestClient, WatchedLane, block_on, growing,
};
use guira_fabric::heap::{HeapLane, Next, Step};
use guira_fabric::{FabricError, FenceProof, Lane, Profile, Region, Space, Verb};
use guira_layout::{ExtentRef, OwnerId, Preset, RowId, Segments, TableConfig};
use guira_rcuckoo::{
    Change, ClientConfig, ErrorKind, ExtentUse, Outcome, Reader, Recovered, RowItems, SlotClient, Table, TableRows,
    destroy_table, look_up_extent, open_table, read_map, recover, reserve_table,
};

/// Entries of a segment of 64 rows, in rows of 7 entries.
const SEGMENT_ENTRIES: u64 = 64 * 7;

pub fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// Creates a table that grows from `initial` segments to at most `most`.
pub fn table(profile: Profile, format: &str, initial: u32, most: u64) -> Bench {
    let whole = Bench::of_rows(Preset::Hardened, format, 64, profile, 11);
    Bench::of_config(growing(whole.table.config().clone(), initial, most), profile, 11)
}

/// Puts these keys, each of which is new, with values of its own.
fn fill(client: &mut TestClient, keys: std::ops::Range<u64>, value: impl Fn(u64) -> Vec<u8>) {
    for i in keys {
        let put = client.apply(&Op::Put(key(i).to_vec(), value(i)));
        assert_eq!(put, Ok(Observed::Outcome(Outcome::Inserted)), "key {i}");
    }
}

/// [R-GROW-2] [R-GROW-6] [R-GROW-8] A table that was created for a few hundred keys takes many thousands, and has each
/// of them once; lookups, also of clients that know of no split, scans, estimates and checks find them.
#[test]
fn a_table_grows_as_it_is_filled() {
    for profile in Profile::ALL {
        for (format, initial) in [("fixed:8:8", 1), ("bytes:24", 3)] {
            let (bench, keys) = (table(profile, format, initial, 1 << 9), 20 * SEGMENT_ENTRIES);
            let (mut client, mut other) = (bench.client(0), bench.client(1));
            let mut model = Model::default();
            for i in 0..keys {
                let client = if i % 3 == 0 { &mut other } else { &mut client };
                let op = Op::Insert(key(i).to_vec(), key(i + 1).to_vec());
                assert_eq!(client.apply(&op), Ok(model.apply(&op)), "{profile} {format}: key {i}");
            }
            let splits = client.client.counters().splits + other.client.counters().splits;
            let rows = bench.rows();
            assert_eq!(rows.count(), 64 * (u64::from(initial) + splits), "{profile} {format}");
            let fill = keys * 100 / (rows.count() * 7);
            assert!((45..=90).contains(&fill), "{profile} {format}: {fill} % full");
            other.client.forget_splits();
            for i in 0..2 * keys {
                let expected = (i < keys).then(|| key(i + 1).to_vec());
                assert_eq!(client.get(&key(i)), Ok(expected.clone()), "{profile} {format}: key {i}");
                assert_eq!(other.get(&key(i)), Ok(expected), "{profile} {format}: key {i}");
            }
            assert_eq!(bench.audit(), Ok(model.0));
            is_found_by_all(&bench, keys);
        }
    }
}

/// Checks that scans, estimates, statistics and the checker find exactly these keys and nothing wrong.
fn is_found_by_all(bench: &Bench, keys: u64) {
    let mut lane = bench.region.lane();
    let config = ClientConfig::for_table(&bench.table);
    let mut reader = Reader::new(Arc::clone(&bench.table), config);
    let snapshot = block_on(reader.snapshot(&mut lane, 4, |_, _| ())).expect("no damage");
    assert!(snapshot.is_stable());
    let mut found: Vec<u64> =
        snapshot.iter().map(|(key, _)| u64::from_le_bytes(key.try_into().expect("8 bytes"))).collect();
    found.sort_unstable();
    assert!(found.into_iter().eq(0..keys));
    let len = block_on(reader.len(&mut lane, 3)).expect("no damage");
    assert!(len.entries.abs_diff(keys) <= len.error, "{len:?}");
    let stats = block_on(table_stats(&mut lane, &bench.table)).expect("no damage");
    assert_eq!((stats.entries, stats.rows, stats.unverified_rows), (keys, bench.rows().count(), 0));
    let report = checked(bench);
    assert_eq!((report.problems, report.counts.entries), (Vec::new(), keys));
}

/// Checks the whole table, which no client uses.
fn checked(bench: &Bench) -> CheckReport {
    let options = CheckOptions { concurrency: Concurrency::Exclusive, ..CheckOptions::default() };
    block_on(check_table(&mut bench.region.lane(), &bench.table, &options, &mut |_| ())).expect("no fabric error")
}

/// [R-GROW-12] A client of a table that was opened when it had grown finds its keys as in a table of that size; one
/// that knows of no split is led to them step by step. Both find what is split off later.
#[test]
fn a_client_begins_with_the_splits_that_the_map_has() {
    for profile in Profile::ALL {
        let (bench, keys) = (table(profile, "fixed:8:8", 3, 1 << 9), 30 * SEGMENT_ENTRIES);
        let mut writer = bench.client(0);
        fill(&mut writer, 0..keys, |i| key(i).to_vec());
        let opened = block_on(open_table(&mut bench.region.lane(), bench.region.main_bytes())).expect("a table");
        let mut admin = bench.region.lane();
        block_on(read_map(&mut admin, &opened)).expect("no fabric error");
        println!("{profile}: the map took {:?}", admin.traffic());
        let find = |table: &Arc<Table>, all: std::ops::Range<u64>| {
            let mut reader = Reader::new(Arc::clone(table), ClientConfig::for_table(table));
            let (mut lane, mut value) = (bench.region.lane(), Vec::new());
            for i in all {
                value.clear();
                let found = block_on(reader.get(&mut lane, &key(i), &mut value)).expect("no damage");
                assert!(found.is_some() && value == key(i), "{profile}: key {i}");
            }
            (reader.counters().segment_steps, lane.traffic().round_trips)
        };
        let (steps, trips) = find(&opened, 0..keys);
        assert_eq!(steps, 0, "{profile}");
        assert!(trips <= if profile == Profile::Shm { 2 * keys } else { keys }, "{profile}: {trips}");
        let (steps, _) = find(&bench.table, 0..keys);
        assert!(steps > 30, "{profile}: {steps}");
        fill(&mut writer, keys..2 * keys, |i| key(i).to_vec());
        let (steps, _) = find(&opened, 0..2 * keys);
        assert!(steps > 10, "{profile}: {steps}");
    }
}

/// [R-GROW-12] The map leads to segments that are deeper than all those beside them.
#[test]
fn the_map_leads_to_segments_that_were_split_alone() {
    let bench = table(Profile::Shm, "fixed:8:8", 3, 1 << 9);
    let is_first = |i: &u64| {
        let key = bench.table.key(&key(*i)).expect("8 bytes").digest();
        Segments::position(key) >> 60 == 0
    };
    let keys: Vec<u64> = (0..).filter(is_first).take(6 * SEGMENT_ENTRIES as usize).collect();
    let mut writer = bench.client(0);
    keys.iter().for_each(|i| assert!(writer.put(&key(*i), &key(*i)).is_ok()));
    let opened = block_on(open_table(&mut bench.region.lane(), bench.region.main_bytes())).expect("a table");
    block_on(read_map(&mut bench.region.lane(), &opened)).expect("no fabric error");
    let mut reader = Reader::new(Arc::clone(&opened), ClientConfig::for_table(&opened));
    let (mut lane, mut value) = (bench.region.lane(), Vec::new());
    for i in keys {
        value.clear();
        assert!(block_on(reader.get(&mut lane, &key(i), &mut value)).expect("no damage").is_some());
    }
    assert_eq!(reader.counters().segment_steps, 0);
}

/// [R-GROW-6] A table that has all the segments that it can have is full, as one that does not grow.
#[test]
fn a_table_grows_no_further_than_it_may() {
    for profile in Profile::ALL {
        let bench = table(profile, "fixed:8:8", 1, 4);
        let mut client = bench.client(0);
        let full = (0..).find(|i| client.put(&key(*i), &key(*i)).is_err()).expect("an end");
        assert!(full > SEGMENT_ENTRIES * 2, "{profile}: {full} keys");
        let refused = client.put(&key(full), &key(0)).expect_err("a full segment");
        assert!(refused.to_string().contains("full"), "{profile}: {refused}");
        assert_eq!(client.client.counters().splits, 3);
        for i in 0..full {
            assert_eq!(client.get(&key(i)), Ok(Some(key(i).to_vec())), "{profile}: key {i}");
        }
        is_found_by_all(&bench, full);
    }
}

/// Fills a segment until one key more would split it, and returns the client and that key.
pub fn almost_split(bench: &Bench) -> (TestClient, u64) {
    let mut client = bench.client(0);
    for i in 0.. {
        let before = bench.fork();
        assert_eq!(client.put(&key(i), &key(i)).expect("room").outcome, Outcome::Inserted);
        if client.client.counters().splits > 0 {
            let words = before.words();
            let memory = bench.region.memory();
            for (cell, word) in memory.main.iter().chain(memory.device).zip(words) {
                cell.store(word, guira_fabric::memory::Ordering::Relaxed);
            }
            client.client.forget_splits();
            return (client, i);
        }
    }
    unreachable!("a segment becomes full")
}

/// [R-GROW-6] [R-GROW-8] The exact cost of an insert that splits its segment: its own locks; where it looks there, the
/// rows under one and under the other; their release; 8 rows sampled in vain, and the key's rows once more; the locks of
/// both segments, the rows, and the commit; then the insert again.
#[test]
fn a_split_takes_three_round_trips() {
    for profile in Profile::ALL {
        let bench = table(profile, "fixed:8:8", 1, 64);
        let (mut client, next) = almost_split(&bench);
        let (inserted, traffic) = client.traffic_of(|client| client.put(&key(next), &key(next)));
        assert_eq!(inserted.expect("room").outcome, Outcome::Inserted);
        println!("{profile}: {traffic:?}");
        let (row_bytes, verbs) = (u64::from(bench.table.config().row_bytes), traffic.verbs);
        // Both segments are written once; the rest are a record and a row.
        assert!((128 * row_bytes..132 * row_bytes).contains(&traffic.bytes_out), "{profile}: {traffic:?}");
        let round_trips = [10, 10, 10, 11][Profile::ALL.iter().position(|it| *it == profile).expect("one of them")];
        assert_eq!(traffic.round_trips, round_trips, "{profile}");
        assert!(verbs.writes >= 6, "{verbs:?}");
    }
}

/// A lane that records the memory that is reserved through it.
struct ReservingLane {
    lane: HeapLane,
    reserved: Vec<Range<u64>>,
}

impl Lane for ReservingLane {
    guira_conformance::delegate!(lane: caps, traffic, traffic_mut, submit, poll, forget, poll_drain, poll_pause, now_ns);

    fn poll_reserve(&mut self, bytes: Range<u64>, _cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        self.reserved.push(bytes);
        Poll::Ready(Ok(()))
    }
}

/// [R-GROW-7] A client that splits segments reserves the rows of each new one, and the words of the map once for each
/// depth; one that comes later, and has read the map, reserves none of these again.
#[test]
fn words_of_the_map_are_reserved_once() {
    const KEYS: u64 = 20 * SEGMENT_ENTRIES;
    let bench = table(Profile::Tcp, "fixed:8:8", 1, 256);
    let (geometry, segments) = (bench.table.geometry(), Segments::of(bench.table.config()).expect("it grows"));
    let rows = geometry.row(RowId(0)).offset();
    let mut depths = 0;
    for (slot, keys) in [(0, 0..KEYS), (1, KEYS..2 * KEYS)] {
        let table = block_on(open_table(&mut bench.region.lane(), bench.region.main_bytes())).expect("a table");
        block_on(read_map(&mut bench.region.lane(), &table)).expect("no fabric error");
        let lane = ReservingLane { lane: bench.region.lane(), reserved: Vec::new() };
        let later = Bench { region: bench.region.clone(), table };
        let mut client = later.client_with(slot, lane, ClientConfig::for_table(&later.table));
        for i in keys {
            assert_eq!(client.put(&key(i), &key(i)).expect("room").outcome, Outcome::Inserted);
        }
        let (of_rows, of_map): (Vec<_>, Vec<_>) = client.lane.reserved.iter().partition(|bytes| bytes.start >= rows);
        let splits = client.client.counters().splits;
        let last = bench.rows().ranges().map(|range| segments.of_row(RowId(range.start))).max().expect("a segment");
        println!("{splits} splits, {} reservations of rows, of the map: {of_map:?}", of_rows.len());
        assert_eq!(of_rows.len() as u64, splits);
        // One for each depth that the client before it did not reach.
        let depths_before = std::mem::replace(&mut depths, last.ilog2() + 1);
        assert!(splits > 15 && depths > depths_before, "{splits} splits, {depths_before} depths, then {depths}");
        assert_eq!(of_map.len() as u32, depths - depths_before);
    }
}

/// [R-GROW-7] To open a table that has grown asks once for the memory of each run of neighbouring segments, so that the
/// holes in it are looked for once, however many segments there are; and for nothing that the table does not have.
#[test]
fn a_grown_table_is_searched_for_holes_once() {
    let bench = table(Profile::Shm, "fixed:8:8", 1, 256);
    fill(&mut bench.client(0), 0..40 * SEGMENT_ENTRIES, |i| key(i).to_vec());
    let mut lane = ReservingLane { lane: bench.region.lane(), reserved: Vec::new() };
    block_on(reserve_table(&mut lane, &bench.table)).expect("the heap reads");
    let first_row = bench.table.geometry().row(RowId(0)).offset();
    let (of_rows, others): (Vec<_>, Vec<_>) = lane.reserved.into_iter().partition(|bytes| bytes.start >= first_row);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in bench.rows().ranges() {
        let [start, end] = [range.start, range.end].map(|row| bench.table.geometry().row(RowId(row)).offset());
        match runs.last_mut().filter(|run| run.end == start) {
            Some(run) => run.end = end,
            None => runs.push(start..end),
        }
    }
    println!("{} segments in {} runs; {} other reservations", bench.rows().ranges().count(), runs.len(), others.len());
    let last = bench.table.config().rows;
    let behind = bench.table.geometry().row(RowId(last)).offset();
    // The rows of the first segment come first, with all that a new table has.
    let of_segments = of_rows.iter().filter(|bytes| bytes.start < behind).skip(1);
    assert!(of_segments.eq(&runs), "{of_rows:?}, but {runs:?}");
    assert!(bench.rows().ranges().count() > 40 && runs.len() < 20);
    // The solid parts, the words of the chunks, and those of the map: all at once, after one depth at a time.
    assert!(others.len() < 5 + 1 + 1 + 8, "{others:?}");
}

/// [R-GROW-8] [R-LOCK-4] A client that cannot split a segment, because another one holds one of its locks, gives back
/// the locks that it has won after a few pauses, and waits for that one alone: others wait for one client only.
#[test]
fn a_split_that_waits_gives_its_locks_back() {
    /// Batches between two moments without a lock: tries of 16 words, and the pauses with some of them.
    const MOST_BATCHES: usize = 16 + 16 + 2;
    /// Batches without a lock after which the other lock is freed.
    const BATCHES_ALONE: usize = 50;
    let whole = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, Profile::Tcp, 11).table.config().clone();
    let config = TableConfig { rows_per_lock: 1, physical_locks: 64, ..whole };
    let bench = Bench::of_config(growing(config, 1, 4), Profile::Tcp, 11);
    let (client, next) = almost_split(&bench);
    drop(client);
    // The last lock, which a client takes last that waits for it.
    let other = bench.client(1);
    let locks = bench.table.locks();
    let rows = bench.table.key(&key(next)).expect("a key").rows();
    let last = (0..64).rev().map(RowId).find(|row| rows.other(*row).is_none()).expect("64 rows");
    let lock = locks.mask(locks.lock_of(last));
    bench.store(locks.addr(lock.word), &[locks.held(other.client.owner(), lock.mask)]);
    let held = Arc::new(Mutex::new(Vec::new()));
    let (watched, seen) = (bench.clone(), Arc::clone(&held));
    let mut is_free = false;
    let watch = move |_: &[Verb<'_>]| {
        let locks = watched.table.locks();
        let is_own = |(word, value): &(u64, u64)| locks.all_held(*word, *value).any(|(_, owner)| owner == OwnerId(3));
        let mut held = seen.lock().expect("no thread panics");
        held.push(watched.lock_words().iter().filter(|word| is_own(word)).count());
        let is_alone = held.len() > BATCHES_ALONE && held[held.len() - BATCHES_ALONE..].iter().all(|words| *words == 0);
        if is_alone && held.contains(&15) && !std::mem::replace(&mut is_free, true) {
            let addr = locks.addr(lock.word);
            watched.store(addr, &[watched.words_at(addr, 1)[0] & !lock.mask]);
        }
        Ok(())
    };
    let lane = WatchedLane::new(bench.region.lane(), Box::new(watch));
    let mut client = bench.client_with(2, lane, ClientConfig::for_table(&bench.table));
    assert_eq!(client.put(&key(next), &key(next)).expect("room").outcome, Outcome::Inserted);
    assert_eq!(client.client.counters().splits, 1);
    let held = held.lock().expect("no thread panics");
    let runs: Vec<usize> = held.split(|words| *words == 0).map(<[usize]>::len).filter(|run| *run > 0).collect();
    println!("batches with locks held: {runs:?} of {}", held.len());
    assert!(runs.iter().all(|run| *run <= MOST_BATCHES) && runs.iter().any(|run| *run > 16), "{runs:?}");
    // The first tries, one lock after the other, and the split.
    assert!(runs.len() < 12, "{runs:?}");
    assert_eq!(bench.lock_words(), [], "no lock is left");
}

/// [R-GROW-14] A snapshot that is taken while a table grows has every key once; and a scan, row by row, finds each key
/// that was there all the time, however often its segment is split meanwhile.
#[test]
fn scans_follow_splits() {
    const KEYS_A_BATCH: u64 = 4;
    for profile in Profile::ALL {
        let (bench, keys) = (table(profile, "fixed:8:8", 1, 64), 2 * SEGMENT_ENTRIES);
        let mut filler = bench.client(0);
        fill(&mut filler, 0..keys, |i| key(i).to_vec());
        let rows_before = bench.rows().count();
        // A few more keys with each batch of the scan.
        let next = Arc::new(AtomicU64::new(keys));
        let (writer, added) = (Mutex::new(filler), Arc::clone(&next));
        let watch = move |_: &[Verb<'_>]| {
            let i = added.fetch_add(KEYS_A_BATCH, Ordering::Relaxed);
            if i < 4 * keys {
                let mut writer = writer.lock().expect("no thread panics");
                fill(&mut writer, i..(i + KEYS_A_BATCH).min(4 * keys), |i| key(i).to_vec());
            }
            Ok(())
        };
        let mut lane = WatchedLane::new(bench.region.lane(), Box::new(watch));
        let mut reader = Reader::new(Arc::clone(&bench.table), ClientConfig::for_table(&bench.table));
        let mut rows = block_on(TableRows::read(&mut lane, &bench.table)).expect("the heap reads");
        let (mut found, mut items) = (BTreeSet::new(), RowItems::default());
        while let Some(range) = rows.next_range() {
            for row in range.map(RowId) {
                let [trailer, _] = block_on(reader.read_row(&mut lane, row, &mut items)).expect("a whole row");
                rows.note(row, trailer);
                found.extend(items.iter().map(|(key, _)| u64::from_le_bytes(key.try_into().expect("8 bytes"))));
            }
        }
        let missed: Vec<u64> = (0..keys).filter(|i| !found.contains(i)).collect();
        // An insert that moves an entry behind the scan hides it, as in a table that does not grow.
        assert!(missed.len() < 20, "{profile}: {missed:?}");
        assert!(bench.rows().count() >= rows_before + 64, "{profile}: the table grew meanwhile");
        let snapshot = block_on(reader.snapshot(&mut lane, 64, |_, _| ())).expect("no damage");
        assert!(snapshot.is_stable(), "{profile}: the table does not grow for ever");
        let mut all: Vec<u64> =
            snapshot.iter().map(|(key, _)| u64::from_le_bytes(key.try_into().expect("8 bytes"))).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..4 * keys), "{profile}");
        assert!(next.load(Ordering::Relaxed) > 4 * keys);
    }
}

/// [R-GROW-3] [R-RECOVER-7] A sweep finds the entry of an extent whose segment was split since the table was created,
/// and no entry of one that was removed.
#[test]
fn a_sweep_finds_extents_in_segments_that_were_split() {
    let bench = table(Profile::Tcp, "bytes:24", 1, 64);
    let mut client = bench.client(0);
    let keys = 3 * SEGMENT_ENTRIES;
    fill(&mut client, 0..keys, |i| [i as u8; 60].to_vec());
    let (rows, mut lane) = (bench.table.rows(), bench.region.lane());
    let mut extents = Vec::new();
    for row in bench.rows().ranges().flatten().map(RowId) {
        let words = bench.row_words(row);
        extents.extend(rows.occupied_entries(&words).map(|index| rows.extent_of(&words, index)));
    }
    assert_eq!(extents.len() as u64, keys);
    let mut is_use = |extent: &ExtentRef| {
        let place_words = extent.words().expect("a length") as u64;
        block_on(look_up_extent(&mut lane, &bench.table, extent.offset, extent.generation, place_words))
            .expect("the heap reads")
    };
    for extent in &extents {
        assert_eq!(is_use(extent), ExtentUse::Linked, "{extent:?}");
    }
    for i in 0..keys {
        client.change(&key(i), Change::Remove).expect("a key");
    }
    for extent in &extents {
        assert_eq!(is_use(extent), ExtentUse::Leaked, "{extent:?}");
    }
}

/// [R-GROW-3] The checker notices a row whose level is not that of its segment, whichever row it is, and a key that is
/// not in its segment.
#[test]
fn wrong_levels_are_noticed() {
    for row in [0, 1, 63, 64, 127] {
        for change in [1u64 << 32, (1u64 << 32).wrapping_neg()] {
            let bench = table(Profile::Tcp, "fixed:8:8", 1, 64);
            let mut client = bench.client(0);
            fill(&mut client, 0..SEGMENT_ENTRIES, |i| key(i).to_vec());
            let (row, rows) = (RowId(row), bench.table.rows());
            let mut words = bench.row_words(row);
            words[rows.trailer_word()] = words[rows.trailer_word()].wrapping_add(change);
            rows.rewrite_checksum(row, &mut words);
            bench.store(bench.table.geometry().row(row), &words);
            let problems = checked(&bench).problems;
            assert!(problems.iter().any(|problem| problem.kind == ProblemKind::RowLevel), "{row}: {problems:?}");
        }
    }
}

/// [R-GROW-12] The checker notices a map that is ahead of the rows, which leads clients to segments that do not exist,
/// and a word that is no depth, whether others work or not, and finds nothing else wrong with that table. A map behind
/// the rows is as sound to it as to a client that begins with it.
#[test]
fn a_map_ahead_of_the_rows_is_noticed() {
    let bench = table(Profile::Tcp, "fixed:8:8", 1, 64);
    let keys = 6 * SEGMENT_ENTRIES;
    fill(&mut bench.client(0), 0..keys, |i| key(i).to_vec());
    let segments = Segments::of(bench.table.config()).expect("a table with segments");
    let firsts: Vec<u64> = bench.rows().ranges().map(|range| range.start).collect();
    assert!(firsts.len() > 8, "{firsts:?}");
    for segment in firsts.iter().map(|first| segments.of_row(RowId(*first))) {
        let at = bench.table.geometry().map_word(segment);
        let right = bench.words_at(at, 1)[0];
        let least = segments.map_word(segments.level(segment));
        let most = segments.map_word(15);
        for word in (0..=right).chain([right + 1, right + 3, most, most + 1, right | 1 << 40, u64::MAX]) {
            let bench = bench.fork();
            bench.store(at, &[word]);
            for concurrency in [Concurrency::Exclusive, Concurrency::Shared] {
                // Without the pauses before later looks.
                let mut lane = SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(|_| ()));
                let options = CheckOptions { concurrency, ..CheckOptions::default() };
                let report = block_on(check_table(&mut lane, &bench.table, &options, &mut |_| ())).expect("it reads");
                let found: Vec<_> = report.problems.iter().map(|problem| (problem.kind, &*problem.place)).collect();
                let place = format!("word {segment} of the map");
                let is_behind = word == 0 || (least..=right).contains(&word);
                let expected = if is_behind { vec![] } else { vec![(ProblemKind::SegmentMap, &*place)] };
                assert_eq!(found, expected, "segment {segment}: {word:#x} in place of {right:#x}, {concurrency:?}");
                assert_eq!(report.counts.entries, keys, "segment {segment}: {word:#x}");
            }
            if word <= right {
                let opened = block_on(open_table(&mut bench.region.lane(), bench.region.main_bytes()));
                let opened = opened.expect("a table");
                block_on(read_map(&mut bench.region.lane(), &opened)).expect("no fabric error");
                let mut reader = Reader::new(Arc::clone(&opened), ClientConfig::for_table(&opened));
                let (mut lane, mut value) = (bench.region.lane(), Vec::new());
                for i in 0..keys {
                    let found = block_on(reader.get(&mut lane, &key(i), &mut value)).expect("no damage");
                    assert!(found.is_some(), "segment {segment}, word {word}: key {i}");
                }
            }
        }
    }
}

/// [R-GROW-8] [R-GROW-12] Wherever a client dies in a split, the map is not ahead of the rows, before its recovery and
/// afterwards.
#[test]
fn no_death_leaves_a_map_ahead_of_the_rows() {
    let bench = table(Profile::Shm, "fixed:8:8", 1, 64);
    let (client, next) = almost_split(&bench);
    drop(client);
    let steps = put_until(&bench.fork(), next, u64::MAX);
    let mut behind = 0;
    // It has its slot by then.
    for step in (64..steps - 100).step_by(61).chain(steps - 100..steps) {
        let bench = bench.fork();
        put_until(&bench, next, step);
        let map = |bench: &Bench| bench.words_at(bench.table.geometry().map_word(0), 2);
        let is_split = |bench: &Bench| bench.table.rows().trailer(&bench.row_words(RowId(0))).level() == 1;
        behind += u64::from(is_split(&bench) && map(&bench) != [2, 2]);
        assert!(checked(&bench).problems.iter().all(|problem| problem.kind != ProblemKind::SegmentMap), "step {step}");
        recover_dead(&bench);
        assert_eq!(checked(&bench).problems, [], "step {step}");
        assert_eq!(map(&bench), if is_split(&bench) { [2, 2] } else { [1, 0] }, "step {step}");
    }
    assert!(behind > 10, "{behind}");
}

/// Lets a new client put key `next`, until it dies at its step `last`; returns how many steps it made.
fn put_until(bench: &Bench, next: u64, last: u64) -> u64 {
    let steps = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&steps);
    let hook = move |_: Step| match counted.fetch_add(1, Ordering::Relaxed) == last {
        true => Next::Die,
        false => Next::Continue,
    };
    let lane = bench.region.lane().hooked(Box::new(hook));
    let mut client = bench.client_with(1, lane, ClientConfig::for_table(&bench.table));
    let put = client.put(&key(next), &key(next));
    assert!(put.is_ok() || last < u64::MAX, "{put:?}");
    steps.load(Ordering::Relaxed)
}

/// [R-GROW-14] [R-DESTROY-2] A table that is destroyed after a client has died in a split: no key is found in either
/// segment any more, also by a reader that knew of the new one.
#[test]
fn a_destroyed_table_has_no_new_segment() {
    let bench = table(Profile::Shm, "fixed:8:8", 1, 64);
    let (client, next) = almost_split(&bench);
    drop(client);
    let steps = put_until(&bench.fork(), next, u64::MAX);
    let (mut knew, words) = (0, 64 * bench.table.rows().row_words() as u64);
    for back in (0..=8).map(|part| 40 + 2 * words * part / 8) {
        let bench = bench.fork();
        put_until(&bench, next, steps - back);
        let config = ClientConfig { deadline_ns: 0, ..ClientConfig::for_table(&bench.table) };
        let mut reader = Reader::new(Arc::clone(&bench.table), config);
        let (mut lane, mut value) = (bench.region.lane(), Vec::new());
        for i in 0..next {
            assert!(block_on(reader.get(&mut lane, &key(i), &mut value)).expect("a reader").is_some(), "{back}: {i}");
        }
        knew += u64::from(reader.counters().segment_steps > 0);
        block_on(destroy_table(&mut bench.region.lane(), &bench.table)).expect("the heap writes");
        for i in 0..=next {
            let found = block_on(reader.get(&mut lane, &key(i), &mut value)).map_err(|error| error.kind);
            assert_eq!(found, Err(ErrorKind::Destroyed), "{back}: key {i}");
        }
    }
    assert!((2..9).contains(&knew), "{knew}");
}

/// Recovers the client of slot 1, which died in a split.
fn recover_dead(bench: &Bench) -> Recovered {
    let hold = bench.region.hold(1).expect("the heap holds").expect("its client is dead");
    let (proof, owner) = (FenceProof::new(1, 1, hold), SlotClient::default());
    let recovered = block_on(recover(&mut bench.region.lane(), &bench.table, &proof, &owner));
    recovered.expect("a dead client").expect("its slot")
}

/// [R-GROW-9] [R-RECOVER-6] A row that was damaged before a client died in a split stays damaged, whether the client
/// had written it or not; all other rows are completed.
#[test]
fn recovery_makes_no_damaged_row_whole() {
    let bench = table(Profile::Shm, "fixed:8:8", 1, 64);
    let (client, next) = almost_split(&bench);
    drop(client);
    let steps = put_until(&bench.fork(), next, u64::MAX);
    let row_words = bench.table.rows().row_words() as u64;
    for row in [3, 40] {
        for part in ["entry", "occupancy", "checksum"] {
            let bench = bench.fork();
            // In the middle of the parent's rows.
            put_until(&bench, next, steps - 30 - 32 * row_words);
            // What has moved is known from the new segment, and would be restored.
            let moved = bench.table.rows().trailer(&bench.row_words(RowId(64 + row))).occupancy();
            let stays = (!moved).trailing_zeros();
            let (word, bit) = match part {
                "entry" => (u64::from(2 * stays), 5),
                "occupancy" => (row_words - 2, 36 + stays),
                _ => (row_words - 1, 5),
            };
            let at = bench.table.geometry().row(RowId(row)).add_words(word);
            bench.store(at, &[bench.words_at(at, 1)[0] ^ 1 << bit]);
            assert_eq!(recover_dead(&bench).replayed_rows, 64, "row {row}, {part}");
            let torn: Vec<RowId> = (0..128)
                .map(RowId)
                .filter(|row| bench.table.rows().verify(*row, &bench.row_words(*row)).is_err())
                .collect();
            assert_eq!(torn, [RowId(row)], "row {row}, {part}");
        }
    }
}

/// [R-GROW-8] While a segment is half split, no client can change a key of it, also not one that has been led to the
/// new segment: the old rows would not follow.
#[test]
fn a_half_split_segment_is_locked() {
    let bench = table(Profile::Shm, "fixed:8:8", 1, 64);
    let (client, next) = almost_split(&bench);
    drop(client);
    let steps = put_until(&bench.fork(), next, u64::MAX);
    put_until(&bench, next, steps - 30 - 32 * bench.table.rows().row_words() as u64);
    let config = ClientConfig { deadline_ns: 1_000_000, ..ClientConfig::for_table(&bench.table) };
    let mut other = bench.client_with(2, bench.region.lane(), config);
    for i in 0..next {
        assert_eq!(other.get(&key(i)), Ok(Some(key(i).to_vec())), "key {i}");
    }
    assert_eq!(other.client.counters().segment_steps, 1, "it was led to the new segment");
    for i in (0..next).step_by(9) {
        let refused = other.put(&key(i), &key(0)).expect_err("a lock that is held");
        assert!(matches!(refused.kind, ErrorKind::Busy { .. }), "key {i}: {refused}");
    }
}

/// [R-GROW-8] Of two clients that find a segment full, one splits it, whichever comes first to each of the other's
/// batches; and both insert their keys.
#[test]
fn two_clients_split_a_segment_once() {
    for profile in [Profile::Shm, Profile::Tcp] {
        let bench = table(profile, "fixed:8:8", 1, 64);
        let (client, next) = almost_split(&bench);
        drop(client);
        let mut splits = BTreeSet::new();
        for at in 0..40 {
            let bench = bench.fork();
            // It does not wait for the locks of the other one.
            let config = ClientConfig { deadline_ns: 0, ..ClientConfig::for_table(&bench.table) };
            let (other, mut batches) = (Mutex::new(bench.client_with(2, bench.region.lane(), config)), 0);
            let inserted = Arc::new(AtomicU64::new(next + 1));
            let end = Arc::clone(&inserted);
            let watch = move |_: &[Verb<'_>]| {
                batches += 1;
                let mut other = other.lock().expect("no thread panics");
                while batches == at && other.client.counters().splits == 0 && end.load(Ordering::Relaxed) < next + 60 {
                    let i = end.load(Ordering::Relaxed);
                    match other.put(&key(i), &key(i)) {
                        Ok(_) => end.store(i + 1, Ordering::Relaxed),
                        Err(error) if matches!(error.kind, ErrorKind::Busy { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                Ok(())
            };
            let lane = WatchedLane::new(bench.region.lane(), Box::new(watch));
            let mut client = bench.client_with(1, lane, ClientConfig::for_table(&bench.table));
            assert_eq!(client.put(&key(next), &key(next)).expect("room").outcome, Outcome::Inserted);
            drop(client.lane);
            splits.insert(client.client.counters().splits);
            let model = (0..inserted.load(Ordering::Relaxed)).map(|i| (key(i).to_vec(), key(i).to_vec()));
            assert_eq!(bench.audit(), Ok(model.collect()), "{profile}: before batch {at}");
            assert_eq!(checked(&bench).problems, [], "{profile}: before batch {at}");
        }
        assert!(splits.contains(&0) && splits.contains(&1), "{profile}: {splits:?}");
    }
}

/// [R-GROW-6] An insert that cannot split its segment, because a row that it does not need is damaged, finds room
/// elsewhere if there is some, and says what is damaged if there is none.
#[test]
fn a_damaged_row_stops_no_insert_that_finds_room() {
    let bench = table(Profile::Tcp, "fixed:8:8", 1, 64);
    let (mut client, next) = almost_split(&bench);
    let rows = bench.table.key(&key(next)).expect("a key").rows();
    let far = (0..64).map(RowId).find(|row| rows.other(*row).is_none()).expect("64 rows");
    let at = bench.table.geometry().row(far);
    bench.store(at, &[bench.words_at(at, 1)[0] ^ 1]);
    let (mut refused, splits) = (None, client.client.counters().splits);
    for i in next..next + 200 {
        match client.put(&key(i), &key(i)) {
            Ok(_) => {}
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    assert_eq!(client.client.counters().splits, splits);
    let refused = refused.expect("a segment is full at some time");
    assert!(matches!(refused.kind, ErrorKind::Corrupt { .. } | ErrorKind::Full { .. }), "{refused}");
    assert_eq!(bench.lock_words(), [], "no lock is left");
}

/// [R-GROW-9] A row of the new segment that is damaged before the split is completed does not keep its old row from the
/// new level: otherwise that would take keys which belong to the new segment.
#[test]
fn a_damaged_row_of_the_new_segment_leaves_one_level() {
    let bench = table(Profile::Shm, "fixed:8:8", 1, 64);
    let (client, next) = almost_split(&bench);
    drop(client);
    let steps = put_until(&bench.fork(), next, u64::MAX);
    // In the middle of the parent's rows.
    put_until(&bench, next, steps - 30 - 32 * bench.table.rows().row_words() as u64);
    for row in [3, 60] {
        let bench = bench.fork();
        let at = bench.table.geometry().row(RowId(64 + row));
        bench.store(at, &[bench.words_at(at, 1)[0] ^ 1 << 9]);
        recover_dead(&bench);
        let levels: BTreeSet<u8> =
            (0..64).map(|row| bench.table.rows().trailer(&bench.row_words(RowId(row))).level()).collect();
        assert_eq!(levels, BTreeSet::from([1]), "damage beside row {row}");
        let torn: Vec<u64> = (0..128)
            .filter(|row| bench.table.rows().verify(RowId(*row), &bench.row_words(RowId(*row))).is_err())
            .collect();
        assert_eq!(torn, [64 + row]);
    }
}

/// [R-GROW-14] [R-DESTROY-2] A table that is destroyed while a client is in the middle of a split, which it ends before
/// the table is destroyed to the end: no row of either segment is left, although nothing led to the new one before.
#[test]
fn a_split_that_ends_while_its_table_is_destroyed_leaves_nothing() {
    let bench = table(Profile::Shm, "fixed:8:8", 1, 64);
    let (client, next) = almost_split(&bench);
    drop(client);
    let (steps, words) = (put_until(&bench.fork(), next, u64::MAX), 64 * bench.table.rows().row_words() as u64);
    // Before the first word of the child, before the record, in the first row of the parent, and in another one.
    for back in [40 + 2 * words, 24 + words, 16 + words, words / 2] {
        let bench = bench.fork();
        let (stopped, is_stopped) = channel();
        let (go, goes_on) = channel();
        let (ended, has_ended) = channel();
        let mut step = 0;
        let hook = move |_: Step| {
            step += 1;
            if step == steps - back {
                stopped.send(()).expect("the test waits");
                goes_on.recv().expect("the test goes on");
            }
            Next::Continue
        };
        let lane = bench.region.lane().hooked(Box::new(hook));
        let mut client = bench.client_with(1, lane, ClientConfig::for_table(&bench.table));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // What it is told depends on how far it is.
                let _ = client.put(&key(next), &key(next));
                ended.send(()).expect("the test waits");
            });
            is_stopped.recv().expect("it splits");
            let mut is_waiting = false;
            let watch = move |batch: &[Verb<'_>]| {
                // The rows are overwritten, and it looks at the locks that were held.
                let looks = matches!(batch, [Verb::Read { addr, .. }] if addr.space() == Space::Device);
                if looks && !std::mem::replace(&mut is_waiting, true) {
                    go.send(()).expect("the client waits");
                    has_ended.recv().expect("the client ends");
                }
                Ok(())
            };
            let mut lane = WatchedLane::new(bench.region.lane(), Box::new(watch));
            block_on(destroy_table(&mut lane, &bench.table)).expect("the heap writes");
        });
        for row in (0..128).map(RowId) {
            let row_words = bench.row_words(row);
            let is_whole = bench.table.rows().verify(row, &row_words).is_ok();
            assert!(!is_whole, "{back} steps before the end: {row} is left");
        }
    }
}
