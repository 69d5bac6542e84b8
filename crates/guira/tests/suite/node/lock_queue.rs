//! The lock queue: clients of one process that want the same locks of a node's table. [R-LOCK-4]

use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use guira::{Counters, Effect, Error, OpenOptions, OperationError, OperationErrorKind, Store};

use crate::common::slow_link::SlowLink;
use crate::node::proxy::Proxy;
use crate::node::test_node::TestNode;

const KEY: &[u8] = b"cuckoo";
const TASKS: u64 = 16;
const THREADS: u64 = 4;
const INSERTS: u64 = 50;
/// More keys than the table has locks.
const MANY_KEYS: u64 = 300;
/// Deadline of an operation that waits in vain. A permit is waited for no longer than that.
const DEADLINE: Duration = Duration::from_secs(1);
const MOST_TRIES: usize = 100;
/// Part of a deadline that may have passed before the test reads the clock.
const NOISE: Duration = Duration::from_millis(500);

/// The cost of a client's changes: round trips, locks found taken, and changes that were combined in the queue.
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

/// Returns the keys that the client of this number changes, one after the other.
fn keys_of(number: u64, keys: u64) -> impl Iterator<Item = [u8; 8]> {
    (0..INSERTS).map(move |i| key((number * 31 + i * 7) % keys))
}

/// Runs tasks of one thread that share a connection.
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

/// Of all clients of a process that want a lock, one at a time asks for it, and each change takes as many round trips
/// as it takes alone: for one key or many, from one store or several, and for tasks as well as threads. Inserts depend
/// on what they find, so none is combined with another.
#[test]
fn clients_of_one_process_queue_for_locks() {
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
        let mut due = [2 * (TASKS + THREADS) * INSERTS, 0, 0];
        if served.is_over_rdma() && keys > 1 {
            // Without masked CAS a client tries again when another one has changed another lock of the word, which
            // depends on their timing: one insert in ten was seen. No lock was found taken all the same. [R-LOCK-6]
            assert!(costs[0] <= due[0] + due[0] / 2, "{} round trips for {}", costs[0], due[0]);
            due[0] = costs[0].max(due[0]);
        }
        assert_eq!(costs, due, "{keys} keys: round trips, locks found taken, combined changes");
    }
}

/// A permit may never be given back, as by a task that is not polled any more. The next client then leaves the queue
/// and finds the lock taken, and its time in the queue counts towards its deadline.
#[test]
fn a_permit_that_is_never_returned_delays_others_until_their_deadline_only() {
    let Some(_link) = SlowLink::for_tasks() else { return };
    let served = TestNode::start();
    let store = Store::open_with(served.url(), &OpenOptions::default().deadline(DEADLINE)).unwrap();
    let (mut idle, mut client) = (pollster::block_on(store.to_async().client()).unwrap(), store.client().unwrap());
    let is_stuck = (0..MOST_TRIES).any(|_| {
        client.put(KEY, b"before").unwrap();
        // Releases what an earlier try left, without which an update takes no permit.
        pollster::block_on(idle.get(KEY)).unwrap();
        let mut stuck = pin!(idle.update(KEY, b"stuck"));
        let is_pending = stuck.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        std::thread::sleep(Duration::from_millis(50));
        // If the node was faster than this thread, the commit is on its way, or the update is complete.
        if !is_pending || client.get(KEY).unwrap().as_deref() != Some(b"before") {
            return false;
        }
        let before = client.counters();
        let error = client.update(KEY, b"after").unwrap_err();
        let Error::Operation(OperationError { kind: OperationErrorKind::Busy { waited_ms, .. }, .. }) = error else {
            panic!("{error}")
        };
        assert_eq!(error.effect(), Effect::None);
        assert!(Duration::from_millis(waited_ms) >= DEADLINE, "{waited_ms} ms");
        // All of its time passed in the queue: it did not ask for the lock again.
        let (after, conflicts) = (client.counters(), before.lock_conflicts);
        assert_eq!((after.queue_waits, after.lock_conflicts), (before.queue_waits + 1, conflicts));
        assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"before"[..]));
        true
    });
    assert!(is_stuck, "no task stopped while it held its locks");
    // It was dropped: the next operation of its client releases the lock, and the queue is empty.
    assert_eq!(pollster::block_on(idle.get(KEY)).unwrap().as_deref(), Some(&b"before"[..]));
    let before = client.counters().queue_waits;
    assert!(client.update(KEY, b"after").unwrap());
    assert_eq!(client.counters().queue_waits, before, "no client is waited for");
}

/// Starts an update of the key, and stops polling it. Returns whether it stopped in the middle, with its lock held, and
/// not after its commit.
fn stopped(store: &Store, idle: &mut guira::aio::Client, is_dropped: bool) -> bool {
    let mut stuck = Box::pin(idle.update(KEY, b"stuck"));
    let is_pending = stuck.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    std::thread::sleep(Duration::from_millis(50));
    let is_stopped = is_pending && store.reader().get(KEY).unwrap().as_deref() == Some(&b"before"[..]);
    if !is_dropped {
        // It is neither polled again nor dropped.
        std::mem::forget(stuck);
    }
    is_stopped
}

/// The next operation of a client releases the locks of a dropped one before it waits in the queue, where others may
/// wait for these locks. [R-DROP-1]
#[test]
fn a_client_that_holds_locks_does_not_queue() {
    let Some(_link) = SlowLink::for_tasks() else { return };
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
        // It has the permit, and asks for the lock in vain.
        let mut waiting = Box::pin(other.update(KEY, b"other"));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(pollster::block_on(idle.update(KEY, b"idle")).unwrap());
        assert!(pollster::block_on(waiting).unwrap());
        assert_eq!(idle.counters().queue_waits, 0);
        assert_eq!(store.check().unwrap().held_locks, 0);
        true
    });
    assert!(is_done, "no operation was dropped while it held its locks");
}

/// A change that the table cannot store also releases the locks of a dropped operation. [R-DROP-1]
#[test]
fn a_refused_change_releases_the_locks_of_a_dropped_one() {
    let Some(_link) = SlowLink::for_tasks() else { return };
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
    assert!(is_done, "no operation was dropped while it held its locks");
}

/// The time in the queue counts for the operation that waited and for no later one, even if the operation that waited
/// failed before it asked for a lock. [R-LOCK-4]
#[test]
fn time_in_the_queue_counts_for_the_operation_that_waited() {
    let Some(_link) = SlowLink::for_tasks() else { return };
    let is_done = (0..MOST_TRIES).any(|_| {
        let served = TestNode::start();
        let options = OpenOptions::default().deadline(2 * DEADLINE);
        let store = Store::open_with(served.url(), &options).unwrap();
        let (mut client, mut before) =
            (store.client().unwrap(), pollster::block_on(store.to_async().client()).unwrap());
        client.put(KEY, b"before").unwrap();
        // The other change waits for its permit, and then fails.
        let mut first = Box::pin(before.update(KEY, b"before"));
        if !first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            return false;
        }
        let waiting = std::thread::spawn(move || {
            // The table has no room for the value, which it finds out when it has the permit.
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
        // On a busy machine the other thread may have come when the permit was free again.
        if client.counters().queue_waits == 0 {
            return false;
        }
        // Later the lock is taken by a client that uses another queue.
        std::thread::sleep(2 * DEADLINE);
        let proxy = Proxy::start(served.addr);
        let elsewhere = Store::open(served.url_at(proxy.addr)).unwrap();
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
    assert!(is_done, "no task stopped while it held its locks");
}
