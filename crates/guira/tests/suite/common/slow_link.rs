//! A link that delays what RDMA clients send.

use std::env;
use std::process::Command;
use std::time::Duration;

use super::fabric::selected_devices;

/// Names the network interface of the clients' device, if it belongs to a virtual machine and may be slowed down.
const LINK: &str = "GUIRA_RDMA_LINK";
/// The delay of the link for tests of tasks that are not polled: long compared with a poll. Without it Soft-RoCE has
/// executed a batch when its post returns.
const TASK_DELAY: Duration = Duration::from_millis(10);

/// A network interface that delays what it sends. It does not when this is dropped.
pub struct SlowLink(String);

impl SlowLink {
    /// Slows the link of the clients' device down, if it may be.
    pub fn start(delay: Duration) -> Option<SlowLink> {
        let Ok(link) = env::var(LINK) else {
            println!("skipped: there is no link that may be slowed down");
            return None;
        };
        let delay = format!("{}us", delay.as_micros());
        tc(&["qdisc", "add", "dev", &link, "root", "netem", "delay", &delay]);
        Some(SlowLink(link))
    }

    /// Makes batches take longer than a poll, if nodes are reached over RDMA: `None` if that is not possible.
    pub fn for_tasks() -> Option<Option<SlowLink>> {
        match selected_devices() {
            None => Some(None),
            Some(_) => SlowLink::start(TASK_DELAY).map(Some),
        }
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        tc(&["qdisc", "del", "dev", &self.0, "root"]);
    }
}

fn tc(arguments: &[&str]) {
    let status = Command::new("tc").args(arguments).status().expect("iproute2 is installed");
    assert!(status.success(), "tc {arguments:?}");
}
