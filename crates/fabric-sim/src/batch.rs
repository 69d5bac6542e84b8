//! A batch in flight: its data, copied out of the caller's buffers, and the results of its verbs.
//!
//! Invariant: the verbs of a batch own consecutive ranges of `data` in the order in which they were submitted, in
//! whatever order they are executed; so the results are found by iterating over the submitted batch.

use std::ops::Range;

use guira_fabric::memory::{AtomicU64, Memory, Ordering, masked_cas, prefetch_line, read_words, write_words};
use guira_fabric::{Addr, PairOrder, Verb, VerbClass};

use crate::draws::Draws;
use crate::element::{Passing, Rewrite};

/// The kind of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerbKind {
    Read,
    Write,
    Swap,
    /// A CAS that the element lets go on as a READ.
    SwapAsRead,
    Add,
    /// The request of a call. It is alone in its batch.
    Call,
}

impl VerbKind {
    fn class(self) -> VerbClass {
        match self {
            VerbKind::Read => VerbClass::Read,
            VerbKind::Write => VerbClass::Write,
            VerbKind::Swap | VerbKind::SwapAsRead | VerbKind::Add | VerbKind::Call => VerbClass::Atomic,
        }
    }
}

/// A sent verb.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) addr: Addr,
    pub(crate) kind: VerbKind,
    /// The number of words of remote memory that it touches.
    pub(crate) words: u32,
    /// The start of its range of the data.
    start: u32,
    /// Whether it is a CAS with masks.
    pub(crate) is_masked: bool,
}

impl Sent {
    /// Returns the words that the verb touches: none for a call.
    #[inline(always)]
    pub(crate) fn words_in<'m>(&self, memory: Memory<'m>) -> &'m [AtomicU64] {
        if self.kind == VerbKind::Call {
            return &[];
        }
        let first = self.addr.word() as usize;
        &memory.space(self.addr.space())[first..first + self.words as usize]
    }
}

/// The number of data words of a CAS: found, compare, swap, and both masks.
const SWAP_WORDS: usize = 5;
/// The number of data words of a FETCH-ADD: found, addend.
const ADD_WORDS: usize = 2;

/// The batch of one lane. Its memory is reused by the next batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) sent: Vec<Sent>,
    data: Vec<u64>,
    /// The number of verbs, from the first on, that have passed the element, if there is one.
    pub(crate) passed: usize,
    /// The verbs that it has rewritten, as they were posted.
    rewritten: Vec<Posted>,
}

/// A verb before it was rewritten.
#[derive(Clone, Copy, Debug)]
struct Posted {
    index: usize,
    addr: Addr,
    kind: VerbKind,
    /// Of a CAS, the words that it compares and stores.
    words: Option<[u64; 2]>,
}

impl Batch {
    fn clear(&mut self) {
        self.sent.clear();
        self.data.clear();
        self.passed = 0;
        self.rewritten.clear();
    }

    /// Copies the verbs of `batch` and the data that they send.
    pub(crate) fn send(&mut self, batch: &[Verb<'_>]) {
        self.clear();
        for verb in batch {
            let start = self.data.len() as u32;
            let kind = match verb {
                Verb::Read { into, .. } => {
                    self.data.resize(self.data.len() + into.len(), 0);
                    VerbKind::Read
                }
                Verb::Write { words, .. } => {
                    self.data.extend_from_slice(words);
                    VerbKind::Write
                }
                Verb::Cas { compare, swap, .. } => {
                    self.data.extend([0, *compare, *swap, !0, !0]);
                    VerbKind::Swap
                }
                Verb::MaskedCas { compare, swap, compare_mask, swap_mask, .. } => {
                    self.data.extend([0, *compare, *swap, *compare_mask, *swap_mask]);
                    VerbKind::Swap
                }
                Verb::FetchAdd { add, .. } => {
                    self.data.extend([0, *add]);
                    VerbKind::Add
                }
            };
            let is_masked = matches!(verb, Verb::MaskedCas { .. });
            self.sent.push(Sent { addr: verb.addr(), kind, words: verb.words() as u32, start, is_masked });
        }
    }

    /// Copies the request of a call.
    pub(crate) fn send_call(&mut self, request: &[u64]) {
        self.clear();
        self.data.extend_from_slice(request);
        let words = request.len() as u32;
        self.sent.push(Sent { addr: Addr::main(0), kind: VerbKind::Call, words, start: 0, is_masked: false });
    }

    /// Returns the request of a call.
    pub(crate) fn take_request(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.data)
    }

    /// Sets the reply to a call.
    pub(crate) fn set_reply(&mut self, reply: Vec<u64>) {
        self.data = reply;
    }

    /// Returns the reply to a call.
    pub(crate) fn reply(&self) -> &[u64] {
        &self.data
    }

    /// Whether verb `index` is the request of a call.
    #[inline(always)]
    pub(crate) fn is_call(&self, index: usize) -> bool {
        self.sent[index].kind == VerbKind::Call
    }

    /// Executes the words `part` of verb `index`, or all of an atomic. Returns the word for the log: the one that an
    /// atomic found, otherwise the first word of the part.
    #[inline(always)]
    pub(crate) fn execute(&mut self, memory: Memory<'_>, index: usize, part: Range<usize>) -> u64 {
        let sent = self.sent[index];
        let start = sent.start as usize;
        let first = sent.addr.word() as usize;
        let words = memory.space(sent.addr.space());
        match sent.kind {
            // The first word of a CAS's data is the one that it found.
            VerbKind::Read | VerbKind::SwapAsRead => {
                let into = &mut self.data[start + part.start..start + part.end];
                read_words(&words[first + part.start..first + part.end], into);
                into.first().copied().unwrap_or(0)
            }
            VerbKind::Write => {
                let from = &self.data[start + part.start..start + part.end];
                write_words(&words[first + part.start..first + part.end], from);
                from.first().copied().unwrap_or(0)
            }
            VerbKind::Swap => {
                let data = &mut self.data[start..start + SWAP_WORDS];
                data[0] = masked_cas(&words[first], data[1], data[2], data[3], data[4]);
                data[0]
            }
            VerbKind::Add => {
                let data = &mut self.data[start..start + ADD_WORDS];
                data[0] = words[first].fetch_add(data[1], Ordering::Relaxed);
                data[0]
            }
            VerbKind::Call => unreachable!("a service handles it"),
        }
    }

    /// Returns verb `index` as an element sees it; `None` for a call.
    pub(crate) fn passing(&self, index: usize) -> Option<Passing<'_>> {
        let Sent { addr, kind, words, start, .. } = self.sent[index];
        let data = &self.data[start as usize..];
        Some(match kind {
            VerbKind::Read => Passing::Read { addr, words },
            VerbKind::Write => Passing::Write { addr, words: &data[..words as usize] },
            VerbKind::Swap | VerbKind::SwapAsRead => {
                Passing::Cas { addr, compare: data[1], swap: data[2], compare_mask: data[3], swap_mask: data[4] }
            }
            VerbKind::Add => Passing::FetchAdd { addr, add: data[1] },
            VerbKind::Call => return None,
        })
    }

    /// Rewrites verb `index`. Returns its new address, unless it goes on as it came.
    pub(crate) fn rewrite(&mut self, index: usize, rewrite: Rewrite) -> Option<Addr> {
        let Sent { addr: posted_addr, kind, .. } = self.sent[index];
        let (addr, kind, words) = match rewrite {
            Rewrite::Nothing => return None,
            Rewrite::Address(addr) => (addr, kind, None),
            Rewrite::Cas { addr, compare, swap } => {
                assert_eq!(kind, VerbKind::Swap, "only a CAS compares and stores words");
                (addr, kind, Some([compare, swap]))
            }
            Rewrite::Read => {
                assert_eq!(kind, VerbKind::Swap, "only a CAS goes on as a READ");
                (posted_addr, VerbKind::SwapAsRead, None)
            }
        };
        let posted = self.replace(Posted { index, addr, kind, words });
        self.rewritten.push(posted);
        Some(addr)
    }

    /// Takes back what was rewritten from verb `index` on: they have not passed the element.
    pub(crate) fn take_back(&mut self, index: usize) {
        self.passed = self.passed.min(index);
        while let Some(posted) = self.rewritten.pop_if(|posted| posted.index >= index) {
            self.replace(posted);
        }
    }

    /// Replaces the address and the kind of a verb, and the words of a CAS if there are any. Returns what was there.
    fn replace(&mut self, by: Posted) -> Posted {
        let sent = &mut self.sent[by.index];
        let addr = std::mem::replace(&mut sent.addr, by.addr);
        let kind = std::mem::replace(&mut sent.kind, by.kind);
        let words = by.words.map(|words| {
            let data = &mut self.data[sent.start as usize + 1..][..2];
            let posted = [data[0], data[1]];
            data.copy_from_slice(&words);
            posted
        });
        Posted { addr, kind, words, ..by }
    }

    /// Returns the word that atomic `index` found.
    pub(crate) fn found_mut(&mut self, index: usize) -> &mut u64 {
        &mut self.data[self.sent[index].start as usize]
    }

    /// Brings the verbs and their data into the processor's cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        self.sent.iter().step_by(2).for_each(prefetch_line);
        self.data.iter().step_by(8).for_each(prefetch_line);
    }

    /// Returns the words `part` that WRITE `index` writes.
    pub(crate) fn written(&self, index: usize, part: Range<usize>) -> &[u64] {
        &self.data[self.sent[index].start as usize..][part]
    }

    /// Reverses the order of execution of adjacent READs, or draws one.
    pub(crate) fn swap_reads(&mut self, draws: &mut Draws) {
        let both_read = |a: &Sent, b: &Sent| a.kind == VerbKind::Read && b.kind == VerbKind::Read;
        let reverses = draws.below(2) == 0;
        for reads in self.sent.chunk_by_mut(both_read) {
            if reverses {
                reads.reverse();
            } else {
                draws.shuffle(reads);
            }
        }
    }

    /// Moves each WRITE to a drawn place among the verbs in front of it that it may overtake on a queue pair.
    pub(crate) fn overtake(&mut self, draws: &mut Draws) {
        for at in 1..self.sent.len() {
            let may_overtake = |first: &&Sent| {
                let order = PairOrder::on_queue_pair(first.kind.class(), self.sent[at].kind.class());
                order == PairOrder::Free
            };
            let most = self.sent[..at].iter().rev().take_while(may_overtake).count();
            let overtaken = draws.below(most as u64 + 1) as usize;
            self.sent[at - overtaken..=at].rotate_right(1);
        }
    }

    /// Copies the results into `batch`, which must be the sent one.
    pub(crate) fn receive(&self, batch: &mut [Verb<'_>]) {
        let mut start = 0;
        for verb in batch {
            match verb {
                Verb::Read { into, .. } => {
                    into.copy_from_slice(&self.data[start..start + into.len()]);
                    start += into.len();
                }
                Verb::Write { words, .. } => start += words.len(),
                Verb::Cas { found, .. } | Verb::MaskedCas { found, .. } => {
                    **found = self.data[start];
                    start += SWAP_WORDS;
                }
                Verb::FetchAdd { found, .. } => {
                    **found = self.data[start];
                    start += ADD_WORDS;
                }
            }
        }
    }

    /// Copies the words that atomics found to `found`, in batch order, as many as fit. Returns the number of atomics.
    pub(crate) fn receive_atomics(&self, found: &mut [u64]) -> usize {
        let atomics = self.sent.iter().filter(|sent| sent.kind.class() == VerbClass::Atomic);
        let mut starts: Vec<u32> = atomics.map(|sent| sent.start).collect();
        starts.sort_unstable();
        for (into, start) in found.iter_mut().zip(&starts) {
            *into = self.data[*start as usize];
        }
        starts.len()
    }

    /// Whether the reply carries data.
    pub(crate) fn fetches(&self) -> bool {
        self.sent.iter().any(|sent| sent.kind != VerbKind::Write)
    }
}
