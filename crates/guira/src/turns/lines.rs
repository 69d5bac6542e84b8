//! Who waits for which locks, in the order of coming. Nothing here waits or wakes: the caller does.
//!
//! Invariants: who joins stands behind all those who want one of its locks, in all its lines at once, so there is no
//! circle of those who wait. Who is the first in all its lines has the turn. Who was answered stands in no line.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;

use guira_rcuckoo::Outcome;

use super::overwrite::{Overwrite, Overwritten};

/// Lines that are kept for those who come next, once they are empty.
const MOST_SPARE: usize = 1_024;
/// Bytes of a key that a ticket keeps room for.
const KEPT_KEY_BYTES: usize = 256;

/// What somebody wants to change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'k> {
    pub(crate) key: &'k [u8],
    /// The locks that guard its rows; the same one twice, if one guards both.
    pub(crate) locks: [u64; 2],
    /// How it overwrites the key's value, if it does.
    pub(crate) overwrite: Option<Overwrite>,
}

/// Each of a key's locks, once.
fn each(locks: [u64; 2]) -> impl Iterator<Item = u64> {
    let [first, second] = locks;
    std::iter::once(first).chain((first != second).then_some(second))
}

/// Where somebody is found among the tickets.
pub(super) type Number = u32;

/// The lines of one table.
#[derive(Debug, Default)]
pub(super) struct Lines {
    by_lock: HashMap<u64, Line, BuildHasherDefault<Mixed>>,
    tickets: Vec<Ticket>,
    free: Vec<Number>,
    spare: Vec<Line>,
}

/// Those who want a lock; the first of them goes ahead, once it is the first in its other line, too.
#[derive(Debug, Default)]
struct Line {
    queue: VecDeque<Number>,
    /// How many turns have ended in it.
    turns: u64,
}

/// Somebody who came to the lines.
#[derive(Debug, Default)]
struct Ticket {
    locks: [u64; 2],
    overwrite: Option<Overwrite>,
    /// Its key, if it overwrites it and has to wait: two keys can have one digest, but nobody's change answers that of
    /// another key.
    key: Vec<u8>,
    is_in_line: bool,
    /// In how many lines somebody stands before it.
    behind: u32,
    /// Whose change answers it, if it answers anybody.
    answered_by: Option<Number>,
    answer: Option<Outcome>,
    waker: Option<Waker>,
}

/// How it stands with somebody in the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has the turn.
    Turn,
    Answered(Outcome),
    /// Behind others; so many turns have ended in its lines.
    Behind {
        turns: u64,
    },
    /// The lines are those of the process that this one was forked from.
    Foreign,
}

impl Lines {
    /// Joins the lines of its locks.
    pub(super) fn join(&mut self, wish: Wish<'_>) -> Number {
        let number = self.free.pop().unwrap_or_else(|| {
            self.tickets.push(Ticket::default());
            self.tickets.len() as Number - 1
        });
        let mut behind = 0;
        for lock in each(wish.locks) {
            let line = match self.by_lock.entry(lock) {
                Entry::Occupied(line) => line.into_mut(),
                Entry::Vacant(vacant) => vacant.insert(self.spare.pop().unwrap_or_default()),
            };
            behind += u32::from(!line.queue.is_empty());
            line.queue.push_back(number);
        }
        let ticket = &mut self.tickets[number as usize];
        let mut key = std::mem::take(&mut ticket.key);
        let Wish { locks, overwrite, .. } = wish;
        if behind > 0 && overwrite.is_some() {
            key.extend_from_slice(wish.key);
        }
        *ticket = Ticket { locks, overwrite, key, is_in_line: true, behind, ..Ticket::default() };
        number
    }

    /// How it stands with `number`. While it is behind others, keeps `waker` to be told when that changes, and gives
    /// back the one that it kept before.
    pub(super) fn look(&mut self, number: Number, waker: &mut Option<Waker>) -> Standing {
        let standing = self.standing(number);
        if let Standing::Behind { .. } = standing {
            std::mem::swap(&mut self.tickets[number as usize].waker, waker);
        }
        standing
    }

    fn standing(&self, number: Number) -> Standing {
        let ticket = &self.tickets[number as usize];
        match (ticket.answer, ticket.behind) {
            (Some(outcome), _) => Standing::Answered(outcome),
            (None, 0) => Standing::Turn,
            (None, _) => {
                let lines = each(ticket.locks).filter_map(|lock| self.by_lock.get(&lock));
                Standing::Behind { turns: lines.map(|line| line.turns).sum() }
            }
        }
    }

    /// How it stands with `number`, which waits no longer: if it is still behind others, it is in no line any more, and
    /// nobody answers it.
    pub(super) fn give_up(&mut self, number: Number, wakers: &mut Vec<Waker>) -> Standing {
        let standing = self.standing(number);
        if matches!(standing, Standing::Behind { .. }) {
            self.step_out(number, wakers);
        }
        standing
    }

    /// The change of `number`, whose turn it is, begins: whoever is in the lines of its key now, and overwrites it, can
    /// be answered by it.
    pub(super) fn begin(&mut self, number: Number) {
        let ticket = &self.tickets[number as usize];
        let (Some(line), Some(_)) = (self.by_lock.get(&ticket.locks[0]), ticket.overwrite) else { return };
        let key = std::mem::take(&mut self.tickets[number as usize].key);
        for other in line.queue.iter().filter(|other| **other != number) {
            let other = &mut self.tickets[*other as usize];
            if other.overwrite.is_some() && other.key == key {
                other.answered_by = Some(number);
            }
        }
        self.tickets[number as usize].key = key;
    }

    /// The change of `number` overwrote the key's value with this outcome: answers those who stood behind it when it
    /// began, and adds what is to be woken to `wakers`. How it is answered itself, as the last of them.
    pub(super) fn answer(&mut self, number: Number, outcome: Outcome, wakers: &mut Vec<Waker>) -> Outcome {
        let mut overwritten = Overwritten::by(outcome);
        for lock in each(self.tickets[number as usize].locks) {
            let Some(line) = self.by_lock.get_mut(&lock) else { continue };
            line.queue.retain(|other| {
                let ticket = &mut self.tickets[*other as usize];
                if ticket.answer.is_none() && ticket.answered_by == Some(number) && *other != number {
                    // Those of one key stand in the same lines, in the same order.
                    ticket.answer = ticket.overwrite.and_then(|change| overwritten.answer(change));
                    ticket.is_in_line = ticket.answer.is_none();
                    wakers.extend(ticket.answer.and_then(|_| ticket.waker.take()));
                }
                ticket.is_in_line
            });
        }
        overwritten.last()
    }

    /// `number` leaves its lines, if it is in them, and its ticket is free. What is to be woken, because it has the
    /// turn now, is added to `wakers`, and so is its own waker.
    pub(super) fn leave(&mut self, number: Number, wakers: &mut Vec<Waker>) {
        if self.tickets[number as usize].is_in_line {
            self.step_out(number, wakers);
        }
        let ticket = &mut self.tickets[number as usize];
        ticket.key.clear();
        ticket.key.shrink_to(KEPT_KEY_BYTES);
        self.free.push(number);
    }

    fn step_out(&mut self, number: Number, wakers: &mut Vec<Waker>) {
        let ticket = &mut self.tickets[number as usize];
        ticket.is_in_line = false;
        // It is not dropped here: what that sets off is not known.
        wakers.extend(ticket.waker.take());
        let had_turn = ticket.behind == 0;
        for lock in each(ticket.locks) {
            let Entry::Occupied(mut line) = self.by_lock.entry(lock) else { continue };
            let Line { queue, turns } = line.get_mut();
            *turns += u64::from(had_turn);
            let was_first = queue.front() == Some(&number);
            if was_first {
                queue.pop_front();
            } else {
                queue.retain(|other| *other != number);
            }
            match queue.front() {
                Some(next) if was_first => {
                    let next = &mut self.tickets[*next as usize];
                    next.behind -= 1;
                    wakers.extend(if next.behind == 0 { next.waker.take() } else { None });
                }
                Some(_) => {}
                None => {
                    let line = line.remove();
                    if self.spare.len() < MOST_SPARE {
                        self.spare.push(Line { turns: 0, ..line });
                    }
                }
            }
        }
    }

    /// Whether nobody is in any line.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_lock.is_empty() && self.free.len() == self.tickets.len()
    }
}

/// Numbers of locks, which may follow each other.
#[derive(Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // The odd number next to 2^64 divided by the golden ratio.
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}
