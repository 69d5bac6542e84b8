//! Regions shared by processes: visibility of changes, liveness of clients, and effects of forks.
//!
//! The child processes run the test `child` ([`Actor`]).
#![allow(unsafe_code, reason = "it forks, and maps memory that other processes change")]
#![expect(clippy::unwrap_used, reason = "helpers of tests are not tests themselves to the lint")]

mod common;
mod domain;
mod locks;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guira_fabric::{Addr, FabricError, Region, SlotHold, Verb};
use guira_fabric_shm::{
    Access, CreateError, CreateOptions, KillError, Location, ProcessIdentity, ProcessState, ShmError, ShmRegion,
};
use guira_testing::{Actor, Orphan, patience, say, wait_for_order, wait_until};
use rustix::process::Signal;

use common::{DEVICE_BYTES, MAIN_BYTES, Scratch, ScratchDirectory, read, submit, write};

const ROLE: &str = "GUIRA_SHM_TEST_ROLE";
const PATH: &str = "GUIRA_SHM_TEST_PATH";
/// The modes of a region whose slots are locked in its own file, and of one with a lock file.
const MODES: [u32; 2] = [0o600, 0o644];

/// The environment of a child in this role.
fn variables<'v>(role: &'v str, location: &'v Location) -> [(&'static str, &'v OsStr); 2] {
    [(ROLE, role.as_ref()), (PATH, location.path().as_os_str())]
}

fn spawn(role: &str, location: &Location) -> Actor {
    Actor::spawn("child", &variables(role, location))
}

/// Starts the child by a shell in new pid and mount namespaces, after the commands `mounts` were executed there.
/// Returns `None` if this user may not create namespaces.
fn spawn_in_namespaces(role: &str, location: &Location, mounts: &str) -> Option<Actor> {
    let namespaces = ["--pid", "--mount", "--fork", "--mount-proc", "--kill-child"];
    let ways = [&namespaces[..], &["--user", "--map-root-user", "--pid", "--mount", "--fork", "--kill-child"]];
    let is_possible = |way: &&&[&str]| {
        let mut command = Command::new("unshare");
        command.args(**way).args(["sh", "-c", mounts]).stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let Some(way) = ways.iter().find(is_possible) else {
        println!("no namespaces for this user: {role} was not tested");
        return None;
    };
    let mut command = Command::new("unshare");
    command.args(*way).args(["sh", "-c", &format!("{mounts} && exec \"$0\" \"$@\"")]);
    command.arg(std::env::current_exe().unwrap());
    Some(Actor::start(command, "child", &variables(role, location)))
}

/// Forks; the child runs `body` and exits with the code that it returns, without unwinding or exit handlers.
fn fork(body: impl FnOnce() -> i32) -> u32 {
    // SAFETY: see `run_in_child`.
    run_in_child(unsafe { libc::fork() }, body)
}

/// Same as [`fork`], by a system call that runs no fork handler.
fn bare_clone(body: impl FnOnce() -> i32) -> u32 {
    // SAFETY: the call copies this process like `fork`; see `run_in_child`.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    run_in_child(pid as libc::pid_t, body)
}

/// Runs `body`, and nothing else, in the child, for which `number` is 0. The test makes sure that no other thread of
/// the parent holds a lock that `body` needs.
fn run_in_child(number: libc::pid_t, body: impl FnOnce() -> i32) -> u32 {
    match number {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(code) }
        }
        pid => u32::try_from(pid).expect("fork failed"),
    }
}

fn is_free(region: &ShmRegion, slot: u16) -> bool {
    region.hold(slot).unwrap().is_some()
}

// ---- Roles of child processes.

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let location = Location::file(std::env::var_os(PATH).unwrap());
    match role.as_str() {
        "writer" => writer(&location),
        "umask" => umask(&location),
        "holder" => holder(&location),
        "spawner" => spawner(&location),
        "forker" => forker(&location, |body| fork(body)),
        "set forker" => set_forker(&location),
        "set closer" => set_closer(&location),
        "cloner" => forker(&location, |body| bare_clone(body)),
        "exiting forker" => exiting_forker(&location),
        "exec caller" => exec_caller(&location),
        "descriptor closer" => descriptor_closer(&location),
        "prober" => prober(&location),
        "unsafe file system" => unsafe_file_system(&location),
        "without main thread" => without_main_thread(&location),
        "memlock limited" => memlock_limited(&location),
        "fork storm" => fork_storm(&location),
        "unprivileged" => unprivileged(&location),
        "reader" => locks::reader(&location),
        "creator" => locks::creator(&location),
        "outsider" => locks::outsider(&location),
        "remover" => locks::remover(&location),
        "claimer" => domain::claimer(&location),
        "mapper" => domain::mapper(&location),
        "claiming forker" => domain::claiming_forker(&location, |body| fork(body)),
        "claiming cloner" => domain::claiming_forker(&location, |body| bare_clone(body)),
        "mapping forker" => domain::mapping_forker(&location),
        "claiming closer" => domain::claiming_closer(&location),
        other => panic!("no role {other}"),
    }
}

fn open(location: &Location) -> ShmRegion {
    ShmRegion::open(location, Access::ReadWrite).unwrap()
}

fn take(region: &ShmRegion, slot: u16) -> SlotHold {
    region.hold(slot).unwrap().unwrap()
}

/// Takes a slot that was just freed. A process that was forked meanwhile and has not run yet may keep it for a moment.
fn take_soon(region: &ShmRegion, slot: u16) -> SlotHold {
    let mut hold = None;
    wait_until("the slot is freed", || {
        hold = region.hold(slot).unwrap();
        hold.is_some()
    });
    hold.unwrap()
}

fn writer(location: &Location) {
    let region = open(location);
    let mut lane = region.lane();
    assert_eq!(read(&mut lane, Addr::main(8)), 41);
    write(&mut lane, Addr::main(8), 42);
    write(&mut lane, Addr::device(8), 43);
    say("written");
    wait_for_order();
}

fn umask(location: &Location) {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
    let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES).with_mode(0o664);
    ShmRegion::create(location, options, |_| Ok::<(), FabricError>(())).unwrap();
    say("created");
    wait_for_order();
}

fn holder(location: &Location) {
    let region = open(location);
    let _hold = take_soon(&region, 1);
    say("held");
    wait_for_order();
}

/// Holds slot 1 and starts another program.
fn spawner(location: &Location) {
    let region = open(location);
    let _hold = take_soon(&region, 1);
    let mut other = Command::new("sleep").arg("60").stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    say(other.id());
    wait_for_order();
    other.wait().unwrap();
}

/// Holds slot 1 and forks; the forked process reopens the region, uses it, and stays alive.
fn forker(location: &Location, fork: impl FnOnce(&mut dyn FnMut() -> i32) -> u32) {
    let region = open(location);
    let mut lane = region.lane();
    // Options, for the forked process to drop its copies without moving the parent's.
    let mut hold = Some(take_soon(&region, 1));
    write(&mut lane, Addr::main(0), 1);
    let mut region = Some(region);
    let pid = fork(&mut || {
        let region = region.take().unwrap();
        assert!(region.is_stale() && lane.is_stale() && region.clone().is_stale() && region.lane().is_stale());
        let mut seen = [0];
        let refusal = submit(&mut lane, &mut [Verb::Read { addr: Addr::main(0), into: &mut seen }]);
        assert!(matches!(refusal, Err(FabricError::Forked)) && seen == [0]);
        assert!(matches!(region.hold(2), Err(FabricError::Forked)));

        let mine = open(location);
        assert!(!mine.is_stale());
        assert_eq!(read(&mut mine.lane(), Addr::main(0)), 1);
        assert!(mine.hold(1).unwrap().is_none(), "the parent is alive");
        // May get the table entry and the descriptor number that the parent's hold had in this process.
        let own = take(&mine, 2);
        drop((hold.take(), region));
        write(&mut mine.lane(), Addr::main(0), 2);
        loop {
            std::thread::park();
            std::hint::black_box(&own);
        }
    });
    say(pid);
    wait_for_order();
}

/// Holds slot 1 and forks; the forked process drops all that it inherited and exits normally, with exit handlers.
fn exiting_forker(location: &Location) {
    let region = open(location);
    let mut hold = Some(take_soon(&region, 1));
    let mut region = Some(region);
    let pid = fork(|| {
        drop((hold.take(), region.take()));
        std::process::exit(0)
    });
    let mut status = 0;
    // SAFETY: a plain system call on this process's own child.
    assert_eq!(unsafe { libc::waitpid(pid as libc::pid_t, &mut status, 0) }, pid as libc::pid_t);
    assert_eq!(status, 0);
    say("alone");
    wait_for_order();
}

/// Holds slot 1 and executes another program.
fn exec_caller(location: &Location) {
    use std::os::unix::process::CommandExt;
    let region = open(location);
    let _hold = take_soon(&region, 1);
    say("held");
    wait_for_order();
    panic!("{}", Command::new("sleep").arg("60").stdout(Stdio::null()).exec());
}

/// Holds slot 1, closes all of its descriptors, as programs do that go into the background, opens another region's file
/// under each of their numbers, and continues to use the region.
fn descriptor_closer(location: &Location) {
    let other = location.path().with_extension("other");
    let region = open(location);
    let mut lane = region.lane();
    let hold = take_soon(&region, 1);
    let decoy = std::ffi::CString::new(other.into_os_string().into_encoded_bytes()).unwrap();
    for descriptor in 3..64 {
        // SAFETY: a system call; the region tolerates the loss of its descriptors, and nothing else here has one.
        unsafe { libc::close(descriptor) };
        // SAFETY: as above; the name is a string that ends with a zero.
        let opened = unsafe { libc::open(decoy.as_ptr(), libc::O_RDWR) };
        assert!(opened >= 3);
    }
    write(&mut lane, Addr::main(0), 7);
    let second = take(&region, 2);
    say("closed");
    wait_for_order();
    // Once the name of the slot file is removed as well, the file cannot be reopened: the hold is refused, and no other
    // file is locked in its place.
    let error = region.hold(3).unwrap_err();
    assert!(error.to_string().contains("slot 3"), "{error}");
    say("refused");
    wait_for_order();
    drop(second);
    drop(hold);
    say("given back");
    wait_for_order();
    // The region's descriptor number belongs to another file now, and must not be closed.
    std::mem::forget(region);
}

/// Holds slots 1 to 3 as one owner, releases 2, and forks; the forked process takes slot 4 as another owner, and stays
/// alive.
fn set_forker(location: &Location) {
    let region = open(location);
    let mut set = region.hold_set();
    assert!((1..=3).all(|slot| set.hold(slot).unwrap()));
    assert!(set.release(2));
    let mut set = Some(set);
    let pid = fork(|| {
        let mut inherited = set.take().unwrap();
        assert!(matches!(inherited.hold(5), Err(FabricError::Forked)) && !inherited.release(1));
        drop(inherited);
        let mine = open(location);
        let mut own = mine.hold_set();
        assert!(!own.hold(1).unwrap() && own.hold(4).unwrap());
        write(&mut mine.lane(), Addr::main(0), 2);
        loop {
            std::thread::park();
            std::hint::black_box(&own);
        }
    });
    say(pid);
    wait_for_order();
}

/// Holds slot 1 in a set, closes all of its descriptors, and opens another region's file under their numbers.
fn set_closer(location: &Location) {
    let other = location.path().with_extension("other");
    let region = open(location);
    let mut set = region.hold_set();
    assert!(set.hold(1).unwrap());
    let decoy = std::ffi::CString::new(other.into_os_string().into_encoded_bytes()).unwrap();
    for descriptor in 3..64 {
        // SAFETY: a system call; sets tolerate the loss of their descriptors, and nothing else here has one.
        unsafe { libc::close(descriptor) };
        // SAFETY: as above; the name is a string that ends with a zero.
        assert!(unsafe { libc::open(decoy.as_ptr(), libc::O_RDWR) } >= 3);
    }
    let error = set.hold(2).unwrap_err();
    assert!(error.to_string().contains("slot 2"), "{error}");
    assert!(!set.release(1), "the slot stays held, and that is reported");
    say("closed");
    wait_for_order();
    drop(set);
    // SAFETY: a system call that reads a descriptor's flags. The drop must not have closed the other file.
    assert!((3..64).all(|descriptor| unsafe { libc::fcntl(descriptor, libc::F_GETFD) } >= 0));
    say("given back");
    wait_for_order();
    std::mem::forget(region);
}

/// Takes slot 2, and probes slot 1.
fn prober(location: &Location) {
    let region = open(location);
    let _hold = take_soon(&region, 2);
    let identity = ProcessIdentity::current();
    let ProcessIdentity { pid, start_ticks, namespaces, boot } = identity;
    let first = if is_free(&region, 1) { "free" } else { "held" };
    say(format!("{first} {pid} {start_ticks} {namespaces} {boot}"));
    wait_for_order();
    say(if is_free(&region, 1) { "free" } else { "held" });
    wait_for_order();
}

/// Takes slot 1, and stays alive when the main thread has ended.
fn without_main_thread(location: &Location) {
    extern "C" fn end(_signal: libc::c_int) {
        // SAFETY: the call ends the thread that runs the handler; other threads only wait for it.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let region = open(location);
    let _hold = take_soon(&region, 1);
    let own = ProcessIdentity::current();
    let (handler, pid) = (end as extern "C" fn(libc::c_int), libc::c_long::try_from(own.pid).unwrap());
    // SAFETY: the handler only makes a system call.
    unsafe {
        libc::signal(libc::SIGUSR1, handler as libc::sighandler_t);
        assert_eq!(libc::syscall(libc::SYS_tgkill, pid, pid, libc::SIGUSR1), 0);
    }
    let first = format!("/proc/{pid}/stat");
    wait_until("the main thread has ended", || std::fs::read_to_string(&first).unwrap().contains(") Z "));
    say(format!("{} {} {} {}", own.pid, own.start_ticks, own.namespaces, own.boot));
    wait_for_order();
}

/// Probes a free and a taken slot, before and after it may not lock another page in memory.
fn memlock_limited(location: &Location) {
    let region = open(location);
    let own = take_soon(&region, 1);
    let answer = |slot| match region.hold(slot) {
        Ok(Some(_)) => "free",
        Ok(None) => "taken",
        Err(_) => "unknown",
    };
    let before = [answer(1), answer(2)];
    let least = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // Version 3 of the structure; all capabilities are dropped.
    let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: system calls that drop privileges and limit this process; the memory that they read outlives them.
    let answers = unsafe {
        [
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const least).into(),
            libc::mlockall(libc::MCL_FUTURE).into(),
            libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()),
        ]
    };
    let after = [answer(1), answer(2)];
    // SAFETY: the call does not access memory of this program.
    unsafe { libc::munlockall() };
    assert_eq!(answers, [0; 3]);
    drop(own);
    say(format!("{before:?} {after:?}"));
    wait_for_order();
}

/// Fails to create and open a region on a file system that is refused, and leaves nothing behind.
fn unsafe_file_system(location: &Location) {
    let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES);
    let refusal = |error: &ShmError| match error {
        ShmError::UnsupportedFileSystem { name, .. } => (*name).to_owned(),
        other => panic!("{other}"),
    };
    let sibling = Location::file(location.path().with_file_name("sibling"));
    let created = match ShmRegion::create(&sibling, options, |_| Ok::<(), FabricError>(())) {
        Err(CreateError::Shm(error)) => refusal(&error),
        other => panic!("{other:?}"),
    };
    let opened = refusal(&ShmRegion::open(location, Access::ReadOnly).unwrap_err());
    say(format!("{created} {opened} {}", sibling.path().exists()));
    wait_for_order();
}

/// Takes and releases slots on two threads while a third forks; then holds slots 1 to 8.
fn fork_storm(location: &Location) {
    const FORKS: usize = 60;
    let region = open(location);
    let done = AtomicBool::new(false);
    let (region, done) = (&region, &done);
    let (pids, _holds) = std::thread::scope(|scope| {
        let churn = |slots: [u16; 4]| {
            move || loop {
                let holds = slots.map(|slot| take_soon(region, slot));
                if done.load(Ordering::Relaxed) {
                    return holds;
                }
            }
        };
        let churners = [scope.spawn(churn([1, 2, 3, 4])), scope.spawn(churn([5, 6, 7, 8]))];
        let pids: Vec<u32> = (0..FORKS)
            .map(|_| {
                fork(|| {
                    // SAFETY: two system calls without effects on memory: the child waits, and dies after a minute.
                    unsafe { (libc::alarm(60), libc::pause()) }.1
                })
            })
            .collect();
        done.store(true, Ordering::Relaxed);
        (pids, churners.map(|churner| churner.join().unwrap()))
    });
    say(pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    wait_for_order();
}

/// Drops its privileges, after which every operation on the file is refused.
fn unprivileged(location: &Location) {
    const NOBODY: u32 = 65_534;
    if rustix::process::geteuid().is_root() {
        // SAFETY: system calls that drop privileges; nothing else runs in this process.
        let answers = unsafe { (libc::setgroups(0, std::ptr::null()), libc::setgid(NOBODY), libc::setuid(NOBODY)) };
        assert_eq!(answers, (0, 0, 0));
    }
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let error = ShmRegion::open(location, access).unwrap_err();
        assert!(matches!(error, ShmError::Permission { .. }), "{error}");
        assert!(error.to_string().contains("Permission denied (os error 13)"), "the system's reason: {error}");
    }
    let error = ShmRegion::destroy(location).unwrap_err();
    assert!(matches!(error, ShmError::Permission { .. }), "{error}");
    let sibling = Location::file(location.path().with_file_name("sibling"));
    let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES);
    let error = ShmRegion::create(&sibling, options, |_| Ok::<(), FabricError>(())).unwrap_err();
    assert!(matches!(error, CreateError::Shm(ShmError::Permission { .. })), "{error}");
    say("refused");
    wait_for_order();
}

// ---- Tests.

#[test]
fn processes_share_the_words() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let mut lane = region.lane();
    write(&mut lane, Addr::main(8), 41);
    assert_eq!(spawn("writer", &scratch.location).next_word(), "written");
    assert_eq!(read(&mut lane, Addr::main(8)), 42);
    assert_eq!(read(&mut lane, Addr::device(8)), 43);
}

/// Locks the slots for reading, as a process can that may only read the file.
fn lock_for_reading(location: &Location, slots: std::ops::Range<i64>) -> std::fs::File {
    const FIRST_SLOT_BYTE: i64 = 1 << 62;
    let file = std::fs::File::open(location.path()).unwrap();
    // SAFETY: `flock` is plain integers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (FIRST_SLOT_BYTE + slots.start, slots.end - slots.start);
    // SAFETY: the descriptor is open, and the call reads one `flock`, which outlives it.
    let answer = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_OFD_SETLK, &lock) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    file
}

/// Slots that a reader has locked look taken. But the lock is found among those of clients, also by a process that may
/// only read, and it ends when the reader closes the file.
#[test]
fn locks_of_readers_are_found() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let holds = [0, 1, 7].map(|slot| region.hold(slot).unwrap().unwrap());
    assert_eq!(region.foreign_lock(0..1024).unwrap(), None);
    let reader = lock_for_reading(&scratch.location, 3..6);
    let other = ShmRegion::open(&scratch.location, Access::ReadOnly).unwrap();
    for region in [&region, &other] {
        let lock = region.foreign_lock(0..1024).unwrap().expect("a lock");
        assert_eq!((lock.first_slot, lock.last_slot, lock.process), (3, 5, None));
        let lock = region.foreign_lock(5..9).unwrap().expect("a lock");
        assert_eq!((lock.first_slot, lock.last_slot), (5, 5));
        for clear in [0..3, 6..1024, 1..1, 7..8] {
            assert_eq!(region.foreign_lock(clear.clone()).unwrap(), None, "{clear:?}");
        }
    }
    assert!(region.hold(4).unwrap().is_none() && region.hold(6).unwrap().is_some());
    drop((holds, reader));
    let all = lock_for_reading(&scratch.location, 0..i64::MAX - (1 << 62));
    let lock = region.foreign_lock(0..1024).unwrap().expect("a lock");
    assert_eq!((lock.first_slot, lock.last_slot), (0, 1023));
    drop(all);
    assert_eq!(region.foreign_lock(0..1024).unwrap(), None);
    assert!(region.hold(4).unwrap().is_some());
}

#[test]
fn the_umask_is_ignored() {
    let scratch = Scratch::new();
    assert_eq!(spawn("umask", &scratch.location).next_word(), "created");
    let mode = std::fs::metadata(scratch.location.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o664);
    let [lock_file] = &common::lock_files_of(&scratch.location)[..] else { panic!("it has no lock file") };
    assert_eq!(std::fs::metadata(lock_file).unwrap().permissions().mode() & 0o7777, 0o660);
}

#[test]
fn a_killed_holder_is_dead_and_a_stopped_one_is_not() {
    for mode in MODES {
        let scratch = Scratch::new();
        let region = common::create_with_mode(&scratch.location, mode);
        let mut actor = spawn("holder", &scratch.location);
        assert_eq!(actor.next_word(), "held");
        assert!(!is_free(&region, 1) && is_free(&region, 2));

        actor.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", actor.process.id());
        wait_until("the holder is stopped", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
        for _ in 0..20 {
            assert!(!is_free(&region, 1));
            std::thread::sleep(Duration::from_millis(5));
        }
        actor.signal(Signal::KILL);
        actor.process.wait().unwrap();
        assert!(is_free(&region, 1), "the slot is free as soon as the process has ended");

        let mut actor = spawn("holder", &scratch.location);
        assert_eq!(actor.next_word(), "held");
        actor.resume();
        assert!(actor.process.wait().unwrap().success());
        assert!(is_free(&region, 1));
    }
}

#[test]
fn a_program_the_holder_started_does_not_keep_it_alive() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let mut actor = spawn("spawner", &scratch.location);
    let other = Orphan::of(&actor.next_word());
    assert!(!is_free(&region, 1));
    actor.kill();
    // The kernel resumes the holder before it closes the descriptors that the new program must not inherit.
    wait_until("the program has started", || is_free(&region, 1));
    assert!(other.is_running());
}

#[test]
fn a_forked_child_has_its_own_liveness() {
    a_child_has_its_own_liveness("forker");
}

/// No fork handler runs in a cloned child: the page that the kernel zeroes identifies it.
#[test]
fn a_cloned_child_has_its_own_liveness() {
    if rustix::param::page_size() == 4096 {
        a_child_has_its_own_liveness("cloner");
    }
}

fn a_child_has_its_own_liveness(role: &str) {
    for mode in MODES {
        let scratch = Scratch::new();
        let region = common::create_with_mode(&scratch.location, mode);
        let mut lane = region.lane();
        let mut actor = spawn(role, &scratch.location);
        let forked = Orphan::of(&actor.next_word());
        wait_until("the forked process has done its part", || read(&mut lane, Addr::main(0)) == 2);
        assert!(!is_free(&region, 1), "the child dropped its copy of the parent's hold; the parent is alive");
        assert!(!is_free(&region, 2), "the child's own hold is not affected");
        actor.kill();
        assert!(forked.is_running() && is_free(&region, 1), "the child does not keep its parent's slot");
        assert!(!is_free(&region, 2));
        forked.kill();
        wait_until("the child's slot is free", || is_free(&region, 2));
    }
}

/// The slots of a set share a descriptor. A child that outlives its killed parent does not keep them.
#[test]
fn a_forked_child_does_not_share_hold_sets() {
    for mode in MODES {
        let scratch = Scratch::new();
        let region = common::create_with_mode(&scratch.location, mode);
        let mut lane = region.lane();
        let mut actor = spawn("set forker", &scratch.location);
        let forked = Orphan::of(&actor.next_word());
        wait_until("the forked process has done its part", || read(&mut lane, Addr::main(0)) == 2);
        let free = || [1, 2, 3, 4].map(|slot| is_free(&region, slot));
        assert_eq!(free(), [false, true, false, false], "2 was released, and the others have living owners");
        actor.kill();
        assert!(forked.is_running());
        assert_eq!(free(), [true, true, true, false], "the child keeps its own slot, and none of its parent's");
    }
}

#[test]
fn closing_descriptors_frees_no_slot_of_a_set() {
    for mode in MODES {
        let directory = ScratchDirectory::new();
        let location = directory.file("region");
        let region = common::create_with_mode(&location, mode);
        let decoy = common::create(&directory.file("region.other"));
        let mut actor = spawn("set closer", &location);
        assert_eq!(actor.next_word(), "closed");
        assert!(!is_free(&region, 1) && is_free(&region, 2));
        assert!((1..=2).all(|slot| is_free(&decoy, slot)), "no other file was locked in its place");
        actor.resume();
        assert_eq!(actor.next_word(), "given back");
        assert!(is_free(&region, 1));
        actor.resume();
        assert!(actor.process.wait().unwrap().success());
    }
}

/// Thousands of slots of one owner cost one mapping and one descriptor, and are released at once.
#[test]
fn thousands_of_slots_cost_one_mapping() {
    use std::os::unix::fs::MetadataExt;

    for mode in MODES {
        let scratch = Scratch::new();
        let region = common::create_with_mode(&scratch.location, mode);
        // The path in /proc of a file that was created without a name is not its name, so inodes are compared.
        let inode = |path: &std::path::Path| std::fs::metadata(path).map(|file| file.ino()).ok();
        let own = inode(region.slot_path());
        let count = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let maps = maps.lines().filter(|line| line.split_ascii_whitespace().nth(4).unwrap().parse().ok() == own);
            let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
            let descriptors = descriptors.filter(|entry| inode(&entry.as_ref().unwrap().path()) == own);
            (maps.count(), descriptors.count())
        };
        let (maps, descriptors) = count();
        let mut set = region.hold_set();
        for slot in (0..8192).step_by(2) {
            assert!(set.hold(slot).unwrap());
        }
        assert_eq!((maps > 0, descriptors > 0), (mode == 0o600, true), "the region has its own mapping and descriptor");
        assert_eq!((set.count(), count()), (4096, (maps + 1, descriptors + 1)));
        assert!(!set.hold(2).unwrap() && !is_free(&region, 8190) && is_free(&region, 8191));
        drop(set);
        assert_eq!(count(), (maps, descriptors));
        assert!((0..8192).all(|slot| is_free(&region, slot)));
    }
}

/// Forks at any time while slots are taken and released leave no copy of a hold.
#[test]
fn forks_during_a_hold_leave_no_copy_of_it() {
    for mode in MODES {
        let scratch = Scratch::new();
        let region = common::create_with_mode(&scratch.location, mode);
        let mut actor = spawn("fork storm", &scratch.location);
        let forked: Vec<Orphan> = actor.next_word().split(' ').map(Orphan::of).collect();
        assert!((1..=8).all(|slot| !is_free(&region, slot)));
        actor.kill();
        assert!(forked.iter().all(Orphan::is_running));
        for slot in 1..=8 {
            wait_until("every forked process has run", || is_free(&region, slot));
        }
    }
}

/// A forked child that ends does not release its parent's holds.
#[test]
fn a_forked_child_that_ends_leaves_its_parent_alone() {
    for mode in MODES {
        let scratch = Scratch::new();
        let region = common::create_with_mode(&scratch.location, mode);
        let mut actor = spawn("exiting forker", &scratch.location);
        assert_eq!(actor.next_word(), "alone");
        assert!(!is_free(&region, 1), "the parent is alive");
        actor.kill();
        assert!(is_free(&region, 1));
    }
}

/// A process whose main thread has ended is alive as long as it has other threads, and can be killed.
#[test]
fn a_process_stays_alive_without_its_main_thread() {
    let scratch = Scratch::new();
    let region = scratch.create();
    let mut actor = spawn("without main thread", &scratch.location);
    let said = actor.next_word();
    let words: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
    let [pid, start_ticks, namespaces, boot] = words[..] else { panic!("{said}") };
    let identity = ProcessIdentity { pid, start_ticks, namespaces, boot };
    assert!(!is_free(&region, 1));
    assert_eq!(identity.state(), ProcessState::Running);
    assert_eq!(identity.kill(patience(), || !is_free(&region, 1)), Ok(()));
    assert!(is_free(&region, 1));
    assert_eq!(identity.state(), ProcessState::Ended);
}

/// A process that may not map a hold, because all of its memory is to be locked and the limit is reached, gets an
/// error. Only a failed lock counts as a living holder.
#[test]
fn a_memlock_limit_is_not_taken_for_a_living_holder() {
    let scratch = Scratch::new();
    let _region = scratch.create();
    let said = spawn("memlock limited", &scratch.location).next_word();
    assert_eq!(said, r#"["taken", "free"] ["taken", "unknown"]"#);
}

/// A process that executes another program is alive, but its clients are dead.
#[test]
fn another_program_does_not_keep_the_slot() {
    for mode in MODES {
        let scratch = Scratch::new();
        let region = common::create_with_mode(&scratch.location, mode);
        let mut actor = spawn("exec caller", &scratch.location);
        assert_eq!(actor.next_word(), "held");
        assert!(!is_free(&region, 1));
        actor.resume();
        wait_until("the other program runs", || is_free(&region, 1));
        assert!(actor.process.try_wait().unwrap().is_none(), "the process lives on as another program");
    }
}

/// A process whose descriptors were closed keeps its slots, and takes new ones in the right file only.
#[test]
fn closing_descriptors_kills_no_client() {
    for mode in MODES {
        let directory = ScratchDirectory::new();
        let location = directory.file("region");
        let region = common::create_with_mode(&location, mode);
        let decoy = common::create(&directory.file("region.other"));
        let mut actor = spawn("descriptor closer", &location);
        assert_eq!(actor.next_word(), "closed");
        assert_eq!(read(&mut region.lane(), Addr::main(0)), 7);
        assert!(!is_free(&region, 1), "its hold needs no descriptor");
        assert!(!is_free(&region, 2), "it took a slot in its own file");
        assert!((1..=3).all(|slot| is_free(&decoy, slot)), "and none in the file under its descriptor's number");
        std::fs::remove_file(region.slot_path()).unwrap();
        actor.resume();
        assert_eq!(actor.next_word(), "refused");
        assert!((1..=3).all(|slot| is_free(&decoy, slot)));
        actor.resume();
        assert_eq!(actor.next_word(), "given back");
        assert!(is_free(&region, 1) && is_free(&region, 2));
        actor.resume();
        assert!(actor.process.wait().unwrap().success());
    }
}

/// Containers that share the file system agree on which clients are alive, although process ids differ between them. A
/// process in another pid namespace is not killed.
#[test]
fn containers_see_which_clients_are_alive() {
    for mode in MODES {
        let directory = ScratchDirectory::new();
        let region = common::create_with_mode(&directory.file("region"), mode);
        let elsewhere = ScratchDirectory::within(env!("CARGO_TARGET_TMPDIR").into());
        let mounts = format!("mount --bind {} {}", directory.path.display(), elsewhere.path.display());
        let own = take(&region, 1);
        let Some(mut actor) = spawn_in_namespaces("prober", &elsewhere.file("region"), &mounts) else { return };
        let said = actor.next_word();
        let words: Vec<&str> = said.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        assert_eq!(words[0], "held", "the container sees this process alive");
        assert!(!is_free(&region, 2), "this process sees the one in the container alive");
        let (pid, start_ticks) = (number(1), number(2));
        let there = ProcessIdentity { pid, start_ticks, namespaces: number(3), boot: number(4) };
        assert_eq!(there.boot, ProcessIdentity::current().boot);
        assert_eq!(there.state(), ProcessState::Unknown);
        let error = there.kill(patience(), || true);
        assert!(matches!(error, Err(KillError::Unproven { pid: found, .. }) if found == pid), "{error:?}");
        drop(own);
        actor.resume();
        assert_eq!(actor.next_word(), "free", "the container sees that this process released it");
        actor.kill();
        wait_until("the container is gone", || is_free(&region, 2));
    }
}

/// Overlay mounts are refused on every file system: a file that is copied up is another one, with other locks.
#[test]
fn overlays_are_refused() {
    let directory = ScratchDirectory::new();
    drop(common::create(&directory.file("region")));
    for name in ["upper", "work", "merged"] {
        std::fs::create_dir(directory.path.join(name)).unwrap();
    }
    std::fs::create_dir(directory.path.join("lower")).unwrap();
    std::fs::rename(directory.path.join("region"), directory.path.join("lower/region")).unwrap();
    let at = directory.path.display();
    let options = format!("lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work");
    let mounts = format!("mount -t overlay overlay -o {options} {at}/merged");
    let Some(mut actor) = spawn_in_namespaces("unsafe file system", &directory.file("merged/region"), &mounts) else {
        return;
    };
    assert_eq!(actor.next_word(), "overlayfs overlayfs false");
}

/// As root, the child becomes the user nobody first; as another user, the test removes the file's permissions.
#[test]
fn users_without_permission_are_refused() {
    let directory = ScratchDirectory::new();
    let location = directory.file("region");
    drop(common::create(&location));
    let set = |path: &std::path::Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    if !rustix::process::geteuid().is_root() {
        set(location.path(), 0);
    }
    set(&directory.path, 0o555);
    let word = spawn("unprivileged", &location).next_word();
    set(&directory.path, 0o755);
    assert_eq!((word.as_str(), directory.entries()), ("refused", 1));
}
