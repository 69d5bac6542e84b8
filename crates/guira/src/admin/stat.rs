//! Statistics of a table, for people and machines.

use std::time::UNIX_EPOCH;

use guira_check::{CheckError, TableStats, table_stats};
use guira_fabric::{Caps, Region};
use guira_fabric_shm::{Boot, RegionInfo};
use guira_layout::{SlotState, SlotWord};
use guira_network::client::NodeSession;
use guira_network::wire::{Fabric, Grant};
use guira_rcuckoo::{Counters, SlotInfo, TableError, read_slot, read_totals, slots};

use crate::admin::repair::is_stopped;
use crate::fabric::FabricRegion;
use crate::store::Inner;
use crate::wait::block_on;
use crate::{AdminError, Error, OpenError};

/// The statistics of a table, from [`crate::Store::stat`]: collected part by part, while other clients go on. It is
/// serialized with these names.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Stat {
    /// The URL.
    pub url: String,
    /// The entry format, in the notation of [`crate::EntryFormat`].
    pub format: String,
    /// The name of the row checksum.
    pub checksum: &'static str,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Entries of a row.
    pub entries_per_row: u8,
    /// Bits of a lock.
    pub lock_bits: u8,
    /// Rows that share a lock.
    pub rows_per_lock: u32,
    /// Locks in memory: if there are fewer than groups of rows, some groups share one. Source: R-LOCK-5.
    pub physical_locks: u64,
    /// Client slots, free or not.
    pub max_clients: u16,
    /// Bytes of an extent chunk; 0 if the format has none.
    pub chunk_bytes: u64,
    /// The content of rows and extents.
    pub table: TableStats,
    /// The clients that have it open, or died with it open: every slot that is not free, by number.
    pub clients: Vec<ClientStat>,
    /// The counters that clients have reported since the table was created: a client reports when it closes, and after
    /// an operation in which it met a client that was dead or stopped. Source: R-TOTALS-1.
    #[serde(serialize_with = "by_name")]
    pub totals: Counters,
    /// The file or memory node that has the table.
    pub region: RegionStat,
}

fn by_name<S: serde::Serializer>(counters: &Counters, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counters.named())
}

/// The state of a client. Source: R-SLOT-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClientState {
    /// Its process holds the slot.
    Live,
    /// Same as `Live`, but its process is stopped, by a signal or a tracer, as far as this process can see: the client
    /// keeps what it holds until it continues or is killed ([`crate::Store::kill_client`]). Source: R-RECOVER-1.
    Stopped,
    /// Unknown, because the store can only read ([`crate::Store::is_read_only`]), or a process that is not a client has
    /// locked the slot ([`crate::Store::slot_lock`]).
    Unknown,
    /// Its process is gone; the next client that needs what it held recovers it. Source: R-RECOVER-1.
    Dead,
    /// Its process is gone, and another one is recovering it, or died doing so: the one in [`ClientStat::process`].
    /// Source: R-RECOVER-4.
    Recovering,
    /// Its slot cannot be read.
    Damaged,
}

/// A client slot that is not free.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ClientStat {
    /// The slot's number, from 0.
    pub slot: u16,
    /// The number of times the slot was taken, including this one; 0 if it is damaged.
    pub generation: u64,
    /// The state of its client.
    pub state: ClientState,
    /// The process id, in that process's namespace; during recovery, that of the recovering process.
    pub process: u64,
    /// The time when the client was opened, in nanoseconds since 1970; during recovery, when the recovering client was
    /// opened, or the recovery began.
    pub since_unix_ns: u64,
    /// Whether a commit is in progress.
    pub committing: bool,
    /// Chunks it owns, whose free space no other client can use.
    pub chunks: u64,
}

/// The changes that an open client has committed: [`crate::Store::change_counts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ChangeCount {
    /// The number of the client's slot, from 0.
    pub slot: u16,
    /// The number of times the slot was taken, including this one.
    pub generation: u64,
    /// Inserts, updates and removals, modulo 2^31. Until the first of them, the number of the slot's previous client.
    pub changes: u32,
}

impl ChangeCount {
    /// Returns the changes of the same client since `earlier`, if it is the same; 0 if that is unknown.
    pub fn since(&self, earlier: &ChangeCount) -> u64 {
        match (self.slot, self.generation) == (earlier.slot, earlier.generation) {
            // A client starts from 0, in a slot that shows the number of the previous one.
            true => u64::from(self.changes.checked_sub(earlier.changes).unwrap_or(self.changes)),
            false => 0,
        }
    }
}

impl crate::Store {
    /// Returns how many changes each open client has committed, by the sequence numbers of the redo records in the
    /// slots: counting costs clients nothing. `None` if the table has no such records. Lookups leave no trace in the
    /// memory of a table. 1 round trip for 256 client slots. Source: R-COMMIT-1.
    ///
    /// # Errors
    /// `Fabric`; `Gone`. Nothing was changed.
    ///
    /// ```
    /// # use guira::{CreateOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let store = Store::create(&url, &CreateOptions::new(1_000))?;
    /// let mut client = store.client()?;
    /// client.put(b"cuckoo", b"Guira")?;
    /// let before = store.change_counts()?.expect("a table with records");
    /// client.put(b"cuckoo", b"Guira guira")?;
    /// client.remove(b"cuckoo")?;
    /// let after = store.change_counts()?.expect("a table with records");
    /// assert_eq!(after[0].since(&before[0]), 2);
    /// # drop(client);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn change_counts(&self) -> Result<Option<Vec<ChangeCount>>, Error> {
        let inner = &self.current()?.inner;
        if !inner.table.config().rules.commit_records {
            return Ok(None);
        }
        let of = |info: SlotInfo| {
            let generation = info.word?.generation;
            Some(ChangeCount { slot: info.slot, generation, changes: info.seal.sequence() })
        };
        inner.read(|region| {
            let found = block_on(slots(&mut region.lane(), &inner.table));
            let found = found.map_err(inner.fabric("cannot read the clients of"))?;
            Ok(Some(found.into_iter().filter_map(of).collect()))
        })
    }
}

/// The file or memory node that has a table. It is serialized as its content.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum RegionStat {
    /// A file, for `shm://` and `file://`.
    File(FileStat),
    /// A memory node, for `tcp://` and `rdma://`.
    Node(NodeStat),
}

impl RegionStat {
    /// Returns the file, if the table is in one.
    pub fn file(&self) -> Option<&FileStat> {
        match self {
            RegionStat::File(file) => Some(file),
            RegionStat::Node(_) => None,
        }
    }

    /// Returns the memory node, if the table is on one.
    pub fn node(&self) -> Option<&NodeStat> {
        match self {
            RegionStat::File(_) => None,
            RegionStat::Node(node) => Some(node),
        }
    }
}

/// A memory node, as seen by the session through which it was asked.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeStat {
    /// The fabric over which clients use its memory. Over RDMA a network card executes their verbs, and the node counts
    /// none of them.
    #[serde(serialize_with = "scheme")]
    pub fabric: Fabric,
    /// The node's address and port.
    pub peer: String,
    /// Bytes of the main space: rows, extents, client slots.
    pub main_bytes: u64,
    /// Bytes of the device space: locks.
    pub device_bytes: u64,
    /// Bytes of a WRITE that no death can tear; `None` if no WRITE is ever torn.
    pub atomic_write_unit: Option<u64>,
    /// The time without a sign of life from a client's machine after which the node drops its session, in milliseconds.
    pub session_timeout_ms: u64,
    /// Whether the node lets this client only read.
    pub read_only: bool,
}

impl NodeStat {
    pub(crate) fn new(session: &NodeSession, fabric: Fabric, caps: &Caps) -> NodeStat {
        let unit = caps.atomic_write_unit;
        NodeStat {
            fabric,
            peer: session.peer().to_string(),
            main_bytes: session.main_bytes(),
            device_bytes: session.device_bytes(),
            atomic_write_unit: (unit != Caps::WHOLE_WRITE).then_some(unit),
            session_timeout_ms: u64::try_from(session.session_timeout().as_millis()).unwrap_or(u64::MAX),
            read_only: session.grant() == Grant::ReadOnly,
        }
    }
}

fn scheme<S: serde::Serializer>(fabric: &Fabric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(fabric.scheme())
}

/// The file of a table.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FileStat {
    /// The path.
    pub path: String,
    /// Bytes of the main space: rows, extents, client slots.
    pub main_bytes: u64,
    /// Bytes of the device space: locks.
    pub device_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes that its file system has stored for it, or reserved: fewer than `file_bytes` as long as it can grow.
    pub stored_bytes: u64,
    /// The time of creation, in nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Whether the machine has not been restarted since; `None` if that is unknown.
    pub same_boot: Option<bool>,
    /// The permission bits, as in [`crate::CreateOptions::mode`].
    pub mode: u32,
    /// The id of the user who owns it.
    pub owner_uid: u32,
    /// The path of the lock file, if the table was created with a mode that lets some users read and not write it.
    pub lock_path: Option<String>,
}

pub(crate) fn stat(inner: &Inner) -> Result<Stat, Error> {
    inner.read(|region| stat_of(inner, region))
}

fn stat_of(inner: &Inner, region: &FabricRegion) -> Result<Stat, Error> {
    let config = inner.table.config();
    block_on(inner.verify_table(region))?;
    let mut lane = region.lane();
    let table = block_on(table_stats(&mut lane, &inner.table)).map_err(|source| match source {
        CheckError::Destroyed => {
            Error::Open(OpenError::Table { url: inner.url.clone(), source: TableError::Destroyed })
        }
        source => Error::Admin(AdminError::Check { url: inner.url.clone(), source }),
    })?;
    if table.unverified_rows > 0 {
        // The rows of a destroyed table do not verify either. // [R-DESTROY-2]
        block_on(inner.verify_table(region))?;
    }
    let mut clients = Vec::new();
    for (info, state) in clients_of(inner, region)? {
        let generation = info.word.map_or(0, |word| word.generation);
        let owned = table.space.owners.iter().find(|known| known.slot == info.slot);
        clients.push(ClientStat {
            slot: info.slot,
            generation,
            state,
            process: info.client.process,
            since_unix_ns: info.client.since_unix_ns,
            committing: info.seal.is_sealed(),
            chunks: owned.map_or(0, |owned| owned.chunks),
        });
    }
    let totals = block_on(read_totals(&mut lane, &inner.table)).map_err(inner.fabric("cannot read the totals of"))?;
    Ok(Stat {
        url: inner.url.to_string(),
        format: config.format.to_string(),
        checksum: config.checksum.name(),
        row_bytes: config.row_bytes,
        entries_per_row: config.entries_per_row,
        lock_bits: config.lock_bits,
        rows_per_lock: config.rows_per_lock,
        physical_locks: config.physical_locks,
        max_clients: config.max_clients,
        chunk_bytes: config.chunk_bytes,
        table,
        clients,
        totals,
        region: region.stat()?,
    })
}

/// Returns every slot that is not free, by number, and the state of its client. 1 round trip for 256 slots, and up to 2
/// for each that is not free.
pub(crate) fn clients_of(inner: &Inner, region: &FabricRegion) -> Result<Vec<(SlotInfo, ClientState)>, Error> {
    let found =
        block_on(slots(&mut region.lane(), &inner.table)).map_err(inner.fabric("cannot read the clients of"))?;
    let state = |info: &SlotInfo| match info.word {
        None => ClientState::Damaged,
        Some(SlotWord { state: SlotState::Recovering, .. }) => ClientState::Recovering,
        Some(_) => match liveness(inner, region, info.slot) {
            ClientState::Live if is_stopped(&info.client) => ClientState::Stopped,
            state => state,
        },
    };
    Ok(found.into_iter().map(|info| (info, state(&info))).collect())
}

/// Returns whether the client of a used slot is alive: obtaining the slot's hold proves it dead. A read-only store
/// cannot ask.
pub(crate) fn liveness(inner: &Inner, region: &FabricRegion, slot: u16) -> ClientState {
    if inner.may_only_read(region) {
        return ClientState::Unknown;
    }
    match region.hold(slot) {
        // Read again under the hold: a client that closed in between is not dead.
        Ok(Some(_proof)) => match block_on(read_slot(&mut region.lane(), &inner.table, slot)) {
            Ok(SlotInfo { word: Some(SlotWord { state: SlotState::Free, .. }), .. }) => ClientState::Live,
            _ => ClientState::Dead,
        },
        // A slot that is locked by a process without a client cannot be checked.
        _ if inner.is_locked_by_no_client(region, slot) => ClientState::Unknown,
        _ => ClientState::Live,
    }
}

impl FileStat {
    pub(crate) fn new(info: &RegionInfo) -> FileStat {
        let created = info.created_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        FileStat {
            path: info.path.display().to_string(),
            main_bytes: info.main_bytes,
            device_bytes: info.device_bytes,
            file_bytes: info.file_bytes,
            stored_bytes: info.stored_bytes,
            created_unix_ns: u64::try_from(created.as_nanos()).unwrap_or(u64::MAX),
            same_boot: match info.boot {
                Boot::Current => Some(true),
                Boot::Earlier => Some(false),
                Boot::Unknown => None,
            },
            mode: info.mode,
            owner_uid: info.owner_uid,
            lock_path: info.lock_path.as_ref().map(|path| path.display().to_string()),
        }
    }
}
