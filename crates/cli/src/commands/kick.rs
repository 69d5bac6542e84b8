//! `guira kick`.

use std::time::Duration;

use clap::Args;
use guira::{AdminError, Error, Url};
use serde::Serialize;

use super::{Verdict, check, open, open_options, tls};
use crate::failure::Failure;
use crate::output::{Format, Output};
use crate::units;

/// Kill the process that has a client slot, and recover what it held.
///
/// For a process that is stopped, or otherwise stands still, in the middle of a change: others get Busy with its slot,
/// and nobody may decide by a timeout that it is dead. The process is killed (SIGKILL) with all of its clients, if it
/// is proven that it is the one that has the slot; what cannot be proven is said, and the process named. guira stat
/// lists client slots. A client that is dead already is only recovered; whoever recovers it, and stands still in that,
/// is killed in its place.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// The client slot, as Busy and guira stat tell it.
    #[arg(long, value_name = "N")]
    pub slot: u16,
    /// How long to wait for the end of the process.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_time)]
    pub deadline: Duration,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

#[derive(Serialize)]
struct Nobody {
    slot: u16,
    killed: bool,
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let store = open(&arguments.url, &open_options()?.any_owner())?;
    let slots = store.table().config().max_clients;
    if arguments.slot >= slots {
        let Arguments { url, slot, .. } = arguments;
        return Err(Failure::Misuse(format!("{url} has client slots 0 to {}, not {slot}", slots - 1)));
    }
    let killed = match store.kill_client(arguments.slot, arguments.deadline) {
        Ok(killed) => killed,
        Err(Error::Admin(AdminError::NoClient { url, slot })) => {
            output.note(&format!("guira: {url} has no client in slot {slot}; nothing was changed"));
            if output.format() == Format::Json {
                output.answer(&Nobody { slot, killed: false }, String::new)?;
            }
            return Ok(Verdict::Negative);
        }
        Err(error) => return Err(error.into()),
    };
    let process = killed.process;
    let done = if killed.killed { format!("killed process {process}") } else { format!("process {process} has ended") };
    output.answer(&killed, || {
        let left = match (&killed.recovered, &killed.failed) {
            (Some(recovered), _) => check::left(recovered),
            (None, Some(reason)) => format!("NOT RECOVERED: {reason}"),
            (None, None) => "somebody else recovered its client".to_owned(),
        };
        format!("{done}, which had client slot {} of {}: {left}", killed.slot, arguments.url)
    })?;
    Ok(if killed.failed.is_none() { Verdict::Fine } else { Verdict::Negative })
}
