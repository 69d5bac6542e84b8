//! The connections without a session: who has not greeted the node yet, and who is told to go.
//!
//! Invariants: there are at most [`MAX_STRANGERS`] of them, and [`MAX_FROM_ADDRESS`] from one address. A newcomer is
//! always let in, and one that has been there longest goes: first of those that were told to, then of all; from the
//! newcomer's own address, if that has as many as it may. So who greets at once is not kept out by who does not,
//! however many they are: each has the time in which so many others come. To spare those that have said something would
//! let strangers stay for a byte each, and have the newcomers go.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::shared::Place;

/// Connections without a session, at most.
pub(super) const MAX_STRANGERS: usize = 256;
/// Those of one address: of one machine, or of one network of IPv6 (64 bits).
pub(super) const MAX_FROM_ADDRESS: usize = 64;

const _: () = assert!(MAX_FROM_ADDRESS * 4 == MAX_STRANGERS, "three addresses do not fill the door");

/// A connection without a session, by its name at the door: no two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// How far a connection without a session is; who goes first when there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// It was told to go.
    Leaving,
    /// It has not greeted the node yet.
    Waiting,
}

/// All connections without a session, of all loops.
#[derive(Default)]
pub(super) struct Door {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The oldest first.
    strangers: Vec<Stranger>,
    next: u64,
}

struct Stranger {
    ticket: Ticket,
    network: [u8; 8],
    /// `None` until its loop has it.
    place: Option<Place>,
    phase: Phase,
}

/// Who goes because another came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shed {
    pub(super) ticket: Ticket,
    /// Where it is, if its loop has it already.
    pub(super) place: Option<Place>,
}

impl Door {
    /// Lets a connection from `addr` in; if there were too many, the one that goes for it.
    pub(super) fn enter(&self, addr: IpAddr, place: Option<Place>, phase: Phase) -> (Ticket, Option<Shed>) {
        let mut inner = self.inner();
        let network = network(addr);
        let shed = inner.overdue(network).map(|index| {
            let Stranger { ticket, place, .. } = inner.strangers.remove(index);
            Shed { ticket, place }
        });
        let ticket = Ticket(inner.next);
        inner.next += 1;
        inner.strangers.push(Stranger { ticket, network, place, phase });
        (ticket, shed)
    }

    /// Its loop has the connection. `false`: it had to go meanwhile.
    pub(super) fn settle(&self, ticket: Ticket, place: Place) -> bool {
        self.inner().change(ticket, |stranger| stranger.place = Some(place))
    }

    /// The connection was told to go.
    pub(super) fn dismiss(&self, ticket: Ticket) {
        self.inner().change(ticket, |stranger| stranger.phase = Phase::Leaving);
    }

    /// The connection has a session now, or is gone.
    pub(super) fn leave(&self, ticket: Ticket) {
        self.inner().strangers.retain(|stranger| stranger.ticket != ticket);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether there is such a connection.
    fn change(&mut self, ticket: Ticket, change: impl FnOnce(&mut Stranger)) -> bool {
        self.strangers.iter_mut().find(|stranger| stranger.ticket == ticket).map(change).is_some()
    }

    /// Who has to go before one from `network` comes.
    fn overdue(&self, network: [u8; 8]) -> Option<usize> {
        let is_near = |stranger: &&Stranger| stranger.network == network;
        let is_crowded = self.strangers.iter().filter(is_near).count() >= MAX_FROM_ADDRESS;
        if !is_crowded && self.strangers.len() < MAX_STRANGERS {
            return None;
        }
        let candidates = self.strangers.iter().enumerate().filter(|(_, stranger)| !is_crowded || is_near(stranger));
        // The first of several that are equal: the oldest.
        candidates.min_by_key(|(_, stranger)| stranger.phase).map(|(index, _)| index)
    }
}

/// What is limited together: an address of IPv4, the first half of one of IPv6.
pub(super) fn network(addr: IpAddr) -> [u8; 8] {
    let octets = match addr.to_canonical() {
        // No network of IPv6 that is routed begins with four bytes of 0.
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
    fn an_address_sheds_its_own_and_the_oldest_goes_first() {
        let door = Door::default();
        let (elsewhere, _) = door.enter(far(1), None, Phase::Waiting);
        let tickets: Vec<Ticket> = (0..MAX_FROM_ADDRESS)
            .map(|_| door.enter(NEAR, None, Phase::Waiting))
            .map(|(ticket, shed)| {
                assert_eq!(shed, None);
                ticket
            })
            .collect();
        door.dismiss(tickets[5]);
        let shed_next = || door.enter(NEAR, None, Phase::Waiting).1.map(|shed| shed.ticket);
        assert_eq!(shed_next(), Some(tickets[5]), "who was told to go");
        for ticket in tickets.iter().enumerate().filter(|(place, _)| *place != 5).map(|(_, ticket)| ticket) {
            assert_eq!(shed_next(), Some(*ticket), "in the order of coming");
        }
        door.leave(elsewhere);
    }

    #[test]
    fn all_addresses_together_are_bounded_and_a_newcomer_comes_in() {
        let door = Door::default();
        let first = door.enter(far(0), None, Phase::Waiting).0;
        for host in 1..MAX_STRANGERS {
            let (_, shed) = door.enter(far(host as u8), None, Phase::Waiting);
            assert_eq!(shed, None);
        }
        let (ticket, shed) = door.enter(NEAR, None, Phase::Waiting);
        assert_eq!(shed, Some(Shed { ticket: first, place: None }));
        let place = Place { loop_index: 0, key: super::super::connections::Key::of(mio::Token(3)) };
        assert!(door.settle(ticket, place) && !door.settle(first, place), "who was shed finds that out");
        door.leave(ticket);
        assert_eq!(door.enter(NEAR, None, Phase::Waiting).1, None, "there is room again");
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
