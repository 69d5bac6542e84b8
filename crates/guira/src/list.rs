//! The tables of this host's shared memory.

use guira_fabric_shm::{FoundKind, FoundRegion, ShmError, found_regions};
use guira_rcuckoo::TableError;

use crate::admin::{ClientState, FileStat};
use crate::stat::clients_of;
use crate::{Error, OpenError, OpenOptions, Store, Url};

/// A table of this host's shared memory, or a file there that may be one. Serialized as one object.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct ListedTable {
    /// Where it is: `shm://NAME`. Whoever created the file chose the name: see [`crate::admin::printable`].
    #[serde(serialize_with = "as_text")]
    pub url: Url,
    /// The id of the user who owns it.
    pub owner_uid: u32,
    /// Its permission bits, as [`crate::CreateOptions::mode`] takes them.
    pub mode: u32,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// What it is, and what is known of it.
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
    /// A table that somebody destroyed: no client can change it, and its name is all that is left to remove.
    Destroyed,
    /// A table that is being created, or whose creator ended before it was whole.
    Unfinished,
    /// This user may not read it: it may be a table, or a file of anybody.
    Unreadable,
    /// A table that cannot be read, because it is damaged or of another version of this library.
    Damaged {
        /// Why. It names the file: see [`crate::admin::printable`].
        reason: String,
    },
}

/// A table in short: a part of [`crate::admin::Stat`] that costs little, however large the table is.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct TableSummary {
    /// Its entry format, as [`crate::EntryFormat`] is written.
    pub format: String,
    /// Entries there is room for.
    pub capacity: u64,
    /// Entries it has, as [`Store::len_estimate`] tells: exact up to 4,096 rows, beyond that by a sample.
    pub entries: u64,
    /// Half the width of the 95 % confidence interval, in entries; 0 if every row was counted.
    pub entries_error: u64,
    /// Client slots, free or not.
    pub max_clients: u16,
    /// Who has it open for changing. Readers leave no trace.
    pub clients: ClientCounts,
    /// When it was created, in nanoseconds since 1970.
    pub created_unix_ns: u64,
}

/// How many clients are in which state: [`ClientState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ClientCounts {
    /// Clients that live and are not stopped.
    pub live: u64,
    /// Clients whose process is stopped.
    pub stopped: u64,
    /// Clients of a table that this user may only read: nobody can ask.
    pub unknown: u64,
    /// Clients whose process is gone.
    pub dead: u64,
    /// Dead clients that somebody is recovering.
    pub recovering: u64,
    /// Client slots that cannot be read.
    pub damaged: u64,
}

impl ClientCounts {
    fn note(&mut self, state: ClientState) {
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

/// The tables in `/dev/shm`, by name: those of every user, as far as this one may read them. Files that this user may
/// not read are listed, because they may be tables; other files are not, nor are tables that go meanwhile. Tables of
/// `file://`, of processes (`memory://`) and of memory nodes are not looked for.
///
/// Changes nothing, and takes no client slot. Costs little for tables of any size: of each it reads one page of the
/// file, up to 4,096 rows, and the client slots (1 round trip for 64 rows and for 256 slots, and up to 2 for each slot
/// that is not free). Who has a table open for changing is told, as [`Store::stat`] does, for tables that this user may
/// write; others have [`ClientCounts::unknown`] clients.
///
/// # Errors
/// `Region` if `/dev/shm` cannot be read.
///
/// ```
/// use guira::admin::ListedState;
/// use guira::{CreateOptions, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://guira-doc-list-{}", std::process::id()).parse()?;
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
        let FoundRegion { owner_uid, mode, file_bytes, .. } = found;
        listed.extend(state.map(|state| ListedTable { url, owner_uid, mode, file_bytes, state }));
    }
    Ok(listed)
}

/// What the file at `url` is; `None` if it is gone.
fn state_of(url: &Url) -> Option<ListedState> {
    match summary(url) {
        Ok(summary) => Some(ListedState::Table(summary)),
        Err(error) if error.is_not_found() => None,
        Err(Error::Open(OpenError::Table { source: TableError::Destroyed, .. })) => Some(ListedState::Destroyed),
        Err(Error::Open(OpenError::Region(ShmError::Permission { .. }))) => Some(ListedState::Unreadable),
        // To look changes nothing, whatever it finds.
        Err(error) => Some(ListedState::Damaged { reason: error.to_string().replace("; nothing was changed", "") }),
    }
}

/// The table at `url` in short. It is opened for changing where that is permitted, because only then it can be asked
/// who lives.
fn summary(url: &Url) -> Result<TableSummary, Error> {
    let options = OpenOptions::default().any_owner();
    let store = match Store::open_with(url, &options) {
        Err(Error::Open(OpenError::Region(ShmError::Permission { .. } | ShmError::LockFile { .. }))) => {
            Store::open_with(url, &options.read_only())?
        }
        opened => opened?,
    };
    let (region, config) = (store.inner.region()?, store.table().config());
    let len = store.len_estimate()?;
    let mut clients = ClientCounts::default();
    for (_, state) in clients_of(&store.inner, &region)? {
        clients.note(state);
    }
    Ok(TableSummary {
        format: config.format.to_string(),
        capacity: config.max_entries(),
        entries: len.entries,
        entries_error: len.error,
        max_clients: config.max_clients,
        clients,
        created_unix_ns: region.stat()?.file().map_or(0, |FileStat { created_unix_ns, .. }| *created_unix_ns),
    })
}
