//! Cause: what a lookup had sampled before it had to wait travelled with the caller as a verdict, and its rows stayed
//! in the reader. The reader asked whether its rows were of that key, and not whether they were those of that verdict.
//!
//! Effect: a verdict of another reader, or of an earlier lookup of the same key, was applied to rows where it does not
//! hold: an entry that had never been one referred to no extent, and a sound table was called `Corrupt`.
//!
//! Fix: verdict and rows stay together in the reader, and the caller has only their number. // [R-READ-4] [R-READ-6]

use guira_conformance::{Bench, Op, Seen, TestClient, block_on};
use guira_fabric::{Profile, Region};
use guira_layout::Preset;
use guira_rcuckoo::{ClientConfig, Now, Outcome, Reader, Sampled};

const KEY: &[u8] = b"one key";
/// More than one READ fetches: a lookup that waits for it.
const LONG_BYTES: usize = (1 << 20) + 100;

fn bench() -> Bench {
    Bench::of_rows(Preset::Hardened, "bytes:64", 64, Profile::Shm, 3)
}

fn reader(bench: &Bench) -> Reader {
    Reader::new(bench.table.clone(), ClientConfig::for_table(&bench.table))
}

fn put(client: &mut TestClient, value: Vec<u8>) {
    let put = client.apply(&Op::Put(KEY.to_vec(), value));
    assert!(matches!(put, Ok(Seen::Outcome(Outcome::Inserted | Outcome::Replaced))), "{put:?}");
}

/// Begins a lookup that has to wait.
fn begin(bench: &Bench, reader: &mut Reader) -> Sampled {
    match reader.get_now(&mut bench.region.lane(), KEY, &mut Vec::new()) {
        Now::Wait(sampled) => sampled,
        Now::Done(token) => panic!("it does not have to wait: {token:?}"),
    }
}

fn finish(bench: &Bench, reader: &mut Reader, sampled: Sampled) -> Vec<u8> {
    let mut value = Vec::new();
    let token = block_on(reader.get_waiting(&mut bench.region.lane(), KEY, &mut value, sampled));
    assert!(matches!(token, Ok(Some(_))), "the key exists: {token:?}");
    value
}

#[test]
fn a_sample_of_another_reader_begins_anew() {
    let bench = bench();
    let (mut reader, mut other) = (reader(&bench), reader(&bench));
    let missed = other.get_now(&mut bench.region.lane(), KEY, &mut Vec::new());
    assert!(matches!(missed, Now::Done(None)), "{missed:?}");
    put(&mut bench.client(0), vec![1; LONG_BYTES]);
    let sampled = begin(&bench, &mut reader);
    assert_eq!(finish(&bench, &mut other, sampled), vec![1; LONG_BYTES]);
}

#[test]
fn a_sample_of_an_earlier_lookup_begins_anew() {
    let bench = bench();
    let (mut reader, mut client) = (reader(&bench), bench.client(0));
    put(&mut client, vec![1; LONG_BYTES]);
    let sampled = begin(&bench, &mut reader);
    put(&mut client, vec![2; 3]);
    let found = reader.get_now(&mut bench.region.lane(), KEY, &mut Vec::new());
    assert!(matches!(found, Now::Done(Some(_))), "{found:?}");
    assert_eq!(finish(&bench, &mut reader, sampled), [2; 3]);
}

#[test]
fn a_sample_goes_on_where_its_lookup_stood() {
    let bench = bench();
    let mut reader = reader(&bench);
    put(&mut bench.client(0), vec![1; LONG_BYTES]);
    let mut lane = bench.region.lane();
    let Now::Wait(sampled) = reader.get_now(&mut lane, KEY, &mut Vec::new()) else { panic!("it has to wait") };
    let before = guira_fabric::Lane::traffic(&lane).round_trips;
    let mut value = Vec::new();
    block_on(reader.get_waiting(&mut lane, KEY, &mut value, sampled)).unwrap();
    // Only the extent: the rows are not sampled again.
    assert_eq!(guira_fabric::Lane::traffic(&lane).round_trips - before, 1);
    assert_eq!(value, vec![1; LONG_BYTES]);
}
