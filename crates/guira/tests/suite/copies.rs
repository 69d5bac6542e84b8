//! Copies of tables, also of tables that are in use.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use guira::admin::{CopyEvent, CopyOptions, CopyStage};
use guira::{AdminError, Blame, CreateOptions, Effect, Error, Store};

fn table(capacity: u64) -> Store {
    Store::create_unnamed(&CreateOptions::new(capacity).extent_bytes(4 << 20)).expect("there is memory")
}

fn content(store: &Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    store.scan().expect("it is open").map(|item| item.expect("it is sound")).collect()
}

/// Changes between two passes are found by the next one, which stores what differs and removes what is gone.
#[test]
fn a_copy_follows_its_source() {
    for threads in [1, 3] {
        let (from, to) = (table(1_000), table(2_000));
        let mut client = from.client().expect("a slot is free");
        let mut put = |key: u32, value: &[u8]| _ = client.put(&key.to_le_bytes(), value).expect("there is room");
        (0..600).for_each(|key| put(key, b"old"));
        put(600, &[7; 5_000]);
        let (mut client, mut is_changed) = (from.client().expect("a slot is free"), false);
        let mut change = |event: CopyEvent<'_>| {
            if matches!(event, CopyEvent::Read { stage: CopyStage::Comparing, .. }) && !is_changed {
                is_changed = true;
                (0..50_u32).for_each(|key| _ = client.put(&key.to_le_bytes(), b"new").expect("it exists"));
                (100..200_u32).for_each(|key| assert!(client.remove(&key.to_le_bytes()).expect("it exists")));
                client.put(b"one more", b"new").expect("there is room");
            }
            ControlFlow::Continue(())
        };
        let report = from.copy_to(&to, &CopyOptions::new().threads(threads), &mut change).expect("it fits");
        assert!(report.is_verified() && report.changed == 0 && report.passes >= 2, "{report:?}");
        assert_eq!((report.records, report.removed, report.stored), (502, 100, 601 + 51), "{report:?}");
        assert_eq!(content(&from), content(&to));
    }
}

/// While the source never rests, every record of the copy is one that the source had, and the copy is verified; once it
/// rests, another copy makes the tables equal.
#[test]
fn a_copy_under_writers_is_verified() {
    const KEYS: u64 = 500;
    let (from, to) = (table(2_000), table(2_000));
    let mut client = from.client().expect("a slot is free");
    (0..KEYS).for_each(|key| _ = client.put(&key.to_le_bytes(), &key.to_le_bytes()).expect("there is room"));
    let is_over = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        scope.spawn(|| {
            // Every value of a key is the key, plus a multiple of their number.
            for round in (1..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                for key in 0..KEYS {
                    client.put(&key.to_le_bytes(), &(key + round * KEYS).to_le_bytes()).expect("it exists");
                }
            }
        });
        let report = from.copy_to(&to, &CopyOptions::new().passes(3), &mut |_| ControlFlow::Continue(()));
        is_over.store(true, Ordering::Relaxed);
        report.expect("it fits")
    });
    assert!(report.is_verified() && report.records >= KEYS && report.passes >= 1, "{report:?}");
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let copied = content(&to);
    assert!(copied.iter().all(|(key, value)| number(value) % KEYS == number(key)) && copied.len() as u64 == KEYS);
    let report = from.copy_to(&to, &CopyOptions::new().merge(), &mut |_| ControlFlow::Continue(())).expect("it fits");
    assert!(report.is_verified() && report.changed == 0);
    assert_eq!(content(&from), content(&to));
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let (from, to) = (table(100), table(100));
    let mut client = from.client().expect("a slot is free");
    client.put(b"a long key", b"value").expect("there is room");
    let go_on = &mut |_: CopyEvent<'_>| ControlFlow::Continue(());
    let misuse = |error: Error, words: &str| {
        assert!(matches!(error, Error::Admin(AdminError::CopyMisuse { .. })), "{error}");
        assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
        assert!(error.to_string().contains(words), "{error}");
    };
    misuse(from.copy_to(&from, &CopyOptions::new(), go_on).unwrap_err(), "it is the table that is copied");
    from.copy_to(&to, &CopyOptions::new(), go_on).expect("it fits");
    misuse(from.copy_to(&to, &CopyOptions::new(), go_on).unwrap_err(), "has records already");
    let stopped = from.copy_to(&table(100), &CopyOptions::new(), &mut |_| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(stopped, Error::Admin(AdminError::CopyStopped { .. })), "{stopped}");
    let fixed = Store::create_unnamed(&CreateOptions::new(100).format("fixed:4:4".parse().expect("a format")));
    let refused = from.copy_to(&fixed.expect("there is memory"), &CopyOptions::new(), go_on).unwrap_err();
    assert!(matches!(refused, Error::Admin(AdminError::Copy { copied: 0, .. })), "{refused}");
    assert_eq!((refused.blame(), refused.effect()), (Blame::Misuse, Effect::None));
    assert!(refused.to_string().starts_with("key \"a long key\": put: "), "{refused}");
}
