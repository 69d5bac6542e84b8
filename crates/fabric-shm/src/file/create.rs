//! Creation of a region's file. The file is created without a name, reserved, formatted, and then published under its
//! name in one step, or never.
//!
//! Invariants: the name appears last and never replaces a file; every byte of the file is reserved before, so that a
//! full file system is an error now and not a SIGBUS later; on failure nothing is left behind. A file that never gets a
//! name is sealed: its length cannot be changed. If a region needs a lock file ([`crate::liveness::lock_file`]), the lock
//! file gets its name before the region does.

use std::ffi::{OsStr, OsString};
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, RenameFlags, SealFlags, SeekFrom, StatVfsMountFlags,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use crate::domain::DomainLock;
use crate::error::{Attempt, CreateError, ShmError, Task};
use crate::file::header::{HEADER_BYTES, Header, Holes, LockName, Sizes};
use crate::file::location::Location;
use crate::file::memory_limit::{self, MemoryLimit, Swap};
use crate::file::{FileFacts, FileSystem, OpenFile, proc_path, stored_bytes};
use crate::liveness::lock_file;
use crate::mapping::{HUGE_PAGE_BYTES, Mapped};
use crate::region::{Access, ShmRegion, SlotLocks, boot_id};

/// Bytes reserved between two calls of the progress function, which may stop the creation. Reserving them takes a
/// quarter of a second in a virtual machine whose host allocates each page at its first touch, and some milliseconds
/// elsewhere.
pub(crate) const STEP_BYTES: u64 = 16 << 20;
/// Bytes of memory of a file that grows, from which on it grows by whole huge pages: 32 of them.
const LARGE_BYTES: u64 = 32 * HUGE_PAGE_BYTES;
/// The name in error messages of the limit on what is reserved at once.
const NODE: &str = "the memory node";
/// The name in error messages of the limit on the whole file.
const NODE_LIMIT: &str = "the memory node's limit (--max-memory)";
/// The number of temporary names that are tried. One is taken only if a process that had our process id was killed.
const MAX_TEMPORARY_NAMES: u32 = 64;

/// The name that /proc and error messages show for the memory file; it is not a path that can be opened.
pub(crate) const UNNAMED: &str = "/memfd:guira";
/// The name that is passed to `memfd_create` for that.
const MEMORY_FILE_NAME: &str = "guira";

/// The sizes and the mode of a new region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Bytes of the main space, rounded up to whole words.
    pub main_bytes: u64,
    /// Bytes of the device space, rounded up to whole words.
    pub device_bytes: u64,
    /// The exact permission bits of the file; the umask is ignored. Users who may write may also truncate the file.
    pub mode: u32,
    /// Parts of the main space, in bytes from its start, in ascending order, each from the first to the end, for which
    /// no memory is reserved; empty ones count for nothing. A lane reserves it before it is used:
    /// [`guira_fabric::Lane::poll_reserve`].
    pub holes: [(u64, u64); 4],
}

impl CreateOptions {
    /// Creates options for a region of these sizes for this user alone (mode `0o600`).
    pub const fn new(main_bytes: u64, device_bytes: u64) -> CreateOptions {
        CreateOptions { main_bytes, device_bytes, mode: 0o600, holes: [(0, 0); 4] }
    }

    /// Returns the same options with parts of the main space for which no memory is reserved.
    #[must_use]
    pub const fn with_holes(self, holes: [(u64, u64); 4]) -> CreateOptions {
        CreateOptions { holes, ..self }
    }

    fn has_holes(&self) -> bool {
        self.holes.iter().any(|(start, end)| start < end)
    }

    /// Returns the parts of the file that are reserved when it is created.
    fn reserved(&self, sizes: &Sizes, unit_bytes: u64) -> Vec<Range<u64>> {
        let (mut parts, mut from) = (Vec::new(), 0);
        for (start, end) in self.holes {
            // Whole pages only.
            let hole =
                (HEADER_BYTES + start).next_multiple_of(unit_bytes)..(HEADER_BYTES + end) / unit_bytes * unit_bytes;
            if hole.start < hole.end && hole.start >= from && hole.end <= sizes.file_bytes {
                parts.push(from..hole.start);
                from = hole.end;
            }
        }
        parts.push(from..sizes.file_bytes);
        parts
    }

    /// Returns the same options with other permission bits.
    #[must_use]
    pub const fn with_mode(self, mode: u32) -> CreateOptions {
        CreateOptions { mode, ..self }
    }
}

/// A function that is called with the bytes reserved so far and all bytes of the file; `Break` stops the creation.
pub(crate) type ReserveProgress<'p> = &'p mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Creates a region: see [`ShmRegion::create_with_progress`].
pub(crate) fn create<E>(
    location: Option<&Location>,
    options: CreateOptions,
    progress: ReserveProgress<'_>,
    init: impl FnOnce(&ShmRegion) -> Result<(), E>,
) -> Result<ShmRegion, CreateError<E>> {
    match location {
        Some(location) => create_named(location, options, progress, init),
        None => create_unnamed(options, progress, init),
    }
}

fn create_named<E>(
    location: &Location,
    options: CreateOptions,
    progress: ReserveProgress<'_>,
    init: impl FnOnce(&ShmRegion) -> Result<(), E>,
) -> Result<ShmRegion, CreateError<E>> {
    let task = Task::new(Attempt::Create, location.path());
    let (directory, name) = location.split()?;
    if options.mode & !0o777 != 0 {
        return Err(ShmError::BadMode { path: location.path().to_owned(), mode: options.mode }.into());
    }
    let has_lock_file = lock_file::is_needed_for(options.mode);
    if has_lock_file {
        lock_file::require_room_in(name)?;
    }
    let directory = open_directory(directory, task)?;
    refuse_existing(&directory, name, task)?;
    lock_file::sweep(directory.as_fd(), name, task);
    let locks_directory = directory.try_clone().map_err(|error| task.failed("open its directory")(errno_of(&error)))?;
    let (file, unpublished) = Unpublished::new(directory, task)?;
    let (sizes, facts, mapped) = build(&file, Storage::FileSystem, options, task, progress)?;
    // Created once there is space for the region, and removed again if the region does not get its name.
    let (slot_locks, lock_name, pending) = if has_lock_file {
        let (made, name, pending) = lock_file::create(locks_directory.as_fd(), location.path(), options.mode, task)?;
        (SlotLocks::Beside(made), Some(name), Some(pending))
    } else {
        (SlotLocks::Own, None, None)
    };
    let header = write_header(&mapped, sizes, options, lock_name);
    let region = ShmRegion::new(location.path(), (file, facts), slot_locks, header, mapped, Access::ReadWrite, task)?;
    init(&region).map_err(|source| CreateError::Init { path: location.path().to_owned(), source })?;
    unpublished.publish(region.file(), name).map_err(task.failed("give it its name"))?;
    if let Some(pending) = pending {
        region.commit(pending);
    }
    Ok(region)
}

fn create_unnamed<E>(
    options: CreateOptions,
    progress: ReserveProgress<'_>,
    init: impl FnOnce(&ShmRegion) -> Result<(), E>,
) -> Result<ShmRegion, CreateError<E>> {
    let path = Path::new(UNNAMED);
    let task = Task::new(Attempt::Create, path);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(MEMORY_FILE_NAME, flags).map_err(task.failed("create a memory file"))?;
    let options = CreateOptions { mode: 0o600, ..options };
    let (sizes, facts, mapped) = build(&file, Storage::Memory, options, task, progress)?;
    let header = write_header(&mapped, sizes, options, None);
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(task.failed("seal its length"))?;
    let region = ShmRegion::new(path, (file, facts), SlotLocks::Own, header, mapped, Access::ReadWrite, task)?;
    init(&region).map_err(|source| CreateError::Init { path: path.to_owned(), source })?;
    Ok(region)
}

/// The storage that limits the size of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Its file system.
    FileSystem,
    /// The machine's memory: memory files are on a file system without a limit.
    Memory,
}

impl Storage {
    /// Checks that this user can have `wanted` bytes, as far as limits are known.
    fn require(self, wanted: u64, file: impl AsFd, system: FileSystem, task: Task<'_>) -> Result<(), ShmError> {
        let space = rustix::fs::fstatvfs(file).map_err(task.failed("determine the free space"))?;
        let available = space.f_bavail.saturating_mul(space.f_frsize);
        // No blocks: mounted without a limit. An unlimited hugetlbfs reports nothing; its pool is checked by mapping.
        let is_limited = space.f_blocks > 0 && !matches!(system, FileSystem::Hugetlbfs { .. });
        if self == Storage::FileSystem && is_limited && available < wanted {
            return Err(task.no_space(wanted, available));
        }
        self.require_memory(wanted, system, task)
    }

    /// Checks that limits on memory allow `wanted` bytes more.
    fn require_memory(self, wanted: u64, system: FileSystem, task: Task<'_>) -> Result<(), ShmError> {
        let limit = match (self, system) {
            (Storage::Memory, _) => memory_limit::tightest(Swap::NotUsed),
            (Storage::FileSystem, FileSystem::Tmpfs) => memory_limit::tightest(Swap::Used),
            (Storage::FileSystem, _) => None,
        };
        match limit.filter(|limit| limit.bytes < wanted) {
            None => Ok(()),
            Some(MemoryLimit { bytes: available, of }) => {
                let (attempt, path, limiter) = (task.attempt, task.path.to_owned(), of.to_string());
                Err(ShmError::NoSpace { attempt, path, limiter, wanted, available })
            }
        }
    }
}

/// Checks whether files can be created in the directory of `location`: it exists, its file system is a safe one, and
/// this user may write to it. Creates nothing.
///
/// # Errors
/// Same as [`ShmRegion::create`], except those that depend on the region.
pub fn check_directory(location: &Location) -> Result<(), ShmError> {
    let task = Task::new(Attempt::Create, location.path());
    let directory = open_directory(location.split()?.0, task)?;
    FileSystem::of(directory.as_fd(), task)?;
    let failed = task.failed("create a file in its directory");
    let flags = rustix::fs::fstatvfs(&directory).map_err(&failed)?.f_flag;
    if flags.contains(StatVfsMountFlags::RDONLY) {
        return Err(failed(Errno::ROFS));
    }
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::accessat(&directory, ".", access, AtFlags::EACCESS).map_err(failed)
}

fn open_directory(path: &Path, task: Task<'_>) -> Result<OwnedFd, ShmError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(task.failed("open its directory"))
}

/// Refuses a name that exists, to avoid building a region that could not be published. The decision is made by
/// [`Unpublished::publish`].
fn refuse_existing(directory: &OwnedFd, name: &OsStr, task: Task<'_>) -> Result<(), ShmError> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(task.failed("look for its name")(errno)),
        Ok(_) => Err(ShmError::AlreadyExists { path: task.path.to_owned() }),
    }
}

/// Sets the permissions of the empty `file`, locks its domain byte, and reserves and maps its bytes.
fn build(
    file: &OwnedFd,
    storage: Storage,
    options: CreateOptions,
    task: Task<'_>,
    progress: ReserveProgress<'_>,
) -> Result<(Sizes, FileFacts, Mapped), ShmError> {
    let CreateOptions { main_bytes, device_bytes, mode, .. } = options;
    let too_large = || task.too_large(main_bytes, device_bytes);
    let system = FileSystem::of(file.as_fd(), task)?;
    let sizes = Sizes::new(main_bytes, device_bytes, system.unit_bytes()).ok_or_else(too_large)?;
    let facts = FileFacts::of(file.as_fd(), system, task)?;
    // Before the permissions are set, which may forbid opening it again.
    let domain = match storage {
        Storage::FileSystem => {
            let created = OpenFile { file: file.as_fd(), path: task.path, identity: facts.identity };
            DomainLock::open(created, Access::ReadWrite, system.unit_bytes(), task)?
        }
        Storage::Memory => DomainLock::unshared(),
    };
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(task.failed("set its permissions"))?;
    let parts = options.reserved(&sizes, system.unit_bytes());
    let reserved_bytes = parts.iter().map(|part| part.end - part.start).sum();
    storage.require(reserved_bytes, file, system, task)?;
    rustix::fs::ftruncate(file, sizes.file_bytes).map_err(|errno| match errno {
        // A process that does not catch SIGXFSZ ends here.
        Errno::FBIG if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < sizes.file_bytes) => {
            task.failed("set its length beyond this process's limit on files (ulimit -f)")(errno)
        }
        Errno::FBIG | Errno::OVERFLOW | Errno::INVAL => too_large(),
        _ => task.failed("set its length")(errno),
    })?;
    let mapped =
        Mapped::new(file.as_fd(), &sizes, Access::ReadWrite, domain).map_err(|errno| match (errno, system) {
            // hugetlbfs reserves its pages when it is mapped.
            (Errno::NOMEM, FileSystem::Hugetlbfs { .. }) => no_space(file.as_fd(), system, sizes.file_bytes, task),
            _ => task.unmapped(errno, main_bytes, device_bytes),
        })?;
    // tmpfs gives huge pages to mappings that ask for them, but not to fallocate. What was not touched looks like a hole.
    let is_touched = system == FileSystem::Tmpfs || options.has_holes();
    let populated = is_touched.then_some(&mapped);
    reserve(file, system, populated, &parts, task, progress)?;
    Ok((sizes, facts, mapped))
}

/// Writes the header of a new region.
fn write_header(mapped: &Mapped, sizes: Sizes, options: CreateOptions, lock_name: Option<LockName>) -> Header {
    let (creator_pid, created_unix_ns) = (u64::from(std::process::id()), now());
    let holes = if options.has_holes() { Holes::Some } else { Holes::None };
    let header = Header { sizes, holes, boot_id: boot_id(), creator_pid, created_unix_ns, lock_name };
    for (cell, word) in mapped.header().iter().zip(header.encode()) {
        cell.store(word, Ordering::Relaxed);
    }
    header
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Fills the holes of an existing file of `file_bytes` bytes, as a copy may have them where the table was unused: with
/// a full file system, writing into one ends the process (SIGBUS).
pub(crate) fn fill_holes(file: &OwnedFd, facts: &FileFacts, file_bytes: u64, task: Task<'_>) -> Result<(), ShmError> {
    if facts.stored_bytes >= file_bytes || matches!(facts.system, FileSystem::Hugetlbfs { .. }) {
        return Ok(());
    }
    Storage::FileSystem.require(file_bytes - facts.stored_bytes, file, facts.system, task)?;
    let all = 0..file_bytes;
    reserve(file, facts.system, None, &[all], task, &mut |_, _| ControlFlow::Continue(()))
}

/// Limits of [`reserve_more`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes that may be reserved at once.
    pub(crate) at_once: u64,
    /// Bytes that the whole file may take.
    pub(crate) of_file: u64,
}

impl Limits {
    pub(crate) const NONE: Limits = Limits { at_once: u64::MAX, of_file: u64::MAX };

    fn require(self, wanted: u64, file: BorrowedFd<'_>, task: Task<'_>) -> Result<(), ShmError> {
        let (mut available, mut limiter) = (self.at_once, NODE);
        if self.of_file < u64::MAX {
            let stat = rustix::fs::fstat(file).map_err(task.failed("determine its size"))?;
            let left = self.of_file.saturating_sub(stored_bytes(&stat));
            if left < available {
                (available, limiter) = (left, NODE_LIMIT);
            }
        }
        if wanted <= available {
            return Ok(());
        }
        let (attempt, path) = (task.attempt, task.path.to_owned());
        Err(ShmError::NoSpace { attempt, path, limiter: limiter.to_owned(), wanted, available })
    }
}

/// An existing file, of which more is reserved.
#[derive(Clone, Copy)]
pub(crate) struct Growing<'g> {
    pub(crate) file: BorrowedFd<'g>,
    pub(crate) system: FileSystem,
    pub(crate) storage: Storage,
    /// Its mapping, to fault in what is reserved.
    pub(crate) mapped: Option<&'g Mapped>,
    pub(crate) task: Task<'g>,
}

/// Reserves `bytes` of a file, counted from its start, as far as they are holes. Returns the number of those that were.
/// Once the file has taken [`LARGE_BYTES`] of a tmpfs, reserves whole huge pages, if it can.
pub(crate) fn reserve_more(growing: Growing<'_>, bytes: Range<u64>, limits: Limits) -> Result<u64, ShmError> {
    // The mapping of a file in hugetlbfs has taken all of its memory from the pool.
    if matches!(growing.system, FileSystem::Hugetlbfs { .. }) {
        return Ok(0);
    }
    let holes = growing.holes_in(bytes.clone())?;
    let missing = total_of(&holes);
    if missing == 0 {
        return Ok(0);
    }
    if let Some(mapped) = growing.mapped.filter(|_| limits.at_once == u64::MAX && growing.is_large()) {
        // The next ones that are needed are beside these as a rule.
        let pages = bytes.start / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES..bytes.end.next_multiple_of(HUGE_PAGE_BYTES);
        let pages = pages.start..pages.end.min(mapped.bytes());
        let missing_pages = total_of(&growing.holes_in(pages.clone())?);
        if growing.take(&[pages], missing_pages, limits).is_ok() {
            return Ok(missing);
        }
    }
    growing.take(&holes, missing, limits)?;
    Ok(missing)
}

impl Growing<'_> {
    /// Whether the file is so large that whole huge pages are a small part of it, and can have some.
    fn is_large(&self) -> bool {
        let is_large = rustix::fs::fstat(self.file).is_ok_and(|stat| stored_bytes(&stat) >= LARGE_BYTES);
        is_large && self.system == FileSystem::Tmpfs
    }

    /// Returns the holes in these bytes: what has no memory, or was reserved only and never touched.
    fn holes_in(&self, bytes: Range<u64>) -> Result<Vec<Range<u64>>, ShmError> {
        // To look for the next hole, the kernel goes through all pages up to it, which may be those of gigabytes.
        if self.system == FileSystem::Tmpfs && self.mapped.is_some_and(|mapped| mapped.is_resident(bytes.clone())) {
            return Ok(Vec::new());
        }
        holes_in(self.file, bytes).map_err(self.task.failed("look for holes in it"))
    }

    /// Reserves these parts, of which `missing` bytes are holes, and touches them, so that nobody takes them for holes
    /// again.
    fn take(&self, parts: &[Range<u64>], missing: u64, limits: Limits) -> Result<(), ShmError> {
        limits.require(missing, self.file, self.task)?;
        // Not the file system's limit: holes may be reserved already, and it refuses more than it has.
        self.storage.require_memory(missing, self.system, self.task)?;
        reserve(self.file, self.system, self.mapped, parts, self.task, &mut |_, _| ControlFlow::Continue(()))
    }
}

fn total_of(parts: &[Range<u64>]) -> u64 {
    parts.iter().map(|part| part.end - part.start).sum()
}

/// Returns the holes in `bytes` of a file, reserved or not.
fn holes_in(file: BorrowedFd<'_>, bytes: Range<u64>) -> Result<Vec<Range<u64>>, Errno> {
    let (mut holes, mut from) = (Vec::new(), bytes.start);
    while from < bytes.end {
        let hole = rustix::fs::seek(file, SeekFrom::Hole(from))?.min(bytes.end);
        let data = match rustix::fs::seek(file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(bytes.end),
            // The rest of the file is a hole.
            Err(Errno::NXIO) => bytes.end,
            Err(errno) => return Err(errno),
        };
        if hole < data {
            holes.push(hole..data);
        }
        from = data.max(hole);
    }
    Ok(holes)
}

/// Returns the parts of `bytes` of a file that have memory.
pub(crate) fn stored_in(file: BorrowedFd<'_>, system: FileSystem, bytes: Range<u64>) -> Result<Vec<Range<u64>>, Errno> {
    // The mapping has taken all of its memory from the pool.
    let holes = if let FileSystem::Hugetlbfs { .. } = system { Vec::new() } else { holes_in(file, bytes.clone())? };
    let starts = std::iter::once(bytes.start).chain(holes.iter().map(|hole| hole.end));
    let ends = holes.iter().map(|hole| hole.start).chain([bytes.end]);
    Ok(starts.zip(ends).map(|(start, end)| start..end).filter(|part| !part.is_empty()).collect())
}

/// Reserves every byte of these parts of the file in steps, or fails. Also faults in the pages of `populated`, as long
/// as the kernel supports it.
fn reserve(
    file: impl AsFd,
    system: FileSystem,
    populated: Option<&Mapped>,
    parts: &[Range<u64>],
    task: Task<'_>,
    progress: ReserveProgress<'_>,
) -> Result<(), ShmError> {
    let (file, mut populated, mut done) = (file.as_fd(), populated, 0);
    let total = total_of(parts);
    for part in parts {
        let mut offset = part.start;
        while offset < part.end {
            if progress(done, total).is_break() {
                return Err(task.stopped());
            }
            let bytes = STEP_BYTES.min(part.end - offset);
            let populate = |mapped: &&Mapped| mapped.populate(offset, bytes).is_ok();
            if system == FileSystem::Tmpfs {
                populated = populated.filter(populate);
            }
            // If a signal interrupts the call, the kernel undoes it: that costs one step only.
            retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), offset, bytes)).map_err(|errno| {
                match errno {
                    Errno::NOSPC | Errno::DQUOT | Errno::NOMEM => no_space(file, system, total, task),
                    _ => task.failed("reserve its space")(errno),
                }
            })?;
            // On a disk the blocks come first, which are neighbours then.
            if system == FileSystem::Disk {
                populated = populated.filter(populate);
            }
            (offset, done) = (offset + bytes, done + bytes);
        }
    }
    if progress(done, total).is_break() { Err(task.stopped()) } else { Ok(()) }
}

#[cold]
fn no_space(file: BorrowedFd<'_>, system: FileSystem, file_bytes: u64, task: Task<'_>) -> ShmError {
    let space = rustix::fs::fstatvfs(file);
    let of_mount = space.as_ref().map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize));
    let available = match system {
        FileSystem::Hugetlbfs { page_bytes } => {
            let pool = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes / 1024);
            let pool = free_huge_pages(Path::new(&pool)).unwrap_or(0).saturating_mul(page_bytes);
            // No blocks: mounted without a limit of its own.
            if space.is_ok_and(|space| space.f_blocks > 0) { pool.min(of_mount) } else { pool }
        }
        FileSystem::Tmpfs | FileSystem::Disk => of_mount,
    };
    task.no_space(file_bytes, available)
}

/// Returns the pages that a pool of the kernel has and has not promised.
fn free_huge_pages(pool: &Path) -> Option<u64> {
    let of = |name: &str| std::fs::read_to_string(pool.join(name)).ok()?.trim().parse::<u64>().ok();
    Some(of("free_hugepages")?.saturating_sub(of("resv_hugepages")?))
}

/// A new file in a directory, which is removed on drop unless [`Unpublished::publish`] gave it its name.
pub(crate) struct Unpublished {
    directory: OwnedFd,
    /// The temporary name, on file systems that do not support files without a name.
    temporary: Option<OsString>,
}

impl Unpublished {
    pub(crate) fn new(directory: OwnedFd, task: Task<'_>) -> Result<(OwnedFd, Unpublished), ShmError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(&directory, ".", flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Ok((file, Unpublished { directory, temporary: None })),
            // The errors of kernels and file systems that do not support O_TMPFILE.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => Unpublished::named(directory, task),
            Err(errno) => Err(not_created(errno, task)),
        }
    }

    fn named(directory: OwnedFd, task: Task<'_>) -> Result<(OwnedFd, Unpublished), ShmError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mut answer = Errno::EXIST;
        for _ in 0..MAX_TEMPORARY_NAMES {
            let name = temporary_name();
            match rustix::fs::openat(&directory, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok((file, Unpublished { directory, temporary: Some(name) })),
                Err(errno) => answer = errno,
            }
            if answer != Errno::EXIST {
                break;
            }
        }
        Err(not_created(answer, task))
    }

    /// Gives the file its name, if no file has that name. This is the linearization point of the creation.
    pub(crate) fn publish(mut self, file: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        let Some(temporary) = self.temporary.take() else {
            return self.link_unnamed(file, name);
        };
        let moved =
            rustix::fs::renameat_with(&self.directory, &temporary, &self.directory, name, RenameFlags::NOREPLACE);
        match moved {
            Ok(()) => Ok(()),
            Err(Errno::INVAL | Errno::NOSYS) => {
                let linked = rustix::fs::linkat(&self.directory, &temporary, &self.directory, name, AtFlags::empty());
                self.temporary = Some(temporary);
                linked
            }
            Err(errno) => {
                self.temporary = Some(temporary);
                Err(errno)
            }
        }
    }

    fn link_unnamed(&self, file: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        match rustix::fs::linkat(CWD, proc_path(file), &self.directory, name, AtFlags::SYMLINK_FOLLOW) {
            // Without /proc: newer kernels can link the descriptor itself.
            Err(Errno::NOENT) => rustix::fs::linkat(file, "", &self.directory, name, AtFlags::EMPTY_PATH),
            answer => answer,
        }
    }
}

/// Returns the error of creating a file, even an empty one.
fn not_created(errno: Errno, task: Task<'_>) -> ShmError {
    task.failed(match errno {
        Errno::NOSPC => "create a file in its directory, whose file system may have no free inodes (df -i)",
        _ => "create a file in its directory",
    })(errno)
}

impl Drop for Unpublished {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            // An error is ignored: this user was able to create the file in this directory, and nothing else can be
            // done.
            let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
        }
    }
}

fn temporary_name() -> OsString {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!(".guira-{}-{count}.unpublished", std::process::id()).into()
}

/// Whether `name` is a temporary name, as made by [`temporary_name`].
pub(crate) fn is_unpublished(name: &str) -> bool {
    name.starts_with(".guira-") && name.ends_with(".unpublished")
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use guira_testing::unique_name;

    use super::*;

    struct Directory(std::path::PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::path::PathBuf::from(format!("/dev/shm/{}-{name}", unique_name()));
            std::fs::create_dir(&path).unwrap();
            Directory(path)
        }

        fn unpublished(&self) -> (OwnedFd, Unpublished) {
            let task = Task::new(Attempt::Create, &self.0);
            Unpublished::named(open_directory(&self.0, task).unwrap(), task).unwrap()
        }

        fn names(&self) -> Vec<OsString> {
            std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn promised_huge_pages_are_not_free() {
        let directory = Directory::new("pool");
        assert_eq!(free_huge_pages(&directory.0), None, "no pages of this size");
        for (name, pages) in [("free_hugepages", "12\n"), ("resv_hugepages", "2\n")] {
            std::fs::write(directory.0.join(name), pages).unwrap();
        }
        assert_eq!(free_huge_pages(&directory.0), Some(10));
    }

    #[test]
    fn a_temporary_name_becomes_the_final_one_or_is_removed() {
        let directory = Directory::new("temporary");
        let (file, unpublished) = directory.unpublished();
        assert_eq!(directory.names().len(), 1);
        unpublished.publish(file.as_fd(), OsStr::new("region")).unwrap();
        assert_eq!(directory.names(), ["region"]);

        let (file, unpublished) = directory.unpublished();
        assert_eq!(unpublished.publish(file.as_fd(), OsStr::new("region")), Err(Errno::EXIST));
        drop(directory.unpublished());
        assert_eq!(directory.names(), ["region"]);
    }
}
