//! Events of `tracing`, target `guira`: clients that were suspected, recovered or given up on, and damage; for preset
//! `paper`, whose locks have no owners, the locks that were suspected and reclaimed, and the leases and states in
//! between.
//!
//! Invariant: an operation that meets no dead or stopped client emits no event, so a subscriber costs time for
//! incidents only.

use std::sync::Arc;

use guira_layout::LockId;
use guira_rcuckoo::{Incident, LockIncident, Observer, Recovered};
use tracing::{debug, error, info, warn};

use crate::{Error, OperationError, OperationErrorKind, Url};

/// Emits the events of one table.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    table: Arc<str>,
}

impl Events {
    pub(crate) fn of(table: &Url) -> Events {
        Events { table: table.to_string().into() }
    }

    /// Emits an event for a failed operation, if other clients are the cause or something is damaged.
    #[cold]
    pub(crate) fn failed(&self, error: OperationError) -> Error {
        let (table, operation) = (&*self.table, error.operation);
        match &error.kind {
            OperationErrorKind::Busy { lock, owner, waited_ms } => {
                let slot = owner.and_then(|owner| owner.slot());
                warn!(target: "guira", table, %operation, lock = lock.0, slot, waited_ms, "operation timed out");
            }
            OperationErrorKind::Corrupt { item } => {
                error!(target: "guira", table, %operation, place = %item, "table is damaged");
            }
            _ => {}
        }
        error.into()
    }
}

impl Observer for Events {
    fn observe(&mut self, slot: u16, generation: u64, incident: &Incident) {
        let table = &*self.table;
        match incident {
            Incident::Suspected => debug!(target: "guira", table, slot, generation, "owner suspected"),
            Incident::FoundAlive => debug!(target: "guira", table, slot, generation, "owner is alive"),
            Incident::RecoveryBegun => info!(target: "guira", table, slot, generation, "recovery started"),
            Incident::Recovered { recovered: None, .. } => {
                debug!(target: "guira", table, slot, generation, "nothing to recover");
            }
            Incident::Recovered { recovered: Some(recovered), took_ns } => {
                let Recovered { replayed_rows, torn_rows, locks, chunks, was_begun } = *recovered;
                info!(
                    target: "guira",
                    table, slot, generation, replayed_rows, torn_rows, locks, chunks, was_begun, took_ns, "recovered"
                );
            }
            Incident::RecoveryFailed { kind, took_ns } => {
                error!(target: "guira", table, slot, generation, took_ns, "recovery failed: {kind}");
            }
            _ => {}
        }
    }

    fn observe_lock(&mut self, lock: LockId, incident: &LockIncident) {
        let (table, lock) = (&*self.table, lock.0);
        match incident {
            LockIncident::Suspected => debug!(target: "guira", table, lock, "holder suspected"),
            LockIncident::Withdrawn => debug!(target: "guira", table, lock, "suspicion withdrawn"),
            LockIncident::Leased { region, revoked: None } => {
                info!(target: "guira", table, lock, region, "repair started");
            }
            LockIncident::Leased { region, revoked: Some(holder) } => {
                let slot = holder.slot();
                warn!(target: "guira", table, lock, region, slot, "repair started: the last repairer is presumed dead");
            }
            LockIncident::Found { state } => debug!(target: "guira", table, lock, state, "repair resumed"),
            LockIncident::Reclaimed { took_ns } => info!(target: "guira", table, lock, took_ns, "lock reclaimed"),
            LockIncident::GivenUp => warn!(target: "guira", table, lock, "repair given up"),
            LockIncident::Failed { error } => error!(target: "guira", table, lock, "repair failed: {error}"),
            _ => {}
        }
    }
}
