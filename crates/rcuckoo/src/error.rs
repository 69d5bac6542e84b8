//! Errors of operations, sorted by blame, and the effect of the failed operation. Within this crate an error is an
//! [`ErrorKind`]; the operation's name is attached where it returns to its caller.

use std::fmt;

use guira_fabric::{ByteCount, Effect, FabricError};
use guira_layout::{EntryFormat, ExtentRef, Generation, LockId, MAX_KEY_BYTES, MAX_VALUE_BYTES, OwnerId, RowId};

/// The operation that was attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A lookup.
    Get,
    /// Insert or replace.
    Put,
    /// Insert a new key.
    Insert,
    /// Replace an existing key's value.
    Update,
    /// Remove a key.
    Remove,
    /// Add to a key's numeric value.
    Increment,
    /// Replace a key's value by one computed from it.
    UpdateWith,
    /// Look a key up, and insert it if it is missing.
    GetOrInsertWith,
    /// Replace an existing key's value if it is the expected one.
    CompareAndSwap,
    /// Remove a key if its value is the expected one.
    CompareAndRemove,
    /// Read rows in bulk.
    Scan,
    /// Open, claim or give back a client slot.
    Session,
    /// Split segments ahead of need.
    Grow,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::Insert => "insert",
            Operation::Update => "update",
            Operation::Remove => "remove",
            Operation::Increment => "increment",
            Operation::UpdateWith => "update-with",
            Operation::GetOrInsertWith => "get-or-insert-with",
            Operation::CompareAndSwap => "compare-and-swap",
            Operation::CompareAndRemove => "compare-and-remove",
            Operation::Scan => "scan",
            Operation::Session => "open a client session",
            Operation::Grow => "grow",
        })
    }
}

/// The part of the table that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamagedItem {
    /// A row whose checksum does not match although no client is writing it.
    Row(RowId),
    /// An extent whose checksum does not match although its entry still refers to it.
    Extent {
        /// Byte offset in the main space.
        offset: u64,
        /// The generation that the entry refers to.
        generation: Generation,
    },
    /// An entry that refers to an impossible extent.
    Entry {
        /// The entry's row.
        row: RowId,
        /// The entry's index in the row.
        index: usize,
    },
    /// A client slot.
    ClientSlot(u16),
    /// A lock that names a client slot which the table does not have. Source: R-LOCK-9.
    Lock(LockId),
}

impl DamagedItem {
    /// Returns the damaged item that stands for `extent`.
    pub(crate) fn of(extent: &ExtentRef) -> DamagedItem {
        DamagedItem::Extent { offset: extent.offset, generation: extent.generation }
    }
}

impl fmt::Display for DamagedItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DamagedItem::Row(row) => write!(f, "{row}"),
            DamagedItem::Extent { offset, generation } => write!(f, "the extent of {generation} at offset {offset:#x}"),
            DamagedItem::Entry { row, index } => write!(f, "entry {index} of {row}"),
            DamagedItem::ClientSlot(slot) => write!(f, "client slot {slot}"),
            DamagedItem::Lock(lock) => write!(f, "{lock}"),
        }
    }
}

/// The space that a large value needs, and the space that the table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSpace {
    /// Bytes of the value.
    pub value_bytes: usize,
    /// Neighbouring chunks that the value needs.
    pub chunks: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Free chunks in total.
    pub free: u64,
    /// Length of the longest run of neighbouring free chunks, in chunks.
    pub longest_run: u64,
    /// Chunks that the table has now.
    pub total: u64,
    /// Why the table got no memory for more chunks, if it may have more. Source: R-GROW-15.
    pub refused: Option<Box<FabricError>>,
}

impl fmt::Display for NoSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |chunks: u64| ByteCount(chunks * self.chunk_bytes);
        let needed = bytes(u64::from(self.chunks));
        write!(f, "no room for a value of {} bytes: it needs {needed}, and ", self.value_bytes)?;
        match (self.total, self.free) {
            (0, _) => f.write_str("the table has no space for large values")?,
            (_, 0) => f.write_str("no space for large values is free")?,
            (total, free) => {
                let [free, total, run] = [free, total, self.longest_run].map(bytes);
                write!(f, "{free} of {total} for large values are free, {run} of them in one piece")?;
            }
        }
        match &self.refused {
            Some(refused) => write!(f, "; the table cannot grow: {refused}; nothing was changed"),
            None => f.write_str(
                "; nothing was changed; remove large values, or copy the table into one with more extent bytes",
            ),
        }
    }
}

/// A failed operation. A miss is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The operation that failed.
    pub operation: Operation,
    /// The cause.
    pub kind: ErrorKind,
}

/// The cause of an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The fabric: the batch could not be carried out.
    #[error("{source}")]
    Fabric {
        /// The fabric's error.
        r#source: FabricError,
    },
    /// The fabric: an earlier batch of this client was lost, so it is unknown which locks the client holds. Nothing was
    /// changed. [R-DROP-2]
    #[error(
        "nothing was changed: an earlier batch of this client was lost ({source}), so it no longer knows which locks \
         it holds; open a new client"
    )]
    Lost {
        /// The fabric's error when the batch was lost.
        r#source: FabricError,
    },
    /// The memory: part of the table is damaged. Nothing was changed.
    #[error("{item} is damaged: {}", symptom(*item))]
    Corrupt {
        /// The damaged part.
        item: DamagedItem,
    },
    /// The table: no cuckoo path leads to a free entry. Nothing was changed.
    #[error(
        "the table is full: no free entry within reach of the key ({rows} rows searched); nothing was changed; remove \
         keys, or copy the table into a larger one"
    )]
    Full {
        /// Rows that were searched.
        rows: usize,
    },
    /// The table: a key and its value need an extent, and there is no space for it. Nothing was changed.
    #[error("{0}")]
    NoSpace(Box<NoSpace>),
    /// The table: no row has room for the key, and there is no memory for more rows. Nothing was changed. Source:
    /// R-GROW-7.
    #[error("the table cannot grow: {0}")]
    NoMemory(Box<FabricError>),
    /// The caller: the value to be incremented does not have 8 bytes, or is in an extent. Nothing was changed.
    /// [R-ADD-1]
    #[error("the value of the key is not a number of 8 bytes")]
    NotANumber,
    /// The caller: a key or value cannot be encoded as, or decoded from, its type. Nothing was changed.
    #[error("cannot encode or decode {name}: {reason}")]
    WrongType {
        /// Name of the type.
        name: &'static str,
        /// The reason.
        reason: Box<str>,
    },
    /// The caller: tokens need row versions of 32 bits, and this table's versions are narrower (preset `paper`).
    /// Nothing was changed. [R-CAS-2]
    #[error("versioned reads need row versions of 32 bits, but this table has {version_bits} (preset `paper`)")]
    NarrowVersions {
        /// Bits of a row version in this table.
        version_bits: u8,
    },
    /// The caller: the change depends on a token that was read from another table. Nothing was changed.
    #[error("the token was read from another table")]
    ForeignToken,
    /// Another client: other clients changed the key between lookup and change, in each attempt until the deadline.
    /// Nothing was changed.
    #[error("other clients changed the key during each of {attempts} attempts in {waited_ms} ms")]
    Contended {
        /// Number of attempts.
        attempts: u32,
        /// Time of all attempts, in milliseconds.
        waited_ms: u64,
    },
    /// Another client: a lock was held until the deadline. Nothing was changed.
    #[error("{lock} was still held{} after {waited_ms} ms", held_by(owner))]
    Busy {
        /// The lock.
        lock: LockId,
        /// The holder, if locks name their owners.
        owner: Option<OwnerId>,
        /// Time that the operation waited, in milliseconds.
        waited_ms: u64,
    },
    /// Another client: the table was destroyed. Nothing was changed.
    #[error("the table was destroyed")]
    Destroyed,
    /// The caller: a key of this length cannot be stored in this table. Nothing was changed.
    #[error(
        "a key of {bytes} byte{} does not fit the table's format {format}{}",
        plural(*bytes),
        at_most(*format, MAX_KEY_BYTES)
    )]
    KeyLength {
        /// The key's length.
        bytes: usize,
        /// The table's format.
        format: EntryFormat,
    },
    /// The caller: a value of this length cannot be stored in this table. Nothing was changed.
    #[error(
        "a value of {bytes} byte{} does not fit the table's format {format}{}",
        plural(*bytes),
        at_most(*format, MAX_VALUE_BYTES)
    )]
    ValueLength {
        /// The value's length.
        bytes: usize,
        /// The table's format.
        format: EntryFormat,
    },
}

/// Returns the symptom of the damage of `item`.
fn symptom(item: DamagedItem) -> &'static str {
    match item {
        DamagedItem::Lock(_) => "it names a client slot that the table does not have",
        _ => "its checksum does not match and no client is writing it",
    }
}

fn held_by(owner: &Option<OwnerId>) -> String {
    owner.map_or_else(String::new, |owner| format!(" by {owner}"))
}

/// Returns the plural ending for `number` items.
fn plural(number: usize) -> &'static str {
    if number == 1 { "" } else { "s" }
}

/// Returns the length limit of a format whose name does not include it.
fn at_most(format: EntryFormat, bytes: usize) -> String {
    match format {
        EntryFormat::Fixed { .. } => String::new(),
        EntryFormat::Bytes { .. } => format!(" (at most {bytes} bytes)"),
    }
}

impl ErrorKind {
    /// Returns the error of `operation` with this cause.
    #[must_use]
    pub fn during(self, operation: Operation) -> Error {
        Error { operation, kind: self }
    }

    /// Returns the operation's effect on the table.
    pub fn effect(&self) -> Effect {
        match self {
            ErrorKind::Fabric { source } => source.effect(),
            _ => Effect::None,
        }
    }

    /// Returns the end of the message for `operation`: that nothing was changed, unless the message already says so or
    /// states what may have been changed, or the operation only reads.
    fn ending(&self, operation: Operation) -> &'static str {
        match (self, operation) {
            (_, Operation::Get | Operation::Scan) => "",
            (ErrorKind::Fabric { .. } | ErrorKind::Lost { .. } | ErrorKind::Full { .. } | ErrorKind::NoSpace(_), _) => {
                ""
            }
            _ => "; nothing was changed",
        }
    }
}

impl Error {
    /// Returns the operation's effect on the table.
    pub fn effect(&self) -> Effect {
        self.kind.effect()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { operation, kind } = self;
        write!(f, "{operation}: {kind}{}", kind.ending(*operation))
    }
}

/// Its text is that of the cause and its effect, so there is no source.
impl std::error::Error for Error {}

impl From<FabricError> for ErrorKind {
    fn from(source: FabricError) -> ErrorKind {
        ErrorKind::Fabric { source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failed_changes_say_that_nothing_was_changed() {
        let format = EntryFormat::Fixed { key_bytes: 8, value_bytes: 8 };
        for (operation, is_change) in
            [(Operation::Get, false), (Operation::Scan, false), (Operation::Put, true), (Operation::Remove, true)]
        {
            for kind in [
                ErrorKind::Corrupt { item: DamagedItem::Row(RowId(1)) },
                ErrorKind::Busy { lock: LockId(1), owner: None, waited_ms: 5 },
                ErrorKind::Destroyed,
                ErrorKind::KeyLength { bytes: 1, format },
                ErrorKind::ValueLength { bytes: 2, format },
            ] {
                let error = kind.during(operation);
                let text = error.to_string();
                assert_eq!(text.ends_with("; nothing was changed"), is_change, "{text}");
                assert_eq!(error.effect(), Effect::None);
            }
        }
    }

    #[test]
    fn the_chain_of_a_failed_batch_says_nothing_twice() {
        let kind = ErrorKind::from(FabricError::Forked);
        assert!(std::error::Error::source(&kind).is_none(), "{kind}");
        let error = kind.during(Operation::Get);
        assert!(std::error::Error::source(&error).is_none(), "{error}");
    }

    #[test]
    fn lengths_of_one_are_singular() {
        let (operation, format) = (Operation::Get, EntryFormat::Fixed { key_bytes: 8, value_bytes: 8 });
        let of = |bytes| ErrorKind::KeyLength { bytes, format }.during(operation).to_string();
        assert_eq!(of(1), "get: a key of 1 byte does not fit the table's format fixed:8:8");
        assert_eq!(of(0), "get: a key of 0 bytes does not fit the table's format fixed:8:8");
    }
}
