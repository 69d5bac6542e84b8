//! Comparison of Guira with its alternatives, and with the limits of the machine, in one run.
//!
//! | system | description | two clients are |
//! |---|---|---|
//! | Guira | this project's table, by its public API | two processes |
//! | raw memory | reads of the same memory without a protocol: the physical limit | two processes |
//! | dashmap, papaya | concurrent maps with a fast hash: the local limit | two threads |
//! | LMDB | a B+ tree in a mapped file, never flushed | two processes |
//! | Redis, memcached | servers on Unix sockets, nothing written to disk | two processes |
//!
//! [`run_tcp`] compares a memory node with Redis and memcached over TCP, and [`run_growth`] how Guira, dashmap and Redis
//! take keys while they grow.
//!
//! This crate owns the clients of the compared systems, the servers it starts for them, and the report. It owns no part
//! of Guira's protocol and uses its public API. Invariants: all systems hold the same records and get the same
//! operations in the same order; the answer to every lookup is checked; every process and file of the run is gone when
//! the run ends, however it ends.
#![forbid(unsafe_code)]

mod draws;
mod error;
mod growth;
mod helper;
mod load;
mod machine;
mod measure;
mod plan;
mod plot;
mod record;
mod run;
mod server;
mod systems;
mod targets;
mod tcp;
mod testbed;
mod text;
mod versions;

pub use draws::Popularity;
pub use error::PeersError;
pub use growth::{
    AfterGrowth, Costs, Curve, GROWTH_SCHEMA, GrowthOptions, GrowthRatio, GrowthReport, Series, TableCosts, Window,
    growth_human, growth_markdown, growth_svg, run_growth, serve_inserter,
};
pub use helper::serve as serve_helper;
pub use load::ProgressFn;
pub use machine::Machine;
pub use measure::Task;
pub use plan::{Needs, Options, Placement, System};
pub use plot::svg;
pub use run::{Cell, Peer, Prepared, Report, SCHEMA, StageReport};
pub use targets::{Bound, Target};
pub use tcp::{
    Figure, Mix, Ratio, Spread, TCP_SCHEMA, TcpCell, TcpOptions, TcpReport, TcpTarget, TcpWay, run_tcp, serve_bare,
    tcp_human, tcp_markdown, tcp_svg,
};
pub use text::{human, markdown};
