//! What Guira is compared with: what a user would pick instead, and the limits of the machine, in one run.
//!
//! | contender | is | two clients are |
//! |---|---|---|
//! | Guira | this project's table, by its public API | two processes |
//! | raw memory | reads of the same memory without any protocol: the physical limit | two processes |
//! | dashmap, papaya | concurrent maps with a fast hash: the local limit | two threads |
//! | LMDB | a B+ tree in a mapped file, never flushed | two processes |
//! | Redis, memcached | servers on Unix sockets, nothing written to disk | two processes |
//!
//! Over TCP, Redis and memcached are compared with a memory node: [`run_tcp`].
//!
//! This crate owns the contenders, the servers it starts for them, and the report; it owns no protocol of Guira's and
//! uses the public API. Invariants: the contenders hold the same records and get the same operations in the same order;
//! every look-up's answer is checked; whatever was started is gone when the run ends, in any way it ends.
#![forbid(unsafe_code)]

mod draws;
mod error;
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
