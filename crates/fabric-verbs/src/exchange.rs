//! The parameters that two sides exchange to connect a queue pair. They are plain values: a control connection carries
//! them.
//!
//! The client creates a queue pair and sends its [`ClientParameters`]; the memory side accepts, connects its own queue
//! pair and answers with [`TargetParameters`]; the client connects. One control round trip, no RDMA message.

use std::fmt;

use guira_fabric::MaskedCas;

use crate::ffi;
use crate::{Gid, VerbsError};

/// The largest payload of a packet: 256, 512, 1024, 2048 or 4096 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u8);

impl Mtu {
    /// Returns the MTU of this many bytes, if it is one.
    #[must_use]
    pub fn of_bytes(bytes: u32) -> Option<Mtu> {
        (ffi::MTU_256..=ffi::MTU_4096).find(|code| 128 << code == bytes).and_then(Mtu::of_code)
    }

    /// Returns the MTU in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        128 << self.0
    }

    pub(crate) fn of_code(code: ffi::MtuCode) -> Option<Mtu> {
        (ffi::MTU_256..=ffi::MTU_4096).contains(&code).then_some(Mtu(code as u8))
    }

    pub(crate) fn code(self) -> ffi::MtuCode {
        self.0.into()
    }
}

impl fmt::Debug for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mtu({})", self.bytes())
    }
}

/// The number of a queue pair on its device, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePairNumber(pub u32);

/// The number of a queue pair's first packet, 24 bits. It is random, so that packets of an earlier queue pair with the
/// same number are not taken for packets of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketNumber(pub u32);

const PACKET_NUMBER_MASK: u32 = (1 << 24) - 1;

impl PacketNumber {
    /// Draws a packet number from the operating system.
    ///
    /// # Errors
    /// `System`: there is no randomness.
    pub(crate) fn random() -> Result<PacketNumber, VerbsError> {
        let number = getrandom::u32().map_err(|error| VerbsError::System {
            call: "getrandom",
            device: "-".to_owned(),
            error: std::io::Error::other(error),
        })?;
        Ok(PacketNumber(number & PACKET_NUMBER_MASK))
    }
}

/// The address of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
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

/// The access that a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grant {
    /// READ, WRITE and atomics.
    ReadWrite,
    /// READ.
    ReadOnly,
}

/// A contiguous part of a space, registered under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The address that the memory node's device knows it by; in the device's own memory it is an offset.
    pub address: u64,
    /// Its size in bytes, a multiple of 8.
    pub bytes: u64,
    /// The key that the grant's queue pairs use.
    pub key: u32,
}

/// A client's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientParameters {
    /// Its queue pair.
    pub endpoint: Endpoint,
}

/// The memory side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetParameters {
    /// Its queue pair.
    pub endpoint: Endpoint,
    /// The client's access.
    pub grant: Grant,
    /// The way in which the memory side's device executes masked CAS: `Native` or `CasLoop`.
    pub masked_cas: MaskedCas,
    /// The segments of the main space, in order; together they are the space.
    pub main: Vec<Segment>,
    /// The segments of the device space, in order.
    pub device: Vec<Segment>,
}

/// The values that both sides derive from their two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) mtu: Mtu,
    /// READs and atomics in progress that this side asks for.
    pub(crate) reads_out: u8,
    /// READs and atomics in progress that this side executes.
    pub(crate) reads_in: u8,
}

impl Agreed {
    /// Returns the smaller MTU and the smaller limit of each direction.
    ///
    /// # Errors
    /// `Mismatch`: a number of the other side is impossible, or the addresses are of different kinds.
    pub(crate) fn of(own: &Endpoint, other: &Endpoint) -> Result<Agreed, VerbsError> {
        let refuse = |reason: String| Err(VerbsError::Mismatch { reason });
        let (number, packet) = (other.queue_pair.0, other.first_packet.0);
        if number > PACKET_NUMBER_MASK || packet > PACKET_NUMBER_MASK {
            return refuse(format!("the other side's queue pair {number} or packet {packet} has more than 24 bits"));
        }
        if other.gid.is_zero() {
            return refuse("the other side has no address".to_owned());
        }
        if own.gid.ipv4().is_some() != other.gid.ipv4().is_some() {
            return refuse(format!("{} and {} are addresses of different kinds", own.gid, other.gid));
        }
        let (reads_out, reads_in) = (own.reads_out.min(other.reads_in), own.reads_in.min(other.reads_out));
        Ok(Agreed { mtu: own.mtu.min(other.mtu), reads_out, reads_in })
    }

    /// Refuses a connection on which no READ may be in progress.
    ///
    /// # Errors
    /// `Mismatch`.
    pub(crate) fn check_reads(&self, reads: u8) -> Result<(), VerbsError> {
        match reads {
            0 => Err(VerbsError::Mismatch { reason: "the two sides allow no READ in progress".to_owned() }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(gid: &str, mtu: u32, reads_in: u8, reads_out: u8) -> Endpoint {
        Endpoint {
            gid: gid.parse().unwrap(),
            lid: 0,
            queue_pair: QueuePairNumber(17),
            first_packet: PacketNumber(5),
            mtu: Mtu::of_bytes(mtu).unwrap(),
            reads_in,
            reads_out,
        }
    }

    #[test]
    fn mtus_are_powers_of_two_from_256_to_4096() {
        let all: Vec<u32> = (0..10_000).filter(|bytes| Mtu::of_bytes(*bytes).is_some()).collect();
        assert_eq!(all, [256, 512, 1024, 2048, 4096]);
        assert!(all.iter().all(|bytes| Mtu::of_bytes(*bytes).is_some_and(|mtu| mtu.bytes() == *bytes)));
        assert_eq!(Mtu::of_code(0), None);
        assert_eq!(Mtu::of_code(6), None);
    }

    #[test]
    fn both_sides_agree_on_the_smaller_value_of_each() {
        let (client, target) = (endpoint("10.0.0.1", 4096, 16, 8), endpoint("10.0.0.2", 1024, 4, 128));
        let (own, other) = (Agreed::of(&client, &target).unwrap(), Agreed::of(&target, &client).unwrap());
        assert_eq!((own.mtu.bytes(), own.reads_out, own.reads_in), (1024, 4, 16));
        assert_eq!((other.mtu, other.reads_out, other.reads_in), (own.mtu, own.reads_in, own.reads_out));
    }

    #[test]
    fn impossible_endpoints_are_refused() {
        let own = endpoint("10.0.0.1", 1024, 1, 1);
        let of = |other: &Endpoint| Agreed::of(&own, other).unwrap_err().to_string();
        let long = Endpoint { queue_pair: QueuePairNumber(1 << 24), ..own };
        assert!(of(&long).contains("24 bits"));
        let long = Endpoint { first_packet: PacketNumber(1 << 24), ..own };
        assert!(of(&long).contains("24 bits"));
        assert!(of(&endpoint("::", 1024, 1, 1)).contains("no address"));
        assert!(of(&endpoint("2001:db8::1", 1024, 1, 1)).contains("different kinds"));
        let none = Agreed::of(&own, &endpoint("10.0.0.2", 1024, 0, 1)).unwrap();
        assert!(none.check_reads(none.reads_out).is_err() && none.check_reads(none.reads_in).is_ok());
    }

    #[test]
    fn packet_numbers_have_24_bits_and_differ() {
        let drawn: Vec<PacketNumber> = (0..8).map(|_| PacketNumber::random().unwrap()).collect();
        assert!(drawn.iter().all(|number| number.0 <= PACKET_NUMBER_MASK));
        assert!(drawn.iter().any(|number| *number != drawn[0]), "{drawn:?}");
    }
}
