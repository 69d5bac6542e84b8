//! The two CRC32C streams of [`crate::crc32c_pair`]: the choice of instructions, and the tables for CPUs without them.
//!
//! Invariants: all variants of [`streams`] return the same states for the same input, and a CRC instruction runs only
//! after the CPU was found to have it. CRC32C is the Castagnoli CRC of RFC 3720, bit-reflected; the states here are the
//! raw register, before the final inversion that the published check values include.

/// Multiplier of the second stream: the odd integer nearest to 2⁶⁴ divided by the golden ratio.
pub(crate) const STREAM_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplier that spreads a seed over both initial states; the one of Steele and Vigna's LCG tables.
const SEED_MULTIPLIER: u64 = 0xd134_2543_de82_ef95;

// Odd multipliers are bijections of 64-bit words: no two words, and no two seeds, become one.
const _: () = assert!(STREAM_MULTIPLIER % 2 == 1 && SEED_MULTIPLIER % 2 == 1);

/// The states of the plain and of the scaled stream.
pub(crate) type States = (u32, u32);

/// Initial states for a seed. A bijection, so that different seeds never start alike.
#[inline]
pub(crate) const fn initial_states(seed: u64) -> States {
    let spread = (seed ^ seed >> 32).wrapping_mul(SEED_MULTIPLIER);
    (!(spread as u32), !((spread >> 32) as u32))
}

/// Runs both streams over `words` with the fastest means this CPU has.
///
/// Where the build's target already guarantees the instructions, the test and the call vanish. Elsewhere the test is a
/// relaxed load and a branch: the standard library asks the CPU once per process.
#[inline]
pub(crate) fn streams(words: &[u64], states: States) -> States {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the function's only requirement is a CPU with SSE4.2, which the line above established.
        return unsafe { streams_sse42(words, states) };
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("crc") {
        // SAFETY: the function's only requirement is a CPU with the CRC extension, which the line above established.
        return unsafe { streams_armv8(words, states) };
    }
    streams_portable(words, states)
}

/// [`streams`] with SSE4.2's CRC32 instruction.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
#[inline]
pub(crate) fn streams_sse42(words: &[u64], (plain, scaled): States) -> States {
    use std::arch::x86_64::_mm_crc32_u64;

    let (mut plain, mut scaled) = (u64::from(plain), u64::from(scaled));
    for &word in words {
        plain = _mm_crc32_u64(plain, word);
        scaled = _mm_crc32_u64(scaled, word.wrapping_mul(STREAM_MULTIPLIER));
    }
    // The instruction clears the upper half of its destination.
    (plain as u32, scaled as u32)
}

/// [`streams`] with Armv8's CRC32CX instruction.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "crc")]
#[inline]
pub(crate) fn streams_armv8(words: &[u64], (mut plain, mut scaled): States) -> States {
    use std::arch::aarch64::__crc32cd;

    for &word in words {
        plain = __crc32cd(plain, word);
        scaled = __crc32cd(scaled, word.wrapping_mul(STREAM_MULTIPLIER));
    }
    (plain, scaled)
}

/// [`streams`] by table look-up, eight bytes a step ("slicing-by-8": Kounavis and Berry, ISCC 2005).
pub(crate) fn streams_portable(words: &[u64], (mut plain, mut scaled): States) -> States {
    for &word in words {
        plain = step_word(plain, word);
        scaled = step_word(scaled, word.wrapping_mul(STREAM_MULTIPLIER));
    }
    (plain, scaled)
}

/// Advances a state over the eight little-endian bytes of `word`.
#[inline]
const fn step_word(state: u32, word: u64) -> u32 {
    let mixed = word ^ state as u64;
    let mut next = 0;
    let mut byte = 0;
    while byte < 8 {
        // The byte at offset `byte` has 7 − byte bytes behind it.
        next ^= TABLES[7 - byte][(mixed >> (8 * byte)) as usize & 0xff];
        byte += 1;
    }
    next
}

/// The Castagnoli polynomial 0x1EDC6F41, bit-reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[z][b]` is the state after byte `b` and `z` zero bytes, from state 0. 8 KiB.
static TABLES: [[u32; 256]; 8] = build_tables();

const fn build_tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut state = step_byte(0, byte as u8);
        tables[0][byte] = state;
        let mut zeros = 1;
        while zeros < 8 {
            state = step_byte(state, 0);
            tables[zeros][byte] = state;
            zeros += 1;
        }
        byte += 1;
    }
    tables
}

/// Advances a state over one byte, bit by bit: the definition, from which the tables are built.
const fn step_byte(state: u32, byte: u8) -> u32 {
    let mut state = state ^ byte as u32;
    let mut bit = 0;
    while bit < 8 {
        // All ones where the lowest bit is set, so that the polynomial is added there only.
        let carry = (state & 1).wrapping_neg();
        state = state >> 1 ^ POLYNOMIAL & carry;
        bit += 1;
    }
    state
}

/// CRC32C of a byte string as others publish it, whole words by table and the rest by definition.
#[cfg(test)]
pub(crate) fn of_bytes(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let state = words.iter().fold(!0, |state, word| step_word(state, u64::from_le_bytes(*word)));
    !rest.iter().fold(state, |state, &byte| step_byte(state, byte))
}
