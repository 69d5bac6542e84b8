//! Recovering dead clients on request, and killing clients that block others.

use std::time::{Duration, Instant};

use guira_fabric::{FenceProof, Lane, Region, SlotHold};
use guira_fabric_shm::{KillError, ProcessIdentity, ProcessState, ShmRegion};
use guira_layout::{LockId, SlotState, SlotWord};
use guira_network::wire::FenceReply;
use guira_rcuckoo::{
    Counters, Incident, Observer, Recovered, SlotClient, SlotInfo, add_totals, free_unowned_locks, read_slot, recover,
    slots, unowned_locks,
};

use crate::fabric::FabricRegion;
use crate::options::Access;
use crate::store::{Inner, unix_ns};
use crate::wait::block_on;
use crate::{AdminError, Error, OpenError, OperationError, OperationErrorKind, Store};

/// The interval at which a killed client's slot is probed.
const PROBE_INTERVAL: Duration = Duration::from_millis(1);
/// The longest time that another process may hold the slot of a client that is dead already: far longer than a liveness
/// check takes, and than most recoveries.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(500);

/// The report of [`Store::recover`]. It is serialized with these names.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct RecoveryReport {
    /// The dead clients that were recovered, by slot.
    pub recovered: Vec<RecoveredClient>,
    /// The dead clients that could not be recovered, and those that could not be checked ([`Store::slot_lock`]).
    pub failed: Vec<FailedRecovery>,
    /// The clients that are alive, or that another process is recovering, by slot: they keep what they hold.
    pub living: Vec<LivingClient>,
    /// Locks with the number of a client slot that the table does not have: they were damaged, and are free now.
    /// Source: R-LOCK-9.
    pub freed_locks: Vec<u64>,
    /// Such locks that stay held, because a client that is alive, or could not be recovered, may have held them before
    /// they were damaged: operations that need them fail with [`crate::OperationErrorKind::Corrupt`].
    pub damaged_locks: Vec<u64>,
}

/// A dead client that was recovered. Source: R-RECOVER-3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RecoveredClient {
    /// Its slot, from 0, which is free now.
    pub slot: u16,
    /// The slot's generation while the client had it.
    pub generation: u64,
    /// Its process id, in that process's namespace; if a recovery had begun before, that of the recovering process.
    pub process: u64,
    /// Rows of its unfinished commit, all of which are written now; 0 if there was none. Source: R-RECOVER-2.
    pub replayed_rows: u64,
    /// Rows among them that were half written.
    pub torn_rows: u64,
    /// Locks that it held.
    pub locks: u64,
    /// Chunks that it owned, or was about to own or give back; a run counts as one chunk.
    pub chunks: u64,
    /// Whether another process had begun to recover it, and died. Source: R-RECOVER-4.
    pub was_begun: bool,
}

/// A dead client that could not be recovered: its locks stay held.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FailedRecovery {
    /// Its slot, from 0.
    pub slot: u16,
    /// The reason.
    pub reason: String,
}

/// A client that is alive, or a dead one that another process is recovering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LivingClient {
    /// Its slot, from 0.
    pub slot: u16,
    /// Its process id, in that process's namespace; during recovery, that of the recovering process.
    pub process: u64,
    /// Whether a commit is in progress.
    pub committing: bool,
    /// Whether it is dead, and `process` is recovering it. Source: R-RECOVER-4.
    pub recovering: bool,
    /// Whether the process is stopped, as far as this process can see: a stopped client is alive. Source: R-RECOVER-1.
    pub stopped: bool,
    /// Whether it is unknown if the process is stopped, because it runs in another container or on another host.
    pub unseen: bool,
    /// Whether its control group is frozen, as far as this process can see: a frozen client is alive, and no signal but
    /// SIGKILL reaches it. Source: R-RECOVER-1.
    pub frozen: bool,
}

impl LivingClient {
    fn of(info: &SlotInfo, slot_state: SlotState) -> LivingClient {
        let process = identity(&info.client);
        let state = process.state();
        LivingClient {
            slot: info.slot,
            process: info.client.process,
            committing: info.seal.is_sealed(),
            recovering: slot_state == SlotState::Recovering,
            stopped: state == ProcessState::Stopped,
            unseen: state == ProcessState::Unknown,
            frozen: process.is_frozen(),
        }
    }
}

/// The result of [`Store::kill_client`]. It is serialized with these names.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Killed {
    /// The slot, from 0.
    pub slot: u16,
    /// The process id of its client, or of the process that was recovering it.
    pub process: u64,
    /// Whether that process was killed, or its session dropped; false if it was dead already.
    pub killed: bool,
    /// The recovery of its client; `None` if another process was faster, or recovery failed.
    pub recovered: Option<RecoveredClient>,
    /// The reason, if recovery failed: its locks stay held.
    pub failed: Option<String>,
}

impl Store {
    /// Recovers all dead clients now, while other clients go on: completes their unfinished commits, releases their
    /// locks, and gives back their chunks and slots. This call is optional: every client recovers the dead clients it
    /// comes across. `progress` is called after each slot in use, with the number of slots done and the total.
    ///
    /// Then damaged locks, whose owner cannot exist, are freed, if no client is alive.
    ///
    /// A client whose process is stopped is alive, and keeps what it holds: see [`Store::kill_client`]. Dead clients of
    /// tables whose locks have no owners (preset `paper`), or without redo records, are among the `failed`.
    ///
    /// Round trips: 1 for 256 slots, 1 for each that is in use, and those of the recovery of each dead
    /// client; 1 for 512 lock words, and 2 or more for each damaged lock. Source: R-RECOVER-1 to R-RECOVER-6, R-LOCK-9.
    ///
    /// # Errors
    /// `ReadOnly` if the table was opened for reading, `ReadOnlyGrant` if its memory node lets this client only read;
    /// `Destroyed` if the table was destroyed and a client is dead; `Fabric`. Clients recovered before the error stay
    /// recovered.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// let _client = store.client()?;
    /// let report = store.recover(&mut |_, _| ())?;
    /// assert_eq!((report.recovered.len(), report.failed.len(), report.living.len()), (0, 0, 1));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn recover(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<RecoveryReport, Error> {
        let inner = &*self.inner;
        inner.refuse_read_only()?;
        let fabric = inner.fabric("cannot recover the clients of");
        let region = inner.region()?;
        inner.refuse_read_only_grant(&region)?;
        // Read before the slots: a client that takes a slot later never held these locks. // [R-LOCK-9]
        let unowned = block_on(unowned_locks(&mut region.lane(), &inner.table)).map_err(&fabric)?;
        let used = block_on(slots(&mut region.lane(), &inner.table)).map_err(&fabric)?;
        let mut report = RecoveryReport::default();
        let total = used.len() as u64;
        for (done, SlotInfo { slot, .. }) in (1..).zip(used) {
            self.recover_slot(&region, slot, &mut report)?;
            progress(done, total);
        }
        let numbers = |locks: Vec<LockId>| locks.into_iter().map(|lock| lock.0).collect();
        if report.living.is_empty() && report.failed.is_empty() {
            let freed = block_on(free_unowned_locks(&mut region.lane(), &inner.table, &unowned));
            report.freed_locks = numbers(freed.map_err(&fabric)?);
        } else {
            report.damaged_locks = numbers(unowned);
        }
        Ok(report)
    }

    /// Recovers the client of `slot` if it is dead, and adds the result to `report`.
    fn recover_slot(&self, region: &FabricRegion, slot: u16, report: &mut RecoveryReport) -> Result<(), Error> {
        let inner = &*self.inner;
        let fabric = inner.fabric("cannot recover the clients of");
        let hold = region.hold(slot).map_err(&fabric)?;
        // Read under the hold, if there is one: a client that closed in between is not dead.
        let info = block_on(read_slot(&mut region.lane(), &inner.table, slot)).map_err(&fabric)?;
        let (state, generation) = match info.word {
            Some(SlotWord { state: SlotState::Free, .. }) => return Ok(()),
            Some(SlotWord { state, generation }) => (state, generation),
            None => {
                let reason = "its state word is damaged".to_owned();
                report.failed.push(FailedRecovery { slot, reason });
                return Ok(());
            }
        };
        let Some(hold) = hold else {
            // A process that is not a client may keep others from checking. // [R-SLOT-2]
            if let Some(lock) = inner.slot_lock_on(region, slot..slot.saturating_add(1))? {
                report
                    .failed
                    .push(FailedRecovery { slot, reason: format!("cannot check whether it is alive: {lock}") });
                return Ok(());
            }
            report.living.push(LivingClient::of(&info, state));
            return Ok(());
        };
        let (proof, own) = (FenceProof::new(slot, generation, hold), own_slot_client(unix_ns()));
        match block_on(inner.recover_dead(region, &proof, &own)) {
            Ok(Some(recovered)) => {
                report.recovered.push(RecoveredClient::new(slot, generation, info.client.process, &recovered));
            }
            Ok(None) if inner.table.is_recoverable() => {}
            Ok(None) => {
                let reason = "the table keeps no redo records, or its locks have no owners (preset paper)".to_owned();
                report.failed.push(FailedRecovery { slot, reason });
            }
            Err(error @ OperationError { kind: OperationErrorKind::Corrupt { .. }, .. }) => {
                report.failed.push(FailedRecovery { slot, reason: error.to_string() });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Returns the client of `slot`, the number in `Busy` errors; `None` if the slot is free or damaged. Does not check
    /// whether the client is alive. 1 round trip, and a few reads of /proc.
    ///
    /// # Errors
    /// `Fabric`. Nothing was changed.
    pub fn client_in(&self, slot: u16) -> Result<Option<LivingClient>, Error> {
        let inner = &*self.inner;
        if slot >= inner.table.config().max_clients {
            return Ok(None);
        }
        let read = block_on(read_slot(&mut inner.region()?.lane(), &inner.table, slot));
        let info = read.map_err(inner.fabric("cannot read a client of"))?;
        let word = info.word.filter(|word| word.state != SlotState::Free);
        Ok(word.map(|word| LivingClient::of(&info, word.state)))
    }

    /// Kills the process of the client that has `slot` ([`crate::admin::ClientStat::slot`], and the number in `Busy`
    /// errors), with all of its other clients, waits up to `timeout` until the kernel confirms its death, and recovers
    /// the client. It is for a process that is stopped, or hangs in the middle of a change, and will not continue: no
    /// client ever decides that by a timeout. A client that is dead already is only recovered; if another process is
    /// recovering it, and does not finish within half a second, that process is killed instead.
    ///
    /// The process is killed only if it is provably the one that took the slot, or recovers its client, and still has
    /// it: by process id, start time, boot and namespace, and because the kernel reports the slot as locked. It must be
    /// visible here: in the same pid namespace, and this user may signal it. Concurrent calls are safe.
    ///
    /// Over `tcp://` no process is killed: the memory node drops the session that has the slot, with all other slots it
    /// has, and its clients get `Fenced`. The node does not know generations: if the client closed and another one took
    /// the slot within the last round trip, the other one is dropped.
    ///
    /// Takes at most twice `timeout` and half a second. Round trips: 4, one for each millisecond of waiting, and those
    /// of the recovery. Source: R-RECOVER-1, R-RECOVER-4.
    ///
    /// # Errors
    /// `NoClient` if the slot is free; `Kill` if its process was not killed, or does not end in time, or has ended and
    /// another client has taken the slot: nothing in the table was changed, but after `KillError::Lingering`, and only
    /// then, the process ends later; `ReadOnly` if the table was opened for reading, `ReadOnlyGrant` if its memory node
    /// lets this client only read; `Fabric`, after which the process may be dead.
    pub fn kill_client(&self, slot: u16, timeout: Duration) -> Result<Killed, Error> {
        let inner = &*self.inner;
        inner.refuse_read_only()?;
        let no_client = || Error::Admin(AdminError::NoClient { url: inner.url.clone(), slot });
        if slot >= inner.table.config().max_clients {
            return Err(no_client());
        }
        let fabric = inner.fabric("cannot kill a client of");
        let region = &inner.region()?;
        inner.refuse_read_only_grant(region)?;
        let first = block_on(read_slot(&mut region.lane(), &inner.table, slot)).map_err(&fabric)?;
        let word = first.word.filter(|word| word.state != SlotState::Free).ok_or_else(no_client)?;
        let kill = KillRequest { inner, region, slot, word, target: first.client };
        // A process that checks or recovers a dead client holds its slot for a moment.
        let others = timeout.min(OTHERS_TIMEOUT);
        let mut killed = false;
        let mut holder = match word.state {
            SlotState::Recovering => kill.wait(others)?,
            SlotState::Live | SlotState::Free => kill.probe()?,
        };
        if let SlotHolder::Other(found) = holder {
            let result = match kill.is_unchanged(&found) {
                true => kill.end_client(timeout)?,
                false => Err(KillError::Ended { pid: kill.target.process }),
            };
            match result {
                Ok(()) => {
                    killed = true;
                    kill.log();
                    holder = kill.wait(timeout)?;
                }
                Err(KillError::Ended { .. }) => holder = kill.wait(others)?,
                // Killed by another process during the check, and about to end.
                Err(KillError::Unproven { .. }) if kill.ends_within(others) => holder = kill.wait(others)?,
                Err(source) => return Err(kill.error(source)),
            }
        }
        let process = kill.target.process;
        let hold = match holder {
            SlotHolder::Us(hold) => hold,
            SlotHolder::Released => return Ok(Killed { slot, process, killed, recovered: None, failed: None }),
            SlotHolder::Other(_) => return Err(kill.error(KillError::Ended { pid: process })),
        };
        let proof = FenceProof::new(slot, word.generation, hold);
        let (recovered, failed) = match block_on(inner.recover_dead(region, &proof, &own_slot_client(unix_ns()))) {
            Ok(recovered) => (recovered, None),
            Err(
                error @ (OperationError { kind: OperationErrorKind::Corrupt { .. }, .. }
                | OperationError { kind: OperationErrorKind::Destroyed, .. }),
            ) => (None, Some(error.to_string())),
            Err(error) => return Err(error.into()),
        };
        let recovered = recovered.map(|recovered| RecoveredClient::new(slot, word.generation, process, &recovered));
        Ok(Killed { slot, process, killed, recovered, failed })
    }
}

/// A request to kill the client of a slot.
struct KillRequest<'i> {
    inner: &'i Inner,
    region: &'i FabricRegion,
    slot: u16,
    /// The slot's word when the request began.
    word: SlotWord,
    /// The client in the slot at the same moment.
    target: SlotClient,
}

/// The current holder of the slot.
enum SlotHolder {
    /// This process: the client is dead.
    Us(SlotHold),
    /// None, or another client: the client was recovered.
    Released,
    /// Another process.
    Other(SlotInfo),
}

impl KillRequest<'_> {
    /// Probes the slot once. 1 round trip.
    fn probe(&self) -> Result<SlotHolder, Error> {
        let fabric = self.inner.fabric("cannot kill a client of");
        let hold = self.region.hold(self.slot).map_err(&fabric)?;
        let info = block_on(read_slot(&mut self.region.lane(), &self.inner.table, self.slot)).map_err(&fabric)?;
        let is_gone = |word: SlotWord| word.generation != self.word.generation || word.state == SlotState::Free;
        Ok(match hold {
            _ if info.word.is_some_and(is_gone) => SlotHolder::Released,
            Some(hold) => SlotHolder::Us(hold),
            None => SlotHolder::Other(info),
        })
    }

    /// Probes the slot until no other process has it, for up to `timeout`. 1 round trip for each probe.
    fn wait(&self, timeout: Duration) -> Result<SlotHolder, Error> {
        let start = Instant::now();
        loop {
            match self.probe()? {
                SlotHolder::Other(_) if start.elapsed() < timeout => std::thread::sleep(PROBE_INTERVAL),
                holder => return Ok(holder),
            }
        }
    }

    /// Whether the process ends within `timeout`.
    fn ends_within(&self, timeout: Duration) -> bool {
        let (process, start) = (identity(&self.target), Instant::now());
        while process.state() != ProcessState::Ended {
            if start.elapsed() >= timeout {
                return false;
            }
            std::thread::sleep(PROBE_INTERVAL);
        }
        true
    }

    /// Whether the content of the slot is unchanged.
    fn is_unchanged(&self, info: &SlotInfo) -> bool {
        (info.word, info.client) == (Some(self.word), self.target)
    }

    /// Kills the client's process, or has the memory node drop its session.
    fn end_client(&self, timeout: Duration) -> Result<Result<(), KillError>, Error> {
        let pid = self.target.process;
        Ok(match (self.region, self.region.session()) {
            (FabricRegion::Shm(region), _) => identity(&self.target).kill(timeout, || self.holds_slot(region)),
            // Regions that are not mapped belong to a session.
            (_, None) => Err(KillError::Ended { pid }),
            (_, Some(session)) => {
                match session.fence(self.slot).map_err(self.inner.fabric("cannot fence a client of"))? {
                    FenceReply::Dropped => Ok(()),
                    // A process beside the node has it, or had it for a moment.
                    FenceReply::NoSession => Err(KillError::Ended { pid }),
                }
            }
        })
    }

    /// Whether the target process has the slot. A live slot names the client that took it, and a slot in recovery the
    /// process that had proved the client dead when it wrote it: neither gives the slot up while it lives without
    /// changing its word. Only by executing another program it does; then another client may have the slot.
    fn holds_slot(&self, region: &ShmRegion) -> bool {
        let info = block_on(read_slot(&mut self.region.lane(), &self.inner.table, self.slot));
        let is_held = matches!(self.region.hold(self.slot), Ok(None));
        is_held && region.may_be_held_by(&identity(&self.target)) && info.is_ok_and(|it| self.is_unchanged(&it))
    }

    fn log(&self) {
        let (table, slot, generation, process) =
            (&self.inner.url, self.slot, self.word.generation, self.target.process);
        let recovering = self.word.state == SlotState::Recovering;
        tracing::warn!(target: "guira", %table, slot, generation, process, recovering, "client killed on request");
    }

    fn error(&self, source: KillError) -> Error {
        Error::Admin(AdminError::Kill { url: self.inner.url.clone(), slot: self.slot, source })
    }
}

impl RecoveredClient {
    fn new(slot: u16, generation: u64, process: u64, recovered: &Recovered) -> RecoveredClient {
        let Recovered { replayed_rows, torn_rows, locks, chunks, was_begun } = *recovered;
        RecoveredClient { slot, generation, process, replayed_rows, torn_rows, locks, chunks, was_begun }
    }
}

impl Inner {
    /// Fails with `ReadOnly` if the table was opened for reading only.
    pub(crate) fn refuse_read_only(&self) -> Result<(), Error> {
        match self.options.access {
            Access::ReadOnly => Err(Error::Open(OpenError::ReadOnly { url: self.url.clone() })),
            Access::ReadWrite => Ok(()),
        }
    }

    /// Fails with `ReadOnlyGrant` if the memory node of `region` lets this client only read.
    pub(crate) fn refuse_read_only_grant(&self, region: &FabricRegion) -> Result<(), Error> {
        if !region.is_granted_reads_only() {
            return Ok(());
        }
        let reason = match self.options.token_file {
            Some(_) => "the token of this client only allows reading",
            None => "its memory node serves it for reading only",
        };
        Err(Error::Open(OpenError::ReadOnlyGrant { url: self.url.clone(), reason }))
    }

    /// Whether nothing can be changed through `region`.
    pub(crate) fn may_only_read(&self, region: &FabricRegion) -> bool {
        self.options.access == Access::ReadOnly || region.is_granted_reads_only()
    }

    /// Recovers the client whose death `proof` proves, with events and counters. [R-RECOVER-3] [R-TOTALS-1]
    pub(crate) async fn recover_dead(
        &self,
        region: &FabricRegion,
        proof: &FenceProof,
        own: &SlotClient,
    ) -> Result<Option<Recovered>, OperationError> {
        let (mut lane, mut events) = (region.lane(), self.events.clone());
        let (slot, generation, began_ns) = (proof.slot(), proof.generation(), lane.now_ns());
        events.observe(slot, generation, &Incident::RecoveryBegun);
        let result = recover(&mut lane, &self.table, proof, own).await;
        let took_ns = lane.now_ns().saturating_sub(began_ns);
        let mut counters = Counters::default();
        match &result {
            Ok(recovered) => {
                recovered.iter().for_each(|recovered| counters.note_recovery(recovered));
                events.observe(slot, generation, &Incident::Recovered { recovered: *recovered, took_ns });
            }
            Err(OperationError { kind, .. }) => {
                counters.failed_recoveries += u64::from(matches!(kind, OperationErrorKind::Corrupt { .. }));
                events.observe(slot, generation, &Incident::RecoveryFailed { kind: kind.clone(), took_ns });
            }
        }
        // The recovery is valid, whether it is counted or not.
        let _ = add_totals(&mut lane, &self.table, &counters).await;
        result
    }
}

/// Returns this process's identity, as it is stored in slots.
pub(crate) fn own_slot_client(since_unix_ns: u64) -> SlotClient {
    let ProcessIdentity { pid, start_ticks, namespaces, boot } = ProcessIdentity::current();
    SlotClient { process: pid, since_unix_ns, identity: [start_ticks, namespaces, boot] }
}

/// Whether the client's process is stopped, as far as this process can see.
pub(crate) fn is_stopped(client: &SlotClient) -> bool {
    identity(client).state() == ProcessState::Stopped
}

fn identity(client: &SlotClient) -> ProcessIdentity {
    let [start_ticks, namespaces, boot] = client.identity;
    ProcessIdentity { pid: client.process, start_ticks, namespaces, boot }
}
