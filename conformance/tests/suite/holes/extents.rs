//! Values outside rows: H15, H16, H17. Guira's presets do not differ here: both write what makes reuse safe.

use std::cell::RefCell;
use std::rc::Rc;

use guira_conformance::{
    Bench, DelayedWrites, Exploration, Flaw, Granularity, KeyFinder, Orders, Prepared, ScheduledLane, Scheduler, Task,
    TestClient, explore,
};
use guira_fabric::heap::HeapRegion;
use guira_fabric::{Addr, Lane, Profile, Verb, pause_until, post};
use guira_layout::{Preset, RowId};
use guira_rcuckoo::{Change, Error, ErrorKind, NewValue, Outcome, Table};

use crate::holes::printed;
use guira_conformance::crowded::{PRESETS, SEED, client, config};

const VALUE_BYTES: usize = 64;

/// Two keys, and extents for their values.
struct Fixture {
    bench: Bench,
    key: [u8; 8],
    other: [u8; 8],
    owner: TestClient,
}

impl Fixture {
    fn new(preset: Preset) -> Fixture {
        let bench = Bench::of_config(config(preset, "bytes:24"), Profile::Tcp, SEED);
        let mut keys = KeyFinder::new(&bench.table, 10_000);
        let mut of = |row| keys.take_any(|a, b| a == RowId(row) && a != b).expect("a key of this row").0;
        let (key, other) = (of(3), of(40));
        let owner = bench.client(3);
        Fixture { bench, key, other, owner }
    }

    /// Prepares an extent with the value `byte` for `key`.
    fn prepare(&mut self, key: &[u8], byte: u8) -> Prepared {
        let TestClient { lane, extents, .. } = &mut self.owner;
        extents.prepare(lane, key, &[byte; VALUE_BYTES]).expect("too long for a row")
    }
}

/// The implementation that looks a key up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// A reader that returns whatever is where the entry points.
    Printed,
    /// Guira's reader.
    Ours,
}

type Found = Rc<RefCell<Option<Result<Option<Vec<u8>>, Error>>>>;

/// Returns a task that looks `key` up once, and the place of its answer.
fn look_up(bench: &Bench, scheduler: &Scheduler, key: [u8; 8], by: By) -> (Task, Found) {
    let found = Found::default();
    let (bench, into) = (bench.clone(), Rc::clone(&found));
    let mut lane = ScheduledLane::new(&bench.region, scheduler, Granularity::Verbs, Flaw::None);
    let task = Box::pin(async move {
        let answer = match by {
            By::Printed => Ok(look_up_printed(&mut lane, &bench.table, &key).await),
            By::Ours => {
                let (mut reader, mut value) = (client(&bench, 0, lane), Vec::new());
                let found = reader.client.get(&mut reader.lane, &key, &mut value).await;
                found.map(|token| token.is_some().then_some(value))
            }
        };
        into.replace(Some(answer));
    });
    (task, found)
}

/// Looks a key up as printed (paper 3.2.1): reads both rows, then the extent, whose bytes are the value.
async fn look_up_printed(lane: &mut ScheduledLane, table: &Table, key: &[u8]) -> Option<Vec<u8>> {
    let (rows, geometry) = (table.rows(), *table.geometry());
    let digest = table.placement().digest(key);
    let (pair, probe) = (table.placement().rows(digest), rows.probe(key, digest));
    loop {
        let (mut first, mut second) = (vec![0; rows.row_words()], vec![0; rows.row_words()]);
        let read_first = Verb::Read { addr: geometry.row(pair.first), into: &mut first };
        let read_second = Verb::Read { addr: geometry.row(pair.second), into: &mut second };
        post(lane, [read_first, read_second]).await.expect("the heap reads");
        let sampled = [(pair.first, &first), (pair.second, &second)];
        if sampled.iter().all(|(row, words)| rows.verify(*row, words).is_ok()) {
            let mut hits = sampled.iter().filter_map(|(_, words)| Some((words, rows.find(words, &probe, 0)?)));
            let (words, hit) = hits.next()?;
            let extent = rows.extent_of(words, hit.index());
            let mut words = vec![0; extent.words().expect("a sound entry")];
            post(lane, [Verb::Read { addr: Addr::main(extent.offset), into: &mut words }]).await.expect("it reads");
            return Some(printed::value_at(&words, &extent));
        }
        let until_ns = lane.now_ns() + 1;
        pause_until(lane, until_ns).await;
    }
}

/// Returns a task that puts values in extents, one after the other, in slot 1.
fn put_all(bench: &Bench, lane: ScheduledLane, puts: Vec<([u8; 8], Rc<Prepared>)>) -> Task {
    let mut writer = client(bench, 1, lane);
    Box::pin(async move {
        for (key, prepared) in puts {
            let changed = writer.client.change(&mut writer.lane, &key, Change::Put(prepared.value())).await;
            assert!(changed.is_ok_and(|changed| changed.took_effect()), "no other client is in the way");
        }
    })
}

fn allowed(found: &Found, values: &[Option<u8>]) -> Result<(), String> {
    let found = found.borrow();
    match found.as_ref() {
        Some(Ok(value)) if values.iter().any(|byte| *value == byte.map(|byte| vec![byte; VALUE_BYTES])) => Ok(()),
        wrong => Err(format!("{wrong:x?}")),
    }
}

/// [R-READ-6] [R-EXTENT-3] H15. Between a reader's READ of the index and its READ of the extent the key gets another
/// extent, and the old one's place the value of another key, or a later one of the same key: the reader returns that,
/// or a mixture. A generation and a checksum over both detect it.
#[test]
fn h15_an_extent_is_reused_while_it_is_read() {
    for preset in PRESETS {
        let mut fixture = Fixture::new(preset);
        let (key, other) = (fixture.key, fixture.other);
        let [old, new] = [1, 2].map(|byte| Rc::new(fixture.prepare(&key, byte)));
        fixture.bench.plant(RowId(3), &old);
        for (next, values) in [(other, vec![Some(1), Some(2)]), (key, vec![Some(1), Some(2), Some(3)])] {
            let mut reusing = fixture.prepare(&next, 3);
            // The allocator reuses this place as soon as its mark is written, which the first put does.
            reusing.move_to(old.offset(), &fixture.bench.table, &next, &[3; VALUE_BYTES]);
            let puts = [(key, Rc::clone(&new)), (next, Rc::new(reusing))];
            for by in [By::Printed, By::Ours] {
                let make = |scheduler: &Scheduler| {
                    let bench = fixture.bench.fork();
                    let lane = ScheduledLane::new(&bench.region, scheduler, Granularity::Halves, Flaw::None);
                    let (lookup, found) = look_up(&bench, scheduler, key, by);
                    (found, vec![lookup, put_all(&bench, lane, puts.to_vec())])
                };
                let explored = explore(Orders::Switches(3), make, |found| allowed(&found, &values));
                let by_whom = if next == key { "the same key" } else { "another key" };
                match by {
                    By::Printed => explored.assert_violated(&format!("H15 {preset}, reused by {by_whom}, as printed")),
                    By::Ours => explored.assert_holds(&format!("H15 {preset}, reused by {by_whom}"), 100),
                }
            }
        }
    }
}

/// The mark that a place is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// A bit (paper 3.2.2).
    Bit,
    /// The freed generation.
    Generation,
}

/// [R-EXTENT-4] H16. Two clients both believe that they removed the same extent from the index (because a lock was
/// reclaimed, H5, or because both found a copy of the key, H14), and both free it. With a bit as mark, the second mark
/// frees whatever the place was reused for; a mark that names a former generation frees nothing.
#[test]
fn h16_an_extent_is_freed_twice() {
    let explored = |mark| -> Exploration {
        let make = |scheduler: &Scheduler| -> (Rc<RefCell<u64>>, Vec<Task>) {
            let region = HeapRegion::new(64, 64, Profile::Tcp.caps());
            let uses = Rc::new(RefCell::new(1));
            let mut tasks: Vec<Task> = (0..2).map(|_| freeing(&region, scheduler)).collect();
            tasks.push(reusing(&region, scheduler, mark, &uses));
            (uses, tasks)
        };
        // The first use was freed; the second one never is.
        explore(Orders::All, make, |uses| match *uses.borrow() {
            1 | 2 => Ok(()),
            uses => Err(format!("the place has its use number {uses}, and number {} is in the index", uses - 1)),
        })
    };
    explored(Mark::Bit).assert_violated("H16, a bit");
    explored(Mark::Generation).assert_holds("H16, generations", 10);
}

/// Returns a task that frees the first use of the place, under either mark: generation 1, or the bit.
fn freeing(region: &HeapRegion, scheduler: &Scheduler) -> Task {
    let mut lane = ScheduledLane::new(region, scheduler, Granularity::Verbs, Flaw::None);
    Box::pin(async move {
        post(&mut lane, [Verb::Write { addr: Addr::main(0), words: &[1] }]).await.expect("the heap writes");
    })
}

/// Returns a task that checks a few times whether the place is free, and reuses it if so: `uses` is the generation
/// stored there.
fn reusing(region: &HeapRegion, scheduler: &Scheduler, mark: Mark, uses: &Rc<RefCell<u64>>) -> Task {
    let (mut lane, uses) = (ScheduledLane::new(region, scheduler, Granularity::Verbs, Flaw::None), Rc::clone(uses));
    Box::pin(async move {
        for _ in 0..4 {
            let mut word = [0];
            post(&mut lane, [Verb::Read { addr: Addr::main(0), into: &mut word }]).await.expect("the heap reads");
            let is_free = match mark {
                Mark::Bit => word[0] & 1 == 1,
                Mark::Generation => word[0] == *uses.borrow(),
            };
            if is_free {
                *uses.borrow_mut() += 1;
                if mark == Mark::Bit {
                    post(&mut lane, [Verb::Write { addr: Addr::main(0), words: &[0] }]).await.expect("it writes");
                }
            }
        }
    })
}

/// [R-EXTENT-4] H16. A mark that arrives when its place is in use again, however late and however often, frees nothing.
#[test]
fn h16_a_late_mark_frees_nothing() {
    for preset in PRESETS {
        let mut fixture = Fixture::new(preset);
        let (key, other) = (fixture.key, fixture.other);
        let first = fixture.prepare(&key, 1);
        let NewValue::Extent { extent, .. } = first.value() else { panic!("it is too long for a row") };
        let mark = extent.mark_offset(fixture.bench.table.config(), fixture.bench.table.geometry()).expect("a place");
        fixture.bench.plant(RowId(3), &first);
        let put = |fixture: &mut Fixture, key: &[u8; 8], byte: u8| {
            let prepared = fixture.prepare(key, byte);
            let changed =
                fixture.owner.change(key, Change::Put(prepared.value())).expect("no other client is in the way");
            (changed.outcome, prepared.offset())
        };
        assert_eq!(put(&mut fixture, &key, 2).0, Outcome::Replaced);
        assert_eq!(put(&mut fixture, &other, 3), (Outcome::Inserted, first.offset()), "the place is used again");
        for byte in 4..40 {
            fixture.bench.store(Addr::main(mark), &[extent.generation.0]);
            assert_ne!(put(&mut fixture, &key, byte).1, first.offset(), "{preset}: it is in use");
            assert_eq!(fixture.owner.get(&other), Ok(Some(vec![3; VALUE_BYTES])), "{preset}");
        }
        fixture.bench.audit().expect("a table in order");
    }
}

/// [R-EXTENT-1] H17. The WRITE of a value is sent separately, "in parallel" (paper 3.2.3), and the pointer arrives
/// first: a reader that trusts the pointer returns bytes that were never written. In the lock batch, which completes
/// before the commit is sent, the value arrives before the pointer; and a reader that verifies returns nothing else in
/// any case.
#[test]
fn h17_a_pointer_is_visible_before_its_data() {
    for preset in PRESETS {
        let mut fixture = Fixture::new(preset);
        let key = fixture.key;
        let value = Rc::new(fixture.prepare(&key, 1));
        let bytes = value.offset()..value.offset() + 1;
        for (by, is_late) in [(By::Printed, true), (By::Printed, false), (By::Ours, true), (By::Ours, false)] {
            let make = |scheduler: &Scheduler| {
                let (bench, late) = (fixture.bench.fork(), DelayedWrites::default());
                let flaw = if is_late { Flaw::DelayedWrites(bytes.clone(), late.clone()) } else { Flaw::None };
                let lane = ScheduledLane::new(&bench.region, scheduler, Granularity::Verbs, flaw);
                let (lookup, found) = look_up(&bench, scheduler, key, by);
                let mut tasks = vec![lookup, put_all(&bench, lane, vec![(key, Rc::clone(&value))])];
                if is_late {
                    tasks.push(late.deliver(&bench.region, scheduler, 1));
                }
                (found, tasks)
            };
            let explored = explore(Orders::Switches(3), make, |found| match &*found.borrow() {
                Some(Err(Error { kind: ErrorKind::Corrupt { .. }, .. })) if is_late => Ok(()),
                _ => allowed(&found, &[None, Some(1)]),
            });
            let what = format!("H17 {preset}, {by:?}, {}", if is_late { "by itself" } else { "in order" });
            match (by, is_late) {
                (By::Printed, true) => explored.assert_violated(&what),
                _ => explored.assert_holds(&what, 10),
            }
        }
    }
}
