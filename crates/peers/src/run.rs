//! A run: stage after stage. Within a stage the series are timed in turn, round after round, so that disturbances of
//! the machine affect all systems alike.

use serde::Serialize;

use crate::draws::Popularity;
use crate::error::PeersError;
use crate::load::ProgressFn;
use crate::machine::{Machine, cores};
use crate::measure::Task;
use crate::plan::{Needs, Options, Placement, Series, Stage, System, Way, needs};
use crate::record::KEY_BYTES;
use crate::server::Kind;
use crate::targets::{Target, targets};
use crate::testbed::{SHARED_MEMORY, Testbed, directory, try_threads};

/// The version of the report's JSON; it changes when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;
/// A warm-up round has this many times fewer operations than a timed round.
const WARM_UP_DIVISOR: usize = 4;
/// Memory that must remain available in addition to the run's needs.
const SPARE_BYTES: u64 = 256 << 20;

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Guira's version.
    pub version: &'static str,
    /// The machine of the run.
    pub machine: Machine,
    /// Bytes of every key.
    pub key_bytes: usize,
    /// Number of times that everything was measured.
    pub rounds: u32,
    /// Seed of keys and draws.
    pub seed: u64,
    /// Memory and time that the run needed, as estimated before it.
    pub needs: Needs,
    /// The compared systems.
    pub peers: Vec<Peer>,
    /// Nanoseconds of a lookup in memcached with 1 and 2 threads, if memcached takes part; the better number was used.
    pub memcached_threads_ns: Option<[f64; 2]>,
    /// The stages, in order.
    pub stages: Vec<StageReport>,
    /// The times of every series.
    pub cells: Vec<Cell>,
    /// The performance targets.
    #[serde(rename = "aims")]
    pub targets: Vec<Target>,
}

/// A compared system in the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// The system.
    pub name: System,
    /// The system's version, if it took part.
    pub version: Option<String>,
    /// The reason why the system did not take part, and how to include it.
    pub missing: Option<String>,
}

/// A stage in the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// Bytes of every value.
    pub value_bytes: usize,
    /// Records in each system.
    pub records: u64,
    /// Fill of Guira's table, if it took part.
    pub fill: Option<f64>,
}

/// The times of one series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The system.
    pub name: System,
    /// The access mode; empty if the system has only one.
    pub variant: &'static str,
    /// Placement of the server.
    pub placement: Placement,
    /// The task.
    pub task: Task,
    /// Popularity of the keys.
    pub popularity: Popularity,
    /// Number of concurrent clients.
    pub clients: u8,
    /// Bytes of every value.
    pub value_bytes: usize,
    /// Operations of each client in each round.
    pub operations: usize,
    /// Nanoseconds per operation of all clients together: the median of the rounds.
    pub median_ns: f64,
    /// Nanoseconds per operation in the fastest round.
    pub min_ns: f64,
    /// Nanoseconds per operation in the slowest round.
    pub max_ns: f64,
}

impl Cell {
    fn new(series: &Series, stage: &Stage, rounds_ns: &mut [f64]) -> Cell {
        rounds_ns.sort_unstable_by(f64::total_cmp);
        let last = rounds_ns.len() - 1;
        Cell {
            name: series.way.name(),
            variant: series.way.variant(),
            placement: series.placement,
            task: series.task,
            popularity: series.popularity,
            clients: series.clients,
            value_bytes: stage.value_bytes,
            operations: series.operations,
            median_ns: (rounds_ns[last / 2] + rounds_ns[last.div_ceil(2)]) / 2.0,
            min_ns: rounds_ns[0],
            max_ns: rounds_ns[last],
        }
    }
}

/// A run that can start: the machine and the installed programs have been examined.
pub struct Prepared {
    options: Options,
    ways: Vec<Way>,
    machine: Machine,
    peers: Vec<Peer>,
    /// Memory and time that the run needs.
    pub needs: Needs,
}

impl Prepared {
    /// Examines the machine and the installed programs, and checks that memory suffices.
    ///
    /// # Errors
    /// [`PeersError::Options`]; [`PeersError::Memory`] if memory or shared memory is too small.
    pub fn new(options: Options) -> Result<Prepared, PeersError> {
        options.check()?;
        let machine = Machine::detect();
        let peers: Vec<Peer> = System::ALL.into_iter().map(|name| peer(&options, name)).collect();
        let takes_part = |way: &Way| peers.iter().any(|peer| peer.name == way.name() && peer.missing.is_none());
        let ways: Vec<Way> = Way::ALL.into_iter().filter(takes_part).collect();
        let needs = needs(&options, &ways, cores()?.len());
        check_memory(&needs, &machine)?;
        Ok(Prepared { options, ways, machine, peers, needs })
    }

    /// The systems that are missing, one line each.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().filter(|peer| self.options.wants(peer.name)).filter_map(|peer| peer.missing.as_deref())
    }

    /// Carries out the run. `watch` receives the progress, and may end the run.
    ///
    /// # Errors
    /// Errors of a compared system, and any wrong answer; an interruption.
    pub fn run(self, watch: &mut ProgressFn<'_>) -> Result<Report, PeersError> {
        let Prepared { options, ways, machine, mut peers, needs } = self;
        let memcached_threads_ns = match ways.iter().any(|way| way.name() == System::Memcached) {
            true => Some(trial(watch).map_err(|error| error.of(System::Memcached.title()))?),
            false => None,
        };
        let threads = memcached_threads_ns.map_or(1, |[one, two]| if two < one { 2 } else { 1 });
        if let Some(version) =
            peers.iter_mut().find(|peer| peer.name == System::Memcached).and_then(|peer| peer.version.as_mut())
        {
            version.push_str(&format!(" (-t {threads})"));
        }
        let (mut stages, mut cells) = (Vec::new(), Vec::new());
        for stage in Stage::all(&options) {
            let mut testbed = Testbed::open(&options, &stage, &ways, threads, watch)?;
            cells.extend(measure(&options, &stage, &ways, &mut testbed, watch)?);
            testbed.verify(watch)?;
            stages.push(StageReport { value_bytes: stage.value_bytes, records: stage.records, fill: testbed.fill });
        }
        Ok(Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            machine,
            key_bytes: KEY_BYTES,
            rounds: options.rounds,
            seed: options.seed,
            needs,
            peers,
            memcached_threads_ns,
            stages,
            targets: targets(&cells),
            cells,
        })
    }
}

fn trial(watch: &mut ProgressFn<'_>) -> Result<[f64; 2], PeersError> {
    try_threads(directory()?.path(), watch)
}

/// Times every series of a stage: one warm-up round, then the timed rounds.
fn measure(
    options: &Options,
    stage: &Stage,
    ways: &[Way],
    testbed: &mut Testbed,
    watch: &mut ProgressFn<'_>,
) -> Result<Vec<Cell>, PeersError> {
    let series = stage.series(ways, cores()?.len());
    let mut times_ns: Vec<Vec<f64>> = vec![Vec::with_capacity(options.rounds as usize); series.len()];
    let what = format!("timing values of {} bytes", stage.value_bytes);
    let total = series.len() as u64 * u64::from(options.rounds + 1);
    let mut done = 0;
    for round in 0..=options.rounds {
        for (series, times_ns) in series.iter().zip(&mut times_ns) {
            watch(&what, done, total)?;
            done += 1;
            if round == 0 {
                let operations = (series.operations / WARM_UP_DIVISOR).next_multiple_of(crate::measure::MANY);
                testbed.time(series, operations.min(series.operations))?;
            } else {
                times_ns.push(testbed.time(series, series.operations)?);
            }
        }
    }
    Ok(series.iter().zip(&mut times_ns).map(|(series, times_ns)| Cell::new(series, stage, times_ns)).collect())
}

fn peer(options: &Options, name: System) -> Peer {
    let present = |version: &str| Peer { name, version: Some(version.to_owned()), missing: None };
    let absent = |missing: String| Peer { name, version: None, missing: Some(missing) };
    if !options.wants(name) {
        return absent("left out by --only or --skip".to_owned());
    }
    match name {
        System::Guira | System::Raw => present(env!("CARGO_PKG_VERSION")),
        System::Dashmap => present(crate::versions::DASHMAP),
        System::Papaya => present(crate::versions::PAPAYA),
        System::Lmdb => present(crate::versions::LMDB),
        System::Redis => server_peer(name, Kind::Redis),
        System::Memcached => server_peer(name, Kind::Memcached),
    }
}

/// The entry of a server, which takes part if it is installed.
pub fn server_peer(name: System, kind: Kind) -> Peer {
    let version = kind.version();
    let (program, title) = (kind.program(), name.title());
    let how = || format!("{title} is not installed and is left out; to include it: apt-get install {program}");
    let missing = if version.is_none() { Some(how()) } else { None };
    Peer { name, version, missing }
}

/// Refuses a run that needs more memory than is free.
pub fn check_memory(needs: &Needs, machine: &Machine) -> Result<(), PeersError> {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let refusal = |wanted: u64, what: &str, there: u64| {
        let (wanted, there) = (gib(wanted), gib(there));
        let advice = "use smaller --records and --value-memory, or --quick";
        Err(PeersError::Memory(format!("this run needs {wanted} of {what}, but only {there} are free; {advice}")))
    };
    let wanted = needs.memory_bytes + SPARE_BYTES;
    if machine.available_bytes < wanted {
        return refusal(wanted, "memory", machine.available_bytes);
    }
    let shared = rustix::fs::statvfs(SHARED_MEMORY);
    let shared =
        shared.map_err(|errno| PeersError::host(format!("read the free space of {SHARED_MEMORY}"))(errno.into()))?;
    let free = shared.f_bavail.saturating_mul(shared.f_frsize);
    if free < needs.shared_bytes {
        return refusal(needs.shared_bytes, SHARED_MEMORY, free);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insufficient_memory_is_refused_with_both_figures() {
        let machine = Machine { available_bytes: 1 << 30, ..Machine::detect() };
        let needs = Needs { memory_bytes: 3 << 30, shared_bytes: 0, seconds: 1 };
        let error = check_memory(&needs, &machine).unwrap_err().to_string();
        assert!(error.contains("3.2 GiB of memory") && error.contains("only 1.0 GiB are free"), "{error}");
        let machine = Machine { available_bytes: u64::MAX, ..machine };
        let error = check_memory(&Needs { shared_bytes: u64::MAX, ..needs }, &machine).unwrap_err().to_string();
        assert!(error.contains("/dev/shm") && error.contains("--quick"), "{error}");
    }

    #[test]
    fn a_cell_is_the_median_of_its_rounds() {
        let stage = Stage {
            value_bytes: 8,
            records: 100,
            operations: 320,
            popularities: vec![Popularity::Uniform],
            clients: vec![1],
        };
        let series = stage.series(&[Way::Call(System::Guira)], 1)[0];
        let cell = |rounds: &[f64]| Cell::new(&series, &stage, &mut rounds.to_vec());
        let three = cell(&[3.0, 1.0, 8.0]);
        assert_eq!((three.median_ns, three.min_ns, three.max_ns), (3.0, 1.0, 8.0));
        assert_eq!((cell(&[4.0, 1.0]).median_ns, cell(&[7.0]).median_ns), (2.5, 7.0));
    }
}
