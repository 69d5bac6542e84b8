//! A client that speaks the codec over a plain socket, and says everything it gets.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use guira_fabric::{FabricError, Verb};
use guira_fabric_tcp::node::NodeCounters;
use guira_fabric_tcp::wire::{
    self, CloseReason, FenceReply, Grant, HEADER_WORDS, Header, Hello, HoldReply, Kind, SessionId, Welcome,
};

/// How long a test waits for anything.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A greeting without a token, by a client that had no session.
pub const HELLO: Hello = Hello { wanted: Grant::ReadWrite, token: None, prior_session: None, sample_words: 0 };

/// A connection to a node.
pub struct Client {
    pub stream: TcpStream,
    next_id: u64,
}

/// A frame that came from the node.
pub struct Frame {
    pub header: Header,
    pub body: Vec<u64>,
}

impl Client {
    /// A connection that has said nothing.
    pub fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).expect("the node listens");
        stream.set_nodelay(true).expect("an option of the socket");
        stream.set_read_timeout(Some(TIMEOUT)).expect("an option of the socket");
        stream.set_write_timeout(Some(TIMEOUT)).expect("an option of the socket");
        Client { stream, next_id: 1 }
    }

    /// A session, or why there is none.
    pub fn greet(addr: SocketAddr, hello: &Hello) -> Result<(Client, Welcome), CloseReason> {
        Client::greet_over(Client::connect(addr).stream, hello)
    }

    /// A session over a connection that has said nothing, or why there is none.
    pub fn greet_over(stream: TcpStream, hello: &Hello) -> Result<(Client, Welcome), CloseReason> {
        let mut client = Client { stream, next_id: 1 };
        client.send(Kind::Hello, &hello.encode());
        let frame = client.frame().expect("an answer to the greeting");
        match frame.header.kind {
            Kind::Welcome => Ok((client, Welcome::decode(&frame.body).expect("a welcome"))),
            Kind::Close => Err(CloseReason::decode(&frame.body).expect("a farewell")),
            kind => panic!("{kind:?} is no answer to a greeting"),
        }
    }

    /// A session that may do everything.
    pub fn open(addr: SocketAddr) -> (Client, SessionId) {
        let (client, welcome) = Client::greet(addr, &HELLO).expect("a session");
        (client, welcome.session)
    }

    /// Sends a frame; its number.
    pub fn send(&mut self, kind: Kind, body: &[u64]) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut frame = Vec::new();
        wire::append(&mut frame, kind, id, body);
        self.send_words(&frame).expect("the node takes frames");
        id
    }

    /// Sends words as they are.
    pub fn send_words(&mut self, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.stream.write_all(&bytes)
    }

    /// Sends a batch; its number.
    pub fn post(&mut self, batch: &[Verb<'_>]) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut frame = Vec::new();
        wire::encode_batch(&mut frame, id, batch).expect("a batch that fits");
        self.send_words(&frame).expect("the node takes batches");
        id
    }

    /// Receives a frame.
    pub fn frame(&mut self) -> io::Result<Frame> {
        let mut words = [0; HEADER_WORDS];
        self.receive(&mut words)?;
        let header = Header::decode(words).expect("a header");
        let mut body = vec![0; header.words - HEADER_WORDS];
        self.receive(&mut body)?;
        Ok(Frame { header, body })
    }

    fn receive(&mut self, words: &mut [u64]) -> io::Result<()> {
        let mut bytes = vec![0; words.len() * 8];
        self.stream.read_exact(&mut bytes)?;
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        }
        Ok(())
    }

    /// Receives the answer to request `id`, of kind `kind`, or its refusal.
    pub fn answer(&mut self, id: u64, kind: Kind) -> Result<Vec<u64>, FabricError> {
        let frame = self.frame().expect("an answer");
        assert_eq!(frame.header.id, id, "answers come in order: {:?}", frame.header);
        if frame.header.kind == Kind::Refused {
            return Err(wire::decode_refusal(&frame.body).expect("a refusal"));
        }
        assert_eq!(frame.header.kind, kind);
        Ok(frame.body)
    }

    /// Executes a batch.
    pub fn submit(&mut self, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
        let id = self.post(batch);
        let found = self.answer(id, Kind::Done)?;
        wire::decode_reply(&found, batch).expect("what the batch found");
        Ok(())
    }

    /// The words at an address.
    pub fn read(&mut self, addr: guira_fabric::Addr, words: usize) -> Vec<u64> {
        let mut into = vec![0; words];
        self.submit(&mut [Verb::Read { addr, into: &mut into }]).expect("a READ");
        into
    }

    pub fn hold(&mut self, slot: u16) -> Result<HoldReply, FabricError> {
        let id = self.send(Kind::Hold, &wire::encode_slot(slot));
        self.answer(id, Kind::Held).map(|body| HoldReply::decode(&body).expect("an answer to a hold"))
    }

    pub fn fence(&mut self, slot: u16) -> Result<FenceReply, FabricError> {
        let id = self.send(Kind::Fence, &wire::encode_slot(slot));
        self.answer(id, Kind::Fenced).map(|body| FenceReply::decode(&body).expect("an answer to a fence"))
    }

    pub fn count(&mut self) -> NodeCounters {
        let id = self.send(Kind::Count, &[]);
        let body = self.answer(id, Kind::Counted).expect("counters");
        NodeCounters::decode(&body).expect("counters")
    }

    /// The farewell that comes next, behind which there is nothing; answers before it are left out.
    pub fn close_reason(&mut self) -> CloseReason {
        loop {
            let frame = self.frame().expect("a farewell");
            if frame.header.kind == Kind::Close {
                assert!(self.frame().is_err(), "a farewell is the last frame");
                return CloseReason::decode(&frame.body).expect("a farewell");
            }
        }
    }
}
