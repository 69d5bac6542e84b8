//! What a table holds and who uses it, for people and machines.

use std::time::UNIX_EPOCH;

use guira_check::{CheckError, TableStats, table_stats};
use guira_fabric::{Caps, Region};
use guira_fabric_shm::{Boot, RegionInfo};
use guira_fabric_tcp::client::TcpRegion;
use guira_fabric_tcp::wire::Grant;
use guira_layout::{SlotState, SlotWord};
use guira_rcuckoo::{Counters, SlotInfo, TableError, read_slot, read_totals, slots};

use crate::fabric::FabricRegion;
use crate::repair::is_stopped;
use crate::store::Inner;
use crate::wait::block_on;
use crate::{AdminError, Error, OpenError};

/// A table in numbers: what [`crate::Store::stat`] saw, part by part, while others worked. Serialized as it stands.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Stat {
    /// Where it is, as a URL.
    pub url: String,
    /// Its entry format, as [`crate::EntryFormat`] is written.
    pub format: String,
    /// The name of its row checksum.
    pub checksum: &'static str,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Entries of a row.
    pub entries_per_row: u8,
    /// Bits of a lock.
    pub lock_bits: u8,
    /// Rows that share a lock.
    pub rows_per_lock: u32,
    /// Locks in memory: where there are fewer than groups of rows, some groups share one. Source: R-LOCK-5.
    pub physical_locks: u64,
    /// Client slots, free or not.
    pub max_clients: u16,
    /// Bytes of an extent chunk; 0 if the format has none.
    pub chunk_bytes: u64,
    /// What it holds.
    pub table: TableStats,
    /// Who has it open for changing, or died so: every slot that is not free, by number.
    pub clients: Vec<ClientStat>,
    /// What its clients met since it was created, as far as they have told: a client tells when it closes, and after
    /// an operation in which it had to do with somebody who was dead or stood still. Source: R-TOTALS-1.
    #[serde(serialize_with = "by_name")]
    pub totals: Counters,
    /// What it lies in.
    pub region: RegionStat,
}

fn by_name<S: serde::Serializer>(counters: &Counters, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counters.named())
}

/// Whether a client lives. Source: R-SLOT-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClientState {
    /// Its process has the slot's liveness.
    Live,
    /// As `Live`, but its process is stopped, by a signal or a tracer, as far as this one can tell: it keeps what it
    /// holds until it goes on, or is killed ([`crate::Store::kill_client`]). Source: R-RECOVER-1.
    Stopped,
    /// Nobody asked: the store can only read ([`crate::Store::is_read_only`]), or somebody who is no client has locked
    /// the slot ([`crate::Store::slot_lock`]).
    Unknown,
    /// Its process is gone; whoever needs what it held recovers it. Source: R-RECOVER-1.
    Dead,
    /// Its process is gone, and another one is cleaning up, or died in that: the one that [`ClientStat::process`]
    /// names. Source: R-RECOVER-4.
    Recovering,
    /// Its slot cannot be read.
    Damaged,
}

/// A client slot that is not free.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ClientStat {
    /// Its number, from 0.
    pub slot: u16,
    /// The id its locks carry: the slot's number and 1.
    pub owner: u16,
    /// How often the slot was taken, this time included; 0 if it is damaged.
    pub generation: u64,
    /// Whether its client lives.
    pub state: ClientState,
    /// Its process id, in the namespace of that process; while it is being recovered, that of whoever does so.
    pub process: u64,
    /// When it was opened, in nanoseconds since 1970; while it is being recovered, when the one who does so opened his
    /// own client, or began.
    pub since_unix_ns: u64,
    /// Whether it has a commit under way.
    pub committing: bool,
    /// Chunks it owns: nobody else can use their free space.
    pub chunks: u64,
}

/// What a table lies in. Serialized as what is inside.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum RegionStat {
    /// A file: of `shm://` and `file://`.
    File(FileStat),
    /// The memory of a node: of `tcp://`.
    Node(NodeStat),
}

impl RegionStat {
    /// The file, if it is one.
    pub fn file(&self) -> Option<&FileStat> {
        match self {
            RegionStat::File(file) => Some(file),
            RegionStat::Node(_) => None,
        }
    }

    /// The node, if one has it.
    pub fn node(&self) -> Option<&NodeStat> {
        match self {
            RegionStat::File(_) => None,
            RegionStat::Node(node) => Some(node),
        }
    }
}

/// The memory of a node, as the session sees it through which it was asked.
#[derive(Clone, Debug, serde::Serialize)]
pub struct NodeStat {
    /// The node's address and port.
    pub peer: String,
    /// Bytes of the main space: rows, extents, client slots.
    pub main_bytes: u64,
    /// Bytes of the device space: locks.
    pub device_bytes: u64,
    /// Bytes of one WRITE that no death can tear; `None` if none ever is torn.
    pub atomic_write_unit: Option<u64>,
    /// After how long without a sign of life from a client's machine the node drops its session, in milliseconds.
    pub session_timeout_ms: u64,
    /// Whether the node lets this client read only.
    pub read_only: bool,
}

impl NodeStat {
    pub(crate) fn new(region: &TcpRegion) -> NodeStat {
        let unit = region.caps().atomic_write_unit;
        NodeStat {
            peer: region.peer().to_string(),
            main_bytes: region.main_bytes(),
            device_bytes: region.device_bytes(),
            atomic_write_unit: (unit != Caps::WHOLE_WRITE).then_some(unit),
            session_timeout_ms: u64::try_from(region.session_timeout().as_millis()).unwrap_or(u64::MAX),
            read_only: region.grant() == Grant::ReadOnly,
        }
    }
}

/// The file a table lies in.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FileStat {
    /// Its path.
    pub path: String,
    /// Bytes of the main space: rows, extents, client slots.
    pub main_bytes: u64,
    /// Bytes of the device space: locks.
    pub device_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// When it was created, in nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Whether the machine has been running ever since: false if it was started anew, `None` if nobody knows.
    pub same_boot: Option<bool>,
    /// Its permission bits, as [`crate::CreateOptions::mode`] takes them.
    pub mode: u32,
    /// The id of the user who owns it.
    pub owner_uid: u32,
    /// The path of its lock file, if it was created with a mode that lets some users read and not write it.
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
        // Those of a table that was destroyed are as good as none. // [R-DESTROY-2]
        block_on(inner.verify_table(region))?;
    }
    let mut clients = Vec::new();
    for (info, state) in clients_of(inner, region)? {
        let generation = info.word.map_or(0, |word| word.generation);
        let owner = info.slot + 1;
        let owned = table.space.owners.iter().find(|known| known.owner == owner);
        clients.push(ClientStat {
            slot: info.slot,
            owner,
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

/// Every slot that is not free, by number, and whether its client lives. 1 round trip for 256 slots, and up to 2 for
/// each that is not free.
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

/// Whoever obtains the hold of a used slot has proved its client dead. A read-only store cannot ask.
pub(crate) fn liveness(inner: &Inner, region: &FabricRegion, slot: u16) -> ClientState {
    if inner.may_only_read(region) {
        return ClientState::Unknown;
    }
    match region.hold(slot) {
        // Looked at again under the proof: a client that closed in between is not dead.
        Ok(Some(_proof)) => match block_on(read_slot(&mut region.lane(), &inner.table, slot)) {
            Ok(SlotInfo { word: Some(SlotWord { state: SlotState::Free, .. }), .. }) => ClientState::Live,
            _ => ClientState::Dead,
        },
        // Nobody can ask about a slot that somebody else has locked.
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
