//! What runs did, added up.

use guira_rcuckoo::{Counters, Recovered};

macro_rules! tally {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// What the clients of runs did and met.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Tally {
            /// Adds another one to it.
            pub fn add(&mut self, other: &Tally) {
                $(self.$name += other.$name;)*
            }

            /// Every count with its name.
            pub fn counts(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

tally! {
    /// Runs.
    runs,
    /// Verbs that were carried out.
    verbs,
    /// Operations on keys that began; a scan is one for each key.
    operations,
    /// Scans that were snapshots.
    stable_scans,
    /// Clients that took a slot.
    opened,
    /// Clients that never got one.
    without_slot,
    /// Clients that died.
    deaths,
    /// Clients that died while they recovered another one.
    recoverer_deaths,
    /// Clients that stopped because they lost their connection, or never had one to a table.
    cut_off,
    /// Batches whose rest was dropped because somebody wanted the slot of their client.
    fenced,
    /// Dead clients recovered.
    recoveries,
    /// Those of them whose commit was completed.
    replays,
    /// Last clients that opened a table.
    settled,
    /// Entries moved to make room.
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
    /// Runs whose memory node started again, so that nothing could be asked of it at the end.
    emptied,
    /// Runs some of whose bits flipped.
    flipped,
    /// Operations whose effect nobody knows.
    pending,
    /// Keys whose history was checked.
    keys,
    /// Steps that left no lock held, after which rows were looked at.
    unlocked_steps,
    /// Rows looked at.
    rows,
    /// Looks at whole tables.
    whole,
    /// Extents in use at the end.
    extents,
    /// Locks that were reclaimed from the dead, in preset `paper`.
    reclaimed,
    /// Repair leases taken from those who held them.
    revocations,
}

impl Tally {
    /// Adds what a client met between two readings of its counters.
    pub(crate) fn count(&mut self, before: &Counters, now: &Counters) {
        self.moves += now.moves - before.moves;
        self.conflicts += now.lock_conflicts - before.lock_conflicts;
        self.row_retries += now.row_retries - before.row_retries;
        self.recoveries += now.recoveries - before.recoveries;
        self.replays += now.replays - before.replays;
        self.reclaimed += now.repair_state_4 - before.repair_state_4;
        self.revocations += now.revocations - before.revocations;
    }

    /// Adds a recovery that took a slot.
    pub(crate) fn count_recovery(&mut self, recovered: Option<&Recovered>) {
        self.recoveries += u64::from(recovered.is_some());
        self.replays += u64::from(recovered.is_some_and(|recovered| recovered.replayed_rows > 0));
    }
}
