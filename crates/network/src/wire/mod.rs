//! The protocol between clients and a memory node, as pure functions over words: no socket, no clock.
//!
//! A frame is a header of two words and a body of whole words. Numbers in this module are in the byte order of
//! this machine; [`to_wire`] and [`from_wire`] convert words to little-endian and back, in place, and do nothing on
//! little-endian machines. Decoders accept any words: an invalid frame is a [`WireError`], never a panic. The format is
//! described byte by byte in docs/wire.md. The bodies of batches are those of the TCP
//! fabric.

mod control;
mod exchange;
mod frame;
mod refusal;

pub use control::{
    CloseReason, Fabric, FenceReply, Grant, Hello, HoldReply, PriorSession, Reserve, SessionId, Token, Welcome,
    decode_slot, encode_slot,
};
pub use exchange::{
    ClientParameters, Gid, GidError, MAX_SEGMENTS, Mtu, PACKET_NUMBER_MASK, PacketNumber, QueuePairEndpoint,
    QueuePairNumber, Segment, TargetParameters, decode_segments, encode_segments,
};
pub use frame::{
    HEADER_WORDS, HTTP, Header, Kind, MAX_BATCH_VERBS, MAX_FRAME_WORDS, MAX_VERB_WORDS, append, foreign, from_wire,
    to_wire,
};
pub use refusal::{Refusal, decode_addr, decode_refusal, encode_addr, encode_refusal};

/// The magic number of this protocol: the first word of a client's first body.
pub const MAGIC: u64 = u64::from_le_bytes(*b"guiratcp");
/// The version of the protocol that both sides must speak.
pub const VERSION: u32 = 1;

/// Words that are not a valid frame of this protocol. The receiver of such a frame closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The length of a frame is not a multiple of 8, shorter than its header, or longer than [`MAX_FRAME_WORDS`].
    #[error("a frame of {bytes} bytes is invalid: its length must be a multiple of 8, from 16 to {limit}")]
    Length {
        /// The length that its header states.
        bytes: u32,
        /// The length of the longest frame.
        limit: u32,
    },
    /// The first bytes of a frame are those of another protocol.
    #[error("its first bytes are those of {protocol}, not of Guira's protocol")]
    Foreign {
        /// The other protocol.
        protocol: &'static str,
    },
    /// The kind of a frame is unknown to this side, or not expected now.
    #[error("a frame of kind {kind:#04x} is not expected here")]
    Kind {
        /// The kind of the frame.
        kind: u8,
    },
    /// The length of a body does not match the kind of its frame.
    #[error("a body of {words} word{} is not {what}", if *words == 1 { "" } else { "s" })]
    Body {
        /// The expected contents.
        what: &'static str,
        /// The length of the body, in words.
        words: usize,
    },
    /// A number is outside of its valid values.
    #[error("{value:#x} is not a valid {what}")]
    Value {
        /// The field that has the number.
        what: &'static str,
        /// The number.
        value: u64,
    },
}
