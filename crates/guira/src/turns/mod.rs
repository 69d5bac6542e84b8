//! Whose turn it is to change a key, among the clients of this process that reach its table through a memory node.
//!
//! Who finds a lock taken behind a node can only ask again, and every question costs a round trip, and both processors
//! what they have to do for it. Where hundreds of clients want one key, those who ask keep those who have it from
//! giving it back. So of one process one client asks at a time, and the others wait here, in the order in which they
//! came: a local queue in front of a remote lock, as Sherman has it (Wang, Lu, Shu: SIGMOD 2022).
//!
//! What would overwrite the key's value need not be carried out at all: when the change of whoever has the turn is done,
//! those who stood in the line when it began are answered as if they had come right before it. Nobody saw the values
//! they brought, and nobody could have: SMART combines writes so (Luo et al.: OSDI 2023). // [R-LOCK-8]
//!
//! Invariants: whoever has a turn gives it to the next one by dropping it; who was given one and has gone away passes
//! it on. A turn is a hint: what keeps changes apart are the locks of the table, so who has waited for [`PATIENCE`]
//! goes on without one, and whoever has it is stopped, slow or stuck at a lock of somebody else, holds up nobody for
//! longer. Nothing is waited for while a lock is held. Who is in the line has changed nothing: it may leave at any
//! time, and carry out its change itself.

mod overwrite;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use guira_fabric::Lane;
use guira_fabric::process::Process;
use guira_rcuckoo::Outcome;

use crate::fabric::Waiting;
pub(crate) use overwrite::Overwrite;
use overwrite::Overwritten;

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
    /// How it overwrites the key's value, if it does.
    overwrite: Option<Overwrite>,
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
    /// It needs no turn: it was overwritten.
    Answered(Outcome),
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
    /// Those behind it whom its change can answer: they had come when it began.
    behind: Vec<Arc<Waiter>>,
}

/// What somebody gets who waits in a line.
#[derive(Debug)]
pub(crate) enum Waited {
    Turn(Turn),
    /// Somebody else's change came right after this one, and overwrote it: this is what it was answered.
    Answered(Outcome),
    /// Its patience is over.
    Nothing,
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

    /// Asks for the turn to change the key with this digest, by overwriting it or otherwise; nothing is to be had of
    /// another process's.
    pub(crate) fn ask(self: &Arc<Self>, digest: u64, overwrite: Option<Overwrite>) -> Asked {
        if !self.is_own() {
            return Asked::Nothing;
        }
        let turns = Arc::clone(self);
        match self.shard(digest).entry(digest) {
            Entry::Vacant(vacant) => {
                vacant.insert(VecDeque::new());
                Asked::Turn(Turn { turns, digest, behind: Vec::new() })
            }
            Entry::Occupied(mut line) => {
                let waiter = Arc::new(Waiter { overwrite, ..Waiter::default() });
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

    /// Those in the line who would only overwrite the key's value.
    fn overwriting(&self, digest: u64) -> Vec<Arc<Waiter>> {
        if !self.is_own() {
            return Vec::new();
        }
        let shard = self.shard(digest);
        let line = shard.get(&digest).into_iter().flatten();
        line.filter(|waiter| waiter.overwrite.is_some()).cloned().collect()
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

impl Turn {
    /// The change that overwrote the key's value had this outcome: answers those behind it as if they had come right
    /// before it. How it is answered itself, as the last of them. // [R-LOCK-8]
    pub(crate) fn answer_those_behind(&mut self, change: Overwrite, outcome: Outcome) -> Outcome {
        let mut overwritten = Overwritten::by(change, outcome);
        for waiter in self.behind.drain(..) {
            let Some(overwrite) = waiter.overwrite else { continue };
            let Some(answer) = overwritten.answer(overwrite) else { continue };
            if waiter.answer(answer) {
                overwritten.tell(overwrite);
            }
        }
        overwritten.last()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.pass_on(self.digest);
    }
}

impl State {
    fn is_waiting(&self) -> bool {
        matches!(self, State::New | State::Asleep(_))
    }
}

impl Waiter {
    /// Gives it the turn, unless it waits no more; what is to be woken for it.
    fn call(&self) -> Option<Waker> {
        self.end(State::Called)
    }

    /// Tells it that it was overwritten; false if it waits no more.
    fn answer(&self, outcome: Outcome) -> bool {
        self.end(State::Answered(outcome)).map(Waker::wake).is_some()
    }

    /// Ends its waiting, unless it has ended; what is to be woken for it.
    fn end(&self, end: State) -> Option<Waker> {
        let mut state = lock(&self.state);
        if !state.is_waiting() {
            return None;
        }
        let before = std::mem::replace(&mut *state, end);
        drop(state);
        self.told.notify_one();
        Some(if let State::Asleep(waker) = before { waker } else { Waker::noop().clone() })
    }

    /// Waits in place until its waiting ends, or until `until`.
    fn sleep(&self, until: Instant) {
        let mut state = lock(&self.state);
        while state.is_waiting() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (state, _) = self.told.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether its waiting has ended; otherwise the task is woken when it does.
    fn poll(&self, cx: &Context<'_>) -> bool {
        let mut state = lock(&self.state);
        match &mut *state {
            State::Asleep(waker) => waker.clone_from(cx.waker()),
            State::New => *state = State::Asleep(cx.waker().clone()),
            State::Called | State::Answered(_) | State::Gone => return true,
        }
        false
    }
}

impl Place {
    /// Waits for the turn, or for an answer, for as long as `patience`. No round trip.
    pub(crate) async fn wait(self, patience: Duration, waiting: Waiting, lane: &mut dyn Lane) -> Waited {
        match waiting {
            Waiting::InPlace => self.waiter.sleep(Instant::now() + patience),
            Waiting::Cooperative => {
                let until_ns = lane.now_ns() + patience.as_nanos() as u64;
                poll_fn(|cx| match (self.waiter.poll(cx), lane.poll_pause(until_ns, cx)) {
                    (false, Poll::Pending) => Poll::Pending,
                    (_, pause) => {
                        if pause.is_pending() {
                            // Ends it.
                            let _ = lane.poll_pause(0, cx);
                        }
                        Poll::Ready(())
                    }
                })
                .await;
            }
        }
        self.take()
    }

    /// What this has got; nobody has to do with it any more.
    fn take(self) -> Waited {
        let state = std::mem::replace(&mut *lock(&self.waiter.state), State::Gone);
        match state {
            State::Called => {
                let behind = self.turns.overwriting(self.digest);
                Waited::Turn(Turn { turns: Arc::clone(&self.turns), digest: self.digest, behind })
            }
            State::Answered(outcome) => Waited::Answered(outcome),
            State::New | State::Asleep(_) | State::Gone => {
                self.turns.leave(self.digest, &self.waiter);
                Waited::Nothing
            }
        }
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
            // It took what it got, or the turn of whoever answered it ends, and takes it out of the line.
            State::Answered(_) | State::Gone => {}
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
