//! Tables in shared memory through the public API: the ordinary operations, and common errors.

use std::ops::{ControlFlow, RangeBounds};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use guira::{Blame, CreateOptions, CreateProgress, Effect, Error, OpenError, OpenOptions, Preset, Put, Store, Url};
use guira_testing::unique_name;

use crate::common::Table;

fn options(capacity: u64, format: &str) -> CreateOptions {
    CreateOptions::new(capacity).format(format.parse().expect("a valid format"))
}

#[test]
fn every_operation_does_what_it_says() {
    for preset in Preset::ALL {
        let (_table, store) = Table::create(&options(1_000, "bytes:64").preset(preset).extent_bytes(1 << 20));
        let mut client = store.client().unwrap();
        assert_eq!(client.put(b"a", b"1").unwrap(), Put::Inserted);
        assert_eq!(client.put(b"a", b"2").unwrap(), Put::Replaced);
        assert!(!client.try_insert(b"a", b"3").unwrap());
        assert!(client.try_insert(b"b", b"4").unwrap());
        assert!(!client.update(b"c", b"5").unwrap());
        assert!(client.update(b"b", b"6").unwrap());
        assert_eq!(client.get(b"a").unwrap().as_deref(), Some(&b"2"[..]));
        assert_eq!(client.get(b"b").unwrap().as_deref(), Some(&b"6"[..]));
        assert!(client.remove(b"a").unwrap());
        assert!(!client.remove(b"a").unwrap());
        assert!(!client.contains(b"a").unwrap());
        assert_eq!(client.put(b"", b"").unwrap(), Put::Inserted);
        assert_eq!(client.get(b"").unwrap().as_deref(), Some(&b""[..]));
        assert_eq!(client.put(&[0; 8], &[0; 8]).unwrap(), Put::Inserted);
        assert_eq!(client.get(&[0; 8]).unwrap().as_deref(), Some(&[0; 8][..]));
        assert!(store.check().unwrap().is_clean(), "{preset}: {:?}", store.check().unwrap());
    }
}

/// [R-EXTENT-1] [R-EXTENT-2] [R-EXTENT-3] [R-EXTENT-4] Values of every size are read back byte for byte, also through
/// another mapping, and their space is reused.
#[test]
fn values_of_every_size_are_read_back() {
    let (table, store) = Table::create(&options(1_000, "bytes:64").extent_bytes(80 << 20));
    let mut client = store.client().unwrap();
    let value = |bytes: usize, seed: usize| -> Vec<u8> { (0..bytes).map(|i| (i * 31 + seed) as u8).collect() };
    let sizes = [0, 1, 55, 56, 57, 64, 65, 100, 1000, 4096, 65_536, 300_000, 1 << 20, (1 << 20) + 1, 20 << 20];
    for round in 0..3 {
        for (i, size) in sizes.into_iter().enumerate() {
            client.put(format!("key {i}").as_bytes(), &value(size, i + round)).unwrap();
        }
        let other = Store::open(&table.url).unwrap();
        let mut reader = other.reader();
        for (i, size) in sizes.into_iter().enumerate() {
            let found = reader.get(format!("key {i}").as_bytes()).unwrap().unwrap();
            assert!(found == value(size, i + round), "{size} bytes");
        }
    }
    let long_key = vec![7; 64 << 10];
    client.put(&long_key, b"x").unwrap();
    assert_eq!(client.get(&long_key).unwrap().as_deref(), Some(&b"x"[..]));
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    for i in 0..sizes.len() {
        assert!(client.remove(format!("key {i}").as_bytes()).unwrap());
    }
    assert!(client.remove(&long_key).unwrap());
    drop(client);
    let stat = store.stat().unwrap();
    assert_eq!((stat.table.entries, stat.table.chunks.owned, stat.table.chunks.orphan), (0, 0, 0), "{stat:?}");
    assert_eq!(stat.table.chunks.tail, 0);
}

/// Exactly the bytes of the range that the value has are passed on, from a row and from an extent, to threads and tasks;
/// for a missing key, nothing.
#[test]
fn parts_of_values_are_those_asked_for() {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let (_table, store) = Table::create(&options(1_000, "bytes:64").extent_bytes(4 << 20));
    let (mut client, mut reader) = (store.client().unwrap(), store.reader());
    let mut tasks = store.to_async().reader();
    for bytes in [0, 1, 9, 300, 5_000, 100_000] {
        let value: Vec<u8> = (0..bytes).map(|i| (i * 31) as u8).collect();
        client.put(b"key", &value).unwrap();
        let ends = [0, 1, 7, 8, 290, 4_999, 100_000, usize::MAX];
        let bounds = || ends.into_iter().flat_map(|at| [Included(at), Excluded(at)]).chain([Unbounded]);
        for range in bounds().flat_map(|start| bounds().map(move |end| (start, end))) {
            let wanted: Vec<u8> = (0..bytes).filter(|i| range.contains(i)).map(|i| value[i]).collect();
            assert_eq!(
                client.get_with(b"key", range, |part| part == wanted).unwrap(),
                Some(true),
                "{bytes}, {range:?}"
            );
            assert_eq!(reader.get_with(b"key", range, <[u8]>::to_vec).unwrap().as_ref(), Some(&wanted));
            let part = pollster::block_on(tasks.get_with(b"key", range, <[u8]>::to_vec));
            assert_eq!(part.unwrap().as_ref(), Some(&wanted));
        }
    }
    assert_eq!(reader.get_with(b"other", .., |_| panic!("a part of nothing")).unwrap(), None::<()>);
}

/// A table of half a million keys fits in the 64 MB that /dev/shm has in a container by default.
#[test]
fn a_default_table_takes_little_more_than_its_rows() {
    let bytes = |capacity| CreateOptions::new(capacity).memory_bytes().expect("an ordinary table");
    assert!(bytes(10) < 6 << 20, "{}", bytes(10));
    assert!(bytes(500_000) < 64_000_000, "{}", bytes(500_000));
    for capacity in [1_000_000, 10_000_000] {
        assert!(bytes(capacity) < 89 * capacity, "{} bytes a key", bytes(capacity) as f64 / capacity as f64);
    }
    let options = CreateOptions::new(1);
    let (fits, memory) = (options.capacity_within(64_000_000).expect("half a million"), 64_000_000);
    assert!(bytes(fits) <= memory && bytes(fits + 384) > memory, "{fits} keys take {}", bytes(fits));
    assert_eq!(options.capacity_within(1 << 20), None);
    let (table, store) = Table::create(&CreateOptions::new(10));
    let size = std::fs::metadata(table.url.to_string().replace("shm://", "/dev/shm/")).expect("the table's file").len();
    assert!(size >= bytes(10) && size < bytes(10) + 8192, "{size}, {}", bytes(10));
    drop(store);
}

/// As many records as were requested fit, and can be replaced by others of the same size.
#[test]
fn records_of_the_requested_size_fit() {
    for (record_bytes, capacity) in [(100_usize, 5_000_u32), (1_000, 2_000), (40_000, 100), (1 << 20, 12)] {
        let options = CreateOptions::new(capacity.into()).record_bytes(record_bytes as u64);
        let (_table, store) = Table::create(&options);
        let mut client = store.client().unwrap();
        for round in 0..3_u8 {
            for key in 0..capacity {
                let put = client.put(&key.to_le_bytes(), &vec![round; record_bytes - 4]);
                put.unwrap_or_else(|error| panic!("{record_bytes}, round {round}, key {key}: {error}"));
            }
        }
    }
}

/// The largest value, of 64 MiB, fits in a table with space for two of them.
#[test]
fn the_largest_value_fits_and_a_larger_one_is_refused() {
    let (_table, store) = Table::create(&options(10, "bytes:64").extent_bytes(136 << 20));
    let mut client = store.client().unwrap();
    let largest = vec![5; 64 << 20];
    for _ in 0..3 {
        client.put(b"large", &largest).unwrap();
    }
    assert!(client.get(b"large").unwrap().unwrap() == largest);
    let error = client.put(b"large", &vec![5; (64 << 20) + 1]).unwrap_err();
    assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
    let error = client.put(&vec![1; (64 << 10) + 1], b"").unwrap_err();
    assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
    client.put(b"second", &largest[..60 << 20]).unwrap();
    let error = client.put(b"third", &largest).unwrap_err();
    assert_eq!((error.blame(), error.effect()), (Blame::Full, Effect::None), "{error}");
    assert_eq!(client.get(b"third").unwrap(), None);
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn fixed_formats_take_exact_lengths() {
    let (_table, store) = Table::create(&options(1_000, "fixed:8:56"));
    let mut client = store.client().unwrap();
    client.put(&[1; 8], &[2; 56]).unwrap();
    assert_eq!(client.get(&[1; 8]).unwrap().as_deref(), Some(&[2; 56][..]));
    for (key, value) in [(&[1; 7][..], &[2; 56][..]), (&[1; 9], &[2; 56]), (&[1; 8], &[2; 55]), (&[1; 8], &[2; 57])] {
        let error = client.put(key, value).unwrap_err();
        assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
    }
    assert_eq!(client.get(&[1; 7]).unwrap_err().blame(), Blame::Misuse);
}

/// [R-SLOT-2] When all slots are taken, the next client is refused; the slot of a closed client is free again.
#[test]
fn more_clients_than_slots_are_refused() {
    let (_table, store) = Table::create(&options(100, "fixed:8:8").max_clients(3));
    let clients: Vec<_> = (0..3).map(|_| store.client().unwrap()).collect();
    let error = store.client().unwrap_err();
    assert!(matches!(error, Error::Open(OpenError::TooManyClients { max: 3, dead: 0, .. })), "{error}");
    assert_eq!(store.stat().unwrap().clients.len(), 3);
    drop(clients);
    assert_eq!(store.stat().unwrap().clients.len(), 0);
    for _ in 0..10 {
        store.client().unwrap().put(&[1; 8], &[2; 8]).unwrap();
    }
}

/// [R-DESTROY-1] A client that still maps a destroyed table gets an error, and a new table of the same name is
/// separate.
#[test]
fn a_destroyed_table_refuses_changes() {
    let (table, store) = Table::create(&options(1_000, "fixed:8:8"));
    let quick = OpenOptions::default().deadline(Duration::from_millis(50));
    let store_too = Store::open_with(&table.url, &quick).unwrap();
    let mut client = store_too.client().unwrap();
    client.put(&[1; 8], &[2; 8]).unwrap();
    Store::destroy(&table.url).unwrap();
    for key in 0..100u64 {
        let error = client.put(&key.to_le_bytes(), &[3; 8]).unwrap_err();
        assert_eq!((error.blame(), error.effect()), (Blame::Fenced, Effect::None), "{error}");
    }
    let error = Store::open(&table.url).unwrap_err();
    assert!(
        matches!(error, Error::Open(OpenError::Region(_)))
            && error.is_not_found()
            && error.insufficient_space().is_none(),
        "{error}"
    );
    let again = Store::create(&table.url, &options(1_000, "fixed:8:8")).unwrap();
    assert_eq!(again.reader().get(&[1; 8]).unwrap(), None);
    drop(store);
}

#[test]
fn read_only_stores_can_only_read() {
    let (table, store) = Table::create(&options(1_000, "bytes:64"));
    store.client().unwrap().put(b"k", b"v").unwrap();
    let read_only = Store::open_with(&table.url, &OpenOptions::default().read_only()).unwrap();
    assert_eq!(read_only.reader().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(matches!(read_only.client().unwrap_err(), Error::Open(OpenError::ReadOnly { .. })));
    assert_eq!(read_only.stat().unwrap().table.entries, 1);
}

#[test]
fn scans_visit_every_entry() {
    let (_table, store) = Table::create(&options(5_000, "bytes:64").extent_bytes(8 << 20));
    let mut client = store.client().unwrap();
    for i in 0..4_000u32 {
        client.put(&i.to_le_bytes(), &vec![i as u8; (i % 200) as usize]).unwrap();
    }
    let mut seen = std::collections::BTreeMap::new();
    let summary = store
        .scan_with(&mut |key, value| {
            assert!(seen.insert(key.to_vec(), value.to_vec()).is_none(), "each entry is visited once");
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(summary.entries, 4_000);
    assert!((0..4_000u32).all(|i| seen[&i.to_le_bytes()[..]] == vec![i as u8; (i % 200) as usize]));
    let mut visits = 0;
    let stop = |_: &[u8], _: &[u8]| {
        visits += 1;
        ControlFlow::Break(())
    };
    store.scan_with(&mut { stop }).unwrap();
    assert_eq!(visits, 1);
    let items: Result<std::collections::BTreeMap<_, _>, _> = store.scan().unwrap().collect();
    assert_eq!(items.unwrap(), seen);
    let mut scan = pollster::block_on(store.to_async().scan()).unwrap();
    let mut count = 0;
    while let Some(item) = pollster::block_on(scan.next()) {
        let (key, value) = item.unwrap();
        assert_eq!(seen[&key], value);
        count += 1;
    }
    assert_eq!(count, 4_000);
}

/// [R-CREATE-1] A creation reports its progress in small steps, and can be stopped at each; then nothing is left.
#[test]
fn a_creation_reports_its_progress_and_can_be_stopped() {
    let table = Table { url: Url::shm(&unique_name()).unwrap() };
    let options = options(4_000, "bytes:64").extent_bytes(20 << 20);
    for url in [&table.url, &Url::unnamed()] {
        let mut steps = Vec::new();
        let stop_after = |calls: usize, steps: &mut Vec<CreateProgress>| {
            steps.clear();
            Store::create_with_progress(url, &options, &mut |progress| {
                steps.push(progress);
                if steps.len() == calls { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        };
        let store = stop_after(usize::MAX, &mut steps).unwrap();
        let rows = store.table().config().rows;
        drop(store);
        let reserved: Vec<(u64, u64)> = steps
            .iter()
            .map_while(|step| match *step {
                CreateProgress::Reserving { done_bytes, total_bytes } => Some((done_bytes, total_bytes)),
                _ => None,
            })
            .collect();
        let total_bytes = reserved[0].1;
        assert_eq!(reserved, [0, 16 << 20, total_bytes].map(|done_bytes| (done_bytes, total_bytes)));
        let formatted = &steps[reserved.len()..];
        assert_eq!(formatted.len() as u64, rows.div_ceil(64));
        for (step, number) in formatted.iter().zip(1..) {
            let done_rows = rows.min(64 * number);
            assert_eq!(*step, CreateProgress::Formatting { done_rows, total_rows: rows });
        }
        if !url.is_unnamed() {
            Store::destroy(url).unwrap();
        }
        for calls in [1, 2, 3, 4, steps.len()] {
            let error = stop_after(calls, &mut steps).unwrap_err();
            assert!(matches!(error, Error::Open(OpenError::Stopped { .. })), "{error}");
            assert_eq!((steps.len(), error.blame(), error.effect()), (calls, Blame::Misuse, Effect::None), "{error}");
            let expected = format!("cannot create {url}: stopped on request; nothing was changed");
            assert_eq!(error.to_string(), expected);
            assert!(url.is_unnamed() || Store::open(url).unwrap_err().is_not_found(), "stopped at call {calls}");
        }
    }
}

/// [R-CREATE-1] Of many creators one succeeds, and a process that opens meanwhile finds a complete table or none.
#[test]
fn concurrent_creators_and_openers_agree() {
    let url = Url::shm(&unique_name()).unwrap();
    let table = Table { url: url.clone() };
    let created = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| match Store::create(&url, &options(20_000, "fixed:8:8")) {
                Ok(_) => drop(created.fetch_add(1, Ordering::Relaxed)),
                Err(error) => assert_eq!(error.effect(), Effect::None, "{error}"),
            });
            scope.spawn(|| {
                for _ in 0..200 {
                    match Store::open(&url) {
                        Ok(store) => drop(store.client().unwrap().put(&[1; 8], &[1; 8]).unwrap()),
                        Err(error) => assert!(matches!(error, Error::Open(OpenError::Region(_))), "{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(created.load(Ordering::Relaxed), 1);
    assert!(Store::open(&url).unwrap().check().unwrap().is_clean());
    drop(table);
}

/// [R-OPEN-1] A flipped bit in the superblock, a truncated file and impossible parameters are refused with the right
/// blame.
#[test]
fn damaged_tables_and_impossible_parameters_are_refused() {
    use std::os::unix::fs::FileExt;
    let (table, store) = Table::create(&options(1_000, "fixed:8:8"));
    drop(store);
    let path = format!("/dev/shm/{}", table.url.to_string().trim_start_matches("shm://"));
    let file = std::fs::OpenOptions::new().write(true).read(true).open(&path).unwrap();
    for at in [4096, 4096 + 16, 4096 + 64, 4096 + 8 * 23] {
        let mut byte = [0];
        file.read_at(&mut byte, at).unwrap();
        file.write_at(&[byte[0] ^ 0x10], at).unwrap();
        let error = Store::open(&table.url).unwrap_err();
        assert_eq!((error.blame(), error.effect()), (Blame::Corrupt, Effect::None), "{error}");
        file.write_at(&byte, at).unwrap();
    }
    Store::open(&table.url).unwrap();
    file.set_len(8192).unwrap();
    let error = Store::open(&table.url).unwrap_err();
    assert_eq!(error.blame(), Blame::Corrupt, "{error}");
    let misuse = |result: Result<Store, Error>| result.unwrap_err().blame();
    let url = Url::shm(&unique_name()).unwrap();
    assert_eq!(misuse(Store::create(&url, &CreateOptions::new(0))), Blame::Misuse);
    assert_eq!(misuse(Store::create(&url, &CreateOptions::new(u64::MAX))), Blame::Misuse);
    assert_eq!(misuse(Store::open(&url)), Blame::Misuse);
    let huge = Store::create(&url, &CreateOptions::new(1 << 40)).unwrap_err();
    assert!(matches!(huge.blame(), Blame::Full | Blame::Misuse), "{huge}");
    assert_eq!(huge.effect(), Effect::None);
}

/// The `Debug` output of stores, clients and readers names the table, and that of clients the slot.
#[test]
fn debug_output_names_the_table() {
    let (_table, store) = Table::create(&CreateOptions::new(1_000));
    let (client, future) = (store.client().unwrap(), pollster::block_on(store.to_async().client()).unwrap());
    let url = format!("{:?}", store.url());
    for text in [format!("{store:?}"), format!("{client:?}"), format!("{future:?}"), format!("{:?}", store.reader())] {
        assert!(text.contains(&url), "{text}");
    }
    assert!(format!("{client:?}").contains(&format!("slot: {}", client.slot())), "{client:?}");
}
