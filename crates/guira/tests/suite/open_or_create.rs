//! Processes and threads that open a table or create it, also at the same time.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use guira::errors::Mismatch;
use guira::{
    Blame, CreateOptions, Effect, EntryFormat, Error, OnMismatch, OpenError, Preset, ServeOptions, Store, Url,
};
use guira_testing::unique_name;

const PROCESSES: u64 = 6;
const ROUNDS: u32 = 10;
/// Calls that open or create a table while another thread destroys it.
const DESTROYED: u32 = 300;
/// The environment variable that makes the program open a table: it holds a URL and a number.
const OPENER: &str = "GUIRA_TEST_OPENER";
/// The environment variable that makes the program destroy a table without address space for it: it holds the URL.
const DESTROYER: &str = "GUIRA_TEST_DESTROYER";

struct Table(Url);

impl Table {
    fn named() -> Table {
        Table(Url::shm(&unique_name()).expect("a valid name"))
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

/// Runs as a process that opens or creates a table on command, if the environment asks for it; does nothing otherwise.
#[test]
fn opener() {
    let Ok(arguments) = std::env::var(OPENER) else { return };
    let (url, id) = arguments.split_once(' ').unwrap();
    let (url, id): (Url, u64) = (url.parse().unwrap(), id.parse().unwrap());
    assert_ne!(stdin().read_line(&mut String::new()).unwrap(), 0);
    let store = Store::open_or_create(&url, &options()).unwrap();
    assert!(store.client().unwrap().try_insert(&id.to_le_bytes(), &[0; 8]).unwrap());
    println!("opened {}", store.table().superblock().incarnation);
}

/// [R-CREATE-1] [R-OPEN-1] Of many processes that start at the same time, one creates the table, and all use the same
/// one.
#[test]
fn processes_that_race_share_one_table() {
    for _ in 0..ROUNDS {
        let table = Table::named();
        let start = |id: u64| {
            Command::new(std::env::current_exe().expect("a test has a file"))
                .args(["--exact", "open_or_create::opener", "--nocapture"])
                .env(OPENER, format!("{} {id}", table.0))
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
        assert_eq!(store.len_estimate().unwrap().entries, PROCESSES);
    }
}

/// [R-DESTROY-1] A table that is destroyed at the same time is treated as missing.
#[test]
fn tables_that_are_destroyed_meanwhile_are_created_again() {
    let table = Table::named();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| {
            for _ in 0..DESTROYED {
                Store::open_or_create(&table.0, &options()).unwrap();
            }
        });
        while !opener.is_finished() {
            if let Err(error) = Store::destroy(&table.0) {
                assert!(error.is_not_found(), "{error}");
            }
        }
    });
}

/// Runs as a process without the address space for a table, if the environment asks for it; does nothing otherwise.
#[test]
fn destroyer() {
    let Ok(url) = std::env::var(DESTROYER) else { return };
    let url: Url = url.parse().unwrap();
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let used_bytes = pages * rustix::param::page_size() as u64;
    let before = getrlimit(Resource::As);
    setrlimit(Resource::As, Rlimit { current: Some(used_bytes + (1 << 20)), ..before }).unwrap();
    let destroyed = Store::destroy(&url);
    setrlimit(Resource::As, before).unwrap();
    let error = destroyed.expect_err("there is no address space for it");
    assert!(matches!(error, Error::Open(OpenError::Region(_))), "{error:?}");
    let message = error.to_string();
    assert!(message.starts_with("cannot destroy ") && message.ends_with("nothing was changed"), "{message}");
}

/// [R-DESTROY-1] A table that cannot be opened for want of memory is not destroyed: it keeps its name, and stores that
/// have it open keep working. A damaged table, which no process can open, loses its name.
#[test]
fn tables_that_cannot_be_opened_for_want_of_memory_are_not_destroyed() {
    let table = Table::named();
    let store = Store::create(&table.0, &CreateOptions::new(1_000).extent_bytes(16 << 20)).unwrap();
    let status = Command::new(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", "open_or_create::destroyer", "--nocapture"])
        .env(DESTROYER, table.0.to_string())
        .status();
    assert!(status.expect("the test program starts").success());
    assert!(!store.is_destroyed().unwrap());
    assert_eq!(Store::open(&table.0).unwrap().table().superblock(), store.table().superblock());
    let path = store.stat().unwrap().region.file().unwrap().path.clone();
    drop(store);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
    Store::destroy(&table.0).unwrap();
    assert!(Store::open(&table.0).map(drop).unwrap_err().is_not_found());
    assert!(Store::destroy(&table.0).unwrap_err().to_string().starts_with("cannot destroy "));
}

/// Returns the reported mismatches between the table at `url` and `options`.
fn mismatches(url: &Url, options: &CreateOptions) -> Vec<Mismatch> {
    let error = Store::open_or_create(url, options).map(drop).expect_err("the table does not match");
    assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None), "{error}");
    assert!(error.to_string().starts_with(&format!("cannot use {url} as asked: it")), "{error}");
    let Error::Open(OpenError::Mismatch { mismatches, .. }) = error else { panic!("{error}") };
    mismatches
}

/// A table that exists is opened only if it matches the options, or on request as it is.
#[test]
fn an_existing_table_must_match_the_options() {
    let table = Table::named();
    let created = Store::open_or_create(&table.0, &options()).unwrap();
    let room = created.table().config().capacity();
    let bytes: EntryFormat = "bytes:64".parse().unwrap();
    let other = CreateOptions::new(1_000_000).format(bytes);
    let (format, capacity) = (
        Mismatch::Format { asked: bytes, found: "fixed:8:8".parse().unwrap() },
        Mismatch::Capacity { asked: 1_000_000, found: room },
    );
    assert_eq!(mismatches(&table.0, &other), [format, capacity]);
    let opened = Store::open_or_create(&table.0, &other.clone().on_mismatch(OnMismatch::Accept)).unwrap();
    assert_eq!(opened.stat().unwrap().format, "fixed:8:8");
    assert_eq!(opened.format(), "fixed:8:8".parse().unwrap());
    assert_eq!(opened.table().superblock().incarnation, created.table().superblock().incarnation);
    assert!(created.was_created() && !opened.was_created());
    let taken = Store::create(&table.0, &other).map(drop).unwrap_err();
    assert!(taken.is_already_exists() && !taken.is_not_found(), "{taken}");
}

/// Each option is compared: the table may exceed the limits, and must equal the other options.
#[test]
fn each_option_of_a_table_that_exists_is_compared() {
    let table = Table::named();
    let base = || CreateOptions::new(1_000).extent_bytes(1 << 20).max_clients(8).seed(3);
    let created = Store::create(&table.0, &base()).unwrap();
    let (config, asked) = (created.table().config(), CreateOptions::new);
    let (room, extent_bytes) = (config.capacity(), config.extent_bytes());
    let fits =
        [base(), asked(1), asked(room), asked(9).seed(3), asked(9).extent_bytes(extent_bytes), asked(9).max_clients(1)];
    for options in fits {
        let store = Store::open_or_create(&table.0, &options).unwrap();
        assert!(!store.was_created() && created.ensure_fits(&options).is_ok(), "{options:?}");
    }
    let more = extent_bytes + 1;
    for (options, wanted) in [
        (asked(room + 1), Mismatch::Capacity { asked: room + 1, found: room }),
        (asked(9).extent_bytes(more), Mismatch::ExtentBytes { asked: more, found: extent_bytes }),
        (asked(9).max_clients(9), Mismatch::MaxClients { asked: 9, found: 8 }),
        (asked(9).seed(4), Mismatch::Seed { asked: 4, found: 3 }),
        (asked(9).without_commit_records(), Mismatch::CommitRecords { asked: false, found: true }),
        (asked(9).preset(Preset::Tiny), Mismatch::Preset { asked: Preset::Tiny, found: Some(Preset::Hardened) }),
        (asked(9).preset(Preset::Paper), Mismatch::Preset { asked: Preset::Paper, found: Some(Preset::Hardened) }),
    ] {
        assert_eq!(mismatches(&table.0, &options), [wanted]);
        Store::open_or_create(&table.0, &options.on_mismatch(OnMismatch::Accept)).unwrap();
    }
    // Impossible options are refused before they are compared.
    let error = Store::open_or_create(&table.0, &CreateOptions::new(0)).map(drop).unwrap_err();
    assert!(matches!(error, Error::Open(OpenError::Create { .. })), "{error}");
}

/// The table of a memory node is compared with the options like any other.
#[test]
fn the_table_of_a_memory_node_must_match_the_options() {
    let store = Store::create_unnamed(&options()).unwrap();
    let served = store.serve(&ServeOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let url: Url = format!("tcp://{}", served.local_addrs()[0]).parse().unwrap();
    let opened = Store::open_or_create(&url, &options()).unwrap();
    assert!(!opened.was_created() && opened.client().unwrap().try_insert(&[1; 8], &[2; 8]).unwrap());
    let other = options().format("fixed:8:16".parse().unwrap()).max_clients(u16::MAX >> 1);
    let found = mismatches(&url, &other);
    assert!(matches!(found[..], [Mismatch::Format { .. }, Mismatch::MaxClients { .. }]), "{found:?}");
    let any = Store::open_or_create(&url, &other.on_mismatch(OnMismatch::Accept)).unwrap();
    assert_eq!(any.reader().get(&[1; 8]).unwrap().as_deref(), Some(&[2; 8][..]));
}

#[test]
fn files_that_are_not_tables_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("letter");
    std::fs::write(&file, "no table").unwrap();
    let error = Store::open_or_create(Url::file(&file).unwrap(), &options()).map(drop).unwrap_err();
    assert_eq!(
        (error.blame(), error.effect(), error.is_already_exists()),
        (Blame::Corrupt, Effect::None, false),
        "{error}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"no table");

    // A dangling link: there is no table, but the name is taken.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path().join("nowhere"), &link).unwrap();
    let error = Store::open_or_create(Url::file(&link).unwrap(), &options()).map(drop).unwrap_err();
    assert!(error.is_already_exists(), "{error}");

    let error = Store::open_or_create(Url::file(&directory.path().join("no/such")).unwrap(), &options());
    let error = error.map(drop).unwrap_err();
    assert!(!error.is_not_found() && !error.is_already_exists(), "{error}");
}
