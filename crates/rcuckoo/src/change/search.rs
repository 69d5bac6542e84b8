//! Cuckoo paths: breadth-first, from the key's rows to the nearest row with room. // [R-INSERT-1]
//!
//! One search serves three sources of rows: the client's cache (a hint), the rows this operation sampled (to decide
//! that the table is full), and the rows it holds locks on (to act). Each row is visited once, so a path never crosses
//! itself.

use arrayvec::ArrayVec;
use guira_layout::RowId;

use crate::change::window::RowIndex;
use crate::{RowPair, Table};

/// Rows on a path, at most: `max_path_rows` of any table.
pub(crate) const MAX_PATH_ROWS: usize = 16;

/// Rows a client has room for in a search from the start: enough for all but the rarest while a table fills to 90 %. A
/// longer search costs an allocation the first time; [`Limits::rows`] bounds it.
pub(crate) const SEARCH_ROWS: usize = 256;

/// What a source says of a row.
pub(crate) enum RowView<'r> {
    /// Its words.
    Row(&'r [u64]),
    /// Nothing is known: presume that it has room. // [R-INSERT-2]
    PresumedRoom,
    /// It must not be on a path.
    Closed,
    /// It has to be sampled first.
    Unsampled,
}

/// A row on a path and the slot that changes there: the entry to be moved on, or for the last row the free slot (`None`
/// if it is only presumed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) row: RowId,
    pub(crate) slot: Option<usize>,
}

/// From the row the new key goes to, to the row with room.
pub(crate) type Path = ArrayVec<Hop, MAX_PATH_ROWS>;

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Moves on a path, at most.
    pub(crate) depth: usize,
    /// Rows visited, at most.
    pub(crate) rows: usize,
}

/// Where a search stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Progress {
    /// See [`Search::found`].
    Found,
    /// No path within the limits.
    Exhausted,
    /// These rows are needed to go on; see [`Search::wanted`].
    NeedsRows,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    row: RowId,
    parent: u32,
    slot: u8,
    depth: u8,
}

const ROOT: u32 = u32::MAX;

/// A search, with its buffers kept from one to the next.
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
    slot: Option<usize>,
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
                self.nodes.push(Node { row: *row, parent: ROOT, slot: 0, depth: 0 });
            }
        }
    }

    /// Rows visited so far.
    pub(crate) fn visited(&self) -> usize {
        self.visited.len()
    }

    /// Goes on until a path is found, none is left, or rows are missing.
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
                RowView::Row(words) => match table.rows().free_slot(words) {
                    Some(slot) => self.candidate(table, Some(slot)),
                    None if self.best.is_none() => self.expand(table, node, words),
                    None => {}
                },
                // A path of this length is known already; a row that would have to be fetched cannot be worth a trip.
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

    /// The path that was found.
    pub(crate) fn found(&self) -> Option<Path> {
        self.best.map(|best| self.path(best))
    }

    /// The next rows the search will look at, up to `most`, that `known` does not know: sorted, without doubles.
    pub(crate) fn wanted(&mut self, most: usize, known: impl Fn(RowId) -> bool) -> &[RowId] {
        self.wanted.clear();
        let rows = self.nodes[self.head..].iter().map(|node| node.row);
        self.wanted.extend(rows.filter(|row| !known(*row)).take(most));
        self.wanted.sort_unstable();
        &self.wanted
    }

    /// Notes the node at the head as a path's end, if it needs fewer lock words than the best so far.
    fn candidate(&mut self, table: &Table, slot: Option<usize>) {
        let lock_words = self.lock_words(table, self.head);
        let better = self.best.is_none_or(|best| {
            let known_beats_presumed = slot.is_some() && best.slot.is_none();
            lock_words < best.lock_words || lock_words == best.lock_words && known_beats_presumed
        });
        if better {
            self.best = Some(Best { node: self.head, slot, lock_words });
        }
    }

    /// Lock words that the key's rows and the path to node `at` need.
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
        for slot in table.rows().occupied_slots(words) {
            if self.visited.len() >= self.limits.rows {
                return;
            }
            let pair = table.entry_rows(words, slot, &mut self.key);
            // A stale or torn row can hold an entry that does not belong to it.
            let Some(row) = pair.other(node.row) else { continue };
            if self.visited.insert(row, 0) {
                let (parent, depth) = (self.head as u32, node.depth + 1);
                self.nodes.push(Node { row, parent, slot: slot as u8, depth });
            }
        }
    }

    fn path(&self, best: Best) -> Path {
        let mut slot = best.slot;
        let mut path = Path::new();
        for node in self.ancestors(best.node) {
            path.push(Hop { row: node.row, slot });
            slot = Some(usize::from(node.slot));
        }
        path.reverse();
        path
    }
}
