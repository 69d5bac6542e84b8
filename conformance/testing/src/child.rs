//! Child processes that run the same test program again, with one test only, which reads its role from the environment.
//!
//! A child prints "@@" and a word when it has reached a point ([`say`]), and continues when it is sent a line
//! ([`wait_for_order`]).

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// A child process. Killed on drop.
#[derive(Debug)]
pub struct Actor {
    /// The process, to wait for its end.
    pub process: Child,
    orders: ChildStdin,
    words: BufReader<ChildStdout>,
}

impl Actor {
    /// Starts the child that runs only `test`, with `variables` in its environment.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn spawn<V: AsRef<OsStr>>(test: &str, variables: &[(&str, V)]) -> Actor {
        Actor::start(Command::new(std::env::current_exe().expect("this program")), test, variables)
    }

    /// Starts the child by `command`, which runs this program and passes arguments on to it.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start<V: AsRef<OsStr>>(mut command: Command, test: &str, variables: &[(&str, V)]) -> Actor {
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
        let (orders, words) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
        Actor { process, orders, words: BufReader::new(words) }
    }

    /// Returns the next word that the child prints.
    ///
    /// # Panics
    /// If the child ends first.
    pub fn next_word(&mut self) -> String {
        let mut line = String::new();
        while self.words.read_line(&mut line).expect("text") > 0 {
            if let Some((_, word)) = line.split_once("@@") {
                return word.trim().to_owned();
            }
            line.clear();
        }
        panic!("the child ended: {:?}", self.process.wait());
    }

    /// Sends the child a line.
    ///
    /// # Panics
    /// If the child has ended.
    pub fn resume(&mut self) {
        writeln!(self.orders).expect("a living child");
    }

    /// Sends the child a signal.
    ///
    /// # Panics
    /// If that is refused.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("a child");
    }

    /// Kills the child, and waits for its end.
    ///
    /// # Panics
    /// If that is refused.
    pub fn kill(&mut self) {
        self.process.kill().and_then(|()| self.process.wait()).expect("a child");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A process that is not a child of this one. Killed on drop.
#[derive(Debug)]
pub struct Orphan {
    id: Pid,
    /// The process itself, whose id may be another's once it has ended; `None` if it had ended before.
    process: Option<OwnedFd>,
}

impl Orphan {
    /// The process whose id is this text.
    ///
    /// # Panics
    /// If it is no process id, or the process cannot be opened.
    pub fn of(id: &str) -> Orphan {
        let id = id.parse().ok().and_then(Pid::from_raw).expect("a process id");
        let process = match pidfd_open(id, PidfdFlags::empty()) {
            Err(Errno::SRCH) => None,
            opened => Some(opened.expect("a descriptor of the process")),
        };
        Orphan { id, process }
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        let stat = format!("/proc/{}/stat", self.id.as_raw_nonzero());
        std::fs::read_to_string(stat).is_ok_and(|stat| !stat.contains(") Z "))
    }

    /// Kills it, if it has not ended.
    pub fn kill(&self) {
        let _ = self.process.as_ref().map(|process| pidfd_send_signal(process, Signal::KILL));
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Tells the parent a word.
///
/// # Panics
/// If the parent has ended.
pub fn say(word: impl Display) {
    println!("@@{word}");
    std::io::stdout().flush().expect("a parent that listens");
}

/// Waits for a line from the parent, or for its end.
///
/// # Panics
/// If standard input cannot be read.
pub fn wait_for_order() {
    std::io::stdin().read_line(&mut String::new()).expect("a pipe");
}
