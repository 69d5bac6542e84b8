//! The transport of a connection: a stream of bytes.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

/// The way in which a receive waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveMode {
    /// The receive does not wait.
    NonBlocking,
    /// The receive waits for at most [`SLICE`].
    Timed,
}

/// A stream of bytes in both directions. At most one thread sends and at most one receives at a time. Bytes that were
/// not reported as sent are passed again, at the start of the next send.
pub trait Transport: Send + Sync {
    /// Sends as many of `bytes` as there is room for, and returns their number; never waits.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; any other error is final.
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Receives to the start of `into`; returns the number of bytes, 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived within the time of `mode`; any other error is final.
    fn receive(&self, into: &mut [u8], mode: ReceiveMode) -> io::Result<usize>;

    /// Shuts the stream down in both directions, which also wakes threads that wait for it.
    fn shut(&self);

    /// Returns the socket to poll for readiness.
    fn socket(&self) -> BorrowedFd<'_>;
}

/// An unencrypted TCP connection.
pub(super) struct Plain(TcpStream);

/// The longest wait for bytes: how late a timeout can be noticed.
pub const SLICE: Duration = Duration::from_millis(50);
/// The idle time before the first keepalive probe, and the interval between probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// The unanswered keepalive probes after which a connection counts as lost.
const PROBES: u32 = 3;

impl Plain {
    /// Sets the options of a connection: frames are sent at once, and a vanished peer is noticed, after `timeout` if
    /// data is unacknowledged.
    pub(super) fn new(stream: TcpStream, timeout: Duration) -> io::Result<Plain> {
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_nodelay(&stream, true)?;
        sockopt::set_tcp_user_timeout(&stream, timeout_ms)?;
        sockopt::set_tcp_keepidle(&stream, PROBE_INTERVAL)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        stream.set_read_timeout(Some(SLICE))?;
        Ok(Plain(stream))
    }

    #[cfg(feature = "tls")]
    pub(super) fn stream(&self) -> &TcpStream {
        &self.0
    }
}

impl Transport for Plain {
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn receive(&self, into: &mut [u8], mode: ReceiveMode) -> io::Result<usize> {
        let flags = match mode {
            ReceiveMode::NonBlocking => RecvFlags::DONTWAIT,
            ReceiveMode::Timed => RecvFlags::empty(),
        };
        let (_, bytes) = recv(&self.0, into, flags)?;
        Ok(bytes)
    }

    fn shut(&self) {
        // It fails if the connection is already closed.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
