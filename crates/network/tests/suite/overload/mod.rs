//! Hostile clients that try to delay all others, by every means of the protocol, and the delays of honest clients. They
//! take about 30 s.
//!
//! Proves:
//!
//! - sixteen sessions that do their worst keep an honest client's READ waiting no longer than 100 ms, and 99 of 100
//!   READs no longer than 5 ms or ten times the time without the attack, not counting time in which its thread or the
//!   node's has no processor. The attackers take and release holds beside thousands of held slots, fence, ask for
//!   counters, send the largest batches and halves of frames, and do not read answers;
//! - 1,400 silent connections from one address, or 480 from eight, do not keep other clients out;
//! - readers leave room for writers, one address leaves room for others if that is configured, and a flood of
//!   connections waits in a queue that is large enough.
//!
//! Cannot show: attackers on machines of their own: here they share the node's processors, at the lowest priority; how
//! long the kernel's scheduler then delays others.

mod fairness;
mod pending;

use std::sync::atomic::{AtomicBool, Ordering};

/// A guard that sets the flag which ends the threads of a test, however the test ends.
struct StopOnDrop<'o>(&'o AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
