//! Whose turn it is to take locks, among the clients of this process that reach their table through a memory node.
//!
//! Who finds a lock taken behind a node can only ask again, and every question costs a round trip, and both processors
//! what they have to do for it. Where hundreds of clients want one lock, those who ask keep those who have it from
//! giving it back. So of one process one client asks at a time, and the others wait here, in the order in which they
//! came: a local queue in front of a remote lock, as Sherman has it (Wang, Lu, Shu: SIGMOD 2022). // [R-LOCK-4]
//!
//! What would overwrite a key's value need not be carried out at all: when the change of whoever has the turn is done,
//! those who stood behind it when it began are answered as if they had come right before it. Nobody saw the values
//! they brought, and nobody could have: SMART combines writes so (Luo et al.: OSDI 2023). // [R-LOCK-8]
//!
//! Invariants: whoever has a turn, or stands in a line, leaves it by dropping it. A turn is a hint: what keeps changes
//! apart are the locks of the table, so who has waited for [`PATIENCE`] in a line that does not move goes on without
//! one, and whoever has it is stopped, slow or stuck at a lock of somebody else, holds up nobody for longer. Nothing is
//! waited for while a lock is held, nor while a session is lost. Who is in a line has changed nothing: until it is
//! answered it may leave at any time, and carry out its change itself.

mod lines;
mod overwrite;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use guira_fabric::Lane;
use guira_fabric::process::Process;
use guira_rcuckoo::Outcome;

use crate::fabric::Waiting;
pub(crate) use lines::Wish;
use lines::{Lines, Number, Standing};
pub(crate) use overwrite::Overwrite;

/// The longest that anybody waits in a line in which no turn ends: some hundred changes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How often the processor is given up for others who look at the tables; each look is short.
const MAX_YIELDS: usize = 1_000;

/// A table, as a process reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableName {
    /// What its creation drew: for the table, and for its incarnation.
    pub(crate) drawn: [u64; 2],
    /// Its memory, as its node names it: it may be a copy.
    pub(crate) memory: [u64; 2],
    /// The node's address: another one may serve a copy.
    pub(crate) peer: SocketAddr,
}

/// The lines of those who want to take the locks of one table.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Whose they are; in a forked child nothing in them is locked or waited for, because the threads that would end it
    /// do not exist there.
    process: Option<Process>,
    lines: Mutex<Lines>,
}

/// The lines of a table, as long as somebody uses them.
struct Known {
    table: TableName,
    turns: Weak<Turns>,
}

/// What somebody gets who asks for a turn.
pub(crate) enum Asked {
    Turn(Turn),
    /// Somebody else has it.
    Place(Place),
    /// This is a forked child: the lines are its parent's.
    Nothing,
}

/// The turn to take the locks of a key; the next one's, once it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Place);

/// A place in the lines. Who drops it leaves.
#[derive(Debug)]
pub(crate) struct Place {
    turns: Arc<Turns>,
    number: Number,
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

/// How long somebody waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// In lines in which no turn ends.
    pub(crate) patience: Duration,
    /// In all.
    pub(crate) longest: Duration,
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
        Turns { process: Process::current().ok(), lines: Mutex::default() }
    }

    /// Whether they were made by this process.
    fn is_own(&self) -> bool {
        self.process.is_none_or(Process::is_this)
    }

    /// Asks for the turn to take the locks that a change needs; nothing is to be had of another process's.
    pub(crate) fn ask(self: &Arc<Self>, wish: Wish<'_>) -> Asked {
        if !self.is_own() {
            return Asked::Nothing;
        }
        let mut lines = self.lines();
        let number = lines.join(wish);
        let standing = lines.look(number, &mut None);
        drop(lines);
        let place = Place { turns: Arc::clone(self), number };
        if standing == Standing::Turn { Asked::Turn(Turn(place)) } else { Asked::Place(place) }
    }

    /// Nothing that is locked here is left half changed by a panic.
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// The change that overwrote the key's value had this outcome: answers those behind it as if they had come right
    /// before it. How it is answered itself, as the last of them. // [R-LOCK-8]
    pub(crate) fn answer_those_behind(&self, outcome: Outcome) -> Outcome {
        let Place { turns, number } = &self.0;
        if !turns.is_own() {
            return outcome;
        }
        let mut wakers = Vec::new();
        let outcome = turns.lines().answer(*number, outcome, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        outcome
    }
}

impl Place {
    /// Waits for the turn, or for an answer. No round trip.
    pub(crate) async fn wait(self, limits: Limits, waiting: Waiting, lane: &mut dyn Lane) -> Waited {
        let begun = Instant::now();
        let mut before = self.look(None);
        loop {
            let left = limits.longest.saturating_sub(begun.elapsed());
            let stretch = limits.patience.min(left);
            let standing = match waiting {
                Waiting::InPlace => self.sleep(Instant::now() + stretch),
                Waiting::Cooperative => self.rest(stretch, lane).await,
            };
            let is_moving = matches!(standing, Standing::Behind { .. }) && standing != before && stretch < left;
            if !is_moving {
                return self.end();
            }
            before = standing;
        }
    }

    /// What it has got by now; if that is nothing, it is in no line any more.
    fn end(self) -> Waited {
        if !self.turns.is_own() {
            return Waited::Nothing;
        }
        match self.give_up() {
            Standing::Turn => Waited::Turn(Turn(self)),
            Standing::Answered(outcome) => Waited::Answered(outcome),
            Standing::Behind { .. } | Standing::Foreign => Waited::Nothing,
        }
    }

    /// Begins, if it has the turn; if it has got nothing, it is in no line any more.
    fn give_up(&self) -> Standing {
        let mut wakers = Vec::new();
        let mut lines = self.turns.lines();
        let standing = lines.give_up(self.number, &mut wakers);
        if standing == Standing::Turn {
            lines.begin(self.number);
        }
        drop(lines);
        wakers.into_iter().for_each(Waker::wake);
        standing
    }

    fn look(&self, mut waker: Option<Waker>) -> Standing {
        if !self.turns.is_own() {
            return Standing::Foreign;
        }
        // What was kept before is dropped when nothing is locked any more.
        self.turns.lines().look(self.number, &mut waker)
    }

    /// How it stands at `until`, or before, once that changes; waits in place.
    fn sleep(&self, until: Instant) -> Standing {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            let standing = self.look(Some(waker.clone()));
            let left = until.saturating_duration_since(Instant::now());
            if !matches!(standing, Standing::Behind { .. }) || left.is_zero() {
                return standing;
            }
            std::thread::park_timeout(left);
        }
    }

    /// How it stands after so long, or before, once that changes.
    async fn rest(&self, stretch: Duration, lane: &mut dyn Lane) -> Standing {
        let until_ns = lane.now_ns() + stretch.as_nanos() as u64;
        let mut until_it_changes = |cx: &mut Context<'_>| {
            let standing = self.look(Some(cx.waker().clone()));
            match (standing, lane.poll_pause(until_ns, cx)) {
                (Standing::Behind { .. }, Poll::Pending) => Poll::Pending,
                (_, pause) => {
                    if pause.is_pending() {
                        // Ends it.
                        let _ = lane.poll_pause(0, cx);
                    }
                    Poll::Ready(standing)
                }
            }
        };
        poll_fn(&mut until_it_changes).await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.turns.is_own() {
            return;
        }
        let mut wakers = Vec::new();
        self.turns.lines().leave(self.number, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
