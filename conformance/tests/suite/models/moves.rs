//! A model of a lookup against a key that moves: whether it ever misses a key that was there all the time, or returns a
//! value that the key did not have at any moment of the lookup.
//!
//! There is one key with its two rows. A writer that holds their locks changes them as often as the configuration says,
//! in any order: it moves the key from either row to the other, removes it, inserts it into either, gives it another
//! value, or changes a neighbour. A row is an entry and a trailer, one word each; the trailer holds version and
//! checksum. A WRITE writes the entry, then the trailer; READs sample their words in any order.
//!
//! The steps stand for this code in `crates/rcuckoo/src`:
//!
//! - [`Change::Move`]: rows of a path, from its empty end: `Commit::post_all` (change/commit.rs), R-INSERT-4.
//! - [`Change::Remove`], [`Change::Insert`], [`Change::Update`]: a commit of one row, R-UPDATE-1.
//! - [`Order::InPlace`]: `Lookup::sample_in_turn` (lookup/sample.rs): L1; if need be L2, then L1's trailer; R-READ-7.
//! - [`Order::Ordered`]: `Lookup::reads` where READs sample in order: L1, L2, L1's trailer; R-READ-3.
//! - [`Order::Covering`]: the same, of neighbours: one READ of both rows, then both trailers; R-READ-2, R-READ-3.
//! - [`Order::Unordered`]: elsewhere: both rows; in a second trip both trailers; R-READ-3.
//! - The verdict: `Lookup::verdict`, and `miss_verdict` (lookup/verdict.rs); R-READ-1, R-READ-3.
//! - [`Looking::Again`]: the loop of `Reader::get_sampled` (lookup/mod.rs), R-READ-4.

use stateright::{Model, Property};

const ROWS: usize = 2;

/// The way in which the words of both rows are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    InPlace,
    Ordered,
    Covering,
    Unordered,
    /// Both rows at one moment. No fabric does this, but the printed protocol assumes it of one READ.
    Snapshot,
}

/// One rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    Nothing,
    /// A miss is returned without validation. // R-READ-3
    Validation,
    /// L1's trailer alone validates a miss where L2 may have been sampled first. // R-READ-3
    SecondTrailer,
    /// The trailer is sampled again before L2, not after it. // R-READ-3
    LateTrailer,
    /// A retry keeps the row that verified. // R-READ-4
    BothRowsAgain,
    /// Versions wrap around after two changes. // R-ROW-2
    WideVersions,
    /// A row need not verify. // R-ROW-1, R-READ-1
    Checksums,
    /// A path is written from the key's old row to its new one. // R-INSERT-4
    EmptyEndFirst,
}

/// A row's words. The trailer holds the version and, for its checksum, the entry it was computed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    /// The key's value; 0 if the key is not in this row.
    entry: u8,
    trailer: (u8, u8),
}

impl Row {
    fn verifies(self) -> bool {
        self.trailer.1 == self.entry
    }
}

/// The writer's next change of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    Move,
    Remove,
    Insert(u8),
    Update,
    /// A change of another key of this row.
    Neighbour(u8),
}

/// A WRITE in progress: its row, whether its entry is written, and what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Writing {
    row: u8,
    entry: u8,
    is_half: bool,
    /// The key's value once this WRITE is complete.
    then: u8,
    /// The row that is written without the key afterwards, if the key moves.
    leaves: Option<u8>,
}

/// The state of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Looking {
    /// The reader is in this group of samples.
    Group(u8),
    /// The reader waits to retry until something has changed, because it would see the same until then.
    Again,
    /// The reader has this answer.
    Done(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    rows: [Row; ROWS],
    /// The key's value; 0 if it is missing.
    value: u8,
    writing: Option<Writing>,
    changes: u8,
    next_value: u8,
    looking: Looking,
    sampled: [Row; ROWS],
    trailers: [(u8, u8); ROWS],
    /// Words of this group that were sampled.
    done: u8,
    /// Rows that this try does not sample.
    kept: u8,
    /// Whether the lookup has begun, and one bit for each value that the key had since.
    begun: bool,
    had: u16,
    retries: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Begin(Change),
    Write,
    /// A sample of this word of the group.
    Sample(u8),
    Retry,
}

/// Words as bits: entry and trailer of L1 and L2, and both trailers once more.
const L1: u8 = 0b11;
const L2: u8 = 0b1100;
const L1_AGAIN: u8 = 1 << 4;
const L2_AGAIN: u8 = 1 << 5;

/// The configuration: the rule that is left out, and how many changes may happen.
#[derive(Clone, Debug)]
pub struct Moves {
    pub order: Order,
    pub without: Without,
    pub changes: u8,
}

impl Moves {
    /// Returns the groups of words; the words of each are sampled in any order, before those of the next group.
    fn groups(&self) -> &'static [u8] {
        match (self.order, self.without) {
            (Order::Snapshot, _) | (Order::Unordered | Order::Covering, Without::Validation) => &[L1 | L2],
            (_, Without::Validation) => &[L1, L2],
            (Order::Unordered | Order::Covering, Without::SecondTrailer) => &[L1 | L2, L1_AGAIN],
            (_, Without::LateTrailer) => &[L1, L1_AGAIN, L2],
            (Order::InPlace | Order::Ordered, _) => &[L1, L2, L1_AGAIN],
            (Order::Covering, _) => &[L1 | L2, L1_AGAIN, L2_AGAIN],
            (Order::Unordered, _) => &[L1 | L2, L1_AGAIN | L2_AGAIN],
        }
    }

    fn changes(state: &State, actions: &mut Vec<Action>) {
        let begin = |change| Action::Begin(change);
        match state.value {
            0 => actions.extend([0, 1].map(|row| begin(Change::Insert(row)))),
            _ => actions.extend([Change::Move, Change::Remove, Change::Update].map(begin)),
        }
        actions.extend([0, 1].map(|row| begin(Change::Neighbour(row))));
    }

    /// Begins a change: its first WRITE, and the key's next state.
    fn begin(&self, state: &mut State, change: Change) {
        let here = state.rows.iter().position(|row| row.entry != 0).unwrap_or(0) as u8;
        let value = state.value;
        let writing = |row, entry, then| Writing { row, entry, is_half: false, then, leaves: None };
        state.changes += 1;
        state.writing = Some(match change {
            Change::Move if self.without == Without::EmptyEndFirst => {
                Writing { leaves: Some(1 - here), ..writing(here, 0, value) }
            }
            Change::Move => Writing { leaves: Some(here), ..writing(1 - here, value, value) },
            Change::Remove => writing(here, 0, 0),
            Change::Neighbour(row) => writing(row, state.rows[row as usize].entry, value),
            Change::Insert(row) => writing(row, state.next_value, state.next_value),
            Change::Update => writing(here, state.next_value, state.next_value),
        });
        state.next_value += u8::from(matches!(change, Change::Insert(_) | Change::Update));
    }

    /// Writes one word of a WRITE. The last row's trailer makes the change take effect.
    fn write(&self, state: &mut State, writing: Writing) {
        let row = &mut state.rows[writing.row as usize];
        if !writing.is_half {
            row.entry = writing.entry;
            state.writing = Some(Writing { is_half: true, ..writing });
            return;
        }
        let version = row.trailer.0 + 1;
        row.trailer = (if self.without == Without::WideVersions { version % 2 } else { version }, row.entry);
        state.value = writing.then;
        state.had = if state.begun { state.had } else { 0 } | 1 << state.value;
        state.writing = writing.leaves.map(|row| {
            let entry = if self.without == Without::EmptyEndFirst { writing.then } else { 0 };
            Writing { row, entry, is_half: false, then: writing.then, leaves: None }
        });
    }

    fn sample(&self, state: &mut State, word: u8) {
        state.begun = true;
        let row = (word as usize / 2) % ROWS;
        match word {
            0 | 2 => state.sampled[row].entry = state.rows[row].entry,
            1 | 3 => state.sampled[row].trailer = state.rows[row].trailer,
            4 => state.trailers[0] = state.rows[0].trailer,
            _ => state.trailers[1] = state.rows[1].trailer,
        }
        if self.order == Order::Snapshot {
            for row in (0..ROWS).filter(|row| state.kept & 1 << row == 0) {
                state.sampled[row] = state.rows[row];
            }
            state.done = L1 | L2;
        }
        state.done |= 1 << word;
        self.end_group(state);
    }

    /// Returns the unsampled words of the reader's group, without the rows that it kept.
    fn left(&self, state: &State) -> u8 {
        let Looking::Group(group) = state.looking else { return 0 };
        let kept = [L1, L2].into_iter().enumerate().filter(|(row, _)| state.kept & 1 << row != 0);
        self.groups()[group as usize] & !state.done & !kept.fold(0, |kept, (_, words)| kept | words)
    }

    /// Continues with the next group, or the verdict, once everything in this one was sampled.
    fn end_group(&self, state: &mut State) {
        while let Looking::Group(group) = state.looking {
            if self.left(state) != 0 {
                return;
            }
            let is_early_hit = self.order == Order::InPlace && group == 0 && self.hit(state, 0).is_some();
            match (group as usize + 1 < self.groups().len() && !is_early_hit, self.verdict(state)) {
                (true, _) => state.looking = Looking::Group(group + 1),
                (false, Some(answer)) => state.looking = Looking::Done(answer),
                (false, None) => state.looking = Looking::Again,
            }
            state.done = if matches!(state.looking, Looking::Group(_)) { state.done } else { 0 };
        }
    }

    fn hit(&self, state: &State, row: usize) -> Option<u8> {
        let sampled = state.sampled[row];
        (sampled.entry != 0 && self.believes(sampled)).then_some(sampled.entry)
    }

    fn believes(&self, row: Row) -> bool {
        row.verifies() || self.without == Without::Checksums
    }

    /// Returns the answer; `None` if another try is needed.
    fn verdict(&self, state: &State) -> Option<u8> {
        if let Some(value) = self.hit(state, 0).or_else(|| self.hit(state, 1)) {
            return Some(value);
        }
        let sampled: u8 = self.groups().iter().fold(0, |words, group| words | group);
        let is_same = |row: usize, again: u8| sampled & again == 0 || state.trailers[row] == state.sampled[row].trailer;
        let is_absent = state.sampled.iter().all(|row| self.believes(*row));
        (is_absent && is_same(0, L1_AGAIN) && is_same(1, L2_AGAIN)).then_some(0)
    }

    fn retry(&self, state: &mut State) {
        state.kept = 0;
        if self.without == Without::BothRowsAgain && state.sampled.iter().any(|row| !row.verifies()) {
            for row in (0..ROWS).filter(|row| state.sampled[*row].verifies()) {
                state.kept |= 1 << row;
            }
        }
        for row in (0..ROWS).filter(|row| state.kept & 1 << row == 0) {
            state.sampled[row] = Row::default();
        }
        state.trailers = [(0, 0); ROWS];
        state.retries = (state.retries + 1).min(2);
        state.looking = Looking::Group(0);
        self.end_group(state);
    }
}

pub const RIGHT: &str = "a lookup answers with a state that the key was in during it";
pub const ENDS: &str = "a lookup ends once its rows do not change";
pub const MISSED: &str = "a lookup misses a key that was removed during it";
pub const RETRIED: &str = "a lookup that needed two retries hits";

impl Model for Moves {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let with = Row { entry: 1, trailer: (0, 1) };
        let start = |rows, value| State {
            rows,
            value,
            writing: None,
            changes: 0,
            next_value: 2,
            looking: Looking::Group(0),
            sampled: [Row::default(); ROWS],
            trailers: [(0, 0); ROWS],
            done: 0,
            kept: 0,
            begun: false,
            had: 1 << value,
            retries: 0,
        };
        vec![start([with, Row::default()], 1), start([Row::default(), with], 1), start([Row::default(); ROWS], 0)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.writing {
            Some(_) => actions.push(Action::Write),
            None if state.changes < self.changes => Moves::changes(state, actions),
            None => {}
        }
        let left = self.left(state);
        actions.extend((0..6).filter(|word| left & 1 << word != 0).map(Action::Sample));
        if state.looking == Looking::Again && state.sampled != state.rows {
            actions.push(Action::Retry);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match (action, state.writing) {
            (Action::Begin(change), _) => self.begin(&mut state, change),
            (Action::Write, Some(writing)) => self.write(&mut state, writing),
            (Action::Write, None) => return None,
            (Action::Sample(word), _) => self.sample(&mut state, word),
            (Action::Retry, _) => self.retry(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Moves>> {
        vec![
            Property::always(RIGHT, |_, state: &State| match state.looking {
                Looking::Done(answer) => state.had & 1 << answer != 0,
                _ => true,
            }),
            Property::always(ENDS, |model: &Moves, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !actions.is_empty() || matches!(state.looking, Looking::Done(_))
            }),
            Property::sometimes(MISSED, |_, state: &State| state.looking == Looking::Done(0) && state.had != 1),
            Property::sometimes(RETRIED, |_, state: &State| {
                state.retries >= 2 && matches!(state.looking, Looking::Done(1..))
            }),
        ]
    }
}
