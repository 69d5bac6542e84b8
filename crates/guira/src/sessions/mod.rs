//! The sessions of a store, and the replacement of lost ones. [R-SESSION-1]
//!
//! A table in a file is accessible as long as the process lives. A memory node is reached through connections, and each
//! connection is a session: when it ends, the client slots held through it are lost, but never the content of the
//! table. A client that finds its session lost asks [`Sessions`] for a later one.
//!
//! Invariants: session numbers grow; a later session leads to the same table as the first, or there is none; of many
//! concurrent requests, one connects; no lock is held across an await.

pub(crate) mod binding;
mod name_watch;
mod reconnect_backoff;
pub(crate) mod successor;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::url::{NodeAddress, RdmaDevice, RdmaNode};
use guira_fabric::signals::without_signals;
use guira_fabric::{FabricError, Region, Waiting};
use guira_fabric_verbs::{AttachError, ConnectionOptions, DeviceOptions, VerbsError, VerbsRegion};
use guira_layout::SuperblockError;
use guira_network::client::{ConnectError, ConnectOptions, NodeSession};
use guira_network::tcp::TcpRegion;
use guira_network::tls::TlsError;
use guira_network::wire::{CloseReason, Grant, PriorSession, SessionId, Token};
use guira_rcuckoo::{Table, TableError, open_table};

use crate::fabric::FabricRegion;
use crate::options::Access;
use crate::wait::wait_for;
use crate::{AccessToken, Error, OpenError, OpenOptions, Url};

use self::binding::is_loss;
pub(crate) use self::name_watch::NameWatch;
use self::reconnect_backoff::ReconnectBackoff;

/// The bounds of the time that a node may take to answer a batch before the connection counts as lost. Within them it
/// is the deadline of operations.
const MIN_BATCH_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_BATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest wait, if a timeout is too large for the clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The bytes of each lane's buffer: a few rows. A longer batch uses a larger buffer, which all lanes share.
const LANE_BYTES: u32 = 4 << 10;

/// A session with a memory node, or the mapping of a file, which counts as a permanent one.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) region: FabricRegion,
    /// Its number among the sessions of its [`Sessions`], from 1.
    pub(crate) number: u64,
    /// The latest session before it that the node is known to have dropped; 0 if none is.
    pub(crate) last_fenced: u64,
}

/// The successive sessions of a store, all of which wait in the same way.
pub(crate) struct Sessions(Kind);

enum Kind {
    /// The one session of a mapped file.
    Permanent(Session),
    /// Sessions with a memory node.
    Remote(Box<Remote>),
}

struct Remote {
    url: Url,
    node: NodeAddress,
    options: OpenOptions,
    waiting: Waiting,
    /// The table that every session must lead to, and the node's name for its memory.
    table: Arc<Table>,
    memory: [u64; 2],
    /// The process that owns these sessions: a forked child cannot use them.
    process: u32,
    state: Mutex<State>,
    /// Held while connecting.
    connecting: Mutex<()>,
}

#[derive(Default)]
struct State {
    session: Option<Session>,
    /// The failure of the last attempt to connect.
    failure: Option<Failure>,
    /// Reconnections that have finished, with or without success.
    finished: u64,
    /// Tasks that wait for the reconnection in progress, if there is one.
    waiters: Option<Vec<Waker>>,
}

/// The reason why there is no later session. Nothing was changed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Connect(Arc<ConnectError>),
    Attach(Arc<AttachError>),
    TokenFile(String),
    #[cfg(feature = "tls")]
    TlsFile(Arc<crate::errors::TlsFileError>),
    Open(TableError),
    Gone(&'static str),
    Process(FabricError),
}

impl Failure {
    /// Whether another attempt may succeed.
    fn is_transient(&self) -> bool {
        match self {
            Failure::Connect(error) => match &**error {
                ConnectError::Tls { reason, .. } => matches!(reason, TlsError::Failed { .. }),
                ConnectError::NotANode { .. } => false,
                ConnectError::Rejected { reason, .. } => {
                    self.is_node_full()
                        || matches!(reason, CloseReason::Shutdown | CloseReason::Fenced | CloseReason::TooSlow { .. })
                }
                _ => true,
            },
            Failure::Attach(error) => match &**error {
                AttachError::Device(VerbsError::PortDown { .. } | VerbsError::System { .. }) => true,
                AttachError::Refused { source, .. } => is_loss(source),
                _ => false,
            },
            Failure::Open(TableError::Fabric(error)) => is_loss(error),
            #[cfg(feature = "tls")]
            Failure::TlsFile(_) => false,
            Failure::TokenFile(_) | Failure::Open(_) | Failure::Gone(_) | Failure::Process(_) => false,
        }
    }

    /// Whether the node has no room for another session.
    fn is_node_full(&self) -> bool {
        let Failure::Connect(error) = self else { return false };
        matches!(
            **error,
            ConnectError::Rejected { reason: CloseReason::Full { .. } | CloseReason::AddressFull { .. }, .. }
        )
    }

    pub(crate) fn into_error(self, url: &Url, options: &OpenOptions) -> Error {
        let url = url.clone();
        match self {
            Failure::Connect(source) => Error::Open(OpenError::Connect { url, source }),
            Failure::Attach(source) => Error::Open(OpenError::Rdma { url, source }),
            Failure::TokenFile(reason) => {
                Error::Open(OpenError::TokenFile { url, path: options.token_file.clone().unwrap_or_default(), reason })
            }
            #[cfg(feature = "tls")]
            Failure::TlsFile(error) => Error::Open(OpenError::TlsFile(error)),
            Failure::Open(source) => Error::Open(OpenError::Table { url, source }),
            Failure::Gone(reason) => Error::Open(OpenError::Gone { url, reason }),
            Failure::Process(source) => Error::Fabric { doing: "cannot connect to", url, source },
        }
    }
}

/// The reaction of a reconnection to a node that has no room for another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnFull {
    /// Fails: the caller never had a session.
    Fail,
    /// Tries again: another client may close its session.
    Retry,
}

impl OnFull {
    /// Returns the reaction of a caller whose last session was that with this number, if it had one.
    fn after(lost: u64) -> OnFull {
        if lost == 0 { OnFull::Fail } else { OnFull::Retry }
    }

    /// Whether the caller gives up because of `failure`.
    fn fails(self, failure: &Failure) -> bool {
        self == OnFull::Fail && failure.is_node_full()
    }
}

/// Returns the time `timeout` from now, or a year from now if that is too far for the clock.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + MAX_TIMEOUT)
}

/// Begins a session with a memory node, in one attempt.
pub(crate) fn connect(
    node: &NodeAddress,
    options: &OpenOptions,
    waiting: Waiting,
    timeout: Duration,
    previous: Option<SessionId>,
) -> Result<FabricRegion, Failure> {
    let wanted = match options.access {
        Access::ReadWrite => Grant::ReadWrite,
        Access::ReadOnly => Grant::ReadOnly,
    };
    let mut connect = ConnectOptions::new(node.endpoint().clone())
        .with_grant(wanted)
        .with_waiting(waiting)
        .with_sample_words(0)
        .with_connect_timeout(timeout)
        .with_batch_timeout(options.deadline.clamp(MIN_BATCH_TIMEOUT, MAX_BATCH_TIMEOUT));
    if let Some(path) = &options.token_file {
        let AccessToken(token) = AccessToken::read(path).map_err(|error| Failure::TokenFile(error.to_string()))?;
        connect = connect.with_token(Token(token));
    }
    #[cfg(feature = "tls")]
    if let Some(tls) = &options.tls {
        connect = connect.with_tls(tls.load().map_err(|error| Failure::TlsFile(Arc::new(error)))?);
    }
    if let Some(previous) = previous {
        connect = connect.with_prior_session(previous);
    }
    match node {
        NodeAddress::Tcp(_) => match TcpRegion::connect(&connect) {
            Ok(region) => Ok(FabricRegion::Tcp(region)),
            Err(error) => Err(Failure::Connect(Arc::new(error))),
        },
        NodeAddress::Rdma(RdmaNode { device, .. }) => {
            match VerbsRegion::connect(&connect, &device_options(device), &queue_options(waiting)) {
                Ok(region) => Ok(FabricRegion::Rdma(region)),
                Err(AttachError::Connect(error)) => Err(Failure::Connect(Arc::new(error))),
                Err(error) => Err(Failure::Attach(Arc::new(error))),
            }
        }
    }
}

/// Returns the options that open a device.
pub(crate) fn device_options(RdmaDevice { name, port, gid_index }: &RdmaDevice) -> DeviceOptions {
    DeviceOptions { device: name.clone(), port: *port, gid: *gid_index }
}

/// Returns the options of a queue pair whose lanes wait in the given way. A blocking client has a queue pair of its
/// own, which locks 2.4 MiB of memory. Tasks share one, which locks 4.5 MiB, and 256 KiB for each 64 lanes more.
pub(crate) fn queue_options(waiting: Waiting) -> ConnectionOptions {
    let options = ConnectionOptions { lane_bytes: LANE_BYTES, ..ConnectionOptions::default() };
    match waiting {
        Waiting::InPlace => ConnectionOptions { large_buffers: 1, ..options },
        Waiting::Cooperative => ConnectionOptions { waiting, ..options },
    }
}

impl Sessions {
    /// Creates the permanent session of a mapped file.
    pub(crate) fn permanent(region: FabricRegion) -> Sessions {
        Sessions(Kind::Permanent(Session { region, number: 1, last_fenced: 0 }))
    }

    /// Creates the sessions with the memory node `node`, which has `table`; the first of them has `region`.
    pub(crate) fn remote(
        url: &Url,
        node: &NodeAddress,
        options: &OpenOptions,
        table: &Arc<Table>,
        region: FabricRegion,
    ) -> Sessions {
        let memory = region.node().map_or([0; 2], |(_, memory)| memory);
        let session = Some(Session { region, number: 1, last_fenced: 0 });
        Sessions(Kind::Remote(Box::new(Remote {
            url: url.clone(),
            node: node.clone(),
            options: options.clone(),
            waiting: Waiting::InPlace,
            table: Arc::clone(table),
            memory,
            process: std::process::id(),
            state: Mutex::new(State { session, ..State::default() }),
            connecting: Mutex::new(()),
        })))
    }

    /// Returns sessions of their own with the same node, which wait in the given way; for a mapped file, the same
    /// session.
    pub(crate) fn separate(self: &Arc<Self>, waiting: Waiting) -> Arc<Sessions> {
        match &self.0 {
            Kind::Permanent(_) => Arc::clone(self),
            Kind::Remote(remote) => {
                let Remote { url, node, options, table, memory, process, .. } = &**remote;
                Arc::new(Sessions(Kind::Remote(Box::new(Remote {
                    url: url.clone(),
                    node: node.clone(),
                    options: options.clone(),
                    waiting,
                    table: Arc::clone(table),
                    memory: *memory,
                    // A forked child gets no sessions from its parent's store, whichever way they wait.
                    process: *process,
                    state: Mutex::default(),
                    connecting: Mutex::default(),
                }))))
            }
        }
    }

    /// Returns the latest session, lost or not, if there ever was one.
    pub(crate) fn latest(&self) -> Option<Session> {
        match &self.0 {
            Kind::Permanent(session) => Some(session.clone()),
            Kind::Remote(remote) => remote.state().session.clone(),
        }
    }

    /// Returns a session that is not known to be lost: the latest, or a new one. Tries to connect at least once, and
    /// until `until`, with growing waits; blocks meanwhile.
    pub(crate) fn current(&self, until: Instant) -> Result<Session, Error> {
        let remote = match &self.0 {
            Kind::Permanent(session) => return Ok(session.clone()),
            Kind::Remote(remote) => remote,
        };
        let lost = match remote.state().session.clone() {
            Some(session) if !session.region.is_lost() => return Ok(session),
            session => session.map_or(0, |session| session.number),
        };
        remote.reconnect(lost, until).map_err(|failure| remote.error(failure))
    }

    /// Same as [`Sessions::current`], for a task.
    pub(crate) async fn current_async(self: &Arc<Self>, until: Instant) -> Result<Session, Error> {
        match self.latest() {
            Some(session) if !session.region.is_lost() => Ok(session),
            session => self.after(session.map_or(0, |session| session.number), until).await,
        }
    }

    /// Runs `call` in a session. A call that loses its session has changed nothing, and is repeated in another session:
    /// at least once, and then for `timeout`, with growing waits. Blocks meanwhile.
    pub(crate) fn run<T>(
        &self,
        timeout: Duration,
        mut call: impl FnMut(&Session) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut session = self.current(deadline_after(timeout))?;
        let (mut until, mut backoff) = (None, ReconnectBackoff::new(crate::store::random().unwrap_or_default()));
        loop {
            let error = match call(&session) {
                Err(error) if session.region.is_lost() => error,
                result => return result,
            };
            let until = match until {
                None => *until.insert(deadline_after(timeout)),
                Some(until) => match backoff.next(until.saturating_duration_since(Instant::now())) {
                    Some(wait) => {
                        thread::sleep(wait);
                        until
                    }
                    None => return Err(error),
                },
            };
            session = self.current(until)?;
        }
    }

    /// Returns a session later than `lost`. Tries to connect at least once, and until `until`, with growing waits.
    /// Waits in the way of these sessions.
    pub(crate) async fn after(self: &Arc<Self>, lost: u64, until: Instant) -> Result<Session, Error> {
        match &self.0 {
            Kind::Permanent(session) => Ok(session.clone()),
            Kind::Remote(remote) => match remote.waiting {
                Waiting::InPlace => remote.reconnect(lost, until),
                Waiting::Cooperative => {
                    let mut ticket = None;
                    std::future::poll_fn(|cx| self.poll_after(remote, lost, until, &mut ticket, cx)).await
                }
            }
            .map_err(|failure| remote.error(failure)),
        }
    }

    /// Same as [`Sessions::after`], for a task: a thread reconnects, for all tasks that wait. `ticket` is the number of
    /// reconnections that had finished when this task last looked.
    fn poll_after(
        self: &Arc<Self>,
        remote: &Remote,
        lost: u64,
        until: Instant,
        ticket: &mut Option<u64>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Session, Failure>> {
        let mut state = remote.state();
        if let Some(session) = state.session.as_ref().filter(|session| session.number > lost) {
            return Poll::Ready(Ok(session.clone()));
        }
        let finished = state.finished;
        if let (true, Some(failure)) = (finished > ticket.replace(finished).unwrap_or(finished), &state.failure)
            && (!failure.is_transient() || OnFull::after(lost).fails(failure) || Instant::now() >= until)
        {
            return Poll::Ready(Err(failure.clone()));
        }
        let is_reconnecting = state.waiters.is_some();
        let waiters = state.waiters.get_or_insert_default();
        if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiters.push(cx.waker().clone());
        }
        drop(state);
        if !is_reconnecting {
            let sessions = Arc::clone(self);
            let reconnect = move || sessions.reconnect_and_notify(lost, until);
            let builder = thread::Builder::new().name("guira-reconnect".to_owned());
            if let Err(error) = without_signals(|| builder.spawn(reconnect)) {
                let failure = Failure::Process(FabricError::no_thread(&error));
                remote.notify(Some(failure.clone()));
                return Poll::Ready(Err(failure));
            }
        }
        Poll::Pending
    }

    fn reconnect_and_notify(&self, lost: u64, until: Instant) {
        if let Kind::Remote(remote) = &self.0 {
            let failure = remote.reconnect(lost, until).err();
            remote.notify(failure);
        }
    }
}

impl Remote {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, failure: Failure) -> Error {
        failure.into_error(&self.url, &self.options)
    }

    /// Ends a reconnection, and wakes the tasks that wait for it.
    fn notify(&self, failure: Option<Failure>) {
        let mut state = self.state();
        state.finished += 1;
        state.failure = failure;
        let waiters = state.waiters.take();
        drop(state);
        waiters.into_iter().flatten().for_each(Waker::wake);
    }

    /// Same as [`Sessions::after`]; blocks.
    fn reconnect(&self, lost: u64, until: Instant) -> Result<Session, Failure> {
        if std::process::id() != self.process {
            return Err(Failure::Process(FabricError::Forked));
        }
        let mut backoff = ReconnectBackoff::new(crate::store::random().unwrap_or_default());
        loop {
            let failure = match self.attempt(lost, until) {
                Err(failure) if failure.is_transient() && !OnFull::after(lost).fails(&failure) => failure,
                result => return result,
            };
            match backoff.next(until.saturating_duration_since(Instant::now())) {
                Some(wait) => thread::sleep(wait),
                None => return Err(failure),
            }
        }
    }

    /// Connects and verifies the table, unless another thread did while this one waited to connect, or failed until it
    /// was too late for another attempt.
    fn attempt(&self, lost: u64, until: Instant) -> Result<Session, Failure> {
        let began = Instant::now();
        let _guard = self.connecting.lock().unwrap_or_else(PoisonError::into_inner);
        let (previous, failure) = {
            let state = self.state();
            (state.session.clone(), state.failure.clone())
        };
        if let Some(session) = previous.as_ref().filter(|session| session.number > lost) {
            return Ok(session.clone());
        }
        let waited_too_long = began < until && Instant::now() >= until;
        if let (true, Some(failure)) = (waited_too_long, failure) {
            return Err(failure);
        }
        let result = self.connect(previous.as_ref(), until);
        let mut state = self.state();
        match &result {
            Ok(session) => (state.session, state.failure) = (Some(session.clone()), None),
            Err(failure) => state.failure = Some(failure.clone()),
        }
        result
    }

    fn connect(&self, previous: Option<&Session>, until: Instant) -> Result<Session, Failure> {
        // The node may serve other memory later, but not what was lost: the call fails at once.
        if previous.is_some_and(|session| session.region.has_lost_bytes()) {
            return Err(Failure::Gone("its memory node lost it"));
        }
        let left = until.saturating_duration_since(Instant::now());
        let longest = self.options.connect_timeout;
        // The first attempt may take the full timeout; later ones end at the deadline.
        let timeout = if left.is_zero() { longest } else { longest.min(left) };
        let name = previous.and_then(|session| session.region.session()).map(NodeSession::id);
        let region = connect(&self.node, &self.options, self.waiting, timeout, name)?;
        let was_fenced = region.session().is_some_and(|session| session.prior_session() == PriorSession::Fenced);
        verify(&region, &self.table)?;
        // A copy of the table is not the table. // [R-OPEN-2]
        if region.node().is_none_or(|(_, memory)| memory != self.memory) {
            return Err(Failure::Gone("its memory node has other memory now, such as a copy of the table"));
        }
        let (number, last_fenced) = match previous {
            None => (1, 0),
            Some(previous) if was_fenced => (previous.number + 1, previous.number),
            Some(previous) => (previous.number + 1, previous.last_fenced),
        };
        Ok(Session { region, number, last_fenced })
    }
}

/// Verifies that `region` still has the table that was opened. 1 round trip. [R-OPEN-1]
fn verify(region: &FabricRegion, wanted: &Table) -> Result<(), Failure> {
    match wait_for(open_table(region.lane().any(), region.main_bytes())) {
        Ok(found) if found.superblock() == wanted.superblock() => Ok(()),
        Ok(_) => Err(Failure::Gone("its memory node has another table now")),
        Err(TableError::Superblock(SuperblockError::Empty)) => Err(Failure::Gone("its memory node has no table now")),
        Err(error) => Err(Failure::Open(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task that begins to wait while another one's reconnection is about to end has a time of its own.
    #[test]
    fn a_task_that_joins_a_reconnection_late_has_its_own_time() {
        let store = crate::Store::create_unnamed(&crate::CreateOptions::new(100)).unwrap();
        // Nobody listens there once it is closed.
        let port = guira_testing::ReservedPort::new();
        let url: Url = format!("tcp://127.0.0.1:{}", port.port).parse().unwrap();
        let Ok(crate::url::Backend::Node(node)) = url.backend() else { panic!("{url} leads to a node") };
        let remote = Remote {
            node: node.clone(),
            options: OpenOptions::new(),
            waiting: Waiting::Cooperative,
            table: Arc::clone(&store.inner.table),
            memory: [0; 2],
            process: std::process::id(),
            state: Mutex::default(),
            connecting: Mutex::default(),
            url,
        };
        let sessions = Arc::new(Sessions(Kind::Remote(Box::new(remote))));
        let Kind::Remote(remote) = &sessions.0 else { unreachable!("it was created so") };
        let (mut first, mut second) = (
            Box::pin(sessions.after(1, Instant::now())),
            Box::pin(sessions.after(1, Instant::now() + Duration::from_secs(3_600))),
        );
        let mut cx = Context::from_waker(Waker::noop());
        let held = remote.connecting.lock().unwrap();
        assert!(first.as_mut().poll(&mut cx).is_pending() && second.as_mut().poll(&mut cx).is_pending());
        drop(held);
        assert!(wait_for(first).is_err());
        assert!(second.as_mut().poll(&mut cx).is_pending(), "it goes on");
    }

    /// Failures that another attempt may overcome are retried; others are reported at once.
    #[test]
    fn transient_failures_are_distinguished_from_permanent_ones() {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 7117));
        let connect = |error| Failure::Connect(Arc::new(error));
        let rejected = |reason| connect(ConnectError::Rejected { address, reason });
        let lost = FabricError::Disconnected { effect: guira_fabric::Effect::None };
        for transient in [
            connect(ConnectError::Refused { address }),
            connect(ConnectError::TimedOut { address, timeout_ms: 5 }),
            connect(ConnectError::Closed {
                address,
                attempts: 3,
                tried_ms: 50,
                how: std::io::ErrorKind::UnexpectedEof,
            }),
            rejected(CloseReason::Full { limit: 4 }),
            rejected(CloseReason::AddressFull { limit: 4 }),
            rejected(CloseReason::Shutdown),
            Failure::Open(TableError::Fabric(lost)),
        ] {
            assert!(transient.is_transient(), "{transient:?}");
        }
        for permanent in [
            rejected(CloseReason::Unauthorized),
            rejected(CloseReason::Version { node: 2 }),
            rejected(CloseReason::ProtocolError),
            Failure::Open(TableError::Destroyed),
            Failure::Open(TableError::Fabric(FabricError::Forked)),
            Failure::Gone("its memory node has no table now"),
            Failure::TokenFile("it does not exist".to_owned()),
            Failure::Process(FabricError::Forked),
        ] {
            assert!(!permanent.is_transient(), "{permanent:?}");
        }
    }
}
