//! Why a connection is no more.

use std::io;

use guira_fabric::{Effect, FabricError};

use crate::wire::{CloseReason, WireError};

/// Why a connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The node closed it, and said why.
    #[error("{0}")]
    Closed(CloseReason),
    /// The node closed it without a word: it ended, or was killed.
    #[error("the node closed the connection")]
    EndOfStream,
    /// The operating system says so.
    #[error("the connection failed: {0}")]
    Failed(io::ErrorKind),
    /// A batch was not answered in time. In which order the node would execute what follows is not known then.
    #[error("the node did not answer within {timeout_ms} ms")]
    TimedOut {
        /// The time it had, in milliseconds.
        timeout_ms: u64,
    },
    /// What arrived is no answer to what was sent.
    #[error("the node does not speak this protocol: {0}")]
    ProtocolError(WireError),
    /// An answer arrived that nobody had asked for, or of another length.
    #[error("the node answered what nobody had asked")]
    UnexpectedReply,
    /// The node refused a part of a batch that went out in several frames, or a batch that this side found in order.
    #[error("the node refused a part of a batch")]
    PartRefused,
}

impl Loss {
    /// Whether the node says thereby that it has executed nothing that it has not answered: a farewell stands behind
    /// the answers to all that was executed. A node that ends may have met a failure in the middle of a batch.
    pub(super) fn is_final(self) -> bool {
        matches!(self, Loss::Closed(bye) if !matches!(bye, CloseReason::Shutdown | CloseReason::MemoryLost))
    }

    /// What a lane tells of it whose batch had `effect`.
    pub(super) fn error(self, effect: Effect) -> FabricError {
        match self {
            Loss::Closed(CloseReason::Fenced) => FabricError::Fenced { effect },
            _ => FabricError::Disconnected { effect },
        }
    }
}
