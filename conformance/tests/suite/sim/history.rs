//! The answers that the keys of a run may give: each has one writer, so its states are a sequence, and a lookup must
//! not find a state older than any operation that ended before it began has seen.

/// The states of every key so far.
#[derive(Debug)]
pub struct History {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    /// The values it was given, or `None` when it was removed; the first is its initial state.
    states: Vec<State>,
    /// The earliest state that an operation that begins now may see.
    floor: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    value: Option<u64>,
    /// Whether the change to this state had no effect.
    is_void: bool,
}

/// A change in progress, or the earliest state that a lookup may see.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    key: usize,
    state: usize,
}

impl History {
    /// Creates a history of `keys` keys, none of which exists.
    pub fn new(keys: usize) -> History {
        let key = || Key { states: vec![State { value: None, is_void: false }], floor: 0 };
        History { keys: (0..keys).map(|_| key()).collect() }
    }

    /// Returns the number of keys.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Begins a change of `key` by its writer.
    pub fn begin_change(&mut self, key: usize, value: Option<u64>) -> Begun {
        let states = &mut self.keys[key].states;
        states.push(State { value, is_void: false });
        Begun { key, state: states.len() - 1 }
    }

    /// Records that the change is acknowledged.
    pub fn changed(&mut self, change: Begun) {
        let key = &mut self.keys[change.key];
        key.floor = key.floor.max(change.state);
    }

    /// Records that the change failed without effect.
    ///
    /// # Panics
    /// If a lookup has already found its value.
    pub fn unchanged(&mut self, change: Begun) {
        let key = &mut self.keys[change.key];
        assert!(key.floor < change.state, "a change of key {} was seen, and then had no effect", change.key);
        key.states[change.state].is_void = true;
    }

    /// Begins a lookup.
    pub fn begin_lookup(&self, key: usize) -> Begun {
        Begun { key, state: self.keys[key].floor }
    }

    /// Whether the writer of the lookup's key ever gave it `value`, or began to.
    pub fn was_given(&self, lookup: Begun, value: Option<u64>) -> bool {
        self.keys[lookup.key].states.iter().any(|state| state.value == value)
    }

    /// Records that the lookup ended and found `value`.
    ///
    /// # Errors
    /// If no linearizable key could have given this answer.
    pub fn found(&mut self, lookup: Begun, value: Option<u64>) -> Result<(), String> {
        let key = &mut self.keys[lookup.key];
        let states = &key.states[lookup.state..];
        let Some(after) = states.iter().position(|state| state.value == value && !state.is_void) else {
            return Err(format!("key {} was found to be {value:x?}, but can only be one of {states:x?}", lookup.key));
        };
        key.floor = key.floor.max(lookup.state + after);
        Ok(())
    }
}

#[test]
fn a_key_never_answers_with_an_older_state_than_before() {
    let mut history = History::new(1);
    let early = history.begin_lookup(0);
    let first = history.begin_change(0, Some(1));
    let middle = history.begin_lookup(0);
    history.changed(first);
    let second = history.begin_change(0, Some(2));
    assert_eq!(history.found(history.begin_lookup(0), Some(1)), Ok(()), "the second change is under way");
    assert_eq!(history.found(early, None), Ok(()), "the lookup began before the first change");
    assert_eq!(history.found(middle, Some(2)), Ok(()));
    for wrong in [Some(1), None, Some(3)] {
        assert!(history.found(history.begin_lookup(0), wrong).is_err(), "{wrong:?} after the second value was seen");
    }
    assert_eq!(history.found(history.begin_lookup(0), Some(2)), Ok(()));
    history.changed(second);
    let third = history.begin_change(0, None);
    history.unchanged(third);
    assert!(history.found(history.begin_lookup(0), None).is_err(), "the removal had no effect");
    let given = [Some(1), None, Some(3)].map(|value| history.was_given(early, value));
    assert_eq!(given, [true, true, false]);
    let fourth = history.begin_change(0, Some(4));
    assert_eq!(history.found(history.begin_lookup(0), Some(4)), Ok(()));
    let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.unchanged(fourth)));
    assert!(seen.is_err(), "a lookup found what had no effect");
}
