//! `guira quickstart`: a demonstration on real data.
//!
//! This process reads the data and gives orders to worker processes, which use the table. Results are not taken on
//! trust: what was stored is read back by a process that did not store it, and compared with the source.

mod changes;
mod frames;
mod report;
mod source;
mod steps;
pub mod worker;

use std::path::PathBuf;

use clap::Args;
use guira::Url;

use self::report::Report;
use self::source::Source;
use self::steps::Steps;
use self::worker::Task;
use super::Verdict;
use crate::failure::Failure;
use crate::input::InputFormat;
use crate::interrupt;
use crate::output::Output;

/// See it work: real data, several processes, every byte checked. Start here.
///
/// Several processes load the data into a new table, another one reads every byte back, all of them change records at
/// the same time, and the table is checked.
///
/// Without a FILE, the data is the Debian package index, or on other systems the files in /usr/share/doc.
///
/// The table is destroyed afterwards, also after Ctrl-C. A run that is killed (SIGKILL) leaves it behind: the next run
/// says so, and guira destroy removes it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Your own data, in any format that guira load reads.
    pub file: Option<PathBuf>,
    /// Format of the records. Default: detected from the first bytes.
    #[arg(long, value_enum, value_name = "FORMAT", requires = "file")]
    pub input: Option<InputFormat>,
    /// The table to create.
    #[arg(long, default_value = "shm://guira-quickstart")]
    pub url: Url,
    /// Processes that use the table at the same time.
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub processes: u32,
    /// Keep the table, unless the run is interrupted.
    #[arg(long)]
    pub keep: bool,
}

/// A worker process of quickstart.
#[derive(Debug, Args)]
pub struct WorkerArguments {
    /// The table.
    #[arg(long)]
    pub url: Url,
    /// The task to carry out.
    #[arg(long, value_enum)]
    pub task: Task,
    /// The number of the process.
    #[arg(long, default_value_t = 0)]
    pub index: u32,
    /// Number of rounds of changes.
    #[arg(long, default_value_t = 0)]
    pub rounds: u32,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let source = source(arguments, output)?;
    let mut report = Report::new(&arguments.url, arguments.processes);
    let steps = Steps { url: &arguments.url, processes: arguments.processes, source: &source, output };
    let prepared = steps.create()?;
    interrupt::arm(&arguments.url, output);
    let shown = steps.show(&prepared, &mut report);
    interrupt::disarm();
    // Whatever happened, the table is removed unless `--keep` is given.
    let removed = if arguments.keep { Ok(()) } else { interrupt::discard(&arguments.url) };
    shown?;
    removed?;
    (report.kept, report.ok) = (arguments.keep, report.is_ok());
    output.answer(&report, || report.next_steps())?;
    Ok(if report.ok { Verdict::Fine } else { Verdict::Negative })
}

fn source(arguments: &Arguments, output: &Output) -> Result<Source, Failure> {
    match &arguments.file {
        Some(path) if path == std::path::Path::new("-") => {
            Err(Failure::Misuse("quickstart reads its input more than once: name a file instead of -".to_owned()))
        }
        Some(path) => Ok(Source::File(path.clone(), arguments.input)),
        None => {
            let source = Source::without_file()?;
            if source != Source::DebianIndex {
                output.human_line(&format!("No Debian package index found; using {} instead.", source.name()))?;
            }
            Ok(source)
        }
    }
}
