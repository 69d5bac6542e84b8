//! Runs the real program, on tables that are removed when the test ends.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use guira_testing::{ScratchFolder, unique_name};
use serde_json::Value;

/// A unique URL of a table, which is removed on drop if it exists.
pub struct Table {
    url: String,
}

impl Table {
    /// A name for a table that does not exist yet.
    pub fn unused(name: &str) -> Table {
        Table { url: format!("shm://{}-{name}", unique_name()) }
    }

    /// A table of this entry format, for 1000 keys.
    pub fn new(name: &str, entry: &str) -> Table {
        let table = Table::unused(name);
        let created = guira(&["create", table.url(), "--capacity", "1000", "--entry", entry, "--max-clients", "40"]);
        created.expect(0);
        table
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The path of its file.
    pub fn path(&self) -> String {
        self.url.replace("shm://", "/dev/shm/")
    }

    /// The lock files of this table and of earlier tables with its name.
    pub fn lock_files(&self) -> Vec<PathBuf> {
        let prefix = format!("{}.", self.path());
        let paths = std::fs::read_dir("/dev/shm").expect("it is there").filter_map(|entry| Some(entry.ok()?.path()));
        let is_one =
            |path: &PathBuf| path.to_str().is_some_and(|path| path.starts_with(&prefix) && path.ends_with(".locks"));
        paths.filter(is_one).collect()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // There may be none: then there is nothing to remove.
        let _ = std::fs::remove_file(self.path());
        self.lock_files().iter().for_each(|path| _ = std::fs::remove_file(path));
    }
}

/// The result of a run of the program.
pub struct Run {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub arguments: String,
}

impl Run {
    pub fn of(output: Output, arguments: &[&str]) -> Run {
        let stderr = String::from_utf8(output.stderr).expect("standard error is UTF-8");
        Run { code: output.status.code(), stdout: output.stdout, stderr, arguments: arguments.join(" ") }
    }

    /// Fails unless the program ended with this code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Run {
        let Run { arguments, stdout, stderr, .. } = &self;
        let shown = String::from_utf8_lossy(stdout);
        assert_eq!(self.code, Some(code), "guira {arguments}\n--- stdout\n{shown}\n--- stderr\n{stderr}");
        assert!(!stderr.contains("panicked"), "guira {arguments}: {stderr}");
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("standard output is UTF-8")
    }

    /// Standard output as one JSON object.
    pub fn json(&self) -> Value {
        let text = self.text();
        assert_eq!(text.lines().count(), 1, "one line: {text}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The error on standard error, as JSON.
    pub fn error(&self) -> Value {
        assert_eq!(self.stderr.lines().count(), 1, "one line: {}", self.stderr);
        let object: Value =
            serde_json::from_str(&self.stderr).unwrap_or_else(|error| panic!("{error}: {}", self.stderr));
        object["error"].clone()
    }
}

/// Runs the program.
pub fn guira(arguments: &[&str]) -> Run {
    guira_with_input(arguments, b"")
}

/// Runs the program with this standard input.
pub fn guira_with_input(arguments: &[&str], input: &[u8]) -> Run {
    let mut child = command(arguments).stdin(Stdio::piped()).spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe was asked for");
    let input = input.to_vec();
    let feeding = std::thread::spawn(move || {
        // A program that fails early does not read all of its input.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("the program ends");
    feeding.join().expect("the input is fed");
    Run::of(output, arguments)
}

/// The path of the program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_guira");

/// The program, with its output caught.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = heeding_signals(PROGRAM);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a script of `sh` that finds the program as `guira`, in an empty folder.
pub fn shell(script: &str) -> Run {
    let folder = ScratchFolder::new();
    Run::of(sh(Command::new("sh"), &folder).arg(script).output().expect("sh runs"), &[script])
}

/// Same as [`shell`], in a mount namespace of its own, where it may mount. Returns `None` if this user may not create
/// one.
pub fn mounting_shell(script: &str) -> Option<Run> {
    let ways = [&["--mount"][..], &["--map-root-user", "--mount"]];
    let folder = ScratchFolder::new();
    let command = |way: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(way).args(["--propagation", "private", "sh"]);
        sh(command, &folder)
    };
    let is_possible = |way: &&&[&str]| {
        let tried = command(way).arg("mount -t tmpfs tmpfs .").output();
        tried.is_ok_and(|output| output.status.success())
    };
    let Some(way) = ways.iter().find(is_possible) else {
        println!("NOT RUN: this user may not mount file systems");
        return None;
    };
    Some(Run::of(command(way).arg(script).output().expect("sh runs"), &[script]))
}

/// Adds to a shell's command line what [`shell`] promises; the script is the next argument.
pub fn sh(mut command: Command, folder: &ScratchFolder) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_guira")).parent().expect("a directory").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([program].into_iter().chain(std::env::split_paths(&path))).expect("no colons");
    command.current_dir(folder.path()).env("PATH", path).stdin(Stdio::null()).arg("-c");
    command
}

/// A program in which the signals that interrupt it have their default actions, even if this process ignores them, as
/// under nohup or in the background of a script.
pub fn heeding_signals(program: &str) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal=HUP,INT,TERM", program]);
    command
}

/// Flips a bit of the last copy of `needle` in the table's file: earlier ones are in redo records.
pub fn damage(table: &Table, needle: &[u8]) {
    let bytes = std::fs::read(table.path()).expect("the table is there");
    let at = bytes.windows(needle.len()).rposition(|window| window == needle).expect("it is stored");
    let file = OpenOptions::new().write(true).open(table.path()).expect("it is ours");
    file.write_all_at(&[bytes[at] ^ 1], at as u64).expect("it is written");
}
