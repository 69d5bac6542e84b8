//! A memory node that dies inside the WRITE of a row, at a word that is known: where a page begins that it may not
//! write to. What served the table is gone at once, as by SIGKILL; what it had written stays in the region.
//!
//! The node is this test program again: it runs the one test `node`, which does what its environment says.

#![expect(clippy::unwrap_used, reason = "helpers of tests are not tests themselves to the lint")]

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use guira::Client;
use guira::{CreateOptions, Effect, OpenOptions, ServeOptions, Store, Url};
use rustix::mm::{MprotectFlags, mprotect};

const NODE: &str = "GUIRA_SHM_TEST_MORTAL_NODE";
const READY: &str = "@@serving ";
const PROTECTED: &str = "@@protected";
/// Rows of 8,208 bytes: one or two pages begin inside each.
const FORMAT: &str = "bytes:1024";
const KEY: &[u8] = b"cuckoo";
const VALUE_BYTES: usize = 960;
/// Pages looked at on either side of an entry: farther than its row goes.
const PAGES_AROUND: usize = 3;
const PAGE_BYTES: usize = 4096;
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// A node, killed when this is dropped.
struct Mortal {
    port: u16,
    child: Child,
}

impl Mortal {
    /// Serves `backing` on `port`, or any if that is 0. The pages of the file at `protected`, in bytes, may not be
    /// written to.
    fn start(backing: &Url, port: u16, protected: Option<usize>) -> Mortal {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node", "--nocapture", "--quiet"])
            .env(NODE, format!("{port} {backing}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut node = Mortal { port, child: child.unwrap() };
        let mut words = BufReader::new(node.child.stdout.as_mut().unwrap()).lines();
        let mut said = |word: &str| {
            let found = words.find_map(|line| line.unwrap().strip_prefix(word).map(str::to_owned));
            found.expect("the node failed: see its message above")
        };
        node.port = said(READY).parse().unwrap();
        if let Some(offset) = protected {
            writeln!(node.child.stdin.as_mut().unwrap(), "{offset}").unwrap();
            said(PROTECTED);
        }
        node
    }

    fn url(&self) -> Url {
        Url::tcp("127.0.0.1", self.port).unwrap()
    }

    /// Whether it has died of a write that it may not do. What its clients are told comes a moment after its death.
    fn has_died(&mut self) -> bool {
        match self.child.try_wait().unwrap() {
            None => false,
            Some(status) => {
                assert_eq!(status.signal(), Some(rustix::process::Signal::SEGV.as_raw()), "{status}");
                true
            }
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
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

/// A node's life, when this program was started as one; nothing otherwise.
#[test]
fn node() {
    let Ok(told) = std::env::var(NODE) else { return };
    let (port, backing) = told.split_once(' ').unwrap();
    let backing: Url = backing.parse().unwrap();
    let store = Store::open(&backing).unwrap();
    let options = ServeOptions::new((Ipv4Addr::LOCALHOST, port.parse().unwrap()).into()).threads(1);
    let served = store.serve(&options).unwrap();
    println!("\n{READY}{}", served.local_addrs()[0].port());
    let path = backing.to_string().replace("shm://", "/dev/shm/");
    // Until whoever started it ends.
    for line in std::io::stdin().lines() {
        protect(&path, line.unwrap().parse().unwrap());
        println!("{PROTECTED}");
    }
    served.stop().unwrap();
}

/// A table that is destroyed when the test ends, however it ends.
struct Destroyed(Url);

impl Drop for Destroyed {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

/// Where in the region's file `value` lies in a row: the records of clients, in front of all rows, may have it, too.
fn find(url: &Url, value: &[u8]) -> usize {
    let path = url.to_string().replace("shm://", "/dev/shm/");
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(value.len()).rposition(|window| window == value).expect("the value lies in a row")
}

fn value(number: u8) -> Vec<u8> {
    vec![number; VALUE_BYTES]
}

/// What the key has, as the client sees it itself once there is a node again.
fn assert_value(client: &mut Client, number: u8) {
    let found = client.get(KEY).unwrap().expect("the key");
    assert!(found == value(number), "{number} and nothing else: {:02x?}..", &found[..8]);
}

/// [R-COMMIT-1] [R-COMMIT-3] [R-RECOVER-2] [R-SESSION-1] A node that dies while it writes a row leaves it half written,
/// and the sealed record beside it. The client is told that nobody knows, sees the change done if it looks past a
/// torn row over the next node, and its recovery completes the change. A node that dies before, in the record, leaves
/// the row as it was.
#[test]
fn a_node_that_dies_inside_a_row_leaves_its_record() {
    let url = Url::shm(&format!("guira-test-node-death-{}", std::process::id())).unwrap();
    let options = CreateOptions::new(64).format(FORMAT.parse().unwrap()).max_clients(8);
    let store = Store::create(&url, &options).unwrap();
    let _table = Destroyed(url.clone());
    let mut node = Mortal::start(&url, 0, None);
    let remote = Store::open_with(node.url(), &OpenOptions::default().reconnect_timeout(RECONNECT_TIMEOUT)).unwrap();
    let mut client = remote.client().unwrap();
    let mut number = 1;
    client.put(KEY, &value(number)).unwrap();
    let entry_page = find(&url, &value(number)) / PAGE_BYTES;
    let (mut deaths, mut replays, mut torn) = (0, 0, 0);
    for page in entry_page - PAGES_AROUND..=entry_page + PAGES_AROUND {
        let port = node.port;
        drop(node);
        node = Mortal::start(&url, port, Some(page * PAGE_BYTES));
        // The session is a new one: that is said by the first operation, if it may have had an effect.
        assert_value(&mut client, number);
        let before = store.stat().unwrap().totals;
        let changed = client.update(KEY, &value(number + 1));
        if let Ok(is_there) = changed {
            assert!(is_there && !node.has_died(), "another page");
            number += 1;
            continue;
        }
        let error = changed.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        let status = node.child.wait().unwrap();
        assert_eq!(status.signal(), Some(rustix::process::Signal::SEGV.as_raw()), "{status}");
        deaths += 1;
        // Every other time the client looks before the node that died is recovered, past the row if need be.
        let is_early = deaths % 2 == 1;
        let early = is_early.then(|| {
            node = Mortal::start(&url, port, None);
            client.get(KEY).unwrap().expect("the key")
        });
        let repair = store.recover(&mut |_, _| ()).unwrap();
        assert!(repair.failed.is_empty(), "{repair:?}");
        if !is_early {
            node = Mortal::start(&url, port, None);
        }
        let met = store.stat().unwrap().totals.since(&before);
        println!("page {page}: {} record replayed, {} row half written", met.replays, met.torn_rows);
        number += met.replays as u8;
        // A row of which nothing was written is whole, and what its record says is still to happen.
        let is_expected = |early| early == value(number) || met.torn_rows == 0 && early == value(number - 1);
        assert!(early.is_none_or(is_expected), "{number} before the recovery, too, if the row shows it");
        assert_value(&mut client, number);
        (replays, torn) = (replays + met.replays, torn + met.torn_rows);
    }
    // A row begins in one page, and goes on in another or two.
    assert!((2..=3).contains(&replays) && (1..=replays).contains(&torn), "{torn} of {replays} inside a row");
    assert!(deaths >= replays);
    drop(client);
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}
