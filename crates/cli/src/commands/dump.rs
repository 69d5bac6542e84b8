//! `guira dump`: prints all records of a table.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;

use clap::{Args, ValueEnum};
use guira::Url;
use guira::admin::Unreadable;
use guira_input::{jsonl, tsv};

use super::owner::Owner;
use super::{Verdict, WaitOptions, tls};
use crate::failure::{ErrorText, Failure};
use crate::output::{Format, Output, stdout, stdout_error};
use crate::text::{Notation, NotationOptions};

/// Size of the output buffer in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Maximum number of unreadable rows and entries that are reported; all are counted.
pub const UNREADABLE_SHOWN: u64 = 100;

/// Print every key and value.
///
/// Records are printed in the table's order, in a format that guira load reads (with --hex or --numbers, if they were
/// printed that way). A key that another process moves during the scan may be printed twice or not at all. A damaged
/// row, or an entry with a damaged value, is reported on standard error; everything else is printed, and the exit code
/// is 3.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// Format of the records. Default: tsv, or jsonl with --format json.
    #[arg(long, value_enum, value_name = "KIND")]
    pub output: Option<Kind>,
    /// Notation of keys and values.
    #[command(flatten)]
    pub notation: NotationOptions,
    #[command(flatten)]
    pub wait: WaitOptions,
    #[command(flatten)]
    pub owner: Owner,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

/// The format of printed records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// One line per record: key, TAB, value, with \t \n \r \\ \xHH as escapes.
    Tsv,
    /// One JSON object per record: {"key" or "key_b64", "value" or "value_b64"}.
    Jsonl,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let kind = match (arguments.output, output.format()) {
        (Some(Kind::Tsv), Format::Json) => {
            return Err(Failure::Misuse("--output tsv is not JSON: leave out --format json".to_owned()));
        }
        (Some(kind), _) => kind,
        (None, Format::Json) => Kind::Jsonl,
        (None, Format::Human) => Kind::Tsv,
    };
    let store = arguments.wait.open_read_only(&arguments.url)?;
    let notation = arguments.notation.notation(store.table().config().format)?;
    let mut writer = BufWriter::with_capacity(BUFFER_BYTES, stdout()?);
    let mut written = Ok(());
    let mut print = |key: &[u8], value: &[u8]| {
        written = write(kind, notation, (key, value), &mut writer);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let mut named = 0;
    let mut name = |row: u64, unread: Unreadable, error: &guira::Error| {
        named += 1;
        if named <= UNREADABLE_SHOWN {
            output.error(&unreadable("printed", row, unread, error));
        }
    };
    let summary = store.scan_past_damage(&mut print, &mut name)?;
    written.and_then(|()| writer.flush().map_err(stdout_error))?;
    match summary.unreadable_rows {
        0 => Ok(Verdict::Fine),
        rows => Err(Failure::Unreadable { rows }),
    }
}

/// Writes one record.
fn write(kind: Kind, notation: Notation, (key, value): (&[u8], &[u8]), to: &mut impl Write) -> Result<(), Failure> {
    let (key, value) = (notation.written(key)?, notation.written(value)?);
    match kind {
        Kind::Tsv => tsv::write(&key, &value, to),
        Kind::Jsonl => jsonl::write(&key, &value, to),
    }
    .map_err(stdout_error)
}

/// Returns the error for an unreadable row or entry, which therefore was not `done`: "printed" or "copied".
pub fn unreadable(done: &str, row: u64, unread: Unreadable, error: &guira::Error) -> ErrorText {
    let lost = match unread {
        Unreadable::Row => format!("its keys were not {done}"),
        Unreadable::Entry => format!("one of its records was not {done}"),
    };
    let blame = error.blame().as_str().to_owned();
    let message = format!("row {row}: {lost} ({error})");
    ErrorText { blame, effect: "none".to_owned(), message, ..ErrorText::default() }
}
