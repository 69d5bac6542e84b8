//! The protocol that a table's clients follow, as its parameters say: here the hardened one and the printed one part.
//! The part that only the printed one has is [`crate::paper`]; whether locks name their owners, and how keys find their
//! rows, is a matter of the layout, and asked there.

use guira_layout::{LockLayout, TableConfig};

/// The fate of locks and half-written rows that the dead leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deaths {
    /// They are recovered: locks name their owners, and commits leave records. // [R-RECOVER-3]
    Recovered,
    /// They are repaired, as printed, once their holder is presumed dead: locks name nobody, commits leave no record,
    /// and there are leases. // [R-REPAIR-1]
    Repaired,
    /// They stay: some of what either way needs is missing.
    Left,
}

/// Which rows a change locks. // [R-LOCK-7]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockedRows {
    /// Both of its key, and those of its path.
    OfKeyAndPath,
    /// As printed: an insert locks the rows of its path alone.
    OfPath,
}

/// The choices. Tests mix them, to open one hole of the printed protocol at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) deaths: Deaths,
    pub(crate) locked_rows: LockedRows,
    /// Whether a miss samples a trailer again. // [R-READ-3]
    pub(crate) validates_misses: bool,
    /// Whether a commit that could be left half done leaves a record. // [R-COMMIT-2]
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
