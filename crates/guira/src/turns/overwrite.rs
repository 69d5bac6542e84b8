//! Changes that overwrite whatever value a key has, and what becomes of those that nobody saw. // [R-LOCK-8]

use guira_rcuckoo::Outcome;

/// A change that depends on nothing but whether the key exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overwrite {
    Put,
    Update,
}

/// Changes of one key that waited while another one was carried out, in an order that could have been: updates, then
/// puts, then the one that was carried out. All of them were under way when it took effect, and nobody saw the key
/// between two of them.
#[derive(Debug)]
pub(super) struct Overwritten {
    /// What the one that was carried out did to the key.
    outcome: Outcome,
    /// Whether one of the puts before it was told that the key was new.
    is_inserted: bool,
}

impl Overwritten {
    /// By a put or an update that had this outcome.
    pub(super) fn by(outcome: Outcome) -> Overwritten {
        Overwritten { outcome, is_inserted: false }
    }

    /// What a change is answered that came right before; nothing if it could not have.
    pub(super) fn answer(&mut self, change: Overwrite) -> Option<Outcome> {
        match (self.outcome, change) {
            // The key existed before all of them.
            (Outcome::Replaced, _) => Some(Outcome::Replaced),
            // It did not, when the updates came.
            (Outcome::Inserted | Outcome::Missing, Overwrite::Update) => Some(Outcome::Missing),
            // The first put made it.
            (Outcome::Inserted, Overwrite::Put) => {
                let answer = if self.is_inserted { Outcome::Replaced } else { Outcome::Inserted };
                self.is_inserted = true;
                Some(answer)
            }
            // After a put, no update would have missed it.
            (Outcome::Missing, Overwrite::Put) => None,
            (Outcome::Removed | Outcome::Exists | Outcome::Different, _) => None,
        }
    }

    /// What the change that was carried out is answered, as the last of all.
    pub(super) fn last(&self) -> Outcome {
        if self.is_inserted { Outcome::Replaced } else { self.outcome }
    }
}

#[cfg(test)]
mod tests {
    use guira_check::history::{Answer, Call};

    use super::*;

    const KINDS: [Overwrite; 2] = [Overwrite::Put, Overwrite::Update];
    const MOST: u32 = 4;

    fn call(change: Overwrite, value: u64) -> Call {
        match change {
            Overwrite::Put => Call::Put(value),
            Overwrite::Update => Call::Update(value),
        }
    }

    fn answer(change: Overwrite, outcome: Outcome) -> Answer {
        match (change, outcome) {
            (Overwrite::Put, Outcome::Inserted) => Answer::Inserted,
            (Overwrite::Put, Outcome::Replaced) => Answer::Replaced,
            (Overwrite::Update, Outcome::Replaced) => Answer::Done,
            (Overwrite::Update, Outcome::Missing) => Answer::Missing,
            other => panic!("{other:?}"),
        }
    }

    fn outcome(change: Overwrite, exists: bool) -> Outcome {
        match (change, exists) {
            (_, true) => Outcome::Replaced,
            (Overwrite::Put, false) => Outcome::Inserted,
            (Overwrite::Update, false) => Outcome::Missing,
        }
    }

    /// Whether some order of `told` ends in a state in which the last of all is answered so.
    fn is_possible(state: Option<u64>, told: &[(Call, Answer)], last: (Call, Answer)) -> bool {
        if told.is_empty() {
            return last.0.step(state, last.1).is_some();
        }
        (0..told.len()).any(|next| {
            let mut rest = told.to_vec();
            let (call, answer) = rest.swap_remove(next);
            call.step(state, answer).is_some_and(|after| is_possible(after, &rest, last))
        })
    }

    /// Up to four changes that wait, of both kinds: what they are told can have been, with the change that was carried
    /// out as the last of them, so that its value is the one that is found.
    #[test]
    fn answers_are_those_of_an_order_that_ends_with_what_was_carried_out() {
        let mut answered = 0;
        for (by, exists) in KINDS.into_iter().flat_map(|by| [(by, false), (by, true)]) {
            for (waiting, kinds) in
                (0..=MOST).flat_map(|waiting| (0..1_u32 << waiting).map(move |kinds| (waiting, kinds)))
            {
                let mut overwritten = Overwritten::by(outcome(by, exists));
                let mut told = Vec::new();
                for i in 0..waiting {
                    let change = KINDS[(kinds >> i & 1) as usize];
                    let Some(outcome) = overwritten.answer(change) else { continue };
                    told.push((call(change, u64::from(i)), answer(change, outcome)));
                }
                answered += told.len();
                let last = (call(by, 99), answer(by, overwritten.last()));
                assert!(is_possible(exists.then_some(50), &told, last), "{told:?}, then {last:?}");
            }
        }
        // All but the puts behind an update that finds nothing, which are half of those behind it.
        let waiting: u32 = (0..=MOST).map(|waiting| waiting << waiting).sum();
        assert_eq!(answered as u32, 3 * waiting + waiting / 2);
    }
}
