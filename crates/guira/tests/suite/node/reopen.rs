//! Stores that go on with the next table when theirs is gone: each client and reader reports the loss once. [R-OPEN-3]

use std::fs;

use guira::{CreateOptions, Error, OpenOptions, Put, Reopen, Store, Url};
use guira_testing::{ScratchFolder, wait_until};

use super::reconnecting;
use super::test_node::TestNode;

fn reopening() -> OpenOptions {
    reconnecting().reopen(Reopen::AfterLoss)
}

#[track_caller]
fn check_loss<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("the loss is reported");
    assert!(error.is_gone(), "{error}");
}

#[test]
fn each_client_and_reader_reports_the_loss_once_and_goes_on() {
    let mut served = TestNode::start();
    let store = Store::open_with(served.url(), &reopening()).unwrap();
    let tasks = store.to_async();
    let (mut client, mut other, mut reader) = (store.client().unwrap(), store.client().unwrap(), store.reader());
    let mut task_client = pollster::block_on(tasks.client()).unwrap();
    let mut task_reader = tasks.reader();
    client.put(b"cuckoo", b"Guira guira").unwrap();
    assert!(pollster::block_on(task_reader.contains(b"cuckoo")).unwrap());
    let traffic = client.traffic();
    served.stop();
    served.lose_table();
    served.run();
    check_loss(client.put(b"ani", b"Crotophaga"));
    assert_eq!(client.put(b"ani", b"Crotophaga").unwrap(), Put::Inserted, "a table without it");
    assert!(client.traffic().round_trips > traffic.round_trips, "traffic only grows");
    // No other has reported it yet.
    check_loss(other.get(b"cuckoo"));
    assert_eq!(other.get(b"cuckoo").unwrap(), None);
    check_loss(reader.get_many(&[b"ani", b"cuc"]).remove(0));
    let found: Vec<bool> = reader.get_many(&[b"ani", b"cuc"]).into_iter().map(|it| it.unwrap().is_some()).collect();
    assert_eq!(found, [true, false]);
    check_loss(pollster::block_on(task_client.remove(b"cuckoo")));
    assert!(!pollster::block_on(task_client.remove(b"cuckoo")).unwrap());
    check_loss(pollster::block_on(task_reader.get(b"ani")));
    assert!(pollster::block_on(task_reader.get(b"ani")).unwrap().is_some());
    // Those that are new know of no other table.
    assert!(store.reader().contains(b"ani").unwrap());
    assert!(pollster::block_on(tasks.reader().contains(b"ani")).unwrap());
    assert_eq!(store.client().unwrap().put(b"cuckoo", b"again").unwrap(), Put::Inserted);
    let mut pooled = pollster::block_on(tasks.pool(2).get()).unwrap();
    assert!(pollster::block_on(pooled.contains(b"ani")).unwrap());
    assert_eq!((store.len_estimate().unwrap().entries, store.scan().unwrap().count()), (2, 2));
    let mut scan = pollster::block_on(tasks.scan()).unwrap();
    assert!(pollster::block_on(scan.next()).unwrap().is_ok(), "the next table is scanned");
    assert!(store.check().unwrap().is_clean() && store.is_destroyed().unwrap());
}

/// Tables in files: destroyed, removed or replaced.
#[test]
fn clients_of_files_go_on_with_the_next_table() {
    let folder = ScratchFolder::in_shared_memory();
    let (path, next) = (folder.path().join("birds"), folder.path().join("next"));
    let [url, next_url] = [&path, &next].map(|path| Url::file(path).unwrap());
    let create = |url: &Url| drop(Store::create(url, &CreateOptions::new(100).extent_bytes(1 << 20)).unwrap());
    create(&url);
    for way in ["destroyed", "removed", "replaced"] {
        let store = Store::open_with(&url, &reopening()).unwrap();
        let (mut client, mut reader) = (store.client().unwrap(), store.reader());
        client.put(b"cuckoo", b"Guira guira").unwrap();
        match way {
            "destroyed" => Store::destroy(&url).unwrap(),
            "removed" => fs::remove_file(&path).unwrap(),
            _ => {
                create(&next_url);
                fs::rename(&next, &path).unwrap();
            }
        }
        let mut reported = 0;
        wait_until("the loss is noticed", || {
            match client.put(b"cuckoo", b"Guira guira") {
                Ok(_) => {}
                Err(error) if error.is_gone() => reported += 1,
                Err(error) => panic!("{way}: {error}"),
            }
            reported > 0
        });
        if way != "replaced" {
            // There is none yet.
            assert!(client.put(b"ani", b"Crotophaga").unwrap_err().is_not_found(), "{way}");
            assert!(client.get_many::<&[u8]>(&[]).is_empty(), "{way}: no key, no result");
            create(&url);
        }
        assert_eq!(client.put(b"ani", b"Crotophaga").unwrap(), Put::Inserted, "{way}");
        check_loss(reader.get(b"cuckoo"));
        assert_eq!(reader.get(b"cuckoo").unwrap(), None, "{way}");
        let other = Store::open(&url).unwrap();
        assert!(other.reader().contains(b"ani").unwrap(), "{way}: it is the table that others have");
        other.client().unwrap().remove(b"ani").unwrap();
    }
}
