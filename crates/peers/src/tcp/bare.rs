//! A server that does nothing: it answers requests of one size with answers of another, and looks at neither. What it
//! takes of a processor is the kernel's price of an exchange. No server comes below it that asks the kernel for bytes,
//! and hands it bytes, one connection at a time.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use serde::{Deserialize, Serialize};

use super::plan::{Mix, TcpOptions};
use super::sessions::{Session, Share, timed_exchange};
use crate::error::PeersError;
use crate::server::killed_with_parent;

/// What asks for a look-up in a table of rows of 128 bytes, and what answers it.
const REQUEST_BYTES: usize = 64;
const ANSWER_BYTES: usize = 272;
/// Read at once, at most; answers to all of it are written at once, too.
const READ_BYTES: usize = 128 * REQUEST_BYTES;
/// Connections that the kernel names at once.
const EVENTS: usize = 64;
/// The listening socket's number; connections have others.
const LISTENER: u64 = 0;

/// What the process says when clients can connect.
#[derive(Serialize, Deserialize)]
struct Ready {
    port: u16,
}

/// The server, as the one who measures it sees it. It is gone when this is dropped.
pub(super) struct Bare {
    child: Child,
    port: u16,
    /// What it says at its end is not read, but must not fail.
    _output: BufReader<ChildStdout>,
}

impl Bare {
    /// Starts it, by this program's own command line.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn start(options: &TcpOptions, directory: &Path) -> Result<Bare, PeersError> {
        let attempt = "start a server that does nothing";
        let mut command = killed_with_parent(&options.program);
        command.args(["bench", "peers-bare"]).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(PeersError::host(attempt))?;
        let Some(output) = child.stdout.take() else {
            return Err(PeersError::host(attempt)(std::io::Error::other("it has no output")));
        };
        let (mut output, mut line) = (BufReader::new(output), String::new());
        let read = output.read_line(&mut line).map_err(PeersError::host(attempt));
        // From now on it is ended with this.
        let mut bare = Bare { child, port: 0, _output: output };
        read?;
        let Ready { port } =
            serde_json::from_str(&line).map_err(|error| PeersError::peer(attempt, format!("{line:?}: {error}")))?;
        bare.port = port;
        Ok(bare)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // It has ended by itself, or it ends now: there is nothing in it to keep.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is the server, until the process is ended: says on `output` where it listens.
///
/// # Errors
/// The system's.
pub fn serve_bare(mut output: impl Write) -> Result<(), PeersError> {
    let host = |attempt| PeersError::host(attempt);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(host("listen"))?;
    let port = listener.local_addr().map_err(host("learn where it listens"))?.port();
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(std::io::Error::from).map_err(host("make an epoll"))?;
    let watch = |socket: &dyn std::os::fd::AsFd, number: u64| {
        let added = epoll::add(&epoll, socket.as_fd(), EventData::new_u64(number), EventFlags::IN);
        added.map_err(std::io::Error::from).map_err(host("watch a socket"))
    };
    watch(&listener, LISTENER)?;
    let said = serde_json::to_string(&Ready { port }).map_err(std::io::Error::from);
    let said = said.and_then(|line| writeln!(output, "{line}")).and_then(|()| output.flush());
    said.map_err(host("say where it listens"))?;
    let mut clients: HashMap<u64, Client> = HashMap::new();
    let (mut number, mut events) = (LISTENER, Vec::with_capacity(EVENTS));
    let mut buffer = vec![0; READ_BYTES];
    let answers = vec![0; (READ_BYTES / REQUEST_BYTES + 1) * ANSWER_BYTES];
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(host("wait")(errno.into())),
        }
        for event in &events {
            // Copied: the event is packed.
            let data = event.data;
            if data.u64() == LISTENER {
                let (stream, _) = listener.accept().map_err(host("accept"))?;
                stream.set_nodelay(true).map_err(host("set an option"))?;
                number += 1;
                watch(&stream, number)?;
                clients.insert(number, Client { stream, begun_bytes: 0 });
            } else if let Some(client) = clients.get_mut(&data.u64())
                && !client.serve(&mut buffer, &answers)
            {
                clients.remove(&data.u64());
            }
        }
    }
}

struct Client {
    stream: TcpStream,
    /// Bytes that came of a request that is not whole.
    begun_bytes: usize,
}

impl Client {
    /// Answers what has come; false if it is over.
    fn serve(&mut self, buffer: &mut [u8], answers: &[u8]) -> bool {
        match self.stream.read(buffer) {
            Ok(0) => false,
            Ok(bytes) => {
                let come = self.begun_bytes + bytes;
                self.begun_bytes = come % REQUEST_BYTES;
                self.stream.write_all(&answers[..come / REQUEST_BYTES * ANSWER_BYTES]).is_ok()
            }
            Err(error) => error.kind() == ErrorKind::Interrupted,
        }
    }
}

/// A connection that asks it.
pub(super) struct BareSession {
    stream: TcpStream,
    depth: usize,
    request: Vec<u8>,
    answer: Vec<u8>,
    exchanges: u64,
}

impl BareSession {
    /// # Errors
    /// The system's.
    pub(super) fn open(port: u16, depth: usize) -> Result<BareSession, PeersError> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(PeersError::host("connect"))?;
        stream.set_nodelay(true).map_err(PeersError::host("set an option"))?;
        let (request, answer) = (vec![0; depth * REQUEST_BYTES], vec![0; depth * ANSWER_BYTES]);
        Ok(BareSession { stream, depth, request, answer, exchanges: 0 })
    }
}

impl Session for BareSession {
    fn run(&mut self, share: &Share, exchanges_ns: &mut Vec<u32>) -> Result<(), PeersError> {
        if share.mix != Mix::YcsbC {
            return Err(PeersError::Options("a server that does nothing changes nothing".to_owned()));
        }
        for asked in share.range.clone().step_by(self.depth) {
            let at_once = self.depth.min(share.range.end - asked);
            timed_exchange(exchanges_ns, || {
                let sent = self.stream.write_all(&self.request[..at_once * REQUEST_BYTES]);
                let answer = &mut self.answer[..at_once * ANSWER_BYTES];
                sent.and_then(|()| self.stream.read_exact(answer)).map_err(PeersError::host("exchange bytes"))
            })?;
            self.exchanges += 1;
        }
        Ok(())
    }

    fn round_trips(&self) -> u64 {
        self.exchanges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests may come in pieces: there is an answer for each that is whole, and no other.
    #[test]
    fn each_whole_request_has_an_answer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut asking = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut client = Client { stream, begun_bytes: 0 };
        let (mut buffer, answers) = (vec![0; READ_BYTES], vec![0; READ_BYTES / REQUEST_BYTES * ANSWER_BYTES]);
        let mut answered = vec![0; 3 * ANSWER_BYTES];
        for (bytes, whole) in [(REQUEST_BYTES - 1, 0), (REQUEST_BYTES, 1), (REQUEST_BYTES + 1, 2)] {
            asking.write_all(&vec![0; bytes]).unwrap();
            assert!(client.serve(&mut buffer, &answers));
            asking.read_exact(&mut answered[..whole * ANSWER_BYTES]).unwrap();
        }
        asking.set_nonblocking(true).unwrap();
        assert_eq!(asking.read(&mut answered).unwrap_err().kind(), ErrorKind::WouldBlock);
        asking.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!client.serve(&mut buffer, &answers));
    }
}
