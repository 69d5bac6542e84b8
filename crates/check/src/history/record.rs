//! The recorder of operations: as they begin and end, or afterwards from logs.
//!
//! Invariants: no operation ends before it began, and every answer fits its call.

use super::operation::{Answer, Call, Operation, Outcome};

/// Operations of many processes on many keys, none of which exists at first.
///
/// Operations are added in one of two ways, or both:
///
/// - As they happen, all in one thread ([`History::begin`], [`History::complete`], [`History::fail`]). Among equal
///   times, which virtual clocks often show, the order of these calls counts.
/// - From logs, in any order ([`History::push`]). Among equal times, calls come before answers: if one operation was
///   answered at the time at which another was called, they count as concurrent.
///
/// For a key that exists at first, add a put before everything else.
#[derive(Clone, Debug, Default)]
pub struct History {
    operations: Vec<Recorded>,
    /// Number of calls and answers so far, for the order among equal times.
    moments: u64,
}

/// A handle to an operation that has begun ([`History::begin`]) and is not answered yet.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an operation that is never answered is pending"]
pub struct PendingOperation(usize);

/// An operation, and its position among equal times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    pub(super) operation: Operation,
    /// Position of its call: 0 is before all others of the same time.
    pub(super) called_order: u64,
    /// Position of its answer: `u64::MAX` is after all others of the same time.
    pub(super) answered_order: u64,
}

impl History {
    /// Makes a history without operations.
    pub fn new() -> History {
        History::default()
    }

    /// Adds a call of `process` at `now_ns`. The operation is pending until it completes or fails.
    pub fn begin(&mut self, process: u64, key: u64, call: Call, now_ns: u64) -> PendingOperation {
        self.moments += 1;
        let operation = Operation { process, key, call, called_ns: now_ns, outcome: Outcome::Pending };
        self.operations.push(Recorded { operation, called_order: self.moments, answered_order: u64::MAX });
        PendingOperation(self.operations.len() - 1)
    }

    /// Records that the operation was answered at `now_ns`.
    ///
    /// # Panics
    /// If `now_ns` is before the call, or the call cannot have this answer.
    pub fn complete(&mut self, pending: PendingOperation, answer: Answer, now_ns: u64) {
        self.moments += 1;
        let recorded = &mut self.operations[pending.0];
        recorded.operation.outcome = Outcome::Answered { answer, at_ns: now_ns };
        recorded.answered_order = self.moments;
        assert_possible(&recorded.operation);
    }

    /// Records that the operation failed without an effect.
    pub fn fail(&mut self, pending: PendingOperation) {
        self.operations[pending.0].operation.outcome = Outcome::WithoutEffect;
    }

    /// Adds an operation from a log.
    ///
    /// # Panics
    /// If it was answered before its call, or the call cannot have this answer.
    pub fn push(&mut self, operation: Operation) {
        assert_possible(&operation);
        self.operations.push(Recorded { operation, called_order: 0, answered_order: u64::MAX });
    }

    /// Returns the operations, in the order in which they were added.
    pub fn operations(&self) -> impl ExactSizeIterator<Item = &Operation> {
        self.operations.iter().map(|recorded| &recorded.operation)
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    pub(super) fn recorded(&self) -> &[Recorded] {
        &self.operations
    }
}

impl Extend<Operation> for History {
    fn extend<I: IntoIterator<Item = Operation>>(&mut self, operations: I) {
        operations.into_iter().for_each(|operation| self.push(operation));
    }
}

impl FromIterator<Operation> for History {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> History {
        let mut history = History::new();
        history.extend(operations);
        history
    }
}

fn assert_possible(operation: &Operation) {
    if let Outcome::Answered { answer, at_ns } = operation.outcome {
        assert!(operation.called_ns <= at_ns, "it was answered before it was called: {operation}");
        assert!(operation.call.may_answer(answer), "no such answer: {operation}");
    }
}
