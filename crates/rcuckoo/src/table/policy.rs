//! The protocol that a table's clients follow, from the table's parameters: the differences between the hardened
//! protocol and the printed one. The code that only the printed protocol uses is in [`crate::paper`]. The layout
//! decides whether locks name their owners, and how keys map to rows.

use guira_layout::{LockLayout, TableConfig};

/// Treatment of the locks and half-written rows of dead clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deaths {
    /// Dead clients are recovered: locks name their owners, and commits leave records. [R-RECOVER-3]
    Recovered,
    /// Locks and rows are repaired, as printed, once their holder is presumed dead: locks do not name their owners,
    /// commits leave no record, and there are leases. [R-REPAIR-1]
    Repaired,
    /// Locks stay taken: a precondition of recovery and of repair is missing.
    Left,
}

/// Rows that a change locks. [R-LOCK-7]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockedRows {
    /// Both rows of its key, and those of its path.
    OfKeyAndPath,
    /// As printed: an insert locks only the rows of its path.
    OfPath,
}

/// The choices. Tests mix them, to open one hole of the printed protocol at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) deaths: Deaths,
    pub(crate) locked_rows: LockedRows,
    /// Whether a miss samples a trailer again. [R-READ-3]
    pub(crate) validates_misses: bool,
    /// Whether a commit that a death could leave half done leaves a record. [R-COMMIT-2]
    pub(crate) keeps_records: bool,
}

impl Policy {
    pub(crate) fn of(config: &TableConfig, locks: &LockLayout) -> Policy {
        let rules = config.rules;
        Policy {
            deaths: match (locks.has_owner_ids(), rules.commit_records) {
                (true, true) => Deaths::Recovered,
                (false, false) if config.repair_regions > 0 => Deaths::Repaired,
                _ => Deaths::Left,
            },
            locked_rows: if rules.lock_both_rows { LockedRows::OfKeyAndPath } else { LockedRows::OfPath },
            validates_misses: rules.validate_misses,
            keeps_records: rules.commit_records,
        }
    }
}
