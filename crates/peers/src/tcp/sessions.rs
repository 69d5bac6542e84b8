//! Connections that are measured: each carries out its share, one exchange after the other, and records the time of
//! each.
//!
//! Invariant: a share succeeds only if every read had the right answer.

use std::ops::Range;
use std::sync::Arc;

use guira::{Client, Reader};
use guira::{Store, Url};
use tokio::runtime::{self, Runtime};

use super::bare::BareSession;
use super::plan::{Mix, Series, Way};
use super::servers::TcpEndpoint;
use crate::draws::{Draws, Step};
use crate::error::PeersError;
use crate::measure::{ensure_correct, monotonic_ns};
use crate::plan::System;
use crate::record::{Key, ValueEnds, WORD_BYTES, difference};
use crate::systems::memcached::Memcached;
use crate::systems::redis::Redis;
use crate::systems::{Connection, Pipelined, Protocol};

/// The operations of one connection: a part of the draws.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) mix: Mix,
    pub(super) draws: Arc<Draws>,
    pub(super) range: Range<usize>,
}

impl Share {
    fn keys(&self) -> &[Key] {
        self.draws.keys.get(self.range.clone()).unwrap_or_default()
    }

    fn steps(&self) -> &[Step] {
        self.draws.mix.get(self.range.clone()).unwrap_or_default()
    }

    /// Part number `part` of `parts` equal parts.
    pub(super) fn part(&self, part: usize, parts: usize) -> Share {
        let each = self.range.len() / parts;
        let start = self.range.start + part * each;
        Share { range: start..start + each, ..self.clone() }
    }
}

/// A connection that carries out shares.
pub(super) trait Session: Send {
    /// Carries out a share, and appends the nanoseconds of each exchange to `exchanges_ns`.
    ///
    /// # Errors
    /// Errors of the compared system, and every wrong answer.
    fn run(&mut self, share: &Share, exchanges_ns: &mut Vec<u32>) -> Result<(), PeersError>;

    /// Round trips so far.
    fn round_trips(&self) -> u64;
}

/// Opens a connection for the access mode of `series`.
///
/// # Errors
/// Errors of the compared system.
pub(super) fn open(series: &Series, endpoint: TcpEndpoint<'_>) -> Result<Box<dyn Session>, PeersError> {
    let depth = series.point.depth;
    Ok(match (endpoint, series.name) {
        (TcpEndpoint::Peer(address), System::Redis) => {
            Box::new(Exchanges::new(Connection::<Redis>::open(address, WORD_BYTES)?, depth))
        }
        (TcpEndpoint::Peer(address), _) => {
            Box::new(Exchanges::new(Connection::<Memcached>::open(address, WORD_BYTES)?, depth))
        }
        (TcpEndpoint::Bare(port), _) => Box::new(BareSession::open(port, depth)?),
        (TcpEndpoint::Node(url), _) => match (series.way, series.point.mix) {
            (Way::Tasks, mix) => Box::new(Tasks::open(url, mix, depth)?),
            (_, Mix::YcsbA) => Box::new(Changes(Store::open(url)?.client()?, Vec::new())),
            (_, Mix::YcsbC) => Box::new(Reads { reader: Store::open(url)?.reader(), depth, value: Vec::new() }),
        },
    })
}

/// Runs `exchange` and appends its time to `exchanges_ns`.
pub(super) fn timed_exchange(
    exchanges_ns: &mut Vec<u32>,
    exchange: impl FnOnce() -> Result<(), PeersError>,
) -> Result<(), PeersError> {
    let started_ns = monotonic_ns();
    exchange()?;
    exchanges_ns.push(elapsed_ns(started_ns));
    Ok(())
}

/// Nanoseconds since `started_ns`, at most four seconds.
fn elapsed_ns(started_ns: u64) -> u32 {
    u32::try_from(monotonic_ns() - started_ns).unwrap_or(u32::MAX)
}

/// A connection that sends several commands in one write, then reads their answers.
struct Exchanges<P> {
    server: Pipelined<P>,
    depth: usize,
    exchanges: u64,
}

impl<P: Protocol> Exchanges<P> {
    fn new(server: Connection<P>, depth: usize) -> Exchanges<P> {
        Exchanges { server: Pipelined::new(server, depth), depth, exchanges: 0 }
    }
}

impl<P: Protocol + Send> Session for Exchanges<P> {
    fn run(&mut self, share: &Share, exchanges_ns: &mut Vec<u32>) -> Result<(), PeersError> {
        let before = exchanges_ns.len();
        match share.mix {
            Mix::YcsbC => {
                share
                    .keys()
                    .chunks(self.depth)
                    .try_for_each(|keys| timed_exchange(exchanges_ns, || self.server.get(keys)))?;
            }
            Mix::YcsbA => {
                share
                    .steps()
                    .chunks(self.depth)
                    .try_for_each(|steps| timed_exchange(exchanges_ns, || self.server.mix(steps)))?;
            }
        }
        self.exchanges += (exchanges_ns.len() - before) as u64;
        Ok(())
    }

    fn round_trips(&self) -> u64 {
        self.exchanges
    }
}

/// A connection of Guira for reads: one `get` or `get_many` after the other.
struct Reads {
    reader: Reader,
    depth: usize,
    value: Vec<u8>,
}

impl Session for Reads {
    fn run(&mut self, share: &Share, exchanges_ns: &mut Vec<u32>) -> Result<(), PeersError> {
        let mut wrong = 0;
        for keys in share.keys().chunks(self.depth) {
            timed_exchange(exchanges_ns, || {
                wrong |= if let [key] = keys { self.get(key)? } else { self.get_many(keys)? };
                Ok(())
            })?;
        }
        ensure_correct(wrong)
    }

    fn round_trips(&self) -> u64 {
        self.reader.traffic().round_trips
    }
}

impl Reads {
    fn get(&mut self, key: &Key) -> Result<u64, PeersError> {
        if !self.reader.get_into(key, &mut self.value)? {
            return Err(PeersError::missing(key));
        }
        Ok(difference(key, ValueEnds::of(&self.value, WORD_BYTES)))
    }

    fn get_many(&mut self, keys: &[Key]) -> Result<u64, PeersError> {
        let (mut wrong, mut failed) = (0, None);
        self.reader.get_many_with(keys, |index, found| match found {
            Ok(Some(value)) => wrong |= difference(&keys[index], ValueEnds::of(value, WORD_BYTES)),
            Ok(None) => failed = Some(PeersError::missing(&keys[index])),
            Err(error) => failed = Some(error.into()),
        });
        failed.map_or(Ok(wrong), Err)
    }
}

/// A connection of Guira for reads and updates, one after the other.
struct Changes(Client, Vec<u8>);

impl Session for Changes {
    fn run(&mut self, share: &Share, exchanges_ns: &mut Vec<u32>) -> Result<(), PeersError> {
        let Changes(client, value) = self;
        let mut wrong = 0;
        for step in share.steps() {
            timed_exchange(exchanges_ns, || match step {
                Step::Read(key) if client.get_into(key, value)? => {
                    wrong |= difference(key, ValueEnds::of(value, WORD_BYTES));
                    Ok(())
                }
                Step::Update(key, word) if client.update(key, &word.to_le_bytes())? => Ok(()),
                Step::Read(key) | Step::Update(key, _) => Err(PeersError::missing(key)),
            })?;
        }
        ensure_correct(wrong)
    }

    fn round_trips(&self) -> u64 {
        self.0.traffic().round_trips
    }
}

/// A connection of Guira that the tasks of one thread share.
struct Tasks {
    runtime: Runtime,
    tasks: Vec<Task>,
}

/// The handle that one task has of its own.
enum Task {
    Reader(Box<guira::aio::Reader>),
    Client(Box<guira::aio::Client>),
}

impl Tasks {
    fn open(url: &Url, mix: Mix, count: usize) -> Result<Tasks, PeersError> {
        let runtime = runtime::Builder::new_current_thread().build().map_err(PeersError::host("start a runtime"))?;
        let store = Store::open(url)?.to_async();
        let task = || -> Result<Task, PeersError> {
            Ok(match mix {
                Mix::YcsbC => Task::Reader(Box::new(store.reader())),
                Mix::YcsbA => Task::Client(Box::new(runtime.block_on(store.client())?)),
            })
        };
        let tasks = (0..count).map(|_| task()).collect::<Result<_, _>>()?;
        Ok(Tasks { runtime, tasks })
    }
}

impl Session for Tasks {
    fn run(&mut self, share: &Share, exchanges_ns: &mut Vec<u32>) -> Result<(), PeersError> {
        let count = self.tasks.len();
        let start = |(index, task): (usize, Task)| self.runtime.spawn(task.carry_out(share.part(index, count)));
        let running: Vec<_> = self.tasks.drain(..).enumerate().map(start).collect();
        let mut result = Ok(());
        self.runtime.block_on(async {
            for task in running {
                match task.await {
                    Ok((task, Ok(times_ns))) => {
                        self.tasks.push(task);
                        exchanges_ns.extend(times_ns);
                    }
                    Ok((_, Err(error))) => result = Err(error),
                    Err(error) => result = Err(PeersError::peer("run a task", error.to_string())),
                }
            }
        });
        result
    }

    fn round_trips(&self) -> u64 {
        let each = self.tasks.iter().map(|task| match task {
            Task::Reader(reader) => reader.traffic().round_trips,
            Task::Client(client) => client.traffic().round_trips,
        });
        each.sum()
    }
}

impl Task {
    async fn carry_out(mut self, share: Share) -> (Task, Result<Vec<u32>, PeersError>) {
        let mut exchanges_ns = Vec::with_capacity(share.range.len());
        let result = match &mut self {
            Task::Reader(reader) => read(reader, share.keys(), &mut exchanges_ns).await,
            Task::Client(client) => change(client, share.steps(), &mut exchanges_ns).await,
        };
        (self, result.map(|()| exchanges_ns))
    }
}

async fn read(reader: &mut guira::aio::Reader, keys: &[Key], exchanges_ns: &mut Vec<u32>) -> Result<(), PeersError> {
    let (mut wrong, mut value) = (0, Vec::new());
    for key in keys {
        let started_ns = monotonic_ns();
        if !reader.get_into(key, &mut value).await? {
            return Err(PeersError::missing(key));
        }
        exchanges_ns.push(elapsed_ns(started_ns));
        wrong |= difference(key, ValueEnds::of(&value, WORD_BYTES));
    }
    ensure_correct(wrong)
}

async fn change(
    client: &mut guira::aio::Client,
    steps: &[Step],
    exchanges_ns: &mut Vec<u32>,
) -> Result<(), PeersError> {
    let (mut wrong, mut value) = (0, Vec::new());
    for step in steps {
        let started_ns = monotonic_ns();
        let (key, is_there) = match step {
            Step::Read(key) => (key, client.get_into(key, &mut value).await?),
            Step::Update(key, word) => (key, client.update(key, &word.to_le_bytes()).await?),
        };
        exchanges_ns.push(elapsed_ns(started_ns));
        if !is_there {
            return Err(PeersError::missing(key));
        }
        if let Step::Read(key) = step {
            wrong |= difference(key, ValueEnds::of(&value, WORD_BYTES));
        }
    }
    ensure_correct(wrong)
}
