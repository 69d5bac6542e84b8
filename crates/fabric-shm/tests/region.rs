//! Regions within one process: creating, opening, refusing and destroying files; lanes; holds.

#![expect(clippy::unwrap_used, reason = "helpers of tests are not tests themselves to the lint")]

mod common;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, FabricError, Fence, Lane, Profile, Region, Verb, Waiting};
use guira_fabric_shm::{
    Access, Boot, CreateError, CreateOptions, FileKind, Location, NameLoss, ShmError, ShmLane, ShmRegion,
};

use common::{DEVICE_BYTES, MAIN_BYTES, Scratch, ScratchDirectory, create, read, submit, write};

fn open(location: &Location) -> Result<ShmRegion, ShmError> {
    ShmRegion::open(location, Access::ReadWrite)
}

fn file_of(location: &Location) -> std::fs::File {
    std::fs::File::options().read(true).write(true).open(location.path()).unwrap()
}

#[test]
fn two_mappings_share_their_words() {
    let scratch = Scratch::new();
    let (created, opened) = (scratch.create(), open(&scratch.location).unwrap());
    for region in [&created, &opened] {
        assert_eq!((region.main_bytes(), region.device_bytes()), (MAIN_BYTES, DEVICE_BYTES));
        assert_eq!((region.caps().device_bytes, region.caps().fence), (DEVICE_BYTES, Fence::OpenFileLock));
        assert!(region.caps().local && !region.is_stale());
    }
    let (mut first, mut second) = (created.lane(), opened.lane());
    for addr in [Addr::main(0), Addr::main(MAIN_BYTES - 8), Addr::device(0), Addr::device(DEVICE_BYTES - 8)] {
        assert_eq!(read(&mut second, addr), 0, "{addr} of a new region");
        write(&mut first, addr, addr.word() + 1);
        assert_eq!(read(&mut second, addr), addr.word() + 1, "{addr}");
    }
    let mut found = 0;
    let bump = Verb::FetchAdd { addr: Addr::device(0), add: 5, found: &mut found };
    submit(&mut second, &mut [bump]).unwrap();
    assert_eq!((found, read(&mut first, Addr::device(0))), (1, 6));
}

#[test]
fn main_words_are_those_that_lanes_write() {
    let scratch = Scratch::new();
    let (created, opened) = (scratch.create(), ShmRegion::open(&scratch.location, Access::ReadOnly).unwrap());
    let last = MAIN_BYTES / 8 - 1;
    write(&mut created.lane(), Addr::main(8 * last), 7);
    write(&mut created.lane(), Addr::device(0), 9);
    let words = opened.main_words();
    assert_eq!(words.len() as u64, last + 1, "the main space only");
    let seen = |at: u64| words[at as usize].load(Ordering::Relaxed);
    assert_eq!((seen(0), seen(last)), (0, 7));
}

#[test]
fn a_lane_outlives_its_region_and_moves_between_threads() {
    let scratch = Scratch::new();
    let mut lane = scratch.create().lane();
    let lane = std::thread::spawn(move || {
        write(&mut lane, Addr::main(8), 3);
        lane
    });
    assert_eq!(read(&mut lane.join().unwrap(), Addr::main(8)), 3);
}

/// A region with holes takes memory for the rest of it, and for parts of the holes when a lane asks for them, whichever
/// process has created it; the other parts have addresses only.
#[test]
fn memory_of_holes_is_reserved_when_a_lane_asks_for_it() {
    const MIB: u64 = 1 << 20;
    let scratch = Scratch::new();
    let holes = [(0, 0), (MIB, 2 * MIB), (2 * MIB, 2 * MIB), (3 * MIB + 8, 63 * MIB - 8)];
    let options = CreateOptions::new(64 * MIB, DEVICE_BYTES).with_holes(holes);
    let created = ShmRegion::create(&scratch.location, options, |_| Ok::<_, FabricError>(())).unwrap();
    let stored = || std::os::unix::fs::MetadataExt::blocks(&file_of(&scratch.location).metadata().unwrap()) * 512;
    // Whole pages of the holes, which begin and end within one.
    let first = stored();
    assert!((3 * MIB..4 * MIB).contains(&first), "{first} bytes");
    let opened = open(&scratch.location).unwrap();
    assert!(created.has_holes() && opened.has_holes() && stored() == first, "opening it fills no hole");
    let reserve = |lane: &mut ShmLane, from: u64, to: u64| match lane
        .poll_reserve(from..to, &mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(reserved) => reserved,
        Poll::Pending => panic!("it is reserved in place"),
    };
    let mut lane = opened.lane();
    drop(opened);
    reserve(&mut lane, 10 * MIB, 11 * MIB).unwrap();
    let second = stored();
    assert!((first + MIB..=first + MIB + 8192).contains(&second), "{first} and {second} bytes");
    reserve(&mut lane, 10 * MIB, 11 * MIB).unwrap();
    assert_eq!(stored(), second, "once is enough");
    write(&mut lane, Addr::main(10 * MIB), 5);
    assert_eq!(read(&mut created.lane(), Addr::main(10 * MIB)), 5);
    for (from, to) in [(64 * MIB, 64 * MIB + 8), (MIB, MIB), (u64::MAX - 7, 8)] {
        let refused = reserve(&mut lane, from, to).unwrap_err();
        assert!(matches!(refused, FabricError::OutOfBounds { .. }), "{from} to {to}: {refused}");
    }
    let mut reader = ShmRegion::open(&scratch.location, Access::ReadOnly).unwrap().lane();
    let refused = reserve(&mut reader, 10 * MIB, 11 * MIB).unwrap_err();
    assert!(matches!(refused, FabricError::ReadOnly { .. }), "{refused}");
    // A region without holes has its memory.
    let scratch = Scratch::new();
    assert_eq!(reserve(&mut scratch.create().lane(), 0, 8), Ok(()));
}

/// Reserved memory is never taken for a hole again, whether it was written or not: on tmpfs, and on a disk.
#[test]
fn reserved_memory_is_no_hole() {
    const MIB: u64 = 1 << 20;
    for folder in ["/dev/shm", env!("CARGO_TARGET_TMPDIR")] {
        let folder = ScratchDirectory::within(folder.into());
        let location = folder.file("table");
        let options = CreateOptions::new(64 * MIB, DEVICE_BYTES);
        let options = options.with_holes([(0, 0), (0, 0), (0, 0), (MIB, 64 * MIB)]);
        let created = match ShmRegion::create(&location, options, |_| Ok::<_, FabricError>(())) {
            Err(CreateError::Shm(ShmError::UnsupportedFileSystem { .. })) => continue,
            created => created.unwrap(),
        };
        assert_eq!(created.reserve(0..MIB, 0), Ok(0));
        assert_eq!(created.reserve(10 * MIB..11 * MIB, u64::MAX), Ok(MIB));
        created.limit_memory(created.info().unwrap().stored_bytes);
        for region in [&created, &open(&location).unwrap()] {
            assert_eq!(region.reserve(10 * MIB + 4096..11 * MIB, 0), Ok(0));
            let refused = region.reserve(10 * MIB..16 * MIB, 0).unwrap_err();
            assert!(matches!(refused, FabricError::NoMemory { .. }), "{refused}");
        }
        let refused = created.reserve(20 * MIB..20 * MIB + 8, u64::MAX).unwrap_err();
        assert!(matches!(refused, FabricError::NoMemory { available: 0, .. }), "{refused}");
    }
}

/// A region that has grown large takes whole huge pages, beside which the next memory is needed as a rule, and less if it
/// may not have so much.
#[test]
fn large_regions_grow_by_huge_pages() {
    const MIB: u64 = 1 << 20;
    let options = CreateOptions::new(256 * MIB, DEVICE_BYTES).with_holes([(0, 0), (0, 0), (0, 0), (MIB, 256 * MIB)]);
    let region = ShmRegion::create_unnamed(options, |_| Ok::<_, FabricError>(())).unwrap();
    let stored = || region.info().unwrap().stored_bytes;
    let grown = |from: u64, to: u64| {
        let before = stored();
        region.reserve(from..to, u64::MAX).map(|missing| (missing, stored() - before))
    };
    assert_eq!(grown(5 * MIB, 5 * MIB + 8), Ok((4096, 4096)), "small ones take what they need");
    grown(MIB, 65 * MIB).unwrap();
    // The header is in front of the main space.
    let (missing, taken) = grown(101 * MIB, 101 * MIB + 8).unwrap();
    assert_eq!((missing, taken), (4096, 2 * MIB));
    assert_eq!(grown(100 * MIB, 101 * MIB), Ok((0, 0)));
    region.limit_memory(stored() + MIB);
    assert_eq!(grown(201 * MIB, 201 * MIB + 8), Ok((4096, 4096)));
    assert!(grown(211 * MIB, 213 * MIB).is_err());
    assert_eq!(stored(), stored(), "a refused reservation takes nothing");
}

#[test]
fn info_says_where_the_region_comes_from() {
    let scratch = Scratch::new();
    let before = std::time::SystemTime::now();
    let options = CreateOptions::new(100, 1).with_mode(0o640);
    ShmRegion::create(&scratch.location, options, |_| Ok::<(), FabricError>(())).unwrap();
    let info = open(&scratch.location).unwrap().info().unwrap();
    assert_eq!((info.main_bytes, info.device_bytes, info.file_bytes), (104, 8, 3 * 4096));
    assert_eq!((info.boot, info.creator_pid, info.mode), (Boot::Current, u64::from(std::process::id()), 0o640));
    assert!(info.created_at >= before && info.created_at <= std::time::SystemTime::now());
    assert!(info.is_linked);
    assert_eq!(info.path, scratch.location.path());
    assert_eq!(info.lock_path.into_iter().collect::<Vec<_>>(), common::lock_files_of(&scratch.location));
    assert_eq!(std::fs::metadata(scratch.location.path()).unwrap().len(), info.file_bytes);
}

/// Eight creators race while other threads keep opening: one wins, and every opener finds its formatting complete.
#[test]
fn one_creator_wins_and_no_opener_sees_a_partial_region() {
    const CREATORS: usize = 8;
    let scratch = Scratch::new();
    let (start, done) = (Barrier::new(CREATORS), AtomicBool::new(false));
    let marks = [Addr::main(0), Addr::main(MAIN_BYTES - 8), Addr::device(DEVICE_BYTES - 8)];
    let attempt = |me: usize| {
        start.wait();
        let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES);
        ShmRegion::create(&scratch.location, options, |region| {
            let mut lane = region.lane();
            for addr in marks {
                write(&mut lane, addr, me as u64 + 1);
                std::thread::yield_now();
            }
            Ok::<(), FabricError>(())
        })
    };
    let watch = || {
        let mut opened = 0;
        while !done.load(Ordering::Relaxed) || opened == 0 {
            match open(&scratch.location) {
                Err(ShmError::NotFound { .. }) => {}
                Err(error) => panic!("{error}"),
                Ok(region) => {
                    let mut lane = region.lane();
                    let seen = marks.map(|addr| read(&mut lane, addr));
                    assert!(seen[0] != 0 && seen.iter().all(|mark| *mark == seen[0]), "{seen:?}");
                    opened += 1;
                }
            }
        }
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(watch);
        scope.spawn(watch);
        let creators: Vec<_> = (0..CREATORS).map(|me| scope.spawn(move || attempt(me))).collect();
        let outcomes = creators.into_iter().map(|creator| creator.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        outcomes
    });
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for outcome in outcomes {
        match outcome {
            Ok(_) | Err(CreateError::Shm(ShmError::AlreadyExists { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_failed_creation_leaves_nothing() {
    for mode in [0o600, 0o644] {
        let directory = ScratchDirectory::new();
        let location = directory.file("region");
        let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES).with_mode(mode);

        let error = ShmRegion::create(&location, options, |_| Err::<(), _>(std::fmt::Error)).unwrap_err();
        assert!(matches!(error, CreateError::Init { source: std::fmt::Error, .. }), "{error}");
        assert_eq!(directory.entries(), 0);

        let panics = || ShmRegion::create(&location, options, |_| -> Result<(), FabricError> { panic!("on purpose") });
        assert!(std::panic::catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(directory.entries(), 0);

        // Another process takes the name while the region is being formatted.
        let occupied = ShmRegion::create(&location, options, |_| std::fs::write(location.path(), b"mine")).unwrap_err();
        assert!(matches!(occupied, CreateError::Shm(ShmError::AlreadyExists { .. })), "{occupied}");
        assert_eq!(std::fs::read(location.path()).unwrap(), b"mine");
        assert_eq!(directory.entries(), 1);
    }
}

/// Creates regions, with or without a name, stopping each one step later than the one before.
fn stop_at_each_step(location: Option<&Location>) {
    const STEP_BYTES: u64 = 16 << 20;
    let options = CreateOptions::new(2 * STEP_BYTES + 1, DEVICE_BYTES);
    let mut steps = Vec::new();
    let mut note = |done_bytes: u64, total_bytes: u64| {
        steps.push((done_bytes, total_bytes));
        ControlFlow::Continue(())
    };
    let region = ShmRegion::create_with_progress(location, options, &mut note, |_| Ok::<(), FabricError>(()));
    let file_bytes = region.unwrap().info().unwrap().file_bytes;
    assert_eq!(steps, [0, STEP_BYTES, 2 * STEP_BYTES, file_bytes].map(|done_bytes| (done_bytes, file_bytes)));
    location.iter().for_each(|location| ShmRegion::destroy(location).unwrap());
    for stop in 0..steps.len() {
        let mut calls = 0;
        let mut count = |_, _| {
            calls += 1;
            if calls > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let init = |_: &ShmRegion| -> Result<(), FabricError> { panic!("a stopped creation continues") };
        let error = ShmRegion::create_with_progress(location, options, &mut count, init).unwrap_err();
        assert!(matches!(error, CreateError::Shm(ShmError::Stopped { .. })), "{error}");
        assert!(error.to_string().ends_with("stopped on request; nothing was changed"), "{error}");
        assert_eq!(calls, stop + 1);
        assert!(location.is_none_or(|location| matches!(open(location), Err(ShmError::NotFound { .. }))));
    }
}

/// A creation that is to be stopped continues for one step at most.
#[test]
fn a_creation_can_be_stopped_at_each_step() {
    let directory = ScratchDirectory::new();
    stop_at_each_step(Some(&directory.file("region")));
    assert_eq!(directory.entries(), 0);
}

#[test]
fn impossible_creations_say_why() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    let attempt = |location: &Location, options: CreateOptions| match ShmRegion::create(location, options, |_| {
        Ok::<(), FabricError>(())
    }) {
        Err(CreateError::Shm(error)) => error,
        other => panic!("{other:?}"),
    };
    let space = rustix::fs::statvfs("/dev/shm").unwrap();
    let available = space.f_bavail * space.f_frsize;
    let error = attempt(&location, CreateOptions::new(available + (1 << 30), 0));
    match error {
        ShmError::NoSpace { wanted, available, .. } => assert!(wanted > available && available > 0),
        error => panic!("{error}"),
    }
    for (main_bytes, device_bytes) in [(u64::MAX, 0), (0, u64::MAX), (1 << 63, 1 << 63), (1 << 47, 0)] {
        let error = attempt(&location, CreateOptions::new(main_bytes, device_bytes));
        assert!(matches!(error, ShmError::TooLarge { .. }), "{error}");
    }
    let usual = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES);
    assert!(matches!(attempt(&location, usual.with_mode(0o4755)), ShmError::BadMode { mode: 0o4755, .. }));
    assert!(matches!(attempt(&directory.file("none/region"), usual), ShmError::NotFound { .. }));
    assert!(matches!(attempt(&directory.file(".."), usual), ShmError::BadName { .. }));
    assert!(matches!(attempt(&Location::file(&directory.path), usual), ShmError::AlreadyExists { .. }));
    assert_eq!(directory.entries(), 0);
}

#[test]
fn a_truncated_region_is_refused() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let expected = region.info().unwrap().file_bytes;
    let file = file_of(&scratch.location);
    for actual in [expected - 1, expected - 4096, 4097, 4096, 4095, 80, 79, 9, 8] {
        file.set_len(actual).unwrap();
        let error = open(&scratch.location).unwrap_err();
        assert!(matches!(error, ShmError::Truncated { actual: seen, .. } if seen == actual), "{actual}: {error}");
        let error = region.verify_length().unwrap_err();
        assert!(matches!(error, ShmError::Truncated { expected: promised, .. } if promised == expected), "{error}");
    }
    for actual in [7, 0] {
        file.set_len(actual).unwrap();
        let error = open(&scratch.location).unwrap_err();
        assert!(matches!(error, ShmError::Foreign { .. }), "{actual}: {error}");
    }
}

#[test]
fn a_longer_file_is_the_same_region() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let file_bytes = region.info().unwrap().file_bytes;
    file_of(&scratch.location).set_len(file_bytes + 5).unwrap();
    region.verify_length().unwrap();
    assert_eq!(open(&scratch.location).unwrap().main_bytes(), MAIN_BYTES);
}

#[test]
fn every_flipped_bit_of_the_header_is_found() {
    let scratch = Scratch::new();
    drop(scratch.create());
    let file = file_of(&scratch.location);
    let mut header = [0; 104];
    file.read_exact_at(&mut header, 0).unwrap();
    for bit in 0..header.len() * 8 {
        let damaged = header[bit / 8] ^ 1 << (bit % 8);
        file.write_all_at(&[damaged], bit as u64 / 8).unwrap();
        let error = open(&scratch.location).unwrap_err();
        match bit / 8 {
            0..8 => assert!(matches!(error, ShmError::Foreign { .. }), "bit {bit}: {error}"),
            _ => assert!(matches!(error, ShmError::HeaderCorrupt { .. }), "bit {bit}: {error}"),
        }
        file.write_all_at(&header, 0).unwrap();
    }
    open(&scratch.location).unwrap();
}

#[test]
fn another_version_is_reported() {
    let scratch = Scratch::new();
    drop(scratch.create());
    let file = file_of(&scratch.location);
    let mut header = [0; 72];
    file.read_exact_at(&mut header, 0).unwrap();
    header[8] = 9;
    let sum = header
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    file.write_all_at(&header, 0).unwrap();
    file.write_all_at(&sum.to_le_bytes(), 72).unwrap();
    let error = open(&scratch.location).unwrap_err();
    assert!(matches!(error, ShmError::Version { found: 9, supported: 2, .. }), "{error}");
    ShmRegion::destroy(&scratch.location).unwrap();
}

#[test]
fn files_that_are_not_regions_are_refused() {
    let directory = ScratchDirectory::new();
    let refused = |location: &Location| {
        let error = open(location).unwrap_err();
        let other = ShmRegion::destroy(location).unwrap_err();
        assert_eq!(std::mem::discriminant(&error), std::mem::discriminant(&other), "{error}; {other}");
        error
    };
    assert!(matches!(refused(&directory.file("missing")), ShmError::NotFound { .. }));
    let kind_of = |location: &Location| match refused(location) {
        ShmError::NotAFile { kind, .. } => kind,
        error => panic!("{error}"),
    };
    assert_eq!(kind_of(&Location::file(&directory.path)), FileKind::Directory);
    assert_eq!(kind_of(&Location::file("/dev/null")), FileKind::Device);
    let fifo = directory.file("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, fifo.path(), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(kind_of(&fifo), FileKind::Fifo);
    let _socket = std::os::unix::net::UnixListener::bind(directory.path.join("socket")).unwrap();
    assert_eq!(kind_of(&directory.file("socket")), FileKind::Socket);

    for (name, bytes) in [("empty", vec![]), ("short", b"GUIRA".to_vec()), ("other", vec![0x7f; 1 << 16])] {
        let location = directory.file(name);
        std::fs::write(location.path(), &bytes).unwrap();
        assert!(matches!(refused(&location), ShmError::Foreign { .. }), "{name}");
        assert_eq!(std::fs::read(location.path()).unwrap(), bytes, "{name}");
    }
}

#[test]
fn links_are_followed_only_where_the_user_chose_the_path() {
    let (target, link) = (Scratch::new(), Scratch::new());
    drop(target.create());
    symlink(target.location.path(), link.location.path()).unwrap();
    let error = open(&link.location).unwrap_err();
    assert!(matches!(error, ShmError::NotAFile { kind: FileKind::Symlink, .. }), "{error}");
    open(&Location::file(link.location.path())).unwrap();

    let dangling = Scratch::new();
    symlink("/dev/shm/guira-test-nowhere", dangling.location.path()).unwrap();
    let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES);
    let error = ShmRegion::create(&dangling.location, options, |_| Ok::<(), FabricError>(())).unwrap_err();
    assert!(matches!(error, CreateError::Shm(ShmError::AlreadyExists { .. })), "{error}");
}

/// A link leads to its target: the region loses its name, and the link stays.
#[test]
fn destroying_through_a_link_destroys_its_target() {
    let directory = ScratchDirectory::new();
    let (target, link) = (directory.file("target"), directory.file("link"));
    let region = common::create(&target);
    symlink(target.path(), link.path()).unwrap();
    ShmRegion::destroy(&link).unwrap();
    assert!(!region.info().unwrap().is_linked && directory.entries() == 1);
    assert!(matches!(ShmRegion::destroy(&link), Err(ShmError::NotFound { .. })));
}

/// If another process destroys the region and creates another one under its name, that one keeps the name.
#[test]
fn another_region_under_the_name_keeps_it() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    let first = common::create(&location);
    ShmRegion::destroy(&location).unwrap();
    let second = common::create(&location);
    assert!(matches!(first.remove_name(&location), Err(ShmError::NotFound { .. })));
    assert!(second.info().unwrap().is_linked && directory.entries() == 1);
    second.remove_name(&location).unwrap();
    assert!(!second.info().unwrap().is_linked && directory.entries() == 0);
}

/// Threads destroy and create regions under one name: each region loses its name once, by one of its openers.
#[test]
fn concurrent_destroys_remove_only_their_own_names() {
    const ROUNDS: usize = 2_000;
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    let destroyed: Vec<[u64; 2]> = std::thread::scope(|scope| {
        let work = || {
            let mut destroyed = Vec::new();
            for _ in 0..ROUNDS {
                let init = |_: &ShmRegion| Ok::<(), FabricError>(());
                let created = ShmRegion::create(&location, CreateOptions::new(MAIN_BYTES, DEVICE_BYTES), init);
                assert!(matches!(created, Ok(_) | Err(CreateError::Shm(ShmError::AlreadyExists { .. }))));
                match open(&location).and_then(|region| region.remove_name(&location).map(|()| region)) {
                    Ok(region) => destroyed.push(region.identity().expect("the kernel says when it was started")),
                    Err(ShmError::NotFound { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            destroyed
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(destroyed.len() >= ROUNDS, "{}", destroyed.len());
    assert_eq!(destroyed.iter().collect::<HashSet<_>>().len(), destroyed.len(), "each is destroyed only once");
    assert_eq!(directory.entries(), 0);
}

#[test]
fn unsafe_file_systems_are_refused_by_name() {
    let error = ShmRegion::open(&Location::file("/proc/self/status"), Access::ReadOnly).unwrap_err();
    assert!(matches!(error, ShmError::UnsupportedFileSystem { name: "procfs", magic: 0x9fa0, .. }), "{error}");
}

#[test]
fn a_file_on_disk_is_a_region_too() {
    let disk = ScratchDirectory::within(env!("CARGO_TARGET_TMPDIR").into());
    let location = disk.file("region");
    let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES).with_mode(0o644);
    match ShmRegion::create(&location, options, |_| Ok::<(), FabricError>(())) {
        Err(CreateError::Shm(ShmError::UnsupportedFileSystem { name, .. })) => {
            println!("the build directory is on {name}, where regions are refused: only that was tested");
            assert_eq!(disk.entries(), 0);
            return;
        }
        outcome => outcome.unwrap(),
    };
    let (first, second) = (open(&location).unwrap(), open(&location).unwrap());
    write(&mut first.lane(), Addr::main(16), 16);
    assert_eq!(read(&mut second.lane(), Addr::main(16)), 16);
    let held = first.hold(3).unwrap();
    assert!(held.is_some() && second.hold(3).unwrap().is_none());
    assert_eq!(disk.entries(), 2, "with a lock file");
    ShmRegion::destroy(&location).unwrap();
    assert_eq!(disk.entries(), 0);
}

/// Containers may have boot ids of their own. A file in memory is of this boot, whatever its header says, and stays the
/// same memory for remote clients; one on disk may be older.
#[test]
fn only_files_on_disk_are_of_an_earlier_boot() {
    let (memory, disk) = (Scratch::new(), ScratchDirectory::within(env!("CARGO_TARGET_TMPDIR").into()));
    for (location, boot) in [(memory.location.clone(), Boot::Current), (disk.file("region"), Boot::Earlier)] {
        let created = ShmRegion::create(&location, CreateOptions::new(8, 8), |_| Ok::<(), FabricError>(()));
        if let Err(CreateError::Shm(ShmError::UnsupportedFileSystem { name, .. })) = &created {
            return println!("not tested on disk: the build directory is on {name}, where regions are refused");
        }
        let own_boot = created.unwrap().info().unwrap().boot;
        assert_eq!(own_boot, Boot::Current);
        let mut bytes = std::fs::read(location.path()).unwrap();
        bytes[40] ^= 1;
        // FNV-1a of the bytes before each sum.
        for summed in [72, 96] {
            let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            let sum = bytes[..summed].iter().fold(0xcbf2_9ce4_8422_2325, step);
            bytes[summed..summed + 8].copy_from_slice(&sum.to_le_bytes());
        }
        std::fs::write(location.path(), bytes).unwrap();
        assert_eq!(open(&location).unwrap().info().unwrap().boot, boot);
    }
}

#[test]
fn a_destroyed_region_lives_as_long_as_it_is_mapped() {
    let scratch = Scratch::new();
    let (first, second) = (scratch.create(), open(&scratch.location).unwrap());
    ShmRegion::destroy(&scratch.location).unwrap();
    assert!(matches!(open(&scratch.location), Err(ShmError::NotFound { .. })));
    assert!(matches!(ShmRegion::destroy(&scratch.location), Err(ShmError::NotFound { .. })));
    write(&mut first.lane(), Addr::main(0), 1);
    assert_eq!(read(&mut second.lane(), Addr::main(0)), 1);
    assert!(!first.info().unwrap().is_linked);

    let successor = scratch.create();
    assert_eq!(read(&mut successor.lane(), Addr::main(0)), 0);
    // Holds lock the mapped file, not the file that has its name now.
    let old = first.hold(1).unwrap();
    assert!(old.is_some() && second.hold(1).unwrap().is_none());
    assert!(successor.hold(1).unwrap().is_some());
}

#[test]
fn a_slot_has_one_holder() {
    let scratch = Scratch::new();
    let (first, second) = (scratch.create(), open(&scratch.location).unwrap());
    for slot in [0, 1, 1023, u16::MAX] {
        let hold = first.hold(slot).unwrap();
        assert!(hold.is_some(), "slot {slot}");
        assert!(second.hold(slot).unwrap().is_none(), "slot {slot} by another handle");
        assert!(first.hold(slot).unwrap().is_none(), "slot {slot} by the same handle");
        let neighbour = second.hold(slot ^ 2).unwrap();
        assert!(neighbour.is_some(), "the neighbour of slot {slot}");
        drop(hold);
        assert!(second.hold(slot).unwrap().is_some(), "slot {slot} after the hold was dropped");
    }
    // A hold does not need its region handle.
    let hold = first.hold(7).unwrap();
    drop(first);
    assert!(hold.is_some() && second.hold(7).unwrap().is_none());
}

#[test]
fn only_one_of_many_threads_holds_a_slot() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let inside = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    if let Some(hold) = region.hold(5).unwrap() {
                        assert!(!inside.swap(true, Ordering::SeqCst), "two holders at once");
                        inside.store(false, Ordering::SeqCst);
                        drop(hold);
                    }
                }
            });
        }
    });
}

#[test]
fn a_read_only_region_is_only_read() {
    let scratch = Scratch::new();
    let writer = scratch.create();
    std::fs::set_permissions(scratch.location.path(), std::fs::Permissions::from_mode(0o400)).unwrap();
    let reader = ShmRegion::open(&scratch.location, Access::ReadOnly).unwrap();
    write(&mut writer.lane(), Addr::main(8), 9);
    let mut lane = reader.lane();
    assert_eq!(read(&mut lane, Addr::main(8)), 9);

    let (mut found, mut into) = (0, [0]);
    let addr = Addr::main(8);
    let refused = [
        ("WRITE", Verb::Write { addr, words: &[1] }),
        ("CAS", Verb::Cas { addr, compare: 9, swap: 1, found: &mut found }),
        ("FETCH-ADD", Verb::FetchAdd { addr, add: 1, found: &mut into[0] }),
    ];
    for (name, verb) in refused {
        assert_eq!(submit(&mut lane, &mut [verb]), Err(FabricError::ReadOnly { verb: name }));
    }
    let masked = Verb::MaskedCas { addr, compare: 0, swap: 0, compare_mask: 0, swap_mask: 0, found: &mut found };
    let mut batch = [Verb::Read { addr, into: &mut into }, masked];
    assert_eq!(submit(&mut lane, &mut batch), Err(FabricError::ReadOnly { verb: "MASKED CAS" }));
    assert!(matches!(reader.hold(0), Err(FabricError::ReadOnly { .. })));
    assert_eq!(read(&mut lane, Addr::main(8)), 9);
}

#[test]
fn a_bad_batch_is_refused_whole() {
    let scratch = Scratch::new();
    let mut lane = scratch.create().lane();
    let mut into = [0; 2];
    for (addr, words) in [(Addr::main(MAIN_BYTES), 1), (Addr::main(MAIN_BYTES - 8), 2), (Addr::device(DEVICE_BYTES), 1)]
    {
        let bad = Verb::Read { addr, into: &mut into[..words] };
        let error = submit(&mut lane, &mut [Verb::Write { addr: Addr::main(0), words: &[1] }, bad]).unwrap_err();
        assert!(matches!(error, FabricError::OutOfBounds { .. }), "{error}");
        let alone = submit(&mut lane, &mut [Verb::Read { addr, into: &mut into[..words] }]).unwrap_err();
        assert_eq!(error, alone);
    }
    let odd = submit(&mut lane, &mut [Verb::Write { addr: Addr::main(4), words: &[1] }]).unwrap_err();
    assert!(matches!(odd, FabricError::Misaligned { .. }), "{odd}");
    let mut long: Vec<_> =
        (0..=lane.caps().max_batch).map(|_| Verb::Write { addr: Addr::main(0), words: &[1] }).collect();
    let error = submit(&mut lane, &mut long).unwrap_err();
    assert!(matches!(error, FabricError::TooLarge { .. }), "{error}");
    assert_eq!(read(&mut lane, Addr::main(0)), 0, "no refused batch had an effect");
    submit(&mut lane, &mut []).unwrap();
}

/// The same random batches on shared memory and on the heap find and leave the same words.
#[test]
fn verbs_agree_with_the_heap() {
    const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
    println!("seed {SEED:#x}");
    let scratch = Scratch::new();
    let mut shm = scratch.create().lane();
    let heap = HeapRegion::new(MAIN_BYTES, DEVICE_BYTES, Profile::Shm.caps());
    let mut heap = heap.lane();
    let mut state = SEED;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..20_000 {
        let drawn: Vec<[u64; 5]> = (0..1 + draw(4)).map(|_| [5, 2, 40, 4, 4].map(&mut draw)).collect();
        let outcomes = [run_drawn(&mut shm, &drawn), run_drawn(&mut heap, &drawn)];
        assert_eq!(outcomes[0], outcomes[1], "{drawn:?}");
    }
}

fn run_drawn(lane: &mut impl Lane, drawn: &[[u64; 5]]) -> Vec<[u64; 8]> {
    let mut results = vec![[0; 8]; drawn.len()];
    let data: Vec<Vec<u64>> = drawn.iter().map(|verb| vec![verb[3]; 1 + verb[4] as usize]).collect();
    let mut batch: Vec<_> = drawn
        .iter()
        .zip(&mut results)
        .zip(&data)
        .map(|((&[kind, space, word, a, b], result), words)| {
            let addr = if space == 0 { Addr::main(word * 8) } else { Addr::device(word * 8) };
            if kind == 0 {
                return Verb::Read { addr, into: &mut result[..1 + b as usize] };
            }
            let found = &mut result[0];
            match kind {
                1 => Verb::Write { addr, words },
                2 => Verb::Cas { addr, compare: a, swap: b, found },
                3 => Verb::MaskedCas { addr, compare: a, swap: b, compare_mask: 2, swap_mask: 7, found },
                _ => Verb::FetchAdd { addr, add: a, found },
            }
        })
        .collect();
    submit(lane, &mut batch).unwrap();
    drop(batch);
    results
}

#[test]
fn nothing_is_in_flight_and_prefetching_is_harmless() {
    let scratch = Scratch::new();
    let mut lane = scratch.create().lane();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(lane.poll(&mut [], &mut cx), Poll::Ready(Err(FabricError::Backend(_)))));
    lane.forget();
    assert_eq!(lane.poll_drain(&mut [], &mut cx), Poll::Ready(Ok(0)));
    for addr in [Addr::main(0), Addr::main(MAIN_BYTES - 8), Addr::main(u64::MAX >> 1), Addr::device(DEVICE_BYTES)] {
        for words in [0, 1, 16, usize::MAX] {
            lane.prefetch(addr, words);
        }
    }
}

#[test]
fn pauses_end_on_time_in_both_modes() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let mut cx = Context::from_waker(Waker::noop());
    let mut lane = region.lane();
    for pause_ns in [0, 500, 20_000, 3_000_000] {
        let until_ns = lane.now_ns() + pause_ns;
        assert_eq!(lane.poll_pause(until_ns, &mut cx), Poll::Ready(()));
        assert!(lane.now_ns() >= until_ns);
    }
    let mut lane: ShmLane = region.lane().waiting(Waiting::Cooperative);
    let until_ns = lane.now_ns() + 2_000_000;
    let mut polls = 0;
    while lane.poll_pause(until_ns, &mut cx).is_pending() {
        polls += 1;
    }
    assert!(polls > 1 && lane.now_ns() >= until_ns);
}

#[test]
fn empty_regions_have_no_readable_words() {
    let scratch = Scratch::new();
    let options = CreateOptions::new(0, 0);
    let region = ShmRegion::create(&scratch.location, options, |_| Ok::<(), FabricError>(())).unwrap();
    let mut into = [0];
    for addr in [Addr::main(0), Addr::device(0)] {
        assert!(submit(&mut region.lane(), &mut [Verb::Read { addr, into: &mut into }]).is_err());
    }
    assert_eq!(open(&scratch.location).unwrap().device_bytes(), 0);
}

#[test]
fn errors_say_what_where_and_that_nothing_changed() {
    let scratch = Scratch::new();
    let missing = open(&scratch.location).unwrap_err().to_string();
    let region = create(&scratch.location);
    let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES);
    let exists = ShmRegion::create(&scratch.location, options, |_| Ok::<(), FabricError>(())).unwrap_err().to_string();
    file_of(&scratch.location).set_len(4096).unwrap();
    let truncated = region.verify_length().unwrap_err().to_string();
    for (text, attempt) in [(&missing, "open"), (&exists, "create"), (&truncated, "inspect")] {
        let path = scratch.location.path().display();
        assert!(text.starts_with(&format!("cannot {attempt} {path}: ")), "{text}");
        assert!(text.ends_with("; nothing was changed"), "{text}");
    }
}

fn unnamed() -> ShmRegion {
    ShmRegion::create_unnamed(CreateOptions::new(MAIN_BYTES, DEVICE_BYTES), |region| {
        write(&mut region.lane(), Addr::main(8), 7);
        Ok::<(), FabricError>(())
    })
    .unwrap()
}

/// Returns this process's descriptors of memory files of this crate.
fn memory_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.starts_with("/memfd:guira (deleted)"));
    entries.filter(is_ours).collect()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:guira")).count()
}

/// All in one test, because it counts descriptors and mappings of the process.
#[test]
fn an_unnamed_region_works_like_others_and_leaves_nothing() {
    let region = unnamed();
    let info = region.info().unwrap();
    assert_eq!((info.main_bytes, info.device_bytes, info.boot), (MAIN_BYTES, DEVICE_BYTES, Boot::Current));
    assert_eq!((info.is_linked, info.mode, region.access()), (false, 0o600, Access::ReadWrite));
    assert_eq!((region.caps().device_bytes, region.caps().atomic_write_unit), (DEVICE_BYTES, 8));
    assert!(region.verify_length().is_ok());

    let mut lane = region.lane();
    assert_eq!((read(&mut lane, Addr::main(8)), read(&mut lane, Addr::device(DEVICE_BYTES - 8))), (7, 0));
    write(&mut lane, Addr::main(MAIN_BYTES - 8), 3);
    let other = region.clone();
    assert_eq!(read(&mut other.lane(), Addr::main(MAIN_BYTES - 8)), 3);

    let first = region.hold(5).unwrap();
    assert!(first.is_some() && other.hold(5).unwrap().is_none() && other.hold(6).unwrap().is_some());
    drop(first);
    let held = other.hold(5).unwrap();
    assert!(held.is_some());

    // No name leads to the file, and its length cannot be changed through another descriptor.
    assert!(matches!(
        ShmRegion::open(&Location::file(region.path()), Access::ReadWrite),
        Err(ShmError::NotFound { .. })
    ));
    let [file] = &memory_files()[..] else { panic!("{:?}", memory_files()) };
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    for bytes in [0, info.file_bytes - 4096, info.file_bytes + 4096] {
        assert_eq!(file.set_len(bytes).unwrap_err().raw_os_error(), Some(libc::EPERM), "{bytes} bytes");
    }
    drop(file);

    // A lane and a hold keep the memory.
    drop((region, other));
    assert_eq!((read(&mut lane, Addr::main(8)), memory_files().len()), (7, 0));
    drop(lane);
    assert_eq!(mappings(), 1, "that of the hold");
    drop(held);
    assert_eq!(mappings(), 0);

    let error = ShmRegion::create_unnamed(CreateOptions::new(MAIN_BYTES, 0), |_| Err::<(), _>(std::fmt::Error));
    assert!(matches!(error, Err(CreateError::Init { source: std::fmt::Error, .. })));
    for (main_bytes, is_space) in [(1 << 46, true), (u64::MAX, false)] {
        match ShmRegion::create_unnamed(CreateOptions::new(main_bytes, 0), |_| Ok::<(), FabricError>(())) {
            Err(CreateError::Shm(ShmError::NoSpace { wanted, available, .. })) if is_space => {
                assert!(wanted > available && available > 0);
            }
            Err(CreateError::Shm(ShmError::TooLarge { .. })) if !is_space => {}
            other => panic!("{main_bytes}: {other:?}"),
        }
    }
    stop_at_each_step(None);
    assert_eq!((memory_files().len(), mappings()), (0, 0));
}

#[test]
fn a_region_has_one_identity() {
    let scratch = Scratch::new();
    let created = scratch.create();
    let identity = created.identity().unwrap();
    assert_eq!(open(&scratch.location).unwrap().identity(), Some(identity), "equal for every opener");
    let copy = Location::file(scratch.location.path().with_extension("copy"));
    std::fs::copy(scratch.location.path(), copy.path()).unwrap();
    assert_ne!(open(&copy).unwrap().identity().unwrap(), identity, "a copy of the file");
    ShmRegion::destroy(&copy).unwrap();
    ShmRegion::destroy(&scratch.location).unwrap();
    assert_eq!(created.identity(), Some(identity));
    scratch.create();
    assert_ne!(open(&scratch.location).unwrap().identity().unwrap(), identity, "new bytes under the same name");
}

/// A file whose name is removed, moved or given to another file is noticed; one that another path leads to as well is
/// not.
#[test]
fn a_lost_name_is_noticed() {
    type Lose = fn(&std::path::Path);
    let losses: [(Lose, Option<NameLoss>); 4] = [
        (|path| std::fs::remove_file(path).unwrap(), Some(NameLoss::Missing)),
        (|path| std::fs::rename(path, path.with_extension("moved")).unwrap(), Some(NameLoss::Missing)),
        (
            |path| {
                std::fs::copy(path, path.with_extension("copy")).unwrap();
                std::fs::rename(path.with_extension("copy"), path).unwrap();
            },
            Some(NameLoss::Replaced),
        ),
        (
            |path| {
                std::fs::rename(path, path.with_extension("moved")).unwrap();
                symlink(path.with_extension("moved"), path).unwrap();
            },
            None,
        ),
    ];
    for (lose, expected) in losses {
        let directory = ScratchDirectory::new();
        let location = directory.file("region");
        let (created, opened) = (create(&location), open(&location).unwrap());
        assert_eq!((created.name().look(), opened.name().look()), (None, None));
        lose(location.path());
        assert_eq!((created.name().look(), opened.name().look()), (expected, expected));
        assert!(opened.verify_bytes().is_ok(), "until it is recorded");
        if let Some(loss) = expected {
            let lane = opened.lane();
            opened.name().record(loss);
            assert_eq!((lane.name_loss(), opened.clone().name().loss()), (Some(loss), Some(loss)));
            assert!(opened.verify_bytes().unwrap_err().to_string().contains(loss.as_str()));
        }
    }
    let unnamed = ShmRegion::create_unnamed(CreateOptions::new(MAIN_BYTES, 0), |_| Ok::<(), FabricError>(())).unwrap();
    assert_eq!(unnamed.name().look(), None);
}
