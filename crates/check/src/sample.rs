//! Blocks of rows that are sampled together, with the secondary rows of their entries, so that duplicate keys are found
//! without a map of keys.

use guira_fabric::{FabricError, Lane, Verb, post};
use guira_layout::RowId;
use guira_rcuckoo::{Table, sample_rows};

/// READs in one batch of single rows: half of the smallest `max_batch` of all fabrics.
const BATCH_ROWS: usize = 64;

/// A block of consecutive rows, and the secondary rows of their primary entries.
#[derive(Debug)]
pub(crate) struct Block {
    first: RowId,
    words: Vec<u64>,
    valid: Vec<bool>,
    others: Vec<RowId>,
    other_words: Vec<u64>,
    row_words: usize,
}

impl Block {
    pub(crate) fn new(table: &Table) -> Block {
        let row_words = table.rows().row_words();
        Block {
            first: RowId(0),
            words: Vec::new(),
            valid: Vec::new(),
            others: Vec::new(),
            other_words: Vec::new(),
            row_words,
        }
    }

    /// Samples `count` rows from `first` on, then the secondary rows of their entries. 1 round trip, and 1 more for
    /// each 64 secondary rows that are not among them.
    pub(crate) async fn sample(
        &mut self,
        lane: &mut dyn Lane,
        table: &Table,
        first: RowId,
        count: usize,
    ) -> Result<(), FabricError> {
        let Block { valid, words, .. } = self;
        self.first = first;
        valid.clear();
        sample_rows(&mut *lane, table, first, count, words, |sample| valid.push(sample.valid)).await?;
        self.find_others(table);
        self.other_words.resize(self.others.len() * self.row_words, 0);
        let rows = self.others.chunks(BATCH_ROWS);
        for (rows, words) in rows.zip(self.other_words.chunks_mut(BATCH_ROWS * self.row_words)) {
            let reads = rows.iter().zip(words.chunks_exact_mut(self.row_words));
            let mut batch: Vec<Verb<'_>> =
                reads.map(|(row, into)| Verb::Read { addr: table.geometry().row(*row), into }).collect();
            post(&mut *lane, &mut batch[..]).await?;
        }
        Ok(())
    }

    /// Lists the secondary rows, outside of the block, of the keys whose primary row is in it.
    fn find_others(&mut self, table: &Table) {
        let mut key = Vec::new();
        self.others.clear();
        for (i, words) in self.words.chunks_exact(self.row_words).enumerate() {
            let row = RowId(self.first.0 + i as u64);
            if !self.valid[i] {
                continue;
            }
            for index in table.rows().occupied_entries(words) {
                let pair = table.entry_rows(row, words, index, &mut key);
                if pair.first == row && self.at(pair.second).is_none() {
                    self.others.push(pair.second);
                }
            }
        }
        self.others.sort_unstable();
        self.others.dedup();
    }

    /// Returns the rows of the block.
    pub(crate) fn rows(&self) -> impl Iterator<Item = RowId> + use<> {
        (self.first.0..self.first.0 + self.valid.len() as u64).map(RowId)
    }

    /// Returns the words of a row of the block, whether it verifies or not.
    pub(crate) fn at(&self, row: RowId) -> Option<&[u64]> {
        let index = usize::try_from(row.0.checked_sub(self.first.0)?).ok()?;
        self.words.chunks_exact(self.row_words).nth(index)
    }

    /// Returns the words of a row of the block, if it verifies.
    pub(crate) fn valid(&self, row: RowId) -> Option<&[u64]> {
        let index = usize::try_from(row.0.checked_sub(self.first.0)?).ok()?;
        if *self.valid.get(index)? { self.at(row) } else { None }
    }

    /// Returns the words of a row of the block or of the secondary rows, if it was sampled and verifies.
    pub(crate) fn valid_anywhere(&self, table: &Table, row: RowId) -> Option<&[u64]> {
        if self.at(row).is_some() {
            return self.valid(row);
        }
        let index = self.others.binary_search(&row).ok()?;
        let words = &self.other_words[index * self.row_words..][..self.row_words];
        table.rows().verify(row, words).is_ok().then_some(words)
    }
}
