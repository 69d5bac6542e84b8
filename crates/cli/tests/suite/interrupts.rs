//! Interrupts, above all by Ctrl-C: commands end between two operations with exit code 130, report what is stored, and
//! leave a sound table, or none if they created it for themselves. After a SIGKILL, the next run says how to remove
//! what is left.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::common::{PROGRAM, Run, Table, command, guira, guira_with_input, sh};
use guira_testing::{ScratchFolder, wait_until};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

const EXIT_INTERRUPTED: i32 = 130;
/// Bytes of input after which a load is well under way: many times what a pipe holds.
const UNDER_WAY_BYTES: u64 = 1 << 20;

/// The target of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// The command alone.
    Command,
    /// The command and its workers, as from a terminal.
    Group,
}

/// Starts the program in a process group of its own.
fn start(arguments: &[&str]) -> Child {
    command(arguments).process_group(0).stdin(Stdio::piped()).spawn().expect("the program starts")
}

/// Sends SIGINT.
fn interrupt(child: &Child, target: Target) {
    send(child, target, Signal::INT);
}

fn send(child: &Child, target: Target, signal: Signal) {
    let pid = Pid::from_child(child);
    let sent = match target {
        Target::Command => kill_process(pid, signal),
        Target::Group => kill_process_group(pid, signal),
    };
    sent.expect("the process is there");
}

pub fn catches(child: &Child, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

/// The signals that interrupt a command.
const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

fn end(child: Child, arguments: &[&str]) -> Run {
    Run::of(child.wait_with_output().expect("the program ends"), arguments)
}

fn stat(table: &Table) -> Value {
    guira(&["stat", table.url(), "--format", "json"]).expect(0).json()
}

/// The states of its clients.
fn clients(table: &Table) -> Vec<Value> {
    let clients = stat(table)["clients"].as_array().expect("a list").clone();
    clients.into_iter().map(|client| client["state"].clone()).collect()
}

/// Checks that the table is sound and has no clients.
fn in_order(table: &Table) {
    guira(&["check", table.url()]).expect(0);
    assert_eq!(stat(table)["clients"], Value::Array(vec![]), "every client slot is free");
}

/// Loads records of distinct keys until it is interrupted.
fn interrupted_load(table: &Table, further: &[&str]) -> Run {
    let arguments = [&["load", table.url(), "-", "--input", "tsv", "--numbers"], further].concat();
    let mut child = start(&arguments);
    let mut stdin = child.stdin.take().expect("a pipe was asked for");
    let fed = Arc::new(AtomicU64::new(0));
    let feeding = Arc::clone(&fed);
    let feeder = thread::spawn(move || {
        // Ends when the program closes its input.
        for number in 0_u64.. {
            let line = format!("{number}\t{number}\n");
            if stdin.write_all(line.as_bytes()).is_err() {
                return;
            }
            feeding.fetch_add(line.len() as u64, Ordering::Relaxed);
        }
    });
    wait_until("it reads", || fed.load(Ordering::Relaxed) > UNDER_WAY_BYTES);
    interrupt(&child, Target::Command);
    let run = end(child, &arguments).expect(EXIT_INTERRUPTED);
    feeder.join().expect("the feeder ends");
    run
}

/// The command that an interrupted copy names continues it.
#[test]
fn an_interrupted_copy_is_continued() {
    let folder = ScratchFolder::in_shared_memory();
    for capacity in ["100k", "1M", "5M"] {
        let (from, to) = (Table::unused("from"), Table::unused("to"));
        let records = ["--records", capacity, "--operations", "1", "--entry", "fixed:8:8", "--keep"];
        guira(&[&["ycsb", from.url(), "--workload", "c"], &records[..]].concat()).expect(0);
        guira(&["create", to.url(), "--capacity", capacity, "--entry", "fixed:8:8"]).expect(0);
        let arguments = ["copy", from.url(), to.url()];
        let child = start(&arguments);
        wait_until("it copies", || stat(&to)["table"]["entries"] != 0);
        interrupt(&child, Target::Command);
        let run = end(child, &arguments);
        let Some(EXIT_INTERRUPTED) = run.code else { continue };
        let (_, advice) = run.stderr.rsplit_once("; guira").expect("a command");
        let command = format!("guira{}", advice.split(" continues").next().expect("a part"));
        let continued = sh(Command::new("sh"), &folder).arg(&command).output().expect("sh runs");
        assert!(Run::of(continued, &[&command]).expect(0).text().contains("verified: "));
        return;
    }
    panic!("no table is large enough to be interrupted");
}

#[test]
fn a_load_ends_between_two_records() {
    for threads in ["1", "3"] {
        let table = Table::unused("load");
        guira(&["create", table.url(), "--capacity", "3M", "--entry", "fixed:8:8"]).expect(0);
        let run = interrupted_load(&table, &["--threads", threads]);
        assert!(run.stdout.is_empty(), "{}", run.text());
        let said = loaded(&run);
        let number = said.strip_suffix(" records were loaded").unwrap_or_else(|| panic!("{said}"));
        let loaded: u64 = number.parse().expect("a number");
        assert!(loaded > 0);
        assert_eq!(stat(&table)["table"]["entries"], loaded, "as many as it said");
        in_order(&table);
    }
}

#[test]
fn an_interrupted_load_says_so_in_json() {
    let table = Table::unused("load-json");
    guira(&["create", table.url(), "--capacity", "3M", "--entry", "fixed:8:8"]).expect(0);
    let run = interrupted_load(&table, &["--format", "json"]);
    let error = run.error();
    assert_eq!((&error["blame"], &error["effect"]), (&"host".into(), &"done".into()), "{error}");
    assert!(error["message"].as_str().is_some_and(|said| said.starts_with("interrupted; ")), "{error}");
    in_order(&table);
}

/// The number of records that a load reports.
fn loaded(run: &Run) -> String {
    let said = run.stderr.lines().last().expect("a message");
    said.strip_prefix("guira: interrupted; ").unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// Records from a pipe that pauses are stored meanwhile, whole ones only, and Ctrl-C does not wait for more.
#[test]
fn a_load_from_a_pipe_that_pauses_stores_what_has_come() {
    for (file, threads) in [("-", "1"), ("-", "3"), ("/dev/stdin", "2")] {
        let table = Table::new("pausing", "bytes:64");
        let stored = tempfile::NamedTempFile::new().expect("a file");
        let stored_path = stored.path().to_str().expect("a path of text");
        let options = ["--threads", threads, "--acknowledge", stored_path];
        let arguments = [&["load", table.url(), file], &options[..]].concat();
        let mut child = start(&arguments);
        let mut stdin = child.stdin.take().expect("a pipe was asked for");
        let acknowledged = || std::fs::read_to_string(stored.path()).expect("it is there").lines().count();
        stdin.write_all(b"a\t1\nb\t2\nc\t3\nd\t4\nhalf\tval").expect("the program reads");
        wait_until("the first records are stored", || acknowledged() == 4);
        assert_eq!(guira(&["get", table.url(), "d"]).expect(0).text(), "4");
        guira(&["get", table.url(), "half"]).expect(1);
        stdin.write_all(b"ue\nnext").expect("the program reads");
        wait_until("the other half is stored", || acknowledged() == 5);
        assert_eq!(guira(&["get", table.url(), "half"]).expect(0).text(), "value");
        interrupt(&child, Target::Command);
        let run = end(child, &arguments).expect(EXIT_INTERRUPTED);
        assert_eq!(loaded(&run), "5 records were loaded");
        assert_eq!(stat(&table)["table"]["entries"], 5, "half a record is none");
        in_order(&table);
        drop(stdin);
    }
}

/// Without any input, or with an incomplete line.
#[test]
fn a_load_that_waits_for_its_first_record_ends_at_once() {
    for bytes in [0, UNDER_WAY_BYTES] {
        let table = Table::new("waiting", "bytes:64");
        let arguments = ["load", table.url(), "-"];
        let mut child = start(&arguments);
        let mut stdin = child.stdin.take().expect("a pipe was asked for");
        stdin.write_all(&vec![b'x'; bytes as usize]).expect("the program reads");
        wait_until("it catches SIGINT", || catches(&child, Signal::INT));
        interrupt(&child, Target::Command);
        assert_eq!(loaded(&end(child, &arguments).expect(EXIT_INTERRUPTED)), "nothing was loaded");
        drop(stdin);
    }
}

/// Nobody has opened the named pipe for writing. Once somebody has, the load reads it to its end.
#[test]
fn a_load_that_waits_for_a_writer_ends_at_once() {
    let (table, folder) = (Table::new("fifo", "bytes:64"), ScratchFolder::new());
    let fifo = folder.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a named pipe");
    let arguments = ["load", table.url(), fifo.to_str().expect("a path of text")];
    let child = start(&arguments);
    wait_until("it catches SIGINT", || catches(&child, Signal::INT));
    interrupt(&child, Target::Command);
    assert_eq!(loaded(&end(child, &arguments).expect(EXIT_INTERRUPTED)), "nothing was loaded");
    let child = start(&arguments);
    std::fs::write(&fifo, "a\t1\nb\t2\n").expect("the program reads");
    end(child, &arguments).expect(0);
    assert_eq!(guira(&["get", table.url(), "b"]).expect(0).text(), "2");
}

/// A table that refuses a record ends the load, whether more input comes or not.
#[test]
fn a_load_that_fails_does_not_wait_for_its_input() {
    let table = Table::unused("failing-load");
    guira(&["create", table.url(), "--capacity", "10", "--entry", "fixed:8:8", "--preset", "tiny"]).expect(0);
    let arguments = ["load", table.url(), "-", "--numbers"];
    let mut child = start(&arguments);
    let mut stdin = child.stdin.take().expect("a pipe was asked for");
    let lines: String = (0..200).map(|number| format!("{number}\t{number}\n")).collect();
    stdin.write_all(lines.as_bytes()).expect("the program reads");
    let run = end(child, &arguments).expect(3);
    assert!(run.stderr.contains("records were loaded"), "{}", run.stderr);
    drop(stdin);
}

/// Starts a command that creates a table for itself, interrupts it once the table exists, and checks that it is gone.
fn interrupted_with_its_table(table: &Table, arguments: &[&str], target: Target) {
    let child = start(arguments);
    wait_until("the table exists", || Path::new(&table.path()).exists());
    interrupt(&child, target);
    let run = end(child, arguments).expect(EXIT_INTERRUPTED);
    let message = format!("interrupted; {}, which this command created, was destroyed", table.url());
    assert!(run.stderr.contains(&message), "{target:?}: {}", run.stderr);
    assert!(!Path::new(&table.path()).exists(), "{target:?}: the table is left");
}

#[test]
fn an_interrupted_quickstart_leaves_no_table() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let lines: String = (0..100_000).map(|n| format!("key {n}\t{}\n", "nest ".repeat(n % 40))).collect();
    std::fs::write(file.path(), lines).expect("it is written");
    let path = file.path().to_str().expect("a path of text");
    for target in [Target::Command, Target::Group] {
        for further in [&[][..], &["--keep"]] {
            let table = Table::unused("quickstart");
            let arguments = [&["quickstart", path, "--url", table.url(), "--processes", "2"], further].concat();
            interrupted_with_its_table(&table, &arguments, target);
        }
    }
}

#[test]
fn an_interrupted_ycsb_leaves_no_table_of_its_own() {
    for target in [Target::Command, Target::Group] {
        let table = Table::unused("ycsb");
        let size = ["--records", "10000", "--operations", "1G", "--processes", "2"];
        let arguments = [&["ycsb", table.url(), "--workload", "a"], &size[..]].concat();
        interrupted_with_its_table(&table, &arguments, target);
    }
}

#[test]
fn an_interrupted_ycsb_leaves_a_table_of_others_sound() {
    for target in [Target::Command, Target::Group] {
        let table = Table::unused("ycsb-existing");
        guira(&["create", table.url(), "--capacity", "20000", "--entry", "fixed:8:8"]).expect(0);
        guira(&["put", table.url(), "8 bytes!", "somebody"]).expect(0);
        let size = ["--records", "10000", "--operations", "30M", "--processes", "3", "--into-existing"];
        let arguments = [&["ycsb", table.url(), "--workload", "a"], &size[..]].concat();
        let child = start(&arguments);
        wait_until("all is loaded", || stat(&table)["table"]["entries"] == 10_001);
        interrupt(&child, target);
        let run = end(child, &arguments).expect(EXIT_INTERRUPTED);
        let message = format!("interrupted; the records that the run inserted into {} were removed", table.url());
        assert!(run.stderr.contains(&message), "{target:?}: {}", run.stderr);
        assert_eq!(stat(&table)["table"]["entries"], 1, "{target:?}: the key that existed before");
        in_order(&table);
    }
}

/// SIGKILL cannot be caught: the table is left, the next run says so, and the command it names removes it.
#[test]
fn a_killed_ycsb_leaves_a_table_that_the_next_run_points_at() {
    let table = Table::unused("ycsb-killed");
    let size = ["--records", "1000", "--operations", "1G", "--threads", "2", "--processes", "2"];
    let mut child = start(&[&["ycsb", table.url(), "--workload", "a"], &size[..]].concat());
    let is_there = || Path::new(&table.path()).exists();
    wait_until("all is loaded", || is_there() && stat(&table)["table"]["entries"] == 1000);
    let dump = || guira(&["dump", table.url(), "--hex"]).expect(0).stdout;
    let loaded = dump();
    wait_until("a value changes", || dump() != loaded);
    wait_until("there are four clients", || clients(&table).len() == 4);
    child.kill().expect("it is there");
    child.wait().expect("it ends");
    // The other process ends when it notices, and frees its slots. If it meets a lock before, it recovers the client
    // that left it.
    wait_until("the others have ended", || clients(&table).iter().all(|state| state == "dead"));
    let dead = clients(&table).len();
    assert!(dead <= 2, "two clients were killed");

    // One read, which may meet a row that was being written: it waits for that client until its deadline.
    let url = table.url();
    let again = ["ycsb", url, "--workload", "c", "--records", "1000", "--operations", "1"];
    let said = guira(&[&again[..], &["--no-load"]].concat()).text();
    let removal = format!("guira destroy {url}");
    let line = said.lines().next().expect("a line");
    assert!(line.starts_with(&format!("{url} exists: it is used as it is, and kept; {removal} removes it")), "{said}");
    let died = ["", "1 client died", "2 clients died"][dead];
    assert!(line.contains(died) && (dead > 0 || !line.contains("died")), "{said}");
    assert!(is_there(), "an existing table is kept");
    guira(&removal.split(' ').skip(1).collect::<Vec<_>>()).expect(0);
    let said = guira(&again).expect(0).text();
    assert!(said.starts_with(&format!("{url} does not exist")) && !said.contains("died"), "{said}");
    assert!(!is_there(), "a table that was created for the run is destroyed");
}

/// SIGKILL while it loads: the next quickstart names the command that removes what is left, and then there is room.
#[test]
fn a_killed_quickstart_leaves_a_table_that_the_next_run_points_at() {
    let table = Table::unused("quickstart-killed");
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: String = (0..200_000).map(|n| format!("key {n}\tvalue {n}\n")).collect();
    std::fs::write(file.path(), lines).unwrap();
    let arguments = ["quickstart", file.path().to_str().unwrap(), "--url", table.url(), "--processes", "2"];
    let mut child = start(&arguments);
    wait_until("the table exists", || Path::new(&table.path()).exists());
    child.kill().expect("it is there");
    child.wait().expect("it ends");

    let said = guira(&arguments).expect(1).stderr;
    let removal = format!("guira destroy {}", table.url());
    assert!(said.contains(&format!("{removal} removes it")), "{said}");
    assert!(Path::new(&table.path()).exists(), "an existing table is kept");
    guira(&removal.split(' ').skip(1).collect::<Vec<_>>()).expect(0);
    guira(&arguments).expect(0);
}

/// Starts a command that creates a large table at `path`, and sends it `signal` when it catches that. A table that was
/// complete before the signal came is removed, and the next has to be larger.
#[track_caller]
fn interrupted_creation(path: &Path, arguments: impl Fn(&str) -> Vec<String>, signal: Signal) -> Run {
    for doublings in 0..6 {
        let keys = (1 << (20 + doublings)).to_string();
        let owned = arguments(&keys);
        let arguments: Vec<&str> = owned.iter().map(String::as_str).collect();
        let child = start(&arguments);
        wait_until("it catches the signal", || catches(&child, signal));
        send(&child, Target::Command, signal);
        let run = end(child, &arguments);
        if run.code != Some(0) {
            return run.expect(EXIT_INTERRUPTED);
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => panic!("{}: {error}", path.display()),
            _ => {}
        }
    }
    panic!("no table is large enough to be interrupted");
}

/// The creation ends where it is, whichever command creates the table and wherever: it has no name and no bytes then.
#[test]
fn an_interrupted_create_leaves_nothing() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let path = directory.path().join("table");
    let url = format!("file://{}", path.display());
    let entries = || std::fs::read_dir(directory.path()).expect("it is there").count();
    for signal in SIGNALS {
        for command in ["create", "ycsb", "serve"] {
            let run = interrupted_creation(
                &path,
                |keys| {
                    let given = match command {
                        "create" => vec!["create", &url, "--capacity", keys, "--entry", "fixed:8:8"],
                        "ycsb" => vec!["ycsb", &url, "--workload", "a", "--records", keys, "--operations", "1G"],
                        _ => vec!["serve", "--backing", &url, "--capacity", keys, "--listen", "127.0.0.1:0"],
                    };
                    given.into_iter().map(str::to_owned).collect()
                },
                signal,
            );
            let messages =
                [" was not created, and nothing was left behind", ", which this command created, was destroyed"];
            let said = |message: &&str| run.stderr.contains(&format!("interrupted; {url}{message}"));
            assert!(messages.iter().any(said), "{command}: {}", run.stderr);
            assert_eq!(entries(), 0, "{command} leaves something");
        }
    }
}

/// SIGTERM and SIGHUP end a command as Ctrl-C does: it destroys what it made for itself.
#[test]
fn every_signal_is_an_interrupt() {
    for signal in SIGNALS {
        let table = Table::unused("signal");
        let arguments = ["ycsb", table.url(), "--workload", "a", "--records", "10000", "--operations", "1G"];
        let child = start(&arguments);
        wait_until("the table exists", || Path::new(&table.path()).exists());
        send(&child, Target::Group, signal);
        let run = end(child, &arguments).expect(EXIT_INTERRUPTED);
        assert!(run.stderr.contains("which this command created, was destroyed"), "{signal:?}: {}", run.stderr);
        assert!(!Path::new(&table.path()).exists(), "{signal:?}: the table is left");
    }
}

/// As the help says: only commands that have something to complete or to remove catch signals.
#[test]
fn a_command_with_nothing_to_complete_is_ended_by_the_signal_itself() {
    let table = Table::new("nothing", "bytes:64");
    let lines: String = (0..900).map(|n| format!("key {n}\t{}\n", "value ".repeat(200))).collect();
    guira_with_input(&["load", table.url(), "-"], lines.as_bytes()).expect(0);
    for signal in SIGNALS {
        // More than a pipe holds, and nobody reads it.
        let mut child = start(&["dump", table.url()]);
        // It runs, and has not been told to end before.
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("a record");
        send(&child, Target::Command, signal);
        assert_eq!(child.wait().expect("it ends").signal(), Some(signal.as_raw()));
    }
    let help = guira(&["--help"]).expect(0).text();
    let said = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("such as get or dump, is ended by the signal itself; serve and top stop in order"), "{help}");
}

/// Signals that are ignored when a command starts, such as SIGINT in the background of a script, stay ignored.
#[test]
fn ignored_signals_stay_ignored() {
    for (name, signal) in [("INT", Signal::INT), ("TERM", Signal::TERM), ("HUP", Signal::HUP), ("QUIT", Signal::QUIT)] {
        let table = Table::new("ignored", "bytes:64");
        let arguments = ["load", table.url(), "-"];
        let mut command = Command::new("/usr/bin/env");
        command.args([&format!("--ignore-signal={name}"), PROGRAM]).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("a pipe was asked for");
        stdin.write_all(b"before\t1\n").expect("the program reads");
        wait_until("the first record is stored", || guira(&["get", table.url(), "before"]).code == Some(0));
        send(&child, Target::Command, signal);
        stdin.write_all(b"after\t2\n").expect("the program reads");
        drop(stdin);
        end(child, &arguments).expect(0);
        guira(&["get", table.url(), "after"]).expect(0);
    }
}
