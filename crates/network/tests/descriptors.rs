//! A node without a free descriptor accepts a client when another one has ended, and serves the others meanwhile.
//!
//! The node runs in a process of its own, which is this program again, so that the limit is the node's alone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use guira_fabric::Profile;
use guira_fabric::heap::HeapRegion;
use guira_network::node::{Node, NodeCounters, NodeOptions};
use guira_network::tcp::BatchExecutor;
use guira_network::wire::{self, Fabric, Grant, HEADER_WORDS, Header, Hello, Kind};
use guira_testing::patience;
use rustix::process::{Resource, Rlimit, setrlimit};

/// Set in the environment of the process that is the node.
const IS_NODE: &str = "GUIRA_TEST_NODE";
/// The text that the node prints before its address.
const PREFIX: &str = "the node listens on ";
/// The descriptors of the node's process, and the clients that connect at once.
const DESCRIPTORS: u64 = 40;
const CLIENTS: usize = 60;

/// Runs the node, if this process was started for it.
#[test]
fn node() {
    if std::env::var_os(IS_NODE).is_none() {
        return;
    }
    let limit = Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let region = HeapRegion::new(4096, 64, Profile::Shm.caps());
    let options = NodeOptions::new((Ipv4Addr::LOCALHOST, 0).into(), [1, 2]).threads(1);
    let node = Node::bind(BatchExecutor::new(region), options).unwrap().spawn().unwrap();
    println!("{PREFIX}{}", node.local_addrs()[0]);
    io::stdout().flush().unwrap();
    // Until the test closes it, or ends.
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    node.stop().unwrap();
}

#[test]
fn a_node_without_free_descriptors_keeps_serving() {
    let (mut process, addr) = start();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(addr)).collect();
    // The kernel has connected them all; the node serves the first ones.
    assert_eq!(clients[0].receive().0.kind, Kind::Welcome);
    let counters = loop {
        let counters = clients[0].count();
        if counters.accept_errors > 0 {
            break counters;
        }
    };
    println!("{} of {CLIENTS} clients were served at once", counters.sessions_opened);
    assert!((10..CLIENTS as u64).contains(&counters.sessions_opened));
    // Each one that ends makes room for one that waits, until the last one is served.
    for mut client in clients.drain(1..CLIENTS - 1) {
        assert_eq!(client.receive().0.kind, Kind::Welcome);
    }
    let mut last = clients.pop().unwrap();
    assert_eq!(last.receive().0.kind, Kind::Welcome);
    assert_eq!(last.count().sessions_opened, CLIENTS as u64);
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success());
}

/// Starts the node's process.
fn start() -> (Child, SocketAddr) {
    let mut process = Command::new(std::env::current_exe().expect("this program"))
        .args(["node", "--exact", "--nocapture"])
        .env(IS_NODE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
    let mut said =
        lines.map_while(Result::ok).filter_map(|line| line.split_once(PREFIX).map(|(_, addr)| addr.to_owned()));
    let addr = said.next().expect("the node says where it listens");
    // The rest of its output is read and ignored.
    std::thread::spawn(move || said.count());
    (process, addr.parse().expect("an address"))
}

struct Client {
    stream: TcpStream,
}

impl Client {
    /// Connects and sends a Hello.
    fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).expect("the kernel connects");
        stream.set_read_timeout(Some(patience())).expect("an option of the socket");
        let mut client = Client { stream };
        let hello =
            Hello { fabric: Fabric::Tcp, wanted: Grant::ReadOnly, token: None, prior_session: None, sample_words: 0 };
        client.send(Kind::Hello, &hello.encode());
        client
    }

    fn send(&mut self, kind: Kind, body: &[u64]) {
        let mut frame = Vec::new();
        wire::append(&mut frame, kind, 1, body);
        let bytes: Vec<u8> = frame.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.stream.write_all(&bytes).expect("the node takes frames");
    }

    fn receive(&mut self) -> (Header, Vec<u64>) {
        let mut word = || {
            let mut bytes = [0; 8];
            self.stream.read_exact(&mut bytes).expect("the node answers");
            u64::from_le_bytes(bytes)
        };
        let header = Header::decode([word(), word()]).expect("a header");
        let body = (HEADER_WORDS..header.words).map(|_| word()).collect();
        (header, body)
    }

    fn count(&mut self) -> NodeCounters {
        self.send(Kind::Count, &[]);
        NodeCounters::decode(&self.receive().1).expect("counters")
    }
}
