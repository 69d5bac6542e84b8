//! Mutations of inputs, for tests without a fuzzer.

use guira_fabric::SplitMix64;

/// Bytes with a meaning in some format.
const NASTY: &[u8] = b"\t\n\r\\{}\"':/ x0a=P\0\x01\x7f\x80\xc3\xff";
/// Most bytes of an input; changes that repeat parts of it stop here.
const INPUT_BYTES_MAX: usize = 8 << 10;

/// Changes `input` in one to eight places; some of the inserted bytes come from `other`.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], rng: &mut SplitMix64) {
    for _ in 0..=rng.below(8) {
        change(input, other, rng);
    }
    input.truncate(INPUT_BYTES_MAX);
}

fn change(input: &mut Vec<u8>, other: &[u8], rng: &mut SplitMix64) {
    let at = rng.below(input.len() as u64 + 1) as usize;
    let drawn = rng.next_u64();
    let nasty = NASTY[rng.below(NASTY.len() as u64) as usize];
    match rng.below(10) {
        0..3 if at < input.len() => input[at] ^= 1 << (drawn % 8),
        3 if at < input.len() => input[at] = drawn as u8,
        4 if at < input.len() => input[at] = nasty,
        5 => input.insert(at, nasty),
        6 => {
            let end = (at + 1 + drawn as usize % 16).min(input.len());
            input.drain(at..end);
        }
        7 => set_number(input, at, drawn),
        8 => splice(input, other, at, rng),
        9 if drawn.is_multiple_of(4) => input.truncate(at),
        _ => input.extend((0..drawn % 24).map(|_| rng.next_u64() as u8)),
    }
}

/// Sets 1, 2, 4 or 8 bytes to an edge value: 0, a power of two, one less, or all ones.
fn set_number(input: &mut [u8], at: usize, drawn: u64) {
    let power = 1u64 << (drawn >> 8 & 63);
    let number = [0, 1, power, power - 1, !0, drawn][(drawn & 0xff) as usize % 6];
    let width = 1 << (drawn >> 16 & 3);
    let at = at / width * width;
    for (byte, new) in input.iter_mut().skip(at).zip(&number.to_le_bytes()[..width]) {
        *byte = *new;
    }
}

/// Copies a part of another input, or of this one, to `at`, overwriting or inserting.
fn splice(input: &mut Vec<u8>, other: &[u8], at: usize, rng: &mut SplitMix64) {
    let source = if rng.below(2) == 0 { other.to_vec() } else { input.clone() };
    let start = rng.below(source.len() as u64 + 1) as usize;
    let end = (start + rng.below(64) as usize).min(source.len());
    let replaced = if rng.below(2) == 0 { (at + (end - start)).min(input.len()) } else { at };
    input.splice(at..replaced, source[start..end].iter().copied());
}
