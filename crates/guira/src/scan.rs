//! Reading a whole table: scans, snapshots, and how many entries there are.

use std::ops::ControlFlow;
use std::sync::Arc;

use guira_fabric::{Lane, Region};
use guira_layout::RowId;
use guira_rcuckoo::{Reader, RowItems};

use crate::fabric::{FabricLane, FabricRegion, Waiting};
use crate::store::Inner;
use crate::wait::block_on;
use crate::{Blame, Error, Store};

/// Sees each key and value of a scan, in this order, and says whether to go on.
pub type Visitor<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// A part of a row that a scan could not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The whole row.
    Row,
    /// One of its entries, whose extent is damaged.
    Entry,
}

/// Learns of a row's number, what of it a scan could not read, and why.
pub type DamageVisitor<'v> = dyn FnMut(u64, Unreadable, &Error) + 'v;

/// The extent of a scan that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScanSummary {
    /// Rows read.
    pub rows: u64,
    /// Entries visited, the one at which the visitor stopped included.
    pub entries: u64,
    /// Rows among them that could not be read, or not in whole. Always 0 after [`Store::scan_with`].
    pub unreadable_rows: u64,
}

/// The keys and values of a table, one after the other: an iterator, from [`Store::scan`]. It has the items of one row
/// in memory, and reads the next row when they are used up. After an error there are no more items.
#[derive(Debug)]
pub struct Scan {
    rows: RowScan,
    /// How many items of the row have been returned.
    returned: usize,
}

/// A copy of all keys and values of a table, from [`Store::snapshot`].
#[derive(Debug)]
pub struct Snapshot(guira_rcuckoo::Snapshot);

impl Snapshot {
    /// Each key and its value, in the table's order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows of the table.
    pub fn rows(&self) -> u64 {
        self.0.rows()
    }

    /// Times all rows were looked at again for changes: at most as many as asked for.
    pub fn sweeps(&self) -> u32 {
        self.0.sweeps()
    }

    /// Whether this is the table as it was at one moment. Otherwise others changed it all the time, or its row versions
    /// are too narrow to tell (preset `paper`), and each row is what it was at some moment of the scan. Source:
    /// R-SCAN-1.
    pub fn is_stable(&self) -> bool {
        self.0.is_stable()
    }
}

/// The number of a table's entries, as far as a sample can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LenEstimate {
    /// Entries: exact if every row was counted and nobody changed the table meanwhile.
    pub entries: u64,
    /// Half the width of the 95 % confidence interval, in entries; 0 if every row was counted.
    pub error: u64,
}

/// Reads a table row by row.
pub(crate) struct RowScan {
    inner: Arc<Inner>,
    reader: Reader,
    lane: FabricLane,
    items: RowItems,
    next: u64,
    /// What is left of the time for which rows that cannot be read are waited for.
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
            next: 0,
        }
    }

    /// Reads the next row, whose items replace those of the one before, and says whether it could be read as a whole;
    /// `None` if there is no further row.
    /// `unreadable` learns of a row's number, what of it could not be read, and why, and says whether to go on.
    async fn next<U>(&mut self, unreadable: &mut U) -> Result<Option<bool>, Error>
    where
        U: FnMut(u64, Unreadable, Error) -> Result<(), Error> + ?Sized,
    {
        self.items.reset();
        if self.next == self.inner.table.config().rows {
            return Ok(None);
        }
        let row = RowId(self.next);
        self.next += 1;
        let mut is_whole = true;
        // Each failure passes over one entry more, or ends the row.
        for _ in 0..=self.inner.table.rows().entries() {
            let began_ns = self.lane.now_ns();
            let Err(error) = self.reader.read_row(self.lane.any(), row, &mut self.items).await else { break };
            // What cannot be read is waited for as long as one operation waits, all of it together.
            self.left_ns = self.left_ns.saturating_sub(self.lane.now_ns().saturating_sub(began_ns));
            self.reader.set_deadline_ns(self.left_ns);
            is_whole = false;
            let unread = if self.items.pass_over(&error) { Unreadable::Entry } else { Unreadable::Row };
            unreadable(row.0, unread, self.inner.events.failed(error))?;
            if unread == Unreadable::Row {
                break;
            }
        }
        Ok(Some(is_whole))
    }
}

impl std::fmt::Debug for RowScan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowScan").field("url", &self.inner.url).field("next_row", &self.next).finish_non_exhaustive()
    }
}

/// A key and its value.
pub(crate) type Item = (Vec<u8>, Vec<u8>);

impl Scan {
    pub(crate) fn new(rows: RowScan) -> Scan {
        Scan { rows, returned: 0 }
    }

    /// The next key and its value.
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
                    self.rows.next = self.rows.inner.table.config().rows;
                    self.rows.items.reset();
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
    /// The keys and values of the table, in its order, while others work: an iterator, which reads row after row.
    ///
    /// A key that no insert moves meanwhile is returned at least once; one that is moved may be missed or returned
    /// twice. For all keys of one moment: [`Store::snapshot`]. Without an allocation for each key:
    /// [`Store::scan_with`]. Round trips: 1 a row, 1 more for each extent.
    ///
    /// # Errors
    /// The fabric's. Items may be errors: `Corrupt` if a row or an extent does not verify and nobody is writing it;
    /// `Busy` if somebody is, and does not finish before the deadline; `Destroyed`; the fabric's. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-scan-{}", std::process::id()).parse()?;
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

    /// Visits the keys and values as [`Store::scan`] returns them, without an allocation for each. The visitor may stop
    /// the scan. Round trips: as there.
    ///
    /// # Errors
    /// As those of the items there. The keys before were visited. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-scan-with-{}", std::process::id()).parse()?;
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

    /// As [`Store::scan_with`], but goes on past rows that are damaged, or that somebody is writing and does not finish
    /// within the deadline, and past entries whose extents are damaged: `unreadable` learns of each. All that cannot be
    /// read is waited for no longer than the deadline, together: when that time is spent, a row whose writer stands
    /// still is given up at once. Round trips: as [`Store::scan`], and more for what has to be read again.
    ///
    /// # Errors
    /// `Destroyed`; the fabric's. Nothing was changed.
    pub fn scan_past_damage(
        &self,
        visit: &mut Visitor<'_>,
        unreadable: &mut DamageVisitor<'_>,
    ) -> Result<ScanSummary, Error> {
        self.scan_rows(visit, &mut |row, unread, error| match error.blame() {
            Blame::Corrupt | Blame::Busy => {
                unreadable(row, unread, &error);
                Ok(())
            }
            _ => Err(error),
        })
    }

    fn row_scan(&self) -> Result<RowScan, Error> {
        Ok(RowScan::new(&self.inner, &self.inner.region()?, Waiting::InPlace))
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

    /// A copy of the keys and values that the table had at one moment, if others leave it alone for long enough: rows
    /// that change are read again, until a sweep over all of them finds no change or there were `max_sweeps`.
    /// [`Snapshot::is_stable`] says which; with 0 sweeps it never is. Round trips: 1 a row, 1 more for each extent, 1
    /// for 64 rows of a sweep, and those of the rows that changed. Source: R-SCAN-1.
    ///
    /// # Errors
    /// As [`Store::scan_with`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-snapshot-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let snapshot = store.snapshot(16)?;
    /// assert!(snapshot.is_stable(), "others changed the table during all 16 sweeps");
    /// assert!(snapshot.iter().eq([(&b"cuckoo"[..], &b"Guira guira"[..])]));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn snapshot(&self, max_sweeps: u32) -> Result<Snapshot, Error> {
        let inner = &self.inner;
        let mut reader = Reader::new(Arc::clone(&inner.table), inner.client_config(0));
        let snapshot = block_on(reader.snapshot(&mut inner.region()?.lane(), max_sweeps, |_, _| ()))?;
        Ok(Snapshot(snapshot))
    }

    /// About how many entries the table has: exact up to 4,096 rows (some 25,000 entries), beyond that by a sample of
    /// 4,096 rows, whose error is in the answer (below 2 % for a table that is half full). Round trips: 1 for 64 rows
    /// of these, 64 at most. Source: R-SCAN-2.
    ///
    /// # Errors
    /// `Random`, `Destroyed`, or the fabric's. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-len-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let len = store.len_estimate()?;
    /// assert_eq!((len.entries, len.error), (1, 0));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn len_estimate(&self) -> Result<LenEstimate, Error> {
        let inner = &self.inner;
        let found = inner.read(|region| {
            let mut reader = Reader::new(Arc::clone(&inner.table), inner.client_config(0));
            Ok(block_on(reader.len(&mut region.lane(), crate::store::random()?))?)
        })?;
        Ok(LenEstimate { entries: found.entries, error: found.error })
    }
}
