//! Counters of a client, and their reports to the table's totals. [R-TOTALS-1]

use std::sync::Arc;

use guira_extents::Extents;
use guira_fabric::Lane;
use guira_rcuckoo::{Counters, Table, add_totals};

/// The part of a client's counters that the table's totals include already.
#[derive(Default)]
pub(super) struct ReportedCounters(Counters);

impl ReportedCounters {
    /// Returns the counts since the last report, if the client met one that was dead or stopped since; otherwise
    /// `None`.
    pub(super) fn incidents(&mut self, client: &guira_rcuckoo::Client, extents: Option<&Extents>) -> Option<Counters> {
        (client.counters().incidents() != self.0.incidents()).then(|| self.delta(client, extents))
    }

    /// Returns the counts since the last report, and marks them as reported.
    pub(super) fn delta(&mut self, client: &guira_rcuckoo::Client, extents: Option<&Extents>) -> Counters {
        let counters = counters(client, extents);
        let delta = counters.since(&self.0);
        self.0 = counters;
        delta
    }
}

/// Adds `delta` to the table's totals. At most 1 round trip. [R-TOTALS-1]
pub(super) async fn report(table: Arc<Table>, lane: &mut dyn Lane, delta: Counters) {
    // An operation is not undone because it could not be counted: the error is ignored.
    let _ = add_totals(lane, &table, &delta).await;
}

/// Returns the counters of a client, including those of its extents.
pub(super) fn counters(client: &guira_rcuckoo::Client, extents: Option<&Extents>) -> Counters {
    let counters = client.counters();
    let Some(extents) = extents else { return counters };
    Counters { adopted_chunks: extents.adopted_chunks(), swept_extents: extents.swept(), ..counters }
}
