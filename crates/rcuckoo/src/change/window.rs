//! Rows sampled in this operation, in one buffer, found by number.

use guira_layout::{MAX_LOCK_BYTES, RowId};

use crate::RowPair;
use crate::lookup::READ_WORDS;

const _: () = assert!(MAX_LOCK_BYTES <= READ_WORDS as u64 * 8, "as many READs as locks cover the rows of locks");

/// A map from rows to small numbers that is emptied in constant time.
#[derive(Debug)]
pub(crate) struct RowIndex {
    cells: Vec<Cell>,
    stamp: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    row: u64,
    value: u32,
    stamp: u32,
}

impl RowIndex {
    /// Creates an index that grows beyond `rows` rows only with an allocation.
    pub(crate) fn with_capacity(rows: usize) -> RowIndex {
        let cells = (2 * rows).next_power_of_two().max(16);
        RowIndex { cells: vec![Cell::default(); cells], stamp: 1, len: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.cells.fill(Cell::default());
            self.stamp = 1;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn cell(&self, row: RowId) -> usize {
        let mask = self.cells.len() - 1;
        let mut at = (row.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        // Ends: at most half of the cells are in use.
        while self.cells[at].stamp == self.stamp && self.cells[at].row != row.0 {
            at = (at + 1) & mask;
        }
        at
    }

    pub(crate) fn get(&self, row: RowId) -> Option<u32> {
        let cell = self.cells[self.cell(row)];
        (cell.stamp == self.stamp).then_some(cell.value)
    }

    /// Adds `row`. Returns false if it was there already; it keeps its value then.
    pub(crate) fn insert(&mut self, row: RowId, value: u32) -> bool {
        let at = self.cell(row);
        if self.cells[at].stamp == self.stamp {
            return false;
        }
        self.cells[at] = Cell { row: row.0, value, stamp: self.stamp };
        self.len += 1;
        if self.len * 2 > self.cells.len() {
            self.grow();
        }
        true
    }

    /// Adds `row`, or replaces its value.
    pub(crate) fn set(&mut self, row: RowId, value: u32) {
        if !self.insert(row, value) {
            let at = self.cell(row);
            self.cells[at].value = value;
        }
    }

    fn grow(&mut self) {
        let larger = vec![Cell::default(); self.cells.len() * 2];
        let old = std::mem::replace(&mut self.cells, larger);
        let stamp = self.stamp;
        for cell in old.into_iter().filter(|cell| cell.stamp == stamp) {
            let at = self.cell(RowId(cell.row));
            self.cells[at] = cell;
        }
    }
}

/// A range of neighbouring rows that one READ covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: RowId,
    rows: usize,
    is_read: bool,
}

/// Rows sampled together, each at its index in one buffer.
#[derive(Debug)]
pub(crate) struct Window {
    index: RowIndex,
    rows: Vec<RowId>,
    words: Vec<u64>,
    row_words: usize,
}

impl Window {
    /// Creates a window that grows beyond `rows` rows only with an allocation.
    pub(crate) fn new(row_words: usize, rows: usize) -> Window {
        let words = Vec::with_capacity(rows * row_words);
        Window { index: RowIndex::with_capacity(rows), rows: Vec::with_capacity(rows), words, row_words }
    }

    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.rows.clear();
        self.words.clear();
    }

    /// Adds `rows`, which are sorted and not in the window yet; returns the words to read them into.
    pub(crate) fn extend(&mut self, rows: &[RowId]) -> &mut [u64] {
        let start = self.words.len();
        for row in rows {
            let place = self.rows.len() as u32;
            if self.index.insert(*row, place) {
                self.rows.push(*row);
            }
        }
        self.words.resize(self.rows.len() * self.row_words, 0);
        &mut self.words[start..]
    }

    /// Adds a row with a copy of its words, unless it is in the window already.
    pub(crate) fn add(&mut self, row: RowId, words: &[u64]) {
        if self.place(row).is_none() {
            self.extend(&[row]).copy_from_slice(words);
        }
    }

    /// Adds a row with a copy of its words, or replaces its words.
    pub(crate) fn set(&mut self, row: RowId, words: &[u64]) {
        match self.place(row) {
            Some(place) => self.at_mut(place).copy_from_slice(words),
            None => self.add(row, words),
        }
    }

    /// Adds the rows of `pair` with copies of `words`, those of the first and then those of the second.
    pub(crate) fn add_pair(&mut self, pair: RowPair, words: &[u64]) {
        for (row, words) in [pair.first, pair.second].into_iter().zip(words.chunks_exact(self.row_words)) {
            self.add(row, words);
        }
    }

    pub(crate) fn rows(&self) -> &[RowId] {
        &self.rows
    }

    pub(crate) fn place(&self, row: RowId) -> Option<usize> {
        self.index.get(row).map(|place| place as usize)
    }

    pub(crate) fn row(&self, row: RowId) -> Option<&[u64]> {
        self.place(row).map(|place| self.at(place))
    }

    pub(crate) fn at(&self, place: usize) -> &[u64] {
        &self.words[place * self.row_words..][..self.row_words]
    }

    pub(crate) fn at_mut(&mut self, place: usize) -> &mut [u64] {
        &mut self.words[place * self.row_words..][..self.row_words]
    }

    /// Returns the ranges of neighbouring rows that `is_read` selects, by their first rows, with their words: one READ
    /// each, as long as a READ may be. [R-READ-2]
    pub(crate) fn stretches(&mut self, is_read: impl Fn(RowId) -> bool) -> impl Iterator<Item = (RowId, &mut [u64])> {
        stretches(&self.rows, &mut self.words, self.row_words, is_read)
    }
}

/// Same as [`Window::stretches`], for `rows` in `words`.
pub(crate) fn stretches<'w>(
    rows: &[RowId],
    mut words: &'w mut [u64],
    row_words: usize,
    is_read: impl Fn(RowId) -> bool,
) -> impl Iterator<Item = (RowId, &'w mut [u64])> {
    spans(rows, (READ_WORDS / row_words).max(1), is_read).filter_map(move |span| {
        let (into, rest) = std::mem::take(&mut words).split_at_mut(span.rows * row_words);
        words = rest;
        span.is_read.then_some((span.first, into))
    })
}

/// Sorts `rows`, removes duplicates, and adds the rows between those neighbours that `joins` names, so that one READ
/// covers them.
pub(crate) fn cover(rows: &mut Vec<RowId>, joins: impl Fn(RowId, RowId) -> bool) {
    rows.sort_unstable();
    rows.dedup();
    let known = rows.len();
    for i in 1..known {
        let (before, after) = (rows[i - 1], rows[i]);
        if joins(before, after) {
            rows.extend((before.0 + 1..after.0).map(RowId));
        }
    }
    if rows.len() > known {
        rows.sort_unstable();
    }
}

/// Returns the number of rows between `before` and `after`.
pub(crate) fn rows_between(before: RowId, after: RowId) -> u64 {
    after.0 - before.0 - 1
}

/// Returns the ranges of at most `most` neighbours in `rows`, which are sorted, that `is_read` selects, or does not.
fn spans(rows: &[RowId], most: usize, is_read: impl Fn(RowId) -> bool) -> impl Iterator<Item = Span> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let is_first_read = is_read(first);
        let mut rows = 1;
        while rows < rest.len().min(most)
            && rest[rows].0 == first.0 + rows as u64
            && is_read(rest[rows]) == is_first_read
        {
            rows += 1;
        }
        rest = &rest[rows..];
        Some(Span { first, rows, is_read: is_first_read })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_finds_every_row_it_holds() {
        let mut index = RowIndex::with_capacity(4);
        for fill in 0..3u64 {
            for i in 0..100 {
                assert!(index.insert(RowId(i * 7 + fill), i as u32));
                assert!(!index.insert(RowId(i * 7 + fill), 9999));
            }
            assert_eq!(index.len(), 100);
            assert!((0..100).all(|i| index.get(RowId(i * 7 + fill)) == Some(i as u32)));
            assert_eq!(index.get(RowId(3 + fill + 1)), None);
            index.set(RowId(7 + fill), 55);
            index.set(RowId(700_000), 66);
            assert_eq!((index.get(RowId(7 + fill)), index.get(RowId(700_000)), index.len()), (Some(55), Some(66), 101));
            index.clear();
            assert_eq!(index.get(RowId(fill)), None);
        }
    }

    #[test]
    fn near_rows_are_covered_by_one_read() {
        let mut rows = [9, 3, 4, 7, 3].map(RowId).to_vec();
        cover(&mut rows, |before, after| rows_between(before, after) <= 1);
        assert_eq!(rows, [3, 4, 7, 8, 9].map(RowId));
        let span = |first, rows, is_read| Span { first: RowId(first), rows, is_read };
        let found: Vec<_> = spans(&rows, 3, |_| true).collect();
        assert_eq!(found, [span(3, 2, true), span(7, 3, true)]);
        let found: Vec<_> = spans(&rows, 2, |row| row.0 > 3).collect();
        assert_eq!(found, [span(3, 1, false), span(4, 1, true), span(7, 2, true), span(9, 1, true)]);
    }

    /// [R-READ-2] No READ is longer than every fabric takes: rows that two neighbouring locks of 1 MiB guard are two.
    #[test]
    fn long_ranges_are_several_reads() {
        let row_words = 256;
        let mut window = Window::new(row_words, 0);
        window.extend(&(512..1536).chain(2048..2050).map(RowId).collect::<Vec<_>>());
        let reads: Vec<_> =
            window.stretches(|_| true).map(|(first, words)| (first.0, words.len() / row_words)).collect();
        assert_eq!(reads, [(512, 512), (1024, 512), (2048, 2)]);
    }
}
