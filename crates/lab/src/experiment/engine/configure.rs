//! The table, the clients and the run of an experiment: the only place that knows what its parameters mean.

use std::ops::ControlFlow;

use guira::Preset;
use guira_fabric::{Caps, Profile};
use guira_fabric_sim::{Card as ModelCard, Cluster};
use guira_layout::{OffsetRule, PresetOptions, TableConfig, physical_locks, record_space};
use guira_rcuckoo::{ClientConfig, InsertRow, RowGuess, SearchOrder};

use super::cell::failed;
use crate::experiment::{
    Card, Experiment, Growth, Guess, Hashing, InsertRow as Choice, Kind, LabError, Mix, Queue, RunOptions, Search,
    Setting, Steered,
};
use crate::simulated::{
    Audit, Compute, Deaths, FillError, FillPlan, FilledTable, Load, Mix as Shares, Queues, Records, Run, Victims,
};
use crate::steady::Span;

const NS_PER_US: f64 = 1_000.0;
const NS_PER_MS: f64 = 1_000_000.0;
const US_PER_MS: f64 = 1_000.0;
/// The least virtual time that is measured, unless an experiment says otherwise: tens of thousands of operations even of
/// few clients.
const SPAN_US: f64 = 5_000.0;
/// Same for quick runs.
const QUICK_SPAN_US: f64 = 2_000.0;
/// The most virtual time that is measured, for a run that is not steady before.
const MOST_SPAN_US: f64 = 128.0 * SPAN_US;
/// Same for quick runs.
const QUICK_MOST_SPAN_US: f64 = 32.0 * QUICK_SPAN_US;
/// Failure timeouts that are measured at least where clients die: a dead client's locks are free after the first.
const MEASURED_TIMEOUTS: f64 = 5.0;
/// Inserts before and during a measurement, at most, as a part of the entries. A fuller table would be another one.
const MOST_INSERTS: f64 = 0.02;
/// The time that Guira's clients compute: instructions of a lookup and of an update with `fixed:4:4`, 380 and 1,480
/// (benches/instructions/recorded.toml), at 2.5 a nanosecond. What a search for a path takes comes on top, and is left
/// out: on average 7,500 instructions an insert into a table that is 90 % full, and hardly any at 50 %.
const COMPUTE: Compute = Compute { lookup_ns: 150, change_ns: 600 };
/// Virtual time before the measurement: some hundred round trips.
const WARM_US: f64 = 1_000.0;
/// Same for quick runs.
const QUICK_WARM_US: f64 = 500.0;
/// Virtual time before the measurement for each client that stores values in extents, besides the others: every client
/// first formats a chunk of up to 1 MiB, which takes the link of the memory node 84 µs.
const FORMAT_US: f64 = 150.0;
/// A table that grows has addresses for as many times the entries of the table that is made for all keys: so many that
/// no segment is kept from being split.
const ROOM_TO_GROW: u64 = 2;
/// Deaths that a run with deaths has at least.
const MIN_DEATHS: f64 = 20.0;
/// The number of rows of a table is a multiple of this: of any number of rows per lock, and so that the lock table can
/// be halved until it fits in device memory.
const ROWS_MULTIPLE: u64 = 4096;
/// Client slots of a table, at least: those of the default preset.
const MIN_SLOTS: u32 = 1024;
/// The most slots that a lock of 16 bits can name.
const MAX_SLOTS: u32 = 32_767;
/// Chunks, or runs of them, for each client: the one that it cuts extents from, and one whose extents become free.
const CLIENT_CHUNKS: u64 = 2;
/// One of this many bytes of extents, more, is for extents that are freed and not reclaimed yet.
const FREED_SHARE: u64 = 8;
/// The largest table of which every row is checked at the end; of larger ones, all records that were written.
const WHOLE_AUDIT_ENTRIES: u64 = 20_000_000;

/// An experiment on the real protocol, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Configured {
    pub(super) fill: FillPlan,
    pub(super) cluster: Cluster,
    pub(super) run: Run,
}

/// Returns the modelled cluster of an experiment.
pub(super) fn cluster_of(experiment: &Experiment) -> Cluster {
    let card = match experiment.nic {
        Card::ConnectX3 => ModelCard::ConnectX3,
        Card::ConnectX5 => ModelCard::ConnectX5,
        Card::ConnectX6 => ModelCard::ConnectX6,
        Card::ConnectX7 => ModelCard::ConnectX7,
    };
    let cluster = Cluster::new(card).hosts(hosts_of(experiment));
    let cluster = experiment.near_threads.map_or(cluster, |threads| cluster.near_threads(threads));
    experiment.link_gbps.map_or(cluster, |gbps| cluster.link_gbps(gbps.into()))
}

/// Returns the load of an experiment whose clients insert as much as they can and compute nothing.
pub(super) fn load(experiment: &Experiment, options: &RunOptions, least_us: f64) -> Load {
    let (span, warm_ns) = times(experiment, options, least_us);
    Load {
        seed: options.seed,
        clients: experiment.clients,
        hosts: hosts_of(experiment),
        in_flight: experiment.in_flight,
        mix: shares(experiment.workload),
        theta: experiment.theta,
        warm_ns,
        span,
        most_inserts: u64::MAX,
        compute: Compute::default(),
    }
}

fn hosts_of(experiment: &Experiment) -> u32 {
    experiment.hosts.min(experiment.clients)
}

/// Returns the time that must be measured at least, in microseconds. The experiments of a chart have the longest one of
/// theirs in common, so that they differ in nothing but what the chart shows.
pub(super) fn least_span_us(experiment: &Experiment, options: &RunOptions) -> f64 {
    let span_us = if options.quick { QUICK_SPAN_US } else { SPAN_US };
    if experiment.deaths_per_second == 0.0 {
        return span_us;
    }
    let timeout_us = experiment.timeout_ms.unwrap_or(ClientConfig::FAILURE_TIMEOUT_NS as f64 / NS_PER_MS) * US_PER_MS;
    span_us.max(MIN_DEATHS * 1e6 / experiment.deaths_per_second).max(MEASURED_TIMEOUTS * timeout_us)
}

/// Returns the measured time of an experiment of a chart for which so many microseconds are the least, and the time
/// before it in nanoseconds.
pub(super) fn times(experiment: &Experiment, options: &RunOptions, least_us: f64) -> (Span, u64) {
    let warm_us = if options.quick { QUICK_WARM_US } else { WARM_US };
    let ns = |us: f64| (us * NS_PER_US) as u64;
    let most_us = if options.quick { QUICK_MOST_SPAN_US } else { MOST_SPAN_US };
    let span = match (experiment.span_us, experiment.fill_to) {
        (Some(span_us), _) => Span::Exactly(ns(span_us)),
        (None, Some(_)) => Span::UntilFull,
        (None, None) => Span::UntilSteady { least_ns: ns(least_us), most_ns: ns(least_us.max(most_us)) },
    };
    let writes_extents = experiment.workload != Mix::C && value_space(experiment).is_ok_and(|space| space > 0);
    let format_us = if writes_extents { FORMAT_US * f64::from(experiment.clients * experiment.in_flight) } else { 0.0 };
    let warm_us = experiment.warm_us.unwrap_or(warm_us + format_us);
    (span, ns(warm_us))
}

/// Prepares an experiment of setting `guira` or `as-printed`.
///
/// # Errors
/// The parameters do not go together.
pub(super) fn configure(experiment: &Experiment, options: &RunOptions, least_us: f64) -> Result<Configured, LabError> {
    experiment.check()?;
    let caps = Profile::Mlx5.caps();
    let config = table_config(experiment, options.seed, &caps)?;
    let (records, value_bytes) = (records_of(experiment, &config), value_bytes_of(experiment));
    let insert_row = insert_row(experiment);
    let fill = FillPlan { config, caps, records, value_bytes, insert_row, seed: options.seed };
    let client_config = client_config(experiment, &fill, &caps)?;
    let most_inserts = inserts_at_most(experiment, fill.config.max_entries(), fill.records);
    let run = Run {
        load: Load { most_inserts, compute: COMPUTE, ..load(experiment, options, least_us) },
        deaths: Deaths { per_second: experiment.deaths_per_second as u64, victims: Victims::LockHolders },
        queues: match (experiment.setting, experiment.queue) {
            (Setting::Guira, Queue::Host) => Queues::PerHost,
            // The paper's clients are threads that know nothing of each other.
            _ => Queues::None,
        },
        predictor_bytes: experiment.predictor_kib as usize * 1024,
        client_config,
        knows_locks: experiment.steering == Some(Steered::Locks),
        audit: if experiment.entries > WHOLE_AUDIT_ENTRIES { Audit::Touched } else { Audit::Whole },
    };
    Ok(Configured { fill, cluster: cluster_of(experiment), run })
}

/// Prepares the runs of an experiment with growth: in a table that is made for a part of the keys, and in one that is
/// made for all of them. Both begin with that part, and end when the last key is there.
///
/// # Errors
/// The parameters do not go together.
pub(super) fn configure_growth(
    experiment: &Experiment,
    growth: &Growth,
    options: &RunOptions,
) -> Result<[Configured; 2], LabError> {
    experiment.check()?;
    check_growth(experiment, growth)?;
    let fixed = configure(experiment, options, 0.0)?;
    let keys = fixed.fill.records;
    let first = (keys / u64::from(growth.factor)).max(1);
    let grows = growing_config(experiment, &fixed.fill, first)?;
    let cluster = fixed.cluster.part_ns((growth.memory_us * NS_PER_US) as u64);
    let configured = |config: TableConfig| {
        let fill = FillPlan { config, records: first, ..fixed.fill.clone() };
        let client_config = client_config(experiment, &fill, &fill.caps)?;
        let (span, most_inserts) = (Span::UntilFull, keys.saturating_sub(first));
        let load = Load { warm_ns: 0, span, most_inserts, ..fixed.run.load.clone() };
        let run = Run { load, client_config, ..fixed.run.clone() };
        Ok(Configured { fill, cluster, run })
    };
    Ok([configured(grows)?, configured(fixed.fill.config.clone())?])
}

/// Refuses what has no meaning while a table grows.
fn check_growth(experiment: &Experiment, growth: &Growth) -> Result<(), LabError> {
    growth.check()?;
    let conflict = |message: &str| Err(LabError::Conflict(message.to_owned()));
    if experiment.setting != Setting::Guira {
        return conflict("only tables of setting guira grow");
    }
    if !experiment.workload.has(Kind::Insert) {
        return conflict("a table grows by inserts: choose workload w, a-insert or b-insert");
    }
    if experiment.deaths_per_second > 0.0 {
        return conflict("deaths are not part of a run that grows a table: remove deaths-per-second");
    }
    if experiment.in_flight > 1 {
        return conflict("clients of a run that grows a table have one operation at once: remove in-flight");
    }
    for name in ["span-us", "warm-us", "fill-to"] {
        if experiment.value_of(name).is_some() {
            return conflict(&format!("a run that grows a table ends with its last key: remove {name}"));
        }
    }
    for name in ["factor", "hashing", "rows-per-lock", "lock-bits", "entries-per-row", "depth"] {
        if experiment.value_of(name).is_some() {
            return conflict(&format!("a table that grows has the parameters of its preset: remove {name}"));
        }
    }
    Ok(())
}

/// Returns the parameters of a table that is made for `first` keys, and may grow far beyond that of `fixed`.
fn growing_config(experiment: &Experiment, fixed: &FillPlan, first: u64) -> Result<TableConfig, LabError> {
    let config = &fixed.config;
    let extent_bytes = Some(config.chunks.saturating_mul(config.chunk_bytes)).filter(|bytes| *bytes > 0);
    let options =
        PresetOptions { capacity: first, extent_bytes, ..preset_options(experiment, fixed.seed, &fixed.caps) };
    let most = config.max_entries().saturating_mul(ROOM_TO_GROW);
    preset(experiment.setting).config_growing_to(most, &options).map_err(|error| LabError::Conflict(error.to_string()))
}

/// Returns the number of inserts after which the measurement of a table ends that has so many entries, and records at
/// first.
pub(super) fn inserts_at_most(experiment: &Experiment, entries: u64, records: u64) -> u64 {
    match experiment.fill_to {
        Some(fill_to) => ((entries as f64 * fill_to / 100.0) as u64).saturating_sub(records),
        None => (entries as f64 * MOST_INSERTS) as u64,
    }
}

/// Returns the number of records before the run.
fn records_of(experiment: &Experiment, config: &TableConfig) -> u64 {
    (config.max_entries() as f64 * experiment.fill / 100.0) as u64
}

fn value_bytes_of(experiment: &Experiment) -> Option<usize> {
    experiment.value_bytes.map(|bytes| bytes as usize)
}

/// Returns the bytes of extent space that a record takes; 0 if it fits in a row.
///
/// # Errors
/// The values have a length that the table cannot hold.
fn value_space(experiment: &Experiment) -> Result<u64, LabError> {
    let records = Records::of(experiment.format, value_bytes_of(experiment));
    let records = records.map_err(|error| LabError::Conflict(error.to_string()))?;
    Ok(record_space(experiment.format, records.key_bytes(), records.value_bytes()))
}

pub(super) fn shares(mix: Mix) -> Shares {
    match mix {
        Mix::A => Shares::YCSB_A,
        Mix::B => Shares::YCSB_B,
        Mix::C => Shares::YCSB_C,
        Mix::W => Shares::W,
        Mix::AInsert => Shares::A_PRIME,
        Mix::BInsert => Shares::B_PRIME,
    }
}

fn preset(setting: Setting) -> Preset {
    if setting == Setting::Guira { Preset::Hardened } else { Preset::Paper }
}

/// Returns the client slots that an experiment needs, one for each operation at once: dead clients that are not recovered
/// yet occupy theirs, too.
fn slots_of(experiment: &Experiment) -> u32 {
    let slots = experiment.clients.saturating_mul(experiment.in_flight);
    let dead = if experiment.deaths_per_second > 0.0 { slots / 4 } else { 0 };
    slots.saturating_add(dead)
}

/// Returns the parameters of the table.
fn table_config(experiment: &Experiment, seed: u64, caps: &Caps) -> Result<TableConfig, LabError> {
    let options = preset_options(experiment, seed, caps);
    let conflict = |error: guira_layout::ConfigError| LabError::Conflict(error.to_string());
    let mut config = preset(experiment.setting).config_of_rows(ROWS_MULTIPLE, &options).map_err(conflict)?;
    if let Some(entries) = experiment.entries_per_row {
        let entry_bytes = experiment.format.entry_words() as u32 * 8;
        config.entries_per_row = entries;
        let packed = u32::from(entries) * entry_bytes + 16;
        config.row_bytes = if experiment.setting == Setting::Guira { packed.next_multiple_of(64) } else { packed };
    }
    let rows = experiment.entries.div_ceil(config.entries_per_row.into());
    config.rows = rows.next_multiple_of(ROWS_MULTIPLE);
    config.rows_per_lock = experiment.rows_per_lock.unwrap_or(config.rows_per_lock);
    config.lock_bits = experiment.lock_bits.unwrap_or(config.lock_bits);
    if experiment.lock_bits.is_some() && config.lock_bits > 1 {
        let most = (1_u32 << (config.lock_bits - 1)) - 1;
        config.max_clients = config.max_clients.min(most.min(u16::MAX.into()) as u16);
    }
    let locks = config.rows / u64::from(config.rows_per_lock);
    config.physical_locks = physical_locks(locks, config.lock_bits, caps.device_bytes);
    let factor = experiment.factor.unwrap_or_else(|| preset(experiment.setting).locality_factor());
    config.offsets = TableConfig::offset_table(factor, config.rows);
    match experiment.hashing {
        Some(Hashing::Independent) => config.offset_rule = OffsetRule::Independent,
        Some(Hashing::Dependent) | None => {}
    }
    if let Some(depth) = experiment.depth {
        config.max_path_rows = depth.saturating_add(1);
    }
    set_extent_space(experiment, &options, &mut config)?;
    config.check().map_err(conflict)?;
    Ok(config)
}

fn preset_options(experiment: &Experiment, seed: u64, caps: &Caps) -> PresetOptions {
    PresetOptions {
        capacity: experiment.entries,
        format: experiment.format,
        extent_bytes: None,
        max_clients: Some(slots_of(experiment).clamp(MIN_SLOTS, MAX_SLOTS) as u16),
        hash_seed: seed,
        device_bytes: caps.device_bytes,
    }
}

/// Gives a table whose values are in extents the space for them; other tables keep the space of their preset.
fn set_extent_space(
    experiment: &Experiment,
    options: &PresetOptions,
    config: &mut TableConfig,
) -> Result<(), LabError> {
    let each = value_space(experiment)?;
    if each == 0 {
        return Ok(());
    }
    // Inserts fill the table further: there is space for a value in every entry.
    let live = config.max_entries().saturating_mul(each);
    let extent_bytes = Some(live.saturating_add(live / FREED_SHARE));
    let sized = preset(experiment.setting).config_of_rows(ROWS_MULTIPLE, &PresetOptions { extent_bytes, ..*options });
    let sized = sized.map_err(|error| LabError::Conflict(error.to_string()))?;
    // The clients' chunks come on top, and do not make chunks larger: an owner reads the marks of whole chunks.
    let of_client = CLIENT_CHUNKS * each.div_ceil(sized.chunk_bytes);
    let clients = experiment.clients.saturating_mul(experiment.in_flight);
    config.chunk_bytes = sized.chunk_bytes;
    config.chunks = sized.chunks.saturating_add(of_client.saturating_mul(clients.into())).saturating_add(1);
    Ok(())
}

/// Returns the row of new keys, in the filled table and for its clients; `None` for their default.
fn insert_row(experiment: &Experiment) -> Option<InsertRow> {
    let chosen = experiment.insert_row.map(|row| match row {
        Choice::Primary => InsertRow::Primary,
        Choice::Emptier => InsertRow::Emptier,
    });
    // Clients that predict rows expect most keys in their first. [R-READ-10]
    if experiment.predictor_kib > 0 { Some(InsertRow::Primary) } else { chosen }
}

/// Returns the settings of the clients.
fn client_config(experiment: &Experiment, fill: &FillPlan, caps: &Caps) -> Result<ClientConfig, LabError> {
    let table = fill.table().map_err(|error| failed("the table", &error))?;
    let default = ClientConfig::for_table(&table).across(caps);
    let timeout_ns = experiment.timeout_ms.map(|timeout_ms| (timeout_ms * NS_PER_MS) as u64);
    Ok(ClientConfig {
        insert_row: fill.insert_row.unwrap_or(default.insert_row),
        covering_bytes: experiment.covering_bytes.map_or(default.covering_bytes, |bytes| bytes as usize),
        locks_per_message: experiment.locks_per_message.map_or(default.locks_per_message, u32::from),
        row_guess: match experiment.guess {
            Some(Guess::Always) => RowGuess::Always,
            Some(Guess::Rationed) | None => RowGuess::Rationed,
        },
        search: match experiment.search {
            Some(Search::DepthFirst) => SearchOrder::DepthFirst,
            Some(Search::BreadthFirst) => SearchOrder::BreadthFirst,
            None => default.search,
        },
        failure_timeout_ns: timeout_ns.unwrap_or(default.failure_timeout_ns),
        lease_timeout_ns: timeout_ns.unwrap_or(default.lease_timeout_ns),
        seed: fill.seed,
        ..default
    })
}

/// Fills the table of an experiment.
pub(super) fn filled(fill: &FillPlan, is_stopped: &dyn Fn() -> bool) -> Result<FilledTable, LabError> {
    let mut progress = |_| if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    FilledTable::new(fill, &mut progress).map_err(|error| match error {
        FillError::Record { .. } | FillError::NoRoom { .. } => {
            let entries = fill.config.max_entries();
            LabError::Unfillable {
                entries,
                percent: (fill.records * 100 + entries / 2) / entries.max(1),
                reason: error.to_string(),
            }
        }
        error => fill_error(&error),
    })
}

/// Converts an error of filling or copying a table.
pub(super) fn fill_error(error: &FillError) -> LabError {
    match error {
        FillError::Stopped => LabError::Stopped,
        FillError::Memory { needed_bytes, available_bytes } => {
            LabError::Memory { needed_bytes: *needed_bytes, free_bytes: *available_bytes }
        }
        FillError::Values { .. } | FillError::Keys { .. } => LabError::Conflict(error.to_string()),
        _ => failed("filling the table", error),
    }
}
