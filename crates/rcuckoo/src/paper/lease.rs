//! Repair leases, as printed: of all clients that suspect the holder of a lock, one repairs at a time.
//!
//! A lease is taken by CAS if it is free, and also if its word did not change for a timeout: then its holder is
//! presumed dead as well (paper, section 4.2). Nothing stops a holder that was only slow (hole H9).

use guira_fabric::{Addr, FabricError, Lane, Verb, pause_until, post};
use guira_layout::{LeaseWord, STATE_WORD, TableState};

use crate::LockIncident;
use crate::paper::repair::Repair;

/// A lease that this client took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    addr: Addr,
    taken: LeaseWord,
}

impl Lease {
    /// Returns the verb that clears the set flag, unless another client has the lease by now. [R-REPAIR-3]
    pub(crate) fn return_verb(self, found: &mut u64) -> Verb<'_> {
        Verb::Cas { addr: self.addr, compare: self.taken.0, swap: self.taken.released().0, found }
    }
}

/// The result of an attempt to take a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leased {
    /// This client has the lease.
    Taken(Lease),
    /// This client does not have the lease: the lock is not stranded, or the deadline passed.
    NotTaken,
    /// The table is destroyed, and all of its locks are taken for good. [R-DESTROY-1]
    Destroyed,
}

/// The result of checking a suspected lock and its lease.
enum LeaseCheck {
    /// The lock is still taken, and nothing under it changed; the lease has this word.
    Stranded(LeaseWord),
    /// The lock is free, or a row under it changed.
    NotStranded,
    /// The table is destroyed.
    Destroyed,
}

impl<L: Lane + ?Sized> Repair<'_, L> {
    /// Takes the lease of the suspected lock's region. 2 round trips, 1 more for each check of a lease that another
    /// client has. [R-REPAIR-3]
    pub(crate) async fn take_lease(&mut self) -> Result<Leased, FabricError> {
        let (locks, regions) = (self.table.locks().locks(), self.table.config().repair_regions);
        let addr = self.table.geometry().lease(LeaseWord::region_of(self.suspect.lock, locks, regions));
        let mut seen: Option<(LeaseWord, u64)> = None;
        for attempt in 1u32.. {
            let lease = match self.check_lease(addr).await? {
                LeaseCheck::Stranded(lease) => lease,
                LeaseCheck::NotStranded => {
                    self.reader.counters.false_suspicions += 1;
                    self.report(&LockIncident::Withdrawn);
                    return Ok(Leased::NotTaken);
                }
                LeaseCheck::Destroyed => return Ok(Leased::Destroyed),
            };
            let now_ns = self.lane.now_ns();
            let since_ns = seen.filter(|(before, _)| *before == lease).map_or(now_ns, |(_, since_ns)| since_ns);
            seen = Some((lease, since_ns));
            // [R-REPAIR-4]
            let is_overdue = now_ns.saturating_sub(since_ns) >= self.reader.config.lease_timeout_ns;
            if !lease.is_set() || is_overdue {
                let taken = lease.taken_by(self.holder);
                let mut found = 0;
                post(&mut *self.lane, [Verb::Cas { addr, compare: lease.0, swap: taken.0, found: &mut found }]).await?;
                if found == lease.0 {
                    self.reader.counters.leases += 1;
                    self.reader.counters.revocations += u64::from(lease.is_set());
                    let revoked = lease.is_set().then(|| lease.holder());
                    self.report(&LockIncident::Leased { region: lease.region(), revoked });
                    return Ok(Leased::Taken(Lease { addr, taken }));
                }
            }
            if now_ns >= self.deadline_ns {
                return Ok(Leased::NotTaken);
            }
            if let Some(wait_ns) = self.reader.next_wait_ns(attempt) {
                pause_until(&mut *self.lane, (now_ns + wait_ns).min(self.deadline_ns)).await;
            }
        }
        Ok(Leased::NotTaken)
    }

    /// Reads the lease, and whether the lock is still taken and none of the rows sampled under it has changed.
    /// Otherwise the suspicion was wrong, or another client has repaired. 1 round trip for 64 rows. [R-REPAIR-5]
    async fn check_lease(&mut self, lease: Addr) -> Result<LeaseCheck, FabricError> {
        let (table, suspect) = (self.table, self.suspect);
        let lock = table.locks().mask(suspect.lock);
        let (mut lease_word, mut lock_word, mut state) = ([0], [0], [0]);
        let mut checksums = vec![[0]; suspect.rows.len()];
        let mut reads = vec![
            Verb::Read { addr: lease, into: &mut lease_word },
            Verb::Read { addr: table.locks().addr(lock.word), into: &mut lock_word },
            Verb::Read { addr: table.geometry().superblock_word(STATE_WORD), into: &mut state },
        ];
        let rows = suspect.rows.iter().zip(&mut checksums);
        reads.extend(rows.map(|((row, _), into)| table.read_checksum(*row, into)));
        for reads in reads.chunks_mut(READS) {
            post(&mut *self.lane, reads).await?;
        }
        let is_unchanged = suspect.rows.iter().zip(&checksums).all(|((_, before), [now])| before == now);
        if TableState::decode(state[0]) != Some(TableState::Live) {
            return Ok(LeaseCheck::Destroyed);
        }
        let is_stranded = lock_word[0] & lock.mask != 0 && is_unchanged;
        Ok(if is_stranded { LeaseCheck::Stranded(LeaseWord(lease_word[0])) } else { LeaseCheck::NotStranded })
    }
}

/// Maximum number of READs in one batch: half of the smallest `max_batch` of all fabrics.
pub(crate) const READS: usize = 64;
