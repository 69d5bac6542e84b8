//! The systems of one stage, loaded with the same records and ready to be timed.
//!
//! All files are in one directory in shared memory, which is removed with the testbed, after the servers.

use std::path::{Path, PathBuf};
use std::thread::{self, Builder};

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

/// The directory of the tables: a memory file system that every process can use.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// Keys that are compared byte by byte after loading and after the last round.
const VERIFIED_KEYS: u64 = 1000;
/// Delay until two clients start: longer than a request to the helper takes.
const START_AHEAD_NS: u64 = 3_000_000;

/// The systems of a stage.
pub struct Testbed {
    records: Records,
    count: u64,
    /// Draws of each client. Those of the second client are used for maps only, where the second client is a thread of
    /// this process.
    draws: Vec<Vec<(Popularity, Draws)>>,
    entries: Vec<Entry>,
    helper: Option<Helper>,
    servers: Vec<(System, Server)>,
    cores: Vec<usize>,
    /// Fill of Guira's table, if there is one.
    pub fill: Option<f64>,
    // The last field, so that it is dropped after everything that uses it.
    directory: TempDir,
}

struct Entry {
    way: Way,
    runner: Box<dyn Runner>,
    source: Source,
}

/// The source of further clients of a system.
enum Source {
    /// An endpoint that any process can connect to.
    Endpoint(Endpoint),
    /// A map that the threads of this process share.
    Map(Box<dyn SharedMap>),
}

impl Testbed {
    /// Starts, loads and verifies these systems. `threads` is the number of memcached's threads.
    ///
    /// # Errors
    /// Errors of a compared system; an interruption.
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
        let endpoint = match way {
            Way::Call(System::Dashmap) => return self.add_map(way, maps::load_dashmap(&records, loader)?),
            Way::Call(System::Papaya) => return self.add_map(way, maps::load_papaya(&records, loader)?),
            Way::Call(name) => {
                let file = self.table(loader)?;
                if name == System::Raw { Endpoint::Raw { file } } else { Endpoint::Guira { file } }
            }
            Way::Lmdb(reads) => {
                let directory = self.path("lmdb");
                if !directory.exists() {
                    std::fs::create_dir(&directory).map_err(PeersError::host("create a directory for LMDB"))?;
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
        let runner = connections.connect(&endpoint, &records)?;
        self.entries.push(Entry { way, runner, source: Source::Endpoint(endpoint) });
        Ok(())
    }

    fn add_map(&mut self, way: Way, map: Box<dyn SharedMap>) -> Result<(), PeersError> {
        self.entries.push(Entry { way, runner: map.client(), source: Source::Map(map) });
        Ok(())
    }

    /// Returns the file of Guira's table, which the first call creates and loads.
    fn table(&mut self, loader: &mut Loader<'_>) -> Result<PathBuf, PeersError> {
        let file = self.path("table");
        if !file.exists() {
            let store = guira::create(&file, &self.records, loader)?;
            self.fill = Some(store.stat()?.table.fill);
        }
        Ok(file)
    }

    /// Returns the address of a server, which the first call starts and loads.
    fn server(&mut self, name: System, sizes: &Sizes, loader: &mut Loader<'_>) -> Result<Address, PeersError> {
        if let Some((_, server)) = self.servers.iter().find(|(running, _)| *running == name) {
            return Ok(server.address().clone());
        }
        let kind = if name == System::Redis { Kind::Redis } else { Kind::Memcached };
        let server = Server::start(kind, Listen::Socket, self.directory.path(), sizes)?;
        let address = server.address().clone();
        // From here on the server ends with the testbed.
        self.servers.push((name, server));
        server::load(kind, &address, &self.records, loader)?;
        Ok(address)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts the helper, if one is needed.
    fn start_helper(&mut self, options: &Options, stage: &Stage, drawn: DrawSpec) -> Result<(), PeersError> {
        let endpoints: Vec<Endpoint> = self.endpoints().map(|(_, endpoint)| endpoint.clone()).collect();
        if stage.clients.iter().all(|clients| *clients < 2) || endpoints.is_empty() {
            return Ok(());
        }
        let popularities = stage.popularities.clone();
        let preparation = Preparation { value_bytes: stage.value_bytes, drawn, popularities, endpoints };
        self.helper = Some(Helper::start(&options.helper, preparation)?);
        Ok(())
    }

    /// The endpoints of the systems that any process can connect to, in the order in which the helper has them.
    fn endpoints(&self) -> impl Iterator<Item = (Way, &Endpoint)> {
        self.entries.iter().filter_map(|entry| match &entry.source {
            Source::Endpoint(endpoint) => Some((entry.way, endpoint)),
            Source::Map(_) => None,
        })
    }

    /// Compares every byte of a sample of values in every system. The sample is spread over all records.
    ///
    /// # Errors
    /// The first wrong value; an interruption.
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

    /// Times one series once. Returns nanoseconds per operation of all clients together.
    ///
    /// # Errors
    /// Errors of the compared system, and any wrong answer.
    pub fn time(&mut self, series: &Series, operations: usize) -> Result<f64, PeersError> {
        self.pin_server(series)?;
        let timed = self.time_in_place(series, operations);
        if series.placement != Placement::Anywhere {
            pin_thread(None, &self.cores)?;
        }
        timed.map_err(|error| error.of(series.way.name().title()))
    }

    fn time_in_place(&mut self, series: &Series, operations: usize) -> Result<f64, PeersError> {
        let endpoint = self.endpoints().position(|(way, _)| way == series.way);
        let start_ns = (series.clients > 1).then(|| monotonic_ns() + START_AHEAD_NS);
        let job = Job { task: series.task, operations, start_ns };
        let popularity = series.popularity;
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.way == series.way) else {
            return Err(PeersError::Options("the system is not in the testbed".to_owned()));
        };
        let own_draws = draws_of(&self.draws, 0, popularity)?;
        if series.clients == 1 {
            let elapsed_ns = entry.runner.run(&job, own_draws)?;
            return Ok(elapsed_ns as f64 / operations as f64);
        }
        let [one, other] = match (&entry.source, &mut self.helper, endpoint) {
            (Source::Map(map), _, _) => {
                let other_draws = draws_of(&self.draws, 1, popularity)?;
                let (runner, map) = (&mut entry.runner, &**map);
                let (one, other) = thread::scope(|scope| {
                    let other = Builder::new().spawn_scoped(scope, || map.client().run(&job, other_draws));
                    let other = other.map_err(PeersError::host("start a thread"))?;
                    Ok::<_, PeersError>((runner.run(&job, own_draws), other.join()))
                })?;
                let bug = |_| PeersError::peer("run the second thread", "it panicked");
                [one?, other.map_err(bug)??]
            }
            (Source::Endpoint(_), Some(helper), Some(endpoint)) => {
                helper.send(&Request::Run { endpoint, popularity, job })?;
                let one = entry.runner.run(&job, own_draws);
                let other = helper.receive();
                [one?, other?]
            }
            _ => return Err(PeersError::Options("the second process was not started".to_owned())),
        };
        Ok(1.0 / (operations as f64 / one as f64 + operations as f64 / other as f64))
    }

    /// Restricts the server and this thread to the processors of the series.
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

/// Creates a directory in shared memory, named after this process and removed on drop.
///
/// # Errors
/// Errors of the operating system.
pub fn directory() -> Result<TempDir, PeersError> {
    let prefix = format!("guira-peers-{}-", std::process::id());
    let made = tempfile::Builder::new().prefix(&prefix).tempdir_in(SHARED_MEMORY);
    made.map_err(PeersError::host(format!("create a directory in {SHARED_MEMORY}")))
}

/// Times lookups in memcached with 1 and with 2 threads. Returns nanoseconds per lookup of each.
///
/// # Errors
/// Errors of the server; an interruption.
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
        let loader = &mut Loader::new("memcached, trial of threads", RECORDS, watch);
        load_server(&mut client, &records, loader)?;
        let endpoint = Endpoint::Memcached { address: server.address().clone(), depth: 1 };
        trials.push((server, Connections::default().connect(&endpoint, &records)?));
    }
    let mut best = [f64::INFINITY; 2];
    for _ in 0..ROUNDS {
        for ((_, runner), best) in trials.iter_mut().zip(&mut best) {
            watch("memcached, trial of threads", 0, 1)?;
            *best = best.min(runner.run(&job, &draws)? as f64 / OPERATIONS as f64);
        }
    }
    Ok(best)
}
