//! Limits of the environment are errors that say what was attempted, and no signals.

use std::process::{Command, Stdio};

use crate::common::{PROGRAM, Run, Table, guira, guira_with_input};

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
    assert!(run.stderr.contains("limit on files (ulimit -f); nothing was changed"), "{}", run.stderr);
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
