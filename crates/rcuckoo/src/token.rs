//! Tokens: the state in which a lookup found a key.

use guira_layout::{Generation, RowId, Version};

/// The state of a key when it was read. A change can be made conditional on it: [`crate::Expected::Unchanged`].
///
/// Two equal tokens of one key mean that no client changed the key in between. Two different tokens prove a change only
/// for extents: the version is that of the whole row, which grows with every change of any of its entries. [R-CAS-2]
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
        /// Generation of the extent: never used again in this table.
        generation: Generation,
    },
}
