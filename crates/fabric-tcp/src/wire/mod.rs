//! The protocol between clients and memory node, as pure functions over words: no socket, no clock.
//!
//! A frame is a header of two words and a body of whole words. Numbers in this module are in the order of this machine;
//! [`to_wire`] and [`from_wire`] turn words into little-endian bytes and back, in place, and do nothing on machines
//! that are little-endian themselves. Decoders take any words: what is no frame is a [`WireError`], never a panic.
//! Byte by byte: docs/wire.md.

mod batch;
mod control;
mod frame;
mod refusal;

pub use batch::{
    BatchShape, MAX_BATCH_VERBS, MAX_VERB_WORDS, decode_reply, encode_batch, found_words, parse_batch, parse_batch_into,
};
pub use control::{
    CloseReason, FenceReply, Grant, Hello, HoldReply, PriorSession, SessionId, Token, Welcome, decode_slot, encode_slot,
};
pub use frame::{HEADER_WORDS, Header, Kind, MAX_FRAME_WORDS, append, from_wire, to_wire};
pub use refusal::{Refusal, decode_refusal, encode_refusal};

/// Says that a connection speaks this protocol: the first word of a client's first body.
pub const MAGIC: u64 = u64::from_le_bytes(*b"guiratcp");
/// The version both sides must speak.
pub const VERSION: u32 = 1;

/// Words that are no frame of this protocol. Whoever receives such a frame closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A frame's length is not a multiple of 8, shorter than its header, or longer than [`MAX_FRAME_WORDS`].
    #[error("a frame of {bytes} bytes is none: whole words, from 16 bytes to {limit}")]
    Length {
        /// What its header says.
        bytes: u32,
        /// The longest frame.
        limit: u32,
    },
    /// A frame of a kind that this side does not know, or does not expect now.
    #[error("a frame of kind {kind:#04x} has no meaning here")]
    Kind {
        /// Its kind.
        kind: u8,
    },
    /// A body that does not hold what its kind says.
    #[error("a body of {words} word{} does not hold {what}", if *words == 1 { "" } else { "s" })]
    Body {
        /// What it should hold.
        what: &'static str,
        /// Its length.
        words: usize,
    },
    /// A number that is none of those which have a meaning.
    #[error("{value:#x} is no {what}")]
    Value {
        /// What it should be.
        what: &'static str,
        /// The number.
        value: u64,
    },
}
