//! Steady state: how long a run is measured, and whether it would go on as it was.
//!
//! A run is measured in windows of virtual time, each twice as long as the one before, so that a rate that falls with
//! the logarithm of time falls between any two of them. It is steady when the last two agree: in throughput within
//! [`SAME_RATE`], in the 99th percentile of latency within [`SAME_TAIL`], and no client was without a completed
//! operation in the last one, whose latency would be missing.

use std::ops::{ControlFlow, Range};

use crate::driver::{OperationTally, PerOperation};

/// The difference of throughput between two windows of a steady run, as a part of the larger one.
pub const SAME_RATE: f64 = 0.05;
/// Same for the 99th percentile of latency, of which a window has fewer samples.
pub const SAME_TAIL: f64 = 0.25;
/// Interval at which the progress of a run is reported, in nanoseconds of virtual time.
pub(crate) const PROGRESS_NS: u64 = 1_000_000;
/// The longest virtual time in which a table fills. No run that anyone waits for takes a minute.
const LONGEST_NS: u64 = 60_000_000_000;
/// Windows of a run whose time is given: the second one is twice as long as the first.
const PARTS: u64 = 3;

/// The ends of the steps in which a run advances over `times`: progress is reported at each.
pub(crate) fn steps(times: Range<u64>, step_ns: u64) -> impl Iterator<Item = u64> {
    times.clone().step_by(step_ns as usize).skip(1).chain([times.end])
}

/// A progress function, which gets the nanoseconds of virtual time that have passed; `Break` ends the run.
pub type Progress<'p> = &'p mut dyn FnMut(u64) -> ControlFlow<()>;

/// How long a run is measured, in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// So long, whether it is steady or not.
    Exactly(u64),
    /// Until it is steady. The last window is measured alone: at least `least_ns`, and at most `most_ns` or little more.
    UntilSteady {
        /// The shortest measurement. Half of it is run before.
        least_ns: u64,
        /// The longest measurement.
        most_ns: u64,
    },
    /// Until the run has nothing left to do: inserts fill a table, which is never steady.
    UntilFull,
}

/// Whether a run was steady.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Steadiness {
    /// The time that was measured, in nanoseconds.
    pub span_ns: u64,
    /// The change of throughput between the last two windows, as a part of the larger one; negative if it fell.
    pub rate_change: f64,
    /// Same for the 99th percentile of latency.
    pub tail_change: f64,
    /// Clients without a completed operation in the last window.
    pub idle: usize,
}

impl Steadiness {
    fn between(before: Seen, now: Seen, counts: &Counts) -> Steadiness {
        let change = |before: f64, now: f64| (now - before) / before.max(now).max(f64::MIN_POSITIVE);
        Steadiness {
            span_ns: 0,
            rate_change: change(before.rate, now.rate),
            tail_change: change(before.tail, now.tail),
            idle: counts.by_client.iter().filter(|operations| **operations == 0).count(),
        }
    }

    /// Whether the run would go on as it was.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        self.rate_change.abs() <= SAME_RATE && self.tail_change.abs() <= SAME_TAIL && self.idle == 0
    }

    /// Says what changed, if the run was not steady.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let percent = |change: f64| format!("{:+.0} %", 100.0 * change);
        let causes = [
            (self.rate_change.abs() > SAME_RATE).then(|| format!("throughput {}", percent(self.rate_change))),
            (self.tail_change.abs() > SAME_TAIL)
                .then(|| format!("99th percentile of latency {}", percent(self.tail_change))),
            (self.idle > 0).then(|| format!("{} clients completed nothing", self.idle)),
        ];
        let causes: Vec<String> = causes.into_iter().flatten().collect();
        let ms = self.span_ns as f64 / 1e6;
        (!self.is_steady()).then(|| format!("not steady after {ms} ms, against the time before: {}", causes.join(", ")))
    }
}

/// Operations that ended in a window.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// By kind.
    pub operations: PerOperation<OperationTally>,
    /// Those that succeeded, by the place of the client.
    pub by_client: Vec<u64>,
    /// Records that lookups found, where keys repeat.
    pub matches: u64,
}

impl Counts {
    /// Creates the counts of clients that have done nothing yet.
    #[must_use]
    pub fn of_clients(clients: u32) -> Counts {
        Counts { by_client: vec![0; clients as usize], ..Counts::default() }
    }

    /// Returns the number of operations that succeeded.
    #[must_use]
    pub fn succeeded(&self) -> u64 {
        self.operations.named().iter().map(|(_, tally)| tally.count - tally.errors).sum()
    }

    /// Returns the operations that succeeded for each second of a time.
    #[must_use]
    pub fn per_second(&self, span_ns: u64) -> f64 {
        if span_ns == 0 { 0.0 } else { self.succeeded() as f64 * 1e9 / span_ns as f64 }
    }

    /// Returns the operations of the slowest client, divided by those of the average client.
    #[must_use]
    pub fn fairness(&self) -> f64 {
        let (slowest, sum) = (self.by_client.iter().copied().min().unwrap_or(0), self.by_client.iter().sum::<u64>());
        if sum > 0 { slowest as f64 * self.by_client.len() as f64 / sum as f64 } else { 0.0 }
    }

    fn add(&mut self, other: &Counts) {
        self.operations.merge(&other.operations);
        self.by_client.resize(self.by_client.len().max(other.by_client.len()), 0);
        self.matches += other.matches;
        self.by_client.iter_mut().zip(&other.by_client).for_each(|(sum, count)| *sum += count);
    }

    fn seen(&self, window_ns: u64) -> Seen {
        let mut all = OperationTally::default();
        self.operations.named().iter().for_each(|(_, tally)| all.merge(tally));
        Seen { rate: self.per_second(window_ns), tail: all.latency_ns.quantile(0.99) as f64 }
    }
}

/// What is compared between windows.
#[derive(Clone, Copy, Debug)]
struct Seen {
    rate: f64,
    tail: f64,
}

/// What follows a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another one, which is measured together with it.
    Longer,
    /// Another one, which is measured alone.
    Anew,
    /// Nothing: the run is over.
    End,
}

/// A measurement that goes on: window by window.
#[derive(Clone, Debug)]
pub struct Measurement {
    span: Span,
    window_ns: u64,
    before: Option<Seen>,
    /// The counts of windows that are measured together with the one that goes on.
    kept: Counts,
    kept_ns: u64,
    steadiness: Steadiness,
}

impl Measurement {
    /// Begins a measurement.
    #[must_use]
    pub fn new(span: Span) -> Measurement {
        let window_ns = match span {
            Span::Exactly(span_ns) => span_ns / PARTS,
            Span::UntilSteady { least_ns, .. } => least_ns / 2,
            Span::UntilFull => PROGRESS_NS,
        };
        let window_ns = window_ns.max(1);
        let (kept, steadiness) = (Counts::default(), Steadiness::default());
        Measurement { span, window_ns, before: None, kept, kept_ns: 0, steadiness }
    }

    /// Returns the length of the window that begins, in nanoseconds.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Takes the counts of the window that has ended, and begins anew with them. There may be `inserts_left` more
    /// inserts. At the end, `counts` are those of the measured time.
    pub fn end_window(&mut self, counts: &mut Counts, inserts_left: u64) -> Next {
        let seen = counts.seen(self.window_ns);
        let before = self.before.replace(seen);
        // A table that fills is never steady, and is not measured for that.
        if let Some(before) = before.filter(|_| self.span != Span::UntilFull) {
            self.steadiness = Steadiness::between(before, seen, counts);
        }
        let next = match (self.span, before) {
            (Span::Exactly(_), Some(_)) => Next::End,
            (Span::Exactly(_), None) => Next::Longer,
            (Span::UntilFull, _) if inserts_left == 0 || self.kept_ns >= LONGEST_NS => Next::End,
            (Span::UntilFull, _) => Next::Longer,
            (Span::UntilSteady { .. }, None) => Next::Anew,
            (Span::UntilSteady { most_ns, .. }, Some(_)) => {
                let has_room = counts.operations.insert.count <= inserts_left / 2;
                let is_over = self.steadiness.is_steady() || self.window_ns >= most_ns || !has_room;
                if is_over { Next::End } else { Next::Anew }
            }
        };
        self.steadiness.span_ns = self.window_ns;
        match next {
            Next::End => {
                counts.add(&self.kept);
                self.steadiness.span_ns += self.kept_ns;
            }
            Next::Longer => {
                self.kept_ns += self.window_ns;
                let ended = std::mem::replace(counts, Counts::of_clients(counts.by_client.len() as u32));
                self.kept.add(&ended);
            }
            Next::Anew => *counts = Counts::of_clients(counts.by_client.len() as u32),
        }
        if let Span::Exactly(span_ns) = self.span {
            self.window_ns = span_ns.saturating_sub(self.window_ns).max(1);
        }
        if next == Next::Anew {
            self.window_ns = self.window_ns.saturating_mul(2);
        }
        next
    }

    /// Returns whether the run that has ended was steady.
    #[must_use]
    pub fn steadiness(&self) -> Steadiness {
        self.steadiness
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use guira_fabric::Traffic;

    use super::*;
    use crate::workload::Operation;

    /// Measures two clients whose rates are `operations` for each nanosecond of a window that begins at a time.
    fn measured(span: Span, rate: impl Fn(f64) -> f64) -> (Counts, Measurement, Vec<u64>) {
        let (mut measurement, mut counts) = (Measurement::new(span), Counts::of_clients(2));
        let (mut at_ns, mut windows) = (0, Vec::new());
        loop {
            let window_ns = measurement.window_ns();
            let operations = (rate(at_ns as f64 + window_ns as f64 / 2.0) * window_ns as f64) as u64;
            for operation in 0..operations {
                let latency = Some(Duration::from_nanos(100));
                counts.operations.of_mut(Operation::Read).success(&Traffic::default(), latency);
                counts.by_client[operation as usize % 2] += 1;
            }
            at_ns += window_ns;
            windows.push(window_ns);
            if measurement.end_window(&mut counts, u64::MAX) == Next::End {
                return (counts, measurement, windows);
            }
        }
    }

    #[test]
    fn a_steady_run_is_measured_once() {
        let span = Span::UntilSteady { least_ns: 10_000, most_ns: 1_000_000 };
        let (counts, measurement, windows) = measured(span, |_| 0.1);
        assert_eq!((windows, counts.succeeded()), (vec![5_000, 10_000], 1_000));
        assert!(measurement.steadiness().is_steady() && measurement.steadiness().complaint().is_none());
        assert_eq!(measurement.steadiness().span_ns, 10_000);
    }

    #[test]
    fn a_run_goes_on_until_its_rate_no_longer_falls() {
        let span = Span::UntilSteady { least_ns: 10_000, most_ns: 1_000_000 };
        let (counts, measurement, windows) = measured(span, |at_ns| if at_ns < 8_000.0 { 0.2 } else { 0.1 });
        assert_eq!((windows, counts.succeeded()), (vec![5_000, 10_000, 20_000], 2_000));
        assert!(measurement.steadiness().is_steady());
    }

    #[test]
    fn a_run_that_is_never_steady_ends_and_says_so() {
        let falls = |at_ns: f64| 0.5 / (1.0 + at_ns / 1_000.0).sqrt();
        let (_, measurement, windows) = measured(Span::UntilSteady { least_ns: 10_000, most_ns: 40_000 }, falls);
        assert_eq!(windows, [5_000, 10_000, 20_000, 40_000]);
        let complaint = measurement.steadiness().complaint().unwrap();
        assert!(
            complaint.starts_with("not steady after 0.04 ms, against the time before: throughput -"),
            "{complaint}"
        );
        // A given time is kept to, and judged in the same way; all of it is measured.
        let (counts, measurement, windows) = measured(Span::Exactly(30_000), falls);
        assert_eq!(windows, [10_000, 20_000]);
        assert_eq!(counts.succeeded(), counts.by_client.iter().sum::<u64>());
        assert!(!measurement.steadiness().is_steady());
        assert_eq!(measurement.steadiness().span_ns, 30_000);
        let (counts, measurement, _) = measured(Span::Exactly(30_000), |_| 0.1);
        assert_eq!((counts.succeeded(), measurement.steadiness().is_steady()), (3_000, true));
    }

    /// Windows of a millisecond until there are no more inserts to do, all of them measured.
    #[test]
    fn a_table_that_fills_is_measured_until_it_is_full() {
        let (mut measurement, mut counts) = (Measurement::new(Span::UntilFull), Counts::of_clients(1));
        let mut end_window = |inserts: u64, inserts_left: u64| {
            for _ in 0..inserts {
                counts.operations.of_mut(Operation::Insert).success(&Traffic::default(), None);
            }
            let next = measurement.end_window(&mut counts, inserts_left);
            (next, counts.succeeded(), measurement.steadiness().span_ns)
        };
        assert_eq!(end_window(10, 90), (Next::Longer, 0, PROGRESS_NS));
        assert_eq!(end_window(50, 40).0, Next::Longer);
        assert_eq!(end_window(40, 0), (Next::End, 100, 3 * PROGRESS_NS));
    }

    #[test]
    fn a_client_without_an_operation_or_a_longer_tail_is_not_steady() {
        let steady = Steadiness { span_ns: 1_000_000, ..Steadiness::default() };
        assert!(steady.is_steady());
        let idle = Steadiness { idle: 3, ..steady }.complaint().unwrap();
        assert_eq!(idle, "not steady after 1 ms, against the time before: 3 clients completed nothing");
        let tail = Steadiness { tail_change: 0.3, ..steady }.complaint().unwrap();
        assert!(tail.ends_with("99th percentile of latency +30 %"), "{tail}");
    }
}
