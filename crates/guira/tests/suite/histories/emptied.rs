//! A memory node that is killed, and comes back without what was in it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use guira::{Blame, Effect, Error, OpenError, OpenOptions, Store};

use crate::histories::node::NodeProcess;
use crate::histories::turn;
use crate::histories::worker::key;

const CLIENTS: u64 = 8;
const KEYS_EACH: u64 = 4;
/// Operations of each client that begin once the other node serves.
const OPERATIONS_AFTER: u64 = 40;
/// Between two operations of a client: most are idle when the node ends, as many are not.
const LONGEST_PAUSE_US: u64 = 3_000;

/// What all clients saw.
#[derive(Default)]
struct Seen {
    /// Operations that were answered before the end of the node.
    answered: AtomicU64,
    /// Those that were under way then, by effect.
    none: AtomicU64,
    unknown: AtomicU64,
    /// Those that began after it, which were told that the table is gone.
    gone: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

/// The ways to ask, each a client of its own.
enum Asker {
    Blocking(guira::Client),
    Reader(guira::Reader),
    Task(guira::aio::Client),
}

impl Asker {
    fn of(store: &Store, number: u64) -> Asker {
        match number % 3 {
            0 => Asker::Blocking(store.client().unwrap()),
            1 => Asker::Reader(store.reader()),
            _ => Asker::Task(pollster::block_on(store.to_async().client()).unwrap()),
        }
    }

    /// Whether a key that exists was found, by one operation or another.
    fn ask(&mut self, key: &[u8], step: u64) -> Result<bool, Error> {
        match (self, step % 3) {
            (Asker::Blocking(client), 0) => client.put(key, &[step as u8; 8]).map(|put| put == guira::Put::Replaced),
            (Asker::Blocking(client), 1) => client.update(key, &[step as u8; 8]),
            (Asker::Blocking(client), _) => client.contains(key),
            (Asker::Reader(reader), 0) => {
                let found = reader.get_many(&[key, key]).into_iter().collect::<Result<Vec<_>, _>>()?;
                Ok(found.iter().all(Option::is_some))
            }
            (Asker::Reader(reader), _) => reader.get(key).map(|found| found.is_some()),
            (Asker::Task(client), 0) => pollster::block_on(client.update(key, &[step as u8; 8])),
            (Asker::Task(client), _) => pollster::block_on(client.get(key)).map(|found| found.is_some()),
        }
    }
}

/// One client, before, during and after.
fn work(number: u64, mut asker: Asker, is_back: &AtomicBool, seen: &Seen) {
    let (mut after, mut step) = (0, 0);
    while after < OPERATIONS_AFTER {
        step += 1;
        let begins_after = is_back.load(Ordering::SeqCst);
        let result = asker.ask(&key(number * KEYS_EACH + step % KEYS_EACH), step);
        let is_gone = matches!(&result, Err(error @ Error::Open(OpenError::Gone { .. }))
            if (error.blame(), error.effect()) == (Blame::Fenced, Effect::None));
        let counter = match &result {
            // Whoever asks when the node comes back may have been answered before.
            Ok(true) if !begins_after => &seen.answered,
            Err(_) if is_gone && begins_after => &seen.gone,
            Err(_) if is_gone => &seen.none,
            Err(error) if !begins_after && error.effect() == Effect::Unknown => &seen.unknown,
            _ => {
                let what = format!("client {number}, step {step}, after {begins_after}: {result:?}");
                seen.wrong.lock().unwrap().push(what);
                return;
            }
        };
        counter.fetch_add(1, Ordering::SeqCst);
        after += u64::from(begins_after);
        std::thread::sleep(Duration::from_micros(step * 7_919 % LONGEST_PAUSE_US));
    }
}

/// [R-OPEN-1] Every client of a node that comes back empty is told so by its next operation, whatever it asks, and goes
/// on being told; nobody is told that a key is missing.
#[test]
fn an_emptied_node_is_noticed_by_everybody_at_once() {
    let _turn = turn();
    let mut node = NodeProcess::start(None, 0);
    let options = OpenOptions::default().reconnect_timeout(Duration::from_secs(30));
    let store = Store::open_with(node.url(), &options).unwrap();
    let mut filler = store.client().unwrap();
    for number in 0..CLIENTS * KEYS_EACH {
        filler.put(&key(number), &[0; 8]).unwrap();
    }
    let (seen, is_back) = (Seen::default(), AtomicBool::new(false));
    let askers: Vec<Asker> = (0..CLIENTS).map(|number| Asker::of(&store, number)).collect();
    std::thread::scope(|scope| {
        for (number, asker) in (0..).zip(askers) {
            let (seen, is_back) = (&seen, &is_back);
            scope.spawn(move || work(number, asker, is_back, seen));
        }
        std::thread::sleep(Duration::from_millis(500));
        node.kill();
        std::thread::sleep(Duration::from_millis(200));
        node.start_again();
        node.wait_until_ready();
        is_back.store(true, Ordering::SeqCst);
    });
    assert!(seen.wrong.lock().unwrap().is_empty(), "{:#?}", seen.wrong.lock().unwrap());
    let [answered, none, unknown, gone] =
        [&seen.answered, &seen.none, &seen.unknown, &seen.gone].map(|count| count.load(Ordering::SeqCst));
    println!(
        "{CLIENTS} clients: {answered} answered before; {none} without effect and {unknown} with an unknown one when \
         the node ended; {gone} told afterwards that the table is gone"
    );
    assert!(answered >= 100 && none + unknown >= CLIENTS / 2, "under load");
    assert_eq!(gone, CLIENTS * OPERATIONS_AFTER);
}
