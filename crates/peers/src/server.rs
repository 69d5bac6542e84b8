//! Servers that are started for a run and end with it, whatever happens.
//!
//! A server is killed when its [`Server`] is dropped. Where `setpriv` is installed, the kernel also kills it if this
//! process is killed first. The server has a process group of its own, so that Ctrl-C does not end it during the run.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::Pid;

use crate::error::PeersError;
use crate::load::Loader;
use crate::machine::pin_thread;
use crate::record::{Records, WORD_BYTES};
use crate::systems::memcached::Memcached;
use crate::systems::redis::Redis;
use crate::systems::{Address, Connection, load_server};

/// Maximum time that a server may take to start.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Interval between two attempts to reach a starting server.
const START_POLL: Duration = Duration::from_millis(5);
/// Maximum number of clients of a server: some for each access mode, from two processes; or all connections of a run
/// over TCP, and as many again that have just been closed.
const CONNECTIONS_MAX: u32 = 1024;
/// Number of ports that are tried, because another program may take a port between its choice and its use.
const PORTS_TRIED: u32 = 5;
/// The bounds of memcached for the exponent of its hash table's size.
const HASH_POWERS: (u32, u32) = (16, 30);

/// A server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The program redis-server.
    Redis,
    /// The program memcached.
    Memcached,
}

impl Kind {
    /// The program's name.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Kind::Redis => "redis-server",
            Kind::Memcached => "memcached",
        }
    }

    /// The program's version, or `None` if it is not installed.
    #[must_use]
    pub fn version(self) -> Option<String> {
        let output = Command::new(find_program(self.program())?).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = match self {
            Kind::Redis => text.split_whitespace().find_map(|word| word.strip_prefix("v=")),
            Kind::Memcached => text.split_whitespace().nth(1),
        };
        version.map(str::to_owned)
    }

    fn ping(self, address: &Address) -> Result<(), PeersError> {
        match self {
            Kind::Redis => Connection::<Redis>::open(address, WORD_BYTES)?.ping(),
            Kind::Memcached => Connection::<Memcached>::open(address, WORD_BYTES)?.ping(),
        }
    }
}

/// The size of a server's data, and its number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Number of records.
    pub records: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Worker threads (memcached).
    pub threads: u32,
}

/// The kind of address that a server listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket in the server's directory.
    Socket,
    /// A free TCP port of the loopback interface.
    Port,
}

/// A server that runs while this value lives.
pub struct Server {
    kind: Kind,
    child: Child,
    address: Address,
}

impl Server {
    /// Starts a server that keeps everything in memory, in `directory`, and waits until it answers.
    ///
    /// # Errors
    /// The server is not installed, or does not answer within 10 s.
    pub fn start(kind: Kind, listen: Listen, directory: &Path, sizes: &Sizes) -> Result<Server, PeersError> {
        let name = format!("{}-{}", kind.program(), sizes.threads);
        if listen == Listen::Socket {
            let socket = Address::Socket(directory.join(format!("{name}.socket")));
            return Server::start_at(kind, socket, directory, &name, sizes);
        }
        let mut tried = 1;
        loop {
            let address = Address::Port(free_port().map_err(PeersError::host("find a free port"))?);
            match Server::start_at(kind, address, directory, &name, sizes) {
                Err(_) if tried < PORTS_TRIED => tried += 1,
                other => return other,
            }
        }
    }

    fn start_at(
        kind: Kind,
        address: Address,
        directory: &Path,
        name: &str,
        sizes: &Sizes,
    ) -> Result<Server, PeersError> {
        let log = directory.join(format!("{name}.log"));
        let attempt = || format!("start {}", kind.program());
        let program =
            find_program(kind.program()).ok_or_else(|| PeersError::host(attempt())(io::ErrorKind::NotFound.into()))?;
        let output = File::create(&log).map_err(PeersError::host(attempt()))?;
        let errors = output.try_clone().map_err(PeersError::host(attempt()))?;
        let mut command = killed_with_parent(&program);
        command.args(arguments(kind, &address, sizes)).current_dir(directory);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().map_err(PeersError::host(attempt()))?;
        let mut server = Server { kind, child, address };
        server.wait(&log)?;
        Ok(server)
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The process id of the server.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Restricts all threads of the server to these processors.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn pin_to(&self, cores: &[usize]) -> Result<(), PeersError> {
        pin_process(self.pid(), cores)
    }

    fn wait(&mut self, log: &Path) -> Result<(), PeersError> {
        let until = Instant::now() + START_LIMIT;
        loop {
            let Err(error) = self.kind.ping(&self.address) else {
                return Ok(());
            };
            let has_ended = !matches!(self.child.try_wait(), Ok(None));
            if has_ended || Instant::now() >= until {
                let said = fs::read_to_string(log).unwrap_or_default();
                let said = said.lines().last().map_or(error.to_string(), str::to_owned);
                return Err(PeersError::peer(format!("start {}", self.kind.program()), said));
            }
            thread::sleep(START_POLL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; nothing in it needs to be kept.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command for `program` in a process group of its own, which is killed when this process ends if `setpriv` is
/// installed.
pub fn killed_with_parent(program: &Path) -> Command {
    let mut command = match find_program("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.process_group(0);
    command
}

/// Restricts all threads of a process to these processors.
///
/// # Errors
/// Errors of the operating system.
pub fn pin_process(pid: u32, cores: &[usize]) -> Result<(), PeersError> {
    let attempt = || format!("list the threads of process {pid}");
    for entry in fs::read_dir(format!("/proc/{pid}/task")).map_err(PeersError::host(attempt()))? {
        let entry = entry.map_err(PeersError::host(attempt()))?;
        let number = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        if let Some(thread) = number {
            pin_thread(Some(thread), cores)?;
        }
    }
    Ok(())
}

/// Stores every record in the server at `address`.
///
/// # Errors
/// Errors of the server; an interruption.
pub fn load(kind: Kind, address: &Address, records: &Records, loader: &mut Loader<'_>) -> Result<(), PeersError> {
    let value_bytes = records.value_bytes();
    match kind {
        Kind::Redis => load_server(&mut Connection::<Redis>::open(address, value_bytes)?, records, loader),
        Kind::Memcached => load_server(&mut Connection::<Memcached>::open(address, value_bytes)?, records, loader),
    }
}

/// Finds a TCP port of the loopback interface that no program listens on.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn arguments(kind: Kind, address: &Address, sizes: &Sizes) -> Vec<OsString> {
    let words = |text: String| text.split(' ').map(OsString::from).collect::<Vec<_>>();
    match kind {
        Kind::Redis => {
            let mut arguments = words(format!("--appendonly no --maxmemory 0 --maxclients {CONNECTIONS_MAX}"));
            arguments.extend(["--save".into(), "".into()]);
            match address {
                Address::Socket(path) => {
                    arguments.extend(["--port".into(), "0".into(), "--unixsocket".into(), path.into()])
                }
                Address::Port(port) => arguments.extend(words(format!("--bind {} --port {port}", Ipv4Addr::LOCALHOST))),
            }
            arguments
        }
        Kind::Memcached => {
            let power = sizes.records.max(1).next_power_of_two().ilog2().clamp(HASH_POWERS.0, HASH_POWERS.1);
            // Twice the size of the values: items have headers, and come in fixed size classes.
            let megabytes = 256 + ((2 * sizes.records * (sizes.value_bytes as u64 + 64)) >> 20);
            let threads = sizes.threads;
            // -C drops CAS numbers, 8 bytes per item; with -M full memory is an error, never a silent eviction.
            let mut arguments =
                words(format!("-U 0 -C -M -t {threads} -c {CONNECTIONS_MAX} -m {megabytes} -o hashpower={power}"));
            match address {
                Address::Socket(path) => arguments.extend(["-s".into(), path.into()]),
                Address::Port(port) => arguments.extend(words(format!("-l {} -p {port}", Ipv4Addr::LOCALHOST))),
            }
            if rustix::process::geteuid().is_root() {
                arguments.extend(["-u".into(), "root".into()]);
            }
            arguments
        }
    }
}

/// Finds a program in PATH, as a shell would.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let directories = env::var_os("PATH")?;
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(&directories).map(|directory| directory.join(program)).find(is_program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_where_a_shell_finds_them() {
        assert!(find_program("sh").is_some());
        assert_eq!(find_program("no-such-program-anywhere"), None);
    }

    #[test]
    fn a_server_is_gone_when_it_is_dropped() {
        for kind in [Kind::Redis, Kind::Memcached] {
            let Some(version) = kind.version() else {
                println!("{} is not installed: nothing to test", kind.program());
                continue;
            };
            assert!(version.starts_with(|digit: char| digit.is_ascii_digit()), "{version}");
            let directory = tempfile::tempdir().unwrap();
            for listen in [Listen::Socket, Listen::Port] {
                let sizes = Sizes { records: 100, value_bytes: 8, threads: 1 };
                let server = Server::start(kind, listen, directory.path(), &sizes).unwrap();
                assert_eq!(matches!(server.address(), Address::Port(_)), listen == Listen::Port);
                let cores = crate::machine::cores().unwrap();
                server.pin_to(&cores[..1]).unwrap();
                let process = PathBuf::from(format!("/proc/{}", server.pid()));
                assert!(process.exists());
                drop(server);
                assert!(!process.exists(), "{} lives on", kind.program());
            }
        }
    }
}
