//! Errors of opening, creating and destroying tables, and of opening clients.

use std::path::PathBuf;
use std::sync::Arc;

use guira_fabric::FabricError;
use guira_fabric_shm::{Attempt, ShmError};
use guira_fabric_verbs::AttachError;
use guira_layout::{ConfigError, SuperblockError};
use guira_network::client::ConnectError;
use guira_rcuckoo::TableError;

use super::{Blame, attach_blame, connect_blame, fabric_blame, region_blame};
use crate::Url;
use crate::errors::{SlotLock, TlsFileError, TokenFileError, UrlError};
use crate::mismatch::{Mismatch, sentence};
use crate::owners::is_known;

/// A table could not be opened, created or destroyed, or a client of it could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is invalid. Nothing was changed.
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
        /// The problem with its parameters.
        r#source: ConfigError,
    },
    /// A format or another parameter of a table could not be parsed. Nothing was changed.
    #[error("{0}; nothing was changed")]
    Parameter(ConfigError),
    /// The new table could not be formatted. Nothing is left of it.
    #[error("cannot format {url}: {source}; nothing is left of it")]
    Format {
        /// The table.
        url: Url,
        /// The cause.
        r#source: FabricError,
    },
    /// The progress function stopped the creation. Nothing is left of the table.
    #[error("cannot create {url}: stopped on request; nothing was changed")]
    Stopped {
        /// The table.
        url: Url,
    },
    /// The content of the file is not a table that this program can use. Nothing was changed.
    #[error("cannot open {url}: {source}; nothing was changed")]
    Table {
        /// The table.
        url: Url,
        /// The cause.
        r#source: TableError,
    },
    /// The table's file belongs to a user whom the caller has not named as trusted: see [`crate::OpenOptions::owner`].
    /// Nothing was changed.
    #[error("{}", owned_by_another(url, *owner_uid, *wanted_uid))]
    Owner {
        /// The table.
        url: Url,
        /// The id of the user who owns its file.
        owner_uid: u32,
        /// The id of the user whose table was expected; `None` for this user or root.
        wanted_uid: Option<u32>,
    },
    /// The table exists, and does not match the options. Nothing was changed.
    #[error(
        "cannot use {url} as asked: {}; nothing was changed; change the options, or use another table",
        sentence(mismatches)
    )]
    Mismatch {
        /// The table.
        url: Url,
        /// The differences, at least one.
        mismatches: Vec<Mismatch>,
    },
    /// No session with a memory node could be opened. Nothing was changed.
    #[error("cannot open {url}: {source}")]
    Connect {
        /// The table.
        url: Url,
        /// The cause.
        r#source: Arc<ConnectError>,
    },
    /// A memory node cannot be reached over RDMA: the device of this machine cannot be used, or the two sides cannot be
    /// connected. Nothing was changed.
    #[error("cannot open {url}: {source}")]
    Rdma {
        /// The table.
        url: Url,
        /// The cause.
        r#source: Arc<AttachError>,
    },
    /// The token file for the memory node cannot be used. Nothing was changed.
    #[error("cannot read the token for {url} from {}: {reason}; nothing was changed", path.display())]
    TokenFile {
        /// The table.
        url: Url,
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A token file cannot be used. Nothing was changed.
    #[error("{0}; nothing was changed")]
    AccessToken(TokenFileError),
    /// A file with certificates or a private key cannot be used. Nothing was changed.
    #[error("{0}; nothing was changed")]
    TlsFile(Arc<TlsFileError>),
    /// The table that this store had opened is gone: its memory node has other memory now, or its file was removed,
    /// moved or replaced. Nothing was changed. Source: R-OPEN-1, R-OPEN-2.
    #[error("{url}: the table that was opened is gone: {reason}; nothing was changed; open it again")]
    Gone {
        /// The table.
        url: Url,
        /// The cause.
        reason: &'static str,
    },
    /// A client tried to create or destroy the table of a memory node. Nothing was changed.
    #[error(
        "cannot {attempt} {url}: {}; nothing was changed",
        match attempt {
            Attempt::Destroy => "the table of a memory node is removed on the node's host: stop the node there, and \
                                 then, if it has --backing, destroy that table with guira destroy",
            _ => "a memory node creates its table when it starts (`guira serve`), and the table lasts as long as the \
                  node's memory",
        }
    )]
    OnMemoryNode {
        /// The table.
        url: Url,
        /// The attempted action.
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
        /// The number of slots.
        max: u16,
        /// The number of slots with a dead client that cannot be recovered, because its redo record is damaged.
        dead: u16,
    },
    /// A process that is not a client has locked client slots, and none of the others is free. Nothing was changed.
    /// Source: R-SLOT-2.
    #[error("cannot open a client of {url}: {lock}; nothing was changed")]
    SlotsLocked {
        /// The table.
        url: Url,
        /// The lock.
        lock: SlotLock,
    },
    /// All clients of a pool were in use until the timeout of the call. Nothing was changed.
    #[error(
        "cannot get a client of {url}: all {max} clients of the pool were in use for {waited_ms} ms; nothing was \
             changed; return them sooner, or make the pool larger"
    )]
    PoolTimeout {
        /// The table.
        url: Url,
        /// The maximum number of clients of the pool.
        max: usize,
        /// The time that the call waited, in milliseconds.
        waited_ms: u64,
    },
    /// The call needs write access, and the table was opened for reading only. Nothing was changed.
    #[error("{url} was opened for reading only, and this needs write access; nothing was changed")]
    ReadOnly {
        /// The table.
        url: Url,
    },
    /// The call needs write access, and the memory node lets this client only read. Nothing was changed.
    #[error("cannot change {url}: {reason}; nothing was changed")]
    ReadOnlyGrant {
        /// The table.
        url: Url,
        /// The reason, as far as this client knows: its token is for readers, or the node serves the table for reading
        /// only.
        reason: &'static str,
    },
    /// The operating system provides no random numbers. Nothing was changed.
    #[error("the operating system provides no random numbers: {reason}; nothing was changed")]
    Random {
        /// The system's answer.
        reason: String,
    },
}

impl From<TokenFileError> for OpenError {
    fn from(error: TokenFileError) -> OpenError {
        OpenError::AccessToken(error)
    }
}

impl From<ConfigError> for OpenError {
    fn from(error: ConfigError) -> OpenError {
        OpenError::Parameter(error)
    }
}

impl OpenError {
    pub(super) fn blame(&self) -> Blame {
        match self {
            OpenError::Url(_)
            | OpenError::Create { .. }
            | OpenError::Parameter(_)
            | OpenError::Stopped { .. }
            | OpenError::Owner { .. }
            | OpenError::Mismatch { .. }
            | OpenError::ReadOnly { .. }
            | OpenError::ReadOnlyGrant { .. }
            | OpenError::TokenFile { .. }
            | OpenError::OnMemoryNode { .. } => Blame::Misuse,
            OpenError::Region(error) => region_blame(error),
            OpenError::Table { source, .. } => match source {
                TableError::Fabric(error) => fabric_blame(error),
                TableError::Destroyed => Blame::Fenced,
                TableError::Superblock(SuperblockError::Version { .. } | SuperblockError::Meaning { .. }) => {
                    Blame::Version
                }
                _ => Blame::Corrupt,
            },
            OpenError::AccessToken(error) => match error {
                TokenFileError::Io { .. } | TokenFileError::Random { .. } => Blame::Fabric,
                _ => Blame::Misuse,
            },
            OpenError::TlsFile(error) => match **error {
                TlsFileError::Io { .. } => Blame::Fabric,
                _ => Blame::Misuse,
            },
            OpenError::Connect { source, .. } => connect_blame(source),
            OpenError::Rdma { source, .. } => attach_blame(source),
            OpenError::Gone { .. } => Blame::Fenced,
            OpenError::TooManyClients { .. } | OpenError::SlotsLocked { .. } | OpenError::PoolTimeout { .. } => {
                Blame::Busy
            }
            OpenError::Format { .. } | OpenError::Random { .. } => Blame::Fabric,
        }
    }
}

impl From<TlsFileError> for OpenError {
    fn from(error: TlsFileError) -> OpenError {
        OpenError::TlsFile(Arc::new(error))
    }
}

fn owned_by_another(url: &Url, owner_uid: u32, wanted_uid: Option<u32>) -> String {
    match wanted_uid {
        _ if !is_known(owner_uid) => format!(
            "cannot open {url} for writing: it belongs to a user outside of this user namespace, who can read and \
             change all that is put into it, and whom no option can name; map that user into the namespace, or use \
             another table; nothing was changed"
        ),
        Some(wanted_uid) => {
            format!("cannot open {url}: it belongs to user {owner_uid}, not to user {wanted_uid}; nothing was changed")
        }
        None => format!(
            "cannot open {url} for writing: it belongs to user {owner_uid}, who can read and change all that is put \
             into it; name that user (--owner {owner_uid}, OpenOptions::owner) if you trust them, or use another \
             table; nothing was changed"
        ),
    }
}
