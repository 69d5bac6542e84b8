//! Puts and updates that wait for a lock while another client writes the same key: they are complete once the row says
//! that its last change replaced the key's value. There is no thread and no clock: the other client acts at chosen
//! steps of a lane, and never gives its lock back. [R-LOCK-10]

use std::sync::Arc;

use guira_conformance::{Bench, KeyFinder, Observed, Op, Sampling, StepPoint, SteppedLane, TestClient};
use guira_fabric::memory::Ordering;
use guira_fabric::{Profile, Region};
use guira_layout::{LockMask, OwnerId, Preset, RowId};
use guira_rcuckoo::{Change, ClientConfig, Error, ErrorKind, Expected, NewValue, Outcome};

const SEED: u64 = 5;
const OTHER: OwnerId = OwnerId(40);
const DEADLINE_NS: u64 = 5_000_000;
/// The wait at which the other client writes.
const WRITTEN_AT: u32 = 2;

/// A change that another client makes under its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// A put or an update of the waiting client's key.
    SameKey,
    /// A put or an update of another key in the same row.
    OtherKey,
    /// A change of the same key that depends on its value.
    Dependent,
    /// A put or an update of the same key, and then a change of another one.
    SameKeyThenOther,
    /// Half of a put or an update: the row does not verify.
    Torn,
}

/// A table with two keys in one row, whose lock another client holds.
struct Fixture {
    bench: Bench,
    key: [u8; 8],
    row: RowId,
    entries: [usize; 2],
}

impl Fixture {
    fn new(format: &str, profile: Profile) -> Fixture {
        println!("overwritten: {format}, profile {profile}, seed {SEED}");
        let bench = Bench::of_rows(Preset::Hardened, format, 64, profile, SEED);
        let mut keys = KeyFinder::new(&bench.table, 50_000);
        let (key, ..) = keys.take_any(|a, b| a.0 + 1 < b.0).expect("a key with two rows apart");
        let row = bench.table.placement().rows(bench.table.placement().digest(&key)).first;
        let (other, ..) = keys.take_any(|a, _| a == row).expect("another key of the row");
        let mut client = bench.client(9);
        for key in [key, other] {
            assert_eq!(client.put(&key, &[1; 8]).map(|changed| changed.outcome), Ok(Outcome::Inserted));
            // The row says that this key's value was replaced, before any other client waits.
            assert_eq!(client.put(&key, &[2; 8]).map(|changed| changed.outcome), Ok(Outcome::Replaced));
        }
        assert_eq!(client.put(&key, &[3; 8]).map(|changed| changed.outcome), Ok(Outcome::Replaced));
        let fixture = Fixture { bench, key, row, entries: [0, 1] };
        let words = fixture.words();
        let rows = fixture.bench.table.rows();
        assert_eq!(rows.replaced_entry(&words), Some(0), "{words:x?}");
        fixture
    }

    fn lock(&self) -> LockMask {
        self.bench.table.locks().mask(self.bench.table.locks().lock_of(self.row))
    }

    fn take(&self) {
        let held = self.bench.table.locks().held(OTHER, self.lock().mask);
        self.bench.region.memory().device[self.lock().word as usize].fetch_add(held, Ordering::AcqRel);
    }

    fn words(&self) -> Vec<u64> {
        let first = self.bench.table.geometry().row(self.row).word() as usize;
        let row_words = self.bench.table.rows().row_words();
        let words = &self.bench.region.memory().main[first..first + row_words];
        words.iter().map(|word| word.load(Ordering::Acquire)).collect()
    }

    /// Makes the other client's change.
    fn write(&self, written: Written) {
        let (rows, mut words) = (self.bench.table.rows(), self.words());
        let own = written != Written::OtherKey;
        let index = self.entries[usize::from(!own)];
        let kind = rows.entry_kind(&words, index);
        let mut entry = rows.entry(&words, index).to_vec();
        *entry.last_mut().expect("an entry has words") ^= 0x55 << 40;
        rows.put_entry(&mut words, index, &entry, kind);
        match written {
            Written::Dependent => rows.finish(self.row, &mut words),
            _ => rows.finish_replaced(self.row, &mut words, index),
        }
        if written == Written::SameKeyThenOther {
            rows.finish_replaced(self.row, &mut words, self.entries[1]);
        }
        if written == Written::Torn {
            words[0] ^= 1 << 50;
        }
        let first = self.bench.table.geometry().row(self.row).word() as usize;
        for (cell, word) in self.bench.region.memory().main[first..].iter().zip(words) {
            cell.store(word, Ordering::Release);
        }
    }

    /// Carries out `op` by a client that waits for the lock, while the other client makes its change.
    fn apply(self: &Arc<Fixture>, op: &Op, written: Written) -> Result<Observed, Error> {
        let (fixture, mut pauses) = (Arc::clone(self), 0);
        let step = move |point: StepPoint| {
            pauses += u32::from(point == StepPoint::Pause);
            if point == StepPoint::Pause && pauses == WRITTEN_AT {
                fixture.write(written);
            }
        };
        let lane = SteppedLane::new(&self.bench.region, Sampling::Ascending, Box::new(step));
        let config = ClientConfig { deadline_ns: DEADLINE_NS, ..ClientConfig::for_table(&self.bench.table) };
        let mut client: TestClient<SteppedLane> = self.bench.client_with(0, lane, config);
        let applied = client.apply(op);
        let combined = client.client.counters().combined;
        assert_eq!(combined, u64::from(applied.is_ok()), "{op:x?}: {applied:?}");
        applied
    }
}

fn blind_writes(key: [u8; 8]) -> [Op; 2] {
    [Op::Put(key.to_vec(), vec![9; 8]), Op::Update(key.to_vec(), vec![9; 8])]
}

fn is_busy(applied: &Result<Observed, Error>) -> bool {
    matches!(applied, Err(Error { kind: ErrorKind::Busy { owner: Some(OTHER), .. }, .. }))
}

/// [R-LOCK-10] A put or update that waits is complete as soon as another client has replaced the key's value, although
/// the lock stays taken; the other client's value stays.
#[test]
fn a_waiting_write_is_complete_once_it_is_overwritten() {
    for format in ["fixed:8:8", "bytes:64"] {
        for profile in Profile::ALL {
            for which in 0..2 {
                let fixture = Arc::new(Fixture::new(format, profile));
                fixture.take();
                let op = &blind_writes(fixture.key)[which];
                let applied = fixture.apply(op, Written::SameKey);
                assert_eq!(applied.as_ref().ok(), Some(&Observed::Outcome(Outcome::Replaced)), "{op:x?}: {applied:?}");
                let rows = fixture.bench.table.rows();
                assert!(rows.verify(fixture.row, &fixture.words()).is_ok());
                assert_ne!(fixture.bench.lock_words(), [], "the other client still holds its lock");
            }
        }
    }
}

/// [R-LOCK-10] Nothing else ends the wait: a write of another key, a change that depends on the value, a write that
/// was made before the waiting one was called or that a later change hides, or a row that does not verify.
#[test]
fn nothing_but_a_later_write_of_the_key_ends_the_wait() {
    for written in [Written::OtherKey, Written::Dependent, Written::SameKeyThenOther, Written::Torn] {
        for profile in [Profile::Shm, Profile::Mlx5] {
            for which in 0..2 {
                let fixture = Arc::new(Fixture::new("fixed:8:8", profile));
                fixture.take();
                let applied = fixture.apply(&blind_writes(fixture.key)[which], written);
                assert!(is_busy(&applied), "{written:?}: {applied:?}");
            }
        }
    }
}

/// [R-LOCK-10] Changes that depend on the key's value or absence wait for the lock, whatever is written.
#[test]
fn only_puts_and_updates_are_overwritten() {
    for profile in [Profile::Shm, Profile::Mlx5] {
        let fixture = Arc::new(Fixture::new("fixed:8:8", profile));
        fixture.take();
        let key = fixture.key.to_vec();
        for op in [Op::Insert(key.clone(), vec![9; 8]), Op::Remove(key)] {
            let applied = fixture.apply(&op, Written::SameKey);
            assert!(is_busy(&applied), "{op:x?}: {applied:?}");
            let mut lane = fixture.bench.region.lane();
            let released = guira_rcuckoo::release_slot(&mut lane, &fixture.bench.table, OwnerId::of_slot(0));
            guira_conformance::block_on(released).expect("the heap swaps");
        }
    }
}

/// [R-LOCK-10] The row names the entry that a put or update replaced, and no other change, until the row changes again.
#[test]
fn only_writes_that_replace_a_value_say_so() {
    for format in ["fixed:8:8", "bytes:64"] {
        for profile in Profile::ALL {
            let fixture = Fixture::new(format, profile);
            let (rows, key, mut client) = (fixture.bench.table.rows(), fixture.key, fixture.bench.client(0));
            let value = NewValue::Inline(&[7; 8]);
            let swap = Change::Swap(Expected::Value(&[7; 8]), NewValue::Inline(&[8; 8]));
            let steps = [
                (Change::Update(value), Some(0)),
                (swap, None),
                (Change::Put(value), Some(0)),
                (Change::Add(&[1; 8]), None),
                (Change::Remove, None),
                (Change::Put(value), None),
                (Change::Put(value), Some(0)),
            ];
            for (change, replaced) in steps {
                let changed = client.change(&key, change).unwrap();
                assert!(changed.took_effect(), "{change:?}");
                assert_eq!(rows.replaced_entry(&fixture.words()), replaced, "{profile}: {change:?}");
            }
        }
    }
}
