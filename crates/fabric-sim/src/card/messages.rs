//! Bytes of messages on the link and on PCIe.
//!
//! The headers are those of RoCEv2, as the paper's authors account for them: 62 bytes of a READ's reply are Ethernet
//! (14), IP (20), UDP (8), BTH (12), AETH (4) and ICRC (4). Ethernet adds preamble, check sequence and gap to each
//! packet. The reply to a verb acknowledges the WRITEs before it in its batch.

use guira_fabric::WORD_BYTES;

use crate::batch::{Sent, VerbKind};

/// Bytes that Ethernet adds to each packet: preamble 8, frame check sequence 4, gap 12.
const ETHERNET_BYTES: u64 = 24;
/// A READ's request.
const READ_BYTES: u64 = 74;
/// A packet of a READ's reply, without payload.
const READ_REPLY_BYTES: u64 = 62;
/// The first packet of a WRITE, without payload.
const WRITE_BYTES: u64 = 82;
/// A further packet of a WRITE, without payload: the address and length (16) are in the first.
const WRITE_MORE_BYTES: u64 = 66;
/// A packet of a message to or from a service, without payload: no address.
pub(crate) const MESSAGE_BYTES: u64 = WRITE_MORE_BYTES;
/// The acknowledgement of a WRITE, or of a message.
pub(crate) const WRITE_REPLY_BYTES: u64 = 54;
/// A CAS.
const CAS_BYTES: u64 = 86;
/// A masked CAS.
const MASKED_CAS_BYTES: u64 = 102;
/// A FETCH-ADD.
const FETCH_ADD_BYTES: u64 = 78;
/// The reply to an atomic.
const ATOMIC_REPLY_BYTES: u64 = 70;

/// The largest payload of a PCIe packet.
const PCIE_PAYLOAD_BYTES: u64 = 256;
/// The headers of a PCIe packet: framing, sequence number, transaction header and check sequence.
const PCIE_HEADER_BYTES: u64 = 24;

/// Returns the payload of a READ or WRITE.
#[inline(always)]
pub(crate) fn payload_bytes(sent: &Sent) -> u64 {
    u64::from(sent.words) * WORD_BYTES
}

/// Returns the bytes of a verb on the way to the node, with those that Ethernet adds.
#[inline(always)]
pub(crate) fn request_bytes(sent: &Sent, mtu_bytes: u64) -> u64 {
    let bytes = match sent.kind {
        VerbKind::Read | VerbKind::SwapAsRead => READ_BYTES,
        VerbKind::Swap if sent.is_masked => MASKED_CAS_BYTES,
        VerbKind::Swap => CAS_BYTES,
        VerbKind::Add => FETCH_ADD_BYTES,
        VerbKind::Call => return message_bytes(payload_bytes(sent), mtu_bytes),
        VerbKind::Write => {
            let payload = payload_bytes(sent);
            let more = packets(payload, mtu_bytes) - 1;
            return payload + WRITE_BYTES + more * WRITE_MORE_BYTES + (more + 1) * ETHERNET_BYTES;
        }
    };
    bytes + ETHERNET_BYTES
}

/// Returns the bytes of the reply to a verb, with those that Ethernet adds.
#[inline(always)]
pub(crate) fn reply_bytes(sent: &Sent, mtu_bytes: u64) -> u64 {
    match sent.kind {
        VerbKind::Read | VerbKind::SwapAsRead => {
            let payload = payload_bytes(sent);
            payload + packets(payload, mtu_bytes) * (READ_REPLY_BYTES + ETHERNET_BYTES)
        }
        VerbKind::Write | VerbKind::Call => WRITE_REPLY_BYTES + ETHERNET_BYTES,
        VerbKind::Swap | VerbKind::Add => ATOMIC_REPLY_BYTES + ETHERNET_BYTES,
    }
}

/// Returns the bytes of a message between a client and a service, with those that Ethernet adds.
#[inline(always)]
pub(crate) fn message_bytes(payload_bytes: u64, mtu_bytes: u64) -> u64 {
    payload_bytes + packets(payload_bytes, mtu_bytes) * (MESSAGE_BYTES + ETHERNET_BYTES)
}

/// Returns the bytes on PCIe, in the direction of the data, for a payload.
#[inline(always)]
pub(crate) fn pcie_bytes(payload_bytes: u64) -> u64 {
    payload_bytes + payload_bytes.div_ceil(PCIE_PAYLOAD_BYTES) * PCIE_HEADER_BYTES
}

/// Returns the packets of a message.
#[inline(always)]
fn packets(payload_bytes: u64, mtu_bytes: u64) -> u64 {
    if payload_bytes <= mtu_bytes { 1 } else { payload_bytes.div_ceil(mtu_bytes) }
}
