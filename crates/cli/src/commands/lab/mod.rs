//! `guira lab`: measures the protocol on modelled networks.

mod ask;
mod figures;
mod list;
mod watch;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;

use clap::{Args, Subcommand};
use guira_lab::experiment::RunOptions;

use super::Verdict;
use crate::failure::Failure;
use crate::output::Output;

/// Measure the protocol on modelled network cards, in virtual time.
///
/// guira lab fig6c re-measures a figure of the RCuckoo paper and states the distance from its published points; guira
/// lab ask answers one question about your own card, number of clients and skew. Nothing but this host's processor and
/// memory is used, and a result depends on the settings and the seed alone.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Figures to measure: fig6c, 6 for all of figure 6, sensitivity-theta, linear for all of linear probing. See guira
    /// lab list.
    #[arg(value_name = "FIGURE")]
    figures: Vec<String>,
    #[command(flatten)]
    run: RunArguments,
    /// Write charts as CSV, and a page with all of them (report.html), into this directory. Figures that are finished
    /// there are not measured again.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Measure every figure of RCuckoo, and write CSV files and a report into a directory.
    ///
    /// After an interruption, the same command goes on behind the finished figures.
    All {
        #[command(flatten)]
        run: RunArguments,
        /// The directory for report.html and the CSV files. It is created if it does not exist.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Answer one question: throughput, latencies, and the resource that limits them.
    ///
    /// Without options it asks about figure 6(c) at 320 clients. Options that are not given have the values of the
    /// setting.
    Ask(ask::Arguments),
    /// Carry out a plan: a chart of your own, as a TOML file.
    ///
    /// docs/guides/lab.md describes plan files.
    Run {
        /// The plan file.
        #[arg(value_name = "PLAN")]
        plan: PathBuf,
        #[command(flatten)]
        run: RunArguments,
        /// Write the chart as CSV, and a page with it (report.html), into this directory.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// List the figures.
    List,
}

/// Seeds of a chart, unless another number is given: enough for a median.
const CHART_SEEDS: u32 = 3;

/// The options of every run.
#[derive(Clone, Copy, Debug, Args)]
struct RunArguments {
    /// Measure fewer points on smaller tables, for a first impression.
    #[arg(long)]
    quick: bool,
    /// Seed of everything drawn at random: the same seed gives the same results.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Number of seeds with which each experiment is carried out, from that one on: the median is shown, and the spread
    /// [default: 3 for charts; 1 with --quick, and for lab ask].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    seeds: Option<u32>,
    /// Number of experiments at a time [default: number of processors]. It does not change the results.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
}

impl RunArguments {
    /// The seeds of charts.
    fn chart_seeds(self) -> u32 {
        self.seeds.unwrap_or(if self.quick { 1 } else { CHART_SEEDS })
    }

    fn options(self, seeds: u32) -> RunOptions {
        let jobs = self.jobs.map_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get), usize::from);
        RunOptions { quick: self.quick, seed: self.seed, seeds, jobs }
    }
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    match &arguments.command {
        None => figures::measure(&arguments.figures, arguments.run, arguments.out.as_deref(), output)?,
        Some(Command::All { run, out }) => figures::measure_all(*run, out, output)?,
        Some(Command::Ask(arguments)) => ask::run(arguments, output)?,
        Some(Command::Run { plan, run, out }) => figures::run_plan(plan, *run, out.as_deref(), output)?,
        Some(Command::List) => list::run(output)?,
    }
    Ok(Verdict::Fine)
}
