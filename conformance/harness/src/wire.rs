//! Checks of the codec of the TCP fabric: any words are a frame or an error, a decoded value is encoded to the same
//! words, and the results of a parsed batch have exactly the length of its reply.

use guira_fabric::{FabricError, Verb};
use guira_network::tcp::batch;
use guira_network::wire::{
    self, ClientParameters, CloseReason, Fabric, FenceReply, Gid, Grant, HEADER_WORDS, Header, Hello, HoldReply, Kind,
    Mtu, PacketNumber, QueuePairEndpoint, QueuePairNumber, Reserve, Segment, SessionId, TargetParameters, Token,
    Welcome,
};

use super::{Answer, Seed};

/// Decodes a frame: its header, as it is and with a corrected length, and a body of its kind.
///
/// # Panics
/// If the codec violates one of its guarantees.
pub fn wire(data: &[u8]) -> Answer {
    let words: Vec<u64> = data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8"))).collect();
    let Some((&[first, id], body)) = words.split_first_chunk::<HEADER_WORDS>() else { return Answer::Refused };
    if let Ok(header) = Header::decode([first, id]) {
        assert_eq!(header.encode(), [first, id], "{header:?}");
    }
    // Random data would not have the right length.
    let bytes = u32::try_from(words.len() * 8).unwrap_or(u32::MAX);
    match Header::decode([first & !u64::from(u32::MAX) | u64::from(bytes), id]) {
        Ok(header) => {
            assert_eq!(header.words, words.len());
            Answer::of(read(header, body))
        }
        Err(_) => Answer::Refused,
    }
}

/// Whether the body is valid for its kind. A valid one is encoded to the words that it was decoded from.
fn read(header: Header, body: &[u64]) -> bool {
    let same = |encoded: Option<Vec<u64>>| encoded.is_some_and(|words| same_words(&words, body));
    match header.kind {
        Kind::Batch => verbs(header, body),
        // Any words are valid results; only their length depends on the batch.
        Kind::Done => found(body),
        Kind::Hello => Hello::decode(body).map(|hello| hello_round_trips(&hello)).is_ok(),
        Kind::Welcome => same(Welcome::decode(body).ok().map(|welcome| welcome.encode())),
        Kind::Close => same(CloseReason::decode(body).ok().map(|reason| reason.encode().to_vec())),
        Kind::Held => same(HoldReply::decode(body).ok().map(|answer| answer.encode().to_vec())),
        Kind::Fenced => same(FenceReply::decode(body).ok().map(|answer| answer.encode().to_vec())),
        Kind::Hold | Kind::Release | Kind::Fence => {
            same(wire::decode_slot(body).ok().map(|slot| wire::encode_slot(slot).to_vec()))
        }
        Kind::Refused => refusal(body),
        Kind::Reserve => same(Reserve::decode(body).ok().map(|part| part.encode().to_vec())),
        // Over TCP it has no body.
        Kind::Reserved => same(wire::decode_segments(body).ok().map(|parts| wire::encode_segments(&parts))),
        Kind::Count | Kind::Counted => true,
        Kind::Attach => same(ClientParameters::decode(body).ok().map(|client| client.encode().to_vec())),
        Kind::Attached => same(TargetParameters::decode(body).ok().map(|target| target.encode())),
    }
}

fn same_words(encoded: &[u64], body: &[u64]) -> bool {
    assert_eq!(encoded, body, "a value is encoded to the words that it was decoded from");
    true
}

/// Compares values, not words: the words of an absent token are ignored.
fn hello_round_trips(hello: &Hello) {
    assert_eq!(Hello::decode(&hello.encode()).as_ref(), Ok(hello));
}

/// A parsed batch is encoded to the same frame, and decodes its reply.
fn verbs(header: Header, body: &[u64]) -> bool {
    let Ok(words) = batch::found_words(body, header.count) else {
        // It may be valid verbs of another number than the count: parsing must return.
        let _ = batch::parse_batch(body, header.count, &mut [0; 8]).is_ok();
        return false;
    };
    let mut found = vec![0; words];
    let mut verbs = batch::parse_batch(body, header.count, &mut found).expect("the length of its reply was returned");
    assert_eq!(verbs.len(), usize::from(header.count));
    assert!(verbs.iter().all(|verb| (1..=wire::MAX_VERB_WORDS).contains(&verb.words())));
    let mut frame = Vec::new();
    let shape = batch::encode_batch(&mut frame, header.id, &verbs).expect("it was received in one frame");
    assert_eq!((frame.len(), shape.request_words, shape.reply_words), (header.words, header.words, words + 2));
    assert_eq!(Header::decode([frame[0], frame[1]]), Ok(header));
    assert!(frame[HEADER_WORDS..] == *body, "a batch is encoded to the frame that it was parsed from");
    let reply: Vec<u64> = (0..words as u64).collect();
    assert!(batch::decode_reply(&[&reply[..], &[0]].concat(), &mut verbs).is_err());
    assert!(words == 0 || batch::decode_reply(&reply[1..], &mut verbs).is_err());
    assert_eq!(batch::decode_reply(&reply, &mut verbs), Ok(()));
    drop(verbs);
    assert_eq!(found, reply);
    true
}

/// A reply matches a batch with as many words of results, and no other.
fn found(body: &[u64]) -> bool {
    let mut into = vec![0; body.len()];
    let mut longer = vec![0; body.len() + 1];
    let addr = guira_fabric::Addr::main(0);
    let fits = batch::decode_reply(body, &mut [Verb::Read { addr, into: &mut into }]);
    assert_eq!((fits, &into[..]), (Ok(()), body));
    assert!(batch::decode_reply(body, &mut [Verb::Read { addr, into: &mut longer }]).is_err());
    true
}

/// A decoded refusal is encoded to one that can be decoded.
fn refusal(body: &[u64]) -> bool {
    let Ok(refusal) = wire::decode_refusal(body) else { return false };
    let mut frame = Vec::new();
    wire::encode_refusal(&mut frame, 9, &refusal);
    let header = Header::decode([frame[0], frame[1]]).expect("a frame");
    assert_eq!((header.kind, header.id, header.words), (Kind::Refused, 9, frame.len()));
    // A text that was not UTF-8, or too long, is changed.
    assert!(wire::decode_refusal(&frame[HEADER_WORDS..]).is_ok());
    true
}

/// Returns a queue pair and the segments of its memory.
fn target() -> TargetParameters {
    let endpoint = QueuePairEndpoint {
        gid: Gid([0xfe; 16]),
        lid: 3,
        queue_pair: QueuePairNumber(17),
        first_packet: PacketNumber(0xab_cdef),
        mtu: Mtu::of_bytes(1024).expect("an MTU"),
        reads_in: 16,
        reads_out: 8,
    };
    let segment = |offset, address| Segment { offset, address, bytes: 4096, key: 7 };
    let main = vec![segment(0, 1 << 20), segment(1 << 16, 1 << 21)];
    let masked_cas = guira_fabric::MaskedCas::Native;
    TargetParameters { endpoint, grant: Grant::ReadWrite, masked_cas, main, device: vec![segment(0, 0)] }
}

/// Returns a batch with a verb of every kind.
fn batch_frame() -> Vec<u64> {
    let addr = guira_fabric::Addr::main;
    let (mut into, mut found) = ([0; 3], [0; 3]);
    let [cas, masked, add] = &mut found;
    let verbs = [
        Verb::Read { addr: addr(64), into: &mut into },
        Verb::Write { addr: guira_fabric::Addr::device(8), words: &[1, 2] },
        Verb::Cas { addr: addr(0), compare: 3, swap: 4, found: cas },
        Verb::MaskedCas { addr: addr(8), compare: 1, swap: 2, compare_mask: 3, swap_mask: !0, found: masked },
        Verb::FetchAdd { addr: addr(16), add: u64::MAX, found: add },
    ];
    let mut frame = Vec::new();
    batch::encode_batch(&mut frame, 1 << 32, &verbs).expect("it fits");
    frame
}

/// Returns a frame of every kind, and some invalid ones.
pub(super) fn seeds() -> Vec<Seed> {
    let session = SessionId([5, 6]);
    let hello = Hello {
        fabric: Fabric::Tcp,
        wanted: Grant::ReadWrite,
        token: Some(Token([1, 2])),
        prior_session: Some(session),
        sample_words: 512,
    };
    let welcome = Welcome {
        grant: Grant::ReadOnly,
        prior_session: wire::PriorSession::Fenced,
        session,
        region: [7, 8],
        main_bytes: 1 << 20,
        device_bytes: 1 << 10,
        atomic_write_unit: 8,
        session_timeout_ms: 5_000,
        session_holds: 4096,
        node_holds: 16_384,
        sample: vec![9; 3],
    };
    let target = target();
    let out_of_bounds =
        FabricError::OutOfBounds { verb: "READ", addr: guira_fabric::Addr::main(8), words: 2, space_bytes: 8 };
    let no_memory = FabricError::NoMemory { wanted: 1 << 20, available: 3, limiter: "/dev/shm".to_owned() };
    let refused = |refusal: &FabricError| {
        let mut frame = Vec::new();
        wire::encode_refusal(&mut frame, 3, refusal);
        frame
    };
    let framed = |kind, body: &[u64]| {
        let mut frame = Vec::new();
        wire::append(&mut frame, kind, 2, body);
        frame
    };
    let mut frames = vec![
        ("batch", batch_frame()),
        ("hello", framed(Kind::Hello, &hello.encode())),
        ("welcome", framed(Kind::Welcome, &welcome.encode())),
        ("done", framed(Kind::Done, &[1, 2, 3])),
        ("hold", framed(Kind::Hold, &wire::encode_slot(3))),
        ("held", framed(Kind::Held, &HoldReply::Granted.encode())),
        ("release", framed(Kind::Release, &wire::encode_slot(3))),
        ("fence", framed(Kind::Fence, &wire::encode_slot(65_535))),
        ("fenced", framed(Kind::Fenced, &FenceReply::Dropped.encode())),
        ("close", framed(Kind::Close, &CloseReason::Full { limit: 7 }.encode())),
        ("count", framed(Kind::Count, &[])),
        ("attach", framed(Kind::Attach, &ClientParameters { endpoint: target.endpoint }.encode())),
        ("attached", framed(Kind::Attached, &target.encode())),
        ("reserve", framed(Kind::Reserve, &Reserve { bytes: (1 << 16, 1 << 17) }.encode())),
        ("reserved", framed(Kind::Reserved, &[])),
        ("reserved_parts", framed(Kind::Reserved, &wire::encode_segments(&target.main))),
        ("no_memory", refused(&no_memory)),
        ("refused", refused(&out_of_bounds)),
        ("failed", refused(&FabricError::Backend("no memory, no luck".to_owned()))),
        ("longest_header", vec![u64::MAX, 0]),
    ];
    let empty = frames[0].1[..HEADER_WORDS].to_vec();
    frames.push(("batch_of_nothing", empty));
    let bytes = |words: Vec<u64>| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    frames.into_iter().map(|(name, words)| (name.to_owned(), bytes(words))).collect()
}
