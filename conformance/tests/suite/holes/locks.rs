//! Holes of locks: H12, H18, H21, H23, H25.

use guira_conformance::{Bench, Flaw, Observed, Op, Orders, block_on};
use guira_fabric::heap::Next;
use guira_fabric::{FenceProof, Profile, Region, Verb, post};
use guira_layout::{Preset, RowId, SlotState, SlotWord};
use guira_rcuckoo::{Change, Error, ErrorKind, Outcome, SlotClient, read_slot, recover};

use crate::holes::logged::{Log, logged};
use guira_conformance::crowded::{Fixture, HOME, PRESETS, SEED, client, config, value_of};

/// A row in the lock group of `HOME`, after it, so that `HOME` is the primary row of the key that is moved.
const NEAR: RowId = RowId(HOME.0 + 5);
/// A row after `HOME`, under the next lock.
const FAR: RowId = RowId(HOME.0 + 13);

/// [R-LOCK-7] H12. An insert that locks L1 alone does not see its key in L2, stores it again, and both copies stay:
/// when the key is removed, the older one is back.
#[test]
fn h12_a_removed_key_comes_back() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, RowId(HOME.0 - 5));
        let (mut writer, key) = (fixture.bench.client(0), fixture.moved.to_vec());
        let ops =
            [Op::Insert(key.clone(), value_of(&fixture.moved, 1).to_vec()), Op::Remove(key.clone()), Op::Get(key)];
        let answers = ops.map(|op| writer.apply(&op).expect("no other client is in the way"));
        println!("H12 {preset}: insert, remove, get of a key in its secondary row: {answers:x?}");
        let (outcome, old) = (Observed::Outcome, value_of(&fixture.moved, 0).to_vec());
        let expected = match preset {
            Preset::Paper => [outcome(Outcome::Inserted), outcome(Outcome::Removed), Observed::Value(Some(old))],
            _ => [outcome(Outcome::Exists), outcome(Outcome::Removed), Observed::Value(None)],
        };
        assert_eq!(answers, expected, "{preset}");
    }
}

/// [R-LOCK-7] H12, if the insert reads both rows first: between that READ and its lock another client inserts the key,
/// and a third insert moves it to L2.
#[test]
fn h12_an_insert_that_locks_only_its_path_doubles_a_key() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, FAR);
        let put = |writer| Op::Put(fixture.moved.to_vec(), value_of(&fixture.moved, writer).to_vec());
        let others = vec![Op::Remove(fixture.moved.to_vec()), put(2), fixture.moving_put()];
        let explored = fixture.explore(Profile::Tcp, Orders::Switches(2), &Flaw::None, [vec![put(1)], others]);
        match preset {
            Preset::Paper => explored.assert_violated("H12 paper"),
            _ => explored.assert_holds("H12 hardened", 100),
        }
    }
}

/// Returns two updates of entries of one row.
fn two_updates(fixture: &Fixture) -> [Vec<Op>; 2] {
    [vec![Fixture::update(&fixture.moved, 1)], vec![Fixture::update(&fixture.neighbour, 2)]]
}

/// [R-LOCK-3] H18. READs that are executed before the CAS that takes their lock are stale. A fence between them, which
/// makes the READs wait for the CAS's reply, costs a round trip; the order of the batch costs none.
#[test]
fn h18_a_fence_costs_a_round_trip() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, NEAR);
        for profile in Profile::REMOTE {
            let explore = |flaw| fixture.explore(profile, Orders::Switches(6), &flaw, two_updates(&fixture));
            explore(Flaw::ReadsFirst).assert_violated(&format!("H18 {preset} {profile}, READs overtake the CAS"));
            explore(Flaw::None).assert_holds(&format!("H18 {preset} {profile}"), 20);
            let (bench, log) = (fixture.bench.fork().under(profile), Log::default());
            let mut writer = client(&bench, 0, logged(&bench.region, log.clone()));
            writer.apply(&Fixture::update(&fixture.moved, 1)).expect("no other client is in the way");
            let batches = log.take();
            let fenced = batches.iter().filter(|batch| {
                let atomic = batch.iter().position(|verb| verb.is_atomic());
                atomic.is_some_and(|at| batch[at..].iter().any(|verb| verb.is_read()))
            });
            println!("H18 {preset} {profile}: an update takes {} trips", batches.len());
            assert_eq!((batches.len(), fenced.count()), (2, 1), "with a fence it would take 3");
        }
    }
}

/// [R-LOCK-6] H21. Without masked CAS a neighbouring lock makes the CAS fail, and it is posted again; READs that are
/// not posted again with it were sampled before the lock was won. Both presets post them again.
#[test]
fn h21_reads_are_older_than_the_cas_that_won() {
    for preset in PRESETS {
        let fixture = Fixture::new(preset, NEAR);
        let [first, mut second] = two_updates(&fixture);
        // The second client holds another lock of the word when the first one tries.
        second.insert(0, Fixture::update(&fixture.elsewhere, 3));
        let explore = |flaw| fixture.explore(Profile::Rxe, Orders::Switches(4), &flaw, [first.clone(), second.clone()]);
        explore(Flaw::StaleReads).assert_violated(&format!("H21 {preset}, READs of the first try"));
        explore(Flaw::None).assert_holds(&format!("H21 {preset}"), 200);
    }
}

/// [R-LOCK-5] H23. Two virtual locks are one bit: a client that takes one after the other waits for itself. Locks are
/// mapped and duplicates removed before anything is taken, so such keys change in two round trips like all others.
#[test]
fn h23_two_virtual_locks_are_one_bit() {
    for preset in PRESETS {
        let mut config = config(preset, "fixed:8:8");
        config.physical_locks = 2;
        let bench = Bench::of_config(config, Profile::Mlx5, SEED);
        let (locks, rows_per_lock) = (*bench.table.locks(), u64::from(bench.table.config().rows_per_lock));
        let rows_of = |key: &[u8]| bench.table.placement().rows(bench.table.placement().digest(key));
        let (mut lane, mut writer, mut waiting) = (bench.region.lane(), bench.client(0), 0);
        let keys = (0..20_000u64).map(u64::to_le_bytes).filter(|key| {
            let pair = rows_of(key);
            pair.first.0 / rows_per_lock != pair.second.0 / rows_per_lock
                && locks.lock_of(pair.first) == locks.lock_of(pair.second)
        });
        for key in keys.take(100) {
            let pair = rows_of(&key);
            // This treats the locks of the rows as two.
            let taken = [pair.first, pair.second].map(|row| {
                let lock = locks.mask(locks.lock_of(row));
                let (held, mut found) = (locks.held(writer.client.owner(), lock.mask), 0);
                let (addr, found_there) = (locks.addr(lock.word), &mut found);
                let cas = Verb::MaskedCas {
                    addr,
                    compare: 0,
                    swap: held,
                    compare_mask: lock.mask,
                    swap_mask: lock.mask,
                    found: found_there,
                };
                block_on(post(&mut lane, [cas])).expect("the heap swaps");
                found & lock.mask == 0
            });
            waiting += u32::from(taken == [true, false]);
            bench.store(locks.addr(locks.mask(locks.lock_of(pair.first)).word), &[0]);
            for (op, trips) in [(Op::Put(key.to_vec(), vec![1; 8]), 4), (Fixture::update(&key, 2), 2)] {
                let (answer, traffic) = writer.traffic_of(|writer| writer.apply(&op));
                assert!(answer.is_ok() && traffic.round_trips <= trips, "{preset}: {answer:?} {traffic:?}");
            }
            assert_eq!(writer.change(&key, Change::Remove).map(|it| it.outcome), Ok(Outcome::Removed));
        }
        println!("H23 {preset}: {waiting} of 100 keys, locked one virtual lock after the other, wait for themselves");
        assert_eq!(waiting, 100);
        assert_eq!(bench.audit().map(|contents| contents.len()), Ok(0));
    }
}

/// Clients that die one after the other, each in the middle of an update.
const DEATHS: usize = 200;

/// [R-SLOT-2] [R-SLOT-1] H25. Ids are few, and dead clients keep theirs until they are recovered: a client that needs
/// one recovers them, or the table is out of ids after as many deaths as it has slots. This holds for slots under both
/// presets; in the lock table, where a stale id would stand for another client, preset `paper` has no ids.
#[test]
fn h25_owner_ids_run_out() {
    for preset in PRESETS {
        for recovers in [false, true] {
            let fixture = Fixture::new(preset, NEAR);
            let lived = (0..DEATHS).take_while(|death| dies_in_a_change(&fixture, *death, recovers)).count();
            let slots = usize::from(fixture.bench.table.config().max_clients);
            println!(
                "H25 {preset}: {lived} of {DEATHS} clients get one of {slots} slots, dead ones recovered: {recovers}"
            );
            assert_eq!(lived, if recovers { DEATHS } else { slots });
        }
    }
}

/// Lets a client take a slot and die in the middle of a change. Returns false if there is no slot.
fn dies_in_a_change(fixture: &Fixture, death: usize, recovers: bool) -> bool {
    let Some(slot) = free_slot(&fixture.bench, recovers) else { return false };
    let mut steps = 0;
    let lane = fixture.bench.region.lane().hooked(Box::new(move |_| {
        steps += 1;
        // It dies after it has the lock, at the latest in the WRITE of the row.
        if steps > 3 + death % 40 { Next::Die } else { Next::Continue }
    }));
    let mut writer = client(&fixture.bench, slot, lane).recovering(&fixture.bench);
    let answer = writer.apply(&Fixture::update(&fixture.moved, death as u8));
    assert!(
        matches!(answer, Ok(_) | Err(Error { kind: ErrorKind::Fabric { .. } | ErrorKind::Busy { .. }, .. })),
        "{answer:?}"
    );
    true
}

/// Finds a slot as a store does: a free one, or that of a dead client, which is recovered.
fn free_slot(bench: &Bench, recovers: bool) -> Option<u16> {
    (0..bench.table.config().max_clients).find(|slot| {
        let Some(hold) = bench.region.hold(*slot).expect("the heap holds") else { return false };
        let mut lane = bench.region.lane();
        let word = block_on(read_slot(&mut lane, &bench.table, *slot)).expect("the heap reads").word;
        let SlotWord { state, generation } = word.expect("a sound slot");
        let proof = FenceProof::new(*slot, generation, hold);
        state == SlotState::Free
            || recovers
                && block_on(recover(&mut lane, &bench.table, &proof, &SlotClient::default()))
                    .expect("a sound slot")
                    .is_some()
    })
}
