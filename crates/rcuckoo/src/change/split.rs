//! Splits of full segments, by the insert that finds no room in one: half of the keys of a segment, the *parent*, go to
//! a new one, its *child*, under the locks of both. [R-GROW-8]
//!
//! Invariant: from the seal of the record to the release of the locks no key of either segment can change. So a row of
//! the parent is as current before it is written as it is afterwards, and its higher level is seen only once every row
//! of the child is whole.

use guira_fabric::{Addr, FabricError, Lane, Verb, post, reserve};
use guira_layout::{RowId, Seal, SegmentSplit, Segments};

use crate::locks::batch::clear_verbs;
use crate::locks::journal::Flight;
use crate::locks::lock_set;
use crate::table::destroy::is_marked_destroyed;
use crate::{Client, DamagedItem, ErrorKind, MAX_LOCKS, RowPair, Table};

/// Rows that an insert visits in vain before it splits its segment: docs/decisions/0035 has the measurements.
/// [R-GROW-6]
pub(super) const SPLIT_AFTER_ROWS: usize = 8;
/// Maximum number of segments that one insert splits. It needs more than one only if nearly all keys of the first one
/// are in one half of its interval.
pub(super) const MAX_SPLITS: u32 = 16;

/// The result of [`Client::split_segment`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    /// The segment was split, by this client or by another one. No lock is held.
    Done,
    /// The segment cannot be split any more.
    Impossible,
}

impl Client {
    /// Whether an insert that finds no room splits its segment. [R-GROW-6]
    pub(super) fn may_split(&self) -> bool {
        self.progress.splits_left > 0
    }

    /// Splits the segment of `pair`, whose rows are in the window as they were sampled without locks, unless it has
    /// been split since. Round trips: those of [`Client::split_as`].
    #[cold]
    pub(super) async fn split_segment(&mut self, lane: &mut dyn Lane, pair: RowPair) -> Result<Split, ErrorKind> {
        let table = std::sync::Arc::clone(&self.table);
        let Some(segments) = table.growing_segments() else { return Ok(Split::Impossible) };
        self.progress.splits_left -= 1;
        let window = &self.work.window;
        let whole = [pair.first, pair.second]
            .into_iter()
            .find_map(|row| window.row(row).filter(|words| table.rows().verify(row, words).is_ok()));
        // Rows that are being written: the search begins again.
        let Some(words) = whole else { return Ok(Split::Done) };
        let level = table.rows().trailer(words).level();
        let Some(split) = SegmentSplit::of(segments, segments.of_row(pair.first), level) else {
            self.progress.splits_left = 0;
            return Ok(Split::Impossible);
        };
        match self.split_as(lane, segments, &split).await {
            Ok(_) => Ok(Split::Done),
            // Memory, a lock or a row of the segment, which the insert itself may not need.
            Err(reason @ (ErrorKind::NoMemory(_) | ErrorKind::Busy { .. } | ErrorKind::Corrupt { .. })) => {
                Ok(self.give_up_splitting(reason))
            }
            Err(error) => Err(error),
        }
    }

    /// Splits a segment. Returns false if it has another level, because another client has split it. If there is no
    /// memory, or a lock or a row prevents it, nothing was changed, and no lock is held. Round trips without contention:
    /// 3, or 2 in vain. Source: R-GROW-7, R-GROW-8.
    pub(super) async fn split_as(
        &mut self,
        lane: &mut dyn Lane,
        segments: &Segments,
        split: &SegmentSplit,
    ) -> Result<bool, ErrorKind> {
        let table = std::sync::Arc::clone(&self.table);
        let is_mapped = self.reader.segments.is_as_deep_as(split.child);
        match reserve_child(lane, &table, segments, split, is_mapped).await {
            Err(refused @ FabricError::NoMemory { .. }) => return Err(ErrorKind::NoMemory(Box::new(refused))),
            reserved => reserved?,
        }
        let locks = lock_set(&table, locked_rows(segments, split, table.config().rows_per_lock));
        let read = match self.acquire_many(lane, &locks).await {
            Ok(()) => self.read_parent(lane, segments, split).await,
            Err(error) => Err(error),
        };
        if let Err(error @ (ErrorKind::Busy { .. } | ErrorKind::Corrupt { .. })) = read {
            self.release_held(lane).await?;
            return Err(error);
        }
        let is_due = read?;
        if is_due {
            self.fill_child(segments, split);
            self.commit_split(lane, segments, split).await?;
            self.reader.segments.note_split(segments, split);
            self.reader.counters.splits += 1;
        }
        self.release_held(lane).await?;
        Ok(is_due)
    }

    /// Notes why the change splits no segment: it fails for this reason, if there is no room without a split.
    fn give_up_splitting(&mut self, reason: ErrorKind) -> Split {
        self.progress.unsplit = Some(reason);
        self.progress.splits_left = 0;
        Split::Impossible
    }

    /// Returns the error of an insert that has found no room: the reason why it could not split its segment, if there
    /// is one.
    pub(super) fn why_full(&mut self, error: ErrorKind) -> ErrorKind {
        match (error, self.progress.unsplit.take()) {
            (ErrorKind::Full { .. }, Some(reason)) => reason,
            (error, _) => error,
        }
    }

    /// Learns from the rows of `pair` in the window, as they were sampled without locks, where the key with this digest
    /// has gone to. Returns whether it has left its segment.
    pub(super) fn has_left(&mut self, pair: RowPair, digest: u64) -> Result<bool, ErrorKind> {
        let (table, window) = (&self.table, &self.work.window);
        let mut leads_on = [pair.first, pair.second].into_iter().filter_map(|row| {
            let words = window.row(row).filter(|words| table.rows().verify(row, words).is_ok())?;
            let trailer = table.rows().trailer(words).0;
            table.placement().moved_to(row, trailer, digest).map(|_| (row, trailer))
        });
        let Some((row, trailer)) = leads_on.next() else { return Ok(false) };
        table.placement().learn(&mut self.reader.segments, row, trailer, digest).map(|()| true)
    }

    /// Reads the rows of the segment that is split, under its locks. Returns whether they have its level: otherwise
    /// another client has split it. 1 round trip.
    async fn read_parent(
        &mut self,
        lane: &mut dyn Lane,
        segments: &Segments,
        split: &SegmentSplit,
    ) -> Result<bool, ErrorKind> {
        let (table, first) = (&self.table, segments.first_row(split.segment));
        let row_words = table.rows().row_words();
        let words = &mut self.work.segments[0];
        words.resize(segments.rows() as usize * row_words, 0);
        post(lane, [table.read_row(first, words)]).await?;
        let rows = (first.0..).map(RowId).zip(words.chunks_exact(row_words));
        let torn = rows.clone().find(|(row, words)| table.rows().verify(*row, words).is_err());
        if let Some((row, _)) = torn {
            // A lock that was won before the table was destroyed guards rows that are no longer valid. // [R-DESTROY-2]
            return Err(match is_marked_destroyed(lane, table).await? {
                true => ErrorKind::Destroyed,
                false => ErrorKind::Corrupt { item: DamagedItem::Row(row) },
            });
        }
        let is_split = |words: &[u64]| table.rows().trailer(words).level() != split.level;
        match rows.clone().find(|(_, words)| is_split(words)) {
            None => Ok(true),
            // Under their locks, all rows have one level.
            Some((row, _)) if !rows.clone().all(|(_, words)| is_split(words)) => {
                Err(ErrorKind::Corrupt { item: DamagedItem::Row(row) })
            }
            Some(_) => Ok(false),
        }
    }

    /// Divides the rows that were read between the segment and its child.
    fn fill_child(&mut self, segments: &Segments, split: &SegmentSplit) {
        let (table, key) = (&self.table, &mut self.paths.search.key);
        let (rows, row_words) = (table.rows(), table.rows().row_words());
        let [parent, child] = &mut self.work.segments;
        child.resize(parent.len(), 0);
        let firsts = [split.segment, split.child].map(|segment| segments.first_row(segment).0);
        let images = parent.chunks_exact_mut(row_words).zip(child.chunks_exact_mut(row_words));
        for (place, (words, child_words)) in (0..).zip(images) {
            let [row, child_row] = firsts.map(|first| RowId(first + place));
            rows.split_row((row, words), (child_row, child_words), |words, index| {
                table.placement().has_left(row, split.level + 1, table.entry_digest(words, index, key))
            });
        }
    }

    /// Commits the split, posted as `child's rows | sealed record | parent's rows | map | retire | release`. 1 round
    /// trip. The parent's rows do not change any key, so this has no linearization point. [R-GROW-8] [R-GROW-12]
    async fn commit_split(
        &mut self,
        lane: &mut dyn Lane,
        segments: &Segments,
        split: &SegmentSplit,
    ) -> Result<(), ErrorKind> {
        let (table, geometry, masked_cas) = (&self.table, self.table.geometry(), lane.caps().masked_cas);
        self.reader.counters.records += 1;
        let sequence = self.reader.counters.sequence();
        let [first, child_first] = [split.segment, split.child].map(|segment| segments.first_row(segment));
        self.work.record.seal_split(table.rows(), first, *split, sequence);
        let (_, record) = self.work.record.parts();
        let slot_at = |word: usize| Addr::main_word(self.slot_word + word as u64);
        let (retired, depth) = ([Seal::retired(sequence).0], [segments.map_word(split.level + 1)]);
        let [parent, child] = &self.work.segments;
        let retire = Verb::Write { addr: slot_at(Seal::word(table.rows())), words: &retired };
        let mut found = [0; MAX_LOCKS];
        let mut batch = self.work.buffer.take();
        batch.extend([
            Verb::Write { addr: geometry.row(child_first), words: child },
            Verb::Write { addr: slot_at(record.word), words: record.words },
        ]);
        batch.extend(completion(table, split, (first, parent), &depth, retire));
        batch.extend(clear_verbs(table, self.owner, masked_cas, &self.journal.held, &mut found));
        self.journal.flight = Flight::Release;
        let posted = post(lane, &mut batch[..]).await;
        self.work.buffer.keep(batch);
        match posted {
            Ok(()) => self.journal.release_completed(),
            Err(source) => {
                self.journal.failed(&source);
                return Err(ErrorKind::Fabric { source });
            }
        }
        Ok(())
    }
}

/// Returns the verbs that complete a split whose record is sealed, of its client or of who recovers it: `parent's rows
/// | map | retire`, where `depth` is the word of both segments in the map. [R-GROW-8] [R-GROW-9] [R-GROW-12]
pub(crate) fn completion<'v>(
    table: &Table,
    split: &SegmentSplit,
    (first, parent): (RowId, &'v [u64]),
    depth: &'v [u64],
    retire: Verb<'v>,
) -> [Verb<'v>; 4] {
    let geometry = table.geometry();
    [
        Verb::Write { addr: geometry.row(first), words: parent },
        Verb::Write { addr: geometry.map_word(split.child), words: depth },
        Verb::Write { addr: geometry.map_word(split.segment), words: depth },
        retire,
    ]
}

/// Makes memory for the rows of a split's child, before any lock is taken, and for its word of the map, unless that
/// `is_mapped`: has memory already. [R-GROW-7]
async fn reserve_child(
    lane: &mut dyn Lane,
    table: &Table,
    segments: &Segments,
    split: &SegmentSplit,
    is_mapped: bool,
) -> Result<(), FabricError> {
    let parts = table.geometry().segment_bytes(segments, split.child);
    for bytes in parts.into_iter().take(if is_mapped { 1 } else { 2 }) {
        reserve(lane, bytes).await?;
    }
    Ok(())
}

/// Returns one row under each lock of both segments of a split.
fn locked_rows(segments: &Segments, split: &SegmentSplit, rows_per_lock: u32) -> impl Iterator<Item = RowId> {
    let (segments, rows_per_lock) = (*segments, rows_per_lock as usize);
    [split.segment, split.child].into_iter().flat_map(move |segment| {
        let first = segments.first_row(segment).0;
        (first..first + segments.rows()).step_by(rows_per_lock).map(RowId)
    })
}
