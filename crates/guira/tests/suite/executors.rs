//! Futures that any executor runs: they are `Send`, and tasks of several executors and a thread without one increment
//! the same keys without losing a count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use guira::aio::{Client, Reader};
use guira::{CreateOptions, OpenOptions, Put, Store, Swap};

use crate::common::Table;

/// Tasks of one executor.
const TASKS: u64 = 4;
/// Increments of each task.
const COUNTS: u64 = 300;
/// Keys that all tasks increment.
const COUNTERS: u64 = 3;
/// Tries of one increment before a task counts as starved.
const TRIES: u64 = 1_000_000;

fn assert_send<T: Send>(_: &T) {}

/// Makes a future of every operation, and polls none.
fn all_client_futures(client: &mut Client) {
    let (key, value, keys) = (&b"key"[..], &b"value"[..], [b"a", b"b"]);
    let mut into = Vec::new();
    assert_send(client);
    assert_send(&client.get(key));
    assert_send(&client.get_into(key, &mut into));
    assert_send(&client.get_with(key, 1.., <[u8]>::len));
    assert_send(&client.get_versioned(key));
    assert_send(&client.get_versioned_into(key, &mut into));
    assert_send(&client.get_many(&keys));
    assert_send(&client.get_many_with(&keys, |_, _| ()));
    assert_send(&client.contains(key));
    assert_send(&client.put(key, value));
    assert_send(&client.try_insert(key, value));
    assert_send(&client.update(key, value));
    assert_send(&client.remove(key));
    assert_send(&client.compare_and_swap(key, value, value));
    assert_send(&client.compare_and_remove(key, value));
    assert_send(&client.put_many(&[(key, value)]));
    assert_send(&client.remove_many(&keys));
}

fn all_reader_futures(reader: &mut Reader) {
    let (key, keys) = (&b"key"[..], [b"a", b"b"]);
    let mut into = Vec::new();
    assert_send(reader);
    assert_send(&reader.get(key));
    assert_send(&reader.get_into(key, &mut into));
    assert_send(&reader.get_with(key, 1.., <[u8]>::len));
    assert_send(&reader.get_versioned(key));
    assert_send(&reader.get_versioned_into(key, &mut into));
    assert_send(&reader.get_many(&keys));
    assert_send(&reader.get_many_with(&keys, |_, _| ()));
    assert_send(&reader.contains(key));
}

/// Every operation's future can move to another thread. A future that is never polled does nothing.
#[test]
fn every_future_is_send() {
    let (_table, store) = Table::create(&CreateOptions::new(100));
    let mut client = pollster::block_on(store.to_async().client()).unwrap();
    all_client_futures(&mut client);
    all_reader_futures(&mut store.to_async().reader());
    assert_eq!(store.len_estimate().unwrap().entries, 0);
}

fn counter(i: u64) -> Vec<u8> {
    format!("counter {i}").into_bytes()
}

/// Returns the value of a count: in a row, or for every third key in an extent.
fn count_value(i: u64, count: u64) -> Vec<u8> {
    let bytes = if i.is_multiple_of(3) { 200 } else { 8 };
    count.to_le_bytes().into_iter().cycle().take(bytes).collect()
}

fn count_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("eight bytes"))
}

/// Runs one task, which increments shared keys and changes keys of its own beside them.
async fn work(store: Store, me: u64) {
    let mut client = pollster::block_on(store.to_async().client()).expect("a free slot");
    for i in 0..COUNTS {
        increment(&mut client, (me + i) % COUNTERS, i.is_multiple_of(2)).await;
        let own = |k: u64| format!("task {me} key {k}").into_bytes();
        let items: Vec<_> = (0..5).map(|k| (own(k), count_value(k, i))).collect();
        let put = if i == 0 { Put::Inserted } else { Put::Replaced };
        for result in client.put_many(&items).await {
            assert_eq!(result.expect("room"), put);
        }
        let keys: Vec<_> = items.iter().map(|(key, _)| key).collect();
        for ((_, value), found) in items.iter().zip(client.get_many(&keys).await) {
            assert_eq!(found.expect("a lookup").as_ref(), Some(value));
        }
    }
    let keys: Vec<_> = (0..6).map(|k| format!("task {me} key {k}")).collect();
    let removed: Vec<bool> =
        client.remove_many(&keys).await.into_iter().map(|result| result.expect("removed")).collect();
    assert_eq!(removed, [true, true, true, true, true, false]);
}

/// Increments one key by compare-and-swap, by value or by token.
async fn increment(client: &mut Client, i: u64, by_value: bool) {
    for _ in 0..TRIES {
        let found = client.get_versioned(&counter(i)).await.expect("a lookup").expect("it always exists");
        let count = count_of(&found.value);
        assert_eq!(found.value, count_value(i, count), "a value that was never written");
        let new = count_value(i, count + 1);
        let swap = if by_value {
            client.compare_and_swap(&counter(i), &found.value, &new).await
        } else {
            client.compare_and_swap(&counter(i), found.token, &new).await
        };
        match swap.expect("a swap") {
            Swap::Done => return,
            Swap::Different => {}
            Swap::Missing => panic!("it always exists"),
        }
    }
    panic!("starved");
}

/// Calls `run` on a table whose counters are 0, and checks what they are then.
fn contended(tasks: u64, run: impl FnOnce(&Store)) {
    let (_table, store) = Table::create(&CreateOptions::new(1_000).extent_bytes(8 << 20));
    let mut client = store.client().expect("a free slot");
    for i in 0..COUNTERS {
        client.put(&counter(i), &count_value(i, 0)).expect("room");
    }
    run(&store);
    let counts = (0..COUNTERS).map(|i| count_of(&client.get(&counter(i)).expect("a lookup").expect("it exists")));
    assert_eq!(counts.sum::<u64>(), tasks * COUNTS, "a count was lost");
    let report = store.check().expect("a table that can be read");
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(store.len_estimate().expect("a table that can be read").entries, COUNTERS);
}

/// [R-CAS-1] [R-CAS-2] Spawned tasks may move between the threads of tokio.
#[test]
fn tokio_runs_clients() {
    contended(TASKS, |store| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().expect("a runtime");
        runtime.block_on(async {
            let tasks: Vec<_> = (0..TASKS).map(|me| tokio::spawn(work(store.clone(), me))).collect();
            for task in tasks {
                task.await.expect("a task that ends");
            }
        });
    });
}

/// [R-CAS-1] [R-CAS-2] The executor of smol runs clients, on one thread and on three. On one thread, a task that waits
/// for a lock yields to the task that holds it.
#[test]
fn smol_runs_clients() {
    for threads in [1, 3] {
        contended(TASKS, |store| {
            let executor = async_executor::Executor::new();
            let tasks: Vec<_> = (0..TASKS).map(|me| executor.spawn(work(store.clone(), me))).collect();
            let left = AtomicU64::new(1);
            thread::scope(|scope| {
                for _ in 1..threads {
                    scope.spawn(|| {
                        while left.load(Ordering::Acquire) > 0 {
                            executor.try_tick();
                            thread::yield_now();
                        }
                    });
                }
                pollster::block_on(executor.run(async {
                    for task in tasks {
                        task.await;
                    }
                }));
                left.store(0, Ordering::Release);
            });
        });
    }
}

/// [R-CAS-1] [R-CAS-2] An executor of one future, a runtime and a thread without any use one table at the same time.
#[test]
fn executors_share_a_table() {
    contended(3, |store| {
        thread::scope(|scope| {
            scope.spawn(|| pollster::block_on(work(store.clone(), 0)));
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
                runtime.block_on(async { tokio::spawn(work(store.clone(), 1)).await.expect("a task that ends") });
            });
            let mut client = store.client().expect("a free slot");
            for i in 0..COUNTS {
                let key = counter(i % COUNTERS);
                let mut swap = || {
                    let found = client.get_versioned(&key).expect("a lookup").expect("it always exists");
                    let new = count_value(i % COUNTERS, count_of(&found.value) + 1);
                    client.compare_and_swap(&key, found.token, &new).expect("a swap")
                };
                assert!((0..TRIES).any(|_| swap().is_done()), "starved");
            }
        });
    });
}

/// [R-READ-5] Readers in tasks look up a value that a client replaces repeatedly: each finds a value that was written
/// whole. A read-only store is sufficient for that.
#[test]
fn tokio_runs_readers() {
    const KEY: &[u8] = b"key";
    let (table, store) = Table::create(&CreateOptions::new(100).extent_bytes(8 << 20));
    let read_only = Store::open_with(&table.url, &OpenOptions::default().read_only()).expect("a table");
    let mut client = store.client().expect("a free slot");
    client.put(KEY, &count_value(0, 0)).expect("room");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let mut reader = read_only.to_async().reader();
                tokio::spawn(async move {
                    let mut seen = 0;
                    while seen < COUNTS {
                        let value = reader.get(KEY).await.expect("a lookup").expect("it always exists");
                        let count = count_of(&value);
                        assert!(value == count_value(0, count), "a value that was never written");
                        assert!(count >= seen, "an older value than before");
                        seen = count;
                        assert!(!reader.contains(b"another").await.expect("a lookup"));
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for count in 1..=COUNTS {
            client.put(KEY, &count_value(0, count)).expect("room");
            tokio::task::yield_now().await;
        }
        for task in tasks {
            task.await.expect("a task that ends");
        }
    });
    assert_eq!(store.stat().expect("a table that can be read").clients.len(), 1, "readers take no slot");
}
