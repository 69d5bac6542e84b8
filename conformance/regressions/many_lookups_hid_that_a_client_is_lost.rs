//! Cause: lookups of many keys settled the client before they checked whether it is lost, and returned the error of the
//! batch that was lost earlier as if it were their own.
//!
//! Effect: each key's error was `Fabric`, with an unknown effect, where a single lookup returns `Lost`, without effect,
//! which says that a new client is needed: a program that retries after `Fabric` never ends.
//!
//! Fix: they check first, as single lookups do. [R-DROP-2]

use guira_conformance::Bench;
use guira_fabric::heap::{Next, Step};
use guira_fabric::{Effect, Profile, Region};
use guira_layout::Preset;
use guira_rcuckoo::{Error, ErrorKind};

#[test]
fn every_key_of_a_lost_client_is_refused_as_lost() {
    for profile in Profile::ALL {
        let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, profile, 7);
        let hook = |step| if step == Step::Completion { Next::Die } else { Next::Continue };
        let mut client = bench.client(0).through(bench.region.lane().hooked(Box::new(hook)));
        client.put(&[1; 8], &[2; 8]).unwrap_err();
        let mut client = client.through(bench.region.lane());
        assert!(matches!(client.get(&[1; 8]), Err(Error { kind: ErrorKind::Lost { .. }, .. })), "{profile}");
        for answer in client.get_many(&[[1; 8], [3; 8]]) {
            let error = answer.unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Lost { .. }), "{profile}: {error}");
            assert_eq!(error.effect(), Effect::None, "{profile}: {error}");
        }
    }
}
