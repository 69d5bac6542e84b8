//! The concurrent changes of the quickstart processes, and the verification of the result.
//!
//! Each process increments its own counters, writes values to keys that all processes share, and inserts and removes
//! keys. Afterwards, whatever the order of events: every counter holds the number of its increments, every shared key
//! holds the last value that one of the processes wrote to it, and no removed key is left.

use std::time::Instant;

use guira::Client;
use guira_lab::driver::OperationTally;
use serde::{Deserialize, Serialize};

/// Number of counters of each process.
pub const COUNTERS: u32 = 8;
/// Number of keys that all processes write to.
pub const SHARED_KEYS: u32 = 16;
/// One round in this many inserts a key and removes it again.
const SCRATCH_EVERY: u32 = 8;
/// Bytes of a shared value: too long for a row, so that extent space is freed and reused all the time.
const SHARED_VALUE_BYTES: usize = 200;

/// The changes that one process made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Changes {
    /// Number of increments of each counter.
    pub increments: Vec<u32>,
    /// The round in which the process last wrote each shared key.
    pub last_rounds: Vec<Option<u32>>,
    /// The first few violated expectations.
    pub wrong: Vec<String>,
    /// The cost of reading and writing.
    pub tally: OperationTally,
}

/// Returns the key of a process's counter.
pub fn counter_key(process: u32, counter: u32) -> String {
    format!("guira-quickstart/counter/{process}/{counter}")
}

/// Returns the key of a shared value.
pub fn shared_key(number: u32) -> String {
    format!("guira-quickstart/shared/{number}")
}

/// Returns the key that a process inserts and removes in a round.
pub fn scratch_key(process: u32, round: u32) -> String {
    format!("guira-quickstart/scratch/{process}/{round}")
}

/// Returns the value that a process writes to a shared key in a round.
pub fn shared_value(process: u32, round: u32) -> String {
    let head = format!("written by process {process} in round {round} ");
    let filler = ["cuckoo ", "guira "][(process + round) as usize % 2];
    head.chars().chain(filler.chars().cycle()).take(SHARED_VALUE_BYTES).collect()
}

/// Returns the shared key of a round.
fn shared_of(process: u32, round: u32) -> u32 {
    (process * 5 + round * 7) % SHARED_KEYS
}

/// Carries out the changes of a process.
pub fn carry_out(client: &mut Client, process: u32, rounds: u32) -> Result<Changes, guira::Error> {
    let mut work = Work {
        client,
        process,
        changes: Changes {
            increments: vec![0; COUNTERS as usize],
            last_rounds: vec![None; SHARED_KEYS as usize],
            ..Changes::default()
        },
    };
    for round in 0..rounds {
        work.timed(|work| work.increment(round % COUNTERS))?;
        work.timed(|work| work.write_shared(round))?;
        if round % SCRATCH_EVERY == 0 {
            work.timed(|work| work.insert_and_remove(round))?;
        }
    }
    Ok(work.changes)
}

struct Work<'c> {
    client: &'c mut Client,
    process: u32,
    changes: Changes,
}

impl Work<'_> {
    fn timed(&mut self, change: impl FnOnce(&mut Self) -> Result<(), guira::Error>) -> Result<(), guira::Error> {
        let (traffic, started) = (self.client.traffic(), Instant::now());
        change(self)?;
        let latency = started.elapsed();
        self.changes.tally.success(&self.client.traffic().since(&traffic), Some(latency));
        Ok(())
    }

    fn expect(&mut self, holds: bool, text: impl FnOnce() -> String) {
        const WRONG_MAX: usize = 5;
        if !holds && self.changes.wrong.len() < WRONG_MAX {
            self.changes.wrong.push(text());
        }
    }

    fn increment(&mut self, counter: u32) -> Result<(), guira::Error> {
        let key = counter_key(self.process, counter);
        let held = self.client.get(key.as_bytes())?;
        let count = held.as_deref().and_then(count_of);
        let expected = self.changes.increments[counter as usize];
        self.expect(count == Some(expected), || format!("{key} held {count:?} instead of {expected}"));
        let next = expected + 1;
        let updated = self.client.update(key.as_bytes(), next.to_string().as_bytes())?;
        self.expect(updated, || format!("{key} was missing when it was updated"));
        self.changes.increments[counter as usize] = next;
        Ok(())
    }

    fn write_shared(&mut self, round: u32) -> Result<(), guira::Error> {
        let number = shared_of(self.process, round);
        let key = shared_key(number);
        self.client.put(key.as_bytes(), shared_value(self.process, round).as_bytes())?;
        self.changes.last_rounds[number as usize] = Some(round);
        Ok(())
    }

    fn insert_and_remove(&mut self, round: u32) -> Result<(), guira::Error> {
        let key = scratch_key(self.process, round);
        let inserted = self.client.try_insert(key.as_bytes(), b"not for long")?;
        self.expect(inserted, || format!("{key} existed before it was inserted"));
        let removed = self.client.remove(key.as_bytes())?;
        self.expect(removed, || format!("{key} was missing when it was removed"));
        Ok(())
    }
}

fn count_of(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Checks every key afterwards, and returns a description of each wrong one.
pub fn verify(
    changes: &[Changes],
    mut get: impl FnMut(&str) -> Result<Option<Vec<u8>>, guira::Error>,
) -> Result<Vec<String>, guira::Error> {
    let mut wrong: Vec<String> = changes.iter().flat_map(|changes| changes.wrong.clone()).collect();
    for (process, changes) in (0..).zip(changes) {
        for (counter, increments) in (0..).zip(&changes.increments) {
            let key = counter_key(process, counter);
            let held = get(&key)?.as_deref().and_then(count_of);
            if held != Some(*increments) {
                wrong.push(format!("{key} holds {held:?} after {increments} increments"));
            }
        }
        let rounds: u32 = changes.increments.iter().sum();
        for round in (0..rounds).step_by(SCRATCH_EVERY as usize) {
            let key = scratch_key(process, round);
            if get(&key)?.is_some() {
                wrong.push(format!("{key} exists after it was removed"));
            }
        }
    }
    for number in 0..SHARED_KEYS {
        let key = shared_key(number);
        let last = |(process, changes): (u32, &Changes)| {
            changes.last_rounds[number as usize].map(|round| shared_value(process, round).into_bytes())
        };
        let allowed: Vec<Vec<u8>> = (0..).zip(changes).filter_map(last).collect();
        let held = get(&key)?;
        let is_allowed = held.as_ref().map_or(allowed.is_empty(), |held| allowed.contains(held));
        if !is_allowed {
            wrong.push(format!("{key} holds a value that no process wrote last"));
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sound() -> (Vec<Changes>, BTreeMap<String, Vec<u8>>) {
        let mut table = BTreeMap::new();
        let changes: Vec<Changes> = (0..2)
            .map(|process| {
                let increments: Vec<u32> = (0..COUNTERS).map(|counter| 10 + counter).collect();
                for (counter, count) in (0..).zip(&increments) {
                    table.insert(counter_key(process, counter), count.to_string().into_bytes());
                }
                Changes { increments, last_rounds: vec![Some(90); SHARED_KEYS as usize], ..Changes::default() }
            })
            .collect();
        for number in 0..SHARED_KEYS {
            table.insert(shared_key(number), shared_value(number % 2, 90).into_bytes());
        }
        (changes, table)
    }

    fn wrong(changes: &[Changes], table: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
        verify(changes, |key| Ok(table.get(key).cloned())).unwrap()
    }

    #[test]
    fn correct_results_are_accepted() {
        let (changes, table) = sound();
        assert_eq!(wrong(&changes, &table), [""; 0]);
    }

    #[test]
    fn every_kind_of_loss_is_noticed() {
        let (changes, table) = sound();
        let noticed = |key: String, value: Option<&str>| {
            let mut table = table.clone();
            match value {
                Some(value) => table.insert(key.clone(), value.as_bytes().to_vec()),
                None => table.remove(&key),
            };
            let wrong = wrong(&changes, &table);
            assert!(wrong.len() == 1 && wrong[0].starts_with(&key), "{wrong:?}");
        };
        noticed(counter_key(1, 3), Some("12"));
        noticed(counter_key(0, 0), None);
        noticed(shared_key(3), Some(&shared_value(1, 89)));
        noticed(shared_key(3), None);
        noticed(scratch_key(1, 8), Some("not for long"));
        let mut reported = changes.clone();
        reported[0].wrong.push("a worker's report".to_owned());
        assert_eq!(wrong(&reported, &table), ["a worker's report"]);
    }

    #[test]
    fn shared_values_are_long_and_different() {
        assert_eq!(shared_value(3, 12_345).len(), SHARED_VALUE_BYTES);
        assert_ne!(shared_value(1, 2), shared_value(2, 1));
        let written: std::collections::BTreeSet<u32> = (0..SHARED_KEYS).map(|round| shared_of(1, round)).collect();
        assert_eq!(written.len(), SHARED_KEYS as usize, "every shared key is written");
    }
}
