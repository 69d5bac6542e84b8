//! The commands: each turns its arguments into calls of the library, and the answers into output.

pub mod bench;
pub mod cas;
pub mod check;
pub mod completions;
pub mod copy;
pub mod create;
pub mod destroy;
pub mod dump;
pub mod incr;
pub mod kick;
pub mod list;
pub mod load;
pub mod man;
pub mod owner;
pub mod quickstart;
pub mod serve;
pub mod single;
pub mod stat;
pub mod tls;
pub mod token;
pub mod top;
pub mod ycsb;

use std::time::Duration;

use clap::Args;
use guira::admin::LivingClient;
use guira::errors::{LockFileProblem, Place, ShmError};
use guira::{Error, OpenError, OpenOptions, OperationError, OperationErrorKind, Store, Url};

use crate::arguments::Command;
use crate::capacity::{self, ExistingRecords, Target};
use crate::failure::Failure;
use crate::output::Output;
use crate::units;

/// The environment variable that names the file with the token for memory nodes: the workers of a command have it, too.
pub const TOKEN_FILE_VARIABLE: &str = "GUIRA_TOKEN_FILE";

/// How long an operation waits for other clients.
#[derive(Clone, Copy, Debug, Args)]
pub struct WaitOptions {
    /// How long each operation waits for what other clients hold, before it fails: 500ms, 2s, 1min.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_time)]
    pub deadline: Duration,
}

impl WaitOptions {
    /// Opens a table for reading and changing.
    pub fn open(self, url: &Url) -> Result<Store, Failure> {
        open(url, &owner::required(self.options()?)?)
    }

    /// Opens a table for reading only.
    pub fn open_read_only(self, url: &Url) -> Result<Store, Failure> {
        open(url, &owner::required(self.options()?)?.read_only())
    }

    /// How a table is opened, whosever it is.
    pub fn options(self) -> Result<OpenOptions, Failure> {
        Ok(open_options()?.deadline(self.deadline))
    }
}

/// How tables are opened, unless a command says more.
pub fn open_options() -> Result<OpenOptions, Failure> {
    let token_file = std::env::var_os(TOKEN_FILE_VARIABLE).filter(|path| !path.is_empty());
    let options = token_file.map_or_else(OpenOptions::default, |path| OpenOptions::default().token_file(path));
    Ok(tls::client_tls()?.into_iter().fold(options, OpenOptions::tls))
}

/// Opens a table that must exist.
pub fn open(url: &Url, options: &OpenOptions) -> Result<Store, Failure> {
    Store::open_with(url, options).map_err(Failure::of_table(url))
}

/// What a command that did not fail came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done, or yes.
    Fine,
    /// No: a miss, or something is wrong. It has been said.
    Negative,
}

/// Carries out a command. Where others are in its way it is said who they are, and what can be done.
pub fn run(command: &Command, output: &Output) -> Result<Verdict, Failure> {
    if let Some(certificates) = certificates(command) {
        certificates.remember();
    }
    if let Some(owner) = owner(command) {
        owner.remember();
    }
    carry_out(command, output).map_err(|failure| {
        if let Failure::Advised { .. } = failure {
            return failure;
        }
        let advice = url(command).zip(failure.of_store()).and_then(|(url, error)| advice(command, url, error));
        let failure = if only_reads(command) { Failure::Reading { source: Box::new(failure) } } else { failure };
        match advice {
            Some(advice) => Failure::Advised { source: Box::new(failure), advice },
            None => failure,
        }
    })
}

/// Whether a command changes no table, whatever it is asked.
fn only_reads(command: &Command) -> bool {
    match command {
        Command::Get(_) | Command::Dump(_) | Command::List(_) | Command::Stat(_) | Command::Top(_) => true,
        Command::Check(arguments) => !arguments.repair,
        _ => false,
    }
}

/// What can be done about others who are in the way.
fn advice(command: &Command, url: &Url, error: &Error) -> Option<String> {
    match error {
        Error::Operation(OperationError { kind: OperationErrorKind::Busy { owner, .. }, .. }) => {
            let slot = owner.as_ref()?.slot()?;
            let store = Store::open_with(url, &open_options().ok()?.read_only()).ok()?;
            let lock = store.slot_lock().ok()?.filter(|lock| (lock.first_slot..=lock.last_slot).contains(&slot));
            if let Some(lock) = lock {
                return Some(format!("nobody can ask whether the client in slot {slot} lives, because {lock}"));
            }
            let who = store.client_in(slot).ok()??;
            let (process, doing) = (who.process, doing(&who));
            let kill = match who.frozen {
                true => "thaw its control group, or kill it by kill -9".to_owned(),
                false => format!("guira kick {url} --slot {slot} kills that process"),
            };
            Some(format!("process {process} has client slot {slot}{doing}: guira stat {url} lists the clients, {kill}"))
        }
        Error::Operation(OperationError { kind: OperationErrorKind::Corrupt { place: Place::Lock(_) }, .. }) => {
            Some(format!("guira check --repair {url} frees it once no client is alive"))
        }
        Error::Open(OpenError::TooManyClients { .. }) => Some(format!(
            "guira stat {url} lists them, guira kick {url} --slot N kills the process of one; guira create \
             --max-clients N makes a table for more"
        )),
        Error::Operation(OperationError { kind: OperationErrorKind::Full { .. }, .. }) => {
            larger_table(command, url, None)
        }
        Error::Operation(OperationError { kind: OperationErrorKind::NoSpace(space), .. }) => {
            larger_table(command, url, Some(space.value_bytes as u64))
        }
        Error::Open(OpenError::Region(ShmError::LockFile { problem, .. }))
            if !matches!(problem, LockFileProblem::Forbidden { .. }) =>
        {
            Some(format!("guira copy {url} NEW copies it into a table NEW of guira create"))
        }
        Error::Open(OpenError::ReadOnlyGrant { .. }) => Some(format!(
            "let {TOKEN_FILE_VARIABLE} name the file with the token that may change it: --token-file of guira serve"
        )),
        _ => None,
    }
}

/// How to make a table with more room than the one at `url`.
fn larger_table(command: &Command, url: &Url, record_bytes: Option<u64>) -> Option<String> {
    if matches!(command, Command::Ycsb(_)) {
        // Its records are nothing to be kept: fewer of them have room.
        return None;
    }
    let store = Store::open_with(url, &open_options().ok()?.read_only()).ok()?;
    let target = match command {
        Command::Copy(arguments) => arguments.target(),
        _ => Target { url, from: None, existing: ExistingRecords::Keep },
    };
    Some(capacity::advice(target, store.table().config(), record_bytes))
}

/// What a client does, behind its name.
fn doing(client: &LivingClient) -> &'static str {
    match client {
        LivingClient { frozen: true, .. } => " and is frozen with its control group",
        LivingClient { stopped: true, recovering: true, .. } => " and is stopped in recovering its dead client",
        LivingClient { stopped: true, .. } => " and is stopped",
        LivingClient { recovering: true, .. } => " and recovers its dead client",
        _ => "",
    }
}

/// The TLS options of a command that may be given the URL of a memory node.
fn certificates(command: &Command) -> Option<&tls::Certificates> {
    match command {
        Command::Get(arguments) | Command::Del(arguments) => Some(&arguments.tls),
        Command::Put(arguments) | Command::Insert(arguments) | Command::Update(arguments) => Some(&arguments.key.tls),
        Command::Incr(arguments) => Some(&arguments.key.tls),
        Command::Cas(arguments) => Some(&arguments.key.tls),
        Command::Load(arguments) => Some(&arguments.tls),
        Command::Dump(arguments) => Some(&arguments.tls),
        Command::Copy(arguments) => Some(&arguments.tls),
        Command::Stat(arguments) => Some(&arguments.tls),
        Command::Check(arguments) => Some(&arguments.tls),
        Command::Kick(arguments) => Some(&arguments.tls),
        Command::Top(arguments) => Some(&arguments.tls),
        Command::Ycsb(arguments) => Some(&arguments.tls),
        _ => None,
    }
}

/// Whose table a command wants, if it asks.
fn owner(command: &Command) -> Option<owner::Owner> {
    match command {
        Command::Get(arguments) | Command::Del(arguments) => Some(arguments.owner),
        Command::Put(arguments) | Command::Insert(arguments) | Command::Update(arguments) => Some(arguments.key.owner),
        Command::Incr(arguments) => Some(arguments.key.owner),
        Command::Cas(arguments) => Some(arguments.key.owner),
        Command::Load(arguments) => Some(arguments.owner),
        Command::Dump(arguments) => Some(arguments.owner),
        Command::Copy(arguments) => Some(arguments.owner),
        Command::Ycsb(arguments) => Some(arguments.owner),
        Command::Create(arguments) => Some(arguments.owner),
        Command::Serve(arguments) => Some(arguments.owner),
        _ => None,
    }
}

/// The table of a command that others can be in the way of, if it is about one.
fn url(command: &Command) -> Option<&Url> {
    match command {
        Command::Get(arguments) | Command::Del(arguments) => Some(&arguments.url),
        Command::Put(arguments) | Command::Insert(arguments) | Command::Update(arguments) => Some(&arguments.key.url),
        Command::Incr(arguments) => Some(&arguments.key.url),
        Command::Cas(arguments) => Some(&arguments.key.url),
        Command::Load(arguments) => Some(&arguments.url),
        Command::Dump(arguments) => Some(&arguments.url),
        Command::Copy(arguments) => Some(&arguments.to),
        Command::Check(arguments) => Some(&arguments.url),
        Command::Kick(arguments) => Some(&arguments.url),
        Command::Ycsb(arguments) => Some(&arguments.url),
        _ => None,
    }
}

fn carry_out(command: &Command, output: &Output) -> Result<Verdict, Failure> {
    match command {
        Command::Quickstart(arguments) => quickstart::run(arguments, output),
        Command::Create(arguments) => create::run(arguments, output),
        Command::Get(arguments) => single::get(arguments, output),
        Command::Put(arguments) => single::put(arguments, output),
        Command::Insert(arguments) => single::insert(arguments, output),
        Command::Update(arguments) => single::update(arguments, output),
        Command::Del(arguments) => single::del(arguments, output),
        Command::Incr(arguments) => incr::run(arguments, output),
        Command::Cas(arguments) => cas::run(arguments, output),
        Command::Load(arguments) => load::run(arguments, output),
        Command::Dump(arguments) => dump::run(arguments, output),
        Command::Copy(arguments) => copy::run(arguments, output),
        Command::List(arguments) => list::run(arguments, output),
        Command::Stat(arguments) => stat::run(arguments, output),
        Command::Check(arguments) => check::run(arguments, output),
        Command::Kick(arguments) => kick::run(arguments, output),
        Command::Destroy(arguments) => destroy::run(arguments, output),
        Command::Serve(arguments) => serve::run(arguments, output),
        Command::Token(arguments) => token::run(arguments, output),
        Command::Top(arguments) => top::run(arguments, output),
        Command::Ycsb(arguments) => ycsb::run(arguments, output),
        Command::Completions(arguments) => completions::run(arguments, output),
        Command::Man(arguments) => man::run(arguments, output),
        Command::Bench(arguments) => bench::run(arguments, output),
        Command::YcsbWorker => ycsb::worker::run(),
        Command::QuickstartWorker(arguments) => quickstart::worker::run(arguments),
    }
}
