//! The world: the memory node, every lane's batch on its way, and the order of what happens.
//!
//! Invariants: a lane has at most one event of its own in the queue, which brings its next verb or its reply; time never
//! runs backwards; nothing but the seed and the clients' own posts decides what happens when.

use std::task::{Context, Poll, Waker};

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::check;
use guira_fabric::{Caps, FabricError, Region, Verb};

use crate::batch::{Batch, Kind};
use crate::draws::Draws;
use crate::log::{Event, EventLog, Part, What};
use crate::network::Network;
use crate::queue::{Due, Queue};

/// Everything that is shared by the lanes of one simulation.
pub(crate) struct World {
    pub(crate) region: HeapRegion,
    pub(crate) log: EventLog,
    pub(crate) now_ns: u64,
    /// Nothing later than this happens.
    pub(crate) end_ns: u64,
    /// Verbs carried out.
    pub(crate) verbs: u64,
    network: Network,
    link: Link,
    queue: Queue,
    draws: Draws,
    lanes: Vec<LaneState>,
}

/// When each direction of the memory node's link is free again.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    in_ns: u64,
    out_ns: u64,
}

struct LaneState {
    client: u32,
    phase: Phase,
    batch: Batch,
    /// When the node is done with the verbs carried out.
    done_ns: u64,
    waker: Option<Waker>,
    /// Until when the lane waits, if it does.
    pause_until_ns: Option<u64>,
}

/// How far a lane's batch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Idle,
    /// This verb is the next to arrive.
    Sending(usize),
    /// Its reply is on its way.
    Returning,
    /// Its reply is here.
    Landed,
}

/// What a step of the world came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nobody noticed.
    Silent,
    /// Somebody was woken.
    Woke,
    /// Nothing is left before the end.
    Over,
}

impl World {
    pub(crate) fn new(region: HeapRegion, network: Network, seed: u64, keep_events: usize) -> World {
        World {
            region,
            network,
            log: EventLog::new(keep_events),
            now_ns: 0,
            end_ns: 0,
            verbs: 0,
            link: Link::default(),
            queue: Queue::new(),
            draws: Draws::new(seed),
            lanes: Vec::new(),
        }
    }

    pub(crate) fn caps(&self) -> &Caps {
        self.region.caps()
    }

    /// A new lane of `client`.
    pub(crate) fn add_lane(&mut self, client: u32) -> u32 {
        let lane = self.lanes.len() as u32;
        self.lanes.push(LaneState {
            client,
            phase: Phase::Idle,
            batch: Batch::default(),
            done_ns: 0,
            waker: None,
            pause_until_ns: None,
        });
        lane
    }

    /// Whether anything is left to happen.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.next_ns().is_none()
    }

    /// Lets the next thing happen.
    #[inline]
    pub(crate) fn step(&mut self) -> Step {
        match self.queue.next_ns() {
            Some(at_ns) if at_ns <= self.end_ns => {}
            _ => return Step::Over,
        }
        let Some((at_ns, due)) = self.queue.pop() else { return Step::Over };
        self.now_ns = at_ns;
        match due {
            Due::Lane(lane) => self.advance(lane),
            Due::Pause(lane) => self.resume(lane),
        }
    }

    fn advance(&mut self, lane: u32) -> Step {
        match self.lanes[lane as usize].phase {
            Phase::Sending(next) => {
                self.deliver(lane, next);
                Step::Silent
            }
            Phase::Returning => {
                let state = &mut self.lanes[lane as usize];
                state.phase = Phase::Landed;
                state.wake();
                self.note(lane, What::Replied);
                Step::Woke
            }
            Phase::Idle | Phase::Landed => Step::Silent,
        }
    }

    fn resume(&mut self, lane: u32) -> Step {
        let state = &mut self.lanes[lane as usize];
        if state.pause_until_ns != Some(self.now_ns) {
            return Step::Silent;
        }
        state.pause_until_ns = None;
        state.wake();
        self.note(lane, What::Resumed);
        Step::Woke
    }

    /// Carries out verb `next` of a lane's batch, and further ones while nothing else happens in between.
    fn deliver(&mut self, lane: u32, mut next: usize) {
        loop {
            self.execute(lane, next);
            next += 1;
            let state = &mut self.lanes[lane as usize];
            if next == state.batch.sent.len() {
                return self.reply(lane);
            }
            let at_ns = self.now_ns + self.network.gap_ns;
            if at_ns > self.end_ns || self.queue.next_ns().is_some_and(|other_ns| other_ns <= at_ns) {
                state.phase = Phase::Sending(next);
                return self.queue.push(at_ns, Due::Lane(lane));
            }
            self.now_ns = at_ns;
        }
    }

    fn execute(&mut self, lane: u32, index: usize) {
        let state = &mut self.lanes[lane as usize];
        let sent = state.batch.sent[index];
        let occupied_ns = self.network.occupied_ns(u64::from(sent.words));
        let free_ns = if sent.kind == Kind::Write { &mut self.link.in_ns } else { &mut self.link.out_ns };
        *free_ns = self.now_ns.max(*free_ns) + occupied_ns;
        state.done_ns = state.done_ns.max(*free_ns);
        let word = state.batch.execute(self.region.memory(), index, 0..sent.words as usize);
        self.verbs += 1;
        let part = Part { addr: sent.addr, words: sent.words, word };
        self.note(lane, What::verb(sent.kind, part));
    }

    /// Sends the reply to a batch that was carried out.
    fn reply(&mut self, lane: u32) {
        let travel_ns = self.network.to_client_ns + self.draws.below(self.network.jitter_ns);
        let state = &mut self.lanes[lane as usize];
        let fetch_ns = if state.batch.fetches() { self.network.fetch_ns } else { 0 };
        state.phase = Phase::Returning;
        self.queue.push(state.done_ns + fetch_ns + travel_ns, Due::Lane(lane));
    }

    #[inline(always)]
    fn note(&mut self, lane: u32, what: What) {
        let client = self.lanes[lane as usize].client;
        self.log.note(Event { at_ns: self.now_ns, client, lane, what });
    }

    /// Takes `batch` from its lane, and sends its verbs.
    pub(crate) fn submit(&mut self, lane: u32, batch: &[Verb<'_>]) -> Result<(), FabricError> {
        let state = &mut self.lanes[lane as usize];
        if state.phase != Phase::Idle {
            return Err(FabricError::Backend("a batch is still in flight on this lane".to_owned()));
        }
        check(self.region.memory(), self.region.caps(), batch)?;
        state.batch.send(batch);
        state.done_ns = self.now_ns;
        state.phase = if batch.is_empty() { Phase::Returning } else { Phase::Sending(0) };
        let travel_ns = self.network.to_node_ns + self.draws.below(self.network.jitter_ns);
        self.queue.push(self.now_ns + travel_ns, Due::Lane(lane));
        self.note(lane, What::Posted(batch.len() as u32));
        Ok(())
    }

    /// The reply to the lane's batch, if it is here: its results go to `receive`.
    pub(crate) fn poll<T>(
        &mut self,
        lane: u32,
        cx: &mut Context<'_>,
        receive: impl FnOnce(&Batch) -> T,
    ) -> Poll<Result<T, FabricError>> {
        let state = &mut self.lanes[lane as usize];
        match state.phase {
            Phase::Idle => Poll::Ready(Err(FabricError::Backend("no batch is in flight on this lane".to_owned()))),
            Phase::Sending(_) | Phase::Returning => {
                state.register(cx);
                Poll::Pending
            }
            Phase::Landed => {
                state.phase = Phase::Idle;
                Poll::Ready(Ok(receive(&state.batch)))
            }
        }
    }

    /// Whether the lane has no batch, not even one that landed.
    pub(crate) fn is_idle(&self, lane: u32) -> bool {
        self.lanes[lane as usize].phase == Phase::Idle
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

impl LaneState {
    fn register(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}
