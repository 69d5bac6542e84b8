//! `guira bench peers`, at its smallest: with what is installed, with nothing installed, and interrupted.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Run, command};
use guira_testing::patience;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Small enough for a test, large enough for every system to be timed.
const SMALL: [&str; 10] =
    ["bench", "peers", "--records", "2000", "--operations", "2000", "--rounds", "2", "--value-memory", "1MiB"];
/// The same over TCP.
const SMALL_TCP: [&str; 13] = [
    "bench",
    "peers",
    "--tcp",
    "--records",
    "500",
    "--operations",
    "200",
    "--rounds",
    "2",
    "--connections",
    "1,2",
    "--depths",
    "1,4",
];
/// The same for growth.
const SMALL_GROWTH: [&str; 9] =
    ["bench", "peers", "--growth", "--records", "60000", "--first", "2000", "--clients", "3"];
/// Systems that need no installed program.
const LIBRARIES: [&str; 5] = ["dashmap", "guira", "lmdb", "papaya", "raw"];

/// Returns the files of process `pid`'s run in shared memory, and the programs that run there, with their processes.
fn leftovers(pid: u32) -> (Vec<PathBuf>, Vec<(String, PathBuf)>) {
    let own = format!("/dev/shm/guira-peers-{pid}-");
    let is_own = |path: &Path| path.to_string_lossy().starts_with(&own);
    let entries = fs::read_dir("/dev/shm").expect("there is shared memory").filter_map(Result::ok);
    let directories = entries.map(|entry| entry.path()).filter(|path| is_own(path)).collect();
    let processes = fs::read_dir("/proc").expect("there is /proc").filter_map(Result::ok);
    let servers = processes.filter_map(|process| {
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        let is_server = is_own(&fs::read_link(process.path().join("cwd")).ok()?);
        is_server.then(|| (name.trim().to_owned(), process.path()))
    });
    (directories, servers.collect())
}

const NOTHING: (Vec<PathBuf>, Vec<(String, PathBuf)>) = (Vec::new(), Vec::new());

/// Runs the program to its end, and fails unless it leaves nothing.
fn bench(arguments: &[&str], path: Option<&str>, code: i32) -> Run {
    let mut command = command(arguments);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let child = command.spawn().expect("the program starts");
    let pid = child.id();
    let run = Run::of(child.wait_with_output().expect("the program ends"), arguments).expect(code);
    assert_eq!(leftovers(pid), NOTHING);
    run
}

fn installed() -> Vec<&'static str> {
    let is_there = |program: &str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|path| path.join(program).exists())
    };
    [("memcached", "memcached"), ("redis-server", "redis")]
        .into_iter()
        .filter_map(|(program, name)| is_there(program).then_some(name))
        .collect()
}

fn names(report: &Value) -> BTreeSet<&str> {
    report["cells"].as_array().expect("cells").iter().filter_map(|cell| cell["name"].as_str()).collect()
}

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Ends with the program in any case.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_run_compares_what_is_installed_and_leaves_nothing() {
    let outputs = tempfile::tempdir().unwrap();
    let published = outputs.path().to_str().unwrap();
    let run = bench(&[&SMALL[..], &["--format", "json", "--publish", published]].concat(), None, 0);
    assert_eq!(run.stderr, "");
    let report = run.json();
    let expected: BTreeSet<&str> = LIBRARIES.into_iter().chain(installed()).collect();
    assert_eq!(names(&report), expected);
    has_the_schema(&report);
    plot_shows_every_system(&fs::read_to_string(outputs.path().join("peers.svg")).unwrap(), &expected);
    let json = fs::read_to_string(outputs.path().join("peers.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), report);
    let table = fs::read_to_string(outputs.path().join("peers.md")).unwrap();
    assert!(table.contains("](peers.svg)") && table.contains("| Guira | "), "{table}");
    assert!(table.contains("--features peers -- bench peers --records 2000"), "the command that repeats it: {table}");
}

fn has_the_schema(report: &Value) {
    assert_eq!(
        keys(report),
        [
            "aims",
            "cells",
            "key_bytes",
            "machine",
            "memcached_threads_ns",
            "needs",
            "peers",
            "rounds",
            "schema",
            "seed",
            "stages",
            "version"
        ]
    );
    assert_eq!((&report["schema"], &report["rounds"]), (&1.into(), &2.into()));
    let cells = report["cells"].as_array().expect("cells");
    for cell in cells {
        assert_eq!(
            keys(cell),
            [
                "clients",
                "max_ns",
                "median_ns",
                "min_ns",
                "name",
                "operations",
                "placement",
                "popularity",
                "task",
                "value_bytes",
                "variant"
            ]
        );
        let time = |name: &str| cell[name].as_f64().expect("a time");
        assert!(time("min_ns") > 0.0 && time("min_ns") <= time("median_ns"), "{cell}");
        assert!(time("median_ns") <= time("max_ns"), "{cell}");
    }
    let found = |field: &str| cells.iter().map(|cell| cell[field].to_string()).collect::<BTreeSet<_>>();
    let set = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(found("task"), set(&["\"dependent_get\"", "\"get\"", "\"get_many\"", "\"update\"", "\"ycsb_a\""]));
    assert_eq!(found("clients"), set(&["1", "2"]));
    assert_eq!(found("popularity"), set(&["\"uniform\"", "\"zipf\""]));
    assert_eq!(found("value_bytes"), set(&["100", "1024", "65536", "8"]));
    for aim in report["aims"].as_array().expect("aims") {
        assert_eq!(keys(aim), ["aimed", "bound", "is_met", "measured", "name", "popularity", "title"]);
        let ratio = |name: &str| aim[name].as_f64().expect("a ratio");
        let (measured, aimed) = (ratio("measured"), ratio("aimed"));
        let is_met = if aim["bound"] == "at_least" { measured >= aimed } else { measured <= aimed };
        assert_eq!(aim["is_met"], is_met, "{aim}");
        // What the kernel leaves to be had is known of reads.
        let is_of_reads = aim["name"].as_str().is_some_and(|name| name.starts_with("read"));
        assert_eq!(aim["bare"]["median"].as_f64().is_some_and(|ratio| ratio > 0.0), is_of_reads, "{aim}");
    }
}

fn plot_shows_every_system(svg: &str, names: &BTreeSet<&str>) {
    well_formed(svg);
    for name in names {
        let title = match *name {
            "guira" => "Guira",
            "raw" => "raw memory",
            "lmdb" => "LMDB",
            "redis" => "Redis",
            other => other,
        };
        assert!(svg.contains(&format!(">{title}")), "{title} has no bar");
    }
}

/// The references of XML that a plot may have, without their `&`.
const REFERENCES: [&str; 5] = ["amp;", "lt;", "gt;", "quot;", "#39;"];

/// Every element that is opened is closed, in order, and no text has a bare `<` or `&`.
fn well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some((text, after)) = rest.split_once('<') {
        let entities = text.split('&').skip(1);
        assert!(entities.into_iter().all(|entity| REFERENCES.iter().any(|name| entity.starts_with(name))));
        let (tag, after) = after.split_once('>').expect("a tag ends");
        assert!(tag.matches('"').count().is_multiple_of(2) && !tag.contains('<'), "{tag}");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{tag} closes another");
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().expect("a tag has a name"));
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
}

/// Every figure is of work that was done: processor time was used, trips were counted, and ratios are of such figures.
#[test]
fn over_tcp_a_node_is_compared_with_the_servers_that_are_installed() {
    let outputs = tempfile::tempdir().unwrap();
    let published = outputs.path().to_str().unwrap();
    let run = bench(&[&SMALL_TCP[..], &["--format", "json", "--publish", published]].concat(), None, 0);
    assert_eq!(run.stderr, "");
    let report = run.json();
    let installed = installed();
    let expected: BTreeSet<&str> = ["guira", "raw"].into_iter().chain(installed.iter().copied()).collect();
    assert_eq!(names(&report), expected);
    let cells = report["cells"].as_array().expect("cells");
    let bare = cells.iter().filter(|cell| cell["name"] == "raw");
    assert_eq!(
        bare.map(|cell| (&cell["mix"] == "ycsb_c") as u32).sum::<u32>(),
        2 * 2,
        "it is read from, at each point"
    );
    // Two mixes, two numbers of connections, two depths; Guira's pipelined reads in two ways.
    assert_eq!(cells.iter().filter(|cell| cell["name"] == "guira").count(), 2 * 2 * 2 + 2);
    cells.iter().for_each(is_of_real_work);
    has_ratios_and_aims(&report, &installed);
    let svg = fs::read_to_string(outputs.path().join("tcp.svg")).unwrap();
    well_formed(&svg);
    assert!(svg.contains(">Guira, get_many<") && svg.contains("4 operations on 2 connections each"), "{svg}");
    let json = fs::read_to_string(outputs.path().join("tcp.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), report);
    let table = fs::read_to_string(outputs.path().join("tcp.md")).unwrap();
    assert!(table.contains("](tcp.svg)") && table.contains("| Guira, one at a time | "), "{table}");
    assert!(table.contains("--features peers -- bench peers --tcp --records 500"), "the command: {table}");
}

fn is_of_real_work(cell: &Value) {
    let spread = |name: &str| ["min", "median", "max"].map(|part| cell[name][part].as_f64().expect("a figure"));
    for name in ["per_second", "per_server_second", "server_ns", "p50_ns", "p99_ns"] {
        let [min, median, max] = spread(name);
        assert!(0.0 < min && min <= median && median <= max, "{name}: {cell}");
    }
    // No server answers within 20 ns of its processor's time, and a second is more than any takes.
    assert!(spread("server_ns")[0] > 20.0 && spread("server_ns")[2] < 1e9, "{cell}");
    assert!(spread("p50_ns")[0] > 1000.0, "no packet is faster: {cell}");
    let depth = cell["depth"].as_f64().expect("a depth");
    let trips = cell["round_trips"].as_f64();
    let exact = match (cell["way"].as_str().expect("a way"), cell["mix"].as_str().expect("a mix")) {
        ("redis-benchmark", _) => return assert_eq!(trips, None, "{cell}"),
        ("pipeline" | "get_many", _) => 1.0 / depth,
        (_, "ycsb_c") => 1.0,
        (_, _) if cell["name"] != "guira" => 1.0,
        // A read takes 1, an update 2, and more while another client changes the same rows.
        _ => return assert!((1.3..6.0).contains(&trips.expect("trips")), "{cell}"),
    };
    assert!((trips.expect("trips") - exact).abs() < 1e-9, "{exact}: {cell}");
    assert!(cell["client_ns"]["min"].as_f64().expect("ours") > 20.0, "{cell}");
}

fn has_ratios_and_aims(report: &Value, installed: &[&str]) {
    let ratios = report["ratios"].as_array().expect("ratios");
    let peers: BTreeSet<&str> = ratios.iter().filter_map(|ratio| ratio["peer"].as_str()).collect();
    assert_eq!(peers, installed.iter().copied().collect());
    assert!(ratios.iter().all(|ratio| ratio["ratio"]["min"].as_f64().is_some_and(|min| min > 0.0)), "{ratios:?}");
    let aims = report["aims"].as_array().expect("aims");
    // Four points for three aims against Redis, one for that of latency; four for the one against memcached.
    let count = |name| if installed.contains(&name) { 1 } else { 0 };
    assert_eq!(aims.len(), count("redis") * (3 * 4 + 1) + count("memcached") * 4);
    for aim in aims {
        let (measured, aimed) = (aim["measured"]["median"].as_f64(), aim["aimed"].as_f64());
        let is_met = if aim["bound"] == "at_least" { measured >= aimed } else { measured <= aimed };
        assert_eq!(aim["is_met"], is_met, "{aim}");
    }
}

/// Every key that was acknowledged is there, also of clients that were killed: otherwise the run fails.
#[test]
fn growth_is_compared_with_the_systems_that_are_installed() {
    let outputs = tempfile::tempdir().unwrap();
    let published = outputs.path().to_str().unwrap();
    let run = bench(&[&SMALL_GROWTH[..], &["--format", "json", "--publish", published]].concat(), None, 0);
    assert_eq!(run.stderr, "");
    let report = run.json();
    let curves = report["curves"].as_array().expect("curves");
    let has_redis = installed().contains(&"redis");
    let expected = ["grows", "fixed", "grows_killed", "fixed_killed", "dashmap", "redis"];
    let found: Vec<&str> = curves.iter().filter_map(|curve| curve["series"].as_str()).collect();
    assert_eq!(found, expected[..if has_redis { 6 } else { 5 }]);
    // Whole groups of each client.
    assert_eq!((&report["keys"], &report["first"], &report["clients"]), (&58_368.into(), &2_000.into(), &3.into()));
    for curve in curves {
        let figure = |name: &str| curve[name].as_f64().expect("a figure");
        assert!(figure("slowest_per_second") <= figure("median_per_second") && figure("per_second") > 0.0, "{curve}");
        assert!(0.0 < figure("p50_ns") && figure("p50_ns") <= figure("p999_ns"), "{curve}");
        assert!(figure("p999_ns") <= figure("most_ns"), "{curve}");
        let is_guira = curve["problems"].as_u64();
        assert_eq!(is_guira, (curve["series"] != "dashmap" && curve["series"] != "redis").then_some(0), "{curve}");
        if is_guira.is_some() {
            assert!((16.0..100.0).contains(&figure("bytes_per_key")), "{curve}");
        }
    }
    for ratio in report["ratios"].as_array().expect("ratios") {
        let part = |name: &str| ratio[name].as_f64().expect("a ratio");
        assert_eq!(ratio["slowest_window_is_met"], part("slowest_window") >= 0.5, "{ratio}");
        assert_eq!(ratio["p999_is_met"], part("p999") <= 10.0, "{ratio}");
    }
    for curve in curves {
        let compared = &curve["after_growth"];
        assert_eq!(compared.is_object(), curve["series"] == "grows", "{curve}");
        for cost in compared["ratios"].as_object().into_iter().flatten() {
            assert!(cost.1.as_f64().expect("a ratio") > 0.0, "{compared}");
        }
    }
    let of_table = |table: &str| curves[0]["after_growth"][table]["fill"].as_f64().expect("a part");
    assert!((0.5..2.0).contains(&(of_table("grown") / of_table("created"))), "both have the same keys");
    let svg = fs::read_to_string(outputs.path().join("growth.svg")).unwrap();
    well_formed(&svg);
    assert!(svg.contains(">Guira, grows: ") && svg.contains(">dashmap: ") && svg.contains("<polyline"), "{svg}");
    let json = fs::read_to_string(outputs.path().join("growth.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), report);
    let table = fs::read_to_string(outputs.path().join("growth.md")).unwrap();
    assert!(table.contains("](growth.svg)") && table.contains("| Guira, grows | "), "{table}");
}

#[test]
fn an_interrupted_run_of_growth_leaves_nothing() {
    let arguments = [&SMALL_GROWTH[..3], &["--records", "8M", "--first", "2000", "--clients", "3"]].concat();
    interrupt_while(&arguments, |(_, inserters)| inserters.len() == 3);
}

#[test]
fn an_interrupted_run_over_tcp_leaves_nothing() {
    let arguments = [&SMALL_TCP[..7], &["--rounds", "1000"]].concat();
    interrupt_while(&arguments, |(_, servers)| {
        let programs: BTreeSet<&str> = servers.iter().map(|(name, _)| name.as_str()).collect();
        programs.contains("guira") && programs.len() > installed().len()
    });
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let arguments = [&SMALL[..6], &["--rounds", "1000"]].concat();
    // All servers that are installed, and LMDB's directory: the systems of the first stage, not those on trial.
    interrupt_while(&arguments, |(directories, servers)| {
        let programs: BTreeSet<&str> = servers.iter().map(|(name, _)| name.as_str()).collect();
        directories.iter().any(|path| path.join("lmdb").exists()) && programs.len() >= installed().len()
    });
}

/// Interrupts a run when `is_timing` says so of what it has started, and fails unless it ends and leaves nothing.
fn interrupt_while(arguments: &[&str], is_timing: impl Fn(&(Vec<PathBuf>, Vec<(String, PathBuf)>)) -> bool) {
    let mut running = Running(command(arguments).stdout(Stdio::null()).spawn().expect("the program starts"));
    let pid = running.0.id();
    let until = Instant::now() + 2 * patience();
    while !is_timing(&leftovers(pid)) {
        assert!(Instant::now() < until, "nothing was started");
        assert!(matches!(running.0.try_wait(), Ok(None)), "the run ended by itself");
        thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&running.0), Signal::INT).expect("it can be interrupted");
    while matches!(running.0.try_wait(), Ok(None)) {
        assert!(Instant::now() < until, "it does not end");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(running.0.wait().expect("it has ended").code(), Some(130));
    assert_eq!(leftovers(pid), NOTHING);
}

#[test]
fn impossible_sizes_are_refused_before_anything_starts() {
    let run = bench(&["bench", "peers", "--records", "4G", "--format", "json"], None, 3);
    let message = run.error()["message"].to_string();
    assert!(message.contains("of memory") && message.contains("--quick"), "{message}");
    for wrong in [["--rounds", "0"], ["--records", "1"], ["--only", "valkey"]] {
        let run = bench(&[&["bench", "peers", "--format", "json"], &wrong[..]].concat(), None, 2);
        assert_eq!(run.error()["blame"], "misuse", "{wrong:?}");
    }
    for wrong in [["--clients", "0"], ["--clients", "65"], ["--first", "0"], ["--records", "9"], ["--only", "lmdb"]] {
        let run = bench(&[&["bench", "peers", "--growth", "--format", "json"], &wrong[..]].concat(), None, 2);
        assert_eq!(run.error()["blame"], "misuse", "{wrong:?}");
    }
    for wrong in [["--connections", "0"], ["--depths", "65"], ["--only", "lmdb"]] {
        let run = bench(&[&["bench", "peers", "--tcp", "--format", "json"], &wrong[..]].concat(), None, 2);
        assert_eq!(run.error()["blame"], "misuse", "{wrong:?}");
    }
}

#[test]
fn missing_systems_are_reported_and_left_out() {
    let run = |format: &[&str]| bench(&[&SMALL[..], &["--skip", "papaya,lmdb"], format].concat(), Some(""), 0);
    let human = run(&[]);
    assert!(human.stderr.contains("apt-get install redis-server"), "{}", human.stderr);
    assert!(human.stderr.contains("apt-get install memcached"), "{}", human.stderr);
    assert!(human.text().contains("Redis is not installed"), "{}", human.text());
    let report = run(&["--format", "json"]).json();
    assert_eq!(names(&report), BTreeSet::from(["dashmap", "guira", "raw"]));
    let alone = bench(&[&SMALL_TCP[..], &["--format", "json"]].concat(), Some(""), 0).json();
    assert_eq!((names(&alone), &alone["aims"]), (BTreeSet::from(["guira", "raw"]), &Value::Array(Vec::new())));
    let peers = report["peers"].as_array().unwrap();
    let redis = peers.iter().find(|peer| peer["name"] == "redis").unwrap();
    assert!(redis["version"].is_null() && redis["missing"].as_str().unwrap().contains("apt-get install"), "{redis}");
}
