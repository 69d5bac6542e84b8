//! The part that the clones of a pool, its clients and those who wait for one have in common.
//!
//! Invariants: each member, and each right to open one, is given back however its holder ends: [`Permit`], [`Ticket`]
//! and the guards of clients see to it. No client is opened, closed or waited for while the queue is locked, and no
//! waker is cloned, woken or dropped. In a forked child nothing is locked: the threads that would unlock it do not
//! exist there.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use guira_fabric::FabricError;
use guira_fabric::process::Process;

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
    /// Whose it is.
    process: Option<Process>,
    queue: Mutex<Queue<Client>>,
    timer: Arc<Timer>,
}

/// The place of a member that is being opened, settled or closed: gives it up when it is dropped.
struct Permit(Option<Arc<Shared>>);

impl Permit {
    fn new(shared: &Arc<Shared>) -> Permit {
        Permit(Some(Arc::clone(shared)))
    }

    /// Its member is with a holder.
    fn lend(mut self) {
        self.0 = None;
    }

    /// Its member is for whoever is next.
    fn give(mut self, client: Client) {
        if let Some(shared) = self.0.take() {
            shared.give(Grant::Member(client));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
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

    /// A client, for a task.
    pub(crate) async fn client(self: &Arc<Self>, timeout: Duration) -> Result<Client, Error> {
        let mut ticket = self.ticket(timeout)?;
        match poll_fn(|cx| ticket.poll(cx, Wake::ByTimer)).await? {
            Grant::Member(client) => Ok(reset(client)),
            Grant::MayOpen => {
                let permit = Permit::new(self);
                let client = self.store.to_async().client().await?;
                permit.lend();
                Ok(client)
            }
        }
    }

    /// A client, for this thread.
    pub(crate) fn client_in_place(self: &Arc<Self>, timeout: Duration) -> Result<Client, Error> {
        let mut ticket = self.ticket(timeout)?;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        // Ends: at the ticket's deadline.
        let grant = loop {
            match ticket.poll(&mut Context::from_waker(&waker), Wake::ByCaller) {
                Poll::Ready(grant) => break grant?,
                Poll::Pending => thread::park_timeout(ticket.deadline().saturating_duration_since(Instant::now())),
            }
        };
        match grant {
            Grant::Member(client) => Ok(reset(client)),
            Grant::MayOpen => {
                let permit = Permit::new(self);
                let client = self.store.client()?.0;
                permit.lend();
                Ok(client)
            }
        }
    }

    fn ticket(self: &Arc<Self>, timeout: Duration) -> Result<Ticket, Error> {
        self.refuse_if_forked()?;
        Ok(Ticket { shared: Arc::clone(self), timeout, since: None, number: None, alarm: None })
    }

    /// Closes the clients that nobody has. The first error, after all were tried.
    pub(crate) async fn close_idle(self: &Arc<Self>) -> Result<(), Error> {
        self.refuse_if_forked()?;
        let (mut result, idle) = (Ok(()), self.queue().idle());
        for _ in 0..idle {
            let Some(client) = self.queue().take_idle() else { break };
            // Its place is given up when it is closed.
            let _permit = Permit::new(self);
            result = result.and(client.close().await);
        }
        result
    }

    /// Takes a client back from its holder. // [R-DROP-1]
    pub(crate) fn take_back(self: &Arc<Self>, client: Client) {
        if !self.is_own() {
            // The client is the parent's, and so is its place.
            return;
        }
        if thread::panicking() || client.is_useless() {
            // Closed first: there are never more clients than may be. What a panic left half done ends with it.
            let permit = Permit::new(self);
            drop(client);
            drop(permit);
        } else if client.is_settled() {
            self.give(Grant::Member(client));
        } else {
            self.settle(client);
        }
    }

    /// Has a client give back what its last operation, which was dropped, had acquired: nobody may operate with it for
    /// long, and others wait for its locks. // [R-DROP-1]
    fn settle(self: &Arc<Self>, mut client: Client) {
        let permit = Permit::new(self);
        if !client.is_remote() {
            // No batch travels: it is over at once.
            wait_for(client.settle());
            return permit.give(client);
        }
        // If there is no thread, the client is closed in place.
        let settle = move || {
            wait_for(client.settle());
            permit.give(client);
        };
        drop(thread::Builder::new().name("guira-settle".to_owned()).spawn(settle));
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

/// An idle client, for its next holder.
fn reset(mut client: Client) -> Client {
    client.reset_for_next_holder();
    client
}

/// Who wakes a ticket's holder at its deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    ByTimer,
    ByCaller,
}

/// A place among those who wait, left by dropping it: what was granted to it meanwhile goes to the next.
struct Ticket {
    shared: Arc<Shared>,
    timeout: Duration,
    /// Since when it waits.
    since: Option<Instant>,
    number: Option<Number>,
    alarm: Option<Alarm>,
}

impl Ticket {
    fn poll(&mut self, cx: &mut Context<'_>, wake: Wake) -> Poll<Result<Grant<Client>, Error>> {
        // It may have begun before the fork.
        self.shared.refuse_if_forked()?;
        let Some(number) = self.number else { return self.begin(cx, wake) };
        // What was kept before is dropped when nothing is locked any more, here and below.
        let mut waker = cx.waker().clone();
        let granted = self.shared.queue().claim(number, &mut waker);
        if let Some(grant) = granted {
            self.number = None;
            return Poll::Ready(Ok(grant));
        }
        if Instant::now() >= self.deadline() {
            return Poll::Ready(Err(self.give_up()));
        }
        if let Some(alarm) = &self.alarm {
            self.shared.timer.update(alarm, &mut cx.waker().clone());
        }
        Poll::Pending
    }

    fn begin(&mut self, cx: &mut Context<'_>, wake: Wake) -> Poll<Result<Grant<Client>, Error>> {
        let waker = cx.waker().clone();
        {
            let mut queue = self.shared.queue();
            if let Some(grant) = queue.take() {
                return Poll::Ready(Ok(grant));
            }
            if !self.timeout.is_zero() {
                self.number = Some(queue.join(waker));
            }
        }
        self.since = Some(Instant::now());
        if self.timeout.is_zero() {
            return Poll::Ready(Err(self.give_up()));
        }
        if wake == Wake::ByTimer {
            match self.shared.timer.set(self.deadline(), cx.waker().clone()) {
                Ok(alarm) => self.alarm = Some(alarm),
                Err(error) => {
                    let source = FabricError::Backend(format!("cannot start a thread: {error}"));
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

    fn give_up(&self) -> Error {
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
