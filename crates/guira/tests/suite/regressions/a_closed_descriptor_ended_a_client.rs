//! Cause: a client's liveness depended on a descriptor, which any code in its process may close: daemons close all
//! descriptors that they do not know. The region's file was found again by the number of another descriptor, which
//! could belong to another file by then.
//!
//! Effect: the kernel released the client's lock while the client went on writing; other clients considered it dead,
//! released its locks, and gave its id to another client. A later client of the process locked a byte of the wrong
//! file, and so shared a slot with another process.
//!
//! Fix: the open file description with the lock is kept by a mapping and by no descriptor; a file is locked only if it
//! is the mapped one, by device and inode. `closing_descriptors_kills_no_client` in
//! crates/fabric-shm/tests/processes.rs closes descriptors. [R-SLOT-1]

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use guira::{CreateOptions, Store, Url};
use guira_testing::unique_name;

/// Counts the descriptors of this process that refer to this file, by device and inode.
fn descriptors(path: &str) -> usize {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    let file = identity(Path::new(path));
    let all = std::fs::read_dir("/proc/self/fd").expect("there is a /proc");
    all.flatten().filter(|entry| file.is_some() && identity(&entry.path()) == file).count()
}

#[test]
fn clients_have_no_descriptor_that_could_be_closed() {
    let url = Url::shm(&unique_name()).expect("a valid name");
    let store = Store::create(&url, &CreateOptions::new(1_000).max_clients(9)).expect("a fresh name");
    let path = store.stat().expect("readable").region.file().expect("a file").path.clone();
    let before = descriptors(&path);
    let clients: Vec<_> = (0..9).map(|_| store.client().expect("a slot is free")).collect();
    let after = descriptors(&path);
    let other = Store::open(&url).expect("it exists");
    let is_full = other.client().is_err();
    drop(clients);
    let is_free = other.client().is_ok();
    Store::destroy(&url).expect("it exists");
    assert!(before > 0, "the region has a descriptor");
    assert_eq!(after, before, "nine clients have no descriptor");
    assert!(is_full && is_free, "slots are taken while their clients are open, and free afterwards");
}
