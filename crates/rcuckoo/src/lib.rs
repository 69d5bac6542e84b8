//! The RCuckoo protocol (ATC'25), hardened: every operation is an `async fn` over a [`guira_fabric::Lane`].
//!
//! An operation awaits two things only: a batch of verbs, which is one round trip, and a pause, when somebody else
//! holds a lock. There is no clock, no randomness, no thread and no log in here; time comes from the lane and a seed
//! from the caller. docs/protocol.md numbers the rules this code obeys; comments cite them.
//!
//! - [`Table`]: what everybody agrees on. [`Reader`]: lock-free lookups. [`Client`]: one logical owner that changes the
//!   table.
#![forbid(unsafe_code)]

mod cache;
mod client;
mod commit;
mod error;
mod hash;
mod journal;
mod locks;
mod mutate;
mod pace;
mod read;
mod scan;
mod search;
mod session;
mod table;
mod window;

pub use client::{Client, ClientConfig, Counters, SearchRoots, Synchronize};
pub use error::{Error, Operation, Place};
pub use hash::{Placement, RowPair};
pub use mutate::{Change, Changed, NewValue, Outcome};
pub use read::{Reader, read_extent};
pub use scan::{RowItems, RowSample, sample_rows};
pub use session::{SlotInfo, claim_slot, release_slot, slots};
pub use table::{OpenError, Table, format_table, open_table, poison_table};

/// Verbs of one batch, at most: releases, extent writes, lock words, reads, record and rows of the longest operation.
/// Rxe's `max_batch` is the smallest of all fabrics.
pub(crate) const MAX_BATCH: usize = 128;

/// A batch under construction, without a heap allocation.
pub(crate) type Batch<'b> = arrayvec::ArrayVec<guira_fabric::Verb<'b>, MAX_BATCH>;
