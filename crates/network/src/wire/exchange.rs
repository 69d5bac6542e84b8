//! The bodies of Attach and Attached: the parameters that two sides exchange to connect a queue pair.
//!
//! The client creates a queue pair and sends its [`ClientParameters`]; the memory node accepts, connects its own queue
//! pair and answers with [`TargetParameters`]; the client connects. One control round trip, no RDMA message.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use guira_fabric::{MaskedCas, WORD_BYTES};

use super::{Grant, WireError};

/// The address of a port: an IPv6 address, in RoCE v2 often an IPv4 address mapped into one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the IPv4 address that is mapped into this GID (`::ffff:a.b.c.d`), if it is one.
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// Whether all bits are zero: an unused entry of a GID table.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether it is a link-local address (`fe80::/10`), which two ports of one link may share.
    #[must_use]
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// An error of reading a GID from text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a GID, which is written as an IPv6 or IPv4 address")]
pub struct GidError(String);

impl FromStr for Gid {
    type Err = GidError;

    /// Reads an IPv6 address, as in sysfs or short, or an IPv4 address, which is mapped.
    fn from_str(text: &str) -> Result<Gid, GidError> {
        let ipv4 = || text.parse::<Ipv4Addr>().map(|address| address.to_ipv6_mapped());
        let address = text.parse::<Ipv6Addr>().or_else(|_| ipv4()).map_err(|_| GidError(text.to_owned()))?;
        Ok(Gid(address.octets()))
    }
}

/// The largest payload of a packet: 256, 512, 1024, 2048 or 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u16);

impl Mtu {
    /// Returns the MTU of this many bytes, if it is one.
    #[must_use]
    pub fn of_bytes(bytes: u32) -> Option<Mtu> {
        let is_mtu = bytes.is_power_of_two() && (256..=4096).contains(&bytes);
        is_mtu.then_some(Mtu(bytes as u16))
    }

    /// Returns the MTU in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.0.into()
    }
}

impl fmt::Debug for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mtu({})", self.0)
    }
}

/// The number of a queue pair on its device, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePairNumber(pub u32);

/// The number of a queue pair's first packet, 24 bits. It is random, so that packets of an earlier queue pair with the
/// same number are not taken for packets of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketNumber(pub u32);

/// The bits of a queue pair number and of a packet number.
pub const PACKET_NUMBER_MASK: u32 = (1 << 24) - 1;

/// The address of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairEndpoint {
    /// The port's address.
    pub gid: Gid,
    /// The port's local identifier in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The queue pair's number.
    pub queue_pair: QueuePairNumber,
    /// The number of the first packet that it sends.
    pub first_packet: PacketNumber,
    /// The MTU of its port.
    pub mtu: Mtu,
    /// READs and atomics in progress that it executes for the other side at most.
    pub reads_in: u8,
    /// READs and atomics in progress that it asks the other side for at most.
    pub reads_out: u8,
}

impl QueuePairEndpoint {
    const WORDS: usize = 4;

    fn encode(&self) -> [u64; QueuePairEndpoint::WORDS] {
        let QueuePairEndpoint { gid, lid, queue_pair, first_packet, mtu, reads_in, reads_out } = self;
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| gid.0[at + byte]));
        let numbers = u64::from(queue_pair.0) | u64::from(first_packet.0) << 24 | u64::from(*lid) << 48;
        let limits = u64::from(mtu.0) | u64::from(*reads_in) << 16 | u64::from(*reads_out) << 24;
        [half(0), half(8), numbers, limits]
    }

    fn decode(&[low, high, numbers, limits]: &[u64; QueuePairEndpoint::WORDS]) -> Result<Self, WireError> {
        let mut gid = Gid([0; 16]);
        gid.0[..8].copy_from_slice(&low.to_le_bytes());
        gid.0[8..].copy_from_slice(&high.to_le_bytes());
        let mtu = Mtu::of_bytes(u32::from(limits as u16));
        let (Some(mtu), 0) = (mtu, limits >> 32) else {
            return Err(WireError::Value { what: "limits of a queue pair", value: limits });
        };
        Ok(QueuePairEndpoint {
            gid,
            lid: (numbers >> 48) as u16,
            queue_pair: QueuePairNumber(numbers as u32 & PACKET_NUMBER_MASK),
            first_packet: PacketNumber((numbers >> 24) as u32 & PACKET_NUMBER_MASK),
            mtu,
            reads_in: (limits >> 16) as u8,
            reads_out: (limits >> 24) as u8,
        })
    }
}

/// A contiguous part of a space, registered under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte in the space, a multiple of 8.
    pub offset: u64,
    /// The address that the memory node's device knows it by; in the device's own memory it is an offset.
    pub address: u64,
    /// Its size in bytes, a multiple of 8.
    pub bytes: u64,
    /// The key that the grant's queue pairs use.
    pub key: u32,
}

impl Segment {
    const WORDS: usize = 4;

    /// Returns the byte of the space behind its last.
    #[inline(always)]
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// A client's side of a queue pair: the body of an Attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientParameters {
    /// Its queue pair.
    pub endpoint: QueuePairEndpoint,
}

impl ClientParameters {
    /// Encodes the body.
    #[must_use]
    pub fn encode(&self) -> [u64; QueuePairEndpoint::WORDS] {
        self.endpoint.encode()
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// `Body` or `Value` if it is invalid.
    pub fn decode(body: &[u64]) -> Result<ClientParameters, WireError> {
        let body = body.try_into().map_err(|_| WireError::Body { what: "a queue pair", words: body.len() })?;
        QueuePairEndpoint::decode(body).map(|endpoint| ClientParameters { endpoint })
    }
}

/// The memory node's side of a queue pair: the body of an Attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetParameters {
    /// Its queue pair.
    pub endpoint: QueuePairEndpoint,
    /// The client's access.
    pub grant: Grant,
    /// The way in which the node's device executes masked CAS: `Native` or `CasLoop`.
    pub masked_cas: MaskedCas,
    /// The segments of the Main space, in order: all of it, or as much as has memory.
    pub main: Vec<Segment>,
    /// The segments of the Device space, in order; together they are the space.
    pub device: Vec<Segment>,
}

/// Maximum number of segments of one space.
pub const MAX_SEGMENTS: usize = 4096;

impl TargetParameters {
    /// Number of words before the segments.
    const FIXED_WORDS: usize = QueuePairEndpoint::WORDS + 1;

    /// Encodes the body.
    ///
    /// # Panics
    /// If a space has more than [`MAX_SEGMENTS`].
    #[must_use]
    pub fn encode(&self) -> Vec<u64> {
        assert!(self.main.len() <= MAX_SEGMENTS && self.device.len() <= MAX_SEGMENTS, "too many segments");
        let grant = u64::from(self.grant == Grant::ReadWrite);
        let masked_cas = u64::from(self.masked_cas == MaskedCas::Native);
        let mut body = self.endpoint.encode().to_vec();
        body.push(self.main.len() as u64 | (self.device.len() as u64) << 16 | grant << 32 | masked_cas << 40);
        body.extend(encode_segments(&self.main));
        body.extend(encode_segments(&self.device));
        body
    }

    /// Decodes a body, with segments as [`decode_segments`] returns them.
    ///
    /// # Errors
    /// `Body` or `Value` if it is invalid.
    pub fn decode(body: &[u64]) -> Result<TargetParameters, WireError> {
        let cut = WireError::Body { what: "a queue pair and its memory", words: body.len() };
        let (fixed, listed) = body.split_first_chunk::<{ TargetParameters::FIXED_WORDS }>().ok_or(cut)?;
        let [low, high, numbers, limits, counts] = *fixed;
        let endpoint = QueuePairEndpoint::decode(&[low, high, numbers, limits])?;
        let (main, device) = (counts as u16 as usize, (counts >> 16) as u16 as usize);
        let (grant, masked_cas) = match (counts >> 32 & 0xff, counts >> 40) {
            (grant @ 0..=1, masked_cas @ 0..=1) => (grant, masked_cas),
            _ => return Err(WireError::Value { what: "access to memory", value: counts }),
        };
        if listed.len() != (main + device) * Segment::WORDS {
            return Err(cut);
        }
        let (main, device) = listed.split_at(main * Segment::WORDS);
        Ok(TargetParameters {
            endpoint,
            grant: if grant == 0 { Grant::ReadOnly } else { Grant::ReadWrite },
            masked_cas: if masked_cas == 0 { MaskedCas::CasLoop } else { MaskedCas::Native },
            main: decode_segments(main)?,
            device: decode_segments(device)?,
        })
    }
}

/// Encodes segments of a space: the body of a Reserved over RDMA.
#[must_use]
pub fn encode_segments(segments: &[Segment]) -> Vec<u64> {
    let words = |Segment { offset, address, bytes, key }: &Segment| [*offset, *address, *bytes, u64::from(*key)];
    segments.iter().flat_map(words).collect()
}

/// Decodes segments of a space. They are in the order of their offsets and do not overlap; each is not empty, is whole
/// words, and ends within the address space of its side and within the 2^63 bytes of a space.
///
/// # Errors
/// `Body` or `Value` if they are not, or there are more than [`MAX_SEGMENTS`].
pub fn decode_segments(words: &[u64]) -> Result<Vec<Segment>, WireError> {
    if !words.len().is_multiple_of(Segment::WORDS) || words.len() / Segment::WORDS > MAX_SEGMENTS {
        return Err(WireError::Body { what: "segments of memory", words: words.len() });
    }
    let mut end = 0_u64;
    let one = |words: &[u64]| {
        let (offset, address, bytes) = (words[0], words[1], words[2]);
        let wrong = |what, value| WireError::Value { what, value };
        let key = u32::try_from(words[3]).map_err(|_| wrong("key of memory", words[3]))?;
        let is_whole = [offset, address, bytes].iter().all(|value| value.is_multiple_of(WORD_BYTES));
        if bytes == 0 || !is_whole || address.checked_add(bytes).is_none() {
            return Err(wrong("length or address of memory", bytes));
        }
        // Addresses of verbs have 63 bits.
        let is_next = offset >= end;
        end = offset
            .checked_add(bytes)
            .filter(|end| is_next && end >> 63 == 0)
            .ok_or(wrong("place of memory", offset))?;
        Ok(Segment { offset, address, bytes, key })
    };
    words.chunks_exact(Segment::WORDS).map(one).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gids_are_read_in_every_spelling() {
        let mapped: Gid = "10.0.0.1".parse().unwrap();
        assert_eq!(mapped, "0000:0000:0000:0000:0000:ffff:0a00:0001".parse().unwrap());
        assert_eq!(mapped, "::ffff:10.0.0.1".parse().unwrap());
        assert_eq!(mapped.ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(mapped.to_string(), "::ffff:10.0.0.1");
        let local: Gid = "fe80:0000:0000:0000:b4a7:9cff:fefd:552f".parse().unwrap();
        assert!(local.is_link_local() && local.ipv4().is_none() && !local.is_zero());
        assert_eq!(format!("{local:?}"), "Gid(fe80::b4a7:9cff:fefd:552f)");
        for text in ["", "10.0.0", "fe80", "10.0.0.1:4791", "::g"] {
            let error = text.parse::<Gid>().unwrap_err().to_string();
            assert_eq!(error, format!("{text} is not a GID, which is written as an IPv6 or IPv4 address"));
        }
    }

    #[test]
    fn mtus_are_powers_of_two_from_256_to_4096() {
        let all: Vec<u32> = (0..10_000).filter(|bytes| Mtu::of_bytes(*bytes).is_some()).collect();
        assert_eq!(all, [256, 512, 1024, 2048, 4096]);
        assert!(all.iter().all(|bytes| Mtu::of_bytes(*bytes).is_some_and(|mtu| mtu.bytes() == *bytes)));
    }

    fn endpoint() -> QueuePairEndpoint {
        QueuePairEndpoint {
            gid: "10.0.0.1".parse().unwrap(),
            lid: 0x1234,
            queue_pair: QueuePairNumber(0xab_cdef),
            first_packet: PacketNumber(0x12_3456),
            mtu: Mtu::of_bytes(1024).unwrap(),
            reads_in: 16,
            reads_out: 8,
        }
    }

    /// The words of docs/wire.md.
    #[test]
    fn a_queue_pair_is_four_words() {
        let words = [0, 0x0100_000a_ffff_0000, 0x1234_1234_56ab_cdef, 0x0810_0400];
        assert_eq!(ClientParameters { endpoint: endpoint() }.encode(), words);
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let segment = |offset| Segment { offset, address: 4096, bytes: 64, key: 7 };
        let main = vec![segment(0), segment(128)];
        let (endpoint, grant, masked_cas) = (endpoint(), Grant::ReadWrite, MaskedCas::Native);
        let target = TargetParameters { endpoint, grant, masked_cas, main, device: vec![] };
        let valid = target.encode();
        assert_eq!(TargetParameters::decode(&valid), Ok(target));
        let endpoint = [(3, 0), (3, 1 << 32 | 1024), (4, 3 | 1 << 32), (4, 2 | 2 << 32), (4, 2 | 2 << 40)];
        // Word 5 is the first segment's offset, word 9 that of the second.
        let segments = [(5, 4), (5, 72), (6, 4), (7, 0), (7, 12), (7, 136), (9, 56), (9, 4)];
        let beyond = [(6, u64::MAX - 7), (7, 1 << 63), (8, 1 << 32), (9, (1 << 63) - 64), (9, u64::MAX - 7)];
        for (word, value) in endpoint.into_iter().chain(segments).chain(beyond) {
            let mut words = valid.clone();
            words[word] = value;
            assert!(TargetParameters::decode(&words).is_err(), "word {word} is {value:#x}");
        }
        let many = |count: u64| (0..count).map(|n| Segment { offset: 64 * n, address: 0, bytes: 64, key: 0 }).collect();
        let most: Vec<Segment> = many(MAX_SEGMENTS as u64);
        assert_eq!(decode_segments(&encode_segments(&most)), Ok(most));
        let more: Vec<Segment> = many(MAX_SEGMENTS as u64 + 1);
        assert!(decode_segments(&encode_segments(&more)).is_err());
        assert!((0..valid.len()).all(|words| TargetParameters::decode(&valid[..words]).is_err()));
        assert!(ClientParameters::decode(&valid[..3]).is_err() && ClientParameters::decode(&valid[..5]).is_err());
    }

    proptest! {
        /// Any words are a value that is encoded to them, or an error.
        #[test]
        fn parameters_are_encoded_to_their_words(mut body in prop::collection::vec(any::<u64>(), 0..16)) {
            if let Some(limits) = body.get_mut(3) {
                *limits = *limits & 0xffff_0000 | 1024;
            }
            if let Some(counts) = body.get_mut(4) {
                *counts &= 0x101_0001_0001;
            }
            if let Ok(client) = ClientParameters::decode(&body) {
                prop_assert_eq!(&client.encode()[..], &body[..]);
            }
            if let Ok(target) = TargetParameters::decode(&body) {
                prop_assert_eq!(target.encode(), body);
            }
        }
    }
}
