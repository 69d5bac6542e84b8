//! A memory node that is a process of its own: this program again, told by an environment variable.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use guira::{ServeOptions, Store, Url};

use crate::histories::Shape;

const NODE: &str = "GUIRA_TEST_HISTORIES_NODE";
const READY: &str = "serving";
/// Ports from here on are asked for: the kernel gives them to nobody by itself, so that a client that looks for a node
/// which is gone cannot meet itself.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;
/// So little that chunks have 64 KiB: who adopts one reads all of it through one connection, which must last so long.
const EXTENT_BYTES: u64 = 16 << 20;

/// A node, killed when this is dropped.
pub struct NodeProcess {
    pub addr: SocketAddr,
    told: String,
    child: Child,
}

impl NodeProcess {
    /// Serves the table at `backing`, or memory of its own with a table of `round`'s shape, and is ready.
    pub fn start(backing: Option<&Url>, round: u64) -> NodeProcess {
        let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let first = FIRST_PORT + (std::process::id() % u32::from(PORTS - 100)) as u16;
        let port = (first..FIRST_PORT + PORTS).find(is_free).expect("a free port");
        let told = format!("{port},{round},{}", backing.map(Url::to_string).unwrap_or_default());
        let mut node = NodeProcess { addr: (Ipv4Addr::LOCALHOST, port).into(), child: spawn(&told), told };
        node.wait_until_ready();
        node
    }

    pub fn url(&self) -> Url {
        url_of(self.addr)
    }

    /// SIGKILL; it is gone when this returns.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another at the same address, which may not be ready yet when this returns.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.told);
    }

    pub fn wait_until_ready(&mut self) {
        let mut lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines();
        let is_ready = lines.any(|line| line.unwrap().starts_with(READY));
        assert!(is_ready, "the node failed: see its message above");
    }
}

pub fn url_of(addr: SocketAddr) -> Url {
    Url::tcp(&addr.ip().to_string(), addr.port()).unwrap()
}

fn spawn(told: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "histories::node::node", "--nocapture", "--quiet"])
        .env(NODE, told)
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

/// A node's life, when this program was started as one; nothing otherwise.
#[test]
fn node() {
    let Ok(told) = std::env::var(NODE) else { return };
    let parts: Vec<&str> = told.splitn(3, ',').collect();
    let (port, round): (u16, u64) = (parts[0].parse().unwrap(), parts[1].parse().unwrap());
    let store = match parts[2] {
        "" => Store::create_unnamed(&Shape::of(round).options(round).extent_bytes(EXTENT_BYTES)).unwrap(),
        url => Store::open(url).unwrap(),
    };
    let served = store.serve(&ServeOptions::new((Ipv4Addr::LOCALHOST, port).into()).threads(2)).unwrap();
    println!("\n{READY}");
    // Until whoever started it ends.
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
    served.stop().unwrap();
}
