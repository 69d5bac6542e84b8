//! Several operations of one client at once.

use std::pin::Pin;

use futures_util::stream::{FuturesUnordered, StreamExt};

/// Creates and carries out `count` tasks at once. Only those that were woken are polled.
pub(super) fn all_of<F: Future<Output = ()> + 'static>(
    count: u32,
    mut task: impl FnMut(u32) -> F,
) -> Pin<Box<dyn Future<Output = ()>>> {
    if count == 1 {
        return Box::pin(task(0));
    }
    let mut tasks: FuturesUnordered<F> = (0..count).map(task).collect();
    Box::pin(async move { while tasks.next().await.is_some() {} })
}
