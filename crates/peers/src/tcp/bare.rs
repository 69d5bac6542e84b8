//! A server that does nothing: it answers requests of one size with answers of another, and reads neither. Its
//! processor time is the kernel's cost of an exchange, a lower bound for every server that receives from and sends to
//! one connection at a time.

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

/// Bytes of a request for a lookup in a table with rows of 128 bytes.
const REQUEST_BYTES: usize = 64;
/// Bytes of the answer to such a request.
const ANSWER_BYTES: usize = 272;
/// Maximum number of bytes of one read. The answers to all of them go into one write.
const READ_BYTES: usize = 128 * REQUEST_BYTES;
/// Maximum number of events of one epoll wait.
const EVENTS: usize = 64;
/// The number of the listening socket; connections have other numbers.
const LISTENER: u64 = 0;

/// The line that the process prints when clients can connect.
#[derive(Serialize, Deserialize)]
struct Ready {
    port: u16,
}

/// The handle of the server's process, which is killed on drop.
pub(super) struct Bare {
    child: Child,
    port: u16,
    /// Kept open, unread, so that the process can still write when it ends.
    _output: BufReader<ChildStdout>,
}

impl Bare {
    /// Starts the server by a command of this program.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub(super) fn start(options: &TcpOptions, directory: &Path) -> Result<Bare, PeersError> {
        let attempt = "start a server that does nothing";
        let mut command = killed_with_parent(&options.program);
        command.args(["bench", "peers-bare"]).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(PeersError::host(attempt))?;
        let Some(output) = child.stdout.take() else {
            return Err(PeersError::host(attempt)(std::io::Error::other("its output is not a pipe")));
        };
        let (mut output, mut line) = (BufReader::new(output), String::new());
        let read = output.read_line(&mut line).map_err(PeersError::host(attempt));
        // From here on the process ends with this value.
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
        // It may have ended by itself; nothing in it needs to be kept.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the server until the process is killed. Prints its port to `output`.
///
/// # Errors
/// Errors of the operating system.
pub fn serve_bare(mut output: impl Write) -> Result<(), PeersError> {
    let host = |attempt| PeersError::host(attempt);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(host("listen"))?;
    let port = listener.local_addr().map_err(host("read the port"))?.port();
    let epoll =
        epoll::create(CreateFlags::CLOEXEC).map_err(std::io::Error::from).map_err(host("create an epoll instance"))?;
    let watch = |socket: &dyn std::os::fd::AsFd, number: u64| {
        let added = epoll::add(&epoll, socket.as_fd(), EventData::new_u64(number), EventFlags::IN);
        added.map_err(std::io::Error::from).map_err(host("watch a socket"))
    };
    watch(&listener, LISTENER)?;
    let said = serde_json::to_string(&Ready { port }).map_err(std::io::Error::from);
    let said = said.and_then(|line| writeln!(output, "{line}")).and_then(|()| output.flush());
    said.map_err(host("print the port"))?;
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
                clients.insert(number, Client { stream, partial_bytes: 0 });
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
    /// Bytes received of an incomplete request.
    partial_bytes: usize,
}

impl Client {
    /// Answers the requests that have arrived. Returns false when the connection has ended.
    fn serve(&mut self, buffer: &mut [u8], answers: &[u8]) -> bool {
        match self.stream.read(buffer) {
            Ok(0) => false,
            Ok(bytes) => {
                let received = self.partial_bytes + bytes;
                self.partial_bytes = received % REQUEST_BYTES;
                self.stream.write_all(&answers[..received / REQUEST_BYTES * ANSWER_BYTES]).is_ok()
            }
            Err(error) => error.kind() == ErrorKind::Interrupted,
        }
    }
}

/// A client connection.
pub(super) struct BareSession {
    stream: TcpStream,
    depth: usize,
    request: Vec<u8>,
    answer: Vec<u8>,
    exchanges: u64,
}

impl BareSession {
    /// Connects to the server at `port`, for `depth` requests per exchange.
    ///
    /// # Errors
    /// Errors of the operating system.
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
            return Err(PeersError::Options("a server that does nothing has no updates".to_owned()));
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

    /// Requests may arrive in pieces: each complete one is answered, and no other.
    #[test]
    fn each_complete_request_is_answered() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut asking = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut client = Client { stream, partial_bytes: 0 };
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
