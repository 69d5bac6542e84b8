//! The tables of docs/protocol.md, "Deaths, verb by verb", compared with the code: every verb of a change, of a
//! recovery, and of claiming and releasing a slot has its line, in the order in which the code posts it, and every line
//! is a verb.

use std::sync::{Arc, Mutex};

use guira_conformance::{Bench, KeyFinder, Observed, Op, TestClient, WatchedLane, block_on};
use guira_fabric::heap::{HeapLane, Next, Step};
use guira_fabric::{Addr, Lane, Profile, Region, Space, Verb};
use guira_layout::{Preset, RECOVERIES_WORD, STATE_WORD, Seal, SlotState, SlotWord};
use guira_rcuckoo::{Change, Changed, ClientConfig, Error, Outcome, SlotClient, claim_slot, release_slot};

const SEED: u64 = 7;
const SPECIFICATION: &str = include_str!("../../../docs/protocol.md");

/// Wraps a lane so that it records the kind of each verb.
fn recording(lane: HeapLane, bench: &Bench, verbs: &Arc<Mutex<Vec<String>>>) -> WatchedLane {
    let (bench, verbs) = (bench.clone(), Arc::clone(verbs));
    let watch = move |batch: &[Verb<'_>]| {
        let names = batch.iter().map(|verb| name_of(&bench, verb));
        verbs.lock().expect("no thread panics while it holds the lock").extend(names);
        Ok(())
    };
    WatchedLane::new(lane, Box::new(watch))
}

/// The object at an address.
enum Thing {
    Locks,
    /// A word of a slot.
    Slot(u64),
    Recoveries,
    State,
    Rows,
    Chunks,
    Extents,
}

fn thing_at(bench: &Bench, addr: Addr) -> Thing {
    let (geometry, config) = (bench.table.geometry(), bench.table.config());
    let within = |from: Addr, words: u64| {
        let at = addr.offset().wrapping_sub(from.offset()) / guira_fabric::WORD_BYTES;
        (addr.space() == from.space() && addr.offset() >= from.offset() && at < words).then_some(at)
    };
    let slot_words = geometry.slot_words() as u64;
    if addr.space() == Space::Device {
        return Thing::Locks;
    }
    if let Some(word) = within(geometry.slot(0), u64::from(config.max_clients) * slot_words) {
        return Thing::Slot(word % slot_words);
    }
    let first_row = geometry.row(guira_layout::RowId(0));
    if addr == geometry.superblock_word(RECOVERIES_WORD) {
        return Thing::Recoveries;
    }
    if addr == geometry.superblock_word(STATE_WORD) {
        return Thing::State;
    }
    if within(first_row, config.rows * bench.table.rows().row_words() as u64).is_some() {
        return Thing::Rows;
    }
    if within(geometry.chunk_word(0), config.chunks).is_some() { Thing::Chunks } else { Thing::Extents }
}

fn name_of(bench: &Bench, verb: &Verb<'_>) -> String {
    let name = match (thing_at(bench, verb.addr()), verb) {
        (Thing::Locks, Verb::Read { .. }) => "READ of the lock table",
        (Thing::Locks, Verb::FetchAdd { .. }) => "FETCH-ADD of the locks",
        (Thing::Locks, _) => "CAS of the locks",
        (Thing::Rows, Verb::Read { .. }) => "READ of the rows",
        (Thing::Rows, Verb::Write { .. }) => "WRITE of a row",
        (Thing::Chunks, Verb::Read { .. }) => "READ of the chunk table",
        (Thing::Chunks, Verb::Cas { .. }) => "CAS of a chunk's word",
        (Thing::Recoveries, Verb::FetchAdd { .. }) => "FETCH-ADD of the count of recoveries",
        (Thing::State, Verb::Read { .. }) => "READ of the state",
        (Thing::Extents, Verb::Read { .. }) => "READ of the old extent",
        (Thing::Extents, Verb::Write { words: [_], .. }) => "WRITE of the mark",
        (Thing::Extents, Verb::Write { .. }) => "WRITE of the extent",
        (Thing::Slot(_), Verb::Read { into, .. }) if into.len() == bench.table.geometry().slot_words() => {
            "READ of the record"
        }
        (Thing::Slot(_), Verb::Read { .. }) => "READ of the slot",
        (Thing::Slot(_), Verb::Cas { swap, .. }) => match SlotWord::decode(*swap).map(|word| word.state) {
            Some(SlotState::Free) => "CAS of the slot to free it",
            _ => "CAS of the slot",
        },
        (Thing::Slot(at), Verb::Write { words: [seal], .. })
            if at as usize == Seal::word(bench.table.rows()) && !Seal(*seal).is_sealed() =>
        {
            "WRITE of the retirement"
        }
        (Thing::Slot(at), Verb::Write { .. }) if at as usize == SlotWord::PROCESS_WORD => "WRITE of the process",
        (Thing::Slot(at), Verb::Write { words, .. }) => {
            let (record, last) = (at..at + words.len() as u64, words.last().copied().map(Seal));
            let ends_in_seal = record.end == Seal::word(bench.table.rows()) as u64 + 1;
            match last {
                Some(seal) if ends_in_seal && seal.is_sealed() => "WRITE of the record",
                _ if record.start > Seal::word(bench.table.rows()) as u64 => "WRITE of the record",
                _ => return format!("{verb:?}, which is not expected there"),
            }
        }
        (_, other) => return format!("{other:?}, which is not expected there"),
    };
    name.to_owned()
}

/// Returns the first column of the table under `heading`, without what happens inside a WRITE, each verb once.
fn cases(heading: &str) -> Vec<String> {
    let (_, section) = SPECIFICATION.split_once(&format!("### {heading}\n")).expect("the section is there");
    let table = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let first = table.skip(2).filter_map(|line| line.split('|').nth(1)).map(str::trim);
    let verb = |cell: &str| cell.split([',', ':']).next().unwrap_or_default().to_owned();
    let is_verb = |name: &String| !name.starts_with("in ") && name != "completion";
    let mut leaves: Vec<String> = first.map(verb).filter(is_verb).collect();
    leaves.dedup();
    leaves
}

/// Asserts that each of `traces` follows the lines of the table in order, and that together they cover all lines.
fn compare(heading: &str, traces: &[Vec<String>]) {
    let leaves = cases(heading);
    println!("{heading}: {} leaves, {} traces", leaves.len(), traces.len());
    for trace in traces {
        let mut left = leaves.iter();
        for verb in trace {
            assert!(left.any(|leaf| leaf == verb), "{heading}: {verb:?} of {trace:?} has no leaf in {leaves:?}");
        }
    }
    for leaf in &leaves {
        assert!(traces.iter().flatten().any(|verb| verb == leaf), "{heading}: {leaf:?} is no verb of {traces:?}");
    }
}

/// A table with a key whose rows need two lock words and whose value is in an extent, in slot 0's chunk.
struct Fixture {
    bench: Bench,
    key: [u8; 8],
}

impl Fixture {
    fn new() -> Fixture {
        let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 4096, Profile::Shm, SEED);
        let mut keys = KeyFinder::new(&bench.table, 50_000);
        let word = |row| bench.table.locks().mask(bench.table.locks().lock_of(row)).word;
        let (key, ..) = keys.take_any(|a, b| word(a) != word(b)).expect("a key of two words");
        let fixture = Fixture { bench, key };
        let mut client = fixture.bench.client(2);
        let put = Op::Put(key.to_vec(), vec![1; 80]);
        assert_eq!(client.apply(&put), Ok(Observed::Outcome(Outcome::Inserted)));
        fixture
    }

    /// Replaces the key's value, in slot `slot` of `bench`, through the lane that `wrap` makes of the heap's lane.
    fn put<L: Lane>(&self, bench: &Bench, slot: u16, wrap: impl FnOnce(HeapLane) -> L) -> Result<Changed, Error> {
        let config = ClientConfig { backoff_ns: 2, longest_backoff_ns: 2, ..ClientConfig::for_table(&bench.table) };
        let mut client: TestClient<HeapLane> = bench.client_with(slot, bench.region.lane(), config).recovering(bench);
        let prepared = client.extents.prepare(&mut bench.region.lane(), &self.key, &[2; 80]).expect("an extent");
        client.through(wrap(bench.region.lane())).change(&self.key, Change::Put(prepared.value()))
    }

    /// Returns the verbs of replacing the key's value in `bench`.
    fn verbs_of_put(&self, bench: &Bench, slot: u16) -> Vec<String> {
        let verbs = Arc::new(Mutex::new(Vec::new()));
        let lane = |lane| recording(lane, bench, &verbs);
        assert!(self.put(bench, slot, lane).is_ok());
        let mut verbs = std::mem::take(&mut *verbs.lock().expect("no thread panics while it holds the lock"));
        verbs.dedup();
        verbs
    }

    /// Returns the memory before each verb of replacing the key's value in slot 0.
    fn deaths(&self) -> Vec<Vec<u64>> {
        let bench = self.bench.fork();
        let memories = Arc::new(Mutex::new(Vec::new()));
        let (watched, kept) = (bench.clone(), Arc::clone(&memories));
        let hook = move |step| {
            if matches!(step, Step::Verb { .. }) {
                kept.lock().expect("no thread panics while it holds the lock").push(watched.words());
            }
            Next::Continue
        };
        assert!(self.put(&bench, 0, |lane| lane.hooked(Box::new(hook))).is_ok());
        std::mem::take(&mut *memories.lock().expect("no thread panics while it holds the lock"))
    }
}

/// [R-COMMIT-1] [R-EXTENT-1] [R-EXTENT-4] The cases of a change are its verbs, in order.
#[test]
fn a_change_has_a_case_for_each_verb() {
    let fixture = Fixture::new();
    compare("A change that leaves a record", &[fixture.verbs_of_put(&fixture.bench.fork(), 0)]);
}

/// [R-RECOVER-2] [R-RECOVER-3] [R-RECOVER-5] The cases of a recovery are its verbs, in order, whatever the dead client
/// left.
#[test]
fn a_recovery_has_a_case_for_each_verb() {
    let fixture = Fixture::new();
    let traces: Vec<Vec<String>> = fixture.deaths().iter().filter_map(|memory| recovery(&fixture, memory)).collect();
    let replays = traces.iter().filter(|trace| trace.iter().any(|verb| verb == "WRITE of the retirement")).count();
    assert!(traces.len() >= 5 && replays >= 2 && replays < traces.len(), "{replays} of {}", traces.len());
    compare("A recovery", &traces);
}

/// Returns the verbs of recovering the client that died in slot 0 and left `memory`, if another client has to recover
/// it.
fn recovery(fixture: &Fixture, memory: &[u64]) -> Option<Vec<String>> {
    let bench = fixture.bench.with_words(memory);
    let mut verbs = fixture.verbs_of_put(&bench, 1);
    let last = verbs.iter().position(|verb| verb == "CAS of the slot to free it")?;
    verbs.truncate(last + 1);
    let first = verbs.iter().rposition(|verb| verb == "READ of the slot").expect("it asked");
    let mut verbs = verbs.split_off(first);
    // Before the claim it releases its own locks.
    if verbs.get(1).is_some_and(|verb| verb == "FETCH-ADD of the locks") {
        verbs[1] = "FETCH-ADD of its own locks".to_owned();
    }
    Some(verbs)
}

/// [R-SLOT-1] The cases of claiming a slot and of releasing it are their verbs, in order.
#[test]
fn slots_have_a_case_for_each_verb() {
    let bench = Fixture::new().bench.fork();
    let verbs = Arc::new(Mutex::new(Vec::new()));
    let mut lane = recording(bench.region.lane(), &bench, &verbs);
    let recorded = || std::mem::take(&mut *verbs.lock().expect("no thread panics while it holds the lock"));
    let owner = block_on(claim_slot(&mut lane, &bench.table, 3, &SlotClient::default()))
        .expect("the heap")
        .expect("a free slot");
    compare("Claiming a slot", &[recorded()]);
    block_on(release_slot(&mut lane, &bench.table, owner)).expect("the heap");
    compare("Releasing a slot", &[recorded()]);
}
