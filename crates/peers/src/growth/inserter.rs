//! The keys, the work of one client, and the process that does it for Guira.

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

use crate::draws::Step;
use crate::error::PeersError;
use crate::record::{Key, WORD_BYTES, value_word};
use crate::systems::redis::Redis;
use crate::systems::{Address, Connection, Pipelined};

/// Keys that a client inserts between two reports.
pub const GROUP: u64 = 1024;
/// Operations of which one is timed, so that the clock does not slow the others down.
const TIMED_EVERY: u64 = 8;
/// Commands in flight on a connection.
const DEPTH: usize = 16;
/// Words of a report: their number, and the times.
const REPORT_WORDS: usize = 1 + (GROUP / TIMED_EVERY) as usize;
/// Bytes of a report: fewer than a pipe takes at once, so that a client that is killed leaves none in pieces.
const REPORT_BYTES: usize = 4 * REPORT_WORDS;
/// An odd number with about as many ones as zeros; multiplication by it is a bijection.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

const _: () = assert!(REPORT_BYTES <= 4096, "PIPE_BUF");

/// Returns the key with this number. Keys with different numbers differ.
#[inline]
pub fn key(number: u64) -> Key {
    number.wrapping_mul(MULTIPLIER).to_le_bytes()
}

/// Returns the first key of a client.
pub fn first_of(client: usize, share: u64) -> u64 {
    client as u64 * share
}

/// A client that inserts keys.
pub trait Inserter {
    /// Inserts [`GROUP`] keys from `first` on, and appends the times of some of them, in nanoseconds.
    ///
    /// # Errors
    /// Whatever the system fails with.
    fn insert(&mut self, first: u64, times: &mut Vec<u32>) -> Result<(), PeersError>;
}

/// Inserts one key after the other, each by `put`, and times some.
pub fn each(
    first: u64,
    times: &mut Vec<u32>,
    mut put: impl FnMut(&Key, [u8; WORD_BYTES]) -> Result<(), PeersError>,
) -> Result<(), PeersError> {
    for number in first..first + GROUP {
        let key = key(number);
        let value = value_word(&key, 0).to_le_bytes();
        if number % TIMED_EVERY == 0 {
            let start = Instant::now();
            put(&key, value)?;
            times.push(nanoseconds(start));
        } else {
            put(&key, value)?;
        }
    }
    Ok(())
}

fn nanoseconds(start: Instant) -> u32 {
    u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

impl Inserter for guira::Client {
    fn insert(&mut self, first: u64, times: &mut Vec<u32>) -> Result<(), PeersError> {
        each(first, times, |key, value| {
            self.put(key, &value)?;
            Ok(())
        })
    }
}

/// A connection to Redis.
pub struct RedisInserter(Pipelined<Redis>);

impl RedisInserter {
    /// Connects to the server at `address`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn connect(address: &Address) -> Result<RedisInserter, PeersError> {
        Ok(RedisInserter(Pipelined::new(Connection::open(address, WORD_BYTES)?, DEPTH)))
    }

    /// Looks up keys, whose values must be right.
    ///
    /// # Errors
    /// Errors of the server; a missing key or a wrong value.
    pub fn verify(&mut self, keys: &[Key]) -> Result<(), PeersError> {
        self.0.get(keys)
    }
}

impl Inserter for RedisInserter {
    fn insert(&mut self, first: u64, times: &mut Vec<u32>) -> Result<(), PeersError> {
        let numbers: Vec<u64> = (first..first + GROUP).collect();
        for numbers in numbers.chunks(DEPTH) {
            let steps: Vec<Step> = numbers
                .iter()
                .map(|number| {
                    let key = key(*number);
                    Step::Update(key, value_word(&key, 0))
                })
                .collect();
            let start = Instant::now();
            self.0.mix(&steps)?;
            times.push(nanoseconds(start));
        }
        Ok(())
    }
}

/// Writes a report of one group.
pub fn write_report(times: &[u32], mut out: impl Write) -> Result<(), PeersError> {
    let mut report = [0; REPORT_BYTES];
    let words = std::iter::once(times.len() as u32).chain(times.iter().copied());
    report.chunks_exact_mut(4).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    out.write_all(&report).and_then(|()| out.flush()).map_err(PeersError::host("report inserts"))
}

/// Reads the next report and replaces `times`. Returns false at the end.
pub fn read_report(times: &mut Vec<u32>, mut input: impl std::io::Read) -> Result<bool, PeersError> {
    let mut report = [0; REPORT_BYTES];
    match input.read_exact(&mut report) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read.map_err(PeersError::host("read a report of inserts"))?,
    }
    let mut words = report.chunks_exact(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let count = words.next().unwrap_or(0) as usize;
    times.clear();
    times.extend(words.take(count));
    Ok(true)
}

/// Inserts the keys from `first` to `end` into the table in `file`, and reports each group. Reports an empty group when
/// it is ready, and begins when it receives a line; ends when nobody wants its reports.
///
/// # Errors
/// Errors of the store and of the operating system.
pub fn serve_inserter(
    file: &Path,
    first: u64,
    end: u64,
    mut input: impl BufRead,
    mut out: impl Write,
) -> Result<(), PeersError> {
    let store = guira::Store::open(&guira::Url::file(file).map_err(guira::Error::from)?)?;
    let mut client = store.client()?;
    write_report(&[], &mut out)?;
    input.read_line(&mut String::new()).map_err(PeersError::host("wait for the others"))?;
    let mut times = Vec::with_capacity(REPORT_WORDS);
    for first in (first..end).step_by(GROUP as usize) {
        times.clear();
        client.insert(first, &mut times)?;
        write_report(&times, &mut out)?;
    }
    client.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_arrive_as_they_were_sent() {
        let mut pipe = Vec::new();
        let full: Vec<u32> = (0..GROUP / TIMED_EVERY).map(|time| time as u32).collect();
        for times in [&[][..], &[7], &full] {
            write_report(times, &mut pipe).unwrap();
        }
        // The beginning of a report that its client did not send.
        pipe.extend([1, 2, 3]);
        let (mut input, mut times) = (&pipe[..], vec![9]);
        for expected in [&[][..], &[7], &full] {
            assert!(read_report(&mut times, &mut input).unwrap());
            assert_eq!(times, expected);
        }
        assert!(!read_report(&mut times, &mut input).unwrap());
    }

    #[test]
    fn every_eighth_key_is_timed() {
        let (mut keys, mut times) = (Vec::new(), Vec::new());
        each(GROUP, &mut times, |key, value| {
            keys.push((*key, value));
            Ok(())
        })
        .unwrap();
        assert_eq!((keys.len() as u64, times.len() as u64), (GROUP, GROUP / TIMED_EVERY));
        assert!(keys.iter().all(|(key, value)| u64::from_le_bytes(*value) == value_word(key, 0)));
        assert_eq!(keys[1].0, key(GROUP + 1));
    }
}
