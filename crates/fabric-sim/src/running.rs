//! The simulation running on this thread, which its lanes access without a lock.
//!
//! Lanes must be `Send`, so they cannot share the world through an `Rc`; with an uncontended mutex instead, a run took
//! 5 to 30 % longer. A [`crate::Sim`] cannot leave its thread, so its world is in a thread-local variable while it
//! runs, and its lanes refer to it by number. Invariant: the variable is never borrowed while code of a client runs.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use crate::world::World;

thread_local! {
    static WORLD: RefCell<Option<Box<World>>> = const { RefCell::new(None) };
    static SIMULATION: Cell<u64> = const { Cell::new(0) };
    static WOKEN: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Returns a number, not 0, that no other simulation of this process has.
pub(crate) fn new_simulation() -> u64 {
    static SIMULATIONS: AtomicU64 = AtomicU64::new(1);
    SIMULATIONS.fetch_add(1, Ordering::Relaxed)
}

/// Calls `act` with the world of `simulation`. Returns `None` unless that simulation runs on this thread.
#[inline(always)]
pub(crate) fn with_world<T>(simulation: u64, act: impl FnOnce(&mut World) -> T) -> Option<T> {
    WORLD.with_borrow_mut(|world| world.as_deref_mut().filter(|world| world.simulation == simulation).map(act))
}

/// A guard that makes a world the running one of this thread, until it is dropped.
pub(crate) struct Running<'s> {
    /// The simulation's own variable, to which the world returns.
    home: &'s mut Option<Box<World>>,
    /// The outer simulation, if a client of it runs this one.
    outer: Option<Box<World>>,
    outer_simulation: u64,
    outer_woken: Vec<u32>,
}

impl Running<'_> {
    pub(crate) fn new(home: &mut Option<Box<World>>) -> Running<'_> {
        let simulation = home.as_ref().map_or(0, |world| world.simulation);
        let outer = WORLD.replace(home.take());
        let (outer_simulation, outer_woken) = (SIMULATION.replace(simulation), WOKEN.take());
        Running { home, outer, outer_simulation, outer_woken }
    }

    /// Calls `act` with the world.
    ///
    /// # Panics
    /// If there is no world, which can only happen if a client runs its own simulation.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        WORLD.with_borrow_mut(|world| act(world.as_deref_mut().expect("a running simulation has a world")))
    }

    /// Moves the tasks that were woken on this thread to `tasks`, which must be empty.
    pub(crate) fn take_woken(&self, tasks: &mut Vec<u32>) {
        WOKEN.with_borrow_mut(|woken| std::mem::swap(woken, tasks));
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.home = WORLD.replace(self.outer.take());
        SIMULATION.set(self.outer_simulation);
        WOKEN.replace(std::mem::take(&mut self.outer_woken));
    }
}

/// Tasks that were woken while their simulation did not run, or from another thread.
#[derive(Default)]
pub(crate) struct ExternalWakes {
    tasks: Mutex<Vec<u32>>,
    any: AtomicBool,
}

impl ExternalWakes {
    pub(crate) fn push(&self, task: u32) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.any.store(true, Ordering::Release);
    }

    /// Moves all woken tasks to `tasks`.
    pub(crate) fn drain_to(&self, tasks: &mut Vec<u32>) {
        if self.any.load(Ordering::Acquire) {
            let mut woken = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            self.any.store(false, Ordering::Relaxed);
            tasks.append(&mut woken);
        }
    }
}

/// The waker of one task.
pub(crate) struct TaskWaker {
    pub(crate) simulation: u64,
    pub(crate) task: u32,
    /// Whether the task is in this thread's list. Only used by the simulation's own thread.
    pub(crate) is_queued: AtomicBool,
    pub(crate) external_wakes: Arc<ExternalWakes>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<TaskWaker>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<TaskWaker>) {
        if SIMULATION.get() != self.simulation {
            self.external_wakes.push(self.task);
        } else if !self.is_queued.load(Ordering::Relaxed) {
            self.is_queued.store(true, Ordering::Relaxed);
            WOKEN.with_borrow_mut(|woken| woken.push(self.task));
        }
    }
}
