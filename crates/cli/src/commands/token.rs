//! `guira token`.

use std::path::PathBuf;

use clap::Args;
use guira::AccessToken;
use serde::Serialize;

use super::Verdict;
use crate::failure::Failure;
use crate::output::Output;

/// Make a token file, which lets clients of guira serve in.
///
/// The file holds 128 random bits as 32 hexadecimal digits, and only you may read it. Give it to guira serve
/// --token-file, and copy it to the hosts whose clients shall be let in, by a way that nobody listens to.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The file to make. Nothing that exists is ever replaced.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// What was made. The token itself is not told.
#[derive(Serialize)]
struct Made {
    file: String,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    AccessToken::create(&arguments.file).map_err(guira::Error::from)?;
    let made = Made { file: arguments.file.display().to_string() };
    let said = output.answer(&made, || format!("made {}: a new token, for guira serve and its clients", made.file));
    said.map_err(Failure::after(format!("made {}", made.file)))?;
    Ok(Verdict::Fine)
}
