//! Histories drawn from a seed, to test what checks histories: of a map that is atomic, and of one that errs once.

use std::collections::BTreeMap;

use guira_check::history::{Answer, Begun, Call, History, Operation, Outcome};
use guira_fabric::SplitMix64;

/// What a drawn history is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistorySpec {
    /// The seed, which alone decides everything else.
    pub seed: u64,
    /// Processes at a time. One that dies is replaced by another.
    pub processes: u64,
    /// Operations.
    pub operations: u64,
    /// Keys.
    pub keys: u64,
    /// Of 1,000 operations, how many are cut off by the death of their process.
    pub deaths_permille: u64,
    /// How many operations a value serves on average, at least 1: values that come back hide errors.
    pub value_uses: u64,
    /// What the map does wrong, once.
    pub error: MapError,
}

/// What a map may do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Nothing.
    None,
    /// A change that is answered is not made.
    Lost,
    /// A lookup finds what the key had before its last change.
    Stale,
    /// An operation that fails without effect has one.
    Phantom,
    /// An answer is replaced by another that the operation may have.
    Answer,
}

impl MapError {
    const ALL: [MapError; 4] = [MapError::Lost, MapError::Stale, MapError::Phantom, MapError::Answer];

    /// Nothing for even seeds, one of the errors for odd ones.
    pub fn drawn(seed: u64) -> MapError {
        if seed.is_multiple_of(2) { MapError::None } else { MapError::ALL[(seed / 2 % 4) as usize] }
    }
}

/// The same history, as logs would tell it whose clock ticks every `tick_ns` nanoseconds: many times are equal.
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

/// Of 1,000 operations that do not die, how many fail without effect.
const FAILURES_PERMILLE: u64 = 30;

/// A process in the middle of an operation.
struct Running {
    begun: Begun,
    operation: Operation,
    ending: Ending,
    /// What it will be told, once it took effect.
    answer: Option<Answer>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Answered,
    Fails,
    /// At once, or after it took effect.
    Dies,
}

struct Map {
    states: BTreeMap<u64, (Option<u64>, Option<u64>)>,
    error: MapError,
    /// Effects until the error, if it can be made then; otherwise it is made at the first that can.
    until_error: u64,
}

impl HistorySpec {
    /// The history.
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

/// The next thing that happens to an operation: it takes effect, or it ends.
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
        history.withdraw(running.begun);
        return None;
    }
    match running.answer {
        None => {
            running.answer = Some(map.answer(&running.operation, rng));
            Some(running)
        }
        Some(answer) => {
            history.answered(running.begun, answer, now_ns);
            None
        }
    }
}

impl Map {
    /// Whether this is the moment for an error.
    fn errs(&mut self, error: MapError) -> bool {
        let errs = self.error == error && self.until_error == 0;
        if errs {
            self.error = MapError::None;
        }
        errs
    }

    /// Makes a change, and gives its answer.
    fn apply(&mut self, operation: &Operation) -> Answer {
        let (state, before) = self.states.entry(operation.key).or_default();
        let (after, answer) = operation.call.apply(*state);
        if after != *state {
            (*before, *state) = (*state, after);
        }
        answer
    }

    /// What the operation is told, right or wrong.
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

/// An answer to `call` that is not `answer`.
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
