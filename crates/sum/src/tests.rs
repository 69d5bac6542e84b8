//! What a row relies on: the same result everywhere, never 0, and every small accident found.

use proptest::prelude::*;

use crate::{Algorithm, ZERO_SUBSTITUTE, bytes_checksum, crc32c, crc32c_pair, nh, seal};

/// Longest row image under test, in words: 256 bytes, twice the largest row the presets use.
const WORDS_MAX: usize = 32;

/// Words that look random and depend on `seed` alone (SplitMix64's mixer over a counter).
fn random_words(len: usize, seed: u64) -> Vec<u64> {
    (0..len as u64)
        .map(|i| {
            let mut z = (seed << 8 | i).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        })
        .collect()
}

/// The published check value of CRC32C and RFC 3720 B.4's examples, through the tables and the bit-by-bit definition.
#[test]
fn crc32c_known_answers() {
    assert_eq!(crc32c::of_bytes(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c::of_bytes(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c::of_bytes(&[0xff; 32]), 0x62a8_ab43);
    assert_eq!(crc32c::of_bytes(&std::array::from_fn::<u8, 32, _>(|i| i as u8)), 0x46dd_794e);
}

/// The results are a format: these values were computed once, and a change of them makes old tables unreadable.
#[test]
fn results_are_frozen() {
    let words: Vec<u64> = (0..14).map(|i| i * 0x0101_0101_0101_0101).collect();
    let sums = Algorithm::ALL.map(|algorithm| algorithm.checksum(&words, 0x0123_4567_89ab_cdef));
    assert_eq!(sums, FROZEN, "{sums:#018x?}");
}

/// See [`results_are_frozen`].
const FROZEN: [u64; 4] = [0x7f4c_675b_97a6_3f86, 0xd139_5b25_de61_982f, 0x1834_56ac_e4fd_dfad, 0x116b_5748_7ef5_39a3];

#[test]
fn codes_and_names() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::from_code(algorithm.code()), Some(algorithm));
    }
    assert_eq!(Algorithm::ALL.map(Algorithm::code), [1, 2, 3, 4]);
    assert_eq!(Algorithm::ALL.map(Algorithm::name), ["crc32c-pair", "xxh3", "crc64-nvme", "nh"]);
    let known = (0..=u8::MAX).filter(|&code| Algorithm::from_code(code).is_some()).count();
    assert_eq!(known, Algorithm::ALL.len());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever `streams` picks on this CPU, the tables agree.
    #[test]
    fn hardware_equals_portable(words in prop::collection::vec(any::<u64>(), 0..=64), seed: u64) {
        let states = crc32c::initial_states(seed);
        prop_assert_eq!(crc32c::streams(&words, states), crc32c::streams_portable(&words, states));
    }

    /// The plain stream is CRC32C as published, with the seed's state for the usual all-ones one.
    #[test]
    fn plain_stream_is_crc32c(words in prop::collection::vec(any::<u64>(), 0..=64)) {
        let (plain, _) = crc32c::streams(&words, (!0, !0));
        prop_assert_eq!(!plain, crc32c::of_bytes(&crate::bytes::copy_le_bytes(&words)));
    }

    /// The scaled stream is the plain stream over scaled words.
    #[test]
    fn scaled_stream_multiplies(words in prop::collection::vec(any::<u64>(), 0..=64), seed: u64) {
        let (plain, scaled) = crc32c::initial_states(seed);
        let products: Vec<u64> = words.iter().map(|word| word.wrapping_mul(crc32c::STREAM_MULTIPLIER)).collect();
        let (_, direct) = crc32c::streams(&words, (plain, scaled));
        prop_assert_eq!(crc32c::streams(&products, (scaled, plain)).0, direct);
    }

    #[test]
    fn never_zero(words in prop::collection::vec(any::<u64>(), 0..=64), seed: u64) {
        for algorithm in Algorithm::ALL {
            prop_assert_ne!(algorithm.checksum(&words, seed), 0);
        }
    }

    /// Row r's image never verifies as row r'.
    #[test]
    fn another_seed_is_another_sum(words in prop::collection::vec(any::<u64>(), 0..=64), seed: u64, other: u64) {
        prop_assume!(seed != other);
        for algorithm in Algorithm::ALL {
            prop_assert_ne!(algorithm.checksum(&words, seed), algorithm.checksum(&words, other));
        }
    }
}

/// Different seeds start from different states: the inverse, written out, returns the seed.
#[test]
fn initial_states_are_a_bijection() {
    // Newton's iteration for the inverse of an odd number mod 2^64 doubles the right bits each time: 3, 6, ... 96.
    let multiplier = 0xd134_2543_de82_ef95_u64;
    let inverse = (0..5).fold(multiplier, |x, _| x.wrapping_mul(2_u64.wrapping_sub(multiplier.wrapping_mul(x))));
    for seed in random_words(1000, 9).into_iter().chain([0, 1, u64::MAX, 1 << 32, 1 << 63]) {
        let (plain, scaled) = crc32c::initial_states(seed);
        let folded = (u64::from(!scaled) << 32 | u64::from(!plain)).wrapping_mul(inverse);
        assert_eq!(folded ^ folded >> 32, seed);
    }
}

/// Neighbouring rows, and rows that differ in one bit of the seed, have different sums, also for images of zeros.
#[test]
fn neighbouring_rows_differ() {
    for algorithm in Algorithm::ALL {
        for words in [vec![0; 14], random_words(14, 3)] {
            let mut sums: Vec<u64> = (0..4096).map(|row| algorithm.checksum(&words, row)).collect();
            sums.extend((12..64).map(|bit| algorithm.checksum(&words, 1 << bit)));
            let total = sums.len();
            sums.sort_unstable();
            sums.dedup();
            assert_eq!(sums.len(), total, "{algorithm:?}");
        }
    }
}

/// A row of zeros stores checksum 0, which no seed and no length produces.
#[test]
fn zeros_never_verify() {
    let zeros = [0; 64];
    for algorithm in Algorithm::ALL {
        for len in 0..=zeros.len() {
            for seed in (0..64).map(|bit| 1 << bit).chain([0, u64::MAX]) {
                assert_ne!(algorithm.checksum(&zeros[..len], seed), 0, "{algorithm:?}, {len} words, seed {seed:#x}");
            }
        }
    }
    assert_eq!(seal(0), ZERO_SUBSTITUTE);
    assert_eq!(seal(1), 1);
}

/// The seed that brings both CRC states to 0, where zeros would leave them: the length still tells.
#[test]
fn length_matters_even_from_state_zero() {
    let seed_of_zero_states = {
        let multiplier = 0xd134_2543_de82_ef95_u64;
        let inverse = (0..5).fold(multiplier, |x, _| x.wrapping_mul(2_u64.wrapping_sub(multiplier.wrapping_mul(x))));
        let folded = u64::MAX.wrapping_mul(inverse);
        folded ^ folded >> 32
    };
    assert_eq!(crc32c::initial_states(seed_of_zero_states), (0, 0));
    for algorithm in Algorithm::ALL {
        for seed in [0, 1, seed_of_zero_states] {
            let mut sums: Vec<u64> = (0..=64).map(|len| algorithm.checksum(&vec![0; len], seed)).collect();
            sums.sort_unstable();
            sums.dedup();
            assert_eq!(sums.len(), 65, "{algorithm:?}, seed {seed:#x}");
        }
    }
}

#[test]
fn single_flips_are_found() {
    for algorithm in Algorithm::ALL {
        for len in 1..=WORDS_MAX {
            let mut words = random_words(len, len as u64);
            let sum = algorithm.checksum(&words, 5);
            for bit in 0..64 * len {
                words[bit / 64] ^= 1 << (bit % 64);
                assert_ne!(algorithm.checksum(&words, 5), sum, "{algorithm:?}, {len} words, bit {bit}");
                words[bit / 64] ^= 1 << (bit % 64);
            }
        }
    }
}

#[test]
fn swapped_words_are_found() {
    for algorithm in Algorithm::ALL {
        let mut words = random_words(WORDS_MAX, 77);
        let sum = algorithm.checksum(&words, 5);
        for first in 0..WORDS_MAX {
            for second in first + 1..WORDS_MAX {
                words.swap(first, second);
                assert_ne!(algorithm.checksum(&words, 5), sum, "{algorithm:?}, {first} and {second}");
                words.swap(first, second);
            }
        }
    }
}

/// A torn row: the first words from one image, the rest from another.
#[test]
fn torn_rows_are_found() {
    let (old, new) = (random_words(16, 1), random_words(16, 2));
    for algorithm in Algorithm::ALL {
        let sums = [algorithm.checksum(&old, 5), algorithm.checksum(&new, 5)];
        for cut in 1..16 {
            let torn = [&new[..cut], &old[cut..]].concat();
            assert!(!sums.contains(&algorithm.checksum(&torn, 5)), "{algorithm:?}, cut at {cut}");
        }
    }
}

/// The enum and the free functions are one thing under two names.
#[test]
fn free_functions_agree() {
    for len in 0..=WORDS_MAX {
        let words = random_words(len, 8);
        assert_eq!(Algorithm::Crc32cPair.checksum(&words, 1), crc32c_pair(&words, 1));
        assert_eq!(Algorithm::Xxh3.checksum(&words, 1), bytes_checksum(&words, 1));
        assert_eq!(Algorithm::Nh.checksum(&words, 1), nh(&words, 1));
    }
}
