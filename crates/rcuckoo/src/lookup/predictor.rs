//! A predictor of the row that has a key, for lookups whose READs travel: one READ instead of two. [R-READ-10]
//!
//! Most keys are in their primary row, so the predictor remembers only the others: a tag of 8 bits for each key that
//! was found in its secondary row, at a place that follows from the key's digest. It is a hint. A row that was
//! predicted wrongly costs a second round trip, in which both rows are read as without a predictor, so answers never
//! depend on it.
//!
//! A lookup of a key with a tag reads the secondary row alone. Any other lookup guesses, as [`RowGuess`] says: it reads
//! the primary row alone as long as at most one lookup in [`LOOKUPS_PER_MISPREDICTION`] needs a second round trip, and
//! otherwise both rows; or it always reads one row, and the other one alone if the first does not have the key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use guira_layout::RowId;

use super::verdict::WhichRow;
use crate::RowPair;

/// Lookups that pay for one misprediction: at most 2 % of lookups take a second round trip.
const LOOKUPS_PER_MISPREDICTION: u32 = 50;
/// The largest credit: for as many mispredictions in a row.
const MAX_CREDIT: u32 = 8 * LOOKUPS_PER_MISPREDICTION;
/// A tag of another key is replaced once in this many attempts: popular keys come back, and others do not.
const ATTEMPTS_PER_REPLACEMENT: u32 = 4;
/// The value of a place without a tag.
const NO_TAG: u8 = 0;
/// Bits of a tag.
const TAG_BITS: u32 = 8;

/// The tags of keys that were found in their secondary rows. The readers and clients of a process share it; 64 KiB for
/// each of them is a good size.
#[derive(Debug)]
pub struct RowPredictor {
    tags: Box<[AtomicU8]>,
}

impl Clone for RowPredictor {
    fn clone(&self) -> RowPredictor {
        let copy = |tag: &AtomicU8| AtomicU8::new(tag.load(Ordering::Relaxed));
        RowPredictor { tags: self.tags.iter().map(copy).collect() }
    }
}

/// The way in which lookups treat a key of which their predictor knows nothing. [R-READ-10]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RowGuess {
    /// Reads the primary row alone, as long as at most 2 % of lookups read a row in vain; otherwise both rows. Whoever
    /// reads a row in vain reads both rows then: a hit takes at most 2 round trips, and a miss 1 more than without a
    /// predictor.
    #[default]
    Rationed,
    /// Always reads the primary row alone. Whoever reads a row in vain reads the other one alone: the fewest messages,
    /// for up to one hit in six that takes 2 round trips. A miss takes 2 more than without a predictor.
    Always,
}

/// A reader's use of a predictor.
#[derive(Debug)]
pub(crate) struct Prediction {
    predictor: Arc<RowPredictor>,
    /// Lookups without a misprediction, less those that mispredictions cost.
    credit: u32,
    /// Attempts to replace the tag of another key.
    attempts: u32,
}

impl RowPredictor {
    /// Creates a predictor of at most `bytes` bytes, at least 1: the next lower power of two.
    pub fn new(bytes: usize) -> RowPredictor {
        let places = 1 << bytes.max(1).ilog2();
        RowPredictor { tags: (0..places).map(|_| AtomicU8::new(NO_TAG)).collect() }
    }

    /// Records that a key with this digest is in `row` of `pair`, its rows; `attempt` is a number of this call. Lookups
    /// do this by themselves.
    pub fn learn(&self, digest: u64, pair: RowPair, row: RowId, attempt: u32) {
        let which = if row == pair.first { WhichRow::First } else { WhichRow::Second };
        self.note(digest, which, || attempt.is_multiple_of(ATTEMPTS_PER_REPLACEMENT));
    }

    /// Whether the key with this digest is expected in its secondary row.
    pub fn expects_second(&self, digest: u64) -> bool {
        let (place, tag) = self.place(digest);
        place.load(Ordering::Relaxed) == tag
    }

    /// Sets or clears the tag of a key that was found in a row. `may_replace` says whether a tag of another key may be
    /// replaced.
    #[inline]
    fn note(&self, digest: u64, which: WhichRow, may_replace: impl FnOnce() -> bool) {
        let (place, tag) = self.place(digest);
        let known = place.load(Ordering::Relaxed);
        match which {
            WhichRow::Second if known != tag && (known == NO_TAG || may_replace()) => {
                place.store(tag, Ordering::Relaxed);
            }
            WhichRow::First if known == tag => place.store(NO_TAG, Ordering::Relaxed),
            WhichRow::First | WhichRow::Second => {}
        }
    }

    /// Returns the place of a key, and its tag.
    #[inline]
    fn place(&self, digest: u64) -> (&AtomicU8, u8) {
        let tag = (digest >> (u64::BITS - TAG_BITS)) as u8;
        let index = (digest << TAG_BITS >> 1) as usize >> (usize::BITS - 1 - self.tags.len().ilog2());
        (&self.tags[index & (self.tags.len() - 1)], tag.max(NO_TAG + 1))
    }
}

impl Prediction {
    /// Creates the use of `predictor` by one reader.
    pub(crate) fn new(predictor: Arc<RowPredictor>) -> Prediction {
        Prediction { predictor, credit: LOOKUPS_PER_MISPREDICTION, attempts: 0 }
    }

    /// Returns the row to read alone, if the key is expected in it. `None`: both rows are to be read.
    #[inline]
    pub(crate) fn row(&self, digest: u64, guess: RowGuess) -> Option<WhichRow> {
        if self.predictor.expects_second(digest) {
            return Some(WhichRow::Second);
        }
        (guess == RowGuess::Always || self.credit >= LOOKUPS_PER_MISPREDICTION).then_some(WhichRow::First)
    }

    /// Records that a lookup found the key with this digest.
    #[inline]
    pub(crate) fn found(&mut self, digest: u64, which: WhichRow) {
        self.credit = (self.credit + 1).min(MAX_CREDIT);
        let attempts = &mut self.attempts;
        self.predictor.note(digest, which, || {
            *attempts = attempts.wrapping_add(1);
            attempts.is_multiple_of(ATTEMPTS_PER_REPLACEMENT)
        });
    }

    /// Records that the row that was predicted, `which`, does not have the key: a tag that said so goes, because a key
    /// that was removed is found in no row.
    pub(crate) fn missed(&mut self, digest: u64, which: WhichRow) {
        self.credit = self.credit.saturating_sub(LOOKUPS_PER_MISPREDICTION);
        if which == WhichRow::Second {
            self.predictor.note(digest, WhichRow::First, || false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(key: u64) -> u64 {
        guira_fabric::SplitMix64::nth(5, key)
    }

    #[test]
    fn places_and_tags_are_spread() {
        for bytes in [1, 2, 100, 1 << 12] {
            let predictor = RowPredictor::new(bytes);
            assert!(predictor.tags.len() <= bytes && predictor.tags.len().is_power_of_two());
            let mut used = vec![false; predictor.tags.len()];
            for key in 0..20 * bytes as u64 {
                let (place, tag) = predictor.place(digest(key));
                assert_ne!(tag, NO_TAG);
                let index = predictor.tags.iter().position(|other| std::ptr::eq(other, place));
                used[index.expect("a place of the predictor")] = true;
            }
            assert!(used.iter().all(|used| *used), "{bytes}");
        }
    }

    /// [R-READ-10] A key that was found in its secondary row is expected there until it is found elsewhere; others are
    /// expected in their primary row.
    #[test]
    fn keys_are_expected_where_they_were_found() {
        let mut prediction = Prediction::new(Arc::new(RowPredictor::new(1 << 16)));
        for key in 0..100 {
            assert_eq!(prediction.row(digest(key), RowGuess::Rationed), Some(WhichRow::First));
            prediction.found(digest(key), WhichRow::Second);
            assert_eq!(prediction.row(digest(key), RowGuess::Rationed), Some(WhichRow::Second));
        }
        for key in 0..100 {
            prediction.found(digest(key), WhichRow::First);
            assert_eq!(prediction.row(digest(key), RowGuess::Rationed), Some(WhichRow::First));
        }
    }

    /// [R-READ-10] A key that was removed from its secondary row, and is found nowhere, does not stay expected there.
    #[test]
    fn a_key_that_is_found_nowhere_is_not_expected() {
        let mut prediction = Prediction::new(Arc::new(RowPredictor::new(1 << 16)));
        for _ in 0..1_000 {
            prediction.found(digest(1), WhichRow::Second);
        }
        let mut in_vain = 0;
        for _ in 0..1_000 {
            if let Some(which) = prediction.row(digest(1), RowGuess::Rationed) {
                in_vain += 1;
                prediction.missed(digest(1), which);
            }
        }
        assert!(in_vain <= MAX_CREDIT / LOOKUPS_PER_MISPREDICTION + 1, "{in_vain}");
    }

    /// [R-READ-10] Rows are guessed for at most one wrong guess in 50 lookups. Here each is followed by a wrong tag.
    #[test]
    fn mispredictions_are_rationed() {
        let mut prediction = Prediction::new(Arc::new(RowPredictor::new(1)));
        let (mut lookups, mut missed) = (0, 0);
        // Keys that are never where they are expected.
        for _ in 0..100_000 {
            lookups += 1;
            assert!(prediction.row(digest(0), RowGuess::Always).is_some());
            let which = prediction.row(digest(0), RowGuess::Rationed);
            if let Some(which) = which {
                missed += 1;
                prediction.missed(digest(0), which);
            }
            prediction
                .found(digest(0), if which == Some(WhichRow::First) { WhichRow::Second } else { WhichRow::First });
        }
        assert!(missed <= 2 * lookups / LOOKUPS_PER_MISPREDICTION + 2, "{missed} of {lookups}");
        assert!(missed > lookups / LOOKUPS_PER_MISPREDICTION, "{missed} of {lookups}");
    }
}
