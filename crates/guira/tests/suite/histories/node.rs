//! A memory node in a process of its own: this test program, which gets its arguments in an environment variable.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use guira::{ServeOptions, Store, Url};

use crate::histories::Case;

const NODE: &str = "GUIRA_TEST_HISTORIES_NODE";
const READY: &str = "serving";
/// First port that is tried. The kernel assigns none of these ports by itself, so that a client that connects to a node
/// that is gone cannot connect to itself.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;
/// Bytes for extents, so few that chunks have 64 KiB: a client that adopts a chunk reads all of it over one connection,
/// which must last for that long.
const EXTENT_BYTES: u64 = 16 << 20;

/// A node process, killed when this is dropped.
pub struct NodeProcess {
    pub addr: SocketAddr,
    arguments: String,
    child: Child,
}

impl NodeProcess {
    /// Starts a node that serves the table at `backing`, or memory of its own with a table of `round`'s case, and waits
    /// until it is ready.
    pub fn start(backing: Option<&Url>, round: u64) -> NodeProcess {
        let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let first = FIRST_PORT + (std::process::id() % u32::from(PORTS - 100)) as u16;
        let port = (first..FIRST_PORT + PORTS).find(is_free).expect("a free port");
        let arguments = format!("{port},{round},{}", backing.map(Url::to_string).unwrap_or_default());
        let mut node = NodeProcess { addr: (Ipv4Addr::LOCALHOST, port).into(), child: spawn(&arguments), arguments };
        node.wait_until_ready();
        node
    }

    pub fn url(&self) -> Url {
        url_of(self.addr)
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

pub fn url_of(addr: SocketAddr) -> Url {
    Url::tcp(&addr.ip().to_string(), addr.port()).unwrap()
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
    let parts: Vec<&str> = arguments.splitn(3, ',').collect();
    let (port, round): (u16, u64) = (parts[0].parse().unwrap(), parts[1].parse().unwrap());
    let store = match parts[2] {
        "" => Store::create_unnamed(&Case::of(round).options(round).extent_bytes(EXTENT_BYTES)).unwrap(),
        url => Store::open(url).unwrap(),
    };
    let served = store.serve(&ServeOptions::new((Ipv4Addr::LOCALHOST, port).into()).threads(2)).unwrap();
    println!("\n{READY}");
    // Until the test ends.
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
    served.stop().unwrap();
}
