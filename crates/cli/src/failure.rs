//! Failures of commands, sorted by blame as in the library, and their exit codes.

use std::fmt;
use std::io;

use guira::errors::{NameLoss, TableError};
use guira::{AdminError, Effect, OpenError, OpenOptions, Store, Url};
use guira_fabric::refusal::thread_refused;
use guira_input::InputError;
use guira_lab::driver::{DriverError, Removal};
use guira_lab::experiment::LabError;
use serde::{Deserialize, Serialize};

use crate::advice;
use crate::capacity::Shortfall;
use crate::interrupt::EXIT_INTERRUPTED;
use crate::memory::Refusal;
use crate::units::counted;

/// The exit code of the answer "no".
pub const EXIT_NEGATIVE: u8 = 1;
/// The exit code of a call that cannot work, whatever the state of the host.
pub const EXIT_MISUSE: u8 = 2;
/// The exit code of all other failures.
pub const EXIT_FAILURE: u8 = 3;

/// Every exit code and its meaning.
pub const EXIT_CODES: [(u8, &str); 5] = [
    (0, "success, and the answer is yes"),
    (
        EXIT_NEGATIVE,
        "the answer is no: no such key or table, the key (insert) or table (create) already exists, the value is not \
         the expected one (cas), the copy differs (copy), or a problem was found (check, doctor, kick, quickstart, \
         top, ycsb)",
    ),
    (EXIT_MISUSE, "misuse: invalid arguments, or keys, values or records that the table cannot store"),
    (
        EXIT_FAILURE,
        "any other failure: no permission, an unreadable file, not enough memory, a full or damaged table, a table \
         file that was truncated while it was served, a counter that is not a number, a memory node that is \
         unreachable or refuses access, or a lock that another client holds",
    ),
    (
        EXIT_INTERRUPTED,
        "interrupted by SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGXCPU (ulimit -t); a command that has nothing to \
         complete or to remove, such as get or dump, is ended by the signal itself; serve and top stop in order, with \
         code 0",
    ),
];

/// The form of errors on standard error.
pub const ERROR_FORM: &str = "An error is one line on standard error, or a few lines for invalid arguments. With \
                              --format json it is {\"error\":{\"blame\":…,\"effect\":…,\"message\":…}}; for invalid \
                              arguments it also has \"expected\" and \"usage\".";

/// Maximum number of characters in a line of [`exit_codes`]: fits the narrowest usual terminal.
const HELP_CHARS: usize = 78;

/// Returns the section about exit codes in `--help`.
pub fn exit_codes() -> String {
    let mut lines = vec!["Exit codes:".to_owned()];
    for (code, meaning) in EXIT_CODES {
        lines.extend(wrapped(&format!("{code:>5}  "), "       ", meaning));
    }
    lines.push(String::new());
    lines.extend(wrapped("", "", ERROR_FORM));
    lines.join("\n")
}

/// Wraps words into lines: the first starts with `head`, the others with `indent`.
fn wrapped(head: &str, indent: &str, words: &str) -> Vec<String> {
    let mut lines = vec![head.to_owned()];
    let mut is_start = true;
    for word in words.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if !is_start && line + 1 + word.chars().count() > HELP_CHARS {
            lines.push(indent.to_owned());
            is_start = true;
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(if is_start { "" } else { " " });
            line.push_str(word);
        }
        is_start = false;
    }
    lines
}

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store returned an error.
    #[error(transparent)]
    Store(#[from] guira::Error),
    /// The table does not exist.
    #[error("{url} does not exist; create it, here for 10,000 keys, with: {}", advice::create(url))]
    NotFound {
        /// The table.
        url: Url,
    },
    /// The table that was to be destroyed does not exist.
    #[error("{url} does not exist; there is nothing to destroy")]
    NothingToDestroy {
        /// The table.
        url: Url,
    },
    /// The table was destroyed while a command watched it.
    #[error("{url} was destroyed while it was watched, and no new table was created with its name")]
    Destroyed {
        /// The table.
        url: Url,
    },
    /// The table of a memory node was destroyed by another process.
    #[error("{url} was destroyed while it was served, so the node stopped; restart it to create a new table")]
    DestroyedWhileServed {
        /// The table.
        url: Url,
    },
    /// The file of a memory node's table was truncated, or its pages could not be read.
    #[error(
        "{url} is lost: {reason} while it was served; its content is gone, and all sessions have ended; remove the \
         file and restart the node to create a new table"
    )]
    LostWhileServed {
        /// The table.
        url: Url,
        /// The cause of the loss.
        reason: String,
    },
    /// The file of a memory node's table was removed, moved or replaced.
    #[error(
        "{url} is gone: {loss} while it was served, so that nobody would find what clients store in it; all sessions \
         have ended; restart the node to serve what has the name then, or a new table"
    )]
    NameLostWhileServed {
        /// The table.
        url: Url,
        /// The way in which it lost its name.
        loss: NameLoss,
    },
    /// The name of the new table belongs to a file that is not a table, or not one that this user can open.
    #[error("{url} already exists and cannot be opened as a table; nothing was changed; choose another name")]
    NotATable {
        /// The URL of the new table.
        url: Url,
    },
    /// The name of the new table is already in use.
    #[error(
        "{url} already exists; nothing was changed; {}",
        advice::destroy(url).unwrap_or_else(|| "choose another name".to_owned())
    )]
    AlreadyExists {
        /// The table.
        url: Url,
    },
    /// A failure, with advice on what to do.
    #[error("{source}; {advice}")]
    Advised {
        /// The failure.
        r#source: Box<Failure>,
        /// The advice.
        advice: String,
    },
    /// A command that only reads failed: its message does not say that nothing was changed.
    #[error("{}", of_reading(source))]
    Reading {
        /// The failure.
        r#source: Box<Failure>,
    },
    /// The value of a key is not a number that can be incremented.
    #[error("{0}; nothing was changed")]
    Counter(String),
    /// Other clients changed a counter during each attempt.
    #[error("other clients changed {key} during each of {}; nothing was changed", counted(*attempts, "attempt"))]
    Contended {
        /// The key, made printable.
        key: String,
        /// Number of attempts.
        attempts: u64,
    },
    /// The store refused a record of an input.
    #[error("line {line}, key {key}: {source}; {loaded}")]
    Record {
        /// Line of the input at which the record starts.
        line: u64,
        /// The key, made printable.
        key: String,
        /// Number of records loaded before.
        loaded: Loaded,
        /// The store's error.
        r#source: Box<guira::Error>,
    },
    /// Copying a table failed.
    #[error("{doing}: {source}; {}", copied_text(*copied))]
    Copied {
        /// The step that failed: reading a table, or storing a key.
        doing: String,
        /// The store's error.
        r#source: Box<guira::Error>,
        /// Number of records copied before.
        copied: u64,
    },
    /// An input cannot be read.
    #[error("{source}; {loaded}")]
    Input {
        /// The error of the input.
        r#source: InputError,
        /// Number of records loaded before.
        loaded: Loaded,
    },
    /// A workload could not be run.
    #[error(transparent)]
    Driver(DriverError),
    /// An experiment could not be run.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A run of experiments was interrupted.
    #[error(
        "interrupted; {}",
        kept.as_ref().map_or("no result was written".to_owned(), |kept| format!("{kept}; the same command goes on"))
    )]
    LabStopped {
        /// The finished figures, and their directory.
        kept: Option<String>,
    },
    /// Arguments, keys or values are invalid. Nothing was changed.
    #[error("{0}")]
    Misuse(String),
    /// An operation on a file, a pipe or a process failed.
    #[error("cannot {attempt}: {source}")]
    Host {
        /// The operation, as a verb phrase.
        attempt: String,
        /// The system's error.
        r#source: io::Error,
    },
    /// The system refused memory, so the command ended early, in order.
    #[error("{refusal}{}", ended.as_ref().map_or_else(String::new, |ended| format!("; {}", of_refusal(ended))))]
    OutOfMemory {
        /// The first refusal.
        refusal: Refusal,
        /// The end of the command, if it is an error.
        ended: Option<Box<Failure>>,
    },
    /// A worker process of this command failed and reported an error.
    #[error("{name}: {}", error.message)]
    Worker {
        /// The name of the worker.
        name: String,
        /// The error it reported.
        error: Box<ErrorText>,
    },
    /// The load was interrupted. What was stored is stored; nothing is half done.
    #[error("interrupted; {0}")]
    Interrupted(Loaded),
    /// The creation of a table was interrupted. Nothing is left of it.
    #[error("interrupted; {0} was not created, and nothing was left behind")]
    NotCreated(Url),
    /// A copy was interrupted. What was stored is stored; nothing is half done.
    #[error("interrupted; {}", copied_text(*.0))]
    CopyInterrupted(u64),
    /// The command was interrupted. The table that it created is destroyed.
    #[error("interrupted; {0}, which this command created, was destroyed")]
    TableDiscarded(Url),
    /// A workload was interrupted. Every operation was carried out or not begun.
    #[error("interrupted between two operations; every operation before it is complete")]
    Stopped,
    /// A workload on an existing table was interrupted. The records that it inserted are removed.
    #[error("interrupted; the records that the run inserted into {0} were removed")]
    CleanedUp(Url),
    /// Some of the records that a workload inserted into an existing table could not be removed.
    #[error("{} of the run may remain in {url}: {reason}", some_records(*left))]
    RecordsLeft {
        /// The table.
        url: Url,
        /// Number of records that may be left.
        left: u64,
        /// The reason why they could not be removed.
        reason: String,
    },
    /// The command did its work, but its answer could not be written.
    #[error("{source}; already done: {done}")]
    AnswerNotWritten {
        /// The work that was done.
        done: String,
        /// The error of writing the answer.
        r#source: Box<Failure>,
    },
    /// Some rows of a table could not be read. Each was reported before.
    #[error("{rows} could not be read completely; all other records were read", rows = counted(*rows, "row"))]
    Unreadable {
        /// Number of such rows.
        rows: u64,
    },
    /// A comparison could not be carried out, or a system returned a wrong answer. Everything it started is stopped.
    #[cfg(feature = "peers")]
    #[error("{0}; everything that was started for the run was stopped")]
    Peers(String),
    /// The reader of standard output has closed it.
    #[error("standard output is closed")]
    ClosedOutput,
}

/// The current holder of a name under which a table could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameHolder {
    /// A table.
    Table,
    /// A table that is being destroyed, or whose destroyer ended before the name was removed.
    Destroyed,
    /// Nothing: the table was destroyed in the meantime.
    Free,
    /// A file that is not a table, or that this user cannot open.
    NotATable,
}

impl NameHolder {
    /// Inspects the file that has the name now.
    pub fn of(url: &Url) -> NameHolder {
        match Store::open_with(url, &OpenOptions::default().read_only()) {
            Ok(_) => NameHolder::Table,
            Err(error) if error.is_not_found() => NameHolder::Free,
            Err(guira::Error::Open(guira::OpenError::Table { source: TableError::Destroyed, .. })) => {
                NameHolder::Destroyed
            }
            Err(_) => NameHolder::NotATable,
        }
    }
}

/// Number of records of an input that were loaded before a failure.
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

/// Describes how many records were copied before a failure.
pub fn copied_text(records: u64) -> String {
    match records {
        0 => "nothing was copied".to_owned(),
        1 => "1 record was copied".to_owned(),
        records => format!("{records} records were copied"),
    }
}

impl Loaded {
    fn effect(self) -> Effect {
        if self.0 == 0 { Effect::None } else { Effect::Done }
    }
}

/// An error in the form of its JSON output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorText {
    /// The blame, named as in the library, or `host` for the operating system.
    pub blame: String,
    /// The effect on the table: `none`, `done` or `unknown`.
    pub effect: String,
    /// The message, in one line.
    pub message: String,
    /// For invalid arguments: the accepted values, or the missing arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<String>,
    /// For invalid arguments: the usage of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
}

impl Failure {
    /// Returns a function that turns a system's error in `attempt`, a verb phrase, into a failure.
    pub fn host(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::Host { attempt: attempt.into(), source }
    }

    /// Returns a function that turns the refusal of a thread in `attempt`, a verb phrase, into a failure.
    pub fn thread(attempt: &str) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure::host(attempt)(thread_refused(&error))
    }

    /// Returns a function that adds to a failure to write the answer that `done` was done.
    pub fn after(done: impl Into<String>) -> impl FnOnce(Failure) -> Failure {
        move |failure| match failure {
            Failure::ClosedOutput => Failure::ClosedOutput,
            failure => Failure::AnswerNotWritten { done: done.into(), source: Box::new(failure) },
        }
    }

    /// Returns a function that turns a store's error about the table at `url` into a failure.
    pub fn of_table(url: &Url) -> impl FnOnce(guira::Error) -> Failure {
        |error| if error.is_not_found() { Failure::NotFound { url: url.clone() } } else { Failure::Store(error) }
    }

    /// Returns a function that turns a store's error in creating a table at `url` into a failure.
    pub fn of_creation(url: &Url) -> impl FnOnce(guira::Error) -> Failure {
        move |error| match error {
            error if error.is_already_exists() => match NameHolder::of(url) {
                NameHolder::NotATable => Failure::NotATable { url: url.clone() },
                NameHolder::Table | NameHolder::Destroyed | NameHolder::Free => {
                    Failure::AlreadyExists { url: url.clone() }
                }
            },
            error @ guira::Error::Open(guira::OpenError::Mismatch { .. }) => match advice::destroy(url) {
                Some(advice) => Failure::Advised { advice, source: Box::new(Failure::Store(error)) },
                None => Failure::Store(error),
            },
            guira::Error::Open(guira::OpenError::Stopped { .. }) => Failure::NotCreated(url.clone()),
            error => Failure::Store(error),
        }
    }

    /// Returns the failure of a workload that could not remove its records.
    pub fn records_left(url: &Url, removal: &Removal) -> Failure {
        let reason = removal.failure.clone().unwrap_or_else(|| "they were not removed".to_owned());
        Failure::RecordsLeft { url: url.clone(), left: removal.left, reason }
    }

    /// Adds the earlier advice if the failure is that the table is full.
    pub fn advised(self, shortfall: Option<Shortfall>) -> Failure {
        let is_full = self.of_store().is_some_and(|error| error.blame() == guira::Blame::Full);
        match shortfall.filter(|_| is_full) {
            Some(Shortfall { remedy, .. }) => Failure::Advised { source: Box::new(self), advice: remedy },
            None => self,
        }
    }

    /// Returns the error in the form of its JSON output.
    pub fn text(&self) -> ErrorText {
        if let Failure::Worker { error, .. } = self {
            return ErrorText { message: self.to_string(), ..(**error).clone() };
        }
        ErrorText {
            blame: self.blame().to_owned(),
            effect: effect_word(self.effect()).to_owned(),
            message: self.to_string(),
            ..ErrorText::default()
        }
    }

    /// Returns the exit code of the program, one of [`EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Store(error) | Failure::Driver(DriverError::Store { source: error, .. }) => exit_code_of(error),
            Failure::Record { source, .. } | Failure::Copied { source, .. } => exit_code_of(source),
            Failure::Advised { source, .. } | Failure::Reading { source } => source.exit_code(),
            Failure::NotFound { .. } | Failure::NothingToDestroy { .. } | Failure::Destroyed { .. } => EXIT_NEGATIVE,
            Failure::AlreadyExists { .. } | Failure::NotATable { .. } => EXIT_NEGATIVE,
            Failure::Interrupted(_) | Failure::CopyInterrupted(_) => EXIT_INTERRUPTED,
            Failure::NotCreated(_) | Failure::TableDiscarded(_) => EXIT_INTERRUPTED,
            Failure::CleanedUp(_) | Failure::Stopped | Failure::LabStopped { .. } => EXIT_INTERRUPTED,
            Failure::Lab(LabError::Stopped) => EXIT_INTERRUPTED,
            Failure::Lab(error) if error.is_misuse() => EXIT_MISUSE,
            Failure::Misuse(_) => EXIT_MISUSE,
            Failure::Input { source: InputError::Bad(_) | InputError::NotText { .. }, .. } => EXIT_MISUSE,
            Failure::Driver(DriverError::Panicked | DriverError::Thread { .. }) => EXIT_FAILURE,
            Failure::Driver(_) => EXIT_MISUSE,
            Failure::Worker { error, .. } if error.blame == guira::Blame::Misuse.as_str() => EXIT_MISUSE,
            _ => EXIT_FAILURE,
        }
    }

    /// Returns the store's error, if the failure is one of a command on one table.
    pub fn of_store(&self) -> Option<&guira::Error> {
        match self {
            Failure::Store(error) | Failure::Driver(DriverError::Store { source: error, .. }) => Some(error),
            Failure::Record { source, .. } | Failure::Copied { source, .. } => Some(source),
            Failure::Advised { source, .. } => source.of_store(),
            Failure::Reading { source } => source.of_store(),
            _ => None,
        }
    }

    /// Whether the reader of standard output has closed it.
    pub fn is_closed_output(&self) -> bool {
        match self {
            Failure::ClosedOutput => true,
            Failure::Reading { source } => source.is_closed_output(),
            _ => false,
        }
    }

    fn blame(&self) -> &str {
        match self {
            Failure::Store(error) => blame_of(error),
            Failure::Record { source, .. } | Failure::Copied { source, .. } => source.blame().as_str(),
            Failure::Driver(DriverError::Store { source, .. }) => source.blame().as_str(),
            Failure::Driver(DriverError::Panicked) => guira::Blame::Bug.as_str(),
            Failure::Driver(DriverError::Thread { .. }) => "host",
            Failure::Input { source: InputError::Bad(_) | InputError::NotText { .. }, .. }
            | Failure::Driver(_)
            | Failure::Misuse(_)
            | Failure::NotFound { .. }
            | Failure::NothingToDestroy { .. }
            | Failure::AlreadyExists { .. }
            | Failure::NotATable { .. } => guira::Blame::Misuse.as_str(),
            Failure::Destroyed { .. } | Failure::DestroyedWhileServed { .. } | Failure::NameLostWhileServed { .. } => {
                guira::Blame::Fenced.as_str()
            }
            Failure::Worker { error, .. } => &error.blame,
            Failure::AnswerNotWritten { source, .. }
            | Failure::Advised { source, .. }
            | Failure::Reading { source } => source.blame(),
            Failure::Counter(_) => guira::Blame::Misuse.as_str(),
            Failure::Lab(error) if error.is_misuse() => guira::Blame::Misuse.as_str(),
            Failure::Lab(LabError::Stopped) | Failure::LabStopped { .. } => "host",
            Failure::Lab(_) => guira::Blame::Bug.as_str(),
            Failure::Contended { .. } => guira::Blame::Busy.as_str(),
            Failure::Unreadable { .. } | Failure::LostWhileServed { .. } => guira::Blame::Corrupt.as_str(),
            Failure::Input { .. } | Failure::Host { .. } | Failure::OutOfMemory { .. } => "host",
            Failure::ClosedOutput => "host",
            Failure::Interrupted(_) | Failure::NotCreated(_) | Failure::TableDiscarded(_) | Failure::Stopped => "host",
            Failure::CopyInterrupted(_) | Failure::CleanedUp(_) | Failure::RecordsLeft { .. } => "host",
            #[cfg(feature = "peers")]
            Failure::Peers(_) => "host",
        }
    }

    /// Returns the effect of the command on the table.
    pub fn effect(&self) -> Effect {
        match self {
            Failure::Store(error) => error.effect(),
            Failure::Record { source, loaded, .. } => match source.effect() {
                Effect::None => loaded.effect(),
                effect => effect,
            },
            Failure::Copied { source, copied, .. } => match source.effect() {
                Effect::None => Loaded(*copied).effect(),
                effect => effect,
            },
            Failure::Input { loaded, .. } | Failure::Interrupted(loaded) => loaded.effect(),
            Failure::CopyInterrupted(copied) => Loaded(*copied).effect(),
            Failure::Driver(DriverError::Store { source, .. }) => source.effect(),
            Failure::Advised { source, .. } | Failure::Reading { source } => source.effect(),
            Failure::OutOfMemory { ended, .. } => ended.as_ref().map_or(Effect::Done, |ended| ended.effect()),
            Failure::Stopped | Failure::RecordsLeft { .. } | Failure::AnswerNotWritten { .. } => Effect::Done,
            _ => Effect::None,
        }
    }
}

/// Returns the exit code of a store's error. Missing permissions and unusable files are failures of the host and not
/// of the arguments, although the caller is to blame.
fn exit_code_of(error: &guira::Error) -> u8 {
    use guira::errors::ShmError;
    use guira::{Error, OperationError, OperationErrorKind};

    match error {
        error if error.is_not_found() || error.is_already_exists() => EXIT_NEGATIVE,
        Error::Admin(AdminError::NoClient { .. }) => EXIT_NEGATIVE,
        Error::Open(OpenError::Region(ShmError::BadName { .. } | ShmError::BadMode { .. })) => EXIT_MISUSE,
        Error::Open(OpenError::Region(_))
        | Error::Open(OpenError::Connect { .. })
        | Error::Open(OpenError::TokenFile { .. })
        | Error::Open(OpenError::AccessToken(_))
        | Error::Open(OpenError::TlsFile(_))
        | Error::Open(OpenError::ReadOnly { .. })
        | Error::Open(OpenError::Owner { .. })
        | Error::Open(OpenError::ReadOnlyGrant { .. })
        | Error::Admin(AdminError::Kill { .. })
        | Error::Fabric { .. }
        | Error::Operation(OperationError { kind: OperationErrorKind::Fabric { .. }, .. }) => EXIT_FAILURE,
        error if error.blame() == guira::Blame::Misuse => EXIT_MISUSE,
        _ => EXIT_FAILURE,
    }
}

/// Returns the blame of a store's error: that of the library, or `host` for a file or a device of this host that cannot
/// be used.
fn blame_of(error: &guira::Error) -> &'static str {
    use guira::Error;
    use guira::errors::{AttachError, TlsFileError, TokenFileError};

    let is_of_host = match error {
        Error::Open(OpenError::AccessToken(error)) => {
            matches!(error, TokenFileError::Io { .. } | TokenFileError::Random { .. })
        }
        Error::Open(OpenError::TlsFile(error)) => matches!(**error, TlsFileError::Io { .. }),
        Error::Open(OpenError::Rdma { source, .. }) => {
            matches!(&**source, AttachError::Device(error) if error.is_without_devices())
        }
        Error::Admin(AdminError::ServeRdma { source, .. }) => source.is_without_devices(),
        _ => false,
    };
    if is_of_host { "host" } else { error.blame().as_str() }
}

/// A workload that could not be run. One that was stopped between two operations is an interrupt.
impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Failure {
        match error {
            DriverError::Stopped => Failure::Stopped,
            error => Failure::Driver(error),
        }
    }
}

/// Returns "N records", or "records" if the number is 0, that is, unknown.
fn some_records(number: u64) -> String {
    if number == 0 { "records".to_owned() } else { counted(number, "record") }
}

/// Returns the message of a failure without the remark that nothing was changed.
fn of_reading(failure: &Failure) -> String {
    failure.to_string().replace("; nothing was changed", "").replace(" (nothing was changed)", "")
}

/// Returns the message of the end of a command to which memory was refused: nobody interrupted it.
fn of_refusal(ended: &Failure) -> String {
    let text = ended.to_string();
    text.strip_prefix("interrupted; ").map(str::to_owned).unwrap_or(text)
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

    fn stopped_by_refusal() -> Failure {
        Failure::OutOfMemory { refusal: Refusal::Of(9), ended: Some(Box::new(Failure::Interrupted(Loaded(2)))) }
    }

    #[test]
    fn a_refusal_says_what_was_done() {
        let text = stopped_by_refusal().text();
        assert_eq!((text.blame.as_str(), text.effect.as_str()), ("host", "done"));
        let message = text.message;
        assert!(
            message.starts_with("not enough memory: ") && message.ends_with("; 2 records were loaded"),
            "{message}"
        );
    }

    /// The same failure has the same exit code in every command.
    #[test]
    fn every_failure_has_the_code_that_help_says() {
        use guira::errors::{Attempt, ConfigError, ShmError};
        use guira::{Error, Operation, OperationError, OperationErrorKind};

        let url = || "shm://x".parse::<Url>().unwrap();
        let path = || std::path::PathBuf::from("/dev/shm/x");
        let missing =
            |attempt| Failure::Store(Error::Open(OpenError::Region(ShmError::NotFound { attempt, path: path() })));
        let denied = |attempt| {
            let source = io::ErrorKind::PermissionDenied.into();
            Failure::Store(Error::Open(OpenError::Region(ShmError::Permission {
                attempt,
                path: path(),
                operation: "open",
                source,
            })))
        };
        let bad = BadRecord { line: 3, excerpt: "ab".to_owned(), reason: "it has no TAB".to_owned() };
        let capacity = ConfigError::OutOfRange { name: "capacity", value: 0, bounds: "1" };
        let operation = Operation::Put;
        let format = guira::EntryFormat::Fixed { key_bytes: 8, value_bytes: 8 };
        let long = || {
            Error::Operation(OperationError { operation, kind: OperationErrorKind::ValueLength { bytes: 9, format } })
        };
        let full = || Error::Operation(OperationError { operation, kind: OperationErrorKind::Full { rows: 2 } });
        let in_input =
            |source| Failure::Record { line: 1, key: "k".into(), loaded: Loaded(0), source: Box::new(source) };
        let no_file = || io::Error::from(io::ErrorKind::NotFound);
        let advised = |source| Failure::Advised { source: Box::new(source), advice: "wait".to_owned() };
        for (failure, code) in [
            (Failure::NotFound { url: url() }, EXIT_NEGATIVE),
            (Failure::NothingToDestroy { url: url() }, EXIT_NEGATIVE),
            (Failure::AlreadyExists { url: url() }, EXIT_NEGATIVE),
            (missing(Attempt::Open), EXIT_NEGATIVE),
            (Failure::Store(Error::Open(OpenError::Region(ShmError::AlreadyExists { path: path() }))), EXIT_NEGATIVE),
            (Failure::Store(Error::Admin(AdminError::NoClient { url: url(), slot: 3 })), EXIT_NEGATIVE),
            (advised(Failure::Reading { source: Box::new(missing(Attempt::Open)) }), EXIT_NEGATIVE),
            (Failure::Misuse("x".to_owned()), EXIT_MISUSE),
            (Failure::Input { source: InputError::Bad(bad), loaded: Loaded(2) }, EXIT_MISUSE),
            (Failure::Store(Error::Open(OpenError::Create { url: url(), source: capacity })), EXIT_MISUSE),
            (Failure::Store(long()), EXIT_MISUSE),
            (in_input(long()), EXIT_MISUSE),
            (Failure::host("read x")(no_file()), EXIT_FAILURE),
            (
                Failure::Input {
                    source: InputError::Read { name: "x".to_owned(), source: no_file() },
                    loaded: Loaded(0),
                },
                EXIT_FAILURE,
            ),
            (missing(Attempt::Create), EXIT_FAILURE),
            (denied(Attempt::Open), EXIT_FAILURE),
            (denied(Attempt::Destroy), EXIT_FAILURE),
            (Failure::Store(Error::Open(OpenError::ReadOnlyGrant { url: url(), reason: "" })), EXIT_FAILURE),
            (Failure::Store(full()), EXIT_FAILURE),
            (in_input(full()), EXIT_FAILURE),
            (advised(Failure::Store(full())), EXIT_FAILURE),
            (Failure::Unreadable { rows: 1 }, EXIT_FAILURE),
            (Failure::Lab(LabError::Conflict("x".to_owned())), EXIT_MISUSE),
            (Failure::Lab(LabError::Failed { what: "x".to_owned(), reason: "y".to_owned() }), EXIT_FAILURE),
            (Failure::OutOfMemory { refusal: Refusal::Of(9), ended: None }, EXIT_FAILURE),
            (stopped_by_refusal(), EXIT_FAILURE),
            (Failure::LabStopped { kept: None }, EXIT_INTERRUPTED),
            (Failure::Interrupted(Loaded(1)), EXIT_INTERRUPTED),
            (Failure::Reading { source: Box::new(Failure::Stopped) }, EXIT_INTERRUPTED),
        ] {
            assert_eq!(failure.exit_code(), code, "{failure}");
        }
    }

    #[test]
    fn a_failure_says_what_it_did() {
        let failure = Failure::host("read x")(io::Error::other("y"));
        assert_eq!(failure.to_string(), "cannot read x: y");
        let bad = BadRecord { line: 3, excerpt: "ab".to_owned(), reason: "it has no TAB".to_owned() };
        let text = Failure::Input { source: InputError::Bad(bad), loaded: Loaded(2) }.text();
        assert_eq!((text.blame.as_str(), text.effect.as_str()), ("misuse", "done"));
        assert_eq!(text.message, "line 3 (ab): it has no TAB; 2 records were loaded");
    }

    #[test]
    fn help_has_every_code_in_short_lines() {
        let help = exit_codes();
        for (code, meaning) in EXIT_CODES {
            let first = meaning.split(' ').next().unwrap();
            assert!(help.contains(&format!("\n{code:>5}  {first}")), "{help}");
        }
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let all: Vec<String> = EXIT_CODES.iter().flat_map(|(_, meaning)| words(meaning)).collect();
        assert!(words(&help).len() == 2 + EXIT_CODES.len() + all.len() + words(ERROR_FORM).len(), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= HELP_CHARS), "{help}");
    }

    #[test]
    fn a_command_that_reads_does_not_say_that_it_changed_nothing() {
        let url: Url = "shm://x".parse().unwrap();
        let source = Box::new(Failure::Store(guira::Error::Open(guira::OpenError::ReadOnly { url })));
        let whole = source.text();
        let text = Failure::Reading { source }.text();
        assert_eq!(whole.message, format!("{}; nothing was changed", text.message));
        assert_eq!((text.blame, text.effect), (whole.blame, "none".to_owned()));
    }

    #[test]
    fn a_worker_failure_keeps_the_blame_of_its_error() {
        let (blame, effect, message) = ("full".to_owned(), "none".to_owned(), "no room".to_owned());
        let error = ErrorText { blame, effect, message, ..ErrorText::default() };
        let failure = Failure::Worker { name: "worker 2".to_owned(), error: Box::new(error) };
        assert_eq!(failure.exit_code(), EXIT_FAILURE);
        assert_eq!(failure.text().message, "worker 2: no room");
        assert_eq!(failure.text().blame, "full");
    }
}
