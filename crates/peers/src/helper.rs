//! The helper: a second process that opens the same systems, draws keys of its own, and runs jobs on request.
//!
//! Requests and answers are JSON lines. The process ends when its input ends.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::draws::{DrawSpec, Draws, Popularity};
use crate::error::PeersError;
use crate::measure::{Job, Runner};
use crate::record::Records;
use crate::systems::{Connections, Endpoint};

/// A request to the helper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Open these systems and draw keys. The answer is 0.
    Prepare(Preparation),
    /// Run a job. The answer is its time in nanoseconds.
    Run {
        /// The index of the endpoint.
        endpoint: usize,
        /// The popularity whose draws are used.
        popularity: Popularity,
        /// The job.
        job: Job,
    },
}

/// Everything that the helper needs before it can run jobs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Preparation {
    /// Bytes of every value.
    pub value_bytes: usize,
    /// Number of draws, and their seed.
    pub drawn: DrawSpec,
    /// The popularities to draw for.
    pub popularities: Vec<Popularity>,
    /// The systems to open.
    pub endpoints: Vec<Endpoint>,
}

/// The client number of the helper.
const CLIENT: u32 = 1;

/// The handle of the helper process in the first process.
pub struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts the helper with this command line and prepares it.
    ///
    /// # Errors
    /// Errors of the operating system and of the helper.
    pub fn start(command_line: &[OsString], preparation: Preparation) -> Result<Helper, PeersError> {
        let attempt = "start a second process";
        let (program, arguments) = command_line
            .split_first()
            .ok_or_else(|| PeersError::Options("there is no command line for the second process".to_owned()))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(PeersError::host(attempt))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(PeersError::host(attempt)(io::Error::other("its input and output are not pipes")));
        };
        let mut helper = Helper { child, input, output: BufReader::new(output) };
        helper.send(&Request::Prepare(preparation))?;
        helper.receive()?;
        Ok(helper)
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn send(&mut self, request: &Request) -> Result<(), PeersError> {
        let sent = serde_json::to_string(request).map_err(io::Error::from);
        let sent = sent.and_then(|line| writeln!(self.input, "{line}")).and_then(|()| self.input.flush());
        sent.map_err(PeersError::host("send a request to the second process"))
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// Errors of the helper, and its end.
    pub fn receive(&mut self) -> Result<u64, PeersError> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(PeersError::host("read an answer of the second process"))?;
        let answer: Result<u64, String> = serde_json::from_str(&line)
            .map_err(|error| PeersError::peer("read an answer of the second process", format!("{line:?}: {error}")))?;
        answer.map_err(|error| PeersError::peer("run a job in the second process", error))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It may have ended by itself. Whatever it holds in a table is destroyed with the table.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the helper: carries out the requests of `input` until it ends.
///
/// # Errors
/// Requests that do not parse. Errors of a system are sent as answers.
pub fn serve(input: impl BufRead, mut output: impl Write) -> Result<(), PeersError> {
    let mut ready: Option<Ready> = None;
    for line in input.lines() {
        let line = line.map_err(PeersError::host("read a request"))?;
        let request: Request =
            serde_json::from_str(&line).map_err(|error| PeersError::Options(format!("not a request: {error}")))?;
        let answer = carry_out(request, &mut ready).map_err(|error| error.to_string());
        let answer = serde_json::to_string(&answer).map_err(io::Error::from);
        let answered = answer.and_then(|line| writeln!(output, "{line}")).and_then(|()| output.flush());
        answered.map_err(PeersError::host("write an answer"))?;
    }
    Ok(())
}

struct Ready {
    draws: Vec<(Popularity, Draws)>,
    runners: Vec<Box<dyn Runner>>,
}

fn carry_out(request: Request, ready: &mut Option<Ready>) -> Result<u64, PeersError> {
    match (request, ready) {
        (Request::Prepare(preparation), ready) => {
            *ready = Some(prepare(&preparation)?);
            Ok(0)
        }
        (Request::Run { endpoint, popularity, job }, Some(Ready { draws, runners })) => {
            let draws = draws.iter().find(|(drawn, _)| *drawn == popularity).map(|(_, draws)| draws);
            match (runners.get_mut(endpoint), draws) {
                (Some(runner), Some(draws)) => runner.run(&job, draws),
                _ => Err(PeersError::Options(format!("endpoint {endpoint} was not prepared"))),
            }
        }
        (Request::Run { .. }, None) => Err(PeersError::Options("nothing was prepared".to_owned())),
    }
}

fn prepare(preparation: &Preparation) -> Result<Ready, PeersError> {
    let records = Records::new(preparation.value_bytes, preparation.drawn.seed)?;
    let mut connections = Connections::default();
    let runners = preparation.endpoints.iter().map(|endpoint| connections.connect(endpoint, &records));
    let runners = runners.collect::<Result<_, _>>()?;
    let draw = |popularity: &Popularity| -> Result<(Popularity, Draws), PeersError> {
        Ok((*popularity, Draws::new(&records, &preparation.drawn, *popularity, CLIENT)?))
    };
    Ok(Ready { draws: preparation.popularities.iter().map(draw).collect::<Result<_, _>>()?, runners })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Task;

    #[test]
    fn requests_are_answered_in_order_and_so_are_errors() {
        let drawn = DrawSpec { records: 10, seed: 1, keys: 32, steps: 0 };
        let preparation =
            Preparation { value_bytes: 8, drawn, popularities: vec![Popularity::Uniform], endpoints: Vec::new() };
        let job = Job { task: Task::Get, operations: 32, start_ns: None };
        let run = Request::Run { endpoint: 0, popularity: Popularity::Uniform, job };
        let requests = [&run, &Request::Prepare(preparation), &run];
        let input: Vec<String> = requests.iter().map(|request| serde_json::to_string(request).unwrap()).collect();
        let mut output = Vec::new();
        serve(input.join("\n").as_bytes(), &mut output).unwrap();
        let answers: Vec<Result<u64, String>> =
            String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(matches!(&answers[..], [Err(_), Ok(0), Err(_)]), "{answers:?}");
    }

    #[test]
    fn a_process_that_ends_is_an_error() {
        let drawn = DrawSpec { records: 10, seed: 1, keys: 32, steps: 0 };
        let preparation = Preparation { value_bytes: 8, drawn, popularities: Vec::new(), endpoints: Vec::new() };
        assert!(Helper::start(&["true".into()], preparation).is_err());
    }
}
