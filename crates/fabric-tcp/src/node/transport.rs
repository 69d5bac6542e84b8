//! How bytes come and go: a TCP connection, and what the kernel is told about it; with TLS on it, if the node wants
//! that.

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

/// A client's connection, which never blocks.
pub(super) struct Transport {
    stream: TcpStream,
    #[cfg(feature = "tls")]
    tls: Option<Box<Tls>>,
}

/// Whether there may be more to read than was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    Maybe,
    /// What comes later is told anew by the kernel.
    No,
}

impl Transport {
    /// A connection that the kernel watches: it is lost when the client's machine is silent for the session timeout.
    ///
    /// The client's process may sleep for as long as it likes, as its kernel answers for it.
    #[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "only TLS asks who is let in so early"))]
    pub(super) fn new(stream: TcpStream, options: &NodeOptions, access: &NodeAccess) -> io::Result<Transport> {
        let (socket, timeout) = (stream.as_fd(), options.session_timeout);
        sockopt::set_tcp_nodelay(socket, true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        // The kernel counts in whole seconds: from a timeout of 4 s on, three questions at least are asked in time.
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

    /// What mio watches.
    pub(super) fn source(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// The first name of the client's certificate, if it has shown one that has a name.
    pub(super) fn peer_name(&self) -> Option<String> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.peer_name();
        }
        None
    }

    /// Reads to the beginning of `into`; 0 bytes if the stream has ended.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing, `Interrupted` if there is nothing yet; a [`crate::tls::TlsError`]; the
    /// kernel's.
    #[inline]
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<(usize, More)> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.read(&mut self.stream, into);
        }
        // Less than there was room for: this was all.
        let room = into.len();
        self.stream.read(into).map(|bytes| (bytes, if bytes == room { More::Maybe } else { More::No }))
    }

    /// Sends as many of `bytes` as there is room for. What it does not tell of is to be given again, as the beginning
    /// of what is sent next.
    #[inline]
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.write(&mut self.stream, bytes);
        }
        self.stream.write(bytes)
    }

    /// Sends what TLS has to say by itself.
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

    /// Gives TLS up: what is said from now on is said in plain words, and heard as it comes.
    pub(super) fn disable_tls(&mut self) {
        #[cfg(feature = "tls")]
        {
            self.tls = None;
        }
    }

    /// Says that nothing more will be sent.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            match tls.finish(&mut self.stream) {
                // There will be room, and this will be asked for again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                finished => finished?,
            }
        }
        self.stream.shutdown(Shutdown::Write)
    }
}
