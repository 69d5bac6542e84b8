//! The report of a run, as text and as JSON.

use guira::{Counters, EntryFormat};
use guira_lab::driver::{OperationFigures, PerOperation, PhaseTally, Removal};
use serde::{Serialize, Serializer};

use super::Arguments;
use crate::output::{counter_table, table};
use crate::units::{count, counted, per_second, percent, rate, time};

/// The table a run used.
pub struct Table {
    /// Its entry format.
    pub format: EntryFormat,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Its fill after the run.
    pub fill: f64,
    /// Whether it was created for the run.
    pub made_here: bool,
}

/// The figures of a run and its parameters.
#[derive(Debug, Serialize)]
pub struct Report {
    url: String,
    entry: String,
    value_bytes: usize,
    created: bool,
    workload: String,
    records: u64,
    operations_requested: u64,
    threads: u16,
    processes: u16,
    theta: f64,
    seed: u64,
    verify: bool,
    latency_every: u32,
    fill: f64,
    load: Option<LoadFigures>,
    elapsed_ns: u64,
    throughput_ops_per_s: f64,
    operations: PerOperation<OperationFigures>,
    #[serde(serialize_with = "by_name")]
    met: Counters,
    failures: Vec<String>,
    /// The outcome of removing the records that the run inserted, if they were to be removed.
    removal: Option<Removal>,
}

fn by_name<S: Serializer>(counters: &Counters, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counters.named())
}

/// The figures of loading the records.
#[derive(Debug, Serialize)]
struct LoadFigures {
    records: u64,
    elapsed_ns: u64,
    records_per_s: f64,
    put: OperationFigures,
}

impl Report {
    /// Creates the report from the tallies of the phases.
    pub fn new(arguments: &Arguments, table: &Table, load: Option<&PhaseTally>, run: &PhaseTally) -> Report {
        let figures = run.figures();
        Report {
            url: arguments.url.to_string(),
            entry: table.format.to_string(),
            value_bytes: table.value_bytes,
            created: table.made_here,
            workload: arguments.workload.to_string().to_lowercase(),
            records: arguments.records,
            operations_requested: arguments.operations,
            threads: arguments.threads,
            processes: arguments.processes,
            theta: arguments.theta,
            seed: arguments.seed,
            verify: arguments.verify,
            latency_every: arguments.latency_every,
            fill: table.fill,
            load: load.map(|load| LoadFigures {
                records: load.count(),
                elapsed_ns: load.elapsed_ns,
                records_per_s: per_second(load.count(), load.elapsed_ns),
                put: load.figures().operations.insert,
            }),
            elapsed_ns: run.elapsed_ns,
            throughput_ops_per_s: figures.throughput_ops_per_s,
            operations: figures.operations,
            met: run.counters,
            failures: run.failures.clone(),
            removal: None,
        }
    }

    /// Adds the outcome of the removal.
    pub fn with_removal(self, removal: Removal) -> Report {
        Report { removal: Some(removal), ..self }
    }

    /// Returns the outcome of the removal if some records may be left.
    pub fn incomplete_removal(&self) -> Option<&Removal> {
        self.removal.as_ref().filter(|removal| removal.left > 0 || removal.failure.is_some())
    }

    /// Returns the number of operations that failed.
    pub fn errors(&self) -> u64 {
        self.operations.named().iter().map(|(_, figures)| figures.errors).sum()
    }

    /// Returns the successful operations per second.
    pub fn throughput_ops_per_s(&self) -> f64 {
        self.throughput_ops_per_s
    }

    /// Returns the report as text.
    pub fn human(&self) -> String {
        let mut lines = vec![format!(
            "YCSB {} on {} ({}, values of {}): {} in {}, theta {}, seed {}",
            self.workload.to_uppercase(),
            self.url,
            self.entry,
            counted(self.value_bytes as u64, "byte"),
            counted(self.threads.into(), "thread"),
            if self.processes == 1 { "1 process".to_owned() } else { format!("each of {} processes", self.processes) },
            self.theta,
            self.seed
        )];
        if let Some(load) = &self.load {
            lines.push(format!(
                "load  {} in {}: {}, {:.2} round trips each",
                counted(load.records, "record"),
                time(load.elapsed_ns),
                rate(load.records_per_s),
                load.put.round_trips.mean
            ));
        }
        let operations = self.operations.named().iter().map(|(_, figures)| figures.count).sum();
        lines.push(format!(
            "run   {} in {}: {}; fill {}",
            counted(operations, "operation"),
            time(self.elapsed_ns),
            rate(self.throughput_ops_per_s),
            percent(self.fill)
        ));
        lines.push(String::new());
        lines.push(self.operations_table());
        lines.extend(counter_table("reported by clients of the run", self.met.named()).map(|met| format!("\n{met}")));
        if let Some(removal) = &self.removal {
            lines.push(format!("\n{} of the run removed", counted(removal.removed, "record")));
        }
        if self.errors() > 0 {
            lines.push(format!("\n{} failed:", counted(self.errors(), "operation")));
            lines.extend(self.failures.iter().map(|failure| format!("  {failure}")));
        }
        lines.join("\n")
    }

    fn operations_table(&self) -> String {
        let head = [
            "",
            "count",
            "errors",
            "trips",
            "trips p99",
            "trips max",
            "messages",
            "bytes",
            "retries",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "max",
        ];
        let rows =
            self.operations.named().into_iter().filter(|(_, figures)| figures.count > 0).map(|(name, figures)| {
                let (trips, latency) = (&figures.round_trips, &figures.latency_ns);
                vec![
                    name.replace('_', "-"),
                    count(figures.count),
                    count(figures.errors),
                    format!("{:.3}", trips.mean),
                    trips.p99.to_string(),
                    trips.max.to_string(),
                    format!("{:.2}", figures.messages_mean),
                    format!("{:.0}", figures.bytes_mean),
                    format!("{:.4}", figures.retries_mean),
                    time(latency.p50),
                    time(latency.p90),
                    time(latency.p99),
                    time(latency.p999),
                    time(latency.max),
                ]
            });
        table(&[head.map(str::to_owned).to_vec()].into_iter().chain(rows).collect::<Vec<_>>())
    }
}
