//! What the histories of a round say, and whether they could say anything else.

use std::fmt;

use guira::Store;
use guira_check::history::{Answer, Call, History, HistoryError, Operation, Outcome, SEARCH_STEPS};
use guira_fabric::SplitMix64;

use crate::histories::log::{Counts, Told, add, now_ns};
use crate::histories::{KEYS, worker};

/// Answers that are falsified in each round, at most.
const FALSEHOODS: u64 = 6;
/// The process that reads every key when all others have ended.
const LAST_READER: u64 = 0;

/// Of all rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Of one key each.
    pub histories: u64,
    pub answered: u64,
    pub pending: u64,
    pub without_effect: u64,
    pub steps: u64,
    pub counts: Counts,
    pub falsehoods: u64,
    pub found_falsehoods: u64,
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sums { histories, answered, pending, without_effect, steps, .. } = self;
        let [recoveries, replays, moves, fenced, lost, unknown] = self.counts;
        write!(
            f,
            "{histories} histories of a key are linearizable: {answered} operations answered, {pending} pending, \
             {without_effect} without effect, {steps} steps; {recoveries} recoveries, {replays} replays, \
             {moves} moves; {fenced} told that they were fenced, {lost} of a lost connection, {unknown} of one and an \
             unknown effect; {} of {} falsified answers found",
            self.found_falsehoods, self.falsehoods
        )
    }
}

impl Told {
    /// Adds what every key is in the end.
    pub fn last_reads(&mut self, store: &Store, longest_value: u64) {
        let mut reader = store.reader();
        for key in 0..KEYS {
            let called_ns = now_ns() - self.began_ns;
            let answer = match reader.get(&worker::key(key)).unwrap() {
                Some(found) => Answer::Found(worker::number(&found, longest_value)),
                None => Answer::Absent,
            };
            let outcome = Outcome::Answered { answer, at_ns: now_ns() - self.began_ns };
            self.operations[key as usize].push(Operation {
                process: LAST_READER,
                key,
                call: Call::Get,
                called_ns,
                outcome,
            });
        }
    }
}

impl Sums {
    /// Every key's history is linearizable, and would not be with another answer.
    pub fn judge(&mut self, told: &Told, round: u64) {
        for operations in &told.operations {
            let history: History = operations.iter().copied().collect();
            let checked = history.check(SEARCH_STEPS).unwrap_or_else(|refusal| panic!("round {round}: {refusal}"));
            self.histories += checked.keys;
            self.answered += checked.answered;
            self.pending += checked.pending;
            self.steps += checked.steps;
            self.without_effect += history.len() as u64 - checked.answered - checked.pending;
        }
        add(&mut self.counts, &told.counts);
        self.falsify(told, &mut SplitMix64(round));
    }

    /// Replaces answers of lookups by what the key was earlier, one at a time.
    fn falsify(&mut self, told: &Told, rng: &mut SplitMix64) {
        for _ in 0..FALSEHOODS {
            let key = rng.below(KEYS);
            let mut operations = told.operations[key as usize].clone();
            operations.sort_by_key(|operation| operation.called_ns);
            let Some((place, stale)) = stale_read(&operations, rng) else { continue };
            operations[place].outcome = stale;
            self.falsehoods += 1;
            let refusal = operations.into_iter().collect::<History>().check(SEARCH_STEPS);
            self.found_falsehoods += u64::from(matches!(refusal, Err(HistoryError::NotLinearizable(_))));
        }
    }
}

/// A lookup that found something.
struct Lookup {
    place: usize,
    value: u64,
    called_ns: u64,
    at_ns: u64,
}

/// A lookup, and how it would have ended with the value before the last one: one that was seen, whereupon another was
/// seen, whereupon the lookup was called. No value comes back, because no two operations write the same.
fn stale_read(operations: &[Operation], rng: &mut SplitMix64) -> Option<(usize, Outcome)> {
    let lookup = |(place, operation): (usize, &Operation)| match operation.outcome {
        Outcome::Answered { answer: Answer::Found(value), at_ns } => {
            Some(Lookup { place, value, called_ns: operation.called_ns, at_ns })
        }
        _ => None,
    };
    let lookups: Vec<Lookup> = operations.iter().enumerate().filter_map(lookup).collect();
    let falsified = lookups.get(rng.below(lookups.len().max(1) as u64) as usize)?;
    let before = lookups.iter().rev().find(|other| other.at_ns < falsified.called_ns)?;
    let is_stale = |other: &&Lookup| other.at_ns < before.called_ns && other.value != before.value;
    let stale = lookups.iter().rev().find(is_stale)?;
    let outcome = Outcome::Answered { answer: Answer::Found(stale.value), at_ns: falsified.at_ns };
    Some((falsified.place, outcome))
}
