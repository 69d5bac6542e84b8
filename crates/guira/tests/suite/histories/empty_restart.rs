//! A memory node that is killed, and restarts with empty memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use guira::{Blame, Effect, Error, OpenError, OpenOptions, Store};
use guira_testing::{patience, wait_until};

use crate::histories::node::NodeProcess;
use crate::histories::worker::key;

const CLIENTS: u64 = 8;
const KEYS_EACH: u64 = 4;
/// Answered operations of all clients before the node is killed.
const ANSWERED_BEFORE: u64 = 200;
/// Operations that each client begins after the new node is ready.
const OPERATIONS_AFTER: u64 = 40;
/// Longest pause between two operations of a client. Some clients are idle when the node ends, and some are not.
const LONGEST_PAUSE_US: u64 = 3_000;

/// Counts of the outcomes that all clients saw.
#[derive(Default)]
struct Outcomes {
    /// Operations that were answered before the node ended.
    answered: AtomicU64,
    /// Operations under way then that reported no effect.
    none: AtomicU64,
    /// Operations under way then that reported an unknown effect.
    unknown: AtomicU64,
    /// Operations that began after the restart and reported that the table is gone.
    gone: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// A flag that is set when this is dropped, also by a panic: the threads that wait for it end.
struct SetOnDrop<'f>(&'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A client of any kind.
enum AnyClient {
    Blocking(guira::Client),
    Reader(guira::Reader),
    Task(guira::aio::Client),
}

impl AnyClient {
    fn of(store: &Store, number: u64) -> AnyClient {
        match number % 3 {
            0 => AnyClient::Blocking(store.client().unwrap()),
            1 => AnyClient::Reader(store.reader()),
            _ => AnyClient::Task(pollster::block_on(store.to_async().client()).unwrap()),
        }
    }

    /// Carries out an operation that depends on the client and `step`. Returns whether it found the key, which exists.
    fn operate(&mut self, key: &[u8], step: u64) -> Result<bool, Error> {
        match (self, step % 3) {
            (AnyClient::Blocking(client), 0) => {
                client.put(key, &[step as u8; 8]).map(|put| put == guira::Put::Replaced)
            }
            (AnyClient::Blocking(client), 1) => client.update(key, &[step as u8; 8]),
            (AnyClient::Blocking(client), _) => client.contains(key),
            (AnyClient::Reader(reader), 0) => {
                let found = reader.get_many(&[key, key]).into_iter().collect::<Result<Vec<_>, _>>()?;
                Ok(found.iter().all(Option::is_some))
            }
            (AnyClient::Reader(reader), _) => reader.get(key).map(|found| found.is_some()),
            (AnyClient::Task(client), 0) => pollster::block_on(client.update(key, &[step as u8; 8])),
            (AnyClient::Task(client), _) => pollster::block_on(client.get(key)).map(|found| found.is_some()),
        }
    }
}

/// The work of one client before, during and after the restart.
fn work(number: u64, mut client: AnyClient, is_back: &AtomicBool, outcomes: &Outcomes) {
    let (mut after, mut step) = (0, 0);
    while after < OPERATIONS_AFTER {
        step += 1;
        let begins_after = is_back.load(Ordering::SeqCst);
        let result = client.operate(&key(number * KEYS_EACH + step % KEYS_EACH), step);
        let is_gone = matches!(&result, Err(error @ Error::Open(OpenError::Gone { .. }))
            if (error.blame(), error.effect()) == (Blame::Fenced, Effect::None));
        let counter = match &result {
            // An operation that begins before the new node is ready may have been answered by the old one.
            Ok(true) if !begins_after => &outcomes.answered,
            Err(_) if is_gone && begins_after => &outcomes.gone,
            Err(_) if is_gone => &outcomes.none,
            Err(error) if !begins_after && error.effect() == Effect::Unknown => &outcomes.unknown,
            _ => {
                let what = format!("client {number}, step {step}, after {begins_after}: {result:?}");
                outcomes.wrong.lock().unwrap().push(what);
                return;
            }
        };
        counter.fetch_add(1, Ordering::SeqCst);
        after += u64::from(begins_after);
        std::thread::sleep(Duration::from_micros(step * 7_919 % LONGEST_PAUSE_US));
    }
}

/// [R-OPEN-1] Every operation of every client of a node that restarted empty, from the next one on, reports that the
/// table is gone; none reports that a key is missing.
#[test]
fn every_client_notices_a_node_that_restarted_empty() {
    let mut node = NodeProcess::start(None, 0, None);
    let options = OpenOptions::default().reconnect_timeout(patience());
    let store = Store::open_with(node.url(), &options).unwrap();
    let mut filler = store.client().unwrap();
    for number in 0..CLIENTS * KEYS_EACH {
        filler.put(&key(number), &[0; 8]).unwrap();
    }
    let (outcomes, is_back) = (Outcomes::default(), AtomicBool::new(false));
    let clients: Vec<AnyClient> = (0..CLIENTS).map(|number| AnyClient::of(&store, number)).collect();
    std::thread::scope(|scope| {
        for (number, client) in (0..).zip(clients) {
            let (outcomes, is_back) = (&outcomes, &is_back);
            scope.spawn(move || work(number, client, is_back, outcomes));
        }
        let back = SetOnDrop(&is_back);
        wait_until("the clients work", || outcomes.answered.load(Ordering::SeqCst) >= ANSWERED_BEFORE);
        node.kill();
        node.start_again();
        node.wait_until_ready();
        // Those that were under way, or began before the new node was ready.
        wait_until("half of the clients noticed", || {
            [&outcomes.none, &outcomes.unknown].map(|count| count.load(Ordering::SeqCst)).iter().sum::<u64>()
                >= CLIENTS / 2
        });
        drop(back);
    });
    assert!(outcomes.wrong.lock().unwrap().is_empty(), "{:#?}", outcomes.wrong.lock().unwrap());
    let [answered, none, unknown, gone] = [&outcomes.answered, &outcomes.none, &outcomes.unknown, &outcomes.gone]
        .map(|count| count.load(Ordering::SeqCst));
    println!(
        "{CLIENTS} clients: {answered} answered before; {none} without effect and {unknown} with an unknown effect \
         when the node ended; {gone} reported afterwards that the table is gone"
    );
    assert_eq!(gone, CLIENTS * OPERATIONS_AFTER);
}
