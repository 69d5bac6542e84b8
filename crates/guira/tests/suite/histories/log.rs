//! The log of the workers' operations, in memory that all of them share. The kernel keeps it when a writer is killed. A
//! record takes a fraction of an operation, so that a worker spends most of its time in operations, and most deaths
//! happen there.
//!
//! A process takes one block of the log after the other, and writes records of five words, each in two steps: the call
//! before the operation, and the answer after it. The last word written in each step is the first one of the record. So
//! an answer in the log was given, and an operation without one is pending.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use guira_check::history::{Answer, Call, Operation, Outcome};
use guira_fabric::FabricError;
use guira_fabric_shm::{Access, CreateOptions, Location, ShmRegion};
use guira_layout::OwnerId;
use guira_testing::unique_name;
use rustix::time::{ClockId, clock_gettime};

use crate::histories::{KEYS, PROCESSES};

/// Bytes of the log: room for some 3 million operations.
const LOG_BYTES: u64 = 128 << 20;
/// Words of a block. The first block holds the number of blocks taken, two words for each place of a process, and two
/// words for all processes. Every other block holds its process, the counts of the process, and records.
const BLOCK_WORDS: usize = 1024;
/// The words of the first block with the number and the owner id of the last process in each place.
const OWNERS: usize = 1;
/// The words of the first block with the number of acknowledged inserts of each place.
const ACKNOWLEDGED: usize = OWNERS + PROCESSES as usize;
/// Bits of an owner id, in front of which stands the number of its process.
const OWNER_BITS: u32 = 16;
/// The word of the first block with the number of operations that were answered.
const ANSWERED: usize = BLOCK_WORDS - 2;
/// The word of the first block that is not zero when the round is over.
const IS_OVER: usize = BLOCK_WORDS - 1;
const HEAD_WORDS: usize = 9;
/// Words of a record: call, answer and key; time of the call; value written or found; value expected; time of the
/// answer.
const RECORD_WORDS: usize = 5;
const RECORDS: usize = (BLOCK_WORDS - HEAD_WORDS) / RECORD_WORDS;
const BLOCKS: usize = LOG_BYTES as usize / 8 / BLOCK_WORDS;

const _: () = assert!(HEAD_WORDS + RECORDS * RECORD_WORDS == BLOCK_WORDS && COUNTS < HEAD_WORDS);
const _: () = assert!(ACKNOWLEDGED + PROCESSES as usize <= ANSWERED);

/// Codes of outcomes: no answer, no effect, then the variants of [`Answer`] in their order.
const NO_ANSWER: u64 = 0;
const WITHOUT_EFFECT: u64 = 1;

/// Returns the nanoseconds of the clock that all processes share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

/// The shared memory of the log, which is removed when the test ends.
pub struct SharedLog {
    location: Location,
    region: ShmRegion,
}

impl Drop for SharedLog {
    fn drop(&mut self) {
        drop(ShmRegion::destroy(&self.location));
    }
}

impl SharedLog {
    pub fn create() -> SharedLog {
        let location = Location::shm(&unique_name()).unwrap();
        let options = CreateOptions::new(LOG_BYTES, 8);
        let region = ShmRegion::create(&location, options, |_| Ok::<(), FabricError>(())).unwrap();
        SharedLog { location, region }
    }

    /// Returns the path at which workers open the log.
    pub fn path(&self) -> &str {
        self.location.path().to_str().unwrap()
    }

    /// Returns the owner id of `process`, which is the last one in `place`, if it has one yet.
    pub fn owner(&self, process: u64, place: u64) -> Option<OwnerId> {
        let owner = load(&self.region.main_words()[OWNERS + place as usize]);
        (owner >> OWNER_BITS == process).then_some(OwnerId(owner as u16))
    }

    /// Returns how many inserts of each place were acknowledged so far.
    pub fn acknowledged(&self) -> [u64; PROCESSES as usize] {
        std::array::from_fn(|place| load(&self.region.main_words()[ACKNOWLEDGED + place]))
    }

    /// Returns how many operations were answered so far.
    pub fn answered(&self) -> u64 {
        load(&self.region.main_words()[ANSWERED])
    }

    /// Whether there is no room for more operations.
    pub fn is_full(&self) -> bool {
        load(&self.region.main_words()[0]) as usize + 1 >= BLOCKS
    }

    /// Asks the workers to end.
    pub fn end_round(&self) {
        self.region.main_words()[IS_OVER].store(1, Ordering::Release);
    }

    /// Takes the records of all processes, which must have ended. The log is empty afterwards.
    pub fn take(&mut self, began_ns: u64) -> Records {
        let words = self.region.main_words();
        let taken = (load(&words[0]) as usize).min(BLOCKS - 1);
        let operations = (0..KEYS).map(|_| Vec::new()).collect();
        let mut round = Records { operations, began_ns, counts: Counts::default() };
        // Counts only grow, so the largest ones of a process's blocks are its totals.
        let mut counts: HashMap<u64, Counts> = HashMap::new();
        for block in words.chunks_exact(BLOCK_WORDS).skip(1).take(taken) {
            let (head, records) = block.split_at(HEAD_WORDS);
            let process = load(&head[0]);
            let most = counts.entry(process).or_default();
            (1..=COUNTS).for_each(|index| most[index - 1] = most[index - 1].max(load(&head[index])));
            for record in records.chunks_exact(RECORD_WORDS) {
                if let Some(operation) = operation(process, record, began_ns) {
                    round.operations[operation.key as usize].push(operation);
                }
            }
        }
        counts.values().for_each(|process_counts| add(&mut round.counts, process_counts));
        words[..(taken + 1) * BLOCK_WORDS].iter().for_each(|word| word.store(0, Ordering::Release));
        round
    }
}

/// The records of all processes of a round.
pub struct Records {
    /// Start of the round: times are nanoseconds since then.
    pub began_ns: u64,
    /// The operations on each key.
    pub operations: Vec<Vec<Operation>>,
    pub counts: Counts,
}

impl Records {
    /// Counts the processes that were answered both before and after `at_ns`, a time by [`now_ns`].
    pub fn survivors(&self, at_ns: u64) -> u64 {
        let mut sides: HashMap<u64, [bool; 2]> = HashMap::new();
        for operation in self.operations.iter().flatten() {
            let Outcome::Answered { at_ns: answered_ns, .. } = operation.outcome else { continue };
            let side = usize::from(answered_ns + self.began_ns > at_ns);
            sides.entry(operation.process).or_default()[side] = true;
        }
        sides.values().filter(|sides| sides[0] && sides[1]).count() as u64
    }
}

/// Counts of a process: dead clients recovered, those of them whose commit was completed, and entries moved; operations
/// that failed because their client was fenced, because their connection was lost before they had an effect, and
/// because it was lost when they may have had one.
pub type Counts = [u64; COUNTS];
pub const COUNTS: usize = 6;

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Completion {
    Answered(Answer),
    WithoutEffect,
    /// The operation may have had an effect, or may have one later.
    Unknown,
}

pub fn add(sum: &mut Counts, counts: &Counts) {
    sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

/// The part of the log that one process writes.
pub struct Log {
    region: ShmRegion,
    process: u64,
    place: u64,
    /// First word of the current block.
    block: usize,
    /// Records written in that block.
    written: usize,
}

impl Log {
    /// Opens the log for `process`, which takes the `place` of one that was killed, or is the first one in it.
    pub fn open(path: &str, process: u64, place: u64) -> Log {
        let region = ShmRegion::open(&Location::file(path), Access::ReadWrite).unwrap();
        assert!(process != 0 && place < PROCESSES, "process {process} in place {place}");
        Log { region, process, place, block: 0, written: RECORDS }
    }

    /// Whether the round is over.
    pub fn is_over(&self) -> bool {
        load(&self.region.main_words()[IS_OVER]) != 0
    }

    /// Records that the process is the client in `slot` from now on.
    pub fn record_slot(&self, slot: u16) {
        let owner = (self.process << OWNER_BITS) | (u64::from(slot) + 1);
        self.region.main_words()[OWNERS + self.place as usize].store(owner, Ordering::Release);
    }

    /// Returns how many inserts of `place` were acknowledged so far.
    pub fn acknowledged(&self, place: u64) -> u64 {
        load(&self.region.main_words()[ACKNOWLEDGED + place as usize])
    }

    /// Records that the first `count` inserts of the process's place were acknowledged.
    pub fn acknowledge(&self, count: u64) {
        self.region.main_words()[ACKNOWLEDGED + self.place as usize].fetch_max(count, Ordering::AcqRel);
    }

    fn next_block(&mut self) -> bool {
        let words = self.region.main_words();
        let taken = words[0].fetch_add(1, Ordering::AcqRel) as usize + 1;
        if taken >= BLOCKS {
            return false;
        }
        (self.block, self.written) = (taken * BLOCK_WORDS, 0);
        words[self.block].store(self.process, Ordering::Release);
        true
    }

    fn record(&self) -> &[AtomicU64] {
        &self.region.main_words()[self.block + HEAD_WORDS + self.written * RECORD_WORDS..][..RECORD_WORDS]
    }

    /// Records that the process is about to call. Returns false if there is no room.
    pub fn call(&mut self, key: u64, call: Call) -> bool {
        if self.written == RECORDS && !self.next_block() {
            return false;
        }
        let (number, value, expected) = match call {
            Call::Get => (1, 0, 0),
            Call::Put(value) => (2, value, 0),
            Call::Insert(value) => (3, value, 0),
            Call::Update(value) => (4, value, 0),
            Call::Remove => (5, 0, 0),
            Call::CompareAndSwap { expected, new } => (6, new, expected),
            Call::CompareAndRemove(expected) => (7, 0, expected),
        };
        let record = self.record();
        record[1].store(now_ns(), Ordering::Relaxed);
        record[2].store(value, Ordering::Relaxed);
        record[3].store(expected, Ordering::Relaxed);
        record[0].store(key << 16 | NO_ANSWER << 8 | number, Ordering::Release);
        true
    }

    /// Records the end of the last call.
    pub fn ended(&mut self, ended: Completion, counts: Counts) {
        let at_ns = now_ns();
        let number = match ended {
            Completion::Unknown => NO_ANSWER,
            Completion::WithoutEffect => WITHOUT_EFFECT,
            Completion::Answered(Answer::Found(_)) => 2,
            Completion::Answered(Answer::Absent) => 3,
            Completion::Answered(Answer::Done) => 4,
            Completion::Answered(Answer::Inserted) => 5,
            Completion::Answered(Answer::Replaced) => 6,
            Completion::Answered(Answer::Missing) => 7,
            Completion::Answered(Answer::Exists) => 8,
            Completion::Answered(Answer::Mismatch) => 9,
        };
        let record = self.record();
        record[4].store(at_ns, Ordering::Relaxed);
        if let Completion::Answered(Answer::Found(value)) = ended {
            record[2].store(value, Ordering::Relaxed);
        }
        record[0].store(load(&record[0]) | number << 8, Ordering::Release);
        let head = &self.region.main_words()[self.block..];
        head[1..].iter().zip(counts).for_each(|(word, count)| word.store(count, Ordering::Relaxed));
        self.written += 1;
        if matches!(ended, Completion::Answered(_)) {
            self.region.main_words()[ANSWERED].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Decodes a record; `None` if its first step was never completed.
fn operation(process: u64, record: &[AtomicU64], began_ns: u64) -> Option<Operation> {
    let [kinds, called_ns, value, expected, at_ns] = std::array::from_fn(|word| load(&record[word]));
    let call = match kinds & 0xff {
        0 => return None,
        1 => Call::Get,
        2 => Call::Put(value),
        3 => Call::Insert(value),
        4 => Call::Update(value),
        5 => Call::Remove,
        6 => Call::CompareAndSwap { expected, new: value },
        7 => Call::CompareAndRemove(expected),
        other => panic!("no such call: {other}"),
    };
    let answered = |answer| Outcome::Answered { answer, at_ns: at_ns - began_ns };
    let outcome = match kinds >> 8 & 0xff {
        NO_ANSWER => Outcome::Pending,
        WITHOUT_EFFECT => Outcome::WithoutEffect,
        2 => answered(Answer::Found(value)),
        3 => answered(Answer::Absent),
        4 => answered(Answer::Done),
        5 => answered(Answer::Inserted),
        6 => answered(Answer::Replaced),
        7 => answered(Answer::Missing),
        8 => answered(Answer::Exists),
        9 => answered(Answer::Mismatch),
        other => panic!("no such answer: {other}"),
    };
    Some(Operation { process, key: kinds >> 16, call, called_ns: called_ns - began_ns, outcome })
}
