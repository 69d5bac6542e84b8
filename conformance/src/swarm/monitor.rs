//! A monitor of a run's events: it checks the table's invariants whenever no lock is held, and notes who recovers which
//! slot.
//!
//! While no lock is held, no client is in the middle of a change, so every row must verify, every key must stand once,
//! and every extent must be whole. After each step that leaves no lock held, [`check_rows`] checks the rows written
//! since the previous check, the extents their entries refer to, and the rows where other copies of their keys could
//! be; once in [`WHOLE_EVERY`] such steps [`check_table`] checks everything. Unwritten rows have not changed, so this
//! finds what a check of every row after every step would find, except for an extent that is overwritten or whose chunk
//! is taken while the row that refers to it is not written: that is found by the next check of everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use guira_check::{CheckOptions, Concurrency, ProblemKind, check_rows, check_table};
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Profile, Region, Space};
use guira_fabric_sim::{Event, EventKind, Part};
use guira_layout::{RowId, Segments, SlotState, SlotWord};

use crate::{Bench, block_on};

/// Checks of rows between two checks of the whole table.
const WHOLE_EVERY: u64 = 64;
/// Segments that others split while a client is stopped that has slept for long.
const LONG_SLEEP_SPLITS: usize = 10;

/// Counts of a monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonitorStats {
    /// Steps that left no lock held, after rows were written.
    pub unlocked_steps: u64,
    /// Rows checked after these steps.
    pub rows: u64,
    /// Checks of the whole table.
    pub whole: u64,
    /// Clients that died while they recovered another one.
    pub recoverer_deaths: u64,
    /// Batches whose remainder was dropped because another client wanted their client's slot.
    pub fenced: u64,
    /// Segments split.
    pub splits: u64,
    /// Clients that died in the middle of a split, or of completing one.
    pub split_deaths: u64,
    /// Clients that were stopped while others split at least ten segments, and went on.
    pub long_sleepers: u64,
    /// Reservations that the memory node refused.
    pub refused_memory: u64,
    /// Segments split after a refused reservation.
    pub late_splits: u64,
}

/// The splits of a run, as far as the monitor has seen them.
#[derive(Default)]
struct Splits {
    /// Segments that exist, as the table's map says.
    mapped: BTreeSet<u64>,
    /// Clients that have written a part of a whole segment, and have not been answered since.
    splitters: BTreeSet<u32>,
    /// For each client that is stopped, when it goes on, and the number of segments when it was stopped.
    sleepers: BTreeMap<u32, (u64, usize)>,
    /// The segments that have memory.
    backed: BTreeSet<u64>,
}

/// The monitor of one run.
pub struct Monitor {
    bench: Bench,
    /// Locks held in each word.
    held: Vec<u32>,
    held_total: u64,
    written: BTreeSet<u64>,
    /// The client that recovers each slot.
    recoverers: BTreeMap<u16, u32>,
    splits: Splits,
    /// Whether memory was damaged, after which nothing can be expected.
    is_damaged: bool,
    stats: MonitorStats,
    problem: Option<String>,
}

impl Monitor {
    /// Creates a monitor of `bench`, where no lock is held.
    pub fn new(bench: &Bench) -> Monitor {
        let segments = Segments::of(bench.table.config());
        let firsts = bench.rows();
        let firsts = firsts.ranges().map(|range| RowId(range.start));
        let mapped = segments.map_or_else(BTreeSet::new, |segments| firsts.map(|row| segments.of_row(row)).collect());
        Monitor {
            splits: Splits { backed: mapped.clone(), mapped, ..Splits::default() },
            bench: Bench { region: bench.region.with_caps(Profile::Shm.caps()), table: Arc::clone(&bench.table) },
            held: vec![0; bench.table.locks().words() as usize],
            held_total: 0,
            written: BTreeSet::new(),
            recoverers: BTreeMap::new(),
            is_damaged: false,
            stats: MonitorStats::default(),
            problem: None,
        }
    }

    /// Returns the counts and the first violation.
    pub fn result(&self) -> (MonitorStats, Option<String>) {
        (self.stats, self.problem.clone())
    }

    /// Processes an event, and checks the table if it is due.
    pub fn see(&mut self, event: &Event) {
        if self.bench.table.config().grows() {
            self.see_splits(event);
        }
        match &event.kind {
            EventKind::Write(part) | EventKind::Swap(part) | EventKind::Add(part) => {
                self.note_change(event, part);
                if self.held_total == 0 && !self.written.is_empty() {
                    self.check(event);
                }
            }
            EventKind::Died => {
                let recovered = self.recoverers.values().filter(|client| **client == event.client);
                self.stats.recoverer_deaths += u64::from(recovered.count() > 0);
            }
            EventKind::Fenced => self.stats.fenced += 1,
            EventKind::Restarted | EventKind::Flipped(..) => self.is_damaged = true,
            _ => {}
        }
    }

    /// Counts splits, and who dies in one or sleeps while others split.
    fn see_splits(&mut self, event: &Event) {
        let (table, splits) = (&self.bench.table, &mut self.splits);
        let segment_rows = Segments::of(table.config()).map_or(table.config().rows, |segments| segments.rows());
        if let Some((until_ns, mapped)) = splits.sleepers.get(&event.client).copied()
            && event.at_ns >= until_ns
        {
            splits.sleepers.remove(&event.client);
            self.stats.long_sleepers += u64::from(splits.mapped.len() >= mapped + LONG_SLEEP_SPLITS);
        }
        match &event.kind {
            EventKind::Write(part) if part.addr.space() == Space::Main => {
                let (geometry, word, row_words) = (table.geometry(), part.addr.word(), table.rows().row_words() as u64);
                let (map, rows) = (geometry.map_word(0).word(), geometry.row(RowId(0)).word());
                if (map..rows).contains(&word) {
                    let is_new = u64::from(splits.mapped.insert(word - map));
                    self.stats.splits += is_new;
                    self.stats.late_splits += if self.stats.refused_memory > 0 { is_new } else { 0 };
                } else if (rows..rows + row_words * table.config().rows).contains(&word)
                    && u64::from(part.words) > row_words
                {
                    splits.splitters.insert(event.client);
                    let segment = (word - rows) / (row_words * segment_rows);
                    if !splits.backed.contains(&segment) {
                        // [R-GROW-7]
                        let what = format!("\"{event}\" writes segment {segment}, which has no memory");
                        self.problem.get_or_insert(what);
                    }
                }
            }
            EventKind::Reserved(addr, _) => {
                let word = addr.word().checked_sub(table.geometry().row(RowId(0)).word());
                splits.backed.extend(word.map(|word| word / (table.rows().row_words() as u64 * segment_rows)));
            }
            EventKind::Refused(..) => self.stats.refused_memory += 1,
            EventKind::Replied | EventKind::Disconnected => _ = splits.splitters.remove(&event.client),
            EventKind::Died => {
                self.stats.split_deaths += u64::from(splits.splitters.remove(&event.client));
                splits.sleepers.remove(&event.client);
            }
            EventKind::Stalled(for_ns) => {
                splits.sleepers.insert(event.client, (event.at_ns + for_ns, splits.mapped.len()));
            }
            _ => {}
        }
    }

    fn note_change(&mut self, event: &Event, part: &Part) {
        let (table, word) = (Arc::clone(&self.bench.table), part.addr.word());
        if part.addr.space() == Space::Device {
            if let Some(held) = self.held.get_mut(word as usize) {
                let value = self.bench.region.memory().device[word as usize].load(Ordering::Relaxed);
                let now = table.locks().all_held(word, value).count() as u32;
                self.held_total = self.held_total + u64::from(now) - u64::from(*held);
                *held = now;
            }
            return;
        }
        let (first, row_words) = (table.geometry().row(RowId(0)).word(), table.rows().row_words() as u64);
        let end = first + row_words * table.config().rows;
        if word >= first && word < end {
            self.written.insert((word - first) / row_words);
        } else if let (EventKind::Swap(_), Some(slot)) = (&event.kind, self.slot_at(part.addr)) {
            let value = self.bench.region.memory().main[word as usize].load(Ordering::Relaxed);
            match SlotWord::decode(value).map(|word| word.state) {
                Some(SlotState::Recovering) => self.recoverers.insert(slot, event.client),
                _ => self.recoverers.remove(&slot),
            };
        }
    }

    /// Returns the slot whose state word is at `addr`.
    fn slot_at(&self, addr: Addr) -> Option<u16> {
        let (table, words) = (&self.bench.table, self.bench.table.geometry().slot_words() as u64);
        let from = addr.word().checked_sub(table.geometry().slot(0).word())?;
        let slot = u16::try_from(from / words).ok().filter(|slot| *slot < table.config().max_clients)?;
        (from % words == SlotWord::WORD as u64).then_some(slot)
    }

    fn check(&mut self, event: &Event) {
        let mut rows: Vec<RowId> = std::mem::take(&mut self.written).into_iter().map(RowId).collect();
        if self.is_damaged || self.problem.is_some() {
            return;
        }
        if self.bench.table.config().grows() {
            // Rows that a client wrote which died before it had sealed the record of its split are those of no segment.
            let list = self.bench.rows();
            rows.retain(|row| list.ranges().any(|range| range.contains(&row.0)));
        }
        self.stats.unlocked_steps += 1;
        self.stats.rows += rows.len() as u64;
        let (mut lane, table) = (self.bench.region.lane(), &self.bench.table);
        let problems = if self.stats.unlocked_steps.is_multiple_of(WHOLE_EVERY) {
            self.stats.whole += 1;
            let options = CheckOptions { concurrency: Concurrency::Exclusive, ..CheckOptions::default() };
            let report = block_on(check_table(&mut lane, table, &options, &mut |_| ())).expect("the heap reads");
            // Clients may be in the middle of recoveries, whose slots and chunks are between two owners.
            let under_way = [ProblemKind::UnfinishedRecovery, ProblemKind::ChunkOwner];
            report.problems.into_iter().filter(|problem| !under_way.contains(&problem.kind)).collect()
        } else {
            block_on(check_rows(&mut lane, table, &rows)).expect("the heap reads")
        };
        if !problems.is_empty() {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            self.problem =
                Some(format!("no lock is held after \"{event}\", but the table has problems: {}", lines.join("; ")));
        }
    }
}
