//! Clients and their load in a simulation: the real protocol, in virtual time.
//!
//! [`SimClient`] is the client of swarms, storms and figures alike. A [`FilledTable`] holds the records of a run: it is
//! filled once, and forked for each run that starts from it. [`run`] carries out a [`Run`] on a [`Testbed`], and checks
//! what the clients did: histories of sampled records are linearizable, no record is lost, and at the end the table is
//! sound and no lock is held. [`run_store`] carries out a [`Load`] on any other store in the same way.
//!
//! Everything is a function of the parameters and their seeds.
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use guira_fabric::Profile;
//! use guira_fabric_sim::Network;
//! use guira_lab::simulated::{Audit, Compute, Deaths, FillPlan, FilledTable, Load, Mix, Queues, Run, run};
//! use guira_lab::steady::Span;
//! use guira_layout::{Preset, PresetOptions};
//! use guira_rcuckoo::ClientConfig;
//!
//! let caps = Profile::Mlx5.caps();
//! let options = PresetOptions {
//!     capacity: 2_000,
//!     format: "fixed:4:4".parse()?,
//!     extent_bytes: None,
//!     max_clients: Some(16),
//!     hash_seed: 1,
//!     device_bytes: caps.device_bytes,
//! };
//! let config = Preset::Hardened.config(&options)?;
//! let plan = FillPlan { config, caps, records: 1_800, value_bytes: None, insert_row: None, seed: 1 };
//! let filled = FilledTable::new(&plan, &mut |_| ControlFlow::Continue(()))?;
//! let client_config = ClientConfig::for_table(filled.table()).across(&caps);
//! let load = Load {
//!     seed: 1,
//!     clients: 16,
//!     hosts: 2,
//!     in_flight: 1,
//!     mix: Mix::YCSB_A,
//!     theta: 0.99,
//!     warm_ns: 100_000,
//!     span: Span::Exactly(1_000_000),
//!     most_inserts: u64::MAX,
//!     compute: Compute::default(),
//! };
//! let a = Run {
//!     load,
//!     deaths: Deaths::NONE,
//!     queues: Queues::PerHost,
//!     predictor_bytes: 0,
//!     client_config,
//!     knows_locks: false,
//!     audit: Audit::Whole,
//! };
//! let network = Network::of(Profile::Mlx5);
//! let stats = run(&a, filled.fork()?, &network, &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!(stats.violations, Vec::<String>::new());
//! println!("{:.2} million operations a second", stats.counts.per_second(stats.steadiness.span_ns) / 1e6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod audit;
mod client;
mod filled;
mod in_flight;
mod load;
mod lock_element;
mod predictors;
mod records;
mod run;
mod splits;
mod stores;
mod watch;
mod worker;

pub use client::{Claim, Failure, SimClient};
pub(crate) use filled::ready;
pub use filled::{FillError, FillPlan, FillProgress, FilledTable, available_bytes};
pub use load::run;
pub use lock_element::LockElement;
pub use records::{LOADED, Records, Repeats, ValueError};
pub use run::{Audit, ClientTask, Compute, Deaths, Load, Mix, Queues, Run, RunError, RunStats, Testbed, Victims};
pub use splits::SplitStats;
pub use stores::run_store;
