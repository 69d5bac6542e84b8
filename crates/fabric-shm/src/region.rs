//! Mapped regions.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guira_fabric::memory::{AtomicU64, Ordering};
use guira_fabric::process::Process;
use guira_fabric::{Caps, FabricError, HoldSet, Profile, RESERVING, Region, SlotHold, check_reserve};

use crate::domain::{DeviceClaim, DomainLock};
use crate::error::{Attempt, CreateError, ShmError, Task};
use crate::file::create::{self, CreateOptions, Growing, Limits, Storage};
use crate::file::header::{HEADER_BYTES, Header, Holes};
use crate::file::location::Location;
use crate::file::name::RegionName;
use crate::file::remove::{self, Removal};
use crate::file::{self, FileFacts, FileSystem, OpenFile};
use crate::lane::ShmLane;
use crate::liveness::fork;
use crate::liveness::hold::{self, ForeignLock};
use crate::liveness::lock_file::{self, LockFile};
use crate::liveness::process::ProcessIdentity;
use crate::mapping::Mapped;

/// The operations that a process may perform on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Every verb, and holds.
    ReadWrite,
    /// READs only: the file is opened for reading, and its pages are mapped read-only.
    ReadOnly,
}

/// Whether the machine was rebooted since a region was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// The machine was not rebooted, or the region is in memory, which no reboot leaves.
    Current,
    /// The machine was rebooted; a region on disk may have lost its latest changes, in any order.
    Earlier,
    /// The kernel did not report its boot id, now or at creation.
    Unknown,
}

/// Information about a region, from its header and its file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionInfo {
    /// The path under which the region was opened.
    pub path: PathBuf,
    /// Bytes of the main space.
    pub main_bytes: u64,
    /// Bytes of the device space.
    pub device_bytes: u64,
    /// Bytes of the file according to the header: header, both spaces and padding.
    pub file_bytes: u64,
    /// Bytes that its file system has stored for it, or reserved: fewer than `file_bytes` as long as it can grow.
    pub stored_bytes: u64,
    /// Whether the machine was rebooted since the region was created.
    pub boot: Boot,
    /// The id of the process that created the region.
    pub creator_pid: u64,
    /// The time of creation, by the system clock at that time.
    pub created_at: SystemTime,
    /// The user id of the owner of the file, who could put anything into it.
    pub owner_uid: u32,
    /// The file's permission bits.
    pub mode: u32,
    /// Whether the file still has a name; without one, it cannot be opened any more.
    pub is_linked: bool,
    /// The path of its lock file when the region was opened, if it has one: [`ShmRegion::create`].
    pub lock_path: Option<PathBuf>,
}

/// A region in a file that this process has mapped. Clones share the mapping.
#[derive(Clone)]
pub struct ShmRegion {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) file: OwnedFd,
    pub(crate) process: Process,
    pub(crate) access: Access,
    /// Device and inode of the file.
    pub(crate) identity: (u64, u64),
    pub(crate) system: FileSystem,
    slot_locks: SlotLocks,
    name: Arc<RegionName>,
    header: Header,
    mapped: Mapped,
    caps: Caps,
    /// Bytes of the file that may have memory, as far as this process decides.
    memory_limit: AtomicU64,
}

/// The file whose byte locks represent client slots.
pub(crate) enum SlotLocks {
    /// The region's own file.
    Own,
    /// The lock file next to it.
    Beside(LockFile),
    /// A lock file next to it that this process has not opened; without it, the process cannot take slots.
    Closed {
        /// Its path.
        path: PathBuf,
    },
}

impl Shared {
    /// Returns the file whose bytes represent client slots, if this process has opened it.
    pub(crate) fn slot_file(&self) -> Option<OpenFile<'_>> {
        match &self.slot_locks {
            SlotLocks::Own => Some(OpenFile { file: self.file.as_fd(), path: &self.path, identity: self.identity }),
            SlotLocks::Beside(LockFile { path, file, identity }) => {
                Some(OpenFile { file: file.as_fd(), path, identity: *identity })
            }
            SlotLocks::Closed { .. } => None,
        }
    }

    /// Reserves memory for `bytes` of the main space, unless more than `most` bytes have none. Returns the number of
    /// those.
    pub(crate) fn reserve(&self, bytes: Range<u64>, most: u64) -> Result<u64, FabricError> {
        let task = Task::new(Attempt::Grow, &self.path);
        if self.access == Access::ReadOnly {
            return Err(FabricError::ReadOnly { verb: RESERVING });
        }
        check_reserve(&bytes, self.header.sizes.main_bytes)?;
        let unit_bytes = self.system.unit_bytes();
        let start = (HEADER_BYTES + bytes.start) / unit_bytes * unit_bytes;
        let end = (HEADER_BYTES + bytes.end).next_multiple_of(unit_bytes).min(self.header.sizes.file_bytes);
        let limits = Limits { at_once: most, of_file: self.memory_limit.load(Ordering::Relaxed) };
        let (file, system, storage) = (self.file.as_fd(), self.system, self.storage());
        let growing = Growing { file, system, storage, mapped: Some(&self.mapped), task };
        create::reserve_more(growing, start..end, limits).map_err(|error| match error {
            ShmError::NoSpace { limiter, wanted, available, .. } => {
                FabricError::NoMemory { wanted, available, limiter }
            }
            error => FabricError::Backend(error.to_string()),
        })
    }

    fn storage(&self) -> Storage {
        if self.path.as_os_str() == create::UNNAMED { Storage::Memory } else { Storage::FileSystem }
    }

    /// Returns the boot id to compare with the one at creation. Files in memory do not outlive a boot, so that another
    /// id than at creation is that of another container (LXC and systemd-nspawn give each its own).
    fn boot(&self) -> [u8; 16] {
        match self.system {
            FileSystem::Tmpfs | FileSystem::Hugetlbfs { .. } => self.header.boot_id,
            FileSystem::Disk => boot_id(),
        }
    }
}

impl ShmRegion {
    /// Creates the region at `location`: reserves its zeroed space, lets `init` format it, and then gives it its name.
    /// Until then no process can open it. An existing file is never replaced.
    ///
    /// `init` gets the region with both spaces zero; lanes and holds work on it. The file needs space for both spaces
    /// and up to three pages, all of which is taken from the file system (on tmpfs: from memory) at once. Give the
    /// owner permission to read and write (`0o600`) in `options.mode`: without it, holds fail for all users but root.
    ///
    /// With a mode that lets the group or all others read but not write (`0o640`, `0o644`, `0o664`), a lock file of
    /// 4096 bytes (none on hugetlbfs), `NAME.<16 hexadecimal digits>.locks`, is created next to the region: holds lock
    /// its bytes, which users who may only read cannot do. Lock files left by killed creators of this name are removed,
    /// if they are among the first 10,000 files of the directory.
    ///
    /// # Errors
    /// [`CreateError::Init`] with the error of `init`; [`CreateError::Shm`] with all others: `AlreadyExists`,
    /// `NoSpace`, `TooLarge`, `UnsupportedFileSystem`, `NotFound` (the directory), `Permission`, `BadName`, `BadMode`,
    /// `Io`. In each case nothing is left behind.
    pub fn create<E>(
        location: &Location,
        options: CreateOptions,
        init: impl FnOnce(&ShmRegion) -> Result<(), E>,
    ) -> Result<ShmRegion, CreateError<E>> {
        create::create(Some(location), options, &mut |_, _| ControlFlow::Continue(()), init)
    }

    /// Same as [`ShmRegion::create`], in memory that never gets a name: no other process can open it, and it is freed
    /// when this process drops the region and its lanes and holds, or ends in any way. Its length is sealed. It takes
    /// memory of the machine, not of /dev/shm; `options.mode` is ignored.
    ///
    /// # Errors
    /// [`CreateError::Init`] with the error of `init`; [`CreateError::Shm`] with `NoSpace` if the machine does not have
    /// enough free memory, `TooLarge`, `Io`. In each case nothing is left behind.
    pub fn create_unnamed<E>(
        options: CreateOptions,
        init: impl FnOnce(&ShmRegion) -> Result<(), E>,
    ) -> Result<ShmRegion, CreateError<E>> {
        create::create(None, options, &mut |_, _| ControlFlow::Continue(()), init)
    }

    /// Creates a region like [`ShmRegion::create`], or without a `location` like [`ShmRegion::create_unnamed`], and
    /// reports progress. `progress` is called before each 16 MiB are reserved and at the end, with the bytes reserved
    /// so far and those of the whole file; if it returns `Break`, the creation stops. `init` is called after the last
    /// of these calls.
    ///
    /// # Errors
    /// Same as for these two; [`ShmError::Stopped`] if `progress` stopped it. In each case nothing is left behind.
    pub fn create_with_progress<E>(
        location: Option<&Location>,
        options: CreateOptions,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
        init: impl FnOnce(&ShmRegion) -> Result<(), E>,
    ) -> Result<ShmRegion, CreateError<E>> {
        create::create(location, options, progress, init)
    }

    /// Opens the region at `location`. If it is opened for writing and has a lock file, that is opened, too. As long as
    /// the mapping exists, the region cannot be claimed for a device.
    ///
    /// # Errors
    /// `NotFound`, `Permission`; `ServedByDevice` if it is claimed: [`ShmRegion::claim_for_device`]; `NotAFile`,
    /// `UnsupportedFileSystem`, `Foreign`, `Version`, `HeaderCorrupt` or `Truncated` for a file that is not an intact
    /// region; for writing, `LockFile` if its lock file cannot be used, and `NoSpace` if the file has holes that the file
    /// system has no space for; `TooLarge` if it does not fit into the address
    /// space; `BadName`, `Io`.
    pub fn open(location: &Location, access: Access) -> Result<ShmRegion, ShmError> {
        ShmRegion::open_for(location, access, Purpose::Use)
    }

    /// Opens the region at `location` for writing, to tell the processes that have it open that it is destroyed. If its
    /// lock file cannot be used, holds are refused, but lanes work.
    ///
    /// # Errors
    /// Same as for [`ShmRegion::open`], except `LockFile`.
    pub fn open_to_destroy(location: &Location) -> Result<ShmRegion, ShmError> {
        ShmRegion::open_for(location, Access::ReadWrite, Purpose::Destroy)
    }

    fn open_for(location: &Location, access: Access, purpose: Purpose) -> Result<ShmRegion, ShmError> {
        let task = Task::new(Attempt::Open, location.path());
        location.split()?;
        let (file, facts, header) = file::open_region(location, access, task)?;
        if access == Access::ReadWrite && purpose == Purpose::Use && header.holes == Holes::None {
            create::fill_holes(&file, &facts, header.sizes.file_bytes, task)?;
        }
        if access == Access::ReadWrite && purpose == Purpose::Use && header.holes == Holes::Some {
            // A copy may have lost the memory of the device space; that of the main space is known to its user.
            let device = header.sizes.device_offset()..header.sizes.file_bytes;
            let (file, system, storage) = (file.as_fd(), facts.system, Storage::FileSystem);
            create::reserve_more(Growing { file, system, storage, mapped: None, task }, device, Limits::NONE)?;
        }
        let slot_locks = SlotLocks::open(location, file.as_fd(), &header, access, purpose, task)?;
        let opened = OpenFile { file: file.as_fd(), path: location.path(), identity: facts.identity };
        let domain = DomainLock::open(opened, access, facts.system.unit_bytes(), task)?;
        let mapped = Mapped::new(file.as_fd(), &header.sizes, access, domain)
            .map_err(|errno| task.unmapped(errno, header.sizes.main_bytes, header.sizes.device_bytes))?;
        let region = ShmRegion::new(location.path(), (file, facts), slot_locks, header, mapped, access, task)?;
        file::verify_length(region.file(), header.sizes.file_bytes, task)?;
        Ok(region)
    }

    /// Removes the name of the region at `location`. Processes that have it mapped keep it until they drop it; the
    /// memory is freed when the last of them does. A corrupt region can be destroyed; a file that never was a region
    /// cannot, nor a region that is claimed for a device, whose remote clients would not learn of it.
    ///
    /// # Errors
    /// `NotFound`, `Permission`, `NotAFile`, `Foreign`, `ServedByDevice`, `BadName`, `Io`.
    pub fn destroy(location: &Location) -> Result<(), ShmError> {
        remove::destroy(location, Removal::AnyRegion)
    }

    /// Removes the name at `location` if it still leads to this region; [`ShmRegion::destroy`] removes it whatever
    /// region it leads to. No other region loses its name, even if regions are destroyed and created under it
    /// concurrently. Works while this region is claimed for a device.
    ///
    /// # Errors
    /// `NotFound` if this region does not have that name any more; `Permission`, `Io`.
    pub fn remove_name(&self, location: &Location) -> Result<(), ShmError> {
        remove::destroy(location, Removal::Region(self.shared.identity))
    }

    pub(crate) fn new(
        path: &Path,
        (file, facts): (OwnedFd, FileFacts),
        slot_locks: SlotLocks,
        header: Header,
        mapped: Mapped,
        access: Access,
        task: Task<'_>,
    ) -> Result<ShmRegion, ShmError> {
        let process = fork::current_process().map_err(task.failed("register fork handlers"))?;
        let FileFacts { identity, system, .. } = facts;
        let caps = Caps { device_bytes: header.sizes.device_bytes, ..Profile::Shm.caps() };
        let (path, name) = (path.to_owned(), Arc::new(RegionName::new(path, identity)));
        let memory_limit = AtomicU64::new(u64::MAX);
        let shared = Shared {
            path,
            file,
            process,
            access,
            identity,
            system,
            slot_locks,
            name,
            header,
            mapped,
            caps,
            memory_limit,
        };
        Ok(ShmRegion { shared: Arc::new(shared) })
    }

    /// Returns the path under which the region was opened.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns the access with which the region was opened.
    pub fn access(&self) -> Access {
        self.shared.access
    }

    /// Returns the region's name, which may get lost while the region is open.
    pub fn name(&self) -> &Arc<RegionName> {
        &self.shared.name
    }

    /// Whether this process was forked from the one that opened the region. Then the region's lanes refuse to submit
    /// and its holds belong to the parent: the child must open the region again.
    #[inline]
    pub fn is_stale(&self) -> bool {
        !self.shared.process.is_this()
    }

    /// Checks that the file was not truncated: touching a page beyond its end would kill this process. Call it before a
    /// long wait for another client.
    ///
    /// # Errors
    /// `Truncated` with both lengths, `Io`.
    pub fn verify_length(&self) -> Result<(), ShmError> {
        let task = Task::new(Attempt::Inspect, self.path());
        file::verify_length(self.file(), self.shared.header.sizes.file_bytes, task)
    }

    /// Lets this process survive a truncation of the file. When it touches a page that the file has lost, the whole
    /// region reads as zeros from then on, writes to it are lost, and [`Region::has_lost_bytes`] returns true. The
    /// caller must check that after each batch, before it uses the results of the batch, as a memory node does. Without
    /// a guard the kernel ends the process (SIGBUS).
    ///
    /// Installs a handler for SIGBUS, permanently and for the whole process. Any other SIGBUS has its previous effect,
    /// and removes the handler; so does a later installation of another handler. At most 64 regions can be guarded at a
    /// time.
    ///
    /// # Errors
    /// `Io` if the kernel refuses the handler, or 64 regions are guarded already.
    pub fn guard_against_truncation(&self) -> Result<(), ShmError> {
        let task = Task::new(Attempt::Inspect, self.path());
        self.shared.mapped.guard().map_err(task.failed("guard it against truncation"))
    }

    /// Claims the region for one device, such as a network card that serves it, whose atomics are not atomic against
    /// the processor's. The claim needs to be the only user of the region: it fails if the region is open anywhere
    /// else, also by another call in this process, and for reading too; and while it exists, every attempt to open the
    /// region fails. A claim that fails, or ends, leaves the region as it was.
    ///
    /// Clones of this handle share its mapping, so they do not prevent a claim; lanes that may change the region do.
    /// Lanes that are opened during the claim only read. Holds work as before, as they are no atomics.
    ///
    /// # Errors
    /// `LanesOpen` if this process has lanes of it; `MappedElsewhere` if the region is open elsewhere; `ServedByDevice`
    /// if it is claimed already; `NotClaimable` if it was opened for reading, or by the process that this one was
    /// forked from; `Io`.
    pub fn claim_for_device(&self) -> Result<DeviceClaim, ShmError> {
        let task = Task::new(Attempt::Claim, self.path());
        let refused = |reason| Err(ShmError::NotClaimable { path: self.path().to_owned(), reason });
        if self.is_stale() {
            return refused("this process was forked from the one that opened it");
        }
        if self.access() == Access::ReadOnly {
            return refused("it was opened for reading only");
        }
        DeviceClaim::new(self.shared.mapped.clone(), task)
    }

    /// Whether a [`DeviceClaim`] of this region exists, made from this handle or from a clone of it.
    #[must_use]
    pub fn is_claimed_for_device(&self) -> bool {
        self.shared.mapped.domain().is_claimed()
    }

    /// Returns information about the region, from its header and its file.
    ///
    /// # Errors
    /// `Io` if the kernel fails.
    pub fn info(&self) -> Result<RegionInfo, ShmError> {
        let task = Task::new(Attempt::Inspect, self.path());
        let stat = rustix::fs::fstat(&self.shared.file).map_err(task.failed("read its owner"))?;
        let header = &self.shared.header;
        Ok(RegionInfo {
            path: self.shared.path.clone(),
            main_bytes: header.sizes.main_bytes,
            device_bytes: header.sizes.device_bytes,
            file_bytes: header.sizes.file_bytes,
            stored_bytes: file::stored_bytes(&stat),
            boot: boot_of(header.boot_id, self.shared.boot()),
            creator_pid: header.creator_pid,
            created_at: UNIX_EPOCH + Duration::from_nanos(header.created_unix_ns),
            owner_uid: stat.st_uid,
            mode: stat.st_mode & 0o777,
            is_linked: stat.st_nlink > 0,
            lock_path: match &self.shared.slot_locks {
                SlotLocks::Own => None,
                SlotLocks::Beside(LockFile { path, .. }) | SlotLocks::Closed { path } => Some(path.clone()),
            },
        })
    }

    /// Returns two words that identify the content of the region: equal in every process, at any time; different for a
    /// region that was created again, for a copy of its file, and for one on disk after a reboot, because then the latest
    /// changes may be lost. `None` if the kernel does not report its boot id.
    #[must_use]
    pub fn identity(&self) -> Option<[u64; 2]> {
        self.shared.header.identity(self.shared.boot(), self.shared.identity)
    }

    /// Whether `process`, if it is alive, may hold one of this region's client slots: it has a mapping that keeps a
    /// hold, or this user may not read its mappings. A process that executed another program has no such mapping. Costs
    /// one read in /proc.
    #[must_use]
    pub fn may_be_held_by(&self, process: &ProcessIdentity) -> bool {
        let (device, own_inode) = self.shared.identity;
        let inode = self.shared.header.lock_name.map_or(own_inode, |name| name.inode.get());
        let device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
        let is_anchor = |line: &str| {
            let fields: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
            // A region's atomic domain is kept by a mapping of the second page, which all processes have.
            matches!(fields[..], [_, "---s", "00000000", of, number] if of == device && number.parse() == Ok(inode))
        };
        std::fs::read_to_string(format!("/proc/{}/maps", process.pid)).map_or(true, |maps| maps.lines().any(is_anchor))
    }

    /// Returns a lock on any of these client slots that does not belong to a client, if there is one: that of a process
    /// that may read the slot file and locked it for reading. Such slots look taken, and their clients alive. Also
    /// returns `None` if the slot file is a lock file and the region was opened for reading. Changes nothing.
    ///
    /// # Errors
    /// `Io` if the kernel fails.
    pub fn foreign_lock(&self, slots: Range<u16>) -> Result<Option<ForeignLock>, ShmError> {
        let task = Task::new(Attempt::Inspect, self.path());
        hold::foreign_lock(&self.shared, slots).map_err(task.failed("look for foreign locks"))
    }

    /// Returns the words of the main space in memory. Other processes change them at any time: reading them without the
    /// protocol is useful only to measure the cost of memory accesses.
    #[must_use]
    pub fn main_words(&self) -> &[AtomicU64] {
        self.shared.mapped.memory().main
    }

    /// Returns the path of the slot file: the region's own path, or that of its lock file.
    #[must_use]
    pub fn slot_path(&self) -> &Path {
        match &self.shared.slot_locks {
            SlotLocks::Own => &self.shared.path,
            SlotLocks::Beside(LockFile { path, .. }) | SlotLocks::Closed { path } => path,
        }
    }

    /// Commits the lock file of a creation, after the region got its name.
    pub(crate) fn commit(&self, pending: lock_file::PendingLockFile) {
        if let SlotLocks::Beside(lock_file) = &self.shared.slot_locks {
            pending.commit(lock_file);
        }
    }

    /// Returns the parts of the main space that have memory, in the order of their addresses: whole pages, but for the
    /// ends of the space.
    ///
    /// # Errors
    /// `Io` if the kernel fails.
    pub fn stored_parts(&self) -> Result<Vec<Range<u64>>, ShmError> {
        let Shared { header, system, .. } = &*self.shared;
        let file_bytes = HEADER_BYTES..HEADER_BYTES + header.sizes.main_bytes;
        let stored = create::stored_in(self.file(), *system, file_bytes)
            .map_err(Task::new(Attempt::Inspect, self.path()).failed("look for holes in it"))?;
        Ok(stored.into_iter().map(|part| part.start - HEADER_BYTES..part.end - HEADER_BYTES).collect())
    }

    /// Limits the bytes of the file that have memory: this process reserves no more. Clones and lanes have the same
    /// limit; other processes do not.
    pub fn limit_memory(&self, bytes: u64) {
        self.shared.memory_limit.store(bytes, Ordering::Relaxed);
    }

    /// Whether this process may only read the region.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.shared.access == Access::ReadOnly
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.shared.file.as_fd()
    }
}

/// The purpose for which a region is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Use,
    /// To be destroyed; no slot is taken.
    Destroy,
}

impl SlotLocks {
    /// Opens the slot locks of the region at `location`, which was opened as `file`.
    fn open(
        location: &Location,
        file: BorrowedFd<'_>,
        header: &Header,
        access: Access,
        purpose: Purpose,
        task: Task<'_>,
    ) -> Result<SlotLocks, ShmError> {
        let Some(name) = header.lock_name else { return Ok(SlotLocks::Own) };
        if access == Access::ReadOnly {
            // A user who may read the region may lack the permission to resolve its path.
            let path = location.resolved(task).unwrap_or_else(|_| location.path().to_owned());
            return Ok(SlotLocks::Closed { path: lock_file::path_of(&path, name.identity) });
        }
        match LockFile::open(location, file, name, task) {
            Ok(lock_file) => Ok(SlotLocks::Beside(lock_file)),
            Err(ShmError::LockFile { lock_path, .. }) if purpose == Purpose::Destroy => {
                Ok(SlotLocks::Closed { path: lock_path })
            }
            Err(error) => Err(error),
        }
    }
}

impl Region for ShmRegion {
    type Lane = ShmLane;

    fn caps(&self) -> &Caps {
        &self.shared.caps
    }

    fn main_bytes(&self) -> u64 {
        self.shared.header.sizes.main_bytes
    }

    fn device_bytes(&self) -> u64 {
        self.shared.header.sizes.device_bytes
    }

    /// Opens a lane. While the region is claimed for a device, the lane only reads, also after the claim has ended.
    fn lane(&self) -> ShmLane {
        let Shared { mapped, name, caps, access, process, header, .. } = &*self.shared;
        let lane = ShmLane::new(mapped.clone(), Arc::clone(name), *caps, *access, *process);
        match header.holes {
            Holes::None => lane,
            Holes::Some => lane.reserving(Arc::clone(&self.shared)),
        }
    }

    fn has_holes(&self) -> bool {
        self.shared.header.holes == Holes::Some
    }

    fn reserve(&self, bytes: Range<u64>, most: u64) -> Result<u64, FabricError> {
        self.shared.reserve(bytes, most)
    }

    /// True only for guarded regions: [`ShmRegion::guard_against_truncation`]. Without a guard the process is killed.
    #[inline]
    fn has_lost_bytes(&self) -> bool {
        self.shared.mapped.is_lost()
    }

    /// Also fails if the loss of the region's name was recorded ([`RegionName::record`]): its bytes are there, but
    /// nobody else finds them.
    fn verify_bytes(&self) -> Result<(), FabricError> {
        if let Some(loss) = self.shared.name.loss() {
            return Err(FabricError::Backend(loss.to_string()));
        }
        match self.verify_length() {
            Err(ShmError::Truncated { path, expected, actual, .. }) => {
                Err(FabricError::Backend(format!("{path:?} was truncated to {actual} of {expected} bytes")))
            }
            // If the kernel fails, no bytes are known to be lost.
            _ => Ok(()),
        }
    }

    /// Takes the client slot `slot` by locking its byte of the slot file; see the trait. The hold outlives the region
    /// handle. It ends when the process ends in any way, but not while the process is stopped, and a forked child does
    /// not keep it.
    fn hold(&self, slot: u16) -> Result<Option<SlotHold>, FabricError> {
        hold::hold(&self.shared, slot)
    }

    /// Creates a set of client slots of one owner that uses one open file description: thousands of slots cost one
    /// descriptor and one mapping. A forked child does not keep them. A child made by a bare `clone` system call keeps
    /// the slots that its parent holds when the parent dies, until the child ends or runs another program.
    fn hold_set(&self) -> Box<dyn HoldSet> {
        Box::new(hold::Set::new(Arc::clone(&self.shared)))
    }
}

impl fmt::Debug for ShmRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { path, access, header, .. } = &*self.shared;
        f.debug_struct("ShmRegion").field("path", path).field("access", access).field("header", header).finish()
    }
}

/// Returns the kernel's boot id; zero if the kernel does not report it.
pub(crate) fn boot_id() -> [u8; 16] {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .ok()
        .and_then(|text| parse_uuid(&text))
        .unwrap_or_default()
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Option<Vec<u8>> = text
        .trim()
        .bytes()
        .filter(|byte| *byte != b'-')
        .map(|byte| char::from(byte).to_digit(16).map(|digit| digit as u8))
        .collect();
    let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
    bytes.try_into().ok()
}

fn boot_of(created: [u8; 16], current: [u8; 16]) -> Boot {
    match (created, current) {
        _ if created == [0; 16] || current == [0; 16] => Boot::Unknown,
        _ if created == current => Boot::Current,
        _ => Boot::Earlier,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boots_are_distinguished() {
        let id = parse_uuid("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!(id[..4], [0x00, 0x11, 0x22, 0x33]);
        for bad in ["", "zz", "0011", "00112233-4455-6677-8899-aabbccddeeff00"] {
            assert_eq!(parse_uuid(bad), None, "{bad:?}");
        }
        assert_eq!(boot_of(id, id), Boot::Current);
        assert_eq!(boot_of([1; 16], id), Boot::Earlier);
        assert_eq!(boot_of([0; 16], id), Boot::Unknown);
        assert_eq!(boot_of(id, [0; 16]), Boot::Unknown);
    }
}
