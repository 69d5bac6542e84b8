//! Verbs that were sent: copied out of their sender's buffers, for backends whose batches outlive the call that submits
//! them.
//!
//! Invariant: what a verb finds is kept here until [`Sent::copy_to`] gives it to the verb it was copied of.

use crate::{Addr, Verb};

/// A verb with buffers of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// A READ, and what it has read.
    Read {
        /// Where to read.
        addr: Addr,
        /// Where the words go.
        into: Vec<u64>,
    },
    /// A WRITE.
    Write {
        /// Where to write.
        addr: Addr,
        /// What to write.
        words: Vec<u64>,
    },
    /// A CAS, whose masks are whole words, or a masked one.
    Cas {
        /// The word.
        addr: Addr,
        /// What the word must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// The bits that are swapped.
        swap_mask: u64,
        /// The word before the attempt.
        found: u64,
    },
    /// A FETCH-ADD.
    FetchAdd {
        /// The word.
        addr: Addr,
        /// What is added.
        add: u64,
        /// The word before.
        found: u64,
    },
}

impl Sent {
    /// A copy of `verb`, which has found nothing yet.
    pub fn copy_of(verb: &Verb<'_>) -> Sent {
        match verb {
            Verb::Read { addr, into } => Sent::Read { addr: *addr, into: vec![0; into.len()] },
            Verb::Write { addr, words } => Sent::Write { addr: *addr, words: words.to_vec() },
            Verb::Cas { addr, compare, swap, .. } => {
                Sent::Cas { addr: *addr, compare: *compare, swap: *swap, compare_mask: !0, swap_mask: !0, found: 0 }
            }
            Verb::MaskedCas { addr, compare, swap, compare_mask, swap_mask, .. } => Sent::Cas {
                addr: *addr,
                compare: *compare,
                swap: *swap,
                compare_mask: *compare_mask,
                swap_mask: *swap_mask,
                found: 0,
            },
            Verb::FetchAdd { addr, add, .. } => Sent::FetchAdd { addr: *addr, add: *add, found: 0 },
        }
    }

    /// The verb, to be carried out by [`crate::memory::execute`]: a CAS as a masked one, whether or not the region has
    /// these.
    pub fn as_verb(&mut self) -> Verb<'_> {
        match self {
            Sent::Read { addr, into } => Verb::Read { addr: *addr, into },
            Sent::Write { addr, words } => Verb::Write { addr: *addr, words },
            Sent::Cas { addr, compare, swap, compare_mask, swap_mask, found } => Verb::MaskedCas {
                addr: *addr,
                compare: *compare,
                swap: *swap,
                compare_mask: *compare_mask,
                swap_mask: *swap_mask,
                found,
            },
            Sent::FetchAdd { addr, add, found } => Verb::FetchAdd { addr: *addr, add: *add, found },
        }
    }

    /// Gives what was found to `verb`, which this is a copy of.
    pub fn copy_to(&self, verb: &mut Verb<'_>) {
        match (self, verb) {
            (Sent::Read { into: from, .. }, Verb::Read { into, .. }) => into.copy_from_slice(from),
            (Sent::Cas { found: from, .. }, Verb::Cas { found, .. } | Verb::MaskedCas { found, .. })
            | (Sent::FetchAdd { found: from, .. }, Verb::FetchAdd { found, .. }) => **found = *from,
            _ => {}
        }
    }

    /// The word that an atomic found.
    pub fn found(&self) -> Option<u64> {
        match self {
            Sent::Cas { found, .. } | Sent::FetchAdd { found, .. } => Some(*found),
            Sent::Read { .. } | Sent::Write { .. } => None,
        }
    }
}
