//! Children that fork, and children that die with a lock of another program on their slot.
//!
//! The children run the test `children::child` ([`Actor`]).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::task::{Context, Poll, Waker};

use guira::admin::ClientState;
use guira::{CreateOptions, Effect, ServeOptions, Store};
use guira_fabric::{Addr, FabricError, Lane, Region, Submitted, Verb};
use guira_network::client::ConnectOptions;
use guira_network::tcp::TcpRegion;
use guira_testing::{Actor, Orphan, patience, say, wait_for_order, wait_until};

use crate::Table;

const ROLE: &str = "GUIRA_TEST_CHILD_ROLE";
/// The URL of the child's table.
const URL: &str = "GUIRA_TEST_CHILD_URL";
/// A slot that no client takes, because the table has fewer slots.
const SPARE_SLOT: u16 = 60_000;

fn spawn(role: &str, url: &str) -> Actor {
    Actor::spawn("children::child", &[(ROLE, role), (URL, url)])
}

/// Forks; the child runs `body` and exits with the code that it returns, without unwinding or exit handlers. The test
/// makes sure that no other thread of the parent holds a lock that `body` needs.
fn fork(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `body`, and nothing else.
    match unsafe { libc::fork() } {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(code) }
        }
        pid => {
            assert!(pid > 0, "fork failed");
            pid
        }
    }
}

// ---- Roles of child processes.

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let url = std::env::var(URL).unwrap();
    match role.as_str() {
        "client" => client(&url),
        "forker" => forker(&url),
        other => panic!("no role {other}"),
    }
}

/// Keeps a client until it is told to continue.
fn client(url: &str) {
    let client = Store::open(url).unwrap().client().unwrap();
    say(client.slot());
    wait_for_order();
    drop(client);
}

/// Has a store and a connection to a memory node, which the forked process cannot use: its requests are refused, and
/// drops affect only its copies. Then it opens its own.
fn forker(url: &str) {
    let (store, endpoint) = (Store::open(url).unwrap(), url.strip_prefix("tcp://").unwrap());
    let options = ConnectOptions::new(endpoint.parse().unwrap()).with_connect_timeout(patience());
    let connect = || TcpRegion::connect(&options).unwrap();
    let (region, client, reader) = (connect(), store.client().unwrap(), store.reader());
    let (hold, lane) = (region.hold(SPARE_SLOT).unwrap().unwrap(), region.lane());
    // A task that holds the permit to change the key, and keeps it, unless the node was faster than this thread.
    let stuck = (0..100).find_map(|_| {
        let mut client = outcome_of(store.to_async().client()).unwrap();
        let mut update = Box::pin(async move { client.update(b"cuckoo", b"grey").await });
        update.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending().then_some(update)
    });
    let stuck = stuck.expect("the node answers later");
    let pools = Pools::of(&store);
    let mut parents = Some((store, client, reader, region, hold, lane, pools));
    let pid = fork(|| {
        let (store, mut client, mut reader, region, hold, mut lane, pools) = parents.take().unwrap();
        pools.are_refused();
        refused(client.get(b"cuckoo").err());
        let waits = client.counters().queue_waits;
        refused(client.put(b"cuckoo", b"never").err());
        assert_eq!(client.counters().queue_waits, waits, "the child does not wait in its parent's lock queue");
        refused(client.remove(b"cuckoo").err());
        refused(reader.get(b"cuckoo").err());
        refused(reader.get_many(&[b"cuckoo"]).remove(0).err());
        refused(store.client().err());
        refused(poll_once(store.to_async().client()).err());
        refused(store.len_estimate().err());
        assert!(
            region.session().is_stale()
                && lane.is_stale()
                && region.session().clone().is_stale()
                && region.lane().is_stale()
        );
        let mut seen = [0];
        let refusal = lane.submit(&mut [Verb::Read { addr: Addr::main(0), into: &mut seen }]);
        assert!(matches!(refusal, Submitted::Done(Err(FabricError::Forked))) && seen == [0]);
        assert!(matches!(region.hold(SPARE_SLOT + 1), Err(FabricError::Forked)));
        assert!(matches!(region.session().fence(SPARE_SLOT), Err(FabricError::Forked)));
        assert!(matches!(region.session().counters(), Err(FabricError::Forked)));
        drop((client, reader, store, hold, lane, region));

        let store = Store::open(url).unwrap();
        let mut client = store.client().unwrap();
        assert_eq!(client.get(b"cuckoo").unwrap().as_deref(), Some(&b"grey"[..]));
        client.put(b"child", b"alive").unwrap();
        loop {
            std::thread::park();
            std::hint::black_box(&client);
        }
    });
    drop(stuck);
    say(pid);
    wait_for_order();
    let (store, mut client, _, _, _, _, pools) = parents.take().unwrap();
    assert_eq!(client.put(b"cuckoo", b"greyer").unwrap(), guira::Put::Replaced);
    assert!(store.reader().contains(b"child").unwrap());
    pools.are_as_before();
    say(client.slot());
    wait_for_order();
}

fn refused(error: Option<guira::Error>) {
    let error = error.expect("the child cannot use it");
    assert!(error.effect() == Effect::None && error.to_string().contains("fork"), "{error}");
}

fn poll_once<F: Future>(future: F) -> F::Output {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready at once"),
    }
}

/// Polls `future` until it is ready: another thread opens a new session.
fn outcome_of<F: Future>(future: F) -> F::Output {
    let (mut future, mut outcome) = (std::pin::pin!(future), None);
    wait_until("the future is ready", || {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => outcome = Some(output),
            Poll::Pending => {}
        }
        outcome.is_some()
    });
    outcome.expect("it is ready")
}

/// Pools whose only clients are lent.
struct Pools {
    of_tasks: guira::aio::Pool,
    of_threads: guira::Pool,
    to_task: guira::aio::PooledClient,
    to_thread: guira::PooledClient,
}

impl Pools {
    fn of(store: &Store) -> Pools {
        let (of_tasks, of_threads) = (store.to_async().pool(1), store.pool(1));
        let (to_task, to_thread) = (outcome_of(of_tasks.get()).unwrap(), of_threads.get().unwrap());
        Pools { of_tasks, of_threads, to_task, to_thread }
    }

    /// Asserts, in a forked child, that clients are neither lent nor returned.
    fn are_refused(mut self) {
        refused(poll_once(self.of_tasks.get()).err());
        refused(self.of_threads.get().err());
        refused(poll_once(self.to_task.get(b"cuckoo")).err());
        refused(self.to_thread.get(b"cuckoo").err());
        assert_eq!((self.of_tasks.status().size, self.of_threads.status().size), (0, 0));
    }

    fn are_as_before(mut self) {
        assert!(self.to_thread.contains(b"cuckoo").unwrap());
        drop((self.to_task, self.to_thread));
        let (of_tasks, of_threads) = (self.of_tasks.status(), self.of_threads.status());
        assert_eq!((of_tasks.size, of_tasks.idle, of_threads.size, of_threads.idle), (1, 1, 1, 1));
        outcome_of(self.of_tasks.close_idle()).unwrap();
    }
}

// ---- Tests.

/// Locks a client slot of the table's file for reading, as a process can that may only read the file.
fn lock_for_reading(store: &Store, slot: u16) -> File {
    const FIRST_SLOT_BYTE: i64 = 1 << 62;
    let file = File::open(&store.stat().unwrap().region.file().unwrap().path).unwrap();
    // SAFETY: `flock` is plain integers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (libc::F_RDLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    (lock.l_start, lock.l_len) = (FIRST_SLOT_BYTE + i64::from(slot), 1);
    // SAFETY: the descriptor is open, and the call reads one `flock`, which outlives it.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    file
}

/// A dead client whose slot a reader has locked is neither reported as alive nor recovered, and the reason is reported,
/// until the lock ends.
#[test]
fn a_dead_client_under_a_read_lock_is_unknown() {
    let (table, store) = Table::create(&CreateOptions::new(100).max_clients(8));
    let mut actor = spawn("client", &table.url.to_string());
    let slot: u16 = actor.next_word().parse().unwrap();
    actor.kill();
    let reader = lock_for_reading(&store, slot);
    let state = |store: &Store| store.stat().unwrap().clients[0].state;
    assert_eq!(state(&store), ClientState::Unknown);
    let lock = store.slot_lock().unwrap().expect("a lock");
    assert_eq!((lock.first_slot, lock.last_slot), (slot, slot));
    let repair = store.recover(&mut |_, _| ()).unwrap();
    assert_eq!((repair.recovered.len(), repair.living.len(), repair.failed.len()), (0, 0, 1));
    assert!(repair.failed[0].reason.contains("for reading"), "{}", repair.failed[0].reason);
    store.client().unwrap().put(b"cuckoo", b"grey").unwrap();
    drop(reader);
    assert_eq!(state(&store), ClientState::Dead);
    assert_eq!(store.recover(&mut |_, _| ()).unwrap().recovered.len(), 1);
}

/// A forked process has no part in its parent's clients, stores and connections: it is refused everything, and its
/// parent goes on as before.
#[test]
fn a_forked_child_cannot_use_its_parents_connections() {
    let served = Store::create_unnamed(&CreateOptions::new(1_000).max_clients(64)).unwrap();
    served.client().unwrap().put(b"cuckoo", b"grey").unwrap();
    let node = served.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into()).threads(1)).unwrap();
    let is_dead = |slot: u16| {
        let clients = served.stat().unwrap().clients;
        clients.iter().any(|client| client.slot == slot && client.state == ClientState::Dead)
    };
    let mut actor = spawn("forker", &format!("tcp://{}", node.local_addrs()[0]));
    let forked = Orphan::of(&actor.next_word());
    wait_until("the forked process has done its part", || served.reader().contains(b"child").unwrap());
    actor.resume();
    let slot: u16 = actor.next_word().parse().unwrap();
    // The dropped task did not end its client. The put has recovered that client only if it ran into its lock.
    served.recover(&mut |_, _| ()).unwrap();
    assert_eq!(served.stat().unwrap().clients.len(), 2, "parent and child: {:?}", served.stat().unwrap().clients);
    assert!(!is_dead(slot), "the child dropped its copies; the parent and its connection are alive");
    actor.kill();
    wait_until("the child does not keep its parent's slot", || is_dead(slot));
    assert!(forked.is_running());
    let repair = served.recover(&mut |_, _| ()).unwrap();
    assert_eq!((repair.recovered.len(), repair.living.len()), (1, 1), "the child is alive");
    assert_eq!(served.reader().get(b"cuckoo").unwrap().as_deref(), Some(&b"greyer"[..]));
}
