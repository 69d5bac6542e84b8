//! Lanes, each with one logical owner and one batch in flight, and the only two futures that a protocol awaits.

use std::future::Future;
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::memory::{AtomicU64, Word};
use crate::{Addr, Caps, FabricError, Traffic, Verb};

/// The outcome of [`Lane::submit`].
#[derive(Debug)]
pub enum Submitted {
    /// The batch was executed (or refused) in place.
    Done(Result<(), FabricError>),
    /// The batch was sent; [`Lane::poll`] reports its completion.
    InFlight,
}

/// The way in which a lane waits: for the batch in flight, for another client, or for a pause to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// The thread waits: inside of `poll`, or because its task is woken at once and polls again. For blocking callers;
    /// fastest with one lane for each thread.
    #[default]
    InPlace,
    /// The task gives its thread to others meanwhile, and is woken on any executor. For many lanes on a thread.
    Cooperative,
}

/// A channel for verbs from one logical owner to a region, with at most one batch in flight. Many lanes may share a
/// connection or queue pair.
///
/// Backends touch a batch's buffers only inside `submit` and `poll`. Lanes are `Send`, so that the futures of
/// operations are, and any executor can run them.
pub trait Lane: Send {
    /// Returns the capabilities of the region.
    fn caps(&self) -> &Caps;

    /// Whether a round trip costs nothing. Equal to [`Caps::local`]; lanes override it with a constant for the
    /// optimizer.
    #[inline(always)]
    fn is_local(&self) -> bool {
        self.caps().local
    }

    /// Returns the lane's counters.
    fn traffic(&self) -> &Traffic;

    /// Returns the lane's counters, for updating them.
    fn traffic_mut(&mut self) -> &mut Traffic;

    /// Executes the batch, or copies out all that it sends. Keeps no pointer into it. A refused batch has no effect.
    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted;

    /// Drives the transport. On completion, copies the results into `batch`, which must be the submitted one.
    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>>;

    /// Informs the lane that the future awaiting the batch in flight was dropped. The verbs still take effect, unless
    /// the lane had sent none of them: then it forgets the batch, as if it had refused it. Until [`Lane::poll_drain`]
    /// is ready, nothing else may be submitted.
    fn forget(&mut self);

    /// Waits for the forgotten batch. Fills `found` with the words that its atomics found, in batch order, as many as
    /// fit, and returns the number of atomics. Ready with 0 if there is no forgotten batch.
    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>>;

    /// Hints that the `words` words at `addr` are about to be read. Costs no round trip.
    #[inline(always)]
    fn prefetch(&self, _addr: Addr, _words: usize) {}

    /// Makes memory for `bytes` of the main space, where a region has addresses without memory; does nothing where it
    /// has. No other verb may touch bytes without memory. If the future is dropped, there may be memory all the same.
    ///
    /// # Errors
    /// `NoMemory`, or others with effect `None`: nothing was changed.
    fn poll_reserve(&mut self, _bytes: Range<u64>, _cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        Poll::Ready(Ok(()))
    }

    /// Waits until the clock of [`Lane::now_ns`] reaches `until_ns`: spins, sleeps, arms a timer, or advances virtual
    /// time.
    fn poll_pause(&mut self, until_ns: u64, cx: &mut Context<'_>) -> Poll<()>;

    /// Returns the time on the lane's own monotonic clock, in nanoseconds.
    fn now_ns(&mut self) -> u64;
}

/// A lane whose batches are executed by the submitting thread: no batch is ever in flight.
pub trait LocalLane: Lane {
    /// Executes the batch without counting it; see [`post_in_place`].
    ///
    /// # Errors
    /// The batch was refused, and had no effect.
    fn execute(&mut self, batch: &mut [Verb<'_>]) -> Result<(), FabricError>;

    /// Executes a READ of `words` words at `addr` without counting it; see [`read_in_place`].
    ///
    /// # Errors
    /// Same as [`LocalLane::execute`].
    fn read<T>(&mut self, addr: Addr, words: usize, read: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, FabricError> {
        read_copied(self, addr, words, read)
    }

    /// Executes a WRITE of `words` words at `addr` without counting it; see [`write_in_place`].
    ///
    /// # Errors
    /// Same as [`LocalLane::execute`].
    fn write(&mut self, addr: Addr, words: usize, write: impl FnOnce(&[AtomicU64])) -> Result<(), FabricError> {
        write_copied(self, addr, words, write)
    }
}

/// Same as [`LocalLane::write`], by a WRITE from a buffer, for lanes that do more at a WRITE than to store its words.
pub(crate) fn write_copied<L: LocalLane + ?Sized>(
    lane: &mut L,
    addr: Addr,
    words: usize,
    write: impl FnOnce(&[AtomicU64]),
) -> Result<(), FabricError> {
    let from: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
    write(&from);
    let words: Vec<u64> = from.iter().map(Word::load).collect();
    lane.execute(&mut [Verb::Write { addr, words: &words }])
}

/// Same as [`LocalLane::read`], by a READ into a buffer, for lanes that do more at a READ than to sample its words.
pub(crate) fn read_copied<L: LocalLane + ?Sized, T>(
    lane: &mut L,
    addr: Addr,
    words: usize,
    read: impl FnOnce(&[AtomicU64]) -> T,
) -> Result<T, FabricError> {
    let mut into = vec![0; words];
    lane.execute(&mut [Verb::Read { addr, into: &mut into }])?;
    Ok(read(&into.into_iter().map(AtomicU64::new).collect::<Vec<_>>()))
}

/// The future of one batch, which is one round trip. The batch is submitted when the future is created, so a local
/// fabric never returns `Pending`.
#[must_use = "a batch must be awaited to learn what it found"]
pub struct Post<'l, 'b, L: Lane + ?Sized, B: AsMut<[Verb<'b>]>> {
    lane: &'l mut L,
    batch: B,
    state: State,
    verbs: PhantomData<&'b mut ()>,
}

enum State {
    Done(Result<(), FabricError>),
    InFlight,
    Taken,
}

/// Hands `batch` to `lane` and counts one round trip.
#[inline(always)]
pub fn post<'l, 'b, L, B>(lane: &'l mut L, mut batch: B) -> Post<'l, 'b, L, B>
where
    L: Lane + ?Sized,
    B: AsMut<[Verb<'b>]>,
{
    lane.traffic_mut().count(batch.as_mut());
    let state = match lane.submit(batch.as_mut()) {
        Submitted::Done(result) => State::Done(result),
        Submitted::InFlight => State::InFlight,
    };
    Post { lane, batch, state, verbs: PhantomData }
}

/// [`post`] without a future: hands `batch` to a lane that executes it in place, and counts one round trip.
///
/// # Errors
/// Same as [`LocalLane::execute`].
#[inline(always)]
pub fn post_in_place<'b, L: LocalLane + ?Sized>(
    lane: &mut L,
    mut batch: impl AsMut<[Verb<'b>]>,
) -> Result<(), FabricError> {
    lane.traffic_mut().count(batch.as_mut());
    lane.execute(batch.as_mut())
}

/// Executes a READ of `words` words at `addr` on a lane that executes in place, and counts one round trip. `read`
/// samples the words where they lie, in any order, by [`Word::load`](crate::memory::Word::load); other clients may
/// change them meanwhile.
///
/// # Errors
/// Same as [`LocalLane::execute`]; `read` was not called.
#[inline(always)]
pub fn read_in_place<L: LocalLane, T>(
    lane: &mut L,
    addr: Addr,
    words: usize,
    read: impl FnOnce(&[AtomicU64]) -> T,
) -> Result<T, FabricError> {
    lane.traffic_mut().count_read(words);
    lane.read(addr, words, read)
}

/// Executes a WRITE of `words` words at `addr` on a lane that executes in place, as the first verb of the batch that is
/// posted next: it is counted, and is no round trip of its own. `write` stores the words where they belong, each once,
/// in any order; other clients may read them meanwhile.
///
/// # Errors
/// Same as [`LocalLane::execute`]; nothing was written.
#[inline(always)]
pub fn write_in_place<L: LocalLane>(
    lane: &mut L,
    addr: Addr,
    words: usize,
    write: impl FnOnce(&[AtomicU64]),
) -> Result<(), FabricError> {
    lane.traffic_mut().count_write(words);
    lane.write(addr, words, write)
}

impl<'b, L: Lane + ?Sized, B: AsMut<[Verb<'b>]> + Unpin> Future for Post<'_, 'b, L, B> {
    type Output = Result<(), FabricError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match std::mem::replace(&mut this.state, State::Taken) {
            State::Done(result) => Poll::Ready(result),
            State::InFlight => {
                let polled = this.lane.poll(this.batch.as_mut(), cx);
                if polled.is_pending() {
                    this.state = State::InFlight;
                }
                polled
            }
            State::Taken => panic!("a Post future was polled after completion"),
        }
    }
}

impl<'b, L: Lane + ?Sized, B: AsMut<[Verb<'b>]>> Drop for Post<'_, 'b, L, B> {
    #[inline(always)]
    fn drop(&mut self) {
        if matches!(self.state, State::InFlight) {
            self.lane.forget();
        }
    }
}

/// Makes memory for `bytes` of the main space; see [`Lane::poll_reserve`].
///
/// # Errors
/// Same as [`Lane::poll_reserve`].
pub async fn reserve<L: Lane + ?Sized>(lane: &mut L, bytes: Range<u64>) -> Result<(), FabricError> {
    std::future::poll_fn(|cx| lane.poll_reserve(bytes.clone(), cx)).await
}

/// The future of a wait on the lane's clock.
#[must_use = "a pause must be awaited"]
pub struct Pause<'l, L: Lane + ?Sized> {
    lane: &'l mut L,
    until_ns: u64,
}

/// Waits until `lane`'s clock reaches `until_ns`.
pub fn pause_until<L: Lane + ?Sized>(lane: &mut L, until_ns: u64) -> Pause<'_, L> {
    Pause { lane, until_ns }
}

impl<L: Lane + ?Sized> Future for Pause<'_, L> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let until_ns = self.until_ns;
        self.lane.poll_pause(until_ns, cx)
    }
}
