//! Histories drawn from a seed, of an atomic map or of one that errs once; they test the linearizability checker.

use std::collections::BTreeMap;

use guira_check::history::{Answer, Call, History, Operation, Outcome, PendingOperation};
use guira_fabric::SplitMix64;

/// The parameters of a drawn history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistorySpec {
    /// The seed; it decides everything that the other parameters leave open.
    pub seed: u64,
    /// Concurrent processes. One that dies is replaced by another.
    pub processes: u64,
    /// The number of operations.
    pub operations: u64,
    /// The number of keys.
    pub keys: u64,
    /// Operations per 1,000 that the death of their process cuts off.
    pub deaths_permille: u64,
    /// Average number of operations that write the same value, at least 1: repeated values hide errors.
    pub value_uses: u64,
    /// The error that the map makes once.
    pub error: MapError,
}

/// An error of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// No error.
    None,
    /// A change is acknowledged and not made.
    Lost,
    /// A lookup returns the value from before the key's last change.
    Stale,
    /// An operation that failed without effect has an effect.
    Phantom,
    /// An answer is replaced by another possible answer of the operation.
    Answer,
}

impl MapError {
    const ALL: [MapError; 4] = [MapError::Lost, MapError::Stale, MapError::Phantom, MapError::Answer];

    /// Returns no error for even seeds, and one of the errors for odd ones.
    pub fn drawn(seed: u64) -> MapError {
        if seed.is_multiple_of(2) { MapError::None } else { MapError::ALL[(seed / 2 % 4) as usize] }
    }
}

/// Returns the history as a clock that ticks every `tick_ns` nanoseconds would record it, with many equal times.
pub fn with_coarse_clock(history: &History, tick_ns: u64) -> History {
    let ticked = |operation: &Operation| {
        let outcome = match operation.outcome {
            Outcome::Answered { answer, at_ns } => Outcome::Answered { answer, at_ns: at_ns / tick_ns },
            other => other,
        };
        Operation { called_ns: operation.called_ns / tick_ns, outcome, ..*operation }
    };
    history.operations().map(ticked).collect()
}

/// Operations per 1,000, among those that do not die, that fail without effect.
const FAILURES_PERMILLE: u64 = 30;

/// A process in the middle of an operation.
struct Running {
    begun: PendingOperation,
    operation: Operation,
    ending: Ending,
    /// The answer, once the operation took effect.
    answer: Option<Answer>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Answered,
    Fails,
    /// Before or after it took effect.
    Dies,
}

struct Map {
    states: BTreeMap<u64, (Option<u64>, Option<u64>)>,
    error: MapError,
    /// Effects before the error, which is made at the first opportunity after them.
    until_error: u64,
}

impl HistorySpec {
    /// Draws the history.
    pub fn history(&self) -> History {
        let mut rng = SplitMix64(self.seed);
        let mut history = History::new();
        let until_error = rng.below(self.operations.div_ceil(2));
        let mut map = Map { states: BTreeMap::new(), error: self.error, until_error };
        let mut running: Vec<(u64, Option<Running>)> = (0..self.processes).map(|process| (process, None)).collect();
        let (mut begun, mut now_ns) = (0, 0);
        while begun < self.operations || running.iter().any(|(_, it)| it.is_some()) {
            now_ns += 1 + rng.below(20);
            // Some processes are slow: their operations last while others go on.
            let turn = rng.below(self.processes).min(rng.below(self.processes)) as usize;
            let (process, operation) = &mut running[turn];
            *operation = match operation.take() {
                None if begun < self.operations => {
                    begun += 1;
                    Some(self.begin(*process, &mut history, now_ns, &mut rng))
                }
                None => None,
                Some(at) => advance(at, process, self.processes, &mut map, &mut history, now_ns, &mut rng),
            };
        }
        history
    }

    fn begin(&self, process: u64, history: &mut History, now_ns: u64, rng: &mut SplitMix64) -> Running {
        let values = self.operations.div_ceil(self.value_uses);
        let mut value = || rng.below(values);
        let [first, second] = [value(), value()];
        let call = match rng.below(10) {
            0..3 => Call::Get,
            3 | 4 => Call::Put(first),
            5 => Call::Insert(first),
            6 => Call::Update(first),
            7 => Call::Remove,
            8 => Call::CompareAndSwap { expected: first, new: second },
            _ => Call::CompareAndRemove(first),
        };
        let key = rng.below(self.keys);
        let ending = match rng.below(1_000) {
            drawn if drawn < self.deaths_permille => Ending::Dies,
            drawn if drawn < self.deaths_permille + FAILURES_PERMILLE => Ending::Fails,
            _ => Ending::Answered,
        };
        let begun = history.begin(process, key, call, now_ns);
        let operation = Operation { process, key, call, called_ns: now_ns, outcome: Outcome::Pending };
        Running { begun, operation, ending, answer: None }
    }
}

/// Advances an operation by one event: it takes effect, or it ends.
fn advance(
    mut running: Running,
    process: &mut u64,
    processes: u64,
    map: &mut Map,
    history: &mut History,
    now_ns: u64,
    rng: &mut SplitMix64,
) -> Option<Running> {
    if running.ending == Ending::Dies && rng.below(2) == 0 {
        *process += processes;
        return None;
    }
    if running.ending == Ending::Fails {
        if map.errs(MapError::Phantom) {
            map.apply(&running.operation);
        }
        history.fail(running.begun);
        return None;
    }
    match running.answer {
        None => {
            running.answer = Some(map.answer(&running.operation, rng));
            Some(running)
        }
        Some(answer) => {
            history.complete(running.begun, answer, now_ns);
            None
        }
    }
}

impl Map {
    /// Whether the error is to be made now.
    fn errs(&mut self, error: MapError) -> bool {
        let errs = self.error == error && self.until_error == 0;
        if errs {
            self.error = MapError::None;
        }
        errs
    }

    /// Makes the change and returns its answer.
    fn apply(&mut self, operation: &Operation) -> Answer {
        let (state, before) = self.states.entry(operation.key).or_default();
        let (after, answer) = operation.call.apply(*state);
        if after != *state {
            (*before, *state) = (*state, after);
        }
        answer
    }

    /// Returns the operation's answer, right or wrong.
    fn answer(&mut self, operation: &Operation, rng: &mut SplitMix64) -> Answer {
        self.until_error = self.until_error.saturating_sub(1);
        let (state, before) = self.states.get(&operation.key).copied().unwrap_or_default();
        let (after, answer) = operation.call.apply(state);
        if after != state && self.errs(MapError::Lost) {
            return answer;
        }
        if operation.call == Call::Get && before != state && self.errs(MapError::Stale) {
            return operation.call.apply(before).1;
        }
        if self.errs(MapError::Answer) {
            self.apply(operation);
            return another(operation.call, answer, rng);
        }
        match self.apply(operation) {
            Answer::Inserted | Answer::Replaced if rng.below(4) == 0 => Answer::Done,
            answer => answer,
        }
    }
}

/// Returns a possible answer to `call` other than `answer`.
fn another(call: Call, answer: Answer, rng: &mut SplitMix64) -> Answer {
    let others = [
        Answer::Found(rng.below(8)),
        Answer::Absent,
        Answer::Done,
        Answer::Inserted,
        Answer::Replaced,
        Answer::Missing,
        Answer::Exists,
        Answer::Mismatch,
    ];
    let mut possible = others.into_iter().filter(|other| call.may_answer(*other) && *other != answer);
    let count = possible.clone().count() as u64;
    possible.nth(rng.below(count) as usize).unwrap_or(answer)
}
