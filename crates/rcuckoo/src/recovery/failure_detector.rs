//! When a client asks whether somebody it waits for is alive, and what it does if not.
//!
//! Invariants: an answer decides who is dead, and the time only when to ask [R-RECOVER-1]; everything is released
//! before somebody else is recovered [R-RECOVER-5].

use std::fmt;
use std::future::poll_fn;

use guira_fabric::{Effect, FabricError, FenceProof, Lane, Liveness};
use guira_layout::{LockId, OwnerId, SlotState, SlotWord};

use crate::locks::journal::Flight;
use crate::recovery::recover::{DeadClient, recover_dead};
use crate::{Client, Error, ErrorKind, Operation, Recovered, SlotClient, read_slot};

/// Pauses for one lock before its owner is asked about: with the backoff's default they add up to 0.05 ms, and nearly
/// every wait is shorter.
const PAUSES_BEFORE_PROBE: u32 = 10;
/// Between two questions that found the owner alive. One is a few system calls.
const PROBE_INTERVAL_NS: u64 = 1_000_000;

/// What a client has to do with somebody who stands in its way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incident {
    /// It is asked whether the other one lives.
    Suspected,
    /// It does.
    FoundAlive,
    /// It is dead, and its recovery begins.
    RecoveryBegun,
    /// It is recovered; `None` if there was nothing to do: it gave its slot back before it ended.
    Recovered {
        /// What was left to do.
        recovered: Option<Recovered>,
        /// How long that took, in nanoseconds of the lane's clock.
        took_ns: u64,
    },
    /// It could not be recovered, or not in whole.
    RecoveryFailed {
        /// Why.
        kind: ErrorKind,
        /// How long that took, in nanoseconds of the lane's clock.
        took_ns: u64,
    },
}

/// What a client does about a lock that names nobody, in preset `paper`, when it presumes that its holder is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockIncident {
    /// The lock stayed taken for the failure timeout, and no row under it changed. Source: R-REPAIR-1.
    Suspected,
    /// Before the client had the lease, the lock was free, or a row under it had changed: the suspicion was wrong, or
    /// somebody else has repaired. Source: R-REPAIR-5.
    Withdrawn,
    /// The client took the lease of the lock's region, and its repair begins. Source: R-REPAIR-3.
    Leased {
        /// The region.
        region: u8,
        /// Whose lease it was, and who counts as failed, too, if it was not free. Source: R-REPAIR-4.
        revoked: Option<OwnerId>,
    },
    /// What the lock guards is in this state, 1 to 4, and a step out of it follows. Source: R-REPAIR-6, R-REPAIR-7.
    Found {
        /// The state, by its number in the paper.
        state: u8,
    },
    /// The lock was cleared, and the lease returned. Source: R-REPAIR-8.
    Reclaimed {
        /// How long that took from the suspicion on, in nanoseconds of the lane's clock.
        took_ns: u64,
    },
    /// The repair did not come to an end in its bound of steps: others change these rows all the time.
    GivenUp,
    /// The fabric failed in the middle; the lease, if it was taken, is to be revoked.
    Failed {
        /// Why.
        error: FabricError,
    },
}

/// Learns of incidents at the moment they happen, which is rare: nothing is told on the way of an operation that meets
/// nobody.
pub trait Observer: Send + Sync {
    /// This `incident` concerns the client that took `slot` under `generation`. Must not wait.
    fn observe(&mut self, slot: u16, generation: u64, incident: &Incident);

    /// This `incident` concerns whoever holds `lock`, in a table whose locks name nobody. Must not wait.
    fn observe_lock(&mut self, lock: LockId, incident: &LockIncident);
}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Whom a client asks, and when.
#[derive(Debug, Default)]
pub(crate) struct FailureDetector {
    /// Whom; a client without it recovers nobody.
    liveness: Option<Box<dyn Liveness>>,
    /// Not before this moment of the lane's clock.
    next_probe_ns: u64,
    /// Who recovers the dead, for those who wait for him.
    process: SlotClient,
}

/// How far a wait has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitProgress {
    /// After so many pauses.
    Pauses(u32),
    /// At its deadline.
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

    /// Whether it is time to ask about somebody who stands in this client's way. // [R-RECOVER-1]
    pub(crate) fn may_probe(&self, now_ns: u64, progress: WaitProgress) -> bool {
        let has_slots_to_recover = self.table.is_recoverable() || self.table.is_repairable();
        self.failure_detector.is_due(now_ns, progress) && has_slots_to_recover
    }

    /// Recovers those of `owners` who are dead, for a client that needs what they have; says how many. Asks no more
    /// than once a millisecond for each. Round trips: 1 for each, and those of [`crate::recover`] for each of the dead.
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
        if !self.may_probe(lane.now_ns(), WaitProgress::Expired) {
            return Ok(0);
        }
        let mut dead = 0;
        for owner in owners {
            let recovered = self.recover_if_dead(lane, *owner, WaitProgress::Expired).await;
            dead += usize::from(recovered.map_err(|kind| kind.during(operation))?);
        }
        self.failure_detector.next_probe_ns =
            lane.now_ns().saturating_add(PROBE_INTERVAL_NS.saturating_mul(owners.len() as u64));
        Ok(dead)
    }

    /// Recovers `owner` if it is dead: true then, and this client holds no lock any more. Round trips: 1 to ask, and
    /// those of [`crate::recover`]. // [R-RECOVER-1] [R-RECOVER-5]
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
        // From here on a batch of the recovery may be in flight, if this operation is dropped.
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

    /// The proof that `owner`, whose lock was met, is dead; `None` if it lives, gave its slot back, or cannot be asked
    /// about as long as there is time to ask again. 1 round trip.
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
                // Most owners are alive, and release their lock in time: no reason to fail, nor to count as an answer.
                Err(error) if progress != WaitProgress::Expired && error.effect() == Effect::None => return Ok(None),
                answer => answer?,
            },
        };
        if proof.is_none() {
            self.failure_detector.next_probe_ns = lane.now_ns().saturating_add(PROBE_INTERVAL_NS);
        }
        Ok(proof)
    }

    /// Asks whether the client that took `slot` under `generation` is dead, and notes the answer.
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
