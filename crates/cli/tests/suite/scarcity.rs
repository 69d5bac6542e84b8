//! Too little memory, too little space and too few threads are errors that say so: no signal, no panic, and nothing is
//! left behind.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use guira_testing::{ScratchFolder, patience, unique_name};

use crate::common::{PROGRAM, Run, Table, mounting_shell};

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
