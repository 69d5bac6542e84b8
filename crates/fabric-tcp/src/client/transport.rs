//! What carries the bytes of a connection.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

/// How long a receiver waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveMode {
    /// Not at all.
    NonBlocking,
    /// For a while; see [`Transport::receive`].
    Timed,
}

/// A stream of bytes in both directions. One thread sends at a time and one receives, which may be two. What was not
/// told as sent is given again, as the beginning of what is sent next.
pub(super) trait Transport: Send + Sync {
    /// Hands over as many of `bytes` as there is room for; never waits.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; otherwise the stream is of no more use.
    fn send(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Fills the beginning of `into` with what has arrived; 0 bytes if the stream has ended.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived within the time of `patience`; otherwise the stream is of no more use.
    fn receive(&self, into: &mut [u8], mode: ReceiveMode) -> io::Result<usize>;

    /// Ends the stream in both directions, for whoever waits for it too.
    fn shut(&self);

    /// What to wait for readiness on.
    fn socket(&self) -> BorrowedFd<'_>;
}

/// A bare TCP connection.
pub(super) struct Plain(TcpStream);

/// How long one wait for bytes lasts, at most: how late a timeout can be noticed.
pub(super) const SLICE: Duration = Duration::from_millis(50);
/// A silent connection is asked for a sign of life after this time, and then as often.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Signs of life that may be missing before a connection counts as lost.
const PROBES: u32 = 3;

impl Plain {
    /// Prepares a connection: frames leave at once, and a peer that vanished is noticed, after `timeout` if it was sent
    /// anything.
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
        // It fails if the connection is gone already.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
