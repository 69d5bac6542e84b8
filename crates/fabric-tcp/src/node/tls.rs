//! A client's connection, encrypted.

use std::io::{self, Read};

use mio::net::TcpStream;

use super::transport::More;
use crate::tls::{Received, Session, TlsError, TlsServer};

pub(super) struct Tls {
    session: Session,
    received: Received,
    /// Whether the other side is not believed any more: what it sends is not looked at.
    has_failed: bool,
}

impl Tls {
    pub(super) fn new(server: &TlsServer) -> io::Result<Box<Tls>> {
        let (session, received) = (server.session().map_err(TlsError::into_io)?, Received::new());
        Ok(Box::new(Tls { session, received, has_failed: false }))
    }

    /// As [`super::transport::Transport::read`]; from the socket once at most.
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
            // What is left over is more, whatever the socket has, and so is an error behind it.
            Ok(bytes) if bytes == into.len() || self.session.has_failed() => Ok((bytes, More::Maybe)),
            Ok(bytes) => Ok((bytes, more)),
            // A part of a record, or a handshake: whether there is more, the socket says itself.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::Interrupted.into()),
            Err(error) => {
                self.has_failed = true;
                Err(error)
            }
        }
    }

    /// The first name of the client's certificate, if it has one.
    pub(super) fn peer_name(&self) -> Option<String> {
        self.session.peer_name()
    }

    pub(super) fn write(&mut self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
        self.session.send(bytes, stream)
    }

    pub(super) fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.session.flush(stream)
    }

    /// Says in TLS that nothing more will be sent.
    pub(super) fn finish(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.session.finish();
        self.session.flush(stream)
    }
}
