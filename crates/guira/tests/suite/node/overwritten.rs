//! Puts and updates that wait for another one of their key and process, which overwrites them. // [R-LOCK-8]

use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use guira::{CreateOptions, Effect, Error, OpenOptions, Put, ServeOptions, Store, Swap, Url};
use guira_check::history::{Answer, Call, History, SEARCH_STEPS};
use guira_fabric::SplitMix64;

use crate::common::rough::{Rough, Roughness};
use crate::node::PATIENCE;
use crate::node::served::TestNode;

const KEY: &[u8] = b"cuckoo";
const MOST_TRIES: usize = 100;

fn clients<const N: usize>(store: &Store) -> [guira::aio::Client; N] {
    std::array::from_fn(|_| pollster::block_on(store.to_async().client()).unwrap())
}

/// Polled once: it has the turn and has asked for its lock, or stands in the line. Nothing, if the node was so fast, or
/// this thread so slow, that it has come to its end.
fn begun<F: Future>(future: F) -> Option<Pin<Box<F>>> {
    let mut future = Box::pin(future);
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending().then_some(future)
}

/// Tries until nothing came to its end too early.
fn at_last(scene: impl Fn(&Store) -> Option<()>) {
    let is_done = (0..MOST_TRIES).any(|_| {
        let served = TestNode::start();
        let store = Store::open(served.url()).unwrap();
        let done = scene(&store);
        assert!(store.check().unwrap().is_clean());
        done.is_some()
    });
    assert!(is_done, "some tries come to their end");
}

/// Round trips, changes that waited in a line, and those of them that were overwritten there.
fn costs<const N: usize>(clients: &[guira::aio::Client; N]) -> [[u64; 3]; N] {
    clients.each_ref().map(|client| {
        let counters = client.counters();
        [client.traffic().round_trips, counters.queue_waits, counters.combined]
    })
}

fn since<const N: usize>(now: [[u64; 3]; N], before: [[u64; 3]; N]) -> [[u64; 3]; N] {
    std::array::from_fn(|i| std::array::from_fn(|j| now[i][j] - before[i][j]))
}

/// Of five that want a key at once, the first two carry out their changes; the second one's answers those that came
/// before it began, and no one else's value is ever in the table.
#[test]
fn who_waits_behind_a_change_is_answered_with_it() {
    at_last(|store| {
        let mut clients: [_; 5] = clients(store);
        let before = costs(&clients);
        let [first, second, third, fourth, fifth] = &mut clients;
        let first = begun(first.put(KEY, b"first"))?;
        let second = begun(second.put(KEY, b"second"))?;
        let third = begun(third.update(KEY, b"third"))?;
        // Long values need no space if nobody is to see them.
        let fourth = begun(fourth.put(KEY, &[4; 5_000]))?;
        // Nor is it answered by a change of another kind.
        let fifth = begun(fifth.remove(KEY))?;
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

/// An update that finds no key says so for the updates behind it; puts behind it make the key, and the first of them
/// says so for the others.
#[test]
fn what_finds_no_key_answers_no_put() {
    at_last(|store| {
        let mut clients: [_; 6] = clients(store);
        let before = costs(&clients);
        let [holder, update, put, other_update, other_put, remove] = &mut clients;
        let holder = begun(holder.remove(KEY))?;
        let update = begun(update.update(KEY, b"update"))?;
        let put = begun(put.put(KEY, b"put"))?;
        let other_update = begun(other_update.update(KEY, b"other update"))?;
        let other_put = begun(other_put.put(KEY, b"other put"))?;
        let remove = begun(remove.remove(KEY))?;
        pollster::block_on(async {
            assert!(!holder.await.unwrap());
            assert!(!update.await.unwrap());
            assert!(!other_update.await.unwrap());
            let puts = [put.await.unwrap(), other_put.await.unwrap()];
            assert_eq!(puts, [Put::Replaced, Put::Inserted], "the one that was carried out came last");
            assert!(remove.await.unwrap());
        });
        let due = [[2, 0, 0], [2, 1, 0], [2, 1, 0], [0, 1, 1], [0, 1, 1], [2, 1, 0]];
        assert_eq!(since(costs(&clients), before), due);
        Some(())
    });
}

/// Whoever was to carry out a change for others may be dropped at any time: the others go on by themselves.
#[test]
fn who_waits_behind_a_change_that_is_dropped_carries_out_its_own() {
    at_last(|store| {
        let mut clients: [_; 4] = clients(store);
        let [first, second, third, fourth] = &mut clients;
        let first = begun(first.put(KEY, b"first"))?;
        let dropped = begun(second.put(KEY, b"second"))?;
        let third = begun(third.put(KEY, b"third"))?;
        let fourth = begun(fourth.update(KEY, b"fourth"))?;
        pollster::block_on(first).unwrap();
        // It has the turn now, and asks for the lock.
        drop(begun(dropped)?);
        let value = store.reader().get(KEY).unwrap();
        // What it holds is given back by its next operation.
        drop(pollster::block_on(second.get(KEY)).unwrap());
        assert_eq!(pollster::block_on(third).unwrap(), Put::Replaced);
        assert!(pollster::block_on(fourth).unwrap());
        assert_eq!(store.reader().get(KEY).unwrap().as_deref(), Some(&b"third"[..]));
        // Only a change that was dropped before its commit was sent counts.
        (value.as_deref() == Some(&b"first"[..])).then_some(())
    });
}

const KEYS: u64 = 2;
const THREADS: u64 = 3;
const TASKS: u64 = 5;
const LOCALS: u64 = 2;
/// Of those that map the table, after each operation: they would do hundreds while the others do one.
const REST: Duration = Duration::from_micros(500);
const LENGTH: Duration = Duration::from_secs(3);
const ROUGHNESS: Roughness = Roughness { longest_delay: Duration::from_millis(1), cut_after_bytes: Some(100_000) };
const SEED: u64 = 31;

/// What all clients did, in the order in which it was written down.
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

    fn end(&self, begun: guira_check::history::PendingOperation, result: Result<Answer, Error>) {
        let mut history = self.history.lock().unwrap();
        match result {
            Ok(answer) => history.complete(begun, answer, self.now_ns()),
            Err(error) if error.effect() == Effect::None => history.fail(begun),
            // Nobody knows: it is pending for ever.
            Err(_) => {}
        }
    }
}

/// The operations of one client, drawn from its seed.
struct Draws {
    rng: SplitMix64,
    /// The last value that it brought: no two clients bring the same.
    value: u64,
    seen: HashMap<u64, u64>,
}

impl Draws {
    fn of(process: u64) -> Draws {
        Draws { rng: SplitMix64(SEED ^ process << 32), value: process << 40, seen: HashMap::new() }
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

/// Half of the values need an extent.
fn value(number: u64) -> Vec<u8> {
    let longer = if number.is_multiple_of(2) { 0 } else { 300 };
    [&number.to_le_bytes()[..], &vec![number as u8; longer]].concat()
}

fn number(found: &[u8]) -> u64 {
    let number = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert!(found == value(number), "a mixed value: {found:02x?}");
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

async fn carry_out(client: &mut guira::aio::Client, number: u64, call: Call) -> Result<Answer, Error> {
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

fn carry_out_in_place(client: &mut guira::Client, number: u64, call: Call) -> Result<Answer, Error> {
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

/// A client that is blocked while it waits, and rests after each operation; how many of its changes were overwritten in
/// a line.
fn thread(store: &Store, process: u64, rest: Duration, log: &Log) -> u64 {
    let (mut client, mut draws) = (store.client().unwrap(), Draws::of(process));
    while Instant::now() < log.ends {
        let (key, call) = draws.next();
        let begun = log.begin(process, key, call);
        let result = carry_out_in_place(&mut client, key, call);
        if let Ok(Answer::Found(value)) = result {
            draws.seen.insert(key, value);
        }
        log.end(begun, result);
        std::thread::sleep(rest);
    }
    client.counters().combined
}

/// What becomes of a future within so many polls; otherwise it is dropped.
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

async fn task(mut client: guira::aio::Client, process: u64, log: Arc<Log>) -> u64 {
    let mut draws = Draws::of(process);
    while Instant::now() < log.ends {
        let (key, call) = draws.next();
        let begun = log.begin(process, key, call);
        // Some of them are given up: what they asked for may have happened, or not.
        let polls = if draws.rng.below(50) == 0 { 1 + draws.rng.below(4) } else { u64::MAX };
        let Some(result) = within(polls, carry_out(&mut client, key, call)).await else { continue };
        if let Ok(Answer::Found(value)) = result {
            draws.seen.insert(key, value);
        }
        log.end(begun, result);
    }
    client.counters().combined
}

/// [R-LOCK-8] Tasks and threads of one process that want the same few keys, over a way that is cut all the while, and
/// clients that map the table: whoever is answered by another's change, and whoever carries it out, or gives it up,
/// each key has an order that explains all answers.
#[test]
fn keys_of_which_changes_are_overwritten_are_linearizable() {
    let options = CreateOptions::new(1_000).format("bytes:64".parse().unwrap()).extent_bytes(16 << 20).seed(SEED);
    let store = Store::create_unnamed(&options).unwrap();
    let served = store.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into()).threads(1)).unwrap();
    let node = served.local_addrs()[0];
    let rough = Rough::before(node, SEED, ROUGHNESS);
    let open = |port| {
        let options = OpenOptions::default().reconnect_timeout(PATIENCE);
        Store::open_with(Url::tcp("127.0.0.1", port).unwrap(), &options).unwrap()
    };
    let [smooth, cut] = [open(node.port()), open(rough.addr.port())];
    let shared = Arc::new(Log::new());
    let overwritten: u64 = std::thread::scope(|scope| {
        let log = &*shared;
        let on = |store, processes: std::ops::Range<u64>, rest| {
            processes.map(move |process| scope.spawn(move || thread(store, process, rest, log))).collect::<Vec<_>>()
        };
        let (first, second) = (1 + LOCALS, 1 + LOCALS + THREADS);
        let mut threads = on(&store, 1..first, REST);
        threads.extend(on(&smooth, first..second, Duration::ZERO));
        threads.extend(on(&cut, second..second + THREADS, Duration::ZERO));
        let tasks = (second + THREADS..).take(TASKS as usize);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let spawn = |process| {
            let store = if process % 2 == 0 { &smooth } else { &cut };
            runtime.spawn(task(pollster::block_on(store.to_async().client()).unwrap(), process, Arc::clone(&shared)))
        };
        let tasks: Vec<_> = tasks.map(spawn).collect();
        let tasks: u64 = tasks.into_iter().map(|task| runtime.block_on(task).unwrap()).sum();
        tasks + threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
    });
    let [.., cuts] = rough.done();
    let history = shared.history.lock().unwrap();
    let checked = history.check(SEARCH_STEPS).unwrap_or_else(|refusal| panic!("{refusal}"));
    println!("{checked:?}, {overwritten} overwritten, {cuts} cuts");
    assert_eq!(checked.keys, KEYS);
    assert!(overwritten > checked.answered / 100, "{overwritten} of {} were overwritten", checked.answered);
    assert!(cuts > 0 && checked.pending > 0, "{cuts} cuts, {} pending", checked.pending);
    assert!(store.check().unwrap().is_clean());
}
