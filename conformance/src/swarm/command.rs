//! The commands `soak` (many seeds), `replay` (one seed, in words) and `storm` (hundreds of deaths per second), as
//! `cargo xtask` runs them.
//!
//! Exit code 0 means that every seed passed, 1 that one failed, 2 that the command line was not understood, and 130
//! that the run was interrupted, in which case the results so far are printed.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use guira_lab::simulated::LockElement;
use guira_rcuckoo::Table;

use super::describe::describe;
use super::run::{run, run_behind, run_setup};
use super::setup::Setup;
use super::stores::Baseline;
use super::tally::Counts;
use crate::storm::{self, Storm, StormStats, Victims};

/// Default number of seeds of a soak.
const SOAK_SEEDS: u64 = 100_000;
/// Events that a replay keeps, which are all of most runs.
const REPLAY_EVENTS: usize = 1 << 16;
/// Interval of progress lines in milliseconds, on a terminal, where they replace each other, and elsewhere.
const TERMINAL_MS: u64 = 500;
const FILE_MS: u64 = 30_000;
/// Failures after which a soak stops even with `--keep-going`.
const MOST_FAILURES: usize = 100;
const INTERRUPTED: u8 = 130;
const USAGE: &str = "\
usage: swarm soak [--from N] [--seeds N] [--threads N] [--growth | --element | --store STORE] [--keep-going]
                  [--format human|json]
       swarm replay SEED [--growth | --element | --store STORE] [--format human|json]
       swarm storm [--seconds S] [--deaths-per-second N] [--aimed] [--keys N] [--seed N] [--format human|json]
stores: table (Guira's own, unless another is chosen), clover, linear, cuckoo, dummy";
const STORES: &str = "one of table, clover, linear, cuckoo and dummy";
/// Default length of a storm, in milliseconds of virtual time.
const STORM_MS: u64 = 1_000;
const STORM_DEATHS: u64 = 500;
const STORM_KEYS: u64 = 1_000_000;
/// Longest virtual time of the baseline without deaths, in nanoseconds; a longer one would show nothing new.
const MAX_BASELINE_NS: u64 = 10_000_000_000;

/// The stores that seeds draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// Any table, as in the tests.
    Tables,
    /// Tables that grow throughout: `--growth`.
    GrowingTables,
    /// Tables behind an element: `--element`.
    TablesBehindElement,
    /// A store to which RCuckoo is compared.
    Store(Baseline),
}

/// The result of a run.
struct Ran {
    /// The drawn parameters.
    setup: String,
    counts: Counts,
    log_hash: u64,
    wrong: Vec<String>,
    /// The run in words, if events were kept.
    description: String,
}

impl Subject {
    /// Returns the one with a name.
    fn of_name(name: &str) -> Option<Subject> {
        let store = || Baseline::ALL.into_iter().find(|store| store.name() == name).map(Subject::Store);
        if name == "table" { Some(Subject::Tables) } else { store() }
    }

    fn run(self, seed: u64, keep_events: usize) -> Ran {
        let run = match self {
            Subject::Tables => run(seed, keep_events),
            Subject::GrowingTables => run_setup(Setup::growing(seed), keep_events),
            Subject::TablesBehindElement => {
                let element = |table: &Table| LockElement::new(*table.locks());
                run_behind(Setup::behind_element(seed), keep_events, element)
            }
            Subject::Store(store) => {
                let run = store.run(seed, keep_events);
                let description = if keep_events > 0 { run.describe() } else { String::new() };
                let (setup, counts) = (run.setup.to_string(), run.counts);
                return Ran { setup, counts, log_hash: run.log_hash, wrong: run.wrong, description };
            }
        };
        let mut counts = Counts::default();
        counts.add(&run.tally.counts());
        let description = if keep_events > 0 { describe(&run) } else { String::new() };
        Ran { setup: run.setup.to_string(), counts, log_hash: run.log_hash, wrong: run.wrong, description }
    }

    /// Returns the command that repeats a seed.
    fn replay(self, seed: u64) -> String {
        match self {
            Subject::Tables => format!("cargo xtask replay {seed}"),
            Subject::GrowingTables => format!("cargo xtask replay {seed} --growth"),
            Subject::TablesBehindElement => format!("cargo xtask replay {seed} --element"),
            Subject::Store(store) => format!("cargo xtask replay {seed} --store {}", store.name()),
        }
    }
}

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Command {
    Soak { from: u64, seeds: u64, threads: usize, subject: Subject, keeps_going: bool },
    Replay { seed: u64, subject: Subject },
    Storm { storm: Storm },
}

/// Carries out the command that the arguments name.
pub fn command(arguments: impl Iterator<Item = String>) -> ExitCode {
    let (command, is_json) = match parse(arguments) {
        Ok(parsed) => parsed,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match command {
        Command::Soak { from, seeds, threads, subject, keeps_going } => {
            soak(from..from.saturating_add(seeds), threads, subject, keeps_going, is_json)
        }
        Command::Replay { seed, subject } => replay(seed, subject, is_json),
        Command::Storm { storm } => compare(&storm, is_json),
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<(Command, bool), String> {
    let name = arguments.next().ok_or("a command is missing: soak, replay or storm")?;
    let (mut from, mut seeds, mut seed, mut keeps_going, mut is_json) = (0, SOAK_SEEDS, None, false, false);
    let mut storm = Storm {
        seed: 1,
        keys: STORM_KEYS,
        span_ns: STORM_MS * 1_000_000,
        deaths_per_second: STORM_DEATHS,
        victims: Victims::Any,
    };
    let (mut threads, mut subject) = (thread::available_parallelism().map_or(1, usize::from), None);
    let mut choose = |chosen: Subject| match subject.replace(chosen) {
        Some(other) if other != chosen => Err("choose --growth, --element or one --store".to_owned()),
        _ => Ok(()),
    };
    while let Some(argument) = arguments.next() {
        let option = argument.as_str();
        match option {
            "--from" => from = value(option, &mut arguments, "a seed", |text| text.parse().ok())?,
            "--seeds" => seeds = value(option, &mut arguments, "a number of seeds", |text| text.parse().ok())?,
            "--threads" => {
                let threads_of = |text: &str| text.parse().ok().filter(|threads| *threads > 0);
                threads = value(option, &mut arguments, "a number of threads from 1", threads_of)?;
            }
            "--seconds" => storm.span_ns = value(option, &mut arguments, "seconds from 0.001 to 999999", nanoseconds)?,
            "--deaths-per-second" => {
                storm.deaths_per_second =
                    value(option, &mut arguments, "a number of deaths", |text| text.parse().ok())?;
            }
            "--aimed" => storm.victims = Victims::LockHolders,
            "--keys" => {
                let keys_of = |text: &str| text.parse().ok().filter(|keys| (1_000..1 << 31).contains(keys));
                storm.keys = value(option, &mut arguments, "a number of keys from 1000 to 2147483647", keys_of)?;
            }
            "--seed" => storm.seed = value(option, &mut arguments, "a seed", |text| text.parse().ok())?,
            "--growth" => choose(Subject::GrowingTables)?,
            "--element" => choose(Subject::TablesBehindElement)?,
            "--store" => choose(value(option, &mut arguments, STORES, Subject::of_name)?)?,
            "--keep-going" => keeps_going = true,
            "--format" => is_json = value(option, &mut arguments, "human or json", format_of)?,
            number => seed = Some(number.parse().map_err(|_| format!("{number} is not an option or a seed"))?),
        }
    }
    let chosen = subject.unwrap_or(Subject::Tables);
    let command = match (name.as_str(), seed) {
        ("soak", None) => Command::Soak { from, seeds, threads, subject: chosen, keeps_going },
        ("replay", Some(seed)) => Command::Replay { seed, subject: chosen },
        ("storm", None) if subject.is_some() => return Err("storm has Guira's own tables only".to_owned()),
        ("storm", None) => Command::Storm { storm },
        ("replay", None) => return Err("replay needs a seed".to_owned()),
        ("soak" | "storm", Some(seed)) => return Err(format!("{name} takes no single seed, as {seed}")),
        _ => return Err(format!("there is no command {name}: choose soak, replay or storm")),
    };
    Ok((command, is_json))
}

/// Takes the value of an option, which is `expected`.
fn value<T>(
    option: &str,
    arguments: &mut impl Iterator<Item = String>,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, String> {
    let text = arguments.next().ok_or_else(|| format!("{option} needs a value: {expected}"))?;
    parse(&text).ok_or_else(|| format!("{option} is {text}, but must be {expected}"))
}

/// Whether the format is that of JSON.
fn format_of(text: &str) -> Option<bool> {
    ["human", "json"].contains(&text).then_some(text == "json")
}

/// Parses seconds, whole or fractional, into nanoseconds.
fn nanoseconds(seconds: &str) -> Option<u64> {
    let seconds: f64 = seconds.parse().ok().filter(|seconds| (0.001..1e6).contains(seconds))?;
    Some((seconds * 1e9) as u64)
}

/// Runs a storm and its baseline without deaths, in parallel if there are two cores, and compares them.
fn compare(storm: &Storm, is_json: bool) -> ExitCode {
    let baseline = Storm { deaths_per_second: 0, span_ns: storm.span_ns.min(MAX_BASELINE_NS), ..*storm };
    let run = |name: &'static str, storm: Storm| {
        let (started, mut next) = (Instant::now(), Duration::ZERO);
        let mut progress = |passed_ns: u64| {
            if started.elapsed() >= next {
                let (passed, all) = (passed_ns as f64 / 1e9, storm.span_ns as f64 / 1e9);
                eprintln!("{name}: {passed:.3} of {all:.3} simulated s after {:.0} s", started.elapsed().as_secs_f64());
                next = started.elapsed() + Duration::from_secs(10);
            }
        };
        storm::storm(&storm, &mut progress)
    };
    let (stormy, quiet) = match thread::available_parallelism().map_or(1, usize::from) {
        1 => (run("storm", *storm), run("baseline", baseline)),
        _ => thread::scope(|scope| {
            let quiet = scope.spawn(|| run("baseline", baseline));
            let stormy = run("storm", *storm);
            quiet.join().map_or_else(|panic| std::panic::resume_unwind(panic), |quiet| (stormy, quiet))
        }),
    };
    let rate = |stats: &StormStats, of: &Storm| stats.operations as f64 / of.span_ns as f64 * 1e3;
    let ratio = rate(&stormy, storm) / rate(&quiet, &baseline).max(f64::MIN_POSITIVE);
    if is_json {
        println!(
            "{{\"storm\": {}, \"calm\": {}, \"ratio\": {ratio:.4}}}",
            stats_json(&stormy, storm),
            stats_json(&quiet, &baseline)
        );
    } else {
        println!("{storm:?}");
        for (name, stats, of) in [("storm", &stormy, storm), ("baseline", &quiet, &baseline)] {
            println!(
                "{name}: {:.2} million operations per second; {} clients died, {} were recovered, \
                 {} commits completed; the longest operation took {:.3} ms; {} operations of watched keys are \
                 linearizable; {} million verbs",
                rate(stats, of),
                stats.deaths,
                stats.recoveries,
                stats.replays,
                stats.longest_ns as f64 / 1e6,
                stats.watched,
                stats.verbs / 1_000_000
            );
            stats.wrong.iter().take(20).for_each(|wrong| println!("WRONG: {wrong}"));
        }
        println!("the storm's throughput is {:.1} % of the baseline's", ratio * 100.0);
    }
    if stormy.wrong.is_empty() && quiet.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn stats_json(stats: &StormStats, of: &Storm) -> String {
    let wrong: Vec<String> = stats.wrong.iter().map(|wrong| quoted(wrong)).collect();
    format!(
        "{{\"operations\": {}, \"simulated_ns\": {}, \"deaths\": {}, \"recoveries\": {}, \"replays\": {}, \
         \"longest_ns\": {}, \"watched\": {}, \"verbs\": {}, \"wrong\": [{}]}}",
        stats.operations,
        of.span_ns,
        stats.deaths,
        stats.recoveries,
        stats.replays,
        stats.longest_ns,
        stats.watched,
        stats.verbs,
        wrong.join(", ")
    )
}

/// Runs one seed and describes the run.
fn replay(seed: u64, subject: Subject, is_json: bool) -> ExitCode {
    let (one, other) = (subject.run(seed, REPLAY_EVENTS), subject.run(seed, 0));
    let is_repeated = one.log_hash == other.log_hash;
    let has_passed = one.wrong.is_empty() && is_repeated;
    if is_json {
        let wrong: Vec<String> = one.wrong.iter().map(|wrong| quoted(wrong)).collect();
        println!(
            "{{\"seed\": {seed}, \"passed\": {has_passed}, \"setup\": {}, \"log_hash\": \"{:#018x}\", \"wrong\": [{}], \
             {}}}",
            quoted(&one.setup),
            one.log_hash,
            wrong.join(", "),
            counts(&one.counts)
        );
    } else {
        print!("{}", one.description);
    }
    if !is_repeated {
        eprintln!(
            "seed {seed} is not reproducible; its two runs have the event log hashes {:#018x} and {:#018x}",
            one.log_hash, other.log_hash
        );
    }
    if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// State that the threads of a soak share.
struct Soak {
    next: AtomicU64,
    end: u64,
    subject: Subject,
    keeps_going: bool,
    is_over: AtomicBool,
    is_interrupted: Arc<AtomicBool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Runs that have ended.
    runs: u64,
    counts: Counts,
    failures: Vec<(u64, Vec<String>)>,
    /// Seeds that are running.
    running: BTreeSet<u64>,
}

fn soak(seeds: Range<u64>, threads: usize, subject: Subject, keeps_going: bool, is_json: bool) -> ExitCode {
    let from = seeds.start;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&is_interrupted);
    if let Err(error) = ctrlc::set_handler(move || heard.store(true, Ordering::Relaxed)) {
        eprintln!("cannot handle interrupts, so one ends this program without a report: {error}");
    }
    let soak = Soak {
        next: AtomicU64::new(from),
        end: seeds.end,
        subject,
        keeps_going,
        is_over: AtomicBool::new(false),
        is_interrupted,
        state: Mutex::default(),
    };
    let started = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| soak.work())).collect();
        soak.show_progress(from, started, || workers.iter().all(thread::ScopedJoinHandle::is_finished));
    });
    let state = soak.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    let was_interrupted = soak.is_interrupted.load(Ordering::Relaxed);
    report(from, &state, subject, was_interrupted, started.elapsed(), is_json);
    match (state.failures.is_empty(), was_interrupted) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::from(INTERRUPTED),
        (true, false) => ExitCode::SUCCESS,
    }
}

impl Soak {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs seeds one after the other until none is left or there is a reason to stop.
    fn work(&self) {
        while !self.is_over.load(Ordering::Relaxed) && !self.is_interrupted.load(Ordering::Relaxed) {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            self.state().running.insert(seed);
            let (counts, wrong) = match caught(|| self.subject.run(seed, 0)) {
                Ok(Ran { counts, wrong, .. }) => (counts, wrong),
                Err(panic) => (Counts::default(), vec![panic]),
            };
            let mut state = self.state();
            state.running.remove(&seed);
            state.runs += 1;
            state.counts.add(counts.all());
            if !wrong.is_empty() {
                eprintln!("\nseed {seed} failed: {}\nreplay: {}", wrong.join("\n  "), self.subject.replay(seed));
                state.failures.push((seed, wrong));
                if !self.keeps_going || state.failures.len() >= MOST_FAILURES {
                    self.is_over.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn show_progress(&self, from: u64, started: Instant, is_done: impl Fn() -> bool) {
        let is_terminal = std::io::stderr().is_terminal();
        let every = Duration::from_millis(if is_terminal { TERMINAL_MS } else { FILE_MS });
        let mut next = every;
        while !is_done() {
            thread::sleep(Duration::from_millis(20));
            if started.elapsed() < next {
                continue;
            }
            next = started.elapsed() + every;
            let state = self.state();
            let (done, all) = (state.runs, self.end - from);
            let rate = done as f64 / started.elapsed().as_secs_f64();
            let left_s = (all - done) as f64 / rate.max(0.001);
            let line = format!(
                "{done} of {all} seeds, {rate:.1} per second, {left_s:.0} s to go; {} failed; running {:?}",
                state.failures.len(),
                state.running
            );
            drop(state);
            eprint!("{}", if is_terminal { format!("\r{line}\x1b[K") } else { line + "\n" });
            // A lost progress line does no harm.
            let _ = std::io::stderr().flush();
        }
        if is_terminal {
            eprintln!();
        }
    }
}

/// Prints the results of a soak.
fn report(from: u64, state: &State, subject: Subject, was_interrupted: bool, elapsed: Duration, is_json: bool) {
    let (runs, failures) = (state.runs, &state.failures);
    if is_json {
        let failed: Vec<String> = failures
            .iter()
            .map(|(seed, wrong)| format!("{{\"seed\": {seed}, \"wrong\": {}}}", quoted(&wrong.join("; "))))
            .collect();
        println!(
            "{{\"from\": {from}, \"interrupted\": {was_interrupted}, \"seconds\": {:.1}, \"failures\": [{}], {}}}",
            elapsed.as_secs_f64(),
            failed.join(", "),
            counts(&state.counts)
        );
        return;
    }
    for (name, count) in state.counts.all() {
        println!("{name}: {count}");
    }
    let interrupted = if was_interrupted { ", interrupted" } else { "" };
    println!("{runs} seeds from {from} on in {:.1} s{interrupted}; {} failed", elapsed.as_secs_f64(), failures.len());
    for (seed, _) in failures {
        println!("replay: {}", subject.replay(*seed));
    }
}

fn counts(counts: &Counts) -> String {
    counts.all().iter().map(|(name, count)| format!("\"{name}\": {count}")).collect::<Vec<_>>().join(", ")
}

/// Carries out a run, so that the seed of one that panics is not lost.
///
/// # Errors
/// The message of the panic.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        format!("it panicked: {}", text.unwrap_or("without a message"))
    })
}

/// Formats a JSON string.
fn quoted(text: &str) -> String {
    let escaped = text.chars().flat_map(|letter| match letter {
        '"' => vec!['\\', '"'],
        '\\' => vec!['\\', '\\'],
        '\n' => vec!['\\', 'n'],
        letter if letter.is_control() => vec![' '],
        letter => vec![letter],
    });
    format!("\"{}\"", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(Command, bool), String> {
        parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn arguments_are_parsed() {
        let subject = Subject::Tables;
        let soak = Command::Soak { from: 7, seeds: 3, threads: 1, subject, keeps_going: true };
        assert_eq!(parsed("soak --from 7 --seeds 3 --threads 1 --keep-going --format json"), Ok((soak, true)));
        for (options, subject) in [
            ("", Subject::Tables),
            (" --store table", Subject::Tables),
            (" --growth", Subject::GrowingTables),
            (" --element", Subject::TablesBehindElement),
            (" --store clover", Subject::Store(Baseline::Clover)),
            (" --store dummy --store dummy", Subject::Store(Baseline::Dummy)),
        ] {
            let replay = Command::Replay { seed: 12, subject };
            assert_eq!(parsed(&format!("replay 12{options}")), Ok((replay, false)));
        }
        let storm =
            Storm { seed: 2, keys: 5_000, span_ns: 500_000_000, deaths_per_second: 9, victims: Victims::LockHolders };
        let text = "storm --seconds 0.5 --deaths-per-second 9 --aimed --keys 5000 --seed 2";
        assert_eq!(parsed(text), Ok((Command::Storm { storm }, false)));
    }

    #[test]
    fn what_is_wrong_with_arguments_is_said() {
        for (wrong, problem) in [
            ("", "a command is missing: soak, replay or storm"),
            ("rest", "there is no command rest: choose soak, replay or storm"),
            ("soak 3", "soak takes no single seed, as 3"),
            ("replay", "replay needs a seed"),
            ("replay x", "x is not an option or a seed"),
            ("soak --seeds", "--seeds needs a value: a number of seeds"),
            ("soak --threads 0", "--threads is 0, but must be a number of threads from 1"),
            ("soak --format xml", "--format is xml, but must be human or json"),
            ("soak --store", "--store needs a value: one of table, clover, linear, cuckoo and dummy"),
            ("soak --store fusee", "--store is fusee, but must be one of table, clover, linear, cuckoo and dummy"),
            ("soak --store clover --growth", "choose --growth, --element or one --store"),
            ("storm --store clover", "storm has Guira's own tables only"),
        ] {
            assert_eq!(parsed(wrong), Err(problem.to_owned()), "{wrong}");
        }
    }

    #[test]
    fn json_strings_are_escaped() {
        assert_eq!(quoted("a \"b\"\n\\c"), r#""a \"b\"\n\\c""#);
    }
}
