//! `guira grow`: gives a table room ahead of need.

use std::ops::ControlFlow;

use clap::Args;
use guira::Url;
use serde::Serialize;

use super::{Verdict, open, open_options, owner, tls};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::units;

/// Give a table that grows room for a number of keys now.
///
/// A table grows by itself while it is used. This makes it grow ahead of a large load, which is faster then, and finds
/// out before it whether there is enough memory. The table stays in use meanwhile. After an interrupt it keeps the room
/// that it got.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// Number of keys it must have room for: 10M, 1G. At most the number that it may grow to.
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    pub capacity: u64,
    #[command(flatten)]
    pub owner: owner::Owner,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

/// The answer of the command.
#[derive(Debug, Serialize)]
struct Answer {
    url: String,
    /// Keys for which it has room, at least.
    capacity: u64,
    /// Segments that were split.
    splits: u64,
    /// Rows that it has now.
    rows: u64,
    /// Bytes of memory that it takes now; `null` behind a memory node.
    stored_bytes: Option<u64>,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let Arguments { url, capacity, .. } = arguments;
    let store = open(url, &owner::required(open_options()?)?)?;
    interrupt::catch();
    let mut shown = None;
    let grown = store.grow_with_progress(*capacity, &mut |done, all| {
        let progress = shown.get_or_insert_with(|| Progress::new(output, "growing", Some(all)));
        progress.tick(done, || format!("{} of {} splits", units::count(done), units::count(all)));
        if interrupt::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if let Some(progress) = &mut shown {
        progress.finish();
    }
    let grown = grown?;
    if grown.is_stopped {
        return Err(Failure::Stopped);
    }
    let stat = store.stat()?;
    let answer = Answer {
        url: url.to_string(),
        capacity: *capacity,
        splits: grown.splits,
        rows: stat.table.rows,
        stored_bytes: stat.region.file().map(|file| file.stored_bytes),
    };
    output.answer(&answer, || answer.human())?;
    Ok(Verdict::Fine)
}

impl Answer {
    fn human(&self) -> String {
        let Answer { url, capacity, splits, rows, stored_bytes } = self;
        let (capacity, rows) = (units::count(*capacity), units::count(*rows));
        let took = stored_bytes.map_or_else(String::new, |bytes| format!(" in {} of memory", units::bytes(bytes)));
        match splits {
            0 => format!("{url} has room for {capacity} keys already: {rows} rows{took}"),
            splits => {
                let splits = units::counted(*splits, "segment");
                format!("{url} has room for {capacity} keys: {splits} split; it has {rows} rows{took}")
            }
        }
    }
}
