//! The simulated world: the memory node, the batches in flight, and the order of events.
//!
//! Invariants: a lane whose batch is in flight has exactly one event in the queue, for its next verb, the rest of a
//! split verb, or the reply, or it waits in the queue of a network card; time never runs backwards; the order of events
//! depends only on the seed, the plan and the batches that clients post.

use std::collections::HashMap;
use std::ops::Range;
use std::task::{Context, Poll};

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::{check, prefetch, prefetch_line};
use guira_fabric::{Addr, Caps, Effect, FabricError, Profile, Region, Space, Verb, WORD_BYTES};

use crate::batch::{Batch, Sent, VerbKind};
use crate::card::Cards;
use crate::client::ClientState;
use crate::draws::Draws;
use crate::element::Element;
use crate::fault::FaultPlan;
use crate::inject::Injected;
use crate::lane_state::{LaneState, Phase};
use crate::latencies::Latencies;
use crate::log::{Event, EventKind, EventLog, Part};
use crate::network::Network;
use crate::queue::{Due, Queue};
use crate::service::Services;
use crate::sim::{ClientId, Model, SimOptions};

/// The longest time between the two parts of a split verb.
const SPLIT_NS: u64 = 200;
/// The longest time between the end of a batch and the moment at which a READ of it samples again: long enough for the
/// batch of another client.
const RESAMPLE_NS: u64 = 4_000;
/// The maximum number of pieces of a scattered READ, or of each packet of a scattered WRITE.
const MOST_PIECES: u64 = 4;

/// The state shared by the lanes of one simulation.
pub(crate) struct World {
    /// The number of the simulation.
    pub(crate) simulation: u64,
    pub(crate) region: HeapRegion,
    pub(crate) log: EventLog,
    pub(crate) now_ns: u64,
    /// The time at which the current run stops.
    pub(crate) end_ns: u64,
    /// The number of verbs executed.
    pub(crate) verbs: u64,
    pub(crate) faults: FaultPlan,
    /// The bytes that were reserved, if there is not memory for all.
    granted: Vec<Range<u64>>,
    pub(crate) queue: Queue,
    pub(crate) lanes: Vec<LaneState>,
    pub(crate) clients: Vec<ClientState>,
    /// The last holder of each client slot.
    pub(crate) holders: HashMap<u16, u32>,
    pub(crate) draws: Draws,
    /// The function that is called with each batch that is sent.
    pub(crate) batch_watcher: Option<BatchWatcher>,
    latencies: Latencies,
    /// The network cards, if they are modelled: [`World::serve`] then executes verbs, and `latencies` are not used.
    pub(crate) cards: Option<Box<Cards>>,
    /// The service of the memory node, if it has one.
    pub(crate) services: Option<Box<Services>>,
    /// The element in front of the memory node, if there is one.
    pub(crate) element: Option<Box<dyn Element>>,
}

/// A function that is called with each batch and the client that sends it.
pub(crate) type BatchWatcher = Box<dyn FnMut(ClientId, &[Verb<'_>])>;

/// The outcome of a step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// No task was woken.
    Silent,
    /// A task was woken.
    Woke,
    /// This client died.
    Killed(u32),
    /// No event is left before the end of the run.
    Over,
}

impl World {
    pub(crate) fn new(region: HeapRegion, options: &SimOptions, simulation: u64) -> World {
        let mut queue = Queue::new();
        for (index, fault) in options.faults.node.iter().enumerate() {
            queue.push(fault.at_ns, Due::Node(index as u32));
        }
        let (network, cards) = match &options.model {
            Model::Network(network) => (*network, None),
            Model::Cluster(cluster) => {
                options.faults.relaxations.validate_for_cards();
                assert!(!region.caps().local, "verbs on a cluster cross a network");
                let cards = Cards::new(cluster, region.device_bytes());
                (Network::of(Profile::Mlx5), Some(Box::new(cards)))
            }
        };
        World {
            simulation,
            region,
            latencies: Latencies::new(network),
            cards,
            services: None,
            element: None,
            log: EventLog::new(options.keep_events),
            now_ns: 0,
            end_ns: 0,
            verbs: 0,
            faults: options.faults.clone(),
            granted: Vec::new(),
            queue,
            draws: Draws::new(options.seed),
            batch_watcher: None,
            holders: HashMap::new(),
            lanes: Vec::new(),
            clients: Vec::new(),
        }
    }

    pub(crate) fn caps(&self) -> &Caps {
        self.region.caps()
    }

    /// Whether verbs of a batch may be executed in another order than that of the batch.
    fn may_reorder(&self) -> bool {
        !self.caps().ordered_read_sampling
    }

    /// Adds a client on `host`.
    pub(crate) fn add_client(&mut self, host: u32) -> ClientId {
        if let Some(cards) = &mut self.cards {
            cards.add_client(host);
        }
        let client = ClientId(self.clients.len() as u32);
        self.clients.push(ClientState::new(client, &self.faults));
        client
    }

    /// Adds a lane of `client`.
    pub(crate) fn add_lane(&mut self, client: ClientId) -> u32 {
        self.add_lane_state(LaneState::new(client.0))
    }

    pub(crate) fn add_lane_state(&mut self, lane: LaneState) -> u32 {
        let index = self.lanes.len() as u32;
        self.clients[lane.client as usize].lanes.push(index);
        self.lanes.push(lane);
        index
    }

    /// Whether no event is scheduled.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.next_ns().is_none()
    }

    /// Executes the next event.
    #[inline]
    pub(crate) fn step(&mut self) -> Step {
        let Some((at_ns, due)) = self.queue.pop_until(self.end_ns) else { return Step::Over };
        self.now_ns = at_ns;
        if let Some(Due::Lane(next)) = self.queue.upcoming() {
            let next = &self.lanes[next as usize];
            prefetch_line(&next.phase);
            prefetch_line(&next.batch);
        }
        match due {
            Due::Lane(lane) => self.advance(lane),
            Due::Pause(lane) => self.resume(lane),
            Due::Late(lane) => self.show_late(lane),
            Due::Node(fault) => self.inject_node_fault(fault as usize),
            Due::Thread(thread) => self.run_thread(thread),
        }
    }

    fn advance(&mut self, lane: u32) -> Step {
        if self.lanes[lane as usize].passage.is_queued {
            self.leave_queue(lane);
        }
        let state = &mut self.lanes[lane as usize];
        let client = &self.clients[state.client as usize];
        if client.is_dead {
            return Step::Silent;
        }
        match state.phase {
            Phase::Sending(next) if self.cards.is_some() => self.serve(lane, next),
            Phase::Sending(next) if next < state.batch.sent.len() => self.deliver(lane, next),
            Phase::Sending(verbs) => self.sample_again(lane, verbs),
            Phase::Returning if client.stalled_until_ns > self.now_ns => {
                self.queue.push(client.stalled_until_ns, Due::Lane(lane));
                Step::Silent
            }
            Phase::Returning if state.is_notice => {
                state.phase = Phase::Idle;
                state.has_failed = false;
                state.wake();
                self.log_event(lane, EventKind::Replied);
                Step::Woke
            }
            Phase::Returning => {
                state.phase = Phase::Landed;
                state.wake();
                self.log_event(lane, EventKind::Replied);
                Step::Woke
            }
            Phase::Requesting => self.enter_service(lane),
            Phase::Idle | Phase::Serving | Phase::Landed => Step::Silent,
        }
    }

    fn resume(&mut self, lane: u32) -> Step {
        let state = &mut self.lanes[lane as usize];
        let client = &self.clients[state.client as usize];
        if state.pause_until_ns.is_none_or(|until_ns| until_ns > self.now_ns) || client.is_dead {
            return Step::Silent;
        }
        if client.stalled_until_ns > self.now_ns {
            self.queue.push(client.stalled_until_ns, Due::Pause(lane));
            return Step::Silent;
        }
        state.pause_until_ns = None;
        state.wake();
        self.log_event(lane, EventKind::Resumed);
        Step::Woke
    }

    fn show_late(&mut self, lane: u32) -> Step {
        self.lanes[lane as usize].show_late(self.region.memory());
        self.log_event(lane, EventKind::Visible);
        Step::Silent
    }

    /// Executes verb `next` of a lane's batch, or the rest of it, and further verbs as long as no other event comes in
    /// between.
    fn deliver(&mut self, lane: u32, mut next: usize) -> Step {
        loop {
            if let Some(piece) = self.lanes[lane as usize].remaining.pop() {
                self.execute_part(lane, next, piece);
            } else {
                let client = &self.clients[self.lanes[lane as usize].client as usize];
                if client.verbs >= client.fault_after
                    && let Injected::Stop(step) = self.inject_faults(lane, next)
                {
                    return step;
                }
                if self.lanes[lane as usize].batch.is_call(next) {
                    self.count_verb(lane);
                    let stored_ns = self.latencies.occupy(&self.lanes[lane as usize].batch.sent[next], self.now_ns);
                    return self.store_request(lane, stored_ns);
                }
                self.begin(lane, next);
            }
            let state = &mut self.lanes[lane as usize];
            let at_ns = if !state.remaining.is_empty() {
                self.now_ns + 1 + self.draws.below(SPLIT_NS)
            } else {
                next += 1;
                self.now_ns + 1 + self.draws.below(self.latencies.network.gap_ns)
            };
            if next == state.batch.sent.len() {
                return self.finish(lane, next);
            }
            if at_ns > self.end_ns || self.queue.next_ns().is_some_and(|other_ns| other_ns <= at_ns) {
                state.phase = Phase::Sending(next);
                self.queue.push(at_ns, Due::Lane(lane));
                return Step::Silent;
            }
            self.now_ns = at_ns;
        }
    }

    /// Sends the reply to a batch whose verbs were all executed, after the READs that sample again.
    fn finish(&mut self, lane: u32, verbs: usize) -> Step {
        let state = &mut self.lanes[lane as usize];
        if state.resampled.is_empty() {
            self.reply(lane);
        } else {
            state.phase = Phase::Sending(verbs);
            let at_ns = self.now_ns + 1 + self.draws.below(RESAMPLE_NS);
            self.queue.push(at_ns, Due::Lane(lane));
        }
        Step::Silent
    }

    /// Samples words of one READ again.
    #[cold]
    fn sample_again(&mut self, lane: u32, verbs: usize) -> Step {
        if let Some((index, words)) = self.lanes[lane as usize].resampled.pop() {
            self.execute_part(lane, index, words);
        }
        self.finish(lane, verbs)
    }

    /// Handles the arrival of a verb: it occupies the link, and is executed completely or in part.
    fn begin(&mut self, lane: u32, index: usize) {
        self.pass_element(lane, index + 1);
        let state = &mut self.lanes[lane as usize];
        let sent = state.batch.sent[index];
        state.done_ns = state.done_ns.max(self.latencies.occupy(&sent, self.now_ns));
        self.count_verb(lane);
        if self.faults.relaxations.resample_percent > 0 && sent.kind == VerbKind::Read {
            self.plan_resample(lane, index, sent.words as usize);
        }
        let now = self.first_part(lane, &sent);
        self.execute_part(lane, index, now);
    }

    /// Draws whether a READ samples some of its words again at the end of its batch.
    #[cold]
    fn plan_resample(&mut self, lane: u32, index: usize, words: usize) {
        let percent = u64::from(self.faults.relaxations.resample_percent);
        if !self.may_reorder() || words == 0 || self.draws.below(100) >= percent {
            return;
        }
        let start = self.draws.below(words as u64) as usize;
        let end = start + 1 + self.draws.below((words - start) as u64) as usize;
        // An answer is lost as a whole, or late in parts.
        let again = if self.draws.below(2) == 0 { 0..words } else { start..end };
        self.lanes[lane as usize].resampled.push((index, again));
    }

    #[inline(always)]
    pub(crate) fn count_verb(&mut self, lane: u32) {
        self.clients[self.lanes[lane as usize].client as usize].verbs += 1;
        self.verbs += 1;
    }

    /// Returns the words of a verb that are executed at once. The others are executed later.
    #[inline(always)]
    fn first_part(&mut self, lane: u32, sent: &Sent) -> Range<usize> {
        let (words, percent) = (sent.words as usize, self.faults.relaxations.split_percent);
        if self.faults.relaxations.scatter_percent > 0
            && let Some(first) = self.scatter(lane, sent)
        {
            return first;
        }
        let splits = percent > 0 && words > 1 && matches!(sent.kind, VerbKind::Read | VerbKind::Write);
        if !splits || self.draws.below(100) >= u64::from(percent) {
            return 0..words;
        }
        let at = 1 + self.draws.below(words as u64 - 1) as usize;
        let last_first = sent.kind == VerbKind::Read && !self.caps().local && self.draws.below(2) == 0;
        let (now, rest) = if last_first { (at..words, 0..at) } else { (0..at, at..words) };
        self.lanes[lane as usize].remaining.push(rest);
        now
    }

    /// Draws whether a READ or WRITE is executed in several pieces, and returns the first of them.
    #[cold]
    fn scatter(&mut self, lane: u32, sent: &Sent) -> Option<Range<usize>> {
        let (words, percent) = (sent.words as usize, u64::from(self.faults.relaxations.scatter_percent));
        let is_long = words > 1 && matches!(sent.kind, VerbKind::Read | VerbKind::Write);
        if !is_long || !self.may_reorder() || self.draws.below(100) >= percent {
            return None;
        }
        let unit_words = usize::try_from(self.caps().atomic_write_unit / WORD_BYTES).unwrap_or(words).max(1);
        let packet_words = if sent.kind == VerbKind::Write { unit_words } else { words };
        let mut pieces = Vec::new();
        for start in (0..words).step_by(packet_words) {
            let first = pieces.len();
            self.cut_packet(start..words.min(start + packet_words), &mut pieces);
            self.draws.shuffle(&mut pieces[first..]);
        }
        pieces.reverse();
        let now = pieces.pop();
        self.lanes[lane as usize].remaining = pieces;
        now
    }

    /// Cuts the words of a packet into a few pieces.
    fn cut_packet(&mut self, packet: Range<usize>, pieces: &mut Vec<Range<usize>>) {
        let mut start = packet.start;
        for _ in 1..MOST_PIECES {
            let end = start + 1 + self.draws.below((packet.end - start) as u64) as usize;
            pieces.push(start..end);
            start = end;
            if start == packet.end {
                return;
            }
        }
        pieces.push(start..packet.end);
    }

    /// Executes the words `part` of verb `index`.
    #[inline(always)]
    pub(crate) fn execute_part(&mut self, lane: u32, index: usize, part: Range<usize>) {
        let state = &mut self.lanes[lane as usize];
        let sent = state.batch.sent[index];
        let (addr, words) = (sent.addr.add_words(part.start as u64), part.len() as u32);
        let lag_ns = self.faults.relaxations.main_lag_ns;
        let word = if lag_ns > 0 && sent.addr.space() == Space::Main {
            self.execute_late(lane, index, part)
        } else {
            state.batch.execute(self.region.memory(), index, part)
        };
        self.log_event(lane, EventKind::verb(sent.kind, Part { addr, words, word }));
        self.answer_through_element(lane, index);
    }

    /// Same as [`World::execute_part`], but WRITEs become visible to other lanes later.
    #[cold]
    fn execute_late(&mut self, lane: u32, index: usize, part: Range<usize>) -> u64 {
        let state = &mut self.lanes[lane as usize];
        let sent = state.batch.sent[index];
        if sent.kind != VerbKind::Write {
            state.show_late(self.region.memory());
            return state.batch.execute(self.region.memory(), index, part);
        }
        if state.late_writes.is_empty() {
            let lag_ns = 1 + self.draws.below(self.faults.relaxations.main_lag_ns);
            self.queue.push(self.now_ns + lag_ns, Due::Late(lane));
        }
        let words = state.batch.written(index, part.clone()).to_vec();
        let word = words.first().copied().unwrap_or(0);
        state.late_writes.push((sent.addr.add_words(part.start as u64), words));
        word
    }

    /// Sends the reply to a batch that has ended.
    pub(crate) fn reply(&mut self, lane: u32) {
        let replied_ns = if self.cards.is_some() { self.replied_ns(lane) } else { self.travelled_ns(lane) };
        let noticed_ns = self.loss_noticed_ns();
        let state = &mut self.lanes[lane as usize];
        state.phase = Phase::Returning;
        let at_ns = if state.has_failed { noticed_ns } else { replied_ns };
        self.queue.push(at_ns, Due::Lane(lane));
    }

    /// Returns the time at which the reply arrives that is sent when the node is done with a lane's batch.
    #[inline(always)]
    fn travelled_ns(&mut self, lane: u32) -> u64 {
        let network = &self.latencies.network;
        let travel_ns = network.to_client_ns + self.draws.below(network.jitter_ns);
        let state = &self.lanes[lane as usize];
        let fetch_ns = if state.batch.fetches() { network.fetch_ns } else { 0 };
        state.done_ns.max(self.now_ns) + fetch_ns + travel_ns
    }

    #[inline(always)]
    pub(crate) fn log_event(&mut self, lane: u32, kind: EventKind) {
        let client = self.lanes[lane as usize].client;
        self.log.record(Event { at_ns: self.now_ns, client, lane, kind });
    }

    /// Sends the verbs of `batch` on the lane.
    pub(crate) fn submit(&mut self, lane: u32, batch: &[Verb<'_>]) -> Result<(), FabricError> {
        self.check_lane(lane)?;
        let may_reorder = self.may_reorder();
        let state = &mut self.lanes[lane as usize];
        let memory = self.region.memory();
        check(memory, self.region.caps(), batch)?;
        if let Some(watcher) = &mut self.batch_watcher {
            watcher(ClientId(state.client), batch);
        }
        // Verbs of other batches are executed before these arrive, so the prefetched words are in the cache by then.
        batch.iter().filter_map(|verb| memory.range(verb).ok()).for_each(prefetch);
        state.batch.send(batch);
        let percent = self.faults.relaxations.swap_percent;
        if percent > 0 && may_reorder && self.draws.below(100) < u64::from(percent) {
            state.batch.swap_reads(&mut self.draws);
        }
        let percent = self.faults.relaxations.overtake_percent;
        if percent > 0 && may_reorder && self.draws.below(100) < u64::from(percent) {
            state.batch.overtake(&mut self.draws);
        }
        state.is_notice = false;
        self.depart(lane, batch.len());
        Ok(())
    }

    /// Fails unless the lane can carry a batch.
    #[inline(always)]
    pub(crate) fn check_lane(&self, lane: u32) -> Result<(), FabricError> {
        let state = &self.lanes[lane as usize];
        if self.clients[state.client as usize].is_dead {
            return Err(FabricError::Died { effect: Effect::None });
        }
        if state.phase != Phase::Idle {
            return Err(FabricError::Backend("a batch is still in flight on this lane".to_owned()));
        }
        if state.is_lost {
            return Err(FabricError::Disconnected { effect: Effect::None });
        }
        Ok(())
    }

    /// Sends the lane's batch, of so many verbs.
    #[inline(always)]
    pub(crate) fn depart(&mut self, lane: u32, verbs: usize) {
        let state = &mut self.lanes[lane as usize];
        state.done_ns = self.now_ns;
        state.phase = if verbs == 0 { Phase::Returning } else { Phase::Sending(0) };
        let arrives_ns = match &mut self.cards {
            None => {
                let network = &self.latencies.network;
                self.now_ns + network.to_node_ns + self.draws.below(network.jitter_ns)
            }
            Some(cards) => {
                let jitter_ns = self.draws.below(cards.jitter_ns());
                cards.post(state.client, &mut state.passage, &state.batch, self.now_ns, jitter_ns)
            }
        };
        self.queue.push(arrives_ns, Due::Lane(lane));
        self.log_event(lane, EventKind::Posted(verbs as u32));
    }

    /// Receives the reply to the lane's batch, if it has arrived, and passes the results to `receive`.
    pub(crate) fn poll<T>(
        &mut self,
        lane: u32,
        cx: &mut Context<'_>,
        receive: impl FnOnce(&Batch) -> T,
    ) -> Poll<Result<T, FabricError>> {
        let state = &mut self.lanes[lane as usize];
        match state.phase {
            Phase::Idle => Poll::Ready(Err(FabricError::Backend("no batch is in flight on this lane".to_owned()))),
            Phase::Sending(_) | Phase::Requesting | Phase::Serving | Phase::Returning => {
                state.register(cx);
                Poll::Pending
            }
            Phase::Landed => {
                state.phase = Phase::Idle;
                if std::mem::take(&mut state.has_failed) {
                    return Poll::Ready(Err(FabricError::Disconnected { effect: state.effect() }));
                }
                Poll::Ready(Ok(receive(&state.batch)))
            }
        }
    }

    /// Whether the lane has no batch, not even one whose reply has arrived.
    pub(crate) fn is_idle(&self, lane: u32) -> bool {
        self.lanes[lane as usize].phase == Phase::Idle
    }

    /// Begins a computation of `client` that takes `near_ns` on a near thread. Returns its end.
    pub(crate) fn compute(&mut self, client: u32, near_ns: u64) -> u64 {
        match &mut self.cards {
            None => self.now_ns + near_ns,
            Some(cards) => cards.compute(client, near_ns, self.now_ns),
        }
    }

    /// Makes memory for `bytes` of the main space, for the client of `lane`. Returns the time at which the client learns
    /// that it is there; `None` if there is no more memory.
    pub(crate) fn reserve(&mut self, lane: u32, bytes: &Range<u64>) -> Option<u64> {
        let (addr, length) = (Addr::main(bytes.start), bytes.end - bytes.start);
        if !self.has_memory_for(bytes) {
            self.log_event(lane, EventKind::Refused(addr, length));
            return None;
        }
        self.log_event(lane, EventKind::Reserved(addr, length));
        Some(self.reserved_ns(lane, bytes))
    }

    fn has_memory_for(&mut self, bytes: &Range<u64>) -> bool {
        let Some(limit) = &mut self.faults.memory else { return true };
        let is_hole = limit.holes.iter().any(|hole| hole.start < bytes.end && bytes.start < hole.end);
        if !is_hole || self.granted.contains(bytes) {
            return true;
        }
        if self.now_ns >= limit.until_ns {
            return true;
        }
        let is_granted = limit.grants > 0;
        limit.grants -= u64::from(is_granted);
        self.granted.extend(is_granted.then(|| bytes.clone()));
        is_granted
    }

    /// Returns the time at which a client learns that its memory is there.
    fn reserved_ns(&mut self, lane: u32, bytes: &Range<u64>) -> u64 {
        let Some(cards) = &mut self.cards else { return self.now_ns };
        let jitter_ns = [0; 2].map(|_| self.draws.below(cards.jitter_ns()));
        cards.reserve(self.lanes[lane as usize].client, bytes, self.now_ns, jitter_ns)
    }

    /// Waits until `until_ns`.
    pub(crate) fn poll_pause(&mut self, lane: u32, until_ns: u64, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut self.lanes[lane as usize];
        if self.now_ns >= until_ns {
            return Poll::Ready(());
        }
        state.register(cx);
        if state.pause_until_ns != Some(until_ns) {
            state.pause_until_ns = Some(until_ns);
            self.queue.push(until_ns, Due::Pause(lane));
        }
        Poll::Pending
    }
}
