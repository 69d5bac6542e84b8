//! Cause: opening a client looked at every slot once for a free one, and once more for one with a dead client. A slot
//! that another process held at that moment, to recover its client or to claim it, was neither.
//!
//! Effect: `TooManyClients`, although the last slot was free a moment later: of two processes that found the same dead
//! client, one was refused.
//!
//! Fix: while other processes hold a slot to claim or recover it, opening looks again, until the deadline. [R-SLOT-2]

use std::time::Duration;

use guira::{CreateOptions, OpenOptions, Store, Url};
use guira_fabric::Region;
use guira_fabric_shm::{Access, Location, ShmRegion};
use guira_testing::{patience, unique_name};

#[test]
fn opening_a_client_waits_while_another_client_holds_the_last_slot() {
    let url = Url::shm(&unique_name()).expect("a valid name");
    Store::create(&url, &CreateOptions::new(1_000).max_clients(1)).expect("a fresh name");
    let store = Store::open_with(&url, &OpenOptions::default().deadline(patience())).expect("it exists");
    let path = store.stat().expect("readable").region.file().expect("a file").path.clone();
    let others = ShmRegion::open(&Location::file(path), Access::ReadWrite).expect("it exists");
    let hold = others.hold(0).expect("the kernel answers").expect("no process holds it");
    let opened = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.client().map(|client| client.slot()));
        std::thread::sleep(Duration::from_millis(50));
        drop(hold);
        waiting.join().expect("no panic")
    });
    Store::destroy(&url).expect("it exists");
    assert_eq!(opened.ok(), Some(0));
}
