//! The actor: the batches that the authors' client posts for a lookup, an update and an insert.
//!
//! Locks are taken one message a round trip, in ascending order; a refused message is sent again at once, with the READ
//! behind it. Nothing is verified, and a client that ends in the middle of a change leaves its locks held.

use std::rc::Rc;

use guira_fabric::{FabricError, Lane, Verb, pause_until, post};

use super::hash::RowPair;
use super::local::apply;
use super::locks::LockGroup;
use super::mirror::Mirror;
use super::search::{ENTRIES, RowView, Scope, Step, find_path, key_of};
use super::table::{Layout, RowSums};

/// The rows that an update reads behind its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateReads {
    /// All rows of the locks by one READ, as an insert does and as the public code does for updates.
    Covering,
    /// The rows of the key alone, each by a READ in the batch of its lock, as the later code does.
    Single,
    /// All rows of the locks with the locks, and then the rows of the key by two READs in one more round trip.
    CoveringThenSingle,
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
    /// The time that a search takes for each full row that it visits, in nanoseconds.
    pub search_row_ns: u64,
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
/// The longest covering READ of a lookup, in words, for a bound of 256 bytes.
const LOOKUP_WORDS_MAX: usize = 32;
/// The maximum number of attempts of an insert. The authors' client has no bound; this one only ends a run that makes
/// no progress.
const ATTEMPTS_MAX: usize = 100_000;

/// A client.
pub struct Client<L> {
    lane: L,
    rules: Rc<ClientRules>,
    mirror: Mirror,
    /// The words of the last covering READ.
    covered: Vec<u64>,
}

impl<L: Lane> Client<L> {
    /// Creates a client. Only inserts use the mirror.
    pub fn new(lane: L, rules: Rc<ClientRules>, mirror: Mirror) -> Client<L> {
        Client { lane, rules, mirror, covered: Vec::new() }
    }

    /// Returns the lane, for its counters and its clock.
    pub fn lane(&mut self) -> &mut L {
        &mut self.lane
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
            match rules.update_reads {
                UpdateReads::Single => self.lock_and_read(*group, pair, &mut rows).await?,
                UpdateReads::Covering | UpdateReads::CoveringThenSingle => {
                    self.lock_and_cover(*group).await?;
                    for (row, entries) in covered_rows(&rules.layout, &self.covered, *group) {
                        match row {
                            _ if row == pair.primary => rows[0] = entries,
                            _ if row == pair.secondary => rows[1] = entries,
                            _ => {}
                        }
                    }
                }
            }
        }
        if rules.update_reads == UpdateReads::CoveringThenSingle {
            let [first, second] = &mut rows;
            let reads = [
                Verb::Read { addr: rules.layout.row_addr(pair.primary), into: first },
                Verb::Read { addr: rules.layout.row_addr(pair.secondary), into: second },
            ];
            post(&mut self.lane, reads).await?;
        }
        let found = [pair.primary, pair.secondary].into_iter().zip(&rows).find_map(|(row, entries)| {
            let index = entries.iter().position(|entry| key_of(*entry) == key)?;
            Some(Step { row, index, entry: entries[index] })
        });
        let write = found.map(|step| Write { step, row: rows[usize::from(step.row != pair.primary)] });
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
            let found = find_path(&self.mirror, placement, key, Scope::Table);
            self.search(found.full_rows).await;
            let Some(path) = found.path else { return Ok(Outcome::NoPath) };
            let groups = locks.groups(path.iter().map(|step| step.row));
            for group in &groups {
                self.lock_and_cover(*group).await?;
                self.mirror_covered(*group);
            }
            let is_valid = path.iter().all(|step| self.mirror.row(step.row)[step.index] == step.entry);
            let path = if is_valid {
                Some(path)
            } else {
                self.lane.traffic_mut().retries += 1;
                let found = find_path(&self.mirror, placement, key, Scope::Rows(&locks.rows_of(&groups)));
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

    /// Takes the locks of a message, and reads the rows from the first of the lowest lock to the last of the highest.
    async fn lock_and_cover(&mut self, group: LockGroup) -> Result<(), FabricError> {
        let layout = &self.rules.layout;
        let (first, rows) = layout.locks.covered(group);
        let rows = rows.min(layout.placement.rows() - first);
        self.covered.resize((rows * layout.sums.row_words()) as usize, 0);
        loop {
            let mut found = 0;
            let lock = lock(layout, group, &mut found);
            let cover = Verb::Read { addr: layout.row_addr(first), into: &mut self.covered };
            post(&mut self.lane, [lock, cover]).await?;
            if found & group.mask == 0 {
                return Ok(());
            }
            self.lane.traffic_mut().retries += 1;
        }
    }

    /// Takes the locks of a message, and reads those rows of the pair that they protect.
    async fn lock_and_read(
        &mut self,
        group: LockGroup,
        pair: RowPair,
        rows: &mut [[u64; ENTRIES]; 2],
    ) -> Result<(), FabricError> {
        let layout = &self.rules.layout;
        let is_held =
            |row| layout.locks.groups([row]).iter().all(|lock| lock.word == group.word && lock.mask & group.mask != 0);
        loop {
            let mut found = 0;
            let mut batch = vec![lock(layout, group, &mut found)];
            for (row, into) in [pair.primary, pair.secondary].into_iter().zip(rows.iter_mut()) {
                if is_held(row) {
                    batch.push(Verb::Read { addr: layout.row_addr(row), into });
                }
            }
            post(&mut self.lane, batch).await?;
            if found & group.mask == 0 {
                return Ok(());
            }
            self.lane.traffic_mut().retries += 1;
        }
    }

    fn mirror_covered(&mut self, group: LockGroup) {
        for (row, entries) in covered_rows(&self.rules.layout, &self.covered, group) {
            self.mirror.store(row, &entries);
        }
    }

    /// Writes entries one at a time, and releases the locks behind them, in one round trip.
    async fn write_and_unlock(&mut self, writes: &[Write], groups: &[LockGroup]) -> Result<(), FabricError> {
        let layout = &self.rules.layout;
        let words: Vec<[u64; 2]> = writes.iter().map(|write| [write.step.entry, sum_of(&write.row)]).collect();
        let mut found = vec![0; groups.len()];
        let mut batch = Vec::with_capacity(2 * writes.len() + groups.len());
        for (write, words) in writes.iter().zip(&words) {
            let Step { row, index, .. } = write.step;
            batch.push(Verb::Write { addr: layout.entry_addr(row, index), words: &words[..1] });
            if layout.sums == RowSums::Written {
                batch.push(Verb::Write { addr: layout.entry_addr(row, ENTRIES), words: &words[1..] });
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

/// Returns the rows that the covering READ behind a message has fetched, with their numbers.
fn covered_rows<'w>(
    layout: &Layout,
    words: &'w [u64],
    group: LockGroup,
) -> impl Iterator<Item = (u64, [u64; ENTRIES])> + 'w {
    let (first, _) = layout.locks.covered(group);
    let rows = words.chunks_exact(layout.sums.row_words() as usize);
    (first..).zip(rows.map(|words| std::array::from_fn(|index| words[index])))
}

/// An entry to be written.
struct Write {
    /// The place, and the entry.
    step: Step,
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
