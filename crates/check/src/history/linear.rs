//! The linearizability checker: Wing and Gong's search (1993) with Lowe's cache of dead ends (2017), for one key after
//! the other.
//!
//! The search builds an order from its start. An operation may come next if no other remaining one was answered before
//! it was called, and its answer fits the state. If no operation fits, the last choice is undone. A set of ordered
//! operations that led to a dead end in some state is not tried again in that state.
//!
//! Five rules make the search short, and none of them excludes a valid order:
//!
//! - An operation that fits, and whose answer says that it changed nothing, comes next at once: later it would only
//!   restrict the order. (A put of the value that the key already has is not such an operation: it may be needed
//!   later.)
//! - Of the operations that fit, the one answered first is tried first. Of those with equal calls and answers, only the
//!   first is tried: in an order that has another one here, the two can be swapped.
//! - A pending operation is placed only directly before an operation that needs it: without it, that one would not fit,
//!   or would have another result. Of equal pending operations only the first is tried, and a put only if no pending
//!   update or insert would have the same effect. Pending operations that are not placed never took effect.
//! - If the same answered operations led to the same state with fewer pending ones, the search ends here.
//! - Values that occur in no answer and no comparison are treated as one value.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use guira_fabric::SplitMix64;

use super::error::{HistoryError, NotLinearizable};
use super::operation::{Answer, Call, Operation, Outcome};
use super::record::{History, Recorded};
use super::timeline::{Event, Kind, Timeline};

/// Steps that are enough to check a history of some thousand operations on a key, of which some dozen are concurrent
/// and some dozen are pending. They take some 0.4 GiB and a second or two at worst.
pub const SEARCH_STEPS: u64 = 4_000_000;

/// Summary of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Number of keys.
    pub keys: u64,
    /// Number of answered operations.
    pub answered: u64,
    /// Number of pending operations.
    pub pending: u64,
    /// Number of steps of all searches.
    pub steps: u64,
}

impl History {
    /// Searches, for each key, for an order of its operations that explains every answer. `max_steps` bounds the search
    /// for each key; [`SEARCH_STEPS`] is enough unless very many operations are pending.
    ///
    /// # Errors
    /// [`HistoryError::NotLinearizable`] if a key has no such order; otherwise
    /// [`HistoryError::Undecided`] if the search for one of them took too long.
    pub fn check(&self, max_steps: u64) -> Result<Checked, HistoryError> {
        let recorded = self.recorded();
        let counts = |index: &u32| recorded[*index as usize].operation.outcome != Outcome::WithoutEffect;
        let mut order: Vec<u32> = (0..recorded.len() as u32).filter(counts).collect();
        let key = |index: &u32| recorded[*index as usize].operation.key;
        order.sort_unstable_by_key(|index| {
            let Recorded { operation, called_order, .. } = recorded[*index as usize];
            (operation.key, operation.called_ns, called_order)
        });
        let (mut search, mut checked, mut undecided) = (Search::default(), Checked::default(), None);
        for group in order.chunk_by(|left, right| key(left) == key(right)) {
            search.reset(recorded, group);
            checked.keys += 1;
            checked.answered += search.answers.len() as u64;
            checked.pending += (group.len() - search.answers.len()) as u64;
            match search.run(max_steps) {
                Ok(()) => {}
                Err(Stop::NotLinearizable) => return Err(search.explain(recorded, group)),
                Err(Stop::OutOfSteps) => {
                    let refusal =
                        HistoryError::Undecided { key: key(&group[0]), operations: group.len(), steps: max_steps };
                    undecided.get_or_insert(refusal);
                }
            }
            checked.steps += search.steps;
        }
        undecided.map_or(Ok(checked), Err)
    }
}

/// Reason why a search ended without an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    NotLinearizable,
    OutOfSteps,
}

type State = Option<u64>;

/// An operation that may come next, and the state after it. Answered operations are numbered first, then pending ones.
#[derive(Clone, Copy, Debug)]
struct Choice {
    operation: u32,
    after: State,
}

/// A step of the search: an order, up to its last operation, and the choices for the next one.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// The last operation of the order; none in the first frame.
    last: Option<u32>,
    state: State,
    /// The state before the last operation, if that is pending: the next operation must need it.
    before_pending: Option<State>,
    /// Index of the first choice not tried yet in the list of all choices. While this is the last frame, its choices
    /// end where the list ends.
    untried: usize,
    first_choice: usize,
    digest: u128,
    /// Digest of the answered operations of the order.
    answered: u128,
    /// The pending operations of the order, as bits; only the first 128 pending operations have a bit.
    pending: u128,
}

/// The order that explains the most answers, and the operations that do not fit after it.
#[derive(Clone, Debug, Default)]
struct Longest {
    /// Number of answers it explains.
    taken: usize,
    order: Vec<u32>,
    /// Length of the common start of this order and the current one.
    shared: usize,
    due: u32,
    open: Vec<u32>,
}

/// The search for one key. Its buffers are reused for the next key.
#[derive(Default)]
struct Search {
    /// Calls of the answered operations, then of the pending ones, with renamed values.
    calls: Vec<Call>,
    answers: Vec<Answer>,
    /// Indices of the operations in the history.
    indices: Vec<u32>,
    timeline: Timeline,
    /// Whether each pending operation took effect.
    is_used: Vec<bool>,
    /// For each pending operation, the last earlier pending operation with the same call.
    previous_equal: Vec<Option<u32>>,
    choices: Vec<Choice>,
    frames: Vec<Frame>,
    /// Digests of the pairs of operations and state that were visited. A collision could refuse a valid history, with
    /// probability 2^-84 in 2^22 steps, but never accept an invalid one.
    entered: HashSet<u128, BuildHasherDefault<Folded>>,
    /// For each pair of answered operations and state, a minimal set of pending operations with which an order leads to
    /// it.
    cheapest: HashMap<u128, u128, BuildHasherDefault<Folded>>,
    longest: Longest,
    /// Number of answers that the current order explains.
    taken: usize,
    events: Vec<Event>,
    named: Vec<u64>,
    steps: u64,
}

impl Search {
    /// Starts a search for the operations of one key, which are sorted by their calls.
    fn reset(&mut self, recorded: &[Recorded], group: &[u32]) {
        self.calls.clear();
        self.answers.clear();
        self.indices.clear();
        self.events.clear();
        self.name_values(recorded, group);
        for index in group {
            let Recorded { operation, called_order, answered_order } = recorded[*index as usize];
            if let Outcome::Answered { answer, at_ns } = operation.outcome {
                let number = self.answers.len() as u32;
                self.indices.push(*index);
                self.calls.push(renamed_call(&self.named, operation.call));
                self.answers.push(renamed_answer(&self.named, answer));
                self.events.push(Event { at: (operation.called_ns, called_order), kind: Kind::Call(number) });
                self.events.push(Event { at: (at_ns, answered_order), kind: Kind::Answer(number) });
            }
        }
        for index in group {
            let Recorded { operation, called_order, .. } = recorded[*index as usize];
            // A lookup without an answer says nothing.
            if operation.outcome == Outcome::Pending && operation.call != Call::Get {
                self.indices.push(*index);
                self.calls.push(renamed_call(&self.named, operation.call));
                self.events.push(Event { at: (operation.called_ns, called_order), kind: Kind::Pending });
            }
        }
        let answered = self.answers.len();
        self.timeline.reset(&mut self.events, answered);
        let pending = &self.calls[answered..];
        self.is_used.clear();
        self.is_used.resize(pending.len(), false);
        self.previous_equal.clear();
        let previous = |index: usize| pending[..index].iter().rposition(|call| *call == pending[index]);
        self.previous_equal.extend((0..pending.len()).map(|index| previous(index).map(|index| index as u32)));
        self.entered.clear();
        self.cheapest.clear();
        self.choices.clear();
        self.frames.clear();
        self.longest = Longest::default();
        self.taken = 0;
        self.steps = 0;
    }

    /// Collects the values that occur in answers and comparisons.
    fn name_values(&mut self, recorded: &[Recorded], group: &[u32]) {
        self.named.clear();
        for index in group {
            let operation = recorded[*index as usize].operation;
            if let Call::CompareAndSwap { expected, .. } | Call::CompareAndRemove(expected) = operation.call {
                self.named.push(expected);
            }
            if let Outcome::Answered { answer: Answer::Found(value), .. } = operation.outcome {
                self.named.push(value);
            }
        }
        self.named.sort_unstable();
        self.named.dedup();
    }

    fn run(&mut self, max_steps: u64) -> Result<(), Stop> {
        if self.timeline.is_empty() {
            return Ok(());
        }
        self.enter(Frame::default());
        while let Some(frame) = self.frames.last_mut() {
            let Some(choice) = self.choices.get(frame.untried).copied() else {
                self.leave();
                continue;
            };
            frame.untried += 1;
            if self.steps == max_steps {
                return Err(Stop::OutOfSteps);
            }
            self.steps += 1;
            let frame = *frame;
            self.take(&frame, choice);
            if self.timeline.is_empty() {
                return Ok(());
            }
        }
        Err(Stop::NotLinearizable)
    }

    /// Appends an operation to the order.
    fn take(&mut self, frame: &Frame, choice: Choice) {
        let operation = choice.operation;
        let digest = digest_of(0, u64::from(operation));
        let (before_pending, answered, pending) = match self.pending_index(operation) {
            Some(index) => {
                self.is_used[index] = true;
                (Some(frame.state), frame.answered, frame.pending | bit_of(index))
            }
            None => {
                self.timeline.take(operation);
                self.taken += 1;
                (None, frame.answered ^ digest, frame.pending)
            }
        };
        let first_choice = self.choices.len();
        self.enter(Frame {
            last: Some(operation),
            state: choice.after,
            before_pending,
            untried: first_choice,
            first_choice,
            digest: frame.digest ^ digest,
            answered,
            pending,
        });
    }

    /// Removes the last operation from the order.
    fn leave(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        self.choices.truncate(frame.first_choice);
        let Some(operation) = frame.last else { return };
        self.longest.shared = self.longest.shared.min(self.frames.len() - 1);
        match self.pending_index(operation) {
            Some(index) => self.is_used[index] = false,
            None => {
                self.timeline.put_back(operation);
                self.taken -= 1;
            }
        }
    }

    /// Returns the index of an operation among the pending ones; `None` if it was answered.
    fn pending_index(&self, operation: u32) -> Option<usize> {
        (operation as usize).checked_sub(self.answers.len())
    }

    /// Lists the operations that may come next, unless the same operations led to the same state before.
    fn enter(&mut self, frame: Frame) {
        self.frames.push(frame);
        for operation in self.timeline.open() {
            let (call, answer) = (self.calls[operation as usize], self.answers[operation as usize]);
            let Some(after) = call.step(frame.state, answer) else { continue };
            if frame.before_pending.is_some_and(|before| call.step(before, answer) == Some(after)) {
                continue;
            }
            if !answer.is_change() {
                self.choices.truncate(frame.first_choice);
                self.choices.push(Choice { operation, after });
                return;
            }
            self.choices.push(Choice { operation, after });
        }
        let state = digest_of(1, code(frame.state)) ^ digest_of(2, frame.before_pending.map_or(0, |it| 1 + code(it)));
        if !self.entered.insert(frame.digest ^ state) || self.was_cheaper(&frame, frame.answered ^ state) {
            self.choices.truncate(frame.first_choice);
            return;
        }
        self.sort_choices(frame.first_choice);
        if self.choices.len() == frame.first_choice && frame.before_pending.is_none() {
            self.stuck();
        }
        self.list_pending(&frame);
    }

    /// Sorts the choices from `first` on by the times of their answers, and drops later ones with equal calls and
    /// answers.
    fn sort_choices(&mut self, first: usize) {
        let (timeline, calls, answers) = (&self.timeline, &self.calls, &self.answers);
        self.choices[first..].sort_unstable_by_key(|choice| timeline.answer_position(choice.operation));
        let call_and_answer = |choice: &Choice| (calls[choice.operation as usize], answers[choice.operation as usize]);
        let mut kept = first;
        for index in first..self.choices.len() {
            let choice = self.choices[index];
            if self.choices[first..kept].iter().all(|earlier| call_and_answer(earlier) != call_and_answer(&choice)) {
                self.choices[kept] = choice;
                kept += 1;
            }
        }
        self.choices.truncate(kept);
    }

    /// Whether the same answered operations led to the same state with a subset of the pending ones; `pair` is the
    /// digest of both.
    fn was_cheaper(&mut self, frame: &Frame, pair: u128) -> bool {
        if self.is_used.len() > u128::BITS as usize {
            return false;
        }
        let cheapest = self.cheapest.entry(pair).or_insert(frame.pending);
        if *cheapest & frame.pending == frame.pending {
            *cheapest = frame.pending;
            return false;
        }
        *cheapest & frame.pending == *cheapest
    }

    /// Lists the pending operations that may come next.
    fn list_pending(&mut self, frame: &Frame) {
        let answered = self.answers.len();
        let called = self.timeline.due().map_or(0, |(_, pending)| pending as usize);
        for index in 0..called {
            if self.is_used[index]
                || self.previous_equal[index].is_some_and(|previous| !self.is_used[previous as usize])
            {
                continue;
            }
            let call = self.calls[answered + index];
            let after = call.apply(frame.state).0;
            let is_needless = frame.before_pending.is_some_and(|before| call.apply(before).0 == after);
            let is_spare =
                |other: usize| !self.is_used[other] && Some(self.calls[answered + other]) == call.narrower(frame.state);
            if after != frame.state && !is_needless && !(0..called).any(is_spare) {
                self.choices.push(Choice { operation: (answered + index) as u32, after });
            }
        }
    }

    /// Records the current order, after which no answered operation can come, if it explains more answers than any
    /// before.
    fn stuck(&mut self) {
        let Some((due, _)) = self.timeline.due() else { return };
        let longest = &mut self.longest;
        if self.taken > longest.taken || longest.open.is_empty() {
            longest.taken = self.taken;
            longest.due = due;
            longest.open.clear();
            longest.open.extend(self.timeline.open());
            longest.order.truncate(longest.shared);
            let frames = &self.frames[1 + longest.order.len()..];
            longest.order.extend(frames.iter().filter_map(|frame| frame.last));
            longest.shared = longest.order.len();
        }
    }

    /// Makes the error for a key without a valid order.
    fn explain(&self, recorded: &[Recorded], group: &[u32]) -> HistoryError {
        let operation = |number: &u32| recorded[self.indices[*number as usize] as usize].operation;
        let Longest { order, due, open, .. } = &self.longest;
        let order: Vec<Operation> = order.iter().map(operation).collect();
        let state = order.iter().fold(None, |state, operation| operation.call.apply(state).0);
        let all = group.iter().map(|index| recorded[*index as usize].operation);
        HistoryError::NotLinearizable(Box::new(NotLinearizable::new(
            order,
            state,
            operation(due),
            open.iter().map(operation),
            all,
        )))
    }
}

/// Returns the bit of the pending operation with index `index`; 0 for those beyond the last bit.
fn bit_of(index: usize) -> u128 {
    1_u128.checked_shl(index as u32).unwrap_or(0)
}

/// Returns the number that stands for a value in the search: 0 if the value is not in `named`.
fn renamed(named: &[u64], value: u64) -> u64 {
    named.binary_search(&value).map_or(0, |index| index as u64 + 1)
}

fn renamed_call(named: &[u64], call: Call) -> Call {
    match call {
        Call::Get | Call::Remove => call,
        Call::Put(value) => Call::Put(renamed(named, value)),
        Call::Insert(value) => Call::Insert(renamed(named, value)),
        Call::Update(value) => Call::Update(renamed(named, value)),
        Call::CompareAndSwap { expected, new } => {
            Call::CompareAndSwap { expected: renamed(named, expected), new: renamed(named, new) }
        }
        Call::CompareAndRemove(expected) => Call::CompareAndRemove(renamed(named, expected)),
    }
}

fn renamed_answer(named: &[u64], answer: Answer) -> Answer {
    match answer {
        Answer::Found(value) => Answer::Found(renamed(named, value)),
        other => other,
    }
}

fn code(state: State) -> u64 {
    state.map_or(0, |value| value + 1)
}

/// Returns a digest of `number`, different for each `kind`. The digest of a set is the exclusive or of the digests of
/// its members (Zobrist 1970).
fn digest_of(kind: u64, number: u64) -> u128 {
    let half = |salt: u64| mix(mix(number.wrapping_mul(4) + kind) ^ salt);
    u128::from(half(0x243f_6a88_85a3_08d3)) << 64 | u128::from(half(0x1319_8a2e_0370_7344))
}

/// Mixes a number by a bijection: the first output of SplitMix64 with this number as its seed.
fn mix(number: u64) -> u64 {
    SplitMix64::nth(number, 0)
}

/// Hasher for digests, which are well mixed already.
#[derive(Clone, Copy, Debug, Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }

    fn write_u128(&mut self, number: u128) {
        self.0 ^= number as u64;
    }
}
