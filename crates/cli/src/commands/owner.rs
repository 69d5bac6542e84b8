//! The user whose tables a command trusts with its data, from an argument or an environment variable.

use std::process::Command;
use std::sync::OnceLock;

use clap::Args;
use guira::OpenOptions;

use crate::failure::Failure;
use crate::users;

/// The environment variable for the argument. Workers of a command inherit it.
const VARIABLE: &str = "GUIRA_OWNER";

/// The owner given on the command line of this process.
static GIVEN: OnceLock<u32> = OnceLock::new();

/// The option that names the required owner of the table, for commands that put data into it or take data out.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Owner {
    /// Require the table to belong to this user, by name or number. The owner of a table can read and change everything
    /// in it, so without this option a table in shared memory or in a file is changed only if it belongs to you or
    /// root. [env: GUIRA_OWNER]
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub owner: Option<u32>,
}

impl Owner {
    /// Stores the option for the rest of this process.
    pub fn remember(self) {
        if let Some(uid) = self.owner {
            // The command line is parsed once.
            let _ = GIVEN.set(uid);
        }
    }
}

/// Returns `options` with the required owner, if one is named.
pub fn required(options: OpenOptions) -> Result<OpenOptions, Failure> {
    Ok(named()?.into_iter().fold(options, OpenOptions::owner))
}

/// Returns the required owner, if one is named.
pub fn named() -> Result<Option<u32>, Failure> {
    if let Some(uid) = GIVEN.get() {
        return Ok(Some(*uid));
    }
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
    let parsed = users::parse(&text.to_string_lossy());
    parsed.map(Some).map_err(|reason| Failure::Misuse(format!("{VARIABLE}: {reason}; nothing was changed")))
}

/// Returns the option as words of a command that is advised; none if the environment names the owner.
pub fn words() -> Vec<String> {
    GIVEN.get().map(|uid| vec!["--owner".to_owned(), uid.to_string()]).unwrap_or_default()
}

/// Passes the option on to a copy of this program.
pub fn pass_on(command: &mut Command) {
    if let Some(uid) = GIVEN.get() {
        command.env(VARIABLE, uid.to_string());
    }
}
