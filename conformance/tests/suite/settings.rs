//! Settings of tables and clients that exist to be compared: what each costs, in exact round trips, messages and bytes,
//! and that a table stays a map under all of them. The defaults of preset `hardened` are in `counts`.
//!
//! Time passes on the lanes of [`Actors`] with every verb, on the others only while a client waits.

use guira_conformance::{Actors, Bench, KeyFinder, NextStep, Observed, Op, TestClient, VerbKind};
use guira_fabric::memory::Ordering;
use guira_fabric::{Profile, Region, Traffic, VerbCounts};
use guira_layout::{LockMask, OffsetRule, OwnerId, Preset, RowId, TableConfig};
use guira_rcuckoo::{
    Acquisition, CacheFill, Change, ClientConfig, Counters, ErrorKind, InsertRow, Outcome, SearchOrder, SearchRoots,
    Synchronize,
};

const SEED: u64 = 17;
const STRANGER: OwnerId = OwnerId(40);
/// Bytes of a row of `fixed:8:8`, in presets `hardened` and `paper`.
const ROW_BYTES: u64 = 128;
const PAPER_ROW_BYTES: u64 = 144;
/// Bytes that an atomic brings back.
const FOUND_BYTES: u64 = 8;

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

fn bench_of(profile: Profile, rows: u64, change: impl FnOnce(&mut TableConfig)) -> Bench {
    let mut config = Bench::of_rows(Preset::Hardened, "fixed:8:8", rows, profile, SEED).table.config().clone();
    change(&mut config);
    config.physical_locks = config.rows / u64::from(config.rows_per_lock);
    Bench::of_config(config, profile, SEED)
}

fn client(bench: &Bench, slot: u16, change: impl FnOnce(&mut ClientConfig)) -> TestClient {
    let mut config = ClientConfig::for_table(&bench.table);
    change(&mut config);
    bench.client_with(slot, bench.region.lane(), config)
}

fn verbs(reads: u64, writes: u64, swaps: u64, adds: u64) -> VerbCounts {
    VerbCounts { reads, writes, swaps, adds }
}

/// Returns the round trips and messages of `op`, and the bytes that it brought back.
fn costs(client: &mut TestClient, op: &Op) -> (u64, VerbCounts, u64) {
    let (answer, traffic) = client.traffic_of(|client| client.apply(op));
    answer.expect("no contention and no damage");
    let Traffic { round_trips, verbs, bytes_in, .. } = traffic;
    (round_trips, verbs, bytes_in)
}

fn lock_of(bench: &Bench, row: RowId) -> LockMask {
    bench.table.locks().mask(bench.table.locks().lock_of(row))
}

/// Puts keys from 0 on until the table is `percent` full; returns their number.
fn fill(bench: &Bench, client: &mut TestClient, percent: u64) -> u64 {
    let keys = bench.table.config().max_entries() * percent / 100;
    for i in 0..keys {
        let changed = client.put(&key(i), &key(i)).unwrap_or_else(|error| panic!("key {i} of {keys}: {error}"));
        assert_eq!(changed.outcome, Outcome::Inserted);
    }
    keys
}

/// Checks that the table has exactly the keys 0 to `keys`, that all rows verify, and that no lock is held.
fn holds_exactly(bench: &Bench, client: &mut TestClient, keys: u64) {
    let many: Vec<[u8; 8]> = (0..2 * keys).map(key).collect();
    for (i, found) in client.get_many(&many).into_iter().enumerate() {
        let wanted = (i < keys as usize).then(|| many[i].to_vec());
        assert_eq!(found.expect("no damage"), wanted, "key {i} of a group");
        assert_eq!(client.get(&many[i]).expect("no damage"), wanted, "key {i}");
    }
    assert_eq!(bench.occupied(), (keys, bench.table.config().rows));
    assert_eq!(bench.lock_words(), []);
}

/// [R-LOCK-3] One message in each round trip, in address order, with the READ of the row under its lock; and one lock
/// in each message. A message takes all wanted locks of its word, unless it may not.
#[test]
fn locks_cost_their_messages_and_trips() {
    for profile in Profile::REMOTE {
        let bench = bench_of(profile, 4096, |config| config.rows_per_lock = 1);
        let mut keys = KeyFinder::new(&bench.table, 50_000);
        let word = |row: RowId| lock_of(&bench, row).word;
        let apart = |a: RowId, b: RowId| a.0 + 1 < b.0;
        let (wide, ..) = keys.take_any(|a, b| word(a) != word(b) && apart(a, b)).expect("a key of two words");
        let (narrow, ..) = keys.take_any(|a, b| word(a) == word(b) && apart(a, b)).expect("a key of one word");
        let mut filler = client(&bench, 9, |_| ());
        filler.put(&wide, &key(0)).expect("room");
        filler.put(&narrow, &key(0)).expect("room");
        let bytes = |messages: u64| 2 * ROW_BYTES + 2 * messages * FOUND_BYTES;
        let cases = [
            (Acquisition::Together, 64, [(2, 2), (2, 1)]),
            (Acquisition::Together, 1, [(2, 2), (2, 2)]),
            (Acquisition::OneMessageATrip, 64, [(3, 2), (2, 1)]),
            (Acquisition::OneMessageATrip, 1, [(3, 2), (3, 2)]),
        ];
        for (slot, (acquisition, locks_per_message, wanted)) in (0..).zip(cases) {
            let mut client = client(&bench, slot, |config| {
                (config.acquisition, config.locks_per_message) = (acquisition, locks_per_message);
            });
            for (key, (trips, messages)) in [wide, narrow].into_iter().zip(wanted) {
                let found = costs(&mut client, &Op::Update(key.to_vec(), vec![1; 8]));
                let wanted = (trips, verbs(2, 1, messages, messages), bytes(messages));
                assert_eq!(found, wanted, "{profile} {acquisition:?} {locks_per_message}");
                assert_eq!(bench.lock_words(), []);
            }
        }
    }
}

/// [R-LOCK-3] [R-LOCK-4] A client that takes one message at a time keeps what it won, tries again at once, with READs
/// of the one row, and gives everything back at its deadline.
#[test]
fn a_taken_lock_is_spun_on_while_the_first_is_kept() {
    let bench = bench_of(Profile::Mlx5, 4096, |config| config.rows_per_lock = 1);
    let locks = bench.table.locks();
    let mut keys = KeyFinder::new(&bench.table, 50_000);
    let word = |row: RowId| lock_of(&bench, row).word;
    let (wide, first, second) = keys.take_any(|a, b| word(a) < word(b) && a.0 + 1 < b.0).expect("a key of two words");
    client(&bench, 9, |_| ()).put(&wide, &key(0)).expect("room");
    let taken = lock_of(&bench, second);
    let stored = &bench.region.memory().device[taken.word as usize];
    for gives_back in [true, false] {
        stored.fetch_add(locks.held(STRANGER, taken.mask), Ordering::AcqRel);
        let mut actors = Actors::new(&bench, 1 << 20);
        let mut config = ClientConfig::for_table(&bench.table);
        (config.acquisition, config.backoff_ns) = (Acquisition::OneMessageATrip, 0);
        config.deadline_ns = 200_000;
        let who = actors.start(u16::from(gives_back), config, vec![Op::Update(wide.to_vec(), vec![5; 8])]);
        let mut steps = Vec::new();
        for _ in 0..40 {
            match actors.next_step(who) {
                // Once in a while it asks whether the lock's owner is alive.
                NextStep::Verb { addr, .. } if addr == bench.table.geometry().slot(STRANGER.0 - 1) => {}
                NextStep::Verb { kind, addr, .. } => steps.push((kind, addr)),
                other => panic!("a client that spins does {other:?}"),
            }
            actors.step(who);
        }
        let (row_at, geometry) = (bench.table.geometry().row(first), bench.table.geometry());
        assert_eq!(steps[..2], [(VerbKind::Atomic, locks.addr(word(first))), (VerbKind::Read, row_at)]);
        let tries = [(VerbKind::Atomic, locks.addr(taken.word)), (VerbKind::Read, geometry.row(second))];
        assert!(steps[2..].chunks_exact(2).all(|step| step == tries), "{steps:?}");
        let own = lock_of(&bench, first);
        let kept = bench.region.memory().device[own.word as usize].load(Ordering::Acquire);
        assert_eq!(kept & own.mask, locks.held(OwnerId::of_slot(gives_back.into()), own.mask), "it keeps the first");
        if gives_back {
            stored.fetch_add(locks.release_addend(STRANGER, taken.mask), Ordering::AcqRel);
        }
        let (answers, counters) = actors.finish(who);
        if gives_back {
            assert_eq!(answers, [Ok(Observed::Outcome(Outcome::Replaced))]);
            assert_eq!(bench.lock_words(), []);
        } else {
            let error = answers[0].as_ref().expect_err("the lock stays taken");
            assert!(matches!(error.kind, ErrorKind::Busy { owner: Some(STRANGER), .. }), "{error}");
            assert_eq!(bench.lock_words(), [(taken.word, locks.held(STRANGER, taken.mask))], "only the stranger's");
        }
        assert!(counters.lock_conflicts >= 19, "{counters:?}");
    }
}

/// [R-READ-2] [R-READ-3] A lookup fetches both rows by one READ if they, and what lies between them, are not larger
/// than the threshold; the READs of a miss sample both trailers again then.
#[test]
fn covering_reads_end_at_their_threshold() {
    for profile in Profile::REMOTE {
        let bench = bench_of(profile, 512, |_| ());
        let keys = fill(&bench, &mut client(&bench, 9, |_| ()), 70);
        let ordered = profile == Profile::Tcp;
        let wraps = (0..2 * keys).filter(|i| {
            let pair = bench.table.placement().rows(bench.table.placement().digest(&key(*i)));
            pair.second < pair.first
        });
        assert!(wraps.count() > 0, "some pairs wrap around");
        for (slot, covered_rows) in (0..).zip([0, 1, 2, 6, 64, 256, 512]) {
            let mut client = client(&bench, slot, |config| {
                config.covering_bytes = (covered_rows * ROW_BYTES) as usize + 7;
            });
            // No READ of a lookup is larger than 32 KiB.
            let most = covered_rows.min((32 << 10) / ROW_BYTES);
            for i in 0..2 * keys {
                let pair = bench.table.placement().rows(bench.table.placement().digest(&key(i)));
                let span = pair.second.0.checked_sub(pair.first.0).map(|distance| distance + 1);
                let covered = span.filter(|span| *span <= most);
                let (reads, rows) = covered.map_or((1 + 1, 2), |span| (1, span));
                let trailers = if covered.is_some() { 2 } else { 1 };
                let (again, trips) = match (ordered, i < keys) {
                    (true, _) => (trailers, 1),
                    (false, true) => (0, 1),
                    (false, false) => (2, 2),
                };
                let found = costs(&mut client, &Op::Get(key(i).to_vec()));
                let wanted = (trips, verbs(reads + again, 0, 0, 0), rows * ROW_BYTES + 16 * again);
                assert_eq!(found, wanted, "{profile}: key {i} in {pair:?}, at most {covered_rows} rows");
            }
            holds_exactly(&bench, &mut client, keys);
        }
    }
}

/// [R-INSERT-2] Lookups and sampled searches feed the cache where a client wants that: its next insert knows the path.
#[test]
fn lookups_feed_the_cache() {
    let bench = bench_of(Profile::Mlx5, 512, |_| ());
    let keys = fill(&bench, &mut client(&bench, 9, |_| ()), 80);
    let inserts = |bench: &Bench, fill: CacheFill, reads_many: Option<bool>| {
        let mut client = client(bench, 0, |config| (config.cache_fill, config.cache_bytes) = (fill, 1 << 20));
        let everything: Vec<[u8; 8]> = (0..keys).map(key).collect();
        match reads_many {
            Some(true) => drop(client.get_many(&everything)),
            Some(false) => everything.iter().for_each(|key| drop(client.get(key).expect("no damage"))),
            None => {}
        }
        let before = client.client.counters();
        let traffic = client
            .traffic_of(|client| (keys..keys + 100).for_each(|i| assert!(client.put(&key(i), &key(i)).is_ok())))
            .1;
        let after = client.client.counters();
        (traffic.round_trips, after.stale_paths - before.stale_paths, after.moves - before.moves)
    };
    for reads_many in [true, false] {
        let (trips, stale, moves) = inserts(&bench.fork(), CacheFill::AllOperations, Some(reads_many));
        assert_eq!((trips, stale), (200, 0), "two trips for each of 100 inserts");
        assert!(moves > 10, "{moves}");
        let (trips, stale, _) = inserts(&bench.fork(), CacheFill::Changes, Some(reads_many));
        assert!(trips > 210 && stale > 0, "{trips} trips, {stale} stale paths");
        let (unread, stale_unread, _) = inserts(&bench.fork(), CacheFill::Changes, None);
        assert_eq!((trips, stale), (unread, stale_unread), "lookups make no difference");
    }
    // A search that sampled rows leaves them in the cache. From the primary rows alone, because inserts that look for
    // room under their locks (R-INSERT-6) hardly ever search.
    let cold = |fill: CacheFill| {
        let bench = bench.fork();
        let mut client = client(&bench, 0, |config| {
            (config.cache_fill, config.cache_bytes, config.speculations) = (fill, 1 << 20, 1);
            config.search_roots = SearchRoots::Primary;
        });
        let put_all = |client: &mut TestClient| {
            (keys..keys + 200).for_each(|i| assert!(client.put(&key(i), &key(i)).is_ok()));
        };
        let ((), traffic) = client.traffic_of(put_all);
        (client.client.counters().sampled_searches, traffic.round_trips)
    };
    let (fed, unfed) = (cold(CacheFill::AllOperations), cold(CacheFill::Changes));
    println!("sampled searches and round trips with sampled rows in the cache: {fed:?}; without: {unfed:?}");
    assert!(fed.0 < unfed.0 && fed.1 < unfed.1, "{fed:?} and {unfed:?}");
}

/// [R-INSERT-1] Where verbs travel, a new key goes to the row with more free entries, unless its client predicts rows;
/// in a table filled like that, fewer inserts need a path, and each operation costs what it did.
#[test]
fn inserts_choose_the_emptier_row() {
    let chosen = Profile::ALL.map(|profile| {
        let bench = bench_of(profile, 64, |_| ());
        let config = ClientConfig::for_table(&bench.table).across(bench.region.caps());
        (profile, config.insert_row)
    });
    for (profile, row) in chosen {
        assert_eq!(row == InsertRow::Primary, profile.caps().local, "{profile}");
    }
    let paper = Bench::of_rows(Preset::Paper, "fixed:8:8", 64, Profile::Mlx5, SEED);
    let printed = ClientConfig::for_table(&paper.table).across(paper.region.caps());
    assert_eq!(printed.insert_row, InsertRow::Primary);

    let bench = bench_of(Profile::Mlx5, 64, |_| ());
    let mut keys = KeyFinder::new(&bench.table, 10_000);
    let (new, first, second) = keys.take_any(|a, b| a < b).expect("a key of two rows");
    let other = keys.take(first, second).expect("another key of these rows");
    let other_bytes = [(&other[..], &other[..])];
    // The rows' entries in use, and the row that each choice fills.
    let cases = [(0, 0, [first, first]), (1, 0, [first, second]), (0, 1, [first, first])];
    for (in_first, in_second, wanted) in cases {
        for (row, wanted) in [InsertRow::Primary, InsertRow::Emptier].into_iter().zip(wanted) {
            let bench = bench.fork();
            bench.fill_row(first, &other_bytes[..in_first]);
            bench.fill_row(second, &other_bytes[..in_second]);
            let mut client = client(&bench, 0, |config| config.insert_row = row);
            client.put(&new, &new).expect("room");
            let with_key = [first, second].map(|row| bench.table.rows().occupied(&bench.row_words(row)));
            let expected = [(in_first, first), (in_second, second)].map(|(n, row)| n as u32 + u32::from(row == wanted));
            assert_eq!(with_key, expected, "{row:?}, {in_first} and {in_second} in use");
        }
    }

    let trips_and_moves = [InsertRow::Primary, InsertRow::Emptier].map(|row| {
        let bench = bench_of(Profile::Mlx5, 2048, |_| ());
        let mut client = client(&bench, 0, |config| config.insert_row = row);
        let from = fill(&bench, &mut client, 85);
        let moves = client.client.counters().moves;
        let keys = bench.table.config().max_entries() * 90 / 100;
        let ((), traffic) = client.traffic_of(|client| {
            (from..keys).for_each(|i| assert!(client.put(&key(i), &key(i)).is_ok()));
        });
        holds_exactly(&bench, &mut client, keys);
        (traffic.round_trips, client.client.counters().moves - moves)
    });
    println!("round trips and moves from 85 to 90 %: {trips_and_moves:?}");
    let [primary, emptier] = trips_and_moves;
    assert!(emptier.0 * 10 < primary.0 * 9 && emptier.1 * 4 < primary.1 * 3, "{trips_and_moves:?}");
}

/// The round trips of the inserts that fill a table from 85 to 93 %, sorted, and the client's counters.
fn insert_trips(order: SearchOrder, rule: OffsetRule, seed: u64) -> (Vec<u64>, Counters) {
    let bench = bench_of(Profile::Mlx5, 2048, |config| {
        config.offset_rule = rule;
        config.max_path_rows = if order == SearchOrder::DepthFirst { 32 } else { 9 };
    });
    let lane = bench.region.lane();
    let config = ClientConfig { search: order, ..ClientConfig::for_table(&bench.table) };
    let mut client = bench.client_with(seed as u16, lane, config);
    let from = fill(&bench, &mut client, 85);
    let keys = bench.table.config().max_entries() * 93 / 100;
    let mut trips: Vec<u64> = (from..keys)
        .map(|i| {
            let (changed, traffic) = client.traffic_of(|client| client.put(&key(i), &key(i)));
            assert_eq!(changed.expect("room").outcome, Outcome::Inserted);
            traffic.round_trips
        })
        .collect();
    holds_exactly(&bench, &mut client, keys);
    trips.sort_unstable();
    (trips, client.client.counters())
}

/// [R-INSERT-1] [R-HASH-2] Depth-first search over independent rows needs far more round trips than breadth-first
/// search over dependent ones, and follows from the client's seed.
#[test]
fn the_search_of_earlier_tables_costs_more() {
    let all = [SearchOrder::BreadthFirst, SearchOrder::DepthFirst]
        .map(|order| [OffsetRule::Odd, OffsetRule::Independent].map(|rule| insert_trips(order, rule, 0)));
    for (order, of_order) in ["breadth-first", "depth-first"].iter().zip(&all) {
        for (rule, (trips, counters)) in ["dependent", "independent"].iter().zip(of_order) {
            let (p50, p99) = (trips[trips.len() / 2], trips[trips.len() * 99 / 100]);
            println!("{order}, {rule}: p50 {p50}, p99 {p99} round trips, {} moves", counters.moves);
        }
    }
    let p99 = |(trips, _): &(Vec<u64>, Counters)| trips[trips.len() * 99 / 100];
    assert!(p99(&all[1][1]) >= 2 * p99(&all[0][0]), "{} and {}", p99(&all[1][1]), p99(&all[0][0]));
    assert!(all[1][1].1.moves > all[0][1].1.moves, "a walk takes longer paths");
    let [again, other] = [0, 1].map(|seed| insert_trips(SearchOrder::DepthFirst, OffsetRule::Independent, seed));
    assert!(again == all[1][1], "equal seeds, equal walks");
    assert!(other != all[1][1], "other seeds, other walks");
}

/// [R-LOCK-1] [R-INSERT-3] An insert that synchronizes what its locks guard reads 128, 256 or 512 rows by one READ, an
/// update only its key's.
#[test]
fn wide_locks_guard_up_to_512_rows() {
    for profile in Profile::REMOTE {
        for rows_per_lock in [128, 256, 512] {
            let bench = bench_of(profile, 2048, |config| config.rows_per_lock = rows_per_lock);
            let mut keys = KeyFinder::new(&bench.table, 50_000);
            let lock = |row: RowId| bench.table.locks().lock_of(row);
            let (narrow, ..) = keys.take_any(|a, b| lock(a) == lock(b) && a.0 + 1 < b.0).expect("a key of one lock");
            let of_neighbours = |a: RowId, b: RowId| lock(a).0 + 1 == lock(b).0 && a.0 + 1 < b.0;
            let (wide, ..) = keys.take_any(of_neighbours).expect("a key of two neighbouring locks");
            let mut client = client(&bench, 0, |config| config.synchronize = Synchronize::Locks);
            for (key, locks) in [(narrow, 1), (wide, 2)] {
                // Rows of neighbouring locks are one range, and one READ.
                let wanted = |rows: u64, reads| (2, verbs(reads, 1, 1, 1), rows * ROW_BYTES + 2 * FOUND_BYTES);
                let found = costs(&mut client, &Op::Insert(key.to_vec(), vec![1; 8]));
                assert_eq!(found, wanted(locks * u64::from(rows_per_lock), 1), "{profile} {rows_per_lock}");
                assert_eq!(costs(&mut client, &Op::Update(key.to_vec(), vec![2; 8])), wanted(2, 2));
            }
            assert_eq!(bench.lock_words(), []);
        }
        let bench = bench_of(profile, 512, |config| config.rows_per_lock = 512);
        let mut client = client(&bench, 0, |config| config.synchronize = Synchronize::Locks);
        let keys = fill(&bench, &mut client, 90);
        holds_exactly(&bench, &mut client, keys);
    }
}

/// Preset `paper` costs what the paper prints: a lookup 1 round trip, an update 2 for each word of locks and 1 more, an
/// insert as well, with READs of all 16 rows under each lock; a key whose rows are adjacent, or one, is read by one
/// READ. [R-READ-2] [R-LOCK-3] [R-LOCK-7] [R-INSERT-3]
#[test]
fn preset_paper_costs_what_is_printed() {
    for profile in [Profile::Tcp, Profile::Mlx5] {
        let bench = Bench::of_rows(Preset::Paper, "fixed:8:8", 4096, profile, SEED);
        let config = ClientConfig::for_table(&bench.table);
        assert_eq!((config.acquisition, config.backoff_ns), (Acquisition::OneMessageATrip, 0));
        assert_eq!((config.search_roots, config.search_depth), (SearchRoots::Primary, 5));
        assert_eq!((config.synchronize, config.cache_fill), (Synchronize::Locks, CacheFill::AllOperations));
        assert_eq!((config.search, config.locks_per_message), (SearchOrder::BreadthFirst, 64));
        let mut keys = KeyFinder::new(&bench.table, 100_000);
        let (word, lock) = (|row| lock_of(&bench, row).word, |row| bench.table.locks().lock_of(row));
        let apart = |a: RowId, b: RowId| a.0 + 1 < b.0;
        let cases = [
            ("one row", keys.take_any(|a, b| a == b), 1, 1, 1),
            ("adjacent rows", keys.take_any(|a, b| a.0 + 1 == b.0 && lock(a) == lock(b)), 1, 1, 2),
            ("one lock", keys.take_any(|a, b| apart(a, b) && lock(a) == lock(b)), 1, 2, 2),
            ("one word", keys.take_any(|a, b| apart(a, b) && lock(a) < lock(b) && word(a) == word(b)), 1, 2, 2),
            ("two words", keys.take_any(|a, b| apart(a, b) && word(a) < word(b)), 2, 2, 2),
        ];
        let mut client = client(&bench, 0, |_| ());
        for (name, key, words, reads, rows) in cases {
            let (key, ..) = key.unwrap_or_else(|| panic!("a key of {name}"));
            let key = key.to_vec();
            let locked = |reads, writes, rows: u64, words: u64| {
                (1 + words, verbs(reads, writes, 2 * words, 0), rows * PAPER_ROW_BYTES + 2 * words * FOUND_BYTES)
            };
            let case = format!("{profile}, {name}");
            assert_eq!(costs(&mut client, &Op::Insert(key.clone(), vec![1; 8])), locked(1, 1, 16, 1), "{case}: insert");
            let lookup = (1, verbs(reads, 0, 0, 0), rows * PAPER_ROW_BYTES);
            assert_eq!(costs(&mut client, &Op::Get(key.clone())), lookup, "{case}: lookup");
            let update = Op::Update(key.clone(), vec![2; 8]);
            assert_eq!(costs(&mut client, &update), locked(reads, 1, rows, words), "{case}: update");
            assert_eq!(costs(&mut client, &Op::Remove(key.clone())), locked(reads, 1, rows, words), "{case}: remove");
            let (trips, verbs, bytes) = costs(&mut client, &Op::Put(key, vec![3; 8]));
            let (missing, inserted) = (locked(reads, 0, rows, words), locked(1, 1, 16, 1));
            assert_eq!(trips, missing.0 + inserted.0, "{case}: a put is an update, and then an insert");
            assert_eq!(verbs.reads, missing.1.reads + inserted.1.reads, "{case}: put");
            assert_eq!(bytes, missing.2 + inserted.2, "{case}: put");
        }
    }
}

/// A table is a map under every combination of settings, shared by clients that choose differently.
#[test]
fn clients_that_choose_differently_share_a_table() {
    let mut cases = 0;
    for preset in [Preset::Hardened, Preset::Paper] {
        for rule in [OffsetRule::Odd, OffsetRule::Independent] {
            let config = Bench::of_rows(preset, "fixed:8:8", 512, Profile::Mlx5, SEED).table.config().clone();
            let config = TableConfig { offset_rule: rule, max_path_rows: 12, ..config };
            let bench = Bench::of_config(config, Profile::Mlx5, SEED);
            let mut clients = Vec::new();
            for (slot, bits) in (0..16u16).enumerate() {
                let pick = |bit: u16| bits >> bit & 1 == 1;
                clients.push(client(&bench, slot as u16, |config| {
                    config.acquisition = if pick(0) { Acquisition::OneMessageATrip } else { Acquisition::Together };
                    config.search = if pick(1) { SearchOrder::DepthFirst } else { SearchOrder::BreadthFirst };
                    config.cache_fill = if pick(2) { CacheFill::AllOperations } else { CacheFill::Changes };
                    config.synchronize = if pick(3) { Synchronize::Locks } else { Synchronize::Path };
                    config.locks_per_message = 1 + u32::from(bits);
                    config.covering_bytes = 1 << bits;
                }));
            }
            let keys = bench.table.config().max_entries() * 80 / 100;
            for i in 0..keys {
                let turn = (i % 16) as usize;
                assert_eq!(clients[turn].put(&key(i), &key(i)).expect("room").outcome, Outcome::Inserted);
                let (get, remove) = (clients[(turn + 5) % 16].get(&key(i)), (turn + 11) % 16);
                assert_eq!(get.expect("no damage"), Some(key(i).to_vec()));
                if i % 3 == 0 {
                    let removed = clients[remove].change(&key(i), Change::Remove).expect("no contention");
                    assert_eq!(removed.outcome, Outcome::Removed);
                    assert_eq!(clients[turn].put(&key(i), &key(i)).expect("room").outcome, Outcome::Inserted);
                }
            }
            holds_exactly(&bench, &mut clients[7], keys);
            cases += 1;
        }
    }
    assert_eq!(cases, 4);
}
