//! The lock table: who holds what, and bits that are nobody's.

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

    /// Samples a lock word and the slots of all who hold locks in it, and looks at it. A table that was destroyed
    /// meanwhile has poisoned locks. // [R-DESTROY-1]
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

    /// Reads the state word of the slot of `owner` again, if there is such a slot.
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
            format_args!("bits {stray:#x} are set, which belong to no lock"),
        );
        findings
    }

    /// A lock that is held: by poison, by a client that may be able to release it, or by one that is not. // [R-LOCK-1]
    fn inspect_held(&self, lock: LockId, owner: OwnerId, findings: &mut Findings) {
        let locks = self.table.locks();
        if locks.is_poison(owner) {
            let text = format!("it holds {owner}, poison, but the table is not destroyed");
            findings.add(ProblemKind::LockPoisoned, lock, text);
            return;
        }
        let is_exclusive = self.concurrency == Concurrency::Exclusive;
        // A lock of one bit does not say whose it is, and a busy one is often held.
        if !is_exclusive && (!locks.has_owner_ids() || self.is_live(owner)) {
            return;
        }
        let whose = if locks.has_owner_ids() { format!(" by {}", self.describe(owner)) } else { String::new() };
        let text = match is_exclusive {
            true => format!("it is held{whose}, though nobody works"),
            false => format!("it stays held{whose}"),
        };
        findings.add_caused(ProblemKind::StuckLock, self.cause(owner), lock, text);
    }
}

/// The locks, of those the table has, that are held in a word.
fn held(table: &Table, word: u64, value: u64) -> impl Iterator<Item = (LockId, OwnerId)> {
    let locks = table.locks();
    locks.all_held(word, value).filter(|(lock, _)| lock.0 < locks.locks())
}
