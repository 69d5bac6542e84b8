//! Mistakes of callers: an error names the mistake by type, the operation that was attempted, and that nothing was
//! changed. Each item of a batch has its own answer, in order, and the mistake of one does not affect the others.

use std::ops::ControlFlow;

use guira::errors::TableError;
use guira::{
    AccessToken, Blame, CreateOptions, Effect, EntryFormat, Error, OpenError, OpenOptions, Operation, Preset, Put,
    Store, Swap, Url,
};
use guira::{OperationError as Inner, OperationErrorKind};
use guira_testing::{ReservedPort, ScratchFolder};

use crate::common::Table;

fn options(format: &str) -> CreateOptions {
    CreateOptions::new(1_000).format(format.parse().expect("a valid format")).extent_bytes(1 << 20)
}

/// Checks that `error` blames the caller and has no effect, and that its message says so if an effect was possible.
/// Returns the message.
fn check_mistake(error: &Error, what: Operation) -> String {
    assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None), "{error}");
    let message = error.to_string();
    assert!(message.starts_with(&what.to_string()), "{message}");
    assert_eq!(message.contains("nothing was changed"), what != Operation::Get, "{message}");
    message
}

fn only<T>(mut results: Vec<Result<T, Error>>) -> Result<T, Error> {
    assert_eq!(results.len(), 1);
    results.pop().expect("one result")
}

/// Carries out every operation with `key`, whose length is wrong, and returns the errors.
fn with_key(client: &mut guira::Client, key: &[u8], value: &[u8]) -> Vec<(Operation, Error)> {
    let mut into = b"old content".to_vec();
    let errors = vec![
        (Operation::Get, client.get(key).map(drop)),
        (Operation::Get, client.get_into(key, &mut into).map(drop)),
        (Operation::Get, client.get_versioned(key).map(drop)),
        (Operation::Get, client.contains(key).map(drop)),
        (Operation::Get, only(client.get_many(&[key])).map(drop)),
        (Operation::Put, client.put(key, value).map(drop)),
        (Operation::Put, only(client.put_many(&[(key, value)])).map(drop)),
        (Operation::Insert, client.try_insert(key, value).map(drop)),
        (Operation::Update, client.update(key, value).map(drop)),
        (Operation::Remove, client.remove(key).map(drop)),
        (Operation::Remove, only(client.remove_many(&[key])).map(drop)),
        (Operation::CompareAndSwap, client.compare_and_swap(key, value, value).map(drop)),
        (Operation::CompareAndRemove, client.compare_and_remove(key, value).map(drop)),
    ];
    assert!(into.is_empty(), "the result of an earlier lookup is cleared");
    errors.into_iter().map(|(what, result)| (what, result.expect_err("a key of the wrong length"))).collect()
}

#[test]
fn keys_of_the_wrong_length_are_reported() {
    let long = vec![1; (64 << 10) + 1];
    for (format, key, value) in
        [("fixed:8:8", &[1; 9][..], &[1; 8][..]), ("fixed:4:4", &[], &[1; 4]), ("bytes:64", &long, b"v")]
    {
        let (_table, store) = Table::create(&options(format));
        let mut client = store.client().unwrap();
        for (what, error) in with_key(&mut client, key, value) {
            let message = check_mistake(&error, what);
            assert!(message.contains(&format!("a key of {} bytes", key.len())), "{message}");
            assert!(message.contains(format), "{message}");
            assert_eq!(message.contains("(at most 65536 bytes)"), format == "bytes:64", "{message}");
            let Error::Operation(Inner { kind: OperationErrorKind::KeyLength { bytes, .. }, .. }) = error else {
                panic!("{error:?}")
            };
            assert_eq!(bytes, key.len());
        }
        assert!(store.check().unwrap().is_clean());
        assert_eq!(store.len_estimate().unwrap().entries, 0);
    }
}

#[test]
fn values_of_the_wrong_length_are_reported() {
    let long = vec![1; (64 << 20) + 1];
    for (format, key, value) in
        [("fixed:8:8", &[1; 8][..], &[1; 7][..]), ("fixed:4:4", &[1; 4], &[]), ("bytes:64", b"k", &long)]
    {
        let (_table, store) = Table::create(&options(format));
        let mut client = store.client().unwrap();
        let errors = [
            (Operation::Put, client.put(key, value).map(drop)),
            (Operation::Put, only(client.put_many(&[(key, value)])).map(drop)),
            (Operation::Insert, client.try_insert(key, value).map(drop)),
            (Operation::Update, client.update(key, value).map(drop)),
            (Operation::CompareAndSwap, client.compare_and_swap(key, value, value).map(drop)),
        ];
        for (what, result) in errors {
            let error = result.unwrap_err();
            let message = check_mistake(&error, what);
            assert!(message.contains(&format!("a value of {} bytes", value.len())), "{message}");
            assert_eq!(message.contains("(at most 67108864 bytes)"), format == "bytes:64", "{message}");
            assert!(
                matches!(error, Error::Operation(Inner { kind: OperationErrorKind::ValueLength { .. }, .. })),
                "{error:?}"
            );
        }
        // No key can have such a value, so the comparison fails.
        assert_eq!(client.compare_and_remove(key, value).unwrap(), Swap::Missing);
        assert_eq!(store.len_estimate().unwrap().entries, 0);
    }
}

/// [R-CAS-1] An expected value of another length is different from the current one.
#[test]
fn expected_values_may_have_any_length() {
    for (format, value) in [("fixed:8:8", &[2; 8][..]), ("bytes:64", &[2; 300])] {
        let (_table, store) = Table::create(&options(format));
        let mut client = store.client().unwrap();
        client.put(&[1; 8], value).unwrap();
        for expected in [&[][..], &[2; 7], &[2; 9], &[2; 299], &vec![2; 1 << 20]] {
            assert_eq!(client.compare_and_swap(&[1; 8], expected, value).unwrap(), Swap::Different);
            assert_eq!(client.compare_and_remove(&[1; 8], expected).unwrap(), Swap::Different);
        }
        assert_eq!(client.compare_and_remove(&[1; 8], value).unwrap(), Swap::Done);
    }
}

/// [R-CAS-1] [R-CAS-2] Tables of preset `paper` neither return nor accept tokens; they compare by value as all tables
/// do.
#[test]
fn tables_with_narrow_versions_have_no_tokens() {
    let (_paper, paper) = Table::create(&options("bytes:64").preset(Preset::Paper).seed(1));
    let (_table, store) = Table::create(&options("bytes:64").seed(1));
    let (mut client, mut other) = (paper.client().unwrap(), store.client().unwrap());
    client.put(b"k", b"v").unwrap();
    other.put(b"k", b"v").unwrap();
    let mut into = b"old content".to_vec();
    let errors = [
        client.get_versioned(b"k").map(drop),
        client.get_versioned(b"missing").map(drop),
        client.get_versioned_into(b"k", &mut into).map(drop),
        paper.reader().get_versioned(b"k").map(drop),
        paper.reader().get_versioned_into(b"k", &mut into).map(drop),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert!(
            matches!(
                error,
                Error::Operation(Inner { kind: OperationErrorKind::NarrowVersions { version_bits: 8 }, .. })
            ),
            "{error:?}"
        );
        assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
        assert!(error.to_string().contains("preset `paper`") && error.to_string().contains("8"), "{error}");
    }
    assert!(into.is_empty());
    let token = other.get_versioned(b"k").unwrap().unwrap().token;
    let error = client.compare_and_swap(b"k", token, b"w").unwrap_err();
    assert!(matches!(error, Error::Operation(Inner { kind: OperationErrorKind::ForeignToken, .. })), "{error}");
    assert_eq!(client.compare_and_swap(b"k", b"x", b"w").unwrap(), Swap::Different);
    assert_eq!(client.compare_and_swap(b"k", b"v", &[7; 200]).unwrap(), Swap::Done);
    assert_eq!(client.compare_and_swap(b"k", &[8; 200], b"w").unwrap(), Swap::Different);
    assert_eq!(client.compare_and_remove(b"k", &[7; 200]).unwrap(), Swap::Done);
    assert_eq!(client.compare_and_remove(b"k", &[7; 200]).unwrap(), Swap::Missing);
    assert!(paper.check().unwrap().is_clean());
}

/// [R-CAS-2] A token of another table is refused, even if that table has the same seed and the same history, so that
/// its row has the same version and its extent the same generation. So is a token of an earlier table of the same name.
#[test]
fn tokens_of_other_tables_are_refused() {
    for value in [&[2; 8][..], &[2; 300]] {
        let twins = [(); 2].map(|()| Table::create(&options("bytes:64").seed(5)));
        let mut clients = twins.each_ref().map(|(_, store)| store.client().unwrap());
        clients.iter_mut().for_each(|client| assert_eq!(client.put(b"k", value).unwrap(), Put::Inserted));
        let token = clients[0].get_versioned(b"k").unwrap().unwrap().token;
        let swap = clients[1].compare_and_swap(b"k", token, b"new").unwrap_err();
        check_mistake(&swap, Operation::CompareAndSwap);
        let remove = clients[1].compare_and_remove(b"k", token).unwrap_err();
        assert!(check_mistake(&remove, Operation::CompareAndRemove).contains("another table"));
        assert!(matches!(
            remove,
            Error::Operation(Inner { operation: Operation::CompareAndRemove, kind: OperationErrorKind::ForeignToken })
        ));
        assert_eq!(clients[1].get(b"k").unwrap().as_deref(), Some(value));
        // Another client of the token's own table accepts it, even through another mapping.
        let again = Store::open(&twins[0].0.url).unwrap();
        assert_eq!(again.client().unwrap().compare_and_swap(b"k", token, value).unwrap(), Swap::Done);
        assert_eq!(clients[0].compare_and_swap(b"k", token, value).unwrap(), Swap::Different);
    }
}

/// Items are carried out in order, each with its own answer, and a mistake in one does not stop the next.
#[test]
fn items_of_a_batch_are_answered_in_order() {
    for preset in Preset::ALL {
        let (_table, store) = Table::create(&options("bytes:64").preset(preset));
        let mut client = store.client().unwrap();
        let (long_key, large, too_large) = (vec![1; (64 << 10) + 1], vec![2; 3_000], vec![3; 2 << 20]);
        let items: [(&[u8], &[u8]); 7] = [
            (b"a", b"1"),
            (&long_key, b"2"),
            (b"b", &large),
            (b"a", b"3"),
            (b"c", &too_large),
            (b"b", b"4"),
            (b"d", b""),
        ];
        let results = client.put_many(&items);
        assert_eq!(results.len(), items.len());
        assert!(
            matches!(results[1], Err(Error::Operation(Inner { kind: OperationErrorKind::KeyLength { .. }, .. }))),
            "{:?}",
            results[1]
        );
        let full = results[4].as_ref().unwrap_err();
        assert_eq!((full.blame(), full.effect()), (Blame::Full, Effect::None), "{full}");
        for (i, put) in
            [(0, Put::Inserted), (2, Put::Inserted), (3, Put::Replaced), (5, Put::Replaced), (6, Put::Inserted)]
        {
            assert_eq!(*results[i].as_ref().unwrap(), put, "{preset} item {i}");
        }
        let keys: [&[u8]; 6] = [b"a", b"b", &long_key, b"c", b"d", b"a"];
        let found: Vec<_> = client.get_many(&keys).into_iter().map(|found| found.ok().flatten()).collect();
        let value = |value: &[u8]| Some(value.to_vec());
        assert_eq!(found, [value(b"3"), value(b"4"), None, None, value(b""), value(b"3")]);
        let removed = client.remove_many(&keys);
        assert!(
            matches!(removed[2], Err(Error::Operation(Inner { kind: OperationErrorKind::KeyLength { .. }, .. }))),
            "{:?}",
            removed[2]
        );
        let removed: Vec<_> = removed.into_iter().map(Result::ok).collect();
        assert_eq!(removed, [Some(true), Some(true), None, Some(false), Some(true), Some(false)]);
        assert!(store.check().unwrap().is_clean());
        let none: [&[u8]; 0] = [];
        assert!(client.put_many::<&[u8], &[u8]>(&[]).is_empty());
        assert!(client.get_many(&none).is_empty() && client.remove_many(&none).is_empty());
    }
}

/// Of more items than a table holds, some are stored and the others are refused, and none is lost.
#[test]
fn puts_into_a_full_table_are_refused_one_by_one() {
    let (_table, store) = Table::create(&CreateOptions::new(100).format("fixed:8:8".parse().unwrap()));
    let mut client = store.client().unwrap();
    let items: Vec<_> = (0..5_000u64).map(|i| (i.to_le_bytes(), i.to_le_bytes())).collect();
    let results = client.put_many(&items);
    let keys: Vec<_> = items.iter().map(|(key, _)| key).collect();
    let mut full = 0;
    for ((result, found), (_, value)) in results.iter().zip(client.get_many(&keys)).zip(&items) {
        match result {
            Ok(put) => assert_eq!((*put, found.unwrap().as_deref()), (Put::Inserted, Some(&value[..]))),
            Err(error) => {
                assert_eq!(
                    (error.blame(), error.effect(), found.unwrap()),
                    (Blame::Full, Effect::None, None),
                    "{error}"
                );
                full += 1;
            }
        }
    }
    assert!(full > 0 && full < items.len());
    assert_eq!(store.len_estimate().unwrap().entries, (items.len() - full) as u64);
}

/// [R-DESTROY-1] [R-DESTROY-2] Changes, lookups and scans of a destroyed table are refused, and so is each item of a
/// batch.
#[test]
fn every_operation_on_a_destroyed_table_is_refused() {
    let (table, store) = Table::create(&options("bytes:64"));
    let mut client = store.client().unwrap();
    assert!(!store.is_destroyed().unwrap());
    client
        .put_many(&[(b"a", &vec![1; 3][..]), (b"b", &[2; 300])])
        .into_iter()
        .for_each(|put| assert_eq!(put.unwrap(), Put::Inserted));
    let token = client.get_versioned(b"a").unwrap().unwrap().token;
    Store::destroy(&table.url).unwrap();
    let mut errors = vec![
        client.compare_and_swap(b"a", token, b"x").map(drop).unwrap_err(),
        client.compare_and_swap(b"a", &[1; 3], &[3; 300]).map(drop).unwrap_err(),
        client.compare_and_remove(b"a", token).map(drop).unwrap_err(),
        client.compare_and_remove(b"b", &[2; 300]).map(drop).unwrap_err(),
    ];
    errors.extend(client.put_many(&[(b"a", b"x"), (b"c", b"y")]).into_iter().map(Result::unwrap_err));
    errors.extend(client.remove_many(&[b"a", b"c"]).into_iter().map(Result::unwrap_err));
    errors.extend(client.get_many(&[b"a", b"b", b"c"]).into_iter().map(Result::unwrap_err));
    errors.extend([b"a", b"b", b"c"].map(|key| store.reader().get(key).unwrap_err()));
    errors.extend([b"a", b"b", b"c"].map(|key| pollster::block_on(store.to_async().reader().get(key)).unwrap_err()));
    errors.extend([client.get(b"a").map(drop).unwrap_err(), client.get_versioned(b"b").map(drop).unwrap_err()]);
    let mut visit = |_: &[u8], _: &[u8]| panic!("nothing is left to visit");
    errors.extend([store.snapshot(3).map(drop), store.scan_with(&mut visit).map(drop)].map(Result::unwrap_err));
    let mut scan = store.scan().unwrap();
    errors.extend([scan.next().expect("an error").map(drop).unwrap_err()]);
    assert!(scan.next().is_none(), "nothing follows an error");
    errors.extend([store.len_estimate().map(drop).unwrap_err(), client.increment(b"a", 1).map(drop).unwrap_err()]);
    errors.extend([client.update_with(b"a", |_| None).map(drop).unwrap_err()]);
    errors.extend([client.get_or_insert_with(b"z", Vec::new).map(drop).unwrap_err()]);
    assert_eq!(errors.len(), 26);
    for error in errors {
        assert!(matches!(error, Error::Operation(Inner { kind: OperationErrorKind::Destroyed, .. })), "{error:?}");
        assert_eq!((error.blame(), error.effect()), (Blame::Fenced, Effect::None), "{error}");
    }
    assert!(matches!(store.stat().map(drop), Err(Error::Open(OpenError::Table { source: TableError::Destroyed, .. }))));
    assert!(matches!(
        store.check().map(drop),
        Err(Error::Open(OpenError::Table { source: TableError::Destroyed, .. }))
    ));
    // A new table of the same name is not the destroyed one.
    let again = Store::create(&table.url, &options("bytes:64")).unwrap();
    assert!(store.is_destroyed().unwrap() && !again.is_destroyed().unwrap());
}

/// [R-SCAN-1] [R-SCAN-2] A read-only store looks up, scans and counts; a scan ends when its visitor stops it.
#[test]
fn readers_need_no_permission_to_change() {
    let (table, store) = Table::create(&options("bytes:64"));
    let mut client = store.client().unwrap();
    let items: Vec<_> = (0..200u32).map(|i| (i.to_le_bytes(), vec![i as u8; i as usize])).collect();
    assert!(client.put_many(&items).iter().all(Result::is_ok));
    let read_only = Store::open_with(&table.url, &OpenOptions::default().read_only()).unwrap();
    let keys: Vec<_> = items.iter().map(|(key, _)| key).collect();
    for ((_, value), found) in items.iter().zip(read_only.reader().get_many(&keys)) {
        assert_eq!(found.unwrap().as_ref(), Some(value));
    }
    // A client accepts a token that a reader got.
    let token = read_only.reader().get_versioned(keys[7]).unwrap().unwrap().token;
    assert_eq!(client.compare_and_swap(keys[7], token, &items[7].1).unwrap(), Swap::Done);
    let snapshot = read_only.snapshot(1).unwrap();
    assert_eq!((snapshot.len(), snapshot.sweeps(), snapshot.is_stable()), (200, 1, true));
    let found: std::collections::BTreeMap<_, _> = snapshot.iter().collect();
    assert_eq!(found.len(), 200, "once each");
    assert!(items.iter().all(|(key, value)| found.get(&key[..]) == Some(&&value[..])));
    let mut left = 3;
    let mut stop = |_: &[u8], _: &[u8]| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert_eq!(read_only.scan_with(&mut stop).unwrap().entries, 3);
    assert_eq!((read_only.len_estimate().unwrap().entries, read_only.len_estimate().unwrap().error), (200, 0));
}

/// Programs that print the chain of an error say nothing twice.
#[test]
fn the_chain_of_an_error_says_nothing_twice() {
    let (table, store) = Table::create(&options("fixed:8:8"));
    let other = CreateOptions::new(1_000).format("bytes:64".parse().expect("a valid format"));
    let folder = ScratchFolder::new();
    let not_a_table = folder.path().join("not a table");
    std::fs::write(&not_a_table, [1; 8192]).unwrap();
    let absent = folder.path().join("absent");
    let nobody = ReservedPort::new();
    let errors: Vec<Error> = [
        Store::open("shm://").map(drop),
        Store::open(Url::file(&absent).unwrap()).map(drop),
        Store::open(Url::file(&not_a_table).unwrap()).map(drop),
        Store::open(Url::tcp("127.0.0.1", nobody.port).unwrap()).map(drop),
        Store::create(&table.url, &other).map(drop),
        AccessToken::read(&absent).map(drop).map_err(Error::from),
        "fixed:0".parse::<EntryFormat>().map(drop).map_err(Error::from),
        store.client().unwrap().put(b"nine bytes", b"8 bytes!").map(drop),
    ]
    .into_iter()
    .map(|result| result.expect_err("a mistake"))
    .collect();
    for error in errors {
        let cause = std::error::Error::source(&error);
        assert!(cause.is_none(), "{error}, because of: {}", cause.expect("one"));
    }
}
