//! Exact counts of what a lane has sent and received.

use crate::{Verb, WORD_BYTES};

/// Counts of verbs by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbCounts {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// CAS, masked or not.
    pub swaps: u64,
    /// FETCH-ADDs.
    pub adds: u64,
}

/// Counters of one lane. They never decrease; subtract two samples with [`Traffic::since`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Batches posted: network round trips.
    pub round_trips: u64,
    /// Messages by verb.
    pub verbs: VerbCounts,
    /// Payload bytes from the memory node (READ data and atomics' results).
    pub bytes_in: u64,
    /// Payload bytes to the memory node (WRITE data and atomics' operands).
    pub bytes_out: u64,
    /// Batches that were posted again because another client held a lock or a row did not verify.
    pub retries: u64,
}

/// Header bytes of a message on the wire, both directions together, by the accounting of the paper's authors:
/// READ 74 out and 62 back, WRITE 82 and 54, CAS 86 and 70 (16 and 8 of them payload), FETCH-ADD 78 and 70.
const READ_OVERHEAD_BYTES: u64 = 74 + 62;
const WRITE_OVERHEAD_BYTES: u64 = 82 + 54;
const SWAP_OVERHEAD_BYTES: u64 = 86 - 16 + 70 - 8;
const ADD_OVERHEAD_BYTES: u64 = 78 - 8 + 70 - 8;

impl Traffic {
    /// Counts `batch` as one round trip.
    #[inline(always)]
    pub fn count(&mut self, batch: &[Verb<'_>]) {
        self.round_trips += 1;
        for verb in batch {
            match verb {
                Verb::Read { into, .. } => self.add_read(into.len()),
                Verb::Write { words, .. } => self.count_write(words.len()),
                Verb::Cas { .. } => {
                    self.verbs.swaps += 1;
                    self.bytes_out += 2 * WORD_BYTES;
                    self.bytes_in += WORD_BYTES;
                }
                Verb::MaskedCas { .. } => {
                    self.verbs.swaps += 1;
                    self.bytes_out += 4 * WORD_BYTES;
                    self.bytes_in += WORD_BYTES;
                }
                Verb::FetchAdd { .. } => {
                    self.verbs.adds += 1;
                    self.bytes_out += WORD_BYTES;
                    self.bytes_in += WORD_BYTES;
                }
            }
        }
    }

    /// Counts a batch of one READ of `words` words as one round trip.
    #[inline(always)]
    pub fn count_read(&mut self, words: usize) {
        self.round_trips += 1;
        self.add_read(words);
    }

    /// Counts a WRITE of `words` words, which is part of a round trip that is counted elsewhere.
    #[inline(always)]
    pub fn count_write(&mut self, words: usize) {
        self.verbs.writes += 1;
        self.bytes_out += words as u64 * WORD_BYTES;
    }

    #[inline(always)]
    fn add_read(&mut self, words: usize) {
        self.verbs.reads += 1;
        self.bytes_in += words as u64 * WORD_BYTES;
    }

    /// Returns the number of messages of all kinds.
    pub fn messages(&self) -> u64 {
        self.verbs.reads + self.verbs.writes + self.verbs.swaps + self.verbs.adds
    }

    /// Returns the payload bytes of both directions.
    pub fn payload_bytes(&self) -> u64 {
        self.bytes_in + self.bytes_out
    }

    /// Returns the bytes on the wire, headers included, by the accounting of the paper's authors.
    pub fn wire_bytes(&self) -> u64 {
        self.payload_bytes()
            + self.verbs.reads * READ_OVERHEAD_BYTES
            + self.verbs.writes * WRITE_OVERHEAD_BYTES
            + self.verbs.swaps * SWAP_OVERHEAD_BYTES
            + self.verbs.adds * ADD_OVERHEAD_BYTES
    }

    /// Returns the difference to `earlier`, an older sample of the same lane.
    pub fn since(&self, earlier: &Traffic) -> Traffic {
        Traffic {
            round_trips: self.round_trips - earlier.round_trips,
            verbs: VerbCounts {
                reads: self.verbs.reads - earlier.verbs.reads,
                writes: self.verbs.writes - earlier.verbs.writes,
                swaps: self.verbs.swaps - earlier.verbs.swaps,
                adds: self.verbs.adds - earlier.verbs.adds,
            },
            bytes_in: self.bytes_in - earlier.bytes_in,
            bytes_out: self.bytes_out - earlier.bytes_out,
            retries: self.retries - earlier.retries,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Addr;

    #[test]
    fn every_kind_of_verb_is_counted() {
        let mut into = [0; 4];
        let (mut found, mut found2) = (0, 0);
        let words = [1, 2];
        let batch = [
            Verb::Read { addr: Addr::main(0), into: &mut into },
            Verb::Write { addr: Addr::main(0), words: &words },
            Verb::Cas { addr: Addr::main(0), compare: 0, swap: 1, found: &mut found },
            Verb::FetchAdd { addr: Addr::main(0), add: 1, found: &mut found2 },
        ];
        let mut traffic = Traffic::default();
        traffic.count(&batch);
        assert_eq!(traffic.round_trips, 1);
        assert_eq!(traffic.messages(), 4);
        assert_eq!((traffic.bytes_in, traffic.bytes_out), (32 + 8 + 8, 16 + 16 + 8));
        // READ 74 + 62 + 32, WRITE 82 + 16 + 54, CAS 86 + 70, FETCH-ADD 78 + 70.
        assert_eq!(traffic.wire_bytes(), (74 + 62 + 32) + (82 + 16 + 54) + (86 + 70) + (78 + 70));
        assert_eq!(traffic.since(&traffic), Traffic::default());
        let (mut by_verb, mut by_words) = (Traffic::default(), Traffic::default());
        by_verb.count(&[Verb::Read { addr: Addr::main(0), into: &mut into }]);
        by_words.count_read(4);
        assert_eq!(by_verb, by_words);
    }
}
