//! A client that uses the codec over a plain socket, and returns every frame that it receives.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use guira_fabric::{FabricError, Verb};
use guira_network::node::NodeCounters;
use guira_network::tcp::batch;
use guira_network::wire::{
    self, CloseReason, Fabric, FenceReply, Grant, HEADER_WORDS, Header, Hello, HoldReply, Kind, SessionId, Welcome,
};
use guira_testing::patience;

/// A Hello without a token and without a prior session.
pub const HELLO: Hello =
    Hello { fabric: Fabric::Tcp, wanted: Grant::ReadWrite, token: None, prior_session: None, sample_words: 0 };

/// A connection to a node.
pub struct Client {
    pub stream: TcpStream,
    next_id: u64,
}

/// A frame from the node.
pub struct Frame {
    pub header: Header,
    pub body: Vec<u64>,
}

impl Client {
    /// Connects without sending anything.
    pub fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).expect("the node listens");
        stream.set_nodelay(true).expect("an option of the socket");
        stream.set_read_timeout(Some(patience())).expect("an option of the socket");
        stream.set_write_timeout(Some(patience())).expect("an option of the socket");
        Client { stream, next_id: 1 }
    }

    /// Opens a session, or returns the reason of the Close.
    pub fn greet(addr: SocketAddr, hello: &Hello) -> Result<(Client, Welcome), CloseReason> {
        Client::greet_over(Client::connect(addr).stream, hello)
    }

    /// Opens a session over a new connection, or returns the reason of the Close.
    pub fn greet_over(stream: TcpStream, hello: &Hello) -> Result<(Client, Welcome), CloseReason> {
        let mut client = Client { stream, next_id: 1 };
        client.send(Kind::Hello, &hello.encode());
        let frame = client.frame().expect("a reply to the Hello");
        match frame.header.kind {
            Kind::Welcome => Ok((client, Welcome::decode(&frame.body).expect("a Welcome"))),
            Kind::Close => Err(CloseReason::decode(&frame.body).expect("a Close")),
            kind => panic!("{kind:?} is not a reply to a Hello"),
        }
    }

    /// Opens a session with read and write access.
    pub fn open(addr: SocketAddr) -> (Client, SessionId) {
        let (client, welcome) = Client::greet(addr, &HELLO).expect("a session");
        (client, welcome.session)
    }

    /// Sends a frame; returns its id.
    pub fn send(&mut self, kind: Kind, body: &[u64]) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut frame = Vec::new();
        wire::append(&mut frame, kind, id, body);
        self.send_words(&frame).expect("the node takes frames");
        id
    }

    /// Sends raw words.
    pub fn send_words(&mut self, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.stream.write_all(&bytes)
    }

    /// Sends a batch; returns its id.
    pub fn post(&mut self, batch: &[Verb<'_>]) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let mut frame = Vec::new();
        batch::encode_batch(&mut frame, id, batch).expect("a batch that fits");
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

    /// Receives the reply to request `id`, of kind `kind`, or its refusal.
    pub fn reply(&mut self, id: u64, kind: Kind) -> Result<Vec<u64>, FabricError> {
        let frame = self.frame().expect("a reply");
        assert_eq!(frame.header.id, id, "replies come in order: {:?}", frame.header);
        if frame.header.kind == Kind::Refused {
            return Err(wire::decode_refusal(&frame.body).expect("a refusal"));
        }
        assert_eq!(frame.header.kind, kind);
        Ok(frame.body)
    }

    /// Executes a batch.
    pub fn submit(&mut self, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
        let id = self.post(batch);
        let found = self.reply(id, Kind::Done)?;
        batch::decode_reply(&found, batch).expect("the results of the batch");
        Ok(())
    }

    /// Reads the words at an address.
    pub fn read(&mut self, addr: guira_fabric::Addr, words: usize) -> Vec<u64> {
        let mut into = vec![0; words];
        self.submit(&mut [Verb::Read { addr, into: &mut into }]).expect("a READ");
        into
    }

    pub fn hold(&mut self, slot: u16) -> Result<HoldReply, FabricError> {
        let id = self.send(Kind::Hold, &wire::encode_slot(slot));
        self.reply(id, Kind::Held).map(|body| HoldReply::decode(&body).expect("a reply to a hold"))
    }

    pub fn fence(&mut self, slot: u16) -> Result<FenceReply, FabricError> {
        let id = self.send(Kind::Fence, &wire::encode_slot(slot));
        self.reply(id, Kind::Fenced).map(|body| FenceReply::decode(&body).expect("a reply to a fence"))
    }

    pub fn count(&mut self) -> NodeCounters {
        let id = self.send(Kind::Count, &[]);
        let body = self.reply(id, Kind::Counted).expect("counters");
        NodeCounters::decode(&body).expect("counters")
    }

    /// Receives the next Close, which must be the last frame; replies before it are skipped.
    pub fn close_reason(&mut self) -> CloseReason {
        loop {
            let frame = self.frame().expect("a Close");
            if frame.header.kind == Kind::Close {
                assert!(self.frame().is_err(), "a Close is the last frame");
                return CloseReason::decode(&frame.body).expect("a Close");
            }
        }
    }
}
