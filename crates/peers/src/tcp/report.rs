//! The report of a run over TCP.

use serde::Serialize;

use super::measure::{Cores, Measured};
use super::plan::{Mix, Point, Series, TcpOptions, Way};
use super::targets::{TcpTarget, targets};
use crate::draws::Popularity;
use crate::machine::Machine;
use crate::plan::System;
use crate::record::{KEY_BYTES, WORD_BYTES};
use crate::run::Peer;

/// The version of the report's JSON; it changes when a field changes its meaning or goes.
pub const TCP_SCHEMA: u32 = 2;

/// The report of a run over TCP.
#[derive(Clone, Debug, Serialize)]
pub struct TcpReport {
    /// [`TCP_SCHEMA`].
    pub schema: u32,
    /// Guira's version.
    pub version: &'static str,
    /// The machine of the run.
    pub machine: Machine,
    /// The processors of the server and of the clients.
    pub cores: Cores,
    /// Bytes of every key.
    pub key_bytes: usize,
    /// Bytes of every value.
    pub value_bytes: usize,
    /// Records in each system.
    pub records: u64,
    /// Number of times that everything was measured.
    pub rounds: u32,
    /// Seed of keys and draws.
    pub seed: u64,
    /// Popularity of keys.
    pub popularity: Popularity,
    /// The compared systems.
    pub peers: Vec<Peer>,
    /// The figures of every series.
    pub cells: Vec<TcpCell>,
    /// Ratios of Guira, and of a server that does nothing, to each peer.
    pub ratios: Vec<Ratio>,
    /// The performance targets.
    #[serde(rename = "aims")]
    pub targets: Vec<TcpTarget>,
}

/// The distribution of a figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; zeros if there are none.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first(), values.last()) else {
            return Spread { median: 0.0, min: 0.0, max: 0.0 };
        };
        let last = values.len() - 1;
        Spread { median: (values[last / 2] + values[last.div_ceil(2)]) / 2.0, min: *min, max: *max }
    }
}

/// The figures of one series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TcpCell {
    /// The system.
    pub name: System,
    /// The access mode.
    pub way: Way,
    /// The mix.
    pub mix: Mix,
    /// Number of connections.
    pub connections: usize,
    /// Operations in flight on each connection.
    pub depth: usize,
    /// Operations per round, all connections together.
    pub operations: usize,
    /// Operations per second of elapsed time.
    pub per_second: Spread,
    /// Operations per second of the server's processor time.
    pub per_server_second: Spread,
    /// Nanoseconds of the server's processor time per operation.
    pub server_ns: Spread,
    /// The kernel's share of the server's processor time, of all rounds together, by the kernel's clock ticks.
    pub server_kernel_share: f64,
    /// Number of times per operation that the server slept for want of work.
    pub server_sleeps: Spread,
    /// Nanoseconds of the clients' processor time per operation, if the clients were ours.
    pub client_ns: Option<Spread>,
    /// Nanoseconds of an exchange, which is one operation or all operations in flight: the median.
    pub p50_ns: Spread,
    /// Nanoseconds of an exchange: the 99th percentile.
    pub p99_ns: Spread,
    /// Round trips per operation, if the clients were ours.
    pub round_trips: Option<f64>,
}

impl TcpCell {
    fn new(series: &Series, rounds: &[Measured]) -> TcpCell {
        let operations = series.operations as f64;
        let of = |figure: &dyn Fn(&Measured) -> f64| Spread::of(rounds.iter().map(figure));
        let total = |figure: fn(&Measured) -> u64| rounds.iter().map(figure).sum::<u64>() as f64;
        let (user, kernel) = (total(|round| round.server.user_ticks), total(|round| round.server.kernel_ticks));
        let is_ours = rounds.iter().all(|round| round.client_ns.is_some());
        let client = |round: &Measured| round.client_ns.unwrap_or(0) as f64 / operations;
        let trips = total(|round| round.round_trips.unwrap_or(0)) / (operations * rounds.len() as f64);
        TcpCell {
            name: series.name,
            way: series.way,
            mix: series.point.mix,
            connections: series.point.connections,
            depth: series.point.depth,
            operations: series.operations,
            per_second: of(&|round| round.per_second),
            per_server_second: of(&|round| Figure::PerServerSecond.of(round, series)),
            server_ns: of(&|round| round.server.cpu_ns as f64 / operations),
            server_kernel_share: kernel / (user + kernel).max(1.0),
            server_sleeps: of(&|round| round.server.sleeps as f64 / operations),
            client_ns: is_ours.then(|| of(&client)),
            p50_ns: of(&|round| round.p50_ns),
            p99_ns: of(&|round| round.p99_ns),
            round_trips: is_ours.then_some(trips),
        }
    }
}

/// A figure that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Operations per second of the server's processor time: more is better.
    PerServerSecond,
    /// Operations per second of elapsed time: more is better.
    PerSecond,
    /// The median time of an exchange: less is better.
    P50,
}

impl Figure {
    const ALL: [Figure; 3] = [Figure::PerServerSecond, Figure::PerSecond, Figure::P50];

    fn of(self, round: &Measured, series: &Series) -> f64 {
        match self {
            Figure::PerServerSecond => series.operations as f64 * 1e9 / round.server.cpu_ns.max(1) as f64,
            Figure::PerSecond => round.per_second,
            Figure::P50 => round.p50_ns,
        }
    }
}

/// A figure of a system divided by that of a peer, round by round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The system: Guira, or a server that does nothing.
    pub name: System,
    /// The figure.
    pub figure: Figure,
    /// The mix.
    pub mix: Mix,
    /// Number of connections.
    pub connections: usize,
    /// Operations in flight on each connection.
    pub depth: usize,
    /// The access mode.
    pub way: Way,
    /// The peer.
    pub peer: System,
    /// The access mode of the peer.
    pub peer_way: Way,
    /// The ratio.
    pub ratio: Spread,
}

impl TcpReport {
    pub(super) fn new(
        options: &TcpOptions,
        machine: Machine,
        cores: Cores,
        peers: Vec<Peer>,
        series: &[Series],
        rounds: Vec<Vec<Measured>>,
    ) -> TcpReport {
        let ratios = ratios(series, &rounds);
        TcpReport {
            schema: TCP_SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            machine,
            cores,
            key_bytes: KEY_BYTES,
            value_bytes: WORD_BYTES,
            records: options.records,
            rounds: options.rounds,
            seed: options.seed,
            popularity: options.popularity,
            peers,
            cells: series.iter().zip(&rounds).map(|(series, rounds)| TcpCell::new(series, rounds)).collect(),
            targets: targets(&ratios),
            ratios,
        }
    }
}

/// Computes the ratios of Guira in every access mode, and of the server that does nothing, to every peer that was
/// measured at the same point.
fn ratios(series: &[Series], rounds: &[Vec<Measured>]) -> Vec<Ratio> {
    let all = || series.iter().zip(rounds);
    let mut ratios = Vec::new();
    let is_peer = |name| !matches!(name, System::Guira | System::Raw);
    for (own, own_rounds) in all().filter(|(series, _)| !is_peer(series.name)) {
        for (peer, peer_rounds) in all().filter(|(peer, _)| is_peer(peer.name) && peer.point == own.point) {
            for figure in Figure::ALL {
                let each = own_rounds.iter().zip(peer_rounds);
                let ratio = Spread::of(each.map(|(own_round, peer_round)| {
                    figure.of(own_round, own) / figure.of(peer_round, peer).max(f64::MIN_POSITIVE)
                }));
                let Point { mix, connections, depth } = own.point;
                let (name, way, peer_way) = (own.name, own.way, peer.way);
                ratios.push(Ratio { name, figure, mix, connections, depth, way, peer: peer.name, peer_way, ratio });
            }
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::usage::Usage;

    fn round(per_second: f64, cpu_ns: u64) -> Measured {
        let server = Usage { cpu_ns, user_ticks: 1, kernel_ticks: 3, sleeps: 50 };
        let (p50_ns, p99_ns) = (1e9 / per_second, 2e9 / per_second);
        Measured { per_second, server, client_ns: Some(1000), p50_ns, p99_ns, round_trips: Some(100) }
    }

    #[test]
    fn a_ratio_divides_figures_of_the_same_round() {
        let point = Point { mix: Mix::YcsbC, connections: 1, depth: 1 };
        let series = |name| Series { point, name, way: Way::Single, operations: 100 };
        let series = [series(System::Guira), series(System::Redis), series(System::Raw)];
        // In the second round the machine is half as fast, which affects all systems.
        let rounds = vec![
            vec![round(300.0, 1000), round(150.0, 2000)],
            vec![round(100.0, 3000), round(50.0, 6000)],
            vec![round(400.0, 500), round(200.0, 1000)],
        ];
        let ratios = ratios(&series, &rounds);
        let of_name = |name, figure| ratios.iter().find(|ratio| (ratio.name, ratio.figure) == (name, figure));
        let of = |figure| of_name(System::Guira, figure).expect("it is compared").ratio;
        let three = Spread { median: 3.0, min: 3.0, max: 3.0 };
        assert_eq!((of(Figure::PerServerSecond), of(Figure::PerSecond)), (three, three));
        assert!((of(Figure::P50).median - 1.0 / 3.0).abs() < 1e-9);
        let bare = of_name(System::Raw, Figure::PerServerSecond).expect("it is compared");
        assert_eq!((bare.peer, bare.ratio.median), (System::Redis, 6.0));
        assert_eq!(ratios.len(), 6);
        let cell = TcpCell::new(&series[0], &rounds[0]);
        assert_eq!((cell.server_ns.median, cell.per_server_second.min), (15.0, 5e7));
        assert_eq!((cell.server_kernel_share, cell.round_trips), (0.75, Some(1.0)));
        assert_eq!((cell.client_ns.map(|ns| ns.max), cell.server_sleeps.median), (Some(10.0), 0.5));
    }
}
