//! A lane that executes in place, with a clock of its own, and logs every word that its client changes: a client that
//! dies at any of its steps leaves the previous memory changed by a prefix of that log.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use guira_conformance::{Examiner, delegate};
use guira_fabric::heap::{HeapLane, HeapRegion};
use guira_fabric::memory::{Ordering, check, execute};
use guira_fabric::{Addr, FabricError, Lane, Region, Space, Submitted, Verb, WORD_BYTES};

/// A word that a client changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The word's number: the main space comes first, as in [`guira_conformance::Bench::words`].
    pub word: usize,
    /// The new value.
    pub value: u64,
    /// Whether the client could have died before this and after the change before it.
    pub is_step: bool,
}

/// The log of a client's changes.
#[derive(Debug, Default)]
pub struct Log {
    /// Words that it changed, in order.
    pub written: Vec<Written>,
    /// Steps at which it could have died: before each verb, and before each word at which the fabric can tear a WRITE.
    pub steps: u64,
    /// Whether there was a step since the last change.
    since_change: bool,
}

/// A callback that is called before each step, with its number.
pub type OnStep = Box<dyn FnMut(u64) + Send>;

/// The lane that the module describes.
pub struct LoggedLane {
    region: HeapRegion,
    /// The source of promises and counters. Nothing is sent on it.
    lane: HeapLane,
    log: Arc<Mutex<Log>>,
    on_step: Option<OnStep>,
    examiner: Option<Examiner>,
    now_ns: u64,
}

impl LoggedLane {
    pub fn new(region: &HeapRegion) -> LoggedLane {
        let log = Arc::default();
        LoggedLane { region: region.clone(), lane: region.lane(), log, on_step: None, examiner: None, now_ns: 0 }
    }

    /// Has every batch examined.
    pub fn examined(self, examiner: Examiner) -> LoggedLane {
        LoggedLane { examiner: Some(examiner), ..self }
    }

    /// Sets the callback that is called from now on.
    pub fn on_step(&mut self, on_step: OnStep) {
        self.on_step = Some(on_step);
    }

    /// Returns the log since the last call.
    pub fn take_log(&self) -> Log {
        std::mem::take(&mut *self.log())
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no thread panics while it holds the lock")
    }

    fn step(&mut self) {
        let step = {
            let mut log = self.log();
            log.since_change = true;
            log.steps += 1;
            log.steps - 1
        };
        if let Some(on_step) = &mut self.on_step {
            on_step(step);
        }
    }

    /// Executes `verb`, which is of one word, and logs the change.
    fn change(&mut self, addr: Addr, mut verb: Verb<'_>) -> Result<(), FabricError> {
        let memory = self.region.memory();
        let within = (addr.offset() / WORD_BYTES) as usize;
        let cell = &memory.space(addr.space())[within];
        let before = cell.load(Ordering::Relaxed);
        execute(memory, &mut verb)?;
        let value = cell.load(Ordering::Relaxed);
        if before != value {
            let word = within + if addr.space() == Space::Device { memory.main.len() } else { 0 };
            let mut log = self.log();
            let is_step = std::mem::take(&mut log.since_change);
            log.written.push(Written { word, value, is_step });
        }
        Ok(())
    }

    fn run(&mut self, verb: &mut Verb<'_>) -> Result<(), FabricError> {
        self.step();
        let unit = self.region.caps().atomic_write_unit;
        match verb {
            Verb::Read { .. } => execute(self.region.memory(), verb),
            Verb::Write { addr, words } => {
                for (i, word) in words.iter().enumerate() {
                    if i > 0 && (i as u64 * WORD_BYTES).is_multiple_of(unit) {
                        self.step();
                    }
                    let addr = addr.add_words(i as u64);
                    self.change(addr, Verb::Write { addr, words: std::slice::from_ref(word) })?;
                }
                Ok(())
            }
            Verb::Cas { addr, compare, swap, found } => {
                let (addr, compare, swap) = (*addr, *compare, *swap);
                self.change(addr, Verb::Cas { addr, compare, swap, found })
            }
            Verb::MaskedCas { addr, compare, swap, compare_mask, swap_mask, found } => {
                let (addr, compare, swap) = (*addr, *compare, *swap);
                let (compare_mask, swap_mask) = (*compare_mask, *swap_mask);
                self.change(addr, Verb::MaskedCas { addr, compare, swap, compare_mask, swap_mask, found })
            }
            Verb::FetchAdd { addr, add, found } => {
                let (addr, add) = (*addr, *add);
                self.change(addr, Verb::FetchAdd { addr, add, found })
            }
        }
    }
}

impl Lane for LoggedLane {
    delegate!(lane: caps, traffic, traffic_mut, poll, forget, poll_drain);

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        if let Some(examiner) = &self.examiner {
            examiner.see(batch);
        }
        let checked = check(self.region.memory(), self.region.caps(), batch);
        Submitted::Done(checked.and_then(|()| batch.iter_mut().try_for_each(|verb| self.run(verb))))
    }

    fn poll_pause(&mut self, until_ns: u64, _: &mut Context<'_>) -> Poll<()> {
        self.now_ns = self.now_ns.max(until_ns);
        Poll::Ready(())
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns += 1;
        self.now_ns
    }
}
