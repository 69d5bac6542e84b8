//! Cause: a sweep of a snapshot compared trailers, which a WRITE changes last; but lookups see what a record makes of a
//! row as soon as its first word has changed.
//!
//! Effect: a snapshot that called itself stable had the old value of a key beside a change of another key that was made
//! after a lookup had returned the new one: the table was never so.
//!
//! Fix: sweeps sample whole rows, and a torn one counts as what its writer's record makes of it. [R-SCAN-1] [R-READ-9]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use guira_conformance::{Bench, KeyFinder, Sampling, SteppedLane, block_on};
use guira_fabric::heap::HeapRegion;
use guira_fabric::{Profile, Region};
use guira_layout::Preset;
use guira_rcuckoo::{ClientConfig, Reader};

fn words_of(region: &HeapRegion) -> Vec<u64> {
    let memory = region.memory();
    memory.main.iter().chain(memory.device).map(|word| word.load(Relaxed)).collect()
}

fn load(region: &HeapRegion, words: &[u64]) {
    let memory = region.memory();
    for (cell, word) in memory.main.iter().chain(memory.device).zip(words) {
        cell.store(*word, Relaxed);
    }
}

#[test]
fn a_torn_row_is_what_its_record_makes_of_it() {
    let bench = Bench::of_rows(Preset::Hardened, "fixed:8:8", 64, Profile::Shm, 7);
    let mut keys = KeyFinder::new(&bench.table, 2_000);
    let (first, ..) = keys.take_any(|a, b| a.0 < 16 && b.0 < 16).unwrap();
    let (second, ..) = keys.take_any(|a, b| a.0 >= 32 && b.0 >= 32).unwrap();
    let (writer, mut other) = (bench.client(2), bench.client(3));
    other.put(&first, &[1; 8]).unwrap();
    other.put(&second, &[1; 8]).unwrap();
    let mut reader = Reader::new(Arc::clone(&bench.table), ClientConfig::for_table(&bench.table));
    let (before, states) = (bench.words(), Arc::new(Mutex::new(Vec::new())));
    // The memory before each step of a put, where a lookup finds what it puts, but its row is torn.
    let (copied, seen) = (bench.region.clone(), Arc::clone(&states));
    let note = move |_| seen.lock().unwrap().push(words_of(&copied));
    writer.through(SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(note))).put(&first, &[2; 8]).unwrap();
    let mut states = std::mem::take(&mut *states.lock().unwrap());
    states.retain(|state| {
        load(&bench.region, state);
        let mut value = Vec::new();
        let found = block_on(reader.get(&mut bench.region.lane(), &first, &mut value)).unwrap();
        found.is_some() && value == [2; 8] && bench.contents().is_err()
    });
    assert!(states.len() > 1, "{} torn rows", states.len());

    let (mut stable, mut late) = (0, 0);
    for at in (0..).step_by(7) {
        // At one step of the scan the writer stops inside of the row, and another key changes.
        load(&bench.region, &before);
        let (region, steps) = (bench.region.clone(), Arc::new(AtomicU64::new(0)));
        let (state, counted) = (states[at as usize % states.len()].clone(), Arc::clone(&steps));
        let changing = Arc::new(Mutex::new(other));
        let (changes, key) = (Arc::clone(&changing), second);
        let step = move |_| {
            if counted.fetch_add(1, Relaxed) == at {
                load(&region, &state);
                changes.lock().unwrap().put(&key, &[2; 8]).unwrap();
            }
        };
        let mut lane = SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(step));
        let scan = block_on(reader.snapshot(&mut lane, 8, |_, _| ())).unwrap();
        drop(lane);
        other = Arc::into_inner(changing).unwrap().into_inner().unwrap();
        let value = |key: &[u8]| scan.iter().find(|(found, _)| *found == key).map(|(_, value)| value[0]);
        stable += u64::from(scan.is_stable());
        late += u64::from(value(&second) == Some(2));
        assert!(
            !scan.is_stable() || value(&first) == Some(2) || value(&second) == Some(1),
            "step {at}: the first key has its old value, and the second its new one"
        );
        if steps.load(Relaxed) <= at {
            break;
        }
    }
    assert!(stable > 100 && late > 100, "{stable} stable scans, {late} with the change");
}
