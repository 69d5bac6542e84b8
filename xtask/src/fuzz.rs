//! `cargo xtask fuzz`: runs every fuzz target under libFuzzer for a while, one per core at a time, but at most two.
//!
//! It needs a C++ compiler, which it does not install. All targets are built by one cargo command with the flags that
//! libFuzzer needs, by any toolchain, and with the address sanitizer if there is a nightly one. The inputs that
//! libFuzzer finds are kept beside the build, so the next run starts from them; the corpora in `fuzz/corpus` are tried
//! first, and only read. An input that violates an assertion fails the run and stays in `fuzz/artifacts`.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use crate::report::{Format, Verdict};
use crate::test::{Budget, Outcome, Shell, target_directory};
use crate::tree;

/// Default seconds for each target.
const SECONDS: u64 = 60;
/// Limit for building every target, optimised and instrumented, on two slow cores.
const BUILD_LIMIT_S: u64 = 1_800;
/// Most targets that run concurrently: each takes a core, and instrumented ones take memory.
const WORKERS_MAX: usize = 2;
/// Limit for one input; the largest takes milliseconds.
const INPUT_LIMIT_S: u64 = 10;
/// Seconds that a target may take beyond its time, to start and to finish.
const SLACK_S: u64 = 30;
/// Lines of a failed target's output that are shown of a panic.
const PANIC_LINES: usize = 4;
/// Lines of a failed target's output that are shown of its end, if there is no panic.
const TAIL_LINES: usize = 40;

/// Compiler flags for libFuzzer: it observes every edge of the code and the operands of every comparison.
const COVERAGE: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];
const SANITIZER: &str = "-Zsanitizer=address";

/// The targets to run, and the time for each.
#[derive(Args)]
pub struct Options {
    /// Seconds that each target runs.
    #[arg(long, value_name = "N", default_value_t = SECONDS, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Targets to run; default: all.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// Runs `cargo xtask fuzz`. A machine that cannot fuzz is a failure here.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    let shell = Shell::new(tree::workspace_root()?, format);
    let targets = match options.targets.len() {
        0 => target_names(shell.root())?.len(),
        named => named,
    };
    let limit_s = limit_s(targets as u64, options.seconds);
    let budget = Budget { until: Instant::now() + Duration::from_secs(limit_s), limit_s };
    let outcome = run(&shell, &budget, options.seconds, &options.targets);
    let (verdict, line) = match &outcome {
        Outcome::Passed => (Verdict::Passed, "fuzz: passed".to_owned()),
        other => (Verdict::Failed, format!("fuzz: {} {}", other.word(), other.detail())),
    };
    match format {
        Format::Human => println!("{line}"),
        Format::Json => println!("{}", serde_json::to_string_pretty(&outcome)?),
    }
    Ok(verdict)
}

/// Runs each of the `wanted` targets, or all if it is empty, for `seconds`.
pub fn run(shell: &Shell, budget: &Budget, seconds: u64, wanted: &[String]) -> Outcome {
    let known = match target_names(shell.root()) {
        Ok(known) => known,
        Err(error) => return Outcome::Failed(format!("fuzz/fuzz_targets: {error}")),
    };
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
        return Outcome::Failed(format!("unknown fuzz target {unknown:?}; the targets are {}", known.join(", ")));
    }
    let targets = if wanted.is_empty() { known } else { wanted.to_vec() };
    let programs = match build(shell, budget, &targets) {
        Ok(programs) => programs,
        Err(outcome) => return outcome,
    };
    let directory = target_directory(shell, "fuzz");
    let workers = thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX).min(targets.len());
    let runs = targets.iter().map(|name| Run { name, programs: &programs, directory: &directory, seconds });
    let failed = in_parallel(workers, runs.collect(), |run| run.outcome(shell, budget));
    match failed.is_empty() {
        true => Outcome::Passed,
        false => Outcome::Failed(failed.join("; ")),
    }
}

/// Most seconds that [`run`] takes on a number of targets with one core.
pub const fn limit_s(targets: u64, seconds: u64) -> u64 {
    BUILD_LIMIT_S + targets * (seconds + SLACK_S)
}

/// The names of all targets, which are those of their files.
fn target_names(root: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(root.join("fuzz/fuzz_targets"))?.collect::<io::Result<Vec<_>>>()?;
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_owned());
    let mut names: Vec<String> = entries.into_iter().filter_map(name).collect();
    names.sort();
    Ok(names)
}

/// Builds the targets and returns the directory of their programs. A machine without the tools for this is not a
/// failure.
fn build(shell: &Shell, budget: &Budget, targets: &[String]) -> Result<PathBuf, Outcome> {
    if !shell.succeeds("c++", ["--version"], budget) {
        let lack = "building libFuzzer needs a C++ compiler (apt-get install g++)";
        return Err(Outcome::NotAvailable(lack.to_owned()));
    }
    let has_nightly = shell.succeeds("rustup", ["run", "nightly", "rustc", "--version"], budget);
    let (toolchain, sanitizer) = match has_nightly {
        true => (Some("+nightly"), Some(SANITIZER)),
        false => (None, None),
    };
    if !has_nightly {
        shell.say("without the address sanitizer: there is no nightly toolchain (rustup toolchain install nightly)");
    }
    let host = host(shell, toolchain)?;
    let directory = target_directory(shell, "fuzz");
    // With --target, the flags do not apply to build scripts and macros.
    let arguments = ["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", &host, "--target-dir"];
    let mut command = shell.command("cargo", toolchain.into_iter().chain(arguments));
    command.arg(&directory).args(targets.iter().flat_map(|name| ["--bin", name]));
    let flags: Vec<&str> = COVERAGE.into_iter().chain(sanitizer).collect();
    command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    match shell.run(&mut command, budget) {
        Outcome::Passed => Ok(directory.join(host).join("release")),
        other => Err(other),
    }
}

/// The default target of the toolchain.
fn host(shell: &Shell, toolchain: Option<&str>) -> Result<String, Outcome> {
    let mut command = shell.command("rustc", toolchain.into_iter().chain(["-vV"]));
    let output = command.output().map_err(|error| Outcome::Failed(format!("rustc: {error}")))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = printed.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Outcome::Failed("rustc does not print its host".to_owned()))
}

/// Runs `work` for every item on `workers` threads, and returns the failures.
fn in_parallel<T: Send>(workers: usize, items: VecDeque<T>, work: impl Fn(T) -> Option<String> + Sync) -> Vec<String> {
    let (items, failed) = (Mutex::new(items), Mutex::new(Vec::new()));
    // No thread panics while it holds one of these.
    let next = || items.lock().ok()?.pop_front();
    let worker = || {
        while let Some(item) = next() {
            if let (Some(failure), Ok(mut failed)) = (work(item), failed.lock()) {
                failed.push(failure);
            }
        }
    };
    thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(worker))));
    failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The run of one target.
struct Run<'r> {
    name: &'r str,
    /// The directory of the programs of all targets.
    programs: &'r Path,
    directory: &'r Path,
    seconds: u64,
}

impl Run<'_> {
    /// Runs the target, prints the outcome, and returns a description of the failure, if it failed.
    fn outcome(&self, shell: &Shell, budget: &Budget) -> Option<String> {
        let log = self.inside("logs").with_extension("log");
        let artifacts = shell.root().join("fuzz/artifacts").join(self.name);
        let outcome =
            self.prepare(&log, &artifacts).and_then(|corpus| self.command(shell, [&corpus, &artifacts], &log, budget));
        let printed = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        match outcome {
            Ok(Outcome::Passed) => {
                let inputs = executed(&printed).map_or("an unknown number of".to_owned(), |inputs| inputs.to_string());
                shell.say(&format!("{}: {inputs} inputs in {} s", self.name, self.seconds));
                None
            }
            Ok(failed) => {
                let report = [cause(&printed), advice(self.name, shell.root(), self.programs, &printed)].join("\n");
                shell.say(&format!("{report}\n{}: {} {}", self.name, failed.word(), failed.detail()));
                Some(format!("{} ({})", self.name, failed.detail()))
            }
            Err(error) => Some(format!("{} ({error})", self.name)),
        }
    }

    /// Creates the directories that the target writes to, and returns the one for new inputs.
    fn prepare(&self, log: &Path, artifacts: &Path) -> io::Result<PathBuf> {
        let corpus = self.inside("corpus");
        fs::create_dir_all(&corpus)?;
        fs::create_dir_all(artifacts)?;
        log.parent().map_or(Ok(()), fs::create_dir_all)?;
        Ok(corpus)
    }

    fn command(
        &self,
        shell: &Shell,
        [corpus, artifacts]: [&Path; 2],
        log: &Path,
        budget: &Budget,
    ) -> io::Result<Outcome> {
        let mut command = shell.command(&self.programs.join(self.name).to_string_lossy(), [corpus]);
        command.arg(format!("fuzz/corpus/{}", self.name)).arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.arg(format!("-max_total_time={}", self.seconds)).arg(format!("-timeout={INPUT_LIMIT_S}"));
        command.arg("-print_final_stats=1");
        // A leak is not an error of safe code, and leak detection needs rights that containers lack.
        command.arg("-detect_leaks=0").env("ASAN_OPTIONS", "detect_leaks=0");
        shell.run_into(&mut command, budget, log)
    }

    fn inside(&self, kind: &str) -> PathBuf {
        self.directory.join(kind).join(self.name)
    }
}

/// The number of inputs that libFuzzer reports.
fn executed(printed: &str) -> Option<u64> {
    printed.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok())
}

/// The cause of a failure: the panic, or else the end of the output.
fn cause(printed: &str) -> String {
    let lines: Vec<&str> = printed.lines().collect();
    let panic = lines.iter().position(|line| line.contains(" panicked at "));
    let shown = match panic {
        Some(at) => &lines[at..(at + PANIC_LINES).min(lines.len())],
        None => &lines[lines.len().saturating_sub(TAIL_LINES)..],
    };
    shown.join("\n")
}

/// Instructions for a failed target: its input, if it left one, and the commands that replay and keep it.
fn advice(target: &str, root: &Path, programs: &Path, printed: &str) -> String {
    let written =
        printed.lines().find_map(|line| line.split_once("Test unit written to ").map(|(_, path)| path.trim()));
    let Some(artifact) = written else { return "the target left no input".to_owned() };
    let artifact = Path::new(artifact).strip_prefix(root).unwrap_or(Path::new(artifact)).display();
    let program = programs.join(target);
    let program = program.strip_prefix(root).unwrap_or(&program).display();
    format!(
        "input:  {artifact}\nreplay: {program} {artifact}\n\
         keep:   cp {artifact} fuzz/corpus/{target}/ && cargo test -p guira-conformance --test suite decoders::"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_targets_are_found() {
        let root = tree::workspace_root().expect("the tests run inside the workspace");
        let names = target_names(&root).expect("there are fuzz targets");
        assert!(names.contains(&"superblock".to_owned()) && names.is_sorted(), "{names:?}");
    }

    #[test]
    fn an_unknown_target_is_a_failure_before_anything_is_built() {
        let shell = Shell::new(tree::workspace_root().expect("the tests run inside the workspace"), Format::Json);
        let budget = Budget { until: Instant::now() + Duration::from_secs(20), limit_s: 20 };
        let outcome = run(&shell, &budget, 1, &["rwo".to_owned()]);
        assert!(
            matches!(&outcome, Outcome::Failed(why) if why.contains("\"rwo\"") && why.contains("row")),
            "{outcome:?}"
        );
    }

    #[test]
    fn every_item_is_processed_once_and_failures_are_kept() {
        for workers in [1, 2, 5] {
            let seen = Mutex::new(Vec::new());
            let work = |item: u32| {
                seen.lock().expect("no thread panicked").push(item);
                (item == 3).then(|| "three".to_owned())
            };
            assert_eq!(in_parallel(workers, (0..10).collect(), work), ["three"]);
            let mut seen = seen.into_inner().expect("no thread panicked");
            seen.sort_unstable();
            assert_eq!(seen, (0..10).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_crash_is_reported_with_its_input() {
        let printed = "INFO: Seed: 1\nthread 'a' panicked at b.rs:1:2:\nthe promise\n\
                    artifact_prefix='/x/fuzz/'; Test unit written to /x/fuzz/crash-12ab\nBase64: AA==\nend";
        let report = advice("row", Path::new("/x"), Path::new("/x/target/fuzz"), printed);
        assert!(report.contains("replay: target/fuzz/row fuzz/crash-12ab\n"), "{report}");
        assert!(report.contains("cp fuzz/crash-12ab fuzz/corpus/row/"), "{report}");
        assert_eq!(advice("row", Path::new("/x"), Path::new("/y"), "killed"), "the target left no input");
        let panic = cause(printed);
        assert!(panic.starts_with("thread 'a' panicked at b.rs:1:2:\nthe promise\n"), "{panic}");
        assert!(!panic.contains("end"), "{panic}");
        let long: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        assert_eq!(cause(&long.join("\n")), long[60..].join("\n"));
        assert_eq!(executed("a\nstat::number_of_executed_units: 123\nb"), Some(123));
        assert_eq!(executed("Done 5 runs"), None);
    }
}
