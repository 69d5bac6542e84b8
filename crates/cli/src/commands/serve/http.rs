//! A small HTTP server for metrics: one request, one response, and the connection is closed.
//!
//! Requests are parsed by httparse, the parser of hyper. hyper itself would bring a runtime and some twenty packages
//! into a program that has neither, for two public pages; tiny_http, which is as small as this, has had no release for
//! years and bounds neither time nor connections.
//!
//! Invariants: one thread, started at the beginning, handles all connections and blocks on none of them; it shares
//! nothing with the threads that serve the table but counters that it reads. A client has [`CLIENT_TIMEOUT`] for the
//! whole exchange, and makes the server keep at most [`MAX_HEAD_BYTES`] and a page. There are at most
//! [`MAX_CONNECTIONS`]; a new one evicts the oldest of those that were answered, or else the oldest of all. So a client
//! that sends its request promptly is answered, however many others are silent or keep their connections open.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;

/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 128;
/// Length of the kernel's accept queue, if it allows so many: a connection that finds the queue full is dropped, and
/// tried again after a second. The standard library asks for 128.
const BACKLOG: i32 = 4096;
/// Maximum number of connections accepted before the others are handled again.
const MAX_ACCEPTS: usize = 32;
/// Time a client has to send its request and to receive the response.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time an answered client has to close its connection, before a reset by the kernel may discard the response.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of bytes of a request's line and headers.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;
/// The pause after a failure to accept a connection: usually too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The pages of a server.
pub trait Pages: Send + Sync + 'static {
    /// Returns the page at `path`, if there is one.
    fn page(&self, path: &str) -> Option<Page>;
}

/// A page: its status, its type and its text.
pub struct Page {
    /// The status line, such as `200 OK`.
    pub status: &'static str,
    pub content_type: &'static str,
    pub text: String,
}

/// A server whose thread runs until the process ends.
pub struct HttpServer {
    local_addr: SocketAddr,
}

impl HttpServer {
    /// Listens on `addr` and answers with `pages`.
    pub fn start(addr: SocketAddr, pages: Arc<impl Pages>) -> Result<HttpServer, Failure> {
        let failed = || Failure::host(format!("listen on {addr} for metrics"));
        let listener = listen(addr).map_err(failed())?;
        let local_addr = listener.local_addr().map_err(failed())?;
        listener.set_nonblocking(true).map_err(failed())?;
        let builder = thread::Builder::new().name("guira-http".to_owned());
        let spawned = builder.spawn(move || Server::new(listener).run(&*pages));
        spawned.map_err(Failure::thread("start a thread for metrics"))?;
        Ok(HttpServer { local_addr })
    }

    /// Returns the address on which the server listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

/// Opens a listener with a long accept queue.
fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(addr)?;
    // The second call changes only the length of the queue.
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// The listener and its connections.
struct Server {
    listener: TcpListener,
    /// The connections, the oldest first.
    connections: Vec<Connection>,
    /// The time before which nothing is accepted.
    accept_from: Instant,
}

impl Server {
    fn new(listener: TcpListener) -> Server {
        Server { listener, connections: Vec::new(), accept_from: Instant::now() }
    }

    fn run(&mut self, pages: &impl Pages) {
        let mut ready = Vec::new();
        loop {
            if let Err(errno) = self.wait(&mut ready)
                && errno != rustix::io::Errno::INTR
            {
                thread::sleep(ACCEPT_PAUSE);
            }
            let now = Instant::now();
            let mut is_ready = ready.iter();
            // A failure concerns only its client: it gets no response, or part of one.
            self.connections.retain_mut(|connection| {
                let is_ready = is_ready.next().is_some_and(|ready| *ready);
                now < connection.until && (!is_ready || matches!(connection.drive(pages), Ok(Next::Continue)))
            });
            self.accept(now, pages);
        }
    }

    /// Waits until something can be done, and stores which connections are ready.
    fn wait(&self, ready: &mut Vec<bool>) -> rustix::io::Result<()> {
        ready.clear();
        let now = Instant::now();
        let may_accept = now >= self.accept_from;
        let mut until = self.connections.iter().map(|connection| connection.until).min();
        if !may_accept {
            until = Some(until.map_or(self.accept_from, |until| until.min(self.accept_from)));
        }
        // A millisecond more, so that the deadline has passed on return.
        let left = until.map(|until| until.saturating_duration_since(now) + Duration::from_millis(1));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let wanted = self.connections.iter().map(|connection| (connection.stream.as_fd(), connection.interest()));
        let mut entries: Vec<PollFd<'_>> =
            wanted.map(|(stream, flags)| PollFd::from_borrowed_fd(stream, flags)).collect();
        if may_accept {
            entries.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        poll(&mut entries, timeout.as_ref())?;
        ready.extend(entries[..self.connections.len()].iter().map(|entry| !entry.revents().is_empty()));
        Ok(())
    }

    fn accept(&mut self, now: Instant, pages: &impl Pages) {
        if now < self.accept_from {
            return;
        }
        for _ in 0..MAX_ACCEPTS {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    let mut connection = Connection::new(stream, now + CLIENT_TIMEOUT);
                    // Usually its request has already arrived.
                    if matches!(connection.drive(pages), Ok(Next::Continue)) {
                        self.evict_oldest();
                        self.connections.push(connection);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    self.accept_from = now + ACCEPT_PAUSE;
                    return;
                }
            }
        }
    }

    /// Closes a connection if the maximum is reached: the oldest of those that were answered, or else of all.
    fn evict_oldest(&mut self) {
        if self.connections.len() >= MAX_CONNECTIONS {
            let is_answered = |connection: &Connection| matches!(connection.state, State::Draining { .. });
            let oldest = self.connections.iter().position(is_answered).unwrap_or(0);
            self.connections.remove(oldest);
        }
    }
}

/// Whether to keep or close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Close,
}

/// One connection.
struct Connection {
    stream: TcpStream,
    /// The time at which the connection is closed, whatever its state.
    until: Instant,
    /// The bytes received of its request.
    head: Vec<u8>,
    state: State,
}

enum State {
    /// The request is incomplete.
    ReadingRequest,
    /// The first `sent` bytes of the response were sent.
    SendingResponse { response: Vec<u8>, sent: usize },
    /// Further bytes from the client are read and ignored, because unread bytes would make the kernel reset the
    /// connection and discard the response.
    Draining { ignored: usize },
}

impl Connection {
    fn new(stream: TcpStream, until: Instant) -> Connection {
        Connection { stream, until, head: Vec::new(), state: State::ReadingRequest }
    }

    fn interest(&self) -> PollFlags {
        if matches!(self.state, State::SendingResponse { .. }) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Does all that can be done without blocking.
    fn drive(&mut self, pages: &impl Pages) -> io::Result<Next> {
        match self.advance(pages) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Next::Continue),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Next::Continue),
            result => result,
        }
    }

    /// Advances until the client has to do something, and returns `WouldBlock` then. Bounded: each step receives or
    /// sends part of a bounded amount.
    fn advance(&mut self, pages: &impl Pages) -> io::Result<Next> {
        let mut part = [0; 1024];
        loop {
            match &mut self.state {
                State::ReadingRequest => {
                    let room = part.len().min(MAX_HEAD_BYTES - self.head.len());
                    let bytes = self.stream.read(&mut part[..room])?;
                    if bytes == 0 && self.head.is_empty() {
                        return Ok(Next::Close);
                    }
                    self.head.extend_from_slice(&part[..bytes]);
                    if let Some(answer) = self.answer(bytes == 0, pages) {
                        self.state = State::SendingResponse { response: answer.encode(), sent: 0 };
                    }
                }
                State::SendingResponse { response, sent } if *sent < response.len() => {
                    match self.stream.write(&response[*sent..])? {
                        0 => return Err(io::ErrorKind::WriteZero.into()),
                        bytes => *sent += bytes,
                    }
                }
                State::SendingResponse { .. } => {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Draining { ignored: 0 };
                    self.until = self.until.min(Instant::now() + CLOSE_TIMEOUT);
                }
                State::Draining { ignored } => match self.stream.read(&mut part)? {
                    0 => return Ok(Next::Close),
                    bytes if *ignored + bytes >= MAX_HEAD_BYTES => return Ok(Next::Close),
                    bytes => *ignored += bytes,
                },
            }
        }
    }

    /// Returns the response if the request is complete or invalid.
    fn answer(&self, has_ended: bool, pages: &impl Pages) -> Option<Response> {
        match is_complete(&self.head) {
            Ok(true) => Some(match parse(&self.head) {
                Some((method, path)) => answer(method, path, pages),
                None => Response::error("400 Bad Request"),
            }),
            Ok(false) if self.head.len() == MAX_HEAD_BYTES => {
                Some(Response::error("431 Request Header Fields Too Large"))
            }
            Ok(false) if has_ended => Some(Response::error("400 Bad Request")),
            Ok(false) => None,
            Err(httparse::Error::TooManyHeaders) => Some(Response::error("431 Request Header Fields Too Large")),
            Err(_) => Some(Response::error("400 Bad Request")),
        }
    }
}

fn is_complete(head: &[u8]) -> Result<bool, httparse::Error> {
    httparse::Request::new(&mut [httparse::EMPTY_HEADER; MAX_HEADERS]).parse(head).map(|status| status.is_complete())
}

/// Returns the method and the path of a complete request.
fn parse(head: &[u8]) -> Option<(&str, &str)> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(head).ok()?;
    Some((request.method?, request.path?))
}

fn answer(method: &str, target: &str, pages: &impl Pages) -> Response {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    match (method, pages.page(path)) {
        ("GET" | "HEAD", Some(page)) => Response { page, is_head: method == "HEAD" },
        ("GET" | "HEAD", None) => Response::error("404 Not Found"),
        _ => Response::error("405 Method Not Allowed"),
    }
}

struct Response {
    page: Page,
    /// Whether the response leaves out the text, as for HEAD.
    is_head: bool,
}

impl Response {
    fn error(status: &'static str) -> Response {
        let page = Page { status, content_type: "text/plain; charset=utf-8", text: format!("{status}\n") };
        Response { page, is_head: false }
    }

    fn encode(self) -> Vec<u8> {
        let Response { page: Page { status, content_type, text }, is_head } = self;
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let length = text.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{allow}\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        );
        if is_head { head.into_bytes() } else { (head + &text).into_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use guira_testing::patience;

    use super::*;

    struct One;

    impl Pages for One {
        fn page(&self, path: &str) -> Option<Page> {
            let text = "é\n".repeat(100_000);
            let status = "200 OK";
            (path == "/one").then_some(Page { status, content_type: "text/plain; charset=utf-8", text })
        }
    }

    fn start() -> SocketAddr {
        HttpServer::start("127.0.0.1:0".parse().unwrap(), Arc::new(One)).unwrap().local_addr()
    }

    fn ask(addr: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(patience())).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn pages_are_served_and_everything_else_is_refused() {
        let addr = start();
        let page = ask(addr, b"GET /one?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        let (head, text) = page.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nContent-Length: 300000\r\n"), "{head}");
        assert_eq!(text.len(), 300_000);
        let head_only = ask(addr, b"HEAD /one HTTP/1.0\r\n\r\n");
        assert!(head_only.contains("Content-Length: 300000") && head_only.ends_with("\r\n\r\n"), "{head_only}");
        let many_headers = [b"GET /one HTTP/1.1\r\n".to_vec(), b"a: b\r\n".repeat(MAX_HEADERS + 1)].concat();
        let long_header = [b"GET /one HTTP/1.1\r\na: ".to_vec(), vec![b'x'; MAX_HEAD_BYTES]].concat();
        for (request, status) in [
            (&b"GET /two HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /one HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "400"),
            (b"GET /one HTTP/1.1\r\na b: c\r\n\r\n", "400"),
            (&many_headers, "431"),
            (&long_header, "431"),
        ] {
            let answer = ask(addr, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        }
    }

    /// More clients than the maximum are silent, or send one byte at a time. Another client is answered every time,
    /// and the slow ones are evicted.
    #[test]
    fn slow_clients_do_not_delay_others() {
        let addr = start();
        let mut slow: Vec<TcpStream> = (0..2 * MAX_CONNECTIONS).map(|_| TcpStream::connect(addr).unwrap()).collect();
        let feeder = thread::spawn(move || {
            for _ in 0..20 {
                slow.iter_mut().for_each(|stream| _ = stream.write(b"G"));
                thread::sleep(CLIENT_TIMEOUT / 100);
            }
            slow
        });
        for _ in 0..50 {
            assert!(ask(addr, b"GET /one HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
            thread::sleep(CLIENT_TIMEOUT / 250);
        }
        let slow = feeder.join().unwrap();
        let gone = slow.iter().filter(|stream| {
            let mut stream = *stream;
            stream.set_nonblocking(true).unwrap();
            !stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        });
        let gone = gone.count();
        assert!(gone >= MAX_CONNECTIONS, "{gone} are gone");
    }

    /// More connections at once than fit in the standard library's queue, and none accepted yet: none has to be tried
    /// again, which would be in vain.
    #[test]
    fn the_accept_queue_is_long_enough_for_a_flood() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr().unwrap();
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let flood = allowed.trim().parse::<usize>().unwrap().min(400);
        let connect = |_| TcpStream::connect_timeout(&addr, patience()).ok();
        assert_eq!((0..flood).map_while(connect).collect::<Vec<_>>().len(), flood);
    }

    /// A client that reads slowly has [`CLIENT_TIMEOUT`] for it, and others do not wait for it.
    #[test]
    fn a_slow_reader_gets_its_page() {
        let addr = start();
        let mut slow = TcpStream::connect(addr).unwrap();
        slow.write_all(b"GET /one HTTP/1.1\r\n\r\n").unwrap();
        thread::sleep(Duration::from_millis(300));
        assert!(ask(addr, b"GET /one HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
        let mut answer = String::new();
        slow.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\né\n") && answer.len() > 300_000, "{} bytes", answer.len());
    }
}
