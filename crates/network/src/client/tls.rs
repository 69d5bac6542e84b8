//! Encrypted connections.
//!
//! Invariants: no thread waits for the socket while it has the session locked, so that one thread can send while
//! another waits to receive; only the receiving thread uses the received bytes.

use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustix::time::Timespec;

use super::transport::{Plain, ReceiveMode, SLICE, Transport};
use crate::tls::{Received, Session, TlsClient, TlsError};

/// A TCP connection with TLS.
pub(super) struct Encrypted {
    plain: Plain,
    session: Mutex<Session>,
    received: Mutex<Received>,
}

impl Encrypted {
    /// Performs the handshake with the node `host`: 1 round trip.
    ///
    /// # Errors
    /// `TimedOut`; `UnexpectedEof` if the node closed the connection; a [`TlsError`]; errors of the operating system.
    pub(super) fn connect(plain: Plain, tls: &TlsClient, host: &str, deadline: Instant) -> io::Result<Encrypted> {
        let session = tls.session(host).map_err(TlsError::into_io)?;
        let encrypted = Encrypted { plain, session: Mutex::new(session), received: Mutex::new(Received::new()) };
        let mut nothing = [0];
        loop {
            let mut session = lock(&encrypted.session);
            if session.is_handshaking() || session.wants_write() {
                let flushed = session.flush(&mut Socket(encrypted.plain.stream()));
                drop(session);
                encrypted.await_handshake(flushed, &mut nothing)?;
            } else {
                drop(session);
                return Ok(encrypted);
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Waits up to [`SLICE`] for the node's part of the handshake, or for room to send this side's.
    fn await_handshake(&self, flushed: io::Result<()>, nothing: &mut [u8]) -> io::Result<()> {
        match flushed {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut socket = [PollFd::from_borrowed_fd(self.socket(), PollFlags::IN | PollFlags::OUT)];
                let slice = Timespec { tv_sec: 0, tv_nsec: SLICE.subsec_nanos().into() };
                // An error of the socket is reported by the next attempt to use it.
                let _ = poll(&mut socket, Some(&slice));
            }
            flushed => flushed?,
        }
        if !lock(&self.session).is_handshaking() {
            return Ok(());
        }
        match self.receive(nothing, ReceiveMode::Timed) {
            // There is nothing to read before this side has sent anything.
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Err(TlsError::Failed { reason: "the node sent data before its client".to_owned() }.into_io()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Decrypts bytes that have been received.
    fn open(&self, received: &mut Received, into: &mut [u8]) -> io::Result<usize> {
        let mut session = lock(&self.session);
        let opened = session.open(received, into);
        if session.wants_write() {
            // A reply of TLS itself: it is sent now, or before the next data.
            let _ = session.flush(&mut Socket(self.plain.stream()));
        }
        if session.has_failed() && opened.is_ok() {
            // A thread that polls the socket before it receives again must be woken.
            self.plain.shut();
        }
        opened
    }
}

impl Transport for Encrypted {
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.session).send(bytes, &mut Socket(self.plain.stream()))
    }

    fn receive(&self, into: &mut [u8], mode: ReceiveMode) -> io::Result<usize> {
        let mut received = lock(&self.received);
        match self.open(&mut received, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            opened => return opened,
        }
        match self.plain.receive(received.space(), mode)? {
            0 => Ok(0),
            bytes => {
                received.received(bytes);
                // `WouldBlock` if these were a part of a record: the caller checks its deadline before it waits again.
                self.open(&mut received, into)
            }
        }
    }

    fn shut(&self) {
        self.plain.shut();
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.plain.socket()
    }
}

/// A socket that sends as much as there is room for, without waiting.
struct Socket<'s>(&'s TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(self.0, bytes, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Locks `mutex`; a session that was poisoned by a panic fails by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
