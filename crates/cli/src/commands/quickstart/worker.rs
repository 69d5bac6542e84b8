//! A worker process of a quickstart: stores, compares or changes records.

use std::collections::HashSet;
use std::io::{self, BufRead};
use std::time::Instant;

use clap::ValueEnum;
use guira::{OpenOptions, Put, Store};
use guira_input::printable;
use guira_lab::driver::OperationTally;
use serde::{Deserialize, Serialize};

use super::changes::{self, Changes};
use super::{WorkerArguments, frames};
use crate::commands::Verdict;
use crate::failure::Failure;
use crate::workers::{next_order, reply};

/// Maximum number of keys that differ but may be overwritten later in the input. More than that is an error in any
/// case.
const WRONG_MAX: usize = 1_000_000;
/// Maximum number of wrong keys that are shown.
const WRONG_SHOWN: usize = 5;
/// Maximum number of characters of a key that is shown.
const KEY_CHARS: usize = 60;

/// The task of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Task {
    /// Store the records on standard input. Answers [`Stored`].
    Store,
    /// Compare the table with the records on standard input. Answers [`Compared`].
    Compare,
    /// Report readiness; on a line of input, change the table. Answers `()`, then [`Changes`].
    Change,
}

/// The records that a process stored.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Stored {
    /// Records.
    pub records: u64,
    /// Number of records whose key was new.
    pub inserted: u64,
    /// The cost of storing.
    pub tally: OperationTally,
}

/// The result of a comparison.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Compared {
    /// Records.
    pub records: u64,
    /// Number of keys for which the table does not hold the last record of the input.
    pub wrong: u64,
    /// Some of them.
    pub wrong_shown: Vec<String>,
    /// The cost of reading.
    pub tally: OperationTally,
}

/// Carries out the command.
pub fn run(arguments: &WorkerArguments) -> Result<Verdict, Failure> {
    let mut input = io::stdin().lock();
    match arguments.task {
        Task::Store => reply(store(arguments, &mut input))?,
        Task::Compare => reply(compare(arguments, &mut input))?,
        Task::Change => change(arguments, &mut input)?,
    }
    Ok(Verdict::Fine)
}

fn store(arguments: &WorkerArguments, input: &mut impl BufRead) -> Result<Stored, Failure> {
    let mut client = Store::open(&arguments.url)?.client()?;
    let (mut stored, mut traffic) = (Stored::default(), client.traffic());
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while receive(input, &mut key, &mut value)? {
        let started = Instant::now();
        let put = client.put(&key, &value)?;
        let latency = started.elapsed();
        let now = client.traffic();
        stored.tally.success(&now.since(&traffic), Some(latency));
        traffic = now;
        stored.records += 1;
        stored.inserted += u64::from(put == Put::Inserted);
    }
    Ok(stored)
}

fn compare(arguments: &WorkerArguments, input: &mut impl BufRead) -> Result<Compared, Failure> {
    let mut reader = Store::open_with(&arguments.url, &OpenOptions::default().read_only())?.reader();
    let (mut compared, mut traffic) = (Compared::default(), reader.traffic());
    let (mut key, mut value, mut held) = (Vec::new(), Vec::new(), Vec::new());
    // A key that occurs again in the input has its last value in the table: only the last comparison counts.
    let mut wrong: HashSet<Vec<u8>> = HashSet::new();
    while receive(input, &mut key, &mut value)? {
        let started = Instant::now();
        let found = reader.get_into(&key, &mut held)?;
        let latency = started.elapsed();
        let now = reader.traffic();
        compared.tally.success(&now.since(&traffic), Some(latency));
        traffic = now;
        compared.records += 1;
        if found && held == value {
            wrong.remove(&key);
        } else if wrong.len() < WRONG_MAX {
            wrong.insert(key.clone());
        } else {
            compared.wrong += u64::from(!wrong.contains(&key));
        }
    }
    compared.wrong += wrong.len() as u64;
    compared.wrong_shown = wrong.iter().take(WRONG_SHOWN).map(|key| printable(key, KEY_CHARS)).collect();
    Ok(compared)
}

fn receive(input: &mut impl BufRead, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool, Failure> {
    frames::read(input, key, value).map_err(Failure::host("receive a record"))
}

fn change(arguments: &WorkerArguments, input: &mut impl BufRead) -> Result<(), Failure> {
    let mut client = match Store::open(&arguments.url).and_then(|store| store.client()) {
        Ok(client) => client,
        Err(error) => return reply::<()>(Err(error.into())),
    };
    reply(Ok(()))?;
    if next_order::<()>(input)?.is_none() {
        return Ok(());
    }
    let changes: Result<Changes, guira::Error> = changes::carry_out(&mut client, arguments.index, arguments.rounds);
    reply(changes.map_err(Failure::from))
}
