//! `guira load`.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Mutex;

use clap::Args;
use guira::Url;
use guira::admin::Stat;
use guira::raw::layout::TableConfig;
use guira_input::{BadRecord, RecordEncoder};
use guira_lab::driver::OperationFigures;
use serde::Serialize;

use super::owner::Owner;
use super::{Verdict, WaitOptions, tls};
use crate::capacity::{self, ExistingRecords, Shortfall, Target};
use crate::failure::{Failure, Loaded};
use crate::input::{self, InputFormat};
use crate::interrupt;
use crate::loader::{Acknowledge, BadRecords, LoadOptions, LoadReport, Outbox, load};
use crate::output::Output;
use crate::progress::Progress;
use crate::text::NotationOptions;
use crate::units::{bytes, count, counted, per_second, percent, rate, share, time};

/// Bytes that are read at once in looking for the end of a file's last line.
const TAIL_BLOCK_BYTES: usize = 4096;

/// Store every record of a file.
///
/// Where a key occurs more than once, the last one wins. The file is TSV (key, TAB, value; \t \n \r \\ and \xHH stand
/// for bytes that cannot), JSON lines ({"key": …, "value": …}, or key_b64 and value_b64 for bytes that are no text), or
/// Debian control records (apt-cache dumpavail).
///
/// From a pipe that pauses, whole records are stored within a second of their coming. Ctrl-C ends the load between two
/// records, and it is said how many are stored.
///
/// Lines end in LF or CR LF; a CR anywhere else belongs to the key or value (write \r for one at the end of a TSV
/// line). Empty lines, and a UTF-8 byte order mark at the start of the file, are skipped.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// The file, or - for standard input.
    pub file: PathBuf,
    /// How records are written. Default: recognised from the first bytes.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub input: Option<InputFormat>,
    /// How keys and values are written.
    #[command(flatten)]
    pub notation: NotationOptions,
    /// Threads that store records.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Count records that cannot be read, and go on, instead of stopping at the first.
    #[arg(long)]
    pub skip_bad: bool,
    /// Append each record to this file, as dump prints it, once it is stored; some at a time. What is in it was
    /// acknowledged, whatever becomes of this process. A last line without an end, which the death of another one cut,
    /// is taken away first; so the file is for one process at a time.
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
    let store = arguments.wait.open(&arguments.url)?;
    let config = store.table().config();
    let encoder = arguments.notation.encoder(config.format)?;
    interrupt::catch();
    let before = store.stat()?;
    let shortfall = warn_if_too_small(arguments, encoder, config, &before, output);
    let entries_before = before.table.entries;
    let progress = Progress::new(output, "loading", None);
    let outbox = Rc::new(RefCell::new(Outbox::new(progress, entries_before, config.slots())));
    let opened = input::open_watched(&arguments.file, arguments.input, encoder, outbox.clone());
    let (mut records, input_bytes) = opened.map_err(|source| match interrupt::requested() {
        true => Failure::Interrupted(Loaded(0)),
        false => Failure::Input { source, loaded: Loaded(0) },
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
    let report = load(&store, &mut records, options, &outbox).map_err(|failure| failure.advised(shortfall))?;
    // Counted, because others may have stored and removed at the same time.
    let entries = store.stat()?.table.entries;
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
        entries,
        fill: share(entries, config.slots()),
        put: report.tally.figures(),
    };
    let said = output.answer(&answer, || human(&answer, &report));
    said.map_err(Failure::after(Loaded(answer.records).to_string()))?;
    Ok(Verdict::Fine)
}

/// Says so if a file has no room in the table.
fn warn_if_too_small(
    arguments: &Arguments,
    encoder: RecordEncoder,
    config: &TableConfig,
    before: &Stat,
    output: &Output,
) -> Option<Shortfall> {
    let need = capacity::survey(&arguments.file, arguments.input, encoder, config)?;
    let target = Target { url: &arguments.url, from: None, existing: ExistingRecords::Keep };
    let shortfall = capacity::shortfall(&arguments.file.display().to_string(), need, target, config, before);
    shortfall.iter().for_each(|shortfall| output.warn(&format!("{}; {}", shortfall.reason, shortfall.remedy)));
    shortfall
}

/// Opens a file to which whole lines are to be appended: what follows its last line end, if it is a regular file, is
/// cut off.
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

    /// The answer fits the narrowest terminal that is usual, with as many records as a large table has.
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

    /// A record that is appended does not become a part of one that a kill cut.
    #[test]
    fn a_cut_line_is_taken_away() {
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
