//! Options for creating and opening tables.

use std::path::PathBuf;
use std::time::Duration;

use guira_layout::{
    ConfigError, EntryFormat, Geometry, MAX_KEY_BYTES, MAX_VALUE_BYTES, Preset, PresetOptions, TableConfig,
    extent_bytes_for,
};

#[cfg(feature = "tls")]
use crate::ClientTls;
use crate::RowGuess;
use crate::owners::Owners;

/// Keys that a table has room for at first, if nobody knows how many it will have.
const FIRST_CAPACITY: u64 = 1_000;
/// The largest number of keys for which a table has addresses, if nobody knows how many it will have: a few MiB of first
/// rows are enough to grow so far.
const MOST_MACHINE_KEYS: u64 = 1 << 32;
/// The least space for large values to which such a table may grow, in bytes.
const MIN_GROWING_EXTENT_BYTES: u64 = 1 << 30;

/// Options for a new table, checked by [`crate::Store::create`], which fails with `Create` or, for the mode, with
/// `Region` if they are impossible.
///
/// ```
/// use guira::{CreateOptions, Store, Url};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
/// // 10,000 keys of 8 bytes with values of 8 bytes; at most 16 clients at once, also of this user's group.
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
    pub(crate) is_divided: bool,
    pub(crate) growth: Growth,
    pub(crate) on_mismatch: OnMismatch,
    pub(crate) owners: Owners,
}

/// How many keys a table may grow to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// No more than it has room for.
    None,
    /// So many.
    To(u64),
    /// As many as the memory of this machine holds.
    Machine,
}

/// The reaction of [`crate::Store::open_or_create`] to an existing table that does not match the options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMismatch {
    /// Fails with [`crate::OpenError::Mismatch`]: otherwise the first operation that does not fit would fail, or the
    /// table would be full too soon.
    #[default]
    Refuse,
    /// Opens it as it is: [`crate::Store::table`] has its parameters.
    Accept,
}

/// The reaction of a store to the loss of its table ([`crate::Error::is_gone`]): [`OpenOptions::reopen`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reopen {
    /// Every operation fails from then on.
    #[default]
    Never,
    /// Each client and reader reports the loss once. Its next operation opens the table that the URL leads to then, and
    /// goes on with that.
    AfterLoss,
}

/// The progress of a table's creation: [`crate::Store::create_with_progress`]. The stages follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateProgress {
    /// Memory, or space on disk, is being reserved. This takes most of the time, if the system provides the memory for
    /// the first time.
    Reserving {
        /// Bytes reserved so far.
        done_bytes: u64,
        /// All bytes of the table.
        total_bytes: u64,
    },
    /// Rows are being formatted.
    Formatting {
        /// Rows formatted so far.
        done_rows: u64,
        /// All rows.
        total_rows: u64,
    },
}

impl CreateOptions {
    /// Options for a table with room for `capacity` keys, which fill it to 90 %: format `bytes:64`, preset `hardened`,
    /// permissions 0600. At least 1 key, and as many as memory allows; the table does not grow, unless
    /// [`Self::max_capacity`] is set.
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
            is_divided: false,
            growth: Growth::None,
            on_mismatch: OnMismatch::Refuse,
            owners: Owners::default(),
        }
    }

    /// Sets the format of keys and values. The default is `bytes:64`: keys of 0 to 64 KiB and values of 0 to 64 MiB,
    /// stored in the row if they have at most 64 bytes together, otherwise in an extent, which costs one more round
    /// trip. `fixed:8:8`, for keys and values of 8 bytes each, is faster and takes less memory. [`EntryFormat`] gives
    /// the bounds.
    #[must_use]
    pub fn format(mut self, format: EntryFormat) -> CreateOptions {
        self.format = format;
        self
    }

    /// Sets the preset of the table's parameters; default [`Preset::Hardened`]. The others are for measurements and
    /// tests.
    #[must_use]
    pub fn preset(mut self, preset: Preset) -> CreateOptions {
        self.preset = preset;
        self
    }

    /// Sets the bytes of a typical record, its key and value together. If it does not fit in a row, the table gets
    /// space in which `capacity` such records can be stored and updated, unless [`Self::extent_bytes`] is set. By
    /// default a table has hardly any such space, because most records are small. Fixed formats ignore it.
    #[must_use]
    pub fn record_bytes(mut self, bytes: u64) -> CreateOptions {
        self.record_bytes = Some(bytes);
        self
    }

    /// Sets the bytes for keys and values that do not fit in a row, rounded up to whole chunks. The default is 1/16 of
    /// the inline bytes for each key of the capacity (4 for `bytes:64`), and at least 4 MiB: a table of small records
    /// takes little more than its rows. Fixed formats ignore it.
    ///
    /// In a table that grows ([`Self::max_capacity`]) this is the space that it may grow to.
    ///
    /// A workload needs twice the bytes of the keys and values that are in extents at once, three times the largest
    /// value, and a chunk for each client and size class it writes; [`Self::record_bytes`] computes this for records of
    /// one size. A chunk is 1/2048 to 1/1024 of the space, 64 KiB to 1 MiB. There are four size classes an octave: 38 for sizes
    /// from 100 B to 64 KiB. Measurements and their parts: docs/space.md.
    #[must_use]
    pub fn extent_bytes(mut self, bytes: u64) -> CreateOptions {
        self.extent_bytes = Some(bytes);
        self
    }

    /// Sets the number of clients that may have the table open at once, 1 to 32,767; default 1,024. Readers do not
    /// count.
    #[must_use]
    pub fn max_clients(mut self, clients: u16) -> CreateOptions {
        self.max_clients = Some(clients);
        self
    }

    /// Sets the permission bits of the table's file, whatever the umask, at most 0777; default 0600: this user only.
    /// Clients need to read and write it, readers to read it. A mode that lets the group or all others read and not
    /// write (0644) creates a lock file beside the table, which keeps readers from locking client slots; a later
    /// `chmod` creates none.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> CreateOptions {
        self.mode = mode;
        self
    }

    /// Disables redo records, for measuring their cost, and for nothing else. A client that is killed in the middle of
    /// a change then leaves rows that cannot be repaired, and locks that are never released. Source: R-COMMIT-2.
    #[must_use]
    pub fn without_commit_records(mut self) -> CreateOptions {
        self.keeps_records = false;
        self
    }

    /// Divides the table into segments that are never split, for measurements: it is full as soon as one of them is.
    /// Source: R-GROW-1.
    #[doc(hidden)]
    #[must_use]
    pub fn in_segments(mut self) -> CreateOptions {
        self.is_divided = true;
        self
    }

    /// Lets the table grow while it is used, from room for its capacity to room for `keys` keys: at least the capacity.
    /// It takes memory as it grows, a few hundred KiB at a time, and never gives any back; what it does not need yet is
    /// address space only. At first it takes a part in 32,768 of what it may grow to, if that is more than its capacity
    /// needs. An insert that finds no memory fails with [`crate::Error::insufficient_space`], and has changed nothing.
    ///
    /// The space for values that do not fit in a row grows as well, up to [`Self::extent_bytes`]; by default as far as
    /// `keys` records of 4 KiB need, or of [`Self::record_bytes`].
    ///
    /// A key takes up to 1.6 times the memory that it takes in a table of fixed size. One insert in some thousands
    /// makes the table grow, and takes some hundred microseconds; other clients need not wait, unless they change keys
    /// of the same 0.1 % of a large table, or of a larger part of a small one. A memory node can serve the table
    /// ([`crate::ServeOptions::max_memory`]). Source: R-GROW-6, R-GROW-15.
    ///
    /// ```
    /// use guira::{CreateOptions, Store, Url};
    ///
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// let store = Store::create(&url, &CreateOptions::new(1_000).max_capacity(1_000_000))?;
    /// let mut client = store.client()?;
    /// for number in 0..20_000_u64 {
    ///     client.put(&number.to_le_bytes(), b"Guira guira")?;
    /// }
    /// assert_eq!(store.stat()?.table.entries, 20_000);
    /// # Store::destroy(&url)
    /// # }
    /// ```
    #[must_use]
    pub fn max_capacity(mut self, keys: u64) -> CreateOptions {
        self.growth = Growth::To(keys);
        self
    }

    /// Sets the reaction of [`crate::Store::open_or_create`] to an existing table that does not match these options;
    /// default [`OnMismatch::Refuse`]. No other call uses it.
    #[must_use]
    pub fn on_mismatch(mut self, on_mismatch: OnMismatch) -> CreateOptions {
        self.on_mismatch = on_mismatch;
        self
    }

    /// Sets the user id that an existing table must belong to for [`crate::Store::open_or_create`] to open it: see
    /// [`OpenOptions::owner`]. By default it must be this user's or root's. No other call uses it: a new table belongs
    /// to this user.
    #[must_use]
    pub fn owner(mut self, uid: u32) -> CreateOptions {
        self.owners = Owners::Named(uid);
        self
    }

    /// Sets the seed of the key hash; by default it is drawn at random. Equal seeds and equal operations give equal
    /// tables.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> CreateOptions {
        self.seed = Some(seed);
        self
    }

    /// Returns the bytes of memory that a table with these options takes; a table that grows takes them at first.
    ///
    /// # Errors
    /// `OutOfRange` and other [`ConfigError`]s, if no table can have these options.
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
        let config = self.config(0)?;
        let geometry = Geometry::new(&config)?;
        let solid = geometry.solid(&config).iter().map(|bytes| bytes.end - bytes.start).sum::<u64>();
        Ok(solid.saturating_add(geometry.device_bytes()))
    }

    /// Returns the largest capacity for which a table with these options takes at most `bytes`, whatever capacity was
    /// set; `None` if not even one key fits.
    pub fn capacity_within(&self, bytes: u64) -> Option<u64> {
        let fits = |capacity: u64| {
            CreateOptions { capacity, ..self.clone() }.memory_bytes().is_ok_and(|needed| needed <= bytes)
        };
        // Binary search: a table takes no less memory for more keys, and more than a byte for each.
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

    /// Returns the number of keys that fill `bytes` bytes of rows, at most 2^32.
    fn keys_in(&self, bytes: u64) -> Result<u64, ConfigError> {
        let preset_options = PresetOptions {
            capacity: 1,
            format: self.format,
            extent_bytes: None,
            max_clients: None,
            hash_seed: 0,
            device_bytes: u64::MAX,
        };
        let config = self.preset.config(&preset_options)?;
        Ok((bytes / u64::from(config.row_bytes) * u64::from(config.entries_per_row)).min(MOST_MACHINE_KEYS))
    }

    /// Returns the parameters of such a table, whose keys are hashed with `hash_seed`.
    pub(crate) fn config(&self, hash_seed: u64) -> Result<TableConfig, ConfigError> {
        let largest = (MAX_KEY_BYTES + MAX_VALUE_BYTES) as u64;
        if let Some(bytes) = self.record_bytes.filter(|bytes| *bytes == 0 || *bytes > largest) {
            let bounds = "1 B to 64 MiB and 64 KiB, the largest value and key";
            return Err(ConfigError::OutOfRange { name: "record bytes", value: bytes, bounds });
        }
        let (most, of_machine) = match self.growth {
            Growth::None => (self.capacity, None),
            Growth::To(keys) => (keys, None),
            Growth::Machine => {
                let bytes = machine_bytes();
                (self.keys_in(bytes)?.max(self.capacity), Some(bytes.max(MIN_GROWING_EXTENT_BYTES)))
            }
        };
        let for_records = |bytes| extent_bytes_for(self.format, most, bytes);
        let preset_options = PresetOptions {
            capacity: self.capacity,
            format: self.format,
            extent_bytes: self.extent_bytes.or(self.record_bytes.map(for_records)).or(of_machine),
            max_clients: self.max_clients,
            hash_seed,
            device_bytes: guira_fabric::Profile::Shm.caps().device_bytes,
        };
        let mut config = match (self.growth, self.is_divided) {
            (Growth::To(_) | Growth::Machine, _) => self.preset.config_growing_to(most, &preset_options)?,
            (Growth::None, true) => self.preset.config_in_segments(&preset_options)?,
            (Growth::None, false) => self.preset.config(&preset_options)?,
        };
        config.rules.commit_records &= self.keeps_records;
        Ok(config)
    }
}

impl Default for CreateOptions {
    /// Options for a table of which nobody knows how many keys it will have: it has room for at least 1,000 at first,
    /// and grows while it is used, as [`CreateOptions::max_capacity`] describes, until the memory of the machine is in
    /// use. The other options are those of [`CreateOptions::new`].
    fn default() -> CreateOptions {
        CreateOptions { growth: Growth::Machine, ..CreateOptions::new(FIRST_CAPACITY) }
    }
}

/// Returns the bytes of memory that this machine has.
fn machine_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram as u64).saturating_mul(u64::from(system.mem_unit))
}

/// Options for opening a table.
///
/// ```
/// use std::time::Duration;
///
/// use guira::{Blame, CreateOptions, OpenOptions, Store, Url};
///
/// # fn main() -> Result<(), guira::Error> {
/// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
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
    pub(crate) predictor_bytes: usize,
    pub(crate) row_guess: RowGuess,
    pub(crate) token_file: Option<PathBuf>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<ClientTls>,
    pub(crate) connect_timeout: Duration,
    pub(crate) reconnect_timeout: Duration,
    pub(crate) reopen: Reopen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
}

impl Default for OpenOptions {
    /// Options for reading and writing a table of this user or of root, with a deadline of 10 s and a row cache of 64
    /// KiB; for a memory node no token, a connect timeout of 5 s and a reconnect timeout of 10 s.
    fn default() -> OpenOptions {
        OpenOptions {
            access: Access::ReadWrite,
            owners: Owners::default(),
            deadline: Duration::from_secs(10),
            cache_bytes: 64 << 10,
            predictor_bytes: 0,
            row_guess: RowGuess::Rationed,
            token_file: None,
            #[cfg(feature = "tls")]
            tls: None,
            connect_timeout: Duration::from_secs(5),
            reconnect_timeout: Duration::from_secs(10),
            reopen: Reopen::Never,
        }
    }
}

impl OpenOptions {
    /// Same as [`OpenOptions::default`], which lists the values.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// Opens the table for reading only: needs no write permission and no client slot, and cannot open clients
    /// ([`crate::OpenError::ReadOnly`]).
    #[must_use]
    pub fn read_only(mut self) -> OpenOptions {
        self.access = Access::ReadOnly;
        self
    }

    /// Requires that the table belongs to the user with this id, whether it is opened for writing or for reading;
    /// otherwise it is refused ([`crate::OpenError::Owner`]). The owner of a file can read and change all that is
    /// stored in it.
    ///
    /// By default a table that is opened for writing has to be this user's or root's, because any user may create
    /// `shm://NAME` before its intended owner does; root is no exception, and has to name the owner like every other
    /// user. A table that is opened for reading may belong to any user. Tables of memory nodes have no owner that a
    /// client could check. In a user namespace, all users that it does not map share one id, mostly 65,534: naming that
    /// id trusts all of them.
    #[must_use]
    pub fn owner(mut self, uid: u32) -> OpenOptions {
        self.owners = Owners::Named(uid);
        self
    }

    /// Accepts a table of any user: for programs that store nothing in it that its owner must not see, for example to
    /// recover its dead clients or to list them.
    #[must_use]
    pub fn any_owner(mut self) -> OpenOptions {
        self.owners = Owners::Any;
        self
    }

    /// Sets how long each operation waits for locks and rows that other clients hold before it fails with `Busy`;
    /// default 10 s, with a resolution of 1 ns. Zero never waits. Source: R-LOCK-4, R-READ-5.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> OpenOptions {
        self.deadline = deadline;
        self
    }

    /// Sets the bytes of rows that each client caches for its path searches, at least one row; default 64 KiB. The
    /// cache is only a hint: its content is verified. Tables in shared memory hardly need it. Source: R-INSERT-2.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> OpenOptions {
        self.cache_bytes = bytes;
        self
    }

    /// Sets the bytes of a predictor of the row that has a key, which all clients and readers of the store share;
    /// default 0, none. Over RDMA and TCP a lookup or update then reads one row instead of two, which is worth the most
    /// where the message rate of the node's card is the limit; at most 2 % of lookups, and those of missing keys, take
    /// a second round trip. 64 KiB for each client that works at the same time is a good size. Inserts of such a store
    /// go to the first row of their key if it has room, where predictors expect them: in a table that is nearly full,
    /// more of them need a path. Best if all who fill the table predict, or none. Nothing changes in shared memory.
    /// Source: R-READ-10, R-INSERT-1.
    #[must_use]
    pub fn predictor_bytes(mut self, bytes: usize) -> OpenOptions {
        self.predictor_bytes = bytes;
        self
    }

    /// Sets what a lookup does about a key of which the predictor knows nothing; without a predictor, nothing. By
    /// default at most 2 % of lookups guess wrong, and all others of unknown keys read both rows. With
    /// [`RowGuess::Always`] a lookup reads one row at a time: the fewest messages, which is worth the most where the
    /// message rate of the node's card is the limit, for up to one hit in six that takes 2 round trips, and misses
    /// that take 2 more than without a predictor. Source: R-READ-10.
    #[must_use]
    pub fn row_guess(mut self, row_guess: RowGuess) -> OpenOptions {
        self.row_guess = row_guess;
        self
    }

    /// Sets the file with the access token for a memory node (`tcp://`, `rdma://`): 128 bits as 32 hexadecimal digits,
    /// white space around them ignored. A file that any user may read is refused. It is read whenever a session begins.
    /// Without a token, only nodes that require none accept this client.
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> OpenOptions {
        self.token_file = Some(path.into());
        self
    }

    /// Encrypts connections to memory nodes (`tcp://`, `rdma://`) with TLS 1.3, and sets the certificates. Without it,
    /// nodes that require TLS refuse this client. Costs a round trip whenever a session begins.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: ClientTls) -> OpenOptions {
        self.tls = Some(tls);
        self
    }

    /// Sets how long one attempt to connect to a memory node may take (`tcp://`, `rdma://`), at least 1 ms; default 5
    /// s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> OpenOptions {
        self.connect_timeout = timeout;
        self
    }

    /// Sets what clients, readers and pools of the store do when their table is gone: destroyed, lost by a memory node
    /// that restarted without it, or in a file that lost its name. Default [`Reopen::Never`].
    ///
    /// With [`Reopen::AfterLoss`] the operation that finds the loss fails ([`crate::Error::is_gone`]), so that no new
    /// table is taken for the old one without a word: everything that was stored is lost, and a cache has to be filled
    /// again. The next operation of the same client or reader opens the URL's new table with the same options; clients
    /// and readers that are created after the loss was reported use it from their first operation on. If there is no
    /// such table, the operation fails as [`crate::Store::open`] does, and the next one tries again.
    /// [`crate::Store::table`] remains that of the table that was opened first. Round trips: those of
    /// [`crate::Store::open_with`] and [`crate::Store::client`]. Source: R-OPEN-3.
    #[must_use]
    pub fn reopen(mut self, reopen: Reopen) -> OpenOptions {
        self.reopen = reopen;
        self
    }

    /// Sets how long an operation that has lost its connection to the memory node (`tcp://`, `rdma://`) tries to get
    /// another one, before it fails with the reason why there is none; default 10 s. The same goes for
    /// [`crate::Store::client`], [`crate::aio::Store::client`], and the calls of an open store that only read: `stat`,
    /// `check`, `len_estimate`, `is_destroyed`. Zero makes one attempt. After a failure the next operation tries again. Source: R-SESSION-1.
    #[must_use]
    pub fn reconnect_timeout(mut self, timeout: Duration) -> OpenOptions {
        self.reconnect_timeout = timeout;
        self
    }
}
