//! The same operations, carried out in place: for threads without an executor.
//!
//! On shared memory an operation never waits except for a lock, so this is what most programs want.

mod client;
mod pool;
mod reader;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

pub use client::Client;
pub use pool::{Pool, PooledClient};
pub use reader::Reader;

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
