//! Byte strings packed into words, little-endian: byte i of a string lives in word i / 8, bits 8 (i mod 8) and up.

use crate::sum::with_le_bytes;

/// Appends the `bytes` bytes that start at byte `at` of `words` to `into`.
///
/// # Panics
/// If the range does not lie within `words`.
#[inline]
pub(crate) fn append(words: &[u64], at: usize, bytes: usize, into: &mut Vec<u8>) {
    with_le_bytes(words, |all| into.extend_from_slice(&all[at..at + bytes]));
}

/// Appends the bytes of `from` to `words`, starting with a new word; the rest of the last word is zero.
#[inline]
pub(crate) fn append_words(words: &mut Vec<u64>, from: &[u8]) {
    let (whole, rest) = from.as_chunks();
    words.extend(whole.iter().map(|bytes| u64::from_le_bytes(*bytes)));
    if !rest.is_empty() {
        words.push(word_of(rest));
    }
}

/// Sets `words` to the words of `from` from word `first` on, as [`append_words`] appends them.
///
/// # Panics
/// If `from` has no such words.
#[inline]
pub(crate) fn fill(words: &mut [u64], first: usize, from: &[u8]) {
    let (whole, rest) = from.as_chunks();
    let end = (first + words.len()).min(whole.len());
    let (of_whole, last) = words.split_at_mut(end.saturating_sub(first));
    for (word, bytes) in of_whole.iter_mut().zip(&whole[first.min(end)..end]) {
        *word = u64::from_le_bytes(*bytes);
    }
    match last {
        [] => {}
        [word] if !rest.is_empty() => *word = word_of(rest),
        _ => panic!("{} words from word {first} on of {} bytes", words.len(), from.len()),
    }
}

/// Stores `from` at byte `at` of `words`; other bytes keep their values.
///
/// # Panics
/// If the range does not lie within `words`.
#[inline(always)]
pub(crate) fn copy_in(words: &mut [u64], at: usize, from: &[u8]) {
    let (first, skip) = (at / 8, at % 8);
    for (i, chunk) in from.chunks(8).enumerate() {
        let (value, used) = (word_of(chunk), mask(chunk.len()));
        let low = &mut words[first + i];
        *low = *low & !(used << (8 * skip)) | value << (8 * skip);
        if skip + chunk.len() > 8 {
            let high = &mut words[first + i + 1];
            *high = *high & !(used >> (64 - 8 * skip)) | value >> (64 - 8 * skip);
        }
    }
}

/// Whether the `key.len()` bytes at byte `at` of `words` are `key`.
#[inline(always)]
pub(crate) fn equal(words: &[u64], at: usize, key: &[u8]) -> bool {
    debug_assert_eq!(at % 8, 0, "keys start at a word");
    let mut words = words[at / 8..].iter();
    key.chunks(8).all(|chunk| words.next().is_some_and(|word| word & mask(chunk.len()) == word_of(chunk)))
}

/// Up to 8 bytes as a word, zero-extended.
#[inline(always)]
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    // Most keys have one of these lengths; a fixed length needs no call of memcpy.
    if let Ok(eight) = bytes.try_into() {
        return u64::from_le_bytes(eight);
    }
    if let Ok(four) = bytes.try_into() {
        return u64::from(u32::from_le_bytes(four));
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The bits of a word that `bytes` low bytes occupy, 0 to 8.
#[inline(always)]
pub(crate) const fn mask(bytes: usize) -> u64 {
    if bytes >= 8 { !0 } else { (1 << (8 * bytes)) - 1 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stored_bytes_read_back(at in 0usize..40, from in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut words = [0x5555_5555_5555_5555_u64; 13];
            copy_in(&mut words, at, &from);
            let mut back = vec![1, 2];
            append(&words, at, from.len(), &mut back);
            prop_assert_eq!(&back[..2], &[1, 2]);
            prop_assert_eq!(&back[2..], &from);
            let mut all = Vec::new();
            append(&words, 0, 104, &mut all);
            prop_assert!(all[..at].iter().chain(&all[at + from.len()..]).all(|b| *b == 0x55), "other bytes are kept");
            if at % 8 == 0 {
                prop_assert!(equal(&words, at, &from));
                if !from.is_empty() {
                    let mut other = from.clone();
                    other[from.len() - 1] ^= 1;
                    prop_assert!(!equal(&words, at, &other));
                }
            }
        }
    }
}
