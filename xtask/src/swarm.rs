//! `cargo xtask soak`, `replay` and `storm`: simulated runs, each determined by one seed, by the program
//! `conformance/examples/swarm.rs`.
//!
//! The program is built and then replaces this process, so that an interrupt from the keyboard reaches only the
//! program, which then reports what it has done.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::artifact::Artifact;
use crate::report::{Format, Verdict};
use crate::tree;

const EXAMPLE: &str = "swarm";

/// The seeds to run.
#[derive(Args)]
pub struct SoakOptions {
    /// Number of seeds.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Concurrent runs; default: one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Collect failing seeds, up to 100, instead of stopping at the first.
    #[arg(long)]
    keep_going: bool,
}

/// The seed to run.
#[derive(Args)]
pub struct ReplayOptions {
    /// The seed, as `soak` or a test prints it.
    seed: u64,
}

/// The parameters of a storm.
#[derive(Args)]
pub struct StormOptions {
    /// Seconds of virtual time to measure; one takes about a minute.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// Deaths per second of virtual time.
    #[arg(long, value_name = "N", default_value_t = 500)]
    deaths_per_second: u64,
    /// Kill only clients that hold a lock.
    #[arg(long)]
    aimed: bool,
    /// Number of keys in the table.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    keys: u64,
    /// Seed of everything that is drawn.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

/// Runs `cargo xtask soak`.
pub fn soak(options: &SoakOptions, format: Format) -> Result<Verdict> {
    let mut arguments = vec!["soak".to_owned(), "--seeds".to_owned(), options.seeds.to_string()];
    arguments.extend(["--from".to_owned(), options.from.to_string()]);
    if let Some(threads) = options.threads {
        arguments.extend(["--threads".to_owned(), threads.to_string()]);
    }
    arguments.extend(options.keep_going.then(|| "--keep-going".to_owned()));
    exec_program("test", arguments, format)
}

/// Runs `cargo xtask replay`.
pub fn replay(options: &ReplayOptions, format: Format) -> Result<Verdict> {
    exec_program("test", vec!["replay".to_owned(), options.seed.to_string()], format)
}

/// Runs `cargo xtask storm`, with the profile of releases, because the simulation must be fast.
pub fn storm(options: &StormOptions, format: Format) -> Result<Verdict> {
    let mut arguments = vec!["storm".to_owned()];
    let numbers =
        [("--deaths-per-second", options.deaths_per_second), ("--keys", options.keys), ("--seed", options.seed)];
    arguments.extend(["--seconds".to_owned(), options.seconds.to_string()]);
    arguments.extend(numbers.into_iter().flat_map(|(name, number)| [name.to_owned(), number.to_string()]));
    arguments.extend(options.aimed.then(|| "--aimed".to_owned()));
    exec_program("release", arguments, format)
}

/// Builds the program with `profile` and replaces this process with it. Returns only if that fails.
fn exec_program(profile: &str, mut arguments: Vec<String>, format: Format) -> Result<Verdict> {
    let root = tree::workspace_root()?;
    let program = build(&root, profile)?;
    let format = if format == Format::Json { "json" } else { "human" };
    arguments.extend(["--format".to_owned(), format.to_owned()]);
    let error = Command::new(&program).args(arguments).current_dir(&root).exec();
    Err(error).with_context(|| program.display().to_string())
}

/// Builds the program and returns the path of its executable.
fn build(root: &Path, profile: &str) -> Result<PathBuf> {
    let mut command = Command::new("cargo");
    command.args(["build", "--package", "guira-conformance", "--example", EXAMPLE, "--profile", profile]);
    command.arg("--message-format=json-render-diagnostics").current_dir(root);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo build: {}", output.status);
    let messages = String::from_utf8(output.stdout)?;
    Artifact::program(&messages, EXAMPLE).context("cargo built no executable")
}
