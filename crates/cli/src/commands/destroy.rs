//! `guira destroy`.

use clap::Args;
use guira::{Store, Url};
use serde::Serialize;

use super::Verdict;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;

/// Remove a table and all that is in it.
///
/// Processes that have it open cannot change it any more.
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
    // The first interrupt is left unheard: it would leave a table that nobody finds and some still read.
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
