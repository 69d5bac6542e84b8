//! `guira bench`: benchmarks.

mod large;
mod peers;
mod records;

use clap::Subcommand;

use super::Verdict;
use crate::failure::Failure;
use crate::output::Output;

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare Guira with Redis, memcached, LMDB, concurrent maps and bare memory, in one run on this machine.
    Peers(peers::Arguments),
    /// Load a large table from several processes and run YCSB A, B and C on it.
    Large(large::Arguments),
    Records(records::Arguments),
    /// The second client process of `bench peers`.
    #[command(hide = true)]
    PeersHelper,
    /// The server of `bench peers` that does nothing.
    #[command(hide = true)]
    PeersBare,
    /// A client of `bench peers --growth`.
    #[command(hide = true)]
    PeersInserter(peers::InserterArguments),
}

/// Carries out the command.
pub fn run(command: &Command, output: &Output) -> Result<Verdict, Failure> {
    match command {
        Command::Peers(arguments) => peers::run(arguments, output),
        Command::Large(arguments) => large::run(arguments, output),
        Command::Records(arguments) => records::run(arguments, output),
        Command::PeersHelper => peers::help(),
        Command::PeersBare => peers::serve_bare(),
        Command::PeersInserter(arguments) => peers::insert(arguments),
    }
}
