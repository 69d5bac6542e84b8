//! A small HTTP server for numbers: a request, an answer, and the connection is closed.
//!
//! Requests are parsed by httparse, the parser of hyper. hyper itself would bring a runtime and some twenty packages
//! into a program that has neither, for two pages that anybody may read; tiny_http, which is as small as this, has had
//! no release for years and bounds neither time nor connections.
//!
//! Invariants: the threads of this server are its only ones, made at the start, and share nothing with those that serve
//! the table but counters that they read; a client has each of them for [`PATIENCE`] at most, and makes it keep
//! [`MAX_HEAD_BYTES`] at most. Clients that come meanwhile wait in the kernel's queue.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// Threads, and thereby connections that are looked after at once.
const THREADS: usize = 4;
/// How long a client has for its request and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a request's line and headers, at most.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Headers of a request, at most.
const MAX_HEADERS: usize = 64;
/// The pause after a connection that could not be accepted: too many open files, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What can be asked for.
pub trait Pages: Send + Sync + 'static {
    /// The page at `path`, if there is one.
    fn page(&self, path: &str) -> Option<Page>;
}

/// A page: its type and its text.
pub struct Page {
    pub content_type: &'static str,
    pub text: String,
}

/// A server whose threads run until the process ends.
pub struct HttpServer {
    local_addr: SocketAddr,
}

impl HttpServer {
    /// Listens on `addr` and answers with `pages`.
    pub fn start(addr: SocketAddr, pages: Arc<impl Pages>) -> Result<HttpServer, Failure> {
        let listener = TcpListener::bind(addr).map_err(Failure::host(format!("listen on {addr} for metrics")))?;
        let local_addr = listener.local_addr().map_err(Failure::host(format!("listen on {addr} for metrics")))?;
        let listener = Arc::new(listener);
        for index in 0..THREADS {
            let (listener, pages) = (Arc::clone(&listener), Arc::clone(&pages));
            let builder = thread::Builder::new().name(format!("guira-http-{index}"));
            let spawned = builder.spawn(move || serve(&listener, &*pages));
            spawned.map_err(Failure::host("start a thread for metrics"))?;
        }
        Ok(HttpServer { local_addr })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

fn serve(listener: &TcpListener, pages: &impl Pages) {
    loop {
        match listener.accept() {
            // Whatever goes wrong is the client's affair: it gets no answer, or a part of one.
            Ok((stream, _)) => _ = converse(&stream, pages, Instant::now() + PATIENCE),
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
    }
}

fn converse(stream: &TcpStream, pages: &impl Pages, until: Instant) -> io::Result<()> {
    let mut head = [0; MAX_HEAD_BYTES];
    let answer = match receive(stream, &mut head, until)? {
        Received::Request { method, path } => answer(method, path, pages),
        Received::Malformed => Answer::error("400 Bad Request"),
        Received::TooLong => Answer::error("431 Request Header Fields Too Large"),
        Received::Nothing => return Ok(()),
    };
    let answer = answer.encode();
    let mut rest = &answer[..];
    while !rest.is_empty() {
        let written = Deadline { stream, until }.write(rest)?;
        rest = &rest[written..];
    }
    stream.shutdown(Shutdown::Write)?;
    // What else the client has sent is taken, so that the kernel does not take the answer back for it.
    let mut ignored = [0; 512];
    let mut bytes = 0;
    while bytes < MAX_HEAD_BYTES {
        match (Deadline { stream, until }).read(&mut ignored)? {
            0 => break,
            read => bytes += read,
        }
    }
    Ok(())
}

/// What came.
enum Received<'h> {
    Request {
        method: &'h str,
        path: &'h str,
    },
    Malformed,
    TooLong,
    /// The client closed the connection without asking for anything.
    Nothing,
}

/// Reads a request's head.
fn receive<'h>(stream: &TcpStream, head: &'h mut [u8; MAX_HEAD_BYTES], until: Instant) -> io::Result<Received<'h>> {
    let mut filled = 0;
    loop {
        match (Deadline { stream, until }).read(&mut head[filled..])? {
            0 => return Ok(if filled == 0 { Received::Nothing } else { Received::Malformed }),
            read => filled += read,
        }
        match is_complete(&head[..filled]) {
            Ok(true) => return Ok(parse(&head[..filled])),
            Ok(false) if filled == MAX_HEAD_BYTES => return Ok(Received::TooLong),
            Ok(false) => {}
            Err(httparse::Error::TooManyHeaders) => return Ok(Received::TooLong),
            Err(_) => return Ok(Received::Malformed),
        }
    }
}

fn is_complete(head: &[u8]) -> Result<bool, httparse::Error> {
    httparse::Request::new(&mut [httparse::EMPTY_HEADER; MAX_HEADERS]).parse(head).map(|status| status.is_complete())
}

fn parse(head: &[u8]) -> Received<'_> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head).map(|_| (request.method, request.path)) {
        Ok((Some(method), Some(path))) => Received::Request { method, path },
        _ => Received::Malformed,
    }
}

fn answer(method: &str, target: &str, pages: &impl Pages) -> Answer {
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    match (method, pages.page(path)) {
        ("GET" | "HEAD", Some(page)) => Answer { status: "200 OK", page, is_head: method == "HEAD" },
        ("GET" | "HEAD", None) => Answer::error("404 Not Found"),
        _ => Answer::error("405 Method Not Allowed"),
    }
}

struct Answer {
    status: &'static str,
    page: Page,
    /// Whether the page's text is only told of.
    is_head: bool,
}

impl Answer {
    fn error(status: &'static str) -> Answer {
        let page = Page { content_type: "text/plain; charset=utf-8", text: format!("{status}\n") };
        Answer { status, page, is_head: false }
    }

    fn encode(self) -> Vec<u8> {
        let Answer { status, page: Page { content_type, text }, is_head } = self;
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let length = text.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{allow}\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        );
        if is_head { head.into_bytes() } else { (head + &text).into_bytes() }
    }
}

/// A stream that gives up at a moment in time, however little comes or goes at once.
struct Deadline<'s> {
    stream: &'s TcpStream,
    until: Instant,
}

impl Deadline<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }

    fn read(self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        let mut stream = self.stream;
        stream.read(into)
    }

    fn write(self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        let mut stream = self.stream;
        match stream.write(bytes)? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;

    impl Pages for One {
        fn page(&self, path: &str) -> Option<Page> {
            let text = "é\n".repeat(100_000);
            (path == "/one").then_some(Page { content_type: "text/plain; charset=utf-8", text })
        }
    }

    fn start() -> SocketAddr {
        HttpServer::start("127.0.0.1:0".parse().unwrap(), Arc::new(One)).unwrap().local_addr()
    }

    fn ask(addr: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(4 * PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn pages_are_given_and_everything_else_is_refused() {
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

    /// Clients that say nothing, or one byte at a time, have every thread for [`PATIENCE`], and no longer.
    #[test]
    fn slow_clients_are_waited_for_and_not_for_long() {
        let addr = start();
        let began = Instant::now();
        let mut slow: Vec<TcpStream> = (0..2 * THREADS).map(|_| TcpStream::connect(addr).unwrap()).collect();
        let feeder = thread::spawn(move || {
            while began.elapsed() < PATIENCE / 2 {
                slow.iter_mut().for_each(|stream| _ = stream.write(b"G"));
                thread::sleep(PATIENCE / 50);
            }
            slow
        });
        assert!(ask(addr, b"GET /one HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
        let waited = began.elapsed();
        assert!(waited >= PATIENCE / 2 && waited < 4 * PATIENCE, "{waited:?}");
        drop(feeder.join().unwrap());
    }
}
