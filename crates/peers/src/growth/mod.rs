//! How systems take keys while they grow: inserts counted in windows of 100 ms, from an empty table to many times the
//! number of keys that it was made for.
//!
//! Guira's clients are processes, of which some are killed all the time in two of its series; dashmap's are threads,
//! and those of Redis are connections with 16 commands in flight. All insert the same keys and values of 8 bytes, and
//! whatever they have acknowledged is looked up in the end.
//!
//! Invariants: every process and file of the run is gone when it ends; a key counts when its insert was acknowledged.

mod afterwards;
mod inserter;
mod plot;
mod report;
mod systems;
mod text;
mod writers;

pub use afterwards::{AfterGrowth, Costs, TableCosts};
pub use inserter::serve_inserter;
pub use plot::growth_svg;
pub use report::{Curve, GROWTH_SCHEMA, GrowthRatio, GrowthReport, Window};
pub use text::{growth_human, growth_markdown};

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use self::inserter::GROUP;
use crate::error::PeersError;
use crate::load::ProgressFn;
use crate::machine::Machine;
use crate::plan::{Needs, System};
use crate::run::{Peer, check_memory, server_peer};
use crate::server::Kind;

/// The time of a window.
pub(crate) const WINDOW: Duration = Duration::from_millis(100);
/// The most clients, far fewer than the connections that a server takes.
const MOST_CLIENTS: usize = 64;
/// The most keys.
const MOST_KEYS: u64 = 1 << 32;
/// The systems that take part.
const NAMES: [System; 3] = [System::Guira, System::Dashmap, System::Redis];
/// Bytes for each key that the largest system needs, which is Redis, and those in shared memory.
const NEEDED_BYTES: (u64, u64) = (150, 75);
/// Approximate nanoseconds for each key, of all series together.
const NEEDED_NS: u64 = 8_500;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct GrowthOptions {
    /// Keys that the tables are made for.
    pub first: u64,
    /// Keys in the end.
    pub keys: u64,
    /// Clients that insert at the same time.
    pub clients: usize,
    /// The time between two kills.
    pub kill_every: Duration,
    /// Only these systems, unless it is empty.
    pub only: Vec<System>,
    /// All systems but these.
    pub skip: Vec<System>,
    /// The program and the arguments that make it call [`serve_inserter`].
    pub inserter: Vec<std::ffi::OsString>,
}

/// A system as it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Series {
    /// Guira, made for a few keys.
    Grows,
    /// Guira, made for all keys.
    Fixed,
    /// Guira, made for a few keys, while clients are killed.
    GrowsKilled,
    /// Guira, made for all keys, while clients are killed.
    FixedKilled,
    /// dashmap, made for a few keys.
    Dashmap,
    /// Redis, which is made for none.
    Redis,
}

impl Series {
    /// Every series, in the order in which they are run.
    pub const ALL: [Series; 6] =
        [Series::Grows, Series::Fixed, Series::GrowsKilled, Series::FixedKilled, Series::Dashmap, Series::Redis];

    /// The name in texts for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Series::Grows => "Guira, grows",
            Series::Fixed => "Guira, of fixed size",
            Series::GrowsKilled => "Guira, grows, clients are killed",
            Series::FixedKilled => "Guira, of fixed size, clients are killed",
            Series::Dashmap => "dashmap",
            Series::Redis => "Redis, 16 in flight",
        }
    }

    /// The system that is measured.
    #[must_use]
    pub const fn system(self) -> System {
        match self {
            Series::Grows | Series::Fixed | Series::GrowsKilled | Series::FixedKilled => System::Guira,
            Series::Dashmap => System::Dashmap,
            Series::Redis => System::Redis,
        }
    }

    const fn grows(self) -> bool {
        !matches!(self, Series::Fixed | Series::FixedKilled)
    }

    const fn is_killed(self) -> bool {
        matches!(self, Series::GrowsKilled | Series::FixedKilled)
    }
}

impl GrowthOptions {
    fn check(&self) -> Result<(), PeersError> {
        let refused = |text: String| Err(PeersError::Options(text));
        if self.clients == 0 || self.clients > MOST_CLIENTS {
            return refused(format!("{} clients: 1 to {MOST_CLIENTS} are possible", self.clients));
        }
        if self.first == 0 || self.first > self.keys {
            return refused(format!("a table made for {} keys cannot grow to {}", self.first, self.keys));
        }
        if !NAMES.into_iter().any(|name| self.wants(name)) {
            return refused("--only and --skip leave no system".to_owned());
        }
        if self.keys > MOST_KEYS {
            return refused(format!("{} keys are too many: at most {MOST_KEYS}", self.keys));
        }
        let least = self.clients as u64 * GROUP;
        if self.keys < least {
            return refused(format!(
                "{} keys are too few: each client inserts at least {GROUP}, {least} in all",
                self.keys
            ));
        }
        Ok(())
    }

    /// Keys that each client inserts: whole groups.
    fn share(&self) -> u64 {
        self.keys / self.clients as u64 / GROUP * GROUP
    }

    /// Returns what a run needs.
    #[must_use]
    pub fn needs(&self) -> Needs {
        let (memory, shared) = NEEDED_BYTES;
        let of = |each: u64| self.keys.saturating_mul(each);
        Needs { memory_bytes: of(memory), shared_bytes: of(shared), seconds: 1 + of(NEEDED_NS) / 1_000_000_000 }
    }

    fn wants(&self, name: System) -> bool {
        (self.only.is_empty() || self.only.contains(&name)) && !self.skip.contains(&name)
    }

    fn peer(&self, name: System) -> Peer {
        let ours = |version: &str| Peer { name, version: Some(version.to_owned()), missing: None };
        match name {
            name if !self.wants(name) => {
                Peer { name, version: None, missing: Some(format!("{} is left out by --only or --skip", name.title())) }
            }
            System::Redis => server_peer(name, Kind::Redis),
            System::Dashmap => ours(crate::versions::DASHMAP),
            _ => ours(env!("CARGO_PKG_VERSION")),
        }
    }
}

/// Carries out a run. `watch` receives the progress, and may end the run.
///
/// # Errors
/// [`PeersError::Options`]; whatever a system fails with; a key that was acknowledged and is not found; an interruption.
pub fn run_growth(options: &GrowthOptions, watch: &mut ProgressFn<'_>) -> Result<GrowthReport, PeersError> {
    options.check()?;
    let machine = Machine::detect();
    check_memory(&options.needs(), &machine)?;
    let peers: Vec<Peer> = NAMES.into_iter().map(|name| options.peer(name)).collect();
    let takes_part = |series: &Series| peers.iter().any(|peer| peer.name == series.system() && peer.missing.is_none());
    let mut curves = Vec::new();
    for series in Series::ALL.into_iter().filter(takes_part) {
        let curve = systems::measure(series, options, watch).map_err(|error| error.of(series.title()))?;
        curves.push(curve);
    }
    Ok(GrowthReport::new(options, machine, peers, curves))
}

/// The file of Guira's table.
fn table_in(directory: &std::path::Path) -> PathBuf {
    directory.join("table")
}
