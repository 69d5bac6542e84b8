//! The part of a node that differs from fabric to fabric: the way in which sessions use the memory.

use std::fmt;

use guira_fabric::{FabricError, Region};

use super::buffers::Output;
use super::counters::{Counter, LoopCounters};
use crate::wire::{self, CloseReason, Fabric, Grant, Header, Kind, WireError};

/// The memory of a node, and the way in which sessions use it. Each thread of the node has a clone; a session belongs
/// to one thread.
///
/// Invariant: once [`Service::end`] has returned `Ok`, nothing of the session changes a byte.
pub trait Service: Clone + Send + 'static {
    /// The region, of which the node needs the client slots, the size, and whether bytes were lost.
    type Region: Region + Clone + Send + 'static;
    /// The state of one session. It is made when the session starts.
    type Session: Default;

    /// The fabric that clients must ask for.
    const FABRIC: Fabric;

    /// Returns the region.
    fn region(&self) -> &Self::Region;

    /// Returns the reason why the region cannot be served, if there is one.
    fn unsuitable(&self) -> Option<&'static str>;

    /// Executes a request that is not one of the conversation itself: a batch, or an exchange of queue pairs. Answers
    /// it by `responder`.
    ///
    /// # Errors
    /// The reason for which the session ends.
    fn execute(
        &mut self,
        session: &mut Self::Session,
        request: Request<'_>,
        responder: &mut Responder<'_>,
    ) -> Result<(), CloseCause>;

    /// Ends what a session uses the memory by. Called once for each session, when it ends, also because its client is
    /// gone or the node stops.
    ///
    /// # Errors
    /// Verbs of the session may still execute. The node stops, and grants its slots to nobody.
    fn end(&mut self, session: Self::Session) -> Result<(), EndError>;
}

/// A session could not be ended: its verbs may still execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndError(pub String);

impl fmt::Display for EndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A request of a session.
#[derive(Clone, Copy)]
pub struct Request<'r> {
    /// The frame's header.
    pub header: &'r Header,
    /// The frame's body.
    pub body: &'r [u64],
    /// The access that the session has.
    pub grant: Grant,
}

/// The reason why a node closes a connection.
#[derive(Debug)]
pub enum CloseCause {
    /// The client sent an invalid frame.
    ProtocolError(WireError),
    /// A reason that the client is told.
    Reason(CloseReason),
    /// A request failed with an unknown effect.
    Broken(FabricError),
    /// Bytes of the region are lost.
    MemoryLost,
    /// The access control was replaced after the connection was accepted; the client may connect again.
    AccessReplaced,
}

impl From<WireError> for CloseCause {
    fn from(error: WireError) -> CloseCause {
        CloseCause::ProtocolError(error)
    }
}

/// The replies of a session, and the counters of its thread.
pub struct Responder<'r> {
    pub(super) counters: &'r LoopCounters,
    pub(super) output: &'r mut Output,
    /// A buffer for control frames.
    pub(super) frame: &'r mut Vec<u64>,
}

impl Responder<'_> {
    /// Adds to a counter.
    #[inline]
    pub fn count(&self, counter: Counter, count: u64) {
        self.counters.add(counter, count);
    }

    /// Returns the next `words` words of the output, to be written in place: a whole frame. [`Responder::commit`] sends
    /// it; without that it is discarded.
    #[inline]
    pub fn room(&mut self, words: usize) -> &mut [u64] {
        self.output.room(words)
    }

    /// Sends the frame that was written to [`Responder::room`].
    #[inline]
    pub fn commit(&mut self, words: usize) {
        self.output.commit(words);
    }

    /// Answers request `id`.
    pub fn reply(&mut self, kind: Kind, id: u64, body: &[u64]) {
        self.frame.clear();
        wire::append(self.frame, kind, id, body);
        self.output.append(self.frame);
    }

    /// Refuses request `id`; nothing of it was executed.
    pub fn refuse(&mut self, id: u64, refusal: &FabricError) {
        self.count(Counter::RequestsRefused, 1);
        self.frame.clear();
        wire::encode_refusal(self.frame, id, refusal);
        self.output.append(self.frame);
    }

    /// Refuses request `id` with a reason in words; nothing was changed.
    pub fn refuse_text(&mut self, id: u64, text: &str) {
        self.refuse(id, &FabricError::Backend(format!("{text}; nothing was changed")));
    }
}
