//! A session: the requests of an admitted client, and the client slots that it has.
//!
//! Invariants: a batch that is refused had no effect; control requests are answered at once, except for a fence that
//! drops another session.

use std::net::SocketAddr;

use arrayvec::ArrayVec;
use guira_fabric::{Effect, FabricError, HoldSet, Lane, Region, Submitted, Verb};

use super::NodeRegion;
use super::buffers::Output;
use super::connection::{CloseCause, LoopContext};
use super::connections::Key;
use super::counters::Counter;
use super::shared::{ConnectionId, DropReason, EndedSession, MAX_NODE_HOLDS, Message};
use crate::wire::{self, FenceReply, Grant, HEADER_WORDS, Header, HoldReply, Kind, SessionId, WireError};

/// Maximum number of client slots of one session.
pub const MAX_HOLDS: usize = 4096;

/// The session of a client.
pub(super) struct Session {
    pub(super) id: SessionId,
    /// The session's number and client, for logs.
    pub(super) number: u64,
    peer: SocketAddr,
    pub(super) grant: Grant,
    /// The client slots of the session; created for the first hold.
    holds: Option<Box<dyn HoldSet>>,
    /// The fences that wait for the end of another session.
    pub(super) pending_fences: u32,
}

impl Session {
    pub(super) fn new(id: SessionId, number: u64, peer: SocketAddr, grant: Grant) -> Session {
        Session { id, number, peer, grant, holds: None, pending_fences: 0 }
    }

    /// Ends the session: when this returns, its slots are free.
    pub(super) fn end(self) -> EndedSession {
        let slots = self.holds.as_ref().map_or_else(Vec::new, |holds| holds.slots());
        EndedSession { session: self.id, number: self.number, grant: self.grant, addr: self.peer.ip(), slots }
    }

    /// Handles a control frame.
    pub(super) fn control<R: NodeRegion>(
        &mut self,
        context: &mut LoopContext<'_, R>,
        key: Key,
        header: &Header,
        body: &[u64],
        output: &mut Output,
    ) -> Result<(), CloseCause> {
        let connection_id = ConnectionId { loop_index: context.loop_index, key };
        let read_only = |verb| (self.grant == Grant::ReadOnly).then_some(FabricError::ReadOnly { verb });
        match header.kind {
            Kind::Hold => {
                let slot = wire::decode_slot(body)?;
                if let Some(refusal) = read_only("a hold") {
                    refuse(context, output, header.id, &refusal);
                } else {
                    self.hold(context, connection_id, header.id, slot, output);
                }
            }
            Kind::Release => {
                let slot = wire::decode_slot(body)?;
                if self.holds.as_mut().is_some_and(|holds| holds.release(slot)) {
                    context.shared.release(slot, connection_id);
                    context.count(Counter::HoldsEnded, 1);
                }
            }
            Kind::Fence => {
                let slot = wire::decode_slot(body)?;
                if let Some(refusal) = read_only("a fence") {
                    refuse(context, output, header.id, &refusal);
                } else if let Some(victim) = context.shared.holder(slot) {
                    self.pending_fences += 1;
                    let (drop_reason, request) = (DropReason::Fenced, header.id);
                    let by = Some((self.number, self.peer));
                    let message =
                        Message::Drop { victim: victim.key, drop_reason, requester: connection_id, request, by };
                    context.shared.mailboxes[victim.loop_index].send(message);
                } else {
                    context.count(Counter::FencesNoSession, 1);
                    reply(context, output, Kind::Fenced, header.id, &FenceReply::NoSession.encode());
                }
            }
            Kind::Count if body.is_empty() => {
                let counters = context.shared.sum().encode();
                reply(context, output, Kind::Counted, header.id, &counters);
            }
            kind => return Err(WireError::Kind { kind: kind as u8 }.into()),
        }
        Ok(())
    }

    fn hold<R: NodeRegion>(
        &mut self,
        context: &mut LoopContext<'_, R>,
        connection_id: ConnectionId,
        id: u64,
        slot: u16,
        output: &mut Output,
    ) {
        let holds = self.holds.get_or_insert_with(|| context.region.hold_set());
        // The kernel is asked only about slots that no session has.
        if context.shared.holder(slot).is_some() {
            context.count(Counter::HoldsTaken, 1);
            return reply(context, output, Kind::Held, id, &HoldReply::Taken.encode());
        }
        if holds.count() >= MAX_HOLDS {
            return refuse_text(context, output, id, format!("a session may have at most {MAX_HOLDS} client slots"));
        }
        if !context.shared.may_hold() {
            let text = format!("the sessions of this node may have at most {MAX_NODE_HOLDS} client slots together");
            return refuse_text(context, output, id, text);
        }
        match holds.hold(slot) {
            Ok(true) => {
                context.shared.hold(slot, connection_id);
                context.count(Counter::HoldsGranted, 1);
                reply(context, output, Kind::Held, id, &HoldReply::Granted.encode());
            }
            Ok(false) => {
                context.count(Counter::HoldsTaken, 1);
                reply(context, output, Kind::Held, id, &HoldReply::Taken.encode());
            }
            Err(error) => refuse(context, output, id, &error),
        }
    }
}

/// Executes a batch: its READs copy from the region to the output buffer, its WRITEs from the input buffer to the
/// region.
pub(super) fn batch<R: Region>(
    context: &mut LoopContext<'_, R>,
    session: &Session,
    header: &Header,
    body: &[u64],
    output: &mut Output,
) -> Result<(), CloseCause> {
    let words = HEADER_WORDS + wire::found_words(body, header.count)?;
    let executed = execute_to(context, session.grant, header, body, output.room(words))?;
    // The results may be zeros that the file never had, and the writes are lost.
    if context.region.has_lost_bytes() {
        return Err(CloseCause::MemoryLost);
    }
    match executed {
        Ok(()) => output.commit(words),
        Err(error) if error.effect() == Effect::None => refuse(context, output, header.id, &error),
        Err(error) => return Err(CloseCause::Broken(error)),
    }
    Ok(())
}

/// Executes a batch and writes its reply to `frame`; the inner error is the reason for a refusal.
#[inline(never)]
fn execute_to<R: Region>(
    context: &mut LoopContext<'_, R>,
    grant: Grant,
    header: &Header,
    body: &[u64],
    frame: &mut [u64],
) -> Result<Result<(), FabricError>, WireError> {
    let reply = Header { words: frame.len(), kind: Kind::Done, count: 0, id: header.id };
    let (head, found) = frame.split_at_mut(HEADER_WORDS);
    head.copy_from_slice(&reply.encode());
    let mut verbs = ArrayVec::new();
    wire::parse_batch_into(&mut verbs, body, header.count, found)?;
    let change = |verb: &&Verb<'_>| !matches!(verb, Verb::Read { .. });
    if grant == Grant::ReadOnly
        && let Some(verb) = verbs.iter().find(change)
    {
        return Ok(Err(FabricError::ReadOnly { verb: verb.name() }));
    }
    let result = execute_in_place(&mut context.lane, &mut verbs);
    if result.is_ok() {
        count(context, &verbs);
    }
    Ok(result)
}

#[inline]
pub(super) fn execute_in_place<L: Lane>(lane: &mut L, verbs: &mut [Verb<'_>]) -> Result<(), FabricError> {
    match lane.submit(verbs) {
        Submitted::Done(result) => result,
        // A region that was checked to be local has no such lane.
        Submitted::InFlight => {
            lane.forget();
            Err(FabricError::Disconnected { effect: Effect::Unknown })
        }
    }
}

#[inline]
fn count<R: Region>(context: &LoopContext<'_, R>, verbs: &[Verb<'_>]) {
    let (mut reads, mut writes, mut swaps, mut adds) = (0, 0, 0, 0);
    for verb in verbs {
        match verb {
            Verb::Read { .. } => reads += 1,
            Verb::Write { .. } => writes += 1,
            Verb::Cas { .. } | Verb::MaskedCas { .. } => swaps += 1,
            Verb::FetchAdd { .. } => adds += 1,
        }
    }
    context.count(Counter::Batches, 1);
    context.count(Counter::Reads, reads);
    context.count(Counter::Writes, writes);
    context.count(Counter::Swaps, swaps);
    context.count(Counter::Adds, adds);
}

pub(super) fn reply<R: Region>(
    context: &mut LoopContext<'_, R>,
    output: &mut Output,
    kind: Kind,
    id: u64,
    body: &[u64],
) {
    context.frame.clear();
    wire::append(&mut context.frame, kind, id, body);
    output.append(&context.frame);
}

fn refuse_text<R: Region>(context: &mut LoopContext<'_, R>, output: &mut Output, id: u64, text: String) {
    refuse(context, output, id, &FabricError::Backend(format!("{text}; nothing was changed")));
}

fn refuse<R: Region>(context: &mut LoopContext<'_, R>, output: &mut Output, id: u64, refusal: &FabricError) {
    context.count(Counter::RequestsRefused, 1);
    context.frame.clear();
    wire::encode_refusal(&mut context.frame, id, refusal);
    output.append(&context.frame);
}
