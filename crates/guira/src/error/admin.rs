//! Errors of administration: checking, serving and repairing tables.

use std::sync::Arc;

use guira_check::CheckError;
use guira_fabric::Effect;
use guira_fabric_shm::KillError;
use guira_fabric_verbs::VerbsError;
use guira_network::node::NodeError;

use super::{Blame, verbs_blame};
use crate::Url;

/// A table could not be checked, served or repaired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The client slot is free, so there is no client to kill. Nothing was changed.
    #[error("{url} has no client in slot {slot}; no process was killed, and nothing was changed")]
    NoClient {
        /// The table.
        url: Url,
        /// The slot, from 0.
        slot: u16,
    },
    /// The process of a client was not killed, or does not end: nothing in the table was changed. If it was sent
    /// SIGKILL ([`KillError::Lingering`]), it ends later, and [`crate::Error::effect`] is unknown.
    #[error("{} the client in slot {slot} of {url}: {source}; nothing in the table was changed", killing(source))]
    Kill {
        /// The table.
        url: Url,
        /// The slot, from 0.
        slot: u16,
        /// The cause.
        r#source: KillError,
    },
    /// The table could not be read for statistics or a check. Nothing was changed.
    #[error("{url}: {source}")]
    Check {
        /// The table.
        url: Url,
        /// The cause.
        r#source: CheckError,
    },
    /// The table cannot be served to other hosts, or can no longer be. Nothing in the table was changed, unless its
    /// memory is lost, or a session could not be ended.
    #[error("cannot serve {url}: {source}{}", of_the_table(source))]
    Serve {
        /// The table.
        url: Url,
        /// The cause.
        r#source: NodeError,
    },
    /// The memory of the table cannot be registered with an RDMA device. Nothing in the table was changed.
    #[error("cannot serve {url} over RDMA: {source}")]
    ServeRdma {
        /// The table.
        url: Url,
        /// The cause.
        r#source: Arc<VerbsError>,
    },
    /// The table cannot be served over RDMA while this process uses it in another way: a network card's atomics are not
    /// atomic with the processor's. Nothing was changed.
    #[error(
        "cannot serve {url} over RDMA: this process has clients or readers of it, or a memory node, and a network \
         card's atomics must not be mixed with the processor's; drop them first; nothing was changed"
    )]
    InUse {
        /// The table.
        url: Url,
    },
    /// A copy of a table failed. What it had stored stays.
    #[error("{doing}: {source}; {}", copied_text(*copied))]
    Copy {
        /// The step that failed: reading a table, or changing a key.
        doing: String,
        /// Records copied before.
        copied: u64,
        /// The cause.
        r#source: Box<crate::Error>,
    },
    /// The caller's observer stopped a copy. What it had stored stays.
    #[error("the copy into {to} was stopped on request; {}", copied_text(*copied))]
    CopyStopped {
        /// The target.
        to: Url,
        /// Records copied before.
        copied: u64,
    },
    /// The table does not grow, or not so far. Nothing was changed.
    #[error(
        "{url} cannot grow to room for {keys} keys: {reason}; nothing was changed; guira copy copies it into a larger one"
    )]
    CannotGrow {
        /// The table.
        url: Url,
        /// The number of keys that were asked for.
        keys: u64,
        /// The reason.
        reason: String,
    },
    /// A table cannot be copied into this one. Nothing was changed.
    #[error("cannot copy into {to}: {reason}; nothing was changed")]
    CopyMisuse {
        /// The target.
        to: Url,
        /// The reason.
        reason: &'static str,
    },
}

impl AdminError {
    pub(super) fn effect(&self) -> Effect {
        match self {
            AdminError::Kill { source: KillError::Lingering { .. }, .. }
            | AdminError::Serve { source: NodeError::Unended { .. }, .. } => Effect::Unknown,
            AdminError::Copy { source, copied: 0, .. } => source.effect(),
            AdminError::Copy { source, .. } if source.effect() == Effect::Unknown => Effect::Unknown,
            AdminError::Copy { .. } | AdminError::CopyStopped { copied: 1.., .. } => Effect::Done,
            _ => Effect::None,
        }
    }

    pub(super) fn blame(&self) -> Blame {
        match self {
            AdminError::NoClient { .. } => Blame::Misuse,
            AdminError::Kill { source, .. } => match source {
                KillError::Unproven { .. } | KillError::Denied { .. } => Blame::Misuse,
                KillError::Kernel { .. } => Blame::Fabric,
                _ => Blame::Busy,
            },
            AdminError::Check { .. } => Blame::Fabric,
            AdminError::ServeRdma { source, .. } => verbs_blame(source),
            AdminError::InUse { .. }
            | AdminError::CannotGrow { .. }
            | AdminError::CopyStopped { .. }
            | AdminError::CopyMisuse { .. } => Blame::Misuse,
            AdminError::Copy { source, .. } => source.blame(),
            AdminError::Serve { source, .. } => match source {
                NodeError::Exposed { .. } | NodeError::Unsuitable { .. } => Blame::Misuse,
                NodeError::Panicked => Blame::Bug,
                NodeError::MemoryLost { .. } => Blame::Corrupt,
                _ => Blame::Fabric,
            },
        }
    }
}

fn copied_text(records: u64) -> String {
    match records {
        0 => "nothing was copied".to_owned(),
        1 => "1 record was copied".to_owned(),
        records => format!("{records} records were copied"),
    }
}

fn of_the_table(error: &NodeError) -> &'static str {
    match error {
        NodeError::MemoryLost { .. } => "; the content of the table is lost",
        NodeError::Unended { .. } => "; changes that a client had sent may still take effect",
        _ => "; nothing in the table was changed",
    }
}

fn killing(error: &KillError) -> &'static str {
    match error {
        KillError::Lingering { .. } => "killing",
        _ => "cannot kill",
    }
}
