//! `cargo xtask`: the commands of continuous integration, which also run on a laptop. `test` runs the checks and tests
//! that decide whether a change is right; one of them is `check`, for rules on the sources that no compiler has.
//! `release` runs what measures a machine or takes long. Its steps include `fuzz`, which runs the fuzz targets,
//! `instructions`, which counts the instructions of each operation, `mutants`, which breaks the protocol's rules and
//! expects tests to fail, and `test-rdma`, which runs tests on Soft-RoCE in a virtual machine. `python` builds and tests
//! the wheel for Python, and `c` the library for C and C++, as steps of `test` do. `soak` runs many simulated swarms, `replay` runs one of them, and `storm` simulates hundreds of clients that crash.
//! Exit code 0 means that everything passed, 1 that something failed, 2 that the command line is invalid.
#![forbid(unsafe_code)]

mod artifact;
mod c;
mod check;
mod fuzz;
mod instructions;
mod mutants;
mod porcupine;
mod python;
mod rdma;
mod release;
mod report;
mod rust;
mod shell;
mod steps;
mod swarm;
mod test;
mod tools;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::report::{Format, Verdict};

#[derive(Parser)]
#[command(name = "cargo xtask", about, version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// How to print the result. With `json`, one object on standard output and everything else on standard error.
    #[arg(long, value_enum, default_value = "human", global = true)]
    format: Format,
}

#[derive(Subcommand)]
enum Command {
    /// Check that the rules of the protocol, its holes and the mutants are cited by code and tests that exist.
    Check,
    /// Count the instructions of every operation and compare them with the record.
    Instructions(instructions::Options),
    /// Break one rule of the protocol at a time, in a copy of the sources, and check that the named tests fail.
    Mutants(mutants::Options),
    /// Install what the tests need, then run every check and test that decides whether a change is right.
    Test(steps::Options),
    /// Check what a change of the named part needs besides, and all of it before a release: mutants, fuzz targets,
    /// instruction counts, the oldest compiler, packages, RDMA in a virtual machine.
    Release(steps::Options),
    /// Install the library for C and C++ below the target directory, and build and run its tests and examples there.
    C(c::Options),
    /// Build the wheel for Python, install it in an empty environment, run its tests, and check its types.
    Python(python::Options),
    /// Run the tests of RDMA on Soft-RoCE, in a virtual machine that is made from Debian packages.
    TestRdma(rdma::Options),
    /// Run simulated swarms of tables, or of another store, one per seed, until one fails: 100,000 seeds, unless chosen
    /// otherwise.
    Soak(swarm::Options),
    /// Run one simulated swarm and print its drawn options, its events, and what was wrong.
    Replay(swarm::Options),
    /// Simulate 320 clients with hundreds of crashes per second, and compare the throughput with a run without crashes.
    Storm(swarm::Options),
    /// Run fuzz targets under libFuzzer: all of them for a minute each, unless chosen otherwise.
    Fuzz(fuzz::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let verdict = match arguments.command {
        Command::Check => check::command(arguments.format),
        Command::Instructions(options) => instructions::command(&options, arguments.format),
        Command::Mutants(options) => mutants::command(&options, arguments.format),
        Command::Test(options) => steps::run("test", &test::STEPS, &options, arguments.format),
        Command::Release(options) => steps::run("release", &release::STEPS, &options, arguments.format),
        Command::C(options) => c::command(&options, arguments.format),
        Command::Python(options) => python::command(&options, arguments.format),
        Command::TestRdma(options) => rdma::command(&options, arguments.format),
        Command::Soak(options) => swarm::command("soak", &options, arguments.format),
        Command::Replay(options) => swarm::command("replay", &options, arguments.format),
        Command::Storm(options) => swarm::command("storm", &options, arguments.format),
        Command::Fuzz(options) => fuzz::command(&options, arguments.format),
    };
    match verdict {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
