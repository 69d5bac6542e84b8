//! Clients of one process that want the same locks of a node's table. // [R-LOCK-4]

use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use guira::{Counters, Effect, Error, OpenOptions, OperationError, OperationErrorKind, Store, Url};

use crate::node::proxy::Proxy;
use crate::node::served::TestNode;

const KEY: &[u8] = b"cuckoo";
const TASKS: u64 = 16;
const THREADS: u64 = 4;
const INSERTS: u64 = 50;
/// More than the table has locks.
const MANY_KEYS: u64 = 300;
/// Of one that waits in vain. As long as anybody waits for a turn.
const DEADLINE: Duration = Duration::from_secs(1);
const MOST_TRIES: usize = 100;
/// A busy machine may add so much between two looks at the clock.
const NOISE: Duration = Duration::from_millis(500);

/// What a client's changes took: round trips, locks that were taken, and changes that were overwritten in a line.
type Cost = [u64; 3];

fn sum(costs: impl IntoIterator<Item = Cost>) -> Cost {
    costs.into_iter().fold([0; 3], |sum, cost| [0, 1, 2].map(|i| sum[i] + cost[i]))
}

fn cost(round_trips: u64, counters: Counters) -> Cost {
    [round_trips, counters.lock_conflicts, counters.combined]
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// The keys that the contender of this number wants, one after the other.
fn keys_of(number: u64, keys: u64) -> impl Iterator<Item = [u8; 8]> {
    (0..INSERTS).map(move |i| key((number * 31 + i * 7) % keys))
}

/// Tasks of one thread that share a connection.
fn run_tasks(store: &Store, keys: u64, starts: &Barrier) -> Cost {
    let clients: Vec<_> = (0..TASKS).map(|_| pollster::block_on(store.to_async().client()).unwrap()).collect();
    starts.wait();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let insert = |(number, mut client): (u64, guira::aio::Client)| {
        runtime.spawn(async move {
            let before = client.traffic().round_trips;
            for key in keys_of(number, keys) {
                assert!(!client.try_insert(&key, b"new").await.unwrap());
            }
            cost(client.traffic().round_trips - before, client.counters())
        })
    };
    let running: Vec<_> = (0..).zip(clients).map(insert).collect();
    sum(running.into_iter().map(|task| runtime.block_on(task).unwrap()))
}

fn run_thread(store: &Store, number: u64, keys: u64, starts: &Barrier) -> Cost {
    let mut client = store.client().unwrap();
    starts.wait();
    let before = client.traffic().round_trips;
    for key in keys_of(number, keys) {
        assert!(!client.try_insert(&key, b"new").unwrap());
    }
    cost(client.traffic().round_trips - before, client.counters())
}

/// However many want a lock, for the same key or for different ones, whichever store of the process they come from, and
/// whether they are tasks or threads: one at a time asks for it, and each change takes the round trips that it takes
/// alone. Inserts depend on what they find: none is answered by another.
#[test]
fn clients_of_one_process_take_turns_at_locks() {
    for keys in [1, MANY_KEYS] {
        let served = TestNode::start();
        let [one, other] = [(); 2].map(|()| Store::open(served.url()).unwrap());
        let mut client = one.client().unwrap();
        (0..keys).for_each(|number| assert!(client.try_insert(&key(number), b"old").unwrap()));
        let starts = Barrier::new(1 + THREADS as usize);
        let costs = std::thread::scope(|scope| {
            let (one, other, starts) = (&one, &other, &starts);
            let tasks = scope.spawn(move || run_tasks(one, keys, starts));
            let run = |number| scope.spawn(move || run_thread(other, TASKS + number, keys, starts));
            let all: Vec<_> = (0..THREADS).map(run).chain([tasks]).collect();
            sum(all.into_iter().map(|it| it.join().unwrap()))
        });
        let round_trips = 2 * (TASKS + THREADS) * INSERTS;
        assert_eq!(costs, [round_trips, 0, 0], "{keys} keys: round trips, locks found taken, answers by others");
    }
}

/// Who has the turn may never come to an end, as a task that nobody polls any more: the next one gives up the line,
/// meets the lock, and the time in the line counts for its deadline.
#[test]
fn a_turn_that_does_not_end_holds_nobody_up_beyond_the_deadline() {
    let served = TestNode::start();
    let store = Store::open_with(served.url(), &OpenOptions::default().deadline(DEADLINE)).unwrap();
    let (mut idle, mut client) = (pollster::block_on(store.to_async().client()).unwrap(), store.client().unwrap());
    let is_stuck = (0..MOST_TRIES).any(|_| {
        client.put(KEY, b"before").unwrap();
        let mut stuck = pin!(idle.update(KEY, b"stuck"));
        let is_pending = stuck.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        std::thread::sleep(Duration::from_millis(50));
        // Where the node was faster than this thread, its commit is on its way, or it has come to its end.
        if !is_pending || client.get(KEY).unwrap().as_deref() != Some(b"before") {
            return false;
        }
        let start = Instant::now();
        let error = client.update(KEY, b"after").unwrap_err();
        let elapsed = start.elapsed();
        let Error::Operation(OperationError { kind: OperationErrorKind::Busy { waited_ms, .. }, .. }) = error else {
            panic!("{error}")
        };
        assert_eq!(error.effect(), Effect::None);
        let waited = Duration::from_millis(waited_ms);
        assert!(waited >= DEADLINE && elapsed < waited + NOISE, "{waited:?} of {elapsed:?}");
        assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"before"[..]));
        true
    });
    assert!(is_stuck, "some task stops with its locks taken");
    // It was dropped: the next operation of its client gives the lock back, and the line is free.
    assert_eq!(pollster::block_on(idle.get(KEY)).unwrap().as_deref(), Some(&b"before"[..]));
    let start = Instant::now();
    assert!(client.update(KEY, b"after").unwrap());
    assert!(start.elapsed() < DEADLINE, "nobody is waited for");
}

/// A client of `store` that stopped in the middle of an update of the key, whose lock it has; nothing, if it came to
/// its end.
fn stopped(store: &Store, idle: &mut guira::aio::Client, is_dropped: bool) -> bool {
    let mut stuck = Box::pin(idle.update(KEY, b"stuck"));
    let is_pending = stuck.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    std::thread::sleep(Duration::from_millis(50));
    let is_stopped = is_pending && store.reader().get(KEY).unwrap().as_deref() == Some(&b"before"[..]);
    if !is_dropped {
        // It is polled no more, and not dropped either.
        std::mem::forget(stuck);
    }
    is_stopped
}

/// What an operation that was dropped holds is given back by the next one of its client before it waits for anybody:
/// somebody may wait for it in the line. // [R-DROP-1]
#[test]
fn who_holds_a_lock_stands_in_no_line() {
    let is_done = (0..MOST_TRIES).any(|_| {
        let served = TestNode::start();
        let store = Store::open(served.url()).unwrap();
        let (mut idle, mut other) = (
            pollster::block_on(store.to_async().client()).unwrap(),
            pollster::block_on(store.to_async().client()).unwrap(),
        );
        pollster::block_on(other.put(KEY, b"before")).unwrap();
        if !stopped(&store, &mut idle, true) {
            return false;
        }
        let start = Instant::now();
        // It has the turn, and asks for the lock in vain.
        let mut waiting = Box::pin(other.update(KEY, b"other"));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(pollster::block_on(idle.update(KEY, b"idle")).unwrap());
        assert!(pollster::block_on(waiting).unwrap());
        assert!(start.elapsed() < DEADLINE, "{:?}", start.elapsed());
        assert_eq!(idle.counters().queue_waits, 0);
        assert_eq!(store.check().unwrap().held_locks, 0);
        true
    });
    assert!(is_done, "some operation is dropped with its locks taken");
}

/// A change that the table cannot store gives back what a dropped operation holds, too. // [R-DROP-1]
#[test]
fn a_refused_change_gives_back_what_a_dropped_one_holds() {
    let is_done = (0..MOST_TRIES).any(|_| {
        let served = TestNode::start();
        let store = Store::open(served.url()).unwrap();
        let mut idle = pollster::block_on(store.to_async().client()).unwrap();
        pollster::block_on(idle.put(KEY, b"before")).unwrap();
        if !stopped(&store, &mut idle, true) {
            return false;
        }
        assert!(store.check().unwrap().held_locks > 0);
        let error = pollster::block_on(idle.put(&[0; (64 << 10) + 1], b"after")).unwrap_err();
        let Error::Operation(OperationError { kind, .. }) = &error else { panic!("{error}") };
        assert!(matches!(kind, OperationErrorKind::KeyLength { .. }), "{error}");
        assert_eq!(store.check().unwrap().held_locks, 0);
        true
    });
    assert!(is_done, "some operation is dropped with its locks taken");
}

/// The time in a line counts for the operation that waited, and for no later one: not even if that one failed before it
/// asked for a lock. // [R-LOCK-4]
#[test]
fn a_wait_counts_for_its_own_operation() {
    let is_done = (0..MOST_TRIES).any(|_| {
        let served = TestNode::start();
        let options = OpenOptions::default().deadline(2 * DEADLINE);
        let store = Store::open_with(served.url(), &options).unwrap();
        let (mut client, mut before) =
            (store.client().unwrap(), pollster::block_on(store.to_async().client()).unwrap());
        client.put(KEY, b"before").unwrap();
        // It waits for its turn, and fails then.
        let mut first = Box::pin(before.update(KEY, b"before"));
        if !first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            return false;
        }
        let waiting = std::thread::spawn(move || {
            // More than the table has room for, as it learns when its turn has come.
            let error = client.put(KEY, &vec![0; 64 << 20]).unwrap_err();
            assert!(
                matches!(error, Error::Operation(OperationError { kind: OperationErrorKind::NoSpace(_), .. })),
                "{error}"
            );
            client
        });
        std::thread::sleep(Duration::from_millis(100));
        pollster::block_on(first).unwrap();
        let mut client = waiting.join().unwrap();
        // On a busy machine the other thread may have come when the turn was free again.
        if client.counters().queue_waits == 0 {
            return false;
        }
        // Some time later the lock is taken by somebody who stands in other lines.
        std::thread::sleep(2 * DEADLINE);
        let proxy = Proxy::before(served.addr);
        let elsewhere = Store::open(Url::tcp("127.0.0.1", proxy.addr.port()).unwrap()).unwrap();
        let mut idle = pollster::block_on(elsewhere.to_async().client()).unwrap();
        if !stopped(&store, &mut idle, false) {
            return false;
        }
        let start = Instant::now();
        let error = client.update(KEY, b"after").unwrap_err();
        assert!(
            matches!(error, Error::Operation(OperationError { kind: OperationErrorKind::Busy { .. }, .. })),
            "{error}"
        );
        assert!(start.elapsed() >= 2 * DEADLINE - NOISE, "{:?}", start.elapsed());
        true
    });
    assert!(is_done, "some task stops with its locks taken");
}
