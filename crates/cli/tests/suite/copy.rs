//! A table is copied into another one while it is used, and the copy is verified.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use guira::{Store, Url};

use crate::common::{Table, guira, guira_with_input};

fn lines(range: std::ops::Range<u32>, value_bytes: usize) -> Vec<u8> {
    range.map(|i| format!("key{i}\t{i}{}\n", "x".repeat(value_bytes))).collect::<String>().into_bytes()
}

fn dumped(table: &Table) -> BTreeMap<String, String> {
    let text = guira(&["dump", table.url()]).expect(0).text();
    let pairs = text.lines().map(|line| line.split_once('\t').expect("a TAB"));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn a_copy_has_every_record_whatever_its_format() {
    let (from, to) = (Table::new("from", "bytes:64"), Table::new("to", "bytes:24"));
    let input = [lines(0..300, 4), lines(300..600, 40), lines(600..700, 2000)].concat();
    guira_with_input(&["load", from.url(), "-"], &input).expect(0);
    let run = guira(&["copy", from.url(), to.url(), "--threads", "3", "--format", "json"]).expect(0);
    let answer = run.json();
    assert_eq!((&answer["records"], &answer["stored"], &answer["removed"]), (&700.into(), &700.into(), &0.into()));
    assert_eq!((&answer["verified"], &answer["changed"], &answer["passes"]), (&true.into(), &0.into(), &1.into()));
    assert_eq!(dumped(&from), dumped(&to));
    guira(&["check", to.url()]).expect(0);

    // Into a table with records only if that is asked for; the others stay.
    let refused = guira(&["copy", from.url(), to.url()]).expect(2);
    assert!(refused.stderr.contains("already has 700 records"), "{}", refused.stderr);
    guira(&["put", to.url(), "another", "one"]).expect(0);
    guira(&["put", to.url(), "key5", "changed"]).expect(0);
    let merged = guira(&["copy", from.url(), to.url(), "--merge"]).expect(0);
    assert!(merged.text().contains("verified: "), "{}", merged.text());
    assert_eq!(guira(&["get", to.url(), "another"]).expect(0).text(), "one");
    assert_eq!(guira(&["get", to.url(), "key5"]).expect(0).text(), "5xxxx");
}

#[test]
fn tables_that_cannot_be_copied_are_refused() {
    let (from, to) = (Table::new("from", "bytes:64"), Table::new("to", "fixed:4:4"));
    let same = guira(&["copy", from.url(), from.url()]).expect(2);
    assert!(same.stderr.contains("the same table"), "{}", same.stderr);
    guira(&["copy", from.url(), Table::unused("absent").url()]).expect(1);
    guira(&["copy", Table::unused("absent").url(), to.url()]).expect(1);
    // An empty table is copied and verified, too.
    guira(&["copy", from.url(), to.url()]).expect(0);
    guira(&["put", from.url(), "long key", "long value"]).expect(0);
    let misfit = guira(&["copy", from.url(), to.url(), "--format", "json"]).expect(2);
    let error = misfit.error();
    let message = error["message"].as_str().expect("text");
    assert!(message.starts_with("key \"long key\": put: ") && message.ends_with("nothing was copied"), "{message}");
    assert_eq!((&error["blame"], &error["effect"]), (&"misuse".into(), &"none".into()));
}

/// The advice for a merge into a full table leads to a larger one with the records of both.
#[test]
fn the_advice_of_a_full_merge_keeps_what_was_there() {
    let (from, to) = (Table::new("from", "bytes:64"), Table::new("to", "bytes:64"));
    guira_with_input(&["load", from.url(), "-"], &lines(0..1000, 4)).expect(0);
    guira_with_input(&["load", to.url(), "-"], &lines(5000..5900, 4)).expect(0);
    let full = guira(&["copy", from.url(), to.url(), "--merge"]).expect(3);
    let advice: Vec<&str> =
        full.stderr.lines().filter_map(|line| line.split_once("with: guira ")).map(|(_, advice)| advice).collect();
    let [warned, told] = advice[..] else { panic!("a warning and an error: {}", full.stderr) };
    assert_eq!(warned, told, "the same twice");
    let larger = Table::unused("x");
    for line in warned.trim().split(" && guira ") {
        let line = line.replace(&format!("{}-2", to.url()), larger.url());
        guira(&line.split(' ').collect::<Vec<_>>()).expect(0);
    }
    let (from, larger) = (dumped(&from), dumped(&larger));
    assert!(from.iter().all(|(key, value)| larger.get(key) == Some(value)));
    assert!((5000..5900).all(|i| larger.contains_key(&format!("key{i}"))));
}

/// The advice for a full table leads to a larger one.
#[test]
fn the_advice_of_a_full_table_leads_to_a_larger_one() {
    let table = Table::new("full", "bytes:64");
    let full = guira_with_input(&["load", table.url(), "-"], &lines(0..3000, 4)).expect(3);
    let (_, advice) = full.stderr.split_once("with: guira ").expect("commands");
    let (create, copy) = advice.trim().split_once(" && guira ").expect("two commands");
    let larger = Table::unused("x");
    let words = |line: &str| -> Vec<String> {
        line.replace(&format!("{}-2", table.url()), larger.url()).split(' ').map(str::to_owned).collect()
    };
    for line in [create, copy] {
        let words = words(line);
        guira(&words.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
    }
    assert_eq!(dumped(&table), dumped(&larger));
    guira_with_input(&["load", larger.url(), "-"], &lines(0..2000, 4)).expect(0);
}

#[test]
fn a_copy_follows_a_table_that_changes() {
    let (from, to) = (Table::new("from", "bytes:64"), Table::new("to", "bytes:64"));
    guira_with_input(&["load", from.url(), "-"], &lines(0..800, 4)).expect(0);
    let url: Url = from.url().parse().expect("a URL");
    let store = Store::open(&url).expect("it exists");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = store.client().expect("a slot is free");
            let mut round = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                client.put(b"key1", round.to_string().as_bytes()).expect("it exists");
                client.remove(b"key2").expect("the table lives");
                client.put(b"key2", round.to_string().as_bytes()).expect("there is room");
            }
            client.remove(b"key3").expect("the table lives");
        });
        // A pass may fall between two changes.
        let run = guira(&["copy", from.url(), to.url(), "--passes", "3"]).expect(0);
        assert!(run.text().contains("\nverified: "), "{}", run.text());
        is_over.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends");
    });
    guira(&["destroy", to.url()]).expect(0);
    guira(&["create", to.url(), "--capacity", "1000"]).expect(0);
    guira(&["copy", from.url(), to.url()]).expect(0);
    assert_eq!(dumped(&from), dumped(&to));
    assert!(!dumped(&to).contains_key("key3"));
}
