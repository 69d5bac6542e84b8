//! Processes that open a table or create it, at once.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Command, Stdio};

use guira::{Blame, CreateOptions, Effect, Store, Url};

const PROCESSES: u64 = 6;
const ROUNDS: u32 = 10;
/// Tables that are destroyed while another thread opens or creates them.
const DESTROYED: u32 = 300;
const RACER: &str = "GUIRA_TEST_RACER";

struct Table(Url);

impl Table {
    fn named(name: &str) -> Table {
        Table(Url::shm(&format!("guira-test-{name}-{}", std::process::id())).expect("a valid name"))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

fn options() -> CreateOptions {
    CreateOptions::new(100).format("fixed:8:8".parse().expect("a valid format"))
}

/// A process that waits for the start, when this program was started as one; nothing otherwise.
#[test]
fn racer() {
    let Ok(told) = std::env::var(RACER) else { return };
    let (url, id) = told.split_once(' ').unwrap();
    let (url, id): (Url, u64) = (url.parse().unwrap(), id.parse().unwrap());
    assert_ne!(stdin().read_line(&mut String::new()).unwrap(), 0);
    let store = Store::open_or_create(&url, &options()).unwrap();
    assert!(store.client().unwrap().insert(&id.to_le_bytes(), &[0; 8]).unwrap());
    println!("opened {}", store.table().superblock().incarnation);
}

/// [R-CREATE-1] [R-OPEN-1] Of many that start at once one creates the table, and all change the same one.
#[test]
fn processes_that_race_share_one_table() {
    for round in 0..ROUNDS {
        let table = Table::named(&format!("race-{round}"));
        let start = |id: u64| {
            Command::new(std::env::current_exe().expect("a test has a file"))
                .args(["--exact", "open_or_create::racer", "--nocapture"])
                .env(RACER, format!("{} {id}", table.0))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("the test program starts")
        };
        let mut children: Vec<_> = (0..PROCESSES).map(start).collect();
        for child in &mut children {
            writeln!(child.stdin.as_ref().unwrap(), "go").unwrap();
        }
        let mut incarnations = BTreeSet::new();
        for mut child in children {
            let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
            incarnations.extend(lines.filter(|line| line.contains("opened ")));
            assert!(child.wait().unwrap().success(), "a process failed: see its message above");
        }
        assert_eq!(incarnations.len(), 1, "{incarnations:?}");
        let store = Store::open(&table.0).unwrap();
        let mut reader = store.reader();
        assert!((0..PROCESSES).all(|id| reader.contains(&id.to_le_bytes()).unwrap()));
        assert_eq!(store.len().unwrap().entries, PROCESSES);
    }
}

/// [R-DESTROY-1] A table that is destroyed at that moment is no table.
#[test]
fn tables_that_are_destroyed_meanwhile_are_created_anew() {
    let table = Table::named("anew");
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| {
            for _ in 0..DESTROYED {
                Store::open_or_create(&table.0, &options()).unwrap();
            }
        });
        while !opener.is_finished() {
            if let Err(error) = Store::destroy(&table.0) {
                assert!(error.is_absent(), "{error}");
            }
        }
    });
}

#[test]
fn what_is_there_is_opened_as_it_is_and_other_files_are_left_alone() {
    let table = Table::named("as-it-is");
    let created = Store::open_or_create(&table.0, &options()).unwrap();
    let other = CreateOptions::new(1_000_000).format("bytes:64".parse().unwrap());
    let opened = Store::open_or_create(&table.0, &other).unwrap();
    assert_eq!(opened.stat().unwrap().format, "fixed:8:8");
    assert_eq!(opened.table().superblock().incarnation, created.table().superblock().incarnation);
    let taken = Store::create(&table.0, &other).map(drop).unwrap_err();
    assert!(taken.is_taken() && !taken.is_absent(), "{taken}");

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("letter");
    std::fs::write(&file, "no table").unwrap();
    let error = Store::open_or_create(&Url::file(&file).unwrap(), &options()).map(drop).unwrap_err();
    assert_eq!((error.blame(), error.effect(), error.is_taken()), (Blame::Corrupt, Effect::None, false), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"no table");

    // A name that leads nowhere: it has no table, and is taken.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path().join("nowhere"), &link).unwrap();
    let error = Store::open_or_create(&Url::file(&link).unwrap(), &options()).map(drop).unwrap_err();
    assert!(error.is_taken(), "{error}");

    let error = Store::open_or_create(&Url::file(&directory.path().join("no/such")).unwrap(), &options());
    let error = error.map(drop).unwrap_err();
    assert!(!error.is_absent() && !error.is_taken(), "{error}");
}
