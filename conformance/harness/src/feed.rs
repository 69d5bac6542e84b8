//! Structured values drawn from an input's bytes, and conversions between words and bytes.

/// The unread part of an input. Bytes beyond its end are zero, so every input is long enough.
pub(crate) struct Feed<'b>(pub(crate) &'b [u8]);

impl Feed<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1)[0]
    }

    /// Draws eight bytes, little-endian.
    pub(crate) fn word(&mut self) -> u64 {
        self.words(1)[0]
    }

    pub(crate) fn words(&mut self, count: usize) -> Vec<u64> {
        words_of(&self.bytes(count * 8))
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        let mut bytes = taken.to_vec();
        bytes.resize(count, 0);
        bytes
    }

    /// Draws a number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// Picks one of `choices` by one byte.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}

/// Returns the whole words in `bytes`.
pub(crate) fn words_of(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Returns the bytes of `words`.
pub(crate) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
