//! Ports of nodes that end and start again at the same address.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

/// The ports that are tried. The kernel assigns none of them by itself, so that a client that connects to a node that
/// is gone cannot connect to itself.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;

/// A port of the loopback interface that no other test uses as long as this exists, whether a node listens or not.
#[derive(Debug)]
pub struct ReservedPort {
    /// Its number.
    pub port: u16,
    /// A socket that is bound to the port and does not listen. A listener shares the port with it, and another
    /// reservation cannot.
    _socket: OwnedFd,
}

impl ReservedPort {
    /// Reserves one of the ports.
    ///
    /// # Panics
    /// If none is free.
    #[expect(clippy::new_without_default, reason = "it reserves a port")]
    pub fn new() -> ReservedPort {
        let first = (RandomState::new().hash_one(0) % u64::from(PORTS)) as u16;
        let ports = (first..PORTS).chain(0..first).map(|port| FIRST_PORT + port);
        ports.into_iter().find_map(reserve).expect("a free port")
    }
}

fn reserve(port: u16) -> Option<ReservedPort> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).ok()?;
    // Not earlier: another reservation would be possible.
    sockopt::set_socket_reuseaddr(&socket, true).expect("an option of the socket");
    Some(ReservedPort { port, _socket: socket })
}
