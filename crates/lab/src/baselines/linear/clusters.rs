//! Clusters: slots that are known to be full, up to one that is known to be empty. A thread keeps the largest that its
//! lookups have come upon, and chooses the size of READs near them.
//!
//! Source: the paper on linear probing with variable-sized READs, sections 3.4 and 4.4.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::model::{Costs, Distances, bound};

/// The size of READs with the hints of clusters.
#[derive(Clone)]
pub struct Clusters {
    /// Slots of the table.
    slots: u64,
    /// Clusters that are kept.
    most: usize,
    sizes: Sizes,
    /// By the empty slot behind each cluster, its slots.
    by_end: BTreeMap<u64, u64>,
    /// The slots of each cluster and the empty slot behind it, smallest first.
    by_length: BTreeSet<(u64, u64)>,
    /// Clusters that lookups have come upon since the last READ was posted, as above.
    buffered: Vec<(u64, u64)>,
}

/// The size of a READ by what is known of the slots ahead.
#[derive(Clone)]
struct Sizes {
    distances: Distances,
    costs: Costs,
    slot_bytes: u64,
    /// The longest READ from outside of a cluster.
    bound: usize,
    /// The size without a hint.
    oblivious: usize,
    /// Sizes that were computed, by the slots up to the next cluster and those of the cluster.
    hinted: HashMap<(u64, u64), usize>,
}

/// A hint changes nothing if the first empty slot comes before its cluster, but for this part of lookups.
const UNLIKELY: f64 = 1e-3;

impl Clusters {
    /// Creates an empty set of at most `most` clusters of a table of `slots` slots of `slot_bytes` bytes, as full as
    /// `distances` say, whose READs are bounded by the bandwidth.
    pub fn new(slots: u64, slot_bytes: u64, most: usize, distances: Distances, costs: Costs) -> Clusters {
        let bound = bound(slot_bytes, &costs);
        let oblivious = distances.cheapest(slot_bytes, &costs).min(bound);
        let sizes = Sizes { distances, costs, slot_bytes, bound, oblivious, hinted: HashMap::new() };
        Clusters { slots, most, sizes, by_end: BTreeMap::new(), by_length: BTreeSet::new(), buffered: Vec::new() }
    }

    /// Returns the slots of a READ from `slot` on. Inside a cluster it goes up to the empty slot. [equation 10]
    pub fn read_slots(&mut self, slot: u64) -> u64 {
        let next = self.by_end.range(slot..).next().or_else(|| self.by_end.iter().next());
        let Some((end, length)) = next.map(|(end, length)| (*end, *length)) else {
            return self.sizes.oblivious as u64;
        };
        let to_end = (end + self.slots - slot) % self.slots;
        match to_end.checked_sub(length) {
            None | Some(0) => to_end + 1,
            Some(ahead) => self.sizes.hinted(ahead, length) as u64,
        }
    }

    /// Notes that the slots from `slot` to `end` are full, and that `end` is empty. It counts from [`Clusters::apply`] on.
    pub fn note(&mut self, slot: u64, end: u64) {
        let length = (end + self.slots - slot) % self.slots;
        if length > 0 {
            self.buffered.push((length, end));
        }
    }

    /// Adds what was noted. Clients do this when they have chosen the size of their next READ, so that it takes no time
    /// in which no READ is in flight.
    pub fn apply(&mut self) {
        for (length, end) in self.buffered.drain(..) {
            let known = self.by_end.get(&end).copied().unwrap_or(0);
            let is_large = self.by_end.len() < self.most
                || known > 0
                || self.by_length.first().is_some_and(|(smallest, _)| length > *smallest);
            if length <= known || !is_large {
                continue;
            }
            self.by_length.remove(&(known, end));
            self.by_length.insert((length, end));
            self.by_end.insert(end, length);
            if self.by_end.len() > self.most
                && let Some((_, end)) = self.by_length.pop_first()
            {
                self.by_end.remove(&end);
            }
        }
    }
}

impl Sizes {
    /// Returns the cheapest size where a cluster of `length` slots is `ahead` slots ahead, with an empty slot behind.
    fn hinted(&mut self, ahead: u64, length: u64) -> usize {
        let Sizes { distances, costs, slot_bytes, bound, oblivious, hinted } = self;
        if 1.0 - distances.within(ahead as usize) < UNLIKELY {
            return *oblivious;
        }
        *hinted.entry((ahead, length)).or_insert_with(|| {
            let all = (ahead + length + 1) as usize;
            let cost = |read_slots: usize| {
                let beyond = |slots: usize| 1.0 - distances.within(slots.min(ahead as usize));
                let reads: f64 = (0..all).step_by(read_slots).map(beyond).sum();
                reads * (costs.read_ns + costs.byte_ns * read_slots as f64 * *slot_bytes as f64)
            };
            (1..=all.min(*bound)).min_by(|one, other| cost(*one).total_cmp(&cost(*other))).unwrap_or(*oblivious)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u64 = 1 << 20;

    fn clusters(fill: f64, most: usize) -> Clusters {
        let distances = Distances::of(SLOTS, (SLOTS as f64 * fill) as u64);
        Clusters::new(SLOTS, 8, most, distances, Costs::PRINTED)
    }

    fn with(fill: f64, noted: &[(u64, u64)]) -> Clusters {
        let mut clusters = clusters(fill, 3);
        noted.iter().for_each(|(slot, end)| clusters.note(*slot, *end));
        clusters.apply();
        clusters
    }

    #[test]
    fn inside_a_cluster_a_read_goes_up_to_the_empty_slot() {
        let mut clusters = with(0.65, &[(100, 110), (SLOTS - 5, 3)]);
        for (slot, read_slots) in
            [(100, 11), (104, 7), (109, 2), (110, 1), (SLOTS - 5, 9), (SLOTS - 1, 5), (0, 4), (3, 1)]
        {
            assert_eq!(clusters.read_slots(slot), read_slots, "slot {slot}");
        }
        assert_eq!(clusters.read_slots(5_000), clusters.sizes.oblivious as u64);
    }

    /// The largest are kept, and grow when a lookup comes upon more of their slots.
    #[test]
    fn the_largest_clusters_are_kept() {
        let mut clusters = with(0.65, &[(10, 20), (100, 105), (200, 230), (300, 302)]);
        let kept = |clusters: &Clusters| clusters.by_length.iter().copied().collect::<Vec<_>>();
        assert_eq!(kept(&clusters), [(5, 105), (10, 20), (30, 230)]);
        clusters.note(99, 105);
        clusters.note(15, 20);
        clusters.note(400, 407);
        clusters.note(500, 500);
        assert_eq!(kept(&clusters), [(5, 105), (10, 20), (30, 230)], "nothing was applied yet");
        clusters.apply();
        assert_eq!(kept(&clusters), [(7, 407), (10, 20), (30, 230)]);
        assert_eq!(clusters.by_end.len(), 3);
    }

    /// The paper's figure 13, in words: far before a cluster the size is that without a hint, a READ that would end
    /// in the cluster ends before it, and right before it the READ goes up to its end.
    #[test]
    fn a_cluster_ahead_changes_the_size_of_reads_near_it() {
        for fill in [0.25, 0.65] {
            let mut clusters = with(fill, &[(1_000, 1_010)]);
            let oblivious = clusters.sizes.oblivious as u64;
            assert_eq!(clusters.read_slots(1_000 - 200), oblivious, "{fill}");
            assert_eq!(clusters.read_slots(1_011), oblivious, "{fill}");
            assert_eq!(clusters.read_slots(1_000 - 2), 13, "{fill}: up to the empty slot");
            let before = clusters.read_slots(1_000 - 20);
            assert!(before <= 20 && before <= oblivious, "{fill}: {before} slots, {oblivious} without a hint");
        }
    }
}
