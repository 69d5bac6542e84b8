//! Pools: many tasks and threads share few clients in order of arrival, even if others are dropped, panic or fail.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use guira::aio::{Pool, PooledClient};
use guira::{Blame, CreateOptions, Effect, Error, OpenError, PoolStatus, ServeOptions, ServerHandle, Store, Url};
use guira_testing::patience;

use crate::common::Table;

const TASKS: u32 = 10_000;
const CLIENTS: u16 = 16;

/// Returns options of a table with no more client slots than a pool may take.
fn options() -> CreateOptions {
    CreateOptions::new(u64::from(TASKS)).format("fixed:8:8".parse().unwrap()).max_clients(CLIENTS)
}

fn key(i: u32) -> [u8; 8] {
    u64::from(i).to_le_bytes()
}

/// Serves a new table, and returns the server and a store that is connected to it.
fn remote(options: &CreateOptions) -> (ServerHandle, Store) {
    let served = Store::create_unnamed(options).unwrap();
    let served = served.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    let store = Store::open(Url::tcp("127.0.0.1", served.local_addrs()[0].port()).unwrap()).unwrap();
    (served, store)
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn ready(polled: Poll<Result<PooledClient, Error>>) -> PooledClient {
    match polled {
        Poll::Ready(client) => client.unwrap(),
        Poll::Pending => panic!("the call waits"),
    }
}

fn status(max: usize, size: usize, idle: usize, waiting: usize) -> PoolStatus {
    // The type is non-exhaustive.
    let mut status = PoolStatus::default();
    (status.max, status.size, status.idle, status.waiting) = (max, size, idle, waiting);
    status
}

/// Runs ten thousand tasks that do an operation each with sixteen clients, and checks that none fails. [R-SLOT-1]
fn check_sharing(store: &Store) {
    let pool = store.to_async().pool(CLIENTS).timeout(patience());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|i| {
                let pool = pool.clone();
                tokio::spawn(async move { pool.get().await?.put(&key(i), &key(i)).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
    let PoolStatus { max, size, idle, waiting, .. } = pool.status();
    assert!((1..=16).contains(&size) && (max, idle, waiting) == (16, size, 0), "{pool:?}");
    assert_eq!(store.stat().unwrap().clients.len(), size);
    pollster::block_on(pool.close_idle()).unwrap();
    assert_eq!((pool.status().size, pool.status().idle), (0, 0));
    assert_eq!(store.stat().unwrap().clients.len(), 0);
    let mut reader = store.reader();
    let keys: Vec<_> = (0..TASKS).map(key).collect();
    assert!(reader.get_many(&keys).into_iter().zip(&keys).all(|(found, key)| found.unwrap().as_deref() == Some(key)));
}

#[test]
fn ten_thousand_tasks_share_sixteen_clients() {
    let (_table, store) = Table::create(&options());
    check_sharing(&store);
}

#[test]
fn ten_thousand_tasks_share_sixteen_clients_of_a_memory_node() {
    let (_served, store) = remote(&options());
    check_sharing(&store);
}

#[test]
fn threads_share_blocking_clients() {
    let (_table, local) = Table::create(&options());
    let (_served, remote) = remote(&options());
    for store in [local, remote] {
        let pool = store.pool(2).timeout(patience());
        thread::scope(|scope| {
            for thread in 0..8 {
                let pool = pool.clone();
                scope.spawn(move || {
                    for i in 0..50 {
                        assert!(pool.get().unwrap().try_insert(&key(1_000 * thread + i), &key(i)).unwrap());
                    }
                });
            }
        });
        assert!(pool.status().size <= 2 && store.len_estimate().unwrap().entries == 400, "{pool:?}");
        assert_eq!(store.stat().unwrap().clients.len(), pool.status().idle);
    }
}

/// Waiters are served in order of arrival. One that leaves delays no other, not even if it was given a client that it
/// never took.
#[test]
fn waiters_are_served_in_order() {
    let (_table, store) = Table::create(&options());
    let pool = store.to_async().pool(1);
    let held = pollster::block_on(pool.get()).unwrap();
    let slot = held.slot();
    let [mut first, mut second, mut third, mut fourth] = [(); 4].map(|()| Box::pin(pool.get()));
    for future in [&mut first, &mut second, &mut third, &mut fourth] {
        assert!(poll(future.as_mut()).is_pending());
    }
    assert_eq!(pool.status(), status(1, 1, 0, 4));
    drop(first);
    drop(held);
    assert!(poll(third.as_mut()).is_pending() && poll(fourth.as_mut()).is_pending(), "the second one is next");
    // The second waiter was given the client, and never takes it.
    drop(second);
    assert!(poll(fourth.as_mut()).is_pending());
    let held = ready(poll(third.as_mut()));
    assert_eq!((held.slot(), pool.status()), (slot, status(1, 1, 0, 1)));
    // A newcomer does not overtake.
    let mut late = Box::pin(pool.get());
    assert!(poll(late.as_mut()).is_pending());
    drop(held);
    assert!(poll(late.as_mut()).is_pending());
    drop(ready(poll(fourth.as_mut())));
    drop(ready(poll(late.as_mut())));
    assert_eq!(pool.status(), status(1, 1, 1, 0));
}

/// The only owner of a task, used as its waker: the task is dropped with the last clone of the waker.
struct TaskOwner(#[expect(dead_code, reason = "it is dropped")] Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Wake for TaskOwner {
    fn wake(self: Arc<Self>) {}
}

/// Returns a waker that owns a task that waits for a client of `pool`.
fn owner(pool: &Pool) -> Waker {
    let pool = pool.clone();
    let mut task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move { drop(pool.get().await) });
    assert!(poll(task.as_mut()).is_pending());
    Waker::from(Arc::new(TaskOwner(Mutex::new(task))))
}

/// A waker may own a task that itself waits in the same pool. The pool drops its wakers while it is not locked, so that
/// the task can leave it.
#[test]
fn dropping_a_waker_may_end_a_task_that_waits_in_the_same_pool() {
    let (_table, store) = Table::create(&options());
    let (over, is_over) = channel();
    let pool = store.to_async().pool(1).timeout(patience());
    let pool_of_thread = pool.clone();
    thread::spawn(move || {
        let pool = pool_of_thread;
        let held = pool.get().wait();
        let mut replaced = Box::pin(pool.get());
        assert!(replaced.as_mut().poll(&mut Context::from_waker(&owner(&pool))).is_pending());
        assert_eq!(pool.status().waiting, 2);
        assert!(poll(replaced.as_mut()).is_pending());
        assert_eq!(pool.status().waiting, 1, "the other task ended");
        over.send("replaced").unwrap();
        let mut left = Box::pin(pool.get());
        assert!(left.as_mut().poll(&mut Context::from_waker(&owner(&pool))).is_pending());
        drop(left);
        assert_eq!(pool.status().waiting, 1, "the other task ended");
        over.send("left").unwrap();
        drop((replaced, held));
    });
    for step in ["replaced", "left"] {
        assert_eq!(is_over.recv_timeout(patience()), Ok(step), "the pool is locked twice");
    }
}

/// The error says how long the call waited; the executor needs no timer.
#[test]
fn waiting_for_a_pooled_client_times_out() {
    let (_table, store) = Table::create(&options());
    let (pool, threads) = (store.to_async().pool(1), store.pool(1));
    let (held, held_too) = (pollster::block_on(pool.get()).unwrap(), threads.get().unwrap());
    for timeout in [Duration::ZERO, Duration::from_millis(30)] {
        let began = Instant::now();
        let in_task = pollster::block_on(pool.clone().timeout(timeout).get()).map(drop).unwrap_err();
        let in_place = threads.clone().timeout(timeout).get().map(drop).unwrap_err();
        assert!(began.elapsed() >= 2 * timeout);
        for error in [in_task, in_place] {
            assert_eq!((error.blame(), error.effect()), (Blame::Busy, Effect::None), "{error}");
            let Error::Open(OpenError::PoolTimeout { max: 1, waited_ms, .. }) = error else { panic!("{error}") };
            assert!(u128::from(waited_ms) >= timeout.as_millis(), "{waited_ms} ms");
        }
    }
    drop((held, held_too));
    let patient = pool.clone().timeout(Duration::from_millis(30));
    assert_eq!(pool.status(), status(1, 1, 1, 0));
    assert!(pollster::block_on(patient.get()).is_ok() && threads.get().is_ok());
}

/// [R-DROP-1] A client whose operation was dropped midway can be lent again, and the locks of the operation are
/// released even if no task takes the client.
#[test]
fn a_client_whose_operation_was_dropped_is_lent_again() {
    let (_served, store) = remote(&options());
    let pool = store.to_async().pool(1).timeout(patience());
    let mut other = store.client().unwrap();
    for i in 0..50 {
        let mut held = pollster::block_on(pool.get()).unwrap();
        {
            let (key, value) = (key(1), key(i));
            let mut put = pin!(held.put(&key, &value));
            // After some polls it may hold a lock; it seldom completes.
            for _ in 0..i % 5 {
                if poll(put.as_mut()).is_ready() {
                    break;
                }
                thread::yield_now();
            }
        }
        drop(held);
        // No task uses the pool's client meanwhile.
        other.put(&key(1), &key(100 + i)).unwrap();
        assert_eq!(pollster::block_on(pool.get()).unwrap().get(&key(1)).wait().as_deref(), Some(&key(100 + i)[..]));
    }
    assert_eq!((pool.status().size, store.check().unwrap().is_clean()), (1, true));
}

/// Blocks until an operation has succeeded.
trait Wait<T> {
    fn wait(self) -> T;
}

impl<T, F: Future<Output = Result<T, Error>>> Wait<T> for F {
    fn wait(self) -> T {
        pollster::block_on(self).unwrap()
    }
}

/// A client whose holder panics is closed and does not return to the pool, which can open another one.
#[test]
fn a_panic_closes_only_the_client_of_its_holder() {
    let (_table, store) = Table::create(&options());
    let (pool, threads) = (store.to_async().pool(1).timeout(patience()), store.pool(1).timeout(patience()));
    for _ in 0..3 {
        let (pool, threads) = (pool.clone(), threads.clone());
        let panicked = thread::spawn(move || {
            let (mut held, mut held_too) = (pool.get().wait(), threads.get().unwrap());
            held.put(&key(1), &key(2)).wait();
            held_too.put(&key(2), &key(3)).unwrap();
            panic!("the test panics on purpose");
        });
        assert!(panicked.join().is_err());
    }
    assert_eq!((pool.status(), threads.status()), (status(1, 0, 0, 0), status(1, 0, 0, 0)));
    assert_eq!(store.stat().unwrap().clients.len(), 0);
    assert_eq!(pool.get().wait().get(&key(2)).wait().as_deref(), Some(&key(3)[..]));
    assert!(threads.get().unwrap().contains(&key(1)).unwrap());
}

/// If a client cannot be opened, the caller gets the error, and the pool can still open as many as before.
#[test]
fn a_client_that_cannot_be_opened_takes_no_place() {
    let (_table, store) = Table::create(&options().max_clients(1));
    let taken = store.client().unwrap();
    let pool = store.to_async().pool(2).timeout(patience());
    for _ in 0..3 {
        let error = pollster::block_on(pool.get()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Open(OpenError::TooManyClients { .. })), "{error}");
        assert_eq!(pool.status(), status(2, 0, 0, 0));
    }
    drop(taken);
    drop(pool.get().wait());
    assert_eq!(pool.status(), status(2, 1, 1, 0));
}

/// If the table has fewer free slots than the pool may take, callers wait for the clients of the pool that are open,
/// and get an error at their timeout.
#[test]
fn clients_of_a_pool_are_waited_for_if_the_table_has_no_free_slot() {
    let (_table, store) = Table::create(&options().max_clients(3));
    let taken = store.client().unwrap();
    let (pool, threads) = (store.to_async().pool(9).timeout(patience()), store.pool(9).timeout(patience()));
    let (held, held_too) = (pool.get().wait(), threads.get().unwrap());
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(pool.get()));
    guira_testing::wait_until("both tasks wait", || {
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        pool.status() == status(9, 1, 0, 2)
    });
    let waiting = thread::spawn({
        let threads = threads.clone();
        move || threads.get().map(|client| client.slot())
    });
    guira_testing::wait_until("the thread waits", || threads.status().waiting == 1);
    let slots = (held.slot(), held_too.slot());
    for timeout in [Duration::ZERO, Duration::from_millis(30)] {
        let began = Instant::now();
        let in_task = pollster::block_on(pool.clone().timeout(timeout).get()).map(drop).unwrap_err();
        let in_place = threads.clone().timeout(timeout).get().map(drop).unwrap_err();
        for error in [in_task, in_place] {
            // Another client is tried once a second.
            let waited = matches!(error, Error::Open(OpenError::PoolTimeout { max: 9, .. }));
            assert!(waited || matches!(error, Error::Open(OpenError::TooManyClients { max: 3, .. })), "{error}");
        }
        assert!(began.elapsed() >= 2 * timeout);
    }
    assert_eq!((pool.status(), threads.status()), (status(9, 1, 0, 2), status(9, 1, 0, 1)));
    drop((held, held_too));
    assert_eq!((ready(poll(first.as_mut())).slot(), waiting.join().unwrap().unwrap()), slots);
    assert_eq!(ready(poll(second.as_mut())).slot(), slots.0);
    // A slot that was given back is used: the pool has as many rights as before.
    drop(taken);
    drop([(); 2].map(|()| pool.get().wait()));
    assert_eq!(pool.status(), status(9, 2, 2, 0));
}

/// A caller that waits because the table has no free slot opens a client when the last one of the pool was closed.
#[test]
fn the_last_client_of_a_pool_leaves_its_place_to_a_waiter() {
    let (_table, store) = Table::create(&options().max_clients(1));
    let pool = store.pool(9).timeout(patience());
    let held = pool.get().unwrap();
    let waiting = [(); 2].map(|()| {
        let pool = pool.clone();
        thread::spawn(move || pool.get().map(drop))
    });
    guira_testing::wait_until("two threads wait", || pool.status().waiting == 2);
    let panicked = thread::spawn(move || {
        let _held = held;
        panic!("the test panics on purpose");
    });
    assert!(panicked.join().is_err());
    waiting.into_iter().for_each(|waiting| waiting.join().unwrap().unwrap());
    assert_eq!(pool.status(), status(9, 1, 1, 0));
}

/// [R-SESSION-1] A client that lost its session goes on in another one for its next holder, which does not notice.
#[test]
fn a_pooled_client_reconnects_for_its_next_holder() {
    let options = options();
    let owner = Store::create_unnamed(&options).unwrap();
    let mut served = owner.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    let addr = served.local_addrs()[0];
    let store = Store::open(Url::tcp("127.0.0.1", addr.port()).unwrap()).unwrap();
    let pool = store.to_async().pool(2).timeout(patience());
    pool.get().wait().put(&key(1), &key(1)).wait();
    for i in 2..5 {
        drop(served);
        served = owner.serve(&ServeOptions::new(addr)).unwrap();
        assert!(pool.get().wait().try_insert(&key(i), &key(i)).wait());
    }
    assert_eq!((pool.status().size, owner.len_estimate().unwrap().entries), (1, 4));
    drop(served);
}

/// A pool and its clients keep the table open; the last of them closes the clients.
#[test]
fn a_pool_outlives_its_store() {
    let (table, store) = Table::create(&options());
    let pool: Pool = store.to_async().pool(3);
    drop(store);
    let (mut held, other) = (pool.get().wait(), pool.get().wait());
    assert_ne!(held.slot(), other.slot());
    drop((pool, other));
    held.put(&key(1), &key(2)).wait();
    let store = Store::open(&table.url).unwrap();
    assert_eq!(store.stat().unwrap().clients.len(), 2);
    drop(held);
    assert_eq!(store.stat().unwrap().clients.len(), 0);
}

fn assert_shared<T: Send + Sync + Clone + std::fmt::Debug>(_: &T) {}

fn assert_send<T: Send>(_: &T) {}

#[test]
fn pools_are_sync_and_their_futures_are_send() {
    let (_table, store) = Table::create(&options());
    let (pool, threads) = (store.to_async().pool(0), store.pool(0));
    assert_shared(&pool);
    assert_shared(&threads);
    assert_send(&pool.get());
    assert_send(&threads.get().unwrap());
    assert_eq!(pool.status().max, 1);
    let (held, said) = (pool.get().wait(), format!("{pool:?}"));
    assert!(said.contains(&store.url().to_string()) && said.contains("idle: 0"), "{said}");
    assert_eq!(format!("{held:?}"), format!("PooledClient {{ slot: {} }}", held.slot()));
}

/// A pool works with the executor of smol and with one of a single future, both at the same time.
#[test]
fn pools_work_with_any_executor() {
    let (_table, store) = Table::create(&options());
    let pool = store.to_async().pool(2).timeout(patience());
    let work = |first: u32| {
        let pool = pool.clone();
        async move {
            for i in first..first + 100 {
                pool.get().await.unwrap().put(&key(i), &key(i)).await.unwrap();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let executor = async_executor::Executor::new();
            let tasks: Vec<_> = (0..4).map(|task| executor.spawn(work(100 * task))).collect();
            pollster::block_on(executor.run(async {
                for task in tasks {
                    task.await;
                }
            }));
        });
        scope.spawn(|| pollster::block_on(work(1_000)));
    });
    assert_eq!(store.len_estimate().unwrap().entries, 500);
}
