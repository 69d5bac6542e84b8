//! Prints the time of a copy of values of 1 KiB and 64 KiB out of 256 MiB of shared words, with a checksum and without.
//! It only reports: nothing is enforced. `cargo run --release -p guira-conformance --example copy_speed`

use std::hint::black_box;
use std::time::Instant;

use guira_fabric::SplitMix64;
use guira_fabric::memory::{AtomicU64, Word, prefetch, read_words};
use guira_layout::sum::{BLOCK_WORDS, NhKeys, nh, nh_copying, with_le_bytes};

/// Number of words that values are copied from: more than any cache has.
const WORDS: usize = 32 << 20;
/// Number of bytes copied in one measurement.
const COPIED_BYTES: usize = 64 << 20;
/// Number of rounds in each of which every way is measured once; the median counts.
const ROUNDS: usize = 15;

/// A way to copy a value.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    copy: fn(&NhKeys, &[AtomicU64], &mut Buffers) -> u64,
}

const WAYS: [Way; 4] = [
    Way { name: "bare copy", copy: bare },
    Way { name: "copied, summed, copied", copy: in_three_passes },
    Way { name: "in one pass", copy: in_one_pass },
    Way { name: "in one pass, no sum", copy: without_sum },
];

/// The buffers of a reader and its caller.
struct Buffers {
    words: Vec<u64>,
    block: [u64; BLOCK_WORDS],
    value: Vec<u8>,
}

fn bare(_: &NhKeys, from: &[AtomicU64], buffers: &mut Buffers) -> u64 {
    buffers.words.resize(from.len(), 0);
    read_words(from, &mut buffers.words);
    0
}

fn in_three_passes(keys: &NhKeys, from: &[AtomicU64], buffers: &mut Buffers) -> u64 {
    bare(keys, from, buffers);
    let sum = nh(keys, &buffers.words, 1);
    buffers.value.clear();
    with_le_bytes(&buffers.words, |bytes| buffers.value.extend_from_slice(bytes));
    sum
}

fn in_one_pass(keys: &NhKeys, from: &[AtomicU64], Buffers { block, value, .. }: &mut Buffers) -> u64 {
    prefetch(from);
    value.clear();
    value.reserve(size_of_val(from));
    nh_copying(keys, from, Word::load, Word::prefetch, 1, block, |words| {
        with_le_bytes(words, |bytes| value.extend_from_slice(bytes));
    })
}

fn without_sum(_: &NhKeys, from: &[AtomicU64], Buffers { block, value, .. }: &mut Buffers) -> u64 {
    prefetch(from);
    value.clear();
    value.reserve(size_of_val(from));
    for (i, words) in from.chunks(BLOCK_WORDS).enumerate() {
        let (block, ahead) = (&mut block[..words.len()], &from[(i * BLOCK_WORDS + words.len())..]);
        // The values here are whole cache lines.
        for (at, (line, copy)) in words.as_chunks::<8>().0.iter().zip(block.as_chunks_mut::<8>().0).enumerate() {
            ahead.get(8 * at).into_iter().for_each(Word::prefetch);
            *copy = line.each_ref().map(Word::load);
        }
        with_le_bytes(block, |bytes| value.extend_from_slice(bytes));
    }
    0
}

fn main() {
    let words: Vec<AtomicU64> = (0..WORDS as u64).map(|i| AtomicU64::new(SplitMix64::nth(1, i))).collect();
    let keys = NhKeys::new([1, 2, 3, 4]);
    let mut buffers = Buffers { words: Vec::new(), block: [0; BLOCK_WORDS], value: Vec::new() };
    for value_bytes in [1 << 10, 64 << 10] {
        let mut times_ns = WAYS.map(|_| Vec::new());
        for round in 0..ROUNDS as u64 {
            for (way, times_ns) in WAYS.iter().zip(&mut times_ns) {
                times_ns.push(time_ns(*way, &keys, &words, value_bytes / 8, round, &mut buffers));
            }
        }
        println!("values of {value_bytes} bytes");
        for (way, times_ns) in WAYS.iter().zip(&mut times_ns) {
            times_ns.sort_by(f64::total_cmp);
            let (median, min, max) = (times_ns[ROUNDS / 2], times_ns[0], times_ns[ROUNDS - 1]);
            println!("  {:<24} {median:>8.0} ns, {min:.0}..{max:.0}", way.name);
        }
    }
}

/// Returns the nanoseconds for a value of `length` words, at places drawn from `seed`.
fn time_ns(way: Way, keys: &NhKeys, words: &[AtomicU64], length: usize, seed: u64, buffers: &mut Buffers) -> f64 {
    let copies = COPIED_BYTES / (8 * length);
    let start = Instant::now();
    for i in 0..copies as u64 {
        let at = SplitMix64::nth(seed, i) as usize % (words.len() / length) * length;
        black_box((way.copy)(keys, &words[at..at + length], buffers));
        black_box(&*buffers.value);
    }
    start.elapsed().as_nanos() as f64 / copies as f64
}
