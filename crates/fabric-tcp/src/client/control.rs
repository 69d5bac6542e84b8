//! Client slots: the node knows which session has which slot's liveness.

use std::sync::Arc;
use std::task::{Context, Poll};

use guira_fabric::{Effect, FabricError, SlotHold};

use super::link::Request;
use super::region::Connection;
use super::request_slots::{Expected, MAX_REQUEST_SLOTS};
use crate::wire::{Grant, HoldReply, Kind, WireError, append, encode_slot};

/// A client slot's liveness; given back on drop, if the connection lives that long.
struct Held {
    connection: Arc<Connection>,
    slot: u16,
}

impl Drop for Held {
    /// Sends, and waits for nothing: the node gives the slot to others once it has executed what was sent before.
    fn drop(&mut self) {
        // A forked child has no part in its parent's holds.
        if !self.connection.link.is_stale() {
            self.connection.link.send(|out| append(out, Kind::Release, 0, &encode_slot(self.slot)));
        }
    }
}

/// A question to the node that is under way, with a place of its own among the connection's slots.
pub(super) struct ControlRequest {
    connection: Arc<Connection>,
    request: Request,
    /// The client slot whose liveness it asks for, if it does.
    hold: Option<u16>,
}

impl ControlRequest {
    /// Asks for the liveness of client slot `slot`. A question that is dropped gives back what it was granted.
    pub(super) fn hold(connection: &Arc<Connection>, grant: Grant, slot: u16) -> Result<ControlRequest, FabricError> {
        if grant == Grant::ReadOnly {
            return Err(FabricError::ReadOnly { verb: "a hold" });
        }
        ControlRequest::new(connection, Kind::Hold, Kind::Held, &encode_slot(slot), Some(slot))
    }

    /// Asks with a frame of `kind`, which is answered by one of kind `answer`.
    pub(super) fn ask(
        connection: &Arc<Connection>,
        kind: Kind,
        answer: Kind,
        body: &[u64],
    ) -> Result<ControlRequest, FabricError> {
        ControlRequest::new(connection, kind, answer, body, None)
    }

    fn new(
        connection: &Arc<Connection>,
        kind: Kind,
        answer: Kind,
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
            let reason = format!("a connection has at most {MAX_REQUEST_SLOTS} lanes and questions; nothing was sent");
            return Err(FabricError::Backend(reason));
        };
        let expected = Expected::Answer(answer);
        let request = Request { slot, id: state.slots.begin(slot, expected), expected };
        drop(state);
        link.send(|out| append(out, kind, request.id, body));
        Ok(ControlRequest { connection: Arc::clone(connection), request, hold })
    }

    /// The client slot it asks for.
    pub(super) fn slot(&self) -> Option<u16> {
        self.hold
    }

    /// Waits for the answer and reads it with `read`; `effect` is what a question may have had that was not answered.
    pub(super) fn wait<T>(
        self,
        effect: Effect,
        read: impl Fn(&[u64]) -> Result<T, WireError>,
    ) -> Result<T, FabricError> {
        let mut answer = None;
        let mut take = |words: &[u64]| read(words).map(|read| answer = Some(read));
        let waited = self.connection.link.wait(self.request, &mut Vec::new(), &mut take);
        waited.map_err(|failure| failure.error(|_| effect))?;
        Ok(answer.expect("an answer was taken"))
    }

    /// The liveness it asked for, if nobody else has it.
    pub(super) fn wait_for_hold(self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        let connection = Arc::clone(&self.connection);
        let answer = self.wait(Effect::None, HoldReply::decode)?;
        Ok(held(connection, slot, answer))
    }

    /// As [`ControlRequest::wait_for_hold`], for a task.
    pub(super) fn poll_hold(&self, slot: u16, cx: &mut Context<'_>) -> Poll<Result<Option<SlotHold>, FabricError>> {
        let mut answer = HoldReply::Taken;
        let mut take = |words: &[u64]| HoldReply::decode(words).map(|decoded| answer = decoded);
        let asked = self.connection.link.poll(self.request, &mut Vec::new(), &mut take, cx.waker());
        let hold = |()| held(Arc::clone(&self.connection), slot, answer);
        asked.map(|result| result.map(hold).map_err(|failure| failure.error(|_| Effect::None)))
    }
}

fn held(connection: Arc<Connection>, slot: u16, answer: HoldReply) -> Option<SlotHold> {
    (answer == HoldReply::Granted).then(|| SlotHold::new(Held { connection, slot }))
}

impl Drop for ControlRequest {
    fn drop(&mut self) {
        if !self.connection.link.is_stale() {
            self.connection.link.release_slot(self.request.slot, self.hold);
        }
    }
}
