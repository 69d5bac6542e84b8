//! The atomic domain of a region: the processors of this machine, or one device, such as a network card.
//!
//! A device's atomics are not atomic against the processors' (docs/holes.md, H20). So a region is either mapped by
//! processes that use it, or claimed for a device. The two exclude each other by locks on one byte of the region's own
//! file, [`DOMAIN_BYTE`]: each mapping has it locked for reading, and a claim turns the lock of its mapping into one
//! for writing. The kernel does that in one step, so no process can map the region in between, and a claim that fails
//! leaves the lock as it was. No call waits.
//!
//! Invariants: a mapping of a file with a name exists only while its lock does ([`crate::mapping`] owns both, and
//! unmaps first). The lock's description is one of [`crate::liveness::lock_description`]: a forked child does not keep
//! it, code that closes all descriptors does not release it, and the kernel releases it when the process ends. A claim
//! lasts as long as anything that was made from it; a region without a name, which no other process can map, needs no
//! lock.
//!
//! During a claim, a forked child does keep the lock, in case its parent dies: it also inherits the files and mappings
//! of libibverbs, and the kernel destroys a queue pair only when the last of these is gone. Until then the device
//! executes the verbs of remote clients, whoever has died. Both end when the child ends or runs another program.
//!
//! A user who may only read the file can lock the byte for reading, which is what reading the region does, and so keep
//! it from being claimed. It cannot keep anyone from opening the region, because that takes a lock for writing.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use guira_fabric::Space;
use guira_fabric::memory::AtomicU64;
use rustix::io::Errno;

use crate::error::{ShmError, Task};
use crate::file::{self, OpenFile};
use crate::liveness::fork;
use crate::liveness::hold::REMOVAL_BYTE;
use crate::liveness::lock_description::LockDescription;
use crate::mapping::{AnchorPages, Forking, Mapped};
use crate::region::Access;
use crate::sys::{self, LockKind};

/// The byte that each mapping has locked. The byte between it and [`REMOVAL_BYTE`] belongs to
/// [`crate::liveness::lock_file`].
pub(crate) const DOMAIN_BYTE: i64 = REMOVAL_BYTE - 2;

/// The lock of one mapping on its file's domain byte.
pub(crate) struct DomainLock {
    /// The description with the lock; `None` for a region without a name.
    description: Option<LockDescription>,
    /// Whether a claim exists in this process. Set before the lock becomes one for writing, and reset after that.
    is_claimed: AtomicBool,
    /// The lanes of this mapping that may change it. A lane counts itself before it looks for a claim, and a claim is
    /// set before it looks for lanes, so one of the two sees the other.
    writers: AtomicUsize,
}

/// The right of a lane to change the region. A claim is refused while one exists.
pub(crate) struct WritingLane {
    mapped: Mapped,
}

impl WritingLane {
    /// Counts a lane of `mapped`, unless the region is claimed for a device.
    pub(crate) fn open(mapped: &Mapped) -> Option<WritingLane> {
        let lane = WritingLane { mapped: mapped.clone() };
        mapped.domain().writers.fetch_add(1, Ordering::SeqCst);
        // Dropping it counts it out.
        (!mapped.domain().is_claimed()).then_some(lane)
    }
}

impl Drop for WritingLane {
    fn drop(&mut self) {
        self.mapped.domain().writers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl DomainLock {
    /// Locks the domain byte of `file`, whose file system has pages of `page_bytes` bytes, for a mapping.
    ///
    /// # Errors
    /// `ServedByDevice` if the region is claimed for a device; `Io`.
    pub(crate) fn open(
        file: OpenFile<'_>,
        access: Access,
        page_bytes: u64,
        task: Task<'_>,
    ) -> Result<DomainLock, ShmError> {
        let process = fork::current_process().map_err(task.failed("register fork handlers"))?;
        // Allocated outside the window, so that no fork waits for an allocation.
        let proc_path = file::proc_path(file.file);
        let reopen = || match file.reopen(&proc_path, access) {
            // Without /proc, a file that has no name yet cannot be opened again. Its own description does, which a
            // forked child keeps until it ends.
            Err(Errno::NOENT) if file.is(file.file) => rustix::io::fcntl_dupfd_cloexec(file.file, 0),
            opened => opened,
        };
        let description = LockDescription::open(process, AnchorPages::of_domain(page_bytes), reopen)
            .map_err(task.failed("open it for its lock"))?;
        match description.try_lock_for_reading(DOMAIN_BYTE).map_err(task.failed("lock it"))? {
            true => Ok(DomainLock { description: Some(description), ..DomainLock::unshared() }),
            false => Err(task.served_by_device()),
        }
    }

    /// Returns the lock of a region without a name, which no other process can map.
    pub(crate) fn unshared() -> DomainLock {
        DomainLock { description: None, is_claimed: AtomicBool::new(false), writers: AtomicUsize::new(0) }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::SeqCst)
    }

    fn claim(&self, task: Task<'_>) -> Result<(), ShmError> {
        let lanes_open = || ShmError::LanesOpen { path: task.path.to_owned() };
        // Looked at twice, so that an attempt that is refused rarely gets in the way of a lane that is being opened.
        if self.writers.load(Ordering::SeqCst) > 0 {
            return Err(lanes_open());
        }
        if self.is_claimed.swap(true, Ordering::SeqCst) {
            return Err(task.served_by_device());
        }
        if self.writers.load(Ordering::SeqCst) > 0 {
            self.is_claimed.store(false, Ordering::SeqCst);
            return Err(lanes_open());
        }
        let locked = self.description.as_ref().map_or(Ok(true), lock_for_device);
        if let Ok(true) = locked {
            return Ok(());
        }
        self.is_claimed.store(false, Ordering::SeqCst);
        Err(match locked {
            Err(errno) => task.failed("lock it")(errno),
            // This mapping has a lock for reading, so the other one is for reading, too.
            Ok(_) => ShmError::MappedElsewhere { path: task.path.to_owned() },
        })
    }

    /// Ends the claim. If the kernel refuses, because the descriptor was closed, the claim lasts as long as the
    /// mapping.
    fn release(&self) {
        let unlocked = self.description.as_ref().map_or(Ok(true), unlock_for_device);
        if let Ok(true) = unlocked {
            self.is_claimed.store(false, Ordering::SeqCst);
        }
    }
}

/// Turns a lock for reading into one for writing, which forked children keep. Returns `false` if others have locks.
fn lock_for_device(description: &LockDescription) -> Result<bool, Errno> {
    if !description.try_lock(DOMAIN_BYTE)? {
        return Ok(false);
    }
    // The device is not told of the memory before this returns.
    match description.set_forking(Forking::Inherited) {
        Ok(()) => Ok(true),
        Err(errno) => {
            unlock_for_device(description)?;
            Err(errno)
        }
    }
}

/// Undoes [`lock_for_device`].
fn unlock_for_device(description: &LockDescription) -> Result<bool, Errno> {
    let unlocked = description.try_lock_for_reading(DOMAIN_BYTE)?;
    // If the kernel refuses, a forked child that outlives this process may prevent claims until it ends.
    let _ = description.set_forking(Forking::NotInherited);
    Ok(unlocked)
}

/// Refuses if `file` is claimed for a device, by any process. Locks nothing.
pub(crate) fn refuse_claimed(file: BorrowedFd<'_>, task: Task<'_>) -> Result<(), ShmError> {
    let found = sys::any_lock(file, DOMAIN_BYTE, 1).map_err(task.failed("look for its lock"))?;
    match found {
        Some(lock) if lock.kind == LockKind::Write => Err(task.served_by_device()),
        _ => Ok(()),
    }
}

/// The right to let one device execute the atomics of a region, while no other process has the region mapped, and none
/// can open it. Made by [`crate::ShmRegion::claim_for_device`]. It ends when its last clone and the last words of
/// [`DeviceClaim::words`] are dropped, or when the process ends in any way, and with it all children that were forked
/// during the claim and run no other program: they keep the device's queue pairs alive, too.
#[must_use = "the claim ends when it is dropped"]
#[derive(Clone)]
pub struct DeviceClaim {
    claimed: Arc<Claimed>,
}

struct Claimed {
    mapped: Mapped,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.mapped.domain().release();
    }
}

impl DeviceClaim {
    /// Claims the region that is mapped by `mapped`.
    ///
    /// # Errors
    /// `LanesOpen`, `MappedElsewhere`, `ServedByDevice`, `Io`.
    pub(crate) fn new(mapped: Mapped, task: Task<'_>) -> Result<DeviceClaim, ShmError> {
        mapped.domain().claim(task)?;
        Ok(DeviceClaim { claimed: Arc::new(Claimed { mapped }) })
    }

    /// Returns the words of `space`, to be registered with the device. They stay mapped, and the region stays claimed,
    /// as long as the result exists. A region without device space has no words there.
    #[must_use]
    pub fn words(&self, space: Space) -> Arc<dyn AsRef<[AtomicU64]> + Send + Sync> {
        Arc::new(ClaimedWords { claimed: Arc::clone(&self.claimed), space })
    }
}

impl fmt::Debug for DeviceClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceClaim").finish_non_exhaustive()
    }
}

/// The words of one space of a claimed region.
struct ClaimedWords {
    claimed: Arc<Claimed>,
    space: Space,
}

impl AsRef<[AtomicU64]> for ClaimedWords {
    fn as_ref(&self) -> &[AtomicU64] {
        let memory = self.claimed.mapped.memory();
        match self.space {
            Space::Main => memory.main,
            Space::Device => memory.device,
        }
    }
}
