//! Decides on a change from both of a key's rows, locked and sampled: the only code that does.

use guira_layout::{Candidate, ExtentRef};

use super::{Change, Outcome, Task};
use crate::{ClientConfig, Expected, InsertRow, SearchRoots, Table, Token};

/// The action to take under the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Change nothing, and release the locks.
    Leave(Outcome),
    /// Change the entry at this position.
    Change { at: Position, outcome: Outcome },
    /// Read the key in the extent of this entry, which has the same digest.
    ReadKey(Position),
    /// The key is new, and none of the rows it may go to has a free entry.
    NoRoom,
    /// The key is in another segment, according to this row. [R-GROW-5]
    Elsewhere(Position),
    /// A row that must verify does not.
    Torn,
}

/// The position of an entry in one of a key's rows: in the first (0) or the second (1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) which: usize,
    pub(crate) index: usize,
}

impl Position {
    /// The first entry of the first row.
    pub(crate) const START: Position = Position { which: 0, index: 0 };

    /// Returns the position of the next entry in the same row.
    pub(crate) fn next(self) -> Position {
        Position { index: self.index + 1, ..self }
    }
}

/// The rows of a key under its locks.
#[derive(Clone, Copy)]
pub(crate) struct LockedPair<'r> {
    pub(crate) words: [&'r [u64]; 2],
    /// Whether each row is locked and sampled. The second is not if it is the same row as the first.
    pub(crate) at_hand: [bool; 2],
}

/// Decides from the rows' entries at `from` and after it; entries before `from` have other keys with the same digest.
/// An entry that has or may have the key decides if its row verifies, whatever the other row contains; without such an
/// entry, all rows that are locked and sampled must verify. [R-LOCK-7]
#[inline(always)]
pub(crate) fn decide(
    table: &Table,
    locked: &LockedPair<'_>,
    task: Task<'_>,
    config: &ClientConfig,
    from: Position,
) -> Decision {
    let Task { probe, pair, change } = task;
    let rows = table.rows();
    let is_whole = |which: usize| rows.verify(pair.row(which), locked.words[which]).is_ok();
    for (which, words) in locked.words.into_iter().enumerate() {
        let first_index = if which == from.which { from.index } else { 0 };
        if which < from.which || !locked.at_hand[which] {
            continue;
        }
        match rows.find(words, probe, first_index) {
            None => {}
            Some(_) if !is_whole(which) => return Decision::Torn,
            Some(Candidate::Inline(index)) => {
                // [R-CAS-1] [R-CAS-2] [R-ADD-1]
                let as_expected = match change.expected() {
                    None => true,
                    Some(Expected::Value(value)) => rows.inline_value_is(words, index, value),
                    Some(Expected::Number) => rows.inline_number(words, index).is_some(),
                    Some(Expected::Unchanged(token)) => {
                        token == Token::Inline { row: pair.row(which), version: rows.trailer(words).version() }
                    }
                };
                return decide_found(change, Position { which, index }, as_expected);
            }
            Some(Candidate::Extent(index)) => return Decision::ReadKey(Position { which, index }),
        }
    }
    if (0..2).any(|which| locked.at_hand[which] && !is_whole(which)) {
        return Decision::Torn;
    }
    // Under a lock, all rows of a segment have one level, unless one was damaged. // [R-GROW-5]
    let leads_on = |which: &usize| {
        let trailer = rows.trailer(locked.words[*which]).0;
        locked.at_hand[*which] && table.placement().moved_to(pair.row(*which), trailer, probe.digest()).is_some()
    };
    if let Some(which) = (0..2).find(leads_on) {
        return Decision::Elsewhere(Position { which, index: 0 });
    }
    if !change.inserts() {
        return Decision::Leave(Outcome::Missing);
    }
    // [R-INSERT-1]
    let [first, second] = locked.words;
    let second_is_better = config.insert_row == InsertRow::Emptier
        && locked.at_hand == [true; 2]
        && rows.occupied(second) < rows.occupied(first);
    for which in if second_is_better { [1, 0] } else { [0, 1] } {
        let is_root = which == 0 || config.search_roots == SearchRoots::Both;
        if locked.at_hand[which]
            && is_root
            && let Some(index) = rows.free_entry(locked.words[which])
        {
            return Decision::Change { at: Position { which, index }, outcome: Outcome::Inserted };
        }
    }
    Decision::NoRoom
}

/// Decides about the key of this entry.
pub(crate) fn decide_found(change: &Change<'_>, at: Position, as_expected: bool) -> Decision {
    match change {
        Change::Insert(_) => Decision::Leave(Outcome::Exists),
        _ if !as_expected => Decision::Leave(Outcome::Different),
        Change::Remove | Change::RemoveIf(_) => Decision::Change { at, outcome: Outcome::Removed },
        _ => Decision::Change { at, outcome: Outcome::Replaced },
    }
}

/// Whether a key in `extent` has the state that the change expects; `None` if its value must be read. [R-CAS-1]
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
