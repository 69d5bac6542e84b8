//! Serving a table to other hosts: this process becomes its memory node. The tokens and keys of nodes and clients.

mod tls_file;
mod token_file;

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::url::RdmaDevice;
use guira_fabric::memory::{Ordering, SharedWords};
use guira_fabric::{Caps, Region, Space};
use guira_fabric_shm::{NameLoss, ShmError, ShmRegion};
use guira_fabric_verbs::{Device, DevicePlacement, DeviceSpace, GrowingArea, Target, VerbsAgent};
use guira_layout::Segments;
use guira_network::node::{Node, NodeAccess, NodeHandle, NodeOptions, Service};
use guira_network::tcp::BatchExecutor;
use guira_network::wire::{Fabric, Grant, Token};
use guira_rcuckoo::Table;

use crate::admin::{NodeCounters, NodeEvent};
use crate::errors::NodeError;
use crate::fabric::FabricRegion;
use crate::options::Access;
use crate::sessions::device_options;
use crate::store::{Inner, random};
use crate::{AdminError, Error, Store, Url};

pub use self::tls_file::TlsFileError;
#[cfg(feature = "tls")]
pub use self::tls_file::{ClientTls, NodeTls};
pub use self::token_file::{AccessToken, TokenFileError};

/// Bytes of a page of memory.
const PAGE_BYTES: u64 = 4096;

/// Options for serving a table: [`Store::serve`].
///
/// ```
/// use std::time::Duration;
///
/// use guira::ServeOptions;
///
/// # fn main() -> Result<(), std::net::AddrParseError> {
/// let options = ServeOptions::new("127.0.0.1:0".parse()?)
///     .listen("[::1]:0".parse()?)
///     .max_sessions(64)
///     .session_timeout(Duration::from_secs(5));
/// # let _ = options;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ServeOptions {
    listen: SocketAddr,
    others: Vec<SocketAddr>,
    tokens: Vec<AccessToken>,
    reader_tokens: Vec<AccessToken>,
    #[cfg(feature = "tls")]
    tls: Option<NodeTls>,
    observer: Option<Arc<Observer>>,
    guard: Guard,
    max_sessions: Option<u32>,
    max_sessions_per_address: Option<u32>,
    session_timeout: Option<Duration>,
    threads: Option<usize>,
    truncation: Truncation,
    rdma: Option<RdmaDevice>,
    max_memory: Option<u64>,
}

/// The effect of a truncation of the table's file on this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Truncation {
    /// The kernel kills it.
    Ends,
    /// The node stops, and the process goes on.
    Survived,
}

/// A function that is called with the events of the node.
type Observer = dyn Fn(&NodeEvent) + Send + Sync;

/// Whether other machines must authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Required,
    Waived,
}

impl ServeOptions {
    /// Options for listening on `listen` (port 0: any free port), for up to 1,024 sessions, with one thread for each
    /// core, and without a token.
    pub fn new(listen: SocketAddr) -> ServeOptions {
        ServeOptions {
            listen,
            others: Vec::new(),
            tokens: Vec::new(),
            reader_tokens: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            observer: None,
            guard: Guard::Required,
            max_sessions: None,
            max_sessions_per_address: None,
            session_timeout: None,
            threads: None,
            truncation: Truncation::Ends,
            rdma: None,
            max_memory: None,
        }
    }

    /// Limits the memory that a table which grows ([`crate::CreateOptions::max_capacity`]) may take, in bytes: the node
    /// reserves no more for its clients, and an insert that needs more fails with
    /// [`crate::Error::insufficient_space`], as does one of this store. Other local clients of the table are not
    /// limited. The limit ends with the node. By default the file system is the limit. No effect on a table of fixed
    /// size.
    #[must_use]
    pub fn max_memory(mut self, bytes: u64) -> ServeOptions {
        self.max_memory = Some(bytes);
        self
    }

    /// Serves the table over RDMA: registers its memory with a device of this machine, which then executes the verbs of
    /// clients by itself. They open `rdma://host:port`, and the addresses to listen on are for their control
    /// connections. The memory is locked twice (once for each access), so the limit of locked memory must allow that;
    /// an insert for which a table that grows ([`crate::CreateOptions::max_capacity`]) would exceed it fails with
    /// [`crate::Error::insufficient_space`].
    ///
    /// A network card's atomics are not atomic with the processor's or another card's, so nobody else may have the
    /// table open: not this process, nor another one, nor a node over TCP. Until the node stops, this store refuses
    /// clients, checks and statistics; a [`Reader`](crate::Reader) of it may take rows that are being changed for
    /// damaged ones, because it sees no locks that are on the card. Open `rdma://` instead.
    #[must_use]
    pub fn rdma(mut self, device: RdmaDevice) -> ServeOptions {
        self.rdma = Some(device);
        self
    }

    /// Adds another address to listen on.
    #[must_use]
    pub fn listen(mut self, addr: SocketAddr) -> ServeOptions {
        self.others.push(addr);
        self
    }

    /// Accepts only clients that know this token, another one set so, or one of [`ServeOptions::reader_token`]. Several
    /// tokens serve to replace one by another without an interruption.
    #[must_use]
    pub fn token(mut self, token: AccessToken) -> ServeOptions {
        self.tokens.push(token);
        self
    }

    /// Lets clients that know this token read, and nothing else. There may be several.
    #[must_use]
    pub fn reader_token(mut self, token: AccessToken) -> ServeOptions {
        self.reader_tokens.push(token);
        self
    }

    /// Requires TLS 1.3, and accepts only clients whose certificate `tls` accepts. If tokens are set, clients need
    /// both.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: NodeTls) -> ServeOptions {
        self.tls = Some(tls);
        self
    }

    /// Calls `observer` when clients connect, are refused or are dropped. It runs on the node's threads, so it must not
    /// block.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(&NodeEvent) + Send + Sync + 'static) -> ServeOptions {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Accepts other machines without a token or TLS: anyone who reaches the address may read and change the table, and
    /// damage it.
    #[must_use]
    pub fn insecure(mut self) -> ServeOptions {
        self.guard = Guard::Waived;
        self
    }

    /// Sets the maximum number of sessions at a time; default 1,024. A store and its readers share one session, its
    /// async clients and readers another, and each blocking client has its own: a program with one store and four
    /// threads with a [`Client`](crate::Client) each has five. A client that is refused is told the limit.
    #[must_use]
    pub fn max_sessions(mut self, sessions: u32) -> ServeOptions {
        self.max_sessions = Some(sessions);
        self
    }

    /// Sets the maximum number of sessions at a time from one address (for IPv6, its first 64 bits); no limit by
    /// default. The clients of a whole site may share one address.
    #[must_use]
    pub fn max_sessions_per_address(mut self, sessions: u32) -> ServeOptions {
        self.max_sessions_per_address = Some(sessions);
        self
    }

    /// Sets how long a client's machine may be silent, or a client may leave its answers unread, before its session is
    /// dropped; default 10 s, at least 1 s, in whole seconds. From 4 s on, an idle host is probed three times before;
    /// below that, one or two lost packets may cost its session.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> ServeOptions {
        self.session_timeout = Some(timeout);
        self
    }

    /// Sets the number of threads that serve sessions, 1 to 1,024; default one for each core.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> ServeOptions {
        self.threads = Some(threads);
        self
    }

    /// Keeps this process alive when the table's file is truncated while it is served, which otherwise kills it
    /// (SIGBUS). The node then closes all sessions, sends no answer that may come from the lost bytes, and stops;
    /// [`ServerHandle::stop`] returns the reason. A table without a name cannot be truncated.
    ///
    /// For programs that do nothing with the table but serve it: after a truncation, clients of this same [`Store`] in
    /// this process would read zeros, which verify as empty, and their changes would be lost. Installs a handler for
    /// SIGBUS, permanently; a SIGBUS elsewhere does what it did before.
    #[must_use]
    pub fn survive_truncation(mut self) -> ServeOptions {
        self.truncation = Truncation::Survived;
        self
    }

    /// Returns the options of the node for the memory with the name `region_id`.
    fn node_options(&self, region_id: [u64; 2], atomic_write_unit: u64, grant: Grant) -> NodeOptions {
        let mut options = NodeOptions::new(self.listen, region_id).atomic_write_unit(atomic_write_unit).grant(grant);
        options = self.others.iter().fold(options, |options, addr| options.listen(*addr));
        options = options.access(self.access());
        if let Some(observer) = self.observer.clone() {
            options = options.observer(move |event| observer(event));
        }
        if self.guard == Guard::Waived {
            options = options.insecure();
        }
        if let Some(sessions) = self.max_sessions {
            options = options.max_sessions(sessions);
        }
        if let Some(sessions) = self.max_sessions_per_address {
            options = options.max_sessions_per_address(sessions);
        }
        if let Some(timeout) = self.session_timeout {
            options = options.session_timeout(timeout);
        }
        if let Some(threads) = self.threads {
            options = options.threads(threads);
        }
        options
    }
}

impl fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServeOptions { listen, others, guard, max_sessions, session_timeout, threads, .. } = self;
        f.debug_struct("ServeOptions")
            .field("listen", listen)
            .field("others", others)
            .field("guard", guard)
            .field("max_sessions", max_sessions)
            .field("session_timeout", session_timeout)
            .field("threads", threads)
            .finish_non_exhaustive()
    }
}

impl ServeOptions {
    /// Returns the tokens and certificates that the node accepts.
    fn access(&self) -> NodeAccess {
        let token = |access: NodeAccess, AccessToken(token): &AccessToken| access.token(Token(*token));
        let reader = |access: NodeAccess, AccessToken(token): &AccessToken| access.reader_token(Token(*token));
        let access = self.tokens.iter().fold(NodeAccess::new(), token);
        let access = self.reader_tokens.iter().fold(access, reader);
        #[cfg(feature = "tls")]
        if let Some(NodeTls(tls)) = &self.tls {
            return access.tls(tls.clone());
        }
        access
    }
}

/// The memory that has the locks of a table which is served over RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockTable {
    /// Memory of the network card, which needs no access to host memory for a lock.
    DeviceMemory,
    /// Memory of the host, with the rest of the table: the card has too little memory, or the table has a name, and so
    /// outlives the card's memory.
    HostMemory,
}

/// The locks of a table that is served over RDMA.
enum Locks {
    /// In the memory of the table.
    AtHome,
    /// In memory of the device, or in other memory that it was given instead.
    Moved(LocksOnCard),
}

/// Locks that were moved out of the memory of the table while the table is served. Dropping it moves them back; it is
/// dropped when no client's verbs are executed any more.
struct LocksOnCard {
    space: DeviceSpace,
    /// Their place in the table. It keeps the table claimed for the device.
    home: SharedWords,
}

impl LocksOnCard {
    fn at_home(&self) -> Vec<u64> {
        (*self.home).as_ref().iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for LocksOnCard {
    /// Locks of clients that died are needed until these are recovered.
    fn drop(&mut self) {
        let mut words = vec![0; (*self.home).as_ref().len()];
        match self.space.read(0, &mut words) {
            Ok(()) => {
                for (cell, word) in (*self.home).as_ref().iter().zip(words) {
                    cell.store(word, Ordering::Release);
                }
            }
            Err(error) => {
                tracing::error!(%error, "the locks of a table stay on its network card; it cannot be used any more");
                // The table stays claimed for the device, so nobody uses it without its locks.
                std::mem::forget(Arc::clone(&self.home));
            }
        }
    }
}

/// The parts of a node that was started.
struct Running {
    node: NodeHandle,
    count: Arc<dyn Fn() -> NodeCounters + Send + Sync>,
}

impl Running {
    fn of<S: Service>(node: Node<S>) -> Result<Running, NodeError> {
        let count = Arc::new(node.counters());
        Ok(Running { node: node.spawn()?, count })
    }
}

/// A running memory node: serves a table as long as this handle lives. Dropping it stops the node.
///
/// This process, and others that have the table open, can use it at the same time.
pub struct ServerHandle {
    node: NodeHandle,
    /// Declared behind the node: dropped when all sessions have ended.
    locks: Option<Locks>,
    /// Likewise.
    _limit: Option<MemoryLimit>,
    region: ShmRegion,
    count: Arc<dyn Fn() -> NodeCounters + Send + Sync>,
    url: Url,
}

/// The limit of a running node on the memory that its table takes. The least one of a store's nodes holds.
struct MemoryLimit {
    store: Arc<Inner>,
    region: ShmRegion,
    bytes: u64,
}

impl MemoryLimit {
    fn new(store: &Arc<Inner>, region: &ShmRegion, bytes: u64) -> MemoryLimit {
        let limit = MemoryLimit { store: Arc::clone(store), region: region.clone(), bytes };
        limit.change(|limits| limits.push(bytes));
        limit
    }

    fn change(&self, change: impl FnOnce(&mut Vec<u64>)) {
        let mut limits = self.store.memory_limits.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut limits);
        self.region.limit_memory(limits.iter().copied().min().unwrap_or(u64::MAX));
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        self.change(|limits| {
            if let Some(own) = limits.iter().position(|bytes| *bytes == self.bytes) {
                limits.swap_remove(own);
            }
        });
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Store {
    /// Serves this table to clients on other hosts, on threads of this process: they open `tcp://host:port`, or with
    /// [`ServeOptions::rdma`] `rdma://host:port`. The node
    /// executes reads and writes of bytes and knows nothing of keys; its requests are bounded, and so is the memory for
    /// each session. A table opened for reading only is served for reading only.
    ///
    /// Clients recognize the memory: when a node is restarted over a table with a name, its clients continue; they
    /// refuse one over another table, or over memory that was lost. Local clients of a table with a name ([`Url::shm`],
    /// [`Url::file`]) can use it at the same time.
    ///
    /// # Errors
    /// `Serve` if it would accept other machines without a token or TLS, the address is taken, or the table is itself
    /// on another host; `Random`; over RDMA ([`ServeOptions::rdma`]) `Rdma` if the device cannot be used, and `Region`
    /// if the table is open elsewhere. Nothing was changed.
    ///
    /// ```
    /// use guira::{CreateOptions, ServeOptions, Store};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::create_unnamed(&CreateOptions::new(1_000))?;
    /// let served = store.serve(&ServeOptions::new("127.0.0.1:0".parse()?))?;
    /// let [addr] = served.local_addrs() else { panic!("it listens on one address") };
    /// println!("serving at tcp://{addr}");
    /// store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// assert_eq!(served.counters().sessions_opened, 0);
    /// served.stop()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn serve(&self, options: &ServeOptions) -> Result<ServerHandle, Error> {
        let inner = &self.inner;
        let failed = |source| Error::Admin(AdminError::Serve { url: inner.url.clone(), source });
        let FabricRegion::Shm(region) = inner.region()? else {
            return Err(failed(NodeError::Unsuitable { what: "its memory is that of another host" }));
        };
        if region.has_holes() && region.is_read_only() {
            return Err(failed(NodeError::Unsuitable {
                what: "it grows, and memory cannot be reserved for it by a node that may only read it",
            }));
        }
        let (region_id, atomic_write_unit) = memory(inner, &region)?;
        let grant = match inner.options.access {
            Access::ReadWrite => Grant::ReadWrite,
            Access::ReadOnly => Grant::ReadOnly,
        };
        if options.truncation == Truncation::Survived && !inner.url.is_unnamed() {
            region.guard_against_truncation()?;
        }
        let node_options = options.node_options(region_id, atomic_write_unit, grant);
        let (locks, running) = match &options.rdma {
            None => {
                let node = Node::bind(BatchExecutor::new(region.clone()), node_options);
                (None, node.and_then(Running::of))
            }
            Some(device) => {
                let (agent, locks) = self.register(&region, device)?;
                (Some(locks), Node::bind(agent, node_options).and_then(Running::of))
            }
        };
        let Running { node, count } = running.map_err(failed)?;
        let limit = options.max_memory.map(|bytes| MemoryLimit::new(inner, &region, bytes));
        Ok(ServerHandle { node, locks, _limit: limit, region, count, url: inner.url.clone() })
    }

    /// Registers the memory of the table with a device, which is the only one that changes it from now on.
    fn register(&self, region: &ShmRegion, device: &RdmaDevice) -> Result<(VerbsAgent<ShmRegion>, Locks), Error> {
        let inner = &self.inner;
        let failed = |source| Error::Admin(AdminError::ServeRdma { url: inner.url.clone(), source: Arc::new(source) });
        let claim = region.claim_for_device().map_err(|error| match error {
            ShmError::LanesOpen { .. } => Error::Admin(AdminError::InUse { url: inner.url.clone() }),
            error => error.into(),
        })?;
        let device = Device::open(&device_options(device)).map_err(failed)?;
        let target = Target::new(&device).map_err(failed)?;
        let (words, locks) = (claim.words(Space::Main), claim.words(Space::Device));
        let agent = if region.has_holes() {
            let (areas, stored) = (growing_areas(&inner.table), region.stored_parts()?);
            VerbsAgent::growing(region.clone(), target.clone(), words, &areas, &stored).map_err(failed)?
        } else {
            target.register(Space::Main, words).map_err(failed)?;
            VerbsAgent::new(region.clone(), target.clone())
        };
        let bytes = region.device_bytes();
        // A card forgets its memory when this process ends, and a table with a name does not: locks of dead clients
        // would be lost before these are recovered.
        let fits_card = inner.url.is_unnamed() && (1..=device.limits().device_memory_bytes).contains(&bytes);
        let locks = if fits_card {
            let space = target.register_device_space(bytes).map_err(failed)?;
            let on_card = LocksOnCard { space, home: locks };
            on_card.space.write(0, &on_card.at_home()).map_err(failed)?;
            Locks::Moved(on_card)
        } else {
            if bytes > 0 {
                target.register(Space::Device, locks).map_err(failed)?;
            }
            Locks::AtHome
        };
        Ok((agent, locks))
    }

    /// Returns the counters of the table's memory node since it was started, for all of its clients; `None` for a table
    /// without a node. 1 round trip.
    ///
    /// # Errors
    /// `Fabric`. Nothing was changed.
    pub fn node_counters(&self) -> Result<Option<NodeCounters>, Error> {
        let inner = &self.inner;
        let region = inner.region()?;
        let Some(session) = region.session() else { return Ok(None) };
        session.counters().map(Some).map_err(inner.fabric("cannot ask the memory node of"))
    }
}

/// Returns the parts of the main space that get memory as a table grows. No WRITE of a row, a segment or within a chunk
/// crosses two units of theirs. [R-GROW-7] [R-GROW-15]
fn growing_areas(table: &Table) -> Vec<GrowingArea> {
    let (config, geometry) = (table.config(), table.geometry());
    let Some(segments) = Segments::of(config).filter(|_| config.grows()) else { return Vec::new() };
    let [map, rows, chunk_words, chunks] = geometry.holes(config);
    // A page that a hole shares with what is in front of it has memory.
    let pages = |bytes: Range<u64>| GrowingArea {
        bytes: bytes.start.next_multiple_of(PAGE_BYTES).min(bytes.end)..bytes.end,
        unit_bytes: PAGE_BYTES,
        units_before: 0,
    };
    let unit_bytes = segments.rows() * u64::from(config.row_bytes);
    let rows = GrowingArea { bytes: rows, unit_bytes, units_before: segments.count() };
    let units_before = config.initial_chunks.unwrap_or(config.chunks);
    let chunks = GrowingArea { bytes: chunks, unit_bytes: config.chunk_bytes, units_before };
    vec![pages(map), rows, pages(chunk_words), chunks]
}

/// Returns the name of the memory at `url`, and how many bytes of a WRITE no death can tear: memory without a name is
/// gone when the process that writes it dies, so no client ever sees half a WRITE there.
fn memory(store: &Inner, region: &ShmRegion) -> Result<([u64; 2], u64), Error> {
    if store.url.is_unnamed() {
        // Drawn for this table, of which there is no copy.
        let superblock = store.table.superblock();
        return Ok(([superblock.table, superblock.incarnation], Caps::WHOLE_WRITE));
    }
    let drawn = || Ok::<_, Error>([random()?, random()?]);
    Ok((region.identity().map_or_else(drawn, Ok)?, region.caps().atomic_write_unit))
}

impl ServerHandle {
    /// Returns the addresses it listens on, in the order of the options.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.node.local_addrs()
    }

    /// Returns the fabric of its clients: the scheme of their URLs.
    pub fn fabric(&self) -> Fabric {
        if self.locks.is_some() { Fabric::Rdma } else { Fabric::Tcp }
    }

    /// Returns the memory that has the table's locks, if the table is served over RDMA.
    pub fn lock_table(&self) -> Option<LockTable> {
        Some(match self.locks.as_ref()? {
            Locks::Moved(moved) if moved.space.placement() == DevicePlacement::OnCard => LockTable::DeviceMemory,
            _ => LockTable::HostMemory,
        })
    }

    /// Returns the counters of the node since it was started.
    pub fn counters(&self) -> NodeCounters {
        (self.count)()
    }

    /// Returns a function that reads the counters, from any thread, and also after the node has stopped.
    pub fn counter_reader(&self) -> Arc<dyn Fn() -> NodeCounters + Send + Sync> {
        Arc::clone(&self.count)
    }

    /// Replaces the accepted tokens and certificates by those in `options`; its other settings are ignored. Open
    /// sessions continue, whatever they authenticated with; connections without one are closed, and connect again.
    ///
    /// # Errors
    /// `Serve` if a node that other machines reach would accept everyone. Nothing was changed.
    pub fn set_access(&self, options: &ServeOptions) -> Result<(), Error> {
        let failed = |source| Error::Admin(AdminError::Serve { url: self.url.clone(), source });
        self.node.set_access(options.access()).map_err(failed)
    }

    /// Whether the node is running. It stops by itself only if one of its threads fails, the table's bytes are lost, or
    /// its file loses its name; [`ServerHandle::stop`] returns the reason.
    pub fn is_running(&self) -> bool {
        self.node.is_running()
    }

    /// Returns how the table's file lost its name, if it did: nobody finds what clients would store there. The node
    /// stops within a second or two. Source: R-OPEN-2.
    pub fn name_loss(&self) -> Option<NameLoss> {
        self.region.name().loss()
    }

    /// Whether bytes of the table are lost, because its file was truncated. Then nothing that is read from it is valid,
    /// and the node stops within a second or two.
    pub fn has_lost_memory(&self) -> bool {
        self.region.has_lost_bytes() || matches!(self.region.verify_length(), Err(ShmError::Truncated { .. }))
    }

    /// Stops the node: closes all sessions, and waits until they have ended, a second or two.
    ///
    /// # Errors
    /// `Serve` if a thread of the node failed, or the table's bytes were lost ([`NodeError::MemoryLost`]). The node has
    /// stopped all the same.
    pub fn stop(self) -> Result<(), Error> {
        let ServerHandle { node, locks, url, .. } = self;
        let stopped = node.stop();
        if let (Err(NodeError::Unended { .. }), Some(locks)) = (&stopped, locks) {
            // Verbs may still change them, and the table stays claimed for the device.
            std::mem::forget(locks);
        }
        stopped.map_err(|source| Error::Admin(AdminError::Serve { url, source }))
    }
}
