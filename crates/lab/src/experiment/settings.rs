//! The settings of one experiment as plain data.

use guira::EntryFormat;
use serde::{Deserialize, Serialize};

use super::parameters::{self, Value};
use super::{Kind, LabError};

/// A named set of protocol parameters, which the others change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// The hardened protocol that Guira's users run.
    #[default]
    Guira,
    /// The protocol as the paper prints it.
    AsPrinted,
    /// The messages that the authors' published code sends. It verifies nothing that it reads.
    AsRun,
    /// Linear probing in a table that is built once, and then only read.
    Linear,
    /// 3-way cuckoo hashing in a table that is built once, and then only read.
    Cuckoo,
    /// Records at known places, read by calls of a service: the least that a memory node's processor can do.
    Dummy,
    /// Clover: chains of values, whose ends clients cache, and a metadata server at the memory node.
    Clover,
}

impl Setting {
    /// Returns the name in plan files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Setting::Guira => "guira",
            Setting::AsPrinted => "as-printed",
            Setting::AsRun => "as-run",
            Setting::Linear => "linear",
            Setting::Cuckoo => "cuckoo",
            Setting::Dummy => "dummy",
            Setting::Clover => "clover",
        }
    }
}

/// A network card, as a set of parameters of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Card {
    /// ConnectX-3.
    #[serde(rename = "connectx-3")]
    ConnectX3,
    /// ConnectX-5, which the paper measured.
    #[default]
    #[serde(rename = "connectx-5")]
    ConnectX5,
    /// ConnectX-6.
    #[serde(rename = "connectx-6")]
    ConnectX6,
    /// ConnectX-7.
    #[serde(rename = "connectx-7")]
    ConnectX7,
}

/// A mix of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// 50 % reads, 50 % updates: YCSB-A.
    #[default]
    A,
    /// 95 % reads, 5 % updates: YCSB-B.
    B,
    /// Reads only: YCSB-C.
    C,
    /// Inserts only: the paper's W.
    W,
    /// 50 % reads, 50 % inserts: A in the paper's figure 7.
    AInsert,
    /// 95 % reads, 5 % inserts: B in the paper's figure 7.
    BInsert,
}

impl Mix {
    /// Whether operations of this kind are part of the mix.
    pub fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Operation => true,
            Kind::Read => self != Mix::W,
            Kind::Update => matches!(self, Mix::A | Mix::B),
            Kind::Insert => matches!(self, Mix::W | Mix::AInsert | Mix::BInsert),
        }
    }
}

/// The use of local queues in front of the table's locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queue {
    /// The clients of a host share queues, and their blind writes are combined.
    #[default]
    Host,
    /// Every client is alone.
    None,
}

/// The way in which a key's two rows are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hashing {
    /// The second row is near the first.
    Dependent,
    /// The second row is anywhere.
    Independent,
}

/// The row that a new key goes to if both of its rows have a free entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InsertRow {
    /// The first of the two.
    Primary,
    /// The row with more free entries.
    Emptier,
}

/// The way in which lookups treat a key of which their predictor knows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guess {
    /// At most 2 % of lookups read a row in vain; the others read both rows.
    Rationed,
    /// It reads one row, and the other one if that does not have the key.
    Always,
}

/// The way in which lookups of other stores than RCuckoo read a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lookup {
    /// Linear probing: READs of a fixed number of slots.
    Fixed,
    /// Linear probing: READs of as many slots as the model finds cheapest, but no more than fill the link.
    Variable,
    /// Linear probing: READs of as many slots as the model finds cheapest.
    Unbounded,
    /// Cuckoo hashing: READs of all candidates at once.
    Parallel,
    /// Cuckoo hashing: READs of one candidate after the other, until one has the key.
    Sequential,
    /// Cuckoo hashing: READs of all candidates, one after the other.
    SequentialAll,
}

/// Where other stores than RCuckoo have their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordLayout {
    /// In the slots of the table.
    Inline,
    /// In a heap beside the table.
    Heap,
}

/// The costs of READs by which the model of linear probing computes their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadCosts {
    /// Those that the paper prints.
    Printed,
    /// Those of the modelled cluster, measured before the run.
    Measured,
}

/// The verbs that an element in front of the memory node rewrites: with Clover it sends some to the end of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steered {
    /// Changes whose client knows another entry.
    Changes,
    /// Changes and lookups.
    All,
    /// Changes, as the paper has it: also to entries whose CAS is still on its way, which loses some.
    ChangesAsPrinted,
    /// Of RCuckoo: tries to take locks that the element knows to be taken, which go on as READs.
    Locks,
}

/// The search for a cuckoo path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Search {
    /// Shortest paths first.
    BreadthFirst,
    /// One path, as deep as it may be.
    DepthFirst,
}

/// The rows that an update reads with its locks, with setting `as-run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateReads {
    /// All rows of the locks, and those between them.
    Covering,
    /// The two rows of the key.
    Single,
}

/// The settings of one experiment. A field that is `None` has the value of the [`Setting`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Experiment {
    /// The protocol.
    pub setting: Setting,
    /// The network card of every host.
    pub nic: Card,
    /// Number of hosts with clients. With fewer clients than hosts, the other hosts have none.
    pub hosts: u32,
    /// Number of clients, each a thread, spread evenly over the hosts.
    pub clients: u32,
    /// Operations that a client carries out at once, each on a lane of its own.
    pub in_flight: u32,
    /// Threads of a host that are near its card; 12 if `None`. The others need longer for each message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near_threads: Option<u32>,
    /// Speed of every link, in Gbit/s; that of the network card if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_gbps: Option<u32>,
    /// The mix of operations.
    pub workload: Mix,
    /// The Zipf exponent of the popularity of keys: 0 is uniform.
    pub theta: f64,
    /// Number of entries of the table, empty ones included.
    pub entries: u64,
    /// Part of the entries that is filled before the measurement, in percent.
    pub fill: f64,
    /// Part of the entries at which the measurement ends, in percent: it lasts until inserts have filled the table so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_to: Option<f64>,
    /// Format of the entries.
    #[serde(with = "format_text")]
    pub format: EntryFormat,
    /// Bytes of a value, with format `bytes:N`; 8 if `None`. Values that do not fit in a row are in extents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_bytes: Option<u32>,
    /// Local queues in front of the table's locks.
    pub queue: Queue,
    /// KiB of a client's predictor of the row that has a key; 0 for none. Clients that share local queues share their
    /// predictors, too.
    pub predictor_kib: u32,
    /// The way in which lookups treat a key of which their predictor knows nothing: at most 2 % may read a row in vain if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guess: Option<Guess>,
    /// The locality factor f of dependent hashing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Rows that share a lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_per_lock: Option<u32>,
    /// Width of a lock, in bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_bits: Option<u8>,
    /// Locks that one message may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locks_per_message: Option<u8>,
    /// Entries of a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries_per_row: Option<u8>,
    /// The largest READ that covers both rows of a lookup, in bytes. Rows further apart are read by two READs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub covering_bytes: Option<u32>,
    /// The way in which a key's two rows are chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hashing: Option<Hashing>,
    /// The row that a new key goes to if both of its rows have a free entry; always the first one with setting
    /// `as-printed`, and with a predictor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insert_row: Option<InsertRow>,
    /// The search for a cuckoo path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
    /// Time that a search takes for each full row that it visits, in nanoseconds; with setting `as-run` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search_row_ns: Option<u32>,
    /// The rows that an update reads with its locks, with setting `as-run`; those of the key if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_reads: Option<UpdateReads>,
    /// Moves of the longest cuckoo path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u8>,
    /// Where records are, with settings `linear` and `cuckoo`: in the slots if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<RecordLayout>,
    /// Records of a slot, with setting `cuckoo`: 1 or 4; 4 if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub associativity: Option<u8>,
    /// The way in which lookups read a table. If `None`, READs have a fixed size with setting `linear`, and all candidates
    /// are read at once with setting `cuckoo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup: Option<Lookup>,
    /// Slots that a READ of a fixed size fetches, with setting `linear`; 256 bytes of them if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_slots: Option<u32>,
    /// The fill by which the model computes the size of READs, in percent; that of the table if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assumed_fill: Option<f64>,
    /// Largest clusters that a client tracks, with setting `linear`, to choose the size of READs by them; none if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters: Option<u32>,
    /// The Zipf exponent by which the keys of records repeat, with setting `linear`; they do not if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_theta: Option<f64>,
    /// The costs of READs by which the model computes their size: the printed ones if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_costs: Option<ReadCosts>,
    /// Threads of the memory node's service, with settings `dummy` and `clover`; 1 if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_threads: Option<u32>,
    /// Keys that a client caches, with setting `clover`, at first the most popular ones; as many as there are entries if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_keys: Option<u32>,
    /// The verbs that an element in front of the memory node rewrites, with settings `clover`, `guira` and `as-printed`;
    /// there is none if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steering: Option<Steered>,
    /// Time after a change at which its shortcut is written, in microseconds, with setting `clover`; 0 if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortcut_lag_us: Option<f64>,
    /// Keys of which the element knows the end of the chain, the most popular ones; all if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub element_keys: Option<u32>,
    /// Time that a client's software computes for an operation, in microseconds, with setting `clover`; 0 if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_us: Option<f64>,
    /// Time after which a client suspects that the holder of a lock is dead, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<f64>,
    /// Clients that die in the middle of a change, a second. Each is replaced at once.
    pub deaths_per_second: f64,
    /// Virtual time that is measured, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span_us: Option<f64>,
    /// Virtual time before the measurement, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_us: Option<f64>,
}

impl Default for Experiment {
    /// The paper's figure 6(c) at 320 clients, with Guira's protocol.
    fn default() -> Experiment {
        Experiment {
            setting: Setting::Guira,
            nic: Card::ConnectX5,
            hosts: 8,
            clients: 320,
            in_flight: 1,
            near_threads: None,
            link_gbps: None,
            workload: Mix::A,
            theta: 0.99,
            entries: 100_000_000,
            fill: 90.0,
            fill_to: None,
            format: EntryFormat::Fixed { key_bytes: 4, value_bytes: 4 },
            value_bytes: None,
            queue: Queue::Host,
            predictor_kib: 0,
            guess: None,
            factor: None,
            rows_per_lock: None,
            lock_bits: None,
            locks_per_message: None,
            entries_per_row: None,
            covering_bytes: None,
            hashing: None,
            insert_row: None,
            search: None,
            search_row_ns: None,
            update_reads: None,
            depth: None,
            layout: None,
            associativity: None,
            lookup: None,
            read_slots: None,
            assumed_fill: None,
            clusters: None,
            key_theta: None,
            read_costs: None,
            node_threads: None,
            cache_keys: None,
            steering: None,
            shortcut_lag_us: None,
            element_keys: None,
            compute_us: None,
            timeout_ms: None,
            deaths_per_second: 0.0,
            span_us: None,
            warm_us: None,
        }
    }
}

impl Experiment {
    /// Returns the experiment with another value of one parameter, named as in a plan file. The result is not checked
    /// against the other parameters: see [`Experiment::check`].
    ///
    /// # Errors
    /// [`LabError::UnknownParameter`] or [`LabError::Value`].
    pub fn with(&self, parameter: &str, value: &Value) -> Result<Experiment, LabError> {
        parameters::with(self, parameter, value)
    }

    /// Checks the relations between the parameters, and the bounds of those that were set directly.
    ///
    /// # Errors
    /// [`LabError::Value`] for the first parameter that is out of bounds, [`LabError::Conflict`] for two that do not go
    /// together.
    pub fn check(&self) -> Result<(), LabError> {
        parameters::check(self)
    }

    /// Returns the value of a parameter, named as in a plan file; `None` if there is no such parameter, or if the
    /// setting decides its value.
    pub fn value_of(&self, parameter: &str) -> Option<Value> {
        parameters::value_of(self, parameter)
    }
}

/// An entry format as text.
mod format_text {
    use guira::EntryFormat;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(format: &EntryFormat, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(format)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<EntryFormat, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
