//! Fences against WRITEs that are on their way: on a slow link, a WRITE that a client has sent arrives after the client
//! was fenced. [R-RECOVER-1] [R-SESSION-2]
//!
//! The link is slow in one direction only, from the clients to the node, and connections do not use it.

use std::thread;
use std::time::Duration;

use guira::errors::FabricError;
use guira::{Effect, Error, OpenOptions, OperationError, OperationErrorKind, Put, Store};
use guira_conformance::RdmaDevices;
use guira_fabric::memory::Ordering;
use guira_fabric_verbs::{ConnectionOptions, DeviceOptions, VerbsRegion};
use guira_network::client::{ConnectOptions, Endpoint};
use guira_network::wire::FenceReply;
use guira_testing::{patience, wait_until};

use super::devices;
use crate::common::fabric::url_of;
use crate::common::slow_link::SlowLink;
use crate::node::test_node::TestNode;

/// The delay of a slow link: long compared with a test's steps, and shorter than the time after which a device repeats
/// a request.
const DELAY: Duration = Duration::from_millis(150);
/// The time after the answer to the first batch of an update at which its second batch was sent, and did not arrive.
const SENT: Duration = Duration::from_millis(30);
/// Words at the start of the table, with all rows: few enough to be compared while the WRITE is on its way.
const ROW_WORDS: usize = 1 << 17;
const KEY: &[u8] = b"cuckoo";

/// A node, and a store whose client is to be fenced.
struct Fixture {
    served: TestNode,
    devices: RdmaDevices,
    store: Store,
    /// Another store, which recovers the client. It reaches the node by the node's own device, not over the link.
    other: Store,
}

impl Fixture {
    fn new(devices: RdmaDevices) -> Fixture {
        let served = TestNode::start_over(Some(devices.clone()), |options| options);
        let options = OpenOptions::default().reconnect_timeout(patience());
        let store = Store::open_with(served.url(), &options).unwrap();
        let near = RdmaDevices { client: devices.node.clone(), node: devices.node.clone() };
        let other = Store::open_with(url_of(served.addr, Some(&near)), &options).unwrap();
        Fixture { served, devices, store, other }
    }

    fn main_words(&self) -> Vec<u64> {
        self.served.region().memory().main.iter().map(|word| word.load(Ordering::SeqCst)).collect()
    }

    fn row_words(&self) -> Vec<u64> {
        let memory = self.served.region().memory();
        memory.main[..ROW_WORDS].iter().map(|word| word.load(Ordering::SeqCst)).collect()
    }

    fn lock_words(&self) -> Vec<u64> {
        self.served.region().memory().device.iter().map(|word| word.load(Ordering::SeqCst)).collect()
    }

    /// Runs `call` while an update of the key to `value` by `client` has sent its WRITE, which has not arrived; returns
    /// the client and the result of the update.
    fn during_update(
        &self,
        mut client: guira::Client,
        value: &'static [u8],
        call: impl FnOnce(),
    ) -> (guira::Client, Result<bool, Error>) {
        let (free, rows) = (self.lock_words(), self.row_words());
        let updating = thread::spawn(move || {
            let result = client.update(KEY, value);
            (client, result)
        });
        let took = wait_until("the update takes a lock", || self.lock_words() != free);
        assert!(took >= DELAY / 2, "the link is not slow");
        thread::sleep(SENT);
        assert!(self.row_words() == rows, "the WRITE has arrived already");
        call();
        updating.join().unwrap()
    }

    fn value(&self) -> Option<Vec<u8>> {
        self.other.reader().get(KEY).unwrap()
    }
}

/// Asserts that an update was lost after its WRITE was sent, because the client was fenced.
fn assert_fenced(result: Result<bool, Error>) {
    let error = result.unwrap_err();
    let Error::Operation(OperationError { kind, .. }) = &error else { panic!("{error:?}") };
    let (OperationErrorKind::Fabric { source } | OperationErrorKind::Lost { source }) = kind else {
        panic!("{error:?}")
    };
    assert!(matches!(source, FabricError::Fenced { .. }), "{error:?}");
    assert_eq!(error.effect(), Effect::Unknown, "the WRITE was sent: {error:?}");
}

/// Without a fence the WRITE arrives and takes effect; after a fence nothing of it does, and the client learns of it
/// once.
#[test]
fn a_write_that_arrives_after_the_fence_changes_no_byte() {
    let Some(devices) = devices() else { return };
    let fixture = Fixture::new(devices);
    let mut client = fixture.store.client().unwrap();
    client.put(KEY, b"first").unwrap();
    let endpoint = Endpoint::new(&fixture.served.addr.ip().to_string(), fixture.served.addr.port());
    let device = DeviceOptions { device: Some(fixture.devices.client.clone()), ..DeviceOptions::default() };
    let fencing = VerbsRegion::connect(&ConnectOptions::new(endpoint), &device, &ConnectionOptions::default()).unwrap();
    let Some(slow) = SlowLink::start(DELAY) else { return };

    let before = fixture.row_words();
    let (client, result) = fixture.during_update(client, b"second", || ());
    assert!(result.unwrap() && fixture.row_words() != before, "without a fence it takes effect");

    let (before, slot) = (fixture.row_words(), client.slot());
    let (mut client, result) = fixture.during_update(client, b"late", || {
        assert_eq!(fencing.session().fence(slot).unwrap(), FenceReply::Dropped);
        let at_fence = (fixture.main_words(), fixture.lock_words());
        assert!(fixture.row_words() == before, "the WRITE has arrived already, or after the fence");
        thread::sleep(3 * DELAY);
        assert!((fixture.main_words(), fixture.lock_words()) == at_fence, "a byte has changed after the fence");
        assert!(fixture.row_words() == before, "a row has changed");
    });
    drop(slow);
    assert_fenced(result);
    let recovered = fixture.other.recover(&mut |_, _| ()).unwrap().recovered;
    assert!(recovered.iter().any(|client| client.slot == slot && client.locks > 0), "{recovered:?}");
    assert_eq!(fixture.value().as_deref(), Some(&b"second"[..]));
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"second"[..]), "it learns of the fence once");
    assert_eq!(client.put(KEY, b"third").unwrap(), Put::Replaced);
    assert!(fixture.other.check().unwrap().is_clean());
}

/// The same with a client that is kicked and recovered by another one, which then changes the key: the late WRITE does
/// not undo that.
#[test]
fn a_write_that_arrives_after_a_kick_undoes_nothing() {
    let Some(devices) = devices() else { return };
    let fixture = Fixture::new(devices);
    let mut client = fixture.store.client().unwrap();
    client.put(KEY, b"first").unwrap();
    let mut successor = fixture.other.client().unwrap();
    let slot = client.slot();
    let Some(slow) = SlowLink::start(DELAY) else { return };
    let (mut client, result) = fixture.during_update(client, b"late", || {
        let killed = fixture.other.kill_client(slot, patience()).unwrap();
        assert!(killed.killed && killed.recovered.is_some(), "{killed:?}");
        assert_eq!(successor.put(KEY, b"successor").unwrap(), Put::Replaced);
        thread::sleep(3 * DELAY);
        assert_eq!(fixture.value().as_deref(), Some(&b"successor"[..]));
    });
    drop(slow);
    assert_fenced(result);
    assert_eq!(client.get(KEY).unwrap().as_deref(), Some(&b"successor"[..]), "it learns of the fence once");
    assert_eq!(client.put(KEY, b"later").unwrap(), Put::Replaced);
    assert!(fixture.other.check().unwrap().is_clean());
}
