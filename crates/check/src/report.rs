//! The result of a check: problems in readable form, and counts.

use std::fmt;

use guira_fabric::FabricError;

use crate::TableStats;

macro_rules! problem_kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident,)*) => {
        /// Kind of a problem. Serialized in snake case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum ProblemKind {
            $($(#[doc = $doc])+ $kind,)*
        }

        impl ProblemKind {
            /// Every kind.
            pub const ALL: &[ProblemKind] = &[$(ProblemKind::$kind),*];
        }
    };
}

problem_kinds! {
    /// The superblock does not decode.
    SuperblockDamaged,
    /// The superblock belongs to another table than the one that was opened. Nothing else was checked.
    SuperblockReplaced,
    /// The table was destroyed, and nothing else was checked; or a row says that the table is being destroyed.
    TableDestroyed,
    /// The word that extent generations are drawn from is 0 or beyond 48 bits.
    GenerationCounter,
    /// A row's checksum does not match, and no client completes the row.
    RowTorn,
    /// A row's level is not that of its segment. [R-GROW-3]
    RowLevel,
    /// The table's map is ahead of the rows: it says that a segment was split more often than its rows do, so clients
    /// that open the table look for keys in segments that do not exist. Or its word for a segment is no depth that the
    /// segment can have. A map behind the rows is no problem. [R-GROW-12]
    SegmentMap,
    /// A row's version has bits beyond the table's version bits.
    RowVersion,
    /// Occupancy bits are set for entries that the row does not have.
    OccupancyBits,
    /// Type bits are set for entries that are free or do not exist, or in a format without extents; or the replaced
    /// entry that a trailer names beside them is free or does not exist.
    TypeBits,
    /// A free entry is not zeroed.
    FreeEntryNotZero,
    /// The words between a row's entries and its trailer are not zero.
    PaddingNotZero,
    /// The lengths of an inline entry do not fit in it.
    EntryLengths,
    /// The half digest in an inline entry's header is not that of its key: no lookup finds the key.
    EntryDigest,
    /// The unused bytes of an entry are not zero.
    EntryPadding,
    /// The key of an entry belongs in other rows: no lookup finds it here.
    EntryMisplaced,
    /// A key is stored twice.
    DuplicateKey,
    /// An entry refers to an impossible extent address.
    ExtentAddress,
    /// The generation in an extent entry is 0, larger than 48 bits, or not used yet.
    ExtentGeneration,
    /// An extent lies in a chunk that is not in use, or holds another class.
    ExtentChunk,
    /// An extent is marked free though an entry refers to it: it will be overwritten.
    ExtentFreed,
    /// The extent at the address in an entry has another generation.
    ExtentReplaced,
    /// An extent's lengths or checksum do not match.
    ExtentTorn,
    /// An extent's key does not match the digest in the entry.
    ExtentDigest,
    /// Two entries refer to one extent.
    ExtentShared,
    /// A word of the chunk table is not valid.
    ChunkWord,
    /// A chunk in use has a size class that chunks of this size cannot have.
    ChunkClass,
    /// The owner of a chunk is not a living client.
    ChunkOwner,
    /// A run of chunks is not followed by all of its tails.
    BrokenRun,
    /// A tail belongs to no run.
    StrayTail,
    /// A lock is held, but not by a client that can release it.
    StuckLock,
    /// A lock is poisoned, as the locks of a destroyed table are, but the table is not destroyed.
    LockPoisoned,
    /// Bits of the lock table that belong to no lock are not zero.
    LockBits,
    /// A client slot's state word is not valid.
    SlotWord,
    /// A client's redo record is sealed, but no client works on the table: rows may be half written.
    UnfinishedCommit,
    /// A sealed redo record does not match its seal, or refers to something that the table does not have.
    RecordDamaged,
    /// The recovery of a dead client was begun and not completed, and no client works on the table.
    UnfinishedRecovery,
}

/// Cause of a problem. Serialized in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// A client died in the middle of an operation. Any client that needs something that the dead one held recovers it.
    /// Source: R-RECOVER-1.
    DeadClient,
    /// A client that is not known to be dead is in the middle of a change and holds the lock; it may have been stopped.
    LivingClient,
    /// Damage, or an error of a program: no operation of a client explains the problem.
    Damage,
}

/// Something that a sound table cannot contain while no client works on it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// The kind of the problem.
    pub kind: ProblemKind,
    /// The cause.
    pub cause: Cause,
    /// The location, such as "entry 2 of row 17" or "chunk 9".
    pub place: String,
    /// A description of the problem and what it means.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct CheckReport {
    /// Statistics about the contents of the table.
    pub counts: TableStats,
    /// Number of client slots that are not free.
    pub used_slots: u64,
    /// Number of client slots whose clients are known to be dead, or are being recovered. Any client that needs
    /// something that a dead one held recovers it. Source: R-RECOVER-1.
    pub dead_clients: u64,
    /// Number of locks that were held when they were first read.
    pub held_locks: u64,
    /// Number of extents that no entry refers to and that are not marked free: their space is leaked until it is swept.
    /// This is not a problem; it includes extents whose entries are about to be written.
    pub unreferenced_extents: u64,
    /// The problems whose cause is damage, in the order in which they were found: the first 100 of them, unless the
    /// scanner was given another limit.
    pub problems: Vec<Problem>,
    /// Number of all problems whose cause is damage.
    pub problems_total: u64,
    /// The unfinished changes of clients that died or are stopped; they are not damage. The limit is the same as for
    /// problems. Empty if the scanner was told that no client works: then unfinished changes are problems.
    pub under_way: Vec<Problem>,
    /// Number of all unfinished changes.
    pub under_way_total: u64,
}

impl CheckReport {
    /// Whether nothing is damaged. Unfinished changes of dead and living clients are not damage.
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }
}

/// Stage of a check. The stages come in this order, but rechecks come earlier when there are many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// The superblock.
    Superblock,
    /// Client slots.
    Slots,
    /// Lock words.
    Locks,
    /// Rows, their entries and extents.
    Rows,
    /// The chunk table.
    Chunks,
    /// Second and further checks of everything that seemed wrong.
    Rechecks,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Superblock => "superblock",
            Stage::Slots => "client slots",
            Stage::Locks => "locks",
            Stage::Rows => "rows",
            Stage::Chunks => "chunks",
            Stage::Rechecks => "rechecks",
        })
    }
}

/// Progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current stage.
    pub stage: Stage,
    /// Completed part of the stage: client slots, lock words, rows, chunks, or rechecks.
    pub done: u64,
    /// Size of the stage, in the same unit.
    pub total: u64,
}

/// A check failed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The fabric refused or lost a batch.
    #[error("cannot read the table's {stage}: {source}")]
    Fabric {
        /// The stage of the check.
        stage: Stage,
        /// The fabric's error.
        r#source: FabricError,
    },
    /// The table was destroyed: there is nothing to count.
    #[error("the table was destroyed")]
    Destroyed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_serialized_in_snake_case() {
        let (kind, cause) = (ProblemKind::FreeEntryNotZero, Cause::Damage);
        let problem = Problem { kind, cause, place: "row 1".to_owned(), text: "full".to_owned() };
        assert_eq!(problem.to_string(), "row 1: full");
        let report = CheckReport { problems: vec![problem], problems_total: 1, ..CheckReport::default() };
        assert!(!report.is_clean());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["problems"][0]["kind"], "free_entry_not_zero");
        assert_eq!((&json["problems"][0]["cause"], &json["problems_total"]), (&"damage".into(), &1.into()));
        let left = CheckReport { under_way_total: 1, dead_clients: 1, ..CheckReport::default() };
        assert!(left.is_clean(), "unfinished changes are no damage");
        assert_eq!(json["counts"]["chunks"]["free"], 0);
    }
}
