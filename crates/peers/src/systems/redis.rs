//! The protocol of Redis: GET, MGET and SET, and nothing else.

use super::wire::{Answer, Protocol, Wire, number};
use crate::error::PeersError;
use crate::record::{KEY_BYTES, Key};

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$8\r\n";
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$8\r\n";
const KEY_HEADER: &[u8] = b"$8\r\n";
const END: &[u8] = b"\r\n";

// The headers above contain the length of a key.
const _: () = assert!(KEY_BYTES == 8);

/// Commands and answers of Redis.
pub struct Redis {
    /// The header of a value, with its length: `$8\r\n`.
    value_header: Vec<u8>,
}

impl Protocol for Redis {
    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const PONG: &[u8] = b"+PONG";
    const STORED: &[u8] = b"+OK";

    fn of_values(value_bytes: usize) -> Redis {
        Redis { value_header: format!("${value_bytes}\r\n").into_bytes() }
    }

    #[inline]
    fn get(&self, key: &Key, out: &mut Vec<u8>) {
        out.extend_from_slice(GET);
        out.extend_from_slice(key);
        out.extend_from_slice(END);
    }

    #[inline]
    fn set(&self, key: &Key, value: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(SET);
        out.extend_from_slice(key);
        out.extend_from_slice(END);
        out.extend_from_slice(&self.value_header);
        out.extend_from_slice(value);
        out.extend_from_slice(END);
    }

    fn get_many(&self, keys: &[Key], out: &mut Vec<u8>) {
        out.extend_from_slice(format!("*{}\r\n$4\r\nMGET\r\n", keys.len() + 1).as_bytes());
        for key in keys {
            out.extend_from_slice(KEY_HEADER);
            out.extend_from_slice(key);
            out.extend_from_slice(END);
        }
    }

    fn begin_many(wire: &mut Wire, keys: usize) -> Result<(), PeersError> {
        let line = wire.line()?;
        match line.split_first() {
            Some((b'*', digits)) if number(digits) == Some(keys) => Ok(()),
            _ => Err(PeersError::peer(format!("get {keys} keys"), String::from_utf8_lossy(line))),
        }
    }

    #[inline]
    fn answer(line: &[u8]) -> Answer {
        match line.split_first() {
            Some((b'$', b"-1")) => Answer::Missing,
            Some((b'$', digits)) => number(digits).map_or(Answer::Other, Answer::Value),
            _ => Answer::Other,
        }
    }
}
