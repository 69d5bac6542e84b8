//! A scheduler that runs every interleaving of a few clients' verbs, and lanes that misbehave on purpose.
//!
//! A [`ScheduledLane`] takes one step on each turn of its client: a verb, half of a WRITE, or one word of it.
//! [`explore`] runs the same clients repeatedly, each time under a different order of turns, until every order within
//! its bound was tried. A [`Flaw`] makes a lane behave as the printed protocol, a shortcut or a faulty fabric would.
//!
//! Invariants: the order of turns alone decides what happens, so equal orders give equal runs; a client that pauses
//! gets no turn before another client had one, unless no other client is left.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use guira_fabric::heap::{HeapLane, HeapRegion};
use guira_fabric::memory::{check, execute};
use guira_fabric::{Addr, Caps, FabricError, Lane, Region, Space, Submitted, Verb};

/// A client's operations, as a future.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The turn counter that the lanes of one run share.
#[derive(Clone, Default)]
pub struct Scheduler {
    turn: Arc<AtomicU64>,
    has_paused: Arc<AtomicBool>,
}

impl Scheduler {
    /// Gives `task` a turn and returns whether it has ended. Its first turn brings it to its first verb, which is not
    /// executed yet.
    pub fn give_turn(&self, task: &mut Task) -> bool {
        self.turn.fetch_add(1, Ordering::Relaxed);
        self.poll(task)
    }

    fn poll(&self, task: &mut Task) -> bool {
        task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn now(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }
}

/// The amount of work that one turn executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// A verb.
    Verbs,
    /// A verb, or half of a WRITE.
    Halves,
    /// A verb, or one word of a WRITE.
    Words,
}

/// A misbehaviour that no lane of Guira has.
#[derive(Clone, Debug)]
pub enum Flaw {
    /// No misbehaviour.
    None,
    /// An atomic is a load and, one turn later, a store, as if another NIC than that of the other clients executed it.
    SplitAtomics,
    /// READs are executed before the atomics in front of them in the batch.
    ReadsFirst,
    /// READs that are posted again behind a retried CAS return what they returned the first time.
    StaleReads,
    /// Adjacent WRITEs of one batch are executed as one, in ascending order.
    MergedWrites,
    /// WRITEs to these bytes of the main space are delayed: see [`DelayedWrites`].
    DelayedWrites(Range<u64>, DelayedWrites),
}

/// WRITEs that are in flight separately, as through another queue pair.
#[derive(Clone, Debug, Default)]
pub struct DelayedWrites(Arc<Mutex<VecDeque<Words>>>);

/// An address, and the words written or read there.
type Words = (Addr, Vec<u64>);

impl DelayedWrites {
    fn push(&self, addr: Addr, words: &[u64]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((addr, words.to_vec()));
    }

    fn pop(&self) -> Option<Words> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Returns a task that executes `count` of these WRITEs, one in each turn that finds one in flight.
    pub fn deliver(self, region: &HeapRegion, scheduler: &Scheduler, count: usize) -> Task {
        let (region, mut lane) =
            (region.clone(), ScheduledLane::new(region, scheduler, Granularity::Verbs, Flaw::None));
        Box::pin(async move {
            let mut delivered = 0;
            while delivered < count {
                let until_ns = lane.now_ns() + 1;
                guira_fabric::pause_until(&mut lane, until_ns).await;
                if let Some((addr, words)) = self.pop() {
                    execute(region.memory(), &mut Verb::Write { addr, words: &words }).expect("it was checked");
                    delivered += 1;
                }
            }
        })
    }
}

/// A step of a batch: a part of one of its verbs.
#[derive(Clone, Debug)]
struct Step {
    verb: usize,
    part: Part,
}

#[derive(Clone, Debug)]
enum Part {
    Whole,
    Words(Range<usize>),
    Load,
    Store,
    /// The words that the READ returned before.
    Again(Vec<u64>),
}

/// A lane that takes one step per turn. A batch that is dropped halfway stays unfinished: its client is dead.
pub struct ScheduledLane {
    region: HeapRegion,
    /// The source of promises and counters. Nothing is sent on it.
    lane: HeapLane,
    scheduler: Scheduler,
    granularity: Granularity,
    flaw: Flaw,
    /// The remaining steps of the batch in flight.
    steps: VecDeque<Step>,
    /// The turn of the last step.
    stepped: u64,
    /// The turn in which a pause began.
    paused: Option<u64>,
    now_ns: u64,
    /// The results of the last batch's READs, if a CAS was in front of them.
    brought: Vec<Words>,
}

impl ScheduledLane {
    /// Creates a lane of `region` whose verbs cross a network.
    pub fn new(region: &HeapRegion, scheduler: &Scheduler, granularity: Granularity, flaw: Flaw) -> ScheduledLane {
        let region = region.with_caps(Caps { local: false, ..*region.caps() });
        ScheduledLane {
            lane: region.lane(),
            region,
            scheduler: scheduler.clone(),
            granularity,
            flaw,
            steps: VecDeque::new(),
            stepped: scheduler.now(),
            paused: None,
            now_ns: 0,
            brought: Vec::new(),
        }
    }

    /// Fills `steps` with the steps of `batch`, in the order in which they are executed.
    fn plan(&mut self, batch: &[Verb<'_>]) {
        let is_read = |verb: &usize| matches!(batch[*verb], Verb::Read { .. });
        let is_write = |verb: &usize| matches!(batch[*verb], Verb::Write { .. });
        let mut order: Vec<usize> = (0..batch.len()).collect();
        match &self.flaw {
            Flaw::ReadsFirst => order.sort_by_key(|verb| !is_read(verb)),
            Flaw::MergedWrites => {
                let touch = |a: &usize, b: &usize| is_write(a) && is_write(b) && are_neighbours(&batch[*a], &batch[*b]);
                order.chunk_by_mut(touch).for_each(|run| run.sort_by_key(|verb| batch[*verb].addr().offset()));
            }
            _ => {}
        }
        let behind_cas = matches!(batch.first(), Some(Verb::Cas { .. }));
        self.steps.clear();
        for verb in order {
            self.plan_verb(verb, &batch[verb], behind_cas);
        }
        if !behind_cas {
            self.brought.clear();
        }
    }

    fn plan_verb(&mut self, index: usize, verb: &Verb<'_>, behind_cas: bool) {
        let mut add = |part| self.steps.push_back(Step { verb: index, part });
        match (verb, &self.flaw) {
            (Verb::Write { addr, words }, Flaw::DelayedWrites(bytes, delayed))
                if addr.space() == Space::Main && bytes.contains(&addr.offset()) =>
            {
                delayed.push(*addr, words);
            }
            (Verb::Write { words, .. }, _) => {
                let (words, parts) = match self.granularity {
                    Granularity::Verbs => (words.len(), 1),
                    Granularity::Halves => (words.len(), 2.min(words.len())),
                    Granularity::Words => (words.len(), words.len()),
                };
                (0..parts).for_each(|part| add(Part::Words(part * words / parts..(part + 1) * words / parts)));
            }
            (Verb::Read { addr, into }, Flaw::StaleReads) if behind_cas => {
                let before = self.brought.iter().find(|(at, words)| at == addr && words.len() == into.len());
                add(before.map_or(Part::Whole, |(_, words)| Part::Again(words.clone())));
            }
            (Verb::Read { .. }, _) => add(Part::Whole),
            (_, Flaw::SplitAtomics) => [Part::Load, Part::Store].into_iter().for_each(add),
            _ => add(Part::Whole),
        }
    }

    fn carry_out(&mut self, step: Step, verb: &mut Verb<'_>) -> Result<(), FabricError> {
        let region = self.region.clone();
        let memory = region.memory();
        match (step.part, verb) {
            (Part::Words(part), Verb::Write { addr, words }) => {
                execute(memory, &mut Verb::Write { addr: addr.add_words(part.start as u64), words: &words[part] })
            }
            (Part::Again(words), Verb::Read { into, .. }) => {
                into.copy_from_slice(&words);
                Ok(())
            }
            (Part::Load, verb) => {
                let mut word = [0];
                execute(memory, &mut Verb::Read { addr: verb.addr(), into: &mut word })?;
                match verb {
                    Verb::Cas { found, .. } | Verb::MaskedCas { found, .. } | Verb::FetchAdd { found, .. } => {
                        **found = word[0];
                    }
                    Verb::Read { .. } | Verb::Write { .. } => {}
                }
                Ok(())
            }
            (Part::Store, verb) => match stored(verb) {
                Some(word) => execute(memory, &mut Verb::Write { addr: verb.addr(), words: &[word] }),
                None => Ok(()),
            },
            (_, verb) => {
                execute(memory, verb)?;
                if let (Verb::Read { addr, into }, Flaw::StaleReads) = (verb, &self.flaw) {
                    self.brought.push((*addr, into.to_vec()));
                }
                Ok(())
            }
        }
    }
}

/// Whether two verbs touch adjacent words.
fn are_neighbours(a: &Verb<'_>, b: &Verb<'_>) -> bool {
    let ends_at = |a: &Verb<'_>, b: &Verb<'_>| a.addr().add_words(a.words() as u64) == b.addr();
    ends_at(a, b) || ends_at(b, a)
}

/// Returns the word that an atomic stores, given the word it found.
fn stored(verb: &Verb<'_>) -> Option<u64> {
    match verb {
        Verb::Cas { compare, swap, found, .. } => (**found == *compare).then_some(*swap),
        Verb::MaskedCas { compare, swap, compare_mask, swap_mask, found, .. } => {
            let matches = (**found ^ compare) & compare_mask == 0;
            matches.then_some(**found & !swap_mask | swap & swap_mask)
        }
        Verb::FetchAdd { add, found, .. } => Some(found.wrapping_add(*add)),
        Verb::Read { .. } | Verb::Write { .. } => None,
    }
}

impl Lane for ScheduledLane {
    crate::delegate!(lane: caps, traffic, traffic_mut, poll_drain);

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        if let Err(error) = check(self.region.memory(), self.region.caps(), batch) {
            return Submitted::Done(Err(error));
        }
        self.plan(batch);
        Submitted::InFlight
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], _: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        if self.steps.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if self.stepped == self.scheduler.now() {
            return Poll::Pending;
        }
        self.stepped = self.scheduler.now();
        if let Some(step) = self.steps.pop_front() {
            let verb = step.verb;
            if let Err(error) = self.carry_out(step, &mut batch[verb]) {
                return Poll::Ready(Err(error));
            }
        }
        if self.steps.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn forget(&mut self) {
        self.steps.clear();
    }

    fn poll_pause(&mut self, until_ns: u64, _: &mut Context<'_>) -> Poll<()> {
        match self.paused {
            Some(turn) if turn != self.scheduler.now() => {
                self.paused = None;
                self.now_ns = self.now_ns.max(until_ns);
                Poll::Ready(())
            }
            _ => {
                self.paused = Some(self.scheduler.now());
                self.scheduler.has_paused.store(true, Ordering::Relaxed);
                Poll::Pending
            }
        }
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }
}

/// The orders of turns that [`explore`] tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orders {
    /// All orders.
    All,
    /// Orders in which at most this many times a client that could continue lets another go first.
    Switches(usize),
}

/// The result of [`explore`].
#[derive(Clone, Debug, Default)]
pub struct Exploration {
    /// Orders that were tried.
    pub orders: u64,
    /// Orders that ended in a violation.
    pub violations: u64,
    /// The violation with the fewest switches: their number, the turns, and what is wrong.
    pub simplest: Option<(usize, String, String)>,
}

impl Exploration {
    /// Prints the result, and fails unless a violation was found.
    ///
    /// # Panics
    /// If no order ended in a violation.
    pub fn assert_violated(&self, what: &str) {
        println!("{what}: {} of {} orders violate; {:?}", self.violations, self.orders, self.simplest);
        assert!(self.violations > 0, "{what}: none of {} orders shows the hole", self.orders);
    }

    /// Prints the number of orders, and fails if any violates or if fewer than `least` were tried.
    ///
    /// # Panics
    /// If a violation was found, or too few orders were tried.
    pub fn assert_holds(&self, what: &str, least: u64) {
        println!("{what}: none of {} orders violates", self.orders);
        assert_eq!(self.violations, 0, "{what}: {:?}", self.simplest);
        assert!(self.orders >= least, "{what}: only {} orders", self.orders);
    }
}

/// Most turns of a run; one that takes more is stuck.
const MOST_TURNS: usize = 20_000;

/// Runs the tasks that `make` creates under every order of turns in `orders`, and passes what each run leaves to
/// `judge`. `make` must do the same each time.
pub fn explore<W>(
    orders: Orders,
    mut make: impl FnMut(&Scheduler) -> (W, Vec<Task>),
    mut judge: impl FnMut(W) -> Result<(), String>,
) -> Exploration {
    let mut exploration = Exploration::default();
    let mut open = vec![Vec::new()];
    while let Some(prefix) = open.pop() {
        let scheduler = Scheduler::default();
        let (world, tasks) = make(&scheduler);
        let run = run(&scheduler, tasks, orders, prefix, &mut open);
        exploration.orders += 1;
        let verdict = if run.is_stuck { Err("no client makes progress".to_owned()) } else { judge(world) };
        if let Err(wrong) = verdict {
            exploration.violations += 1;
            if exploration.simplest.as_ref().is_none_or(|(switches, ..)| run.switches < *switches) {
                exploration.simplest = Some((run.switches, summary(&run.order), wrong));
            }
        }
    }
    exploration
}

struct Run {
    order: Vec<usize>,
    switches: usize,
    is_stuck: bool,
}

/// Runs `tasks` in the order of `prefix`, and afterwards lets the last client continue as long as it can. Alternatives
/// met on the way are added to `open`.
fn run(scheduler: &Scheduler, tasks: Vec<Task>, orders: Orders, prefix: Vec<usize>, open: &mut Vec<Vec<usize>>) -> Run {
    let mut tasks: Vec<Option<Task>> = tasks.into_iter().map(Some).collect();
    for slot in &mut tasks {
        // This brings the task to its first verb.
        if slot.as_mut().is_some_and(|task| scheduler.poll(task)) {
            *slot = None;
        }
    }
    let mut paused = vec![false; tasks.len()];
    scheduler.has_paused.store(false, Ordering::Relaxed);
    let mut run = Run { order: Vec::new(), switches: 0, is_stuck: false };
    loop {
        let live: Vec<usize> = (0..tasks.len()).filter(|task| tasks[*task].is_some()).collect();
        if live.is_empty() {
            return run;
        }
        if live.iter().all(|task| paused[*task]) {
            paused.fill(false);
        }
        let ready: Vec<usize> = live.into_iter().filter(|task| !paused[*task]).collect();
        let last = run.order.last().copied().filter(|last| ready.contains(last));
        let may_switch = orders == Orders::All || matches!(orders, Orders::Switches(most) if run.switches < most);
        let first = last.unwrap_or(ready[0]);
        let mut choices = vec![first];
        if last.is_none() || may_switch {
            choices.extend(ready.iter().copied().filter(|task| *task != first));
        }
        let choice = match prefix.get(run.order.len()) {
            Some(choice) => *choice,
            None => {
                for other in &choices[1..] {
                    open.push(run.order.iter().chain([other]).copied().collect());
                }
                choices[0]
            }
        };
        run.switches += usize::from(last.is_some_and(|last| last != choice));
        run.order.push(choice);
        if tasks[choice].as_mut().is_some_and(|task| scheduler.give_turn(task)) {
            tasks[choice] = None;
        }
        if scheduler.has_paused.swap(false, Ordering::Relaxed) {
            paused[choice] = tasks[choice].is_some();
        } else {
            paused.fill(false);
        }
        if run.order.len() >= MOST_TURNS {
            run.is_stuck = true;
            return run;
        }
    }
}

/// Formats an order of turns as `A3 B5 A2`: tasks by letter, in the order in which they were created.
fn summary(order: &[usize]) -> String {
    let stretch = |turns: &[usize]| format!("{}{}", char::from(b'A' + turns[0] as u8), turns.len());
    order.chunk_by(|a, b| a == b).map(stretch).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use guira_fabric::{Profile, post};

    use super::*;

    fn adder(region: &HeapRegion, scheduler: &Scheduler, flaw: Flaw) -> Task {
        let mut lane = ScheduledLane::new(region, scheduler, Granularity::Verbs, flaw);
        Box::pin(async move {
            for _ in 0..2 {
                let add = Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut 0 };
                post(&mut lane, [add]).await.expect("the heap adds");
            }
        })
    }

    fn sums(flaw: &Flaw) -> Exploration {
        let make = |scheduler: &Scheduler| {
            let region = HeapRegion::new(64, 64, Profile::Tcp.caps());
            let tasks = (0..2).map(|_| adder(&region, scheduler, flaw.clone())).collect();
            (region, tasks)
        };
        let judge = |region: HeapRegion| {
            let sum = region.memory().device[0].load(guira_fabric::memory::Ordering::Relaxed);
            if sum == 4 { Ok(()) } else { Err(format!("{sum}")) }
        };
        explore(Orders::All, make, judge)
    }

    /// Two clients of two turns each have 6 orders, and of four turns each 70. Split atomics lose additions in all but
    /// the two orders in which the clients do not mix within an addition.
    #[test]
    fn every_order_is_tried_once() {
        let whole = sums(&Flaw::None);
        assert_eq!((whole.orders, whole.violations), (6, 0));
        let split = sums(&Flaw::SplitAtomics);
        assert_eq!((split.orders, split.violations), (70, 64));
        assert_eq!(split.simplest.expect("a violation").0, 1);
    }
}
