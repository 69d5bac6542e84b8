//! Creating tables, opening existing ones instead, and destroying them.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::url::Backend;
use guira_fabric::Region;
use guira_fabric_shm::{Attempt, CreateError, CreateOptions as RegionOptions, Location, ShmError, ShmRegion};
use guira_layout::{Geometry, Secret, Superblock, TableConfig};
use guira_rcuckoo::{FormatError, Table, TableError, destroy_table, format_table};

use crate::fabric::FabricRegion;
use crate::mismatch::mismatches;
use crate::sessions::Sessions;
use crate::store::{Origin, is_destroyed, random};
use crate::wait::block_on;
use crate::{CreateOptions, CreateProgress, Error, OnMismatch, OpenError, OpenOptions, Store, Url};

/// The number of attempts of [`Store::open_or_create`] to open and to create. Another attempt is needed only if another
/// process creates the table and destroys it in between; a name that can neither be opened nor created is no race but a
/// mistake, such as a dangling symbolic link.
const MAX_OPEN_OR_CREATE_ATTEMPTS: u32 = 8;

impl Store {
    /// Creates a table and opens it for reading and writing. It appears under its name when it is complete; of several
    /// concurrent creators one succeeds. All of its memory is reserved now; that of a table that grows
    /// ([`CreateOptions::max_capacity`]) as far as it is needed. Round trips: 1 for 64 rows, and 1. Source: R-CREATE-1.
    ///
    /// # Errors
    /// `Create` for impossible parameters; `Region` if the file exists ([`Error::is_already_exists`]), does not fit
    /// ([`Error::insufficient_space`]), or is not permitted; `Random`; `Format` if the fabric failed; `OnMemoryNode`
    /// for `tcp://` and `rdma://`. Nothing is left behind.
    pub fn create<U>(url: U, options: &CreateOptions) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Store::create_url(&url.try_into()?, options, &mut |_| ControlFlow::Continue(()))
    }

    /// Creates a table in this process's own memory, and opens it for reading and writing. No other process can open
    /// it, except through [`Store::serve`], for which it is meant. It is freed with the last store, client, reader and
    /// [`crate::ServerHandle`] of it, however the process ends. Its memory is reserved as by [`Store::create`];
    /// `options.mode` has no effect. Its URL is [`Url::unnamed`]. Round trips and source: as [`Store::create`].
    ///
    /// # Errors
    /// `Create` for impossible parameters; `Region` if the machine does not have enough memory
    /// ([`Error::insufficient_space`]); `Random`; `Format`. Nothing is left behind.
    pub fn create_unnamed(options: &CreateOptions) -> Result<Store, Error> {
        Store::create_url(&Url::unnamed(), options, &mut |_| ControlFlow::Continue(()))
    }

    /// Creates a table as [`Store::create`] does, and reports progress. `progress` is called, in the calling thread,
    /// before each 16 MiB are reserved and after the last, then after each 64 rows that are formatted. If it returns
    /// `Break`, the creation stops within the time of one such step, and nothing is left behind.
    ///
    /// # Errors
    /// Same as [`Store::create`]; `Stopped` if `progress` ended it.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::time::{Duration, Instant};
    ///
    /// use guira::{CreateOptions, CreateProgress, Error, OpenError, Store, Url};
    ///
    /// /// Creates a table, unless that takes longer than `limit`.
    /// fn create_within(limit: Duration, url: &Url, options: &CreateOptions) -> Result<Option<Store>, Error> {
    ///     let started = Instant::now();
    ///     let created = Store::create_with_progress(url, options, &mut |progress| {
    ///         if let CreateProgress::Reserving { done_bytes, total_bytes } = progress {
    ///             println!("{done_bytes} of {total_bytes} bytes are reserved");
    ///         }
    ///         if started.elapsed() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    ///     });
    ///     match created {
    ///         Err(Error::Open(OpenError::Stopped { .. })) => Ok(None),
    ///         created => created.map(Some),
    ///     }
    /// }
    /// # fn main() -> Result<(), Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # let options = CreateOptions::new(1_000);
    /// # assert!(create_within(Duration::ZERO, &url, &options)?.is_none());
    /// # assert!(Store::open(&url).expect_err("nothing is left").is_not_found());
    /// # assert!(create_within(Duration::MAX, &url, &options)?.is_some());
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn create_with_progress<U>(
        url: U,
        options: &CreateOptions,
        progress: &mut dyn FnMut(CreateProgress) -> ControlFlow<()>,
    ) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Store::create_url(&url.try_into()?, options, progress)
    }

    pub(crate) fn create_url(
        url: &Url,
        options: &CreateOptions,
        progress: &mut dyn FnMut(CreateProgress) -> ControlFlow<()>,
    ) -> Result<Store, Error> {
        let location = if url.is_unnamed() { None } else { Some(file_of(url, Attempt::Create)?) };
        let hash_seed = match options.seed {
            Some(seed) => seed,
            None => random()?,
        };
        let config = config_of(url, options, hash_seed)?;
        let geometry =
            Geometry::new(&config).map_err(|source| Error::Open(OpenError::Create { url: url.clone(), source }))?;
        let total_rows = config.initial_rows();
        let secret = Secret([random()?, random()?, random()?, random()?]);
        let superblock = Superblock { incarnation: random()?, table: random()?, secret, config };
        let corrupt = |source| Error::Open(OpenError::Table { url: url.clone(), source });
        let table = Table::new(superblock).map_err(|error| corrupt(TableError::Superblock(error)))?;
        let region_options = RegionOptions::new(geometry.main_bytes(), geometry.device_bytes())
            .with_mode(options.mode)
            .with_holes(geometry.holes(table.config()).map(|hole| (hole.start, hole.end)));
        // Both stages report to it, one after the other.
        let progress = RefCell::new(progress);
        let mut reserved =
            |done_bytes, total_bytes| progress.borrow_mut()(CreateProgress::Reserving { done_bytes, total_bytes });
        let formatted = |done_rows| progress.borrow_mut()(CreateProgress::Formatting { done_rows, total_rows });
        let format = |region: &ShmRegion| block_on(format_table(&mut region.lane(), &table, formatted));
        let region = ShmRegion::create_with_progress(location.as_ref(), region_options, &mut reserved, format);
        let stopped = || Error::Open(OpenError::Stopped { url: url.clone() });
        let region = region.map_err(|error| match error {
            CreateError::Shm(ShmError::Stopped { .. }) => stopped(),
            CreateError::Shm(error) => Error::Open(OpenError::Region(error)),
            CreateError::Init { source: FormatError::Stopped, .. } => stopped(),
            CreateError::Init { source: FormatError::Fabric(source), .. } => {
                Error::Open(OpenError::Format { url: url.clone(), source })
            }
        })?;
        let region = FabricRegion::Shm(region);
        let sessions = Arc::new(Sessions::permanent(region.clone()));
        Ok(Store::assemble(url, region, sessions, table, OpenOptions::default(), Origin::Created))
    }

    /// Opens the table at `url` for reading and writing, and creates it with `options` if there is none. Of several
    /// processes that do so at once, one creates the table and all open the same one ([`Store::was_created`] tells
    /// which); meanwhile, each of them needs the memory of a whole table.
    ///
    /// A table that exists has to match `options` ([`Store::ensure_fits`] lists what is compared), unless
    /// [`CreateOptions::on_mismatch`] accepts any. The table of a memory node is opened and never created, and has to
    /// match, too. Round trips: 1 for a table that exists, otherwise as [`Store::create`]; up to 8 times that if other
    /// processes keep creating and destroying the table. Source: R-CREATE-1, R-OPEN-1.
    ///
    /// # Errors
    /// `Mismatch` if the table exists and does not match; `Owner` if it is neither this user's nor root's, or not that
    /// of [`CreateOptions::owner`]; those of [`Store::open`], except that the table may be missing, and those of
    /// [`Store::create`]; `Region` also if the name has no table and none can be created there. Nothing was changed.
    ///
    /// ```
    /// use guira::{CreateOptions, Error, OpenError, OnMismatch, Store, Url};
    ///
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// let created = Store::open_or_create(&url, &CreateOptions::new(1_000))?;
    /// let opened = Store::open_or_create(&url, &CreateOptions::new(1_000))?;
    /// assert!(created.was_created() && !opened.was_created());
    /// created.client()?.put(b"cuckoo", b"Guira guira")?;
    /// assert!(opened.reader().contains(b"cuckoo")?);
    ///
    /// let larger = CreateOptions::new(1_000_000);
    /// assert!(matches!(Store::open_or_create(&url, &larger), Err(Error::Open(OpenError::Mismatch { .. }))));
    /// let any = Store::open_or_create(&url, &larger.on_mismatch(OnMismatch::Accept))?;
    /// assert!(any.table().config().capacity() < 1_000_000);
    /// Store::destroy(&url)
    /// # }
    /// ```
    pub fn open_or_create<U>(url: U, options: &CreateOptions) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Store::open_or_create_url(&url.try_into()?, options, &mut |_| ControlFlow::Continue(()))
    }

    /// Same as [`Store::open_or_create`], and reports the progress of a creation as [`Store::create_with_progress`]
    /// does.
    ///
    /// # Errors
    /// Same as [`Store::open_or_create`]; `Stopped` if `progress` ended it.
    pub fn open_or_create_with_progress<U>(
        url: U,
        options: &CreateOptions,
        progress: &mut dyn FnMut(CreateProgress) -> ControlFlow<()>,
    ) -> Result<Store, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Store::open_or_create_url(&url.try_into()?, options, progress)
    }

    pub(crate) fn open_or_create_url(
        url: &Url,
        options: &CreateOptions,
        progress: &mut dyn FnMut(CreateProgress) -> ControlFlow<()>,
    ) -> Result<Store, Error> {
        let open_options = OpenOptions { owners: options.owners, ..OpenOptions::default() };
        let mut attempts = 1;
        loop {
            match Store::open_url(url, &open_options) {
                Err(error) if error.is_not_found() || is_destroyed(&error) => {}
                Ok(store) if options.on_mismatch == OnMismatch::Refuse => {
                    return store.ensure_fits(options).map(|()| store);
                }
                result => return result,
            }
            match Store::create_url(url, options, progress) {
                Err(error) if error.is_already_exists() && attempts < MAX_OPEN_OR_CREATE_ATTEMPTS => attempts += 1,
                result => return result,
            }
        }
    }

    /// Verifies that the table matches `options`: the check of [`Store::open_or_create`], for tables that were opened
    /// by other means, such as [`Store::open_with`].
    ///
    /// Entry format, preset and the presence of redo records have to be equal, and so does the seed if one was set. The
    /// table needs room for at least the capacity, and for the `max_capacity`, `extent_bytes` and `max_clients` that
    /// were set, perhaps once it has grown; it may have room for more. Permissions are not compared, and
    /// [`CreateOptions::on_mismatch`] has no effect. No round trip: none of it ever changes.
    ///
    /// # Errors
    /// `Mismatch`, with every difference; `Create` if no table can have the parameters in `options`. Nothing was
    /// changed.
    ///
    /// ```
    /// # use guira::errors::Mismatch;
    /// # use guira::{CreateOptions, Error, OpenError, OpenOptions, Store, Url};
    /// # fn main() -> Result<(), guira::Error> {
    /// # let url: Url = format!("shm://{}", guira_testing::unique_name()).parse()?;
    /// # Store::create(&url, &CreateOptions::new(1_000))?;
    /// let store = Store::open_with(&url, &OpenOptions::default().read_only())?;
    /// store.ensure_fits(&CreateOptions::new(500))?;
    /// let other = CreateOptions::new(500).format("fixed:8:8".parse().expect("a format"));
    /// let error = store.ensure_fits(&other).expect_err("the format is bytes:64");
    /// let Error::Open(OpenError::Mismatch { mismatches, .. }) = error else { panic!("{error}") };
    /// assert!(matches!(mismatches[..], [Mismatch::Format { .. }]));
    /// # Store::destroy(&url)
    /// # }
    /// ```
    pub fn ensure_fits(&self, options: &CreateOptions) -> Result<(), Error> {
        let (url, found) = (self.url(), self.table().config());
        // A seed that was not set is not compared.
        let asked = config_of(url, options, options.seed.unwrap_or(found.hash_seed))?;
        match mismatches(options, &asked, found) {
            none if none.is_empty() => Ok(()),
            mismatches => Err(Error::Open(OpenError::Mismatch { url: url.clone(), mismatches })),
        }
    }

    /// Destroys a table: its name is removed, no client can change it any more, no reader finds anything in it, and its
    /// memory is freed when the last process closes it. In processes that have it open, every operation that begins
    /// after this call has returned fails with `Destroyed`, lookups included, also over `tcp://` and `rdma://`;
    /// [`Store::is_destroyed`] checks for it. Of a damaged table, or one of another version, only the name is removed.
    ///
    /// A change in progress is waited for, up to 100 ms. If its process is stopped for longer, in the middle of a
    /// change or of the recovery of a dead client, it takes effect when the process continues, and processes that still
    /// have the table open find the entries of the rows it writes. Round trips: 2; 1 or 2 for 64 lock words; and 1 for
    /// 64 rows: every row is written, at some 10 million a second. Source: R-DESTROY-1, R-DESTROY-2.
    ///
    /// # Errors
    /// `Region` if there is no such file ([`Error::is_not_found`]), or another process destroyed the table first; if it
    /// is not a Guira table; or if it cannot be opened and removed, for example without write permission, or for lack
    /// of memory or file descriptors: then nothing was changed. `Fabric` if the name is gone, but not every client and
    /// reader could be notified. `OnMemoryNode` for `tcp://` and `rdma://`.
    pub fn destroy<U>(url: U) -> Result<(), Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Store::destroy_url(&url.try_into()?)
    }

    pub(crate) fn destroy_url(url: &Url) -> Result<(), Error> {
        let location = file_of(url, Attempt::Destroy)?;
        // No data is put into it, so its owner need not be trusted.
        let options = OpenOptions::default().any_owner();
        let opened = Store::open_url(url, &options).or_else(|error| match error {
            // Clients that have it open are notified all the same.
            Error::Open(OpenError::Region(ShmError::LockFile { .. })) => {
                let region = FabricRegion::Shm(ShmRegion::open_to_destroy(&location)?);
                Store::open_in(url, &options, region)
            }
            error => Err(error),
        });
        let store = match opened {
            Ok(store) => Some(store),
            Err(error) if is_useless(&error) => None,
            Err(Error::Open(OpenError::Region(error))) => {
                return Err(Error::Open(OpenError::Region(error.with_attempt(Attempt::Destroy))));
            }
            Err(error) => return Err(error),
        };
        let Some(Store { inner }) = &store else { return Ok(ShmRegion::destroy(&location)?) };
        let FabricRegion::Shm(region) = &inner.first else {
            return Err(Error::Open(OpenError::OnMemoryNode { url: url.clone(), attempt: Attempt::Destroy }));
        };
        // The name goes first: a user who may write a table need not be allowed to remove it, and then nothing must
        // change.
        region.remove_name(&location)?;
        block_on(destroy_table(&mut inner.first.lane(), &inner.table)).map_err(inner.fabric("cannot destroy"))
    }
}

/// Whether a table cannot be opened because of the content of its file, so that no open client needs to be notified: it
/// is damaged, of another version, or half destroyed by a process that died. Only its name is removed then.
fn is_useless(error: &Error) -> bool {
    match error {
        Error::Open(OpenError::Table { source, .. }) => !matches!(source, TableError::Fabric(_)),
        Error::Open(OpenError::Region(error)) => matches!(
            error,
            ShmError::HeaderCorrupt { .. }
                | ShmError::Version { .. }
                | ShmError::Truncated { .. }
                | ShmError::UnsupportedFileSystem { .. }
        ),
        _ => false,
    }
}

/// Returns the parameters of a new table.
fn config_of(url: &Url, options: &CreateOptions, hash_seed: u64) -> Result<TableConfig, Error> {
    options.config(hash_seed).map_err(|source| Error::Open(OpenError::Create { url: url.clone(), source }))
}

/// Returns the location of the file to create or destroy.
pub(crate) fn file_of(url: &Url, attempt: Attempt) -> Result<Location, Error> {
    match url.backend()? {
        Backend::File(location) => Ok(location),
        Backend::Node(_) => Err(Error::Open(OpenError::OnMemoryNode { url: url.clone(), attempt })),
    }
}
