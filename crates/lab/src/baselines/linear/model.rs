//! The size of READs that makes lookups cheapest: the expected READs of a lookup, times the cost of a READ.
//!
//! Everything is computed from the numbers of slots and records, in logarithms, so that it holds for hundreds of millions of
//! slots.
//!
//! Source: the paper on linear probing with variable-sized READs, section 3; numbers of equations are its.

/// The costs of READs, in the paper's terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The time of a READ without bytes, c, in nanoseconds.
    pub read_ns: f64,
    /// The time of a byte on the link, α, in nanoseconds.
    pub byte_ns: f64,
    /// READs without bytes that the network carries in a second, ρ0.
    pub reads_per_s: f64,
}

impl Costs {
    /// The costs that the authors measured on ConnectX-5 EDR cards (section 5.1).
    pub const PRINTED: Costs = Costs { read_ns: 1_290.0, byte_ns: 0.08, reads_per_s: 87.17e6 };
}

/// Bytes of a READ without bytes, h.
const READ_HEADER_BYTES: f64 = 30.0;
/// The part of lookups whose first empty slot may lie beyond the last one that is looked at.
const REST: f64 = 1e-12;
/// The longest READ that is considered, in slots: 1 MiB of slots of a word.
const MOST_READ_SLOTS: usize = 1 << 17;

/// The distances from a random slot to the first empty one, in a table.
#[derive(Clone, Debug)]
pub struct Distances {
    /// By number of slots k, the probability that none of the first k is empty: 1 − C_k, from k = 0 on.
    beyond: Vec<f64>,
}

impl Distances {
    /// Computes the distances in a table of `slots` slots with `records` records, which are fewer. [equations 6 to 9]
    ///
    /// # Panics
    /// If the table has no empty slot.
    pub fn of(slots: u64, records: u64) -> Distances {
        assert!(records < slots, "{records} records leave no slot of {slots} empty");
        let (slots, records) = (slots as f64, records as f64);
        // P_k is the probability that the first empty slot is k slots ahead: P_0 = 1 − N/M, and P_k = P_k−1 − t_k−1, where
        // t_i = M^−N · g(M, N, i) = (N over i) · (i+1)^(i−1) · (M−N−1) · (M−i−1)^(N−i−1) / M^N.
        let (mut ahead, mut left, mut beyond) = (1.0 - records / slots, 1.0_f64, vec![1.0]);
        // The logarithm of (N over i) / M^i.
        let mut choices = 0.0_f64;
        let mut i = 0.0_f64;
        while left > REST && i < records && ahead > 0.0 {
            left = (left - ahead).max(0.0);
            beyond.push(left);
            let rest = ((slots - records - 1.0) / slots).ln() + (records - i - 1.0) * (-(i + 1.0) / slots).ln_1p();
            ahead -= (choices + (i - 1.0) * (i + 1.0).ln() + rest).exp();
            choices += ((records - i) / (slots * (i + 1.0))).ln();
            i += 1.0;
        }
        beyond.push(0.0);
        Distances { beyond }
    }

    /// Returns the probability that the first empty slot is among the first `slots`: C_k.
    pub fn within(&self, slots: usize) -> f64 {
        1.0 - self.beyond.get(slots).copied().unwrap_or(0.0)
    }

    /// Returns the expected READs of `read_slots` slots until one brings an empty slot: E\[X(R)\]. [equations 4, 5]
    ///
    /// # Panics
    /// If a READ has no slot.
    pub fn expected_reads(&self, read_slots: usize) -> f64 {
        self.beyond.iter().step_by(read_slots).sum()
    }

    /// Returns the expected cost of a lookup by READs of `read_slots` slots of `slot_bytes` bytes, in nanoseconds:
    /// E\[X(R)\] · T(R). [equations 1, 3]
    pub fn cost_ns(&self, read_slots: usize, slot_bytes: u64, costs: &Costs) -> f64 {
        let bytes = read_slots as f64 * slot_bytes as f64;
        self.expected_reads(read_slots) * (costs.read_ns + costs.byte_ns * bytes)
    }

    /// Returns the slots of the READs that make a lookup cheapest, without a bound of the bandwidth. [equation 1]
    pub fn cheapest(&self, slot_bytes: u64, costs: &Costs) -> usize {
        let cost = |read_slots: &usize| self.cost_ns(*read_slots, slot_bytes, costs);
        let most = self.beyond.len().clamp(1, MOST_READ_SLOTS);
        (1..=most).min_by(|one, other| cost(one).total_cmp(&cost(other))).unwrap_or(1)
    }
}

/// Returns the slots of the READs that fill the link at the highest rate of READs. [equation 2] It is rounded to the nearest
/// number, as in the paper's tables, and 1 at least.
pub fn bound(slot_bytes: u64, costs: &Costs) -> usize {
    let slot_bytes = slot_bytes as f64;
    let reads_per_s = costs.reads_per_s * READ_HEADER_BYTES / (READ_HEADER_BYTES + slot_bytes);
    let slots = 1e9 / costs.byte_ns / (slot_bytes * reads_per_s);
    (slots.round() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of the paper's tables.
    const RECORDS: u64 = 120 << 20;

    fn at(load: f64) -> Distances {
        Distances::of((RECORDS as f64 / load) as u64, RECORDS)
    }

    /// Counts, over all ways to choose the homes of `records` records, from how many slots the first empty one is k slots
    /// ahead.
    fn counted(slots: usize, records: u32) -> Vec<f64> {
        let mut ahead = vec![0_u64; slots + 1];
        for ways in 0..slots.pow(records) {
            let (mut full, mut rest) = (vec![false; slots], ways);
            for _ in 0..records {
                let mut slot = rest % slots;
                while full[slot] {
                    slot = (slot + 1) % slots;
                }
                (full[slot], rest) = (true, rest / slots);
            }
            for start in 0..slots {
                let distance = (0..).find(|distance| !full[(start + distance) % slots]).expect("one is empty");
                ahead[distance] += 1;
            }
        }
        let all = (slots.pow(records) * slots) as f64;
        ahead.into_iter().map(|count| count as f64 / all).collect()
    }

    /// Every small table: the formula gives the exact probabilities.
    #[test]
    fn distances_are_those_of_all_small_tables() {
        for slots in 2..=6 {
            for records in 0..slots as u32 {
                let distances = Distances::of(slots as u64, records.into());
                let (mut within, counted) = (0.0, counted(slots, records));
                for (distance, share) in counted.iter().enumerate() {
                    within += share;
                    let computed = distances.within(distance + 1);
                    assert!((computed - within).abs() < 1e-12, "{records} in {slots}, {distance}: {computed} {within}");
                }
            }
        }
    }

    /// Knuth's mean of an unsuccessful search in a large table: (1 + 1/(1−α)²)/2 slots.
    #[test]
    fn the_mean_distance_is_that_of_an_unsuccessful_search() {
        for slots in [1 << 18, 1 << 29] {
            for load in [0.25, 0.5, 0.8, 0.9, 0.95] {
                let distances = Distances::of(slots, (slots as f64 * load) as u64);
                let (mean, known) = (distances.expected_reads(1), (1.0 + (1.0 - load).powi(-2)) / 2.0);
                assert!((mean / known - 1.0).abs() < 0.01, "{load} of {slots}: {mean} slots, not {known}");
            }
        }
    }

    /// The paper's bounds of Table 3, and the minima of its formula, which are not those of Table 1: the curve is flat, and
    /// the sizes of the paper cost little more.
    #[test]
    fn read_sizes_are_those_of_the_formula() {
        assert_eq!([8, 32, 128].map(|slot_bytes| bound(slot_bytes, &Costs::PRINTED)), [23, 9, 6]);
        let loads = [0.25, 0.5, 0.65, 0.8, 0.85, 0.9, 0.95];
        let minima = loads.map(|load| at(load).cheapest(8, &Costs::PRINTED));
        assert_eq!(minima, [8, 19, 36, 88, 134, 235, 570]);
        for (load, printed) in loads.into_iter().zip([5, 13, 29, 96, 174, 201, 547]) {
            let distances = at(load);
            let best = distances.cost_ns(distances.cheapest(8, &Costs::PRINTED), 8, &Costs::PRINTED);
            let theirs = distances.cost_ns(printed, 8, &Costs::PRINTED);
            assert!((1.0..1.02).contains(&(theirs / best)), "{load}: {}", theirs / best);
        }
    }
}
