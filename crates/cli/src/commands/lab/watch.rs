//! The observer of a run: progress on the terminal, and interrupts.

use std::sync::{Mutex, PoisonError};

use guira_lab::experiment::Watch;

use crate::interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::units::count;

/// Shows the progress of one run after another.
pub struct Watcher<'o> {
    output: &'o Output,
    state: Mutex<State>,
}

/// The run that is going on.
#[derive(Default)]
struct State {
    progress: Option<Progress>,
    cells: u64,
    done: u64,
}

impl State {
    fn show(&mut self) {
        let (done, cells) = (self.done, self.cells);
        if let Some(progress) = &mut self.progress {
            progress.tick(done, || format!("{} of {} experiments", count(done), count(cells)));
        }
    }
}

impl<'o> Watcher<'o> {
    /// Creates a watcher. From now on an interrupt ends a run instead of the process.
    pub fn new(output: &'o Output) -> Watcher<'o> {
        interrupt::catch();
        Watcher { output, state: Mutex::default() }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(progress) = &mut self.lock().progress {
            progress.finish();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Watcher<'_> {
    fn begin(&self, what: &str, cells: u64) {
        self.finish();
        let progress = Progress::new(self.output, what, Some(cells));
        *self.lock() = State { progress: Some(progress), cells, done: 0 };
    }

    fn cell_done(&self) {
        let mut state = self.lock();
        state.done += 1;
        state.show();
    }

    /// Runs ask often, so the estimate of the time left goes on during a long experiment.
    fn is_stopped(&self) -> bool {
        self.lock().show();
        interrupt::requested()
    }
}
