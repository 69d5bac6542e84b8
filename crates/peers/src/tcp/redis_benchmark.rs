//! Measurement by redis-benchmark, the client in Redis's own package. It draws keys of 12 digits and checks no answer.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use super::plan::{Series, TcpOptions};
use super::servers::TcpServer;
use crate::error::PeersError;
use crate::load::{Loader, ProgressFn};
use crate::record::Records;
use crate::server::{Kind, Listen, Server, Sizes, find_program};
use crate::systems::Address;

/// The name of the program.
pub(super) const PROGRAM: &str = "redis-benchmark";
/// The pattern that redis-benchmark replaces with a random number of 12 digits.
const RANDOM: &str = "__rand_int__";
/// Records that are sent before their answers are read.
const LOADED_AT_ONCE: u64 = 512;
const STORED: &[u8] = b"+OK\r\n";

/// The figures that redis-benchmark prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    pub(super) per_second: f64,
    pub(super) p50_ns: f64,
    pub(super) p99_ns: f64,
}

/// Starts a Redis server and loads the records that redis-benchmark reads.
///
/// # Errors
/// Errors of the server; an interruption.
pub(super) fn start(
    options: &TcpOptions,
    records: &Records,
    directory: &Path,
    watch: &mut ProgressFn<'_>,
) -> Result<TcpServer, PeersError> {
    let sizes = Sizes { records: options.records, value_bytes: records.value_bytes(), threads: 1 };
    let server = Server::start(Kind::Redis, Listen::Port, directory, &sizes)?;
    load(server.address(), records, options.records, watch)?;
    Ok(TcpServer::Peer(server))
}

/// Stores the records that redis-benchmark reads, with values as long as in all other systems.
fn load(address: &Address, records: &Records, count: u64, watch: &mut ProgressFn<'_>) -> Result<(), PeersError> {
    let attempt = || format!("load the records of {PROGRAM}");
    let loader = &mut Loader::new(format!("Redis, for {PROGRAM}"), count, watch);
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port_of(address)?));
    let mut stream = stream.map_err(PeersError::host(attempt()))?;
    let (mut stored, mut asked, mut out) = (0, 0, Vec::new());
    loader.each(records, |_, value| {
        let (number, value_bytes) = (stored + asked, value.len());
        out.extend_from_slice(format!("*3\r\n$3\r\nSET\r\n$12\r\n{number:012}\r\n${value_bytes}\r\n").as_bytes());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
        asked += 1;
        if asked == LOADED_AT_ONCE || stored + asked == count {
            let expected = STORED.repeat(asked as usize);
            let mut answers = vec![0; expected.len()];
            let answered = stream.write_all(&out).and_then(|()| stream.read_exact(&mut answers));
            answered.map_err(PeersError::host(attempt()))?;
            if answers != expected {
                return Err(PeersError::peer(attempt(), String::from_utf8_lossy(&answers)));
            }
            (stored, asked) = (stored + asked, 0);
            out.clear();
        }
        Ok(())
    })
}

/// Runs redis-benchmark with reads.
///
/// # Errors
/// redis-benchmark is not installed, or prints something else.
pub(super) fn run(address: &Address, series: &Series, records: u64) -> Result<Figures, PeersError> {
    let attempt = format!("run {PROGRAM}");
    let program = find_program(PROGRAM).ok_or_else(|| PeersError::peer(&*attempt, "the program is not installed"))?;
    let output = command(&program, port_of(address)?, series, records).output();
    let output = output.map_err(PeersError::host(&*attempt))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| PeersError::peer(attempt, text.into_owned() + &String::from_utf8_lossy(&output.stderr)))
}

fn command(program: &Path, port: u16, series: &Series, records: u64) -> Command {
    let point = series.point;
    let numbers = [
        ("-p", u64::from(port)),
        ("-c", point.connections as u64),
        ("-P", point.depth as u64),
        ("-n", series.operations as u64),
        ("-r", records),
    ];
    let mut command = Command::new(program);
    command.args(["-h", "127.0.0.1", "--csv"]);
    numbers.iter().for_each(|(name, number)| {
        command.arg(name).arg(number.to_string());
    });
    command.args(["GET", RANDOM]).stdin(Stdio::null());
    command
}

/// Parses the output of redis-benchmark: a line of headings and one row.
fn parse(text: &str) -> Option<Figures> {
    let mut lines = text.lines().filter(|line| line.starts_with('"')).map(|line| line.split(',').map(unquoted));
    let (heads, row) = (lines.next()?.collect::<Vec<_>>(), lines.next()?.collect::<Vec<_>>());
    let value = |head: &str| row.get(heads.iter().position(|found| *found == head)?)?.parse::<f64>().ok();
    let ns = |head: &str| value(head).map(|ms| ms * 1e6);
    Some(Figures { per_second: value("rps")?, p50_ns: ns("p50_latency_ms")?, p99_ns: ns("p99_latency_ms")? })
}

fn unquoted(cell: &str) -> &str {
    cell.trim_matches('"')
}

fn port_of(address: &Address) -> Result<u16, PeersError> {
    match address {
        Address::Port(port) => Ok(*port),
        Address::Socket(_) => Err(PeersError::peer("find the server", "the server has no TCP port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_parsed() {
        let text = "WARNING: no config\n\
                    \"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                    \"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"GET __rand_int__\",\"125000.00\",\"0.012\",\"0.008\",\"0.015\",\"0.023\",\"0.031\",\"0.247\"\n";
        assert_eq!(parse(text), Some(Figures { per_second: 125_000.0, p50_ns: 15_000.0, p99_ns: 31_000.0 }));
        assert_eq!(parse("\"test\",\"rps\"\n\"GET\",\"1\"\n"), None);
        assert_eq!(parse("Could not connect"), None);
    }
}
