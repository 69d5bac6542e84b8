//! Child processes: their output is shown and kept in a log, and those that hang are killed.
//!
//! Each child leads a process group of its own, and a watcher process holds the other end of a pipe: when the pipe ends
//! without a word, the watcher kills the group. This kills a child that hangs, with all its descendants, and also a
//! child whose parent died, for example by an interrupt from the keyboard.
//!
//! No limit of time ends a child that works: machines differ. A child hangs if neither it nor a descendant prints a
//! line or uses the processor for [`IDLE_LIMIT`]. Where a child may run for ever, as that of a mutant, its [`Budget`] ends it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::report::{Format, Verdict};

/// Interval between two checks of a child: short compared with any step, long compared with the cost of a check.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// Interval between two checks whether a child works.
const ACTIVITY_EVERY: Duration = Duration::from_secs(30);
/// Time without output and without use of the processor after which a child hangs.
const IDLE_LIMIT: Duration = Duration::from_secs(20 * 60);
/// Longest wait for the rest of the output of a child that has ended, which descendants may keep open.
const OUTPUT_LIMIT: Duration = Duration::from_secs(5);
/// Longest budget, of a child that is only killed when it hangs.
const LONGEST_S: u64 = 24 * 3_600;

/// Prefixes of the variables that cargo sets for this program. Build scripts that read them would run again whenever
/// cargo is started by this program and by hand in turns.
const OF_CARGO: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// Reads one word; kills the process group in its first argument unless the word is `done`. The first signal lets a
/// runner of tests end them.
const WATCHER: &str =
    "read -r word; [ \"$word\" = done ] && exit; kill -s TERM -- \"-$1\"; sleep 2; kill -s KILL -- \"-$1\"";

/// The outcome of a command or a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "detail", rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    Failed(String),
    TimedOut(String),
    /// This machine cannot run the step, and the step is optional.
    NotAvailable(String),
}

impl Outcome {
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::TimedOut(_))
    }

    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "FAILED",
            Self::TimedOut(_) => "TIMED OUT",
            Self::NotAvailable(_) => "not available",
        }
    }

    pub fn detail(&self) -> &str {
        match self {
            Self::Failed(detail) | Self::TimedOut(detail) | Self::NotAvailable(detail) => detail,
            Self::Passed => "",
        }
    }

    /// This outcome, or that of `next` if this one is [`Outcome::Passed`].
    pub fn then(self, next: impl FnOnce() -> Outcome) -> Outcome {
        if self == Outcome::Passed { next() } else { self }
    }
}

/// The time that some commands share.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub until: Instant,
    pub limit_s: u64,
}

impl Budget {
    /// The budget of commands that are only killed when they hang.
    pub fn unlimited() -> Budget {
        Budget::of(LONGEST_S)
    }

    pub fn of(limit_s: u64) -> Budget {
        Budget { until: Instant::now() + Duration::from_secs(limit_s), limit_s }
    }
}

/// Runs commands at the root of the workspace, and shows and keeps their output.
pub struct Shell {
    root: PathBuf,
    format: Format,
    /// The file that keeps messages and the output of commands.
    log: Option<Arc<File>>,
}

impl Shell {
    pub fn new(root: PathBuf, format: Format) -> Self {
        Self { root, format, log: None }
    }

    /// The same shell with another root.
    pub fn at(&self, root: PathBuf) -> Self {
        Self { root, format: self.format, log: self.log.clone() }
    }

    /// The same shell, which also writes messages and the output of commands to `log`.
    pub fn logged(&self, log: File) -> Self {
        Self { root: self.root.clone(), format: self.format, log: Some(Arc::new(log)) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Prints a line: on standard error if standard output is for one JSON object.
    pub fn say(&self, line: &str) {
        show(self.format, self.log.as_deref(), format!("{line}\n").as_bytes());
    }

    /// Prints the outcome of a command of this program. A machine that cannot run it is a failure.
    pub fn conclude(&self, command: &str, outcome: &Outcome) -> Result<Verdict> {
        self.say(format!("{command}: {} {}", outcome.word(), outcome.detail()).trim_end());
        if self.format == Format::Json {
            println!("{}", serde_json::to_string_pretty(outcome)?);
        }
        Ok(if *outcome == Outcome::Passed { Verdict::Passed } else { Verdict::Failed })
    }

    /// A command in the root of the workspace.
    pub fn command<I: IntoIterator<Item: AsRef<OsStr>>>(&self, program: &str, arguments: I) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.root);
        let is_of_cargo = |name: &str| OF_CARGO.iter().any(|prefix| name.starts_with(prefix));
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_cargo(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command with its output shown and logged.
    pub fn run(&self, command: &mut Command, budget: &Budget) -> Outcome {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        self.say(&format!("$ {}", words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")));
        match self.run_shown(command, budget) {
            Ok(ended) => outcome(command, Ok(ended), budget),
            Err(error) => outcome(command, Err(error), budget),
        }
    }

    fn run_shown(&self, command: &mut Command, budget: &Budget) -> io::Result<Ended> {
        let (reader, writer) = io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let shown = Shown::start(reader, self.format, self.log.clone());
        let ended = run_until(command, budget.until, &|| shown.bytes.load(Ordering::Relaxed));
        // The pipe ends when the last writer does, and the command holds two.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        shown.finish();
        ended
    }

    /// Runs cargo with this environment besides, to its end.
    pub fn cargo(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Outcome {
        let mut command = self.command("cargo", arguments);
        self.run(command.envs(environment.iter().copied()), &Budget::unlimited())
    }

    /// Runs a command and returns its standard output; its standard error is shown.
    pub fn read(&self, command: &mut Command, budget: &Budget, into: &Path) -> Result<String, Outcome> {
        let failed = |error: io::Error| Outcome::Failed(format!("{}: {error}", into.display()));
        command.stdout(File::create(into).map_err(failed)?);
        let ended = run_until(command, budget.until, &|| 0);
        match outcome(command, ended, budget) {
            Outcome::Passed => fs::read_to_string(into).map_err(failed),
            other => Err(other),
        }
    }

    /// Runs a command whose output goes to the file `log`, and returns it, too.
    pub fn run_into(&self, command: &mut Command, budget: &Budget, log: &Path) -> io::Result<(Outcome, String)> {
        let file = File::create(log)?;
        command.stdout(file.try_clone()?).stderr(file);
        let ended = run_until(command, budget.until, &|| 0);
        Ok((outcome(command, ended, budget), String::from_utf8_lossy(&fs::read(log)?).into_owned()))
    }

    /// Whether a command exists and exits with 0. Its output is discarded, and it installs no toolchain.
    pub fn succeeds<I: IntoIterator<Item: AsRef<OsStr>>>(&self, program: &str, arguments: I) -> bool {
        let mut command = self.command(program, arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).env("RUSTUP_AUTO_INSTALL", "0");
        let ended = run_until(&mut command, Budget::unlimited().until, &|| 0);
        matches!(ended, Ok(Ended::Exited(status)) if status.success())
    }

    /// A directory below the target directory, so that other flags do not rebuild what the steps share.
    pub fn target_directory(&self, name: &str) -> PathBuf {
        let shared = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), PathBuf::from);
        shared.join(name)
    }
}

/// Prints bytes and writes them to the log.
fn show(format: Format, mut log: Option<&File>, bytes: &[u8]) {
    // A terminal that has gone or a full disk fails the next command with a better message.
    let _ = match format {
        Format::Human => io::stdout().lock().write_all(bytes),
        Format::Json => io::stderr().lock().write_all(bytes),
    };
    if let Some(log) = &mut log {
        let _ = log.write_all(bytes);
    }
}

/// The thread that shows the output of a child.
struct Shown {
    bytes: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Shown {
    fn start(mut reader: io::PipeReader, format: Format, log: Option<Arc<File>>) -> Shown {
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&bytes);
        let thread = thread::spawn(move || {
            let mut buffer = [0; 1 << 13];
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                counted.fetch_add(read as u64, Ordering::Relaxed);
                show(format, log.as_deref(), &buffer[..read]);
            }
        });
        Shown { bytes, thread }
    }

    /// Waits for the rest of the output, but not for descendants that keep it open.
    fn finish(self) {
        let until = Instant::now() + OUTPUT_LIMIT;
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(POLL_EVERY);
        }
    }
}

fn outcome(command: &Command, ended: io::Result<Ended>, budget: &Budget) -> Outcome {
    match ended {
        Ok(Ended::Exited(status)) if status.success() => Outcome::Passed,
        Ok(Ended::Exited(status)) => Outcome::Failed(status.to_string()),
        Ok(Ended::Killed) => Outcome::TimedOut(format!("killed after {} s", budget.limit_s)),
        Ok(Ended::Hung) => Outcome::TimedOut(format!("killed after {} s without activity", IDLE_LIMIT.as_secs())),
        Err(error) => Outcome::Failed(format!("{}: {error}", command.get_program().display())),
    }
}

/// The end of a child.
#[derive(Debug)]
enum Ended {
    Exited(ExitStatus),
    /// Killed when its time was over.
    Killed,
    /// Killed because nothing happened.
    Hung,
}

/// Runs `command` to its end, or kills it and all its descendants at `until` or when it hangs, whichever comes first.
/// `printed` counts its output. Descendants of a command that ended by itself are not killed: they may be intended to
/// continue.
fn run_until(command: &mut Command, until: Instant, printed: &dyn Fn() -> u64) -> io::Result<Ended> {
    let mut child = command.stdin(Stdio::null()).process_group(0).spawn()?;
    let watcher = match Watcher::over(&child) {
        Ok(watcher) => watcher,
        Err(error) => {
            child.kill()?;
            child.wait()?;
            return Err(error);
        }
    };
    let id = child.id();
    let activity = || (printed(), processor_ticks(id));
    let (mut seen, mut seen_at, mut checked_at) = ((0, 0), Instant::now(), Instant::now());
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            watcher.dismiss()?;
            return Ok(Ended::Exited(status));
        }
        if Instant::now() >= until {
            break Ended::Killed;
        }
        if checked_at.elapsed() >= ACTIVITY_EVERY {
            checked_at = Instant::now();
            let now = activity();
            if now != seen {
                (seen, seen_at) = (now, checked_at);
            } else if seen_at.elapsed() >= IDLE_LIMIT {
                break Ended::Hung;
            }
        }
        thread::sleep(POLL_EVERY);
    };
    watcher.kill()?;
    child.wait()?;
    Ok(ended)
}

/// The processor time that a process and its living descendants have used, with that of the ended ones that were waited
/// for, in ticks of the clock.
fn processor_ticks(root: u32) -> u64 {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let stat = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let id: u32 = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name of the program, in parentheses, may contain spaces. The fields after it start with the state.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let times = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok());
        Some((id, (fields.get(1)?.parse::<u32>().ok()?, times.sum::<u64>())))
    };
    let processes: HashMap<u32, (u32, u64)> = processes.filter_map(stat).collect();
    let is_inside = |id: u32| {
        let parents = std::iter::successors(Some(id), |id| processes.get(id).map(|(parent, _)| *parent));
        // Processes that end meanwhile could make a circle.
        parents.take(processes.len()).any(|id| id == root)
    };
    processes.iter().filter(|(id, _)| is_inside(**id)).map(|(_, (_, ticks))| ticks).sum()
}

/// The process that kills a child's group when the pipe from this process ends.
struct Watcher {
    shell: Child,
}

impl Watcher {
    /// Starts a watcher in a group of its own, so that an interrupt from the keyboard does not kill it first.
    fn over(child: &Child) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", WATCHER, "watcher", &child.id().to_string()]);
        let shell =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()?;
        Ok(Self { shell })
    }

    /// Ends the watcher without killing the group.
    fn dismiss(mut self) -> io::Result<()> {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // A watcher that has already ended needs no message.
            drop(pipe.write_all(b"done\n"));
        }
        self.shell.wait().map(drop)
    }

    /// Makes the watcher kill the group.
    fn kill(mut self) -> io::Result<()> {
        drop(self.shell.stdin.take());
        self.shell.wait().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn run(script: &str, budget: &Budget) -> (Outcome, String) {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let shell = Shell::new(PathBuf::from("."), Format::Json).logged(log.reopen().expect("it is there"));
        let outcome = shell.run(&mut sh(script), budget);
        (outcome, fs::read_to_string(log.path()).expect("it can be read"))
    }

    #[test]
    fn a_child_that_ends_reports_its_status_and_its_output() {
        let (outcome, log) = run("echo out; echo error >&2; exit 3", &Budget::unlimited());
        assert_eq!(outcome, Outcome::Failed("exit status: 3".to_owned()));
        assert!(log.starts_with("$ sh -c ") && log.ends_with("\nout\nerror\n"), "{log}");
    }

    #[test]
    fn a_child_whose_time_is_over_is_killed_with_its_descendants() {
        let (mut reader, writer) = io::pipe().expect("a pipe can be made");
        let mut command = sh("sleep 600 & sleep 600");
        command.stdout(writer);
        let until = Instant::now() + Duration::from_millis(300);
        let ended = run_until(&mut command, until, &|| 0).expect("sh exists");
        assert!(matches!(ended, Ended::Killed));
        // The pipe ends only when every process that holds it has ended; the copy of this process is in `command`.
        drop(command);
        let mut rest = Vec::new();
        assert_eq!(reader.read_to_end(&mut rest).expect("the pipe can be read"), 0);
        let (outcome, _) = run("sleep 600", &Budget::of(0));
        assert_eq!(outcome, Outcome::TimedOut("killed after 0 s".to_owned()));
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let shell = Shell::new(PathBuf::from("."), Format::Json);
        let outcome = shell.run(&mut Command::new("no-such-program-anywhere"), &Budget::unlimited());
        assert!(outcome.is_failure(), "{outcome:?}");
        assert!(shell.succeeds("sh", ["-c", "exit 0"]));
        assert!(!shell.succeeds("sh", ["-c", "exit 1"]) && !shell.succeeds("no-such-program-anywhere", ["x"]));
    }

    #[test]
    fn processor_time_of_descendants_is_counted_while_they_run() {
        let mut child = sh("(while :; do :; done) & wait").process_group(0).spawn().expect("sh exists");
        while processor_ticks(child.id()) == 0 {
            thread::sleep(POLL_EVERY);
        }
        Watcher::over(&child).expect("sh exists").kill().expect("it can be killed");
        child.wait().expect("it ended");
    }
}
