//! Too little memory, too little space and too few threads are errors that say so: no signal, no panic, and nothing is
//! left behind.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guira_testing::{ScratchFolder, patience, unique_name};

use crate::common::{PROGRAM, Run, Table, guira, heeding_signals, mounting_shell};

/// A user id that nobody has.
const UNUSED_UID: u32 = 60_123;

fn is_root() -> bool {
    fs::metadata("/proc/self").expect("a process").uid() == 0
}

/// A control group of version 1 or 2 with a limit on memory. Removed on drop.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Returns `None` if this process may not create one.
    fn new(limit_bytes: u64) -> Option<MemoryGroup> {
        for (root, limit) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let group = MemoryGroup(Path::new(root).join(unique_name()));
            let is_made = fs::create_dir(&group.0).is_ok() && group.0.join(limit).exists();
            if is_made && fs::write(group.0.join(limit), limit_bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        println!("NOT RUN: this process may not limit the memory of a control group");
        None
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", PROGRAM]).args(arguments);
        Run::of(shell.output().expect("sh runs"), arguments)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn memory_that_a_control_group_does_not_allow_is_not_taken() {
    let Some(group) = MemoryGroup::new(64 << 20) else { return };
    let table = Table::unused("cgroup");
    for arguments in [
        &["create", table.url(), "--capacity", "1M"][..],
        &["serve", "--backing", table.url(), "--capacity", "1M", "--listen", "127.0.0.1:0"],
        &["serve", "--capacity", "1M", "--listen", "127.0.0.1:0"],
    ] {
        let run = group.run(arguments).expect(3);
        let name = group.0.file_name().expect("a name").to_str().expect("text").to_owned();
        assert!(run.stderr.contains("the control group ") && run.stderr.contains(&name), "{}", run.stderr);
        assert!(!Path::new(&table.path()).exists(), "nothing is left behind");
    }
    group.run(&["create", table.url(), "--capacity", "1k"]).expect(0);
}

/// A copy of a table has holes where the table was unused. They are filled when it is opened for writing.
#[test]
fn a_file_with_holes_is_filled_before_it_is_written() {
    let script = "mount -t tmpfs -o size=24m tmpfs . && cd $PWD && guira create file://$PWD/birds --capacity 1k &&
        guira put file://$PWD/birds a 1 && before=$(stat -c %b birds) &&
        fallocate --dig-holes birds && sync && [ $(stat -c %b birds) -lt $before ] &&
        { head -c 40m /dev/zero > filler 2> /dev/null; true; } &&
        guira get file://$PWD/birds a || exit 9
        guira put file://$PWD/birds b 2; code=$?
        rm filler && guira put file://$PWD/birds b 2 && [ $(stat -c %b birds) -ge $before ] || exit 9
        exit $code";
    let Some(run) = mounting_shell(script) else { return };
    let run = run.expect(3);
    assert!(run.stderr.contains("cannot open ") && run.stderr.contains(" has only 0 B free"), "{}", run.stderr);
}

/// Runs the program as a user of its own, who may have this number of threads.
fn with_threads(threads: u32, program: &Path, arguments: &[&str]) -> Run {
    let until = Instant::now() + patience();
    loop {
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--nproc={threads}")).arg(program).args(arguments);
        limited.uid(UNUSED_UID).gid(UNUSED_UID).current_dir("/");
        let output = limited.output();
        // A test that started a program while the copy was written has its descriptor until that runs.
        let is_busy =
            matches!(&output, Ok(output) if String::from_utf8_lossy(&output.stderr).contains("Text file busy"));
        match output {
            Err(error) if error.kind() != ErrorKind::ExecutableFileBusy => panic!("{error}"),
            Ok(output) if !is_busy || Instant::now() >= until => return Run::of(output, arguments),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[test]
fn a_refused_thread_is_an_error() {
    if !is_root() {
        println!("NOT RUN: only root can become a user who has no other threads");
        return;
    }
    let folder = ScratchFolder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let (program, input) = (folder.path().join("guira"), folder.path().join("input"));
    fs::copy(PROGRAM, &program).expect("a copy");
    fs::write(&input, "a\t1\nb\t2\n").expect("it is ours");
    let [table, other, bench] = ["threads", "threads-copy", "threads-bench"].map(Table::unused);
    let input = input.to_str().expect("text");
    // What needs no thread works without.
    for arguments in [
        &["create", table.url(), "--capacity", "1k", "--max-clients", "40"][..],
        &["create", other.url(), "--capacity", "1k", "--max-clients", "40"],
        &["put", table.url(), "cuckoo", "Guira guira"],
        &["get", table.url(), "cuckoo"],
        &["dump", table.url()],
    ] {
        with_threads(1, &program, arguments).expect(0);
    }
    for threads in 1..5 {
        for arguments in [
            &["load", table.url(), input, "--threads", "8"][..],
            &["copy", table.url(), other.url(), "--merge", "--threads", "8"],
            &["ycsb", bench.url(), "--workload", "a", "--records", "100", "--operations", "100", "--threads", "8"],
            &["serve", "--backing", table.url(), "--listen", "127.0.0.1:0", "--threads", "8"],
        ] {
            let run = with_threads(threads, &program, arguments).expect(3);
            assert!(run.stderr.contains("thread"), "{threads} for {arguments:?}: {}", run.stderr);
            assert!(!Path::new(&bench.path()).exists(), "what it had created is removed");
        }
    }
    assert_eq!(with_threads(1, &program, &["dump", table.url()]).text(), "cuckoo\tGuira guira\n");
}

/// Runs the program under `ulimit OPTION KIB`. A server is ended once it is ready.
fn under_limit(option: char, kib: usize, arguments: &[&str]) -> Run {
    let script = format!("ulimit -c 0 && ulimit -{option} {kib} && exec \"$@\"");
    let mut shell = heeding_signals("sh");
    shell.args(["-c", &script, "sh", PROGRAM]).args(arguments);
    let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh runs");
    if arguments[0] == "serve" {
        let mut ready = [0];
        // It says that it is ready, or ends without a word.
        if child.stdout.as_mut().expect("a pipe").read(&mut ready).expect("it is open") > 0 {
            let pid = child.id().to_string();
            assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill starts").success());
        }
    }
    Run::of(child.wait_with_output().expect("it ends"), arguments)
}

/// Returns the lowest limit, in steps of 512 KiB, under which the system can start the program.
fn lowest_limit(option: char) -> usize {
    let starts = |kib: &usize| under_limit(option, *kib, &["--version"]).code == Some(0);
    (512..1 << 20).step_by(512).find(starts).expect("it starts under some limit")
}

/// Under any limit on addresses and data, each command succeeds or ends by an error that names the limit.
#[test]
fn refused_memory_is_an_error() {
    let folder = ScratchFolder::new();
    let input = folder.path().join("input");
    let lines: String = (0..8_000).map(|n| format!("key{n}\t{n:0200}\n")).collect();
    fs::write(&input, lines).expect("it is ours");
    let [table, new, made, bench] = ["memory", "memory-new", "memory-made", "memory-bench"].map(Table::unused);
    let input = input.to_str().expect("text");
    guira(&["create", table.url(), "--capacity", "20k", "--record-bytes", "256", "--max-clients", "40"]).expect(0);
    for option in ['v', 'd'] {
        let lowest = lowest_limit(option);
        // Enough for everything: without the heaps of its threads, a command takes some 50 MiB of addresses.
        for kib in (0..18).map(|step| lowest + 4_000 * step) {
            for arguments in [
                &["load", table.url(), input, "--threads", "8"][..],
                &["load", made.url(), input, "--threads", "8", "--create"],
                &["serve", "--capacity", "1k", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--threads", "4"],
                &["ycsb", bench.url(), "--workload", "a", "--records", "500", "--operations", "500", "--threads", "8"],
                &["create", new.url(), "--capacity", "1k"],
                &["top", table.url(), "--once", "--every", "10ms"],
                &["stat", table.url()],
                &["dump", table.url()],
            ] {
                let run = under_limit(option, kib, arguments);
                let shown = format!("ulimit -{option} {kib}: {:?} for {arguments:?}: {}", run.code, run.stderr);
                assert!([Some(0), Some(3)].contains(&run.code), "{shown}");
                // The C library, whose own allocations may fail, names no limit.
                let limit = format!("ulimit -{option}");
                let words = [limit.as_str(), "Fatal glibc error: "];
                assert!(run.code == Some(0) || words.iter().any(|words| run.stderr.contains(words)), "{shown}");
                // A process that must end at once names the limit last, and removes nothing; records are kept.
                let is_at_once = [" of addresses", " of data", "out of memory"]
                    .iter()
                    .any(|end| run.stderr.trim_end().ends_with(end));
                let is_left = [&made, &bench].iter().any(|own| Path::new(&own.path()).exists());
                let may_be_left = run.code == Some(0) || is_at_once || run.stderr.contains(" were loaded\n");
                assert!(may_be_left || !is_left, "left behind under {shown}");
                [&new, &made, &bench].iter().for_each(|own| _ = fs::remove_file(own.path()));
            }
        }
    }
    guira(&["check", table.url(), "--repair"]).expect(0);
}

#[test]
fn refused_memory_is_an_error_in_json() {
    let lowest = lowest_limit('d');
    // Some limits leave enough for the program's start and too little for the command.
    let refused = (lowest..lowest + 4_096).step_by(256).find_map(|kib| {
        let run = under_limit('d', kib, &["list", "--format", "json"]);
        (run.code != Some(0)).then_some(run)
    });
    let Some(run) = refused else { return println!("NOT RUN: it lists under each limit under which it starts") };
    let error = run.expect(3).error();
    assert_eq!(error["blame"], "host");
    assert!(error["message"].as_str().expect("text").contains("ulimit -d"), "{error}");
}
