//! Checks of the way to a table, and of the table. The way is judged by one attempt to open it: each error belongs to a
//! step, and the steps before it are fine.

use crate::url::{Backend, NodeAddress};
use guira_fabric::{ByteCount, FabricError, shell_word};
use guira_fabric_shm::{Attempt, ShmError, check_directory};
use guira_fabric_verbs::{AttachError, VerbsError};
use guira_layout::SuperblockError;
use guira_network::client::ConnectError;
use guira_network::wire::{CloseReason, Fabric};
use guira_rcuckoo::TableError;

use super::DoctorCheck;
use crate::create::file_of;
use crate::{Error, OpenError, OpenOptions, Store, Url};

/// A step of opening a table, in the order of the steps. Only a table behind a node has others than the last one, and
/// only one over RDMA has all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The local device is opened.
    Device,
    /// The name of the host is resolved.
    Name,
    /// The port accepts a connection.
    Port,
    /// The node accepts the protocol's version, TLS and the token.
    Session,
    /// The two sides connect a queue pair.
    QueuePair,
    /// The table is found and verified.
    Table,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Device => "local device",
            Step::Name => "host name",
            Step::Port => "port",
            Step::Session => "session",
            Step::QueuePair => "queue pair",
            Step::Table => "table",
        }
    }
}

/// Checks the table at `url`, and the way to it. Opens it for changing if that is permitted, for the reasons of a
/// refusal; takes no client slot.
pub(super) fn checks(url: &Url, options: &OpenOptions) -> Vec<DoctorCheck> {
    let options = options.clone().any_owner();
    let mut is_read_only_file_system = false;
    let opened = Store::open_with(url, &options).or_else(|error| match &error {
        Error::Open(OpenError::Region(
            refusal @ (ShmError::Permission { .. } | ShmError::ReadOnlyFileSystem { .. } | ShmError::LockFile { .. }),
        )) => {
            is_read_only_file_system = matches!(refusal, ShmError::ReadOnlyFileSystem { .. });
            Store::open_with(url, &options.read_only())
        }
        // A table that could not be created there, either, is not missed.
        _ if error.is_not_found() => Err(file_of(url, Attempt::Create)
            .and_then(|location| Ok(check_directory(&location)?))
            .map_or_else(|refusal| refusal, |()| error)),
        _ => Err(error),
    });
    let outcome = opened.and_then(|store| described(&store));
    let checks = match (url.backend(), &outcome) {
        (Ok(Backend::Node(address)), _) => node(url, address, &outcome),
        (_, Ok(opened)) if is_read_only_file_system => {
            let detail = format!("its file system is mounted read-only: opens for reading only: {}", opened.table);
            vec![DoctorCheck::failed(Step::Table.name(), detail).with_help(REMOUNT)]
        }
        (_, Ok(Opened { table, is_cramped: true, .. })) => {
            vec![
                DoctorCheck::missing(Step::Table.name(), format!("{table}: too little for it to grow"))
                    .with_help(ENLARGE),
            ]
        }
        _ => vec![judged(url, Step::Table, &outcome)],
    };
    checks.into_iter().map(|check| check.of(url.to_string())).collect()
}

/// Describes an open table.
fn described(store: &Store) -> Result<Opened, Error> {
    let len = store.len_estimate()?;
    let about = if len.error > 0 { "about " } else { "" };
    let config = store.table().config();
    let grant = if store.is_read_only() { "reading only" } else { "reading and changing" };
    let grows = if config.grows() { format!(", grows to {}", config.max_entries()) } else { String::new() };
    let mut table = format!("{}, {about}{} of {} entries{grows}", config.format, len.entries, len.capacity);
    let mut is_cramped = false;
    if let Some((free_bytes, total_bytes)) = space_to_grow(store).filter(|_| len.capacity < config.max_entries()) {
        let (free, total) = (ByteCount(free_bytes), ByteCount(total_bytes));
        table += &format!("; its file system has {free} free of {total}");
        let row_bytes = u64::from(config.row_bytes);
        is_cramped = free_bytes < config.segment_rows.map_or(0, u64::from) * row_bytes;
    }
    Ok(Opened { grant, table, is_cramped })
}

/// Returns the free and all bytes of the file system of a table on this host that grows; `None` if it has no limit.
fn space_to_grow(store: &Store) -> Option<(u64, u64)> {
    let path = store.url().path().filter(|_| store.table().config().grows())?;
    let space = rustix::fs::statvfs(&path).ok().filter(|space| space.f_blocks > 0)?;
    Some((space.f_bavail.saturating_mul(space.f_frsize), space.f_blocks.saturating_mul(space.f_frsize)))
}

/// The properties of an open table.
struct Opened {
    grant: &'static str,
    table: String,
    /// Whether its file system has no room for one more segment of a table that grows.
    is_cramped: bool,
}

/// Returns a check for each step to a table behind a node, up to the one that failed.
fn node(url: &Url, address: &NodeAddress, outcome: &Result<Opened, Error>) -> Vec<DoctorCheck> {
    let failed = outcome.as_ref().err().map_or(Step::Table, step_of);
    let steps = match address {
        NodeAddress::Tcp(_) => &[Step::Name, Step::Port, Step::Session, Step::Table][..],
        NodeAddress::Rdma(_) => {
            &[Step::Device, Step::Name, Step::Port, Step::Session, Step::QueuePair, Step::Table][..]
        }
    };
    let steps = steps.iter().copied().filter(|step| *step <= failed);
    let passed = |step: Step| {
        let detail = match step {
            Step::Device => "opens".to_owned(),
            Step::QueuePair => "connected".to_owned(),
            Step::Name => format!("{} is known", address.endpoint()),
            Step::Port => "accepts connections".to_owned(),
            Step::Session | Step::Table => {
                let grant = outcome.as_ref().map_or("the node lets this client in", |opened| opened.grant);
                format!("accepted: {grant}")
            }
        };
        DoctorCheck::fine(step.name(), detail)
    };
    steps.map(|step| if step == failed { judged(url, step, outcome) } else { passed(step) }).collect()
}

/// Returns the check of the last step that was reached.
fn judged(url: &Url, step: Step, outcome: &Result<Opened, Error>) -> DoctorCheck {
    match outcome {
        Ok(Opened { grant, table, .. }) => DoctorCheck::fine(step.name(), format!("opens for {grant}: {table}")),
        Err(error) => {
            let detail = error.to_string().replace("; nothing was changed", "");
            let check = match error.is_not_found() {
                true => DoctorCheck::missing(step.name(), detail),
                false => DoctorCheck::failed(step.name(), detail),
            };
            let url = shell_word(&url.to_string());
            help(error).into_iter().fold(check, |check, help| check.with_help(help.replace(TABLE, &url)))
        }
    }
}

/// Returns the step that failed with this error.
fn step_of(error: &Error) -> Step {
    match error {
        Error::Open(OpenError::Connect { source, .. }) => match &**source {
            ConnectError::Resolve { .. } => Step::Name,
            ConnectError::Refused { .. } | ConnectError::TimedOut { .. } | ConnectError::Io { .. } => Step::Port,
            ConnectError::Rejected { reason: CloseReason::MemoryLost, .. } => Step::Table,
            _ => Step::Session,
        },
        Error::Open(OpenError::Rdma { source, .. }) => match &**source {
            AttachError::Device(
                VerbsError::Mismatch { .. } | VerbsError::Memlock { .. } | VerbsError::System { .. },
            )
            | AttachError::Refused { .. } => Step::QueuePair,
            _ => Step::Device,
        },
        Error::Open(OpenError::TokenFile { .. } | OpenError::AccessToken(_) | OpenError::TlsFile(_)) => Step::Session,
        Error::Open(OpenError::Table { source: TableError::Fabric(FabricError::ConnectionFailed { .. }), .. }) => {
            Step::QueuePair
        }
        _ => Step::Table,
    }
}

/// The text that stands for the table's URL in the words of [`help`].
const TABLE: &str = "URL_OF_TABLE";

/// Advice for a file system that is mounted read-only.
const REMOUNT: &str = "as root: mount its file system for writing (mount -o remount,rw); in a container: mount the \
                       volume without :ro";

/// Advice for a file system that is full.
const ENLARGE: &str = "remove files from its file system, or enlarge it; a tmpfs, as root: mount -o remount,size=SIZE";

/// Returns what helps against an error.
fn help(error: &Error) -> Option<&'static str> {
    let Error::Open(error) = error else { return None };
    Some(match error {
        OpenError::Region(ShmError::NotFound { attempt: Attempt::Create, .. }) => "create its directory first",
        OpenError::Region(ShmError::NotFound { .. }) => "create the table: guira create URL_OF_TABLE --capacity 10k",
        OpenError::Region(ShmError::ReadOnlyFileSystem { .. }) => REMOUNT,
        OpenError::Region(ShmError::Permission { attempt: Attempt::Create, .. }) => {
            "choose a directory that this user may write to"
        }
        OpenError::Region(ShmError::Permission { .. }) => {
            "the owner can let others in: guira create --mode MODE, for a new table"
        }
        OpenError::Region(ShmError::ServedByDevice { .. }) => "use the rdma:// URL that its server prints",
        OpenError::Region(ShmError::Foreign { .. }) => "check the name; guira list shows the tables of this host",
        OpenError::Region(ShmError::UnsupportedFileSystem { name: "overlayfs", .. }) => {
            "the own files of a container are on overlayfs: use shm://NAME, or a volume on ext4, xfs or tmpfs"
        }
        OpenError::Region(ShmError::UnsupportedFileSystem { .. }) => "use tmpfs, hugetlbfs, ext4 or xfs",
        OpenError::Table { source: TableError::Destroyed, .. } => "remove its name: guira destroy URL_OF_TABLE",
        // The message says how to carry the records over.
        OpenError::Region(ShmError::Version { .. })
        | OpenError::Table {
            source: TableError::Superblock(SuperblockError::Version { .. } | SuperblockError::Meaning { .. }),
            ..
        } => return None,
        OpenError::Table { source: TableError::Fabric(FabricError::ConnectionFailed { .. }), .. } => {
            "let UDP port 4791 (RoCE v2) through the firewalls between the hosts, and compare the MTUs of the path"
        }
        OpenError::Table { source: TableError::Fabric(_), .. } => "see the log of the memory node, and try again",
        OpenError::Table { .. } => "guira check URL_OF_TABLE names the damage; guira copy saves what can be read",
        OpenError::TokenFile { .. } | OpenError::AccessToken(_) => {
            "set GUIRA_TOKEN_FILE to the node's token file, readable by this user alone"
        }
        OpenError::TlsFile(_) => "see --tls-ca, --tls-cert and --tls-key",
        OpenError::Connect { source, .. } => return help_to_connect(source),
        OpenError::Rdma { source, .. } => match &**source {
            AttachError::Device(VerbsError::Memlock { .. }) => {
                "raise the limit of locked memory: ulimit -l, or LimitMEMLOCK= of the service"
            }
            AttachError::Device(VerbsError::NoSuchDevice { found, .. }) if found.is_empty() => {
                "guira doctor, without a URL, says what RDMA needs of this machine; tcp:// needs no device"
            }
            AttachError::Device(VerbsError::NoSuchDevice { .. } | VerbsError::NoSuchGid { .. }) => {
                "choose one of these: rdma://HOST:PORT?dev=NAME&port=N&gid=N"
            }
            _ => return None,
        },
        _ => return None,
    })
}

fn help_to_connect(error: &ConnectError) -> Option<&'static str> {
    Some(match error {
        ConnectError::Resolve { .. } => "check the name: getent hosts HOST",
        ConnectError::Refused { .. } => "start the node there: guira serve --listen ADDRESS:PORT; check the port",
        ConnectError::TimedOut { .. } | ConnectError::Io { .. } => "check the address, the route and firewalls between",
        ConnectError::Tls { .. } => "see --tls-ca, --tls-cert and --tls-key, on both sides",
        ConnectError::NotANode { .. } | ConnectError::Closed { .. } => "check that guira serve has that port",
        ConnectError::Rejected { reason, .. } => match reason {
            CloseReason::Unauthorized => "set GUIRA_TOKEN_FILE to the file of a token that the node accepts",
            CloseReason::TlsRequired => "set --tls-ca, --tls-cert and --tls-key",
            CloseReason::OtherFabric { node: Fabric::Tcp } => {
                "use tcp:// in place of rdma://, or start the node with --rdma"
            }
            CloseReason::OtherFabric { node: Fabric::Rdma } => "use rdma:// in place of tcp://",
            CloseReason::Version { .. } => "install the same version of guira on both sides",
            CloseReason::Full { .. } | CloseReason::AddressFull { .. } => {
                "close other clients, or start the node with a larger limit of sessions"
            }
            _ => return None,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;
    use std::path::PathBuf;
    use std::sync::Arc;

    use crate::url::RdmaNode;
    use guira_fabric_shm::Attempt;
    use guira_network::client::Endpoint;

    use super::*;
    use crate::admin::CheckState;

    fn url() -> Url {
        "tcp://host.example:7711".parse().unwrap()
    }

    fn connect(source: ConnectError) -> Error {
        Error::Open(OpenError::Connect { url: url(), source: Arc::new(source) })
    }

    fn address() -> SocketAddr {
        "192.0.2.1:7711".parse().unwrap()
    }

    fn endpoint() -> Endpoint {
        "host.example:7711".parse().unwrap()
    }

    fn tcp() -> NodeAddress {
        NodeAddress::Tcp(endpoint())
    }

    fn rejected(reason: CloseReason) -> Error {
        connect(ConnectError::Rejected { address: address(), reason })
    }

    fn of_node(outcome: Result<Opened, Error>) -> Vec<(&'static str, CheckState)> {
        node(&url(), &tcp(), &outcome).iter().map(|check| (check.name, check.state)).collect()
    }

    #[test]
    fn an_open_table_behind_a_node_is_fine_in_every_step() {
        let opened =
            Opened { grant: "reading only", table: "fixed:8:8, 3 of 100 entries".to_owned(), is_cramped: false };
        let checks = node(&url(), &tcp(), &Ok(opened));
        let lines: Vec<_> = checks.iter().map(|check| format!("{}: {}", check.name, check.detail)).collect();
        let expected = [
            "host name: host.example:7711 is known",
            "port: accepts connections",
            "session: accepted: reading only",
            "table: opens for reading only: fixed:8:8, 3 of 100 entries",
        ];
        assert_eq!(lines, expected);
        assert!(checks.iter().all(|check| check.state == CheckState::Fine && check.help.is_none()));
    }

    #[test]
    fn an_error_belongs_to_a_step() {
        use CheckState::{Failed, Fine};
        let resolve = ConnectError::Resolve { endpoint: endpoint(), source: io::ErrorKind::NotFound.into() };
        assert_eq!(of_node(Err(connect(resolve))), [("host name", Failed)]);
        let refused = || connect(ConnectError::Refused { address: address() });
        let timed_out = connect(ConnectError::TimedOut { address: address(), timeout_ms: 5 });
        for error in [refused(), timed_out] {
            assert_eq!(of_node(Err(error)), [("host name", Fine), ("port", Failed)]);
        }
        let token = OpenError::TokenFile { url: url(), path: PathBuf::from("/t"), reason: "too open".to_owned() };
        let session = [rejected(CloseReason::Unauthorized), rejected(CloseReason::TlsRequired), Error::Open(token)];
        for error in session {
            assert!(help(&error).is_some(), "{error}");
            assert_eq!(of_node(Err(error)), [("host name", Fine), ("port", Fine), ("session", Failed)]);
        }
        let destroyed = Error::Open(OpenError::Table { url: url(), source: TableError::Destroyed });
        for error in [destroyed, rejected(CloseReason::MemoryLost)] {
            let states = [("host name", Fine), ("port", Fine), ("session", Fine), ("table", Failed)];
            assert_eq!(of_node(Err(error)), states);
        }
        let check = judged(&url(), Step::Port, &Err(refused()));
        assert!(check.detail.contains("connection refused") && !check.detail.contains("nothing was changed"));
        assert!(check.help.unwrap().contains("guira serve"));
    }

    #[test]
    fn a_node_over_rdma_has_steps_of_its_own() {
        use CheckState::{Failed, Fine};
        let of = |source: AttachError| {
            let error = Error::Open(OpenError::Rdma { url: url(), source: Arc::new(source) });
            let checks = node(&url(), &NodeAddress::Rdma(RdmaNode::new(endpoint())), &Err(error));
            checks.iter().map(|check| (check.name, check.state)).collect::<Vec<_>>()
        };
        let missing = |found: &[&str]| {
            AttachError::from(VerbsError::NoSuchDevice {
                name: "mlx5_9".to_owned(),
                found: found.iter().copied().map(str::to_owned).collect(),
            })
        };
        assert_eq!(of(missing(&[])), [("local device", Failed)]);
        let told = |source| help(&Error::Open(OpenError::Rdma { url: url(), source: Arc::new(source) }));
        assert!(told(missing(&["mlx5_0"])).is_some_and(|help| help.contains("choose one of these")));
        assert!(told(missing(&[])).is_some_and(|help| !help.contains("choose") && help.contains("tcp://")));
        let memlock = VerbsError::Memlock { needed_bytes: 8, limit_bytes: 4 };
        let all = ["local device", "host name", "port", "session"].map(|name| (name, Fine));
        assert_eq!(of(memlock.into()), [&all[..], &[("queue pair", Failed)]].concat());
        let other = rejected(CloseReason::OtherFabric { node: Fabric::Tcp });
        assert!(help(&other).is_some_and(|help| help.contains("tcp://")), "{other}");
        let opened = Opened { grant: "reading only", table: "fixed:8:8".to_owned(), is_cramped: false };
        let checks = node(&url(), &NodeAddress::Rdma(RdmaNode::new(endpoint())), &Ok(opened));
        assert_eq!(checks.len(), 6);
        // The first request of a queue pair finds a firewall in its way.
        let cause = "a work request failed: transport retry counter exceeded".to_owned();
        let failed = TableError::Fabric(FabricError::ConnectionFailed { cause, effect: guira_fabric::Effect::None });
        let blocked = Err(Error::Open(OpenError::Table { url: url(), source: failed }));
        let checks = node(&url(), &NodeAddress::Rdma(RdmaNode::new(endpoint())), &blocked);
        let last = checks.last().unwrap();
        assert_eq!((last.name, last.state), ("queue pair", Failed));
        assert!(last.detail.contains("transport retry counter exceeded"), "{last:?}");
        assert!(last.help.as_ref().is_some_and(|help| help.contains("UDP port 4791")), "{last:?}");
    }

    #[test]
    fn files_have_their_own_help() {
        let region = |error| Err(Error::Open(OpenError::Region(error)));
        let (attempt, path) = (Attempt::Open, || PathBuf::from("/dev/shm/t"));
        let missing = judged(&url(), Step::Table, &region(ShmError::NotFound { attempt, path: path() }));
        assert_eq!((missing.name, missing.state), ("table", CheckState::Missing));
        assert_eq!(missing.help.unwrap(), "create the table: guira create tcp://host.example:7711 --capacity 10k");
        let rdma: Url = "rdma://host.example?dev=mlx5_0&gid=3".parse().unwrap();
        let missing = judged(&rdma, Step::Table, &region(ShmError::NotFound { attempt, path: path() }));
        let command = format!("guira create '{rdma}' --capacity 10k");
        assert!(missing.help.as_ref().is_some_and(|help| help.ends_with(&command)), "for a shell: {missing:?}");
        let served = judged(&url(), Step::Table, &region(ShmError::ServedByDevice { attempt, path: path() }));
        assert_eq!(served.state, CheckState::Failed);
        assert!(served.help.unwrap().contains("rdma://"));
        let version = TableError::Superblock(SuperblockError::Version { found: 9, supported: 1 });
        let version = judged(&url(), Step::Table, &Err(Error::Open(OpenError::Table { url: url(), source: version })));
        assert!(version.detail.contains("guira dump") && version.help.is_none(), "{version:?}");
        let foreign = judged(&url(), Step::Table, &region(ShmError::Foreign { attempt, path: path() }));
        assert!(foreign.help.unwrap().contains("guira list"));
    }
}
