//! Devices, ports and addresses, and what they refuse.

use guira_fabric::Space;
use guira_fabric_verbs::{
    AtomicScope, Connecting, ConnectionOptions, Device, DeviceOptions, GidKind, Target, VerbsError,
};
use guira_network::wire::Grant;

use crate::fixture::{Node, open, skip, with_devices, words};
use crate::processes::{Actor, MEMLOCK_BYTES, WANTED_BYTES};

#[test]
fn the_default_address_is_of_roce_v2() {
    with_devices(|client, _| {
        println!("{client:?}, {:?}, {:?}", client.limits(), client.gids());
        assert_eq!(client.atomics(), AtomicScope::Device);
        if client.lid() == 0 {
            assert_eq!(client.gid().kind, GidKind::RoceV2);
            assert!(client.gid().gid.ipv4().is_some(), "an IPv4 address is preferred");
        }
        assert!(client.gids().contains(&client.gid()));
        let limits = client.limits();
        assert!(limits.queue_depth >= 128 && limits.reads_in > 0 && limits.reads_out > 0, "{limits:?}");
    });
}

/// Each wrong choice is an error that names what there is.
#[test]
fn wrong_choices_are_refused() {
    with_devices(|client, _| {
        let device = client.name().to_owned();
        let refused = |options: &DeviceOptions| Device::open(options).map(drop).unwrap_err();
        let named = DeviceOptions { device: Some(device.clone()), ..DeviceOptions::default() };
        let unknown = refused(&DeviceOptions { device: Some("mlx5_77".to_owned()), ..named.clone() });
        assert!(matches!(&unknown, VerbsError::NoSuchDevice { found, .. } if found.contains(&device)), "{unknown}");
        let port = refused(&DeviceOptions { port: Some(200), ..named.clone() });
        assert!(matches!(port, VerbsError::NoSuchPort { port: 200, .. }), "{port}");
        let zero = refused(&DeviceOptions { port: Some(0), ..named.clone() });
        assert!(matches!(zero, VerbsError::NoSuchPort { port: 0, .. }), "{zero}");
        let gid = refused(&DeviceOptions { gid: Some(100_000), ..named.clone() });
        assert!(matches!(&gid, VerbsError::NoSuchGid { found, .. } if found.contains(&client.gid().index)), "{gid}");
        let chosen = DeviceOptions { gid: Some(client.gid().index), port: Some(1), ..named };
        assert_eq!(Device::open(&chosen).unwrap().gid(), client.gid());
    });
}

/// A port whose link is down is an error that says so. The virtual machine has such a device.
#[test]
fn a_port_that_is_down_is_refused() {
    with_devices(|_, _| {
        let names = Device::names().unwrap();
        let down = names.iter().find_map(|name| open(name).err());
        match down {
            Some(error) => assert!(matches!(error, VerbsError::PortDown { state: "down", .. }), "{error}"),
            None => skip("all ports are active"),
        }
    });
}

#[test]
fn impossible_connections_are_refused() {
    with_devices(|client, device| {
        let node = Node::new(&device, 64, 64, 8);
        let lanes = Connecting::new(&client, &ConnectionOptions { lanes: 0, ..ConnectionOptions::default() });
        assert!(matches!(lanes, Err(VerbsError::Mismatch { .. })));
        let connecting = || Connecting::new(&client, &ConnectionOptions::default()).unwrap();
        let mut parameters = connecting().parameters();
        parameters.endpoint.queue_pair.0 = 1 << 24;
        assert!(matches!(node.target.accept(Grant::ReadOnly, &parameters), Err(VerbsError::Mismatch { .. })));
        let connecting = connecting();
        let (_accepted, mut answer) = node.target.accept(Grant::ReadOnly, &connecting.parameters()).unwrap();
        answer.main[0].bytes = 7;
        assert!(matches!(connecting.connect(answer), Err(VerbsError::Mismatch { .. })));
        let target = Target::new(&device).unwrap();
        assert!(matches!(target.register(Space::Main, words(0) as _), Err(VerbsError::Mismatch { .. })));
    });
}

/// Without the privilege to lock memory, the limit decides, and the error says how much is needed.
#[test]
fn a_small_limit_of_locked_memory_is_explained() {
    with_devices(|_, _| {
        let mut actor = Actor::start("memlock");
        let refused = |needed_bytes: u64| {
            let error = VerbsError::Memlock { needed_bytes, limit_bytes: MEMLOCK_BYTES };
            format!("Err({error:?})")
        };
        assert_eq!(actor.receive(), refused(2 * WANTED_BYTES));
        let options = ConnectionOptions::default();
        let lanes = u64::from(options.lanes) * u64::from(options.lane_bytes);
        let large = u64::from(options.large_buffers) * u64::from(options.large_bytes);
        assert_eq!(actor.receive(), refused(lanes + large));
        actor.wait();
    });
}
