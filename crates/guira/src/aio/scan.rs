//! Async scans.

use super::Store;
use crate::Error;
use crate::scan::{Item, RowScan};
use crate::sessions::deadline_after;
use guira_fabric::Waiting;

/// An async scan over the keys and values of a table, from [`Store::scan`]. The blocking counterpart is
/// [`crate::Scan`].
#[derive(Debug)]
pub struct Scan(crate::Scan);

impl Scan {
    /// Returns the next key and its value; `None` at the end, and after an error. If the future is dropped before it is
    /// ready, the scan may skip keys of one row. Round trips: 1 for each row, 1 more for each extent.
    pub async fn next(&mut self) -> Option<Result<Item, Error>> {
        self.0.next_item().await
    }
}

impl Store {
    /// Scans the keys and values of the table, while other clients change it; [`crate::Store::scan`] has the
    /// guarantees.
    ///
    /// # Errors
    /// Same as [`crate::Store::scan`].
    ///
    /// ```
    /// # use guira::{CreateOptions, Url, aio};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
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
        let crate::Store { inner } = self.0.current_async().await?;
        let until = deadline_after(inner.options.reconnect_timeout);
        let session = inner.cooperative.current_async(until).await;
        let session = session.and_then(|session| inner.refuse_unusable(&session.region).map(|()| session));
        let region = inner.noted(session)?.region;
        Ok(Scan(crate::Scan::new(RowScan::new(&inner, &region, Waiting::Cooperative))))
    }
}
