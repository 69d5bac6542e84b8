//! Checks of client slots: state words and redo records.

use guira_fabric::FabricError;
use guira_layout::{Record, Seal, SlotState, SlotWord};

use crate::findings::{Findings, Subject};
use crate::scan::{Concurrency, Scan};
use crate::{Cause, ProblemKind, Stage};

/// Client slots in one READ: the largest ones, with records of 16 rows with entries of 1,032 bytes, fill half of the
/// smallest `max_verb_words` of all fabrics.
const SLOTS_PER_READ: u16 = 32;

impl Scan<'_> {
    pub(crate) async fn check_slots(&mut self) -> Result<(), FabricError> {
        let (slots, slot_words) = (self.table.config().max_clients, self.table.geometry().slot_words());
        let mut words = Vec::new();
        for first in (0..slots).step_by(usize::from(SLOTS_PER_READ)) {
            self.show(Stage::Slots, first.into(), slots.into());
            let count = SLOTS_PER_READ.min(slots - first);
            words.resize(usize::from(count) * slot_words, 0);
            self.read(self.table.geometry().slot(first), &mut words).await?;
            for (slot, words) in (first..).zip(words.chunks_exact(slot_words)) {
                let findings = self.inspect_slot_words(slot, words).await?;
                let free = matches!(self.slots[usize::from(slot)], Some(SlotWord { state: SlotState::Free, .. }));
                self.report.used_slots += u64::from(!free);
                let is_dead = self.slots[usize::from(slot)].is_some_and(|word| self.is_dead_or_recovering(slot, word));
                self.report.dead_clients += u64::from(is_dead);
                self.report_or_recheck(Subject::Slot(slot), findings, true).await?;
            }
        }
        self.show(Stage::Slots, slots.into(), slots.into());
        Ok(())
    }

    /// Samples a client slot and checks it. 1 or 2 round trips.
    pub(crate) async fn inspect_slot(&mut self, slot: u16) -> Result<Findings, FabricError> {
        let mut words = vec![0; self.table.geometry().slot_words()];
        self.read(self.table.geometry().slot(slot), &mut words).await?;
        self.inspect_slot_words(slot, &words).await
    }

    async fn inspect_slot_words(&mut self, slot: u16, words: &[u64]) -> Result<Findings, FabricError> {
        let (mut findings, place) = (Findings::default(), SlotLabel(slot));
        let state_word = words[SlotWord::WORD];
        let word = SlotWord::decode(state_word);
        self.slots[usize::from(slot)] = word;
        let state = word.map(|word| word.state);
        let (kind, is_known) = (ProblemKind::SlotWord, state.is_some());
        findings.require(is_known, kind, place, format_args!("its state word {state_word:#x} is not valid"));
        if state == Some(SlotState::Recovering) && self.concurrency == Concurrency::Exclusive {
            let text = "the recovery of its dead client was begun, but not completed";
            findings.add(ProblemKind::UnfinishedRecovery, place, text);
        }
        let seal = Seal(words[Seal::word(self.table.rows())]);
        if !seal.is_sealed() {
            return Ok(findings);
        }
        // A living client may be in the middle of a commit; a slot without one may not. // [R-COMMIT-1] [R-SLOT-1]
        let is_dead = word.is_some_and(|word| self.is_dead(slot, word));
        if self.concurrency == Concurrency::Exclusive || state == Some(SlotState::Free) || is_dead {
            let text = format!("its commit {} is not complete, and rows of it may be half written", seal.sequence());
            let is_left = is_dead && self.concurrency == Concurrency::Shared && self.table.is_recoverable();
            let cause = if is_left { Cause::DeadClient } else { Cause::Damage };
            findings.add_caused(ProblemKind::UnfinishedCommit, cause, place, text);
        }
        // The words may belong to two commits, because the seal is read last.
        if self.record_damage(words).is_some()
            && let Some(text) = self.record_damage_now(slot, seal).await?
        {
            findings.add(ProblemKind::RecordDamaged, place, text);
        }
        Ok(findings)
    }

    /// Returns the error of a client slot's sealed record, if it does not decode.
    fn record_damage(&self, words: &[u64]) -> Option<String> {
        let table = self.table;
        let decoded = Record::decode(words, table.rows(), table.config(), table.geometry());
        decoded.err().map(|error| error.to_string())
    }

    /// Reads a client slot again and returns the error of its record if the seal is still `seal`; otherwise the next
    /// commit may have begun.
    async fn record_damage_now(&mut self, slot: u16, seal: Seal) -> Result<Option<String>, FabricError> {
        let mut words = vec![0; self.table.geometry().slot_words()];
        self.read(self.table.geometry().slot(slot), &mut words).await?;
        let is_still_sealed = Seal(words[Seal::word(self.table.rows())]) == seal;
        Ok(self.record_damage(&words).filter(|_| is_still_sealed))
    }
}

/// The name of a client slot in findings.
#[derive(Clone, Copy)]
struct SlotLabel(u16);

impl std::fmt::Display for SlotLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "client slot {}", self.0)
    }
}
