//! The successor of a table that is gone: [`Reopen::AfterLoss`]. [R-OPEN-3]
//!
//! Invariants: a client or reader goes on with another table only after an operation has reported that its own is gone,
//! to itself or, before it was created, to another user of the store; many that follow at once open the successor once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use guira_fabric::{Lane, Waiting};
use guira_fabric_shm::NameLoss;

use crate::aio::{self, on_store_thread};
use crate::fabric::FabricRegion;
use crate::store::Inner;
use crate::{Error, OpenError, Reopen, Store};

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

    /// Returns the error of the further keys of a lookup whose first one could not go on with the successor.
    pub(crate) fn without_successor(&self) -> Error {
        Error::Open(OpenError::Gone { url: self.url.clone(), reason: "no other table could be opened" })
    }

    /// Whether operations have to go on with the successor of this table.
    pub(crate) fn must_follow(&self) -> bool {
        self.loss_reported.load(Ordering::Relaxed)
    }

    /// Returns the store of the table that the URL leads to now. Opens it, unless that was done; blocks meanwhile.
    fn successor(&self) -> Result<Store, Error> {
        let mut successor = self.successor.lock().unwrap_or_else(PoisonError::into_inner);
        match &*successor {
            Some(store) if !store.inner.must_follow() => Ok(store.clone()),
            _ => Ok(successor.insert(Store::open_url(&self.url, &self.options)?).clone()),
        }
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
        *self = next;
        Ok(())
    }
}
