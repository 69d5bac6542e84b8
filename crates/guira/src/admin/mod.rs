//! Administration of tables: statistics, checks, repairs, copies, the list of a host's tables, and what a host needs
//! for them. Memory nodes are started by [`Store::serve`](crate::Store::serve).

pub use guira_check::{
    Cause, CheckReport, ChunkCounts, ClassStats, OwnerChunks, Problem, ProblemKind, SpaceStats, Stage, TableStats,
};
pub use guira_fabric::{ByteCount, printable, shell_word};
pub use guira_network::client::Endpoint;
pub use guira_network::node::{NodeCounters, NodeEvent, NodeEventKind, TokenNumber};
pub use guira_network::wire::Fabric;

mod copy;
mod doctor;
mod grow;
mod list;
pub(crate) mod repair;
pub(crate) mod slot_locks;
pub(crate) mod stat;

pub use self::copy::{CopyEvent, CopyObserver, CopyOptions, CopyReport, CopyStage};
pub use self::doctor::{CheckState, DoctorCheck, DoctorOptions, DoctorReport, doctor};
pub use self::list::{ClientCounts, ListedState, ListedTable, TableSummary, list};
pub use self::repair::{FailedRecovery, Killed, LivingClient, RecoveredClient, RecoveryReport};
pub use self::stat::{ChangeCount, ClientStat, ClientState, FileStat, NodeStat, RegionStat, Stat};
pub use crate::scan::{DamageVisitor, Unreadable, Visitor};
