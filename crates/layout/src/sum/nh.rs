//! NH, the first stage of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway: CRYPTO 1999), over 64-bit words, with keys
//! derived from the table's secret.
//!
//! Words come in pairs; each has a key added, the two sums are multiplied, and the 128-bit products are added up: S.
//! Its halves are combined to U = low − 13 · high, and U and a multiple of the length are added, all modulo 2⁶⁴.
//!
//! # Guarantee
//! Two images of one length that were chosen without the keys have the same sum for at most 168 in 2⁶⁴ choices of keys.
//! Proof: let p = 2⁶⁴ + 13, which is prime. As 2⁶⁴ ≡ −13, the integer u = low − 13 · high is congruent to S modulo p.
//! If both images have the same sum, their u differ by a multiple of 2⁶⁴ that is less than 14 · 2⁶⁴ either way: so S −
//! S′ is one of 27 numbers modulo p. Take a pair in which the images differ, say in its first word, and fix every key
//! but that of its second. The other pairs' products are fixed then, each S was reduced by 2¹²⁸ once at most when the
//! pair's product was added to them, so the difference of the pair's products, AB − A′B′, is one of 27 · 3 numbers
//! modulo p. With β the difference of the second words modulo 2⁶⁴, B′ is B + β or B + β − 2⁶⁴; in either case AB − A′B′
//! is (A − A′)B minus a fixed number, and as A − A′ is not 0 and between −2⁶⁴ and 2⁶⁴, thus not 0 modulo the prime p,
//! one B at most gives each of the numbers: 162 of the 2⁶⁴ keys. For different lengths the 27 becomes 28, and for the
//! low half of the sum alone 28 · 2³².
//!
//! Images of more than 256 words are summed block by block; the sums of 256 blocks are summed with other keys, and 256
//! of those sums with others again. The seed is part of the last sum. Blocks that differ have different sums, except
//! for 162 in 2⁶⁴ keys; the sums do not depend on the keys of the next level, and so on: three times 162 in total, for
//! any length. A seed that is itself a sum ([`Level`]) uses keys of a level that its image does not use, for the same
//! reason.
//!
//! A pair takes eight instructions, which depend on those of other pairs only through the last addition, and a row
//! whose length is known at compile time needs no loop. This is cheap enough for a lookup of a few hundred
//! instructions.

use std::fmt;

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};

/// Number of words with a key of their own; longer images are summed in blocks of this many words.
pub const BLOCK_WORDS: usize = 256;

/// Number of words in a cache line.
const LINE_WORDS: usize = 8;

/// Number of keys of a level: one for each word, one for the seed, and one that the seed is multiplied by if it has no
/// word to pair with.
const KEYS: usize = BLOCK_WORDS + 2;

/// The smallest number that, added to 2⁶⁴, gives a prime.
const PRIME_EXCESS: u64 = 13;

/// Keys of one level.
type LevelKeys = [u64; KEYS];

/// Number of levels with keys: three for the longest image, and one for its seed.
const LEVELS: usize = 4;

/// Level of the keys for an image or its blocks. The sums of blocks use the keys of the next two levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Level of rows, extents, and the first parts of records: up to 2²⁴ words.
    First = 0,
    /// Level of seeds of images of at most 256 words: up to 2¹⁶ words.
    Second = 1,
    /// Level of seeds of any image: up to 256 words.
    Last = 3,
}

/// NH keys of one table, derived from its secret: 8 KiB, in whole cache lines.
#[derive(Clone)]
#[repr(align(64))]
pub struct NhKeys([LevelKeys; LEVELS]);

impl NhKeys {
    /// Derives the keys from `secret`: they are, as little-endian words, the first bytes of the key stream of ChaCha20
    /// (RFC 8439) with the secret's little-endian bytes as its key, a nonce of zeros, and the counter from 0.
    #[must_use]
    pub fn new(secret: [u64; 4]) -> NhKeys {
        let mut key = [0; 32];
        for (bytes, word) in key.chunks_exact_mut(8).zip(secret) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let mut stream = [0; LEVELS * KEYS * 8];
        ChaCha20::new(&key.into(), &[0; 12].into()).apply_keystream(&mut stream);
        let mut keys = [[0; KEYS]; LEVELS];
        for (key, bytes) in keys.as_flattened_mut().iter_mut().zip(stream.as_chunks::<8>().0) {
            *key = u64::from_le_bytes(*bytes);
        }
        NhKeys(keys)
    }

    /// Returns the key that is added to word `i` of an image, for 0 to 257: for tests that choose bytes by the keys.
    #[doc(hidden)]
    pub fn key(&self, i: usize) -> u64 {
        self.0[0][i]
    }
}

impl fmt::Debug for NhKeys {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NhKeys")
    }
}

/// Computes the sum of `words` with `seed`.
#[inline(always)]
pub(crate) fn nh(NhKeys(keys): &NhKeys, level: Level, words: &[u64], seed: u64) -> u64 {
    let keys = &keys[level as usize..];
    if words.len() <= BLOCK_WORDS { block(&keys[0], words, seed) } else { long(keys, words, seed) }
}

/// Computes the sum of more words than a block has.
#[inline(never)]
fn long(keys: &[LevelKeys], words: &[u64], seed: u64) -> u64 {
    let mut rest = words;
    blocks(keys, words.len(), seed, &mut |len| {
        let (words, after) = rest.split_at(len);
        rest = after;
        block(&keys[0], words, 0)
    })
}

/// Computes the sum of the words that `load` returns for `words`, with the keys of the first level. Loads each once,
/// keeps a block of them in `buffer`, and passes that to `copied`. Passes to `prefetch`, for each cache line that it
/// loads, a word that lies a block ahead.
#[inline(always)]
pub(crate) fn nh_copying<W>(
    NhKeys(keys): &NhKeys,
    words: &[W],
    load: impl Fn(&W) -> u64,
    prefetch: impl Fn(&W),
    seed: u64,
    buffer: &mut [u64; BLOCK_WORDS],
    mut copied: impl FnMut(&[u64]),
) -> u64 {
    let mut rest = words;
    let copy = |len: usize, seed: u64| {
        let (from, ahead) = rest.split_at(len);
        rest = ahead;
        let into = &mut buffer[..len];
        let sum = copy_block(&keys[0], from, into, &load, |at| ahead.get(at).into_iter().for_each(&prefetch));
        copied(into);
        combined(sum.wrapping_add(seed_product(&keys[0], into, seed)))
    };
    block_or_blocks(keys, words.len(), seed, copy)
}

/// Computes the sum of `len` words with the keys of the first level; `next` writes them to `buffer`, block by block.
#[inline(always)]
pub(crate) fn nh_making(
    NhKeys(keys): &NhKeys,
    len: usize,
    seed: u64,
    buffer: &mut [u64; BLOCK_WORDS],
    mut next: impl FnMut(&mut [u64]),
) -> u64 {
    let make = |len: usize, seed: u64| {
        let words = &mut buffer[..len];
        next(words);
        block(&keys[0], words, seed)
    };
    block_or_blocks(keys, len, seed, make)
}

/// Same as [`blocks`], of any number of words. `next` is passed the seed of the words as well.
#[inline(always)]
fn block_or_blocks(keys: &[LevelKeys], len: usize, seed: u64, mut next: impl FnMut(usize, u64) -> u64) -> u64 {
    if len <= BLOCK_WORDS { next(len, seed) } else { blocks(keys, len, seed, &mut |len| next(len, 0)) }
}

/// Computes the sum of `len` words, more than a block has, with the keys of as many levels as they need. `next` returns
/// the sum of the next words of the image, as many as it is passed, with the keys of the first level.
///
/// # Panics
/// If there are more words than the levels allow: 256 times as many for each level.
fn blocks<N: FnMut(usize) -> u64>(keys: &[LevelKeys], len: usize, seed: u64, next: &mut N) -> u64 {
    let mut below = keys.len() - 1;
    while below > 1 && len <= BLOCK_WORDS.pow(below as u32) {
        below -= 1;
    }
    let (mut sums, part) = ([0; BLOCK_WORDS], BLOCK_WORDS.pow(below as u32));
    let parts = len.div_ceil(part);
    for (i, sum) in sums[..parts].iter_mut().enumerate() {
        let len = part.min(len - i * part);
        // Recursion ends: each part is for one level less.
        *sum = if below == 1 { next(len) } else { blocks(&keys[..below], len, 0, next) };
    }
    block(&keys[below], &sums[..parts], seed)
}

/// Computes the sum of at most [`BLOCK_WORDS`] words, and the seed as one more word.
#[inline(always)]
fn block(keys: &LevelKeys, words: &[u64], seed: u64) -> u64 {
    combined(add_pairs(seed_product(keys, words, seed), words, keys))
}

/// Copies what `load` returns for the words of `from` to `into`, which has as many, and returns the sum of the products
/// of its pairs. Calls `ahead` before each cache line, with the index of its first word.
#[inline(always)]
fn copy_block<W>(
    keys: &LevelKeys,
    from: &[W],
    into: &mut [u64],
    load: impl Fn(&W) -> u64,
    ahead: impl Fn(usize),
) -> u128 {
    let ((lines, last), (copies, last_copy)) = (from.as_chunks::<LINE_WORDS>(), into.as_chunks_mut::<LINE_WORDS>());
    let mut sum = 0;
    for (((i, line), copy), keys) in lines.iter().enumerate().zip(copies).zip(keys.as_chunks::<LINE_WORDS>().0) {
        ahead(i * LINE_WORDS);
        *copy = line.each_ref().map(&load);
        sum = add_pairs(sum, copy, keys);
    }
    for (from, copy) in last.iter().zip(&mut *last_copy) {
        *copy = load(from);
    }
    add_pairs(sum, last_copy, &keys[lines.len() * LINE_WORDS..])
}

/// Returns the product of the seed and the last word, or of the seed alone if every word has a pair.
#[inline(always)]
fn seed_product(keys: &LevelKeys, words: &[u64], seed: u64) -> u128 {
    let at = words.len();
    match at % 2 {
        1 => product(words[at - 1].wrapping_add(keys[at - 1]), seed.wrapping_add(keys[at])),
        _ => product(seed.wrapping_add(keys[at]), keys[at + 1]),
    }
}

/// Adds the products of the pairs of `words`, the first of which has the first of `keys`.
#[inline(always)]
fn add_pairs(mut sum: u128, words: &[u64], keys: &[u64]) -> u128 {
    // A loop, not a fold: the compiler may leave a fold as a call for each pair.
    for (pair, keys) in words.as_chunks::<2>().0.iter().zip(keys.as_chunks::<2>().0) {
        sum = sum.wrapping_add(product(pair[0].wrapping_add(keys[0]), pair[1].wrapping_add(keys[1])));
    }
    sum
}

/// Combines the halves of a sum of products.
#[inline(always)]
fn combined(sum: u128) -> u64 {
    (sum as u64).wrapping_sub(((sum >> 64) as u64).wrapping_mul(PRIME_EXCESS))
}

#[inline(always)]
fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u64; 4] = [1, 2, 3, 4];

    /// RFC 8439, appendix A.1, test vector 1: the key stream of a key of zeros.
    #[test]
    fn keys_are_the_key_stream() {
        let keys = NhKeys::new([0; 4]);
        let expected = [0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90, 0x40, 0x5d, 0x6a, 0xe5, 0x53, 0x86, 0xbd, 0x28];
        let bytes: Vec<u8> = keys.0[0][..2].iter().flat_map(|key| key.to_le_bytes()).collect();
        assert_eq!(bytes, expected);
        assert_ne!(NhKeys::new(SECRET).0, keys.0);
        assert_eq!(format!("{keys:?}"), "NhKeys");
    }

    /// The proof of the bound needs a prime: p = 2^64 + 13 passes the Miller-Rabin test for the bases that decide it
    /// for numbers of this size.
    #[test]
    fn the_modulus_is_prime() {
        let p = (1_u128 << 64) + u128::from(PRIME_EXCESS);
        let add = |a: u128, b: u128| (a + b) % p;
        let multiply = |a: u128, b: u128| {
            (0..65).rev().fold(0, |sum, bit| add(add(sum, sum), if b >> bit & 1 == 1 { a } else { 0 }))
        };
        let (mut odd, mut twos) = (p - 1, 0);
        while odd % 2 == 0 {
            (odd, twos) = (odd / 2, twos + 1);
        }
        for base in [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41] {
            let mut power = (0..65).rev().fold(1, |power, bit| {
                let squared = multiply(power, power);
                if odd >> bit & 1 == 1 { multiply(squared, base) } else { squared }
            });
            let is_witness = power != 1
                && (0..twos).all(|_| {
                    let is_other = power != p - 1;
                    power = multiply(power, power);
                    is_other
                });
            assert!(!is_witness, "base {base}");
        }
    }

    /// The sum is the one given by the definition, computed product by product.
    #[test]
    fn pairs_are_multiplied_and_added() {
        let keys = NhKeys::new(SECRET);
        for len in 0..=BLOCK_WORDS {
            let mut image: Vec<u64> = (0..len as u64).map(|i| (i + 1).wrapping_mul(0xd134_2543_de82_ef95)).collect();
            let sum = nh(&keys, Level::First, &image, 77);
            let keyed = |i: usize, image: &[u64]| image[i].wrapping_add(keys.key(i));
            image.push(77);
            let mut expected = 0_u128;
            for i in (0..image.len()).step_by(2) {
                let second = if i + 1 < image.len() { keyed(i + 1, &image) } else { keys.key(i + 1) };
                expected = expected.wrapping_add(u128::from(keyed(i, &image)) * u128::from(second));
            }
            // The combined halves, reduced modulo 2^64.
            let combined = i128::from(expected as u64) - 13 * i128::from((expected >> 64) as u64);
            assert_eq!(sum, combined.rem_euclid(1 << 64) as u64, "{len} words");
        }
    }

    /// The sum is the one given by the definition: blocks with the keys of the first level, their sums with those of
    /// the second, and so on.
    #[test]
    fn blocks_are_summed_in_levels() {
        let keys = NhKeys::new(SECRET);
        let level = |level: usize, words: &[u64], seed| block(&keys.0[level], words, seed);
        for len in [257, 512, 600, BLOCK_WORDS * BLOCK_WORDS, BLOCK_WORDS * BLOCK_WORDS + 1, 3 * BLOCK_WORDS.pow(2) + 7]
        {
            let image: Vec<u64> = (0..len as u64).map(|i| (i + 1).wrapping_mul(0xd134_2543_de82_ef95)).collect();
            let mut sums: Vec<u64> = image.chunks(BLOCK_WORDS).map(|words| level(0, words, 0)).collect();
            let mut next = 1;
            if sums.len() > BLOCK_WORDS {
                sums = sums.chunks(BLOCK_WORDS).map(|sums| level(1, sums, 0)).collect();
                next = 2;
            }
            assert_eq!(nh(&keys, Level::First, &image, 5), level(next, &sums, 5), "{len} words");
        }
        let image = vec![7; 600];
        let sums: Vec<u64> = image.chunks(BLOCK_WORDS).map(|words| level(1, words, 0)).collect();
        assert_eq!(nh(&keys, Level::Second, &image, 5), level(2, &sums, 5));
        assert_eq!(nh(&keys, Level::Last, &image[..9], 5), level(3, &image[..9], 5));
    }
}
