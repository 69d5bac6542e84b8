//! Guira and its peers over TCP, on one machine: what a read or an update costs a server.
//!
//! Each contender's server is a process with one thread that serves, on one processor; all clients are on the others.
//! What is compared is operations for each second of the server's processor time, because that does not depend on how
//! fast the clients are, nor on what else the machine does.
//!
//! What an exchange costs a server that does nothing is measured, too: the kernel's part, which no aim can ask for.
//!
//! Invariants: the contenders hold the same records and get the same operations; every answer to a client of ours is
//! checked; everything is measured in turn, round after round, and a ratio is one of two figures of the same round.

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
use crate::run::{Peer, server_peer};
use crate::server::{Kind, find_program};
use crate::testbed::directory;

/// Carries a run over TCP out. `watch` is told how far it has got, and may end it.
///
/// # Errors
/// `Options`; whatever a contender fails with, and any answer that is not right; an interruption.
pub fn run_tcp(options: &TcpOptions, watch: &mut ProgressFn<'_>) -> Result<TcpReport, PeersError> {
    options.check()?;
    let (machine, cores) = (Machine::detect(), Cores::choose()?);
    let peers: Vec<Peer> = NAMES.into_iter().map(|name| peer(options, name)).collect();
    let takes_part = |name: &System| peers.iter().any(|peer| peer.name == *name && peer.missing.is_none());
    let names: Vec<System> = NAMES.into_iter().filter(takes_part).collect();
    let has_own = find_program(redis_benchmark::PROGRAM).is_some();
    let mut series = options.series(&names);
    series.retain(|series| series.way != Way::RedisBenchmark || has_own);
    let mut testbed = Testbed::open(options, &names, has_own, watch)?;
    let rounds = testbed.measure(options, &series, &cores, watch)?;
    Ok(TcpReport::new(options, machine, cores, peers, &series, rounds))
}

/// What takes part, or why it does not.
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

/// The servers, loaded, and what they will be asked.
struct Testbed {
    servers: Vec<(System, TcpServer)>,
    /// A Redis with the records that its own client asks for.
    own: Option<TcpServer>,
    draws: Arc<Draws>,
    // Last, so that it is removed when nobody uses it any more.
    _directory: tempfile::TempDir,
}

impl Testbed {
    fn open(
        options: &TcpOptions,
        names: &[System],
        has_own: bool,
        watch: &mut ProgressFn<'_>,
    ) -> Result<Testbed, PeersError> {
        let directory = directory()?;
        let records = Records::new(WORD_BYTES, options.seed)?;
        let mut servers = Vec::new();
        for name in names {
            let server = TcpServer::start(*name, options, &records, directory.path(), watch);
            servers.push((*name, server.map_err(|error| error.of(name.title()))?));
        }
        let own = match has_own && names.contains(&System::Redis) {
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
        Ok(Testbed { servers, own, draws, _directory: directory })
    }

    /// Measures every series once a round; by series, the rounds.
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
            Way::RedisBenchmark => self.own.as_ref(),
            _ => self.servers.iter().find(|(name, _)| *name == series.name).map(|(_, server)| server),
        };
        let server = server.ok_or_else(|| PeersError::Options("it was not started".to_owned()))?;
        server.pin_to(&[cores.server])?;
        match series.way {
            Way::RedisBenchmark => measure::own(series, server, cores, options.records),
            _ => measure::ours(series, server, cores, &self.draws),
        }
    }
}
