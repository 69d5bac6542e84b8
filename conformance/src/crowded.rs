//! Tables that are full but for a few entries, for clients that interfere with each other, and runs of two clients on
//! them.

use std::cell::RefCell;
use std::rc::Rc;

use guira_fabric::{Lane, Profile};
use guira_layout::{Preset, PresetOptions, RowId, TableConfig};
use guira_rcuckoo::{ClientConfig, Error};

use crate::{
    Bench, Exploration, Flaw, Granularity, KeyFinder, Model, Observed, Op, Orders, ScheduledLane, Scheduler, Task,
    TestClient, explore,
};

/// The hash seed of the tables.
pub const SEED: u64 = 0x68_6f6c_6573;
/// The rows of the tables.
pub const ROWS: u64 = 64;
/// The full row whose first entry an insert moves away.
pub const HOME: RowId = RowId(20);
/// The other row of the second entry of `HOME`.
const SPARE: RowId = RowId(27);
/// A row whose lock is neither that of `HOME` nor of any row with room.
const ELSEWHERE: RowId = RowId(50);
/// The presets that are compared.
pub const PRESETS: [Preset; 2] = [Preset::Paper, Preset::Hardened];

/// Answer of an operation.
pub type Answer = Result<Observed, Error>;

/// A table that is full but for an empty row, [`Fixture::away`], and perhaps one entry in another row.
#[derive(Clone)]
pub struct Fixture {
    /// The table.
    pub bench: Bench,
    /// The empty row.
    pub away: RowId,
    /// A key in `HOME`; an insert into `HOME` moves it to `away`.
    pub moved: [u8; 8],
    /// Another key in `HOME`. Its other row has room for one entry, unless `away` is under another lock than `HOME`.
    pub neighbour: [u8; 8],
    /// A key elsewhere, under another lock of the same word.
    pub elsewhere: [u8; 8],
    /// A missing key. Its primary row is `HOME`, and both of its rows are full.
    pub crowded: [u8; 8],
}

/// Returns the parameters of a small table.
pub fn config(preset: Preset, format: &str) -> TableConfig {
    let options = PresetOptions {
        capacity: 1,
        format: format.parse().expect("a valid format"),
        extent_bytes: Some(64 << 10),
        max_clients: Some(4),
        hash_seed: SEED,
        device_bytes: u64::MAX,
    };
    preset.config_of_rows(ROWS, &options).expect("valid parameters")
}

/// Returns the value that `writer` gives to `key`.
pub fn value_of(key: &[u8; 8], writer: u8) -> [u8; 8] {
    let mut value = *key;
    value[7] = writer;
    value
}

impl Fixture {
    /// Creates a fixture of `preset`. `HOME` is the secondary row of `moved` if `away` comes before it, the primary one
    /// otherwise.
    pub fn new(preset: Preset, away: RowId) -> Fixture {
        let bench = Bench::of_config(config(preset, "fixed:8:8"), Profile::Tcp, SEED);
        let mut keys = KeyFinder::new(&bench.table, 200_000);
        let moved = keys.take(HOME.min(away), HOME.max(away)).expect("a key of this pair");
        let neighbour = keys.take(HOME, SPARE).expect("a key of this pair");
        let mut any = |first: RowId| {
            let found = keys.take_any(|a, b| a == first && ![away, SPARE, HOME, a].contains(&b));
            found.expect("a key of this row").0
        };
        let (crowded, elsewhere) = (any(HOME), any(ELSEWHERE));
        // An insert looks for room under the lock of `HOME` first.
        let spare_room = usize::from(bench.table.locks().lock_of(away) == bench.table.locks().lock_of(HOME));
        for row in (0..ROWS).map(RowId) {
            let (mut entries, room) = match row {
                HOME => (vec![moved, neighbour], 0),
                ELSEWHERE => (vec![elsewhere], 0),
                SPARE => (vec![], spare_room),
                row => (vec![], if row == away { bench.table.rows().entries() } else { 0 }),
            };
            while entries.len() + room < bench.table.rows().entries() {
                entries.push(any(row));
            }
            let values: Vec<[u8; 8]> = entries.iter().map(|key| value_of(key, 0)).collect();
            let entries: Vec<(&[u8], &[u8])> = entries.iter().zip(&values).map(|(k, v)| (&k[..], &v[..])).collect();
            bench.fill_row(row, &entries);
        }
        Fixture { bench, away, moved, neighbour, elsewhere, crowded }
    }

    /// Returns a put of the missing key, which moves `moved`.
    pub fn moving_put(&self) -> Op {
        Op::Put(self.crowded.to_vec(), value_of(&self.crowded, 1).to_vec())
    }

    /// Returns an update of `key`.
    pub fn update(key: &[u8; 8], writer: u8) -> Op {
        Op::Update(key.to_vec(), value_of(key, writer).to_vec())
    }

    /// Runs two clients on copies of the table under every order of turns: their answers and the table they leave must
    /// be those of one of the sequential orders.
    pub fn explore(&self, profile: Profile, orders: Orders, flaw: &Flaw, ops: [Vec<Op>; 2]) -> Exploration {
        let before = Model(self.bench.audit().expect("a table in order"));
        let make = |scheduler: &Scheduler| {
            let bench = self.bench.fork().under(profile);
            let runs: Vec<(Task, Rc<RefCell<Vec<Answer>>>)> = (0..2)
                .map(|i| {
                    let lane = ScheduledLane::new(&bench.region, scheduler, Granularity::Verbs, flaw.clone());
                    operate(client(&bench, i as u16, lane), ops[i].clone())
                })
                .collect();
            let (tasks, answers): (Vec<Task>, Vec<_>) = runs.into_iter().unzip();
            ((bench, answers), tasks)
        };
        explore(orders, make, |(bench, answers)| {
            let answers: Vec<Vec<Answer>> = answers.into_iter().map(|answers| answers.take()).collect();
            let after = Model(bench.audit().map_err(|wrong| format!("{wrong}; answers {answers:x?}"))?);
            let explained = before.explains(&after, [&ops[0], &ops[1]], [&answers[0], &answers[1]]);
            if explained { Ok(()) } else { Err(format!("no order explains the answers {answers:x?}")) }
        })
    }
}

/// Opens a client in `slot` that acts through `lane`, and gives up waiting after 1 ms of its own clock. Clients of
/// every preset pause between tries: a client that spins has no end of orders of turns.
pub fn client<L: Lane>(bench: &Bench, slot: u16, lane: L) -> TestClient<L> {
    let config = ClientConfig::for_table(&bench.table);
    let config = ClientConfig { deadline_ns: 1_000_000, backoff_ns: 500, ..config };
    // Claiming a slot is not under test.
    bench.client_with(slot, guira_fabric::Region::lane(&bench.region), config).through(lane)
}

/// Returns a task that carries out `ops`, and the place of their answers.
pub fn operate<L: Lane + 'static>(mut client: TestClient<L>, ops: Vec<Op>) -> (Task, Rc<RefCell<Vec<Answer>>>) {
    let answers: Rc<RefCell<Vec<Answer>>> = Rc::default();
    let into = Rc::clone(&answers);
    let task = Box::pin(async move {
        for op in &ops {
            let answer = act(&mut client, op).await;
            into.borrow_mut().push(answer);
        }
    });
    (task, answers)
}

/// Carries out an operation on inline values.
pub async fn act<L: Lane>(client: &mut TestClient<L>, op: &Op) -> Answer {
    let Some(change) = op.change(None) else {
        let mut value = Vec::new();
        let found = client.client.get(&mut client.lane, op.key(), &mut value).await?;
        return Ok(Observed::Value(found.is_some().then_some(value)));
    };
    client.client.change(&mut client.lane, op.key(), change).await.map(|changed| Observed::Outcome(changed.outcome))
}
