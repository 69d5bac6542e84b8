//! Properties that rows rely on: the same result everywhere, never 0, and all small changes detected.

use std::cell::Cell;
use std::sync::LazyLock;

use guira_fabric::SplitMix64;
use proptest::prelude::*;

use crate::sum::{BLOCK_WORDS, ChecksumKind, NhKeys, ZERO_SUBSTITUTE, nh, nh_copying, nh_making, nonzero};

/// Keys of a table.
static KEYS: LazyLock<NhKeys> = LazyLock::new(|| NhKeys::new([0x6775, 0x6972, 0x6131, 0]));

/// Longest row image under test, in words: 256 bytes, twice the largest row the presets use.
const WORDS_MAX: usize = 32;

/// Words that look random and depend on `seed` alone.
fn random_words(len: usize, seed: u64) -> Vec<u64> {
    (0..len as u64).map(|i| SplitMix64::nth(0, seed << 8 | i)).collect()
}

/// The results are part of the format: these values were computed once, and a change makes old tables unreadable.
#[test]
fn results_are_frozen() {
    let words: Vec<u64> = (0..14).map(|i| i * 0x0101_0101_0101_0101).collect();
    let sums = ChecksumKind::ALL.map(|algorithm| algorithm.checksum(&KEYS, &words, 0x0123_4567_89ab_cdef));
    assert_eq!(sums, FROZEN, "{sums:#018x?}");
}

/// See [`results_are_frozen`].
const FROZEN: [u64; 2] = [0x1834_56ac_e4fd_dfad, 0x0579_c2da_38e6_fd91];

#[test]
fn codes_and_names() {
    for algorithm in ChecksumKind::ALL {
        assert_eq!(ChecksumKind::from_code(algorithm.code()), Some(algorithm));
    }
    assert_eq!(ChecksumKind::ALL.map(ChecksumKind::code), [3, 5]);
    assert_eq!(ChecksumKind::ALL.map(ChecksumKind::name), ["crc64-nvme", "nh"]);
    let known = (0..=u8::MAX).filter(|&code| ChecksumKind::from_code(code).is_some()).count();
    assert_eq!(known, ChecksumKind::ALL.len());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_zero(words in prop::collection::vec(any::<u64>(), 0..=64), seed: u64) {
        for algorithm in ChecksumKind::ALL {
            prop_assert_ne!(algorithm.checksum(&KEYS, &words, seed), 0);
        }
    }

    /// Row r's image never verifies as row r'.
    #[test]
    fn seeds_give_different_sums(words in prop::collection::vec(any::<u64>(), 0..=64), seed: u64, other: u64) {
        prop_assume!(seed != other);
        for algorithm in ChecksumKind::ALL {
            prop_assert_ne!(algorithm.checksum(&KEYS, &words, seed), algorithm.checksum(&KEYS, &words, other));
        }
    }
}

/// Neighbouring rows, and rows that differ in one bit of the seed, have different sums, also for images of zeros.
#[test]
fn neighbouring_rows_differ() {
    for algorithm in ChecksumKind::ALL {
        for words in [vec![0; 14], random_words(14, 3)] {
            let mut sums: Vec<u64> = (0..4096).map(|row| algorithm.checksum(&KEYS, &words, row)).collect();
            sums.extend((12..64).map(|bit| algorithm.checksum(&KEYS, &words, 1 << bit)));
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
    for algorithm in ChecksumKind::ALL {
        for len in 0..=zeros.len() {
            for seed in (0..64).map(|bit| 1 << bit).chain([0, u64::MAX]) {
                assert_ne!(
                    algorithm.checksum(&KEYS, &zeros[..len], seed),
                    0,
                    "{algorithm:?}, {len} words, seed {seed:#x}"
                );
            }
        }
    }
    assert_eq!(nonzero(0), ZERO_SUBSTITUTE);
    assert_eq!(nonzero(1), 1);
}

/// Zeros of different lengths have different sums.
#[test]
fn lengths_matter() {
    for algorithm in ChecksumKind::ALL {
        for seed in [0, 1, u64::MAX] {
            let mut sums: Vec<u64> = (0..=64).map(|len| algorithm.checksum(&KEYS, &vec![0; len], seed)).collect();
            sums.sort_unstable();
            sums.dedup();
            assert_eq!(sums.len(), 65, "{algorithm:?}, seed {seed:#x}");
        }
    }
}

#[test]
fn single_bit_flips_are_detected() {
    for algorithm in ChecksumKind::ALL {
        for len in 1..=WORDS_MAX {
            let mut words = random_words(len, len as u64);
            let sum = algorithm.checksum(&KEYS, &words, 5);
            for bit in 0..64 * len {
                words[bit / 64] ^= 1 << (bit % 64);
                assert_ne!(algorithm.checksum(&KEYS, &words, 5), sum, "{algorithm:?}, {len} words, bit {bit}");
                words[bit / 64] ^= 1 << (bit % 64);
            }
        }
    }
}

#[test]
fn swapped_words_are_detected() {
    for algorithm in ChecksumKind::ALL {
        let mut words = random_words(WORDS_MAX, 77);
        let sum = algorithm.checksum(&KEYS, &words, 5);
        for first in 0..WORDS_MAX {
            for second in first + 1..WORDS_MAX {
                words.swap(first, second);
                assert_ne!(algorithm.checksum(&KEYS, &words, 5), sum, "{algorithm:?}, {first} and {second}");
                words.swap(first, second);
            }
        }
    }
}

/// A torn row, with the first words of one image and the rest of another, does not verify.
#[test]
fn torn_rows_are_detected() {
    let (old, new) = (random_words(16, 1), random_words(16, 2));
    for algorithm in ChecksumKind::ALL {
        let sums = [algorithm.checksum(&KEYS, &old, 5), algorithm.checksum(&KEYS, &new, 5)];
        for cut in 1..16 {
            let torn = [&new[..cut], &old[cut..]].concat();
            assert!(!sums.contains(&algorithm.checksum(&KEYS, &torn, 5)), "{algorithm:?}, cut at {cut}");
        }
    }
}

/// [R-ROW-1] With the keys of a table, two images with the same sum can be chosen: a word that cancels its key makes
/// its pair's product 0 for any word beside it. With other keys, the same images have different sums.
#[test]
fn images_chosen_by_keys_collide_under_those_alone() {
    for len in [7, 15, 55, 64] {
        for pair in 0..len / 2 {
            let mut old = random_words(len, 3);
            old[2 * pair] = KEYS.key(2 * pair).wrapping_neg();
            let mut new = old.clone();
            new[2 * pair + 1] ^= 0xdead_beef;
            let sums = |keys: &NhKeys| [&old, &new].map(|image| ChecksumKind::Nh.checksum(keys, image, 5));
            let [known, unknown] = [sums(&KEYS), sums(&NhKeys::new([1; 4]))];
            assert_eq!(known[0], known[1], "{len} words, pair {pair}: the attack works with the keys");
            assert_ne!(unknown[0], unknown[1], "{len} words, pair {pair}");
        }
    }
}

/// The enum and the free functions give the same results.
#[test]
fn free_functions_agree() {
    for len in 0..=WORDS_MAX {
        let words = random_words(len, 8);
        assert_eq!(ChecksumKind::Nh.checksum(&KEYS, &words, 1), nh(&KEYS, &words, 1));
    }
}

/// Words are summed as they are copied, with the sum that they have in one piece, each loaded once: at every length
/// around a block, and at lengths of two and three levels.
#[test]
fn copied_words_have_the_sum_of_a_slice() {
    let lengths =
        (0..=2 * BLOCK_WORDS + 2).chain([BLOCK_WORDS.pow(2), BLOCK_WORDS.pow(2) + 1, 3 * BLOCK_WORDS.pow(2) + 7]);
    for len in lengths {
        let words = random_words(len, len as u64);
        // A word that is loaded twice has another value the second time.
        let cells: Vec<Cell<u64>> = words.iter().copied().map(Cell::new).collect();
        let (mut buffer, mut copy) = ([7; BLOCK_WORDS], Vec::new());
        let load = |cell: &Cell<u64>| cell.replace(!cell.get());
        let prefetched = Cell::new(0);
        let prefetch = |cell: &Cell<u64>| {
            let at = BLOCK_WORDS + 8 * prefetched.replace(prefetched.get() + 1);
            assert!(std::ptr::eq(cell, &cells[at]) && cell.get() == words[at], "{len} words: before it is loaded");
        };
        let sum = nh_copying(&KEYS, &cells, load, prefetch, 5, &mut buffer, |block| {
            assert!(block.len() == BLOCK_WORDS || copy.len() + block.len() == len, "{len} words");
            copy.extend_from_slice(block);
        });
        assert_eq!((sum, copy), (nh(&KEYS, &words, 5), words.clone()), "{len} words");
        assert_eq!(prefetched.get(), len.saturating_sub(BLOCK_WORDS).div_ceil(8), "{len} words");
        let mut rest = &words[..];
        let sum = nh_making(&KEYS, len, 5, &mut buffer, |block| {
            let (now, later) = rest.split_at(block.len());
            block.copy_from_slice(now);
            rest = later;
        });
        assert_eq!((sum, rest), (nh(&KEYS, &words, 5), &[][..]), "{len} words that are made");
    }
}
