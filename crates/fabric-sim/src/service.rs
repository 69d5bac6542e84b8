//! Services: programs on the memory node that answer the requests of clients.
//!
//! A request travels as a WRITE does, and waits in the node's memory until a thread of the service is free. The handler
//! runs at the moment at which the thread takes it, as a whole, and so is atomic; then the thread is busy for as long as
//! the handler's [`Work`] takes, and the reply leaves.
//!
//! Invariants: a lane in [`Phase::Serving`] has no event, and its request waits, or is the job of one thread; a thread
//! with a job has an event for its end.

use std::collections::VecDeque;

use guira_fabric::memory::Memory;
use guira_fabric::{Addr, FabricError};

use crate::lane_state::Phase;
use crate::log::{EventKind, Part};
use crate::queue::Due;
use crate::world::{Step, World};

/// A program on the memory node that answers requests.
pub trait Service {
    /// Handles a request, and writes the reply, which is empty before. Returns what it did.
    fn handle(&mut self, memory: Memory<'_>, request: &[u64], reply: &mut Vec<u64>) -> Work;

    /// Forgets everything: the node has restarted, with zeros in its memory.
    fn restart(&mut self);
}

impl<S: Service + ?Sized> Service for Box<S> {
    fn handle(&mut self, memory: Memory<'_>, request: &[u64], reply: &mut Vec<u64>) -> Work {
        (**self).handle(memory, request, reply)
    }

    fn restart(&mut self) {
        (**self).restart();
    }
}

/// The work of a handler, besides receiving the request and sending the reply. [`crate::NodeParameters`] has the prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Keys that it hashed.
    pub hashes: u64,
    /// Keys that it compared.
    pub comparisons: u64,
    /// Blocks of memory that it accessed anywhere: of each the first cache line.
    pub accesses: u64,
    /// Further cache lines of such blocks.
    pub lines: u64,
    /// Bytes that it copied.
    pub copied_bytes: u64,
}

/// The service of a node.
pub(crate) struct Services {
    service: Box<dyn Service>,
    /// The request that each thread handles.
    threads: Vec<Option<Job>>,
    waiting: VecDeque<Request>,
    /// The end of a stall, in which no thread does anything.
    stalled_until_ns: u64,
}

/// A request in the node's memory.
struct Request {
    lane: u32,
    /// Whether nobody waits for a reply: the lane may have another call by the time at which it is handled.
    is_notice: bool,
    words: Vec<u64>,
}

/// A request that was handled, and its reply, which leaves at the end unless nobody waits for it.
struct Job {
    lane: u32,
    reply: Option<Vec<u64>>,
    until_ns: u64,
}

impl Services {
    pub(crate) fn new(threads: u32, service: Box<dyn Service>) -> Services {
        assert!(threads > 0, "a service has at least one thread");
        let threads = (0..threads).map(|_| None).collect();
        Services { service, threads, waiting: VecDeque::new(), stalled_until_ns: 0 }
    }

    /// Forgets all requests. Returns the lanes that wait for an answer.
    pub(crate) fn restart(&mut self) -> Vec<u32> {
        self.service.restart();
        let jobs = self.threads.iter_mut().filter_map(Option::take);
        let jobs = jobs.filter(|job| job.reply.is_some()).map(|job| job.lane);
        let waiting = self.waiting.drain(..).filter(|request| !request.is_notice).map(|request| request.lane);
        jobs.chain(waiting).collect()
    }
}

impl World {
    /// Sends a request on the lane; if it is a notice, nobody waits for a reply.
    pub(crate) fn submit_call(&mut self, lane: u32, request: &[u64], is_notice: bool) -> Result<(), FabricError> {
        self.check_lane(lane)?;
        if self.services.is_none() {
            return Err(FabricError::Backend("the memory node has no service".to_owned()));
        }
        let state = &mut self.lanes[lane as usize];
        state.batch.send_call(request);
        state.is_notice = is_notice;
        self.depart(lane, 1);
        Ok(())
    }

    /// Handles the moment at which a request has arrived; it is in the node's memory at `stored_ns`.
    pub(crate) fn store_request(&mut self, lane: u32, stored_ns: u64) -> Step {
        self.lanes[lane as usize].phase = Phase::Requesting;
        self.queue.push(stored_ns, Due::Lane(lane));
        Step::Silent
    }

    /// Lets a request wait for a thread of the service. A notice is acknowledged.
    pub(crate) fn enter_service(&mut self, lane: u32) -> Step {
        let state = &mut self.lanes[lane as usize];
        let words = state.batch.take_request();
        state.phase = Phase::Serving;
        let is_notice = state.is_notice;
        let services = self.services.as_mut().expect("a request was sent to it");
        services.waiting.push_back(Request { lane, is_notice, words });
        if is_notice {
            self.reply(lane);
        }
        let idle = self.services.as_ref().and_then(|services| services.threads.iter().position(Option::is_none));
        if let Some(thread) = idle {
            self.take_request(thread);
        }
        Step::Silent
    }

    /// Handles an event of a thread: the end of its job, or that of a stall.
    pub(crate) fn run_thread(&mut self, thread: u32) -> Step {
        let services = self.services.as_mut().expect("it has the thread");
        if services.stalled_until_ns > self.now_ns {
            self.queue.push(services.stalled_until_ns, Due::Thread(thread));
            return Step::Silent;
        }
        let job = &mut services.threads[thread as usize];
        // The event of a job that a restart has ended comes while the thread has another one.
        if job.as_ref().is_some_and(|job| job.until_ns > self.now_ns) {
            return Step::Silent;
        }
        if let Some(Job { lane, reply: Some(reply), .. }) = job.take() {
            self.answer(lane, reply);
        }
        self.take_request(thread as usize);
        Step::Silent
    }

    /// Handles the request that has waited longest, if there is one, on an idle thread.
    fn take_request(&mut self, thread: usize) {
        let services = self.services.as_mut().expect("it has the thread");
        if services.stalled_until_ns > self.now_ns {
            return;
        }
        let Some(Request { lane, is_notice, words }) = services.waiting.pop_front() else { return };
        let mut reply = Vec::new();
        let work = services.service.handle(self.region.memory(), &words, &mut reply);
        let takes_ns = self.cards.as_mut().map_or(0, |cards| cards.work(thread, &work, self.now_ns));
        let until_ns = self.now_ns + takes_ns;
        services.threads[thread] = Some(Job { lane, reply: Some(reply).filter(|_| !is_notice), until_ns });
        self.queue.push(until_ns, Due::Thread(thread as u32));
        let (words, word) = (words.len() as u32, words.first().copied().unwrap_or(0));
        self.log_event(lane, EventKind::Handled(Part { addr: Addr::main(0), words, word }));
    }

    /// Sends the reply to a call whose client lives.
    fn answer(&mut self, lane: u32, reply: Vec<u64>) {
        let state = &mut self.lanes[lane as usize];
        if state.phase != Phase::Serving || self.clients[state.client as usize].is_dead {
            return;
        }
        state.batch.set_reply(reply);
        if let Some(cards) = &mut self.cards {
            cards.answer(state.client, &mut state.passage, &state.batch, self.now_ns);
        }
        self.reply(lane);
    }

    /// Stops all threads of the service for this time.
    pub(crate) fn stall_service(&mut self, for_ns: u64) {
        let Some(services) = &mut self.services else { return };
        services.stalled_until_ns = services.stalled_until_ns.max(self.now_ns.saturating_add(for_ns));
        for thread in 0..services.threads.len() as u32 {
            self.queue.push(services.stalled_until_ns, Due::Thread(thread));
        }
    }
}
