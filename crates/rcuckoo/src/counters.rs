//! Counters of client events, and the table's totals of them, which outlive the clients.
//!
//! Invariant: a counter's index in the list below is its index among the totals. New counters are added at the end, and
//! none is ever removed: programs of different versions count in one table.

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::{TOTALS_WORD, TOTALS_WORDS};

use crate::{Recovered, Table};

/// Declares [`Counters`] and the items derived from the list of its fields.
macro_rules! counters {
    ($($(#[$documentation:meta])* $name:ident,)*) => {
        /// Counters of events that one client, or all clients of a table, met. They only grow.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$documentation])* pub $name: u64,)*
        }

        impl Counters {
            /// Number of counters.
            pub const COUNT: usize = [$(stringify!($name)),*].len();
            /// Names of the counters, in the order of the totals.
            pub const NAMES: [&'static str; Counters::COUNT] = [$(stringify!($name)),*];

            /// Returns the counters in the order of the totals.
            pub const fn to_words(&self) -> [u64; Counters::COUNT] {
                [$(self.$name),*]
            }

            /// Returns the counters of `words`, which are in the order of the totals.
            pub const fn from_words(words: [u64; Counters::COUNT]) -> Counters {
                let [$($name),*] = words;
                Counters { $($name),* }
            }
        }
    };
}

counters! {
    /// Times a lock was found taken, and waited for.
    lock_conflicts,
    /// Paths that no longer held under their locks, so that the insert searched again.
    stale_paths,
    /// Entries moved to make room.
    moves,
    /// Searches that sampled rows.
    sampled_searches,
    /// Rows sampled again because they did not verify, because a miss did not validate, or because an extent did not
    /// fit its entry.
    row_retries,
    /// Redo records written.
    records,
    /// Dead clients recovered.
    recoveries,
    /// Recovered clients whose commit was completed.
    replays,
    /// Recovered clients that left nothing but their slot: no commit begun, no lock, no chunk.
    idle_deaths,
    /// Recoveries that continued one whose recoverer had died. Source: R-RECOVER-4.
    take_overs,
    /// Recoveries that failed because the dead client's slot or record is damaged.
    failed_recoveries,
    /// Rows that dead clients left half written, and that recoveries completed. Source: R-RECOVER-2.
    torn_rows,
    /// Locks of dead clients that were released.
    released_locks,
    /// Chunks of dead clients that became orphans or free; a run counts as one.
    reclaimed_chunks,
    /// Operations that failed at their deadline: `Busy`.
    timeouts,
    /// Liveness checks of clients whose locks were waited for; in preset `paper`, locks whose holder was presumed dead.
    /// Source: R-RECOVER-1, R-REPAIR-1.
    suspicions,
    /// Liveness checks that found the client alive; in preset `paper`, suspicions withdrawn before anything was
    /// repaired, because the lock was free or a row under it had changed. Other suspicions there may be wrong, too,
    /// undetected. Source: R-REPAIR-5.
    false_suspicions,
    /// Lock conflicts in which the same batch won other locks, which were given back. Source: R-LOCK-3.
    partial_conflicts,
    /// Tries posted again because only neighbours of the wanted locks had changed. Source: R-LOCK-6.
    neighbour_retries,
    /// Row retries because a row did not verify. Source: R-READ-5.
    crc_retries,
    /// Rows sampled together with the record of a writer that had stopped inside them. Source: R-READ-9.
    reads_through_record,
    /// Samples read through a record that gave a whole row.
    rows_through_record,
    /// Orphaned chunks adopted.
    adopted_chunks,
    /// Repair leases taken, preset `paper`. Source: R-REPAIR-3.
    leases,
    /// Repair leases revoked from another client, of those taken. Source: R-REPAIR-4.
    revocations,
    /// Times a repair found an entry twice, once in a row that did not verify: state 1. Source: R-REPAIR-6.
    repair_state_1,
    /// Times a repair found an entry twice in rows that verified: state 2.
    repair_state_2,
    /// Times a repair found no duplicate entry, but a row that did not verify: state 3.
    repair_state_3,
    /// Times a repair found neither, and cleared the lock: state 4.
    repair_state_4,
    /// Locks of this client that were no longer its own when its commit released them: it had been presumed dead.
    reclaimed_locks,
    /// Leaked extents that sweeps found. Source: R-RECOVER-7.
    swept_extents,
    /// Changes that waited for another change of the same key in the same process, on a memory node. Source: R-LOCK-4.
    queue_waits,
    /// Waiting changes that were combined with a later one, of their process or of another client: completed as if
    /// carried out right before it. Source: R-LOCK-8, R-LOCK-10.
    combined,
    /// Times a lookup or a change was led on to another segment, because its own had been split. Source: R-GROW-4,
    /// R-GROW-5.
    segment_steps,
    /// Segments split. Source: R-GROW-8.
    splits,
}

const _: () = assert!(Counters::COUNT <= TOTALS_WORDS, "all counters fit in the superblock");

impl Counters {
    /// Returns each counter with its name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Counters::NAMES.into_iter().zip(self.to_words())
    }

    /// Returns the sums of these counters and `other`.
    #[must_use]
    pub fn plus(&self, other: &Counters) -> Counters {
        self.with(other, u64::wrapping_add)
    }

    /// Returns the differences between these counters and `earlier` ones.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> Counters {
        self.with(earlier, u64::wrapping_sub)
    }

    fn with(&self, other: &Counters, combine: fn(u64, u64) -> u64) -> Counters {
        let mut words = self.to_words();
        words.iter_mut().zip(other.to_words()).for_each(|(word, other)| *word = combine(*word, other));
        Counters::from_words(words)
    }

    /// Counts a completed recovery.
    pub fn note_recovery(&mut self, recovered: &Recovered) {
        self.recoveries += 1;
        self.replays += u64::from(recovered.replayed_rows > 0);
        self.idle_deaths += u64::from(recovered.is_idle());
        self.take_overs += u64::from(recovered.was_begun);
        self.torn_rows += recovered.torn_rows;
        self.released_locks += recovered.locks;
        self.reclaimed_chunks += recovered.chunks;
    }

    /// Returns the sequence number of the client's last redo record, truncated to the width of a seal.
    #[inline(always)]
    pub(crate) fn sequence(&self) -> u32 {
        self.records as u32
    }

    /// Returns the number of events that involved dead or stopped clients: those worth reporting at once.
    pub fn incidents(&self) -> u64 {
        self.timeouts + self.suspicions + self.recoveries + self.failed_recoveries
    }
}

/// Adds `counters` to the table's totals. 1 round trip, none if all are 0. [R-TOTALS-1]
///
/// # Errors
/// The fabric refused or lost the batch.
pub async fn add_totals(lane: &mut dyn Lane, table: &Table, counters: &Counters) -> Result<(), FabricError> {
    let mut found = [0; Counters::COUNT];
    let counted = counters.to_words().into_iter().zip(&mut found).enumerate().filter(|(_, (count, _))| *count > 0);
    let adds: Vec<Verb<'_>> = counted
        .map(|(i, (add, found))| Verb::FetchAdd { addr: table.geometry().superblock_word(TOTALS_WORD + i), add, found })
        .collect();
    if adds.is_empty() { Ok(()) } else { post(lane, adds).await }
}

/// Reads the table's totals, as reported by its clients. 1 round trip. [R-TOTALS-1]
///
/// # Errors
/// The fabric refused or lost the batch.
pub async fn read_totals(lane: &mut dyn Lane, table: &Table) -> Result<Counters, FabricError> {
    let mut words = [0; Counters::COUNT];
    post(lane, [Verb::Read { addr: table.geometry().superblock_word(TOTALS_WORD), into: &mut words }]).await?;
    Ok(Counters::from_words(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [R-TOTALS-1] Moving a counter would make programs of different versions count different things in one word.
    #[test]
    fn counters_keep_their_positions() {
        let first = ["lock_conflicts", "stale_paths", "moves", "sampled_searches", "row_retries", "records"];
        let second = ["recoveries", "replays", "idle_deaths", "take_overs", "failed_recoveries", "torn_rows"];
        let third = ["released_locks", "reclaimed_chunks", "timeouts", "suspicions", "false_suspicions"];
        let fourth =
            ["partial_conflicts", "neighbour_retries", "crc_retries", "reads_through_record", "rows_through_record"];
        let fifth = ["adopted_chunks", "leases", "revocations", "repair_state_1", "repair_state_2", "repair_state_3"];
        let all =
            [&first[..], &second, &third, &fourth, &fifth, &["repair_state_4", "reclaimed_locks", "swept_extents"]]
                .concat();
        assert_eq!(all, Counters::NAMES[..all.len()]);
    }

    #[test]
    fn counters_convert_to_words_and_back() {
        let words = std::array::from_fn(|i| i as u64 + 1);
        let counters = Counters::from_words(words);
        assert_eq!((counters.to_words(), counters.lock_conflicts, counters.adopted_chunks), (words, 1, 23));
        assert_eq!(counters.named().nth(6), Some(("recoveries", 7)));
        assert_eq!(counters.plus(&counters).since(&counters), counters);
    }
}
