//! The queues of words: atomics on one word are executed one after the other.

use std::collections::HashMap;

use guira_fabric::memory::prefetch_line;
use guira_fabric::{Addr, Space, WORD_BYTES};

use crate::card::server::Server;

/// The queue of each word, exactly: all words of the device space, and the words of the main space on which there was
/// an atomic.
#[derive(Debug)]
pub(crate) struct WordQueues {
    device: Vec<Server>,
    main: HashMap<u64, Server>,
}

/// The time for which each word was busy. Words of the main space are in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WordsBusy {
    device_ps: Vec<u64>,
    main_ps: Vec<(u64, u64)>,
}

impl WordQueues {
    pub(crate) fn new(device_bytes: u64) -> WordQueues {
        let words = usize::try_from(device_bytes / WORD_BYTES).unwrap_or(0);
        WordQueues { device: vec![Server::default(); words], main: HashMap::new() }
    }

    /// Adds an atomic at `addr`. Returns the time at which it begins.
    #[inline(always)]
    pub(crate) fn enter(&mut self, addr: Addr, now_ps: u64, takes_ps: u64) -> u64 {
        match addr.space() {
            Space::Device => self.device[addr.word() as usize].enter(now_ps, takes_ps),
            Space::Main => self.main.entry(addr.word()).or_default().enter(now_ps, takes_ps),
        }
    }

    /// Brings the queue of a word into the processor's cache.
    #[inline(always)]
    pub(crate) fn prefetch(&self, addr: Addr) {
        if addr.space() == Space::Device {
            self.device.get(addr.word() as usize).into_iter().for_each(prefetch_line);
        }
    }

    /// Returns the time for which each word was busy.
    pub(crate) fn busy(&self) -> WordsBusy {
        let device_ps = self.device.iter().map(Server::busy_ps).collect();
        let mut main_ps: Vec<_> = self.main.iter().map(|(word, queue)| (*word, queue.busy_ps())).collect();
        main_ps.sort_unstable();
        WordsBusy { device_ps, main_ps }
    }
}

impl WordsBusy {
    /// Returns the difference to an earlier state of the same words.
    pub(crate) fn since(&self, earlier: &WordsBusy) -> WordsBusy {
        let before = |index: usize| earlier.device_ps.get(index).copied().unwrap_or(0);
        let before_main = |word: u64| {
            let found = earlier.main_ps.binary_search_by_key(&word, |(word, _)| *word);
            found.map_or(0, |index| earlier.main_ps[index].1)
        };
        let device_ps = self.device_ps.iter().enumerate().map(|(index, ps)| ps - before(index)).collect();
        let main_ps = self.main_ps.iter().map(|(word, ps)| (*word, ps - before_main(*word))).collect();
        WordsBusy { device_ps, main_ps }
    }

    /// Returns the busiest word and its time; `None` if no word was busy.
    pub(crate) fn busiest(&self) -> Option<(Addr, u64)> {
        let device = self.device_ps.iter().enumerate();
        let device = device.map(|(word, ps)| (Addr::device(word as u64 * WORD_BYTES), *ps));
        let main = self.main_ps.iter().map(|(word, ps)| (Addr::main(word * WORD_BYTES), *ps));
        device.chain(main).filter(|(_, ps)| *ps > 0).max_by_key(|(_, ps)| *ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_a_queue_of_its_own() {
        let mut words = WordQueues::new(64);
        assert_eq!(words.enter(Addr::device(8), 10, 100), 10);
        assert_eq!(words.enter(Addr::device(8), 20, 100), 110);
        assert_eq!(words.enter(Addr::device(16), 20, 100), 20);
        assert_eq!(words.enter(Addr::main(8), 20, 300), 20);
        assert_eq!(words.enter(Addr::main(8), 30, 300), 320);
        let before = words.busy();
        assert_eq!(before.busiest(), Some((Addr::main(8), 600)));
        assert_eq!(words.enter(Addr::device(56), 900, 7), 900);
        assert_eq!(words.enter(Addr::main(800), 900, 5), 900);
        assert_eq!(words.busy().since(&before).busiest(), Some((Addr::device(56), 7)));
        assert_eq!(before.since(&before).busiest(), None);
    }
}
