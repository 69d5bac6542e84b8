//! The memory of a region that has addresses without memory: no batch touches such an address before there is some,
//! whatever its client asks for, because the system would end the node if it had none. A batch that only reads makes the
//! node take none: bytes without memory are zeros.
//!
//! Invariant: a part that is marked has memory, which it never loses.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use guira_fabric::{FabricError, Region, Space, Verb, WORD_BYTES, check_reserve};

use crate::tcp::executor::execute_in_place;

/// Bytes of a part.
const PART_BYTES: u64 = 64 << 10;
/// Bytes of the pieces in which a READ is executed that finds bytes without memory: the smallest pages of any system.
const PIECE_BYTES: u64 = 4 << 10;

const _: () = assert!(PART_BYTES.is_multiple_of(PIECE_BYTES), "a piece lies in one part");

/// The parts of the main space that are known to have memory.
pub(crate) struct Backed {
    /// A bit for each part.
    parts: Box<[AtomicU64]>,
    main_bytes: u64,
}

impl Backed {
    pub(crate) fn new(main_bytes: u64) -> Backed {
        let words = main_bytes.div_ceil(PART_BYTES).div_ceil(64);
        Backed { parts: (0..words).map(|_| AtomicU64::new(0)).collect(), main_bytes }
    }

    /// Makes memory for a part of the region, if `backed` says that there are addresses without any.
    pub(crate) fn reserve<R: Region>(
        backed: Option<&Backed>,
        region: &R,
        bytes: Range<u64>,
    ) -> Result<(), FabricError> {
        check_reserve(&bytes, region.main_bytes())?;
        backed.map_or(Ok(()), |backed| backed.make(region, bytes, u64::MAX))
    }

    /// Executes `verbs`, all of which touch only what has memory: those of a batch that changes something get some.
    pub(crate) fn execute<R: Region>(
        &self,
        region: &R,
        lane: &mut R::Lane,
        verbs: &mut [Verb<'_>],
    ) -> Result<(), FabricError> {
        let most = if verbs.iter().all(|verb| matches!(verb, Verb::Read { .. })) { 0 } else { u64::MAX };
        for index in 0..verbs.len() {
            let Some(bytes) = self.main_part(&verbs[index]) else { continue };
            match self.make(region, bytes, most) {
                Ok(()) => {}
                Err(FabricError::NoMemory { .. }) if most == 0 => return self.read_sparse(region, lane, verbs),
                Err(refused) => return Err(refused),
            }
        }
        execute_in_place(lane, verbs)
    }

    /// Returns the bytes of the main space that `verb` touches, if they exist. Other addresses are refused, all verbs of
    /// a batch at once.
    fn main_part(&self, verb: &Verb<'_>) -> Option<Range<u64>> {
        let (addr, bytes) = (verb.addr(), verb.words() as u64 * WORD_BYTES);
        let end = addr.offset().checked_add(bytes).filter(|end| *end <= self.main_bytes);
        end.filter(|_| addr.space() == Space::Main && addr.is_aligned()).map(|end| addr.offset()..end)
    }

    /// Executes READs of which some bytes have no memory, in their order, and piece by piece. Zeros are as old as the
    /// look at their piece, which has its turn as if it were read.
    fn read_sparse<R: Region>(
        &self,
        region: &R,
        lane: &mut R::Lane,
        verbs: &mut [Verb<'_>],
    ) -> Result<(), FabricError> {
        for verb in verbs {
            let part = self.main_part(verb);
            let (Some(part), Verb::Read { addr, into }) = (part, &mut *verb) else {
                execute_in_place(lane, std::slice::from_mut(verb))?;
                continue;
            };
            let (mut from, mut rest) = (part.start, &mut **into);
            while from < part.end {
                let end = ((from / PIECE_BYTES + 1) * PIECE_BYTES).min(part.end);
                let (piece, behind) = rest.split_at_mut(((end - from) / WORD_BYTES) as usize);
                let word = self.parts[(from / PART_BYTES / 64) as usize].load(Ordering::Acquire);
                let is_marked = word & 1 << (from / PART_BYTES % 64) != 0;
                match if is_marked { Ok(0) } else { region.reserve(from..end, 0) } {
                    Ok(_) => {
                        let addr = addr.add_words((from - part.start) / WORD_BYTES);
                        execute_in_place(lane, &mut [Verb::Read { addr, into: piece }])?;
                    }
                    Err(FabricError::NoMemory { .. }) => piece.fill(0),
                    Err(error) => return Err(error),
                }
                (from, rest) = (end, behind);
            }
        }
        Ok(())
    }

    /// Makes sure that `bytes` have memory; it takes none if `most` is 0, and any number of bytes otherwise.
    fn make<R: Region>(&self, region: &R, bytes: Range<u64>, most: u64) -> Result<(), FabricError> {
        for part in bytes.start / PART_BYTES..bytes.end.div_ceil(PART_BYTES) {
            let (word, bit) = (&self.parts[(part / 64) as usize], 1 << (part % 64));
            if word.load(Ordering::Acquire) & bit != 0 {
                continue;
            }
            let whole = part * PART_BYTES..((part + 1) * PART_BYTES).min(self.main_bytes);
            let needed = whole.start.max(bytes.start)..whole.end.min(bytes.end);
            match region.reserve(whole, most) {
                Ok(_) => _ = word.fetch_or(bit, Ordering::Release),
                // What is needed of it may have memory.
                Err(FabricError::NoMemory { .. }) => _ = region.reserve(needed, most)?,
                Err(refused) => return Err(refused),
            }
        }
        Ok(())
    }
}
