//! Mappings of region files. This is the only module that turns their memory into Rust values.
//!
//! Invariants: a [`Mapping`] is one `MAP_SHARED` mapping of a whole region file, page-aligned, never moved, and
//! unmapped when its last owner is dropped; a guarded one becomes zeroed anonymous memory once bytes that its file has
//! lost are touched ([`crate::truncation`]). Its memory is only accessed as `&[AtomicU64]`, which lives no longer than
//! the owner that it was borrowed from: other processes change these words at any time, and words are never accessed in
//! another size. A read-only mapping is only loaded from; 64-bit atomic loads do not write on the targets that this
//! crate builds for.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use guira_fabric::memory::{AtomicU64, Memory};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;
use rustix::process::{Uid, geteuid};

use crate::domain::DomainLock;
use crate::file::create::STEP_BYTES;
use crate::file::header::{HEADER_BYTES, HEADER_WORDS, Sizes};
use crate::region::Access;
use crate::sys::last_errno;
use crate::truncation::Guard;

const POPULATE_WRITE: libc::c_int = libc::MADV_POPULATE_WRITE;
const WORD_BYTES: usize = size_of::<AtomicU64>();
/// Bytes of a huge page. Smaller files cannot use huge pages.
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// The bytes of each block that `populate` faults in before it collapses the block: the smallest page of any machine.
const SMALL_PAGE_BYTES: usize = 4096;

const _: () = assert!(STEP_BYTES.is_multiple_of(HUGE_PAGE_BYTES));

/// Returns an address at which a file of `bytes` bytes can be mapped by huge pages, which start at multiples of their
/// size; null if the file is too small or there is no such address. Another thread may take it before it is used.
fn huge_page_hint(bytes: usize) -> *mut std::ffi::c_void {
    let align = HUGE_PAGE_BYTES as usize;
    let Some(reserved_bytes) = bytes.checked_add(align).filter(|_| bytes >= align) else {
        return std::ptr::null_mut();
    };
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses the address, and this memory is never accessed.
    let reserved = unsafe { mmap_anonymous(std::ptr::null_mut(), reserved_bytes, ProtFlags::empty(), flags) };
    let Ok(reserved) = reserved else { return std::ptr::null_mut() };
    // SAFETY: exactly the range just mapped, of which no reference exists.
    let _ = unsafe { munmap(reserved, reserved_bytes) };
    reserved.map_addr(|addr| addr.next_multiple_of(align))
}

/// A mapping whose only purpose is to keep an open file description alive: its memory is not accessible, and forked
/// children inherit it only after [`Anchor::set_forking`]. It is not unmapped on drop, because a forked child may drop
/// it.
pub(crate) struct Anchor {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; any thread may unmap it.
unsafe impl Send for Anchor {}
// SAFETY: as above; shared access only gives the kernel an advice.
unsafe impl Sync for Anchor {}

/// The treatment of an [`Anchor`] by a fork.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forking {
    /// A forked child inherits it, and keeps the description open until it ends or runs another program.
    Inherited,
    /// A forked child does not get it.
    NotInherited,
}

/// The page that an [`Anchor`] maps, in bytes; it need not exist in the file. It is listed in /proc, where it shows
/// what the anchor is for: [`crate::ShmRegion::may_be_held_by`].
#[derive(Clone, Copy)]
pub(crate) struct AnchorPages {
    offset: u64,
    bytes: usize,
}

impl AnchorPages {
    /// Returns the page for a hold of a client slot, the first, of a file system with this page size.
    pub(crate) fn of_hold(page_bytes: u64) -> AnchorPages {
        AnchorPages { offset: 0, bytes: page_bytes as usize }
    }

    /// Returns the page for a region's atomic domain, the second.
    pub(crate) fn of_domain(page_bytes: u64) -> AnchorPages {
        AnchorPages { offset: page_bytes, bytes: page_bytes as usize }
    }
}

impl Anchor {
    /// Maps `pages` of `file`.
    pub(crate) fn new(file: BorrowedFd<'_>, pages: AnchorPages) -> Result<Anchor, Errno> {
        let AnchorPages { offset, bytes } = pages;
        // Without reservation, which for a lock file on hugetlbfs would take a huge page.
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, so no existing memory is replaced; the pages are never accessible.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags, file, offset)? };
        let anchor = Anchor { base: NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?, bytes };
        match anchor.set_forking(Forking::NotInherited) {
            Ok(()) => Ok(anchor),
            Err(errno) => {
                anchor.release();
                Err(errno)
            }
        }
    }

    /// Sets whether children that are forked from now on inherit the mapping.
    pub(crate) fn set_forking(&self, forking: Forking) -> Result<(), Errno> {
        let advice = match forking {
            Forking::Inherited => Advice::LinuxDoFork,
            Forking::NotInherited => Advice::LinuxDontFork,
        };
        // SAFETY: exactly the range mapped by `new`, of which no reference exists; the advice does not change it.
        unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) }
    }

    /// Unmaps the mapping. Call it only in the process that made it.
    pub(crate) fn release(self) {
        // SAFETY: exactly this range was mapped by `new`, nothing else unmaps it, and there is no reference to it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping cannot fail");
    }
}

/// A mapping of a whole file.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// The owner of the file.
    owner: Option<Uid>,
    /// The lock that this mapping needs, released after the mapping is gone.
    domain: DomainLock,
    /// The guard that lets the process survive a truncation of the file, if requested.
    guard: OnceLock<Guard>,
}

// SAFETY: a mapping belongs to the process, not to a thread; any thread may use and unmap it.
unsafe impl Send for Mapping {}
// SAFETY: shared access hands out atomics only (the module's invariant).
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Drops the guard first, so that a later mapping at this address is not mistaken for this one.
        drop(self.guard.take());
        // SAFETY: exactly this range was mapped by `Mapped::new` and nothing else unmaps it; every slice of it was
        // borrowed from an owner of this mapping, and the last owner was dropped.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping cannot fail");
    }
}

/// The spaces of a region, with shared ownership of the mapping that contains them.
#[derive(Clone)]
pub(crate) struct Mapped {
    main: NonNull<AtomicU64>,
    main_words: usize,
    device: NonNull<AtomicU64>,
    device_words: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: the pointers point into `mapping`, which is Send and Sync and kept alive by this value.
unsafe impl Send for Mapped {}
// SAFETY: as above; shared access hands out atomics only.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the whole of `file`, which is a region of `sizes`, and requests huge pages where they help. Keeps `domain`,
    /// the lock on the file's domain byte, as long as the mapping.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        sizes: &Sizes,
        access: Access,
        domain: DomainLock,
    ) -> Result<Mapped, Errno> {
        let bytes = sizes.file_bytes as usize;
        let protection = match access {
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Access::ReadOnly => ProtFlags::READ,
        };
        // SAFETY: the kernel uses the address only as a hint, so no existing memory is replaced.
        let base = unsafe { mmap(huge_page_hint(bytes), bytes, protection, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let owner = rustix::fs::fstat(file).ok().map(|stat| Uid::from_raw(stat.st_uid));
        let mapping = Arc::new(Mapping { base, bytes, owner, domain, guard: OnceLock::new() });
        if sizes.file_bytes >= HUGE_PAGE_BYTES {
            // SAFETY: the range is the mapping just made; the advice does not change its content. If it fails, only
            // speed is lost.
            let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        }
        let at = |offset: u64| {
            assert!(offset <= sizes.file_bytes && offset.is_multiple_of(WORD_BYTES as u64));
            // SAFETY: the offset is at most the mapping's length, so the result is within the mapping or one past its
            // end.
            unsafe { base.add(offset as usize) }.cast::<AtomicU64>()
        };
        let (main, device) = (at(HEADER_BYTES), at(sizes.device_offset()));
        assert!(sizes.device_offset() + sizes.device_bytes <= sizes.file_bytes, "sizes are checked when they are made");
        let words = |space_bytes: u64| space_bytes as usize / WORD_BYTES;
        let (main_words, device_words) = (words(sizes.main_bytes), words(sizes.device_bytes));
        Ok(Mapped { main, main_words, device, device_words, mapping })
    }

    /// Returns the two spaces.
    #[inline(always)]
    pub(crate) fn memory(&self) -> Memory<'_> {
        // SAFETY: `new` checked that the main space lies inside the mapping, which `self` keeps alive for the borrow;
        // it is aligned, initialised by the kernel, and accessed as atomics only (the module's invariant).
        let main = unsafe { std::slice::from_raw_parts(self.main.as_ptr(), self.main_words) };
        // SAFETY: as above, for the device space, which begins after the main space ends.
        let device = unsafe { std::slice::from_raw_parts(self.device.as_ptr(), self.device_words) };
        Memory { main, device }
    }

    /// Returns the lock on the file's domain byte.
    pub(crate) fn domain(&self) -> &DomainLock {
        &self.mapping.domain
    }

    /// Returns the words of the header that are in use.
    pub(crate) fn header(&self) -> &[AtomicU64] {
        // SAFETY: a mapping contains at least the page of the header, at its base; otherwise as in `memory`.
        unsafe { std::slice::from_raw_parts(self.mapping.base.as_ptr().cast(), HEADER_WORDS) }
    }

    /// Lets the process survive a truncation of the file from now on: see [`crate::truncation`].
    ///
    /// # Errors
    /// The errors of [`Guard::new`].
    pub(crate) fn guard(&self) -> Result<(), Errno> {
        let Mapping { base, bytes, guard, .. } = &*self.mapping;
        if guard.get().is_none() {
            // SAFETY: the mapping drops its guard before it is unmapped, and its memory is only accessed as atomics
            // (the module's invariant).
            let made = unsafe { Guard::new(base.as_ptr().expose_provenance(), *bytes)? };
            // If another thread was first, this guard is dropped.
            let _ = guard.set(made);
        }
        Ok(())
    }

    /// Whether the mapping was replaced by zeros, because bytes that the file had lost were touched.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.guard.get().is_some_and(Guard::is_lost)
    }

    /// Returns the bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    /// Whether all pages of these bytes of a tmpfs file are in memory, as far as this user is told.
    pub(crate) fn is_resident(&self, bytes: Range<u64>) -> bool {
        let Mapping { base, bytes: all, owner, .. } = &*self.mapping;
        // The kernel says yes to all others who may not write to the file.
        if *owner != Some(geteuid()) {
            return false;
        }
        let page_bytes = page_size();
        let mut pages = [0u8; 512];
        let (start, end) = (bytes.start as usize / page_bytes * page_bytes, bytes.end as usize);
        assert!(end <= *all);
        (start..end).step_by(pages.len() * page_bytes).all(|at| {
            let length = (end - at).min(pages.len() * page_bytes);
            // SAFETY: the range lies within the mapping, and has no more pages than `pages` has bytes; the call changes
            // nothing else.
            let answer = unsafe { libc::mincore(base.as_ptr().add(at).cast(), length, pages.as_mut_ptr()) };
            answer == 0 && pages[..length.div_ceil(page_bytes)].iter().all(|page| page & 1 != 0)
        })
    }

    /// Faults in the pages of `bytes` bytes at `start` for writing, and collapses them into huge pages where the kernel
    /// can. Otherwise a lookup in a large table would wait for the processor's page-table walk as long as for the row.
    ///
    /// # Errors
    /// The kernel's error; some of the pages may be faulted in. The caller also reserves the space by other means.
    pub(crate) fn populate(&self, start: u64, bytes: u64) -> Result<(), Errno> {
        let (start, bytes) = (start as usize, bytes as usize);
        // A mount that does not allocate huge pages by itself still collapses blocks that have a page already.
        let blocks = (start..start + bytes).step_by(HUGE_PAGE_BYTES as usize);
        blocks.for_each(|block| _ = self.advise(block, SMALL_PAGE_BYTES.min(start + bytes - block), POPULATE_WRITE));
        let _ = self.advise(start, bytes, libc::MADV_COLLAPSE);
        self.advise(start, bytes, POPULATE_WRITE)
    }

    /// Advises the kernel about a part of the mapping, in a way that does not change its content.
    fn advise(&self, start: usize, bytes: usize, advice: libc::c_int) -> Result<(), Errno> {
        assert!(start + bytes <= self.mapping.bytes && [POPULATE_WRITE, libc::MADV_COLLAPSE].contains(&advice));
        rustix::io::retry_on_intr(|| {
            // SAFETY: the range lies within the mapping; the kernel faults in or collapses its pages, and does not
            // change their content.
            let answer = unsafe { libc::madvise(self.mapping.base.as_ptr().add(start).cast(), bytes, advice) };
            if answer == 0 { Ok(()) } else { Err(last_errno()) }
        })
    }
}
