//! The linearizability checker: Wing and Gong's search (1993) with Lowe's memory of dead ends (2017), for one key after
//! the other.
//!
//! It builds an order from its start. An operation may come next if no other that is left was answered before it was
//! called; it does if what it was answered fits the state. Where nothing fits, the last choice is taken back. A pair of
//! the operations ordered so far and the state that was given up once is not tried again.
//!
//! Six things keep it short, and none of them loses an order:
//!
//! - An operation that fits and, answered so, changes nothing in any state, comes at once: later it would only be in
//!   the way. (A put of the value that the key has is no such operation: later it may be needed.)
//! - Whatever is answered first comes first, if it fits. Of those that are called and answered alike it is the only one
//!   to come next: in an order that has another one here, the two can change places.
//! - A pending operation comes only directly before one that could not have come, or not with the same result, without
//!   it; of equal ones the first, and a put only where no pending
//!   update or insert would do the same. The others never took effect.
//! - Where the same answered operations led to the same state with fewer pending ones, nothing is to be found.
//! - Values that no answer and no comparison names are one value.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use guira_fabric::SplitMix64;

use super::error::{HistoryError, NotLinearizable};
use super::operation::{Answer, Call, Operation, Outcome};
use super::record::{History, Recorded};
use super::timeline::{Event, Kind, Timeline};

/// Steps of the search that are always enough for a history of some thousand operations on a key, of which some dozen
/// are under way at a time and some dozen are pending; they take some 0.4 GiB and a second or two at worst.
pub const SEARCH_STEPS: u64 = 4_000_000;

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Keys: each is a history of its own.
    pub keys: u64,
    /// Operations that were answered.
    pub answered: u64,
    /// Operations that are pending.
    pub pending: u64,
    /// Steps of all searches.
    pub steps: u64,
}

impl History {
    /// Looks, for each key, for an order of its operations that explains every answer. `max_steps` bounds the search
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

/// Why a search ended without an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    NotLinearizable,
    OutOfSteps,
}

type State = Option<u64>;

/// An operation that may come next, by its number: first those that were answered, then the pending ones.
#[derive(Clone, Copy, Debug)]
struct Choice {
    operation: u32,
    after: State,
}

/// An order as it grew to here.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// The operation that came last; of the first frame, none.
    last: Option<u32>,
    state: State,
    /// If a pending operation came last, the state before: what comes next must need it.
    before_pending: Option<State>,
    /// What was not tried yet starts here in the list of all choices, and ends where the list ends while this is the
    /// last frame.
    untried: usize,
    first_choice: usize,
    digest: u128,
    /// The answered ones of its operations.
    answered: u128,
    /// The pending ones among the first 128.
    pending: u128,
}

/// The order that explains most answers, and where it got stuck.
#[derive(Clone, Debug, Default)]
struct Longest {
    /// Answers it explains.
    taken: usize,
    order: Vec<u32>,
    /// How many of its operations the present order begins with.
    shared: usize,
    due: u32,
    open: Vec<u32>,
}

/// The search for one key. Its memory serves the next one.
#[derive(Default)]
struct Search {
    /// Of operations that were answered, then of pending ones; values are renamed.
    calls: Vec<Call>,
    answers: Vec<Answer>,
    /// Their indices in the history.
    indices: Vec<u32>,
    timeline: Timeline,
    /// Of each pending operation: whether it took effect, and the last one before it with the same call.
    is_used: Vec<bool>,
    previous_equal: Vec<Option<u32>>,
    choices: Vec<Choice>,
    frames: Vec<Frame>,
    /// Pairs of operations and state that were entered: digests. A collision could refuse a history wrongly, never
    /// accept one: with 2^22 steps, at a chance of 2^-84.
    entered: HashSet<u128, BuildHasherDefault<Folded>>,
    /// Of answered operations and state, the pending operations of one way to them that has no other's.
    cheapest: HashMap<u128, u128, BuildHasherDefault<Folded>>,
    longest: Longest,
    /// Answers that the present order explains.
    taken: usize,
    events: Vec<Event>,
    named: Vec<u64>,
    steps: u64,
}

impl Search {
    /// Takes the operations of one key, which are sorted by their calls.
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
            // A lookup that nobody was told the answer of says nothing.
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
        let previous = |place: usize| pending[..place].iter().rposition(|call| *call == pending[place]);
        self.previous_equal.extend((0..pending.len()).map(|place| previous(place).map(|index| index as u32)));
        self.entered.clear();
        self.cheapest.clear();
        self.choices.clear();
        self.frames.clear();
        self.longest = Longest::default();
        self.taken = 0;
        self.steps = 0;
    }

    /// Collects the values that answers and comparisons name.
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

    /// Lets an operation come next.
    fn take(&mut self, frame: &Frame, choice: Choice) {
        let operation = choice.operation;
        let digest = digest_of(0, u64::from(operation));
        let (before_pending, answered, pending) = match self.pending_place(operation) {
            Some(place) => {
                self.is_used[place] = true;
                (Some(frame.state), frame.answered, frame.pending | bit_of(place))
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

    /// Takes the last operation back.
    fn leave(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        self.choices.truncate(frame.first_choice);
        let Some(operation) = frame.last else { return };
        self.longest.shared = self.longest.shared.min(self.frames.len() - 1);
        match self.pending_place(operation) {
            Some(place) => self.is_used[place] = false,
            None => {
                self.timeline.put_back(operation);
                self.taken -= 1;
            }
        }
    }

    /// Of a pending operation, its place among them.
    fn pending_place(&self, operation: u32) -> Option<usize> {
        (operation as usize).checked_sub(self.answers.len())
    }

    /// Lists what may come next, unless the same operations led to the same state before.
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

    /// Orders the choices from this one on by their answers, and leaves out what is called and answered alike later.
    fn sort_choices(&mut self, first: usize) {
        let (timeline, calls, answers) = (&self.timeline, &self.calls, &self.answers);
        self.choices[first..].sort_unstable_by_key(|choice| timeline.answer_place(choice.operation));
        let likeness = |choice: &Choice| (calls[choice.operation as usize], answers[choice.operation as usize]);
        let mut kept = first;
        for place in first..self.choices.len() {
            let choice = self.choices[place];
            if self.choices[first..kept].iter().all(|earlier| likeness(earlier) != likeness(&choice)) {
                self.choices[kept] = choice;
                kept += 1;
            }
        }
        self.choices.truncate(kept);
    }

    /// Whether the same answered operations led to the same state, `place`, with some of the pending ones and no other.
    fn was_cheaper(&mut self, frame: &Frame, place: u128) -> bool {
        if self.is_used.len() > u128::BITS as usize {
            return false;
        }
        let cheapest = self.cheapest.entry(place).or_insert(frame.pending);
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
        for place in 0..called {
            if self.is_used[place]
                || self.previous_equal[place].is_some_and(|previous| !self.is_used[previous as usize])
            {
                continue;
            }
            let call = self.calls[answered + place];
            let after = call.apply(frame.state).0;
            let is_needless = frame.before_pending.is_some_and(|before| call.apply(before).0 == after);
            let is_spare =
                |other: usize| !self.is_used[other] && Some(self.calls[answered + other]) == call.narrower(frame.state);
            if after != frame.state && !is_needless && !(0..called).any(is_spare) {
                self.choices.push(Choice { operation: (answered + place) as u32, after });
            }
        }
    }

    /// Nothing that was answered may come next: remembers how far this was, if no other order explained as much.
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

    /// What to say of a key that has no order.
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

/// Of a pending operation's place, its bit; none beyond the last one.
fn bit_of(place: usize) -> u128 {
    1_u128.checked_shl(place as u32).unwrap_or(0)
}

/// The value's name: 0 for all that nobody names.
fn renamed(named: &[u64], value: u64) -> u64 {
    named.binary_search(&value).map_or(0, |place| place as u64 + 1)
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

/// 128 bits that stand for a number of a kind: sets are the exclusive or of their members' (Zobrist 1970).
fn digest_of(kind: u64, number: u64) -> u128 {
    let half = |salt: u64| mix(mix(number.wrapping_mul(4) + kind) ^ salt);
    u128::from(half(0x243f_6a88_85a3_08d3)) << 64 | u128::from(half(0x1319_8a2e_0370_7344))
}

/// The first number of the generator with this seed: a bijection.
fn mix(number: u64) -> u64 {
    SplitMix64::nth(number, 0)
}

/// Digests are mixed already.
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
