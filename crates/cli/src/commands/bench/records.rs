//! `guira bench records`: measures the cost of redo records, with which dead clients are recovered. Runs YCSB A on two
//! tables, with redo records and without, in turn.

use clap::Args;
use guira::{EntryFormat, Url};
use guira_lab::workload::WorkloadName;
use serde::Serialize;

use super::Verdict;
use crate::commands::create::create;
use crate::commands::ycsb::{self, Origin};
use crate::commands::{owner, tls};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{Output, table};
use crate::units::{parse_count, percent, rate};

/// One operation in this many is timed, so that the clock does not slow the others down.
const LATENCY_EVERY: u32 = 64;

/// Measure the cost of redo records: YCSB A on a table with them and on one without, in turn.
///
/// Without redo records, a killed client can leave half-written rows that cannot be completed, so only this benchmark
/// creates such a table. The result is the median, over all turns, of the ratio of the throughput with records to that
/// without, both from the same turn.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Number of records in each table.
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    pub records: u64,
    /// Number of operations on each table in each turn, of all processes together.
    #[arg(long, value_name = "N", default_value = "2M", value_parser = parse_count)]
    pub operations: u64,
    /// Number of turns.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub turns: u16,
    /// Processes.
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub processes: u16,
    /// Entry format.
    #[arg(long, value_name = "FORMAT", default_value = "fixed:8:8")]
    pub entry: EntryFormat,
    /// Skew of the popularity of records: 0 is uniform, 0.99 is the default of YCSB.
    #[arg(long, value_name = "THETA", default_value_t = 0.99)]
    pub theta: f64,
    /// Seed of keys and operations: the same seed repeats the run.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
}

/// The throughputs of one turn.
#[derive(Clone, Copy, Debug, Serialize)]
struct Turn {
    with_ops_per_s: f64,
    without_ops_per_s: f64,
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Answer {
    entry: String,
    records: u64,
    operations: u64,
    processes: u16,
    theta: f64,
    seed: u64,
    turns: Vec<Turn>,
    /// Median of the turns' ratios.
    ratio: f64,
    /// The cost of redo records, as a fraction of the throughput without them.
    cost: f64,
    errors: u64,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let names = ["with", "without"].map(|kind| format!("guira-bench-records-{kind}-{}", std::process::id()));
    let [with, without] = names.map(|name| Url::shm(&name).map_err(guira::Error::from));
    let urls = [with?, without?];
    let answer = measure(arguments, &urls, output);
    for url in &urls {
        // A table whose creation failed does not exist.
        let _ = interrupt::discard(url);
    }
    let answer = answer?;
    output.answer(&answer, || answer.human())?;
    Ok(if answer.errors == 0 { Verdict::Fine } else { Verdict::Negative })
}

fn measure(arguments: &Arguments, urls: &[Url; 2], output: &Output) -> Result<Answer, Failure> {
    let loads = [0, 1].map(|of| arguments.step(&urls[of], true));
    let options = ycsb::options(&loads[0])?;
    let stores =
        [create(&urls[0], &options, output)?, create(&urls[1], &options.clone().without_commit_records(), output)?];
    let mut errors = 0;
    let mut measure = |of: usize, step: &ycsb::Arguments| {
        let report = ycsb::measure(step, &stores[of], Origin::MadeHere, output)?;
        errors += report.errors();
        Ok::<f64, Failure>(report.throughput_ops_per_s())
    };
    for (of, load) in loads.iter().enumerate() {
        measure(of, load)?;
    }
    let mut turns = Vec::new();
    for turn in 0..arguments.turns {
        // The order alternates, so that drift affects both tables alike.
        let mut throughputs = [0.0; 2];
        for of in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            throughputs[of] = measure(of, &arguments.step(&urls[of], false))?;
        }
        let [with_ops_per_s, without_ops_per_s] = throughputs;
        turns.push(Turn { with_ops_per_s, without_ops_per_s, ratio: with_ops_per_s / without_ops_per_s });
    }
    let ratio = median(turns.iter().map(|turn| turn.ratio).collect());
    let &Arguments { records, operations, processes, theta, seed, .. } = arguments;
    let entry = arguments.entry.to_string();
    Ok(Answer { entry, records, operations, processes, theta, seed, turns, ratio, cost: 1.0 - ratio, errors })
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Arguments {
    /// Returns one table's part of a turn as arguments of `guira ycsb`.
    fn step(&self, url: &Url, load: bool) -> ycsb::Arguments {
        ycsb::Arguments {
            owner: owner::Owner::default(),
            tls: tls::Certificates::default(),
            url: url.clone(),
            workload: WorkloadName::A,
            records: self.records,
            operations: self.operations,
            threads: 1,
            processes: self.processes,
            theta: self.theta,
            seed: self.seed,
            load,
            no_load: !load,
            value_bytes: None,
            entry: Some(self.entry),
            keep: false,
            into_existing: false,
            verify: false,
            latency_every: LATENCY_EVERY,
        }
    }
}

impl Answer {
    fn human(&self) -> String {
        let head = ["turn", "with records", "without", "ratio"].map(str::to_owned).to_vec();
        let rows = self.turns.iter().enumerate().map(|(i, turn)| {
            let figures = [rate(turn.with_ops_per_s), rate(turn.without_ops_per_s), format!("{:.3}", turn.ratio)];
            std::iter::once((i + 1).to_string()).chain(figures).collect()
        });
        let table = table(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
        let cost = percent(self.cost);
        format!("{table}\n\nYCSB A, {}: records cost {cost} of the throughput (median of all turns)", self.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }
}
