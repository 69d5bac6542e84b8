//! The protocol of memcached: its meta commands `mg` and `ms`, which are the shortest.

use super::wire::{Answer, Protocol, number};
use crate::record::Key;

const GET: &[u8] = b"mg ";
const GET_END: &[u8] = b" v\r\n";
const SET: &[u8] = b"ms ";
const END: &[u8] = b"\r\n";

/// Commands and answers of memcached.
pub struct Memcached {
    /// The text between key and value: the value's length, as in ` 8\r\n`.
    set_middle: Vec<u8>,
}

impl Protocol for Memcached {
    const PING: &[u8] = b"mn\r\n";
    const PONG: &[u8] = b"MN";
    const STORED: &[u8] = b"HD";

    fn of_values(value_bytes: usize) -> Memcached {
        Memcached { set_middle: format!(" {value_bytes}\r\n").into_bytes() }
    }

    #[inline]
    fn get(&self, key: &Key, out: &mut Vec<u8>) {
        out.extend_from_slice(GET);
        out.extend_from_slice(key);
        out.extend_from_slice(GET_END);
    }

    #[inline]
    fn set(&self, key: &Key, value: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(SET);
        out.extend_from_slice(key);
        out.extend_from_slice(&self.set_middle);
        out.extend_from_slice(value);
        out.extend_from_slice(END);
    }

    fn get_many(&self, keys: &[Key], out: &mut Vec<u8>) {
        keys.iter().for_each(|key| self.get(key, out));
    }

    #[inline]
    fn answer(line: &[u8]) -> Answer {
        match line {
            b"EN" => Answer::Missing,
            _ => line.strip_prefix(b"VA ").and_then(number).map_or(Answer::Other, Answer::Value),
        }
    }
}
