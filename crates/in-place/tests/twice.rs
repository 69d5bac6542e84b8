//! The two forms of an operation post the same batches.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use guira_fabric::heap::{HeapLane, HeapRegion, Pace};
use guira_fabric::{Addr, FabricError, Lane, LocalLane, Profile, Region, Verb, post, post_in_place};
use guira_in_place::in_place;

struct Counter {
    word: u64,
}

impl Counter {
    /// Adds `STEP` `times` times, one batch each, and returns the last value found.
    #[in_place(inline)]
    async fn add<const STEP: u64>(&self, lane: &mut dyn Lane, times: u32) -> Result<u64, FabricError> {
        let mut found = 0;
        for _ in 0..times {
            let verb = Verb::FetchAdd { addr: Addr::main_word(self.word), add: STEP, found: &mut found };
            post(lane, [verb]).await?;
        }
        Ok(found)
    }
}

/// Contains calls by name and with generic arguments, in blocks, arms and conditions.
#[in_place]
async fn add_twice<L: Lane>(lane: &mut L, counter: &Counter) -> Result<Option<u64>, FabricError> {
    if counter.add::<2>(lane, 1).await? > 0 {
        return Ok(None);
    }
    match counter.add::<{ 1 + 2 }>(lane, 2).await {
        Ok(found) => Ok(Some(found)),
        Err(error) => Err(error),
    }
}

fn region() -> HeapRegion {
    HeapRegion::new(1 << 10, 1 << 10, Profile::Shm.caps())
}

fn poll(lane: &mut HeapLane) -> (u32, Result<Option<u64>, FabricError>) {
    let counter = Counter { word: 3 };
    let mut future = pin!(add_twice(lane, &counter));
    for polls in 1.. {
        if let Poll::Ready(found) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return (polls, found);
        }
    }
    unreachable!("the range has no end");
}

#[test]
fn both_forms_post_the_same_batches() {
    let mut in_place = region().lane();
    assert_eq!(add_twice_in_place(&mut in_place, &Counter { word: 3 }), Ok(Some(5)));
    assert_eq!(add_twice_in_place(&mut in_place, &Counter { word: 3 }), Ok(None), "the first batch answers");
    let mut sent = region().lane().paced(Pace::Deferred(2));
    let (polls, found) = poll(&mut sent);
    assert_eq!((found, poll(&mut sent).1), (Ok(Some(5)), Ok(None)));
    assert!(polls > 3, "it waits for each of its batches: {polls}");
    assert_eq!(in_place.traffic(), sent.traffic());
    assert_eq!(in_place.traffic().round_trips, 4);
}

#[test]
fn an_error_ends_both_forms() {
    let counter = Counter { word: 1 << 20 };
    let mut lane = region().lane();
    assert!(matches!(add_twice_in_place(&mut lane, &counter), Err(FabricError::OutOfBounds { .. })));
    assert_eq!(lane.traffic().round_trips, 1);
}
