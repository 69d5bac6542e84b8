//! Stores an input's records with several threads.
//!
//! Invariants: records of one key are stored in the order of the input, because a key's hash decides which thread
//! stores it, so the last one wins. Memory is bounded: a few batches for each thread, of bounded size unless one
//! record is larger.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use guira::blocking::Client;
use guira::{Put, Store};
use guira_input::{BadRecord, InputError, Record, Records, printable, tsv};
use guira_lab::driver::OperationTally;

use crate::failure::{Failure, Loaded};
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
    /// Entries in the table before, to show its fill.
    pub entries_before: u64,
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

/// Stores every record.
pub fn load<R: BufRead>(
    store: &Store,
    records: &mut Records<R>,
    options: LoadOptions<'_>,
    progress: &mut Progress,
) -> Result<LoadReport, Failure> {
    // All of them first: a load that cannot have its clients stores nothing.
    let clients: Vec<Client> = (0..options.threads.max(1)).map(|_| store.client()).collect::<Result<_, _>>()?;
    interrupt::note();
    let started = Instant::now();
    let counters = Counters::default();
    let (read, stored) = thread::scope(|scope| {
        let (senders, threads): (Vec<_>, Vec<_>) = clients
            .into_iter()
            .map(|client| {
                let (sender, receiver) = sync_channel(WAITING_BATCHES);
                (sender, scope.spawn(|| store_all(client, receiver, &counters, options.acknowledge)))
            })
            .unzip();
        let mut reading = Reading { senders, counters: &counters, report: LoadReport::default(), started };
        let read = reading.read(store, records, options, progress);
        let report = std::mem::take(&mut reading.report);
        // The threads end when nobody can send to them any more.
        drop(reading);
        let stored: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        (read.map(|()| report), stored)
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
        return Err(Failure::Unanswered { done: loaded.to_string(), source: Box::new(unwritten) });
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

/// One thread's work. It ends early at the first refusal; whoever sends to it learns of that.
fn store_all(
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

/// The reading side.
struct Reading<'c> {
    senders: Vec<SyncSender<Vec<Record>>>,
    counters: &'c Counters,
    report: LoadReport,
    started: Instant,
}

/// A batch being filled.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    bytes: usize,
}

impl Reading<'_> {
    /// Reads every record and hands it to the thread of its key. Ends early, without an error, if a thread has, or on
    /// Ctrl-C: what was handed over is still stored.
    fn read<R: BufRead>(
        &mut self,
        store: &Store,
        records: &mut Records<R>,
        options: LoadOptions<'_>,
        progress: &mut Progress,
    ) -> Result<(), InputError> {
        let slots = store.table().config().slots();
        let mut batches: Vec<Batch> = self.senders.iter().map(|_| Batch::default()).collect();
        let mut ended = Ok(());
        while let Some(read) = records.next() {
            if interrupt::requested() {
                return Ok(());
            }
            let record = match read {
                Ok(record) => record,
                Err(InputError::Bad(bad)) if options.bad == BadRecords::Skip => {
                    self.skip(bad);
                    continue;
                }
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            };
            let shard = shard_of(&record.key, batches.len());
            let batch = &mut batches[shard];
            batch.bytes += record.key.len() + record.value.len();
            batch.records.push(record);
            if batch.records.len() == BATCH_RECORDS || batch.bytes >= BATCH_BYTES {
                if self.senders[shard].send(std::mem::take(batch).records).is_err() {
                    return Ok(());
                }
                progress.tick(records.bytes_read(), || self.progress(options.entries_before, slots));
            }
        }
        for (sender, batch) in self.senders.iter().zip(batches) {
            // A thread that has ended says why when it is joined.
            let _ = sender.send(batch.records);
        }
        progress.finish();
        ended
    }

    fn skip(&mut self, bad: BadRecord) {
        self.report.bad += 1;
        if self.report.bad_shown.len() < BAD_SHOWN {
            self.report.bad_shown.push(bad);
        }
    }

    fn progress(&self, entries_before: u64, slots: u64) -> String {
        let stored = self.counters.stored.load(Ordering::Relaxed);
        let entries = entries_before + self.counters.inserted.load(Ordering::Relaxed);
        let elapsed_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        format!(
            "{}, {}, fill {}",
            units::counted(stored, "record"),
            units::rate(units::per_second(stored, elapsed_ns)),
            units::percent(units::share(entries, slots))
        )
    }
}
