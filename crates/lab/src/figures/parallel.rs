//! Independent measurements on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::experiment::{LabError, RunOptions, Watch};

/// Measures `cells`, on as many threads as the options say, and returns the results in the order of the cells.
///
/// # Errors
/// [`LabError::Stopped`], or the first error of a cell.
pub(super) fn measure<C: Sync, T: Send>(
    what: &str,
    cells: &[C],
    run: &RunOptions,
    watch: &dyn Watch,
    measure: impl Fn(&C) -> Result<T, LabError> + Sync,
) -> Result<Vec<T>, LabError> {
    watch.begin(what, cells.len() as u64);
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<T, LabError>>>> = Mutex::new(cells.iter().map(|_| None).collect());
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(cell) = cells.get(index) else { return };
            if watch.is_stopped() {
                return;
            }
            let result = measure(cell);
            let mut results = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            results[index] = Some(result);
            watch.cell_done();
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..run.jobs.min(cells.len()) {
            // Where the system refuses a thread, fewer measure.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.into_iter().map(|result| result.unwrap_or(Err(LabError::Stopped))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An observer that stops the run after some cells.
    struct StopAfter {
        cells: usize,
        done: AtomicUsize,
    }

    impl Watch for StopAfter {
        fn begin(&self, _what: &str, _cells: u64) {}

        fn cell_done(&self) {
            self.done.fetch_add(1, Ordering::Relaxed);
        }

        fn is_stopped(&self) -> bool {
            self.done.load(Ordering::Relaxed) >= self.cells
        }
    }

    #[test]
    fn results_have_the_order_of_the_cells() {
        let cells: Vec<u64> = (0..100).collect();
        for jobs in [0, 1, 3] {
            let run = RunOptions { quick: true, seed: 1, seeds: 1, jobs };
            let square = |cell: &u64| Ok(cell * cell);
            let watch = StopAfter { cells: 100, done: AtomicUsize::new(0) };
            let expected: Vec<u64> = cells.iter().map(|cell| cell * cell).collect();
            assert_eq!(measure("squares", &cells, &run, &watch, square), Ok(expected));
            let watch = StopAfter { cells: 50, done: AtomicUsize::new(0) };
            assert_eq!(measure("squares", &cells, &run, &watch, square), Err(LabError::Stopped));
        }
    }

    #[test]
    fn an_error_is_returned() {
        let run = RunOptions { quick: true, seed: 1, seeds: 1, jobs: 2 };
        let watch = StopAfter { cells: usize::MAX, done: AtomicUsize::new(0) };
        let fail = |cell: &u64| if *cell == 3 { Err(LabError::Conflict("three".to_owned())) } else { Ok(*cell) };
        assert_eq!(measure("cells", &[1, 2, 3], &run, &watch, fail), Err(LabError::Conflict("three".to_owned())));
    }
}
