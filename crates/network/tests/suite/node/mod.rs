//! The memory node, tested by clients that know only the wire protocol: over a heap region and over a shared-memory
//! region that a local client has mapped at the same time; and over TLS, by the fabric's own client.
//!
//! Proves, by clients that know only the wire protocol, against nodes over a heap region and over shared memory that a
//! local client has mapped:
//!
//! - verbs take effect in order and nowhere else;
//! - a slot is granted only when no verb of its previous session can still be executed (30 times, with a client that
//!   writes without end and is fenced, or loses its connection);
//! - frames may be cut at every byte;
//! - 512 clients progress at the same time; sessions, connections, slow readers and waiting times are bounded; batches
//!   allocate nothing;
//! - clients of a file that is truncated get an error at once, and read none of the zeros that the node was given
//!   (`lost`; with the program and its clients, `truncated` of guira-cli);
//! - 200,000 random frames (20 million with `GUIRA_LONG=1`) cause no panic, change no byte outside the region, and none
//!   at all for a client that may only read, and leave memory bounded;
//! - with a fabric of the test in place of batches: a client of another fabric is told so, a Fence is answered and a
//!   slot is free only when the fabric has ended the session, each session is ended once, and one that cannot be ended
//!   stops the node and keeps its slots.
//!
//! Cannot show: a network, which stores over TCP test.

mod holes;
mod hostile;
mod lost;
mod sessions;
#[cfg(feature = "tls")]
mod tls;
mod verbs;
