//! Every command on one key, and on the table as a whole.

use crate::common::{Table, command, guira, guira_with_input};

#[test]
fn a_key_is_inserted_changed_and_removed() {
    let table = Table::new("life", "bytes:64");
    let url = table.url();
    let miss = guira(&["get", url, "cuckoo"]).expect(1);
    assert!(miss.stdout.is_empty());
    assert_eq!(miss.stderr.trim(), format!("guira: {url} has no key \"cuckoo\""));
    assert!(guira(&["update", url, "cuckoo", "x"]).expect(1).stderr.contains("nothing was changed"));
    guira(&["del", url, "cuckoo"]).expect(1);
    assert_eq!(guira(&["insert", url, "cuckoo", "grey"]).expect(0).text(), "inserted \"cuckoo\"\n");
    assert!(guira(&["insert", url, "cuckoo", "red"]).expect(1).stderr.contains("already"));
    assert_eq!(guira(&["get", url, "cuckoo"]).expect(0).stdout, b"grey", "no newline if the output is not a terminal");
    assert_eq!(guira(&["update", url, "cuckoo", "red"]).expect(0).text(), "replaced the value of \"cuckoo\"\n");
    assert_eq!(guira(&["put", url, "cuckoo", "brown"]).expect(0).text(), "replaced the value of \"cuckoo\"\n");
    assert_eq!(guira(&["put", url, "guira", ""]).expect(0).text(), "inserted \"guira\"\n");
    assert_eq!(guira(&["get", url, "guira"]).expect(0).stdout, b"");
    assert_eq!(guira(&["del", url, "cuckoo"]).expect(0).text(), "removed \"cuckoo\"\n");
    guira(&["get", url, "cuckoo"]).expect(1);
    guira(&["check", url]).expect(0);
    assert_eq!(guira(&["destroy", url]).expect(0).text(), format!("destroyed {url}\n"));
    guira(&["get", url, "guira"]).expect(1);
}

#[test]
fn a_key_is_inserted_changed_and_removed_in_json() {
    let table = Table::unused("json");
    let url = table.url();
    let json = |arguments: &[&str], code| {
        let run = guira(&[arguments, &["--format", "json"]].concat()).expect(code);
        assert_eq!(run.stderr, "", "{arguments:?}");
        run.json()
    };
    let created = json(&["create", url, "--capacity", "10_000", "--entry", "bytes:64"], 0);
    assert_eq!(
        (&created["url"], &created["entry"], &created["capacity"]),
        (&url.into(), &"bytes:64".into(), &10_000.into())
    );
    assert!(created["slots"].as_u64().unwrap() >= 10_000 && created["rows"].as_u64().unwrap() > 0);
    assert_eq!(json(&["put", url, "k", "v"], 0)["outcome"], "inserted");
    assert_eq!(json(&["put", url, "k", "v"], 0)["outcome"], "replaced");
    assert_eq!(json(&["insert", url, "k", "v"], 1)["outcome"], "exists");
    assert_eq!(json(&["update", url, "x", "v"], 1)["outcome"], "missing");
    assert_eq!(json(&["get", url, "k"], 0), serde_json::json!({"found": true, "key": "k", "value": "v"}));
    assert_eq!(json(&["get", url, "x"], 1), serde_json::json!({"found": false, "key": "x"}));
    assert_eq!(json(&["get", url, "6b", "--hex"], 0), serde_json::json!({"found": true, "key": "6b", "value": "76"}));
    assert_eq!(json(&["put", url, "6b", "ff00", "--hex"], 0)["outcome"], "replaced");
    assert_eq!(json(&["get", url, "k"], 0), serde_json::json!({"found": true, "key": "k", "value_b64": "/wA="}));
    assert_eq!(json(&["del", url, "k"], 0)["outcome"], "removed");
    let stat = json(&["stat", url], 0);
    assert_eq!((&stat["url"], &stat["format"]), (&url.into(), &"bytes:64".into()));
    assert!(stat["table"]["rows_by_occupancy"].is_array() && stat["clients"].is_array());
    let check = json(&["check", url], 0);
    assert_eq!((&check["clean"], &check["problems"]), (&true.into(), &serde_json::json!([])));
    assert_eq!(json(&["destroy", url], 0), serde_json::json!({"url": url, "destroyed": true}));
}

#[test]
fn bytes_of_any_kind_are_stored() {
    let table = Table::new("bytes", "bytes:64");
    let url = table.url();
    guira(&["put", url, "00ff", "fe00", "--hex"]).expect(0);
    assert_eq!(guira(&["get", url, "00ff", "--hex"]).expect(0).text(), "fe00\n");
    for text in ["@@at", "@/etc/hostname", "@-", "-"] {
        guira(&["put", url, "text", text]).expect(0);
        assert_eq!(guira(&["get", url, "text"]).expect(0).text(), text, "no file is read for it");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let content: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(n) >> 3) as u8).collect();
    std::fs::write(file.path(), &content).unwrap();
    guira(&["put", url, "file", "--value-file", file.path().to_str().unwrap()]).expect(0);
    assert!(guira(&["get", url, "file"]).expect(0).stdout == content, "a file comes back as it was");
    guira_with_input(&["insert", url, "stdin", "--value-file", "-"], &content).expect(0);
    guira_with_input(&["update", url, "stdin", "--value-file=-"], &content).expect(0);
    assert!(guira(&["get", url, "stdin"]).expect(0).stdout == content, "standard input comes back as it was");
    let value = guira(&["get", url, "00ff", "--hex", "--format", "json"]).expect(0).json();
    assert_eq!(value["value"], "fe00");
    let value = guira(&["get", url, "stdin", "--format", "json"]).expect(0).json();
    assert!(value["value_b64"].is_string() && value.get("value").is_none());
    guira(&["put", url, "-5", "-6"]).expect(0);
    guira(&["put", url, "--", "--dash", "-v"]).expect(0);
    assert_eq!(guira(&["get", url, "--", "--dash"]).expect(0).stdout, b"-v");
}

#[test]
fn stat_and_check_are_readable() {
    let table = Table::new("stat", "bytes:64");
    let url = table.url();
    guira(&["put", url, "a", "1"]).expect(0);
    let large = "x".repeat(500);
    guira(&["put", url, "b", &large]).expect(0);
    let stat = guira(&["stat", url]).expect(0).text();
    for part in [url, "2 of ", "1 in rows, 1 in extents", "mode 600", "clients", "█"] {
        assert!(stat.contains(part), "{part}: {stat}");
    }
    let check = guira(&["check", url]).expect(0).text();
    assert!(check.starts_with(&format!("{url} is sound: ")), "{check}");
    assert_eq!(check.lines().count(), 1, "{check}");
}

#[test]
fn an_existing_table_is_accepted_if_it_matches() {
    let table = Table::unused("if-missing");
    let url = table.url();
    let asked = ["create", url, "--capacity", "5000", "--entry", "fixed:8:8", "--if-missing"];
    assert!(guira(&asked).expect(0).text().starts_with(&format!("created {url} (hardened, fixed:8:8): ")));
    let again = guira(&asked).expect(0).text();
    assert!(again.starts_with(&format!("{url} already exists and matches (hardened, fixed:8:8): ")), "{again}");
    let said = guira(&[&asked[..], &["--format", "json"]].concat()).expect(0).json();
    assert_eq!((&said["created"], &said["entry"]), (&false.into(), &"fixed:8:8".into()));
    assert!(said["capacity"].as_u64().unwrap() >= 5000, "the table's own, {said}");
    for (option, value, message) in [
        ("--capacity", "5M", "not for 5000000"),
        ("--entry", "bytes:64", "its entry format is fixed:8:8, not bytes:64"),
        ("--preset", "tiny", "its preset is hardened, not tiny"),
        ("--max-clients", "2000", "it has 1024 client slots, not 2000"),
        ("--seed", "7", "not 7"),
    ] {
        let mut other = vec!["create", url, "--if-missing", "--format", "json", option, value];
        for (name, value) in [("--capacity", "5000"), ("--entry", "fixed:8:8")] {
            if name != option {
                other.extend([name, value]);
            }
        }
        let error = guira(&other).expect(2).error();
        assert_eq!((&error["blame"], &error["effect"]), (&"misuse".into(), &"none".into()), "{error}");
        let said = error["message"].as_str().unwrap();
        assert!(said.contains(message) && said.contains(&format!("guira destroy {url} removes it")), "{said}");
    }
    guira(&["destroy", url]).expect(0);
    let said = guira(&[&asked[..], &["--format", "json"]].concat()).expect(0).json();
    assert_eq!(said["created"], true);
    guira(&asked[..6]).expect(1);
}

/// A table that grows says so when it is created, and what it has become.
#[test]
fn a_table_grows_as_it_is_loaded() {
    let table = Table::unused("grows");
    let url = table.url();
    let created = guira(&["create", url, "--capacity", "1000", "--max-capacity", "1M"]).expect(0).text();
    assert!(created.contains("room for 1,000 keys") && created.contains("grows to room for 1,"), "{created}");
    let asked = ["create", url, "--capacity", "9k", "--max-capacity", "1M", "--if-missing", "--format", "json"];
    let same = guira(&asked).expect(0).json();
    let (slots, most) = (same["slots"].as_u64().unwrap(), same["max_capacity"].as_u64().unwrap());
    assert!(same["created"] == false && slots < 9_000 && most >= 1_000_000, "{same}");
    let more = guira(&["create", url, "--capacity", "1k", "--max-capacity", "1G", "--if-missing"]).expect(2);
    assert!(more.stderr.contains("not for 1000000000"), "{}", more.stderr);
    let listed = || {
        let all = guira(&["list", "--format", "json"]).expect(0).json();
        let of = all["tables"].as_array().unwrap_or_else(|| panic!("{all}")).iter().find(|it| it["url"] == url);
        of.unwrap_or_else(|| panic!("{url} is not in {all}")).clone()
    };
    let before = listed();
    let lines: String = (0..30_000).map(|n| format!("key {n}\t{}\n", "value ".repeat(n % 40))).collect();
    let loaded = guira_with_input(&["load", url, "-", "--format", "json"], lines.as_bytes()).expect(0).json();
    assert!((0.4..0.8).contains(&loaded["fill"].as_f64().unwrap()), "{loaded}");
    let after = listed();
    let of =
        |listed: &serde_json::Value, name: &str| listed[name].as_u64().unwrap_or_else(|| panic!("{name}: {listed}"));
    assert!(of(&before, "stored_bytes") < of(&after, "stored_bytes"), "{before}, {after}");
    assert!(of(&before, "capacity") < of(&after, "capacity"), "{before}, {after}");
    for name in ["most_capacity", "file_bytes"] {
        assert_eq!(before[name], after[name], "{name}");
    }
    let stat = guira(&["stat", url]).expect(0).text();
    for part in ["it grows to ", "which grow to ", " of addresses, owner "] {
        assert!(stat.contains(part), "{part}: {stat}");
    }
    assert_eq!(guira(&["get", url, "key 29999"]).expect(0).stdout, "value ".repeat(39).as_bytes());
    for (most, message) in [("999", "at least the capacity"), ("many", "not a number"), ("99999G", "2^27 segments")] {
        let refused = guira(&["create", "shm://none", "--capacity", "1000", "--max-capacity", most]).expect(2).stderr;
        assert!(refused.contains(message), "{most}: {refused}");
    }
    for capacity in [&["--capacity", "9", "--max-capacity", "99"][..], &[]] {
        let paper = [&["create", "shm://none", "--preset", "paper"], capacity].concat();
        assert!(guira(&paper).expect(2).stderr.contains("tables of preset paper do not grow"));
    }
}

#[test]
fn a_table_grows_ahead_of_a_load() {
    let (table, fixed) = (Table::unused("ahead"), Table::new("ahead-fixed", "fixed:8:8"));
    let url = table.url();
    guira(&["create", url, "--entry", "fixed:8:8", "--capacity", "1000", "--max-capacity", "1M"]).expect(0);
    let grown = guira(&["grow", url, "--capacity", "50k", "--format", "json"]).expect(0).json();
    assert!(grown["splits"].as_u64().unwrap() > 5 && grown["stored_bytes"].as_u64().unwrap() > 1 << 20, "{grown}");
    assert_eq!((&grown["capacity"], &grown["url"]), (&50_000.into(), &url.into()));
    assert_eq!(guira(&["stat", url, "--format", "json"]).expect(0).json()["table"]["rows"], grown["rows"]);
    let text = guira(&["grow", url, "--capacity", "100k"]).expect(0).text();
    assert!(text.contains("has room for 100,000 keys: ") && text.contains(" split; it has "), "{text}");
    let text = guira(&["grow", url, "--capacity", "50k"]).expect(0).text();
    assert!(text.contains("has room for 50,000 keys already"), "{text}");
    for (url, capacity, reason) in [(url, "1G", "at most"), (fixed.url(), "1M", "its size is fixed")] {
        let refused = guira(&["grow", url, "--capacity", capacity, "--format", "json"]).expect(2).error();
        assert!(refused["message"].as_str().unwrap().contains(reason), "{refused}");
        assert_eq!((&refused["blame"], &refused["effect"]), (&"misuse".into(), &"none".into()), "{refused}");
    }
}

/// Nobody has to say how many keys a table will have, nor how large its values are.
#[test]
fn a_table_of_unknown_size_takes_what_is_loaded() {
    let table = Table::unused("unknown");
    let url = table.url();
    let created = guira(&["create", url]).expect(0).text();
    assert!(created.contains("grows to room for ") && created.contains("up to 1,024 clients"), "{created}");
    guira(&["create", url, "--if-missing"]).expect(0);
    let help = guira(&["create", "--help"]).expect(0).text();
    let said = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("begins with room for at least 1,000"), "{help}");
    assert!(guira(&["stat", url, "--format", "json"]).expect(0).json()["table"]["capacity"].as_u64() >= Some(1_000));
    let lines: String = (0..50_000).map(|n| format!("key {n}\t{}\n", "value ".repeat(n % 50))).collect();
    guira_with_input(&["load", url, "-"], lines.as_bytes()).expect(0);
    assert!(guira(&["check", url]).expect(0).text().contains("50,000 entries"));
}

#[test]
fn options_of_create_are_used() {
    let table = Table::unused("options");
    let url = table.url();
    let options =
        ["--capacity", "5.5k", "--entry", "fixed:8:8", "--preset", "paper", "--max-clients", "7", "--mode", "640"];
    guira(&[&["create", url, "--seed", "3"], &options[..]].concat()).expect(0);
    let stat = guira(&["stat", url, "--format", "json"]).expect(0).json();
    assert_eq!((&stat["max_clients"], &stat["lock_bits"]), (&7.into(), &1.into()));
    assert_eq!(stat["region"]["mode"], 0o640);
    assert!(stat["table"]["capacity"].as_u64().unwrap() >= 5500);
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("table");
    let url = format!("file://{}", path.display());
    let created = guira(&["create", &url, "--capacity", "100"]);
    if created.code == Some(0) {
        guira(&["put", &url, "k", "v"]).expect(0);
        assert_eq!(guira(&["get", &url, "k"]).expect(0).stdout, b"v");
        guira(&["destroy", &url]).expect(0);
        assert!(!path.exists());
    } else {
        assert!(created.stderr.contains("file system"), "only an unsafe file system is refused: {}", created.stderr);
    }
}

#[test]
fn a_closed_output_is_not_a_failure() {
    let table = Table::new("closed", "bytes:64");
    let lines: String = (0..900).map(|n| format!("key {n}\t{}\n", "value ".repeat(200))).collect();
    guira_with_input(&["load", table.url(), "-"], lines.as_bytes()).expect(0);
    for arguments in [&["dump", table.url()][..], &["dump", table.url(), "--format", "json"]] {
        let mut child = command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{arguments:?}");
    }
    for arguments in [&["stat", table.url()][..], &["--help"], &["get", table.url(), "key 1"]] {
        let mut child = command(arguments).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
    for arguments in [
        &["get", "shm://guira-cli-no-such-table", "k"][..],
        &["insert", table.url(), "key 1", "again", "--format", "json"],
        &["cas", table.url(), "key 1", "other", "again", "--format", "json"],
    ] {
        let mut child = command(arguments).spawn().unwrap();
        drop((child.stdout.take(), child.stderr.take()));
        assert_eq!(child.wait().unwrap().code(), Some(1), "{arguments:?}: the answer is no, whoever reads it");
    }
}

#[test]
fn help_and_version_answer() {
    let help = guira(&["--help"]).expect(0).text();
    assert!(help.contains("Exit codes:") && help.contains("quickstart"), "{help}");
    assert!(!help.contains("worker"), "{help}");
    assert_eq!(guira(&["--version"]).expect(0).text(), format!("guira {}\n", env!("CARGO_PKG_VERSION")));
    for name in ["create", "get", "put", "load", "dump", "stat", "check", "destroy", "ycsb", "quickstart"] {
        guira(&[name, "--help"]).expect(0);
    }
}
