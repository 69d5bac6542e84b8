//! `cargo xtask instructions`: compares the instructions of every operation, counted by callgrind, with the recorded
//! ones.
//!
//! A count that differs from the record by more than the tolerance fails. `--update --because REASON` records the new
//! count with the reason, so that a commit that changes a cost says why.

mod count;
mod record;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::report::{Format, Verdict};
use crate::shell::{Budget, Outcome, Shell};
use crate::tree;
use record::{Comparison, Record};

/// The path of the record, from the root of the workspace.
const RECORD_PATH: &str = "benches/instructions/recorded.toml";

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// Record the counts that changed; needs a reason.
    #[arg(long, requires = "because")]
    update: bool,
    /// The reason for the change, recorded with each changed count.
    #[arg(long, value_name = "REASON", requires = "update")]
    because: Option<String>,
}

/// Compares the counts, as a step of `cargo xtask release`, if this is the target of the record and valgrind is installed.
pub fn step(shell: &Shell) -> Outcome {
    if std::env::consts::ARCH != "x86_64" {
        return Outcome::NotAvailable("the recorded instructions are those of x86-64".to_owned());
    }
    if !shell.succeeds("valgrind", ["--version"]) {
        return Outcome::NotAvailable("valgrind is not installed".to_owned());
    }
    shell.run(&mut shell.command("cargo", ["xtask", "instructions"]), &Budget::unlimited())
}

/// Runs `cargo xtask instructions`.
pub fn command(options: &Options, format: Format) -> Result<Verdict> {
    let reason = options.because.as_deref().map(str::trim);
    ensure!(reason != Some(""), "--because is empty: say why the counts changed");
    let root = tree::workspace_root()?;
    let path = root.join(RECORD_PATH);
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => Some(Record::parse(&text).with_context(|| RECORD_PATH.to_owned())?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).context(RECORD_PATH),
    };
    let now = count::count(&root, before.as_ref().map(|record| &record.taken_with))?;
    let record = match (reason, before) {
        (Some(reason), before) => {
            let record = now.recorded(before.as_ref(), reason);
            std::fs::write(&path, record.to_text()).context(RECORD_PATH)?;
            eprintln!("recorded; git diff {RECORD_PATH} shows the changes");
            record
        }
        (None, Some(before)) => before,
        (None, None) => {
            bail!("{RECORD_PATH} does not exist; cargo xtask instructions --update --because REASON creates it")
        }
    };
    let comparison = Comparison::new(&record, &now);
    match format {
        Format::Human => println!("{}", comparison.human()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&comparison)?),
    }
    Ok(if comparison.ok { Verdict::Passed } else { Verdict::Failed })
}
