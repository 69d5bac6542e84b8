//! Bulk reads of rows: for scans, dumps, statistics and the table checker.

pub(crate) mod snapshot;
pub(crate) mod table_rows;

use guira_fabric::{FabricError, Lane, post};
use guira_layout::{EntryKind, ExtentRef, RowId, parse_extent};

use crate::lookup::{RetryReason, RetryState, read_extent};
use crate::{DamagedItem, Error, ErrorKind, Operation, Reader, Table};

/// One row of a bulk sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSample<'w> {
    /// The row.
    pub row: RowId,
    /// The row's words.
    pub words: &'w [u64],
    /// Whether the row verifies.
    pub valid: bool,
}

/// Samples `count` rows from `first` on with one READ, and passes each to `visit`. 1 round trip. The caller ensures
/// that the rows are below T.
///
/// # Errors
/// The fabric refused or lost the batch.
pub async fn sample_rows<L: Lane + ?Sized>(
    lane: &mut L,
    table: &Table,
    first: RowId,
    count: usize,
    words: &mut Vec<u64>,
    mut visit: impl FnMut(RowSample<'_>),
) -> Result<(), FabricError> {
    let row_words = table.rows().row_words();
    words.clear();
    words.resize(count * row_words, 0);
    post(lane, [table.read_row(first, words)]).await?;
    for (i, words) in words.chunks_exact(row_words).enumerate() {
        let row = RowId(first.0 + i as u64);
        visit(RowSample { row, words, valid: table.rows().verify(row, words).is_ok() });
    }
    Ok(())
}

/// The words of a sampled row's trailer.
pub type Trailer = [u64; 2];

/// Keys and values of one row, without an allocation for each.
#[derive(Debug, Default)]
pub struct RowItems {
    bytes: Vec<u8>,
    ends: Vec<(usize, usize)>,
    passed_over: Vec<DamagedItem>,
}

impl RowItems {
    /// Clears the items, and the entries to skip: the next row is a different one.
    pub fn reset(&mut self) {
        self.clear();
        self.passed_over.clear();
    }

    /// Excludes the damaged entry that made [`Reader::read_row`] fail, so that further reads of this row skip it and
    /// return the other entries. Returns false, and leaves no items, if the error does not name one entry.
    pub fn pass_over(&mut self, error: &Error) -> bool {
        self.clear();
        match &error.kind {
            ErrorKind::Corrupt { item: item @ (DamagedItem::Entry { .. } | DamagedItem::Extent { .. }) } => {
                self.passed_over.push(*item);
                true
            }
            _ => false,
        }
    }

    fn passes_over(&self, row: RowId, slot: usize, extent: &ExtentRef) -> bool {
        [DamagedItem::Entry { row, index: slot }, DamagedItem::of(extent)]
            .iter()
            .any(|item| self.passed_over.contains(item))
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Returns each key and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..).map_while(|at| self.get(at))
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the key and value at index `at`.
    pub fn get(&self, at: usize) -> Option<(&[u8], &[u8])> {
        let (key, end) = *self.ends.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before].1);
        Some((&self.bytes[start..key], &self.bytes[key..end]))
    }
}

impl Reader {
    /// Reads every key and value that `row` holds, as of one sample of the row, and returns the trailer with them: of a
    /// row that is read through a record [R-READ-9], the one that the record gives it. 1 round trip, and 1 more for each
    /// extent.
    ///
    /// # Errors
    /// `Corrupt` if the row or an extent does not verify, stays so, and no client is writing it; `Busy` if a client is
    /// writing it and does not finish within the deadline; the fabric's.
    pub async fn read_row<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        row: RowId,
        items: &mut RowItems,
    ) -> Result<Trailer, Error> {
        self.sample_items(lane, row, items).await.map_err(|kind| kind.during(Operation::Scan))
    }

    async fn sample_items<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        row: RowId,
        items: &mut RowItems,
    ) -> Result<Trailer, ErrorKind> {
        let table = std::sync::Arc::clone(&self.table);
        let mut words = vec![0; table.rows().row_words()];
        let mut retries = RetryState::default();
        loop {
            let trailer = if self.may_read_through_record(&retries) {
                let sampled = self.sample_through_record(lane, row, &mut words).await?;
                sampled.map(|_| table.rows().trailer_words(&words))
            } else {
                sample_row(lane, &table, row, &mut words).await?
            };
            let why = if trailer.is_some() { RetryReason::Changed } else { RetryReason::Torn };
            if let Some(trailer) = trailer {
                match self.row_items(lane, row, &words, items).await? {
                    None => return Ok(trailer),
                    Some(extent) => retries.note_mismatch(&extent)?,
                }
            }
            if why == RetryReason::Torn {
                self.refuse_destroyed(lane, &words).await?;
            }
            // Ends: by the deadline, or when the row turns out to be damaged. // [R-READ-5]
            self.wait_for(lane, row, why, &mut retries).await?;
        }
    }

    /// Extracts the items of the valid sample `words`. Returns the extent that no longer matches its entry, if there is
    /// one.
    async fn row_items<L: Lane + ?Sized>(
        &mut self,
        lane: &mut L,
        row: RowId,
        words: &[u64],
        items: &mut RowItems,
    ) -> Result<Option<ExtentRef>, ErrorKind> {
        let table = std::sync::Arc::clone(&self.table);
        let rows = table.rows();
        items.clear();
        for slot in rows.occupied_entries(words) {
            let key_end = match rows.entry_kind(words, slot) {
                EntryKind::Inline => {
                    rows.append_inline_key(words, slot, &mut items.bytes);
                    let key_end = items.bytes.len();
                    rows.append_inline_value(words, slot, &mut items.bytes);
                    key_end
                }
                EntryKind::Extent => {
                    let extent = rows.extent_of(words, slot);
                    if items.passes_over(row, slot, &extent) {
                        continue;
                    }
                    if extent.mark_offset(table.config(), table.geometry()).is_none() {
                        return Err(ErrorKind::Corrupt { item: DamagedItem::Entry { row, index: slot } });
                    }
                    read_extent(lane, &extent, &mut self.extent).await?;
                    let Ok(parsed) = parse_extent(&self.extent, &extent, table.rows().sums()) else {
                        return Ok(Some(extent));
                    };
                    parsed.append_key(&mut items.bytes);
                    let key_end = items.bytes.len();
                    parsed.append_value(&mut items.bytes);
                    key_end
                }
            };
            items.ends.push((key_end, items.bytes.len()));
        }
        Ok(None)
    }
}

/// Samples one row into `words`, and returns its trailer if it verifies. 1 round trip.
async fn sample_row<L: Lane + ?Sized>(
    lane: &mut L,
    table: &Table,
    row: RowId,
    words: &mut Vec<u64>,
) -> Result<Option<Trailer>, FabricError> {
    let mut valid = false;
    sample_rows(lane, table, row, 1, words, |sample| valid = sample.valid).await?;
    Ok(valid.then(|| table.rows().trailer_words(words)))
}
