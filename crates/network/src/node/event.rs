//! Security events of a node: sessions that start and end, refused clients, and fences.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// An event of the access to a node's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeEvent {
    /// The client's address.
    pub peer: SocketAddr,
    /// The kind of the event.
    pub kind: NodeEventKind,
}

/// The kind of an event. Sessions are numbered from 1, in the order in which they started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEventKind {
    /// A session started.
    SessionOpened {
        /// The session's number.
        session: u64,
        /// Whether the session has write access.
        may_write: bool,
        /// The client's token, if tokens are required.
        token: Option<TokenNumber>,
        /// The first name of the client's certificate, if it has one. Escaped for terminals.
        name: Option<String>,
    },
    /// A client was refused, or its TLS failed later.
    Refused {
        /// The reason. Escaped for terminals.
        reason: String,
    },
    /// A session was dropped on the request of another session.
    Fenced {
        /// The number of the session that was dropped.
        session: u64,
        /// The number of the session that requested it.
        by: u64,
        /// The address of the requesting client.
        by_peer: SocketAddr,
    },
    /// A session ended.
    SessionEnded {
        /// The session's number.
        session: u64,
        /// The number of client slots that it had.
        slots: usize,
        /// Whether the node dropped it: on request, because it was silent, or because it did not read its replies.
        dropped: bool,
    },
}

/// The number of a token, in the order in which the tokens were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenNumber {
    /// The number among the tokens for read and write access, from 1.
    Writer(usize),
    /// The number among the tokens for read-only access, from 1.
    Reader(usize),
}

/// A function that receives events.
pub(super) type Listener = dyn Fn(&NodeEvent) + Send + Sync;

/// The observer of events, called on the threads of the node.
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
