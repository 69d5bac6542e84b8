//! Limits of the environment are errors that say what was attempted, and no signals.

use std::process::{Command, Stdio};

use crate::common::{PROGRAM, Run, Table, guira, guira_with_input, heeding_signals, mounting_shell, shell};

/// Runs the program under a limit on the size of files, in blocks of 512 bytes.
fn under_file_limit(blocks: u32, arguments: &[&str], into: Stdio) -> Run {
    let script = format!("ulimit -f {blocks}; ulimit -c 0; exec \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(PROGRAM).args(arguments).stdin(Stdio::null()).stdout(into);
    Run::of(shell.stderr(Stdio::piped()).output().expect("sh runs"), arguments)
}

#[test]
fn a_table_larger_than_the_limit_is_refused() {
    let table = Table::unused("file-limit");
    let run = under_file_limit(2048, &["create", table.url(), "--capacity", "1M"], Stdio::piped()).expect(3);
    assert!(run.stderr.contains("limit on files (ulimit -f): File too large"), "{}", run.stderr);
    assert!(!std::path::Path::new(&table.path()).exists(), "what it had made is removed");
    guira(&["create", table.url(), "--capacity", "1k"]).expect(0);
}

#[test]
fn a_dump_that_meets_the_limit_is_an_error() {
    let table = Table::new("dump-limit", "bytes:64");
    let lines: String = (0..500).map(|n| format!("key{n:05}\t{n:040}\n")).collect();
    guira_with_input(&["load", table.url(), "-"], lines.as_bytes()).expect(0);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let into = file.reopen().expect("it is there");
    let run = under_file_limit(8, &["dump", table.url()], into.into()).expect(3);
    assert!(run.stderr.to_lowercase().contains("file too large"), "{}", run.stderr);
}

/// The message has the system's reason, not only the step that failed.
#[test]
fn the_reason_of_the_system_is_named() {
    let table = Table::new("reason", "bytes:64");
    // The limit is on numbers of descriptors, and what runs the tests may have left descriptor 3 open.
    let run = shell(&format!("exec 3>&-; ulimit -n 4; guira put {} a 1", table.url())).expect(3);
    assert!(run.stderr.contains("Too many open files"), "{}", run.stderr);
    let inodes = "mount -t tmpfs -o size=64m,nr_inodes=1 tmpfs . && guira create file://$PWD/birds --capacity 1k";
    let Some(run) = mounting_shell(inodes) else { return };
    let run = run.expect(3);
    assert!(run.stderr.contains("no free inodes (df -i): No space left on device"), "{}", run.stderr);
}

/// A file system that is mounted read-only is no lack of permission; reading works there, and doctor names it.
#[test]
fn a_read_only_file_system_is_named() {
    let run = mounting_shell(
        "mount -t tmpfs -o size=64m tmpfs . && cd $PWD && guira create file://$PWD/birds --capacity 1k &&
         guira put file://$PWD/birds a 1 && mount -o remount,ro . && guira get file://$PWD/birds a && echo &&
         for c in 'put a 2' 'del a' destroy 'check --repair'; do
             set -- $c; c=$1; shift; guira $c file://$PWD/birds $* && exit 9
         done
         guira create file://$PWD/more --capacity 1k && exit 9
         guira doctor file://$PWD/birds",
    );
    let Some(run) = run else { return };
    assert_eq!(run.stderr.matches("its file system is mounted read-only").count(), 5, "{}", run.stderr);
    assert!(!run.stderr.to_lowercase().contains("permission denied"), "{}", run.stderr);
    let said = run.text();
    assert!(said.contains("1\n") && said.contains("mounted read-only"), "{said}");
    run.expect(1);
}

/// A limit on processor time ends a command in order, if it leaves a second for that.
#[test]
fn a_limit_on_processor_time_is_an_interrupt() {
    let table = Table::unused("cpu-limit");
    let script = "ulimit -S -t 1; exec \"$@\"";
    let mut shell = heeding_signals("sh");
    shell.args(["-c", script, "sh", PROGRAM, "ycsb", table.url()]);
    shell.args(["--workload", "a", "--records", "1000", "--operations", "1000G"]).stdin(Stdio::null());
    let run = Run::of(shell.output().expect("sh runs"), &[script]).expect(130);
    assert!(run.stderr.ends_with("which this command created, was destroyed\n"), "{}", run.stderr);
}
