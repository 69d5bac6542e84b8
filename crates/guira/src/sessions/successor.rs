//! The successor of a table that is gone: [`Reopen::AfterLoss`]. [R-OPEN-3]
//!
//! Invariants: a client or reader goes on with another table only after an operation has reported that its own is gone,
//! to itself or, before it was created, to another user of the store; an operation follows once: if the successor is gone,
//! too, it says so; many that follow at once open the successor once, or fail together.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use guira_fabric::{FabricError, Lane, Waiting};
use guira_fabric_shm::NameLoss;

use crate::aio::{self, on_store_thread};
use crate::fabric::FabricRegion;
use crate::store::Inner;
use crate::{Error, OpenError, Reopen, Store};

/// The successor of a store, and the last attempt to open it.
#[derive(Default)]
pub(crate) struct Successor {
    store: Option<Store>,
    /// When the last attempt ended, if it failed.
    failed: Option<Instant>,
}

impl Inner {
    /// Notes that `error` was reported; returns whether it says that the table is gone, and the store reopens.
    pub(crate) fn note_loss(&self, error: &Error) -> bool {
        let is_lost = self.options.reopen == Reopen::AfterLoss && error.is_gone();
        if is_lost {
            self.loss_reported.store(true, Ordering::Relaxed);
            // No operation on the lost table is executed in place any more.
            if let FabricRegion::Shm(region) = &self.first {
                region.name().record(NameLoss::Missing);
            }
        }
        is_lost
    }

    /// Same as [`Inner::note_loss`], for the error in `result`, which is returned.
    pub(crate) fn noted<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.note_loss(error);
        }
        result
    }

    /// Returns the error of those that could not go on with the successor, but of the first.
    pub(crate) fn without_successor(&self) -> Error {
        Error::Open(OpenError::Gone { url: self.url.clone(), reason: "no other table could be opened" })
    }

    /// Whether operations have to go on with the successor of this table.
    pub(crate) fn must_follow(&self) -> bool {
        self.loss_reported.load(Ordering::Relaxed)
    }

    /// Returns the store of the table that the URL leads to now. Opens it, unless that was done, or was tried in vain
    /// while this call waited; blocks meanwhile.
    fn successor(&self) -> Result<Store, Error> {
        if self.first.is_stale() {
            // Another thread may have held the lock when this process was forked.
            return Err(self.fabric("cannot open again")(FabricError::Forked));
        }
        let began = Instant::now();
        let mut successor = self.successor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = successor.store.as_ref().filter(|store| !store.inner.must_follow()) {
            return Ok(store.clone());
        }
        if successor.failed.is_some_and(|failed| failed > began) {
            return Err(self.without_successor());
        }
        let opened = Store::open_url(&self.url, &self.options);
        successor.failed = opened.is_err().then(Instant::now);
        Ok(successor.store.insert(opened?).clone())
    }

    /// Same as [`Inner::successor`], for a caller that waits in the given way.
    async fn successor_waiting(self: &Arc<Inner>, waiting: Waiting) -> Result<Store, Error> {
        match waiting {
            Waiting::InPlace => self.successor(),
            Waiting::Cooperative => {
                let inner = Arc::clone(self);
                on_store_thread(self.url.clone(), move |_| inner.successor()).await?
            }
        }
    }
}

impl Store {
    /// Returns the store of the current table: this one, or its successor.
    pub(crate) fn current(&self) -> Result<Store, Error> {
        if self.inner.must_follow() { self.inner.successor() } else { Ok(self.clone()) }
    }

    /// Same as [`Store::current`], for a task.
    pub(crate) async fn current_async(&self) -> Result<Store, Error> {
        if !self.inner.must_follow() {
            return Ok(self.clone());
        }
        self.inner.successor_waiting(Waiting::Cooperative).await
    }
}

impl aio::Client {
    /// Replaces this client, whose table is gone, by one of the successor.
    #[cold]
    pub(crate) async fn follow(&mut self) -> Result<(), Error> {
        let store = self.binding.store.successor_waiting(self.waiting).await?;
        let mut next = match self.waiting {
            Waiting::InPlace => store.client()?.0,
            Waiting::Cooperative => store.to_async().client().await?,
        };
        *next.lane.traffic_mut() = *self.lane.traffic();
        next.earlier = self.counters();
        next.binding.must_follow = false;
        *self = next;
        Ok(())
    }
}

impl aio::Reader {
    /// Replaces this reader, whose table is gone, by one of the successor.
    #[cold]
    pub(crate) async fn follow(&mut self) -> Result<(), Error> {
        let Store { inner } = self.binding.store.successor_waiting(self.waiting).await?;
        let mut next = aio::Reader::new(&inner, inner.sessions_waiting(self.waiting), self.waiting);
        *next.lane.traffic_mut() = *self.lane.traffic();
        next.binding.must_follow = false;
        *self = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CreateOptions;

    /// A failed attempt to open the successor is that of all who waited meanwhile: they make none of their own.
    #[test]
    fn a_failed_attempt_is_that_of_all_who_waited() {
        let url: crate::Url = format!("shm://{}", guira_testing::unique_name()).parse().unwrap();
        let store = Store::create(&url, &CreateOptions::new(100)).unwrap();
        let failed_later = Instant::now() + std::time::Duration::from_secs(3_600);
        store.inner.successor.lock().unwrap().failed = Some(failed_later);
        assert!(store.inner.successor().unwrap_err().is_gone());
        store.inner.successor.lock().unwrap().failed = Some(Instant::now());
        assert_eq!(store.inner.successor().unwrap().url(), &url);
        Store::destroy(&url).unwrap();
    }
}
