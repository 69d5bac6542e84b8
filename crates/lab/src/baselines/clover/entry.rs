//! Entries of chains, and pointers to them.
//!
//! A pointer has 48 bits: the number of an entry, and its mark: a version of 15 bits, and a bit that says whether the entry is
//! a removal. The first word of an entry, its link, is the pointer to the next entry, or zeros, and behind it the entry's own
//! mark. So whoever compares a whole link knows that the entry is the one that was meant, and the last of its chain; and a link
//! that was found says how to compare the next one. The authors have the same fields, with versions of 8 bits.
//!
//! Invariant: versions begin with 1, so that memory that was never written has no link of any entry; none comes again.

/// The version of an entry that is used for the first time.
const FIRST_VERSION: u16 = 1;
/// The bit of a mark that says that the entry is a removal.
const REMOVAL: u16 = 1 << 15;
/// The first bit of a mark in a pointer, and that of an entry's own mark in its link.
const MARK_SHIFT: u32 = 32;
const OWN_SHIFT: u32 = 48;

/// An entry of a chain, by its number from 1, and its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) entry: u32,
    mark: u16,
}

impl Pointer {
    /// Returns the pointer to the entry of a record with which the store was built.
    pub(super) fn of_record(record: u64) -> Pointer {
        Pointer::of_new(record as u32 + 1)
    }

    /// Returns the pointer to an entry that is used for the first time, with a value.
    pub(super) fn of_new(entry: u32) -> Pointer {
        Pointer { entry, mark: FIRST_VERSION }
    }

    /// Returns the pointer to the use of an entry that has this link.
    pub(super) fn of_link(entry: u32, link: u64) -> Pointer {
        Pointer { entry, mark: (link >> OWN_SHIFT) as u16 }
    }

    /// Whether both have the same version, and both are removals or neither is: their links are then alike.
    pub(super) fn is_like(self, other: Pointer) -> bool {
        self.mark == other.mark
    }

    /// Returns the pointer to the same use of the entry: with a value, or with a removal.
    pub(super) fn filled(self, is_removal: bool) -> Pointer {
        Pointer { mark: self.mark & !REMOVAL | if is_removal { REMOVAL } else { 0 }, ..self }
    }

    /// Returns the pointer to the next use of the entry, with a value; `None` if this use is the last.
    pub(super) fn next_use(self) -> Option<Pointer> {
        let version = (self.mark & !REMOVAL) + 1;
        (version < REMOVAL).then_some(Pointer { mark: version, ..self })
    }

    pub(super) fn word(self) -> u64 {
        u64::from(self.entry) | u64::from(self.mark) << MARK_SHIFT
    }

    /// Reads the pointer in the low bits of a word; `None` if there is none.
    pub(super) fn parse(word: u64) -> Option<Pointer> {
        let entry = word as u32;
        (entry != 0).then_some(Pointer { entry, mark: (word >> MARK_SHIFT) as u16 })
    }

    /// Whether the entry says that its key does not exist.
    pub(super) fn is_removal(self) -> bool {
        self.mark & REMOVAL != 0
    }

    /// Returns the link of this entry, in front of another one or as the last of its chain.
    pub(super) fn link(self, next: Option<Pointer>) -> u64 {
        next.map_or(0, Pointer::word) | u64::from(self.mark) << OWN_SHIFT
    }

    /// Whether a link is that of this entry, whatever comes next.
    pub(super) fn has_link(self, link: u64) -> bool {
        (link >> OWN_SHIFT) as u16 == self.mark
    }
}

/// The knowledge of a key that has a chain. It may be out of date, as the chain goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The last entry.
    pub(super) tail: Pointer,
    /// The number of the word that is its shortcut.
    pub(super) shortcut: u32,
}

impl Known {
    /// Returns what is known of a record with which the store was built.
    pub(super) fn of_record(record: u64) -> Known {
        Known { tail: Pointer::of_record(record), shortcut: record as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_the_next_pointer_and_the_own_mark() {
        for (own, next) in [(1, 2), (u32::MAX, 1), (7, u32::MAX)] {
            for (own, next) in [
                (Pointer::of_new(own), Pointer::of_new(next).filled(true)),
                (Pointer::of_new(own).filled(true), Pointer::of_record(u64::from(next) - 1)),
            ] {
                assert_eq!(Pointer::parse(next.word()), Some(next));
                assert_eq!(Pointer::parse(own.link(Some(next))), Some(next));
                assert_eq!(Pointer::parse(own.link(None)), None);
                assert!(own.has_link(own.link(Some(next))) && own.has_link(own.link(None)));
                assert!(!next.has_link(own.link(Some(next))), "a value is no removal");
                assert!(!own.has_link(0), "memory that was never written has no link");
                assert_eq!(own.is_removal(), !next.is_removal());
            }
        }
    }

    /// An entry has as many uses as there are versions, each of which has links of its own.
    #[test]
    fn no_use_of_an_entry_is_taken_for_another() {
        let first = Pointer::of_new(7);
        let uses: Vec<Pointer> =
            std::iter::successors(Some(first), |pointer| pointer.filled(true).next_use()).collect();
        assert_eq!(uses.len(), usize::from(REMOVAL - 1));
        let mut links: Vec<u64> = uses.iter().flat_map(|it| [it.link(None), it.filled(true).link(None)]).collect();
        links.sort_unstable();
        links.dedup();
        assert_eq!(links.len(), 2 * uses.len());
        assert!(uses.iter().all(|it| !it.is_removal() && it.filled(true).filled(false) == *it));
    }
}
