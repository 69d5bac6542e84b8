//! The search for a cuckoo path, as the authors' programs do it: from the primary row of the new key only.
//!
//! The entry of a row that is moved always goes to its other row, so that the rows of a path alternate in parity.
//!
//! Breadth first, a row is visited once, and depth is not bounded; the number of visited rows is. The programs search by
//! A*, too, whose estimate of the remaining moves hardly changes the order: with breadth first the spans of figure 4(c)
//! differ by 0.2 points at most. Depth first, which figure 8(b) compares, an entry is moved once, and a path has 30 rows
//! at most.

use std::collections::HashSet;

use super::hash::{Placement, RowPair};

/// The entries of a row.
pub const ENTRIES: usize = 8;
/// The number of elements of the store's array of entries to be moved. Each row that is visited adds all of its
/// entries.
const ARRAY_ELEMENTS: usize = 5_000;
/// The maximum number of full rows that a search visits.
const VISITED_MAX: usize = ARRAY_ELEMENTS / ENTRIES;

/// The most rows of a path that is found depth first.
const DEPTH_FIRST_ROWS: usize = 30;

/// The order in which a search visits rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchOrder {
    /// The shortest paths first.
    BreadthFirst,
    /// One path as far as it goes, and then back. In each full row, it first moves the entry with this index, and then
    /// those behind it; the code draws it once a second.
    DepthFirst {
        /// The index, below [`ENTRIES`].
        first: usize,
    },
}

/// The rows of a table, or a mirror of some of them.
pub trait RowView {
    /// Returns the entries of a row; 0 is an empty one. The low half of an entry is its key.
    fn row(&self, row: u64) -> [u64; ENTRIES];
}

/// The rows that a search may visit.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// All rows.
    Table,
    /// These rows, in ascending order.
    Rows(&'a [u64]),
}

/// An entry of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The row.
    pub row: u64,
    /// The index of the entry in its row.
    pub index: usize,
    /// The entry that is moved to the next step; 0 in the last step.
    pub entry: u64,
}

/// Returns the key of an entry.
pub fn key_of(entry: u64) -> u32 {
    entry as u32
}

/// Returns the row of `pair` that is not `row`.
pub fn other_row(pair: RowPair, row: u64) -> u64 {
    if row == pair.primary { pair.secondary } else { pair.primary }
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// A path: its first step is in the primary row of the new key, and its last is an empty entry.
    pub path: Option<Vec<Step>>,
    /// Full rows that were visited.
    pub full_rows: u64,
}

/// Finds a path for a new key.
pub fn find_path(view: &impl RowView, placement: &Placement, key: u32, scope: Scope<'_>, order: SearchOrder) -> Found {
    match order {
        SearchOrder::BreadthFirst => breadth_first(view, placement, key, scope),
        SearchOrder::DepthFirst { first } => depth_first(view, placement, key, scope, first),
    }
}

impl Scope<'_> {
    fn has(self, row: u64) -> bool {
        match self {
            Scope::Table => true,
            Scope::Rows(rows) => rows.binary_search(&row).is_ok(),
        }
    }
}

fn depth_first(view: &impl RowView, placement: &Placement, key: u32, scope: Scope<'_>, first: usize) -> Found {
    /// A full row of the path, and how many of its entries were tried.
    struct Level {
        row: u64,
        entries: [u64; ENTRIES],
        tried: usize,
    }
    let moved = |level: &Level| (first + level.tried - 1) % ENTRIES;
    let (mut found, mut levels) = (Found { path: None, full_rows: 0 }, Vec::<Level>::new());
    let (mut seen, mut next) = (HashSet::from([key]), Some(placement.of(key).primary));
    for _ in 0..ARRAY_ELEMENTS {
        if let Some(row) = next.take().filter(|row| levels.len() < DEPTH_FIRST_ROWS && scope.has(*row)) {
            let entries = view.row(row);
            if let Some(index) = entries.iter().position(|entry| *entry == 0) {
                let steps = levels.iter().map(|level| (level.row, moved(level), level.entries[moved(level)]));
                let path = steps.chain([(row, index, 0)]).map(|(row, index, entry)| Step { row, index, entry });
                found.path = Some(path.collect());
                break;
            }
            found.full_rows += 1;
            levels.push(Level { row, entries, tried: 0 });
        }
        let Some(level) = levels.last_mut() else { break };
        if level.tried == ENTRIES {
            levels.pop();
            continue;
        }
        level.tried += 1;
        let moved_key = key_of(level.entries[moved(level)]);
        next = seen.insert(moved_key).then(|| other_row(placement.of(moved_key), level.row));
    }
    found
}

fn breadth_first(view: &impl RowView, placement: &Placement, key: u32, scope: Scope<'_>) -> Found {
    let root = placement.of(key).primary;
    let mut found = Found { path: None, full_rows: 0 };
    if !scope.has(root) {
        return found;
    }
    let mut nodes = vec![Node { row: root, parent: 0, index: 0, entry: 0 }];
    let mut seen = HashSet::from([root]);
    for next in 0..VISITED_MAX {
        let Some(row) = nodes.get(next).map(|node| node.row) else { break };
        let entries = view.row(row);
        if let Some(index) = entries.iter().position(|entry| *entry == 0) {
            found.path = Some(path_to(&nodes, next, index));
            break;
        }
        found.full_rows += 1;
        for (index, entry) in entries.into_iter().enumerate() {
            let other = other_row(placement.of(key_of(entry)), row);
            if scope.has(other) && seen.insert(other) {
                nodes.push(Node { row: other, parent: next, index, entry });
            }
        }
    }
    found
}

/// Returns the number of rows from the lowest row of a path to the highest, both included.
pub fn span_rows(path: &[Step]) -> u64 {
    let rows = || path.iter().map(|step| step.row);
    rows().max().zip(rows().min()).map_or(0, |(high, low)| high - low + 1)
}

/// A visited row.
struct Node {
    row: u64,
    /// The row that was visited before it, by its number.
    parent: usize,
    /// The entry of the parent that would be moved here.
    index: usize,
    entry: u64,
}

/// Returns the path to the empty entry `index` of the last row.
fn path_to(nodes: &[Node], last: usize, index: usize) -> Vec<Step> {
    let mut path = vec![Step { row: nodes[last].row, index, entry: 0 }];
    let mut node = &nodes[last];
    while node.entry != 0 {
        let parent = &nodes[node.parent];
        path.push(Step { row: parent.row, index: node.index, entry: node.entry });
        node = parent;
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::as_run::hash::{Distance, Program};

    impl RowView for Vec<[u64; ENTRIES]> {
        fn row(&self, row: u64) -> [u64; ENTRIES] {
            self[row as usize]
        }
    }

    fn placement(rows: u64) -> Placement {
        Placement::new(rows, Program::Store, Distance::Dependent { factor: 2.3 })
    }

    /// Returns keys whose primary row is `row`.
    fn keys_of(placement: &Placement, row: u64) -> impl Iterator<Item = u32> {
        (1..).filter(move |key| placement.of(*key).primary == row)
    }

    #[test]
    fn a_path_is_the_first_of_the_shortest() {
        let placement = placement(64);
        let keys: Vec<u32> = keys_of(&placement, 7).take(9).collect();
        let mut rows = vec![[0; ENTRIES]; 64];
        assert_eq!(
            find_path(&rows, &placement, keys[8], Scope::Table, SearchOrder::BreadthFirst),
            Found { path: Some(vec![Step { row: 7, index: 0, entry: 0 }]), full_rows: 0 }
        );
        rows[7] = std::array::from_fn(|index| u64::from(keys[index]));
        let moved = placement.of(keys[0]).secondary;
        let first = Step { row: 7, index: 0, entry: u64::from(keys[0]) };
        let expected = vec![first, Step { row: moved, index: 0, entry: 0 }];
        let found = find_path(&rows, &placement, keys[8], Scope::Table, SearchOrder::BreadthFirst);
        assert_eq!(found, Found { path: Some(expected), full_rows: 1 });
        assert_eq!(span_rows(&[first, Step { row: moved, index: 0, entry: 0 }]), moved.abs_diff(7) + 1);
    }

    #[test]
    fn a_search_stays_in_its_scope() {
        let placement = placement(64);
        let keys: Vec<u32> = keys_of(&placement, 7).take(9).collect();
        let mut rows = vec![[0; ENTRIES]; 64];
        rows[7] = std::array::from_fn(|index| u64::from(keys[index]));
        let last = placement.of(keys[7]).secondary;
        for order in [SearchOrder::BreadthFirst, SearchOrder::DepthFirst { first: 3 }] {
            let path = |scope: &[u64]| find_path(&rows, &placement, keys[8], Scope::Rows(scope), order).path;
            assert_eq!((path(&[]), path(&[7])), (None, None));
            let path = path(&[7.min(last), 7.max(last)]).unwrap();
            assert_eq!(path.last().map(|step| step.row), Some(last));
        }
    }

    /// Row 7 and the row of its entry 2 are full: the path goes on from there, though entry 3 leads to an empty row.
    #[test]
    fn a_depth_first_path_goes_on_from_the_first_entry() {
        let placement = placement(64);
        let keys: Vec<u32> = keys_of(&placement, 7).take(9).collect();
        let mut rows = vec![[0; ENTRIES]; 64];
        rows[7] = std::array::from_fn(|index| u64::from(keys[index]));
        let second = placement.of(keys[2]).secondary;
        let others: Vec<u32> = (1..).filter(|key| placement.of(*key).secondary == second).take(20).collect();
        let others: Vec<u32> = others.into_iter().filter(|key| !keys.contains(key)).take(8).collect();
        rows[second as usize] = std::array::from_fn(|index| u64::from(others[index]));
        let order = SearchOrder::DepthFirst { first: 2 };
        let found = find_path(&rows, &placement, keys[8], Scope::Table, order);
        let path = found.path.unwrap();
        assert_eq!(
            path[..2],
            [(7, keys[2]), (second, others[2])].map(|(row, key)| Step { row, index: 2, entry: key.into() })
        );
        assert_eq!((path.len(), path[2].row, found.full_rows), (3, placement.of(others[2]).primary, 2));
    }

    #[test]
    fn a_full_table_has_no_path() {
        let placement = placement(16);
        let keys = keys_of(&placement, 1).next().unwrap();
        // Every entry is the same key: all paths end in its two rows.
        let rows = vec![[u64::from(keys); ENTRIES]; 16];
        let found = |order| find_path(&rows, &placement, keys, Scope::Table, order);
        assert_eq!(found(SearchOrder::BreadthFirst), Found { path: None, full_rows: 2 });
        let depth_first = found(SearchOrder::DepthFirst { first: 0 });
        assert_eq!((depth_first.path, depth_first.full_rows), (None, 1));
    }
}
