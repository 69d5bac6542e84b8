//! Checks of rows: checksum, trailer, and everything that is not an entry.

use std::fmt;

use guira_fabric::FabricError;
use guira_layout::{LockId, OwnerId, RowId, Seal, Segments};
use guira_rcuckoo::{TableRows, sample_rows};

use crate::findings::{Findings, Subject};
use crate::sample::Block;
use crate::scan::{Concurrency, Scan};
use crate::stats::BLOCK_ROWS;
use crate::{Cause, ProblemKind, Stage};

/// Position of an entry in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryPosition {
    pub(crate) row: RowId,
    pub(crate) index: usize,
}

impl fmt::Display for EntryPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {} of {}", self.index, self.row)
    }
}

/// Whether there is a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exists {
    Yes,
    No,
}

impl Scan<'_> {
    pub(crate) async fn check_rows(&mut self) -> Result<(), FabricError> {
        let mut rows = TableRows::read(&mut *self.lane, self.table).await?;
        let (mut block, mut done) = (Block::new(self.table), 0);
        while let Some(range) = rows.next_range() {
            if self.check_map_word(RowId(range.start)).await? == Exists::No {
                continue;
            }
            for first in range.step_by(BLOCK_ROWS as usize) {
                self.show(Stage::Rows, done, rows.count());
                block.sample(&mut *self.lane, self.table, RowId(first), BLOCK_ROWS as usize).await?;
                for row in block.rows() {
                    let valid = block.valid(row);
                    valid.into_iter().for_each(|words| rows.note(row, self.table.rows().trailer(words).0));
                    let counted = valid.is_some();
                    if counted {
                        self.count_row(&block, row);
                    }
                    let findings = self.inspect_row(&block, row).await?;
                    self.report_or_recheck(Subject::Row(row), findings, counted).await?;
                }
                done += BLOCK_ROWS;
            }
        }
        self.report.counts.rows = done;
        self.show(Stage::Rows, done, done);
        Ok(())
    }

    /// Checks some rows once, and the primary rows of the keys of their entries: a second copy of a key is found only
    /// from its primary row.
    pub(crate) async fn check_some_rows(&mut self, rows: &[RowId]) -> Result<(), FabricError> {
        self.refresh_generation().await?;
        let mut block = Block::new(self.table);
        let (mut wanted, mut key) = (rows.to_vec(), Vec::new());
        let mut next = 0;
        while let Some(row) = wanted.get(next).copied() {
            self.sample_level(row).await?;
            block.sample(&mut *self.lane, self.table, row, 1).await?;
            let findings = self.inspect_row(&block, row).await?;
            self.report_or_recheck(Subject::Row(row), findings, true).await?;
            if next < rows.len()
                && let Some(words) = block.valid(row)
            {
                for index in self.table.rows().occupied_entries(words) {
                    let primary = self.table.entry_rows(row, words, index, &mut key).first;
                    if !wanted.contains(&primary) {
                        wanted.push(primary);
                    }
                }
            }
            next += 1;
        }
        Ok(())
    }

    /// Checks the word in the map of a table that grows for the segment that begins with row `first`, and samples the
    /// segment's level. Returns whether there is such a segment: if only a map that is ahead of the rows leads to it,
    /// its memory may not exist either.
    async fn check_map_word(&mut self, first: RowId) -> Result<Exists, FabricError> {
        let Some(segments) = Segments::of(self.table.config()).filter(Segments::grows) else { return Ok(Exists::Yes) };
        let segment = segments.of_row(first);
        let is_beyond = |segment| self.only_mapped.contains(&segment);
        if is_beyond(segment) || segments.parent(segment).is_some_and(is_beyond) {
            self.only_mapped.insert(segment);
            return Ok(Exists::No);
        }
        let findings = self.inspect_map_word(segment).await?;
        self.report_or_recheck(Subject::MapWord(segment), findings, true).await?;
        Ok(Exists::Yes)
    }

    /// Checks the word of `segment` in the map against the level of its first row, which a split writes before the map
    /// and before the other rows. A word that says less is no finding: a split may be about to write it, and readers
    /// learn from the rows. 2 round trips. [R-GROW-8] [R-GROW-12]
    pub(crate) async fn inspect_map_word(&mut self, segment: u64) -> Result<Findings, FabricError> {
        let mut findings = Findings::default();
        let Some(segments) = Segments::of(self.table.config()) else { return Ok(findings) };
        let (mut word, first) = ([0], segments.first_row(segment));
        self.read(self.table.geometry().map_word(segment), &mut word).await?;
        // Read after the map: levels only grow, so a map that was never ahead of the rows is not ahead of this one.
        self.sample_level(first).await?;
        let mapped = segments.level_of(segment, word[0]);
        let place = || format!("word {segment} of the map");
        if mapped.is_none() && word[0] != 0 {
            let text = format!("it is {:#x}, which is no depth that the segment can have", word[0]);
            findings.add(ProblemKind::SegmentMap, place(), text);
        }
        if let (Some(mapped), Some(level)) = (mapped, self.levels.get(&first).copied())
            && mapped > level
        {
            let text = format!("it says that the segment has level {mapped}, but {first} has level {level}");
            findings.add(ProblemKind::SegmentMap, place(), text);
            self.only_mapped.extend((level..mapped).filter_map(|level| segments.child(segment, level)));
        }
        Ok(findings)
    }

    /// Samples the first row of the segment of `row` for the level of that segment. 1 round trip if the table grows.
    pub(crate) async fn sample_level(&mut self, row: RowId) -> Result<(), FabricError> {
        let table = self.table;
        if !table.config().grows() {
            return Ok(());
        }
        let (first, mut words, mut level) = (table.placement().base(row), Vec::new(), None);
        sample_rows(&mut *self.lane, table, first, 1, &mut words, |sample| {
            level = sample.valid.then(|| table.rows().trailer(sample.words).level());
        })
        .await?;
        match level {
            Some(level) => self.levels.insert(first, level),
            None => self.levels.remove(&first),
        };
        Ok(())
    }

    /// Whether `level` can be the level of `row`: it is that of its segment, as far as that is known.
    fn is_level_of(&self, row: RowId, level: u8) -> bool {
        let (created, first) = (self.table.rows().level(row), self.table.placement().base(row));
        match self.table.config().initial_segments {
            None => level == created,
            Some(_) => level >= created && self.levels.get(&first).is_none_or(|known| level == *known),
        }
    }

    /// Counts `row` of `block`, which verifies.
    pub(crate) fn count_row(&mut self, block: &Block, row: RowId) {
        let Some(words) = block.valid(row) else { return };
        self.report.counts.count_row(self.table, row, words, &mut self.buffers.key);
    }

    /// Checks `row` as `block` sampled it.
    pub(crate) async fn inspect_row(&mut self, block: &Block, row: RowId) -> Result<Findings, FabricError> {
        let mut findings = Findings::default();
        let Some(words) = block.valid(row) else {
            // [R-DESTROY-2]
            if block.at(row).is_some_and(|words| self.table.rows().is_destroyed(words)) {
                findings.add(ProblemKind::TableDestroyed, row, "its trailer says that the table was destroyed");
                return Ok(findings);
            }
            let zeroed = block.at(row).is_some_and(|words| words.iter().all(|word| *word == 0));
            self.add_torn(row, zeroed, &mut findings).await?;
            return Ok(findings);
        };
        self.inspect_trailer(row, words, &mut findings);
        self.inspect_free_words(row, words, &mut findings);
        for index in self.table.rows().occupied_entries(words) {
            self.inspect_entry(block, words, EntryPosition { row, index }, &mut findings).await?;
        }
        self.attribute_moves(row, &mut findings).await?;
        Ok(findings)
    }

    /// Sets the cause of findings that a move or a split explains: a key or an extent is in two rows while it is moved,
    /// and a segment's rows differ in their level while it is split, under the locks of both. [R-COMMIT-1] [R-GROW-8]
    async fn attribute_moves(&mut self, row: RowId, findings: &mut Findings) -> Result<(), FabricError> {
        let moved = [ProblemKind::DuplicateKey, ProblemKind::ExtentShared, ProblemKind::RowLevel];
        if self.concurrency == Concurrency::Exclusive
            || !findings.problems.iter().any(|problem| moved.contains(&problem.kind))
        {
            return Ok(());
        }
        let Some((_, owner)) = self.holder(row).await? else { return Ok(()) };
        let cause = self.cause_of_change(owner).await?;
        let problems = findings.problems.iter_mut().filter(|problem| moved.contains(&problem.kind));
        problems.for_each(|problem| problem.cause = cause);
        Ok(())
    }

    /// Returns the cause of a half-written row whose lock `owner` holds: in tables with redo records, only a client
    /// whose record is sealed writes rows. 1 round trip. [R-COMMIT-1]
    async fn cause_of_change(&mut self, owner: OwnerId) -> Result<Cause, FabricError> {
        let (table, cause) = (self.table, self.cause(owner));
        let slot = owner.slot().filter(|slot| *slot < table.config().max_clients);
        let (true, Some(slot)) = (cause != Cause::Damage && table.config().rules.commit_records, slot) else {
            return Ok(cause);
        };
        let mut word = [0];
        self.read(table.geometry().slot(slot).add_words(Seal::word(table.rows()) as u64), &mut word).await?;
        Ok(if Seal(word[0]).is_sealed() { cause } else { Cause::Damage })
    }

    /// Returns the lock of `row` and its present holder, if it is held. 2 round trips.
    async fn holder(&mut self, row: RowId) -> Result<Option<(LockId, OwnerId)>, FabricError> {
        let locks = self.table.locks();
        let mask = locks.mask(locks.lock_of(row));
        let mut word = [0];
        self.read(locks.addr(mask.word), &mut word).await?;
        let holder = locks.first_held(mask.word, word[0], mask.mask);
        if let Some((_, owner)) = holder {
            self.refresh_slot(owner).await?;
        }
        Ok(holder)
    }

    /// Adds the finding of a row that does not verify. [R-ROW-1]
    async fn add_torn(&mut self, row: RowId, zeroed: bool, findings: &mut Findings) -> Result<(), FabricError> {
        let holder = self.holder(row).await?;
        let what = match zeroed {
            true => "it is all zeros: it was never formatted, or its memory was lost",
            false => "its checksum does not match: it is half written, or damaged",
        };
        let who = match holder {
            Some((lock, owner)) if self.table.locks().has_owner_ids() => {
                format!("{lock} is held by {}", self.describe(owner))
            }
            Some((lock, _)) => format!("{lock} is held"),
            None => "no client is writing it".to_owned(),
        };
        // No writer leaves zeros. // [R-ROW-1]
        let cause = match holder.filter(|_| !zeroed) {
            Some((_, owner)) => self.cause_of_change(owner).await?,
            None => Cause::Damage,
        };
        findings.add_caused(ProblemKind::RowTorn, cause, row, format!("{what}; {who}"));
        Ok(())
    }

    fn inspect_trailer(&self, row: RowId, words: &[u64], findings: &mut Findings) {
        let (rows, config) = (self.table.rows(), self.table.config());
        let trailer = rows.trailer(words);
        findings.require(
            self.is_level_of(row, trailer.level()),
            ProblemKind::RowLevel,
            row,
            format_args!("its level is {}, but its segment has another", trailer.level()),
        );
        // [R-ROW-2]
        let version = u64::from(trailer.version().0);
        findings.require(
            version >> config.version_bits == 0,
            ProblemKind::RowVersion,
            row,
            format_args!("its {} does not fit in {} bits", trailer.version(), config.version_bits),
        );
        let beyond = trailer.occupancy() & !rows.occupancy(words);
        findings.require(
            beyond == 0,
            ProblemKind::OccupancyBits,
            row,
            format_args!("occupancy bits {beyond:#b} are set, but it has only {} entries", rows.entries()),
        );
        // [R-ROW-3]
        let allowed = if config.format.has_extents() { rows.occupancy(words) } else { 0 };
        let wrong = rows.extents(words) & !allowed;
        findings.require(
            wrong == 0,
            ProblemKind::TypeBits,
            row,
            format_args!("type bits {wrong:#b} are set, but these entries cannot refer to extents"),
        );
        // [R-LOCK-10]
        let (replaced, occupied) = (rows.replaced_number(words), rows.occupancy(words));
        findings.require(
            replaced == 0 || occupied >> (replaced - 1) & 1 != 0,
            ProblemKind::TypeBits,
            row,
            format_args!("entry {} is said to have been replaced, but it is free", replaced.wrapping_sub(1)),
        );
    }

    fn inspect_free_words(&self, row: RowId, words: &[u64], findings: &mut Findings) {
        let rows = self.table.rows();
        let occupied = rows.occupancy(words);
        for index in (0..rows.entries()).filter(|index| occupied >> index & 1 == 0) {
            let zeroed = rows.entry(words, index).iter().all(|word| *word == 0);
            let text = "it is free, but not zero";
            findings.require(zeroed, ProblemKind::FreeEntryNotZero, EntryPosition { row, index }, text);
        }
        let padding = &words[rows.entries() * rows.entry_words()..rows.trailer_word()];
        let zeroed = padding.iter().all(|word| *word == 0);
        findings.require(zeroed, ProblemKind::PaddingNotZero, row, "its padding is not zero");
    }
}
