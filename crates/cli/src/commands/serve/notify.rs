//! Notifications to the service manager by systemd's `sd_notify` protocol, one datagram for each change.
//!
//! Invariant: a missing service manager is not a failure, and nothing here blocks.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that clients can connect.
pub fn ready(status: &str) {
    send(&format!("READY=1\nSTATUS={status}\nMAINPID={}\n", std::process::id()));
}

/// Reports that tokens and certificates are being reloaded; [`ready`] follows.
pub fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    send(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}\n"));
}

/// Reports that the node is stopping.
pub fn stopping() {
    send("STOPPING=1\nSTATUS=stopping\n");
}

/// Sends `message` to the service manager's socket, if there is one. Failures are ignored.
fn send(message: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    let addr = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = addr.and_then(|addr| {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(message.as_bytes(), &addr)
    });
    // A service manager that missed it reports that by its own timeout.
    let _ = sent;
}
