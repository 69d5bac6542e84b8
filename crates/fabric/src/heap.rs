//! The in-process backend: a region on the heap, for tests, tools and models.
//!
//! Besides executing verbs it can misbehave on purpose: it imitates the [`Caps`] of any network, delays the completion
//! of batches so that futures can be dropped while they are in flight, and calls a hook at every step at which a client
//! could die: before each verb and before each word of a WRITE.
//!
//! Invariants: a batch that is submitted while another is in flight is refused; a dead lane refuses every batch.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use crate::lane::{read_copied, write_copied};
use crate::memory::{self, AtomicU64, Memory, SharedWords};
use crate::{
    Addr, Caps, Effect, FabricError, Lane, LocalLane, Region, Sent, SlotHold, Space, Submitted, Traffic, Verb,
    WORD_BYTES,
};

/// Bytes of a huge page: 2 MiB on x86-64 and on ARM with pages of 4 KiB.
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes of a cache line of most processors.
const LINE_BYTES: usize = 64;

/// A region in this process's memory. Clones share the bytes.
#[derive(Clone)]
pub struct HeapRegion {
    shared: Arc<Shared>,
    caps: Caps,
}

struct Shared {
    main: Words,
    device: Words,
    alive: Mutex<HashSet<u16>>,
    epoch: Instant,
}

impl Shared {
    fn alive(&self) -> MutexGuard<'_, HashSet<u16>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct HeapHold {
    shared: Arc<Shared>,
    slot: u16,
}

impl Drop for HeapHold {
    fn drop(&mut self) {
        self.shared.alive().remove(&self.slot);
    }
}

impl HeapRegion {
    /// Creates a zeroed region of `main_bytes` and `device_bytes` (each rounded up to whole words) with the
    /// capabilities `caps`.
    pub fn new(main_bytes: u64, device_bytes: u64, caps: Caps) -> HeapRegion {
        let shared = Shared {
            main: Words::zeroed(main_bytes.div_ceil(WORD_BYTES) as usize),
            device: Words::zeroed(device_bytes.div_ceil(WORD_BYTES) as usize),
            alive: Mutex::default(),
            epoch: Instant::now(),
        };
        HeapRegion { shared: Arc::new(shared), caps }
    }

    /// Copies the bytes to a region of their own, with the same capabilities and without held slots. Bytes that are
    /// changed meanwhile may be copied before or after the change, word by word.
    #[must_use]
    pub fn copied(&self) -> HeapRegion {
        let copy = HeapRegion::new(self.main_bytes(), self.device_bytes(), self.caps);
        let (from, to) = (self.memory(), copy.memory());
        for (from, to) in [(from.main, to.main), (from.device, to.device)] {
            for (from, to) in from.iter().zip(to) {
                to.store(from.load(memory::Ordering::Relaxed), memory::Ordering::Relaxed);
            }
        }
        copy
    }

    /// Returns a handle to the same bytes with other capabilities.
    pub fn with_caps(&self, caps: Caps) -> HeapRegion {
        HeapRegion { shared: Arc::clone(&self.shared), caps }
    }

    /// Returns the words of `space`, to be registered with a device. They stay where they are as long as the result
    /// exists.
    pub fn words(&self, space: Space) -> SharedWords {
        Arc::new(SpaceWords { shared: Arc::clone(&self.shared), space })
    }

    /// Returns the bytes themselves, for tests that damage or inspect them.
    pub fn memory(&self) -> Memory<'_> {
        Memory { main: self.shared.main.get(), device: self.shared.device.get() }
    }
}

/// The words of a space. They begin with a cache line, as those of a memory node do: a row of 128 bytes then lies in two
/// lines and not in three, of which [`memory::prefetch`] would bring two.
struct Words {
    allocated: Box<[AtomicU64]>,
    used: Range<usize>,
}

impl Words {
    fn zeroed(words: usize) -> Words {
        let spare = LINE_BYTES / WORD_BYTES as usize;
        let allocated = zeroed(words + spare);
        let first = allocated.as_ptr().align_offset(LINE_BYTES).min(spare);
        Words { allocated, used: first..first + words }
    }

    #[inline(always)]
    fn get(&self) -> &[AtomicU64] {
        &self.allocated[self.used.clone()]
    }
}

/// Returns zeroed words, in huge pages if there are many: large tables are read at random, and the lookups of small
/// pages would take as long as the reads.
#[cfg(not(loom))]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    const _: () = assert!(size_of::<AtomicU64>() == size_of::<u64>() && align_of::<AtomicU64>() == align_of::<u64>());
    // Allocated as zeroed memory, which no page is touched for.
    let mut zeroed = vec![0_u64; words].into_boxed_slice();
    prefer_huge_pages(&mut zeroed);
    // SAFETY: an atomic word has the size, the alignment and the valid values of a word, so that this is the same
    // allocation; it has no other owner.
    unsafe { Box::from_raw(Box::into_raw(zeroed) as *mut [AtomicU64]) }
}

/// Asks the kernel to map `words` as huge pages. Without them everything works the same, only slower.
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
fn prefer_huge_pages(words: &mut [u64]) {
    let start = words.as_mut_ptr() as usize;
    let (first, end) = (start.next_multiple_of(HUGE_PAGE_BYTES), start + size_of_val(words));
    let bytes = end.saturating_sub(first) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if bytes > 0 {
        // SAFETY: the range consists of whole pages of this allocation, and the advice does not change its contents.
        let _ = unsafe { libc::madvise(first as *mut libc::c_void, bytes, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(all(not(loom), any(miri, not(target_os = "linux"))))]
fn prefer_huge_pages(_words: &mut [u64]) {}

#[cfg(loom)]
fn zeroed(words: usize) -> Box<[AtomicU64]> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

/// The words of one space.
struct SpaceWords {
    shared: Arc<Shared>,
    space: Space,
}

impl AsRef<[AtomicU64]> for SpaceWords {
    fn as_ref(&self) -> &[AtomicU64] {
        match self.space {
            Space::Main => self.shared.main.get(),
            Space::Device => self.shared.device.get(),
        }
    }
}

impl Region for HeapRegion {
    type Lane = HeapLane;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn main_bytes(&self) -> u64 {
        self.shared.main.get().len() as u64 * WORD_BYTES
    }

    fn device_bytes(&self) -> u64 {
        self.shared.device.get().len() as u64 * WORD_BYTES
    }

    fn lane(&self) -> HeapLane {
        HeapLane {
            region: self.clone(),
            traffic: Traffic::default(),
            pace: Pace::Immediate,
            hook: None,
            in_flight: None,
            dead: false,
        }
    }

    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        let taken = self.shared.alive().insert(slot);
        Ok(taken.then(|| SlotHold::new(HeapHold { shared: Arc::clone(&self.shared), slot })))
    }
}

/// The time at which a lane's batches take effect and complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At once, inside `submit`.
    Immediate,
    /// After this many polls; a forgotten batch takes effect when its lane is drained.
    Deferred(u32),
}

/// A boundary at which a client can be preempted or die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Before verb `index` of the batch.
    Verb {
        /// The verb's index in the batch.
        index: usize,
    },
    /// Before word `word` (not the first) of the WRITE or READ at `index`.
    Word {
        /// The verb's index in the batch.
        index: usize,
        /// The word's index within the verb.
        word: usize,
    },
    /// After the last verb, before the client learns of it.
    Completion,
}

/// The decision of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The client continues.
    Continue,
    /// The client dies here: earlier effects remain, and no later verb is executed.
    Die,
}

/// A function that is called at every [`Step`].
pub type Hook = Box<dyn FnMut(Step) -> Next + Send>;

/// A lane of a [`HeapRegion`].
pub struct HeapLane {
    region: HeapRegion,
    traffic: Traffic,
    pace: Pace,
    hook: Option<Hook>,
    in_flight: Option<Batch>,
    dead: bool,
}

/// A batch in flight, with its data copied out of the caller's buffers.
struct Batch {
    verbs: Vec<Sent>,
    polls_left: u32,
    forgotten: bool,
}

impl HeapLane {
    /// Returns the same lane with completions at another pace.
    #[must_use]
    pub fn paced(mut self, pace: Pace) -> HeapLane {
        self.pace = pace;
        self
    }

    /// Returns the same lane with `hook` called at every step.
    #[must_use]
    pub fn hooked(mut self, hook: Hook) -> HeapLane {
        self.hook = Some(hook);
        self
    }

    /// Whether a hook killed this lane's client.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Refuses a batch that cannot be executed now.
    fn check(&self, batch: &[Verb<'_>]) -> Result<(), FabricError> {
        if self.dead {
            return Err(FabricError::Died { effect: Effect::None });
        }
        if self.in_flight.is_some() {
            return Err(FabricError::Backend("a batch is still in flight on this lane".to_owned()));
        }
        memory::check(self.region.memory(), &self.region.caps, batch)
    }

    #[inline(always)]
    fn run(&mut self, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
        let memory = self.region.memory();
        match &mut self.hook {
            None => batch.iter_mut().try_for_each(|verb| memory::execute(memory, verb)),
            Some(hook) => run_stepped(memory, batch, hook).inspect_err(|_| self.dead = true),
        }
    }

    fn finish(&mut self) -> (Batch, Result<(), FabricError>) {
        let mut batch = self.in_flight.take().expect("the caller checked that a batch is in flight");
        let mut verbs: Vec<Verb<'_>> = batch.verbs.iter_mut().map(Sent::as_verb).collect();
        let result = self.run(&mut verbs);
        drop(verbs);
        (batch, result)
    }
}

fn run_stepped(memory: Memory<'_>, batch: &mut [Verb<'_>], hook: &mut Hook) -> Result<(), FabricError> {
    let mut effect = Effect::None;
    let mut step = |at: Step, effect: Effect| match hook(at) {
        Next::Continue => Ok(()),
        Next::Die => Err(FabricError::Died { effect }),
    };
    for (index, verb) in batch.iter_mut().enumerate() {
        step(Step::Verb { index }, effect)?;
        match verb {
            Verb::Read { addr, into } => {
                for (word, cell) in into.iter_mut().enumerate() {
                    if word > 0 {
                        step(Step::Word { index, word }, effect)?;
                    }
                    let into = std::slice::from_mut(cell);
                    memory::execute(memory, &mut Verb::Read { addr: addr.add_words(word as u64), into })?;
                }
            }
            Verb::Write { addr, words } => {
                for (word, value) in words.iter().enumerate() {
                    if word > 0 {
                        step(Step::Word { index, word }, effect)?;
                    }
                    let words = std::slice::from_ref(value);
                    memory::execute(memory, &mut Verb::Write { addr: addr.add_words(word as u64), words })?;
                    effect = Effect::Unknown;
                }
            }
            atomic => {
                memory::execute(memory, atomic)?;
                effect = Effect::Unknown;
            }
        }
    }
    step(Step::Completion, effect)
}

/// Executes each batch at once, whatever the lane's [`Pace`], because the batch is not sent.
impl LocalLane for HeapLane {
    fn execute(&mut self, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.check(batch)?;
        self.run(batch)
    }

    /// Copies the words first where a hook is called before each of them.
    fn read<T>(&mut self, addr: Addr, words: usize, read: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, FabricError> {
        if self.hook.is_some() || words > self.region.caps.max_verb_words {
            return read_copied(self, addr, words, read);
        }
        self.check(&[])?;
        Ok(memory::read_with(self.region.memory().words("READ", addr, words)?, read))
    }

    /// Copies the words first where a hook is called before each of them.
    fn write(&mut self, addr: Addr, words: usize, write: impl FnOnce(&[AtomicU64])) -> Result<(), FabricError> {
        if self.hook.is_some() || words > self.region.caps.max_verb_words {
            return write_copied(self, addr, words, write);
        }
        self.check(&[])?;
        memory::write_with(self.region.memory().words("WRITE", addr, words)?, write);
        Ok(())
    }
}

impl Lane for HeapLane {
    #[inline(always)]
    fn caps(&self) -> &Caps {
        &self.region.caps
    }

    #[inline(always)]
    fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    #[inline(always)]
    fn traffic_mut(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        if let Err(error) = self.check(batch) {
            return Submitted::Done(Err(error));
        }
        match self.pace {
            Pace::Immediate => Submitted::Done(self.run(batch)),
            Pace::Deferred(polls_left) => {
                let verbs = batch.iter().map(Sent::copy_of).collect();
                self.in_flight = Some(Batch { verbs, polls_left, forgotten: false });
                Submitted::InFlight
            }
        }
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        let Some(in_flight) = &mut self.in_flight else {
            return Poll::Ready(Err(FabricError::Backend("no batch is in flight on this lane".to_owned())));
        };
        if in_flight.polls_left > 0 {
            in_flight.polls_left -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (sent, result) = self.finish();
        for (sent, verb) in sent.verbs.iter().zip(batch) {
            sent.copy_to(verb);
        }
        Poll::Ready(result)
    }

    fn forget(&mut self) {
        if let Some(batch) = &mut self.in_flight {
            batch.forgotten = true;
        }
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        match &mut self.in_flight {
            None => return Poll::Ready(Ok(0)),
            Some(batch) if batch.polls_left > 0 => {
                batch.polls_left -= 1;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(_) => {}
        }
        let (batch, result) = self.finish();
        if let Err(error) = result {
            return Poll::Ready(Err(error));
        }
        let words: Vec<u64> = batch.verbs.iter().filter_map(Sent::found).collect();
        for (into, word) in found.iter_mut().zip(&words) {
            *into = *word;
        }
        Poll::Ready(Ok(words.len()))
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        if self.now_ns() >= until_ns {
            return Poll::Ready(());
        }
        #[cfg(not(loom))]
        std::thread::yield_now();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn now_ns(&mut self) -> u64 {
        u64::try_from(self.region.shared.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::Waker;

    use super::*;
    use crate::{Profile, post, read_in_place, write_in_place};

    fn region() -> HeapRegion {
        HeapRegion::new(256, 64, Profile::Tcp.caps())
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
        }
    }

    #[test]
    fn a_deferred_batch_completes_after_its_polls() {
        let region = region();
        let mut lane = region.lane().paced(Pace::Deferred(3));
        let (mut into, mut found) = ([0; 2], 9);
        let mut batch = [
            Verb::Write { addr: Addr::main(8), words: &[5, 6] },
            Verb::Read { addr: Addr::main(8), into: &mut into },
            Verb::MaskedCas {
                addr: Addr::device(0),
                compare: 0,
                swap: 7,
                compare_mask: 7,
                swap_mask: 7,
                found: &mut found,
            },
        ];
        block_on(post(&mut lane, &mut batch)).unwrap();
        assert_eq!((into, found), ([5, 6], 0));
        assert_eq!(lane.traffic().round_trips, 1);
    }

    #[test]
    fn a_forgotten_batch_still_takes_effect_and_reports_its_atomics() {
        let region = region();
        let mut lane = region.lane().paced(Pace::Deferred(2));
        let mut found = 0;
        {
            let mut batch = [
                Verb::FetchAdd { addr: Addr::device(8), add: 3, found: &mut found },
                Verb::Write { addr: Addr::main(0), words: &[1] },
            ];
            let mut posted = pin!(post(&mut lane, &mut batch));
            assert!(posted.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        let busy = lane.submit(&mut [Verb::Write { addr: Addr::main(0), words: &[2] }]);
        assert!(matches!(busy, Submitted::Done(Err(_))), "a lane has one batch in flight");
        let mut words = [77; 4];
        let drained = block_on(std::future::poll_fn(|cx| lane.poll_drain(&mut words, cx))).unwrap();
        assert_eq!((drained, words[0], words[1]), (1, 0, 77));
        assert_eq!(region.memory().main[0].load(memory::Ordering::Relaxed), 1);
        assert_eq!(region.memory().device[1].load(memory::Ordering::Relaxed), 3);
    }

    #[test]
    fn a_hook_can_kill_at_every_step() {
        let steps = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&steps);
        let record = move |step| {
            seen.lock().unwrap().push(step);
            Next::Continue
        };
        let mut lane = region().lane().hooked(Box::new(record));
        block_on(post(&mut lane, &mut [Verb::Write { addr: Addr::main(0), words: &[1, 2] }])).unwrap();
        let all = steps.lock().unwrap().clone();
        assert_eq!(all, [Step::Verb { index: 0 }, Step::Word { index: 0, word: 1 }, Step::Completion]);
        for (at, died) in all.iter().enumerate() {
            let region = region();
            let mut count = 0;
            let die = move |_| {
                count += 1;
                if count > at { Next::Die } else { Next::Continue }
            };
            let mut lane = region.lane().hooked(Box::new(die));
            let error = block_on(post(&mut lane, &mut [Verb::Write { addr: Addr::main(0), words: &[1, 2] }]));
            assert_eq!(error.unwrap_err().effect(), if at == 0 { Effect::None } else { Effect::Unknown }, "{died:?}");
            let written = region.memory().main.iter().filter(|w| w.load(memory::Ordering::Relaxed) != 0).count();
            assert_eq!(written, at.min(2));
            assert!(lane.is_dead());
        }
    }

    #[test]
    fn spaces_begin_with_a_cache_line() {
        for bytes in [0, 8, 64, 72, 4096, if cfg!(miri) { 8192 } else { 5 << 20 }] {
            let region = HeapRegion::new(bytes, bytes, Profile::Tcp.caps());
            for words in [region.memory().main, region.memory().device] {
                assert_eq!(words.as_ptr() as usize % LINE_BYTES, 0, "{bytes} bytes");
                assert_eq!(words.len() as u64 * WORD_BYTES, bytes);
            }
        }
    }

    /// A copy has the same bytes, its own changes and no held slot, also if it is large enough for huge pages.
    #[test]
    fn a_copy_goes_its_own_way() {
        // The larger one lies in huge pages, which Miri has not.
        let large = if cfg!(miri) { 4096 } else { 5 << 20 };
        for main_bytes in [64, large] {
            let region = HeapRegion::new(main_bytes, 16, Profile::Tcp.caps());
            assert!(region.memory().main.iter().all(|word| word.load(memory::Ordering::Relaxed) == 0));
            let (main, device) = (region.memory().main.last().unwrap(), &region.memory().device[1]);
            main.store(7, memory::Ordering::Relaxed);
            device.store(8, memory::Ordering::Relaxed);
            let _hold = region.hold(3).unwrap().expect("free");
            let copy = region.copied();
            main.store(9, memory::Ordering::Relaxed);
            let found = (copy.memory().main.last().unwrap(), &copy.memory().device[1]);
            assert_eq!([found.0, found.1].map(|word| word.load(memory::Ordering::Relaxed)), [7, 8]);
            assert_eq!((copy.main_bytes(), copy.caps()), (main_bytes, region.caps()));
            assert!(copy.hold(3).unwrap().is_some());
        }
    }

    /// Returns a hook that lets every step happen, and how many there were.
    fn counted_steps() -> (Arc<Mutex<u32>>, Hook) {
        let steps = Arc::new(Mutex::new(0));
        let seen = Arc::clone(&steps);
        let count = move |_| {
            *seen.lock().expect("no hook panics") += 1;
            Next::Continue
        };
        (steps, Box::new(count))
    }

    /// A READ in place samples the words that a READ copies, is refused where that is, and is counted like that; a hook
    /// is called before each of its words.
    #[test]
    fn words_are_read_in_place() {
        let region = region();
        region.memory().main[3].store(7, memory::Ordering::Relaxed);
        let load = |words: &[AtomicU64]| words.iter().map(memory::Word::load).collect::<Vec<_>>();
        let (steps, count) = counted_steps();
        for mut lane in [region.lane(), region.lane().hooked(count)] {
            let before = *lane.traffic();
            assert_eq!(read_in_place(&mut lane, Addr::main(16), 3, load).unwrap(), [0, 7, 0]);
            let traffic = lane.traffic().since(&before);
            assert_eq!((traffic.round_trips, traffic.verbs.reads, traffic.bytes_in), (1, 1, 24));
            for (addr, words) in [(Addr::main(16), 31), (Addr::main(12), 1), (Addr::main(0), (1 << 17) + 1)] {
                let mut into = vec![0; words];
                let read = Verb::Read { addr, into: &mut into };
                let refused = lane.execute(&mut [read]).unwrap_err();
                assert_eq!(read_in_place(&mut lane, addr, words, load).unwrap_err(), refused);
            }
        }
        assert_eq!(*steps.lock().unwrap(), 4, "before each word, and at the end");
    }

    /// A WRITE in place stores the words that a WRITE stores, is refused where that is, and is counted like that, without
    /// a round trip; a hook is called before each of its words.
    #[test]
    fn words_are_written_in_place() {
        let store = |words: &[AtomicU64]| {
            for (value, word) in (7..).zip(words) {
                word.store(value, memory::Ordering::Relaxed);
            }
        };
        let (steps, count) = counted_steps();
        for hook in [None, Some(count)] {
            let region = region();
            let mut lane = hook.into_iter().fold(region.lane(), HeapLane::hooked);
            let before = *lane.traffic();
            write_in_place(&mut lane, Addr::main(16), 3, store).unwrap();
            let traffic = lane.traffic().since(&before);
            assert_eq!((traffic.round_trips, traffic.verbs.writes, traffic.bytes_out), (0, 1, 24));
            let stored = region.memory().main[1..6].iter().map(memory::Word::load).collect::<Vec<_>>();
            assert_eq!(stored, [0, 7, 8, 9, 0]);
            for (addr, words) in [(Addr::main(16), 31), (Addr::main(12), 1), (Addr::main(0), (1 << 17) + 1)] {
                let words = vec![0; words];
                let refused = lane.execute(&mut [Verb::Write { addr, words: &words }]).unwrap_err();
                assert_eq!(write_in_place(&mut lane, addr, words.len(), store).unwrap_err(), refused);
            }
        }
        assert_eq!(*steps.lock().unwrap(), 4, "before each word, and at the end");
    }

    #[test]
    fn a_slot_has_one_hold() {
        let region = region();
        let hold = region.hold(3).unwrap().expect("free");
        assert!(region.hold(3).unwrap().is_none());
        assert!(region.hold(4).unwrap().is_some());
        drop(hold);
        assert!(region.hold(3).unwrap().is_some());
    }
}
