//! The commands. Each turns its arguments into library calls, and the results into output.

pub mod bench;
pub mod cas;
pub mod check;
pub mod completions;
pub mod copy;
pub mod create;
pub mod destroy;
pub mod doctor;
pub mod dump;
pub mod grow;
pub mod incr;
pub mod kick;
pub mod lab;
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
use guira::{OpenOptions, Store, Url};

use crate::advice;
use crate::arguments::Command;
use crate::failure::Failure;
use crate::output::Output;
use crate::units;

/// The environment variable with the path of the token file for memory nodes. Workers of a command inherit it.
pub const TOKEN_FILE_VARIABLE: &str = "GUIRA_TOKEN_FILE";

/// The option that bounds how long an operation waits for other clients.
#[derive(Clone, Copy, Debug, Args)]
pub struct WaitOptions {
    /// How long each operation waits for other clients' locks before it fails: 500ms, 2s, 1min.
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

    /// Returns the options to open a table of any owner.
    pub fn options(self) -> Result<OpenOptions, Failure> {
        Ok(open_options()?.deadline(self.deadline))
    }
}

/// Returns the default options to open a table: access token and TLS.
pub fn open_options() -> Result<OpenOptions, Failure> {
    let token_file = std::env::var_os(TOKEN_FILE_VARIABLE).filter(|path| !path.is_empty());
    let options = token_file.map_or_else(OpenOptions::default, |path| OpenOptions::default().token_file(path));
    Ok(tls::client_tls()?.into_iter().fold(options, OpenOptions::tls))
}

/// Opens a table that must exist.
pub fn open(url: &Url, options: &OpenOptions) -> Result<Store, Failure> {
    Store::open_with(url, options).map_err(Failure::of_table(url))
}

/// The outcome of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Success, or the answer "yes".
    Fine,
    /// The answer "no": a miss, or a problem was found. It has been reported.
    Negative,
}

/// Carries out a command. If other clients block it, the failure names them and says what can be done.
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
        let advice = advice::of_failure(command, &failure);
        let failure = if only_reads(command) { Failure::Reading { source: Box::new(failure) } } else { failure };
        match advice {
            Some(advice) => Failure::Advised { source: Box::new(failure), advice },
            None => failure,
        }
    })
}

/// Whether a command never changes a table.
fn only_reads(command: &Command) -> bool {
    match command {
        Command::Get(_) | Command::Dump(_) | Command::List(_) | Command::Stat(_) | Command::Top(_) => true,
        Command::Check(arguments) => !arguments.repair,
        _ => false,
    }
}

/// Returns the TLS options of a command that accepts the URL of a memory node.
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
        Command::Grow(arguments) => Some(&arguments.tls),
        Command::Top(arguments) => Some(&arguments.tls),
        Command::Ycsb(arguments) => Some(&arguments.tls),
        Command::Doctor(arguments) => Some(&arguments.tls),
        _ => None,
    }
}

/// Returns the option of a command that names the required owner of the table.
fn owner(command: &Command) -> Option<owner::Owner> {
    match command {
        Command::Get(arguments) | Command::Del(arguments) => Some(arguments.owner),
        Command::Put(arguments) | Command::Insert(arguments) | Command::Update(arguments) => Some(arguments.key.owner),
        Command::Incr(arguments) => Some(arguments.key.owner),
        Command::Cas(arguments) => Some(arguments.key.owner),
        Command::Load(arguments) => Some(arguments.owner),
        Command::Dump(arguments) => Some(arguments.owner),
        Command::Copy(arguments) => Some(arguments.owner),
        Command::Grow(arguments) => Some(arguments.owner),
        Command::Ycsb(arguments) => Some(arguments.owner),
        Command::Create(arguments) => Some(arguments.owner),
        Command::Serve(arguments) => Some(arguments.owner),
        _ => None,
    }
}

/// Returns the table of a command that other clients can block.
pub fn url(command: &Command) -> Option<&Url> {
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
        Command::Grow(arguments) => Some(&arguments.url),
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
        Command::Grow(arguments) => grow::run(arguments, output),
        Command::Destroy(arguments) => destroy::run(arguments, output),
        Command::Doctor(arguments) => doctor::run(arguments, output),
        Command::Serve(arguments) => serve::run(arguments, output),
        Command::Token(arguments) => token::run(arguments, output),
        Command::Top(arguments) => top::run(arguments, output),
        Command::Ycsb(arguments) => ycsb::run(arguments, output),
        Command::Completions(arguments) => completions::run(arguments, output),
        Command::Man(arguments) => man::run(arguments, output),
        Command::Bench(arguments) => bench::run(arguments, output),
        Command::Lab(arguments) => lab::run(arguments, output),
        Command::YcsbWorker => ycsb::worker::run(),
        Command::QuickstartWorker(arguments) => quickstart::worker::run(arguments),
    }
}
