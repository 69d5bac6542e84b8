//! Threads that wait for futures, and tasks that wait for threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::{future, io};

/// Polls `future` in place until it is ready. Ends because lanes wait in place: a pause is over when its future is
/// polled. Always inlined, so that a future is made where it is polled: copying it there costs a quarter of a change.
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

/// Wakes a thread that sleeps until something happens.
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

/// What a thread that a task waits for came to, and who is to be woken then.
struct Errand<T> {
    outcome: Option<Result<T, Box<dyn Any + Send>>>,
    waker: Option<Waker>,
}

/// The result of `call`, which a thread named `name` runs and ends with: a task that must not block its executor waits
/// for it here. A task that is dropped leaves the thread to its end.
///
/// # Errors
/// The thread could not be started, and `call` was not run.
pub(crate) async fn on_a_thread<T: Send + 'static>(
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let errand = Arc::new(Mutex::new(Errand { outcome: None, waker: None }));
    let shared = Arc::clone(&errand);
    let run = move || {
        let outcome = catch_unwind(AssertUnwindSafe(call));
        let mut errand = shared.lock().unwrap_or_else(PoisonError::into_inner);
        errand.outcome = Some(outcome);
        let waker = errand.waker.take();
        drop(errand);
        waker.into_iter().for_each(Waker::wake);
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    let outcome = future::poll_fn(|cx| {
        let mut errand = errand.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = errand.outcome.take() {
            return Poll::Ready(outcome);
        }
        errand.waker = Some(cx.waker().clone());
        Poll::Pending
    });
    Ok(outcome.await.unwrap_or_else(|panic| resume_unwind(panic)))
}
