//! Remote addresses: a byte offset in one of a region's two spaces.

use std::fmt;

/// Bytes in a machine word, the unit in which every backend touches memory.
pub const WORD_BYTES: u64 = 8;

/// The two memories of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The host memory of the memory node: superblock, client slots, rows, extents.
    Main,
    /// The memory of the lock table, which lies on the network card if the card has memory.
    Device,
}

/// A byte offset in a [`Space`]. Verbs require it to be a multiple of [`WORD_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Addr(u64);

const DEVICE_BIT: u64 = 1 << 63;

impl Addr {
    /// Returns the address of byte `offset` of the main space. Offsets have 63 bits.
    #[inline(always)]
    pub const fn main(offset: u64) -> Addr {
        Addr(offset & !DEVICE_BIT)
    }

    /// Returns the address of byte `offset` of the device space. Offsets have 63 bits.
    #[inline(always)]
    pub const fn device(offset: u64) -> Addr {
        Addr(offset | DEVICE_BIT)
    }

    /// Returns the address of the word with index `word` of the main space. The compiler can see that it is aligned.
    #[inline(always)]
    pub const fn main_word(word: u64) -> Addr {
        Addr::main(word.wrapping_mul(WORD_BYTES))
    }

    /// Returns the space that the address lies in.
    #[inline(always)]
    pub const fn space(self) -> Space {
        if self.0 & DEVICE_BIT == 0 { Space::Main } else { Space::Device }
    }

    /// Returns the byte offset within the space.
    #[inline(always)]
    pub const fn offset(self) -> u64 {
        self.0 & !DEVICE_BIT
    }

    /// Returns the index of the word at this address; meaningful for aligned addresses only.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.offset() / WORD_BYTES
    }

    /// Whether the address is a multiple of [`WORD_BYTES`].
    #[inline(always)]
    pub const fn is_aligned(self) -> bool {
        self.0.is_multiple_of(WORD_BYTES)
    }

    /// Returns the address `words` words further in the same space. Wraps within 63 bits; verbs check their bounds
    /// anyway.
    #[inline(always)]
    pub const fn add_words(self, words: u64) -> Addr {
        let offset = self.offset().wrapping_add(words.wrapping_mul(WORD_BYTES)) & !DEVICE_BIT;
        Addr(offset | (self.0 & DEVICE_BIT))
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}+{:#x}", self.space(), self.offset())
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_do_not_mix() {
        assert_eq!(Addr::main(64).space(), Space::Main);
        assert_eq!(Addr::device(64).space(), Space::Device);
        assert_eq!(Addr::device(64).add_words(2), Addr::device(80));
        assert_ne!(Addr::main(64), Addr::device(64));
        assert_eq!(Addr::device(8).word(), 1);
        assert!(!Addr::main(12).is_aligned());
        assert_eq!(Addr::main_word(3), Addr::main(24));
        assert_eq!(Addr::main_word(u64::MAX).space(), Space::Main);
    }
}
