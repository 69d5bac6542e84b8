//! A configuration of typed settings, which several editors change at once and any number of readers follow.
//!
//! ```text
//! cargo run --release -p guira --example config_store                                 # a demonstration
//! cargo run --release -p guira --example config_store -- set shm://settings mail timeout_ms 250
//! cargo run --release -p guira --example config_store -- set shm://settings mail server mx1.example
//! cargo run --release -p guira --example config_store -- list shm://settings
//! cargo run --release -p guira --example config_store -- watch shm://settings mail     # prints each change
//! cargo run --release -p guira --example config_store -- destroy shm://settings
//! ```
//!
//! A setting is a struct that serde encodes. Editors change single fields with `update_with`, so that none of them
//! overwrites the change of another, and each change raises the revision. Readers open the table for reading only.
//! The demonstration starts two editors and two readers, each a process, and fails if an edit is lost.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Write, stdout};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guira::{CreateOptions, OpenOptions, Store, Url};
use serde::{Deserialize, Serialize};

type Failure = Box<dyn Error>;

const USAGE: &str = "usage: config_store [set URL NAME FIELD VALUE | get URL NAME | list URL | \
                     watch URL NAME [REVISION] | destroy URL]";
/// Edits of each of the editors in the demonstration.
const EDITS: u64 = 100;
const EDITORS: [&str; 2] = ["anna", "ben"];
const READERS: usize = 2;
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// A reader that sees no change for this long gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A setting. Postcard has no schema: a program with other fields needs other keys, or an enum of versions.
#[derive(Serialize, Deserialize, Clone, PartialEq, Default, Debug)]
struct Service {
    /// Number of changes, which readers compare.
    revision: u64,
    timeout: Duration,
    servers: Vec<String>,
}

/// A change of one field.
enum Edit {
    Timeout(Duration),
    /// Adds a server, and removes those with the same first word.
    Server(String),
}

impl Edit {
    fn parse(field: &str, value: &str) -> Result<Edit, Failure> {
        let milliseconds = || value.parse().map_err(|_| format!("{value:?} is not a number of milliseconds"));
        match field {
            "timeout_ms" => Ok(Edit::Timeout(Duration::from_millis(milliseconds()?))),
            "server" => Ok(Edit::Server(value.to_owned())),
            _ => Err(format!("unknown field {field:?}, it is neither timeout_ms nor server; {USAGE}").into()),
        }
    }

    fn apply(&self, service: &mut Service) {
        service.revision += 1;
        match self {
            Edit::Timeout(timeout) => service.timeout = *timeout,
            Edit::Server(server) => {
                service.servers.retain(|old| old.split(' ').next() != server.split(' ').next());
                service.servers.push(server.clone());
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demonstrate(),
        ["set", url, name, field, value] => set(url, name, field, value),
        ["get", url, name] => get(url, name),
        ["list", url] => list(url),
        ["watch", url, name] => watch(url, name, "18446744073709551615"),
        ["watch", url, name, revision] => watch(url, name, revision),
        ["destroy", url] => Store::destroy(url).map_err(Failure::from),
        ["edit", url, editor] => edit(url, editor),
        _ => Err(USAGE.into()),
    };
    if let Err(error) = result {
        eprintln!("config_store: {error}");
        std::process::exit(1);
    }
}

/// The table at `url`, which is created if there is none: 1,000 settings of about 512 bytes, which all users may read.
fn open(url: &str) -> Result<Store, Failure> {
    Ok(Store::open_or_create(url, &CreateOptions::new(1_000).record_bytes(512).mode(0o644))?)
}

fn open_to_read(url: &str) -> Result<Store, Failure> {
    Ok(Store::open_with(url, &OpenOptions::new().read_only())?)
}

fn set(url: &str, name: &str, field: &str, value: &str) -> Result<(), Failure> {
    let edit = Edit::parse(field, value)?;
    let mut editor = open(url)?.typed::<str, Service>().client()?;
    // Called again with the new value if another editor is faster.
    editor.update_with(name, |found| {
        let mut service = found.unwrap_or_default();
        edit.apply(&mut service);
        Some(service)
    })?;
    Ok(editor.close()?)
}

fn get(url: &str, name: &str) -> Result<(), Failure> {
    let found = open_to_read(url)?.typed::<str, Service>().reader().get(name)?;
    print(name, &found.ok_or_else(|| format!("{url} has no setting {name:?}"))?)
}

fn list(url: &str) -> Result<(), Failure> {
    for item in open_to_read(url)?.typed::<str, Service>().scan_as::<String>()? {
        let (name, service) = item?;
        print(&name, &service)?;
    }
    Ok(())
}

/// Prints each state that it sees, until the given revision. A reader that is slower than the editors misses some.
fn watch(url: &str, name: &str, revision: &str) -> Result<(), Failure> {
    let last: u64 = revision.parse().map_err(|_| format!("{revision:?} is not a revision; {USAGE}"))?;
    let mut reader = open_to_read(url)?.typed::<str, Service>().reader();
    let (mut seen, mut since) = (None, Instant::now());
    while since.elapsed() < TIMEOUT {
        let found = reader.get(name)?;
        if found == seen {
            std::thread::sleep(POLL_INTERVAL);
            continue;
        }
        if let Some(service) = &found {
            print(name, service)?;
            if service.revision >= last {
                return Ok(());
            }
        }
        (seen, since) = (found, Instant::now());
    }
    Err(format!("no change of {name:?} for {} s", TIMEOUT.as_secs()).into())
}

fn print(name: &str, service: &Service) -> Result<(), Failure> {
    let Service { revision, timeout, servers } = service;
    Ok(writeln!(stdout(), "{name}: revision {revision}, timeout {timeout:?}, servers {servers:?}")?)
}

/// An editor process of the demonstration.
fn edit(url: &str, editor: &str) -> Result<(), Failure> {
    (1..=EDITS).try_for_each(|number| set(url, "mail", "server", &format!("{editor} {number}")))
}

fn demonstrate() -> Result<(), Failure> {
    let url = Url::shm(&format!("guira-config-store-{}", std::process::id()))?.to_string();
    let result = open(&url).and_then(|store| run(&store, &url));
    Store::destroy(url)?;
    result
}

fn run(store: &Store, url: &str) -> Result<(), Failure> {
    set(url, "mail", "timeout_ms", "250")?;
    let last = 1 + EDITS * EDITORS.len() as u64;
    let last_text = last.to_string();
    let readers = (0..READERS).map(|_| start(&["watch", url, "mail", &last_text])).collect::<Result<Vec<_>, _>>()?;
    let editors = EDITORS.map(|editor| start(&["edit", url, editor]));
    for editor in editors {
        finish(editor?)?;
    }
    for (id, reader) in readers.into_iter().enumerate() {
        let printed = finish(reader)?;
        let word = |line: &str| line.split([' ', ',']).nth(2).and_then(|word| word.parse::<u64>().ok());
        let seen: Vec<u64> = printed.lines().filter_map(word).collect();
        let is_sorted = seen.is_sorted_by(|earlier, later| earlier < later);
        println!("reader {id}: {} of {last} states, in order: {is_sorted}", seen.len());
    }
    let mail = store.typed::<str, Service>().reader().get("mail")?.ok_or("the setting is gone")?;
    print("mail", &mail)?;
    let is_complete = EDITORS.iter().all(|editor| mail.servers.contains(&format!("{editor} {EDITS}")));
    if mail.revision == last && is_complete { Ok(()) } else { Err("an edit was lost".into()) }
}

fn start(arguments: &[&str]) -> Result<Child, Failure> {
    Ok(Command::new(std::env::current_exe()?).args(arguments).stdout(Stdio::piped()).spawn()?)
}

/// Waits for a process, which bounds its own waits, and returns the text it printed.
fn finish(child: Child) -> Result<String, Failure> {
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("a process failed: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
