//! `guira dump`.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

use clap::{Args, ValueEnum};
use guira::{OpenOptions, Store, Url};
use guira_input::{jsonl, tsv};

use super::Verdict;
use crate::failure::Failure;
use crate::output::{Format, Output, closed};

/// Bytes gathered before they are written out.
const BUFFER_BYTES: usize = 256 << 10;

/// Print every key and value, in the table's own order. What it prints, `guira load` takes.
///
/// A key that another process moves meanwhile may be printed twice or not at all.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// How to write records. Default: tsv; with --format json: jsonl.
    #[arg(long, value_enum, value_name = "KIND")]
    pub output: Option<Kind>,
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
    let store = Store::open_with(&arguments.url, &OpenOptions::default().read_only())?;
    let mut writer = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
    let mut written = Ok(());
    store.scan(&mut |key, value| {
        written = match kind {
            Kind::Tsv => tsv::write(key, value, &mut writer),
            Kind::Jsonl => jsonl::write(key, value, &mut writer),
        };
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    written.and_then(|()| writer.flush()).map_err(closed)?;
    Ok(Verdict::Fine)
}
