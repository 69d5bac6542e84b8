//! Fault plans: the faults of a run, as a value, so that a run can be printed, repeated and reduced.

use std::ops::Range;

use guira_fabric::Addr;

use crate::sim::ClientId;

/// All faults of a run. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The faults of clients. Several faults before the same verb are injected in this order.
    pub clients: Vec<ClientFault>,
    /// The faults of the memory node.
    pub node: Vec<NodeFault>,
    /// The relaxed behaviour of the fabric.
    pub relaxations: Relaxations,
    /// The end of the memory node's memory; `None` if it has enough.
    pub memory: Option<MemoryLimit>,
}

/// A memory node that has memory for a part of its addresses only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The bytes of the main space that have no memory at first.
    pub holes: Vec<Range<u64>>,
    /// The number of reservations of such bytes that are granted: all others are refused, unless the same bytes were
    /// granted before.
    pub grants: u64,
    /// The virtual time from which on there is memory for all addresses, in nanoseconds; `u64::MAX` if there never is.
    pub until_ns: u64,
}

/// A fault of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFault {
    /// The client.
    pub client: ClientId,
    /// The number of verbs of the client that are executed before the fault, which is injected when the next one
    /// arrives at the node.
    pub after_verbs: u64,
    /// The fault.
    pub fault: Fault,
}

/// A fault that happens to a client at one of its verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client dies: neither this verb nor any later one is executed, its task is dropped, and with it all that the
    /// task holds, such as its client slot.
    Die {
        /// If the verb is a WRITE, the number of [`guira_fabric::Caps::atomic_write_unit`]s of it that are executed
        /// first, or all of it if it is shorter.
        units: u64,
    },
    /// The client is stopped, with all of its lanes, and receives nothing for this time. Verbs that it has sent are
    /// executed meanwhile, except where verbs execute in place ([`guira_fabric::Caps::local`]): there this verb waits
    /// as well, or, if it is a WRITE, a random number of its words are written before and the others after the stall.
    Stall {
        /// Nanoseconds.
        for_ns: u64,
    },
    /// This verb and the rest of its batch are delayed.
    DelayTail {
        /// Nanoseconds.
        by_ns: u64,
    },
    /// The connection of the lane is lost. The batch fails with [`guira_fabric::FabricError::Disconnected`], with an
    /// unknown effect unless it only read, and the lane refuses all later batches.
    LoseConnection(Lost),
    /// From this verb on, the client's next long WRITE is awaited, and `then` happens a number of verbs after it.
    AfterWrite {
        /// The least number of words of the WRITE.
        words: u64,
        /// The number of verbs: 0 for the WRITE itself.
        verbs: u64,
        /// The fault.
        then: Box<Fault>,
    },
}

/// The messages that are lost with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The rest of the batch, which is never executed.
    Request,
    /// Only the reply.
    Reply,
    /// The reply, while the rest of the batch is late: it is executed long after the client has noticed the loss. Until
    /// then no other client gets a slot that this client held, unless the node drops the rest of the batch.
    Late {
        /// Nanoseconds between the client's notice and the next verb.
        by_ns: u64,
    },
}

/// A fault of the memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFault {
    /// The virtual time of the fault, in nanoseconds.
    pub at_ns: u64,
    /// The fault.
    pub fault: NodeEvent,
}

/// A fault that happens to the memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The node restarts: every byte is zero, every connection is lost as by [`Fault::LoseConnection`], and verbs that
    /// have not arrived are lost. So are the state of its service and the requests of calls. The element in front of it is
    /// reset. Lanes created afterwards work.
    Restart,
    /// The threads of the service are stopped for this time: they take no request and send no reply. Verbs are executed.
    StallService {
        /// Nanoseconds.
        for_ns: u64,
    },
    /// The element in front of the node forgets everything.
    ResetElement,
    /// Bits of one word flip.
    Flip {
        /// The word.
        addr: Addr,
        /// The bits.
        bits: u64,
    },
}

/// Relaxed behaviour of the fabric: what it may do within its guarantees, and how often it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relaxations {
    /// The percentage of READs and WRITEs that are executed in two parts, with other verbs in between. Where verbs
    /// cross a network, the parts of a READ are executed in either order.
    pub split_percent: u8,
    /// The percentage of batches whose adjacent READs sample in the opposite order or in any other, where
    /// [`guira_fabric::Caps::ordered_read_sampling`] does not forbid it.
    pub swap_percent: u8,
    /// The percentage of batches in which WRITEs are executed before READs and atomics that stand in front of them,
    /// where [`guira_fabric::PairOrder`] applies. So is [`Relaxations::resample_percent`] and
    /// [`Relaxations::scatter_percent`].
    pub overtake_percent: u8,
    /// The percentage of READs that sample some of their words again, when all verbs of their batch were executed.
    pub resample_percent: u8,
    /// The percentage of READs and WRITEs whose words are executed in several pieces, with other verbs in between.
    /// The pieces of a READ come in any order; the pieces of a WRITE come packet by packet, each of which has
    /// [`guira_fabric::Caps::atomic_write_unit`] bytes, and in any order within a packet.
    pub scatter_percent: u8,
    /// *Violates the guarantees of every fabric*: WRITEs to the main space become visible to other lanes up to this
    /// many nanoseconds after they were executed, while later verbs on the device space are visible at once. Shows what
    /// can go wrong when a lock is in another memory than the data that it guards.
    pub main_lag_ns: u64,
    /// *Violates the guarantees of every fabric*: a client slot can be held although verbs of its last client are still
    /// to arrive, as if a timeout proved death. Shows why the fence is needed.
    pub proves_early: bool,
}

impl Relaxations {
    /// Panics if verbs are executed in parts, which a card does not do.
    pub(crate) fn validate_for_cards(&self) {
        let whole = self.split_percent == 0 && self.resample_percent == 0 && self.scatter_percent == 0;
        assert!(
            whole,
            "a cluster serves every verb as a whole: splitting, sampling again and scattering need a Network"
        );
    }

    /// Whether the fabric takes any of the liberties of a queue pair: [`crate::Hazard::QUEUE_PAIR`].
    pub fn reorders(&self) -> bool {
        self.overtake_percent > 0 || self.resample_percent > 0 || self.scatter_percent > 0
    }
}
