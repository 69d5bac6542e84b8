//! `cargo xtask soak`, `replay` and `storm`: simulated runs, each determined by one seed, by the program
//! `conformance/examples/swarm.rs`, which parses their arguments.
//!
//! Cargo replaces this process, so that an interrupt from the keyboard reaches the program, which then reports what it
//! has done.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};
use clap::Args;

use crate::report::{Format, Verdict};
use crate::shell::Shell;
use crate::tree;

/// Arguments of the program: `--help` lists them.
#[derive(Args)]
pub struct Options {
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs one of the program's commands. Returns only if that fails.
pub fn command(name: &str, options: &Options, format: Format) -> Result<Verdict> {
    // A storm measures, so it needs the optimisations of releases.
    let profile = if name == "storm" { "release" } else { "test" };
    let shell = Shell::new(tree::workspace_root()?, format);
    let build = ["run", "--quiet", "--package", "guira-conformance", "--example", "swarm", "--profile", profile, "--"];
    let mut command = shell.command("cargo", build);
    command.arg(name).args(&options.arguments);
    if format == Format::Json {
        command.args(["--format", "json"]);
    }
    Err(command.exec()).context("cargo")
}
