//! Loading: every contender gets the same records, in the same order, and can be interrupted.

use crate::error::PeersError;
use crate::record::{Key, Records};

/// Records between two looks whether to go on: some milliseconds of the fastest contender.
const PROGRESS_EVERY: u64 = 1 << 14;

/// Is told how far something has got, and says whether to go on: an error ends the run.
pub type ProgressFn<'w> = dyn FnMut(&str, u64, u64) -> Result<(), PeersError> + 'w;

/// One contender's loading.
pub struct Loader<'w> {
    what: String,
    records: u64,
    watch: &'w mut ProgressFn<'w>,
}

impl<'w> Loader<'w> {
    /// Loads `records` records into `what`.
    pub fn new(what: impl Into<String>, records: u64, watch: &'w mut ProgressFn<'w>) -> Loader<'w> {
        Loader { what: what.into(), records, watch }
    }

    /// How many records there are.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Tells how far the making of what is loaded has got.
    ///
    /// # Errors
    /// An interruption.
    pub fn making(&mut self, done: u64, total: u64) -> Result<(), PeersError> {
        (self.watch)(&format!("{}: making the table", self.what), done, total)
    }

    /// Hands every key and value to `put`.
    ///
    /// # Errors
    /// What `put` fails with; an interruption.
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

    /// As [`Loader::each`], in the order of the keys' bytes.
    ///
    /// # Errors
    /// As [`Loader::each`].
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
