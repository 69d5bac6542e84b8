//! Hostile clients that try to delay all others, by every means of the protocol, and the delays of honest clients. The
//! whole program takes about 30 s.

#[expect(dead_code, reason = "helpers of the node's tests, of which these use some")]
#[path = "../node/client.rs"]
mod client;
mod fairness;
mod pending;
#[expect(dead_code, reason = "helpers of the node's tests, of which these use some")]
#[path = "../node/test_node.rs"]
mod test_node;

use std::sync::atomic::{AtomicBool, Ordering};

/// A guard that sets the flag which ends the threads of a test, however the test ends.
struct StopOnDrop<'o>(&'o AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
