//! The connections without a session: those that have not sent their Hello yet, and those that are being closed.
//!
//! Invariants: there are at most [`MAX_PENDING_CONNECTIONS`] of them, and [`MAX_FROM_ADDRESS`] from one address. A new
//! connection is always admitted. If there are too many then, the oldest connection that is being closed is evicted,
//! or, if none is, the oldest of all; if there are too many from the new connection's address, one from that address.
//! So clients that send no Hello cannot keep out a client that sends its Hello at once: a connection is evicted only
//! after as many others have connected as the limit allows. A connection that has sent something is not preferred:
//! otherwise attackers could stay by sending one byte each, and new connections would be evicted instead.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shared::ConnectionId;

/// Maximum number of connections without a session.
pub(super) const MAX_PENDING_CONNECTIONS: usize = 256;
/// Maximum number of connections without a session from one address: from one machine, or from one IPv6 network (64
/// bits).
pub(super) const MAX_FROM_ADDRESS: usize = 64;

const _: () = assert!(MAX_FROM_ADDRESS * 4 == MAX_PENDING_CONNECTIONS, "three addresses do not use up all places");

/// The id of a connection without a session; ids are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingId(u64);

/// The phase of a connection without a session, in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The connection is being closed.
    Closing,
    /// The connection has not sent its Hello yet.
    Greeting,
}

/// The connections without a session, of all loops.
#[derive(Default)]
pub(super) struct PendingConnections {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Oldest first.
    connections: Vec<Pending>,
    next: u64,
}

struct Pending {
    pending_id: PendingId,
    network: [u8; 8],
    /// `None` until a loop has the connection.
    connection_id: Option<ConnectionId>,
    phase: Phase,
}

/// A connection that is closed to make room for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Evicted {
    pub(super) pending_id: PendingId,
    /// The connection's id in its loop, if a loop has it already.
    pub(super) connection_id: Option<ConnectionId>,
}

impl PendingConnections {
    /// Admits a connection from `addr`; returns the connection that is evicted for it, if there are too many.
    pub(super) fn admit(
        &self,
        addr: IpAddr,
        connection_id: Option<ConnectionId>,
        phase: Phase,
    ) -> (PendingId, Option<Evicted>) {
        let mut inner = self.inner();
        let network = network(addr);
        let evicted = inner.evictee(network).map(|index| {
            let Pending { pending_id, connection_id, .. } = inner.connections.remove(index);
            Evicted { pending_id, connection_id }
        });
        let pending_id = PendingId(inner.next);
        inner.next += 1;
        inner.connections.push(Pending { pending_id, network, connection_id, phase });
        (pending_id, evicted)
    }

    /// Notes that a loop has the connection. Returns false if it was evicted meanwhile.
    pub(super) fn assign(&self, pending_id: PendingId, connection_id: ConnectionId) -> bool {
        self.inner().update(pending_id, |connection| connection.connection_id = Some(connection_id))
    }

    /// Notes that the connection is being closed.
    pub(super) fn mark_closing(&self, pending_id: PendingId) {
        self.inner().update(pending_id, |connection| connection.phase = Phase::Closing);
    }

    /// Removes a connection that has a session now, or is closed.
    pub(super) fn remove(&self, pending_id: PendingId) {
        self.inner().connections.retain(|connection| connection.pending_id != pending_id);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Updates a connection; returns whether it exists.
    fn update(&mut self, pending_id: PendingId, update: impl FnOnce(&mut Pending)) -> bool {
        self.connections.iter_mut().find(|connection| connection.pending_id == pending_id).map(update).is_some()
    }

    /// Returns the index of the connection to evict before one from `network` is admitted, if there are too many.
    fn evictee(&self, network: [u8; 8]) -> Option<usize> {
        let is_near = |connection: &&Pending| connection.network == network;
        let is_crowded = self.connections.iter().filter(is_near).count() >= MAX_FROM_ADDRESS;
        if !is_crowded && self.connections.len() < MAX_PENDING_CONNECTIONS {
            return None;
        }
        let candidates =
            self.connections.iter().enumerate().filter(|(_, connection)| !is_crowded || is_near(connection));
        // The first of several equal ones: the oldest.
        candidates.min_by_key(|(_, connection)| connection.phase).map(|(index, _)| index)
    }
}

/// Returns the unit of per-address limits: an IPv4 address, or the first half of an IPv6 address.
pub(super) fn network(addr: IpAddr) -> [u8; 8] {
    let octets = match addr.to_canonical() {
        // No routed IPv6 network starts with four bytes of 0.
        IpAddr::V4(addr) => {
            let [a, b, c, d] = addr.octets();
            return [0, 0, 0, 0, a, b, c, d];
        }
        IpAddr::V6(addr) => addr.octets(),
    };
    let mut network = [0; 8];
    network.copy_from_slice(&octets[..8]);
    network
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

    fn far(host: u8) -> IpAddr {
        IpAddr::from([198, 51, 100, host])
    }

    #[test]
    fn an_address_evicts_its_own_connections_and_the_oldest_first() {
        let pending = PendingConnections::default();
        let (elsewhere, _) = pending.admit(far(1), None, Phase::Greeting);
        let tickets: Vec<PendingId> = (0..MAX_FROM_ADDRESS)
            .map(|_| pending.admit(NEAR, None, Phase::Greeting))
            .map(|(pending_id, evicted)| {
                assert_eq!(evicted, None);
                pending_id
            })
            .collect();
        pending.mark_closing(tickets[5]);
        let shed_next = || pending.admit(NEAR, None, Phase::Greeting).1.map(|evicted| evicted.pending_id);
        assert_eq!(shed_next(), Some(tickets[5]), "the one that is being closed");
        for pending_id in tickets
            .iter()
            .enumerate()
            .filter(|(connection_id, _)| *connection_id != 5)
            .map(|(_, pending_id)| pending_id)
        {
            assert_eq!(shed_next(), Some(*pending_id), "in the order of arrival");
        }
        pending.remove(elsewhere);
    }

    #[test]
    fn all_addresses_together_are_bounded_and_a_new_connection_is_admitted() {
        let pending = PendingConnections::default();
        let first = pending.admit(far(0), None, Phase::Greeting).0;
        for host in 1..MAX_PENDING_CONNECTIONS {
            let (_, evicted) = pending.admit(far(host as u8), None, Phase::Greeting);
            assert_eq!(evicted, None);
        }
        let (pending_id, evicted) = pending.admit(NEAR, None, Phase::Greeting);
        assert_eq!(evicted, Some(Evicted { pending_id: first, connection_id: None }));
        let connection_id = ConnectionId { loop_index: 0, key: super::super::connections::Key::of(mio::Token(3)) };
        assert!(
            pending.assign(pending_id, connection_id) && !pending.assign(first, connection_id),
            "the evicted connection is reported"
        );
        pending.remove(pending_id);
        assert_eq!(pending.admit(NEAR, None, Phase::Greeting).1, None, "there is room again");
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let parse = |text: &str| network(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:1"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("192.0.2.1"), parse("::ffff:192.0.2.1"));
        assert_ne!(parse("192.0.2.1"), parse("192.0.2.2"));
    }
}
