//! `guira top`: a live view of a table and, where it has one, of its memory node.
//!
//! Invariants: looks at the table and draws on different threads, so that keys are answered while the network is not;
//! the terminal is given back as it was, whatever ends the program but SIGKILL; a table is read whole for its fill, so
//! that this takes a twentieth of the time at most.

mod draw;
mod frame;
mod sampler;
mod screen;

use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::Args;
use guira::Url;

use self::sampler::Sampler;
use super::{Verdict, tls};
use crate::failure::Failure;
use crate::output::{Format, Output};
use crate::units;

/// Columns of a frame that is printed.
const PRINTED_COLUMNS: u16 = 80;
/// Looks at the table follow each other no faster.
const MIN_EVERY: Duration = Duration::from_millis(50);

/// Watch a table at work: throughput, round trips, retries, fill, clients.
///
/// For tcp:// the memory node tells what all clients do together. In shared memory nobody counts operations for all:
/// clients tell what they met when they close, and after they had to do with one that died or stood still.
///
/// q ends it, and so does the end of the table: if it is destroyed, and another one of its name does not follow within
/// three seconds, this says so.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// Time between two looks: 500ms, 2s. The table's rows are read less often if that takes long.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::parse_time)]
    pub every: Duration,
    /// Look twice, print what was seen, and end. So it is with --format json.
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let every = arguments.every.max(MIN_EVERY);
    let mut sampler = Sampler::open(&arguments.url)?;
    if arguments.once || output.format() == Format::Json {
        sampler.sample()?;
        std::thread::sleep(every);
        let frame = sampler.sample()?;
        output.answer(&frame, || draw::text(&frame, PRINTED_COLUMNS))?;
        return Ok(Verdict::Fine);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let message = "guira top draws on a terminal, and this is none; use --once to print one frame";
        return Err(Failure::Misuse(message.to_owned()));
    }
    screen::run(sampler, every)?;
    Ok(Verdict::Fine)
}
