//! Reading a whole table: scans, snapshots, and how many entries there are.

use std::ops::ControlFlow;
use std::sync::Arc;

use guira_fabric::{Lane, Region};
use guira_layout::RowId;
use guira_rcuckoo::RowItems;

use crate::wait::block_on;
use crate::{Blame, Error, Store};

/// Sees each key and value of a scan, in this order, and says whether to go on.
pub type Visitor<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// What a scan could not read of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Any of it.
    Row,
    /// One of its entries, whose extent is damaged.
    Entry,
}

/// Learns of a row's number, what of it a scan could not read, and why.
pub type DamageVisitor<'v> = dyn FnMut(u64, Unread, &Error) + 'v;

/// What a scan saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// Rows read.
    pub rows: u64,
    /// Entries visited, the one at which the visitor stopped included.
    pub entries: u64,
    /// Rows among them that could not be read, or not in whole. Always 0 after [`Store::scan`].
    pub unreadable_rows: u64,
}

/// What a scan that aims at a snapshot saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StableScan {
    /// Rows of the table.
    pub rows: u64,
    /// Entries visited.
    pub entries: u64,
    /// Times all rows were looked at again for changes: at most as many as asked for.
    pub sweeps: u32,
    /// Whether what was visited is the table as it was at one moment. Otherwise others changed it all the time, or its
    /// row versions are too narrow to tell (preset `paper`), and each row is what it was at some moment of the scan.
    pub is_snapshot: bool,
}

/// How many entries a table has, as far as a sample can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LenEstimate {
    /// Entries: exact if every row was counted and nobody changed the table meanwhile.
    pub entries: u64,
    /// Half the width of the 95 % confidence interval, in entries; 0 if every row was counted.
    pub error: u64,
}

impl Store {
    /// Visits every key and value, in the table's order, while others work. A key that no insert moves meanwhile is
    /// visited at least once; one that is moved may be missed or visited twice. The visitor may stop the scan. Round
    /// trips: 1 a row, 1 more for each extent. For one moment's keys: [`Store::scan_stable`].
    ///
    /// # Errors
    /// `Corrupt` if a row or an extent does not verify and nobody is writing it; `Busy` if somebody is, and does not
    /// finish before the deadline; `Destroyed`; the fabric's. What was visited before, was. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-scan-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let mut bytes = 0;
    /// let summary = store.scan(&mut |key, value| {
    ///     bytes += key.len() + value.len();
    ///     std::ops::ControlFlow::Continue(())
    /// })?;
    /// assert_eq!((summary.entries, bytes), (1, 17));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn scan(&self, visit: &mut Visitor<'_>) -> Result<ScanSummary, Error> {
        self.scan_rows(visit, &mut |_, _, error| Err(error))
    }

    /// As [`Store::scan`], but goes on past rows that are damaged, or that somebody is writing and does not finish
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

    fn scan_rows(
        &self,
        visit: &mut Visitor<'_>,
        unreadable: &mut dyn FnMut(u64, Unread, Error) -> Result<(), Error>,
    ) -> Result<ScanSummary, Error> {
        let inner = &self.inner;
        let mut reader = guira_rcuckoo::Reader::new(Arc::clone(&inner.table), inner.client_config(0));
        let mut lane = inner.region()?.lane();
        let mut items = RowItems::default();
        let mut summary = ScanSummary::default();
        let mut left_ns = inner.client_config(0).deadline_ns;
        for row in 0..inner.table.config().rows {
            summary.rows += 1;
            items.reset();
            let mut is_whole = true;
            // Each failure passes over one entry more, or ends the row.
            for _ in 0..=inner.table.rows().entries() {
                let began_ns = lane.now_ns();
                let Err(error) = block_on(reader.read_row(&mut lane, RowId(row), &mut items)) else { break };
                // What cannot be read is waited for as long as one operation waits, all of it together.
                left_ns = left_ns.saturating_sub(lane.now_ns().saturating_sub(began_ns));
                reader.set_deadline_ns(left_ns);
                is_whole = false;
                let unread = if items.pass_over(&error) { Unread::Entry } else { Unread::Row };
                unreadable(row, unread, inner.events.failed(error))?;
                if unread == Unread::Row {
                    break;
                }
            }
            summary.unreadable_rows += u64::from(!is_whole);
            for (key, value) in items.iter() {
                summary.entries += 1;
                if visit(key, value).is_break() {
                    return Ok(summary);
                }
            }
        }
        Ok(summary)
    }

    /// Visits the keys and values that the table had at one moment, if others leave it alone for long enough: rows that
    /// change are read again, until a sweep over all of them finds no change or there were `max_sweeps`. The answer
    /// says which; with 0 sweeps it is never a snapshot. Nothing is visited before that, so this process holds a copy
    /// of every key and value meanwhile. Round trips: 1 a row, 1 more for each extent, 1 for 64 rows of a sweep, and
    /// those of the rows that changed. Source: R-SCAN-1.
    ///
    /// # Errors
    /// As [`Store::scan`]; nothing has been visited then.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-stable-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let mut keys = Vec::new();
    /// let scan = store.scan_stable(16, &mut |key, _value| {
    ///     keys.push(key.to_vec());
    ///     std::ops::ControlFlow::Continue(())
    /// })?;
    /// assert!(scan.is_snapshot, "others changed the table during all 16 sweeps");
    /// assert_eq!(keys, [b"cuckoo"]);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn scan_stable(&self, max_sweeps: u32, visit: &mut Visitor<'_>) -> Result<StableScan, Error> {
        let inner = &self.inner;
        let mut reader = guira_rcuckoo::Reader::new(Arc::clone(&inner.table), inner.client_config(0));
        let snapshot = block_on(reader.snapshot(&mut inner.region()?.lane(), max_sweeps, |_, _| ()))?;
        let (rows, sweeps, is_snapshot) = (snapshot.rows(), snapshot.sweeps(), snapshot.is_stable());
        let mut summary = StableScan { rows, entries: 0, sweeps, is_snapshot };
        for (key, value) in snapshot.iter() {
            summary.entries += 1;
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(summary)
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
            let mut reader = guira_rcuckoo::Reader::new(Arc::clone(&inner.table), inner.client_config(0));
            Ok(block_on(reader.len(&mut region.lane(), crate::store::random()?))?)
        })?;
        Ok(LenEstimate { entries: found.entries, error: found.error })
    }
}
