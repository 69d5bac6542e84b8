//! A session: what a client that was let in may ask for, and what it has.
//!
//! Invariants: a batch that is refused had no effect; what a session asks for beside batches is answered at once, but
//! for a fence that drops another session.

use std::net::SocketAddr;

use arrayvec::ArrayVec;
use guira_fabric::{Effect, FabricError, HoldSet, Lane, Region, Submitted, Verb};

use super::NodeRegion;
use super::buffers::Output;
use super::connection::{End, Tools};
use super::connections::Key;
use super::counters::Counter;
use super::shared::{Ended, MAX_NODE_HOLDS, Message, Place, Why};
use crate::wire::{self, FenceReply, Grant, HEADER_WORDS, Header, HoldReply, Kind, SessionId, WireError};

/// Client slots whose liveness one session has, at most.
pub const MAX_HOLDS: usize = 4096;

/// What a client has that was let in.
pub(super) struct Session {
    pub(super) id: SessionId,
    /// Its number, and its client, for people.
    pub(super) number: u64,
    peer: SocketAddr,
    pub(super) grant: Grant,
    /// Made for the first slot that it asks for.
    holds: Option<Box<dyn HoldSet>>,
    /// Requests that wait for the end of another session.
    pub(super) pending: u32,
}

impl Session {
    pub(super) fn new(id: SessionId, number: u64, peer: SocketAddr, grant: Grant) -> Session {
        Session { id, number, peer, grant, holds: None, pending: 0 }
    }

    /// Ends it: when this returns, its slots are free.
    pub(super) fn end(self) -> Ended {
        let slots = self.holds.as_ref().map_or_else(Vec::new, |holds| holds.slots());
        Ended { session: self.id, number: self.number, grant: self.grant, addr: self.peer.ip(), slots }
    }

    /// A frame other than a batch.
    pub(super) fn control<R: NodeRegion>(
        &mut self,
        tools: &mut Tools<'_, R>,
        key: Key,
        header: &Header,
        body: &[u64],
        output: &mut Output,
    ) -> Result<(), End> {
        let place = Place { loop_index: tools.loop_index, key };
        let read_only = |verb| (self.grant == Grant::ReadOnly).then_some(FabricError::ReadOnly { verb });
        match header.kind {
            Kind::Hold => {
                let slot = wire::decode_slot(body)?;
                if let Some(refusal) = read_only("a hold") {
                    refuse(tools, output, header.id, &refusal);
                } else {
                    self.hold(tools, place, header.id, slot, output);
                }
            }
            Kind::Release => {
                let slot = wire::decode_slot(body)?;
                if self.holds.as_mut().is_some_and(|holds| holds.release(slot)) {
                    tools.shared.release(slot, place);
                    tools.count(Counter::HoldsEnded, 1);
                }
            }
            Kind::Fence => {
                let slot = wire::decode_slot(body)?;
                if let Some(refusal) = read_only("a fence") {
                    refuse(tools, output, header.id, &refusal);
                } else if let Some(victim) = tools.shared.holder(slot) {
                    self.pending += 1;
                    let (why, request) = (Why::Fenced, header.id);
                    let by = Some((self.number, self.peer));
                    let message = Message::Drop { victim: victim.key, why, asked: place, request, by };
                    tools.shared.mailboxes[victim.loop_index].send(message);
                } else {
                    tools.count(Counter::FencesNoSession, 1);
                    answer(tools, output, Kind::Fenced, header.id, &FenceReply::NoSession.encode());
                }
            }
            Kind::Count if body.is_empty() => {
                let counters = tools.shared.sum().encode();
                answer(tools, output, Kind::Counted, header.id, &counters);
            }
            kind => return Err(WireError::Kind { kind: kind as u8 }.into()),
        }
        Ok(())
    }

    fn hold<R: NodeRegion>(&mut self, tools: &mut Tools<'_, R>, place: Place, id: u64, slot: u16, output: &mut Output) {
        let holds = self.holds.get_or_insert_with(|| tools.region.hold_set());
        // The kernel is asked about slots only that no session has.
        if tools.shared.holder(slot).is_some() {
            tools.count(Counter::HoldsTaken, 1);
            return answer(tools, output, Kind::Held, id, &HoldReply::Taken.encode());
        }
        if holds.count() >= MAX_HOLDS {
            return refuse_text(tools, output, id, format!("a session has the liveness of {MAX_HOLDS} slots at most"));
        }
        if !tools.shared.may_hold() {
            let text = format!("the sessions of this node have the liveness of {MAX_NODE_HOLDS} slots at most");
            return refuse_text(tools, output, id, text);
        }
        match holds.hold(slot) {
            Ok(true) => {
                tools.shared.hold(slot, place);
                tools.count(Counter::HoldsGranted, 1);
                answer(tools, output, Kind::Held, id, &HoldReply::Granted.encode());
            }
            Ok(false) => {
                tools.count(Counter::HoldsTaken, 1);
                answer(tools, output, Kind::Held, id, &HoldReply::Taken.encode());
            }
            Err(error) => refuse(tools, output, id, &error),
        }
    }
}

/// Executes a batch: its READs go from the region to where they are sent from, its WRITEs from where they were
/// received.
pub(super) fn batch<R: Region>(
    tools: &mut Tools<'_, R>,
    session: &Session,
    header: &Header,
    body: &[u64],
    output: &mut Output,
) -> Result<(), End> {
    let words = HEADER_WORDS + wire::found_words(body, header.count)?;
    let executed = execute_to(tools, session.grant, header, body, output.room(words))?;
    // What it found may be zeros that the file never had, and what it wrote is lost.
    if tools.region.has_lost_bytes() {
        return Err(End::MemoryLost);
    }
    match executed {
        Ok(()) => output.commit(words),
        Err(error) if error.effect() == Effect::None => refuse(tools, output, header.id, &error),
        Err(error) => return Err(End::Broken(error)),
    }
    Ok(())
}

/// Executes a batch and leaves its answer in `frame`, or says why it was refused.
#[inline(never)]
fn execute_to<R: Region>(
    tools: &mut Tools<'_, R>,
    grant: Grant,
    header: &Header,
    body: &[u64],
    frame: &mut [u64],
) -> Result<Result<(), FabricError>, WireError> {
    let answer = Header { words: frame.len(), kind: Kind::Done, count: 0, id: header.id };
    let (head, found) = frame.split_at_mut(HEADER_WORDS);
    head.copy_from_slice(&answer.encode());
    let mut verbs = ArrayVec::new();
    wire::parse_batch_into(&mut verbs, body, header.count, found)?;
    let change = |verb: &&Verb<'_>| !matches!(verb, Verb::Read { .. });
    if grant == Grant::ReadOnly
        && let Some(verb) = verbs.iter().find(change)
    {
        return Ok(Err(FabricError::ReadOnly { verb: verb.name() }));
    }
    let result = execute_in_place(&mut tools.lane, &mut verbs);
    if result.is_ok() {
        count(tools, &verbs);
    }
    Ok(result)
}

#[inline]
pub(super) fn execute_in_place<L: Lane>(lane: &mut L, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
    match lane.submit(verbs) {
        Submitted::Done(result) => result,
        // A region that was checked to be local has no such lanes.
        Submitted::InFlight => {
            lane.forget();
            Err(FabricError::Disconnected { effect: Effect::Unknown })
        }
    }
}

#[inline]
fn count<R: Region>(tools: &Tools<'_, R>, verbs: &[Verb<'_>]) {
    let (mut reads, mut writes, mut swaps, mut adds) = (0, 0, 0, 0);
    for verb in verbs {
        match verb {
            Verb::Read { .. } => reads += 1,
            Verb::Write { .. } => writes += 1,
            Verb::Cas { .. } | Verb::MaskedCas { .. } => swaps += 1,
            Verb::FetchAdd { .. } => adds += 1,
        }
    }
    tools.count(Counter::Batches, 1);
    tools.count(Counter::Reads, reads);
    tools.count(Counter::Writes, writes);
    tools.count(Counter::Swaps, swaps);
    tools.count(Counter::Adds, adds);
}

pub(super) fn answer<R: Region>(tools: &mut Tools<'_, R>, output: &mut Output, kind: Kind, id: u64, body: &[u64]) {
    tools.frame.clear();
    wire::append(&mut tools.frame, kind, id, body);
    output.append(&tools.frame);
}

fn refuse_text<R: Region>(tools: &mut Tools<'_, R>, output: &mut Output, id: u64, text: String) {
    refuse(tools, output, id, &FabricError::Backend(format!("{text}; nothing was changed")));
}

fn refuse<R: Region>(tools: &mut Tools<'_, R>, output: &mut Output, id: u64, refusal: &FabricError) {
    tools.count(Counter::RequestsRefused, 1);
    tools.frame.clear();
    wire::encode_refusal(&mut tools.frame, id, refusal);
    output.append(&tools.frame);
}
