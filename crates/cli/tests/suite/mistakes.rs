//! A mistake is an error of one line that says why, with the documented exit code, in both formats.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use crate::common::{Table, command, guira, guira_with_input};
use crate::serve::Server;

/// Runs a command that must fail, in both formats: one line on standard error, nothing on standard output.
#[track_caller]
fn refused(arguments: &[&str], code: i32, blame: &str, message: &str) {
    let human = guira(arguments).expect(code);
    assert!(human.stdout.is_empty(), "{}", human.text());
    assert!(human.stderr.contains(message), "{message:?} is not in: {}", human.stderr);
    let json = guira(&[arguments, &["--format", "json"]].concat()).expect(code);
    assert!(json.stdout.is_empty(), "{}", json.text());
    let error = json.error();
    assert_eq!(error["blame"], blame, "{error}");
    assert_eq!(error["effect"], "none", "{error}");
    let said = error["message"].as_str().expect("the message is text");
    assert!(said.contains(message), "{message:?} is not in: {error}");
}

#[test]
fn mistyped_urls_are_misuse() {
    for command in ["get", "del"] {
        refused(&[command, "smh://cache", "k"], 2, "misuse", "smh");
        refused(&[command, "cache", "k"], 2, "misuse", "shm://NAME");
        refused(&[command, "shm://", "k"], 2, "misuse", "empty");
        refused(&[command, "shm://a/b", "k"], 2, "misuse", "slash");
        refused(&[command, "file://relative", "k"], 2, "misuse", "absolute");
    }
    refused(&["ycsb", "tcp://host:", "--workload", "a"], 2, "misuse", "tcp://HOST:PORT");
}

#[test]
fn a_missing_table_is_not_found() {
    let table = Table::unused("missing");
    for arguments in [
        &["get", table.url(), "k"][..],
        &["put", table.url(), "k", "v"],
        &["del", table.url(), "k"],
        &["load", table.url(), "-"],
        &["dump", table.url()],
        &["stat", table.url()],
        &["check", table.url()],
    ] {
        let hint = format!(
            "{0} does not exist; create it, here for 10,000 keys, with: guira create {0} --capacity 10k",
            table.url()
        );
        refused(arguments, 1, "misuse", &hint);
    }
    refused(&["destroy", table.url()], 1, "misuse", "does not exist; there is nothing to destroy");
    refused(&["ycsb", table.url(), "--workload", "a", "--no-load"], 1, "misuse", "does not exist");
    refused(&["create", "file:///no/such/directory/x", "--capacity", "10"], 3, "misuse", "directory");
}

#[test]
fn impossible_tables_are_refused() {
    let table = Table::unused("impossible");
    let url = table.url();
    refused(&["create", url, "--capacity", "0"], 2, "misuse", "at least 1 key");
    refused(&["create", url, "--capacity", "ten"], 2, "misuse", "not a number");
    refused(&["create", url, "--capacity", "-1"], 2, "misuse", "-1");
    refused(&["create", url, "--capacity", "100000000000G"], 2, "misuse", "not a number");
    refused(&["create", url, "--capacity", "10", "--entry", "fixed:8"], 2, "misuse", "fixed:K:V");
    refused(&["create", url, "--capacity", "10", "--entry", "bytes:7"], 2, "misuse", "bytes:N");
    refused(&["create", url, "--capacity", "10", "--preset", "fast"], 2, "misuse", "hardened");
    refused(&["create", url, "--capacity", "10", "--mode", "999"], 2, "misuse", "octal");
    refused(&["create", url, "--capacity", "10", "--extent-bytes", "1Q"], 2, "misuse", "not a size");
    refused(&["create", url, "--capacity", "10", "--max-clients", "0"], 2, "misuse", "max-clients");
    assert!(!std::path::Path::new(&table.path()).exists());
}

#[test]
fn a_table_beyond_the_memory_is_refused_and_leaves_nothing() {
    let table = Table::unused("beyond");
    for capacity in ["1000G", "10000000G", "1000000000G"] {
        let run = guira(&["create", table.url(), "--capacity", capacity, "--entry", "fixed:8:8", "--format", "json"]);
        assert!(matches!(run.code, Some(2 | 3)), "{capacity}: {:?}", run.code);
        let error = run.error();
        assert!(["full", "misuse"].contains(&error["blame"].as_str().unwrap()), "{error}");
        if error["blame"] == "full" {
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("/dev/shm has only ") && message.contains("there is room for "), "{message}");
        }
        assert!(!std::path::Path::new(&table.path()).exists());
    }
}

#[test]
fn no_error_advises_to_destroy_a_file_that_is_not_a_table() {
    let table = Table::unused("foreign");
    std::fs::write(table.path(), b"junk").unwrap();
    let run = guira(&["create", table.url(), "--capacity", "10"]).expect(1);
    assert!(run.stderr.contains("choose another name") && !run.stderr.contains("guira destroy"), "{}", run.stderr);
    assert_eq!(std::fs::read(table.path()).unwrap(), b"junk");
}

#[test]
fn extent_options_are_refused_for_fixed_formats() {
    let table = Table::unused("space");
    for option in [["--record-bytes", "100"], ["--extent-bytes", "1MiB"]] {
        let asked = ["create", table.url(), "--capacity", "10", "--entry", "fixed:8:8"];
        refused(&[&asked[..], &option[..]].concat(), 2, "misuse", "every record in its row");
    }
    for bytes in ["0", "100MiB"] {
        refused(&["create", table.url(), "--capacity", "10", "--record-bytes", bytes], 2, "misuse", "record bytes");
    }
    assert!(!std::path::Path::new(&table.path()).exists());
}

#[test]
fn an_existing_table_is_never_replaced() {
    let table = Table::new("existing", "fixed:8:8");
    let hint = format!("{0} already exists; nothing was changed; guira destroy {0} removes it", table.url());
    refused(&["create", table.url(), "--capacity", "10"], 1, "misuse", &hint);
    refused(&["quickstart", "/etc/passwd", "--input", "tsv", "--url", table.url()], 2, "misuse", "line 1");
    guira(&["check", table.url()]).expect(0);
}

#[test]
fn keys_of_a_fixed_format_have_its_length() {
    let table = Table::new("fixed", "fixed:4:2");
    let url = table.url();
    refused(&["get", url, "abc"], 2, "misuse", "--hex");
    refused(&["put", url, "abcde", "xy"], 2, "misuse", "the key has 5 bytes");
    refused(&["put", url, "abcd", "xyz"], 2, "misuse", "the value has 3 bytes");
    refused(&["put", url, "0011", "xy", "--hex"], 2, "misuse", "the key has 2 bytes");
    refused(&["put", url, "0011223", "0011", "--hex"], 2, "misuse", "two digits per byte");
    refused(&["put", url, "abcd", "--value-file", "/etc/hostname"], 2, "misuse", "takes values of exactly 2");
    refused(&["put", url, "abcd", "--value-file", "/no/such/file"], 3, "host", "cannot open /no/such/file");
    refused(&["put", url, "abcd", "xy", "--value-file", "-"], 2, "misuse", "--value-file");
    refused(&["put", url, "abcd"], 2, "misuse", "VALUE");
    guira(&["put", url, "abcd", "xy"]).expect(0);
    assert_eq!(guira(&["get", url, "61626364", "--hex"]).expect(0).text(), "7879\n");
}

/// A key on the command line may have any bytes, and one that looks like an option gets a hint.
#[test]
fn keys_of_any_bytes_are_given_as_they_are() {
    let table = Table::new("any-bytes", "bytes:64");
    let url = table.url();
    let latin = OsStr::from_bytes(b"caf\xe9");
    let run = |words: &[&OsStr]| command(&[]).args(words).output().expect("the program starts");
    let done = run(&["put".as_ref(), url.as_ref(), latin, latin]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(run(&["get".as_ref(), url.as_ref(), latin]).stdout, b"caf\xe9");
    let swapped = run(&["cas".as_ref(), url.as_ref(), latin, latin, "new".as_ref()]);
    assert!(swapped.status.success(), "{}", String::from_utf8_lossy(&swapped.stderr));
    assert_eq!(guira(&["get", "--hex", url, "636166e9"]).expect(0).text(), "6e6577\n");
    refused(&["get", url, "-v"], 2, "misuse", "'-- -v'");
    guira(&["put", url, "--", "-v", "-w"]).expect(0);
    assert_eq!(guira(&["get", url, "--", "-v"]).expect(0).text(), "-w");
}

#[test]
fn a_damaged_file_is_corrupt() {
    let table = Table::new("truncated", "fixed:8:8");
    let url = table.url();
    let wrong = guira(&["get", "shm://a/b", "k"]).expect(2).stderr;
    assert!(!wrong.contains("changed"), "{wrong}");
    let file = OpenOptions::new().write(true).open(table.path()).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    refused(&["get", table.url(), "abcdefgh"], 3, "corrupt", "truncated");
    refused(&["stat", table.url()], 3, "corrupt", "truncated");
    file.set_len(10).unwrap();
    for arguments in [&["get", url, "abcdefgh"][..], &["dump", url], &["stat", url], &["check", url], &["top", url]] {
        let said = guira(arguments).stderr;
        assert!(!said.contains("changed"), "a command that only reads changes nothing: {said}");
    }
    refused(&["check", url, "--repair"], 3, "corrupt", "nothing was changed");
    std::fs::write(table.path(), vec![7; 100_000]).unwrap();
    refused(&["put", table.url(), "abcdefgh", "12345678"], 3, "corrupt", "not a Guira table");
    refused(&["destroy", table.url()], 3, "corrupt", "not a Guira table");
}

#[test]
fn check_finds_what_was_overwritten() {
    let table = Table::new("overwritten", "fixed:8:8");
    guira(&["put", table.url(), "nest egg", "12345678"]).expect(0);
    let bytes = std::fs::read(table.path()).unwrap();
    // The first copy is in the client's redo record, which is no longer needed; the last is in a row.
    let at = bytes.windows(8).rposition(|window| window == b"12345678").expect("a value lies somewhere");
    let file = OpenOptions::new().write(true).open(table.path()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"X", at as u64).unwrap();
    let check = guira(&["check", table.url()]).expect(1);
    assert!(check.text().contains("is DAMAGED, 1 problem"), "{}", check.text());
    let check = guira(&["check", table.url(), "--format", "json"]).expect(1).json();
    assert_eq!((&check["clean"], &check["problems"][0]["kind"]), (&false.into(), &"row_torn".into()));
}

#[test]
fn a_lock_that_stays_taken_is_waited_for_until_the_deadline() {
    let table = Table::unused("deadline");
    let url = table.url();
    let created = guira(&["create", url, "--capacity", "1000", "--format", "json"]).expect(0).json();
    let stat = guira(&["stat", url, "--format", "json"]).expect(0).json();
    guira(&["put", url, "k", "v", "--deadline", "500ms"]).expect(0);
    // Every lock is given to a client that never releases it: 16 bits each, at the start of the device space, which
    // follows the header's page and the main space.
    let device_at = (4096 + created["main_bytes"].as_u64().unwrap()).next_multiple_of(4096);
    let locks = usize::try_from(stat["physical_locks"].as_u64().unwrap()).unwrap();
    assert_eq!(stat["lock_bits"], 16);
    let file = OpenOptions::new().write(true).open(table.path()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7, 0].repeat(locks), device_at).unwrap();
    for arguments in [&["update", url, "k", "w"][..], &["del", url, "k"], &["put", url, "new", "w"]] {
        let error = guira(&[arguments, &["--deadline", "30ms", "--format", "json"]].concat()).expect(3).error();
        assert_eq!((&error["blame"], &error["effect"]), (&"busy".into(), &"none".into()), "{error}");
        let said = error["message"].as_str().unwrap();
        let waited = said.split(" after ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        let waited_ms: u64 = waited.parse().unwrap_or_else(|_| panic!("no waiting time: {said}"));
        assert!((30..10_000).contains(&waited_ms), "not the default of 10 s: {said}");
    }
    let lines = guira_with_input(&["load", url, "-", "--deadline", "1ms", "--format", "json"], b"a\tb\n").expect(3);
    assert_eq!(lines.error()["blame"], "busy");
    assert_eq!(guira(&["get", url, "k", "--deadline", "1ms"]).expect(0).stdout, b"v", "a lookup needs no lock");
    refused(&["put", url, "k", "v", "--deadline", "5"], 2, "misuse", "not a time");
}

#[test]
fn a_full_table_says_so() {
    let table = Table::unused("full");
    guira(&["create", table.url(), "--capacity", "10", "--entry", "fixed:8:8", "--preset", "tiny"]).expect(0);
    let lines: String = (0..5000).map(|n| format!("key{n:05}\t12345678\n")).collect();
    let run = guira_with_input(&["load", table.url(), "-", "--format", "json"], lines.as_bytes()).expect(3);
    let error = run.error();
    assert_eq!((&error["blame"], &error["effect"]), (&"full".into(), &"done".into()), "{error}");
    assert!(error["message"].as_str().unwrap().starts_with("line "), "{error}");
    guira(&["check", table.url()]).expect(0);
}

#[test]
fn mistakes_on_the_command_line_are_misuse() {
    for arguments in [&[][..], &["frobnicate"], &["get"], &["get", "shm://a", "k", "--frob"], &["create"]] {
        let run = guira(arguments).expect(2);
        assert!(run.stdout.is_empty());
        let json = guira(&[arguments, &["--format=json"]].concat()).expect(2);
        assert_eq!(json.error()["blame"], "misuse");
    }
    refused(&["ycsb", "shm://guira-cli-none", "--workload", "e"], 2, "misuse", "A, A', B, B', C, D, F, W");
    refused(&["ycsb", "shm://guira-cli-none", "--workload", "a", "--threads", "0"], 2, "misuse", "threads");
    refused(&["quickstart", "-"], 2, "misuse", "name a file");
    refused(&["quickstart", "/no/such/file"], 3, "host", "/no/such/file");
}

/// The same failure has the same exit code in every command.
#[test]
fn exit_codes_follow_one_table() {
    let (table, missing) = (Table::new("codes", "bytes:64"), Table::unused("codes-missing"));
    let (url, none) = (table.url(), missing.url());
    let no_file = "/no/such/file";
    guira(&["put", url, "k", "v"]).expect(0);
    for (code, arguments) in [
        (1, &["get", url, "none"][..]),
        (1, &["update", url, "none", "v"]),
        (1, &["del", url, "none"]),
        (1, &["insert", url, "k", "v"]),
        (1, &["create", url, "--capacity", "10"]),
        (1, &["get", none, "k"]),
        (1, &["put", none, "k", "v"]),
        (1, &["destroy", none]),
        (1, &["kick", url, "--slot", "1"]),
        (2, &["get", url, "k", "--numbers"]),
        (2, &["put", url, "k", "0", "--hex"]),
        (2, &["kick", url, "--slot", "9999"]),
        (2, &["create", "tcp://host:7711", "--capacity", "10"]),
        (2, &["create", none, "--capacity", "0"]),
        (3, &["put", url, "k", "--value-file", no_file]),
        (3, &["load", url, no_file]),
        (3, &["quickstart", no_file]),
        (3, &["serve", "--capacity", "10", "--token-file", no_file]),
        (3, &["create", "file:///no/such/directory/x", "--capacity", "10"]),
        (3, &["get", "file:///dev", "k"]),
        (3, &["token", "/dev/null"]),
        (3, &["man", "--out", "/proc/none/x"]),
        (3, &["get", "tcp://127.0.0.1:1", "k"]),
    ] {
        guira(arguments).expect(code);
    }
}

#[cfg(not(feature = "peers"))]
#[test]
fn a_program_without_peers_says_how_to_build_one_with_them() {
    let run = guira(&["bench", "peers", "--quick", "--format", "json"]).expect(2);
    let message = run.error()["message"].to_string();
    assert!(message.contains("cargo run --release -p guira-cli --features peers -- bench peers"), "{message}");
}

/// A program that speaks HTTP to a node, or a client that reaches an HTTP server, learns the mistake.
#[test]
fn other_protocols_are_named_on_both_sides() {
    let server = Server::start(&["--capacity", "1000"]);
    // The second has fewer bytes than the header of a frame.
    for request in ["GET / HTTP/1.1\r\nHost: mem1\r\n\r\n", "GET /\r\n"] {
        let mut browser = TcpStream::connect(server.addr()).expect("a connection");
        browser.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = String::new();
        browser.read_to_string(&mut answer).expect("text, and the end of the stream");
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("memory node of Guira"), "{answer}");
    }

    let web = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("tcp://{}", web.local_addr().expect("an address"));
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = web.accept().expect("the client");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").expect("it is sent");
        stream
    });
    let error = guira(&["get", &url, "heron"]).expect(3).stderr;
    assert!(error.contains("those of HTTP, not of Guira's protocol"), "{error}");
    drop(serving.join().expect("no panic"));

    let error = guira(&["destroy", &format!("tcp://{}", server.addr())]).expect(2).stderr;
    assert!(error.contains("stop the node there") && error.contains("--backing"), "{error}");
}

/// Writes another format version into a table's superblock.
fn make_other_version(table: &Table) {
    let bytes = std::fs::read(table.path()).expect("it is there");
    let at = bytes.windows(8).position(|window| window == b"GUIRATAB").expect("a superblock");
    let file = OpenOptions::new().write(true).open(table.path()).expect("it is ours");
    file.write_all_at(&[bytes[at + 8] + 1], at as u64 + 8).expect("it is written");
}

/// A table of another version is not damaged: its records can be carried over, and the blame is of its own.
#[test]
fn a_table_of_another_version_says_how_its_records_are_carried_over() {
    let table = Table::new("version", "bytes:64");
    make_other_version(&table);
    for arguments in [&["get", table.url(), "k"][..], &["put", table.url(), "k", "v"], &["check", table.url()]] {
        refused(arguments, 3, "version", "(guira dump), and load that into a new table with this one (guira load)");
    }
    let said = guira(&["doctor", table.url()]).expect(1).text();
    assert!(said.contains("another version of Guira") && !said.contains("guira check"), "{said}");
    guira(&["destroy", table.url()]).expect(0);
}

/// A file that cannot be read, and a device that this host does not have, are not mistakes in the arguments.
#[test]
fn what_the_host_lacks_is_not_a_mistake() {
    let serve = ["serve", "--listen", "127.0.0.1:0", "--capacity", "1"];
    let is_blamed = |arguments: &[&str]| {
        let error = guira(&[arguments, &["--format", "json"]].concat()).expect(3).error();
        assert_eq!((&error["blame"], &error["effect"]), (&"host".into(), &"none".into()), "{arguments:?}: {error}");
    };
    is_blamed(&["load", "shm://x", "/no/such/file", "--create"]);
    is_blamed(&[&serve[..], &["--token-file", "/no/such/file"]].concat());
    is_blamed(&[&serve[..], &["--tls-cert", "/no/f", "--tls-key", "/no/f", "--tls-client-ca", "/no/f"]].concat());
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut found| found.next().is_some()) {
        return println!("NOT RUN: this host has an RDMA device");
    }
    for device in ["", "?dev=mlx5_9"] {
        is_blamed(&["get", &format!("rdma://127.0.0.1{device}"), "k"]);
    }
    is_blamed(&[&serve[..], &["--rdma", "mlx5_9"]].concat());
}
