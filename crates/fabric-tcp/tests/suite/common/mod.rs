//! Tools of several modules of the suite: a client that knows only the wire protocol, nodes over each region, and a proxy
//! that cuts and delays.

pub mod client;
pub mod proxy;
pub mod test_node;
