//! What clients met, and when the table's totals are told of it. // [R-TOTALS-1]

use std::sync::Arc;

use guira_extents::Extents;
use guira_fabric::Lane;
use guira_rcuckoo::{Counters, Table, add_totals};

/// What of a client's counters is in the table's totals already.
#[derive(Default)]
pub(super) struct ReportedCounters(Counters);

impl ReportedCounters {
    /// What the client met since it last told; nothing, unless it had to do with somebody who was dead or stood still.
    pub(super) fn incidents(&mut self, client: &guira_rcuckoo::Client, extents: Option<&Extents>) -> Option<Counters> {
        (client.counters().incidents() != self.0.incidents()).then(|| self.delta(client, extents))
    }

    /// What the client met since it last told.
    pub(super) fn delta(&mut self, client: &guira_rcuckoo::Client, extents: Option<&Extents>) -> Counters {
        let counters = counters(client, extents);
        let delta = counters.since(&self.0);
        self.0 = counters;
        delta
    }
}

/// Adds `delta` to the table's totals. At most 1 round trip. // [R-TOTALS-1]
pub(super) async fn report(table: Arc<Table>, lane: &mut dyn Lane, delta: Counters) {
    // An operation is not undone because it could not be counted.
    let _ = add_totals(lane, &table, &delta).await;
}

/// What a client met, its extents included.
pub(super) fn counters(client: &guira_rcuckoo::Client, extents: Option<&Extents>) -> Counters {
    let counters = client.counters();
    let Some(extents) = extents else { return counters };
    Counters { adopted_chunks: extents.adopted_chunks(), swept_extents: extents.swept(), ..counters }
}
