//! The second process: it opens the same contenders, draws keys of its own, and starts when it is told to.
//!
//! Orders and answers are JSON lines. The process ends when its input does.

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

/// What the process is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Open these contenders and draw keys. Answered with 0.
    Prepare(Preparation),
    /// Carry out a job. Answered with its nanoseconds.
    Run {
        /// Which of the places.
        place: usize,
        /// With which draws.
        popularity: Popularity,
        /// What.
        job: Job,
    },
}

/// What a process needs before it can run jobs.
#[derive(Debug, Serialize, Deserialize)]
pub struct Preparation {
    /// Bytes of every value.
    pub value_bytes: usize,
    /// What to draw.
    pub drawn: DrawSpec,
    /// For which popularities.
    pub popularities: Vec<Popularity>,
    /// Which contenders.
    pub places: Vec<Endpoint>,
}

/// The number this process has among the clients.
const CLIENT: u32 = 1;

/// The second process, as the first one sees it.
pub struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts the process with this command line and prepares it.
    ///
    /// # Errors
    /// The system's, and the helper's own.
    pub fn start(command_line: &[OsString], preparation: Preparation) -> Result<Helper, PeersError> {
        let attempt = "start a second process";
        let (program, arguments) =
            command_line.split_first().ok_or_else(|| PeersError::Options("there is no second process".to_owned()))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(PeersError::host(attempt))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(PeersError::host(attempt)(io::Error::other("it has no pipes")));
        };
        let mut helper = Helper { child, input, output: BufReader::new(output) };
        helper.send(&Request::Prepare(preparation))?;
        helper.receive()?;
        Ok(helper)
    }

    /// Sends an order.
    ///
    /// # Errors
    /// The system's.
    pub fn send(&mut self, order: &Request) -> Result<(), PeersError> {
        let sent = serde_json::to_string(order).map_err(io::Error::from);
        let sent = sent.and_then(|line| writeln!(self.input, "{line}")).and_then(|()| self.input.flush());
        sent.map_err(PeersError::host("order the second process"))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The helper's, and its end.
    pub fn receive(&mut self) -> Result<u64, PeersError> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(PeersError::host("hear the second process"))?;
        let answer: Result<u64, String> = serde_json::from_str(&line)
            .map_err(|error| PeersError::peer("hear the second process", format!("{line:?}: {error}")))?;
        answer.map_err(|said| PeersError::peer("run the second process", said))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It has ended by itself, or it ends now. What it holds of a table goes with the table.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is the second process: carries out the orders of `input` until it ends.
///
/// # Errors
/// Orders that are none. What a contender fails with is answered.
pub fn serve(input: impl BufRead, mut output: impl Write) -> Result<(), PeersError> {
    let mut ready: Option<Ready> = None;
    for line in input.lines() {
        let line = line.map_err(PeersError::host("read an order"))?;
        let order: Request =
            serde_json::from_str(&line).map_err(|error| PeersError::Options(format!("no order: {error}")))?;
        let answer = carry_out(order, &mut ready).map_err(|error| error.to_string());
        let answer = serde_json::to_string(&answer).map_err(io::Error::from);
        let answered = answer.and_then(|line| writeln!(output, "{line}")).and_then(|()| output.flush());
        answered.map_err(PeersError::host("answer"))?;
    }
    Ok(())
}

struct Ready {
    draws: Vec<(Popularity, Draws)>,
    runners: Vec<Box<dyn Runner>>,
}

fn carry_out(order: Request, ready: &mut Option<Ready>) -> Result<u64, PeersError> {
    match (order, ready) {
        (Request::Prepare(preparation), ready) => {
            *ready = Some(prepare(&preparation)?);
            Ok(0)
        }
        (Request::Run { place, popularity, job }, Some(Ready { draws, runners })) => {
            let draws = draws.iter().find(|(drawn, _)| *drawn == popularity).map(|(_, draws)| draws);
            match (runners.get_mut(place), draws) {
                (Some(runner), Some(draws)) => runner.run(&job, draws),
                _ => Err(PeersError::Options(format!("place {place} was not prepared"))),
            }
        }
        (Request::Run { .. }, None) => Err(PeersError::Options("nothing was prepared".to_owned())),
    }
}

fn prepare(preparation: &Preparation) -> Result<Ready, PeersError> {
    let records = Records::new(preparation.value_bytes, preparation.drawn.seed)?;
    let mut connections = Connections::default();
    let runners = preparation.places.iter().map(|place| connections.connect(place, &records));
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
    fn orders_are_answered_in_turn_and_errors_too() {
        let drawn = DrawSpec { records: 10, seed: 1, keys: 32, steps: 0 };
        let preparation =
            Preparation { value_bytes: 8, drawn, popularities: vec![Popularity::Uniform], places: Vec::new() };
        let job = Job { task: Task::Get, operations: 32, start_ns: None };
        let run = Request::Run { place: 0, popularity: Popularity::Uniform, job };
        let orders = [&run, &Request::Prepare(preparation), &run];
        let input: Vec<String> = orders.iter().map(|order| serde_json::to_string(order).unwrap()).collect();
        let mut output = Vec::new();
        serve(input.join("\n").as_bytes(), &mut output).unwrap();
        let answers: Vec<Result<u64, String>> =
            String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(matches!(&answers[..], [Err(_), Ok(0), Err(_)]), "{answers:?}");
    }

    #[test]
    fn a_process_that_ends_is_an_error() {
        let drawn = DrawSpec { records: 10, seed: 1, keys: 32, steps: 0 };
        let preparation = Preparation { value_bytes: 8, drawn, popularities: Vec::new(), places: Vec::new() };
        assert!(Helper::start(&["true".into()], preparation).is_err());
    }
}
