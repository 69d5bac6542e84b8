//! `cargo xtask fuzz`: runs every fuzz target under libFuzzer for a while, by cargo-fuzz.
//!
//! It needs a C++ compiler, which it does not install; with a nightly toolchain it adds the address sanitizer. Inputs
//! that libFuzzer finds are kept beside the build, so the next run starts from them; the corpora in `fuzz/corpus` are
//! only read. An input that violates an assertion fails the run and stays in `fuzz/artifacts`.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Result;
use clap::Args;

use crate::report::{Format, Verdict};
use crate::shell::{Outcome, Shell};
use crate::tools::{self, cargo_tool};
use crate::tree;

/// Default seconds for each target.
const SECONDS: u64 = 60;

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
    shell.conclude("fuzz", &run(&shell, options.seconds, &options.targets))
}

/// Runs each of the `wanted` targets, or all if it is empty, for `seconds`.
pub fn run(shell: &Shell, seconds: u64, wanted: &[String]) -> Outcome {
    let known = match target_names(shell.root()) {
        Ok(known) => known,
        Err(error) => return Outcome::Failed(format!("fuzz/fuzz_targets: {error}")),
    };
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
        return Outcome::Failed(format!("unknown fuzz target {unknown:?}; the targets are {}", known.join(", ")));
    }
    if !shell.succeeds("c++", ["--version"]) {
        return Outcome::NotAvailable("building libFuzzer needs a C++ compiler (apt-get install g++)".to_owned());
    }
    let targets = if wanted.is_empty() { known } else { wanted.to_vec() };
    let failed: Vec<String> =
        targets.into_iter().filter(|target| run_target(shell, seconds, target).is_failure()).collect();
    match failed.is_empty() {
        true => Outcome::Passed,
        false => Outcome::Failed(failed.join(", ")),
    }
}

/// Runs one target, which cargo-fuzz builds first.
fn run_target(shell: &Shell, seconds: u64, target: &str) -> Outcome {
    let directory = shell.target_directory("fuzz");
    let found = directory.join("corpus").join(target);
    if let Err(error) = fs::create_dir_all(&found) {
        return Outcome::Failed(format!("{}: {error}", found.display()));
    }
    let has_nightly = shell.succeeds("rustup", ["run", "nightly", "rustc", "--version"]);
    let sanitizer = if has_nightly { "address" } else { "none" };
    let (time, directory) = (format!("-max_total_time={seconds}"), directory.to_string_lossy().into_owned());
    let (found, corpus) = (found.to_string_lossy().into_owned(), format!("fuzz/corpus/{target}"));
    let arguments =
        ["fuzz", "run", "--sanitizer", sanitizer, "--target-dir", &directory, target, &found, &corpus, "--"];
    // A leak is not an error of safe code, and leak detection needs rights that containers lack.
    let of_libfuzzer = [time.as_str(), "-timeout=10", "-print_final_stats=1", "-detect_leaks=0"];
    let toolchain: &[(&str, &str)] = if has_nightly { &[("RUSTUP_TOOLCHAIN", "nightly")] } else { &[] };
    let environment = [&[("ASAN_OPTIONS", "detect_leaks=0")], toolchain].concat();
    cargo_tool(shell, &tools::FUZZ, &[&arguments[..], &of_libfuzzer].concat(), &environment)
}

/// The names of all targets, which are those of their files.
fn target_names(root: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(root.join("fuzz/fuzz_targets"))?.collect::<io::Result<Vec<_>>>()?;
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_suffix(".rs")?.to_owned());
    let mut names: Vec<String> = entries.into_iter().filter_map(name).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_target_is_a_failure_before_anything_is_built() {
        let shell = Shell::new(tree::workspace_root().expect("the tests run inside the workspace"), Format::Json);
        let outcome = run(&shell, 1, &["rwo".to_owned()]);
        let names_targets = |why: &str| why.contains("\"rwo\"") && why.contains("row");
        assert!(matches!(&outcome, Outcome::Failed(why) if names_targets(why)), "{outcome:?}");
    }
}
