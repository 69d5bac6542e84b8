//! `guira bench peers`: compares Guira with alternatives.
//!
//! The peers are libraries and servers that users of Guira do not need, so a feature of this package compiles them in.
//! Without it the command says how to enable it.

use std::path::PathBuf;

use clap::Args;

use super::Verdict;
use crate::failure::Failure;
use crate::output::Output;
use crate::units::{parse_bytes, parse_count};

#[cfg(not(feature = "peers"))]
use absent as carry_out;
#[cfg(feature = "peers")]
use present as carry_out;

/// Compare Guira with Redis, memcached, LMDB, concurrent maps and bare memory, in one run on this machine.
///
/// All systems are loaded with the same records and timed in turn, round after round; every answer is checked. Servers
/// are started for the run on Unix sockets, write nothing to disk, and are stopped after it; those that are not
/// installed are left out. A full run takes about ten minutes and 4 GiB of memory.
///
/// With --tcp, a memory node (guira serve), Redis and memcached are compared over TCP on the loopback interface: how
/// many reads and updates each answers per second of its core.
///
/// With --growth, clients insert keys into tables that were made for a few: Guira's, also while its clients are killed,
/// dashmap, and Redis. Their inserts are counted in windows of 100 ms. A full run takes some five minutes and 6 GiB.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Use small sizes for a first impression, in well under a minute. The figures mean little.
    #[arg(long)]
    pub quick: bool,
    /// Number of records with values of 8 bytes [default: 10M, with --quick 20k].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub records: Option<u64>,
    /// Number of lookups in one measurement of a table or map; slower systems get fixed fractions of it [default: 4M,
    /// with --quick 32k].
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub operations: Option<u64>,
    /// Number of rounds; the median counts [default: 5, with --quick 3].
    #[arg(long, value_name = "N")]
    pub rounds: Option<u32>,
    /// Total size of the values in each system for longer values [default: 256MiB, with --quick 8MiB].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub value_memory: Option<u64>,
    /// Seed of keys and operations.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Only these systems: guira, raw, dashmap, papaya, lmdb, redis, memcached.
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    pub only: Vec<String>,
    /// All systems but these.
    #[arg(long, value_name = "SYSTEM", value_delimiter = ',')]
    pub skip: Vec<String>,
    /// Compare over TCP, with clients on other processors than the servers. --operations is the number in one
    /// measurement without pipelining [default: 50k, with --quick 2k]; --records [default: 1M, with --quick 50k].
    #[arg(long)]
    pub tcp: bool,
    /// Numbers of connections, one measurement for each [default: 1,16,64, with --quick 1,16].
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "tcp")]
    pub connections: Vec<usize>,
    /// Numbers of operations in flight on each connection, one measurement for each [default: 1,16].
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "tcp")]
    pub depths: Vec<usize>,
    /// Draw keys uniformly instead of from Zipf 0.99, so that clients rarely need the same row.
    #[arg(long, requires = "tcp")]
    pub uniform: bool,
    /// Compare how tables grow. --records is the number of keys in the end [default: 32M, with --quick 640k].
    #[arg(long, conflicts_with_all = ["tcp", "operations", "rounds", "value_memory"])]
    pub growth: bool,
    /// Number of keys that tables are made for at first [default: 1M, with --quick 20k].
    #[arg(long, value_name = "N", requires = "growth", value_parser = parse_count)]
    pub first: Option<u64>,
    /// Number of clients that insert at the same time.
    #[arg(long, value_name = "N", requires = "growth", default_value_t = 8)]
    pub clients: usize,
    /// Draw the result into this SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Write peers.json, peers.svg and peers.md into this directory; with --tcp, tcp.json, tcp.svg and tcp.md; with
    /// --growth, growth.json, growth.svg and growth.md.
    #[arg(long, value_name = "DIRECTORY")]
    pub publish: Option<PathBuf>,
}

/// The work of a client of `bench peers --growth`.
#[derive(Debug, Args)]
pub struct InserterArguments {
    /// The file of the table.
    pub file: PathBuf,
    /// The first key.
    pub first: u64,
    /// The key behind the last.
    pub end: u64,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    carry_out::run(arguments, output)
}

/// Runs the second client process.
pub fn help() -> Result<Verdict, Failure> {
    carry_out::help()
}

/// Runs the server that does nothing.
pub fn serve_bare() -> Result<Verdict, Failure> {
    carry_out::serve_bare()
}

/// Inserts keys for `bench peers --growth`.
pub fn insert(arguments: &InserterArguments) -> Result<Verdict, Failure> {
    carry_out::insert(arguments)
}

#[cfg(not(feature = "peers"))]
mod absent {
    use super::*;

    const HOW: &str = "this guira was built without the systems to compare with; \
        run: cargo run --release -p guira-cli --features peers -- bench peers";

    pub fn run(_arguments: &Arguments, _output: &Output) -> Result<Verdict, Failure> {
        help()
    }

    pub fn help() -> Result<Verdict, Failure> {
        Err(Failure::Misuse(HOW.to_owned()))
    }

    pub fn serve_bare() -> Result<Verdict, Failure> {
        help()
    }

    pub fn insert(_arguments: &InserterArguments) -> Result<Verdict, Failure> {
        help()
    }
}

#[cfg(feature = "peers")]
mod present {
    use std::fs;
    use std::io;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use guira_peers::{
        GrowthOptions, Needs, Options, PeersError, Popularity, Prepared, ProgressFn, System, TcpOptions, growth_human,
        growth_markdown, growth_svg, human, markdown, run_growth, run_tcp, serve_helper, serve_inserter, svg,
        tcp_human, tcp_markdown, tcp_svg,
    };

    use super::*;
    use crate::failure::Loaded;
    use crate::interrupt;
    use crate::progress::Progress;
    use crate::units::{bytes, counted};

    /// Default sizes of a run.
    struct Sizes {
        records: u64,
        operations: u64,
        rounds: u32,
        value_memory_bytes: u64,
    }

    const FULL: Sizes = Sizes { records: 10_000_000, operations: 4_000_000, rounds: 5, value_memory_bytes: 256 << 20 };
    const QUICK: Sizes = Sizes { records: 20_000, operations: 32_000, rounds: 3, value_memory_bytes: 8 << 20 };

    const FULL_TCP: Sizes = Sizes { records: 1_000_000, operations: 50_000, rounds: 5, value_memory_bytes: 0 };
    const QUICK_TCP: Sizes = Sizes { records: 50_000, operations: 2_000, rounds: 3, value_memory_bytes: 0 };
    const FULL_CONNECTIONS: [usize; 3] = [1, 16, 64];
    const QUICK_CONNECTIONS: [usize; 2] = [1, 16];
    const DEPTHS: [usize; 2] = [1, 16];

    /// Keys in the end, and those that tables are made for.
    const FULL_GROWTH: (u64, u64) = (32_000_000, 1_000_000);
    const QUICK_GROWTH: (u64, u64) = (640_000, 20_000);
    const KILL_EVERY: Duration = Duration::from_millis(100);

    /// The command that runs this program from the repository.
    const PROGRAM: &str = "cargo run --release -p guira-cli --features peers --";

    /// Asks the C library for huge pages: Guira's table has them, and the maps should not be slower for lack of them.
    const MALLOC: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

    pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
        with_huge_pages()?;
        if arguments.tcp {
            return over_tcp(arguments, output);
        }
        if arguments.growth {
            return growing(arguments, output);
        }
        let prepared = Prepared::new(options(arguments)?)?;
        prepared.missing().for_each(|missing| output.note(missing));
        note_needs(&prepared.needs, output);
        interrupt::catch();
        let report = watched(output, |watch| prepared.run(watch))?;
        let table = |plot: &str| markdown(&report, plot, &command_line());
        publish(arguments, "peers", &report, &svg(&report), table)?;
        output.answer(&report, || human(&report))?;
        Ok(Verdict::Fine)
    }

    fn note_needs(needs: &Needs, output: &Output) {
        output.note(&format!(
            "this takes about {} and {} of memory",
            counted(needs.seconds.div_ceil(60), "minute"),
            bytes(needs.memory_bytes)
        ));
    }

    fn over_tcp(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
        let options = tcp_options(arguments)?;
        interrupt::catch();
        let report = watched(output, |watch| run_tcp(&options, watch))?;
        let table = |plot: &str| tcp_markdown(&report, plot, &command_line());
        publish(arguments, "tcp", &report, &tcp_svg(&report), table)?;
        output.answer(&report, || tcp_human(&report))?;
        Ok(Verdict::Fine)
    }

    fn growing(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
        let program = std::env::current_exe().map_err(Failure::host("find this program"))?;
        let (keys, first) = if arguments.quick { QUICK_GROWTH } else { FULL_GROWTH };
        let options = GrowthOptions {
            first: arguments.first.unwrap_or(first),
            keys: arguments.records.unwrap_or(keys),
            clients: arguments.clients,
            kill_every: KILL_EVERY,
            only: names(&arguments.only)?,
            skip: names(&arguments.skip)?,
            inserter: vec![program.into(), "bench".into(), "peers-inserter".into()],
        };
        note_needs(&options.needs(), output);
        interrupt::catch();
        let report = watched(output, |watch| run_growth(&options, watch))?;
        let table = |plot: &str| growth_markdown(&report, plot, &command_line());
        publish(arguments, "growth", &report, &growth_svg(&report), table)?;
        output.answer(&report, || growth_human(&report))?;
        let is_fine = report.curves.iter().all(|curve| curve.problems.is_none_or(|problems| problems == 0));
        Ok(if is_fine { Verdict::Fine } else { Verdict::Negative })
    }

    /// Restarts this program in the same process with huge pages for its allocations, because the C library reads its
    /// tunables when a program starts. A value that is already set is kept.
    fn with_huge_pages() -> Result<(), Failure> {
        let (name, value) = MALLOC;
        if std::env::var_os(name).is_some() {
            return Ok(());
        }
        let program = std::env::current_exe().map_err(Failure::host("find this program"))?;
        let error = Command::new(program).args(std::env::args_os().skip(1)).env(name, value).exec();
        Err(Failure::host("restart this program")(error))
    }

    pub fn help() -> Result<Verdict, Failure> {
        serve_helper(io::stdin().lock(), io::stdout().lock())?;
        Ok(Verdict::Fine)
    }

    pub fn serve_bare() -> Result<Verdict, Failure> {
        guira_peers::serve_bare(io::stdout().lock())?;
        Ok(Verdict::Fine)
    }

    pub fn insert(arguments: &InserterArguments) -> Result<Verdict, Failure> {
        let InserterArguments { file, first, end } = arguments;
        serve_inserter(file, *first, *end, io::stdin().lock(), io::stdout().lock())?;
        Ok(Verdict::Fine)
    }

    fn names(texts: &[String]) -> Result<Vec<System>, PeersError> {
        texts.iter().map(|text| text.parse()).collect()
    }

    fn tcp_options(arguments: &Arguments) -> Result<TcpOptions, Failure> {
        let (sizes, connections) =
            if arguments.quick { (QUICK_TCP, &QUICK_CONNECTIONS[..]) } else { (FULL_TCP, &FULL_CONNECTIONS[..]) };
        let operations = arguments.operations.unwrap_or(sizes.operations);
        let or = |given: &[usize], default: &[usize]| if given.is_empty() { default.to_vec() } else { given.to_vec() };
        Ok(TcpOptions {
            records: arguments.records.unwrap_or(sizes.records),
            operations: usize::try_from(operations).unwrap_or(usize::MAX),
            rounds: arguments.rounds.unwrap_or(sizes.rounds),
            seed: arguments.seed,
            popularity: if arguments.uniform { Popularity::Uniform } else { Popularity::Zipf },
            connections: or(&arguments.connections, connections),
            depths: or(&arguments.depths, &DEPTHS),
            only: names(&arguments.only)?,
            skip: names(&arguments.skip)?,
            program: std::env::current_exe().map_err(Failure::host("find this program"))?,
        })
    }

    fn options(arguments: &Arguments) -> Result<Options, Failure> {
        let sizes = if arguments.quick { QUICK } else { FULL };
        let operations = arguments.operations.unwrap_or(sizes.operations);
        let program = std::env::current_exe().map_err(Failure::host("find this program"))?;
        Ok(Options {
            records: arguments.records.unwrap_or(sizes.records),
            operations: usize::try_from(operations).unwrap_or(usize::MAX),
            rounds: arguments.rounds.unwrap_or(sizes.rounds),
            value_memory_bytes: arguments.value_memory.unwrap_or(sizes.value_memory_bytes),
            seed: arguments.seed,
            only: names(&arguments.only)?,
            skip: names(&arguments.skip)?,
            helper: vec![program.into(), "bench".into(), "peers-helper".into()],
        })
    }

    /// Shows how far `run` has got, and ends it when that is wanted.
    fn watched<R>(
        output: &Output,
        run: impl FnOnce(&mut ProgressFn<'_>) -> Result<R, PeersError>,
    ) -> Result<R, Failure> {
        let mut shown: Option<(String, Progress)> = None;
        let report = run(&mut |what, done, total| {
            if interrupt::requested() {
                return Err(PeersError::Interrupted);
            }
            match &mut shown {
                Some((showing, progress)) if showing == what => progress.tick(done, || format!("{done} of {total}")),
                _ => {
                    if let Some((_, progress)) = &mut shown {
                        progress.finish();
                    }
                    shown = Some((what.to_owned(), Progress::new(output, what.to_owned(), Some(total))));
                }
            }
            Ok(())
        });
        if let Some((_, progress)) = &mut shown {
            progress.finish();
        }
        Ok(report?)
    }

    /// Writes the plot and the published files, whose names begin with `name`. `table` gets the name of the plot.
    fn publish(
        arguments: &Arguments,
        name: &str,
        report: &impl serde::Serialize,
        plot: &str,
        table: impl FnOnce(&str) -> String,
    ) -> Result<(), Failure> {
        if let Some(file) = &arguments.plot {
            write(file, plot)?;
        }
        if let Some(directory) = &arguments.publish {
            fs::create_dir_all(directory).map_err(Failure::host(format!("create {}", directory.display())))?;
            let plot_file = format!("{name}.svg");
            write(&directory.join(format!("{name}.json")), &json(report)?)?;
            write(&directory.join(&plot_file), plot)?;
            write(&directory.join(format!("{name}.md")), &table(&plot_file))?;
        }
        Ok(())
    }

    fn json(report: &impl serde::Serialize) -> Result<String, Failure> {
        let json = serde_json::to_string_pretty(report);
        Ok(json.map_err(|error| Failure::host("write JSON")(error.into()))? + "\n")
    }

    /// Returns the command that repeats this run from the repository.
    fn command_line() -> String {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        format!("{PROGRAM} {}", arguments.join(" "))
    }

    fn write(file: &Path, text: &str) -> Result<(), Failure> {
        fs::write(file, text).map_err(Failure::host(format!("write {}", file.display())))
    }

    impl From<PeersError> for Failure {
        fn from(error: PeersError) -> Failure {
            match error {
                PeersError::Options(text) => Failure::Misuse(text),
                PeersError::Store(error) => Failure::Store(error),
                PeersError::Interrupted => Failure::Interrupted(Loaded(0)),
                error => Failure::Peers(error.to_string()),
            }
        }
    }
}
