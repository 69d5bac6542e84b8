//! Control requests: holds of client slots, fences and counters.

use std::sync::Arc;
use std::task::{Context, Poll};

use guira_fabric::{Effect, FabricError, SlotHold, Waiting};

use super::link::Request;
use super::request_slots::{Expected, MAX_REQUEST_SLOTS};
use super::session::Connection;
use crate::wire::{Grant, HoldReply, Kind, Reserve, WireError, append, encode_slot};

/// The liveness of a client slot; released on drop, if the connection still exists.
struct Held {
    connection: Arc<Connection>,
    slot: u16,
}

impl Drop for Held {
    /// Sends a release without waiting: the node frees the slot once it has executed what was sent before.
    fn drop(&mut self) {
        // A forked child does not own its parent's holds.
        if !self.connection.link.is_stale() {
            self.connection.link.send(|out| append(out, Kind::Release, 0, &encode_slot(self.slot)));
        }
    }
}

/// A control request in flight, with a request slot of its own.
pub(super) struct ControlRequest {
    connection: Arc<Connection>,
    request: Request,
    /// The client slot whose liveness it requests, if it is a hold.
    hold: Option<u16>,
}

impl ControlRequest {
    /// Requests the liveness of client slot `slot`. A request that is dropped gives back a slot that it was granted.
    pub(super) fn hold(connection: &Arc<Connection>, grant: Grant, slot: u16) -> Result<ControlRequest, FabricError> {
        if grant == Grant::ReadOnly {
            return Err(FabricError::ReadOnly { verb: "a hold" });
        }
        ControlRequest::new(connection, Kind::Hold, Kind::Held, &encode_slot(slot), Some(slot))
    }

    /// Sends a frame of `kind`, whose reply has kind `reply`.
    pub(super) fn ask(
        connection: &Arc<Connection>,
        kind: Kind,
        reply: Kind,
        body: &[u64],
    ) -> Result<ControlRequest, FabricError> {
        ControlRequest::new(connection, kind, reply, body, None)
    }

    fn new(
        connection: &Arc<Connection>,
        kind: Kind,
        reply: Kind,
        body: &[u64],
        hold: Option<u16>,
    ) -> Result<ControlRequest, FabricError> {
        let link = &connection.link;
        if link.is_stale() {
            return Err(FabricError::Forked);
        }
        let mut state = link.state();
        if let Some(loss) = link.lost() {
            return Err(loss.error(Effect::None));
        }
        let Some(slot) = state.slots.take() else {
            let reason =
                format!("a connection has at most {MAX_REQUEST_SLOTS} lanes and control requests; nothing was sent");
            return Err(FabricError::Backend(reason));
        };
        let expected = Expected::Reply(reply);
        let request = Request { slot, id: state.slots.begin(slot, expected), expected };
        drop(state);
        link.send(|out| append(out, kind, request.id, body));
        Ok(ControlRequest { connection: Arc::clone(connection), request, hold })
    }

    /// Returns the client slot that it requests.
    pub(super) fn slot(&self) -> Option<u16> {
        self.hold
    }

    /// Waits for the reply and decodes it with `decode`; `effect` is the possible effect if there is no reply.
    pub(super) fn wait<T>(
        self,
        effect: Effect,
        decode: impl Fn(&[u64]) -> Result<T, WireError>,
    ) -> Result<T, FabricError> {
        let mut reply = None;
        let mut take = |words: &[u64]| decode(words).map(|decoded| reply = Some(decoded));
        let waited = self.connection.link.wait(self.request, &mut Vec::new(), &mut take);
        waited.map_err(|failure| failure.error(|_| effect))?;
        Ok(reply.expect("a reply was taken"))
    }

    /// Waits for the liveness that was requested; `None` if another client has it.
    pub(super) fn wait_for_hold(self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        let connection = Arc::clone(&self.connection);
        let reply = self.wait(Effect::None, HoldReply::decode)?;
        Ok(held(connection, slot, reply))
    }

    /// Requests memory for a part of the Main space, of at most [`Reserve::MAX_BYTES`].
    pub(super) fn reserve(connection: &Arc<Connection>, part: Reserve) -> Result<ControlRequest, FabricError> {
        ControlRequest::ask(connection, Kind::Reserve, Kind::Reserved, &part.encode())
    }

    /// Polls a request without an effect: in place, if `waiting` says so. `take` gets the body of its reply.
    pub(super) fn poll_reply(
        &self,
        waiting: Waiting,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&[u64]) -> Result<(), WireError>,
    ) -> Poll<Result<(), FabricError>> {
        let link = &self.connection.link;
        let polled = match waiting {
            Waiting::InPlace => Poll::Ready(link.wait(self.request, &mut Vec::new(), &mut take)),
            Waiting::Cooperative => link.poll(self.request, &mut Vec::new(), &mut take, cx.waker()),
        };
        polled.map(|result| result.map_err(|failure| failure.error(|_| Effect::None)))
    }

    /// Same as [`ControlRequest::wait_for_hold`], for a task.
    pub(super) fn poll_hold(&self, slot: u16, cx: &mut Context<'_>) -> Poll<Result<Option<SlotHold>, FabricError>> {
        let mut reply = HoldReply::Taken;
        let take = |words: &[u64]| HoldReply::decode(words).map(|decoded| reply = decoded);
        let polled = self.poll_reply(Waiting::Cooperative, cx, take);
        polled.map_ok(|()| held(Arc::clone(&self.connection), slot, reply))
    }
}

fn held(connection: Arc<Connection>, slot: u16, reply: HoldReply) -> Option<SlotHold> {
    (reply == HoldReply::Granted).then(|| SlotHold::new(Held { connection, slot }))
}

impl Drop for ControlRequest {
    fn drop(&mut self) {
        if !self.connection.link.is_stale() {
            self.connection.link.release_slot(self.request.slot, self.hold);
        }
    }
}
