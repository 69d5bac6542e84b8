//! Frames: a header of two words, and a body.

use guira_fabric::Profile;

use super::WireError;

/// Maximum number of verbs of a batch.
pub const MAX_BATCH_VERBS: usize = Profile::Tcp.caps().max_batch;
/// Maximum number of words of one READ or WRITE.
pub const MAX_VERB_WORDS: usize = Profile::Tcp.caps().max_verb_words;

const _: () = assert!(MAX_BATCH_VERBS <= u16::MAX as usize, "a batch's verbs are counted in 16 bits");

/// The words of a header.
pub const HEADER_WORDS: usize = 2;
/// The words of the longest frame, header included: one verb of the most words, beside a batch of the most verbs
/// without data.
pub const MAX_FRAME_WORDS: usize = HEADER_WORDS + MAX_VERB_WORDS + 6 * MAX_BATCH_VERBS;

const _: () = assert!(MAX_FRAME_WORDS * 8 < u32::MAX as usize, "a frame's length in bytes has 32 bits");

/// The kind of a frame. Kinds that the node sends have the highest bit set. All but [`Kind::Batch`] and [`Kind::Done`]
/// are control frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The client's first frame: its token and the access it requests. Reply: [`Kind::Welcome`].
    Hello = 0x01,
    /// Verbs to be executed in order. Reply: [`Kind::Done`] or [`Kind::Refused`].
    Batch = 0x02,
    /// Requests the liveness of a client slot. Reply: [`Kind::Held`].
    Hold = 0x03,
    /// Gives the liveness of a client slot back, after all batches that were sent before. No reply.
    Release = 0x04,
    /// Asks the node to drop the session that has the liveness of a slot. Reply: [`Kind::Fenced`].
    Fence = 0x05,
    /// Asks for the node's counters. Reply: [`Kind::Counted`].
    Count = 0x06,
    /// The client's queue pair, over RDMA. Reply: [`Kind::Attached`].
    Attach = 0x07,
    /// Asks for memory for a part of the Main space, where the node has addresses without memory. Reply:
    /// [`Kind::Reserved`].
    Reserve = 0x08,
    /// The session is open.
    Welcome = 0x81,
    /// The results of the READs and atomics of a batch that was executed.
    Done = 0x82,
    /// Whether the session has the liveness of the slot now.
    Held = 0x83,
    /// Whether the session that had the liveness of the slot was dropped.
    Fenced = 0x85,
    /// The node's counters.
    Counted = 0x86,
    /// The reason why a request was refused; nothing of it was executed.
    Refused = 0x87,
    /// The reason why the node closes the connection. Its last frame.
    Close = 0x88,
    /// The node's queue pair, and the keys of its memory.
    Attached = 0x89,
    /// The part of the Main space has memory.
    Reserved = 0x8a,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 17] = [
        Kind::Hello,
        Kind::Batch,
        Kind::Hold,
        Kind::Release,
        Kind::Fence,
        Kind::Count,
        Kind::Attach,
        Kind::Reserve,
        Kind::Welcome,
        Kind::Done,
        Kind::Held,
        Kind::Fenced,
        Kind::Counted,
        Kind::Refused,
        Kind::Close,
        Kind::Attached,
        Kind::Reserved,
    ];

    #[inline(always)]
    fn of(byte: u8) -> Result<Kind, WireError> {
        // The two hot kinds first.
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
    /// The words of the frame, header included.
    pub words: usize,
    /// The kind of the frame.
    pub kind: Kind,
    /// The verbs of a batch; 0 in other frames.
    pub count: u16,
    /// The id of the request, chosen by the client and repeated in the reply.
    pub id: u64,
}

impl Header {
    /// Encodes the header.
    ///
    /// # Panics
    /// If the frame is longer than [`MAX_FRAME_WORDS`].
    #[inline(always)]
    pub fn encode(&self) -> [u64; HEADER_WORDS] {
        assert!((HEADER_WORDS..=MAX_FRAME_WORDS).contains(&self.words), "a frame of {} words", self.words);
        let bytes = self.words as u64 * 8;
        [bytes | u64::from(self.kind as u8) << 32 | u64::from(self.count) << 40, self.id]
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// `Foreign`, `Length`, `Kind`; `Value` if reserved bits are set, or the count is not 0 in a frame other than a
    /// batch.
    #[inline(always)]
    pub fn decode([word, id]: [u64; HEADER_WORDS]) -> Result<Header, WireError> {
        let (bytes, count) = (word as u32, (word >> 40) as u16);
        let words = bytes as usize / 8;
        if !bytes.is_multiple_of(8) || !(HEADER_WORDS..=MAX_FRAME_WORDS).contains(&words) {
            return Err(not_a_frame([word, id]));
        }
        let kind = Kind::of((word >> 32) as u8)?;
        if word >> 56 != 0 || (count != 0) != (kind == Kind::Batch) {
            return Err(WireError::Value { what: "first word of a frame", value: word });
        }
        Ok(Header { words, kind, count, id })
    }
}

/// Protocols, by how their requests or answers begin. None of these is the length of a frame.
const PROTOCOLS: [(&[u8], &str); 20] = [
    (b"HTTP/", HTTP),
    (b"GET /", HTTP),
    (b"HEAD /", HTTP),
    (b"POST /", HTTP),
    (b"PUT /", HTTP),
    (b"DELETE /", HTTP),
    (b"OPTIONS ", HTTP),
    (b"CONNECT ", HTTP),
    (b"PRI * HTTP/2", HTTP),
    (b"SSH-", "SSH"),
    (b"PROXY ", "the PROXY protocol of a load balancer"),
    (b"\r\n\r\n\0\r\nQUIT\n", "the PROXY protocol of a load balancer"),
    (b"*", "Redis"),
    (b"-ERR ", "Redis"),
    (b"ERROR\r\n", "memcached"),
    (b"get ", "memcached"),
    (b"set ", "memcached"),
    (b"stats", "memcached"),
    (b"220 ", "SMTP or FTP"),
    // Handshakes and alerts; the third byte is a version.
    (b"\x16\x03", "TLS"),
];
/// The protocol of browsers, and of what probes whether a service is alive.
pub const HTTP: &str = "HTTP";

/// Returns the protocol, other than this one, of a stream that begins with these bytes, if it is known.
pub fn foreign(first: &[u8]) -> Option<&'static str> {
    PROTOCOLS.into_iter().find(|(start, _)| first.starts_with(start)).map(|(_, protocol)| protocol)
}

/// Says what the first words of a stream are that do not begin a frame.
#[cold]
fn not_a_frame(words: [u64; HEADER_WORDS]) -> WireError {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    match foreign(&bytes) {
        Some(protocol) => WireError::Foreign { protocol },
        None => WireError::Length { bytes: words[0] as u32, limit: MAX_FRAME_WORDS as u32 * 8 },
    }
}

/// Appends a control frame of `kind` with `body` to `out`. Batches and their replies are written in place instead.
///
/// # Panics
/// If the body is too long for a frame.
pub fn append(out: &mut Vec<u64>, kind: Kind, id: u64, body: &[u64]) {
    out.extend(Header { words: HEADER_WORDS + body.len(), kind, count: 0, id }.encode());
    out.extend_from_slice(body);
}

/// Converts words from the byte order of this machine to that of the wire, in place.
#[inline(always)]
pub fn to_wire(words: &mut [u64]) {
    if cfg!(target_endian = "big") {
        words.iter_mut().for_each(|word| *word = word.to_le());
    }
}

/// Converts words from the byte order of the wire to that of this machine, in place.
#[inline(always)]
pub fn from_wire(words: &mut [u64]) {
    if cfg!(target_endian = "big") {
        words.iter_mut().for_each(|word| *word = u64::from_le(*word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_named() {
        for (bytes, named) in [
            (b"HTTP/1.1 400 Bad", "HTTP"),
            (b"GET / HTTP/1.1\r\n", "HTTP"),
            (b"*1\r\n$4\r\nPING\r\n..", "Redis"),
            (b"SSH-2.0-OpenSSH_", "SSH"),
            (b"ERROR\r\nERROR\r\n..", "memcached"),
            (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03abcde", "TLS"),
        ] {
            let words = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")));
            assert_eq!(Header::decode(words), Err(WireError::Foreign { protocol: named }));
            assert_eq!(foreign(&bytes[..8]), Some(named));
        }
        assert!(matches!(Header::decode([u64::MAX, 0]), Err(WireError::Length { .. })));
        // No frame begins like one of them.
        for (start, named) in PROTOCOLS {
            let mut word = [0; 8];
            let bytes = start.len().min(8);
            word[..bytes].copy_from_slice(&start[..bytes]);
            let decoded = Header::decode([u64::from_le_bytes(word), 0]);
            assert!(decoded.is_err(), "{named}: {decoded:?}");
        }
    }
}
