//! Faults as they happen: see [`crate::FaultPlan`].

use guira_fabric::memory::Ordering;
use guira_fabric::{Addr, WORD_BYTES};

use crate::batch::{Batch, VerbKind};
use crate::fault::{Fault, Lost, NodeEvent};
use crate::lane_state::{LaneState, Phase};
use crate::log::{Event, EventKind};
use crate::queue::Due;
use crate::world::{Step, World};

/// How long it takes a client to notice that its connection is lost: retransmissions run into their limit.
const LOSS_NOTICED_NS: u64 = 100_000;

/// What becomes of a verb before which a fault came.
pub(crate) enum Injected {
    /// It is carried out.
    Proceed,
    /// It is not, or not yet.
    Stop(Step),
}

impl World {
    /// Lets the faults happen that come before verb `index` of the lane's batch.
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
                    self.note(lane, EventKind::Stalled(for_ns));
                    let until_ns = self.now_ns.saturating_add(for_ns);
                    self.clients[client as usize].stalled_until_ns = until_ns;
                    if self.caps().local {
                        self.halt_inside(lane, index);
                        return Injected::Stop(self.postpone(lane, index, until_ns));
                    }
                }
                Fault::DelayTail { by_ns } => {
                    self.note(lane, EventKind::Delayed(by_ns));
                    return Injected::Stop(self.postpone(lane, index, self.now_ns.saturating_add(by_ns)));
                }
                Fault::LoseConnection(lost) => {
                    self.note(lane, EventKind::Disconnected);
                    let state = &mut self.lanes[lane as usize];
                    state.is_lost = true;
                    state.has_failed = true;
                    match lost {
                        Lost::Reply => continue,
                        Lost::Request => {}
                        Lost::Late { by_ns } => self.detach(lane, index, by_ns),
                    }
                    self.reply(lane);
                    return Injected::Stop(Step::Silent);
                }
            }
        }
        Injected::Proceed
    }

    /// Carries out the first `units` atomic units of a WRITE.
    fn cut(&mut self, lane: u32, index: usize, units: u64) {
        let sent = self.lanes[lane as usize].batch.sent[index];
        let bytes = units.saturating_mul(self.caps().atomic_write_unit);
        let words = (bytes / WORD_BYTES).min(u64::from(sent.words)) as usize;
        if sent.kind == VerbKind::Write && words > 0 {
            self.carry_out(lane, index, 0..words);
        }
    }

    /// Carries out a drawn part of a WRITE, of any number of words: its client is stopped in the middle of it.
    fn halt_inside(&mut self, lane: u32, index: usize) {
        let sent = self.lanes[lane as usize].batch.sent[index];
        let words = if sent.kind == VerbKind::Write { sent.words as usize } else { 0 };
        let written = self.draws.below(words as u64) as usize;
        if written > 0 {
            self.count_verb(lane);
            self.lanes[lane as usize].remaining = Some(written..words);
            self.carry_out(lane, index, 0..written);
        }
    }

    /// The client is dead from here on.
    fn kill(&mut self, client: u32, lane: u32) -> Step {
        self.note(lane, EventKind::Died);
        self.clients[client as usize].is_dead = true;
        for other in std::mem::take(&mut self.clients[client as usize].lanes) {
            // A WRITE that others were let into the middle of ends as it began: only a cut tears it for good.
            if let Phase::Sending(index) = self.lanes[other as usize].phase
                && let Some(rest) = self.lanes[other as usize].remaining.take()
            {
                self.carry_out(other, index, rest);
            }
            // Late WRITEs will still be seen; of the rest nobody hears again.
            self.lanes[other as usize].batch = Batch::default();
        }
        Step::Killed(client)
    }

    /// Lets the rest of a lane's batch come by itself, `by_ns` after its client has noticed that it failed.
    fn detach(&mut self, lane: u32, index: usize, by_ns: u64) {
        let detached = self.add_lane_state(LaneState::detached_from(&self.lanes[lane as usize], index));
        self.queue.push(self.loss_noticed_ns().saturating_add(by_ns), Due::Lane(detached));
    }

    /// Whether `client` may hold `slot`, whose liveness nobody has: whether none of the verbs of the client that held
    /// it last can be carried out any more. If some can, the node either waits for them, or drops them.
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

    /// The lanes without a client on which verbs of `client` are still to come.
    fn detached_lanes_of(&self, client: u32) -> impl Iterator<Item = u32> {
        // The dead have no lanes.
        let lanes = self.clients[client as usize].lanes.iter().copied();
        lanes.filter(|index| {
            let lane = &self.lanes[*index as usize];
            lane.is_detached && matches!(lane.phase, Phase::Sending(_))
        })
    }

    fn drop_detached(&mut self, lane: u32) {
        let state = &mut self.lanes[lane as usize];
        let Phase::Sending(index) = std::mem::replace(&mut state.phase, Phase::Idle) else { return };
        if let Some(rest) = state.remaining.take() {
            self.carry_out(lane, index, rest);
        }
        self.note(lane, EventKind::Fenced);
    }

    fn postpone(&mut self, lane: u32, index: usize, until_ns: u64) -> Step {
        self.lanes[lane as usize].phase = Phase::Sending(index);
        self.queue.push(until_ns, Due::Lane(lane));
        Step::Silent
    }

    /// When a client learns that a batch failed which ends now.
    pub(crate) fn loss_noticed_ns(&self) -> u64 {
        self.now_ns + LOSS_NOTICED_NS
    }

    /// Lets fault `index` of the node happen.
    #[cold]
    pub(crate) fn inject_node_fault(&mut self, index: usize) -> Step {
        let kind = match self.faults.node[index].fault {
            NodeEvent::Restart => {
                self.restart();
                EventKind::Restarted
            }
            NodeEvent::Flip { addr, bits } => {
                self.flip(addr, bits);
                EventKind::Flipped(addr, bits)
            }
        };
        self.log.note(Event { at_ns: self.now_ns, client: Event::NODE, lane: Event::NODE, kind });
        Step::Silent
    }

    fn restart(&mut self) {
        let memory = self.region.memory();
        memory.main.iter().chain(memory.device).for_each(|word| word.store(0, Ordering::Relaxed));
        for lane in &mut self.lanes {
            lane.is_lost = true;
            lane.late_writes.clear();
            lane.remaining = None;
            if matches!(lane.phase, Phase::Sending(_)) {
                // The event that would bring its next verb brings the bad news.
                lane.has_failed = true;
                lane.phase = Phase::Returning;
            }
        }
    }

    fn flip(&self, addr: Addr, bits: u64) {
        self.region.memory().space(addr.space())[addr.word() as usize].fetch_xor(bits, Ordering::Relaxed);
    }
}
