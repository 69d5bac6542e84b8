//! The lifecycle of a client, from taking its slot to its end, like that of Guira's own client, over a lane of the
//! test.

use std::fmt;
use std::sync::Arc;

use guira_conformance::{Bench, Observed, Op, block_on};
use guira_extents::Extents;
use guira_fabric::{FenceProof, Lane, Region, SlotHold};
use guira_layout::{EntryKind, OwnerId, SlotState, encode_extent};
use guira_rcuckoo::{
    Change, Changed, Client, ClientConfig, Counters, Error, ErrorKind, NewValue, Recovered, SlotClient, claim_slot,
    read_slot, recover, release_slot,
};

use crate::recovery::lane::{Log, LoggedLane};

/// The slot that a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotSource {
    /// A free slot.
    Free(u16),
    /// The slot of a dead client, which is recovered first, as by a client that finds no free slot. [R-SLOT-1]
    Dead(u16),
}

/// The end of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its program is killed.
    Killed,
    /// Releases its chunks and its slot.
    Closes,
    /// It asks for more space than there is, so that all unneeded space is reclaimed, and then closes.
    ExhaustsSpace,
}

/// A client's operations, with its slot and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub entry: SlotSource,
    pub ops: Vec<Op>,
    pub end: End,
}

impl Script {
    /// Creates the script of a client that carries out `op` in a free slot, and is killed.
    pub fn of(slot: u16, op: &Op) -> Script {
        Script { entry: SlotSource::Free(slot), ops: vec![op.clone()], end: End::Killed }
    }

    pub fn slot(&self) -> u16 {
        match self.entry {
            SlotSource::Free(slot) | SlotSource::Dead(slot) => slot,
        }
    }
}

/// The result of a script.
#[derive(Debug, Default)]
pub struct ScriptRun {
    /// The answer to each operation.
    pub answers: Vec<Result<Observed, Error>>,
    /// The number of words that had been changed at each answer.
    pub answered_at: Vec<usize>,
    pub log: Log,
    pub counters: Counters,
}

/// A client with Guira's allocator of extents.
pub struct Actor<L: Lane = LoggedLane> {
    pub client: Client,
    pub extents: Option<Extents>,
    pub lane: L,
    /// The recovery with which it got its slot.
    pub recovered: Option<Recovered>,
    owner: OwnerId,
    _hold: SlotHold,
}

/// The reason why a script ended early.
#[derive(Debug)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn failure(error: impl fmt::Display) -> Failure {
    Failure(error.to_string())
}

/// Returns a configuration in which a wait takes few tries: clients wait only for dead ones, and waits cost nothing by
/// a lane's own clock.
pub fn config(bench: &Bench) -> ClientConfig {
    ClientConfig {
        cache_bytes: 2 << 10,
        backoff_ns: 100_000,
        longest_backoff_ns: 400_000,
        ..ClientConfig::for_table(&bench.table)
    }
}

impl<L: Lane> Actor<L> {
    /// Opens a client that recovers clients it finds dead.
    pub fn open(bench: &Bench, entry: SlotSource, config: ClientConfig, mut lane: L) -> Result<Actor<L>, Failure> {
        let (SlotSource::Free(slot) | SlotSource::Dead(slot)) = entry;
        let hold = bench.region.hold(slot).map_err(failure)?;
        let mut hold = hold.ok_or_else(|| Failure(format!("slot {slot} is taken")))?;
        let table = &bench.table;
        let mut recovered = None;
        let (owner, hold) = block_on(async {
            if let SlotSource::Dead(_) = entry {
                let info = read_slot(&mut lane, table, slot).await.map_err(failure)?;
                let word = info.word.ok_or_else(|| Failure(format!("slot {slot} is damaged")))?;
                if word.state != SlotState::Free {
                    let proof = FenceProof::new(slot, word.generation, hold);
                    recovered = recover(&mut lane, table, &proof, &SlotClient::default()).await.map_err(failure)?;
                    hold = proof.into_hold();
                }
            }
            let own = SlotClient { process: 1, since_unix_ns: 1, ..SlotClient::default() };
            let owner = claim_slot(&mut lane, table, slot, &own).await.map_err(failure)?;
            let owner = owner.ok_or_else(|| Failure(format!("slot {slot} is not free")))?;
            Ok((owner, hold))
        })?;
        let config = ClientConfig { seed: u64::from(slot), ..config };
        let client = Client::new(Arc::clone(table), owner, config).with_liveness(Box::new(bench.region.clone()));
        let extents = table.config().format.has_extents().then(|| Extents::new(Arc::clone(table), owner));
        Ok(Actor { client, extents, lane, recovered, owner, _hold: hold })
    }

    /// Carries out `op`, with its value in an extent if it does not fit in a row, as `guira::aio::Client` does.
    pub async fn apply(&mut self, op: &Op) -> Result<Observed, Error> {
        let Op::Get(key) = op else { return self.change(op).await };
        let mut value = Vec::new();
        let found = self.client.get(&mut self.lane, key, &mut value).await?;
        Ok(Observed::Value(found.is_some().then_some(value)))
    }

    async fn change(&mut self, op: &Op) -> Result<Observed, Error> {
        let (table, mut words) = (Arc::clone(self.client.table()), Vec::new());
        let mut pending = None;
        let no_room = |error: guira_extents::ExtentError| match error {
            guira_extents::ExtentError::Fabric(source) => {
                Error { operation: guira_rcuckoo::Operation::Put, kind: ErrorKind::Fabric { source } }
            }
            full => panic!("tables of this test have room: {full}"),
        };
        if let Some(extents) = &mut self.extents {
            let value = op.value().filter(|it| table.rows().kind_for(op.key().len(), it.len()) == EntryKind::Extent);
            if let Some(value) = value {
                let key = table.key(op.key()).expect("the table takes it");
                let extent = extents.reserve_growing(&mut self.lane, &key, value).await.map_err(no_room)?;
                encode_extent(&mut words, &extent, op.key(), value, table.rows().sums());
                pending = Some(extent);
            } else {
                let tended = extents.maintain(&mut self.lane).await;
                tended.map_err(|source| Error {
                    operation: guira_rcuckoo::Operation::Put,
                    kind: ErrorKind::Fabric { source },
                })?;
            }
        }
        let extent = pending.map(|extent| NewValue::Extent { extent, words: &words });
        let change = op.change(extent).unwrap_or(Change::Remove);
        let changed = self.client.change(&mut self.lane, op.key(), change).await;
        if let Some(extents) = &mut self.extents {
            match (pending, &changed) {
                (Some(extent), Ok(changed)) if changed.took_effect() => extents.link(&extent),
                (Some(extent), _) => extents.cancel(&extent),
                (None, _) => {}
            }
            if let Ok(Changed { freed: Some(freed), .. }) = &changed {
                extents.give_back(freed);
            }
        }
        Ok(Observed::Outcome(changed?.outcome))
    }

    /// Asks for more space than there is. [R-EXTENT-5] [R-RECOVER-7]
    pub fn exhaust_space(&mut self) {
        let Some(extents) = &mut self.extents else { return };
        let most =
            vec![0; self.client.table().config().chunks as usize * self.client.table().config().chunk_bytes as usize];
        let key = self.client.table().key(&[0]).expect("the table takes it");
        let refused = block_on(extents.reserve(&mut self.lane, &key, &most));
        assert!(matches!(refused, Err(guira_extents::ExtentError::Full { .. })), "{refused:?}");
    }

    /// Releases its chunks and its slot.
    pub fn close(mut self) -> Result<L, Failure> {
        if let Some(extents) = &mut self.extents {
            block_on(extents.close(&mut self.lane)).map_err(failure)?;
        }
        block_on(release_slot(&mut self.lane, self.client.table(), self.owner)).map_err(failure)?;
        Ok(self.lane)
    }
}

/// Runs `script` on `bench`, through `lane`.
pub fn run_script(bench: &Bench, script: &Script, lane: LoggedLane) -> Result<ScriptRun, Failure> {
    let mut run = ScriptRun::default();
    let mut actor = Actor::open(bench, script.entry, config(bench), lane)?;
    let mut log = actor.lane.take_log();
    for op in &script.ops {
        run.answers.push(block_on(actor.apply(op)));
        append(&mut log, actor.lane.take_log());
        run.answered_at.push(log.written.len());
    }
    run.counters = actor.client.counters();
    if let Some(recovered) = actor.recovered {
        run.counters.recoveries += 1;
        run.counters.replays += u64::from(recovered.replayed_rows > 0);
    }
    let lane = match script.end {
        End::Killed => actor.lane,
        End::ExhaustsSpace => {
            actor.exhaust_space();
            actor.close()?
        }
        End::Closes => actor.close()?,
    };
    append(&mut log, lane.take_log());
    run.log = log;
    Ok(run)
}

fn append(log: &mut Log, mut more: Log) {
    log.steps += more.steps;
    log.written.append(&mut more.written);
}
