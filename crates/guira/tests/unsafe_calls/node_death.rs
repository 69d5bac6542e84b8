//! A memory node that dies inside the WRITE of a row, at a known word: the start of a page that it may not write to.
//! The process ends at once, as by SIGKILL; what it had written stays in the region.
//!
//! The node runs this test program again, with only the test `node`, which reads its options from the environment.

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use guira::{Client, CreateOptions, Effect, OpenOptions, ServeOptions, Store, Url};
use guira_testing::{ReservedPort, patience};
use rustix::mm::{MprotectFlags, mprotect};

use crate::Table;

const NODE: &str = "GUIRA_TEST_MORTAL_NODE";
const READY: &str = "@@serving";
const PROTECTED: &str = "@@protected";
/// One or two pages begin inside each row.
const FORMAT: &str = "bytes:1024";
const ROW_BYTES: usize = 8_208;
const VALUE_BYTES: usize = 960;
/// The number of pages tested on either side of an entry, more than its row covers.
const PAGES_AROUND: usize = 3;
const PAGE_BYTES: usize = 4096;

/// A memory node in a child process. Killed on drop.
struct NodeProcess(Child);

impl NodeProcess {
    /// Serves `backing` on `port`. Writing to the page of the file at byte `protected` ends the node.
    fn start(backing: &Url, port: u16, protected: Option<usize>) -> NodeProcess {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node_death::node", "--nocapture", "--quiet"])
            .env(NODE, format!("{port} {backing}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut node = NodeProcess(child.unwrap());
        let mut words = BufReader::new(node.0.stdout.as_mut().unwrap()).lines();
        let mut said = |word: &str| {
            let has_said = words.any(|line| line.unwrap().starts_with(word));
            assert!(has_said, "the node failed: see its message above");
        };
        said(READY);
        if let Some(offset) = protected {
            writeln!(node.0.stdin.as_mut().unwrap(), "{offset}").unwrap();
            said(PROTECTED);
        }
        node
    }

    /// Whether the node has died from writing to the protected page. Its clients notice its death a moment later.
    fn has_died(&mut self) -> bool {
        match self.0.try_wait().unwrap() {
            None => false,
            Some(status) => {
                assert_eq!(status.signal(), Some(rustix::process::Signal::SEGV.as_raw()), "{status}");
                true
            }
        }
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Makes one page of the file at `path` unwritable wherever this process maps it.
fn protect(path: &str, offset: usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.ends_with(path) && line.contains("rw-s")).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (start, end, from) = (number(start)?, number(end)?, number(fields.nth(1)?)?);
        (from..from + (end - start)).contains(&offset).then(|| start + (offset - from))
    });
    let mut pages = 0;
    for page in mapped {
        let page = std::ptr::with_exposed_provenance_mut(page);
        // SAFETY: the page is one of a region's mapping, which lasts as long as this process; nothing but the region's
        // words lies in it, and a write to them is to end the process.
        unsafe { mprotect(page, PAGE_BYTES, MprotectFlags::READ) }.unwrap();
        pages += 1;
    }
    assert!(pages > 0, "the region is mapped");
}

/// Runs a node if this program was started as one, and does nothing otherwise.
#[test]
fn node() {
    let Ok(told) = std::env::var(NODE) else { return };
    let (port, backing) = told.split_once(' ').unwrap();
    let backing: Url = backing.parse().unwrap();
    let store = Store::open(&backing).unwrap();
    let options = ServeOptions::new((Ipv4Addr::LOCALHOST, port.parse().unwrap()).into()).threads(1);
    let served = store.serve(&options).unwrap();
    println!("\n{READY}");
    let path = backing.to_string().replace("shm://", "/dev/shm/");
    // Serves until the parent ends.
    for line in std::io::stdin().lines() {
        protect(&path, line.unwrap().parse().unwrap());
        println!("{PROTECTED}");
    }
    served.stop().unwrap();
}

/// Returns the offset of `value` in a row of the region's file. The records of clients, before all rows, may contain
/// it, too.
fn find(url: &Url, value: &[u8]) -> usize {
    let path = url.to_string().replace("shm://", "/dev/shm/");
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(value.len()).rposition(|window| window == value).expect("the value lies in a row")
}

fn value(number: u8) -> Vec<u8> {
    vec![number; VALUE_BYTES]
}

/// A key that is in no row near the start of the rows, where the pages before its entry belong to slots of clients: a
/// new session of a node may write one of these.
fn key_far_from_slots(store: &Store) -> Vec<u8> {
    let (table, rows) = (store.table(), (PAGES_AROUND * PAGE_BYTES).div_ceil(ROW_BYTES) as u64);
    let is_far = |key: &Vec<u8>| {
        let pair = table.placement().rows(table.placement().digest(key));
        pair.first.0 > rows && pair.second.0 > rows
    };
    (0..1_000).map(|n| format!("cuckoo {n}").into_bytes()).find(is_far).expect("most rows are far")
}

/// Asserts that the client reads value `number` for the key, once there is a node again.
fn assert_value(client: &mut Client, key: &[u8], number: u8, node: &mut NodeProcess) {
    let found = client.get(key).unwrap_or_else(|error| panic!("{error}; its node: {:?}", node.0.try_wait()));
    let found = found.expect("the key");
    assert!(found == value(number), "{number} and nothing else: {:02x?}..", &found[..8]);
}

/// [R-COMMIT-1] [R-COMMIT-3] [R-RECOVER-2] [R-SESSION-1] A node that dies while it writes a row leaves the row
/// partially written, and a sealed record of the change. The client learns that the effect is unknown. It sees the
/// change if it reads through the record of the torn row on the next node, and recovery completes the change. A node
/// that dies earlier, in the record, leaves the row as it was.
#[test]
fn a_node_that_dies_inside_a_row_leaves_its_record() {
    let (table, store) = Table::create(&CreateOptions::new(64).format(FORMAT.parse().unwrap()).max_clients(8));
    let url = &table.url;
    // No other process is given the port while one node has ended and the next one has not begun.
    let reserved = ReservedPort::new();
    let port = reserved.port;
    let mut node = NodeProcess::start(url, port, None);
    let remote =
        Store::open_with(Url::tcp("127.0.0.1", port).unwrap(), &OpenOptions::default().reconnect_timeout(patience()))
            .unwrap();
    let mut client = remote.client().unwrap();
    let key = &key_far_from_slots(&store)[..];
    let mut number = 1;
    client.put(key, &value(number)).unwrap();
    let entry_page = find(url, &value(number)) / PAGE_BYTES;
    let (mut deaths, mut replays, mut torn) = (0, 0, 0);
    for page in entry_page - PAGES_AROUND..=entry_page + PAGES_AROUND {
        drop(node);
        node = NodeProcess::start(url, port, Some(page * PAGE_BYTES));
        // The session is new; the first operation reports that, if it may have had an effect.
        assert_value(&mut client, key, number, &mut node);
        let before = store.stat().unwrap().totals;
        let changed = client.update(key, &value(number + 1));
        if let Ok(is_there) = changed {
            assert!(is_there && !node.has_died(), "the write did not touch the page");
            number += 1;
            continue;
        }
        let error = changed.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        let status = node.0.wait().unwrap();
        assert_eq!(status.signal(), Some(rustix::process::Signal::SEGV.as_raw()), "{status}");
        deaths += 1;
        // Every other time the client reads before the dead node's slots are recovered, through the record if need be.
        let is_early = deaths % 2 == 1;
        let early = is_early.then(|| {
            node = NodeProcess::start(url, port, None);
            client.get(key).unwrap().expect("the key")
        });
        let repair = store.recover(&mut |_, _| ()).unwrap();
        assert!(repair.failed.is_empty(), "{repair:?}");
        if !is_early {
            node = NodeProcess::start(url, port, None);
        }
        let met = store.stat().unwrap().totals.since(&before);
        println!("page {page}: {} records replayed, {} torn rows", met.replays, met.torn_rows);
        number += met.replays as u8;
        // A row of which no word was written is whole, and shows the old value until the record is replayed.
        let is_expected = |early| early == value(number) || met.torn_rows == 0 && early == value(number - 1);
        assert!(early.is_none_or(is_expected), "value {number} is also read before the recovery, if the row shows it");
        assert_value(&mut client, key, number, &mut node);
        (replays, torn) = (replays + met.replays, torn + met.torn_rows);
    }
    // A row covers two or three pages.
    assert!((2..=3).contains(&replays) && (1..=replays).contains(&torn), "{torn} of {replays} inside a row");
    assert!(deaths >= replays);
    drop(client);
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}
