//! Changes that depend on the current value: incr, which loses no count, and cas.

use std::process::Child;

use crate::common::{Run, Table, command, guira, guira_with_input};

#[test]
fn a_counter_is_made_and_added_to() {
    let table = Table::new("incr", "bytes:64");
    let url = table.url();
    assert_eq!(guira(&["incr", url, "hits"]).expect(0).text(), "1\n");
    assert_eq!(guira(&["incr", url, "hits", "--by", "41"]).expect(0).text(), "42\n");
    assert_eq!(guira(&["incr", url, "hits", "--by", "-50"]).expect(0).text(), "-8\n");
    assert_eq!(guira(&["get", url, "hits"]).expect(0).text(), "-8", "it is text");
    let json = |arguments: &[&str]| guira(&[arguments, &["--format", "json"]].concat()).expect(0).json();
    assert_eq!(json(&["incr", url, "hits"]), serde_json::json!({"value": "-7", "created": false}));
    assert_eq!(json(&["incr", url, "new", "--by=0"]), serde_json::json!({"value": "0", "created": true}));
    assert_eq!(json(&["incr", url, "6b", "--hex"])["value"], "1");
    assert_eq!(guira(&["get", url, "k"]).expect(0).text(), "1");
}

#[test]
fn a_counter_of_a_fixed_format_is_a_number() {
    let table = Table::new("incr-fixed", "fixed:4:2");
    let url = table.url();
    let incr = |by: &str, code| guira(&["incr", url, "7", "--numbers", "--by", by]).expect(code);
    assert_eq!(incr("258", 0).text(), "258\n");
    assert_eq!(guira(&["get", url, "07000000", "--hex"]).expect(0).text(), "0201\n", "little-endian");
    assert_eq!(incr("65277", 0).text(), "65535\n");
    for by in ["1", "-65536"] {
        assert!(incr(by, 3).stderr.contains("from 0 to 2^16 - 1; nothing was changed"));
    }
    assert_eq!(incr("-65535", 0).text(), "0\n");
    assert_eq!(guira(&["incr", url, "abcd"]).expect(0).text(), "1\n", "the key may be text");
    assert_eq!(guira(&["get", url, "61626364", "--hex"]).expect(0).text(), "0100\n");
    assert!(guira(&["incr", url, "abcd", "--binary"]).expect(2).stderr.contains("has 8 bytes"));
}

/// A program and the shell add to one counter, in every format that has room for it.
#[test]
fn programs_and_the_shell_share_counters() {
    for entry in ["bytes:64", "fixed:6:8"] {
        let table = Table::new("shared", entry);
        let store = guira::Store::open(table.url()).expect("it is ours");
        let mut client = store.client().expect("a slot is free");
        assert_eq!(client.increment(b"visits", 41).expect("it is added"), 41);
        assert_eq!(guira(&["incr", table.url(), "visits"]).expect(0).text(), "42\n");
        assert_eq!(client.increment(b"visits", 1).expect("it is added"), 43);
        assert_eq!(guira(&["incr", table.url(), "events", "--binary"]).expect(0).text(), "1\n");
        assert_eq!(client.increment(b"events", 1).expect("it is added"), 2);
        assert!(guira(&["incr", table.url(), "events", "--by=-3"]).expect(3).stderr.contains("from 0 to 2^64 - 1"));
        assert_eq!(client.get(b"events").expect("it is read").as_deref(), Some(&2_u64.to_le_bytes()[..]));
    }
}

#[test]
fn a_value_that_cannot_be_added_to_is_unchanged() {
    let table = Table::new("incr-refused", "bytes:64");
    let url = table.url();
    for value in ["ten", "", "007", "1 "] {
        guira(&["put", url, "k", value]).expect(0);
        let error = guira(&["incr", url, "k", "--format", "json"]).expect(3).error();
        assert_eq!((&error["blame"], &error["effect"]), (&"misuse".into(), &"none".into()), "{error}");
        assert_eq!(guira(&["get", url, "k"]).expect(0).text(), value);
    }
    let most = i128::MAX.to_string();
    guira(&["put", url, "k", &most]).expect(0);
    assert!(guira(&["incr", url, "k"]).expect(3).stderr.contains("would exceed its range"));
    assert_eq!(guira(&["get", url, "k"]).expect(0).text(), most);
    guira(&["incr", url, "k", "--by", "one"]).expect(2);
    guira(&["incr", Table::unused("incr-none").url(), "k"]).expect(1);
}

/// Two processes at a time add to one counter: no addition is lost.
#[test]
fn no_count_is_lost() {
    const ROUNDS: u32 = 25;
    let table = Table::new("incr-races", "bytes:64");
    let start = |by: &str| command(&["incr", table.url(), "hits", "--by", by]).spawn().expect("the program starts");
    let end = |child: Child| {
        Run::of(child.wait_with_output().expect("it ends"), &["incr"]).expect(0);
    };
    for _ in 0..ROUNDS {
        let both = [start("3"), start("-1")];
        both.into_iter().for_each(end);
    }
    assert_eq!(guira(&["get", table.url(), "hits"]).expect(0).text(), (2 * ROUNDS).to_string());
}

#[test]
fn a_value_is_swapped_if_it_is_the_expected_one() {
    let table = Table::new("cas", "bytes:64");
    let url = table.url();
    let json = |arguments: &[&str], code| {
        let run = guira(&[&["cas", url], arguments, &["--format", "json"]].concat()).expect(code);
        run.json()["outcome"].as_str().expect("a word").to_owned()
    };
    assert_eq!(json(&["k", "red", "grey"], 1), "missing");
    guira(&["put", url, "k", "red"]).expect(0);
    assert_eq!(json(&["k", "grey", "brown"], 1), "different");
    assert_eq!(json(&["k", "red", "grey"], 0), "swapped");
    let different = guira(&["cas", url, "k", "red", "brown"]).expect(1);
    assert!(different.stderr.contains("is not the expected one; nothing was changed"), "{}", different.stderr);
    assert_eq!(guira(&["cas", url, "k", "grey", ""]).expect(0).text(), "swapped the value of \"k\"\n");
    assert_eq!(json(&["6b", "", "ff00", "--hex"], 0), "swapped");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"\xff\0").unwrap();
    let path = file.path().to_str().unwrap();
    assert_eq!(json(&["k", "--expected-file", path, "new"], 0), "swapped");
    assert_eq!(json(&["k", "new", "--value-file", path], 0), "swapped");
    guira_with_input(&["cas", url, "k", "--expected-file", path, "--value-file", "-"], b"-5").expect(0);
    assert_eq!(json(&["k", "-5", "-6"], 0), "swapped");
    assert_eq!(guira(&["get", url, "k"]).expect(0).text(), "-6");
    for arguments in [
        &["cas", url, "k"][..],
        &["cas", url, "k", "a"],
        &["cas", url, "k", "a", "b", "c"],
        &["cas", url, "k", "a", "b", "--value-file", path],
        &["cas", url, "k", "--expected-file", "-", "--value-file", "-"],
    ] {
        guira(arguments).expect(2);
    }
    guira(&["cas", url, "k", "a", "--value-file", "/no/such/file"]).expect(3);
}
