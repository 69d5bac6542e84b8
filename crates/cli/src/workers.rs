//! Worker processes of a command: copies of this program that take orders on standard input and answer on standard
//! output.
//!
//! Invariants: an answer is one JSON line, either the result or the error that prevented it. A worker does not outlive
//! its purpose: it ends when its input ends, and is killed if its parent fails.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::commands::{owner, tls};
use crate::failure::{ErrorText, Failure};
use crate::interrupt;
use crate::signals::{HANGUP, TERMINATING};

/// Maximum number of bytes of a line between processes: the histograms of a whole run take about 100 kB.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Size of the buffer in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Maximum time for a worker to end by itself after its input was closed, and so to free its client slots.
const GRACE_PERIOD: Duration = Duration::from_secs(2);
/// Time between two checks whether it has ended.
const POLL: Duration = Duration::from_millis(2);

/// The answer of a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// The result.
    Ok(T),
    /// The error that prevented a result.
    Error(ErrorText),
}

/// A worker process.
pub struct Worker {
    name: String,
    child: Child,
    input: Option<BufWriter<ChildStdin>>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts this program again with these arguments. `name` is its name in errors.
    pub fn start(name: String, arguments: &[&str]) -> Result<Worker, Failure> {
        let attempt = || format!("start {name}");
        let program = std::env::current_exe().map_err(Failure::host(attempt()))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        tls::pass_on(&mut command);
        owner::pass_on(&mut command);
        let mut child = command.spawn().map_err(Failure::host(attempt()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::host(attempt())(io::Error::other("its pipes are missing")));
        };
        let input = Some(BufWriter::with_capacity(BUFFER_BYTES, input));
        Ok(Worker { name, child, input, output: BufReader::new(output) })
    }

    /// Sends one line.
    pub fn send(&mut self, order: &impl Serialize) -> Result<(), Failure> {
        self.write(|input| {
            serde_json::to_writer(&mut *input, order)?;
            input.write_all(b"\n")?;
            input.flush()
        })
    }

    /// Writes to the worker. If it has closed its input, returns the worker's own error.
    pub fn write(&mut self, write: impl FnOnce(&mut BufWriter<ChildStdin>) -> io::Result<()>) -> Result<(), Failure> {
        let written = match &mut self.input {
            Some(input) => write(input),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        match written {
            Ok(()) => Ok(()),
            Err(error) => {
                self.drop_input();
                Err(match self.receive::<serde::de::IgnoredAny>() {
                    Err(failure) => failure,
                    Ok(_) => Failure::host(format!("write to {}", self.name))(error),
                })
            }
        }
    }

    /// Waits for one answer.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Failure> {
        let mut line = String::new();
        let read = self.output.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
        read.map_err(Failure::host(format!("read from {}", self.name)))?;
        if line.is_empty() {
            self.drop_input();
            let status = self.child.wait().map_err(Failure::host(format!("wait for {}", self.name)))?;
            if TERMINATING.into_iter().chain([HANGUP]).any(|(signal, _)| status.signal() == Some(signal)) {
                // A signal ended it before its handler was installed; the signal is meant for this command as well.
                return Err(interrupt::trigger());
            }
            return Err(Failure::host(format!("read from {}", self.name))(io::Error::other(format!(
                "it ended: {status}"
            ))));
        }
        let reply: Reply<T> = serde_json::from_str(&line)
            .map_err(|error| Failure::host(format!("parse the answer of {}", self.name))(error.into()))?;
        match reply {
            Reply::Ok(answer) => Ok(answer),
            Reply::Error(error) => Err(Failure::Worker { name: self.name.clone(), error: Box::new(error) }),
        }
    }

    /// Waits for the last answer and for the end of the worker.
    pub fn finish<T: DeserializeOwned>(mut self) -> Result<T, Failure> {
        let answer = self.receive()?;
        self.drop_input();
        self.child.wait().map_err(Failure::host(format!("wait for {}", self.name)))?;
        Ok(answer)
    }

    /// Closes the input of the worker without sending the buffered bytes.
    fn drop_input(&mut self) {
        if let Some(input) = self.input.take() {
            drop(input.into_parts());
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.drop_input();
        let until = Instant::now() + GRACE_PERIOD;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= until {
                // Failures mean that it has just ended by itself.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(POLL);
        }
    }
}

/// On the worker's side, reads one order from standard input; returns `None` at its end.
pub fn next_order<T: DeserializeOwned>(input: &mut impl BufRead) -> Result<Option<T>, Failure> {
    let mut line = String::new();
    let read = input.take(LINE_BYTES_MAX).read_line(&mut line);
    read.map_err(Failure::host("read an order"))?;
    if line.is_empty() {
        return Ok(None);
    }
    let order = serde_json::from_str(&line);
    order.map(Some).map_err(|error| Failure::Misuse(format!("invalid order: {error}")))
}

/// On the worker's side, writes an answer to standard output.
pub fn reply<T: Serialize>(answer: Result<T, Failure>) -> Result<(), Failure> {
    let reply = match answer {
        Ok(answer) => Reply::Ok(answer),
        Err(failure) => Reply::Error(failure.text()),
    };
    let text = serde_json::to_string(&reply).map_err(|error| Failure::host("answer")(error.into()))?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(crate::output::stdout_error)
}
