//! Extents, which hold the values that do not fit in a row.
//!
//! An extent begins with {generation 48 | key length 8 | value length 8, checksum}; lengths that do not fit follow as
//! {key length 32 | value length 32}. Then come the key's bytes and, from the next word, the value's. Extents lie in
//! chunks: chunk.rs.

use guira_fabric::WORD_BYTES;
use guira_fabric::memory::{self, AtomicU64, Ordering, Word};

use crate::bytes::{append, append_words, equal, fill};
use crate::{Generation, Sums};

/// Most words in front of an extent's key: [`ExtentRef::header_words`].
pub const MAX_EXTENT_HEADER_WORDS: usize = 3;
/// Words in front of the key of an extent whose first word has the lengths.
const SHORT_HEADER_WORDS: usize = MAX_EXTENT_HEADER_WORDS - 1;

/// The generation, and the lengths of a short extent.
const FIRST_WORD: usize = 0;
const CHECKSUM_WORD: usize = 1;
/// The lengths of an extent that is not short.
const LENGTHS_WORD: usize = 2;
/// The length of a value in the first word that says that the lengths follow.
const LENGTHS_FOLLOW: u64 = 0xff;

/// The words of an extent that are copied and summed at a time: a buffer for [`append_extent_value`].
pub type CopyBlock = [u64; crate::sum::BLOCK_WORDS];

/// A reference to an extent, as an entry stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentRef {
    /// The key's digest, so that the entry can be moved without reading its key.
    pub digest: u64,
    /// Byte offset in the main space; 48 bits.
    pub offset: u64,
    /// The extent's generation.
    pub generation: Generation,
    /// Bytes of the key.
    pub key_bytes: u32,
    /// Bytes of the value.
    pub value_bytes: u32,
}

/// An extent that was read and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent<'w> {
    words: &'w [u64],
    /// The byte, from the start of the header, at which the key begins.
    key_at: usize,
    key_bytes: usize,
    value_bytes: usize,
}

/// The words at an extent's address are not those of the extent that an entry refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtentError {
    /// The generation is another one: the extent was freed and its space reused. The index has changed; start again
    /// from there.
    #[error("the extent's address holds {found}, not {wanted}")]
    Replaced {
        /// The generation in the entry.
        wanted: Generation,
        /// The generation at the address.
        found: Generation,
    },
    /// The generation is right, but lengths or checksum do not match: the extent was read while it was written, or it
    /// is damaged.
    #[error("the checksum or the lengths of the extent of {generation} do not match")]
    Torn {
        /// The generation in the entry.
        generation: Generation,
    },
}

/// Returns the number of words in front of the key of an extent for a key and a value of these lengths: 2 if they have at
/// most 255 and 254 bytes, otherwise 3.
#[inline(always)]
const fn extent_header_words(key_bytes: usize, value_bytes: usize) -> usize {
    // Both in one comparison, without a branch.
    let is_short = key_bytes | value_bytes.saturating_add(1) <= LENGTHS_FOLLOW as usize;
    MAX_EXTENT_HEADER_WORDS - is_short as usize
}

/// Returns the number of words of an extent for a key and a value of these lengths.
#[inline(always)]
pub const fn extent_words(key_bytes: usize, value_bytes: usize) -> usize {
    extent_header_words(key_bytes, value_bytes) + key_bytes.div_ceil(8) + value_bytes.div_ceil(8)
}

impl ExtentRef {
    /// Makes a reference to the extent at byte `offset` of the main space, which begins with `words`. Its digest is 0,
    /// because that follows from the key. Nothing is verified.
    pub fn of_header(offset: u64, words: &[u64; MAX_EXTENT_HEADER_WORDS]) -> ExtentRef {
        let [key_bytes, value_bytes] = match words[FIRST_WORD].to_le_bytes() {
            [.., _, value] if u64::from(value) == LENGTHS_FOLLOW => {
                [0, 32].map(|at| (words[LENGTHS_WORD] >> at) as u32)
            }
            [.., key, value] => [key, value].map(u32::from),
        };
        ExtentRef {
            digest: 0,
            offset,
            generation: Generation::of_first_word(words[FIRST_WORD]),
            key_bytes,
            value_bytes,
        }
    }

    /// Returns the number of words of the extent; `None` if its lengths are impossible (a damaged entry).
    pub fn words(&self) -> Option<usize> {
        let (key_bytes, value_bytes) = (self.key_bytes as usize, self.value_bytes as usize);
        let possible = key_bytes <= crate::MAX_KEY_BYTES && value_bytes <= crate::MAX_VALUE_BYTES;
        possible.then(|| extent_words(key_bytes, value_bytes))
    }

    /// Returns the number of words in front of the key.
    #[inline(always)]
    pub fn header_words(&self) -> usize {
        extent_header_words(self.key_bytes as usize, self.value_bytes as usize)
    }

    /// Returns the first word of the extent: its generation, and its lengths if they fit.
    pub fn first_word(&self) -> u64 {
        self.header().first
    }

    #[inline(always)]
    fn header(&self) -> Header {
        let (key, value) = (u64::from(self.key_bytes), u64::from(self.value_bytes));
        let words = self.header_words();
        let beside = if words == SHORT_HEADER_WORDS { key | value << 8 } else { LENGTHS_FOLLOW << 8 };
        Header { words, first: self.generation.0 | beside << Generation::BITS, lengths: key | value << 32 }
    }
}

/// Content of an extent's header, without the checksum.
#[derive(Clone, Copy)]
struct Header {
    /// Words in front of the key.
    words: usize,
    first: u64,
    /// Both lengths, which an extent that is not short has in a word of their own.
    lengths: u64,
}

impl Header {
    /// Returns the words that are summed in front of the key, in either form of a header.
    fn summed(self) -> [u64; 2] {
        [self.first, self.lengths]
    }
}

/// Encodes the extent that `extent` describes into `words`, whose length becomes that of the extent.
pub fn encode_extent(words: &mut Vec<u64>, extent: &ExtentRef, key: &[u8], value: &[u8], sums: &Sums) {
    debug_assert_eq!((key.len(), value.len()), (extent.key_bytes as usize, extent.value_bytes as usize));
    words.clear();
    words.reserve(extent_words(key.len(), value.len()));
    let header = extent.header();
    words.extend(&[header.first, 0, header.lengths][..header.words]);
    append_words(words, key);
    append_words(words, value);
    words[CHECKSUM_WORD] = sums.extent(extent.offset, header.summed(), &words[header.words..]);
}

/// Stores the extent that `extent` describes in `words`, where it belongs and others may read it: what [`encode_extent`]
/// encodes, copied and summed through `block` while it passes through the processor. The checksum is stored last.
///
/// # Panics
/// If `words` are not as many as [`extent_words`].
#[inline]
pub fn store_extent(
    words: &[AtomicU64],
    extent: &ExtentRef,
    key: &[u8],
    value: &[u8],
    sums: &Sums,
    block: &mut CopyBlock,
) {
    debug_assert_eq!((key.len(), value.len()), (extent.key_bytes as usize, extent.value_bytes as usize));
    assert_eq!(words.len(), extent_words(key.len(), value.len()), "an extent's place is as long as the extent");
    let header = extent.header();
    let (of_header, mut rest) = words.split_at(header.words);
    of_header[FIRST_WORD].store(header.first, Ordering::Relaxed);
    if let Some(lengths) = of_header.get(LENGTHS_WORD) {
        lengths.store(header.lengths, Ordering::Relaxed);
    }
    let (value_at, mut at) = (key.len().div_ceil(8), 0);
    let sum = sums.made_extent(extent.offset, header.summed(), rest.len(), block, |made| {
        let (of_key, of_value) = made.split_at_mut(value_at.saturating_sub(at).min(made.len()));
        fill(of_key, at, key);
        fill(of_value, at.saturating_sub(value_at), value);
        at += made.len();
        let (now, later) = rest.split_at(made.len());
        rest = later;
        let ((lines, last), (made_lines, made_last)) = (now.as_chunks::<8>(), made.as_chunks::<8>());
        for (i, (line, made)) in lines.iter().zip(made_lines).enumerate() {
            // A core waits less for lines that it asked for a block ahead, also to store in them.
            later.get(i * 8).into_iter().for_each(Word::prefetch);
            memory::store_each(line, made);
        }
        memory::store_each(last, made_last);
    });
    of_header[CHECKSUM_WORD].store(sum, Ordering::Release);
}

/// Parses the extent that `extent` refers to from the words read at its address.
///
/// # Errors
/// The words are not this extent.
#[inline(always)]
pub fn parse_extent<'w>(words: &'w [u64], extent: &ExtentRef, sums: &Sums) -> Result<Extent<'w>, ExtentError> {
    let header = extent.header();
    if checksum_in(words, extent, header)? != sums.extent(extent.offset, header.summed(), &words[header.words..]) {
        return Err(ExtentError::Torn { generation: extent.generation });
    }
    Ok(Extent {
        words,
        key_at: header.words * 8,
        key_bytes: extent.key_bytes as usize,
        value_bytes: extent.value_bytes as usize,
    })
}

/// Returns the checksum in `words`, if they are as many as `extent` has, and begin with its `header`.
#[inline(always)]
fn checksum_in<W: Word>(words: &[W], extent: &ExtentRef, header: Header) -> Result<u64, ExtentError> {
    if extent.words() != Some(words.len()) {
        return Err(ExtentError::Torn { generation: extent.generation });
    }
    expect_header(words, extent, header)?;
    Ok(words[CHECKSUM_WORD].load())
}

/// Checks that `words`, at least as many as `header` has, begin with it, the header of `extent`.
#[inline(always)]
fn expect_header<W: Word>(words: &[W], extent: &ExtentRef, header: Header) -> Result<(), ExtentError> {
    let (wanted, first) = (extent.generation, words[FIRST_WORD].load());
    let found = Generation::of_first_word(first);
    if found != wanted {
        return Err(ExtentError::Replaced { wanted, found });
    }
    let has_lengths = header.words == SHORT_HEADER_WORDS || words[LENGTHS_WORD].load() == header.lengths;
    if first == header.first && has_lengths { Ok(()) } else { Err(ExtentError::Torn { generation: wanted }) }
}

/// Appends the value of the extent that `extent` refers to to `into`, if the extent has the key `key`, and returns
/// whether it has. `words` are those at its address, where others may change them: each is loaded once, and copied
/// through `block` and summed while it passes through the processor. The key is compared before the value is copied.
/// Without a value, `into` is unchanged, except that it may have more capacity.
///
/// # Errors
/// The words are not this extent.
#[inline]
pub fn append_extent_value<W: Word>(
    words: &[W],
    extent: &ExtentRef,
    sums: &Sums,
    key: &[u8],
    block: &mut CopyBlock,
    into: &mut Vec<u8>,
) -> Result<bool, ExtentError> {
    let header = extent.header();
    let expected = checksum_in(words, extent, header)?;
    let (key_bytes, value_bytes, before) = (extent.key_bytes as usize, extent.value_bytes as usize, into.len());
    let value_at = key_bytes.next_multiple_of(8);
    let (mut at, mut has_key) = (0, key.len() == key_bytes);
    if has_key {
        into.reserve(value_bytes);
    }
    let words = &words[header.words..];
    let sum = sums.copied_extent(extent.offset, header.summed(), words, block, |copied| {
        // The bytes of the key and the value, from the first one behind the header.
        let end = at + copied.len() * WORD_BYTES as usize;
        if has_key && at < key_bytes {
            has_key = equal(copied, 0, &key[at..key_bytes.min(end)]);
        }
        if has_key && end > value_at {
            let (from, to) = (value_at.max(at), end.min(value_at + value_bytes));
            append(copied, from - at, to - from, into);
        }
        at = end;
    });
    let is_whole = sum == expected;
    if !(is_whole && has_key) {
        into.truncate(before);
    }
    // Words of another extent that are being written may look like another key.
    if is_whole { Ok(has_key) } else { Err(ExtentError::Torn { generation: extent.generation }) }
}

/// Whether `words`, the header and key of the extent that `extent` refers to, hold `key`. Without the value nothing can
/// be verified: the caller's lock on the entry's row keeps the extent from changing.
///
/// # Errors
/// The words belong to another extent.
pub fn extent_key_matches(words: &[u64], extent: &ExtentRef, key: &[u8]) -> Result<bool, ExtentError> {
    let header = extent.header();
    expect_header(words, extent, header)?;
    Ok(key.len() == extent.key_bytes as usize && equal(words, header.words * 8, key))
}

impl Extent<'_> {
    /// Whether this is the extent of `key`.
    #[inline(always)]
    pub fn has_key(&self, key: &[u8]) -> bool {
        key.len() == self.key_bytes && equal(self.words, self.key_at, key)
    }

    /// Whether the extent's value is `value`.
    pub fn has_value(&self, value: &[u8]) -> bool {
        value.len() == self.value_bytes && equal(self.words, self.value_at(), value)
    }

    /// Appends the key to `into`.
    pub fn append_key(&self, into: &mut Vec<u8>) {
        append(self.words, self.key_at, self.key_bytes, into);
    }

    /// Appends the value to `into`.
    #[inline(always)]
    pub fn append_value(&self, into: &mut Vec<u8>) {
        append(self.words, self.value_at(), self.value_bytes, into);
    }

    /// Returns the byte, from the start of the header, at which the value begins.
    #[inline(always)]
    fn value_at(&self) -> usize {
        self.key_at + self.key_bytes.next_multiple_of(8)
    }
}

#[cfg(test)]
mod tests {
    use crate::sum::NhKeys;
    use proptest::prelude::*;

    use super::*;
    use crate::row::tests::superblock;
    use crate::{Preset, Secret, Superblock};

    fn sums(incarnation: u64, secret: [u64; 4]) -> Sums {
        let superblock = superblock(Preset::Hardened, "bytes:64");
        Sums::new(&Superblock { incarnation, secret: Secret(secret), ..superblock })
    }

    fn extent_of(key: &[u8], value: &[u8]) -> ExtentRef {
        let (key_bytes, value_bytes) = (key.len() as u32, value.len() as u32);
        ExtentRef { digest: 1, offset: 4096, generation: Generation(9), key_bytes, value_bytes }
    }

    /// Counts the mixtures of two extents that verify. Their values are chosen by `keys`; each mixture has the words of
    /// one up to some word, and those of the other from there on.
    fn halves_that_verify(sums: &Sums, keys: &NhKeys, words: usize, fills: [u64; 2]) -> usize {
        let (value_bytes, generation) = (words as u32 * 8, Generation(9));
        let extent = ExtentRef { digest: 1, offset: 4096, generation, key_bytes: 0, value_bytes };
        let [old, new] = fills.map(|fill| {
            let word = |i: usize| if i.is_multiple_of(2) { keys.key(i % 256).wrapping_neg() } else { fill ^ i as u64 };
            let value: Vec<u8> = (0..words).flat_map(|i| word(i).to_le_bytes()).collect();
            let mut words = Vec::new();
            encode_extent(&mut words, &extent, &[], &value, sums);
            words
        });
        let cuts =
            (1..old.len()).flat_map(|cut| [[&old[..cut], &new[cut..]].concat(), [&new[..cut], &old[cut..]].concat()]);
        cuts.filter(|torn| *torn != old && *torn != new && parse_extent(torn, &extent, sums).is_ok()).count()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 16, ..ProptestConfig::default() })]

        /// [R-READ-6] Values chosen without the table's secret do not verify half written. Values chosen with the
        /// secret do, which shows that the choice is a good attack.
        #[test]
        fn chosen_extents_do_not_verify_half_written(secret: [u64; 4], words in 4usize..300, fills: [u64; 2]) {
            prop_assume!(fills[0] != fills[1] && secret != [0; 4]);
            let sums = sums(5, secret);
            prop_assert_eq!(halves_that_verify(&sums, &NhKeys::new([0; 4]), words, fills), 0);
            prop_assert!(halves_that_verify(&sums, &NhKeys::new(secret), words, fills) > 0);
        }
    }

    proptest! {
        #[test]
        fn extents_round_trip(
            key_bytes in prop_oneof![0usize..70, 250usize..260],
            value in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..300),
                prop::collection::vec(any::<u8>(), 250..260),
            ],
        ) {
            let key: Vec<u8> = (0..key_bytes).map(|at| at as u8).collect();
            let extent = extent_of(&key, &value);
            let [sums, elsewhere] = [5, 6].map(|incarnation| sums(incarnation, [7; 4]));
            let mut words = Vec::new();
            encode_extent(&mut words, &extent, &key, &value, &sums);
            let header = std::array::from_fn(|at| words.get(at).copied().unwrap_or_default());
            prop_assert_eq!(ExtentRef::of_header(4096, &header), ExtentRef { digest: 0, ..extent });
            let parsed = parse_extent(&words, &extent, &sums).unwrap();
            prop_assert!(parsed.has_key(&key));
            let (mut key_back, mut value_back) = (Vec::new(), Vec::new());
            parsed.append_key(&mut key_back);
            parsed.append_value(&mut value_back);
            prop_assert_eq!((key_back, value_back), (key, value));
            prop_assert!(parse_extent(&words, &extent, &elsewhere).is_err(), "another incarnation");
            let moved = ExtentRef { offset: 4104, ..extent };
            prop_assert!(parse_extent(&words, &moved, &sums).is_err(), "another offset");
            let other = ExtentRef { generation: Generation(10), ..extent };
            prop_assert_eq!(
                parse_extent(&words, &other, &sums),
                Err(ExtentError::Replaced { wanted: Generation(10), found: Generation(9) })
            );
            for word in 1..words.len() {
                words[word] ^= 1 << (word % 64);
                prop_assert!(parse_extent(&words, &extent, &sums).is_err());
                words[word] ^= 1 << (word % 64);
            }
        }

        /// [R-EXTENT-1] An extent that is stored where it belongs is the one that is encoded, in whatever blocks the key
        /// and the value lie.
        #[test]
        fn stored_extents_are_those_encoded(
            key_bytes in prop_oneof![0usize..40, 2030usize..2060, 4080usize..4110],
            value_bytes in prop_oneof![0usize..40, 2000usize..2100, 4080usize..4110],
            seed: u8,
        ) {
            let bytes = |count: usize, by: u8| (0..count).map(|i| (i as u8).wrapping_mul(by) ^ seed).collect::<Vec<_>>();
            let (key, value) = (bytes(key_bytes, 7), bytes(value_bytes, 11));
            let extent = extent_of(&key, &value);
            let sums = sums(5, [7; 4]);
            let mut encoded = Vec::new();
            encode_extent(&mut encoded, &extent, &key, &value, &sums);
            let stored: Vec<AtomicU64> = encoded.iter().map(|_| AtomicU64::new(u64::MAX)).collect();
            store_extent(&stored, &extent, &key, &value, &sums, &mut [u64::MAX; crate::sum::BLOCK_WORDS]);
            prop_assert_eq!(stored.iter().map(Word::load).collect::<Vec<_>>(), encoded);
        }

        /// [R-READ-6] In one pass, a value is appended exactly if the extent verifies and has the key, in whatever
        /// blocks the key and the value lie; otherwise the caller sees no byte of it.
        #[test]
        fn one_pass_finds_what_a_parsed_extent_holds(
            key_bytes in prop_oneof![0usize..40, 2030usize..2060, 4080usize..4110],
            value_bytes in prop_oneof![0usize..40, 2000usize..2100, 4080usize..4110],
            changed: prop::sample::Index,
            bit in 0u32..64,
        ) {
            let bytes = |count: usize, seed: u8| (0..count).map(|i| (i as u8).wrapping_mul(seed)).collect::<Vec<_>>();
            let (key, value) = (bytes(key_bytes, 7), bytes(value_bytes, 11));
            let extent = extent_of(&key, &value);
            let sums = sums(5, [7; 4]);
            let (mut words, mut block) = (Vec::new(), [u64::MAX; crate::sum::BLOCK_WORDS]);
            encode_extent(&mut words, &extent, &key, &value, &sums);
            let mut append = |words: &[u64], key: &[u8]| {
                let mut into = b"before".to_vec();
                let result = append_extent_value(words, &extent, &sums, key, &mut block, &mut into);
                (result, into)
            };
            prop_assert_eq!(append(&words, &key), (Ok(true), [b"before", &value[..]].concat()));
            let mut others = vec![[&key[..], b"x"].concat()];
            for at in [0, key_bytes / 2, key_bytes.wrapping_sub(1)] {
                let mut other = key.clone();
                if let Some(byte) = other.get_mut(at) {
                    *byte ^= 1;
                    others.push(other);
                }
            }
            for other in &others {
                prop_assert_eq!(append(&words, other), (Ok(false), b"before".to_vec()));
            }
            let changed = changed.index(words.len());
            words[changed] ^= 1 << bit;
            let parsed = parse_extent(&words, &extent, &sums).map(|_| ());
            prop_assert!(parsed.is_err());
            for key in others.iter().chain([&key]) {
                prop_assert_eq!(append(&words, key), (parsed.map(|()| true), b"before".to_vec()));
            }
            let mut short = words.clone();
            short.pop();
            prop_assert!(append(&short, &key).0.is_err());
        }
    }
}
