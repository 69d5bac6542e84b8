//! Lines and turns, by hand and by threads.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Profile, Region};

use super::*;

const SHORT: Duration = Duration::from_millis(100);

fn asked(turns: &Arc<Turns>, digest: u64) -> Result<Turn, Place> {
    asked_to(turns, digest, None)
}

fn asked_to(turns: &Arc<Turns>, digest: u64, overwrite: Option<Overwrite>) -> Result<Turn, Place> {
    match turns.ask(digest, overwrite) {
        Asked::Turn(turn) => Ok(turn),
        Asked::Place(place) => Err(place),
        Asked::Nothing => panic!("this is the process"),
    }
}

fn is_called(place: &Place) -> bool {
    matches!(*lock(&place.waiter.state), State::Called)
}

fn turn(place: Place) -> Turn {
    match place.take() {
        Waited::Turn(turn) => turn,
        other => panic!("{other:?}"),
    }
}

fn answer(place: Place) -> Option<Outcome> {
    match place.take() {
        Waited::Answered(outcome) => Some(outcome),
        Waited::Nothing => None,
        Waited::Turn(_) => panic!("nobody gave it the turn"),
    }
}

fn is_empty(turns: &Turns) -> bool {
    turns.shards.iter().all(|shard| lock(shard).is_empty())
}

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_turn_goes_round_in_the_order_of_coming() {
    let turns = Arc::new(Turns::new());
    let first = asked(&turns, 7).expect("nobody was there");
    let other = asked(&turns, 7 + SHARDS as u64).expect("another key of the shard");
    let [second, third, fourth] = [(); 3].map(|()| asked(&turns, 7).expect_err("it is taken"));
    drop(other);
    assert!(!is_called(&second));
    drop(first);
    assert!(is_called(&second) && !is_called(&third));
    let second = turn(second);
    // Who leaves is passed over.
    drop(third);
    drop(second);
    assert!(is_called(&fourth));
    // Who was called and goes away passes it on.
    let fifth = asked(&turns, 7).expect_err("it is taken");
    drop(fourth);
    assert!(is_called(&fifth));
    drop(turn(fifth));
    assert!(is_empty(&turns));
}

#[test]
fn nobody_waits_for_longer_than_its_patience() {
    let turns = Arc::new(Turns::new());
    let turn = asked(&turns, 7).expect("nobody was there");
    let region = HeapRegion::new(4096, 4096, Profile::Shm.caps());
    let mut lane = region.lane();
    let start = Instant::now();
    let place = asked(&turns, 7).expect_err("it is taken");
    let waited = pollster::block_on(place.wait(SHORT, Waiting::InPlace, &mut lane));
    assert!(matches!(waited, Waited::Nothing));
    assert!((SHORT..20 * SHORT).contains(&start.elapsed()), "{:?}", start.elapsed());
    drop(turn);
    assert!(is_empty(&turns), "who has gone gets no turn");
}

#[test]
fn a_task_is_woken_when_it_is_its_turn() {
    let turns = Arc::new(Turns::new());
    let turn = asked(&turns, 7).expect("nobody was there");
    let region = HeapRegion::new(4096, 4096, Profile::Shm.caps());
    let mut lane = region.lane();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let place = asked(&turns, 7).expect_err("it is taken");
    let mut wait = pin!(place.wait(PATIENCE, Waiting::Cooperative, &mut lane));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let before = woken.0.load(Ordering::SeqCst);
    drop(turn);
    assert_eq!(woken.0.load(Ordering::SeqCst), before + 1);
    let Poll::Ready(Waited::Turn(turn)) = wait.as_mut().poll(&mut Context::from_waker(&waker)) else {
        panic!("its turn")
    };
    drop(turn);
    assert!(is_empty(&turns));
}

#[test]
fn threads_take_turns() {
    const THREADS: u64 = 8;
    const TIMES: u64 = 500;
    let turns = Turns::of([1, 2]);
    assert!(Arc::ptr_eq(&turns, &Turns::of([1, 2])) && !Arc::ptr_eq(&turns, &Turns::of([1, 3])));
    let [inside, most, had] = [(); 3].map(|()| AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let region = HeapRegion::new(4096, 4096, Profile::Shm.caps());
                let mut lane = region.lane();
                for _ in 0..TIMES {
                    let turn = match turns.ask(7, None) {
                        Asked::Turn(turn) => Waited::Turn(turn),
                        Asked::Place(place) => pollster::block_on(place.wait(SHORT, Waiting::InPlace, &mut lane)),
                        Asked::Nothing => panic!("this is the process"),
                    };
                    // On a machine that does other things, some lose their patience.
                    let Waited::Turn(turn) = turn else { continue };
                    had.fetch_add(1, Ordering::SeqCst);
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(turn);
                }
            });
        }
    });
    assert_eq!(most.load(Ordering::SeqCst), 1, "one at a time");
    assert!(had.load(Ordering::SeqCst) > THREADS * TIMES / 2);
    assert!(is_empty(&turns));
}

/// Those who came before the change began are answered by it, and nobody else: neither whose change is of another kind,
/// nor who has gone, nor who came later.
#[test]
fn a_change_answers_those_who_waited_when_it_began() {
    let turns = Arc::new(Turns::new());
    let first = asked(&turns, 7).expect("nobody was there");
    let places = [Some(Overwrite::Put), Some(Overwrite::Put), None, Some(Overwrite::Update), Some(Overwrite::Put)];
    let [leader, put, other, update, gone] =
        places.map(|overwrite| asked_to(&turns, 7, overwrite).expect_err("it is taken"));
    drop(first);
    let mut leader = turn(leader);
    let late = asked_to(&turns, 7, Some(Overwrite::Put)).expect_err("it is taken");
    drop(gone);
    assert_eq!(leader.answer_those_behind(Overwrite::Put, Outcome::Inserted), Outcome::Replaced);
    assert_eq!(leader.answer_those_behind(Overwrite::Put, Outcome::Inserted), Outcome::Inserted, "once");
    drop(leader);
    assert_eq!((answer(put), answer(update)), (Some(Outcome::Inserted), Some(Outcome::Missing)));
    assert!(is_called(&other) && !is_called(&late), "it is the turn of the next one who still waits");
    drop(other);
    assert!(is_called(&late));
    drop(turn(late));
    assert!(is_empty(&turns));
}

/// A change that fails or is given up answers nobody: they keep their places.
#[test]
fn a_change_that_does_not_end_leaves_the_others_in_the_line() {
    let turns = Arc::new(Turns::new());
    let first = asked(&turns, 7).expect("nobody was there");
    let [leader, second, third] =
        [(); 3].map(|()| asked_to(&turns, 7, Some(Overwrite::Update)).expect_err("it is taken"));
    drop(first);
    drop(turn(leader));
    assert!(is_called(&second) && !is_called(&third));
    // Who has the turn is answered by nobody, whoever came before it.
    let mut second = turn(second);
    assert_eq!(second.answer_those_behind(Overwrite::Update, Outcome::Missing), Outcome::Missing);
    assert_eq!(answer(third), Some(Outcome::Missing));
    drop(second);
    assert!(is_empty(&turns));
}

#[test]
fn a_task_is_woken_when_it_is_answered() {
    let turns = Arc::new(Turns::new());
    let first = asked(&turns, 7).expect("nobody was there");
    let [leader, place] = [(); 2].map(|()| asked_to(&turns, 7, Some(Overwrite::Put)).expect_err("it is taken"));
    let region = HeapRegion::new(4096, 4096, Profile::Shm.caps());
    let mut lane = region.lane();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut wait = pin!(place.wait(PATIENCE, Waiting::Cooperative, &mut lane));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(first);
    let before = woken.0.load(Ordering::SeqCst);
    turn(leader).answer_those_behind(Overwrite::Put, Outcome::Replaced);
    assert_eq!(woken.0.load(Ordering::SeqCst), before + 1);
    let Poll::Ready(waited) = wait.as_mut().poll(&mut Context::from_waker(&waker)) else { panic!("an answer") };
    assert!(matches!(waited, Waited::Answered(Outcome::Replaced)), "{waited:?}");
    assert!(is_empty(&turns));
}
