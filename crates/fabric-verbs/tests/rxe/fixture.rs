//! A memory side and clients on the RDMA devices of this machine.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use guira_fabric::memory::{AtomicU64, Ordering};
use guira_fabric::{FabricError, Lane, Space, Verb, post};
use guira_fabric_verbs::{
    Accepted, Connecting, Connection, ConnectionOptions, Device, DeviceOptions, Target, VerbsError, VerbsLane,
};
use guira_network::wire::Grant;

/// Set by `cargo xtask test-rdma`: a test without a device fails instead of being skipped.
const REQUIRED: &str = "GUIRA_RDMA_REQUIRED";

/// Runs a test with the devices of the client and of the memory side, the first and the last one whose port is active,
/// or says that it is skipped.
pub fn with_devices(test: impl FnOnce(Device, Device)) {
    let opened: Result<Vec<Device>, VerbsError> =
        Device::names().map(|names| names.iter().filter_map(|name| open(name).ok()).collect());
    match opened {
        Ok(devices) if !devices.is_empty() => test(devices[0].clone(), devices[devices.len() - 1].clone()),
        Ok(_) => skip("there is no RDMA device with an active port"),
        Err(error) => skip(&error.to_string()),
    }
}

/// Says that a test is skipped, or fails where it must run.
pub fn skip(reason: &str) {
    assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, but {reason}");
    println!("skipped: {reason}");
}

pub fn open(name: &str) -> Result<Device, VerbsError> {
    Device::open(&DeviceOptions { device: Some(name.to_owned()), ..DeviceOptions::default() })
}

/// Zeroed words.
pub fn words(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

pub fn load(words: &[AtomicU64], at: usize) -> u64 {
    words[at].load(Ordering::SeqCst)
}

/// Copies all words.
pub fn snapshot(words: &[AtomicU64]) -> Vec<u64> {
    words.iter().map(|word| word.load(Ordering::SeqCst)).collect()
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
        let target = Target::new(device).expect("the device has atomics");
        let register = |space, words: &Arc<Vec<AtomicU64>>| {
            target.register(space, Arc::clone(words) as _).expect("the memory can be locked");
        };
        register(Space::Main, &main[0]);
        register(Space::Main, &main[1]);
        register(Space::Device, &on_device);
        Node { target, main, device: on_device }
    }

    /// Connects a client.
    pub fn connect(&self, client: &Device, grant: Grant, options: &ConnectionOptions) -> (Connection, Accepted) {
        let connecting = Connecting::new(client, options).expect("a queue pair can be created");
        let accepted = self.target.accept(grant, &connecting.parameters());
        let (accepted, parameters) = accepted.expect("a queue pair can be connected");
        (connecting.connect(parameters).expect("a queue pair can be connected"), accepted)
    }

    /// Connects a client that may change the bytes, with the default options.
    pub fn connect_writer(&self, client: &Device) -> (Connection, Accepted) {
        self.connect(client, Grant::ReadWrite, &ConnectionOptions::default())
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

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs several futures on this thread, which sleeps while none of them was woken.
pub fn join_all<F: Future<Output = ()>>(futures: impl IntoIterator<Item = F>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    while !running.is_empty() {
        running.retain_mut(|future| future.as_mut().poll(&mut cx).is_pending());
        if !running.is_empty() {
            thread::park();
        }
    }
}

/// Posts a batch and waits for it.
pub fn run(lane: &mut VerbsLane, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
    spin_on(post(lane, batch))
}

pub fn drain(lane: &mut VerbsLane, found: &mut [u64]) -> Result<usize, FabricError> {
    spin_on(std::future::poll_fn(|cx| lane.poll_drain(found, cx)))
}
