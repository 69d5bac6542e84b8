//! A table whose file is truncated while `guira serve` serves it: its clients get an error at once and never read bytes
//! that were not in the file, and the node ends in order and says why. And a table whose file is removed or replaced:
//! nothing that is stored a moment later is acknowledged.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use guira::{Blame, Effect, Error, OpenError, Store};
use guira_testing::wait_until;

use crate::common::{Run, Table, command, guira};
use crate::serve::Server;

const READERS: usize = 3;
const WRITERS: usize = 2;
const KEYS: usize = 500;
const MOST_TRIES: usize = 10;

fn key(number: usize) -> Vec<u8> {
    format!("key-{number:04}").into_bytes()
}

fn serve(table: &Table) -> Server {
    Server::start(&["--backing", table.url(), "--capacity", "20k", "--max-clients", "40"])
}

fn cut(table: &Table, bytes: u64) {
    let file = OpenOptions::new().write(true).open(table.path()).expect("it is there");
    file.set_len(bytes).expect("it is this user's");
}

/// Looks keys up, until that fails. Every key is there all the time.
fn look_up(url: &guira::Url, first: usize, found: &AtomicUsize) -> Error {
    let store = Store::open(url).expect("it is served");
    let mut client = store.client().expect("there are slots");
    for number in (0..KEYS).cycle().skip(first) {
        match client.get(&key(number)) {
            Ok(value) => assert_eq!(value.as_deref(), Some(&b"value"[..]), "key {number}"),
            Err(error) => return error,
        }
        found.fetch_add(1, Ordering::Relaxed);
    }
    unreachable!("it goes round and round")
}

/// Changes keys, until that fails.
fn change(url: &guira::Url, writer: usize) -> (Error, Error) {
    let store = Store::open(url).expect("it is served");
    let mut client = store.client().expect("there are slots");
    for number in 0_u64.. {
        let key = format!("writer-{writer}-{}", number % 100);
        if let Err(error) = client.put(key.as_bytes(), b"value") {
            let next = client.put(key.as_bytes(), b"value").expect_err("the table is gone");
            return (error, next);
        }
    }
    unreachable!("it goes on for ever")
}

#[test]
fn clients_of_a_truncated_table_are_told_at_once_and_its_node_ends_in_order() {
    for share in [0, 2] {
        let table = Table::unused("truncated-served");
        let server = serve(&table);
        let url: guira::Url = format!("tcp://{}", server.addr()).parse().expect("a URL");
        let store = Store::open(&url).expect("it is served");
        let mut client = store.client().expect("there are slots");
        (0..KEYS).for_each(|number| _ = client.put(&key(number), b"value").expect("there is room"));
        drop(client);
        let bytes = std::fs::metadata(table.path()).expect("it is there").len();
        let left = bytes.checked_div(share).unwrap_or(0);
        let found = AtomicUsize::new(0);
        let errors = thread::scope(|scope| {
            let (found, url) = (&found, &url);
            let readers: Vec<_> =
                (0..READERS).map(|reader| scope.spawn(move || look_up(url, reader * 100, found))).collect();
            let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || change(url, writer))).collect();
            wait_until("the clients have read", || found.load(Ordering::Relaxed) >= 2_000);
            cut(&table, left);
            let mut errors: Vec<Error> = readers.into_iter().map(|reader| reader.join().expect("no miss")).collect();
            for writer in writers {
                let (error, next) = writer.join().expect("no panic");
                assert!(matches!(next, Error::Open(OpenError::Gone { .. })), "{next}");
                errors.push(error);
            }
            errors
        });
        println!("{left} of {bytes} bytes left: {}", errors[READERS]);
        for error in &errors[..READERS] {
            assert!(matches!(error, Error::Open(OpenError::Gone { .. })), "{error}");
            assert!(error.to_string().contains("its memory node lost it") && error.effect() == Effect::None, "{error}");
        }
        for error in &errors[READERS..] {
            let is_told = matches!(error, Error::Open(OpenError::Gone { .. })) || error.effect() == Effect::Unknown;
            assert!(is_told && [Blame::Fenced, Blame::Fabric].contains(&error.blame()), "{error}");
        }
        let (code, said) = server.fail();
        assert_eq!(code, Some(3), "{said}");
        let reason = format!("was truncated to {left} of {bytes} bytes");
        for words in [table.url(), &table.path(), &reason, "all sessions have ended", "to create a new table"] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        // Follows the advice.
        std::fs::remove_file(table.path()).expect("it is there");
        let again = serve(&table);
        assert_eq!(guira(&["get", &format!("tcp://{}", again.addr()), "key-0001"]).code, Some(1));
        again.stop("-TERM");
    }
}

/// A health probe fails while the node still runs; and a node without clients notices the loss by itself.
#[test]
fn a_probe_of_a_node_whose_table_is_lost_fails() {
    // The node runs for a second after the loss, in which no probe may come through on a busy machine.
    assert!((0..MOST_TRIES).any(|_| a_probe_fails()), "no probe was answered after the loss");
}

/// Whether a probe was answered between the loss of the table and the end of the node.
fn a_probe_fails() -> bool {
    let table = Table::unused("truncated-probed");
    let arguments = ["--backing", table.url(), "--capacity", "20k", "--metrics", "127.0.0.1:0"];
    let server = Server::start(&arguments);
    let addr = server.metrics().to_owned();
    // A client that does not listen: the node waits for it for a second before it ends.
    let deaf = TcpStream::connect(server.addr()).expect("it listens");
    let (is_over, is_probed) = (AtomicBool::new(false), AtomicBool::new(false));
    let answers = thread::scope(|scope| {
        let prober = scope.spawn(|| {
            let mut answers = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                answers.extend(health(&addr));
                is_probed.store(!answers.is_empty(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(10));
            }
            answers
        });
        wait_until("a probe is answered", || is_probed.load(Ordering::Relaxed));
        cut(&table, 0);
        let (code, said) = server.fail();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(code, Some(3), "{said}");
        prober.join().expect("no panic")
    });
    drop(deaf);
    assert!(answers.iter().any(|answer| answer.starts_with("HTTP/1.1 200") && answer.contains("\"status\":\"ok\"")));
    let lost = answers.last().expect("it answered");
    let is_failure = !lost.starts_with("HTTP/1.1 200");
    assert!(!is_failure || lost.starts_with("HTTP/1.1 503") && lost.contains("\"status\":\"memory lost\""), "{lost}");
    is_failure
}

/// The answer of /health, if there is one.
fn health(addr: &str) -> Option<String> {
    let mut stream = TcpStream::connect(addr).ok()?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    (!answer.is_empty()).then_some(answer)
}

#[test]
fn a_node_whose_table_is_removed_ends_and_says_why() {
    let table = Table::unused("removed-served");
    let server = serve(&table);
    let url = format!("tcp://{}", server.addr());
    guira(&["put", &url, "cuckoo", "Guira guira"]).expect(0);
    std::fs::remove_file(table.path()).expect("it is there");
    let (code, said) = server.fail();
    assert_eq!(code, Some(3), "{said}");
    for words in [table.url(), "its file was removed or moved", "all sessions have ended", "restart the node"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    // Follows the advice.
    let again = serve(&table);
    assert_eq!(guira(&["get", &format!("tcp://{}", again.addr()), "cuckoo"]).code, Some(1));
    again.stop("-TERM");
}

/// A load that waits for its input does not store the next records in a file that nobody finds.
#[test]
fn a_load_into_a_table_that_was_replaced_fails() {
    let table = Table::new("replaced-loaded", "bytes:64");
    let mut load =
        command(&["load", table.url(), "-", "--input", "tsv"]).stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = load.stdin.take().expect("a pipe");
    input.write_all(b"first\t1\n").expect("it reads");
    wait_until("the first record is stored", || guira(&["get", table.url(), "first"]).code == Some(0));
    let copy = format!("{}.copy", table.path());
    std::fs::copy(table.path(), &copy).expect("there is room");
    std::fs::rename(&copy, table.path()).expect("it is ours");
    wait_until("the load ends", || {
        let _ = input.write_all(b"later\t2\n");
        load.try_wait().expect("it is our child").is_some()
    });
    let run = Run::of(load.wait_with_output().expect("it has ended"), &["load"]).expect(3);
    assert!(run.stderr.contains("its file was replaced by another one; nothing was changed"), "{}", run.stderr);
}
