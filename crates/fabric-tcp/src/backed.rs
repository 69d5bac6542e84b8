//! The memory of a region that has addresses without memory: no batch touches such an address before there is some,
//! whatever its client asks for, because the system would end the node if it had none.
//!
//! Invariant: a part that is marked has memory, which it never loses.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use guira_fabric::{FabricError, Region, Space, Verb, WORD_BYTES, check_reserve};
use guira_session::wire::Grant;

/// Bytes of a part.
const PART_BYTES: u64 = 64 << 10;
/// Bytes of memory that sessions which may only read may make the node reserve, all together. What they read has memory,
/// unless they read what no client has written.
const READERS_BYTES: u64 = 16 << 20;

/// The parts of the main space that are known to have memory.
pub(crate) struct Backed {
    /// A bit for each part.
    parts: Box<[AtomicU64]>,
    main_bytes: u64,
    readers_left: AtomicU64,
}

impl Backed {
    pub(crate) fn new(main_bytes: u64) -> Backed {
        let words = main_bytes.div_ceil(PART_BYTES).div_ceil(64);
        Backed {
            parts: (0..words).map(|_| AtomicU64::new(0)).collect(),
            main_bytes,
            readers_left: AtomicU64::new(READERS_BYTES),
        }
    }

    /// Makes memory for a part of the region, if `backed` says that there are addresses without any.
    pub(crate) fn reserve<R: Region>(
        backed: Option<&Backed>,
        region: &R,
        bytes: Range<u64>,
    ) -> Result<(), FabricError> {
        check_reserve(&bytes, region.main_bytes())?;
        backed.map_or(Ok(()), |backed| backed.make(region, bytes, Grant::ReadWrite))
    }

    /// Makes sure that all that `verbs` touch has memory, as far as it exists.
    pub(crate) fn touch<R: Region>(&self, region: &R, verbs: &[Verb<'_>], grant: Grant) -> Result<(), FabricError> {
        for verb in verbs {
            let (addr, bytes) = (verb.addr(), verb.words() as u64 * WORD_BYTES);
            // Other addresses are refused, all verbs of a batch at once.
            let end = addr.offset().checked_add(bytes).filter(|end| *end <= self.main_bytes);
            if let (Space::Main, Some(end)) = (addr.space(), end) {
                self.make(region, addr.offset()..end, grant)?;
            }
        }
        Ok(())
    }

    fn make<R: Region>(&self, region: &R, bytes: Range<u64>, grant: Grant) -> Result<(), FabricError> {
        for part in bytes.start / PART_BYTES..bytes.end.div_ceil(PART_BYTES) {
            let (word, bit) = (&self.parts[(part / 64) as usize], 1 << (part % 64));
            if word.load(Ordering::Acquire) & bit != 0 {
                continue;
            }
            let whole = part * PART_BYTES..((part + 1) * PART_BYTES).min(self.main_bytes);
            let (whole_may_take, needed_may_take) = match grant {
                Grant::ReadWrite => (u64::MAX, u64::MAX),
                Grant::ReadOnly => (0, self.readers_left.load(Ordering::Relaxed)),
            };
            let needed = whole.start.max(bytes.start)..whole.end.min(bytes.end);
            if let Err(refused) = region.reserve(whole, whole_may_take) {
                // What is needed of it may have memory.
                let FabricError::NoMemory { .. } = refused else { return Err(refused) };
                let added = region.reserve(needed, needed_may_take)?;
                if grant == Grant::ReadOnly {
                    let less = |left: u64| Some(left.saturating_sub(added));
                    let _ = self.readers_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                }
                continue;
            }
            word.fetch_or(bit, Ordering::Release);
        }
        Ok(())
    }
}
