//! The transport of a connection: TCP with its socket options, and TLS if the node requires it.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

use mio::net::TcpStream;
use rustix::net::sockopt;

use super::access::NodeAccess;
use super::options::NodeOptions;
#[cfg(feature = "tls")]
use super::tls::Tls;

/// A non-blocking connection to a client.
pub(super) struct Transport {
    stream: TcpStream,
    #[cfg(feature = "tls")]
    tls: Option<Box<Tls>>,
}

/// Whether there may be more to read than was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    Maybe,
    /// The kernel reports later input.
    No,
}

impl Transport {
    /// Creates the transport with keepalive probes: the connection fails when the client's machine is silent for the
    /// session timeout. The client's process may be stopped for any time, as its kernel answers the probes.
    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "only TLS needs the access control so early"))]
    pub(super) fn new(stream: TcpStream, options: &NodeOptions, access: &NodeAccess) -> io::Result<Transport> {
        let (socket, timeout) = (stream.as_fd(), options.session_timeout);
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        // The kernel counts in whole seconds: from a timeout of 4 s on, at least three probes are sent in time.
        let seconds = timeout.as_secs();
        sockopt::set_tcp_keepidle(socket, Duration::from_secs((seconds / 3).max(1)))?;
        sockopt::set_tcp_keepintvl(socket, Duration::from_secs((seconds / 6).max(1)))?;
        sockopt::set_tcp_user_timeout(socket, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX))?;
        Ok(Transport {
            stream,
            #[cfg(feature = "tls")]
            tls: access.tls_server().map(Tls::new).transpose()?,
        })
    }

    /// Returns the event source for mio.
    pub(super) fn source(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Returns the first name of the client's certificate, if it has one.
    pub(super) fn peer_name(&self) -> Option<String> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.peer_name();
        }
        None
    }

    /// Reads to the start of `into`; 0 bytes at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if there is no input, `Interrupted` if input was read without any data; a [`crate::tls::TlsError`];
    /// the kernel's errors.
    #[inline]
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<(usize, More)> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.read(&mut self.stream, into);
        }
        // A read that does not fill the room was all.
        let room = into.len();
        self.stream.read(into).map(|bytes| (bytes, if bytes == room { More::Maybe } else { More::No }))
    }

    /// Sends as many of `bytes` as there is room for, and returns their number. The rest is to be passed again, at the
    /// start of the next write.
    #[inline]
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.write(&mut self.stream, bytes);
        }
        self.stream.write(bytes)
    }

    /// Sends pending messages of TLS itself.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room for all of it.
    #[inline]
    pub(super) fn flush(&mut self) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.flush(&mut self.stream);
        }
        Ok(())
    }

    /// Turns TLS off: from now on bytes are sent and received unencrypted.
    pub(super) fn disable_tls(&mut self) {
        #[cfg(feature = "tls")]
        {
            self.tls = None;
        }
    }

    /// Shuts down the sending side.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            match tls.finish(&mut self.stream) {
                // The call is repeated when there is room.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                finished => finished?,
            }
        }
        self.stream.shutdown(Shutdown::Write)
    }
}
