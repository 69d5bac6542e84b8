//! Examination of batches: whether the outcome of a batch depends on an order of its verbs that one queue pair does not
//! give ([`PairOrder`], docs/rdma.md).
//!
//! A batch *depends* on the order of two of its verbs in these cases; in each of them the order must be
//! [`PairOrder::Kept`]:
//!
//! - They have a word in common, and one of them changes it.
//! - The second is a WRITE: other clients may see it before the first is executed, and it takes effect even if the
//!   first is a CAS that fails. (That would be harmless for an extent to which nothing refers yet. No batch needs it.)
//! - The first is a READ and the second an atomic, which tells other clients that the READ is done. There are two
//!   exceptions for READs of extents behind the CAS of their chunk's word. The CAS of the word of another chunk guards
//!   nothing that was read; and the same CAS once more succeeds only if the first one failed, in which case the client
//!   ignores what it read.
//! - Both are READs, and the second samples only the trailer of a row that the first reads: only a client that expects
//!   a later sample does that. (READs sample in order where batches are executed in order.)
//!
//! READs of different objects may be relied on to sample in order, too, which no batch shows; simulated regions sample
//! them in any order, and again ([`guira_fabric_sim::Hazard::QUEUE_PAIR`]).
//!
//! Besides, a WRITE of a row that does not fit in one packet ([`Caps::atomic_write_unit`]) depends on a sealed record,
//! which either stands in front of it or is in a client slot already [R-COMMIT-2].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use guira_fabric::heap::HeapLane;
use guira_fabric::{Addr, Caps, PairOrder, Region, Space, Verb, VerbClass, WORD_BYTES};
use guira_layout::{
    CHUNK_HEADER_WORDS, ChunkState, ChunkWord, ExtentClass, Record, RowId, Seal, SegmentSplit, Segments,
};

use crate::{Bench, WatchedLane};

/// The kind of object at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Superblock,
    Slot,
    Record,
    Retirement,
    Lease,
    Map,
    FullRows,
    Row,
    Trailer,
    ChunkWord,
    ChunkHeader,
    Mark,
    Extent,
    Lock,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Superblock => "superblock",
            Place::Slot => "slot",
            Place::Record => "record",
            Place::Retirement => "retirement",
            Place::Lease => "lease",
            Place::Map => "map",
            Place::FullRows => "full rows",
            Place::Row => "row",
            Place::Trailer => "trailer",
            Place::ChunkWord => "chunk word",
            Place::ChunkHeader => "chunk header",
            Place::Mark => "mark",
            Place::Extent => "extent",
            Place::Lock => "lock",
        }
    }
}

/// The forms and the violations that examiners have seen.
#[derive(Clone, Debug, Default)]
pub struct BatchForms(Arc<Mutex<Findings>>);

#[derive(Debug, Default)]
struct Findings {
    forms: BTreeMap<String, u64>,
    violations: Vec<String>,
}

/// Violations that are kept.
const MOST_VIOLATIONS: usize = 20;

impl BatchForms {
    fn findings(&self) -> MutexGuard<'_, Findings> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Returns the distinct forms, each with the number of batches that had it.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.findings().forms.clone()
    }

    /// Returns the first violations.
    pub fn violations(&self) -> Vec<String> {
        self.findings().violations.clone()
    }
}

/// An examiner of the batches that clients of one table post.
#[derive(Clone)]
pub struct Examiner {
    bench: Bench,
    forms: BatchForms,
}

impl Examiner {
    /// Creates an examiner of batches on the bytes of `bench`, under its promises. It adds to `forms`.
    pub fn new(bench: &Bench, forms: &BatchForms) -> Examiner {
        Examiner { bench: bench.clone(), forms: forms.clone() }
    }

    /// Wraps a lane so that its batches are examined.
    pub fn lane(&self, lane: HeapLane) -> WatchedLane {
        let examiner = self.clone();
        let watch = move |batch: &[Verb<'_>]| {
            examiner.see(batch);
            Ok(())
        };
        WatchedLane::new(lane, Box::new(watch))
    }

    /// Examines a batch that is about to be executed.
    pub fn see(&self, batch: &[Verb<'_>]) {
        if batch.is_empty() {
            return;
        }
        let form = self.form(batch);
        let wrong = self.violation(batch);
        let mut findings = self.forms.findings();
        if let Some(wrong) = wrong
            && findings.violations.len() < MOST_VIOLATIONS
        {
            findings.violations.push(format!("{form}: {wrong}"));
        }
        *findings.forms.entry(form).or_default() += 1;
    }

    /// Returns the form of a batch: its verbs and their objects, where equal neighbours count as one, and so do equal
    /// neighbouring pairs.
    fn form(&self, batch: &[Verb<'_>]) -> String {
        let mut names: Vec<String> = batch.iter().map(|verb| self.name(verb)).collect();
        names.dedup();
        let mut form: Vec<String> = Vec::new();
        for name in names {
            form.push(name);
            if let [.., a, b, c, d] = &form[..]
                && (a, b) == (c, d)
            {
                form.truncate(form.len() - 2);
            }
        }
        form.join(", ")
    }

    fn name(&self, verb: &Verb<'_>) -> String {
        let class = match verb {
            Verb::Read { .. } => "READ",
            Verb::Write { .. } => "WRITE",
            Verb::Cas { .. } | Verb::MaskedCas { .. } => "CAS",
            Verb::FetchAdd { .. } => "FETCH-ADD",
        };
        format!("{class} {}", self.place(verb).name())
    }

    /// Returns what depends on an order that the batch does not get, or on the atomicity of a WRITE.
    pub fn violation(&self, batch: &[Verb<'_>]) -> Option<String> {
        for (at, second) in batch.iter().enumerate() {
            for (before, first) in batch[..at].iter().enumerate() {
                if let Some(reason) = self.dependence(&batch[..before], first, second)
                    && self.order(first, second) != PairOrder::Kept
                {
                    return Some(format!("{} before {}: {reason}", self.name(first), self.name(second)));
                }
            }
            if self.is_torn_without_record(&batch[..at], second) {
                return Some(format!("{} of several packets without a record", self.name(second)));
            }
        }
        None
    }

    /// Returns the order of two verbs of one batch, as far as the protocol may rely on it.
    fn order(&self, first: &Verb<'_>, second: &Verb<'_>) -> PairOrder {
        let classes = (VerbClass::of(first), VerbClass::of(second));
        match PairOrder::on_queue_pair(classes.0, classes.1) {
            PairOrder::Resampled if self.caps().ordered_read_sampling && classes.1 == VerbClass::Read => {
                PairOrder::Kept
            }
            order => order,
        }
    }

    fn caps(&self) -> &Caps {
        self.bench.region.caps()
    }

    /// Returns the reason why the outcome depends on the order of `first` and `second`, if it does. The verbs `before`
    /// stand in front of both.
    fn dependence(&self, before: &[Verb<'_>], first: &Verb<'_>, second: &Verb<'_>) -> Option<&'static str> {
        match (VerbClass::of(first), VerbClass::of(second)) {
            (VerbClass::Read, VerbClass::Read) => {
                let is_second_sample = (self.place(first), self.place(second)) == (Place::Row, Place::Trailer);
                (is_second_sample && overlap(first, second)).then_some("the trailer is a second sample of the row")
            }
            _ if overlap(first, second) => Some("they have words in common"),
            (_, VerbClass::Write) => Some("other clients may see the WRITE first"),
            (VerbClass::Read, VerbClass::Atomic) if !self.is_unaffected(before, first, second) => {
                Some("the atomic may be executed before the READ samples")
            }
            _ => None,
        }
    }

    /// Whether `read` reads an extent, and `atomic` is the CAS of the word of another chunk, or repeats a CAS of the
    /// verbs `before`.
    fn is_unaffected(&self, before: &[Verb<'_>], read: &Verb<'_>, atomic: &Verb<'_>) -> bool {
        if (self.place(read), self.place(atomic)) != (Place::Extent, Place::ChunkWord) {
            return false;
        }
        let geometry = self.bench.table.geometry();
        let chunk = atomic.addr().word().checked_sub(geometry.chunk_word(0).word());
        let is_of_another = geometry.chunk_of(read.addr().offset()).map(|(chunk, _)| chunk) != chunk;
        is_of_another || before.iter().any(|earlier| is_repeated(earlier, atomic))
    }

    /// Whether a WRITE of a row may be torn between packets, and no record completes it.
    fn is_torn_without_record(&self, before: &[Verb<'_>], verb: &Verb<'_>) -> bool {
        let Verb::Write { addr, words } = verb else { return false };
        let (table, unit) = (&self.bench.table, self.caps().atomic_write_unit);
        let is_whole = words.len() as u64 * WORD_BYTES <= unit;
        let is_visible = self.bench.words_at(Addr::main(0), 1)[0] != 0;
        // Preset `paper` assumes whole WRITEs.
        if is_whole || !is_visible || !table.is_recoverable() || self.place(verb) != Place::Row {
            return false;
        }
        let has_record = before.iter().any(|verb| match verb {
            Verb::Write { words, .. } if self.place(verb) == Place::Record => {
                words.last().is_some_and(|word| Seal(*word).is_sealed())
            }
            _ => false,
        });
        !has_record && !self.is_recorded(*addr) && !self.is_of_new_segment(*addr)
    }

    /// Whether a row at `addr` is one of a segment that does not exist yet.
    fn is_of_new_segment(&self, addr: Addr) -> bool {
        let (table, geometry) = (&self.bench.table, self.bench.table.geometry());
        let segments = Segments::of(table.config()).filter(|_| table.config().grows());
        segments.is_some_and(|segments| {
            let row = (addr.offset() - geometry.row(RowId(0)).offset()) / u64::from(table.config().row_bytes);
            self.bench.words_at(geometry.map_word(segments.of_row(RowId(row))), 1) == [0]
        })
    }

    /// Whether a client slot has a sealed record of the row at `addr`.
    fn is_recorded(&self, addr: Addr) -> bool {
        let (table, geometry) = (&self.bench.table, self.bench.table.geometry());
        (0..table.config().max_clients).any(|slot| {
            let words = self.bench.words_at(geometry.slot(slot), geometry.slot_words());
            let record = Record::decode(&words, table.rows(), table.config(), geometry).ok().flatten();
            let is_split = |split: SegmentSplit| {
                let segments = Segments::of(table.config());
                segments.is_some_and(|segments| geometry.row(segments.first_row(split.segment)) == addr)
            };
            record.is_some_and(|record| {
                record.split().is_some_and(is_split)
                    || record.deltas(table.rows()).any(|delta| geometry.row(delta.row) == addr)
            })
        })
    }

    fn place(&self, verb: &Verb<'_>) -> Place {
        let (table, addr) = (&self.bench.table, verb.addr());
        let (geometry, config) = (table.geometry(), table.config());
        let at = addr.offset();
        let begins = |first: Addr| at >= first.offset();
        if addr.space() == Space::Device {
            return Place::Lock;
        }
        if config.chunks > 0 && begins(geometry.chunk(0)) {
            return self.place_in_chunk(verb);
        }
        if config.chunks > 0 && begins(geometry.chunk_word(0)) {
            return Place::ChunkWord;
        }
        if begins(geometry.row(RowId(0))) {
            let word = (at - geometry.row(RowId(0)).offset()) / WORD_BYTES % table.rows().row_words() as u64;
            return if word < table.rows().trailer_word() as u64 { Place::Row } else { Place::Trailer };
        }
        if geometry.full_rows_words() > 0 && begins(geometry.full_rows_word(0)) {
            return Place::FullRows;
        }
        if config.grows() && begins(geometry.map_word(0)) {
            return Place::Map;
        }
        if config.repair_regions > 0 && begins(geometry.lease(0)) {
            return Place::Lease;
        }
        if !begins(geometry.slot(0)) {
            return Place::Superblock;
        }
        let word = (at - geometry.slot(0).offset()) / WORD_BYTES % geometry.slot_words() as u64;
        match verb {
            Verb::Write { words: [seal], .. }
                if word == Seal::word(table.rows()) as u64 && !Seal(*seal).is_sealed() =>
            {
                Place::Retirement
            }
            Verb::Write { .. } if word >= Record::WORD as u64 => Place::Record,
            _ => Place::Slot,
        }
    }

    /// Returns the kind of object at an address in a chunk. A WRITE's chunk belongs to a client, so that its word tells
    /// where the marks end; a READ may find any state, and counts as that of an extent.
    fn place_in_chunk(&self, verb: &Verb<'_>) -> Place {
        let (geometry, at) = (self.bench.table.geometry(), verb.addr().offset());
        if let Verb::Write { .. } = verb
            && let Some((chunk, within)) = geometry.chunk_of(at)
        {
            if within < CHUNK_HEADER_WORDS * WORD_BYTES {
                return Place::ChunkHeader;
            }
            let word = ChunkWord(self.bench.words_at(geometry.chunk_word(chunk), 1)[0]);
            let chunk_bytes = self.bench.table.config().chunk_bytes;
            if class_of(word).is_some_and(|class| within < class.mark_at(class.slots(chunk_bytes))) {
                return Place::Mark;
            }
        }
        Place::Extent
    }
}

fn class_of(word: ChunkWord) -> Option<ExtentClass> {
    match word.decode() {
        Some(
            ChunkState::Owned { class, .. } | ChunkState::Orphan { class, .. } | ChunkState::Claiming { class, .. },
        ) => Some(class),
        _ => None,
    }
}

/// Whether two verbs are the same CAS, which cannot succeed twice in a row.
fn is_repeated(one: &Verb<'_>, other: &Verb<'_>) -> bool {
    match (one, other) {
        (Verb::Cas { addr, compare, swap, .. }, Verb::Cas { addr: at, compare: from, swap: to, .. }) => {
            (addr, compare, swap) == (at, from, to) && compare != swap
        }
        _ => false,
    }
}

/// Whether two verbs have a word in common.
fn overlap(one: &Verb<'_>, other: &Verb<'_>) -> bool {
    let end = |verb: &Verb<'_>| verb.addr().word() + verb.words() as u64;
    one.addr().space() == other.addr().space() && one.addr().word() < end(other) && other.addr().word() < end(one)
}
