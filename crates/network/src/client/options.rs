//! The address of a node, and how to connect to it.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use guira_fabric::Waiting;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

use crate::LONGEST_TIMEOUT;
#[cfg(feature = "tls")]
use crate::tls::TlsClient;
use crate::wire::{Fabric, Grant, Hello, SessionId, Token};

/// The default port of a memory node.
pub const DEFAULT_PORT: u16 = 7711;
/// Maximum number of bytes of an interface's name: the kernel's.
const MAX_ZONE_BYTES: usize = 15;

/// The endpoint of a memory node: a host's name or address, and a port. Parsed from `HOST:PORT` or `[IPV6]:PORT`;
/// without a port it is [`DEFAULT_PORT`]. Always shown with its port. A link-local IPv6 address has a zone, the name or
/// number of this host's interface to it: `[fe80::1%eth0]:PORT`, or `[fe80::1%25eth0]:PORT` as in RFC 6874.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// A text is not the endpoint of a memory node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the address of a memory node: write HOST, HOST:PORT or [IPV6]:PORT")]
pub struct EndpointError {
    /// The text that was parsed.
    pub text: String,
}

impl Endpoint {
    /// Creates the endpoint `port` of `host`, which is a name or an address; an IPv6 address has no brackets. Resolves
    /// nothing.
    pub fn new(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    /// Returns the host's name or address, an IPv6 address without brackets and with its zone.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the addresses of the host. Blocks while a name is looked up.
    ///
    /// # Errors
    /// The resolver's; if the zone is the cause, it is named.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        found.map(Iterator::collect).map_err(|error| match self.host.split_once('%') {
            Some((_, zone)) if lacks_interface(zone) => {
                io::Error::new(io::ErrorKind::NotFound, format!("this host has no network interface {zone:?}"))
            }
            _ => error,
        })
    }

    /// Returns the host's name or address, without a zone: the one that certificates contain.
    #[cfg(feature = "tls")]
    pub(super) fn certified_host(&self) -> &str {
        self.host.split_once('%').map_or(&self.host, |(address, _)| address)
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        let wrong = || EndpointError { text: text.to_owned() };
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_plain = !host.contains([':', '[', ']', '/', '@', '%'])
            && !host.contains(|c: char| c.is_whitespace() || c.is_control());
        let host = match bracketed {
            Some(address) => ipv6_host(address).ok_or_else(wrong)?,
            None if is_plain && !host.is_empty() => host.to_owned(),
            None => return Err(wrong()),
        };
        let Some(port) = port else { return Ok(Endpoint { host, port: DEFAULT_PORT }) };
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
        Ok(Endpoint { host, port })
    }
}

/// Whether this host has no network interface of this name.
fn lacks_interface(name: &str) -> bool {
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    socket.is_ok_and(|socket| name_to_index(socket, name) == Err(Errno::NODEV))
}

/// Parses an IPv6 address with an optional zone, and returns it with `%` before the zone. As in URIs, `%25` before a
/// zone means `%`; nothing behind it makes it zone 25.
fn ipv6_host(text: &str) -> Option<String> {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    address.parse::<std::net::Ipv6Addr>().ok()?;
    let Some(zone) = zone else { return Some(address.to_owned()) };
    let zone = zone.strip_prefix("25").filter(|zone| !zone.is_empty()).unwrap_or(zone);
    let is_known = |byte: u8| byte.is_ascii_graphic() && !b"%/:?#[]@\\".contains(&byte);
    let is_zone = (1..=MAX_ZONE_BYTES).contains(&zone.len()) && zone.bytes().all(is_known);
    is_zone.then(|| format!("{address}%{zone}"))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint { host, port } = self;
        match host.split_once('%') {
            // With a plain separator, this zone would be read as another one.
            Some((address, zone)) if zone.starts_with("25") => write!(f, "[{address}%25{zone}]:{port}"),
            _ if host.contains(':') => write!(f, "[{host}]:{port}"),
            _ => write!(f, "{host}:{port}"),
        }
    }
}

/// Options of a connection to a memory node.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    pub(super) endpoint: Endpoint,
    pub(super) hello: Hello,
    pub(super) waiting: Waiting,
    pub(super) connect_timeout: Duration,
    pub(super) batch_timeout: Duration,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsClient>,
}

/// The minimum timeout: a shorter one is rounded up to it.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

/// Returns `timeout` within the limits.
fn limited(timeout: Duration) -> Duration {
    timeout.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT)
}

impl ConnectOptions {
    /// Creates options to read and write the region of the node at `endpoint`, without a token, waiting in place, with
    /// a sample of the first 4 KiB of Main space, 5 s to connect and 10 s for each batch.
    pub fn new(endpoint: Endpoint) -> ConnectOptions {
        let sample_words = Hello::MAX_SAMPLE_WORDS;
        // The fabric is filled in when its region connects.
        let (fabric, wanted) = (Fabric::Tcp, Grant::ReadWrite);
        let hello = Hello { fabric, wanted, token: None, prior_session: None, sample_words };
        let (connect_timeout, batch_timeout) = (Duration::from_secs(5), Duration::from_secs(10));
        ConnectOptions {
            endpoint,
            hello,
            waiting: Waiting::default(),
            connect_timeout,
            batch_timeout,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Encrypts the connection, and requires a certificate of the node for the endpoint's host. Connecting takes 1 more
    /// round trip.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: TlsClient) -> ConnectOptions {
        self.tls = Some(tls);
        self
    }

    /// Sets the token that authenticates this client.
    #[must_use]
    pub fn with_token(mut self, token: Token) -> ConnectOptions {
        self.hello.token = Some(token);
        self
    }

    /// Sets the access that the session requests; the node may grant less.
    #[must_use]
    pub fn with_grant(mut self, wanted: Grant) -> ConnectOptions {
        self.hello.wanted = wanted;
        self
    }

    /// Names the client's prior session, so that the node reports its outcome.
    #[must_use]
    pub fn with_prior_session(mut self, session: SessionId) -> ConnectOptions {
        self.hello.prior_session = Some(session);
        self
    }

    /// Sets how many of the first words of Main space the node sends when the session starts, at most 512.
    #[must_use]
    pub fn with_sample_words(mut self, words: u16) -> ConnectOptions {
        self.hello.sample_words = words.min(Hello::MAX_SAMPLE_WORDS);
        self
    }

    /// Sets how lanes wait. With [`Waiting::Cooperative`] a thread of the connection reads the replies and wakes the
    /// tasks that wait for them; it serves many lanes.
    #[must_use]
    pub fn with_waiting(mut self, waiting: Waiting) -> ConnectOptions {
        self.waiting = waiting;
        self
    }

    /// Sets how long connecting may take, for all addresses of the host, TLS, the greeting and further attempts
    /// together (name resolution is not counted). At least 1 ms, at most 14 days. A connection that ends before the node
    /// has answered the Hello is attempted again, because a node with too many connections closes some of them.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> ConnectOptions {
        self.connect_timeout = limited(timeout);
        self
    }

    /// Sets how long a batch may be unanswered before the connection is given up, which may take up to half as long
    /// again. At least 1 ms, at most 14 days.
    #[must_use]
    pub fn with_batch_timeout(mut self, timeout: Duration) -> ConnectOptions {
        self.batch_timeout = limited(timeout);
        self
    }

    /// Returns the endpoint of the node.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_parsed_and_written() {
        for (text, host, port) in
            [("node:7000", "node", 7000), ("10.0.0.1:1", "10.0.0.1", 1), ("[::1]:65535", "::1", 65535)]
        {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.host(), endpoint.port(), endpoint.to_string()), (host, port, text.to_owned()));
        }
        for (text, shown) in [("node", "node:7711"), ("[::1]", "[::1]:7711")] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.port(), endpoint.to_string()), (DEFAULT_PORT, shown.to_owned()));
        }
        for text in [
            "",
            "node:",
            "[::1]:",
            "::1",
            "[node]",
            "a]",
            ":7",
            "node:65536",
            "node:+7",
            "::1:7",
            "[::1",
            "[node]:7",
            "a b:7",
            "a/b:7",
            "a%eth0:7",
            "[::1%]:7",
            "[::1%a/b]:7",
            "[::1%a%b]:7",
            "[::1%a b]:7",
            "[::1%sixteen-are-many]:7",
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError { text: text.to_owned() }), "{text:?}");
        }
    }

    #[test]
    fn an_unknown_interface_is_named() {
        let addresses = |host| Endpoint::new(host, 7).addresses();
        assert_eq!(addresses("fe80::1%lo").unwrap()[0].ip(), "fe80::1".parse::<std::net::IpAddr>().unwrap());
        let error = addresses("fe80::1%nobody").unwrap_err().to_string();
        assert_eq!(error, "this host has no network interface \"nobody\"");
        let error = addresses("nobody.invalid").unwrap_err().to_string();
        assert!(!error.contains("interface"), "{error}");
    }

    /// The separator `%25` of RFC 6874 and a plain one mean the same, and what is shown is parsed as the same zone.
    #[test]
    fn zones_are_parsed_and_written() {
        for (text, host, shown) in [
            ("[fe80::1%eth0]:7", "fe80::1%eth0", "[fe80::1%eth0]:7"),
            ("[fe80::1%25eth0]:7", "fe80::1%eth0", "[fe80::1%eth0]:7"),
            ("[fe80::1%2]", "fe80::1%2", "[fe80::1%2]:7711"),
            ("[fe80::1%25]:7", "fe80::1%25", "[fe80::1%2525]:7"),
            ("[fe80::1%2525]:7", "fe80::1%25", "[fe80::1%2525]:7"),
            ("[fe80::1%25255]:7", "fe80::1%255", "[fe80::1%25255]:7"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.host(), endpoint.to_string().as_str()), (host, shown));
            #[cfg(feature = "tls")]
            assert_eq!(endpoint.certified_host(), "fe80::1");
            assert_eq!(shown.parse(), Ok(endpoint));
        }
    }
}
