//! The checks at the end of a run, once no client works and all dead ones are recovered: the table is sound, no lock is
//! held, no record is lost, and what it holds fits the histories.

use std::sync::Arc;

use guira_check::{CheckOptions, Concurrency, check_table};
use guira_fabric::heap::HeapLane;
use guira_fabric::memory::Ordering;
use guira_fabric::{FabricError, Profile, Region};
use guira_layout::{EntryKind, RowId, SlotState, parse_extent};
use guira_rcuckoo::{ClientConfig, Reader, RowList, SlotInfo, read_extent, sample_rows, slots};
use rustc_hash::FxHashMap;

use super::filled::ready;
use super::load::Shared;
use super::run::Audit;
use super::watch::Content;

/// Rows that are sampled together.
const ROWS_TOGETHER: u64 = 64;
/// Longest wait for a row that does not verify, in nanoseconds: no client is left that could complete it.
const DEADLINE_NS: u64 = 100_000;

/// Checks the table, and adds what is wrong to the run's violations. Where dead clients are repaired, as printed, their
/// locks and half-written rows stay until another client wants them: these are not checked then.
pub(super) fn audit(shared: &Shared) {
    let stays = shared.filled.table().is_repairable() && shared.work.stats.borrow().deaths > 0;
    check_slots(shared);
    if !stays {
        check_locks(shared);
    }
    match shared.run.audit {
        Audit::Whole => {
            if !stays {
                check_rows(shared);
            }
            check_records(shared);
        }
        Audit::Touched => check_touched(shared),
    }
    shared.work.check_histories();
}

/// Returns a lane that executes in place, outside the simulation.
fn lane(shared: &Shared) -> HeapLane {
    shared.filled.region().with_caps(Profile::Shm.caps()).lane()
}

/// Checks that no lock is held.
fn check_locks(shared: &Shared) {
    let (table, mut stats) = (shared.filled.table(), shared.work.stats.borrow_mut());
    for (word, value) in (0..).zip(shared.filled.region().memory().device) {
        let value = value.load(Ordering::Relaxed);
        if let Some((lock, owner)) = table.locks().all_held(word, value).next() {
            stats.violation(|| format!("at the end: {lock} is held by {owner}"));
        }
    }
}

/// Checks that no slot is in use.
fn check_slots(shared: &Shared) {
    let mut stats = shared.work.stats.borrow_mut();
    match ready(slots(&mut lane(shared), shared.filled.table())) {
        Ok(slots) => {
            for slot in slots.into_iter().filter(|slot| !is_free(slot)) {
                stats.violation(|| format!("at the end: slot {} is in use", slot.slot));
            }
        }
        Err(error) => stats.violation(|| format!("the slots cannot be read: {error}")),
    }
}

fn is_free(slot: &SlotInfo) -> bool {
    slot.word.is_some_and(|word| word.state == SlotState::Free)
}

/// Checks every row, entry and slot.
fn check_rows(shared: &Shared) {
    let options = CheckOptions { concurrency: Concurrency::Exclusive, ..CheckOptions::default() };
    let checked = ready(check_table(&mut lane(shared), shared.filled.table(), &options, &mut |_| ()));
    let mut stats = shared.work.stats.borrow_mut();
    match checked {
        Ok(report) => report.problems.iter().for_each(|problem| stats.violation(|| format!("at the end: {problem}"))),
        Err(error) => stats.violation(|| format!("the table cannot be checked: {error}")),
    }
}

/// Checks every record of the table. No key is there twice, so that untouched records are lost if there are too few.
fn check_records(shared: &Shared) {
    let (table, mut lane, mut words) = (shared.filled.table(), lane(shared), Vec::new());
    let mut scan = Scan::new(shared);
    let checked = ready(async {
        for range in RowList::read(&mut lane, table).await?.ranges() {
            for first in range.clone().step_by(ROWS_TOGETHER as usize) {
                let count = ROWS_TOGETHER.min(range.end - first) as usize;
                sample_rows(&mut lane, table, RowId(first), count, &mut words, |sample| {
                    table.rows().occupied_entries(sample.words).for_each(|entry| scan.see(sample.words, entry));
                })
                .await?;
            }
        }
        Ok::<(), FabricError>(())
    });
    match checked {
        Ok(()) => scan.finish(),
        Err(error) => shared.work.stats.borrow_mut().violation(|| format!("the rows cannot be read: {error}")),
    }
}

/// A scan of all entries.
struct Scan<'s> {
    shared: &'s Shared,
    /// Records that were written or watched, and whether they were seen.
    touched: FxHashMap<u64, bool>,
    /// Loaded records that were not touched, and were seen.
    untouched: u64,
    records: u64,
    /// A lane for extents.
    lane: HeapLane,
    extent: Vec<u64>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'s> Scan<'s> {
    fn new(shared: &'s Shared) -> Scan<'s> {
        let touched = shared.work.watch.borrow().touched().into_iter().map(|record| (record, false)).collect();
        let (lane, extent) = (lane(shared), Vec::new());
        Scan { shared, touched, untouched: 0, records: 0, lane, extent, key: Vec::new(), value: Vec::new() }
    }

    /// Checks an entry.
    fn see(&mut self, words: &[u64], entry: usize) {
        let records = self.shared.filled.records();
        self.read(words, entry);
        let Some(record) = records.record_of(&self.key) else {
            let what = || format!("key {:x?} is in the table, which no client stored", self.key);
            return self.shared.work.stats.borrow_mut().violation(what);
        };
        self.records += 1;
        match self.touched.get_mut(&record) {
            Some(is_seen) => *is_seen = true,
            None => self.untouched += u64::from(record < self.shared.filled.count()),
        }
        let content = records.serial_of(record, &self.value);
        check_content(self.shared, record, content, &self.value);
    }

    /// Sets `key` and `value` to those of an entry. Both stay empty if its extent does not verify.
    fn read(&mut self, words: &[u64], entry: usize) {
        let table = self.shared.filled.table();
        let rows = table.rows();
        self.key.clear();
        self.value.clear();
        if rows.entry_kind(words, entry) == EntryKind::Inline {
            rows.append_inline_key(words, entry, &mut self.key);
            rows.append_inline_value(words, entry, &mut self.value);
            return;
        }
        let extent = rows.extent_of(words, entry);
        if extent.mark_offset(table.config(), table.geometry()).is_some()
            && ready(read_extent(&mut self.lane, &extent, &mut self.extent)).is_ok()
            && let Ok(parsed) = parse_extent(&self.extent, &extent, rows.sums())
        {
            parsed.append_key(&mut self.key);
            parsed.append_value(&mut self.value);
        }
    }

    /// Checks that no record is missing.
    fn finish(self) {
        let loaded = self.shared.filled.count();
        let touched = self.shared.work.watch.borrow().touched();
        for record in touched.iter().filter(|record| !self.touched[record]) {
            check_content(self.shared, *record, None, &[]);
        }
        let absent = self.shared.filled.absent().len() as u64;
        let expected = loaded - absent - touched.range(..loaded).count() as u64;
        let mut stats = self.shared.work.stats.borrow_mut();
        stats.records_at_end = Some(self.records);
        if self.untouched != expected {
            stats.violation(|| format!("{} of {expected} records that nobody wrote are left", self.untouched));
        }
    }
}

/// Looks up the records that were written or watched.
fn check_touched(shared: &Shared) {
    let (table, mut lane) = (shared.filled.table(), lane(shared));
    let config = ClientConfig { deadline_ns: DEADLINE_NS, ..ClientConfig::for_table(table) };
    let mut reader = Reader::new(Arc::clone(table), config);
    let (mut key, mut value, records) = (Vec::new(), Vec::new(), shared.filled.records());
    let touched = shared.work.watch.borrow().touched();
    for record in touched {
        records.key_into(record, &mut key);
        value.clear();
        match ready(reader.get(&mut lane, &key, &mut value)) {
            Ok(found) => {
                let content = found.and_then(|_| records.serial_of(record, &value));
                check_content(shared, record, content, &value);
            }
            Err(error) => {
                shared.work.stats.borrow_mut().violation(|| format!("record {record} cannot be read: {error}"));
            }
        }
    }
}

/// Checks what a record has at the end; nothing if it has no value, or none that any write stored.
fn check_content(shared: &Shared, record: u64, content: Content, value: &[u8]) {
    let mut watch = shared.work.watch.borrow_mut();
    let is_damaged = content.is_none() && !value.is_empty();
    if is_damaged || !watch.may_end_with(record, content) {
        let what = || format!("at the end record {record} has {value:x?}, which no last write stored");
        shared.work.stats.borrow_mut().violation(what);
    }
    watch.read_at_end(record, content);
}
