//! Stores: tables that this process has opened.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use guira_check::{CheckOptions, CheckReport, ProblemKind, Quiet, check_table};
use guira_fabric::{FabricError, FenceProof, Lane, Region, SlotHold, pause_until};
use guira_fabric_shm::ShmRegion;
use guira_layout::{OwnerId, SlotState, SlotWord};
use guira_rcuckoo::{ClientConfig, SlotClient, Table, TableError, claim_slot, open_table, read_slot, slots};
use guira_url::Backend;

use crate::admin::{ClientState, Stat};
use crate::aio::Taken;
use crate::attachment::without_effect;
use crate::events::Events;
use crate::fabric::{FabricLane, FabricRegion, Waiting};
use crate::options::Access;
use crate::repair::own_slot_client;
use crate::sessions::{self, Session, Sessions};
use crate::stat::liveness;
use crate::wait::block_on;
use crate::{AdminError, Client, Error, OpenError, OpenOptions, OperationErrorKind, Pool, Reader, Url, aio};

/// A table this process has opened. Clones and threads share it; each thread takes a client or reader of its own.
///
/// The memory stays mapped as long as a clone, a client or a reader lives. A process that was forked opens its own:
/// what it inherited refuses every operation.
///
/// ```
/// use guira::{CreateOptions, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://guira-doc-store-{}", std::process::id()).parse()?;
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
    /// The region when it was opened.
    pub(crate) first: FabricRegion,
    /// Of what the store itself does, and of readers that wait in place.
    sessions: Arc<Sessions>,
    /// Of what leaves its thread to others while it waits.
    pub(crate) cooperative: Arc<Sessions>,
    /// Clients that were opened.
    opened: AtomicU32,
    /// See [`first_look`].
    first_look: u32,
}

/// How a store came by its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It created it.
    Created,
    /// The table was there.
    Opened,
}

/// Which slots a new client looks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Free,
    Dead,
}

/// What a look at every slot came to.
enum Look {
    /// A slot, and its liveness.
    Taken(OwnerId, SlotHold),
    /// None.
    Nothing(Refusal),
}

/// Why no slot was taken.
struct Refusal {
    /// Slots whose client is dead, and could not be recovered.
    dead: u16,
    /// Whether all others had a client, as far as one look tells: none was free, or being recovered, in the hands of
    /// somebody else.
    is_settled: bool,
}

/// Looks in a row at slots that all have a client before that is believed: somebody who asks whether a client lives, or
/// begins to recover it, has its slot for some microseconds.
const SETTLED_LOOKS: u32 = 3;
/// The pause after the first look at every slot; it doubles with each.
const FIRST_LOOK_NS: u64 = 100_000;
/// The longest such pause: a recovery is over in less.
const LONGEST_LOOK_NS: u64 = 10_000_000;

/// The first wait for a lock of a table behind a memory node: about a round trip, because a lock is held for one at
/// least, and each attempt costs one, and the node's time.
const REMOTE_BACKOFF_NS: u64 = 50_000;
/// The longest such wait.
const LONGEST_REMOTE_BACKOFF_NS: u64 = 2_000_000;

/// Where a new store's first client looks for a slot, as a fraction of all slots in 2^32. Stores of one process begin
/// far from each other: where they begin at the same slot, each looks at all slots that those before it have taken,
/// which is a round trip or two for each.
fn first_look() -> u32 {
    static STORES: AtomicU32 = AtomicU32::new(0);
    first_look_of(STORES.fetch_add(1, Ordering::Relaxed))
}

/// That of this store among those of a process: multiples of the golden ratio lie as far apart as so many can.
fn first_look_of(store: u32) -> u32 {
    store.wrapping_mul(0x9e37_79b9)
}

/// Draws a random number from the operating system.
pub(crate) fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(|error| Error::Open(OpenError::Random { reason: error.to_string() }))
}

impl Store {
    /// Opens a table of this user or of root for reading and changing, with a deadline of 10 s. `url` is a [`Url`] or
    /// its text. 1 round trip. Source: R-OPEN-1.
    ///
    /// # Errors
    /// `Url` if the text is none; `Owner` if the table is somebody else's; `Region` if the file is missing
    /// ([`Error::is_not_found`]), not permitted, cut short or not a region, or if it has a lock file that cannot be used
    /// ([`crate::errors::ShmError::LockFile`]: it can be read then); `Table` if what it holds is not a table, is
    /// damaged, or was destroyed; of a memory node `Connect` if there is none, or it does not let this client in.
    /// Nothing was changed.
    ///
    /// ```
    /// use guira::{CreateOptions, Store};
    ///
    /// # fn main() -> Result<(), guira::Error> {
    /// # let name = format!("guira-doc-open-{}", std::process::id());
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

    /// Opens a table as `options` say. 1 round trip; of a memory node 1 more for the session, after those of TCP.
    /// Source: R-OPEN-1.
    ///
    /// # Errors
    /// As [`Store::open`]; `TokenFile`.
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
            Backend::Node(endpoint) => {
                let session = sessions::connect(endpoint, options, Waiting::InPlace, options.connect_timeout, None);
                FabricRegion::Tcp(session.map_err(|failure| failure.into_error(url, options))?)
            }
        };
        Store::open_in(url, options, region)
    }

    /// Opens the table in `region`, which `url` led to.
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
        let sessions = Arc::new(match url.backend()? {
            Backend::File(_) => Sessions::lasting(region.clone()),
            Backend::Node(endpoint) => {
                Sessions::remote(url, endpoint, options, Waiting::InPlace, &table, Some(region.clone()))
            }
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
        let cooperative = sessions.of_their_own(Waiting::Cooperative);
        let (url, events, opened) = (url.clone(), Events::of(url), AtomicU32::new(0));
        Store {
            inner: Arc::new(Inner {
                url,
                table,
                options,
                events,
                origin,
                first,
                sessions,
                cooperative,
                opened,
                first_look: first_look(),
            }),
        }
    }

    /// Whether somebody destroyed the table since it was opened. Operations say so by themselves, lookups included:
    /// this is for those who want to know without one, such as to open the table's successor under the same name. 1
    /// round trip. Source: R-DESTROY-1, R-DESTROY-2.
    ///
    /// # Errors
    /// `Table` if its first bytes are damaged; the fabric's. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-is-destroyed-{}", std::process::id()).parse()?;
    /// let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// assert!(!store.is_destroyed()?);
    /// Store::destroy(&url)?;
    /// assert!(store.is_destroyed()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_destroyed(&self) -> Result<bool, Error> {
        match self.inner.read(|region| block_on(self.inner.look_at(region))) {
            Ok(()) => Ok(false),
            Err(error) if is_destroyed(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether this store created its table: true from [`Store::create`], false from [`Store::open`], and either from
    /// [`Store::open_or_create`], so that the one that created the table can fill it. No round trip.
    pub fn was_created(&self) -> bool {
        self.inner.origin == Origin::Created
    }

    /// Whether this store can only read: it was opened so ([`OpenOptions::read_only`]), or the memory node of the table
    /// lets this client only read, as the latest session was told. Clients, recoveries and the knowledge of who is
    /// alive are for stores that may write. No round trip.
    pub fn is_read_only(&self) -> bool {
        self.inner.may_only_read(&self.inner.region_at_hand())
    }

    /// Where the table is, as it was opened. No round trip.
    pub fn url(&self) -> &Url {
        &self.inner.url
    }

    /// The table's parameters and layout, as they were when it was opened: they never change. What it gives has its
    /// types in [`crate::raw::layout`]. No round trip.
    pub fn table(&self) -> &Table {
        &self.inner.table
    }

    /// A client whose operations block in place. It takes one of the table's client slots while it lives: keep it, one
    /// a thread; a process can have as many as the kernel gives it mappings (65,530 by default). Round trips: 3, and 1
    /// more for each slot it meets whose client died; if no slot is free, those of recovering one of the dead
    /// ([`guira_rcuckoo::recover`]). Of a memory node it has a connection of its own, which is made now: 2 more, after
    /// those of TCP; for a node that is away it waits ([`OpenOptions::reconnect_timeout`]). Source: R-SLOT-1, R-SLOT-2,
    /// R-DESTROY-1, R-RECOVER-3.
    ///
    /// # Errors
    /// `Table` if the table was destroyed, or its first bytes are damaged; `TooManyClients` if every slot has a client
    /// that lives; while others are taking, giving back or recovering one, this call looks again, until the deadline
    /// ([`OpenOptions::deadline`]); `SlotsLocked`, without that wait, if somebody who is no client has locked slots and
    /// no other is free. `ReadOnly` if the table was opened so, `ReadOnlyGrant` if its memory node lets this client
    /// only read; the fabric's. The table has no client more than before.
    pub fn client(&self) -> Result<Client, Error> {
        let inner = &self.inner;
        inner.refuse_read_only()?;
        // Its slot then does not go with somebody else's session, and it waits for nobody else's answers.
        let (sessions, waiting) = (inner.sessions.of_their_own(Waiting::InPlace), Waiting::InPlace);
        // A slot that was taken through a session that is lost is that of a dead client.
        let claimed = sessions.within(inner.options.reconnect_timeout, |session| {
            Ok((block_on(inner.claim_in(session, waiting))?, session.clone()))
        });
        let (taken, session) = claimed.map_err(without_effect)?;
        Ok(Client(aio::Client::new(inner, &sessions, &session, waiting, taken)))
    }

    /// A reader whose lookups block in place: one a thread. No slot, no round trip, and no error; of a memory node, all
    /// of this store's share its connection. Example: [`Reader`].
    pub fn reader(&self) -> Reader {
        Reader(aio::Reader::new(&self.inner, &self.inner.sessions, Waiting::InPlace))
    }

    /// A pool of at most `max` clients, for any number of threads; 0 counts as 1. Each client has one of the table's
    /// slots while it is open, so of all processes' pools and clients there can be as many as
    /// [`crate::CreateOptions::max_clients`] says; each of a memory node has a connection of its own. Opens none, and
    /// cannot fail; no round trip. Source: R-SLOT-1.
    pub fn pool(&self, max: u16) -> Pool {
        Pool::new(self, max)
    }

    /// The same store, for tasks: its clients' and readers' operations are futures. No round trip.
    pub fn to_async(&self) -> aio::Store {
        self.clone().into()
    }

    /// What the table holds and who uses it, while others work: no snapshot. Reads every row and slot, but no key or
    /// value. Round trips: 1 for 64 rows, for 4,096 chunks and for 256 client slots, 1 for the totals, and up to 2 for
    /// each slot that is not free, and 1; rows that do not verify are read up to 11 times more, over 41 ms, and then
    /// counted as such.
    ///
    /// # Errors
    /// `Check` and the fabric's if the table cannot be read, `Region` if its file cannot; `Table`, soon, if it was
    /// destroyed, or is so meanwhile, or if its first bytes are damaged. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-stat-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let stat = store.stat()?;
    /// assert_eq!((stat.format.as_str(), stat.max_clients, stat.clients.len()), ("bytes:64", 1_024, 0));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn stat(&self) -> Result<Stat, Error> {
        crate::stat::stat(&self.inner)
    }

    /// Checks every row, checksum, entry, lock, slot and extent, while others work. What clients that died left, until
    /// somebody who meets it recovers them, and rows that somebody who holds their lock has half written, are no
    /// problems, but told beside them ([`CheckReport::under_way`]); a store opened for reading only cannot tell who
    /// died. The report tells the first 100 of each and counts all. Changes nothing.
    ///
    /// Round trips: 1 for 64 rows, and 1 for each further 64 second rows of their entries; 2 an extent; 1 for 64 places
    /// of an extent chunk, for 32 slots and for 4,096 lock or chunk words. What looks wrong is read 15 times more, over
    /// 0.65 s.
    ///
    /// # Errors
    /// `Check` or the fabric's if the table cannot be read. Damage is not an error but in the report.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://guira-doc-check-{}", std::process::id()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// # store.client()?.put(b"cuckoo", b"Guira guira")?;
    /// let report = store.check()?;
    /// assert!(report.is_clean(), "{:?}", report.problems);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn check(&self) -> Result<CheckReport, Error> {
        let inner = &self.inner;
        inner.read(|region| {
            let slots = block_on(slots(&mut region.lane(), &inner.table)).map_err(inner.fabric("cannot check"))?;
            let dead = slots.into_iter().filter(|info| liveness(inner, region, info.slot) == ClientState::Dead);
            let dead = dead.filter_map(|info| Some((info.slot, info.word?.generation))).collect();
            let options = CheckOptions { quiet: Quiet::OthersWork, dead, ..CheckOptions::default() };
            let report = block_on(check_table(&mut region.lane(), &inner.table, &options, &mut |_| ()))
                .map_err(|source| Error::Admin(AdminError::Check { url: inner.url.clone(), source }))?;
            if report.problems.iter().any(|problem| problem.kind == ProblemKind::TableDestroyed) {
                // Nothing is damaged where nothing is left. // [R-DESTROY-2]
                block_on(inner.look_at(region))?;
            }
            Ok(report)
        })
    }
}

/// Whether a table was opened at the moment somebody destroyed it. Its name is gone then. // [R-DESTROY-1]
pub(crate) fn is_destroyed(error: &Error) -> bool {
    matches!(error, Error::Open(OpenError::Table { source: TableError::Destroyed, .. }))
}

impl Inner {
    /// The region as a session leads to it that is not known to be lost.
    pub(crate) fn region(&self) -> Result<FabricRegion, Error> {
        Ok(self.sessions.current(Instant::now())?.region)
    }

    /// What `call` comes to, which changes nothing: it waits for a node that is away, and begins anew in another
    /// session if it loses its own. // [R-SESSION-1]
    pub(crate) fn read<T>(&self, call: impl Fn(&FabricRegion) -> Result<T, Error>) -> Result<T, Error> {
        self.sessions.within(self.options.reconnect_timeout, |session| call(&session.region))
    }

    /// The region as the latest session leads to it, lost or not.
    pub(crate) fn region_at_hand(&self) -> FabricRegion {
        self.sessions.latest().map_or_else(|| self.first.clone(), |session| session.region)
    }

    /// Makes sure that the table in `region` is one still: fails with `Table` if it was destroyed, or if its first
    /// bytes are damaged. 1 round trip. // [R-OPEN-1] [R-DESTROY-1]
    pub(crate) async fn look_at(&self, region: &FabricRegion) -> Result<(), Error> {
        match open_table(&mut region.lane(), region.main_bytes()).await {
            Ok(_) => Ok(()),
            Err(TableError::Fabric(source)) => Err(self.fabric("cannot look at")(source)),
            Err(source) => Err(Error::Open(OpenError::Table { url: self.url.clone(), source })),
        }
    }

    /// Takes a client slot through `session`; see [`Inner::claim`].
    pub(crate) async fn claim_in(&self, session: &Session, waiting: Waiting) -> Result<Taken, Error> {
        self.look_at(&session.region).await?;
        self.claim(session.region.lane_waiting(waiting), &session.region).await
    }

    /// Takes a free client slot; if there is none, one whose client died, which is recovered first. Slots are tried
    /// from a place that differs between processes, so that many that start at once rarely meet. // [R-SLOT-1]
    /// [R-SLOT-2]
    pub(crate) async fn claim(&self, mut lane: FabricLane, region: &FabricRegion) -> Result<Taken, Error> {
        self.refuse_read_only_grant(region)?;
        // One question for a slot's liveness is under way for each handle of a region.
        let region = &region.clone();
        let deadline_ns = self.deadline_ns(&mut lane);
        let max = self.table.config().max_clients;
        let turn = self.opened.fetch_add(1, Ordering::Relaxed);
        let first = ((u64::from(self.first_look) * u64::from(max)) >> 32) as u32;
        let start = std::process::id().wrapping_add(turn).wrapping_add(first) % u32::from(max);
        let (mut settled_looks, mut pause_ns) = (0, FIRST_LOOK_NS);
        let own = own_slot_client(unix_ns());
        loop {
            let refusal = match self.look_for_slot(&mut lane, region, start, &own).await? {
                Look::Taken(owner, hold) => return Ok(Taken { lane, owner, hold, own }),
                Look::Nothing(refusal) => refusal,
            };
            // A slot that is free and locked would be looked at until the deadline.
            let lock = self.slot_lock(region)?;
            settled_looks = if refusal.is_settled || lock.is_some() { settled_looks + 1 } else { 0 };
            let now_ns = lane.now_ns();
            if settled_looks >= SETTLED_LOOKS || now_ns >= deadline_ns {
                let (url, dead) = (self.url.clone(), refusal.dead);
                let none_free = |lock| Error::Open(OpenError::SlotsLocked { url: url.clone(), lock });
                return Err(lock.map_or_else(
                    || Error::Open(OpenError::TooManyClients { url: url.clone(), max, dead }),
                    none_free,
                ));
            }
            pause_until(&mut lane, deadline_ns.min(now_ns.saturating_add(pause_ns))).await;
            pause_ns = LONGEST_LOOK_NS.min(2 * pause_ns);
        }
    }

    /// Looks at every slot once, and takes the first that is free; if none is, at every slot once more, and takes the
    /// first whose client is dead. // [R-SLOT-2]
    async fn look_for_slot(
        &self,
        lane: &mut FabricLane,
        region: &FabricRegion,
        start: u32,
        own: &SlotClient,
    ) -> Result<Look, Error> {
        let fabric = self.fabric("cannot open a client of");
        let mut refusal = Refusal { dead: 0, is_settled: true };
        for wanted in [Wanted::Free, Wanted::Dead] {
            refusal = Refusal { dead: 0, is_settled: true };
            for slot in (start..u32::from(self.table.config().max_clients)).chain(0..start) {
                let slot = slot as u16;
                match poll_fn(|cx| region.poll_hold(slot, cx)).await.map_err(&fabric)? {
                    Some(hold) => match self.take(region, slot, hold, wanted, own).await? {
                        Some((owner, hold)) => return Ok(Look::Taken(owner, hold)),
                        None => refusal.dead += 1,
                    },
                    // Somebody lives there, or is at work there for a moment.
                    None => {
                        let word = read_slot(lane, &self.table, slot).await.map_err(&fabric)?.word;
                        refusal.is_settled &= word.is_none_or(|word| word.state == SlotState::Live);
                    }
                }
            }
        }
        Ok(Look::Nothing(refusal))
    }

    /// Takes `slot`, whose liveness is `hold`. `None` if it is not free, and its client could not be recovered or is
    /// not wanted. // [R-SLOT-1]
    async fn take(
        &self,
        region: &FabricRegion,
        slot: u16,
        hold: SlotHold,
        wanted: Wanted,
        own: &SlotClient,
    ) -> Result<Option<(OwnerId, SlotHold)>, Error> {
        let (mut lane, fabric) = (region.lane(), self.fabric("cannot open a client of"));
        let mut hold = hold;
        if wanted == Wanted::Dead {
            let info = read_slot(&mut lane, &self.table, slot).await.map_err(&fabric)?;
            let Some(SlotWord { generation, .. }) = info.word else { return Ok(None) };
            let proof = FenceProof::new(slot, generation, hold);
            match self.recover_proved(region, &proof, own).await {
                Ok(_) => hold = proof.into_hold(),
                Err(error) => match error.kind {
                    // Its record is damaged: its locks stay held.
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
        let claimed = claim_slot(&mut lane, &self.table, slot, own).await;
        Ok(claimed.map_err(&fabric)?.map(|owner| (owner, hold)))
    }

    fn deadline_ns(&self, lane: &mut FabricLane) -> u64 {
        lane.now_ns().saturating_add(u64::try_from(self.options.deadline.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn client_config(&self, seed: u64) -> ClientConfig {
        let config = ClientConfig::for_table(&self.table);
        let (backoff_ns, longest_backoff_ns) = match self.first {
            FabricRegion::Shm(_) => (config.backoff_ns, config.longest_backoff_ns),
            FabricRegion::Tcp(_) => (REMOTE_BACKOFF_NS, LONGEST_REMOTE_BACKOFF_NS),
        };
        ClientConfig {
            backoff_ns,
            longest_backoff_ns,
            deadline_ns: u64::try_from(self.options.deadline.as_nanos()).unwrap_or(u64::MAX),
            cache_bytes: self.options.cache_bytes,
            seed,
            ..config
        }
    }

    pub(crate) fn fabric(&self, doing: &'static str) -> impl Fn(FabricError) -> Error {
        let url = self.url.clone();
        move |source| Error::Fabric { doing, url: url.clone(), source }
    }
}

pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_of_a_process_look_for_slots_far_from_each_other() {
        for (stores, slots) in [(8, 64_u64), (16, 1000), (64, 1104), (64, 65_535)] {
            let look = |store| (u64::from(first_look_of(store)) * slots) >> 32;
            let mut looks: Vec<u64> = (0..stores).map(look).collect();
            looks.sort_unstable();
            let nearest = looks.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
            assert!(nearest >= slots / u64::from(stores) / 3, "{stores} stores, {slots} slots: {nearest} apart");
        }
    }
}
