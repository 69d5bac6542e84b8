//! A memory side and clients on the RDMA devices of this machine.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use guira_fabric::memory::{AtomicU64, Ordering};
use guira_fabric::{FabricError, Lane, Space, Verb, post};
use guira_fabric_verbs::{
    Accepted, Connecting, Connection, ConnectionOptions, Device, DeviceOptions, Grant, Target, VerbsLane,
};

/// Set by `cargo xtask test-rdma`: a test without a device fails instead of being skipped.
const REQUIRED: &str = "GUIRA_RDMA_REQUIRED";

/// Runs a test with the devices of the client and of the memory side, or says that it is skipped.
pub fn with_devices(test: impl FnOnce(Device, Device)) {
    let names = match Device::names() {
        Ok(names) if !names.is_empty() => names,
        other => {
            let reason = other.map_or_else(|error| error.to_string(), |_| "there is no RDMA device".to_owned());
            assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, but {reason}");
            println!("skipped: {reason}");
            return;
        }
    };
    test(open(&names[0]), open(&names[names.len() - 1]));
}

pub fn open(name: &str) -> Device {
    Device::open(&DeviceOptions { device: Some(name.to_owned()), ..DeviceOptions::default() }).expect("it exists")
}

/// Zeroed words.
pub fn words(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

pub fn load(words: &[AtomicU64], at: usize) -> u64 {
    words[at].load(Ordering::SeqCst)
}

/// A memory side with two segments of main space and one of device space.
pub struct Node {
    pub target: Target,
    pub main: [Arc<Vec<AtomicU64>>; 2],
    pub device: Arc<Vec<AtomicU64>>,
}

impl Node {
    pub fn new(device: &Device, first: usize, second: usize, on_device: usize) -> Node {
        let (main, on_device) = ([words(first), words(second)], words(on_device));
        let target = Target::new(device).unwrap();
        target.register(Space::Main, Arc::clone(&main[0]) as _).unwrap();
        target.register(Space::Main, Arc::clone(&main[1]) as _).unwrap();
        target.register(Space::Device, Arc::clone(&on_device) as _).unwrap();
        Node { target, main, device: on_device }
    }

    /// Connects a client.
    pub fn connect(&self, client: &Device, grant: Grant, options: &ConnectionOptions) -> (Connection, Accepted) {
        let connecting = Connecting::new(client, options).unwrap();
        let (accepted, parameters) = self.target.accept(grant, &connecting.parameters()).unwrap();
        (connecting.connect(parameters).unwrap(), accepted)
    }
}

/// Runs a future by polling it in a loop.
pub fn spin_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::hint::spin_loop();
    }
}

/// Posts a batch and waits for it.
pub fn run(lane: &mut VerbsLane, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
    spin_on(post(lane, batch))
}

pub fn drain(lane: &mut VerbsLane, found: &mut [u64]) -> Result<usize, FabricError> {
    spin_on(std::future::poll_fn(|cx| lane.poll_drain(found, cx)))
}
