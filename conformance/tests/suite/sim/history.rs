//! What the keys of a run may answer: each has one writer, so its states are a sequence, and a lookup must find the
//! sequence no further back than any operation that ended before it began.

/// The states of every key so far.
#[derive(Debug)]
pub struct History {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    /// The values it was given, or none when it was removed; the first is its state at the beginning.
    states: Vec<State>,
    /// No operation that begins now may see an earlier state.
    floor: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    value: Option<u64>,
    /// The change that was to bring it had no effect.
    is_void: bool,
}

/// A change that began, or the earliest state that a lookup may see.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    key: usize,
    state: usize,
}

impl History {
    /// `keys` keys, none of which exists.
    pub fn new(keys: usize) -> History {
        let key = || Key { states: vec![State { value: None, is_void: false }], floor: 0 };
        History { keys: (0..keys).map(|_| key()).collect() }
    }

    /// How many keys there are.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The writer of `key` begins to change it.
    pub fn begin_change(&mut self, key: usize, value: Option<u64>) -> Begun {
        let states = &mut self.keys[key].states;
        states.push(State { value, is_void: false });
        Begun { key, state: states.len() - 1 }
    }

    /// The change is acknowledged.
    pub fn changed(&mut self, change: Begun) {
        let key = &mut self.keys[change.key];
        key.floor = key.floor.max(change.state);
    }

    /// The change failed without effect.
    pub fn unchanged(&mut self, change: Begun) {
        self.keys[change.key].states[change.state].is_void = true;
    }

    /// A lookup begins.
    pub fn begin_lookup(&self, key: usize) -> Begun {
        Begun { key, state: self.keys[key].floor }
    }

    /// Whether the writer of the key of `lookup` ever gave it `value`, or began to.
    pub fn was_given(&self, lookup: Begun, value: Option<u64>) -> bool {
        self.keys[lookup.key].states.iter().any(|state| state.value == value)
    }

    /// The lookup ended and found `value`.
    ///
    /// # Errors
    /// No linearizable key could have answered so.
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
}
