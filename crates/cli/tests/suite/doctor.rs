//! `guira doctor`: the checks of this machine, of files, and of memory nodes.

use std::net::TcpListener;

use crate::common::{Table, guira, mounting_shell};
use crate::serve::Server;
use serde_json::Value;

/// Returns the report, after checking that the exit code and the field `fine` agree with its checks.
#[track_caller]
fn report(arguments: &[&str]) -> Vec<Value> {
    let run = guira(&[&["doctor", "--format", "json"], arguments].concat());
    let (code, report) = (run.code, run.json());
    let checks = report["checks"].as_array().expect("checks").clone();
    let is_bad = |check: &Value| ["missing", "failed"].contains(&check["state"].as_str().expect("a state"));
    let is_fine = !checks.iter().any(is_bad);
    assert_eq!((code, &report["fine"]), (Some(if is_fine { 0 } else { 1 }), &is_fine.into()), "{report}");
    for check in &checks {
        let states = ["fine", "missing", "failed", "not_needed"].map(Value::from);
        assert!(states.contains(&check["state"]), "{check}");
        assert!(check["detail"].as_str().is_some_and(|detail| !detail.contains('\n')), "{check}");
    }
    checks
}

/// Returns the names and states of the checks.
fn states(checks: &[Value]) -> Vec<(&str, &str)> {
    checks
        .iter()
        .map(|check| (check["name"].as_str().expect("a name"), check["state"].as_str().expect("a state")))
        .collect()
}

#[track_caller]
fn the<'c>(checks: &'c [Value], name: &str) -> &'c Value {
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {checks:?}"))
}

#[test]
fn a_machine_is_checked_for_rdma_and_shared_memory() {
    let checks = report(&[]);
    for name in ["libibverbs", "libmlx5", "kernel module ib_uverbs", "devices", "locked memory of a client"] {
        the(&checks, name);
    }
    assert_eq!(the(&checks, "shared memory")["state"], "fine", "the tests need it");
    let has_devices = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut found| found.next().is_some());
    let devices = the(&checks, "devices");
    assert_eq!(devices["state"] == "missing", !has_devices, "{devices}");
    let human = guira(&["doctor"]);
    if !has_devices {
        let text = human.expect(1).text();
        assert!(text.contains("rdma link add rxe0 type rxe netdev "), "{text}");
        assert!(text.ends_with("not fine\n"), "{text}");
    }
}

#[test]
fn a_region_to_serve_needs_room() {
    let checks = report(&["--serve", "900TiB"]);
    let shared_memory = the(&checks, "shared memory");
    assert_eq!(shared_memory["state"], "missing", "{shared_memory}");
    assert!(shared_memory["help"].as_str().is_some_and(|help| help.contains("--shm-size")), "{shared_memory}");
    assert!(the(&checks, "locked memory of a server")["detail"].as_str().unwrap().contains("1.8 PiB"));
    guira(&["doctor", "--serve", "much"]).expect(2);
}

#[test]
fn tables_in_files_need_no_rdma() {
    let table = Table::new("doctor", "fixed:8:8");
    let shm = [("RDMA", "not_needed"), ("shared memory", "fine"), ("table", "fine")];
    assert_eq!(states(&report(&[table.url()])), shm);
    let by_path = format!("file://{}", table.path());
    let file = [("RDMA", "not_needed"), ("shared memory", "not_needed"), ("table", "fine")];
    assert_eq!(states(&report(&[&by_path])), file);
    let text = guira(&["doctor", table.url()]).expect(0).text();
    assert!(text.contains("opens for reading and changing: fixed:8:8, 0 of "), "{text}");
    assert!(text.ends_with("all that is needed is fine\n"), "{text}");
    let clients = &guira(&["list", "--format", "json"]).expect(0).json()["tables"];
    let listed = clients.as_array().unwrap().iter().find(|listed| listed["url"] == table.url()).unwrap();
    assert_eq!((&listed["clients"]["live"], &listed["clients"]["dead"]), (&0.into(), &0.into()));

    guira(&["destroy", table.url()]).expect(0);
    let checks = report(&[table.url()]);
    assert_eq!(states(&checks)[2], ("table", "missing"));
    let help = format!("create the table: guira create {} --capacity 10k", table.url());
    assert_eq!(the(&checks, "table")["help"], help.as_str());
    let text = guira(&["doctor", table.url()]).expect(1).text();
    assert!(text.contains(&format!("-> {help}\n")), "{text}");

    std::fs::write(table.path(), vec![7; 10_000]).unwrap();
    assert_eq!(states(&report(&[table.url()]))[2], ("table", "failed"));
}

/// A table that grows needs room in its own file system, wherever that is; one of fixed size has its memory.
#[test]
fn a_table_that_grows_needs_a_file_system_with_room() {
    let script = |create: &str| {
        format!(
            "mount -t tmpfs -o size=64m tmpfs . && cd \"$PWD\" && guira create file://$PWD/t {create} >&2 && \
             guira doctor file://$PWD/t | tail -2; head -c 1G /dev/zero > fill; guira doctor file://$PWD/t"
        )
    };
    let Some(grows) = mounting_shell(&script("--max-clients 8")) else { return };
    let text = grows.expect(1).text();
    let (before, after) = text.split_once("all that is needed is fine\n").expect("it was fine at first");
    assert!(before.contains("; its file system has ") && before.contains(" free of 64.0 MiB"), "{text}");
    assert!(after.contains("missing     table") && after.contains("too little for it to grow"), "{text}");
    let fixed = mounting_shell(&script("--max-clients 8 --capacity 1000")).expect("it was possible");
    assert!(!fixed.expect(0).text().contains("file system has"));
}

#[test]
fn the_way_to_a_memory_node_is_checked_step_by_step() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    let token = token.to_str().unwrap();
    guira(&["token", token]).expect(0);
    let server = Server::start(&["--capacity", "1000", "--token-file", token]);
    let url = format!("tcp://{}", server.addr());
    let names = ["RDMA", "shared memory", "host name", "port", "session", "table"];
    let without = report(&[&url]);
    let expected = ["not_needed", "not_needed", "fine", "fine", "failed"];
    assert_eq!(states(&without), names.into_iter().zip(expected).collect::<Vec<_>>());
    assert!(the(&without, "session")["help"].as_str().unwrap().contains("GUIRA_TOKEN_FILE"));

    let mut command = crate::common::command(&["doctor", &url]);
    let output = command.env("GUIRA_TOKEN_FILE", token).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("opens for reading and changing: bytes:64, 0 of "), "{text}");
    server.stop("-TERM");
    assert_eq!(*states(&report(&[&url])).last().unwrap(), ("port", "failed"));

    // A port that accepts, and says something else.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = format!("tcp://{}", listener.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, &[b'x'; 4096]).unwrap();
        // Until the client has read it and gone.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    assert_eq!(*states(&report(&[&other])).last().unwrap(), ("session", "failed"));
    answering.join().unwrap();
    assert_eq!(*states(&report(&["tcp://no-such-host.invalid"])).last().unwrap(), ("host name", "failed"));
}
