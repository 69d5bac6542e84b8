//! Errors of the linearizability check, in readable form.

use std::fmt;

use super::operation::{Answer, Call, Operation, Outcome};

/// Maximum number of operations that a message shows. Of a longer order, it shows the last ones.
const SHOWN: usize = 8;

/// The reason why a history is not known to be linearizable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// A key has no order that explains every answer.
    #[error(transparent)]
    NotLinearizable(Box<NotLinearizable>),
    /// The search took too many steps. The history may or may not be linearizable.
    #[error("key {key}: {steps} steps did not decide whether its {operations} operations are linearizable")]
    Undecided {
        /// The key.
        key: u64,
        /// The number of its operations.
        operations: usize,
        /// The number of steps taken.
        steps: u64,
    },
}

/// A key for which no order of its operations explains every answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NotLinearizable {
    /// The key.
    pub key: u64,
    /// The number of its operations, including pending ones.
    pub operations: usize,
    /// The longest order that explains its answers. No other operation can follow it.
    pub order: Vec<Operation>,
    /// The key's value after this order.
    pub state: Option<u64>,
    /// The operation that does not fit: it was answered before all others that are not in the order, so it would have
    /// to come next.
    pub unexplained: Operation,
    /// The operation that wrote the value that the unexplained operation read, if there is one.
    pub writer: Option<Operation>,
    /// The other operations that are not in the order and were in progress when the unexplained one was answered.
    pub others: Vec<Operation>,
}

impl NotLinearizable {
    pub(super) fn new(
        order: Vec<Operation>,
        state: Option<u64>,
        unexplained: Operation,
        open: impl Iterator<Item = Operation>,
        mut all: impl ExactSizeIterator<Item = Operation>,
    ) -> NotLinearizable {
        let operations = all.len();
        let writer =
            named_by(&unexplained).and_then(|value| all.find(|operation| written_by(operation) == Some(value)));
        let others = open.filter(|operation| *operation != unexplained).collect();
        NotLinearizable { key: unexplained.key, operations, order, state, unexplained, writer, others }
    }
}

/// Returns the value that the key had according to an operation's answer.
fn named_by(operation: &Operation) -> Option<u64> {
    match (operation.call, operation.outcome) {
        (_, Outcome::Answered { answer: Answer::Found(value), .. }) => Some(value),
        (
            Call::CompareAndSwap { expected, .. } | Call::CompareAndRemove(expected),
            Outcome::Answered { answer: Answer::Done, .. },
        ) => Some(expected),
        _ => None,
    }
}

/// Returns the value that the key has after an operation that takes effect.
fn written_by(operation: &Operation) -> Option<u64> {
    match operation.call {
        Call::Put(value) | Call::Insert(value) | Call::Update(value) => Some(value),
        Call::CompareAndSwap { new, .. } => Some(new),
        Call::Get | Call::Remove | Call::CompareAndRemove(_) => None,
    }
}

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotLinearizable { key, operations, order, state, unexplained, writer, others } = self;
        writeln!(f, "key {key}: no order of its {operations} operations explains every answer.")?;
        match order.len() {
            0 => writeln!(f, "No operation can come first: the key does not exist.")?,
            length => {
                writeln!(f, "The longest order that explains its answers has length {length} and ends with")?;
                let shown = &order[length.saturating_sub(SHOWN)..];
                shown.iter().try_for_each(|operation| writeln!(f, "    {operation}"))?;
                match state {
                    Some(value) => writeln!(f, "after which the key's value is {value}.")?,
                    None => writeln!(f, "after which the key does not exist.")?,
                }
            }
        }
        let next = if order.is_empty() { "first" } else { "next" };
        write!(f, "The operation that was answered {next} does not fit:\n    {unexplained}")?;
        match (named_by(unexplained), writer) {
            (Some(value), Some(writer)) => write!(f, "\nThe value {value} was written by\n    {writer}")?,
            (Some(value), None) => write!(f, "\nNo operation wrote the value {value}.")?,
            (None, _) => {}
        }
        if !others.is_empty() {
            f.write_str("\nAlso in progress at that time:")?;
            others.iter().take(SHOWN).try_for_each(|operation| write!(f, "\n    {operation}"))?;
        }
        match others.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n    and {more} more"),
        }
    }
}
