//! The TCP fabric: a memory node that executes one-sided verbs on bytes, and the lanes of its clients.
//!
//! One ordered batch of verbs is one request and one reply. The protocol is [`wire`], described byte by byte in
//! docs/wire.md; the host that has the memory runs a [`node::Node`].
#![forbid(unsafe_code)]

pub mod client;
pub mod node;
pub mod tls;
pub mod wire;
