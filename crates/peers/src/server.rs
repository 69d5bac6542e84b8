//! Servers that are started for a run and gone after it, whatever happens.
//!
//! A server is killed when its [`Server`] is dropped. Where `setpriv` is installed, the kernel kills it as well if this
//! process is killed before it could. It stands in a process group of its own, so that Ctrl-C ends the run and not the
//! server under it.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::Pid;

use crate::contenders::Connection;
use crate::contenders::memcached::Memcached;
use crate::contenders::redis::Redis;
use crate::error::PeersError;
use crate::machine::keep_to;
use crate::record::WORD_BYTES;

/// How long a server may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether it does.
const START_POLL: Duration = Duration::from_millis(5);
/// Clients of a server, at most: some for each way of asking, from two processes.
const CONNECTIONS_MAX: u32 = 64;
/// memcached's own bounds for the size of its hash table, as a power of two.
const HASH_POWERS: (u32, u32) = (16, 30);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// redis-server.
    Redis,
    /// memcached.
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
        let output = Command::new(found(self.program())?).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = match self {
            Kind::Redis => text.split_whitespace().find_map(|word| word.strip_prefix("v=")),
            Kind::Memcached => text.split_whitespace().nth(1),
        };
        version.map(str::to_owned)
    }

    fn ping(self, socket: &Path) -> Result<(), PeersError> {
        match self {
            Kind::Redis => Connection::<Redis>::open(socket, WORD_BYTES)?.ping(),
            Kind::Memcached => Connection::<Memcached>::open(socket, WORD_BYTES)?.ping(),
        }
    }
}

/// How large a server's data will be, and how many threads serve it.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Records.
    pub records: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Threads that serve (memcached).
    pub threads: u32,
}

/// A server that runs while this value lives.
pub struct Server {
    kind: Kind,
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts a server that keeps everything in memory, with its socket in `directory`, and waits until it answers.
    ///
    /// # Errors
    /// It is not installed, or does not answer in 10 s.
    pub fn start(kind: Kind, directory: &Path, sizes: &Sizes) -> Result<Server, PeersError> {
        let name = format!("{}-{}", kind.program(), sizes.threads);
        let (socket, log) = (directory.join(format!("{name}.socket")), directory.join(format!("{name}.log")));
        let attempt = || format!("start {}", kind.program());
        let program =
            found(kind.program()).ok_or_else(|| PeersError::host(attempt())(std::io::ErrorKind::NotFound.into()))?;
        let mut command = match found("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        let output = File::create(&log).map_err(PeersError::host(attempt()))?;
        let errors = output.try_clone().map_err(PeersError::host(attempt()))?;
        command.args(arguments(kind, &socket, sizes)).current_dir(directory).process_group(0);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = command.spawn().map_err(PeersError::host(attempt()))?;
        let mut server = Server { kind, child, socket };
        server.wait(&log)?;
        Ok(server)
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Keeps all its threads to these processors.
    ///
    /// # Errors
    /// The system's.
    pub fn keep_to(&self, cores: &[usize]) -> Result<(), PeersError> {
        let attempt = || format!("list the threads of {}", self.kind.program());
        for entry in fs::read_dir(format!("/proc/{}/task", self.pid())).map_err(PeersError::host(attempt()))? {
            let entry = entry.map_err(PeersError::host(attempt()))?;
            let number = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            if let Some(thread) = number {
                keep_to(Some(thread), cores)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, log: &Path) -> Result<(), PeersError> {
        let until = Instant::now() + START_LIMIT;
        loop {
            let Err(error) = self.kind.ping(&self.socket) else {
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
        // It has ended by itself, or it ends now: there is nothing in it to keep.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn arguments(kind: Kind, socket: &Path, sizes: &Sizes) -> Vec<OsString> {
    let words = |text: String| text.split(' ').map(OsString::from).collect::<Vec<_>>();
    match kind {
        Kind::Redis => {
            let mut arguments = words(format!("--port 0 --appendonly no --maxmemory 0 --maxclients {CONNECTIONS_MAX}"));
            arguments.extend(["--save".into(), "".into(), "--unixsocket".into(), socket.into()]);
            arguments
        }
        Kind::Memcached => {
            let power = sizes.records.max(1).next_power_of_two().ilog2().clamp(HASH_POWERS.0, HASH_POWERS.1);
            // Twice what the values take: items have headers, and places come in fixed sizes.
            let megabytes = 256 + ((2 * sizes.records * (sizes.value_bytes as u64 + 64)) >> 20);
            let threads = sizes.threads;
            // Without CAS numbers, 8 bytes less for each item; and full memory is an error, never a silent eviction.
            let mut arguments =
                words(format!("-U 0 -C -M -t {threads} -c {CONNECTIONS_MAX} -m {megabytes} -o hashpower={power}"));
            arguments.extend(["-s".into(), socket.into()]);
            if rustix::process::geteuid().is_root() {
                arguments.extend(["-u".into(), "root".into()]);
            }
            arguments
        }
    }
}

/// Where a program is, as a shell would find it.
fn found(program: &str) -> Option<PathBuf> {
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
        assert!(found("sh").is_some());
        assert_eq!(found("no-such-program-anywhere"), None);
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
            let server =
                Server::start(kind, directory.path(), &Sizes { records: 100, value_bytes: 8, threads: 1 }).unwrap();
            let cores = crate::machine::cores().unwrap();
            server.keep_to(&cores[..1]).unwrap();
            let process = PathBuf::from(format!("/proc/{}", server.pid()));
            assert!(process.exists());
            drop(server);
            assert!(!process.exists(), "{} lives on", kind.program());
        }
    }
}
