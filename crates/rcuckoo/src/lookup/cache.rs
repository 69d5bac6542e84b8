//! The client's row cache: bounded, and only a hint. [R-INSERT-2] Changes read it; lookups may add to it.
//!
//! Direct-mapped by row number, so that a range of neighbouring rows never evicts itself. Its content is checked under
//! locks before anything relies on it.

use guira_layout::RowId;

/// Rows seen by earlier operations.
#[derive(Debug)]
pub(crate) struct RowCache {
    rows: Vec<Option<RowId>>,
    words: Vec<u64>,
    row_words: usize,
}

impl RowCache {
    /// Creates a cache of at most `bytes` bytes of rows, and at least one row.
    pub(crate) fn new(bytes: usize, row_words: usize) -> RowCache {
        let rows = (bytes / (row_words * 8)).max(1);
        RowCache { rows: vec![None; rows], words: vec![0; rows * row_words], row_words }
    }

    /// Creates a cache that stays empty: that of a reader without a client.
    pub(crate) fn none() -> RowCache {
        RowCache { rows: Vec::new(), words: Vec::new(), row_words: 0 }
    }

    /// Returns the place of `row`; `None` if the cache stays empty.
    fn place(&self, row: RowId) -> Option<usize> {
        row.0.checked_rem(self.rows.len() as u64).map(|place| place as usize)
    }

    pub(crate) fn get(&self, row: RowId) -> Option<&[u64]> {
        let place = self.place(row)?;
        (self.rows[place] == Some(row)).then(|| &self.words[place * self.row_words..][..self.row_words])
    }

    pub(crate) fn put(&mut self, row: RowId, words: &[u64]) {
        let Some(place) = self.place(row) else { return };
        self.rows[place] = Some(row);
        self.words[place * self.row_words..][..self.row_words].copy_from_slice(words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_cached_until_another_replaces_it() {
        let mut cache = RowCache::new(64, 4);
        assert_eq!(cache.get(RowId(1)), None);
        cache.put(RowId(1), &[1, 2, 3, 4]);
        cache.put(RowId(2), &[5, 6, 7, 8]);
        assert_eq!(cache.get(RowId(1)), Some(&[1, 2, 3, 4][..]));
        cache.put(RowId(3), &[9; 4]);
        assert_eq!((cache.get(RowId(1)), cache.get(RowId(3))), (None, Some(&[9; 4][..])));
        let mut none = RowCache::none();
        none.put(RowId(3), &[9; 4]);
        assert_eq!(none.get(RowId(3)), None);
    }
}
