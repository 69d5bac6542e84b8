//! Addresses to listen on, as users write them.
//!
//! Invariants: the text is parsed with the command line; a name is resolved once, when the command starts, and stands
//! for those of its addresses that are this host's.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use guira::admin::Endpoint;
use rustix::net::netdevice::index_to_name;

use crate::failure::Failure;

/// The default ports of the node, and of its metrics.
const NODE_PORT: u16 = 7711;
const METRICS_PORT: u16 = 7712;

/// An address or a name to listen on, or all addresses of this host, and a port.
#[derive(Clone, Debug)]
pub struct ListenAddr {
    /// `None`: all addresses of this host.
    host: Option<String>,
    port: u16,
}

/// Parses an address of the node.
pub fn parse_node(text: &str) -> Result<ListenAddr, String> {
    parse(text, NODE_PORT)
}

/// Parses an address of the metrics.
pub fn parse_metrics(text: &str) -> Result<ListenAddr, String> {
    parse(text, METRICS_PORT)
}

fn parse(text: &str, default_port: u16) -> Result<ListenAddr, String> {
    // Some programs write all addresses as `*`.
    let text = text.strip_prefix('*').filter(|port| port.starts_with(':')).unwrap_or(text);
    let how = format!(
        "write ADDRESS:PORT, as in 127.0.0.1:{default_port} (this host only) or 0.0.0.0:{default_port} (all addresses \
         of this host), NAME:PORT or [IPV6]:PORT"
    );
    if text.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()) {
        return Err(format!("an IPv6 address is written in brackets, as in [::1]:{default_port}"));
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("a port needs an address; {how}"));
    }
    let has_port = text.contains(':') && !text.ends_with(']');
    let full = if has_port { text.to_owned() } else { format!("{text}:{default_port}") };
    // The address stands for none here.
    let whole = if has_port && full.starts_with(':') { format!("0.0.0.0{full}") } else { full.clone() };
    let endpoint: Endpoint = whole.parse().map_err(|_| how)?;
    Ok(ListenAddr { host: (whole == full).then(|| endpoint.host().to_owned()), port: endpoint.port() })
}

impl ListenAddr {
    /// Returns the addresses to listen on: the one that is written, those that the name has on this host, or the one
    /// that means all addresses.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, Failure> {
        let Some(host) = &self.host else {
            let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, self.port));
            // A host without IPv6 has no such address.
            let all = if is_of_this_host(&all) { all } else { (Ipv4Addr::UNSPECIFIED, self.port).into() };
            return Ok(vec![all]);
        };
        let found = Endpoint::new(host, self.port).addresses();
        let found = found.map_err(Failure::host(format!("find the address to listen on, {self}")))?;
        if let Some(SocketAddr::V6(addr)) = found.iter().find(|addr| lacks_zone(addr)) {
            return Err(Failure::Misuse(format!(
                "not listening on {addr}: a link-local address needs its interface, as in [{}%eth0]:{}; nothing was \
                 changed",
                addr.ip(),
                self.port
            )));
        }
        let mut here: Vec<SocketAddr> = Vec::new();
        for addr in &found {
            if !here.contains(addr) && (found.len() == 1 || is_of_this_host(addr)) {
                here.push(*addr);
            }
        }
        if here.is_empty() {
            let found: Vec<String> = found.iter().map(|addr| addr.ip().to_string()).collect();
            return Err(Failure::Misuse(format!(
                "not listening on {self}: its addresses, {}, are not this host's; nothing was changed",
                found.join(" and ")
            )));
        }
        Ok(here)
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => Endpoint::new(host, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

/// Whether this host has the address.
fn is_of_this_host(addr: &SocketAddr) -> bool {
    let mut any_port = *addr;
    any_port.set_port(0);
    UdpSocket::bind(any_port).is_ok()
}

fn lacks_zone(addr: &SocketAddr) -> bool {
    matches!(addr, SocketAddr::V6(addr) if addr.ip().is_unicast_link_local() && addr.scope_id() == 0)
}

/// The host in the URL of a host that listens on every address and has no name of its own.
pub const HOST_NAME_UNKNOWN: &str = "HOST";

/// Returns `addr` as clients write it: a host that listens on every address is given by its name, and the zone of a
/// link-local address is named by the interface of this host.
pub fn reachable(addr: SocketAddr) -> Endpoint {
    if addr.ip().is_unspecified() {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        return Endpoint::new(host_of(name.trim()), addr.port());
    }
    match addr {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => {
            Endpoint::new(&format!("{}%{}", v6.ip(), interface(v6.scope_id())), addr.port())
        }
        _ => Endpoint::new(&addr.ip().to_string(), addr.port()),
    }
}

/// Returns the name of an interface, or its number if the kernel does not report the name.
fn interface(index: u32) -> String {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0));
    let name = socket.ok().and_then(|socket| index_to_name(socket, index).ok());
    name.unwrap_or_else(|| index.to_string())
}

/// Returns the name by which other hosts can reach this one, whose own name is `name`.
fn host_of(name: &str) -> &str {
    let is_localhost = name == "localhost" || name.starts_with("localhost.");
    if name.is_empty() || name == "(none)" || is_localhost { HOST_NAME_UNKNOWN } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_with_their_default_port() {
        for (text, shown) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("127.0.0.1", "127.0.0.1:7711"),
            ("localhost", "localhost:7711"),
            ("mem1:0", "mem1:0"),
            ("[::1]", "[::1]:7711"),
            ("[fe80::1%eth0]:2", "[fe80::1%eth0]:2"),
            ("[fe80::1%25eth0]", "[fe80::1%eth0]:7711"),
            (":9", ":9"),
            ("*:9", ":9"),
        ] {
            assert_eq!(parse_node(text).unwrap().to_string(), shown);
        }
        assert_eq!(parse_metrics("[::1]").unwrap().to_string(), "[::1]:7712");
    }

    #[test]
    fn other_text_is_refused_with_the_way_to_write_it() {
        for (text, advice) in [
            ("7711", "127.0.0.1:7711"),
            ("::1", "[::1]:7711"),
            ("::1:7711", "[::1]:7711"),
            ("fe80::1%eth0", "brackets"),
            ("", "ADDRESS:PORT"),
            (":", "ADDRESS:PORT"),
            ("mem1:", "ADDRESS:PORT"),
            ("mem1:70000", "ADDRESS:PORT"),
            ("tcp://mem1:7711", "ADDRESS:PORT"),
        ] {
            let error = parse_node(text).unwrap_err();
            assert!(error.contains(advice), "{text:?}: {error}");
        }
    }

    #[test]
    fn what_is_written_is_resolved_to_addresses_of_this_host() {
        let resolved = |text: &str| parse_node(text).unwrap().resolve().map_err(|failure| failure.to_string());
        let addr = |text: &str| -> SocketAddr { text.parse().unwrap() };
        assert_eq!(resolved("127.0.0.1:5"), Ok(vec![addr("127.0.0.1:5")]));
        // It has one address or two.
        let local = resolved("localhost:5").unwrap();
        assert!(local.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 5) && !local.is_empty(), "{local:?}");
        let [all] = resolved(":5").unwrap()[..] else { panic!("one address means all") };
        assert!(all.ip().is_unspecified() && all.port() == 5);
        assert!(resolved("[fe80::1]:5").unwrap_err().contains("[fe80::1%eth0]:5"));
    }

    #[test]
    fn a_listener_on_every_address_is_shown_by_host_name() {
        let shown = |addr: &str| reachable(addr.parse().unwrap()).to_string();
        assert_eq!(shown("127.0.0.1:7711"), "127.0.0.1:7711");
        assert_eq!(shown("[::1]:7711"), "[::1]:7711");
        // No host has so many interfaces.
        assert_eq!(shown("[fe80::1%2500000000]:7711"), "[fe80::1%252500000000]:7711");
        for every in ["0.0.0.0:7711", "[::]:7711"] {
            let url = format!("tcp://{}", shown(every));
            assert!(url.ends_with(":7711") && !url.contains("0.0.0.0") && !url.contains("::"), "{url}");
            assert!(url.parse::<guira::Url>().is_ok(), "{url}");
        }
        let hosts = ["mem1", "mem1.example", "localhost", "localhost.localdomain", "(none)", ""].map(host_of);
        assert_eq!(hosts, ["mem1", "mem1.example", "HOST", "HOST", "HOST", "HOST"]);
    }
}
