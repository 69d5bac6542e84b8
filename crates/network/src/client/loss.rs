//! The reasons why a connection was lost.

use std::io;

use guira_fabric::{Effect, FabricError};

use crate::wire::{CloseReason, WireError};

/// The reason why a connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The node closed the connection with a reason.
    #[error("{0}")]
    Closed(CloseReason),
    /// The node closed the connection without a reason: it stopped, or was killed.
    #[error("the node closed the connection")]
    EndOfStream,
    /// The operating system reported a failure.
    #[error("the connection failed: {0}")]
    Failed(io::ErrorKind),
    /// A request was not answered in time. The order in which the node would execute later requests is unknown then.
    #[error("the node did not answer within {timeout_ms} ms")]
    TimedOut {
        /// The timeout, in milliseconds.
        timeout_ms: u64,
    },
    /// The node sent an invalid frame.
    #[error("the node sent an invalid frame: {0}")]
    ProtocolError(WireError),
    /// A reply arrived that matches no request, or has another length.
    #[error("the node sent a reply that matches no request")]
    UnexpectedReply,
    /// This client ended the session.
    #[error("this client ended the session")]
    EndedHere,
    /// The node refused a part of a batch that was sent in several frames.
    #[error("the node refused a part of a batch")]
    PartRefused,
}

impl Loss {
    /// Whether the node has answered every request that it executed: a Close comes after the replies to all executed
    /// requests. A node that shuts down or has lost its memory may have failed in the middle of a batch.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Loss::Closed(reason) if !matches!(reason, CloseReason::Shutdown | CloseReason::MemoryLost))
    }

    /// Returns the error of a batch that had `effect`.
    pub fn error(self, effect: Effect) -> FabricError {
        match self {
            Loss::Closed(CloseReason::Fenced) => FabricError::Fenced { effect },
            _ => FabricError::Disconnected { effect },
        }
    }
}
