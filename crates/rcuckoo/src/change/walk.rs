//! Depth-first search of a path: a random walk, as in earlier cuckoo hash tables. [R-INSERT-1]
//!
//! Both roots are looked at before the walk begins. It follows one entry after the other, in an order drawn from the
//! client's seed, and turns back at its greatest depth. A row is looked at again only where the walk reaches it by
//! fewer moves, so the walk finds a path whenever there is one, and no path crosses itself.

use guira_fabric::SplitMix64;
use guira_layout::RowId;

use super::search::{Best, Node, Progress, RowView, Search};
use crate::Table;

/// The state of a walk.
#[derive(Debug)]
pub(super) struct Walk {
    random: SplitMix64,
    /// Number of roots, which are the first nodes.
    roots: usize,
    /// Whether the walk has begun: none of the roots has a free entry.
    has_begun: bool,
    /// Nodes to look at, the next one last.
    pending: Vec<u32>,
    /// Rows looked at, including repetitions.
    steps: usize,
}

impl Walk {
    pub(super) fn new(seed: u64) -> Walk {
        let random = SplitMix64(seed ^ 0x7761_6c6b);
        Walk { random, roots: 0, has_begun: false, pending: Vec::new(), steps: 0 }
    }

    /// Puts the nodes in `pending` from index `from` on into a random order.
    fn shuffle(&mut self, from: usize) {
        for last in (from + 1..self.pending.len()).rev() {
            let other = from + self.random.below((last - from + 1) as u64) as usize;
            self.pending.swap(last, other);
        }
    }
}

impl Search {
    /// Starts a walk from the roots, which are the only nodes.
    pub(super) fn start_walk(&mut self) {
        self.visited.clear();
        self.walk.roots = self.nodes.len();
        self.walk.has_begun = false;
        self.walk.pending.clear();
        self.walk.steps = 0;
    }

    /// Continues until a path is found, none is left, or a row is missing.
    pub(super) fn advance_walk<'r>(&mut self, table: &Table, view: impl Fn(RowId) -> RowView<'r>) -> Progress {
        if !self.walk.has_begun {
            for at in 0..self.walk.roots {
                match view(self.nodes[at].row) {
                    RowView::Unsampled => return Progress::NeedsRows,
                    RowView::PresumedRoom => return self.end_at(at, None),
                    RowView::Row(words) => {
                        if let Some(index) = table.rows().free_entry(words) {
                            return self.end_at(at, Some(index));
                        }
                    }
                    RowView::Closed => {}
                }
            }
            self.walk.has_begun = true;
            self.walk.pending.extend(0..self.walk.roots as u32);
            self.walk.shuffle(0);
        }
        while let Some(at) = self.walk.pending.last().copied() {
            let node = self.nodes[at as usize];
            if self.is_visited(node.row, node.depth) {
                self.walk.pending.pop();
                continue;
            }
            if self.walk.steps == self.limits.rows {
                break;
            }
            let seen = view(node.row);
            if matches!(seen, RowView::Unsampled) {
                return Progress::NeedsRows;
            }
            self.walk.pending.pop();
            self.walk.steps += 1;
            self.visited.set(node.row, node.depth.into());
            match seen {
                RowView::Closed | RowView::Unsampled => {}
                RowView::PresumedRoom => return self.end_at(at as usize, None),
                RowView::Row(words) => match table.rows().free_entry(words) {
                    Some(index) => return self.end_at(at as usize, Some(index)),
                    None => self.follow(table, at, words),
                },
            }
        }
        Progress::Exhausted
    }

    /// Returns the rows that the walk looks at next: both roots, or one row.
    pub(super) fn next_of_walk(&self) -> impl Iterator<Item = RowId> {
        let roots = self.nodes[..self.walk.roots].iter().filter(|_| !self.walk.has_begun);
        let next = self.walk.pending.last().map(|at| &self.nodes[*at as usize]);
        roots.chain(next).map(|node| node.row)
    }

    fn end_at(&mut self, node: usize, index: Option<usize>) -> Progress {
        self.best = Some(Best { node, index, cost: Default::default() });
        Progress::Found
    }

    /// Whether the walk has looked at `row` after at most `depth` moves. The rows of its own path are among them.
    fn is_visited(&self, row: RowId, depth: u8) -> bool {
        self.visited.get(row).is_some_and(|before| before <= depth.into())
    }

    /// Adds the other rows of the entries in `words`, the row of node `at`, in a random order.
    fn follow(&mut self, table: &Table, at: u32, words: &[u64]) {
        let node = self.nodes[at as usize];
        if usize::from(node.depth) >= self.limits.depth {
            return;
        }
        let from = self.walk.pending.len();
        for index in table.rows().occupied_entries(words) {
            // A stale or torn row can hold an entry that does not belong to it.
            let Some(row) = table.entry_rows(node.row, words, index, &mut self.key).other(node.row) else { continue };
            let depth = node.depth + 1;
            if !self.is_visited(row, depth) {
                self.walk.pending.push(self.nodes.len() as u32);
                self.nodes.push(Node { row, parent: at, index: index as u8, depth });
            }
        }
        self.walk.shuffle(from);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use guira_layout::{EntryKind, Preset, PresetOptions, Secret, Superblock, TableConfig};

    use super::super::search::{Limits, Path, Unsampled};
    use super::*;
    use crate::{InsertRow, RowPair, SearchOrder};

    const ROWS: u64 = 256;
    const LIMITS: Limits = Limits {
        depth: 31,
        rows: 2048,
        locks_per_message: Some(64),
        insert_row: InsertRow::Primary,
        unsampled: Unsampled::InOrder,
    };

    /// Rows in memory.
    struct Rows {
        table: Arc<Table>,
        words: Vec<Vec<u64>>,
    }

    impl Rows {
        fn new() -> Rows {
            let options = PresetOptions {
                capacity: 1,
                format: "fixed:8:8".parse().unwrap(),
                extent_bytes: None,
                max_clients: Some(4),
                hash_seed: 5,
                device_bytes: u64::MAX,
            };
            let config = Preset::Hardened.config_of_rows(ROWS, &options).unwrap();
            let config = TableConfig { max_path_rows: 32, ..config };
            let table = Table::new(Superblock { incarnation: 1, table: 2, secret: Secret([3; 4]), config }).unwrap();
            let words = vec![vec![0; table.rows().row_words()]; ROWS as usize];
            Rows { table, words }
        }

        fn pair(&self, key: u64) -> RowPair {
            self.table.placement().rows(self.table.placement().digest(&key.to_le_bytes()))
        }

        /// Searches a path for `key` over rows that are not `closed`.
        fn search(&self, search: &mut Search, key: u64, limits: Limits, closed: &BTreeSet<u64>) -> Option<Path> {
            let pair = self.pair(key);
            search.start(pair, &[pair.first, pair.second], limits);
            let view = |row: RowId| match closed.contains(&row.0) {
                true => RowView::Closed,
                false => RowView::Row(&self.words[row.0 as usize]),
            };
            let progress = search.advance(&self.table, view);
            assert_eq!(progress == Progress::Found, search.found().is_some());
            search.found()
        }

        /// Moves the entries on `path`, which must lead from a row of `key` to a free entry, and puts `key` in front.
        fn insert(&mut self, key: u64, path: &Path) {
            let rows: BTreeSet<u64> = path.iter().map(|hop| hop.row.0).collect();
            assert_eq!(rows.len(), path.len(), "each row once: {path:?}");
            let format = self.table.rows().clone();
            for at in (0..path.len()).rev() {
                let index = path[at].index.unwrap().into();
                let entry = match at.checked_sub(1).map(|before| path[before]) {
                    Some(before) => {
                        let from = &self.words[before.row.0 as usize];
                        let index = usize::from(before.index.unwrap());
                        let moved = self.table.entry_rows(before.row, from, index, &mut Vec::new());
                        assert_eq!(moved.other(before.row), Some(path[at].row), "{path:?}");
                        format.entry(from, index).to_vec()
                    }
                    None => {
                        assert!(self.pair(key).other(path[0].row).is_some());
                        let (key, mut entry) = (key.to_le_bytes(), vec![0; format.entry_words()]);
                        let probe = format.probe(&key, self.table.placement().digest(&key));
                        format.encode_inline(&mut entry, &probe, &key);
                        entry
                    }
                };
                format.put_entry(&mut self.words[path[at].row.0 as usize], index, &entry, EntryKind::Inline);
            }
        }

        /// Puts keys from 0 on until `percent` of the entries are occupied; returns the number of moves to each key.
        fn fill(&mut self, search: &mut Search, percent: u64) -> Vec<usize> {
            let keys = self.table.config().max_entries() * percent / 100;
            let insert = |key| {
                let path = self.search(search, key, LIMITS, &BTreeSet::new()).expect("a path of up to 31 moves");
                self.insert(key, &path);
                path.len() - 1
            };
            (0..keys).map(insert).collect()
        }

        fn contains(&self, key: u64) -> bool {
            let bytes = key.to_le_bytes();
            let probe = self.table.probe(&self.table.key(&bytes).unwrap());
            let pair = self.pair(key);
            let rows = [pair.first, pair.second].map(|row| &self.words[row.0 as usize]);
            rows.iter().any(|words| self.table.rows().find(words, &probe, 0).is_some())
        }
    }

    fn walk(seed: u64) -> Search {
        Search::new(SearchOrder::DepthFirst, seed)
    }

    /// [R-INSERT-1] Walks fill a table to 95 %, lose no key, and follow from their seed. They are longer than the paths
    /// of a breadth-first search.
    #[test]
    fn walks_fill_a_table() {
        let mut moves = BTreeMap::new();
        for (name, mut search) in [
            ("first", walk(1)),
            ("same", walk(1)),
            ("other", walk(2)),
            ("breadth", Search::new(SearchOrder::BreadthFirst, 1)),
        ] {
            let mut rows = Rows::new();
            moves.insert(name, rows.fill(&mut search, 95));
            assert!((0..moves[name].len() as u64).all(|key| rows.contains(key)), "{name}");
        }
        assert_eq!(moves["first"], moves["same"]);
        assert_ne!(moves["first"], moves["other"]);
        let sum = |name| moves[name].iter().sum::<usize>();
        assert!(sum("first") > sum("breadth") && sum("other") > sum("breadth"));
    }

    /// [R-INSERT-1] A walk finds a path exactly where a breadth-first search does, over any set of rows and to any
    /// depth.
    #[test]
    fn walks_find_a_path_if_there_is_one() {
        let mut rows = Rows::new();
        rows.fill(&mut walk(3), 96);
        let (mut breadth, mut depth) = (Search::new(SearchOrder::BreadthFirst, 1), walk(4));
        let mut random = SplitMix64(9);
        let mut found = [0, 0];
        for key in 1_000_000..1_002_000 {
            let closed = (0..ROWS).filter(|_| random.below(3) == 0).collect();
            let limits = Limits { depth: random.below(5) as usize, ..LIMITS };
            let paths = [&mut breadth, &mut depth].map(|search| rows.search(search, key, limits, &closed));
            assert_eq!(paths[0].is_some(), paths[1].is_some(), "key {key}, {limits:?}");
            for path in paths.iter().flatten() {
                assert!(path.len() <= limits.depth + 1 && path.iter().all(|hop| !closed.contains(&hop.row.0)));
            }
            found[usize::from(paths[1].is_some())] += 1;
        }
        assert!(found[0] > 100 && found[1] > 100, "{found:?}");
    }

    /// [R-INSERT-1] [R-INSERT-5] A search that visits known rows first finds a path exactly where one in order does,
    /// whatever rows it samples in what batches, and sometimes only because it starts again in order.
    #[test]
    fn searches_of_known_rows_find_a_path_if_there_is_one() {
        let mut rows = Rows::new();
        rows.fill(&mut walk(3), 96);
        let (mut whole, mut parts) = [1, 2].map(|seed| Search::new(SearchOrder::BreadthFirst, seed)).into();
        let mut random = SplitMix64(11);
        let (mut found, mut longer) = ([0, 0], 0);
        for key in 3_000_000..3_003_000 {
            let pair = rows.pair(key);
            let closed: BTreeSet<u64> = (0..ROWS).filter(|_| random.below(4) == 0).collect();
            let mut known: BTreeSet<u64> = (0..ROWS).filter(|_| random.below(4) == 0).collect();
            let limits = Limits { depth: 1 + random.below(3) as usize, ..LIMITS };
            let shortest = rows.search(&mut whole, key, limits, &closed);
            let mut wanted = Vec::new();
            parts.start(pair, &[pair.first, pair.second], Limits { unsampled: Unsampled::Last, ..limits });
            loop {
                let progress =
                    parts.advance(&rows.table, |row| match (closed.contains(&row.0), known.contains(&row.0)) {
                        (_, false) => RowView::Unsampled,
                        (true, true) => RowView::Closed,
                        (false, true) => RowView::Row(&rows.words[row.0 as usize]),
                    });
                if progress != Progress::NeedsRows {
                    break;
                }
                parts.wanted(1 + random.below(8) as usize, |row| known.contains(&row.0), &mut wanted);
                assert!(!wanted.is_empty() && wanted.iter().all(|row| known.insert(row.0)), "{wanted:?}");
            }
            let path = parts.found();
            assert_eq!(path.is_some(), shortest.is_some(), "key {key}, {limits:?}");
            assert!(path.iter().flatten().all(|hop| !closed.contains(&hop.row.0)));
            longer += usize::from(path.iter().zip(&shortest).any(|(path, shortest)| path.len() > shortest.len()));
            found[usize::from(path.is_some())] += 1;
        }
        assert!(found[0] > 100 && found[1] > 100 && longer > 10, "{found:?}, {longer} longer");
    }

    /// [R-INSERT-1] Of the paths of fewest moves, the one to the emptiest row is found where new keys go to the emptier
    /// of their rows.
    #[test]
    fn paths_end_in_the_emptiest_row() {
        let mut rows = Rows::new();
        rows.fill(&mut walk(3), 85);
        let mut search = Search::new(SearchOrder::BreadthFirst, 1);
        let mut emptier = 0;
        for key in 4_000_000..4_002_000 {
            let limits = |insert_row| Limits { insert_row, locks_per_message: None, ..LIMITS };
            let [first, emptiest] = [InsertRow::Primary, InsertRow::Emptier]
                .map(|choice| rows.search(&mut search, key, limits(choice), &BTreeSet::new()).unwrap());
            assert_eq!(first.len(), emptiest.len());
            let occupied = |path: &Path| rows.table.rows().occupied(&rows.words[path[path.len() - 1].row.0 as usize]);
            assert!(occupied(&emptiest) <= occupied(&first));
            emptier += usize::from(first.len() > 1 && occupied(&emptiest) < occupied(&first));
        }
        assert!(emptier > 20, "{emptier}");
    }

    /// [R-INSERT-5] A walk ends after the rows that it may look at.
    #[test]
    fn walks_are_bounded() {
        let mut rows = Rows::new();
        rows.fill(&mut walk(3), 90);
        for row in &mut rows.words {
            let copy = row.clone();
            let format = rows.table.rows().clone();
            while let Some(index) = format.free_entry(row) {
                let Some(some) = format.occupied_entries(&copy).next() else { break };
                let entry = format.entry(&copy, some).to_vec();
                format.put_entry(row, index, &entry, EntryKind::Inline);
            }
        }
        let mut search = walk(7);
        for most in [1, 2, 10, 50] {
            let limits = Limits { rows: most, ..LIMITS };
            let path = rows.search(&mut search, 5_000_000 + most as u64, limits, &BTreeSet::new());
            assert!(path.is_none() && search.visited() <= most, "{most}: {path:?}, {}", search.visited());
        }
    }

    /// A walk asks for both roots together, and then for one row at a time.
    #[test]
    fn walks_ask_for_one_row_at_a_time() {
        let mut rows = Rows::new();
        rows.fill(&mut walk(3), 96);
        let full = |row: RowId| rows.table.rows().free_entry(&rows.words[row.0 as usize]).is_none();
        let mut keys = 2_000_000u64..;
        let key = keys.find(|key| full(rows.pair(*key).first) && full(rows.pair(*key).second)).unwrap();
        let (pair, mut search, mut known) = (rows.pair(key), walk(8), BTreeSet::<RowId>::new());
        search.start(pair, &[pair.first, pair.second], LIMITS);
        let (mut asked, mut wanted) = (Vec::new(), Vec::new());
        loop {
            let view = |row: RowId| match known.contains(&row) {
                true => RowView::Row(&rows.words[row.0 as usize]),
                false => RowView::Unsampled,
            };
            match search.advance(&rows.table, view) {
                Progress::NeedsRows => {
                    search.wanted(32, |row| known.contains(&row), &mut wanted);
                    asked.push(wanted.len());
                    known.extend(&wanted);
                }
                Progress::Found => break,
                Progress::Exhausted => panic!("there is a path"),
            }
        }
        assert_eq!(asked[0], 2);
        assert!(asked.len() > 1 && asked[1..].iter().all(|rows| *rows == 1), "{asked:?}");
        assert!(search.found().unwrap().len() > 1);
    }
}
