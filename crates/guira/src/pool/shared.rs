//! The state that the clones of a pool, its clients and its waiters share.
//!
//! Invariants: each member, and each right to open one, is given back however its holder ends: [`OpenRight`],
//! [`Ticket`] and the guards of clients ensure it. While the queue is locked, no client is opened, closed or waited
//! for, and no waker is cloned, woken or dropped. In a forked child nothing is locked: the threads that would unlock it
//! do not exist there.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use guira_fabric::FabricError;
use guira_fabric::process::Process;
use guira_fabric::signals::without_signals;

use super::PoolStatus;
use super::queue::{Grant, Number, Queue};
use super::timer::{Alarm, Timer};
use crate::aio::Client;
use crate::sessions::deadline_after;
use crate::wait::{Unpark, wait_for};
use crate::{Error, OpenError, Store};

/// The state that clones of a pool share.
pub(crate) struct Shared {
    store: Store,
    /// The process that owns the pool.
    process: Option<Process>,
    queue: Mutex<Queue<Client>>,
    timer: Arc<Timer>,
}

/// The right to a member that is being opened, settled or closed. Dropping it gives it up.
struct OpenRight(Option<Arc<Shared>>);

impl OpenRight {
    fn new(shared: &Arc<Shared>) -> OpenRight {
        OpenRight(Some(Arc::clone(shared)))
    }

    /// The member goes to a holder.
    fn lend(mut self) {
        self.0 = None;
    }

    /// The member goes to the next waiter, or becomes idle.
    fn give(mut self, client: Client) {
        if let Some(shared) = self.0.take() {
            shared.give(Grant::Member(client));
        }
    }
}

impl Drop for OpenRight {
    fn drop(&mut self) {
        // A forked child has no waiters, and the queue may have been locked at the fork.
        if let Some(shared) = self.0.take().filter(|shared| shared.is_own()) {
            shared.give(Grant::MayOpen);
        }
    }
}

impl Shared {
    pub(crate) fn new(store: &Store, max: u16) -> Arc<Shared> {
        Arc::new(Shared {
            store: store.clone(),
            process: Process::current().ok(),
            queue: Mutex::new(Queue::new(usize::from(max.max(1)))),
            timer: Arc::default(),
        })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn status(&self) -> PoolStatus {
        if !self.is_own() {
            return PoolStatus::default();
        }
        let queue = self.queue();
        PoolStatus { max: queue.max(), size: queue.open(), idle: queue.idle(), waiting: queue.waiting() }
    }

    /// Gets a client for a task.
    pub(crate) async fn client(self: &Arc<Self>, timeout: Duration) -> Result<Client, Error> {
        let mut ticket = self.ticket(timeout)?;
        loop {
            match poll_fn(|cx| ticket.poll(cx, Wake::ByTimer)).await? {
                Grant::Member(client) => return Ok(reset(client)),
                Grant::MayOpen => {
                    let right = OpenRight::new(self);
                    let opened = self.store.to_async().client().await;
                    if let Some(client) = ticket.opened(right, opened)? {
                        return Ok(client);
                    }
                }
            }
        }
    }

    /// Gets a client for this thread, which blocks.
    pub(crate) fn client_in_place(self: &Arc<Self>, timeout: Duration) -> Result<Client, Error> {
        let mut ticket = self.ticket(timeout)?;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        // Ends at the ticket's deadline.
        loop {
            match ticket.poll(&mut Context::from_waker(&waker), Wake::ByCaller) {
                Poll::Pending => thread::park_timeout(ticket.deadline().saturating_duration_since(Instant::now())),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(Grant::Member(client))) => return Ok(reset(client)),
                Poll::Ready(Ok(Grant::MayOpen)) => {
                    let right = OpenRight::new(self);
                    let opened = self.store.client().map(|client| client.0);
                    if let Some(client) = ticket.opened(right, opened)? {
                        return Ok(client);
                    }
                }
            }
        }
    }

    fn ticket(self: &Arc<Self>, timeout: Duration) -> Result<Ticket, Error> {
        self.refuse_if_forked()?;
        let shared = Arc::clone(self);
        Ok(Ticket { shared, timeout, since: None, number: None, alarm: None, unused: None, refused: None })
    }

    /// Closes the idle clients. Returns the first error, after all were tried.
    pub(crate) async fn close_idle(self: &Arc<Self>) -> Result<(), Error> {
        self.refuse_if_forked()?;
        let (mut result, idle) = (Ok(()), self.queue().idle());
        for _ in 0..idle {
            let Some(client) = self.queue().take_idle() else { break };
            // The right is given up when the client is closed.
            let _right = OpenRight::new(self);
            result = result.and(client.close().await);
        }
        result
    }

    /// Takes a client back from its holder. [R-DROP-1]
    pub(crate) fn take_back(self: &Arc<Self>, client: Client) {
        if !self.is_own() {
            // The client is the parent's, and so is its right.
            return;
        }
        if thread::panicking() || client.is_useless() {
            // Closed before the right is given up, so that there are never more clients than `max`. Closing also ends
            // what a panic left half done.
            let right = OpenRight::new(self);
            drop(client);
            drop(right);
        } else if client.is_settled() {
            self.give(Grant::Member(client));
        } else {
            self.settle(client);
        }
    }

    /// Settles what a dropped operation of a client had acquired: other clients may wait for its locks, and the client
    /// may stay idle for long. [R-DROP-1]
    fn settle(self: &Arc<Self>, mut client: Client) {
        let right = OpenRight::new(self);
        if !client.is_remote() {
            // No batch is in flight: this ends at once.
            wait_for(client.settle());
            return right.give(client);
        }
        // If the thread cannot be started, the client is closed in place.
        let settle = move || {
            wait_for(client.settle());
            right.give(client);
        };
        drop(without_signals(|| thread::Builder::new().name("guira-settle".to_owned()).spawn(settle)));
    }

    fn give(&self, grant: Grant<Client>) {
        let waker = self.queue().give(grant);
        waker.into_iter().for_each(Waker::wake);
    }

    fn refuse_if_forked(&self) -> Result<(), Error> {
        if self.is_own() {
            return Ok(());
        }
        Err(self.store.inner.fabric("cannot get a pooled client of")(FabricError::Forked))
    }

    fn is_own(&self) -> bool {
        self.process.is_none_or(Process::is_this)
    }

    fn queue(&self) -> MutexGuard<'_, Queue<Client>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prepares an idle client for its next holder.
fn reset(mut client: Client) -> Client {
    client.reset_for_next_holder();
    client
}

/// The party that wakes a ticket's holder at its deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    ByTimer,
    ByCaller,
}

/// A place among the waiters. Dropping it leaves, and passes on what it was granted.
struct Ticket {
    shared: Arc<Shared>,
    timeout: Duration,
    /// The time at which the task or thread began to wait.
    since: Option<Instant>,
    number: Option<Number>,
    alarm: Option<Alarm>,
    /// A right to open a client that could not be used, because the table had no free slot, and the error that said so.
    unused: Option<(OpenRight, Error)>,
    /// That error, while the holder waits for a member instead.
    refused: Option<Error>,
}

impl Ticket {
    /// Ends an attempt to open a client. Returns `None` if the table had no free slot: then the holder polls again, and
    /// waits for a member, unless there is none.
    fn opened(&mut self, right: OpenRight, opened: Result<Client, Error>) -> Result<Option<Client>, Error> {
        match opened {
            Ok(client) => {
                right.lend();
                Ok(Some(client))
            }
            Err(error @ Error::Open(OpenError::TooManyClients { .. })) => {
                self.unused = Some((right, error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, wake: Wake) -> Poll<Result<Grant<Client>, Error>> {
        // The wait may have begun before a fork.
        self.shared.refuse_if_forked()?;
        let Some(number) = self.number else { return self.begin(cx, wake) };
        // The previous waker is dropped when nothing is locked any more, here and below.
        let mut waker = cx.waker().clone();
        let granted = self.shared.queue().claim(number, &mut waker);
        if let Some(grant) = granted {
            self.number = None;
            return Poll::Ready(Ok(grant));
        }
        self.wait(cx, wake)
    }

    fn begin(&mut self, cx: &mut Context<'_>, wake: Wake) -> Poll<Result<Grant<Client>, Error>> {
        let waker = cx.waker().clone();
        {
            let mut queue = self.shared.queue();
            let grant = match self.unused.take() {
                None => queue.take(),
                Some((right, error)) if queue.retire_right() => {
                    right.lend();
                    self.refused = Some(error);
                    queue.take_idle().map(Grant::Member)
                }
                Some((right, error)) => {
                    drop(queue);
                    // The next waiter tries.
                    drop(right);
                    return Poll::Ready(Err(error));
                }
            };
            if let Some(grant) = grant {
                return Poll::Ready(Ok(grant));
            }
            if !self.timeout.is_zero() {
                self.number = Some(queue.join(waker));
            }
        }
        self.since.get_or_insert_with(Instant::now);
        self.wait(cx, wake)
    }

    /// Gives up at the deadline; until then sees to it that the holder is polled again at that time.
    fn wait(&mut self, cx: &mut Context<'_>, wake: Wake) -> Poll<Result<Grant<Client>, Error>> {
        if Instant::now() >= self.deadline() {
            return Poll::Ready(Err(self.give_up()));
        }
        if let Some(alarm) = &self.alarm {
            self.shared.timer.update(alarm, &mut cx.waker().clone());
        } else if wake == Wake::ByTimer {
            match self.shared.timer.set(self.deadline(), cx.waker().clone()) {
                Ok(alarm) => self.alarm = Some(alarm),
                Err(error) => {
                    let source = FabricError::no_thread(&error);
                    return Poll::Ready(Err(self.shared.store.inner.fabric("cannot wait for a pooled client of")(
                        source,
                    )));
                }
            }
        }
        Poll::Pending
    }

    fn deadline(&self) -> Instant {
        let since = self.since.unwrap_or_else(Instant::now);
        since.checked_add(self.timeout).unwrap_or_else(|| deadline_after(self.timeout))
    }

    fn give_up(&mut self) -> Error {
        if let Some(refused) = self.refused.take() {
            return refused;
        }
        let waited = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        Error::Open(OpenError::PoolTimeout {
            url: self.shared.store.url().clone(),
            max: self.shared.status().max,
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.shared.is_own() {
            return;
        }
        // Dropped last, when nothing is locked.
        let _of_timer = self.alarm.take().and_then(|alarm| self.shared.timer.cancel(&alarm));
        let (granted, _of_queue) = match self.number.take() {
            Some(number) => self.shared.queue().leave(number),
            None => (None, None),
        };
        match granted {
            Some(Grant::Member(client)) => self.shared.take_back(client),
            Some(Grant::MayOpen) => self.shared.give(Grant::MayOpen),
            None => {}
        }
    }
}
