//! Preparation of a pooled client for its next holder.

use guira_extents::Extents;
use guira_rcuckoo::Operation;

use super::Client;

impl Client {
    /// Whether nothing is left of a dropped operation that other clients could wait for: no lock, no batch in flight
    /// that changes anything, no space for its value. [R-DROP-1]
    pub(crate) fn is_settled(&self) -> bool {
        self.is_lost() || self.holds_nothing()
    }

    /// Whether the client holds no locks, no half-claimed chunk, and no extent without an entry.
    pub(super) fn holds_nothing(&self) -> bool {
        let has_space = self.pending.is_some() || !self.extents.as_ref().is_none_or(Extents::is_settled);
        self.client.is_settled() && !has_space
    }

    /// Whether no operation can succeed any more: the client is lost, and cannot move to another session. [R-DROP-2]
    pub(crate) fn is_useless(&self) -> bool {
        self.lane.is_stale() || (self.is_lost() && !self.is_remote())
    }

    /// Whether the table is behind a memory node, whose sessions can be lost.
    pub(crate) fn is_remote(&self) -> bool {
        self.lane.is_remote()
    }

    fn is_lost(&self) -> bool {
        self.lane.is_lost() || self.client.refuse_if_lost().is_err()
    }

    /// Gives back what a dropped operation had acquired. If that fails, the client is lost: the next operation reports
    /// it, or moves to another session. [R-DROP-1]
    pub(crate) async fn settle(&mut self) {
        if self.settle_extent(Operation::Session).await.is_ok() {
            let _ = self.maintain_extents(Operation::Session).await;
        }
    }

    /// Prepares the client for a new holder, which held nothing in a session that is lost by now. [R-SESSION-2]
    pub(crate) fn reset_for_next_holder(&mut self) {
        if self.lane.is_lost() {
            self.binding.ignore_fence();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::wait::wait_for;
    use crate::{CreateOptions, ServeOptions, Store, Url};

    const EXTENT_BYTES: u64 = 4 << 20;

    /// [R-DROP-1] A put that is dropped while it claims a chunk leaves none half claimed: as soon as the pool has its
    /// client back, another client can use all of the space.
    #[test]
    fn a_dropped_claim_of_a_chunk_is_settled_before_the_client_is_idle() {
        let owner = Store::create_unnamed(&CreateOptions::new(1_000).extent_bytes(EXTENT_BYTES)).unwrap();
        let served = owner.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
        let store = Store::open(Url::tcp("127.0.0.1", served.local_addrs()[0].port()).unwrap()).unwrap();
        for store in [&store, &owner] {
            let pool = store.to_async().pool(1);
            let mut held = wait_for(pool.get()).unwrap();
            let client = &mut *held;
            wait_for(client.extents.as_mut().unwrap().claim_in_part(client.lane.any())).unwrap();
            assert!(!client.is_settled());
            drop(held);
            guira_testing::wait_until("the pool has its client back", || pool.status().idle > 0);
            let mut other = owner.client().unwrap();
            other.put(b"key", &vec![1; EXTENT_BYTES as usize - 1_000]).unwrap();
            assert!(other.remove(b"key").unwrap());
        }
        assert!(owner.check().unwrap().is_clean());
    }
}
