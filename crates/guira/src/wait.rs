//! Waiting of threads for futures, and of tasks for threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::{future, io};

use guira_fabric::signals::without_signals;

/// Polls `future` on this thread until it is ready, for lanes that wait in place: a pause is over when its future has
/// been polled, so this ends. Always inlined, so that a future is constructed where it is polled: copying it there
/// costs a quarter of a change.
#[inline(always)]
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::thread::yield_now();
    }
}

/// Unparks a parked thread.
pub(crate) struct Unpark(pub(crate) Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for `future` on this thread, which sleeps meanwhile.
pub(crate) fn wait_for<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}

/// The result of a thread that a task waits for, and the waker of the task.
struct ThreadTask<T> {
    outcome: Option<Result<T, Box<dyn Any + Send>>>,
    waker: Option<Waker>,
}

/// Runs `call` on a new thread named `name`, and returns its result, without blocking the executor. If the future is
/// dropped, the thread still runs to its end.
///
/// # Errors
/// If the thread could not be started; then `call` was not run.
pub(crate) async fn on_a_thread<T: Send + 'static>(
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let task = Arc::new(Mutex::new(ThreadTask { outcome: None, waker: None }));
    let shared = Arc::clone(&task);
    let run = move || {
        let outcome = catch_unwind(AssertUnwindSafe(call));
        let mut task = shared.lock().unwrap_or_else(PoisonError::into_inner);
        task.outcome = Some(outcome);
        let waker = task.waker.take();
        drop(task);
        waker.into_iter().for_each(Waker::wake);
    };
    without_signals(|| thread::Builder::new().name(name.to_owned()).spawn(run))?;
    let outcome = future::poll_fn(|cx| {
        let mut task = task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = task.outcome.take() {
            return Poll::Ready(outcome);
        }
        task.waker = Some(cx.waker().clone());
        Poll::Pending
    });
    Ok(outcome.await.unwrap_or_else(|panic| resume_unwind(panic)))
}
