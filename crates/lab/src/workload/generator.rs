//! The mixes of the core workloads, and the sequence of operations of one worker.
//!
//! Invariants: a worker reads only records that it knows to exist (loaded records, and its own inserts), and inserts
//! only records whose number, minus the number of loaded records, equals its own number modulo the number of workers.

use std::fmt;
use std::str::FromStr;

use super::{Latest, RECORDS_MAX, Rng, ScrambledZipfian, THETA_MAX, WorkloadError};

/// Maximum number of workers of a workload: 2¹⁶, far above any machine's cores. It keeps record numbers within 64 bits.
pub const WORKERS_MAX: u32 = 1 << 16;

/// An operation on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Read the value.
    Read,
    /// Replace the value of a record that exists.
    Update,
    /// Add a record that does not exist yet.
    Insert,
    /// Read the value, then replace it by one made from it: two operations of a store.
    ReadModifyWrite,
}

/// The core workloads of YCSB (Cooper et al., SoCC'10), except E, which scans; and those of RCuckoo's figure 7, which
/// insert: A', B' and W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkloadName {
    /// Update heavy: 50 % reads, 50 % updates, Zipf.
    A,
    /// Insert heavy, A' in RCuckoo's figure 7: 50 % reads of the loaded records, Zipf, 50 % inserts.
    APrime,
    /// Read mostly: 95 % reads, 5 % updates, Zipf.
    B,
    /// Some inserts, B' in RCuckoo's figure 7: 95 % reads of the loaded records, Zipf, 5 % inserts.
    BPrime,
    /// Read only, Zipf.
    C,
    /// Read latest: 95 % reads, most of them of recent records, 5 % inserts.
    D,
    /// 50 % reads, 50 % read-modify-writes, Zipf.
    F,
    /// Insert only.
    W,
}

impl WorkloadName {
    /// Every workload, in alphabetical order.
    pub const ALL: [Self; 8] = [Self::A, Self::APrime, Self::B, Self::BPrime, Self::C, Self::D, Self::F, Self::W];

    /// Share of reads, in percent. All other operations are [`WorkloadName::other_operation`].
    #[must_use]
    pub const fn read_percent(self) -> u64 {
        match self {
            Self::A | Self::APrime | Self::F => 50,
            Self::B | Self::BPrime | Self::D => 95,
            Self::C => 100,
            Self::W => 0,
        }
    }

    /// Whether some operations insert records.
    pub const fn inserts(self) -> bool {
        self.read_percent() < 100 && matches!(self.other_operation(), Operation::Insert)
    }

    /// The operation that is not a read.
    #[must_use]
    pub const fn other_operation(self) -> Operation {
        match self {
            Self::A | Self::B => Operation::Update,
            Self::C => Operation::Read,
            Self::APrime | Self::BPrime | Self::D | Self::W => Operation::Insert,
            Self::F => Operation::ReadModifyWrite,
        }
    }
}

impl fmt::Display for WorkloadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::A => "A",
            Self::APrime => "A'",
            Self::B => "B",
            Self::BPrime => "B'",
            Self::C => "C",
            Self::D => "D",
            Self::F => "F",
            Self::W => "W",
        })
    }
}

impl FromStr for WorkloadName {
    type Err = WorkloadError;

    /// Reads the letter, in either case, and its prime.
    fn from_str(name: &str) -> Result<Self, WorkloadError> {
        match name {
            "A" | "a" => Ok(Self::A),
            "A'" | "a'" => Ok(Self::APrime),
            "B" | "b" => Ok(Self::B),
            "B'" | "b'" => Ok(Self::BPrime),
            "C" | "c" => Ok(Self::C),
            "D" | "d" => Ok(Self::D),
            "F" | "f" => Ok(Self::F),
            "W" | "w" => Ok(Self::W),
            _ => Err(WorkloadError::UnknownName { name: name.to_owned() }),
        }
    }
}

/// The parameters of a workload. With the worker's number they determine its sequence of operations.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSpec {
    /// The mix.
    pub name: WorkloadName,
    /// Records loaded before the run, numbered from 0. At most [`RECORDS_MAX`]; 0 only for workload W.
    pub records: u64,
    /// Zipf exponent in 0 to 2: 0 is uniform, 0.99 is what YCSB and RCuckoo use. Workload W checks and ignores it.
    pub theta: f64,
    /// Seed of all randomness. Each worker draws from a stream of its own.
    pub seed: u64,
}

/// The endless sequence of operations of one worker.
///
/// Two generators made from equal arguments return equal sequences. A clone goes on from the same point.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    name: WorkloadName,
    records: u64,
    worker: u32,
    workers: u32,
    /// Records this worker has inserted so far.
    inserted: u64,
    choice: Choice,
}

/// The method of choosing an existing record.
#[derive(Clone, Debug)]
enum Choice {
    /// Workloads A, A', B, B', C, F: popular records are scattered.
    Scrambled(ScrambledZipfian),
    /// Workload D: over positions in the order of creation as this worker knows it.
    Latest(Latest),
    /// Workload W, which never chooses an existing record.
    Nothing,
}

impl Generator {
    /// The sequence of worker number `worker` of `workers`, which are numbered from 0.
    ///
    /// Computes zeta in time linear in the records (see [`Zipfian::new`](super::Zipfian::new)). For many workers,
    /// [`Generator::for_all`] computes it only once.
    ///
    /// # Errors
    /// Any [`WorkloadError`] except [`WorkloadError::UnknownName`].
    pub fn new(spec: &WorkloadSpec, worker: u32, workers: u32) -> Result<Self, WorkloadError> {
        if worker >= workers {
            return Err(WorkloadError::WorkerOutOfRange { worker, workers });
        }
        if workers > WORKERS_MAX {
            return Err(WorkloadError::TooManyWorkers { workers });
        }
        Ok(Self {
            rng: Rng::stream(spec.seed, u64::from(worker)),
            name: spec.name,
            records: spec.records,
            worker,
            workers,
            inserted: 0,
            choice: Choice::new(spec)?,
        })
    }

    /// The sequences of all workers, in order. They equal those of [`Generator::new`], but zeta is computed once.
    ///
    /// # Errors
    /// The errors of [`Generator::new`]; also an error if there are no workers.
    pub fn for_all(spec: &WorkloadSpec, workers: u32) -> Result<Vec<Self>, WorkloadError> {
        let first = Self::new(spec, 0, workers)?;
        let numbered = |worker| Self { rng: Rng::stream(spec.seed, u64::from(worker)), worker, ..first.clone() };
        Ok((0..workers).map(numbered).collect())
    }

    /// The next operation and the number of its record.
    ///
    /// An insert counts as done: workload D may read the record at once. After an insert that failed, the driver must
    /// expect misses.
    #[expect(clippy::should_implement_trait, reason = "endless: an iterator would make every caller unwrap an Option")]
    #[inline]
    pub fn next(&mut self) -> (Operation, u64) {
        let operation =
            if self.rng.below(100) < self.name.read_percent() { Operation::Read } else { self.name.other_operation() };
        let record = match operation {
            Operation::Insert => self.insert(),
            Operation::Read | Operation::Update | Operation::ReadModifyWrite => self.choose(),
        };
        (operation, record)
    }

    /// Number of records this worker has inserted so far.
    #[must_use]
    pub const fn inserted(&self) -> u64 {
        self.inserted
    }

    /// The records this worker has inserted so far, in order.
    pub fn inserted_records(&self) -> impl Iterator<Item = u64> + use<> {
        let (first, step) = (self.own_record(0), u64::from(self.workers));
        (0..self.inserted).map(move |index| first + index * step)
    }

    /// Takes the next new record of this worker.
    fn insert(&mut self) -> u64 {
        let record = self.own_record(self.inserted);
        self.inserted += 1;
        if let Choice::Latest(latest) = &mut self.choice {
            latest.push();
        }
        record
    }

    /// Draws a record that this worker knows to exist.
    #[inline]
    fn choose(&mut self) -> u64 {
        match &self.choice {
            Choice::Scrambled(scrambled) => scrambled.sample(&mut self.rng),
            Choice::Latest(latest) => {
                let position = latest.sample(&mut self.rng);
                position.checked_sub(self.records).map_or(position, |index| self.own_record(index))
            }
            Choice::Nothing => unreachable!("workload {} draws no existing record", self.name),
        }
    }

    /// The record of this worker's insert number `index`.
    const fn own_record(&self, index: u64) -> u64 {
        // No overflow: with both maxima there is room for 2^47 inserts, which take one worker weeks at 10^8 a second.
        self.records + self.worker as u64 + index * self.workers as u64
    }
}

impl Choice {
    fn new(spec: &WorkloadSpec) -> Result<Self, WorkloadError> {
        let &WorkloadSpec { name, records, theta, .. } = spec;
        match name {
            WorkloadName::A
            | WorkloadName::APrime
            | WorkloadName::B
            | WorkloadName::BPrime
            | WorkloadName::C
            | WorkloadName::F => Ok(Self::Scrambled(ScrambledZipfian::new(records, theta)?)),
            WorkloadName::D => Ok(Self::Latest(Latest::new(records, theta)?)),
            WorkloadName::W if records > RECORDS_MAX => Err(WorkloadError::TooManyRecords { records }),
            WorkloadName::W if !(0.0..=THETA_MAX).contains(&theta) => Err(WorkloadError::ThetaOutOfRange { theta }),
            WorkloadName::W => Ok(Self::Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const SEED: u64 = 20_250_707;

    fn spec(name: WorkloadName) -> WorkloadSpec {
        WorkloadSpec { name, records: 1000, theta: 0.99, seed: SEED }
    }

    fn take(generator: &mut Generator, operations: usize) -> Vec<(Operation, u64)> {
        (0..operations).map(|_| generator.next()).collect()
    }

    #[test]
    fn names_parse_and_print() {
        for name in WorkloadName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
            assert_eq!(name.to_string().to_lowercase().parse(), Ok(name));
        }
        for unknown in ["", "E", "AA", " A", "C'"] {
            assert_eq!(unknown.parse::<WorkloadName>(), Err(WorkloadError::UnknownName { name: unknown.to_owned() }));
        }
        assert_eq!(format!("{:>3}", WorkloadName::A), "  A");
    }

    #[test]
    fn equal_arguments_give_equal_sequences() {
        for name in WorkloadName::ALL {
            let sequence = |seed, worker| {
                take(&mut Generator::new(&WorkloadSpec { seed, ..spec(name) }, worker, 4).unwrap(), 2000)
            };
            assert_eq!(sequence(SEED, 1), sequence(SEED, 1), "{name}");
            assert_ne!(sequence(SEED, 1), sequence(SEED, 2), "{name}: two workers");
            if name != WorkloadName::W {
                assert_ne!(sequence(SEED, 1), sequence(SEED + 1, 1), "{name}: two seeds");
            }
            let all = Generator::for_all(&spec(name), 4).unwrap();
            assert_eq!(all.len(), 4);
            for (mut generator, worker) in all.into_iter().zip(0..) {
                assert_eq!(take(&mut generator, 2000), sequence(SEED, worker), "{name}: for_all");
            }
        }
    }

    #[test]
    fn mixes_have_their_documented_shares() {
        const OPERATIONS: usize = 200_000;
        for (name, percent) in [
            (WorkloadName::A, [50, 50, 0, 0]),
            (WorkloadName::APrime, [50, 0, 50, 0]),
            (WorkloadName::B, [95, 5, 0, 0]),
            (WorkloadName::BPrime, [95, 0, 5, 0]),
            (WorkloadName::C, [100, 0, 0, 0]),
            (WorkloadName::D, [95, 0, 5, 0]),
            (WorkloadName::F, [50, 0, 0, 50]),
            (WorkloadName::W, [0, 0, 100, 0]),
        ] {
            let mut counts = [0_i64; 4];
            for (operation, _) in take(&mut Generator::new(&spec(name), 0, 1).unwrap(), OPERATIONS) {
                counts[operation as usize] += 1;
            }
            for (count, percent) in counts.into_iter().zip(percent) {
                let expected = OPERATIONS as i64 * percent / 100;
                // Five standard deviations of a binomial count; none at 0 and 100 %.
                let allowed = 5.0 * (expected as f64 * (100 - percent) as f64 / 100.0).sqrt();
                assert!((count - expected).abs() as f64 <= allowed, "{name}: {counts:?}");
            }
        }
    }

    #[test]
    fn inserts_are_new_and_disjoint() {
        for name in [WorkloadName::APrime, WorkloadName::BPrime, WorkloadName::D, WorkloadName::W] {
            let mut seen = HashSet::new();
            for (mut generator, worker) in Generator::for_all(&spec(name), 7).unwrap().into_iter().zip(0_u64..) {
                let operations = take(&mut generator, 5000);
                let inserts = operations.iter().filter(|(operation, _)| *operation == Operation::Insert);
                for (index, &(_, record)) in (0..).zip(inserts) {
                    assert_eq!(record, 1000 + worker + 7 * index, "{name}");
                    assert!(seen.insert(record), "{name}: record {record} twice");
                }
                assert!(generator.inserted() > 100);
            }
        }
    }

    #[test]
    fn reads_and_updates_stay_within_the_loaded_records() {
        for name in [WorkloadName::A, WorkloadName::B, WorkloadName::C, WorkloadName::F] {
            for theta in [0.0, 0.99, 1.5] {
                let mut generator = Generator::new(&WorkloadSpec { theta, ..spec(name) }, 0, 1).unwrap();
                assert!(take(&mut generator, 20_000).iter().all(|&(_, record)| record < 1000), "{name}, theta {theta}");
            }
        }
    }

    /// [`WorkloadName::APrime`] and [`WorkloadName::BPrime`] never read what was inserted, so that the mix of hits
    /// stays that of the loaded records.
    #[test]
    fn primed_workloads_read_loaded_records() {
        for name in [WorkloadName::APrime, WorkloadName::BPrime] {
            let mut generator = Generator::new(&spec(name), 1, 2).unwrap();
            let is_loaded =
                |(operation, record): &(Operation, u64)| (*operation == Operation::Read) == (*record < 1000);
            assert!(take(&mut generator, 20_000).iter().all(is_loaded), "{name}");
        }
    }

    #[test]
    fn workload_d_reads_only_records_the_worker_knows() {
        let (worker, workers) = (2, 3);
        let mut generator = Generator::new(&spec(WorkloadName::D), worker, workers).unwrap();
        let mut known: Vec<u64> = (0..1000).collect();
        let mut newest_reads = 0;
        for (operation, record) in take(&mut generator, 50_000) {
            if operation == Operation::Insert {
                known.push(record);
                continue;
            }
            let age = known.iter().rev().position(|&each| each == record);
            let age = age.unwrap_or_else(|| panic!("record {record} was read before its insert"));
            newest_reads += u32::from(age == 0);
        }
        // The newest of 1000 to 3500 records has 1 / zeta of the reads: about 1/7.5 to 1/9.
        let share = f64::from(newest_reads) / 47_500.0;
        assert!((0.105..0.135).contains(&share), "{share}");
    }

    #[test]
    fn only_insert_workloads_start_from_no_records() {
        let mut generator =
            Generator::new(&WorkloadSpec { records: 0, ..spec(WorkloadName::W) }, 0, 2).expect("W needs no records");
        assert_eq!(take(&mut generator, 2), [(Operation::Insert, 0), (Operation::Insert, 2)]);
        for name in WorkloadName::ALL.into_iter().filter(|&name| name != WorkloadName::W) {
            let empty = WorkloadSpec { records: 0, ..spec(name) };
            assert_eq!(Generator::new(&empty, 0, 1).err(), Some(WorkloadError::NoRecords), "{name}");
        }
    }

    #[test]
    fn bad_parameters_are_refused() {
        for name in WorkloadName::ALL {
            let error = |spec: WorkloadSpec, worker, workers| Generator::new(&spec, worker, workers).err();
            let (worker, workers) = (3, 3);
            let expected = WorkloadError::WorkerOutOfRange { worker, workers };
            assert_eq!(error(spec(name), worker, workers), Some(expected));
            let expected = WorkloadError::WorkerOutOfRange { worker: 0, workers: 0 };
            assert_eq!(Generator::for_all(&spec(name), 0).err(), Some(expected));
            let workers = WORKERS_MAX + 1;
            assert_eq!(error(spec(name), 0, workers), Some(WorkloadError::TooManyWorkers { workers }));
            let records = RECORDS_MAX + 1;
            let many = WorkloadSpec { records, ..spec(name) };
            assert_eq!(error(many, 0, 1), Some(WorkloadError::TooManyRecords { records }));
            for theta in [-0.5, 2.5, f64::NAN, f64::INFINITY] {
                let skewed = WorkloadSpec { theta, ..spec(name) };
                assert!(matches!(error(skewed, 0, 1), Some(WorkloadError::ThetaOutOfRange { .. })), "{name}, {theta}");
            }
        }
    }
}
