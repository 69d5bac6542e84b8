//! Tables whose file loses its name while they are open: no operation that begins a moment later is acknowledged, in
//! this process or through a memory node. [R-OPEN-2]

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guira::{Blame, Client, CreateOptions, Effect, Error, OpenError, OpenOptions, OperationErrorKind, ServeOptions};
use guira::{Store, Url};
use guira_testing::{ReservedPort, ScratchFolder, wait_until};

/// A way in which the file at a path loses its name.
type Lose = fn(&Path);

const LOSSES: [(Lose, &str); 4] = [
    (|path| fs::remove_file(path).unwrap(), "removed or moved"),
    (|path| fs::rename(path, path.with_extension("moved")).unwrap(), "removed or moved"),
    (|path| fs::rename(path.parent().unwrap(), path.parent().unwrap().with_extension("moved")).unwrap(), "removed"),
    (restore_copy, "replaced"),
];

/// Replaces the file by a copy, as restoring a backup does.
fn restore_copy(path: &Path) {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    fs::rename(copy, path).unwrap();
}

/// A table in a folder of its own, in memory.
struct Named {
    path: PathBuf,
    url: Url,
    _folder: ScratchFolder,
}

fn named() -> (Named, Store) {
    let folder = ScratchFolder::in_shared_memory();
    let path = folder.path().join("tables/birds");
    fs::create_dir(path.parent().unwrap()).unwrap();
    let url = Url::file(&path).unwrap();
    let store = Store::create(&url, &CreateOptions::new(100).extent_bytes(1 << 20)).unwrap();
    (Named { path, url, _folder: folder }, store)
}

/// Puts a key until that fails, and returns the error.
fn first_error(client: &mut Client) -> Error {
    let mut error = None;
    wait_until("a put fails", || {
        error = client.put(b"cuckoo", b"Guira guira").err();
        error.is_some()
    });
    error.expect("one failed")
}

fn check_gone(error: Option<Error>, reason: &str, what: usize) {
    let error = error.unwrap_or_else(|| panic!("{what}: an answer from a table that is gone"));
    let is_gone = matches!(&error, Error::Open(OpenError::Gone { reason: said, .. }) if said.contains(reason));
    assert!(is_gone && (error.blame(), error.effect()) == (Blame::Fenced, Effect::None), "{what}: {error}");
}

#[test]
fn every_operation_on_a_table_whose_file_lost_its_name_fails() {
    for (lose, reason) in LOSSES {
        let (table, store) = named();
        let (mut client, mut reader) = (store.client().unwrap(), store.reader());
        let mut task = pollster::block_on(store.to_async().client()).unwrap();
        client.put(b"cuckoo", b"Guira guira").unwrap();
        lose(&table.path);
        check_gone(Some(first_error(&mut client)), reason, 99);
        let errors = [
            client.get(b"cuckoo").err(),
            client.get_many(&[b"cuckoo"]).remove(0).err(),
            client.get_versioned(b"cuckoo").err(),
            client.try_insert(b"ani", b"Crotophaga").err(),
            client.remove(b"cuckoo").err(),
            client.put_many(&[(b"cuckoo", b"again")]).remove(0).err(),
            reader.get(b"cuckoo").err(),
            pollster::block_on(task.put(b"cuckoo", b"again")).err(),
            pollster::block_on(task.get(b"cuckoo")).err(),
            store.client().err(),
            store.scan().err(),
            pollster::block_on(store.to_async().scan()).err(),
            store.stat().err(),
            store.serve(&ServeOptions::new((Ipv4Addr::LOCALHOST, 0).into())).err(),
        ];
        errors.into_iter().enumerate().for_each(|(i, error)| check_gone(error, reason, i));
        assert!(store.is_destroyed().unwrap());
    }
}

/// A destroyed table has lost its name, too, but its clients are told that it was destroyed.
#[test]
fn a_destroyed_table_stays_a_destroyed_one() {
    let (table, store) = named();
    let mut client = store.client().unwrap();
    Store::destroy(&table.url).unwrap();
    // The time of two looks at the name.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2_500) {
        let error = client.put(b"cuckoo", b"Guira guira").unwrap_err();
        assert!(matches!(error.operation_kind(), Some(OperationErrorKind::Destroyed)), "{error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(store.is_destroyed().unwrap());
}

#[test]
fn a_memory_node_of_a_table_whose_file_lost_its_name_ends_and_its_clients_know() {
    let node = |(lose, reason): (Lose, &str)| {
        let (table, store) = named();
        let served = store.serve(&ServeOptions::new((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
        let url: Url = format!("tcp://{}", served.local_addrs()[0]).parse().unwrap();
        let remote = Store::open(&url).unwrap();
        let (mut client, mut reader) = (remote.client().unwrap(), remote.reader());
        client.put(b"cuckoo", b"Guira guira").unwrap();
        lose(&table.path);
        wait_until("the node ends", || !served.is_running());
        check_gone(client.get(b"cuckoo").err(), "its memory node lost it", 0);
        check_gone(client.put(b"cuckoo", b"again").err(), "its memory node lost it", 1);
        check_gone(reader.get(b"cuckoo").err(), "its memory node lost it", 2);
        let error = served.stop().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    // Each takes a second to be noticed, and another one to end.
    std::thread::scope(|scope| LOSSES.into_iter().for_each(|loss| _ = scope.spawn(move || node(loss))));
}

/// A copy of the table's file that takes its place while the node is down is another memory: what was acknowledged after
/// the copy was made is not in it.
#[test]
fn a_node_over_a_copy_of_the_file_is_another_one() {
    let (table, store) = named();
    let port = ReservedPort::new();
    let options = ServeOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port.port)));
    let served = store.serve(&options).unwrap();
    let url: Url = format!("tcp://{}", served.local_addrs()[0]).parse().unwrap();
    let remote = Store::open_with(&url, &OpenOptions::default()).unwrap();
    let mut client = remote.client().unwrap();
    client.put(b"cuckoo", b"Guira guira").unwrap();
    served.stop().unwrap();
    // The same file: the client goes on.
    let served = Store::open(&table.url).unwrap().serve(&options).unwrap();
    client.put(b"cuckoo", b"Guira guira").unwrap();
    served.stop().unwrap();
    drop(store);
    restore_copy(&table.path);
    let _served = Store::open(&table.url).unwrap().serve(&options).unwrap();
    check_gone(client.get(b"cuckoo").err(), "its memory node has other memory now", 0);
    check_gone(remote.client().err(), "its memory node has other memory now", 1);
}

/// A copy that is written into the file while the node is down has the same name and inode. A client that had changed
/// something after the copy was made knows that this is lost; one that had not goes on.
#[test]
fn a_client_knows_an_earlier_state_of_the_memory() {
    let (table, store) = named();
    drop(store);
    let port = ReservedPort::new();
    let options = ServeOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port.port)));
    let serve = || Store::open(&table.url).unwrap().serve(&options).unwrap();
    let served = serve();
    let url: Url = format!("tcp://{}", served.local_addrs()[0]).parse().unwrap();
    let remote = Store::open(&url).unwrap();
    let [mut writer, mut other] = [0, 1].map(|_| remote.client().unwrap());
    writer.put(b"cuckoo", b"Guira guira").unwrap();
    other.put(b"ani", b"Crotophaga").unwrap();
    let copy = fs::read(&table.path).unwrap();
    writer.put(b"cuckoo", b"lost").unwrap();
    let mut late = remote.client().unwrap();
    late.get(b"cuckoo").unwrap();
    served.stop().unwrap();
    fs::write(&table.path, copy).unwrap();
    let _served = serve();
    let earlier = "its memory node has an earlier state of it";
    check_gone(writer.put(b"cuckoo", b"again").err(), earlier, 0);
    check_gone(late.get(b"cuckoo").err(), earlier, 1);
    other.put(b"ani", b"again").unwrap();
    assert_eq!(other.get(b"cuckoo").unwrap().as_deref(), Some(&b"Guira guira"[..]));
}
