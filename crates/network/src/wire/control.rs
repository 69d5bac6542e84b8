//! The bodies of control frames: the start and end of sessions, and client slots.

use std::fmt;

use super::{MAGIC, VERSION, WireError};

/// The secret that authenticates a client: 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u64; 2]);

impl Token {
    /// Whether both tokens are equal, in a time that does not depend on where they differ.
    pub fn matches(&self, other: &Token) -> bool {
        std::hint::black_box((self.0[0] ^ other.0[0]) | (self.0[1] ^ other.0[1])) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The id of a session: random, and a secret of the node and the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub [u64; 2]);

/// The access that a session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Every verb, holds and fences.
    ReadWrite,
    /// READs only.
    ReadOnly,
}

/// The way in which a session uses the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// By batches of verbs on the connection.
    Tcp,
    /// By a queue pair of an RDMA device.
    Rdma,
}

impl Fabric {
    /// Returns the scheme of URLs of this fabric.
    #[must_use]
    pub fn scheme(self) -> &'static str {
        match self {
            Fabric::Tcp => "tcp",
            Fabric::Rdma => "rdma",
        }
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme())
    }
}

/// The outcome of a client's prior session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorSession {
    /// The client named no prior session.
    None,
    /// The node does not know the session: the node was restarted since, or too many sessions have ended since.
    Unknown,
    /// The session ended with its connection: none of its verbs executes any more.
    Ended,
    /// The node dropped the session, on request or because the client was cut off: none of its verbs executes any more.
    Fenced,
}

/// The body of a Hello, the client's first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The way in which the client will use the memory; a node of another fabric closes the connection.
    pub fabric: Fabric,
    /// The access that the client requests.
    pub wanted: Grant,
    /// The client's token, if it has one.
    pub token: Option<Token>,
    /// The client's prior session, if it lost one.
    pub prior_session: Option<SessionId>,
    /// The number of words from the start of Main space that the node is to send, at most [`Hello::MAX_SAMPLE_WORDS`].
    pub sample_words: u16,
}

const WANTS_WRITES: u64 = 1;
const HAS_TOKEN: u64 = 2;
const HAS_PRIOR_SESSION: u64 = 4;
const WANTS_RDMA: u64 = 8;

impl Hello {
    /// Maximum number of words of a sample.
    pub const MAX_SAMPLE_WORDS: u16 = 512;

    /// Encodes the body.
    pub fn encode(&self) -> [u64; 7] {
        let mut flags = if self.wanted == Grant::ReadWrite { WANTS_WRITES } else { 0 };
        flags |= if self.token.is_some() { HAS_TOKEN } else { 0 };
        flags |= if self.prior_session.is_some() { HAS_PRIOR_SESSION } else { 0 };
        flags |= if self.fabric == Fabric::Rdma { WANTS_RDMA } else { 0 };
        let token = self.token.map_or([0; 2], |token| token.0);
        let prior = self.prior_session.map_or([0; 2], |session| session.0);
        let what = u64::from(VERSION) | flags << 32 | u64::from(self.sample_words) << 40;
        [MAGIC, what, token[0], token[1], prior[0], prior[1], 0]
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// `Value` for another protocol or version (`what` is "version" then) or invalid flags; `Body` for another length.
    pub fn decode(body: &[u64]) -> Result<Hello, WireError> {
        let &[magic, what, token_low, token_high, prior_low, prior_high, 0] = body else {
            return Err(WireError::Body { what: "a Hello", words: body.len() });
        };
        if magic != MAGIC {
            return Err(WireError::Value { what: "magic number of this protocol", value: magic });
        }
        if what as u32 != VERSION {
            return Err(WireError::Value { what: "version", value: u64::from(what as u32) });
        }
        let (flags, sample_words) = (what >> 32 & 0xff, (what >> 40) as u16);
        let known_flags = WANTS_WRITES | HAS_TOKEN | HAS_PRIOR_SESSION | WANTS_RDMA;
        let is_known = flags & !known_flags == 0 && what >> 56 == 0;
        if !is_known || sample_words > Hello::MAX_SAMPLE_WORDS {
            return Err(WireError::Value { what: "Hello", value: what });
        }
        let token = [token_low, token_high];
        let prior = [prior_low, prior_high];
        Ok(Hello {
            fabric: if flags & WANTS_RDMA == 0 { Fabric::Tcp } else { Fabric::Rdma },
            wanted: if flags & WANTS_WRITES == 0 { Grant::ReadOnly } else { Grant::ReadWrite },
            token: (flags & HAS_TOKEN != 0).then_some(Token(token)),
            prior_session: (flags & HAS_PRIOR_SESSION != 0).then_some(SessionId(prior)),
            sample_words,
        })
    }
}

/// The body of a Welcome, the reply to a Hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The access that the session has: what the client requested, or less.
    pub grant: Grant,
    /// The outcome of the prior session.
    pub prior_session: PriorSession,
    /// The id of the session.
    pub session: SessionId,
    /// The id of the region: memory that came back empty has another one.
    pub region: [u64; 2],
    /// The size of the Main space, in bytes.
    pub main_bytes: u64,
    /// The size of the Device space, in bytes.
    pub device_bytes: u64,
    /// The bytes of one WRITE that no crash can tear: [`guira_fabric::Caps::atomic_write_unit`].
    pub atomic_write_unit: u64,
    /// The time for which the client's machine may be silent before the node drops the session, in milliseconds.
    pub session_timeout_ms: u32,
    /// The maximum number of client slots that the session may hold at once.
    pub session_holds: u32,
    /// The maximum number of client slots that all sessions of the node may hold at once.
    pub node_holds: u32,
    /// The first words of Main space, as many as were requested and exist.
    pub sample: Vec<u64>,
}

impl Welcome {
    /// Number of words before the sample.
    const FIXED_WORDS: usize = 11;

    /// Encodes the body.
    pub fn encode(&self) -> Vec<u64> {
        let grant = u64::from(self.grant == Grant::ReadWrite);
        let prior_session = match self.prior_session {
            PriorSession::None => 0,
            PriorSession::Unknown => 1,
            PriorSession::Ended => 2,
            PriorSession::Fenced => 3,
        };
        let mut body = vec![
            u64::from(VERSION) | grant << 32 | prior_session << 40,
            self.session.0[0],
            self.session.0[1],
            self.region[0],
            self.region[1],
            self.main_bytes,
            self.device_bytes,
            self.atomic_write_unit,
            u64::from(self.session_timeout_ms),
            u64::from(self.session_holds) | u64::from(self.node_holds) << 32,
            self.sample.len() as u64,
        ];
        body.extend_from_slice(&self.sample);
        body
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// `Body` or `Value` if it is invalid.
    pub fn decode(body: &[u64]) -> Result<Welcome, WireError> {
        let cut = WireError::Body { what: "a Welcome", words: body.len() };
        let (fixed, sample) = body.split_first_chunk::<{ Welcome::FIXED_WORDS }>().ok_or(cut)?;
        let &[what, session_low, session_high, region_low, region_high, main, device, unit, timeout, holds, sampled] =
            fixed;
        let (grant, prior_session) = (what >> 32 & 0xff, what >> 40);
        let wrong = WireError::Value { what: "Welcome", value: what };
        if what as u32 != VERSION {
            return Err(WireError::Value { what: "version", value: u64::from(what as u32) });
        }
        if sampled != sample.len() as u64 || sample.len() > usize::from(Hello::MAX_SAMPLE_WORDS) {
            return Err(cut);
        }
        Ok(Welcome {
            grant: match grant {
                0 => Grant::ReadOnly,
                1 => Grant::ReadWrite,
                _ => return Err(wrong),
            },
            prior_session: match prior_session {
                0 => PriorSession::None,
                1 => PriorSession::Unknown,
                2 => PriorSession::Ended,
                3 => PriorSession::Fenced,
                _ => return Err(wrong),
            },
            session: SessionId([session_low, session_high]),
            region: [region_low, region_high],
            main_bytes: main,
            device_bytes: device,
            atomic_write_unit: unit,
            session_timeout_ms: u32::try_from(timeout)
                .map_err(|_| WireError::Value { what: "timeout", value: timeout })?,
            session_holds: holds as u32,
            node_holds: (holds >> 32) as u32,
            sample: sample.to_vec(),
        })
    }
}

/// The reason why the node closes a connection: the body of a Close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The client sent an invalid frame, or one that is not allowed now.
    #[error("the node received an invalid frame")]
    ProtocolError,
    /// The client speaks another version of the protocol.
    #[error("the node speaks version {node} of the protocol")]
    Version {
        /// The node's version.
        node: u32,
    },
    /// The client has no token, or a wrong one.
    #[error("token missing or wrong")]
    Unauthorized,
    /// The node already has its maximum number of sessions.
    #[error(
        "the node already has its maximum number of sessions ({limit}); a program takes one, and one more for each \
         client, so put needs 2 and load --threads 4 needs 5: close others, or raise the node's limit (--sessions)"
    )]
    Full {
        /// The maximum number of sessions.
        limit: u32,
    },
    /// Another client asked the node to drop this session.
    #[error("the node dropped this session on request")]
    Fenced,
    /// The client did not send its Hello, or did not read its replies, in time.
    #[error("the node closed the connection after waiting {seconds} s for the client")]
    TooSlow {
        /// The time that the node waited, in seconds.
        seconds: u32,
    },
    /// The node is shutting down.
    #[error("the node is shutting down")]
    Shutdown,
    /// The node requires TLS, and the client does not use it. This reason is sent unencrypted.
    #[error("the node requires TLS, and this client does not use it")]
    TlsRequired,
    /// Bytes of the region are lost, usually because its file was truncated. The node stops.
    #[error("the node has lost its memory: the file was truncated, or can no longer be read")]
    MemoryLost,
    /// The node's memory is used in another way than the client asked for.
    #[error("the node serves {node}:// and no other clients")]
    OtherFabric {
        /// The fabric of the node.
        node: Fabric,
    },
    /// The client's address has as many sessions as the node allows for one address.
    #[error(
        "the node already has the maximum number of sessions from this client's address ({limit}); a program takes \
         one, and one more for each client: close others, or raise the node's limit (--sessions-per-address)"
    )]
    AddressFull {
        /// The maximum number of sessions.
        limit: u32,
    },
}

impl CloseReason {
    /// Encodes the body.
    pub fn encode(&self) -> [u64; 2] {
        match *self {
            CloseReason::ProtocolError => [1, 0],
            CloseReason::Version { node } => [2, u64::from(node)],
            CloseReason::Unauthorized => [3, 0],
            CloseReason::Full { limit } => [4, u64::from(limit)],
            CloseReason::Fenced => [5, 0],
            CloseReason::TooSlow { seconds } => [6, u64::from(seconds)],
            CloseReason::Shutdown => [7, 0],
            CloseReason::TlsRequired => [8, 0],
            CloseReason::MemoryLost => [9, 0],
            CloseReason::AddressFull { limit } => [10, u64::from(limit)],
            CloseReason::OtherFabric { node: Fabric::Tcp } => [11, 0],
            CloseReason::OtherFabric { node: Fabric::Rdma } => [11, 1],
        }
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// `Body` or `Value` if it is invalid.
    pub fn decode(body: &[u64]) -> Result<CloseReason, WireError> {
        let &[reason, detail] = body else { return Err(WireError::Body { what: "a Close", words: body.len() }) };
        let number =
            u32::try_from(detail).map_err(|_| WireError::Value { what: "number of a Close", value: detail })?;
        match (reason, number) {
            (1, 0) => Ok(CloseReason::ProtocolError),
            (2, node) => Ok(CloseReason::Version { node }),
            (3, 0) => Ok(CloseReason::Unauthorized),
            (4, limit) => Ok(CloseReason::Full { limit }),
            (5, 0) => Ok(CloseReason::Fenced),
            (6, seconds) => Ok(CloseReason::TooSlow { seconds }),
            (7, 0) => Ok(CloseReason::Shutdown),
            (8, 0) => Ok(CloseReason::TlsRequired),
            (9, 0) => Ok(CloseReason::MemoryLost),
            (10, limit) => Ok(CloseReason::AddressFull { limit }),
            (11, 0) => Ok(CloseReason::OtherFabric { node: Fabric::Tcp }),
            (11, 1) => Ok(CloseReason::OtherFabric { node: Fabric::Rdma }),
            _ => Err(WireError::Value { what: "reason of a Close", value: reason }),
        }
    }
}

/// The reply to a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldReply {
    /// A living owner holds the slot.
    Taken,
    /// The session holds the slot now: the previous owner is dead, and none of its verbs executes any more.
    Granted,
}

impl HoldReply {
    /// Encodes the body.
    pub fn encode(&self) -> [u64; 1] {
        [u64::from(*self == HoldReply::Granted)]
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// `Body` or `Value` if it is invalid.
    pub fn decode(body: &[u64]) -> Result<HoldReply, WireError> {
        match *body {
            [0] => Ok(HoldReply::Taken),
            [1] => Ok(HoldReply::Granted),
            [value] => Err(WireError::Value { what: "reply to a hold", value }),
            _ => Err(WireError::Body { what: "a reply to a hold", words: body.len() }),
        }
    }
}

/// The reply to a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceReply {
    /// No session of this node holds the slot.
    NoSession,
    /// The session that held the slot is gone, and none of its verbs executes any more.
    Dropped,
}

impl FenceReply {
    /// Encodes the body.
    pub fn encode(&self) -> [u64; 1] {
        [u64::from(*self == FenceReply::Dropped)]
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// `Body` or `Value` if it is invalid.
    pub fn decode(body: &[u64]) -> Result<FenceReply, WireError> {
        match *body {
            [0] => Ok(FenceReply::NoSession),
            [1] => Ok(FenceReply::Dropped),
            [value] => Err(WireError::Value { what: "reply to a fence", value }),
            _ => Err(WireError::Body { what: "a reply to a fence", words: body.len() }),
        }
    }
}

/// The body of a Reserve: a part of the Main space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The first byte, and the one behind the last.
    pub bytes: (u64, u64),
}

impl Reserve {
    /// Maximum number of bytes that one request may ask for: the node clears them while other sessions wait.
    pub const MAX_BYTES: u64 = 1 << 20;

    /// Encodes the body.
    pub fn encode(&self) -> [u64; 2] {
        [self.bytes.0, self.bytes.1]
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// `Body` for another length; `Value` if there are no bytes, or more than [`Reserve::MAX_BYTES`], or bytes that are
    /// no addresses.
    pub fn decode(body: &[u64]) -> Result<Reserve, WireError> {
        let &[start, end] = body else { return Err(WireError::Body { what: "a Reserve", words: body.len() }) };
        match end.checked_sub(start) {
            Some(1..=Reserve::MAX_BYTES) if end >> 63 == 0 => Ok(Reserve { bytes: (start, end) }),
            _ => Err(WireError::Value { what: "end of a Reserve", value: end }),
        }
    }
}

/// Encodes the body of a hold, release or fence of client slot `slot`.
pub fn encode_slot(slot: u16) -> [u64; 1] {
    [u64::from(slot)]
}

/// Decodes the body of a hold, release or fence.
///
/// # Errors
/// `Body` or `Value` if it is not a client slot.
pub fn decode_slot(body: &[u64]) -> Result<u16, WireError> {
    let &[value] = body else { return Err(WireError::Body { what: "a client slot", words: body.len() }) };
    u16::try_from(value).map_err(|_| WireError::Value { what: "client slot", value })
}
