//! What goes wrong in a run, and when: a value, so that a run can be printed, repeated and reduced.

use guira_fabric::Addr;

use crate::sim::ClientId;

/// Everything that goes wrong in a run. The default: nothing does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// What befalls clients. Of several faults before one verb, the first comes first.
    pub clients: Vec<ClientFault>,
    /// What befalls the memory node.
    pub node: Vec<NodeFault>,
    /// What the fabric makes of its freedom.
    pub relaxations: Relaxations,
}

/// A fault of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFault {
    /// The client.
    pub client: ClientId,
    /// It comes when so many verbs of the client were carried out and the next one arrives at the node.
    pub after_verbs: u64,
    /// What happens.
    pub fault: Fault,
}

/// What befalls a client at one of its verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It dies: neither this verb nor any later one is carried out, its task is dropped, and with it what the task
    /// holds, such as its slot.
    Die {
        /// If the verb is a WRITE: so many multiples of [`guira_fabric::Caps::atomic_write_unit`] of it are carried out
        /// first, or all of it if it is shorter.
        units: u64,
    },
    /// It is stopped, with all of its lanes, and learns nothing for so long. What it has sent is carried out meanwhile,
    /// except where verbs execute in place ([`guira_fabric::Caps::local`]): there this verb waits as well, or, if it is
    /// a WRITE, the words of it that are not written yet.
    Stall {
        /// Nanoseconds.
        for_ns: u64,
    },
    /// This verb and the rest of its batch arrive later.
    DelayTail {
        /// Nanoseconds.
        by_ns: u64,
    },
    /// The connection of its lane breaks. The batch ends with [`guira_fabric::FabricError::Disconnected`], its effect
    /// unknown unless it only read, and the lane refuses all others.
    LoseConnection(Lost),
}

/// What is lost with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The rest of the batch: it is never carried out.
    Request,
    /// Only the reply.
    Reply,
    /// The reply, and the rest of the batch is late: the client has long noticed when it is carried out. Nobody else
    /// gets a slot that this client held before that, unless the node drops the rest for their sake.
    Late {
        /// Nanoseconds between the client's notice and the next verb.
        by_ns: u64,
    },
}

/// A fault of the memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFault {
    /// When, in nanoseconds of virtual time.
    pub at_ns: u64,
    /// What happens.
    pub fault: NodeEvent,
}

/// What befalls the memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// It starts again: every byte is zero, every connection is broken as by [`Fault::LoseConnection`], and verbs that
    /// have not arrived are lost. Lanes made afterwards work.
    Restart,
    /// Bits of one word change.
    Flip {
        /// The word.
        addr: Addr,
        /// The bits.
        bits: u64,
    },
}

/// What the fabric may do without breaking its promises, and how often it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relaxations {
    /// READs and WRITEs that are carried out in two parts, with others in between, in percent. Where verbs cross a
    /// network the parts of a READ come in either order.
    pub split_percent: u8,
    /// Batches whose neighbouring READs sample in the opposite order, in percent, where
    /// [`guira_fabric::Caps::ordered_read_sampling`] does not forbid it.
    pub swap_percent: u8,
    /// *Beyond what any fabric promises*: WRITEs to the main space become visible to other lanes up to so many
    /// nanoseconds after they were carried out, though later verbs on the device space are visible at once. Shows what
    /// a lock is worth that lies in another memory than what it guards.
    pub main_lag_ns: u64,
    /// *Beyond what any fabric promises*: a slot can be held although verbs of its last client are still to come, as if
    /// a timeout proved death. Shows what the fence is worth.
    pub proves_early: bool,
}
