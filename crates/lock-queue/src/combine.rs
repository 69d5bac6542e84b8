//! Write combining: the outcomes of blind writes that were never carried out. [R-LOCK-8]

use guira_rcuckoo::Outcome;

/// A blind write: a change that depends on nothing but whether the key exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlindWrite {
    /// Inserts the key or replaces its value.
    Put,
    /// Replaces the value of a key that exists.
    Update,
}

/// Combines blind writes of one key that waited with the one that was carried out, the leader. Their order is one that
/// could have been: updates, then puts, then the leader. All of them were under way when the leader took effect, and
/// no client saw the key between two of them.
#[derive(Debug)]
pub(crate) struct WriteCombiner {
    /// The leader's effect on the key.
    outcome: Outcome,
    /// Whether one of the puts before the leader has inserted the key.
    is_inserted: bool,
}

impl WriteCombiner {
    /// Starts with the outcome of a put or an update that was carried out.
    pub(crate) fn new(outcome: Outcome) -> WriteCombiner {
        WriteCombiner { outcome, is_inserted: false }
    }

    /// Returns the outcome of a write that came right before the leader; `None` if it cannot have.
    pub(crate) fn combine(&mut self, write: BlindWrite) -> Option<Outcome> {
        match (self.outcome, write) {
            // The key existed before all of them.
            (Outcome::Replaced, _) => Some(Outcome::Replaced),
            // The key did not exist before the puts.
            (Outcome::Inserted | Outcome::Missing, BlindWrite::Update) => Some(Outcome::Missing),
            // The first put inserted the key.
            (Outcome::Inserted, BlindWrite::Put) => {
                let outcome = if self.is_inserted { Outcome::Replaced } else { Outcome::Inserted };
                self.is_inserted = true;
                Some(outcome)
            }
            // After a put, an update would have found the key.
            (Outcome::Missing, BlindWrite::Put) => None,
            (Outcome::Removed | Outcome::Exists | Outcome::Different, _) => None,
        }
    }

    /// Returns the outcome of the leader, as the last of all.
    pub(crate) fn leader_outcome(&self) -> Outcome {
        if self.is_inserted { Outcome::Replaced } else { self.outcome }
    }
}

#[cfg(test)]
mod tests {
    use guira_check::history::{Answer, Call};

    use super::*;

    const KINDS: [BlindWrite; 2] = [BlindWrite::Put, BlindWrite::Update];
    const MAX_WAITING: u32 = 4;

    fn call(change: BlindWrite, value: u64) -> Call {
        match change {
            BlindWrite::Put => Call::Put(value),
            BlindWrite::Update => Call::Update(value),
        }
    }

    fn answer(change: BlindWrite, outcome: Outcome) -> Answer {
        match (change, outcome) {
            (BlindWrite::Put, Outcome::Inserted) => Answer::Inserted,
            (BlindWrite::Put, Outcome::Replaced) => Answer::Replaced,
            (BlindWrite::Update, Outcome::Replaced) => Answer::Done,
            (BlindWrite::Update, Outcome::Missing) => Answer::Missing,
            other => panic!("{other:?}"),
        }
    }

    fn outcome(change: BlindWrite, exists: bool) -> Outcome {
        match (change, exists) {
            (_, true) => Outcome::Replaced,
            (BlindWrite::Put, false) => Outcome::Inserted,
            (BlindWrite::Update, false) => Outcome::Missing,
        }
    }

    /// Whether some order of `calls` ends in a state in which `last` is possible.
    fn is_possible(state: Option<u64>, calls: &[(Call, Answer)], last: (Call, Answer)) -> bool {
        if calls.is_empty() {
            return last.0.step(state, last.1).is_some();
        }
        (0..calls.len()).any(|next| {
            let mut rest = calls.to_vec();
            let (call, answer) = rest.swap_remove(next);
            call.step(state, answer).is_some_and(|after| is_possible(after, &rest, last))
        })
    }

    /// The outcomes of up to four waiting writes of both kinds are those of some order in which the leader comes last,
    /// so that its value is the one that is found.
    #[test]
    fn combined_writes_have_an_order_that_ends_with_the_leader() {
        let mut combined = 0;
        for (by, exists) in KINDS.into_iter().flat_map(|by| [(by, false), (by, true)]) {
            for (waiting, kinds) in
                (0..=MAX_WAITING).flat_map(|waiting| (0..1_u32 << waiting).map(move |kinds| (waiting, kinds)))
            {
                let mut combiner = WriteCombiner::new(outcome(by, exists));
                let mut calls = Vec::new();
                for i in 0..waiting {
                    let change = KINDS[(kinds >> i & 1) as usize];
                    let Some(outcome) = combiner.combine(change) else { continue };
                    calls.push((call(change, u64::from(i)), answer(change, outcome)));
                }
                combined += calls.len();
                let last = (call(by, 99), answer(by, combiner.leader_outcome()));
                assert!(is_possible(exists.then_some(50), &calls, last), "{calls:?}, then {last:?}");
            }
        }
        // All but the puts behind an update that finds no key, which are half of the writes behind it.
        let waiting: u32 = (0..=MAX_WAITING).map(|waiting| waiting << waiting).sum();
        assert_eq!(combined as u32, 3 * waiting + waiting / 2);
    }
}
