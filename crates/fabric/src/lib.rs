//! One-sided verbs as data, the lanes that carry them, and the guarantees of a region of remote memory.
//!
//! A protocol builds an ordered batch of [`Verb`]s, hands it to a [`Lane`] with [`post`] and awaits its completions:
//! that is one round trip. It never asks which network lies underneath; it asks [`Caps`]. The crate also holds the
//! word-copy kernel that all memory-mapped backends share ([`memory`]) and the in-process backend ([`heap`]), which can
//! imitate the guarantees of each network, delay completions, and stop a client at any verb boundary. As the lowest
//! crate it also has what many crates need: a seeded random number generator ([`SplitMix64`]) and exponential backoff
//! ([`Backoff`]).
//!
//! # Guarantees
//! - Batches of one lane take effect in the order they were posted. The verbs of one batch take effect in order where
//!   [`Caps::ordered_read_sampling`] is true; elsewhere as [`PairOrder`] says: a READ may sample late, and a WRITE may
//!   take effect before a READ or an atomic that stands in front of it.
//! - A READ is atomic per aligned 8-byte word, and no more than that.
//! - A WRITE whose client dies may be cut short after any multiple of [`Caps::atomic_write_unit`].
//! - CAS, masked CAS and FETCH-ADD are atomic with respect to each other on the same word; lock words are accessed
//!   by these verbs only.
#![allow(unsafe_code, reason = "the heap backend hands out memory that lanes share")]

mod addr;
mod backoff;
mod caps;
mod clock;
mod error;
pub mod heap;
mod holds;
mod lane;
pub mod memory;
mod ordering;
pub mod process;
pub mod refusal;
mod region;
mod sent;
pub mod signals;
mod splitmix;
mod standard_files;
mod text;
mod traffic;
mod verb;

pub use addr::{Addr, Space, WORD_BYTES};
pub use backoff::Backoff;
pub use caps::{Caps, Fence, MaskedCas, Profile};
pub use clock::clock_ns;
pub use error::{Effect, FabricError};
pub use holds::{HoldSet, SeparateHolds};
pub use lane::{
    Lane, LocalLane, Pause, Post, Submitted, Waiting, pause_until, post, post_in_place, read_in_place, reserve,
    write_in_place,
};
pub use ordering::{PairOrder, VerbClass};
pub use region::{FenceProof, Liveness, RESERVING, Region, SlotHold, check_reserve};
pub use sent::Sent;
pub use splitmix::SplitMix64;
pub use standard_files::StandardFile;
pub use text::{ByteCount, printable, shell_word};
pub use traffic::{Traffic, VerbCounts};
pub use verb::Verb;
