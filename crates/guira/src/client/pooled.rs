//! What a pool does with a client between two of its holders.

use guira_rcuckoo::Operation;

use super::Client;

impl Client {
    /// Whether there is nothing left of a dropped operation that others could wait for. // [R-DROP-1]
    pub(crate) fn is_settled(&self) -> bool {
        self.client.is_settled() || self.is_lost()
    }

    /// Whether no operation will succeed any more: it is lost, and cannot go on in another session. // [R-DROP-2]
    pub(crate) fn is_useless(&self) -> bool {
        self.lane.is_stale() || (self.is_lost() && !self.is_remote())
    }

    /// Whether what it leads to can be lost, and a round trip takes time.
    pub(crate) fn is_remote(&self) -> bool {
        self.lane.is_remote()
    }

    fn is_lost(&self) -> bool {
        self.lane.is_lost() || self.client.refuse_if_lost(Operation::Session).is_err()
    }

    /// Gives back what a dropped operation had acquired. If it cannot, the client is lost, and the next operation says
    /// so, or goes on in another session. // [R-DROP-1]
    pub(crate) async fn settle(&mut self) {
        let _ = self.settle_extent(Operation::Session).await;
    }

    /// Goes to a new holder, who held nothing in a session that is lost by now. // [R-SESSION-2]
    pub(crate) fn begin_anew(&mut self) {
        if self.lane.is_lost() {
            self.attachment.forget_session();
        }
    }
}
