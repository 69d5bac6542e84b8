//! Lookups: READs of slots from a key's home on, one a round trip, until one brings an empty slot.

use guira_fabric::{Lane, Verb, WORD_BYTES, post};

use super::table::{KEY_BYTES, Shape};
use crate::{Change, Client, Cost, Error, Outcome};

/// A client of a table.
pub struct LinearClient {
    lane: Box<dyn Lane>,
    shape: Shape,
    read_slots: u64,
    /// The slots of the last READ.
    words: Vec<u64>,
}

/// The result of a look at slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Whether a record has the key.
    is_found: bool,
    /// Whether a slot is empty: no record with the key is behind it.
    is_end: bool,
}

impl LinearClient {
    pub(super) fn new(lane: Box<dyn Lane>, shape: Shape, read_slots: u64) -> LinearClient {
        let most = (lane.caps().max_verb_words as u64 / shape.slot_words()).max(1);
        LinearClient { lane, shape, read_slots: read_slots.clamp(1, most), words: Vec::new() }
    }

    /// Reads `count` slots from `slot` on, at most the whole table: beyond its end from its begin on, by a second READ of
    /// the same batch.
    async fn read(&mut self, slot: u64, count: u64) -> Result<(), Error> {
        let LinearClient { lane, shape, words, .. } = self;
        words.resize((count * shape.slot_words()) as usize, 0);
        let before_end = count.min(shape.slots - slot);
        let (head, tail) = words.split_at_mut((before_end * shape.slot_words()) as usize);
        let first = Verb::Read { addr: shape.addr(slot), into: head };
        if tail.is_empty() {
            post(&mut **lane, [first]).await?;
        } else {
            post(&mut **lane, [first, Verb::Read { addr: shape.addr(0), into: tail }]).await?;
        }
        Ok(())
    }

    /// Appends the values of `key` in the slots of the last READ, up to the first empty slot.
    fn take(&self, key: u32, values: &mut Vec<u8>) -> Seen {
        let mut seen = Seen::default();
        for slot in self.words.chunks_exact(self.shape.slot_words() as usize) {
            match slot[0] as u32 {
                0 => return Seen { is_end: true, ..seen },
                own if own == key => {
                    seen.is_found = true;
                    append_value(slot, self.shape.value_bytes, values);
                }
                _ => {}
            }
        }
        seen
    }
}

/// Appends the value of a slot.
fn append_value(slot: &[u64], value_bytes: usize, values: &mut Vec<u8>) {
    let mut skip = KEY_BYTES;
    let mut left = value_bytes;
    for word in slot {
        let part = &word.to_le_bytes()[skip..WORD_BYTES as usize];
        let part = &part[..left.min(part.len())];
        values.extend_from_slice(part);
        (skip, left) = (0, left - part.len());
    }
}

/// Returns the key of a record.
fn key_of(key: u64) -> Result<u32, Error> {
    match u32::try_from(key) {
        Ok(0) => Err(Error::refused("key 0 marks an empty slot, and no record has it")),
        Ok(key) => Ok(key),
        Err(_) => Err(Error::refused(format!("key {key} has more than {KEY_BYTES} bytes"))),
    }
}

impl Client for LinearClient {
    /// Looks `key` up. It takes a round trip for each READ until one brings an empty slot, and one READ more where one goes
    /// across the end of the table.
    ///
    /// # Errors
    /// `Refused` for key 0 and for keys of more than 32 bits; errors of the fabric.
    async fn get(&mut self, key: u64, values: &mut Vec<u8>) -> Result<bool, Error> {
        let key = key_of(key)?;
        let (mut slot, mut left, mut is_found) = (self.shape.home(key), self.shape.slots, false);
        while left > 0 {
            let count = self.read_slots.min(left);
            self.read(slot, count).await?;
            let seen = self.take(key, values);
            is_found |= seen.is_found;
            if seen.is_end {
                break;
            }
            (slot, left) = ((slot + count) % self.shape.slots, left - count);
        }
        Ok(is_found)
    }

    /// Refuses every change.
    ///
    /// # Errors
    /// `Refused`.
    async fn change(&mut self, _key: u64, _change: Change<'_>) -> Result<Outcome, Error> {
        Err(Error::refused("the table is built once, and then only read"))
    }

    fn cost(&self) -> Cost {
        self.lane.traffic().into()
    }
}
