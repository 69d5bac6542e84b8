//! Stores over `tcp://`, or `rdma://` with `GUIRA_TEST_FABRIC=rdma`: their operations, and clients whose node, session
//! or connection is lost. [R-SESSION-1] [R-SESSION-2]
//!
//! Tests whose subject is the connection that carries the batches run over TCP only, and say so.
//!
//! Proves:
//!
//! - stores over `tcp://` do what stores in files do, in the same number of round trips;
//! - clients and readers, blocking and async, continue when their node is back, report a table that is gone as gone,
//!   and learn once that they were fenced;
//! - calls of a store wait for its node;
//! - an insert whose connection is cut after any message, or before its answer, takes effect once, or not at all, or is
//!   reported as unknown;
//! - twenty tasks and threads of one process that want the locks of one key, or of three hundred, take two round trips
//!   for each change and find no lock taken;
//! - a client that has the permit of a lock queue and never returns it delays the others no longer than their deadline;
//!   a client that holds locks of a dropped operation does not wait in a queue with them; and the time in a queue
//!   counts only for the operation that waited;
//! - puts and updates that are combined in a queue take no round trip. With combining, dropped futures, a bad
//!   connection and clients that map the table, keys are linearizable;
//! - of 512 clients in four processes none fails, and the slowest reaches at least a fifth of the mean rate;
//! - between two hosts (network namespaces and a router) packets are dropped: for a moment, which only costs time; and
//!   for longer than the session timeout, after which the clients are fenced in time, recovered, and get the error
//!   `Fenced` once. The test reports that it did not run if this user may not create namespaces; `ip` is installed like
//!   the other tools.
//!
//! Cannot show: TCP on real networks.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

mod asynchronous;
mod combined;
mod fairness;
mod lock_queue;
mod partition;
mod proxy;
mod reopen;
pub mod test_node;
#[cfg(feature = "tls")]
mod tls;

use std::future::{Future, poll_fn};
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::{Duration, Instant};

use guira::admin::ClientState;
use guira::errors::{Attempt, FabricError};
use guira::{
    AdminError, Blame, Effect, Error, OpenError, OpenOptions, OperationError, OperationErrorKind, Put, RowGuess, Store,
    Swap, Url,
};
use guira_network::wire::Token;
use guira_testing::{patience, wait_until};

use crate::common::fabric::{is_skipped_over_rdma, selected_devices, url_of};
use proxy::{Cut, Proxy};
use test_node::TestNode;

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

fn reconnecting() -> OpenOptions {
    OpenOptions::default().reconnect_timeout(patience())
}

fn exercise(client: &mut guira::Client) {
    let large = vec![7; 10_000];
    assert_eq!(client.put(b"cuckoo", b"Guira guira").unwrap(), Put::Inserted);
    assert_eq!(client.put(b"cuckoo", b"Crotophaga").unwrap(), Put::Replaced);
    assert!(!client.try_insert(b"cuckoo", b"again").unwrap());
    assert!(client.try_insert(b"large", &large).unwrap());
    assert!(!client.update(b"condor", b"missing").unwrap());
    assert_eq!(client.get(b"cuckoo").unwrap().as_deref(), Some(&b"Crotophaga"[..]));
    assert_eq!(client.get(b"large").unwrap().as_ref(), Some(&large));
    assert_eq!(client.get(b"condor").unwrap(), None);
    let seen = client.get_versioned(b"cuckoo").unwrap().unwrap().token;
    assert_eq!(client.compare_and_swap(b"cuckoo", seen, b"Guira").unwrap(), Swap::Done);
    assert_eq!(client.compare_and_swap(b"cuckoo", seen, b"never").unwrap(), Swap::Different);
    let found = client.get_many(&[&b"cuckoo"[..], b"condor", b"large"]);
    let found: Vec<Option<usize>> = found.into_iter().map(|value| value.unwrap().map(|value| value.len())).collect();
    assert_eq!(found, [Some(5), None, Some(10_000)]);
    let kept: Vec<_> = (0..200).map(|i| (key(i), b"kept")).collect();
    assert!(client.put_many(&kept).into_iter().all(|result| matches!(result, Ok(Put::Inserted))));
    assert!(client.remove(b"large").unwrap() && !client.remove(b"large").unwrap());
}

#[test]
fn a_table_of_a_node_works_like_one_in_a_file() {
    let served = TestNode::start();
    let store = Store::open(served.url()).unwrap();
    let mut client = store.client().unwrap();
    exercise(&mut client);
    assert_eq!(store.len_estimate().unwrap().entries, 201);
    let mut scanned = 0;
    let mut count = |_: &[u8], _: &[u8]| {
        scanned += 1;
        std::ops::ControlFlow::Continue(())
    };
    assert_eq!(store.scan_with(&mut count).unwrap().entries, 201);
    let snapshot = store.snapshot(4).unwrap();
    assert_eq!((scanned, snapshot.len(), snapshot.is_stable()), (201, 201, true));
    let stat = store.stat().unwrap();
    assert_eq!((stat.table.entries, stat.clients.len(), stat.clients[0].slot), (201, 1, client.slot()));
    let node = stat.region.node().expect("a node");
    assert_eq!((node.peer.clone(), node.read_only), (served.addr.to_string(), false));
    // A client that dies leaves a prefix of whole packets.
    assert_eq!(node.atomic_write_unit.is_some(), served.is_over_rdma());
    assert!(serde_json::to_value(&stat).unwrap()["region"]["peer"].is_string());
    assert!(store.check().unwrap().is_clean());
    drop(client);
    assert!(store.stat().unwrap().clients.is_empty(), "its slot is free again");
}

/// Operations take as many round trips as over shared memory. [R-READ-1] [R-UPDATE-1]
#[test]
fn operations_take_no_additional_round_trips() {
    let served = TestNode::start();
    let mut client = Store::open(served.url()).unwrap().client().unwrap();
    client.put(b"cuckoo", b"Guira guira").unwrap();
    let mut trips = |what: &mut dyn FnMut(&mut guira::Client)| {
        let before = client.traffic();
        what(&mut client);
        client.traffic().since(&before).round_trips
    };
    assert_eq!(trips(&mut |client| assert!(client.get(b"cuckoo").unwrap().is_some())), 1);
    assert_eq!(trips(&mut |client| assert!(client.update(b"cuckoo", b"Piririgua").unwrap())), 2);
    assert_eq!(trips(&mut |client| assert!(client.try_insert(b"heron", b"Garza").unwrap())), 2);
    assert_eq!(trips(&mut |client| assert!(client.remove(b"heron").unwrap())), 2);
}

#[test]
fn many_tasks_share_a_connection() {
    let served = TestNode::start();
    let store = Store::open(served.url()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..32)
            .map(|task| {
                let store = store.to_async();
                tokio::spawn(async move {
                    let (mut client, mut reader) = (store.client().await.unwrap(), store.reader());
                    for i in 0..20 {
                        client.put(&key(task * 100 + i), &[task as u8]).await.unwrap();
                        let found = reader.get(&key(task * 100 + i)).await.unwrap();
                        assert_eq!(found.as_deref(), Some(&[task as u8][..]));
                    }
                    client.close().await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(store.len_estimate().unwrap().entries, 640);
    assert!(store.stat().unwrap().clients.is_empty());
}

/// With a predictor, most lookups and updates read one row, and every key is still found. [R-READ-10]
#[test]
fn a_predictor_saves_reads() {
    let served = TestNode::start();
    let reads = |predictor_bytes, row_guess| {
        let options = OpenOptions::new().predictor_bytes(predictor_bytes).row_guess(row_guess);
        let store = Store::open_with(served.url(), &options).unwrap();
        let mut client = store.client().unwrap();
        for i in 0..500 {
            client.put(&key(i), &key(i)).unwrap();
        }
        // The predictor, if there is one, learns which keys are in their second row.
        let mut reader = store.reader();
        for round in 0..4 {
            for i in 0..500 {
                assert_eq!(client.get(&key(i)).unwrap().as_deref(), Some(&key(i)[..]), "round {round}");
                assert_eq!(reader.get(&key(i)).unwrap().as_deref(), Some(&key(i)[..]), "round {round}");
                assert_eq!(client.get(&key(i + 1_000)).unwrap(), None, "round {round}");
            }
        }
        let before = reader.traffic().verbs.reads;
        (0..500).for_each(|i| assert!(reader.get(&key(i)).unwrap().is_some()));
        reader.traffic().verbs.reads - before
    };
    let (with, without) = (reads(1 << 16, RowGuess::Rationed), reads(0, RowGuess::Rationed));
    assert!(with < 600 && without > 800, "{with} READs with a predictor, {without} without");
    // One that knows nothing reads both rows of most keys, unless it always guesses: new keys are in their first row.
    let guessed = reads(1, RowGuess::Always);
    assert!((500..600).contains(&guessed), "{guessed} READs of a client that always guesses");
}

/// R-SESSION-1: operations wait for a node that comes back with its memory, and then succeed.
#[test]
fn clients_go_on_when_their_node_is_back() {
    let mut served = TestNode::start();
    let store = Store::open_with(served.url(), &reconnecting()).unwrap();
    let (mut client, mut reader) = (store.client().unwrap(), store.reader());
    let (mut task_client, mut task_reader) =
        (pollster::block_on(store.to_async().client()).unwrap(), store.to_async().reader());
    client.put(b"cuckoo", b"Guira guira").unwrap();
    pollster::block_on(task_client.put(b"heron", &[5; 5_000])).unwrap();
    assert!(pollster::block_on(task_reader.contains(b"heron")).unwrap());
    let before = (client.traffic().round_trips, client.slot());
    // These stores would wait for any length of time.
    let options = OpenOptions::default().reconnect_timeout(Duration::MAX);
    let stores = [(); 5].map(|()| Store::open_with(served.url(), &options).unwrap());
    served.stop();
    let waiting = std::thread::spawn(move || {
        assert!(client.update(b"cuckoo", b"Piririgua").unwrap());
        assert_eq!(reader.get(b"cuckoo").unwrap().as_deref(), Some(&b"Piririgua"[..]));
        let found = reader.get_many(&[b"cuckoo", b"condor"]).into_iter().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(found, [Some(b"Piririgua".to_vec()), None]);
        assert!(client.traffic().round_trips > before.0, "traffic only grows");
        pollster::block_on(async {
            assert_eq!(task_client.get_many(&[b"heron"]).await[0].as_ref().unwrap().as_deref(), Some(&[5; 5_000][..]));
            task_client.put(b"ibis", &[6; 6_000]).await.unwrap();
            assert!(task_reader.contains(b"ibis").await.unwrap());
        });
        (client, task_client)
    });
    // A store's own calls wait for the node, too.
    let calls: [fn(&Store) -> bool; 5] = [
        |store| store.client().unwrap().get(b"cuckoo").unwrap().is_some(),
        |store| store.len_estimate().unwrap().entries >= 2,
        |store| store.stat().unwrap().table.entries >= 2,
        |store| store.check().unwrap().is_clean(),
        |store| !store.is_destroyed().unwrap(),
    ];
    // Each call uses a store of its own, which has not noticed the outage yet.
    let calls = calls.into_iter().zip(stores).map(|(call, store)| std::thread::spawn(move || call(&store)));
    let calls: Vec<_> = calls.collect();
    std::thread::sleep(Duration::from_millis(300));
    served.run();
    let (client, task_client) = waiting.join().unwrap();
    assert!(calls.into_iter().all(|call| call.join().unwrap()));
    assert_eq!(store.stat().unwrap().clients.iter().filter(|client| client.committing).count(), 0);
    let repair = store.recover(&mut |_, _| ()).unwrap();
    assert_eq!(
        (repair.living.len(), repair.failed.len()),
        (2, 0),
        "the slots of lost sessions are those of dead clients"
    );
    drop(client);
    pollster::block_on(task_client.close()).unwrap();
    assert!(store.check().unwrap().is_clean());
    assert!(store.stat().unwrap().clients.is_empty());
}

/// R-OPEN-1: memory that comes back empty, or with another table, is an error for every operation, and never a miss.
#[test]
fn a_lost_table_is_an_error_and_not_a_miss() {
    for (lose, found_instead) in
        [(TestNode::lose_table as fn(&mut TestNode), "another table"), (TestNode::lose_memory, "no table")]
    {
        let mut served = TestNode::start();
        let store = Store::open_with(served.url(), &reconnecting()).unwrap();
        let (mut client, mut reader) = (store.client().unwrap(), store.reader());
        let (mut task_client, mut task_reader) =
            (pollster::block_on(store.to_async().client()).unwrap(), store.to_async().reader());
        client.put(b"cuckoo", b"Guira guira").unwrap();
        assert!(pollster::block_on(task_reader.contains(b"cuckoo")).unwrap());
        served.stop();
        lose(&mut served);
        served.run();
        // Twice each: the table does not come back.
        for _ in 0..2 {
            let errors = [
                reader.get(b"cuckoo").err(),
                client.get(b"cuckoo").err(),
                client.put(b"cuckoo", b"again").err(),
                client.get_many(&[b"cuckoo"]).remove(0).err(),
                pollster::block_on(task_reader.get(b"cuckoo")).err(),
                pollster::block_on(task_client.remove(b"cuckoo")).err(),
                store.len_estimate().err(),
                store.client().err(),
                pollster::block_on(store.to_async().client()).err(),
            ];
            for (i, error) in errors.into_iter().enumerate() {
                let error = error.unwrap_or_else(|| panic!("{i}: an answer from a table that is gone"));
                assert!(
                    matches!(&error, Error::Open(OpenError::Gone { reason, .. }) if reason.contains(found_instead)),
                    "{i}: {error}"
                );
                assert_eq!((error.blame(), error.effect()), (Blame::Fenced, Effect::None), "{i}");
            }
        }
    }
}

#[test]
fn a_node_that_stays_away_fails_operations_at_their_deadline() {
    let mut served = TestNode::start();
    let options = OpenOptions::default().reconnect_timeout(Duration::from_millis(300));
    let store = Store::open_with(served.url(), &options).unwrap();
    let mut client = store.client().unwrap();
    let mut task_client = pollster::block_on(store.to_async().client()).unwrap();
    client.put(b"cuckoo", b"Guira guira").unwrap();
    served.stop();
    for _ in 0..2 {
        let began = Instant::now();
        let error = client.get(b"cuckoo").unwrap_err();
        assert!(matches!(error, Error::Open(OpenError::Connect { .. })), "{error}");
        assert_eq!((error.blame(), error.effect()), (Blame::Fabric, Effect::None));
        assert!(began.elapsed() >= Duration::from_millis(300));
        let error = pollster::block_on(task_client.put(b"cuckoo", b"never")).unwrap_err();
        assert!(matches!(error, Error::Open(OpenError::Connect { .. })) && error.effect() == Effect::None, "{error}");
    }
    served.run();
    // Connecting again may take longer than the timeout on a busy machine.
    let mut found = None;
    wait_until("the client is connected again", || client.get(b"cuckoo").map(|value| found = value).is_ok());
    assert_eq!(found.as_deref(), Some(&b"Guira guira"[..]));
    let mut put = None;
    wait_until("the task's client is connected again", || {
        put = pollster::block_on(task_client.put(b"cuckoo", b"back")).ok();
        put.is_some()
    });
    assert_eq!(put, Some(Put::Replaced));
}

/// R-SESSION-2: a client that learns of its fence by connecting again is told once, also if the future that would have
/// said so is dropped at any await.
#[test]
fn a_dropped_future_hides_no_fence() {
    if is_skipped_over_rdma("no batch travels on the connection that the proxy cuts") {
        return;
    }
    let served = TestNode::start();
    let (proxy, held) = (Proxy::start(served.addr), Arc::new(AtomicU64::new(0)));
    let tasks = Store::open_with(served.url_at(proxy.addr), &reconnecting()).unwrap().to_async();
    let other = Store::open(served.url()).unwrap();
    let check_fenced = |put: Result<Put, Error>, most| {
        assert!(put.is_err_and(|error| error.blame() == Blame::Fenced), "after {most} polls");
    };
    let mut dropped = 0;
    for most in 0.. {
        let [mut ahead, mut client] = [(); 2].map(|()| pollster::block_on(tasks.client()).unwrap());
        // It waits in a queue, and so has a count to report when it changes its session.
        pollster::block_on(async {
            let (mut first, mut second) = (pin!(ahead.put(b"cuckoo", b"1")), pin!(client.put(b"cuckoo", b"2")));
            poll_fn(|cx| Poll::Ready((first.as_mut().poll(cx).is_ready(), second.as_mut().poll(cx).is_ready()))).await;
            (first.await.unwrap(), second.await.unwrap())
        });
        assert_eq!(client.counters().queue_waits, 1);
        // The node says that it has dropped the session, but the connection is cut before that arrives.
        proxy.hold_replies(Some(&held));
        other.kill_client(client.slot(), patience()).unwrap();
        proxy.cut(Cut::Request(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("the cut", || proxy.has_cut());
                proxy.hold_replies(None);
            });
            assert!(pollster::block_on(tasks.reader().contains(b"cuckoo")).unwrap());
        });
        let outcome = {
            let (mut late, mut polls) = (pin!(client.put(b"cuckoo", b"late")), 0);
            pollster::block_on(poll_fn(|cx| match late.as_mut().poll(cx) {
                Poll::Ready(put) => Poll::Ready(Some(put)),
                Poll::Pending if polls == most => Poll::Ready(None),
                Poll::Pending => {
                    polls += 1;
                    Poll::Pending
                }
            }))
        };
        dropped += u32::from(outcome.is_none());
        let has_ended = outcome.is_some();
        check_fenced(outcome.unwrap_or_else(|| pollster::block_on(client.put(b"cuckoo", b"late"))), most);
        assert_eq!(pollster::block_on(client.put(b"cuckoo", b"later")).unwrap(), Put::Replaced);
        if has_ended {
            break;
        }
    }
    assert!(dropped > 2, "{dropped} futures were dropped");
}

/// R-SESSION-2: a fenced client learns of it once, and goes on as another client.
#[test]
fn a_fenced_client_learns_of_it_once() {
    let served = TestNode::start();
    let (store, other) = (Store::open(served.url()).unwrap(), Store::open(served.url()).unwrap());
    let mut client = store.client().unwrap();
    let mut task_client = pollster::block_on(store.to_async().client()).unwrap();
    client.put(b"cuckoo", b"Guira guira").unwrap();
    for slot in [client.slot(), task_client.slot()] {
        let killed = other.kill_client(slot, patience()).unwrap();
        assert!(killed.killed && killed.recovered.is_some(), "{killed:?}");
    }
    let fenced = |error: Error| {
        let is_fenced = matches!(
            &error,
            Error::Operation(OperationError {
                kind: OperationErrorKind::Fabric { source: FabricError::Fenced { effect: Effect::None } },
                ..
            })
        );
        assert!(is_fenced && error.blame() == Blame::Fenced, "{error}");
    };
    fenced(client.put(b"cuckoo", b"late").unwrap_err());
    fenced(pollster::block_on(task_client.put(b"cuckoo", b"late")).unwrap_err());
    assert_eq!(client.get(b"cuckoo").unwrap().as_deref(), Some(&b"Guira guira"[..]));
    assert_eq!(client.put(b"cuckoo", b"later").unwrap(), Put::Replaced);
    assert_eq!(pollster::block_on(task_client.get(b"cuckoo")).unwrap().as_deref(), Some(&b"later"[..]));
    let taken = [client.slot(), task_client.slot()];
    let free = (0..64).find(|slot| !taken.contains(slot)).unwrap();
    let error = other.kill_client(free, patience()).unwrap_err();
    assert!(matches!(error, Error::Admin(AdminError::NoClient { slot, .. }) if slot == free), "{error:?}");
    assert!(store.check().unwrap().is_clean());
}

/// R-SESSION-1: an insert whose connection is cut after any message takes effect once or not at all, and reports which,
/// unless its commit was on the way.
#[test]
fn only_operations_without_effect_are_repeated() {
    if is_skipped_over_rdma("no batch travels on the connection that the proxy cuts") {
        return;
    }
    let served = TestNode::start();
    let proxy = Proxy::start(served.addr);
    let store = Store::open_with(served.url_at(proxy.addr), &reconnecting()).unwrap();
    let check = Store::open(served.url()).unwrap();
    let (mut repeated, mut unknown, mut made) = (0, 0, 0);
    // Each cut of each kind twice: which message of an insert is cut depends on timing as well.
    for i in 0..96 {
        // Values in rows and in extents.
        let (key, value) = (key(i), vec![1; if i % 2 == 0 { 8 } else { 3_000 }]);
        let mut client = store.client().unwrap();
        let cut = if i / 24 % 2 == 0 { Cut::Request(i / 2 % 12) } else { Cut::Reply(1 + i / 2 % 12) };
        proxy.cut(cut);
        let result = client.try_insert(&key, &value);
        let is_there = check.reader().get(&key).unwrap().is_some_and(|found| found == value);
        match result {
            Ok(is_new) => {
                assert!(is_new && is_there, "{cut:?}: it took effect twice, or not at all");
                repeated += u32::from(proxy.has_cut());
            }
            Err(error) => {
                assert_eq!(error.effect(), Effect::Unknown, "{cut:?}: {error}");
                unknown += 1;
                made += u32::from(is_there);
            }
        }
        proxy.stop_cutting();
        assert!(client.contains(&key).unwrap() == is_there, "{cut:?}: the next operation goes on");
    }
    println!("96 inserts: {repeated} repeated, {unknown} unknown, of which {made} took effect");
    assert!(repeated >= 6 && unknown >= 4 && (1..unknown).contains(&made), "{repeated} {unknown} {made}");
    assert!(check.check().unwrap().is_clean());
}

#[test]
fn lookups_survive_lost_connections() {
    if is_skipped_over_rdma("no batch travels on the connection that the proxy cuts") {
        return;
    }
    let served = TestNode::start();
    let proxy = Proxy::start(served.addr);
    let store = Store::open_with(served.url_at(proxy.addr), &reconnecting()).unwrap();
    let keys: Vec<[u8; 4]> = (0..100).map(key).collect();
    let mut client = Store::open(served.url()).unwrap().client().unwrap();
    for (i, key) in keys.iter().enumerate() {
        client.put(key, &vec![i as u8; if i % 10 == 0 { 2_000 } else { 4 }]).unwrap();
    }
    let mut reader = store.reader();
    let mut cuts = 0;
    for cut in (0..4).map(Cut::Request).chain((1..5).map(Cut::Reply)) {
        proxy.cut(cut);
        let mut places = Vec::new();
        reader.get_many_with(&keys, |i, value| {
            assert!(value.unwrap().is_some_and(|value| value[0] == i as u8), "{cut:?}");
            places.push(i);
        });
        assert_eq!(places, (0..100).collect::<Vec<_>>(), "{cut:?}: each key once, in order");
        assert!(reader.get_versioned(&keys[10]).unwrap().is_some());
        cuts += u32::from(proxy.has_cut());
        proxy.stop_cutting();
    }
    assert!(cuts >= 6, "{cuts} of 8 connections were cut");
}

#[test]
fn clients_neither_create_nor_destroy_the_table_of_a_node() {
    let served = TestNode::start();
    let options = guira::CreateOptions::new(1_000);
    for (attempt, result) in [
        (Attempt::Create, Store::create(served.url(), &options).map(drop)),
        (Attempt::Destroy, Store::destroy(served.url())),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, Error::Open(OpenError::OnMemoryNode { attempt: found, .. }) if *found == attempt),
            "{error}"
        );
        assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
    }
    assert!(Store::open_or_create(served.url(), &options).is_ok());
}

#[test]
fn unreachable_nodes_are_distinguished_from_refusals() {
    let directory = tempfile::tempdir().unwrap();
    let file_of_mode = |mode: u32, name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        OpenOptions::default().token_file(path)
    };
    let file = |name: &str, text: &str| file_of_mode(0o600, name, text);
    let served = TestNode::start_with(|options| options.token(Token([1, 2])).reader_token(Token([3, 4])));
    let error = |options: &OpenOptions| Store::open_with(served.url(), options).unwrap_err();
    for options in [OpenOptions::default(), file("wrong", "00000000000000010000000000000003")] {
        let error = error(&options);
        assert!(matches!(error, Error::Open(OpenError::Connect { .. })) && error.blame() == Blame::Misuse, "{error}");
    }
    let exposed = file_of_mode(0o644, "exposed", "00000000000000010000000000000002");
    for options in [file("short", "1234"), exposed, OpenOptions::default().token_file("/nowhere/token")] {
        let error = error(&options);
        assert!(matches!(error, Error::Open(OpenError::TokenFile { .. })) && error.blame() == Blame::Misuse, "{error}");
    }
    let store = Store::open_with(served.url(), &file("right", "00000000000000010000000000000002\n")).unwrap();
    store.client().unwrap().put(b"cuckoo", b"Guira guira").unwrap();
    let reader = file("reader", "00000000000000030000000000000004");
    let read_only = Store::open_with(served.url(), &reader.clone().read_only()).unwrap();
    assert!(read_only.reader().contains(b"cuckoo").unwrap());
    assert!(read_only.is_read_only() && !store.is_read_only());
    // A store opened for changes, with a token that only allows reading.
    let _client = store.client().unwrap();
    let reading = Store::open_with(served.url(), &reader).unwrap();
    assert!(reading.is_read_only() && reading.reader().contains(b"cuckoo").unwrap());
    let slot = reading.stat().unwrap().clients[0].slot;
    assert_eq!(reading.stat().unwrap().clients[0].state, ClientState::Unknown, "a reader cannot probe clients");
    for error in [
        reading.client().err(),
        pollster::block_on(reading.to_async().client()).err(),
        reading.recover(&mut |_, _| ()).err(),
        reading.kill_client(slot, Duration::ZERO).err(),
    ] {
        let error = error.unwrap();
        assert!(matches!(error, Error::Open(OpenError::ReadOnlyGrant { .. })), "{error:?}");
        assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
        assert!(error.to_string().contains("the token of this client only allows reading"), "{error}");
    }

    let absent: Url = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        url_of(free.local_addr().unwrap(), selected_devices().as_ref())
    };
    let error = Store::open(&absent).unwrap_err();
    assert!(matches!(error, Error::Open(OpenError::Connect { .. })) && error.blame() == Blame::Fabric, "{error}");
}
