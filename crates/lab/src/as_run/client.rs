//! The actor: the batches that the authors' client posts for a lookup, an update and an insert.
//!
//! Locks are taken one message a round trip, in ascending order; a refused message is sent again at once, with the READ
//! behind it. Nothing is verified.

use std::ops::Range;
use std::rc::Rc;

use guira_fabric::{FabricError, Lane, Verb, pause_until, post};

use super::local::apply;
use super::locks::LockGroup;
use super::mirror::Mirror;
use super::recovery::{Faults, Refusals};
use super::search::{ENTRIES, RowView, Scope, SearchOrder, Step, find_path, key_of};
use super::table::{Layout, RowSums};

/// The rows that an update reads behind its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateReads {
    /// All rows of the locks by one READ, as an insert does and as the public code of 2023 does for updates, which it
    /// does not carry out.
    Covering,
    /// The rows of the key alone, each by a READ in the batch of its lock, as the later code does, which has updates.
    Single,
}

/// The choices of a client.
#[derive(Clone, Debug)]
pub struct ClientRules {
    /// The layout of the table.
    pub layout: Layout,
    /// The bound up to which one READ covers both rows of a lookup, in bytes. The code takes a row for 8 bytes long.
    pub covering_bytes: u64,
    /// The rows that an update reads.
    pub update_reads: UpdateReads,
    /// The order in which a search for a path visits rows.
    pub search_order: SearchOrder,
    /// The time that a search takes for each full row that it visits, in nanoseconds.
    pub search_row_ns: u64,
    /// The number of refusals in a row because of one lock after which its holder is taken for dead.
    pub timeout_refusals: u32,
}

impl ClientRules {
    /// Returns the choices of the authors' runs of figures 6 and 7 in a table of this layout.
    pub fn new(layout: Layout) -> ClientRules {
        ClientRules {
            layout,
            covering_bytes: 256,
            update_reads: UpdateReads::Single,
            search_order: SearchOrder::BreadthFirst,
            search_row_ns: 0,
            timeout_refusals: u32::MAX,
        }
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect.
    Done,
    /// An update did not find its key.
    NotFound,
    /// An insert found no path.
    NoPath,
}

/// Bytes of a row that a lookup fetches: the code passes the number of entries where the size of a row is meant.
const LOOKUP_ROW_BYTES: u64 = 8;
/// The longest covering READ of a lookup, in words: 1,024 bytes, the highest bound of the authors' runs.
const LOOKUP_WORDS_MAX: usize = 128;
/// The maximum number of attempts of an insert. The authors' client has no bound; this one only ends a run that makes
/// no progress.
const ATTEMPTS_MAX: usize = 100_000;

/// A client.
pub struct Client<L> {
    pub(super) lane: L,
    pub(super) rules: Rc<ClientRules>,
    mirror: Mirror,
    /// The faults that it injects, if it does.
    pub(super) faults: Option<Faults>,
    /// The number of locks that it has taken from clients that seemed to be dead.
    pub(super) reclaimed: u64,
    /// The words of the last READs behind a message that takes locks.
    words: Vec<u64>,
}

impl<L: Lane> Client<L> {
    /// Creates a client. Only inserts use the mirror.
    pub fn new(lane: L, rules: Rc<ClientRules>, mirror: Mirror) -> Client<L> {
        Client { lane, rules, mirror, faults: None, reclaimed: 0, words: Vec::new() }
    }

    /// Returns the lane, for its counters and its clock.
    pub fn lane(&mut self) -> &mut L {
        &mut self.lane
    }

    /// Has the client inject faults into its updates.
    pub fn with_faults(self, faults: Option<Faults>) -> Client<L> {
        Client { faults, ..self }
    }

    /// Looks a key up, in one round trip. What was fetched is not looked at, as in the code.
    ///
    /// # Errors
    /// The lane refused the batch.
    pub async fn read(&mut self, key: u32) -> Result<(), FabricError> {
        let layout = &self.rules.layout;
        let pair = layout.placement.of(key);
        let words = pair.distance() + 1;
        if words * LOOKUP_ROW_BYTES <= self.rules.covering_bytes.min(LOOKUP_WORDS_MAX as u64 * 8) {
            let mut into = [0; LOOKUP_WORDS_MAX];
            let into = &mut into[..words as usize];
            return post(&mut self.lane, [Verb::Read { addr: layout.row_addr(pair.low()), into }]).await;
        }
        let (mut first, mut second) = ([0], [0]);
        let reads = [
            Verb::Read { addr: layout.row_addr(pair.primary), into: &mut first },
            Verb::Read { addr: layout.row_addr(pair.secondary), into: &mut second },
        ];
        post(&mut self.lane, reads).await
    }

    /// Writes the entry of a key back under its locks.
    ///
    /// # Errors
    /// The lane refused a batch.
    pub async fn update(&mut self, key: u32) -> Result<Outcome, FabricError> {
        let rules = Rc::clone(&self.rules);
        let pair = rules.layout.placement.of(key);
        let groups = rules.layout.locks.groups([pair.primary, pair.secondary]);
        let mut rows = [[0; ENTRIES]; 2];
        for group in &groups {
            let reads = match rules.update_reads {
                UpdateReads::Covering => vec![rules.layout.covered(*group)],
                UpdateReads::Single => [pair.primary, pair.secondary]
                    .into_iter()
                    .filter(|row| rules.layout.locks.is_in(*group, *row))
                    .map(|row| row..row + 1)
                    .collect(),
            };
            self.lock_and_read(*group, &reads).await?;
            for (row, entries) in rows_read(&rules.layout, &self.words, &reads) {
                match row {
                    _ if row == pair.primary => rows[0] = entries,
                    _ if row == pair.secondary => rows[1] = entries,
                    _ => {}
                }
            }
        }
        let found = [pair.primary, pair.secondary].into_iter().zip(&rows).find_map(|(row, entries)| {
            let index = entries.iter().position(|entry| key_of(*entry) == key)?;
            Some(Step { row, index, entry: entries[index] })
        });
        let write = found.map(|step| Write { step, row: rows[usize::from(step.row != pair.primary)] });
        if let Some(write) = &write
            && self.inject_fault(write).await?
        {
            return Ok(Outcome::Done);
        }
        let writes: Vec<Write> = write.into_iter().collect();
        self.write_and_unlock(&writes, &groups).await?;
        Ok(if found.is_some() { Outcome::Done } else { Outcome::NotFound })
    }

    /// Inserts a key that is not in the table.
    ///
    /// # Errors
    /// The lane refused a batch.
    pub async fn insert(&mut self, key: u32) -> Result<Outcome, FabricError> {
        let rules = Rc::clone(&self.rules);
        let (placement, locks) = (&rules.layout.placement, rules.layout.locks);
        for _ in 0..ATTEMPTS_MAX {
            let found = find_path(&self.mirror, placement, key, Scope::Table, rules.search_order);
            self.search(found.full_rows).await;
            let Some(path) = found.path else { return Ok(Outcome::NoPath) };
            let groups = locks.groups(path.iter().map(|step| step.row));
            for group in &groups {
                let covered = [rules.layout.covered(*group)];
                self.lock_and_read(*group, &covered).await?;
                for (row, entries) in rows_read(&rules.layout, &self.words, &covered) {
                    self.mirror.store(row, &entries);
                }
            }
            let is_valid = path.iter().all(|step| self.mirror.row(step.row)[step.index] == step.entry);
            let path = if is_valid {
                Some(path)
            } else {
                self.lane.traffic_mut().retries += 1;
                let scope = locks.rows_of(&groups);
                let found = find_path(&self.mirror, placement, key, Scope::Rows(&scope), rules.search_order);
                self.search(found.full_rows).await;
                found.path
            };
            let mut writes = Vec::new();
            let mirror = &mut self.mirror;
            if let Some(path) = &path {
                apply(path, u64::from(key), |step, entry| {
                    mirror.change(step.row, step.index, entry);
                    writes.push(Write { step: Step { entry, ..*step }, row: mirror.row(step.row) });
                });
            }
            self.write_and_unlock(&writes, &groups).await?;
            if path.is_some() {
                return Ok(Outcome::Done);
            }
        }
        Ok(Outcome::NoPath)
    }

    /// Takes the time of a search.
    async fn search(&mut self, full_rows: u64) {
        let search_ns = full_rows * self.rules.search_row_ns;
        if search_ns > 0 {
            let until_ns = self.lane.now_ns() + search_ns;
            pause_until(&mut self.lane, until_ns).await;
        }
    }

    /// Takes the locks of a message, and reads rows behind it, again and again until no other client holds one of them.
    async fn lock_and_read(&mut self, group: LockGroup, reads: &[Range<u64>]) -> Result<(), FabricError> {
        let mut refusals = Refusals::new();
        loop {
            let Client { lane, rules, words, .. } = self;
            let layout = &rules.layout;
            let words_of = |rows: &Range<u64>| ((rows.end - rows.start) * layout.row_words()) as usize;
            words.resize(reads.iter().map(words_of).sum(), 0);
            let (mut found, mut rest) = (0, &mut words[..]);
            let mut batch = vec![lock(layout, group, &mut found)];
            for rows in reads {
                let (into, after) = rest.split_at_mut(words_of(rows));
                batch.push(Verb::Read { addr: layout.row_addr(rows.start), into });
                rest = after;
            }
            post(lane, batch).await?;
            let held = found & group.mask;
            if held == 0 {
                return Ok(());
            }
            lane.traffic_mut().retries += 1;
            if let Some(dead) = refusals.count(held, rules.timeout_refusals) {
                self.reclaim(LockGroup { mask: dead, ..group }).await?;
            }
        }
    }

    /// Writes entries one at a time, and releases the locks behind them, in one round trip.
    pub(super) async fn write_and_unlock(&mut self, writes: &[Write], groups: &[LockGroup]) -> Result<(), FabricError> {
        let layout = &self.rules.layout;
        let entry_words = layout.entry_words as usize;
        let words_of = |write: &Write| {
            let mut words = vec![0; entry_words + 1];
            (words[0], words[entry_words]) = (write.step.entry, sum_of(&write.row));
            words
        };
        let words: Vec<Vec<u64>> = writes.iter().map(words_of).collect();
        let mut found = vec![0; groups.len()];
        let mut batch = Vec::with_capacity(2 * writes.len() + groups.len());
        for (write, words) in writes.iter().zip(&words) {
            let Step { row, index, .. } = write.step;
            batch.push(Verb::Write { addr: layout.entry_addr(row, index), words: &words[..entry_words] });
            if layout.sums == RowSums::Written {
                batch.push(Verb::Write { addr: layout.entry_addr(row, ENTRIES), words: &words[entry_words..] });
            }
        }
        for (group, found) in groups.iter().zip(&mut found) {
            let LockGroup { mask, .. } = *group;
            let addr = layout.lock_addr(*group);
            batch.push(Verb::MaskedCas { addr, compare: mask, swap: 0, compare_mask: mask, swap_mask: mask, found });
        }
        post(&mut self.lane, batch).await
    }
}

/// Returns the rows that READs have fetched, with their numbers.
fn rows_read<'w>(
    layout: &'w Layout,
    words: &'w [u64],
    reads: &'w [Range<u64>],
) -> impl Iterator<Item = (u64, [u64; ENTRIES])> + 'w {
    let rows = words.chunks_exact(layout.row_words() as usize);
    reads.iter().cloned().flatten().zip(rows.map(|words| layout.entries_of(words)))
}

/// An entry to be written.
pub(super) struct Write {
    /// The place, and the entry.
    pub(super) step: Step,
    /// The row with the entry.
    row: [u64; ENTRIES],
}

fn lock<'f>(layout: &Layout, group: LockGroup, found: &'f mut u64) -> Verb<'f> {
    let LockGroup { mask, .. } = group;
    Verb::MaskedCas {
        addr: layout.lock_addr(group),
        compare: 0,
        swap: mask,
        compare_mask: mask,
        swap_mask: mask,
        found,
    }
}

/// Returns a checksum of a row. Nothing verifies it, so any function of the row will do.
fn sum_of(row: &[u64; ENTRIES]) -> u64 {
    row.iter().fold(0, |sum, entry| guira_fabric::SplitMix64::mix(sum ^ entry))
}
