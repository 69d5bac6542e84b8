//! Shares a configuration that changes while the programs that use it run.
//!
//! ```text
//! cargo run --release -p guira --example live_config              # 2 readers
//! cargo run --release -p guira --example live_config -- 5
//! ```
//!
//! One process sets keys (`put`) and then increases a revision. Readers are separate processes: they open the table for
//! reading only, poll the revision, and when it has grown read all keys at once (`get_many_with`) and print what
//! changed. Two editors of one key do not overwrite each other: `compare_and_swap` with a stale token changes nothing,
//! and the editor reads again.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use guira::{CreateOptions, OpenOptions, Store, Swap, Url};

type Failure = Box<dyn Error + Send + Sync>;
type Reader = (Child, BufReader<ChildStdout>);

const USAGE: &str = "usage: live_config [READERS (1 to 64)]";
const KEYS: [&str; 3] = ["log.level", "cache.mib", "feature.beta"];
/// Written last: a reader that sees a revision sees every change that led to it. An empty one is the last.
const REVISION: &[u8] = b"revision";
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// A reader that sees no new revision for this long gives up.
const TIMEOUT: Duration = Duration::from_secs(60);
/// An edit fails this often only if other clients change the key, or its row, all the time.
const MAX_TRIES: u32 = 100_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["reader", url, id] => read(url, id),
        [] => edit("2"),
        [readers] => edit(readers),
        _ => Err(USAGE.into()),
    };
    if let Err(error) = result {
        eprintln!("live_config: {error}");
        std::process::exit(1);
    }
}

/// A reader process: prints the changes of every revision it sees, until the last.
fn read(url: &str, id: &str) -> Result<(), Failure> {
    let store = Store::open_with(url, &OpenOptions::default().read_only())?;
    let mut reader = store.reader();
    let (mut config, mut seen, mut revision) = ([const { String::new() }; KEYS.len()], Vec::new(), Vec::new());
    let mut since = Instant::now();
    while since.elapsed() < TIMEOUT {
        if !reader.get_into(REVISION, &mut revision)? || revision == seen {
            std::thread::sleep(POLL_INTERVAL);
            continue;
        }
        if revision.is_empty() {
            return Ok(());
        }
        let mut changes = Vec::new();
        let mut failure = None;
        reader.get_many_with(&KEYS, |i, value| match value {
            Ok(value) => {
                let new = value.map_or("(unset)".into(), String::from_utf8_lossy);
                if config[i] != new {
                    changes.push(format!("{} is {new}", KEYS[i]));
                    config[i] = new.into_owned();
                }
            }
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(()), Err)?;
        let changes = changes.join(", ");
        writeln!(stdout(), "reader {id} at revision {}: {changes}", String::from_utf8_lossy(&revision))?;
        std::mem::swap(&mut seen, &mut revision);
        since = Instant::now();
    }
    Err(format!("no news for {} s", TIMEOUT.as_secs()).into())
}

/// The process that changes the configuration.
fn edit(readers: &str) -> Result<(), Failure> {
    let readers: u32 = readers.parse().ok().filter(|readers| (1..=64).contains(readers)).ok_or(USAGE)?;
    let url = Url::shm(&format!("guira-live-config-{}", std::process::id()))?;
    let store = Store::create(&url, &CreateOptions::new(1_000).mode(0o644))?; // All may read, only we may write.
    let result = run(&store, readers);
    Store::destroy(&url)?;
    result
}

fn run(store: &Store, readers: u32) -> Result<(), Failure> {
    let mut readers = (0..readers).map(|id| start(store.url(), id)).collect::<Result<Vec<_>, Failure>>()?;
    let mut client = store.client()?;
    client.put(b"log.level", b"info")?;
    client.put(b"cache.mib", b"100")?;
    publish(&mut client, &mut readers, "1")?;
    client.put(b"log.level", b"debug")?;
    client.put(b"feature.beta", b"on")?;
    publish(&mut client, &mut readers, "2")?;
    // Two editors: this one takes so long that the other changes the key meanwhile.
    let found = client.get_versioned(b"cache.mib")?.ok_or("cache.mib is gone")?;
    store.client()?.put(b"cache.mib", b"200")?;
    let swap = client.compare_and_swap(b"cache.mib", found.token, b"150")?;
    println!("a token that went stale: {swap:?}");
    // Editors that read again lose nothing: 4 threads add 25 each, 1 at a time.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| add(store, 25))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "an editor panicked")?)
    })?;
    publish(&mut client, &mut readers, "3")?;
    client.put(REVISION, b"")?;
    let mut ended = readers.into_iter().map(|(mut child, _output)| child.wait());
    ended.try_for_each(|status| if status?.success() { Ok(()) } else { Err("a reader failed".into()) })
}

/// Increments `cache.mib` `times` times, whatever other editors do to it.
fn add(store: &Store, times: u32) -> Result<(), Failure> {
    let mut client = store.client()?;
    let (mut done, mut tries) = (0, 0);
    while done < times {
        let found = client.get_versioned(b"cache.mib")?.ok_or("cache.mib is gone")?;
        let mib: u64 = std::str::from_utf8(&found.value)?.parse()?;
        match client.compare_and_swap(b"cache.mib", found.token, (mib + 1).to_string().as_bytes())? {
            Swap::Done => done += 1,
            Swap::Different if tries < MAX_TRIES => tries += 1,
            failed => return Err(format!("cache.mib could not be changed: {failed:?}").into()),
        }
    }
    Ok(())
}

/// Publishes the changes, and prints the reaction of each reader.
fn publish(client: &mut guira::Client, readers: &mut [Reader], revision: &str) -> Result<(), Failure> {
    client.put(REVISION, revision.as_bytes())?;
    for (_, output) in readers {
        let mut line = String::new();
        output.read_line(&mut line)?;
        print!("{line}");
    }
    Ok(())
}

fn start(url: &Url, id: u32) -> Result<Reader, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.args(["reader", &url.to_string(), &id.to_string()]).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("a reader has no output")?;
    Ok((child, BufReader::new(output)))
}
