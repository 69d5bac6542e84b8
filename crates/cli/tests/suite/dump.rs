//! Records are printed as they were stored; damage affects only damaged records; a failure to write the answer says
//! what was done.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use crate::common::{Run, Table, command, damage, guira, guira_with_input, shell};

/// Entries of a row of `fixed:8:8`.
const ENTRIES_PER_ROW: usize = 7;

fn records(tsv: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| line.split_once('\t').map(|(key, value)| (key.to_owned(), value.to_owned()));
    tsv.lines().map(|line| pair(line).expect("a TAB")).collect()
}

/// The rows that `guira check` finds damaged.
fn damaged_rows(table: &Table) -> BTreeSet<String> {
    let check = guira(&["check", table.url(), "--format", "json"]).expect(1).json();
    let problems = check["problems"].as_array().expect("a list").clone();
    problems.iter().map(|problem| problem["place"].as_str().expect("a place").to_owned()).collect()
}

#[test]
fn damaged_rows_are_reported_and_the_others_printed() {
    let table = Table::new("damaged-rows", "fixed:8:8");
    let stored: BTreeMap<String, String> = (0..600).map(|n| (format!("key{n:05}"), format!("value{n:03}"))).collect();
    let lines: String = stored.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
    guira_with_input(&["load", table.url(), "-"], lines.as_bytes()).expect(0);
    damage(&table, b"value007");
    damage(&table, b"value300");
    let rows = damaged_rows(&table);
    let run = guira(&["dump", table.url()]).expect(3);
    let printed = records(&run.text());
    assert!(printed.iter().all(|(key, value)| stored.get(key) == Some(value)), "nothing is invented");
    assert!(!printed.contains_key("key00007") && !printed.contains_key("key00300"));
    assert!(printed.len() + rows.len() * ENTRIES_PER_ROW >= stored.len(), "{} printed", printed.len());
    let (named, last) = run.stderr.trim_end().rsplit_once('\n').expect("several lines");
    assert_eq!(named.lines().count(), rows.len(), "{}", run.stderr);
    for line in named.lines() {
        let row = line.strip_prefix("guira: ").and_then(|line| line.split_once(": its keys were not printed"));
        assert!(rows.contains(row.expect("what it means").0), "{line}: not one of {rows:?}");
    }
    let count = if rows.len() == 1 { "1 row".to_owned() } else { format!("{} rows", rows.len()) };
    assert_eq!(last, format!("guira: {count} could not be read completely; all other records were read"));
    let json = guira(&["dump", table.url(), "--format", "json"]).expect(3);
    assert_eq!(json.text().lines().count(), printed.len());
    assert_eq!(json.stderr.lines().count(), rows.len() + 1);
    for line in json.stderr.lines() {
        let error: serde_json::Value = serde_json::from_str(line).expect("each line is an object");
        assert_eq!(
            (&error["error"]["blame"], &error["error"]["effect"]),
            (&"corrupt".into(), &"none".into()),
            "{line}"
        );
    }
}

#[test]
fn a_damaged_value_affects_only_its_key() {
    let table = Table::new("damaged-value", "bytes:64");
    let value = |n: u32| format!("{n:04}").repeat(100);
    let lines: String = (0..900).map(|n| format!("key {n}\t{}\n", value(n))).collect();
    guira_with_input(&["load", table.url(), "-"], lines.as_bytes()).expect(0);
    for n in [3, 500, 501] {
        damage(&table, value(n).as_bytes());
    }
    let run = guira(&["dump", table.url()]).expect(3);
    let printed = records(&run.text());
    let expected: BTreeMap<String, String> =
        (0..900).filter(|n| ![3, 500, 501].contains(n)).map(|n| (format!("key {n}"), value(n))).collect();
    assert!(printed == expected, "{} of {} records are printed", printed.len(), expected.len());
    let one = ": one of its records was not printed (scan: the extent of ";
    assert_eq!(run.stderr.matches(one).count(), 3, "{}", run.stderr);
    assert!(
        run.stderr.trim_end().ends_with("could not be read completely; all other records were read"),
        "{}",
        run.stderr
    );
}

#[test]
fn tables_without_values_have_numbers_as_keys() {
    let [table, copy] = ["keys", "keys-copy"].map(|name| Table::new(name, "fixed:8:0"));
    guira(&["put", table.url(), "5", "", "--numbers"]).expect(0);
    let dump = guira(&["dump", table.url(), "--numbers"]).expect(0);
    assert_eq!(dump.text(), "5\t\n");
    guira_with_input(&["load", copy.url(), "-", "--numbers"], &dump.stdout).expect(0);
    assert_eq!(guira(&["dump", copy.url(), "--numbers"]).expect(0).text(), "5\t\n");
}

#[test]
fn numbers_and_digits_go_in_and_come_out() {
    let table = Table::new("notations", "fixed:8:4");
    let url = table.url();
    assert_eq!(guira(&["put", url, "258", "7", "--numbers"]).expect(0).text(), "inserted 258\n");
    assert_eq!(guira(&["get", url, "258", "--numbers"]).expect(0).text(), "7\n");
    assert_eq!(guira(&["get", url, "0201000000000000", "--hex"]).expect(0).text(), "07000000\n");
    let found = guira(&["get", url, "258", "--numbers", "--format", "json"]).expect(0).json();
    assert_eq!(found, serde_json::json!({"found": true, "key": "258", "value": "7"}));
    assert_eq!(
        guira(&["update", url, "258", "4294967295", "--numbers"]).expect(0).text(),
        "replaced the value of 258\n"
    );
    assert!(guira(&["insert", url, "258", "1", "--numbers"]).expect(1).stderr.contains("already has the key 258"));
    assert_eq!(guira(&["dump", url, "--numbers"]).expect(0).text(), "258\t4294967295\n");
    assert_eq!(guira(&["dump", url, "--hex"]).expect(0).text(), "0201000000000000\tffffffff\n");
    let json = guira(&["dump", url, "--numbers", "--format", "json"]).expect(0);
    assert_eq!(json.text(), "{\"key\":\"258\",\"value\":\"4294967295\"}\n");
    for dump in [guira(&["dump", url, "--numbers"]), json] {
        let copy = Table::new("notations-copy", "fixed:8:4");
        guira_with_input(&["load", copy.url(), "-", "--numbers"], &dump.stdout).expect(0);
        assert_eq!(guira(&["dump", copy.url()]).expect(0).stdout, guira(&["dump", url]).expect(0).stdout);
    }
    assert_eq!(guira(&["del", url, "258", "--numbers"]).expect(0).text(), "removed 258\n");
    assert!(guira(&["get", url, "258", "--numbers"]).expect(1).stderr.contains("no key 258"));
    assert!(guira(&["put", url, "1", "4294967296", "--numbers"]).expect(2).stderr.contains("too large for 4 bytes"));
    assert!(guira(&["put", url, "-1", "1", "--numbers"]).expect(2).stderr.contains("not a decimal number"));
    guira(&["get", url, "1", "--numbers", "--hex"]).expect(2);
    let bytes = Table::new("not-numbers", "bytes:64");
    for arguments in [&["put", bytes.url(), "1", "2"][..], &["get", bytes.url(), "1"], &["dump", bytes.url()]] {
        let run = guira(&[arguments, &["--numbers"]].concat()).expect(2);
        assert!(run.stderr.contains("needs a table of a fixed format"), "{}", run.stderr);
    }
}

/// Any bytes survive a dump and a load as digits, even those with a meaning in the format.
#[test]
fn a_dump_of_digits_can_be_loaded() {
    let keys = ["", "00", "0a09", "5c78", "7b7d", "5061636b6167653a", "efbbbf61", "ff", "80c3", "0d", "74ff"];
    let value = |n: usize| ["", "00ff0a0d095c", "7b", "c3"][n % 4].repeat(1 + 40 * (n % 3));
    let table = Table::new("digits", "bytes:24");
    for (n, key) in keys.iter().enumerate() {
        guira(&["put", table.url(), key, &value(n), "--hex"]).expect(0);
    }
    let plain = guira(&["dump", table.url()]).expect(0).text();
    for output in ["tsv", "jsonl"] {
        let dump = guira(&["dump", table.url(), "--hex", "--output", output]).expect(0);
        assert_ne!(dump.text(), plain);
        let copy = Table::new("digits-copy", "bytes:24");
        let loaded = guira_with_input(&["load", copy.url(), "-", "--hex", "--format", "json"], &dump.stdout).expect(0);
        let loaded = loaded.json();
        assert_eq!((&loaded["input"], &loaded["inserted"]), (&output.into(), &keys.len().into()));
        for (n, key) in keys.iter().enumerate() {
            let found = guira(&["get", copy.url(), key, "--hex"]).expect(0).text();
            assert_eq!(found.strip_suffix('\n'), Some(&value(n)[..]), "{key}");
        }
        assert_eq!(records(&guira(&["dump", copy.url()]).expect(0).text()), records(&plain));
    }
    let refused = guira_with_input(&["load", table.url(), "-", "--hex"], b"00ff\t0\n").expect(2);
    assert!(refused.stderr.contains("line 1 ") && refused.stderr.contains("two digits per byte"), "{}", refused.stderr);
    guira(&["load", table.url(), "-", "--hex", "--numbers"]).expect(2);
}

#[test]
fn bytes_that_are_not_a_number_are_refused_as_one() {
    let table = Table::new("long", "fixed:8:20");
    guira(&["put", table.url(), "12345678", "abcdefghijklmnopqrst"]).expect(0);
    for arguments in [&["get", table.url(), "4050765991979987505"][..], &["dump", table.url()]] {
        let run = guira(&[arguments, &["--numbers"]].concat()).expect(2);
        assert!(run.stderr.contains("not a number below 2^128; use --hex"), "{}", run.stderr);
    }
}

/// Runs the program with a standard output that cannot be written.
fn guira_into_a_full_disk(arguments: &[&str]) -> Run {
    let full = File::options().write(true).open("/dev/full").expect("every Linux has it");
    let child = command(arguments).stdout(full).spawn().expect("the program starts");
    Run::of(child.wait_with_output().expect("it ends"), arguments)
}

/// `>&-` and `<&-` in a shell, and a service manager that opens no standard files.
#[test]
fn a_closed_standard_file_is_not_an_empty_one() {
    let table = Table::new("closed", "bytes:64");
    let url = table.url();
    guira(&["put", url, "cuckoo", "grey"]).expect(0);
    for (command, said) in [
        (format!("put {url} cuckoo --value-file - <&-"), "cannot read standard input: it is closed\n"),
        (format!("load {url} - <&-"), "cannot read standard input: it is closed; nothing was loaded\n"),
        (format!("get {url} cuckoo >&-"), "cannot write to standard output: it is closed\n"),
        (format!("dump {url} >&-"), "cannot write to standard output: it is closed\n"),
        (format!("stat {url} --format human >&-"), "cannot write to standard output: it is closed\n"),
        ("--help >&-".to_owned(), "cannot write to standard output: it is closed\n"),
        (
            format!("put {url} ani black >&-"),
            "cannot write to standard output: it is closed; already done: inserted \"ani\"\n",
        ),
    ] {
        assert_eq!(shell(&format!("guira {command}")).expect(3).stderr, format!("guira: {said}"), "{command}");
    }
    assert_eq!(guira(&["get", url, "cuckoo"]).expect(0).stdout, b"grey");
    // Programs that want no input and no output open /dev/null, often for reading and writing.
    shell(&format!("guira get {url} cuckoo 1<>/dev/null && guira put {url} ani --value-file - 0<>/dev/null")).expect(0);
    assert_eq!(guira(&["get", url, "ani"]).expect(0).stdout, b"");
}

#[test]
fn an_answer_that_cannot_be_written_says_what_was_done() {
    let table = Table::unused("full");
    let url = table.url();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "ani\tblack\nguira\twhite\n").expect("it is written");
    let path = file.path().to_str().expect("a path of text");
    for arguments in ["--help", "--version"] {
        let run = guira_into_a_full_disk(&[arguments]).expect(3);
        assert!(run.stderr.contains("No space left on device"), "{}", run.stderr);
    }
    for (arguments, done) in [
        (&["create", url, "--capacity", "1000"][..], format!("created {url}")),
        (&["put", url, "cuckoo", "grey"], "inserted \"cuckoo\"".to_owned()),
        (&["update", url, "cuckoo", "red"], "replaced the value of \"cuckoo\"".to_owned()),
        (&["load", url, path], "2 records were loaded".to_owned()),
        (&["del", url, "ani"], "removed \"ani\"".to_owned()),
    ] {
        let run = guira_into_a_full_disk(arguments).expect(3);
        assert!(run.stderr.starts_with("guira: cannot write to standard output: "), "{}", run.stderr);
        assert!(run.stderr.ends_with(&format!("; already done: {done}\n")), "{}", run.stderr);
    }
    assert_eq!(guira(&["dump", url]).expect(0).text().lines().count(), 2, "it was");
    assert_eq!(guira(&["get", url, "cuckoo"]).expect(0).stdout, b"red");
    let error = guira_into_a_full_disk(&["put", url, "cuckoo", "grey", "--format", "json"]).expect(3).error();
    assert_eq!((&error["blame"], &error["effect"]), (&"host".into(), &"done".into()), "{error}");
    for arguments in [&["get", url, "cuckoo"][..], &["dump", url], &["insert", url, "cuckoo", "x", "--format", "json"]]
    {
        let run = guira_into_a_full_disk(arguments).expect(3);
        assert!(!run.stderr.contains("already done"), "nothing was done: {}", run.stderr);
    }
    let run = guira_into_a_full_disk(&["destroy", url]).expect(3);
    assert!(run.stderr.ends_with(&format!("; already done: destroyed {url}\n")), "{}", run.stderr);
    guira(&["get", url, "cuckoo"]).expect(1);
}
