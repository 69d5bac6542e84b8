//! A table in private memory that one client fills: figures 4(a), 4(b) and 4(c) need no network.

use super::hash::Placement;
use super::search::{ENTRIES, RowView, Scope, SearchOrder, Step, find_path, span_rows};

/// A table in private memory.
#[derive(Clone, Debug)]
pub struct LocalTable {
    placement: Placement,
    rows: Vec<[u64; ENTRIES]>,
    /// The number of occupied entries.
    occupied: u64,
}

impl RowView for LocalTable {
    fn row(&self, row: u64) -> [u64; ENTRIES] {
        self.rows[row as usize]
    }
}

impl LocalTable {
    /// Creates an empty table.
    pub fn new(placement: Placement) -> LocalTable {
        let rows = vec![[0; ENTRIES]; placement.rows() as usize];
        LocalTable { placement, rows, occupied: 0 }
    }

    /// Returns the occupied share of all entries.
    pub fn fill(&self) -> f64 {
        self.occupied as f64 / (self.rows.len() * ENTRIES) as f64
    }

    /// Inserts a new key and returns the path of its insert; `None` if the search finds none, which changes nothing.
    pub fn insert(&mut self, key: u32) -> Option<Vec<Step>> {
        let path = find_path(self, &self.placement, key, Scope::Table, SearchOrder::BreadthFirst).path?;
        apply(&path, u64::from(key), |step, entry| self.rows[step.row as usize][step.index] = entry);
        self.occupied += 1;
        Some(path)
    }
}

/// Moves the entries of a path, from its empty end backwards: calls `write` with each step and its new entry.
pub fn apply(path: &[Step], new: u64, mut write: impl FnMut(&Step, u64)) {
    for (index, step) in path.iter().enumerate().rev() {
        write(step, if index == 0 { new } else { path[index - 1].entry });
    }
}

/// Returns the distances between the rows of `keys` keys: element d is the number of keys whose rows lie d rows apart.
pub fn distances(placement: &Placement, keys: u32) -> Vec<u64> {
    let mut counts = vec![0; placement.rows() as usize];
    (0..keys).for_each(|key| counts[placement.of(key).distance() as usize] += 1);
    counts
}

/// Fills a table until the first insert fails and returns its fill. `first` is the first of consecutive keys; none of
/// them may be 0.
pub fn fill_at_first_failure(placement: &Placement, first: u32) -> f64 {
    let mut table = LocalTable::new(placement.clone());
    let mut key = first;
    while table.insert(key).is_some() {
        key += 1;
    }
    table.fill()
}

/// Fills a table to `fill` and returns the spans of the inserts' paths: element s is the number of inserts whose path
/// lies in s rows. An insert that moves nothing has the span 1.
pub fn spans(placement: &Placement, fill: f64, first: u32) -> Vec<u64> {
    let mut table = LocalTable::new(placement.clone());
    let mut counts = vec![0; placement.rows() as usize + 1];
    let mut key = first;
    while table.fill() < fill {
        let Some(path) = table.insert(key) else { break };
        counts[span_rows(&path) as usize] += 1;
        key += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::as_run::hash::{Distance, Program};

    fn placement(rows: u64, program: Program, factor: f64) -> Placement {
        Placement::new(rows, program, Distance::Dependent { factor })
    }

    #[test]
    fn a_path_is_written_from_its_empty_end() {
        let step = |row, entry| Step { row, index: 1, entry };
        let path = [step(1, 11), step(2, 12), step(5, 0)];
        let mut writes = Vec::new();
        apply(&path, 10, |step, entry| writes.push((step.row, entry)));
        assert_eq!(writes, [(5, 12), (2, 11), (1, 10)]);
    }

    #[test]
    fn no_key_is_lost() {
        let placement = placement(512, Program::Store, 2.3);
        let mut table = LocalTable::new(placement.clone());
        let keys = (1..).take_while(|key| table.insert(*key).is_some()).count() as u32;
        assert!(table.fill() > 0.9, "{}", table.fill());
        for key in 1..=keys {
            let pair = placement.of(key);
            assert!(
                [pair.primary, pair.secondary].iter().any(|row| table.row(*row).contains(&u64::from(key))),
                "{key}"
            );
        }
    }
}
