//! The device space: on the card if it has memory, else in host memory, and the same for clients.

use guira_fabric::{Addr, Space, Verb};
use guira_fabric_verbs::{Connecting, ConnectionOptions, DevicePlacement, Target, VerbsError};
use guira_network::wire::Grant;

use crate::fixture::{run, with_devices, words};

const WORDS: u64 = 1_024;

/// Clients and the memory node see the same words, which begin as zeros, wherever they lie.
#[test]
fn a_device_space_is_where_the_card_allows_it() {
    with_devices(|client, device| {
        let target = Target::new(&device).unwrap();
        target.register(Space::Main, words(8) as _).unwrap();
        let space = target.register_device_space(WORDS * 8).unwrap();
        println!("{space:?} of {} bytes {}", device.limits().device_memory_bytes, space.placement());
        if device.limits().device_memory_bytes < WORDS * 8 {
            assert_eq!(space.placement(), DevicePlacement::Host);
            assert!(space.refusal().is_none(), "the card was not asked");
        }
        assert_eq!(space.host_words().is_some(), space.placement() == DevicePlacement::Host);
        assert_eq!(space.bytes(), WORDS * 8);
        let mut all = vec![7; WORDS as usize];
        space.read(0, &mut all).unwrap();
        assert!(all.iter().all(|word| *word == 0));
        space.write(5, &[50, 60]).unwrap();
        let connecting = Connecting::new(&client, &ConnectionOptions::default()).unwrap();
        let (_accepted, parameters) = target.accept(Grant::ReadWrite, &connecting.parameters()).unwrap();
        let connection = connecting.connect(parameters).unwrap();
        assert_eq!(connection.device_bytes(), WORDS * 8);
        let (mut lane, mut found, mut last, mut both) = (connection.lane(), 0, 0, [0; 2]);
        let mut batch = [
            Verb::FetchAdd { addr: Addr::device(40), add: 1, found: &mut found },
            Verb::Cas { addr: Addr::device(WORDS * 8 - 8), compare: 0, swap: 9, found: &mut last },
            Verb::Read { addr: Addr::device(40), into: &mut both },
        ];
        run(&mut lane, &mut batch).unwrap();
        assert_eq!((found, last, both), (50, 0, [51, 60]));
        space.read(0, &mut all).unwrap();
        assert_eq!((all[4], all[5], all[6], all[WORDS as usize - 1]), (0, 51, 60, 9));
    });
}

/// A space that is larger than any card's memory is in host memory, and wrong sizes and accesses are refused.
#[test]
fn a_device_space_has_bounds() {
    with_devices(|_, device| {
        let target = Target::new(&device).unwrap();
        for bytes in [0, 12] {
            let refused = target.register_device_space(bytes);
            assert!(matches!(refused, Err(VerbsError::Mismatch { .. })), "{bytes}");
        }
        let space = target.register_device_space(16 << 20).unwrap();
        assert_eq!(space.placement(), DevicePlacement::Host);
        for (first, count) in [(2 << 20, 1), ((2 << 20) - 1, 2), (u64::MAX, 2)] {
            let mut into = vec![0; count];
            assert!(matches!(space.read(first, &mut into), Err(VerbsError::Mismatch { .. })));
            assert!(matches!(space.write(first, &into), Err(VerbsError::Mismatch { .. })));
        }
        space.write((2 << 20) - 1, &[3]).unwrap();
        let host = space.host_words().unwrap();
        assert_eq!((*host).as_ref()[(2 << 20) - 1].load(guira_fabric::memory::Ordering::SeqCst), 3);
    });
}
