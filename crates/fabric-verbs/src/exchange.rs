//! The values that the two sides of a queue pair derive from the parameters that they exchange. The parameters
//! themselves are plain values of crate `guira-network`, which carries them.

use guira_network::wire::{Mtu, PACKET_NUMBER_MASK, PacketNumber, QueuePairEndpoint};

use crate::VerbsError;
use crate::ffi;

/// Returns the MTU of a code of libibverbs.
pub(crate) fn mtu_of_code(code: ffi::MtuCode) -> Option<Mtu> {
    (ffi::MTU_256..=ffi::MTU_4096).contains(&code).then(|| Mtu::of_bytes(128 << code)).flatten()
}

/// Returns the code of an MTU in libibverbs.
pub(crate) fn mtu_code(mtu: Mtu) -> ffi::MtuCode {
    (mtu.bytes() / 128).trailing_zeros()
}

/// Draws a packet number from the operating system.
///
/// # Errors
/// `System`: there is no randomness.
pub(crate) fn random_packet_number() -> Result<PacketNumber, VerbsError> {
    let number = getrandom::u32().map_err(|error| VerbsError::System {
        call: "getrandom",
        device: "-".to_owned(),
        error: std::io::Error::other(error),
    })?;
    Ok(PacketNumber(number & PACKET_NUMBER_MASK))
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
    pub(crate) fn of(own: &QueuePairEndpoint, other: &QueuePairEndpoint) -> Result<Agreed, VerbsError> {
        let refuse = |reason: String| Err(VerbsError::Mismatch { reason });
        let (number, packet) = (other.queue_pair.0, other.first_packet.0);
        if number > PACKET_NUMBER_MASK || packet > PACKET_NUMBER_MASK {
            return refuse(format!("the other side's queue pair {number} or packet {packet} has more than 24 bits"));
        }
        if other.gid.is_zero() {
            return refuse("the other side has no address".to_owned());
        }
        if own.gid.ipv4().is_some() != other.gid.ipv4().is_some() {
            return refuse(format!(
                "{} and {} are addresses of different kinds: choose another with gid= in the client's URL, or with \
                 --rdma-gid at the node (guira doctor lists the GIDs of a machine)",
                own.gid, other.gid
            ));
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
    use guira_network::wire::QueuePairNumber;

    use super::*;

    fn endpoint(gid: &str, mtu: u32, reads_in: u8, reads_out: u8) -> QueuePairEndpoint {
        QueuePairEndpoint {
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
    fn both_sides_agree_on_the_smaller_value_of_each() {
        let (client, target) = (endpoint("10.0.0.1", 4096, 16, 8), endpoint("10.0.0.2", 1024, 4, 128));
        let (own, other) = (Agreed::of(&client, &target).unwrap(), Agreed::of(&target, &client).unwrap());
        assert_eq!((own.mtu.bytes(), own.reads_out, own.reads_in), (1024, 4, 16));
        assert_eq!((other.mtu, other.reads_out, other.reads_in), (own.mtu, own.reads_in, own.reads_out));
    }

    #[test]
    fn impossible_endpoints_are_refused() {
        let own = endpoint("10.0.0.1", 1024, 1, 1);
        let of = |other: &QueuePairEndpoint| Agreed::of(&own, other).unwrap_err().to_string();
        let long = QueuePairEndpoint { queue_pair: QueuePairNumber(1 << 24), ..own };
        assert!(of(&long).contains("24 bits"));
        let long = QueuePairEndpoint { first_packet: PacketNumber(1 << 24), ..own };
        assert!(of(&long).contains("24 bits"));
        assert!(of(&endpoint("::", 1024, 1, 1)).contains("no address"));
        assert!(of(&endpoint("2001:db8::1", 1024, 1, 1)).contains("different kinds"));
        let none = Agreed::of(&own, &endpoint("10.0.0.2", 1024, 0, 1)).unwrap();
        assert!(none.check_reads(none.reads_out).is_err() && none.check_reads(none.reads_in).is_ok());
    }

    #[test]
    fn codes_of_mtus_are_those_of_libibverbs() {
        let codes: Vec<_> =
            (0..9).filter_map(|code| mtu_of_code(code).map(|mtu| (mtu_code(mtu), mtu.bytes()))).collect();
        assert_eq!(codes, [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)]);
    }

    #[test]
    fn packet_numbers_have_24_bits_and_differ() {
        let drawn: Vec<PacketNumber> = (0..8).map(|_| random_packet_number().unwrap()).collect();
        assert!(drawn.iter().all(|number| number.0 <= PACKET_NUMBER_MASK));
        assert!(drawn.iter().any(|number| *number != drawn[0]), "{drawn:?}");
    }
}
