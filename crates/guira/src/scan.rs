//! Reading a whole table: scans, snapshots, and estimates of the number of entries.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use guira_fabric::{Lane, Region, Waiting};
use guira_layout::RowId;
use guira_rcuckoo::{ErrorKind, Operation, Reader, RowItems, TableRows};

use crate::fabric::{FabricLane, FabricRegion};
use crate::store::Inner;
use crate::wait::block_on;
use crate::{Blame, Error, Store};

/// A function called with each key and value of a scan, in this order, which returns whether to go on.
pub type Visitor<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// The part of a row that a scan could not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The whole row.
    Row,
    /// One of its entries, whose extent is damaged.
    Entry,
}

/// A function called with the number of a row that a scan could not read, the part that is unreadable, and the error.
pub type DamageVisitor<'v> = dyn FnMut(u64, Unreadable, &Error) + 'v;

/// The counts of a scan that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanSummary {
    /// Rows read.
    pub rows: u64,
    /// Entries visited, including the one at which the visitor stopped.
    pub entries: u64,
    /// Rows among them that could not be read completely. Always 0 after [`Store::scan_with`].
    pub unreadable_rows: u64,
}

/// An iterator over the keys and values of a table, from [`Store::scan`]. It keeps the items of one row in memory, and
/// reads the next row when they are used up. It ends after an error.
#[derive(Debug)]
pub struct Scan {
    rows: RowScan,
    /// Items of the current row that were returned already.
    returned: usize,
}

/// A copy of all keys and values of a table, from [`Store::snapshot`].
#[derive(Debug)]
pub struct Snapshot(guira_rcuckoo::Snapshot);

impl Snapshot {
    /// Iterates over the keys and their values, in the table's order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter()
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of rows of the table.
    pub fn rows(&self) -> u64 {
        self.0.rows()
    }

    /// Returns the number of sweeps: how often all rows were read again to find changes, at most as often as asked for.
    pub fn sweeps(&self) -> u32 {
        self.0.sweeps()
    }

    /// Whether this is the table as it was at one moment. If not, other clients changed it all the time, or its row
    /// versions are too narrow to tell (preset `paper`), and each row is as it was at some moment of the scan. Source:
    /// R-SCAN-1.
    pub fn is_stable(&self) -> bool {
        self.0.is_stable()
    }
}

/// An estimate of the number of a table's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LenEstimate {
    /// Entries: exact if every row was counted and no client changed the table meanwhile.
    pub entries: u64,
    /// Half the width of the 95 % confidence interval, in entries; 0 if every row was counted.
    pub error: u64,
    /// Entries that the table has room for: now, if it grows.
    pub capacity: u64,
}

/// Reads a table row by row.
pub(crate) struct RowScan {
    inner: Arc<Inner>,
    reader: Reader,
    lane: FabricLane,
    items: RowItems,
    /// Rows behind those of `range`; `None` before the first row and after the last.
    ahead: Option<TableRows>,
    /// Rows to be read next.
    range: Range<u64>,
    /// The rest of the time for which unreadable rows are waited for.
    left_ns: u64,
}

impl RowScan {
    pub(crate) fn new(inner: &Arc<Inner>, region: &FabricRegion, waiting: Waiting) -> RowScan {
        let config = inner.client_config(0);
        RowScan {
            left_ns: config.deadline_ns,
            reader: Reader::new(Arc::clone(&inner.table), config),
            lane: region.lane_waiting(waiting),
            inner: Arc::clone(inner),
            items: RowItems::default(),
            ahead: None,
            range: 0..0,
        }
    }

    /// Reads the next row, whose items replace those of the last, and returns whether it was read completely; `None` if
    /// there is no further row. `unreadable` is called with the number of a row that could not be read, the unreadable
    /// part and the error, and returns whether to go on.
    async fn next<U>(&mut self, unreadable: &mut U) -> Result<Option<bool>, Error>
    where
        U: FnMut(u64, Unreadable, Error) -> Result<(), Error> + ?Sized,
    {
        self.items.reset();
        let Some(row) = self.next_row().await? else { return Ok(None) };
        let mut is_whole = true;
        // Each failure skips one more entry, or ends the row.
        for _ in 0..=self.inner.table.rows().entries() {
            let began_ns = self.lane.now_ns();
            let error = match self.reader.read_row(self.lane.any(), row, &mut self.items).await {
                Ok([trailer, _]) => {
                    self.ahead.iter_mut().for_each(|ahead| ahead.note(row, trailer));
                    break;
                }
                Err(error) => error,
            };
            // All unreadable parts together are waited for as long as one operation waits.
            self.left_ns = self.left_ns.saturating_sub(self.lane.now_ns().saturating_sub(began_ns));
            self.reader.set_deadline_ns(self.left_ns);
            is_whole = false;
            let part = if self.items.pass_over(&error) { Unreadable::Entry } else { Unreadable::Row };
            unreadable(row.0, part, self.inner.events.failed(error))?;
            if part == Unreadable::Row {
                break;
            }
        }
        Ok(Some(is_whole))
    }

    /// Returns the row to read next. No round trip, except before the first row of a table that grows.
    async fn next_row(&mut self) -> Result<Option<RowId>, Error> {
        let ahead = match &mut self.ahead {
            Some(ahead) => ahead,
            None => {
                let read = TableRows::read(self.lane.any(), &self.inner.table).await;
                let failed = |source| ErrorKind::from(source).during(Operation::Scan);
                self.ahead.insert(read.map_err(failed).map_err(|error| self.inner.events.failed(error))?)
            }
        };
        if self.range.is_empty() {
            self.range = ahead.next_range().unwrap_or_default();
        }
        Ok(self.range.next().map(RowId))
    }

    /// Skips all rows that were not read.
    fn end(&mut self) {
        self.ahead = Some(TableRows::default());
        self.range = 0..0;
        self.items.reset();
    }
}

impl std::fmt::Debug for RowScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowScan")
            .field("url", &self.inner.url)
            .field("next_row", &self.range.start)
            .finish_non_exhaustive()
    }
}

/// A key and its value.
pub(crate) type Item = (Vec<u8>, Vec<u8>);

impl Scan {
    pub(crate) fn new(rows: RowScan) -> Scan {
        Scan { rows, returned: 0 }
    }

    /// Returns the next key and its value.
    pub(crate) async fn next_item(&mut self) -> Option<Result<Item, Error>> {
        loop {
            if let Some((key, value)) = self.rows.items.get(self.returned) {
                self.returned += 1;
                return Some(Ok((key.to_vec(), value.to_vec())));
            }
            self.returned = 0;
            match self.rows.next(&mut |_, _, error| Err(error)).await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => {
                    self.rows.end();
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Iterator for Scan {
    type Item = Result<Item, Error>;

    fn next(&mut self) -> Option<Result<Item, Error>> {
        block_on(self.next_item())
    }
}

impl std::iter::FusedIterator for Scan {}

impl Store {
    /// Iterates over the keys and values of the table, in its order, while other clients change it. The iterator reads
    /// row after row.
    ///
    /// A key that no insert moves meanwhile is returned at least once; one that is moved may be missed or returned
    /// twice, and in a table that grows one whose segment is split may be returned twice. [`Store::snapshot`] returns
    /// all keys of one moment, and [`Store::scan_with`] does not allocate for each key. Round trips: 1 for each row, 1
    /// more for each extent.
    ///
    /// # Errors
    /// `Fabric`. Items may be errors: `Corrupt` if a row or an extent does not verify and no client is writing it;
    /// `Busy` if a client is, and does not finish before the deadline; `Destroyed`; `Fabric`. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let mut bytes = 0;
    /// for item in store.scan()? {
    ///     let (key, value) = item?;
    ///     bytes += key.len() + value.len();
    /// }
    /// assert_eq!(bytes, 17);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn scan(&self) -> Result<Scan, Error> {
        Ok(Scan::new(self.row_scan()?))
    }

    /// Visits the keys and values that [`Store::scan`] returns, without an allocation for each. The visitor may stop
    /// the scan. Round trips: as [`Store::scan`].
    ///
    /// # Errors
    /// Same as those of the items of [`Store::scan`]. The keys before the error were visited. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let mut bytes = 0;
    /// let summary = store.scan_with(&mut |key, value| {
    ///     bytes += key.len() + value.len();
    ///     std::ops::ControlFlow::Continue(())
    /// })?;
    /// assert_eq!((summary.entries, bytes), (1, 17));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn scan_with(&self, visit: &mut Visitor<'_>) -> Result<ScanSummary, Error> {
        self.scan_rows(visit, &mut |_, _, error| Err(error))
    }

    /// Same as [`Store::scan_with`], but continues past rows that are damaged, or that a client is writing and does not
    /// finish within the deadline, and past entries whose extents are damaged: `unreadable` is called for each. All
    /// waiting together takes no longer than the deadline: after that, a row whose writer has stopped is given up at
    /// once. Round trips: as [`Store::scan`], and more for what has to be read again.
    ///
    /// # Errors
    /// `Destroyed`; `Fabric`. Nothing was changed.
    pub fn scan_past_damage(
        &self,
        visit: &mut Visitor<'_>,
        unreadable: &mut DamageVisitor<'_>,
    ) -> Result<ScanSummary, Error> {
        self.scan_rows(visit, &mut |row, part, error| match error.blame() {
            Blame::Corrupt | Blame::Busy => {
                unreadable(row, part, &error);
                Ok(())
            }
            _ => Err(error),
        })
    }

    fn row_scan(&self) -> Result<RowScan, Error> {
        let Store { inner } = self.current()?;
        Ok(RowScan::new(&inner, &inner.region()?, Waiting::InPlace))
    }

    fn scan_rows(
        &self,
        visit: &mut Visitor<'_>,
        unreadable: &mut dyn FnMut(u64, Unreadable, Error) -> Result<(), Error>,
    ) -> Result<ScanSummary, Error> {
        let mut scan = self.row_scan()?;
        let mut summary = ScanSummary::default();
        while let Some(is_whole) = block_on(scan.next(unreadable))? {
            summary.rows += 1;
            summary.unreadable_rows += u64::from(!is_whole);
            for (key, value) in scan.items.iter() {
                summary.entries += 1;
                if visit(key, value).is_break() {
                    return Ok(summary);
                }
            }
        }
        Ok(summary)
    }

    /// Copies the keys and values that the table had at one moment, if other clients leave it unchanged for long
    /// enough: rows that change are read again, until a sweep over all of them finds no change, or after `max_sweeps`.
    /// [`Snapshot::is_stable`] returns which; with 0 sweeps it is never true. Round trips: 1 for each row, 1 more for
    /// each extent, 1 for 64 rows of a sweep, and those of the rows that changed. Source: R-SCAN-1.
    ///
    /// # Errors
    /// Same as [`Store::scan_with`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let snapshot = store.snapshot(16)?;
    /// assert!(snapshot.is_stable(), "other clients changed the table during all 16 sweeps");
    /// assert!(snapshot.iter().eq([(&b"cuckoo"[..], &b"Guira guira"[..])]));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn snapshot(&self, max_sweeps: u32) -> Result<Snapshot, Error> {
        let inner = &self.current()?.inner;
        let mut reader = Reader::new(Arc::clone(&inner.table), inner.client_config(0));
        let snapshot = block_on(reader.snapshot(&mut inner.region()?.lane(), max_sweeps, |_, _| ()))?;
        Ok(Snapshot(snapshot))
    }

    /// Estimates the number of entries: exact up to 4,096 rows (some 25,000 entries), beyond that by a sample of 4,096
    /// rows, whose error is in the result (below 2 % for a table that is half full). Round trips: 1 for 64 of these
    /// rows, at most 64. Source: R-SCAN-2.
    ///
    /// # Errors
    /// `Random`, `Destroyed`, or `Fabric`. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let len = store.len_estimate()?;
    /// assert_eq!((len.entries, len.error), (1, 0));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn len_estimate(&self) -> Result<LenEstimate, Error> {
        let inner = &self.current()?.inner;
        let found = inner.read(|region| {
            let mut reader = Reader::new(Arc::clone(&inner.table), inner.client_config(0));
            Ok(block_on(reader.len(&mut region.lane(), crate::store::random()?))?)
        })?;
        let capacity = found.rows * u64::from(inner.table.config().entries_per_row);
        Ok(LenEstimate { entries: found.entries, error: found.error, capacity })
    }
}
