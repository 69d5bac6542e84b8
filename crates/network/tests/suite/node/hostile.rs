//! Clients that send anything: verbs at any address, of any length, and frames that are random, cut or have changed
//! bits.
//!
//! Each connection sends a few random but valid frames, and then one that is probably invalid; so the node examines
//! nearly all of them. `GUIRA_LONG=1` sends a hundred times as many.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use guira_fabric::{Addr, SplitMix64};
use guira_fabric_shm::{CreateOptions, Location, ShmRegion};
use guira_network::node::{MAX_SESSION_BYTES, NodeCounters};
use guira_network::wire::{Grant, Hello, Kind, MAX_BATCH_VERBS, MAX_VERB_WORDS};
use guira_testing::{is_long, unique_name};

use crate::common::client::{Client, HELLO};
use crate::common::test_node::{DEVICE_BYTES, MAIN_BYTES, TestNode, options};

/// The frames of a run, and the factor of a long run.
const FRAMES: u64 = 100_000;
const LONG: u64 = 100;
/// The frames of a connection, the last of which is probably invalid.
const FRAMES_OF_CONNECTION: u64 = 10;
/// The threads that send.
const CLIENTS: u64 = 4;
/// The allowance of memory that is not due to sessions.
const SLACK_BYTES: u64 = 48 << 20;
/// The bytes of a shared-memory region's header.
const HEADER_BYTES: usize = 4096;

/// Draws an address: within the region or just outside, misaligned, or anything.
fn addr(draw: &mut SplitMix64) -> u64 {
    const DEVICE_BIT: u64 = 1 << 63;
    let near = |draw: &mut SplitMix64, bytes: u64| (bytes - 64 + 8 * draw.below(16)) & !7;
    match draw.below(8) {
        0..4 => 8 * draw.below(MAIN_BYTES / 8),
        4 => near(draw, MAIN_BYTES),
        5 => near(draw, DEVICE_BYTES) | DEVICE_BIT,
        6 => [!7, !7 & !DEVICE_BIT, DEVICE_BIT - 8, 4, 1, DEVICE_BIT | 7][draw.below(6) as usize],
        _ => draw.next_u64(),
    }
}

/// Draws a valid batch of verbs at any address.
fn wild_batch(draw: &mut SplitMix64, id: u64) -> Vec<u64> {
    let verbs = if draw.below(50) == 0 { MAX_BATCH_VERBS as u64 } else { 1 + draw.below(8) };
    let mut frame = vec![0, id];
    for _ in 0..verbs {
        let kind = draw.below(5);
        let words = match kind {
            0 if draw.below(400) == 0 && verbs < 9 => MAX_VERB_WORDS as u64 / 8,
            0 | 1 => 1 + draw.below(6),
            _ => 1,
        };
        frame.extend([addr(draw), kind | words << 32]);
        let operands = [0, words, 2, 4, 1][kind as usize];
        frame.extend((0..operands).map(|_| draw.next_u64() >> draw.below(64)));
    }
    frame[0] = (frame.len() as u64 * 8) | (Kind::Batch as u64) << 32 | verbs << 40;
    frame
}

/// Draws a control request.
fn wild_request(draw: &mut SplitMix64, id: u64) -> Vec<u64> {
    let kind = match draw.below(40) {
        0 => Kind::Fence,
        1 => return vec![16 | (Kind::Count as u64) << 32, id],
        2..20 => Kind::Release,
        _ => Kind::Hold,
    };
    vec![24 | (kind as u64) << 32, id, draw.below(24)]
}

/// Draws bytes that are probably not a frame.
fn broken(draw: &mut SplitMix64, id: u64) -> Vec<u8> {
    let mut words = if draw.below(4) == 0 { wild_request(draw, id) } else { wild_batch(draw, id) };
    match draw.below(4) {
        0 => words.iter_mut().for_each(|word| *word = draw.next_u64()),
        1 => words[0] = draw.next_u64() >> draw.below(64),
        _ => {}
    }
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    for _ in 0..1 + draw.below(4) {
        let at = if draw.below(2) == 0 { draw.below(16) } else { draw.below(bytes.len() as u64) };
        bytes[at as usize] ^= 1 << draw.below(8);
    }
    let cut = draw.below(bytes.len() as u64) as usize;
    if draw.below(4) == 0 {
        bytes.truncate(cut);
    }
    bytes
}

/// Sends `frames` frames that follow from `seed`, and reads all replies.
fn attack(address: SocketAddr, seed: u64, frames: u64) {
    let mut draw = SplitMix64(seed);
    let mut into = vec![0; 1 << 16];
    for _ in 0..frames / FRAMES_OF_CONNECTION {
        let mut client = Client::connect(address);
        let hello = if draw.below(50) == 0 { Hello { sample_words: 512, ..HELLO } } else { HELLO };
        client.send(Kind::Hello, &hello.encode());
        let mut bytes = Vec::new();
        for id in 1..FRAMES_OF_CONNECTION {
            let frame = if draw.below(6) == 0 { wild_request(&mut draw, id) } else { wild_batch(&mut draw, id) };
            bytes.extend(frame.iter().flat_map(|word| word.to_le_bytes()));
        }
        bytes.extend(broken(&mut draw, 0));
        // Another client may have fenced this session.
        drop(client.stream.write_all(&bytes).and_then(|()| client.stream.shutdown(Shutdown::Write)));
        while client.stream.read(&mut into).is_ok_and(|bytes| bytes > 0) {}
    }
}

/// Attacks a node from several threads; returns its counters.
fn attack_from_all(node: &TestNode) -> NodeCounters {
    let times = if is_long() { LONG } else { 1 };
    let frames = FRAMES * times;
    let before = resident_bytes();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let seed = 0x6775_6972_6100 + client;
            println!("client {client}: seed {seed:#x}, {} frames", frames / CLIENTS);
            scope.spawn(move || attack(node.addr, seed, frames / CLIENTS));
        }
    });
    let (mut client, _) = Client::open(node.addr);
    let counters = client.count();
    println!("{counters:?}");
    let examined = counters.batches
        + counters.requests_refused
        + counters.holds_granted
        + counters.holds_taken
        + counters.fences_dropped
        + counters.fences_no_session
        + counters.sessions_misunderstood;
    assert!(examined > frames * 8 / 10, "the node examined {examined} frames of {frames}");
    assert!(counters.sessions_misunderstood > frames / FRAMES_OF_CONNECTION / 2);
    let grown = resident_bytes().saturating_sub(before);
    let allowed = CLIENTS * MAX_SESSION_BYTES as u64 + SLACK_BYTES;
    println!("{examined} of {frames} frames were examined; memory grew by {grown} bytes, {allowed} are allowed");
    assert!(grown < allowed);
    counters
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line of memory");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("KiB");
    kib << 10
}

/// Attacks a node over a file; returns the bytes of the file before and after: header, both spaces, padding.
fn attack_file(grant: Grant) -> (NodeCounters, Vec<u8>, Vec<u8>) {
    let path = format!("/dev/shm/{}", unique_name());
    let location = Location::file(&path);
    let sizes = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES - 512);
    let region = ShmRegion::create(&location, sizes, |_| Ok::<(), String>(())).expect("a fresh name");
    let options = options().grant(grant).session_timeout(Duration::from_secs(2));
    let node = TestNode::new(region, options);
    node.write(Addr::main(MAIN_BYTES - 16), &[0x1234, 0x5678]);
    let before = std::fs::read(&path).expect("the region's file");
    let counters = attack_from_all(&node);
    let after = std::fs::read(&path).expect("the region's file");
    ShmRegion::destroy(&location).expect("it is there");
    node.handle.stop().expect("no thread panicked");
    (counters, before, after)
}

#[test]
fn hostile_readers_change_nothing() {
    let (counters, before, after) = attack_file(Grant::ReadOnly);
    assert!(before == after, "no byte of the file was changed");
    assert_eq!(counters.writes + counters.swaps + counters.adds + counters.holds_granted, 0);
    assert!(counters.reads > 1_000 && counters.requests_refused > 10_000);
}

#[test]
fn hostile_writers_change_nothing_outside_the_region() {
    let (counters, before, after) = attack_file(Grant::ReadWrite);
    let device = HEADER_BYTES + MAIN_BYTES as usize;
    let spaces = HEADER_BYTES..device + DEVICE_BYTES as usize - 512;
    assert!(before[..spaces.start] == after[..spaces.start], "the header was changed");
    assert!(before[spaces.end..] == after[spaces.end..], "what follows the region was changed");
    assert!(after.len() > spaces.end, "something follows");
    assert!(before[HEADER_BYTES..device] != after[HEADER_BYTES..device], "they did write");
    assert!(counters.writes > 1_000 && counters.swaps > 1_000 && counters.adds > 1_000);
}
