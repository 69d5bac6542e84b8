//! Where a node is, and how to connect to it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

#[cfg(feature = "tls")]
use crate::tls::TlsClient;
use crate::wire::{Grant, Hello, SessionId, Token};

/// The port of a memory node where none is said.
pub const DEFAULT_PORT: u16 = 7711;

/// The place of a memory node: a host's name or address, and a port. Read from `HOST:PORT` or `[IPV6]:PORT`, where the
/// port may be left out: then it is [`DEFAULT_PORT`]. Always shown with its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// A text is not the place of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the place of a memory node: write HOST, HOST:PORT or [IPV6]:PORT")]
pub struct EndpointError {
    /// The text.
    pub text: String,
}

impl Endpoint {
    /// The node at `port` of `host`: a name or an address, an IPv6 address without brackets. Looks nothing up.
    pub fn new(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    /// The host's name or address, an IPv6 address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
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
        let is_plain =
            !host.contains([':', '[', ']', '/', '@']) && !host.contains(|c: char| c.is_whitespace() || c.is_control());
        let host = match bracketed {
            Some(address) if address.parse::<std::net::Ipv6Addr>().is_ok() => address,
            None if is_plain && !host.is_empty() => host,
            _ => return Err(wrong()),
        };
        let Some(port) = port else { return Ok(Endpoint::new(host, DEFAULT_PORT)) };
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
        Ok(Endpoint::new(host, port))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// How the lanes of a connection wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// The thread waits inside of `poll`. For blocking callers; fastest with one lane a connection.
    #[default]
    InPlace,
    /// A thread of the connection's own reads the replies and wakes the tasks that wait for them, on any executor. For
    /// many lanes a connection.
    Cooperative,
}

/// How to connect, and what for.
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

/// The shortest time that may be given to anything: what is shorter is taken for it.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

impl ConnectOptions {
    /// To read and change the region of the node at `endpoint`, without a token, waiting in place, with the first 4 KiB
    /// of Main space, 5 s to connect and 10 s for each batch.
    pub fn new(endpoint: Endpoint) -> ConnectOptions {
        let sample_words = Hello::MAX_SAMPLE_WORDS;
        let hello = Hello { wanted: Grant::ReadWrite, token: None, prior_session: None, sample_words };
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

    /// Encrypts the connection, and talks to nobody who is not the node by his certificate: its name or address is the
    /// endpoint's host. One round trip more to connect.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: TlsClient) -> ConnectOptions {
        self.tls = Some(tls);
        self
    }

    /// The secret that lets this client in.
    #[must_use]
    pub fn with_token(mut self, token: Token) -> ConnectOptions {
        self.hello.token = Some(token);
        self
    }

    /// What the session is to be allowed; the node may grant less.
    #[must_use]
    pub fn with_grant(mut self, wanted: Grant) -> ConnectOptions {
        self.hello.wanted = wanted;
        self
    }

    /// The session that this client had before, so that the node tells what became of it.
    #[must_use]
    pub fn with_prior_session(mut self, session: SessionId) -> ConnectOptions {
        self.hello.prior_session = Some(session);
        self
    }

    /// How many of the first words of Main space the node sends at once, at most 512.
    #[must_use]
    pub fn with_sample_words(mut self, words: u16) -> ConnectOptions {
        self.hello.sample_words = words.min(Hello::MAX_SAMPLE_WORDS);
        self
    }

    /// How lanes wait.
    #[must_use]
    pub fn with_waiting(mut self, waiting: Waiting) -> ConnectOptions {
        self.waiting = waiting;
        self
    }

    /// How long connecting may take, all addresses of the host, TLS, the greeting and further attempts together
    /// (looking the host up is the system's affair and not counted). At least 1 ms. A connection that ends before the
    /// node has answered the greeting is attempted again, because a node with too many connections closes some of them.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> ConnectOptions {
        self.connect_timeout = timeout.max(SHORTEST_TIMEOUT);
        self
    }

    /// How long a batch may go unanswered before the connection is given up; up to half as long again may pass. At
    /// least 1 ms.
    #[must_use]
    pub fn with_batch_timeout(mut self, timeout: Duration) -> ConnectOptions {
        self.batch_timeout = timeout.max(SHORTEST_TIMEOUT);
        self
    }

    /// Where the node is.
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
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError { text: text.to_owned() }), "{text:?}");
        }
    }
}
