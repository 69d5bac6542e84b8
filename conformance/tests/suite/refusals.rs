//! A fabric that refuses any one batch of an operation: the operation fails without effect, leaves no lock behind, and
//! succeeds when it is repeated.

use std::sync::{Arc, Mutex};

use guira_conformance::{Bench, Model, Observed, Op, Prepared, TestClient, Watch, WatchedLane};
use guira_fabric::{Effect, FabricError, Profile, Region, Verb};
use guira_layout::Preset;
use guira_rcuckoo::{Changed, ClientConfig, Error};

const SEED: u64 = 5;
/// Far more batches than any operation here posts.
const MOST_BATCHES: u32 = 100;

/// The number of batches before the one that is refused; `None` if no batch is, or it already was.
type After = Arc<Mutex<Option<u32>>>;

/// Returns a watch that refuses the batch that `after` counts down to.
fn refusing(after: &After) -> Watch {
    let after = Arc::clone(after);
    Box::new(move |_: &[Verb<'_>]| {
        let mut after = after.lock().expect("no thread panics while it holds the lock");
        match after.take() {
            Some(0) => Err(FabricError::Backend("refused".to_owned())),
            left => {
                *after = left.map(|batches| batches - 1);
                Ok(())
            }
        }
    })
}

fn key(i: u64) -> Vec<u8> {
    i.to_le_bytes().to_vec()
}

/// Creates a nearly full table with inline values (of odd keys) and extents; returns it with its contents.
fn filled(preset: Preset) -> (Bench, Model) {
    let bench = Bench::of_rows(preset, "bytes:24", 64, Profile::Shm, SEED);
    let (mut client, mut model) = (bench.client(9), Model::default());
    for i in 0..bench.table.config().max_entries() * 3 / 4 {
        let op = Op::Put(key(i), if i % 2 == 1 { key(i) } else { vec![i as u8; 80] });
        if client.apply(&op).is_ok() {
            model.apply(&op);
        }
    }
    (bench, model)
}

fn operations() -> Vec<Op> {
    let (inline, extent, absent) = (key(1), key(2), key(1 << 40));
    let mut ops = vec![
        Op::Remove(absent.clone()),
        Op::Update(absent, key(7)),
        Op::Put(inline.clone(), vec![3; 80]),
        Op::Put(extent.clone(), key(3)),
        Op::Swap(extent.clone(), vec![2; 80], vec![4; 80]),
        Op::Swap(extent.clone(), vec![9; 80], vec![4; 80]),
        Op::RemoveIf(inline.clone(), key(1)),
        Op::Add(inline.clone(), [1; 8]),
        Op::Add(extent.clone(), [1; 8]),
    ];
    for key in [inline, extent] {
        ops.extend([
            Op::Get(key.clone()),
            Op::Insert(key.clone(), vec![5; 80]),
            Op::Update(key.clone(), vec![6; 88]),
            Op::Remove(key),
        ]);
    }
    // Some of these move other entries.
    ops.extend((0..40).map(|i| Op::Put(key(1 << 32 | i), vec![i as u8; 80])));
    ops
}

/// Carries out `op`. An extent, if its value needs one, is prepared through a lane of its own.
fn apply(bench: &Bench, client: &mut TestClient<WatchedLane>, op: &Op) -> Result<Observed, Error> {
    let value = op.value().unwrap_or_default();
    let prepared = client.extents.prepare(&mut bench.under(Profile::Shm).region.lane(), op.key(), value);
    let Some(change) = op.change(prepared.as_ref().map(Prepared::value)) else { return client.apply(op) };
    let changed = client.change(op.key(), change);
    if let Some(prepared) = prepared
        && !changed.as_ref().is_ok_and(Changed::took_effect)
    {
        client.extents.give_back(prepared);
    }
    changed.map(|changed| Observed::Outcome(changed.outcome))
}

/// [R-LOCK-2] [R-DROP-1] [R-EXTENT-4]
#[test]
fn a_refused_batch_changes_nothing() {
    let mut refusals = 0;
    for (preset, profile) in [Preset::Tiny, Preset::Paper].into_iter().flat_map(|p| Profile::ALL.map(|q| (p, q))) {
        println!("{preset} {profile}, seed {SEED}");
        let (bench, before) = filled(preset);
        for op in operations() {
            let mut then = before.clone();
            let expected = then.apply(&op);
            if bench.fork().client(0).apply(&op) != Ok(expected.clone()) {
                // No path leads to a free entry.
                continue;
            }
            for batches in 0..MOST_BATCHES {
                let bench = bench.fork().under(profile);
                let after = After::default();
                let lane = WatchedLane::new(bench.region.lane(), refusing(&after));
                let mut client = bench.client_with(0, lane, ClientConfig::for_table(&bench.table));
                *after.lock().expect("no thread panics while it holds the lock") = Some(batches);
                let answer = apply(&bench, &mut client, &op);
                if after.lock().expect("no thread panics while it holds the lock").take().is_some() {
                    break;
                }
                refusals += 1;
                let context = || format!("{preset} {profile}: {op:x?}, batch {batches} refused: {answer:?}");
                let now = Model(bench.audit().unwrap_or_else(|wrong| panic!("{}: {wrong}", context())));
                match &answer {
                    // A lookup in place tries once more when it is refused.
                    Ok(seen) => assert!(*seen == expected && now == then, "{}", context()),
                    Err(error) => {
                        assert!(error.effect() == Effect::None && now == before, "{}", context());
                        assert_eq!(apply(&bench, &mut client, &op), Ok(expected.clone()), "{}", context());
                    }
                }
            }
        }
    }
    println!("{refusals} refusals");
    assert!(refusals > 1_000);
}
