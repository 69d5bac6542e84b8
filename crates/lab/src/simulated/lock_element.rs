//! An element in front of the memory node that knows which locks are taken: a try to take one of them goes on as a READ
//! of its word, which cannot succeed, and costs the memory node less than an atomic.
//!
//! Clients take no part in it, but all clients of the table must be behind it. A lock is known to be taken once the answer
//! to the try that took it has passed, and until a release of it passes on its way to the memory: meanwhile it is taken,
//! because only its holder, or whoever recovers that, frees it, by a verb that is sent afterwards. So a try that passes
//! meanwhile cannot win, and its answer says what was true when it passed. Of locks in one word, others may have changed
//! before the READ: each is answered as it was at some time while the try was on its way, as by the tries of several words.
//!
//! If the element forgets a try that it lets go on as a READ, nobody can tell whether the word means that it won. Then
//! the answer has no form that a client takes for that of an atomic, and its connection is lost.
//!
//! A release by its owner is an addition: if it fits what is known, it frees these locks. A release as printed clears
//! locks, whoever has them, so tries of them that are on their way teach nothing any more. Even so one that is late may
//! clear a lock that another client took behind it (hole H7); then the next READ of the word shows it. Anything else, such
//! as a recovery, or a release of what was taken before it forgot, makes it forget what it knows of the word, and what
//! it would learn from tries on their way.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use guira_fabric::{Addr, Space};
use guira_fabric_sim::{Element, Passing, Rewrite};
use guira_layout::LockLayout;

/// Bytes of what is known of a word: its number and its value.
const WORD_BYTES: u64 = 16;
/// Bytes of what is known of a try on its way: its queue pair and number, its word, what it compares, and what it would
/// store or is known to be taken.
const TRY_BYTES: u64 = 32;
/// Words of which it knows something, at most: it learns no more then.
const WORDS_MAX: usize = 1 << 16;
/// Tries of which it knows something, at most: then it forgets all of them.
const TRIES_MAX: usize = 1 << 16;

/// The state of an element that knows locks.
#[derive(Debug)]
pub struct LockElement {
    layout: LockLayout,
    /// The locks that are taken, and by whom, in words as the memory has them. Other locks are 0.
    taken: HashMap<u64, u64>,
    /// The tries that are on their way, by queue pair and number in their batch.
    tries: HashMap<(u32, u32), Try>,
}

/// A try on its way.
#[derive(Clone, Copy, Debug)]
struct Try {
    word: u64,
    /// The locks that it wants.
    mask: u64,
    then: Then,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    /// It takes its locks, with this value, if they are free.
    Takes(u64),
    /// It is a READ, because these are taken.
    Fails(u64),
}

impl LockElement {
    /// Creates an element that knows nothing, in front of a table whose locks have this layout.
    pub fn new(layout: LockLayout) -> LockElement {
        LockElement { layout, taken: HashMap::new(), tries: HashMap::new() }
    }

    /// Returns the number of the lock word at `addr`, if there is one.
    fn word_at(&self, addr: Addr) -> Option<u64> {
        (addr.space() == Space::Device && addr.word() < self.layout.words()).then(|| addr.word())
    }

    fn forget(&mut self, word: u64) {
        self.clear(word, !0);
    }

    /// Notes that the locks in `mask` may be free, as printed clients release them whoever has them: what was sent before
    /// may have taken them.
    fn clear(&mut self, word: u64, mask: u64) {
        self.set_free(word, mask);
        self.tries.retain(|_, sent| sent.word != word || sent.mask & mask == 0 || matches!(sent.then, Then::Fails(_)));
    }

    fn set_free(&mut self, word: u64, mask: u64) {
        if let Entry::Occupied(mut taken) = self.taken.entry(word) {
            *taken.get_mut() &= !mask;
            if *taken.get() == 0 {
                taken.remove();
            }
        }
    }

    /// Notes a try of the locks in `mask`, which would get the value `swap`.
    fn try_take(&mut self, at: (u32, u32), word: u64, mask: u64, swap: u64) -> Rewrite {
        let taken = self.taken.get(&word).map_or(0, |taken| taken & mask);
        let then = if taken == 0 { Then::Takes(swap) } else { Then::Fails(taken) };
        if self.tries.len() >= TRIES_MAX {
            // Most of them are those of the dead, and never answered.
            self.tries.clear();
        }
        self.tries.insert(at, Try { word, mask, then });
        if taken == 0 { Rewrite::Nothing } else { Rewrite::Read }
    }

    /// Notes an addition to a word: a release, if it takes away what is known to be taken.
    fn add(&mut self, word: u64, add: u64) {
        let (taken, released) = (self.taken.get(&word).copied().unwrap_or(0), add.wrapping_neg());
        let of_released = |lock| self.layout.mask(lock).mask;
        let mask = self.layout.all_held(word, released).fold(0, |mask, (lock, _)| mask | of_released(lock));
        if taken & mask == released {
            self.set_free(word, mask);
        } else {
            self.forget(word);
        }
    }
}

impl Element for LockElement {
    fn request(&mut self, queue_pair: u32, verb: u32, passing: Passing<'_>) -> Rewrite {
        let at = (queue_pair, verb);
        // A verb that passes a second time is not the one of before.
        self.tries.remove(&at);
        match passing {
            Passing::Read { .. } => {}
            Passing::Write { addr, words } => {
                for i in 0..words.len() as u64 {
                    self.word_at(addr.add_words(i)).into_iter().for_each(|word| self.forget(word));
                }
            }
            Passing::Cas { addr, compare, swap, compare_mask, swap_mask } => {
                let Some(word) = self.word_at(addr) else { return Rewrite::Nothing };
                let takes = compare == 0 && compare_mask == swap_mask && swap & swap_mask == swap && swap != 0;
                let clears = compare_mask == 0 && swap == 0;
                match () {
                    () if takes => return self.try_take(at, word, compare_mask, swap),
                    () if clears => self.clear(word, swap_mask),
                    () => self.forget(word),
                }
            }
            Passing::FetchAdd { addr, add } => {
                if let Some(word) = self.word_at(addr) {
                    self.add(word, add);
                }
            }
        }
        Rewrite::Nothing
    }

    fn reply(&mut self, queue_pair: u32, verb: u32, found: &mut u64) {
        let Some(Try { word, mask, then: Then::Takes(swap) }) = self.tries.remove(&(queue_pair, verb)) else { return };
        if *found & mask == 0 && (self.taken.len() < WORDS_MAX || self.taken.contains_key(&word)) {
            *self.taken.entry(word).or_default() |= swap;
        }
    }

    fn answer(&mut self, queue_pair: u32, verb: u32, found: u64) -> Option<u64> {
        let Some(Try { word, mask, then: Then::Fails(taken) }) = self.tries.remove(&(queue_pair, verb)) else {
            return None;
        };
        if self.taken.get(&word).is_some_and(|known| known & !found != 0) {
            // A printed client has cleared what another one had taken meanwhile.
            self.forget(word);
        }
        Some(if found & mask == 0 { found | taken } else { found })
    }

    fn reset(&mut self) {
        self.taken.clear();
        self.tries.clear();
    }

    fn state_bytes(&self) -> u64 {
        self.taken.len() as u64 * WORD_BYTES + self.tries.len() as u64 * TRY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use guira_layout::{LockId, OwnerId, Preset, PresetOptions};

    use super::*;

    const ONE: OwnerId = OwnerId(1);
    const OTHER: OwnerId = OwnerId(2);

    /// An element in front of locks of 16 bits, four of them in a word.
    fn element() -> (LockElement, LockLayout) {
        let options = PresetOptions {
            capacity: 100_000,
            format: "fixed:8:8".parse().expect("a valid format"),
            extent_bytes: None,
            max_clients: Some(8),
            hash_seed: 1,
            device_bytes: 1 << 18,
        };
        let layout = LockLayout::new(&Preset::Hardened.config(&options).expect("valid parameters"));
        assert_eq!(layout.locks_per_word(), 4);
        (LockElement::new(layout), layout)
    }

    /// Returns the bits of locks of word 0.
    fn mask(layout: &LockLayout, locks: &[u64]) -> u64 {
        locks.iter().fold(0, |mask, lock| mask | layout.mask(LockId(*lock)).mask)
    }

    /// A try of locks in word 0 by `owner`.
    fn a_try(layout: &LockLayout, owner: OwnerId, mask: u64) -> Passing<'static> {
        let swap = layout.held(owner, mask);
        Passing::Cas { addr: layout.addr(0), compare: 0, swap, compare_mask: mask, swap_mask: mask }
    }

    fn release(layout: &LockLayout, owner: OwnerId, mask: u64) -> Passing<'static> {
        Passing::FetchAdd { addr: layout.addr(0), add: layout.release_addend(owner, mask) }
    }

    /// Has [`ONE`] take locks on queue pair 1.
    fn take(element: &mut LockElement, layout: &LockLayout, mask: u64) {
        assert_eq!(element.request(1, 0, a_try(layout, ONE, mask)), Rewrite::Nothing);
        element.reply(1, 0, &mut 0);
    }

    /// Whether a try of [`OTHER`] goes on as a READ.
    fn is_known(element: &mut LockElement, layout: &LockLayout, mask: u64) -> bool {
        element.request(2, 0, a_try(layout, OTHER, mask)) == Rewrite::Read
    }

    #[test]
    fn a_lock_is_known_from_its_answer_to_its_release() {
        let (mut element, layout) = element();
        let [first, both, second] = [&[0][..], &[0, 2], &[2]].map(|locks| mask(&layout, locks));
        assert_eq!(element.request(1, 0, a_try(&layout, ONE, both)), Rewrite::Nothing);
        assert!(!is_known(&mut element, &layout, both), "the try may fail");
        element.reply(1, 0, &mut layout.held(OTHER, mask(&layout, &[1])));
        assert!(is_known(&mut element, &layout, first) && is_known(&mut element, &layout, second));
        assert!(!is_known(&mut element, &layout, mask(&layout, &[1, 3])), "other locks of the word");
        assert_eq!(element.request(1, 0, release(&layout, ONE, first)), Rewrite::Nothing);
        assert!(!is_known(&mut element, &layout, first) && is_known(&mut element, &layout, both));
        assert_eq!(element.request(1, 1, release(&layout, ONE, second)), Rewrite::Nothing);
        assert!(!is_known(&mut element, &layout, both));
        assert_eq!(element.taken.len(), 0);
    }

    #[test]
    fn a_try_that_fails_teaches_nothing() {
        let (mut element, layout) = element();
        let lock = mask(&layout, &[0]);
        assert_eq!(element.request(1, 0, a_try(&layout, ONE, lock)), Rewrite::Nothing);
        element.reply(1, 0, &mut layout.held(OTHER, lock));
        assert!(!is_known(&mut element, &layout, lock), "its holder may release it before this is known");
    }

    #[test]
    fn the_answer_says_what_was_true() {
        let (mut element, layout) = element();
        let [first, both, others] = [&[0][..], &[0, 2], &[2, 3]].map(|locks| mask(&layout, locks));
        let others = layout.held(OwnerId(3), others);
        // The word as the READ finds it: the lock is still taken, or was freed meanwhile.
        for (found, answer) in [
            (layout.held(ONE, first), layout.held(ONE, first)),
            (0, layout.held(ONE, first)),
            (layout.held(OTHER, first), layout.held(OTHER, first)),
            (others, others),
        ] {
            take(&mut element, &layout, first);
            assert!(is_known(&mut element, &layout, both));
            // The release passes.
            element.request(1, 1, release(&layout, ONE, first));
            assert_eq!(element.answer(2, 0, found), Some(answer), "{found:#x}");
            assert_eq!(element.answer(2, 0, found), None, "it is answered once");
        }
    }

    #[test]
    fn what_it_does_not_understand_makes_it_forget_a_word() {
        let (_, layout) = element();
        let lock = mask(&layout, &[0]);
        let addr = layout.addr(0);
        let held = layout.held(ONE, lock);
        for verb in [
            Passing::Write { addr, words: &[0] },
            Passing::Cas { addr, compare: held, swap: layout.held(OTHER, lock), compare_mask: lock, swap_mask: lock },
            Passing::Cas { addr, compare: held, swap: 0, compare_mask: !0, swap_mask: !0 },
            Passing::Cas { addr, compare: 0, swap: layout.poison(), compare_mask: 0, swap_mask: !0 },
            Passing::Cas { addr, compare: 0, swap: 0, compare_mask: 0, swap_mask: !0 },
            Passing::FetchAdd { addr, add: 1 },
            release(&layout, OTHER, lock),
            release(&layout, ONE, mask(&layout, &[0, 1])),
        ] {
            let (mut element, _) = element();
            take(&mut element, &layout, lock);
            // A try that was sent before may be answered afterwards.
            let later = mask(&layout, &[2]);
            assert_eq!(element.request(3, 0, a_try(&layout, OwnerId(3), later)), Rewrite::Nothing);
            assert_eq!(element.request(4, 0, verb), Rewrite::Nothing);
            element.reply(3, 0, &mut 0);
            assert!(!is_known(&mut element, &layout, lock), "{verb:?}");
            assert!(!is_known(&mut element, &layout, later), "{verb:?}");
        }
        let (mut element, _) = element();
        take(&mut element, &layout, lock);
        for verb in [
            Passing::Read { addr, words: 4 },
            Passing::Write { addr: layout.addr(1), words: &[0] },
            Passing::FetchAdd { addr: Addr::main(0), add: 1 },
        ] {
            assert_eq!(element.request(4, 0, verb), Rewrite::Nothing);
            assert!(is_known(&mut element, &layout, lock), "{verb:?}");
        }
    }

    /// A client of the printed protocol clears its locks, in a word of which others have some.
    #[test]
    fn a_printed_release_frees_its_locks_alone() {
        let (mut element, layout) = element();
        let [first, second] = [0, 2].map(|lock| mask(&layout, &[lock]));
        take(&mut element, &layout, first | second);
        // The lock may be taken behind its release, by one that it passes.
        assert_eq!(element.request(3, 0, a_try(&layout, OwnerId(3), mask(&layout, &[1]))), Rewrite::Nothing);
        let cleared = first | mask(&layout, &[1]);
        let clear = Passing::Cas { addr: layout.addr(0), compare: 0, swap: 0, compare_mask: 0, swap_mask: cleared };
        assert_eq!(element.request(1, 1, clear), Rewrite::Nothing);
        element.reply(3, 0, &mut 0);
        assert!(!is_known(&mut element, &layout, cleared) && is_known(&mut element, &layout, second));
    }

    #[test]
    fn a_reset_leaves_no_answer() {
        let (mut element, layout) = element();
        let lock = mask(&layout, &[0]);
        take(&mut element, &layout, lock);
        assert!(is_known(&mut element, &layout, lock));
        assert_eq!(element.state_bytes(), WORD_BYTES + TRY_BYTES);
        element.reset();
        assert_eq!((element.answer(2, 0, 0), element.state_bytes()), (None, 0));
        assert!(!is_known(&mut element, &layout, lock));
    }

    /// A printed client may clear a lock that another one took behind it: that is not believed for ever.
    #[test]
    fn a_lock_that_is_free_after_all_is_forgotten() {
        let (mut element, layout) = element();
        let lock = mask(&layout, &[0]);
        take(&mut element, &layout, lock);
        assert!(is_known(&mut element, &layout, lock));
        assert_eq!(element.answer(2, 0, 0), Some(layout.held(ONE, lock)));
        assert!(!is_known(&mut element, &layout, lock));
    }

    /// Tries of the dead are never answered, and do not fill it up.
    #[test]
    fn its_state_is_bounded() {
        let (mut element, layout) = element();
        let [lock, other] = [0, 1].map(|lock| mask(&layout, &[lock]));
        let most_bytes = TRIES_MAX as u64 * TRY_BYTES + WORD_BYTES;
        for queue_pair in 10..10 + 2 * TRIES_MAX as u32 {
            element.request(queue_pair, 0, a_try(&layout, ONE, other));
            assert!(element.state_bytes() <= most_bytes);
        }
        take(&mut element, &layout, lock);
        for queue_pair in 10..10 + 2 * TRIES_MAX as u32 {
            assert_eq!(element.request(queue_pair, 0, a_try(&layout, OTHER, lock)), Rewrite::Read);
            assert!(element.state_bytes() <= most_bytes);
        }
        assert_eq!(element.answer(10, 0, 0), None, "it was forgotten with the others");
    }
}
