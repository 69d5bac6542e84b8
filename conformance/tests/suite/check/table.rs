//! Tables to check, and changes that ignore locks.

use guira_check::{CheckOptions, CheckReport, Concurrency, check_table};
use guira_conformance::{Bench, Extents, Sampling, SteppedLane, TestClient, block_on};
use guira_fabric::{Addr, Lane, Profile, Region};
use guira_layout::{ExtentRef, Preset, RowFormat, RowId};
use guira_rcuckoo::{Change, Error, ErrorKind, NewValue, Outcome, RowPair};

/// Every kind of entry: two sizes with specialized readers, one that is padded, and two of any length.
pub const FORMATS: [&str; 5] = ["fixed:4:4", "fixed:8:8", "fixed:5:3", "bytes:24", "bytes:64"];

/// The row that is damaged where any row will do.
pub const SOME_ROW: RowId = RowId(5);

/// Creates a table of 128 rows with 100 inline entries, and some extents if its format has them.
#[expect(clippy::unwrap_used, reason = "a test's helper: a failure is the test's")]
pub fn filled(preset: Preset, format: &str, profile: Profile) -> (Bench, TestClient) {
    let bench = Bench::of_rows(preset, format, 128, profile, 9);
    let mut client = bench.client(2);
    for i in 0..100 {
        assert_eq!(client.put(&key(&bench, i), &value(&bench, i)).unwrap().outcome, Outcome::Inserted);
    }
    if bench.table.config().format.has_extents() {
        let mut extents = Extents::new(&bench.table, client.client.owner());
        for (i, bytes) in [70, 200, 65, 900, 3000, 9000, 140_000, 70].into_iter().enumerate() {
            let put = put_extent(&mut extents, &mut client, &key(&bench, 1000 + i as u64), &vec![3; bytes]);
            assert_eq!(put, Some(Outcome::Inserted));
        }
    }
    (bench, client)
}

pub fn entry_of(bench: &Bench, key: &[u8]) -> (RowId, usize) {
    let placement = bench.table.placement();
    let (digest, rows) = (placement.digest(key), bench.table.rows());
    let RowPair { first, second } = placement.rows(digest);
    let found = |row| rows.find(&bench.row_words(row), &rows.probe(key, digest), 0).map(|found| (row, found.index()));
    found(first).or_else(|| found(second)).expect("a stored key")
}

/// Returns a key of the width of the bench's format.
pub fn key(bench: &Bench, i: u64) -> Vec<u8> {
    let width = match bench.table.config().format {
        guira_layout::EntryFormat::Fixed { key_bytes, .. } => usize::from(key_bytes),
        guira_layout::EntryFormat::Bytes { .. } => (i % 4 + 8) as usize,
    };
    let mut key = i.to_le_bytes().to_vec();
    key.resize(width, 7);
    key
}

pub fn value(bench: &Bench, i: u64) -> Vec<u8> {
    let width = match bench.table.config().format {
        guira_layout::EntryFormat::Fixed { value_bytes, .. } => usize::from(value_bytes),
        guira_layout::EntryFormat::Bytes { .. } => (i % 13) as usize,
    };
    vec![i as u8; width]
}

/// Puts a value in an extent; `None` if the table is full.
pub fn put_extent(extents: &mut Extents, client: &mut TestClient, key: &[u8], value: &[u8]) -> Option<Outcome> {
    let prepared = extents.prepare(&mut client.lane, key, value).expect("a value too large for a row");
    match client.change(key, Change::Put(prepared.value())) {
        Ok(changed) => Some(changed.outcome),
        Err(Error { kind: ErrorKind::Full { .. }, .. }) => {
            extents.give_back(prepared);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Writes an extent that no entry refers to.
pub fn write_extent(bench: &Bench, extents: &mut Extents, key: &[u8], value: &[u8]) -> ExtentRef {
    let prepared = extents.prepare(&mut bench.region.lane(), key, value).expect("a value too large for a row");
    let NewValue::Extent { extent, words } = prepared.value() else { unreachable!("it is an extent") };
    bench.store(Addr::main(extent.offset), words);
    extent
}

/// Checks a table that no client changes. The pauses before repeated checks, 0.65 s each, pass at once.
pub fn check(bench: &Bench, concurrency: Concurrency) -> CheckReport {
    check_through(&mut SteppedLane::new(&bench.region, Sampling::Ascending, Box::new(|_| ())), bench, concurrency)
}

#[expect(clippy::unwrap_used, reason = "a test's helper: a failure is the test's")]
pub fn check_through(lane: &mut dyn Lane, bench: &Bench, concurrency: Concurrency) -> CheckReport {
    let options = CheckOptions { concurrency, problem_limit: 50, ..CheckOptions::default() };
    block_on(check_table(lane, &bench.table, &options, &mut |_| ())).unwrap()
}

#[track_caller]
pub fn assert_clean(report: &CheckReport, what: &str) {
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{what}: {} problems: {problems:#?}", report.problems_total);
}

/// Changes a row as a misbehaving client would: it verifies afterwards.
pub fn forge(bench: &Bench, row: RowId, change: impl FnOnce(&RowFormat, &mut [u64])) {
    let rows = bench.table.rows();
    let mut words = bench.row_words(row);
    change(rows, &mut words);
    rows.finish(row, &mut words);
    bench.store(bench.table.geometry().row(row), &words);
}

/// Flips `bits` of the word at `addr`.
pub fn xor(bench: &Bench, addr: Addr, bits: u64) {
    bench.store(addr, &[bench.words_at(addr, 1)[0] ^ bits]);
}
