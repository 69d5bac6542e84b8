//! Operations on one key: calls, answers, and the behaviour of an atomic map.

use std::fmt;

/// A call on a key. Values are numbers that stand for the bytes written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Returns the key's value.
    Get,
    /// Sets the key's value.
    Put(u64),
    /// Sets the key's value unless the key exists.
    Insert(u64),
    /// Sets the key's value if the key exists.
    Update(u64),
    /// Removes the key.
    Remove,
    /// Sets the key's value to `new` if it is `expected`.
    CompareAndSwap {
        /// The value that the key must have.
        expected: u64,
        /// The value that the key gets.
        new: u64,
    },
    /// Removes the key if it has this value.
    CompareAndRemove(u64),
}

/// An answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Answer to a lookup: the key has this value.
    Found(u64),
    /// Answer to a lookup: the key does not exist.
    Absent,
    /// Answer to any change: it was made. For a put, it leaves open whether the key existed.
    Done,
    /// Answer to a put: it was made, and the key is new.
    Inserted,
    /// Answer to a put: it was made, and the key existed.
    Replaced,
    /// Answer to an update, a removal or a comparison: nothing changed, because the key does not exist.
    Missing,
    /// Answer to an insert: nothing changed, because the key exists.
    Exists,
    /// Answer to a comparison: nothing changed, because the key has another value.
    Mismatch,
}

impl Call {
    /// Applies the call to an atomic map in `state`. Returns the state afterwards and the answer, which is never
    /// [`Answer::Done`] for a put.
    pub fn apply(self, state: Option<u64>) -> (Option<u64>, Answer) {
        match (self, state) {
            (Call::Get, Some(value)) => (state, Answer::Found(value)),
            (Call::Get, None) => (state, Answer::Absent),
            (Call::Put(value), Some(_)) => (Some(value), Answer::Replaced),
            (Call::Put(value), None) => (Some(value), Answer::Inserted),
            (Call::Insert(_), Some(_)) => (state, Answer::Exists),
            (Call::Insert(value), None) => (Some(value), Answer::Done),
            (Call::Update(value), Some(_)) => (Some(value), Answer::Done),
            (Call::Remove, Some(_)) => (None, Answer::Done),
            (Call::CompareAndSwap { expected, .. } | Call::CompareAndRemove(expected), Some(found))
                if found != expected =>
            {
                (state, Answer::Mismatch)
            }
            (Call::CompareAndSwap { new, .. }, Some(_)) => (Some(new), Answer::Done),
            (Call::CompareAndRemove(_), Some(_)) => (None, Answer::Done),
            (Call::Update(_) | Call::Remove | Call::CompareAndSwap { .. } | Call::CompareAndRemove(_), None) => {
                (state, Answer::Missing)
            }
        }
    }

    /// Returns the update or insert that has the same effect as this put in `state`, and no effect if the key's
    /// existence is different; `None` for other calls. In an order, the put can replace that call, but not the other
    /// way round.
    pub(super) fn narrower(self, state: Option<u64>) -> Option<Call> {
        match (self, state) {
            (Call::Put(value), Some(_)) => Some(Call::Update(value)),
            (Call::Put(value), None) => Some(Call::Insert(value)),
            _ => None,
        }
    }

    /// Returns the state after the call, if `answer` is possible in `state`.
    pub fn step(self, state: Option<u64>, answer: Answer) -> Option<Option<u64>> {
        let (after, due) = self.apply(state);
        let is_any_put = matches!(self, Call::Put(_)) && answer == Answer::Done;
        (is_any_put || due == answer).then_some(after)
    }

    /// Whether there is a state in which the call has this answer.
    pub fn may_answer(self, answer: Answer) -> bool {
        match self {
            Call::Get => matches!(answer, Answer::Found(_) | Answer::Absent),
            Call::Put(_) => matches!(answer, Answer::Done | Answer::Inserted | Answer::Replaced),
            Call::Insert(_) => matches!(answer, Answer::Done | Answer::Exists),
            Call::Update(_) | Call::Remove => matches!(answer, Answer::Done | Answer::Missing),
            Call::CompareAndSwap { .. } | Call::CompareAndRemove(_) => {
                matches!(answer, Answer::Done | Answer::Missing | Answer::Mismatch)
            }
        }
    }
}

impl Answer {
    /// Whether an operation with this answer set the key's value, perhaps to the same value, or removed the key.
    pub fn is_change(self) -> bool {
        matches!(self, Answer::Done | Answer::Inserted | Answer::Replaced)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Get => f.write_str("get"),
            Call::Put(value) => write!(f, "put({value})"),
            Call::Insert(value) => write!(f, "insert({value})"),
            Call::Update(value) => write!(f, "update({value})"),
            Call::Remove => f.write_str("remove"),
            Call::CompareAndSwap { expected, new } => write!(f, "compare_and_swap({expected}, {new})"),
            Call::CompareAndRemove(expected) => write!(f, "compare_and_remove({expected})"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Answer::Found(value) => return write!(f, "found({value})"),
            Answer::Absent => "absent",
            Answer::Done => "done",
            Answer::Inserted => "inserted",
            Answer::Replaced => "replaced",
            Answer::Missing => "missing",
            Answer::Exists => "exists",
            Answer::Mismatch => "mismatch",
        })
    }
}

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The operation was answered.
    Answered {
        /// The answer.
        answer: Answer,
        /// Time of the answer, in nanoseconds of the same clock as the time of the call.
        at_ns: u64,
    },
    /// The outcome is unknown, because the process died or lost its connection. The operation takes effect at any time
    /// after its call, or never.
    Pending,
    /// The operation failed with an error that rules out any effect. It tells nothing about the key.
    WithoutEffect,
}

/// One operation of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The process that called. It is used in messages only: a process may have several calls in progress.
    pub process: u64,
    /// The key.
    pub key: u64,
    /// The call.
    pub call: Call,
    /// Time of the call, in nanoseconds of a clock that all processes share.
    pub called_ns: u64,
    /// The outcome.
    pub outcome: Outcome,
}

impl fmt::Display for Operation {
    /// One line, times in nanoseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { process, call, called_ns, .. } = self;
        match self.outcome {
            Outcome::Answered { answer, at_ns } => {
                write!(f, "{called_ns} to {at_ns} ns: process {process}: {call}: {answer}")
            }
            Outcome::Pending => write!(f, "from {called_ns} ns: process {process}: {call}: pending"),
            Outcome::WithoutEffect => write!(f, "{called_ns} ns: process {process}: {call}: failed without effect"),
        }
    }
}
