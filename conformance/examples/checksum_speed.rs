//! Prints the time of a checksum of a 128-byte row for each algorithm. It only reports: nothing is enforced.
//!
//! There are two numbers for each: for independent rows, of which the CPU processes several at once, and for a chain,
//! in which each checksum is the seed of the next, so that the full latency shows. `cargo run --release -p
//! guira-conformance --example checksum_speed`

use std::{hint::black_box, time::Instant};

use guira_layout::sum::{ChecksumKind, NhKeys};

/// Number of words in a 128-byte row.
const ROW_WORDS: usize = 16;
/// Number of rows: they fit in the first-level cache, with 16 KiB.
const ROWS: usize = 128;
/// Number of passes over the rows in one measurement, which takes some tens of milliseconds.
const ROUNDS: u64 = 20_000;
/// Number of measurements, of which the fastest counts, because interrupts slow down the others.
const TRIES: usize = 5;

fn main() {
    let rows: Vec<[u64; ROW_WORDS]> =
        (0..ROWS as u64).map(|row| std::array::from_fn(|i| (row << 32 | i as u64).wrapping_mul(0x9e37_79b9))).collect();
    let keys = NhKeys::new([0; 4]);
    println!("{:<12} {:>16} {:>16}", "128-byte row", "independent, ns", "chained, ns");
    for algorithm in ChecksumKind::ALL {
        let independent = fastest_ns(|| {
            rows.iter().zip(0_u64..).fold(0, |sum, (row, seed)| sum ^ algorithm.checksum(&keys, black_box(row), seed))
        });
        let chained = fastest_ns(|| rows.iter().fold(0, |seed, row| algorithm.checksum(&keys, black_box(row), seed)));
        println!("{:<12} {independent:>16.2} {chained:>16.2}", algorithm.name());
    }
}

/// Returns the nanoseconds per row of the fastest of [`TRIES`] measurements.
fn fastest_ns(mut one_round: impl FnMut() -> u64) -> f64 {
    let mut fastest = f64::INFINITY;
    for _ in 0..TRIES {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            black_box(one_round());
        }
        let rows = ROUNDS as f64 * ROWS as f64;
        fastest = fastest.min(start.elapsed().as_nanos() as f64 / rows);
    }
    fastest
}
