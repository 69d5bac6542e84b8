//! `guira bench large`: loads one large table by several processes to 90 %, runs the YCSB workloads A, B and C on it,
//! and checks every row.

use std::time::Instant;

use clap::Args;
use guira::{EntryFormat, Store, Url};
use guira_lab::workload::WorkloadName;
use serde::Serialize;

use super::Verdict;
use crate::commands::ycsb::{self, Origin, Report};
use crate::commands::{owner, tls};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use crate::units::{bytes, counted, parse_count, rate, time};

/// One operation in this many is timed, so that the clock does not slow the others down.
const LATENCY_EVERY: u32 = 16;
/// Maximum default number of processes: with more, loading is limited by memory.
const PROCESSES_MAX: u16 = 64;

/// Load a large table from several processes and run YCSB A, B and C on it.
///
/// The table is created for the run, in /dev/shm, and destroyed after it, also on Ctrl-C. 100 million entries of 4-byte
/// keys and values take about 1.2 GiB, and loading them takes two or three minutes on two cores.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of entries; they fill the table to 90 %.
    #[arg(long, value_name = "N", default_value = "100M", value_parser = parse_count)]
    pub records: u64,
    /// Number of operations of each workload, of all processes together.
    #[arg(long, value_name = "N", default_value = "20M", value_parser = parse_count)]
    pub operations: u64,
    /// Processes [default: one per processor].
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub processes: Option<u16>,
    /// Entry format.
    #[arg(long, value_name = "FORMAT", default_value = "fixed:4:4")]
    pub entry: EntryFormat,
    /// Skew of the popularity of records: 0 is uniform, 0.99 is the default of YCSB.
    #[arg(long, value_name = "THETA", default_value_t = 0.99)]
    pub theta: f64,
    /// Seed of keys and operations: the same seed repeats the run.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
}

/// The results of the run.
#[derive(Debug, Serialize)]
struct Large {
    /// Bytes of the table in memory.
    table_bytes: u64,
    /// Duration of the check in nanoseconds.
    check_ns: u64,
    /// Number of problems of the table after the run.
    problems: u64,
    /// The workloads; `load` of the first one is that of the table.
    runs: Vec<Report>,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let name = format!("guira-bench-large-{}", std::process::id());
    let url = Url::shm(&name).map_err(guira::Error::from)?;
    let mut steps = arguments.steps(&url);
    // An invalid workload is refused before anything is created.
    let first = steps.next().ok_or_else(|| Failure::Misuse("no workload to run".to_owned()))?;
    let (store, origin) = ycsb::table(&first, output)?;
    interrupt::arm(&url, output);
    let measured = measure(first, steps, &store, origin, output);
    interrupt::disarm();
    let destroyed = interrupt::discard(&url);
    let large = measured?;
    destroyed?;
    output.answer(&large, || large.human())?;
    let is_fine = large.problems == 0 && large.runs.iter().all(|run| run.errors() == 0);
    Ok(if is_fine { Verdict::Fine } else { Verdict::Negative })
}

fn measure(
    first: ycsb::Arguments,
    others: impl Iterator<Item = ycsb::Arguments>,
    store: &Store,
    origin: Origin,
    output: &Output,
) -> Result<Large, Failure> {
    let mut runs = Vec::new();
    for step in std::iter::once(first).chain(others) {
        let run = ycsb::measure(&step, store, origin, output)?;
        output.note(&format!("YCSB {}: {}", step.workload, rate(run.throughput_ops_per_s())));
        runs.push(run);
    }
    output.note("checking every row");
    let started = Instant::now();
    let problems = store.check()?.problems_total;
    let check_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let geometry = store.table().geometry();
    Ok(Large { table_bytes: geometry.main_bytes() + geometry.device_bytes(), check_ns, problems, runs })
}

impl Arguments {
    /// Returns the workloads as arguments of `guira ycsb`.
    fn steps(&self, url: &Url) -> impl Iterator<Item = ycsb::Arguments> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let processors = u16::try_from(processors).unwrap_or(PROCESSES_MAX).min(PROCESSES_MAX);
        let processes = self.processes.unwrap_or(processors);
        [WorkloadName::A, WorkloadName::B, WorkloadName::C].into_iter().enumerate().map(move |(index, workload)| {
            ycsb::Arguments {
                owner: owner::Owner::default(),
                tls: tls::Certificates::default(),
                url: url.clone(),
                workload,
                records: self.records,
                operations: self.operations,
                threads: 1,
                processes,
                theta: self.theta,
                seed: self.seed,
                load: index == 0,
                no_load: index > 0,
                value_bytes: None,
                entry: Some(self.entry),
                keep: false,
                into_existing: false,
                verify: true,
                latency_every: LATENCY_EVERY,
            }
        })
    }
}

impl Large {
    fn human(&self) -> String {
        let mut parts: Vec<String> = self.runs.iter().map(Report::human).collect();
        let problems = match self.problems {
            0 => "no problems".to_owned(),
            problems => counted(problems, "problem"),
        };
        let (size, checked) = (bytes(self.table_bytes), time(self.check_ns));
        parts.push(format!("{size} of table; every row checked in {checked}: {problems}"));
        parts.join("\n\n")
    }
}
