//! Repair leases: which client repairs, and what happens if a repairer dies.

use guira_conformance::{Actors, Bench, Observed, Op};
use guira_fabric::Caps;
use guira_layout::{LeaseWord, LockId, OwnerId};
use guira_rcuckoo::{LockIncident, Outcome};

use crate::repair::fixture::{Fixture, config, missing_under};

fn lease(bench: &Bench, region: u8) -> LeaseWord {
    LeaseWord(bench.words_at(bench.table.geometry().lease(region), 1)[0])
}

/// Takes `lock` on behalf of a client that is gone.
fn strand(bench: &Bench, lock: LockId) {
    let mask = bench.table.locks().mask(lock);
    let addr = bench.table.locks().addr(mask.word);
    bench.store(addr, &[bench.words_at(addr, 1)[0] | mask.mask]);
}

fn removes(bench: &Bench, lock: u64) -> Vec<Op> {
    vec![Op::Remove(missing_under(bench, LockId(lock)))]
}

/// Returns the incidents that `who` reported, all of which must be of `lock`.
fn incidents(actors: &Actors, who: usize, lock: LockId) -> Vec<LockIncident> {
    let incidents = actors.lock_incidents(who);
    assert!(incidents.iter().all(|(of, _)| *of == lock), "{incidents:?}");
    incidents.into_iter().map(|(_, incident)| incident).collect()
}

const MISSING: Result<Observed, guira_rcuckoo::Error> = Ok(Observed::Outcome(Outcome::Missing));

/// [R-REPAIR-3] A table is formatted with a free lease for each region; a repair takes the lease of the lock's region,
/// counts it, and returns it under the holder's name.
#[test]
fn a_repair_takes_the_lease_of_its_region_and_gives_it_back() {
    let bench = Fixture::new().bench.fork();
    let regions = bench.table.config().repair_regions;
    assert_eq!(regions, 8, "one for each lock");
    assert!((0..regions).all(|region| lease(&bench, region) == LeaseWord::of_region(region)));
    strand(&bench, LockId(5));
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let repairer = actors.start(6, config(&bench), removes(&bench, 5));
    assert!(actors.run_until(repairer, |step| step.is_lease(&bench)), "it acquires");
    actors.step(repairer);
    let taken = LeaseWord::of_region(5).taken_by(OwnerId::of_slot(6));
    assert_eq!(lease(&bench, 5), taken);
    let (answers, counters) = actors.finish(repairer);
    assert_eq!((&answers[..], counters.leases, counters.revocations), (&[MISSING][..], 1, 0));
    let incidents = incidents(&actors, repairer, LockId(5));
    let leased = LockIncident::Leased { region: 5, revoked: None };
    assert_eq!(incidents[..3], [LockIncident::Suspected, leased, LockIncident::Found { state: 4 }]);
    let [LockIncident::Reclaimed { took_ns }] = incidents[3..] else { panic!("{incidents:?}") };
    assert!((1..100_000).contains(&took_ns), "some round trips: {took_ns}");
    assert_eq!(lease(&bench, 5), taken.released());
    assert_eq!(taken.released().counter(), 1);
    assert!((0..5).all(|region| lease(&bench, region) == LeaseWord::of_region(region)), "other regions are others'");
}

/// [R-REPAIR-4] If a client dies with a lease, another one takes over after a further timeout: the lease is revoked,
/// and the revocation counted.
#[test]
fn a_dead_repairers_lease_is_revoked() {
    let bench = Fixture::new().bench.fork();
    strand(&bench, LockId(2));
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let dead = actors.start(1, config(&bench), removes(&bench, 2));
    assert!(actors.run_until(dead, |step| step.is_lease(&bench)));
    actors.step(dead);
    actors.kill(dead);
    let before_ns = actors.now_ns();
    let next = actors.start(2, config(&bench), removes(&bench, 2));
    let (answers, counters) = actors.finish(next);
    assert_eq!((&answers[..], counters.leases, counters.revocations), (&[MISSING][..], 1, 1));
    let leased = LockIncident::Leased { region: 2, revoked: Some(OwnerId::of_slot(1)) };
    assert_eq!(incidents(&actors, next, LockId(2))[..2], [LockIncident::Suspected, leased]);
    let took_ns = actors.now_ns() - before_ns;
    assert!((200_000_000..240_000_000).contains(&took_ns), "both timeouts: {took_ns}");
    let expected = LeaseWord::of_region(2).taken_by(OwnerId::of_slot(1)).taken_by(OwnerId::of_slot(2)).released();
    assert_eq!(lease(&bench, 2), expected);
    // A lease of another region is no obstacle.
    strand(&bench, LockId(3));
    bench.store(bench.table.geometry().lease(2), &[expected.taken_by(OwnerId(9)).0]);
    let before_ns = actors.now_ns();
    let other = actors.start(3, config(&bench), removes(&bench, 3));
    assert_eq!(actors.finish(other).0, [MISSING]);
    assert!(actors.now_ns() - before_ns < 130_000_000);
}

/// [R-REPAIR-5] Of two clients that suspect one holder, one repairs; the other one finds the lock free before it has a
/// lease, and counts a false suspicion.
#[test]
fn only_one_of_two_clients_repairs() {
    let bench = Fixture::new().bench.fork();
    strand(&bench, LockId(2));
    let mut actors = Actors::new(&bench, Caps::WHOLE_WRITE);
    let [one, two] = [1, 2].map(|slot| actors.start(slot, config(&bench), removes(&bench, 2)));
    for who in [one, two] {
        assert!(actors.run_until(who, |step| step.is_lease(&bench)));
    }
    let (answers, counters) = actors.finish(one);
    assert_eq!((&answers[..], counters.leases, counters.false_suspicions), (&[MISSING][..], 1, 0));
    let (answers, counters) = actors.finish(two);
    assert_eq!((&answers[..], counters.leases, counters.false_suspicions), (&[MISSING][..], 0, 1));
    assert_eq!(incidents(&actors, two, LockId(2)), [LockIncident::Suspected, LockIncident::Withdrawn]);
    assert_eq!(lease(&bench, 2).counter(), 1);
}
