//! The check of a round's histories, and of the checker itself: falsified histories must be refused.

use std::fmt;

use guira::Store;
use guira_check::history::{Answer, Call, History, HistoryError, Operation, Outcome, SEARCH_STEPS};
use guira_fabric::SplitMix64;

use crate::histories::log::{Counts, Records, add, now_ns};
use crate::histories::{KEYS, worker};

/// Most answers that are falsified in each round.
const MAX_FALSIFIED: u64 = 6;
/// Number of the process that reads every key when all others have ended.
const FINAL_READER: u64 = 0;

/// Totals of all rounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Histories that were checked, of one key each.
    pub histories: u64,
    pub answered: u64,
    pub pending: u64,
    pub without_effect: u64,
    pub steps: u64,
    pub counts: Counts,
    pub falsified: u64,
    pub detected: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { histories, answered, pending, without_effect, steps, .. } = self;
        let [recoveries, replays, moves, fenced, lost, unknown] = self.counts;
        write!(
            f,
            "{histories} histories of a key are linearizable: {answered} operations answered, {pending} pending, \
             {without_effect} without effect, {steps} steps; {recoveries} recoveries, {replays} replays, \
             {moves} moves; {fenced} fenced, {lost} without effect because of a lost connection, {unknown} with an \
             unknown effect; {} of {} falsified answers detected",
            self.detected, self.falsified
        )
    }
}

impl Records {
    /// Adds a lookup of every key at the end.
    pub fn add_final_reads(&mut self, store: &Store, longest_value: u64) {
        let mut reader = store.reader();
        for key in 0..KEYS {
            let called_ns = now_ns() - self.began_ns;
            let answer = match reader.get(&worker::key(key)).unwrap() {
                Some(found) => Answer::Found(worker::number(&found, longest_value)),
                None => Answer::Absent,
            };
            let outcome = Outcome::Answered { answer, at_ns: now_ns() - self.began_ns };
            self.operations[key as usize].push(Operation {
                process: FINAL_READER,
                key,
                call: Call::Get,
                called_ns,
                outcome,
            });
        }
    }
}

impl Totals {
    /// Checks that every key's history is linearizable, and that it is not with falsified answers.
    pub fn check(&mut self, records: &Records, round: u64) {
        for operations in &records.operations {
            let history: History = operations.iter().copied().collect();
            let checked = history.check(SEARCH_STEPS).unwrap_or_else(|refusal| panic!("round {round}: {refusal}"));
            self.histories += checked.keys;
            self.answered += checked.answered;
            self.pending += checked.pending;
            self.steps += checked.steps;
            self.without_effect += history.len() as u64 - checked.answered - checked.pending;
        }
        add(&mut self.counts, &records.counts);
        self.falsify(records, &mut SplitMix64(round));
    }

    /// Replaces answers of lookups by an earlier value of the key, one at a time, and counts the detected ones.
    fn falsify(&mut self, records: &Records, rng: &mut SplitMix64) {
        for _ in 0..MAX_FALSIFIED {
            let key = rng.below(KEYS);
            let mut operations = records.operations[key as usize].clone();
            operations.sort_by_key(|operation| operation.called_ns);
            let Some((index, stale)) = stale_read(&operations, rng) else { continue };
            operations[index].outcome = stale;
            self.falsified += 1;
            let refusal = operations.into_iter().collect::<History>().check(SEARCH_STEPS);
            self.detected += u64::from(matches!(refusal, Err(HistoryError::NotLinearizable(_))));
        }
    }
}

/// A lookup that found a value.
struct Lookup {
    index: usize,
    value: u64,
    called_ns: u64,
    at_ns: u64,
}

/// Chooses a lookup, and returns its index and a falsified outcome with an earlier value: a value that was found before
/// another one was found, which was before the lookup was called. No value occurs again, because no two operations
/// write the same one.
fn stale_read(operations: &[Operation], rng: &mut SplitMix64) -> Option<(usize, Outcome)> {
    let lookup = |(index, operation): (usize, &Operation)| match operation.outcome {
        Outcome::Answered { answer: Answer::Found(value), at_ns } => {
            Some(Lookup { index, value, called_ns: operation.called_ns, at_ns })
        }
        _ => None,
    };
    let lookups: Vec<Lookup> = operations.iter().enumerate().filter_map(lookup).collect();
    let falsified = lookups.get(rng.below(lookups.len().max(1) as u64) as usize)?;
    let before = lookups.iter().rev().find(|other| other.at_ns < falsified.called_ns)?;
    let is_stale = |other: &&Lookup| other.at_ns < before.called_ns && other.value != before.value;
    let stale = lookups.iter().rev().find(is_stale)?;
    let outcome = Outcome::Answered { answer: Answer::Found(stale.value), at_ns: falsified.at_ns };
    Some((falsified.index, outcome))
}
