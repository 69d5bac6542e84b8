//! The promises of a node to the service of a fabric, and its reaction to a session that cannot be ended.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use guira_fabric::heap::HeapRegion;
use guira_fabric::{FabricError, Profile};
use guira_network::client::{ConnectError, ConnectOptions, Endpoint, Loss, NodeSession};
use guira_network::node::{
    CloseCause, EndError, Node, NodeError, NodeHandle, NodeOptions, Request, Responder, Service,
};
use guira_network::wire::{CloseReason, Fabric, FenceReply, Kind, WireError};
use guira_testing::{patience, wait_until};

const SLOT: u16 = 3;
/// Longer than a thread of the node needs to answer everything else.
const SLOW: Duration = Duration::from_millis(200);

/// A service that answers an Attach with its body.
#[derive(Clone)]
struct Echo {
    region: HeapRegion,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Sessions that were attached and have not ended.
    attached: AtomicU32,
    ended: AtomicU32,
    is_broken: AtomicBool,
}

impl Service for Echo {
    type Region = HeapRegion;
    /// Whether it was attached.
    type Session = bool;

    const FABRIC: Fabric = Fabric::Rdma;

    fn region(&self) -> &HeapRegion {
        &self.region
    }

    fn unsuitable(&self) -> Option<&'static str> {
        None
    }

    fn execute(
        &mut self,
        session: &mut bool,
        Request { header, body, .. }: Request<'_>,
        responder: &mut Responder<'_>,
    ) -> Result<(), CloseCause> {
        if header.kind != Kind::Attach {
            return Err(WireError::Kind { kind: header.kind as u8 }.into());
        }
        *session = true;
        self.state.attached.fetch_add(1, Ordering::SeqCst);
        responder.reply(Kind::Attached, header.id, body);
        Ok(())
    }

    fn end(&mut self, session: bool) -> Result<(), EndError> {
        self.state.ended.fetch_add(1, Ordering::SeqCst);
        if session {
            std::thread::sleep(SLOW);
            if self.state.is_broken.load(Ordering::SeqCst) {
                return Err(EndError("the device does not answer".to_owned()));
            }
            self.state.attached.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(())
    }
}

struct Fixture {
    handle: NodeHandle,
    state: Arc<State>,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with_threads(2)
    }

    fn with_threads(threads: usize) -> Fixture {
        let region = HeapRegion::new(4096, 64, Profile::Shm.caps());
        let echo = Echo { region, state: Arc::default() };
        let state = Arc::clone(&echo.state);
        let options = NodeOptions::new((Ipv4Addr::LOCALHOST, 0).into(), [1, 2]).threads(threads);
        let handle = Node::bind(echo, options).expect("a free port").spawn().expect("threads");
        Fixture { handle, state }
    }

    fn options(&self) -> ConnectOptions {
        let addr = self.handle.local_addrs()[0];
        ConnectOptions::new(Endpoint::new(&addr.ip().to_string(), addr.port())).with_connect_timeout(patience())
    }

    fn session(&self) -> NodeSession {
        NodeSession::connect(&self.options(), Fabric::Rdma).expect("the node admits every client")
    }

    /// Starts a session that is attached and holds the slot.
    fn holder(&self) -> NodeSession {
        let session = self.session();
        let echoed = session.attach(&[7, 8], |body| Ok(body.to_vec()));
        assert_eq!(echoed, Ok(vec![7, 8]));
        std::mem::forget(session.hold(SLOT).expect("the node answers").expect("a free slot"));
        session
    }
}

#[test]
fn a_client_of_another_fabric_is_told_so() {
    let fixture = Fixture::new();
    let refused = NodeSession::connect(&fixture.options(), Fabric::Tcp).map(drop).unwrap_err();
    let reason = CloseReason::OtherFabric { node: Fabric::Rdma };
    assert!(matches!(&refused, ConnectError::Rejected { reason: found, .. } if *found == reason), "{refused}");
    assert!(refused.to_string().contains("rdma://") && refused.to_string().contains("nothing was changed"));
}

/// [R-RECOVER-1] A fence is answered, and the slot is free, only when the service has ended the session.
#[test]
fn a_fence_is_answered_when_the_service_has_ended_the_session() {
    let fixture = Fixture::new();
    let (holder, other) = (fixture.holder(), fixture.session());
    assert!(other.hold(SLOT).expect("the node answers").is_none());
    assert_eq!(fixture.state.attached.load(Ordering::SeqCst), 1);
    assert_eq!(other.fence(SLOT), Ok(FenceReply::Dropped));
    assert_eq!(fixture.state.attached.load(Ordering::SeqCst), 0, "it had ended before the reply");
    assert!(other.hold(SLOT).expect("the node answers").is_some());
    // The node's last message to the holder travels on another connection than the reply.
    wait_until("the holder learns of its loss", || holder.notice_loss().is_some());
    assert_eq!(holder.loss(), Some(Loss::Closed(CloseReason::Fenced)));
    assert!(matches!(holder.hold(SLOT), Err(FabricError::Fenced { .. })));
    drop((holder, other));
    fixture.handle.stop().expect("nothing failed");
    assert_eq!(fixture.state.ended.load(Ordering::SeqCst), 2, "each session is ended once");
}

#[test]
fn a_client_that_ends_its_session_frees_its_slots() {
    let fixture = Fixture::new();
    let (holder, other) = (fixture.holder(), fixture.session());
    holder.end();
    assert_eq!(holder.loss(), Some(Loss::EndedHere));
    wait_until("the slot is free", || other.hold(SLOT).expect("the node answers").is_some());
    assert_eq!(fixture.state.attached.load(Ordering::SeqCst), 0);
}

/// [R-RECOVER-1] A fence of a session that cannot be ended has no reply, also if one thread serves both sessions.
#[test]
fn a_fence_of_a_session_that_cannot_be_ended_has_no_reply() {
    for threads in [1, 2] {
        let fixture = Fixture::with_threads(threads);
        let (holder, other) = (fixture.holder(), fixture.session());
        fixture.state.is_broken.store(true, Ordering::SeqCst);
        let fenced = other.fence(SLOT);
        assert!(matches!(fenced, Err(FabricError::Disconnected { .. })), "{fenced:?}");
        wait_until("the holder learns of its loss", || holder.notice_loss().is_some());
        let loss = holder.loss().expect("it was lost before");
        assert_eq!(loss, Loss::Closed(CloseReason::Shutdown), "it may not take itself for dead");
        assert!(matches!(fixture.handle.stop(), Err(NodeError::Unended { .. })));
    }
}

/// [R-RECOVER-1] What may still be executed is nobody's proof of death.
#[test]
fn a_session_that_cannot_be_ended_stops_the_node_and_keeps_its_slots() {
    let fixture = Fixture::new();
    let (holder, other) = (fixture.holder(), fixture.session());
    fixture.state.is_broken.store(true, Ordering::SeqCst);
    holder.end();
    let mut ended = None;
    wait_until("the node has stopped", || {
        match other.hold(SLOT) {
            Ok(granted) => assert!(granted.is_none(), "a slot of a session that has not ended was granted"),
            Err(error) => ended = Some(error),
        }
        ended.is_some()
    });
    let ended = ended.unwrap();
    assert!(matches!(ended, FabricError::Disconnected { .. }), "{ended}");
    let failed = fixture.handle.stop().unwrap_err();
    assert!(matches!(&failed, NodeError::Unended { reason } if reason.contains("does not answer")), "{failed}");
}
