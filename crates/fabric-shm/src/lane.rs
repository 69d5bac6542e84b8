//! Lanes over mapped words: a batch is executed by the thread that submits it.
//!
//! Invariants: no batch is in flight after `submit`; a batch is refused as a whole, before its first effect; no lane
//! accesses the region in a forked child.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use guira_fabric::memory::{self, AtomicU64, Memory};
use guira_fabric::process::Process;
use guira_fabric::{Addr, Caps, FabricError, Lane, LocalLane, MaskedCas, Profile, Submitted, Traffic, Verb, Waiting};

use crate::domain::WritingLane;
use crate::file::name::{NameLoss, RegionName};
use crate::mapping::Mapped;
use crate::region::{Access, Shared};

/// A lane of a [`crate::ShmRegion`]. It can move between threads and keeps the mapping alive.
pub struct ShmLane {
    mapped: Mapped,
    name: Arc<RegionName>,
    process: Process,
    access: Access,
    waiting: Waiting,
    epoch: Instant,
    traffic: Traffic,
    caps: Caps,
    /// The region, if it has holes for which this lane reserves memory.
    reserving: Option<Arc<Shared>>,
    /// Held by a lane that may change the region, so that it is not claimed for a device meanwhile.
    _writing: Option<WritingLane>,
}

/// The time for which a waiting thread spins. A lock is usually held for less, and waking a sleeping thread costs more.
const SPIN_NS: u64 = 2_000;
/// The time after which a waiting thread sleeps instead of yielding: about the time by which the kernel oversleeps.
const YIELD_NS: u64 = 50_000;
/// The longest single sleep.
const MAX_SLEEP_NS: u64 = 1_000_000;

/// The longest batch whose execution is unrolled.
const MAX_UNROLLED: usize = 6;

// The limits that `check` enforces beyond the bounds of each verb and the length of the batch do not apply here, so the
// execution of a single verb checks all of it.
const _: () =
    assert!(Profile::Shm.caps().max_verb_words == usize::MAX && Profile::Shm.caps().max_batch >= MAX_UNROLLED);
const _: () = assert!(matches!(Profile::Shm.caps().masked_cas, MaskedCas::Software));

/// Checks and executes the given verbs without a loop. A batch of known length that is built where it is posted then
/// never exists in memory: each verb compiles to the instructions of its kind, a third of those of a loop that branches
/// on the kind.
macro_rules! unrolled {
    ($memory:expr, $($verb:ident),+) => {{
        $(check_and_prefetch_one($memory, $verb)?;)+
        $(memory::execute($memory, $verb)?;)+
        Ok(())
    }};
}

impl ShmLane {
    /// Opens a lane with the access `access`; while the region is claimed for a device, it only reads.
    pub(crate) fn new(mapped: Mapped, name: Arc<RegionName>, caps: Caps, access: Access, process: Process) -> ShmLane {
        let (waiting, traffic) = (Waiting::default(), Traffic::default());
        let writing = if access == Access::ReadWrite { WritingLane::open(&mapped) } else { None };
        let access = if writing.is_some() { Access::ReadWrite } else { Access::ReadOnly };
        ShmLane {
            mapped,
            name,
            process,
            access,
            waiting,
            epoch: epoch(),
            traffic,
            caps,
            reserving: None,
            _writing: writing,
        }
    }

    /// Returns the same lane, which reserves memory of `region`.
    pub(crate) fn reserving(self, region: Arc<Shared>) -> ShmLane {
        ShmLane { reserving: Some(region), ..self }
    }

    /// Returns the same lane, waiting in another way.
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> ShmLane {
        self.waiting = waiting;
        self
    }

    /// Whether this process was forked after the region was opened; see [`crate::ShmRegion::is_stale`].
    #[inline(always)]
    pub fn is_stale(&self) -> bool {
        !self.process.is_this()
    }

    /// Returns the recorded loss of the region's name: [`RegionName::loss`]. Batches are executed all the same.
    #[inline(always)]
    pub fn name_loss(&self) -> Option<NameLoss> {
        self.name.loss()
    }

    #[inline(always)]
    fn run(&self, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
        if self.is_stale() {
            return Err(FabricError::Forked);
        }
        if self.access == Access::ReadOnly {
            refuse_changes(batch)?;
        }
        let memory = self.mapped.memory();
        match batch {
            [verb] => memory::execute(memory, verb),
            [a, b] => unrolled!(memory, a, b),
            [a, b, c] => unrolled!(memory, a, b, c),
            [a, b, c, d] => unrolled!(memory, a, b, c, d),
            [a, b, c, d, e] => unrolled!(memory, a, b, c, d, e),
            [a, b, c, d, e, f] => unrolled!(memory, a, b, c, d, e, f),
            _ => {
                check_and_prefetch(memory, &self.caps, batch)?;
                batch.iter_mut().try_for_each(|verb| memory::execute(memory, verb))
            }
        }
    }

    fn wait_in_place(&self, until_ns: u64) {
        let start_ns = self.clock_ns();
        loop {
            let now_ns = self.clock_ns();
            if now_ns >= until_ns {
                return;
            }
            match now_ns - start_ns {
                0..SPIN_NS => std::hint::spin_loop(),
                SPIN_NS..YIELD_NS => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_nanos(MAX_SLEEP_NS.min(until_ns - now_ns))),
            }
        }
    }

    #[inline]
    fn clock_ns(&self) -> u64 {
        // The nanoseconds of 584 years fit into 64 bits.
        self.epoch.elapsed().as_nanos() as u64
    }
}

/// Returns the time at which the clock of this process's lanes started.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

#[inline(always)]
fn refuse_changes(batch: &[Verb<'_>]) -> Result<(), FabricError> {
    match batch.iter().find(|verb| !matches!(verb, Verb::Read { .. })) {
        None => Ok(()),
        Some(verb) => Err(FabricError::ReadOnly { verb: verb.name() }),
    }
}

/// Checks every verb before the first takes effect, and prefetches the words that the batch will read.
#[inline(always)]
fn check_and_prefetch(memory: Memory<'_>, caps: &Caps, batch: &[Verb<'_>]) -> Result<(), FabricError> {
    if batch.len() > caps.max_batch {
        return memory::check(memory, caps, batch);
    }
    batch.iter().try_for_each(|verb| check_and_prefetch_one(memory, verb))
}

#[inline(always)]
fn check_and_prefetch_one(memory: Memory<'_>, verb: &Verb<'_>) -> Result<(), FabricError> {
    let range = memory.range(verb)?;
    if let Verb::Read { .. } = verb {
        memory::prefetch(range);
    }
    Ok(())
}

impl LocalLane for ShmLane {
    /// Executes the batch. Inlined into every operation, so that its verbs never exist in memory and a READ compiles to
    /// the copy of its words.
    #[inline(always)]
    fn execute(&mut self, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
        self.run(batch)
    }

    #[inline(always)]
    fn read<T>(&mut self, addr: Addr, words: usize, read: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, FabricError> {
        if self.is_stale() {
            return Err(FabricError::Forked);
        }
        Ok(memory::read_with(self.mapped.memory().words("READ", addr, words)?, read))
    }

    #[inline(always)]
    fn write(&mut self, addr: Addr, words: usize, write: impl FnOnce(&[AtomicU64])) -> Result<(), FabricError> {
        if self.is_stale() {
            return Err(FabricError::Forked);
        }
        if self.access == Access::ReadOnly {
            return Err(FabricError::ReadOnly { verb: "WRITE" });
        }
        memory::write_with(self.mapped.memory().words("WRITE", addr, words)?, write);
        Ok(())
    }
}

impl Lane for ShmLane {
    #[inline(always)]
    fn caps(&self) -> &Caps {
        &self.caps
    }

    #[inline(always)]
    fn is_local(&self) -> bool {
        const { Profile::Shm.caps().local }
    }

    #[inline(always)]
    fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    #[inline(always)]
    fn traffic_mut(&mut self) -> &mut Traffic {
        &mut self.traffic
    }

    #[inline(always)]
    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        Submitted::Done(self.run(batch))
    }

    #[cold]
    fn poll(&mut self, _batch: &mut [Verb<'_>], _cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        Poll::Ready(Err(FabricError::Backend("no batch is ever in flight on a shared-memory lane".to_owned())))
    }

    fn forget(&mut self) {}

    #[inline]
    fn poll_drain(&mut self, _found: &mut [u64], _cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        Poll::Ready(Ok(0))
    }

    #[inline(always)]
    fn prefetch(&self, addr: Addr, words: usize) {
        let first = addr.word() as usize;
        if let Some(range) = self.mapped.memory().space(addr.space()).get(first..first.wrapping_add(words)) {
            memory::prefetch(range);
        }
    }

    fn poll_reserve(&mut self, bytes: Range<u64>, _cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        if self.is_stale() {
            return Poll::Ready(Err(FabricError::Forked));
        }
        Poll::Ready(self.reserving.as_ref().map_or(Ok(()), |region| region.reserve(bytes, u64::MAX).map(|_| ())))
    }

    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        match self.waiting {
            Waiting::InPlace => self.wait_in_place(until_ns),
            Waiting::Cooperative if self.clock_ns() < until_ns => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Waiting::Cooperative => {}
        }
        Poll::Ready(())
    }

    #[inline]
    fn now_ns(&mut self) -> u64 {
        self.clock_ns()
    }
}
