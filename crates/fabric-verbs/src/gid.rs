//! GIDs, the 128-bit addresses of ports.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

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

/// The protocol whose packets a GID addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames, not routed.
    RoceV1,
    /// RoCE version 2: UDP over IP.
    RoceV2,
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The index in the table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// The protocol.
    pub kind: GidKind,
}

/// Chooses the entry for a connection: a RoCE v2 address that maps an IPv4 address; else a RoCE v2 address that is not
/// link-local; else any RoCE v2 address; else InfiniBand. RoCE v1, which is not routed, is never chosen.
pub(crate) fn choose(entries: &[GidEntry]) -> Option<GidEntry> {
    let rank = |entry: &GidEntry| match entry.kind {
        GidKind::RoceV2 if entry.gid.ipv4().is_some() => Some(0),
        GidKind::RoceV2 if !entry.gid.is_link_local() => Some(1),
        GidKind::RoceV2 => Some(2),
        GidKind::InfiniBand => Some(3),
        GidKind::RoceV1 => None,
    };
    entries
        .iter()
        .filter_map(|entry| Some((rank(entry)?, *entry)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, entry)| entry)
}

#[cfg(test)]
mod tests {
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
    fn the_default_is_roce_v2_with_an_ipv4_address() {
        let entry = |index, text: &str, kind| GidEntry { index, gid: text.parse().unwrap(), kind };
        let entries = [
            entry(0, "fe80::1", GidKind::RoceV1),
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(2, "10.0.0.1", GidKind::RoceV1),
            entry(3, "2001:db8::1", GidKind::RoceV2),
            entry(4, "10.0.0.1", GidKind::RoceV2),
            entry(5, "10.0.0.2", GidKind::RoceV2),
        ];
        let chosen = |entries: &[GidEntry]| choose(entries).map(|entry| entry.index);
        assert_eq!(chosen(&entries), Some(4));
        assert_eq!(chosen(&entries[..4]), Some(3));
        assert_eq!(chosen(&entries[..3]), Some(1));
        assert_eq!(chosen(&entries[..1]), None);
        assert_eq!(chosen(&[entry(0, "fe80::2", GidKind::InfiniBand)]), Some(0));
    }
}
