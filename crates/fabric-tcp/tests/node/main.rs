//! The memory node, tested by clients that know only the wire protocol: over a heap region and over a shared-memory
//! region that a local client has mapped at the same time; and over TLS, by the fabric's own client.

mod client;
mod holes;
mod hostile;
mod lost;
mod sessions;
mod test_node;
#[cfg(feature = "tls")]
mod tls;
mod verbs;
