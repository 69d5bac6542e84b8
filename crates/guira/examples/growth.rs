//! Measures the cost of growing: keys are put into a table that was created for a part of them, and then into one that
//! was created for all of them, by several threads; then they are looked up. Prints the rates, how even they were, how
//! long the slowest puts took, and the memory. docs/decisions has results.
//!
//! ```sh
//! cargo run --release -p guira --example growth -- 32000000 1000000 2    # keys, first capacity, threads
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guira::{CreateOptions, Error, Store};

/// The time of a window, in which puts are counted.
const WINDOW: Duration = Duration::from_millis(100);
/// Puts between two counts of a thread.
const GROUP: u64 = 1_000;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Latencies in buckets: 16 for each doubling.
struct Latencies(Vec<u64>);

impl Latencies {
    fn add(&mut self, ns: u64) {
        let bits = ns.max(16).ilog2();
        self.0[((bits << 4) + ((ns.max(16) >> (bits - 4)) & 15) as u32) as usize] += 1;
    }

    /// Returns the latency that `part` of all do not exceed, in microseconds.
    fn quantile(&self, part: f64) -> f64 {
        let all = self.0.iter().sum::<u64>();
        let mut left = ((all as f64 * part) as u64).min(all.saturating_sub(1));
        let bucket = self.0.iter().position(|count| {
            let is_here = *count > left;
            left = left.saturating_sub(*count);
            is_here
        });
        let bucket = bucket.unwrap_or(self.0.len() - 1) as u64;
        ((16 + (bucket & 15) + 1) << (bucket >> 4) >> 4) as f64 / 1_000.0
    }
}

fn run(name: &str, options: &CreateOptions, keys: u64, threads: u64) -> Result<(), Error> {
    let store = Store::create_unnamed(options)?;
    let (done, start) = (AtomicU64::new(0), Instant::now());
    let put = |thread: u64| -> Result<Latencies, Error> {
        let (mut client, mut latencies) = (store.client()?, Latencies(vec![0; 64 * 16]));
        for number in (thread..keys).step_by(threads as usize) {
            let began = Instant::now();
            client.put(&key(number), &number.to_le_bytes())?;
            latencies.add(began.elapsed().as_nanos() as u64);
            if number / threads % GROUP == GROUP - 1 {
                done.fetch_add(GROUP, Ordering::Relaxed);
            }
        }
        Ok(latencies)
    };
    let (mut windows, mut all) = (Vec::new(), Latencies(vec![0; 64 * 16]));
    std::thread::scope(|scope| -> Result<(), Error> {
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || put(thread))).collect();
        let (mut before, mut until) = (0, start);
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            until += WINDOW;
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            let now = done.load(Ordering::Relaxed);
            windows.push(now - before);
            before = now;
        }
        for worker in workers {
            let latencies = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            all.0.iter_mut().zip(latencies.0).for_each(|(sum, count)| *sum += count);
        }
        Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    // The last window is not a whole one.
    windows.pop();
    windows.sort_unstable();
    let (slowest, median) =
        (windows.first().copied().unwrap_or(0), windows.get(windows.len() / 2).copied().unwrap_or(1));
    let stat = store.stat()?;
    println!(
        "{name}: {:.2} million puts/s; slowest 100 ms {:.0} % of the median; p50 {:.2}, p99 {:.1}, p99.9 {:.1}, most {:.0} us",
        keys as f64 / seconds / 1e6,
        slowest as f64 * 100.0 / median as f64,
        all.quantile(0.5),
        all.quantile(0.99),
        all.quantile(0.999),
        all.quantile(1.0),
    );
    let stored = stat.region.file().map_or(0, |file| file.stored_bytes);
    println!(
        "    {} rows, {:.1} % full, {:.0} bytes of memory a key",
        stat.table.rows,
        stat.table.fill * 100.0,
        stored as f64 / keys as f64
    );
    let (mut reader, mut number, gets, mut value) = (store.reader(), 1u64, keys.min(4_000_000), Vec::new());
    let start = Instant::now();
    for _ in 0..gets {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        assert!(reader.get_into(&key((number >> 33) % keys), &mut value)?, "a key is missing");
    }
    println!("    {:.0} ns a get, in any order", start.elapsed().as_nanos() as f64 / gets as f64);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let [keys, first, threads] =
        [(0, 8_000_000), (1, 250_000), (2, 2)].map(|(at, usual)| numbers.get(at).copied().unwrap_or(usual));
    let format = "fixed:8:8".parse()?;
    run("grows", &CreateOptions::new(first).max_capacity(keys.max(first)).format(format), keys, threads)?;
    run("fixed", &CreateOptions::new(keys).format(format), keys, threads)?;
    Ok(())
}
