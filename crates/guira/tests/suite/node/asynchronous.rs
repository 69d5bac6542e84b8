//! Async operations never block the executor's thread: while a task waits for a node that is slow, absent or restarted,
//! another task of the same thread runs on.

use std::cell::Cell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use guira::{CreateOptions, Error, OpenError, OpenOptions, Put, Url, aio};

use crate::common::fabric::is_skipped_over_rdma;

use super::proxy::Proxy;
use super::test_node::TestNode;
use super::{TIMEOUT, reconnecting};

/// Delay of each reply of a slow node.
const DELAY: Duration = Duration::from_millis(300);
/// Longest time between two ticks, on a busy machine, unless the thread was blocked.
const LONGEST_GAP: Duration = Duration::from_millis(250);

/// Runs `work` on one thread beside a task that ticks each millisecond, and checks that it did all the time.
fn beside_a_clock<T>(what: &str, work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    let (gap, ticks) = (Rc::new(Cell::new(Duration::ZERO)), Rc::new(Cell::new(0_u32)));
    let (longest, count, counted) = (Rc::clone(&gap), Rc::clone(&ticks), Rc::clone(&ticks));
    let result = tasks.block_on(&runtime, async move {
        let clock = tokio::task::spawn_local(async move {
            let mut last = Instant::now();
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                longest.set(longest.get().max(last.elapsed()));
                last = Instant::now();
                count.set(count.get() + 1);
            }
        });
        let result = work.await;
        // One more tick, so that a gap at the end is seen as well. After a pause of the machine both timers are due.
        let (before, began) = (counted.get(), Instant::now());
        while counted.get() == before && began.elapsed() < TIMEOUT {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        clock.abort();
        result
    });
    println!("{what}: {} ticks, at most {:?} apart", ticks.get(), gap.get());
    assert!(ticks.get() > 0 && gap.get() < LONGEST_GAP, "{what}: {:?} without a tick", gap.get());
    result
}

#[test]
fn a_slow_node_blocks_no_executor() {
    if is_skipped_over_rdma("no batch travels on the connection that the proxy delays") {
        return;
    }
    let served = TestNode::start();
    let proxy = Proxy::start(served.addr);
    proxy.delay(DELAY);
    let began = Instant::now();
    let store = beside_a_clock("open", aio::Store::open(&served.url_at(proxy.addr))).unwrap();
    beside_a_clock("a client", async {
        let mut client = store.client().await.unwrap();
        assert_eq!(client.put(b"cuckoo", &[7; 5_000]).await.unwrap(), Put::Inserted);
        assert!(client.contains(b"cuckoo").await.unwrap());
        client.close().await.unwrap();
    });
    beside_a_clock("a reader", async { assert!(store.reader().contains(b"cuckoo").await.unwrap()) });
    let pool = store.pool(1);
    beside_a_clock("a pool", async {
        let mut client = pool.get().await.unwrap();
        // A future that is dropped in the middle leaves work to the next operation.
        let put = tokio::time::timeout(DELAY / 10, client.put(b"heron", b"Garza")).await;
        assert!(put.is_err(), "no reply takes less than {DELAY:?}: {put:?}");
        drop(client);
        let mut client = pool.get().await.unwrap();
        assert_eq!(client.put(b"ibis", b"Curaca").await.unwrap(), Put::Inserted);
        drop(client);
        pool.close_idle().await.unwrap();
    });
    beside_a_clock("a dropped client", async { drop(store.client().await.unwrap()) });
    let len = beside_a_clock("a call that blocks", store.run_blocking(|store| store.len_estimate()));
    assert_eq!(len.unwrap().unwrap().entries, 2);
    proxy.delay(Duration::ZERO);
    let stat = pollster::block_on(store.run_blocking(|store| store.stat())).unwrap().unwrap();
    assert!(stat.clients.iter().all(|client| client.state == guira::admin::ClientState::Dead), "{:?}", stat.clients);
    assert!(began.elapsed() > 10 * DELAY, "the proxy delayed no reply");
}

#[test]
fn a_node_that_is_away_blocks_no_executor() {
    let mut served = TestNode::start();
    let url = served.url();
    let store = beside_a_clock("open", aio::Store::open_with(&url, &reconnecting())).unwrap();
    let hasty = OpenOptions::new().reconnect_timeout(Duration::from_millis(400));
    let hasty = beside_a_clock("open", aio::Store::open_with(&url, &hasty)).unwrap();
    let mut client = beside_a_clock("a client", store.client()).unwrap();
    let mut reader = store.reader();
    assert!(!beside_a_clock("a reader", reader.contains(b"cuckoo")).unwrap());
    served.stop();
    for error in [
        beside_a_clock("a client of a node that stays away", hasty.client()).map(drop),
        beside_a_clock("a reader of a node that stays away", hasty.reader().contains(b"cuckoo")).map(drop),
        beside_a_clock("a pool of a node that stays away", async { hasty.pool(1).get().await.map(drop) }),
        beside_a_clock("opening a node that stays away", aio::Store::open(&url)).map(drop),
    ] {
        assert!(matches!(error, Err(Error::Open(OpenError::Connect { .. }))), "{error:?}");
    }
    let restart = thread::spawn(move || {
        thread::sleep(Duration::from_millis(700));
        served.run();
        served
    });
    let began = Instant::now();
    beside_a_clock("everything that waits for a node", async {
        let another = tokio::task::spawn_local(async move {
            let mut another = store.client().await.unwrap();
            another.put(b"ibis", b"Curaca").await.unwrap();
            another.close().await.unwrap();
        });
        let get = tokio::task::spawn_local(async move { assert_eq!(reader.get(b"condor").await.unwrap(), None) });
        assert_eq!(client.put(b"cuckoo", b"Guira guira").await.unwrap(), Put::Inserted);
        get.await.unwrap();
        another.await.unwrap();
    });
    assert!(began.elapsed() < TIMEOUT);
    beside_a_clock("closing", client.close()).unwrap();
    let served = restart.join().unwrap();
    assert_eq!(guira::Store::open(served.url()).unwrap().len_estimate().unwrap().entries, 2);
}

#[test]
fn creating_a_table_blocks_no_executor() {
    let url: Url = format!("shm://guira-test-aio-{}", std::process::id()).parse().unwrap();
    let options = CreateOptions::new(4_000_000);
    let store = beside_a_clock("create", aio::Store::open_or_create(&url, &options)).unwrap();
    guira::Store::destroy(&url).unwrap();
    assert!(guira::Store::from(store).is_destroyed().unwrap());
}
