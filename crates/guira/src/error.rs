//! Errors, sorted by blame; each says what was attempted and whether it had an effect.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use guira_check::CheckError;
use guira_fabric::{Effect, FabricError};
use guira_fabric_shm::{Attempt, KillError, LockFileProblem, ShmError};
use guira_fabric_tcp::client::ConnectError;
use guira_fabric_tcp::node::NodeError;
use guira_fabric_tcp::tls::TlsError;
use guira_fabric_tcp::wire::Bye;
use guira_layout::ConfigError;
use guira_rcuckoo::{OpenError, Operation};

use crate::mismatch::{Mismatch, sentence};
use crate::{ExtentError, OperationError, OperationErrorKind, SlotLock, TlsFileError, TokenFileError, Url, UrlError};

/// Whose fault an error is: [`Error::blame`]. More may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Blame {
    /// The way to the memory.
    Fabric,
    /// The memory: it is damaged, not a table, or a table of another version of this library.
    Corrupt,
    /// The table: there is no room.
    Full,
    /// Other clients: they hold what is needed.
    Busy,
    /// This client was shut out, or its table destroyed.
    Fenced,
    /// The caller.
    Misuse,
    /// This library.
    Bug,
}

impl Blame {
    /// One lower-case word, for machines.
    pub const fn as_str(self) -> &'static str {
        match self {
            Blame::Fabric => "fabric",
            Blame::Corrupt => "corrupt",
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

/// An operation failed. A miss is not an error, nor is a change that was not made because of the key's state.
///
/// Where documentation says which errors an operation has, it names the innermost variant: `KeyLength`, `ValueLength`,
/// `Full`, `Busy`, `Corrupt`, `Destroyed` and `Lost` are those of [`OperationError`], in [`Error::Operation`]; `Full`
/// may be that of [`ExtentError`], in [`Error::Extent`]. "The fabric's" are [`Error::Fabric`]
/// and the `Fabric` in [`Error::Operation`] and [`Error::Extent`]: the memory could not be reached. They alone may have
/// had an effect ([`Error::effect`]). Each error's text says what was attempted, on what, and whether anything changed;
/// lookups and scans, which change nothing, do not say so.
///
/// ```
/// use guira::{Blame, Effect, Store, Url};
///
/// # fn main() -> Result<(), guira::UrlError> {
/// let url: Url = format!("shm://guira-doc-nothing-{}", std::process::id()).parse()?;
/// let error = Store::open(&url).expect_err("nobody created it");
/// assert!(error.is_absent());
/// assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None));
/// assert!(error.to_string().ends_with("nothing was changed"));
/// # Ok(())
/// # }
/// ```
///
/// What to do depends on blame and effect. Who wants to know more matches on what is inside:
///
/// ```
/// use guira::{Client, Error, OperationError, OperationErrorKind};
///
/// /// Stores a value that may be left out, and says whether it was too long for the table.
/// fn is_too_long(client: &mut Client, key: &[u8], value: &[u8]) -> Result<bool, Error> {
///     match client.put(key, value) {
///         Err(Error::Operation(OperationError { kind: OperationErrorKind::ValueLength { .. }, .. })) => Ok(true),
///         result => result.map(|_| false),
///     }
/// }
/// # fn main() -> Result<(), Error> {
/// # use guira::{CreateOptions, Store, Url};
/// # let url: Url = format!("shm://guira-doc-kinds-{}", std::process::id()).parse()?;
/// # let options = CreateOptions::new(1_000).format(guira::EntryFormat::Fixed { key_bytes: 8, value_bytes: 8 });
/// # let mut client = Store::create(&url, &options)?.client()?;
/// # assert!(is_too_long(&mut client, b"8 bytes!", b"nine bytes")?);
/// # assert!(!is_too_long(&mut client, b"8 bytes!", b"8 bytes!")?);
/// # drop(client);
/// # Store::destroy(&url)
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is not one. Nothing was changed.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The table's file could not be created, opened, inspected or destroyed. Nothing was changed.
    #[error(transparent)]
    Region(#[from] ShmError),
    /// The parameters of a new table are out of bounds. Nothing was changed.
    #[error("cannot create {url}: {source}; nothing was changed")]
    Create {
        /// The table.
        url: Url,
        /// What is wrong with its parameters.
        source: ConfigError,
    },
    /// The new table could not be formatted. Nothing is left of it.
    #[error("cannot format {url}: {source}; nothing is left of it")]
    Format {
        /// The table.
        url: Url,
        /// Why.
        source: FabricError,
    },
    /// The function that is told the progress of a creation stopped it. Nothing is left of the table.
    #[error("cannot create {url}: stopped on request; nothing was changed")]
    Stopped {
        /// The table.
        url: Url,
    },
    /// What the file holds is not a table this program can use. Nothing was changed.
    #[error("cannot open {url}: {source}; nothing was changed")]
    Open {
        /// The table.
        url: Url,
        /// Why.
        source: OpenError,
    },
    /// The table's file belongs to a user whom the caller does not trust by name. Nothing was changed. Source:
    /// [`crate::OpenOptions::owner`].
    #[error("{}", owned_by_another(url, *owner_uid, *wanted_uid))]
    Owner {
        /// The table.
        url: Url,
        /// The id of the user who owns its file.
        owner_uid: u32,
        /// The id of the user whose table it was to be; `None` if this user's or root's.
        wanted_uid: Option<u32>,
    },
    /// The table exists, and is not as it was asked for. Nothing was changed.
    #[error(
        "cannot use {url} as asked: {}; nothing was changed; ask for what it has, or for another table",
        sentence(mismatches)
    )]
    Mismatch {
        /// The table.
        url: Url,
        /// Everything in which it is not as asked, one at least.
        mismatches: Vec<Mismatch>,
    },
    /// No session with a memory node began. Nothing was changed.
    #[error("cannot open {url}: {source}")]
    Connect {
        /// The table.
        url: Url,
        /// Why.
        source: Arc<ConnectError>,
    },
    /// The file with the secret for the memory node cannot be used. Nothing was changed.
    #[error("cannot take the token for {url} from {}: {reason}; nothing was changed", path.display())]
    TokenFile {
        /// The table.
        url: Url,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The table that this store had opened is gone: the memory node lost its bytes, and holds nothing or another table
    /// now. Nothing was changed. Source: R-OPEN-1.
    #[error(
        "{url}: the table that was opened is gone: its memory node lost it, and has {found} now; nothing \
             was changed; open it again"
    )]
    Gone {
        /// The table.
        url: Url,
        /// What is there instead.
        found: &'static str,
    },
    /// The table of a memory node was to be created or destroyed by a client. Nothing was changed.
    #[error(
        "cannot {attempt} {url}: a memory node creates its table when it is started (`guira serve`), and the table \
             goes when the node and its memory do; nothing was changed"
    )]
    OfNode {
        /// The table.
        url: Url,
        /// What was attempted.
        attempt: Attempt,
    },
    /// Every client slot is taken. Nothing was changed. Source: R-SLOT-2.
    #[error(
        "cannot open a client of {url}: no client slot is free ({max} in all, {dead} taken by clients that died); \
             nothing was changed"
    )]
    TooManyClients {
        /// The table.
        url: Url,
        /// How many slots there are.
        max: u16,
        /// How many of them have a dead client that cannot be recovered: its record is damaged.
        dead: u16,
    },
    /// Client slots are locked by somebody who is no client, and none of the others is free. Nothing was changed.
    /// Source: R-SLOT-2.
    #[error("cannot open a client of {url}: {lock}; nothing was changed")]
    SlotsLocked {
        /// The table.
        url: Url,
        /// The lock.
        lock: SlotLock,
    },
    /// Others had all clients of a pool until the timeout of the call. Nothing was changed.
    #[error(
        "cannot get a client of {url}: all {max} clients of the pool were taken for {waited_ms} ms; nothing was \
             changed; give them back sooner, or make the pool larger"
    )]
    PoolTimeout {
        /// The table.
        url: Url,
        /// Clients the pool may have.
        max: usize,
        /// How long the call waited.
        waited_ms: u64,
    },
    /// A client, or a recovery of clients, was asked of a table that was opened for reading only. Nothing was changed.
    #[error("{url} was opened for reading only: it has no clients and recovers none; nothing was changed")]
    ReadOnly {
        /// The table.
        url: Url,
    },
    /// A client, or a recovery of clients, was asked of a memory node that lets this client only read. Nothing was
    /// changed.
    #[error("cannot change {url}: {reason}; nothing was changed")]
    ReadOnlyGrant {
        /// The table.
        url: Url,
        /// Why, as far as this client knows: it showed a token for readers, or the node lets nobody change the table.
        reason: &'static str,
    },
    /// Nobody has the client slot whose client was to be killed. Nothing was changed.
    #[error("{url} has no client in slot {slot}; nobody was killed, and nothing was changed")]
    NoClient {
        /// The table.
        url: Url,
        /// The slot, from 0.
        slot: u16,
    },
    /// The process of a client was not killed, or does not end: nothing in the table was changed. If it was sent
    /// SIGKILL ([`KillError::Lingering`]) it ends later, and [`Error::effect`] is unknown.
    #[error("{} the client in slot {slot} of {url}: {source}; nothing in the table was changed", killing(source))]
    Kill {
        /// The table.
        url: Url,
        /// The slot, from 0.
        slot: u16,
        /// Why.
        source: KillError,
    },
    /// The memory could not be reached outside any operation on keys. [`Error::effect`] tells whether anything changed.
    #[error("{doing} {url}: {source}")]
    Fabric {
        /// What was attempted.
        doing: &'static str,
        /// The table.
        url: Url,
        /// Why it failed.
        source: FabricError,
    },
    /// The table could not be read for statistics or a check. Nothing was changed.
    #[error("{url}: {source}")]
    Check {
        /// The table.
        url: Url,
        /// Why.
        source: CheckError,
    },
    /// There is no space for a key and value that need an extent, or it could not be found out. No key was changed.
    #[error(transparent)]
    Extent(#[from] ExtentError),
    /// An operation on keys failed: which, and why, is in it.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The table's row versions cannot tell the states of a key apart (preset `paper`). Nothing was changed. Source:
    /// R-CAS-2.
    #[error(
        "versioned reads need row versions of 32 bits, and this table's have {version_bits} (preset `paper`); nothing \
         was changed"
    )]
    NarrowVersions {
        /// Bits of a row version in this table.
        version_bits: u8,
    },
    /// The value of a key that was to be incremented does not have 8 bytes. Nothing was changed. Source: R-ADD-1.
    #[error("increment: the value of the key is not a number of 8 bytes; nothing was changed")]
    NotANumber,
    /// Others changed the key between lookup and change, in each attempt until the operation's deadline. Nothing was
    /// changed.
    #[error(
        "{operation}: others changed the key in each of {attempts} attempts within {waited_ms} ms; nothing was changed"
    )]
    Contended {
        /// What was attempted.
        operation: &'static str,
        /// How often.
        attempts: u32,
        /// For how long.
        waited_ms: u64,
    },
    /// A change was to depend on a token that was read from another table. Nothing was changed.
    #[error("{operation}: the token was read from another table; nothing was changed")]
    ForeignToken {
        /// What was attempted.
        operation: Operation,
    },
    /// The table cannot be served to other hosts, or not any more. Nothing in the table was changed, unless its memory
    /// is lost.
    #[error("cannot serve {url}: {source}{}", of_the_table(source))]
    Serve {
        /// The table.
        url: Url,
        /// Why.
        source: NodeError,
    },
    /// A token file cannot be used. Nothing was changed.
    #[error("{0}; nothing was changed")]
    AccessToken(#[from] TokenFileError),
    /// A file with certificates or a private key cannot be used. Nothing was changed.
    #[error("{0}; nothing was changed")]
    TlsFile(Arc<TlsFileError>),
    /// The operating system gives no random numbers. Nothing was changed.
    #[error("the operating system gives no random numbers: {reason}; nothing was changed")]
    Random {
        /// Its answer.
        reason: String,
    },
}

/// What a table that does not fit would have needed: [`Error::shortage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shortage {
    /// Bytes of the whole file.
    pub wanted_bytes: u64,
    /// Bytes that its file system has for this user.
    pub available_bytes: u64,
}

impl Error {
    /// Whether a table was looked for under a name that nothing has. A creation that finds no directory is another
    /// error: a mistake of the path.
    pub fn is_absent(&self) -> bool {
        matches!(self, Error::Region(ShmError::NotFound { attempt, .. }) if *attempt != Attempt::Create)
    }

    /// Whether a table was to be created under a name that something has already. Nothing was changed.
    pub fn is_taken(&self) -> bool {
        matches!(self, Error::Region(ShmError::AlreadyExists { .. }))
    }

    /// What was missing, if a table could not be created because its file system has no room for it.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Error::Region(ShmError::NoSpace { wanted, available, .. }) => {
                Some(Shortage { wanted_bytes: *wanted, available_bytes: *available })
            }
            _ => None,
        }
    }

    /// What the operation did to the table: nothing, but for some errors of the fabric.
    pub fn effect(&self) -> Effect {
        match self {
            Error::Fabric { source, .. } | Error::Extent(ExtentError::Fabric(source)) => source.effect(),
            Error::Operation(error) => error.effect(),
            Error::Kill { source: KillError::Lingering { .. }, .. } => Effect::Unknown,
            _ => Effect::None,
        }
    }

    /// Whose fault it is: what to do about it depends on that more than on the variant.
    pub fn blame(&self) -> Blame {
        match self {
            Error::Url(_)
            | Error::Create { .. }
            | Error::Stopped { .. }
            | Error::Owner { .. }
            | Error::Mismatch { .. }
            | Error::ReadOnly { .. }
            | Error::ReadOnlyGrant { .. }
            | Error::NoClient { .. }
            | Error::TokenFile { .. }
            | Error::OfNode { .. }
            | Error::NarrowVersions { .. }
            | Error::NotANumber
            | Error::ForeignToken { .. } => Blame::Misuse,
            Error::Region(error) => region_blame(error),
            Error::Open { source, .. } => match source {
                OpenError::Fabric(error) => fabric_blame(error),
                OpenError::Destroyed => Blame::Fenced,
                _ => Blame::Corrupt,
            },
            Error::Serve { source, .. } => match source {
                NodeError::Exposed { .. } | NodeError::Unsuitable { .. } => Blame::Misuse,
                NodeError::Panicked => Blame::Bug,
                NodeError::MemoryLost { .. } => Blame::Corrupt,
                _ => Blame::Fabric,
            },
            Error::AccessToken(error) => match error {
                TokenFileError::Io { .. } | TokenFileError::Random { .. } => Blame::Fabric,
                _ => Blame::Misuse,
            },
            Error::TlsFile(error) => match **error {
                TlsFileError::Io { .. } => Blame::Fabric,
                _ => Blame::Misuse,
            },
            Error::Connect { source, .. } => connect_blame(source),
            Error::Gone { .. } => Blame::Fenced,
            Error::TooManyClients { .. }
            | Error::SlotsLocked { .. }
            | Error::PoolTimeout { .. }
            | Error::Contended { .. } => Blame::Busy,
            Error::Kill { source, .. } => match source {
                KillError::Foreign { .. } | KillError::Oneself { .. } | KillError::Permission { .. } => Blame::Misuse,
                KillError::Kernel { .. } => Blame::Fabric,
                _ => Blame::Busy,
            },
            Error::Format { .. } | Error::Check { .. } | Error::Random { .. } => Blame::Fabric,
            Error::Fabric { source, .. } => fabric_blame(source),
            Error::Extent(ExtentError::Fabric(error)) => fabric_blame(error),
            Error::Extent(_) => Blame::Full,
            Error::Operation(error) => operation_blame(error),
        }
    }
}

impl From<TlsFileError> for Error {
    fn from(error: TlsFileError) -> Error {
        Error::TlsFile(Arc::new(error))
    }
}

fn owned_by_another(url: &Url, owner_uid: u32, wanted_uid: Option<u32>) -> String {
    match wanted_uid {
        Some(wanted_uid) => {
            format!("cannot open {url}: it belongs to user {owner_uid}, not to user {wanted_uid}; nothing was changed")
        }
        None => format!(
            "cannot open {url} for changing: it belongs to user {owner_uid}, who can read and change all that is put \
             into it; name that user (--owner {owner_uid}, OpenOptions::owner) if you trust them, or take another \
             table; nothing was changed"
        ),
    }
}

fn of_the_table(error: &NodeError) -> &'static str {
    match error {
        NodeError::MemoryLost { .. } => "; what was in the table is gone",
        _ => "; nothing in the table was changed",
    }
}

fn killing(error: &KillError) -> &'static str {
    match error {
        KillError::Lingering { .. } => "killing",
        _ => "cannot kill",
    }
}

fn region_blame(error: &ShmError) -> Blame {
    match error {
        ShmError::Foreign { .. }
        | ShmError::Version { .. }
        | ShmError::HeaderCorrupt { .. }
        | ShmError::LockFile { problem: LockFileProblem::Damaged, .. }
        | ShmError::Truncated { .. } => Blame::Corrupt,
        ShmError::NoSpace { .. } => Blame::Full,
        ShmError::Io { .. } => Blame::Fabric,
        _ => Blame::Misuse,
    }
}

fn connect_blame(error: &ConnectError) -> Blame {
    match error {
        ConnectError::Tls { reason: TlsError::Failed { .. }, .. } => Blame::Fabric,
        ConnectError::Rejected { reason: Bye::Unauthorized | Bye::Version { .. } | Bye::TlsWanted, .. }
        | ConnectError::Tls { .. }
        | ConnectError::NotANode { .. } => Blame::Misuse,
        ConnectError::Rejected { reason: Bye::Full { .. } | Bye::AddressFull { .. }, .. } => Blame::Busy,
        ConnectError::Rejected { reason: Bye::MemoryLost, .. } => Blame::Corrupt,
        _ => Blame::Fabric,
    }
}

fn fabric_blame(error: &FabricError) -> Blame {
    match error {
        FabricError::Forked | FabricError::ReadOnly { .. } => Blame::Misuse,
        FabricError::Fenced { .. } => Blame::Fenced,
        _ => Blame::Fabric,
    }
}

fn operation_blame(error: &OperationError) -> Blame {
    match &error.kind {
        OperationErrorKind::Fabric { source } => fabric_blame(source),
        OperationErrorKind::Lost { .. } => Blame::Fabric,
        OperationErrorKind::Corrupt { .. } => Blame::Corrupt,
        OperationErrorKind::Full { .. } => Blame::Full,
        OperationErrorKind::Busy { .. } => Blame::Busy,
        OperationErrorKind::Destroyed => Blame::Fenced,
        OperationErrorKind::KeyLength { .. } | OperationErrorKind::ValueLength { .. } => Blame::Misuse,
        _ => Blame::Bug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A forked child that goes on with its parent's store made the mistake itself, whatever it asked for.
    #[test]
    fn a_forked_child_is_to_blame() {
        let operation = guira_rcuckoo::Operation::Get;
        let of_lookup = OperationError { operation, kind: OperationErrorKind::Fabric { source: FabricError::Forked } };
        for error in [Error::Operation(of_lookup), Error::Extent(ExtentError::Fabric(FabricError::Forked))] {
            assert_eq!((error.blame(), error.effect()), (Blame::Misuse, Effect::None), "{error}");
        }
        let lost = FabricError::Disconnected { effect: Effect::Unknown };
        assert_eq!(Error::Extent(ExtentError::Fabric(lost)).blame(), Blame::Fabric);
    }

    /// Whoever was shut out learns that it was, and what became of what it had sent.
    #[test]
    fn a_client_that_was_shut_out_is_fenced() {
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
