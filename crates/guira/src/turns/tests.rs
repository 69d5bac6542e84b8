//! Lines and turns: by hand, by threads, and against a list of those who wait.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};

use guira_fabric::heap::HeapRegion;
use guira_fabric::{Profile, Region};

use super::*;

const SHORT: Duration = Duration::from_millis(100);
/// Wants every lock of the tests below that is taken.
const WISH: Wish<'_> = Wish { key: b"cuckoo", locks: [7, 8], overwrite: None };

fn put() -> Wish<'static> {
    Wish { overwrite: Some(Overwrite::Put), ..WISH }
}

fn update() -> Wish<'static> {
    Wish { overwrite: Some(Overwrite::Update), ..WISH }
}

fn within(patience: Duration) -> Limits {
    Limits { patience, longest: patience }
}

fn region() -> HeapRegion {
    HeapRegion::new(4096, 4096, Profile::Shm.caps())
}

fn place(turns: &Arc<Turns>, wish: Wish<'_>) -> Place {
    match turns.ask(wish) {
        Asked::Turn(Turn(place)) | Asked::Place(place) => place,
        Asked::Nothing => panic!("this is the process"),
    }
}

fn has_turn(place: &Place) -> bool {
    place.look(None) == Standing::Turn
}

fn turn(place: Place) -> Turn {
    assert!(has_turn(&place));
    let waited = pollster::block_on(place.wait(within(SHORT), Waiting::InPlace, &mut region().lane()));
    let Waited::Turn(turn) = waited else { panic!("{waited:?}") };
    turn
}

fn answer(place: &Place) -> Option<Outcome> {
    match place.look(None) {
        Standing::Answered(outcome) => Some(outcome),
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
fn the_turn_goes_round_in_the_order_of_coming() {
    let turns = Arc::new(Turns::new());
    let [first, second, third, fourth] = [(); 4].map(|()| place(&turns, WISH));
    let other = place(&turns, Wish { locks: [9, 9], ..WISH });
    assert!(has_turn(&first) && has_turn(&other) && !has_turn(&second), "other locks, another line");
    drop(other);
    drop(first);
    assert!(has_turn(&second) && !has_turn(&third));
    // Who leaves is passed over.
    drop(third);
    drop(turn(second));
    assert!(has_turn(&fourth));
    // Who has the turn and goes away passes it on.
    let fifth = place(&turns, WISH);
    drop(fourth);
    assert!(has_turn(&fifth));
    drop(turn(fifth));
    assert!(turns.lines().is_empty());
}

/// Who wants two locks has its turn when it is the first of both lines, and whoever wants one of them waits for it.
#[test]
fn a_turn_is_for_both_locks() {
    let turns = Arc::new(Turns::new());
    let [low, high, both] = [[7, 7], [8, 8], [8, 7]].map(|locks| place(&turns, Wish { locks, ..WISH }));
    let late = place(&turns, Wish { locks: [7, 7], ..WISH });
    drop(low);
    assert!(!has_turn(&both) && !has_turn(&late), "it came before");
    drop(high);
    assert!(has_turn(&both) && !has_turn(&late));
    drop(both);
    assert!(has_turn(&late));
    drop(late);
    assert!(turns.lines().is_empty());
}

#[test]
fn nobody_waits_for_longer_than_its_patience() {
    let turns = Arc::new(Turns::new());
    let stuck = place(&turns, WISH);
    for waiting in [Waiting::InPlace, Waiting::Cooperative] {
        let start = Instant::now();
        let waited = pollster::block_on(place(&turns, WISH).wait(within(SHORT), waiting, &mut region().lane()));
        assert!(matches!(waited, Waited::Nothing));
        assert!((SHORT..20 * SHORT).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
    drop(stuck);
    assert!(turns.lines().is_empty(), "who has gone gets no turn");
}

/// A line in which turns end is waited in for longer than patience, though not for ever; one that others only come to
/// and leave is not.
#[test]
fn patience_begins_anew_while_turns_end() {
    let turns = Arc::new(Turns::new());
    for (ends, longest, has_turn) in [(false, 20, false), (true, 20, true), (true, 2, false)] {
        let mut before: Vec<Place> = (0..8).map(|_| place(&turns, WISH)).collect();
        std::thread::scope(|scope| {
            let place = place(&turns, WISH);
            let waiting = scope.spawn(move || {
                let (start, limits) = (Instant::now(), Limits { patience: SHORT, longest: longest * SHORT });
                let waited = pollster::block_on(place.wait(limits, Waiting::InPlace, &mut region().lane()));
                (matches!(waited, Waited::Turn(_)), start.elapsed())
            });
            for _ in 0..16 {
                std::thread::sleep(SHORT / 2);
                // The first, or else somebody behind it.
                let at = if ends { 0 } else { 1 };
                if before.len() > at {
                    drop(before.remove(at));
                }
            }
            let (had_turn, elapsed) = waiting.join().expect("no panic");
            // It takes eight halves until all before it are gone; those who only come and go are seen for seven.
            let due = if has_turn { 3 * SHORT..20 * SHORT } else { SHORT..3 * SHORT };
            assert!(had_turn == has_turn && due.contains(&elapsed), "{ends} {longest}: {had_turn} {elapsed:?}");
        });
    }
    assert!(turns.lines().is_empty());
}

/// Whoever gives up is answered, or it is not: if it goes on by itself, nobody counts on its answer.
#[test]
fn giving_up_and_being_answered_exclude_each_other() {
    let turns = Arc::new(Turns::new());
    let first = place(&turns, WISH);
    let [leader, in_time, too_late] = [(); 3].map(|()| place(&turns, put()));
    drop(first);
    let leader = turn(leader);
    assert!(matches!(in_time.end(), Waited::Nothing));
    assert_eq!(leader.answer_those_behind(Outcome::Inserted), Outcome::Replaced, "by one of them");
    assert!(matches!(too_late.end(), Waited::Answered(Outcome::Inserted)));
    drop(leader);
    assert!(turns.lines().is_empty());

    let [first, leader, gone] = [(); 3].map(|()| place(&turns, put()));
    drop(first);
    let leader = turn(leader);
    assert!(matches!(gone.end(), Waited::Nothing));
    assert_eq!(leader.answer_those_behind(Outcome::Inserted), Outcome::Inserted, "nobody else was told so");
    drop(leader);
    assert!(turns.lines().is_empty());
}

#[test]
fn a_task_is_woken_when_it_is_its_turn_or_answered() {
    for is_answered in [false, true] {
        let turns = Arc::new(Turns::new());
        let [first, leader, last] = [(); 3].map(|()| place(&turns, put()));
        let region = region();
        let mut lane = region.lane();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut wait = pin!(last.wait(within(PATIENCE), Waiting::Cooperative, &mut lane));
        let mut poll = || wait.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        drop(first);
        let before = woken.0.load(Ordering::SeqCst);
        let leader = turn(leader);
        if is_answered {
            assert_eq!(leader.answer_those_behind(Outcome::Replaced), Outcome::Replaced);
        }
        drop(leader);
        assert_eq!(woken.0.load(Ordering::SeqCst), before + 1);
        match poll() {
            Poll::Ready(Waited::Answered(Outcome::Replaced)) => assert!(is_answered),
            Poll::Ready(Waited::Turn(turn)) => {
                assert!(!is_answered);
                drop(turn);
            }
            other => panic!("{other:?}"),
        }
        assert!(turns.lines().is_empty());
    }
}

/// Those who came before the change began are answered by it, and nobody else: neither whose change is of another kind
/// or key, nor who has gone, nor who came later.
#[test]
fn a_change_answers_those_who_waited_when_it_began() {
    let turns = Arc::new(Turns::new());
    let first = place(&turns, WISH);
    // Its digest may be the same.
    let other_key = Wish { key: b"condor", ..put() };
    let [leader, before, other, of_other_key, missing, gone] =
        [put(), put(), WISH, other_key, update(), put()].map(|wish| place(&turns, wish));
    drop(first);
    let leader = turn(leader);
    let late = place(&turns, put());
    drop(gone);
    assert_eq!(leader.answer_those_behind(Outcome::Inserted), Outcome::Replaced);
    assert_eq!(leader.answer_those_behind(Outcome::Inserted), Outcome::Inserted, "once");
    drop(leader);
    assert_eq!((answer(&before), answer(&missing)), (Some(Outcome::Inserted), Some(Outcome::Missing)));
    assert!([&other, &of_other_key, &late].into_iter().all(|place| answer(place).is_none()));
    assert!(has_turn(&other) && !has_turn(&of_other_key), "it is the turn of the next one who still waits");
    drop(other);
    drop(of_other_key);
    drop(turn(late));
    drop((before, missing));
    assert!(turns.lines().is_empty());
}

/// A change that fails or is given up answers nobody: they keep their places.
#[test]
fn a_change_that_does_not_end_leaves_the_others_in_the_line() {
    let turns = Arc::new(Turns::new());
    let first = place(&turns, WISH);
    let [leader, second, third] = [(); 3].map(|()| place(&turns, update()));
    drop(first);
    drop(turn(leader));
    assert!(has_turn(&second) && !has_turn(&third));
    assert_eq!(turn(second).answer_those_behind(Outcome::Missing), Outcome::Missing);
    assert_eq!(answer(&third), Some(Outcome::Missing));
    drop(third);
    assert!(turns.lines().is_empty());
}

#[test]
fn threads_take_turns() {
    const THREADS: u64 = 8;
    const TIMES: u64 = 500;
    let name = TableName { drawn: [1, 2], memory: [3, 4], peer: ([127, 0, 0, 1], 7).into() };
    let turns = Turns::of(name);
    let others = [
        TableName { drawn: [1, 3], ..name },
        TableName { memory: [3, 5], ..name },
        TableName { peer: ([127, 0, 0, 1], 8).into(), ..name },
    ];
    assert!(Arc::ptr_eq(&turns, &Turns::of(name)));
    assert!(others.into_iter().all(|other| !Arc::ptr_eq(&turns, &Turns::of(other))), "nor a copy at another node");
    let [inside, most, had] = [(); 3].map(|()| AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (turns, inside, most, had) = (&turns, &inside, &most, &had);
            scope.spawn(move || {
                let region = region();
                let mut lane = region.lane();
                for _ in 0..TIMES {
                    // All of them want one of the locks, and most of them another one, too.
                    let wish = Wish { locks: [7, 4 + thread], ..WISH };
                    let waited = match turns.ask(wish) {
                        Asked::Turn(turn) => Waited::Turn(turn),
                        Asked::Place(place) => {
                            pollster::block_on(place.wait(within(PATIENCE), Waiting::InPlace, &mut lane))
                        }
                        Asked::Nothing => panic!("this is the process"),
                    };
                    // On a machine that does other things, some lose their patience.
                    let Waited::Turn(turn) = waited else { continue };
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
    assert!(turns.lines().is_empty());
}

/// What the lines must come to: everybody in one list, in the order of coming.
#[derive(Default)]
struct List(Vec<Listed>);

struct Listed {
    place: Place,
    wish: Wish<'static>,
    /// The place of whoever's change began after this one had come.
    leader: Option<Number>,
    is_answered: bool,
    has_waited: bool,
    has_given_up: bool,
}

impl Listed {
    fn is_in_line(&self) -> bool {
        !self.is_answered && !self.has_given_up
    }
}

/// Keys, and their locks: some have the same.
const KEYS: [(&[u8], [u64; 2]); 5] = [(b"a", [1, 1]), (b"b", [1, 2]), (b"c", [2, 3]), (b"d", [3, 1]), (b"", [1, 2])];

impl List {
    fn has_turn(&self, at: usize) -> bool {
        let wants = |other: &Listed| other.wish.locks.iter().any(|lock| self.0[at].wish.locks.contains(lock));
        !self.0[..at].iter().any(|other| other.is_in_line() && wants(other))
    }

    /// Those in line who overwrite the same key.
    fn behind(&mut self, at: usize) -> impl Iterator<Item = &mut Listed> {
        let (number, key) = (self.0[at].place.number, self.0[at].wish.key);
        let is_behind = move |other: &&mut Listed| {
            let overwrites = other.wish.key == key && other.wish.overwrite.is_some();
            overwrites && other.place.number != number && other.is_in_line()
        };
        self.0.iter_mut().filter(is_behind)
    }

    fn assert_standings(&self) {
        for (at, listed) in self.0.iter().enumerate().filter(|(_, listed)| !listed.has_given_up) {
            match listed.place.look(None) {
                Standing::Answered(_) => assert!(listed.is_answered),
                Standing::Turn => assert!(!listed.is_answered && self.has_turn(at)),
                Standing::Behind { .. } => assert!(!listed.is_answered && !self.has_turn(at)),
                Standing::Foreign => panic!("this is the process"),
            }
        }
    }
}

fn random_steps(draw: &mut impl FnMut(usize) -> usize) {
    let (turns, mut list) = (Arc::new(Turns::new()), List::default());
    for _ in 0..60 {
        let at = draw(list.0.len().max(1));
        match draw(5) {
            0..3 if list.0.len() < 12 => {
                let overwrite = [None, Some(Overwrite::Put), Some(Overwrite::Update)][draw(3)];
                let (key, locks) = KEYS[draw(KEYS.len())];
                let wish = Wish { key, locks, overwrite };
                let place = place(&turns, wish);
                let has_waited = !has_turn(&place);
                list.0.push(Listed { place, wish, leader: None, is_answered: false, has_waited, has_given_up: false });
            }
            3 if !list.0.is_empty() => drop(list.0.remove(at)),
            // Only who had to wait begins a change that answers others.
            4 if !list.0.is_empty() && draw(3) == 0 && list.0[at].is_in_line() && list.0[at].has_waited => {
                let (standing, has_turn) = (list.0[at].place.give_up(), list.has_turn(at));
                assert_eq!(standing == Standing::Turn, has_turn);
                list.0[at].has_given_up = !has_turn;
                let number = list.0[at].place.number;
                if has_turn && list.0[at].wish.overwrite.is_some() {
                    list.behind(at).for_each(|other| other.leader = Some(number));
                }
            }
            4 if !list.0.is_empty() && list.0[at].is_in_line() && list.has_turn(at) => {
                let (number, mut wakers) = (list.0[at].place.number, Vec::new());
                turns.lines().answer(number, Outcome::Replaced, &mut wakers);
                let followers = list.behind(at).filter(|other| other.leader == Some(number));
                followers.for_each(|other| other.is_answered = true);
            }
            _ => {}
        }
        list.assert_standings();
    }
    list.0.clear();
    assert!(turns.lines().is_empty());
}

#[test]
fn lines_do_what_a_list_does() {
    let mut state = 1_u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    (0..2_000).for_each(|_| random_steps(&mut draw));
}
