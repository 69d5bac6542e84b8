//! What the service manager is told, if there is one: systemd's protocol of `sd_notify`, one datagram a change.
//!
//! Invariant: nobody who listens is no failure, and nothing here waits.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Clients can connect.
pub fn ready(status: &str) {
    send(&format!("READY=1\nSTATUS={status}\nMAINPID={}\n", std::process::id()));
}

/// Who is let in is read anew; [`ready`] follows.
pub fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    send(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}\n"));
}

/// The end has begun.
pub fn stopping() {
    send("STOPPING=1\nSTATUS=stopping\n");
}

/// Sends `message` to where the service manager wants it. It may have gone, and then nobody misses it.
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
    // A service manager that does not listen will say so itself, by its own timeout.
    let _ = sent;
}
