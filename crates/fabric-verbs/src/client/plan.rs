//! The checks of a batch before it is posted, and its work requests.
//!
//! Invariants: a work request touches one part only and lies inside it; the pieces of a batch lie one after the
//! other in its buffer, in batch order; `wr_id` of each request is the lane's slot.

use std::ops::Range;

use guira_fabric::{Caps, FabricError, MaskedCas, Space, Verb, WORD_BYTES};
use guira_network::wire::Grant;

use super::parts::Parts;
use crate::ffi::{self, SendWr, Sge};
use crate::probe::ByteOrder;

/// The bytes that a connection may touch, and its limits.
#[derive(Debug)]
pub(super) struct Bounds {
    pub(super) main_bytes: u64,
    pub(super) device_bytes: u64,
    pub(super) grant: Grant,
    pub(super) caps: Caps,
    /// Words of all verbs of one batch.
    pub(super) batch_words: usize,
    /// The byte order of the results of masked CAS.
    pub(super) masked_order: ByteOrder,
}

/// The result of the checks of a batch that is not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Planned {
    /// It can be posted.
    Ready(Plan),
    /// These bytes of the main space, of one of its verbs, are in no part that is known.
    Missing(Range<u64>),
}

/// A batch that has passed all checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Work requests; 0 if the batch does nothing.
    pub(super) requests: usize,
    /// Words of its buffer.
    pub(super) words: usize,
}

/// The work requests of one batch, reused for the next one. The addresses of local pieces are offsets into the batch's
/// buffer until [`Requests::link`] makes them absolute.
#[derive(Default)]
pub(super) struct Requests {
    requests: Vec<SendWr>,
    pieces: Vec<Sge>,
}

// SAFETY: the raw pointers inside point to elements of the two vectors, and are set by `link` before each use.
unsafe impl Send for Requests {}

impl Bounds {
    /// Checks every verb.
    ///
    /// # Errors
    /// `ReadOnly`, `Misaligned`, `OutOfBounds`, `TooLarge`, `Unsupported` or `Backend`; nothing was posted.
    pub(super) fn plan(&self, parts: &Parts, batch: &[Verb<'_>]) -> Result<Planned, FabricError> {
        let (mut plan, mut missing) = (Plan::default(), None);
        for verb in batch {
            self.check(verb)?;
            plan.words += verb.words();
            let (mut pieces, mut words) = (0, 0);
            for (_, _, piece_words) in parts.pieces(verb.addr(), verb.words()) {
                (pieces, words) = (pieces + 1, words + piece_words);
            }
            if words < verb.words() {
                let start = verb.addr().offset();
                missing.get_or_insert(start..start + verb.words() as u64 * WORD_BYTES);
            }
            if pieces > 1 && !self.may_cross(verb) {
                return Err(FabricError::Backend(format!(
                    "a {} at {} crosses two parts of the region, and could be torn there; nothing was changed",
                    verb.name(),
                    verb.addr(),
                )));
            }
            plan.requests += pieces;
        }
        let longest = batch.iter().map(Verb::words).max().unwrap_or(0);
        if plan.requests.max(batch.len()) > self.caps.max_batch
            || longest > self.caps.max_verb_words
            || plan.words > self.batch_words
        {
            return Err(FabricError::TooLarge { verbs: batch.len(), words: longest });
        }
        Ok(missing.map_or(Planned::Ready(plan), Planned::Missing))
    }

    /// Whether a verb may be several messages. A WRITE that a death may tear anyway, because it is longer than a
    /// packet, may be torn between two parts as well.
    fn may_cross(&self, verb: &Verb<'_>) -> bool {
        match verb {
            Verb::Read { .. } => true,
            Verb::Write { words, .. } => words.len() as u64 * WORD_BYTES > self.caps.atomic_write_unit,
            Verb::Cas { .. } | Verb::MaskedCas { .. } | Verb::FetchAdd { .. } => false,
        }
    }

    fn check(&self, verb: &Verb<'_>) -> Result<(), FabricError> {
        let (name, addr, words) = (verb.name(), verb.addr(), verb.words());
        if self.grant == Grant::ReadOnly && !matches!(verb, Verb::Read { .. }) {
            return Err(FabricError::ReadOnly { verb: name });
        }
        if !addr.is_aligned() {
            return Err(FabricError::Misaligned { verb: name, addr });
        }
        let space_bytes = match addr.space() {
            Space::Main => self.main_bytes,
            Space::Device => self.device_bytes,
        };
        let end = addr.word().checked_add(words as u64);
        if end.is_none_or(|end| end > space_bytes / WORD_BYTES) {
            return Err(FabricError::OutOfBounds { verb: name, addr, words, space_bytes });
        }
        if self.caps.masked_cas == MaskedCas::CasLoop && matches!(verb, Verb::MaskedCas { .. }) {
            return Err(FabricError::Unsupported { verb: name });
        }
        Ok(())
    }
}

/// Replaces `requests` by those of a batch that [`Bounds::plan`] accepted, for the slot `slot`; `write` is called with
/// the word offset and the words of each WRITE.
pub(super) fn encode(
    parts: &Parts,
    batch: &[Verb<'_>],
    (slot, inline_bytes): (usize, u32),
    requests: &mut Requests,
    mut write: impl FnMut(usize, &[u64]),
) {
    requests.requests.clear();
    requests.pieces.clear();
    let mut word = 0;
    for verb in batch {
        if let Verb::Write { words, .. } = verb {
            write(word, words);
        }
        for (address, key, words) in parts.pieces(verb.addr(), verb.words()) {
            let mut request = SendWr::new(opcode(verb));
            request.wr_id = slot as u64;
            let bytes = words as u32 * WORD_BYTES as u32;
            match verb {
                Verb::Write { .. } if bytes <= inline_bytes => request.send_flags = ffi::SEND_INLINE,
                _ => {}
            }
            match verb {
                Verb::Read { .. } | Verb::Write { .. } => request.set_rdma(address, key),
                Verb::Cas { compare, swap, .. } => request.set_atomic(address, *compare, *swap, key),
                Verb::MaskedCas { compare, swap, compare_mask, swap_mask, .. } => {
                    request.set_atomic(address, *compare, *swap, key);
                    request.set_masks(*compare_mask, *swap_mask);
                }
                Verb::FetchAdd { add, .. } => request.set_atomic(address, *add, 0, key),
            }
            requests.requests.push(request);
            requests.pieces.push(Sge { addr: word as u64 * WORD_BYTES, length: bytes, lkey: 0 });
            word += words;
        }
    }
    if let Some(last) = requests.requests.last_mut() {
        last.send_flags |= ffi::SEND_SIGNALED;
    }
}

fn opcode(verb: &Verb<'_>) -> u32 {
    match verb {
        Verb::Read { .. } => ffi::WR_RDMA_READ,
        Verb::Write { .. } => ffi::WR_RDMA_WRITE,
        Verb::Cas { .. } => ffi::WR_ATOMIC_CMP_AND_SWP,
        Verb::MaskedCas { .. } => ffi::WR_MASKED_CAS,
        Verb::FetchAdd { .. } => ffi::WR_ATOMIC_FETCH_AND_ADD,
    }
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether the first `posted` requests change memory.
    pub(super) fn change_memory(&self, posted: usize) -> bool {
        self.requests.iter().take(posted).any(|request| request.opcode != ffi::WR_RDMA_READ)
    }

    /// Makes the local pieces those of a buffer at `address` with the key `key`, links the requests, and returns them.
    /// Call it once after each [`encode`].
    pub(super) fn link(&mut self, address: u64, key: u32) -> &mut [SendWr] {
        let count = self.requests.len();
        let (first, pieces) = (self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        for index in 0..count {
            let piece = &mut self.pieces[index];
            piece.addr += address;
            piece.lkey = key;
            let request = &mut self.requests[index];
            request.sg_list = pieces.wrapping_add(index);
            let is_last = index + 1 == count;
            request.next = if is_last { std::ptr::null_mut() } else { first.wrapping_add(index + 1) };
        }
        &mut self.requests
    }
}

/// The position of an atomic's result in a batch's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AtomicResult {
    pub(super) word: usize,
    pub(super) order: ByteOrder,
}

impl AtomicResult {
    /// Reads the result with a function that copies words of the buffer.
    pub(super) fn read(self, buffer: impl Fn(usize, &mut [u64])) -> u64 {
        let mut loaded = 0;
        buffer(self.word, std::slice::from_mut(&mut loaded));
        self.order.value(loaded)
    }
}

/// Calls `each` with the atomics of a batch whose masked CAS have results in `masked_order`.
pub(super) fn each_atomic(batch: &[Verb<'_>], masked_order: ByteOrder, mut each: impl FnMut(AtomicResult)) {
    let mut word = 0;
    for verb in batch {
        match verb {
            Verb::Read { .. } | Verb::Write { .. } => {}
            Verb::Cas { .. } | Verb::FetchAdd { .. } => each(AtomicResult { word, order: ByteOrder::HOST }),
            Verb::MaskedCas { .. } => each(AtomicResult { word, order: masked_order }),
        }
        word += verb.words();
    }
}

/// Copies the results in `buffer` to the verbs of the batch that was planned.
pub(super) fn copy_results(buffer: impl Fn(usize, &mut [u64]), batch: &mut [Verb<'_>], atomics: &[AtomicResult]) {
    let (mut word, mut atomics) = (0, atomics.iter());
    for verb in batch {
        match verb {
            Verb::Read { into, .. } => buffer(word, into),
            Verb::Write { .. } => {}
            Verb::Cas { found, .. } | Verb::MaskedCas { found, .. } | Verb::FetchAdd { found, .. } => {
                if let Some(result) = atomics.next() {
                    **found = result.read(&buffer);
                }
            }
        }
        word += verb.words();
    }
}

#[cfg(test)]
mod tests {
    use guira_fabric::{Addr, Profile};
    use guira_network::wire::Segment;

    use super::*;
    use crate::client::parts::tests::{MAIN_BYTES, parts};

    fn bounds(grant: Grant) -> Bounds {
        let caps = Caps { max_batch: 4, max_verb_words: 16, ..Profile::Rxe.caps() };
        Bounds { main_bytes: MAIN_BYTES, device_bytes: 16, grant, caps, batch_words: 20, masked_order: ByteOrder::HOST }
    }

    fn ready(bounds: &Bounds, batch: &[Verb<'_>]) -> Plan {
        match bounds.plan(&parts(), batch) {
            Ok(Planned::Ready(plan)) => plan,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn invalid_batches_are_refused_without_effect() {
        let (mut long, mut found) = ([0; 17], 0);
        let refused = |grant, batch: &[Verb<'_>]| bounds(grant).plan(&parts(), batch).unwrap_err();
        let write = |addr| Verb::Write { addr, words: &[1] };
        let (write_only, out) = (refused(Grant::ReadOnly, &[write(Addr::main(0))]), Addr::main(MAIN_BYTES));
        assert_eq!(write_only, FabricError::ReadOnly { verb: "WRITE" });
        assert!(matches!(refused(Grant::ReadWrite, &[write(out)]), FabricError::OutOfBounds { .. }));
        assert!(matches!(refused(Grant::ReadWrite, &[write(Addr::main(4))]), FabricError::Misaligned { .. }));
        let far = [write(Addr::device(0)), write(Addr::main(!7 >> 1 & !7))];
        assert!(matches!(refused(Grant::ReadWrite, &far), FabricError::OutOfBounds { .. }));
        let five = std::array::from_fn::<_, 5, _>(|_| write(Addr::main(0)));
        assert!(matches!(refused(Grant::ReadWrite, &five), FabricError::TooLarge { verbs: 5, words: 1 }));
        let over = Verb::Read { addr: Addr::main(MAIN_BYTES - 128), into: &mut long[..] };
        assert!(matches!(refused(Grant::ReadWrite, &[over]), FabricError::OutOfBounds { .. }));
        let two = std::array::from_fn::<_, 2, _>(|_| Verb::Write { addr: Addr::main(0), words: &[0; 12] });
        assert!(matches!(refused(Grant::ReadWrite, &two), FabricError::Backend(_)), "it crosses two parts");
        let masked = Verb::MaskedCas {
            addr: Addr::main(0),
            compare: 0,
            swap: 0,
            compare_mask: 1,
            swap_mask: 1,
            found: &mut found,
        };
        assert_eq!(refused(Grant::ReadWrite, &[masked]), FabricError::Unsupported { verb: "MASKED CAS" });
    }

    /// A verb in no known part is missing as a whole, the first of a batch first; a batch that is refused is refused
    /// whatever is known.
    #[test]
    fn unknown_parts_are_missing() {
        let (mut first, mut second) = ([0; 4], [0; 4]);
        let bounds = bounds(Grant::ReadWrite);
        let batch = [
            Verb::Write { addr: Addr::main(0), words: &[1] },
            Verb::Read { addr: Addr::main(120), into: &mut first },
            Verb::Read { addr: Addr::main(208), into: &mut second },
        ];
        assert_eq!(bounds.plan(&parts(), &batch), Ok(Planned::Missing(120..152)));
        assert_eq!(bounds.plan(&parts(), &batch[2..]), Ok(Planned::Missing(208..240)));
        let grown = parts().with(&[Segment { offset: 128, address: 0, bytes: 64, key: 9 }], &(120..152), MAIN_BYTES);
        assert_eq!(bounds.plan(&grown.unwrap(), &batch), Ok(Planned::Missing(208..240)));
        let invalid =
            [Verb::Write { addr: Addr::main(136), words: &[1] }, Verb::Write { addr: Addr::main(4), words: &[1] }];
        assert!(matches!(bounds.plan(&parts(), &invalid), Err(FabricError::Misaligned { .. })));
        let read_only = Bounds { grant: Grant::ReadOnly, ..bounds };
        assert_eq!(read_only.plan(&parts(), &invalid[..1]), Err(FabricError::ReadOnly { verb: "WRITE" }));
    }

    /// A WRITE that no death may tear does not cross two parts; one that is longer than a packet is several requests,
    /// in the order of their addresses.
    #[test]
    fn only_writes_that_may_be_torn_cross_parts() {
        let mut bounds = bounds(Grant::ReadWrite);
        bounds.caps.atomic_write_unit = 32;
        let words = [1, 2, 3, 4, 5, 6, 7, 8];
        let write = |words| [Verb::Write { addr: Addr::main(48), words }];
        let whole = bounds.plan(&parts(), &write(&words[..4])).unwrap_err().to_string();
        assert!(whole.starts_with("a WRITE at ") && whole.contains(" crosses two parts of the region"), "{whole}");
        assert_eq!(ready(&bounds, &write(&words)), Plan { requests: 3, words: 8 });
        let mut requests = Requests::default();
        encode(&parts(), &write(&words), (0, 16), &mut requests, |_, _| {});
        let pieces: Vec<_> = requests.pieces.iter().map(|piece| (piece.addr, piece.length)).collect();
        assert_eq!(pieces, [(0, 16), (16, 32), (48, 16)]);
        let flags: Vec<_> = requests.requests.iter().map(|request| request.send_flags).collect();
        assert_eq!(flags, [ffi::SEND_INLINE, 0, ffi::SEND_INLINE | ffi::SEND_SIGNALED]);
    }

    /// A batch within all limits but with more words than any buffer has is refused.
    #[test]
    fn a_batch_has_at_most_the_words_of_a_buffer() {
        let (mut first, mut second) = ([0; 11], [0; 10]);
        let batch = [
            Verb::Read { addr: Addr::main(0), into: &mut first },
            Verb::Read { addr: Addr::main(0), into: &mut second },
        ];
        let plan = bounds(Grant::ReadOnly).plan(&parts(), &batch);
        assert_eq!(plan, Err(FabricError::TooLarge { verbs: 2, words: 11 }));
    }

    #[test]
    fn requests_lie_one_after_the_other_and_only_the_last_is_signalled() {
        let (mut into, mut found) = ([0; 2], 0);
        let batch = [
            Verb::Write { addr: Addr::main(8), words: &[5, 6, 7] },
            Verb::Read { addr: Addr::main(56), into: &mut into },
            Verb::FetchAdd { addr: Addr::device(0), add: 9, found: &mut found },
        ];
        assert_eq!(ready(&bounds(Grant::ReadWrite), &batch), Plan { requests: 4, words: 6 });
        let (mut requests, mut written) = (Requests::default(), Vec::new());
        encode(&parts(), &batch, (3, 16), &mut requests, |word, words| written.push((word, words.to_vec())));
        assert_eq!(written, [(0, vec![5, 6, 7])]);
        assert_eq!(requests.len(), 4);
        assert!(requests.change_memory(1) && !requests.change_memory(0));
        let pieces = |requests: &Requests| -> Vec<(u64, u32, u32)> {
            requests.pieces.iter().map(|piece| (piece.addr, piece.length, piece.lkey)).collect()
        };
        assert_eq!(pieces(&requests), [(0, 24, 0), (24, 8, 0), (32, 8, 0), (40, 8, 0)]);
        let linked = requests.link(4096, 77);
        let flags: Vec<u32> = linked.iter().map(|request| request.send_flags).collect();
        assert_eq!(flags, [0, 0, 0, ffi::SEND_SIGNALED], "24 bytes do not fit inline");
        assert!(linked.iter().all(|request| request.wr_id == 3));
        assert!(std::ptr::eq(linked[0].next, &raw const linked[1]) && linked[3].next.is_null());
        assert_eq!(pieces(&requests), [(4096, 24, 77), (4120, 8, 77), (4128, 8, 77), (4136, 8, 77)]);
        encode(&parts(), &batch[..1], (3, 24), &mut requests, |_, _| {});
        assert_eq!(requests.link(0, 0)[0].send_flags, ffi::SEND_SIGNALED | ffi::SEND_INLINE);
    }

    /// Where both devices have it, a masked CAS is a request like others, with its masks.
    #[test]
    fn a_masked_cas_keeps_its_place_and_its_masks() {
        let (mut first, mut second) = (0, 0);
        let (addr, compare, swap) = (Addr::device(8), 1, 2);
        let batch = [
            Verb::Cas { addr, compare, swap, found: &mut first },
            Verb::MaskedCas { addr, compare, swap, compare_mask: 3, swap_mask: 4, found: &mut second },
        ];
        let mut bounds = bounds(Grant::ReadWrite);
        bounds.caps.masked_cas = MaskedCas::Native;
        assert_eq!(ready(&bounds, &batch), Plan { requests: 2, words: 2 });
        let mut requests = Requests::default();
        encode(&parts(), &batch, (0, 0), &mut requests, |_, _| {});
        assert!(requests.change_memory(2));
        let [cas, masked] = requests.link(0, 0) else { panic!("two verbs are two requests") };
        assert_eq!((cas.opcode, cas.send_flags), (ffi::WR_ATOMIC_CMP_AND_SWP, 0));
        assert_eq!((masked.opcode, masked.send_flags), (ffi::WR_MASKED_CAS, ffi::SEND_SIGNALED));
        assert_eq!((masked.atomic(), masked.masks()), (((4 << 20) + 8, 1, 2, 4), (3, 4)));
        bounds.grant = Grant::ReadOnly;
        assert_eq!(bounds.plan(&parts(), &batch[1..]), Err(FabricError::ReadOnly { verb: "MASKED CAS" }));
    }

    #[test]
    fn results_reach_their_verbs_in_their_byte_order() {
        let (mut into, mut swapped, mut masked, mut added) = ([0; 2], 0, 0, 0);
        let (addr, compare, swap) = (Addr::main(0), 0, 1);
        let mut batch = [
            Verb::Write { addr, words: &[1] },
            Verb::Read { addr, into: &mut into },
            Verb::Cas { addr, compare, swap, found: &mut swapped },
            Verb::MaskedCas { addr, compare, swap, compare_mask: 1, swap_mask: 1, found: &mut masked },
            Verb::FetchAdd { addr, add: 1, found: &mut added },
        ];
        let buffer = [10, 11, 12, 13, 0x0102_0304_0506_0708_u64.to_be(), 15];
        let (read, mut atomics) =
            (|word: usize, into: &mut [u64]| into.copy_from_slice(&buffer[word..word + into.len()]), vec![]);
        each_atomic(&batch, ByteOrder::BigEndian, |atomic| atomics.push(atomic));
        let (host, big) = (ByteOrder::HOST, ByteOrder::BigEndian);
        let expected = [(3, host), (4, big), (5, host)].map(|(word, order)| AtomicResult { word, order });
        assert_eq!(atomics, expected);
        copy_results(read, &mut batch, &atomics);
        assert_eq!((into, swapped, masked, added), ([11, 12], 13, 0x0102_0304_0506_0708, 15));
    }
}
