//! A memory node in a process of its own: this test program, which gets its arguments in an environment variable.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

use guira::{RdmaDevice, ServeOptions, Store, Url};
use guira_conformance::RdmaDevices;
use guira_testing::ReservedPort;

use crate::common::fabric::url_of;
use crate::histories::Case;
use crate::histories::fixture::Fabric;

const NODE: &str = "GUIRA_TEST_HISTORIES_NODE";
const READY: &str = "serving";
/// Bytes for extents, so few that chunks have 64 KiB: a client that adopts a chunk reads all of it over one connection,
/// which must last for that long.
const EXTENT_BYTES: u64 = 16 << 20;

/// A node process, killed when this is dropped.
pub struct NodeProcess {
    pub addr: SocketAddr,
    /// The devices of the node and its clients; `None` over TCP.
    pub devices: Option<RdmaDevices>,
    arguments: String,
    child: Child,
    _port: ReservedPort,
}

impl NodeProcess {
    /// Starts a node that serves the table at `backing`, or memory of its own with a table of `round`'s case, over the
    /// given devices or over TCP, and waits until it is ready.
    pub fn start(backing: Option<&Url>, round: u64, devices: Option<RdmaDevices>) -> NodeProcess {
        let reserved = ReservedPort::new();
        let port = reserved.port;
        let device = devices.as_ref().map(|devices| devices.node.as_str()).unwrap_or_default();
        let arguments = format!("{port},{round},{device},{}", backing.map(Url::to_string).unwrap_or_default());
        let (addr, child) = ((Ipv4Addr::LOCALHOST, port).into(), spawn(&arguments));
        let mut node = NodeProcess { addr, devices, child, arguments, _port: reserved };
        node.wait_until_ready();
        node
    }

    pub fn url(&self) -> Url {
        url_of(self.addr, self.devices.as_ref())
    }

    /// Kills the node with SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another node at the same address, which may not be ready yet when this returns.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.arguments);
    }

    pub fn wait_until_ready(&mut self) {
        let mut lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines();
        let is_ready = lines.any(|line| line.unwrap().starts_with(READY));
        assert!(is_ready, "the node failed: see its message above");
    }
}

fn spawn(arguments: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "histories::node::node", "--nocapture", "--quiet"])
        .env(NODE, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs as a node if the environment asks for it; does nothing otherwise.
#[test]
fn node() {
    let Ok(arguments) = std::env::var(NODE) else { return };
    let parts: Vec<&str> = arguments.splitn(4, ',').collect();
    let (port, round): (u16, u64) = (parts[0].parse().unwrap(), parts[1].parse().unwrap());
    let store = match parts[3] {
        "" => Store::create_unnamed(&Case::of(Fabric::Tcp, round).options(round).extent_bytes(EXTENT_BYTES)).unwrap(),
        url => Store::open(url).unwrap(),
    };
    let options = ServeOptions::new((Ipv4Addr::LOCALHOST, port).into()).threads(2);
    let options = match parts[2] {
        "" => options,
        device => options.rdma(RdmaDevice { name: Some(device.to_owned()), ..RdmaDevice::default() }),
    };
    let served = store.serve(&options).unwrap();
    println!("\n{READY}");
    // Until the test ends.
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
    served.stop().unwrap();
}
