//! Why a history is refused, made to be read.

use std::fmt;

use super::operation::{Answer, Call, Operation, Outcome};

/// Operations of the longest order that are shown: its end.
const SHOWN: usize = 8;

/// A history is not known to be linearizable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// A key has no order that explains every answer.
    #[error(transparent)]
    NotLinearizable(Box<NotLinearizable>),
    /// The search took too long. This is no pass.
    #[error("key {key}: undecided after {steps} steps for {operations} operations")]
    Undecided {
        /// The key.
        key: u64,
        /// Its operations.
        operations: usize,
        /// Steps that were taken.
        steps: u64,
    },
}

/// A key whose answers no order of its operations explains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NotLinearizable {
    /// The key.
    pub key: u64,
    /// How many operations it has, the pending ones included.
    pub operations: usize,
    /// The longest order, from the beginning, that explains as many answers: nothing may follow it.
    pub order: Vec<Operation>,
    /// The key's value after it.
    pub state: Option<u64>,
    /// What fits nowhere: it was answered before any other that is left, so it must come next.
    pub unexplained: Operation,
    /// Who wrote the value that the unexplained names, if it names one and anybody did.
    pub writer: Option<Operation>,
    /// What else was under way when the unexplained was answered, and is not in the order.
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

/// The value an operation says the key had.
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

/// The value an operation gives the key, if it takes effect.
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
            0 => writeln!(f, "None may come first: the key does not exist,")?,
            length => {
                writeln!(f, "The longest order that explains as many has {length}; it ends with")?;
                let shown = &order[length.saturating_sub(SHOWN)..];
                shown.iter().try_for_each(|operation| writeln!(f, "    {operation}"))?;
                match state {
                    Some(value) => writeln!(f, "after which the key's value is {value},")?,
                    None => writeln!(f, "after which the key does not exist,")?,
                }
            }
        }
        write!(f, "and what was answered next fits nowhere:\n    {unexplained}")?;
        match (named_by(unexplained), writer) {
            (Some(value), Some(writer)) => write!(f, "\nThe value {value} is that of\n    {writer}")?,
            (Some(value), None) => write!(f, "\nNobody wrote the value {value}.")?,
            (None, _) => {}
        }
        if !others.is_empty() {
            f.write_str("\nUnder way then, too:")?;
            others.iter().take(SHOWN).try_for_each(|operation| write!(f, "\n    {operation}"))?;
        }
        match others.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n    and {more} more"),
        }
    }
}
