//! `cargo xtask instructions`: instructions of every operation, counted by callgrind, against those on record.
//!
//! A count that leaves the record by more than the tolerance fails. `--update --because REASON` puts the new count on
//! record beside the reason, so that a commit that changes a price says why.

mod compare;
mod count;
mod record;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::report::{Format, Verdict};
use crate::tree;
use compare::Comparison;
use record::Record;

/// Where the record is, from the root of the workspace.
const RECORD_PATH: &str = "benches/instructions/recorded.toml";

/// What to do with what was counted.
#[derive(Args)]
pub struct Options {
    /// Put what changed on record; needs a reason.
    #[arg(long, requires = "because")]
    update: bool,
    /// Why the counts changed; it stands beside each of them in the record.
    #[arg(long, value_name = "REASON", requires = "update")]
    because: Option<String>,
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
            for line in record.changes(before.as_ref()) {
                eprintln!("put on record: {line}");
            }
            record
        }
        (None, Some(before)) => before,
        (None, None) => bail!("there is no {RECORD_PATH}: cargo xtask instructions --update --because REASON makes it"),
    };
    let comparison = Comparison::new(&record, &now);
    match format {
        Format::Human => println!("{}", comparison.human()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&comparison)?),
    }
    Ok(if comparison.ok { Verdict::Passed } else { Verdict::Failed })
}
