//! `guira kick`: kills a stuck client.

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
/// For a process that is stopped, or otherwise stuck, in the middle of a change: other clients fail with Busy and name
/// its slot, because a timeout cannot prove that it is dead. The process is killed (SIGKILL), with all of its clients,
/// if it is proven to be the one that has the slot; otherwise the error says what could not be proven, and names the
/// process. guira stat lists client slots. A client that is already dead is only recovered; if another process is stuck
/// while recovering it, that process is killed instead.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The table.
    pub url: Url,
    /// The client slot, as shown by a Busy error or by guira stat.
    #[arg(long, value_name = "N")]
    pub slot: u16,
    /// How long to wait for the process to end.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_time)]
    pub deadline: Duration,
    #[command(flatten)]
    pub tls: tls::Certificates,
}

#[derive(Serialize)]
struct NoClient {
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
                output.answer(&NoClient { slot, killed: false }, String::new)?;
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
            (None, None) => "another client recovered it".to_owned(),
        };
        format!("{done}, which had client slot {} of {}: {left}", killed.slot, arguments.url)
    })?;
    Ok(if killed.failed.is_none() { Verdict::Fine } else { Verdict::Negative })
}
