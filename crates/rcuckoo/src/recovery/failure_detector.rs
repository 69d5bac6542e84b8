//! The failure detector: when a client asks whether the owner of a lock it waits for is alive, and what it does if not.
//!
//! Invariants: only an answer decides that a client is dead; time only decides when to ask [R-RECOVER-1]. A client
//! releases everything it holds before it recovers another [R-RECOVER-5].

use std::fmt;
use std::future::poll_fn;

use guira_fabric::{Effect, FabricError, FenceProof, Lane, Liveness};
use guira_layout::{LockId, OwnerId, SlotState, SlotWord};

use crate::locks::journal::Flight;
use crate::recovery::recover::{DeadClient, recover_dead};
use crate::{Client, Error, ErrorKind, Operation, Recovered, SlotClient, read_slot};

/// Pauses for one lock before its owner is probed: with the backoff's default they add up to 0.05 ms, and nearly every
/// wait is shorter.
const PAUSES_BEFORE_PROBE: u32 = 10;
/// Time between two probes that found the owner alive. One probe is a few system calls.
const PROBE_INTERVAL_NS: u64 = 1_000_000;

/// An event between a client and another client whose lock or chunks it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incident {
    /// The other client is suspected: it is asked whether it is alive.
    Suspected,
    /// The other client is alive.
    FoundAlive,
    /// The other client is dead, and its recovery begins.
    RecoveryBegun,
    /// The other client is recovered; `None` if there was nothing to do: it gave its slot back before it ended.
    Recovered {
        /// The work that was left.
        recovered: Option<Recovered>,
        /// Duration of the recovery, in nanoseconds of the lane's clock.
        took_ns: u64,
    },
    /// The other client could not be recovered, or not completely.
    RecoveryFailed {
        /// The error.
        kind: ErrorKind,
        /// Duration of the attempt, in nanoseconds of the lane's clock.
        took_ns: u64,
    },
}

/// A step of a client that presumes the holder of a lock dead, in preset `paper`, where locks do not name their owners.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockIncident {
    /// The lock stayed taken for the failure timeout, and no row under it changed. Source: R-REPAIR-1.
    Suspected,
    /// Before the client had the lease, the lock was free, or a row under it had changed: the suspicion was wrong, or
    /// another client has repaired. Source: R-REPAIR-5.
    Withdrawn,
    /// The client took the lease of the lock's region, and its repair begins. Source: R-REPAIR-3.
    Leased {
        /// The region.
        region: u8,
        /// Previous holder of the lease, if it was not free: presumed dead as well. Source: R-REPAIR-4.
        revoked: Option<OwnerId>,
    },
    /// The rows that the lock guards are in this state, 1 to 4, and a step out of it follows. Source: R-REPAIR-6,
    /// R-REPAIR-7.
    Found {
        /// The state, by its number in the paper.
        state: u8,
    },
    /// The lock was cleared, and the lease returned. Source: R-REPAIR-8.
    Reclaimed {
        /// Time since the suspicion, in nanoseconds of the lane's clock.
        took_ns: u64,
    },
    /// The repair did not finish within its bound of steps: other clients keep changing these rows.
    GivenUp,
    /// The fabric failed during the repair; the lease, if it was taken, must be revoked.
    Failed {
        /// The fabric's error.
        error: FabricError,
    },
}

/// A receiver of incidents, called at the moment they happen. They are rare: an operation that meets no other client
/// reports nothing.
pub trait Observer: Send + Sync {
    /// Receives an `incident` with the client that took `slot` under `generation`. Must not wait.
    fn observe(&mut self, slot: u16, generation: u64, incident: &Incident);

    /// Receives an `incident` with the holder of `lock`, in a table whose locks do not name their owners. Must not
    /// wait.
    fn observe_lock(&mut self, lock: LockId, incident: &LockIncident);
}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// A client's failure detector: the source of answers, and the time of the next probe.
#[derive(Debug, Default)]
pub(crate) struct FailureDetector {
    /// Answers whether a client is alive; a client without it recovers no other.
    liveness: Option<Box<dyn Liveness>>,
    /// Earliest time of the next probe, by the lane's clock.
    next_probe_ns: u64,
    /// Earliest time of the next probe of all owners of chunks.
    next_owners_probe_ns: u64,
    /// The process of this client, shown to other clients while it recovers a dead one.
    process: SlotClient,
}

/// The progress of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitProgress {
    /// The client has paused this many times.
    Pauses(u32),
    /// The deadline has passed.
    Expired,
}

impl FailureDetector {
    pub(crate) fn set_liveness(&mut self, liveness: Box<dyn Liveness>) {
        self.liveness = Some(liveness);
    }

    pub(crate) fn set_process(&mut self, process: &SlotClient) {
        self.process = *process;
    }

    fn is_due(&self, now_ns: u64, progress: WaitProgress) -> bool {
        let is_late = match progress {
            WaitProgress::Pauses(pauses) => pauses >= PAUSES_BEFORE_PROBE,
            WaitProgress::Expired => true,
        };
        self.liveness.is_some() && is_late && now_ns >= self.next_probe_ns
    }
}

impl Client {
    fn report(&mut self, slot: u16, generation: u64, incident: &Incident) {
        if let Some(observer) = &mut self.reader.observer {
            observer.observe(slot, generation, incident);
        }
    }

    /// Whether it is time to probe a client that this one waits for. [R-RECOVER-1]
    pub(crate) fn may_probe(&self, now_ns: u64, progress: WaitProgress) -> bool {
        self.failure_detector.is_due(now_ns, progress) && self.has_slots_to_recover()
    }

    fn has_slots_to_recover(&self) -> bool {
        self.table.is_recoverable() || self.table.is_repairable()
    }

    /// Recovers those of `owners` that are dead, for a client that needs what they hold; returns how many. Probes at most
    /// one a millisecond, over all calls. Round trips: 1 for each, and those of [`crate::recover`] for each dead client.
    /// Source: R-RECOVER-1.
    ///
    /// # Errors
    /// `Corrupt` if a slot or the record in it is damaged; the fabric's.
    pub async fn recover_owners(
        &mut self,
        lane: &mut dyn Lane,
        owners: &[OwnerId],
        operation: Operation,
    ) -> Result<usize, Error> {
        let is_due = lane.now_ns() >= self.failure_detector.next_owners_probe_ns;
        if !is_due || self.failure_detector.liveness.is_none() || !self.has_slots_to_recover() {
            return Ok(0);
        }
        let mut dead = 0;
        for owner in owners {
            let recovered = self.recover_if_dead(lane, *owner, WaitProgress::Expired).await;
            dead += usize::from(recovered.map_err(|kind| kind.during(operation))?);
        }
        self.failure_detector.next_owners_probe_ns =
            lane.now_ns().saturating_add(PROBE_INTERVAL_NS.saturating_mul(owners.len() as u64));
        Ok(dead)
    }

    /// Recovers `owner` if it is dead. Returns true then, and this client holds no lock any more. Round trips: 1 to
    /// probe, and those of [`crate::recover`]. [R-RECOVER-1] [R-RECOVER-5]
    pub(crate) async fn recover_if_dead(
        &mut self,
        lane: &mut dyn Lane,
        owner: OwnerId,
        progress: WaitProgress,
    ) -> Result<bool, ErrorKind> {
        let proof = self.prove_dead(lane, owner, progress).await?;
        let Some(proof) = proof else { return Ok(false) };
        self.release_held(lane).await?;
        let dead = DeadClient::of(&proof);
        let (slot, generation, began_ns) = (proof.slot(), proof.generation(), lane.now_ns());
        self.report(slot, generation, &Incident::RecoveryBegun);
        // If this operation is dropped from here on, a batch of the recovery may be in flight.
        self.journal.proof = Some(proof);
        self.journal.flight = Flight::Recovery;
        let recovered = recover_dead(lane, &self.table, dead, &self.failure_detector.process).await;
        let took_ns = lane.now_ns().saturating_sub(began_ns);
        match &recovered {
            Err(ErrorKind::Fabric { source, .. }) => self.journal.failed(source),
            _ => {
                self.journal.completed(&[]);
                self.journal.proof = None;
            }
        }
        match recovered {
            Ok(recovered) => {
                recovered.iter().for_each(|recovered| self.reader.counters.note_recovery(recovered));
                self.report(slot, generation, &Incident::Recovered { recovered, took_ns });
                Ok(true)
            }
            Err(kind) => {
                self.reader.counters.failed_recoveries += u64::from(matches!(kind, ErrorKind::Corrupt { .. }));
                let failed = Incident::RecoveryFailed { kind: kind.clone(), took_ns };
                self.report(slot, generation, &failed);
                Err(kind)
            }
        }
    }

    /// Returns the proof that `owner`, the owner of a taken lock, is dead; `None` if it is alive, gave its slot back,
    /// or cannot be probed while there is still time to probe again. 1 round trip.
    async fn prove_dead(
        &mut self,
        lane: &mut dyn Lane,
        owner: OwnerId,
        progress: WaitProgress,
    ) -> Result<Option<FenceProof>, FabricError> {
        let slot = owner.slot().filter(|slot| *slot < self.table.config().max_clients && owner != self.owner);
        let (Some(slot), true) = (slot, self.failure_detector.liveness.is_some()) else { return Ok(None) };
        let proof = match read_slot(lane, &self.table, slot).await?.word {
            None | Some(SlotWord { state: SlotState::Free, .. }) => None,
            Some(SlotWord { generation, .. }) => match self.probe(slot, generation).await {
                // Most owners are alive and release their lock in time: this is no reason to fail, nor does it count as
                // an answer.
                Err(error) if progress != WaitProgress::Expired && error.effect() == Effect::None => return Ok(None),
                answer => answer?,
            },
        };
        if proof.is_none() {
            self.failure_detector.next_probe_ns = lane.now_ns().saturating_add(PROBE_INTERVAL_NS);
        }
        Ok(proof)
    }

    /// Asks whether the client that took `slot` under `generation` is dead, and counts the answer.
    async fn probe(&mut self, slot: u16, generation: u64) -> Result<Option<FenceProof>, FabricError> {
        self.reader.counters.suspicions += 1;
        self.report(slot, generation, &Incident::Suspected);
        let Some(liveness) = &mut self.failure_detector.liveness else { return Ok(None) };
        let proof = poll_fn(|cx| liveness.poll_fence(slot, generation, cx)).await?;
        if proof.is_none() {
            self.reader.counters.false_suspicions += 1;
            self.report(slot, generation, &Incident::FoundAlive);
        }
        Ok(proof)
    }
}
