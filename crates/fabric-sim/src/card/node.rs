//! The memory node: its link, and its card with processing units, atomics, words and PCIe.

use std::collections::BTreeSet;
use std::ops::Range;

use guira_fabric::Space;

use crate::batch::{Batch, Sent, VerbKind};
use crate::card::PS;
use crate::card::cluster::{Cluster, NodeParameters};
use crate::card::host::sending_ps;
use crate::card::messages::{message_bytes, payload_bytes, pcie_bytes, reply_bytes, request_bytes};
use crate::card::server::Server;
use crate::card::words::WordQueues;
use crate::service::Work;

/// The memory node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) link_in: Server,
    pub(crate) link_out: Server,
    pub(crate) units: Vec<Server>,
    pub(crate) atomics: Vec<Server>,
    pub(crate) words: WordQueues,
    /// The direction of PCIe in which the data of READs travels.
    pub(crate) pcie_fetch: Server,
    /// The direction of PCIe in which the data of WRITEs travels.
    pub(crate) pcie_store: Server,
    /// The processor, which makes memory.
    pub(crate) processor: Server,
    /// The threads of the service that have worked.
    pub(crate) threads: Vec<Server>,
    /// The parts of the main space for which memory was made.
    made: BTreeSet<u64>,
    last_fetch_ps: u64,
    /// The moving average of the time between two fetches.
    fetch_gap_ps: u64,
}

/// The bits of a word's number that are combined to find its engine, so that neither words nor cache lines in a row
/// share one.
const ENGINE_BITS: u32 = 3;
/// The number of fetches over which the time between them is averaged.
const FETCHES: u64 = 64;

/// The verbs of a batch that were admitted to a processing unit together: they follow each other without a gap.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    /// The time at which the next verb arrives, or arrived.
    pub(crate) arrives_ps: u64,
    /// The time at which the next verb starts.
    pub(crate) starts_ps: u64,
    /// The index after the last verb.
    pub(crate) end: usize,
}

impl Node {
    pub(crate) fn new(cluster: &Cluster, device_bytes: u64) -> Node {
        Node {
            link_in: Server::default(),
            link_out: Server::default(),
            units: vec![Server::default(); cluster.card.units as usize],
            atomics: vec![Server::default(); cluster.card.atomic_engines as usize],
            words: WordQueues::new(device_bytes),
            pcie_fetch: Server::default(),
            pcie_store: Server::default(),
            processor: Server::default(),
            threads: Vec::new(),
            made: BTreeSet::new(),
            last_fetch_ps: 0,
            fetch_gap_ps: 2 * cluster.card.idle_after_ns * PS,
        }
    }

    /// Makes memory for `bytes` of the main space, as a request does that arrives at `arrives_ps`. Returns the time at
    /// which it is done.
    pub(crate) fn reserve(&mut self, bytes: &Range<u64>, arrives_ps: u64, cluster: &Cluster) -> u64 {
        let parts = bytes.start / NodeParameters::PART_BYTES..bytes.end.div_ceil(NodeParameters::PART_BYTES);
        let new = parts.filter(|part| self.made.insert(*part)).count() as u64;
        let takes_ps = (cluster.node.request_ns + new * cluster.node.part_ns) * PS;
        self.processor.enter(arrives_ps, takes_ps) + takes_ps
    }

    /// Receives the verbs from `first` on of a batch. Returns the time for which they wait for the link.
    pub(crate) fn receive(&mut self, batch: &Batch, first: usize, now_ps: u64, cluster: &Cluster) -> u64 {
        let bytes: u64 = batch.sent[first..].iter().map(|sent| request_bytes(sent, cluster.mtu_bytes)).sum();
        self.link_in.wait(now_ps, bytes * cluster.card.link_byte_ps)
    }

    /// Admits verb `first` to a unit, which arrives at `arrives_ps`, and the following ones up to an atomic: what
    /// stands behind an atomic is admitted when the atomic was served.
    pub(crate) fn admit(
        &mut self,
        unit: usize,
        batch: &Batch,
        first: usize,
        arrives_ps: u64,
        cluster: &Cluster,
    ) -> Run {
        let is_atomic = |sent: &Sent| matches!(sent.kind, VerbKind::Swap | VerbKind::Add);
        let end = batch.sent[first..].iter().position(is_atomic).map_or(batch.sent.len(), |at| first + at + 1);
        let message_ps = unit_ps(&batch.sent[first], cluster);
        let starts_ps = self.units[unit].enter(arrives_ps, message_ps);
        let run = Run { arrives_ps, starts_ps, end };
        let mut last = run;
        for index in first + 1..end {
            last = last.next(batch, index, cluster);
            self.units[unit].enter(last.starts_ps, unit_ps(&batch.sent[index], cluster));
        }
        run
    }

    /// Executes an atomic, which starts at `now_ps`. Returns the time at which it was served.
    #[inline(always)]
    pub(crate) fn execute_atomic(&mut self, sent: &Sent, now_ps: u64, cluster: &Cluster) -> u64 {
        let card = &cluster.card;
        let (any_ps, word_ps) = match sent.addr.space() {
            Space::Device => (card.device_atomic_ps, card.device_word_ps),
            Space::Main => (card.main_atomic_ps, card.main_word_ps),
        };
        let engine = (sent.addr.word() ^ sent.addr.word() >> ENGINE_BITS) as usize % self.atomics.len();
        let engine_ps = any_ps * u64::from(card.atomic_engines);
        let begins_ps = self.atomics[engine].enter(now_ps + unit_ps(sent, cluster), engine_ps);
        self.words.enter(sent.addr, begins_ps, word_ps) + word_ps
    }

    /// Sends the reply to a verb: to a READ or WRITE that starts at `now_ps`, or to an atomic that was served then.
    /// Returns the time at which its last byte is on the link.
    #[inline(always)]
    pub(crate) fn reply(&mut self, sent: &Sent, now_ps: u64, cluster: &Cluster) -> u64 {
        let payload = payload_bytes(sent);
        let takes_ps = match (sent.kind, sent.addr.space()) {
            (VerbKind::Read | VerbKind::SwapAsRead, Space::Main) => {
                unit_ps(sent, cluster) + self.fetch(payload, now_ps, cluster)
            }
            (VerbKind::Write, Space::Main) => self.store(sent, now_ps, cluster),
            (VerbKind::Read | VerbKind::SwapAsRead | VerbKind::Write, Space::Device) => unit_ps(sent, cluster),
            (VerbKind::Swap | VerbKind::Add, Space::Main) => {
                // The latency is part of the time for which the word is busy.
                let pcie_ps = pcie_bytes(payload) * cluster.card.pcie_byte_ps;
                self.pcie_fetch.enter(now_ps, pcie_ps);
                self.pcie_store.enter(now_ps, pcie_ps);
                self.idle_ps(now_ps, cluster)
            }
            (VerbKind::Swap | VerbKind::Add, Space::Device) => 0,
            (VerbKind::Call, _) => unreachable!("its request is acknowledged, and its service replies"),
        };
        self.leave(sent, now_ps + takes_ps, now_ps, cluster)
    }

    /// Sends the reply to a verb, or the acknowledgement of a request, which is ready at `ready_ps`. Returns the time at
    /// which its last byte is on the link.
    #[inline(always)]
    pub(crate) fn leave(&mut self, sent: &Sent, ready_ps: u64, now_ps: u64, cluster: &Cluster) -> u64 {
        let link_ps = reply_bytes(sent, cluster.mtu_bytes) * cluster.card.link_byte_ps;
        ready_ps + self.link_out.wait(now_ps, link_ps) + link_ps
    }

    /// Stores the data of a WRITE or a request in the host's memory. Returns the time that it takes.
    #[inline(always)]
    pub(crate) fn store(&mut self, sent: &Sent, now_ps: u64, cluster: &Cluster) -> u64 {
        let pcie_ps = pcie_bytes(payload_bytes(sent)) * cluster.card.pcie_byte_ps;
        unit_ps(sent, cluster) + self.pcie_store.wait(now_ps, pcie_ps) + cluster.card.store_ns * PS
    }

    /// Sends a message of a service with `payload` bytes by a unit. Returns the time at which its last byte is on the link.
    pub(crate) fn send(&mut self, unit: usize, payload: u64, now_ps: u64, cluster: &Cluster) -> u64 {
        let message_ps = message_ps(payload, cluster);
        let takes_ps = self.units[unit].wait(now_ps, message_ps) + message_ps + self.fetch(payload, now_ps, cluster);
        let link_ps = message_bytes(payload, cluster.mtu_bytes) * cluster.card.link_byte_ps;
        now_ps + takes_ps + self.link_out.wait(now_ps, link_ps) + link_ps
    }

    /// Adds the work of a thread of the service. Returns the time that it takes.
    pub(crate) fn work(&mut self, thread: usize, work: &Work, now_ps: u64, cluster: &Cluster) -> u64 {
        if self.threads.len() <= thread {
            self.threads.resize(thread + 1, Server::default());
        }
        let takes_ps = cluster.node.price_ps(work);
        self.threads[thread].enter(now_ps, takes_ps);
        takes_ps
    }

    /// Fetches `payload` bytes of the host's memory. Returns the time that it takes.
    #[inline(always)]
    fn fetch(&mut self, payload: u64, now_ps: u64, cluster: &Cluster) -> u64 {
        let pcie_ps = pcie_bytes(payload) * cluster.card.pcie_byte_ps;
        let waits_ps = self.pcie_fetch.wait(now_ps, pcie_ps);
        waits_ps + cluster.card.fetch_ns * PS + pcie_ps + self.idle_ps(now_ps, cluster)
    }

    /// Returns the additional latency of a fetch if the host's memory is fetched rarely.
    #[inline(always)]
    fn idle_ps(&mut self, now_ps: u64, cluster: &Cluster) -> u64 {
        let card = &cluster.card;
        let since_ps = (now_ps - self.last_fetch_ps).min(FETCHES * card.idle_after_ns * PS);
        self.last_fetch_ps = now_ps;
        self.fetch_gap_ps = self.fetch_gap_ps - self.fetch_gap_ps / FETCHES + since_ps / FETCHES;
        if self.fetch_gap_ps > card.idle_after_ns * PS { card.idle_fetch_ns * PS } else { 0 }
    }
}

impl Run {
    /// Returns the run without its first verb, the one before verb `next`.
    #[inline(always)]
    pub(crate) fn next(self, batch: &Batch, next: usize, cluster: &Cluster) -> Run {
        let arrives_ps = self.arrives_ps + sending_ps(&batch.sent[next], cluster);
        let free_ps = self.starts_ps + unit_ps(&batch.sent[next - 1], cluster);
        Run { arrives_ps, starts_ps: free_ps.max(arrives_ps), end: self.end }
    }
}

/// Returns the time for which a verb occupies a processing unit.
#[inline(always)]
fn unit_ps(sent: &Sent, cluster: &Cluster) -> u64 {
    let card = &cluster.card;
    let message_ps = match sent.kind {
        VerbKind::Read | VerbKind::SwapAsRead if sent.words <= 1 => card.word_read_ps,
        VerbKind::Read | VerbKind::SwapAsRead => card.read_ps + payload_bytes(sent) * card.read_byte_ps,
        VerbKind::Write | VerbKind::Call => return message_ps(payload_bytes(sent), cluster),
        VerbKind::Swap | VerbKind::Add => card.atomic_message_ps,
    };
    message_ps * u64::from(card.units)
}

/// Returns the time for which a WRITE of so many bytes, or a message of a service, occupies a processing unit.
#[inline(always)]
fn message_ps(payload_bytes: u64, cluster: &Cluster) -> u64 {
    let card = &cluster.card;
    (card.write_ps + payload_bytes * card.write_byte_ps) * u64::from(card.units)
}
