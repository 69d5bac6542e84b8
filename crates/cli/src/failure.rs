//! What can go wrong, sorted as the library sorts it, and the exit code that says so.

use std::fmt;
use std::io;

use guira::Effect;
use guira_input::InputError;
use guira_lab::driver::DriverError;
use serde::{Deserialize, Serialize};

use crate::interrupt::EXIT_INTERRUPTED;

/// Exit code of an answer that is "no".
pub const EXIT_NEGATIVE: u8 = 1;
/// Exit code of a call that cannot work.
pub const EXIT_MISUSE: u8 = 2;
/// Exit code of everything else that fails.
pub const EXIT_FAILURE: u8 = 3;

/// What `--help` says about exit codes.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done, and the answer is yes
  1  the answer is no: there is no such key or no such table, the key exists
     already (insert), or something is wrong (check, quickstart, ycsb)
  2  misuse: arguments, keys, values or input that cannot be
  3  any other failure: no memory, a full table, a damaged file, a file that
     cannot be read
  130  interrupted

Errors are one line on standard error; with --format json it is
{\"error\":{\"blame\":…,\"effect\":…,\"message\":…}}.";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store's answer.
    #[error(transparent)]
    Store(#[from] guira::Error),
    /// The store's answer to one record of an input.
    #[error("line {line}, key {key}: {source}; {loaded}")]
    Record {
        /// Line of the input at which the record starts.
        line: u64,
        /// The key, made printable.
        key: String,
        /// What is in the table by now.
        loaded: Loaded,
        /// The store's answer.
        source: Box<guira::Error>,
    },
    /// An input that cannot be read.
    #[error("{source}; {loaded}")]
    Input {
        /// What is wrong with it.
        source: InputError,
        /// What is in the table by now.
        loaded: Loaded,
    },
    /// A workload could not be run.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Arguments, keys or values that cannot be. Nothing was changed.
    #[error("{0}")]
    Misuse(String),
    /// A file, a pipe or a process.
    #[error("cannot {attempt}: {source}")]
    Host {
        /// What was attempted.
        attempt: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Another process of this command failed, and said why.
    #[error("{name}: {}", said.message)]
    Worker {
        /// Which process.
        name: String,
        /// What it said.
        said: ErrorText,
    },
    /// Ctrl-C. What was stored is stored; nothing is half done.
    #[error("interrupted; {0}")]
    Interrupted(Loaded),
    /// Nobody reads standard output any more.
    #[error("standard output is closed")]
    ClosedOutput,
}

/// How many records of an input are in the table when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded(pub u64);

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("nothing was loaded"),
            1 => f.write_str("1 record was loaded"),
            records => write!(f, "{records} records were loaded"),
        }
    }
}

impl Loaded {
    fn effect(self) -> Effect {
        if self.0 == 0 { Effect::None } else { Effect::Done }
    }
}

/// An error as JSON shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorText {
    /// The library's word for whose fault it is, or `host`: the operating system's.
    pub blame: String,
    /// `none`, `done` or `unknown`: what happened to the table.
    pub effect: String,
    /// One line.
    pub message: String,
}

impl Failure {
    /// A file, a pipe or a process that refused `attempt`.
    pub fn host(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::Host { attempt: attempt.into(), source }
    }

    /// What JSON shows.
    pub fn text(&self) -> ErrorText {
        if let Failure::Worker { said, .. } = self {
            return ErrorText { message: self.to_string(), ..said.clone() };
        }
        ErrorText {
            blame: self.blame().to_owned(),
            effect: effect_word(self.effect()).to_owned(),
            message: self.to_string(),
        }
    }

    /// The code the program ends with.
    pub fn exit_code(&self) -> u8 {
        match self.text().blame.as_str() {
            _ if self.is_absent() => EXIT_NEGATIVE,
            _ if matches!(self, Failure::Interrupted(_)) => EXIT_INTERRUPTED,
            "misuse" => EXIT_MISUSE,
            _ => EXIT_FAILURE,
        }
    }

    /// Whether the failure is that there is no such table.
    pub fn is_absent(&self) -> bool {
        match self {
            Failure::Store(error) => is_absent(error),
            _ => false,
        }
    }

    fn blame(&self) -> &str {
        match self {
            Failure::Store(error) => error.blame().as_str(),
            Failure::Record { source, .. } => source.blame().as_str(),
            Failure::Driver(DriverError::Store { source, .. }) => source.blame().as_str(),
            Failure::Driver(DriverError::Panicked) => guira::Blame::Bug.as_str(),
            Failure::Input { source: InputError::Bad(_), .. } | Failure::Driver(_) | Failure::Misuse(_) => {
                guira::Blame::Misuse.as_str()
            }
            Failure::Worker { said, .. } => &said.blame,
            Failure::Input { .. } | Failure::Host { .. } | Failure::ClosedOutput | Failure::Interrupted(_) => "host",
        }
    }

    fn effect(&self) -> Effect {
        match self {
            Failure::Store(error) => error.effect(),
            Failure::Record { source, loaded, .. } => match source.effect() {
                Effect::None => loaded.effect(),
                effect => effect,
            },
            Failure::Input { loaded, .. } | Failure::Interrupted(loaded) => loaded.effect(),
            Failure::Driver(DriverError::Store { source, .. }) => source.effect(),
            _ => Effect::None,
        }
    }
}

/// Whether an error of the store says that there is no such table.
pub fn is_absent(error: &guira::Error) -> bool {
    use guira_fabric_shm::{Attempt, ShmError};
    // A creation that finds no directory is a mistake of the path.
    matches!(error, guira::Error::Region(ShmError::NotFound { attempt, .. }) if *attempt != Attempt::Create)
}

fn effect_word(effect: Effect) -> &'static str {
    match effect {
        Effect::None => "none",
        Effect::Done => "done",
        Effect::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use guira_input::BadRecord;

    use super::*;

    #[test]
    fn codes_follow_the_blame() {
        assert_eq!(Failure::Misuse("x".to_owned()).exit_code(), EXIT_MISUSE);
        let failure = Failure::host("read x")(io::Error::other("y"));
        assert_eq!((failure.exit_code(), failure.to_string()), (EXIT_FAILURE, "cannot read x: y".to_owned()));
        let bad = BadRecord { line: 3, excerpt: "ab".to_owned(), reason: "it has no TAB".to_owned() };
        let failure = Failure::Input { source: InputError::Bad(bad), loaded: Loaded(2) };
        assert_eq!(failure.exit_code(), EXIT_MISUSE);
        let text = failure.text();
        assert_eq!((text.blame.as_str(), text.effect.as_str()), ("misuse", "done"));
        assert_eq!(text.message, "line 3 (ab): it has no TAB; 2 records were loaded");
    }

    #[test]
    fn a_worker_speaks_for_itself() {
        let said = ErrorText { blame: "full".to_owned(), effect: "none".to_owned(), message: "no room".to_owned() };
        let failure = Failure::Worker { name: "worker 2".to_owned(), said };
        assert_eq!(failure.exit_code(), EXIT_FAILURE);
        assert_eq!(failure.text().message, "worker 2: no room");
        assert_eq!(failure.text().blame, "full");
    }
}
