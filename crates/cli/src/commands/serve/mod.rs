//! `guira serve`: runs the memory node of a table.
//!
//! Invariants: mistakes in the arguments are found before memory is allocated; readiness is reported only when clients
//! can connect; the first SIGINT or SIGTERM stops the node in order, a second one at once. SIGHUP stops it if its
//! terminal was closed; otherwise it reloads tokens and certificates, and a failure to reload changes nothing.

mod audit;
mod backing;
mod files;
mod http;
mod listen;
pub mod metrics;
mod notify;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use guira::admin::{Fabric, NodeCounters};
use guira::errors::NodeError;
use guira::{AccessToken, EntryFormat, LockTable, NodeTls, Preset, RdmaDevice, ServeOptions, ServerHandle};
use guira_fabric::StandardFile;
use serde::Serialize;

use self::audit::Audit;
use self::backing::{Backing, ServedTable};
use self::http::HttpServer;
use self::listen::{HOST_NAME_UNKNOWN, ListenAddr, reachable};
use self::metrics::MetricsPages;
use super::create::SpaceOptions;
use super::owner::Owner;
use super::{Verdict, tls};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use crate::signals::{HANGUP, Signals, Terminal};
use crate::units::{self, bytes, count, counted};

/// Interval at which the program checks whether the node still runs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Serve a table to other hosts over TCP or RDMA.
///
/// Clients anywhere open tcp://HOST:PORT and run the same operations as local ones. The node executes reads and writes
/// of bytes and runs no table logic. With --rdma DEVICE it registers its memory with a network card and executes
/// nothing; clients open rdma://HOST:PORT. It serves until SIGINT or SIGTERM, or until its terminal is closed; a second
/// SIGINT or SIGTERM ends it at once. On SIGHUP it reloads its tokens, certificates and revocation lists; sessions
/// continue.
///
/// By default it listens on this host only. To listen to other hosts it requires a token, TLS, or both. A token is
/// created with guira token FILE, and clients get a copy of the file. With --tls-cert, --tls-key and --tls-client-ca,
/// clients authenticate with certificates, and the traffic is encrypted; over RDMA, that of control connections only.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Listen on this address: 127.0.0.1:7711, [::1]:7711, [fe80::1%eth0]:7711; mem1:7711 (every address that the name
    /// has on this host); 0.0.0.0:7711 or :7711 (all addresses of this host). Default port: 7711. Can be repeated.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7711", value_parser = listen::parse_node)]
    pub listen: Vec<ListenAddr>,
    /// Serve over RDMA: let this device execute the reads and writes of clients, who open rdma://HOST:PORT. The
    /// addresses of --listen are for their control connections. No other process may have the table open.
    #[arg(long, value_name = "DEVICE")]
    pub rdma: Option<String>,
    /// Port of the RDMA device. Default: 1.
    #[arg(long, value_name = "N", requires = "rdma", value_parser = clap::value_parser!(u8).range(1..))]
    pub rdma_port: Option<u8>,
    /// Index of the GID of the RDMA device's port: guira doctor lists them. Default: the first that fits.
    #[arg(long, value_name = "N", requires = "rdma")]
    pub rdma_gid: Option<u32>,
    /// Where the table is: memory (of this process, gone when it ends), shm://NAME or file:///PATH, which local clients
    /// can open at the same time. An existing table is served; otherwise one is created.
    #[arg(long, value_name = "WHERE", default_value_t)]
    pub backing: Backing,
    /// Number of keys a new table must hold: 10_000, 500k, 1M. The table is sized so that they fill it to 90 %. Without
    /// it, a table begins small and grows while it is used.
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    pub capacity: Option<u64>,
    /// Number of keys that a new table may grow to hold: 10M, 1G. Default: with --capacity it does not grow.
    #[arg(long, value_name = "N", value_parser = units::parse_count)]
    pub max_capacity: Option<u64>,
    /// Memory that the table may take: 512MiB, 2G. A new table that would take more from the start is refused; one
    /// that grows stops there. Default: what its file system has. With --rdma the limit of locked memory must be twice
    /// as much.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pub max_memory: Option<u64>,
    /// How a new table stores keys and values: fixed:K:V or bytes:N; see guira create. Default: bytes:64.
    #[arg(long, value_name = "FORMAT")]
    pub entry: Option<EntryFormat>,
    #[command(flatten)]
    pub space: SpaceOptions,
    /// Clients that can have a new table open for changing at the same time. Default: 1024.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub max_clients: Option<u16>,
    /// Parameters a new table starts from: hardened, paper or tiny; see guira create. Default: hardened.
    #[arg(long, value_name = "NAME")]
    pub preset: Option<Preset>,
    /// File with the token that clients must present: 32 hexadecimal digits, as written by guira token. Can be
    /// repeated, so that a new token can replace an old one. Reloaded on SIGHUP.
    #[arg(long, value_name = "PATH")]
    pub token_file: Vec<PathBuf>,
    /// File with a token for clients that may only read. Can be repeated. Reloaded on SIGHUP.
    #[arg(long, value_name = "PATH")]
    pub read_only_token_file: Vec<PathBuf>,
    /// Listen to other hosts without a token or TLS: anyone who reaches the port can read, change and damage the table.
    #[arg(long)]
    pub insecure: bool,
    /// Maximum number of sessions. A program has one, and one more for each thread that changes the table: get has 1,
    /// put 2, load --threads 4 has 5.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: u32,
    /// Maximum number of sessions from one address, which for IPv6 is a /64 network. Default: no limit, because all
    /// clients of a site may share an address. A refused client is told why.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions_per_address: Option<u32>,
    /// How long a client's host may be silent before its session is dropped: 5s, 1min; in whole seconds. Below 4s, one
    /// or two lost packets may cost an idle client its session.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_session_timeout)]
    pub session_timeout: Duration,
    /// Threads that serve sessions. Default: one per core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Serve metrics on this address over HTTP, without a token: /metrics for Prometheus, and /health. Default address:
    /// 127.0.0.1:7712.
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:7712")]
    #[arg(value_parser = listen::parse_metrics)]
    pub metrics: Option<ListenAddr>,
    /// Do not log sessions, refused clients and fenced sessions to standard error, as lines of JSON.
    #[arg(long)]
    pub no_audit: bool,
    #[command(flatten)]
    pub owner: Owner,
    #[command(flatten)]
    pub tls: tls::NodeCertificates,
}

/// The answer when clients can connect, as JSON.
#[derive(Serialize)]
struct Ready {
    /// The URLs that clients open.
    urls: Vec<String>,
    backing: String,
    /// Whether it grows, and the keys that it can have room for then.
    grows: bool,
    max_capacity: u64,
    /// Whether this command created the table.
    created: bool,
    /// Options given for a new table that the existing table does not match.
    differences: Vec<String>,
    entry: String,
    rows: u64,
    slots: u64,
    extent_bytes: u64,
    max_clients: u16,
    main_bytes: u64,
    device_bytes: u64,
    /// The device that executes the verbs of clients, over RDMA, and the memory that has the table's locks.
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma: Option<RdmaReady>,
    /// Maximum number of sessions, and of files that this process may have open, if that is limited.
    sessions: u32,
    open_files: Option<u64>,
    /// The URL of the metrics, the first one if their name has several addresses.
    metrics: Option<String>,
}

/// The RDMA device of a node.
#[derive(Serialize)]
struct RdmaReady {
    device: String,
    /// `device_memory` or `host_memory`.
    lock_table: &'static str,
}

/// One of the two lines of JSON output.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'l> {
    Ready(&'l Ready),
    Stopped(&'l Stopped),
}

/// Writes an answer, unless standard output was closed from the start, as a daemon's may be: a node needs none.
fn answer(output: &Output, line: &Line<'_>, human: impl FnOnce() -> String) -> Result<(), Failure> {
    if StandardFile::Output.was_closed() { Ok(()) } else { output.answer(line, human) }
}

/// The answer when the node has stopped.
#[derive(Serialize)]
struct Stopped {
    /// The signal that stopped it.
    signal: &'static str,
    sessions: u64,
    sessions_refused: u64,
    sessions_fenced: u64,
    /// The verbs that the node executed; over RDMA its network card does, and the node does not count them.
    #[serde(flatten)]
    executed: Option<Executed>,
}

/// The verbs that a node has executed.
#[derive(Serialize)]
struct Executed {
    batches: u64,
    verbs: u64,
    bytes_in: u64,
    bytes_out: u64,
}

/// Parses the time after which a silent client's session is dropped, which a node counts in whole seconds.
fn parse_session_timeout(text: &str) -> Result<Duration, String> {
    match units::parse_time(text)? {
        time if time.subsec_nanos() == 0 && (1..=u64::from(u16::MAX)).contains(&time.as_secs()) => Ok(time),
        _ => Err("not a number of whole seconds from 1s to 65535s".to_owned()),
    }
}

/// Carries out the command.
pub fn run(arguments: &Arguments, output: &Output) -> Result<Verdict, Failure> {
    let (sessions, open_files) = files::raise_limit(arguments.sessions);
    let listen = arguments.listen_addrs()?;
    let metrics_addrs = arguments.metrics.as_ref().map(ListenAddr::resolve).transpose()?.unwrap_or_default();
    let options = arguments.serve_options(&listen)?.max_sessions(sessions).survive_truncation();
    // In this order, so that a signal ends the creation of a table, too.
    interrupt::catch();
    let (signals, terminal) = (Signals::catch()?, Terminal::detect());
    let table = ServedTable::prepare(arguments, output)?;
    interrupt::ignore_hangups();
    let audit = if arguments.no_audit { None } else { Some(Audit::start()?) };
    let (audit, options) = match audit {
        Some((audit, observer)) => (Some(audit), options.observer(observer)),
        None => (None, options),
    };
    let served = table.store.serve(&options)?;
    // The node has its own copy; dropping this one lets the observer end with the node.
    drop(options);
    let shown = Arc::new(MetricsPages::new(served.counter_reader(), &table.name));
    let metrics = metrics_addrs.iter().map(|addr| HttpServer::start(*addr, Arc::clone(&shown)));
    let metrics: Vec<HttpServer> = metrics.collect::<Result<_, _>>()?;

    let mut ready = Ready::new(&table, &served, &metrics);
    ready.rdma = arguments.rdma_ready(&served);
    (ready.sessions, ready.open_files) = (sessions, open_files);
    if sessions < arguments.sessions {
        output.warn(&format!(
            "at most {}, not {}, because this process may open only {} files; raise the limit (ulimit -Hn, or \
             LimitNOFILE= of its unit)",
            counted(sessions.into(), "session"),
            count(arguments.sessions.into()),
            count(open_files.unwrap_or_default()),
        ));
    }
    answer(output, &Line::Ready(&ready), || ready.human())?;
    ready.differences.iter().for_each(|difference| output.note(&format!("guira: {difference}")));
    let status = format!("serving at {}", ready.urls.join(", "));
    notify::ready(&status);

    let signal = loop {
        match signals.wait(POLL_INTERVAL)? {
            Some(signal) if signal == HANGUP.1 && !terminal.is_closed() => {
                signals.forget_hangup();
                arguments.reload(&served, &listen, output);
                notify::ready(&status);
            }
            Some(signal) => break signal,
            None if !served.is_running() => return Err(ended(served, &table)),
            None if is_destroyed(&served, &table)? => {
                notify::stopping();
                served.stop()?;
                return Err(Failure::DestroyedWhileServed { url: table.store.url().clone() });
            }
            None => {}
        }
    };
    notify::stopping();
    let (counters, fabric) = (served.counter_reader(), served.fabric());
    served.stop().map_err(why_ended)?;
    audit.into_iter().for_each(Audit::finish);
    let stopped = Stopped::new(signal, fabric, &counters());
    answer(output, &Line::Stopped(&stopped), || stopped.human())?;
    Ok(Verdict::Fine)
}

/// Whether the table was destroyed by another process. If its memory was lost, its content is not trusted: the node
/// finds that out by itself, and ends.
fn is_destroyed(served: &ServerHandle, table: &ServedTable) -> Result<bool, Failure> {
    let is_destroyed = table.is_destroyed();
    if served.has_lost_memory() { Ok(false) } else { is_destroyed }
}

/// Returns the failure that ended the node.
fn why_ended(error: guira::Error) -> Failure {
    match error {
        guira::Error::Admin(guira::AdminError::Serve { url, source: NodeError::MemoryLost { reason } }) => {
            Failure::LostWhileServed { url, reason }
        }
        error => error.into(),
    }
}

/// Returns the failure of a node that ended without being asked to.
fn ended(served: ServerHandle, table: &ServedTable) -> Failure {
    let loss = served.name_loss();
    match (served.stop(), loss) {
        (_, Some(loss)) => Failure::NameLostWhileServed { url: table.store.url().clone(), loss },
        (Err(error), None) => why_ended(error),
        (Ok(()), None) => Failure::host("serve")(std::io::Error::other("the memory node ended by itself")),
    }
}

impl Arguments {
    /// Reloads tokens and certificates. A failure to read them is reported and changes nothing.
    fn reload(&self, served: &ServerHandle, listen: &[SocketAddr], output: &Output) {
        notify::reloading();
        let reloaded = self.serve_options(listen).and_then(|options| Ok(served.set_access(&options)?));
        match reloaded {
            Ok(()) => output.note("guira: tokens and certificates were reloaded; sessions continue"),
            Err(failure) => output.warn(&format!("tokens and certificates were not reloaded: {failure}")),
        }
    }

    /// Returns the addresses to listen on, each once.
    fn listen_addrs(&self) -> Result<Vec<SocketAddr>, Failure> {
        let mut addrs: Vec<SocketAddr> = Vec::new();
        for addr in &self.listen {
            for addr in addr.resolve()? {
                if addr.port() == 0 || !addrs.contains(&addr) {
                    addrs.push(addr);
                }
            }
        }
        Ok(addrs)
    }

    fn serve_options(&self, listen: &[SocketAddr]) -> Result<ServeOptions, Failure> {
        let tls = tls::node_tls(&self.tls)?;
        self.refuse_exposure(listen, tls.as_ref())?;
        let (first, others) = listen.split_first().expect("clap gives a default, and each has an address");
        let mut options = ServeOptions::new(*first).session_timeout(self.session_timeout);
        options = others.iter().fold(options, |options, addr| options.listen(*addr));
        for path in &self.token_file {
            options = options.token(AccessToken::read(path).map_err(guira::Error::from)?);
        }
        for path in &self.read_only_token_file {
            options = options.reader_token(AccessToken::read(path).map_err(guira::Error::from)?);
        }
        if let Some(threads) = self.threads {
            options = options.threads(threads.into());
        }
        if let Some(sessions) = self.sessions_per_address {
            options = options.max_sessions_per_address(sessions);
        }
        options = self.max_memory.into_iter().fold(options, ServeOptions::max_memory);
        options = tls.into_iter().fold(options, ServeOptions::tls);
        options = self.rdma_device().into_iter().fold(options, ServeOptions::rdma);
        Ok(if self.insecure { options.insecure() } else { options })
    }

    /// Returns the device that executes the verbs of clients.
    fn rdma_device(&self) -> Option<RdmaDevice> {
        let device =
            |name: &String| RdmaDevice { name: Some(name.clone()), port: self.rdma_port, gid_index: self.rdma_gid };
        self.rdma.as_ref().map(device)
    }

    fn rdma_ready(&self, served: &ServerHandle) -> Option<RdmaReady> {
        let lock_table = match served.lock_table()? {
            LockTable::DeviceMemory => "device_memory",
            _ => "host_memory",
        };
        Some(RdmaReady { device: self.rdma.clone().unwrap_or_default(), lock_table })
    }

    /// Refuses to listen to other hosts without protection, before memory is allocated. The node itself refuses, too.
    fn refuse_exposure(&self, listen: &[SocketAddr], tls: Option<&NodeTls>) -> Result<(), Failure> {
        let wants_token = !self.token_file.is_empty() || !self.read_only_token_file.is_empty();
        let is_guarded = wants_token || tls.is_some() || self.insecure;
        let mut exposed = listen.iter().filter(|addr| !is_guarded && !addr.ip().to_canonical().is_loopback());
        exposed.next().map_or(Ok(()), |addr| {
            Err(Failure::Misuse(format!(
                "not listening on {addr} without a token, because other hosts can reach it: create one with guira \
                 token FILE and add --token-file FILE, or use TLS with --tls-cert, --tls-key and --tls-client-ca, or \
                 allow anyone with --insecure, or listen on this host only with --listen 127.0.0.1:{}; nothing was \
                 changed",
                addr.port()
            )))
        })
    }
}

impl Ready {
    fn new(table: &ServedTable, served: &ServerHandle, metrics: &[HttpServer]) -> Ready {
        let (config, geometry) = (table.store.table().config(), table.store.table().geometry());
        Ready {
            urls: served.local_addrs().iter().map(|addr| url(served.fabric(), *addr)).collect(),
            backing: table.name.clone(),
            grows: config.grows(),
            max_capacity: config.max_capacity(),
            created: table.is_new,
            differences: table.differences.clone(),
            entry: config.format.to_string(),
            rows: config.rows,
            slots: config.max_entries(),
            extent_bytes: config.extent_bytes(),
            max_clients: config.max_clients,
            main_bytes: geometry.main_bytes(),
            device_bytes: geometry.device_bytes(),
            rdma: None,
            sessions: 0,
            open_files: None,
            metrics: metrics.first().map(|server| format!("http://{}/metrics", reachable(server.local_addr()))),
        }
    }

    fn human(&self) -> String {
        let made = if self.created { "new" } else { "existing" };
        let metrics = self.metrics.as_ref().map_or_else(String::new, |url| format!("; metrics at {url}"));
        let room = match self.grows {
            true => format!("that grows to room for {}", counted(self.max_capacity, "key")),
            false => format!(
                "with room for {} entries, {} of memory",
                count(self.slots),
                bytes(self.main_bytes + self.device_bytes)
            ),
        };
        let is_name_unknown = self.urls.iter().any(|url| url.contains(&format!("://{HOST_NAME_UNKNOWN}:")));
        let rdma = self.rdma.as_ref().map_or_else(String::new, |rdma| {
            let place = if rdma.lock_table == "device_memory" { "its own memory" } else { "host memory" };
            format!("; verbs are executed by {}, locks are in {place}", rdma.device)
        });
        let note = match is_name_unknown {
            true => "; HOST is the name or an address of this host",
            false if self.urls.iter().any(|url| url.contains('%')) => {
                "; on other hosts, the interface behind % is their own"
            }
            false => "",
        };
        format!(
            "serving {} at {}: {made} table of {} {room}, up to {} in {} sessions{rdma}{metrics}{note}",
            self.backing,
            self.urls.join(", "),
            self.entry,
            counted(self.max_clients.into(), "client"),
            count(self.sessions.into()),
        )
    }
}

/// Returns the URL that clients open.
fn url(fabric: Fabric, addr: SocketAddr) -> String {
    format!("{fabric}://{}", reachable(addr))
}

impl Stopped {
    fn new(signal: &'static str, fabric: Fabric, counted: &NodeCounters) -> Stopped {
        Stopped {
            signal,
            sessions: counted.sessions_opened,
            sessions_refused: metrics::refusals(counted).iter().map(|(_, count)| count).sum(),
            sessions_fenced: counted.sessions_fenced,
            executed: (fabric == Fabric::Tcp).then(|| Executed {
                batches: counted.batches,
                verbs: metrics::verbs(counted).iter().map(|(_, count)| count).sum(),
                bytes_in: counted.bytes_in,
                bytes_out: counted.bytes_out,
            }),
        }
    }

    fn human(&self) -> String {
        let executed = self.executed.as_ref().map_or_else(String::new, |executed| {
            let batches = match executed.batches {
                1 => "1 batch".to_owned(),
                batches => format!("{} batches", count(batches)),
            };
            let (verbs, sent) = (counted(executed.verbs, "verb"), bytes(executed.bytes_out));
            format!(", {verbs} in {batches}, {} in, {sent} out", bytes(executed.bytes_in))
        });
        format!(
            "stopped by {}: served {} ({} refused, {} fenced){executed}",
            self.signal,
            counted(self.sessions, "session"),
            count(self.sessions_refused),
            count(self.sessions_fenced),
        )
    }
}
