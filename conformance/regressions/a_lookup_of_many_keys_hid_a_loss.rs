//! Cause: a lookup of many keys settled without asking first whether the client had lost a batch, and passed on the
//! fabric's error of that earlier batch as its own.
//!
//! Effect: `Fabric`, with the effect of the lost batch (unknown), for lookups that had none; a caller that tells a lost
//! client by `Lost` went on using it.
//!
//! Fix: it refuses as every other operation does. // [R-DROP-2]

use guira_conformance::{Bench, block_on};
use guira_fabric::heap::{Next, Step};
use guira_fabric::{Effect, Profile, Region};
use guira_layout::Preset;
use guira_rcuckoo::Error;

#[test]
fn every_key_learns_that_the_client_is_lost() {
    for profile in Profile::ALL {
        let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, profile, 7);
        let hook = |step| if step == Step::Completion { Next::Die } else { Next::Continue };
        let mut client = bench.client(0).through(bench.region.lane().hooked(Box::new(hook)));
        assert_eq!(client.put(&[1; 8], &[1; 8]).expect_err("its first batch is lost").effect(), Effect::Unknown);
        let mut client = client.through(bench.region.lane());
        let keys = [[1; 8], [2; 8], [3; 8]];
        let mut answers = Vec::new();
        let visit = |i, answer: Result<Option<&[u8]>, Error>| answers.push((i, answer.map(|_| ())));
        block_on(client.client.get_many(&mut client.lane, &keys, visit));
        assert_eq!(answers.len(), keys.len(), "{profile}");
        for (i, (at, answer)) in answers.into_iter().enumerate() {
            let error = answer.expect_err("the client is lost");
            assert!(at == i && matches!(error, Error::Lost { .. }), "{profile}: {error}");
            assert_eq!(error.effect(), Effect::None, "{profile}");
        }
    }
}
