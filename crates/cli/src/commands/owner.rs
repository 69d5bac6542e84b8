//! Whose table a command trusts with its data, from an argument or an environment variable.

use std::process::Command;
use std::sync::OnceLock;

use clap::Args;
use guira::OpenOptions;

use crate::failure::Failure;
use crate::users;

/// The environment variable that stands for the argument: the workers of a command have it, too.
const VARIABLE: &str = "GUIRA_OWNER";

/// What the command line of this process says.
static GIVEN: OnceLock<u32> = OnceLock::new();

/// Whose table it has to be, as an option of a command that puts data into one, or takes some out.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Owner {
    /// The user whose table it has to be, by name or number. Whoever owns a table can read and change all that is put
    /// into it, so without this option a table in shared memory or a file is changed only if it is yours or root's.
    /// [env: GUIRA_OWNER]
    #[arg(long, value_name = "USER", value_parser = users::parse)]
    pub owner: Option<u32>,
}

impl Owner {
    /// Keeps what was given for the rest of this process.
    pub fn remember(self) {
        if let Some(uid) = self.owner {
            // The command line is parsed once.
            let _ = GIVEN.set(uid);
        }
    }
}

/// `options`, for a table of the user who was named, if one was.
pub fn required(options: OpenOptions) -> Result<OpenOptions, Failure> {
    Ok(named()?.into_iter().fold(options, OpenOptions::owner))
}

/// The user whose table it has to be.
pub fn named() -> Result<Option<u32>, Failure> {
    if let Some(uid) = GIVEN.get() {
        return Ok(Some(*uid));
    }
    let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
    let parsed = users::parse(&text.to_string_lossy());
    parsed.map(Some).map_err(|reason| Failure::Misuse(format!("{VARIABLE}: {reason}; nothing was changed")))
}

/// Hands what was given on to a copy of this program.
pub fn pass_on(command: &mut Command) {
    if let Some(uid) = GIVEN.get() {
        command.env(VARIABLE, uid.to_string());
    }
}
