//! A cache of expensive results that several processes share, and that outlives each of them.
//!
//! ```text
//! cargo run --release -p guira --example shared_cache             # 4 workers, 2,000 requests each
//! cargo run --release -p guira --example shared_cache -- 8 50000
//! ```
//!
//! Workers look up results in a table on `shm://`; missing ones they compute and insert for the others. Halfway, one
//! worker is killed (SIGKILL) between two operations: there is no server to notice it, the others go on, and the
//! results of the dead worker stay in use. Each worker prints its hit rate. The table is destroyed at the end.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use guira::{Blame, CreateOptions, Store, Url};

type Failure = Box<dyn Error>;

const USAGE: &str = "usage: shared_cache [WORKERS (2 to 64)] [REQUESTS of each (2 to 1000000)]";
/// Different questions, some of which are asked far more often than others.
const QUESTIONS: u64 = 500;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", url, id, requests] => work(url, id, requests),
        [] => lead("4", "2000"),
        [workers] => lead(workers, "2000"),
        [workers, requests] => lead(workers, requests),
        _ => Err(USAGE.into()),
    };
    if let Err(error) = result {
        eprintln!("shared_cache: {error}");
        std::process::exit(1);
    }
}

/// A worker process: handles half of its requests, pauses until the leader says "go", and handles the rest.
fn work(url: &str, id: &str, requests: &str) -> Result<(), Failure> {
    let (id, requests) = (number(id, 0, 63)?, number(requests, 2, 1_000_000)?);
    let mut cache = Store::open(url)?.client()?;
    let mut random = id + 1;
    let mut hits = 0;
    for request in 0..requests {
        if request == requests / 2 {
            writeln!(stdout(), "worker {id}: {hits} hits in {request} requests")?;
            let mut line = String::new();
            if stdin().read_line(&mut line)? == 0 {
                return Ok(()); // The leader is gone.
            }
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = (random >> 33) % QUESTIONS;
        hits += u64::from(answer(&mut cache, draw * draw / QUESTIONS)?.1);
    }
    writeln!(stdout(), "worker {id}: {hits} hits in {requests} requests ({} %)", 100 * hits / requests)?;
    Ok(())
}

/// Returns the answer to `question`, and whether it was in the cache.
fn answer(cache: &mut guira::Client, question: u64) -> Result<(u64, bool), Failure> {
    let key = question.to_le_bytes();
    if let Some(found) = cache.get(&key)? {
        return Ok((u64::from_le_bytes(found.as_slice().try_into()?), true));
    }
    let computed = compute(question);
    // `try_insert` changes nothing if another worker was faster: both computed the same answer.
    match cache.try_insert(&key, &computed.to_le_bytes()) {
        // A full cache is not a failure: the answer is right, and will be computed again.
        Err(error) if error.blame() == Blame::Full => {}
        inserted => drop(inserted?),
    }
    Ok((computed, false))
}

/// Computes something that takes a while: the number of primes below `10 * question`.
fn compute(question: u64) -> u64 {
    let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    (2..10 * question).filter(is_prime).count() as u64
}

/// The leader: starts the workers, kills one, and lets the others go on.
fn lead(workers: &str, requests: &str) -> Result<(), Failure> {
    let (workers, requests) = (number(workers, 2, 64)?, number(requests, 2, 1_000_000)?);
    let url = Url::shm(&format!("guira-shared-cache-{}", std::process::id()))?;
    let store = Store::create(&url, &CreateOptions::new(QUESTIONS).format("fixed:8:8".parse()?))?;
    let result = run(&store, workers, requests);
    Store::destroy(&url)?;
    result
}

fn run(store: &Store, workers: u64, requests: u64) -> Result<(), Failure> {
    let mut processes = Vec::new();
    for id in 0..workers {
        processes.push(start(store.url(), id, requests)?);
    }
    for (_, _, output) in &mut processes {
        print_line(output)?;
    }
    let (mut victim, ..) = processes.remove(0);
    victim.kill()?; // SIGKILL: it cannot clean up.
    victim.wait()?;
    println!("worker 0 is dead; its {} answers stay", store.len_estimate()?.entries);
    for (_, input, _) in &mut processes {
        writeln!(input, "go")?;
    }
    for (mut child, _input, mut output) in processes {
        print_line(&mut output)?;
        if !child.wait()?.success() {
            return Err("a worker failed".into());
        }
    }
    let is_right = |key: &[u8], value: &[u8]| {
        key.try_into().is_ok_and(|question| compute(u64::from_le_bytes(question)).to_le_bytes() == value)
    };
    let answers = store.snapshot(1)?;
    let wrong = answers.iter().filter(|(key, value)| !is_right(key, value)).count();
    let problems = store.check()?.problems.len();
    println!("{} answers in the cache, {wrong} of them wrong; check: {problems} problems", answers.len());
    if wrong == 0 { Ok(()) } else { Err("the cache holds wrong answers".into()) }
}

fn start(url: &Url, id: u64, requests: u64) -> Result<(Child, ChildStdin, BufReader<ChildStdout>), Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["worker", &url.to_string(), &id.to_string(), &requests.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (input, output) = child.stdin.take().zip(child.stdout.take()).ok_or("a worker has no pipes")?;
    Ok((child, input, BufReader::new(output)))
}

fn print_line(from: &mut impl BufRead) -> Result<(), Failure> {
    let line = from.lines().next().ok_or("a worker ended early")??;
    println!("{line}");
    Ok(())
}

fn number(text: &str, least: u64, most: u64) -> Result<u64, Failure> {
    let parsed = text.parse().ok().filter(|number| (least..=most).contains(number));
    parsed.ok_or_else(|| format!("{text:?} is not a number from {least} to {most}; {USAGE}").into())
}
