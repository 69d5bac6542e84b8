//! Redis, by the smallest part of its protocol: GET, MGET and SET over a Unix socket.

use std::path::Path;

use super::wire::{Protocol, Wire, number, unexpected};
use crate::error::PeersError;
use crate::record::{KEY_BYTES, Key};

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$8\r\n";
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$8\r\n";
const KEY_HEADER: &[u8] = b"$8\r\n";
const END: &[u8] = b"\r\n";

// The headers above say how long a key is.
const _: () = assert!(KEY_BYTES == 8);

/// A connection to a server.
pub struct Redis {
    wire: Wire,
    value_bytes: usize,
    /// `$8\r\n`, or whatever says how long a value is.
    value_header: Vec<u8>,
}

impl Redis {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(path: &Path, value_bytes: usize) -> Result<Redis, PeersError> {
        let value_header = format!("${value_bytes}\r\n").into_bytes();
        Ok(Redis { wire: Wire::connect(path)?, value_bytes, value_header })
    }

    /// Whether the server answers.
    ///
    /// # Errors
    /// Anything but an answer.
    pub fn ping(&mut self) -> Result<(), PeersError> {
        self.wire.out.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
        self.wire.send()?;
        match self.wire.line()? {
            b"+PONG" => Ok(()),
            line => Err(PeersError::peer("ping it", String::from_utf8_lossy(line))),
        }
    }
}

impl Protocol for Redis {
    #[inline]
    fn ask_get(&mut self, key: &Key) {
        let out = &mut self.wire.out;
        out.extend_from_slice(GET);
        out.extend_from_slice(key);
        out.extend_from_slice(END);
    }

    #[inline]
    fn ask_set(&mut self, key: &Key, value: &[u8]) {
        let out = &mut self.wire.out;
        out.extend_from_slice(SET);
        out.extend_from_slice(key);
        out.extend_from_slice(END);
        out.extend_from_slice(&self.value_header);
        out.extend_from_slice(value);
        out.extend_from_slice(END);
    }

    fn ask_many(&mut self, keys: &[Key]) {
        let out = &mut self.wire.out;
        out.extend_from_slice(format!("*{}\r\n$4\r\nMGET\r\n", keys.len() + 1).as_bytes());
        for key in keys {
            out.extend_from_slice(KEY_HEADER);
            out.extend_from_slice(key);
            out.extend_from_slice(END);
        }
    }

    fn begin_many(&mut self, keys: usize) -> Result<(), PeersError> {
        let line = self.wire.line()?;
        match line.split_first() {
            Some((b'*', digits)) if number(digits) == Some(keys) => Ok(()),
            _ => Err(PeersError::peer(format!("get {keys} keys"), String::from_utf8_lossy(line))),
        }
    }

    #[inline]
    fn value(&mut self, key: &Key) -> Result<&[u8], PeersError> {
        let line = self.wire.line()?;
        let bytes = match line.split_first() {
            Some((b'$', b"-1")) => return Err(PeersError::missing(key)),
            Some((b'$', digits)) => number(digits),
            _ => None,
        };
        match bytes {
            Some(bytes) => self.wire.block(bytes),
            None => Err(unexpected("get", key, line)),
        }
    }

    #[inline]
    fn stored(&mut self, key: &Key) -> Result<(), PeersError> {
        match self.wire.line()? {
            b"+OK" => Ok(()),
            line => Err(unexpected("set", key, line)),
        }
    }

    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    fn value_bytes(&self) -> usize {
        self.value_bytes
    }
}
