//! Stores an input's records with several threads.
//!
//! Invariants: records of one key are stored in the order of the input, because a key's hash decides which thread
//! stores it, so the last one wins. Memory is bounded: a few batches for each thread, of bounded size unless one
//! record is larger. A record that was read is handed over within [`FLUSH_AFTER`], whether more follows or not.

use std::cell::RefCell;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
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

/// What fails when what is stored cannot be written down.
const ACKNOWLEDGE: &str = "write down what is stored";
/// Records of one batch, at most: enough to make handing them over cheap.
const BATCH_RECORDS: usize = 256;
/// Bytes of one batch, after which it is handed over.
const BATCH_BYTES: usize = 256 << 10;
/// Batches that wait for a thread: one being filled, one being stored, two in between.
const WAITING_BATCHES: usize = 2;
/// How long a record waits for others to make a batch with: an input that pauses is stored meanwhile, and one that
/// trickles makes a few batches a second.
const FLUSH_AFTER: Duration = Duration::from_millis(250);
/// Between two checks, while the input has nothing to read, of what may end the load.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Bad records that are shown.
const BAD_SHOWN: usize = 5;
/// Characters of a key that an error shows.
const KEY_CHARS: usize = 60;

/// What to do with records that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRecords {
    /// Stop at the first.
    Stop,
    /// Count them and go on.
    Skip,
}

/// Where to write down what is stored.
#[derive(Debug)]
pub struct Acknowledge {
    /// The file.
    pub file: Mutex<File>,
    /// How keys and values are written.
    pub notation: Notation,
}

impl Acknowledge {
    /// Writes down `records`, all of which are stored.
    fn write(&self, records: &[Record]) -> Result<(), Failure> {
        let mut lines = Vec::new();
        for record in records {
            let (key, value) = (self.notation.written(&record.key)?, self.notation.written(&record.value)?);
            tsv::write(&key, &value, &mut lines).map_err(Failure::host(ACKNOWLEDGE))?;
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // At once, so that whoever reads the file sees whole lines, but for the last.
        file.write_all(&lines).map_err(Failure::host(ACKNOWLEDGE))
    }
}

/// How to load.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions<'a> {
    /// Threads that store; at least 1.
    pub threads: usize,
    /// What to do with records that cannot be read.
    pub bad: BadRecords,
    /// Where to write down what is stored, if anywhere.
    pub acknowledge: Option<&'a Acknowledge>,
}

/// What was loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// Records stored.
    pub records: u64,
    /// Records whose key was new.
    pub inserted: u64,
    /// Bytes of all keys and values.
    pub bytes: u64,
    /// Records that could not be read.
    pub bad: u64,
    /// The first of them.
    pub bad_shown: Vec<BadRecord>,
    /// What storing cost.
    pub tally: OperationTally,
    /// From start to end.
    pub elapsed_ns: u64,
}

/// Stores every record. `outbox` is what `records` was opened with.
pub fn load<R: BufRead>(
    store: &Store,
    records: &mut Records<R>,
    options: LoadOptions<'_>,
    outbox: &RefCell<Outbox>,
) -> Result<LoadReport, Failure> {
    // All of them first: a load that cannot have its clients stores nothing.
    let clients: Vec<Client> = (0..options.threads.max(1)).map(|_| store.client()).collect::<Result<_, _>>()?;
    interrupt::catch();
    let started = Instant::now();
    let counters = Arc::clone(&outbox.borrow().counters);
    let (read, stored) = thread::scope(|scope| {
        let (senders, threads): (Vec<_>, Vec<_>) = clients
            .into_iter()
            .map(|client| {
                let (sender, receiver) = sync_channel(WAITING_BATCHES);
                (sender, scope.spawn(|| store_all(client, receiver, &counters, options.acknowledge)))
            })
            .unzip();
        outbox.borrow_mut().open(senders);
        let read = read(records, options.bad, outbox);
        // The threads end when nobody can send to them any more.
        outbox.borrow_mut().close();
        let stored: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        (read, stored)
    });
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

/// The shard of a key among `shards`.
pub fn shard_of(key: &[u8], shards: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (hasher.finish() % shards.max(1) as u64) as usize
}

/// What all threads have done so far.
#[derive(Default)]
struct Counters {
    stored: AtomicU64,
    inserted: AtomicU64,
    bytes: AtomicU64,
    /// Whether a thread ended before its batches did: the load is over.
    failed: AtomicBool,
}

/// What one thread did.
struct Stored {
    tally: OperationTally,
    refused: Option<Refused>,
    /// Why what is stored could not be written down.
    unwritten: Option<Failure>,
}

/// What the store refused.
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

/// One thread's work. It ends early at the first refusal, and says so in the counters.
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

/// Reads every record and hands it over. Ends early, without an error, if a thread has failed, or on Ctrl-C: what was
/// handed over is still stored.
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

/// Records that were read, on their way to the threads that store them. As the watcher of the input it hands over what
/// was read before a pause, and can end the load in one.
pub struct Outbox {
    senders: Vec<SyncSender<Vec<Record>>>,
    /// One for each thread.
    batches: Vec<Batch>,
    /// Records in them.
    waiting: usize,
    /// When the first of these came.
    waiting_since: Instant,
    counters: Arc<Counters>,
    progress: Progress,
    /// Bytes of the input up to the latest record.
    bytes_read: u64,
    entries_before: u64,
    slots: u64,
    started: Instant,
}

/// A batch being filled.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    bytes: usize,
}

impl Outbox {
    /// An outbox without threads, for a table of `slots` entries at most that has `entries_before` now.
    pub fn new(progress: Progress, entries_before: u64, slots: u64) -> Outbox {
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

    /// Says how large the input is.
    pub fn set_input_bytes(&mut self, bytes: u64) {
        self.progress.set_total(bytes);
    }

    fn open(&mut self, senders: Vec<SyncSender<Vec<Record>>>) {
        self.batches = senders.iter().map(|_| Batch::default()).collect();
        self.senders = senders;
        self.started = Instant::now();
    }

    /// Nothing more comes. Records that still wait are dropped.
    fn close(&mut self) {
        self.senders.clear();
        self.progress.finish();
    }

    /// Whether nothing more is to be stored.
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

    /// Hands over the records that have waited long enough; returns when that is to be asked again.
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

    /// Hands over every record.
    fn flush(&mut self) {
        (0..self.batches.len()).for_each(|shard| self.hand_over(shard));
    }

    fn hand_over(&mut self, shard: usize) {
        let batch = std::mem::take(&mut self.batches[shard]);
        self.waiting -= batch.records.len();
        // A thread that has ended says why when it is joined.
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
            format!(
                "{}, {}, fill {}",
                units::counted(stored, "record"),
                units::rate(units::per_second(stored, elapsed_ns)),
                units::percent(units::share(entries, *slots))
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
