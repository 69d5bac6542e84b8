//! Truncation of a file while processes have it mapped: a process that guards the region survives, reads zeros and
//! learns of it. Other processes die, and so does a guarded one if another file is truncated.
//!
//! Child processes run this test program again, with only the test `child`, which reads its role from the environment.
//! A child prints "@@" and a word when it has reached a point, and continues when it is sent a line.
#![allow(unsafe_code, reason = "it maps memory whose file shrinks")]
#![expect(clippy::unwrap_used, reason = "helpers of tests are not tests themselves to the lint")]

#[expect(dead_code, reason = "helpers of the crate's tests, of which these use some")]
mod common;

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use common::{MAIN_BYTES, Scratch, read, write};
use guira_fabric::{Addr, Region};
use guira_fabric_shm::{Access, CreateOptions, Location, ShmError, ShmRegion};
use guira_testing::wait_until;

const ROLE: &str = "GUIRA_SHM_TEST_CUT_ROLE";
const PATHS: &str = "GUIRA_SHM_TEST_CUT_PATHS";
const LAST_WORD: Addr = Addr::main(MAIN_BYTES - 8);
/// The number of regions that a process may guard at the same time.
const MAX_GUARDED: usize = 64;

/// A child process that has regions mapped. Killed on drop.
struct Mapper(Child);

impl Mapper {
    /// Starts a child with `role` and these regions, and waits until it is ready.
    fn start(role: &str, regions: &[&Scratch]) -> Mapper {
        let paths: Vec<&str> = regions.iter().map(|scratch| scratch.location.path().to_str().unwrap()).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--quiet"])
            .env(ROLE, role)
            .env(PATHS, paths.join(":"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut mapper = Mapper(child.unwrap());
        assert_eq!(mapper.next_word().as_deref(), Some("ready"));
        mapper
    }

    /// Returns the next word of the child; `None` if it ends before.
    fn next_word(&mut self) -> Option<String> {
        // The buffer cannot read ahead: the child prints the next word only after the next line.
        let words = BufReader::new(self.0.stdout.as_mut().unwrap());
        words.lines().find_map(|line| Some(line.unwrap().split_once("@@")?.1.to_owned()))
    }

    fn resume(&mut self) {
        writeln!(self.0.stdin.as_mut().unwrap()).unwrap();
    }

    fn end(mut self) -> ExitStatus {
        drop(self.0.stdin.take());
        wait_until("the child has ended", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn cut(location: &Location, bytes: u64) {
    OpenOptions::new().write(true).open(location.path()).unwrap().set_len(bytes).unwrap();
}

/// Waits for a line from the parent.
fn wait() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

// ---- Roles of child processes.

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let paths = std::env::var(PATHS).unwrap();
    let locations: Vec<Location> = paths.split(':').map(Location::file).collect();
    let access = if role == "reader" { Access::ReadOnly } else { Access::ReadWrite };
    let regions: Vec<ShmRegion> = locations.iter().map(|location| ShmRegion::open(location, access).unwrap()).collect();
    let (first, last) = (&regions[0], &regions[regions.len() - 1]);
    if role != "unguarded" {
        first.guard_against_truncation().unwrap();
        first.guard_against_truncation().unwrap();
    }
    assert_eq!(read(&mut last.lane(), LAST_WORD), 7);
    println!("\n@@ready");
    wait();
    match role.as_str() {
        "many threads" => many_threads(first),
        _ => {
            let found = read(&mut last.lane(), LAST_WORD);
            if access == Access::ReadWrite {
                write(&mut last.lane(), LAST_WORD, 8);
            }
            println!("\n@@{found} {}", last.has_lost_bytes());
        }
    }
}

/// Many threads touch lost bytes at the same time.
fn many_threads(region: &ShmRegion) {
    let found = std::thread::scope(|scope| {
        let touch = |thread: u64| {
            let mut lane = region.lane();
            let found = read(&mut lane, Addr::main(MAIN_BYTES - 8 - 4096 * (thread % 8)));
            // Like a node: the result is used only if no bytes were lost.
            if region.has_lost_bytes() { None } else { Some(found) }
        };
        let threads: Vec<_> = (0..16).map(|thread| scope.spawn(move || touch(thread))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<u64>>()
    });
    println!("\n@@{found:?} {}", region.has_lost_bytes());
}

// ---- Tests.

/// Creates a region whose last word is 7.
fn marked() -> Scratch {
    let scratch = Scratch::new();
    write(&mut scratch.create().lane(), LAST_WORD, 7);
    scratch
}

#[test]
fn a_guarded_process_survives_truncation_and_learns_of_it() {
    for (role, bytes, said) in [
        ("mapper", 0, "0 true"),
        ("mapper", MAIN_BYTES / 2, "0 true"),
        ("reader", 0, "0 true"),
        ("many threads", 0, "[] true"),
    ] {
        let scratch = marked();
        let mut mapper = Mapper::start(role, &[&scratch]);
        cut(&scratch.location, bytes);
        mapper.resume();
        assert_eq!(mapper.next_word().as_deref(), Some(said), "{role} {bytes}");
        assert!(mapper.end().success(), "{role} {bytes}");
    }
}

#[test]
fn a_guarded_process_reads_and_writes_a_whole_file() {
    let scratch = marked();
    let mut mapper = Mapper::start("mapper", &[&scratch]);
    mapper.resume();
    assert_eq!(mapper.next_word().as_deref(), Some("7 false"));
    assert!(mapper.end().success());
    assert_eq!(read(&mut ShmRegion::open(&scratch.location, Access::ReadOnly).unwrap().lane(), LAST_WORD), 8);
}

/// The process ends without a guard, with a guard of another region only, and when another process sends the signal.
#[test]
fn every_other_bus_error_ends_the_process() {
    let (whole, truncated) = (marked(), marked());
    for (role, regions) in [("unguarded", vec![&truncated]), ("mapper", vec![&whole, &truncated])] {
        let mut mapper = Mapper::start(role, &regions);
        cut(&truncated.location, 4096);
        mapper.resume();
        assert_eq!(mapper.next_word(), None, "{role}");
        assert_eq!(mapper.end().signal(), Some(libc::SIGBUS), "{role}");
        std::fs::remove_file(truncated.location.path()).unwrap();
        write(&mut truncated.create().lane(), LAST_WORD, 7);
    }
    let mut mapper = Mapper::start("mapper", &[&whole]);
    // The standard library's own handler lets the first of them pass, and two that come at once count as one.
    wait_until("the signals have ended it", || {
        // SAFETY: a plain system call on a process this test started, which was not waited for after its end.
        unsafe { libc::kill(mapper.0.id() as libc::pid_t, libc::SIGBUS) };
        mapper.0.try_wait().unwrap().is_some()
    });
    assert_eq!(mapper.end().signal(), Some(libc::SIGBUS));
}

#[test]
fn guard_entries_are_bounded_and_reused() {
    let create = || {
        let region = ShmRegion::create_unnamed(CreateOptions::new(8192, 64), |_| Ok::<(), ()>(())).unwrap();
        region.guard_against_truncation().map(|()| region)
    };
    for _ in 0..3 {
        let regions: Vec<ShmRegion> = (0..MAX_GUARDED).map(|_| create().unwrap()).collect();
        assert!(matches!(create(), Err(ShmError::Io { .. })), "one more than there are places");
        assert!(regions.iter().all(|region| !region.has_lost_bytes() && region.verify_bytes().is_ok()));
    }
}

#[test]
fn a_region_says_how_its_bytes_were_lost() {
    let scratch = marked();
    let region = ShmRegion::open(&scratch.location, Access::ReadWrite).unwrap();
    assert!(region.verify_bytes().is_ok());
    cut(&scratch.location, 5000);
    let said = region.verify_bytes().unwrap_err().to_string();
    assert!(said.contains("was truncated to 5000 of ") && said.contains("guira-test-"), "{said}");
}
