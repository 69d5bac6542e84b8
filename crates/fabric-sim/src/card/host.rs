//! Client hosts: threads, doorbells, and the card and the link that the threads of a host share.

use crate::batch::{Batch, Sent, VerbKind};
use crate::card::PS;
use crate::card::cluster::Cluster;
use crate::card::messages::{payload_bytes, pcie_bytes, reply_bytes, request_bytes};
use crate::card::server::Server;

/// A client host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    /// The number of its clients.
    pub(crate) threads: u32,
    pub(crate) doorbells: Vec<Server>,
    pub(crate) card: Server,
    pub(crate) link_out: Server,
    pub(crate) link_in: Server,
}

/// A client: a thread of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread {
    pub(crate) host: u32,
    doorbell: u32,
    has_own_doorbell: bool,
    is_near: bool,
    pub(crate) processor: Server,
}

impl Host {
    pub(crate) fn new(cluster: &Cluster) -> Host {
        let registers = (cluster.host.own_doorbells + cluster.host.shared_doorbells) as usize;
        Host { doorbells: vec![Server::default(); registers], ..Host::default() }
    }

    /// Adds a thread to host `host`, which is this one.
    pub(crate) fn add_thread(&mut self, host: u32, cluster: &Cluster) -> Thread {
        let (number, parameters) = (self.threads, &cluster.host);
        self.threads += 1;
        let has_own_doorbell = number < parameters.own_doorbells;
        let doorbell = match has_own_doorbell {
            true => number,
            false => parameters.own_doorbells + (number - parameters.own_doorbells) % parameters.shared_doorbells,
        };
        let is_near = parameters.is_near(number);
        Thread { host, doorbell, has_own_doorbell, is_near, processor: Server::default() }
    }

    /// Sends a batch. Returns the time at which the first verb is on the link.
    pub(crate) fn send(&mut self, thread: &mut Thread, batch: &Batch, now_ps: u64, cluster: &Cluster) -> u64 {
        let parameters = &cluster.host;
        let lock_ns = if thread.has_own_doorbell { 0 } else { parameters.doorbell_lock_ns };
        let doorbell_ps = (parameters.doorbell_ns + lock_ns) * PS;
        let requests_ps = batch.sent.len() as u64 * parameters.request_ns * PS;
        let processor_ps = requests_ps + doorbell_ps;
        let waits_ps = thread.processor.wait(now_ps, processor_ps)
            + self.doorbells[thread.doorbell as usize].wait(now_ps, doorbell_ps)
            + self.card.wait(now_ps, batch.sent.len() as u64 * cluster.card.client_message_ps)
            + self.link_out.wait(now_ps, batch.sent.iter().map(|sent| request_ps(sent, cluster)).sum());
        let first_ps = batch.sent.first().map_or(0, |sent| sending_ps(sent, cluster));
        let far_ps = if thread.is_near { 0 } else { parameters.far_batch_ns / 2 * PS };
        now_ps + processor_ps + waits_ps + first_ps + far_ps
    }

    /// Receives the reply to a verb of `thread`, which leaves the node at `now_ps`. Returns the time that it takes.
    #[inline(always)]
    pub(crate) fn receive(&mut self, thread: &Thread, sent: &Sent, now_ps: u64, cluster: &Cluster) -> u64 {
        let data = if matches!(sent.kind, VerbKind::Write | VerbKind::Call) { None } else { Some(payload_bytes(sent)) };
        self.take_in(thread, reply_bytes(sent, cluster.mtu_bytes), data, now_ps, cluster)
    }

    /// Receives `bytes` for `thread`, which leave the node at `now_ps` and carry so many bytes of data, if they carry any.
    /// Returns the time that it takes.
    #[inline(always)]
    pub(crate) fn take_in(
        &mut self,
        thread: &Thread,
        bytes: u64,
        data: Option<u64>,
        now_ps: u64,
        cluster: &Cluster,
    ) -> u64 {
        let link_ps = bytes * cluster.card.link_byte_ps;
        let waits_ps = self.link_in.wait(now_ps, link_ps) + self.card.wait(now_ps, cluster.card.client_message_ps);
        let Some(data) = data else { return waits_ps };
        let far_ps = if thread.is_near { 0 } else { cluster.host.far_reply_store_ns * PS };
        waits_ps + far_ps + pcie_bytes(data) * cluster.card.pcie_byte_ps
    }
}

impl Thread {
    /// Begins a computation that takes `near_ns` on a near thread. Returns its end.
    pub(crate) fn compute(&mut self, near_ns: u64, now_ps: u64, cluster: &Cluster) -> u64 {
        let percent = if self.is_near { 100 } else { cluster.host.far_compute_percent };
        let takes_ps = near_ns * percent / 100 * PS;
        self.processor.enter(now_ps, takes_ps) + takes_ps
    }

    /// Returns the time that a request besides the verbs takes on this thread and on the way to the card and back, without
    /// queues.
    pub(crate) fn request_ps(&self, cluster: &Cluster) -> u64 {
        let host = &cluster.host;
        let far_ns = if self.is_near { 0 } else { host.far_batch_ns };
        (host.request_ns + host.doorbell_ns + host.completion_ns + far_ns) * PS
    }

    /// Handles the completion of a batch. Returns the time that it takes.
    #[inline(always)]
    pub(crate) fn complete(&mut self, now_ps: u64, cluster: &Cluster) -> u64 {
        let takes_ps = cluster.host.completion_ns * PS;
        let far_ps = if self.is_near { 0 } else { cluster.host.far_batch_ns.div_ceil(2) * PS };
        self.processor.wait(now_ps, takes_ps) + takes_ps + far_ps
    }
}

/// Returns the time of a request on the link.
#[inline(always)]
fn request_ps(sent: &Sent, cluster: &Cluster) -> u64 {
    request_bytes(sent, cluster.mtu_bytes) * cluster.card.link_byte_ps
}

/// Returns the time between the arrival of a verb and that of the one before it in the batch.
#[inline(always)]
pub(crate) fn sending_ps(sent: &Sent, cluster: &Cluster) -> u64 {
    request_ps(sent, cluster).max(cluster.card.client_message_ps)
}
