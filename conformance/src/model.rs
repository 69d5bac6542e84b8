//! The model of a table: a map, and the operations on it.

use std::collections::BTreeMap;

use guira_rcuckoo::{Change, Error, Expected, NewValue, Outcome};

/// An operation on a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Looks the key up.
    Get(Vec<u8>),
    /// Inserts the key, or replaces its value.
    Put(Vec<u8>, Vec<u8>),
    /// Inserts the key unless it exists.
    Insert(Vec<u8>, Vec<u8>),
    /// Replaces the key's value if it exists.
    Update(Vec<u8>, Vec<u8>),
    /// Removes the key.
    Remove(Vec<u8>),
    /// Replaces the key's value by the second value, if it equals the first.
    Swap(Vec<u8>, Vec<u8>, Vec<u8>),
    /// Removes the key if it has this value.
    RemoveIf(Vec<u8>, Vec<u8>),
    /// Adds a little-endian number to the key's value.
    Add(Vec<u8>, [u8; 8]),
}

impl Op {
    /// The key.
    pub fn key(&self) -> &[u8] {
        match self {
            Op::Get(key) | Op::Put(key, _) | Op::Insert(key, _) | Op::Update(key, _) | Op::Remove(key) => key,
            Op::Swap(key, _, _) | Op::RemoveIf(key, _) | Op::Add(key, _) => key,
        }
    }

    /// The new value, if the operation has one.
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Op::Put(_, value) | Op::Insert(_, value) | Op::Update(_, value) | Op::Swap(_, _, value) => Some(value),
            Op::Get(_) | Op::Remove(_) | Op::RemoveIf(..) | Op::Add(..) => None,
        }
    }

    /// The value that the key must have, if the operation depends on it.
    pub fn expected(&self) -> Option<&[u8]> {
        match self {
            Op::Swap(_, expected, _) | Op::RemoveIf(_, expected) => Some(expected),
            _ => None,
        }
    }

    /// Returns the change, with its value in `extent` if one is given; `None` for a lookup.
    pub fn change<'o>(&'o self, extent: Option<NewValue<'o>>) -> Option<Change<'o>> {
        let value = extent.unwrap_or(NewValue::Inline(self.value().unwrap_or_default()));
        Some(match self {
            Op::Get(_) => return None,
            Op::Put(..) => Change::Put(value),
            Op::Insert(..) => Change::Insert(value),
            Op::Update(..) => Change::Update(value),
            Op::Remove(_) => Change::Remove,
            Op::Swap(_, expected, _) => Change::Swap(Expected::Value(expected), value),
            Op::RemoveIf(_, expected) => Change::RemoveIf(Expected::Value(expected)),
            Op::Add(_, number) => Change::Add(number),
        })
    }
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// The value that a lookup found, if any.
    Value(Option<Vec<u8>>),
    /// The outcome of a change.
    Outcome(Outcome),
}

/// The map that a table must behave like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model(pub BTreeMap<Vec<u8>, Vec<u8>>);

impl Model {
    /// Applies `op` and returns the right answer.
    pub fn apply(&mut self, op: &Op) -> Observed {
        let map = &mut self.0;
        let exists = map.contains_key(op.key());
        match (map.get(op.key()), op.expected()) {
            (None, Some(_)) => return Observed::Outcome(Outcome::Missing),
            (Some(found), Some(expected)) if found != expected => return Observed::Outcome(Outcome::Different),
            _ => {}
        }
        match op {
            Op::Get(key) => return Observed::Value(map.get(key).cloned()),
            Op::Insert(..) if exists => return Observed::Outcome(Outcome::Exists),
            Op::Update(..) | Op::Remove(_) if !exists => return Observed::Outcome(Outcome::Missing),
            Op::Remove(key) | Op::RemoveIf(key, _) => {
                map.remove(key);
                return Observed::Outcome(Outcome::Removed);
            }
            Op::Add(key, number) => {
                let found = map.get(key).map_or(Ok([0; 8]), |value| value[..].try_into());
                let Ok(found) = found else { return Observed::Outcome(Outcome::Different) };
                map.insert(
                    key.clone(),
                    u64::from_le_bytes(found).wrapping_add(u64::from_le_bytes(*number)).to_le_bytes().to_vec(),
                );
            }
            Op::Put(key, value) | Op::Insert(key, value) | Op::Update(key, value) | Op::Swap(key, _, value) => {
                map.insert(key.clone(), value.clone());
            }
        }
        Observed::Outcome(if exists { Outcome::Replaced } else { Outcome::Inserted })
    }

    /// Whether some interleaving of two clients' operations gives their answers and leads from this map to `after`.
    pub fn explains(&self, after: &Model, ops: [&[Op]; 2], answers: [&[Result<Observed, Error>]; 2]) -> bool {
        if ops.iter().all(|ops| ops.is_empty()) {
            return self == after;
        }
        (0..2).filter(|client| !ops[*client].is_empty()).any(|client| {
            let mut next = self.clone();
            let fits = answers[client][0].as_ref() == Ok(&next.apply(&ops[client][0]));
            let (mut ops, mut answers) = (ops, answers);
            (ops[client], answers[client]) = (&ops[client][1..], &answers[client][1..]);
            fits && next.explains(after, ops, answers)
        })
    }
}
