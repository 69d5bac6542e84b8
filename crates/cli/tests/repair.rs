//! What dead and stopped clients leave, and what the program does about it.

mod common;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::{Table, command, guira};
use serde_json::Value;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A `guira load` that waits for more records, and so has a client.
struct Loader(Child);

impl Loader {
    fn start(table: &Table) -> Loader {
        let mut child = command(&["load", table.url(), "-", "--input", "tsv"]);
        let mut child = child.stdin(std::process::Stdio::piped()).spawn().expect("the program starts");
        child.stdin.as_mut().expect("a pipe was asked for").write_all(b"k\tv\n").expect("it reads");
        let loader = Loader(child);
        wait_for("the loader has a client", || clients(table).iter().any(|client| client["process"] == loader.id()));
        loader
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn clients(table: &Table) -> Vec<Value> {
    let stat = guira(&["stat", table.url(), "--format", "json"]).expect(0).json();
    stat["clients"].as_array().expect("a list").clone()
}

fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Loader, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
}

/// [R-RECOVER-3] Dead clients are recovered on request, and it is told what they left; living ones are left alone.
#[test]
fn the_dead_are_recovered_and_told() {
    let table = Table::new("repair", "bytes:64");
    let said = guira(&["check", table.url(), "--repair"]).expect(0).text();
    assert!(said.starts_with("nobody is dead, 0 clients alive\n"), "{said}");
    let (mut first, living, mut second) = (Loader::start(&table), Loader::start(&table), Loader::start(&table));
    first.kill();
    signal(&living, "-STOP");
    let path = format!("/proc/{}/stat", living.id());
    wait_for("it is stopped", || std::fs::read_to_string(&path).is_ok_and(|stat| stat.contains(") T ")));
    let said = guira(&["check", table.url(), "--repair"]).expect(0).text();
    let dead = format!("(process {}): nothing held but its slot\n", first.id());
    let stopped = format!("(process {}): stopped, and alive: it keeps what it holds", living.id());
    assert!(said.contains(&dead) && said.contains(&stopped), "{said}");
    assert!(said.contains("\n1 dead client recovered, 2 clients alive\n"), "{said}");
    second.kill();
    let answer = guira(&["check", table.url(), "--repair", "--format", "json"]).expect(0).json();
    let recovered = answer["repair"]["recovered"].as_array().expect("a list");
    assert_eq!((recovered.len(), &recovered[0]["process"]), (1, &second.id().into()));
    assert_eq!(answer["repair"]["living"][0]["stopped"], true);
    assert_eq!(answer["clean"], true);
    assert!(guira(&["check", table.url(), "--format", "json"]).expect(0).json().get("repair").is_none());
    // The totals tell of it afterwards, to people and to programs.
    let totals = guira(&["stat", table.url(), "--format", "json"]).expect(0).json()["totals"].clone();
    assert_eq!((&totals["recoveries"], &totals["idle_deaths"]), (&2.into(), &2.into()));
    let said = guira(&["stat", table.url()]).expect(0).text();
    assert!(said.lines().any(|line| line.split_whitespace().eq(["idle", "deaths", "2"])), "{said}");
}

/// [R-RECOVER-1] A stopped process is killed by name of its slot, and by nothing else.
#[test]
fn a_stopped_client_is_kicked() {
    let table = Table::new("kick", "bytes:64");
    let mut loader = Loader::start(&table);
    signal(&loader, "-STOP");
    let slot = clients(&table)[0]["slot"].to_string();
    let said = guira(&["kick", table.url(), "--slot", &slot]).expect(0).text();
    let wanted =
        format!("killed process {}, which had client slot {slot} of {}: nothing held", loader.id(), table.url());
    assert!(said.starts_with(&wanted), "{said}");
    assert_eq!(loader.0.wait().expect("it ended").signal(), Some(9));
    assert!(clients(&table).is_empty());
    let nobody = guira(&["kick", table.url(), "--slot", &slot]).expect(1);
    assert!(nobody.stderr.contains("has no client in slot") && nobody.stdout.is_empty(), "{}", nobody.stderr);
    let nobody = guira(&["kick", table.url(), "--slot", &slot, "--format", "json"]).expect(1).json();
    assert_eq!(nobody["killed"], false);
    let missing = Table::unused("kick");
    assert!(guira(&["kick", missing.url(), "--slot", "0"]).expect(1).stderr.contains("does not exist"));
    assert!(guira(&["check", missing.url(), "--repair"]).expect(1).stderr.contains("does not exist"));
}

/// What `load --acknowledge` writes down is what is stored, as `dump` prints it.
#[test]
fn what_is_stored_is_written_down() {
    let table = Table::new("acknowledge", "bytes:64");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("stored");
    let shown = file.display().to_string();
    let input = directory.path().join("records");
    let records: Vec<String> = (0..600).map(|n| format!("key {n}\tvalue\\t{n}")).collect();
    std::fs::write(&input, records.join("\n")).expect("it is written");
    let input = input.display().to_string();
    guira(&["load", table.url(), &input, "--acknowledge", &shown, "--threads", "2"]).expect(0);
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let written = sorted(std::fs::read_to_string(&file).expect("it was written"));
    assert_eq!(written, sorted(records.join("\n")));
    assert_eq!(written, sorted(guira(&["dump", table.url()]).expect(0).text()));
    // Where nothing can be written down, nothing is loaded, or it is said what was.
    let failed = guira(&["load", table.url(), &input, "--acknowledge", &directory.path().display().to_string()]);
    assert!(failed.expect(3).stderr.contains("cannot open"));
    let full = guira(&["load", table.url(), &input, "--acknowledge", "/dev/full"]).expect(3);
    assert!(full.stderr.contains("write down what is stored") && full.stderr.contains("records were loaded"));
}

/// [R-RECOVER-2] [R-COMMIT-1] The script of the README: writers are killed at any moment, and nothing that they were
/// told is stored is lost.
#[test]
fn the_kill_loop_of_the_readme_loses_nothing() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kill-loop.sh");
    let output = Command::new("sh").args([script, "30"]).env("GUIRA", env!("CARGO_BIN_EXE_guira")).output();
    let output = output.expect("sh runs");
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}{failed}");
    assert!(output.status.success());
    assert!(said.contains("; 0 lost") && said.contains("30 kills") && said.contains("is sound"));
    let acknowledged = said.split_once("30 kills; ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(acknowledged.is_some_and(|changes| changes > 1_000), "the writers wrote");
}
