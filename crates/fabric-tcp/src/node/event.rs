//! What a node tells of who came, who was refused, and who dropped whom.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Something that concerns who may reach a node's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeEvent {
    /// The client's address.
    pub peer: SocketAddr,
    /// What has happened.
    pub kind: NodeEventKind,
}

/// What has happened. Sessions are numbered from 1, in the order in which they began.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEventKind {
    /// A client was let in.
    SessionOpened {
        /// The session's number.
        session: u64,
        /// Whether it may change memory.
        may_write: bool,
        /// Which token it has shown, if tokens are wanted.
        token: Option<TokenNumber>,
        /// The first name of its certificate, if it has shown one with a name. Escaped for terminals.
        name: Option<String>,
    },
    /// A client was not let in, or its TLS failed later.
    Refused {
        /// Why. Escaped for terminals.
        reason: String,
    },
    /// A session was dropped on another's request.
    Fenced {
        /// The number of the session that was dropped.
        session: u64,
        /// The number of the session that asked for it.
        by: u64,
        /// The address of its client.
        by_peer: SocketAddr,
    },
    /// A session is over.
    SessionEnded {
        /// The session's number.
        session: u64,
        /// Client slots that it had.
        slots: usize,
        /// Whether the node dropped it: on request, because it was silent, or because it took no answers.
        dropped: bool,
    },
}

/// A token, by its place among those that were named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenNumber {
    /// The so-manieth of those that let write, from 1.
    Writer(usize),
    /// The so-manieth of those that let read only, from 1.
    Reader(usize),
}

/// A function that is told of events.
pub(super) type Listener = dyn Fn(&NodeEvent) + Send + Sync;

/// Who is told of events, on the threads of the node.
#[derive(Clone, Default)]
pub(super) struct Observer(pub(super) Option<Arc<Listener>>);

impl Observer {
    pub(super) fn notify(&self, peer: SocketAddr, kind: impl FnOnce() -> NodeEventKind) {
        if let Some(observer) = &self.0 {
            observer(&NodeEvent { peer, kind: kind() });
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observer(..)" } else { "Observer(none)" })
    }
}
