//! Atomic domains: a region is mapped by processes, or claimed for a device, but never both.

use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use guira_fabric::Space;
use guira_fabric_shm::Attempt;

use super::*;

/// The duration of a race.
const RACE: Duration = Duration::from_millis(300);

// ---- Roles of child processes.

/// Claims the region, ends the claim, and claims it again.
pub fn claimer(location: &Location) {
    let region = open(location);
    let claim = region.claim_for_device().unwrap();
    say("claimed");
    wait_for_order();
    drop(claim);
    say("released");
    wait_for_order();
    match region.claim_for_device() {
        Ok(_) => say("claimed again"),
        Err(error) => say(error),
    }
    wait_for_order();
}

/// Maps the region for reading.
pub fn mapper(location: &Location) {
    let region = ShmRegion::open(location, Access::ReadOnly).unwrap();
    let lane = region.lane();
    // A lane keeps the mapping.
    drop(region);
    say("mapped");
    wait_for_order();
    drop(lane);
    say("unmapped");
    wait_for_order();
}

/// Claims the region and forks; the forked process drops its copies and stays alive.
pub fn claiming_forker(location: &Location, fork: impl FnOnce(&mut dyn FnMut() -> i32) -> u32) {
    let region = open(location);
    let mut claim = Some(region.claim_for_device().unwrap());
    let mut kept = (0, region.clone());
    let pid = fork(&mut || {
        drop(claim.take());
        kept.0 = kept.1.claim_for_device().is_err_and(|error| matches!(error, ShmError::NotClaimable { .. })).into();
        say(format!("forked {}", kept.0));
        loop {
            std::thread::park();
        }
    });
    say(pid);
    wait_for_order();
}

/// Maps the region and forks; the forked process keeps its copies and stays alive.
pub fn mapping_forker(location: &Location) {
    let region = open(location);
    let pid = fork(|| {
        loop {
            std::thread::park();
            std::hint::black_box(&region);
        }
    });
    say(pid);
    wait_for_order();
}

/// Claims the region and closes all of its descriptors, as programs do that go into the background. Opens another file
/// under each of their numbers.
pub fn claiming_closer(location: &Location) {
    let region = open(location);
    let claim = region.claim_for_device().unwrap();
    for descriptor in 3..64 {
        // SAFETY: a system call; claims tolerate the loss of their descriptors, and nothing else here has one.
        unsafe { libc::close(descriptor) };
        // SAFETY: as above; the name is a string that ends with a zero.
        assert!(unsafe { libc::open(c"/dev/zero".as_ptr(), libc::O_RDWR) } >= 3);
    }
    say("closed");
    wait_for_order();
    drop(claim);
    assert!(region.is_claimed_for_device(), "the kernel was not told, so the claim lasts");
    say("dropped");
    wait_for_order();
    // The region's descriptor number belongs to another file now, and must not be closed.
    std::mem::forget(region);
}

// ---- Tests.

/// Returns the outcomes of all ways to use the region at `location`, none of which waits or changes anything.
fn attempts(location: &Location) -> [Result<(), ShmError>; 4] {
    [
        ShmRegion::open(location, Access::ReadWrite).map(drop),
        ShmRegion::open(location, Access::ReadOnly).map(drop),
        ShmRegion::open_to_destroy(location).map(drop),
        ShmRegion::destroy(location),
    ]
}

fn assert_all_refused(location: &Location) {
    for (index, outcome) in attempts(location).into_iter().enumerate() {
        let Err(error @ ShmError::ServedByDevice { .. }) = outcome else { panic!("attempt {index}: {outcome:?}") };
        let text = error.to_string();
        assert!(text.contains("served over RDMA") && text.contains("rdma://"), "{text}");
        assert!(text.ends_with("; nothing was changed"), "{text}");
    }
}

fn is_mapped_elsewhere(region: &ShmRegion) -> bool {
    match region.claim_for_device() {
        Ok(_) => false,
        Err(ShmError::MappedElsewhere { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_claimed_region_is_closed_to_all_other_processes() {
    for mode in MODES {
        let scratch = Scratch::new();
        write(&mut common::create_with_mode(&scratch.location, mode).lane(), Addr::main(0), 5);
        let before = std::fs::read(scratch.location.path()).unwrap();
        let mut actor = spawn("claimer", &scratch.location);
        assert_eq!(actor.next_word(), "claimed");
        assert_all_refused(&scratch.location);
        actor.signal(Signal::STOP);
        assert_all_refused(&scratch.location);
        actor.signal(Signal::CONT);
        assert_eq!(std::fs::read(scratch.location.path()).unwrap(), before);

        actor.resume();
        assert_eq!(actor.next_word(), "released");
        let region = open(&scratch.location);
        assert_eq!(read(&mut region.lane(), Addr::main(0)), 5);
        actor.resume();
        let refused = actor.next_word();
        assert!(refused.contains("open elsewhere") && refused.ends_with("; nothing was changed"), "{refused}");
        assert!(is_mapped_elsewhere(&region), "the other process still has it mapped");
        actor.resume();
        assert!(actor.process.wait().unwrap().success());
        assert!(!is_mapped_elsewhere(&region));
    }
}

#[test]
fn a_killed_claimer_leaves_the_region_open_to_all() {
    let scratch = Scratch::new();
    scratch.create();
    for signal in [Signal::KILL, Signal::ABORT] {
        let mut actor = spawn("claimer", &scratch.location);
        assert_eq!(actor.next_word(), "claimed");
        assert_all_refused(&scratch.location);
        actor.signal(signal);
        actor.process.wait().unwrap();
        let region = open(&scratch.location);
        write(&mut region.lane(), Addr::main(0), 1);
        assert!(!is_mapped_elsewhere(&region));
    }
}

#[test]
fn a_mapped_region_cannot_be_claimed() {
    for role in ["holder", "mapper"] {
        for mode in MODES {
            let scratch = Scratch::new();
            let region = common::create_with_mode(&scratch.location, mode);
            let mut actor = spawn(role, &scratch.location);
            actor.next_word();
            assert!(is_mapped_elsewhere(&region), "{role}");
            assert!(!region.is_claimed_for_device() && open(&scratch.location).hold(3).unwrap().is_some());
            actor.kill();
            assert!(!is_mapped_elsewhere(&region), "{role}");
        }
    }
    let scratch = Scratch::new();
    let region = scratch.create();
    let mut actor = spawn("mapper", &scratch.location);
    assert_eq!(actor.next_word(), "mapped");
    assert!(is_mapped_elsewhere(&region));
    actor.resume();
    assert_eq!(actor.next_word(), "unmapped");
    assert!(!is_mapped_elsewhere(&region), "the last lane was dropped");
}

/// A claim of a killed process lasts as long as its forked children do, like the queue pairs of the device. A claim
/// that ends in order does not live on in them, nor does a mapping.
#[test]
fn a_forked_child_keeps_its_killed_parents_claim_and_no_mapping() {
    let roles = ["claiming forker", "claiming cloner"];
    for role in &roles[..if rustix::param::page_size() == 4096 { 2 } else { 1 }] {
        let scratch = Scratch::new();
        scratch.create();
        let start = |scratch: &Scratch| {
            let mut actor = spawn(role, &scratch.location);
            let mut words = [actor.next_word(), actor.next_word()];
            words.sort();
            assert_eq!(words[1], "forked 1", "{role}: the child cannot claim by its parent's handle");
            (actor, Orphan::of(&words[0]))
        };
        let (mut actor, child) = start(&scratch);
        assert_all_refused(&scratch.location);
        actor.kill();
        assert!(child.is_running());
        assert_all_refused(&scratch.location);
        drop(child);
        wait_until("the child has ended", || ShmRegion::open(&scratch.location, Access::ReadOnly).is_ok());
        assert!(!is_mapped_elsewhere(&open(&scratch.location)), "{role}");

        let (mut actor, child) = start(&scratch);
        actor.resume();
        assert!(actor.process.wait().unwrap().success());
        wait_until(role, || !is_mapped_elsewhere(&open(&scratch.location)));
        assert!(child.is_running(), "{role}");
    }

    let scratch = Scratch::new();
    let region = scratch.create();
    let mut actor = spawn("mapping forker", &scratch.location);
    let forked = Orphan::of(&actor.next_word());
    assert!(is_mapped_elsewhere(&region));
    actor.kill();
    // A child that has not run since the fork has not let go yet.
    wait_until("the child keeps no mapping's lock", || !is_mapped_elsewhere(&region));
    assert!(forked.is_running());
}

#[test]
fn a_program_that_the_claimer_started_keeps_no_domain() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let mut actor = spawn("spawner", &scratch.location);
    let other = Orphan::of(&actor.next_word());
    actor.kill();
    wait_until("the program has started", || !is_mapped_elsewhere(&region));
    assert!(other.is_running());
}

#[test]
fn closing_descriptors_ends_no_claim() {
    let scratch = Scratch::new();
    scratch.create();
    let mut actor = spawn("claiming closer", &scratch.location);
    assert_eq!(actor.next_word(), "closed");
    assert_all_refused(&scratch.location);
    actor.resume();
    assert_eq!(actor.next_word(), "dropped");
    assert_all_refused(&scratch.location);
    actor.kill();
    assert!(!is_mapped_elsewhere(&open(&scratch.location)));
}

/// A user who may only read can keep a region from being claimed, as every reader does, but not from being opened.
#[test]
fn a_reader_blocks_claims_and_nothing_else() {
    let scratch = Scratch::new();
    let region = common::create_with_mode(&scratch.location, 0o644);
    write(&mut region.lane(), Addr::main(0), 5);
    let mut actor = spawn("reader", &scratch.location);
    assert_eq!(actor.next_word(), "locked");
    assert!(is_mapped_elsewhere(&region));
    assert!(open(&scratch.location).hold(2).unwrap().is_some());
    actor.kill();
    assert!(!is_mapped_elsewhere(&region));
}

#[test]
fn one_process_makes_one_claim() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let clone = region.clone();
    let second = open(&scratch.location);
    for other in [&region, &second] {
        assert!(is_mapped_elsewhere(other), "a second opening is another mapping");
    }
    drop(second);
    let early = region.lane();
    let busy = clone.claim_for_device().unwrap_err();
    assert!(matches!(busy, ShmError::LanesOpen { .. }) && busy.to_string().ends_with("nothing was changed"), "{busy}");
    drop(early);
    let claim = region.claim_for_device().unwrap();
    assert!(clone.is_claimed_for_device());
    let again = clone.claim_for_device().unwrap_err();
    assert!(matches!(again, ShmError::ServedByDevice { attempt: Attempt::Claim, .. }), "{again}");
    assert_all_refused(&scratch.location);

    // Lanes that are opened now only read, and the device reaches the words of both spaces.
    let mut late = clone.lane();
    let cas = &mut [Verb::Cas { addr: Addr::device(0), compare: 0, swap: 1, found: &mut 0 }];
    assert!(matches!(submit(&mut late, cas), Err(FabricError::ReadOnly { .. })));
    let words = [Space::Main, Space::Device].map(|space| claim.words(space));
    let slices: [&[_]; 2] = [(*words[0]).as_ref(), (*words[1]).as_ref()];
    assert_eq!(slices.map(|slice| slice.len() as u64 * 8), [MAIN_BYTES, DEVICE_BYTES]);
    slices[0][1].store(7, Ordering::Relaxed);
    slices[1][0].store(8, Ordering::Relaxed);
    assert_eq!((read(&mut late, Addr::main(8)), read(&mut late, Addr::device(0))), (7, 8));

    // The words keep the claim and the mapping.
    let [main, device] = words;
    drop((claim, device, region, late));
    assert!(clone.is_claimed_for_device());
    clone.remove_name(&scratch.location).unwrap();
    drop(clone);
    let slice: &[_] = (*main).as_ref();
    assert_eq!(slice[1].load(Ordering::Relaxed), 7);
}

#[test]
fn an_ended_claim_leaves_the_region_as_it_was() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let claim = region.claim_for_device().unwrap();
    let words = claim.clone().words(Space::Main);
    drop(claim);
    assert_all_refused(&scratch.location);
    drop(words);
    assert!(!region.is_claimed_for_device());
    write(&mut region.lane(), Addr::main(0), 1);
    let opened = ShmRegion::open(&scratch.location, Access::ReadOnly).unwrap();
    let error = opened.claim_for_device().unwrap_err();
    assert!(matches!(error, ShmError::NotClaimable { .. }) && error.to_string().contains("reading only"), "{error}");
    drop(region);
    ShmRegion::destroy(&scratch.location).unwrap();
}

#[test]
fn an_unnamed_region_is_claimed_by_the_same_call() {
    let init = |_: &ShmRegion| Ok::<(), FabricError>(());
    let region = ShmRegion::create_unnamed(CreateOptions::new(MAIN_BYTES, DEVICE_BYTES), init).unwrap();
    let claim = region.claim_for_device().unwrap();
    assert!(matches!(region.clone().claim_for_device(), Err(ShmError::ServedByDevice { .. })));
    let words = claim.words(Space::Device);
    assert_eq!((*words).as_ref().len() as u64 * 8, DEVICE_BYTES);
    drop((claim, words));
    assert!(!region.is_claimed_for_device() && region.claim_for_device().is_ok());
}

/// Threads open lanes of one mapping while another claims it: no lane changes a region that is claimed.
#[test]
fn claims_and_lanes_exclude_each_other_however_many_race() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let (is_claimed, changes, claims) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    let goes_on = || {
        assert!(start.elapsed() < patience(), "one side never had its way");
        start.elapsed() < RACE || changes.load(Ordering::SeqCst) == 0 || claims.load(Ordering::SeqCst) == 0
    };
    let change = || {
        while goes_on() {
            let mut lane = region.lane();
            let add = &mut [Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut 0 }];
            if submit(&mut lane, add).is_ok() {
                assert!(!is_claimed.load(Ordering::SeqCst), "the region is claimed, and a lane may change it");
                changes.fetch_add(1, Ordering::SeqCst);
            }
            drop(lane);
            std::thread::yield_now();
        }
    };
    let claim = || {
        while goes_on() {
            match region.claim_for_device() {
                Ok(claim) => {
                    is_claimed.store(true, Ordering::SeqCst);
                    claims.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                    is_claimed.store(false, Ordering::SeqCst);
                    drop(claim);
                }
                Err(ShmError::LanesOpen { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(change);
        scope.spawn(change);
        scope.spawn(claim);
    });
}

/// Threads open and claim a region as often as they can: a claim is always the only user.
#[test]
fn claims_and_mappings_exclude_each_other_however_many_race() {
    let scratch = Scratch::new();
    scratch.create();
    let (mapped, claims, mappings) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    let race = |access: Access| {
        let has_lacked_an_outcome = || {
            let claims = claims.load(Ordering::SeqCst);
            claims == 0 || mappings.load(Ordering::SeqCst) <= claims
        };
        while start.elapsed() < RACE || has_lacked_an_outcome() {
            assert!(start.elapsed() < patience(), "no attempt to claim was ever alone, or every one was");
            let region = match ShmRegion::open(&scratch.location, access) {
                Ok(region) => region,
                Err(ShmError::ServedByDevice { .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            mapped.fetch_add(1, Ordering::SeqCst);
            mappings.fetch_add(1, Ordering::SeqCst);
            match region.claim_for_device() {
                Ok(_claim) => {
                    claims.fetch_add(1, Ordering::SeqCst);
                    for _ in 0..10 {
                        assert_eq!(mapped.load(Ordering::SeqCst), 1, "only the claimer has it mapped");
                        std::thread::yield_now();
                    }
                }
                Err(ShmError::MappedElsewhere { .. } | ShmError::NotClaimable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            // Before the mapping ends, so that the count never exceeds the number of mappings.
            mapped.fetch_sub(1, Ordering::SeqCst);
        }
    };
    std::thread::scope(|scope| {
        for access in [Access::ReadWrite, Access::ReadWrite, Access::ReadOnly] {
            scope.spawn(move || race(access));
        }
    });
    let (claims, mappings) = (claims.into_inner(), mappings.into_inner());
    assert!(claims > 0 && mappings > claims, "{claims} claims, {mappings} mappings");
}
