//! Measures how much extent space a workload needs: chunks in use against live bytes, under endless updates.
//!
//! ```sh
//! cargo run --release -p guira --example extent_space
//! ```
//!
//! Each line is a table in which some clients take turns to update keys drawn from one set, with values of random
//! sizes. `place` is the bytes of places divided by the bytes of keys and values in them, `used` the bytes of chunks in
//! use divided by the same, `slack` the chunks in use beyond what the places need, for each client and size class. All
//! are maxima of the samples after the warm-up. `least` is the smallest extent space, divided by the live bytes, in
//! which no update was refused.

use guira::{Blame, CreateOptions, Error, Store, Url};
use guira_fabric::SplitMix64;

/// Updates of each key before the measurement, and during it.
const WARM_UP: u64 = 20;
const MEASURED: u64 = 20;
/// Samples of a measurement.
const SAMPLES: u64 = 40;

struct Mix {
    name: &'static str,
    smallest: f64,
    largest: f64,
    keys: u64,
}

const MIXES: [Mix; 5] = [
    Mix { name: "100 B", smallest: 100.0, largest: 100.0, keys: 50_000 },
    Mix { name: "1,000 B", smallest: 1_000.0, largest: 1_000.0, keys: 20_000 },
    Mix { name: "100 B to 64 KiB", smallest: 100.0, largest: 65_536.0, keys: 8_000 },
    Mix { name: "100 B to 1 MiB", smallest: 100.0, largest: 1_048_576.0, keys: 1_000 },
    Mix { name: "1 MiB to 16 MiB", smallest: 1_048_576.0, largest: 16_777_216.0, keys: 24 },
];

struct Table(Url);

impl Drop for Table {
    fn drop(&mut self) {
        drop(Store::destroy(&self.0));
    }
}

/// The largest factors that were sampled.
#[derive(Default)]
struct Seen {
    live_bytes: u64,
    place: f64,
    used: f64,
    slack: f64,
}

impl Mix {
    fn bytes(&self, rng: &mut SplitMix64) -> usize {
        let unit = rng.unit_f64();
        (self.smallest * (self.largest / self.smallest).powf(unit)) as usize
    }

    fn mean_bytes(&self) -> f64 {
        if self.smallest == self.largest {
            return self.smallest;
        }
        (self.largest - self.smallest) / (self.largest / self.smallest).ln()
    }

    /// Updates a table with `extent_bytes` of space; fails if an update was refused for lack of space.
    fn run(&self, clients: u64, extent_bytes: u64) -> Result<Seen, Error> {
        let url = Url::shm(&format!("guira-extent-space-{}", std::process::id()))?;
        let store = Store::create(&url, &CreateOptions::new(self.keys).extent_bytes(extent_bytes).seed(1))?;
        let _table = Table(url);
        let mut rng = SplitMix64(clients);
        let mut owners = (0..clients).map(|_| store.client()).collect::<Result<Vec<_>, _>>()?;
        let (mut seen, value) = (Seen::default(), vec![7; self.largest as usize]);
        let sample_every = (self.keys * MEASURED / SAMPLES).max(1);
        for step in 0..self.keys * (WARM_UP + MEASURED) {
            let (key, owner) = (rng.below(self.keys), rng.below(clients) as usize);
            owners[owner].put(&key.to_le_bytes(), &value[..self.bytes(&mut rng)])?;
            if step >= self.keys * WARM_UP && step.is_multiple_of(sample_every) {
                seen.add(&store, clients)?;
            }
        }
        Ok(seen)
    }
}

impl Seen {
    fn add(&mut self, store: &Store, clients: u64) -> Result<(), Error> {
        let stat = store.stat()?;
        let space = &stat.table.space;
        let needed = space.place_bytes.div_ceil(stat.chunk_bytes);
        let slack = stat.table.chunks.in_use().saturating_sub(needed) as f64;
        self.live_bytes = self.live_bytes.max(space.live_bytes);
        self.place = self.place.max(space.place_factor);
        self.used = self.used.max(space.used_factor);
        self.slack = self.slack.max(slack / (clients as usize * space.classes.len().max(1)) as f64);
        Ok(())
    }
}

/// Returns the least space without a refusal, in tenths of the live bytes.
fn least_tenths(mix: &Mix, clients: u64, live_bytes: u64) -> Result<u64, Error> {
    let (mut refused, mut enough) = (10, 100);
    while enough - refused > 1 {
        let middle = (refused + enough) / 2;
        match mix.run(clients, live_bytes * middle / 10) {
            Ok(_) => enough = middle,
            Err(error) if error.blame() == Blame::Full => refused = middle,
            Err(error) => return Err(error),
        }
    }
    Ok(enough)
}

fn main() -> Result<(), Error> {
    println!("| values | keys | clients | live, MB | place | used | slack | least |");
    println!("|---|---|---|---|---|---|---|---|");
    for mix in &MIXES {
        let live_bytes = (mix.keys as f64 * mix.mean_bytes()) as u64;
        for clients in [1, 4] {
            let seen = mix.run(clients, live_bytes * 3)?;
            let least = least_tenths(mix, clients, live_bytes)?;
            let (live_mb, tenths) = (seen.live_bytes / 1_000_000, least as f64 / 10.0);
            let Seen { place, used, slack, .. } = seen;
            println!(
                "| {} | {} | {clients} | {live_mb} | {place:.2} | {used:.2} | {slack:.2} | {tenths:.1} |",
                mix.name, mix.keys
            );
        }
    }
    Ok(())
}
