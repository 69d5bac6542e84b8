//! The RDMA devices of this machine, for tests that need some.

use std::thread;
use std::time::Duration;

use guira_fabric_verbs::{Device, DeviceOptions, VerbsError};

/// Set by `cargo xtask test-rdma`: a test without a device fails instead of being skipped.
const REQUIRED: &str = "GUIRA_RDMA_REQUIRED";
/// Longer than the time for which the kernel shows the same counters again, 10 ms (`hw_counters/lifespan`).
const COUNTER_LIFESPAN: Duration = Duration::from_millis(50);

/// The names of the devices of the clients and of the memory node: the first and the last one whose port is active. On
/// a machine with one device they are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevices {
    /// The device of the clients.
    pub client: String,
    /// The device of the memory node.
    pub node: String,
}

impl RdmaDevices {
    /// Returns the devices. If there are none, prints that `test` is skipped.
    ///
    /// # Panics
    /// If there are none where they are required.
    pub fn find(test: &str) -> Option<RdmaDevices> {
        let opened: Result<Vec<String>, VerbsError> =
            Device::names().map(|names| names.into_iter().filter(|name| is_usable(name)).collect());
        let reason = match opened.as_deref() {
            Ok([client, .., node]) => return Some(RdmaDevices { client: client.clone(), node: node.clone() }),
            Ok([only]) => return Some(RdmaDevices { client: only.clone(), node: only.clone() }),
            Ok([]) => "there is no RDMA device with an active port".to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(std::env::var_os(REQUIRED).is_none(), "{test}: {REQUIRED} is set, but {reason}");
        println!("{test}: skipped: {reason}");
        None
    }

    /// Returns the packets that the clients' device has sent, if it counts them apart from the node's; only Soft-RoCE
    /// has a counter of this name. Waits until the kernel shows a new value.
    pub fn sent_packets(&self) -> Option<u64> {
        if self.client == self.node {
            return None;
        }
        thread::sleep(COUNTER_LIFESPAN);
        let path = format!("/sys/class/infiniband/{}/ports/1/hw_counters/sent_pkts", self.client);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

fn is_usable(name: &str) -> bool {
    Device::open(&DeviceOptions { device: Some(name.to_owned()), ..DeviceOptions::default() }).is_ok()
}
