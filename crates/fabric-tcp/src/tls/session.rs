//! One side of one connection, without its socket.

use std::io::{self, Read, Write};

use rustls::Connection;

use super::TlsError;

/// Bytes that are encrypted before they are sent, at most: four records.
pub(crate) const FLIGHT_BYTES: usize = 64 << 10;
/// Bytes that are received at a time, at most, and wait for room to be decrypted to.
pub(crate) const RECEIVED_BYTES: usize = 16 << 10;

/// What is encrypted and decrypted, and with which keys.
pub(crate) struct Session {
    connection: Connection,
    /// Bytes of the caller's that were encrypted and have not all left: it does not know that they were taken.
    sealed: usize,
    /// What went wrong behind bytes that were handed out first.
    error: Option<TlsError>,
}

/// What was received and is still encrypted.
pub(crate) struct Received {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Received {
    pub(crate) fn new() -> Received {
        Received { bytes: vec![0; RECEIVED_BYTES].into(), start: 0, end: 0 }
    }

    /// Where to receive to, when everything before was decrypted.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        debug_assert!(self.is_empty(), "what is here would be lost");
        &mut self.bytes
    }

    /// So many bytes were received to [`Received::space`].
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

    /// The first DNS name of the other side's certificate, if it has shown one with a name.
    pub(crate) fn peer_name(&self) -> Option<String> {
        let certificate = webpki::EndEntityCert::try_from(self.connection.peer_certificates()?.first()?).ok()?;
        certificate.valid_dns_names().next().map(guira_fabric::printable)
    }

    /// Whether encrypted bytes wait to leave.
    pub(crate) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Fills the beginning of `into` with what was received, decrypted; 0 bytes if the stream has ended. Nothing that
    /// was received is left over, unless `into` is full.
    ///
    /// # Errors
    /// `WouldBlock` if nothing can be decrypted before more is received; otherwise a [`TlsError`], and the stream is of
    /// no more use, but for what it says of that to the other side.
    pub(crate) fn open(&mut self, received: &mut Received, into: &mut [u8]) -> io::Result<usize> {
        debug_assert!(!into.is_empty(), "no bytes would mean the end");
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

    /// Whether the stream is of no more use, which the next [`Session::open`] tells.
    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Takes some of what was received.
    fn decrypt(&mut self, received: &mut Received) -> Result<(), TlsError> {
        let failed = |error: io::Error| TlsError::Failed { reason: error.to_string() };
        let taken = self.connection.read_tls(&mut received.bytes()).map_err(failed)?;
        received.start += taken;
        self.connection.process_new_packets()?;
        Ok(())
    }

    /// Hands as many of `bytes` to `socket`, encrypted, as there is room for. What it does not tell of is to be given
    /// again, as the beginning of what follows.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, or the handshake is not over; otherwise the stream is of no more use.
    pub(crate) fn send(&mut self, bytes: &[u8], socket: &mut dyn Write) -> io::Result<usize> {
        self.flush(socket)?;
        if self.sealed == 0 {
            if self.is_handshaking() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let flight = &bytes[..bytes.len().min(FLIGHT_BYTES)];
            self.sealed = self.connection.writer().write(flight)?;
            self.flush(socket)?;
        }
        debug_assert!(self.sealed <= bytes.len(), "what was not told as sent is given again");
        Ok(std::mem::take(&mut self.sealed))
    }

    /// Hands encrypted bytes that wait to `socket`.
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

    /// Says that nothing more will be sent; it is said by the next [`Session::flush`].
    pub(crate) fn finish(&mut self) {
        self.connection.send_close_notify();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{TlsClient, TlsServer};
    use super::*;

    /// Bytes of memory that docs and decision 0012 say a session takes at most.
    const MAX_SESSION_BYTES: u64 = 200 << 10;

    /// A socket that takes so many bytes and no more.
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

    /// Everything that was sent, received by the other side; what it reads of that.
    fn carry(from: &mut Socket, to: &mut Session, received: &mut Received) -> Vec<u8> {
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

    /// Both sides, when they have shaken hands.
    fn shaken(server: &TlsServer, client: &TlsClient) -> (Session, Session, [Received; 2]) {
        let (mut node, mut client) = (server.session().expect("a side"), client.session("node").expect("a side"));
        let mut received = [Received::new(), Received::new()];
        let mut socket = Socket::default();
        while node.is_handshaking() || client.is_handshaking() || client.wants_write() {
            socket.room = usize::MAX;
            client.flush(&mut socket).expect("room");
            carry(&mut socket, &mut node, &mut received[0]);
            node.flush(&mut socket).expect("room");
            carry(&mut socket, &mut client, &mut received[1]);
        }
        (node, client, received)
    }

    /// What is told as sent has left wholly, and nothing is lost or doubled, however little room there is.
    #[test]
    fn what_is_told_as_sent_has_left() {
        let (server, client) = configurations();
        let (mut node, mut client, [mut received, _]) = shaken(&server, &client);
        let bytes: Vec<u8> = (0..200_000u32).map(|byte| (byte % 251) as u8).collect();
        let (mut read, mut told, mut waits) = (Vec::new(), 0, 0);
        for round in 0.. {
            let mut socket = Socket { room: 1 + round * 977 % 30_000, ..Socket::default() };
            match client.send(&bytes[told..], &mut socket) {
                Ok(sent) => told += sent,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    waits += 1;
                }
            }
            read.extend(carry(&mut socket, &mut node, &mut received));
            assert!(read.len() >= told, "{} bytes came, {told} were told as sent", read.len());
            if told == bytes.len() {
                break;
            }
        }
        assert!(read == bytes && waits > 10, "{waits} waits");
    }

    /// Both sides of a session: they shake hands, and one encrypts as much as may wait.
    #[test]
    fn a_session_takes_bounded_memory() {
        let (server, client) = configurations();
        let bytes = vec![7; 4 * FLIGHT_BYTES];
        let taken = allocation_counter::measure(|| {
            let mut full = Socket::default();
            let (mut node, _client, _received) = shaken(&server, &client);
            let sent = node.send(&bytes, &mut full);
            assert_eq!(sent.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
            let again = node.send(&bytes, &mut full);
            assert_eq!(again.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock), "and encrypts no more");
        });
        println!("{} bytes at most, both sides together", taken.bytes_max);
        assert!(taken.bytes_max > FLIGHT_BYTES as u64 && taken.bytes_max < MAX_SESSION_BYTES, "{taken:?}");
    }
}
