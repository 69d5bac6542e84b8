//! Cause: the length of a run was taken from its chunk word, or from an entry's lengths, without a check against the
//! end of the chunk table.
//!
//! Effect: one flipped bit in the word of a chunk near the end made `check`, and a client that looked for space among
//! orphans, read the word of a chunk that does not exist: a panic instead of a reported problem.
//!
//! Fix: a class must fit the table, and its run must end within it, before anything is read there. [R-EXTENT-2]

use guira::{Blame, CreateOptions, Preset, Store, Url};
use guira_check::{CheckOptions, Concurrency, ProblemKind, check_table};
use guira_conformance::{Bench, Sampling, SteppedLane, block_on};
use guira_fabric::{Profile, Region, Verb, post};
use guira_fabric_shm::{Access, Location, ShmRegion};
use guira_layout::{ChunkState, ChunkWord, ExtentClass, OwnerId, Preset as LayoutPreset};
use guira_testing::unique_name;

struct Table(Url);

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

#[test]
fn a_check_reports_a_run_past_the_last_chunk() {
    let bench = Bench::of_rows(LayoutPreset::Tiny, "bytes:24", 64, Profile::Shm, 7);
    let chunks = bench.table.config().chunks;
    let class = |length: u64| ExtentClass::Run(length as u32);
    for distance in 1..4 {
        let at = chunks - distance;
        for state in [
            ChunkState::Orphan { class: class(distance + 1), free: 0 },
            ChunkState::Owned { owner: OwnerId(3), class: class(distance + 1) },
            ChunkState::Claiming { owner: OwnerId(3), class: class(distance + 1) },
            ChunkState::Orphan { class: class(u32::MAX.into()), free: 1 },
        ] {
            bench.store(bench.table.geometry().chunk_word(at), &[ChunkWord::encode(state).0]);
            for concurrency in [Concurrency::Exclusive, Concurrency::Shared] {
                let options = CheckOptions { concurrency, ..CheckOptions::default() };
                // The waits of the check, 0.65 s each, pass at once.
                let mut lane = SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(|_| ()));
                let report = block_on(check_table(&mut lane, &bench.table, &options, &mut |_| ())).unwrap();
                let broken = report.problems.iter().any(|problem| problem.kind == ProblemKind::BrokenRun);
                assert!(broken, "{state:?}: {:?}", report.problems);
            }
            bench.store(bench.table.geometry().chunk_word(at), &[ChunkWord::FREE.0]);
        }
    }
}

#[test]
fn a_client_that_needs_space_skips_a_run_past_the_last_chunk() {
    let url = Url::shm(&unique_name()).unwrap();
    let options = CreateOptions::new(1_000).preset(Preset::Tiny).extent_bytes(64 << 10);
    let store = Store::create(&url, &options).unwrap();
    let _table = Table(url);
    let last = store.table().config().chunks - 1;
    let region =
        ShmRegion::open(&Location::file(store.stat().unwrap().region.file().unwrap().path.clone()), Access::ReadWrite)
            .unwrap();
    let damaged = ChunkWord::encode(ChunkState::Orphan { class: ExtentClass::Run(2), free: 1 });
    let addr = store.table().geometry().chunk_word(last);
    block_on(post(&mut region.lane(), [Verb::Write { addr, words: &[damaged.0] }])).unwrap();
    let mut client = store.client().unwrap();
    let full = (0..100u32).find_map(|i| client.put(&i.to_le_bytes(), &[7; 6_000]).err()).expect("room for less");
    assert_eq!(full.blame(), Blame::Full, "{full}");
    let mut word = [0];
    block_on(post(&mut region.lane(), [Verb::Read { addr, into: &mut word }])).unwrap();
    assert_eq!(word, [damaged.0], "the damage is left to a check");
}
