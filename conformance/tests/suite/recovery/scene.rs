//! Tables, and operations of every shape on them.

use std::sync::Arc;

use guira_conformance::{Bench, Model, Op, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::{Preset, PresetOptions};

use crate::recovery::audit::recover_all;
use crate::recovery::lane::LoggedLane;
use crate::recovery::life::{Actor, End, Entry, Life, config, live};
use crate::recovery::losses::with_losses;

pub const SEED: u64 = 11;
/// Slots of the clients that die, and of the one that survives.
pub const SLOTS: [u16; 4] = [0, 1, 2, 3];
/// The slot of whoever fills a table.
const FILLER: u16 = 4;
/// Moves of the longest path that is enumerated.
pub const MOST_MOVES: u64 = 5;
/// A full table gets its hole at one key in so many.
const HOLE_STEP: usize = 7;
/// Tables tried until a put moves as many entries as are wanted.
const TABLES: u64 = 40;

/// Words of each chunk that are not zero before it is used first: of its header, of its marks, of the first words of
/// its slots of 128 bytes.
const LITTER: [u64; 6] = [0, 5, 21, 37, 53, 69];

/// A table, and what it holds.
pub struct Stage {
    pub bench: Bench,
    pub model: Model,
}

/// The first client's operation in a table, and what those who come after it do.
pub struct Shape {
    pub name: String,
    pub stage: Arc<Stage>,
    pub lives: Vec<Life>,
    /// How many of them die, one after the other.
    pub deaths: usize,
}

pub fn key(i: u64) -> Vec<u8> {
    i.to_le_bytes().to_vec()
}

fn bench(format: &str, profile: Profile, seed: u64, chunks: u64) -> Bench {
    let options = PresetOptions {
        capacity: 1,
        format: format.parse().expect("a format"),
        extent_bytes: Some(chunks << 12),
        max_clients: Some(FILLER + 1),
        hash_seed: seed,
        device_bytes: profile.caps().device_bytes,
    };
    let bench = Bench::of_config(Preset::Tiny.config_of_rows(64, &options).expect("possible options"), profile, seed);
    // What earlier values left in the chunks, where a header, marks and slots will be: no format may rely on zeros.
    for chunk in 0..bench.table.config().chunks {
        LITTER.iter().for_each(|word| bench.store(bench.table.geometry().chunk(chunk).add_words(*word), &[word + 1]));
    }
    bench
}

/// Carries out `ops` and closes.
fn fill(bench: &Bench, model: &mut Model, ops: impl Iterator<Item = Op>) {
    let lane = bench.under(Profile::Shm).region.lane();
    let mut actor = Actor::enter(bench, Entry::Fresh(FILLER), config(bench), lane).expect("a free slot");
    for op in ops {
        if let Ok(answer) = block_on(actor.apply(&op)) {
            assert_eq!(answer, model.apply(&op));
        }
    }
    actor.close().expect("the heap loses nothing");
    recover_all(bench);
}

impl Stage {
    /// Keys in rows, seven of eight entries taken or, if possible, all.
    fn inline(profile: Profile, seed: u64, fill_percent: u64) -> Stage {
        let bench = bench("fixed:8:8", profile, seed, 1);
        let mut model = Model::default();
        let count = bench.table.config().max_entries() * fill_percent / 100;
        fill(&bench, &mut model, (0..count).map(|i| Op::Put(key(i), key(i))));
        Stage { bench, model }
    }

    /// Keys in extents and in rows, in turn.
    fn extents(profile: Profile, chunks: u64) -> Stage {
        let bench = bench("bytes:24", profile, SEED, chunks);
        let mut model = Model::default();
        let count = bench.table.config().max_entries() / 4;
        let op = |i| Op::Put(key(i), vec![i as u8; if i % 2 == 0 { 80 } else { 9 }]);
        fill(&bench, &mut model, (0..count).map(op));
        Stage { bench, model }
    }
}

/// A put of a new key that moves exactly `moves` entries, and a table for it: nearly full, or with a single hole that
/// is far from the key's rows.
fn crowded(profile: Profile, moves: u64) -> (Arc<Stage>, Op) {
    for table in 0..TABLES {
        let mut stage = Stage::inline(profile, SEED + table, if moves < 4 { 88 } else { 130 });
        if moves >= 4 {
            let holes: Vec<Op> = stage.model.0.keys().step_by(HOLE_STEP).cloned().map(Op::Remove).collect();
            let hole = holes[table as usize % holes.len()].clone();
            fill(&stage.bench, &mut stage.model, [hole].into_iter());
        }
        let put = |i: u64| Op::Put(key(1 << 32 | i), vec![moves as u8; 8]);
        let fits = |op: &Op| {
            let bench = stage.bench.fork();
            let lived = live(&bench, &Life::of(SLOTS[0], op), LoggedLane::new(&bench.region)).expect("a free slot");
            lived.answers[0].is_ok() && lived.counters.moves == moves
        };
        if let Some(op) = (0..200).map(put).find(fits) {
            return (Arc::new(stage), op);
        }
    }
    panic!("no put moves {moves} entries in {TABLES} tables");
}

/// A put of a new key that moves so many entries, and strangers after it.
pub fn insert(profile: Profile, moves: u64) -> Shape {
    let (stage, op) = crowded(profile, moves);
    shapes(&stage, vec![named(&format!("insert, {moves} moves"), op)], 8).swap_remove(0)
}

/// A table with keys in extents and in rows, in turn.
pub fn extents_in(profile: Profile, chunks: u64) -> Stage {
    Stage::extents(profile, chunks)
}

/// Who comes after the first client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cast {
    /// Others put the same key, in slots of their own: they recover those whose locks they meet.
    Strangers,
    /// Others take the slot of the dead, and put the same key.
    Heirs,
    /// One looks the key up and removes it, one recovers that one and swaps, one puts.
    Mixed,
}

const CASTS: [Cast; 3] = [Cast::Strangers, Cast::Heirs, Cast::Mixed];

impl Cast {
    /// The lives after that of `first`, whose last operation is `op`. Survivors' values have `value_bytes`.
    fn lives(self, op: &Op, value_bytes: usize) -> [Life; 3] {
        let put = |seed| Op::Put(op.key().to_vec(), vec![seed; value_bytes]);
        let key = || op.key().to_vec();
        match self {
            Cast::Strangers => [1, 2, 3].map(|i| Life::of(SLOTS[i], &put(100 + i as u8))),
            Cast::Heirs => [1, 2, 3].map(|i| Life { entry: Entry::Heir(SLOTS[0]), ..Life::of(0, &put(100 + i as u8)) }),
            Cast::Mixed => [
                Life { ops: vec![Op::Get(key()), Op::Remove(key())], ..Life::of(SLOTS[1], op) },
                Life {
                    entry: Entry::Heir(SLOTS[1]),
                    ops: vec![put(102), Op::Swap(key(), vec![102; value_bytes], vec![103; value_bytes])],
                    end: End::Closes,
                },
                Life::of(SLOTS[2], &put(104)),
            ],
        }
    }
}

/// Each of `firsts`, with everybody who may come after it.
fn shapes(stage: &Arc<Stage>, firsts: Vec<(String, Life)>, value_bytes: usize) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (name, first) in firsts {
        for cast in CASTS {
            let op = first.ops.last().expect("a life has an operation").clone();
            let lives = [first.clone()].into_iter().chain(cast.lives(&op, value_bytes)).collect();
            let name = format!("{name}, {}", format!("{cast:?}").to_lowercase());
            shapes.push(Shape { name, stage: Arc::clone(stage), lives, deaths: 3 });
        }
    }
    shapes
}

fn named(name: &str, op: Op) -> (String, Life) {
    (name.to_owned(), Life::of(SLOTS[0], &op))
}

/// Operations on keys in rows.
pub fn inline(profile: Profile) -> Vec<Shape> {
    let stage = Arc::new(Stage::inline(profile, SEED, 88));
    let exists = stage.model.0.keys().next().expect("a filled table").clone();
    let missing = || key(1 << 40);
    let ops = vec![
        named("hit", Op::Get(exists.clone())),
        named("miss", Op::Get(missing())),
        named("update", Op::Update(exists.clone(), key(91))),
        named("update of none", Op::Update(missing(), key(91))),
        named("put over", Op::Put(exists.clone(), key(92))),
        named("insert of one that exists", Op::Insert(exists.clone(), key(92))),
        named("swap", Op::Swap(exists.clone(), exists.clone(), key(93))),
        named("swap of another", Op::Swap(exists.clone(), key(94), key(93))),
        named("remove if", Op::RemoveIf(exists.clone(), exists.clone())),
        named("add", Op::Add(exists.clone(), [1; 8])),
        named("add to none", Op::Add(missing(), [1; 8])),
        named("remove", Op::Remove(exists.clone())),
        ("take and close".to_owned(), Life { end: End::Closes, ..Life::of(SLOTS[0], &Op::Get(exists)) }),
    ];
    let mut all = shapes(&stage, ops, 8);
    for moves in 0..=MOST_MOVES {
        let (stage, op) = crowded(profile, moves);
        all.extend(shapes(&stage, vec![named(&format!("insert, {moves} moves"), op)], 8));
    }
    all
}

/// Operations on keys in extents.
pub fn extents(profile: Profile) -> Vec<Shape> {
    let stage = Arc::new(Stage::extents(profile, 10));
    let (in_extent, in_row, missing) = (|| key(2), || key(3), || key(1 << 40));
    let ops = vec![
        named("extent: put new", Op::Insert(missing(), vec![4; 80])),
        named("extent: put over", Op::Put(in_extent(), vec![1; 90])),
        named("extent: update", Op::Update(in_extent(), vec![1; 90])),
        named("extent: swap", Op::Swap(in_extent(), vec![2; 80], vec![1; 90])),
        named("extent: swap of another", Op::Swap(in_extent(), vec![9; 80], vec![1; 90])),
        named("extent: insert of one that exists", Op::Insert(in_extent(), vec![1; 90])),
        named("extent: row over it", Op::Put(in_extent(), vec![2; 3])),
        named("extent: over a row", Op::Put(in_row(), vec![3; 90])),
        named("extent: add", Op::Add(in_extent(), [1; 8])),
        named("extent: remove", Op::Remove(in_extent())),
        named("extent: remove if", Op::RemoveIf(in_extent(), vec![2; 80])),
        (
            "extent: put and close".to_owned(),
            Life { end: End::Closes, ..Life::of(SLOTS[0], &Op::Put(in_extent(), vec![1; 90])) },
        ),
    ];
    let mut all = shapes(&stage, ops, 70);
    // A run of two chunks: a WRITE of 500 words and more.
    let mut runs = shapes(&stage, vec![named("extent: a run", Op::Put(in_extent(), vec![7; 4_100]))], 70);
    runs.iter_mut().for_each(|shape| shape.deaths = if is_long() { 3 } else { 2 });
    all.append(&mut runs);
    all.append(&mut sweeps(profile));
    all
}

/// Clients that sweep up what earlier deaths have lost, and die in doing so. // [R-RECOVER-7]
fn sweeps(profile: Profile) -> Vec<Shape> {
    let stage = Arc::new(with_losses(profile));
    let sweeper = |entry| Life { entry, ops: vec![Op::Put(key(2), vec![8; 70])], end: End::WantsRoom };
    let lives = |entries: [Entry; 4]| entries.map(sweeper).to_vec();
    let strangers = lives(SLOTS.map(Entry::Fresh));
    let heirs = lives([Entry::Fresh(0), Entry::Heir(0), Entry::Heir(0), Entry::Heir(0)]);
    let shape = |name: &str, lives| Shape { name: name.to_owned(), stage: Arc::clone(&stage), lives, deaths: 3 };
    vec![shape("extent: sweep, strangers", strangers), shape("extent: sweep, heirs", heirs)]
}

/// Whether there is time for everything.
pub fn is_long() -> bool {
    std::env::var_os("GUIRA_LONG").is_some_and(|value| value == "1")
}
