//! Checks of the lock table: holders of locks, and bits that belong to no lock.

use guira_fabric::FabricError;
use guira_layout::{LockId, OwnerId, STATE_WORD, SlotWord, TableState};
use guira_rcuckoo::Table;

use crate::findings::{Findings, Subject};
use crate::scan::{Concurrency, Scan, WORDS_PER_READ};
use crate::{ProblemKind, Stage};

impl Scan<'_> {
    pub(crate) async fn check_locks(&mut self) -> Result<(), FabricError> {
        let total = self.table.locks().words();
        let mut words = Vec::new();
        for first in (0..total).step_by(WORDS_PER_READ as usize) {
            self.show(Stage::Locks, first, total);
            words.resize(WORDS_PER_READ.min(total - first) as usize, 0);
            self.read(self.table.locks().addr(first), &mut words).await?;
            for (word, value) in (first..).zip(&words) {
                self.report.held_locks += held(self.table, word, *value).count() as u64;
                let findings = self.inspect_lock_value(word, *value);
                self.report_or_recheck(Subject::LockWord(word), findings, true).await?;
            }
        }
        self.show(Stage::Locks, total, total);
        Ok(())
    }

    /// Samples a lock word and the client slots of all holders of its locks, and checks it. A table that was destroyed
    /// meanwhile has poisoned locks. [R-DESTROY-1]
    pub(crate) async fn inspect_lock_word(&mut self, word: u64) -> Result<Findings, FabricError> {
        let mut value = [0];
        self.read(self.table.locks().addr(word), &mut value).await?;
        let mut state = [0];
        self.read(self.table.geometry().superblock_word(STATE_WORD), &mut state).await?;
        if TableState::decode(state[0]) == Some(TableState::Destroyed) {
            return Ok(Findings::default());
        }
        for (_, owner) in held(self.table, word, value[0]) {
            self.refresh_slot(owner).await?;
        }
        Ok(self.inspect_lock_value(word, value[0]))
    }

    /// Reads the state word of the client slot of `owner` again, if there is such a slot.
    pub(crate) async fn refresh_slot(&mut self, owner: OwnerId) -> Result<(), FabricError> {
        let Some(slot) = owner.slot().filter(|slot| usize::from(*slot) < self.slots.len()) else { return Ok(()) };
        let mut word = [0];
        self.read(self.table.geometry().slot(slot).add_words(SlotWord::WORD as u64), &mut word).await?;
        self.slots[usize::from(slot)] = SlotWord::decode(word[0]);
        Ok(())
    }

    fn inspect_lock_value(&self, word: u64, value: u64) -> Findings {
        let mut findings = Findings::default();
        let locks = self.table.locks();
        let mut known = 0;
        for (lock, owner) in held(self.table, word, value) {
            known |= locks.mask(lock).mask;
            self.inspect_held(lock, owner, &mut findings);
        }
        let stray = value & !known;
        findings.require(
            stray == 0,
            ProblemKind::LockBits,
            format_args!("lock word {word}"),
            format_args!("bits {stray:#x} are set, but belong to no lock"),
        );
        findings
    }

    /// Checks a held lock: it may be poisoned, held by a client that can release it, or by one that cannot. [R-LOCK-1]
    fn inspect_held(&self, lock: LockId, owner: OwnerId, findings: &mut Findings) {
        let locks = self.table.locks();
        if locks.is_poison(owner) {
            let text = format!("it is poisoned (value {}), but the table is not destroyed", owner.0);
            findings.add(ProblemKind::LockPoisoned, lock, text);
            return;
        }
        let is_exclusive = self.concurrency == Concurrency::Exclusive;
        // A lock of one bit does not record its owner, and a busy lock is often held.
        if !is_exclusive && (!locks.has_owner_ids() || self.is_live(owner)) {
            return;
        }
        let holder = if locks.has_owner_ids() { format!(" by {}", self.describe(owner)) } else { String::new() };
        let text = match is_exclusive {
            true => format!("it is held{holder}, but no client works on the table"),
            false => format!("it remains held{holder}"),
        };
        findings.add_caused(ProblemKind::StuckLock, self.cause(owner), lock, text);
    }
}

/// Returns the locks of the table that are held in a word.
fn held(table: &Table, word: u64, value: u64) -> impl Iterator<Item = (LockId, OwnerId)> {
    let locks = table.locks();
    locks.all_held(word, value).filter(|(lock, _)| lock.0 < locks.locks())
}
