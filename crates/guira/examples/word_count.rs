//! Counts the words of a text with many processes that increment the same counters.
//!
//! ```text
//! cargo run --release -p guira --example word_count                    # a text made up for the purpose, 4 processes
//! cargo run --release -p guira --example word_count -- moby-dick.txt 8
//! ```
//!
//! Each process takes a slice of the text, and increments the counter of each word (`increment`): no count is lost. The
//! parent reads all counters (`snapshot`), prints the 20 most frequent words, and checks the sum.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command};

use guira::{CreateOptions, Store, Url};
use tempfile::NamedTempFile;

type Failure = Box<dyn Error>;

const USAGE: &str = "usage: word_count [FILE] [PROCESSES (1 to 64)]";
/// Longer words are cut to this many bytes; real words are shorter.
const WORD_BYTES: usize = 56;

fn main() {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let texts: Vec<&str> = arguments.iter().map(|text| text.to_str().unwrap_or_default()).collect();
    let result = match texts[..] {
        ["worker", url, _, start, end] => work(url, Path::new(&arguments[2]), start, end),
        [] => made_up_text().and_then(|text| lead(text.path(), "4")),
        [_] => lead(Path::new(&arguments[0]), "4"),
        [_, processes] => lead(Path::new(&arguments[0]), processes),
        _ => Err(USAGE.into()),
    };
    if let Err(error) = result {
        eprintln!("word_count: {error}");
        std::process::exit(1);
    }
}

/// A worker process: counts the words of one slice of the text.
fn work(url: &str, path: &Path, start: &str, end: &str) -> Result<(), Failure> {
    let mut client = Store::open(url)?.client()?;
    let (mut file, mut slice) = (File::open(path)?, Vec::new());
    let start = file.seek(SeekFrom::Start(start.parse()?))?;
    file.take(end.parse::<u64>()?.saturating_sub(start)).read_to_end(&mut slice)?;
    for word in words(&slice) {
        client.increment(&word, 1)?;
    }
    Ok(())
}

/// Whether `byte` is part of a word: a letter, a digit or a byte beyond ASCII.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

fn words(text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let runs = text.split(|byte| !is_letter(*byte)).filter(|run| !run.is_empty());
    runs.map(|run| run[..run.len().min(WORD_BYTES)].to_ascii_lowercase())
}

/// The leader: distributes the work and adds up the counts.
fn lead(path: &Path, processes: &str) -> Result<(), Failure> {
    let processes = processes.parse().ok().filter(|count| (1..=64).contains(count)).ok_or(USAGE)?;
    let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let url = Url::shm(&format!("guira-word-count-{}", std::process::id()))?;
    let capacity = 10_000 + text.len() as u64 / 16; // Real texts have more bytes for each different word.
    let store = Store::create(&url, &CreateOptions::new(capacity))?;
    let result = run(&store, path, &text, processes);
    Store::destroy(&url)?;
    result
}

fn run(store: &Store, path: &Path, text: &[u8], processes: usize) -> Result<(), Failure> {
    let slices = slices(text, processes);
    let started: Vec<_> = slices.into_iter().map(|slice| start(store.url(), path, slice)).collect();
    let ended: Vec<_> = started.into_iter().map(|child| child?.wait()).collect(); // All of them, before any failure.
    if !ended.into_iter().collect::<Result<Vec<_>, _>>()?.iter().all(|status| status.success()) {
        return Err("a worker failed".into());
    }
    let (mut counts, mut sum) = (Vec::new(), 0);
    for (word, count) in store.snapshot(1)?.iter() {
        let count = count.try_into().map_or(0, u64::from_le_bytes);
        sum += count;
        counts.push((count, String::from_utf8_lossy(word).into_owned()));
    }
    counts.sort_unstable_by(|(a, word_a), (b, word_b)| b.cmp(a).then(word_a.cmp(word_b)));
    counts.iter().take(20).for_each(|(count, word)| println!("{count:>10}  {word}"));
    let expected = words(text).count() as u64;
    println!("{sum} words counted by {processes} processes, {} different; the text has {expected}", counts.len());
    if sum == expected { Ok(()) } else { Err("the counts do not add up".into()) }
}

/// Cuts `text` into `parts` slices between words.
fn slices(text: &[u8], parts: usize) -> Vec<Range<usize>> {
    let word_end = |at: usize| at + text[at..].iter().take_while(|byte| is_letter(**byte)).count();
    let cut = |part: usize| if part == 0 { 0 } else { word_end(text.len() * part / parts) };
    (0..parts).map(|part| cut(part)..cut(part + 1)).collect()
}

fn start(url: &Url, path: &Path, slice: Range<usize>) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("worker").arg(url.to_string()).arg(path);
    command.args([slice.start.to_string(), slice.end.to_string()]).spawn()
}

/// Makes up a text of 100,000 words of 2 to 8 letters, some far more frequent than others; the same text each time.
fn made_up_text() -> Result<NamedTempFile, Failure> {
    let mut random = 1u64;
    let mut text = String::new();
    for _ in 0..100_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut word = (1 << ((random >> 32) % 12)) + ((random >> 40) % 97);
        while word > 0 {
            text.push_str(["ba", "cu", "di", "go", "ra", "se", "tu", "ya"][word as usize % 8]);
            word /= 8;
        }
        text.push(' ');
    }
    let file = NamedTempFile::new()?;
    std::fs::write(&file, text)?;
    Ok(file)
}
