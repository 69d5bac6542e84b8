//! Whose turn it is to change a key, among the clients of this process that reach its table through a memory node.
//!
//! Who finds a lock taken behind a node can only ask again, and every question costs a round trip, and both processors
//! what they have to do for it. Where hundreds of clients want one key, those who ask keep those who have it from
//! giving it back. So of one process one client asks at a time, and the others wait here, in the order in which they
//! came: a local queue in front of a remote lock, as Sherman has it (Wang, Lu, Shu: SIGMOD 2022).
//!
//! Invariants: whoever has a turn gives it to the next one by dropping it; who was given one and has gone away passes
//! it on. A turn is a hint: what keeps changes apart are the locks of the table, so who has waited for [`PATIENCE`]
//! goes on without one, and whoever has it is stopped, slow or stuck at a lock of somebody else, holds up nobody for
//! longer. Nothing is waited for while a lock is held.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use guira_fabric::Lane;
use guira_fabric::process::Process;

use crate::fabric::Waiting;

/// The longest that anybody waits for a turn: a thousand changes of those before.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How often the processor is given up for others who look at the tables; each look is short.
const MAX_YIELDS: usize = 1_000;
/// Parts that are locked by themselves.
const SHARDS: usize = 16;

/// The name of a table that its creation drew: of the table, and of its incarnation.
type TableName = [u64; 2];

/// The lines of those who want to change the keys of one table, by the keys' digests.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Whose they are; in a forked child nothing in them is locked or waited for, because the threads that would end it
    /// do not exist there.
    process: Option<Process>,
    shards: [Mutex<HashMap<u64, Line, BuildHasherDefault<Digest>>>; SHARDS],
}

/// The lines of a table, as long as somebody uses them.
struct Known {
    table: TableName,
    turns: Weak<Turns>,
}

/// Those who wait for whoever has the turn.
type Line = VecDeque<Arc<Waiter>>;

/// Somebody who waits.
#[derive(Debug, Default)]
struct Waiter {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    New,
    Asleep(Waker),
    /// It has the turn.
    Called,
    /// It waits no more.
    Gone,
}

/// What somebody gets who asks for a turn.
pub(crate) enum Asked {
    Turn(Turn),
    /// Somebody else has it.
    Place(Place),
    /// This is a forked child: the lines are its parent's.
    Nothing,
}

/// The turn to change a key; the next one's, once it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    digest: u64,
}

/// A place in the line. Who drops it leaves.
#[derive(Debug)]
pub(crate) struct Place {
    turns: Arc<Turns>,
    digest: u64,
    waiter: Arc<Waiter>,
}

impl Turns {
    /// Those of a table, which all clients of this process share, whichever store they come from. A forked child has
    /// lines of its own: who waited in its parent's does not exist in it.
    pub(crate) fn of(table: TableName) -> Arc<Turns> {
        static TABLES: Mutex<Vec<Known>> = Mutex::new(Vec::new());
        let turns = Arc::new(Turns::new());
        // A process that was forked while somebody looked here never finds it free, and does without.
        for _ in 0..MAX_YIELDS {
            match TABLES.try_lock() {
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                Err(TryLockError::Poisoned(_)) => break,
                Ok(mut tables) => {
                    tables.retain(|known| known.turns.upgrade().is_some_and(|turns| turns.is_own()));
                    let known = tables.iter().find(|known| known.table == table);
                    if let Some(turns) = known.and_then(|known| known.turns.upgrade()) {
                        return turns;
                    }
                    tables.push(Known { table, turns: Arc::downgrade(&turns) });
                    break;
                }
            }
        }
        turns
    }

    fn new() -> Turns {
        Turns { process: Process::current().ok(), shards: Default::default() }
    }

    /// Whether they were made by this process.
    fn is_own(&self) -> bool {
        self.process.is_none_or(Process::is_this)
    }

    /// Asks for the turn to change the key with this digest; nothing is to be had of another process's.
    pub(crate) fn ask(self: &Arc<Self>, digest: u64) -> Asked {
        if !self.is_own() {
            return Asked::Nothing;
        }
        let turns = Arc::clone(self);
        match self.shard(digest).entry(digest) {
            Entry::Vacant(vacant) => {
                vacant.insert(VecDeque::new());
                Asked::Turn(Turn { turns, digest })
            }
            Entry::Occupied(mut line) => {
                let waiter = Arc::new(Waiter::default());
                line.get_mut().push_back(Arc::clone(&waiter));
                Asked::Place(Place { turns, digest, waiter })
            }
        }
    }

    fn shard(&self, digest: u64) -> MutexGuard<'_, HashMap<u64, Line, BuildHasherDefault<Digest>>> {
        lock(&self.shards[digest as usize % SHARDS])
    }

    /// Gives the turn to the first in the line who still waits.
    fn pass_on(&self, digest: u64) {
        if !self.is_own() {
            return;
        }
        let mut shard = self.shard(digest);
        let next = |line: &mut Line| std::iter::from_fn(|| line.pop_front()).find_map(|waiter| waiter.call());
        match shard.get_mut(&digest).and_then(next) {
            Some(waker) => {
                drop(shard);
                waker.wake();
            }
            None => drop(shard.remove(&digest)),
        }
    }

    /// Takes somebody who waits no more out of the line.
    fn leave(&self, digest: u64, waiter: &Arc<Waiter>) {
        if !self.is_own() {
            return;
        }
        if let Some(line) = self.shard(digest).get_mut(&digest) {
            line.retain(|other| !Arc::ptr_eq(other, waiter));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.pass_on(self.digest);
    }
}

impl Waiter {
    /// Gives it the turn, unless it has gone; what is to be woken for it.
    fn call(&self) -> Option<Waker> {
        let mut state = lock(&self.state);
        if let State::Gone = *state {
            return None;
        }
        let before = std::mem::replace(&mut *state, State::Called);
        drop(state);
        self.told.notify_one();
        Some(if let State::Asleep(waker) = before { waker } else { Waker::noop().clone() })
    }

    /// Whether it has the turn by `until`; waits in place.
    fn sleep(&self, until: Instant) -> bool {
        let mut state = lock(&self.state);
        while !matches!(*state, State::Called) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (state, _) = self.told.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Whether it has the turn; otherwise the task is woken when it gets it.
    fn poll(&self, cx: &Context<'_>) -> bool {
        let mut state = lock(&self.state);
        match &mut *state {
            State::Called => return true,
            State::Asleep(waker) => waker.clone_from(cx.waker()),
            state => *state = State::Asleep(cx.waker().clone()),
        }
        false
    }
}

impl Place {
    /// Waits for the turn, for as long as `patience`. No round trip.
    pub(crate) async fn wait(self, patience: Duration, waiting: Waiting, lane: &mut dyn Lane) -> Option<Turn> {
        let is_called = match waiting {
            Waiting::InPlace => self.waiter.sleep(Instant::now() + patience),
            Waiting::Cooperative => {
                let until_ns = lane.now_ns() + patience.as_nanos() as u64;
                poll_fn(|cx| match (self.waiter.poll(cx), lane.poll_pause(until_ns, cx)) {
                    (false, Poll::Pending) => Poll::Pending,
                    (is_called, pause) => {
                        if pause.is_pending() {
                            // Ends it.
                            let _ = lane.poll_pause(0, cx);
                        }
                        Poll::Ready(is_called)
                    }
                })
                .await
            }
        };
        is_called.then(|| self.take())
    }

    /// The turn that this has got.
    fn take(self) -> Turn {
        // What is dropped with the place does not pass it on.
        *lock(&self.waiter.state) = State::Gone;
        Turn { turns: Arc::clone(&self.turns), digest: self.digest }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.turns.is_own() {
            return;
        }
        let before = std::mem::replace(&mut *lock(&self.waiter.state), State::Gone);
        match before {
            State::Called => self.turns.pass_on(self.digest),
            State::New | State::Asleep(_) => self.turns.leave(self.digest, &self.waiter),
            // It took the turn.
            State::Gone => {}
        }
    }
}

/// Digests are mixed already.
#[derive(Default)]
struct Digest(u64);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// Nothing that is locked here is left half changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    use guira_fabric::heap::HeapRegion;
    use guira_fabric::{Profile, Region};

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    fn asked(turns: &Arc<Turns>, digest: u64) -> Result<Turn, Place> {
        match turns.ask(digest) {
            Asked::Turn(turn) => Ok(turn),
            Asked::Place(place) => Err(place),
            Asked::Nothing => panic!("this is the process"),
        }
    }

    fn is_called(place: &Place) -> bool {
        matches!(*lock(&place.waiter.state), State::Called)
    }

    fn is_empty(turns: &Turns) -> bool {
        turns.shards.iter().all(|shard| lock(shard).is_empty())
    }

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_turn_goes_round_in_the_order_of_coming() {
        let turns = Arc::new(Turns::new());
        let first = asked(&turns, 7).expect("nobody was there");
        let other = asked(&turns, 7 + SHARDS as u64).expect("another key of the shard");
        let [second, third, fourth] = [(); 3].map(|()| asked(&turns, 7).expect_err("it is taken"));
        drop(other);
        assert!(!is_called(&second));
        drop(first);
        assert!(is_called(&second) && !is_called(&third));
        let second = second.take();
        // Who leaves is passed over.
        drop(third);
        drop(second);
        assert!(is_called(&fourth));
        // Who was called and goes away passes it on.
        let fifth = asked(&turns, 7).expect_err("it is taken");
        drop(fourth);
        assert!(is_called(&fifth));
        drop(fifth.take());
        assert!(is_empty(&turns));
    }

    #[test]
    fn nobody_waits_for_longer_than_its_patience() {
        let turns = Arc::new(Turns::new());
        let turn = asked(&turns, 7).expect("nobody was there");
        let region = HeapRegion::new(4096, 4096, Profile::Shm.caps());
        let mut lane = region.lane();
        let start = Instant::now();
        let place = asked(&turns, 7).expect_err("it is taken");
        assert!(pollster::block_on(place.wait(SHORT, Waiting::InPlace, &mut lane)).is_none());
        assert!((SHORT..20 * SHORT).contains(&start.elapsed()), "{:?}", start.elapsed());
        drop(turn);
        assert!(is_empty(&turns), "who has gone gets no turn");
    }

    #[test]
    fn a_task_is_woken_when_it_is_its_turn() {
        let turns = Arc::new(Turns::new());
        let turn = asked(&turns, 7).expect("nobody was there");
        let region = HeapRegion::new(4096, 4096, Profile::Shm.caps());
        let mut lane = region.lane();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let place = asked(&turns, 7).expect_err("it is taken");
        let mut wait = pin!(place.wait(PATIENCE, Waiting::Cooperative, &mut lane));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let before = woken.0.load(Ordering::SeqCst);
        drop(turn);
        assert_eq!(woken.0.load(Ordering::SeqCst), before + 1);
        let Poll::Ready(Some(turn)) = wait.as_mut().poll(&mut Context::from_waker(&waker)) else { panic!("its turn") };
        drop(turn);
        assert!(is_empty(&turns));
    }

    #[test]
    fn threads_take_turns() {
        const THREADS: u64 = 8;
        const TIMES: u64 = 500;
        let turns = Turns::of([1, 2]);
        assert!(Arc::ptr_eq(&turns, &Turns::of([1, 2])) && !Arc::ptr_eq(&turns, &Turns::of([1, 3])));
        let [inside, most, had] = [(); 3].map(|()| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let region = HeapRegion::new(4096, 4096, Profile::Shm.caps());
                    let mut lane = region.lane();
                    for _ in 0..TIMES {
                        let turn = match turns.ask(7) {
                            Asked::Turn(turn) => Some(turn),
                            Asked::Place(place) => pollster::block_on(place.wait(SHORT, Waiting::InPlace, &mut lane)),
                            Asked::Nothing => panic!("this is the process"),
                        };
                        // On a machine that does other things, some lose their patience.
                        let Some(turn) = turn else { continue };
                        had.fetch_add(1, Ordering::SeqCst);
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 1, "one at a time");
        assert!(had.load(Ordering::SeqCst) > THREADS * TIMES / 2);
        assert!(is_empty(&turns));
    }
}
