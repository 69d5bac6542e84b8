//! A cluster: a memory node and client hosts with cards of one kind.

use crate::card::PS;
use crate::card::parameters::{Card, CardParameters};
use crate::service::Work;

/// A memory node and the hosts of its clients, with cards of one kind, connected by a switch.
///
/// A cluster as in the paper has 8 client hosts, each with 12 threads near its card:
///
/// ```
/// use guira_fabric_sim::{Card, Cluster};
///
/// let cluster = Cluster::new(Card::ConnectX5).hosts(4).near_threads(16);
/// assert_eq!((cluster.hosts, cluster.host.near_threads), (4, 16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The number of client hosts.
    pub hosts: u32,
    /// The constants of every card.
    pub card: CardParameters,
    /// The constants of every client host.
    pub host: HostParameters,
    /// The constants of the memory node's processor.
    pub node: NodeParameters,
    /// The time from a client's doorbell to the memory node's card, besides queues and bytes.
    pub to_node_ns: u64,
    /// The time from the memory node's card to a client's memory, besides queues and bytes.
    pub to_client_ns: u64,
    /// Jitter, added to the travel time of each batch in each direction: a uniform draw below this.
    pub jitter_ns: u64,
    /// The largest payload of a packet.
    pub mtu_bytes: u64,
}

/// The constants of a client host. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostParameters {
    /// The number of threads that are near the card: a core for each, on the card's socket. The first clients of a host
    /// are near, the others are far: on another socket, or on a core that is shared.
    pub near_threads: u32,
    /// The time for which a thread and its doorbell register are busy with one doorbell.
    pub doorbell_ns: u64,
    /// Added to a doorbell of a register that has a lock.
    pub doorbell_lock_ns: u64,
    /// The number of registers that belong to one thread each and have no lock.
    pub own_doorbells: u32,
    /// The number of registers, each with a lock, that all other threads share.
    pub shared_doorbells: u32,
    /// The time for which a thread is busy with one work request.
    pub request_ns: u64,
    /// The time for which a thread is busy with the completion of a batch.
    pub completion_ns: u64,
    /// Added to the latency of each batch of a far thread, half of it before the card gets the request.
    pub far_batch_ns: u64,
    /// Added to the latency of such a batch if its replies carry data: the card stores them in the memory of the other
    /// socket.
    pub far_reply_store_ns: u64,
    /// The time that a far thread takes for a computation that takes 100 on a near one.
    pub far_compute_percent: u64,
}

/// The constants of the memory node's processor. It makes memory for tables that grow, a request after the other; and the
/// threads of its service, each a core, handle requests of clients. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeParameters {
    /// The time that a request takes, whatever it asks for.
    pub request_ns: u64,
    /// Added to a request for each part of [`NodeParameters::PART_BYTES`] that has no memory yet.
    pub part_ns: u64,
    /// The time that a thread of the service takes to receive a request and to send the reply.
    pub message_ns: u64,
    /// Added for each key that its handler hashes.
    pub hash_ns: u64,
    /// Added for each key that it compares.
    pub comparison_ns: u64,
    /// Added for each block of memory that it accesses anywhere.
    pub access_ns: u64,
    /// Added for each further cache line of such a block.
    pub line_ns: u64,
    /// Added for each byte that it copies, in picoseconds.
    pub copied_byte_ps: u64,
}

impl Cluster {
    /// Creates a cluster like that of the paper, with cards of kind `card`.
    pub const fn new(card: Card) -> Cluster {
        Cluster {
            hosts: 8,
            card: card.parameters(),
            host: HostParameters::PAPER,
            node: NodeParameters::TMPFS,
            to_node_ns: 760,
            to_client_ns: 509,
            jitter_ns: 600,
            mtu_bytes: 1024,
        }
    }

    /// Sets the number of client hosts.
    #[must_use]
    pub const fn hosts(mut self, hosts: u32) -> Cluster {
        self.hosts = hosts;
        self
    }

    /// Sets the number of threads near the card on each host.
    #[must_use]
    pub const fn near_threads(mut self, threads: u32) -> Cluster {
        self.host.near_threads = threads;
        self
    }

    /// Sets the speed of every link.
    ///
    /// # Panics
    /// If it is 0.
    #[must_use]
    pub const fn link_gbps(mut self, gbps: u64) -> Cluster {
        assert!(gbps > 0, "a link has a speed");
        self.card.link_byte_ps = 8_000 / gbps;
        self
    }

    /// Sets the time in which the node's processor makes memory of [`NodeParameters::PART_BYTES`].
    #[must_use]
    pub const fn part_ns(mut self, part_ns: u64) -> Cluster {
        self.node.part_ns = part_ns;
        self
    }

    /// Panics unless the parameters describe a cluster.
    pub(crate) fn validate(&self) {
        assert!(self.hosts > 0, "a cluster has at least one client host");
        assert!(self.card.units > 0, "a card has at least one processing unit");
        assert!(self.card.atomic_engines > 0, "a card has at least one engine for atomics");
        assert!(self.mtu_bytes > 0, "a packet has room for payload");
        assert!(self.host.shared_doorbells > 0, "a host has a doorbell register for any thread");
    }
}

impl NodeParameters {
    /// The unit in which memory is made: the one of a memory node over TCP.
    pub const PART_BYTES: u64 = 64 << 10;

    /// Memory of a file in tmpfs.
    pub const TMPFS: NodeParameters = NodeParameters {
        request_ns: 1_000,
        part_ns: 12_000,
        message_ns: 50,
        hash_ns: 5,
        comparison_ns: 1,
        access_ns: 55,
        line_ns: 10,
        copied_byte_ps: 100,
    };

    /// Returns the time for which a request keeps a thread of the service busy.
    pub(crate) fn price_ps(&self, work: &Work) -> u64 {
        let Work { hashes, comparisons, accesses, lines, copied_bytes } = *work;
        let ns = self.message_ns
            + hashes * self.hash_ns
            + comparisons * self.comparison_ns
            + accesses * self.access_ns
            + lines * self.line_ns;
        ns * PS + copied_bytes * self.copied_byte_ps
    }
}

impl HostParameters {
    /// The hosts of the paper's testbed.
    pub const PAPER: HostParameters = HostParameters {
        near_threads: 12,
        doorbell_ns: 100,
        doorbell_lock_ns: 31,
        own_doorbells: 4,
        shared_doorbells: 12,
        request_ns: 50,
        completion_ns: 100,
        far_batch_ns: 2_185,
        far_reply_store_ns: 541,
        far_compute_percent: 150,
    };

    /// Whether thread `thread` of a host is near.
    #[inline(always)]
    pub(crate) fn is_near(&self, thread: u32) -> bool {
        thread < self.near_threads
    }
}
