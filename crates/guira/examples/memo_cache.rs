//! Remembers the results of a recursive function for all processes that compute it.
//!
//! ```text
//! cargo run --release -p guira --example memo_cache               # 4 workers, arguments up to 1,000
//! cargo run --release -p guira --example memo_cache -- 8 2000
//! ```
//!
//! Workers compute the number of partitions of random arguments, modulo 2^64. The recursion takes exponential time
//! without a memory, and needs the same smaller arguments again and again: each result is stored in a table on `shm://`
//! and computed by whichever process needs it first. One worker is killed (SIGKILL) in the middle of its computation;
//! the others use what it stored. At the end the parent compares every result with one that it computes itself, checks
//! the table, and destroys it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guira::{Blame, Client, CreateOptions, Store, Url};

type Failure = Box<dyn Error>;

const USAGE: &str = "usage: memo_cache [WORKERS (2 to 64)] [LARGEST ARGUMENT (100 to 2000)]";
/// Each worker asks this many questions. The worker that is killed asks until then.
const QUESTIONS: u64 = 500;
/// A worker that has not finished by then gives up, and so does the parent a little later.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Counters of all workers. Keys of results have 8 bytes, so that these differ from them.
const HITS: &[u8] = b"hits";
const MISSES: &[u8] = b"misses";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", url, id, largest, questions] => work(url, id, largest, questions),
        [] => lead("4", "1000"),
        [workers] => lead(workers, "1000"),
        [workers, largest] => lead(workers, largest),
        _ => Err(USAGE.into()),
    };
    if let Err(error) = result {
        eprintln!("memo_cache: {error}");
        std::process::exit(1);
    }
}

/// The memory of the function, with the hits and misses since they were last added to the table's counters.
struct Memo {
    client: Client,
    hits: u64,
    misses: u64,
}

impl Memo {
    fn recall(&mut self, argument: u64) -> Result<Option<u64>, Failure> {
        let found = self.client.get(&argument.to_le_bytes())?;
        *if found.is_some() { &mut self.hits } else { &mut self.misses } += 1;
        found.as_deref().map(decode).transpose()
    }

    /// Stores a result. `try_insert` changes nothing if another process was faster: the results are the same.
    fn remember(&mut self, argument: u64, result: u64) -> Result<(), Failure> {
        match self.client.try_insert(&argument.to_le_bytes(), &result.to_le_bytes()) {
            // The result is right all the same, and will be computed again.
            Err(error) if matches!(error.blame(), Blame::Full | Blame::Busy) => Ok(()),
            inserted => inserted.map(|_| ()).map_err(Failure::from),
        }
    }

    /// Adds to the counters of all workers: once for each question, because an addition is a change of the table.
    fn report(&mut self) -> Result<(), Failure> {
        self.client.increment(HITS, std::mem::take(&mut self.hits))?;
        self.client.increment(MISSES, std::mem::take(&mut self.misses))?;
        Ok(())
    }
}

/// Returns the number of ways to write `n` as a sum, modulo 2^64, by Euler's recurrence.
fn partitions(memo: &mut Memo, n: u64) -> Result<u64, Failure> {
    if let Some(known) = memo.recall(n)? {
        return Ok(known);
    }
    let mut sum = u64::from(n == 0);
    for (smaller, is_added) in terms(n) {
        let term = partitions(memo, smaller)?;
        sum = if is_added { sum.wrapping_add(term) } else { sum.wrapping_sub(term) };
    }
    memo.remember(n, sum)?;
    Ok(sum)
}

/// The smaller arguments on which that of `n` depends, and whether each is added or subtracted.
fn terms(n: u64) -> impl Iterator<Item = (u64, bool)> {
    let pairs = (1..).map(|k| (k * (3 * k - 1) / 2, k)).take_while(move |(pentagonal, _)| *pentagonal <= n);
    let both = pairs.flat_map(|(pentagonal, k)| [(pentagonal, k % 2 == 1), (pentagonal + k, k % 2 == 1)]);
    both.filter_map(move |(pentagonal, is_added)| Some((n.checked_sub(pentagonal)?, is_added)))
}

/// A worker process.
fn work(url: &str, id: &str, largest: &str, questions: &str) -> Result<(), Failure> {
    let (id, largest, questions) = (number(id, 0, 63)?, number(largest, 100, 2_000)?, number(questions, 0, u64::MAX)?);
    let mut memo = Memo { client: Store::open(url)?.client()?, hits: 0, misses: 0 };
    let started = Instant::now();
    let mut random = id + 1;
    for _ in 0..questions {
        if started.elapsed() > TIMEOUT {
            return Err(format!("worker {id} has not finished after {} s", TIMEOUT.as_secs()).into());
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        partitions(&mut memo, (random >> 33) % (largest + 1))?;
        memo.report()?;
    }
    Ok(memo.client.close()?)
}

/// The parent: creates the table, and destroys it, also after a failure. A worker that is left over fails then.
fn lead(workers: &str, largest: &str) -> Result<(), Failure> {
    let (workers, largest) = (number(workers, 2, 64)?, number(largest, 100, 2_000)?);
    let url = Url::shm(&format!("guira-memo-cache-{}", std::process::id()))?;
    let store = Store::create(&url, &CreateOptions::new(largest + 3))?; // Results for 0 to `largest`, two counters.
    let result = run(&store, workers, largest);
    Store::destroy(&url)?;
    result
}

fn run(store: &Store, workers: u64, largest: u64) -> Result<(), Failure> {
    let started = Instant::now();
    let is_late = || started.elapsed() > TIMEOUT + Duration::from_secs(5);
    let mut victim = start(store.url(), 0, largest, u64::MAX)?; // Would go on until it times out.
    let others = (1..workers).map(|id| start(store.url(), id, largest, QUESTIONS)).collect::<Result<Vec<_>, _>>()?;
    while store.len_estimate()?.entries < largest / 4 {
        if is_late() || victim.try_wait()?.is_some() {
            return Err("the workers store no results".into());
        }
        sleep(POLL_INTERVAL);
    }
    victim.kill()?; // SIGKILL: it cannot clean up.
    println!("worker 0 was killed: {}; {} entries stay", victim.wait()?, store.len_estimate()?.entries);
    for mut child in others {
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if is_late() => return Err("a worker does not end".into()),
                None => sleep(POLL_INTERVAL),
            }
        };
        if !status.success() {
            return Err(format!("a worker failed: {status}").into());
        }
    }
    verify(store, largest)
}

/// Compares all results with those of a loop that needs no memory but its own, and checks the table.
fn verify(store: &Store, largest: u64) -> Result<(), Failure> {
    let mut expected = vec![1_u64];
    for n in 1..=largest {
        let signed = terms(n).map(|(smaller, is_added)| (expected[smaller as usize], is_added));
        let add = |sum: u64, (term, is_added)| if is_added { sum.wrapping_add(term) } else { sum.wrapping_sub(term) };
        expected.push(signed.fold(0, add));
    }
    let (mut results, mut wrong, mut hits, mut misses) = (0, 0, 0, 0);
    for item in store.scan()? {
        let (key, value) = item?;
        let value = decode(&value)?;
        match key.as_slice() {
            HITS => hits = value,
            MISSES => misses = value,
            argument => {
                results += 1;
                let right = usize::try_from(decode(argument)?).ok().and_then(|argument| expected.get(argument));
                wrong += u64::from(right != Some(&value));
            }
        }
    }
    let report = store.check()?;
    println!("{hits} hits, {misses} misses");
    println!("{results} results, {wrong} of them wrong; check: {} problems", report.problems.len());
    if wrong == 0 && report.is_clean() { Ok(()) } else { Err("the cache is damaged".into()) }
}

fn start(url: &Url, id: u64, largest: u64, questions: u64) -> Result<Child, Failure> {
    let numbers = [id, largest, questions].map(|number| number.to_string());
    Ok(Command::new(std::env::current_exe()?).arg("worker").arg(url.to_string()).args(numbers).spawn()?)
}

fn decode(bytes: &[u8]) -> Result<u64, Failure> {
    Ok(u64::from_le_bytes(bytes.try_into()?))
}

fn number(text: &str, least: u64, most: u64) -> Result<u64, Failure> {
    let parsed = text.parse().ok().filter(|number| (least..=most).contains(number));
    parsed.ok_or_else(|| format!("{text:?} is not a number from {least} to {most}; {USAGE}").into())
}
