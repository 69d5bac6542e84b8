//! Cause: `Store::client` took a slot in the table's memory without checking whether the table was destroyed meanwhile.
//!
//! Effect: it succeeded, and so did the client's lookups, which found remains; only its first change reported
//! `Destroyed`. A program that opened a client to find out whether a table can still be changed got the wrong answer.
//!
//! Fix: opening a client reads the superblock first, in 1 round trip. [R-DESTROY-1]

use guira::errors::TableError;
use guira::{Blame, CreateOptions, Effect, Error, OpenError, OperationError, OperationErrorKind, Store, Url};
use guira_testing::unique_name;

#[test]
fn no_client_of_a_destroyed_table_is_opened() {
    let url = Url::shm(&unique_name()).unwrap();
    let store = Store::create(&url, &CreateOptions::new(1_000)).unwrap();
    let mut client = store.client().unwrap();
    client.put(b"cuckoo", b"Guira guira").unwrap();
    Store::destroy(&url).unwrap();
    for error in [store.client().err(), pollster::block_on(store.to_async().client()).err()] {
        let error = error.expect("the table is gone");
        assert!(matches!(error, Error::Open(OpenError::Table { source: TableError::Destroyed, .. })), "{error:?}");
        assert_eq!((error.blame(), error.effect()), (Blame::Fenced, Effect::None), "{error}");
    }
    // The client that was open gets the error, too. // [R-DESTROY-2]
    let error = client.get(b"cuckoo").expect_err("the table is gone");
    assert!(matches!(error, Error::Operation(OperationError { kind: OperationErrorKind::Destroyed, .. })), "{error:?}");
    assert!(matches!(store.stat().map(drop), Err(Error::Open(OpenError::Table { source: TableError::Destroyed, .. }))));
}
