//! Experiments of setting `as-run`: the messages that the paper's authors' code posted.

use guira_fabric_sim::Cluster;

use super::cell::{self, Outcome, failed};
use super::configure::{cluster_of, inserts_at_most, shares, times};
use crate::as_run::client::{ClientRules, UpdateReads};
use crate::as_run::hash::{Distance, Placement, Program};
use crate::as_run::locks::LockRules;
use crate::as_run::mirror::Mirrors;
use crate::as_run::recovery::refusals_in;
use crate::as_run::run::{COMPUTE, COMPUTE_LATER, Keys, Measured, Run, RunError, run};
use crate::as_run::search::{ENTRIES, SearchOrder};
use crate::as_run::table::{Layout, RowSums, Table};
use crate::experiment::{self, Experiment, Hashing, Kind, LabError, Mix, RunOptions, Search};
use crate::workload::Zipfian;

/// The locality factor of the authors' runs.
const FACTOR: f64 = 2.3;
const ROWS_PER_LOCK: u64 = 16;
const LOCKS_PER_MESSAGE: u32 = 64;
/// The timeout of their runs with deaths, in milliseconds.
const TIMEOUT_MS: f64 = 10.0;
/// The part of the wanted keys, in percent, with which a table is filled as wanted: filling ends at the first key that
/// finds no path.
const KEYS_PERCENT: u64 = 90;
/// Sentence on what is not modelled.
const NOTE: &str = "As run: the constants of the clients' own time, for lookups, inserts and updates, are fitted to the \
    first points of figure 6. A search takes no time, however full the table is, but for search-row-ns.";

/// An experiment of the setting, ready to run.
#[derive(Clone, Debug)]
pub(super) struct AsRun {
    pub(super) table: TablePlan,
    cluster: Cluster,
    run: Run,
}

/// The parameters of its table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TablePlan {
    rows: u64,
    keys: u32,
    distance: Distance,
    locks: LockRules,
    sums: RowSums,
    entry_words: u64,
    search_order: SearchOrder,
    /// The clients that fill the table; 0 if it is filled for clients that insert nothing.
    clients: u32,
}

impl TablePlan {
    /// Returns the bytes of memory that the table takes, and what its clients have seen of it.
    pub(super) fn needed_bytes(&self) -> u64 {
        let mirrors = match self.clients {
            0 => 0,
            clients => Mirrors::needed_bytes(self.rows, clients, self.keys.into()),
        };
        self.layout().row_words() * self.rows * 8 + self.locks.table_bytes(self.rows) + mirrors
    }

    fn layout(&self) -> Layout {
        let placement = Placement::new(self.rows, Program::Store, self.distance);
        Layout { placement, locks: self.locks, sums: self.sums, entry_words: self.entry_words }
    }

    /// Creates the table with its keys.
    pub(super) fn filled(&self, is_stopped: &dyn Fn() -> bool) -> Result<Table, LabError> {
        let layout = self.layout();
        let table = match self.clients {
            0 => Table::filled(layout, self.keys),
            clients => Table::filled_by(clients, layout, self.keys, self.search_order, is_stopped),
        };
        if is_stopped() {
            return Err(LabError::Stopped);
        }
        if u64::from(table.keys) * 100 < u64::from(self.keys) * KEYS_PERCENT {
            let (entries, reason) = (self.rows * ENTRIES as u64, format!("key {} finds no path", table.keys + 1));
            return Err(LabError::Unfillable { entries, percent: u64::from(self.keys) * 100 / entries, reason });
        }
        Ok(table)
    }
}

/// Prepares an experiment.
///
/// # Errors
/// The setting has no such workload, or the parameters do not go together.
pub(super) fn configure(experiment: &Experiment, options: &RunOptions, least_us: f64) -> Result<AsRun, LabError> {
    experiment.check()?;
    let conflict = |message: &str| LabError::Conflict(message.to_owned());
    let rows = (experiment.entries / ENTRIES as u64).next_multiple_of(2).max(2);
    let keys = (rows * ENTRIES as u64) as f64 * experiment.fill / 100.0;
    let keys = u32::try_from(keys as u64).map_err(|_| conflict("setting as-run has keys of 32 bits"))?;
    // The authors measured updates with later code than all else.
    let [inserts, updates] = [Kind::Insert, Kind::Update].map(|kind| experiment.workload.has(kind));
    if inserts && u32::try_from(rows * ENTRIES as u64 + 2 * u64::from(experiment.clients)).is_err() {
        return Err(conflict("setting as-run has keys of 32 bits, and inserts need one for each entry"));
    }
    let distribution = match experiment.workload {
        Mix::C => Keys::OneEach,
        _ if inserts => Keys::LastInserted,
        _ => match Zipfian::new(keys.into(), experiment.theta) {
            Ok(zipfian) => Keys::Zipf(zipfian),
            Err(error) => return Err(conflict(&format!("setting as-run: {error}"))),
        },
    };
    let (span, warm_ns) = times(experiment, options, least_us);
    let run = Run {
        clients: experiment.clients,
        mix: shares(experiment.workload),
        keys: distribution,
        most_inserts: inserts_at_most(experiment, rows * ENTRIES as u64, keys.into()),
        compute: if updates { COMPUTE_LATER } else { COMPUTE },
        faults_per_second: experiment.deaths_per_second as u64,
        warm_ns,
        span,
        seed: options.seed,
    };
    let distance = match experiment.hashing {
        Some(Hashing::Independent) => Distance::Independent,
        Some(Hashing::Dependent) | None => Distance::Dependent { factor: experiment.factor.unwrap_or(FACTOR) },
    };
    let locks = LockRules {
        rows_per_lock: experiment.rows_per_lock.map_or(ROWS_PER_LOCK, u64::from),
        locks_per_message: experiment.locks_per_message.map_or(LOCKS_PER_MESSAGE, u32::from),
    };
    let sums = if updates { RowSums::Written } else { RowSums::None };
    let entry_words = experiment.format.entry_words() as u64;
    let search_order = match experiment.search {
        Some(Search::DepthFirst) => SearchOrder::DepthFirst { first: options.seed as usize % ENTRIES },
        Some(Search::BreadthFirst) | None => SearchOrder::BreadthFirst,
    };
    let clients = if inserts { experiment.clients } else { 0 };
    Ok(AsRun {
        table: TablePlan { rows, keys, distance, locks, sums, entry_words, search_order, clients },
        cluster: cluster_of(experiment),
        run,
    })
}

/// Returns the choices of an experiment's clients.
fn rules(experiment: &Experiment, layout: Layout) -> ClientRules {
    let default = ClientRules::new(layout);
    let timeout_ms = experiment.timeout_ms.or((experiment.deaths_per_second > 0.0).then_some(TIMEOUT_MS));
    ClientRules {
        covering_bytes: experiment.covering_bytes.map_or(default.covering_bytes, u64::from),
        update_reads: match experiment.update_reads {
            Some(experiment::UpdateReads::Covering) => UpdateReads::Covering,
            Some(experiment::UpdateReads::Single) | None => UpdateReads::Single,
        },
        search_row_ns: experiment.search_row_ns.map_or(default.search_row_ns, u64::from),
        timeout_refusals: timeout_ms.map_or(default.timeout_refusals, |timeout_ms| refusals_in(1_000.0 * timeout_ms)),
        ..default
    }
}

/// Carries out an experiment on a copy of `table`.
pub(super) fn measure(
    experiment: &Experiment,
    configured: &AsRun,
    table: &Table,
    options: &RunOptions,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Outcome, LabError> {
    let mut copy = table.clone();
    copy.region = table.region.copied();
    let search_order = configured.table.search_order;
    let rules = ClientRules { search_order, ..rules(experiment, table.layout.clone()) };
    let mut progress = cell::progress(is_stopped);
    let measured = run(&mut copy, &rules, configured.cluster, &configured.run, &mut progress);
    let measured = measured.map_err(|error| match error {
        RunError::Stopped => LabError::Stopped,
        error => failed("an experiment as run", &error),
    })?;
    let Measured { counts, steadiness, usage, inserts, ended, faults, reclaimed, .. } = &measured;
    let mut notes = vec![NOTE.to_owned()];
    if table.keys < configured.table.keys {
        let (keys, wanted) = (table.keys, configured.table.keys);
        notes
            .push(format!("as run, filling the table ended after {keys} of {wanted} keys: the next one finds no path"));
    }
    if *ended > 0 {
        notes.push(format!("{ended} clients found no path for a key and ended, as the authors' clients do"));
    }
    if *faults > 0 {
        notes.push(format!(
            "as run, {faults} updates ended with their locks held, and {reclaimed} locks were taken back"
        ));
    }
    let mut outcome = cell::outcome(experiment, options, counts, *steadiness, usage, notes);
    let entries = configured.table.rows * ENTRIES as u64;
    outcome.answer.fill_at_end = (u64::from(table.keys) + inserts) as f64 * 100.0 / entries as f64;
    Ok(outcome)
}
