//! Operations on one key: what is asked, what may be answered, and what an atomic map does.

use std::fmt;

/// What a process asks of a key. Values are numbers that stand for the bytes written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// The key's value.
    Get,
    /// The key has this value from now on.
    Put(u64),
    /// It has this value, unless it exists.
    Insert(u64),
    /// It has this value, if it exists.
    Update(u64),
    /// It exists no more.
    Remove,
    /// It has the value `new`, if it has the value `expected`.
    CompareAndSwap {
        /// What it has to be.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
    /// It exists no more, if it has this value.
    CompareAndRemove(u64),
}

/// What a process is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// To a lookup: the key has this value.
    Found(u64),
    /// To a lookup: there is no such key.
    Absent,
    /// To any change: it was made. To a put, it leaves open whether the key existed.
    Done,
    /// To a put: it was made, and the key is new.
    Inserted,
    /// To a put: it was made, and the key existed.
    Replaced,
    /// To an update, a removal or a comparison: nothing changed, there is no such key.
    Missing,
    /// To an insert: nothing changed, the key exists.
    Exists,
    /// To a comparison: nothing changed, the key has another value.
    Mismatch,
}

impl Call {
    /// What an atomic map does with the call in `state`: the state afterwards, and its answer, which is never
    /// [`Answer::Done`] to a put.
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

    /// The call that does the same in `state`, and nothing where `state` is otherwise, if there is one. A put can do
    /// later what it would do then, but not the other way round.
    pub(super) fn narrower(self, state: Option<u64>) -> Option<Call> {
        match (self, state) {
            (Call::Put(value), Some(_)) => Some(Call::Update(value)),
            (Call::Put(value), None) => Some(Call::Insert(value)),
            _ => None,
        }
    }

    /// The state after the call, if it may be answered so in `state`.
    pub fn step(self, state: Option<u64>, answer: Answer) -> Option<Option<u64>> {
        let (after, due) = self.apply(state);
        let is_any_put = matches!(self, Call::Put(_)) && answer == Answer::Done;
        (is_any_put || due == answer).then_some(after)
    }

    /// Whether there is a state in which the call is answered so.
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
    /// Whether an operation that is answered so gave the key a value, be it the same as before, or removed it.
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

/// How an operation ended, if it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was answered.
    Answered {
        /// With this.
        answer: Answer,
        /// When, in nanoseconds of the clock that told when it was called.
        at_ns: u64,
    },
    /// Nobody knows: the process died, or lost its connection. It takes effect at any time after its call, or never.
    Pending,
    /// It failed, and the failure says that it had no effect: it says nothing about the key.
    WithoutEffect,
}

/// One operation of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Who called. It is only named when something is wrong: a process may have several calls open.
    pub process: u64,
    /// The key.
    pub key: u64,
    /// What it asked.
    pub call: Call,
    /// When, in nanoseconds of a clock that all processes share.
    pub called_ns: u64,
    /// How it ended.
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
            Outcome::Pending => write!(f, "{called_ns} ns on: process {process}: {call}: pending"),
            Outcome::WithoutEffect => write!(f, "{called_ns} ns: process {process}: {call}: failed without effect"),
        }
    }
}
