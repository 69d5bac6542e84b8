//! A reader whose map may be old, and a scan.

use std::collections::BTreeSet;

use super::{A, B, Entry, ROWS, Row, SPLITTERS, Split, State, Without, Wrong, child, value_of};

/// A sampled row of a lookup: whether it verified, and its trailer.
type Sample = Option<(bool, (u8, u8))>;

/// The state of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reading {
    /// Lookups that were done.
    done: u8,
    /// The segment in which the last lookup ended, or in which this one looks.
    segment: u8,
    looking: Option<Looking>,
}

/// A lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Looking {
    step: Step,
    samples: [Sample; 2],
    /// The first change of key A whose value it may return.
    from_change: u8,
    /// Whether it began where the map led, which its client did not know before.
    is_led_by_map: bool,
    /// Whether a row was read through a record, so that both trailers have to be compared.
    used_record: bool,
}

/// The next step of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// It samples both rows.
    Rows,
    /// It compares the first trailer, or the second, with a later sample.
    Again,
    AgainSecond,
    /// It samples this row through the record of its writer.
    Through(u8, Part),
}

/// A part of reading a row through a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Row,
    Owner,
    Record(usize),
    Child(usize, (u8, u8)),
    RowAgain(usize, (u8, u8), Row),
    RecordAgain(usize, (u8, u8), Row, Row),
}

/// Rows that a scan has sampled, with their numbers, and how many of their trailers it has compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scan {
    rows: Vec<(u8, Row)>,
    compared: u8,
    is_done: bool,
}

impl Reading {
    pub const START: Reading = Reading { done: 0, segment: 0, looking: None };

    pub fn is_idle(&self) -> bool {
        self.looking.is_none()
    }
}

/// The step that follows from a row of a lookup that verifies, or was completed.
enum Verdict {
    Answer(u8),
    Segment(u8),
    Sampled,
}

impl Split {
    pub fn read(&self, state: &State) -> Vec<State> {
        let at = state.reader;
        let Some(key) = self.lookups.get(usize::from(at.done)).copied() else { return Vec::new() };
        let Some(looking) = at.looking else {
            let from_change = if key == A { state.changes.0.max(state.changes.2) } else { 0 };
            let begins = BTreeSet::from([0, at.segment, self.route(state, key)]);
            let begin = |segment| {
                let is_led_by_map = segment != at.segment;
                let looking =
                    Looking { step: Step::Rows, samples: [None; 2], from_change, is_led_by_map, used_record: false };
                State { reader: Reading { segment, looking: Some(looking), ..at }, ..state.clone() }
            };
            return begins.into_iter().map(begin).collect();
        };
        if !state.has_memory(at.segment) {
            return vec![State { wrong: Some(Wrong::NoMemory), ..state.clone() }];
        }
        match looking.step {
            Step::Rows => self.sample(state, looking, key),
            Step::Again | Step::AgainSecond => self.compare(state, looking, key),
            Step::Through(row, part) => vec![self.read_through(state, looking, key, usize::from(row), part)],
        }
    }

    /// Samples a row: the first that is left, or any.
    fn sample(&self, state: &State, looking: Looking, key: Entry) -> Vec<State> {
        let rows = state.pair(state.reader.segment);
        let left: Vec<usize> = (0..2).filter(|row| looking.samples[*row].is_none()).collect();
        let step = if left.len() == 2 { Step::Rows } else { Step::Again };
        let any = left.iter().take(if self.is_unordered { 2 } else { 1 });
        let sampled = any.map(|row| {
            let mut after = Looking { step, ..looking };
            after.samples[*row] = Some((rows[*row].verifies(), rows[*row].trailer));
            match rows[*row].verifies() {
                true => self.judge(state, after, key, rows[*row]),
                false => state.with_lookup(after),
            }
        });
        sampled.collect()
    }

    /// Goes on after `row`, which verifies or was completed: to an answer, to the next segment, or as `after` says.
    fn judge(&self, state: &State, after: Looking, key: Entry, row: Row) -> State {
        match self.verdict(state.reader.segment, after, key, row) {
            Verdict::Answer(value) => self.answer(state, after, key, Some(value)),
            Verdict::Segment(segment) => again(state, after, segment),
            Verdict::Sampled => state.with_lookup(after),
        }
    }

    fn verdict(&self, segment: u8, after: Looking, key: Entry, row: Row) -> Verdict {
        if let Some(value) = row.entries.into_iter().find_map(|entry| value_of(key, entry)) {
            return Verdict::Answer(value);
        }
        let trusts = match self.without {
            Without::CheckOnAMiss => true,
            Without::CheckWhereTheMapLeads => after.is_led_by_map,
            _ => false,
        };
        match self.next(segment, row.depth(), key).filter(|_| !trusts) {
            Some(next) => Verdict::Segment(next),
            None => Verdict::Sampled,
        }
    }

    /// Ends the lookup with this value of the key, if it had it at some moment of the lookup.
    fn answer(&self, state: &State, looking: Looking, key: Entry, value: Option<u8>) -> State {
        let mut next = state.clone();
        next.reader.looking = None;
        next.reader.done += 1;
        if key == B {
            next.wrong = (value != Some(0)).then_some(Wrong::Answer);
            return next;
        }
        let values = self.values();
        let change = (looking.from_change..=state.changes.1).find(|change| values[usize::from(*change)] == value);
        match change {
            Some(change) => next.changes.2 = next.changes.2.max(change),
            None => next.wrong = Some(Wrong::Answer),
        }
        next
    }

    /// Compares the trailers with later samples. [R-READ-3]
    fn compare(&self, state: &State, looking: Looking, key: Entry) -> Vec<State> {
        let segment = state.reader.segment;
        let [Some((first_whole, first)), Some((second_whole, second))] = looking.samples else { return Vec::new() };
        if !first_whole || !second_whole {
            let mut after = vec![again(state, looking, segment)];
            if self.without != Without::ReadsThroughRecord {
                let step = Step::Through(0, Part::Row);
                after.push(state.with_lookup(Looking { step, samples: [None; 2], ..looking }));
            }
            return after;
        }
        if self.without == Without::Validation {
            return vec![self.answer(state, looking, key, None)];
        }
        let rows = state.pair(segment);
        let is_first = looking.step == Step::Again;
        let has_changed = if is_first { rows[0].trailer != first } else { rows[1].trailer != second };
        vec![match has_changed {
            true => again(state, looking, segment),
            false if is_first && (self.is_unordered || looking.used_record) => {
                state.with_lookup(Looking { step: Step::AgainSecond, ..looking })
            }
            false => self.answer(state, looking, key, None),
        }]
    }

    /// Samples a row, the child's row and the record that both belong to. [R-GROW-11] [R-READ-9]
    fn read_through(&self, state: &State, looking: Looking, key: Entry, row: usize, part: Part) -> State {
        let segment = state.reader.segment;
        let sampled = state.pair(segment)[row];
        let to = |part| state.with_lookup(Looking { step: Step::Through(row as u8, part), ..looking });
        let then = |sample: Row, whole: Row| {
            let step = if row == 0 { Step::Through(1, Part::Row) } else { Step::Again };
            let mut after = Looking { step, used_record: row == 1, ..looking };
            after.samples[row] = Some((true, sample.trailer));
            self.judge(state, after, key, whole)
        };
        match part {
            Part::Row if sampled.verifies() => then(sampled, sampled),
            Part::Row => to(Part::Owner),
            Part::Owner => match state.locks[self.lock_of(usize::from(2 * segment) + row)] {
                owner if (1..=SPLITTERS as u8).contains(&owner) => to(Part::Record(usize::from(owner) - 1)),
                _ => again(state, looking, segment),
            },
            Part::Record(splitter) => match state.records[splitter] {
                Some(record) if record.0 == segment => to(Part::Child(splitter, record)),
                _ => again(state, looking, segment),
            },
            Part::Child(splitter, record) => {
                let gone = state.rows[2 * usize::from(child(record.0, record.1)) + row];
                to(Part::RowAgain(splitter, record, gone))
            }
            Part::RowAgain(splitter, record, gone) => to(Part::RecordAgain(splitter, record, gone, sampled)),
            Part::RecordAgain(splitter, record, gone, sampled) => {
                let whole = self.complete(sampled, gone, record.0, record.1);
                match whole.filter(|_| state.records[splitter] == Some(record)) {
                    Some(whole) => then(sampled, whole),
                    None => again(state, looking, segment),
                }
            }
        }
    }

    /// Whether the reader ends while everybody else does nothing.
    pub fn ends_alone(&self, state: &State) -> bool {
        let mut state = state.clone();
        for _ in 0..80 {
            if state.reader.is_idle() || state.wrong.is_some() {
                return true;
            }
            match self.read(&state).pop() {
                Some(next) => state = next,
                None => return false,
            }
        }
        false
    }

    /// A scan that takes a table for stable once a sweep over all rows finds no change. [R-SCAN-1] [R-GROW-14]
    pub fn scan(&self, state: &State) -> Vec<State> {
        let Some(scan) = state.scan.as_ref().filter(|scan| !scan.is_done) else { return Vec::new() };
        let mut next = state.clone();
        let deepest = scan.deepest();
        let left = deepest.iter().flat_map(|(segment, _)| [2 * segment, 2 * segment + 1]);
        let left = left.into_iter().find(|row| scan.rows.iter().all(|(known, _)| known != row));
        let changed = match left {
            Some(row) if !state.has_memory(row / 2) => {
                next.wrong = Some(Wrong::NoMemory);
                return vec![next];
            }
            // A torn row is waited for.
            Some(row) if !state.rows[usize::from(row)].verifies() => return Vec::new(),
            Some(row) => {
                let mut rows = scan.rows.clone();
                rows.push((row, state.rows[usize::from(row)]));
                Scan { rows, compared: 0, is_done: false }
            }
            None if usize::from(scan.compared) < scan.rows.len() => {
                let (row, sampled) = scan.rows[usize::from(scan.compared)];
                match state.rows[usize::from(row)].trailer == sampled.trailer {
                    true => Scan { compared: scan.compared + 1, ..scan.clone() },
                    false => Scan::default(),
                }
            }
            None => {
                next.wrong = (!self.is_snapshot(scan, &deepest)).then_some(Wrong::Snapshot);
                Scan { is_done: true, ..Scan::default() }
            }
        };
        next.scan = Some(changed);
        vec![next]
    }

    /// Whether the scanned rows have each key once, among the entries that count.
    fn is_snapshot(&self, scan: &Scan, deepest: &[(u8, u8)]) -> bool {
        let counts = |row: u8, entry: Entry| {
            let depth = deepest.iter().find(|(segment, _)| *segment == row / 2).map_or(0, |(_, depth)| *depth);
            self.without == Without::LevelsInScans || self.covers(row / 2, depth, entry)
        };
        let entries = scan.rows.iter().flat_map(|(row, words)| words.entries.map(|entry| (*row, entry)));
        let mut found: Vec<(Entry, u8)> = entries
            .filter(|(row, entry)| *entry != 0 && counts(*row, *entry))
            .map(|(row, entry)| (if entry == B { B } else { A }, row / 2))
            .collect();
        // Within a segment, a key that is moved may be in both rows.
        found.sort_unstable();
        found.dedup();
        found.iter().map(|(key, _)| *key).eq([A, B])
    }
}

impl Scan {
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns each known segment, in order, with the deepest depth that its rows had.
    fn deepest(&self) -> Vec<(u8, u8)> {
        let depth_of = |segment: u8| {
            let rows = self.rows.iter().filter(|(row, _)| row / 2 == segment);
            rows.map(|(_, words)| words.depth()).max().unwrap_or(0)
        };
        let (mut known, mut next) = (BTreeSet::from([0u8]), 0);
        // A child's number is above its parent's.
        while usize::from(next) < ROWS / 2 {
            if known.contains(&next) {
                let born = (u8::BITS - next.leading_zeros()) as u8;
                known.extend((born..depth_of(next)).map(|depth| child(next, depth)));
            }
            next += 1;
        }
        known.into_iter().map(|segment| (segment, depth_of(segment))).collect()
    }
}

/// Returns the state in which the lookup begins again in `segment`. Its client has been led there by a row, or was there
/// before.
fn again(state: &State, looking: Looking, segment: u8) -> State {
    let looking = Looking { step: Step::Rows, samples: [None; 2], is_led_by_map: false, used_record: false, ..looking };
    State { reader: Reading { segment, looking: Some(looking), ..state.reader }, ..state.clone() }
}

impl State {
    fn with_lookup(&self, looking: Looking) -> State {
        State { reader: Reading { looking: Some(looking), ..self.reader }, ..self.clone() }
    }
}
