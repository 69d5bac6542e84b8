//! Cause: a client's life hung on a descriptor, which anybody in its process may close: programs that go into the
//! background close all they do not know. The region's file was found again by the number of another descriptor,
//! whatever stood under it by then.
//!
//! Effect: the kernel gave up the client's lock while the client went on writing; others took it for dead, released its
//! locks under it, and gave its id to somebody else. A further client of the process locked a byte of whatever file it
//! found, and so shared a slot with another process.
//!
//! Fix: a mapping keeps the description with the lock, and no descriptor does; a file is locked only if it is the
//! mapped one, by device and inode. `closing_descriptors_kills_no_client` in crates/fabric-shm/tests/processes.rs
//! closes them. [R-SLOT-1]

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use guira::{CreateOptions, Store, Url};

/// Descriptors of this process that lead to this file, whatever it is called.
fn descriptors(path: &str) -> usize {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    let file = identity(Path::new(path));
    let all = std::fs::read_dir("/proc/self/fd").expect("there is a /proc");
    all.flatten().filter(|entry| file.is_some() && identity(&entry.path()) == file).count()
}

#[test]
fn clients_have_no_descriptor_that_could_be_closed() {
    let url = Url::shm(&format!("guira-test-descriptors-{}", std::process::id())).expect("a valid name");
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
    assert!(before > 0, "the region has one");
    assert_eq!(after, before, "nine clients have none");
    assert!(is_full && is_free, "they live all the same, and no longer than they are there");
}
