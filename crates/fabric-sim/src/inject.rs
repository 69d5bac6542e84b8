//! Injection of the faults of a [`crate::FaultPlan`].

use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, WORD_BYTES};

use crate::batch::{Batch, VerbKind};
use crate::fault::{Fault, Lost, NodeEvent};
use crate::lane_state::{LaneState, Phase};
use crate::log::{Event, EventKind};
use crate::queue::Due;
use crate::world::{Step, World};

/// The time until a client notices that its connection is lost, when its retransmissions reach their limit.
const LOSS_NOTICED_NS: u64 = 100_000;

/// The effect of injected faults on the next verb.
pub(crate) enum Injected {
    /// The verb is executed.
    Proceed,
    /// The verb is not executed, or not yet.
    Stop(Step),
}

impl World {
    /// Injects the faults that are due before verb `index` of the lane's batch.
    #[cold]
    pub(crate) fn inject_faults(&mut self, lane: u32, index: usize) -> Injected {
        let client = self.lanes[lane as usize].client;
        while let Some(fault) = self.clients[client as usize].take_fault() {
            match fault {
                Fault::Die { units } => {
                    self.cut(lane, index, units);
                    return Injected::Stop(self.kill(client, lane));
                }
                Fault::Stall { for_ns } => {
                    self.log_event(lane, EventKind::Stalled(for_ns));
                    let until_ns = self.now_ns.saturating_add(for_ns);
                    self.clients[client as usize].stalled_until_ns = until_ns;
                    if self.caps().local {
                        self.halt_inside(lane, index);
                        return Injected::Stop(self.postpone(lane, index, until_ns));
                    }
                }
                Fault::DelayTail { by_ns } => {
                    self.log_event(lane, EventKind::Delayed(by_ns));
                    return Injected::Stop(self.postpone(lane, index, self.now_ns.saturating_add(by_ns)));
                }
                Fault::LoseConnection(lost) => {
                    self.lose_connection(lane);
                    match lost {
                        Lost::Reply => continue,
                        Lost::Request => {}
                        Lost::Late { by_ns } => self.detach(lane, index, by_ns),
                    }
                    self.reply(lane);
                    return Injected::Stop(Step::Silent);
                }
                Fault::AfterWrite { words, verbs, then } => {
                    let sent = self.lanes[lane as usize].batch.sent[index];
                    let is_met = sent.kind == VerbKind::Write && u64::from(sent.words) >= words;
                    let (verbs, fault) =
                        if is_met { (verbs, *then) } else { (1, Fault::AfterWrite { words, verbs, then }) };
                    self.clients[client as usize].add_fault(verbs, fault);
                }
            }
        }
        Injected::Proceed
    }

    /// Loses the connection of a lane: its client gets no answer to the batch in flight.
    #[cold]
    pub(crate) fn lose_connection(&mut self, lane: u32) {
        self.log_event(lane, EventKind::Disconnected);
        let state = &mut self.lanes[lane as usize];
        state.is_lost = true;
        state.has_failed = true;
    }

    /// Executes the first `units` atomic units of a WRITE.
    fn cut(&mut self, lane: u32, index: usize, units: u64) {
        let sent = self.lanes[lane as usize].batch.sent[index];
        let bytes = units.saturating_mul(self.caps().atomic_write_unit);
        let words = (bytes / WORD_BYTES).min(u64::from(sent.words)) as usize;
        if sent.kind == VerbKind::Write && words > 0 {
            self.execute_part(lane, index, 0..words);
        }
    }

    /// Executes a random number of the words of a WRITE, because its client is stopped in the middle of it.
    fn halt_inside(&mut self, lane: u32, index: usize) {
        let sent = self.lanes[lane as usize].batch.sent[index];
        let words = if sent.kind == VerbKind::Write { sent.words as usize } else { 0 };
        let written = self.draws.below(words as u64) as usize;
        if written > 0 {
            self.count_verb(lane);
            self.lanes[lane as usize].remaining.push(written..words);
            self.execute_part(lane, index, 0..written);
        }
    }

    /// Marks the client as dead.
    fn kill(&mut self, client: u32, lane: u32) -> Step {
        self.log_event(lane, EventKind::Died);
        self.clients[client as usize].is_dead = true;
        for other in std::mem::take(&mut self.clients[client as usize].lanes) {
            // A WRITE that was split is completed: only a cut tears it for good.
            if let Phase::Sending(index) = self.lanes[other as usize].phase {
                self.complete_split(other, index);
            }
            // Late WRITEs will still become visible; the rest of the batch is dropped.
            self.lanes[other as usize].batch = Batch::default();
        }
        Step::Killed(client)
    }

    /// Moves the rest of a lane's batch to a detached lane, on which it arrives `by_ns` after its client has noticed
    /// the failure.
    fn detach(&mut self, lane: u32, index: usize, by_ns: u64) {
        let detached = self.add_lane_state(LaneState::detached_from(&self.lanes[lane as usize], lane, index));
        self.queue.push(self.loss_noticed_ns().saturating_add(by_ns), Due::Lane(detached));
    }

    /// Whether `client` may hold the free client slot `slot`: only if no verb of its last holder can be executed any
    /// more. If some can, the node either makes the client wait, or drops them.
    pub(crate) fn may_hold(&mut self, slot: u16, client: u32) -> bool {
        if let Some(last) = self.holders.get(&slot).copied().filter(|last| *last != client)
            && !self.faults.relaxations.proves_early
            && self.detached_lanes_of(last).next().is_some()
        {
            if self.draws.below(2) == 0 {
                return false;
            }
            let detached: Vec<u32> = self.detached_lanes_of(last).collect();
            for lane in detached {
                self.drop_detached(lane);
            }
        }
        self.holders.insert(slot, client);
        true
    }

    /// Returns the detached lanes on which verbs of `client` are still to arrive.
    fn detached_lanes_of(&self, client: u32) -> impl Iterator<Item = u32> {
        // A dead client has no lanes.
        let lanes = self.clients[client as usize].lanes.iter().copied();
        lanes.filter(|index| {
            let lane = &self.lanes[*index as usize];
            lane.is_detached && matches!(lane.phase, Phase::Sending(_))
        })
    }

    fn drop_detached(&mut self, lane: u32) {
        let phase = &mut self.lanes[lane as usize].phase;
        let Phase::Sending(index) = std::mem::replace(phase, Phase::Idle) else { return };
        self.complete_split(lane, index);
        self.log_event(lane, EventKind::Fenced);
    }

    /// Executes the remaining pieces of verb `index`.
    fn complete_split(&mut self, lane: u32, index: usize) {
        while let Some(piece) = self.lanes[lane as usize].remaining.pop() {
            self.execute_part(lane, index, piece);
        }
    }

    fn postpone(&mut self, lane: u32, index: usize, until_ns: u64) -> Step {
        let state = &mut self.lanes[lane as usize];
        state.phase = Phase::Sending(index);
        state.batch.take_back(index);
        self.queue.push(until_ns, Due::Lane(lane));
        Step::Silent
    }

    /// Returns the time at which a client notices the failure of a batch that ends now.
    pub(crate) fn loss_noticed_ns(&self) -> u64 {
        self.now_ns + LOSS_NOTICED_NS
    }

    /// Injects fault `index` of the memory node.
    #[cold]
    pub(crate) fn inject_node_fault(&mut self, index: usize) -> Step {
        let kind = match self.faults.node[index].fault {
            NodeEvent::Restart => {
                self.restart();
                EventKind::Restarted
            }
            NodeEvent::StallService { for_ns } => {
                self.stall_service(for_ns);
                EventKind::ServiceStalled(for_ns)
            }
            NodeEvent::ResetElement => {
                self.element.iter_mut().for_each(|element| element.reset());
                EventKind::ElementReset
            }
            NodeEvent::Flip { addr, bits } => {
                self.flip(addr, bits);
                EventKind::Flipped(addr, bits)
            }
        };
        self.log.record(Event { at_ns: self.now_ns, client: Event::NODE, lane: Event::NODE, kind });
        Step::Silent
    }

    fn restart(&mut self) {
        let memory = self.region.memory();
        memory.main.iter().chain(memory.device).for_each(|word| word.store(0, Ordering::Relaxed));
        for lane in &mut self.lanes {
            lane.is_lost = true;
            lane.late_writes.clear();
            lane.remaining.clear();
            lane.resampled.clear();
            if matches!(lane.phase, Phase::Sending(_) | Phase::Requesting | Phase::Serving) {
                // The event that was scheduled for the next verb, or below, reports the failure.
                lane.has_failed = true;
                lane.phase = Phase::Returning;
            }
        }
        self.element.iter_mut().for_each(|element| element.reset());
        for lane in self.services.as_mut().map_or_else(Vec::new, |services| services.restart()) {
            self.queue.push(self.now_ns, Due::Lane(lane));
        }
    }

    fn flip(&self, addr: Addr, bits: u64) {
        self.region.memory().space(addr.space())[addr.word() as usize].fetch_xor(bits, Ordering::Relaxed);
    }
}
