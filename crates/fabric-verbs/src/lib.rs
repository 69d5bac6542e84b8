//! The RDMA fabric: a memory side registers its bytes with a network card and stays out of the way, and clients read
//! and change them with one-sided verbs over reliable queue pairs (RoCE v2, InfiniBand, Soft-RoCE).
//!
//! [`Device`] opens a port. The memory side makes a [`Target`] of its bytes and accepts clients; a client creates a
//! queue pair with [`Connecting`], and its [`Connection`] has lanes ([`VerbsLane`]). The two sides exchange their
//! parameters in a session of crate `guira-network`: [`VerbsAgent`] is the service of a memory node, and
//! [`VerbsRegion`] the client's side. What one queue
//! pair orders is the subject of docs/rdma.md.
//!
//! libibverbs is loaded at run time ([`VerbsError::Library`] if it is missing); none of its types is in this API.
//!
//! # Guarantees
//! - Every batch is checked against the region's bounds before any of it is posted, because one invalid work request
//!   ends the queue pair for all its lanes.
//! - A batch is one list of work requests in one call; only its last one is signalled.
//! - After [`Accepted::end`] has returned, no verb of that client changes a byte.
//! - In a forked child every call is refused, and nothing that belongs to the parent is released. The parent goes on,
//!   if its kernel is Linux 5.12 or later, which copies locked pages for children; with an older one, a process that
//!   has opened a device must not fork without starting another program.
//!
//! On systems other than 64-bit Linux the crate is empty.
#![allow(unsafe_code, reason = "it calls rdma-core")]
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod agent;
mod client;
mod device;
mod device_memory;
mod error;
mod exchange;
mod ffi;
mod gid;
mod growth;
mod memlock;
mod mlx5;
mod poster;
mod probe;
mod region;
mod resources;
mod target;

pub use agent::{Attachment, VerbsAgent};
pub use client::{Connecting, Connection, ConnectionOptions, Drained, LostConnection, VerbsLane};
pub use device::{AtomicScope, Device, DeviceLimits, DeviceOptions};
pub use device_memory::{DevicePlacement, DeviceSpace};
pub use error::VerbsError;
pub use ffi::mlx5_library_is_installed;
pub use gid::{GidEntry, GidKind};
pub use growth::GrowingArea;
pub use memlock::memlock_limit_bytes;
pub use region::{AttachError, VerbsRegion};
pub use target::{Accepted, Target};
