//! `guira copy`: copies a table that may be in use, and verifies the copy.
//!
//! Invariants: the records of one key are compared and stored by one thread, in the order in which scans saw them, so
//! the latest wins. Memory is bounded: a few batches for each thread.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Builder};
use std::time::Instant;

use clap::Args;
use guira::admin::{Stat, Unreadable};
use guira::{Blame, Store, Url};
use guira::{Client, Reader};
use guira_input::printable;
use serde::Serialize;

use super::owner::Owner;
use super::{Verdict, WaitOptions, dump, open, tls};
use crate::advice;
use crate::capacity::{self, ExistingRecords, Keys, Need, Precision, Shortfall, Target};
use crate::failure::{Failure, copied_text};
use crate::interrupt;
use crate::loader::shard_of;
use crate::output::Output;
use crate::progress::Progress;
use crate::units::{bytes, counted, per_second, rate, time};

/// Maximum number of records in a batch.
const BATCH_RECORDS: usize = 256;
/// Size in bytes at which a batch is sent.
const BATCH_BYTES: usize = 256 << 10;
/// Batches queued for a thread, beside the one being filled and the one being stored.
const WAITING_BATCHES: usize = 2;
/// Maximum number of characters of a key that an error shows.
const KEY_CHARS: usize = 60;

/// Copy all records of a table into another table, and verify the copy.
///
/// The target must exist and be empty; its capacity, entry format and fabric may differ. The source may be in use: the
/// command compares the two tables repeatedly until a whole pass finds no difference. Keys that were removed from the
/// source are removed from the copy, and so are keys that others put into the copy, unless --merge is given. If the
/// source keeps changing, the answer after the last pass is how many records differed, and the exit code is 1. A pass
/// may miss a key that an insert moves while it is read: a copy is known to be complete only if the source did not
/// change during the last pass.
///
/// A damaged row, or an entry with a damaged value, is reported on standard error; everything else is copied, and the
/// exit code is 3.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The source table.
    pub from: Url,
    /// The target table.
    pub to: Url,
    /// Threads that store records.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Maximum number of comparing passes after the copying pass.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub passes: u16,
    /// Copy into a table that already has records. Records with the same keys are replaced, all others stay; keys that
    /// are removed from the source during the copy may stay, too.
    #[arg(long)]
    pub merge: bool,
    #[command(flatten)]
    pub wait: WaitOptions,
    #[command(flatten)]
    pub owner: Owner,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

#[derive(Serialize)]
struct Answer {
    from: String,
    to: String,
    /// Number of records that the last pass saw.
    records: u64,
    /// Their size in bytes.
    bytes: u64,
    /// Number of records stored in all passes.
    stored: u64,
    /// Number of keys removed from the copy because they were removed from the source.
    removed: u64,
    /// Number of comparing passes.
    passes: u16,
    /// Number of records that differed in the last pass.
    differences: u64,
    /// Number of source rows that the last pass could not read completely.
    unreadable_rows: u64,
    /// Whether the last pass found no difference and no unreadable row.
    verified: bool,
    elapsed_ns: u64,
    records_per_s: f64,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    interrupt::catch();
    // The named owner is the owner of the target.
    let from = open(&arguments.from, &arguments.wait.options()?.read_only())?;
    let to = arguments.wait.open(&arguments.to)?;
    let before = to.stat()?;
    refuse(arguments, (&from, &to), &before)?;
    let shortfall = warn_if_too_small(arguments, &from.stat()?, &to, &before, output);
    let started = Instant::now();
    let mut copy = Copy::new(arguments, from, to, output)?;
    copy.pass(Pass::Store).map_err(|failure| failure.advised(shortfall))?;
    let mut passes = 0;
    let mut differences = u64::MAX;
    while differences > 0 && passes < arguments.passes {
        differences = copy.pass(Pass::Compare)?;
        if !arguments.merge {
            differences += copy.remove_removed()?;
        }
        passes += 1;
    }
    let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let answer = Answer {
        from: arguments.from.to_string(),
        to: arguments.to.to_string(),
        records: copy.seen.records,
        bytes: copy.seen.bytes,
        stored: copy.stored,
        removed: copy.removed,
        passes,
        differences,
        unreadable_rows: copy.unreadable.len() as u64,
        verified: differences == 0 && copy.unreadable.is_empty(),
        elapsed_ns,
        records_per_s: per_second(copy.stored, elapsed_ns),
    };
    let said = output.answer(&answer, || human(&answer));
    said.map_err(Failure::after(copied_text(answer.stored)))?;
    match answer.unreadable_rows {
        0 if answer.verified => Ok(Verdict::Fine),
        0 => Ok(Verdict::Negative),
        rows => Err(Failure::Unreadable { rows }),
    }
}

/// Refuses a copy of a table into itself, or into one that has records.
fn refuse(arguments: &Arguments, (from, to): (&Store, &Store), before: &Stat) -> Result<(), Failure> {
    let Arguments { from: from_url, to: to_url, merge, .. } = arguments;
    let id = |store: &Store| (store.table().superblock().table, store.table().superblock().incarnation);
    if id(from) == id(to) {
        return Err(Failure::Misuse(format!("{from_url} and {to_url} are the same table; nothing was changed")));
    }
    let entries = before.table.entries;
    if entries > 0 && !merge {
        let records = counted(entries, "record");
        return Err(Failure::Misuse(format!(
            "{to_url} already has {records}: name an empty table, or add to them with --merge; nothing was changed"
        )));
    }
    Ok(())
}

impl Arguments {
    /// Returns the tables that the advice names if the records do not fit.
    pub fn target(&self) -> Target<'_> {
        Target {
            url: &self.to,
            from: Some(&self.from),
            existing: if self.merge { ExistingRecords::Keep } else { ExistingRecords::AlreadyInSource },
        }
    }
}

/// Warns if the records do not fit in the target.
fn warn_if_too_small(
    arguments: &Arguments,
    from: &Stat,
    to: &Store,
    before: &Stat,
    output: &Output,
) -> Option<Shortfall> {
    // Which records another format stores inline is unknown before the copy.
    let extent_bytes = if from.format == before.format { from.table.space.place_bytes } else { 0 };
    let (records, precision) = (from.table.entries, Precision::Exact);
    let need = Need { records, extent_bytes, precision, keys: Keys::Distinct };
    let shortfall =
        capacity::shortfall(&arguments.from.to_string(), need, arguments.target(), to.table().config(), before);
    shortfall.iter().for_each(|shortfall| output.warn(&format!("{}; {}", shortfall.reason, shortfall.remedy)));
    shortfall
}

/// The kind of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Stores every record.
    Store,
    /// Compares every record with the copy, and stores those that differ.
    Compare,
}

/// The records of one pass, counted.
#[derive(Clone, Copy, Default)]
struct Seen {
    records: u64,
    bytes: u64,
}

/// Keys and values.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Records to be sent to a thread.
#[derive(Default)]
struct Batch {
    records: Records,
    bytes: usize,
}

/// A copy in progress.
struct Copy<'a> {
    from: Store,
    to: Store,
    clients: Vec<Client>,
    output: &'a Output,
    /// The records that the last pass saw.
    seen: Seen,
    /// Number of records stored so far.
    stored: u64,
    removed: u64,
    /// Rows that the last pass could not read completely.
    unreadable: HashSet<u64>,
    /// Unreadable rows that have been reported.
    named: HashSet<u64>,
    entries: u64,
}

impl<'a> Copy<'a> {
    fn new(arguments: &Arguments, from: Store, to: Store, output: &'a Output) -> Result<Copy<'a>, Failure> {
        // All clients are opened first: a copy that cannot open them stores nothing.
        let clients = (0..arguments.threads).map(|_| to.client()).collect::<Result<_, _>>()?;
        let entries = from.len_estimate()?.entries;
        let (unreadable, named, seen) = (HashSet::new(), HashSet::new(), Seen::default());
        Ok(Copy { from, to, clients, output, seen, stored: 0, removed: 0, unreadable, named, entries })
    }

    /// Reads the whole source and sends each record to the thread of its key. Returns how many were stored.
    fn pass(&mut self, pass: Pass) -> Result<u64, Failure> {
        let what = if pass == Pass::Store { "copying" } else { "comparing" };
        let mut progress = Progress::new(self.output, what, Some(self.entries));
        let stored = AtomicU64::new(0);
        let (mut seen, started) = (Seen::default(), Instant::now());
        let scanned = thread::scope(|scope| {
            let (mut senders, mut threads) = (Vec::new(), Vec::new());
            for client in &mut self.clients {
                let (sender, receiver) = sync_channel(WAITING_BATCHES);
                let store = || store_all(client, receiver, pass, &stored);
                // The threads end when their senders are closed, also after an error here.
                threads.push(Builder::new().spawn_scoped(scope, store).map_err(Failure::host("start a thread"))?);
                senders.push(sender);
            }
            let mut batches: Vec<Batch> = senders.iter().map(|_| Batch::default()).collect();
            let mut visit = |key: &[u8], value: &[u8]| {
                seen.records += 1;
                seen.bytes += (key.len() + value.len()) as u64;
                let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
                progress.tick(seen.records, || {
                    format!("{}, {}", counted(seen.records, "record"), rate(per_second(seen.records, elapsed_ns)))
                });
                let is_sent = hand_over(&senders, &mut batches, key, value);
                if is_sent && !interrupt::requested() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let (output, unreadable, named) = (self.output, &mut self.unreadable, &mut self.named);
            unreadable.clear();
            let mut name = |row: u64, unread: Unreadable, error: &guira::Error| {
                unreadable.insert(row);
                if (named.len() as u64) < dump::UNREADABLE_SHOWN && named.insert(row) {
                    output.error(&dump::unreadable("copied", row, unread, error));
                }
            };
            let scanned = self.from.scan_past_damage(&mut visit, &mut name);
            for (sender, batch) in senders.into_iter().zip(batches) {
                // The error of a thread that has ended is returned when it is joined.
                let _ = sender.send(batch.records);
            }
            let mut ended = Ok(());
            for thread in threads {
                let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                ended = ended.and(result);
            }
            Ok::<_, Failure>(ended.map(|()| scanned))
        })?;
        progress.finish();
        let stored = stored.into_inner();
        self.stored += stored;
        self.seen = seen;
        match scanned {
            Err(Refused { key, source }) => {
                Err(Failure::Copied { doing: format!("key {key}"), source, copied: self.stored })
            }
            Ok(scanned) => {
                scanned.map_err(|error| self.failed("reading", self.from.url(), error))?;
                self.refuse_interrupt()?;
                Ok(stored)
            }
        }
    }

    fn failed(&self, doing: &str, url: &Url, error: guira::Error) -> Failure {
        Failure::Copied { doing: format!("{doing} {url}"), source: Box::new(error), copied: self.stored }
    }

    /// Removes from the copy the keys that the source no longer has. Returns how many there were.
    fn remove_removed(&mut self) -> Result<u64, Failure> {
        let (mut reader, to) = (self.from.reader(), self.to.clone());
        let (mut found, mut done, mut keys) = (0, 0, Vec::new());
        let mut removed = Ok(());
        let mut progress = Progress::new(self.output, "looking for removed keys", Some(self.entries));
        let scanned = to.scan_with(&mut |key, _| {
            done += 1;
            progress.tick(done, || counted(done, "key"));
            keys.push(key.to_vec());
            if keys.len() == BATCH_RECORDS {
                removed = self.remove_absent(&mut reader, std::mem::take(&mut keys)).map(|gone| found += gone);
            }
            if removed.is_ok() && !interrupt::requested() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        progress.finish();
        removed?;
        scanned.map_err(|error| self.failed("reading", to.url(), error))?;
        self.refuse_interrupt()?;
        Ok(found + self.remove_absent(&mut reader, keys)?)
    }

    /// Removes from the copy those of `keys` that the table of `reader` lacks. Returns how many there were.
    fn remove_absent(&mut self, reader: &mut Reader, keys: Vec<Vec<u8>>) -> Result<u64, Failure> {
        let gone = absent(reader, &keys).map_err(|error| self.failed("reading", self.from.url(), error))?;
        for key in &gone {
            let Some(client) = self.clients.first_mut() else { break };
            let result = client.remove(key);
            self.removed +=
                u64::from(result.map_err(|error| self.failed("removing a key from", self.to.url(), error))?);
        }
        Ok(gone.len() as u64)
    }

    fn refuse_interrupt(&self) -> Result<(), Failure> {
        if !interrupt::requested() {
            return Ok(());
        }
        let source = Failure::CopyInterrupted(self.stored);
        if self.stored == 0 {
            return Err(source);
        }
        let [from, to] = [&self.from, &self.to].map(|store| store.url().to_string());
        let advice = format!("{} continues", advice::guira(&["copy", &from, &to, "--merge"]));
        Err(Failure::Advised { source: Box::new(source), advice })
    }
}

/// Adds a record to the batch of its key's thread, and sends the batch if it is full. Returns `false` if the thread has
/// ended.
fn hand_over(senders: &[SyncSender<Records>], batches: &mut [Batch], key: &[u8], value: &[u8]) -> bool {
    let shard = shard_of(key, batches.len());
    let batch = &mut batches[shard];
    batch.bytes += key.len() + value.len();
    batch.records.push((key.to_vec(), value.to_vec()));
    if batch.records.len() < BATCH_RECORDS && batch.bytes < BATCH_BYTES {
        return true;
    }
    senders[shard].send(std::mem::take(batch).records).is_ok()
}

/// A record that the target refused.
struct Refused {
    key: String,
    source: Box<guira::Error>,
}

impl Refused {
    fn of(key: &[u8]) -> impl FnOnce(guira::Error) -> Refused {
        |source| Refused { key: printable(key, KEY_CHARS), source: Box::new(source) }
    }
}

/// Stores the batches of one thread.
fn store_all(client: &mut Client, batches: Receiver<Records>, pass: Pass, stored: &AtomicU64) -> Result<(), Refused> {
    for batch in &batches {
        let different = match pass {
            Pass::Store => (0..batch.len()).collect(),
            Pass::Compare => different(client, &batch)?,
        };
        for (key, value) in different.into_iter().map(|index| &batch[index]) {
            client.put(key, value).map_err(Refused::of(key))?;
            stored.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Returns the indices of the records in a batch that the copy lacks or has with another value. If a scan saw a key
/// twice, the last record counts.
fn different(client: &mut Client, batch: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<usize>, Refused> {
    let last: HashMap<&[u8], usize> =
        batch.iter().enumerate().map(|(index, (key, _))| (key.as_slice(), index)).collect();
    let keys: Vec<&[u8]> = last.keys().copied().collect();
    let mut different = Vec::new();
    let mut refused = Ok(());
    client.get_many_with(&keys, |index, found| match found {
        Ok(found) if found == Some(batch[last[keys[index]]].1.as_slice()) => {}
        Ok(_) => different.push(last[keys[index]]),
        Err(error) if refused.is_ok() => refused = Err(Refused::of(keys[index])(error)),
        Err(_) => {}
    });
    refused.map(|()| different)
}

/// Returns the keys among `keys` that the table of `reader` lacks. A key that cannot be read may be there; the scan
/// reports it.
fn absent<'k>(reader: &mut Reader, keys: &'k [Vec<u8>]) -> Result<Vec<&'k [u8]>, guira::Error> {
    let mut failed = Ok(());
    let mut absent = Vec::new();
    reader.get_many_with(keys, |index, found| match found {
        Ok(None) => absent.push(keys[index].as_slice()),
        Ok(Some(_)) => {}
        Err(error) if matches!(error.blame(), Blame::Corrupt | Blame::Busy) => {}
        Err(error) => failed = Err(error),
    });
    failed.map(|()| absent)
}

fn human(answer: &Answer) -> String {
    let Answer { from, to, records, differences, passes, .. } = answer;
    let copied = format!(
        "copied {} ({} of keys and values) from {from} to {to}\n{}, {}",
        counted(*records, "record"),
        bytes(answer.bytes),
        time(answer.elapsed_ns),
        rate(answer.records_per_s)
    );
    let verdict = match differences {
        0 if !answer.verified => {
            format!("not verified: {} could not be read", counted(answer.unreadable_rows, "row"))
        }
        0 => "verified: the last pass found no difference".to_owned(),
        n => format!(
            "not verified: {from} kept changing, and pass {passes} of the comparison found {}",
            counted(*n, "difference")
        ),
    };
    format!("{copied}\n{verdict}")
}

#[cfg(test)]
mod tests {
    use guira::CreateOptions;

    use super::*;
    use crate::output::Format;

    /// If the source changes after a pass, the next pass stores the differences and removes the keys that are gone.
    #[test]
    fn a_pass_finds_the_changes_since_the_last_one() {
        let url = |name: &str| format!("shm://guira-copy-{name}-{}", std::process::id()).parse::<Url>().unwrap();
        let [from, to] = ["from", "to"].map(|name| Store::create(url(name), &CreateOptions::new(1_000)).unwrap());
        let mut client = from.client().unwrap();
        let put =
            |client: &mut Client, key: u32, value: &str| client.put(&key.to_le_bytes(), value.as_bytes()).unwrap();
        (0..600).for_each(|key| {
            put(&mut client, key, "old");
        });
        let arguments = Arguments {
            from: url("from"),
            to: url("to"),
            threads: 2,
            passes: 1,
            merge: false,
            wait: WAIT,
            owner: Owner::default(),
            tls: tls::Certificates::default(),
        };
        let output = Output::new(Format::Json);
        let mut copy = Copy::new(&arguments, from, to.clone(), &output).unwrap();
        assert_eq!((copy.pass(Pass::Store).unwrap(), copy.pass(Pass::Compare).unwrap()), (600, 0));
        assert_eq!(copy.remove_removed().unwrap(), 0);
        (0..50).for_each(|key| {
            put(&mut client, key, "new");
        });
        (100..200).for_each(|key: u32| assert!(client.remove(&key.to_le_bytes()).unwrap()));
        put(&mut client, 1_000, "one more");
        assert_eq!((copy.pass(Pass::Compare).unwrap(), copy.remove_removed().unwrap()), (51, 100));
        assert_eq!((copy.pass(Pass::Compare).unwrap(), copy.remove_removed().unwrap()), (0, 0));
        assert_eq!((copy.stored, copy.removed, copy.seen.records), (651, 100, 501));
        let mut reader = to.reader();
        assert_eq!(reader.get(&7_u32.to_le_bytes()).unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!((reader.get(&150_u32.to_le_bytes()).unwrap(), to.len_estimate().unwrap().entries), (None, 501));
        for name in ["from", "to"] {
            Store::destroy(url(name)).unwrap();
        }
    }

    const WAIT: WaitOptions = WaitOptions { deadline: std::time::Duration::from_secs(10) };
}
