//! A client that goes on with the next table converted a token for the table that was gone, and then used its bare row,
//! version or generation on the next one, where the same may exist: a change by another client was overwritten. In the
//! same way, a number went to the place that it has in tables of the old format.

use guira::{CreateOptions, Error, OpenOptions, OperationErrorKind, Put, Reopen, Store, Swap, Url};
use guira_testing::{ScratchFolder, wait_until};

fn create(url: &Url, format: &str) -> Store {
    let options = CreateOptions::new(100).format(format.parse().expect("a format")).extent_bytes(1 << 20).seed(5);
    Store::create(url, &options).expect("the name is free")
}

fn check_foreign<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("the token is of the table before");
    assert!(matches!(error.operation_kind(), Some(OperationErrorKind::ForeignToken)), "{error}");
}

#[test]
fn a_token_was_used_on_the_next_table() {
    let folder = ScratchFolder::in_shared_memory();
    let url = Url::file(&folder.path().join("birds")).unwrap();
    for value in [&[1; 8][..], &[1; 300]] {
        create(&url, "bytes:64").client().unwrap().put(b"cuckoo", value).unwrap();
        let store = Store::open_with(&url, &OpenOptions::new().reopen(Reopen::AfterLoss)).unwrap();
        let (mut client, mut late) = (store.client().unwrap(), store.client().unwrap());
        let mut task = pollster::block_on(store.to_async().client()).unwrap();
        let token = client.get_versioned(b"cuckoo").unwrap().unwrap().token;
        Store::destroy(&url).unwrap();
        let next = create(&url, "bytes:64");
        let mut other = next.client().unwrap();
        assert_eq!(other.put(b"cuckoo", value).unwrap(), Put::Inserted);
        wait_until("the loss is noticed", || client.get(b"cuckoo").is_err_and(|error| error.is_gone()));
        check_foreign(client.compare_and_swap(b"cuckoo", token, b"mine"));
        check_foreign(client.compare_and_remove(b"cuckoo", token));
        assert!(pollster::block_on(task.get(b"cuckoo")).unwrap_err().is_gone());
        check_foreign(pollster::block_on(task.compare_and_swap(b"cuckoo", token, b"mine")));
        assert_eq!(other.get(b"cuckoo").unwrap().as_deref(), Some(value));
        // A token of the next table is good, also for a client that has not gone on yet.
        let token = other.get_versioned(b"cuckoo").unwrap().unwrap().token;
        assert!(late.get(b"cuckoo").unwrap_err().is_gone());
        assert_eq!(late.compare_and_swap(b"cuckoo", token, b"mine").unwrap(), Swap::Done);
        Store::destroy(&url).unwrap();
    }
}

/// With a key of 60 bytes a number of 8 lies in the row of the first table, and in an extent of the second.
#[test]
fn a_number_went_where_it_was_in_the_table_before() {
    let folder = ScratchFolder::in_shared_memory();
    let url = Url::file(&folder.path().join("visits")).unwrap();
    let key = [7; 60];
    drop(create(&url, "bytes:128"));
    let store = Store::open_with(&url, &OpenOptions::new().reopen(Reopen::AfterLoss)).unwrap();
    let mut client = store.client().unwrap();
    assert_eq!(client.increment(&key, 3).unwrap(), 3);
    Store::destroy(&url).unwrap();
    let next = create(&url, "bytes:64");
    wait_until("the loss is noticed", || client.get(&key).is_err_and(|error| error.is_gone()));
    assert_eq!([client.increment(&key, 1).unwrap(), client.increment(&key, 1).unwrap()], [1, 2]);
    assert_eq!(next.reader().get(&key).unwrap().as_deref(), Some(&2_u64.to_le_bytes()[..]));
    assert!(next.check().unwrap().is_clean());
}
