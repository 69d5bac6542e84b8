//! A watch on the splits of a table that grows: what each costs its client, how long it holds its locks, and how long
//! others wait for them.
//!
//! The protocol does not know of it: it sees the events of a simulation. A client that splits a segment asks for memory
//! for rows, takes the locks of the segment and of its new half, reads the segment, and commits. If the rows that it
//! reads say that another client was faster, it gives the locks back. [R-GROW-7] [R-GROW-8]
//!
//! Invariant: a client holds no lock when it asks for memory, so all locks that it takes until it has read the segment
//! are those of the split.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Space, Traffic, Verb};
use guira_fabric_sim::{Event, EventKind, Part};
use guira_layout::{RowId, Segments};
use guira_rcuckoo::Table;
use rustc_hash::FxHashMap;

use crate::driver::{Distribution, OperationTally};

/// What the splits of a run cost.
#[derive(Clone, Debug, Default)]
pub struct SplitStats {
    /// Splits: their batches, and the time from the request for memory to the reply to the commit.
    pub splits: OperationTally,
    /// Splits that were given up under their locks, because another client had been faster.
    pub in_vain: u64,
    /// The time from the first lock that a split took to the last that it released, in nanoseconds.
    pub held_ns: Distribution,
    /// The time for which each change that waited for a lock, or for a permit to ask for it, waited while a split held
    /// that lock, also in vain, in nanoseconds.
    pub waits_ns: Distribution,
}

/// The watch of one run.
pub(super) struct SplitWatch {
    table: Arc<Table>,
    segments: Segments,
    region: HeapRegion,
    /// The splits that clients are trying.
    attempts: FxHashMap<u32, Attempt>,
    /// The times for which splits held the locks of a word, in the order in which they ended.
    holds: FxHashMap<u64, Vec<(u64, u64)>>,
    stats: SplitStats,
}

/// A split that a client is trying.
struct Attempt {
    begun_ns: u64,
    traffic: Traffic,
    stage: Stage,
    /// The words of which it holds locks, and since when.
    held: BTreeMap<u64, u64>,
    /// The time at which it took the first of the locks that it holds.
    held_since_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It takes locks, or gives some back to begin again.
    Acquires,
    /// It has read the segment.
    HasRead,
    /// It has written a word of the map, which stands behind the rows.
    HasWritten,
    /// It has released its locks.
    HasReleased,
}

impl SplitWatch {
    /// Creates the watch of a run in `region`; `None` if the table does not grow.
    pub(super) fn new(table: &Arc<Table>, region: &HeapRegion) -> Option<SplitWatch> {
        let segments = Segments::of(table.config()).filter(Segments::grows)?;
        Some(SplitWatch {
            table: Arc::clone(table),
            segments,
            region: region.clone(),
            attempts: FxHashMap::default(),
            holds: FxHashMap::default(),
            stats: SplitStats::default(),
        })
    }

    /// Returns what the splits cost.
    pub(super) fn take(&mut self) -> SplitStats {
        std::mem::take(&mut self.stats)
    }

    /// Counts a batch that `client` sends.
    pub(super) fn see_batch(&mut self, client: u32, batch: &[Verb<'_>]) {
        if let Some(attempt) = self.attempts.get_mut(&client) {
            attempt.traffic.count(batch);
        }
    }

    /// Processes an event.
    pub(super) fn see(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Reserved(addr, _) if self.is_row(*addr) => self.begin(event),
            EventKind::Swap(part) | EventKind::Add(part) if part.addr.space() == Space::Device => {
                self.note_locks(event, part);
            }
            EventKind::Read(part) if self.is_segment(part) => self.enter(event, Stage::HasRead),
            EventKind::Write(part) if self.is_map_word(part.addr) => self.enter(event, Stage::HasWritten),
            EventKind::Replied => self.end(event),
            _ => {}
        }
    }

    fn begin(&mut self, event: &Event) {
        let attempt = Attempt {
            begun_ns: event.at_ns,
            traffic: Traffic::default(),
            stage: Stage::Acquires,
            held: BTreeMap::new(),
            held_since_ns: 0,
        };
        self.attempts.insert(event.client, attempt);
    }

    fn enter(&mut self, event: &Event, stage: Stage) {
        if let Some(attempt) = self.attempts.get_mut(&event.client) {
            attempt.stage = stage;
        }
    }

    /// Notes which locks of a word a client has taken or released.
    fn note_locks(&mut self, event: &Event, part: &Part) {
        let Some(attempt) = self.attempts.get_mut(&event.client) else { return };
        let word = part.addr.word();
        let now = self.region.memory().device[word as usize].load(Ordering::Relaxed);
        let held = |value| self.table.locks().all_held(word, value).count();
        if held(now) > held(part.word) {
            if attempt.held.is_empty() {
                attempt.held_since_ns = event.at_ns;
            }
            attempt.held.entry(word).or_insert(event.at_ns);
            return;
        }
        let Some(since_ns) = attempt.held.remove(&word).filter(|_| held(now) < held(part.word)) else { return };
        self.holds.entry(word).or_default().push((since_ns, event.at_ns));
        if !attempt.held.is_empty() {
            return;
        }
        match attempt.stage {
            Stage::Acquires | Stage::HasReleased => {}
            Stage::HasRead => {
                self.stats.in_vain += 1;
                self.attempts.remove(&event.client);
            }
            Stage::HasWritten => {
                self.stats.held_ns.record(event.at_ns - attempt.held_since_ns);
                attempt.stage = Stage::HasReleased;
            }
        }
    }

    /// Counts a split whose commit was answered.
    fn end(&mut self, event: &Event) {
        let is_done = |attempt: &Attempt| attempt.stage == Stage::HasReleased;
        if !self.attempts.get(&event.client).is_some_and(is_done) {
            return;
        }
        if let Some(attempt) = self.attempts.remove(&event.client) {
            let took = Duration::from_nanos(event.at_ns - attempt.begun_ns);
            self.stats.splits.success(&attempt.traffic, Some(took));
        }
    }

    /// Notes that an operation of `client` has ended, and with it a split that it was trying.
    pub(super) fn end_operation(&mut self, client: u32) {
        self.attempts.remove(&client);
    }

    /// Notes that a change of `key` waited for a lock during a part of `ns`.
    pub(super) fn note_wait(&mut self, key: &[u8], ns: Range<u64>) {
        let placement = self.table.placement();
        let digest = placement.digest(key);
        let pair = placement.rows_beside(self.segments.first_row(self.segment_of(digest)), digest);
        let waited_ns: [u64; 2] = [pair.first, pair.second].map(|row| {
            let locks = self.table.locks();
            let word = locks.mask(locks.lock_of(row)).word;
            let holds = self.holds.get(&word).into_iter().flatten().rev();
            let meets = holds.take_while(|(_, until_ns)| *until_ns > ns.start);
            meets.map(|(since_ns, until_ns)| (*until_ns).min(ns.end).saturating_sub((*since_ns).max(ns.start))).sum()
        });
        let waited_ns = waited_ns[0].max(waited_ns[1]);
        if waited_ns > 0 {
            self.stats.waits_ns.record(waited_ns);
        }
    }

    /// Returns the segment that has the key with this digest, as the table's map says.
    fn segment_of(&self, digest: u64) -> u64 {
        let position = Segments::position(digest);
        let mut segment = self.segments.first_of(position);
        // Ends: each segment was split from the one before. // [R-GROW-3]
        while let Some(next) = self.level(segment).and_then(|level| self.segments.next(segment, level, position)) {
            segment = next;
        }
        segment
    }

    fn level(&self, segment: u64) -> Option<u8> {
        let word = self.table.geometry().map_word(segment).word() as usize;
        self.segments.level_of(segment, self.region.memory().main[word].load(Ordering::Relaxed))
    }

    fn is_row(&self, addr: Addr) -> bool {
        let geometry = self.table.geometry();
        addr >= geometry.row(RowId(0)) && addr < geometry.row(RowId(self.table.config().rows))
    }

    /// Whether a verb touched a whole segment.
    fn is_segment(&self, part: &Part) -> bool {
        u64::from(part.words) == self.segments.rows() * self.table.rows().row_words() as u64
    }

    fn is_map_word(&self, addr: Addr) -> bool {
        let geometry = self.table.geometry();
        addr >= geometry.map_word(0) && addr <= geometry.map_word(self.segments.most() - 1)
    }
}
