//! Newtypes for everything that is stored or sent.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

id! {
    /// A row of the index, 0 to T - 1.
    RowId(u64), "row"
}
id! {
    /// A physical lock of the lock table.
    LockId(u64), "lock"
}
/// The client that holds a lock: the number of its client slot plus one. 0 means free, all ones of the lock's width
/// means poisoned. It is displayed as its client slot, the number of a client that people see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub u16);

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot() {
            Some(slot) => write!(f, "client slot {slot}"),
            None => f.write_str("no client"),
        }
    }
}

id! {
    /// A row's version. It grows by one with each WRITE of the row and wraps at the table's version width.
    Version(u32), "version"
}
id! {
    /// An extent's generation: 48 bits, unique in the table, never 0.
    Generation(u64), "generation"
}

impl Generation {
    /// Bits of a generation.
    pub(crate) const BITS: u32 = 48;
    /// The largest generation, of 48 bits. At a million extents a second, generations last for nearly nine years.
    pub const MAX: u64 = (1 << Generation::BITS) - 1;

    /// Returns the generation in the first word of an extent; 0 if the word is 0.
    pub const fn of_first_word(word: u64) -> Generation {
        Generation(word & Generation::MAX)
    }
}

impl OwnerId {
    /// Returns the owner id of client slot `slot`.
    pub const fn of_slot(slot: u16) -> OwnerId {
        OwnerId(slot + 1)
    }

    /// Returns the client slot of this owner, unless the id is 0 (free).
    pub const fn slot(self) -> Option<u16> {
        self.0.checked_sub(1)
    }
}
