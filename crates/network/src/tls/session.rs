//! One side of a TLS connection, without its socket.

use std::io::{self, Read, Write};

use rustls::Connection;

use super::TlsError;

/// Maximum number of bytes in a record: TLS's.
const RECORD_BYTES: usize = 16 << 10;
/// Maximum number of bytes that a node encrypts before it sends them: four records.
pub(crate) const FLIGHT_BYTES: usize = 4 * RECORD_BYTES;
/// Maximum number of bytes that are received at a time, and wait to be decrypted.
pub(crate) const RECEIVED_BYTES: usize = 16 << 10;

/// One side of a TLS connection: its keys, and the data being encrypted and decrypted.
pub(crate) struct Session {
    connection: Connection,
    /// The caller's bytes that were encrypted and are not all sent; they are not reported as sent yet.
    sealed: usize,
    /// An error that occurred after bytes that are returned first.
    error: Option<TlsError>,
}

/// A buffer of received bytes that are still encrypted.
pub(crate) struct Received {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Received {
    pub(crate) fn new() -> Received {
        Received { bytes: vec![0; RECEIVED_BYTES].into(), start: 0, end: 0 }
    }

    /// Returns the space to receive to, once everything received before was decrypted.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        debug_assert!(self.is_empty(), "received bytes would be lost");
        &mut self.bytes
    }

    /// Notes that `bytes` bytes were received to [`Received::space`].
    pub(crate) fn received(&mut self, bytes: usize) {
        (self.start, self.end) = (0, bytes);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

impl Session {
    pub(super) fn new(connection: Connection) -> Session {
        Session { connection, sealed: 0, error: None }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns the first DNS name of the other side's certificate, if it has one.
    pub(crate) fn peer_name(&self) -> Option<String> {
        let certificate = webpki::EndEntityCert::try_from(self.connection.peer_certificates()?.first()?).ok()?;
        certificate.valid_dns_names().next().map(guira_fabric::printable)
    }

    /// Whether encrypted bytes wait to be sent.
    pub(crate) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Decrypts received bytes to the start of `into`; returns their number, 0 at the end of the stream. Nothing that
    /// was received is left over, unless `into` is full.
    ///
    /// # Errors
    /// `WouldBlock` if nothing can be decrypted before more is received; otherwise a [`TlsError`], which is final: only
    /// the alert to the other side can still be sent.
    pub(crate) fn open(&mut self, received: &mut Received, into: &mut [u8]) -> io::Result<usize> {
        debug_assert!(!into.is_empty(), "0 bytes would mean the end of the stream");
        let mut filled = 0;
        loop {
            match self.connection.reader().read(&mut into[filled..]) {
                Ok(0) => return Ok(filled),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if received.is_empty() || self.error.is_some() {
                        break;
                    }
                    self.error = self.decrypt(received).err();
                }
                Err(error) => return Err(error),
            }
            if filled == into.len() {
                return Ok(filled);
            }
        }
        match &self.error {
            _ if filled > 0 => Ok(filled),
            Some(error) => Err(error.clone().into_io()),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Whether the stream has failed, which the next [`Session::open`] reports.
    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Decrypts some of the received bytes.
    fn decrypt(&mut self, received: &mut Received) -> Result<(), TlsError> {
        let failed = |error: io::Error| TlsError::Failed { reason: error.to_string() };
        let taken = self.connection.read_tls(&mut received.bytes()).map_err(failed)?;
        received.start += taken;
        self.connection.process_new_packets()?;
        Ok(())
    }

    /// Encrypts and sends as many of `bytes` as `socket` has room for, and returns their number. The rest is to be
    /// passed again, at the start of the next send. The node can read no more of a client's bytes than were returned.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, or the handshake is not over; any other error is final.
    pub(crate) fn send(&mut self, bytes: &[u8], socket: &mut dyn Write) -> io::Result<usize> {
        self.flush(socket)?;
        if self.sealed == 0 {
            if self.is_handshaking() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let flight = &bytes[..bytes.len().min(self.flight_bytes())];
            self.sealed = self.connection.writer().write(flight)?;
            self.flush(socket)?;
        }
        debug_assert!(self.sealed <= bytes.len(), "bytes that were not reported as sent are passed again");
        Ok(std::mem::take(&mut self.sealed))
    }

    /// Returns the maximum number of bytes that are encrypted before they are sent. Those of a client are one record, of
    /// which the node can read all or nothing: what was not reported as sent was not executed.
    fn flight_bytes(&self) -> usize {
        match self.connection {
            Connection::Client(_) => RECORD_BYTES,
            Connection::Server(_) => FLIGHT_BYTES,
        }
    }

    /// Sends waiting encrypted bytes to `socket`.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room for all of them.
    pub(crate) fn flush(&mut self, mut socket: &mut dyn Write) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Queues a `close_notify`, which the next [`Session::flush`] sends.
    pub(crate) fn finish(&mut self) {
        self.connection.send_close_notify();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TlsClient, TlsServer};
    use super::*;

    /// Maximum number of bytes of memory of a session, as documented and in decision 0012.
    const MAX_SESSION_BYTES: u64 = 200 << 10;

    /// A socket that accepts `room` bytes and no more.
    #[derive(Default)]
    struct Socket {
        sent: Vec<u8>,
        room: usize,
    }

    impl Write for Socket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            self.sent.extend_from_slice(&bytes[..taken]);
            self.room -= taken;
            if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn configurations() -> (TlsServer, TlsClient) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec!["node".to_owned()]).expect("a name");
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let (pem, key) = (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem());
        let (pem, key) = (pem.as_bytes(), key.as_bytes());
        let server = TlsServer::from_pem(pem, key, pem).expect("a node's");
        (server, TlsClient::with_identity(pem, pem, key).expect("a client's"))
    }

    /// Delivers everything that was sent to the other side; returns the decrypted bytes.
    fn deliver(from: &mut Socket, to: &mut Session, received: &mut Received) -> Vec<u8> {
        let mut read = Vec::new();
        let sent = std::mem::take(&mut from.sent);
        let mut rest = &sent[..];
        let mut into = [0; 1000];
        loop {
            match to.open(received, &mut into) {
                Ok(bytes) => read.extend_from_slice(&into[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let part = rest.len().min(received.space().len());
                    if part == 0 {
                        return read;
                    }
                    received.space()[..part].copy_from_slice(&rest[..part]);
                    received.received(part);
                    rest = &rest[part..];
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Returns both sides after their handshake.
    fn connected(server: &TlsServer, client: &TlsClient) -> (Session, Session, [Received; 2]) {
        let (mut node, mut client) = (server.session().expect("a side"), client.session("node").expect("a side"));
        let mut received = [Received::new(), Received::new()];
        let mut socket = Socket::default();
        while node.is_handshaking() || client.is_handshaking() || client.wants_write() {
            socket.room = usize::MAX;
            client.flush(&mut socket).expect("room");
            deliver(&mut socket, &mut node, &mut received[0]);
            node.flush(&mut socket).expect("room");
            deliver(&mut socket, &mut client, &mut received[1]);
        }
        (node, client, received)
    }

    /// The bytes that a client reports as sent are those that the node can read, and none are lost or duplicated,
    /// however little room there is.
    #[test]
    fn bytes_that_are_reported_as_sent_were_sent() {
        let (server, client) = configurations();
        let (mut node, mut client, [mut received, _]) = connected(&server, &client);
        let bytes: Vec<u8> = (0..200_000u32).map(|byte| (byte % 251) as u8).collect();
        let (mut read, mut reported, mut waits) = (Vec::new(), 0, 0);
        for round in 0.. {
            let mut socket = Socket { room: 1 + round * 977 % 30_000, ..Socket::default() };
            match client.send(&bytes[reported..], &mut socket) {
                Ok(sent) => reported += sent,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    waits += 1;
                }
            }
            read.extend(deliver(&mut socket, &mut node, &mut received));
            assert_eq!(read.len(), reported, "what the node may have executed was sent");
            if reported == bytes.len() {
                break;
            }
        }
        assert!(read == bytes && waits > 10, "{waits} waits");
    }

    /// Both sides perform the handshake, and one encrypts as much as may wait.
    #[test]
    fn a_session_takes_bounded_memory() {
        let (server, client) = configurations();
        let bytes = vec![7; 4 * FLIGHT_BYTES];
        let taken = allocation_counter::measure(|| {
            let mut full = Socket::default();
            let (mut node, _client, _received) = connected(&server, &client);
            let sent = node.send(&bytes, &mut full);
            assert_eq!(sent.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
            let again = node.send(&bytes, &mut full);
            assert_eq!(again.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock), "and encrypts no more");
        });
        println!("{} bytes at most, both sides together", taken.bytes_max);
        assert!(taken.bytes_max > FLIGHT_BYTES as u64 && taken.bytes_max < MAX_SESSION_BYTES, "{taken:?}");
    }
}
