//! NH, the first stage of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway: CRYPTO 1999), over 64-bit words.
//!
//! Words come in pairs; each has a key added, the two sums are multiplied, and the 128-bit products are added up. Two
//! images of one length then have the same sum for at most one in 2⁶⁴ choices of keys. Here the keys are constants of
//! the format, and the halves of the sum are combined: accidents do not choose bytes by them.
//!
//! A pair takes eight instructions that only meet in the last addition, and a row whose length is known to the compiler
//! has no loop: this is what a lookup of a few hundred instructions can afford.

/// Words that have a key of their own; longer images are summed in blocks of so many.
const BLOCK_WORDS: usize = 256;

/// A key for each word, one for the seed, and one that the seed is multiplied with where the words leave it alone.
const KEYS: [u64; BLOCK_WORDS + 2] = keys();

/// SplitMix64 from state 0.
const fn keys() -> [u64; BLOCK_WORDS + 2] {
    let mut keys = [0; BLOCK_WORDS + 2];
    let mut state = 0_u64;
    let mut i = 0;
    while i < keys.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        keys[i] = z ^ z >> 31;
        i += 1;
    }
    keys
}

/// The products' sum, its halves combined. Each block but the last one makes the seed of the next.
#[inline(always)]
pub(crate) fn nh(words: &[u64], seed: u64) -> u64 {
    if words.len() <= BLOCK_WORDS { block(words, seed) } else { blocks(words, seed) }
}

#[inline(never)]
fn blocks(words: &[u64], seed: u64) -> u64 {
    words.chunks(BLOCK_WORDS).fold(seed, |seed, words| block(words, seed))
}

/// At most [`BLOCK_WORDS`] words, and the seed as one more word; it is alone if their number is even.
#[inline(always)]
fn block(words: &[u64], seed: u64) -> u64 {
    let at = words.len();
    let mut sum = match at % 2 {
        1 => product(words[at - 1].wrapping_add(KEYS[at - 1]), seed.wrapping_add(KEYS[at])),
        _ => product(seed.wrapping_add(KEYS[at]), KEYS[at + 1]),
    };
    // Not folded: the compiler may leave a fold as a call for each pair.
    for (pair, keys) in words.as_chunks::<2>().0.iter().zip(KEYS.as_chunks::<2>().0) {
        sum = sum.wrapping_add(product(pair[0].wrapping_add(keys[0]), pair[1].wrapping_add(keys[1])));
    }
    sum as u64 ^ (sum >> 64) as u64
}

#[inline(always)]
fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of SplitMix64 from state 0 are published test values.
    #[test]
    fn keys_are_the_generators() {
        assert_eq!(KEYS[..3], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    /// By the definition, one product after the other.
    #[test]
    fn pairs_are_multiplied_and_added() {
        for len in 0..=BLOCK_WORDS {
            let mut image: Vec<u64> = (0..len as u64).map(|i| (i + 1).wrapping_mul(0xd134_2543_de82_ef95)).collect();
            let sum = nh(&image, 77);
            let keyed = |i: usize, image: &[u64]| image[i].wrapping_add(KEYS[i]);
            image.push(77);
            let mut expected = 0_u128;
            for i in (0..image.len()).step_by(2) {
                let second = if i + 1 < image.len() { keyed(i + 1, &image) } else { KEYS[i + 1] };
                expected = expected.wrapping_add(u128::from(keyed(i, &image)) * u128::from(second));
            }
            assert_eq!(sum, expected as u64 ^ (expected >> 64) as u64, "{len} words");
        }
    }

    #[test]
    fn blocks_are_chained() {
        let image: Vec<u64> = (0..BLOCK_WORDS as u64 + 9).collect();
        let first = nh(&image[..BLOCK_WORDS], 5);
        assert_eq!(nh(&image, 5), nh(&image[BLOCK_WORDS..], first));
    }
}
