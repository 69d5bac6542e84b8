//! Checks of a table while other clients change it.

use std::sync::atomic::{AtomicBool, Ordering};

use guira_check::{CheckOptions, Concurrency, ProblemKind, Progress, Stage, check_table, table_stats};
use guira_conformance::{Bench, Extents, TestClient, block_on};
use guira_fabric::heap::Next;
use guira_fabric::{Profile, Region, SplitMix64};
use guira_layout::Preset;
use guira_rcuckoo::{Change, Error, ErrorKind};
use guira_testing::{patience, wait_until};

use crate::check::damage::set_slot;
use crate::check::table::{SOME_ROW, assert_clean, check, check_through, forge, key, put_extent, value};

/// However the table changes between any two words the checker reads, the checker reports no false problem, and still
/// finds real ones.
#[test]
fn changes_between_any_two_words_are_not_reported() {
    for (preset, format) in [(Preset::Hardened, "fixed:8:8"), (Preset::Tiny, "fixed:4:4"), (Preset::Tiny, "bytes:64")] {
        let bench = Bench::of_rows(preset, format, 64, Profile::Tcp, 5);
        let keys = bench.table.config().max_entries() * 80 / 100;
        let mut worker = Worker::new(&bench, 1, keys);
        (0..keys * 4).for_each(|_| worker.change_one());
        let mut rng = SplitMix64(77);
        let hook = move |_| {
            if rng.below(4) == 0 {
                worker.change_one();
            }
            Next::Continue
        };
        let mut lane = bench.region.lane().hooked(Box::new(hook));
        let (mut looks, options) = (0, CheckOptions::default());
        for _ in 0..20 {
            let mut show = |progress: Progress| looks += u64::from(progress.stage == Stage::Rechecks);
            let checked = check_table(&mut lane, &bench.table, &options, &mut show);
            let report = block_on(checked).unwrap();
            assert_clean(&report, format);
            assert!(report.counts.entries > 0 && report.counts.unverified_rows == 0);
        }
        println!("{preset} {format}: {looks} second checks");
        assert!(looks > 0, "{preset} {format}: the changes met no READ");
        let row = SOME_ROW;
        forge(&bench, row, |rows, words| words[rows.trailer_word()] |= 1 << 32);
        let report = block_on(check_table(&mut lane, &bench.table, &options, &mut |_| ())).unwrap();
        let problems: Vec<_> = report.problems.iter().map(|problem| (problem.kind, problem.place.clone())).collect();
        assert_eq!(problems, [(ProblemKind::RowLevel, row.to_string())], "{preset} {format}");
    }
}

/// A table in use has no problem, however often it is checked; and damage is still found.
#[test]
fn busy_tables_report_no_false_problems() {
    for (preset, format, profile) in [
        (Preset::Hardened, "fixed:8:8", Profile::Shm),
        (Preset::Tiny, "fixed:4:4", Profile::Tcp),
        (Preset::Tiny, "bytes:64", Profile::Shm),
        (Preset::Hardened, "bytes:24", Profile::Rxe),
    ] {
        let bench = Bench::of_rows(preset, format, 64, profile, 5);
        let stop = AtomicBool::new(false);
        let keys = bench.table.config().max_entries() * 90 / 100 / 3;
        std::thread::scope(|scope| {
            let start = |worker| {
                let (bench, stop) = (bench.clone(), &stop);
                scope.spawn(move || work(&bench, worker, keys, stop))
            };
            let workers: Vec<_> = (0..3).map(start).collect();
            let busy = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check_while_busy(&bench, format)));
            stop.store(true, Ordering::Relaxed);
            for worker in workers {
                println!("{preset} {format} {profile}: {:?}", worker.join().expect("the worker's"));
            }
            assert!(busy.is_ok(), "{preset} {format} {profile}");
        });
        assert_clean(&check(&bench, Concurrency::Exclusive), "afterwards");
    }
}

fn check_while_busy(bench: &Bench, format: &str) {
    let (mut looked_again, mut entries, mut checks) = (0, 0, 0);
    let started = std::time::Instant::now();
    while checks < 50 || entries == 0 {
        assert!(started.elapsed() < patience(), "no check met an entry");
        let mut show = |progress: Progress| looked_again += u64::from(progress.stage == Stage::Rechecks);
        let options = CheckOptions { concurrency: Concurrency::Shared, problem_limit: 50, ..CheckOptions::default() };
        let report =
            block_on(check_table(&mut bench.region.lane(), &bench.table, &options, &mut show)).expect("a check");
        assert_clean(&report, format);
        entries = entries.max(report.counts.entries);
        // A worker that loses its processor in the middle of a WRITE leaves a row torn for as long.
        wait_until("no row is torn", || {
            let stats = block_on(table_stats(&mut bench.region.lane(), &bench.table)).expect("a count");
            stats.unverified_rows == 0
        });
        checks += 1;
    }
    println!("{format}: {checks} checks, {looked_again} second checks, up to {entries} entries");
    assert!(entries > 0);
    // Slot 20 is unused.
    set_slot(bench, 20, 0x7f);
    let report = check_through(&mut bench.region.lane(), bench, Concurrency::Shared);
    let kinds: Vec<_> = report.problems.iter().map(|problem| problem.kind).collect();
    set_slot(bench, 20, 0);
    assert_eq!(kinds, [ProblemKind::SlotWord]);
}

/// Counts of a worker's operations.
#[derive(Debug, Default)]
struct Work {
    changes: u64,
    full: u64,
    moves: u64,
}

/// A client that changes keys of its own: puts, removes, and extents where there are any.
struct Worker {
    bench: Bench,
    client: TestClient,
    extents: Extents,
    rng: SplitMix64,
    number: u64,
    keys: u64,
    done: Work,
}

impl Worker {
    fn new(bench: &Bench, number: u64, keys: u64) -> Worker {
        let client = bench.client(number as u16);
        let extents = Extents::new(&bench.table, client.client.owner());
        Worker { bench: bench.clone(), client, extents, rng: SplitMix64(number), number, keys, done: Work::default() }
    }

    fn change_one(&mut self) {
        let key = key(&self.bench, self.rng.below(self.keys) * 16 + self.number);
        let changed = match self.rng.below(12) {
            0 => self.client.change(&key, Change::Remove),
            1..=5 if self.bench.table.config().format.has_extents() => {
                let value = vec![self.number as u8; 65 + self.rng.below(24) as usize * 128];
                let put = put_extent(&mut self.extents, &mut self.client, &key, &value);
                self.done.full += u64::from(put.is_none());
                return;
            }
            _ => self.client.put(&key, &value(&self.bench, self.done.changes)),
        };
        match changed {
            Ok(_) => self.done.changes += 1,
            Err(Error { kind: ErrorKind::Full { .. }, .. }) => self.done.full += 1,
            Err(error) => panic!("{error}"),
        }
        self.done.moves = self.client.client.counters().moves;
    }
}

fn work(bench: &Bench, number: u64, keys: u64, stop: &AtomicBool) -> Work {
    let mut worker = Worker::new(bench, number, keys);
    while !stop.load(Ordering::Relaxed) {
        worker.change_one();
    }
    worker.done
}
