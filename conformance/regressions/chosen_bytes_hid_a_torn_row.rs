//! Cause: the keys of NH, the checksum of rows, were the same public constants in every table. A word chosen as the
//! negative of its key makes its pair's product 0, so that the word beside it is not covered by the checksum.
//!
//! Effect: a client that only chose keys or values could make half-written rows verify: lookups found a value that was
//! never written, for its own key and for its neighbour's, and a key that was never put.
//!
//! Fix: the keys are derived from a secret of the table, which only those who may read the table know. [R-ROW-1]

use guira_conformance::{Bench, KeyFinder, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::sum::NhKeys;
use guira_layout::{Preset, RowId};
use guira_rcuckoo::{ClientConfig, Reader};

/// A guess of the table's checksum keys, by which bytes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guess {
    /// The keys of a table whose secret is zeros, which stand for those of any other table.
    OfAnotherTable,
    /// The keys of this table, the best possible guess.
    Right,
}

impl Guess {
    fn keys(self, bench: &Bench) -> NhKeys {
        match self {
            Guess::OfAnotherTable => NhKeys::new([0; 4]),
            Guess::Right => NhKeys::new(bench.table.superblock().secret.0),
        }
    }

    /// Returns the word that makes the product of word `i` of a row and its neighbour 0.
    fn cancels(self, bench: &Bench, i: usize) -> u64 {
        self.keys(bench).key(i).wrapping_neg()
    }
}

fn bench(format: &str) -> Bench {
    Bench::of_rows(Preset::Hardened, format, 64, Profile::Tcp, 7)
}

/// Looks `key` up while `row` is half `old` and half `new`, for each word at which a WRITE can be cut, from either end,
/// and returns the values found. A lookup that fails finds none.
fn found_in_halves(bench: &Bench, row: RowId, old: &[u64], new: &[u64], key: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let config = ClientConfig { deadline_ns: 200_000, ..ClientConfig::for_table(&bench.table) };
    for (left, right) in [(old, new), (new, old)] {
        for cut in 1..old.len() {
            let torn = [&left[..cut], &right[cut..]].concat();
            if torn == old || torn == new {
                continue;
            }
            bench.store(bench.table.geometry().row(row), &torn);
            let (mut reader, mut value) = (Reader::new(bench.table.clone(), config), Vec::new());
            if let Ok(Some(_)) = block_on(reader.get(&mut bench.region.lane(), key, &mut value)) {
                found.push(value);
            }
        }
    }
    found
}

/// Returns the words of `row` after each of two changes of an empty one.
fn images(bench: &Bench, row: RowId, old: &[(&[u8], &[u8])], new: &[(&[u8], &[u8])]) -> [Vec<u64>; 2] {
    [old, new].map(|entries| {
        let mut empty = vec![0; bench.table.rows().row_words()];
        bench.table.rows().format(row, &mut empty);
        bench.store(bench.table.geometry().row(row), &empty);
        bench.fill_row(row, entries);
        bench.row_words(row)
    })
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Alternates the value of one key between two chosen ones.
fn mixtures_of_two_values(guess: Guess) -> usize {
    let bench = bench("bytes:64");
    let (key, row, _) = KeyFinder::new(&bench.table, 2_000).take_any(|a, b| a != b).expect("a key");
    // Header and key are words 0 and 1.
    let value = |fill| bytes(&[2, 3, 4, 5, 6, 7].map(|i| if i % 2 == 0 { guess.cancels(&bench, i) } else { fill }));
    let [one, other] = [value(11), value(22)];
    let [old, new] = images(&bench, row, &[(&key, &one)], &[(&key, &other)]);
    let found = found_in_halves(&bench, row, &old, &new, &key);
    found.iter().filter(|value| **value != one && **value != other).count()
}

/// Puts a chosen value into the entry before another key's, whose value alternates between a short and a long one.
fn mixtures_of_a_neighbour(guess: Guess) -> usize {
    let bench = bench("bytes:64");
    let mut keys = KeyFinder::new(&bench.table, 20_000);
    let (key, row, second) = keys.take_any(|a, b| a != b).expect("a key");
    let victim = keys.take(row, second).expect("another key");
    // Word 8 is the last of the first entry, and the neighbour's header is word 9.
    let chosen = bytes(&[1, 1, 1, 1, 1, 1, guess.cancels(&bench, 8)]);
    let (short, long) = ([7; 8], [9; 24]);
    let entries = |value| [(&key[..], &chosen[..]), (&victim[..], value)];
    let [old, new] = images(&bench, row, &entries(&short[..]), &entries(&long[..]));
    let found = found_in_halves(&bench, row, &old, &new, &victim);
    found.iter().filter(|value| **value != short && **value != long).count()
}

/// Puts a chosen entry beside a free one that is being taken: the row says already that it is taken, and its zeros are
/// a key.
fn keys_that_were_never_put(guess: Guess) -> usize {
    let bench = bench("fixed:4:4");
    let zero = [0; 4];
    let row = bench.table.placement().rows(bench.table.placement().digest(&zero)).first;
    let chosen = guess.cancels(&bench, 0).to_le_bytes();
    let beside = (&chosen[..4], &chosen[4..]);
    let [old, new] = images(&bench, row, &[beside], &[beside, (&[5; 4], &[6; 4])]);
    found_in_halves(&bench, row, &old, &new, &zero).len()
}

#[test]
fn values_never_written_are_not_found() {
    assert_eq!(mixtures_of_two_values(Guess::OfAnotherTable), 0);
    assert_eq!(mixtures_of_a_neighbour(Guess::OfAnotherTable), 0);
    assert_eq!(keys_that_were_never_put(Guess::OfAnotherTable), 0);
}

/// The choices above are those of the attack: with known keys, each mixture is found.
#[test]
fn known_checksum_keys_allow_hidden_tears() {
    assert!(mixtures_of_two_values(Guess::Right) > 0);
    assert!(mixtures_of_a_neighbour(Guess::Right) > 0);
    assert!(keys_that_were_never_put(Guess::Right) > 0);
}
