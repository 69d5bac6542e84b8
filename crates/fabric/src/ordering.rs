//! The order in which one queue pair executes two verbs, as a function: the table of docs/rdma.md, "What one queue pair
//! orders", without fences.
//!
//! A region whose [`crate::Caps::ordered_read_sampling`] is true executes every batch in order, so it gives more than
//! this. A protocol that runs on every region relies on nothing else.

use crate::Verb;

/// The classes of verbs that a queue pair orders differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VerbClass {
    /// A WRITE.
    Write,
    /// A READ.
    Read,
    /// A CAS, a masked CAS or a FETCH-ADD.
    Atomic,
}

/// The order of two verbs of one batch. It does not depend on their addresses: a queue pair compares none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PairOrder {
    /// The second verb is executed after the first.
    Kept,
    /// The first verb is a READ. It begins before the second, but may sample any of its words later, and again after
    /// the second was executed, because its answer was lost.
    Resampled,
    /// The second verb, a WRITE, may be executed before the first.
    Free,
}

impl VerbClass {
    /// All classes, in the order of the table.
    pub const ALL: [VerbClass; 3] = [VerbClass::Write, VerbClass::Read, VerbClass::Atomic];

    /// Returns the class of `verb`.
    #[inline(always)]
    pub fn of(verb: &Verb<'_>) -> VerbClass {
        match verb {
            Verb::Read { .. } => VerbClass::Read,
            Verb::Write { .. } => VerbClass::Write,
            Verb::Cas { .. } | Verb::MaskedCas { .. } | Verb::FetchAdd { .. } => VerbClass::Atomic,
        }
    }
}

impl PairOrder {
    /// Returns the order of `first` and `second` on one queue pair, where `first` stands before `second` in one batch
    /// and no fence is posted.
    pub const fn on_queue_pair(first: VerbClass, second: VerbClass) -> PairOrder {
        match (first, second) {
            (VerbClass::Write, _) | (VerbClass::Atomic, VerbClass::Read | VerbClass::Atomic) => PairOrder::Kept,
            (VerbClass::Read, VerbClass::Read | VerbClass::Atomic) => PairOrder::Resampled,
            (VerbClass::Read | VerbClass::Atomic, VerbClass::Write) => PairOrder::Free,
        }
    }
}
