//! Cause: after a failed change the client settled, and an error of settling replaced the change's own.
//!
//! Effect: a commit whose outcome is unknown was reported as "nothing was changed", and the extent it had linked could
//! be handed out again.
//!
//! Fix: the change's own error wins; a lane that may have lost a commit forgets its locks instead of releasing them.

use std::sync::atomic::{AtomicU32, Ordering};

use guira_conformance::Bench;
use guira_fabric::heap::{Next, Step};
use guira_fabric::{Effect, Profile, Region};
use guira_layout::Preset;

#[test]
fn a_commit_of_unknown_effect_reports_it() {
    for profile in [Profile::Shm, Profile::Tcp] {
        let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, profile, 7);
        let completions = AtomicU32::new(0);
        let hook = move |step| {
            if step == Step::Completion {
                completions.fetch_add(1, Ordering::Relaxed);
            }
            // The first batch takes the locks, the second commits, and its client dies before it learns the result.
            if completions.load(Ordering::Relaxed) == 2 { Next::Die } else { Next::Continue }
        };
        let mut client = bench.client(0).through(bench.region.lane().hooked(Box::new(hook)));
        let error = client.put(&[1; 8], &[2; 8]).unwrap_err();
        assert_eq!(bench.client(1).get(&[1; 8]).unwrap().as_deref(), Some(&[2; 8][..]), "it took effect");
        assert_eq!(error.effect(), Effect::Unknown, "{profile}: {error}");
    }
}
