//! What a check found: problems made to be read, and counts.

use std::fmt;

use guira_fabric::FabricError;

use crate::TableStats;

macro_rules! problem_kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident,)*) => {
        /// What is wrong. Serialized in snake case.
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
    /// The superblock is another table's than the one that was opened. Nothing else was checked.
    SuperblockReplaced,
    /// The table was destroyed, and nothing else was checked; or it is being destroyed, and a row says so.
    TableDestroyed,
    /// The word that extent generations are drawn from is 0 or beyond 48 bits.
    GenerationCounter,
    /// A row's checksum does not match, and nobody completes the row.
    RowTorn,
    /// A row says that it was split, but this table never doubled.
    RowLevel,
    /// A row's version has bits beyond the table's version bits.
    RowVersion,
    /// Occupancy bits are set for entries that a row does not have.
    OccupancyBits,
    /// Type bits are set for entries that are free or do not exist, or in a format without extents.
    TypeBits,
    /// A free entry is not zeroed.
    FreeEntryNotZero,
    /// The words between a row's entries and its trailer are not zero.
    PaddingNotZero,
    /// The lengths of an inline entry do not fit in it.
    EntryLengths,
    /// The digest half in an inline entry's header is not its key's: no lookup finds the key.
    EntryDigest,
    /// The unused bytes of an entry are not zero.
    EntryPadding,
    /// The key of an entry belongs to other rows: no lookup finds it here.
    EntryMisplaced,
    /// A key is stored twice.
    DuplicateKey,
    /// An entry refers to an extent where none can be.
    ExtentAddress,
    /// An entry's generation is 0, beyond 48 bits, or was not drawn yet.
    ExtentGeneration,
    /// An extent lies in a chunk that is not in use, or holds another class.
    ExtentChunk,
    /// An extent is marked free though an entry refers to it: it will be overwritten.
    ExtentFreed,
    /// An extent's place holds another generation.
    ExtentReplaced,
    /// An extent's lengths or checksum do not match.
    ExtentTorn,
    /// An extent's key does not have the digest its entry says.
    ExtentDigest,
    /// Two entries refer to one extent.
    ExtentShared,
    /// A word of the chunk table means nothing.
    ChunkWord,
    /// A chunk in use has a size class that its size does not allow.
    ChunkClass,
    /// A chunk is owned by nobody who lives.
    ChunkOwner,
    /// A run of chunks is not followed by all of its tails.
    BrokenRun,
    /// A tail belongs to no run.
    StrayTail,
    /// A lock is held by nobody who could release it.
    StuckLock,
    /// A lock holds an id beyond every client's, as those of a destroyed table do, but the table is not destroyed.
    LockPoisoned,
    /// Bits of the lock table that belong to no lock are not zero.
    LockBits,
    /// A client slot's state word means nothing.
    SlotWord,
    /// A client's redo record is sealed, though nobody works: rows may be half written.
    UnfinishedCommit,
    /// A sealed redo record does not match its seal, or names rows the table does not have.
    RecordDamaged,
    /// A dead client's slot is being recovered, though nobody works.
    UnfinishedRecovery,
}

/// Why something is as it is. Serialized in snake case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// A client died in the middle of something: whoever needs what it held recovers it. Source: R-RECOVER-1.
    DeadClient,
    /// A client that is not known to be dead is in the middle of a change, and holds the lock; it may be stopped.
    LivingClient,
    /// Nothing that clients do: damage, or an error of a program.
    Damage,
}

/// Something that cannot be in a sound table while nobody works on it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// What is wrong.
    pub kind: ProblemKind,
    /// Why.
    pub cause: Cause,
    /// Where: "entry 2 of row 17", "chunk 9".
    pub place: String,
    /// What was found there, and what it means.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct CheckReport {
    /// What the table holds.
    pub counts: TableStats,
    /// Client slots that are not free.
    pub used_slots: u64,
    /// Those of them whose clients are known to be dead, or are being recovered: what they hold is given back by
    /// whoever needs it. Source: R-RECOVER-1.
    pub dead_clients: u64,
    /// Locks that were held when they were first read.
    pub held_locks: u64,
    /// Extents that no entry refers to and that are not marked free: their space is lost until it is swept. Not a
    /// problem; includes extents whose entry is about to be written.
    pub unreferenced_extents: u64,
    /// The first problems, as many as the options' limit, in the order of their discovery: all are damage.
    pub problems: Vec<Problem>,
    /// All problems.
    pub problems_total: u64,
    /// What clients that died, or stand still, left in the middle of a change: no damage, and as many as the options'
    /// limit. Always empty if nobody works: then they are problems.
    pub under_way: Vec<Problem>,
    /// All of these.
    pub under_way_total: u64,
}

impl CheckReport {
    /// Whether nothing is damaged. What dead clients left to be recovered, and what others are in the middle of, is no
    /// damage.
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0
    }
}

/// What a check is busy with, in this order, but that rechecks may be looked at again whenever there are many.
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
    /// Further looks at whatever seemed wrong.
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

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What it is busy with.
    pub stage: Stage,
    /// How much of it is done: slots, lock words, rows, chunks, or looks.
    pub done: u64,
    /// Of how much.
    pub total: u64,
}

/// A check could not be carried out. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The fabric refused or lost a batch.
    #[error("reading the table's {stage}: {source}")]
    Fabric {
        /// What was being read.
        stage: Stage,
        /// Why it failed.
        source: FabricError,
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
        assert!(left.is_clean(), "what is recovered is no damage");
        assert_eq!(json["counts"]["chunks"]["free"], 0);
    }
}
