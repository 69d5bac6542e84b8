//! Messages that the device counted, compared with those that a lane counted.

use std::fs;
use std::thread;
use std::time::Duration;

use guira_fabric::{Addr, Lane, Verb};

use crate::fixture::{Node, run, skip, with_devices};

/// Longer than the time for which the kernel shows the same values again, 10 ms (`hw_counters/lifespan`).
const LIFESPAN: Duration = Duration::from_millis(50);

/// Reads a counter of a device's first port, which only Soft-RoCE has under this name.
fn counter(device: &str, name: &str) -> Option<u64> {
    fs::read_to_string(format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{name}")).ok()?.trim().parse().ok()
}

/// The rows of a key.
const ROWS: [Addr; 2] = [Addr::main(128), Addr::main(512)];

fn reads<'b>(first: &'b mut [u64], second: &'b mut [u64]) -> [Verb<'b>; 2] {
    [Verb::Read { addr: ROWS[0], into: first }, Verb::Read { addr: ROWS[1], into: second }]
}

/// A lookup is two READs, an update is CAS, READ, READ and then WRITE, FETCH-ADD: the device sends as many packets as
/// the lane counts messages, and receives as many answers.
#[test]
fn packets_equal_messages() {
    with_devices(|client, device| {
        let packets = || {
            thread::sleep(LIFESPAN);
            Some((counter(client.name(), "sent_pkts")?, counter(client.name(), "rcvd_pkts")?))
        };
        let Some(before) = packets() else { return skip("the device does not count its packets") };
        if client.name() == device.name() {
            return skip("the packets of both sides are counted together on a single device");
        }
        let node = Node::new(&device, 1_024, 64, 8);
        let (connection, _accepted) = node.connect_writer(&client);
        let mut lane = connection.lane();
        let (mut first, mut second) = ([0; 16], [0; 16]);
        run(&mut lane, &mut reads(&mut first, &mut second)).unwrap();
        let after_lookup = packets().expect("it was there before");
        let lookup = *lane.traffic();
        assert_eq!((lookup.messages(), lookup.round_trips), (2, 1));
        assert_eq!((after_lookup.0 - before.0, after_lookup.1 - before.1), (2, 2));

        let (mut found, mut released) = (0, 0);
        let [read_1, read_2] = reads(&mut first, &mut second);
        let lock = Verb::Cas { addr: Addr::device(0), compare: 0, swap: 1, found: &mut found };
        run(&mut lane, &mut [lock, read_1, read_2]).unwrap();
        let release = Verb::FetchAdd { addr: Addr::device(0), add: u64::MAX, found: &mut released };
        run(&mut lane, &mut [Verb::Write { addr: ROWS[0], words: &[5; 16] }, release]).unwrap();
        let (update, after) = (lane.traffic().since(&lookup), packets().expect("it was there before"));
        assert_eq!((update.messages(), update.round_trips, found, released), (5, 2, 0, 1));
        assert_eq!((after.0 - after_lookup.0, after.1 - after_lookup.1), (5, 5));
    });
}
