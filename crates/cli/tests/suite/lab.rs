//! `guira lab`: plans and questions are answered, the same command gives the same bytes, finished figures are not
//! measured again, an interrupted run keeps them, and mistakes are refused before anything is measured.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::common::{Run, command, guira};
use crate::interrupts::catches;
use guira_lab::experiment::PARAMETERS;
use guira_testing::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A plan that takes a moment: tiny tables, few clients, a short time.
const PLAN: &str = "title = \"A <plan>\"\nmeasure = \"throughput\"\n\
    x = { parameter = \"clients\", values = [2, 4] }\n\
    series = [{ name = \"Guira\" }, { name = \"as printed\", setting = \"as-printed\" }]\n\
    [base]\nfill = 50\nentries = 20_000\nspan-us = 200\nwarm-us = 50\n";

fn plan(directory: &TempDir, text: &str) -> String {
    let path = directory.path().join("mine.toml");
    fs::write(&path, text).expect("the plan is written");
    path.display().to_string()
}

fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(directory)
        .expect("the directory is there")
        .map(|file| {
            let file = file.expect("a file");
            (file.file_name().display().to_string(), fs::read(file.path()).expect("the file is read"))
        })
        .collect();
    files.sort();
    files
}

#[track_caller]
fn refused(arguments: &[&str], message: &str) {
    let run = guira(&[&["lab"], arguments].concat()).expect(2);
    assert!(run.stdout.is_empty(), "{}", run.text());
    assert!(run.stderr.contains(message) && run.stderr.lines().count() == 1, "{message:?}: {}", run.stderr);
    let run = guira(&[&["lab"], arguments, &["--format", "json"]].concat()).expect(2);
    assert_eq!(run.error()["blame"], "misuse");
}

#[test]
fn the_guide_lists_every_parameter() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/lab.md");
    let guide = fs::read_to_string(guide).expect("the guide is read");
    let rows: Vec<&str> = guide.lines().filter(|line| line.starts_with("| `")).collect();
    for parameter in &PARAMETERS {
        let name = format!("`{}`", parameter.name);
        assert!(rows.iter().any(|row| row.contains(&name)), "{name}");
    }
}

#[test]
fn mistakes_are_refused_before_anything_is_measured() {
    refused(&["fig9"], "unknown figure \"fig9\"");
    refused(&["sensitivity-tetha"], "similar: sensitivity-theta");
    refused(&["ask", "--nic", "connectx-9"], "nic is connectx-9, but must be one of connectx-3, connectx-5");
    refused(&["ask", "--setting", "fast"], "setting is fast, but must be one of guira, as-printed, as-run");
    refused(&["ask", "--theta", "-0.5"], "theta is -0.5, but must be a number from 0 to 2");
    refused(&["ask", "--theta", "2.5"], "theta is 2.5, but must be a number from 0 to 2");
    refused(&["ask", "--clients", "0"], "clients is 0, but must be a whole number from 1");
    refused(&["ask", "--clients", "200", "--lock-bits", "8"], "200 clients are more than the 127 slots");
    refused(&["ask", "--rows-per-lock", "24"], "rows-per-lock is 24, but must be a power of two");
    refused(&["ask", "--steering", "all"], "setting guira has steering locks");
    refused(&["ask", "--setting", "clover", "--steering", "locks"], "setting clover has steering changes, all or");
    refused(&["ask", "--setting", "clover", "--element-keys", "8"], "element-keys is for an element: set steering");
    let no_keys = ["--steering", "changes", "--element-keys", "0"];
    refused(&[&["ask", "--setting", "clover"][..], &no_keys].concat(), "element-keys is 0, but must be");
    refused(&["ask", "--entries", "9G"], "MiB of memory");
    let predictors = ["--clients", "20000", "--queue", "none", "--predictor-kib", "1048576"];
    refused(&[&["ask", "--entries", "100k"], &predictors[..]].concat(), "smaller predictors need less");
    refused(&["ask", "--entry", "bytes:16"], "bytes:N (N 24 to 1024, a multiple of 8)");
    refused(&["ask", "--setting", "as-run", "--predictor-kib", "64"], "setting as-run has no predictor-kib");
    refused(&["ask", "--fill-to", "95"], "this workload has no inserts");
    refused(&["ask", "--workload", "d"], "workload is d, but must be one of a, b, c, w");
    refused(&["fig6c", "--out", "/proc/nowhere"], "cannot write results to /proc/nowhere");
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "").expect("a file");
    refused(&["all", "--out", &file.display().to_string()], "cannot write results to");
    let wrong = plan(&directory, &PLAN.replace("span-us", "spam-us"));
    refused(&["run", &wrong], "mine.toml, line 8: unknown parameter \"spam-us\" (similar: span-us)");
    guira(&["lab", "run", "/no/such/plan.toml"]).expect(3);
}

#[test]
fn a_quick_question_is_about_a_smaller_table() {
    let said = guira(&["lab", "ask", "--quick", "--clients", "8"]).expect(0).text();
    assert!(said.contains("2,000,000 entries"), "{said}");
    let said = guira(&["lab", "ask", "--quick", "--clients", "8", "--entries", "100k"]).expect(0).text();
    assert!(said.contains("100,000 entries"), "the given size counts: {said}");
}

#[test]
fn the_figures_are_listed() {
    let run = guira(&["lab", "list"]).expect(0);
    assert!(run.text().contains("\n6c ") && run.text().contains("sensitivity-theta"), "{}", run.text());
    let figures = guira(&["lab", "list", "--format", "json"]).expect(0).json()["figures"].clone();
    assert!(figures.as_array().is_some_and(|figures| figures.iter().any(|figure| figure["id"] == "8d")));
}

#[test]
fn a_plan_gives_the_same_bytes_with_any_number_of_jobs_and_is_not_measured_twice() {
    let directory = TempDir::new().expect("a directory");
    let plan = plan(&directory, PLAN);
    let out = |name: &str| directory.path().join(name);
    let run = |out: &PathBuf, more: &[&str]| -> Run {
        let out = out.display().to_string();
        guira(&[&["lab", "run", &plan, "--out", &out], more].concat()).expect(0)
    };
    let text = run(&out("one"), &["--jobs", "1"]).text();
    assert!(text.starts_with("A <plan>\nthroughput [million/s]\n\nclients "), "{text}");
    assert!(text.contains("\nmedians of several seeds, which differ by up to "), "{text}");
    run(&out("two"), &["--jobs", "2"]);
    let (one, two) = (files(&out("one")), files(&out("two")));
    let names: Vec<&str> = one.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["manifest.json", "mine.csv", "mine.json", "report.html"]);
    assert_eq!(one[1], two[1]);
    assert_eq!(one[2], two[2]);
    let csv = String::from_utf8(one[1].1.clone()).expect("the file is text");
    assert!(csv.starts_with("series,origin,x,y,lowest,highest,bound_by,throughput [million/s],"), "{csv}");
    let page = String::from_utf8(one[3].1.clone()).expect("the page is text");
    assert!(page.contains("A &lt;plan&gt;") && !page.contains("A <plan>"));

    // A figure that is finished is taken from the directory: an edit shows that it was not measured again.
    let chart = out("one").join("mine.json");
    let edited = fs::read_to_string(&chart).expect("the chart").replace("as printed", "as edited");
    fs::write(&chart, edited).expect("the chart is edited");
    assert!(run(&out("one"), &[]).text().contains("as edited"));
    assert!(!run(&out("one"), &["--seed", "2"]).text().contains("as edited"), "another seed is another run");
}

/// Other stores are settings like those of RCuckoo: questions and plans are answered, with any number of jobs alike, and
/// what a table that is only read cannot do is refused before it is built.
#[test]
fn other_stores_are_measured_like_rcuckoo() {
    let question = ["lab", "ask", "--workload", "c", "--theta", "0", "--entries", "256k", "--fill", "65", "--quick"];
    let ask = |more: &[&str]| guira(&[&question[..], &["--format", "json"], more].concat()).expect(0).json();
    let read = |answer: &serde_json::Value, figure: &str| answer["kinds"][0][figure].as_f64().expect("a number");
    let fixed = ask(&["--setting", "linear"]);
    assert!((1.005..1.02).contains(&read(&fixed, "round_trips")), "{fixed}");
    assert!((394.0..400.0).contains(&read(&fixed, "bytes")) && fixed["read_slots"] == 32, "{fixed}");
    assert_eq!(ask(&["--setting", "linear", "--lookup", "variable"])["read_slots"], 23);
    let cuckoo = ask(&["--setting", "cuckoo", "--layout", "heap"]);
    assert!(read(&cuckoo, "messages") > 4.0 && read(&cuckoo, "round_trips") < 2.1, "{cuckoo}");
    let skewed = ["--setting", "linear", "--lookup", "variable", "--key-theta", "0.9", "--clusters", "100"];
    assert!(ask(&skewed)["matches_mops"].as_f64() > Some(10.0));

    let directory = TempDir::new().expect("a directory");
    let plan = directory.path().join("stores.toml");
    let text = "title = \"Stores\"\nmeasure = \"p90-read\"\nx = { parameter = \"fill\", values = [50, 95] }\n\
                series = [{ name = \"linear\" }, { name = \"cuckoo\", setting = \"cuckoo\", associativity = 1 }]\n\
                [base]\nsetting = \"linear\"\nworkload = \"c\"\nentries = 20000\nclients = 4\nin-flight = 3\n";
    fs::write(&plan, text).expect("a plan");
    let csv = |jobs: &str| {
        let out = directory.path().join(jobs);
        let (plan, out) = (plan.display().to_string(), out.display().to_string());
        let said = guira(&["lab", "run", &plan, "--out", &out, "--jobs", jobs, "--seeds", "2"]).expect(0).text();
        (said, fs::read(directory.path().join(jobs).join("stores.csv")).expect("a chart"))
    };
    let (said, one) = csv("1");
    assert_eq!(one, csv("2").1);
    assert!(said.contains("50   ") && !String::from_utf8_lossy(&one).contains("cuckoo,measured,95"), "{said}");

    for (more, why) in [
        (&["--setting", "linear"][..], "choose workload c"),
        (
            &["--workload", "c", "--setting", "linear", "--lookup", "parallel"],
            "lookups of setting linear are fixed, variable, unbounded",
        ),
        (&["--workload", "c", "--setting", "linear", "--read-slots", "131071"], "a READ brings at most"),
        (
            &["--workload", "c", "--setting", "linear", "--fill", "100"],
            "fill is 100, but must be a number from 1 to 99",
        ),
        (
            &["--workload", "c", "--setting", "cuckoo", "--deaths-per-second", "1"],
            "setting cuckoo has no deaths-per-second",
        ),
        (
            &["--workload", "c", "--setting", "cuckoo", "--fill", "95", "--associativity", "1"],
            "found no place after 100000 moves",
        ),
    ] {
        refused(&[&["ask", "--entries", "20k"], more].concat(), why);
    }
}

/// Clover reads cached keys in one round trip, and changes them in two if nobody else does; smaller caches cost calls, and the
/// time that clients compute is part of an operation.
#[test]
fn clover_takes_the_round_trips_of_its_paper() {
    let question = ["lab", "ask", "--setting", "clover", "--entries", "1138", "--fill", "90", "--span-us", "500"];
    let ask = |more: &[&str]| guira(&[&question[..], &["--format", "json"], more].concat()).expect(0).json();
    let figure = |answer: &serde_json::Value, kind: usize, figure: &str| {
        answer["kinds"][kind][figure].as_f64().expect("a number")
    };
    let cached = ask(&["--workload", "c", "--clients", "16"]);
    assert_eq!(figure(&cached, 0, "round_trips"), 1.0, "{cached}");
    assert_eq!(figure(&cached, 0, "bytes"), 74.0 + 62.0 + 128.0, "{cached}");
    let missed = ask(&["--workload", "c", "--clients", "16", "--cache-keys", "64"]);
    assert!((1.05..1.95).contains(&figure(&missed, 0, "round_trips")), "{missed}");
    let alone = ask(&["--workload", "a", "--clients", "1"]);
    assert_eq!((figure(&alone, 0, "round_trips"), figure(&alone, 1, "round_trips")), (1.0, 2.0), "{alone}");
    assert_eq!(alone["notes"], serde_json::json!([]), "{alone}");
    let contended = ask(&["--workload", "a", "--clients", "16", "--node-threads", "2"]);
    assert!(figure(&contended, 1, "round_trips") > 2.1, "{contended}");
    let slow = ask(&["--workload", "c", "--clients", "16", "--compute-us", "10"]);
    assert!(figure(&slow, 0, "p50_us") > figure(&cached, 0, "p50_us") + 9.9, "{slow}");
    for (more, why) in [
        (&["--cache-keys", "0"][..], "cache-keys is 0, but must be a whole number from 1"),
        (&["--node-threads", "0"], "node-threads is 0, but must be a whole number from 1"),
        (&["--lookup", "fixed"], "setting clover has no lookup"),
        (&["--entry", "bytes:64"], "setting clover has keys of 4 bytes"),
        (&["--setting", "guira", "--cache-keys", "9"], "setting guira has no cache-keys"),
    ] {
        let setting: &[&str] = if more.contains(&"--setting") { &[] } else { &["--setting", "clover"] };
        refused(&[&["ask"], setting, more].concat(), why);
    }
}

/// A write that the printed protocol loses when clients die is a note. Guira loses nothing in the same run: there it
/// would be an error.
#[test]
fn what_the_printed_protocol_loses_is_a_note() {
    let answer = |setting: &str| {
        let run = ["lab", "ask", "--entries", "2k", "--clients", "64", "--fill", "60", "--timeout-ms", "0.3"];
        let deaths =
            ["--theta", "0.5", "--deaths-per-second", "20000", "--span-us", "10000", "--setting", setting, "--quick"];
        guira(&[&run[..], &deaths].concat()).expect(0).text()
    };
    let (printed, hardened) = (answer("as-printed"), answer("guira"));
    assert!(printed.contains("as printed, the check at the end found"), "{printed}");
    assert!(hardened.contains("clients died") && !hardened.contains("the check at the end"), "{hardened}");
}

/// What growing costs is answered with both tables beside each other, and the same question gives the same answer.
#[test]
fn a_question_about_growth_is_answered() {
    let question = ["lab", "ask", "--grow", "8", "--clients", "8", "--entries", "40k"];
    let answer = |jobs: &str| guira(&[&question[..], &["--jobs", jobs, "--format", "json"]].concat()).expect(0).json();
    let json = answer("2");
    assert_eq!(answer("1"), json);
    assert_eq!((json["growth"]["factor"].as_u64(), json["growth"]["memory_us"].as_f64()), (Some(8), Some(12.0)));
    let (first, keys) = (json["first_keys"].as_u64().expect("a number"), json["grows"]["keys"].as_u64());
    assert_eq!((keys.map(|keys| keys / 8), keys), (Some(first), json["fixed"]["keys"].as_u64()));
    let splits = &json["splits"];
    assert!(splits["round_trips"].as_f64() >= Some(3.0), "{json}");
    assert!(splits["splits"].as_u64() > Some(4) && splits["locks_held"]["p50_us"].as_f64() > Some(1.0), "{json}");
    let mops = |side: &str| json[side]["answer"]["throughput_mops"].as_f64().expect("a number");
    // The last digit of a number may be another one after it was written as text.
    let ratio = json["ratio"]["throughput"].as_f64().expect("a number") / (mops("grows") / mops("fixed"));
    assert!((ratio - 1.0).abs() < 1e-9, "{json}");
    let text = guira(&question).expect(0).text();
    for line in ["workload w", "keys at first", "insert: p99.9 µs", "a split costs", "others wait"] {
        assert!(text.contains(line), "{line:?}: {text}");
    }
    refused(&["ask", "--grow", "--workload", "a"], "a table grows by inserts");
    refused(&["ask", "--grow", "--setting", "as-printed"], "only tables of setting guira grow");
    refused(&["ask", "--grow", "--depth", "3"], "a table that grows has the parameters of its preset: remove depth");
    refused(&["ask", "--grow", "--span-us", "3"], "a run that grows a table ends with its last key: remove span-us");
    refused(&["ask", "--grow", "--memory-us", "-1"], "memory-us is -1, but must be a number from 0 to 1000000");
}

#[test]
fn a_question_is_answered() {
    let question =
        ["lab", "ask", "--clients", "4", "--entries", "20k", "--fill", "50", "--span-us", "200", "--warm-us", "50"];
    let text = guira(&question).expect(0).text();
    for part in [
        "4 clients on 4 hosts with connectx-5",
        "throughput",
        "measured",
        "0.2 ms, ",
        "limited by",
        "p99.9 µs",
        "read",
        "update",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = guira(&[&question[..], &["--format", "json"]].concat()).expect(0).json();
    assert!(json["throughput_mops"].as_f64().is_some_and(|throughput| throughput > 0.1), "{json}");
    assert_eq!(json["experiment"]["clients"], 4);
    assert_eq!((json["span_us"].as_f64(), json["throughput_spread"].as_array()), (Some(200.0), None));
    let json = guira(&[&question[..], &["--seeds", "2", "--format", "json"]].concat()).expect(0).json();
    assert_eq!(json["throughput_spread"].as_array().map(Vec::len), Some(2), "{json}");
}

#[test]
fn an_interrupted_run_keeps_finished_figures_and_leaves_no_half_file() {
    let directory = TempDir::new().expect("a directory");
    // The run under way takes minutes: 64 values, each with a table of its own.
    let values: Vec<String> = (1..=64).map(|index| (500_000 + 4096 * index).to_string()).collect();
    let x = format!("parameter = \"entries\", values = [{}]", values.join(", "));
    let plan = plan(&directory, &PLAN.replace("parameter = \"clients\", values = [2, 4]", &x));
    let out = directory.path().join("out");
    let mut child: Child = command(&["lab", "run", &plan, "--out", &out.display().to_string()])
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // The handler is installed behind the opening of the directory, and before the first experiment.
    wait_until("it catches the signal", || out.join("manifest.json").exists() && catches(&child, Signal::INT));
    kill_process(Pid::from_child(&child), Signal::INT).expect("the process is there");
    let status = child.wait().expect("the program ends");
    assert_eq!(status.code(), Some(130));
    let names: Vec<String> = files(&out).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["manifest.json", "report.html"]);
}
