//! Many lanes on one queue pair: threads, tasks, and queues that are full.

use std::time::Instant;

use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Lane, Submitted, Verb, Waiting, pause_until, post};
use guira_fabric_verbs::{Connection, ConnectionOptions, VerbsLane};
use guira_network::wire::Grant;

use crate::end::{LINK, SlowLink};
use crate::fixture::{Node, drain, join_all, load, run, skip, spin_on, with_devices};

const THREADS: u64 = 8;
/// Words of main space for each task.
const TASK_WORDS: u64 = 512;
/// Options under which small batches fill every queue.
const NARROW: ConnectionOptions = ConnectionOptions {
    queue_depth: 8,
    lanes: 16,
    lane_bytes: 64,
    large_buffers: 1,
    large_bytes: 8 << 10,
    inline_bytes: 0,
    waiting: Waiting::InPlace,
};

fn on_threads(connection: &Connection, waiting: Waiting, work: impl Fn(u64, &mut VerbsLane) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (mut lane, work) = (connection.lane().waiting(waiting), &work);
            scope.spawn(move || work(thread, &mut lane));
        }
    });
}

/// FETCH-ADDs of eight threads add up, whether the threads spin or sleep.
#[test]
fn fetch_adds_of_threads_add_up() {
    with_devices(|client, device| {
        let node = Node::new(&device, 64, 64, 8);
        let (connection, _accepted) = node.connect_writer(&client);
        for (round, waiting) in [(1, Waiting::InPlace), (2, Waiting::Cooperative)] {
            on_threads(&connection, waiting, |_, lane| {
                for _ in 0..60 {
                    let mut found = 0;
                    let add = Verb::FetchAdd { addr: Addr::device(8), add: 3, found: &mut found };
                    pollster::block_on(post(lane, [add])).expect("the connection lives");
                }
            });
            assert_eq!(load(&node.device, 1), round * THREADS * 60 * 3);
        }
    });
}

/// Each success of a CAS that adds 1 is counted once, and none is lost.
#[test]
fn contended_swaps_are_exact() {
    with_devices(|client, device| {
        let node = Node::new(&device, 64, 64, 8);
        let (connection, _accepted) = node.connect_writer(&client);
        on_threads(&connection, Waiting::InPlace, |_, lane| {
            let mut compare = 0;
            for _ in 0..20 {
                loop {
                    let mut found = 0;
                    let swap = Verb::Cas { addr: Addr::main(0), compare, swap: compare + 1, found: &mut found };
                    run(lane, &mut [swap]).expect("the connection lives");
                    let is_won = found == compare;
                    compare = if is_won { compare + 1 } else { found };
                    if is_won {
                        break;
                    }
                }
            }
        });
        assert_eq!(load(&node.main[0], 0), THREADS * 20);
    });
}

/// Writes and reads the task's own words, and adds to a shared counter, in each round.
async fn work(connection: &Connection, waiting: Waiting, task: u64, rounds: u64, words: usize) {
    let mut lane = connection.lane().waiting(waiting);
    let addr = Addr::main_word(8 + task * TASK_WORDS);
    for round in 0..rounds {
        let content: Vec<u64> = (0..words as u64).map(|word| task << 32 | round << 16 | word).collect();
        let (mut into, mut found) = (vec![0; words], 0);
        let batch = [
            Verb::Write { addr, words: &content },
            Verb::FetchAdd { addr: Addr::main(0), add: 1, found: &mut found },
            Verb::Read { addr, into: &mut into },
        ];
        post(&mut lane, batch).await.expect("the connection lives");
        assert_eq!(into, content, "task {task}, round {round}");
    }
}

/// Tasks of one thread share a queue pair: each reads what it wrote, and the shared counter is exact.
#[test]
fn tasks_share_a_queue_pair() {
    with_devices(|client, device| {
        let node = Node::new(&device, 16_384, 64, 8);
        let (connection, _accepted) = node.connect_writer(&client);
        let mut total = 0;
        for waiting in [Waiting::InPlace, Waiting::Cooperative] {
            join_all((0..16).map(|task| work(&connection, waiting, task, 20, 5)));
            total += 16 * 20;
            assert_eq!(load(&node.main[0], 0), total);
        }
        // Some lanes spin and others sleep.
        let waiting = |task: u64| if task.is_multiple_of(2) { Waiting::InPlace } else { Waiting::Cooperative };
        join_all((0..16).map(|task| work(&connection, waiting(task), task, 20, 5)));
        assert_eq!(load(&node.main[0], 0), total + 16 * 20);
    });
}

/// Batches wait when the send queue is full and when the only large buffer is taken, and all of them are executed.
#[test]
fn batches_wait_for_room() {
    with_devices(|client, device| {
        let node = Node::new(&device, 16_384, 64, 8);
        for waiting in [Waiting::InPlace, Waiting::Cooperative] {
            let (connection, _accepted) = node.connect(&client, Grant::ReadWrite, &NARROW);
            let before = load(&node.main[0], 0);
            // Buffers of lanes hold 8 words; every third task needs the large one.
            let words = |task: u64| if task.is_multiple_of(3) { 400 } else { 3 };
            join_all((0..16).map(|task| work(&connection, waiting, task, 12, words(task))));
            assert_eq!(load(&node.main[0], 0), before + 16 * 12);
            assert_eq!(connection.lost(), None);
        }
    });
}

/// A large batch whose results were not taken does not hold up the next one: they are moved out of the buffer.
#[test]
fn untaken_results_do_not_hold_up_others() {
    with_devices(|client, device| {
        let node = Node::new(&device, 1_024, 64, 8);
        node.main[0][5].store(55, Ordering::SeqCst);
        let (connection, _accepted) = node.connect(&client, Grant::ReadWrite, &NARROW);
        let (mut first, mut second) = (connection.lane(), connection.lane());
        let (mut into, content) = ([0; 500], [7; 500]);
        let mut batch = [Verb::Read { addr: Addr::main(0), into: &mut into }];
        assert!(matches!(first.submit(&mut batch), Submitted::InFlight));
        for _ in 0..3 {
            run(&mut second, &mut [Verb::Write { addr: Addr::main_word(500), words: &content }]).unwrap();
        }
        spin_on(std::future::poll_fn(|cx| first.poll(&mut batch, cx))).unwrap();
        assert_eq!((into[5], load(&node.main[0], 999)), (55, 7));
        // The buffer is free again.
        run(&mut first, &mut [Verb::Read { addr: Addr::main(0), into: &mut into }]).unwrap();
        assert_eq!(into[5], 55);
    });
}

/// A batch whose future is dropped while it waits for room is posted all the same.
#[test]
fn forgotten_batches_that_wait_take_effect() {
    with_devices(|client, device| {
        let node = Node::new(&device, 64, 64, 8);
        let (connection, _accepted) = node.connect(&client, Grant::ReadWrite, &NARROW);
        let mut lanes: Vec<_> = (0..12).map(|_| connection.lane()).collect();
        for lane in &mut lanes {
            let mut found = [0; 5];
            let add = |(at, found)| Verb::FetchAdd { addr: Addr::main_word(at), add: 1, found };
            let batch: Vec<Verb<'_>> = (0..).zip(&mut found).map(add).collect();
            drop(post(lane, batch));
        }
        assert!(lanes.iter_mut().all(|lane| drain(lane, &mut [0; 5]) == Ok(5)));
        assert!((0..5).all(|at| load(&node.main[0], at) == 12));
    });
}

/// More lanes than memory was locked for at first: each has a buffer of its own, while the others are in flight.
#[test]
fn lanes_grow() {
    with_devices(|client, device| {
        let node = Node::new(&device, 256, 64, 8);
        let options = ConnectionOptions { lanes: 2, lane_bytes: 64, ..ConnectionOptions::default() };
        let (connection, _accepted) = node.connect(&client, Grant::ReadWrite, &options);
        let mut lanes: Vec<_> = (0..21).map(|_| connection.lane()).collect();
        for (at, lane) in (0..).zip(&mut lanes) {
            let mut write = [Verb::Write { addr: Addr::main_word(at), words: &[at + 1000] }];
            assert!(matches!(lane.submit(&mut write), Submitted::InFlight), "lane {at}");
        }
        assert!(lanes.iter_mut().all(|lane| drain(lane, &mut []) == Ok(0)));
        assert!((0..21).all(|at| load(&node.main[0], at) == at as u64 + 1000));
        // A slot that was returned is taken again.
        drop(lanes.split_off(3));
        let mut into = [0];
        run(&mut connection.lane(), &mut [Verb::Read { addr: Addr::main_word(20), into: &mut into }]).unwrap();
        assert_eq!(into, [1020]);
    });
}

/// In the steady state a batch allocates nothing, on the lane's own buffer and on a large one.
#[test]
fn batches_do_not_allocate() {
    with_devices(|client, device| {
        let node = Node::new(&device, 4_096, 64, 8);
        let (connection, _accepted) = node.connect_writer(&client);
        let (mut lane, mut into, content) = (connection.lane(), vec![0; 3_000], [9; 40]);
        let mut round = |words: usize| {
            let (mut found, mut swapped) = (0, 0);
            let mut batch = [
                Verb::Cas { addr: Addr::main(0), compare: 0, swap: 0, found: &mut swapped },
                Verb::Read { addr: Addr::main(64), into: &mut into[..words] },
                Verb::Write { addr: Addr::main(64), words: &content },
                Verb::FetchAdd { addr: Addr::main(8), add: 1, found: &mut found },
            ];
            run(&mut lane, &mut batch).expect("the connection lives");
        };
        for words in [10, 3_000] {
            round(words);
            round(words);
            let allocated = allocation_counter::measure(|| (0..20).for_each(|_| round(words)));
            assert_eq!(allocated.count_total, 0, "READs of {words} words");
        }
    });
}

async fn pause(connection: &Connection, waiting: Waiting, milliseconds: u64) {
    let mut lane = connection.lane().waiting(waiting);
    let until_ns = lane.now_ns() + milliseconds * 1_000_000;
    pause_until(&mut lane, until_ns).await;
    assert!(lane.now_ns() >= until_ns);
}

/// Pauses end, and not too early, in both ways of waiting, and tasks that pause do not stop others.
#[test]
fn pauses_end_and_not_too_early() {
    with_devices(|client, device| {
        let node = Node::new(&device, 64, 64, 8);
        let (connection, _accepted) = node.connect_writer(&client);
        for waiting in [Waiting::InPlace, Waiting::Cooperative] {
            let started = Instant::now();
            join_all([90, 30, 60].map(|milliseconds| pause(&connection, waiting, milliseconds)));
            assert!(started.elapsed().as_millis() >= 90);
        }
    });
}

/// Batches of each round that is timed.
const BATCHES: u64 = 480;

async fn read_rows(connection: &Connection, waiting: Waiting, batches: u64) {
    let mut lane = connection.lane().waiting(waiting);
    for _ in 0..batches {
        let (mut first, mut second) = ([0; 8], [0; 8]);
        let batch = [
            Verb::Read { addr: Addr::main(64), into: &mut first },
            Verb::Read { addr: Addr::main(640), into: &mut second },
        ];
        post(&mut lane, batch).await.expect("the connection lives");
    }
}

/// Prints the time of a batch of two READs of threads and of tasks of one thread: numbers to look at, not a gate. A
/// thread has a queue pair of its own and its lane spins, as for blocking clients; the tasks share one, and sleep.
#[test]
fn times_of_two_reads() {
    with_devices(|client, device| {
        let node = Node::new(&device, 4_096, 64, 8);
        for users in [1, 2, 16] {
            let connections: Vec<_> = (0..users).map(|_| node.connect_writer(&client)).collect();
            let threads = time_of_batch(|| {
                std::thread::scope(|scope| {
                    for (connection, _) in &connections {
                        scope.spawn(|| spin_on(read_rows(connection, Waiting::InPlace, BATCHES / users)));
                    }
                });
            });
            let (connection, _) = &connections[0];
            let tasks = time_of_batch(|| {
                join_all((0..users).map(|_| read_rows(connection, Waiting::Cooperative, BATCHES / users)));
            });
            println!("two READs by {users} threads: {threads}; by {users} tasks: {tasks}");
        }
        // A lane that spins rests on a device in software; one that sleeps is woken by the connection's thread.
        let (connection, _accepted) = node.connect_writer(&client);
        let [spins, sleeps] = [Waiting::InPlace, Waiting::Cooperative].map(|waiting| {
            let before = voluntary_switches();
            join_all([read_rows(&connection, waiting, BATCHES)]);
            (voluntary_switches() - before) as f64 / BATCHES as f64
        });
        println!("times that threads slept for a batch: {spins:.2} where a lane spins, {sleeps:.2} where it sleeps");
    });
}

/// How often the threads of this process have given their processors away to sleep.
fn voluntary_switches() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let status = threads.map(|thread| std::fs::read_to_string(thread.expect("a thread").path().join("status")));
    let counts = status.map(|status| {
        let status = status.expect("the thread lives");
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.expect("a count").trim().parse::<u64>().expect("a number")
    });
    counts.sum()
}

/// The shortest and the middle time of a batch, of five rounds.
fn time_of_batch(round: impl Fn()) -> String {
    let mut times_us = [0; 5].map(|_: u64| {
        let started = Instant::now();
        round();
        started.elapsed().as_micros() as u64 / BATCHES
    });
    times_us.sort_unstable();
    format!("{} to {} us", times_us[0], times_us[2])
}

/// A lane that waits for long leaves the processor to others: it polls about once a millisecond.
#[test]
fn a_lane_that_waits_for_long_rests() {
    let Ok(link) = std::env::var(LINK) else { return skip("there is no link that may be slowed down") };
    with_devices(|client, device| {
        let node = Node::new(&device, 64, 64, 8);
        let (connection, _accepted) = node.connect_writer(&client);
        let mut lane = connection.lane();
        run(&mut lane, &mut [Verb::Write { addr: Addr::main(0), words: &[7] }]).unwrap();
        let _slow = SlowLink::new(link);
        let (mut into, mut polls, started) = ([0], 0, Instant::now());
        let mut batch = [Verb::Read { addr: Addr::main(0), into: &mut into }];
        assert!(matches!(lane.submit(&mut batch), Submitted::InFlight));
        spin_on(std::future::poll_fn(|cx| {
            polls += 1;
            lane.poll(&mut batch, cx)
        }))
        .unwrap();
        // Those of a network card, before it rests, and two a millisecond.
        let most = 300 + 2 * started.elapsed().as_millis();
        assert!(into == [7] && polls <= most, "{polls} polls, at most {most}");
    });
}
