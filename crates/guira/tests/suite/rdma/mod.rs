//! Stores over `rdma://`: mistakes that are reported, a node that is not one, a table that this machine's processor
//! uses as well, and clients that are fenced. [R-SESSION-1] [R-SESSION-2] [R-RECOVER-1]
//!
//! Without an RDMA device these tests say that they are skipped. The tests of module `node` run over RDMA, too, with
//! `GUIRA_TEST_FABRIC=rdma`.

#![expect(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

mod fence;
mod growth;
mod peers;
mod served;

use std::sync::Arc;

use guira::errors::{AttachError, CloseReason, ConnectError, VerbsError};
use guira::{Blame, Effect, Error, OpenError, OpenOptions, Store, Url};
use guira_conformance::RdmaDevices;
use guira_fabric_verbs::{Device, DeviceOptions};
use guira_network::wire::{Fabric, Token};
use guira_testing::wait_until;

use crate::common::fabric::url_of;
use crate::node::test_node::TestNode;

/// Returns the devices; prints that the test is skipped if there are none.
fn devices() -> Option<RdmaDevices> {
    RdmaDevices::find("rdma")
}

/// Opens a table, which fails without an effect.
fn refused(url: &Url) -> Error {
    let error = Store::open_with(url, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error}");
    error
}

/// Opens a table at a node that rejects the session.
fn rejected(url: &Url) -> CloseReason {
    match refused(url) {
        Error::Open(OpenError::Connect { source, .. }) => match &*source {
            ConnectError::Rejected { reason, .. } => *reason,
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    }
}

/// Opens a table by a device that cannot be used.
fn attach_error(url: &Url) -> Arc<AttachError> {
    match refused(url) {
        Error::Open(OpenError::Rdma { source, .. }) => source,
        other => panic!("{other}"),
    }
}

#[test]
fn a_node_of_another_fabric_is_refused_by_name() {
    let Some(devices) = devices() else { return };
    let (tcp, rdma) =
        (TestNode::start_over(None, |options| options), TestNode::start_over(Some(devices.clone()), |options| options));
    assert_eq!(rejected(&url_of(tcp.addr, Some(&devices))), CloseReason::OtherFabric { node: Fabric::Tcp });
    assert_eq!(rejected(&url_of(rdma.addr, None)), CloseReason::OtherFabric { node: Fabric::Rdma });
    let text = refused(&url_of(tcp.addr, Some(&devices))).to_string();
    assert!(text.contains("tcp://"), "it says which URL would do: {text}");
    assert!(Store::open(tcp.url()).is_ok() && Store::open(rdma.url()).is_ok());
}

/// A device, port or address that does not exist is an error that names those that do.
#[test]
fn devices_ports_and_addresses_that_do_not_exist_are_reported() {
    let Some(devices) = devices() else { return };
    let served = TestNode::start_over(Some(devices.clone()), |options| options);
    let open = |query: &str| attach_error(&format!("rdma://{}?{query}", served.addr).parse().unwrap());
    let client = &devices.client;
    let no_device = open("dev=absent0");
    assert!(matches!(&*no_device, AttachError::Device(VerbsError::NoSuchDevice { name, found })
        if name == "absent0" && found.contains(client)));
    let no_port = open(&format!("dev={client}&port=9"));
    assert!(matches!(&*no_port, AttachError::Device(VerbsError::NoSuchPort { port: 9, .. })), "{no_port}");
    let no_gid = open(&format!("dev={client}&gid=99"));
    assert!(matches!(&*no_gid, AttachError::Device(VerbsError::NoSuchGid { index: 99, .. })), "{no_gid}");
    for name in Device::names().unwrap() {
        let options = DeviceOptions { device: Some(name.clone()), ..DeviceOptions::default() };
        if matches!(Device::open(&options), Err(VerbsError::PortDown { .. })) {
            let down = open(&format!("dev={name}"));
            assert!(matches!(&*down, AttachError::Device(VerbsError::PortDown { .. })), "{down}");
            println!("{down}");
        }
    }
    assert!(Store::open(served.url()).is_ok(), "the node is as it was");
}

#[test]
fn a_node_admits_only_clients_with_a_token_and_room() {
    let Some(devices) = devices() else { return };
    let guarded = TestNode::start_over(Some(devices.clone()), |options| options.token(Token([1, 2])));
    assert_eq!(rejected(&guarded.url()), CloseReason::Unauthorized);
    assert_eq!(refused(&guarded.url()).blame(), Blame::Misuse);
    let small = TestNode::start_over(Some(devices), |options| options.max_sessions(1));
    let store = Store::open(small.url()).unwrap();
    assert_eq!(rejected(&small.url()), CloseReason::Full { limit: 1 });
    assert_eq!(store.len_estimate().unwrap().entries, 0, "the one session goes on");
    drop(store);
    wait_until("there is room again", || Store::open(small.url()).is_ok());
}
