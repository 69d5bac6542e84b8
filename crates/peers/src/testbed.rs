//! The contenders of one stage, loaded with the same records and ready to be timed.
//!
//! Everything lies in one directory in shared memory, which goes when the lineup does, after the servers.

use std::path::{Path, PathBuf};
use std::thread;

use tempfile::TempDir;

use crate::draws::{DrawSpec, Draws, Popularity};
use crate::error::PeersError;
use crate::helper::{Helper, Preparation, Request};
use crate::load::{Loader, ProgressFn};
use crate::machine::{cores, pin_thread};
use crate::measure::{Job, Runner, monotonic_ns};
use crate::plan::{Options, Placement, Series, Stage, System, Way};
use crate::record::Records;
use crate::server::{self, Kind, Listen, Server, Sizes};
use crate::systems::lmdb::{self, Opening};
use crate::systems::maps::{self, SharedMap};
use crate::systems::memcached::Memcached;
use crate::systems::{Address, Connection, Connections, Endpoint, guira, load_server};

/// Where tables are: a memory file system that every process sees.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// Keys that are compared byte by byte after loading and after the last round.
const VERIFIED_KEYS: u64 = 1000;
/// How far ahead two clients agree to start: longer than an order takes to arrive.
const START_AHEAD_NS: u64 = 3_000_000;

/// The contenders of a stage.
pub struct Testbed {
    records: Records,
    count: u64,
    /// By client; the second's only for maps, whose second client is a thread of this process.
    draws: Vec<Vec<(Popularity, Draws)>>,
    entries: Vec<Entry>,
    helper: Option<Helper>,
    servers: Vec<(System, Server)>,
    cores: Vec<usize>,
    /// How full Guira's table is, if it is there.
    pub fill: Option<f64>,
    // Last, so that it is removed when nobody uses it any more.
    directory: TempDir,
}

struct Entry {
    way: Way,
    runner: Box<dyn Runner>,
    source: Source,
}

/// Where further clients of a contender come from.
enum Source {
    /// Any process can connect.
    Endpoint(Endpoint),
    /// Threads of this process share it.
    Map(Box<dyn SharedMap>),
}

impl Testbed {
    /// Starts, loads and checks these contenders. `threads` is how many memcached serves with.
    ///
    /// # Errors
    /// Whatever a contender fails with; an interruption.
    pub fn open(
        options: &Options,
        stage: &Stage,
        ways: &[Way],
        threads: u32,
        watch: &mut ProgressFn<'_>,
    ) -> Result<Testbed, PeersError> {
        let directory = directory()?;
        let records = Records::new(stage.value_bytes, options.seed)?;
        let drawn =
            DrawSpec { records: stage.records, seed: options.seed, keys: stage.operations, steps: stage.steps() };
        let mut testbed = Testbed {
            records,
            count: stage.records,
            draws: Vec::new(),
            entries: Vec::new(),
            helper: None,
            servers: Vec::new(),
            cores: cores()?,
            fill: None,
            directory,
        };
        let mut connections = Connections::default();
        for way in ways {
            testbed.add(*way, stage, threads, &mut connections, watch).map_err(|error| error.of(way.name().title()))?;
        }
        watch("drawing keys", 0, 1)?;
        let clients = if stage.clients.len() > 1 { 0..2 } else { 0..1 };
        for client in clients {
            let draw = |popularity: &Popularity| -> Result<_, PeersError> {
                Ok((*popularity, Draws::new(&records, &drawn, *popularity, client)?))
            };
            testbed.draws.push(stage.popularities.iter().map(draw).collect::<Result<_, _>>()?);
        }
        testbed.start_helper(options, stage, drawn)?;
        testbed.verify(watch)?;
        Ok(testbed)
    }

    fn add(
        &mut self,
        way: Way,
        stage: &Stage,
        threads: u32,
        connections: &mut Connections,
        watch: &mut ProgressFn<'_>,
    ) -> Result<(), PeersError> {
        let records = self.records;
        let loader = &mut Loader::new(way.name().title(), stage.records, watch);
        let place = match way {
            Way::Call(System::Dashmap) => return self.add_map(way, maps::load_dashmap(&records, loader)?),
            Way::Call(System::Papaya) => return self.add_map(way, maps::load_papaya(&records, loader)?),
            Way::Call(name) => {
                let file = self.table(loader)?;
                if name == System::Raw { Endpoint::Raw { file } } else { Endpoint::Guira { file } }
            }
            Way::Lmdb(reads) => {
                let directory = self.path("lmdb");
                if !directory.exists() {
                    std::fs::create_dir(&directory).map_err(PeersError::host("make a directory for LMDB"))?;
                    let shared = lmdb::open(&directory, Opening::New)?;
                    lmdb::load(&shared, &records, loader)?;
                    connections.keep(directory.clone(), shared);
                }
                Endpoint::Lmdb { directory, reads }
            }
            Way::Server(name, depth) => {
                let sizes = Sizes { records: stage.records, value_bytes: stage.value_bytes, threads };
                let address = self.server(name, &sizes, loader)?;
                match name {
                    System::Redis => Endpoint::Redis { address, depth },
                    _ => Endpoint::Memcached { address, depth },
                }
            }
        };
        let runner = connections.connect(&place, &records)?;
        self.entries.push(Entry { way, runner, source: Source::Endpoint(place) });
        Ok(())
    }

    fn add_map(&mut self, way: Way, map: Box<dyn SharedMap>) -> Result<(), PeersError> {
        self.entries.push(Entry { way, runner: map.client(), source: Source::Map(map) });
        Ok(())
    }

    /// The file of Guira's table, which is made when it is first asked for.
    fn table(&mut self, loader: &mut Loader<'_>) -> Result<PathBuf, PeersError> {
        let file = self.path("table");
        if !file.exists() {
            let store = guira::create(&file, &self.records, loader)?;
            self.fill = Some(store.stat()?.table.fill);
        }
        Ok(file)
    }

    /// Where a server listens, which is started and loaded when it is first asked for.
    fn server(&mut self, name: System, sizes: &Sizes, loader: &mut Loader<'_>) -> Result<Address, PeersError> {
        if let Some((_, server)) = self.servers.iter().find(|(running, _)| *running == name) {
            return Ok(server.address().clone());
        }
        let kind = if name == System::Redis { Kind::Redis } else { Kind::Memcached };
        let server = Server::start(kind, Listen::Socket, self.directory.path(), sizes)?;
        let address = server.address().clone();
        // From now on it is ended with the lineup.
        self.servers.push((name, server));
        server::load(kind, &address, &self.records, loader)?;
        Ok(address)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts the second process, if one is needed.
    fn start_helper(&mut self, options: &Options, stage: &Stage, drawn: DrawSpec) -> Result<(), PeersError> {
        let places: Vec<Endpoint> = self.places().map(|(_, place)| place.clone()).collect();
        if stage.clients.iter().all(|clients| *clients < 2) || places.is_empty() {
            return Ok(());
        }
        let popularities = stage.popularities.clone();
        let preparation = Preparation { value_bytes: stage.value_bytes, drawn, popularities, places };
        self.helper = Some(Helper::start(&options.helper, preparation)?);
        Ok(())
    }

    /// The contenders that any process can connect to, in the order the helper knows them by.
    fn places(&self) -> impl Iterator<Item = (Way, &Endpoint)> {
        self.entries.iter().filter_map(|entry| match &entry.source {
            Source::Endpoint(place) => Some((entry.way, place)),
            Source::Map(_) => None,
        })
    }

    /// Compares every byte of some values of every contender, spread over all records.
    ///
    /// # Errors
    /// The first that is not right; an interruption.
    pub fn verify(&mut self, watch: &mut ProgressFn<'_>) -> Result<(), PeersError> {
        let step = (self.count / VERIFIED_KEYS).max(1);
        let keys: Vec<_> = (0..self.count).step_by(step as usize).map(|record| self.records.key(record)).collect();
        for entry in &mut self.entries {
            watch("comparing every byte", 0, 1)?;
            let verified = entry.runner.verify(&keys, &self.records);
            verified.map_err(|error| error.of(entry.way.name().title()))?;
        }
        Ok(())
    }

    /// Times one series once: nanoseconds an operation, those of all clients together.
    ///
    /// # Errors
    /// Whatever the contender fails with, and any answer that is not right.
    pub fn time(&mut self, series: &Series, operations: usize) -> Result<f64, PeersError> {
        self.pin_server(series)?;
        let timed = self.time_in_place(series, operations);
        if series.placement != Placement::Anywhere {
            pin_thread(None, &self.cores)?;
        }
        timed.map_err(|error| error.of(series.way.name().title()))
    }

    fn time_in_place(&mut self, series: &Series, operations: usize) -> Result<f64, PeersError> {
        let place = self.places().position(|(way, _)| way == series.way);
        let start_ns = (series.clients > 1).then(|| monotonic_ns() + START_AHEAD_NS);
        let job = Job { task: series.task, operations, start_ns };
        let popularity = series.popularity;
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.way == series.way) else {
            return Err(PeersError::Options("it is not in the lineup".to_owned()));
        };
        let own_draws = draws_of(&self.draws, 0, popularity)?;
        if series.clients == 1 {
            let elapsed_ns = entry.runner.run(&job, own_draws)?;
            return Ok(elapsed_ns as f64 / operations as f64);
        }
        let [one, other] = match (&entry.source, &mut self.helper, place) {
            (Source::Map(map), _, _) => {
                let other_draws = draws_of(&self.draws, 1, popularity)?;
                let (runner, map) = (&mut entry.runner, &**map);
                let (one, other) = thread::scope(|scope| {
                    let other = scope.spawn(|| map.client().run(&job, other_draws));
                    (runner.run(&job, own_draws), other.join())
                });
                let bug = |_| PeersError::peer("run the second thread", "it panicked");
                [one?, other.map_err(bug)??]
            }
            (Source::Endpoint(_), Some(helper), Some(place)) => {
                helper.send(&Request::Run { place, popularity, job })?;
                let one = entry.runner.run(&job, own_draws);
                let other = helper.receive();
                [one?, other?]
            }
            _ => return Err(PeersError::Options("there is no second process".to_owned())),
        };
        Ok(1.0 / (operations as f64 / one as f64 + operations as f64 / other as f64))
    }

    /// Puts the server and this thread where the series wants them.
    fn pin_server(&self, series: &Series) -> Result<(), PeersError> {
        let Some((_, server)) = self.servers.iter().find(|(name, _)| *name == series.way.name()) else {
            return Ok(());
        };
        let (client, served) = match (series.placement, &self.cores[..]) {
            (Placement::OneCore, [first, ..]) => (vec![*first], vec![*first]),
            (Placement::TwoCores, [first, others @ ..]) => (vec![*first], others.to_vec()),
            _ => (self.cores.clone(), self.cores.clone()),
        };
        server.pin_to(&served)?;
        pin_thread(None, &client)
    }
}

fn draws_of(all: &[Vec<(Popularity, Draws)>], client: usize, popularity: Popularity) -> Result<&Draws, PeersError> {
    let drawn = all.get(client).and_then(|draws| draws.iter().find(|(drawn, _)| *drawn == popularity));
    drawn.map(|(_, draws)| draws).ok_or_else(|| PeersError::Options("no keys were drawn".to_owned()))
}

/// A directory in shared memory, named for this process, that goes when the value does.
///
/// # Errors
/// The system's.
pub fn directory() -> Result<TempDir, PeersError> {
    let prefix = format!("guira-peers-{}-", std::process::id());
    let made = tempfile::Builder::new().prefix(&prefix).tempdir_in(SHARED_MEMORY);
    made.map_err(PeersError::host(format!("make a directory in {SHARED_MEMORY}")))
}

/// How many threads serve one client of memcached best, 1 or 2, and what each took in nanoseconds.
///
/// # Errors
/// The server's; an interruption.
pub fn try_threads(directory: &Path, watch: &mut ProgressFn<'_>) -> Result<[f64; 2], PeersError> {
    const RECORDS: u64 = 1024;
    const OPERATIONS: usize = 4096;
    const ROUNDS: usize = 5;
    let records = Records::new(crate::record::WORD_BYTES, 1)?;
    let drawn = DrawSpec { records: RECORDS, seed: 1, keys: OPERATIONS, steps: 0 };
    let draws = Draws::new(&records, &drawn, Popularity::Uniform, 0)?;
    let job = Job { task: crate::measure::Task::Get, operations: OPERATIONS, start_ns: None };
    let mut trials = Vec::new();
    for threads in [1, 2] {
        let sizes = Sizes { records: RECORDS, value_bytes: records.value_bytes(), threads };
        let server = Server::start(Kind::Memcached, Listen::Socket, directory, &sizes)?;
        let mut client = Connection::<Memcached>::open(server.address(), records.value_bytes())?;
        let loader = &mut Loader::new("memcached, on trial", RECORDS, watch);
        load_server(&mut client, &records, loader)?;
        let place = Endpoint::Memcached { address: server.address().clone(), depth: 1 };
        trials.push((server, Connections::default().connect(&place, &records)?));
    }
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for ((_, runner), best) in trials.iter_mut().zip(&mut best) {
            watch("memcached, on trial", 0, 1)?;
            *best = best.min(runner.run(&job, &draws)? as f64 / OPERATIONS as f64);
        }
    }
    Ok(best)
}
