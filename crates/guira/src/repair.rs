//! Recovering the dead on request, and killing who stands in everybody's way.

use std::time::Duration;

use guira_fabric::{FenceProof, Lane, Region};
use guira_fabric_shm::{KillError, ProcessIdentity, ProcessState, ShmRegion};
use guira_fabric_tcp::wire::FenceAnswer;
use guira_layout::{SlotState, SlotWord};
use guira_rcuckoo::{
    Counters, Incident, Observer, Recovered, SlotClient, SlotInfo, add_totals, read_slot, recover, slots,
};

use crate::blocking::block_on;
use crate::fabric::FabricRegion;
use crate::options::Access;
use crate::store::Inner;
use crate::{Error, OperationError, Store};

/// Between two looks whether a killed client's slot is free.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// How long others may have the slot of a client that is dead already: far longer than to ask about it, and than most
/// recoveries.
const OTHERS_AT_WORK: Duration = Duration::from_millis(500);

/// What [`Store::recover`] found, and did. Serialized as it stands.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Repair {
    /// The dead clients that were recovered, by slot.
    pub recovered: Vec<RecoveredClient>,
    /// The dead clients that could not be.
    pub failed: Vec<FailedRecovery>,
    /// The clients that live, or that others are recovering, by slot: they keep what they hold.
    pub living: Vec<LivingClient>,
}

/// A dead client that was recovered. Source: R-RECOVER-3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RecoveredClient {
    /// Its slot, from 0, which is free now.
    pub slot: u16,
    /// Under which generation it had the slot.
    pub generation: u64,
    /// Its process id, in the namespace of that process.
    pub process: u64,
    /// Rows of the commit it had begun, all of which are written now; 0 if it had begun none. Source: R-RECOVER-2.
    pub replayed_rows: u64,
    /// Those of them that were half written.
    pub torn_rows: u64,
    /// Locks that it held.
    pub locks: u64,
    /// Chunks that it owned, or was about to own or give back; a run counts as one.
    pub chunks: u64,
    /// Whether somebody else had begun to recover it, and died. Source: R-RECOVER-4.
    pub was_begun: bool,
}

/// A dead client that could not be recovered: its locks stay held.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FailedRecovery {
    /// Its slot, from 0.
    pub slot: u16,
    /// Why.
    pub reason: String,
}

/// A client that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LivingClient {
    /// Its slot, from 0.
    pub slot: u16,
    /// Its process id, in the namespace of that process.
    pub process: u64,
    /// Whether it has a commit under way.
    pub committing: bool,
    /// Whether its process is stopped, as far as this one can tell: a stopped client is alive. Source: R-RECOVER-1.
    pub stopped: bool,
}

/// What [`Store::kill_client`] did. Serialized as it stands.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Killed {
    /// The slot, from 0.
    pub slot: u16,
    /// The process id of its client.
    pub process: u64,
    /// Whether that process was killed, or its session dropped; false if it was dead already.
    pub killed: bool,
    /// What was left to do for its client; `None` if somebody else was faster, or it could not be recovered.
    pub recovered: Option<RecoveredClient>,
    /// Why it could not be recovered, if it could not: its locks stay held.
    pub failed: Option<String>,
}

impl Store {
    /// Recovers every client that is dead, at once, while others work: completes the commit it had begun, releases its
    /// locks, gives back its chunks and its slot. Nobody has to call this: whoever meets what a dead client left does
    /// the same. `progress` is called after each slot in use, with the slots looked at so far and all of them.
    ///
    /// A client whose process is stopped is alive, and keeps what it holds: [`Store::kill_client`]. Dead clients of
    /// tables whose locks name nobody (preset `paper`), or without redo records, are among the `failed`.
    ///
    /// Round trips: 1 a slot, 1 for each that is in use, and those of [`guira_rcuckoo::recover`] for each of the dead.
    /// Source: R-RECOVER-1 to R-RECOVER-6.
    ///
    /// # Errors
    /// `ReadOnly` if the table was opened so; the fabric's. What was recovered is.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-recover-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// let _client = store.client()?;
    /// let repair = store.recover(&mut |_, _| ())?;
    /// assert_eq!((repair.recovered.len(), repair.failed.len(), repair.living.len()), (0, 0, 1));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn recover(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Repair, Error> {
        let inner = &*self.inner;
        inner.refuse_read_only()?;
        let fabric = inner.fabric("cannot recover the clients of");
        let region = inner.region()?;
        let used = block_on(slots(&mut region.lane(), &inner.table)).map_err(&fabric)?;
        let mut repair = Repair::default();
        let total = used.len() as u64;
        for (done, SlotInfo { slot, .. }) in (1..).zip(used) {
            self.recover_slot(&region, slot, &mut repair)?;
            progress(done, total);
        }
        Ok(repair)
    }

    /// Recovers the client of `slot` if it is dead, and notes what became of it.
    fn recover_slot(&self, region: &FabricRegion, slot: u16, repair: &mut Repair) -> Result<(), Error> {
        let inner = &*self.inner;
        let fabric = inner.fabric("cannot recover the clients of");
        let hold = region.hold(slot).map_err(&fabric)?;
        // Under the hold, if there is one: a client that closed in between is not dead.
        let info = block_on(read_slot(&mut region.lane(), &inner.table, slot)).map_err(&fabric)?;
        let generation = match info.word {
            Some(SlotWord { state: SlotState::Free, .. }) => return Ok(()),
            Some(SlotWord { generation, .. }) => generation,
            None => {
                let reason = "its state word is damaged".to_owned();
                repair.failed.push(FailedRecovery { slot, reason });
                return Ok(());
            }
        };
        let Some(hold) = hold else {
            let stopped = identity(&info.client).state() == ProcessState::Stopped;
            let (process, committing) = (info.client.process, info.seal.is_sealed());
            repair.living.push(LivingClient { slot, process, committing, stopped });
            return Ok(());
        };
        match inner.recover_proved(region, &FenceProof::new(slot, generation, hold)) {
            Ok(Some(recovered)) => {
                repair.recovered.push(RecoveredClient::new(slot, generation, info.client.process, &recovered));
            }
            Ok(None) if inner.table.is_recoverable() => {}
            Ok(None) => {
                let reason = "the table keeps no redo records, or its locks name nobody (preset paper)".to_owned();
                repair.failed.push(FailedRecovery { slot, reason });
            }
            Err(error @ OperationError::Corrupt { .. }) => {
                repair.failed.push(FailedRecovery { slot, reason: error.to_string() });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Kills the process of the client that has `slot` ([`crate::ClientStat::slot`], and what `Busy` names), with all
    /// of its other clients, waits up to `patience` until the kernel says that it is dead, and recovers the client. For
    /// a process that is stopped, or otherwise stands still in the middle of a change, and will not go on: a timeout
    /// never decides that. If the client is dead already it is only recovered.
    ///
    /// The process is stopped first, and killed only if it is the very one that took the slot and still has it; nothing
    /// is killed by its number alone. It must be visible here: of the same pid namespace, and this user may signal it.
    /// Over `tcp://` no process is killed: the memory node drops the session that has the slot, with all other slots it
    /// has, and its clients learn that they were `Fenced`. The node does not know generations: if the client closed and
    /// another one took the slot within the round trip before that, the other one is dropped.
    ///
    /// Round trips: 3, and those of [`guira_rcuckoo::recover`]. Source: R-RECOVER-1.
    ///
    /// # Errors
    /// `NoClient` if nobody has the slot; `Kill` if its process was not killed, or does not end in time: nothing in the
    /// table was changed; `ReadOnly` if the table was opened so; the fabric's, after which the process may be dead.
    pub fn kill_client(&self, slot: u16, patience: Duration) -> Result<Killed, Error> {
        let inner = &*self.inner;
        inner.refuse_read_only()?;
        let fabric = inner.fabric("cannot kill a client of");
        let nobody = || Error::NoClient { url: inner.url.clone(), slot };
        if slot >= inner.table.config().max_clients {
            return Err(nobody());
        }
        let region = &inner.region()?;
        let mut lane = region.lane();
        let info = block_on(read_slot(&mut lane, &inner.table, slot)).map_err(&fabric)?;
        let generation = info.word.filter(|word| word.state != SlotState::Free).ok_or_else(nobody)?.generation;
        let process = info.client.process;
        let mut hold = region.hold(slot).map_err(&fabric)?;
        let mut killed = false;
        if hold.is_none() {
            let kill = |source| Error::Kill { url: inner.url.clone(), slot, source };
            let (wait, otherwise) = match region {
                FabricRegion::Shm(region) => {
                    inner.kill_process(region, &mut lane, &info, generation, patience).map_err(kill)?
                }
                FabricRegion::Tcp(region) => match region.fence(slot).map_err(&fabric)? {
                    FenceAnswer::Dropped => (patience, KillError::Deaf { pid: process }),
                    // Somebody has it beside the node, or had it for a moment.
                    FenceAnswer::NoSession => (patience.min(OTHERS_AT_WORK), KillError::Foreign { pid: process }),
                },
            };
            killed = matches!(otherwise, KillError::Deaf { .. });
            if killed {
                let table = &inner.url;
                tracing::warn!(target: "guira", %table, slot, generation, process, "client killed on request");
            }
            let deadline_ns = lane.now_ns().saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
            while hold.is_none() {
                std::thread::sleep(LOOK_INTERVAL);
                hold = region.hold(slot).map_err(&fabric)?;
                let word = block_on(read_slot(&mut lane, &inner.table, slot)).map_err(&fabric)?.word;
                if word.is_some_and(|word| word.generation != generation || word.state == SlotState::Free) {
                    return Ok(Killed { slot, process, killed, recovered: None, failed: None });
                }
                if hold.is_none() && lane.now_ns() >= deadline_ns {
                    return Err(kill(otherwise));
                }
            }
        }
        let Some(hold) = hold else { return Err(nobody()) };
        let (recovered, failed) = match inner.recover_proved(region, &FenceProof::new(slot, generation, hold)) {
            Ok(recovered) => (recovered, None),
            Err(error @ OperationError::Corrupt { .. }) => (None, Some(error.to_string())),
            Err(error) => return Err(error.into()),
        };
        let recovered = recovered.map(|recovered| RecoveredClient::new(slot, generation, process, &recovered));
        Ok(Killed { slot, process, killed, recovered, failed })
    }
}

impl RecoveredClient {
    fn new(slot: u16, generation: u64, process: u64, recovered: &Recovered) -> RecoveredClient {
        let Recovered { replayed_rows, torn_rows, locks, chunks, was_begun } = *recovered;
        RecoveredClient { slot, generation, process, replayed_rows, torn_rows, locks, chunks, was_begun }
    }
}

impl Inner {
    pub(crate) fn refuse_read_only(&self) -> Result<(), Error> {
        match self.options.access {
            Access::ReadOnly => Err(Error::ReadOnly { url: self.url.clone() }),
            Access::ReadWrite => Ok(()),
        }
    }

    /// Kills the process of the client that `info` tells of, if it still has its slot under `generation`. How long
    /// others may have the slot then, and the error if it is longer.
    fn kill_process(
        &self,
        region: &ShmRegion,
        lane: &mut dyn Lane,
        info: &SlotInfo,
        generation: u64,
        patience: Duration,
    ) -> Result<(Duration, KillError), KillError> {
        let (slot, process) = (info.slot, identity(&info.client));
        // Its words are about the client of this generation as long as the generation is there.
        let still_has = || {
            let word = block_on(read_slot(lane, &self.table, slot)).ok().and_then(|info| info.word);
            // Perhaps by somebody else: this process may have become another program, which has no part in it.
            let is_held = matches!(region.hold(slot), Ok(None)) && region.may_be_held_by(&process);
            is_held && word == Some(SlotWord { state: SlotState::Live, generation })
        };
        match process.kill(patience, still_has) {
            Ok(()) => Ok((patience, KillError::Deaf { pid: process.pid })),
            // Whoever asks about a dead client, or recovers it, has its slot for a moment.
            Err(ended @ KillError::Ended { .. }) => Ok((patience.min(OTHERS_AT_WORK), ended)),
            Err(error) => Err(error),
        }
    }

    /// Recovers the client whose death `proof` proves; tells of it, and counts it. // [R-RECOVER-3] [R-TOTALS-1]
    pub(crate) fn recover_proved(
        &self,
        region: &FabricRegion,
        proof: &FenceProof,
    ) -> Result<Option<Recovered>, OperationError> {
        let (mut lane, mut events) = (region.lane(), self.events.clone());
        let (slot, generation, began_ns) = (proof.slot(), proof.generation(), lane.now_ns());
        events.observe(slot, generation, &Incident::RecoveryBegun);
        let result = block_on(recover(&mut lane, &self.table, proof));
        let took_ns = lane.now_ns().saturating_sub(began_ns);
        let mut counters = Counters::default();
        match &result {
            Ok(recovered) => {
                recovered.iter().for_each(|recovered| counters.note_recovery(recovered));
                events.observe(slot, generation, &Incident::Recovered { recovered: *recovered, took_ns });
            }
            Err(error) => {
                counters.failed_recoveries += u64::from(matches!(error, OperationError::Corrupt { .. }));
                events.observe(slot, generation, &Incident::RecoveryFailed { error: error.clone(), took_ns });
            }
        }
        // What was recovered is, whether it is counted or not.
        let _ = block_on(add_totals(&mut lane, &self.table, &counters));
        result
    }
}

/// This process, as a slot tells it.
pub(crate) fn own_slot_client(since_unix_ns: u64) -> SlotClient {
    let ProcessIdentity { pid, start_ticks, pid_namespace, boot } = ProcessIdentity::current();
    SlotClient { process: pid, since_unix_ns, identity: [start_ticks, pid_namespace, boot] }
}

fn identity(client: &SlotClient) -> ProcessIdentity {
    let [start_ticks, pid_namespace, boot] = client.identity;
    ProcessIdentity { pid: client.process, start_ticks, pid_namespace, boot }
}
