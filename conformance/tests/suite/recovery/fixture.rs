//! Tables, and the cases of operations on them.

use std::sync::Arc;

use guira_conformance::{Bench, Model, Op, block_on, growing};
use guira_fabric::{Profile, Region};
use guira_layout::{Preset, PresetOptions, TableConfig};
use guira_testing::is_long;

use crate::recovery::audit::recover_all;
use crate::recovery::lane::LoggedLane;
use crate::recovery::leaks::with_leaks;
use crate::recovery::lifecycle::{Actor, End, Script, SlotSource, config, run_script};

pub const SEED: u64 = 11;
/// Slots of the clients that die, and of the one that survives.
pub const SLOTS: [u16; 4] = [0, 1, 2, 3];
/// The slot of the client that fills a table.
const FILLER: u16 = 4;
/// Moves of the longest path that is enumerated.
pub const MOST_MOVES: u64 = 5;
/// Moves of the longest path with which three clients die, unless the run is a long one: each more doubles the time.
const MOST_MOVES_OF_THREE_DEATHS: u64 = 3;
/// Every key with this stride is a candidate for the hole in a full table.
const HOLE_STEP: usize = 7;
/// Most tables tried until a put moves the wanted number of entries.
const TABLES: u64 = 40;

/// Chunks of a table whose segment is split: enough for 80 bytes of every second key.
const SPLIT_CHUNKS: u64 = 20;
/// Words of each chunk that are not zero before its first use: of its header, of its marks, and of the first words of
/// its slots of 112 bytes.
const LITTER: [u64; 6] = [0, 5, 21, 41, 55, 69];

/// A table and its contents.
pub struct FilledTable {
    pub bench: Bench,
    pub model: Model,
}

/// A case: the first client's operation in a table, and the scripts of the clients that follow it.
pub struct Case {
    pub name: String,
    pub filled: Arc<FilledTable>,
    pub scripts: Vec<Script>,
    /// The number of clients that die, one after the other.
    pub deaths: usize,
}

pub fn key(i: u64) -> Vec<u8> {
    i.to_le_bytes().to_vec()
}

fn bench(format: &str, profile: Profile, seed: u64, chunks: u64) -> Bench {
    bench_of(format, profile, seed, chunks, |config| config)
}

/// Creates a table without keys that grows from one segment, and from a quarter of `chunks` chunks.
pub fn growing_extents(chunks: u64) -> Bench {
    bench_of("bytes:24", Profile::Shm, SEED, chunks, |config| growing(config, 1, 16))
}

/// Creates a table whose parameters are what `change` makes of those of one of 64 rows.
fn bench_of(
    format: &str,
    profile: Profile,
    seed: u64,
    chunks: u64,
    change: impl FnOnce(TableConfig) -> TableConfig,
) -> Bench {
    let options = PresetOptions {
        capacity: 1,
        format: format.parse().expect("a format"),
        extent_bytes: Some(chunks << 12),
        max_clients: Some(FILLER + 1),
        hash_seed: seed,
        device_bytes: profile.caps().device_bytes,
    };
    let config = change(Preset::Tiny.config_of_rows(64, &options).expect("possible options"));
    let bench = Bench::of_config(config, profile, seed);
    // These words are remains of earlier values in the chunks, where a header, marks and slots will be: no format may
    // rely on zeros.
    for chunk in 0..bench.table.config().chunks {
        LITTER.iter().for_each(|word| bench.store(bench.table.geometry().chunk(chunk).add_words(*word), &[word + 1]));
    }
    bench
}

/// Carries out `ops`, and closes the client.
fn fill(bench: &Bench, model: &mut Model, ops: impl Iterator<Item = Op>) {
    let lane = bench.under(Profile::Shm).region.lane();
    let mut actor = Actor::open(bench, SlotSource::Free(FILLER), config(bench), lane).expect("a free slot");
    for op in ops {
        if let Ok(answer) = block_on(actor.apply(&op)) {
            assert_eq!(answer, model.apply(&op));
        }
    }
    actor.close().expect("the heap loses nothing");
    recover_all(bench);
}

impl FilledTable {
    /// Creates a table with keys in rows, with seven of eight entries taken or, if possible, all.
    fn inline(profile: Profile, seed: u64, fill_percent: u64) -> FilledTable {
        let bench = bench("fixed:8:8", profile, seed, 1);
        let mut model = Model::default();
        let count = bench.table.config().max_entries() * fill_percent / 100;
        fill(&bench, &mut model, (0..count).map(|i| Op::Put(key(i), key(i))));
        FilledTable { bench, model }
    }

    /// Creates a table that grows, with `keys` keys in extents and in rows, alternating if `format` has extents.
    fn growing(profile: Profile, format: &str, keys: u64) -> FilledTable {
        let bench = bench_of(format, profile, SEED, SPLIT_CHUNKS, |config| growing(config, 1, 4));
        let mut model = Model::default();
        let value =
            |i: u64| if bench.table.config().chunks > 0 && i.is_multiple_of(2) { vec![i as u8; 80] } else { key(i) };
        fill(&bench, &mut model, (0..keys).map(|i| Op::Put(key(i), value(i))));
        FilledTable { bench, model }
    }

    /// Creates a table with keys in extents and in rows, alternating.
    fn extents(profile: Profile, chunks: u64) -> FilledTable {
        let bench = bench("bytes:24", profile, SEED, chunks);
        let mut model = Model::default();
        let count = bench.table.config().max_entries() / 4;
        let op = |i| Op::Put(key(i), vec![i as u8; if i % 2 == 0 { 80 } else { 9 }]);
        fill(&bench, &mut model, (0..count).map(op));
        FilledTable { bench, model }
    }
}

/// Finds a put of a new key that moves exactly `moves` entries, and a table for it: nearly full, or with a single hole
/// that is far from the key's rows.
fn crowded(profile: Profile, moves: u64) -> (Arc<FilledTable>, Op) {
    for table in 0..TABLES {
        let mut filled = FilledTable::inline(profile, SEED + table, if moves < 4 { 88 } else { 130 });
        if moves >= 4 {
            let holes: Vec<Op> = filled.model.0.keys().step_by(HOLE_STEP).cloned().map(Op::Remove).collect();
            let hole = holes[table as usize % holes.len()].clone();
            fill(&filled.bench, &mut filled.model, [hole].into_iter());
        }
        let put = |i: u64| Op::Put(key(1 << 32 | i), vec![moves as u8; 8]);
        let fits = |op: &Op| {
            let bench = filled.bench.fork();
            let run =
                run_script(&bench, &Script::of(SLOTS[0], op), LoggedLane::new(&bench.region)).expect("a free slot");
            run.answers[0].is_ok() && run.counters.moves == moves
        };
        if let Some(op) = (0..200).map(put).find(fits) {
            return (Arc::new(filled), op);
        }
    }
    panic!("no put moves {moves} entries in {TABLES} tables");
}

/// Returns the case of a put of a new key that moves `moves` entries, with newcomers after it.
pub fn insert(profile: Profile, moves: u64) -> Case {
    let (filled, op) = crowded(profile, moves);
    cases(&filled, vec![named(&format!("insert, {moves} moves"), op)], 8).swap_remove(0)
}

/// Returns the cases of an insert that splits the only segment of its table, in which keys are in rows, or in rows and
/// extents.
pub fn splits(profile: Profile) -> Vec<Case> {
    let mut all = Vec::new();
    for format in ["fixed:8:8", "bytes:24"] {
        let tables = (1..).map(|keys| FilledTable::growing(profile, format, keys));
        let filled = tables.take_while(|filled| filled.bench.rows().count() == 64).last().expect("a segment has room");
        let op = Op::Put(key(filled.model.0.len() as u64), vec![5; 8]);
        all.append(&mut cases(&Arc::new(filled), vec![named(&format!("{format}: a split"), op)], 8));
    }
    // Every word of two segments is a step: a second death multiplies the memories by more than a thousand.
    all.iter_mut().for_each(|case| case.deaths = 1);
    all
}

/// Creates a table with keys in extents and in rows, alternating.
pub fn extents_in(profile: Profile, chunks: u64) -> FilledTable {
    FilledTable::extents(profile, chunks)
}

/// The clients that follow the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Successors {
    /// Clients that put the same key, in slots of their own, and recover those whose locks they meet.
    Newcomers,
    /// Clients that take the slot of the dead one, and put the same key.
    Reusers,
    /// One client that looks the key up and removes it, one that recovers that client and swaps, and one that puts.
    Mixed,
}

const SUCCESSORS: [Successors; 3] = [Successors::Newcomers, Successors::Reusers, Successors::Mixed];

impl Successors {
    /// Returns the scripts after that of `first`, whose last operation is `op`. Survivors' values have `value_bytes`.
    fn scripts(self, op: &Op, value_bytes: usize) -> [Script; 3] {
        let put = |seed| Op::Put(op.key().to_vec(), vec![seed; value_bytes]);
        let key = || op.key().to_vec();
        match self {
            Successors::Newcomers => [1, 2, 3].map(|i| Script::of(SLOTS[i], &put(100 + i as u8))),
            Successors::Reusers => {
                [1, 2, 3].map(|i| Script { entry: SlotSource::Dead(SLOTS[0]), ..Script::of(0, &put(100 + i as u8)) })
            }
            Successors::Mixed => [
                Script { ops: vec![Op::Get(key()), Op::Remove(key())], ..Script::of(SLOTS[1], op) },
                Script {
                    entry: SlotSource::Dead(SLOTS[1]),
                    ops: vec![put(102), Op::Swap(key(), vec![102; value_bytes], vec![103; value_bytes])],
                    end: End::Closes,
                },
                Script::of(SLOTS[2], &put(104)),
            ],
        }
    }
}

/// Returns a case for each of `firsts` with each kind of successors.
fn cases(filled: &Arc<FilledTable>, firsts: Vec<(String, Script)>, value_bytes: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, first) in firsts {
        for successors in SUCCESSORS {
            let op = first.ops.last().expect("a script has an operation").clone();
            let scripts = [first.clone()].into_iter().chain(successors.scripts(&op, value_bytes)).collect();
            let name = format!("{name}, {}", format!("{successors:?}").to_lowercase());
            cases.push(Case { name, filled: Arc::clone(filled), scripts, deaths: 3 });
        }
    }
    cases
}

fn named(name: &str, op: Op) -> (String, Script) {
    (name.to_owned(), Script::of(SLOTS[0], &op))
}

/// Returns the cases of operations on keys in rows.
pub fn inline(profile: Profile) -> Vec<Case> {
    let filled = Arc::new(FilledTable::inline(profile, SEED, 88));
    let exists = filled.model.0.keys().next().expect("a filled table").clone();
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
        ("take and close".to_owned(), Script { end: End::Closes, ..Script::of(SLOTS[0], &Op::Get(exists)) }),
    ];
    let mut all = cases(&filled, ops, 8);
    for moves in 0..=MOST_MOVES {
        let (filled, op) = crowded(profile, moves);
        let mut of_moves = cases(&filled, vec![named(&format!("insert, {moves} moves"), op)], 8);
        if moves > MOST_MOVES_OF_THREE_DEATHS && !is_long() {
            of_moves.iter_mut().for_each(|case| case.deaths = 2);
        }
        all.append(&mut of_moves);
    }
    all
}

/// Returns the cases of operations on keys in extents.
pub fn extents(profile: Profile) -> Vec<Case> {
    let filled = Arc::new(FilledTable::extents(profile, 10));
    let (in_extent, in_row, missing) = (|| key(2), || key(3), || key(1 << 40));
    let ops = vec![
        named("extent: put new", Op::Insert(missing(), vec![4; 80])),
        named("extent: put over", Op::Put(in_extent(), vec![1; 88])),
        named("extent: update", Op::Update(in_extent(), vec![1; 88])),
        named("extent: swap", Op::Swap(in_extent(), vec![2; 80], vec![1; 88])),
        named("extent: swap of another", Op::Swap(in_extent(), vec![9; 80], vec![1; 88])),
        named("extent: insert of one that exists", Op::Insert(in_extent(), vec![1; 88])),
        named("extent: row over it", Op::Put(in_extent(), vec![2; 3])),
        named("extent: over a row", Op::Put(in_row(), vec![3; 88])),
        named("extent: add", Op::Add(in_extent(), [1; 8])),
        named("extent: remove", Op::Remove(in_extent())),
        named("extent: remove if", Op::RemoveIf(in_extent(), vec![2; 80])),
        (
            "extent: put and close".to_owned(),
            Script { end: End::Closes, ..Script::of(SLOTS[0], &Op::Put(in_extent(), vec![1; 88])) },
        ),
    ];
    // The value of a run takes two chunks: a WRITE of 500 words and more.
    let run = named("extent: a run", Op::Put(in_extent(), vec![7; 4_100]));
    let mut all = cases(&filled, ops.into_iter().chain([run]).collect(), 70);
    if !is_long() {
        // A third death multiplies the memories by three, and a second one after hundreds of words by thirty.
        all.iter_mut().for_each(|case| case.deaths = if case.name.starts_with("extent: a run") { 1 } else { 2 });
    }
    all.append(&mut sweeps(profile));
    all
}

/// Returns the cases of clients that sweep up what earlier deaths have leaked, and die while they do so. //
/// [R-RECOVER-7]
fn sweeps(profile: Profile) -> Vec<Case> {
    let filled = Arc::new(with_leaks(profile));
    let sweeper = |entry| Script { entry, ops: vec![Op::Put(key(2), vec![8; 76])], end: End::ExhaustsSpace };
    let scripts = |entries: [SlotSource; 4]| entries.map(sweeper).to_vec();
    let newcomers = scripts(SLOTS.map(SlotSource::Free));
    let reusers = scripts([SlotSource::Free(0), SlotSource::Dead(0), SlotSource::Dead(0), SlotSource::Dead(0)]);
    let case =
        |name: &str, scripts, deaths| Case { name: name.to_owned(), filled: Arc::clone(&filled), scripts, deaths };
    let deaths_of_newcomers = if is_long() { 3 } else { 2 };
    vec![case("extent: sweep, newcomers", newcomers, deaths_of_newcomers), case("extent: sweep, reusers", reusers, 3)]
}
