//! A table of the connections of one loop, by keys that are not reused.

use mio::Token;

/// The key of a connection in its loop: an index, and the number of connections that had that index before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Returns the token under which mio reports the connection's events.
    pub(super) fn token(self) -> Token {
        Token(((self.generation as usize) << 32) | self.index as usize)
    }

    pub(super) fn of(token: Token) -> Key {
        Key { index: token.0 as u32, generation: (token.0 >> 32) as u32 }
    }
}

const _: () = assert!(usize::BITS == 64, "a token holds an index and a generation");

/// A table of values by keys.
pub(super) struct Connections<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

struct Entry<T> {
    generation: u32,
    value: Option<Box<T>>,
}

impl<T> Connections<T> {
    pub(super) fn new() -> Connections<T> {
        Connections { entries: Vec::new(), free: Vec::new() }
    }

    /// Inserts the value that `make` makes of its key.
    pub(super) fn insert(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        if index as usize == self.entries.len() {
            self.entries.push(Entry { generation: 0, value: None });
        }
        let entry = &mut self.entries[index as usize];
        let key = Key { index, generation: entry.generation };
        entry.value = Some(Box::new(make(key)));
        key
    }

    #[inline]
    pub(super) fn get(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation == key.generation { entry.value.as_deref_mut() } else { None }
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Box<T>> {
        self.get(key)?;
        let entry = &mut self.entries[key.index as usize];
        // Events of 2^31 connections ago do not occur; the highest bit stays clear, for tokens of other sources.
        entry.generation = (entry.generation + 1) & (u32::MAX >> 1);
        self.free.push(key.index);
        entry.value.take()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    /// Adds all keys to `into`, in no particular order.
    pub(super) fn keys(&self, into: &mut Vec<Key>) {
        let used = self.entries.iter().zip(0..).filter(|(entry, _)| entry.value.is_some());
        into.extend(used.map(|(entry, index)| Key { index, generation: entry.generation }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_finds_nothing() {
        let mut connections = Connections::new();
        let first = connections.insert(|_| 1);
        assert_eq!(Key::of(first.token()), first);
        assert_eq!(connections.remove(first).as_deref(), Some(&1));
        assert!(connections.is_empty());
        let second = connections.insert(|_| 2);
        assert_ne!(first.token(), second.token());
        assert_eq!(connections.get(first), None);
        assert_eq!(connections.remove(first), None);
        assert_eq!(Key::of(second.token()), second);
        let mut keys = Vec::new();
        connections.keys(&mut keys);
        assert_eq!(keys, [second]);
        assert_eq!(connections.get(second), Some(&mut 2));
    }
}
