//! Tests of the lock queue: step by step, by threads, and against a model that is one list.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Caps, FabricError, Profile, Region, Submitted, Traffic, Verb};
use guira_testing::patience;

use super::*;

const SHORT: Duration = Duration::from_millis(100);
/// A request for both locks of most tests.
const REQUEST: Request<'_> = Request { key: b"cuckoo", locks: [7, 8], blind_write: None };

fn put() -> Request<'static> {
    Request { blind_write: Some(BlindWrite::Put), ..REQUEST }
}

fn update() -> Request<'static> {
    Request { blind_write: Some(BlindWrite::Update), ..REQUEST }
}

fn within(limit: Duration, mode: WaitMode) -> Wait {
    Wait::within(limit.as_nanos() as u64, mode)
}

fn region() -> HeapRegion {
    HeapRegion::new(4096, 4096, Profile::Shm.caps())
}

/// A lane whose clock stands still until a test moves it.
struct ClockLane<L> {
    lane: L,
    clock_ns: Arc<AtomicU64>,
}

impl<L: Lane> ClockLane<L> {
    /// Returns the lane, and its clock.
    fn new(lane: L) -> (ClockLane<L>, Arc<AtomicU64>) {
        let clock_ns = Arc::new(AtomicU64::new(0));
        (ClockLane { lane, clock_ns: Arc::clone(&clock_ns) }, clock_ns)
    }
}

impl<L: Lane> Lane for ClockLane<L> {
    fn caps(&self) -> &Caps {
        self.lane.caps()
    }

    fn traffic(&self) -> &Traffic {
        self.lane.traffic()
    }

    fn traffic_mut(&mut self) -> &mut Traffic {
        self.lane.traffic_mut()
    }

    fn submit(&mut self, batch: &mut [Verb<'_>]) -> Submitted {
        self.lane.submit(batch)
    }

    fn poll(&mut self, batch: &mut [Verb<'_>], cx: &mut Context<'_>) -> Poll<Result<(), FabricError>> {
        self.lane.poll(batch, cx)
    }

    fn forget(&mut self) {
        self.lane.forget();
    }

    fn poll_drain(&mut self, found: &mut [u64], cx: &mut Context<'_>) -> Poll<Result<usize, FabricError>> {
        self.lane.poll_drain(found, cx)
    }

    fn poll_pause(&mut self, until_ns: u64, _: &mut Context<'_>) -> Poll<()> {
        if self.now_ns() >= until_ns { Poll::Ready(()) } else { Poll::Pending }
    }

    fn now_ns(&mut self) -> u64 {
        self.clock_ns.load(Ordering::SeqCst)
    }
}

fn ticket(queue: &Arc<SharedLockQueue>, request: Request<'_>) -> Ticket {
    match queue.request(request) {
        Admission::Permit(Permit(ticket)) | Admission::Queued(ticket) => ticket,
        Admission::Forked => panic!("this is the process"),
    }
}

fn has_permit(ticket: &Ticket) -> bool {
    ticket.poll(None) == QueueState::Permitted
}

fn permit(ticket: Ticket) -> Permit {
    assert!(has_permit(&ticket));
    let waited = pollster::block_on(ticket.wait(within(SHORT, WaitMode::Park), &mut region().lane()));
    let WaitResult::Permit(permit) = waited else { panic!("{waited:?}") };
    permit
}

fn combined(ticket: &Ticket) -> Option<Outcome> {
    match ticket.poll(None) {
        QueueState::Combined(outcome) => Some(outcome),
        _ => None,
    }
}

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn permits_are_granted_in_order_of_arrival() {
    let queue = Arc::new(SharedLockQueue::new());
    let [first, second, third, fourth] = [(); 4].map(|()| ticket(&queue, REQUEST));
    let other = ticket(&queue, Request { locks: [9, 9], ..REQUEST });
    assert!(has_permit(&first) && has_permit(&other) && !has_permit(&second), "other locks, another queue");
    drop(other);
    drop(first);
    assert!(has_permit(&second) && !has_permit(&third));
    // A ticket that left is skipped.
    drop(third);
    drop(permit(second));
    assert!(has_permit(&fourth));
    // A permit that is dropped unused is passed on.
    let fifth = ticket(&queue, REQUEST);
    drop(fourth);
    assert!(has_permit(&fifth));
    drop(permit(fifth));
    assert!(queue.lock().is_empty());
}

/// A request for two locks has the permit when it is first in both queues, and later requests for either wait for it.
#[test]
fn a_permit_is_for_both_locks() {
    let queue = Arc::new(SharedLockQueue::new());
    let [low, high, both] = [[7, 7], [8, 8], [8, 7]].map(|locks| ticket(&queue, Request { locks, ..REQUEST }));
    let late = ticket(&queue, Request { locks: [7, 7], ..REQUEST });
    drop(low);
    assert!(!has_permit(&both) && !has_permit(&late), "it came before");
    drop(high);
    assert!(has_permit(&both) && !has_permit(&late));
    drop(both);
    assert!(has_permit(&late));
    drop(late);
    assert!(queue.lock().is_empty());
}

#[test]
fn a_wait_ends_at_its_limit() {
    let queue = Arc::new(SharedLockQueue::new());
    let stuck = ticket(&queue, REQUEST);
    for mode in [WaitMode::Park, WaitMode::Suspend] {
        let start = Instant::now();
        let waited = pollster::block_on(ticket(&queue, REQUEST).wait(within(SHORT, mode), &mut region().lane()));
        assert!(matches!(waited, WaitResult::NoPermit));
        assert!(start.elapsed() >= SHORT, "{:?}", start.elapsed());
    }
    drop(stuck);
    assert!(queue.lock().is_empty(), "a ticket that left gets no permit");
}

/// The stall limit starts anew when a permit is given back, up to the total limit, but not when other waiters leave.
#[test]
fn the_stall_limit_starts_anew_while_permits_are_given_back() {
    const STALL_NS: u64 = 100;
    let queue = Arc::new(SharedLockQueue::new());
    for (releases, total_ns, has_permit, ends_ns) in
        [(false, 2_000, false, 100), (true, 2_000, true, 400), (true, 200, false, 200)]
    {
        let mut before: Vec<Ticket> = (0..8).map(|_| ticket(&queue, REQUEST)).collect();
        let region = region();
        let (mut lane, clock_ns) = ClockLane::new(region.lane());
        let wait = Wait { mode: WaitMode::Suspend, stall_ns: STALL_NS, total_ns };
        let mut waiting = pin!(ticket(&queue, REQUEST).wait(wait, &mut lane));
        let waited = loop {
            if let Poll::Ready(waited) = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                break waited;
            }
            clock_ns.fetch_add(STALL_NS / 2, Ordering::SeqCst);
            // The permit holder, or else a waiter behind it.
            let at = if releases { 0 } else { 1 };
            if before.len() > at {
                drop(before.remove(at));
            }
        };
        let ended = (matches!(waited, WaitResult::Permit(_)), clock_ns.load(Ordering::SeqCst));
        assert_eq!(ended, (has_permit, ends_ns), "{releases} {total_ns}");
    }
    assert!(queue.lock().is_empty());
}

/// A request that gives up is either combined or not: if it goes on by itself, no other outcome depends on it.
#[test]
fn giving_up_and_being_combined_exclude_each_other() {
    let queue = Arc::new(SharedLockQueue::new());
    let first = ticket(&queue, REQUEST);
    let [leader, in_time, too_late] = [(); 3].map(|()| ticket(&queue, put()));
    drop(first);
    let leader = permit(leader);
    assert!(matches!(in_time.finish(), WaitResult::NoPermit));
    assert_eq!(leader.combine_waiting(Outcome::Inserted), Outcome::Replaced, "by one of them");
    assert!(matches!(too_late.finish(), WaitResult::Combined(Outcome::Inserted)));
    drop(leader);
    assert!(queue.lock().is_empty());

    let [first, leader, gone] = [(); 3].map(|()| ticket(&queue, put()));
    drop(first);
    let leader = permit(leader);
    assert!(matches!(gone.finish(), WaitResult::NoPermit));
    assert_eq!(leader.combine_waiting(Outcome::Inserted), Outcome::Inserted, "no other put was told so");
    drop(leader);
    assert!(queue.lock().is_empty());
}

#[test]
fn a_task_is_woken_when_permitted_or_combined() {
    for is_combined in [false, true] {
        let queue = Arc::new(SharedLockQueue::new());
        let [first, leader, last] = [(); 3].map(|()| ticket(&queue, put()));
        let region = region();
        let (mut lane, _clock_ns) = ClockLane::new(region.lane());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut wait = pin!(last.wait(Wait::within(STALL_TIMEOUT_NS, WaitMode::Suspend), &mut lane));
        let mut poll = || wait.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        drop(first);
        let before = woken.0.load(Ordering::SeqCst);
        let leader = permit(leader);
        if is_combined {
            assert_eq!(leader.combine_waiting(Outcome::Replaced), Outcome::Replaced);
        }
        drop(leader);
        assert_eq!(woken.0.load(Ordering::SeqCst), before + 1);
        match poll() {
            Poll::Ready(WaitResult::Combined(Outcome::Replaced)) => assert!(is_combined),
            Poll::Ready(WaitResult::Permit(permit)) => {
                assert!(!is_combined);
                drop(permit);
            }
            other => panic!("{other:?}"),
        }
        assert!(queue.lock().is_empty());
    }
}

/// A change combines the blind writes of its key that waited when it began, and no others: no change of another kind or
/// key, none that has left, and none that came later.
#[test]
fn a_change_combines_the_writes_that_waited_when_it_began() {
    let queue = Arc::new(SharedLockQueue::new());
    let first = ticket(&queue, REQUEST);
    // Its digest may be the same.
    let other_key = Request { key: b"condor", ..put() };
    let [leader, before, other, of_other_key, missing, gone] =
        [put(), put(), REQUEST, other_key, update(), put()].map(|request| ticket(&queue, request));
    drop(first);
    let leader = permit(leader);
    let late = ticket(&queue, put());
    drop(gone);
    assert_eq!(leader.combine_waiting(Outcome::Inserted), Outcome::Replaced);
    assert_eq!(leader.combine_waiting(Outcome::Inserted), Outcome::Inserted, "once");
    drop(leader);
    assert_eq!((combined(&before), combined(&missing)), (Some(Outcome::Inserted), Some(Outcome::Missing)));
    assert!([&other, &of_other_key, &late].into_iter().all(|ticket| combined(ticket).is_none()));
    assert!(has_permit(&other) && !has_permit(&of_other_key), "the permit goes to the next one that still waits");
    drop(other);
    drop(of_other_key);
    drop(permit(late));
    drop((before, missing));
    assert!(queue.lock().is_empty());
}

/// A change that fails or is dropped combines nothing: the others stay queued.
#[test]
fn a_change_that_does_not_finish_leaves_the_others_queued() {
    let queue = Arc::new(SharedLockQueue::new());
    let first = ticket(&queue, REQUEST);
    let [leader, second, third] = [(); 3].map(|()| ticket(&queue, update()));
    drop(first);
    drop(permit(leader));
    assert!(has_permit(&second) && !has_permit(&third));
    assert_eq!(permit(second).combine_waiting(Outcome::Missing), Outcome::Missing);
    assert_eq!(combined(&third), Some(Outcome::Missing));
    drop(third);
    assert!(queue.lock().is_empty());
}

#[test]
fn threads_hold_a_permit_one_at_a_time() {
    const THREADS: u64 = 8;
    const TIMES: u64 = 500;
    let name = TableName { drawn: [1, 2], memory: [3, 4], peer: ([127, 0, 0, 1], 7).into() };
    let queue = SharedLockQueue::of(name);
    let others = [
        TableName { drawn: [1, 3], ..name },
        TableName { memory: [3, 5], ..name },
        TableName { peer: ([127, 0, 0, 1], 8).into(), ..name },
    ];
    assert!(Arc::ptr_eq(&queue, &SharedLockQueue::of(name)));
    assert!(
        others.into_iter().all(|other| !Arc::ptr_eq(&queue, &SharedLockQueue::of(other))),
        "nor a copy at another node"
    );
    let patience_ns = patience().as_nanos() as u64;
    let wait = Wait { mode: WaitMode::Park, stall_ns: patience_ns, total_ns: patience_ns };
    let [inside, most, had] = [(); 3].map(|()| AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (queue, inside, most, had) = (&queue, &inside, &most, &had);
            scope.spawn(move || {
                let region = region();
                let mut lane = region.lane();
                for _ in 0..TIMES {
                    // All of them want one of the locks, and most of them another one, too.
                    let request = Request { locks: [7, 4 + thread], ..REQUEST };
                    let waited = match queue.request(request) {
                        Admission::Permit(permit) => WaitResult::Permit(permit),
                        Admission::Queued(ticket) => pollster::block_on(ticket.wait(wait, &mut lane)),
                        Admission::Forked => panic!("this is the process"),
                    };
                    let WaitResult::Permit(permit) = waited else { panic!("{waited:?}") };
                    had.fetch_add(1, Ordering::SeqCst);
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert_eq!(most.load(Ordering::SeqCst), 1, "one at a time");
    assert_eq!(had.load(Ordering::SeqCst), THREADS * TIMES);
    assert!(queue.lock().is_empty());
}

/// A model of the queue: all requests in one list, in order of arrival.
#[derive(Default)]
struct Model(Vec<ModelRequest>);

struct ModelRequest {
    ticket: Ticket,
    request: Request<'static>,
    /// The request whose change began while this one waited.
    leader: Option<WaiterId>,
    is_combined: bool,
    has_waited: bool,
    has_given_up: bool,
}

impl ModelRequest {
    fn is_queued(&self) -> bool {
        !self.is_combined && !self.has_given_up
    }
}

/// Keys, and their locks: some have the same.
const KEYS: [(&[u8], [u64; 2]); 5] = [(b"a", [1, 1]), (b"b", [1, 2]), (b"c", [2, 3]), (b"d", [3, 1]), (b"", [1, 2])];

impl Model {
    fn has_permit(&self, at: usize) -> bool {
        let wants =
            |other: &ModelRequest| other.request.locks.iter().any(|lock| self.0[at].request.locks.contains(lock));
        !self.0[..at].iter().any(|other| other.is_queued() && wants(other))
    }

    /// Queued blind writes of the same key.
    fn behind(&mut self, at: usize) -> impl Iterator<Item = &mut ModelRequest> {
        let (id, key) = (self.0[at].ticket.id, self.0[at].request.key);
        let is_behind = move |other: &&mut ModelRequest| {
            let overwrites = other.request.key == key && other.request.blind_write.is_some();
            overwrites && other.ticket.id != id && other.is_queued()
        };
        self.0.iter_mut().filter(is_behind)
    }

    fn assert_states(&self) {
        for (at, entry) in self.0.iter().enumerate().filter(|(_, entry)| !entry.has_given_up) {
            match entry.ticket.poll(None) {
                QueueState::Combined(_) => assert!(entry.is_combined),
                QueueState::Permitted => assert!(!entry.is_combined && self.has_permit(at)),
                QueueState::Waiting { .. } => assert!(!entry.is_combined && !self.has_permit(at)),
                QueueState::Forked => panic!("this is the process"),
            }
        }
    }
}

fn random_steps(draw: &mut impl FnMut(usize) -> usize) {
    let (queue, mut model) = (Arc::new(SharedLockQueue::new()), Model::default());
    for _ in 0..60 {
        let at = draw(model.0.len().max(1));
        match draw(5) {
            0..3 if model.0.len() < 12 => {
                let blind_write = [None, Some(BlindWrite::Put), Some(BlindWrite::Update)][draw(3)];
                let (key, locks) = KEYS[draw(KEYS.len())];
                let request = Request { key, locks, blind_write };
                let ticket = ticket(&queue, request);
                let has_waited = !has_permit(&ticket);
                model.0.push(ModelRequest {
                    ticket,
                    request,
                    leader: None,
                    is_combined: false,
                    has_waited,
                    has_given_up: false,
                });
            }
            3 if !model.0.is_empty() => drop(model.0.remove(at)),
            // Only a request that had to wait begins a change that combines others.
            4 if !model.0.is_empty() && draw(3) == 0 && model.0[at].is_queued() && model.0[at].has_waited => {
                let (state, has_permit) = (model.0[at].ticket.give_up(), model.has_permit(at));
                assert_eq!(state == QueueState::Permitted, has_permit);
                model.0[at].has_given_up = !has_permit;
                let id = model.0[at].ticket.id;
                if has_permit && model.0[at].request.blind_write.is_some() {
                    model.behind(at).for_each(|other| other.leader = Some(id));
                }
            }
            4 if !model.0.is_empty() && model.0[at].is_queued() && model.has_permit(at) => {
                let (id, mut wakers) = (model.0[at].ticket.id, Vec::new());
                queue.lock().combine(id, Outcome::Replaced, &mut wakers);
                let followers = model.behind(at).filter(|other| other.leader == Some(id));
                followers.for_each(|other| other.is_combined = true);
            }
            _ => {}
        }
        model.assert_states();
    }
    model.0.clear();
    assert!(queue.lock().is_empty());
}

#[test]
fn the_queue_behaves_like_a_list() {
    let mut state = 1_u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    (0..2_000).for_each(|_| random_steps(&mut draw));
}
