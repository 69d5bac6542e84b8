//! Experiments with growth: two runs that end with the same keys, in a table that grows and in one that was made for
//! all of them.

use std::thread;

use super::cell::{failed, outcome_of, run_checked};
use super::configure::{self, Configured, configure_growth, fill_error};
use crate::driver::Distribution;
use crate::experiment::{
    Answer, Experiment, Growth, GrowthAnswer, GrowthRatio, GrowthSide, Kind, KindAnswer, LabError, RunOptions,
    SplitAnswer, Times, Watch,
};
use crate::simulated::{RunStats, SplitStats, available_bytes};

/// Carries out an experiment with growth. Both tables are checked at their end, and so are the histories of sampled
/// keys.
///
/// # Errors
/// Same as [`super::run_plan`]; [`LabError::Conflict`] if a parameter has no meaning while a table grows.
pub fn ask_growth(
    experiment: &Experiment,
    growth: &Growth,
    options: &RunOptions,
    watch: &dyn Watch,
) -> Result<GrowthAnswer, LabError> {
    let [grows, fixed] = configure_growth(experiment, growth, options)?;
    require_memory([&grows, &fixed])?;
    watch.begin("two experiments", 2);
    let measured = |configured: &Configured| {
        let measured = measure(experiment, configured, options, watch);
        watch.cell_done();
        measured
    };
    let (grown, other) = match options.jobs {
        0 | 1 => (measured(&grows), measured(&fixed)),
        _ => thread::scope(|scope| {
            let grown = scope.spawn(|| measured(&grows));
            let other = measured(&fixed);
            (grown.join().unwrap_or_else(|_| Err(failed("a run that grows a table", &"its thread panicked"))), other)
        }),
    };
    let ((grown, stats), (other, _)) = (grown?, other?);
    Ok(GrowthAnswer {
        growth: *growth,
        first_keys: grows.fill.records,
        ratio: ratio(&grown, &other)?,
        splits: splits(&stats, experiment.clients),
        grows: grown,
        fixed: other,
    })
}

/// Refuses tables that do not fit in memory together.
fn require_memory(both: [&Configured; 2]) -> Result<(), LabError> {
    let mut needed_bytes = 0;
    for configured in both {
        needed_bytes += configured.fill.needed_bytes().map_err(|error| fill_error(&error))?;
    }
    match available_bytes() {
        Some(free_bytes) if free_bytes < needed_bytes => Err(LabError::Memory { needed_bytes, free_bytes }),
        _ => Ok(()),
    }
}

/// Carries out one of the two runs, and looks at its table in the end.
fn measure(
    experiment: &Experiment,
    configured: &Configured,
    options: &RunOptions,
    watch: &dyn Watch,
) -> Result<(GrowthSide, RunStats), LabError> {
    let is_stopped = || watch.is_stopped();
    let filled = configure::filled(&configured.fill, &is_stopped)?;
    let stats = run_checked(configured, filled.clone(), &is_stopped)?;
    let config = filled.table().config();
    let rows = filled.rows().map_err(|error| fill_error(&error))?.count();
    let planned = configured.fill.records + configured.run.load.most_inserts;
    let keys = stats.records_at_end.unwrap_or(planned);
    let fill_percent = 100.0 * keys as f64 / (rows * u64::from(config.entries_per_row)) as f64;
    let side = GrowthSide {
        answer: Answer { fill_at_end: fill_percent, ..outcome_of(experiment, &stats, options).answer },
        keys,
        fill_percent,
        row_bytes_per_key: (rows * u64::from(config.row_bytes)) as f64 / keys as f64,
    };
    Ok((side, stats))
}

fn ratio(grows: &GrowthSide, fixed: &GrowthSide) -> Result<GrowthRatio, LabError> {
    let inserts = |side: &GrowthSide| {
        let found = side.answer.kinds.iter().find(|kind| kind.kind == Kind::Insert).cloned();
        found.ok_or_else(|| LabError::Conflict("a table grows by inserts, and there was none: add entries".to_owned()))
    };
    let (one, other) = (inserts(grows)?, inserts(fixed)?);
    let of = |figure: fn(&KindAnswer) -> f64| figure(&one) / figure(&other);
    Ok(GrowthRatio {
        throughput: grows.answer.throughput_mops / fixed.answer.throughput_mops,
        p50: of(|kind| kind.p50_us),
        p99: of(|kind| kind.p99_us),
        p999: of(|kind| kind.p999_us),
        round_trips: of(|kind| kind.round_trips),
        messages: of(|kind| kind.messages),
        bytes: of(|kind| kind.bytes),
        memory: grows.row_bytes_per_key / fixed.row_bytes_per_key,
    })
}

fn splits(stats: &RunStats, clients: u32) -> SplitAnswer {
    let SplitStats { splits, in_vain, held_ns, waits_ns } = &stats.splits;
    let each = |sum: f64| sum / splits.count.max(1) as f64;
    let waited_ns = waits_ns.mean() * waits_ns.count() as f64;
    SplitAnswer {
        splits: splits.count,
        in_vain: *in_vain,
        inserts_per_split: each(stats.counts.operations.insert.count as f64),
        time: times(&splits.latency_ns),
        locks_held: times(held_ns),
        round_trips: splits.round_trips.mean(),
        messages: each(splits.messages as f64),
        bytes: each(splits.wire_bytes as f64),
        waiting_per_split: each(waits_ns.count() as f64),
        waits: times(waits_ns),
        waiting_share: waited_ns / (f64::from(clients) * stats.steadiness.span_ns.max(1) as f64),
    }
}

fn times(of_ns: &Distribution) -> Times {
    let us = |ns: u64| ns as f64 / 1e3;
    Times {
        mean_us: of_ns.mean() / 1e3,
        p50_us: us(of_ns.quantile(0.5)),
        p99_us: us(of_ns.quantile(0.99)),
        max_us: us(of_ns.max()),
    }
}
