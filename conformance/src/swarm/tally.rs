//! Counts of what runs did, added up.

use guira_rcuckoo::{Counters, Recovered};

use super::monitor::MonitorStats;

/// Counts by name, in the order in which names were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(Vec<(&'static str, u64)>);

impl Counts {
    /// Creates counts of 0.
    pub fn of_names(names: &[&'static str]) -> Counts {
        Counts(names.iter().map(|name| (*name, 0)).collect())
    }

    /// Adds counts, with their names if they are new.
    pub fn add(&mut self, counts: &[(&'static str, u64)]) {
        for (name, count) in counts {
            match self.0.iter_mut().find(|(known, _)| known == name) {
                Some((_, total)) => *total += count,
                None => self.0.push((name, *count)),
            }
        }
    }

    /// Returns a count; 0 if it has none of this name.
    pub fn of(&self, name: &str) -> u64 {
        self.all().iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
    }

    /// Returns every count with its name.
    pub fn all(&self) -> &[(&'static str, u64)] {
        &self.0
    }
}

macro_rules! tally {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counts of what the clients of runs did.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Tally {
            /// Adds another tally.
            pub fn add(&mut self, other: &Tally) {
                $(self.$name += other.$name;)*
            }

            /// Returns every count with its name.
            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

tally! {
    /// Runs.
    runs,
    /// Verbs that were executed.
    verbs,
    /// Operations on keys that began; a scan counts once for each key.
    operations,
    /// Scans that were snapshots.
    stable_scans,
    /// Clients that took a slot.
    opened,
    /// Clients that never got a slot.
    without_slot,
    /// Clients that died.
    deaths,
    /// Clients that died while they recovered another one.
    recoverer_deaths,
    /// Clients that stopped because they lost their connection, or never had one to a table.
    cut_off,
    /// Batches whose remainder was dropped because another client wanted their client's slot.
    fenced,
    /// Recoveries of dead clients.
    recoveries,
    /// Recoveries that completed a commit.
    replays,
    /// Last clients that opened a table.
    settled,
    /// Entries that were moved to make room.
    moves,
    /// Times a lock was found taken.
    conflicts,
    /// Rows sampled again.
    row_retries,
    /// Operations that found no room.
    full,
    /// Operations that gave up waiting for a lock.
    busy,
    /// Operations that were dropped.
    dropped,
    /// Operations that found damage.
    corrupt,
    /// Runs whose memory node restarted, so that the final checks were skipped.
    emptied,
    /// Runs with flipped bits.
    flipped,
    /// Verbs that an element rewrote.
    rewritten,
    /// Runs whose fabric took liberties of a queue pair.
    reordered,
    /// Operations whose effect is unknown.
    pending,
    /// Keys whose history was checked.
    keys,
    /// Steps that left no lock held, after which rows were checked.
    unlocked_steps,
    /// Rows that were checked.
    rows,
    /// Checks of whole tables.
    whole,
    /// Extents in use at the end.
    extents,
    /// Rows with a bit in a map of full rows that the clients change, at the end.
    noted_rows,
    /// Rows of which the map of full rows does not say what is true, at the end.
    misnoted_rows,
    /// Locks reclaimed from dead clients, in preset `paper`.
    reclaimed,
    /// Repair leases that were revoked.
    revocations,
    /// Segments split, by clients or by who recovered them.
    splits,
    /// Clients that died in the middle of a split, or of completing one.
    split_deaths,
    /// Clients that were stopped while others split at least ten segments, and went on.
    long_sleepers,
    /// Reservations that the memory node refused.
    refused_memory,
    /// Operations that found no room, because there was no memory for another segment.
    without_memory,
    /// Segments split after a refused reservation.
    late_splits,
}

impl Tally {
    /// Adds the difference between two readings of a client's counters.
    pub(crate) fn count(&mut self, before: &Counters, now: &Counters) {
        self.moves += now.moves - before.moves;
        self.conflicts += now.lock_conflicts - before.lock_conflicts;
        self.row_retries += now.row_retries - before.row_retries;
        self.recoveries += now.recoveries - before.recoveries;
        self.replays += now.replays - before.replays;
        self.reclaimed += now.repair_state_4 - before.repair_state_4;
        self.revocations += now.revocations - before.revocations;
    }

    /// Notes what the monitor of a run has counted.
    pub(crate) fn note(&mut self, stats: &MonitorStats) {
        (self.recoverer_deaths, self.fenced) = (stats.recoverer_deaths, stats.fenced);
        (self.unlocked_steps, self.rows, self.whole) = (stats.unlocked_steps, stats.rows, stats.whole);
        (self.splits, self.split_deaths, self.long_sleepers) = (stats.splits, stats.split_deaths, stats.long_sleepers);
        (self.refused_memory, self.late_splits) = (stats.refused_memory, stats.late_splits);
    }

    /// Adds a recovery that gained a slot.
    pub(crate) fn count_recovery(&mut self, recovered: Option<&Recovered>) {
        self.recoveries += u64::from(recovered.is_some());
        self.replays += u64::from(recovered.is_some_and(|recovered| recovered.replayed_rows > 0));
    }
}
