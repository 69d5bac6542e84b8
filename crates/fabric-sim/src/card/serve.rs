//! The order of events with network cards: a batch arrives, each of its verbs starts and takes effect, and the reply
//! travels back.

use std::collections::VecDeque;
use std::ops::Range;

use guira_fabric::WORD_BYTES;
use guira_fabric::memory::prefetch;

use crate::batch::{Batch, VerbKind};
use crate::card::PS;
use crate::card::cluster::Cluster;
use crate::card::host::{Host, Thread};
use crate::card::messages::message_bytes;
use crate::card::node::{Node, Run};
use crate::card::usage::Usage;
use crate::inject::Injected;
use crate::lane_state::Phase;
use crate::queue::Due;
use crate::service::Work;
use crate::world::{Step, World};

/// The cards of a cluster and all that they are connected to.
pub(crate) struct Cards {
    cluster: Cluster,
    hosts: Vec<Host>,
    /// The threads of all hosts: one for each client.
    threads: Vec<Thread>,
    node: Node,
    /// The lanes that wait for each processing unit of the node.
    queues: Vec<VecDeque<u32>>,
    /// The number of lanes that belong to a processing unit.
    lanes: u32,
}

/// The places in a queue at which the state of a lane is brought into the processor's cache, then the verbs of its
/// batch, and then the words that they touch: each depends on the one before.
const PREFETCH_STATE: usize = 3;
const PREFETCH_BATCH: usize = 2;
const PREFETCH_WORDS: usize = 1;

/// The passage of a lane's batch through the node's card.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passage {
    stage: Stage,
    /// The processing unit that the lane belongs to.
    unit: Option<u32>,
    run: Run,
    /// The time at which the replies to all executed verbs have arrived.
    done_ps: u64,
    /// Whether the lane is in the queue of its unit. Only the first lane of a queue has an event.
    pub(crate) is_queued: bool,
}

/// The next event of a lane's batch, as long as verbs are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The next verb arrives.
    #[default]
    Arrives,
    /// The next verb starts, the first of those that were admitted to the unit together.
    StartsRun,
    /// The next verb starts.
    Starts,
    /// The next verb takes effect.
    TakesEffect,
}

impl Cards {
    pub(crate) fn new(cluster: &Cluster, device_bytes: u64) -> Cards {
        cluster.validate();
        Cards {
            cluster: *cluster,
            hosts: vec![Host::new(cluster); cluster.hosts as usize],
            threads: Vec::new(),
            node: Node::new(cluster, device_bytes),
            queues: vec![VecDeque::new(); cluster.card.units as usize],
            lanes: 0,
        }
    }

    /// Adds a client to `host`.
    pub(crate) fn add_client(&mut self, host: u32) {
        let hosts = self.cluster.hosts;
        assert!(host < hosts, "client host {host} is one of the cluster's {hosts}, numbered from 0");
        self.threads.push(self.hosts[host as usize].add_thread(host, &self.cluster));
    }

    /// Returns the end of a computation of `client` that takes `near_ns` on a near thread.
    pub(crate) fn compute(&mut self, client: u32, near_ns: u64, now_ns: u64) -> u64 {
        self.threads[client as usize].compute(near_ns, now_ns * PS, &self.cluster).div_ceil(PS)
    }

    /// Sends a batch of `client`. Returns the time at which it arrives at the node.
    pub(crate) fn post(
        &mut self,
        client: u32,
        passage: &mut Passage,
        batch: &Batch,
        now_ns: u64,
        jitter_ns: u64,
    ) -> u64 {
        let thread = &mut self.threads[client as usize];
        let host = &mut self.hosts[thread.host as usize];
        let sent_ps = host.send(thread, batch, now_ns * PS, &self.cluster);
        let arrives_ps = sent_ps + (self.cluster.to_node_ns + jitter_ns) * PS;
        if passage.unit.is_none() {
            passage.unit = Some(self.lanes % self.cluster.card.units);
            self.lanes += 1;
        }
        passage.stage = Stage::Arrives;
        passage.done_ps = 0;
        passage.run.arrives_ps = arrives_ps;
        arrives_ps.div_ceil(PS)
    }

    /// Sends a request of `client` for memory to the node's processor, past all verbs. Returns the time of the answer.
    /// There are few such requests, and they are short.
    pub(crate) fn reserve(&mut self, client: u32, bytes: &Range<u64>, now_ns: u64, jitter_ns: [u64; 2]) -> u64 {
        let cluster = &self.cluster;
        let arrives_ps = (now_ns + cluster.to_node_ns + jitter_ns[0]) * PS;
        let done_ps = self.node.reserve(bytes, arrives_ps, cluster);
        let request_ps = self.threads[client as usize].request_ps(cluster);
        (done_ps + request_ps).div_ceil(PS) + cluster.to_client_ns + jitter_ns[1]
    }

    /// Returns the largest jitter of a batch in each direction.
    pub(crate) fn jitter_ns(&self) -> u64 {
        self.cluster.jitter_ns
    }

    /// Handles the arrival of the verbs from `index` on.
    fn arrive(&mut self, passage: &mut Passage, batch: &Batch, index: usize, now_ns: u64) {
        let waits_ps = self.node.receive(batch, index, now_ns * PS, &self.cluster);
        let arrives_ps = passage.run.arrives_ps.max((now_ns * PS).saturating_sub(PS)) + waits_ps;
        self.admit(passage, batch, index, arrives_ps);
    }

    /// Admits the verbs from `index` on to the lane's processing unit.
    fn admit(&mut self, passage: &mut Passage, batch: &Batch, index: usize, arrives_ps: u64) {
        let unit = passage.unit.unwrap_or(0) as usize;
        passage.run = self.node.admit(unit, batch, index, arrives_ps, &self.cluster);
        passage.stage = Stage::StartsRun;
    }

    /// Starts verb `index`. Returns the time at which it takes effect.
    #[inline(always)]
    fn start(&mut self, passage: &mut Passage, batch: &Batch, index: usize) -> u64 {
        passage.stage = Stage::TakesEffect;
        let sent = &batch.sent[index];
        match sent.kind {
            VerbKind::Read | VerbKind::SwapAsRead | VerbKind::Write | VerbKind::Call => passage.run.starts_ps,
            VerbKind::Swap | VerbKind::Add => self.node.execute_atomic(sent, passage.run.starts_ps, &self.cluster),
        }
    }

    /// Sends the reply to verb `index`, which took effect, and moves on to the next.
    #[inline(always)]
    fn move_on(&mut self, client: u32, passage: &mut Passage, batch: &Batch, index: usize, now_ns: u64) {
        let sent = &batch.sent[index];
        let now_ps = now_ns * PS;
        let next = index + 1;
        // A reply acknowledges all WRITEs before it.
        if sent.kind != VerbKind::Write || next == batch.sent.len() {
            let left_ps = self.node.reply(sent, now_ps, &self.cluster);
            let thread = &self.threads[client as usize];
            let received_ps = self.hosts[thread.host as usize].receive(thread, sent, now_ps, &self.cluster);
            passage.done_ps = passage.done_ps.max(left_ps + self.cluster.to_client_ns * PS + received_ps);
        }
        if next == batch.sent.len() {
            return;
        }
        let run = passage.run.next(batch, next, &self.cluster);
        if next < run.end {
            passage.run = run;
            passage.stage = Stage::Starts;
        } else {
            self.admit(passage, batch, next, run.arrives_ps.max(now_ps));
        }
    }

    /// Acknowledges the request of a call, which arrived. Returns the time at which it is in the node's memory.
    fn store_request(&mut self, client: u32, passage: &mut Passage, batch: &Batch, now_ns: u64) -> u64 {
        let (sent, now_ps) = (&batch.sent[0], now_ns * PS);
        let stored_ps = now_ps + self.node.store(sent, now_ps, &self.cluster);
        let left_ps = self.node.leave(sent, stored_ps, now_ps, &self.cluster);
        let thread = &self.threads[client as usize];
        let received_ps = self.hosts[thread.host as usize].receive(thread, sent, now_ps, &self.cluster);
        passage.done_ps = left_ps + self.cluster.to_client_ns * PS + received_ps;
        stored_ps.div_ceil(PS)
    }

    /// Adds the work of a thread of the service. Returns the time that it takes.
    pub(crate) fn work(&mut self, thread: usize, work: &Work, now_ns: u64) -> u64 {
        self.node.work(thread, work, now_ns * PS, &self.cluster).div_ceil(PS)
    }

    /// Sends the reply to a call.
    pub(crate) fn answer(&mut self, client: u32, passage: &mut Passage, batch: &Batch, now_ns: u64) {
        let (payload, now_ps) = (batch.reply().len() as u64 * WORD_BYTES, now_ns * PS);
        let unit = passage.unit.unwrap_or(0) as usize;
        let left_ps = self.node.send(unit, payload, now_ps, &self.cluster);
        let thread = &self.threads[client as usize];
        let (host, bytes) = (&mut self.hosts[thread.host as usize], message_bytes(payload, self.cluster.mtu_bytes));
        let received_ps = host.take_in(thread, bytes, Some(payload), now_ps, &self.cluster);
        passage.done_ps = passage.done_ps.max(left_ps + self.cluster.to_client_ns * PS + received_ps);
    }

    /// Returns the time at which `client` has the replies to its batch.
    fn replied_ns(&mut self, client: u32, passage: &Passage, now_ns: u64, jitter_ns: u64) -> u64 {
        let completion_ps = self.threads[client as usize].complete(now_ns * PS, &self.cluster);
        let done_ps = passage.done_ps.max(now_ns * PS);
        (done_ps + completion_ps).div_ceil(PS) + jitter_ns
    }

    /// Returns how long each resource was busy.
    pub(crate) fn usage(&self, now_ns: u64) -> Usage {
        Usage::new(now_ns, &self.hosts, &self.threads, &self.node)
    }
}

impl World {
    /// Executes the events of a lane's batch, from that of verb `index` on, as long as no other event comes in between.
    pub(crate) fn serve(&mut self, lane: u32, mut index: usize) -> Step {
        loop {
            if self.lanes[lane as usize].passage.stage == Stage::Arrives {
                self.pass_element(lane, self.lanes[lane as usize].batch.sent.len());
            }
            let cards = self.cards.as_mut().expect("only a model with cards serves verbs");
            let state = &mut self.lanes[lane as usize];
            let (passage, batch) = (&mut state.passage, &state.batch);
            let at_ps = match passage.stage {
                Stage::Arrives => {
                    cards.arrive(passage, batch, index, self.now_ns);
                    passage.run.starts_ps
                }
                Stage::StartsRun | Stage::Starts => cards.start(passage, batch, index),
                Stage::TakesEffect => {
                    if let Some(step) = self.take_effect(lane, index) {
                        return step;
                    }
                    index += 1;
                    let state = &self.lanes[lane as usize];
                    if index == state.batch.sent.len() {
                        self.reply(lane);
                        return Step::Silent;
                    }
                    state.passage.run.starts_ps
                }
            };
            let at_ns = at_ps.div_ceil(PS).max(self.now_ns);
            if at_ns == self.now_ns {
                continue;
            }
            if at_ns > self.end_ns || self.queue.next_ns().is_some_and(|other_ns| other_ns <= at_ns) {
                self.schedule(lane, index, at_ns);
                return Step::Silent;
            }
            self.now_ns = at_ns;
        }
    }

    /// Schedules the event of verb `index` at `at_ns`, unless other lanes wait for the same unit.
    #[inline(always)]
    fn schedule(&mut self, lane: u32, index: usize, at_ns: u64) {
        let state = &mut self.lanes[lane as usize];
        state.phase = Phase::Sending(index);
        if state.passage.stage == Stage::StartsRun {
            let cards = self.cards.as_mut().expect("only a model with cards serves verbs");
            state.passage.is_queued = true;
            let queue = &mut cards.queues[state.passage.unit.unwrap_or(0) as usize];
            queue.push_back(lane);
            if queue.len() > 1 {
                return;
            }
        }
        self.queue.push(at_ns, Due::Lane(lane));
    }

    /// Removes `lane`, which is the first, from the queue of its unit. The next one gets an event.
    #[inline(always)]
    pub(crate) fn leave_queue(&mut self, lane: u32) {
        let cards = self.cards.as_mut().expect("only a model with cards has queues");
        let passage = &mut self.lanes[lane as usize].passage;
        passage.is_queued = false;
        let queue = &mut cards.queues[passage.unit.unwrap_or(0) as usize];
        let left = queue.pop_front();
        assert_eq!(left, Some(lane), "only the first lane of a queue has an event");
        let lane_at = |place: usize| queue.get(place).map(|lane| &self.lanes[*lane as usize]);
        if let Some(state) = lane_at(PREFETCH_STATE) {
            state.prefetch();
        }
        if let Some(state) = lane_at(PREFETCH_BATCH) {
            state.batch.prefetch();
        }
        if let Some(state) = lane_at(PREFETCH_WORDS)
            && let Phase::Sending(index) = state.phase
        {
            let run = state.batch.sent.get(index..state.passage.run.end).unwrap_or_default();
            run.iter().for_each(|sent| prefetch(sent.words_in(self.region.memory())));
            run.last().into_iter().for_each(|sent| cards.node.words.prefetch(sent.addr));
        }
        let Some(next) = queue.front().copied() else { return };
        let state = &self.lanes[next as usize];
        self.queue.push(state.passage.run.starts_ps.div_ceil(PS).max(self.now_ns), Due::Lane(next));
    }

    /// Executes verb `index` and sends its reply, unless a fault stops it.
    #[inline(always)]
    fn take_effect(&mut self, lane: u32, index: usize) -> Option<Step> {
        let client = self.lanes[lane as usize].client;
        let faults = &self.clients[client as usize];
        if faults.verbs >= faults.fault_after
            && let Injected::Stop(step) = self.inject_faults(lane, index)
        {
            return Some(step);
        }
        self.count_verb(lane);
        if self.lanes[lane as usize].batch.is_call(index) {
            let (cards, state) = (self.cards.as_mut().expect("as above"), &mut self.lanes[lane as usize]);
            let stored_ns = cards.store_request(client, &mut state.passage, &state.batch, self.now_ns);
            return Some(self.store_request(lane, stored_ns));
        }
        // One that was delayed on its way comes anew.
        self.pass_element(lane, index + 1);
        let words = self.lanes[lane as usize].batch.sent[index].words as usize;
        self.execute_part(lane, index, 0..words);
        let state = &mut self.lanes[lane as usize];
        let cards = self.cards.as_mut().expect("only a model with cards serves verbs");
        cards.move_on(client, &mut state.passage, &state.batch, index, self.now_ns);
        None
    }

    /// Returns the time at which the replies to a lane's batch arrive.
    pub(crate) fn replied_ns(&mut self, lane: u32) -> u64 {
        let cards = self.cards.as_mut().expect("only a model with cards serves verbs");
        let jitter_ns = self.draws.below(cards.jitter_ns());
        let state = &self.lanes[lane as usize];
        cards.replied_ns(state.client, &state.passage, self.now_ns, jitter_ns)
    }
}
