//! The client of both servers, over a Unix socket or TCP: one write for a batch of commands, then reads until every
//! answer has arrived. Only the [`Protocol`] differs between the servers.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::draws::{Draws, Step};
use crate::error::PeersError;
use crate::measure::{Job, MANY, Runner, Task, ensure_correct, keys_of, steps_of, timed};
use crate::record::{Key, Records, ValueEnds, difference};

/// Maximum time that one answer may take, far longer than any does; after it the server counts as dead.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Minimum number of bytes that one read has room for.
const READ_BYTES: usize = 64 << 10;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// A Unix socket.
    Socket(PathBuf),
    /// A TCP port of the loopback interface.
    Port(u16),
}

impl Address {
    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let limit = Some(ANSWER_LIMIT);
        Ok(match self {
            Address::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)?;
                Box::new(stream)
            }
            Address::Port(port) => {
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)?;
                Box::new(stream)
            }
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(path) => path.display().fmt(f),
            Address::Port(port) => write!(f, "{}:{port}", Ipv4Addr::LOCALHOST),
        }
    }
}

/// A byte stream in both directions.
trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// A connection with its buffers.
pub struct Wire {
    stream: Box<dyn Stream>,
    /// Commands that have not been sent.
    out: Vec<u8>,
    input: Vec<u8>,
    /// Bytes of `input` that are filled, and how many of those are consumed.
    filled: usize,
    taken: usize,
}

impl Wire {
    /// Connects to the server at `address`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn connect(address: &Address) -> Result<Wire, PeersError> {
        let stream = address.connect().map_err(PeersError::host(format!("connect to {address}")))?;
        Ok(Wire { stream, out: Vec::with_capacity(READ_BYTES), input: vec![0; READ_BYTES], filled: 0, taken: 0 })
    }

    /// Sends all pending commands, with one write if the operating system accepts it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn send(&mut self) -> Result<(), PeersError> {
        let sent = self.stream.write_all(&self.out).map_err(PeersError::host("send commands"));
        self.out.clear();
        sent
    }

    /// Reads the next line, without its line end.
    ///
    /// # Errors
    /// Errors of the operating system; a server that ends the connection.
    #[inline]
    pub fn line(&mut self) -> Result<&[u8], PeersError> {
        let mut searched = self.taken;
        loop {
            let found = self.input[searched..self.filled].windows(2).position(|pair| pair == b"\r\n");
            if let Some(at) = found {
                let line = self.taken..searched + at;
                self.taken = line.end + 2;
                return Ok(&self.input[line]);
            }
            let kept = self.filled.saturating_sub(1).max(self.taken) - self.taken;
            self.more(1)?;
            searched = self.taken + kept;
        }
    }

    /// Reads the next `bytes` bytes of any content, and consumes the line end after them.
    ///
    /// # Errors
    /// Same as [`Wire::line`].
    #[inline]
    pub fn block(&mut self, bytes: usize) -> Result<&[u8], PeersError> {
        let wanted = bytes + 2;
        // Bounded: each iteration reads at least one byte, or fails.
        while self.filled - self.taken < wanted {
            self.more(wanted - (self.filled - self.taken))?;
        }
        let block = self.taken..self.taken + bytes;
        self.taken = block.end + 2;
        Ok(&self.input[block])
    }

    /// Reads once, with room for at least `wanted` more bytes.
    fn more(&mut self, wanted: usize) -> Result<(), PeersError> {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        } else if self.input.len() - self.filled < wanted.max(READ_BYTES / 2) {
            self.input.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
        }
        if self.input.len() - self.filled < wanted {
            self.input.resize(self.filled + wanted + READ_BYTES, 0);
        }
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(PeersError::host("read an answer")(ErrorKind::UnexpectedEof.into())),
            Ok(read) => {
                self.filled += read;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(PeersError::host("read an answer")(error)),
        }
    }
}

/// Commands and answers of a server. Only [`Protocol::begin_many`] uses the socket.
pub trait Protocol {
    /// The command that asks whether the server answers.
    const PING: &[u8];
    /// The answer to [`Protocol::PING`].
    const PONG: &[u8];
    /// The answer to a replacement.
    const STORED: &[u8];

    /// The protocol for values of this many bytes.
    fn of_values(value_bytes: usize) -> Self;
    /// Appends a lookup.
    fn get(&self, key: &Key, out: &mut Vec<u8>);
    /// Appends a replacement of a value.
    fn set(&self, key: &Key, value: &[u8], out: &mut Vec<u8>);
    /// Appends a lookup of several keys in the form that is best for the server.
    fn get_many(&self, keys: &[Key], out: &mut Vec<u8>);
    /// Reads the header of the answers to [`Protocol::get_many`], if there is one.
    ///
    /// # Errors
    /// Any other answer.
    fn begin_many(_wire: &mut Wire, _keys: usize) -> Result<(), PeersError> {
        Ok(())
    }
    /// Parses the first line of an answer to a lookup.
    fn answer(line: &[u8]) -> Answer;
}

/// The answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A value of this many bytes follows.
    Value(usize),
    /// There is no such key.
    Missing,
    /// Not an answer to a lookup.
    Other,
}

/// A connection to a server with protocol `P`.
pub struct Connection<P> {
    wire: Wire,
    protocol: P,
    value_bytes: usize,
}

impl<P: Protocol> Connection<P> {
    /// Connects to the server at `address`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn open(address: &Address, value_bytes: usize) -> Result<Connection<P>, PeersError> {
        Ok(Connection { wire: Wire::connect(address)?, protocol: P::of_values(value_bytes), value_bytes })
    }

    /// Checks that the server answers.
    ///
    /// # Errors
    /// Errors of the connection; any other answer.
    pub fn ping(&mut self) -> Result<(), PeersError> {
        self.wire.out.extend_from_slice(P::PING);
        self.wire.send()?;
        match self.wire.line()? {
            line if line == P::PONG => Ok(()),
            line => Err(PeersError::peer("ping the server", String::from_utf8_lossy(line))),
        }
    }

    #[inline]
    fn ask_get(&mut self, key: &Key) {
        self.protocol.get(key, &mut self.wire.out);
    }

    #[inline]
    fn ask_set(&mut self, key: &Key, value: &[u8]) {
        self.protocol.set(key, value, &mut self.wire.out);
    }

    /// Reads the value of `key`.
    #[inline]
    fn value(&mut self, key: &Key) -> Result<&[u8], PeersError> {
        let line = self.wire.line()?;
        match P::answer(line) {
            Answer::Value(bytes) => self.wire.block(bytes),
            Answer::Missing => Err(PeersError::missing(key)),
            Answer::Other => Err(unexpected("get", key, line)),
        }
    }

    /// Reads the answer to a replacement.
    #[inline]
    fn stored(&mut self, key: &Key) -> Result<(), PeersError> {
        match self.wire.line()? {
            line if line == P::STORED => Ok(()),
            line => Err(unexpected("set", key, line)),
        }
    }
}

/// A client that sends `depth` commands before it reads their answers.
pub struct Pipelined<P> {
    server: Connection<P>,
    depth: usize,
}

impl<P: Protocol> Pipelined<P> {
    /// A client with this many commands in flight, at least one.
    pub fn new(server: Connection<P>, depth: usize) -> Pipelined<P> {
        Pipelined { server, depth: depth.max(1) }
    }

    /// Looks keys up, `depth` at a time.
    ///
    /// # Errors
    /// Errors of the server; a wrong answer.
    pub fn get(&mut self, keys: &[Key]) -> Result<(), PeersError> {
        let mut wrong = 0;
        let value_bytes = self.server.value_bytes;
        for keys in keys.chunks(self.depth) {
            keys.iter().for_each(|key| self.server.ask_get(key));
            self.server.wire.send()?;
            for key in keys {
                wrong |= difference(key, ValueEnds::of(self.server.value(key)?, value_bytes));
            }
        }
        ensure_correct(wrong)
    }

    fn get_many(&mut self, keys: &[Key]) -> Result<(), PeersError> {
        let mut wrong = 0;
        let value_bytes = self.server.value_bytes;
        for keys in keys.chunks(MANY) {
            self.server.protocol.get_many(keys, &mut self.server.wire.out);
            self.server.wire.send()?;
            P::begin_many(&mut self.server.wire, keys.len())?;
            for key in keys {
                wrong |= difference(key, ValueEnds::of(self.server.value(key)?, value_bytes));
            }
        }
        ensure_correct(wrong)
    }

    /// Carries out the steps of a mix, `depth` at a time.
    ///
    /// # Errors
    /// Same as [`Pipelined::get`].
    pub fn mix(&mut self, steps: &[Step]) -> Result<(), PeersError> {
        let mut wrong = 0;
        let value_bytes = self.server.value_bytes;
        for steps in steps.chunks(self.depth) {
            for step in steps {
                match step {
                    Step::Read(key) => self.server.ask_get(key),
                    Step::Update(key, word) => self.server.ask_set(key, &word.to_le_bytes()),
                }
            }
            self.server.wire.send()?;
            for step in steps {
                match step {
                    Step::Read(key) => {
                        wrong |= difference(key, ValueEnds::of(self.server.value(key)?, value_bytes));
                    }
                    Step::Update(key, _) => self.server.stored(key)?,
                }
            }
        }
        ensure_correct(wrong)
    }
}

impl<P: Protocol> Runner for Pipelined<P> {
    fn run(&mut self, job: &Job, draws: &Draws) -> Result<u64, PeersError> {
        match job.task {
            // At depth 1 every lookup waits for the previous answer, so dependent lookups are the same.
            Task::Get | Task::DependentGet => timed(job, || self.get(keys_of(job, draws)?)),
            Task::GetMany => timed(job, || self.get_many(keys_of(job, draws)?)),
            Task::YcsbA => timed(job, || self.mix(steps_of(job, draws)?)),
            Task::Update => Err(PeersError::Options("updates alone are timed where they are calls".to_owned())),
        }
    }

    fn verify(&mut self, keys: &[Key], records: &Records) -> Result<(), PeersError> {
        for key in keys {
            self.server.ask_get(key);
            self.server.wire.send()?;
            let value = self.server.value(key)?;
            if !records.is_whole(key, value) {
                return Err(PeersError::wrong(key, ValueEnds::of(value, records.value_bytes())));
            }
        }
        Ok(())
    }
}

/// Bytes of commands that are sent at once while loading.
const LOAD_BYTES: usize = 32 << 10;

/// Stores every record.
///
/// # Errors
/// Errors of the server; an interruption.
pub fn load<P: Protocol>(
    server: &mut Connection<P>,
    records: &Records,
    loader: &mut crate::load::Loader<'_>,
) -> Result<(), PeersError> {
    let mut asked: Vec<Key> = Vec::new();
    loader.each(records, |key, value| {
        server.ask_set(key, value);
        asked.push(*key);
        if server.wire.out.len() >= LOAD_BYTES { settle(server, &mut asked) } else { Ok(()) }
    })?;
    settle(server, &mut asked)
}

fn settle<P: Protocol>(server: &mut Connection<P>, asked: &mut Vec<Key>) -> Result<(), PeersError> {
    server.wire.send()?;
    asked.drain(..).try_for_each(|key| server.stored(&key))
}

/// Parses all of `digits` as a decimal number.
pub fn number(digits: &[u8]) -> Option<usize> {
    let digit = |total: usize, byte: &u8| {
        let value = byte.checked_sub(b'0').filter(|value| *value < 10)?;
        total.checked_mul(10)?.checked_add(value.into())
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, digit) }
}

/// The error for an unexpected answer.
#[cold]
fn unexpected(attempt: &str, key: &Key, line: &[u8]) -> PeersError {
    let key = String::from_utf8_lossy(key);
    PeersError::peer(format!("{attempt} {key}"), format!("{:?}", String::from_utf8_lossy(line)))
}

#[cfg(test)]
mod tests {
    use super::super::memcached::Memcached;
    use super::super::redis::Redis;
    use super::*;

    /// A wire whose other end sends `text`, in pieces of `piece` bytes.
    fn wire_receiving(text: &'static [u8], piece: usize) -> Wire {
        let (stream, mut other) = UnixStream::pair().expect("a pair of sockets");
        std::thread::spawn(move || {
            for piece in text.chunks(piece) {
                other.write_all(piece).expect("the test listens");
                std::thread::yield_now();
            }
        });
        Wire { stream: Box::new(stream), out: Vec::new(), input: vec![0; 4], filled: 0, taken: 0 }
    }

    #[test]
    fn lines_and_blocks_may_arrive_in_pieces() {
        for piece in 1..20 {
            let mut wire = wire_receiving(b"$5\r\na\r\nbc\r\n\r\n+OK\r\nrest of it\r\n", piece);
            assert_eq!(wire.line().expect("a line"), b"$5");
            assert_eq!(wire.block(5).expect("a block"), b"a\r\nbc");
            assert_eq!(wire.line().expect("a line"), b"");
            assert_eq!(wire.line().expect("a line"), b"+OK");
            assert_eq!(wire.block(10).expect("a block"), b"rest of it");
            assert!(wire.line().is_err(), "the other end has closed");
        }
    }

    #[test]
    fn answers_are_parsed() {
        for (redis, memcached, answer) in [
            (&b"$0"[..], &b"VA 0"[..], Answer::Value(0)),
            (b"$1024", b"VA 1024", Answer::Value(1024)),
            (b"$-1", b"EN", Answer::Missing),
            (b"$", b"VA ", Answer::Other),
            (b"$8x", b"VA 8x", Answer::Other),
            (b"+OK", b"HD", Answer::Other),
            (b"-ERR no", b"ERROR", Answer::Other),
            (b"", b"", Answer::Other),
        ] {
            assert_eq!(Redis::answer(redis), answer, "{}", String::from_utf8_lossy(redis));
            let name = String::from_utf8_lossy(memcached);
            assert_eq!(Memcached::answer(memcached), answer, "{name}");
        }
    }

    #[test]
    fn numbers_are_parsed() {
        assert_eq!([&b"0"[..], b"65536", b"", b"-1", b"1x"].map(number), [Some(0), Some(65_536), None, None, None]);
        assert_eq!(number(b"99999999999999999999999"), None);
    }
}
