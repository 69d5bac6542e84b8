//! Memory of a device itself, where a lock table is closest to the atomics that change it, and the handle by which the
//! memory node reads and writes a device space wherever it lies.
//!
//! Invariant: device memory is freed after its registrations.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use guira_fabric::WORD_BYTES;
use guira_fabric::memory::{AtomicU64, SharedWords};

use crate::device::Opened;
use crate::ffi::{self, Dm, DmAccess, ExtendedContext};
use crate::{Device, VerbsError};

/// Words that are cleared by one copy: few enough for the stack, many enough for few calls.
const CLEARED_WORDS: usize = 512;

/// The place of a device space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePlacement {
    /// In the memory of the network card.
    OnCard,
    /// In the memory of the host.
    Host,
}

impl fmt::Display for DevicePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DevicePlacement::OnCard => "on the network card",
            DevicePlacement::Host => "in host memory",
        })
    }
}

/// The device space of a [`crate::Target`], for the memory node itself. Clones share it.
///
/// On the card it is not mapped like other memory: it is copied in and out, four bytes at a time. A copy is not atomic
/// with the verbs of clients, so a word that they change meanwhile may be read half old and half new, and a word that
/// is written must not be theirs.
#[derive(Clone)]
pub struct DeviceSpace {
    place: Place,
    refusal: Option<Arc<VerbsError>>,
}

/// The bytes of a device space.
#[derive(Clone)]
pub(crate) enum Place {
    OnCard(Arc<DeviceMemory>),
    Host(SharedWords),
}

impl DeviceSpace {
    /// Allocates a zeroed space, on the card if it fits there.
    pub(crate) fn new(device: &Device, bytes: u64) -> Result<DeviceSpace, VerbsError> {
        device.opened().check_process()?;
        if bytes == 0 || !bytes.is_multiple_of(WORD_BYTES) {
            return Err(VerbsError::Mismatch { reason: format!("a device space of {bytes} bytes is not whole words") });
        }
        if bytes > device.limits().device_memory_bytes {
            return DeviceSpace::on_host(device, bytes, None);
        }
        match DeviceMemory::new(device, bytes) {
            Ok(memory) => Ok(DeviceSpace { place: Place::OnCard(Arc::new(memory)), refusal: None }),
            Err(refusal) => DeviceSpace::on_host(device, bytes, Some(refusal)),
        }
    }

    /// Allocates a zeroed space in host memory, which the card refused with `refusal`.
    pub(crate) fn on_host(device: &Device, bytes: u64, refusal: Option<VerbsError>) -> Result<DeviceSpace, VerbsError> {
        let failed = || device.opened().error("malloc", libc::ENOMEM);
        let count = usize::try_from(bytes / WORD_BYTES).map_err(|_| failed())?;
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| failed())?;
        words.resize_with(count, || AtomicU64::new(0));
        let words: Arc<Vec<AtomicU64>> = Arc::new(words);
        Ok(DeviceSpace { place: Place::Host(words), refusal: refusal.map(Arc::new) })
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the place of the space.
    #[must_use]
    pub fn placement(&self) -> DevicePlacement {
        match self.place {
            Place::OnCard(_) => DevicePlacement::OnCard,
            Place::Host(_) => DevicePlacement::Host,
        }
    }

    /// Returns the error for which the card did not take a space that is not larger than
    /// [`crate::DeviceLimits::device_memory_bytes`].
    #[must_use]
    pub fn refusal(&self) -> Option<&VerbsError> {
        self.refusal.as_deref()
    }

    /// Returns the size of the space in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.place {
            Place::OnCard(memory) => memory.bytes,
            Place::Host(words) => size_of_val((**words).as_ref()) as u64,
        }
    }

    /// Returns the words of a space in host memory, which lanes of this process can use; `None` on the card.
    #[must_use]
    pub fn host_words(&self) -> Option<SharedWords> {
        match &self.place {
            Place::OnCard(_) => None,
            Place::Host(words) => Some(Arc::clone(words)),
        }
    }

    /// Copies words out of the space, from its word `first` on.
    ///
    /// # Errors
    /// `Mismatch` if they do not lie inside, `Forked` or `System`.
    pub fn read(&self, first: u64, into: &mut [u64]) -> Result<(), VerbsError> {
        let first = self.check(first, into.len())?;
        match &self.place {
            Place::OnCard(memory) => memory.read(first, into),
            Place::Host(words) => {
                for (word, cell) in into.iter_mut().zip(&(**words).as_ref()[first..]) {
                    *word = cell.load(Ordering::Acquire);
                }
                Ok(())
            }
        }
    }

    /// Copies words into the space, from its word `first` on.
    ///
    /// # Errors
    /// `Mismatch` if they do not lie inside, `Forked` or `System`.
    pub fn write(&self, first: u64, words: &[u64]) -> Result<(), VerbsError> {
        let first = self.check(first, words.len())?;
        match &self.place {
            Place::OnCard(memory) => memory.write(first, words),
            Place::Host(cells) => {
                for (word, cell) in words.iter().zip(&(**cells).as_ref()[first..]) {
                    cell.store(*word, Ordering::Release);
                }
                Ok(())
            }
        }
    }

    /// Returns `first` as an index, if `count` words from there lie inside.
    fn check(&self, first: u64, count: usize) -> Result<usize, VerbsError> {
        let (words, end) = (self.bytes() / WORD_BYTES, first.checked_add(count as u64));
        if end.is_none_or(|end| end > words) {
            let reason = format!("{count} words from word {first} do not lie in a device space of {words} words");
            return Err(VerbsError::Mismatch { reason });
        }
        Ok(first as usize)
    }
}

impl fmt::Debug for DeviceSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSpace").field("bytes", &self.bytes()).field("placement", &self.placement()).finish()
    }
}

/// Memory of a device.
pub(crate) struct DeviceMemory {
    device: Arc<Opened>,
    extended: ExtendedContext,
    raw: NonNull<Dm>,
    bytes: u64,
}

// SAFETY: libibverbs' objects may be used by several threads at once; concurrent copies of one word are as those of
// clients, which the type's user expects.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Allocates zeroed memory.
    fn new(device: &Device, bytes: u64) -> Result<DeviceMemory, VerbsError> {
        let device = Arc::clone(device.opened());
        let unsupported = || VerbsError::Unsupported { device: device.name().to_owned(), what: "device memory" };
        let extended = device.extended().ok_or_else(unsupported)?;
        let count = usize::try_from(bytes).map_err(|_| unsupported())?;
        let raw = extended.alloc_dm(count).map_err(|errno| device.error("ibv_alloc_dm", errno))?;
        let memory = DeviceMemory { device, extended, raw, bytes };
        // The device may hand out what an earlier owner has written.
        for first in (0..count / WORD_BYTES as usize).step_by(CLEARED_WORDS) {
            let left = count / WORD_BYTES as usize - first;
            memory.write(first, &[0; CLEARED_WORDS][..left.min(CLEARED_WORDS)])?;
        }
        Ok(memory)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Registers all of it in a domain of its device.
    pub(crate) fn register(&self, domain: NonNull<ffi::Pd>, access: i32) -> Result<NonNull<ffi::Mr>, VerbsError> {
        // It was an allocation's size.
        let of = DmAccess { domain, bytes: self.bytes as usize, access };
        // SAFETY: the memory exists; the domain does, and is the device's, because a target has one device.
        unsafe { self.extended.reg_dm_mr(self.raw, of) }.map_err(|errno| self.device.error("ibv_reg_dm_mr", errno))
    }

    fn read(&self, first: usize, into: &mut [u64]) -> Result<(), VerbsError> {
        self.device.check_process()?;
        // SAFETY: the memory exists.
        let copied = unsafe { Dm::read(self.raw, first as u64 * WORD_BYTES, into) };
        copied.map_err(|errno| self.device.error("ibv_memcpy_from_dm", errno))
    }

    fn write(&self, first: usize, words: &[u64]) -> Result<(), VerbsError> {
        self.device.check_process()?;
        // SAFETY: the memory exists.
        let copied = unsafe { Dm::write(self.raw, first as u64 * WORD_BYTES, words) };
        copied.map_err(|errno| self.device.error("ibv_memcpy_to_dm", errno))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.device.is_own() {
            // SAFETY: the registrations hold it, so they are gone, and nothing else uses it.
            unsafe { self.extended.free_dm(self.raw) };
        }
    }
}
