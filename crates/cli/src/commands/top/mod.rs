//! `guira top`: a live view of a table and, where it has one, of its memory node.
//!
//! Invariants: sampling and drawing run on different threads, so that keys are handled while the network is slow; the
//! terminal is restored, whatever ends the program except SIGKILL; a full scan for the fill takes at most a twentieth
//! of the time.

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

/// Width of a printed frame, in columns.
const PRINTED_COLUMNS: u16 = 80;
/// Minimum time between two samples.
const MIN_EVERY: Duration = Duration::from_millis(50);

/// Watch a table at work: throughput, round trips, retries, fill, clients.
///
/// Changes of open clients are counted by their redo records, in every table that has such records. For tcp:// tables,
/// the memory node also counts the round trips of all clients. For rdma:// tables its network card executes them, and the
/// node counts none. Lookups in shared memory are counted by nobody. All other counters are those that clients report
/// when they close, and after they dealt with a dead or stopped client.
///
/// Press q to quit. If the table is destroyed and no new table gets its name within three seconds, the command reports
/// it and ends.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// Time between two samples: 500ms, 2s. The rows are read less often if reading them takes long.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::parse_time)]
    pub every: Duration,
    /// Take two samples, print the result and exit. Implied by --format json.
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
        let message = "guira top needs a terminal; use --once to print one frame";
        return Err(Failure::Misuse(message.to_owned()));
    }
    screen::run(sampler, every)?;
    Ok(Verdict::Fine)
}
