//! The monotonic clock that the lanes of remote regions share.

use std::sync::OnceLock;
use std::time::Instant;

/// Returns the nanoseconds since this process first asked for them. Never decreases.
#[inline]
pub fn clock_ns() -> u64 {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    // 584 years.
    EPOCH.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
