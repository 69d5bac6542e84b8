//! A table that is served over RDMA is used by nobody's processor: neither this process's nor another one's.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use guira::errors::{AttachError, ShmError, VerbsError};
use guira::{AdminError, CreateOptions, Error, OpenError, Put, ServeOptions, ServerHandle, Store, Url};
use guira_conformance::RdmaDevices;

use super::{attach_error, devices};
use crate::common::Table;
use crate::common::fabric::{device_of_node, url_of};
use crate::node::test_node::TestNode;

/// The environment variable that makes the program another process: it holds a role and a URL.
const PROCESS: &str = "GUIRA_TEST_RDMA_PROCESS";
/// A limit of locked memory that is smaller than the buffers of a client, in KiB.
const LOCKED_KIB: &str = "64";
/// The user `nobody`, for whom limits of locked memory hold.
pub(super) const NOBODY: u32 = 65_534;

pub(super) fn options(devices: &RdmaDevices) -> ServeOptions {
    ServeOptions::new((Ipv4Addr::LOCALHOST, 0).into()).rdma(device_of_node(devices))
}

fn create_options() -> CreateOptions {
    CreateOptions::new(1_000).extent_bytes(8 << 20)
}

pub(super) fn url_of_handle(served: &ServerHandle, devices: &RdmaDevices) -> Url {
    url_of(served.local_addrs()[0], Some(devices))
}

/// Another process of this program, which is killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command, role: &str, url: &Url) -> Process {
        let command = command.env(PROCESS, format!("{role} {url}")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "@@ready"), "the process failed: see its message above");
        Process(child)
    }

    /// Lets the process end, and returns whether it succeeded.
    fn end(mut self) -> bool {
        drop(self.0.stdin.take());
        self.0.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn arguments() -> [&'static str; 4] {
    ["--exact", "rdma::served::process", "--nocapture", "--quiet"]
}

/// Runs as another process if the environment asks for it; does nothing otherwise.
#[test]
fn process() {
    let Ok(arguments) = std::env::var(PROCESS) else { return };
    let (role, url) = arguments.split_once(' ').unwrap();
    let url: Url = url.parse().unwrap();
    match role {
        "map" => {
            let store = Store::open(&url).unwrap();
            println!("\n@@ready");
            // Until the test ends.
            drop(std::io::stdin().read_line(&mut String::new()));
            drop(store);
        }
        "limited" => {
            let error = attach_error(&url);
            println!("{error}");
            let AttachError::Device(VerbsError::Memlock { needed_bytes, limit_bytes }) = &*error else {
                panic!("{error:?}")
            };
            assert!(*limit_bytes == LOCKED_KIB.parse::<u64>().unwrap() << 10 && needed_bytes > limit_bytes);
            let store = Store::create_unnamed(&create_options()).unwrap();
            let error = store.serve(&options(&devices().unwrap())).unwrap_err();
            let Error::Admin(AdminError::ServeRdma { source, .. }) = &error else { panic!("{error:?}") };
            assert!(matches!(**source, VerbsError::Memlock { .. }), "{error:?}");
            println!("{error}\n@@ready");
        }
        other => panic!("{other}"),
    }
}

fn is_in_use(result: Result<ServerHandle, Error>) -> bool {
    match result {
        Err(error @ Error::Admin(AdminError::InUse { .. })) => error.to_string().contains("nothing was changed"),
        other => panic!("{other:?}"),
    }
}

fn is_served_by_device<T>(result: Result<T, Error>) -> bool {
    match result {
        Err(Error::Open(OpenError::Region(ShmError::ServedByDevice { .. }))) => true,
        Err(error) => panic!("{error:?}"),
        Ok(_) => false,
    }
}

/// A store with clients, readers or a node over TCP is not served; a store that is served has no clients.
#[test]
fn a_store_is_either_served_or_used() {
    let Some(devices) = devices() else { return };
    let store = Store::create_unnamed(&create_options()).unwrap();
    let mut client = store.client().unwrap();
    client.put(b"cuckoo", b"Guira guira").unwrap();
    assert!(is_in_use(store.serve(&options(&devices))));
    assert!(client.contains(b"cuckoo").unwrap(), "the client goes on");
    drop(client);
    let reader = store.reader();
    assert!(is_in_use(store.serve(&options(&devices))));
    drop(reader);
    let over_tcp = ServeOptions::new("127.0.0.1:0".parse().unwrap());
    let node = store.serve(&over_tcp).unwrap();
    assert!(is_in_use(store.serve(&options(&devices))));
    node.stop().unwrap();
    let clone = store.clone();
    let served = store.serve(&options(&devices)).unwrap();
    assert!(is_served_by_device(store.serve(&options(&devices))));
    assert!(is_served_by_device(clone.serve(&over_tcp)));
    assert!(is_served_by_device(clone.client()) && is_served_by_device(clone.check()));
    assert!(!clone.is_destroyed().unwrap());
    assert!(is_served_by_device(store.client()));
    assert!(is_served_by_device(pollster::block_on(store.to_async().client())));
    let remote = Store::open(url_of_handle(&served, &devices)).unwrap();
    let mut client = remote.client().unwrap();
    assert_eq!(client.get(b"cuckoo").unwrap().as_deref(), Some(&b"Guira guira"[..]));
    assert_eq!(client.put(b"cuckoo", b"Crotophaga").unwrap(), Put::Replaced);
    drop(client);
    assert!(remote.check().unwrap().is_clean());
    served.stop().unwrap();
    // The process goes on with what the clients left, their locks included.
    let mut client = store.client().unwrap();
    assert_eq!(client.get(b"cuckoo").unwrap().as_deref(), Some(&b"Crotophaga"[..]));
    assert_eq!(client.put(b"cuckoo", b"Guira").unwrap(), Put::Replaced);
    assert!(store.check().unwrap().is_clean());
}

/// A table with a name is served only if no process has it open, and then no process opens it.
#[test]
fn a_table_is_either_served_or_mapped() {
    let Some(devices) = devices() else { return };
    let (table, store) = Table::create(&create_options());
    let mapping = Process::start(Command::new(std::env::current_exe().unwrap()).args(arguments()), "map", &table.url);
    let error = store.serve(&options(&devices)).unwrap_err();
    assert!(matches!(error, Error::Open(OpenError::Region(ShmError::MappedElsewhere { .. }))), "{error:?}");
    store.client().unwrap().put(b"cuckoo", b"Guira guira").unwrap();
    assert!(mapping.end());
    let served = store.serve(&options(&devices)).unwrap();
    assert!(is_served_by_device(Store::open(&table.url)));
    assert!(is_served_by_device(store.client()));
    let mut client = Store::open(url_of_handle(&served, &devices)).unwrap().client().unwrap();
    assert_eq!(client.put(b"cuckoo", b"Crotophaga").unwrap(), Put::Replaced);
    drop(client);
    served.stop().unwrap();
    drop(store);
    // The claim ends with the mapping of the process that served it.
    let store = Store::open(&table.url).unwrap();
    assert_eq!(store.client().unwrap().get(b"cuckoo").unwrap().as_deref(), Some(&b"Crotophaga"[..]));
    assert!(store.check().unwrap().is_clean());
}

/// The limit of locked memory is reported with what is needed, for a client as well as for a node.
#[test]
fn too_little_locked_memory_is_reported() {
    let Some(devices) = devices() else { return };
    let served = TestNode::start_over(Some(devices), |options| options);
    let mut limited = Command::new("sh");
    let script = format!("ulimit -l {LOCKED_KIB} && exec \"$0\" \"$@\"");
    limited.args(["-c", &script]).arg(std::env::current_exe().unwrap()).args(arguments());
    if rustix::process::geteuid().is_root() {
        // For root there is no limit.
        limited.uid(NOBODY);
    }
    let process = Process::start(&mut limited, "limited", &served.url());
    assert!(process.end());
}
