//! Splitters, and the clients that recover them.

use super::{Row, SPLITTERS, Split, State, Without, Wrong, child};

/// A step of a splitter, in the order of R-GROW-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The child's memory is made to exist, or there is nothing left to split.
    Start,
    Lock,
    /// A lock stayed taken for too long: those that it has are released before it begins again.
    GiveUp,
    Check,
    Child,
    Seal,
    Parent,
    Map,
    Retire,
    Release,
    End,
    Dead,
}

/// The state of a splitter: which of its splits, which part of its step, and the rows that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Splitting {
    split: u8,
    pub step: Step,
    part: u8,
    /// The parent's and the child's image of each row.
    images: Option<[(Row, Row); 2]>,
}

impl Splitting {
    pub const START: Splitting = Splitting { split: 0, step: Step::Start, part: 0, images: None };
}

/// The state of a client that recovers a splitter, in the order of R-GROW-10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recovering {
    Idle,
    Load(usize),
    Row(usize, usize),
    Write(usize, usize, Row),
    Map(usize, usize),
    Retire(usize),
    Release(usize),
    Dead,
}

impl Recovering {
    fn splitter(self) -> Option<usize> {
        match self {
            Recovering::Idle | Recovering::Dead => None,
            Recovering::Load(splitter) | Recovering::Row(splitter, _) | Recovering::Write(splitter, ..) => {
                Some(splitter)
            }
            Recovering::Map(splitter, _) | Recovering::Retire(splitter) | Recovering::Release(splitter) => {
                Some(splitter)
            }
        }
    }
}

impl Split {
    fn locks_of_split(&self, segment: u8, depth: u8) -> Vec<usize> {
        let both = if self.without == Without::ChildLocks { &[segment][..] } else { &[segment, child(segment, depth)] };
        let rows = both.iter().flat_map(|segment| [2 * usize::from(*segment), 2 * usize::from(*segment) + 1]);
        let mut locks: Vec<usize> = rows.map(|row| self.lock_of(row)).collect();
        locks.sort_unstable();
        locks.dedup();
        locks
    }

    /// Returns the order of the steps between the check and the release.
    fn order(&self) -> &'static [Step] {
        use Step::{Child, Map, Parent, Retire, Seal};
        match self.without {
            Without::ChildBeforeSeal => &[Seal, Child, Parent, Map, Retire],
            Without::ChildFirst => &[Seal, Parent, Child, Map, Retire],
            Without::RowsBeforeMap => &[Map, Child, Seal, Parent, Retire],
            Without::Record => &[Child, Parent, Map],
            Without::RowsBeforeRetirement => &[Child, Seal, Retire, Parent, Map],
            _ => &[Child, Seal, Parent, Map, Retire],
        }
    }

    fn after(&self, step: Step) -> Step {
        let mut order = self.order().iter().skip_while(|other| **other != step).skip(1);
        order.next().copied().unwrap_or(Step::Release)
    }

    /// A splitter may die before each of its steps, as long as it has any.
    pub fn die(&self, state: &State, number: usize) -> Vec<State> {
        let at = state.splitters[number];
        let is_over = matches!(at.step, Step::Start | Step::End | Step::Dead);
        if is_over || usize::from(at.split) >= self.splits[number].len() {
            return Vec::new();
        }
        let mut state = state.clone();
        state.splitters[number] = Splitting { step: Step::Dead, part: 0, images: None, ..at };
        vec![state]
    }

    pub fn split(&self, state: &State, number: usize) -> Vec<State> {
        let at = state.splitters[number];
        if matches!(at.step, Step::End | Step::Dead) {
            return Vec::new();
        }
        let mut next = state.clone();
        let Some((segment, depth)) = self.splits[number].get(usize::from(at.split)).copied() else {
            next.splitters[number].step = Step::End;
            return vec![next];
        };
        let (own, owner) = (child(segment, depth), number as u8 + 1);
        let locks = self.locks_of_split(segment, depth);
        let part = usize::from(at.part);
        let to = |next: &mut State, step: Step, part: usize| {
            let splitter = &mut next.splitters[number];
            (splitter.step, splitter.part) = (step, part as u8);
        };
        match at.step {
            Step::Start => {
                next.memory |= 1 << own;
                to(&mut next, Step::Lock, 0);
            }
            Step::Lock if state.locks[locks[part]] != 0 && part == 0 => return Vec::new(),
            Step::Lock if state.locks[locks[part]] != 0 => to(&mut next, Step::GiveUp, 0),
            Step::GiveUp => return self.release_split(state, number, &locks, Step::Lock),
            Step::Lock => {
                next.locks[locks[part]] = owner;
                if part + 1 < locks.len() { to(&mut next, Step::Lock, part + 1) } else { to(&mut next, Step::Check, 0) }
            }
            Step::Check => self.check(&mut next, number, segment, depth),
            Step::Child => {
                let Some(images) = at.images else { return Vec::new() };
                next.rows[2 * usize::from(own) + part] = images[part].1;
                if part == 0 { to(&mut next, Step::Child, 1) } else { to(&mut next, self.after(Step::Child), 0) }
            }
            Step::Seal => {
                next.records[number] = Some((segment, depth));
                if self.without == Without::ChildLocksToTheEnd {
                    for row in [2 * usize::from(own), 2 * usize::from(own) + 1] {
                        next.locks[self.lock_of(row)] = 0;
                    }
                }
                to(&mut next, self.after(Step::Seal), 0);
            }
            Step::Parent => return self.write_parent(state, number, segment),
            Step::Map => {
                next.map[usize::from([own, segment][part])] = Some(depth + 1);
                if part == 0 { to(&mut next, Step::Map, 1) } else { to(&mut next, self.after(Step::Map), 0) }
            }
            Step::Retire => {
                next.records[number] = None;
                to(&mut next, self.after(Step::Retire), 0);
            }
            Step::Release => return self.release_split(state, number, &locks, Step::Start),
            Step::End | Step::Dead => return Vec::new(),
        }
        vec![next]
    }

    /// The rows of the parent under their locks: they verify, and the segment was not split meanwhile.
    fn check(&self, next: &mut State, number: usize, segment: u8, depth: u8) {
        let rows = next.pair(segment);
        if !rows.iter().all(|row| row.verifies()) {
            next.wrong = Some(Wrong::TornUnderLock);
            return;
        }
        let splitter = &mut next.splitters[number];
        splitter.part = 0;
        if rows[0].depth() != depth && self.without != Without::CheckBySplitter {
            splitter.step = Step::Release;
            return;
        }
        let images = rows.map(|row| {
            let (parent, child) = self.parts(row, segment, depth);
            match self.without {
                Without::Removal => (Row::new(row.entries, parent.trailer), child),
                _ => (parent, child),
            }
        });
        (splitter.step, splitter.images) = (self.order()[0], Some(images));
    }

    /// One word of the parent's rows: the first that differs, or any of them.
    fn write_parent(&self, state: &State, number: usize, segment: u8) -> Vec<State> {
        let Some(images) = state.splitters[number].images else { return Vec::new() };
        let first = 2 * usize::from(segment);
        let words = (0..2).flat_map(|row| {
            let differing = state.rows[first + row].differing(images[row].0);
            differing.map(move |word| (row, word))
        });
        let left: Vec<(usize, usize)> = words.collect();
        let mut after = Vec::new();
        for (row, word) in left.iter().take(if self.any_order { left.len() } else { 1 }) {
            let mut next = state.clone();
            next.rows[first + row] = next.rows[first + row].with_word(*word, images[*row].0);
            if left.len() == 1 {
                next.splitters[number].step = self.after(Step::Parent);
            }
            after.push(next);
        }
        after
    }

    /// Releases one lock, and goes on with `then` when none is left: with the next split, or the same one again.
    fn release_split(&self, state: &State, number: usize, locks: &[usize], then: Step) -> Vec<State> {
        let own = locks.iter().filter(|lock| state.locks[**lock] == number as u8 + 1);
        let mut after: Vec<State> = own.map(|lock| state.with_lock(*lock, 0)).collect();
        if after.is_empty() {
            let mut next = state.clone();
            let split = next.splitters[number].split + u8::from(then == Step::Start);
            next.splitters[number] = Splitting { split, step: then, ..Splitting::START };
            after.push(next);
        }
        after
    }

    /// The first of the two recoverers may die.
    pub fn recoverer_dies(&self, state: &State) -> Vec<State> {
        if state.recoverers[0].splitter().is_none() {
            return Vec::new();
        }
        let mut next = state.clone();
        next.recoverers[0] = Recovering::Dead;
        vec![next]
    }

    pub fn recover(&self, state: &State, number: usize) -> Vec<State> {
        let with = |at: Recovering| {
            let mut next = state.clone();
            next.recoverers[number] = at;
            next
        };
        let at = state.recoverers[number];
        let record = at.splitter().and_then(|splitter| state.records[splitter]);
        match (at, record) {
            (Recovering::Dead, _) => Vec::new(),
            (Recovering::Idle, _) => {
                let other = state.recoverers[1 - number].splitter();
                let dead = (0..SPLITTERS).filter(|splitter| state.splitters[*splitter].step == Step::Dead);
                dead.filter(|splitter| other != Some(*splitter))
                    .map(|splitter| with(Recovering::Load(splitter)))
                    .collect()
            }
            (Recovering::Load(splitter), Some(_)) if self.without != Without::Completion => {
                vec![with(Recovering::Row(splitter, 0))]
            }
            (Recovering::Load(splitter), _) => vec![with(Recovering::Release(splitter))],
            (Recovering::Row(splitter, row), Some((segment, depth))) => {
                vec![self.complete_row(state, number, (splitter, row), (segment, depth))]
            }
            (Recovering::Write(splitter, row, image), Some((segment, _))) => {
                self.write_completed(state, number, (splitter, row), 2 * usize::from(segment) + row, image)
            }
            (Recovering::Map(splitter, part), Some((segment, depth))) => {
                let mut next =
                    with(if part == 0 { Recovering::Map(splitter, 1) } else { Recovering::Retire(splitter) });
                next.map[usize::from([child(segment, depth), segment][part])] = Some(depth + 1);
                vec![next]
            }
            (Recovering::Retire(splitter), _) => {
                let mut next = with(Recovering::Release(splitter));
                next.records[splitter] = None;
                vec![next]
            }
            (Recovering::Release(splitter), _) => {
                let own = (0..state.locks.len()).filter(|lock| state.locks[*lock] == splitter as u8 + 1);
                let mut after: Vec<State> = own.map(|lock| state.with_lock(lock, 0)).collect();
                if after.is_empty() {
                    let mut next = with(Recovering::Idle);
                    next.splitters[splitter].step = Step::End;
                    after.push(next);
                }
                after
            }
            (Recovering::Row(..) | Recovering::Write(..) | Recovering::Map(..), None) => Vec::new(),
        }
    }

    fn complete_row(
        &self,
        state: &State,
        number: usize,
        (splitter, row): (usize, usize),
        (segment, depth): (u8, u8),
    ) -> State {
        let mut next = state.clone();
        let child_row = 2 * usize::from(child(segment, depth)) + row;
        let (found, gone) = (state.pair(segment)[row], state.rows[child_row]);
        let mut image = self.complete(found, gone, segment, depth);
        if self.without == Without::ChildOfTheSplitter {
            let (parent, child) = self.parts(found, segment, depth);
            next.rows[child_row] = child;
            image = Some(if found.depth() == depth || !found.verifies() { parent } else { found });
        }
        match image {
            Some(image) => next.recoverers[number] = Recovering::Write(splitter, row, image),
            None => next.wrong = Some(Wrong::NotCompleted),
        }
        next
    }

    fn write_completed(
        &self,
        state: &State,
        number: usize,
        (splitter, row): (usize, usize),
        at: usize,
        image: Row,
    ) -> Vec<State> {
        let then = if row == 0 { Recovering::Row(splitter, 1) } else { Recovering::Map(splitter, 0) };
        let words: Vec<usize> = state.rows[at].differing(image).collect();
        let mut after = Vec::new();
        for word in words.iter().take(if self.any_order { words.len() } else { 1 }) {
            let mut next = state.clone();
            next.rows[at] = next.rows[at].with_word(*word, image);
            if next.rows[at] == image {
                next.recoverers[number] = then;
            }
            after.push(next);
        }
        if words.is_empty() {
            let mut next = state.clone();
            next.recoverers[number] = then;
            after.push(next);
        }
        after
    }
}

impl State {
    /// Returns the state in which `owner` has `lock`.
    pub fn with_lock(&self, lock: usize, owner: u8) -> State {
        let mut next = self.clone();
        next.locks[lock] = owner;
        next
    }
}
