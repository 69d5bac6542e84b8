//! Errors. Each says what was attempted, whose fault the failure is, and whether it had an effect.
//!
//! The text of an error has that of its cause, so no error returns it from [`std::error::Error::source`]: programs that
//! print the chain would print it twice. Such a field is named `r#source`, which thiserror does not return.

mod admin;
mod open;

use std::convert::Infallible;
use std::fmt;

use guira_fabric::{Effect, FabricError};
use guira_fabric_shm::{Attempt, LockFileProblem, ShmError};
use guira_fabric_verbs::{AttachError, VerbsError};
use guira_layout::ConfigError;
use guira_network::client::ConnectError;
use guira_network::tls::TlsError;
use guira_network::wire::CloseReason;
use guira_rcuckoo::TableError;

pub use self::admin::AdminError;
pub use self::open::OpenError;
use crate::errors::{TlsFileError, TokenFileError, UrlError};
use crate::{OperationError, OperationErrorKind, Url};

/// The party at fault for an error: [`Error::blame`]. More variants may be added.
///
/// Repeating an operation can help after [`Blame::Busy`] and [`Blame::Fabric`], and after [`Blame::Fenced`] unless the
/// table is gone ([`Error::is_gone`]) and the store does not reopen ([`OpenOptions::reopen`](crate::OpenOptions::reopen)).
/// [`Error::effect`] says whether the failed one may have changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Blame {
    /// The connection to the memory. The next operation of a client or reader connects again.
    Fabric,
    /// The memory: it is damaged, or not a table.
    Corrupt,
    /// Another version of this library, which made the table: `guira dump` of that version and `guira load` of this one
    /// carry its records over.
    Version,
    /// The table: it is full. Other keys can still be read, updated and removed.
    Full,
    /// Other clients: they hold what is needed, such as a lock, all client slots or all clients of a pool.
    Busy,
    /// This client was fenced, and the next operation begins a new session; or the table is gone ([`Error::is_gone`]).
    Fenced,
    /// The caller: an argument, a permission, or a table that does not exist ([`Error::is_not_found`]).
    Misuse,
    /// This library.
    Bug,
}

impl Blame {
    /// Returns one lower-case word, for machines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Blame::Fabric => "fabric",
            Blame::Corrupt => "corrupt",
            Blame::Version => "version",
            Blame::Full => "full",
            Blame::Busy => "busy",
            Blame::Fenced => "fenced",
            Blame::Misuse => "misuse",
            Blame::Bug => "bug",
        }
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error of all operations. A miss is not an error, nor is a change that was not made because of the key's state.
///
/// There are three families: errors of opening and creating tables ([`OpenError`]), of operations on keys
/// ([`OperationError`]), and of administration ([`AdminError`]). In the documentation of functions, a name such as
/// `Full` is that of the innermost variant, here [`OperationErrorKind::Full`]. `Fabric` is [`Error::Fabric`] or
/// [`OperationErrorKind::Fabric`]: the memory could not be reached. Only these errors may have had an effect
/// ([`Error::effect`]). The text of an error says what was attempted, on what, and whether anything changed; errors of
/// lookups and scans, which change nothing, leave that out. It has the texts of all causes;
/// [`source`](std::error::Error::source) returns none of them.
///
/// ```
/// use guira::{Blame, Effect, Store, Url};
///
/// # fn main() -> Result<(), guira::errors::UrlError> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// let error = Store::open(&url).expect_err("it does not exist");
/// assert!(error.is_not_found());
/// assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
/// assert!(error.to_string().ends_with("nothing was changed"));
/// # Ok(())
/// # }
/// ```
///
/// Programs should decide by blame and effect, and can match on the cause for details:
///
/// ```
/// use guira::{Client, Error, OperationErrorKind};
///
/// /// Stores an optional value, and returns whether it was too long for the table.
/// fn is_too_long(client: &mut Client, key: &[u8], value: &[u8]) -> Result<bool, Error> {
///     match client.put(key, value) {
///         Err(error) if matches!(error.operation_kind(), Some(OperationErrorKind::ValueLength { .. })) => Ok(true),
///         result => result.map(|_| false),
///     }
/// }
/// # fn main() -> Result<(), Error> {
/// # use guira::{CreateOptions, Store, Url};
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// # let options = CreateOptions::new(1_000).format(guira::EntryFormat::Fixed { key_bytes: 8, value_bytes: 8 });
/// # let mut client = Store::create(&url, &options)?.client()?;
/// # assert!(is_too_long(&mut client, b"8 bytes!", b"nine bytes")?);
/// # assert!(!is_too_long(&mut client, b"8 bytes!", b"8 bytes!")?);
/// # drop(client);
/// # Store::destroy(&url)
/// # }
/// ```
///
/// `{:?}` is the text, too, so that `fn main() -> guira::Result` ends with a message; `{:#?}` shows the parts.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A table could not be opened, created or destroyed, or a client of it could not be opened. Nothing was changed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An operation on keys failed. The inner error has the operation and the cause.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A table could not be checked, served or repaired.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The memory could not be reached, outside operations on keys. [`Error::effect`] tells whether anything changed.
    #[error("{doing} {url}: {source}")]
    Fabric {
        /// The attempted action.
        doing: &'static str,
        /// The table.
        url: Url,
        /// The cause.
        r#source: FabricError,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            error if !f.alternate() => fmt::Display::fmt(error, f),
            Error::Open(error) => f.debug_tuple("Open").field(error).finish(),
            Error::Operation(error) => f.debug_tuple("Operation").field(error).finish(),
            Error::Admin(error) => f.debug_tuple("Admin").field(error).finish(),
            Error::Fabric { doing, url, source } => {
                f.debug_struct("Fabric").field("doing", doing).field("url", url).field("source", source).finish()
            }
        }
    }
}

/// The space that a table would have needed, and the space that is available: [`Error::insufficient_space`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InsufficientSpace {
    /// Bytes of the whole file.
    pub wanted_bytes: u64,
    /// Bytes that are available to this user on its file system.
    pub available_bytes: u64,
}

impl Error {
    /// Whether no table exists under the name. A missing directory at a creation is a different error: the path is
    /// wrong.
    pub fn is_not_found(&self) -> bool {
        let Error::Open(OpenError::Region(ShmError::NotFound { attempt, .. })) = self else { return false };
        *attempt != Attempt::Create
    }

    /// Whether the table that was opened is gone for good, with everything in it: it was destroyed, its memory node has
    /// other memory now, or its file lost its name. Another table may have its URL:
    /// [`OpenOptions::reopen`](crate::OpenOptions::reopen). Nothing was changed.
    pub fn is_gone(&self) -> bool {
        match self {
            Error::Open(OpenError::Gone { .. } | OpenError::Table { source: TableError::Destroyed, .. }) => true,
            Error::Operation(error) => matches!(error.kind, OperationErrorKind::Destroyed),
            _ => false,
        }
    }

    /// Whether a table could not be created because the name is taken. Nothing was changed.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Error::Open(OpenError::Region(ShmError::AlreadyExists { .. })))
    }

    /// Returns the space that was missing, if a table could not be created, or could not grow, because its file system is
    /// too full.
    pub fn insufficient_space(&self) -> Option<InsufficientSpace> {
        match self {
            Error::Open(OpenError::Region(ShmError::NoSpace { wanted, available, .. })) => {
                Some(InsufficientSpace { wanted_bytes: *wanted, available_bytes: *available })
            }
            Error::Operation(error) => {
                let refused = match &error.kind {
                    OperationErrorKind::NoMemory(refused) => refused,
                    OperationErrorKind::NoSpace(space) => space.refused.as_ref()?,
                    _ => return None,
                };
                match **refused {
                    FabricError::NoMemory { wanted, available, .. } => {
                        Some(InsufficientSpace { wanted_bytes: wanted, available_bytes: available })
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns the cause, if an operation on keys failed.
    pub fn operation_kind(&self) -> Option<&OperationErrorKind> {
        match self {
            Error::Operation(error) => Some(&error.kind),
            _ => None,
        }
    }

    /// Returns the effect on the table: none, except for some `Fabric` errors.
    pub fn effect(&self) -> Effect {
        match self {
            Error::Open(_) => Effect::None,
            Error::Operation(error) => error.effect(),
            Error::Admin(error) => error.effect(),
            Error::Fabric { source, .. } => source.effect(),
        }
    }

    /// Returns the party at fault: decide what to do by it rather than by the variant.
    pub fn blame(&self) -> Blame {
        match self {
            Error::Open(error) => error.blame(),
            Error::Operation(error) => operation_blame(error),
            Error::Admin(error) => error.blame(),
            Error::Fabric { source, .. } => fabric_blame(source),
        }
    }
}

/// Implements conversions into [`Error`] for errors of its families.
macro_rules! of_family {
    ($($error:ty => $family:ident),* $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Error {
                $family::from(error).into()
            }
        }
    )*};
}

of_family! {
    ConfigError => OpenError,
    UrlError => OpenError,
    ShmError => OpenError,
    TokenFileError => OpenError,
    TlsFileError => OpenError,
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}

fn region_blame(error: &ShmError) -> Blame {
    match error {
        ShmError::Version { .. } => Blame::Version,
        ShmError::Foreign { .. }
        | ShmError::HeaderCorrupt { .. }
        | ShmError::LockFile { problem: LockFileProblem::Damaged, .. }
        | ShmError::Truncated { .. } => Blame::Corrupt,
        ShmError::NoSpace { .. } => Blame::Full,
        ShmError::ServedByDevice { .. } | ShmError::MappedElsewhere { .. } => Blame::Busy,
        ShmError::Io { .. } => Blame::Fabric,
        _ => Blame::Misuse,
    }
}

fn connect_blame(error: &ConnectError) -> Blame {
    match error {
        ConnectError::Tls { reason: TlsError::Failed { .. }, .. } => Blame::Fabric,
        ConnectError::Rejected {
            reason:
                CloseReason::Unauthorized
                | CloseReason::Version { .. }
                | CloseReason::TlsRequired
                | CloseReason::OtherFabric { .. },
            ..
        }
        | ConnectError::Tls { .. }
        | ConnectError::NotANode { .. } => Blame::Misuse,
        ConnectError::Rejected { reason: CloseReason::Full { .. } | CloseReason::AddressFull { .. }, .. } => {
            Blame::Busy
        }
        ConnectError::Rejected { reason: CloseReason::MemoryLost, .. } => Blame::Corrupt,
        _ => Blame::Fabric,
    }
}

fn attach_blame(error: &AttachError) -> Blame {
    match error {
        AttachError::Connect(error) => connect_blame(error),
        AttachError::Device(error) => verbs_blame(error),
        _ => Blame::Fabric,
    }
}

fn verbs_blame(error: &VerbsError) -> Blame {
    match error {
        VerbsError::PortDown { .. } | VerbsError::System { .. } => Blame::Fabric,
        _ if error.is_without_devices() => Blame::Fabric,
        VerbsError::Memlock { .. } => Blame::Full,
        _ => Blame::Misuse,
    }
}

fn fabric_blame(error: &FabricError) -> Blame {
    match error {
        FabricError::Forked | FabricError::ReadOnly { .. } => Blame::Misuse,
        FabricError::Fenced { .. } => Blame::Fenced,
        FabricError::NoMemory { .. } => Blame::Full,
        _ => Blame::Fabric,
    }
}

fn operation_blame(error: &OperationError) -> Blame {
    match &error.kind {
        OperationErrorKind::Fabric { source } => fabric_blame(source),
        OperationErrorKind::Lost { .. } => Blame::Fabric,
        OperationErrorKind::Corrupt { .. } => Blame::Corrupt,
        OperationErrorKind::Full { .. } | OperationErrorKind::NoSpace(_) | OperationErrorKind::NoMemory(_) => {
            Blame::Full
        }
        OperationErrorKind::Busy { .. } | OperationErrorKind::Contended { .. } => Blame::Busy,
        OperationErrorKind::Destroyed => Blame::Fenced,
        OperationErrorKind::KeyLength { .. }
        | OperationErrorKind::ValueLength { .. }
        | OperationErrorKind::NotANumber
        | OperationErrorKind::WrongType { .. }
        | OperationErrorKind::NarrowVersions { .. }
        | OperationErrorKind::ForeignToken => Blame::Misuse,
        _ => Blame::Bug,
    }
}

#[cfg(test)]
mod tests {
    use guira_rcuckoo::Operation;

    use super::*;

    /// A forked child that uses its parent's store made the mistake itself, whatever the operation.
    #[test]
    fn a_forked_child_is_to_blame() {
        let operation = Operation::Get;
        let of = |source| Error::from(OperationErrorKind::Fabric { source }.during(operation));
        let error = of(FabricError::Forked);
        assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None), "{error}");
        assert_eq!(of(FabricError::Disconnected { effect: Effect::Unknown }).blame(), Blame::Fabric);
    }

    /// `fn main() -> guira::Result` prints `{:?}`: a message for people. The parts are in `{:#?}`.
    #[test]
    fn debug_is_the_message() {
        let error = Error::from(OperationErrorKind::Full { rows: 2 }.during(Operation::Put));
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:#?}").starts_with("Operation("), "{error:#?}");
    }

    /// A fenced client learns that it was fenced, and the effect of what it had sent.
    #[test]
    fn a_fenced_client_learns_the_effect() {
        for effect in [Effect::None, Effect::Unknown] {
            let source = FabricError::Fenced { effect };
            let error = Error::Operation(OperationError {
                operation: Operation::Put,
                kind: OperationErrorKind::Fabric { source },
            });
            assert_eq!((error.blame(), error.effect()), (Blame::Fenced, effect), "{error}");
            assert!(error.to_string().ends_with(&format!("({effect})")), "{error}");
        }
    }
}
