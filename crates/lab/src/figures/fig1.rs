//! Figure 1: the latency of READs, the rates of verbs, and CAS in host and device memory, as the model of the network
//! has them. Figures 1(b) and 1(c) calibrate it, so this shows how well they do.

use guira_fabric::Space;
use guira_fabric_sim::load::{Addresses, Kind, Load, measure as measure_load};
use guira_fabric_sim::{Card, Cluster};

use super::chart;
use super::parallel::measure;
use crate::experiment::{LabError, RunOptions, Watch};
use crate::report::{Chart, Origin, Point, Series, Shape};

/// Bytes of the READs of figure 1(a); the paper's plot has shorter ones, which are no verbs of this store.
const READ_BYTES: [usize; 8] = [8, 16, 32, 64, 128, 256, 512, 1024];
/// Concurrent requests of figure 1(b): clients with one request in flight each.
const REQUESTS: [u32; 15] = [24, 48, 72, 96, 120, 144, 168, 192, 216, 240, 264, 288, 312, 336, 360];
/// The kinds of verbs of figure 1(b), with the names of the published series.
const KINDS: [(Kind, &str); 3] = [(Kind::Write, "WRITE"), (Kind::Read, "READ"), (Kind::Cas, "CAS")];
/// Clients of figure 1(c).
const CLIENTS: u32 = 360;
const CARD: Card = Card::ConnectX5;

/// Measures figure 1(a).
///
/// # Errors
/// [`LabError::Stopped`].
pub fn latencies(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let points = measure("figure 1(a)", &READ_BYTES, run, watch, |bytes| {
        let cluster = Cluster { jitter_ns: 0, ..Cluster::new(CARD) };
        let load = Load { words: bytes / 8, ..Load::of(Kind::Read) };
        // One client: its rate is the inverse of the latency.
        Ok(Point::new(*bytes as f64, 1.0 / measure_load(cluster, 1, load, run.seed).mops))
    })?;
    let series = vec![measured("model", None, points)];
    let note = "Only the slope is comparable: by figure 1(b) the shortest READ takes 2.7 µs on the authors' testbed.";
    Ok(chart("1a", "Figure 1(a): latency of a READ", Shape::Lines, series, &[note]))
}

/// Measures figure 1(b).
///
/// # Errors
/// [`LabError::Stopped`].
pub fn rates(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let cells: Vec<(Kind, u32)> =
        KINDS.iter().flat_map(|(kind, _)| REQUESTS.map(|requests| (*kind, requests))).collect();
    let points = measure("figure 1(b)", &cells, run, watch, |(kind, requests)| {
        let mops = measure_load(Cluster::new(CARD), *requests, Load::of(*kind), run.seed).mops;
        Ok(Point::new(f64::from(*requests), mops))
    })?;
    let of_kinds = KINDS.iter().zip(points.chunks(REQUESTS.len()));
    let series = of_kinds.map(|((_, name), points)| measured(&format!("model, {name}"), Some(name), points.to_vec()));
    let note = "This figure calibrates the model: docs/network-model.md.";
    Ok(chart("1b", "Figure 1(b): rate of verbs of 8 bytes", Shape::Lines, series.collect(), &[note]))
}

/// Measures figure 1(c).
///
/// # Errors
/// [`LabError::Stopped`].
pub fn atomics(run: &RunOptions, watch: &dyn Watch) -> Result<Chart, LabError> {
    let spaces = [(Space::Main, "host memory"), (Space::Device, "device memory")];
    let addresses = [Addresses::One, Addresses::Independent];
    let cells: Vec<(Space, Addresses)> =
        spaces.iter().flat_map(|(space, _)| addresses.map(|addresses| (*space, addresses))).collect();
    let rates = measure("figure 1(c)", &cells, run, watch, |(space, addresses)| {
        let load = Load { space: *space, addresses: *addresses, ..Load::of(Kind::Cas) };
        Ok(measure_load(Cluster::new(CARD), CLIENTS, load, run.seed).mops)
    })?;
    let of_spaces = spaces.iter().zip(rates.chunks(addresses.len()));
    let series = of_spaces.map(|((_, name), rates)| {
        let points = rates.iter().enumerate().map(|(index, mops)| Point::new(index as f64, *mops)).collect();
        measured(&format!("model, {name}"), Some(name), points)
    });
    let note = "This figure calibrates the model: docs/network-model.md.";
    Ok(chart("1c", "Figure 1(c): CAS on one and on independent addresses", Shape::Bars, series.collect(), &[note]))
}

fn measured(name: &str, predicts: Option<&str>, points: Vec<Point>) -> Series {
    Series { name: name.to_owned(), origin: Origin::Measured, predicts: predicts.map(str::to_owned), points }
}
