//! `guira ycsb`: a YCSB workload from several threads and processes at once.
//!
//! This process is the first of them. The others follow the same plan, and all phases start together; their tallies are
//! merged before any figure is computed.

mod processes;
mod report;
mod share;
pub mod worker;

use clap::Args;
use guira::admin::ClientState;
use guira::{CreateOptions, EntryFormat, Store, Url};
use guira_lab::driver::{DEFAULT_VALUE_BYTES, LoadMode, RecordFormat, Removal};
use guira_lab::workload::{Operation, WorkloadError, WorkloadName, check_value};

use self::processes::Processes;
pub use self::report::Report;
use self::report::Table;
use self::share::{Share, Verify};
use super::create::create;
use super::owner::{self, Owner};
use super::{Verdict, open_options, tls};
use crate::advice;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{Format, Output};
use crate::units::{self, counted, parse_count};

/// Client slots besides those of the workers, for other commands during the run.
const SPARE_CLIENTS: u32 = 16;
/// The largest value that a table created for a run holds in its rows.
const FIXED_VALUE_BYTES_MAX: usize = 1008;
/// Bytes of a key in a table created for a run.
const KEY_BYTES: u16 = 8;

/// Measure a table under a YCSB workload.
///
/// Reports throughput, and per kind of operation round trips, messages, bytes and latency.
///
/// A table that does not exist is created for the run and destroyed after it, also after Ctrl-C. A run that is killed
/// (SIGKILL) leaves it behind: the next run with its URL says so, and guira destroy removes it.
///
/// An existing table is used if it holds the records of such a run, with the same --records and --seed, as --keep
/// leaves it, and none that the workload would insert. Any other table is used only with --into-existing, which never
/// replaces a key that the table holds, and removes the records that the run inserted. A run that is killed (SIGKILL,
/// or a second Ctrl-C) leaves them behind.
///
/// Throughput includes the two clock readings that time an operation; --latency-every times fewer operations.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// a: half reads, half updates. b: 95 % reads, 5 % updates. c: reads. d: 95 % reads of recent records, 5 % inserts.
    /// f: half reads, half read-modify-writes. w: inserts. a': half reads, half inserts. b': 95 % reads, 5 % inserts.
    #[arg(long, value_name = "LETTER", value_parser = parse_workload)]
    pub workload: WorkloadName,
    /// Records loaded before the run.
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    pub records: u64,
    /// Number of operations of the run, of all threads together.
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    pub operations: u64,
    /// Threads of each process.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Processes that run the workload.
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub processes: u16,
    /// Skew of the popularity of records, 0 to 2: 0 is uniform, 0.99 is the default of YCSB.
    #[arg(long, value_name = "THETA", default_value_t = 0.99)]
    pub theta: f64,
    /// Seed of keys and operations: the same seed repeats the run.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Load the records first (the default). Records of an earlier run are replaced.
    #[arg(long, overrides_with = "no_load")]
    pub load: bool,
    /// The records are there already, from a run with the same seed.
    #[arg(long, overrides_with = "load")]
    pub no_load: bool,
    /// Bytes of each value. Default: the value size of the table's format, or 100.
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub value_bytes: Option<u64>,
    /// Entry format of a table that is created for the run. Default: fixed:8:8, or fixed:8:BYTES with --value-bytes.
    #[arg(long, value_name = "FORMAT")]
    pub entry: Option<EntryFormat>,
    /// Keep a table that was created for the run, or the records that the run inserted into an existing one.
    #[arg(long)]
    pub keep: bool,
    /// Use a table that holds other keys. The run fails if the table already holds the key of a record. Records
    /// that the run inserted are removed after it.
    #[arg(long, conflicts_with = "no_load")]
    pub into_existing: bool,
    /// Check that each value read is one that was written for its record.
    #[arg(long)]
    pub verify: bool,
    /// Time only every Nth operation.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub latency_every: u32,
    #[command(flatten)]
    pub owner: Owner,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

fn parse_workload(text: &str) -> Result<WorkloadName, WorkloadError> {
    text.parse()
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let (store, origin) = table(arguments, output)?;
    match origin {
        Origin::MadeHere => interrupt::arm(&arguments.url, output),
        Origin::EarlierRun | Origin::Foreign => interrupt::catch(),
    }
    let measured = measure(arguments, &store, origin, output);
    interrupt::disarm();
    if origin == Origin::MadeHere && !arguments.keep {
        let destroyed = interrupt::discard(&arguments.url);
        if measured.is_ok() {
            destroyed?;
        }
    }
    let report = measured?;
    output.answer(&report, || report.human())?;
    if let Some(removal) = report.incomplete_removal() {
        return Err(Failure::records_left(&arguments.url, removal));
    }
    Ok(if report.errors() == 0 { Verdict::Fine } else { Verdict::Negative })
}

/// The origin of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was created for the run.
    MadeHere,
    /// It existed, with the records of a run like this one.
    EarlierRun,
    /// It existed, with other records.
    Foreign,
}

/// Opens the table, or creates one.
pub fn table(arguments: &Arguments, output: &Output) -> Result<(Store, Origin), Failure> {
    match Store::open_with(&arguments.url, &owner::required(open_options()?)?) {
        Ok(store) => {
            let origin = origin(arguments, &store)?;
            if output.format() == Format::Human {
                output.human_line(&existing(&store, origin, arguments)?)?;
            }
            return Ok((store, origin));
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    if arguments.no_load {
        return Err(Failure::NotFound { url: arguments.url.clone() });
    }
    let options = options(arguments)?;
    let after = if arguments.keep { "and kept" } else { "and destroyed after it" };
    output.human_line(&format!("{} does not exist: it is created for this run {after}", arguments.url))?;
    // From here on the caller destroys it, whatever fails.
    Ok((create(&arguments.url, &options, output)?, Origin::MadeHere))
}

/// Returns the origin of an existing table; refuses a table with other records unless `--into-existing` is given.
fn origin(arguments: &Arguments, store: &Store) -> Result<Origin, Failure> {
    if arguments.into_existing {
        return Ok(Origin::Foreign);
    }
    let Arguments { url, records, seed, workload, .. } = arguments;
    if holds_records_of_run(arguments, store)? {
        if arguments.inserts() && holds_further_records(arguments, store)? {
            return Err(Failure::Misuse(format!(
                "{url} exists, and holds records of a run beyond --records {records}, so workload {workload} cannot \
                 insert them: another --seed with --into-existing gives other records; nothing was changed"
            )));
        }
        return Ok(Origin::EarlierRun);
    }
    let what = format!("{url} exists, but does not hold the records of a run with --records {records} --seed {seed}");
    let advice = match (arguments.no_load, store.stat()?.region.node()) {
        (true, _) => "--into-existing --keep, instead of --no-load, loads them beside its own records".to_owned(),
        (false, Some(_)) => INTO_EXISTING.to_owned(),
        (false, None) => match advice::destroy(url) {
            Some(advice) => format!("{INTO_EXISTING}; {advice}"),
            None => INTO_EXISTING.to_owned(),
        },
    };
    Err(Failure::Misuse(format!("{what}: {advice}; nothing was changed")))
}

/// The advice about a table with other records.
const INTO_EXISTING: &str = "--into-existing inserts them beside its own records, and removes them after the run";
/// Maximum number of records that are checked to find out whether they are a run's.
const SAMPLED_RECORDS: u64 = 4096;

/// Whether a table holds this run's records: each of a sample must have a run's value, of any version.
fn holds_records_of_run(arguments: &Arguments, store: &Store) -> Result<bool, Failure> {
    let shape = shape(arguments, store)?;
    let records = arguments.records;
    if records == 0 || records > shape.records_max() {
        return Ok(false);
    }
    let step = usize::try_from(records.div_ceil(SAMPLED_RECORDS)).unwrap_or(usize::MAX);
    let mut holds = holds(store, shape);
    for record in (0..records).step_by(step).chain([records - 1]) {
        if !holds(record)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a table holds records that this run would insert: it was loaded with more, or a run's inserts were kept.
fn holds_further_records(arguments: &Arguments, store: &Store) -> Result<bool, Failure> {
    let shape = shape(arguments, store)?;
    let end = arguments.records.saturating_add(arguments.operations.min(SAMPLED_RECORDS)).min(shape.records_max());
    let mut holds = holds(store, shape);
    for record in arguments.records..end {
        if holds(record)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns a function that tells whether a table holds a record with a run's value, of any version.
fn holds(store: &Store, shape: RecordFormat) -> impl FnMut(u64) -> Result<bool, Failure> {
    let (mut reader, mut key, mut value) = (store.reader(), Vec::new(), Vec::new());
    move |record| {
        shape.key_into(record, &mut key);
        let is_there = reader.get_into(&key, &mut value)?;
        Ok(is_there && value.len() == shape.value_bytes() && check_value(record, &value).is_ok())
    }
}

/// Returns the format of the run's records in this table.
fn shape(arguments: &Arguments, store: &Store) -> Result<RecordFormat, Failure> {
    Ok(RecordFormat::new(store.table().config().format, value_bytes(arguments)?, arguments.seed)?)
}

/// Describes an existing table. A killed run may have left it, and then its clients are dead.
fn existing(store: &Store, origin: Origin, arguments: &Arguments) -> Result<String, Failure> {
    let url = store.url();
    if origin == Origin::Foreign {
        let after = if arguments.keep { "kept" } else { "removed afterwards" };
        return Ok(format!("{url} exists: the records of this run are inserted beside its own and {after}"));
    }
    let stat = store.stat()?;
    let dead = stat.clients.iter().filter(|client| client.state == ClientState::Dead).count();
    let left = match dead {
        0 => String::new(),
        _ => format!(
            "; {} died, as in a run that was killed: each is recovered when another client needs what it held",
            counted(dead as u64, "client")
        ),
    };
    let removed = match stat.region.node() {
        None => advice::destroy(url).map_or_else(String::new, |advice| format!("; {advice}")),
        Some(_) => " by its memory node".to_owned(),
    };
    Ok(format!("{url} exists: it is used as it is, and kept{removed}{left}"))
}

/// Returns the options of a table sized for the run.
pub fn options(arguments: &Arguments) -> Result<CreateOptions, Failure> {
    let inserts = match arguments.workload {
        // 5 % or 50 % of the operations, with a margin for chance.
        WorkloadName::BPrime | WorkloadName::D => arguments.operations / 18 + 1000,
        WorkloadName::APrime => arguments.operations / 9 * 5 + 1000,
        WorkloadName::W => arguments.operations,
        _ => 0,
    };
    let capacity = arguments.records.saturating_add(inserts).max(1);
    let value_bytes = value_bytes(arguments)?;
    let format = match (arguments.entry, value_bytes) {
        (Some(format), _) => format,
        (None, None) => EntryFormat::Fixed { key_bytes: KEY_BYTES, value_bytes: 8 },
        (None, Some(bytes)) => match u16::try_from(bytes) {
            Ok(value_bytes) if bytes <= FIXED_VALUE_BYTES_MAX => {
                EntryFormat::Fixed { key_bytes: KEY_BYTES, value_bytes }
            }
            _ => EntryFormat::Bytes { inline_bytes: 64 },
        },
    };
    let workers = u32::from(arguments.threads) * u32::from(arguments.processes);
    let clients = u16::try_from((workers + SPARE_CLIENTS).max(1024)).unwrap_or(u16::MAX - 1);
    let mut options = CreateOptions::new(capacity).format(format).max_clients(clients).seed(arguments.seed);
    if let EntryFormat::Bytes { .. } = format {
        // Twice the values: places are larger than their values, and a new value is written before the old one is
        // freed.
        let each = 2 * (value_bytes.unwrap_or(DEFAULT_VALUE_BYTES) as u64 + 64);
        options = options.extent_bytes(capacity.saturating_mul(each).saturating_add(u64::from(workers) << 20));
    }
    Ok(options)
}

fn value_bytes(arguments: &Arguments) -> Result<Option<usize>, Failure> {
    let convert = |bytes| {
        usize::try_from(bytes).map_err(|_| Failure::Misuse(format!("values of {} are too large", units::bytes(bytes))))
    };
    arguments.value_bytes.map(convert).transpose()
}

/// Runs the phases in all processes, and removes the records that the run inserted into an existing table.
pub fn measure(arguments: &Arguments, store: &Store, origin: Origin, output: &Output) -> Result<Report, Failure> {
    let mut own = Share {
        url: arguments.url.to_string(),
        workload: arguments.workload.to_string(),
        records: arguments.records,
        operations: arguments.operations,
        theta: arguments.theta,
        seed: arguments.seed,
        value_bytes: value_bytes(arguments)?,
        workers: u32::from(arguments.threads) * u32::from(arguments.processes),
        first: 0,
        end: arguments.threads.into(),
        load_mode: if origin == Origin::Foreign { LoadMode::InsertOnly } else { LoadMode::Replace },
        verify: if arguments.verify { Verify::EveryRead } else { Verify::Off },
        latency_every: arguments.latency_every,
    };
    // First, so that an invalid plan is refused before any process is started.
    let driver = own.driver_of(store.clone())?;
    let mut processes = Processes::new(driver);
    for number in 1..arguments.processes {
        (own.first, own.end) = (own.end, own.end + u32::from(arguments.threads));
        processes.start(number, &own)?;
    }
    processes.ready()?;
    let measured = phases(arguments, store, origin, &mut processes, output);
    if !arguments.removes(origin, measured.is_ok()) {
        return measured;
    }
    let removal = processes.remove(output);
    match measured {
        Ok(report) => Ok(report.with_removal(removal)),
        Err(failure) => Err(failure_after_removal(&arguments.url, failure, removal)),
    }
}

/// Loads the records, if asked to, and runs the operations.
fn phases(
    arguments: &Arguments,
    store: &Store,
    origin: Origin,
    processes: &mut Processes,
    output: &Output,
) -> Result<Report, Failure> {
    let load = if arguments.no_load { None } else { Some(processes.load(output)?) };
    let run = processes.run()?;
    let fill = store.stat()?.table.fill;
    let format = store.table().config().format;
    let value_bytes = shape(arguments, store)?.value_bytes();
    let table = Table { format, value_bytes, fill, made_here: origin == Origin::MadeHere };
    Ok(Report::new(arguments, &table, load.as_ref(), &run))
}

/// The failure of a run, together with the outcome of the removal that followed it.
fn failure_after_removal(url: &Url, failure: Failure, removal: Removal) -> Failure {
    match (failure, removal) {
        (Failure::Stopped, Removal { left: 0, failure: None, .. }) => Failure::CleanedUp(url.clone()),
        (failure, Removal { left: 0, failure: None, .. }) => {
            let advice = "the records that the run inserted were removed".to_owned();
            Failure::Advised { source: Box::new(failure), advice }
        }
        (failure, removal) => {
            Failure::Advised { source: Box::new(failure), advice: Failure::records_left(url, &removal).to_string() }
        }
    }
}

impl Arguments {
    /// Whether the workload inserts records.
    fn inserts(&self) -> bool {
        self.workload.other_operation() == Operation::Insert
    }

    /// Whether to remove the records that the run inserted.
    fn removes(&self, origin: Origin, is_done: bool) -> bool {
        let is_kept = self.keep && is_done;
        match origin {
            Origin::MadeHere => false,
            Origin::EarlierRun => self.inserts() && !is_kept,
            Origin::Foreign => !is_kept,
        }
    }
}
