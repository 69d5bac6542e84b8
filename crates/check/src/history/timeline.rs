//! Calls and answers of one key in order of time, as a linked list from which operations are taken and put back.
//!
//! Invariant: operations are put back in the reverse order of taking, so that each finds the neighbours it had.

/// Before the first event; its successor is that.
const HEAD: usize = 0;

/// Something happened at a time: what comes earlier in the list can have caused what comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    /// When, and the place among equal times.
    pub(super) at: (u64, u64),
    pub(super) kind: Kind,
}

/// Of what. Operations are numbered from 0, pending ones among themselves, in the order of their calls.
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
    /// Pending operations that were called before.
    pending: u32,
}

/// The calls and answers of operations that were answered.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    links: Vec<Link>,
    /// Of each operation, the places of its call and of its answer in `links`.
    places: Vec<[u32; 2]>,
}

impl Timeline {
    /// Holds these events, and nothing else; `events` are sorted on the way.
    pub(super) fn reset(&mut self, events: &mut [Event], operations: usize) {
        events.sort_unstable();
        self.links.clear();
        self.links.push(Link::default());
        self.places.clear();
        self.places.resize(operations, [0; 2]);
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
            let place = self.links.len() as u32;
            self.places[operation as usize][usize::from(is_answer)] = place;
            self.links.push(Link { next: place + 1, previous: place - 1, operation, is_answer, pending });
        }
        let last = self.links.len() - 1;
        self.links[HEAD].next = if last == HEAD { HEAD as u32 } else { 1 };
        self.links[HEAD].previous = last as u32;
        self.links[last].next = HEAD as u32;
    }

    /// Operations that may take effect next: those called before any that is left was answered. In order of calls.
    pub(super) fn open(&self) -> impl Iterator<Item = u32> {
        let mut place = self.links[HEAD].next as usize;
        std::iter::from_fn(move || {
            let link = self.links[place];
            place = link.next as usize;
            // The head is not an answer, but the last of the links always is, so the walk ends before.
            (!link.is_answer && !self.is_empty()).then_some(link.operation)
        })
    }

    /// The operation that is answered first, and how many pending ones were called before it was.
    pub(super) fn due(&self) -> Option<(u32, u32)> {
        let mut place = self.links[HEAD].next as usize;
        while place != HEAD && !self.links[place].is_answer {
            place = self.links[place].next as usize;
        }
        (place != HEAD).then(|| (self.links[place].operation, self.links[place].pending))
    }

    /// The place of an operation's answer: smaller ones are earlier.
    pub(super) fn answer_place(&self, operation: u32) -> u32 {
        self.places[operation as usize][1]
    }

    /// Whether every operation was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.links[HEAD].next as usize == HEAD
    }

    /// The operation takes effect: its call and its answer are no more.
    pub(super) fn take(&mut self, operation: u32) {
        for place in self.places[operation as usize] {
            let Link { next, previous, .. } = self.links[place as usize];
            self.links[previous as usize].next = next;
            self.links[next as usize].previous = previous;
        }
    }

    /// Undoes the last [`Timeline::take`] that was not undone.
    pub(super) fn put_back(&mut self, operation: u32) {
        let [call, answer] = self.places[operation as usize];
        for place in [answer, call] {
            let Link { next, previous, .. } = self.links[place as usize];
            self.links[previous as usize].next = place;
            self.links[next as usize].previous = place;
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
        assert!(line.answer_place(1) < line.answer_place(0) && line.answer_place(0) < line.answer_place(2));
    }

    #[test]
    fn without_answers_nothing_is_open() {
        for kinds in [&[][..], &[Kind::Pending]] {
            let line = timeline(kinds);
            assert!(line.is_empty() && open(&line).is_empty() && line.due().is_none());
        }
    }
}
