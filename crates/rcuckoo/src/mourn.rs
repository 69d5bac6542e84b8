//! When a client asks whether somebody it waits for is alive, and what it does if not.
//!
//! Invariants: an answer decides who is dead, and the time only when to ask [R-RECOVER-1]; everything is released
//! before somebody else is recovered [R-RECOVER-5].

use std::future::poll_fn;

use guira_fabric::{FabricError, FenceProof, Lane, Liveness};
use guira_layout::{OwnerId, SlotState, SlotWord};

use crate::journal::Flight;
use crate::recover::{Dead, recover_dead};
use crate::{Client, Error, Operation, read_slot};

/// Pauses for one lock before its owner is asked about: with the backoff's default they add up to 0.05 ms, and nearly
/// every wait is shorter.
const PATIENT_PAUSES: u32 = 10;
/// Between two questions that found the owner alive. One is a few system calls.
const QUESTION_NS: u64 = 1_000_000;

/// Whom a client asks, and when.
#[derive(Debug, Default)]
pub(crate) struct Mourner {
    /// Whom; a client without it recovers nobody.
    liveness: Option<Box<dyn Liveness>>,
    /// Not before this moment of the lane's clock.
    next_ns: u64,
}

/// How far a wait has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// After so many pauses.
    Pauses(u32),
    /// At its deadline.
    Over,
}

impl Mourner {
    pub(crate) fn new(liveness: Box<dyn Liveness>) -> Mourner {
        Mourner { liveness: Some(liveness), next_ns: 0 }
    }

    fn is_due(&self, now_ns: u64, patience: Patience) -> bool {
        let is_late = match patience {
            Patience::Pauses(pauses) => pauses >= PATIENT_PAUSES,
            Patience::Over => true,
        };
        self.liveness.is_some() && is_late && now_ns >= self.next_ns
    }
}

impl Client {
    /// Whether it is time to ask about somebody who stands in this client's way. // [R-RECOVER-1]
    pub(crate) fn may_mourn(&self, now_ns: u64, patience: Patience) -> bool {
        let leaves_slots = self.table.is_recoverable() || self.table.is_repairable();
        self.mourner.is_due(now_ns, patience) && leaves_slots
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
        if !self.may_mourn(lane.now_ns(), Patience::Over) {
            return Ok(0);
        }
        let mut dead = 0;
        for owner in owners {
            dead += usize::from(self.recover_if_dead(lane, *owner, operation).await?);
        }
        self.mourner.next_ns = lane.now_ns().saturating_add(QUESTION_NS.saturating_mul(owners.len() as u64));
        Ok(dead)
    }

    /// Recovers `owner` if it is dead: true then, and this client holds no lock any more. Round trips: 1 to ask, and
    /// those of [`crate::recover`]. // [R-RECOVER-1] [R-RECOVER-5]
    pub(crate) async fn recover_if_dead(
        &mut self,
        lane: &mut dyn Lane,
        owner: OwnerId,
        operation: Operation,
    ) -> Result<bool, Error> {
        let fabric = Error::fabric(operation);
        let Some(proof) = self.prove_dead(lane, owner).await.map_err(&fabric)? else { return Ok(false) };
        self.release_held(lane).await.map_err(&fabric)?;
        let dead = Dead::of(&proof);
        // From here on a batch of the recovery may be in flight, if this operation is dropped.
        self.journal.proof = Some(proof);
        self.journal.flight = Flight::Recovery;
        let recovered = recover_dead(lane, &self.table, dead, operation).await;
        match &recovered {
            Err(Error::Fabric { source, .. }) => self.journal.failed(source),
            _ => {
                self.journal.landed(&[]);
                self.journal.proof = None;
            }
        }
        if let Some(recovered) = recovered? {
            self.counters.recoveries += 1;
            self.counters.replays += u64::from(recovered.replayed_rows > 0);
        }
        Ok(true)
    }

    /// The proof that `owner`, whose lock was met, is dead; `None` if it lives, or gave its slot back. 1 round trip.
    async fn prove_dead(&mut self, lane: &mut dyn Lane, owner: OwnerId) -> Result<Option<FenceProof>, FabricError> {
        let slot = owner.slot().filter(|slot| *slot < self.table.config().max_clients && owner != self.owner);
        let (Some(slot), Some(liveness)) = (slot, &mut self.mourner.liveness) else { return Ok(None) };
        let proof = match read_slot(lane, &self.table, slot).await?.word {
            None | Some(SlotWord { state: SlotState::Free, .. }) => None,
            Some(SlotWord { generation, .. }) => poll_fn(|cx| liveness.poll_fence(slot, generation, cx)).await?,
        };
        if proof.is_none() {
            self.mourner.next_ns = lane.now_ns().saturating_add(QUESTION_NS);
        }
        Ok(proof)
    }
}
