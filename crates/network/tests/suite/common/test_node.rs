//! Nodes over regions whose memory the test can access.

use std::net::{Ipv4Addr, SocketAddr};

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, FabricError, Lane, Profile, Region, SlotHold, Submitted, Verb};
use guira_fabric_shm::{CreateOptions, Location, ShmRegion};
use guira_network::node::{Node, NodeCounters, NodeHandle, NodeOptions};
use guira_network::tcp::BatchExecutor;
use guira_testing::{unique_name, wait_until};

pub const MAIN_BYTES: u64 = 4 << 20;
pub const DEVICE_BYTES: u64 = 4096;
pub const REGION_ID: [u64; 2] = [71, 72];

/// A node, and a local handle of its region.
pub struct TestNode {
    pub addr: SocketAddr,
    pub handle: NodeHandle,
    local: Box<dyn Local>,
}

/// The local access of a test to the region.
trait Local: Send + Sync {
    fn submit(&self, batch: &mut [Verb<'_>]);
    fn hold(&self, slot: u16) -> Option<SlotHold>;
}

impl<R: Region + Send + Sync> Local for R {
    fn submit(&self, batch: &mut [Verb<'_>]) {
        let Submitted::Done(result) = self.lane().submit(batch) else { panic!("a local lane") };
        result.expect("within the region");
    }

    fn hold(&self, slot: u16) -> Option<SlotHold> {
        Region::hold(self, slot).expect("the region answers")
    }
}

impl TestNode {
    pub fn new<R: Region + Clone + Send + Sync + 'static>(region: R, options: NodeOptions) -> TestNode {
        let handle = Node::bind(BatchExecutor::new(region.clone()), options).expect("a node").spawn().expect("threads");
        TestNode { addr: handle.local_addrs()[0], handle, local: Box::new(region) }
    }

    pub fn read(&self, addr: Addr, words: usize) -> Vec<u64> {
        let mut into = vec![0; words];
        self.local.submit(&mut [Verb::Read { addr, into: &mut into }]);
        into
    }

    pub fn write(&self, addr: Addr, words: &[u64]) {
        self.local.submit(&mut [Verb::Write { addr, words }]);
    }

    /// Has `submit` carry out every kind of verb in one batch, and asserts what they find and leave.
    pub fn executes_every_verb(&self, submit: impl FnOnce(&mut [Verb<'_>]) -> Result<(), FabricError>) {
        let (mut before, mut after) = ([9; 2], [9; 3]);
        let (mut swapped, mut masked, mut failed, mut added) = (9, 9, 9, 9);
        self.write(Addr::device(8), &[0xff00]);
        let submitted = submit(&mut [
            Verb::Read { addr: Addr::main(64), into: &mut before },
            Verb::Write { addr: Addr::main(64), words: &[1, 2] },
            Verb::Cas { addr: Addr::main(64), compare: 1, swap: 5, found: &mut swapped },
            Verb::Cas { addr: Addr::main(64), compare: 1, swap: 6, found: &mut failed },
            Verb::FetchAdd { addr: Addr::main(72), add: u64::MAX, found: &mut added },
            Verb::MaskedCas {
                addr: Addr::device(8),
                compare: 0,
                swap: 0x77,
                compare_mask: 0xff,
                swap_mask: 0xff,
                found: &mut masked,
            },
            Verb::Read { addr: Addr::main(64), into: &mut after },
        ]);
        assert_eq!(submitted, Ok(()));
        assert_eq!((before, after), ([0, 0], [5, 1, 0]));
        assert_eq!((swapped, failed, added, masked), (1, 5, 2, 0xff00));
        assert_eq!((self.read(Addr::main(64), 3), self.read(Addr::device(8), 1)), (vec![5, 1, 0], vec![0xff77]));
    }

    pub fn hold(&self, slot: u16) -> Option<SlotHold> {
        self.local.hold(slot)
    }

    /// Waits until the counters satisfy `is_so`.
    pub fn wait_until(&self, what: &str, is_so: impl Fn(&NodeCounters) -> bool) {
        wait_until(what, || is_so(&self.handle.counters()));
    }
}

/// Returns options of a node on the loopback interface with two threads.
pub fn options() -> NodeOptions {
    NodeOptions::new((Ipv4Addr::LOCALHOST, 0).into(), REGION_ID).threads(2)
}

pub fn heap_region() -> HeapRegion {
    HeapRegion::new(MAIN_BYTES, DEVICE_BYTES, Profile::Shm.caps())
}

/// Starts a node over memory of this process.
pub fn heap(options: NodeOptions) -> TestNode {
    TestNode::new(heap_region(), options)
}

/// Creates a shared-memory region and removes its name, so that nothing is left behind.
pub fn shm_region() -> ShmRegion {
    let location = Location::shm(&unique_name()).expect("a valid name");
    let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES);
    let region = ShmRegion::create(&location, options, |_| Ok::<(), String>(())).expect("a fresh name");
    ShmRegion::destroy(&location).expect("it is there");
    region
}

/// Runs a test over both kinds of regions.
pub fn on_each_region(options: impl Fn() -> NodeOptions, test: impl Fn(TestNode)) {
    test(heap(options()));
    test(TestNode::new(shm_region(), options()));
}
