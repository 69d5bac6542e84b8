//! Calls and answers of one key in order of time, as a linked list from which operations are taken and put back.
//!
//! Invariant: operations are put back in the reverse order of taking, so that each gets its old neighbours.

/// Index of the list's head, which is before the first event.
const HEAD: usize = 0;

/// A call or an answer. Events earlier in the list may have caused later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    /// Time, and position among equal times.
    pub(super) at: (u64, u64),
    pub(super) kind: Kind,
}

/// Kind of an event, and its operation. Answered operations are numbered from 0 in the order of their calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Pending,
    Call(u32),
    Answer(u32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    next: u32,
    previous: u32,
    operation: u32,
    is_answer: bool,
    /// Number of pending operations that were called before.
    pending: u32,
}

/// The calls and answers of operations that were answered.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    links: Vec<Link>,
    /// Indices in `links` of the call and of the answer of each operation.
    positions: Vec<[u32; 2]>,
}

impl Timeline {
    /// Replaces all events by these; sorts `events`.
    pub(super) fn reset(&mut self, events: &mut [Event], operations: usize) {
        events.sort_unstable();
        self.links.clear();
        self.links.push(Link::default());
        self.positions.clear();
        self.positions.resize(operations, [0; 2]);
        let mut pending = 0;
        for event in &*events {
            let (operation, is_answer) = match event.kind {
                Kind::Pending => {
                    pending += 1;
                    continue;
                }
                Kind::Call(operation) => (operation, false),
                Kind::Answer(operation) => (operation, true),
            };
            let position = self.links.len() as u32;
            self.positions[operation as usize][usize::from(is_answer)] = position;
            self.links.push(Link { next: position + 1, previous: position - 1, operation, is_answer, pending });
        }
        let last = self.links.len() - 1;
        self.links[HEAD].next = if last == HEAD { HEAD as u32 } else { 1 };
        self.links[HEAD].previous = last as u32;
        self.links[last].next = HEAD as u32;
    }

    /// Returns the operations that may take effect next: those called before any remaining one was answered. In the
    /// order of their calls.
    pub(super) fn open(&self) -> impl Iterator<Item = u32> {
        let mut position = self.links[HEAD].next as usize;
        std::iter::from_fn(move || {
            let link = self.links[position];
            position = link.next as usize;
            // The last link is always an answer, so the walk ends before it reaches the head, which is none.
            (!link.is_answer && !self.is_empty()).then_some(link.operation)
        })
    }

    /// Returns the operation that is answered first, and the number of pending ones called before its answer.
    pub(super) fn due(&self) -> Option<(u32, u32)> {
        let mut position = self.links[HEAD].next as usize;
        while position != HEAD && !self.links[position].is_answer {
            position = self.links[position].next as usize;
        }
        (position != HEAD).then(|| (self.links[position].operation, self.links[position].pending))
    }

    /// Returns the position of an operation's answer: smaller ones are earlier.
    pub(super) fn answer_position(&self, operation: u32) -> u32 {
        self.positions[operation as usize][1]
    }

    /// Whether every operation was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.links[HEAD].next as usize == HEAD
    }

    /// Removes the call and the answer of an operation that takes effect.
    pub(super) fn take(&mut self, operation: u32) {
        for position in self.positions[operation as usize] {
            let Link { next, previous, .. } = self.links[position as usize];
            self.links[previous as usize].next = next;
            self.links[next as usize].previous = previous;
        }
    }

    /// Undoes the last [`Timeline::take`] that was not undone.
    pub(super) fn put_back(&mut self, operation: u32) {
        let [call, answer] = self.positions[operation as usize];
        for position in [answer, call] {
            let Link { next, previous, .. } = self.links[position as usize];
            self.links[previous as usize].next = position;
            self.links[next as usize].previous = position;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(kinds: &[Kind]) -> Timeline {
        let mut events: Vec<Event> =
            kinds.iter().enumerate().map(|(at, kind)| Event { at: (at as u64, 0), kind: *kind }).collect();
        events.reverse();
        let mut timeline = Timeline::default();
        timeline.reset(&mut events, kinds.iter().filter(|kind| matches!(kind, Kind::Call(_))).count());
        timeline
    }

    fn open(timeline: &Timeline) -> Vec<u32> {
        timeline.open().collect()
    }

    #[test]
    fn operations_are_open_until_another_is_answered() {
        use Kind::{Answer, Call, Pending};
        let mut line = timeline(&[Call(0), Pending, Call(1), Answer(1), Pending, Call(2), Answer(0), Answer(2)]);
        assert_eq!((open(&line), line.due()), (vec![0, 1], Some((1, 1))));
        line.take(1);
        assert_eq!((open(&line), line.due()), (vec![0, 2], Some((0, 2))));
        line.take(2);
        assert_eq!((open(&line), line.due()), (vec![0], Some((0, 2))));
        line.take(0);
        assert!(line.is_empty());
        assert_eq!((open(&line), line.due()), (vec![], None));
        line.put_back(0);
        line.put_back(2);
        assert_eq!((open(&line), line.due()), (vec![0, 2], Some((0, 2))));
        line.put_back(1);
        assert_eq!((open(&line), line.due()), (vec![0, 1], Some((1, 1))));
        assert!(line.answer_position(1) < line.answer_position(0) && line.answer_position(0) < line.answer_position(2));
    }

    #[test]
    fn without_answers_nothing_is_open() {
        for kinds in [&[][..], &[Kind::Pending]] {
            let line = timeline(kinds);
            assert!(line.is_empty() && open(&line).is_empty() && line.due().is_none());
        }
    }
}
