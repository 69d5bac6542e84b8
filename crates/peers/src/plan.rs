//! The plan of a run: the systems, their access modes, the series that are timed, and the memory and time needed.
//!
//! A plan is a function of the options and of the installed programs; planning starts nothing.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::draws::Popularity;
use crate::error::PeersError;
use crate::measure::{MANY, Task};
use crate::record::WORD_BYTES;
use crate::systems::lmdb::Reads;

/// A system that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// A table of Guira.
    Guira,
    /// Plain reads of the memory of Guira's table.
    Raw,
    /// dashmap: a map of shards with locks.
    Dashmap,
    /// papaya: a map without locks.
    Papaya,
    /// LMDB: a B+ tree in a mapped file.
    Lmdb,
    /// The server redis-server.
    Redis,
    /// The server memcached.
    Memcached,
}

impl System {
    /// Upper estimate of the bytes that a record takes beyond its key and value.
    pub(crate) fn overhead_bytes(self) -> u64 {
        match self {
            System::Guira => 24,
            System::Raw => 0,
            System::Dashmap | System::Lmdb => 48,
            System::Papaya => 80,
            System::Redis | System::Memcached => 112,
        }
    }

    /// Every system.
    pub const ALL: [System; 7] =
        [System::Guira, System::Raw, System::Dashmap, System::Papaya, System::Lmdb, System::Redis, System::Memcached];

    /// The name in options and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            System::Guira => "guira",
            System::Raw => "raw",
            System::Dashmap => "dashmap",
            System::Papaya => "papaya",
            System::Lmdb => "lmdb",
            System::Redis => "redis",
            System::Memcached => "memcached",
        }
    }

    /// The name in texts for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            System::Guira => "Guira",
            System::Raw => "raw memory",
            System::Dashmap => "dashmap",
            System::Papaya => "papaya",
            System::Lmdb => "LMDB",
            System::Redis => "Redis",
            System::Memcached => "memcached",
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for System {
    type Err = PeersError;

    fn from_str(text: &str) -> Result<System, PeersError> {
        System::ALL.into_iter().find(|name| name.as_str() == text).ok_or_else(|| {
            let names = System::ALL.map(System::as_str).join(", ");
            PeersError::Options(format!("unknown system {text:?}; the systems are {names}"))
        })
    }
}

/// An access mode of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Calls of its only interface.
    Call(System),
    /// Read transactions with this many lookups each.
    Lmdb(Reads),
    /// Messages to a server, this many in flight.
    Server(System, usize),
}

/// Number of commands in flight where they are pipelined.
pub const PIPELINE: usize = 16;

impl Way {
    /// Every access mode, in the order of reports.
    pub const ALL: [Way; 10] = [
        Way::Call(System::Guira),
        Way::Call(System::Raw),
        Way::Call(System::Dashmap),
        Way::Call(System::Papaya),
        Way::Lmdb(Reads::Long),
        Way::Lmdb(Reads::Each),
        Way::Server(System::Redis, 1),
        Way::Server(System::Redis, PIPELINE),
        Way::Server(System::Memcached, 1),
        Way::Server(System::Memcached, PIPELINE),
    ];

    /// The system.
    #[must_use]
    pub const fn name(self) -> System {
        match self {
            Way::Call(name) | Way::Server(name, _) => name,
            Way::Lmdb(_) => System::Lmdb,
        }
    }

    /// The name of the access mode in JSON; empty if the system has only one.
    #[must_use]
    pub const fn variant(self) -> &'static str {
        match self {
            Way::Call(_) => "",
            Way::Lmdb(Reads::Long) => "long transaction",
            Way::Lmdb(Reads::Each) => "transaction each",
            Way::Server(_, 1) => "depth 1",
            Way::Server(_, _) => "pipeline 16",
        }
    }

    /// The tasks that are timed in this access mode with this many concurrent clients.
    fn tasks(self, clients: u8) -> &'static [Task] {
        match (self, clients) {
            (Way::Call(System::Raw), 1) => &[Task::Get, Task::DependentGet, Task::GetMany],
            (Way::Call(System::Raw), _) | (Way::Lmdb(Reads::Each), 1) => &[Task::Get],
            (Way::Call(_) | Way::Lmdb(Reads::Long), 1) => &Task::ALL,
            (Way::Call(_), _) => &[Task::Get, Task::GetMany, Task::YcsbA],
            (Way::Server(_, 1), 1) => &[Task::Get, Task::GetMany, Task::YcsbA],
            (Way::Lmdb(Reads::Long), _) | (Way::Server(..), _) => &[Task::Get, Task::YcsbA],
            (Way::Lmdb(Reads::Each), _) => &[],
        }
    }

    /// Operations of one measurement, chosen so that all measurements take about as long: a server takes a hundred
    /// times as long as a call.
    fn operations(self, task: Task, base: usize) -> usize {
        let divisor = match (self, task) {
            (Way::Call(_), Task::YcsbA | Task::Update) => STEPS_DIVISOR,
            (Way::Call(_), _) => 1,
            (Way::Lmdb(_), Task::YcsbA | Task::Update) => 32,
            (Way::Lmdb(_), _) => 4,
            (Way::Server(_, 1), Task::Get | Task::DependentGet | Task::YcsbA) => 80,
            (Way::Server(..), _) => 12,
        };
        whole_batches(base / divisor)
    }

    /// Approximate nanoseconds of an operation, for the estimate only.
    fn cost_ns(self, task: Task, value_bytes: usize) -> u64 {
        let copied = value_bytes as u64 / 8;
        copied
            + match (self, task) {
                (Way::Call(_), _) => 120,
                (Way::Lmdb(_), Task::YcsbA | Task::Update) => 4_000,
                (Way::Lmdb(_), _) => 900,
                (Way::Server(_, 1), Task::Get | Task::DependentGet | Task::YcsbA) => 14_000,
                (Way::Server(..), _) => 1_600,
            }
    }
}

/// Divisor that turns the number of lookups in a system that is called into its number of YCSB-A steps, which is the
/// number of steps drawn.
const STEPS_DIVISOR: usize = 2;

/// Placement of a server and its client on processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Chosen by the kernel.
    Anywhere,
    /// Both on one processor.
    OneCore,
    /// The server has a processor of its own.
    TwoCores,
}

impl Placement {
    /// The description in texts for people; empty if there is nothing to add.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Placement::Anywhere => "",
            Placement::OneCore => "on the client's core",
            Placement::TwoCores => "on a core of its own",
        }
    }
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of records with values of one word.
    pub records: u64,
    /// Lookups of one measurement of a system that is called; other measurements take fixed fractions of this number.
    pub operations: usize,
    /// Number of times that everything is measured.
    pub rounds: u32,
    /// Bytes of values in each system when they are longer than a word.
    pub value_memory_bytes: u64,
    /// Seed of keys and draws.
    pub seed: u64,
    /// The systems that take part; empty for all.
    pub only: Vec<System>,
    /// The systems that do not take part.
    pub skip: Vec<System>,
    /// The command line that runs [`serve_helper`](crate::serve_helper) in another process.
    pub helper: Vec<OsString>,
}

/// Maximum number of rounds of a run.
const ROUNDS_MAX: u32 = 1000;
/// Maximum number of operations of one measurement: their draws take 4 GiB.
const OPERATIONS_MAX: usize = 1 << 26;
/// Maximum number of records: keys hold 48 bits, and few machines have memory for more.
const RECORDS_MAX: u64 = 1 << 32;

impl Options {
    /// Whether the system takes part.
    #[must_use]
    pub fn wants(&self, name: System) -> bool {
        (self.only.is_empty() || self.only.contains(&name)) && !self.skip.contains(&name)
    }

    /// Checks the bounds of all numbers.
    ///
    /// # Errors
    /// [`PeersError::Options`] with the first number out of bounds.
    pub(crate) fn check(&self) -> Result<(), PeersError> {
        let bounds = [
            ("rounds", u64::from(self.rounds), 1, u64::from(ROUNDS_MAX)),
            ("operations", self.operations as u64, MANY as u64, OPERATIONS_MAX as u64),
            ("records", self.records, MANY as u64, RECORDS_MAX),
        ];
        for (name, found, min, max) in bounds {
            if !(min..=max).contains(&found) {
                return Err(PeersError::Options(format!(
                    "{found} {name} are out of range: at least {min}, at most {max}"
                )));
            }
        }
        if !System::ALL.into_iter().any(|name| self.wants(name)) {
            return Err(PeersError::Options("--only and --skip leave no system".to_owned()));
        }
        Ok(())
    }
}

/// One data set, and what is timed on it in every system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Bytes of every value.
    pub value_bytes: usize,
    /// Number of records.
    pub records: u64,
    /// Lookups of one measurement of a system that is called.
    pub operations: usize,
    /// Popularities of keys.
    pub popularities: Vec<Popularity>,
    /// Numbers of concurrent clients.
    pub clients: Vec<u8>,
}

impl Stage {
    /// The stages of a run: values of one word with lookups and YCSB-A, then longer values with single lookups and
    /// updates.
    #[must_use]
    pub fn all(options: &Options) -> Vec<Stage> {
        let word = Stage {
            value_bytes: WORD_BYTES,
            records: options.records,
            operations: whole_batches(options.operations),
            popularities: vec![Popularity::Uniform, Popularity::Zipf],
            clients: vec![1, 2],
        };
        let longer = LONGER_VALUES.map(|(value_bytes, divisor)| Stage {
            value_bytes,
            records: (options.value_memory_bytes / value_bytes as u64).clamp(MANY as u64, options.records),
            operations: whole_batches(options.operations / divisor),
            popularities: vec![Popularity::Uniform],
            clients: vec![1],
        });
        std::iter::once(word).chain(longer).collect()
    }

    /// Whether values have one word.
    #[must_use]
    pub const fn is_of_words(&self) -> bool {
        self.value_bytes == WORD_BYTES
    }

    /// Whether `task` is timed.
    const fn times(&self, task: Task) -> bool {
        match task {
            Task::Get => true,
            Task::DependentGet | Task::GetMany | Task::YcsbA => self.is_of_words(),
            Task::Update => !self.is_of_words(),
        }
    }

    /// Every series of this stage, in the order of measuring: series that are compared with each other are adjacent.
    #[must_use]
    pub fn series(&self, ways: &[Way], cores: usize) -> Vec<Series> {
        let mut all = Vec::new();
        for clients in &self.clients {
            for popularity in &self.popularities {
                for task in Task::ALL.into_iter().filter(|task| self.times(*task)) {
                    for way in ways.iter().filter(|way| way.tasks(*clients).contains(&task)) {
                        let operations = way.operations(task, self.operations);
                        for placement in placements(*way, *clients, cores) {
                            all.push(Series {
                                way: *way,
                                task,
                                popularity: *popularity,
                                clients: *clients,
                                placement: *placement,
                                operations,
                            });
                        }
                    }
                }
            }
        }
        all
    }

    /// Number of steps of YCSB-A that are drawn.
    #[must_use]
    pub const fn steps(&self) -> usize {
        if self.is_of_words() { whole_batches(self.operations / STEPS_DIVISOR) } else { 0 }
    }

    /// Memory and shared memory that these systems take at the same time.
    fn needs(&self, ways: &[Way]) -> Needs {
        let mut needs = Needs::default();
        let mut last = None;
        for way in ways.iter().filter(|way| last.replace(way.name()) != Some(way.name())) {
            let each = way.name().overhead_bytes() + self.value_bytes as u64 * if self.is_of_words() { 1 } else { 2 };
            let bytes = if way.name() == System::Raw { 0 } else { self.records * each };
            needs.memory_bytes += bytes;
            if matches!(way.name(), System::Guira | System::Lmdb) {
                needs.shared_bytes += bytes;
            }
        }
        // Keys and steps of both clients, those of the second twice: in its process, and for the second thread of a
        // map.
        let drawn = self.operations as u64 * 8 + self.steps() as u64 * 24;
        needs.memory_bytes += 3 * drawn * self.popularities.len() as u64;
        needs
    }
}

/// Lengths of longer values, each with the number by which its number of operations is divided.
const LONGER_VALUES: [(usize, usize); 3] = [(100, 4), (1024, 16), (65_536, 256)];

/// Rounds down to whole batches of `get_many`, but to no fewer than ten.
const fn whole_batches(operations: usize) -> usize {
    let batches = operations / MANY;
    if batches < 10 { 10 * MANY } else { batches * MANY }
}

fn placements(way: Way, clients: u8, cores: usize) -> &'static [Placement] {
    match way {
        Way::Server(..) if clients == 1 && cores > 1 => &[Placement::OneCore, Placement::TwoCores],
        _ => &[Placement::Anywhere],
    }
}

/// A series of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Series {
    /// The access mode, which includes the system.
    pub way: Way,
    /// The task.
    pub task: Task,
    /// Popularity of the keys.
    pub popularity: Popularity,
    /// Number of concurrent clients: processes, or threads where the system is in one process.
    pub clients: u8,
    /// Placement of the server.
    pub placement: Placement,
    /// Operations of each client.
    pub operations: usize,
}

/// Memory and time that a run needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Bytes of memory, shared memory included.
    pub memory_bytes: u64,
    /// Bytes of shared memory.
    pub shared_bytes: u64,
    /// Approximate seconds.
    pub seconds: u64,
}

/// Computes what a run with these access modes needs.
#[must_use]
pub fn needs(options: &Options, ways: &[Way], cores: usize) -> Needs {
    /// Approximate nanoseconds for storing a record in one system.
    const LOAD_NS: u64 = 700;
    let mut total = Needs { seconds: 1, ..Needs::default() };
    for stage in Stage::all(options) {
        let needs = stage.needs(ways);
        total.memory_bytes = total.memory_bytes.max(needs.memory_bytes);
        total.shared_bytes = total.shared_bytes.max(needs.shared_bytes);
        let one_round: u64 = stage.series(ways, cores).iter().map(|series| series.estimate_ns(&stage)).sum();
        let loads = stage.records * ways.len() as u64 * (LOAD_NS + stage.value_bytes as u64 / 2);
        total.seconds += (one_round * (u64::from(options.rounds) + 1) + loads) / 1_000_000_000;
    }
    total
}

impl Series {
    fn estimate_ns(&self, stage: &Stage) -> u64 {
        self.operations as u64 * self.way.cost_ns(self.task, stage.value_bytes)
    }
}

#[cfg(test)]
pub mod tests {
    use std::collections::HashSet;

    use super::*;

    pub fn options() -> Options {
        Options {
            records: 10_000_000,
            operations: 4_000_000,
            rounds: 5,
            value_memory_bytes: 256 << 20,
            seed: 1,
            only: Vec::new(),
            skip: Vec::new(),
            helper: Vec::new(),
        }
    }

    #[test]
    fn names_parse_and_print() {
        for name in System::ALL {
            assert_eq!(name.to_string().parse::<System>().unwrap(), name);
            assert_eq!(serde_json::to_value(name).unwrap(), name.as_str());
        }
        assert!("valkey".parse::<System>().unwrap_err().to_string().contains("redis"));
    }

    #[test]
    fn series_are_unique_and_have_whole_batches() {
        for stage in Stage::all(&options()) {
            let series = stage.series(&Way::ALL, 2);
            assert_eq!(series.iter().collect::<HashSet<_>>().len(), series.len());
            assert!(series.iter().all(|series| series.operations % MANY == 0 && series.operations > 0));
            let drawn = |series: &Series| if series.task == Task::YcsbA { stage.steps() } else { stage.operations };
            assert!(series.iter().all(|series| series.operations <= drawn(series)));
        }
    }

    #[test]
    fn a_full_run_needs_minutes_and_gigabytes() {
        let needs = needs(&options(), &Way::ALL, 2);
        assert!((60..720).contains(&needs.seconds), "{needs:?}");
        assert!((2 << 30..5 << 30).contains(&needs.memory_bytes) && needs.shared_bytes < 2 << 30, "{needs:?}");
    }

    #[test]
    fn options_choose_the_systems() {
        let only = Options { only: vec![System::Guira, System::Lmdb], skip: vec![System::Lmdb], ..options() };
        assert!(only.wants(System::Guira) && !only.wants(System::Lmdb) && !only.wants(System::Redis));
        assert!(Options { only: vec![System::Lmdb], skip: vec![System::Lmdb], ..options() }.check().is_err());
        assert!(Options { rounds: 0, ..options() }.check().is_err());
        assert!(options().check().is_ok());
    }

    #[test]
    fn one_core_leaves_no_choice_of_placement() {
        let stage = &Stage::all(&options())[0];
        assert!(stage.series(&Way::ALL, 1).iter().all(|series| series.placement == Placement::Anywhere));
    }
}
