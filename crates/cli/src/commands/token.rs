//! `guira token`: creates a token file.

use std::path::PathBuf;

use clap::Args;
use guira::AccessToken;
use serde::Serialize;

use super::Verdict;
use crate::failure::Failure;
use crate::output::Output;

/// Create a token file, which gives clients access to guira serve.
///
/// The file holds 128 random bits as 32 hexadecimal digits, and only you may read it. Pass it to guira serve
/// --token-file, and copy it to the hosts of the clients over a secure channel.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The file to create. An existing file is never replaced.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// The answer. It does not contain the token itself.
#[derive(Serialize)]
struct Made {
    file: String,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    AccessToken::create(&arguments.file).map_err(guira::Error::from)?;
    let made = Made { file: arguments.file.display().to_string() };
    let said = output.answer(&made, || format!("created {}: a new token for guira serve and its clients", made.file));
    said.map_err(Failure::after(format!("created {}", made.file)))?;
    Ok(Verdict::Fine)
}
