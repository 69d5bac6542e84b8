//! The parts of a region that a connection can reach, each under a key of its own. Those of a table that grows come
//! later: a client asks for one when it needs it.
//!
//! Invariant: the parts of a space are in the order of its addresses, do not overlap, and lie inside it; what a memory
//! node says otherwise is refused.

use std::ops::Range;

use guira_fabric::{Addr, Space, WORD_BYTES};
use guira_network::wire::{MAX_SEGMENTS, Segment, TargetParameters, WireError};

use crate::VerbsError;

/// The parts of both spaces.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    main: Vec<Segment>,
    device: Vec<Segment>,
}

impl Parts {
    /// Takes the parts that the memory side lists. Refuses those that do not lie in spaces of these sizes, and a device
    /// space with gaps.
    ///
    /// # Errors
    /// `Mismatch`.
    pub(super) fn new(target: &TargetParameters, main_bytes: u64, device_bytes: u64) -> Result<Parts, VerbsError> {
        let refused = |reason: String| Err(VerbsError::Mismatch { reason });
        for (segments, space_bytes) in [(&target.main, main_bytes), (&target.device, device_bytes)] {
            let is_possible = |segment: &Segment| {
                let numbers = [segment.offset, segment.address, segment.bytes];
                segment.bytes > 0
                    && numbers.iter().all(|number| number.is_multiple_of(WORD_BYTES))
                    && segment.address.checked_add(segment.bytes).is_some()
                    && segment.offset.checked_add(segment.bytes).is_some_and(|end| end <= space_bytes)
            };
            // Addresses have 63 bits.
            if space_bytes >> 63 != 0 || !segments.iter().all(is_possible) || !are_in_order(segments) {
                return refused(format!("the other side's segments of a space of {space_bytes} bytes are impossible"));
            }
        }
        let on_device = target.device.iter().map(|segment| segment.bytes).sum::<u64>();
        if on_device != device_bytes {
            return refused(format!(
                "the other side registered {on_device} of {device_bytes} bytes of the device space, which does not grow"
            ));
        }
        Ok(Parts { main: target.main.clone(), device: target.device.clone() })
    }

    /// Returns the same parts with `more` of the main space, of `space_bytes`, which the memory node says are those
    /// that have `asked`.
    ///
    /// # Errors
    /// They are not in the space, do not agree with what the node said before, or do not have all of `asked`.
    pub(super) fn with(&self, more: &[Segment], asked: &Range<u64>, space_bytes: u64) -> Result<Parts, WireError> {
        let mut main = self.main.clone();
        for segment in more {
            let wrong = WireError::Value { what: "part of the memory", value: segment.offset };
            if segment.end() > space_bytes {
                return Err(wrong);
            }
            match main.binary_search_by_key(&segment.offset, |known| known.offset) {
                Ok(known) if main[known] == *segment => {}
                Ok(_) => return Err(wrong),
                Err(at) => main.insert(at, *segment),
            }
        }
        let parts = Parts { main, device: self.device.clone() };
        if parts.main.len() > MAX_SEGMENTS || !are_in_order(&parts.main) {
            return Err(WireError::Body { what: "parts of the memory", words: parts.main.len() });
        }
        if parts.missing_in(asked).is_some() {
            return Err(WireError::Value { what: "part without the bytes that were asked for", value: asked.start });
        }
        Ok(parts)
    }

    /// Returns the first of these bytes of the main space that cannot be reached.
    pub(super) fn missing_in(&self, bytes: &Range<u64>) -> Option<u64> {
        let first = self.main.partition_point(|part| part.end() <= bytes.start);
        let reach = |from: u64, part: &Segment| {
            if part.offset <= from && from < bytes.end { Ok(part.end()) } else { Err(from) }
        };
        let from = self.main[first..].iter().try_fold(bytes.start, reach).unwrap_or_else(|from| from);
        (from < bytes.end).then_some(from)
    }

    /// Returns the remote pieces of `words` words at `addr`, up to the first that cannot be reached: address, key and
    /// words of each.
    pub(super) fn pieces(&self, addr: Addr, words: usize) -> impl Iterator<Item = (u64, u32, usize)> + '_ {
        let parts = match addr.space() {
            Space::Main => &self.main,
            Space::Device => &self.device,
        };
        let (mut start, end) = (addr.offset(), addr.offset() + words as u64 * WORD_BYTES);
        let first = parts.partition_point(|part| part.end() <= start);
        parts[first..].iter().map_while(move |part| {
            let inside = start.checked_sub(part.offset)?;
            let piece_end = end.min(part.end());
            let bytes = piece_end.checked_sub(start).filter(|bytes| *bytes > 0)?;
            start = piece_end;
            Some((part.address + inside, part.key, (bytes / WORD_BYTES) as usize))
        })
    }
}

fn are_in_order(segments: &[Segment]) -> bool {
    segments.windows(2).all(|pair| pair[0].end() <= pair[1].offset)
}

#[cfg(test)]
pub(super) mod tests {
    use guira_fabric::MaskedCas;
    use guira_network::wire::{Grant, Mtu, PacketNumber, QueuePairEndpoint, QueuePairNumber};

    use super::*;

    /// Bytes of the main space of [`parts`].
    pub(in crate::client) const MAIN_BYTES: u64 = 256;
    const DEVICE_BYTES: u64 = 16;

    fn segment(offset: u64, address: u64, bytes: u64, key: u32) -> Segment {
        Segment { offset, address, bytes, key }
    }

    pub(in crate::client) fn target(main: Vec<Segment>, device: Vec<Segment>) -> TargetParameters {
        let endpoint = QueuePairEndpoint {
            gid: "10.0.0.1".parse().unwrap(),
            lid: 0,
            queue_pair: QueuePairNumber(1),
            first_packet: PacketNumber(2),
            mtu: Mtu::of_bytes(1024).unwrap(),
            reads_in: 1,
            reads_out: 1,
        };
        TargetParameters { endpoint, grant: Grant::ReadWrite, masked_cas: MaskedCas::CasLoop, main, device }
    }

    /// Three parts of 128 bytes, a gap, and one of 16 bytes; and a device space.
    pub(in crate::client) fn parts() -> Parts {
        let main = vec![
            segment(0, 1 << 20, 64, 1),
            segment(64, 2 << 20, 32, 2),
            segment(96, 3 << 20, 32, 3),
            segment(192, 5 << 20, 16, 5),
        ];
        Parts::new(&target(main, vec![segment(0, 4 << 20, 16, 4)]), MAIN_BYTES, DEVICE_BYTES).unwrap()
    }

    fn pieces(addr: Addr, words: usize) -> Vec<(u64, u32, usize)> {
        parts().pieces(addr, words).collect()
    }

    #[test]
    fn pieces_follow_the_parts_up_to_a_gap() {
        assert_eq!(pieces(Addr::main(0), 8), [(1 << 20, 1, 8)]);
        assert_eq!(pieces(Addr::main(56), 2), [((1 << 20) + 56, 1, 1), (2 << 20, 2, 1)]);
        assert_eq!(pieces(Addr::main(64), 4), [(2 << 20, 2, 4)]);
        assert_eq!(pieces(Addr::main(48), 8), [((1 << 20) + 48, 1, 2), (2 << 20, 2, 4), (3 << 20, 3, 2)]);
        assert_eq!(pieces(Addr::main(120), 4), [((3 << 20) + 24, 3, 1)]);
        assert_eq!(pieces(Addr::main(200), 4), [((5 << 20) + 8, 5, 1)]);
        assert_eq!(pieces(Addr::device(8), 1), [((4 << 20) + 8, 4, 1)]);
        assert!([0, 128, 136, 240].iter().all(|at| pieces(Addr::main(*at), 0).is_empty()));
        assert!([128, 136, 184, 208, 240].iter().all(|at| pieces(Addr::main(*at), 2).is_empty()));
        let missing = |start, end| parts().missing_in(&(start..end));
        assert!([(0, 128), (64, 96), (8, 120), (192, 208), (40, 40)].iter().all(|it| missing(it.0, it.1).is_none()));
        assert_eq!((missing(0, 129), missing(120, 200), missing(128, 192)), (Some(128), Some(128), Some(128)));
        assert_eq!((missing(184, 200), missing(200, 216)), (Some(184), Some(208)));
    }

    /// A part that a node adds fills a gap, once; saying it again changes nothing.
    #[test]
    fn parts_are_added_where_there_were_none() {
        let (next, last) = (segment(128, 7 << 20, 64, 7), segment(208, 8 << 20, 48, 8));
        let grown = parts().with(&[next], &(128..192), MAIN_BYTES).unwrap();
        assert_eq!(grown.missing_in(&(0..MAIN_BYTES)), Some(208));
        assert_eq!(grown.pieces(Addr::main(184), 2).collect::<Vec<_>>(), [((7 << 20) + 56, 7, 1), (5 << 20, 5, 1)]);
        let again = grown.with(&[next, last], &(136..256), MAIN_BYTES).unwrap();
        assert!(again.missing_in(&(0..MAIN_BYTES)).is_none() && again.main.len() == 6);
        assert!(again.with(&[], &(0..MAIN_BYTES), MAIN_BYTES).is_ok(), "it has them already");
    }

    /// A node that lies about parts is found out, and what was known before stays.
    #[test]
    fn impossible_parts_are_refused() {
        let known = parts();
        let refused = |more: &[Segment], asked: Range<u64>| known.with(more, &asked, MAIN_BYTES).unwrap_err();
        let next = |offset, bytes| segment(offset, 7 << 20, bytes, 7);
        for (more, asked) in [
            // Not what was asked for, or not all of it.
            (vec![], 128..192),
            (vec![next(128, 32)], 128..192),
            (vec![next(136, 56)], 128..192),
            (vec![next(208, 48)], 128..192),
            // Over known parts, or another one.
            (vec![next(120, 72)], 128..192),
            (vec![next(128, 72)], 128..192),
            (vec![next(128, 64), segment(0, 7 << 20, 64, 1)], 128..192),
            (vec![segment(0, 1 << 20, 64, 9)], 0..64),
            (vec![segment(0, 1 << 20, 72, 1)], 0..64),
            // Outside of the space.
            (vec![next(208, 56)], 208..256),
            (vec![next(128, 64), next(256, 8)], 128..192),
        ] {
            println!("{:?} for {asked:?}: {}", more, refused(&more, asked.clone()));
        }
        let one = |n: u64| segment(8 * n, 0, 8, 0);
        let many: Vec<Segment> = (0..=MAX_SEGMENTS as u64).map(one).collect();
        let empty = Parts::new(&target(vec![], vec![]), 1 << 20, 0).unwrap();
        assert!(empty.with(&many[1..], &(8..16), 1 << 20).is_ok());
        assert!(empty.with(&many, &(8..16), 1 << 20).is_err(), "more than there may be");
    }

    #[test]
    fn impossible_spaces_are_refused() {
        let refused = |main: Vec<Segment>, device: Vec<Segment>, main_bytes: u64| {
            let refused = Parts::new(&target(main, device), main_bytes, DEVICE_BYTES).map(drop);
            assert!(matches!(refused, Err(VerbsError::Mismatch { .. })), "{refused:?}");
            refused.unwrap_err().to_string()
        };
        let device = || vec![segment(0, 4 << 20, DEVICE_BYTES, 4)];
        for main in [
            segment(0, 0, 0, 1),
            segment(4, 0, 8, 1),
            segment(0, 4, 8, 1),
            segment(0, 0, 12, 1),
            segment(0, u64::MAX - 7, 64, 1),
            segment(64, 0, 200, 1),
            segment(u64::MAX - 7, 0, 64, 1),
        ] {
            refused(vec![main], device(), MAIN_BYTES);
        }
        refused(vec![segment(64, 0, 64, 1), segment(0, 0, 64, 1)], device(), MAIN_BYTES);
        refused(vec![segment(0, 0, 64, 1), segment(56, 0, 64, 1)], device(), MAIN_BYTES);
        refused(vec![], device(), 1 << 63);
        assert!(refused(vec![], vec![], MAIN_BYTES).contains("0 of 16 bytes of the device space, which does not grow"));
        assert!(refused(vec![], vec![segment(8, 0, 8, 4)], MAIN_BYTES).contains("does not grow"));
        Parts::new(&target(vec![], device()), MAIN_BYTES, DEVICE_BYTES).expect("all of the main space may come later");
    }
}
