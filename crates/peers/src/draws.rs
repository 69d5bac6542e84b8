//! Keys and operations in the order in which they are used: drawn before anything is timed, and equal for every system.

use guira_lab::workload::{Generator, Operation, WorkloadError, WorkloadName, WorkloadSpec};
use serde::{Deserialize, Serialize};

use crate::record::{Key, Records, value_word};

/// The exponent that YCSB and RCuckoo use.
const ZIPF_THETA: f64 = 0.99;

/// The popularity of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Popularity {
    /// Every key is equally popular.
    Uniform,
    /// Zipf with exponent 0.99.
    Zipf,
}

impl Popularity {
    /// The name in texts for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Popularity::Uniform => "uniform",
            Popularity::Zipf => "Zipf 0.99",
        }
    }

    const fn theta(self) -> f64 {
        match self {
            Popularity::Uniform => 0.0,
            Popularity::Zipf => ZIPF_THETA,
        }
    }
}

/// One operation of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the value.
    Read(Key),
    /// Replace the value by this word.
    Update(Key, u64),
}

/// The operations of one client under one popularity.
#[derive(Debug)]
pub struct Draws {
    /// The records that the keys are of.
    pub records: Records,
    /// Keys to look up.
    pub keys: Vec<Key>,
    /// YCSB-A: half of it reads, half updates.
    pub mix: Vec<Step>,
}

impl Draws {
    /// Draws the operations of client number `client`: as many lookups and steps of YCSB-A as `drawn` says.
    ///
    /// # Errors
    /// There are no records, or too many.
    pub fn new(
        records: &Records,
        drawn: &DrawSpec,
        popularity: Popularity,
        client: u32,
    ) -> Result<Draws, WorkloadError> {
        let spec = |name| WorkloadSpec { name, records: drawn.records, theta: popularity.theta(), seed: drawn.seed };
        let mut reads = Generator::new(&spec(WorkloadName::C), client, CLIENTS_MAX)?;
        let keys = (0..drawn.keys).map(|_| records.key(reads.next().1)).collect();
        if drawn.steps == 0 {
            return Ok(Draws { records: *records, keys, mix: Vec::new() });
        }
        let mut mixed = Generator::new(&spec(WorkloadName::A), client, CLIENTS_MAX)?;
        let mix = (0..drawn.steps as u64).map(|version| {
            let (operation, record) = mixed.next();
            let key = records.key(record);
            match operation {
                Operation::Read => Step::Read(key),
                _ => Step::Update(key, value_word(&key, version)),
            }
        });
        Ok(Draws { records: *records, keys, mix: mix.collect() })
    }
}

/// Number of clients with random streams of their own: two run at once.
const CLIENTS_MAX: u32 = 2;

/// Number of draws, and the records and seed they are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrawSpec {
    /// Number of records.
    pub records: u64,
    /// Seed of all draws.
    pub seed: u64,
    /// Number of lookups.
    pub keys: usize,
    /// Number of steps of YCSB-A.
    pub steps: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: DrawSpec = DrawSpec { records: 1000, seed: 1, keys: 20_000, steps: 20_000 };

    fn draws(popularity: Popularity, client: u32) -> Draws {
        Draws::new(&Records::new(8, 1).expect("8 bytes are a word"), &SPEC, popularity, client).expect("records exist")
    }

    #[test]
    fn equal_specs_draw_equal_keys_and_clients_differ() {
        let (one, again, other) = (draws(Popularity::Zipf, 0), draws(Popularity::Zipf, 0), draws(Popularity::Zipf, 1));
        assert_eq!((&one.keys, &one.mix), (&again.keys, &again.mix));
        assert_ne!(one.keys, other.keys);
    }

    #[test]
    fn zipf_has_popular_keys_and_uniform_has_none() {
        let most = |popularity| {
            let mut counts = std::collections::HashMap::new();
            draws(popularity, 0).keys.iter().for_each(|key| *counts.entry(*key).or_insert(0) += 1);
            counts.into_values().max().unwrap()
        };
        // 1 / zeta of 20,000 draws, and 20 of 1000 keys each.
        assert!(most(Popularity::Zipf) > 1_500 && most(Popularity::Uniform) < 60);
    }

    #[test]
    fn half_the_steps_are_updates_to_valid_values() {
        let mix = draws(Popularity::Uniform, 0).mix;
        let updates = mix.iter().filter(|step| matches!(step, Step::Update(..))).count();
        assert!((9_500..10_500).contains(&updates), "{updates}");
        for step in mix {
            if let Step::Update(key, word) = step {
                assert_eq!(crate::record::difference(&key, crate::record::ValueEnds { first: word, last: word }), 0);
            }
        }
    }
}
