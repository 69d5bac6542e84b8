//! Write combining: puts and updates that wait for another change of their key in the same process, and are completed
//! with it. [R-LOCK-8]

use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use guira::{CreateOptions, Effect, Error, OpenOptions, Put, ServeOptions, Store, Swap, Url};
use guira_check::history::{Answer, Call, History, SEARCH_STEPS};
use guira_conformance::{FaultyProxy, ProxyFaults};
use guira_fabric::SplitMix64;
use guira_testing::patience;

use crate::common::fabric::is_skipped_over_rdma;
use crate::common::slow_link::SlowLink;
use crate::node::test_node::TestNode;

const KEY: &[u8] = b"cuckoo";
const MOST_TRIES: usize = 100;

fn clients<const N: usize>(store: &Store) -> [guira::aio::Client; N] {
    std::array::from_fn(|_| pollster::block_on(store.to_async().client()).unwrap())
}

/// Polls `future` once, after which it has the permit and has asked for its lock, or waits in the queue. Returns `None`
/// if the node was so fast, or this thread so slow, that the future is complete.
fn start<F: Future>(future: F) -> Option<Pin<Box<F>>> {
    let mut future = Box::pin(future);
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending().then_some(future)
}

/// Repeats `case` with new tables until no operation completed too early.
fn retry_until_concurrent(case: impl Fn(&Store) -> Option<()>) {
    let Some(_link) = SlowLink::for_tasks() else { return };
    let is_done = (0..MOST_TRIES).any(|_| {
        let served = TestNode::start();
        let store = Store::open(served.url()).unwrap();
        let done = case(&store);
        assert!(store.check().unwrap().is_clean());
        done.is_some()
    });
    assert!(is_done, "every try had an operation that completed too early");
}

/// Returns for each client its round trips, its changes that waited in the queue, and those that were combined there.
fn costs<const N: usize>(clients: &[guira::aio::Client; N]) -> [[u64; 3]; N] {
    clients.each_ref().map(|client| {
        let counters = client.counters();
        [client.traffic().round_trips, counters.queue_waits, counters.combined]
    })
}

fn since<const N: usize>(now: [[u64; 3]; N], before: [[u64; 3]; N]) -> [[u64; 3]; N] {
    std::array::from_fn(|i| std::array::from_fn(|j| now[i][j] - before[i][j]))
}

/// Of five changes of one key at the same time, the first two are carried out. The second one completes those that
/// waited when it began, whose values are never in the table.
#[test]
fn changes_that_wait_behind_another_are_combined_with_it() {
    retry_until_concurrent(|store| {
        let mut clients: [_; 5] = clients(store);
        let before = costs(&clients);
        let [first, second, third, fourth, fifth] = &mut clients;
        let first = start(first.put(KEY, b"first"))?;
        let second = start(second.put(KEY, b"second"))?;
        let third = start(third.update(KEY, b"third"))?;
        // A long value needs no space if no client can see it.
        let fourth = start(fourth.put(KEY, &[4; 5_000]))?;
        // A change of another kind is not combined.
        let fifth = start(fifth.remove(KEY))?;
        let value = pollster::block_on(async {
            assert_eq!(first.await.unwrap(), Put::Inserted);
            assert_eq!(second.await.unwrap(), Put::Replaced);
            assert!(third.await.unwrap());
            assert_eq!(fourth.await.unwrap(), Put::Replaced);
            store.to_async().reader().get(KEY).await.unwrap()
        });
        assert_eq!(value.as_deref(), Some(&b"second"[..]));
        assert!(pollster::block_on(fifth).unwrap());
        assert_eq!(since(costs(&clients), before), [[2, 0, 0], [2, 1, 0], [0, 1, 1], [0, 1, 1], [2, 1, 0]]);
        Some(())
    });
}

/// An update that finds no key completes the updates behind it, but not the puts. The first put behind it inserts the
/// key, and completes the other put.
#[test]
fn an_update_that_finds_no_key_is_not_combined_with_puts() {
    retry_until_concurrent(|store| {
        let mut clients: [_; 6] = clients(store);
        let before = costs(&clients);
        let [holder, update, put, other_update, other_put, remove] = &mut clients;
        let holder = start(holder.remove(KEY))?;
        let update = start(update.update(KEY, b"update"))?;
        let put = start(put.put(KEY, b"put"))?;
        let other_update = start(other_update.update(KEY, b"other update"))?;
        let other_put = start(other_put.put(KEY, b"other put"))?;
        let remove = start(remove.remove(KEY))?;
        pollster::block_on(async {
            assert!(!holder.await.unwrap());
            assert!(!update.await.unwrap());
            assert!(!other_update.await.unwrap());
            let puts = [put.await.unwrap(), other_put.await.unwrap()];
            assert_eq!(puts, [Put::Replaced, Put::Inserted], "the put that was carried out comes last in the order");
            assert!(remove.await.unwrap());
        });
        let due = [[2, 0, 0], [2, 1, 0], [2, 1, 0], [0, 1, 1], [0, 1, 1], [2, 1, 0]];
        assert_eq!(since(costs(&clients), before), due);
        Some(())
    });
}

/// A change that others wait to be combined with may be dropped at any time: the others are then carried out.
#[test]
fn changes_behind_a_dropped_one_are_carried_out() {
    retry_until_concurrent(|store| {
        let mut clients: [_; 4] = clients(store);
        let [first, second, third, fourth] = &mut clients;
        let first = start(first.put(KEY, b"first"))?;
        let dropped = start(second.put(KEY, b"second"))?;
        let third = start(third.put(KEY, b"third"))?;
        let fourth = start(fourth.update(KEY, b"fourth"))?;
        pollster::block_on(first).unwrap();
        // It has the permit now, and asks for the lock.
        drop(start(dropped)?);
        let value = store.reader().get(KEY).unwrap();
        // The client's next operation releases what the dropped one holds.
        drop(pollster::block_on(second.get(KEY)).unwrap());
        assert_eq!(pollster::block_on(third).unwrap(), Put::Replaced);
        assert!(pollster::block_on(fourth).unwrap());
        assert_eq!(store.reader().get(KEY).unwrap().as_deref(), Some(&b"third"[..]));
        // The try counts only if the change was dropped before its commit was sent.
        (value.as_deref() == Some(&b"first"[..])).then_some(())
    });
}

const KEYS: u64 = 2;
const THREADS: u64 = 3;
const TASKS: u64 = 5;
const LOCALS: u64 = 2;
/// Pause of the clients that map the table, after each operation: they would do hundreds while the others do one.
const PAUSE: Duration = Duration::from_micros(500);
const LENGTH: Duration = Duration::from_secs(3);
const FAULTS: ProxyFaults = ProxyFaults { longest_delay: Duration::from_millis(1), cut_after_bytes: Some(100_000) };
const SEED: u64 = 31;

/// The history of all clients.
struct Log {
    start: Instant,
    history: Mutex<History>,
    ends: Instant,
}

impl Log {
    fn new() -> Log {
        let start = Instant::now();
        Log { start, history: Mutex::default(), ends: start + LENGTH }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn begin(&self, process: u64, key: u64, call: Call) -> guira_check::history::PendingOperation {
        self.history.lock().unwrap().begin(process, key, call, self.now_ns())
    }

    fn end(&self, pending: guira_check::history::PendingOperation, result: Result<Answer, Error>) {
        let mut history = self.history.lock().unwrap();
        match result {
            Ok(answer) => history.complete(pending, answer, self.now_ns()),
            Err(error) if error.effect() == Effect::None => history.fail(pending),
            // The effect is unknown: the operation stays pending.
            Err(_) => {}
        }
    }
}

/// A generator of one client's operations, drawn from its seed.
struct Generator {
    rng: SplitMix64,
    /// The last value used: no two clients use the same.
    value: u64,
    seen: HashMap<u64, u64>,
}

impl Generator {
    fn of(process: u64) -> Generator {
        Generator { rng: SplitMix64(SEED ^ process << 32), value: process << 40, seen: HashMap::new() }
    }

    fn next(&mut self) -> (u64, Call) {
        self.value += 1;
        let (key, new) = (self.rng.below(KEYS), self.value);
        let expected = self.seen.get(&key).copied().unwrap_or(new);
        let call = match self.rng.below(20) {
            0..4 => Call::Get,
            4..11 => Call::Put(new),
            11..15 => Call::Update(new),
            15..16 => Call::Insert(new),
            16..18 => Call::Remove,
            _ => Call::CompareAndSwap { expected, new },
        };
        (key, call)
    }
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// Returns the value of a number. Half of the values need an extent.
fn value(number: u64) -> Vec<u8> {
    let longer = if number.is_multiple_of(2) { 0 } else { 300 };
    [&number.to_le_bytes()[..], &vec![number as u8; longer]].concat()
}

fn number(found: &[u8]) -> u64 {
    let number = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert!(found == value(number), "a torn value: {found:02x?}");
    number
}

fn put(put: Put) -> Answer {
    match put {
        Put::Inserted => Answer::Inserted,
        Put::Replaced => Answer::Replaced,
    }
}

fn swapped(swap: Swap) -> Answer {
    match swap {
        Swap::Done => Answer::Done,
        Swap::Different => Answer::Mismatch,
        Swap::Missing => Answer::Missing,
    }
}

fn found(value: Option<Vec<u8>>) -> Answer {
    value.map_or(Answer::Absent, |value| Answer::Found(number(&value)))
}

fn done(is_done: bool, otherwise: Answer) -> Answer {
    if is_done { Answer::Done } else { otherwise }
}

async fn execute(client: &mut guira::aio::Client, number: u64, call: Call) -> Result<Answer, Error> {
    let key = key(number);
    Ok(match call {
        Call::Get => found(client.get(&key).await?),
        Call::Put(new) => put(client.put(&key, &value(new)).await?),
        Call::Insert(new) => done(client.try_insert(&key, &value(new)).await?, Answer::Exists),
        Call::Update(new) => done(client.update(&key, &value(new)).await?, Answer::Missing),
        Call::Remove => done(client.remove(&key).await?, Answer::Missing),
        Call::CompareAndSwap { expected, new } => {
            swapped(client.compare_and_swap(&key, &value(expected)[..], &value(new)).await?)
        }
        Call::CompareAndRemove(expected) => swapped(client.compare_and_remove(&key, &value(expected)[..]).await?),
    })
}

fn execute_blocking(client: &mut guira::Client, number: u64, call: Call) -> Result<Answer, Error> {
    let key = key(number);
    Ok(match call {
        Call::Get => found(client.get(&key)?),
        Call::Put(new) => put(client.put(&key, &value(new))?),
        Call::Insert(new) => done(client.try_insert(&key, &value(new))?, Answer::Exists),
        Call::Update(new) => done(client.update(&key, &value(new))?, Answer::Missing),
        Call::Remove => done(client.remove(&key)?, Answer::Missing),
        Call::CompareAndSwap { expected, new } => {
            swapped(client.compare_and_swap(&key, &value(expected)[..], &value(new))?)
        }
        Call::CompareAndRemove(expected) => swapped(client.compare_and_remove(&key, &value(expected)[..])?),
    })
}

/// Runs a blocking client, which pauses after each operation. Returns how many of its changes were combined.
fn thread(store: &Store, process: u64, pause: Duration, log: &Log) -> u64 {
    let (mut client, mut generator) = (store.client().unwrap(), Generator::of(process));
    while Instant::now() < log.ends {
        let (key, call) = generator.next();
        let pending = log.begin(process, key, call);
        let result = execute_blocking(&mut client, key, call);
        if let Ok(Answer::Found(value)) = result {
            generator.seen.insert(key, value);
        }
        log.end(pending, result);
        std::thread::sleep(pause);
    }
    client.counters().combined
}

/// Polls a future at most `polls` times, and drops it if it is not complete then.
async fn within<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut polled) = (pin!(future), 0);
    std::future::poll_fn(move |cx| {
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Pending if polled >= polls => Poll::Ready(None),
            poll => poll.map(Some),
        }
    })
    .await
}

/// Runs an async client, which drops some of its operations. Returns how many of its changes were combined.
async fn task(mut client: guira::aio::Client, process: u64, log: Arc<Log>) -> u64 {
    let mut generator = Generator::of(process);
    while Instant::now() < log.ends {
        let (key, call) = generator.next();
        let pending = log.begin(process, key, call);
        // Some operations are dropped: they may have happened or not.
        let polls = if generator.rng.below(50) == 0 { 1 + generator.rng.below(4) } else { u64::MAX };
        let Some(result) = within(polls, execute(&mut client, key, call)).await else { continue };
        if let Ok(Answer::Found(value)) = result {
            generator.seen.insert(key, value);
        }
        log.end(pending, result);
    }
    client.counters().combined
}

/// [R-LOCK-8] Tasks and threads of one process change the same few keys over connections that are cut repeatedly,
/// beside clients that map the table. Whether changes are carried out, combined or dropped, each key has an order that
/// explains all answers.
#[test]
fn keys_with_combined_changes_are_linearizable() {
    if is_skipped_over_rdma("some of its clients map the table, and a proxy cuts connections, which carry no batches") {
        return;
    }
    let options = CreateOptions::new(1_000).format("bytes:64".parse().unwrap()).extent_bytes(16 << 20).seed(SEED);
    let store = Store::create_unnamed(&options).unwrap();
    let served = store.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into()).threads(1)).unwrap();
    let node = served.local_addrs()[0];
    let proxy = FaultyProxy::start(node, SEED, FAULTS);
    let open = |port| {
        let options = OpenOptions::default().reconnect_timeout(patience());
        Store::open_with(Url::tcp("127.0.0.1", port).unwrap(), &options).unwrap()
    };
    let [direct, cut] = [open(node.port()), open(proxy.addr.port())];
    let shared = Arc::new(Log::new());
    let combined: u64 = std::thread::scope(|scope| {
        let log = &*shared;
        let on = |store, processes: std::ops::Range<u64>, pause| {
            processes.map(move |process| scope.spawn(move || thread(store, process, pause, log))).collect::<Vec<_>>()
        };
        let (first, second) = (1 + LOCALS, 1 + LOCALS + THREADS);
        let mut threads = on(&store, 1..first, PAUSE);
        threads.extend(on(&direct, first..second, Duration::ZERO));
        threads.extend(on(&cut, second..second + THREADS, Duration::ZERO));
        let tasks = (second + THREADS..).take(TASKS as usize);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let spawn = |process| {
            let store = if process % 2 == 0 { &direct } else { &cut };
            runtime.spawn(task(pollster::block_on(store.to_async().client()).unwrap(), process, Arc::clone(&shared)))
        };
        let tasks: Vec<_> = tasks.map(spawn).collect();
        let tasks: u64 = tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).sum();
        tasks + threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
    });
    let [.., cuts] = proxy.counts();
    let history = shared.history.lock().unwrap();
    let checked = history.check(SEARCH_STEPS).unwrap_or_else(|refusal| panic!("{refusal}"));
    println!("{checked:?}, {combined} combined, {cuts} cuts");
    assert_eq!(checked.keys, KEYS);
    assert!(combined > checked.answered / 100, "{combined} of {} were combined", checked.answered);
    assert!(cuts > 0 && checked.pending > 0, "{cuts} cuts, {} pending", checked.pending);
    assert!(store.check().unwrap().is_clean());
}
