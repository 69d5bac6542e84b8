//! A writer of key A whose map may be old, and a client that moves entries between the rows of a segment.

use super::{A, Entry, MOVER, Row, Split, State, WRITER, Without, Wrong, value_of_a};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writing {
    /// The writer has done so many changes, the last one in this segment.
    Idle {
        done: u8,
        segment: u8,
    },
    Lock {
        segment: u8,
        part: u8,
    },
    Decide {
        segment: u8,
    },
    Write {
        segment: u8,
        row: u8,
        image: Row,
    },
    Release {
        segment: u8,
    },
    /// The segment does not cover the key: the locks are released before it goes on in the next one. [R-GROW-5]
    GoOn {
        segment: u8,
        next: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moving {
    Idle {
        left: u8,
    },
    Lock {
        left: u8,
        segment: u8,
        part: u8,
    },
    Pick {
        left: u8,
        segment: u8,
    },
    /// An entry is in `to` before it leaves `from`: the images of the rows that are still to be written.
    Write {
        left: u8,
        segment: u8,
        to: Option<(u8, Row)>,
        from: (u8, Row),
    },
    Release {
        left: u8,
        segment: u8,
    },
}

impl Split {
    pub fn write(&self, state: &State) -> Vec<State> {
        let mut next = state.clone();
        match state.writer {
            Writing::Idle { done, .. } if usize::from(done) == self.changes.len() => return Vec::new(),
            Writing::Idle { segment, .. } => {
                next.changes.1 += 1;
                let mut begins = self.sent_from(state, segment, A);
                begins.extend([0, segment, self.route(state, A)]);
                let begin = |segment| State { writer: Writing::Lock { segment, part: 0 }, ..next.clone() };
                return begins.into_iter().map(begin).collect();
            }
            Writing::Lock { segment, .. } if !state.has_memory(segment) => next.wrong = Some(Wrong::NoMemory),
            Writing::Lock { segment, part } => {
                let lock = self.lock_of(usize::from(2 * segment + part));
                if state.locks[lock] != 0 {
                    return Vec::new();
                }
                next.locks[lock] = WRITER;
                next.writer = if part == 0 { Writing::Lock { segment, part: 1 } } else { Writing::Decide { segment } };
            }
            Writing::Decide { segment } => match self.decide(state, segment) {
                Ok(writer) => next.writer = writer,
                Err(wrong) => next.wrong = Some(wrong),
            },
            Writing::Write { segment, row, image } => {
                if next.write_half(2 * segment + row, image) {
                    next.writer = Writing::Release { segment };
                }
            }
            Writing::Release { segment } => {
                if !next.release_one(WRITER) {
                    next.changes.0 = next.changes.1;
                    next.writer = Writing::Idle { done: next.changes.1, segment };
                }
            }
            Writing::GoOn { next: segment, .. } => {
                if !next.release_one(WRITER) {
                    next.writer = Writing::Lock { segment, part: 0 };
                }
            }
        }
        vec![next]
    }

    /// Decides from both rows, read under their locks.
    fn decide(&self, state: &State, segment: u8) -> Result<Writing, Wrong> {
        let rows = state.pair(segment);
        if !rows.iter().all(|row| row.verifies()) {
            return Err(Wrong::TornUnderLock);
        }
        if self.without != Without::CheckUnderTheLock
            && let Some(next) = self.next(segment, rows[0].depth(), A)
        {
            return Ok(Writing::GoOn { segment, next });
        }
        let places = || [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter();
        let entry = |(row, index): (usize, usize)| rows[row].entries[index];
        let mut found = places().filter(|place| value_of_a(entry(*place)).is_some());
        let held = found.next();
        if found.next().is_some() {
            return Err(Wrong::TwiceUnderLock);
        }
        let change = self.changes[usize::from(state.changes.1) - 1];
        let free = || places().find(|place| entry(*place) == 0);
        let Some((row, index)) = held.or_else(|| change.and_then(|_| free())) else {
            return Ok(Writing::Release { segment });
        };
        let mut entries = rows[row].entries;
        entries[index] = change.map_or(0, |value| A + value);
        let (version, depth) = rows[row].trailer;
        Ok(Writing::Write { segment, row: row as u8, image: Row::new(entries, (version + 1, depth)) })
    }

    pub fn move_entry(&self, state: &State) -> Vec<State> {
        let mut next = state.clone();
        match state.mover {
            Moving::Idle { left: 0 } => return Vec::new(),
            Moving::Idle { left } => {
                // It moves entries of wherever a lookup of the last position may have led its client.
                let mut begins = self.sent_from(state, 0, A);
                begins.extend([0, self.route(state, A)]);
                let begin = |segment| State { mover: Moving::Lock { left, segment, part: 0 }, ..state.clone() };
                return begins.into_iter().map(begin).collect();
            }
            Moving::Lock { left, segment, part } => {
                let lock = self.lock_of(usize::from(2 * segment + part));
                if state.locks[lock] != 0 {
                    return Vec::new();
                }
                next.locks[lock] = MOVER;
                next.mover = match part {
                    0 => Moving::Lock { left, segment, part: 1 },
                    _ => Moving::Pick { left, segment },
                };
            }
            Moving::Pick { left, segment } => return self.pick(state, left, segment),
            Moving::Write { left, segment, to: Some((row, image)), from } => {
                if next.write_half(2 * segment + row, image) {
                    next.mover = Moving::Write { left, segment, to: None, from };
                }
            }
            Moving::Write { left, segment, to: None, from: (row, image) } => {
                if next.write_half(2 * segment + row, image) {
                    next.mover = Moving::Release { left, segment };
                }
            }
            Moving::Release { left, .. } => {
                if !next.release_one(MOVER) {
                    next.mover = Moving::Idle { left: left - 1 };
                }
            }
        }
        vec![next]
    }

    /// Picks an entry that can move to the other row, if there is one.
    fn pick(&self, state: &State, left: u8, segment: u8) -> Vec<State> {
        let rows = state.pair(segment);
        if !rows.iter().all(|row| row.verifies()) {
            return vec![State { wrong: Some(Wrong::TornUnderLock), ..state.clone() }];
        }
        let mut after = Vec::new();
        for (from, index) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let to = 1 - from;
            let free = rows[to].entries.iter().position(|entry| *entry == 0);
            let entry: Entry = rows[from].entries[index];
            let Some(free) = free.filter(|_| entry != 0) else { continue };
            let changed = |row: usize, index: usize, entry: Entry| {
                let mut entries = rows[row].entries;
                entries[index] = entry;
                let (version, depth) = rows[row].trailer;
                (row as u8, Row::new(entries, (version + 1, depth)))
            };
            let mover =
                Moving::Write { left, segment, to: Some(changed(to, free, entry)), from: changed(from, index, 0) };
            after.push(State { mover, ..state.clone() });
        }
        if after.is_empty() {
            after.push(State { mover: Moving::Release { left, segment }, ..state.clone() });
        }
        after
    }
}

impl State {
    /// Writes a half of a row, the entries before the rest; returns whether it is whole now.
    fn write_half(&mut self, row: u8, image: Row) -> bool {
        let row = &mut self.rows[usize::from(row)];
        if row.entries != image.entries {
            row.entries = image.entries;
            return false;
        }
        *row = image;
        true
    }

    /// Releases a lock of `owner`; returns whether it had one.
    fn release_one(&mut self, owner: u8) -> bool {
        let held = self.locks.iter_mut().find(|lock| **lock == owner);
        held.is_some_and(|lock| {
            *lock = 0;
            true
        })
    }
}
