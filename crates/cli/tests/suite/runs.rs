//! The commands that start worker processes: ycsb and quickstart.

use std::path::Path;

use crate::common::{Table, guira, guira_with_input};
use serde_json::Value;

fn ycsb(url: &str, arguments: &[&str]) -> Value {
    let common = ["ycsb", url, "--records", "2000", "--operations", "4000", "--verify", "--format", "json"];
    let run = guira(&[&common[..], arguments].concat()).expect(0);
    assert_eq!(run.stderr, "");
    run.json()
}

fn count(report: &Value, operation: &str) -> u64 {
    report["operations"][operation]["count"].as_u64().expect("counts are integers")
}

#[test]
fn every_workload_runs_on_a_table_of_its_own() {
    let table = Table::unused("ycsb");
    for (workload, other) in [
        ("a", Some("update")),
        ("b", Some("update")),
        ("c", None),
        ("d", Some("insert")),
        ("f", Some("read_modify_write")),
        ("w", Some("insert")),
    ] {
        let report = ycsb(table.url(), &["--workload", workload, "--threads", "2", "--processes", "2"]);
        assert_eq!(report["workload"], workload);
        let total: u64 =
            ["read", "update", "insert", "read_modify_write"].iter().map(|kind| count(&report, kind)).sum();
        assert_eq!(total, 4000, "{report}");
        assert!(other.is_none_or(|other| count(&report, other) > 0), "{report}");
        assert_eq!((&report["load"]["records"], &report["created"]), (&2000.into(), &true.into()));
        assert!(!Path::new(&table.path()).exists(), "the table is destroyed");
    }
}

/// The report has the counters of the clients of all processes, as in the table's totals; the text has those not 0.
#[test]
fn the_report_has_the_counters_of_all_clients() {
    let table = Table::unused("met");
    ycsb(table.url(), &["--workload", "c", "--keep"]);
    let totals = || guira(&["stat", table.url(), "--format", "json"]).expect(0).json()["totals"].clone();
    let before = totals();
    let arguments = ["--workload", "a", "--no-load", "--threads", "2", "--processes", "2"];
    let report = ycsb(table.url(), &arguments);
    let (met, after) = (report["met"].as_object().unwrap(), totals());
    assert_eq!(met.len(), after.as_object().unwrap().len());
    for (name, times) in met {
        let told = after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
        assert_eq!(times.as_u64(), Some(told), "{name}");
    }
    assert!(met["records"].as_u64().unwrap() > 0, "{report}");
    let run = |workload| {
        let arguments = ["ycsb", table.url(), "--workload", workload, "--records", "2000", "--operations", "100"];
        guira(&[&arguments[..], &["--no-load"]].concat()).expect(0).text()
    };
    let told = run("a");
    assert!(told.contains("reported by clients of the run  times") && told.contains("\nrecords "), "{told}");
    assert!(!run("c").contains("reported by"), "a single client that only reads has nothing to report");
}

#[test]
fn the_report_has_its_documented_shape() {
    let table = Table::unused("shape");
    let report = ycsb(table.url(), &["--workload", "a", "--seed", "9", "--theta", "0.5", "--keep"]);
    assert!(report["throughput_ops_per_s"].as_f64().unwrap() > 0.0);
    for (name, expected) in [("records", 2000.0), ("threads", 1.0), ("processes", 1.0), ("seed", 9.0), ("theta", 0.5)] {
        assert_eq!(report[name].as_f64(), Some(expected), "{name}");
    }
    assert!(report["fill"].as_f64().unwrap() > 0.5);
    for kind in ["read", "update", "insert", "read_modify_write"] {
        let figures = report["operations"][kind].as_object().unwrap();
        let names: Vec<&str> = figures.keys().map(String::as_str).collect();
        for name in ["count", "errors", "round_trips", "messages_mean", "bytes_mean", "retries_mean", "latency_ns"] {
            assert!(names.contains(&name), "{kind}.{name}");
        }
        assert_eq!(figures.len(), 7);
        for name in ["mean", "p50", "p99", "max"] {
            assert!(figures["round_trips"][name].is_number(), "{kind}.round_trips.{name}");
        }
        for name in ["p50", "p90", "p99", "p999", "max"] {
            assert!(figures["latency_ns"][name].is_u64(), "{kind}.latency_ns.{name}");
        }
    }
    let read = &report["operations"]["read"];
    assert!((1.0..=2.0).contains(&read["round_trips"]["mean"].as_f64().unwrap()), "{read}");
    assert_eq!(report["operations"]["update"]["round_trips"]["p50"], 2);
    let other = guira(&["ycsb", table.url(), "--workload", "c", "--records", "2000", "--no-load"]).expect(2);
    assert!(other.stderr.contains("does not hold the records of a run"), "another seed gives other keys");
    let again = ["--workload", "c", "--seed", "9", "--no-load", "--processes", "3"];
    assert_eq!(ycsb(table.url(), &again)["load"], Value::Null);
    guira(&["check", table.url()]).expect(0);
}

#[test]
fn operations_do_not_depend_on_how_workers_are_spread() {
    let table = Table::unused("spread");
    let counts = |threads, processes| {
        let report = ycsb(table.url(), &["--workload", "a", "--threads", threads, "--processes", processes]);
        (count(&report, "read"), count(&report, "update"))
    };
    assert_eq!(counts("4", "1"), counts("1", "4"));
    assert_eq!(counts("2", "2"), counts("1", "4"));
}

#[test]
fn formats_and_value_sizes_are_used() {
    for (arguments, entry, value_bytes) in [
        (&["--value-bytes", "100"][..], "fixed:8:100", 100),
        (&["--value-bytes", "2KiB"], "bytes:64", 2048),
        (&["--entry", "fixed:4:4"], "fixed:4:4", 4),
        (&["--entry", "fixed:16:8"], "fixed:16:8", 8),
        (&["--entry", "bytes:64", "--value-bytes", "50"], "bytes:64", 50),
    ] {
        let table = Table::unused("formats");
        let report = ycsb(table.url(), &[&["--workload", "f"], arguments].concat());
        assert_eq!((&report["entry"], &report["value_bytes"]), (&entry.into(), &value_bytes.into()));
    }
    let table = Table::new("small", "fixed:1:1");
    let run = guira(&["ycsb", table.url(), "--workload", "a", "--records", "300", "--into-existing"]).expect(2);
    assert!(run.stderr.contains("only 256 keys"), "{}", run.stderr);
    let run = guira(&["ycsb", table.url(), "--workload", "a", "--value-bytes", "9"]).expect(2);
    assert!(run.stderr.contains("cannot hold values of 9 bytes"), "{}", run.stderr);
    let theta = ["--records", "9", "--operations", "9", "--theta", "2.5", "--into-existing"];
    let run = guira(&[&["ycsb", table.url(), "--workload", "a"], &theta[..]].concat()).expect(2);
    assert!(run.stderr.contains("theta 2.5 is not in 0 to 2"), "{}", run.stderr);
}

#[test]
fn a_run_that_fails_in_another_process_leaves_no_table() {
    let table = Table::unused("failing");
    guira(&["create", table.url(), "--capacity", "100", "--entry", "fixed:8:8", "--preset", "tiny"]).expect(0);
    let size = ["--records", "10k", "--processes", "3", "--format", "json", "--into-existing"];
    let arguments = [&["ycsb", table.url(), "--workload", "a"], &size[..]].concat();
    let error = guira(&arguments).expect(3).error();
    assert_eq!(error["blame"], "full", "{error}");
    let message = error["message"].as_str().expect("a text");
    assert!(message.ends_with("; the records that the run inserted were removed"), "{message}");
    assert_eq!(entries(&table), 0);
    guira(&["check", table.url()]).expect(0);
}

fn entries(table: &Table) -> u64 {
    let stat = guira(&["stat", table.url(), "--format", "json"]).expect(0).json();
    stat["table"]["entries"].as_u64().expect("a number")
}

/// A table with 300 keys of all lengths, and its content.
fn existing_table(name: &str) -> (Table, Vec<u8>) {
    let table = Table::new(name, "bytes:64");
    let lines: String = (0..300).map(|n| format!("key {n}\t{}\n", "nest ".repeat(n % 20))).collect();
    guira_with_input(&["load", table.url(), "-"], lines.as_bytes()).expect(0);
    let content = content(&table);
    (table, content)
}

/// The keys and values of a table, in order.
fn content(table: &Table) -> Vec<u8> {
    let dump = guira(&["dump", table.url(), "--hex"]).expect(0).text();
    let mut lines: Vec<&str> = dump.lines().collect();
    lines.sort_unstable();
    lines.join("\n").into_bytes()
}

/// A run does not change an existing table unless asked to, and then it removes its records.
#[test]
fn a_table_of_others_holds_the_same_after_a_run() {
    let (table, before) = existing_table("others");
    let size = ["--records", "200", "--operations", "300", "--processes", "2", "--threads", "2"];
    let arguments = |workload| [&["ycsb", table.url(), "--workload", workload], &size[..]].concat();
    for further in [&[][..], &["--no-load"]] {
        let refused = guira(&[&arguments("a")[..], further].concat()).expect(2);
        assert!(refused.stderr.contains("--into-existing"), "{}", refused.stderr);
    }
    assert_eq!(content(&table), before);
    for workload in ["a", "c", "d", "f", "w"] {
        let run = guira(&[&arguments(workload)[..], &["--into-existing", "--verify"]].concat()).expect(0).text();
        assert!(run.starts_with(&format!("{} exists: the records of this run are inserted", table.url())), "{run}");
        assert!(run.contains(" of the run removed"), "{run}");
        assert_eq!(content(&table), before, "{workload}");
    }
    let kept = guira(&[&arguments("a")[..], &["--into-existing", "--keep", "--format", "json"]].concat()).expect(0);
    assert_eq!((&kept.json()["removal"], entries(&table)), (&Value::Null, 500));
    // Now it holds the records of a run: another one may use them, and the same records are not inserted again.
    guira(&[&arguments("b")[..], &["--no-load"]].concat()).expect(0);
    guira(&arguments("d")).expect(0);
    assert_eq!(entries(&table), 500, "inserts of workload D are removed");
    let again = guira(&[&arguments("a")[..], &["--into-existing"]].concat()).expect(2);
    assert!(again.stderr.contains("is already in the table"), "{}", again.stderr);
    assert_eq!(entries(&table), 500);
    guira(&["check", table.url()]).expect(0);
}

/// Records beyond --records, loaded or inserted by an earlier run, are only in the way of workloads that insert.
#[test]
fn a_table_with_further_records_is_used_only_by_workloads_that_insert_none() {
    let run = |table: &Table, workload, records, more: &[&str]| {
        let size = ["--records", records, "--operations", "100", "--threads", "3"];
        guira(&[&["ycsb", table.url(), "--workload", workload][..], &size, more].concat())
    };
    let (loaded, inserted) = (Table::unused("more-loaded"), Table::unused("more-inserted"));
    run(&loaded, "a", "2000", &["--keep"]).expect(0);
    run(&inserted, "w", "100", &["--keep"]).expect(0);
    for table in [&loaded, &inserted] {
        for workload in ["w", "d"] {
            let refused = run(table, workload, "100", &[]).expect(2);
            assert!(refused.stderr.contains("holds records of a run beyond --records 100"), "{}", refused.stderr);
        }
        run(table, "c", "100", &[]).expect(0);
        let other = run(table, "w", "100", &["--into-existing", "--seed", "2"]).expect(0).text();
        assert!(other.contains(" of the run removed"), "{other}");
    }
    assert_eq!((entries(&loaded), entries(&inserted)), (2000, 200));
    run(&loaded, "d", "2000", &[]).expect(0);
}

/// In a table of short keys, a run soon meets existing keys, which it leaves as they are.
#[test]
fn a_key_of_others_is_never_replaced() {
    let table = Table::new("short", "fixed:2:2");
    let lines: String = (0..600).map(|n| format!("{}\t7\n", n * 109)).collect();
    guira_with_input(&["load", table.url(), "-", "--numbers"], lines.as_bytes()).expect(0);
    let before = content(&table);
    for processes in ["1", "3"] {
        let size = ["--records", "300", "--operations", "300", "--processes", processes];
        let arguments = [&["ycsb", table.url(), "--workload", "a", "--into-existing"], &size[..]].concat();
        let error = guira(&[&arguments[..], &["--format", "json"]].concat()).expect(2).error();
        let message = error["message"].as_str().expect("a text");
        assert!(message.contains("another seed gives other keys"), "{message}");
        assert!(message.ends_with("; the records that the run inserted were removed"), "{message}");
        assert_eq!(content(&table), before);
    }
}

fn quickstart(url: &str, arguments: &[&str]) -> Value {
    let run = guira(&[&["quickstart", "--url", url, "--format", "json"], arguments].concat()).expect(0);
    assert_eq!(run.stderr, "");
    run.json()
}

#[test]
fn quickstart_runs_on_a_file() {
    let table = Table::unused("quickstart");
    let file = tempfile::NamedTempFile::new().unwrap();
    // Some values fit in rows and some do not; some keys occur more than once.
    let lines: String = (0..3000).map(|n| format!("key {}\t{}\n", n % 2500, "nest ".repeat(n % 40))).collect();
    std::fs::write(file.path(), lines).unwrap();
    let path = file.path().to_str().unwrap();
    let report = quickstart(table.url(), &[path, "--processes", "3"]);
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!((&report["input"]["records"], &report["load"]["inserted"]), (&3000.into(), &2500.into()));
    assert_eq!((&report["read_back"]["wrong"], &report["change"]["wrong"]), (&0.into(), &Value::Array(vec![])));
    assert!(!Path::new(&table.path()).exists(), "the table is destroyed");

    let kept = guira(&["quickstart", path, "--url", table.url(), "--processes", "1", "--keep"]).expect(0);
    for step in ["1 input", "2 table", "3 load", "4 read back", "5 change", "6 check", "is sound", "guira get "] {
        assert!(kept.text().contains(step), "{step}: {}", kept.text());
    }
    assert_eq!(guira(&["get", table.url(), "key 2"]).expect(0).text(), "nest ".repeat(2502 % 40));
    assert_eq!(guira(&["get", table.url(), "guira-quickstart/counter/0/0"]).expect(0).text(), "2500");
    let again = guira(&["quickstart", path, "--url", table.url()]).expect(1);
    assert!(again.stderr.contains("already exists"), "{}", again.stderr);
}

#[test]
fn quickstart_finds_data_by_itself() {
    let table = Table::unused("itself");
    let report = quickstart(table.url(), &["--processes", "2"]);
    assert_eq!(report["ok"], true, "{report}");
    assert!(report["input"]["records"].as_u64().unwrap() > 0);
    assert!(!Path::new(&table.path()).exists());
}

#[test]
fn quickstart_refuses_what_it_cannot_read() {
    let table = Table::unused("unreadable");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let run = guira(&["quickstart", path, "--url", table.url()]).expect(2);
    assert!(run.stderr.contains("no records"), "{}", run.stderr);
    std::fs::write(file.path(), "{\"key\":\"a\",\"value\":\"b\"}\n{\"key\":\n").unwrap();
    let run = guira(&["quickstart", path, "--url", table.url()]).expect(2);
    assert!(run.stderr.contains("line 2 "), "{}", run.stderr);
    assert!(!Path::new(&table.path()).exists());
}

#[test]
fn a_large_table_is_loaded_measured_checked_and_destroyed() {
    let arguments = ["bench", "large", "--records", "30000", "--operations", "9000", "--processes", "2"];
    let report = guira(&[&arguments[..], &["--format", "json"]].concat()).expect(0).json();
    assert_eq!((&report["problems"], report["runs"].as_array().map(Vec::len)), (&0.into(), Some(3)), "{report}");
    assert_eq!(report["runs"][0]["load"]["records"], 30_000);
    for (run, workload) in report["runs"].as_array().expect("runs").iter().zip(["a", "b", "c"]) {
        assert_eq!((&run["workload"], &run["entry"]), (&workload.into(), &"fixed:4:4".into()));
        assert!(run["fill"].as_f64().is_some_and(|fill| fill > 0.85), "{run}");
        assert!(!Path::new(&run["url"].as_str().expect("a URL").replace("shm://", "/dev/shm/")).exists());
    }
    let human = guira(&arguments).expect(0);
    assert!(human.text().contains("no problems") && human.stderr.contains("YCSB C"), "{}", human.stderr);
}
