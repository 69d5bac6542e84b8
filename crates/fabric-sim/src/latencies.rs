//! The state of a [`Network`]: when its link and its words are free.

use guira_fabric::{Addr, Space};

use crate::batch::{Sent, VerbKind};
use crate::network::Network;

/// A network, and the times at which parts of it are free again.
#[derive(Debug)]
pub(crate) struct Latencies {
    pub(crate) network: Network,
    link: Link,
    words: WordTimes,
}

/// The times at which each direction of the memory node's link is free again.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    in_ns: u64,
    out_ns: u64,
}

/// The times at which the latest atomics on words are done: atomics on one word are executed one after the other. A
/// direct-mapped table, in which a word replaces an earlier one with the same entry. Two busy words rarely share an
/// entry, and a table of all words would evict the simulated memory from the processor's caches.
#[derive(Debug)]
struct WordTimes {
    entries: [(u64, u64); WORD_ENTRIES],
}

/// The size of the table. Atomics take a tenth of a microsecond, so only a few words are busy at a time.
const WORD_ENTRIES: usize = 256;

impl WordTimes {
    fn new() -> WordTimes {
        WordTimes { entries: [(u64::MAX, 0); WORD_ENTRIES] }
    }

    /// Returns the time at which an atomic at `addr` is done, if it arrives at `now_ns` and takes `takes_ns`.
    #[inline(always)]
    fn serve(&mut self, addr: Addr, now_ns: u64, takes_ns: u64) -> u64 {
        let key = addr.word() << 1 | u64::from(addr.space() == Space::Device);
        let index = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - WORD_ENTRIES.ilog2());
        let (entry_key, free_ns) = &mut self.entries[index as usize];
        let begins_ns = if *entry_key == key { now_ns.max(*free_ns) } else { now_ns };
        (*entry_key, *free_ns) = (key, begins_ns + takes_ns);
        *free_ns
    }
}

impl Latencies {
    pub(crate) fn new(network: Network) -> Latencies {
        Latencies { network, link: Link::default(), words: WordTimes::new() }
    }

    /// Adds a verb that arrives at `now_ns`. Returns the time at which the node is done with it.
    #[inline(always)]
    pub(crate) fn occupy(&mut self, sent: &Sent, now_ns: u64) -> u64 {
        let occupied_ns = self.network.occupied_ns(u64::from(sent.words));
        let free_ns = match sent.kind {
            VerbKind::Write | VerbKind::Call => &mut self.link.in_ns,
            _ => &mut self.link.out_ns,
        };
        *free_ns = now_ns.max(*free_ns) + occupied_ns;
        let link_ns = *free_ns;
        match sent.kind {
            VerbKind::Read | VerbKind::SwapAsRead | VerbKind::Write | VerbKind::Call => link_ns,
            VerbKind::Swap | VerbKind::Add => {
                let takes_ns = self.network.atomic_ns(sent.addr.space());
                link_ns.max(self.words.serve(sent.addr, now_ns, takes_ns))
            }
        }
    }
}
