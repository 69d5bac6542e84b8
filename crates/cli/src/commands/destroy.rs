//! `guira destroy`: removes a table.

use clap::Args;
use guira::{Store, Url};
use serde::Serialize;

use super::Verdict;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;

/// Remove a table and everything in it.
///
/// Processes that have it open can no longer change it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
}

#[derive(Serialize)]
struct Answer {
    url: String,
    destroyed: bool,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    // The first interrupt is ignored: half a removal would leave a table that cannot be found but can still be read.
    interrupt::catch();
    Store::destroy(&arguments.url).map_err(|error| match error.is_not_found() {
        true => Failure::NothingToDestroy { url: arguments.url.clone() },
        false => Failure::Store(error),
    })?;
    let url = arguments.url.to_string();
    let done = format!("destroyed {}", arguments.url);
    let said = output.answer(&Answer { url, destroyed: true }, || done.clone());
    said.map_err(Failure::after(done))?;
    Ok(Verdict::Fine)
}
