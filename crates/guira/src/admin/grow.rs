//! Growing a table ahead of need.

use std::ops::ControlFlow;

use guira_rcuckoo::Grown;

use crate::wait::block_on;
use crate::{AdminError, Error, Store};

impl Store {
    /// Gives a table that grows room for `keys` keys now, and memory for it, instead of little by little while keys are
    /// inserted: a large load is faster, and a lack of memory is found before it. What others do goes on meanwhile.
    /// Does nothing if the table has the room. Later inserts split hardly any segment before there are so many keys.
    ///
    /// Round trips: for each segment that is split, 3 and 1 reservation, or 2 if it is the first one as small as that; 1 for 4,096 segments, and those of a client
    /// that is opened and closed. Source: R-GROW-6 to R-GROW-8.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store};
    /// # fn main() -> Result<(), guira::Error> {
    /// let store = Store::create_unnamed(&CreateOptions::default())?;
    /// let grown = store.grow(100_000)?;
    /// assert!(grown.splits > 0);
    /// assert_eq!(store.grow(100_000)?.splits, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AdminError::CannotGrow`] if the table does not grow, or not so far; those of [`Store::client`]; `NoMemory`;
    /// `Busy` if other clients hold a lock until the deadline; `Corrupt` if a row is damaged; `Destroyed`; `Lost`;
    /// `Fabric`. The room that was made before stays, and no key was changed.
    pub fn grow(&self, keys: u64) -> Result<Grown, Error> {
        self.grow_with_progress(keys, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Same as [`Store::grow`]; calls `progress` before each split, with the number of splits that are done, and of all,
    /// and ends when it returns `Break`.
    ///
    /// # Errors
    /// Same as [`Store::grow`].
    pub fn grow_with_progress(
        &self,
        keys: u64,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Grown, Error> {
        let store = self.current()?;
        let (url, config) = (store.url().clone(), store.table().config());
        if !config.grows() {
            return Err(AdminError::CannotGrow { url, keys, reason: "its size is fixed".to_owned() }.into());
        }
        if keys > config.max_capacity() {
            let reason = format!("it grows to room for {} keys at most", config.max_capacity());
            return Err(AdminError::CannotGrow { url, keys, reason }.into());
        }
        let mut client = store.client()?;
        let grown = block_on(client.0.grow(keys, progress))?;
        client.close()?;
        Ok(grown)
    }
}
