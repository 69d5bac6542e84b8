//! Recovery of dead clients, and handling of stopped ones.

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use crate::common::{PROGRAM, Run, Table, command, damage, guira, guira_with_input, heeding_signals, mounting_shell};
use guira::Store;
use guira::raw::layout::OwnerId;
use guira_fabric::{Lane, Region, Submitted, Verb};
use guira_fabric_shm::{Access, Location, ShmRegion};
use guira_testing::wait_until;
use serde_json::Value;

/// A `guira load` that waits for more records, and so has a client.
pub struct Loader(Child);

impl Loader {
    /// The key that it stores.
    const KEY: &str = "k";

    pub fn start(table: &Table) -> Loader {
        let mut child = command(&["load", table.url(), "-", "--input", "tsv"]);
        let mut child = child.stdin(Stdio::piped()).spawn().expect("the program starts");
        let record = format!("{}\tv\n", Self::KEY);
        child.stdin.as_mut().expect("a pipe was asked for").write_all(record.as_bytes()).expect("it reads");
        let loader = Loader(child);
        wait_until("the loader has a client", || clients(table).iter().any(|client| client["process"] == loader.id()));
        loader
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) {
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

pub fn clients(table: &Table) -> Vec<Value> {
    let stat = guira(&["stat", table.url(), "--format", "json"]).expect(0).json();
    stat["clients"].as_array().expect("a list").clone()
}

pub fn signal(child: &Loader, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
}

/// [R-RECOVER-3] Dead clients are recovered on request, with a report of what they left; living ones are left alone.
#[test]
fn dead_clients_are_recovered_and_reported() {
    let table = Table::new("repair", "bytes:64");
    let said = guira(&["check", table.url(), "--repair"]).expect(0).text();
    assert!(said.starts_with("no dead clients, 0 clients alive\n"), "{said}");
    let (mut first, living, mut second) = (Loader::start(&table), Loader::start(&table), Loader::start(&table));
    first.kill();
    signal(&living, "-STOP");
    let path = format!("/proc/{}/stat", living.id());
    wait_until("it is stopped", || std::fs::read_to_string(&path).is_ok_and(|stat| stat.contains(") T ")));
    let said = guira(&["check", table.url(), "--repair"]).expect(0).text();
    let dead = format!("(process {}): it held only its slot\n", first.id());
    let stopped = format!("(process {}): stopped, but alive, so it keeps what it holds", living.id());
    assert!(said.contains(&dead) && said.contains(&stopped), "{said}");
    assert!(said.contains("\n1 dead client recovered, 2 clients alive\n"), "{said}");
    second.kill();
    let answer = guira(&["check", table.url(), "--repair", "--format", "json"]).expect(0).json();
    let recovered = answer["repair"]["recovered"].as_array().expect("a list");
    assert_eq!((recovered.len(), &recovered[0]["process"]), (1, &second.id().into()));
    assert_eq!(answer["repair"]["living"][0]["stopped"], true);
    assert_eq!(answer["clean"], true);
    assert!(guira(&["check", table.url(), "--format", "json"]).expect(0).json().get("repair").is_none());
    // The totals count it afterwards, in text and in JSON.
    let totals = guira(&["stat", table.url(), "--format", "json"]).expect(0).json()["totals"].clone();
    assert_eq!((&totals["recoveries"], &totals["idle_deaths"]), (&2.into(), &2.into()));
    let said = guira(&["stat", table.url()]).expect(0).text();
    assert!(said.lines().any(|line| line.split_whitespace().eq(["idle", "deaths", "2"])), "{said}");
}

/// [R-RECOVER-1] A stopped process is killed by the number of its slot, and only so.
#[test]
fn a_stopped_client_is_kicked() {
    let table = Table::new("kick", "bytes:64");
    let mut loader = Loader::start(&table);
    signal(&loader, "-STOP");
    let slot = clients(&table)[0]["slot"].to_string();
    let said = guira(&["kick", table.url(), "--slot", &slot]).expect(0).text();
    let wanted =
        format!("killed process {}, which had client slot {slot} of {}: it held only", loader.id(), table.url());
    assert!(said.starts_with(&wanted), "{said}");
    assert_eq!(loader.0.wait().expect("it ended").signal(), Some(9));
    assert!(clients(&table).is_empty());
    let no_client = guira(&["kick", table.url(), "--slot", &slot]).expect(1);
    assert!(no_client.stderr.contains("has no client in slot") && no_client.stdout.is_empty(), "{}", no_client.stderr);
    let no_client = guira(&["kick", table.url(), "--slot", &slot, "--format", "json"]).expect(1).json();
    assert_eq!(no_client["killed"], false);
    let missing = Table::unused("kick");
    assert!(guira(&["kick", missing.url(), "--slot", "0"]).expect(1).stderr.contains("does not exist"));
    assert!(guira(&["check", missing.url(), "--repair"]).expect(1).stderr.contains("does not exist"));
}

/// Simulates that the client in `slot` is changing `key`: takes the lock of the key's first row for it.
fn lock_for(table: &Table, key: &str, slot: &Value) {
    let store = Store::open(table.url()).expect("it is there");
    let there = store.table();
    let row = there.placement().rows(there.placement().digest(key.as_bytes())).first;
    let mask = there.locks().mask(there.locks().lock_of(row));
    let path = store.stat().expect("it can be read").region.file().expect("a file").path.clone();
    let region = ShmRegion::open(&Location::file(&path), Access::ReadWrite).expect("it is there");
    let owner = OwnerId(u16::try_from(slot.as_u64().expect("a number")).expect("a slot") + 1);
    let (addr, add) = (there.locks().addr(mask.word), there.locks().held(owner, mask.mask));
    let submitted = region.lane().submit(&mut [Verb::FetchAdd { addr, add, found: &mut 0 }]);
    assert!(matches!(submitted, Submitted::Done(Ok(()))));
}

/// A key whose first row has another lock than both rows of the loader's key, so that a loader can store its key while
/// that lock is taken. The seed of a table is random.
fn key_beside_the_loader(table: &Table) -> String {
    let store = Store::open(table.url()).expect("it is there");
    let there = store.table();
    let rows = |key: &str| there.placement().rows(there.placement().digest(key.as_bytes()));
    let loaded = rows(Loader::KEY);
    let taken = [loaded.first, loaded.second].map(|row| there.locks().lock_of(row));
    let keys = (0..1_000).map(|n| format!("key{n}"));
    let mut free = keys.filter(|key| !taken.contains(&there.locks().lock_of(rows(key).first)));
    free.next().expect("the table has more than two locks")
}

/// Simulates that the client in `slot` is changing every row.
fn lock_all_for(table: &Table, slot: &Value) {
    let store = Store::open(table.url()).expect("it is there");
    let locks = *store.table().locks();
    let region = ShmRegion::open(&Location::file(table.path()), Access::ReadWrite).expect("it is there");
    let owner = OwnerId(u16::try_from(slot.as_u64().expect("a number")).expect("a slot") + 1);
    for lock in (0..locks.locks()).map(guira::raw::LockId) {
        let mask = locks.mask(lock);
        let verb = Verb::FetchAdd { addr: locks.addr(mask.word), add: locks.held(owner, mask.mask), found: &mut 0 };
        assert!(matches!(region.lane().submit(&mut [verb]), Submitted::Done(Ok(()))));
    }
}

/// A lock of a client slot that the table does not have is damage, and no client waits for it; it is freed when no
/// client is alive that may have held it.
#[test]
fn a_lock_of_a_nonexistent_slot_is_freed_when_no_client_is_alive() {
    let table = Table::new("nobody", "bytes:64");
    let (url, key) = (table.url(), &key_beside_the_loader(&table));
    guira(&["put", url, key, "value"]).expect(0);
    lock_for(&table, key, &Value::from(1999));
    let damaged = guira(&["put", url, key, "other", "--deadline", "600min"]).expect(3); // It does not wait.
    let advice = format!("nothing was changed; guira check --repair {url} frees it once no client is alive");
    assert!(damaged.stderr.contains("names a client slot that the table does not have"), "{}", damaged.stderr);
    assert!(damaged.stderr.trim_end().ends_with(&advice), "{}", damaged.stderr);
    assert_eq!(guira(&["get", url, key]).expect(0).text(), "value");
    guira(&["check", url]).expect(1);
    let mut loader = Loader::start(&table);
    let kept = guira(&["check", url, "--repair"]).expect(1).text();
    assert!(kept.contains("1 lock of client slots that the table does not have NOT FREED"), "{kept}");
    loader.kill();
    let answer = guira(&["check", url, "--repair", "--format", "json"]).expect(0).json();
    assert_eq!(answer["repair"]["freed_locks"].as_array().map(Vec::len), Some(1), "{answer}");
    assert_eq!(answer["repair"]["damaged_locks"].as_array().map(Vec::len), Some(0), "{answer}");
    guira(&["put", url, key, "other"]).expect(0);
    guira(&["check", url]).expect(0);
}

/// Rows that stay half written while their writer is stopped cost a dump one deadline, not one each: the error of each
/// row says how long it was waited for. Takes 2 s.
#[test]
fn a_dump_waits_one_deadline_for_all_that_is_damaged() {
    let table = Table::new("patient", "fixed:8:8");
    let lines: String = (0..600).map(|n| format!("key{n:05}\tvalue{n:03}\n")).collect();
    guira_with_input(&["load", table.url(), "-"], lines.as_bytes()).expect(0);
    let before = guira(&["dump", table.url()]).expect(0).text().lines().count();
    let mut child = command(&["load", table.url(), "-", "--input", "tsv"]);
    let mut loader = Loader(child.stdin(Stdio::piped()).spawn().expect("the program starts"));
    loader.0.stdin.as_mut().expect("a pipe was asked for").write_all(b"key00001\tvalue001\n").expect("it reads");
    wait_until("the loader has a client", || clients(&table).len() == 1);
    let slot = clients(&table)[0]["slot"].clone();
    signal(&loader, "-STOP");
    lock_all_for(&table, &slot);
    let values = ["value007", "value150", "value300", "value420", "value599"];
    values.iter().for_each(|value| damage(&table, value.as_bytes()));
    const DEADLINE_MS: u64 = 2_000;
    let run = guira(&["dump", table.url(), "--deadline", &format!("{DEADLINE_MS}ms")]).expect(3);
    let rows = run.stderr.lines().count() - 1;
    assert!(rows >= 3, "some values share a row, not all: {}", run.stderr);
    assert!(run.stderr.contains("was still held"), "{}", run.stderr);
    let waited_ms = run.stderr.split(" after ").filter_map(|text| text.split_once(" ms")?.0.parse::<u64>().ok());
    assert_eq!(waited_ms.filter(|waited| *waited >= DEADLINE_MS).count(), 1, "{}", run.stderr);
    let printed = run.text().lines().count();
    assert!(printed < before && printed > before / 2, "{printed} of {before}: everything else is printed");
}

/// A client that waits in vain is told which client blocks it, and what to do; `stat` says that it is stopped. Once it
/// is dead, what it left is not damage.
#[test]
fn a_blocking_client_is_named() {
    let table = Table::new("way", "bytes:64");
    let mut loader = Loader::start(&table);
    let slot = clients(&table)[0]["slot"].clone();
    lock_for(&table, "key", &slot);
    signal(&loader, "-STOP");
    wait_until("it is reported as stopped", || clients(&table)[0]["state"] == "stopped");
    let said = guira(&["stat", table.url()]).expect(0).text();
    assert!(said.contains("1 of 40, 1 of them stopped") && said.contains(" stopped  "), "{said}");
    let (url, process) = (table.url(), loader.id());
    let advice = format!(
        "process {process} has client slot {slot} and is stopped: guira stat {url} lists the clients, guira kick {url} \
         --slot {slot} kills that process"
    );
    let busy = guira(&["put", url, "key", "value", "--deadline", "20ms"]).expect(3);
    assert!(
        busy.stderr.contains("; nothing was changed; ") && busy.stderr.trim_end().ends_with(&advice),
        "{}",
        busy.stderr
    );
    let busy = guira(&["put", url, "key", "value", "--deadline", "20ms", "--format", "json"]).expect(3);
    assert_eq!((&busy.error()["blame"], &busy.error()["effect"]), (&"busy".into(), &"none".into()));
    let said = guira(&["check", url]).expect(0).text();
    assert!(!said.contains("DAMAGED") && !said.contains("cannot be changed") && said.contains("is sound: "), "{said}");

    loader.kill();
    let said = guira(&["check", url]).expect(0).text();
    let verdict = format!("{url} is sound, with 1 dead client to recover (guira check --repair {url}): ");
    assert!(said.contains("to be recovered: lock ") && said.contains(&verdict), "{said}");
    let answer = guira(&["check", url, "--format", "json"]).expect(0).json();
    assert_eq!((&answer["clean"], &answer["dead_clients"]), (&true.into(), &1.into()));
    assert_eq!((&answer["problems_total"], &answer["under_way_total"]), (&0.into(), &1.into()));
    let left = &answer["under_way"][0];
    assert_eq!((&left["kind"], &left["cause"]), (&"stuck_lock".into(), &"dead_client".into()));
    let said = guira(&["check", url, "--repair"]).expect(0).text();
    assert!(said.contains(&format!("{url} is sound: ")) && said.contains("1 dead client recovered"), "{said}");
    guira(&["put", url, "key", "value"]).expect(0);
}

/// A slot that the table does not have is misuse; an empty slot is the answer "no".
#[test]
fn slots_are_those_of_the_table() {
    let table = Table::new("slots", "bytes:64");
    let refused = guira(&["kick", table.url(), "--slot", "40"]).expect(2);
    assert!(refused.stderr.contains("has client slots 0 to 39, not 40"), "{}", refused.stderr);
    guira(&["kick", table.url(), "--slot", "39"]).expect(1);
}

/// If no slot is free, the error says who has them, and what to do.
#[test]
fn a_table_full_of_clients_says_what_to_do() {
    let table = Table::unused("crowd");
    guira(&["create", table.url(), "--capacity", "100", "--max-clients", "1"]).expect(0);
    let _loader = Loader::start(&table);
    let refused = guira(&["put", table.url(), "key", "value"]).expect(3);
    let advice = format!("guira stat {} lists them, guira kick {0} --slot N kills", table.url());
    assert!(
        refused.stderr.contains("no client slot is free (1 in all, 0 taken by clients that died)")
            && refused.stderr.contains(&advice),
        "{}",
        refused.stderr
    );
}

/// `load --acknowledge` writes exactly the stored records, as `dump` prints them.
#[test]
fn stored_records_are_acknowledged() {
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
    // A line cut by a kill does not become part of the next one.
    let whole = "key\tvalue\n".repeat(3);
    std::fs::write(&file, format!("{whole}key 7\tval")).expect("it is written");
    guira(&["load", table.url(), &input, "--acknowledge", &shown]).expect(0);
    let written = std::fs::read_to_string(&file).expect("it was written");
    assert_eq!(written.strip_prefix(&whole).map(|rest| sorted(rest.to_owned())), Some(sorted(records.join("\n"))));
    // If the file cannot be written, nothing is loaded, or the error says what was.
    let failed = guira(&["load", table.url(), &input, "--acknowledge", &directory.path().display().to_string()]);
    assert!(failed.expect(3).stderr.contains("cannot open"));
    let full = guira(&["load", table.url(), &input, "--acknowledge", "/dev/full"]).expect(3);
    assert!(full.stderr.contains("write the file of --acknowledge") && full.stderr.contains("records were loaded"));
}

/// The script of the guide, in a process group and a directory for temporary files of its own.
struct KillLoop {
    child: Child,
    directory: tempfile::TempDir,
}

impl KillLoop {
    fn start(kills: &str) -> KillLoop {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = heeding_signals("sh");
        command.args([concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kill-loop.sh"), kills]);
        command.env("GUIRA", env!("CARGO_BIN_EXE_guira")).env("TMPDIR", directory.path()).process_group(0);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh runs");
        KillLoop { child, directory }
    }

    /// Waits for the end of the script; returns its exit code, standard output and standard error.
    fn wait(mut self) -> (Option<i32>, String, String) {
        let stdout = self.child.stdout.take().expect("a pipe was asked for");
        let stderr = self.child.stderr.take().expect("a pipe was asked for");
        let said = std::thread::spawn(move || std::io::read_to_string(stdout).expect("text"));
        let failed = std::thread::spawn(move || std::io::read_to_string(stderr).expect("text"));
        wait_until("the script ends", || self.child.try_wait().expect("it is a child").is_some());
        let (said, failed) = (said.join().expect("it is read"), failed.join().expect("it is read"));
        println!("{said}{failed}");
        assert_eq!(self.directory.path().read_dir().expect("it is there").count(), 0, "it cleans up");
        (self.child.wait().expect("it ended").code(), said, failed)
    }
}

/// The stat files of the processes of a group, without those that have ended.
fn processes(group: u32) -> Vec<String> {
    let group = group.to_string();
    let stats = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let stats = stats.filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    let is_of = |stat: &String| {
        let fields: Vec<&str> = stat.rsplit_once(") ").map_or(Vec::new(), |(_, rest)| rest.split(' ').collect());
        fields.first() != Some(&"Z") && fields.get(2) == Some(&group.as_str())
    };
    stats.filter(is_of).collect()
}

impl Drop for KillLoop {
    fn drop(&mut self) {
        // The group is its own as long as it is not waited for, and afterwards as long as one of its processes lives.
        if !processes(self.child.id()).is_empty() {
            let _ = Command::new("kill").args(["-9", "--", &format!("-{}", self.child.id())]).status();
        }
        let _ = self.child.wait();
    }
}

/// [R-RECOVER-2] [R-COMMIT-1] The script of the guide: writers are killed at any moment, and no acknowledged record is
/// lost.
#[test]
fn the_kill_loop_of_the_readme_loses_nothing() {
    let (code, said, failed) = KillLoop::start("31").wait();
    assert_eq!((code, failed.as_str()), (Some(0), ""));
    assert!(said.contains("; 0 lost") && said.contains("\n31 kills; ") && said.contains("is sound"));
    let recoveries = said.lines().find_map(|line| line.strip_prefix("recoveries")?.trim().parse::<u32>().ok());
    // A writer that is killed before it has opened the table leaves nothing: on a busy machine, some are.
    assert!(recoveries.is_some_and(|count| (16..=31).contains(&count)), "lives end by kills: {said}");
    let acknowledged = said.split_once("31 kills; ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(acknowledged.is_some_and(|changes| changes > 1_000), "the writers wrote");
}

/// Interrupted, the script ends its writers and destroys its table, whether or not the shell runs its EXIT trap on
/// signals.
#[test]
fn an_interrupted_kill_loop_cleans_up() {
    for (name, number) in [("-HUP", 1), ("-INT", 2), ("-TERM", 15)] {
        let script = KillLoop::start("999999");
        let path = script.directory.path().to_owned();
        // The third writer has stored something: there is something to clean up.
        let work = || path.read_dir().expect("it is there").flatten().next().map(|work| work.path());
        let stored = || std::fs::metadata(work()?.join("stored.2")).ok().filter(|stored| stored.len() > 0);
        wait_until("its writers write", || stored().is_some());
        let table = format!(
            "kill-loop-{}",
            work().and_then(|work| Some(work.extension()?.to_str()?.to_owned())).expect("a name")
        );
        let is_of = |file: &std::fs::DirEntry| file.file_name().to_string_lossy().contains(&table);
        let tables = || std::fs::read_dir("/dev/shm").expect("it is there").flatten().filter(is_of).count();
        assert_eq!(tables(), 1);
        let status = Command::new("kill").args([name, &script.child.id().to_string()]).status().expect("kill runs");
        assert!(status.success());
        let group = script.child.id();
        assert_eq!(script.wait().0, Some(128 + number), "{name}");
        assert_eq!(tables(), 0, "{name}: its table is destroyed");
        assert_eq!(processes(group), [""; 0], "{name}: processes of it live");
    }
}

/// The number of kills is a number.
#[test]
fn the_kill_loop_refuses_invalid_numbers() {
    for kills in ["abc", "1e3", "-5", "100000000000000000000", "0", "007", "", "3 4", "+3"] {
        let (code, said, failed) = KillLoop::start(kills).wait();
        assert_eq!((code, said.as_str()), (Some(2), ""), "{kills:?}");
        assert!(failed.contains("KILLS is a whole number from 1 to 999999") && failed.lines().count() == 1);
    }
    assert!(KillLoop::start("1").wait().1.contains("\n1 kills; "));
}

/// Processes that /proc hides from a user are never said to have ended, and are not killed without a proof.
#[test]
fn a_client_that_proc_hides_is_not_taken_for_ended() {
    let table = Table::unused("hidden");
    guira(&["create", table.url(), "--capacity", "100", "--max-clients", "1", "--mode", "666"]).expect(0);
    let mut loader = Loader::start(&table);
    signal(&loader, "-STOP");
    let as_other = "setpriv --reuid 12345 --regid 12345 --clear-groups ./guira";
    let script = format!(
        "mount -t proc -o hidepid=2 proc /proc && cp $(command -v guira) . && chmod 755 . && {as_other} --version || \
         exit 77
         {as_other} check --repair {0} && {as_other} kick {0} --slot 0 --deadline 100ms; echo kicked: $?",
        table.url()
    );
    match mounting_shell(&script) {
        Some(Run { code: Some(77), stderr, .. }) => return println!("NOT RUN: {stderr}"),
        None => return,
        Some(run) => {
            let (said, kick) = (run.text(), &run.stderr);
            assert!(said.contains("1 client alive") && said.ends_with("kicked: 3\n"), "{said} {kick}");
            assert!(kick.contains("/proc does not show it to this user (hidepid)"), "{kick}");
        }
    }
    assert_eq!(clients(&table)[0]["state"], "stopped");
    loader.kill();
}

/// The clock of another time namespace is shifted, and start times with it: a live client there is never said to have
/// ended.
#[test]
fn a_client_in_another_time_namespace_is_not_taken_for_ended() {
    let table = Table::new("time", "bytes:64");
    let shifted = ["--time", "--boottime", "86400", "--fork", "--kill-child"];
    let is_possible = Command::new("unshare").args(shifted).arg("true").output().is_ok_and(|run| run.status.success());
    if !is_possible {
        return println!("skipped: this user may not make time namespaces");
    }
    let mut load = Command::new("unshare");
    load.args(shifted).args([PROGRAM, "load", table.url(), "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut load = load.spawn().expect("unshare starts");
    let mut stdin = load.stdin.take().expect("a pipe was asked for");
    stdin.write_all(b"first\t1\n").expect("the program reads");
    wait_until("the first record is stored", || guira(&["get", table.url(), "first"]).code == Some(0));
    let stat = guira(&["stat", table.url(), "--format", "json"]).expect(0).json();
    let slot = stat["clients"][0]["slot"].to_string();
    let check = guira(&["check", table.url(), "--repair"]).expect(0).text();
    assert!(
        check.contains(
            "1 client alive, 1 of them in other containers or hosts, or hidden from this user: unknown whether stopped"
        ),
        "{check}"
    );
    let kick = guira(&["kick", table.url(), "--slot", &slot, "--deadline", "100ms"]).expect(3);
    assert!(kick.stderr.contains("may be the wrong one: it runs in another container"), "{}", kick.stderr);
    stdin.write_all(b"second\t2\n").expect("the program reads");
    drop(stdin);
    assert!(load.wait().expect("it ends").success());
    guira(&["get", table.url(), "second"]).expect(0);
}
