//! Measures: the quantity that a chart shows of each experiment.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The quantity that a chart shows of each experiment, written `throughput`, `p99-read`, `mean-insert-bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Measure {
    /// Completed operations, in millions a second.
    Throughput,
    /// Operations of the slowest client, divided by those of the average client.
    Fairness,
    /// Records that lookups found, in millions a second, where keys repeat.
    Matches,
    /// Bytes of the state of the element in front of the memory node.
    ElementBytes,
    /// A statistic of the cost of one kind of operation.
    Cost(Statistic, Kind, Quantity),
}

/// A statistic of many operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Statistic {
    /// The mean.
    Mean,
    /// The median.
    P50,
    /// The 90th percentile.
    P90,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P999,
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Lookups.
    Read,
    /// Changes of existing values.
    Update,
    /// Insertions of new keys.
    Insert,
    /// Every operation.
    Operation,
}

/// A cost of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantity {
    /// Time, in microseconds.
    Latency,
    /// Round trips.
    RoundTrips,
    /// Messages that the client sends.
    Messages,
    /// Bytes in both directions, headers included.
    Bytes,
}

impl Statistic {
    pub(super) const ALL: [(Statistic, &'static str); 5] = [
        (Statistic::Mean, "mean"),
        (Statistic::P50, "p50"),
        (Statistic::P90, "p90"),
        (Statistic::P99, "p99"),
        (Statistic::P999, "p999"),
    ];

    fn label(self) -> &'static str {
        match self {
            Statistic::Mean => "mean",
            Statistic::P50 => "median",
            Statistic::P90 => "90th percentile of",
            Statistic::P99 => "99th percentile of",
            Statistic::P999 => "99.9th percentile of",
        }
    }
}

impl Kind {
    const ALL: [(Kind, &'static str); 4] =
        [(Kind::Read, "read"), (Kind::Update, "update"), (Kind::Insert, "insert"), (Kind::Operation, "operation")];

    /// Returns the name in measures and reports.
    pub fn name(self) -> &'static str {
        name_in(&Kind::ALL, self)
    }
}

impl Quantity {
    /// The ends of names. Latency has none: it is what a percentile of an operation means.
    pub(super) const ALL: [(Quantity, &'static str); 4] = [
        (Quantity::RoundTrips, "-round-trips"),
        (Quantity::Messages, "-messages"),
        (Quantity::Bytes, "-bytes"),
        (Quantity::Latency, ""),
    ];
}

impl Measure {
    /// Returns the label of an axis.
    pub fn label(self) -> String {
        match self {
            Measure::Throughput => "throughput".to_owned(),
            Measure::Fairness => "slowest client, to the mean".to_owned(),
            Measure::Matches => "records found".to_owned(),
            Measure::ElementBytes => "state of the element".to_owned(),
            Measure::Cost(statistic, kind, quantity) => {
                let quantity = match quantity {
                    Quantity::Latency => "latency",
                    Quantity::RoundTrips => "round trips",
                    Quantity::Messages => "messages",
                    Quantity::Bytes => "bytes",
                };
                format!(
                    "{} {quantity} of {}",
                    statistic.label(),
                    match kind {
                        Kind::Read => "a read",
                        Kind::Update => "an update",
                        Kind::Insert => "an insert",
                        Kind::Operation => "an operation",
                    }
                )
            }
        }
    }

    /// Returns the unit of an axis, or an empty text.
    pub fn unit(self) -> &'static str {
        match self {
            Measure::Throughput | Measure::Matches => "million/s",
            Measure::Cost(_, _, Quantity::Latency) => "µs",
            Measure::ElementBytes | Measure::Cost(_, _, Quantity::Bytes) => "bytes",
            Measure::Fairness | Measure::Cost(..) => "",
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Measure::Throughput => f.write_str("throughput"),
            Measure::Fairness => f.write_str("fairness"),
            Measure::Matches => f.write_str("matches"),
            Measure::ElementBytes => f.write_str("element-bytes"),
            Measure::Cost(statistic, kind, quantity) => {
                let statistic = name_in(&Statistic::ALL, statistic);
                write!(f, "{statistic}-{}{}", kind.name(), name_in(&Quantity::ALL, quantity))
            }
        }
    }
}

impl FromStr for Measure {
    type Err = String;

    fn from_str(text: &str) -> Result<Measure, String> {
        match text {
            "throughput" => return Ok(Measure::Throughput),
            "fairness" => return Ok(Measure::Fairness),
            "matches" => return Ok(Measure::Matches),
            "element-bytes" => return Ok(Measure::ElementBytes),
            _ => {}
        }
        cost(text).ok_or_else(|| {
            format!(
                "measure {text:?} is not throughput, fairness, matches, element-bytes, or STATISTIC-OPERATION with an \
                 optional -round-trips, -messages or -bytes, where STATISTIC is one of mean, p50, p90, p99, p999, and \
                 OPERATION one of read, update, insert, operation"
            )
        })
    }
}

impl From<Measure> for String {
    fn from(measure: Measure) -> String {
        measure.to_string()
    }
}

impl TryFrom<String> for Measure {
    type Error = String;

    fn try_from(text: String) -> Result<Measure, String> {
        text.parse()
    }
}

fn cost(text: &str) -> Option<Measure> {
    let (statistic, rest) = text.split_once('-')?;
    let (statistic, _) = Statistic::ALL.into_iter().find(|(_, name)| *name == statistic)?;
    let (quantity, kind) =
        Quantity::ALL.into_iter().find_map(|(quantity, end)| Some((quantity, rest.strip_suffix(end)?)))?;
    let (kind, _) = Kind::ALL.into_iter().find(|(_, name)| *name == kind)?;
    Some(Measure::Cost(statistic, kind, quantity))
}

fn name_in<T: Copy + PartialEq>(names: &[(T, &'static str)], wanted: T) -> &'static str {
    names.iter().find(|(value, _)| *value == wanted).map_or("", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_reads_as_it_is_written() {
        let costs = Statistic::ALL.into_iter().flat_map(|(statistic, _)| {
            Kind::ALL.into_iter().flat_map(move |(kind, _)| {
                Quantity::ALL.into_iter().map(move |(quantity, _)| Measure::Cost(statistic, kind, quantity))
            })
        });
        let all: Vec<Measure> = [Measure::Throughput, Measure::Fairness, Measure::Matches, Measure::ElementBytes]
            .into_iter()
            .chain(costs)
            .collect();
        assert_eq!(all.len(), 84);
        for measure in all {
            assert_eq!(measure.to_string().parse(), Ok(measure));
        }
        let named = Measure::Cost(Statistic::P99, Kind::Insert, Quantity::RoundTrips);
        assert_eq!("p99-insert-round-trips".parse(), Ok(named));
        assert_eq!(named.label(), "99th percentile of round trips of an insert");
    }

    #[test]
    fn an_unknown_measure_is_refused() {
        for text in ["", "p98-read", "p99", "p99-scan", "p99-read-trips", "latency"] {
            assert!(text.parse::<Measure>().is_err(), "{text}");
        }
    }
}
