//! `guira ycsb`: a YCSB workload from several threads and processes at once.
//!
//! This process is the first of them. The others take the same plan, and all phases start together; their tallies are
//! merged before any figure is computed.

mod report;
mod share;
pub mod worker;

use std::sync::Mutex;

use clap::Args;
use guira::{ClientState, CreateOptions, EntryFormat, Store, Url};
use guira_lab::driver::{DEFAULT_VALUE_BYTES, Driver, PhaseTally};
use guira_lab::workload::{WorkloadError, WorkloadName};

pub use self::report::Report;
use self::report::Table;
use self::share::{Order, Share, Verify};
use super::create::create;
use super::{Verdict, open_options};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{Format, Output};
use crate::progress::Progress;
use crate::units::{self, count, counted, parse_count};
use crate::workers::Worker;

/// Client slots beside those of the workers: for whoever looks at the table meanwhile.
const SPARE_CLIENTS: u32 = 16;
/// The largest value that a table made for a run holds in its rows.
const FIXED_VALUE_BYTES_MAX: usize = 1008;
/// Keys of a table made for a run.
const KEY_BYTES: u16 = 8;

/// Measure a table under a YCSB workload.
///
/// Says the throughput, and per kind of operation round trips, messages, bytes and latency.
///
/// A table that does not exist is made for the run and destroyed after it, also after Ctrl-C. A run that is killed
/// (SIGKILL) leaves it: the next run with its URL says so, and guira destroy removes it. Throughput includes the two
/// clock readings that timing an operation costs; --latency-every times fewer of them.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// a: half reads, half updates. b: 95 % reads, 5 % updates. c: reads. d: 95 % reads of recent records, 5 % inserts.
    /// f: half reads, half read-modify-writes. w: inserts.
    #[arg(long, value_name = "LETTER", value_parser = parse_workload)]
    pub workload: WorkloadName,
    /// Records loaded before the run.
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    pub records: u64,
    /// Operations of the run, of all threads together.
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    pub operations: u64,
    /// Threads in each process.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Processes.
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub processes: u16,
    /// How uneven the popularity of records is: 0 is even, 0.99 is YCSB's.
    #[arg(long, value_name = "THETA", default_value_t = 0.99)]
    pub theta: f64,
    /// Seed of keys and operations: the same seed repeats them.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Load the records first (the default). Records that exist are replaced.
    #[arg(long, overrides_with = "no_load")]
    pub load: bool,
    /// The records are there already, from a run with the same seed.
    #[arg(long, overrides_with = "load")]
    pub no_load: bool,
    /// Bytes of each value. Default: what the table's format says, or 100.
    #[arg(long, value_name = "BYTES", value_parser = units::parse_bytes)]
    pub value_bytes: Option<u64>,
    /// Entry format of a table that is made for the run. Default: fixed:8:8, or fixed:8:BYTES as --value-bytes says.
    #[arg(long, value_name = "FORMAT")]
    pub entry: Option<EntryFormat>,
    /// Keep a table that was made for the run.
    #[arg(long)]
    pub keep: bool,
    /// Check that each value read is one that was written for its record.
    #[arg(long)]
    pub verify: bool,
    /// Time every Nth operation only.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub latency_every: u32,
}

fn parse_workload(text: &str) -> Result<WorkloadName, WorkloadError> {
    text.parse()
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let (store, origin) = table(arguments, output)?;
    match origin {
        Origin::MadeHere => interrupt::arm(&arguments.url, output),
        Origin::Existing => interrupt::note(),
    }
    let measured = measure(arguments, &store, origin, output);
    interrupt::disarm();
    if origin == Origin::MadeHere && !arguments.keep {
        let destroyed = Store::destroy(&arguments.url);
        if measured.is_ok() {
            destroyed?;
        }
    }
    let report = measured?;
    output.answer(&report, || report.human())?;
    Ok(if report.errors() == 0 { Verdict::Fine } else { Verdict::Negative })
}

/// Where the table comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was there.
    Existing,
    /// It was made for the run.
    MadeHere,
}

/// Opens the table, or makes one.
pub fn table(arguments: &Arguments, output: &Output) -> Result<(Store, Origin), Failure> {
    match Store::open_with(&arguments.url, &open_options()?) {
        Ok(store) => {
            if output.format() == Format::Human {
                output.say(&existing(&store)?)?;
            }
            return Ok((store, Origin::Existing));
        }
        Err(error) if error.is_absent() => {}
        Err(error) => return Err(error.into()),
    }
    if arguments.no_load {
        return Err(Failure::Misuse(format!("{} does not exist, and --no-load would measure misses", arguments.url)));
    }
    let options = options(arguments)?;
    let after = if arguments.keep { "and kept" } else { "and destroyed after it" };
    output.say(&format!("{} does not exist: it is made for this run {after}", arguments.url))?;
    // From here on, whatever fails, the caller destroys it.
    Ok((create(&arguments.url, &options, output)?, Origin::MadeHere))
}

/// What is to be said of a table that was there. It may be what a run left that was killed, and then its clients died.
fn existing(store: &Store) -> Result<String, Failure> {
    let url = store.url();
    let stat = store.stat()?;
    let dead = stat.clients.iter().filter(|client| client.state == ClientState::Dead).count();
    let left = match dead {
        0 => String::new(),
        _ => format!(
            "; {} of it died, as in a run that was killed: what is left of one is cleaned up when it is met",
            counted(dead as u64, "client")
        ),
    };
    let removed = match stat.region.node() {
        None => format!("; guira destroy {url} removes it"),
        Some(_) => " by its memory node".to_owned(),
    };
    Ok(format!("{url} exists: it is used as it is, and kept{removed}{left}"))
}

/// A table sized for the run.
pub fn options(arguments: &Arguments) -> Result<CreateOptions, Failure> {
    let inserts = match arguments.workload {
        // 5 % of the operations, with room for chance.
        WorkloadName::D => arguments.operations / 18 + 1000,
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
        // Twice the values: places are larger than what they hold, and a new value is written before the old one is
        // freed.
        let each = 2 * (value_bytes.unwrap_or(DEFAULT_VALUE_BYTES) as u64 + 64);
        options = options.extent_bytes(capacity.saturating_mul(each).saturating_add(u64::from(workers) << 20));
    }
    Ok(options)
}

fn value_bytes(arguments: &Arguments) -> Result<Option<usize>, Failure> {
    let convert = |bytes| usize::try_from(bytes).map_err(|_| Failure::Misuse(format!("values of {bytes} bytes")));
    arguments.value_bytes.map(convert).transpose()
}

/// Runs the phases in all processes.
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
        verify: if arguments.verify { Verify::EveryRead } else { Verify::Off },
        latency_every: arguments.latency_every,
    };
    // First, so that a plan that cannot be is refused before any process is started.
    let driver = own.driver_of(store.clone())?;
    let value_bytes = own.shape(store)?.value_bytes();
    let mut processes = Processes { own: driver, others: Vec::new() };
    for number in 1..arguments.processes {
        (own.first, own.end) = (own.end, own.end + u32::from(arguments.threads));
        processes.start(number, &own)?;
    }
    processes.answers::<()>()?;
    let load = if arguments.no_load { None } else { Some(processes.load(output)?) };
    let run = processes.phase(&Order::Run, &|_| ())?;
    let fill = store.stat()?.table.fill;
    let format = store.table().config().format;
    let table = Table { format, value_bytes, fill, made_here: origin == Origin::MadeHere };
    Ok(Report::new(arguments, &table, load.as_ref(), &run))
}

/// This process's share, and the other processes.
struct Processes {
    own: Driver,
    others: Vec<Worker>,
}

impl Processes {
    fn start(&mut self, number: u16, share: &Share) -> Result<(), Failure> {
        let mut worker = Worker::start(format!("process {number}"), &["ycsb-worker"])?;
        worker.send(&Order::Prepare(share.clone()))?;
        self.others.push(worker);
        Ok(())
    }

    fn answers<T: serde::de::DeserializeOwned>(&mut self) -> Result<Vec<T>, Failure> {
        self.others.iter_mut().map(Worker::receive).collect()
    }

    /// Lets every process load its share. How far all have got is told by how far this one has: shares are equal.
    fn load(&mut self, output: &Output) -> Result<PhaseTally, Failure> {
        let processes = 1 + self.others.len() as u64;
        let total = self.own.records() * processes;
        let shown = Mutex::new(Progress::new(output, "loading", Some(total)));
        let show = |own: u64| {
            // Whoever finds it in use leaves the showing to the other thread.
            if let Ok(mut progress) = shown.try_lock() {
                let done = own * processes;
                progress.tick(done, || format!("about {} of {}", count(done), counted(total, "record")));
            }
        };
        let tally = self.phase(&Order::Load, &show);
        if let Ok(mut progress) = shown.lock() {
            progress.finish();
        }
        tally
    }

    /// Lets every process carry out a phase, this one included.
    fn phase(&mut self, order: &Order, progress: &(dyn Fn(u64) + Sync)) -> Result<PhaseTally, Failure> {
        for other in &mut self.others {
            other.send(order)?;
        }
        let mut total = order.carry_out(&mut self.own, progress)?;
        self.answers()?.into_iter().for_each(|tally| total.merge(tally));
        Ok(total)
    }
}
