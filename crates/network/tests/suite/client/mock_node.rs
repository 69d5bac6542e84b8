//! A mock memory node for tests of clients: a thread for each connection executes its frames over a region on the heap.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::{check, execute};
use guira_fabric::{FabricError, Profile, Region, Waiting};
use guira_network::client::{ConnectOptions, Endpoint};
use guira_network::node::NodeCounters;
use guira_network::tcp::TcpRegion;
use guira_network::tcp::batch::{found_words, parse_batch};
use guira_network::wire::{
    CloseReason, FenceReply, Grant, HEADER_WORDS, Header, Hello, HoldReply, Kind, PriorSession, SessionId, Welcome,
    append, decode_slot, encode_refusal,
};
use guira_testing::patience;

/// A mock node, which stops when it is dropped.
pub struct MockNode {
    pub address: SocketAddr,
    pub region: HeapRegion,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    sessions: AtomicU64,
    /// The session that has each client slot.
    holds: Mutex<Holds>,
    /// The batches that were executed.
    batches: AtomicU64,
    streams: Mutex<Streams>,
}

type Holds = HashMap<u16, u64>;
type Streams = HashMap<u64, TcpStream>;

const NO_PANIC: &str = "no thread of the node panics";

impl Shared {
    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().expect(NO_PANIC)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().expect(NO_PANIC)
    }
}

impl MockNode {
    /// Starts a node of `main_bytes` and `device_bytes` zeroes.
    pub fn start(main_bytes: u64, device_bytes: u64) -> MockNode {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a port left");
        let address = listener.local_addr().expect("a listener has an address");
        let region = HeapRegion::new(main_bytes, device_bytes, Profile::Tcp.caps());
        let shared = Arc::new(Shared::default());
        let (serving, bytes) = (Arc::clone(&shared), region.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let session = 1 + serving.sessions.fetch_add(1, Ordering::SeqCst);
                let Ok((stream, copy)) = stream.and_then(|stream| stream.try_clone().map(|copy| (stream, copy))) else {
                    continue;
                };
                serving.streams().insert(session, copy);
                let (serving, bytes) = (Arc::clone(&serving), bytes.clone());
                std::thread::spawn(move || {
                    let _ = serve(&serving, &bytes, stream, session);
                    serving.holds().retain(|_, owner| *owner != session);
                    if let Some(stream) = serving.streams().remove(&session) {
                        let _ = stream.shutdown(std::net::Shutdown::Both);
                    }
                });
            }
        });
        MockNode { address, region, shared }
    }

    /// Returns the number of batches that were executed.
    pub fn batches(&self) -> u64 {
        self.shared.batches.load(Ordering::SeqCst)
    }

    /// Returns the client slots that a session holds.
    pub fn held(&self) -> Vec<u16> {
        let mut held: Vec<u16> = self.shared.holds().keys().copied().collect();
        held.sort_unstable();
        held
    }

    pub fn options(&self) -> ConnectOptions {
        options(self.address)
    }

    pub fn connect(&self, waiting: Waiting) -> TcpRegion {
        TcpRegion::connect(&self.options().with_waiting(waiting)).expect("a session")
    }
}

impl Drop for MockNode {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

pub fn options(address: SocketAddr) -> ConnectOptions {
    ConnectOptions::new(Endpoint::new(&address.ip().to_string(), address.port())).with_connect_timeout(patience())
}

/// Reads the next frame of `stream`.
pub fn read_frame(stream: &mut impl Read) -> std::io::Result<(Header, Vec<u64>)> {
    let header = read_words(stream, HEADER_WORDS)?;
    let header = Header::decode([header[0], header[1]]).map_err(std::io::Error::other)?;
    Ok((header, read_words(stream, header.words - HEADER_WORDS)?))
}

fn read_words(stream: &mut impl Read, words: usize) -> std::io::Result<Vec<u64>> {
    let mut bytes = vec![0; words * 8];
    stream.read_exact(&mut bytes)?;
    Ok(bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("8 bytes"))).collect())
}

pub fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the reply to a Hello.
pub fn welcome(region: &HeapRegion, hello: &Hello, session: u64) -> Welcome {
    let main = region.memory().main;
    let words = main.len().min(hello.sample_words.into());
    Welcome {
        grant: hello.wanted,
        prior_session: if hello.prior_session.is_some() { PriorSession::Ended } else { PriorSession::None },
        session: SessionId([session, !session]),
        region: [7, 8],
        main_bytes: region.main_bytes(),
        device_bytes: region.device_bytes(),
        atomic_write_unit: u64::MAX,
        session_timeout_ms: 1_000,
        session_holds: 4096,
        node_holds: 16_384,
        sample: main[..words].iter().map(|word| word.load(Ordering::Relaxed)).collect(),
    }
}

fn serve(shared: &Shared, region: &HeapRegion, mut stream: TcpStream, session: u64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut grant = Grant::ReadOnly;
    loop {
        let (header, body) = read_frame(&mut stream)?;
        let mut out = Vec::new();
        match header.kind {
            Kind::Hello => {
                let hello = Hello::decode(&body).map_err(std::io::Error::other)?;
                grant = hello.wanted;
                append(&mut out, Kind::Welcome, header.id, &welcome(region, &hello, session).encode());
            }
            Kind::Batch => {
                execute_batch(region, grant, header, &body, &mut out);
                shared.batches.fetch_add(1, Ordering::SeqCst);
            }
            Kind::Hold => {
                let slot = decode_slot(&body).map_err(std::io::Error::other)?;
                let answer = match shared.holds().entry(slot) {
                    Entry::Occupied(_) => HoldReply::Taken,
                    Entry::Vacant(free) => {
                        free.insert(session);
                        HoldReply::Granted
                    }
                };
                append(&mut out, Kind::Held, header.id, &answer.encode());
            }
            Kind::Release => {
                shared.holds().remove(&decode_slot(&body).map_err(std::io::Error::other)?);
            }
            Kind::Fence => {
                let slot = decode_slot(&body).map_err(std::io::Error::other)?;
                let owner = shared.holds().get(&slot).copied();
                append(&mut out, Kind::Fenced, header.id, &fence(shared, owner).encode());
            }
            Kind::Count => {
                let mut counters = NodeCounters::default();
                counters.batches = shared.batches.load(Ordering::SeqCst);
                append(&mut out, Kind::Counted, header.id, &counters.encode());
            }
            _ => return Ok(()),
        }
        stream.write_all(&bytes(&out))?;
    }
}

fn fence(shared: &Shared, owner: Option<u64>) -> FenceReply {
    let Some(mut stream) = owner.and_then(|owner| shared.streams().remove(&owner)) else {
        return FenceReply::NoSession;
    };
    shared.holds().retain(|_, held| Some(*held) != owner);
    let mut out = Vec::new();
    append(&mut out, Kind::Close, 0, &CloseReason::Fenced.encode());
    // The session may have ended by itself.
    let _ = stream.write_all(&bytes(&out)).and_then(|()| stream.shutdown(std::net::Shutdown::Both));
    FenceReply::Dropped
}

fn execute_batch(region: &HeapRegion, grant: Grant, header: Header, body: &[u64], out: &mut Vec<u64>) {
    let words = found_words(body, header.count).expect("a client sends batches");
    let mut found = vec![0; words];
    let mut verbs = parse_batch(body, header.count, &mut found).expect("a client sends batches");
    let changes = |verb: &guira_fabric::Verb<'_>| !matches!(verb, guira_fabric::Verb::Read { .. });
    let refused = match verbs.iter().find(|verb| grant == Grant::ReadOnly && changes(verb)) {
        Some(verb) => Err(FabricError::ReadOnly { verb: verb.name() }),
        None => check(region.memory(), region.caps(), &verbs),
    };
    if let Err(error) = refused {
        return encode_refusal(out, header.id, &error);
    }
    verbs.iter_mut().for_each(|verb| execute(region.memory(), verb).expect("it was checked"));
    drop(verbs);
    append(out, Kind::Done, header.id, &found);
}
