//! The commit: one post that makes a change durable against its client's death, visible, and free to others.

use guira_fabric::{Addr, Effect, Lane, Verb, WORD_BYTES, post};
use guira_layout::{ExtentRef, RowId, Seal};

use crate::journal::Flight;
use crate::repair::clear_verb;
use crate::{Client, Error, MAX_LOCK_WORDS, Operation, Place};

/// A row to be written: its place in the window, and the one slot that changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) place: usize,
    pub(crate) row: RowId,
    pub(crate) slot: usize,
}

impl Client {
    /// Posts `sealed record | rows in order | retire | mark | release` as one batch. 1 round trip. // [R-COMMIT-1]
    ///
    /// The linearization point is the WRITE of the last row in `writes`: the row the key is in afterwards, or was in
    /// before.
    pub(crate) async fn commit(
        &mut self,
        lane: &mut dyn Lane,
        writes: &[Write],
        freed: Option<ExtentRef>,
        operation: Operation,
    ) -> Result<(), Error> {
        let mark = match freed {
            Some(extent) => Some((self.mark_of(&extent, operation)?, [extent.generation.0])),
            None => None,
        };
        let recorded = self.needs_record(lane, writes);
        if recorded {
            self.write_record(writes, freed, mark.as_ref().map(|(addr, _)| addr.offset()));
        }
        let slot = Addr::main_word(self.slot_word);
        let retired = [Seal::retired(self.counters.sequence()).0];
        let seal_at = slot.add_words(Seal::word(self.table.rows()) as u64);
        let mut found = [0; MAX_LOCK_WORDS];
        let mut batch = self.buffer.take();
        if recorded {
            // The seal is the last word of both.
            let (further, first) = self.record.parts();
            let parts = further.into_iter().chain([first]);
            batch.extend(parts.map(|part| Verb::Write { addr: slot.add_words(part.word as u64), words: part.words }));
        }
        for write in writes {
            let addr = self.table.geometry().row(write.row);
            batch.push(Verb::Write { addr, words: self.window.at(write.place) });
        }
        if recorded {
            batch.push(Verb::Write { addr: seal_at, words: &retired });
        }
        if let Some((addr, generation)) = &mark {
            // After the retirement: a sealed record implies that the extent it frees is still allocated, so replaying
            // it never writes into somebody else's. Before the release: once the lock is free, nobody else may free
            // this extent again. // [R-EXTENT-4]
            batch.push(Verb::Write { addr: *addr, words: generation });
        }
        let masked_cas = lane.caps().masked_cas;
        for (locks, found) in self.journal.held.iter().zip(found.iter_mut()) {
            batch.push(clear_verb(&self.table, self.owner, masked_cas, locks, found));
        }
        self.journal.flight = Flight::Release;
        self.committed = true;
        let posted = post(lane, &mut batch[..]).await;
        self.buffer.keep(batch);
        if let Err(error) = posted {
            self.committed = error.effect() != Effect::None;
            self.journal.failed(&error);
            return Err(Error::fabric(operation)(error));
        }
        if self.table.is_repairable() {
            let held = self.journal.held.iter().zip(&found);
            self.counters.reclaimed_locks +=
                held.map(|(locks, found)| u64::from((locks.mask & !found).count_ones())).sum::<u64>();
        }
        self.journal.landed(&[]);
        for write in writes {
            self.cache.put(write.row, self.window.at(write.place));
        }
        Ok(())
    }

    /// Whether a client that dies in this commit could leave it half done: more than one row changes, or a row is
    /// larger than what a WRITE cannot tear. // [R-COMMIT-2]
    fn needs_record(&self, lane: &mut dyn Lane, writes: &[Write]) -> bool {
        let row_bytes = self.table.rows().row_words() as u64 * WORD_BYTES;
        let torn = row_bytes > lane.caps().atomic_write_unit;
        self.table.config().rules.commit_records && (writes.len() > 1 || torn)
    }

    fn write_record(&mut self, writes: &[Write], freed: Option<ExtentRef>, mark_offset: Option<u64>) {
        self.counters.records += 1;
        self.record.clear();
        for write in writes {
            let after = self.window.at(write.place);
            self.record.push(self.table.rows(), write.row, write.slot, after);
        }
        if let (Some(extent), Some(offset)) = (freed, mark_offset) {
            self.record.free_extent(offset, extent.generation);
        }
        self.record.seal(self.table.rows().sums(), self.counters.sequence());
    }

    fn mark_of(&self, extent: &ExtentRef, operation: Operation) -> Result<Addr, Error> {
        let place = Place::Extent { offset: extent.offset, generation: extent.generation };
        let offset = extent.mark_offset(self.table.config(), self.table.geometry());
        offset.map(Addr::main).ok_or(Error::Corrupt { operation, place })
    }
}
