//! What a run will do: which contenders, how each is asked, what is timed, how often, and what that needs.
//!
//! A plan is a function of the options and of what is installed; nothing is started to make it.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::draws::Popularity;
use crate::error::PeersError;
use crate::measure::{MANY, Task};
use crate::record::WORD_BYTES;
use crate::systems::lmdb::Reads;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// This project's table.
    Guira,
    /// Bare reads of the same memory.
    Raw,
    /// A map of shards with locks.
    Dashmap,
    /// A map without locks.
    Papaya,
    /// A B+ tree in a mapped file.
    Lmdb,
    /// A server.
    Redis,
    /// A server.
    Memcached,
}

impl System {
    /// Every contender.
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

    /// The name for people.
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
            PeersError::Options(format!("there is no contender {text:?}; there are {names}"))
        })
    }
}

/// A way of asking a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// By calls of its only interface.
    Call(System),
    /// By transactions that serve as many look-ups.
    Lmdb(Reads),
    /// By messages to a server, this many on their way at once.
    Server(System, usize),
}

/// Commands on their way where they are pipelined.
pub const PIPELINE: usize = 16;

impl Way {
    /// Every way, in the order of reports.
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

    /// Which contender.
    #[must_use]
    pub const fn name(self) -> System {
        match self {
            Way::Call(name) | Way::Server(name, _) => name,
            Way::Lmdb(_) => System::Lmdb,
        }
    }

    /// The way in JSON: empty if there is only one.
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

    /// What this way is timed with, when so many clients run at once.
    fn tasks(self, clients: u8) -> &'static [Task] {
        match (self, clients) {
            (Way::Call(System::Raw), 1) => &[Task::Get, Task::DependentGet, Task::GetMany],
            (Way::Call(System::Raw), _) | (Way::Lmdb(Reads::Each), 1) => &[Task::Get],
            (Way::Call(_) | Way::Lmdb(Reads::Long), 1) => &[Task::Get, Task::DependentGet, Task::GetMany, Task::YcsbA],
            (Way::Call(_), _) => &[Task::Get, Task::GetMany, Task::YcsbA],
            (Way::Server(_, 1), 1) => &[Task::Get, Task::GetMany, Task::YcsbA],
            (Way::Lmdb(Reads::Long), _) | (Way::Server(..), _) => &[Task::Get, Task::YcsbA],
            (Way::Lmdb(Reads::Each), _) => &[],
        }
    }

    /// Operations of one measurement, so that each takes about as long: servers take a hundred times as long as calls.
    fn operations(self, task: Task, base: usize) -> usize {
        let divisor = match (self, task) {
            (Way::Call(_), Task::YcsbA) => STEPS_DIVISOR,
            (Way::Call(_), _) => 1,
            (Way::Lmdb(_), Task::YcsbA) => 32,
            (Way::Lmdb(_), _) => 4,
            (Way::Server(_, 1), Task::Get | Task::DependentGet | Task::YcsbA) => 80,
            (Way::Server(..), _) => 12,
        };
        whole_batches(base / divisor)
    }

    /// Roughly what an operation costs, for the estimate only.
    fn cost_ns(self, task: Task, value_bytes: usize) -> u64 {
        let copied = value_bytes as u64 / 8;
        copied
            + match (self, task) {
                (Way::Call(_), _) => 120,
                (Way::Lmdb(_), Task::YcsbA) => 4_000,
                (Way::Lmdb(_), _) => 900,
                (Way::Server(_, 1), Task::Get | Task::DependentGet | Task::YcsbA) => 14_000,
                (Way::Server(..), _) => 1_600,
            }
    }

    /// Bytes each record takes beside its key and value, measured generously.
    fn overhead_bytes(self) -> u64 {
        match self.name() {
            System::Guira => 24,
            System::Raw => 0,
            System::Dashmap | System::Lmdb => 48,
            System::Papaya => 80,
            System::Redis | System::Memcached => 112,
        }
    }
}

/// YCSB-A of calls takes this many times fewer steps than look-ups, and as many are drawn.
const STEPS_DIVISOR: usize = 2;

/// Where a server and its client run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Wherever the kernel puts them.
    Anywhere,
    /// Both on one processor.
    OneCore,
    /// The server on a processor of its own.
    TwoCores,
}

impl Placement {
    /// As people call it; nothing if there is nothing to say.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Placement::Anywhere => "",
            Placement::OneCore => "on the client's core",
            Placement::TwoCores => "on a core of its own",
        }
    }
}

/// What a run is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Records with values of one word.
    pub records: u64,
    /// Look-ups of one measurement of a contender that is called; the others have fixed fractions of it.
    pub operations: usize,
    /// Times everything is measured.
    pub rounds: u32,
    /// Bytes of values that each contender holds when they are longer than a word.
    pub value_memory_bytes: u64,
    /// Seed of keys and draws.
    pub seed: u64,
    /// Only these contenders; all, if there are none.
    pub only: Vec<System>,
    /// All but these.
    pub skip: Vec<System>,
    /// The command line that runs [`serve_helper`](crate::serve_helper) in another process.
    pub helper: Vec<OsString>,
}

/// Rounds of a run, at most.
const ROUNDS_MAX: u32 = 1000;
/// Operations of one measurement, at most: what is drawn for them takes 4 GiB.
const OPERATIONS_MAX: usize = 1 << 26;
/// Records, at most: keys spell 48 bits, and memory for more is rare.
const RECORDS_MAX: u64 = 1 << 32;

impl Options {
    /// Whether this contender takes part.
    #[must_use]
    pub fn wants(&self, name: System) -> bool {
        (self.only.is_empty() || self.only.contains(&name)) && !self.skip.contains(&name)
    }

    /// # Errors
    /// Numbers that cannot be.
    pub(crate) fn check(&self) -> Result<(), PeersError> {
        let bounds = [
            ("rounds", u64::from(self.rounds), 1, u64::from(ROUNDS_MAX)),
            ("operations", self.operations as u64, MANY as u64, OPERATIONS_MAX as u64),
            ("records", self.records, MANY as u64, RECORDS_MAX),
        ];
        for (name, found, min, max) in bounds {
            if !(min..=max).contains(&found) {
                return Err(PeersError::Options(format!("{found} {name}; at least {min}, at most {max}")));
            }
        }
        if !System::ALL.into_iter().any(|name| self.wants(name)) {
            return Err(PeersError::Options("no contender is left".to_owned()));
        }
        Ok(())
    }
}

/// One table of each contender, and what is timed on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Bytes of every value.
    pub value_bytes: usize,
    /// Records.
    pub records: u64,
    /// Look-ups of one measurement of a contender that is called.
    pub operations: usize,
    /// How popular keys are.
    pub popularities: Vec<Popularity>,
    /// How many clients run at once.
    pub clients: Vec<u8>,
}

impl Stage {
    /// The stages of a run: values of one word with everything, then longer values with look-ups only.
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

    /// Whether everything is timed, or look-ups only.
    #[must_use]
    pub const fn is_of_words(&self) -> bool {
        self.value_bytes == WORD_BYTES
    }

    /// Everything that is timed on this stage, in order: what is compared stands together.
    #[must_use]
    pub fn series(&self, ways: &[Way], cores: usize) -> Vec<Series> {
        let mut all = Vec::new();
        for clients in &self.clients {
            for popularity in &self.popularities {
                for task in [Task::Get, Task::DependentGet, Task::GetMany, Task::YcsbA] {
                    let timed = ways.iter().filter(|way| way.tasks(*clients).contains(&task));
                    for way in timed.filter(|_| self.is_of_words() || task == Task::Get) {
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

    /// Steps of YCSB-A that are drawn.
    #[must_use]
    pub const fn steps(&self) -> usize {
        if self.is_of_words() { whole_batches(self.operations / STEPS_DIVISOR) } else { 0 }
    }

    /// Bytes of memory and of shared memory that these contenders take at once.
    fn needs(&self, ways: &[Way]) -> Needs {
        let mut needs = Needs::default();
        let mut last = None;
        for way in ways.iter().filter(|way| last.replace(way.name()) != Some(way.name())) {
            let each = way.overhead_bytes() + self.value_bytes as u64 * if self.is_of_words() { 1 } else { 2 };
            let bytes = if way.name() == System::Raw { 0 } else { self.records * each };
            needs.memory_bytes += bytes;
            if matches!(way.name(), System::Guira | System::Lmdb) {
                needs.shared_bytes += bytes;
            }
        }
        // Both clients' keys and steps, the second one's twice: in its process and for the threads of a map.
        let drawn = self.operations as u64 * 8 + self.steps() as u64 * 24;
        needs.memory_bytes += 3 * drawn * self.popularities.len() as u64;
        needs
    }
}

/// Longer values, and how many times fewer operations they are timed with.
const LONGER_VALUES: [(usize, usize); 3] = [(100, 4), (1024, 16), (65_536, 256)];

/// As many operations, in whole batches of `get_many`, and enough to have a time.
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

/// Something that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Series {
    /// Who, and how it is asked.
    pub way: Way,
    /// What.
    pub task: Task,
    /// With which keys.
    pub popularity: Popularity,
    /// How many at once: processes, or threads where the contender belongs to one process.
    pub clients: u8,
    /// Where a server runs.
    pub placement: Placement,
    /// Operations of each client.
    pub operations: usize,
}

/// What a run needs of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Bytes of memory, shared memory included.
    pub memory_bytes: u64,
    /// Bytes of shared memory.
    pub shared_bytes: u64,
    /// Seconds, roughly.
    pub seconds: u64,
}

/// What a run with these ways needs.
#[must_use]
pub fn needs(options: &Options, ways: &[Way], cores: usize) -> Needs {
    /// Storing a record in one contender, in nanoseconds, roughly.
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
mod tests {
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
    fn no_series_is_there_twice_and_all_have_whole_batches() {
        for stage in Stage::all(&options()) {
            let series = stage.series(&Way::ALL, 2);
            assert_eq!(series.iter().collect::<HashSet<_>>().len(), series.len());
            assert!(series.iter().all(|series| series.operations % MANY == 0 && series.operations > 0));
            let drawn = |series: &Series| if series.task == Task::YcsbA { stage.steps() } else { stage.operations };
            assert!(series.iter().all(|series| series.operations <= drawn(series)));
        }
    }

    #[test]
    fn a_full_run_is_minutes_and_gigabytes() {
        let needs = needs(&options(), &Way::ALL, 2);
        assert!((60..720).contains(&needs.seconds), "{needs:?}");
        assert!((2 << 30..5 << 30).contains(&needs.memory_bytes) && needs.shared_bytes < 2 << 30, "{needs:?}");
    }

    #[test]
    fn contenders_are_chosen() {
        let only = Options { only: vec![System::Guira, System::Lmdb], skip: vec![System::Lmdb], ..options() };
        assert!(only.wants(System::Guira) && !only.wants(System::Lmdb) && !only.wants(System::Redis));
        assert!(Options { only: vec![System::Lmdb], skip: vec![System::Lmdb], ..options() }.check().is_err());
        assert!(Options { rounds: 0, ..options() }.check().is_err());
        assert!(options().check().is_ok());
    }

    #[test]
    fn one_core_has_nothing_to_place() {
        let stage = &Stage::all(&options())[0];
        assert!(stage.series(&Way::ALL, 1).iter().all(|series| series.placement == Placement::Anywhere));
    }
}
