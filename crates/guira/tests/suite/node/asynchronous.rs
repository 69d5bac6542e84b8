//! Async operations never block the executor's thread: while a task waits for a node that is slow or absent, another
//! task of the same thread runs on.
//!
//! That is shown without a clock: the node answers, or comes back, only after the other task ran. If an operation
//! blocked the thread, both would wait for each other.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use guira::{CreateOptions, Error, OpenError, OpenOptions, Put, Store, aio};
use guira_testing::wait_until;

use crate::common::Table;
use crate::common::fabric::is_skipped_over_rdma;

use super::proxy::{HELD_FOR, Proxy};
use super::reconnecting;
use super::test_node::TestNode;

/// Most tables that are created until one takes longer than the first look at its creation.
const MOST_TRIES: usize = 100;

/// Counts the runs of the task beside an operation.
#[derive(Clone, Default)]
struct Ticks(Arc<AtomicU64>);

impl Ticks {
    fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Runs `work` on one thread beside a task that counts its runs. Returns the result, and how often the other task
    /// ran from the start of the work to its end.
    fn beside<T>(&self, what: &str, work: impl Future<Output = T>) -> (T, u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let tasks = tokio::task::LocalSet::new();
        let (ticks, before) = (self.clone(), self.count());
        let result = tasks.block_on(&runtime, async move {
            let clock = tokio::task::spawn_local(async move {
                loop {
                    ticks.0.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
            let result = work.await;
            clock.abort();
            result
        });
        let ran = self.count() - before;
        println!("{what}: another task ran {ran} times");
        (result, ran)
    }

    /// Runs `work`, which waits for the node at least once, beside a task that must run meanwhile.
    fn waiting<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let (result, ran) = self.beside(what, work);
        assert!(ran >= HELD_FOR, "{what}: it waited for no reply");
        result
    }
}

#[test]
fn a_slow_node_blocks_no_executor() {
    if is_skipped_over_rdma("no batch travels on the connection that the proxy delays") {
        return;
    }
    let served = TestNode::start();
    let (proxy, ticks) = (Proxy::start(served.addr), Ticks::default());
    proxy.hold_replies(Some(&ticks.0));
    let store = ticks.waiting("open", aio::Store::open(&served.url_at(proxy.addr))).unwrap();
    ticks.waiting("a client", async {
        let mut client = store.client().await.unwrap();
        assert_eq!(client.put(b"cuckoo", &[7; 5_000]).await.unwrap(), Put::Inserted);
        assert!(client.contains(b"cuckoo").await.unwrap());
        client.close().await.unwrap();
    });
    ticks.waiting("a reader", async { assert!(store.reader().contains(b"cuckoo").await.unwrap()) });
    let pool = store.pool(1);
    ticks.waiting("a pool", async {
        let mut client = pool.get().await.unwrap();
        // A future that is dropped in the middle leaves work to the next operation.
        let mut put = Box::pin(client.put(b"heron", b"Garza"));
        assert!(is_pending(&mut put).await, "no reply comes before the other task ran");
        drop(put);
        drop(client);
        let mut client = pool.get().await.unwrap();
        assert_eq!(client.put(b"ibis", b"Curaca").await.unwrap(), Put::Inserted);
        drop(client);
        pool.close_idle().await.unwrap();
    });
    ticks.waiting("a dropped client", async { drop(store.client().await.unwrap()) });
    let len = ticks.waiting("a call that blocks", store.run_blocking(|store| store.len_estimate()));
    assert_eq!(len.unwrap().unwrap().entries, 2);
    proxy.hold_replies(None);
    let stat = pollster::block_on(store.run_blocking(|store| store.stat())).unwrap().unwrap();
    assert!(stat.clients.iter().all(|client| client.state == guira::admin::ClientState::Dead), "{:?}", stat.clients);
}

#[test]
fn a_node_that_stays_away_is_reported() {
    let mut served = TestNode::start();
    let url = served.url();
    let hasty = OpenOptions::new().reconnect_timeout(Duration::from_millis(400));
    let hasty = pollster::block_on(aio::Store::open_with(&url, &hasty)).unwrap();
    served.stop();
    for error in [
        pollster::block_on(hasty.client()).map(drop),
        pollster::block_on(hasty.reader().contains(b"cuckoo")).map(drop),
        pollster::block_on(async { hasty.pool(1).get().await.map(drop) }),
        pollster::block_on(aio::Store::open(&url)).map(drop),
    ] {
        assert!(matches!(error, Err(Error::Open(OpenError::Connect { .. }))), "{error:?}");
    }
}

#[test]
fn a_node_that_is_away_blocks_no_executor() {
    let mut served = TestNode::start();
    let (url, ticks) = (served.url(), Ticks::default());
    let (store, _) = ticks.beside("open", aio::Store::open_with(&url, &reconnecting()));
    let store = store.unwrap();
    let (client, _) = ticks.beside("a client", store.client());
    let (mut client, mut reader, pool) = (client.unwrap(), store.reader(), store.pool(1));
    assert!(!ticks.beside("a reader", reader.contains(b"cuckoo")).0.unwrap());
    served.stop();
    let gate = ticks.clone();
    let restart = thread::spawn(move || {
        let before = gate.count();
        wait_until("another task of the thread runs", || gate.count() >= before + HELD_FOR);
        served.run();
        served
    });
    ticks.waiting("everything that waits for a node", async {
        let another = tokio::task::spawn_local(async move {
            let mut another = store.client().await.unwrap();
            another.put(b"ibis", b"Curaca").await.unwrap();
            another.close().await.unwrap();
        });
        let get = tokio::task::spawn_local(async move { assert_eq!(reader.get(b"condor").await.unwrap(), None) });
        let pooled = tokio::task::spawn_local(async move { drop(pool.get().await.unwrap()) });
        assert_eq!(client.put(b"cuckoo", b"Guira guira").await.unwrap(), Put::Inserted);
        get.await.unwrap();
        another.await.unwrap();
        pooled.await.unwrap();
    });
    ticks.beside("closing", client.close()).0.unwrap();
    let served = restart.join().unwrap();
    assert_eq!(Store::open(served.url()).unwrap().len_estimate().unwrap().entries, 2);
}

/// Polls `future` once. Returns whether it is pending.
async fn is_pending<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// The executor's thread does not create the table: its first look at the creation ends earlier than the creation.
#[test]
fn creating_a_table_blocks_no_executor() {
    let is_pending = (0..MOST_TRIES).any(|_| {
        let table = Table::unused();
        let options = CreateOptions::new(100_000);
        let mut create = Box::pin(aio::Store::open_or_create(&table.url, &options));
        // If this thread is kept from running, the table may be complete before the first look.
        if !pollster::block_on(is_pending(&mut create)) {
            return false;
        }
        let store = pollster::block_on(create).unwrap();
        Store::destroy(&table.url).unwrap();
        assert!(Store::from(store).is_destroyed().unwrap());
        true
    });
    assert!(is_pending, "a table is created by the thread that looks at its creation");
}
