//! How long tests wait, whether they run in their long forms, the names, folders and ports they use, and their child
//! processes.
//!
//! No test fails because the machine is slow: a test waits for an event, and [`patience`] only ends hangs. Names carry
//! an id of the test process, which no other process has, and what a killed test process left behind is removed by the
//! next one that asks for a name ([`unique_name`]).

#![forbid(unsafe_code)]

mod child;
mod port;
mod scratch;

use std::thread::sleep;
use std::time::{Duration, Instant};

pub use child::{Actor, Orphan, say, wait_for_order};
pub use port::ReservedPort;
pub use scratch::{ScratchFolder, process_name, unique_name};

/// The longest time that a test waits for an event on a machine of usual speed, before it calls that a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// The environment variable with a factor for [`PATIENCE`], for slow or busy machines: a number of 1 or more.
const FACTOR: &str = "GUIRA_PATIENCE";
/// Time between two looks at a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Returns the time after which a test calls a wait a hang: 60 s, times the number in the environment variable
/// `GUIRA_PATIENCE`, if it is set.
///
/// # Panics
/// If the variable is not a number of 1 or more.
pub fn patience() -> Duration {
    let Ok(text) = std::env::var(FACTOR) else { return PATIENCE };
    let factor = text.parse::<f64>().ok().filter(|factor| factor.is_finite() && *factor >= 1.0);
    PATIENCE.mul_f64(factor.unwrap_or_else(|| panic!("{FACTOR}={text}: not a number of 1 or more")))
}

/// Whether tests run in their long forms, with more seeds, cases and rounds: the environment variable `GUIRA_LONG` is 1.
pub fn is_long() -> bool {
    std::env::var("GUIRA_LONG").is_ok_and(|value| value == "1")
}

/// Waits until `condition` returns true, and returns how long that took.
///
/// # Panics
/// If that takes longer than [`patience`]; the message names `what` was waited for.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !condition() {
        let waited = began.elapsed();
        assert!(waited < patience(), "waited {waited:?} in vain until {what}");
        sleep(POLL_INTERVAL);
    }
    began.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_the_condition_holds() {
        let mut looks = 0;
        wait_until("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
        assert!(patience() >= PATIENCE);
    }
}
