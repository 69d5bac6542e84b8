//! Two clients that change one key under every order of turns within a bound, and three under drawn orders, while
//! waiting writes may count as overwritten: calls, returns and answers must be those of one order in which each
//! operation takes effect at one moment between its call and its return. [R-LOCK-10]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use guira_conformance::{
    Bench, Exploration, Flaw, Granularity, Model, Op, Orders, ScheduledLane, Scheduler, Task, TestClient, explore,
};
use guira_fabric::{Profile, Region, SplitMix64};
use guira_layout::{Preset, RowId, Segments};
use guira_rcuckoo::ClientConfig;
use guira_testing::is_long;

use guira_conformance::crowded::{Answer, Fixture, HOME, act, value_of};

use crate::splits;

/// The row to which the key moves when another one is inserted.
const AWAY: RowId = RowId(25);
const SEED: u64 = 17;
/// Most turns of a run; one that takes more is stuck.
const MOST_TURNS: usize = 20_000;
/// A client waits for as long as the clients that it waits for may take.
const DEADLINE_NS: u64 = 1_000_000_000_000;

/// An operation with the moments of its call and its return.
#[derive(Clone, Debug)]
struct Done {
    op: Op,
    answer: Answer,
    called: u64,
    returned: u64,
}

/// State that the clients of a run share.
#[derive(Clone, Default)]
struct Shared {
    moment: Rc<Cell<u64>>,
    history: Rc<RefCell<Vec<Done>>>,
    /// Operations that counted as overwritten.
    combined: Rc<Cell<u64>>,
}

impl Shared {
    fn now(&self) -> u64 {
        self.moment.set(self.moment.get() + 1);
        self.moment.get()
    }
}

/// Whether `history` is one order of operations, each between its call and its return, that leads from `model` to
/// `after`. `left` has a bit for each operation that is not in the order yet.
fn is_linearizable(history: &[Done], left: u32, model: &Model, after: &Model) -> bool {
    if left == 0 {
        return model == after;
    }
    let open = || (0..history.len()).filter(|i| left >> i & 1 != 0);
    let first_return = open().map(|i| history[i].returned).min().unwrap_or_default();
    open().filter(|i| history[*i].called <= first_return).any(|i| {
        let mut next = model.clone();
        let fits = history[i].answer.as_ref() == Ok(&next.apply(&history[i].op));
        fits && is_linearizable(history, left & !(1 << i), &next, after)
    })
}

/// Returns a task that carries out `ops` and notes them in `shared`.
fn task(mut client: TestClient<ScheduledLane>, ops: Vec<Op>, shared: Shared) -> Task {
    Box::pin(async move {
        for op in ops {
            let called = shared.now();
            let answer = act(&mut client, &op).await;
            shared.history.borrow_mut().push(Done { op, answer, called, returned: shared.now() });
        }
        shared.combined.set(shared.combined.get() + client.client.counters().combined);
    })
}

/// A table in which the row of a key says that the key's value was replaced, before any client waits.
struct Case {
    marked: Bench,
    before: Model,
    key: [u8; 8],
}

impl Case {
    /// A key that an insert can move to its other row.
    fn crowded(fixture: &Fixture) -> Case {
        let marked = fixture.bench.fork();
        let case = Case::new(marked.client(0), marked, fixture.moved);
        let rows = case.marked.table.rows();
        assert_eq!(rows.replaced_entry(&case.marked.row_words(HOME)), Some(0), "the key is the first of its row");
        case
    }

    /// A key in a segment that the returned put of another key splits. It goes to the new segment, or it stays.
    fn in_full_segment(goes: bool) -> (Case, Op) {
        let bench = splits::table(Profile::Tcp, "fixed:8:8", 1, 2);
        let (client, next) = splits::almost_split(&bench);
        let position = |i: u64| Segments::position(bench.table.key(&splits::key(i)).expect("8 bytes").digest());
        let upper_half = |i: &u64| position(*i) >> 63 == 1;
        let key = (0..next).find(|i| upper_half(i) == goes).expect("keys of both halves");
        let last = splits::key(next);
        (Case::new(client, bench, splits::key(key)), Op::Put(last.to_vec(), value_of(&last, 1).to_vec()))
    }

    /// `client` has slot 0.
    fn new(mut client: TestClient, marked: Bench, key: [u8; 8]) -> Case {
        client.put(&key, &value_of(&key, 0)).expect("the key is there");
        let before = Model(marked.audit().expect("a table in order"));
        Case { marked, before, key }
    }

    fn key(&self) -> Vec<u8> {
        self.key.to_vec()
    }

    fn put(&self, writer: u8) -> Op {
        Op::Put(self.key(), value_of(&self.key, writer).to_vec())
    }

    fn update(&self, writer: u8) -> Op {
        Op::Update(self.key(), value_of(&self.key, writer).to_vec())
    }

    fn swap(&self, from: u8, to: u8) -> Op {
        let value = |writer| value_of(&self.key, writer).to_vec();
        Op::Swap(self.key(), value(from), value(to))
    }

    fn get(&self) -> Op {
        Op::Get(self.key())
    }

    /// Runs clients with these operations under every order of turns in `orders`, all of which must hold; in some of
    /// them a write has to count as overwritten.
    fn assert_holds(&self, profile: Profile, granularity: Granularity, orders: Orders, ops: &[Vec<Op>]) {
        let (explored, combined) = self.explore(profile, granularity, orders, ops);
        println!("{combined} writes counted as overwritten");
        explored.assert_holds(&format!("{profile}, {ops:x?}"), 100);
        assert!(combined > 0, "{profile}, {ops:x?}: no write was overwritten");
    }

    /// Runs two clients that write the key, and a third one with these operations, in drawn orders of turns, all of
    /// which must hold; in some of them a write has to count as overwritten.
    fn assert_holds_drawn(&self, third: Vec<Op>) {
        let ops = [vec![self.put(1), self.get(), self.update(5)], vec![self.update(2), self.get()], third];
        let orders = if is_long() { 3_000 } else { 1_000 };
        println!("{orders} orders from seed {SEED}");
        let mut combined = 0;
        for number in 0..orders {
            let (scheduler, mut random) = (Scheduler::default(), SplitMix64(SEED + number));
            let (world, tasks) = self.make(Profile::Mlx5, Granularity::Verbs, &ops, &scheduler);
            run_drawn(&scheduler, tasks, &mut random);
            combined += world.1.combined.get();
            self.judge(world).unwrap_or_else(|wrong| panic!("order {number}: {wrong}"));
        }
        assert!(combined > orders / 20, "{ops:x?}: {combined} writes were overwritten");
    }

    fn explore(
        &self,
        profile: Profile,
        granularity: Granularity,
        orders: Orders,
        ops: &[Vec<Op>],
    ) -> (Exploration, u64) {
        let mut combined = 0;
        let make = |scheduler: &Scheduler| self.make(profile, granularity, ops, scheduler);
        let explored = explore(orders, make, |(bench, shared)| {
            combined += shared.combined.get();
            self.judge((bench, shared))
        });
        (explored, combined)
    }

    /// Creates the clients of one run on a copy of the table, and what they share.
    fn make(
        &self,
        profile: Profile,
        granularity: Granularity,
        ops: &[Vec<Op>],
        scheduler: &Scheduler,
    ) -> ((Bench, Shared), Vec<Task>) {
        let (bench, shared) = (self.marked.fork().under(profile), Shared::default());
        let tasks = ops.iter().zip(1..).map(|(ops, slot)| {
            let lane = ScheduledLane::new(&bench.region, scheduler, granularity, Flaw::None);
            let config = ClientConfig::for_table(&bench.table);
            let config = ClientConfig { deadline_ns: DEADLINE_NS, backoff_ns: 500, ..config };
            // Claiming a slot is not under test.
            let client = bench.client_with(slot, bench.region.lane(), config).through(lane);
            task(client, ops.clone(), shared.clone())
        });
        let tasks = tasks.collect();
        ((bench, shared), tasks)
    }

    /// Returns what is wrong with the history and the table that a run leaves.
    fn judge(&self, (bench, shared): (Bench, Shared)) -> Result<(), String> {
        let history = shared.history.take();
        let after = bench.audit().map_err(|wrong| format!("{wrong}; {history:x?}"))?;
        let is_used = |key: &Vec<u8>| history.iter().any(|done| done.op.key() == key);
        let (used, others): (BTreeMap<_, _>, BTreeMap<_, _>) = after.into_iter().partition(|(key, _)| is_used(key));
        let before = || self.before.0.iter();
        if !before().filter(|(key, _)| !is_used(key)).eq(&others) {
            return Err(format!("other keys are not what they were after {history:x?}"));
        }
        let before = before().filter(|(key, _)| is_used(key)).map(|(key, value)| (key.clone(), value.clone()));
        let (before, after) = (Model(before.collect()), Model(used));
        if is_linearizable(&history, (1 << history.len()) - 1, &before, &after) {
            return Ok(());
        }
        Err(format!("no order explains {history:x?}, which leave {:x?}", after.0.get(&self.key())))
    }
}

/// [R-LOCK-10] Waiting puts and updates, against writes before and after their calls.
#[test]
fn writes_against_writes() {
    let case = Case::crowded(&Fixture::new(Preset::Hardened, AWAY));
    let switches = if is_long() { 4 } else { 3 };
    let others = [vec![case.put(2), case.put(3)], vec![case.update(2), case.update(3)], vec![case.put(2), case.get()]];
    for other in others {
        for own in [case.put(1), case.update(1)] {
            let ops = [vec![case.get(), own, case.get()], other.clone()];
            for profile in [Profile::Tcp, Profile::Rxe] {
                case.assert_holds(profile, Granularity::Verbs, Orders::Switches(switches), &ops);
            }
        }
    }
    let ops = [vec![case.put(1), case.get()], vec![case.put(2), case.put(3)]];
    case.assert_holds(Profile::Mlx5, Granularity::Halves, Orders::Switches(3), &ops);
}

/// [R-LOCK-10] [R-CAS-1] [R-ADD-1] Waiting writes, against writes with removals, comparisons and additions before and
/// after them.
#[test]
fn writes_against_changes_that_depend_on_the_value() {
    let case = Case::crowded(&Fixture::new(Preset::Hardened, AWAY));
    let add = Op::Add(case.key(), [1; 8]);
    let others = [
        vec![Op::Remove(case.key()), case.put(2), case.put(3)],
        vec![case.update(2), Op::Remove(case.key())],
        vec![case.swap(0, 2), case.update(3)],
        vec![case.update(2), case.swap(2, 3)],
        vec![case.put(2), add],
    ];
    for other in others {
        for own in [case.put(1), case.update(1)] {
            case.assert_holds(
                Profile::Tcp,
                Granularity::Verbs,
                Orders::Switches(3),
                &[vec![own, case.get()], other.clone()],
            );
        }
    }
}

/// [R-LOCK-10] [R-INSERT-4] A waiting write of a key that an insert of another one moves to its other row, and that is
/// written there.
#[test]
fn writes_of_a_key_that_moves() {
    let fixture = Fixture::new(Preset::Hardened, AWAY);
    let case = Case::crowded(&fixture);
    for own in [case.put(1), case.update(1)] {
        let other = vec![fixture.moving_put(), case.put(2)];
        let ops = [vec![own.clone(), case.get()], other];
        case.assert_holds(Profile::Tcp, Granularity::Verbs, Orders::Switches(3), &ops);
    }
}

/// [R-LOCK-10] [R-GROW-8] A waiting write of a key whose segment is split, and that is written afterwards, in the new
/// segment or in the old one.
#[test]
fn writes_of_a_key_whose_segment_is_split() {
    for goes in [false, true] {
        let (case, splitting_put) = Case::in_full_segment(goes);
        for own in [case.put(1), case.update(1)] {
            let other = vec![splitting_put.clone(), case.put(2)];
            let ops = [vec![own.clone(), case.get()], other];
            case.assert_holds(Profile::Tcp, Granularity::Verbs, Orders::Switches(3), &ops);
        }
    }
}

/// [R-LOCK-10] [R-INSERT-4] [R-GROW-8] Several waiting writes of one key, which one write may complete together, while
/// others remove, compare and move the key, and split its segment. With three clients there is no end of orders in which
/// two wait for each other, so these are drawn.
#[test]
fn three_clients_in_drawn_orders() {
    let fixture = Fixture::new(Preset::Hardened, AWAY);
    let case = Case::crowded(&fixture);
    case.assert_holds_drawn(vec![case.put(3), case.get()]);
    case.assert_holds_drawn(vec![case.swap(2, 3), case.put(4)]);
    case.assert_holds_drawn(vec![Op::Remove(case.key()), case.put(4)]);
    case.assert_holds_drawn(vec![fixture.moving_put(), case.update(3)]);
    for goes in [false, true] {
        let (case, splitting_put) = Case::in_full_segment(goes);
        case.assert_holds_drawn(vec![splitting_put.clone(), case.put(3)]);
        case.assert_holds_drawn(vec![splitting_put, Op::Remove(case.key()), case.put(3)]);
    }
}

/// Gives `tasks` turns until all have ended: long stretches for one, or a few turns each.
fn run_drawn(scheduler: &Scheduler, tasks: Vec<Task>, random: &mut SplitMix64) {
    let stay_percent = random.below(100);
    let mut tasks: Vec<Option<Task>> = tasks.into_iter().map(Some).collect();
    let mut chosen = 0;
    for _ in 0..MOST_TURNS {
        let live: Vec<usize> = (0..tasks.len()).filter(|task| tasks[*task].is_some()).collect();
        if live.is_empty() {
            return;
        }
        if random.below(100) >= stay_percent || !live.contains(&chosen) {
            chosen = live[random.below(live.len() as u64) as usize];
        }
        if tasks[chosen].as_mut().is_some_and(|task| scheduler.give_turn(task)) {
            tasks[chosen] = None;
        }
    }
    panic!("no client makes progress");
}
