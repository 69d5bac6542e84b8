//! A worker process: it carries out operations drawn from its seed, one after the other, until the round ends or it is
//! killed.

use std::collections::HashMap;
use std::time::Duration;

use guira::errors::{FabricError, TableError};
use guira::{Effect, Error, OpenError, OpenOptions, OperationError, OperationErrorKind, Put, Store, Swap, Url};
use guira_check::history::{Answer, Call};
use guira_fabric::SplitMix64;

use crate::histories::log::{Completion, Log};
use crate::histories::{KEYS, PROCESSES};

const WORKER: &str = "GUIRA_TEST_HISTORIES";
/// Deadline of an operation. A worker waits no longer for one that is stopped, and goes on with other keys.
const DEADLINE: Duration = Duration::from_millis(10);
/// The same over Soft-RoCE in an emulated machine, where a round trip takes milliseconds.
const RDMA_DEADLINE: Duration = Duration::from_millis(250);
const NICE: i32 = 10;
/// Time in which an operation tries to open another session: longer than an outage of the node, as a rule.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The arguments of a worker.
pub struct Task<'t> {
    pub url: &'t Url,
    pub log: &'t str,
    /// The number of the process: not 0, and unique in the round.
    pub process: u64,
    pub seed: u64,
    pub longest_value: u64,
    pub share: Share,
}

/// The inserts of the workers in one place, one after the other: keys that no other worker inserts.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The place of the worker among those that run.
    pub place: u64,
    /// The number of the first key.
    pub first: u64,
    /// The number of keys; 0 if the table does not grow.
    pub keys: u64,
    /// Inserts for each operation that is recorded.
    pub inserts_per_operation: u64,
}

impl Share {
    /// Returns the number of the key that is inserted after `index` others.
    pub fn key(&self, index: u64) -> u64 {
        self.first + index * PROCESSES
    }
}

impl Task<'_> {
    /// Returns the environment variable that passes the arguments: name and value.
    pub fn variable(&self) -> (&'static str, String) {
        let Task { url, log, process, seed, longest_value, share } = self;
        let Share { place, first, keys, inserts_per_operation } = share;
        let share = format!("{place},{first},{keys},{inserts_per_operation}");
        (WORKER, format!("{url},{process},{seed},{longest_value},{share},{log}"))
    }
}

pub fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Returns the value of a number: the number, then bytes that follow from it, as does the length. Half of the values
/// are short.
pub fn value(number: u64, longest_value: u64) -> Vec<u8> {
    let mut rng = SplitMix64(number);
    let longest = if rng.below(2) == 0 { longest_value.min(40) } else { longest_value };
    let mut value = number.to_le_bytes().to_vec();
    let (bytes, first) = (8 + rng.below(longest - 7), rng.next_u64());
    value.extend((8..bytes).map(|index| (first + index * 7) as u8));
    value
}

/// Returns the number of a value, which must be whole.
pub fn number(found: &[u8], longest_value: u64) -> u64 {
    let number = u64::from_le_bytes(found[..8].try_into().expect("8 bytes at least"));
    assert!(found == value(number, longest_value), "a torn value: {found:02x?}");
    number
}

struct Worker {
    client: guira::Client,
    slot: u16,
    transport: Transport,
    losses: Losses,
    log: Log,
    rng: SplitMix64,
    longest_value: u64,
    share: Share,
    /// The number of the last value written: no two values of a round have the same.
    written: u64,
    /// The value last known of each key.
    seen: HashMap<u64, u64>,
    buffer: Vec<u8>,
}

/// The way in which a worker reaches its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Mapped,
    /// Over a connection, which may be lost.
    Remote,
    /// Over a connection and a queue pair, which may be lost.
    Rdma,
}

impl Transport {
    fn of(url: &str) -> Transport {
        match url.split(':').next() {
            Some("tcp") => Transport::Remote,
            Some("rdma") => Transport::Rdma,
            _ => Transport::Mapped,
        }
    }

    fn deadline(self) -> Duration {
        if self == Transport::Rdma { RDMA_DEADLINE } else { DEADLINE }
    }
}

/// Counts of operations that failed because of a loss.
#[derive(Default)]
struct Losses {
    fenced: u64,
    without_effect: u64,
    unknown: u64,
}

/// The loss that an error reports: of the session, or of the connection, which includes that there is no new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    None,
    Fenced,
    Connection,
}

fn loss(error: &Error) -> Loss {
    let source = match error {
        Error::Operation(
            OperationError { kind: OperationErrorKind::Fabric { source }, .. }
            | OperationError { kind: OperationErrorKind::Lost { source }, .. },
        )
        | Error::Fabric { source, .. } => source,
        Error::Open(OpenError::Connect { .. } | OpenError::Rdma { .. } | OpenError::TooManyClients { .. }) => {
            return Loss::Connection;
        }
        _ => return Loss::None,
    };
    match source {
        FabricError::Fenced { .. } => Loss::Fenced,
        FabricError::Disconnected { .. } | FabricError::ConnectionFailed { .. } => Loss::Connection,
        _ => Loss::None,
    }
}

impl Worker {
    /// Carries out one operation. Returns false if there is no room to record it.
    fn step(&mut self) -> bool {
        let key = self.rng.below(KEYS);
        let new = self.written + 1;
        let expected = self.seen.get(&key).copied().unwrap_or(new);
        let call = match self.rng.below(20) {
            0..8 => Call::Get,
            8..11 => Call::Put(new),
            11..13 => Call::Insert(new),
            13..15 => Call::Update(new),
            15..17 => Call::Remove,
            17..19 => Call::CompareAndSwap { expected, new },
            _ => Call::CompareAndRemove(expected),
        };
        self.written = new;
        if !self.log.call(key, call) {
            return false;
        }
        let ended = match self.execute(key, call) {
            Ok(answer) => Completion::Answered(answer),
            Err(error) => self.completion_of_failure(call, &error),
        };
        let (counters, losses) = (self.client.counters(), &self.losses);
        let lost = [losses.fenced, losses.without_effect, losses.unknown];
        self.log.ended(ended, [counters.recoveries, counters.replays, counters.moves, lost[0], lost[1], lost[2]]);
        if self.client.slot() != self.slot {
            self.slot = self.client.slot();
            self.log.record_slot(self.slot);
        }
        match (call, ended) {
            (_, Completion::Answered(Answer::Found(value))) => self.seen.insert(key, value),
            (Call::Put(value) | Call::Insert(value) | Call::Update(value), Completion::Answered(answer))
                if answer.is_change() =>
            {
                self.seen.insert(key, value)
            }
            (Call::CompareAndSwap { new, .. }, Completion::Answered(Answer::Done)) => self.seen.insert(key, new),
            _ => None,
        };
        true
    }

    /// Inserts the next keys of its share, and looks for one of the keys whose insert was acknowledged. Returns false
    /// if there are no more keys.
    fn insert_share(&mut self) -> bool {
        let mut has_more = false;
        for _ in 0..self.share.inserts_per_operation {
            let inserted = self.log.acknowledged(self.share.place);
            if inserted == self.share.keys {
                break;
            }
            let number = self.share.key(inserted);
            has_more = true;
            // The process in whose place this one is may have put it, and died before that was acknowledged.
            match self.client.put(&key(number), &value(number, self.longest_value)) {
                Ok(_) => self.log.acknowledge(inserted + 1),
                Err(error) => self.assert_may_fail(Call::Put(number), &error),
            }
        }
        let place = self.rng.below(PROCESSES);
        let inserted = self.log.acknowledged(place);
        if inserted > 0 {
            let first = self.share.first - self.share.place + place;
            let number = Share { first, ..self.share }.key(self.rng.below(inserted));
            match self.client.get_into(&key(number), &mut self.buffer) {
                Ok(true) => assert!(self.buffer == value(number, self.longest_value), "filler {number} has changed"),
                Ok(false) => panic!("filler {number} is lost"),
                Err(error) => self.assert_may_fail(Call::Get, &error),
            }
        }
        has_more
    }

    /// Checks that `error` is a permitted failure of a `call` that is not recorded.
    fn assert_may_fail(&self, call: Call, error: &Error) {
        let is_lost = self.transport != Transport::Mapped && loss(error) != Loss::None;
        assert!(is_lost || self.may_refuse(call, error), "{call}: {error}");
    }

    /// Returns what a failure of `call` means for its effect, and counts it. Only permitted failures are accepted.
    fn completion_of_failure(&mut self, call: Call, error: &Error) -> Completion {
        let (loss, effect) = (loss(error), error.effect());
        if self.transport == Transport::Mapped || loss == Loss::None {
            assert!(self.may_refuse(call, error) && effect == Effect::None, "{call}: {error}");
            return Completion::WithoutEffect;
        }
        if effect != Effect::None {
            assert!(call != Call::Get, "a lookup has no effect: {error}");
            self.losses.unknown += 1;
            return Completion::Unknown;
        }
        match loss {
            Loss::Fenced => self.losses.fenced += 1,
            Loss::Connection | Loss::None => self.losses.without_effect += 1,
        }
        Completion::WithoutEffect
    }

    /// Whether `call` may be refused with `error`: because a stopped client was waited for until the deadline, or
    /// because there is no room and the call needs some. There is always a free entry for each key, but the paths to it
    /// may be too long, unless the table grows; and dead clients keep space for values until it is reclaimed.
    fn may_refuse(&self, call: Call, error: &Error) -> bool {
        let has_extents = self.longest_value > 8;
        match error {
            Error::Operation(OperationError { kind: OperationErrorKind::Busy { waited_ms, .. }, .. }) => {
                u128::from(*waited_ms) >= self.transport.deadline().as_millis()
            }
            Error::Operation(OperationError { kind: OperationErrorKind::Full { .. }, .. }) => {
                self.share.keys == 0 && matches!(call, Call::Put(_) | Call::Insert(_))
            }
            Error::Operation(OperationError { kind: OperationErrorKind::NoSpace(_), .. }) => {
                let brings_value = !matches!(call, Call::Get | Call::Remove | Call::CompareAndRemove(_));
                has_extents && brings_value
            }
            _ => false,
        }
    }

    fn execute(&mut self, key_number: u64, call: Call) -> Result<Answer, Error> {
        let (client, key, longest) = (&mut self.client, key(key_number), self.longest_value);
        let bytes = |number: u64| value(number, longest);
        let done = |is_done: bool, otherwise: Answer| if is_done { Answer::Done } else { otherwise };
        let swapped = |swap: Swap| match swap {
            Swap::Done => Answer::Done,
            Swap::Different => Answer::Mismatch,
            Swap::Missing => Answer::Missing,
        };
        Ok(match call {
            Call::Get => match client.get_into(&key, &mut self.buffer)? {
                true => Answer::Found(number(&self.buffer, longest)),
                false => Answer::Absent,
            },
            Call::Put(new) => match client.put(&key, &bytes(new))? {
                Put::Inserted => Answer::Inserted,
                Put::Replaced => Answer::Replaced,
            },
            Call::Insert(new) => done(client.try_insert(&key, &bytes(new))?, Answer::Exists),
            Call::Update(new) => done(client.update(&key, &bytes(new))?, Answer::Missing),
            Call::Remove => done(client.remove(&key)?, Answer::Missing),
            Call::CompareAndSwap { expected, new } => {
                swapped(client.compare_and_swap(&key, &bytes(expected), &bytes(new))?)
            }
            Call::CompareAndRemove(expected) => swapped(client.compare_and_remove(&key, &bytes(expected))?),
        })
    }
}

/// Opens a client; `None` if the round ends before a slot is free or the memory node is back. Slots of workers that are
/// being killed are not free yet.
fn open_client(url: &Url, transport: Transport, log: &Log) -> Option<guira::Client> {
    let options = OpenOptions::default().deadline(transport.deadline()).reconnect_timeout(RECONNECT_TIMEOUT);
    loop {
        match Store::open_with(url, &options).and_then(|store| store.client()) {
            Ok(client) => return Some(client),
            Err(error) => {
                let is_full = matches!(error, Error::Open(OpenError::TooManyClients { .. }));
                let is_opening = matches!(error, Error::Open(OpenError::Table { source: TableError::Fabric(_), .. }));
                let is_lost = transport != Transport::Mapped && (is_opening || loss(&error) != Loss::None);
                assert!(is_full || is_lost, "{error}");
            }
        }
        if log.is_over() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs as a worker if the environment asks for it; does nothing otherwise.
#[test]
fn worker() {
    let Ok(arguments) = std::env::var(WORKER) else { return };
    let parts: Vec<&str> = arguments.splitn(9, ',').collect();
    let [process, seed, longest_value, place, first, keys, inserts_per_operation] =
        std::array::from_fn(|index| parts[1 + index].parse().unwrap());
    let transport = Transport::of(parts[0]);
    // None outlives a test that is killed: it would work forever.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    if transport == Transport::Mapped {
        // The test, which kills, must not wait for workers that never pause.
        rustix::process::nice(NICE).unwrap();
    }
    let (share, log) = (Share { place, first, keys, inserts_per_operation }, Log::open(parts[8], process, place));
    let Some(client) = open_client(&parts[0].parse().unwrap(), transport, &log) else { return };
    let (slot, losses) = (client.slot(), Losses::default());
    log.record_slot(slot);
    let (rng, seen, buffer) = (SplitMix64(seed), HashMap::new(), Vec::new());
    let written = process << 32;
    let mut worker = Worker { client, slot, transport, losses, log, rng, longest_value, share, written, seen, buffer };
    while !worker.log.is_over() {
        let (is_recorded, has_more) = (worker.step(), share.keys > 0 && worker.insert_share());
        // Without room in the log the worker idles, so that it can still be killed. When it has inserted its share, it
        // leaves the processors to those that have not.
        if !has_more && (!is_recorded || share.keys > 0) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
