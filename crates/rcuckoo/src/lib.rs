//! The RCuckoo protocol (ATC'25), hardened: every operation is an `async fn` over a [`guira_fabric::Lane`].
//!
//! An operation awaits two things only: a batch of verbs, which is one round trip, and a pause while another client
//! holds a lock. There is no clock, no randomness, no thread and no log in this crate; time comes from the lane and a
//! seed from the caller. docs/protocol.md numbers the rules that this code obeys; comments cite them.
//!
//! - [`Table`]: the parameters that all clients agree on.
//! - [`Reader`]: lock-free lookups.
//! - [`Client`]: one logical owner that changes the table.
#![forbid(unsafe_code)]

mod change;
mod client;
mod counters;
mod error;
mod locks;
mod lookup;
mod paper;
mod recovery;
mod scan;
mod table;
mod token;

use guira_layout::{MAX_PATH_ROWS, MAX_PATH_ROWS_WITH_EXTENTS};

pub use change::{Begun, Change, Changed, Continuation, Expected, Grown, NewValue, Outcome};
pub use client::{
    Acquisition, CacheFill, Client, ClientConfig, InsertRow, MAX_COVERING_BYTES, SearchOrder, SearchRoots, Synchronize,
};
pub use counters::{Counters, add_totals, read_totals};
pub use error::{DamagedItem, Error, ErrorKind, NoSpace, Operation};
pub use locks::unowned::{free_unowned_locks, unowned_locks};
pub use lookup::{Reader, RowGuess, RowPredictor, TryGet, read_extent};
pub use recovery::failure_detector::{Incident, LockIncident, Observer};
pub use recovery::recover::{Recovered, recover};
pub use recovery::sweep::{ExtentUse, count_recoveries, look_up_extent};
pub use scan::snapshot::{LEN_SAMPLES, Len, Snapshot};
pub use scan::table_rows::{RowList, TableRows};
pub use scan::{RowItems, RowSample, sample_rows};
pub use table::destroy::{destroy_table, is_destroyed};
pub use table::hash::{Placement, RowPair};
pub use table::key::Key;
pub use table::session::{SlotClient, SlotInfo, claim_generation, claim_slot, read_slot, release_slot, slots};
pub use table::{FormatError, Table, TableError, available_chunks, format_table, open_table, read_map, reserve_table};
pub use token::Token;

/// Locks that one operation can need: those of the rows of a path and of both rows of the key.
pub(crate) const MAX_LOCKS: usize = MAX_PATH_ROWS as usize + 2;
/// Bound on the verbs of one batch, on every fabric: releases, tries and READs for all locks, and, where values may lie
/// in extents, a value of 64 MiB and a key of 64 KiB in WRITEs of 1 MiB.
const _: () = assert!(3 * MAX_LOCKS <= 128, "Rxe's max_batch is the smallest");
const _: () = assert!(3 * (MAX_PATH_ROWS_WITH_EXTENTS as usize + 2) + 66 <= 128, "Rxe's max_batch is the smallest");

/// A batch under construction. Its memory comes from a [`Buffer`] and returns to it.
pub(crate) type Batch<'b> = Vec<guira_fabric::Verb<'b>>;

/// The memory of a batch, kept from one batch to the next: never holds a verb.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<guira_fabric::Verb<'static>>);

impl Buffer {
    /// Returns memory for batches of `verbs` verbs; longer ones need an allocation.
    pub(crate) fn with_capacity(verbs: usize) -> Buffer {
        Buffer(Vec::with_capacity(verbs))
    }

    /// Returns an empty batch in the memory of the last one.
    pub(crate) fn take<'b>(&mut self) -> Batch<'b> {
        std::mem::take(&mut self.0)
    }

    /// Keeps the batch's memory. If a batch is dropped instead, the next one needs an allocation.
    pub(crate) fn keep(&mut self, mut batch: Batch<'_>) {
        batch.clear();
        // Collecting an emptied vector reuses its memory, and gives it another lifetime.
        self.0 = batch.into_iter().map(|_| -> guira_fabric::Verb<'static> { unreachable!("it is empty") }).collect();
    }
}
