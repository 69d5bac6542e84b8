//! How busy each resource was: the answer to the question what bounds a run.

use guira_fabric::Addr;

use crate::card::host::{Host, Thread};
use crate::card::node::Node;
use crate::card::server::Server;
use crate::card::words::WordsBusy;

/// A resource of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The link to the memory node.
    NodeLinkIn,
    /// The link from the memory node.
    NodeLinkOut,
    /// The processing units of the memory node's card, together: its message rate.
    NodeMessages,
    /// The execution of atomics by the memory node's card.
    NodeAtomics,
    /// The word with the most atomics, or the slowest: atomics on one word are executed one after the other.
    BusiestWord,
    /// PCIe from the memory node's memory to its card.
    NodeFetch,
    /// PCIe from the memory node's card to its memory.
    NodeStore,
    /// The memory node's processor, which makes memory for tables that grow.
    NodeProcessor,
    /// The threads of the memory node's service: the mean of those that have worked.
    NodeThreads,
    /// The card of the client host that uses it most.
    HostCard,
    /// The link to the client host that uses it most.
    HostLinkIn,
    /// The link from the client host that uses it most.
    HostLinkOut,
    /// The doorbell register of a client host that is used most.
    Doorbell,
    /// The processors of all clients, which post, complete and compute: the mean. As far as nothing is busy, clients
    /// wait for round trips.
    ClientProcessors,
}

impl Resource {
    /// All resources.
    pub const ALL: [Resource; 14] = [
        Resource::NodeLinkIn,
        Resource::NodeLinkOut,
        Resource::NodeMessages,
        Resource::NodeAtomics,
        Resource::BusiestWord,
        Resource::NodeFetch,
        Resource::NodeStore,
        Resource::NodeProcessor,
        Resource::NodeThreads,
        Resource::HostCard,
        Resource::HostLinkIn,
        Resource::HostLinkOut,
        Resource::Doorbell,
        Resource::ClientProcessors,
    ];
}

/// The time for which each resource was busy, since the simulation began or between two moments.
///
/// Work counts when it is queued, so the share of a resource that is never idle can be a little above 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    span_ns: u64,
    /// Node: link in, link out, fetch, store, processor.
    node_ps: [u64; 5],
    atomics_ps: Vec<u64>,
    units_ps: Vec<u64>,
    threads_ps: Vec<u64>,
    words: WordsBusy,
    /// Each host: card, link in, link out.
    hosts_ps: Vec<[u64; 3]>,
    doorbells_ps: Vec<u64>,
    processors_ps: Vec<u64>,
}

impl Usage {
    pub(crate) fn new(now_ns: u64, hosts: &[Host], threads: &[Thread], node: &Node) -> Usage {
        let node_servers = [node.link_in, node.link_out, node.pcie_fetch, node.pcie_store, node.processor];
        let host_ps = |host: &Host| [host.card, host.link_in, host.link_out].map(|server| server.busy_ps());
        Usage {
            span_ns: now_ns,
            node_ps: node_servers.map(|server| server.busy_ps()),
            atomics_ps: node.atomics.iter().map(Server::busy_ps).collect(),
            units_ps: node.units.iter().map(Server::busy_ps).collect(),
            threads_ps: node.threads.iter().map(Server::busy_ps).collect(),
            words: node.words.busy(),
            hosts_ps: hosts.iter().map(host_ps).collect(),
            doorbells_ps: hosts.iter().flat_map(|host| &host.doorbells).map(Server::busy_ps).collect(),
            processors_ps: threads.iter().map(|thread| thread.processor.busy_ps()).collect(),
        }
    }

    /// Returns the usage since `earlier`, a usage of the same simulation.
    #[must_use]
    pub fn since(&self, earlier: &Usage) -> Usage {
        let hosts = self.hosts_ps.iter().enumerate().map(|(index, now)| {
            let before = earlier.hosts_ps.get(index).copied().unwrap_or_default();
            std::array::from_fn(|part| now[part] - before[part])
        });
        Usage {
            span_ns: self.span_ns - earlier.span_ns,
            node_ps: std::array::from_fn(|part| self.node_ps[part] - earlier.node_ps[part]),
            atomics_ps: difference(&self.atomics_ps, &earlier.atomics_ps),
            units_ps: difference(&self.units_ps, &earlier.units_ps),
            threads_ps: difference(&self.threads_ps, &earlier.threads_ps),
            words: self.words.since(&earlier.words),
            hosts_ps: hosts.collect(),
            doorbells_ps: difference(&self.doorbells_ps, &earlier.doorbells_ps),
            processors_ps: difference(&self.processors_ps, &earlier.processors_ps),
        }
    }

    /// Returns the span that this is the usage of.
    pub fn span_ns(&self) -> u64 {
        self.span_ns
    }

    /// Returns the time for which `resource` was busy.
    pub fn busy_ns(&self, resource: Resource) -> u64 {
        let most_of_hosts = |part: usize| self.hosts_ps.iter().map(|host| host[part]).max().unwrap_or(0);
        let busy_ps = match resource {
            Resource::NodeLinkIn => self.node_ps[0],
            Resource::NodeLinkOut => self.node_ps[1],
            Resource::NodeAtomics => mean(&self.atomics_ps),
            Resource::NodeFetch => self.node_ps[2],
            Resource::NodeStore => self.node_ps[3],
            Resource::NodeProcessor => self.node_ps[4],
            Resource::NodeThreads => mean(&self.threads_ps),
            Resource::NodeMessages => mean(&self.units_ps),
            Resource::BusiestWord => self.words.busiest().map_or(0, |(_, busy_ps)| busy_ps),
            Resource::HostCard => most_of_hosts(0),
            Resource::HostLinkIn => most_of_hosts(1),
            Resource::HostLinkOut => most_of_hosts(2),
            Resource::Doorbell => self.doorbells_ps.iter().max().copied().unwrap_or(0),
            Resource::ClientProcessors => mean(&self.processors_ps),
        };
        busy_ps / 1000
    }

    /// Returns the share of the span for which `resource` was busy.
    pub fn share(&self, resource: Resource) -> f64 {
        self.busy_ns(resource) as f64 / self.span_ns.max(1) as f64
    }

    /// Returns the busiest resource and its share of the span.
    pub fn busiest(&self) -> (Resource, f64) {
        let shares = Resource::ALL.map(|resource| (resource, self.share(resource)));
        shares.into_iter().fold(shares[0], |most, other| if other.1 > most.1 { other } else { most })
    }

    /// Returns the busiest word; `None` if there was no atomic.
    pub fn busiest_word(&self) -> Option<Addr> {
        self.words.busiest().map(|(addr, _)| addr)
    }
}

fn mean(busy_ps: &[u64]) -> u64 {
    busy_ps.iter().sum::<u64>() / (busy_ps.len() as u64).max(1)
}

/// Returns the difference to earlier times. What has been added since was not busy before.
fn difference(now: &[u64], earlier: &[u64]) -> Vec<u64> {
    now.iter().enumerate().map(|(index, ps)| ps - earlier.get(index).copied().unwrap_or(0)).collect()
}
