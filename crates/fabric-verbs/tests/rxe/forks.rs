//! Processes that fork: the child is refused, and the parent goes on.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use guira_fabric::{Addr, FabricError, Lane, Submitted, Verb, post};
use guira_fabric_verbs::{Connecting, ConnectionOptions, Target, VerbsError};
use guira_network::wire::Grant;

use crate::fixture::{Node, load, run, spin_on, with_devices};

/// Runs `child` in a forked child and returns whether it returned true.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child takes no lock that another thread may hold, apart from the allocator's, which the C library
    // makes usable in children.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let is_good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: the call ends the process at once.
        unsafe { libc::_exit(i32::from(!is_good)) };
    }
    let mut status = 0;
    // SAFETY: the kernel writes to `status`, which outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_forked_child_is_refused_and_releases_nothing() {
    with_devices(|client, device| {
        let node = Node::new(&device, 64, 64, 8);
        let (connection, mut accepted) = node.connect_writer(&client);
        let (mut idle, mut busy) = (connection.lane(), connection.lane());
        let spare = Connecting::new(&client, &ConnectionOptions::default()).unwrap();
        let mut found = 0;
        let mut batch = [Verb::FetchAdd { addr: Addr::main(8), add: 1, found: &mut found }];
        let mut posted = pin!(post(&mut busy, &mut batch[..]));
        let is_refused = in_child(|| {
            let write = &mut [Verb::Write { addr: Addr::main(0), words: &[1] }];
            let submitted = matches!(idle.submit(write), Submitted::Done(Err(FabricError::Forked)));
            let mut cx = Context::from_waker(Waker::noop());
            let polled = posted.as_mut().poll(&mut cx) == Poll::Ready(Err(FabricError::Forked));
            let ended = matches!(accepted.end(), Err(VerbsError::Forked));
            let connecting = Connecting::new(&client, &ConnectionOptions::default());
            let created = matches!(connecting, Err(VerbsError::Forked));
            let target = matches!(Target::new(&device), Err(VerbsError::Forked));
            // SAFETY: the child's copies are released here; the parent has its own, and the child ends without using
            // these again.
            unsafe {
                drop(std::ptr::read(&idle));
                drop(std::ptr::read(&connection));
                drop(std::ptr::read(&accepted));
                drop(std::ptr::read(&spare));
                drop(std::ptr::read(&node.target));
            }
            let refused = [submitted, polled, ended, created, target, connection.is_stale()];
            refused == [true; 6]
        });
        assert!(is_refused);
        spin_on(posted).unwrap();
        run(&mut idle, &mut [Verb::Write { addr: Addr::main(0), words: &[6] }]).unwrap();
        assert_eq!((load(&node.main[0], 0), load(&node.main[0], 1)), (6, 1));
        assert!(!connection.is_stale() && connection.lost().is_none());
        accepted.end().unwrap();
        let (_other, parameters) = node.target.accept(Grant::ReadWrite, &spare.parameters()).unwrap();
        let mut lane = spare.connect(parameters).unwrap().lane();
        run(&mut lane, &mut [Verb::Write { addr: Addr::main(0), words: &[7] }]).unwrap();
        assert_eq!(load(&node.main[0], 0), 7);
    });
}
