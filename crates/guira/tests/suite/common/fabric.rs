//! The fabric of memory nodes in tests: TCP, or RDMA if the environment says so.

use std::net::SocketAddr;

use guira::{RdmaDevice, Url};
use guira_conformance::RdmaDevices;

/// Names the fabric of the memory nodes of tests: `tcp`, the default, or `rdma`.
const FABRIC: &str = "GUIRA_TEST_FABRIC";

/// Returns the devices of the memory nodes and their clients, if the environment selects RDMA.
///
/// # Panics
/// If it selects RDMA, and this machine has no device.
pub fn selected_devices() -> Option<RdmaDevices> {
    match std::env::var(FABRIC).as_deref() {
        Ok("rdma") => Some(RdmaDevices::find(FABRIC).expect("RDMA was selected, so there is a device")),
        Ok("tcp") | Err(_) => None,
        Ok(other) => panic!("{FABRIC}={other}: neither tcp nor rdma"),
    }
}

/// Whether the environment selects RDMA, over which a test does not apply; prints the reason.
pub fn is_skipped_over_rdma(reason: &str) -> bool {
    let is_rdma = selected_devices().is_some();
    if is_rdma {
        println!("skipped over RDMA: {reason}");
    }
    is_rdma
}

/// Returns the URL of a memory node whose control connections arrive at `addr`; `devices` is `None` for TCP.
pub fn url_of(addr: SocketAddr, devices: Option<&RdmaDevices>) -> Url {
    match devices {
        None => Url::tcp(&addr.ip().to_string(), addr.port()).expect("an address"),
        Some(RdmaDevices { client, .. }) => format!("rdma://{addr}?dev={client}").parse().expect("an address"),
    }
}

/// Returns the device by which a memory node serves.
pub fn device_of_node(devices: &RdmaDevices) -> RdmaDevice {
    RdmaDevice { name: Some(devices.node.clone()), ..RdmaDevice::default() }
}
