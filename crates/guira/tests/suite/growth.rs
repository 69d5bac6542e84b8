//! Tables that grow, in shared memory: their memory comes as they grow, and clients that are killed while it does lose
//! nothing. The test program starts itself as the clients, which get their arguments in an environment variable.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use guira::errors::Mismatch;
use guira::{AccessToken, CreateOptions, Error, OpenError, OpenOptions, Preset, ServeOptions, Store, Url};
use guira_fabric::SplitMix64;
use guira_testing::is_long;

use crate::common::Table;

const INSERTER: &str = "GUIRA_TEST_INSERTER";
/// Processes that insert keys at the same time.
const INSERTERS: u64 = 3;
/// Keys that each of them inserts between two reports.
const GROUP: u64 = 16;

fn options(capacity: u64, most: u64) -> CreateOptions {
    CreateOptions::new(capacity).format("fixed:8:8".parse().unwrap()).max_capacity(most)
}

fn key(inserter: u64, number: u64) -> [u8; 8] {
    (inserter << 40 | number).to_le_bytes()
}

/// [R-GROW-7] A table for a thousand keys takes hundreds of thousands, and no more memory than it needs for them; a
/// store that was open before, one that is opened later, and one for reading find every key.
#[test]
fn a_table_for_a_thousand_keys_takes_many_more() {
    const KEYS: u64 = 300_000;
    let (table, store) = Table::create(&options(1_000, 1_000_000));
    let bytes = || std::fs::metadata(table.url.to_string().replace("shm://", "/dev/shm/")).unwrap();
    let at_first = bytes();
    assert!(at_first.blocks() * 512 < at_first.len() / 8, "{} of {} bytes", at_first.blocks() * 512, at_first.len());
    let mut before = Store::open(&table.url).unwrap().reader();
    let mut client = store.client().unwrap();
    for i in 0..KEYS {
        client.put(&key(0, i), &i.to_le_bytes()).unwrap();
    }
    let at_last = bytes();
    assert_eq!(at_last.len(), at_first.len(), "addresses were reserved");
    // 16 bytes a record, in rows that are about two thirds full.
    let grown = (at_last.blocks() - at_first.blocks()) * 512;
    assert!((KEYS * 16..KEYS * 16 * 5 / 2).contains(&grown), "{grown} bytes more");
    let opened = Store::open(&table.url).unwrap();
    let mut read_only = Store::open_with(&table.url, &OpenOptions::default().read_only()).unwrap().reader();
    let mut after = opened.reader();
    for i in 0..KEYS {
        for reader in [&mut before, &mut after, &mut read_only] {
            assert_eq!(reader.get(&key(0, i)).unwrap().as_deref(), Some(&i.to_le_bytes()[..]), "key {i}");
        }
    }
    let report = opened.check().unwrap();
    assert!(report.is_clean() && report.counts.entries == KEYS, "{:?}", report.problems);
    assert_eq!(opened.scan().unwrap().count() as u64, KEYS);
    assert!(opened.len_estimate().unwrap().entries.abs_diff(KEYS) < KEYS / 20);
}

/// [R-GROW-6] [R-GROW-8] A table that was grown ahead of need takes its keys with hardly any more split, also while others
/// insert keys and grow it as well, and behind a node.
#[test]
fn a_table_grows_ahead_of_need() {
    const KEYS: u64 = 200_000;
    let (table, store) = Table::create(&options(1_000, 1_000_000));
    let stored = || store.stat().unwrap().region.file().unwrap().stored_bytes;
    let before = stored();
    let mut calls = Vec::new();
    let mut watch = |done: u64, all: u64| {
        calls.push((done, all));
        if done == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = store.grow_with_progress(KEYS, &mut watch).unwrap();
    assert_eq!((stopped.splits, stopped.is_stopped), (3, true));
    let all = calls[0].1;
    assert_eq!(calls, (0..=3).map(|done| (done, all)).collect::<Vec<_>>());
    let grown = store.grow(KEYS).unwrap();
    assert_eq!((grown.splits, grown.is_stopped), (all - 3, false));
    assert_eq!(store.grow(KEYS).unwrap().splits, 0);
    assert!((KEYS * 16..KEYS * 64).contains(&(stored() - before)), "{} bytes more", stored() - before);
    let insert = |inserter: u64| {
        let mut client = store.client().unwrap();
        (0..KEYS / 2).for_each(|i| assert!(client.put(&key(inserter, i), &i.to_le_bytes()).is_ok()));
    };
    std::thread::scope(|scope| (0..2).for_each(|inserter| _ = scope.spawn(move || insert(inserter))));
    let more = store.stat().unwrap().totals.splits - all;
    println!("{all} splits ahead of need, {more} more");
    assert!(more <= all / 50, "{more} splits more than {all}");
    let node = store.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into())).unwrap();
    let remote: Url = format!("tcp://{}", node.local_addrs()[0]).parse().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| insert(2));
        for url in [&table.url, &remote] {
            scope.spawn(move || Store::open(url).unwrap().grow(3 * KEYS).unwrap());
        }
    });
    assert_eq!(Store::open(&remote).unwrap().grow(3 * KEYS).unwrap().splits, 0);
    let mut reader = store.reader();
    for (inserter, i) in (0..3).flat_map(|inserter| (0..KEYS / 2).map(move |i| (inserter, i))) {
        assert_eq!(reader.get(&key(inserter, i)).unwrap().as_deref(), Some(&i.to_le_bytes()[..]), "{i} of {inserter}");
    }
    assert!(store.check().unwrap().is_clean());
    node.stop().unwrap();
}

/// A table that cannot grow, or not so far, says so; one without memory for it keeps the room that it got.
#[test]
fn a_table_that_cannot_grow_ahead_says_why() {
    let (_fixed, fixed) = Table::create(&CreateOptions::new(1_000));
    let (table, store) = Table::create(&options(1_000, 1_000_000));
    for (refused, reason) in [(fixed.grow(2_000), "its size is fixed"), (store.grow(1 << 40), "it grows to room for ")]
    {
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains(reason) && refused.blame() == guira::Blame::Misuse, "{refused}");
        assert_eq!(refused.effect(), guira::Effect::None);
    }
    assert_eq!(store.stat().unwrap().totals.splits, 0);
    let reader = Store::open_with(&table.url, &OpenOptions::default().read_only()).unwrap();
    assert!(reader.grow(100_000).is_err());
    let limit = store.stat().unwrap().region.file().unwrap().stored_bytes + (4 << 20);
    let node = store.serve(&ServeOptions::new(([127, 0, 0, 1], 0).into()).max_memory(limit)).unwrap();
    let remote = Store::open(format!("tcp://{}", node.local_addrs()[0])).unwrap();
    let refused = remote.grow(800_000).unwrap_err();
    println!("{refused}");
    assert!(refused.blame() == guira::Blame::Full && refused.insufficient_space().is_some(), "{refused}");
    let splits = store.stat().unwrap().totals.splits;
    assert!(splits > 10 && remote.grow(50_000).unwrap().splits == 0, "{splits} splits");
    // The limit ends with the node, and one that cannot be started sets none.
    let taken = node.local_addrs()[0];
    assert!(store.serve(&ServeOptions::new(taken).max_memory(1)).is_err());
    assert!(remote.grow(800_000).unwrap_err().insufficient_space().is_some());
    node.stop().unwrap();
    assert!(store.grow(800_000).unwrap().splits > 0);
}

/// [R-GROW-6] A table that has grown as far as it may is full.
#[test]
fn a_table_grows_to_its_limit() {
    let (_table, store) = Table::create(&options(1_000, 20_000));
    let mut client = store.client().unwrap();
    let full = (0..).map(|i| client.put(&key(0, i), &[0; 8])).take_while(Result::is_ok).count() as u64;
    assert!(full >= 20_000, "{full} keys");
    let refused = client.put(&key(0, full + 1), &[0; 8]);
    assert!(refused.is_ok() || refused.is_err_and(|error| error.blame() == guira::Blame::Full));
    let impossible = [options(1_000, 999), options(1_000, 1 << 40)].map(|options| Store::create("shm://x", &options));
    for refused in impossible {
        assert!(matches!(refused, Err(Error::Open(_))), "{refused:?}");
    }
}

/// [R-GROW-15] A table takes values of which no options told the size, with hardly more memory than they need; another
/// store reads them, and processes that open it later store more.
#[test]
fn large_values_need_no_size_in_advance() {
    const KEYS: u64 = 20_000;
    let (table, store) = Table::create(&CreateOptions::new(1_000).max_capacity(1_000_000));
    let stored = || store.stat().unwrap().region.file().unwrap().stored_bytes;
    let (before, mut client) = (stored(), store.client().unwrap());
    let value = |i: u64| vec![i as u8; 64 + (i % 2_000) as usize];
    let bytes: u64 = (0..KEYS).map(|i| value(i).len() as u64).sum();
    for i in 0..KEYS {
        client.put(&key(0, i), &value(i)).unwrap();
        if i == KEYS / 2 {
            // What it has is found, also the chunks that it left.
            drop(client);
            client = Store::open(&table.url).unwrap().client().unwrap();
        }
    }
    client.put(b"the largest", &vec![7; 64 << 20]).unwrap();
    client.remove(b"the largest").unwrap();
    let grown = stored() - before;
    println!("{bytes} bytes of values, and one of 64 MiB, took {grown}");
    assert!((bytes..bytes * 2 + (80 << 20)).contains(&grown), "{grown} for {bytes} bytes");
    let mut reader = Store::open_with(&table.url, &OpenOptions::default().read_only()).unwrap().reader();
    for i in 0..KEYS {
        assert_eq!(reader.get(&key(0, i)).unwrap().as_deref(), Some(&value(i)[..]), "key {i}");
    }
    // The space of the largest value serves others now.
    for i in 0..KEYS {
        client.put(&key(1, i), &value(i)).unwrap();
    }
    assert!(stored() - before < grown + (20 << 20), "{} after {grown}", stored() - before);
    let report = store.check().unwrap();
    assert!(report.is_clean() && report.counts.entries == 2 * KEYS, "{:?}", report.problems);
}

/// A table of which nobody says how many keys it will have begins small, in every format, has addresses for what the
/// machine's memory holds, and fits tables of any size.
#[test]
fn a_table_of_unknown_size_begins_small() {
    for format in ["fixed:4:4", "fixed:8:8", "bytes:64", "bytes:1024"] {
        let unknown = CreateOptions::default().format(format.parse().unwrap());
        assert!(unknown.memory_bytes().unwrap() < 24 << 20, "{format}: {} bytes", unknown.memory_bytes().unwrap());
        let store = Store::create_unnamed(&unknown).unwrap();
        let config = store.table().config();
        assert!(config.grows() && config.capacity() >= 1_000 && config.max_capacity() > 1_000_000, "{format}");
    }
    let (table, store) = Table::create(&CreateOptions::default());
    assert!(CreateOptions::default().memory_bytes().unwrap() < 8 << 20);
    let mut client = store.client().unwrap();
    (0..10_000).for_each(|i| assert!(client.put(&key(0, i), &[7; 100]).is_ok()));
    assert!(!Store::open_or_create(&table.url, &CreateOptions::default()).unwrap().was_created());
    let (small, fixed) = Table::create(&CreateOptions::new(10));
    assert!(fixed.ensure_fits(&CreateOptions::default()).is_ok());
    assert!(!Store::open_or_create(&small.url, &CreateOptions::default()).unwrap().was_created());
    assert!(CreateOptions::default().preset(Preset::Paper).memory_bytes().is_err());
}

/// A table that exists has room for what it may grow to, and options that ask for more are refused.
#[test]
fn room_is_what_a_table_may_grow_to() {
    let (table, store) = Table::create(&options(1_000, 50_000));
    let room = store.table().config().max_capacity();
    assert!(room >= 50_000 && store.table().config().capacity() < 10_000);
    for fits in [options(1, room), options(room, room), options(1, 1), options(1, 1).max_capacity(2)] {
        assert!(!Store::open_or_create(&table.url, &fits).unwrap().was_created());
    }
    for asked in [options(1, room + 1), options(room + 1, room + 1)] {
        let Err(Error::Open(OpenError::Mismatch { mismatches, .. })) = store.ensure_fits(&asked) else { panic!() };
        assert_eq!(mismatches, [Mismatch::Capacity { asked: room + 1, found: room }]);
    }
    let small = options(1_000, 1_000_000);
    assert!(small.memory_bytes().unwrap() < 1 << 20 && small.capacity_within(20 << 20).unwrap() > 100_000);
    let (most, far) = (options(1_000, 1 << 30), options(1, 1 << 39));
    let of = |options: &CreateOptions| options.memory_bytes().unwrap();
    assert!(of(&most) > of(&small) && of(&most) < of(&far), "a part in 32,768 of what it may grow to");
    assert!(options(1, 1 << 40).memory_bytes().is_err());
}

/// [R-GROW-7] [R-GROW-15] Clients of a memory node and local ones let one table grow, and find each other's keys; so do
/// tasks. A reader of the node, which may not reserve memory, finds all of them.
#[test]
fn a_table_behind_a_node_grows() {
    const KEYS: u64 = 6_000;
    let (table, store) = Table::create(&CreateOptions::new(500).max_capacity(200_000));
    let served = |options: ServeOptions| {
        let served = store.serve(&options).unwrap();
        (format!("tcp://{}", served.local_addrs()[0]), served)
    };
    let (url, _writers) = served(ServeOptions::new("127.0.0.1:0".parse().unwrap()));
    let remote = Store::open(&url).unwrap();
    let mut clients = [store.client().unwrap(), remote.client().unwrap(), Store::open(&url).unwrap().client().unwrap()];
    let value = |i: u64| vec![i as u8; if i.is_multiple_of(10) { 2_000 } else { 10 }];
    for i in 0..KEYS {
        clients[(i % 3) as usize].put(&key(0, i), &value(i)).unwrap();
    }
    let aio = pollster::block_on(guira::aio::Store::open(&url)).unwrap();
    let mut task = pollster::block_on(aio.client()).unwrap();
    for i in KEYS..2 * KEYS {
        pollster::block_on(task.put(&key(0, i), &value(i))).unwrap();
    }
    let (folder, name) = (tempfile::tempdir().unwrap(), "token");
    let token = AccessToken::create(&folder.path().join(name)).unwrap();
    let (reading_url, _readers) = served(ServeOptions::new("127.0.0.1:0".parse().unwrap()).reader_token(token));
    let only = OpenOptions::default().read_only().token_file(folder.path().join(name));
    let reading = Store::open_with(&reading_url, &only).unwrap();
    for mut reader in [store.reader(), remote.reader(), Store::open(&url).unwrap().reader(), reading.reader()] {
        for i in 0..2 * KEYS {
            assert_eq!(reader.get(&key(0, i)).unwrap().as_deref(), Some(&value(i)[..]), "key {i}");
        }
    }
    drop((clients, task));
    for store in [&store, &remote, &reading] {
        let stat = store.stat().unwrap();
        assert_eq!((stat.table.entries, stat.table.unverified_rows), (2 * KEYS, 0));
        assert_eq!(store.scan().unwrap().count() as u64, 2 * KEYS);
        let report = store.check().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
    let rows = store.stat().unwrap().table.rows;
    assert!(rows > store.table().config().initial_rows() * 4, "{rows} rows");
    drop(table);
}

/// [R-GROW-7] A node reserves no more memory than it may: inserts of its clients fail without effect, those of local
/// ones do not, and make room for keys of everyone.
#[test]
fn a_node_lets_a_table_grow_no_further_than_it_may() {
    let (_table, store) = Table::create(&options(1_000, 1_000_000));
    let bytes = store.stat().unwrap().region.file().unwrap().stored_bytes;
    let served = ServeOptions::new("127.0.0.1:0".parse().unwrap()).max_memory(bytes + (1 << 20));
    let served = store.serve(&served).unwrap();
    let remote = Store::open(format!("tcp://{}", served.local_addrs()[0])).unwrap();
    let mut client = remote.client().unwrap();
    let refused = (0..).find_map(|i| client.put(&key(0, i), &[0; 8]).err().map(|error| (i, error)));
    let (keys, refused) = refused.unwrap();
    println!("key {keys}: {refused}");
    assert!(
        refused.insufficient_space().is_some()
            && refused.to_string().contains("the memory node's limit (--max-memory) has only ")
    );
    assert!(refused.effect() == guira::Effect::None && remote.reader().get(&key(0, keys)).unwrap().is_none());
    let stored = store.stat().unwrap().region.file().unwrap().stored_bytes;
    assert!(keys > 10_000 && stored <= bytes + (1 << 20), "{keys} keys, {stored} bytes");
    // This store is the node's; another process is not limited.
    let mut local = Store::open(store.url()).unwrap().client().unwrap();
    (keys..2 * keys).for_each(|i| assert!(local.put(&key(0, i), &[0; 8]).is_ok()));
    assert_eq!(client.put(&key(0, 2 * keys - 1), &[1; 8]).unwrap(), guira::Put::Replaced);
}

const SMALL: &str = "GUIRA_TEST_SMALL_FILE_SYSTEM";

/// [R-GROW-7] An insert that finds no memory for a segment says so and has changed nothing; nothing is lost, and the
/// table goes on growing when there is memory again. A copy with more holes than the table is filled, as far as it
/// should be, when it is opened for writing.
#[test]
fn a_full_file_system_stops_no_client() {
    let script =
        "mount -t tmpfs -o size=24m tmpfs /mnt && exec \"$0\" --exact growth::in_a_small_file_system --nocapture";
    let run = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(SMALL, "/mnt")
        .output();
    let output = match run {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("running 1 test") => output,
        other => return println!("NOT RUN: file systems cannot be mounted here: {other:?}"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let is_done = output.status.success() && text.contains("every step was made");
    assert!(is_done, "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// Runs in a file system of 24 MiB if the environment names one; does nothing otherwise.
#[test]
fn in_a_small_file_system() {
    let Ok(folder) = std::env::var(SMALL) else { return };
    let (path, filler) = (format!("{folder}/birds"), format!("{folder}/filler"));
    let url: Url = format!("file://{path}").parse().unwrap();
    let store = Store::create(&url, &options(1_000, 1_000_000)).unwrap();
    let stored = || std::fs::metadata(&path).unwrap().blocks();
    std::fs::write(&filler, vec![1; 18 << 20]).unwrap();
    let mut client = store.client().unwrap();
    let mut put = |i: u64| client.put(&key(0, i), &i.to_le_bytes());
    let full = (0..).find(|i| put(*i).is_err()).unwrap();
    let refused = put(full).unwrap_err();
    println!("key {full}: {refused}");
    assert!(refused.to_string().contains("the table cannot grow: it needs ") && full > 10_000, "{refused}");
    assert!(refused.blame() == guira::Blame::Full && refused.insufficient_space().is_some(), "{refused}");
    std::fs::remove_file(&filler).unwrap();
    (full..full + 20_000).for_each(|i| assert!(put(i).is_ok(), "there is memory again"));
    drop(client);
    drop(store);
    // Pages of zeros become holes, as in a copy.
    let before = stored();
    let punched = Command::new("fallocate").args(["--dig-holes", &path]).status().unwrap();
    assert!(punched.success() && stored() < before);
    // A full file system refuses the rest of what is written.
    let _ = std::fs::write(&filler, vec![1; 32 << 20]);
    let refused = Store::open(&url).unwrap_err();
    println!("{refused}");
    assert!(refused.blame() == guira::Blame::Full, "{refused}");
    std::fs::remove_file(&filler).unwrap();
    let opened = Store::open(&url).unwrap();
    assert!(stored() >= before && stored() < before + before / 8, "{} and {before} blocks", stored());
    let mut reader = opened.reader();
    for i in 0..full + 20_000 {
        assert_eq!(reader.get(&key(0, i)).unwrap().as_deref(), Some(&i.to_le_bytes()[..]), "key {i}");
    }
    assert!(opened.check().unwrap().is_clean());
    Store::destroy(&url).unwrap();
    // The memory of a destroyed table is free once nobody has it open.
    drop((reader, opened));
    let_values_fill(&url, &path, &filler);
    println!("every step was made");
}

/// [R-GROW-15] The same for the space of large values.
fn let_values_fill(url: &Url, path: &str, filler: &str) {
    let store = Store::create(url, &CreateOptions::new(1_000).max_capacity(1_000_000)).unwrap();
    std::fs::write(filler, vec![1; 10 << 20]).unwrap();
    let mut client = store.client().unwrap();
    let value = |i: u64| vec![i as u8; 3_000];
    let mut put = |i: u64| client.put(&key(0, i), &value(i));
    let full = (0..).find(|i| put(*i).is_err()).unwrap();
    let refused = put(full).unwrap_err();
    println!("key {full}: {refused}");
    assert!(refused.to_string().contains("the table cannot grow: it needs ") && full > 1_000, "{refused}");
    assert!(refused.blame() == guira::Blame::Full && refused.insufficient_space().is_some(), "{refused}");
    std::fs::remove_file(filler).unwrap();
    (full..full + 1_000).for_each(|i| assert!(put(i).is_ok(), "there is memory again"));
    // Chunks of zeros, and those that no client has used, become holes in a copy.
    let chunk = store.stat().unwrap().chunk_bytes;
    client.put(b"zeros", &vec![0; 1 << 20]).unwrap();
    let stored = || std::fs::metadata(path).unwrap().blocks() * 512;
    let before = stored();
    drop((client, store));
    let punched = Command::new("fallocate").args(["--dig-holes", path]).status().unwrap();
    assert!(punched.success() && stored() < before - chunk);
    let opened = Store::open(url).unwrap();
    assert!(stored() >= before && stored() < before + before / 8, "{} and {before} bytes", stored());
    let mut reader = opened.reader();
    for i in 0..full + 1_000 {
        assert_eq!(reader.get(&key(0, i)).unwrap().as_deref(), Some(&value(i)[..]), "key {i}");
    }
    assert_eq!(reader.get(b"zeros").unwrap().map(|value| value.len()), Some(1 << 20));
    assert!(opened.check().unwrap().is_clean());
}

/// Runs as an inserter if the environment asks for it; does nothing otherwise.
#[test]
fn inserter() {
    let Ok(arguments) = std::env::var(INSERTER) else { return };
    let parts: Vec<&str> = arguments.split(',').collect();
    let [id, mut number, bytes] = [1, 2, 3].map(|at| parts[at].parse::<u64>().unwrap());
    let mut client = Store::open(parts[0]).unwrap().client().unwrap();
    let mut out = std::io::stdout().lock();
    loop {
        for i in number..number + GROUP {
            let mut value = i.to_le_bytes().to_vec();
            value.resize(bytes as usize, 0);
            client.put(&key(id, i), &value).unwrap();
        }
        // Large values are replaced.
        number += if bytes == 8 { GROUP } else { 0 };
        out.write_all(b"+").and_then(|()| out.flush()).unwrap();
    }
}

/// Starts a process that inserts keys from `number` on, with values of `bytes` bytes; if they have more than 8, it
/// replaces the values of one group of keys.
fn start(url: &Url, id: u64, number: u64, bytes: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "growth::inserter", "--nocapture", "--quiet"])
        .env(INSERTER, format!("{url},{id},{number},{bytes}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the inserter has reported `groups` groups, kills it, and returns how many it has reported in all.
fn kill_after(mut child: Child, groups: usize) -> u64 {
    let mut out = child.stdout.take().unwrap();
    let (mut bytes, mut reported) = ([0; 256], 0);
    let count = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'+').count();
    while reported < groups {
        let length = out.read(&mut bytes).unwrap();
        assert!(length > 0, "the inserter failed: {:?}", child.wait());
        reported += count(&bytes[..length]);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    (reported + count(&rest)) as u64
}

/// [R-GROW-15] A table does not grow for clients that come and are killed: they get the space of those that died.
#[test]
fn the_dead_give_back_their_chunks_before_a_table_grows() {
    const BYTES: u64 = 100_000;
    let (table, store) = Table::create(&CreateOptions::new(1_000).max_capacity(1_000_000));
    let stored = || store.stat().unwrap().region.file().unwrap().stored_bytes;
    let before = stored();
    for _ in 0..40 {
        kill_after(start(&table.url, 0, 0, BYTES), 3);
    }
    let grown = stored() - before;
    println!("{grown} bytes more, for {} in use", GROUP * BYTES);
    // Two values of each key, and what two clients keep for themselves.
    assert!(grown < 4 * GROUP * BYTES, "{grown} bytes");
}

/// [R-GROW-8] [R-GROW-10] Processes that insert keys into a table with small segments are killed at any moment and
/// replaced, while it grows to a hundred times its size: none is refused, and every acknowledged key is there.
#[test]
fn killed_inserters_lose_nothing() {
    const SEED: u64 = 5;
    let kills = if is_long() { 600 } else { 60 };
    // The inserters go on while others are started, a million keys in ten seconds.
    let (table, store) = Table::create(&options(100, 100_000_000).preset(Preset::Tiny));
    let (mut rng, mut numbers) = (SplitMix64(SEED), [0; INSERTERS as usize]);
    let mut children: Vec<Option<Child>> = (0..INSERTERS).map(|id| Some(start(&table.url, id, 0, 8))).collect();
    for _ in 0..kills {
        let id = rng.below(INSERTERS) as usize;
        numbers[id] += GROUP * kill_after(children[id].take().unwrap(), 1 + rng.below(20) as usize);
        children[id] = Some(start(&table.url, id as u64, numbers[id], 8));
    }
    for (id, child) in children.into_iter().flatten().enumerate() {
        numbers[id] += GROUP * kill_after(child, 1);
    }
    println!("seed {SEED}: {numbers:?} keys after {kills} kills");
    let mut reader = store.reader();
    for (id, acknowledged) in (0..).zip(numbers) {
        for i in 0..acknowledged {
            assert_eq!(reader.get(&key(id, i)).unwrap().as_deref(), Some(&i.to_le_bytes()[..]), "key {i} of {id}");
        }
    }
    // Opening as many clients as there are slots recovers the dead ones.
    let slots = store.stat().unwrap().max_clients;
    let all: Vec<_> = (0..slots).map(|_| store.client().unwrap()).collect();
    drop(all);
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let splits = store.stat().unwrap().totals.splits;
    println!("{splits} splits, {} rows", report.counts.rows);
    assert!(report.counts.rows > 64 * 50, "the table has grown: {} rows", report.counts.rows);
}
