//! Tables that grow over RDMA: the card learns of memory later, and clients of its parts. [R-GROW-7] [R-GROW-15]

use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::task::{Context, Poll, Waker};

use guira::errors::FabricError;
use guira::{Blame, CreateOptions, Effect, OpenOptions, ServeOptions, ServerHandle, Store, Url};
use guira_conformance::RdmaDevices;
use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, Lane, Region, Space, Verb, Waiting, post};
use guira_fabric_shm::ShmRegion;
use guira_fabric_verbs::{ConnectionOptions, Device, DeviceOptions, GrowingArea, Target, VerbsAgent, VerbsRegion};
use guira_network::client::{ConnectOptions, Endpoint};
use guira_network::node::{Node, NodeHandle, NodeOptions};
use guira_network::wire::Grant;
use guira_testing::{ReservedPort, patience};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

use super::devices;
use super::served::{NOBODY, options, url_of_handle};
use crate::common::Table;
use crate::common::fabric::{device_of_node, url_of};

const MIB: u64 = 1 << 20;
const MAIN_BYTES: u64 = 64 * MIB;
const UNIT: u64 = 64 << 10;

/// A node whose main space has memory for its first MiB, and addresses for more.
struct GrowingNode {
    devices: RdmaDevices,
    region: ShmRegion,
    handle: NodeHandle,
}

impl GrowingNode {
    fn start(devices: RdmaDevices) -> GrowingNode {
        let created = guira_fabric_shm::CreateOptions::new(MAIN_BYTES, 4096);
        let created = created.with_holes([(0, 0), (0, 0), (0, 0), (MIB, MAIN_BYTES)]);
        let region = ShmRegion::create_unnamed(created, |_| Ok::<(), String>(())).unwrap();
        let claim = region.claim_for_device().unwrap();
        let device = DeviceOptions { device: Some(devices.node.clone()), ..DeviceOptions::default() };
        let target = Target::new(&Device::open(&device).unwrap()).unwrap();
        target.register(Space::Device, claim.words(Space::Device)).unwrap();
        let area = GrowingArea { bytes: MIB..MAIN_BYTES, unit_bytes: UNIT, units_before: MIB / UNIT };
        let (words, stored) = (claim.words(Space::Main), region.stored_parts().unwrap());
        let agent = VerbsAgent::growing(region.clone(), target, words, &[area], &stored).unwrap();
        let options = NodeOptions::new((Ipv4Addr::LOCALHOST, 0).into(), [1, 1]).threads(1);
        let handle = Node::bind(agent, options).unwrap().spawn().unwrap();
        GrowingNode { devices, region, handle }
    }

    fn connect(&self, grant: Grant, waiting: Waiting) -> VerbsRegion {
        let addr = self.handle.local_addrs()[0];
        let connect = ConnectOptions::new(Endpoint::new(&addr.ip().to_string(), addr.port()));
        let device = DeviceOptions { device: Some(self.devices.client.clone()), ..DeviceOptions::default() };
        let queue = match waiting {
            Waiting::InPlace => ConnectionOptions::default(),
            Waiting::Cooperative => {
                ConnectionOptions { waiting: guira_fabric::Waiting::Cooperative, ..ConnectionOptions::default() }
            }
        };
        VerbsRegion::connect(&connect.with_grant(grant).with_waiting(waiting), &device, &queue).unwrap()
    }

    fn stored(&self) -> u64 {
        self.region.info().unwrap().stored_bytes
    }

    fn word(&self, at: u64) -> u64 {
        self.region.main_words()[(at / 8) as usize].load(Ordering::SeqCst)
    }
}

fn reserve(region: &VerbsRegion, bytes: Range<u64>) -> Result<(), FabricError> {
    pollster::block_on(guira_fabric::reserve(&mut region.lane(), bytes))
}

fn read(region: &VerbsRegion, at: u64, words: usize) -> Result<Vec<u64>, FabricError> {
    let mut found = vec![7; words];
    let batch = [Verb::Read { addr: Addr::main(at), into: &mut found }];
    pollster::block_on(post(&mut region.lane(), batch)).map(|()| found)
}

fn write(region: &VerbsRegion, at: u64, words: &[u64]) -> Result<(), FabricError> {
    pollster::block_on(post(&mut region.lane(), [Verb::Write { addr: Addr::main(at), words }]))
}

/// Memory that a client reserves or touches is registered, once, however it waits; other clients find it, and verbs
/// that cross its parts reach all of their bytes.
#[test]
fn parts_come_when_they_are_reserved_or_touched() {
    let Some(devices) = devices() else { return };
    for waiting in [Waiting::InPlace, Waiting::Cooperative] {
        let node = GrowingNode::start(devices.clone());
        let (client, other) = (node.connect(Grant::ReadWrite, waiting), node.connect(Grant::ReadWrite, waiting));
        let first = node.stored();
        assert_eq!(write(&client, MIB - 8, &[1]), Ok(()));
        assert_eq!(node.stored(), first, "it has memory from the start");
        reserve(&client, 5 * MIB + 8..8 * MIB + 16).unwrap();
        let reserved = node.stored();
        assert!((first + 3 * MIB..first + 4 * MIB).contains(&reserved), "{first}, then {reserved}");
        reserve(&client, 5 * MIB + 8..8 * MIB + 16).unwrap();
        reserve(&other, 6 * MIB..7 * MIB).unwrap();
        reserve(&other, 0..MIB).unwrap();
        assert_eq!((write(&other, 6 * MIB, &[3]), read(&client, 6 * MIB, 1)), (Ok(()), Ok(vec![3])));
        assert_eq!((node.stored(), node.word(6 * MIB)), (reserved, 3));
        let words: Vec<u64> = (0..1 << 17).collect();
        write(&client, 20 * MIB + 40, &words).unwrap();
        let touched = node.stored();
        assert!((reserved + MIB..reserved + 2 * MIB).contains(&touched), "{reserved}, then {touched}");
        assert_eq!(read(&other, 20 * MIB + 40, 1 << 17), Ok(words));
        assert_eq!((node.word(20 * MIB + 32), node.word(21 * MIB + 40)), (0, 0));
        // Bytes of three parts, of which the client knows none.
        let (mut found, mut zeros) = ([7; 2], [7; 16]);
        let batch = [
            Verb::Write { addr: Addr::main(30 * MIB), words: &[5] },
            Verb::Write { addr: Addr::main(40 * MIB), words: &[6] },
            Verb::Read { addr: Addr::main(40 * MIB), into: &mut found },
            Verb::Read { addr: Addr::main(50 * MIB - 64), into: &mut zeros },
        ];
        pollster::block_on(post(&mut client.lane(), batch)).unwrap();
        assert_eq!((found, zeros, node.word(30 * MIB)), ([6, 0], [0; 16], 5));
        for bytes in [MAIN_BYTES - 8..MAIN_BYTES + 8, (1 << 62)..(1 << 62) + 8] {
            let refused = reserve(&client, bytes).unwrap_err();
            assert!(matches!(refused, FabricError::OutOfBounds { .. }), "{refused}");
        }
        assert!(!client.is_lost() && !other.is_lost());
    }
}

/// A WRITE that no death may tear is not made two messages, and a batch that is dropped while it waits for a part has
/// no effect.
#[test]
fn no_batch_is_executed_in_part() {
    let Some(devices) = devices() else { return };
    let node = GrowingNode::start(devices);
    for (waiting, at) in [(Waiting::InPlace, 10 * MIB), (Waiting::Cooperative, 12 * MIB)] {
        let client = node.connect(Grant::ReadWrite, waiting);
        let whole = [1; 16];
        let refused = write(&client, at - 64, &whole).unwrap_err();
        assert!(refused.to_string().contains("crosses two parts of the region"), "{refused}");
        assert_eq!((refused.effect(), node.word(at - 64), node.word(at)), (Effect::None, 0, 0));
        let mut lane = client.lane();
        let mut cx = Context::from_waker(Waker::noop());
        let (addr, add) = (Addr::main(at + 5 * UNIT), 1);
        drop(post(&mut lane, [Verb::FetchAdd { addr, add, found: &mut 0 }]));
        assert!(matches!(lane.poll_drain(&mut [0; 2], &mut cx), Poll::Ready(Ok(0))), "nothing was sent");
        let mut found = 7;
        pollster::block_on(post(&mut lane, [Verb::FetchAdd { addr, add, found: &mut found }])).unwrap();
        assert_eq!((found, node.word(at + 5 * UNIT)), (0, 1));
    }
}

/// The node takes no more memory than it may: what needs more has no effect, what has memory is used as before, and the
/// units that are needed may be registered where the part does not fit.
#[test]
fn a_node_takes_no_more_memory_than_it_may() {
    let Some(devices) = devices() else { return };
    let node = GrowingNode::start(devices);
    let limit = node.stored() + 2 * MIB;
    node.region.limit_memory(limit);
    let client = node.connect(Grant::ReadWrite, Waiting::InPlace);
    reserve(&client, 4 * MIB..5 * MIB).unwrap();
    let refused = reserve(&client, 8 * MIB..10 * MIB).unwrap_err();
    println!("{refused}");
    let FabricError::NoMemory { wanted, available, limiter } = refused else { panic!("{refused}") };
    assert!(
        available < wanted && limiter == "the memory node's limit (--max-memory)",
        "{wanted}, {available}, {limiter}"
    );
    let batch = [
        Verb::Write { addr: Addr::main(4 * MIB), words: &[1] },
        Verb::Write { addr: Addr::main(32 * MIB), words: &[1; 1 << 17] },
    ];
    let refused = pollster::block_on(post(&mut client.lane(), batch)).unwrap_err();
    assert!(matches!(refused, FabricError::NoMemory { .. }) && refused.effect() == Effect::None, "{refused}");
    assert_eq!((read(&client, 4 * MIB, 1), node.stored() <= limit), (Ok(vec![0]), true));
    node.region.limit_memory(u64::MAX);
    reserve(&client, 8 * MIB..10 * MIB).unwrap();
}

/// A client that may only read reaches what others have reserved, also what it did not know when it connected, and
/// makes the node reserve nothing.
#[test]
fn readers_reserve_no_memory() {
    let Some(devices) = devices() else { return };
    let node = GrowingNode::start(devices);
    let (reader, writer) =
        (node.connect(Grant::ReadOnly, Waiting::InPlace), node.connect(Grant::ReadWrite, Waiting::InPlace));
    write(&writer, 30 * MIB, &[4]).unwrap();
    assert_eq!((read(&reader, 30 * MIB, 1), read(&reader, 0, 1)), (Ok(vec![4]), Ok(vec![0])));
    let stored = node.stored();
    for refused in [read(&reader, 40 * MIB, 1).map(drop), reserve(&reader, 40 * MIB..41 * MIB)] {
        assert_eq!(refused, Err(FabricError::ReadOnly { verb: "reserving memory" }));
    }
    assert_eq!(node.stored(), stored);
    // Memory that the node has not registered yet.
    node.region.reserve(50 * MIB..51 * MIB, u64::MAX).unwrap();
    let stored = node.stored();
    assert_eq!((read(&reader, 50 * MIB, 4), node.stored()), (Ok(vec![0; 4]), stored));
    assert_eq!(write(&reader, 0, &[1]), Err(FabricError::ReadOnly { verb: "WRITE" }));
}

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

fn value(i: u64) -> Vec<u8> {
    vec![i as u8; if i.is_multiple_of(10) { 2_000 } else { 10 }]
}

/// A table with segments of few keys.
fn growing() -> CreateOptions {
    CreateOptions::new(200).max_capacity(100_000).format("bytes:1024".parse().unwrap())
}

fn assert_has_all(store: &Store, keys: u64) {
    let mut reader = store.reader();
    for i in 0..keys {
        assert_eq!(reader.get(&key(i)).unwrap().as_deref(), Some(&value(i)[..]), "key {i}");
    }
}

fn assert_clean(store: &Store, keys: u64) {
    let stat = store.stat().unwrap();
    assert_eq!((stat.table.entries, stat.table.unverified_rows), (keys, 0));
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// Clients that wait in place and tasks let a table grow over RDMA, and find each other's keys; so do a reader that
/// knew the table when it was small, one that came later, and one that may only read. [R-GROW-6]
#[test]
fn a_table_grows_over_rdma() {
    const KEYS: u64 = 3_000;
    let Some(devices) = devices() else { return };
    let store = Store::create_unnamed(&growing()).unwrap();
    let before = store.stat().unwrap();
    let served = store.serve(&options(&devices)).unwrap();
    let url = url_of_handle(&served, &devices);
    let old = Store::open(&url).unwrap();
    assert!(old.reader().get(&key(0)).unwrap().is_none());
    let stores = [Store::open(&url).unwrap(), Store::open(&url).unwrap()];
    let mut clients = [stores[0].client().unwrap(), stores[1].client().unwrap()];
    for i in 0..KEYS {
        clients[(i % 2) as usize].put(&key(i), &value(i)).unwrap();
    }
    let aio = pollster::block_on(guira::aio::Store::open(&url)).unwrap();
    let mut task = pollster::block_on(aio.client()).unwrap();
    for i in KEYS..2 * KEYS {
        pollster::block_on(task.put(&key(i), &value(i))).unwrap();
    }
    let mut task = pollster::block_on(pollster::block_on(guira::aio::Store::open(&url)).unwrap().client()).unwrap();
    for i in 0..2 * KEYS {
        assert_eq!(pollster::block_on(task.get(&key(i))).unwrap().as_deref(), Some(&value(i)[..]), "key {i}");
    }
    let reading = Store::open_with(&url, &OpenOptions::default().read_only()).unwrap();
    for store in [&old, &stores[0], &Store::open(&url).unwrap(), &reading] {
        assert_has_all(store, 2 * KEYS);
    }
    drop((clients, task));
    assert_clean(&old, 2 * KEYS);
    assert_eq!(old.scan().unwrap().count() as u64, 2 * KEYS);
    let stat = old.stat().unwrap();
    let [rows, more] = [&before, &stat].map(|stat| stat.table.rows);
    println!("from {rows} rows to {more}");
    assert!(more >= rows * 16);
    drop((old, stores, reading, aio));
    served.stop().unwrap();
    let stored = store.stat().unwrap().region.file().unwrap().stored_bytes;
    println!("{} bytes, then {stored}", before.region.file().unwrap().stored_bytes);
    // The machine has not this much, so nothing else was registered.
    assert!(stored < 64 * MIB && store.table().geometry().main_bytes() > 1 << 30);
    assert_clean(&store, 2 * KEYS);
}

/// A table with a name grows in the hands of remote clients, of local ones, and of remote ones again: each finds what
/// the others have added, also a remote store that was there before, and goes on when the node is back.
#[test]
fn a_table_grows_in_turns() {
    const KEYS: u64 = 1_500;
    let Some(devices) = devices() else { return };
    let (table, store) = Table::create(&growing());
    let port = ReservedPort::new();
    let serve = |store: &Store| -> ServerHandle {
        let options = ServeOptions::new((Ipv4Addr::LOCALHOST, port.port).into());
        store.serve(&options.rdma(device_of_node(&devices))).unwrap()
    };
    let served = serve(&store);
    let url = url_of((Ipv4Addr::LOCALHOST, port.port).into(), Some(&devices));
    let remote = Store::open_with(&url, &OpenOptions::default().reconnect_timeout(patience())).unwrap();
    let mut client = remote.client().unwrap();
    (0..KEYS).for_each(|i| assert!(client.put(&key(i), &value(i)).is_ok(), "key {i}"));
    served.stop().unwrap();
    drop(store);
    let rows = {
        let local = Store::open(&table.url).unwrap();
        assert_has_all(&local, KEYS);
        let mut client = local.client().unwrap();
        (KEYS..2 * KEYS).for_each(|i| assert!(client.put(&key(i), &value(i)).is_ok(), "key {i}"));
        local.stat().unwrap().table.rows
    };
    let store = Store::open(&table.url).unwrap();
    let served = serve(&store);
    assert_has_all(&remote, 2 * KEYS);
    (2 * KEYS..3 * KEYS).for_each(|i| assert!(client.put(&key(i), &value(i)).is_ok(), "key {i}"));
    assert_has_all(&Store::open(&url).unwrap(), 3 * KEYS);
    assert_has_all(&Store::open_with(&url, &OpenOptions::default().read_only()).unwrap(), 3 * KEYS);
    drop(client);
    assert_clean(&remote, 3 * KEYS);
    let (first, more) = (store.table().config().initial_rows(), remote.stat().unwrap().table.rows);
    println!("{first} rows, then {rows}, then {more}");
    assert!(rows >= first * 8 && more > rows);
    drop(remote);
    served.stop().unwrap();
    assert_clean(&store, 3 * KEYS);
}

/// A table that takes little memory at first.
fn limited() -> CreateOptions {
    CreateOptions::new(500).max_capacity(1_000_000).max_clients(64)
}

/// Memory that a node and its clients may lock in a test.
const LOCKED_BYTES: u64 = 24 * MIB;

/// Grows a table until that is refused, which must be for the reason `limiter` and leave the table as it is.
fn assert_grows_until_refused(url: &Url, limiter: &str) {
    let remote = Store::open(url).unwrap();
    let mut client = remote.client().unwrap();
    (0..50).for_each(|i| assert!(client.put(&key(i), &value(i)).is_ok(), "key {i}"));
    let refused = remote.grow(400_000).unwrap_err();
    println!("{refused}");
    assert!(refused.blame() == Blame::Full && refused.insufficient_space().is_some(), "{refused}");
    assert!(refused.effect() == Effect::None && refused.to_string().contains(limiter), "{refused}");
    let space = refused.insufficient_space().unwrap();
    assert!(space.available_bytes < space.wanted_bytes, "{refused}");
    let (first, rows) = (remote.table().config().initial_rows(), remote.stat().unwrap().table.rows);
    assert!(rows > first * 4, "{first} rows, then {rows}");
    (50..100).for_each(|i| assert!(client.put(&key(i), &value(i)).is_ok(), "key {i}"));
    drop(client);
    assert_has_all(&remote, 100);
    assert_clean(&remote, 100);
}

/// A node reserves no more than `--max-memory`, and locks no more than it may: what needs more fails without effect.
#[test]
fn a_table_that_may_not_grow_further_is_as_before() {
    let Some(devices) = devices() else { return };
    let store = Store::create_unnamed(&limited()).unwrap();
    let limit = store.stat().unwrap().region.file().unwrap().stored_bytes + 4 * MIB;
    let served = store.serve(&options(&devices).max_memory(limit)).unwrap();
    assert_grows_until_refused(&url_of_handle(&served, &devices), "the memory node's limit (--max-memory) has only ");
    served.stop().unwrap();
    assert_clean(&store, 100);
    // Inherited by the other process. Root has none, so the other process is not root's.
    let old = getrlimit(Resource::Memlock);
    let maximum = old.maximum.map(|most| most.max(LOCKED_BYTES));
    setrlimit(Resource::Memlock, Rlimit { current: Some(LOCKED_BYTES), maximum }).unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "rdma::growth::with_little_locked_memory", "--nocapture"]).env(LIMITED, "1");
    if geteuid().is_root() {
        other.uid(NOBODY);
    }
    let output = other.output();
    setrlimit(Resource::Memlock, old).unwrap();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && text.contains("the memory node's limit of locked memory"),
        "{:?}",
        output.status
    );
}

const LIMITED: &str = "GUIRA_TEST_RDMA_LIMITED";

/// Runs as another process, which may lock little memory, if the environment asks for it; does nothing otherwise.
#[test]
fn with_little_locked_memory() {
    if std::env::var_os(LIMITED).is_none() {
        return;
    }
    let devices = devices().unwrap();
    let store = Store::create_unnamed(&limited()).unwrap();
    let served = store.serve(&options(&devices)).unwrap();
    assert_grows_until_refused(&url_of_handle(&served, &devices), "the memory node's limit of locked memory");
    served.stop().unwrap();
    assert_clean(&store, 100);
}
