//! Stores: open tables.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::url::Backend;
use guira_check::{CheckOptions, CheckReport, Concurrency, ProblemKind, check_table};
use guira_fabric::{FabricError, FenceProof, Lane, Region, SlotHold, Waiting, pause_until};
use guira_fabric_shm::{Attempt, NameLoss, ShmError, ShmRegion};
use guira_layout::{EntryFormat, OwnerId, SlotState, SlotWord};
use guira_rcuckoo::{
    ClientConfig, RowPredictor, SlotClient, Table, TableError, claim_generation, open_table, read_map, read_slot,
    reserve_table, slots,
};

use crate::admin::repair::own_slot_client;
use crate::admin::stat::liveness;
use crate::admin::{ClientState, Stat};
use crate::aio::Taken;
use crate::events::Events;
use crate::fabric::{FabricLane, FabricRegion};
use crate::options::Access;
use crate::sessions::NameWatch;
use crate::sessions::binding::without_effect;
use crate::sessions::successor::Successor;
use crate::sessions::{self, Session, Sessions};
use crate::wait::block_on;
use crate::{AdminError, Client, Error, OpenError, OpenOptions, OperationErrorKind, Pool, Reader, Url, aio};

/// A table that this process has opened. Clones share it, also between threads; each thread takes a client or reader of
/// its own.
///
/// The memory stays mapped as long as a clone, a client or a reader lives. A forked process has to open the table
/// again: every operation on an inherited store fails.
///
/// Threads that the library starts, all named `guira-...`, block the signals of the process: those are for the threads of
/// the program.
///
/// ```
/// use guira::{CreateOptions, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// let store = Store::create(&url, &CreateOptions::new(1_000))?;
/// std::thread::scope(|scope| {
///     let puts = ["cuckoo", "heron"].map(|key| {
///         let store = store.clone();
///         scope.spawn(move || store.client()?.put(key.as_bytes(), b"seen"))
///     });
///     puts.map(|put| put.join().expect("puts do not panic")).into_iter().collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(store.len_estimate()?.entries, 2);
/// # Store::destroy(&url)
/// # }
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("url", &self.inner.url).finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) url: Url,
    pub(crate) table: Arc<Table>,
    pub(crate) options: OpenOptions,
    pub(crate) events: Events,
    origin: Origin,
    /// The region of the first session.
    pub(crate) first: FabricRegion,
    /// The sessions of the store's own calls and of blocking readers.
    sessions: Arc<Sessions>,
    /// The sessions of async clients and readers.
    pub(crate) cooperative: Arc<Sessions>,
    /// The number of clients opened so far.
    opened: AtomicU32,
    /// See [`scan_start`].
    scan_start: u32,
    /// The predictor that all clients and readers share, if there is one. [R-READ-10]
    pub(crate) predictor: Option<Arc<RowPredictor>>,
    /// The watch over the name of the table's file, if it has one and a thread could be started.
    name_watch: OnceLock<NameWatch>,
    /// Whether an operation has reported that the table is gone, and the store reopens. [R-OPEN-3]
    pub(crate) loss_reported: AtomicBool,
    /// The store of the table that the URL led to after that.
    pub(crate) successor: Mutex<Successor>,
    /// The limits of this store's memory nodes on the bytes of memory that the table takes.
    pub(crate) memory_limits: Mutex<Vec<u64>>,
}

/// The origin of a store's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This store created it.
    Created,
    /// It existed before.
    Opened,
}

/// The slots that a new client looks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Free,
    Dead,
}

/// The result of a scan of all slots.
enum SlotSearch {
    /// A slot was claimed.
    Claimed(SlotClaim),
    /// No slot could be claimed.
    NoneFree(SlotsTaken),
}

/// A slot that was claimed.
struct SlotClaim {
    owner: OwnerId,
    generation: u64,
    /// Keeps it.
    hold: SlotHold,
}

/// The state of the slots when none could be claimed.
struct SlotsTaken {
    /// Slots whose client is dead and could not be recovered.
    dead: u16,
    /// Whether every other slot had a live client: no slot was free, and none was being recovered while another process
    /// held it.
    is_stable: bool,
}

/// Consecutive scans that must find all slots taken before the client gives up: a process that checks a client's
/// liveness, or begins its recovery, holds its slot for some microseconds.
const STABLE_SCANS: u32 = 3;
/// The pause after the first scan of all slots; it doubles after each further scan.
const MIN_SCAN_PAUSE_NS: u64 = 100_000;
/// The maximum pause between two scans of all slots: a recovery takes less.
const MAX_SCAN_PAUSE_NS: u64 = 10_000_000;

/// Returns the slot at which a new store's first client starts its search, as a fraction of all slots in 2^32. The
/// stores of one process start far apart: if they started at the same slot, each would look at all slots taken before
/// it, at a round trip or two for each.
fn scan_start() -> u32 {
    static STORES: AtomicU32 = AtomicU32::new(0);
    scan_start_of(STORES.fetch_add(1, Ordering::Relaxed))
}

/// Returns the start for the store with this number: multiples of the golden ratio are as far apart as possible.
fn scan_start_of(store: u32) -> u32 {
    store.wrapping_mul(0x9e37_79b9)
}

/// Draws a random number from the operating system.
pub(crate) fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| Error::Open(OpenError::Random { reason: error.to_string() }))
}

impl Store {
    /// Opens a table of this user or of root for reading and writing, with a deadline of 10 s. `url` is a [`Url`] or
    /// its text. 1 round trip. Source: R-OPEN-1.
    ///
    /// # Errors
    /// `Url` if the text is not a URL; `Owner` if the table belongs to another user; `Region` if the file is missing
    /// ([`Error::is_not_found`]), not permitted, truncated or not a Guira table, or if its lock file cannot be used
    /// ([`crate::errors::ShmError::LockFile`]: it can still be opened for reading); `Table` if its content is not a
    /// table, is damaged, or was destroyed; `Connect` if a memory node does not answer or refuses this client. Nothing
    /// was changed.
    ///
    /// ```
    /// use guira::{CreateOptions, Store};
    ///
    /// # fn main() -> Result<(), guira::Error> {
    /// # let name = guira_testing::unique_name();
    /// # let url = &format!("shm://{name}");
    /// # Store::create(url, &CreateOptions::new(1_000))?;
    /// let store = Store::open(url)?; // Such as "shm://birds", or "tcp://birds.example:7711".
    /// store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// # Store::destroy(url)
    /// # }
    /// ```
    pub fn open<U>(url: U) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Store::open_url(&url.try_into()?, &OpenOptions::default())
    }

    /// Opens a table with `options`. 1 round trip; behind a memory node, 1 more for the session, and those of TCP.
    /// Source: R-OPEN-1.
    ///
    /// # Errors
    /// Same as [`Store::open`]; `TokenFile`.
    pub fn open_with<U>(url: U, options: &OpenOptions) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Store::open_url(&url.try_into()?, options)
    }

    pub(crate) fn open_url(url: &Url, options: &OpenOptions) -> Result<Store, Error> {
        let region = match url.backend()? {
            Backend::File(location) => {
                let access = match options.access {
                    Access::ReadWrite => guira_fabric_shm::Access::ReadWrite,
                    Access::ReadOnly => guira_fabric_shm::Access::ReadOnly,
                };
                let region = ShmRegion::open(&location, access)?;
                options.owners.admit(url, &region, options.access)?;
                FabricRegion::Shm(region)
            }
            Backend::Node(node) => {
                let region = sessions::connect(node, options, Waiting::InPlace, options.connect_timeout, None);
                region.map_err(|failure| failure.into_error(url, options))?
            }
        };
        Store::open_in(url, options, region)
    }

    /// Opens the table in `region`, to which `url` leads.
    pub(crate) fn open_in(url: &Url, options: &OpenOptions, region: FabricRegion) -> Result<Store, Error> {
        let opened = block_on(open_table(&mut region.lane(), region.main_bytes()));
        let table = opened.map_err(|source| Error::Open(OpenError::Table { url: url.clone(), source }))?;
        if table.geometry().device_bytes() > region.device_bytes() {
            let (wanted, found) = (table.geometry().device_bytes(), region.device_bytes());
            return Err(Error::Open(OpenError::Table {
                url: url.clone(),
                source: TableError::Truncated { wanted, found },
            }));
        }
        if options.access == Access::ReadWrite {
            reserve_lost_memory(url, &region, &table)?;
        }
        let read = block_on(read_map(region.lane().any(), &table));
        read.map_err(|source| Error::Fabric { doing: "cannot open", url: url.clone(), source })?;
        let sessions = Arc::new(match url.backend()? {
            Backend::File(_) => Sessions::permanent(region.clone()),
            Backend::Node(node) => Sessions::remote(url, node, options, &table, region.clone()),
        });
        Ok(Store::assemble(url, region, sessions, table, options.clone(), Origin::Opened))
    }

    pub(crate) fn assemble(
        url: &Url,
        first: FabricRegion,
        sessions: Arc<Sessions>,
        table: Arc<Table>,
        options: OpenOptions,
        origin: Origin,
    ) -> Store {
        let cooperative = sessions.separate(Waiting::Cooperative);
        let (url, events, opened) = (url.clone(), Events::of(url), AtomicU32::new(0));
        let predictor_bytes = options.predictor_bytes;
        let inner = Arc::new(Inner {
            url,
            table,
            options,
            events,
            origin,
            first,
            sessions,
            cooperative,
            opened,
            scan_start: scan_start(),
            predictor: (predictor_bytes > 0).then(|| Arc::new(RowPredictor::new(predictor_bytes))),
            name_watch: OnceLock::new(),
            loss_reported: AtomicBool::new(false),
            successor: Mutex::default(),
            memory_limits: Mutex::default(),
        });
        inner.watch_name();
        Store { inner }
    }

    /// Whether the table is gone since it was opened: it was destroyed, its memory node has other memory now, or its file
    /// lost its name. Every operation reports that by itself, lookups included ([`Error::is_gone`]); this is for programs
    /// that want to know it without an operation. 1 round trip. Source: R-DESTROY-1, R-DESTROY-2, R-OPEN-2.
    ///
    /// # Errors
    /// `Table` if its superblock is damaged; `Fabric`. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// assert!(!store.is_destroyed()?);
    /// Store::destroy(&url)?;
    /// assert!(store.is_destroyed()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_destroyed(&self) -> Result<bool, Error> {
        // Also while a network card serves the table: it changes no superblock.
        let verify = |session: &Session| {
            block_on(self.inner.verify_table(&session.region))?;
            self.inner.refuse_nameless(session.region.name_loss())
        };
        match self.inner.sessions.run(self.inner.options.reconnect_timeout, verify) {
            Ok(()) => Ok(false),
            Err(error) if error.is_gone() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether this store created its table: true after [`Store::create`], false after [`Store::open`], and either
    /// after [`Store::open_or_create`], so that the creator can fill the table. No round trip.
    pub fn was_created(&self) -> bool {
        self.inner.origin == Origin::Created
    }

    /// Returns the entry format of the table, which bounds the lengths of keys and values. No round trip.
    pub fn format(&self) -> EntryFormat {
        self.inner.table.config().format
    }

    /// Whether this store can only read: because it was opened for reading ([`OpenOptions::read_only`]), or because the
    /// memory node lets this client only read, as of the latest session. Opening clients, recovering them, and finding
    /// out which are alive need write access. No round trip.
    pub fn is_read_only(&self) -> bool {
        self.inner.may_only_read(&self.inner.latest_region())
    }

    /// Returns the URL that the table was opened with. No round trip.
    pub fn url(&self) -> &Url {
        &self.inner.url
    }

    /// Returns the table's parameters and layout, which never change. Their types are in [`crate::raw::layout`]. No
    /// round trip.
    pub fn table(&self) -> &Table {
        &self.inner.table
    }

    /// Opens a client, whose operations block. It takes one of the table's client slots while it lives: keep it, one
    /// for each thread. A process can have as many as the kernel allows mappings (65,530 by default).
    ///
    /// Round trips: 3, and 1 more for each slot of a dead client that it comes across; if no slot is free, those of
    /// recovering a dead client. Behind a memory node each client makes a connection of
    /// its own: 2 more, and those of TCP; if the node does not answer, this call waits
    /// ([`OpenOptions::reconnect_timeout`]). Source: R-SLOT-1, R-SLOT-2, R-DESTROY-1, R-RECOVER-3.
    ///
    /// # Errors
    /// `Table` if the table was destroyed, or its superblock is damaged; `TooManyClients` if every slot has a live
    /// client: while slots are being taken, given back or recovered, this call looks again, until the deadline
    /// ([`OpenOptions::deadline`]); `SlotsLocked`, without that wait, if a process that is not a client has locked
    /// slots and no other slot is free; `ReadOnly` if the table was opened for reading, `ReadOnlyGrant` if its memory
    /// node lets this client only read; `Fabric`. No slot is taken then.
    pub fn client(&self) -> Result<Client, Error> {
        let inner = &self.current()?.inner;
        inner.refuse_read_only()?;
        // With a session of its own, a client does not lose its slot with another one's session, nor wait for another
        // one's answers.
        let (sessions, waiting) = (inner.sessions.separate(Waiting::InPlace), Waiting::InPlace);
        // A slot taken through a lost session is that of a dead client.
        let claimed = sessions.run(inner.options.reconnect_timeout, |session| {
            Ok((block_on(inner.claim_in(session, waiting))?, session.clone()))
        });
        let (taken, session) = inner.noted(claimed.map_err(without_effect))?;
        Ok(Client(aio::Client::new(inner, &sessions, &session, waiting, taken)))
    }

    /// Returns a reader, whose lookups block: one for each thread. It takes no slot, needs no round trip, and cannot
    /// fail; behind a memory node, all readers of this store share its connection. See the example at [`Reader`].
    pub fn reader(&self) -> Reader {
        Reader(aio::Reader::new(&self.inner, &self.inner.sessions, Waiting::InPlace))
    }

    /// Returns a pool of at most `max` clients, for any number of threads; 0 counts as 1. Each open client has one of
    /// the table's slots, so [`crate::CreateOptions::max_clients`] bounds the clients of all processes, pooled or not;
    /// behind a memory node each has a connection of its own. Opens no client, and cannot fail; no round trip. Source:
    /// R-SLOT-1.
    pub fn pool(&self, max: u16) -> Pool {
        Pool::new(self, max)
    }

    /// Returns the same store with the async API. No round trip.
    pub fn to_async(&self) -> aio::Store {
        self.clone().into()
    }

    /// Collects statistics: what the table holds and which clients have it open. It is not a snapshot: other clients go
    /// on meanwhile. Reads every row and slot, but no key or value. Round trips: 1 for 64 rows, for 4,096 chunks and
    /// for 256 client slots, 1 for the totals, up to 2 for each slot that is not free, and 1; rows that do not verify
    /// are read up to 11 times more, over 41 ms, and then counted as such.
    ///
    /// # Errors
    /// `Check` or `Fabric` if the table cannot be read, `Region` if its file cannot; `Table` if it was destroyed,
    /// before or meanwhile, or if its superblock is damaged. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let stat = store.stat()?;
    /// assert_eq!((stat.format.as_str(), stat.max_clients, stat.clients.len()), ("bytes:64", 1_024, 0));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn stat(&self) -> Result<Stat, Error> {
        crate::admin::stat::stat(&self.current()?.inner)
    }

    /// Checks every row, checksum, entry, lock, slot and extent, while other clients go on. Leftovers of dead clients
    /// that are not recovered yet, and rows that a lock holder has half written, are not problems, but reported
    /// separately ([`CheckReport::under_way`]); a store opened for reading cannot tell which clients are dead. The
    /// report lists the first 100 of each kind and counts all. Changes nothing.
    ///
    /// Round trips: 1 for 64 rows, and 1 for each further 64 second rows of their entries; 2 for each extent; 1 for 64
    /// slots of an extent chunk, for 32 client slots and for 4,096 lock or chunk words. Anything that looks wrong is
    /// read 15 times more, over 0.65 s.
    ///
    /// # Errors
    /// `Check` or `Fabric` if the table cannot be read. Damage is not an error: it is in the report.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let report = store.check()?;
    /// assert!(report.is_clean(), "{:?}", report.problems);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn check(&self) -> Result<CheckReport, Error> {
        let inner = &self.current()?.inner;
        inner.read(|region| {
            let slots = block_on(slots(&mut region.lane(), &inner.table)).map_err(inner.fabric("cannot check"))?;
            let dead = slots.into_iter().filter(|info| liveness(inner, region, info.slot) == ClientState::Dead);
            let dead = dead.filter_map(|info| Some((info.slot, info.word?.generation))).collect();
            let options = CheckOptions { concurrency: Concurrency::Shared, dead, ..CheckOptions::default() };
            let report = block_on(check_table(&mut region.lane(), &inner.table, &options, &mut |_| ()))
                .map_err(|source| Error::Admin(AdminError::Check { url: inner.url.clone(), source }))?;
            if report.problems.iter().any(|problem| problem.kind == ProblemKind::TableDestroyed) {
                // A destroyed table is not damaged. // [R-DESTROY-2]
                block_on(inner.verify_table(region))?;
            }
            Ok(report)
        })
    }
}

/// Whether `error` says that the table was destroyed. Its name is gone then. [R-DESTROY-1]
pub(crate) fn is_destroyed(error: &Error) -> bool {
    matches!(error, Error::Open(OpenError::Table { source: TableError::Destroyed, .. }))
}

impl Inner {
    /// Watches the name of the table's file, if it has one. [R-OPEN-2]
    fn watch_name(self: &Arc<Inner>) {
        let FabricRegion::Shm(region) = &self.first else { return };
        if self.url.is_unnamed() {
            return;
        }
        match NameWatch::start(self, region) {
            Ok(watch) => _ = self.name_watch.set(watch),
            // The table is usable all the same.
            Err(error) => tracing::warn!(url = %self.url, %error, "the name of the table's file is not watched"),
        }
    }

    /// Returns the region through a session that is not known to be lost.
    pub(crate) fn region(&self) -> Result<FabricRegion, Error> {
        let session = self.sessions.current(Instant::now());
        let region = session.and_then(|session| self.refuse_unusable(&session.region).map(|()| session.region));
        self.noted(region)
    }

    /// Runs `call`, which changes nothing: waits for a node that does not answer, and runs it again in another session
    /// if it loses its own. [R-SESSION-1]
    pub(crate) fn read<T>(&self, call: impl Fn(&FabricRegion) -> Result<T, Error>) -> Result<T, Error> {
        self.noted(self.sessions.run(self.options.reconnect_timeout, |session| {
            self.refuse_unusable(&session.region)?;
            call(&session.region)
        }))
    }

    /// Returns the sessions whose lanes wait in the given way.
    pub(crate) fn sessions_waiting(&self, waiting: Waiting) -> &Arc<Sessions> {
        match waiting {
            Waiting::InPlace => &self.sessions,
            Waiting::Cooperative => &self.cooperative,
        }
    }

    /// Returns the region through the latest session, which may be lost.
    pub(crate) fn latest_region(&self) -> FabricRegion {
        self.sessions.latest().map_or_else(|| self.first.clone(), |session| session.region)
    }

    /// Verifies that `region` still has a valid table: fails with `Table` if it was destroyed, or if its superblock is
    /// damaged. 1 round trip. [R-OPEN-1] [R-DESTROY-1]
    pub(crate) async fn verify_table(&self, region: &FabricRegion) -> Result<(), Error> {
        match open_table(&mut region.lane(), region.main_bytes()).await {
            Ok(_) => Ok(()),
            Err(TableError::Fabric(source)) => Err(self.fabric("cannot read")(source)),
            Err(source) => Err(Error::Open(OpenError::Table { url: self.url.clone(), source })),
        }
    }

    /// Fails with `Gone` if the table's file has lost its name, by `loss`. [R-OPEN-2]
    pub(crate) fn refuse_nameless(&self, loss: Option<NameLoss>) -> Result<(), Error> {
        let gone = |loss: NameLoss| Error::Open(OpenError::Gone { url: self.url.clone(), reason: loss.as_str() });
        loss.map_or(Ok(()), |loss| Err(gone(loss)))
    }

    /// Refuses to use a table whose file has lost its name, and to use the table by this machine's processor while a
    /// network card executes the atomics of its clients, perhaps on locks in its own memory.
    pub(crate) fn refuse_unusable(&self, region: &FabricRegion) -> Result<(), Error> {
        self.refuse_nameless(region.name_loss())?;
        match region {
            FabricRegion::Shm(region) if region.is_claimed_for_device() => {
                let (attempt, path) = (Attempt::Open, region.path().to_owned());
                Err(Error::Open(OpenError::Region(ShmError::ServedByDevice { attempt, path })))
            }
            _ => Ok(()),
        }
    }

    /// Takes a client slot through `session`: see [`Inner::claim`].
    pub(crate) async fn claim_in(&self, session: &Session, waiting: Waiting) -> Result<Taken, Error> {
        self.verify_table(&session.region).await?;
        self.claim(session.region.lane_waiting(waiting), &session.region).await
    }

    /// Takes a free client slot; if there is none, recovers a dead client and takes its slot. The search starts at a
    /// slot that differs between processes, so that processes that start at once rarely compete for one. [R-SLOT-1]
    /// [R-SLOT-2]
    pub(crate) async fn claim(&self, mut lane: FabricLane, region: &FabricRegion) -> Result<Taken, Error> {
        self.refuse_read_only_grant(region)?;
        self.refuse_unusable(region)?;
        // Each handle of a region has at most one liveness request in flight: this call uses its own.
        let region = &region.clone();
        let deadline_ns = self.deadline_ns(&mut lane);
        let max = self.table.config().max_clients;
        let client = self.opened.fetch_add(1, Ordering::Relaxed);
        let first = ((u64::from(self.scan_start) * u64::from(max)) >> 32) as u32;
        let start = std::process::id().wrapping_add(client).wrapping_add(first) % u32::from(max);
        let (mut stable_scans, mut pause_ns) = (0, MIN_SCAN_PAUSE_NS);
        let own = own_slot_client(unix_ns());
        loop {
            let taken = match self.find_slot(&mut lane, region, start, &own).await? {
                SlotSearch::Claimed(SlotClaim { owner, generation, hold }) => {
                    return Ok(Taken { lane, owner, generation, hold, own });
                }
                SlotSearch::NoneFree(taken) => taken,
            };
            // A slot that is free but locked would be tried until the deadline.
            let lock = self.slot_lock(region)?;
            stable_scans = if taken.is_stable || lock.is_some() { stable_scans + 1 } else { 0 };
            let now_ns = lane.now_ns();
            if stable_scans >= STABLE_SCANS || now_ns >= deadline_ns {
                let (url, dead) = (self.url.clone(), taken.dead);
                let none_free = |lock| Error::Open(OpenError::SlotsLocked { url: url.clone(), lock });
                return Err(lock.map_or_else(
                    || Error::Open(OpenError::TooManyClients { url: url.clone(), max, dead }),
                    none_free,
                ));
            }
            pause_until(&mut lane, deadline_ns.min(now_ns.saturating_add(pause_ns))).await;
            pause_ns = MAX_SCAN_PAUSE_NS.min(2 * pause_ns);
        }
    }

    /// Scans all slots once, and takes the first that is free; if none is, scans them once more, and takes the first
    /// whose client is dead. [R-SLOT-2]
    async fn find_slot(
        &self,
        lane: &mut FabricLane,
        region: &FabricRegion,
        start: u32,
        own: &SlotClient,
    ) -> Result<SlotSearch, Error> {
        let fabric = self.fabric("cannot open a client of");
        let mut taken = SlotsTaken { dead: 0, is_stable: true };
        for wanted in [Wanted::Free, Wanted::Dead] {
            taken = SlotsTaken { dead: 0, is_stable: true };
            for slot in (start..u32::from(self.table.config().max_clients)).chain(0..start) {
                let slot = slot as u16;
                match poll_fn(|cx| region.poll_hold(slot, cx)).await.map_err(&fabric)? {
                    Some(hold) => match self.claim_slot_held(region, slot, hold, wanted, own).await? {
                        Some(claim) => return Ok(SlotSearch::Claimed(claim)),
                        None => taken.dead += 1,
                    },
                    // A client lives there, or another process holds the slot for a moment.
                    None => {
                        let word = read_slot(lane, &self.table, slot).await.map_err(&fabric)?.word;
                        taken.is_stable &= word.is_none_or(|word| word.state == SlotState::Live);
                    }
                }
            }
        }
        Ok(SlotSearch::NoneFree(taken))
    }

    /// Takes `slot`, whose hold is `hold`. `None` if it is not free, and its client could not be recovered or only a
    /// free slot is wanted. [R-SLOT-1]
    async fn claim_slot_held(
        &self,
        region: &FabricRegion,
        slot: u16,
        hold: SlotHold,
        wanted: Wanted,
        own: &SlotClient,
    ) -> Result<Option<SlotClaim>, Error> {
        let (mut lane, fabric) = (region.lane(), self.fabric("cannot open a client of"));
        let mut hold = hold;
        if wanted == Wanted::Dead {
            let info = read_slot(&mut lane, &self.table, slot).await.map_err(&fabric)?;
            let Some(SlotWord { generation, .. }) = info.word else { return Ok(None) };
            let proof = FenceProof::new(slot, generation, hold);
            match self.recover_dead(region, &proof, own).await {
                Ok(_) => hold = proof.into_hold(),
                Err(error) => match error.kind {
                    // The redo record is damaged: the locks stay held.
                    OperationErrorKind::Corrupt { .. } => return Ok(None),
                    OperationErrorKind::Destroyed => {
                        return Err(Error::Open(OpenError::Table {
                            url: self.url.clone(),
                            source: TableError::Destroyed,
                        }));
                    }
                    _ => return Err(error.into()),
                },
            }
        }
        let claimed = claim_generation(&mut lane, &self.table, slot, own).await;
        Ok(claimed.map_err(&fabric)?.map(|(owner, generation)| SlotClaim { owner, generation, hold }))
    }

    fn deadline_ns(&self, lane: &mut FabricLane) -> u64 {
        lane.now_ns().saturating_add(u64::try_from(self.options.deadline.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn client_config(&self, seed: u64) -> ClientConfig {
        ClientConfig {
            deadline_ns: u64::try_from(self.options.deadline.as_nanos()).unwrap_or(u64::MAX),
            cache_bytes: self.options.cache_bytes,
            row_guess: self.options.row_guess,
            seed,
            ..ClientConfig::for_table(&self.table).across(self.first.caps())
        }
    }

    pub(crate) fn fabric(&self, doing: &'static str) -> impl Fn(FabricError) -> Error {
        let url = self.url.clone();
        move |source| Error::Fabric { doing, url: url.clone(), source }
    }
}

/// Reserves the memory that a table that grows has lost, as a copy of its file may have: otherwise a write to it could
/// end the process, if its file system is full. [R-GROW-7]
fn reserve_lost_memory(url: &Url, region: &FabricRegion, table: &Table) -> Result<(), Error> {
    let FabricRegion::Shm(region) = region else { return Ok(()) };
    if !region.has_holes() {
        return Ok(());
    }
    let failed = |source| Error::Fabric { doing: "cannot open", url: url.clone(), source };
    block_on(reserve_table(&mut region.lane(), table)).map_err(failed)
}

pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_of_a_process_start_their_slot_searches_far_apart() {
        for (stores, slots) in [(8, 64_u64), (16, 1000), (64, 1104), (64, 65_535)] {
            let start = |store| (u64::from(scan_start_of(store)) * slots) >> 32;
            let mut starts: Vec<u64> = (0..stores).map(start).collect();
            starts.sort_unstable();
            let nearest = starts.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
            assert!(nearest >= slots / u64::from(stores) / 3, "{stores} stores, {slots} slots: {nearest} apart");
        }
    }
}
