//! The list of tables, their owners and their clients.

use std::io::Write;
use std::process::Stdio;

use crate::common::{Table, command, guira};
use guira_testing::wait_until;
use serde_json::Value;

/// A table as `guira list` shows it.
fn listed(table: &Table) -> Option<Value> {
    let all = guira(&["list", "--format", "json"]).expect(0).json();
    let shown = table.url().parse::<guira::Url>().expect("a URL").to_string();
    all["tables"].as_array().expect("a list").iter().find(|listed| listed["url"] == shown).cloned()
}

#[test]
fn tables_are_listed_with_their_clients() {
    let table = Table::new("listed", "bytes:64");
    guira(&["put", table.url(), "k", "v"]).expect(0);
    let seen = listed(&table).expect("it is there");
    let size = std::fs::metadata(table.path()).unwrap().len();
    assert_eq!((&seen["state"], &seen["format"], &seen["mode"]), (&"table".into(), &"bytes:64".into(), &0o600.into()));
    assert_eq!((&seen["entries"], &seen["entries_error"], &seen["file_bytes"]), (&1.into(), &0.into(), &size.into()));
    assert_eq!((&seen["clients"]["live"], &seen["max_clients"]), (&0.into(), &40.into()));

    let mut loader = command(&["load", table.url(), "-", "--input", "tsv"]).stdin(Stdio::piped()).spawn().unwrap();
    loader.stdin.as_mut().expect("a pipe").write_all(b"k\tv\n").expect("it reads");
    wait_until("a client that lives is listed", || listed(&table).expect("it is there")["clients"]["live"] == 1);
    loader.kill().and_then(|()| loader.wait()).expect("it ends");
    let clients = &listed(&table).expect("it is there")["clients"];
    assert_eq!((&clients["live"], &clients["dead"]), (&0.into(), &1.into()), "listing recovers no client");
    guira(&["destroy", table.url()]).expect(0);
    assert_eq!(listed(&table), None);
}

#[test]
fn other_files_are_not_listed_and_damaged_tables_are() {
    let (table, second, foreign) =
        (Table::new("whole", "fixed:8:8"), Table::unused("second"), Table::unused("foreign"));
    std::fs::write(foreign.path(), vec![7; 10_000]).unwrap();
    assert_eq!(listed(&foreign), None);
    // A second name of a table that is destroyed.
    std::fs::hard_link(table.path(), second.path()).unwrap();
    guira(&["destroy", table.url()]).expect(0);
    assert_eq!(listed(&second).expect("it has a name")["state"], "destroyed");
    let cut = Table::new("cut", "fixed:8:8");
    let file = std::fs::OpenOptions::new().write(true).open(cut.path()).unwrap();
    file.set_len(20_000).unwrap();
    let seen = listed(&cut).expect("it begins like a table");
    assert_eq!(seen["state"], "damaged", "{seen}");
    assert!(seen["reason"].as_str().is_some_and(|reason| reason.contains("truncated")), "{seen}");
    let human = guira(&["list"]).expect(0).text();
    assert!(human.contains(&format!("{}: destroyed", second.url())), "{human}");
    assert!(human.contains(&format!("{}: cannot open", cut.url())), "{human}");
}

/// Memory, not address space, also of a table that this user cannot open.
#[test]
fn the_size_is_that_of_the_memory() {
    let table = Table::unused("size");
    guira(&["create", table.url()]).expect(0);
    let file = std::fs::OpenOptions::new().write(true).open(table.path()).unwrap();
    file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
    let seen = listed(&table).expect("it begins like a table");
    assert_eq!(seen["state"], "damaged", "{seen}");
    assert!(seen["file_bytes"].as_u64() > Some(1 << 30) && seen["stored_bytes"].as_u64() < Some(1 << 30), "{seen}");
    let human = guira(&["list"]).expect(0).text();
    let (_, fields) = human.split_once(table.url()).expect("it is listed");
    // Behind its owner and the number. A long URL has a line of its own.
    assert_eq!(fields.split_whitespace().nth(2), Some("MiB"), "{fields}");
}

/// Any user may create a file of any name beside the tables: control characters in it are escaped in every message.
#[test]
fn control_characters_in_names_are_escaped() {
    const HOSTILE: &str = "\u{1b}[2J\u{202e}\r";
    let table = Table::new(HOSTILE, "bytes:64");
    let is_harmless = |text: &str| text.chars().all(|c| c == '\n' || !(c.is_control() || c == '\u{202e}'));
    // In a path, and in a URL.
    let written = ["\\u{1b}[2J\\u{202e}\\u{d}", "%1B%5B2J\\u{202e}%0D"];
    let check = |run: crate::common::Run, code: i32| {
        let run = run.expect(code);
        let said = run.text() + &run.stderr;
        let is_shown = written.iter().any(|name| said.contains(name));
        assert!(is_harmless(&said) && is_shown, "guira {}: {said:?}", run.arguments.escape_debug());
    };
    check(guira(&["list"]), 0);
    check(guira(&["stat", table.url()]), 0);
    check(guira(&["top", table.url(), "--once", "--every", "50ms"]), 0);
    assert!(listed(&table).is_some(), "by its own name");
    std::fs::OpenOptions::new().write(true).open(table.path()).unwrap().set_len(20_000).unwrap();
    check(guira(&["list"]), 0);
    check(guira(&["stat", table.url()]), 3);
}

#[test]
fn the_list_fits_80_columns() {
    let table = Table::unused(&"long-name-".repeat(10));
    guira(&["create", table.url(), "--capacity", "1000"]).expect(0);
    let human = guira(&["list"]).expect(0).text();
    let mut lines = human.lines().skip_while(|line| *line != table.url());
    assert!(lines.next().is_some(), "a long name stands alone, and whole: {human}");
    let fields: Vec<&str> = lines.next().expect("what is said of it").split_whitespace().collect();
    assert!(fields.len() > 5 && fields.contains(&"%"), "{fields:?}");
    // Why some other table cannot be opened is said in one sentence, however long.
    let rows = human.lines().filter(|line| !line.contains(": cannot open "));
    for line in rows.filter(|line| !line.starts_with("shm://") || line.split_whitespace().count() > 6) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}
