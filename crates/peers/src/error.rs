//! Errors of a comparison.

use std::io;

use guira_lab::driver::DriverError;
use guira_lab::workload::WorkloadError;

use crate::record::{Key, ValueEnds, value_word};

/// A comparison could not be carried out, or a system gave a wrong answer. Every process that was started has ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeersError {
    /// A system does not have a key that was stored.
    #[error("{key}: the key was stored, but is not found")]
    Missing {
        /// The key.
        key: String,
    },
    /// A system's value is not the one that was stored.
    #[error("{key}: the value starts with {first:#018x} and ends with {last:#018x}; expected {expected:#018x}")]
    Wrong {
        /// The key.
        key: String,
        /// The value's first word.
        first: u64,
        /// The value's last word.
        last: u64,
        /// The word that both must be equal to, apart from the lowest 16 bits.
        expected: u64,
    },
    /// A system answered at least one lookup of a batch with a wrong value.
    #[error("a lookup was answered with the value of another key")]
    WrongAnswer,
    /// A job needs more operations than were drawn.
    #[error("{operations} operations were asked for, but only {drawn} were drawn")]
    TooFew {
        /// Operations asked for.
        operations: usize,
        /// Operations drawn.
        drawn: usize,
    },
    /// A system or a helper process gave an unexpected answer.
    #[error("{attempt}: {said}")]
    Peer {
        /// The action that failed.
        attempt: String,
        /// The answer.
        said: String,
    },
    /// A system failed.
    #[error("{system}: {source}")]
    System {
        /// The system.
        system: String,
        /// The cause.
        r#source: Box<PeersError>,
    },
    /// The operating system refused.
    #[error("cannot {attempt}: {source}")]
    Host {
        /// The action that failed.
        attempt: String,
        /// The operating system's error.
        r#source: io::Error,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] guira::Error),
    /// The records are impossible.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The workload is impossible.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The machine has too little memory. Nothing was started.
    #[error("{0}")]
    Memory(String),
    /// The options are invalid. Nothing was started.
    #[error("{0}")]
    Options(String),
    /// The run was interrupted. Every process that was started has ended.
    #[error("interrupted")]
    Interrupted,
}

impl PeersError {
    /// The operating system refused `attempt`.
    pub fn host(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> PeersError {
        move |source| PeersError::Host { attempt: attempt.into(), source }
    }

    /// A system gave an unexpected answer to `attempt`.
    pub fn peer(attempt: impl Into<String>, said: impl Into<String>) -> PeersError {
        PeersError::Peer { attempt: attempt.into(), said: said.into() }
    }

    #[cold]
    pub(crate) fn missing(key: &Key) -> PeersError {
        PeersError::Missing { key: shown(key) }
    }

    #[cold]
    pub(crate) fn wrong(key: &Key, seen: ValueEnds) -> PeersError {
        PeersError::Wrong { key: shown(key), first: seen.first, last: seen.last, expected: value_word(key, 0) }
    }

    #[cold]
    pub(crate) fn too_few(operations: usize, drawn: usize) -> PeersError {
        PeersError::TooFew { operations, drawn }
    }

    /// Adds the name of the system that failed.
    #[must_use]
    pub fn of(self, system: &str) -> PeersError {
        match self {
            PeersError::Interrupted => PeersError::Interrupted,
            source => PeersError::System { system: system.to_owned(), source: Box::new(source) },
        }
    }
}

fn shown(key: &Key) -> String {
    String::from_utf8_lossy(key).into_owned()
}
