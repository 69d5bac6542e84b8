//! What can go wrong, sorted as the library sorts it, and the exit code that says so.

use std::fmt;
use std::io;

use guira::errors::TableError;
use guira::{AdminError, Effect, OpenError, OpenOptions, Store, Url};
use guira_input::InputError;
use guira_lab::driver::{DriverError, Removal};
use serde::{Deserialize, Serialize};

use crate::capacity::Shortfall;
use crate::interrupt::EXIT_INTERRUPTED;
use crate::units::counted;

/// Exit code of an answer that is "no".
pub const EXIT_NEGATIVE: u8 = 1;
/// Exit code of a call that cannot work, whatever the state of the host.
pub const EXIT_MISUSE: u8 = 2;
/// Exit code of everything else that fails.
pub const EXIT_FAILURE: u8 = 3;

/// Every exit code, and what it means.
pub const EXIT_CODES: [(u8, &str); 5] = [
    (0, "done, and the answer is yes"),
    (
        EXIT_NEGATIVE,
        "the answer is no: there is no such key or no such table, the key (insert) or the table (create) exists \
         already, the value is another one (cas), the copy differs (copy), or something is wrong (check, kick, \
         quickstart, top, ycsb)",
    ),
    (EXIT_MISUSE, "misuse: arguments that cannot be, or keys, values and records that the table cannot store"),
    (
        EXIT_FAILURE,
        "any other failure: no permission, a file that cannot be read, no memory, a full table, a damaged one, one \
         whose file was truncated while it was served, a counter that is not a number, a memory node that is away or \
         lets nobody in, or another client that holds what is needed",
    ),
    (EXIT_INTERRUPTED, "interrupted by SIGINT (Ctrl-C), SIGTERM or SIGHUP"),
];

/// How errors are shown.
pub const ERROR_FORM: &str = "Errors are one line on standard error, those of arguments a few; with \
                              --format json it is {\"error\":{\"blame\":…,\"effect\":…,\"message\":…}}, \
                              for mistakes in the arguments also with \"expected\" and \"usage\".";

/// Characters of a line of [`exit_codes`]: fits the narrowest terminal that is usual.
const HELP_CHARS: usize = 78;

/// What `--help` says about exit codes.
pub fn exit_codes() -> String {
    let mut lines = vec!["Exit codes:".to_owned()];
    for (code, meaning) in EXIT_CODES {
        lines.extend(wrapped(&format!("{code:>5}  "), "       ", meaning));
    }
    lines.push(String::new());
    lines.extend(wrapped("", "", ERROR_FORM));
    lines.join("\n")
}

/// Words as lines: the first starts with `head`, the others with `indent`.
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

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store's answer.
    #[error(transparent)]
    Store(#[from] guira::Error),
    /// There is no such table.
    #[error("{url} does not exist; create it with: guira create {url} --capacity N")]
    NotFound {
        /// The table.
        url: Url,
    },
    /// There is no such table, and there was to be none.
    #[error("{url} does not exist; there is nothing to destroy")]
    NothingToDestroy {
        /// The table.
        url: Url,
    },
    /// The table was destroyed while a command watched it.
    #[error("{url} was destroyed while it was watched; nothing is left to watch until it is created anew")]
    Destroyed {
        /// The table.
        url: Url,
    },
    /// The table of a memory node was destroyed under its name.
    #[error("{url} was destroyed while it was served, so the node has ended; started again, it creates a new table")]
    DestroyedWhileServed {
        /// The table.
        url: Url,
    },
    /// Somebody truncated the file of a memory node's table, or its pages cannot be had.
    #[error(
        "{url} is lost: {reason}, while it was served; every session has ended, and so has the node; what was in the \
         table is gone; remove the file, and start the node again, which creates a new table"
    )]
    LostWhileServed {
        /// The table.
        url: Url,
        /// How its bytes were lost.
        reason: String,
    },
    /// What was to be created has a name of a file that is no table, or none that this user can open.
    #[error("{url} already exists, and cannot be opened as a table; nothing was changed; choose another name")]
    NotATable {
        /// The table that was to be.
        url: Url,
    },
    /// What was to be created has a name that something has.
    #[error("{url} already exists; nothing was changed; guira destroy {url} removes it, with all that is in it")]
    AlreadyExists {
        /// The table.
        url: Url,
    },
    /// What failed, and what to do about it.
    #[error("{source}; {advice}")]
    Advised {
        /// What failed.
        source: Box<Failure>,
        /// What to do.
        advice: String,
    },
    /// A command that only reads failed: of what it changed nothing has to be said.
    #[error("{}", of_reading(source))]
    Reading {
        /// What failed.
        source: Box<Failure>,
    },
    /// What a key has cannot be added to.
    #[error("{0}; nothing was changed")]
    Counter(String),
    /// Others changed a counter all the while.
    #[error("others changed {key} at each of {}; nothing was changed", counted(*attempts, "attempt"))]
    Contended {
        /// The key, made printable.
        key: String,
        /// How often it was tried.
        attempts: u64,
    },
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
    /// Copying a table failed.
    #[error("{doing}: {source}; {}", copied_text(*copied))]
    Copied {
        /// What was being done: reading a table, or storing a key.
        doing: String,
        /// The store's answer.
        source: Box<guira::Error>,
        /// Records that were stored before.
        copied: u64,
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
    Driver(DriverError),
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
        said: Box<ErrorText>,
    },
    /// An interrupt. What was stored is stored; nothing is half done.
    #[error("interrupted; {0}")]
    Interrupted(Loaded),
    /// An interrupt in the creation of a table. Nothing is left of it.
    #[error("interrupted; {0} was not created, and nothing of it is left")]
    NotCreated(Url),
    /// An interrupt of a copy. What was stored is stored; nothing is half done.
    #[error("interrupted; {}{}", copied_text(*.0), if *.0 > 0 { "; guira copy --merge goes on" } else { "" })]
    CopyInterrupted(u64),
    /// An interrupt. The table that the command made is destroyed.
    #[error("interrupted; {0} was made by this command and is destroyed")]
    TableDiscarded(Url),
    /// An interrupt in the middle of a workload. Every operation was carried out or not begun.
    #[error("interrupted between two operations; those before it are done")]
    Stopped,
    /// An interrupt in the middle of a workload on somebody's table. What the workload had inserted is removed.
    #[error("interrupted; what the run had inserted into {0} is removed again")]
    CleanedUp(Url),
    /// Some of the records that a workload has inserted into somebody's table could not be removed.
    #[error("{} of the run may be left in {url}: {reason}", some_records(*left))]
    RecordsLeft {
        /// The table.
        url: Url,
        /// Records that may be there.
        left: u64,
        /// Why.
        reason: String,
    },
    /// The answer could not be written: what it would have said was done before.
    #[error("{source}; this was done before: {done}")]
    AnswerNotWritten {
        /// What was done.
        done: String,
        /// Why it could not be said.
        source: Box<Failure>,
    },
    /// Not all of a table could be read. The rows concerned were named before.
    #[error("{rows} could not be read in whole; everything else was printed", rows = counted(*rows, "row"))]
    Unreadable {
        /// How many rows.
        rows: u64,
    },
    /// A comparison could not be carried out, or a contender answered wrongly. All that was started is ended.
    #[cfg(feature = "peers")]
    #[error("{0}; all that was started for the run is ended")]
    Peers(String),
    /// Nobody reads standard output any more.
    #[error("standard output is closed")]
    ClosedOutput,
}

/// The holder of a name that a table could not be created under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameHolder {
    /// A table.
    Table,
    /// A table that somebody is destroying, or whose destroyer ended before its name was gone.
    Destroyed,
    /// Nothing any more: a table was destroyed meanwhile.
    Free,
    /// A file that is no table, or that this user cannot open.
    NotATable,
}

impl NameHolder {
    /// Looks at the file that has the name now.
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

/// How many records of another table are in a table when copying them fails.
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

/// An error as JSON shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorText {
    /// The library's word for whose fault it is, or `host`: the operating system's.
    pub blame: String,
    /// `none`, `done` or `unknown`: what happened to the table.
    pub effect: String,
    /// One line.
    pub message: String,
    /// Of a mistake in the arguments: what could stand there, or what is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<String>,
    /// Of a mistake in the arguments: how the command is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<String>,
}

impl Failure {
    /// A file, a pipe or a process that refused `attempt`.
    pub fn host(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::Host { attempt: attempt.into(), source }
    }

    /// What a failure to write the answer is, after `done` was done.
    pub fn after(done: impl Into<String>) -> impl FnOnce(Failure) -> Failure {
        move |failure| match failure {
            Failure::ClosedOutput => Failure::ClosedOutput,
            failure => Failure::AnswerNotWritten { done: done.into(), source: Box::new(failure) },
        }
    }

    /// The store's answer about the table at `url`.
    pub fn of_table(url: &Url) -> impl FnOnce(guira::Error) -> Failure {
        |error| if error.is_not_found() { Failure::NotFound { url: url.clone() } } else { Failure::Store(error) }
    }

    /// The store's answer about a table that was to be created at `url`.
    pub fn of_creation(url: &Url) -> impl FnOnce(guira::Error) -> Failure {
        move |error| match error {
            error if error.is_already_exists() => match NameHolder::of(url) {
                NameHolder::NotATable => Failure::NotATable { url: url.clone() },
                NameHolder::Table | NameHolder::Destroyed | NameHolder::Free => {
                    Failure::AlreadyExists { url: url.clone() }
                }
            },
            // The table of a memory node cannot be removed from here.
            error @ guira::Error::Open(guira::OpenError::Mismatch { .. }) if !url.to_string().starts_with("tcp://") => {
                Failure::Advised {
                    advice: format!("guira destroy {url} removes it, with all that is in it"),
                    source: Box::new(Failure::Store(error)),
                }
            }
            guira::Error::Open(guira::OpenError::Stopped { .. }) => Failure::NotCreated(url.clone()),
            error => Failure::Store(error),
        }
    }

    /// Records that a workload could not remove.
    pub fn records_left(url: &Url, removal: &Removal) -> Failure {
        let reason = removal.failure.clone().unwrap_or_else(|| "they were not removed".to_owned());
        Failure::RecordsLeft { url: url.clone(), left: removal.left, reason }
    }

    /// The failure with what was recommended before it, if it is for lack of room.
    pub fn advised(self, shortfall: Option<Shortfall>) -> Failure {
        let is_full = self.of_store().is_some_and(|error| error.blame() == guira::Blame::Full);
        match shortfall.filter(|_| is_full) {
            Some(Shortfall { remedy, .. }) => Failure::Advised { source: Box::new(self), advice: remedy },
            None => self,
        }
    }

    /// What JSON shows.
    pub fn text(&self) -> ErrorText {
        if let Failure::Worker { said, .. } = self {
            return ErrorText { message: self.to_string(), ..(**said).clone() };
        }
        ErrorText {
            blame: self.blame().to_owned(),
            effect: effect_word(self.effect()).to_owned(),
            message: self.to_string(),
            ..ErrorText::default()
        }
    }

    /// The code the program ends with: [`EXIT_CODES`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Store(error) | Failure::Driver(DriverError::Store { source: error, .. }) => exit_code_of(error),
            Failure::Record { source, .. } | Failure::Copied { source, .. } => exit_code_of(source),
            Failure::Advised { source, .. } | Failure::Reading { source } => source.exit_code(),
            Failure::NotFound { .. } | Failure::NothingToDestroy { .. } | Failure::Destroyed { .. } => EXIT_NEGATIVE,
            Failure::AlreadyExists { .. } | Failure::NotATable { .. } => EXIT_NEGATIVE,
            Failure::Interrupted(_) | Failure::CopyInterrupted(_) => EXIT_INTERRUPTED,
            Failure::NotCreated(_) | Failure::TableDiscarded(_) => EXIT_INTERRUPTED,
            Failure::CleanedUp(_) | Failure::Stopped => EXIT_INTERRUPTED,
            Failure::Misuse(_) | Failure::Input { source: InputError::Bad(_), .. } => EXIT_MISUSE,
            Failure::Driver(DriverError::Panicked) => EXIT_FAILURE,
            Failure::Driver(_) => EXIT_MISUSE,
            Failure::Worker { said, .. } if said.blame == guira::Blame::Misuse.as_str() => EXIT_MISUSE,
            _ => EXIT_FAILURE,
        }
    }

    /// The store's error, if it is one's of a command that is about one table.
    pub fn of_store(&self) -> Option<&guira::Error> {
        match self {
            Failure::Store(error) | Failure::Driver(DriverError::Store { source: error, .. }) => Some(error),
            Failure::Record { source, .. } | Failure::Copied { source, .. } => Some(source),
            Failure::Advised { source, .. } => source.of_store(),
            Failure::Reading { source } => source.of_store(),
            _ => None,
        }
    }

    /// Whether nobody reads standard output any more.
    pub fn is_closed_output(&self) -> bool {
        match self {
            Failure::ClosedOutput => true,
            Failure::Reading { source } => source.is_closed_output(),
            _ => false,
        }
    }

    fn blame(&self) -> &str {
        match self {
            Failure::Store(error) => error.blame().as_str(),
            Failure::Record { source, .. } | Failure::Copied { source, .. } => source.blame().as_str(),
            Failure::Driver(DriverError::Store { source, .. }) => source.blame().as_str(),
            Failure::Driver(DriverError::Panicked) => guira::Blame::Bug.as_str(),
            Failure::Input { source: InputError::Bad(_), .. }
            | Failure::Driver(_)
            | Failure::Misuse(_)
            | Failure::NotFound { .. }
            | Failure::NothingToDestroy { .. }
            | Failure::AlreadyExists { .. }
            | Failure::NotATable { .. } => guira::Blame::Misuse.as_str(),
            Failure::Destroyed { .. } | Failure::DestroyedWhileServed { .. } => guira::Blame::Fenced.as_str(),
            Failure::Worker { said, .. } => &said.blame,
            Failure::AnswerNotWritten { source, .. }
            | Failure::Advised { source, .. }
            | Failure::Reading { source } => source.blame(),
            Failure::Counter(_) => guira::Blame::Misuse.as_str(),
            Failure::Contended { .. } => guira::Blame::Busy.as_str(),
            Failure::Unreadable { .. } | Failure::LostWhileServed { .. } => guira::Blame::Corrupt.as_str(),
            Failure::Input { .. } | Failure::Host { .. } | Failure::ClosedOutput => "host",
            Failure::Interrupted(_) | Failure::NotCreated(_) | Failure::TableDiscarded(_) | Failure::Stopped => "host",
            Failure::CopyInterrupted(_) | Failure::CleanedUp(_) | Failure::RecordsLeft { .. } => "host",
            #[cfg(feature = "peers")]
            Failure::Peers(_) => "host",
        }
    }

    fn effect(&self) -> Effect {
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
            Failure::Stopped | Failure::RecordsLeft { .. } | Failure::AnswerNotWritten { .. } => Effect::Done,
            _ => Effect::None,
        }
    }
}

/// The exit code of a store's error. Whether somebody may do a thing, and whether a file can be used, is for the host
/// to decide and no matter of the arguments, although the caller is to blame.
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

/// A workload that could not be run; one that was stopped between two operations is no fault of its own.
impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Failure {
        match error {
            DriverError::Stopped => Failure::Stopped,
            error => Failure::Driver(error),
        }
    }
}

/// So many records, if it is known how many.
fn some_records(number: u64) -> String {
    if number == 0 { "records".to_owned() } else { counted(number, "record") }
}

/// The message of a failure, without a word of what it did not change.
fn of_reading(failure: &Failure) -> String {
    failure.to_string().replace("; nothing was changed", "").replace(" (nothing was changed)", "")
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

    /// Like cases have like codes, whichever command they come from.
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
    fn a_worker_speaks_for_itself() {
        let (blame, effect, message) = ("full".to_owned(), "none".to_owned(), "no room".to_owned());
        let said = ErrorText { blame, effect, message, ..ErrorText::default() };
        let failure = Failure::Worker { name: "worker 2".to_owned(), said: Box::new(said) };
        assert_eq!(failure.exit_code(), EXIT_FAILURE);
        assert_eq!(failure.text().message, "worker 2: no room");
        assert_eq!(failure.text().blame, "full");
    }
}
