//! Cuckoo paths: breadth-first, from the key's rows to the nearest row with a free entry. [R-INSERT-1] Depth-first
//! searches are in walk.rs.
//!
//! One search serves three sources of rows: the client's cache (a hint), the rows that this operation sampled (to
//! decide that the table is full), and the rows that it holds locks on (to act). Each row is visited once, so a path
//! never crosses itself.

use arrayvec::ArrayVec;
use guira_layout::RowId;

use crate::change::walk::Walk;
use crate::change::window::RowIndex;
use crate::locks::count_messages;
use crate::{InsertRow, RowPair, SearchOrder, Table};

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
    pub(crate) index: Option<u8>,
}

const _: () = assert!(guira_layout::MAX_ENTRIES_PER_ROW <= u8::MAX as usize);

/// A path from the row that the new key goes to, to the row with a free entry.
pub(crate) type Path = ArrayVec<Hop, MAX_PATH_ROWS>;

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of moves on a path.
    pub(crate) depth: usize,
    /// Maximum number of rows visited.
    pub(crate) rows: usize,
    /// Maximum number of locks that one message takes; `None` if the locks are held.
    pub(crate) locks_per_message: Option<u32>,
    /// Whether, of paths of one length that need as many messages, the one to the emptiest row is best.
    pub(crate) insert_row: InsertRow,
    /// When rows that must be sampled are visited.
    pub(crate) unsampled: Unsampled,
}

/// When a breadth-first search visits rows that must be sampled first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsampled {
    /// In order, so that the path that is found is a shortest one, and an exhausted search has visited all rows within
    /// the limits.
    InOrder,
    /// After all rows that are known: a longer path over these costs less than another round trip. If there is no path,
    /// the search starts again in order.
    Last,
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
pub(super) struct Node {
    pub(super) row: RowId,
    pub(super) parent: u32,
    pub(super) index: u8,
    pub(super) depth: u8,
}

const ROOT: u32 = u32::MAX;

/// A search, with buffers that are kept from one search to the next.
#[derive(Debug)]
pub(crate) struct Search {
    order: SearchOrder,
    pub(super) nodes: Vec<Node>,
    /// Rows that were visited; depth-first, with the fewest moves to each.
    pub(super) visited: RowIndex,
    head: usize,
    /// Nodes before the head whose rows must be sampled.
    deferred: Vec<u32>,
    pub(super) best: Option<Best>,
    pub(super) limits: Limits,
    roots: RowPair,
    pub(super) key: Vec<u8>,
    pub(super) walk: Walk,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Best {
    pub(super) node: usize,
    pub(super) index: Option<usize>,
    pub(super) cost: Cost,
}

/// The cost of a path, most significant first: moves, messages that lock it, whether its free entry is only presumed,
/// and how full its last row is, if that matters.
pub(super) type Cost = (u8, usize, bool, u32);

impl Search {
    pub(crate) fn new(order: SearchOrder, seed: u64) -> Search {
        let (locks_per_message, unsampled) = (None, Unsampled::InOrder);
        let limits = Limits { depth: 0, rows: 0, locks_per_message, insert_row: InsertRow::Primary, unsampled };
        let roots = RowPair { first: RowId(0), second: RowId(0) };
        Search {
            order,
            walk: Walk::new(seed),
            nodes: Vec::with_capacity(SEARCH_ROWS),
            visited: RowIndex::with_capacity(SEARCH_ROWS),
            head: 0,
            deferred: Vec::with_capacity(SEARCH_ROWS),
            best: None,
            limits,
            roots,
            key: Vec::new(),
        }
    }

    /// Starts a search for the key of `pair` from `roots`.
    pub(crate) fn start(&mut self, pair: RowPair, roots: &[RowId], limits: Limits) {
        self.nodes.clear();
        self.visited.clear();
        self.head = 0;
        self.deferred.clear();
        self.best = None;
        self.limits = limits;
        self.roots = pair;
        for row in roots {
            if self.visited.insert(*row, 0) {
                self.nodes.push(Node { row: *row, parent: ROOT, index: 0, depth: 0 });
            }
        }
        if self.order == SearchOrder::DepthFirst {
            self.start_walk();
        }
    }

    /// Returns the number of rows visited so far.
    pub(crate) fn visited(&self) -> usize {
        self.visited.len()
    }

    /// Continues until a path is found, none is left, or rows are missing.
    pub(crate) fn advance<'r>(&mut self, table: &Table, view: impl Fn(RowId) -> RowView<'r>) -> Progress {
        match self.order {
            SearchOrder::BreadthFirst => self.advance_breadth_first(table, &view),
            SearchOrder::DepthFirst => self.advance_walk(table, view),
        }
    }

    fn advance_breadth_first<'r>(&mut self, table: &Table, view: &impl Fn(RowId) -> RowView<'r>) -> Progress {
        // Of paths of one length, no other costs less than one that needs as few messages.
        let is_by_messages = self.limits.insert_row == InsertRow::Primary;
        let least = is_by_messages.then(|| self.messages(table, [self.roots.first, self.roots.second]));
        let deferred = self.deferred.len();
        for place in 0..deferred {
            self.visit(table, self.deferred[place], view);
        }
        self.deferred.drain(..deferred);
        while self.head < self.nodes.len() {
            let missing = self.deferred.len();
            self.visit(table, self.head as u32, view);
            if self.deferred.len() > missing && self.limits.unsampled == Unsampled::InOrder {
                self.deferred.pop();
                break;
            }
            self.head += 1;
            if self.best.is_some_and(|best| least.is_some_and(|least| best.cost.1 <= least)) {
                break;
            }
        }
        let is_exhausted = self.head == self.nodes.len() && self.deferred.is_empty();
        match self.best {
            Some(_) => Progress::Found,
            None if !is_exhausted => Progress::NeedsRows,
            None if self.limits.unsampled == Unsampled::Last => {
                // A row that was visited out of order may have been too far along a path. // [R-INSERT-5]
                self.start_in_order();
                self.advance_breadth_first(table, view)
            }
            None => Progress::Exhausted,
        }
    }

    /// Starts again from the same roots, in order.
    fn start_in_order(&mut self) {
        let roots: ArrayVec<RowId, 2> =
            self.nodes.iter().take_while(|node| node.parent == ROOT).map(|node| node.row).collect();
        self.start(self.roots, &roots, Limits { unsampled: Unsampled::InOrder, ..self.limits });
    }

    /// Looks at the row of `node`, unless a shorter path than to it is known.
    fn visit<'r>(&mut self, table: &Table, node: u32, view: &impl Fn(RowId) -> RowView<'r>) {
        let Node { row, depth, .. } = self.nodes[node as usize];
        if self.best.is_some_and(|best| best.cost.0 < depth) {
            return;
        }
        match view(row) {
            RowView::Closed => {}
            RowView::PresumedRoom => self.candidate(table, node, None, 0),
            RowView::Row(words) => match table.rows().free_entry(words) {
                Some(index) => self.candidate(table, node, Some(index), table.rows().occupied(words)),
                None if self.best.is_none() => self.expand(table, node, words),
                None => {}
            },
            // A path is already known; fetching a row for another is not worth a round trip.
            RowView::Unsampled if self.best.is_some() => {}
            RowView::Unsampled => self.deferred.push(node),
        }
    }

    /// Returns the path that was found.
    pub(crate) fn found(&self) -> Option<Path> {
        self.best.map(|best| self.path(best))
    }

    /// Fills `rows` with the next rows that the search will visit, up to `most`, without those that `known` knows.
    pub(crate) fn wanted(&self, most: usize, known: impl Fn(RowId) -> bool, rows: &mut Vec<RowId>) {
        rows.clear();
        match self.order {
            SearchOrder::BreadthFirst => {
                let deferred = self.deferred.iter().map(|node| &self.nodes[*node as usize]);
                let next = deferred.chain(&self.nodes[self.head..]).map(|node| node.row);
                rows.extend(next.filter(|row| !known(*row)).take(most));
            }
            SearchOrder::DepthFirst => rows.extend(self.next_of_walk().filter(|row| !known(*row)).take(most)),
        }
    }

    /// Takes `node`, whose row has so many entries, as the path's end, if that path costs less than the best so far.
    fn candidate(&mut self, table: &Table, node: u32, index: Option<usize>, occupied: u32) {
        let messages = self.messages_of_path(table, node as usize);
        let occupied = if self.limits.insert_row == InsertRow::Emptier { occupied } else { 0 };
        let cost = (self.nodes[node as usize].depth, messages, index.is_none(), occupied);
        if self.best.is_none_or(|best| cost < best.cost) {
            self.best = Some(Best { node: node as usize, index, cost });
        }
    }

    /// Returns the number of messages that lock the key's rows and the path to node `at`.
    fn messages_of_path(&self, table: &Table, at: usize) -> usize {
        let path = self.ancestors(at).map(|node| node.row);
        self.messages(table, path.chain([self.roots.first, self.roots.second]))
    }

    fn messages(&self, table: &Table, rows: impl IntoIterator<Item = RowId>) -> usize {
        self.limits.locks_per_message.map_or(0, |most| count_messages(table, rows, most))
    }

    fn ancestors(&self, at: usize) -> impl Iterator<Item = Node> {
        let first = Some(self.nodes[at]);
        std::iter::successors(first, |node| self.nodes.get(node.parent as usize).copied())
    }

    fn expand(&mut self, table: &Table, at: u32, words: &[u64]) {
        let node = self.nodes[at as usize];
        if usize::from(node.depth) >= self.limits.depth {
            return;
        }
        for index in table.rows().occupied_entries(words) {
            if self.visited.len() >= self.limits.rows {
                return;
            }
            let pair = table.entry_rows(node.row, words, index, &mut self.key);
            // A stale or torn row can hold an entry that does not belong to it.
            let Some(row) = pair.other(node.row) else { continue };
            if self.visited.insert(row, 0) {
                let (parent, depth) = (at, node.depth + 1);
                self.nodes.push(Node { row, parent, index: index as u8, depth });
            }
        }
    }

    fn path(&self, best: Best) -> Path {
        let mut index = best.index.map(|index| index as u8);
        let mut path = Path::new();
        for node in self.ancestors(best.node) {
            path.push(Hop { row: node.row, index });
            index = Some(node.index);
        }
        path.reverse();
        path
    }
}
