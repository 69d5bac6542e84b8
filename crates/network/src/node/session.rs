//! A session: the requests of an admitted client, and the client slots that it has.
//!
//! Invariants: a batch that is refused had no effect; control requests are answered at once, except for a fence that
//! drops another session.

use std::net::SocketAddr;

use guira_fabric::{FabricError, HoldSet, Region};

use super::buffers::Output;
use super::connection::LoopContext;
use super::connections::Key;
use super::counters::Counter;
use super::service::{CloseCause, EndError, Request, Responder, Service};
use super::shared::{ConnectionId, DropReason, EndedSession, MAX_NODE_HOLDS, Message, Shared};
use crate::wire::{self, FenceReply, Grant, Header, HoldReply, Kind, SessionId, WireError};

/// Maximum number of client slots of one session.
pub const MAX_HOLDS: usize = 4096;

/// The session of a client.
pub(super) struct Session<T> {
    pub(super) id: SessionId,
    /// The session's number and client, for logs.
    pub(super) number: u64,
    peer: SocketAddr,
    pub(super) grant: Grant,
    /// The state of the session in the service. Declared before the slots: if a panic drops the session, its verbs end
    /// first.
    used: T,
    /// The client slots of the session; created for the first hold.
    holds: Option<Box<dyn HoldSet>>,
    /// The fences that wait for the end of another session.
    pub(super) pending_fences: u32,
}

impl<T: Default> Session<T> {
    pub(super) fn new(id: SessionId, number: u64, peer: SocketAddr, grant: Grant) -> Session<T> {
        Session { id, number, peer, grant, holds: None, pending_fences: 0, used: T::default() }
    }

    /// Ends the session: when this returns `Ok`, none of its verbs executes, and its slots are free.
    ///
    /// # Errors
    /// Its verbs may still execute; its slots stay held as long as this process lives.
    pub(super) fn end<S: Service<Session = T>>(self, service: &mut S) -> Result<EndedSession, EndError> {
        let Session { id, number, peer, grant, holds, used, .. } = self;
        let slots = holds.as_ref().map_or_else(Vec::new, |holds| holds.slots());
        if let Err(error) = service.end(used) {
            std::mem::forget(holds);
            return Err(error);
        }
        drop(holds);
        Ok(EndedSession { session: id, number, grant, addr: peer.ip(), slots })
    }

    /// Handles a request.
    #[inline]
    pub(super) fn request<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        key: Key,
        header: &Header,
        body: &[u64],
        output: &mut Output,
    ) -> Result<(), CloseCause> {
        match header.kind {
            Kind::Hold | Kind::Release | Kind::Fence | Kind::Count => self.control(context, key, header, body, output),
            _ => {
                let request = Request { header, body, grant: self.grant };
                let (service, mut responder) = context.split(output);
                service.execute(&mut self.used, request, &mut responder)
            }
        }
    }

    /// Handles a request of the conversation itself.
    fn control<S: Service<Session = T>>(
        &mut self,
        context: &mut LoopContext<'_, S>,
        key: Key,
        header: &Header,
        body: &[u64],
        output: &mut Output,
    ) -> Result<(), CloseCause> {
        let connection_id = ConnectionId { loop_index: context.loop_index, key };
        let shared = context.shared;
        let (service, mut responder) = context.split(output);
        let read_only = |verb| (self.grant == Grant::ReadOnly).then_some(FabricError::ReadOnly { verb });
        match header.kind {
            Kind::Hold => {
                let slot = wire::decode_slot(body)?;
                if let Some(refusal) = read_only("a hold") {
                    responder.refuse(header.id, &refusal);
                } else {
                    let hold = HoldRequest { id: header.id, slot, connection_id };
                    self.hold(shared, service.region(), hold, &mut responder);
                }
            }
            Kind::Release => {
                let slot = wire::decode_slot(body)?;
                if self.holds.as_mut().is_some_and(|holds| holds.release(slot)) {
                    shared.release(slot, connection_id);
                    responder.count(Counter::HoldsEnded, 1);
                }
            }
            Kind::Fence => {
                let slot = wire::decode_slot(body)?;
                if let Some(refusal) = read_only("a fence") {
                    responder.refuse(header.id, &refusal);
                } else if let Some(victim) = shared.holder(slot) {
                    self.pending_fences += 1;
                    let (drop_reason, request) = (DropReason::Fenced, header.id);
                    let by = Some((self.number, self.peer));
                    let message =
                        Message::Drop { victim: victim.key, drop_reason, requester: connection_id, request, by };
                    shared.mailboxes[victim.loop_index].send(message);
                } else {
                    responder.count(Counter::FencesNoSession, 1);
                    responder.reply(Kind::Fenced, header.id, &FenceReply::NoSession.encode());
                }
            }
            // A request for the counters; its body is empty.
            _ if body.is_empty() => responder.reply(Kind::Counted, header.id, &shared.sum().encode()),
            kind => return Err(WireError::Kind { kind: kind as u8 }.into()),
        }
        Ok(())
    }

    fn hold<R: Region + Clone + Send + 'static>(
        &mut self,
        shared: &Shared,
        region: &R,
        HoldRequest { id, slot, connection_id }: HoldRequest,
        responder: &mut Responder<'_>,
    ) {
        let holds = self.holds.get_or_insert_with(|| region.hold_set());
        // The kernel is asked only about slots that no session has.
        if shared.holder(slot).is_some() {
            responder.count(Counter::HoldsTaken, 1);
            return responder.reply(Kind::Held, id, &HoldReply::Taken.encode());
        }
        if holds.count() >= MAX_HOLDS {
            return responder.refuse_text(id, &format!("a session may have at most {MAX_HOLDS} client slots"));
        }
        if !shared.may_hold() {
            let text = format!("the sessions of this node may have at most {MAX_NODE_HOLDS} client slots together");
            return responder.refuse_text(id, &text);
        }
        match holds.hold(slot) {
            Ok(true) => {
                shared.hold(slot, connection_id);
                responder.count(Counter::HoldsGranted, 1);
                responder.reply(Kind::Held, id, &HoldReply::Granted.encode());
            }
            Ok(false) => {
                responder.count(Counter::HoldsTaken, 1);
                responder.reply(Kind::Held, id, &HoldReply::Taken.encode());
            }
            Err(error) => responder.refuse(id, &error),
        }
    }
}

/// A request for the liveness of a client slot.
struct HoldRequest {
    id: u64,
    slot: u16,
    connection_id: ConnectionId,
}
