//! Which tables there are, whose they are, and who uses them.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Table, command, guira};
use serde_json::Value;

/// A table as `guira list` shows it.
fn listed(table: &Table) -> Option<Value> {
    let all = guira(&["list", "--format", "json"]).expect(0).json();
    all["tables"].as_array().expect("a list").iter().find(|listed| listed["url"] == table.url()).cloned()
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
    let until = Instant::now() + Duration::from_secs(60);
    while listed(&table).expect("it is there")["clients"]["live"] != 1 {
        assert!(Instant::now() < until, "a client that lives is listed");
        std::thread::sleep(Duration::from_millis(5));
    }
    loader.kill().and_then(|()| loader.wait()).expect("it ends");
    let clients = &listed(&table).expect("it is there")["clients"];
    assert_eq!((&clients["live"], &clients["dead"]), (&0.into(), &1.into()), "a look recovers nobody");
    guira(&["destroy", table.url()]).expect(0);
    assert_eq!(listed(&table), None);
}

#[test]
fn other_files_are_not_listed_and_damaged_tables_are() {
    let (table, second, foreign) =
        (Table::new("whole", "fixed:8:8"), Table::unused("second"), Table::unused("foreign"));
    std::fs::write(foreign.path(), vec![7; 10_000]).unwrap();
    assert_eq!(listed(&foreign), None);
    // What is left of a table whose name somebody gave to another one.
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

#[test]
fn the_list_fits_80_columns() {
    let table = Table::unused(&"long-name-".repeat(10));
    guira(&["create", table.url(), "--capacity", "1000"]).expect(0);
    let human = guira(&["list"]).expect(0).text();
    let mut lines = human.lines().skip_while(|line| *line != table.url());
    assert!(lines.next().is_some(), "a long name stands alone, and whole: {human}");
    let fields: Vec<&str> = lines.next().expect("what is said of it").split_whitespace().collect();
    assert!(fields.len() > 5 && fields.contains(&"%"), "{fields:?}");
    for line in human.lines().filter(|line| !line.starts_with("shm://") || line.split_whitespace().count() > 6) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}
