//! The values that each record may have, and the whole histories of some records.
//!
//! Invariants: a record that no write has touched has the value with which the table was filled, or none. A write is
//! certainly overwritten once another write of its record completed that began after it had ended; all others may be
//! the last. Serial numbers are unique in a run, so that a history's values are those of its writes.

use std::collections::BTreeSet;

use crate::baselines::Outcome;
use guira_check::history::{Answer, Call, Checked, History, HistoryError, PendingOperation, SEARCH_STEPS};
use guira_fabric::{Effect, SplitMix64};
use rustc_hash::FxHashMap;

use super::records::LOADED;

/// Ranks of the records whose whole histories are kept: the multiples of this number below [`POPULAR_RANKS`]. The most
/// popular records, with thousands of operations per millisecond, are left to the other checks.
const POPULAR_EVERY: u64 = 500;
const POPULAR_RANKS: u64 = 20_000;
/// One of this many of the other records has its history kept, too.
const OTHERS_EVERY: u64 = 1_024;
/// The process of the history that filled the table, and the one that reads it at the end.
const FILLER: u64 = 0;
const AUDITOR: u64 = u64::MAX;

/// The content of a record: the value of a write, or nothing.
pub(super) type Content = Option<u32>;

/// A content that may be a record's last.
#[derive(Clone, Copy, Debug)]
struct Write {
    content: Content,
    /// `u64::MAX` while the write is pending.
    ended_ns: u64,
}

/// A write that has begun.
#[derive(Debug)]
#[must_use = "a write that never ends is pending"]
pub(super) struct PendingWrite {
    record: u64,
    /// The serial number of its value.
    pub(super) serial: u32,
    began_ns: u64,
    pending: Option<PendingOperation>,
}

/// The kinds of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteKind {
    Update,
    Insert,
}

/// Everything that is known about the records of a run.
#[derive(Debug)]
pub(super) struct Watch {
    /// Records with which the table was filled.
    loaded: u64,
    /// Serial number of the last write that began.
    serial: u32,
    /// By record, the contents that may be its last; not of records without writes.
    last: FxHashMap<u64, Vec<Write>>,
    /// By client, its last write.
    latest: FxHashMap<u32, (u64, u32)>,
    history: History,
    /// Records in the history.
    watched: BTreeSet<u64>,
}

impl Watch {
    /// Creates the state of a table that holds records `0..loaded`.
    pub(super) fn new(loaded: u64) -> Watch {
        Watch {
            loaded,
            serial: LOADED,
            last: FxHashMap::default(),
            latest: FxHashMap::default(),
            history: History::new(),
            watched: BTreeSet::new(),
        }
    }

    /// Records the begin of a lookup by client `number`.
    pub(super) fn begin_read(&mut self, number: u32, record: u64, now_ns: u64) -> Option<PendingOperation> {
        is_watched(record).then(|| self.begin(number, record, Call::Get, now_ns))
    }

    /// Records the answer of a lookup.
    pub(super) fn end_read(&mut self, pending: Option<PendingOperation>, found: Content, now_ns: u64) {
        if let Some(pending) = pending {
            self.history.complete(pending, answer(found), after_fill(now_ns));
        }
    }

    /// Records that a lookup failed.
    pub(super) fn fail_read(&mut self, pending: Option<PendingOperation>) {
        if let Some(pending) = pending {
            self.history.fail(pending);
        }
    }

    /// Whether `found` can be in the table: it is loaded, or the value of a write that has begun.
    pub(super) fn is_known(&self, found: u32) -> bool {
        found <= self.serial
    }

    /// Records the begin of a write by client `number`.
    pub(super) fn begin_write(&mut self, number: u32, record: u64, kind: WriteKind, now_ns: u64) -> PendingWrite {
        self.serial = self.serial.checked_add(1).expect("a run has fewer than 2^32 writes");
        let serial = self.serial;
        let filled = self.filled(record);
        let writes = self.last.entry(record).or_insert_with(|| vec![Write { content: filled, ended_ns: 0 }]);
        writes.push(Write { content: Some(serial), ended_ns: u64::MAX });
        self.latest.insert(number, (record, serial));
        let call = match kind {
            WriteKind::Update => Call::Update(serial.into()),
            WriteKind::Insert => Call::Insert(serial.into()),
        };
        let pending = is_watched(record).then(|| self.begin(number, record, call, now_ns));
        PendingWrite { record, serial, began_ns: now_ns, pending }
    }

    /// Records that a write was carried out.
    pub(super) fn end_write(&mut self, write: PendingWrite, now_ns: u64) {
        let writes = self.last.get_mut(&write.record).expect("it has begun");
        // Contents whose writes had ended when this one began are certainly overwritten.
        writes.retain(|other| other.ended_ns >= write.began_ns.max(1));
        let own = writes.iter_mut().find(|other| other.content == Some(write.serial));
        own.expect("this write ends after it began").ended_ns = now_ns.max(1);
        if let Some(pending) = write.pending {
            self.history.complete(pending, Answer::Done, after_fill(now_ns));
        }
    }

    /// Records that a write changed nothing, with its outcome if it was answered.
    pub(super) fn end_without_effect(&mut self, write: PendingWrite, outcome: Option<Outcome>, now_ns: u64) {
        self.last.get_mut(&write.record).expect("it has begun").retain(|other| other.content != Some(write.serial));
        let Some(pending) = write.pending else { return };
        match outcome {
            Some(Outcome::Missing) => self.history.complete(pending, Answer::Missing, after_fill(now_ns)),
            Some(Outcome::Exists) => self.history.complete(pending, Answer::Exists, after_fill(now_ns)),
            _ => self.history.fail(pending),
        }
    }

    /// Records that a write failed with `effect`. Unless that is none, the write may have happened, now or later.
    pub(super) fn fail_write(&mut self, write: PendingWrite, effect: Effect, now_ns: u64) {
        if effect == Effect::None {
            self.end_without_effect(write, None, now_ns);
        }
    }

    /// Ends the pending write of a client, if any: its slot was recovered, and another client has it. Without this the
    /// most popular records would keep thousands of writes that may be their last.
    pub(super) fn end_write_of(&mut self, client: u32, now_ns: u64) {
        let Some((record, serial)) = self.latest.remove(&client) else { return };
        let writes = self.last.get_mut(&record).into_iter().flatten();
        for write in writes.filter(|write| write.content == Some(serial)) {
            write.ended_ns = write.ended_ns.min(now_ns.max(1));
        }
    }

    /// Returns the records that were written or whose history is kept, in order.
    pub(super) fn touched(&self) -> BTreeSet<u64> {
        self.last.keys().chain(&self.watched).copied().collect()
    }

    /// Whether the record may hold `content` at the end.
    pub(super) fn may_end_with(&self, record: u64, content: Content) -> bool {
        match self.last.get(&record) {
            Some(writes) => writes.iter().any(|write| write.content == content),
            None => content == self.filled(record),
        }
    }

    /// Records what a record holds at the end, if its history is kept.
    pub(super) fn read_at_end(&mut self, record: u64, content: Content) {
        if self.watched.contains(&record) {
            let pending = self.history.begin(AUDITOR, record, Call::Get, u64::MAX);
            self.history.complete(pending, answer(content), u64::MAX);
        }
    }

    /// Checks that the histories are linearizable.
    pub(super) fn check(&self) -> Result<Checked, HistoryError> {
        self.history.check(SEARCH_STEPS)
    }

    /// Returns what the record held before the run.
    fn filled(&self, record: u64) -> Content {
        (record < self.loaded).then_some(LOADED)
    }

    fn begin(&mut self, number: u32, record: u64, call: Call, now_ns: u64) -> PendingOperation {
        if self.watched.insert(record) && self.filled(record).is_some() {
            let filling = self.history.begin(FILLER, record, Call::Put(LOADED.into()), 0);
            self.history.complete(filling, Answer::Done, 0);
        }
        self.history.begin(u64::from(number) + 1, record, call, after_fill(now_ns))
    }
}

/// Whether the whole history of a record is kept. Records are numbered by rank.
fn is_watched(record: u64) -> bool {
    match record {
        0..POPULAR_RANKS => record > 0 && record.is_multiple_of(POPULAR_EVERY),
        _ => SplitMix64::mix(record).is_multiple_of(OTHERS_EVERY),
    }
}

/// The time of the histories, in which the table is filled at 0.
fn after_fill(now_ns: u64) -> u64 {
    now_ns.saturating_add(1)
}

fn answer(content: Content) -> Answer {
    content.map_or(Answer::Absent, |serial| Answer::Found(serial.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: u64 = POPULAR_EVERY;
    const NEW: u64 = POPULAR_RANKS + 1_000_000;

    fn watch() -> Watch {
        Watch::new(POPULAR_RANKS)
    }

    fn may_end(watch: &Watch, record: u64) -> Vec<Content> {
        (0..10).map(Some).chain([None]).filter(|content| watch.may_end_with(record, *content)).collect()
    }

    #[test]
    fn untouched_records_are_as_loaded() {
        assert_eq!(may_end(&watch(), RECORD), [Some(LOADED)]);
        assert_eq!(may_end(&watch(), NEW), [None]);
        assert!(watch().is_known(LOADED) && !watch().is_known(1));
    }

    #[test]
    fn only_the_last_writes_may_remain() {
        let mut watch = watch();
        let first = watch.begin_write(0, RECORD, WriteKind::Update, 10);
        assert_eq!(may_end(&watch, RECORD), [Some(0), Some(1)], "it is pending");
        watch.end_write(first, 20);
        assert_eq!(may_end(&watch, RECORD), [Some(1)]);
        // Two that overlap, in whichever order they took effect.
        let [second, third] =
            [(1, 30), (2, 35)].map(|(client, at)| watch.begin_write(client, RECORD, WriteKind::Update, at));
        watch.end_write(third, 40);
        assert_eq!(may_end(&watch, RECORD), [Some(2), Some(3)]);
        watch.end_write(second, 50);
        assert_eq!(may_end(&watch, RECORD), [Some(2), Some(3)]);
        // One that is lost with its client stays possible until it is overwritten after its slot was recovered.
        let _lost = watch.begin_write(3, RECORD, WriteKind::Update, 60);
        let over = watch.begin_write(1, RECORD, WriteKind::Update, 70);
        watch.end_write(over, 80);
        assert_eq!(may_end(&watch, RECORD), [Some(4), Some(5)]);
        watch.end_write_of(3, 90);
        let over = watch.begin_write(1, RECORD, WriteKind::Update, 100);
        watch.end_write(over, 110);
        assert_eq!(may_end(&watch, RECORD), [Some(6)]);
        let refused = watch.begin_write(2, RECORD, WriteKind::Update, 120);
        watch.fail_write(refused, Effect::None, 130);
        assert_eq!(may_end(&watch, RECORD), [Some(6)]);
    }

    #[test]
    fn inserted_records_may_be_missing_until_they_are_acknowledged() {
        let mut watch = watch();
        let insert = watch.begin_write(0, NEW, WriteKind::Insert, 10);
        assert_eq!(may_end(&watch, NEW), [Some(1), None]);
        watch.end_write(insert, 20);
        assert_eq!(may_end(&watch, NEW), [Some(1)]);
        let full = watch.begin_write(0, NEW + 1, WriteKind::Insert, 30);
        watch.end_without_effect(full, None, 40);
        assert_eq!(may_end(&watch, NEW + 1), [None]);
        assert_eq!(watch.touched(), BTreeSet::from([NEW, NEW + 1]));
    }

    /// A lookup that finds a value which an acknowledged update had replaced is not linearizable; nor is such an end.
    #[test]
    fn stale_values_are_found() {
        for (stale, at_end) in [(false, Some(1)), (true, Some(1)), (false, Some(0)), (false, None)] {
            let mut watch = watch();
            let write = watch.begin_write(0, RECORD, WriteKind::Update, 10);
            watch.end_write(write, 20);
            let read = watch.begin_read(1, RECORD, 30);
            watch.end_read(read, Some(u32::from(!stale)), 40);
            watch.read_at_end(RECORD, at_end);
            assert_eq!(watch.check().is_ok(), !stale && at_end == Some(1), "{stale} {at_end:?}");
        }
    }
}
