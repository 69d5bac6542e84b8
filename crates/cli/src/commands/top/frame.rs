//! The numbers in one frame of `guira top`, without their layout.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use guira::admin::{ChangeCount, ClientStat, ClientState, Fabric, NodeCounters, Stat};
use serde::Serialize;

use crate::commands::serve::metrics;

/// A value with the time at which it was sampled.
#[derive(Clone)]
pub struct Timed<T> {
    pub at: Instant,
    pub value: T,
}

/// The reported counters that are shown, in this order, by their names in the table's totals.
const SHOWN_TOTALS: [&str; 8] =
    ["lock_conflicts", "row_retries", "crc_retries", "stale_paths", "moves", "suspicions", "recoveries", "timeouts"];

/// One frame. Unknown numbers are `None`.
#[derive(Clone, Debug, Serialize)]
pub struct Frame {
    pub url: String,
    pub format: String,
    /// Inserts, updates and removals per second of the clients that are open; `None` at the first sample, and for a
    /// table without redo records.
    pub changes_per_s: Option<f64>,
    /// The memory node's activity; `None` for a table without one.
    pub node: Option<NodeNow>,
    pub table: TableNow,
    /// The counters that clients reported.
    pub met: Vec<CounterNow>,
    pub clients: Clients,
}

/// A sample of the counters that are read each time.
#[derive(Clone)]
pub struct Counted {
    /// The counters of the memory node, if there is one.
    pub node: Option<NodeCounters>,
    /// The changes of each client, if the table counts them.
    pub changes: Option<Vec<ChangeCount>>,
}

/// The activity of a memory node between two samples.
#[derive(Clone, Debug, Serialize)]
pub struct NodeNow {
    /// Whether the node executes the verbs of clients, and so counts them. Over RDMA its network card executes them.
    pub counts_verbs: bool,
    pub sessions_open: u64,
    /// Clients refused and sessions fenced since the node was started.
    pub refused: u64,
    pub fenced: u64,
    /// `None` at the first sample, and if the node counts no verbs.
    pub rates: Option<Rates>,
}

/// Rates per second, and latencies.
#[derive(Clone, Debug, Serialize)]
pub struct Rates {
    pub round_trips: f64,
    pub reads: f64,
    pub writes: f64,
    pub swaps: f64,
    pub adds: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    /// The median time to answer a request, in the node; `None` if there were no requests.
    pub median_ns: Option<u64>,
    /// The 99th percentile of that time.
    pub p99_ns: Option<u64>,
}

/// The table at the latest scan of all rows.
#[derive(Clone, Debug, Serialize)]
pub struct TableNow {
    /// Age of the scan in seconds.
    pub age_s: f64,
    pub entries: u64,
    pub capacity: u64,
    pub fill: f64,
    /// Change of the number of entries per second; `None` after the first scan.
    pub entries_per_s: Option<f64>,
    pub unverified_rows: u64,
    /// Bytes of keys and values in extents, of the chunks in use, and of all chunks.
    pub live_bytes: u64,
    pub used_bytes: u64,
    pub total_bytes: u64,
}

/// One counter that clients reported.
#[derive(Clone, Debug, Serialize)]
pub struct CounterNow {
    pub what: &'static str,
    pub total: u64,
    pub per_s: Option<f64>,
}

/// The clients that have the table open for changing.
#[derive(Clone, Debug, Serialize)]
pub struct Clients {
    pub live: usize,
    pub stopped: usize,
    /// Clients of which this process cannot tell whether they are alive.
    pub unknown: usize,
    pub dead: usize,
    pub recovering: usize,
    pub damaged: usize,
    pub max: u16,
    pub list: Vec<ClientStat>,
}

impl Frame {
    /// Returns the frame of the latest sample, with rates since the earlier one.
    pub fn new(
        stat: &Timed<Arc<Stat>>,
        earlier_stat: Option<&Timed<Arc<Stat>>>,
        counted: &Timed<Counted>,
        earlier_counted: Option<&Timed<Counted>>,
    ) -> Frame {
        let node_of =
            |counted: &Timed<Counted>| counted.value.node.clone().map(|value| Timed { at: counted.at, value });
        let (node, earlier_node) = (node_of(counted), earlier_counted.and_then(node_of));
        let counts_verbs = stat.value.region.node().is_none_or(|node| node.fabric == Fabric::Tcp);
        Frame {
            url: stat.value.url.clone(),
            format: stat.value.format.clone(),
            changes_per_s: earlier_counted.and_then(|earlier| changes_per_s(earlier, counted)),
            node: node.map(|node| NodeNow::new(&node, earlier_node.as_ref(), counts_verbs)),
            table: TableNow::new(stat, earlier_stat),
            met: counters(stat, earlier_stat),
            clients: Clients::new(&stat.value),
        }
    }
}

impl Frame {
    /// Returns the number that shows best how much is done, per second, with its name: round trips, where they are
    /// counted, or else changes.
    pub fn activity(&self) -> Option<(&'static str, f64)> {
        let round_trips = self.node.as_ref().and_then(|node| node.rates.as_ref()).map(|rates| rates.round_trips);
        let changes = self.changes_per_s.map(|changes| ("changes", changes));
        round_trips.map(|round_trips| ("round trips", round_trips)).or(changes)
    }
}

/// Returns the changes per second of the clients that are in both samples.
fn changes_per_s(earlier: &Timed<Counted>, now: &Timed<Counted>) -> Option<f64> {
    let seconds = now.at.saturating_duration_since(earlier.at).as_secs_f64();
    let (before, after) = (earlier.value.changes.as_ref()?, now.value.changes.as_ref()?);
    let known: HashMap<u16, &ChangeCount> = before.iter().map(|count| (count.slot, count)).collect();
    let changes: u64 = after.iter().filter_map(|count| Some(count.since(known.get(&count.slot)?))).sum();
    (seconds > 0.0).then(|| changes as f64 / seconds)
}

impl NodeNow {
    fn new(now: &Timed<NodeCounters>, earlier: Option<&Timed<NodeCounters>>, counts_verbs: bool) -> NodeNow {
        let counters = &now.value;
        NodeNow {
            counts_verbs,
            sessions_open: counters.sessions_open(),
            refused: metrics::refusals(counters).iter().map(|(_, count)| count).sum(),
            fenced: counters.sessions_fenced,
            rates: earlier.filter(|_| counts_verbs).and_then(|earlier| Rates::between(earlier, now)),
        }
    }
}

impl Rates {
    /// Returns `None` if no time has passed, or if a counter went back because the node was restarted.
    fn between(earlier: &Timed<NodeCounters>, now: &Timed<NodeCounters>) -> Option<Rates> {
        let seconds = now.at.saturating_duration_since(earlier.at).as_secs_f64();
        let (now, earlier) = (&now.value, &earlier.value);
        let rate = |count: fn(&NodeCounters) -> u64| {
            let more = count(now).checked_sub(count(earlier)).filter(|_| seconds > 0.0)?;
            Some(more as f64 / seconds)
        };
        let pairs = now.answered_in.0.iter().zip(&earlier.answered_in.0);
        let answers: Vec<u64> = pairs.map(|(now, earlier)| now.saturating_sub(*earlier)).collect();
        Some(Rates {
            round_trips: rate(|counters| counters.batches)?,
            reads: rate(|counters| counters.reads)?,
            writes: rate(|counters| counters.writes)?,
            swaps: rate(|counters| counters.swaps)?,
            adds: rate(|counters| counters.adds)?,
            bytes_in: rate(|counters| counters.bytes_in)?,
            bytes_out: rate(|counters| counters.bytes_out)?,
            median_ns: quantile_ns(&answers, 50),
            p99_ns: quantile_ns(&answers, 99),
        })
    }

    /// Returns the rate of all verbs.
    pub fn verbs(&self) -> f64 {
        self.reads + self.writes + self.swaps + self.adds
    }
}

/// Returns the upper end of the bucket that holds the percentile; bucket b ends at 2^b nanoseconds.
fn quantile_ns(buckets: &[u64], percent: u64) -> Option<u64> {
    let all: u64 = buckets.iter().sum();
    let wanted = (u128::from(all) * u128::from(percent)).div_ceil(100);
    let mut reached = 0;
    let bucket = buckets.iter().position(|count| {
        reached += u128::from(*count);
        reached >= wanted
    })?;
    (all > 0).then(|| 1 << bucket)
}

impl TableNow {
    fn new(now: &Timed<Arc<Stat>>, earlier: Option<&Timed<Arc<Stat>>>) -> TableNow {
        let table = &now.value.table;
        let entries_per_s = earlier.and_then(|earlier| {
            let seconds = now.at.saturating_duration_since(earlier.at).as_secs_f64();
            (seconds > 0.0).then(|| (table.entries as f64 - earlier.value.table.entries as f64) / seconds)
        });
        TableNow {
            age_s: now.at.elapsed().as_secs_f64(),
            entries: table.entries,
            capacity: table.capacity,
            fill: table.fill,
            entries_per_s,
            unverified_rows: table.unverified_rows,
            live_bytes: table.space.live_bytes,
            used_bytes: table.space.used_bytes,
            total_bytes: table.space.total_bytes,
        }
    }
}

fn counters(now: &Timed<Arc<Stat>>, earlier: Option<&Timed<Arc<Stat>>>) -> Vec<CounterNow> {
    let of = |stat: &Stat, what: &str| stat.totals.named().find(|(name, _)| *name == what).map(|(_, count)| count);
    let shown = SHOWN_TOTALS.iter().filter_map(|what| {
        let total = of(&now.value, what)?;
        let per_s = earlier.and_then(|earlier| {
            let seconds = now.at.saturating_duration_since(earlier.at).as_secs_f64();
            let more = total.checked_sub(of(&earlier.value, what)?).filter(|_| seconds > 0.0)?;
            Some(more as f64 / seconds)
        });
        Some(CounterNow { what, total, per_s })
    });
    shown.collect()
}

impl Clients {
    fn new(stat: &Stat) -> Clients {
        let count = |state| stat.clients.iter().filter(|client| client.state == state).count();
        Clients {
            live: count(ClientState::Live),
            stopped: count(ClientState::Stopped),
            unknown: count(ClientState::Unknown),
            dead: count(ClientState::Dead),
            recovering: count(ClientState::Recovering),
            damaged: count(ClientState::Damaged),
            max: stat.max_clients,
            list: stat.clients.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn quantiles_are_ends_of_buckets() {
        assert_eq!(quantile_ns(&[], 50), None);
        assert_eq!(quantile_ns(&[0; 40], 50), None);
        assert_eq!(quantile_ns(&[0, 0, 0, 98, 0, 2], 50), Some(8));
        assert_eq!(quantile_ns(&[0, 0, 0, 98, 0, 2], 99), Some(32));
        assert_eq!(quantile_ns(&[0, 0, 0, 99, 0, 1], 99), Some(8));
        assert_eq!(quantile_ns(&[1], 99), Some(1));
    }

    #[test]
    fn rates_are_per_second_and_none_of_another_node() {
        let at = Instant::now();
        let mut before = NodeCounters::default();
        (before.batches, before.reads) = (100, 300);
        let mut after = before.clone();
        (after.batches, after.reads, after.adds) = (150, 500, 1);
        let earlier = Timed { at, value: before };
        let now = Timed { at: at + Duration::from_millis(500), value: after };
        let rates = Rates::between(&earlier, &now).unwrap();
        assert_eq!((rates.round_trips, rates.reads, rates.adds, rates.verbs()), (100.0, 400.0, 2.0, 402.0));
        assert_eq!(rates.median_ns, None);
        assert!(Rates::between(&now, &earlier).is_none() && Rates::between(&now, &now).is_none());
        assert!(NodeNow::new(&now, None, true).rates.is_none());
        assert!(NodeNow::new(&now, Some(&earlier), false).rates.is_none());
    }

    #[test]
    fn every_counter_that_is_shown_exists() {
        let names: Vec<&str> = guira::Counters::NAMES.to_vec();
        assert!(SHOWN_TOTALS.iter().all(|what| names.contains(what)), "{names:?}");
    }

    #[test]
    fn changes_are_those_of_clients_that_stayed() {
        let count = |slot, generation, changes| ChangeCount { slot, generation, changes };
        let of = |changes: &[ChangeCount]| Counted { node: None, changes: Some(changes.to_vec()) };
        let at = Instant::now();
        let earlier = Timed { at, value: of(&[count(1, 7, 10), count(2, 7, 900), count(3, 7, 5)]) };
        let at = at + Duration::from_millis(500);
        // One went on, one made its first change in a used slot, one slot has another client, one client is new.
        let now = Timed { at, value: of(&[count(1, 7, 20), count(2, 7, 3), count(3, 8, 9), count(4, 1, 9)]) };
        assert_eq!(changes_per_s(&earlier, &now), Some(26.0));
        assert_eq!(changes_per_s(&now, &now), None);
        let uncounted = Timed { at, value: Counted { node: None, changes: None } };
        assert_eq!(changes_per_s(&earlier, &uncounted), None);
    }
}
