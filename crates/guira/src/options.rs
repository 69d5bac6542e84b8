//! How a table is created and opened.

use std::path::PathBuf;
use std::time::Duration;

use guira_layout::{
    ConfigError, EntryFormat, Geometry, MAX_KEY_BYTES, MAX_VALUE_BYTES, Preset, PresetOptions, TableConfig,
    extent_bytes_for,
};

#[cfg(feature = "tls")]
use crate::ClientTls;
use crate::owners::Owners;

/// What a new table is like. Nothing is checked before [`crate::Store::create`], which says `Create` or, for the mode,
/// `Region` for what cannot be.
///
/// ```
/// use guira::{CreateOptions, Store, Url};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let url: Url = format!("shm://guira-doc-create-{}", std::process::id()).parse()?;
/// // 10,000 keys of 8 bytes with values of 8 bytes; 16 clients at once, of this user's group too.
/// let options = CreateOptions::new(10_000).format("fixed:8:8".parse()?).max_clients(16).mode(0o660);
/// let store = Store::create(&url, &options)?;
/// store.client()?.put(b"8 bytes!", &7u64.to_le_bytes())?;
/// # Store::destroy(&url)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CreateOptions {
    pub(crate) capacity: u64,
    pub(crate) format: EntryFormat,
    pub(crate) preset: Preset,
    pub(crate) extent_bytes: Option<u64>,
    pub(crate) record_bytes: Option<u64>,
    pub(crate) max_clients: Option<u16>,
    pub(crate) mode: u32,
    pub(crate) seed: Option<u64>,
    pub(crate) keeps_records: bool,
    pub(crate) on_mismatch: OnMismatch,
    pub(crate) owners: Owners,
}

/// What [`crate::Store::open_or_create`] does with a table that exists and is not as asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMismatch {
    /// Fails with [`crate::OpenError::Mismatch`]: the first operation that does not fit would fail otherwise, or the
    /// table would be full too soon.
    #[default]
    Refuse,
    /// Opens it as it is: [`crate::Store::table`] tells what that is.
    Accept,
}

/// How far the creation of a table has got: [`crate::Store::create_with_progress`]. The stages follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateProgress {
    /// Memory, or space on disk, is being reserved. Most of the time goes there, if the system gives it for the first
    /// time.
    Reserving {
        /// Bytes that are reserved.
        done_bytes: u64,
        /// All bytes of the table.
        total_bytes: u64,
    },
    /// Rows are being formatted.
    Formatting {
        /// Rows that are formatted.
        done_rows: u64,
        /// All rows.
        total_rows: u64,
    },
}

impl CreateOptions {
    /// A table for `capacity` keys, which fill it to 90 %: `bytes:64`, preset `hardened`, permissions 0600. At least 1
    /// key, and as many as memory allows; a table does not grow.
    pub fn new(capacity: u64) -> CreateOptions {
        CreateOptions {
            capacity,
            format: EntryFormat::Bytes { inline_bytes: 64 },
            preset: Preset::Hardened,
            extent_bytes: None,
            record_bytes: None,
            max_clients: None,
            mode: 0o600,
            seed: None,
            keeps_records: true,
            on_mismatch: OnMismatch::Refuse,
            owners: Owners::default(),
        }
    }

    /// How keys and values are stored. The default is `bytes:64`: keys of 0 to 64 KiB and values of 0 to 64 MiB, in the
    /// row if they have 64 bytes together at most, otherwise in an extent, which costs a round trip more. `fixed:8:8`,
    /// for keys and values of 8 bytes each, is faster and takes less memory. [`EntryFormat`] gives the bounds.
    #[must_use]
    pub fn format(mut self, format: EntryFormat) -> CreateOptions {
        self.format = format;
        self
    }

    /// Which parameters the table starts from; default [`Preset::Hardened`]. The others are for measuring and testing.
    #[must_use]
    pub fn preset(mut self, preset: Preset) -> CreateOptions {
        self.preset = preset;
        self
    }

    /// Bytes of a typical record, its key and value together. If it does not fit in a row, the table gets space in
    /// which `capacity` such records can live and be updated; [`Self::extent_bytes`], if given, decides instead. By
    /// default a table has hardly any such space, because most records are small. Fixed formats ignore it.
    #[must_use]
    pub fn record_bytes(mut self, bytes: u64) -> CreateOptions {
        self.record_bytes = Some(bytes);
        self
    }

    /// Bytes for keys and values that do not fit in a row, rounded up to whole chunks. The default is 1/16 of the
    /// inline bytes for each key of the capacity, 4 for `bytes:64`, and 4 MiB at least: a table of small records takes
    /// little more than its rows. Fixed formats ignore it.
    ///
    /// How much a workload needs: twice the bytes of the keys and values that live at once in extents, three times the
    /// largest value, and a chunk for each client and size class it writes; [`Self::record_bytes`] works it out for
    /// records of one size. A chunk is 1/256 of the space, 64 KiB to 1 MiB; classes are two an octave, so that sizes
    /// from 100 B to 1 MiB are 24. Measured, with what it is made of: docs/space.md.
    #[must_use]
    pub fn extent_bytes(mut self, bytes: u64) -> CreateOptions {
        self.extent_bytes = Some(bytes);
        self
    }

    /// Clients that may have the table open for changing at once, 1 to 32,767; default 1,024. Readers do not count.
    #[must_use]
    pub fn max_clients(mut self, clients: u16) -> CreateOptions {
        self.max_clients = Some(clients);
        self
    }

    /// Permission bits of the table's file, whatever the umask, at most 0777; default 0600: this user only. Clients
    /// need to read and write it, readers to read it. A mode that lets the group or all others read and not write
    /// (0644) makes a lock file beside the table, which keeps readers from locking client slots; a later `chmod` makes
    /// none.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> CreateOptions {
        self.mode = mode;
        self
    }

    /// A table whose changes leave no redo records: for measuring what these cost, and for nothing else. A client that
    /// is killed in the middle of a change then leaves rows that nobody can make whole, and locks that nobody releases.
    /// Source: R-COMMIT-2.
    #[must_use]
    pub fn without_commit_records(mut self) -> CreateOptions {
        self.keeps_records = false;
        self
    }

    /// What [`crate::Store::open_or_create`] does with a table that exists and is not as asked; default
    /// [`OnMismatch::Refuse`]. Nothing else minds it.
    #[must_use]
    pub fn on_mismatch(mut self, on_mismatch: OnMismatch) -> CreateOptions {
        self.on_mismatch = on_mismatch;
        self
    }

    /// Whose table [`crate::Store::open_or_create`] opens if there is one, by user id: see [`OpenOptions::owner`]. By
    /// default it is this user's or root's. Nothing else minds it: a new table belongs to this user.
    #[must_use]
    pub fn owner(mut self, uid: u32) -> CreateOptions {
        self.owners = Owners::Named(uid);
        self
    }

    /// Seed of the key hash; default drawn at random. Equal seeds and equal operations give equal tables.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> CreateOptions {
        self.seed = Some(seed);
        self
    }

    /// Bytes of memory that a table with these options takes.
    ///
    /// # Errors
    /// What no table can have.
    ///
    /// ```
    /// use guira::CreateOptions;
    ///
    /// # fn main() -> Result<(), guira::errors::ConfigError> {
    /// let small = CreateOptions::new(1_000_000);
    /// assert!(small.memory_bytes()? < 89_000_000);
    /// // With room for as many records of 1 KiB.
    /// assert!(small.record_bytes(1024).memory_bytes()? > 1024 * 1_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_bytes(&self) -> Result<u64, ConfigError> {
        let geometry = Geometry::new(&self.config(0)?)?;
        Ok(geometry.main_bytes().saturating_add(geometry.device_bytes()))
    }

    /// The largest capacity with which such a table takes at most `bytes`, in which another capacity that was given is
    /// left out of account; `None` if not even one key has room.
    pub fn capacity_within(&self, bytes: u64) -> Option<u64> {
        let fits = |capacity: u64| {
            CreateOptions { capacity, ..self.clone() }.memory_bytes().is_ok_and(|needed| needed <= bytes)
        };
        // A table takes no less memory for more keys, and more than a byte each.
        let (mut fitting, mut beyond) = (0, bytes);
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                beyond = middle;
            }
        }
        (fitting > 0).then_some(fitting)
    }

    /// The parameters of such a table, whose keys are hashed by `hash_seed`.
    pub(crate) fn config(&self, hash_seed: u64) -> Result<TableConfig, ConfigError> {
        let largest = (MAX_KEY_BYTES + MAX_VALUE_BYTES) as u64;
        if let Some(bytes) = self.record_bytes.filter(|bytes| *bytes == 0 || *bytes > largest) {
            let bounds = "1 B to 64 MiB and 64 KiB, the largest value and key";
            return Err(ConfigError::OutOfRange { name: "record bytes", value: bytes, bounds });
        }
        let for_records = |bytes| extent_bytes_for(self.format, self.capacity, bytes);
        let preset_options = PresetOptions {
            capacity: self.capacity,
            format: self.format,
            extent_bytes: self.extent_bytes.or(self.record_bytes.map(for_records)),
            max_clients: self.max_clients,
            hash_seed,
            device_bytes: guira_fabric::Profile::Shm.caps().device_bytes,
        };
        let mut config = self.preset.config(&preset_options)?;
        config.rules.commit_records &= self.keeps_records;
        Ok(config)
    }
}

/// How a table is opened.
///
/// ```
/// use std::time::Duration;
///
/// use guira::{Blame, CreateOptions, OpenOptions, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://guira-doc-open-{}", std::process::id()).parse()?;
/// # let _created = Store::create(&url, &CreateOptions::new(1_000))?;
/// let options = OpenOptions::default().read_only().deadline(Duration::from_millis(100));
/// let store = Store::open_with(&url, &options)?;
/// assert_eq!(store.reader().get(b"cuckoo")?, None);
/// assert!(store.client().is_err_and(|error| error.blame() == Blame::Misuse));
/// # Store::destroy(&url)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) access: Access,
    pub(crate) owners: Owners,
    pub(crate) deadline: Duration,
    pub(crate) cache_bytes: usize,
    pub(crate) token_file: Option<PathBuf>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<ClientTls>,
    pub(crate) connect_timeout: Duration,
    pub(crate) reconnect_timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
}

impl Default for OpenOptions {
    /// For reading and changing a table of this user or of root, a deadline of 10 s, a row cache of 64 KiB; of a memory
    /// node without a token, within 5 s, and again within 10 s.
    fn default() -> OpenOptions {
        OpenOptions {
            access: Access::ReadWrite,
            owners: Owners::default(),
            deadline: Duration::from_secs(10),
            cache_bytes: 64 << 10,
            token_file: None,
            #[cfg(feature = "tls")]
            tls: None,
            connect_timeout: Duration::from_secs(5),
            reconnect_timeout: Duration::from_secs(10),
        }
    }
}

impl OpenOptions {
    /// As [`OpenOptions::default`], which says what that is.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// For reading only: needs no write permission and no client slot, and gives no clients
    /// ([`crate::OpenError::ReadOnly`]).
    #[must_use]
    pub fn read_only(mut self) -> OpenOptions {
        self.access = Access::ReadOnly;
        self
    }

    /// The table has to belong to this user, by user id, whether it is opened for changing or for reading; otherwise it
    /// is refused ([`crate::OpenError::Owner`]). Whoever owns a file can read and change all that is put into it.
    ///
    /// By default a table that is opened for changing has to be this user's or root's, because anybody may create
    /// `shm://NAME` before its users come; root is no exception, and names the owner like everybody else. A table that
    /// is opened for reading may be anybody's. Tables of memory nodes have no owner that a client could ask for. In a
    /// user namespace all users whom it does not map have one id, mostly 65,534: to name it is to trust all of them.
    #[must_use]
    pub fn owner(mut self, uid: u32) -> OpenOptions {
        self.owners = Owners::Named(uid);
        self
    }

    /// The table may belong to anybody: for those who put nothing into it that its owner must not see, such as to
    /// recover its dead clients or to look who lives.
    #[must_use]
    pub fn any_owner(mut self) -> OpenOptions {
        self.owners = Owners::Any;
        self
    }

    /// How long each operation waits for what others hold before it fails with `Busy`; default 10 s, to the nanosecond.
    /// Zero waits for nobody. Source: R-LOCK-4, R-READ-5.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> OpenOptions {
        self.deadline = deadline;
        self
    }

    /// Bytes of rows each client remembers for its path searches, at least one row; default 64 KiB. A hint only: what
    /// it says is checked. Tables in shared memory hardly need any. Source: R-INSERT-2.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> OpenOptions {
        self.cache_bytes = bytes;
        self
    }

    /// The file with the secret that a memory node wants of its clients (`tcp://`): 128 bits as 32 hexadecimal digits,
    /// white space around them ignored; a file that anybody may read is refused. Read whenever a session begins.
    /// Without one, only nodes let this client in that want none.
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> OpenOptions {
        self.token_file = Some(path.into());
        self
    }

    /// Encrypts connections to memory nodes (`tcp://`), by TLS 1.3: with whose certificates. Without it, nodes that
    /// want TLS refuse this client. Costs a round trip whenever a session begins.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> OpenOptions {
        self.tls = Some(tls);
        self
    }

    /// How long one attempt to connect to a memory node may take (`tcp://`), from 1 ms on; default 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> OpenOptions {
        self.connect_timeout = timeout;
        self
    }

    /// How long an operation that finds its connection to the memory node lost (`tcp://`) goes on trying to get another
    /// one, before it fails as it would have at once; default 10 s. So do [`crate::Store::client`],
    /// [`crate::aio::Store::client`], and the calls of an open store that tell of it: `stat`, `check`, `len_estimate`,
    /// `is_destroyed`. Zero makes one attempt. The next operation tries again. Source: R-SESSION-1.
    #[must_use]
    pub fn reconnect_timeout(mut self, timeout: Duration) -> OpenOptions {
        self.reconnect_timeout = timeout;
        self
    }
}
