//! TLS on a connection to a client.

use std::io::{self, Read};

use mio::net::TcpStream;

use super::transport::More;
use crate::tls::{Received, Session, TlsError, TlsServer};

pub(super) struct Tls {
    session: Session,
    received: Received,
    /// Whether TLS has failed: further input is ignored.
    has_failed: bool,
}

impl Tls {
    pub(super) fn new(server: &TlsServer) -> io::Result<Box<Tls>> {
        let (session, received) = (server.session().map_err(TlsError::into_io)?, Received::new());
        Ok(Box::new(Tls { session, received, has_failed: false }))
    }

    /// Same as [`super::transport::Transport::read`]; reads from the socket at most once.
    pub(super) fn read(&mut self, stream: &mut TcpStream, into: &mut [u8]) -> io::Result<(usize, More)> {
        if self.has_failed {
            return stream.read(into).map(|bytes| (bytes, More::Maybe));
        }
        let mut more = More::Maybe;
        let opened = match self.session.open(&mut self.received, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let space = self.received.space();
                let room = space.len();
                let bytes = stream.read(space)?;
                if bytes == 0 {
                    return Ok((0, More::No));
                }
                if bytes < room {
                    more = More::No;
                }
                self.received.received(bytes);
                self.session.open(&mut self.received, into)
            }
            opened => opened,
        };
        match opened {
            // Decrypted data may be left over, or an error may follow, whatever the socket has.
            Ok(bytes) if bytes == into.len() || self.session.has_failed() => Ok((bytes, More::Maybe)),
            Ok(bytes) => Ok((bytes, more)),
            // A part of a record or of the handshake: the socket is read again for more.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::Interrupted.into()),
            Err(error) => {
                self.has_failed = true;
                Err(error)
            }
        }
    }

    /// Returns the first name of the client's certificate, if it has one.
    pub(super) fn peer_name(&self) -> Option<String> {
        self.session.peer_name()
    }

    pub(super) fn write(&mut self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
        self.session.send(bytes, stream)
    }

    pub(super) fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.session.flush(stream)
    }

    /// Sends `close_notify`.
    pub(super) fn finish(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.session.finish();
        self.session.flush(stream)
    }
}
