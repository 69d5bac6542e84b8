//! `guira serve`, as clients, service managers and Prometheus see it. What clients do with the bytes is tested
//! elsewhere; here they greet the node in the words of its protocol.
//!
//! Proves:
//!
//! - `guira serve` is ready when it says so. Clients notice whether a restarted node has the same memory. The node
//!   refuses to listen on a public address without a token, admits clients by their tokens and certificates, reads both
//!   again on SIGHUP, ends with its terminal, logs each client, stops in order and promptly, and reports to its service
//!   manager, to Prometheus and to users;
//! - 256 slow HTTP clients do not delay `/health` or `/metrics`;
//! - the commands of the guides work on two hosts (`examples/two-hosts.sh`);
//! - the systemd unit is valid, if `systemd-analyze` is installed;
//! - `guira top` draws itself at every size, and in a terminal emulator (tmux, installed like the other tools) it
//!   follows the table, the window, keys and signals, and restores the terminal.
//!
//! Cannot show: what clients do through the node.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{PROGRAM, Run, Table, command, guira, guira_with_input, heeding_signals, sh};
use guira_network::wire::{
    CloseReason, Fabric, Grant, Header, Hello, Kind, Token, Welcome, append, from_wire, to_wire,
};
use guira_testing::{ScratchFolder, patience, wait_until};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A program that serves.
pub struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
    arguments: String,
    ready: Value,
}

impl Server {
    /// Starts `guira serve` on a free port, and waits until it is ready.
    #[track_caller]
    pub fn start(arguments: &[&str]) -> Server {
        let all = [&["serve", "--listen", "127.0.0.1:0", "--format", "json"], arguments].concat();
        Server::spawn(&mut command(&all), &all)
    }

    #[track_caller]
    fn spawn(command: &mut Command, arguments: &[&str]) -> Server {
        let mut child = command.spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe was asked for"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("it says something");
        if line.is_empty() {
            let mut stderr = String::new();
            let _ = child.stderr.take().expect("a pipe").read_to_string(&mut stderr);
            let _ = child.wait();
            panic!("guira {} ended: {stderr}", arguments.join(" "));
        }
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        Server { child, lines, arguments: arguments.join(" "), ready: said["ready"].clone() }
    }

    pub fn addr(&self) -> &str {
        let url = self.ready["urls"][0].as_str().expect("a URL");
        url.strip_prefix("tcp://").expect("the fabric of hosts")
    }

    pub fn signal(&self, signals: &[&str]) {
        for signal in signals {
            let sent =
                Command::new("kill").args([*signal, &self.child.id().to_string()]).status().expect("kill starts");
            assert!(sent.success(), "{signal}");
        }
    }

    /// Waits for the end, and returns the exit code and the last line.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("text");
        let mut stderr = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
        assert!(!stderr.contains("panicked"), "guira {}: {stderr}", self.arguments);
        (self.child.wait().expect("it ends").code(), rest)
    }

    /// Waits until the program fails by itself, and returns the exit code and standard error.
    #[track_caller]
    pub fn fail(mut self) -> (Option<i32>, String) {
        let mut stderr = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
        (self.child.wait().expect("it ends").code(), stderr)
    }

    /// Returns the address of its metrics.
    pub fn metrics(&self) -> &str {
        let url = self.ready["metrics"].as_str().expect("they were asked for");
        url.strip_prefix("http://").and_then(|url| url.strip_suffix("/metrics")).expect("an address")
    }

    /// Stops it in order, and returns what it says then.
    #[track_caller]
    pub fn stop(self, signal: &str) -> Value {
        self.signal(&[signal]);
        let (code, said) = self.end();
        assert_eq!(code, Some(0), "{said}");
        let object: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        object["stopped"].clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already where the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that speaks the wire protocol.
struct Peer(TcpStream);

impl Peer {
    fn connect(addr: &str) -> Peer {
        let stream = TcpStream::connect(addr).expect("it listens");
        stream.set_read_timeout(Some(patience())).expect("a time");
        Peer(stream)
    }

    fn send(&mut self, kind: Kind, body: &[u64]) {
        let mut words = Vec::new();
        append(&mut words, kind, 1, body);
        to_wire(&mut words);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.0.write_all(&bytes).expect("it reads");
    }

    fn receive(&mut self) -> (Kind, Vec<u64>) {
        let header = self.words(2);
        let header = Header::decode([header[0], header[1]]).expect("a frame");
        (header.kind, self.words(header.words - 2))
    }

    fn words(&mut self, count: usize) -> Vec<u64> {
        let mut bytes = vec![0; 8 * count];
        self.0.read_exact(&mut bytes).expect("it answers");
        let (chunks, _) = bytes.as_chunks::<8>();
        let mut words: Vec<u64> = chunks.iter().map(|chunk| u64::from_ne_bytes(*chunk)).collect();
        from_wire(&mut words);
        words
    }

    fn greet(&mut self, token: Option<Token>) -> Result<Welcome, CloseReason> {
        let hello =
            Hello { fabric: Fabric::Tcp, wanted: Grant::ReadWrite, token, prior_session: None, sample_words: 8 };
        self.send(Kind::Hello, &hello.encode());
        match self.receive() {
            (Kind::Welcome, body) => Ok(Welcome::decode(&body).expect("a welcome")),
            (Kind::Close, body) => Err(CloseReason::decode(&body).expect("a farewell")),
            (kind, _) => panic!("{kind:?}"),
        }
    }
}

fn welcome(server: &Server) -> Welcome {
    Peer::connect(server.addr()).greet(None).expect("no token is required")
}

fn token_of(path: &Path) -> Token {
    let text = fs::read_to_string(path).expect("a token");
    let word = |digits: &str| u64::from_str_radix(digits, 16).expect("digits");
    Token([word(&text[..16]), word(&text[16..32])])
}

/// A new token file.
pub fn token_file(directory: &Path, name: &str) -> (String, Token) {
    let path: PathBuf = directory.join(name);
    let text = path.to_str().expect("text").to_owned();
    guira(&["token", &text]).expect(0);
    let token = token_of(&path);
    (text, token)
}

fn get(addr: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(patience())).expect("a time");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, text) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), text.to_owned())
}

#[test]
fn memory_is_served_until_a_signal_and_is_new_each_time() {
    let first = Server::start(&["--capacity", "1000"]);
    assert_eq!((&first.ready["backing"], &first.ready["created"]), (&"memory".into(), &true.into()));
    let mut peer = Peer::connect(first.addr());
    let welcome_first = peer.greet(None).expect("no token is required");
    assert_eq!(welcome_first.grant, Grant::ReadWrite);
    assert_eq!(welcome_first.atomic_write_unit, u64::MAX, "who dies leaves no half WRITE, nor does the node");
    assert_eq!(Value::from(welcome_first.main_bytes), first.ready["main_bytes"]);
    assert_ne!(welcome_first.sample, [0; 8], "a table begins there");
    let stopped = first.stop("-TERM");
    assert_eq!((&stopped["signal"], &stopped["sessions"]), (&"SIGTERM".into(), &1.into()));
    let mut last = Vec::new();
    assert!(peer.0.read_to_end(&mut last).is_ok(), "told, and closed");

    let second = Server::start(&["--capacity", "1000"]);
    assert_ne!(welcome(&second).region, welcome_first.region);
    assert_eq!(second.stop("-INT")["signal"], "SIGINT");
}

/// The memory of a node grows with what its clients store, and no further than it may.
#[test]
fn a_table_grows_behind_a_node() {
    let server = Server::start(&["--capacity", "1000", "--max-capacity", "1M", "--max-memory", "24MiB"]);
    assert!(server.ready["grows"] == true && server.ready["max_capacity"].as_u64() >= Some(1_000_000));
    let url = format!("tcp://{}", server.addr());
    let lines = |count: u64| -> String {
        (0..count).map(|n| format!("key {n}\tvalue {}\n", "x".repeat(n as usize % 90))).collect()
    };
    guira_with_input(&["load", &url, "-"], lines(20_000).as_bytes()).expect(0);
    let stat = guira(&["stat", &url]).expect(0).text();
    assert!(stat.contains("it grows to ") && stat.contains("which grow to "), "{stat}");
    assert!(guira(&["check", &url]).expect(0).text().contains("is sound: "));
    let refused = guira_with_input(&["load", &url, "-"], lines(300_000).as_bytes()).expect(3).stderr;
    assert!(refused.contains("the memory node's limit (--max-memory) has only "), "{refused}");
    assert_eq!(guira(&["get", &url, "key 19999"]).expect(0).text(), format!("value {}", "x".repeat(19_999 % 90)));
    server.stop("-TERM");
}

/// A new table fits the limit, or is refused before it is created; one that exists is served, and the node says so.
#[test]
fn the_limit_of_memory_is_that_of_every_table() {
    let table = Table::unused("limit");
    // A port that is taken: no node starts here.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it listens").to_string();
    let backing = ["serve", "--listen", &address, "--backing", table.url()];
    for (more, allowed) in
        [(&["--max-memory", "1K"][..], "1.0 KiB"), (&["--capacity", "1M", "--max-memory", "8MiB"], "8.0 MiB")]
    {
        let refused = guira(&[&backing[..], more].concat()).expect(2).stderr;
        assert!(refused.contains(&format!("--max-memory allows {allowed}: ")), "{refused}");
    }
    assert!(!Path::new(&table.path()).exists());
    guira(&["create", table.url(), "--capacity", "1000"]).expect(0);
    let server = Server::start(&["--backing", table.url(), "--max-memory", "1K"]);
    let differences = server.ready["differences"].to_string();
    assert!(differences.contains("of memory already, not at most 1.0 KiB"), "{differences}");
    server.stop("-TERM");
}

/// A daemon whose standard output was closed when it was started serves, and stops in order.
#[test]
fn a_node_needs_no_standard_output() {
    let table = Table::unused("mute");
    let script = format!("exec guira serve --listen 127.0.0.1:0 --backing {} --capacity 1000 >&-", table.url());
    let folder = ScratchFolder::new();
    let mut child = sh(heeding_signals("sh"), &folder).arg(script).spawn().expect("sh runs");
    wait_until("it has created its table", || Path::new(&table.path()).exists());
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a child");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_session_timeout_is_in_whole_seconds() {
    // A port that is taken: no node starts here.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it listens").to_string();
    for refused in ["500ms", "1ns", "1.5s", "0s", "70000s"] {
        let arguments = ["serve", "--session-timeout", refused, "--capacity", "1", "--listen", &address];
        let said = guira(&arguments).expect(2).stderr;
        assert!(said.contains("whole seconds"), "{said}");
    }
    Server::start(&["--session-timeout", "2000ms"]).stop("-TERM");
}

#[test]
fn a_table_with_a_name_is_created_served_found_again_and_told_from_another() {
    let table = Table::unused("serve");
    let backing = ["--backing", table.url()];
    let first = Server::start(&[&backing[..], &["--capacity", "1000", "--entry", "fixed:8:8"]].concat());
    assert_eq!((&first.ready["created"], &first.ready["entry"]), (&true.into(), &"fixed:8:8".into()));
    guira(&["put", table.url(), "8 bytes!", "8 BYTES!"]).expect(0);
    let seen = welcome(&first);
    assert_eq!(seen.atomic_write_unit, 8, "local clients may die in the middle");
    first.stop("-TERM");

    let second = Server::start(&backing);
    assert_eq!((&second.ready["created"], &second.ready["differences"]), (&false.into(), &Value::Array(vec![])));
    assert_eq!(welcome(&second).region, seen.region, "the same bytes");
    assert_eq!(guira(&["get", table.url(), "8 bytes!"]).expect(0).text(), "8 BYTES!");
    second.stop("-TERM");

    let third = Server::start(&[&backing[..], &["--capacity", "1M", "--entry", "bytes:64"]].concat());
    let differences = third.ready["differences"].as_array().expect("a list").clone();
    assert_eq!(differences.len(), 2, "{differences:?}");
    assert!(differences[0].as_str().is_some_and(|text| text.contains("fixed:8:8, not bytes:64")), "{differences:?}");
    third.stop("-TERM");

    guira(&["destroy", table.url()]).expect(0);
    let fourth = Server::start(&[&backing[..], &["--capacity", "1000"]].concat());
    assert_ne!(welcome(&fourth).region, seen.region, "new bytes under the same name");
    fourth.stop("-TERM");
}

/// Containers may have boot ids of their own (LXC, systemd-nspawn). A node that is started again in another one, over
/// the same memory, keeps its clients, and the table is not said to be from before the last boot.
#[test]
fn a_node_that_moves_to_another_container_keeps_its_clients() {
    let directory = tempfile::tempdir().expect("a directory");
    let in_container = |name: &str, arguments: &[&str]| {
        let boot_id = directory.path().join(name);
        fs::copy("/proc/sys/kernel/random/uuid", &boot_id).expect("a random id");
        let script = r#"mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@""#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(boot_id).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    if !in_container("none", &["true"]).output().is_ok_and(|run| run.status.success()) {
        return println!("skipped: this user may not make mount namespaces");
    }
    let table = Table::unused("moved");
    let serve = |name: &str, addr: &str| {
        let arguments = [PROGRAM, "serve", "--backing", table.url(), "--listen", addr, "--capacity", "1000"];
        let arguments = [&arguments[..], &["--format", "json"]].concat();
        Server::spawn(&mut in_container(name, &arguments), &arguments)
    };
    let first = serve("a", "127.0.0.1:0");
    let (addr, seen) = (first.addr().to_owned(), welcome(&first));
    let mut load = command(&["load", &format!("tcp://{addr}"), "-"]).stdin(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = load.stdin.take().expect("a pipe was asked for");
    stdin.write_all(b"first\t1\n").expect("the program reads");
    wait_until("the first record is stored", || guira(&["get", table.url(), "first"]).code == Some(0));
    drop(first);
    let second = serve("b", &addr);
    assert_eq!(welcome(&second).region, seen.region, "the same memory");
    stdin.write_all(b"second\t2\n").expect("the program reads");
    drop(stdin);
    Run::of(load.wait_with_output().expect("it ends"), &["load"]).expect(0);
    guira(&["get", table.url(), "second"]).expect(0);
    let stat = in_container("c", &[PROGRAM, "stat", table.url()]).output().expect("it runs");
    let said = String::from_utf8_lossy(&stat.stdout);
    assert!(stat.status.success() && !said.contains("before the last boot"), "{said}");
    second.stop("-TERM");
}

/// The guide's commands, run on two hosts: network namespaces, where this user may have any.
#[test]
fn two_hosts_share_a_table() {
    let is_permitted = |way: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(way).args(["--net", "ip", "link", "set", "lo", "up"]);
        command.output().is_ok_and(|output| output.status.success())
    };
    if !is_permitted(&[]) && !is_permitted(&["--map-root-user"]) {
        println!("two_hosts_share_a_table: NOT RUN: network namespaces need root, or user namespaces, and ip");
        return;
    }
    let mut command = Command::new("sh");
    command.args([concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/two-hosts.sh"), "500"]);
    let output = command.env("GUIRA", PROGRAM).output().expect("sh runs");
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}{failed}");
    assert_eq!((output.status.code(), &*failed), (Some(0), ""));
    assert!(said.contains("cuckoo: Guira guira\n") && said.contains(" is sound: ") && said.contains(" 500 entries "));
}

#[test]
fn tokens_decide_who_may_do_what() {
    let directory = tempfile::tempdir().expect("a directory");
    let (writers, token) = token_file(directory.path(), "writers");
    let (readers, reader_token) = token_file(directory.path(), "readers");
    let arguments = ["--capacity", "1000", "--token-file", &writers, "--read-only-token-file", &readers];
    // Every address of this host: only allowed with a token.
    let all = [&["serve", "--listen", "0.0.0.0:0", "--format", "json"], &arguments[..]].concat();
    let server = Server::spawn(&mut command(&all), &all);
    let port = server.addr().rsplit_once(':').expect("a port").1.to_owned();
    let greet = |token| Peer::connect(&format!("127.0.0.1:{port}")).greet(token);
    assert_eq!(greet(Some(token)).expect("it is known").grant, Grant::ReadWrite);
    assert_eq!(greet(Some(reader_token)).expect("it is known").grant, Grant::ReadOnly);
    for wrong in [None, Some(Token([token.0[0], token.0[1] ^ 1])), Some(Token([0, 0]))] {
        assert_eq!(greet(wrong), Err(CloseReason::Unauthorized));
    }
    let url = format!("tcp://127.0.0.1:{port}");
    let with = |token_file: &str, arguments: &[&str]| {
        let output = command(arguments).env("GUIRA_TOKEN_FILE", token_file).output().expect("the program runs");
        Run::of(output, arguments)
    };
    with(&writers, &["put", &url, "cuckoo", "grey"]).expect(0);
    let bare = guira(&["get", &url, "cuckoo"]).expect(3).stderr;
    assert!(bare.contains("token missing or wrong") && bare.contains("set GUIRA_TOKEN_FILE"), "{bare}");
    assert_eq!(with(&readers, &["get", &url, "cuckoo"]).expect(0).text(), "grey");
    for arguments in [
        &["put", &url, "cuckoo", "red"][..],
        &["del", &url, "cuckoo"],
        &["check", &url, "--repair"],
        &["kick", &url, "--slot", "0"],
    ] {
        let refused = with(&readers, arguments).expect(3);
        for part in
            ["the token of this client only allows reading; nothing was changed", "GUIRA_TOKEN_FILE", "--token-file"]
        {
            assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
        }
    }
    let check = with(&readers, &["check", &url, "--format", "json"]).expect(0).json();
    assert_eq!((&check["knows_the_dead"], &check["clean"]), (&false.into(), &true.into()));
    with(&readers, &["stat", &url]).expect(0);
    assert_eq!(server.stop("-TERM")["sessions_refused"], 4);
}

/// Files with an authority, and certificates and keys of a node and of clients.
pub struct Certificates {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Certificates {
    /// Creates the certificates of `node`, for 127.0.0.1, and of `client`.
    pub fn new() -> Certificates {
        let directory = tempfile::tempdir().expect("a directory");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let ca = params.self_signed(&key).expect("a certificate").pem();
        fs::write(directory.path().join("ca.pem"), ca).expect("it is ours");
        let made = Certificates { directory, issuer: Issuer::new(params, key) };
        made.issue("node", "127.0.0.1", 4000);
        made.issue("client", "client", 4000);
        made
    }

    /// Makes `file`.pem and `file`.key, for `name`, valid until that year.
    fn issue(&self, file: &str, name: &str, until: i32) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_after = date_time_ymd(until, 1, 1);
        let (server, client) = (ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth);
        params.extended_key_usages = vec![if file == "node" { server } else { client }];
        params.serial_number = Some(SerialNumber::from(file.as_bytes().to_vec()));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let write = |suffix: &str, text: String| {
            let path = self.path(&format!("{file}.{suffix}"));
            fs::write(&path, text).expect("it is ours");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        };
        write("pem", certificate.pem());
        write("key", key.serialize_pem());
    }

    /// Writes `list`, by which the certificate in `file`.pem is revoked.
    fn revoke(&self, list: &str, file: &str) {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(file.as_bytes().to_vec()),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list_text = params.signed_by(&self.issuer).expect("a list").pem().expect("text");
        fs::write(self.path(list), list_text).expect("it is ours");
    }

    fn path(&self, file: &str) -> String {
        self.directory.path().join(file).to_str().expect("text").to_owned()
    }

    /// The options of a node.
    pub fn of_node(&self) -> Vec<String> {
        self.options([("--tls-cert", "node.pem"), ("--tls-key", "node.key"), ("--tls-client-ca", "ca.pem")])
    }

    /// The options of a client that shows this certificate.
    fn of_client(&self, name: &str) -> Vec<String> {
        let (cert, key) = (format!("{name}.pem"), format!("{name}.key"));
        self.options([("--tls-ca", "ca.pem"), ("--tls-cert", cert.as_str()), ("--tls-key", key.as_str())])
    }

    fn options(&self, options: [(&str, &str); 3]) -> Vec<String> {
        options.iter().flat_map(|(option, file)| [(*option).to_owned(), self.path(file)]).collect()
    }
}

fn run(arguments: &[&str], more: &[String]) -> Run {
    guira(&[arguments, &more.iter().map(String::as_str).collect::<Vec<_>>()].concat())
}

/// A node that other hosts reach, without any token, and clients by options or by environment variables.
#[test]
fn certificates_decide_which_clients_are_accepted() {
    let files = Certificates::new();
    let of_node = files.of_node();
    let of_node: Vec<&str> = of_node.iter().map(String::as_str).collect();
    let all = [&["serve", "--listen", "0.0.0.0:0", "--format", "json", "--capacity", "1000"], &of_node[..]].concat();
    let server = Server::spawn(&mut command(&all), &all);
    let url = format!("tcp://127.0.0.1:{}", server.addr().rsplit_once(':').expect("a port").1);
    let of_client = files.of_client("client");
    run(&["put", &url, "cuckoo", "Guira guira"], &of_client).expect(0);
    assert_eq!(run(&["get", &url, "cuckoo"], &of_client).expect(0).text(), "Guira guira");
    let variables = [("GUIRA_TLS_CA", "ca.pem"), ("GUIRA_TLS_CERT", "client.pem"), ("GUIRA_TLS_KEY", "client.key")];
    let variables = variables.map(|(variable, file)| (variable, files.path(file)));
    let output = command(&["get", &url, "cuckoo"]).envs(variables).output().expect("the program starts");
    assert_eq!(Run::of(output, &["get"]).expect(0).text(), "Guira guira");
    // Workers are processes of their own.
    let ycsb = [
        "ycsb",
        &url,
        "--workload",
        "a",
        "--records",
        "100",
        "--operations",
        "200",
        "--processes",
        "2",
        "--into-existing",
    ];
    run(&ycsb, &of_client).expect(0);

    files.issue("expired", "client", 2001);
    let told = |options: &[String], words: &str| {
        let error = run(&["get", &url, "cuckoo", "--format", "json"], options).expect(3).error();
        let message = error["message"].as_str().expect("text");
        assert!(message.contains(&url) && message.contains(words) && !message.contains("changed"), "{error}");
        assert_eq!(error["effect"], "none");
    };
    told(&[], "requires TLS");
    told(&of_client[..2], "requires a certificate");
    told(&files.of_client("expired"), "refused the certificate");
    told(&Certificates::new().of_client("client"), "not issued by a trusted authority");
    let localhost = url.replace("127.0.0.1", "localhost");
    let error = run(&["get", &localhost, "cuckoo"], &of_client).expect(3).stderr;
    assert!(error.contains("not for the name \"localhost\""), "{error}");
    let stopped = server.stop("-TERM");
    assert_eq!(stopped["sessions_refused"], 5, "{stopped}");

    let plain = Server::start(&["--capacity", "1000"]);
    let error = run(&["get", &format!("tcp://{}", plain.addr()), "cuckoo"], &of_client).expect(3).stderr;
    assert!(error.contains("does not speak TLS"), "{error}");
    assert_eq!(plain.stop("-TERM")["sessions_refused"], 1);
}

/// Tokens, certificates and revocations are reloaded on SIGHUP, and sessions continue; invalid files change
/// nothing.
#[test]
fn tokens_and_certificates_are_reloaded_on_sighup() {
    let directory = tempfile::tempdir().expect("a directory");
    let (first, old) = token_file(directory.path(), "first");
    let (second, other) = token_file(directory.path(), "second");
    let server = Server::start(&["--capacity", "1000", "--token-file", &first, "--token-file", &second]);
    let greet = |token| Peer::connect(server.addr()).greet(Some(token)).map(drop);
    assert_eq!((greet(old), greet(other)), (Ok(()), Ok(())), "both, while one takes the other's place");
    let mut guest = Peer::connect(server.addr());
    guest.greet(Some(old)).expect("it is known");
    fs::remove_file(&first).expect("it is ours");
    let (_, new) = token_file(directory.path(), "first");
    server.signal(&["-HUP"]);
    wait_until("the new token is known", || greet(new) == Ok(()));
    assert_eq!((greet(old), greet(other)), (Err(CloseReason::Unauthorized), Ok(())));
    guest.send(Kind::Count, &[]);
    assert_eq!(guest.receive().0, Kind::Counted, "its session goes on");
    fs::write(&first, "no token").expect("it is ours");
    server.signal(&["-HUP"]);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(greet(new), Ok(()), "nothing was changed");
    server.stop("-TERM");

    let files = Certificates::new();
    files.issue("other", "other", 4000);
    files.revoke("revoked.pem", "nobody");
    let of_node = [files.of_node(), vec!["--tls-client-crl".to_owned(), files.path("revoked.pem")]].concat();
    let of_node: Vec<&str> = of_node.iter().map(String::as_str).collect();
    let server = Server::start(&[&["--capacity", "1000"], &of_node[..]].concat());
    let url = format!("tcp://{}", server.addr());
    let put = |client: &str| run(&["put", &url, "cuckoo", "Guira guira"], &files.of_client(client));
    put("client").expect(0);
    put("other").expect(0);
    let error = put("node").expect(3).stderr;
    assert!(error.contains("refused the certificate"), "a node's certificate is no client's: {error}");
    files.revoke("revoked.pem", "client");
    server.signal(&["-HUP"]);
    wait_until("the certificate is revoked", || put("client").code == Some(3));
    put("other").expect(0);
    server.stop("-TERM");
}

/// The audit log has sessions with their token or name, refused clients and fenced sessions, in JSON.
#[test]
fn sessions_are_written_to_the_audit_log() {
    let directory = tempfile::tempdir().expect("a directory");
    let (first, _) = token_file(directory.path(), "first");
    let (second, token) = token_file(directory.path(), "second");
    let (readers, reader_token) = token_file(directory.path(), "readers");
    let tokens = ["--token-file", &first, "--token-file", &second, "--read-only-token-file", &readers];
    let mut server = Server::start(&[&["--capacity", "1000"], &tokens[..]].concat());
    let mut stderr = BufReader::new(server.child.stderr.take().expect("a pipe"));
    let mut next = || {
        let mut line = String::new();
        stderr.read_line(&mut line).expect("text");
        let line: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        line["audit"].clone()
    };
    let mut writer = Peer::connect(server.addr());
    writer.greet(Some(token)).expect("it is known");
    let opened = next();
    let writer_addr = writer.0.local_addr().expect("an address").to_string();
    assert_eq!((&opened["event"], &opened["peer"]), (&"session_opened".into(), &writer_addr.as_str().into()));
    assert_eq!((&opened["token"], &opened["may_write"], &opened["session"]), (&2.into(), &true.into(), &1.into()));
    assert!(opened["time_ms"].as_u64().is_some_and(|time| time > 1_600_000_000_000));
    Peer::connect(server.addr()).greet(Some(Token([1, 2]))).expect_err("the token is unknown");
    let refused = next();
    assert_eq!(refused["event"], "refused");
    assert!(refused["reason"].as_str().is_some_and(|reason| reason.contains("token")), "{refused}");
    let mut reader = Peer::connect(server.addr());
    reader.greet(Some(reader_token)).expect("it is known");
    let opened = next();
    assert_eq!((&opened["read_only_token"], &opened["may_write"]), (&1.into(), &false.into()));
    let mut victim = Peer::connect(server.addr());
    victim.greet(Some(token)).expect("it is known");
    next();
    victim.send(Kind::Hold, &[9]);
    victim.receive();
    writer.send(Kind::Fence, &[9]);
    writer.receive();
    let fenced = next();
    assert_eq!((&fenced["event"], &fenced["session"], &fenced["by_session"]), (&"fenced".into(), &3.into(), &1.into()));
    assert_eq!(fenced["by_peer"], writer_addr.as_str());
    let ended = next();
    assert_eq!(
        (&ended["event"], &ended["slots"], &ended["dropped"]),
        (&"session_ended".into(), &1.into(), &true.into())
    );
    server.signal(&["-TERM"]);
    assert!([next(), next()].iter().all(|ended| ended["event"] == "session_ended"), "the last ones are written, too");
    server.child.wait().expect("it ends");

    let files = Certificates::new();
    let of_node = files.of_node();
    let of_node: Vec<&str> = of_node.iter().map(String::as_str).collect();
    let mut server = Server::start(&[&["--capacity", "1000"], &of_node[..]].concat());
    let mut stderr = BufReader::new(server.child.stderr.take().expect("a pipe"));
    run(&["put", &format!("tcp://{}", server.addr()), "cuckoo", "Guira guira"], &files.of_client("client")).expect(0);
    let mut line = String::new();
    stderr.read_line(&mut line).expect("text");
    assert!(line.contains("\"name\":\"client\""), "{line}");
}

/// A SIGHUP from a closed terminal ends the node, and its clients get a reason.
#[test]
fn a_terminal_that_closes_ends_the_node() {
    let directory = tempfile::tempdir().expect("a directory");
    let said = directory.path().join("said");
    let serve = "serve --listen 127.0.0.1:0 --format json --capacity 1000";
    let serve = format!("exec env --default-signal=HUP {PROGRAM} {serve} > {}", said.display());
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &serve, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut terminal) = terminal.spawn() else { return println!("skipped: there is no program `script`") };
    let ready = || fs::read_to_string(&said).unwrap_or_default().lines().next().map(str::to_owned);
    wait_until("it serves", || ready().is_some_and(|line| line.ends_with('}')));
    let ready: Value = serde_json::from_str(&ready().expect("a line")).expect("JSON");
    let url = ready["ready"]["urls"][0].as_str().expect("a URL").to_owned();
    let mut guest = Peer::connect(url.strip_prefix("tcp://").expect("the fabric of hosts"));
    guest.greet(None).expect("no token is required");
    // The terminal is gone with the program that made it.
    terminal.kill().expect("it runs");
    terminal.wait().expect("it ends");
    let (kind, body) = guest.receive();
    assert_eq!((kind, CloseReason::decode(&body)), (Kind::Close, Ok(CloseReason::Shutdown)));
    wait_until("it says why", || fs::read_to_string(&said).is_ok_and(|said| said.contains("\"SIGHUP\"")));
}

/// The guide's commands make certificates that work, with this host called localhost.
#[test]
fn the_commands_of_the_guide_make_certificates() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/memory-node.md");
    let guide = fs::read_to_string(guide).expect("the guide is there");
    let commands = guide.lines().skip_while(|line| !line.starts_with("openssl req -x509"));
    let commands: Vec<&str> = commands.take_while(|line| !line.is_empty()).collect();
    assert_eq!(commands.len(), 4, "{commands:#?}");
    let directory = tempfile::tempdir().expect("a directory");
    let script = commands.join("\n").replace("issue mem1", "issue localhost");
    match Command::new("openssl").arg("version").output() {
        Ok(output) if String::from_utf8_lossy(&output.stdout).starts_with("OpenSSL 3") => {}
        _ => return println!("OpenSSL 3 is not available here: its commands were not tried"),
    }
    let made = Command::new("sh").arg("-euc").arg(script).current_dir(&directory).output().expect("a shell");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = |file: &str| directory.path().join(file).to_str().expect("text").to_owned();
    let [ca, cert, key] = ["ca.pem", "localhost.pem", "localhost.key"].map(path);
    let of_node = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let server = Server::start(&[&["--capacity", "1000"], &of_node[..]].concat());
    let url = format!("tcp://localhost:{}", server.addr().rsplit_once(':').expect("a port").1);
    let [cert, key] = ["client.pem", "client.key"].map(path);
    guira(&["put", "--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key, &url, "cuckoo", "Guira guira"]).expect(0);
    assert_eq!(server.stop("-TERM")["sessions_refused"], 0);
}

#[test]
fn keys_are_kept_and_certificates_are_whole() {
    let files = Certificates::new();
    let (of_node, of_client) = (files.of_node(), files.of_client("client"));
    let serve = |options: &[String], code: i32, words: &str| {
        let error = run(&["serve", "--capacity", "1000", "--format", "json"], options).expect(code).error();
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{error}");
        assert_eq!(error["effect"], "none", "{error}");
    };
    serve(&of_node[..4], 2, "--tls-client-ca FILE");
    serve(&of_node[4..], 2, "--tls-cert FILE");
    for (options, words) in [(&of_client[2..], "--tls-ca"), (&of_client[..4], "--tls-key")] {
        let error = run(&["get", "tcp://127.0.0.1:1", "cuckoo"], options).expect(2).stderr;
        assert!(error.contains(words), "{error}");
    }
    let key = files.path("node.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("it is ours");
    serve(&of_node, 3, "chmod 600");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("it is ours");
    fs::copy(files.path("client.key"), &key).expect("it is ours");
    serve(&of_node, 3, "it does not match the certificate");
    fs::write(&key, "secret").expect("it is ours");
    serve(&of_node, 3, "private key");
    fs::remove_file(&key).expect("it is ours");
    serve(&of_node, 3, &key);
    fs::set_permissions(files.path("client.key"), fs::Permissions::from_mode(0o604)).expect("it is ours");
    let error = run(&["get", "tcp://127.0.0.1:1", "cuckoo"], &of_client).expect(3).stderr;
    assert!(error.contains("chmod 600"), "{error}");
}

#[test]
fn mistakes_are_one_line_that_says_what_to_do() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, _) = token_file(directory.path(), "token");
    guira(&["token", &file]).expect(3);
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let run: Run = guira(&[&["serve", "--format", "json"], arguments].concat()).expect(code);
        let error = run.error();
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{error}");
        assert_eq!(error["effect"], "none", "{error}");
    };
    let capacity = ["--capacity", "1000"];
    for addr in ["0.0.0.0:7711", "[::]:7711", "192.0.2.1:7711", "[::ffff:192.0.2.1]:7711"] {
        refused(&[&capacity[..], &["--listen", "127.0.0.1:0", "--listen", addr]].concat(), 2, "guira token FILE");
    }
    refused(&["--preset", "paper"], 2, "--capacity N");
    refused(&["--preset", "paper", "--backing", "shm://guira-cli-test-missing"], 2, "--capacity N");
    refused(&["--backing", "cache", "--capacity", "10"], 2, "scheme");
    refused(&[&capacity[..], &["--listen", ":7711"]].concat(), 2, "--listen 127.0.0.1:7711");
    refused(&["--listen", "7711"], 2, "127.0.0.1:7711");
    refused(&["--metrics", "::1"], 2, "[::1]:7712");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
    refused(&[&capacity[..], &["--token-file", &file]].concat(), 3, "chmod 600");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
    fs::write(&file, "secret").expect("it is ours");
    refused(&[&capacity[..], &["--token-file", &file]].concat(), 3, "32 hexadecimal digits");
    refused(&[&capacity[..], &["--token-file", "/nonexistent"]].concat(), 3, "/nonexistent");

    let server = Server::start(&capacity);
    refused(&[&capacity[..], &["--listen", server.addr()]].concat(), 3, server.addr());
    server.stop("-TERM");
}

/// Every address that a name has on this host is listened on, and the printed URLs can be opened.
#[test]
fn a_node_listens_on_the_addresses_of_a_name() {
    let arguments = ["--listen", "localhost:0", "--capacity", "1000", "--metrics", "localhost:0"];
    let server = Server::start(&arguments);
    let urls = server.ready["urls"].as_array().expect("URLs");
    assert!(urls.len() >= 2, "the address of every test, and at least one of localhost: {urls:?}");
    for url in urls {
        guira(&["put", url.as_str().expect("a URL"), "cuckoo", "Guira guira"]).expect(0);
    }
    assert!(get(server.metrics(), "/health").0.starts_with("HTTP/1.1 200 "));
    server.stop("-TERM");
}

/// Link-local addresses have a zone: its name or its number, in `--listen` and in URLs, also after `%25`.
#[test]
fn zones_of_link_local_addresses_are_names_or_numbers() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = r#"
        ip link set lo up && ip addr add fe80::71/64 dev lo nodad || exit 77
        for zone in lo 1 25lo; do
            rm -f ready # The line of the node before is not that of this one.
            "$GUIRA" serve --listen "[fe80::71%$zone]:7711" --insecure --capacity 1000 --format json >ready 2>log &
            node=$!
            until grep -qs urls ready || ! kill -0 $node; do sleep 0.05; done
            printed=$(grep -o 'tcp://[^"]*' ready)
            for url in "$printed" 'tcp://[fe80::71%25lo]' 'tcp://[fe80::71%1]:7711'; do
                "$GUIRA" put "$url" a 1 || exit 1
            done
            kill $node
            wait $node || exit 2
        done
        echo "$printed"
        "$GUIRA" get 'tcp://[fe80::71]' a 2>&1
        true"#;
    let unshared = |option: &str| Command::new("unshare").args([option, "--net", "true"]).output();
    let is_possible = |option: &&str| unshared(option).is_ok_and(|output| output.status.success());
    let Some(option) = ["--net", "--map-root-user"].into_iter().find(is_possible) else {
        return println!("skipped: this user may not make a network of its own");
    };
    let mut command = Command::new("unshare");
    command.args([option, "--net", "sh", "-c", script]).env("GUIRA", PROGRAM).current_dir(directory.path());
    let output = command.output().expect("it runs");
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.code() == Some(77) {
        return println!("skipped: a link-local address cannot be added: {failed}");
    }
    assert!(output.status.success(), "{said}{failed}");
    assert!(said.contains("tcp://[fe80::71%lo]:7711"), "the zone is named: {said}");
    assert!(said.contains("needs the interface of this host to it, as in [fe80::1%eth0]"), "{said}");
}

/// A program takes a session for its table and one for each client, and a refused one is told so.
#[test]
fn a_full_node_says_how_many_sessions_are_needed() {
    let server = Server::start(&["--capacity", "1000", "--sessions", "1"]);
    let url = format!("tcp://{}", server.addr());
    guira(&["get", &url, "cuckoo"]).expect(1);
    let refused = guira(&["put", &url, "cuckoo", "Guira guira"]).expect(3);
    let words = "maximum number of sessions (1); a program takes one, and one more for each client";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    server.stop("-TERM");
    let server = Server::start(&["--capacity", "1000", "--sessions", "2"]);
    guira(&["put", &format!("tcp://{}", server.addr()), "cuckoo", "Guira guira"]).expect(0);
    server.stop("-TERM");
}

/// [R-DESTROY-2] A node stops when its table is destroyed, so that its service manager restarts it.
#[test]
fn a_node_whose_table_is_destroyed_ends() {
    let table = Table::unused("serve-destroyed");
    let server = Server::start(&["--backing", table.url(), "--capacity", "1000"]);
    guira(&["destroy", table.url()]).expect(0);
    assert_eq!(server.end().0, Some(3), "it ends by itself, and its service manager knows that it failed");
}

#[test]
fn the_second_signal_ends_it_at_once() {
    let server = Server::start(&["--capacity", "1000"]);
    // A client that does not listen: the first signal alone ends the node only after a second.
    let _deaf = TcpStream::connect(server.addr()).expect("it listens");
    // Both are there when it goes on.
    server.signal(&["-STOP", "-INT", "-TERM", "-CONT"]);
    let (code, said) = server.end();
    assert!([Some(130), Some(143)].contains(&code) && said.is_empty(), "{code:?}: {said}");
}

#[test]
fn metrics_are_served_over_http() {
    let server = Server::start(&["--capacity", "1000", "--metrics", "127.0.0.1:0"]);
    let url = server.ready["metrics"].as_str().expect("a URL").to_owned();
    let addr = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).expect("where they are");
    let metric = |name: &str| -> f64 {
        let (head, text) = get(addr, "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
        let line = text.lines().find(|line| line.split_once(' ').is_some_and(|(key, _)| key == name));
        line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or_else(|| panic!("{name} in\n{text}"))
    };
    assert_eq!(metric("guira_sessions_open"), 0.0);
    let mut peer = Peer::connect(server.addr());
    peer.greet(None).expect("no token is required");
    assert_eq!((metric("guira_sessions_open"), metric("guira_sessions_opened_total")), (1.0, 1.0));
    // Bytes are counted when they are sent, which the peer may see first.
    wait_until("what the peer has sent and received is counted", || {
        metric("guira_received_bytes_total") >= 72.0 && metric("guira_sent_bytes_total") >= 96.0
    });
    assert!(metric("process_start_time_seconds") > 1.7e9);
    let (head, health) = get(addr, "/health");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/json"), "{head}");
    let health: Value = serde_json::from_str(&health).expect("JSON");
    assert_eq!((&health["status"], &health["sessions_open"]), (&"ok".into(), &1.into()));
    assert!(get(addr, "/").0.starts_with("HTTP/1.1 404 "));
    drop(peer);
    wait_until("the session has ended", || metric("guira_sessions_open") == 0.0);
    assert_eq!(metric("guira_sessions_ended_total{reason=\"closed\"}"), 1.0);
    server.stop("-TERM");
}

/// A probe is answered while 60, and then 1,000, connections to the same port say nothing. The server waits for each of
/// them for 5 s: far too long, if it waited for one after the other.
#[test]
fn health_is_answered_despite_silent_connections() {
    let server = Server::start(&["--capacity", "1000", "--metrics", "127.0.0.1:0"]);
    let url = server.ready["metrics"].as_str().expect("a URL").to_owned();
    let addr = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).expect("where they are");
    let mut silent = Vec::new();
    for count in [60, 1_000] {
        silent.extend((silent.len()..count).map(|_| TcpStream::connect(addr).expect("it listens")));
        let (head, _) = get(addr, "/health");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    server.stop("-TERM");
}

/// A probe that takes a moment to ask is answered while others ask a hundred times a second and do not close.
#[test]
fn health_is_answered_despite_connections_that_are_not_closed() {
    let server = Server::start(&["--capacity", "1000", "--metrics", "127.0.0.1:0"]);
    let url = server.ready["metrics"].as_str().expect("a URL").to_owned();
    let addr = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).expect("where they are");
    let ask = |stream: &mut TcpStream| stream.write_all(b"GET /health HTTP/1.1\r\nHost: node\r\n\r\n");
    let mut kept: Vec<TcpStream> = Vec::new();
    for _ in 0..20 {
        let mut probe = TcpStream::connect(addr).expect("it listens");
        for _ in 0..20 {
            let mut other = TcpStream::connect(addr).expect("it listens");
            ask(&mut other).expect("it is open");
            kept.push(other);
        }
        ask(&mut probe).expect("it is open still");
        let mut answer = String::new();
        probe.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
    }
    assert_eq!(kept.len(), 400);
    server.stop("-TERM");
}

/// A low limit on open files lowers the number of sessions: the node says so, instead of refusing connections later.
#[test]
fn the_limit_on_open_files_is_raised_and_reported() {
    let all = ["serve", "--listen", "127.0.0.1:0", "--format", "json", "--capacity", "1000"];
    let start = |limits: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\""), PROGRAM]);
        shell.args(all).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Server::spawn(&mut shell, &all)
    };
    let raised = start("ulimit -Sn 256");
    assert_eq!((&raised.ready["sessions"], &raised.ready["open_files"]), (&1_024.into(), &2_560.into()));
    raised.stop("-TERM");
    let limited = start("ulimit -n 600");
    assert_eq!((&limited.ready["sessions"], &limited.ready["open_files"]), (&44.into(), &600.into()));
    limited.stop("-TERM");
}

#[test]
fn a_service_manager_is_notified() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(patience())).expect("a time");
    let hear = || {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).expect("it tells");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--capacity", "1000", "--format", "json"];
    let server = Server::spawn(command(&arguments).env("NOTIFY_SOCKET", &path), &arguments);
    let said = hear();
    assert!(said.starts_with("READY=1\n") && said.contains(server.addr()), "{said}");
    server.stop("-TERM");
    assert!(hear().starts_with("STOPPING=1\n"));
}

/// The unit that is shipped, with the program at a path that exists here.
#[test]
fn the_unit_is_one_that_systemd_takes() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/guira.service");
    let text = fs::read_to_string(&unit).expect("it is shipped");
    let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
    let words: Vec<&str> = start.split_whitespace().skip(1).collect();
    // What systemd puts in place of its own names.
    let words: Vec<String> =
        words.iter().map(|word| word.replace("%d", "/nonexistent").replace("%t", "/nonexistent")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let run = guira(&words).expect(3);
    assert!(run.stderr.contains("/nonexistent/token"), "every option exists: {}", run.stderr);

    let directory = tempfile::tempdir().expect("a directory");
    let copy = directory.path().join("guira.service");
    fs::write(&copy, text.replace("/usr/local/bin/guira", PROGRAM)).expect("a copy");
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output() {
        Err(_) => println!("systemd-analyze is not available here: the unit was not verified"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("guira")).collect();
            assert!(output.status.success() && ours.is_empty(), "{said}");
            println!("verified by systemd-analyze");
        }
    }
}

/// The guide's commands, in two shells on one host: one client gets what another put, and the node counts both.
#[test]
fn the_commands_of_the_guide_work() {
    let directory = tempfile::tempdir().expect("a directory");
    let (file, _) = token_file(directory.path(), "guira.token");
    let server = Server::start(&["--capacity", "1M", "--token-file", &file]);
    let url = server.ready["urls"][0].as_str().expect("a URL").to_owned();
    let client = |arguments: &[&str], token: &str| {
        let output = command(arguments).env("GUIRA_TOKEN_FILE", token).output().expect("the program starts");
        Run::of(output, arguments)
    };
    client(&["put", &url, "cuckoo", "Guira guira"], &file).expect(0);
    assert_eq!(client(&["get", &url, "cuckoo"], &file).expect(0).text(), "Guira guira");
    let refused = client(&["get", &url, "cuckoo"], "").expect(3);
    assert!(refused.stderr.contains("token"), "{}", refused.stderr);
    let stat = client(&["stat", &url, "--format", "json"], &file).expect(0).json();
    assert_eq!((&stat["table"]["entries"], &stat["node_counters"]["refused_token"]), (&1.into(), &1.into()));
    assert!(stat["node_counters"]["writes"].as_u64().is_some_and(|writes| writes > 0), "{stat}");
    let human = client(&["stat", &url], &file).expect(0).text();
    assert!(human.contains("drops a session after 10 s") && human.contains("counted by the memory node"), "{human}");
    let top = client(&["top", &url, "--every", "200ms", "--format", "json"], &file).expect(0).json();
    assert_eq!((&top["table"]["entries"], &top["node"]["refused"]), (&1.into(), &1.into()));
    let own = top["node"]["rates"]["round_trips"].as_f64().expect("it looked twice");
    assert!(own < 100.0, "no client is active, and sampling itself is not counted: {top}");
    let stopped = server.stop("-TERM");
    assert!(stopped["verbs"].as_u64().is_some_and(|verbs| verbs > 0), "{stopped}");
    let gone = client(&["get", &url, "cuckoo"], &file).expect(3);
    assert!(gone.stderr.contains("cannot open tcp://"), "{}", gone.stderr);
}
