//! A deterministic simulated fabric: one memory node and many clients in one thread and in virtual time.
//!
//! Clients are tasks of a [`Sim`]. The verbs of a batch arrive at the node one by one, after delays that the
//! [`Network`] gives and the seed varies, so the batches of different clients interleave between verbs; the reply
//! arrives when the last verb is done. No real clock is read: equal seeds give equal runs, down to the hash of all
//! events ([`Sim::log_hash`]).
//!
//! A [`Cluster`] models more than latencies: network cards of a [`Card`] kind, links in both directions, and client
//! hosts whose clients share a card. There a verb takes effect when it is served, and [`Sim::usage`] tells which
//! [`Resource`] bounds a run:
//!
//! ```
//! # use guira_fabric::heap::HeapRegion;
//! # use guira_fabric::{Addr, Profile, Region, Verb, post};
//! # use guira_fabric_sim::{Card, Cluster, Resource, Sim, SimOptions};
//! let bytes = HeapRegion::new(4096, 64, Profile::Mlx5.caps());
//! let mut sim = Sim::new(bytes, &SimOptions::on_cluster(1, Cluster::new(Card::ConnectX5)));
//! for client in 0..80 {
//!     sim.spawn_on(client % 8, |region| async move {
//!         let (mut lane, mut found) = (region.lane(), 0);
//!         loop {
//!             let add = Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found };
//!             post(&mut lane, [add]).await.expect("nothing fails here");
//!         }
//!     });
//! }
//! sim.run_until(100_000);
//! let before = sim.usage();
//! sim.run_until(200_000);
//! assert_eq!(sim.usage().since(&before).busiest().0, Resource::BusiestWord);
//! ```
//!
//! A region has memory everywhere. A client that reserves some waits for the node's processor nevertheless, as that of
//! a real node makes it, in a [`Cluster`]; in a [`Network`] that takes no time. A [`MemoryLimit`] makes the node refuse some.
//!
//! A node may have a [`Service`], which answers requests ([`SimLane::call`]) on its processor, in a [`Cluster`] for a price:
//! with it, systems with remote procedure calls are measured beside those without.
//!
//! An [`Element`] between the clients and the node, such as a switch, sees every verb in one order, and may rewrite it.
//!
//! A [`FaultPlan`] lists the faults of a run: clients die before any verb or inside a WRITE, stall, or lose their
//! connection; batches are split; a fabric that promises no more than a queue pair ([`guira_fabric::PairOrder`]) takes
//! each liberty; the memory node restarts empty, some of its bits flip, its service stalls, or the element forgets
//! everything. A [`Swarm`] draws plans at random.
//!
//! The bytes are those of a [`guira_fabric::heap::HeapRegion`], whose [`guira_fabric::Caps`] are the guarantees of the
//! simulation, so it can model each real fabric:
//!
//! ```
//! use guira_fabric::heap::HeapRegion;
//! use guira_fabric::{Addr, Profile, Region, Verb, post};
//! use guira_fabric_sim::{Network, Sim, SimOptions, Stopped};
//!
//! let bytes = HeapRegion::new(4096, 64, Profile::Mlx5.caps());
//! let mut sim = Sim::new(bytes, &SimOptions::new(1, Network::of(Profile::Mlx5)));
//! for _ in 0..10 {
//!     sim.spawn(|region| async move {
//!         let mut lane = region.lane();
//!         let mut found = 0;
//!         let add = Verb::FetchAdd { addr: Addr::device(0), add: 1, found: &mut found };
//!         post(&mut lane, [add]).await.expect("nothing fails here");
//!     });
//! }
//! assert_eq!(sim.run(), Stopped::Ended);
//! assert_eq!(sim.verbs(), 10);
//! assert!(sim.now_ns() > 2_000, "a round trip takes microseconds");
//! ```
#![forbid(unsafe_code)]

mod batch;
mod card;
mod client;
mod draws;
mod element;
mod fault;
mod inject;
mod lane;
mod lane_state;
mod latencies;
pub mod load;
mod log;
mod network;
mod queue;
mod running;
mod service;
mod sim;
mod swarm;
mod world;

pub use card::{Card, CardParameters, Cluster, HostParameters, NodeParameters, Resource, UnknownCard, Usage};
pub use element::{Element, Passing, Rewrite};
pub use fault::{ClientFault, Fault, FaultPlan, Lost, MemoryLimit, NodeEvent, NodeFault, Relaxations};
pub use lane::{Calls, SimLane, SimRegion};
pub use log::{Event, EventKind, Part};
pub use network::{HEADER_BYTES, Network};
pub use service::{Service, Work};
pub use sim::{ClientId, Model, Sim, SimOptions, Stopped};
pub use swarm::{EARLY_VERBS, Hazard, Swarm};
