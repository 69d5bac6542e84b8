//! Operations without permission change nothing and say why.
//!
//! Proves:
//!
//! - a user who may not read a table, or not write it, is refused what is not permitted, and changes nothing;
//! - no command of this user or of root puts data into another user's table, unless its owner is named;
//! - in a table that was created for readers, a reader that locks every byte of it blocks no client. In a table whose
//!   mode was changed later, such a reader is found and named at once, also by users who may only read, and damages
//!   nothing;
//! - a lock file that is lost, copied or damaged is refused, also while other processes create and destroy the table,
//!   and none is left behind.
//!
//! Only root can act as another user: for other users most of these tests report that they did not run.
//!
//! Cannot show: users of other hosts, who are clients of a memory node.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Run, Table, command, guira, shell};
use crate::serve::Server;
use guira_testing::{patience, wait_until};

/// Longer than any program takes to start.
/// The user and group "nobody" of every system.
const NOBODY: u32 = 65_534;

/// Another user, who does not own the table.
struct Stranger {
    /// A copy of the program that every user may run.
    program: PathBuf,
    _directory: tempfile::TempDir,
}

impl Stranger {
    /// Returns `None` if this process may not change its user.
    fn new() -> Option<Stranger> {
        if fs::metadata("/proc/self").expect("a process").uid() != 0 {
            println!("skipped: only root can change its user");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        let program = directory.path().join("guira");
        fs::copy(env!("CARGO_BIN_EXE_guira"), &program).expect("a copy");
        Some(Stranger { program, _directory: directory })
    }

    fn guira(&self, arguments: &[&str]) -> Run {
        let mut command = Command::new(&self.program);
        command.args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").stdin(Stdio::null());
        let until = Instant::now() + patience();
        let output = loop {
            match command.output() {
                // A test that started a program while the copy was written has its descriptor until that runs.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                output => break output.expect("the program starts"),
            }
        };
        Run::of(output, arguments)
    }

    /// Runs a command without permission, in both formats: it says so, and no byte of the table changes.
    #[track_caller]
    fn is_refused(&self, table: &Table, arguments: &[&str]) {
        let before = fs::read(table.path()).expect("the table is there");
        let human = self.guira(arguments).expect(3);
        assert!(human.stdout.is_empty(), "{}", human.text());
        assert!(
            human.stderr.to_lowercase().contains("permi") && human.stderr.contains(&table.path()),
            "{}",
            human.stderr
        );
        let json = self.guira(&[arguments, &["--format", "json"]].concat()).expect(3);
        let error = json.error();
        assert_eq!((&error["blame"], &error["effect"]), (&"misuse".into(), &"none".into()), "{error}");
        assert!(before == fs::read(table.path()).expect("the table exists"), "{arguments:?} changed something");
    }
}

/// A table of one key with these permissions, which its owner can use.
fn table(mode: u32) -> Table {
    let table = Table::new("permissions", "bytes:64");
    guira(&["put", table.url(), "cuckoo", "grey"]).expect(0);
    fs::set_permissions(table.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
    table
}

/// Checks that the owner finds the table unchanged, and can change it.
fn is_unharmed(table: &Table) {
    assert_eq!(guira(&["get", table.url(), "cuckoo"]).expect(0).stdout, b"grey");
    guira(&["check", table.url()]).expect(0);
    guira(&["update", table.url(), "cuckoo", "grey"]).expect(0);
}

#[test]
fn a_private_table_is_closed_to_others() {
    let Some(stranger) = Stranger::new() else { return };
    let table = table(0o600);
    let url = table.url();
    for arguments in [
        &["get", url, "cuckoo"][..],
        &["put", url, "cuckoo", "red"],
        &["insert", url, "ani", "black"],
        &["update", url, "cuckoo", "red"],
        &["del", url, "cuckoo"],
        &["dump", url],
        &["load", url, "-"],
        &["stat", url],
        &["destroy", url],
    ] {
        stranger.is_refused(&table, arguments);
    }
    is_unharmed(&table);
}

#[test]
fn a_readable_table_is_read_by_others_and_changed_by_its_owner() {
    let Some(stranger) = Stranger::new() else { return };
    let table = table(0o644);
    let url = table.url();
    assert_eq!(stranger.guira(&["get", url, "cuckoo"]).expect(0).stdout, b"grey");
    assert_eq!(stranger.guira(&["dump", url]).expect(0).text(), "cuckoo\tgrey\n");
    for arguments in [
        &["put", url, "cuckoo", "red"][..],
        &["del", url, "cuckoo"],
        &["load", url, "-"],
        &["ycsb", url, "--workload", "a", "--records", "9", "--operations", "9"],
        &["destroy", url],
    ] {
        stranger.is_refused(&table, arguments);
    }
    is_unharmed(&table);
}

/// A user who may write a table may not remove its file from a directory where only owners may.
#[test]
fn a_writable_table_is_changed_by_others_and_destroyed_by_its_owner() {
    let Some(stranger) = Stranger::new() else { return };
    let table = table(0o666);
    let url = table.url();
    assert_eq!(stranger.guira(&["put", url, "ani", "black"]).expect(0).text(), "inserted \"ani\"\n");
    assert_eq!(guira(&["get", url, "ani"]).expect(0).stdout, b"black");
    stranger.is_refused(&table, &["destroy", url]);
    is_unharmed(&table);
    guira(&["destroy", url]).expect(0);
}

/// Locks all bytes of a table's file for reading, as a process that may only read it can, until it is dropped.
fn lock_for_reading(table: &Table) -> fs::File {
    let file = fs::File::open(table.path()).expect("it may be read");
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).expect("no writer has locked it");
    file
}

/// A table for `clients` clients that was created with these permissions.
fn table_created_with(mode: &str, clients: &str) -> Table {
    let table = Table::unused("created-with");
    guira(&["create", table.url(), "--capacity", "100", "--mode", mode, "--max-clients", clients]).expect(0);
    table
}

/// A reader of a table that was created for readers blocks no other client, whatever it locks: neither a new client,
/// nor the recovery of a killed one, nor the clients of a memory node.
#[test]
fn a_reader_blocks_no_other_client() {
    let table = table_created_with("644", "1");
    let url = table.url();
    let before = lock_for_reading(&table);
    let mut loader = command(&["load", url, "-", "--input", "tsv"]).stdin(Stdio::piped()).spawn().expect("it starts");
    loader.stdin.as_mut().expect("a pipe").write_all(b"heron\tGarza\n").expect("it reads");
    wait_until("it has a client", || {
        guira(&["stat", url, "--format", "json"]).expect(0).json()["clients"][0]["state"] == "live"
    });
    let after = lock_for_reading(&table);
    loader.kill().and_then(|()| loader.wait()).expect("it ends");
    // The only slot is that of the dead client.
    guira(&["put", url, "cuckoo", "grey"]).expect(0);
    assert_eq!(guira(&["check", "--repair", url]).expect(0).stderr, "");
    let stranger = Stranger::new();
    if let Some(stranger) = &stranger {
        assert_eq!(stranger.guira(&["get", url, "cuckoo"]).expect(0).stdout, b"grey");
        let mut options = fs::OpenOptions::new();
        assert!(table.lock_files().iter().all(|path| fs::metadata(path).expect("it is there").mode() & 0o077 == 0));
        assert!(options.read(true).open(&table.lock_files()[0]).is_ok(), "but its owner");
        let refused = stranger.guira(&["put", url, "cuckoo", "red"]).expect(3);
        assert!(refused.stderr.contains("Permission denied"), "{}", refused.stderr);
    }
    let server = Server::start(&["--backing", url]);
    let remote = format!("tcp://{}", server.addr());
    guira(&["put", &remote, "ani", "black"]).expect(0);
    let third = lock_for_reading(&table);
    guira(&["put", &remote, "ani", "blacker"]).expect(0);
    assert_eq!(guira(&["get", url, "ani"]).expect(0).text(), "blacker");
    server.stop("-TERM");
    drop((before, after, third));
    guira(&["destroy", url]).expect(0);
    assert_eq!(table.lock_files(), Vec::<PathBuf>::new());
}

/// A table whose lock file is lost can be read but not changed: the error names the file, and says what to do.
#[test]
fn a_table_that_lost_its_lock_file_is_read_and_copied() {
    let table = table_created_with("644", "8");
    let url = table.url();
    guira(&["put", url, "cuckoo", "grey"]).expect(0);
    let [lock_file] = &table.lock_files()[..] else { panic!("it has one") };
    let lock_name = lock_file.to_str().expect("text").to_owned();
    let stat = guira(&["stat", url]).expect(0).text();
    assert!(stat.contains(&format!(", locks in {lock_name}")), "{stat}");
    let stat = guira(&["stat", url, "--format", "json"]).expect(0).json();
    assert_eq!(stat["region"]["lock_path"], lock_name.as_str(), "{stat}");
    let aside = format!("{}-aside", table.path());
    fs::rename(lock_file, &aside).expect("it is ours");
    for arguments in [
        &["put", url, "ani", "black"][..],
        &["load", url, "-"],
        &["serve", "--backing", url, "--listen", "127.0.0.1:0"],
    ] {
        let refused = guira(&[arguments, &["--format", "json"]].concat()).expect(3);
        let error = refused.error();
        assert_eq!((&error["blame"], &error["effect"]), (&"misuse".into(), &"none".into()), "{error}");
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(&lock_name) && message.contains("is missing"), "{message}");
    }
    let advised = guira(&["put", url, "ani", "black"]).expect(3).stderr;
    assert!(advised.contains(&format!("guira copy {url} {url}-2")), "{advised}");
    assert_eq!(guira(&["get", url, "cuckoo"]).expect(0).stdout, b"grey");
    assert_eq!(guira(&["dump", url]).expect(0).text(), "cuckoo\tgrey\n");
    guira(&["stat", url]).expect(0);
    let checked = guira(&["check", url]).expect(1).text();
    assert!(checked.contains("is sound") && checked.contains("BLOCKED: ") && checked.contains(&lock_name), "{checked}");
    let listed = guira(&["list", "--format", "json"]).expect(0).json();
    let listed = listed["tables"].as_array().expect("a list").iter().find(|listed| listed["url"] == url).cloned();
    assert_eq!(listed.expect("it is listed")["state"], "table");
    let copy = Table::new("copy", "bytes:64");
    guira(&["copy", url, copy.url()]).expect(0);
    fs::rename(&aside, &lock_name).expect("it is ours");
    guira(&["put", url, "ani", "black"]).expect(0);
    // It goes when it is lost, too, and who has it open is told.
    fs::remove_file(&lock_name).expect("it is ours");
    let store = guira::Store::open_with(url, &guira::OpenOptions::default().read_only()).expect("it is read");
    guira(&["destroy", url]).expect(0);
    assert!(store.is_destroyed().expect("it is told"));
    assert!(!fs::exists(table.path()).expect("it may be asked"));
}

/// A reader of a table whose mode was changed after its creation can lock its client slots: the error comes at once,
/// names the process, and says what to do; nothing is damaged, and it ends with the lock.
#[test]
fn a_reader_that_locks_client_slots_is_named() {
    let table = table(0o644);
    let url = table.url();
    let reader = lock_for_reading(&table);
    let process = format!("process {} has locked client slots 0 to 39 of {}", std::process::id(), table.path());
    // It would wait longer than any test lasts.
    let blocked = guira(&["put", url, "ani", "black", "--deadline", "600min", "--format", "json"]).expect(3);
    let error = blocked.error();
    assert_eq!((&error["blame"], &error["effect"]), (&"busy".into(), &"none".into()), "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains(&process), "{message}");
    let (_, lists) = message.split_once("(fuser").expect("a command");
    let listed = shell(&format!("fuser{}", lists.split(" lists ").next().expect("a part")));
    match listed.code {
        Some(127) => println!("NOT RUN: fuser (apt-get install psmisc) is not installed"),
        _ => assert!(listed.expect(0).stderr.contains(&table.path()), "the path is one word"),
    }
    let checked = guira(&["check", url]).expect(1).text();
    assert!(checked.contains("is sound") && checked.contains(&format!("BLOCKED: {process}")), "{checked}");
    let checked = guira(&["check", url, "--format", "json"]).expect(1).json();
    assert_eq!((&checked["clean"], &checked["slot_lock"]["last_slot"]), (&true.into(), &39.into()), "{checked}");
    assert_eq!(guira(&["get", url, "cuckoo"]).expect(0).stdout, b"grey");
    drop(reader);
    is_unharmed(&table);
}

/// A table created by another user under a name of ours, which every user may change.
fn table_of(stranger: &Stranger) -> Table {
    let table = Table::unused("stranger");
    stranger.guira(&["create", table.url(), "--capacity", "100", "--mode", "666", "--max-clients", "8"]).expect(0);
    table
}

/// Runs a command that would put data into another user's table: it names the owner, and changes nothing.
#[track_caller]
fn is_refused_as_foreign(table: &Table, arguments: &[&str]) {
    let before = fs::read(table.path()).expect("the table is there");
    let refused = guira(&[arguments, &["--format", "json"]].concat()).expect(3);
    let error = refused.error();
    assert_eq!((&error["blame"], &error["effect"]), (&"misuse".into(), &"none".into()), "{error}");
    let message = error["message"].as_str().expect("a message");
    assert!(message.contains(&format!("belongs to user {NOBODY}")), "{arguments:?}: {message}");
    assert!(before == fs::read(table.path()).expect("the table exists"), "{arguments:?} changed something");
}

/// No user's data, not even root's, goes into a table that another user created under its name, unless the user names
/// that owner.
#[test]
fn a_table_of_a_stranger_gets_no_data() {
    let Some(stranger) = Stranger::new() else { return };
    let table = table_of(&stranger);
    let own = Table::new("own", "bytes:64");
    let url = table.url();
    for arguments in [
        &["put", url, "secret", "s3cret"][..],
        &["insert", url, "secret", "s3cret"],
        &["update", url, "secret", "s3cret"],
        &["incr", url, "counter"],
        &["load", url, "-"],
        &["copy", own.url(), url],
        &["ycsb", url, "--workload", "a", "--records", "9", "--operations", "9", "--into-existing"],
        &["serve", "--backing", url, "--listen", "127.0.0.1:0"],
        &["create", url, "--capacity", "100", "--if-missing"],
        &["grow", url, "--capacity", "1M"],
        &["put", url, "secret", "s3cret", "--owner", "root"],
        &["get", url, "secret", "--owner", "root"],
    ] {
        is_refused_as_foreign(&table, arguments);
    }
    let nobody = NOBODY.to_string();
    guira(&["put", url, "ani", "black", "--owner", &nobody]).expect(0);
    let fixed = guira(&["grow", url, "--capacity", "1M", "--owner", &nobody]).expect(2).stderr;
    assert!(fixed.contains("its size is fixed"), "{fixed}");
    guira(&["create", url, "--capacity", "100", "--if-missing", "--owner", &nobody]).expect(0);
    guira(&[
        "ycsb",
        url,
        "--workload",
        "a",
        "--records",
        "9",
        "--operations",
        "9",
        "--into-existing",
        "--owner",
        &nobody,
    ])
    .expect(0);
    // What takes nothing of this user asks for no name.
    assert_eq!(guira(&["get", url, "ani"]).expect(0).text(), "black");
    guira(&["copy", url, own.url()]).expect(0);
    guira(&["check", url, "--repair"]).expect(0);
    guira(&["stat", url]).expect(0);
    // Its owner and others who are not root are no exception either.
    let roots = self::table(0o666);
    stranger.guira(&["put", roots.url(), "ani", "black"]).expect(0);
    std::os::unix::fs::chown(roots.path(), Some(NOBODY - 1), None).expect("root may");
    stranger.guira(&["put", roots.url(), "ani", "black"]).expect(3);
    guira(&["destroy", url]).expect(0);
}

/// Permission bits that give access to all users cause a warning.
#[test]
fn a_table_open_to_all_users_causes_a_warning() {
    for (mode, wanted) in [("600", None), ("660", None), ("644", Some("read the")), ("666", Some("change and damage"))]
    {
        let table = Table::unused("mode");
        let created = guira(&["create", table.url(), "--capacity", "10", "--mode", mode]).expect(0);
        match wanted {
            None => assert_eq!(created.stderr, "", "{mode}"),
            Some(wanted) => assert!(created.stderr.contains(wanted), "{mode}: {}", created.stderr),
        }
    }
}

/// Unreadable and read-only tables are listed; which clients are alive is unknown then.
#[test]
fn tables_of_others_are_listed() {
    let Some(stranger) = Stranger::new() else { return };
    let (private, readable) = (table(0o600), table(0o644));
    let listed = stranger.guira(&["list", "--format", "json"]).expect(0).json();
    let of = |table: &Table| {
        let mut all = listed["tables"].as_array().expect("a list").iter();
        all.find(|listed| listed["url"] == table.url()).cloned().expect("it is listed")
    };
    assert_eq!((&of(&private)["state"], &of(&private)["owner_uid"]), (&"unreadable".into(), &0.into()));
    assert_eq!((&of(&readable)["state"], &of(&readable)["entries"]), (&"table".into(), &1.into()));
    // Files that others may not read may be tables, but for lock files.
    let shared = table_created_with("644", "8");
    let listed = stranger.guira(&["list", "--format", "json"]).expect(0).json();
    assert!(listed.to_string().contains(shared.url()) && !listed.to_string().contains(".locks"), "{listed}");
    let human = stranger.guira(&["list"]).expect(0).text();
    assert!(human.contains(&format!("{}: no permission to read it", private.url())), "{human}");
}

/// `stat` shows the name of the owner, to other users as well.
#[test]
fn stat_names_the_owner() {
    let table = table(0o644);
    let of = |uid: u32| {
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        lines
            .find(|fields| fields.get(2) == Some(&uid.to_string().as_str()))
            .map_or(uid.to_string(), |f| f[0].to_owned())
    };
    let owner = fs::metadata(table.path()).expect("the table is there").uid();
    let words = format!(", owner {}, mode 644, ", of(owner));
    assert!(guira(&["stat", table.url()]).expect(0).text().contains(&words), "{words}");
    let Some(stranger) = Stranger::new() else { return };
    assert!(stranger.guira(&["stat", table.url()]).expect(0).text().contains(&words), "{words}");
    let given = self::table(0o600);
    std::os::unix::fs::chown(given.path(), Some(NOBODY), None).expect("root may");
    let words = format!(", owner {}, mode 600, ", of(NOBODY));
    assert!(guira(&["stat", given.url()]).expect(0).text().contains(&words), "{words}");
}
