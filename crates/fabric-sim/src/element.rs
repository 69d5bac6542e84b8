//! Elements: programs on the path between the clients and the memory node, such as a switch or a card in front of it,
//! that see all verbs in one order and may rewrite them.
//!
//! An element sees a verb when it reaches the node's port: in a [`crate::Network`] that is when it is executed, in a
//! [`crate::Cluster`] before it waits for the node's card, together with the rest of its batch. So others may pass it
//! while it waits, and one whose client dies meanwhile is never executed. An element holds nothing back, takes no time,
//! and sees no calls. A verb that is delayed, or late after the loss of its connection, is sent again: the element sees
//! it as it was posted, a second time. When the node restarts, the element is reset: it must not take new bytes for old
//! ones.

use guira_fabric::Addr;

use crate::batch::VerbKind;
use crate::log::EventKind;
use crate::world::World;

/// A program that sees all verbs on their way to the memory node.
pub trait Element {
    /// Sees verb `verb` of the batch in flight on a queue pair, and says how it goes on.
    fn request(&mut self, queue_pair: u32, verb: u32, passing: Passing<'_>) -> Rewrite;

    /// Sees the word that atomic `verb` found, and may replace it. Nobody knows whether it reaches the client.
    fn reply(&mut self, queue_pair: u32, verb: u32, found: &mut u64);

    /// Makes the answer to CAS `verb`, which went on as a READ, of the word that this found. `None` if the element has
    /// forgotten it: then the answer of a READ reaches a client that did not ask for one, and its connection is lost.
    fn answer(&mut self, queue_pair: u32, verb: u32, found: u64) -> Option<u64> {
        let _ = (queue_pair, verb, found);
        None
    }

    /// Forgets everything. That can happen at any time, also between a request and its reply.
    fn reset(&mut self);

    /// Returns the bytes that its state takes now.
    fn state_bytes(&self) -> u64;
}

impl<E: Element + ?Sized> Element for Box<E> {
    fn request(&mut self, queue_pair: u32, verb: u32, passing: Passing<'_>) -> Rewrite {
        (**self).request(queue_pair, verb, passing)
    }

    fn reply(&mut self, queue_pair: u32, verb: u32, found: &mut u64) {
        (**self).reply(queue_pair, verb, found);
    }

    fn answer(&mut self, queue_pair: u32, verb: u32, found: u64) -> Option<u64> {
        (**self).answer(queue_pair, verb, found)
    }

    fn reset(&mut self) {
        (**self).reset();
    }

    fn state_bytes(&self) -> u64 {
        (**self).state_bytes()
    }
}

/// A verb that passes an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing<'w> {
    /// A READ of so many words.
    Read {
        /// The first word.
        addr: Addr,
        /// The number of words.
        words: u32,
    },
    /// A WRITE.
    Write {
        /// The first word.
        addr: Addr,
        /// What it writes.
        words: &'w [u64],
    },
    /// A CAS; without masks, both are all ones.
    Cas {
        /// The word.
        addr: Addr,
        /// The word that it expects.
        compare: u64,
        /// The word that it stores.
        swap: u64,
        /// The bits that it compares.
        compare_mask: u64,
        /// The bits that it stores.
        swap_mask: u64,
    },
    /// A FETCH-ADD.
    FetchAdd {
        /// The word.
        addr: Addr,
        /// The addend.
        add: u64,
    },
}

/// How a verb goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// As it came.
    Nothing,
    /// At another address, which must have as many words.
    Address(Addr),
    /// A CAS at another address, which expects and stores other words, with the same masks.
    Cas {
        /// The word.
        addr: Addr,
        /// The word that it expects.
        compare: u64,
        /// The word that it stores.
        swap: u64,
    },
    /// A CAS as a READ of its word, which [`Element::answer`] makes an answer of.
    Read,
}

impl World {
    /// Has the verbs of a lane's batch before verb `until` pass the element, if there is one, unless they have.
    #[inline(always)]
    pub(crate) fn pass_element(&mut self, lane: u32, until: usize) {
        if self.element.is_some() && self.lanes[lane as usize].batch.passed < until {
            self.pass(lane, until);
        }
    }

    fn pass(&mut self, lane: u32, until: usize) {
        for index in self.lanes[lane as usize].batch.passed..until {
            let (Some(element), state) = (&mut self.element, &mut self.lanes[lane as usize]) else { return };
            let Some(passing) = state.batch.passing(index) else { continue };
            let rewrite = element.request(state.queue_pair.unwrap_or(lane), index as u32, passing);
            if let Some(addr) = state.batch.rewrite(index, rewrite) {
                self.log_event(lane, EventKind::Rewritten(addr));
            }
        }
        self.lanes[lane as usize].batch.passed = until;
    }

    /// Has the answer to an atomic pass the element.
    #[inline(always)]
    pub(crate) fn answer_through_element(&mut self, lane: u32, index: usize) {
        let Some(element) = &mut self.element else { return };
        let state = &mut self.lanes[lane as usize];
        let queue_pair = state.queue_pair.unwrap_or(lane);
        match state.batch.sent[index].kind {
            VerbKind::Swap | VerbKind::Add => element.reply(queue_pair, index as u32, state.batch.found_mut(index)),
            VerbKind::SwapAsRead => {
                let found = state.batch.found_mut(index);
                match element.answer(queue_pair, index as u32, *found) {
                    Some(answer) => *found = answer,
                    None if state.has_failed => {}
                    None => self.lose_connection(lane),
                }
            }
            VerbKind::Read | VerbKind::Write | VerbKind::Call => {}
        }
    }
}
