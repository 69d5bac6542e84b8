//! `guira dump`.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

use clap::{Args, ValueEnum};
use guira::Url;
use guira::admin::Unreadable;
use guira_input::{jsonl, tsv};

use super::owner::Owner;
use super::{Verdict, WaitOptions, tls};
use crate::failure::{ErrorText, Failure};
use crate::output::{Format, Output, stdout_error};
use crate::text::{Notation, NotationOptions};

/// Bytes gathered before they are written out.
const BUFFER_BYTES: usize = 256 << 10;

/// Failures to read a row, or an entry of it, that are named; all are counted.
pub const UNREADABLE_SHOWN: u64 = 100;

/// Print every key and value.
///
/// They come in the table's own order, in a form that guira load takes (with --hex or --numbers, if that is how they
/// were printed). A key that another process moves meanwhile may be printed twice or not at all. A damaged row is named
/// on standard error, and so is an entry whose value is damaged; everything else is printed, and the exit code is 3.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// How to write records. Default: tsv; with --format json: jsonl.
    #[arg(long, value_enum, value_name = "KIND")]
    pub output: Option<Kind>,
    /// How keys and values are written.
    #[command(flatten)]
    pub notation: NotationOptions,
    #[command(flatten)]
    pub wait: WaitOptions,
    #[command(flatten)]
    pub owner: Owner,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

/// How records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A line each: key, TAB, value; \t \n \r \\ and \xHH for what cannot stand there.
    Tsv,
    /// A JSON object each: {"key" or "key_b64", "value" or "value_b64"}.
    Jsonl,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let kind = match (arguments.output, output.format()) {
        (Some(Kind::Tsv), Format::Json) => {
            return Err(Failure::Misuse("--output tsv is no JSON: leave out --format json".to_owned()));
        }
        (Some(kind), _) => kind,
        (None, Format::Json) => Kind::Jsonl,
        (None, Format::Human) => Kind::Tsv,
    };
    let store = arguments.wait.open_read_only(&arguments.url)?;
    let notation = arguments.notation.notation(store.table().config().format)?;
    let mut writer = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
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

/// The error of a row, or an entry of it, that could not be read and is therefore not `done`: printed, copied.
pub fn unreadable(done: &str, row: u64, unread: Unreadable, error: &guira::Error) -> ErrorText {
    let lost = match unread {
        Unreadable::Row => format!("whatever keys it holds are not {done}"),
        Unreadable::Entry => format!("one of its keys and the key's value are not {done}"),
    };
    let blame = error.blame().as_str().to_owned();
    let message = format!("row {row}: {lost} ({error})");
    ErrorText { blame, effect: "none".to_owned(), message, ..ErrorText::default() }
}
