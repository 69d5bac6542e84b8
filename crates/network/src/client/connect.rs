//! The start of a session.
//!
//! A node that has too many connections without a session closes the oldest of them, without a Close. So a client whose
//! connection ends before the Welcome tries again, with pauses that double, until its timeout.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use guira_fabric::process::Process;

use super::driver;
use super::link::Link;
use super::options::{ConnectOptions, Endpoint};
use super::outbox::{Flushed, Outbox};
use super::receive::Receiver;
use super::session::Connection;
#[cfg(feature = "tls")]
use super::tls::Encrypted;
use super::transport::{Plain, ReceiveMode, Transport};
use crate::tls::TlsError;
use crate::wire::{CloseReason, Fabric, Hello, Kind, Welcome, WireError, append};
use guira_fabric::Waiting;

/// A session could not be started. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host could not be resolved.
    #[error("cannot find the memory node {endpoint}: {source}; nothing was changed")]
    Resolve {
        /// The endpoint of the node.
        endpoint: Endpoint,
        /// The error of the operating system.
        r#source: io::Error,
    },
    /// The connection was refused.
    #[error("cannot connect to the memory node at {address}: connection refused; nothing was changed")]
    Refused {
        /// The address, the last one if the host has several.
        address: SocketAddr,
    },
    /// The node did not answer in time.
    #[error("the memory node at {address} did not answer within {timeout_ms} ms; nothing was changed")]
    TimedOut {
        /// The address, the last one if the host has several.
        address: SocketAddr,
        /// The connect timeout, in milliseconds.
        timeout_ms: u64,
    },
    /// The operating system reported a failure.
    #[error("cannot connect to the memory node at {address}: {source}; nothing was changed")]
    Io {
        /// The address, the last one if the host has several.
        address: SocketAddr,
        /// The error of the operating system.
        r#source: io::Error,
    },
    /// The TLS handshake failed: one side does not speak TLS, or does not accept the other's certificate.
    #[error("TLS with the memory node at {address} failed: {reason}; nothing was changed")]
    Tls {
        /// The address of the node.
        address: SocketAddr,
        /// The reason.
        reason: TlsError,
    },
    /// Until the connect timeout, every connection was closed before the Welcome and without a reason.
    #[error(
        "{address} closed the connection before it answered ({how}), {} within {tried_ms} ms: it has too many new \
         connections, or is not a memory node; nothing was changed",
        times(*attempts)
    )]
    Closed {
        /// The address, the last one if the host has several.
        address: SocketAddr,
        /// The number of connections that were closed.
        attempts: u32,
        /// The time from the first attempt to the last, in milliseconds.
        tried_ms: u64,
        /// The way in which the last connection ended.
        how: io::ErrorKind,
    },
    /// The answer is not a frame of this protocol.
    #[error("{address} is not a memory node of a supported version: {source}; nothing was changed")]
    NotANode {
        /// The address of the node.
        address: SocketAddr,
        /// The error in the frame.
        r#source: WireError,
    },
    /// The node refused the session, for instance because of the protocol's version or the token, or because it has as
    /// many sessions as it allows.
    #[error("the memory node at {address} refused the session: {reason}; nothing was changed")]
    Rejected {
        /// The address of the node.
        address: SocketAddr,
        /// The reason.
        reason: CloseReason,
    },
}

/// The first and the longest pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Returns `1 time`, `2 times` and so on.
fn times(attempts: u32) -> String {
    format!("{attempts} time{}", if attempts == 1 { "" } else { "s" })
}

/// Starts a session. The loop is bounded by the connect timeout: no attempt lasts longer, and pauses are not empty.
pub(super) fn connect(options: &ConnectOptions, fabric: Fabric) -> Result<Connection, ConnectError> {
    let endpoint = &options.endpoint;
    let begin = Instant::now();
    let deadline = begin + options.connect_timeout;
    let unknown = |source| ConnectError::Resolve { endpoint: endpoint.clone(), source };
    let addresses = endpoint.addresses().map_err(unknown)?;
    let (mut attempts, mut step, mut last) = (0, FIRST_PAUSE, None);
    loop {
        let (address, how) = match (attempt(options, fabric, &addresses, deadline), last) {
            (Err(ConnectError::Closed { address, how, .. }), _) => {
                attempts += 1;
                (address, how)
            }
            // The timeout ended an attempt: the outcome of the attempt before it says more.
            (Err(ConnectError::TimedOut { .. }), Some(last)) => last,
            (result, _) => return result,
        };
        let pause = jittered(step);
        if Instant::now() + pause >= deadline {
            let tried_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
            return Err(ConnectError::Closed { address, attempts, tried_ms, how });
        }
        std::thread::sleep(pause);
        step = MAX_PAUSE.min(2 * step);
        last = Some((address, how));
    }
}

/// Draws a pause from the upper half of `step`, so that clients which were closed together do not return together.
fn jittered(step: Duration) -> Duration {
    let half = step / 2;
    // Without random numbers there is no jitter.
    let share = getrandom::u32().unwrap_or_default() % 1024;
    half + half * share / 1024
}

/// Makes one attempt to start a session.
fn attempt(
    options: &ConnectOptions,
    fabric: Fabric,
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<Connection, ConnectError> {
    let (last, stream) = connect_tcp(options, addresses, deadline)?;
    let attempt = Attempt { address: last, options };
    let io = |source| attempt.failed(source);
    let process = Process::current().map_err(io)?;
    let plain = Plain::new(stream, options.batch_timeout).map_err(io)?;
    let transport = start_tls(attempt, plain, deadline)?;
    let mut receiver = Receiver::default();
    let hello = Hello { fabric, ..options.hello };
    let welcome = greet(attempt, &hello, &*transport, &mut receiver, deadline)?;
    let link = Arc::new(Link::new(transport, options.batch_timeout, process, receiver));
    if options.waiting == Waiting::Cooperative {
        driver::start(&link).map_err(io)?;
    }
    let waiting = options.waiting;
    Ok(Connection { link, waiting, peer: attempt.address, welcome })
}

/// Connects to the first address that accepts a connection.
fn connect_tcp(
    options: &ConnectOptions,
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<(SocketAddr, TcpStream), ConnectError> {
    let source = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let mut error = ConnectError::Resolve { endpoint: options.endpoint.clone(), source };
    for (index, address) in addresses.iter().enumerate() {
        // Some time is kept for the others: an address that does not answer must not hide one that would.
        let left = deadline.saturating_duration_since(Instant::now()) / (addresses.len() - index) as u32;
        match TcpStream::connect_timeout(address, left.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok((*address, stream)),
            Err(source) => error = Attempt { address: *address, options }.failed(source),
        }
    }
    Err(error)
}

/// Encrypts the connection, if the options say so.
#[cfg(feature = "tls")]
fn start_tls(attempt: Attempt<'_>, plain: Plain, deadline: Instant) -> Result<Box<dyn Transport>, ConnectError> {
    let Some(tls) = &attempt.options.tls else { return Ok(Box::new(plain)) };
    match Encrypted::connect(plain, tls, attempt.options.endpoint.certified_host(), deadline) {
        Ok(encrypted) => Ok(Box::new(encrypted)),
        Err(error) => Err(attempt.failed(error)),
    }
}

#[cfg(not(feature = "tls"))]
fn start_tls(_: Attempt<'_>, plain: Plain, _: Instant) -> Result<Box<dyn Transport>, ConnectError> {
    Ok(Box::new(plain))
}

/// Sends the Hello and receives the Welcome.
fn greet(
    attempt: Attempt<'_>,
    hello: &Hello,
    transport: &dyn Transport,
    receiver: &mut Receiver,
    deadline: Instant,
) -> Result<Welcome, ConnectError> {
    let address = attempt.address;
    let mut outbox = Outbox::default();
    outbox.append(|out| append(out, Kind::Hello, 0, &hello.encode()));
    // A Hello fits the send buffer of a new connection. If it cannot be sent, a Close that has arrived is read first.
    let flushed = outbox.flush(transport);
    let not_a_node = |source| ConnectError::NotANode { address, source };
    loop {
        if let Some((header, body)) = receiver.next().map_err(not_a_node)? {
            return match header.kind {
                Kind::Welcome => Welcome::decode(body).map_err(not_a_node),
                Kind::Close => {
                    let reason = CloseReason::decode(body).map_err(not_a_node)?;
                    Err(ConnectError::Rejected { address, reason })
                }
                kind => Err(not_a_node(WireError::Kind { kind: kind as u8 })),
            };
        }
        if Instant::now() >= deadline {
            return Err(attempt.timed_out());
        }
        match receiver.fill(transport, ReceiveMode::Timed) {
            Ok(0) => return Err(attempt.failed(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                if let Flushed::Failed(kind) = flushed {
                    return Err(attempt.failed(kind.into()));
                }
            }
            Err(error) => return Err(attempt.failed(error)),
        }
    }
}

/// Whether `address` says nothing without the zone that it lacks.
fn lacks_zone(address: SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(address) if address.ip().is_unicast_link_local() && address.scope_id() == 0)
}

/// An attempt to start a session.
#[derive(Clone, Copy)]
struct Attempt<'o> {
    address: SocketAddr,
    options: &'o ConnectOptions,
}

impl Attempt<'_> {
    fn failed(self, source: io::Error) -> ConnectError {
        if let Some(reason) = TlsError::of(&source) {
            return ConnectError::Tls { address: self.address, reason: reason.clone() };
        }
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match source.kind() {
            // A node that closes with unread bytes resets the connection instead of ending it.
            how @ (UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe) => {
                ConnectError::Closed { address: self.address, attempts: 1, tried_ms: 0, how }
            }
            io::ErrorKind::ConnectionRefused => ConnectError::Refused { address: self.address },
            io::ErrorKind::TimedOut => self.timed_out(),
            io::ErrorKind::InvalidInput if lacks_zone(self.address) => {
                let reason = "a link-local address needs the interface of this host to it, as in [fe80::1%eth0]";
                ConnectError::Io { address: self.address, source: io::Error::new(source.kind(), reason) }
            }
            _ => ConnectError::Io { address: self.address, source },
        }
    }

    fn timed_out(self) -> ConnectError {
        let timeout_ms = u64::try_from(self.options.connect_timeout.as_millis()).unwrap_or(u64::MAX);
        ConnectError::TimedOut { address: self.address, timeout_ms }
    }
}
