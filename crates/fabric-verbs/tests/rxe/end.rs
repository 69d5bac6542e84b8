//! The end of a client's queue pair while it writes: nothing of it is executed afterwards, and the client learns
//! exactly which of its batches may have been.

use std::env;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use guira_fabric::memory::AtomicU64;
use guira_fabric::{Addr, Effect, FabricError, Lane, Submitted, Verb, post};
use guira_fabric_verbs::{Accepted, ConnectionOptions, VerbsLane};
use guira_network::wire::Grant;

use crate::fixture::{Node, drain, join_all, load, run, skip, snapshot, with_devices};
use crate::processes::{Actor, WRITER_WORDS, client_text, parse_client, target_text};

/// The time for which memory is watched after an end: hundreds of round trips.
const WATCHED: Duration = Duration::from_millis(60);
/// The longest wait for a writer's next change, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Names the network interface of the client's device, if it belongs to a virtual machine and may be slowed down.
pub const LINK: &str = "GUIRA_RDMA_LINK";
/// The delay of a slow link: long compared with a test's steps, and shorter than the time after which a device repeats
/// a request.
const DELAY: Duration = Duration::from_millis(150);

/// A network interface that delays what it sends.
pub struct SlowLink(String);

impl SlowLink {
    pub fn new(link: String) -> SlowLink {
        let delay = format!("{}ms", DELAY.as_millis());
        tc(&["qdisc", "add", "dev", &link, "root", "netem", "delay", &delay]);
        SlowLink(link)
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        tc(&["qdisc", "del", "dev", &self.0, "root"]);
    }
}

fn tc(arguments: &[&str]) {
    let status = Command::new("tc").args(arguments).status().expect("iproute2 is installed");
    assert!(status.success(), "tc {arguments:?}");
}

/// Waits until the words differ from `before`: the writer is at work.
fn wait_for_change(words: &[AtomicU64], before: &[u64]) {
    let started = Instant::now();
    while snapshot(words) == before {
        assert!(started.elapsed() < PATIENCE, "the writer has stopped by itself");
        thread::yield_now();
    }
}

/// Ends a writer's queue pair in the middle of its work and asserts that its words do not change any more.
fn end_and_watch(words: &[AtomicU64], accepted: &mut Accepted) {
    for _ in 0..2 {
        wait_for_change(words, &snapshot(words));
    }
    accepted.end().expect("the device lives");
    let at_end = snapshot(words);
    let started = Instant::now();
    while started.elapsed() < WATCHED {
        assert_eq!(snapshot(words), at_end, "a byte has changed after the end");
        thread::yield_now();
    }
}

/// Writers in processes of their own are ended one after the other, while the others go on.
#[test]
fn no_byte_of_another_process_changes_after_the_end() {
    const WRITERS: usize = 3;
    with_devices(|_, device| {
        let node = Node::new(&device, WRITERS * WRITER_WORDS, 64, 8);
        let connect = |index: usize| {
            let mut actor = Actor::start(&index.to_string());
            let client = parse_client(&actor.receive());
            assert_eq!(parse_client(&client_text(&client)), client);
            let (accepted, parameters) = node.target.accept(Grant::ReadWrite, &client).expect("a free queue pair");
            actor.send(&target_text(&parameters));
            (actor, accepted)
        };
        let mut writers: Vec<(Actor, Accepted)> = (0..WRITERS).map(connect).collect();
        let words = |index: usize| &node.main[0][index * WRITER_WORDS..(index + 1) * WRITER_WORDS];
        for (index, (_, accepted)) in writers.iter_mut().enumerate() {
            end_and_watch(words(index), accepted);
            accepted.end().expect("it was ended before");
        }
        for (mut actor, _) in writers {
            assert_eq!(actor.receive(), format!("{:?}", FabricError::Disconnected { effect: Effect::Unknown }));
            actor.wait();
        }
    });
}

/// Many writers, each ended at another moment of its batch.
#[test]
fn no_byte_changes_after_the_end() {
    const WRITERS: usize = 8;
    with_devices(|client, device| {
        let node = Node::new(&device, WRITERS * WRITER_WORDS, 64, 8);
        let words = |index: usize| &node.main[0][index * WRITER_WORDS..(index + 1) * WRITER_WORDS];
        thread::scope(|scope| {
            let writer = |index: usize| {
                let (connection, accepted) = node.connect_writer(&client);
                let mut lane = connection.lane();
                let addr = Addr::main_word((index * WRITER_WORDS) as u64);
                let work = move || {
                    for round in 1.. {
                        let content = [round; WRITER_WORDS];
                        if let Err(error) = run(&mut lane, &mut [Verb::Write { addr, words: &content }]) {
                            return error;
                        }
                    }
                    unreachable!("the writer is ended before it has written 2^64 times")
                };
                (accepted, scope.spawn(work))
            };
            // One writer at a time, so that it is fast; the lost ones wait for their retries meanwhile.
            let mut writers = Vec::new();
            for index in 0..WRITERS {
                let (mut accepted, thread) = writer(index);
                end_and_watch(words(index), &mut accepted);
                writers.push(thread);
            }
            for thread in writers {
                let error = thread.join().expect("a writer does not panic");
                assert_eq!(error, FabricError::Disconnected { effect: Effect::Unknown });
            }
        });
    });
}

/// Sends a WRITE to the first words, and leaves it in flight.
fn send(lane: &mut VerbsLane, words: &[u64]) {
    let submitted = lane.submit(&mut [Verb::Write { addr: Addr::main(0), words }]);
    assert!(matches!(submitted, Submitted::InFlight));
    lane.forget();
}

/// A WRITE that its client has sent, and that arrives after the end, changes nothing. Without the end it does.
#[test]
fn a_write_that_arrives_after_the_end_changes_nothing() {
    let Ok(link) = env::var(LINK) else { return skip("there is no link that may be slowed down") };
    with_devices(|client, device| {
        let node = Node::new(&device, 64, 64, 8);
        let (connection, mut accepted) = node.connect_writer(&client);
        let (mut lane, word) = (connection.lane(), || load(&node.main[0], 0));
        run(&mut lane, &mut [Verb::Write { addr: Addr::main(0), words: &[1] }]).unwrap();
        let _slow = SlowLink::new(link);
        let sent = Instant::now();
        send(&mut lane, &[2]);
        assert_eq!(word(), 1, "it is on its way");
        while word() == 1 {
            assert!(sent.elapsed() < PATIENCE, "it does not arrive");
            thread::yield_now();
        }
        assert!(sent.elapsed() >= DELAY / 2, "the link is not slow");
        drain(&mut lane, &mut []).unwrap();

        send(&mut lane, &[3]);
        assert_eq!(word(), 2, "it is on its way");
        accepted.end().unwrap();
        thread::sleep(3 * DELAY);
        assert_eq!(word(), 2, "it has changed a word after the end");
        let lost = drain(&mut lane, &mut []).unwrap_err();
        assert_eq!((lost, word()), (FabricError::Disconnected { effect: Effect::Unknown }, 2));
    });
}

async fn expect(batch: impl Future<Output = Result<(), FabricError>>, effect: Effect) {
    assert_eq!(batch.await, Err(FabricError::Disconnected { effect }));
}

/// A batch that was not posted had no effect; nor had one of READs; whether one that changes memory had is unknown.
#[test]
fn effects_of_lost_batches_are_exact() {
    with_devices(|client, device| {
        let node = Node::new(&device, 64, 64, 8);
        let options = ConnectionOptions { queue_depth: 4, ..ConnectionOptions::default() };
        let (connection, mut accepted) = node.connect(&client, Grant::ReadWrite, &options);
        let (mut reader, mut writer, mut waiting) = (connection.lane(), connection.lane(), connection.lane());
        run(&mut reader, &mut [Verb::Write { addr: Addr::main(0), words: &[1] }]).unwrap();
        accepted.end().unwrap();
        let (mut first, mut second) = ([0; 1], [0; 1]);
        // The queue has room for the first two batches.
        let reads = post(
            &mut reader,
            [
                Verb::Read { addr: Addr::main(0), into: &mut first },
                Verb::Read { addr: Addr::main(8), into: &mut second },
            ],
        );
        let write = |at: u64| [8, 16].map(|next| Verb::Write { addr: Addr::main(at + next), words: &[2] });
        let (writes, waits) = (post(&mut writer, write(0)), post(&mut waiting, write(16)));
        let started = Instant::now();
        join_all([expect(reads, Effect::None), expect(writes, Effect::Unknown), expect(waits, Effect::None)]);
        println!("lost after {:?}: {}", started.elapsed(), connection.lost().expect("it was lost"));
        let late = run(&mut writer, &mut [Verb::Write { addr: Addr::main(0), words: &[3] }]);
        assert_eq!(late, Err(FabricError::Disconnected { effect: Effect::None }));
        assert_eq!((load(&node.main[0], 0), load(&node.main[0], 1), load(&node.main[0], 2)), (1, 0, 0));
    });
}
