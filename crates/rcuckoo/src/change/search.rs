//! Cuckoo paths: breadth-first, from the key's rows to the nearest row with a free entry. [R-INSERT-1]
//!
//! One search serves three sources of rows: the client's cache (a hint), the rows that this operation sampled (to
//! decide that the table is full), and the rows that it holds locks on (to act). Each row is visited once, so a path
//! never crosses itself.

use arrayvec::ArrayVec;
use guira_layout::RowId;

use crate::change::window::RowIndex;
use crate::{RowPair, Table};

/// Maximum number of rows on a path: `max_path_rows` of any table.
pub(crate) const MAX_PATH_ROWS: usize = guira_layout::MAX_PATH_ROWS as usize;

/// Number of rows for which a search has memory from the start: enough for nearly all searches while a table fills to
/// 90 %. A longer search costs an allocation the first time; [`Limits::rows`] bounds it.
pub(crate) const SEARCH_ROWS: usize = 256;

/// A source's view of a row.
pub(crate) enum RowView<'r> {
    /// The row's words.
    Row(&'r [u64]),
    /// The row is unknown and presumed to have a free entry. [R-INSERT-2]
    PresumedRoom,
    /// The row must not be on a path.
    Closed,
    /// The row must be sampled first.
    Unsampled,
}

/// A row on a path and the index of the entry that changes there: the entry to be moved on, or for the last row the
/// free entry (`None` if it is only presumed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) row: RowId,
    pub(crate) index: Option<usize>,
}

/// A path from the row that the new key goes to, to the row with a free entry.
pub(crate) type Path = ArrayVec<Hop, MAX_PATH_ROWS>;

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of moves on a path.
    pub(crate) depth: usize,
    /// Maximum number of rows visited.
    pub(crate) rows: usize,
}

/// The state of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Progress {
    /// A path was found; see [`Search::found`].
    Found,
    /// There is no path within the limits.
    Exhausted,
    /// More rows are needed; see [`Search::wanted`].
    NeedsRows,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    row: RowId,
    parent: u32,
    index: u8,
    depth: u8,
}

const ROOT: u32 = u32::MAX;

/// A breadth-first search, with buffers that are kept from one search to the next.
#[derive(Debug)]
pub(crate) struct Search {
    nodes: Vec<Node>,
    visited: RowIndex,
    head: usize,
    best: Option<Best>,
    limits: Limits,
    roots: RowPair,
    wanted: Vec<RowId>,
    key: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Best {
    node: usize,
    index: Option<usize>,
    lock_words: usize,
}

impl Search {
    pub(crate) fn new(rows: usize) -> Search {
        let limits = Limits { depth: 0, rows };
        let roots = RowPair { first: RowId(0), second: RowId(0) };
        Search {
            nodes: Vec::with_capacity(SEARCH_ROWS),
            visited: RowIndex::with_capacity(SEARCH_ROWS),
            head: 0,
            best: None,
            limits,
            roots,
            wanted: Vec::new(),
            key: Vec::new(),
        }
    }

    /// Starts a search for the key of `pair` from `roots`.
    pub(crate) fn start(&mut self, pair: RowPair, roots: &[RowId], limits: Limits) {
        self.nodes.clear();
        self.visited.clear();
        self.head = 0;
        self.best = None;
        self.limits = limits;
        self.roots = pair;
        for row in roots {
            if self.visited.insert(*row, 0) {
                self.nodes.push(Node { row: *row, parent: ROOT, index: 0, depth: 0 });
            }
        }
    }

    /// Returns the number of rows visited so far.
    pub(crate) fn visited(&self) -> usize {
        self.visited.len()
    }

    /// Continues until a path is found, none is left, or rows are missing.
    pub(crate) fn advance<'r>(&mut self, table: &Table, view: impl Fn(RowId) -> RowView<'r>) -> Progress {
        let least = crate::locks::lock_set(table, [self.roots.first, self.roots.second]).len();
        while let Some(node) = self.nodes.get(self.head).copied() {
            if let Some(best) = self.best
                && self.nodes[best.node].depth < node.depth
            {
                break;
            }
            match view(node.row) {
                RowView::Closed => {}
                RowView::PresumedRoom => self.candidate(table, None),
                RowView::Row(words) => match table.rows().free_entry(words) {
                    Some(index) => self.candidate(table, Some(index)),
                    None if self.best.is_none() => self.expand(table, node, words),
                    None => {}
                },
                // A path of this length is already known; fetching a row for another is not worth a round trip.
                RowView::Unsampled if self.best.is_some() => {}
                RowView::Unsampled => return Progress::NeedsRows,
            }
            self.head += 1;
            if self.best.is_some_and(|best| best.lock_words <= least) {
                break;
            }
        }
        if self.best.is_some() { Progress::Found } else { Progress::Exhausted }
    }

    /// Returns the path that was found.
    pub(crate) fn found(&self) -> Option<Path> {
        self.best.map(|best| self.path(best))
    }

    /// Returns the next rows that the search will visit, up to `most`, without those that `known` knows: sorted,
    /// without duplicates.
    pub(crate) fn wanted(&mut self, most: usize, known: impl Fn(RowId) -> bool) -> &[RowId] {
        self.wanted.clear();
        let rows = self.nodes[self.head..].iter().map(|node| node.row);
        self.wanted.extend(rows.filter(|row| !known(*row)).take(most));
        self.wanted.sort_unstable();
        &self.wanted
    }

    /// Takes the node at the head as the path's end, if that path needs fewer lock words than the best so far.
    fn candidate(&mut self, table: &Table, index: Option<usize>) {
        let lock_words = self.lock_words(table, self.head);
        let better = self.best.is_none_or(|best| {
            let known_beats_presumed = index.is_some() && best.index.is_none();
            lock_words < best.lock_words || lock_words == best.lock_words && known_beats_presumed
        });
        if better {
            self.best = Some(Best { node: self.head, index, lock_words });
        }
    }

    /// Returns the number of lock words that the key's rows and the path to node `at` need.
    fn lock_words(&self, table: &Table, at: usize) -> usize {
        let path = self.ancestors(at).map(|node| node.row);
        crate::locks::lock_set(table, path.chain([self.roots.first, self.roots.second])).len()
    }

    fn ancestors(&self, at: usize) -> impl Iterator<Item = Node> {
        let first = Some(self.nodes[at]);
        std::iter::successors(first, |node| self.nodes.get(node.parent as usize).copied())
    }

    fn expand(&mut self, table: &Table, node: Node, words: &[u64]) {
        if usize::from(node.depth) >= self.limits.depth {
            return;
        }
        for index in table.rows().occupied_entries(words) {
            if self.visited.len() >= self.limits.rows {
                return;
            }
            let pair = table.entry_rows(words, index, &mut self.key);
            // A stale or torn row can hold an entry that does not belong to it.
            let Some(row) = pair.other(node.row) else { continue };
            if self.visited.insert(row, 0) {
                let (parent, depth) = (self.head as u32, node.depth + 1);
                self.nodes.push(Node { row, parent, index: index as u8, depth });
            }
        }
    }

    fn path(&self, best: Best) -> Path {
        let mut index = best.index;
        let mut path = Path::new();
        for node in self.ancestors(best.node) {
            path.push(Hop { row: node.row, index });
            index = Some(usize::from(node.index));
        }
        path.reverse();
        path
    }
}
