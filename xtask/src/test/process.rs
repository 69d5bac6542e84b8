//! Child processes with a time limit.
//!
//! Each child leads a process group of its own, and a watcher process holds the other end of a pipe: when the pipe ends
//! without a word, the watcher kills the group. This kills a child that exceeds its time, with all its descendants, and
//! also a child whose parent died, for example by an interrupt from the keyboard.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::steps::Budget;
use crate::report::Format;

/// Interval between two checks of a child: short compared with any step, long compared with the cost of a check.
const POLL_EVERY_MS: u64 = 20;

/// Reads one word; kills the process group in its first argument unless the word is `done`.
const WATCHER: &str = "read -r word; [ \"$word\" = done ] || kill -s KILL -- \"-$1\"";

/// Runs commands at the root of the workspace and prints where the output format allows, or into a log.
pub struct Shell {
    root: PathBuf,
    format: Format,
    /// The destination of messages and of the output of commands, if it is not the terminal.
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

    /// The same shell with messages and output of commands going to `log`.
    pub fn logged(&self, log: File) -> Self {
        Self { root: self.root.clone(), format: self.format, log: Some(Arc::new(log)) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Prints a line: on standard error if standard output is for one JSON object.
    pub fn say(&self, line: &str) {
        match (&self.log, self.format) {
            // A log that cannot be written to, for want of space, fails the next command with a better message.
            (Some(log), _) => drop(writeln!(&**log, "{line}")),
            (None, Format::Human) => println!("{line}"),
            (None, Format::Json) => eprintln!("{line}"),
        }
    }

    /// A command in the root of the workspace.
    pub fn command<I: IntoIterator<Item: AsRef<OsStr>>>(&self, program: &str, arguments: I) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// Runs a command with its output shown or logged.
    pub fn run(&self, command: &mut Command, budget: &Budget) -> Outcome {
        match (&self.log, self.format) {
            (Some(log), _) => match (log.try_clone(), log.try_clone()) {
                (Ok(out), Ok(errors)) => drop(command.stdout(out).stderr(errors)),
                (Err(error), _) | (_, Err(error)) => return Outcome::Failed(format!("the step's log: {error}")),
            },
            (None, Format::Json) => drop(command.stdout(io::stderr())),
            (None, Format::Human) => {}
        }
        outcome(command, budget)
    }

    /// Runs a command and returns its standard output; its standard error is shown or logged.
    pub fn read(&self, command: &mut Command, budget: &Budget, into: &Path) -> Result<String, Outcome> {
        let failed = |error: io::Error| Outcome::Failed(format!("{}: {error}", into.display()));
        command.stdout(File::create(into).map_err(failed)?);
        if let Some(log) = &self.log {
            command.stderr(log.try_clone().map_err(failed)?);
        }
        match outcome(command, budget) {
            Outcome::Passed => fs::read_to_string(into).map_err(failed),
            other => Err(other),
        }
    }

    /// Runs a command whose output goes to the file `log`.
    pub fn run_into(&self, command: &mut Command, budget: &Budget, log: &Path) -> io::Result<Outcome> {
        let file = File::create(log)?;
        command.stdout(file.try_clone()?).stderr(file);
        Ok(outcome(command, budget))
    }

    /// Whether a command exists and exits with 0. Its output is discarded, and it installs no toolchain.
    pub fn succeeds<I: IntoIterator<Item: AsRef<OsStr>>>(&self, program: &str, arguments: I, budget: &Budget) -> bool {
        let mut command = self.command(program, arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).env("RUSTUP_AUTO_INSTALL", "0");
        matches!(run_until(&mut command, budget.until), Ok(Ended::Exited(status)) if status.success())
    }
}

fn outcome(command: &mut Command, budget: &Budget) -> Outcome {
    match run_until(command, budget.until) {
        Ok(Ended::Exited(status)) if status.success() => Outcome::Passed,
        Ok(Ended::Exited(status)) => Outcome::Failed(status.to_string()),
        Ok(Ended::Killed) => budget.exceeded(),
        Err(error) => Outcome::Failed(format!("{}: {error}", command.get_program().display())),
    }
}

/// The end of a child.
#[derive(Debug)]
pub enum Ended {
    Exited(ExitStatus),
    Killed,
}

/// Runs `command` to its end, or kills it and all its descendants at `until`, whichever comes first. Descendants of a
/// command that ended by itself are not killed: they may be intended to continue.
pub fn run_until(command: &mut Command, until: Instant) -> io::Result<Ended> {
    let mut child = command.stdin(Stdio::null()).process_group(0).spawn()?;
    let watcher = match Watcher::over(&child) {
        Ok(watcher) => watcher,
        Err(error) => {
            child.kill()?;
            child.wait()?;
            return Err(error);
        }
    };
    loop {
        if let Some(status) = child.try_wait()? {
            watcher.dismiss()?;
            return Ok(Ended::Exited(status));
        }
        if Instant::now() >= until {
            watcher.kill()?;
            child.wait()?;
            return Ok(Ended::Killed);
        }
        thread::sleep(Duration::from_millis(POLL_EVERY_MS));
    }
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
    use std::io::Read;

    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn in_seconds(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_child_that_ends_reports_its_status() {
        let ended = run_until(&mut sh("exit 3"), in_seconds(60)).expect("sh exists");
        assert!(matches!(ended, Ended::Exited(status) if status.code() == Some(3)));
    }

    #[test]
    fn a_child_that_hangs_is_killed_with_its_descendants() {
        let (mut reader, writer) = io::pipe().expect("a pipe can be made");
        let mut command = sh("sleep 600 & sleep 600");
        command.stdout(writer);
        let ended = run_until(&mut command, Instant::now() + Duration::from_millis(300)).expect("sh exists");
        assert!(matches!(ended, Ended::Killed));
        // The pipe ends only when every process that holds it has ended; the copy of this process is in `command`.
        drop(command);
        let mut rest = Vec::new();
        assert_eq!(reader.read_to_end(&mut rest).expect("the pipe can be read"), 0);
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        assert!(run_until(&mut Command::new("no-such-program-anywhere"), in_seconds(60)).is_err());
        let shell = Shell::new(PathBuf::from("."), Format::Json);
        let budget = Budget { until: in_seconds(60), limit_s: 60 };
        assert!(shell.succeeds("sh", ["-c", "exit 0"], &budget));
        assert!(!shell.succeeds("sh", ["-c", "exit 1"], &budget));
        assert!(!shell.succeeds("no-such-program-anywhere", ["x"], &budget));
        let hung = shell.run(&mut sh("sleep 600"), &Budget { until: Instant::now(), limit_s: 0 });
        assert_eq!(hung, Outcome::TimedOut("killed after 0 s".to_owned()));
    }
}
