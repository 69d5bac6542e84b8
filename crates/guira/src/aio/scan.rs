//! Scans for tasks.

use super::Store;
use crate::Error;
use crate::fabric::Waiting;
use crate::scan::{Item, RowScan};
use crate::sessions::deadline_after;

/// The keys and values of a table, one after the other, from [`Store::scan`]. In place: [`crate::Scan`].
#[derive(Debug)]
pub struct Scan(crate::Scan);

impl Scan {
    /// The next key and its value, or an error, after which there are no more; `None` at the end. Dropped before it is
    /// ready, it may leave out keys of one row. Round trips: 1 a row, 1 more for each extent.
    pub async fn next(&mut self) -> Option<Result<Item, Error>> {
        self.0.next_item().await
    }
}

impl Store {
    /// The keys and values of the table, while others work. As [`crate::Store::scan`], which tells what is guaranteed.
    ///
    /// # Errors
    /// As there.
    ///
    /// ```
    /// # use guira::{CreateOptions, Url, aio};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-aio-scan-{}", std::process::id()).parse()?;
    /// # pollster::block_on(async {
    /// let store = aio::Store::create(&url, &CreateOptions::new(1_000)).await?;
    /// store.client().await?.put(b"cuckoo", b"Guira guira").await?;
    /// let mut scan = store.scan().await?;
    /// while let Some(item) = scan.next().await {
    ///     let (key, value) = item?;
    ///     assert_eq!((&key[..], &value[..]), (&b"cuckoo"[..], &b"Guira guira"[..]));
    /// }
    /// # guira::Store::destroy(&url)
    /// # })
    /// # }
    /// ```
    pub async fn scan(&self) -> Result<Scan, Error> {
        let inner = &self.0.inner;
        let session = inner.cooperative.current_async(deadline_after(inner.options.reconnect_timeout)).await?;
        Ok(Scan(crate::Scan::new(RowScan::new(inner, &session.region, Waiting::Cooperative))))
    }
}
