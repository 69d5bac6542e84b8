//! Stores an input's records with several threads.
//!
//! Invariants: records of one key are stored in the order of the input, because a key's hash decides which thread
//! stores it, so the last one wins. Memory is bounded: a few batches for each thread, of bounded size unless one
//! record is larger. A record that was read is sent to its thread within [`FLUSH_AFTER`], whether more follows or not.

use std::cell::RefCell;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use guira::Client;
use guira::{Put, Store};
use guira_input::{BadRecord, InputError, Record, Records, printable, tsv};
use guira_lab::driver::OperationTally;

use crate::failure::{Failure, Loaded};
use crate::input::InputWatcher;
use crate::interrupt;
use crate::progress::Progress;
use crate::text::Notation;
use crate::units;

/// The operation that fails if the file of `--acknowledge` cannot be written.
const ACKNOWLEDGE: &str = "write the file of --acknowledge";
/// Maximum number of records in a batch: enough to make sending it cheap.
const BATCH_RECORDS: usize = 256;
/// Size in bytes at which a batch is sent.
const BATCH_BYTES: usize = 256 << 10;
/// Batches queued for a thread, beside the one being filled and the one being stored.
const WAITING_BATCHES: usize = 2;
/// Maximum time that a record waits for its batch to fill: records are stored soon when the input pauses, and a slow
/// input makes a few batches a second.
const FLUSH_AFTER: Duration = Duration::from_millis(250);
/// Time between two checks whether the load must end, while the input pauses.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of bad records that are shown.
const BAD_SHOWN: usize = 5;
/// Maximum number of characters of a key that an error shows.
const KEY_CHARS: usize = 60;

/// The handling of records that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecords {
    /// Stop at the first one.
    Stop,
    /// Skip and count them.
    Skip,
}

/// The file of `--acknowledge`, to which stored records are appended.
#[derive(Debug)]
pub struct Acknowledge {
    /// The file.
    pub file: Mutex<File>,
    /// The notation of keys and values.
    pub notation: Notation,
}

impl Acknowledge {
    /// Appends `records`, all of which are stored.
    fn write(&self, records: &[Record]) -> Result<(), Failure> {
        let mut lines = Vec::new();
        for record in records {
            let (key, value) = (self.notation.written(&record.key)?, self.notation.written(&record.value)?);
            tsv::write(&key, &value, &mut lines).map_err(Failure::host(ACKNOWLEDGE))?;
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // In one write, so that a reader of the file sees complete lines, except perhaps the last one.
        file.write_all(&lines).map_err(Failure::host(ACKNOWLEDGE))
    }
}

/// The options of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions<'a> {
    /// Number of threads that store records; at least 1.
    pub threads: usize,
    /// The handling of records that cannot be read.
    pub bad: BadRecords,
    /// The file to which stored records are appended, if any.
    pub acknowledge: Option<&'a Acknowledge>,
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Number of records stored.
    pub records: u64,
    /// Number of records whose key was new.
    pub inserted: u64,
    /// Bytes of all keys and values.
    pub bytes: u64,
    /// Number of records that could not be read.
    pub bad: u64,
    /// The first few of the records that could not be read.
    pub bad_shown: Vec<BadRecord>,
    /// The cost of storing.
    pub tally: OperationTally,
    /// Duration of the load.
    pub elapsed_ns: u64,
}

/// Stores every record. `outbox` is the watcher with which `records` was opened.
pub fn load<R: BufRead>(
    store: &Store,
    records: &mut Records<R>,
    options: LoadOptions<'_>,
    outbox: &RefCell<Outbox>,
) -> Result<LoadReport, Failure> {
    // All clients are opened first: a load that cannot open them stores nothing.
    let clients: Vec<Client> = (0..options.threads.max(1)).map(|_| store.client()).collect::<Result<_, _>>()?;
    interrupt::catch();
    let started = Instant::now();
    let counters = Arc::clone(&outbox.borrow().counters);
    let (read, stored) = thread::scope(|scope| {
        let (mut senders, mut threads) = (Vec::new(), Vec::new());
        for client in clients {
            let (sender, receiver) = sync_channel(WAITING_BATCHES);
            let store = || store_all(client, receiver, &counters, options.acknowledge);
            // The threads end when their senders are closed, also after an error here.
            threads.push(Builder::new().spawn_scoped(scope, store).map_err(Failure::thread("start a thread"))?);
            senders.push(sender);
        }
        outbox.borrow_mut().open(senders);
        let read = read(records, options.bad, outbox);
        outbox.borrow_mut().close();
        let stored: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        Ok::<_, Failure>((read, stored))
    })?;
    let loaded = Loaded(counters.stored.load(Ordering::Relaxed));
    let mut tally = OperationTally::default();
    let (mut refused, mut unwritten): (Option<Refused>, Option<Failure>) = (None, None);
    for thread in stored {
        let stored = thread.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        tally.merge(&stored.tally);
        unwritten = unwritten.or(stored.unwritten);
        refused = match (refused, stored.refused) {
            (Some(one), Some(two)) => Some(if two.line < one.line { two } else { one }),
            (one, two) => one.or(two),
        };
    }
    if let Some(refused) = refused {
        return Err(refused.failure(loaded));
    }
    if let Some(unwritten) = unwritten {
        return Err(Failure::AnswerNotWritten { done: loaded.to_string(), source: Box::new(unwritten) });
    }
    let report = read.map_err(|source| Failure::Input { source, loaded })?;
    if interrupt::requested() {
        return Err(Failure::Interrupted(loaded));
    }
    Ok(LoadReport {
        records: loaded.0,
        inserted: counters.inserted.load(Ordering::Relaxed),
        bytes: counters.bytes.load(Ordering::Relaxed),
        tally,
        elapsed_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        ..report
    })
}

/// Returns the shard of a key among `shards`.
pub fn shard_of(key: &[u8], shards: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (hasher.finish() % shards.max(1) as u64) as usize
}

/// The progress of all threads.
#[derive(Default)]
struct Counters {
    stored: AtomicU64,
    inserted: AtomicU64,
    bytes: AtomicU64,
    /// Whether a thread ended before it had stored all of its batches, which ends the load.
    failed: AtomicBool,
}

/// The result of one thread.
struct Stored {
    tally: OperationTally,
    refused: Option<Refused>,
    /// The error of writing the file of `--acknowledge`, if any.
    unwritten: Option<Failure>,
}

/// A record that the store refused.
struct Refused {
    line: u64,
    key: String,
    source: guira::Error,
}

impl Refused {
    fn failure(self, loaded: Loaded) -> Failure {
        let Refused { line, key, source } = self;
        Failure::Record { line, key, loaded, source: Box::new(source) }
    }
}

/// Stores the batches of one thread. Ends early at the first failure, and reports it in the counters.
fn store_all(
    client: Client,
    batches: Receiver<Vec<Record>>,
    counters: &Counters,
    acknowledge: Option<&Acknowledge>,
) -> Stored {
    let stored = store_batches(client, batches, counters, acknowledge);
    if stored.refused.is_some() || stored.unwritten.is_some() {
        counters.failed.store(true, Ordering::Relaxed);
    }
    stored
}

fn store_batches(
    mut client: Client,
    batches: Receiver<Vec<Record>>,
    counters: &Counters,
    acknowledge: Option<&Acknowledge>,
) -> Stored {
    let mut stored = Stored { tally: OperationTally::default(), refused: None, unwritten: None };
    let mut traffic = client.traffic();
    for batch in &batches {
        for record in &batch {
            let started = Instant::now();
            let put = match client.put(&record.key, &record.value) {
                Ok(put) => put,
                Err(source) => {
                    let key = printable(&record.key, KEY_CHARS);
                    let refused = Refused { line: record.line, key, source };
                    return Stored { refused: Some(refused), ..stored };
                }
            };
            let latency = started.elapsed();
            let now = client.traffic();
            stored.tally.success(&now.since(&traffic), Some(latency));
            traffic = now;
            counters.stored.fetch_add(1, Ordering::Relaxed);
            counters.inserted.fetch_add(u64::from(put == Put::Inserted), Ordering::Relaxed);
            counters.bytes.fetch_add((record.key.len() + record.value.len()) as u64, Ordering::Relaxed);
        }
        if let Err(failure) = acknowledge.map_or(Ok(()), |acknowledge| acknowledge.write(&batch)) {
            return Stored { unwritten: Some(failure), ..stored };
        }
    }
    stored
}

/// Reads every record and sends it to its thread. Ends early, without an error, if a thread has failed, or on Ctrl-C:
/// the records sent before are still stored.
fn read<R: BufRead>(
    records: &mut Records<R>,
    bad: BadRecords,
    outbox: &RefCell<Outbox>,
) -> Result<LoadReport, InputError> {
    let mut report = LoadReport::default();
    let mut ended = Ok(());
    while let Some(read) = records.next() {
        let mut outbox = outbox.borrow_mut();
        if outbox.is_over() {
            return Ok(report);
        }
        match read {
            Ok(record) => outbox.push(record, records.bytes_read()),
            Err(InputError::Bad(record)) if bad == BadRecords::Skip => {
                report.bad += 1;
                if report.bad_shown.len() < BAD_SHOWN {
                    report.bad_shown.push(record);
                }
            }
            Err(error) => {
                ended = Err(error);
                break;
            }
        }
    }
    outbox.borrow_mut().flush();
    ended.map(|()| report)
}

/// The batches of records to be sent to the threads that store them. As the watcher of the input it sends incomplete
/// batches when the input pauses, and can end the load then.
pub struct Outbox {
    senders: Vec<SyncSender<Vec<Record>>>,
    /// The batches being filled, one for each thread.
    batches: Vec<Batch>,
    /// Number of records in `batches`.
    waiting: usize,
    /// The time at which the first of the records in `batches` was added.
    waiting_since: Instant,
    counters: Arc<Counters>,
    progress: Progress,
    /// Number of input bytes read so far.
    bytes_read: u64,
    entries_before: u64,
    slots: Option<u64>,
    started: Instant,
}

/// A batch being filled.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    bytes: usize,
}

impl Outbox {
    /// Creates an outbox without threads, for a table that holds `entries_before` now and has room for `slots` entries,
    /// unless it grows.
    pub fn new(progress: Progress, entries_before: u64, slots: Option<u64>) -> Outbox {
        let now = Instant::now();
        Outbox {
            senders: Vec::new(),
            batches: Vec::new(),
            waiting: 0,
            waiting_since: now,
            counters: Arc::default(),
            progress,
            bytes_read: 0,
            entries_before,
            slots,
            started: now,
        }
    }

    /// Sets the size of the input.
    pub fn set_input_bytes(&mut self, bytes: u64) {
        self.progress.set_total(bytes);
    }

    fn open(&mut self, senders: Vec<SyncSender<Vec<Record>>>) {
        self.batches = senders.iter().map(|_| Batch::default()).collect();
        self.senders = senders;
        self.started = Instant::now();
    }

    /// Closes the senders. Records not yet sent are dropped.
    fn close(&mut self) {
        self.senders.clear();
        self.progress.finish();
    }

    /// Whether the load is to end.
    fn is_over(&self) -> bool {
        interrupt::requested() || self.counters.failed.load(Ordering::Relaxed)
    }

    fn push(&mut self, record: Record, bytes_read: u64) {
        if self.waiting == 0 {
            self.waiting_since = Instant::now();
        }
        self.waiting += 1;
        self.bytes_read = bytes_read;
        let shard = shard_of(&record.key, self.batches.len());
        let batch = &mut self.batches[shard];
        batch.bytes += record.key.len() + record.value.len();
        batch.records.push(record);
        if batch.records.len() == BATCH_RECORDS || batch.bytes >= BATCH_BYTES {
            self.hand_over(shard);
            self.flush_if_due();
            self.show();
        }
    }

    /// Sends the records if they have waited long enough; returns the time until the next check.
    fn flush_if_due(&mut self) -> Duration {
        if self.waiting == 0 {
            return CHECK_INTERVAL;
        }
        let waited = self.waiting_since.elapsed();
        if waited >= FLUSH_AFTER {
            self.flush();
        }
        FLUSH_AFTER.saturating_sub(waited).clamp(Duration::from_millis(1), CHECK_INTERVAL)
    }

    /// Sends all records.
    fn flush(&mut self) {
        (0..self.batches.len()).for_each(|shard| self.hand_over(shard));
    }

    fn hand_over(&mut self, shard: usize) {
        let batch = std::mem::take(&mut self.batches[shard]);
        self.waiting -= batch.records.len();
        // The error of a thread that has ended is returned when it is joined.
        if !batch.records.is_empty() && self.senders[shard].send(batch.records).is_err() {
            self.counters.failed.store(true, Ordering::Relaxed);
        }
    }

    fn show(&mut self) {
        let Outbox { counters, progress, bytes_read, entries_before, slots, started, .. } = self;
        let text = || {
            let stored = counters.stored.load(Ordering::Relaxed);
            let entries = *entries_before + counters.inserted.load(Ordering::Relaxed);
            let elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let fill = match slots {
                Some(slots) => format!("fill {}", units::percent(units::share(entries, *slots))),
                None => format!("{} in the table", units::count(entries)),
            };
            format!(
                "{}, {}, {fill}",
                units::counted(stored, "record"),
                units::rate(units::per_second(stored, elapsed_ns)),
            )
        };
        progress.tick(*bytes_read, text);
    }
}

impl InputWatcher for Outbox {
    fn check(&mut self) -> io::Result<Duration> {
        interrupt::catch();
        let again = self.flush_if_due();
        self.show();
        if self.is_over() { Err(io::Error::other("the load is over")) } else { Ok(again) }
    }
}
