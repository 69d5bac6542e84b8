//! Clients that die as in the authors' runs of figure 8(a), and how others take their locks.
//!
//! One client alone injects faults: it ends an update early, with its locks held, sleeps, and goes on. Another client
//! that is refused often enough because of one lock takes its holder for dead. It counts refusals, not time: on a busy
//! card a timeout of 10 ms lasts five times as long. Then it reads all rows of the lock, and for each of their entries
//! both rows of the entry's key, one round trip after the other, under a lease that the table has once. Nobody looks
//! whether the lock is still the same holder's, so that the locks of living clients can be taken, too.
//!
//! The code also looks for rows with a wrong checksum, and for keys in two rows. No fault of an update leaves the second,
//! and the code forgets the first before it acts on it, so that nothing is ever repaired here.

use guira_fabric::{FabricError, Lane, Verb, pause_until, post};

use super::client::{Client, Write};
use super::locks::{LockGroup, WORD_LOCKS};
use super::search::key_of;

/// The time for which the code takes a refusal, in microseconds.
const REFUSAL_US: f64 = 2.0;
/// Attempts to take the lease: for 10 ms, by the same count.
const LEASE_ATTEMPTS: u32 = 5_000;
/// The bit of the lease that says that a client has it. Above it is a counter.
const LEASED: u64 = 1;

/// Returns the number of refusals that the code takes for a time in microseconds.
pub fn refusals_in(timeout_us: f64) -> u32 {
    (timeout_us / REFUSAL_US) as u32
}

/// The number of refusals in a row that each lock of a word has caused.
pub(super) struct Refusals([u32; WORD_LOCKS as usize]);

impl Refusals {
    /// Creates the counts of a message that was not refused yet.
    pub(super) fn new() -> Refusals {
        Refusals([0; WORD_LOCKS as usize])
    }

    /// Counts a refusal because of the locks `held`. Returns the bit of a lock that has caused more than `most`, and
    /// begins anew then.
    pub(super) fn count(&mut self, held: u64, most: u32) -> Option<u64> {
        for (lock, refusals) in self.0.iter_mut().enumerate() {
            *refusals = if held >> lock & 1 == 1 { *refusals + 1 } else { 0 };
        }
        let dead = self.0.iter().position(|refusals| *refusals > most)?;
        *self = Refusals::new();
        Some(1 << dead)
    }
}

/// The faults of a client.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// The time from one fault to the next, in nanoseconds, at least.
    pub interval_ns: u64,
    /// The earliest time of the next one.
    pub next_ns: u64,
    /// Faults so far.
    pub count: u64,
}

impl<L: Lane> Client<L> {
    /// Ends an update early, if the client injects faults: posts nothing, or the first WRITE alone, in turn, and sleeps.
    /// Returns whether it did, with its locks held.
    pub(super) async fn inject_fault(&mut self, write: &Write) -> Result<bool, FabricError> {
        let Some(faults) = &mut self.faults else { return Ok(false) };
        faults.count += 1;
        faults.next_ns += faults.interval_ns;
        let Faults { count, next_ns, .. } = *faults;
        if count.is_multiple_of(2) {
            let addr = self.rules.layout.entry_addr(write.step.row, write.step.index);
            post(&mut self.lane, [Verb::Write { addr, words: &[write.step.entry] }]).await?;
        }
        pause_until(&mut self.lane, next_ns).await;
        Ok(true)
    }

    /// Takes the lock of a client that seems to be dead, unless another client has the lease all the time.
    pub(super) async fn reclaim(&mut self, lock: LockGroup) -> Result<(), FabricError> {
        let Some(lease) = self.take_lease().await? else { return Ok(()) };
        self.reclaimed += 1;
        self.read_for_duplicates(lock).await?;
        self.write_and_unlock(&[], &[lock]).await?;
        let (addr, mut found) = (self.rules.layout.lease_addr(), 0);
        post(&mut self.lane, [Verb::Cas { addr, compare: lease, swap: lease + LEASED, found: &mut found }]).await
    }

    /// Takes the lease by a READ and a CAS, and returns its value.
    async fn take_lease(&mut self) -> Result<Option<u64>, FabricError> {
        let addr = self.rules.layout.lease_addr();
        for _ in 0..LEASE_ATTEMPTS {
            let (mut lease, mut found) = ([0], 0);
            post(&mut self.lane, [Verb::Read { addr, into: &mut lease }]).await?;
            let [compare] = lease;
            if compare & LEASED != 0 {
                continue;
            }
            let swap = (compare + 2 * LEASED) | LEASED;
            post(&mut self.lane, [Verb::Cas { addr, compare, swap, found: &mut found }]).await?;
            if found == compare {
                return Ok(Some(swap));
            }
        }
        Ok(None)
    }

    /// Reads the rows of a lock in one round trip, and then the first words of both rows of each of their entries, each in
    /// one more.
    async fn read_for_duplicates(&mut self, lock: LockGroup) -> Result<(), FabricError> {
        let Client { lane, rules, .. } = self;
        let layout = &rules.layout;
        let (rows, row_words) = (layout.covered(lock), layout.row_words() as usize);
        let mut words = vec![0; rows.clone().count() * row_words];
        let into = rows.zip(words.chunks_exact_mut(row_words));
        let reads = into.map(|(row, into)| Verb::Read { addr: layout.row_addr(row), into });
        post(lane, reads.collect::<Vec<_>>()).await?;
        let entries = words.chunks_exact(row_words).flat_map(|words| layout.entries_of(words));
        for entry in entries.filter(|entry| *entry != 0) {
            let pair = layout.placement.of(key_of(entry));
            let (mut first, mut second) = ([0], [0]);
            let reads = [(pair.primary, &mut first), (pair.secondary, &mut second)];
            post(lane, reads.map(|(row, into)| Verb::Read { addr: layout.row_addr(row), into })).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_suspected_after_refusals_in_a_row() {
        let mut refusals = Refusals::new();
        assert_eq!((0..5).filter_map(|_| refusals.count(0b101, 5)).next(), None);
        // Lock 2 was free once.
        assert_eq!((refusals.count(0b001, 5), refusals.count(0b101, 6)), (Some(0b001), None));
        assert_eq!((0..6).filter_map(|_| refusals.count(0b100, 5)).collect::<Vec<_>>(), [0b100]);
        assert_eq!(refusals_in(10_000.0), 5_000);
    }
}
