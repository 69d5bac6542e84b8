//! The tests of the TCP fabric: of its client, of a memory node, and of a node under attack.

mod client;
mod common;
mod node;
mod overload;
mod service;
