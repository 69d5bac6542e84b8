//! Failure timers, as printed: a client's record of locks that it repeatedly finds taken.
//!
//! In tables whose locks do not name their owners (preset `paper`), only time distinguishes a dead owner from a busy
//! one: a timer runs as long as the lock stays taken and none of the rows sampled under it changes its checksum (paper,
//! section 4.1). A timer may be wrong in the two ways that the holes H3 and H11 describe.

use guira_layout::{LockId, RowId};

/// Maximum number of timers that run at once: an operation waits for one of its locks at a time.
const TIMERS: usize = 16;

/// The timers of one operation.
#[derive(Debug, Default)]
pub(crate) struct FailureTimers {
    timers: Vec<FailureTimer>,
}

/// The timer of a lock that was found taken, with the content of its rows at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailureTimer {
    pub(crate) lock: LockId,
    /// Rows that the lock guards, each with the checksum word it was sampled with.
    pub(crate) rows: Vec<(RowId, u64)>,
    since_ns: u64,
}

impl FailureTimers {
    /// Stops every timer: the operation has its locks, or another one begins.
    pub(crate) fn clear(&mut self) {
        self.timers.clear();
    }

    /// Stops the timers of locks that were won meanwhile, and so had been free.
    pub(crate) fn retain(&mut self, mut is_waited_for: impl FnMut(LockId) -> bool) {
        self.timers.retain(|timer| is_waited_for(timer.lock));
    }

    /// Records that `lock` was found taken at `now_ns`, while the rows it guards had these checksum words. Stops and
    /// returns the timer if that has been so, without a change, for `timeout_ns`; a change before that restarts it.
    // [R-REPAIR-1]
    pub(crate) fn observe(
        &mut self,
        lock: LockId,
        rows: impl Iterator<Item = (RowId, u64)>,
        now_ns: u64,
        timeout_ns: u64,
    ) -> Option<FailureTimer> {
        let at = match self.timers.iter().position(|timer| timer.lock == lock) {
            Some(at) => at,
            None => {
                if self.timers.len() == TIMERS {
                    self.timers.remove(0);
                }
                self.timers.push(FailureTimer { lock, rows: Vec::new(), since_ns: now_ns });
                self.timers.len() - 1
            }
        };
        let timer = &mut self.timers[at];
        for (row, checksum) in rows {
            match timer.rows.iter_mut().find(|(known, _)| *known == row) {
                Some((_, before)) if *before == checksum => {}
                Some((_, before)) => {
                    *before = checksum;
                    timer.since_ns = now_ns;
                }
                None => timer.rows.push((row, checksum)),
            }
        }
        let is_over = now_ns.saturating_sub(timer.since_ns) >= timeout_ns;
        is_over.then(|| self.timers.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: LockId = LockId(7);
    const OTHER: LockId = LockId(8);

    fn observe(timers: &mut FailureTimers, lock: LockId, checksums: &[u64], now_ns: u64) -> bool {
        let rows = checksums.iter().enumerate().map(|(row, checksum)| (RowId(row as u64), *checksum));
        timers.observe(lock, rows, now_ns, 100).is_some()
    }

    /// [R-REPAIR-1] A lock is suspected when it stayed taken for the timeout and nothing changed under it.
    #[test]
    fn a_lock_whose_rows_do_not_change_is_suspected() {
        let mut timers = FailureTimers::default();
        assert!(!observe(&mut timers, LOCK, &[1, 2], 1_000));
        assert!(!observe(&mut timers, LOCK, &[1, 2], 1_099));
        assert!(!observe(&mut timers, OTHER, &[1, 2], 1_099), "each lock has a timer of its own");
        assert!(observe(&mut timers, LOCK, &[1, 2], 1_100));
        assert!(!observe(&mut timers, LOCK, &[1, 2], 1_101));
        assert!(observe(&mut timers, OTHER, &[1, 2], 1_199));
    }

    /// [R-REPAIR-1] A checksum that changes restarts the timer; rows that are sampled for the first time later do not.
    #[test]
    fn a_change_restarts_the_timer() {
        let mut timers = FailureTimers::default();
        assert!(!observe(&mut timers, LOCK, &[1], 0));
        assert!(!observe(&mut timers, LOCK, &[1, 2], 90));
        assert!(!observe(&mut timers, LOCK, &[1, 2], 99));
        assert!(!observe(&mut timers, LOCK, &[1, 3], 110));
        assert!(!observe(&mut timers, LOCK, &[1, 3], 209));
        assert!(observe(&mut timers, LOCK, &[], 210), "nothing that was sampled again changed");
    }

    /// An operation that waits for more locks than the limit drops the oldest timer.
    #[test]
    fn timers_are_bounded() {
        let mut timers = FailureTimers::default();
        (0..100).for_each(|lock| assert!(!observe(&mut timers, LockId(lock), &[], lock)));
        assert_eq!(timers.timers.len(), TIMERS);
    }
}
