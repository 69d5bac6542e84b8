//! Decides on a change from both of a key's rows, locked and sampled: the only code that does.

use guira_layout::{Candidate, ExtentRef};

use super::{Change, Outcome, Task};
use crate::{Expected, SearchRoots, Table, Token};

/// The action to take under the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Change nothing, and release the locks.
    Leave(Outcome),
    /// Change the slot at this position.
    Change { at: Position, outcome: Outcome },
    /// Read the key in the extent of this slot, which has the same digest.
    ReadKey(Position),
    /// The key is new, and none of the rows it may go to has a free slot.
    NoRoom,
    /// A row that must verify does not.
    Torn,
}

/// A slot in one of a key's rows: in the first (0) or the second (1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) which: usize,
    pub(crate) slot: usize,
}

impl Position {
    /// The first slot of the first row.
    pub(crate) const START: Position = Position { which: 0, slot: 0 };

    /// Returns the position of the next slot in the same row.
    pub(crate) fn next(self) -> Position {
        Position { slot: self.slot + 1, ..self }
    }
}

/// The rows of a key under its locks.
#[derive(Clone, Copy)]
pub(crate) struct LockedPair<'r> {
    pub(crate) words: [&'r [u64]; 2],
    /// Whether each row is locked and sampled. The second is not if it is the same row as the first.
    pub(crate) at_hand: [bool; 2],
}

/// Decides from the rows' slots at `from` and after it; slots before `from` hold other keys with the same digest. An
/// entry that has or may have the key decides if its row verifies, whatever the other row contains; without such an
/// entry, all rows that are locked and sampled must verify. // [R-LOCK-7]
#[inline(always)]
pub(crate) fn decide(
    table: &Table,
    locked: &LockedPair<'_>,
    task: Task<'_>,
    roots: SearchRoots,
    from: Position,
) -> Decision {
    let Task { probe, pair, change } = task;
    let rows = table.rows();
    let is_whole = |which: usize| rows.verify(pair.row(which), locked.words[which]).is_ok();
    for (which, words) in locked.words.into_iter().enumerate() {
        let first_slot = if which == from.which { from.slot } else { 0 };
        if which < from.which || !locked.at_hand[which] {
            continue;
        }
        match rows.find(words, probe, first_slot) {
            None => {}
            Some(_) if !is_whole(which) => return Decision::Torn,
            Some(Candidate::Inline(slot)) => {
                // [R-CAS-1] [R-CAS-2] [R-ADD-1]
                let as_expected = match change.expected() {
                    None => true,
                    Some(Expected::Value(value)) => rows.inline_value_is(words, slot, value),
                    Some(Expected::Number) => rows.inline_number(words, slot).is_some(),
                    Some(Expected::Unchanged(token)) => {
                        token == Token::Inline { row: pair.row(which), version: rows.trailer(words).version() }
                    }
                };
                return decide_found(change, Position { which, slot }, as_expected);
            }
            Some(Candidate::Extent(slot)) => return Decision::ReadKey(Position { which, slot }),
        }
    }
    if (0..2).any(|which| locked.at_hand[which] && !is_whole(which)) {
        return Decision::Torn;
    }
    if !change.inserts() {
        return Decision::Leave(Outcome::Missing);
    }
    for (which, words) in locked.words.into_iter().enumerate() {
        let is_root = which == 0 || roots == SearchRoots::Both;
        if locked.at_hand[which]
            && is_root
            && let Some(slot) = rows.free_slot(words)
        {
            return Decision::Change { at: Position { which, slot }, outcome: Outcome::Inserted };
        }
    }
    Decision::NoRoom
}

/// Decides about the key that is in this slot.
pub(crate) fn decide_found(change: &Change<'_>, at: Position, as_expected: bool) -> Decision {
    match change {
        Change::Insert(_) => Decision::Leave(Outcome::Exists),
        _ if !as_expected => Decision::Leave(Outcome::Different),
        Change::Remove | Change::RemoveIf(_) => Decision::Change { at, outcome: Outcome::Removed },
        _ => Decision::Change { at, outcome: Outcome::Replaced },
    }
}

/// Whether a key in `extent` has the state that the change expects; `None` if its value must be read. // [R-CAS-1]
/// [R-CAS-2] [R-ADD-1]
pub(crate) fn is_as_expected(change: &Change<'_>, extent: &ExtentRef) -> Option<bool> {
    match change.expected() {
        None => Some(true),
        Some(Expected::Unchanged(token)) => Some(token == Token::Extent { generation: extent.generation }),
        Some(Expected::Number) => Some(false),
        Some(Expected::Value(value)) if extent.value_bytes as usize != value.len() => Some(false),
        Some(Expected::Value(_)) => None,
    }
}
