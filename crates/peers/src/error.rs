//! What can go wrong in a comparison.

use std::io;

use guira_lab::driver::DriverError;
use guira_lab::workload::WorkloadError;

use crate::record::{Key, ValueEnds, value_word};

/// A comparison could not be carried out, or a contender's answer was not right. All that was started is ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeersError {
    /// A contender does not know a key that was stored.
    #[error("{key}: it was stored, and there is no such key")]
    Missing {
        /// The key.
        key: String,
    },
    /// A contender's value is not the one that was stored.
    #[error("{key}: a value that starts with {first:#018x} and ends with {last:#018x} instead of {expected:#018x}")]
    Wrong {
        /// The key.
        key: String,
        /// The value's first word.
        first: u64,
        /// Its last.
        last: u64,
        /// What both must be, but for the lowest 16 bits.
        expected: u64,
    },
    /// A contender answered one of many look-ups with a wrong value.
    #[error("a look-up was answered with the value of another key")]
    WrongAnswer,
    /// A job asks for more operations than were drawn.
    #[error("{operations} operations, and only {drawn} were drawn")]
    TooFew {
        /// Selection for.
        operations: usize,
        /// Drawn.
        drawn: usize,
    },
    /// What a contender said instead of an answer.
    #[error("{attempt}: {said}")]
    Peer {
        /// What was attempted.
        attempt: String,
        /// What it said.
        said: String,
    },
    /// A contender, with what it failed with.
    #[error("{contender}: {source}")]
    System {
        /// Which.
        contender: String,
        /// Why.
        source: Box<PeersError>,
    },
    /// The operating system refused.
    #[error("cannot {attempt}: {source}")]
    Host {
        /// What was attempted.
        attempt: String,
        /// Its answer.
        source: io::Error,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] guira::Error),
    /// Impossible records.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Impossible draws.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The machine has too little memory. Nothing was started.
    #[error("{0}")]
    Memory(String),
    /// Options that cannot be. Nothing was started.
    #[error("{0}")]
    Options(String),
    /// The run was interrupted. All that was started is ended.
    #[error("interrupted")]
    Interrupted,
}

impl PeersError {
    /// The system refused `attempt`.
    pub fn host(attempt: impl Into<String>) -> impl FnOnce(io::Error) -> PeersError {
        move |source| PeersError::Host { attempt: attempt.into(), source }
    }

    /// A contender said something else than what was asked for.
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

    /// The same, with the contender it is about.
    #[must_use]
    pub fn of(self, contender: &str) -> PeersError {
        match self {
            PeersError::Interrupted => PeersError::Interrupted,
            source => PeersError::System { contender: contender.to_owned(), source: Box::new(source) },
        }
    }
}

fn shown(key: &Key) -> String {
    String::from_utf8_lossy(key).into_owned()
}
