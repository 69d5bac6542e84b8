//! The second implementation of the wire: a client in Python, written from docs/wire.md alone, checks nodes of this
//! program promise by promise, hostile clients included. Takes 7 s, most of them silent clients and deadlines; without
//! python3 it says that it is not run.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use crate::serve::{Certificates, Server, token_file};
use guira_testing::patience;

/// Short enough for the checks that wait for it, and long enough that nothing else comes near it.
const SESSION_TIMEOUT: &str = "2s";
/// More than the client opens before it counts them.
const SESSIONS: &str = "64";

/// Kills the client of a test that fails.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        // It has ended already where the test went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has_python() -> bool {
    let recent = "import sys; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new("python3").args(["-c", recent]).status().is_ok_and(|status| status.success());
    if !found {
        println!("python3 3.9 or newer is not available here: the second implementation of the wire was not run");
    }
    found
}

/// Has the client check the node; stops the node when the client waits for that. Returns the lines of promises kept.
#[track_caller]
fn check(server: Server, arguments: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/wire/client.py");
    let (host, port) = server.addr().rsplit_once(':').expect("a port");
    // -B: nothing is written beside the sources.
    let mut command = Command::new("python3");
    command.arg("-B").arg(script).args([host, port]).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut client = Client(command.spawn().expect("python3 starts"));
    let stdout = BufReader::new(client.0.stdout.take().expect("a pipe was asked for"));
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut said = Vec::new();
    loop {
        match lines.recv_timeout(patience()) {
            Ok(line) => {
                println!("{line}");
                if line.starts_with("waiting") {
                    server.signal(&["-TERM"]);
                }
                said.push(line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => panic!("the client says nothing for {:?}", patience()),
        }
    }
    reader.join().expect("it reads").expect("it is heard to the end");
    assert!(client.0.wait().expect("it ends").success(), "not all promises are kept: {said:#?}");
    if said.iter().any(|line| line.starts_with("waiting")) {
        assert_eq!(server.end().0, Some(0), "the node stops in order");
    } else {
        server.stop("-TERM");
    }
    said.retain(|line| line.starts_with("ok "));
    said
}

/// Everything the client knows to check, which takes the end of the node.
#[track_caller]
fn check_all(options: &[&str], arguments: &[&str]) {
    let own = ["--capacity", "1000", "--session-timeout", SESSION_TIMEOUT, "--sessions", SESSIONS];
    let server = Server::start(&[&own[..], options].concat());
    let kept = check(server, &[&["--sessions", SESSIONS, "--until-shutdown"], arguments].concat());
    assert!(kept.len() >= 24 && kept.iter().any(|line| line.contains("connected at the end")), "{kept:#?}");
}

#[test]
fn a_client_written_from_the_document_finds_every_promise_kept() {
    if has_python() {
        check_all(&[], &[]);
    }
}

#[test]
fn a_client_written_from_the_document_finds_every_promise_kept_by_a_node_with_tokens() {
    if has_python() {
        let directory = tempfile::tempdir().expect("a directory");
        let (all, _) = token_file(directory.path(), "all");
        let (reader, _) = token_file(directory.path(), "reader");
        let options = ["--token-file", &all, "--read-only-token-file", &reader];
        check_all(&options, &options);
    }
}

#[test]
fn a_client_written_from_the_document_is_told_that_a_node_wants_tls() {
    if has_python() {
        let files = Certificates::new();
        let of_node = files.of_node();
        let of_node: Vec<&str> = of_node.iter().map(String::as_str).collect();
        let kept = check(Server::start(&[&["--capacity", "1000"], &of_node[..]].concat()), &["--tls-only"]);
        assert_eq!(kept.len(), 1, "{kept:#?}");
    }
}
