//! Prints what a checksum of a 128-byte row costs, for each algorithm. A report: nothing is compared or enforced.
//!
//! Two numbers each: independent rows, where the CPU works on several at once, and a chain, where each checksum seeds
//! the next and the full latency shows. `cargo run --release -p guira-sum --example checksum_speed`

use std::{hint::black_box, time::Instant};

use guira_sum::{Algorithm, NhKeys};

/// Words in a 128-byte row.
const ROW_WORDS: usize = 16;
/// Rows that stay in the first-level cache: 16 KiB.
const ROWS: usize = 128;
/// Rounds over the rows in one measurement; some tens of milliseconds.
const ROUNDS: u64 = 20_000;
/// Measurements, of which the fastest counts: the others met an interrupt.
const TRIES: usize = 5;

fn main() {
    let rows: Vec<[u64; ROW_WORDS]> =
        (0..ROWS as u64).map(|row| std::array::from_fn(|i| (row << 32 | i as u64).wrapping_mul(0x9e37_79b9))).collect();
    let keys = NhKeys::new([0; 4]);
    println!("{:<12} {:>16} {:>16}", "128-byte row", "independent, ns", "chained, ns");
    for algorithm in Algorithm::ALL {
        let independent = fastest_ns(|| {
            rows.iter().zip(0_u64..).fold(0, |sum, (row, seed)| sum ^ algorithm.checksum(&keys, black_box(row), seed))
        });
        let chained = fastest_ns(|| rows.iter().fold(0, |seed, row| algorithm.checksum(&keys, black_box(row), seed)));
        println!("{:<12} {independent:>16.2} {chained:>16.2}", algorithm.name());
    }
}

/// Nanoseconds per row of the fastest of [`TRIES`] measurements.
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
