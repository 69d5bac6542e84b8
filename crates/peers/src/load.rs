//! Loading of the compared systems: each gets the same records in the same order. Loading can be interrupted.

use crate::error::PeersError;
use crate::record::{Key, Records};

/// Records between two calls of the progress function: some milliseconds of the fastest system.
const PROGRESS_EVERY: u64 = 1 << 14;

/// Progress function. It takes the name of what runs, how much of it is done, and the total; an error ends the run.
pub type ProgressFn<'w> = dyn FnMut(&str, u64, u64) -> Result<(), PeersError> + 'w;

/// Loads one system.
pub struct Loader<'w> {
    what: String,
    records: u64,
    watch: &'w mut ProgressFn<'w>,
}

impl<'w> Loader<'w> {
    /// A loader of `records` records into `what`.
    pub fn new(what: impl Into<String>, records: u64, watch: &'w mut ProgressFn<'w>) -> Loader<'w> {
        Loader { what: what.into(), records, watch }
    }

    /// Number of records.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Reports the progress of creating the table before it is loaded.
    ///
    /// # Errors
    /// An interruption.
    pub fn report_creation(&mut self, done: u64, total: u64) -> Result<(), PeersError> {
        (self.watch)(&format!("{}: creating the table", self.what), done, total)
    }

    /// Hands every key and value to `put`.
    ///
    /// # Errors
    /// Errors of `put`; an interruption.
    pub fn each(
        &mut self,
        records: &Records,
        mut put: impl FnMut(&Key, &[u8]) -> Result<(), PeersError>,
    ) -> Result<(), PeersError> {
        let mut value = Vec::with_capacity(records.value_bytes());
        for record in 0..self.records {
            self.report(record)?;
            let key = records.key(record);
            records.value_into(&key, 0, &mut value);
            put(&key, &value)?;
        }
        Ok(())
    }

    /// Same as [`Loader::each`], in the order of the keys' bytes.
    ///
    /// # Errors
    /// Same as [`Loader::each`].
    pub fn each_sorted(
        &mut self,
        records: &Records,
        mut put: impl FnMut(&Key, &[u8]) -> Result<(), PeersError>,
    ) -> Result<(), PeersError> {
        let mut keys: Vec<Key> = (0..self.records).map(|record| records.key(record)).collect();
        keys.sort_unstable();
        let mut value = Vec::with_capacity(records.value_bytes());
        for (index, key) in (0..).zip(&keys) {
            self.report(index)?;
            records.value_into(key, 0, &mut value);
            put(key, &value)?;
        }
        Ok(())
    }

    fn report(&mut self, done: u64) -> Result<(), PeersError> {
        if done.is_multiple_of(PROGRESS_EVERY) {
            (self.watch)(&self.what, done, self.records)?;
        }
        Ok(())
    }
}
