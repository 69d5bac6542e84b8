//! Holes in the promises of a fabric: H19, H20, H22, H24.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use guira_conformance::{
    Exploration, Flaw, Granularity, Observed, Op, Orders, ScheduledLane, Scheduler, Task, block_on, explore,
};
use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::Ordering;
use guira_fabric::{Effect, Lane, Profile, Region, Space, Verb, pause_until, post};
use guira_fabric_sim::{ClientFault, ClientId, Fault, FaultPlan, Lost, Network, Relaxations, Sim, SimOptions, Stopped};
use guira_layout::{Preset, RowId, SuperblockError};
use guira_rcuckoo::{ClientConfig, Error, ErrorKind, Outcome, Reader, TableError, destroy_table, open_table};

use crate::holes::logged::{Log, logged};
use crate::holes::printed;
use guira_conformance::crowded::{Answer, Fixture, HOME, PRESETS, act, client, operate, value_of};

/// A row in the lock group of `HOME`, after it.
const NEAR: RowId = RowId(HOME.0 + 5);
/// Seeds of H19.
const SEEDS: u64 = 8;
/// The longest lag of rows behind locks: a few round trips.
const LAG_NS: u64 = 10_000;
/// Clients of H19, and the number of changes of each.
const WRITERS: usize = 4;
const CHANGES: u8 = 25;

/// [R-COMMIT-1] H19. The lock is free as soon as its word in one memory says so, but the row, in another memory,
/// becomes visible later: a client that takes the lock in between builds on the old row. No protocol above it can
/// repair that: a region has to promise the order of a batch across both spaces, and the simulator keeps it unless this
/// liberty is enabled.
#[test]
fn h19_a_row_is_seen_later_than_its_lock() {
    for preset in PRESETS {
        for lag_ns in [LAG_NS, 0] {
            let wrong: usize = (0..SEEDS).map(|seed| updates_lost(preset, seed, lag_ns)).sum();
            println!(
                "H19 {preset}, rows seen up to {lag_ns} ns late: {wrong} of {} clients lost changes",
                WRITERS * SEEDS as usize
            );
            assert_eq!(wrong > 0, lag_ns > 0);
        }
    }
}

/// Runs clients that change keys of one row, each its own, from the value the client gave it before; returns how many
/// of them find another one.
fn updates_lost(preset: Preset, seed: u64, main_lag_ns: u64) -> usize {
    let fixture = Fixture::new(preset, NEAR);
    let relaxations = Relaxations { main_lag_ns, ..Relaxations::default() };
    let faults = FaultPlan { relaxations, ..FaultPlan::default() };
    let options = SimOptions { faults, ..SimOptions::new(seed, Network::of(Profile::Mlx5)) };
    let bench = fixture.bench.under(Profile::Mlx5);
    let mut sim = Sim::new(bench.region.clone(), &options);
    let wrong = Rc::new(RefCell::new(0));
    for (slot, key) in keys_of(&fixture, HOME).into_iter().take(WRITERS).enumerate() {
        let (bench, wrong) = (bench.clone(), Rc::clone(&wrong));
        sim.spawn(|region| async move {
            let config = ClientConfig { deadline_ns: u64::MAX, ..ClientConfig::for_table(&bench.table) };
            let mut writer = bench.client_with(slot as u16, bench.region.lane(), config).through(region.lane());
            let value = |writer| value_of(&key, writer).to_vec();
            let mut all_took_place = true;
            for change in 1..=CHANGES {
                let op = Op::Swap(key.to_vec(), value(change - 1), value(change));
                all_took_place &= act(&mut writer, &op).await == Ok(Observed::Outcome(Outcome::Replaced));
                // A client sees its own WRITEs, and so does every other one then.
                let until_ns = writer.lane.now_ns() + LAG_NS;
                pause_until(&mut writer.lane, until_ns).await;
            }
            *wrong.borrow_mut() += usize::from(!all_took_place);
        });
    }
    assert_eq!(sim.run(), Stopped::Ended);
    wrong.take()
}

/// Returns the keys stored in `row`.
fn keys_of(fixture: &Fixture, row: RowId) -> Vec<[u8; 8]> {
    let (rows, words) = (fixture.bench.table.rows(), fixture.bench.row_words(row));
    let key_of = |slot: usize| {
        let mut key = Vec::new();
        rows.append_inline_key(&words, slot, &mut key);
        key.try_into().expect("keys of 8 bytes")
    };
    rows.occupied_entries(&words).map(key_of).collect()
}

/// [R-LOCK-2] H20. Atomics that are atomic only among themselves, such as those of two NICs, let two clients take one
/// lock. In one atomic domain they do not.
#[test]
fn h20_atomics_of_two_nics_both_win() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, NEAR);
        let ops = [vec![Fixture::update(&fixture.moved, 1)], vec![Fixture::update(&fixture.neighbour, 2)]];
        let explore = |flaw| fixture.explore(Profile::Mlx5, Orders::Switches(6), &flaw, ops.clone());
        explore(Flaw::SplitAtomics).assert_violated(&format!("H20 {preset}, two atomic domains"));
        explore(Flaw::None).assert_holds(&format!("H20 {preset}, one"), 20);
    }
}

/// [R-LOCK-2] H20. A WRITE is in no NIC's atomic domain: no operation sends one to the lock table.
#[test]
fn h20_lock_words_are_touched_by_atomics_alone() {
    for preset in PRESETS {
        for profile in Profile::ALL {
            let (fixture, log) = (Fixture::new(preset, NEAR), Log::default());
            let bench = fixture.bench.under(profile);
            let mut lane = logged(&bench.region, log.clone());
            let mut writer = client(&bench, 0, logged(&bench.region, log.clone())).recovering(&bench);
            for op in [fixture.moving_put(), Fixture::update(&fixture.moved, 2), Op::Remove(fixture.moved.to_vec())] {
                writer.apply(&op).expect("no other client is in the way");
            }
            if preset != Preset::Paper {
                die_with_a_lock(&fixture, &bench);
                writer.apply(&Fixture::update(&fixture.neighbour, 3)).expect("dead clients are recovered");
                assert_eq!(writer.client.counters().recoveries, 1);
            }
            block_on(destroy_table(&mut lane, &bench.table)).expect("the heap takes every batch");
            let sent: Vec<_> = log.take().into_iter().flatten().filter(|it| it.addr.space() == Space::Device).collect();
            assert!(sent.len() > 7 && sent.iter().any(|verb| verb.is_atomic()), "{sent:?}");
            assert!(!sent.iter().any(|verb| verb.is_write()), "{preset} {profile}: {sent:?}");
        }
    }
}

/// Lets a client die that holds the lock of `HOME`.
fn die_with_a_lock(fixture: &Fixture, bench: &guira_conformance::Bench) {
    let scheduler = Scheduler::default();
    let remote = bench.under(Profile::Tcp);
    let lane = ScheduledLane::new(&remote.region, &scheduler, Granularity::Verbs, Flaw::None);
    let (mut task, _) = operate(client(&remote, 1, lane), vec![Fixture::update(&fixture.moved, 9)]);
    assert!(!scheduler.give_turn(&mut task), "the CAS is not all");
    assert_eq!(bench.lock_words().len(), 1);
}

/// [R-DROP-2] [R-RECOVER-1] H22. A connection is lost during a change, which cannot learn what its atomics found. With
/// `paper` no client, not even the reconnected one, can tell who holds the lock that is left. With `hardened` the lock
/// names its owner, the client refuses to continue, and another client that waits recovers it.
#[test]
fn h22_a_lock_won_by_an_unanswered_cas() {
    for preset in PRESETS {
        let (mut cases, mut left, mut refused) = (0, 0, 0);
        for lost in [Lost::Request, Lost::Reply] {
            for after_verbs in 0.. {
                let fixture = Fixture::new(preset, NEAR);
                let answers = lose_connection(&fixture, after_verbs, lost);
                let Err(error) = &answers[0] else { break };
                cases += 1;
                let unknown = error.effect() == Effect::Unknown;
                assert!(matches!(error.kind, ErrorKind::Fabric { .. }), "{error}");
                if let Err(Error { kind: ErrorKind::Lost { .. }, .. }) = &answers[1] {
                    refused += 1;
                }
                left += u32::from(!fixture.bench.lock_words().is_empty());
                judge_survivor(&fixture, preset, unknown);
            }
        }
        println!("H22 {preset}: {cases} lost connections leave {left} locks; {refused} clients refuse to continue");
        assert!(cases >= 8 && left >= 4, "{cases} {left}");
        assert!(refused >= left, "a client that may have left a lock reports it");
    }
}

/// Changes an entry of the same row as another client, after the client of the lost connection is gone.
fn judge_survivor(fixture: &Fixture, preset: Preset, unknown: bool) {
    let stuck = !fixture.bench.lock_words().is_empty();
    // On a busy machine the printed failure timeout could pass before the deadline does.
    let config = ClientConfig::for_table(&fixture.bench.table);
    let config = ClientConfig { deadline_ns: 1_000_000, failure_timeout_ns: u64::MAX, ..config };
    let survivor = fixture.bench.client_with(1, fixture.bench.region.lane(), config);
    let answer = survivor.recovering(&fixture.bench).apply(&Fixture::update(&fixture.neighbour, 2));
    if preset == Preset::Paper && stuck {
        assert!(matches!(answer, Err(Error { kind: ErrorKind::Busy { owner: None, .. }, .. })), "{answer:?}");
        return;
    }
    assert_eq!(answer, Ok(Observed::Outcome(Outcome::Replaced)), "{preset}");
    let contents = fixture.bench.audit().expect("a table in order");
    let value = &contents[&fixture.moved[..]];
    let (old, new) = (value_of(&fixture.moved, 0), value_of(&fixture.moved, 1));
    assert!(value[..] == old || unknown && value[..] == new, "{preset}: {value:x?}");
}

/// Lets a client update `moved`, lose its connection after `after_verbs` verbs, and try again. Returns its answers.
fn lose_connection(fixture: &Fixture, after_verbs: u64, lost: Lost) -> Vec<Answer> {
    let fault = ClientFault { client: ClientId(0), after_verbs, fault: Fault::LoseConnection(lost) };
    let faults = FaultPlan { clients: vec![fault], ..FaultPlan::default() };
    let options = SimOptions { faults, ..SimOptions::new(1, Network::of(Profile::Tcp)) };
    let bench = fixture.bench.clone();
    let mut sim = Sim::new(bench.region.clone(), &options);
    let answers = Rc::new(RefCell::new(Vec::new()));
    let (into, key) = (Rc::clone(&answers), fixture.moved);
    sim.spawn(|region| async move {
        let (task, answers) = operate(client(&bench, 0, region.lane()), vec![Fixture::update(&key, 1); 2]);
        task.await;
        into.replace(answers.take());
    });
    assert_eq!(sim.run(), Stopped::Ended);
    answers.take()
}

/// The next action of a client that does not know whether its release was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    /// It posts the release again, through a new connection.
    Again,
    /// It does not repeat the release, and holds no lock any more.
    Once,
}

/// [R-DROP-2] H22, reversed: a release of a 1-bit lock, posted again because its reply was lost, frees the lock of a
/// client that took it in between, and two clients hold it.
#[test]
fn h22_a_release_is_repeated() {
    let explored = |release| -> Exploration {
        let make = |scheduler: &Scheduler| -> (Rc<RefCell<(u32, u32)>>, Vec<Task>) {
            let region = HeapRegion::new(64, 64, Profile::Mlx5.caps());
            region.memory().device[0].store(1, Ordering::Relaxed);
            let inside = Rc::default();
            let mut tasks: Vec<Task> = vec![holder(&region, scheduler, release)];
            tasks.extend((0..2).map(|_| taker(&region, scheduler, &inside)));
            (inside, tasks)
        };
        explore(Orders::Switches(4), make, |inside| match inside.borrow().1 {
            0 | 1 => Ok(()),
            both => Err(format!("{both} clients hold one lock")),
        })
    };
    explored(Release::Again).assert_violated("H22, a release repeated");
    explored(Release::Once).assert_holds("H22, a release not repeated", 20);
}

fn bit_cas(found: &mut u64, compare: u64, swap: u64) -> Verb<'_> {
    Verb::MaskedCas { addr: guira_fabric::Addr::device(0), compare, swap, compare_mask: 1, swap_mask: 1, found }
}

/// Returns a task that holds the lock, and releases it as `release` says.
fn holder(region: &HeapRegion, scheduler: &Scheduler, release: Release) -> Task {
    let mut lane = ScheduledLane::new(region, scheduler, Granularity::Verbs, Flaw::None);
    Box::pin(async move {
        let times = if release == Release::Again { 2 } else { 1 };
        for _ in 0..times {
            post(&mut lane, [bit_cas(&mut 0, 1, 0)]).await.expect("the heap swaps");
        }
    })
}

/// Returns a task that tries a few times to take the lock, stays inside for a turn, and releases it. Counts how many
/// clients are inside, now and at most.
fn taker(region: &HeapRegion, scheduler: &Scheduler, inside: &Rc<RefCell<(u32, u32)>>) -> Task {
    let mut lane = ScheduledLane::new(region, scheduler, Granularity::Verbs, Flaw::None);
    let inside = Rc::clone(inside);
    Box::pin(async move {
        for _ in 0..3 {
            let (mut found, mut word) = (1, [0]);
            post(&mut lane, [bit_cas(&mut found, 0, 1)]).await.expect("the heap swaps");
            if found == 0 {
                let now = inside.borrow().0 + 1;
                let most = inside.borrow().1.max(now);
                inside.replace((now, most));
                let read = Verb::Read { addr: guira_fabric::Addr::main(0), into: &mut word };
                post(&mut lane, [read]).await.expect("the heap reads");
                inside.borrow_mut().0 -= 1;
                post(&mut lane, [bit_cas(&mut found, 1, 0)]).await.expect("the heap swaps");
                return;
            }
            let until_ns = lane.now_ns() + 1;
            pause_until(&mut lane, until_ns).await;
        }
    })
}

/// [R-OPEN-1] [R-ROW-1] H24. The memory node restarts, and every byte is zero. Rows whose checksum covers only their
/// bytes verify and are empty, so every key is a miss. With the incarnation in the seed they are damaged, under both
/// presets, and a table is not opened.
#[test]
fn h24_a_node_that_comes_back_empty_answers_with_misses() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, NEAR);
        let keys: Vec<[u8; 8]> = (0..64).flat_map(|row| keys_of(&fixture, RowId(row))).step_by(4).collect();
        for word in fixture.bench.region.memory().main.iter().chain(fixture.bench.region.memory().device) {
            word.store(0, Ordering::Relaxed);
        }
        let (mut misses, mut errors) = (0, 0);
        let config = ClientConfig { longest_backoff_ns: 500, ..ClientConfig::for_table(&fixture.bench.table) };
        let mut reader = Reader::new(Arc::clone(&fixture.bench.table), config);
        let mut lane = fixture.bench.region.lane();
        for key in &keys {
            let (rows, pair) = (fixture.bench.table.rows(), fixture.bench.table.placement());
            let pair = pair.rows(pair.digest(key));
            let empty = |row: RowId| {
                let words = fixture.bench.row_words(row);
                printed::verifies(&words) && rows.occupied(&words) == 0
            };
            misses += usize::from(empty(pair.first) && empty(pair.second));
            let found = block_on(reader.get(&mut lane, key, &mut Vec::new()));
            errors += usize::from(matches!(found, Err(Error { kind: ErrorKind::Corrupt { .. }, .. })));
        }
        println!("H24 {preset}: of {} keys the printed checksum misses {misses}, ours refuses {errors}", keys.len());
        assert!(keys.len() > 100 && misses == keys.len() && errors == keys.len());
        let opened = block_on(open_table(&mut lane, fixture.bench.region.main_bytes()));
        assert!(matches!(opened, Err(TableError::Superblock(SuperblockError::Empty))), "{opened:?}");
    }
}
