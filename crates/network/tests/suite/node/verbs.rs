//! The effects of verbs, and that they have no others.

use std::io::Write;

use guira_fabric::{Addr, FabricError, Verb};
use guira_network::tcp::batch;
use guira_network::wire::{self, Fabric, Grant, HEADER_WORDS, Hello, Kind, MAX_BATCH_VERBS, MAX_VERB_WORDS};

use crate::common::client::{Client, HELLO};
use crate::common::test_node::{DEVICE_BYTES, MAIN_BYTES, REGION_ID, on_each_region, options};

#[test]
fn the_verbs_of_a_batch_take_effect_in_order() {
    on_each_region(options, |node| {
        let (mut client, _) = Client::open(node.addr);
        node.executes_every_verb(|batch| client.submit(batch));
        let counters = client.count();
        let verbs = (counters.batches, counters.reads, counters.writes, counters.swaps, counters.adds);
        assert_eq!(verbs, (1, 2, 1, 3, 1));
    });
}

#[test]
fn a_batch_with_one_bad_verb_is_refused_whole() {
    on_each_region(options, |node| {
        let (mut client, _) = Client::open(node.addr);
        let good = [7; 4];
        let bad: [(Verb<'_>, &str); 5] = [
            (Verb::Write { addr: Addr::main(MAIN_BYTES - 8), words: &[1, 1] }, "bounds"),
            (Verb::Write { addr: Addr::main(MAIN_BYTES), words: &[1] }, "bounds"),
            (Verb::Write { addr: Addr::device(DEVICE_BYTES), words: &[1] }, "bounds"),
            (Verb::Write { addr: Addr::main((1 << 63) - 8), words: &[1, 1] }, "bounds"),
            (Verb::Write { addr: Addr::main(12), words: &[1] }, "alignment"),
        ];
        let tried = bad.len() as u64;
        for (verb, why) in bad {
            let addr = verb.addr();
            let error = client.submit(&mut [Verb::Write { addr: Addr::main(0), words: &good }, verb]).unwrap_err();
            match error {
                FabricError::OutOfBounds { addr: reported, .. } => assert_eq!((why, reported), ("bounds", addr)),
                FabricError::Misaligned { addr: reported, .. } => assert_eq!((why, reported), ("alignment", addr)),
                other => panic!("{other}"),
            }
        }
        let whole = node.read(Addr::main(0), (MAIN_BYTES / 8) as usize);
        assert!(whole.iter().all(|word| *word == 0), "nothing was changed");
        assert!(node.read(Addr::device(0), (DEVICE_BYTES / 8) as usize).iter().all(|word| *word == 0));
        assert_eq!(client.count().requests_refused, tried);
    });
}

#[test]
fn the_longest_verb_and_the_longest_batch_come_back() {
    on_each_region(options, |node| {
        let (mut client, _) = Client::open(node.addr);
        let words: Vec<u64> = (0..MAX_VERB_WORDS as u64).map(|word| word * 3).collect();
        client.submit(&mut [Verb::Write { addr: Addr::main(8), words: &words }]).unwrap();
        assert_eq!(client.read(Addr::main(8), MAX_VERB_WORDS), words);
        let mut found = [0; MAX_BATCH_VERBS];
        let counted = found.iter_mut().map(|found| Verb::FetchAdd { addr: Addr::main(0), add: 1, found });
        client.submit(&mut counted.collect::<Vec<_>>()).unwrap();
        assert!(found.iter().copied().eq(0..MAX_BATCH_VERBS as u64), "each saw the ones before it: {found:?}");
    });
}

#[test]
fn frames_may_be_cut_anywhere() {
    on_each_region(options, |node| {
        let (mut client, _) = Client::open(node.addr);
        let mut into = [0; 2];
        let mut frame = Vec::new();
        let (mut swapped, words) = (0, [3, 4, 5]);
        let batch = [
            Verb::Write { addr: Addr::main(16), words: &words },
            Verb::Cas { addr: Addr::main(16), compare: 3, swap: 8, found: &mut swapped },
            Verb::Read { addr: Addr::main(16), into: &mut into },
        ];
        batch::encode_batch(&mut frame, 1, &batch).unwrap();
        let bytes: Vec<u8> = frame.iter().flat_map(|word| word.to_le_bytes()).collect();
        for cut in 1..bytes.len() {
            let received = node.handle.counters().bytes_in + cut as u64;
            client.stream.write_all(&bytes[..cut]).unwrap();
            node.wait_until("the first part", |now| now.bytes_in == received);
            client.stream.write_all(&bytes[cut..]).unwrap();
            assert_eq!(client.reply(1, Kind::Done).unwrap(), [3, 8, 4], "cut at byte {cut}");
        }
        println!("{} cuts", bytes.len() - 1);
        assert!(bytes.len() > 100);
    });
}

#[test]
fn many_frames_in_one_write_are_answered_in_order() {
    on_each_region(options, |node| {
        let (mut client, _) = Client::open(node.addr);
        const FRAMES: u64 = 5_000;
        let mut frames = Vec::new();
        for id in 0..FRAMES {
            let (mut found, mut into) = (0, [0; 3]);
            let add = Verb::FetchAdd { addr: Addr::main(8), add: 1, found: &mut found };
            batch::encode_batch(&mut frames, id, &[add, Verb::Read { addr: Addr::main(8), into: &mut into }]).unwrap();
        }
        client.send_words(&frames).unwrap();
        for id in 0..FRAMES {
            assert_eq!(client.reply(id, Kind::Done).unwrap(), [id, id + 1, 0, 0]);
        }
        let counters = node.handle.counters();
        let answered: u64 = counters.answered_in.0.iter().sum();
        assert_eq!((counters.batches, answered), (FRAMES, FRAMES + 1), "each batch, and the Hello");
    });
}

#[test]
fn readers_may_read_and_do_nothing_else() {
    on_each_region(options, |node| {
        let hello = Hello { fabric: Fabric::Tcp, wanted: Grant::ReadOnly, ..HELLO };
        let (mut client, welcome) = Client::greet(node.addr, &hello).expect("a session");
        assert_eq!(welcome.grant, Grant::ReadOnly);
        let (mut found, mut into) = (0, [0]);
        let refused = |verb| FabricError::ReadOnly { verb };
        let read = Verb::Read { addr: Addr::main(0), into: &mut into };
        let error = client.submit(&mut [read, Verb::Write { addr: Addr::main(0), words: &[1] }]).unwrap_err();
        assert_eq!(error, refused("WRITE"));
        let swap = Verb::Cas { addr: Addr::main(0), compare: 0, swap: 1, found: &mut found };
        assert_eq!(client.submit(&mut [swap]).unwrap_err(), refused("CAS"));
        let add = Verb::FetchAdd { addr: Addr::main(0), add: 1, found: &mut found };
        assert_eq!(client.submit(&mut [add]).unwrap_err(), refused("FETCH-ADD"));
        assert_eq!(client.hold(1).unwrap_err(), refused("a hold"));
        assert_eq!(client.fence(1).unwrap_err(), refused("a fence"));
        assert_eq!(client.read(Addr::main(0), 2), [0, 0]);
        drop(node.hold(1).expect("it is free"));
    });
}

#[test]
fn a_welcome_describes_the_region() {
    on_each_region(options, |node| {
        node.write(Addr::main(0), &[11, 12, 13]);
        let (_client, welcome) = Client::greet(node.addr, &Hello { sample_words: 4, ..HELLO }).expect("a session");
        assert_eq!(welcome.sample, [11, 12, 13, 0]);
        assert_eq!((welcome.region, welcome.grant), (REGION_ID, Grant::ReadWrite));
        assert_eq!((welcome.main_bytes, welcome.device_bytes), (MAIN_BYTES, DEVICE_BYTES));
        assert_eq!((welcome.session_timeout_ms, welcome.atomic_write_unit), (10_000, u64::MAX));
    });
}

#[test]
fn a_frame_after_the_greeting_is_executed_without_waiting() {
    on_each_region(options, |node| {
        let mut client = Client::connect(node.addr);
        let mut frames = Vec::new();
        wire::append(&mut frames, Kind::Hello, 4, &HELLO.encode());
        batch::encode_batch(&mut frames, 5, &[Verb::Write { addr: Addr::main(0), words: &[6] }]).unwrap();
        client.send_words(&frames).unwrap();
        assert!(client.reply(4, Kind::Welcome).is_ok());
        assert_eq!(client.reply(5, Kind::Done).unwrap().len() + HEADER_WORDS, 2);
        assert_eq!(node.read(Addr::main(0), 1), [6]);
    });
}
