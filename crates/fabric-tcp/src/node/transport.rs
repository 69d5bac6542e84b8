//! How bytes come and go: a TCP connection, and what the kernel is told about it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use mio::net::TcpStream;
use rustix::net::sockopt;

/// A client's connection, which never blocks.
pub(super) enum Transport {
    /// Bytes as they are.
    Plain(TcpStream),
}

impl Transport {
    /// A connection that the kernel watches: it is lost when the client's machine is silent for `timeout`.
    ///
    /// The client's process may sleep for as long as it likes, as its kernel answers for it.
    pub(super) fn plain(stream: TcpStream, timeout: Duration) -> io::Result<Transport> {
        let socket = stream.as_fd();
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        // Three questions at least fit into the time that is left when the first is asked.
        let seconds = timeout.as_secs();
        sockopt::set_tcp_keepidle(socket, Duration::from_secs((seconds / 3).max(1)))?;
        sockopt::set_tcp_keepintvl(socket, Duration::from_secs((seconds / 6).max(1)))?;
        sockopt::set_tcp_user_timeout(socket, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX))?;
        Ok(Transport::Plain(stream))
    }

    /// What mio watches.
    pub(super) fn source(&mut self) -> &mut TcpStream {
        match self {
            Transport::Plain(stream) => stream,
        }
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Transport::Plain(stream) => stream.peer_addr().ok(),
        }
    }

    #[inline]
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => stream.read(into),
        }
    }

    #[inline]
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(stream) => stream.write(bytes),
        }
    }

    /// Says that nothing more will be sent.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}
