//! A model of a segment that is split, word by word, while other clients work on it: whether any of them ever sees a
//! wrong answer, a torn row under a lock, or memory that does not exist, and whether anything is left or lost in the
//! end.
//!
//! The steps stand for `Client::split_segment` and `Recovery::complete_split`; the memory of a child, which they reserve,
//! is always there in the code so far (R-GROW-7). A table of one first
//! segment of two rows of two entries grows to depth 2. Key B stays at position 0; key A, at the position that the
//! configuration says, may move to another segment. The actors are
//!
//! - splitters ([`splitter`]), which may die before every step, R-GROW-7, R-GROW-8; two clients that recover them, one
//!   of which may die, too, R-GROW-9, R-GROW-10;
//! - a writer of key A that locks, reads, checks the level, decides and commits, R-GROW-5, and a mover of entries along
//!   cuckoo paths, which looks at no level ([`writer`]);
//! - a reader whose map may be old: rows in separate steps, misses validated (R-READ-3), rows read through the record
//!   of a splitter that stopped, R-GROW-4, R-GROW-11; in its place a scan, R-GROW-14 ([`reader`]).
//!
//! The memory of a child begins with valid rows of an attempt that died: they have an entry that nobody may ever see. A
//! lookup or a change begins at the oldest segment, at the one that it used last, where the table's map leads, or where
//! a row has sent its client before.

pub mod reader;
pub mod splitter;
pub mod writer;

use std::collections::BTreeSet;

use guira_layout::{Preset, PresetOptions, Segments};
use stateright::{Model, Property};

use self::reader::{Reading, Scan};
use self::splitter::{Recovering, Splitting};
use self::writer::{Moving, Writing};

/// Rows of all segments; segment n has rows 2 n and 2 n + 1.
pub const ROWS: usize = 8;
pub const SEGMENTS: usize = 4;
/// Splitters at most; their owner ids are 1 and 2.
pub const SPLITTERS: usize = 2;
pub const WRITER: u8 = 3;
pub const MOVER: u8 = 4;

/// An entry: 0 is free, `A + v` is key A with value v, and B is key B.
pub type Entry = u8;
pub const A: Entry = 1;
pub const B: Entry = 32;
/// The value of key A in the rows of an attempt that died.
const NEVER: Entry = A + 9;

/// One rule that is left out, or an order that is not that of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    Nothing,
    /// The splitter does not lock the child's rows. // R-GROW-8
    ChildLocks,
    /// The splitter releases the child's locks with the seal. // R-GROW-8
    ChildLocksToTheEnd,
    /// The parent's rows are written before the child's. // R-GROW-8
    ChildFirst,
    /// The record is sealed before the child's rows are written. // R-GROW-8
    ChildBeforeSeal,
    /// The map is written before the rows. // R-GROW-12
    RowsBeforeMap,
    /// A lookup that begins where the map leads takes a miss there for a miss. // R-GROW-4
    CheckWhereTheMapLeads,
    /// A lookup goes straight to the deepest segment that the level implies. // R-GROW-3
    StepByStep,
    /// A change does not check that its rows cover the key. // R-GROW-5
    CheckUnderTheLock,
    /// A miss does not check that its rows cover the key. // R-GROW-4
    CheckOnAMiss,
    /// A splitter does not check that the segment was not split meanwhile. // R-GROW-8
    CheckBySplitter,
    /// Entries that are in the child stay in the parent, too. // R-GROW-8
    Removal,
    /// There is no record. // R-GROW-8
    Record,
    /// The record is retired before the parent's rows are written. // R-GROW-8
    RowsBeforeRetirement,
    /// A recoverer releases the locks and completes nothing. // R-GROW-10
    Completion,
    /// A recoverer makes the child's rows again from the parent's. // R-GROW-10
    ChildOfTheSplitter,
    /// A scan takes entries that the deepest level of their segment does not cover. // R-GROW-14
    LevelsInScans,
    /// A miss is not validated. // R-READ-3
    Validation,
    /// No row is read through a record. // R-GROW-11
    ReadsThroughRecord,
}

/// A row: its entries, version and depth, and the words that its checksum was computed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    pub entries: [Entry; 2],
    pub trailer: (u8, u8),
    sum: ([Entry; 2], (u8, u8)),
}

/// Words of a row: two entries, the trailer, and the checksum.
pub const ROW_WORDS: usize = 4;

impl Row {
    pub fn new(entries: [Entry; 2], trailer: (u8, u8)) -> Row {
        Row { entries, trailer, sum: (entries, trailer) }
    }

    pub fn verifies(self) -> bool {
        self.sum == (self.entries, self.trailer)
    }

    pub fn depth(self) -> u8 {
        self.trailer.1
    }

    /// Returns the row with word `word` of `other`.
    pub fn with_word(mut self, word: usize, other: Row) -> Row {
        match word {
            0 | 1 => self.entries[word] = other.entries[word],
            2 => self.trailer = other.trailer,
            _ => self.sum = other.sum,
        }
        self
    }

    /// Returns the words in which the row differs from `other`.
    pub fn differing(self, other: Row) -> impl Iterator<Item = usize> {
        (0..ROW_WORDS).filter(move |word| self.with_word(*word, other) != self)
    }
}

/// Returns the value of key A that an entry has.
pub fn value_of_a(entry: Entry) -> Option<u8> {
    (A..B).contains(&entry).then(|| entry - A)
}

/// Returns the value of a key that an entry has; that of key B is always 0.
pub fn value_of(key: Entry, entry: Entry) -> Option<u8> {
    if key == A { value_of_a(entry) } else { (entry == B).then_some(0) }
}

/// A state that a client must never meet, or an answer that it must never give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    TornUnderLock,
    NotCompleted,
    NoMemory,
    TwiceUnderLock,
    Answer,
    Snapshot,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub rows: [Row; ROWS],
    pub locks: [u8; ROWS],
    /// Bit n: the memory of segment n exists.
    pub memory: u8,
    /// The depth of each segment that the table's map has.
    pub map: [Option<u8>; SEGMENTS],
    /// The sealed record of each splitter: the segment that is split, and its depth.
    pub records: [Option<(u8, u8)>; SPLITTERS],
    pub splitters: [Splitting; SPLITTERS],
    pub recoverers: [Recovering; 2],
    pub writer: Writing,
    pub mover: Moving,
    pub reader: Reading,
    pub scan: Option<Scan>,
    /// Changes of key A that were acknowledged, that were begun, and the newest one that a lookup has returned.
    pub changes: (u8, u8, u8),
    pub wrong: Option<Wrong>,
}

impl State {
    pub fn pair(&self, segment: u8) -> [Row; 2] {
        [self.rows[2 * usize::from(segment)], self.rows[2 * usize::from(segment) + 1]]
    }

    pub fn has_memory(&self, segment: u8) -> bool {
        self.memory >> segment & 1 != 0
    }
}

/// The configuration.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    pub without: Without,
    /// The position of key A, in quarters of all positions.
    pub position: u8,
    /// The rows in which the segment may begin.
    pub starts: &'static [[[Entry; 2]; 2]],
    /// For each splitter the segments that it splits, with their depths.
    pub splits: [&'static [(u8, u8)]; SPLITTERS],
    /// Changes of key A: a value that is put, or `None` to remove it.
    pub changes: &'static [Option<u8>],
    /// Moves of entries between the rows of a segment.
    pub moves: u8,
    /// Lookups of these keys, one after the other.
    pub lookups: &'static [Entry],
    pub scans: bool,
    /// Segments share their locks. // R-GROW-13
    pub shares_locks: bool,
    /// The words of a WRITE become visible in any order, as parts of a packet may.
    pub any_order: bool,
    /// READs of a batch sample in any order.
    pub is_unordered: bool,
    /// Whether the reader has to end while all others have stopped for ever. // R-GROW-11
    pub alone: bool,
}

/// Key A in the first row beside B, and in the second; and with B in the second.
pub const STARTS: [[[Entry; 2]; 2]; 3] = [[[A, B], [0, 0]], [[B, 0], [A, 0]], [[A, 0], [0, B]]];
/// One split of the first segment; and that, then another one of it, then one of its first child.
pub const ONCE: &[(u8, u8)] = &[(0, 0)];
pub const DEEP: &[(u8, u8)] = &[(0, 0), (0, 1), (1, 1)];
/// One split with nobody else at work.
pub const SPLIT: Split = Split {
    without: Without::Nothing,
    position: 3,
    starts: &STARTS,
    splits: [ONCE, &[]],
    changes: &[],
    moves: 0,
    lookups: &[],
    scans: false,
    shares_locks: false,
    any_order: false,
    is_unordered: false,
    alone: false,
};

fn segments() -> Segments {
    let options = PresetOptions {
        capacity: 1,
        format: "fixed:8:8".parse().expect("a format"),
        extent_bytes: None,
        max_clients: None,
        hash_seed: 1,
        device_bytes: u64::MAX,
    };
    Segments::of(&Preset::Tiny.config_that_grows(1, 1 << 15, &options).expect("a table")).expect("segments")
}

thread_local! {
    static TABLE: Segments = segments();
}

/// Returns the child of a segment that is split at `depth`. [R-GROW-2]
pub fn child(segment: u8, depth: u8) -> u8 {
    TABLE.with(|table| table.child(segment.into(), depth)).expect("a child") as u8
}

impl Split {
    fn position_of(&self, key: Entry) -> u64 {
        if key == B { 0 } else { u64::from(self.position) << 62 }
    }

    /// Returns the segment that `key` has gone to, if a segment of this depth does not cover it. [R-GROW-3]
    pub fn next(&self, segment: u8, depth: u8, key: Entry) -> Option<u8> {
        let position = self.position_of(key);
        let next = TABLE.with(|table| table.next(segment.into(), depth, position))?;
        if self.without != Without::StepByStep {
            return Some(next as u8);
        }
        // The segment of the interval of this depth: the right half of the last one in which the key went right.
        let interval = position >> (64 - depth);
        let steps = interval.trailing_zeros();
        let parent = u32::from(depth).saturating_sub(steps + 1);
        Some(if interval == 0 { 0 } else { ((1 << parent) + (interval >> (steps + 1))) as u8 })
    }

    fn covers(&self, segment: u8, depth: u8, entry: Entry) -> bool {
        let key = if entry == B { B } else { A };
        let position = self.position_of(key);
        TABLE.with(|table| table.next(segment.into(), depth, position)).is_none()
    }

    /// Returns what a split makes of a row of a segment of `depth`: the rows of parent and child. [R-GROW-8]
    pub fn parts(&self, row: Row, segment: u8, depth: u8) -> (Row, Row) {
        let trailer = (row.trailer.0 + 1, depth + 1);
        let stays = |entry: Entry| entry != 0 && self.covers(segment, depth + 1, entry);
        let part = |stay: bool| row.entries.map(|entry| if stays(entry) == stay { entry } else { 0 });
        (Row::new(part(true), trailer), Row::new(part(false), trailer))
    }

    /// Returns the parent's row as the split leaves it, from any mixture of its old and new words and the child's row.
    /// [R-GROW-9]
    pub fn complete(&self, row: Row, child: Row, segment: u8, depth: u8) -> Option<Row> {
        if row.verifies() {
            return Some(if row.depth() == depth { self.parts(row, segment, depth).0 } else { row });
        }
        let (version, found) = row.trailer;
        let (before, after) = match found {
            _ if !child.verifies() => return None,
            _ if found == depth => ((version, depth), (version + 1, depth + 1)),
            _ if found == depth + 1 => ((version.checked_sub(1)?, depth), (version, depth + 1)),
            _ => return None,
        };
        let choose = |child_first: bool| {
            let pairs = row.entries.into_iter().zip(child.entries);
            let mut words = pairs.map(|(own, gone)| match (gone, child_first) {
                (0, _) => own,
                (gone, true) => gone,
                (_, false) => 0,
            });
            [words.next().unwrap_or(0), words.next().unwrap_or(0)]
        };
        let (old, new) = (choose(true), choose(false));
        (row.sum == (old, before) || row.sum == (new, after)).then(|| Row::new(new, after))
    }

    /// Returns the lock of a row. [R-GROW-13]
    pub fn lock_of(&self, row: usize) -> usize {
        if self.shares_locks { row % 2 } else { row }
    }

    /// Returns the segment in which the table's map has `key`, from the oldest one on.
    pub fn route(&self, state: &State, key: Entry) -> u8 {
        let mut segment = 0;
        while let Some(next) = state.map[usize::from(segment)].and_then(|depth| self.next(segment, depth, key)) {
            segment = next;
        }
        segment
    }

    /// Returns the segments to which rows may have sent an earlier operation of a client that used `segment`.
    pub fn sent_from(&self, state: &State, segment: u8, key: Entry) -> BTreeSet<u8> {
        let whole = state.pair(segment).into_iter().filter(|row| row.verifies());
        whole.filter_map(|row| self.next(segment, row.depth(), key)).collect()
    }

    /// Returns the value of key A after each change, the first one before all.
    pub fn values(&self) -> Vec<Option<u8>> {
        [&[Some(0)], self.changes].concat()
    }

    /// Returns the state of what is left when nobody has anything to do: the reason why it is wrong, if it is.
    fn left_behind(&self, state: &State) -> Result<(), &'static str> {
        let waits = |at: &Splitting| matches!(at.step, splitter::Step::End | splitter::Step::Dead);
        let ended = state.splitters.iter().all(waits)
            && matches!(state.writer, Writing::Idle { done, .. } if usize::from(done) == self.changes.len())
            && state.mover == (Moving::Idle { left: 0 })
            && state.reader.is_idle()
            && state.scan.as_ref().is_none_or(Scan::is_done);
        if !ended {
            return Err("a client is stuck");
        }
        let is_dead = |at: &Splitting| at.step == splitter::Step::Dead;
        if state.splitters.iter().any(is_dead) || state.locks.iter().any(|owner| *owner != 0) {
            return Err("a lock is left");
        }
        if state.records.iter().any(Option::is_some) {
            return Err("a record is left");
        }
        self.table_is_right(state)
    }

    fn table_is_right(&self, state: &State) -> Result<(), &'static str> {
        let (mut segments, mut found) = (vec![(0u8, 0u8)], Vec::new());
        while let Some((segment, born)) = segments.pop() {
            let rows = state.pair(segment);
            if !rows.iter().all(|row| row.verifies()) {
                return Err("a torn row is left");
            }
            let depth = rows[0].depth();
            if rows[1].depth() != depth {
                return Err("a segment has two depths");
            }
            if state.map[usize::from(segment)].is_some_and(|known| known > depth) {
                return Err("the map is ahead of the rows");
            }
            segments.extend((born..depth).map(|depth| (child(segment, depth), depth + 1)));
            let entries = rows.into_iter().flat_map(|row| row.entries).filter(|entry| *entry != 0);
            for entry in entries {
                if !self.covers(segment, depth, entry) {
                    return Err("a key is in a segment that does not cover it");
                }
                found.push(entry);
            }
        }
        found.sort_unstable();
        let now = self.values()[usize::from(state.changes.0)];
        let wanted: Vec<Entry> = now.map(|value| A + value).into_iter().chain([B]).collect();
        if found == wanted { Ok(()) } else { Err("a key is lost, twice there, or not what was acknowledged") }
    }
}

/// A step of one actor: which of those that it can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Splitter(usize, u8),
    SplitterDies(usize),
    Recoverer(usize, u8),
    RecovererDies,
    Writer(u8),
    Mover(u8),
    Reader(u8),
}

pub const RIGHT: &str = "no client meets what it must not";
pub const LEFT: &str = "nothing is left or lost in the end";
pub const ALONE: &str = "a reader ends while all others have stopped";

impl Split {
    fn steps(&self, state: &State, action: Action) -> Vec<State> {
        match action {
            Action::Splitter(number, _) => self.split(state, number),
            Action::SplitterDies(number) => self.die(state, number),
            Action::Recoverer(number, _) => self.recover(state, number),
            Action::RecovererDies => self.recoverer_dies(state),
            Action::Writer(_) => self.write(state),
            Action::Mover(_) => self.move_entry(state),
            Action::Reader(_) if self.scans => self.scan(state),
            Action::Reader(_) => self.read(state),
        }
    }
}

impl Model for Split {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let start = |entries: &[[Entry; 2]; 2]| {
            let mut rows = [Row::new([0, 0], (0, 0)); ROWS];
            (rows[0], rows[1]) = (Row::new(entries[0], (1, 0)), Row::new(entries[1], (1, 0)));
            rows[2..4].fill(Row::new([NEVER, 0], (5, 1)));
            State {
                rows,
                locks: [0; ROWS],
                memory: 1,
                map: [Some(0), None, None, None],
                records: [None; SPLITTERS],
                splitters: [Splitting::START; SPLITTERS],
                recoverers: [Recovering::Idle; 2],
                writer: Writing::Idle { done: 0, segment: 0 },
                mover: Moving::Idle { left: self.moves },
                reader: Reading::START,
                scan: self.scans.then(Scan::default),
                changes: (0, 0, 0),
                wrong: None,
            }
        };
        self.starts.iter().map(start).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_some() {
            return;
        }
        let mut add = |action: fn(u8) -> Action, steps: usize| actions.extend((0..steps as u8).map(action));
        add(|step| Action::Splitter(0, step), self.split(state, 0).len());
        add(|step| Action::Splitter(1, step), self.split(state, 1).len());
        add(|_| Action::SplitterDies(0), self.die(state, 0).len());
        add(|_| Action::SplitterDies(1), self.die(state, 1).len());
        add(|step| Action::Recoverer(0, step), self.recover(state, 0).len());
        add(|step| Action::Recoverer(1, step), self.recover(state, 1).len());
        add(|_| Action::RecovererDies, self.recoverer_dies(state).len());
        add(Action::Writer, self.write(state).len());
        add(Action::Mover, self.move_entry(state).len());
        add(Action::Reader, self.steps(state, Action::Reader(0)).len());
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let number = match action {
            Action::Splitter(_, step) | Action::Recoverer(_, step) => step,
            Action::Writer(step) | Action::Mover(step) | Action::Reader(step) => step,
            Action::SplitterDies(_) | Action::RecovererDies => 0,
        };
        self.steps(state, action).into_iter().nth(number.into())
    }

    fn properties(&self) -> Vec<Property<Split>> {
        vec![
            Property::always(RIGHT, |_, state: &State| state.wrong.is_none()),
            Property::always(LEFT, |model: &Split, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let is_death = |action: &Action| matches!(action, Action::SplitterDies(_) | Action::RecovererDies);
                let goes_on = state.wrong.is_some() || !actions.iter().all(is_death);
                goes_on || model.left_behind(state).is_ok()
            }),
            Property::always(ALONE, |model: &Split, state: &State| !model.alone || model.ends_alone(state)),
        ]
    }
}
