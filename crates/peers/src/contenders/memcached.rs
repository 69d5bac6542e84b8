//! memcached, by its meta commands, the shortest that it understands: `mg` and `ms` over a Unix socket.

use std::path::Path;

use super::wire::{Protocol, Wire, number, unexpected};
use crate::error::PeersError;
use crate::record::Key;

const GET: &[u8] = b"mg ";
const GET_END: &[u8] = b" v\r\n";
const SET: &[u8] = b"ms ";
const END: &[u8] = b"\r\n";

/// A connection to a server.
pub struct Memcached {
    wire: Wire,
    value_bytes: usize,
    /// ` 8\r\n`, or whatever says how long a value is.
    set_middle: Vec<u8>,
}

impl Memcached {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(path: &Path, value_bytes: usize) -> Result<Memcached, PeersError> {
        let set_middle = format!(" {value_bytes}\r\n").into_bytes();
        Ok(Memcached { wire: Wire::connect(path)?, value_bytes, set_middle })
    }

    /// Whether the server answers.
    ///
    /// # Errors
    /// Anything but an answer.
    pub fn ping(&mut self) -> Result<(), PeersError> {
        self.wire.out.extend_from_slice(b"mn\r\n");
        self.wire.send()?;
        match self.wire.line()? {
            b"MN" => Ok(()),
            line => Err(PeersError::peer("ping it", String::from_utf8_lossy(line))),
        }
    }
}

impl Protocol for Memcached {
    #[inline]
    fn ask_get(&mut self, key: &Key) {
        let out = &mut self.wire.out;
        out.extend_from_slice(GET);
        out.extend_from_slice(key);
        out.extend_from_slice(GET_END);
    }

    #[inline]
    fn ask_set(&mut self, key: &Key, value: &[u8]) {
        let out = &mut self.wire.out;
        out.extend_from_slice(SET);
        out.extend_from_slice(key);
        out.extend_from_slice(&self.set_middle);
        out.extend_from_slice(value);
        out.extend_from_slice(END);
    }

    fn ask_many(&mut self, keys: &[Key]) {
        keys.iter().for_each(|key| self.ask_get(key));
    }

    fn begin_many(&mut self, _keys: usize) -> Result<(), PeersError> {
        Ok(())
    }

    #[inline]
    fn value(&mut self, key: &Key) -> Result<&[u8], PeersError> {
        let line = self.wire.line()?;
        let bytes = match line {
            b"EN" => return Err(PeersError::missing(key)),
            _ => line.strip_prefix(b"VA ").and_then(number),
        };
        match bytes {
            Some(bytes) => self.wire.block(bytes),
            None => Err(unexpected("get", key, line)),
        }
    }

    #[inline]
    fn stored(&mut self, key: &Key) -> Result<(), PeersError> {
        match self.wire.line()? {
            b"HD" => Ok(()),
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
