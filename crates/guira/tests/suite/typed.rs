//! Typed tables: values are found as they were put, by blocking and async clients, and bytes of another type are
//! reported.

use std::collections::BTreeMap;

use guira::errors::ConfigError;
use guira::typed::{Codec, Decode, Typed};
use guira::{Blame, CreateOptions, Effect, Error, OpenError, OperationErrorKind, Put, Store, Swap, aio};
use serde::{Deserialize, Serialize};

use crate::common::Table;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Job {
    Waiting,
    Taken { by: String, since_ms: u64 },
    Done(Vec<f64>),
}

fn taken(since_ms: u64) -> Job {
    Job::Taken { by: "worker-7".to_owned(), since_ms }
}

/// Carries out every operation once, on keys that do not exist, and leaves the first and the third key.
fn exercise<K, V, C>(table: &Typed<K, V, C>, keys: [K; 3], values: [V; 3])
where
    K: Clone + Ord + std::fmt::Debug,
    V: Clone + PartialEq + std::fmt::Debug,
    C: Codec<K> + Codec<V> + Decode<K> + Decode<V>,
{
    let ([a, b, c], [one, two, three]) = (&keys, &values);
    let mut client = table.client().expect("a slot is free");
    let check = |result: Result<bool, Error>| result.expect("an operation");
    assert!(!check(client.contains(a)) && client.get(a).expect("a lookup").is_none());
    assert_eq!(client.put(a, one).expect("a put"), Put::Inserted);
    assert_eq!(client.get(a).expect("a lookup").as_ref(), Some(one));
    assert_eq!(table.reader().get(a).expect("a lookup").as_ref(), Some(one));
    assert!(!check(client.try_insert(a, two)) && check(client.update(a, two)) && !check(client.update(b, two)));
    assert_eq!(client.compare_and_swap(a, one, three).expect("a swap"), Swap::Different);
    assert_eq!(client.compare_and_swap(a, two, three).expect("a swap"), Swap::Done);
    assert_eq!(client.get_or_insert_with(a, || unreachable!("the key exists")).expect("a lookup"), *three);
    assert_eq!(client.get_or_insert_with(b, || one.clone()).expect("an insert"), *one);
    assert_eq!(client.update_with(b, |found| found.filter(|found| found != one)).expect("an update"), None);
    assert!(!check(client.contains(b)) && check(client.try_insert(c, two)));
    let new = client.update_with(c, |found| found.map(|_| three.clone())).expect("an update");
    assert_eq!(new.as_ref(), Some(three));
    let found: Result<BTreeMap<K, V>, Error> = table.scan().expect("a scan").collect();
    assert_eq!(
        found.expect("entries of the right types"),
        BTreeMap::from([(a.clone(), three.clone()), (c.clone(), three.clone())])
    );
    client.close().expect("the client is open");
}

/// Carries out the same operations by an async client, on keys that exist, and removes the keys.
async fn exercise_async<K, V, C>(table: &aio::Typed<K, V, C>, keys: [K; 3], values: [V; 3]) -> Result<(), Error>
where
    V: Clone + PartialEq + std::fmt::Debug,
    C: Codec<K> + Codec<V> + Decode<V>,
{
    let ([a, b, c], [one, two, three]) = (&keys, &values);
    let mut client = table.client().await?;
    assert!(client.contains(a).await? && !client.try_insert(a, one).await?);
    assert_eq!(client.put(a, one).await?, Put::Replaced);
    assert_eq!((client.get(a).await?, table.reader().get(a).await?), (Some(one.clone()), Some(one.clone())));
    assert!(client.update(a, two).await?);
    assert!(client.compare_and_swap(a, two, three).await?.is_done());
    assert_eq!(client.get_or_insert_with(b, || std::future::ready(one.clone())).await?, *one);
    assert_eq!(client.update_with(b, |_| None).await?, None);
    assert!(client.remove(a).await? && client.remove(c).await? && !client.remove(b).await?);
    client.close().await
}

#[test]
fn values_are_found_as_they_were_put() {
    let (_table, store) = Table::create(&CreateOptions::new(1_000));
    let jobs = store.typed::<(u32, String), Job>();
    let keys = || [(1, "a".to_owned()), (1, "b".to_owned()), (2, "a".repeat(100))];
    let values = || [Job::Waiting, taken(7), Job::Done(vec![0.5; 100])];
    exercise(&jobs, keys(), values());
    pollster::block_on(exercise_async(&store.to_async().typed(), keys(), values())).unwrap();
    assert_eq!(store.len_estimate().unwrap().entries, 0);
    let (_table, store) = Table::create(&CreateOptions::new(1_000).format("fixed:8:8".parse().unwrap()));
    let counts = store.plain::<u64, [u16; 4]>();
    exercise(&counts, [1, 2, u64::MAX], [[1; 4], [2; 4], [3; 4]]);
    pollster::block_on(exercise_async(
        &store.to_async().plain::<u64, [u16; 4]>(),
        [1, 2, u64::MAX],
        [[1; 4], [2; 4], [3; 4]],
    ))
    .unwrap();
}

/// A key type may be borrowed, as `str`; a scan then returns an owned type.
#[test]
fn keys_may_be_borrowed() {
    let (_table, store) = Table::create(&CreateOptions::new(1_000));
    let ages = store.typed::<str, u8>();
    ages.client().unwrap().put("cuckoo", &3).unwrap();
    let found: Vec<_> = ages.scan_as::<String>().unwrap().map(Result::unwrap).collect();
    assert_eq!(found, [("cuckoo".to_owned(), 3)]);
    assert_eq!(ages.store().reader().get(&[6, b'c', b'u', b'c', b'k', b'o', b'o']).unwrap().unwrap(), [3]);
}

#[test]
fn bytes_of_another_type_are_reported() {
    let (_table, store) = Table::create(&CreateOptions::new(1_000));
    let is_wrong = |error: Error, name: &str| {
        let kind = error.operation_kind();
        assert!(matches!(kind, Some(OperationErrorKind::WrongType { name: found, .. }) if *found == name), "{error:?}");
        assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
        assert!(error.to_string().contains(name), "{error}");
    };
    let texts = store.typed::<u8, String>();
    let mut client = texts.client().unwrap();
    let wrong = [&b"\x05ab"[..], b"\x01ab", b"\x01\xff", b""];
    for bytes in wrong {
        client.untyped().put(&[7], bytes).unwrap();
        is_wrong(client.get(&7).unwrap_err(), "alloc::string::String");
        is_wrong(client.update_with(&7, |_| unreachable!()).unwrap_err(), "alloc::string::String");
        is_wrong(client.get_or_insert_with(&7, || unreachable!()).unwrap_err(), "alloc::string::String");
        assert!(texts.scan().unwrap().next().unwrap().is_err());
        assert_eq!(client.untyped().get(&[7]).unwrap().as_deref(), Some(bytes), "nothing was changed");
    }
    let mut plain = store.plain::<u8, u64>().client().unwrap();
    is_wrong(plain.get(&7).unwrap_err(), "u64");
    let parameter =
        || -> Result<Store, Error> { Store::create_unnamed(&CreateOptions::new(1_000).format("fixed:8".parse()?)) };
    let error = parameter().unwrap_err();
    assert!(matches!(error, Error::Open(OpenError::Parameter(ConfigError::Format { .. }))), "{error:?}");
}
