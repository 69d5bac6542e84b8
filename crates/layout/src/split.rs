//! Images of the rows of a segment that is split, and the redo record of a split. [R-GROW-8]
//!
//! Entry i of a row stays entry i, of the same row or of the row of the same place in the new segment, the *child*. So
//! the entries that a half-written row has lost, or is about to lose, are those of the child's row. [R-GROW-9]

use crate::row::{LEVEL_SHIFT, MAX_MARKED_ENTRIES, REPLACED_SHIFT};
use crate::{RowFormat, RowId, Segments, Trailer};

/// A split in progress: the segment and its level before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSplit {
    /// The segment that is split.
    pub segment: u64,
    /// The level of its rows before the split.
    pub level: u8,
    /// The segment that its right half goes to.
    pub child: u64,
}

impl SegmentSplit {
    /// Returns the split of a segment whose rows have `level`; `None` if it cannot be split.
    pub fn of(segments: &Segments, segment: u64, level: u8) -> Option<SegmentSplit> {
        segments.child(segment, level).map(|child| SegmentSplit { segment, level, child })
    }

    /// Returns the row of the child in the same place as `row` of the segment that is split; `None` if `row` is not one
    /// of its rows.
    pub fn child_row(&self, segments: &Segments, row: RowId) -> Option<RowId> {
        let is_inside = segments.of_row(row) == self.segment;
        is_inside.then(|| RowId(segments.first_row(self.child).0 + (row.0 - segments.first_row(self.segment).0)))
    }
}

/// The state of a row of which half may be written by a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitImage {
    /// As its trailer says: before or after the split.
    AsSampled,
    /// After the split.
    After,
}

impl RowFormat {
    /// Splits the whole row `words` between itself and `child`, to which it moves the entries that `moves` selects.
    /// Both get the next version and level. [R-GROW-8]
    pub fn split_row(
        &self,
        (row, words): (RowId, &mut [u64]),
        (child_row, child): (RowId, &mut [u64]),
        mut moves: impl FnMut(&[u64], usize) -> bool,
    ) {
        child.fill(0);
        child[self.trailer_word()] = words[self.trailer_word()] & ((1 << (LEVEL_SHIFT + 4)) - 1);
        for index in self.occupied_entries(words) {
            if moves(words, index) {
                self.put_entry(child, index, self.entry(words, index), self.entry_kind(words, index));
                self.clear_entry(words, index);
            }
        }
        for (row, words) in [(row, words), (child_row, child)] {
            words[self.trailer_word()] += 1 << LEVEL_SHIFT;
            self.finish(row, words);
        }
    }

    /// Turns `words`, which are `row` before a split, after it, or any mixture of both, into one of the two, with the
    /// help of its child's whole row. Returns false, and changes nothing, if the checksum in it is neither that of the
    /// row before the split nor that of the row after it: it is damaged. [R-GROW-9]
    pub fn complete_split_row(&self, row: RowId, words: &mut [u64], child: &[u64], image: SplitImage) -> bool {
        let (at, found) = (self.trailer_word(), self.trailer(words));
        let moved = self.trailer(child);
        let types = if self.marks_replaced_entries() { (1 << MAX_MARKED_ENTRIES) - 1 } else { !0 };
        let after_trailer = {
            let kept = moved.0 & ((1 << (LEVEL_SHIFT + 4)) - 1);
            let (occupancy, extents) =
                (found.occupancy() & !moved.occupancy(), found.extents() & !moved.extents() & types);
            Trailer(kept).with_bits(occupancy, extents)
        };
        let mut after = words.to_vec();
        for index in self.occupied_entries(child) {
            self.entry_mut(&mut after, index).fill(0);
        }
        let mut before = after.clone();
        for index in self.occupied_entries(child) {
            self.entry_mut(&mut before, index).copy_from_slice(self.entry(child, index));
        }
        after[at] = after_trailer.0;
        let sum = words[at + 1];
        self.rewrite_checksum(row, &mut after);
        let mut is_whole = after[at + 1] == sum;
        let (occupancy, extents) = (found.occupancy() | moved.occupancy(), found.extents() & types | moved.extents());
        let version = u64::from(self.version_before(moved).0);
        let level = u64::from(moved.level().wrapping_sub(1) & 0xf) << LEVEL_SHIFT;
        let before_trailer = Trailer(version | level).with_bits(occupancy, extents);
        // The trailer before the split may have named any entry as replaced, or none.
        let most = if self.marks_replaced_entries() { self.entries() as u64 } else { 0 };
        for replaced in 0..=most {
            before[at] = before_trailer.0 | replaced << REPLACED_SHIFT;
            self.rewrite_checksum(row, &mut before);
            is_whole |= before[at + 1] == sum;
            if before[at] == found.0 || before[at + 1] == sum {
                break;
            }
        }
        if !is_whole {
            return false;
        }
        let is_before = image == SplitImage::AsSampled && found.level() != moved.level();
        words.copy_from_slice(if is_before { &before } else { &after });
        true
    }
}

#[cfg(test)]
mod tests {
    use guira_fabric::SplitMix64;

    use super::*;
    use crate::row::tests::row_format;
    use crate::{EntryKind, Preset};

    /// [R-GROW-8] [R-GROW-9] Every mixture of the words of a row before and after a split becomes each of the two; a
    /// mixture with a damaged word becomes neither, unless that word is known from the child.
    #[test]
    fn every_mixture_is_completed() {
        let mut rng = SplitMix64(9);
        for format in ["fixed:4:4", "fixed:8:8", "fixed:8:100", "bytes:64"] {
            for preset in Preset::ALL {
                let rows = row_format(preset, format);
                for _ in 0..200 {
                    mixtures(&rows, &mut rng);
                }
            }
        }
    }

    fn mixtures(rows: &RowFormat, rng: &mut SplitMix64) {
        let (row, child_row) = (RowId(rng.below(1 << 20)), RowId(rng.below(1 << 20)));
        let mut before = vec![0; rows.row_words()];
        rows.format(row, &mut before);
        for index in 0..rows.entries() {
            if rng.below(3) > 0 {
                let entry: Vec<u64> = (0..rows.entry_words()).map(|_| rng.next_u64()).collect();
                let is_extent = rows.entry_format().has_extents() && rng.below(2) == 0;
                let kind = if is_extent { EntryKind::Extent } else { EntryKind::Inline };
                rows.put_entry(&mut before, index, &entry, kind);
            }
        }
        match rows.occupied_entries(&before).next() {
            Some(index) if rng.below(2) == 0 => rows.finish_replaced(row, &mut before, index),
            _ => rows.finish(row, &mut before),
        }
        let (mut after, mut child) = (before.clone(), vec![7; rows.row_words()]);
        let moved = rng.next_u64();
        rows.split_row((row, &mut after), (child_row, &mut child), |_, index| moved >> index & 1 != 0);
        assert!(rows.verify(row, &after).is_ok() && rows.verify(child_row, &child).is_ok());
        let both = rows.occupancy(&after) | rows.occupancy(&child);
        assert!(both == rows.occupancy(&before) && rows.occupancy(&after) & rows.occupancy(&child) == 0);
        for entry in rows.occupied_entries(&child) {
            assert_eq!(rows.entry(&child, entry), rows.entry(&before, entry));
            assert_eq!(rows.entry_kind(&child, entry), rows.entry_kind(&before, entry));
        }
        let levels = [&before, &after, &child].map(|words| rows.trailer(words).level());
        assert_eq!(levels, [0, 1, 1]);
        let written = rng.next_u64();
        let is_after = |word: usize| written >> (word % 64) & 1 != 0;
        let mixture: Vec<u64> =
            (0..before.len()).map(|word| if is_after(word) { after[word] } else { before[word] }).collect();
        let completed = |image, words: &[u64]| {
            let mut words = words.to_vec();
            rows.complete_split_row(row, &mut words, &child, image).then_some(words)
        };
        let sampled = if rows.trailer(&mixture).level() == 0 { &before } else { &after };
        assert_eq!(completed(SplitImage::After, &mixture).as_ref(), Some(&after));
        assert_eq!(completed(SplitImage::AsSampled, &mixture).as_ref(), Some(sampled));
        // The checksum, and an entry that stays.
        let stays = (0..rows.entries()).find(|index| rows.occupancy(&child) >> index & 1 == 0);
        for word in [Some(before.len() - 1), stays.map(|index| index * rows.entry_words())].into_iter().flatten() {
            let mut damaged = mixture.clone();
            damaged[word] ^= 1 << rng.below(64);
            assert_eq!(completed(SplitImage::After, &damaged), None, "word {word}");
        }
    }
}
