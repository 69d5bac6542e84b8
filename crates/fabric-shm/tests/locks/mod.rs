//! Lock files: the modes that need one, refusal of wrong lock files, and removal of unused ones.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use guira_fabric_shm::LockFileProblem;

use super::*;
use crate::common::{create_with_mode, lock_files_of};

/// The mode of a region that all users may read and only its owner may write.
const READABLE: u32 = 0o644;
const THREADS: usize = 4;
/// The user and group "nobody" of every system.
const NOBODY: u32 = 65_534;
/// The number of regions that each thread of a race creates.
const ROUNDS: u32 = 300;

// ---- Roles of child processes.

/// Becomes a user who may only read the region, if this is root; locks the whole file for reading by both kinds of
/// locks, and fails to open the lock file.
pub fn reader(location: &Location) {
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        // SAFETY: system calls that drop privileges; nothing else runs in this process.
        let answers = unsafe { (libc::setgroups(0, std::ptr::null()), libc::setgid(NOBODY), libc::setuid(NOBODY)) };
        assert_eq!(answers, (0, 0, 0));
    }
    let _locks = [libc::F_OFD_SETLK, libc::F_SETLK].map(|kind| {
        let file = fs::File::open(location.path()).unwrap();
        // SAFETY: `flock` is plain integers, for which zero is valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        // From the first to the last possible byte.
        (lock.l_type, lock.l_whence) = (libc::F_RDLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
        // SAFETY: the descriptor is open, and the call reads one `flock`, which outlives it.
        let answer = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), kind, &raw const lock) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        file
    });
    // The region stays open, because a process that closes a file releases its own locks on it.
    let region = ShmRegion::open(location, Access::ReadOnly).unwrap();
    if is_root {
        let [lock_file] = &lock_files_of(location)[..] else { panic!("there is one lock file") };
        let mut options = fs::File::options();
        for opened in [options.read(true).open(lock_file), options.write(true).open(lock_file)] {
            assert_eq!(opened.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        }
        assert!(fs::remove_file(lock_file).is_err());
        assert_eq!((read(&mut region.lane(), Addr::main(0)), region.foreign_lock(0..1024).unwrap()), (5, None));
    }
    say("locked");
    wait_for_order();
}

/// Creates a region that other users may read, and waits twice: before space is reserved, and before it gets its name.
pub fn creator(location: &Location) {
    let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES).with_mode(READABLE);
    let mut calls = 0;
    let mut progress = |_, _| {
        calls += 1;
        if calls == 1 {
            say("begun");
            wait_for_order();
        }
        std::ops::ControlFlow::Continue(())
    };
    let created = ShmRegion::create_with_progress(Some(location), options, &mut progress, |region| {
        // Holds work already. After this one is dropped, only the creator's lock protects the lock file from the sweep.
        drop(take(region, 3));
        say("formatted");
        wait_for_order();
        Ok::<(), FabricError>(())
    });
    match created {
        Ok(_) => say("created"),
        Err(CreateError::Shm(ShmError::AlreadyExists { .. })) => say("taken"),
        Err(error) => panic!("{error}"),
    }
    wait_for_order();
}

// ---- Tests.

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Returns the only lock file of the region at `location`.
fn lock_file_of(location: &Location) -> PathBuf {
    let mut found = lock_files_of(location);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn a_mode_with_read_only_users_creates_a_lock_file() {
    for (mode, wanted) in [
        (0o600, None),
        (0o660, None),
        (0o666, None),
        (0o606, None),
        (0o622, None),
        (0o700, None),
        (0o640, Some(0o600)),
        (0o644, Some(0o600)),
        (0o604, Some(0o600)),
        (0o664, Some(0o660)),
        (0o646, Some(0o606)),
        (0o444, Some(0o600)),
        (0o755, Some(0o600)),
    ] {
        let directory = ScratchDirectory::new();
        let location = directory.file("region");
        let region = create_with_mode(&location, mode);
        let found = lock_files_of(&location);
        assert_eq!(found.first().map(|path| mode_of(path)), wanted, "{mode:o}");
        assert_eq!((found.len(), directory.entries()), (usize::from(wanted.is_some()), 1 + found.len()), "{mode:o}");
        let info = region.info().unwrap();
        assert_eq!((info.mode, info.lock_path.as_ref()), (mode, found.first()));
        assert_eq!(region.slot_path(), found.first().map_or(location.path(), PathBuf::as_path));
        region.remove_name(&location).unwrap();
        assert_eq!(directory.entries(), 0, "{mode:o}");
    }
    let directory = ScratchDirectory::new();
    for (bytes, fits) in [(232, true), (233, false)] {
        let location = directory.file(&"n".repeat(bytes));
        let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES).with_mode(READABLE);
        match ShmRegion::create(&location, options, |_| Ok::<(), FabricError>(())) {
            Ok(_) => assert!(fits),
            Err(error) => assert!(!fits && matches!(error, CreateError::Shm(ShmError::BadName { .. })), "{error}"),
        }
    }
    assert_eq!(directory.entries(), 2);
}

/// A user who may only read a region can lock every byte of its file, but blocks no client: neither one that holds a
/// slot, nor one that takes one, nor one that probes another.
#[test]
fn a_read_only_user_blocks_no_client() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    let region = create_with_mode(&location, READABLE);
    write(&mut region.lane(), Addr::main(0), 5);
    let mut before = spawn("holder", &location);
    assert_eq!(before.next_word(), "held");
    let mut reader = spawn("reader", &location);
    assert_eq!(reader.next_word(), "locked");
    let mut after = spawn("prober", &location);
    assert!(after.next_word().starts_with("held "), "slot 1 is still held; 2 is taken");
    assert_eq!([0, 1, 2, 3].map(|slot| is_free(&region, slot)), [true, false, false, true]);
    let mut set = region.hold_set();
    assert!((10..1000).all(|slot| set.hold(slot).unwrap()));
    before.kill();
    after.kill();
    assert!(is_free(&region, 1) && is_free(&region, 2), "dead clients are found dead");
    assert_eq!(region.foreign_lock(0..1024).unwrap(), None);
    ShmRegion::destroy(&location).unwrap();
    assert_eq!(directory.entries(), 0);
}

/// Returns the problem of the lock file when the region is opened for writing, and asserts that reading works.
#[track_caller]
fn problem_of(location: &Location) -> LockFileProblem {
    assert_eq!(read(&mut ShmRegion::open(location, Access::ReadOnly).unwrap().lane(), Addr::main(0)), 7);
    match ShmRegion::open(location, Access::ReadWrite).unwrap_err() {
        ShmError::LockFile { lock_path, problem, path, .. } => {
            assert_eq!(path, location.path());
            assert_eq!(lock_path.extension().unwrap(), "locks");
            problem
        }
        error => panic!("{error}"),
    }
}

/// A region whose lock file is not the one that it was created with can be read, but not opened for writing. Processes
/// that had it open before continue.
#[test]
fn another_lock_file_is_refused() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    let region = create_with_mode(&location, READABLE);
    write(&mut region.lane(), Addr::main(0), 7);
    let held = take(&region, 1);
    let (lock_file, aside) = (lock_file_of(&location), directory.path.join("aside"));
    let content = fs::read(&lock_file).unwrap();
    assert_eq!(content.len(), 32);

    fs::rename(&lock_file, &aside).unwrap();
    assert!(matches!(problem_of(&location), LockFileProblem::Missing));
    assert!(is_free(&region, 2) && !is_free(&region, 1), "an open lock file needs no name");
    for other in [&content[..], &[], b"locks"] {
        fs::write(&lock_file, other).unwrap();
        assert!(matches!(problem_of(&location), LockFileProblem::Another), "{other:?}");
        fs::remove_file(&lock_file).unwrap();
    }
    symlink(&aside, &lock_file).unwrap();
    assert!(matches!(problem_of(&location), LockFileProblem::Another));
    fs::remove_file(&lock_file).unwrap();
    fs::create_dir(&lock_file).unwrap();
    assert!(matches!(problem_of(&location), LockFileProblem::Another));
    fs::remove_dir(&lock_file).unwrap();

    fs::rename(&aside, &lock_file).unwrap();
    assert!(!is_free(&open(&location), 1) && is_free(&open(&location), 2));
    for bit in 0..content.len() * 8 {
        let mut damaged = content.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&lock_file, damaged).unwrap();
        assert!(matches!(problem_of(&location), LockFileProblem::Damaged), "bit {bit}");
    }
    for bytes in [0, 31] {
        fs::write(&lock_file, &content[..bytes]).unwrap();
        assert!(matches!(problem_of(&location), LockFileProblem::Damaged), "{bytes}");
    }
    fs::write(&lock_file, content).unwrap();
    assert!(!is_free(&open(&location), 1));
    drop(held);
}

/// A user who may write the region but not its lock file gets an error that says what to do.
#[test]
fn writing_requires_access_to_the_lock_file() {
    if !rustix::process::geteuid().is_root() {
        println!("not tested: only root can become another user");
        return;
    }
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    drop(create_with_mode(&location, READABLE));
    fs::set_permissions(location.path(), PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(spawn("outsider", &location).next_word(), "refused");
}

/// See `writing_requires_access_to_the_lock_file`.
pub fn outsider(location: &Location) {
    // SAFETY: a system call that drops privileges; nothing else runs in this process.
    assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
    let error = ShmRegion::open(location, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, ShmError::LockFile { problem: LockFileProblem::Forbidden { .. }, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("chgrp") && text.ends_with("; nothing was changed"), "{text}");
    ShmRegion::open(location, Access::ReadOnly).unwrap();
    say("refused");
    wait_for_order();
}

/// The region's name is removed before that of its lock file, so a user who may not remove the region leaves both.
/// Tested in a directory with the sticky bit, with a lock file that belongs to another user.
#[test]
fn a_refused_removal_keeps_the_lock_file() {
    if !rustix::process::geteuid().is_root() {
        println!("not tested: only root can become another user");
        return;
    }
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    drop(create_with_mode(&location, 0o646));
    let lock_file = lock_file_of(&location);
    std::os::unix::fs::chown(&lock_file, Some(NOBODY), None).unwrap();
    fs::set_permissions(&directory.path, PermissionsExt::from_mode(0o1777)).unwrap();
    assert_eq!(spawn("remover", &location).next_word(), "refused");
    assert!(lock_file.exists() && directory.entries() == 2);
    drop(open(&location));
}

/// See `a_refused_removal_keeps_the_lock_file`.
pub fn remover(location: &Location) {
    // SAFETY: a system call that drops privileges; nothing else runs in this process.
    assert_eq!(unsafe { libc::setuid(NOBODY) }, 0);
    let error = ShmRegion::destroy(location).unwrap_err();
    assert!(matches!(error, ShmError::Permission { operation: "remove its name", .. }), "{error}");
    say("refused");
    wait_for_order();
}

/// The lock file of a moved region must be moved with it, to the matching name. A region that is opened through a link
/// has its lock file next to the link's target.
#[test]
fn a_region_that_moves_takes_its_lock_file_along() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    let region = create_with_mode(&location, READABLE);
    write(&mut region.lane(), Addr::main(0), 7);
    let held = take(&region, 1);
    let link = ScratchDirectory::new();
    symlink(location.path(), link.path.join("link")).unwrap();
    assert!(!is_free(&open(&link.file("link")), 1));

    let moved = directory.file("moved");
    let lock_file = lock_file_of(&location);
    fs::rename(location.path(), moved.path()).unwrap();
    assert!(matches!(problem_of(&moved), LockFileProblem::Missing));
    let name = lock_file.file_name().unwrap().to_str().unwrap().replace("region.", "moved.");
    fs::rename(&lock_file, directory.path.join(name)).unwrap();
    let opened = open(&moved);
    assert!(!is_free(&opened, 1) && is_free(&opened, 2));
    drop(held);
    assert!(is_free(&opened, 1));

    // A copy is another region, with no lock file of its own.
    let copy = directory.file("copy");
    fs::copy(moved.path(), copy.path()).unwrap();
    assert!(matches!(problem_of(&copy), LockFileProblem::Missing));
    let id = lock_file.file_name().unwrap().to_str().unwrap().strip_prefix("region").unwrap().to_owned();
    fs::copy(directory.path.join(format!("moved{id}")), directory.path.join(format!("copy{id}"))).unwrap();
    assert!(matches!(problem_of(&copy), LockFileProblem::Another));
    ShmRegion::destroy(&copy).unwrap();
    ShmRegion::destroy(&moved).unwrap();
    // A lock file that was copied by hand is unused once its region was removed.
    assert_eq!(directory.entries(), 0);
}

/// A process that has a destroyed region open can still hold and probe slots.
#[test]
fn a_destroyed_region_keeps_its_lock_file_open() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    let (first, second) = (create_with_mode(&location, READABLE), open(&location));
    let held = take(&first, 1);
    ShmRegion::destroy(&location).unwrap();
    assert_eq!(directory.entries(), 0);
    let successor = create_with_mode(&location, READABLE);
    assert!(!is_free(&second, 1) && is_free(&second, 2) && is_free(&successor, 1));
    let mut set = second.hold_set();
    assert!(!set.hold(1).unwrap() && set.hold(2).unwrap() && !is_free(&first, 2));
    drop(held);
    assert!(is_free(&second, 1));
}

/// The mapping of a hold is visible in the process that has it, and not in one that only has the region open.
#[test]
fn holds_in_lock_files_show_in_process_maps() {
    let scratch = Scratch::new();
    let region = create_with_mode(&scratch.location, READABLE);
    let own = ProcessIdentity::current();
    assert!(!region.may_be_held_by(&own));
    let held = take(&region, 1);
    assert!(region.may_be_held_by(&own));
    drop(held);
    let mut set = region.hold_set();
    assert!(set.hold(1).unwrap() && region.may_be_held_by(&own));
    drop(set);
    assert!(!region.may_be_held_by(&own));
}

/// A killed creator leaves at most its lock file, and the next creation under that name removes it.
#[test]
fn leftovers_of_killed_creators_are_removed() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    for (steps, left) in [(0, 0), (1, 1), (2, 2)] {
        let mut actor = spawn("creator", &location);
        let words = ["begun", "formatted", "created"];
        assert_eq!(actor.next_word(), words[0]);
        for word in &words[1..=steps] {
            actor.resume();
            assert_eq!(actor.next_word(), *word);
        }
        actor.kill();
        assert_eq!(directory.entries(), left, "killed at {}", words[steps]);
        if left == 2 {
            assert!(is_free(&open(&location), 3), "the region is complete");
            ShmRegion::destroy(&location).unwrap();
        } else {
            drop(common::create(&location));
            assert_eq!(directory.entries(), 1, "one region, without a lock file");
            ShmRegion::destroy(&location).unwrap();
        }
        assert_eq!(directory.entries(), 0);
    }
}

/// A living creator, however slow, keeps its lock file while regions are created and destroyed under the name.
#[test]
fn living_creators_keep_their_lock_files() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    let formatted = || {
        let mut actor = spawn("creator", &location);
        assert_eq!(actor.next_word(), "begun");
        actor.resume();
        assert_eq!(actor.next_word(), "formatted");
        actor
    };
    let (mut slow, mut slower) = (formatted(), formatted());
    slower.signal(Signal::STOP);
    for mode in MODES {
        drop(create_with_mode(&location, mode));
        ShmRegion::destroy(&location).unwrap();
        assert_eq!(directory.entries(), 2);
    }
    slow.resume();
    assert_eq!(slow.next_word(), "created");
    assert!(is_free(&open(&location), 3));
    slower.signal(Signal::CONT);
    slower.resume();
    assert_eq!(slower.next_word(), "taken");
    assert_eq!(directory.entries(), 2);
    assert!(is_free(&open(&location), 3), "the loser removed its own lock file only");
    ShmRegion::destroy(&location).unwrap();
    assert_eq!(directory.entries(), 0);
}

/// Only unused lock files of exactly this name are removed.
#[test]
fn files_that_may_be_needed_are_not_swept() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    // The region is removed by hand, while a client still uses it.
    let (first, second) = (create_with_mode(&location, READABLE), open(&location));
    let held = take(&first, 1);
    let in_use = lock_file_of(&location);
    fs::remove_file(location.path()).unwrap();
    let others = [
        ("region.0123456789abcdef.locks", &b"a file of the user"[..]),
        ("region.0123456789abcdef.locks2", b""),
        ("region.0123456789ABCDEF.locks", b""),
        ("region.123.locks", b""),
        ("region.0000000000000000.locks", b""),
        ("regions.0123456789abcdef.locks", b""),
    ];
    others.iter().for_each(|(name, content)| fs::write(directory.path.join(name), content).unwrap());
    fs::create_dir(directory.path.join("region.1111111111111111.locks")).unwrap();
    let neighbour = create_with_mode(&directory.file("region.0"), READABLE);
    for mode in MODES {
        drop(create_with_mode(&location, mode));
        ShmRegion::destroy(&location).unwrap();
    }
    assert!(in_use.exists() && others.iter().all(|(name, _)| directory.path.join(name).exists()));
    assert_eq!(directory.entries(), 1 + others.len() + 1 + 2);
    assert!(!is_free(&second, 1));
    // Once the last client has ended, the file is unused.
    drop((held, first, second));
    drop(common::create(&location));
    assert!(!in_use.exists());
    assert!(is_free(&open(&directory.file("region.0")), 1));
    drop(neighbour);
    // If the file under the name is not a region, its lock file stays.
    ShmRegion::destroy(&location).unwrap();
    let left = create_with_mode(&location, READABLE).slot_path().to_owned();
    fs::write(location.path(), b"something else").unwrap();
    assert!(matches!(ShmRegion::destroy(&location), Err(ShmError::Foreign { .. })) && left.exists());
}

/// Destroying a damaged region, whose header does not identify its lock file any more, removes the lock file.
#[test]
fn a_damaged_region_leaves_no_lock_file() {
    use std::os::unix::fs::FileExt;

    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    for at in [20, 84] {
        drop(create_with_mode(&location, READABLE));
        let file = fs::File::options().write(true).open(location.path()).unwrap();
        file.write_all_at(&[0xff], at).unwrap();
        assert!(matches!(ShmRegion::open(&location, Access::ReadWrite), Err(ShmError::HeaderCorrupt { .. })));
        ShmRegion::destroy(&location).unwrap();
        assert_eq!(directory.entries(), 0, "{at}");
    }
}

/// Threads create, open and destroy regions with lock files under one name: an opener finds the lock file, or that the
/// region was removed; and nothing is left behind.
#[test]
fn lock_files_go_with_their_regions_however_many_race() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    let work = |thread: usize| {
        let mut opened = 0;
        for round in 0..ROUNDS {
            let mode = if (round as usize + thread).is_multiple_of(3) { 0o600 } else { READABLE };
            let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES).with_mode(mode);
            let created = ShmRegion::create(&location, options, |_| Ok::<(), FabricError>(()));
            assert!(matches!(created, Ok(_) | Err(CreateError::Shm(ShmError::AlreadyExists { .. }))), "{created:?}");
            match ShmRegion::open(&location, Access::ReadWrite) {
                Ok(region) => {
                    let slot = thread as u16;
                    let (hold, lock_path) = (take(&region, slot), region.info().unwrap().lock_path);
                    assert!(region.hold(slot).unwrap().is_none(), "{lock_path:?}");
                    drop(hold);
                    opened += 1;
                }
                Err(ShmError::NotFound { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            match ShmRegion::destroy(&location) {
                Ok(()) | Err(ShmError::NotFound { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        opened
    };
    let opened: u32 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{opened} of {} were opened", THREADS as u32 * ROUNDS);
    assert!(opened > 0);
    // Files that were in use during a sweep are left; the next creation under the name removes them.
    drop(create_with_mode(&location, READABLE));
    ShmRegion::destroy(&location).unwrap();
    assert_eq!(directory.entries(), 0);
}
