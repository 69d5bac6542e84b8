//! The servers of a run: each is a process that listens on a port of the loopback interface, with one worker thread and
//! all records in memory. A server is killed when its handle is dropped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use guira::{Store, Url};
use serde::Deserialize;

use super::bare::Bare;
use super::plan::TcpOptions;
use crate::error::PeersError;
use crate::load::{Loader, ProgressFn};
use crate::plan::System;
use crate::record::{KEY_BYTES, Records, WORD_BYTES};
use crate::server::{self, Kind, Listen, Server, Sizes, killed_with_parent, pin_process};
use crate::systems::Address;

/// Client slots, as a multiple of the slots in use: a new client finds a free one in a few attempts.
const SLOTS_FACTOR: usize = 2;
/// Client slots beyond that.
const SPARE_CLIENTS: usize = 64;
/// Maximum number of concurrent sessions of a node.
const SESSIONS: usize = 1024;
/// Records per `put_many` while loading.
const LOADED_AT_ONCE: usize = 1024;

/// A server with the records of a run.
pub(super) enum TcpServer {
    /// A memory node of Guira.
    Node(Node),
    /// Redis or memcached.
    Peer(Server),
    /// A server that does nothing.
    Bare(Bare),
}

impl TcpServer {
    /// Starts a server and loads it.
    ///
    /// # Errors
    /// Errors of the server; an interruption.
    pub(super) fn start(
        name: System,
        options: &TcpOptions,
        records: &Records,
        directory: &Path,
        watch: &mut ProgressFn<'_>,
    ) -> Result<TcpServer, PeersError> {
        let loader = &mut Loader::new(name.title(), options.records, watch);
        let kind = match name {
            System::Redis => Kind::Redis,
            System::Memcached => Kind::Memcached,
            System::Raw => return Ok(TcpServer::Bare(Bare::start(options, directory)?)),
            _ => {
                let node = Node::start(options, directory)?;
                load_node(&node.url, records, loader)?;
                return Ok(TcpServer::Node(node));
            }
        };
        let sizes = Sizes { records: options.records, value_bytes: records.value_bytes(), threads: 1 };
        let server = Server::start(kind, Listen::Port, directory, &sizes)?;
        server::load(kind, server.address(), records, loader)?;
        Ok(TcpServer::Peer(server))
    }

    /// The process id of the server.
    pub(super) fn pid(&self) -> u32 {
        match self {
            TcpServer::Node(node) => node.child.id(),
            TcpServer::Peer(server) => server.pid(),
            TcpServer::Bare(bare) => bare.pid(),
        }
    }

    /// Restricts all threads of the server to these processors.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn pin_to(&self, cores: &[usize]) -> Result<(), PeersError> {
        pin_process(self.pid(), cores)
    }

    /// The address of the server.
    pub(super) fn endpoint(&self) -> TcpEndpoint<'_> {
        match self {
            TcpServer::Node(node) => TcpEndpoint::Node(&node.url),
            TcpServer::Peer(server) => TcpEndpoint::Peer(server.address()),
            TcpServer::Bare(bare) => TcpEndpoint::Bare(bare.port()),
        }
    }
}

/// The address of a server.
#[derive(Clone, Copy)]
pub(super) enum TcpEndpoint<'s> {
    /// A memory node.
    Node(&'s Url),
    /// Redis or memcached.
    Peer(&'s Address),
    /// The port of a server that does nothing.
    Bare(u16),
}

/// A process of `guira serve` with a table in its own memory.
pub(super) struct Node {
    child: Child,
    url: Url,
    /// Kept open, unread, so that the process can still write when it ends.
    _output: BufReader<ChildStdout>,
}

/// The line that `guira serve` prints when clients can connect.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Ready { urls: Vec<String> },
}

impl Node {
    fn start(options: &TcpOptions, directory: &Path) -> Result<Node, PeersError> {
        let attempt = "start guira serve";
        let clients = SLOTS_FACTOR * options.most_clients() + SPARE_CLIENTS;
        let sizes = [
            ("--capacity", options.records.to_string()),
            ("--entry", format!("fixed:{KEY_BYTES}:{WORD_BYTES}")),
            ("--max-clients", clients.to_string()),
            ("--sessions", SESSIONS.to_string()),
        ];
        let mut command = killed_with_parent(&options.program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--backing", "memory", "--threads", "1"]);
        command.args(["--no-audit", "--format", "json"]);
        sizes.iter().for_each(|(name, value)| {
            command.arg(name).arg(value);
        });
        command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(PeersError::host(attempt))?;
        let Some(output) = child.stdout.take() else {
            return Err(PeersError::host(attempt)(std::io::Error::other("its output is not a pipe")));
        };
        let mut output = BufReader::new(output);
        let mut line = String::new();
        let read = output.read_line(&mut line).map_err(PeersError::host(attempt));
        let ready = read.and_then(|_| {
            serde_json::from_str(&line).map_err(|error| PeersError::peer(attempt, format!("{line:?}: {error}")))
        });
        // From here on the process ends with the node.
        let mut node = Node { child, url: Url::unnamed(), _output: output };
        let Line::Ready { urls } = ready?;
        let url = urls.first().ok_or_else(|| PeersError::peer(attempt, "it reported no address"))?;
        node.url = url.parse().map_err(guira::Error::from)?;
        Ok(node)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself; nothing in it needs to be kept.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stores every record, many per call.
fn load_node(url: &Url, records: &Records, loader: &mut Loader<'_>) -> Result<(), PeersError> {
    let mut client = Store::open(url)?.client()?;
    let mut items = Vec::with_capacity(LOADED_AT_ONCE);
    let mut flush = |items: &mut Vec<_>| -> Result<(), PeersError> {
        let stored = client.put_many(items);
        items.clear();
        stored.into_iter().try_for_each(|put| put.map(drop).map_err(PeersError::from))
    };
    loader.each(records, |key, value| {
        items.push((*key, value.to_vec()));
        if items.len() == LOADED_AT_ONCE { flush(&mut items) } else { Ok(()) }
    })?;
    flush(&mut items)
}
