//! `guira bench records`: what it costs that the dead can be recovered. Two tables, with redo records and without, by
//! turns under YCSB A.

use clap::Args;
use guira::{EntryFormat, Store, Url};
use guira_lab::workload::WorkloadName;
use serde::Serialize;

use super::Verdict;
use crate::commands::create::create;
use crate::commands::ycsb::{self, Origin};
use crate::commands::{owner, tls};
use crate::failure::Failure;
use crate::output::{Output, table};
use crate::units::{parse_count, percent, rate};

/// One operation in this many is timed, so that the clock does not slow the others down.
const LATENCY_EVERY: u32 = 64;

/// Measure what redo records cost: YCSB A on a table with them and on one without, by turns.
///
/// Without records a client that is killed can leave rows half written that nobody makes whole, so only this
/// measurement makes such a table. The figure is the median, over all turns, of the throughput with records over that
/// without, both of one turn.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Records in each table.
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    pub records: u64,
    /// Operations of each table in each turn, of all processes together.
    #[arg(long, value_name = "N", default_value = "2M", value_parser = parse_count)]
    pub operations: u64,
    /// Turns.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub turns: u16,
    /// Processes.
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub processes: u16,
    /// Entry format.
    #[arg(long, value_name = "FORMAT", default_value = "fixed:8:8")]
    pub entry: EntryFormat,
    /// How uneven the popularity of records is: 0 is even, 0.99 is YCSB's.
    #[arg(long, value_name = "THETA", default_value_t = 0.99)]
    pub theta: f64,
    /// Seed of keys and operations: the same seed repeats them.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
}

/// A turn's throughputs.
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
    /// What records cost, as a part of the throughput without them.
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
        // One that was not made, or whose maker failed, is not there.
        let _ = Store::destroy(url);
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
        // Who goes first changes: what drifts meets both alike.
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
    /// A table's part of a turn, as `guira ycsb` would be asked for it.
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
