//! Tokens: what a lookup remembers of the state it found a key in.

use guira_layout::{Generation, RowId, Version};

/// The state a key was in when it was read: a change may be made to depend on it ([`crate::Expected::Unchanged`]).
///
/// Two equal tokens of one key mean that nobody changed it in between. Two different ones mean it only for extents: the
/// version is that of the whole row, which grows with every change of any of its entries. // [R-CAS-2]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Token {
    /// The value was in its row.
    Inline {
        /// The row.
        row: RowId,
        /// The version of the row.
        version: Version,
    },
    /// The value was in an extent.
    Extent {
        /// Of the extent: never used again in this table.
        generation: Generation,
    },
}
