//! Answers: the results of one experiment.

use serde::Serialize;

use super::{Experiment, Kind};

/// The result of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The experiment.
    pub experiment: Experiment,
    /// The seed.
    pub seed: u64,
    /// Completed operations, in millions a second.
    pub throughput_mops: f64,
    /// The lowest and the highest throughput of all seeds, if there are several: this is the answer of the median one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput_spread: Option<(f64, f64)>,
    /// Operations of the slowest client, divided by those of the average client.
    pub fairness: f64,
    /// The virtual time that was measured, in microseconds.
    pub span_us: f64,
    /// The fill of the table when the measurement ended, in percent.
    pub fill_at_end: f64,
    /// Whether throughput and tail had settled; a note says what had not.
    pub is_steady: bool,
    /// Slots that a READ of a lookup fetched, with other stores than RCuckoo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_slots: Option<u64>,
    /// Records that lookups found, in millions a second, where keys repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches_mops: Option<f64>,
    /// Bytes of the state of the element in front of the memory node, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub element_bytes: Option<u64>,
    /// The cost of each kind of operation that was carried out.
    pub kinds: Vec<KindAnswer>,
    /// The use of each resource, the most used first: its name, and the part of the time for which it was busy.
    pub resources: Vec<(String, f64)>,
    /// The resource that limits throughput, in one sentence.
    pub bound_by: String,
    /// Sentences about what the model lacks for this experiment.
    pub notes: Vec<String>,
}

/// The cost of one kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindAnswer {
    /// The kind.
    pub kind: Kind,
    /// Number of operations measured.
    pub operations: u64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of latency, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of latency, in microseconds.
    pub p999_us: f64,
    /// Mean number of round trips.
    pub round_trips: f64,
    /// Mean number of messages sent by the client.
    pub messages: f64,
    /// Mean number of bytes in both directions, headers included.
    pub bytes: f64,
}

impl Answer {
    /// Returns the figures of a point of a chart, by name and unit.
    pub fn figures(&self) -> Vec<(String, String, f64)> {
        let mut figures = vec![
            ("throughput".to_owned(), "million/s".to_owned(), self.throughput_mops),
            ("slowest client, to the mean".to_owned(), String::new(), self.fairness),
            ("measured".to_owned(), "µs".to_owned(), self.span_us),
            ("fill at the end".to_owned(), "%".to_owned(), self.fill_at_end),
            ("steady".to_owned(), String::new(), f64::from(u8::from(self.is_steady))),
        ];
        figures.extend(self.read_slots.map(|slots| ("slots of a READ".to_owned(), String::new(), slots as f64)));
        let matches = self.matches_mops.map(|matches| ("records found".to_owned(), "million/s".to_owned(), matches));
        figures.extend(matches);
        figures.extend(
            self.element_bytes.map(|bytes| ("state of the element".to_owned(), "bytes".to_owned(), bytes as f64)),
        );
        for kind in &self.kinds {
            let name = kind.kind.name();
            figures.extend([
                (format!("{name} p50"), "µs".to_owned(), kind.p50_us),
                (format!("{name} p99"), "µs".to_owned(), kind.p99_us),
                (format!("{name} round trips"), String::new(), kind.round_trips),
                (format!("{name} messages"), String::new(), kind.messages),
                (format!("{name} bytes"), String::new(), kind.bytes),
            ]);
        }
        // If all operations of a kind failed, they have no latency.
        figures.retain(|(_, _, figure)| figure.is_finite());
        figures
    }
}
