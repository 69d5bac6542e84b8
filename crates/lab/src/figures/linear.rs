//! What the model of linear probing computes, for tables as large as those of its paper: the size of READs, and the cost of a
//! lookup; and the READs of lookups whose records are in a heap, counted. No network is involved.

use std::rc::Rc;

use crate::baselines::cuckoo::{CuckooStore, Probing, Shape as CuckooShape, Table as CuckooTable};
use crate::baselines::linear::clusters::Clusters;
use crate::baselines::linear::model::{Costs, Distances, bound};
use crate::baselines::linear::{LinearStore, Shape as LinearShape, Table as LinearTable};
use crate::baselines::{Client, Layout, Ports, ReadCounts, Store};
use guira_fabric::{Profile, Region};

use super::chart;
use super::parallel::measure;
use crate::experiment::{LabError, RunOptions, Watch};
use crate::report::{Axis, Chart, Origin, Point, Scale, Series, Shape};
use crate::simulated::{LOADED, Records, ready};

/// Records of the paper's tables.
const RECORDS: u64 = 120 << 20;
/// Bytes of a record.
const RECORD_BYTES: u64 = 8;
/// The fill of its tables, in percent.
const FILLS: [u64; 7] = [25, 50, 65, 80, 85, 90, 95];
/// The fill of those of its figure 10.
const COMPARED_FILLS: [u64; 2] = [50, 85];
/// The longest READ of that figure, in slots.
const COMPARED_SLOTS: usize = 48;

/// Bytes of the READs of fixed size.
const FIXED_BYTES: u64 = 256;
/// The fill of tables 3 and 4, in percent.
const HEAP_FILL: u64 = 65;
/// Bytes of the records of table 3, and of a slot whose record is in a heap.
const SLOT_BYTES: [u64; 4] = [8, 32, 128, 5];
/// Entries of the tables whose READs are counted, and of those of quick runs.
const COUNTED_ENTRIES: u64 = 1 << 22;
const QUICK_COUNTED_ENTRIES: u64 = 1 << 18;
/// Records of a slot of cuckoo hashing.
const ASSOCIATIVITY: u64 = 4;
/// The fill of the tables of figure 13, in percent, and the slots of its cluster.
const CLUSTER_FILLS: [u64; 2] = [25, 65];
const CLUSTER_SLOTS: u64 = 10;
/// The distances that it shows, before the begin of the cluster and behind it.
const BEFORE_CLUSTER: u64 = 40;
const BEHIND_CLUSTER: u64 = 15;
/// Bytes of a value: records have 8 bytes.
const VALUE_BYTES: usize = 4;

fn distances(fill: u64) -> Distances {
    Distances::of(RECORDS * 100 / fill, RECORDS)
}

/// Computes the size of READs by the fill: part of table 1.
///
/// # Errors
/// [`LabError::Stopped`].
pub fn read_sizes(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let points = measure("linear-table-1-slots", &FILLS, run, watch, |fill| {
        let distances = distances(*fill);
        let (best, printed) = (distances.cheapest(RECORD_BYTES, &Costs::PRINTED), printed_slots(*fill));
        let cost = |slots| distances.cost_ns(slots, RECORD_BYTES, &Costs::PRINTED);
        Ok((*fill as f64, best, cost(printed) / cost(best)))
    })?;
    let bound = bound(RECORD_BYTES, &Costs::PRINTED);
    let of = |most: usize| points.iter().map(|(fill, best, _)| Point::new(*fill, (*best).min(most) as f64)).collect();
    let series = vec![
        series("variable", Some("Variable Linear"), of(bound)),
        series("unbounded", Some("Var. Linear (uncons.)"), of(usize::MAX)),
    ];
    let worst = points.iter().map(|(_, _, ratio)| *ratio).fold(1.0, f64::max);
    let note = format!(
        "The formula has other minima than the paper, on a flat curve: by the formula, lookups with the paper's sizes cost at \
         most {:.1} % more.",
        100.0 * (worst - 1.0)
    );
    Ok(chart("linear-table-1-slots", "Linear probing, table 1: slots of a READ", Shape::Lines, series, &[&note]))
}

/// Returns the size that table 1 prints for a fill, without a bound.
fn printed_slots(fill: u64) -> usize {
    let printed =
        crate::published::series("linear-table-1-slots").into_iter().find(|series| series.name.contains("uncons"));
    let point = printed.and_then(|series| series.points.into_iter().find(|point| point.x == fill as f64));
    point.map_or(1, |point| point.y as usize)
}

/// Computes the cost of a lookup by the size of READs: figure 10(b).
///
/// # Errors
/// [`LabError::Stopped`].
pub fn computed_costs(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let curves = measure("linear-10-computed", &COMPARED_FILLS, run, watch, |fill| {
        let distances = distances(*fill);
        let cost_us = |slots| distances.cost_ns(slots, RECORD_BYTES, &Costs::PRINTED) / 1e3;
        let points = (1..=COMPARED_SLOTS).map(|slots| Point::new(slots as f64, cost_us(slots))).collect();
        Ok(series(&format!("{fill} % full"), None, points))
    })?;
    let bound = bound(RECORD_BYTES, &Costs::PRINTED);
    let note = format!("READs of more than {bound} slots would fill the link at the highest rate of READs.");
    Ok(Chart {
        x: Axis::new("slots of a READ", "", Scale::Linear),
        y: Axis::new("computed cost of a lookup", "µs", Scale::Logarithmic),
        ..chart("linear-10-computed", "Linear probing, figure 10(b): computed cost", Shape::Lines, curves, &[&note])
    })
}

/// Computes the size of READs by the size of records: table 3.
///
/// # Errors
/// [`LabError::Stopped`].
pub fn read_sizes_by_record(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let sizes = measure("linear-table-3", &SLOT_BYTES, run, watch, |slot_bytes| {
        let cheapest = distances(HEAP_FILL).cheapest(*slot_bytes, &Costs::PRINTED);
        Ok((FIXED_BYTES / slot_bytes, cheapest.min(bound(*slot_bytes, &Costs::PRINTED)) as u64))
    })?;
    let points = |of: fn(&(u64, u64)) -> u64| {
        sizes.iter().enumerate().map(|(index, sizes)| Point::new(index as f64, of(sizes) as f64)).collect()
    };
    let all = vec![
        series("fixed", Some("Fixed Linear"), points(|sizes| sizes.0)),
        series("variable", Some("Variable Linear"), points(|sizes| sizes.1)),
    ];
    let note = "The size for records in a heap is that of the formula and its bound, of which the paper's is less.";
    Ok(chart("linear-table-3", "Linear probing, table 3: slots of a READ", Shape::Bars, all, &[note]))
}

/// Computes the size of READs near a cluster: figure 13.
///
/// # Errors
/// [`LabError::Stopped`].
pub fn read_sizes_near_cluster(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let curves = measure("linear-13", &CLUSTER_FILLS, run, watch, |fill| {
        let slots = RECORDS * 100 / fill;
        let begin = slots / 2;
        let mut clusters = Clusters::new(slots, RECORD_BYTES, 1, distances(*fill), Costs::PRINTED);
        let oblivious = clusters.read_slots(begin);
        clusters.note(begin, begin + CLUSTER_SLOTS);
        clusters.apply();
        let at = |slot: u64| slot as f64 - begin as f64;
        let range = begin - BEFORE_CLUSTER..begin + BEHIND_CLUSTER;
        let points = range.clone().map(|slot| Point::new(at(slot), clusters.read_slots(slot) as f64)).collect();
        let without = range.map(|slot| Point::new(at(slot), oblivious as f64)).collect();
        Ok([
            series(&format!("{fill} % full, with the cluster"), None, points),
            series(&format!("{fill} % full, without"), None, without),
        ])
    })?;
    Ok(Chart {
        x: Axis::new("slots behind the begin of the cluster", "", Scale::Linear),
        y: Axis::new("slots of a READ", "", Scale::Linear),
        ..chart(
            "linear-13",
            "Linear probing, figure 13: slots of a READ near a cluster",
            Shape::Lines,
            curves.into_iter().flatten().collect(),
            &["Far before the cluster, and behind it, the size is that without a hint."],
        )
    })
}

/// The lookups of table 4.
#[derive(Clone, Copy)]
enum Counted {
    Cuckoo,
    Fixed,
    Variable,
}

/// Counts the READs of lookups with records in a heap: table 4.
///
/// # Errors
/// [`LabError::Stopped`]; [`LabError::Failed`] if a lookup does not find its record.
pub fn heap_reads(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let lookups = [Counted::Cuckoo, Counted::Fixed, Counted::Variable];
    let entries = if run.quick { QUICK_COUNTED_ENTRIES } else { COUNTED_ENTRIES };
    let counted = measure("linear-table-4", &lookups, run, watch, |lookup| {
        counted(*lookup, entries, run.seed, &|| watch.is_stopped())
    })?;
    let records = (entries * HEAP_FILL / 100) as f64;
    let points = |of: fn(&ReadCounts) -> u64| {
        let means = counted.iter().map(|counts| of(counts) as f64 / records);
        means.enumerate().map(|(index, mean)| Point::new(index as f64, mean)).collect()
    };
    let all = vec![
        series("READs of the table", Some("to the table"), points(|counts| counts.table)),
        series("READs of the heap", Some("to the heap"), points(|counts| counts.heap)),
    ];
    let title = "Linear probing, table 4: READs of a lookup with records in a heap";
    Ok(chart("linear-table-4", title, Shape::Bars, all, &["A READ across the end of the table counts twice."]))
}

/// Looks each record of a table up once, and returns the READs.
fn counted(lookup: Counted, entries: u64, seed: u64, is_stopped: &dyn Fn() -> bool) -> Result<ReadCounts, LabError> {
    let failed = |error: &dyn std::fmt::Display| LabError::Failed {
        what: "counting the READs of lookups".to_owned(),
        reason: error.to_string(),
    };
    let (records, layout, value_bytes) = (entries * HEAP_FILL / 100, Layout::Heap, VALUE_BYTES);
    let keys = Records::scattered(seed, VALUE_BYTES).map_err(|error| failed(&error))?;
    let (key, caps) = (|record| keys.key(record) as u32, Profile::Mlx5.caps());
    let value = |record, value: &mut Vec<u8>| keys.value_into(record, LOADED, value);
    let shape = LinearShape { slots: entries, layout, value_bytes };
    let slots = match lookup {
        Counted::Cuckoo => {
            let slots = entries / ASSOCIATIVITY;
            let shape = CuckooShape { slots, associativity: ASSOCIATIVITY, layout, value_bytes, seed };
            let table = CuckooTable::build(shape, caps, records, key, value, is_stopped);
            let table = table.map_err(|error| failed(&error))?.ok_or(LabError::Stopped)?;
            let mut client = client_of(&CuckooStore::new(table, Probing::Parallel));
            look_up(&mut client, &keys, records, is_stopped)?;
            return Ok(client.reads());
        }
        Counted::Fixed => FIXED_BYTES / shape.slot_bytes(),
        Counted::Variable => {
            let cheapest = distances(HEAP_FILL).cheapest(shape.slot_bytes(), &Costs::PRINTED);
            cheapest.min(bound(shape.slot_bytes(), &Costs::PRINTED)) as u64
        }
    };
    let table = LinearTable::build(shape, caps, records, key, value, is_stopped);
    let table = table.map_err(|error| failed(&error))?.ok_or(LabError::Stopped)?;
    let mut client = client_of(&LinearStore::new(table, slots));
    look_up(&mut client, &keys, records, is_stopped)?;
    Ok(client.reads())
}

/// Opens a client of a store, whose memory it reads in place.
fn client_of<S: Store>(store: &S) -> S::Client {
    store.client(Ports::of_verbs(store.nodes()[0].lane()), 0, &Rc::new(store.host()), &Rc::new(store.thread()))
}

/// Looks each record up once, and checks what is found.
fn look_up(
    client: &mut impl Client,
    keys: &Records,
    records: u64,
    is_stopped: &dyn Fn() -> bool,
) -> Result<(), LabError> {
    /// Lookups between two looks at whether to stop.
    const STOP_LOOKUPS: u64 = 1 << 16;
    let mut values = Vec::new();
    for record in 0..records {
        if record % STOP_LOOKUPS == 0 && is_stopped() {
            return Err(LabError::Stopped);
        }
        values.clear();
        let found = ready(client.get(keys.key(record), &mut values));
        if found != Ok(true) || keys.serial_of(record, &values) != Some(LOADED) {
            let reason = format!("record {record} is found as {values:x?} ({found:?})");
            return Err(LabError::Failed { what: "a lookup".to_owned(), reason });
        }
    }
    Ok(())
}

fn series(name: &str, predicts: Option<&str>, points: Vec<Point>) -> Series {
    Series { name: name.to_owned(), origin: Origin::Measured, predicts: predicts.map(str::to_owned), points }
}
