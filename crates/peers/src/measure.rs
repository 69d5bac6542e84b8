//! The timed loops: one for each task, the same for every system, compiled separately for each.
//!
//! Invariant: a loop returns a time only if every lookup had the right answer; any other answer is an error.

use std::hint::black_box;

use serde::{Deserialize, Serialize};

use crate::draws::{Draws, Step};
use crate::error::PeersError;
use crate::record::{Key, Records, ValueEnds, difference};

/// Keys per `get_many`.
pub const MANY: usize = 32;

/// The kind of operation that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Lookups one after the other. The processor may start the next one before the previous one is done.
    Get,
    /// Lookups each of which needs the value of the previous one to choose its key, so that nothing overlaps.
    DependentGet,
    /// Lookups of 32 keys at once.
    GetMany,
    /// YCSB-A: half lookups, half updates.
    YcsbA,
    /// Updates of whole values.
    Update,
}

impl Task {
    /// Every task, in the order of reports.
    pub const ALL: [Task; 5] = [Task::Get, Task::DependentGet, Task::GetMany, Task::YcsbA, Task::Update];

    /// The name in texts for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Task::Get => "get, back to back",
            Task::DependentGet => "get, each dependent on the last",
            Task::GetMany => "get_many of 32 keys",
            Task::YcsbA => "YCSB-A: half get, half update",
            Task::Update => "update",
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The kind of operation that is timed.
    pub task: Task,
    /// Number of operations, where each key of a `get_many` counts as one; at most the number of draws.
    pub operations: usize,
    /// The start in nanoseconds of the monotonic clock, which all processes share; `None` starts at once.
    pub start_ns: Option<u64>,
}

/// A client of a system, ready to be measured.
pub trait Runner {
    /// Runs a job and returns its time in nanoseconds.
    ///
    /// # Errors
    /// Errors of the compared system, and every wrong answer.
    fn run(&mut self, job: &Job, draws: &Draws) -> Result<u64, PeersError>;

    /// Looks up these keys and compares every byte, untimed.
    ///
    /// # Errors
    /// Same as [`Runner::run`].
    fn verify(&mut self, keys: &[Key], records: &Records) -> Result<(), PeersError>;
}

/// A client of a system that is called directly, without messages.
pub trait Client {
    /// Reads the value of `key` and returns its ends. A value longer than a word is first copied to a buffer.
    ///
    /// # Errors
    /// Errors of the compared system; a missing key.
    fn get(&mut self, key: &Key) -> Result<ValueEnds, PeersError>;

    /// Reads the values of `keys` and returns their ends, in the order of the keys.
    ///
    /// # Errors
    /// Same as [`Client::get`].
    #[inline(always)]
    fn get_many(&mut self, keys: &[Key; MANY], seen: &mut [ValueEnds; MANY]) -> Result<(), PeersError> {
        for (key, seen) in keys.iter().zip(seen) {
            *seen = self.get(key)?;
        }
        Ok(())
    }

    /// Replaces the value of `key`.
    ///
    /// # Errors
    /// Errors of the compared system; a missing key.
    fn update(&mut self, key: &Key, value: &[u8]) -> Result<(), PeersError>;

    /// Replaces the content of `into` with the whole value of `key`.
    ///
    /// # Errors
    /// Same as [`Client::get`].
    fn fetch(&mut self, key: &Key, into: &mut Vec<u8>) -> Result<(), PeersError>;
}

/// Runs a job on a client that is called directly.
pub fn run_client(client: &mut impl Client, job: &Job, draws: &Draws) -> Result<u64, PeersError> {
    match job.task {
        Task::Get => timed(job, || get(client, keys_of(job, draws)?)),
        Task::DependentGet => timed(job, || dependent_get(client, keys_of(job, draws)?)),
        Task::GetMany => timed(job, || get_many(client, keys_of(job, draws)?)),
        Task::YcsbA => timed(job, || mix(client, steps_of(job, draws)?)),
        Task::Update => update(client, keys_of(job, draws)?, &draws.records),
    }
}

/// Compares every byte of the values of `keys`.
pub fn verify_client(client: &mut impl Client, keys: &[Key], records: &Records) -> Result<(), PeersError> {
    let mut value = Vec::new();
    for key in keys {
        client.fetch(key, &mut value)?;
        if !records.is_whole(key, &value) {
            return Err(PeersError::wrong(key, ValueEnds::of(&value, records.value_bytes())));
        }
    }
    Ok(())
}

/// The keys that a job looks up.
pub fn keys_of<'d>(job: &Job, draws: &'d Draws) -> Result<&'d [Key], PeersError> {
    draws.keys.get(..job.operations).ok_or_else(|| PeersError::too_few(job.operations, draws.keys.len()))
}

/// The steps that a job carries out.
pub fn steps_of<'d>(job: &Job, draws: &'d Draws) -> Result<&'d [Step], PeersError> {
    draws.mix.get(..job.operations).ok_or_else(|| PeersError::too_few(job.operations, draws.mix.len()))
}

/// The time that `work` takes, in nanoseconds. Waits for the job's start first.
pub fn timed(job: &Job, work: impl FnOnce() -> Result<(), PeersError>) -> Result<u64, PeersError> {
    if let Some(start_ns) = job.start_ns {
        // Bounded: the start is milliseconds after the request.
        while monotonic_ns() < start_ns {
            std::hint::spin_loop();
        }
    }
    let started = monotonic_ns();
    work()?;
    Ok(monotonic_ns() - started)
}

/// The time of the monotonic clock in nanoseconds. All processes of a machine share it.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Seconds and nanoseconds since the machine started are not negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn get(client: &mut impl Client, keys: &[Key]) -> Result<(), PeersError> {
    let mut wrong = 0;
    for key in keys {
        wrong |= difference(key, client.get(key)?);
    }
    ensure_correct(wrong)
}

/// Looks up keys so that the index of the next key depends on the value just read: the difference between that value
/// and the right one is added, which is zero, but the processor cannot know this before it has the value.
fn dependent_get(client: &mut impl Client, keys: &[Key]) -> Result<(), PeersError> {
    let (mut wrong, mut at) = (0, 0);
    for _ in 0..keys.len() {
        let Some(key) = keys.get(at) else {
            break;
        };
        let difference = difference(key, client.get(key)?);
        wrong |= difference;
        at = black_box(at.wrapping_add(1).wrapping_add(difference as usize));
    }
    ensure_correct(wrong)
}

fn get_many(client: &mut impl Client, keys: &[Key]) -> Result<(), PeersError> {
    let mut wrong = 0;
    let mut seen = [ValueEnds::default(); MANY];
    for keys in keys.as_chunks::<MANY>().0 {
        client.get_many(keys, &mut seen)?;
        for (key, seen) in keys.iter().zip(&seen) {
            wrong |= difference(key, *seen);
        }
    }
    ensure_correct(wrong)
}

fn mix(client: &mut impl Client, steps: &[Step]) -> Result<(), PeersError> {
    let mut wrong = 0;
    for step in steps {
        match step {
            Step::Read(key) => wrong |= difference(key, client.get(key)?),
            Step::Update(key, word) => client.update(key, &word.to_le_bytes())?,
        }
    }
    ensure_correct(wrong)
}

/// Updates keys to values that are made, untimed, right before. Returns the nanoseconds of the updates alone.
fn update(client: &mut impl Client, keys: &[Key], records: &Records) -> Result<u64, PeersError> {
    let (mut value, mut elapsed_ns) = (Vec::with_capacity(records.value_bytes()), 0);
    for (version, key) in keys.iter().enumerate() {
        records.value_into(key, version as u64, &mut value);
        let started = monotonic_ns();
        client.update(key, &value)?;
        elapsed_ns += monotonic_ns() - started;
    }
    Ok(elapsed_ns)
}

/// Fails if an answer was wrong, that is, if `wrong` is not zero.
pub fn ensure_correct(wrong: u64) -> Result<(), PeersError> {
    if wrong == 0 { Ok(()) } else { Err(PeersError::WrongAnswer) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::draws::{DrawSpec, Popularity};
    use crate::record::value_word;

    /// A map that answers correctly, except for one call with a fault.
    struct Fake {
        values: HashMap<Key, u64>,
        calls: usize,
        fault: Option<(usize, Fault)>,
    }

    #[derive(Clone, Copy)]
    enum Fault {
        OtherKey,
        Miss,
    }

    impl Client for Fake {
        fn get(&mut self, key: &Key) -> Result<ValueEnds, PeersError> {
            self.calls += 1;
            let word = *self.values.get(key).ok_or_else(|| PeersError::missing(key))?;
            match self.fault {
                Some((call, Fault::OtherKey)) if call == self.calls => {
                    let word = value_word(b"otherkey", 0);
                    Ok(ValueEnds { first: word, last: word })
                }
                Some((call, Fault::Miss)) if call == self.calls => Err(PeersError::missing(key)),
                _ => Ok(ValueEnds { first: word, last: word }),
            }
        }

        fn update(&mut self, key: &Key, value: &[u8]) -> Result<(), PeersError> {
            *self.values.get_mut(key).ok_or_else(|| PeersError::missing(key))? = ValueEnds::of(value, 8).last;
            Ok(())
        }

        fn fetch(&mut self, key: &Key, into: &mut Vec<u8>) -> Result<(), PeersError> {
            *into = self.get(key)?.first.to_le_bytes().to_vec();
            Ok(())
        }
    }

    const SPEC: DrawSpec = DrawSpec { records: 500, seed: 3, keys: 320, steps: 320 };
    const LOOKUPS: [Task; 4] = [Task::Get, Task::DependentGet, Task::GetMany, Task::YcsbA];

    fn records() -> Records {
        Records::new(8, SPEC.seed).expect("8 bytes are a word")
    }

    fn fake(fault: Option<(usize, Fault)>) -> Fake {
        let records = records();
        let keys = (0..SPEC.records).map(|record| records.key(record));
        Fake { values: keys.map(|key| (key, value_word(&key, 0))).collect(), calls: 0, fault }
    }

    fn job(task: Task) -> Job {
        Job { task, operations: 320, start_ns: None }
    }

    fn draws() -> Draws {
        Draws::new(&records(), &SPEC, Popularity::Uniform, 0).expect("records exist")
    }

    #[test]
    fn right_answers_are_timed() {
        for task in LOOKUPS {
            let mut fake = fake(None);
            run_client(&mut fake, &job(task), &draws()).expect("every answer is right");
            assert!(fake.calls == 320 || task == Task::YcsbA && fake.calls > 100, "{task:?}: {} calls", fake.calls);
        }
        verify_client(&mut fake(None), &draws().keys, &records()).expect("every byte is right");
    }

    #[test]
    fn one_wrong_answer_fails_the_run() {
        for task in LOOKUPS {
            for kind in [Fault::OtherKey, Fault::Miss] {
                for call in [1, 100] {
                    let error = run_client(&mut fake(Some((call, kind))), &job(task), &draws()).unwrap_err();
                    let is_expected = match kind {
                        Fault::OtherKey => matches!(error, PeersError::WrongAnswer),
                        Fault::Miss => matches!(error, PeersError::Missing { .. }),
                    };
                    assert!(is_expected, "{task:?}: {error}");
                }
            }
        }
        let error = verify_client(&mut fake(Some((7, Fault::OtherKey))), &draws().keys, &records()).unwrap_err();
        assert!(matches!(error, PeersError::Wrong { .. }), "{error}");
    }

    #[test]
    fn every_key_gets_its_last_value_or_the_run_fails() {
        let (mut updated, keys) = (fake(None), draws().keys);
        run_client(&mut updated, &job(Task::Update), &draws()).expect("every key exists");
        for key in &keys {
            let version = keys.iter().rposition(|other| other == key).expect("it was drawn");
            assert_eq!(updated.values[key], value_word(key, version as u64));
        }
        updated.values.remove(&keys[200]);
        let error = run_client(&mut updated, &job(Task::Update), &draws()).unwrap_err();
        assert!(matches!(error, PeersError::Missing { .. }), "{error}");
    }

    #[test]
    fn more_than_was_drawn_is_refused() {
        for task in Task::ALL {
            let error = run_client(&mut fake(None), &Job { operations: 321, ..job(task) }, &draws()).unwrap_err();
            assert!(matches!(error, PeersError::TooFew { .. }), "{error}");
        }
    }

    #[test]
    fn a_job_waits_for_its_start() {
        let start_ns = monotonic_ns() + 3_000_000;
        timed(&Job { start_ns: Some(start_ns), ..job(Task::Get) }, || Ok(())).expect("nothing fails");
        assert!(monotonic_ns() >= start_ns);
    }
}
