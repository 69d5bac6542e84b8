//! Comparison of Guira with other servers over TCP, on one machine: the cost of a read or an update for a server.
//!
//! Each server is a process with one worker thread, on one processor; all clients are on the others. The figure of
//! merit is operations per second of the server's processor time, because it depends neither on the speed of the
//! clients nor on other load of the machine.
//!
//! The cost of an exchange for a server that does nothing is measured, too: it is the kernel's part, which no server
//! can avoid.
//!
//! Invariants: the systems hold the same records and get the same operations; every answer to a client of ours is
//! checked; all series are measured in turn, round after round, and a ratio divides two figures of the same round.

mod bare;
mod measure;
mod plan;
mod plot;
mod redis_benchmark;
mod report;
mod servers;
mod sessions;
mod targets;
mod text;
mod usage;

pub use bare::serve_bare;
pub use plan::{Mix, TcpOptions, Way as TcpWay};
pub use plot::tcp_svg;
pub use report::{Figure, Ratio, Spread, TCP_SCHEMA, TcpCell, TcpReport};
pub use targets::TcpTarget;
pub use text::{tcp_human, tcp_markdown};

use std::sync::Arc;

use self::measure::{Cores, Measured};
use self::plan::{NAMES, Series, Way};
use self::servers::TcpServer;
use crate::draws::{DrawSpec, Draws};
use crate::error::PeersError;
use crate::load::ProgressFn;
use crate::machine::Machine;
use crate::plan::System;
use crate::record::{Records, WORD_BYTES};
use crate::run::{Peer, check_memory, server_peer};
use crate::server::{Kind, find_program};
use crate::testbed::directory;

/// Carries out a run over TCP. `watch` receives the progress, and may end the run.
///
/// # Errors
/// [`PeersError::Options`]; whatever a system fails with, and any answer that is not right; an interruption.
pub fn run_tcp(options: &TcpOptions, watch: &mut ProgressFn<'_>) -> Result<TcpReport, PeersError> {
    options.check()?;
    let (machine, cores) = (Machine::detect(), Cores::choose()?);
    let peers: Vec<Peer> = NAMES.into_iter().map(|name| peer(options, name)).collect();
    let takes_part = |name: &System| peers.iter().any(|peer| peer.name == *name && peer.missing.is_none());
    let names: Vec<System> = NAMES.into_iter().filter(takes_part).collect();
    let has_redis_benchmark = find_program(redis_benchmark::PROGRAM).is_some();
    let mut series = options.series(&names);
    series.retain(|series| series.way != Way::RedisBenchmark || has_redis_benchmark);
    check_memory(&options.needs(&names, has_redis_benchmark), &machine)?;
    let mut testbed = Testbed::open(options, &names, has_redis_benchmark, watch)?;
    let rounds = testbed.measure(options, &series, &cores, watch)?;
    Ok(TcpReport::new(options, machine, cores, peers, &series, rounds))
}

/// The entry of a system: its version, or the reason why it does not take part.
fn peer(options: &TcpOptions, name: System) -> Peer {
    if !options.wants(name) {
        return Peer { name, version: None, missing: Some("left out by --only or --skip".to_owned()) };
    }
    match name {
        System::Redis => server_peer(name, Kind::Redis),
        System::Memcached => server_peer(name, Kind::Memcached),
        _ => Peer { name, version: Some(env!("CARGO_PKG_VERSION").to_owned()), missing: None },
    }
}

/// The loaded servers, and the operations that they will get.
struct Testbed {
    servers: Vec<(System, TcpServer)>,
    /// A Redis server with the records that redis-benchmark reads.
    for_redis_benchmark: Option<TcpServer>,
    draws: Arc<Draws>,
    // The last field, so that it is dropped after everything that uses it.
    _directory: tempfile::TempDir,
}

impl Testbed {
    fn open(
        options: &TcpOptions,
        names: &[System],
        has_redis_benchmark: bool,
        watch: &mut ProgressFn<'_>,
    ) -> Result<Testbed, PeersError> {
        let directory = directory()?;
        let records = Records::new(WORD_BYTES, options.seed)?;
        let mut servers = Vec::new();
        for name in names {
            let server = TcpServer::start(*name, options, &records, directory.path(), watch);
            servers.push((*name, server.map_err(|error| error.of(name.title()))?));
        }
        let for_redis_benchmark = match has_redis_benchmark && names.contains(&System::Redis) {
            true => Some(
                redis_benchmark::start(options, &records, directory.path(), watch)
                    .map_err(|error| error.of(redis_benchmark::PROGRAM))?,
            ),
            false => None,
        };
        watch("drawing keys", 0, 1)?;
        let most = options.most_operations();
        let drawn = DrawSpec { records: options.records, seed: options.seed, keys: most, steps: most };
        let draws = Arc::new(Draws::new(&records, &drawn, options.popularity, 0)?);
        Ok(Testbed { servers, for_redis_benchmark, draws, _directory: directory })
    }

    /// Measures every series once per round. Returns the rounds of each series.
    fn measure(
        &mut self,
        options: &TcpOptions,
        series: &[Series],
        cores: &Cores,
        watch: &mut ProgressFn<'_>,
    ) -> Result<Vec<Vec<Measured>>, PeersError> {
        let mut rounds = vec![Vec::with_capacity(options.rounds as usize); series.len()];
        let total = series.len() as u64 * u64::from(options.rounds);
        let mut done = 0;
        for _ in 0..options.rounds {
            for (series, rounds) in series.iter().zip(&mut rounds) {
                watch("measuring", done, total)?;
                done += 1;
                let measured = self.measure_one(options, series, cores);
                rounds.push(measured.map_err(|error| error.of(series.name.title()))?);
            }
        }
        Ok(rounds)
    }

    fn measure_one(&self, options: &TcpOptions, series: &Series, cores: &Cores) -> Result<Measured, PeersError> {
        let server = match series.way {
            Way::RedisBenchmark => self.for_redis_benchmark.as_ref(),
            _ => self.servers.iter().find(|(name, _)| *name == series.name).map(|(_, server)| server),
        };
        let server = server.ok_or_else(|| PeersError::Options("the server was not started".to_owned()))?;
        server.pin_to(&[cores.server])?;
        match series.way {
            Way::RedisBenchmark => measure::with_redis_benchmark(series, server, cores, options.records),
            _ => measure::with_own_clients(series, server, cores, &self.draws),
        }
    }
}
