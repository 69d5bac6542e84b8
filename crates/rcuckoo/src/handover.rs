//! Changes that were begun in place and handed over: what a client remembers of the last one.
//!
//! Invariant: a [`Rest`] says nothing but its number. A change goes on from where the client itself remembers it, and
//! only under that number and with that key. Whatever else is called its rest begins anew: nobody's locks or samples
//! are taken for somebody else's.

use crate::in_place::{Begun, Stage};
use crate::mutate::Change;
use crate::{Client, RowPair};

/// What is left of a change: for [`Client::finish`] of the client that handed it over, with the same key and change.
/// Where the change stands is the client's to know.
#[derive(Debug)]
pub struct Rest(u64);

impl Rest {
    /// All of it: the number of no change.
    pub(crate) const ALL: Rest = Rest(0);
}

/// The change that a client handed over last.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    /// Changes handed over so far.
    number: u64,
    /// Of the key of the change begun last.
    digest: u64,
    stage: Stage,
}

impl Handover {
    /// Forgets the last change: that of a key with `digest` begins.
    #[inline(always)]
    pub(crate) fn begin(&mut self, digest: u64) {
        self.digest = digest;
        self.stage = Stage::default();
    }

    /// Remembers how far the change begun last came.
    pub(crate) fn hand_over(&mut self, stage: Stage) -> Begun {
        self.number += 1;
        self.stage = stage;
        Begun::Rest(Rest(self.number))
    }
}

impl Client {
    /// How far `change` on a key of `pair` with `digest` came, if `rest` is its rest and it stands there still. What
    /// was handed over is forgotten.
    pub(crate) fn resume(&mut self, rest: Rest, digest: u64, pair: RowPair, change: &Change<'_>) -> Stage {
        let stage = std::mem::take(&mut self.handover.stage);
        let is_its_rest = rest.0 == self.handover.number && digest == self.handover.digest;
        if is_its_rest && self.stands_at(stage, pair, change) { stage } else { Stage::Beginning }
    }

    /// Whether a change that came to `stage` still stands there: not if the client did something else since, which gave
    /// the locks back, nor if its extent is another. Without both locks and both rows a key could be missed, or
    /// inserted twice; without its extent written, a row would point to nothing. // [R-LOCK-7] [R-EXTENT-1]
    fn stands_at(&self, stage: Stage, pair: RowPair, change: &Change<'_>) -> bool {
        let is_at_hand = |row| self.journal.holds_row(&self.table, row) && self.window.place(row).is_some();
        let is_written = change.extent().is_none_or(|write| self.written == Some(write.extent.generation));
        let goes_on = is_written && self.journal.lost.is_none() && self.journal.is_landed();
        match stage {
            Stage::Beginning => true,
            Stage::Locked => goes_on && is_at_hand(pair.first) && is_at_hand(pair.second),
            Stage::Contended(_) => goes_on,
        }
    }
}
