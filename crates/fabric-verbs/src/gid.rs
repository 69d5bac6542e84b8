//! Tables of GIDs, the 128-bit addresses of ports.

use guira_network::wire::Gid;

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
