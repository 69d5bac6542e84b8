//! Listing the tables in this host's shared memory.

use guira_fabric_shm::{FoundKind, FoundRegion, ShmError, found_regions};
use guira_rcuckoo::TableError;

use crate::admin::stat::clients_of;
use crate::admin::{ClientState, FileStat};
use crate::{Error, OpenError, OpenOptions, Store, Url};

/// A table in this host's shared memory, or a file there that may be one. It is serialized as one object.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct ListedTable {
    /// The URL, `shm://NAME`. The creator of the file chose the name: see [`crate::admin::printable`].
    #[serde(serialize_with = "as_text")]
    pub url: Url,
    /// The id of the user who owns it.
    pub owner_uid: u32,
    /// The permission bits, as in [`crate::CreateOptions::mode`].
    pub mode: u32,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes that its file system has stored for it, or reserved: fewer than `file_bytes` as long as it can grow.
    pub stored_bytes: u64,
    /// The kind of file, and its properties.
    #[serde(flatten)]
    pub state: ListedState,
}

fn as_text<S: serde::Serializer>(url: &Url, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(url)
}

/// The kind of a listed file.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ListedState {
    /// A table.
    Table(TableSummary),
    /// A table that was destroyed: no client can change it, and only its name is left to remove.
    Destroyed,
    /// A table that is being created, or whose creator died before it was complete.
    Unfinished,
    /// A table that is being served over RDMA, and can be reached by its server's `rdma://` URL only.
    ServedByDevice,
    /// A file that this user may not read: it may be a table or any other file.
    Unreadable,
    /// A table that cannot be read, because it is damaged or of another version of this library.
    Damaged {
        /// The reason. It contains the name of the file: see [`crate::admin::printable`].
        reason: String,
    },
}

/// A short summary of a table: a part of [`crate::admin::Stat`] that is cheap to collect for tables of any size.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct TableSummary {
    /// The entry format, in the notation of [`crate::EntryFormat`].
    pub format: String,
    /// The number of entries that fit: now, if the table grows.
    pub capacity: u64,
    /// The number of entries that fit when the table has grown as far as it may; `capacity` if it does not grow.
    pub most_capacity: u64,
    /// The number of entries, as from [`Store::len_estimate`]: exact up to 4,096 rows, beyond that by a sample.
    pub entries: u64,
    /// Half the width of the 95 % confidence interval, in entries; 0 if every row was counted.
    pub entries_error: u64,
    /// Client slots, free or not.
    pub max_clients: u16,
    /// The clients that have it open. Readers leave no trace.
    pub clients: ClientCounts,
    /// The time of creation, in nanoseconds since 1970.
    pub created_unix_ns: u64,
}

/// The number of clients in each [`ClientState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ClientCounts {
    /// Clients that are alive and not stopped.
    pub live: u64,
    /// Clients whose process is stopped.
    pub stopped: u64,
    /// Clients of a table that this user may only read: their state cannot be checked.
    pub unknown: u64,
    /// Clients whose process is gone.
    pub dead: u64,
    /// Dead clients that another process is recovering.
    pub recovering: u64,
    /// Client slots that cannot be read.
    pub damaged: u64,
}

impl ClientCounts {
    fn add(&mut self, state: ClientState) {
        let count = match state {
            ClientState::Live => &mut self.live,
            ClientState::Stopped => &mut self.stopped,
            ClientState::Unknown => &mut self.unknown,
            ClientState::Dead => &mut self.dead,
            ClientState::Recovering => &mut self.recovering,
            ClientState::Damaged => &mut self.damaged,
        };
        *count += 1;
    }
}

/// Lists the tables in `/dev/shm` of all users, by name. Files that this user may not read are listed, because they may
/// be tables; other files are not, nor are tables that are destroyed meanwhile. Tables of `file://`, of processes
/// (`memory://`) and of memory nodes are not listed.
///
/// Changes nothing, and takes no client slot. Costs little for tables of any size: for each it reads one page of the
/// file, up to 4,096 rows, and the client slots (1 round trip for 64 rows and for 256 slots, and up to 2 for each slot
/// that is not free). The states of clients are known for tables that this user may write, as in [`Store::stat`]; other
/// tables have [`ClientCounts::unknown`] clients.
///
/// # Errors
/// `Region` if `/dev/shm` cannot be read.
///
/// ```
/// use guira::admin::ListedState;
/// use guira::{CreateOptions, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// let store = Store::create(&url, &CreateOptions::new(1_000))?;
/// let _client = store.client()?;
/// let listed = guira::admin::list()?.into_iter().find(|listed| listed.url == url).expect("it was created");
/// let ListedState::Table(table) = listed.state else { panic!("it is {:?}", listed.state) };
/// assert_eq!((table.entries, table.clients.live), (0, 1));
/// # Store::destroy(&url)
/// # }
/// ```
pub fn list() -> Result<Vec<ListedTable>, Error> {
    let mut listed = Vec::new();
    for found in found_regions()? {
        let url = Url::shm(&found.name)?;
        let state = match found.kind {
            FoundKind::Unpublished => Some(ListedState::Unfinished),
            FoundKind::Unreadable => Some(ListedState::Unreadable),
            _ => state_of(&url),
        };
        let FoundRegion { owner_uid, mode, file_bytes, stored_bytes, .. } = found;
        listed.extend(state.map(|state| ListedTable { url, owner_uid, mode, file_bytes, stored_bytes, state }));
    }
    Ok(listed)
}

/// Returns the state of the file at `url`; `None` if it is gone.
fn state_of(url: &Url) -> Option<ListedState> {
    match summary(url) {
        Ok(summary) => Some(ListedState::Table(summary)),
        Err(error) if error.is_not_found() => None,
        Err(Error::Open(OpenError::Table { source: TableError::Destroyed, .. })) => Some(ListedState::Destroyed),
        Err(Error::Open(OpenError::Region(ShmError::Permission { .. }))) => Some(ListedState::Unreadable),
        Err(Error::Open(OpenError::Region(ShmError::ServedByDevice { .. }))) => Some(ListedState::ServedByDevice),
        // Reading changes nothing in any case.
        Err(error) => Some(ListedState::Damaged { reason: error.to_string().replace("; nothing was changed", "") }),
    }
}

/// Summarizes the table at `url`. It is opened for writing where that is permitted, because only then the states of
/// its clients can be checked.
fn summary(url: &Url) -> Result<TableSummary, Error> {
    let options = OpenOptions::default().any_owner();
    let store = match Store::open_with(url, &options) {
        Err(Error::Open(OpenError::Region(
            ShmError::Permission { .. } | ShmError::ReadOnlyFileSystem { .. } | ShmError::LockFile { .. },
        ))) => Store::open_with(url, &options.read_only())?,
        opened => opened?,
    };
    let (region, config) = (store.inner.region()?, store.table().config());
    let len = store.len_estimate()?;
    let mut clients = ClientCounts::default();
    for (_, state) in clients_of(&store.inner, &region)? {
        clients.add(state);
    }
    Ok(TableSummary {
        format: config.format.to_string(),
        capacity: len.capacity,
        most_capacity: config.max_entries(),
        entries: len.entries,
        entries_error: len.error,
        max_clients: config.max_clients,
        clients,
        created_unix_ns: region.stat()?.file().map_or(0, |FileStat { created_unix_ns, .. }| *created_unix_ns),
    })
}
