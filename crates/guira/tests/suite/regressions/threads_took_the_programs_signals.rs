//! Cause: threads of the library were started with the signal mask of the thread that opened a table.
//!
//! Effect: a program that blocked a signal on its own threads afterwards, to wait for it with sigwait or signalfd, was
//! ended by it, or its handler ran on a thread of the library.
//!
//! Fix: these threads block all signals of the process ([`guira_fabric::signals::without_signals`]).

use std::fs::read_to_string;

use guira::{CreateOptions, ServeOptions, Store};
use guira_testing::wait_until;

use crate::common::Table;

/// SIGINT, SIGUSR1 and SIGTERM, as bits of a mask.
const OF_PROCESS: u64 = 1 << 1 | 1 << 9 | 1 << 14;
/// SIGBUS and SIGSEGV.
const OF_THREADS: u64 = 1 << 6 | 1 << 10;

/// Returns the names of the library's threads in this process, and the masks of signals that they block.
fn threads() -> Vec<(String, u64)> {
    let all = std::fs::read_dir("/proc/self/task").expect("there is a /proc");
    let masked = all.flatten().filter_map(|thread| {
        // A thread may end meanwhile.
        let name = read_to_string(thread.path().join("comm")).ok()?;
        let status = read_to_string(thread.path().join("status")).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        Some((name.trim().to_owned(), u64::from_str_radix(mask.trim(), 16).expect("a number")))
    });
    masked.filter(|(name, _)| name.starts_with("guira-")).collect()
}

#[test]
fn threads_of_the_library_leave_signals_to_the_program() {
    let (_table, store) = Table::create(&CreateOptions::new(1_000));
    let served = Store::create_unnamed(&CreateOptions::new(1_000)).expect("memory");
    let served = served.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into())).expect("a free port");
    // A thread gets its name when it runs for the first time.
    let has_both = |found: &[(String, u64)]| {
        ["guira-name", "guira-node-0"].iter().all(|name| found.iter().any(|(found, _)| found == name))
    };
    wait_until("both threads have their names", || has_both(&threads()));
    // The C library blocks all signals of a thread for a moment, for instance while it starts another one.
    let is_right = |(_, mask): &(String, u64)| (mask & OF_PROCESS, mask & OF_THREADS) == (OF_PROCESS, 0);
    wait_until("all threads block the right signals", || threads().iter().all(is_right));
    drop((store, served));
}
