//! `guira load`: stores the records of a file.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Mutex;

use clap::Args;
use guira::admin::{Stat, shell_word};
use guira::raw::layout::{TableConfig, record_space};
use guira::{Effect, EntryFormat, Store, Url};
use guira_input::{BadRecord, RecordEncoder};
use guira_lab::driver::OperationFigures;
use serde::Serialize;

use super::owner::{self, Owner};
use super::{Verdict, WaitOptions, create, tls};
use crate::advice::{self, Advised};
use crate::capacity::{self, ExistingRecords, Shortfall, Target};
use crate::failure::{Failure, Loaded};
use crate::input::{self, InputFormat};
use crate::interrupt;
use crate::loader::{Acknowledge, BadRecords, LoadOptions, LoadReport, Outbox, load};
use crate::output::Output;
use crate::progress::Progress;
use crate::text::NotationOptions;
use crate::units::{bytes, count, counted, per_second, percent, rate, time};

/// Bytes read at once in the search for the end of a file's last line.
const TAIL_BLOCK_BYTES: usize = 4096;

/// Store every record of a file.
///
/// If a key occurs more than once, the last record wins. The file is TSV (key, TAB, value, with \t \n \r \\ \xHH as
/// escapes), JSON lines ({"key": …, "value": …}, or key_b64 and value_b64 for bytes that are not text), or Debian
/// control records (apt-cache dumpavail).
///
/// If the input is a pipe that pauses, complete records are stored within a second. Ctrl-C stops the load between two
/// records and reports how many were stored.
///
/// Lines end in LF or CR LF; a CR anywhere else is part of the key or value (write \r for one at the end of a TSV
/// line). Empty lines, and a UTF-8 byte order mark at the start of the file, are skipped. Text in UTF-16 or UTF-32 and
/// compressed files are refused as a whole, with the command that converts them.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// The file, or - for standard input.
    pub file: PathBuf,
    /// Format of the records. Default: detected from the first bytes.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub input: Option<InputFormat>,
    /// Create the table if it does not exist, for the number and the size of the records in the file.
    #[arg(long)]
    pub create: bool,
    /// Notation of keys and values.
    #[command(flatten)]
    pub notation: NotationOptions,
    /// Threads that store records.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Skip and count records that cannot be read, instead of stopping at the first one.
    #[arg(long)]
    pub skip_bad: bool,
    /// Append each record to this file once it is stored, in the format of dump and in batches. Records in the file are
    /// stored even if this process is killed. An incomplete last line, left by a killed process, is removed first, so
    /// only one process may use the file at a time.
    #[arg(long, value_name = "FILE")]
    pub acknowledge: Option<PathBuf>,
    #[command(flatten)]
    pub wait: WaitOptions,
    #[command(flatten)]
    pub owner: Owner,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

#[derive(Serialize)]
struct Answer {
    url: String,
    input: String,
    records: u64,
    inserted: u64,
    replaced: u64,
    bad: u64,
    bad_examples: Vec<String>,
    bytes: u64,
    elapsed_ns: u64,
    records_per_s: f64,
    entries: u64,
    fill: f64,
    put: OperationFigures,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let (store, is_new) = match arguments.wait.open(&arguments.url) {
        Err(Failure::NotFound { .. }) if arguments.create => match create_for(arguments, output) {
            // Another process has created it meanwhile.
            Err(Failure::AlreadyExists { .. }) => (arguments.wait.open(&arguments.url)?, false),
            created => (created?, true),
        },
        opened => (opened?, false),
    };
    let loaded = load_into(&store, arguments, output);
    if is_new && loaded.as_ref().is_err_and(|failure| failure.effect() == Effect::None) && is_unused(&store) {
        // Nobody needs an empty table of this size; the failure is the one to report.
        let _ = interrupt::discard(&arguments.url);
    }
    loaded
}

/// Whether the table has no record and no client, of other processes either.
fn is_unused(store: &Store) -> bool {
    store.stat().is_ok_and(|stat| stat.table.entries == 0 && stat.clients.is_empty())
}

fn load_into(store: &Store, arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let config = store.table().config();
    let encoder = arguments.notation.encoder(config.format)?;
    interrupt::catch();
    let before = store.stat()?;
    let shortfall = warn_if_too_small(arguments, encoder, config, &before, output);
    let entries_before = before.table.entries;
    let slots = (!config.grows()).then(|| config.max_entries());
    let progress = Progress::new(output, "loading", None);
    let outbox = Rc::new(RefCell::new(Outbox::new(progress, entries_before, slots)));
    let opened = input::open_watched(&arguments.file, arguments.input, encoder, outbox.clone());
    let (mut records, input_bytes) = opened.map_err(|source| match interrupt::requested() {
        true => Failure::Interrupted(Loaded(0)),
        false => arguments.advised(Failure::Input { source, loaded: Loaded(0) }),
    })?;
    if let Some(bytes) = input_bytes {
        outbox.borrow_mut().set_input_bytes(bytes);
    }
    let bad = if arguments.skip_bad { BadRecords::Skip } else { BadRecords::Stop };
    let acknowledge = arguments.acknowledge.as_deref().map(|path| {
        let file = append_lines(path).map_err(Failure::host(format!("open {}", path.display())))?;
        Ok::<_, Failure>(Acknowledge { file: Mutex::new(file), notation: arguments.notation.notation(config.format)? })
    });
    let acknowledge = acknowledge.transpose()?;
    let options = LoadOptions { threads: arguments.threads.into(), bad, acknowledge: acknowledge.as_ref() };
    let report =
        load(store, &mut records, options, &outbox).map_err(|failure| arguments.advised(failure.advised(shortfall)))?;
    // Counted, because other clients may have stored and removed records at the same time.
    let after = store.stat()?.table;
    let answer = Answer {
        url: arguments.url.to_string(),
        input: records.format().to_string(),
        records: report.records,
        inserted: report.inserted,
        replaced: report.records - report.inserted,
        bad: report.bad,
        bad_examples: report.bad_shown.iter().map(BadRecord::to_string).collect(),
        bytes: report.bytes,
        elapsed_ns: report.elapsed_ns,
        records_per_s: per_second(report.records, report.elapsed_ns),
        entries: after.entries,
        fill: after.fill,
        put: report.tally.figures(),
    };
    let said = output.answer(&answer, || human(&answer, &report));
    said.map_err(Failure::after(Loaded(answer.records).to_string()))?;
    Ok(Verdict::Fine)
}

/// Creates a table for the records of the file.
fn create_for(arguments: &Arguments, output: &Output) -> Result<Store, Failure> {
    const FORMAT: EntryFormat = EntryFormat::Bytes { inline_bytes: 64 };
    let Arguments { url, file, input, notation, .. } = arguments;
    if file == Path::new("-") || file.metadata().is_ok_and(|there| !there.is_file()) {
        return Err(Failure::Misuse(format!(
            "--create sizes the table by the file, and the size of {} is unknown: create it before, with guira create \
             {url} --capacity N --record-bytes SIZE; nothing was changed",
            file.display(),
        )));
    }
    let encoder = notation.encoder(FORMAT)?;
    interrupt::catch();
    input::open(file, *input, encoder)
        .map_err(|source| arguments.advised(Failure::Input { source, loaded: Loaded(0) }))?;
    let space = |key, value| record_space(FORMAT, key, value);
    let need = capacity::survey(file, *input, encoder, space).ok_or(Failure::Interrupted(Loaded(0)))?;
    create::create(url, &need.options(), output)
}

impl Arguments {
    /// Adds the command that converts the input, if that helps.
    fn advised(&self, failure: Failure) -> Failure {
        advice::of_input(failure, &self.file, |file| {
            let url = self.url.to_string();
            let owner = owner::words();
            let owner: Vec<&str> = owner.iter().map(String::as_str).collect();
            let load = |input: &[&str]| {
                let words = [&[url.as_str()], self.notation.words(), &owner[..], input].concat();
                advice::guira(Advised::Load, &words)
            };
            if !self.create {
                return format!("| {}", load(&["-"]));
            }
            // The size of a pipe is unknown.
            let text = format!("{file}.utf8");
            format!("> {} && {}", shell_word(&text), load(&[&text, "--create"]))
        })
    }
}

/// Warns if the records of a file do not fit in the table.
fn warn_if_too_small(
    arguments: &Arguments,
    encoder: RecordEncoder,
    config: &TableConfig,
    before: &Stat,
    output: &Output,
) -> Option<Shortfall> {
    let space = |key, value| config.record_space(key, value);
    let need = capacity::survey(&arguments.file, arguments.input, encoder, space)?;
    let target = Target { url: &arguments.url, from: None, existing: ExistingRecords::Keep };
    let shortfall = capacity::shortfall(&arguments.file.display().to_string(), need, target, config, before);
    shortfall.iter().for_each(|shortfall| output.warn(&format!("{}; {}", shortfall.reason, shortfall.remedy)));
    shortfall
}

/// Opens a file to append whole lines. If it is a regular file, an incomplete last line is cut off.
fn append_lines(path: &Path) -> io::Result<File> {
    let is_pipe = path.metadata().is_ok_and(|there| !there.is_file());
    let file = OpenOptions::new().create(true).append(true).read(!is_pipe).open(path)?;
    if is_pipe {
        return Ok(file);
    }
    let length = file.metadata()?.len();
    let mut end = length;
    let mut buffer = [0; TAIL_BLOCK_BYTES];
    while end > 0 {
        let start = end.saturating_sub(TAIL_BLOCK_BYTES as u64);
        let part = &mut buffer[..(end - start) as usize];
        file.read_exact_at(part, start)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    if end < length {
        file.set_len(end)?;
    }
    Ok(file)
}

fn human(answer: &Answer, report: &LoadReport) -> String {
    let mut lines = vec![
        format!(
            "loaded {} ({}, {}) in {}: {}",
            counted(answer.records, "record"),
            answer.input,
            bytes(answer.bytes),
            time(answer.elapsed_ns),
            rate(answer.records_per_s)
        ),
        format!(
            "{} inserted, {} replaced; {:.2} round trips each; fill {}",
            count(answer.inserted),
            count(answer.replaced),
            answer.put.round_trips.mean,
            percent(answer.fill)
        ),
    ];
    if report.bad > 0 {
        lines.push(format!("skipped {} that could not be read:", counted(report.bad, "record")));
        lines.extend(answer.bad_examples.iter().map(|bad| format!("  {bad}")));
        let unshown = report.bad - answer.bad_examples.len() as u64;
        if unshown > 0 {
            lines.push(format!("  and {} more", count(unshown)));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// The answer fits the narrowest usual terminal, even with as many records as a large table has.
    #[test]
    fn the_answer_fits_80_columns() {
        let answer = Answer {
            url: "shm://x".to_owned(),
            input: "debian".to_owned(),
            records: 400_000_000,
            inserted: 300_000_000,
            replaced: 100_000_000,
            bad: 0,
            bad_examples: Vec::new(),
            bytes: (1 << 40) - 1,
            elapsed_ns: 9_876_543_210_000,
            records_per_s: 1_234_567.0,
            entries: 400_000_000,
            fill: 0.999,
            put: guira_lab::driver::OperationTally::default().figures(),
        };
        let text = human(&answer, &LoadReport::default());
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    /// An appended record does not become part of a line that a kill has cut.
    #[test]
    fn an_incomplete_last_line_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stored");
        append_lines(&path).unwrap().write_all(b"new\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new\n");
        for tail in [0, 1, TAIL_BLOCK_BYTES - 1, TAIL_BLOCK_BYTES, TAIL_BLOCK_BYTES + 1, 3 * TAIL_BLOCK_BYTES] {
            for whole in [&b""[..], b"\n", b"one\t1\ntwo\t2\n"] {
                std::fs::write(&path, [whole, &vec![b'x'; tail]].concat()).unwrap();
                append_lines(&path).unwrap().write_all(b"last\n").unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), [whole, b"last\n"].concat(), "{tail} bytes were cut");
            }
        }
        append_lines(Path::new("/dev/null")).unwrap().write_all(b"x\n").unwrap();
    }
}
