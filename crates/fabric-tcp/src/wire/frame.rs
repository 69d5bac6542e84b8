//! Frames: a header of two words, and a body.

use super::{MAX_BATCH_VERBS, MAX_VERB_WORDS, WireError};

/// Words of a header.
pub const HEADER_WORDS: usize = 2;
/// Words of the longest frame, its header included: one verb of the most words, beside a batch of the most verbs
/// without data.
pub const MAX_FRAME_WORDS: usize = HEADER_WORDS + MAX_VERB_WORDS + 6 * MAX_BATCH_VERBS;

const _: () = assert!(MAX_FRAME_WORDS * 8 < u32::MAX as usize, "a frame's length in bytes has 32 bits");

/// What a frame says. Replies have the highest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A client's first frame: who it is and what it wants. Answer: [`Kind::Welcome`].
    Hello = 0x01,
    /// Verbs, to be executed in order. Answer: [`Kind::Done`] or [`Kind::Refused`].
    Batch = 0x02,
    /// Asks for the liveness of a client slot. Answer: [`Kind::Held`].
    Hold = 0x03,
    /// Gives the liveness of a client slot back, after all batches that were sent before. No answer.
    Release = 0x04,
    /// Asks the node to drop the session that has the liveness of a slot. Answer: [`Kind::Fenced`].
    Fence = 0x05,
    /// Asks what the node has counted. Answer: [`Kind::Counted`].
    Count = 0x06,
    /// The session is open.
    Welcome = 0x81,
    /// A batch was executed: what its READs and atomics found.
    Done = 0x82,
    /// Whether the session has the slot's liveness now.
    Held = 0x83,
    /// What became of the session that had the slot's liveness.
    Fenced = 0x85,
    /// The node's counters.
    Counted = 0x86,
    /// A request was refused whole; nothing of it was executed.
    Refused = 0x87,
    /// The node closes the connection, and why. Its last frame.
    Close = 0x88,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 13] = [
        Kind::Hello,
        Kind::Batch,
        Kind::Hold,
        Kind::Release,
        Kind::Fence,
        Kind::Count,
        Kind::Welcome,
        Kind::Done,
        Kind::Held,
        Kind::Fenced,
        Kind::Counted,
        Kind::Refused,
        Kind::Close,
    ];

    #[inline(always)]
    fn of(byte: u8) -> Result<Kind, WireError> {
        // The two that matter for speed first.
        match byte {
            0x02 => Ok(Kind::Batch),
            0x82 => Ok(Kind::Done),
            _ => Kind::ALL.into_iter().find(|kind| *kind as u8 == byte).ok_or(WireError::Kind { kind: byte }),
        }
    }
}

/// The first two words of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Words of the frame, header included.
    pub words: usize,
    /// What it says.
    pub kind: Kind,
    /// Verbs of a batch; otherwise 0.
    pub count: u16,
    /// Chosen by the client, repeated in the answer.
    pub id: u64,
}

impl Header {
    /// The header's words.
    ///
    /// # Panics
    /// If the frame is longer than [`MAX_FRAME_WORDS`].
    #[inline(always)]
    pub fn encode(&self) -> [u64; HEADER_WORDS] {
        assert!((HEADER_WORDS..=MAX_FRAME_WORDS).contains(&self.words), "a frame of {} words", self.words);
        let bytes = self.words as u64 * 8;
        [bytes | u64::from(self.kind as u8) << 32 | u64::from(self.count) << 40, self.id]
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Length`, `Kind`, `Value` if bits are set that mean nothing, or a frame that is no batch counts verbs.
    #[inline(always)]
    pub fn decode([word, id]: [u64; HEADER_WORDS]) -> Result<Header, WireError> {
        let (bytes, count) = (word as u32, (word >> 40) as u16);
        let words = bytes as usize / 8;
        if !bytes.is_multiple_of(8) || !(HEADER_WORDS..=MAX_FRAME_WORDS).contains(&words) {
            return Err(WireError::Length { bytes, limit: MAX_FRAME_WORDS as u32 * 8 });
        }
        let kind = Kind::of((word >> 32) as u8)?;
        if word >> 56 != 0 || (count != 0) != (kind == Kind::Batch) {
            return Err(WireError::Value { what: "first word of a frame", value: word });
        }
        Ok(Header { words, kind, count, id })
    }
}

/// Appends a frame of `kind` with `body` to `out`. For frames other than batches and their answers, which are written
/// where they are sent from.
///
/// # Panics
/// If the body is too long for a frame.
pub fn append(out: &mut Vec<u64>, kind: Kind, id: u64, body: &[u64]) {
    out.extend(Header { words: HEADER_WORDS + body.len(), kind, count: 0, id }.encode());
    out.extend_from_slice(body);
}

/// Turns words of this machine into those of the wire, in place.
#[inline(always)]
pub fn to_wire(words: &mut [u64]) {
    if cfg!(target_endian = "big") {
        words.iter_mut().for_each(|word| *word = word.to_le());
    }
}

/// Turns words of the wire into those of this machine, in place.
#[inline(always)]
pub fn from_wire(words: &mut [u64]) {
    if cfg!(target_endian = "big") {
        words.iter_mut().for_each(|word| *word = u64::from_le(*word));
    }
}
