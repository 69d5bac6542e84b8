//! Strangers that try to hold everybody else up, by every means that the wire has, and what honest clients notice of
//! it. The whole program takes about 30 s.

#[expect(dead_code, reason = "helpers of the node's tests, of which these use some")]
#[path = "../node/client.rs"]
mod client;
mod fairness;
mod pending;
#[expect(dead_code, reason = "helpers of the node's tests, of which these use some")]
#[path = "../node/test_node.rs"]
mod test_node;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a test of this program has while it runs: they would hold each other up.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends those who go on until this is set, however a test ends.
struct StopOnDrop<'o>(&'o AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
