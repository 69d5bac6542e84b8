//! Copies of tables that may be in use: [`Store::copy_to`].
//!
//! Invariants: the records of one key are compared and stored by one thread, in the order in which scans saw them, so
//! the latest wins. Memory is bounded: a few batches for each thread.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Builder};

use guira_fabric::FabricError;
use guira_fabric::signals::without_signals;

use crate::admin::{Unreadable, printable};
use crate::{AdminError, Blame, Client, Error, Reader, Store, Url};

/// Maximum number of records in a batch.
const BATCH_RECORDS: usize = 256;
/// Size in bytes at which a batch is sent.
const BATCH_BYTES: usize = 256 << 10;
/// Batches queued for a thread, beside the one being filled and the one being stored.
const WAITING_BATCHES: usize = 2;
/// Maximum number of characters of a key that an error shows.
const KEY_CHARS: usize = 60;
/// Comparing passes after which a copy counts as complete although its source keeps changing: a key that an insert moves
/// while a pass reads the table is missed by that pass, and seen by another one.
const COMPLETE_PASSES: u16 = 2;

/// Options of a copy: [`Store::copy_to`].
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions {
    threads: u16,
    passes: u16,
    existing: Existing,
}

/// The treatment of records that the target has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    /// There must be none before, and those that the source does not have are removed.
    Refused,
    /// They stay, unless the source has their keys.
    Kept,
}

impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions::new()
    }
}

impl CopyOptions {
    /// Options for a copy by one thread into an empty table, with at most 5 comparing passes.
    #[must_use]
    pub fn new() -> CopyOptions {
        CopyOptions { threads: 1, passes: 5, existing: Existing::Refused }
    }

    /// Sets the number of threads that store records, each with a client; 0 counts as 1.
    #[must_use]
    pub fn threads(self, threads: u16) -> CopyOptions {
        CopyOptions { threads: threads.max(1), ..self }
    }

    /// Sets the maximum number of comparing passes; 0 counts as 1. There are at least two while the source changes.
    #[must_use]
    pub fn passes(self, passes: u16) -> CopyOptions {
        CopyOptions { passes: passes.max(1), ..self }
    }

    /// Copies into a table that has records: those with the same keys are replaced, all others stay. Keys that are
    /// removed from the source during the copy may stay, too.
    #[must_use]
    pub fn merge(self) -> CopyOptions {
        CopyOptions { existing: Existing::Kept, ..self }
    }
}

/// An event of a copy, for progress and reports.
#[derive(Debug)]
#[non_exhaustive]
pub enum CopyEvent<'e> {
    /// A record was read.
    Read {
        /// The stage of the copy.
        stage: CopyStage,
        /// Records read in this stage so far.
        records: u64,
    },
    /// A row of the source, or one of its entries, could not be read. Reported once for each row and pass.
    Unreadable {
        /// The row's number.
        row: u64,
        /// The unreadable part.
        part: Unreadable,
        /// The cause.
        error: &'e Error,
    },
}

/// A stage of a copy. The second and third repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyStage {
    /// Every record of the source is stored.
    Copying,
    /// Every record of the source is compared with the copy, and stored and read back if it differs.
    Comparing,
    /// Keys of the copy that the source does not have are removed.
    Removing,
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyReport {
    /// Records that the last pass saw.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Records stored in all passes.
    pub stored: u64,
    /// Keys removed from the copy because the source does not have them any more.
    pub removed: u64,
    /// Comparing passes.
    pub passes: u16,
    /// Records that were different in the last pass, and were stored or removed by it: the source, or the copy, was
    /// changed meanwhile.
    pub changed: u64,
    /// Records that were not in the copy as they had been stored: another client changes it.
    pub overwritten: u64,
    /// Rows of the source that the last pass could not read completely.
    pub unreadable_rows: u64,
}

impl CopyReport {
    /// Whether every record that the last pass read is in the copy as it was read. If [`CopyReport::changed`] is 0, the
    /// tables were equal during that pass; otherwise the source kept changing, and each record is as it was at one
    /// moment of the last pass.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.unreadable_rows == 0 && self.overwritten == 0 && (self.changed == 0 || self.passes >= COMPLETE_PASSES)
    }
}

/// A function called with the events of a copy, which returns whether to go on.
pub type CopyObserver<'o> = dyn FnMut(CopyEvent<'_>) -> ControlFlow<()> + 'o;

impl Store {
    /// Copies all records of this table into `to`, and verifies the copy. Capacity, format and fabric of the two may
    /// differ, and this table may be in use: after the copying pass, each comparing pass reads it again, stores the
    /// records that differ, reads them back, and removes keys that it does not have any more, until a pass finds no
    /// difference. To move to a larger table: copy, stop the writers, copy once more with [`CopyOptions::merge`], and
    /// let the writers use the other table.
    ///
    /// Damaged rows and entries are reported to `observer` and left out. Round trips: those of [`Store::scan`] and of
    /// [`Client::put`] for each record, and 1 for 32 compared records.
    ///
    /// # Errors
    /// `CopyMisuse` if `to` is this table, or has records and `options` do not allow that: nothing was changed. `Copy`
    /// with the cause, of reading or storing, or `CopyStopped` if `observer` stopped it: what was stored stays.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// use guira::admin::CopyOptions;
    /// use guira::{CreateOptions, Store};
    ///
    /// # fn main() -> Result<(), guira::Error> {
    /// let small = Store::create_unnamed(&CreateOptions::new(100))?;
    /// small.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let large = Store::create_unnamed(&CreateOptions::new(1_000))?;
    /// let report = small.copy_to(&large, &CopyOptions::new(), &mut |_| ControlFlow::Continue(()))?;
    /// assert!(report.is_verified() && report.records == 1);
    /// assert!(large.reader().contains(b"cuckoo")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy_to(
        &self,
        to: &Store,
        options: &CopyOptions,
        observer: &mut CopyObserver<'_>,
    ) -> Result<CopyReport, Error> {
        let (from, to) = (self.current()?, to.current()?);
        refuse(&from, &to, options.existing)?;
        // All clients are opened first: a copy that cannot open them stores nothing.
        let clients = (0..options.threads).map(|_| to.client()).collect::<Result<_, _>>()?;
        let report = CopyReport::default();
        let mut copy = Copy { from, to, clients, observer, report, unreadable: HashSet::new() };
        copy.pass(CopyStage::Copying)?;
        loop {
            copy.report.changed = copy.pass(CopyStage::Comparing)?;
            if options.existing == Existing::Refused {
                copy.report.changed += copy.remove_absent()?;
            }
            copy.report.passes += 1;
            if copy.report.changed == 0 || copy.report.passes >= options.passes.max(COMPLETE_PASSES) {
                return Ok(copy.report);
            }
        }
    }
}

/// Refuses a copy of a table into itself, or into one that has records.
fn refuse(from: &Store, to: &Store, existing: Existing) -> Result<(), Error> {
    let misuse = |reason| Err(Error::Admin(AdminError::CopyMisuse { to: to.url().clone(), reason }));
    let id = |store: &Store| (store.table().superblock().table, store.table().superblock().incarnation);
    if id(from) == id(to) {
        return misuse("it is the table that is copied");
    }
    if existing == Existing::Refused && to.scan()?.next().transpose()?.is_some() {
        return misuse("it has records already");
    }
    Ok(())
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
struct Copy<'o, 'f> {
    from: Store,
    to: Store,
    clients: Vec<Client>,
    observer: &'o mut CopyObserver<'f>,
    report: CopyReport,
    /// Rows that the last pass could not read completely.
    unreadable: HashSet<u64>,
}

/// The counts of the threads of one pass.
#[derive(Default)]
struct Counts {
    stored: AtomicU64,
    overwritten: AtomicU64,
}

impl Copy<'_, '_> {
    /// Reads the whole source and sends each record to the thread of its key. Returns how many were stored.
    fn pass(&mut self, stage: CopyStage) -> Result<u64, Error> {
        let Copy { from, clients, observer, report, unreadable, .. } = self;
        let (counts, mut is_stopped) = (Counts::default(), false);
        (report.records, report.bytes) = (0, 0);
        unreadable.clear();
        let ended = thread::scope(|scope| {
            let (mut senders, mut threads) = (Vec::new(), Vec::new());
            for client in clients {
                let (sender, receiver) = sync_channel(WAITING_BATCHES);
                let counts = &counts;
                let store = move || store_all(client, &receiver, stage, counts);
                // The threads end when their senders are closed, also after an error here.
                let builder = Builder::new().name("guira-copy".to_owned());
                match without_signals(|| builder.spawn_scoped(scope, store)) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => return Err(Failed::thread(from.url(), &error)),
                }
                senders.push(sender);
            }
            let mut batches: Vec<Batch> = senders.iter().map(|_| Batch::default()).collect();
            // Both functions of the scan report to it, one after the other.
            let observer = std::cell::RefCell::new(&mut **observer);
            let mut visit = |key: &[u8], value: &[u8]| {
                report.records += 1;
                report.bytes += (key.len() + value.len()) as u64;
                let event = CopyEvent::Read { stage, records: report.records };
                is_stopped |= observer.borrow_mut()(event).is_break();
                let is_sent = hand_over(&senders, &mut batches, key, value);
                if is_sent && !is_stopped { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let mut name = |row: u64, part: Unreadable, error: &Error| {
                unreadable.insert(row);
                let _ = observer.borrow_mut()(CopyEvent::Unreadable { row, part, error });
            };
            let scanned = from.scan_past_damage(&mut visit, &mut name);
            for (sender, batch) in senders.into_iter().zip(batches) {
                // The error of a thread that has ended is returned when it is joined.
                let _ = sender.send(batch.records);
            }
            let mut ended = Ok(());
            for thread in threads {
                let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                ended = ended.and(result);
            }
            ended?;
            scanned.map(drop).map_err(|source| Failed::new(format!("reading {}", from.url()), source))
        });
        let stored = counts.stored.into_inner();
        report.stored += stored;
        report.overwritten = counts.overwritten.into_inner();
        report.unreadable_rows = unreadable.len() as u64;
        ended.map_err(|failed| self.failed(failed))?;
        self.refuse_stop(is_stopped)?;
        Ok(stored)
    }

    /// Removes from the copy the keys that the source does not have. Returns how many there were.
    fn remove_absent(&mut self) -> Result<u64, Error> {
        let (mut reader, to) = (self.from.reader(), self.to.clone());
        let (mut found, mut keys, mut is_stopped, mut records) = (0, Vec::new(), false, 0);
        let mut removed = Ok(());
        let scanned = to.scan_with(&mut |key, _| {
            records += 1;
            is_stopped |= (self.observer)(CopyEvent::Read { stage: CopyStage::Removing, records }).is_break();
            keys.push(key.to_vec());
            if keys.len() == BATCH_RECORDS {
                removed = self.remove(&mut reader, std::mem::take(&mut keys)).map(|gone| found += gone);
            }
            if removed.is_ok() && !is_stopped { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        removed?;
        scanned.map_err(|source| self.failed(Failed::new(format!("reading {}", to.url()), source)))?;
        self.refuse_stop(is_stopped)?;
        Ok(found + self.remove(&mut reader, keys)?)
    }

    /// Removes from the copy those of `keys` that the table of `reader` lacks. Returns how many there were.
    fn remove(&mut self, reader: &mut Reader, keys: Vec<Vec<u8>>) -> Result<u64, Error> {
        let reading = |source| Failed::new(format!("reading {}", self.from.url()), source);
        let gone = absent(reader, &keys).map_err(reading).map_err(|failed| self.failed(failed))?;
        for key in &gone {
            let Some(client) = self.clients.first_mut() else { break };
            match client.remove(key) {
                Ok(was_there) => self.report.removed += u64::from(was_there),
                Err(source) => return Err(self.failed(Failed::of(key)(source))),
            }
        }
        Ok(gone.len() as u64)
    }

    fn refuse_stop(&self, is_stopped: bool) -> Result<(), Error> {
        let (to, copied) = (self.to.url().clone(), self.report.stored);
        if is_stopped { Err(Error::Admin(AdminError::CopyStopped { to, copied })) } else { Ok(()) }
    }

    fn failed(&self, Failed { doing, source }: Failed) -> Error {
        Error::Admin(AdminError::Copy { doing, copied: self.report.stored, source })
    }
}

/// Adds a record to the batch of its key's thread, and sends the batch if it is full. Returns `false` if the thread has
/// ended.
fn hand_over(senders: &[SyncSender<Records>], batches: &mut [Batch], key: &[u8], value: &[u8]) -> bool {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let shard = (hasher.finish() % batches.len() as u64) as usize;
    let batch = &mut batches[shard];
    batch.bytes += key.len() + value.len();
    batch.records.push((key.to_vec(), value.to_vec()));
    if batch.records.len() < BATCH_RECORDS && batch.bytes < BATCH_BYTES {
        return true;
    }
    senders[shard].send(std::mem::take(batch).records).is_ok()
}

/// A failure of one step of a copy.
struct Failed {
    doing: String,
    source: Box<Error>,
}

impl Failed {
    fn new(doing: String, source: Error) -> Failed {
        Failed { doing, source: Box::new(source) }
    }

    fn of(key: &[u8]) -> impl FnOnce(Error) -> Failed {
        |source| Failed::new(format!("key {}", printable_key(key)), source)
    }

    fn thread(url: &Url, error: &std::io::Error) -> Failed {
        let source = FabricError::no_thread(error);
        Failed::new("copying".to_owned(), Error::Fabric { doing: "cannot copy", url: url.clone(), source })
    }
}

/// Returns a key as an error shows it.
fn printable_key(key: &[u8]) -> String {
    let text = printable(&String::from_utf8_lossy(key));
    if text.chars().count() <= KEY_CHARS {
        return format!("{text:?}");
    }
    format!("{:?}…", text.chars().take(KEY_CHARS).collect::<String>())
}

/// Stores the batches of one thread.
fn store_all(
    client: &mut Client,
    batches: &Receiver<Records>,
    stage: CopyStage,
    counts: &Counts,
) -> Result<(), Failed> {
    let mut stored_value = Vec::new();
    for batch in batches {
        let different = match stage {
            CopyStage::Copying => (0..batch.len()).collect(),
            _ => different(client, &batch)?,
        };
        for (key, value) in different.into_iter().map(|index| &batch[index]) {
            client.put(key, value).map_err(Failed::of(key))?;
            counts.stored.fetch_add(1, Ordering::Relaxed);
            if stage == CopyStage::Comparing {
                let found = client.get_into(key, &mut stored_value).map_err(Failed::of(key))?;
                counts.overwritten.fetch_add(u64::from(!found || stored_value != *value), Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Returns the indices of the records in a batch that the copy lacks or has with another value. If a scan saw a key
/// twice, the last record counts.
fn different(client: &mut Client, batch: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<usize>, Failed> {
    let last: HashMap<&[u8], usize> =
        batch.iter().enumerate().map(|(index, (key, _))| (key.as_slice(), index)).collect();
    let keys: Vec<&[u8]> = last.keys().copied().collect();
    let mut different = Vec::new();
    let mut refused = Ok(());
    client.get_many_with(&keys, |index, found| match found {
        Ok(found) if found == Some(batch[last[keys[index]]].1.as_slice()) => {}
        Ok(_) => different.push(last[keys[index]]),
        Err(error) if refused.is_ok() => refused = Err(Failed::of(keys[index])(error)),
        Err(_) => {}
    });
    refused.map(|()| different)
}

/// Returns the keys among `keys` that the table of `reader` lacks. A key that cannot be read may be there; the scan
/// reports it.
fn absent<'k>(reader: &mut Reader, keys: &'k [Vec<u8>]) -> Result<Vec<&'k [u8]>, Error> {
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
