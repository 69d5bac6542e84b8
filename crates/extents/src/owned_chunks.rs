//! A client's record of its own chunks: which slots are in use, which are free, and which chunks are empty.
//!
//! Invariants: `free` of a chunk lists exactly its slots of generation 0; `open` of a class lists the chunks that have
//! a free slot; `empty` lists the chunks in which every slot is free.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use guira_layout::ExtentClass;

/// Empty chunks that a client keeps, in total, so that it need not claim and format a chunk whenever a class was empty
/// for a moment. A larger reserve would be space that an idle client withholds from others. [R-EXTENT-5]
pub(super) const RESERVE_CHUNKS: u64 = 8;
/// Number of empty chunks, or runs, of each class that a client keeps.
const RESERVE_OF_CLASS: usize = 1;
/// The marks of a class are read again once one in this many of its slots was handed out since the last read: then the
/// read is worth its round trips.
const MARK_READ_SHARE: u64 = 4;

/// The way in which an extent became free.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Freed {
    /// The extent's mark is written.
    Marked,
    /// The extent was never linked, so no client marked it.
    Unlinked,
}

/// A chunk and the extents in it.
pub(super) struct Chunk {
    pub(super) class: ExtentClass,
    /// The generation of the extent in each slot; 0 for a free slot.
    pub(super) slots: Vec<u64>,
    /// Free slots, first freed first: a slow reader finds its extent as long as possible. [R-EXTENT-4]
    free: VecDeque<u64>,
    /// Free slots whose extent was, or may have been, written and never linked.
    unmarked: BTreeSet<u64>,
    /// Recoveries counted when the chunk was last swept: its header has the same number, or a smaller one.
    /// [R-RECOVER-7]
    pub(super) swept: u64,
}

impl Chunk {
    fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Returns the number of free slots, as an orphan's word stores it.
    pub(super) fn free_hint(&self) -> u16 {
        u16::try_from(self.free.len()).unwrap_or(u16::MAX)
    }
}

/// The chunks of one size class.
#[derive(Default)]
struct Class {
    chunks: BTreeSet<u64>,
    /// Chunks with a free slot.
    open: BTreeSet<u64>,
    slots: u64,
    /// Slots handed out since the marks were last read.
    since_mark_read: u64,
}

/// A client's chunks.
#[derive(Default)]
pub(super) struct OwnedChunks {
    chunks: BTreeMap<u64, Chunk>,
    classes: BTreeMap<ExtentClass, Class>,
    /// Chunks that hold nothing, longest empty first.
    empty: VecDeque<u64>,
    /// Whether `empty` grew since the surplus was last taken.
    emptied: bool,
}

impl OwnedChunks {
    /// Takes a free slot of `class` for `generation`, and returns its chunk and index. The highest chunk that is in use
    /// anyway comes first, so that the lower ones become empty.
    pub(super) fn take(&mut self, class: ExtentClass, generation: u64) -> Option<(u64, u64)> {
        let owned = self.classes.get_mut(&class)?;
        let in_use = owned.open.iter().rev().find(|index| !self.empty.contains(index));
        let index = in_use.or(owned.open.last()).copied()?;
        let chunk = self.chunks.get_mut(&index)?;
        if chunk.is_empty() {
            self.empty.retain(|empty| *empty != index);
        }
        let slot = chunk.free.pop_front()?;
        chunk.unmarked.remove(&slot);
        chunk.slots[slot as usize] = generation;
        if chunk.free.is_empty() {
            owned.open.remove(&index);
        }
        owned.since_mark_read += 1;
        Some((index, slot))
    }

    /// Takes back a slot that holds `generation`; does nothing if it does not, or is not this client's.
    pub(super) fn give_back(&mut self, index: u64, slot: u64, generation: u64, how: Freed) {
        let Some(chunk) = self.chunks.get_mut(&index) else { return };
        if generation == 0 || chunk.slots.get(slot as usize) != Some(&generation) {
            return;
        }
        if how == Freed::Unlinked {
            chunk.unmarked.insert(slot);
        }
        chunk.slots[slot as usize] = 0;
        chunk.free.push_back(slot);
        if let Some(owned) = self.classes.get_mut(&chunk.class) {
            owned.open.insert(index);
        }
        if chunk.is_empty() {
            self.empty.push_back(index);
            self.emptied = true;
        }
    }

    /// Takes back every slot of chunk `index` whose extent is free by `marks`, those of its slots from `first` on.
    pub(super) fn apply_marks(&mut self, index: u64, first: u64, marks: &[u64]) {
        let Some(chunk) = self.chunks.get(&index) else { return };
        let slots = chunk.slots.get(first as usize..).unwrap_or_default();
        let slots = slots.iter().zip(marks).zip(first..);
        let freed = slots.filter(|((generation, mark), _)| **generation != 0 && generation == mark);
        let freed: Vec<(u64, u64)> = freed.map(|((generation, _), slot)| (slot, *generation)).collect();
        for (slot, generation) in freed {
            self.give_back(index, slot, generation, Freed::Marked);
        }
    }

    /// Returns the first slot of chunk `index` whose extent has yet to be marked.
    pub(super) fn first_unmarked(&self, index: u64) -> Option<u64> {
        self.chunks.get(&index)?.unmarked.first().copied()
    }

    /// Records that a free slot of chunk `index` is marked now.
    pub(super) fn note_marked(&mut self, index: u64, slot: u64) {
        if let Some(chunk) = self.chunks.get_mut(&index) {
            chunk.unmarked.remove(&slot);
        }
    }

    /// Records how many recoveries had been counted when chunk `index` was swept.
    pub(super) fn note_swept(&mut self, index: u64, recoveries: u64) {
        if let Some(chunk) = self.chunks.get_mut(&index) {
            chunk.swept = recoveries;
        }
    }

    /// Adds a chunk whose slots hold the generations `slots`, and which was swept after `swept` recoveries.
    pub(super) fn add(&mut self, index: u64, class: ExtentClass, slots: Vec<u64>, swept: u64) {
        let free: VecDeque<u64> = slots.iter().zip(0..).filter(|(held, _)| **held == 0).map(|(_, slot)| slot).collect();
        let chunk = Chunk { class, slots, free, unmarked: BTreeSet::new(), swept };
        let owned = self.classes.entry(class).or_default();
        owned.chunks.insert(index);
        owned.slots += chunk.slots.len() as u64;
        if !chunk.free.is_empty() {
            owned.open.insert(index);
        }
        if chunk.is_empty() {
            self.empty.push_back(index);
            self.emptied = true;
        }
        self.chunks.insert(index, chunk);
    }

    /// Removes a chunk from this client's record.
    pub(super) fn remove(&mut self, index: u64) -> Option<Chunk> {
        let chunk = self.chunks.remove(&index)?;
        if chunk.is_empty() {
            self.empty.retain(|empty| *empty != index);
        }
        if let Some(owned) = self.classes.get_mut(&chunk.class) {
            owned.chunks.remove(&index);
            owned.open.remove(&index);
            owned.slots -= chunk.slots.len() as u64;
            if owned.chunks.is_empty() {
                self.classes.remove(&chunk.class);
            }
        }
        Some(chunk)
    }

    pub(super) fn get(&self, index: u64) -> Option<&Chunk> {
        self.chunks.get(&index)
    }

    /// Whether chunk `index` is this client's and holds nothing.
    pub(super) fn is_empty(&self, index: u64) -> bool {
        self.chunks.get(&index).is_some_and(Chunk::is_empty)
    }

    pub(super) fn has_free(&self, class: ExtentClass) -> bool {
        self.classes.get(&class).is_some_and(|owned| !owned.open.is_empty())
    }

    /// Whether the marks of `class` should be read again: so many slots were handed out since the last time that some
    /// are likely to be free by now.
    pub(super) fn is_mark_read_due(&self, class: ExtentClass) -> bool {
        self.classes.get(&class).is_some_and(|owned| owned.since_mark_read * MARK_READ_SHARE >= owned.slots)
    }

    /// Returns the chunks of `class`, whose marks are about to be read.
    pub(super) fn begin_mark_read(&mut self, class: ExtentClass) -> Vec<u64> {
        let Some(owned) = self.classes.get_mut(&class) else { return Vec::new() };
        owned.since_mark_read = 0;
        owned.chunks.iter().copied().collect()
    }

    /// Returns all chunks from `first` on, then those before it.
    pub(super) fn from(&self, first: u64) -> impl Iterator<Item = (u64, &Chunk)> {
        let around = self.chunks.range(first..).chain(self.chunks.range(..first));
        around.map(|(index, chunk)| (*index, chunk))
    }

    /// Returns all chunks that hold nothing.
    pub(super) fn all_empty(&self) -> Vec<u64> {
        self.empty.iter().copied().collect()
    }

    /// Whether a chunk became empty since the surplus was last taken.
    pub(super) fn may_have_surplus(&self) -> bool {
        self.emptied
    }

    /// Takes the empty chunks beyond the reserve; the latest to become empty stay. [R-EXTENT-5]
    pub(super) fn surplus(&mut self) -> Vec<u64> {
        if !std::mem::take(&mut self.emptied) {
            return Vec::new();
        }
        let (mut kept, mut of_class) = (0, BTreeMap::new());
        let mut surplus = Vec::new();
        for index in self.empty.iter().rev() {
            let Some(chunk) = self.chunks.get(index) else { continue };
            let same = of_class.entry(chunk.class).or_insert(0);
            if *same < RESERVE_OF_CLASS && kept + chunk.class.chunks() <= RESERVE_CHUNKS {
                *same += 1;
                kept += chunk.class.chunks();
            } else {
                surplus.push(*index);
            }
        }
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: ExtentClass = ExtentClass::Slot(3);

    fn with_empty(class: ExtentClass, chunks: std::ops::Range<u64>) -> OwnedChunks {
        let mut owned = OwnedChunks::default();
        chunks.for_each(|index| owned.add(index, class, vec![0; 2], 0));
        owned
    }

    #[test]
    fn the_highest_chunk_in_use_fills_first() {
        let mut owned = with_empty(CLASS, 4..7);
        let taken: Vec<_> = (1..=6).map(|generation| owned.take(CLASS, generation).unwrap()).collect();
        assert_eq!(taken, [(6, 0), (6, 1), (5, 0), (5, 1), (4, 0), (4, 1)]);
        assert_eq!(owned.take(CLASS, 7), None);
        owned.give_back(4, 1, 6, Freed::Marked);
        owned.give_back(6, 0, 1, Freed::Marked);
        owned.give_back(6, 1, 2, Freed::Marked);
        assert_eq!(owned.take(CLASS, 8), Some((4, 1)), "chunk 6 is empty, and may be given back");
        assert_eq!(owned.take(CLASS, 9), Some((6, 0)), "first freed, first used");
    }

    #[test]
    fn an_extent_is_taken_back_once_and_by_its_generation() {
        let mut owned = with_empty(CLASS, 0..1);
        owned.take(CLASS, 5);
        for (index, slot, generation) in [(0, 0, 6), (0, 1, 5), (0, 1, 0), (1, 0, 5), (0, 9, 5)] {
            owned.give_back(index, slot, generation, Freed::Marked);
            assert!(!owned.is_empty(0));
        }
        owned.apply_marks(0, 0, &[4, 5]);
        assert!(!owned.is_empty(0));
        owned.apply_marks(0, 0, &[5, 5]);
        owned.apply_marks(0, 0, &[5, 5]);
        assert_eq!((owned.is_empty(0), owned.get(0).unwrap().free_hint()), (true, 2));
    }

    #[test]
    fn the_reserve_is_bounded_by_class_and_in_all() {
        let mut owned = with_empty(CLASS, 0..5);
        assert_eq!(owned.surplus(), [3, 2, 1, 0], "one of a class");
        assert_eq!(owned.surplus(), [0; 0], "taken once");
        let mut owned = OwnedChunks::default();
        (0..20).for_each(|class| owned.add(class, ExtentClass::Slot(class as u8), vec![0], 0));
        assert_eq!(owned.surplus().len() as u64, 20 - RESERVE_CHUNKS);
        owned.add(40, ExtentClass::Run(9), vec![0], 0);
        assert!(owned.surplus().contains(&40), "a run beyond the reserve is given back at once");
        owned.remove(3);
        assert!(owned.get(3).is_none() && !owned.all_empty().contains(&3) && !owned.has_free(ExtentClass::Slot(3)));
    }

    #[test]
    fn marks_are_read_when_a_quarter_was_handed_out() {
        let mut owned = with_empty(CLASS, 0..4);
        assert!(!owned.is_mark_read_due(CLASS));
        owned.take(CLASS, 1);
        assert!(!owned.is_mark_read_due(CLASS));
        owned.take(CLASS, 2);
        assert!(owned.is_mark_read_due(CLASS));
        assert_eq!(owned.begin_mark_read(CLASS), [0, 1, 2, 3]);
        assert!(!owned.is_mark_read_due(CLASS));
    }
}
