//! Loading and dumping of files.

use std::collections::BTreeMap;

use crate::common::{Table, command, guira, guira_with_input, shell};
use proptest::prelude::*;

const ROUND_TRIPS: u32 = 24;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn jsonl(content: &Content) -> Vec<u8> {
    let quote = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => (String::new(), serde_json::to_string(text).expect("text is JSON")),
        Err(_) => {
            ("_b64".to_owned(), format!("\"{}\"", base64::Engine::encode(&base64::prelude::BASE64_STANDARD, bytes)))
        }
    };
    let line = |(key, value): (&Vec<u8>, &Vec<u8>)| {
        let ((key_kind, key), (value_kind, value)) = (quote(key), quote(value));
        format!("{{\"value{value_kind}\": {value}, \"key{key_kind}\": {key}}}\n")
    };
    content.iter().map(line).collect::<String>().into_bytes()
}

/// The records of a dump, as the format's documentation says.
fn read_jsonl(dump: &str) -> Content {
    let bytes = |object: &serde_json::Value, name: &str| match object.get(name) {
        Some(text) => text.as_str().expect("it is a string").as_bytes().to_vec(),
        None => {
            let text = object[format!("{name}_b64")].as_str().expect("it is a string");
            base64::Engine::decode(&base64::prelude::BASE64_STANDARD, text).expect("it is base64")
        }
    };
    let objects = dump.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line is JSON"));
    objects.map(|object| (bytes(&object, "key"), bytes(&object, "value"))).collect()
}

/// A file that does not fit causes a warning before the first record is stored, not when the table is full.
#[test]
fn a_file_that_does_not_fit_is_announced() {
    let table = Table::new("fit", "bytes:64");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |records: u32| {
        let text: String = (0..records).map(|i| format!("key{i}\tvalue\n")).collect();
        std::fs::write(file.path(), text).expect("there is room");
    };
    let path = file.path().to_str().expect("UTF-8");
    write(1_000);
    let fits = guira(&["load", table.url(), path]).expect(0);
    assert_eq!(fits.stderr, "", "it fits");
    write(5_000);
    let full = guira(&["load", table.url(), path]).expect(3);
    let lines: Vec<&str> = full.stderr.lines().collect();
    let [warning, error] = lines[..] else { panic!("a warning and an error: {lines:?}") };
    assert!(warning.starts_with("guira: warning: ") && warning.contains("has 5,000 records"), "{warning}");
    assert!(warning.contains(&format!("guira copy {0} {0}-2", table.url())), "{warning}");
    assert!(error.contains("the table is full") && error.contains("guira create"), "{error}");
    let json = guira(&["load", table.url(), path, "--format", "json"]).expect(3);
    let first: serde_json::Value = serde_json::from_str(json.stderr.lines().next().expect("a line")).expect("JSON");
    assert!(first["warning"]["message"].as_str().is_some_and(|text| text.contains("5,000 records")), "{first}");
}

/// Records of some hundred bytes, which do not fit in rows.
fn large_records(count: u32) -> String {
    (0..count).map(|n| format!("package{n:06}\t{}\n", "x".repeat(300 + n as usize * 37 % 700))).collect()
}

/// The size that is advised when a load from a pipe finds no space is enough for all of the input.
#[test]
fn the_advised_size_is_enough_for_the_rest() {
    let table = Table::unused("advised");
    let input = large_records(16_000);
    guira(&["create", table.url(), "--capacity", "20k"]).expect(0);
    let full = guira_with_input(&["load", table.url(), "-"], input.as_bytes()).expect(3);
    let (_, advised) = full.stderr.split_once("larger table with: guira ").expect("there is advice");
    let (create, copy) = advised.trim_end().split_once(" && guira ").expect("two commands");
    for command in [create, copy] {
        guira(&command.split(' ').collect::<Vec<_>>()).expect(0);
    }
    let url = create.split(' ').nth(1).expect("a URL");
    assert_eq!(url, format!("{}-2", table.url()));
    guira_with_input(&["load", url, "-"], input.as_bytes()).expect(0);
    guira(&["destroy", url]).expect(0);
}

/// Returns a file of large records.
fn large_file(count: u32) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), large_records(count)).expect("there is room");
    file
}

#[test]
fn a_load_creates_a_table_for_its_file() {
    let table = Table::unused("created");
    let file = large_file(16_000);
    let path = file.path().to_str().expect("UTF-8");
    let piped = guira(&["load", table.url(), "-", "--create"]).expect(2);
    assert!(piped.stderr.contains("create it before"), "{}", piped.stderr);
    let missing = guira(&["load", table.url(), "/no/such/file", "--create"]).expect(3);
    assert!(missing.stderr.contains("No such file"), "{}", missing.stderr);
    guira(&["stat", table.url()]).expect(1);
    // Nothing was loaded, so the table that was made for it is removed.
    let bad = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(bad.path(), "no separator\n").expect("there is room");
    let bad = guira(&["load", table.url(), bad.path().to_str().expect("UTF-8"), "--create"]).expect(2);
    assert!(bad.stderr.contains("nothing was loaded"), "{}", bad.stderr);
    guira(&["stat", table.url()]).expect(1);
    let loaded = guira(&["load", table.url(), path, "--create"]).expect(0);
    assert_eq!(loaded.stderr, "", "it fits");
    // As an update of all of them.
    guira(&["load", table.url(), path, "--create"]).expect(0);
    let created = guira(&["stat", table.url(), "--format", "json"]).expect(0).json();
    assert_eq!(created["table"]["entries"], 16_000);
}

/// The table was taken for one that nobody needs, and destroyed with everything in it.
#[test]
fn a_load_whose_answer_nobody_reads_keeps_the_table_that_it_created() {
    let table = Table::unused("unread");
    let file = large_file(100);
    let path = file.path().to_str().expect("UTF-8");
    let mut child = command(&["load", table.url(), path, "--create"]).spawn().expect("the program");
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let stat = guira(&["stat", table.url(), "--format", "json"]).expect(0).json();
    assert_eq!(stat["table"]["entries"], 100);
}

#[test]
fn loads_that_create_the_same_table_share_it() {
    let table = Table::unused("shared");
    let file = large_file(5_000);
    let path = file.path().to_str().expect("UTF-8");
    let loads: Vec<_> =
        (0..3).map(|_| command(&["load", table.url(), path, "--create"]).spawn().expect("the program")).collect();
    for load in loads {
        let ended = load.wait_with_output().expect("it ends");
        assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    let stat = guira(&["stat", table.url(), "--format", "json"]).expect(0).json();
    assert_eq!(stat["table"]["entries"], 5_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ROUND_TRIPS, ..ProptestConfig::default() })]

    #[test]
    fn what_is_dumped_loads_to_the_same(
        content in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 0..30),
            prop::collection::vec(any::<u8>(), 0..200),
            0..60,
        ),
        threads in 1_u32..4,
    ) {
        let (first, second, third) =
            (Table::new("a", "bytes:64"), Table::new("b", "bytes:64"), Table::new("c", "bytes:24"));
        let threads = threads.to_string();
        guira_with_input(&["load", first.url(), "-", "--threads", &threads], &jsonl(&content)).expect(0);
        let tsv = guira(&["dump", first.url()]).expect(0);
        guira_with_input(&["load", second.url(), "-", "--threads", &threads], &tsv.stdout).expect(0);
        let json = guira(&["dump", second.url(), "--format", "json"]).expect(0);
        prop_assert_eq!(read_jsonl(&json.text()), content.clone());
        guira_with_input(&["load", third.url(), "-"], &json.stdout).expect(0);
        let json = guira(&["dump", third.url(), "--output", "jsonl"]).expect(0);
        prop_assert_eq!(read_jsonl(&json.text()), content);
        for table in [&first, &second, &third] {
            guira(&["check", table.url()]).expect(0);
        }
    }
}

#[test]
fn the_last_record_of_a_key_wins_with_any_number_of_threads() {
    for threads in ["1", "2", "7"] {
        let table = Table::new("last", "bytes:64");
        let lines: String = (0..20_000).map(|n| format!("key {}\tvalue {n}\n", n * 7 % 400)).collect();
        let arguments = ["load", table.url(), "-", "--threads", threads, "--format", "json"];
        let report = guira_with_input(&arguments, lines.as_bytes()).expect(0).json();
        assert_eq!(
            (&report["records"], &report["inserted"], &report["replaced"]),
            (&20_000.into(), &400.into(), &19_600.into())
        );
        assert_eq!((&report["entries"], &report["input"]), (&400.into(), &"tsv".into()));
        let dump = guira(&["dump", table.url()]).expect(0).text();
        let found: BTreeMap<&str, &str> = dump.lines().map(|line| line.split_once('\t').unwrap()).collect();
        let expected: BTreeMap<String, String> =
            (0..20_000).map(|n| (format!("key {}", n * 7 % 400), format!("value {n}"))).collect();
        assert_eq!(found.len(), 400);
        for (key, value) in &expected {
            assert_eq!(found[key.as_str()], value, "{key}, {threads} threads");
        }
    }
}

#[test]
fn bad_lines_stop_or_are_counted() {
    let table = Table::new("bad", "bytes:64");
    let text = b"a\t1\nb\t2\nthis line has no tab\nc\t3\n\\z\t4\n";
    let run = guira_with_input(&["load", table.url(), "-"], text).expect(2);
    assert_eq!(
        run.stderr,
        "guira: line 3 (\"this line has no tab\"): it has no TAB: expected key, TAB, value; 2 records were loaded\n"
    );
    let run = guira_with_input(&["load", table.url(), "-", "--format", "json"], text).expect(2);
    assert_eq!((&run.error()["blame"], &run.error()["effect"]), (&"misuse".into(), &"done".into()));
    guira(&["get", table.url(), "c"]).expect(1);
    let run = guira_with_input(&["load", table.url(), "-", "--skip-bad"], text).expect(0);
    assert!(run.text().contains("skipped 2 records") && run.text().contains("line 5 "), "{}", run.text());
    assert_eq!(guira(&["get", table.url(), "c"]).expect(0).stdout, b"3");
    let json = guira_with_input(&["load", table.url(), "-", "--skip-bad", "--format", "json"], text).expect(0).json();
    assert_eq!((&json["records"], &json["bad"]), (&3.into(), &2.into()));
}

#[test]
fn a_file_cut_short_names_its_last_line() {
    let table = Table::new("cut", "bytes:64");
    let whole = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &whole[..whole.len() - 5]).unwrap();
    let run = guira(&["load", table.url(), file.path().to_str().unwrap()]).expect(2);
    assert!(run.stderr.contains("line 2 (") && run.stderr.contains("EOF"), "{}", run.stderr);
    std::fs::write(file.path(), whole).unwrap();
    guira(&["load", table.url(), file.path().to_str().unwrap()]).expect(0);
    let run = guira(&["load", table.url(), "/no/such/file"]).expect(3);
    assert!(run.stderr.contains("/no/such/file"), "{}", run.stderr);
    assert!(guira(&["load", table.url(), "/tmp"]).expect(3).stderr.contains("directory"));
    guira_with_input(&["load", table.url(), "-"], b"").expect(0);
}

/// Files that other systems' programs wrote: lines end in CR LF, and a byte order mark stands in front.
#[test]
fn line_ends_and_byte_order_marks_belong_to_no_record() {
    let mark = "\u{feff}";
    for text in [
        "a\t1\r\nb\t\r\n\r\nc\tx\ry\r\nd\tz\\r\r\n".to_owned(),
        format!("{mark}a\t1\r\nb\t\r\nc\tx\ry\nd\tz\\r"),
        format!("{mark}\r\na\t1\nb\t\nc\tx\ry\r\nd\tz\\r\n"),
        format!(
            "{mark}{}\r\n{}\r\n\r\n{}\n{}",
            r#"{"key":"a","value":"1"}"#,
            r#"{"key":"b","value":""}"#,
            r#"{"key":"c","value":"x\ry"}"#,
            r#"{"key":"d","value":"z\r"}"#
        ),
    ] {
        let table = Table::new("crlf", "bytes:64");
        let report =
            guira_with_input(&["load", table.url(), "-", "--format", "json"], text.as_bytes()).expect(0).json();
        assert_eq!(report["records"], 4, "{text:?}");
        for (key, value) in [("a", "1"), ("b", ""), ("c", "x\ry"), ("d", "z\r")] {
            assert_eq!(guira(&["get", table.url(), key]).expect(0).text(), value, "{key} of {text:?}");
        }
    }
    let table = Table::new("crlf-debian", "bytes:64");
    let text = format!("{mark}Package: 0ad\r\nVersion: 1\r\n\r\nPackage: bash\r\nVersion: 5\r\n");
    let report = guira_with_input(&["load", table.url(), "-", "--format", "json"], text.as_bytes()).expect(0).json();
    assert_eq!((&report["input"], &report["records"]), (&"debian".into(), &2.into()));
    assert!(guira(&["get", table.url(), "0ad"]).expect(0).text().starts_with("Package: 0ad"));
}

/// A key that starts like a byte order mark, or ends like a line of another system, comes back as it was.
#[test]
fn keys_like_byte_order_marks_are_dumped_so_that_they_load() {
    let (table, copy) = (Table::new("mark", "bytes:64"), Table::new("mark-copy", "bytes:64"));
    guira(&["put", table.url(), "\u{feff}key", "value\r"]).expect(0);
    let dump = guira(&["dump", table.url()]).expect(0);
    guira_with_input(&["load", copy.url(), "-"], &dump.stdout).expect(0);
    assert_eq!(guira(&["get", copy.url(), "\u{feff}key"]).expect(0).stdout, b"value\r");
}

#[test]
fn debian_records_are_recognised() {
    let table = Table::new("debian", "bytes:64");
    let text = b"Package: 0ad\nVersion: 1\nDescription: a\n game\n\nPackage: bash\nVersion: 5\n\n";
    let run = guira_with_input(&["load", table.url(), "-", "--format", "json"], text).expect(0).json();
    assert_eq!((&run["input"], &run["records"]), (&"debian".into(), &2.into()));
    assert_eq!(guira(&["get", table.url(), "0ad"]).expect(0).text(), "Package: 0ad\nVersion: 1\nDescription: a\n game");
    let run = guira_with_input(&["load", table.url(), "-", "--input", "tsv"], text).expect(2);
    assert!(run.stderr.contains("line 1 "), "{}", run.stderr);
}

#[test]
fn numbers_are_little_endian() {
    let table = Table::new("numbers", "fixed:8:4");
    guira_with_input(&["load", table.url(), "-", "--numbers"], b"1\t2\n258\t4294967295\n").expect(0);
    assert_eq!(guira(&["get", table.url(), "0201000000000000", "--hex"]).expect(0).text(), "ffffffff\n");
    guira_with_input(&["load", table.url(), "-", "--numbers"], b"{\"key\":7,\"value\":\"8\"}\n").expect(0);
    assert_eq!(guira(&["get", table.url(), "0700000000000000", "--hex"]).expect(0).text(), "08000000\n");
    let run = guira_with_input(&["load", table.url(), "-", "--numbers"], b"1\t4294967296\n").expect(2);
    assert!(run.stderr.contains("too large for 4 bytes"), "{}", run.stderr);
    let run = guira_with_input(&["load", table.url(), "-"], b"1\t2\n").expect(2);
    assert!(run.stderr.contains("takes keys of exactly 8"), "{}", run.stderr);
    let bytes = Table::new("not-numbers", "bytes:64");
    guira_with_input(&["load", bytes.url(), "-", "--numbers"], b"1\t2\n").expect(2);
    let dump = guira(&["dump", table.url()]).expect(0);
    let copy = Table::new("numbers-copy", "fixed:8:4");
    guira_with_input(&["load", copy.url(), "-"], &dump.stdout).expect(0);
    assert_eq!(guira(&["stat", copy.url(), "--format", "json"]).expect(0).json()["table"]["entries"], 3);
}

#[test]
fn dump_refuses_tsv_as_json() {
    let table = Table::new("tsv-json", "bytes:64");
    guira(&["dump", table.url(), "--output", "tsv", "--format", "json"]).expect(2);
    assert_eq!(guira(&["dump", table.url()]).expect(0).stdout, b"");
}

/// Text in UTF-16, as spreadsheets write it, and compressed files are refused as a whole, also with `--skip-bad`, and the
/// command that the message advises loads them.
#[test]
fn other_encodings_are_refused_with_the_command_that_helps() {
    let table = Table::new("encodings", "bytes:64");
    let folder = tempfile::tempdir().expect("a folder");
    let text = "heron\tGarza\r\nibis\tCuraca\r\n";
    let utf16: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let path = folder.path().join("birds.txt");
    std::fs::write(&path, utf16).expect("a file");
    let name = path.to_str().expect("text");
    for arguments in [vec!["load", table.url(), name], vec!["load", table.url(), name, "--skip-bad"]] {
        let run = guira(&arguments).expect(2);
        assert!(
            run.stderr.contains("is text in UTF-16; nothing was loaded; convert it: iconv -f UTF-16 -t UTF-8 "),
            "{}",
            run.stderr
        );
        let (_, advised) = run.stderr.split_once("convert it: ").expect("it advises");
        shell(advised).expect(0);
        assert_eq!(guira(&["get", table.url(), "heron"]).expect(0).text(), "Garza");
    }
    assert_eq!(guira(&["dump", table.url()]).expect(0).text().lines().count(), 2);
}
