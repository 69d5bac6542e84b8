//! The recorder: operations as they begin and end, or as logs tell them afterwards.
//!
//! Invariants: no operation ends before it began, and every answer fits its call.

use super::operation::{Answer, Call, Operation, Outcome};

/// Operations of many processes on many keys, none of which exists at first.
///
/// It is filled in one of two ways, or both:
///
/// - As things happen, all in one thread ([`History::begin`], [`History::complete`], [`History::fail`]): among
///   equal times, which virtual clocks often show, the order of these calls says what came first.
/// - From logs, in any order ([`History::push`]): among equal times, calls come before answers, so that two operations
///   of which one was answered when the other was called count as concurrent.
///
/// A key that exists at first has a put before everything else.
#[derive(Clone, Debug, Default)]
pub struct History {
    operations: Vec<Recorded>,
    /// Calls and answers so far, for the order among equal times.
    moments: u64,
}

/// An operation that began: [`History::begin`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an operation that is never answered is pending"]
pub struct PendingOperation(usize);

/// An operation, and its place among equal times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    pub(super) operation: Operation,
    /// Of its call: 0 before all others of its time.
    pub(super) called_order: u64,
    /// Of its answer: `u64::MAX` after all others of its time.
    pub(super) answered_order: u64,
}

impl History {
    /// Without operations.
    pub fn new() -> History {
        History::default()
    }

    /// `process` calls at `now_ns`. The operation is pending until it is said how it ended.
    pub fn begin(&mut self, process: u64, key: u64, call: Call, now_ns: u64) -> PendingOperation {
        self.moments += 1;
        let operation = Operation { process, key, call, called_ns: now_ns, outcome: Outcome::Pending };
        self.operations.push(Recorded { operation, called_order: self.moments, answered_order: u64::MAX });
        PendingOperation(self.operations.len() - 1)
    }

    /// It was answered at `now_ns`.
    ///
    /// # Panics
    /// If `now_ns` is before its call, or the call has no such answer.
    pub fn complete(&mut self, begun: PendingOperation, answer: Answer, now_ns: u64) {
        self.moments += 1;
        let recorded = &mut self.operations[begun.0];
        recorded.operation.outcome = Outcome::Answered { answer, at_ns: now_ns };
        recorded.answered_order = self.moments;
        assert_possible(&recorded.operation);
    }

    /// It failed, and the failure says that it had no effect.
    pub fn fail(&mut self, begun: PendingOperation) {
        self.operations[begun.0].operation.outcome = Outcome::WithoutEffect;
    }

    /// Adds an operation that a log tells of.
    ///
    /// # Panics
    /// If it was answered before its call, or the call has no such answer.
    pub fn push(&mut self, operation: Operation) {
        assert_possible(&operation);
        self.operations.push(Recorded { operation, called_order: 0, answered_order: u64::MAX });
    }

    /// The operations, in the order in which they were added.
    pub fn operations(&self) -> impl ExactSizeIterator<Item = &Operation> {
        self.operations.iter().map(|recorded| &recorded.operation)
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there is none.
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
