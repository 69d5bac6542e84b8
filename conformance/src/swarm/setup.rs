//! The parameters of a run, all drawn from its seed.

use std::fmt;

use guira_fabric::{Caps, Profile, SplitMix64};
use guira_fabric_sim::{Fault, FaultPlan, Hazard, Network, NodeEvent, Swarm};
use guira_layout::{Preset, PresetOptions, RowId, Rules, TableConfig};
use guira_rcuckoo::Table;

use crate::{Bench, divided, growing};

/// Rows of every table that is not divided, and of each segment of the others: few, so that clients meet and locks are
/// few as well.
pub const ROWS: u64 = 64;
/// Most hot keys of a run.
const MOST_HOT_KEYS: u64 = 8;
/// Approximate number of verbs and round trips per operation.
const VERBS_OF_OPERATION: u64 = 10;
const TRIPS_OF_OPERATION: u64 = 6;
/// Round trips that an impatient client waits for a lock.
const IMPATIENT_TRIPS: u64 = 200;
/// Round trips after which a client in preset `paper` presumes another one dead.
const REPAIR_TRIPS: u64 = 1_000;
/// A patient client's wait for a lock, in nanoseconds: longer than any drawn time.
const PATIENT_NS: u64 = 10_000_000_000;
/// One run in this many may have flipped bits, and one in this many a memory node that restarts; such runs are lost to
/// most other checks.
const RARE: u64 = 10;
/// Path MTUs: the smallest, that of Soft-RoCE, and the largest.
const PACKET_BYTES: [u64; 3] = [256, 1024, 4096];

/// The parameters of a run, as its seed draws them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The seed; all other parameters follow from it.
    pub seed: u64,
    /// The table's preset: `tiny` or `hardened`; `paper` in printed swarms.
    pub preset: Preset,
    /// The fabric's promises and latencies.
    pub profile: Profile,
    /// Bytes of a packet, which is what no death tears, if the profile is that of a queue pair.
    pub packet_bytes: u64,
    /// The table's entry format.
    pub format: &'static str,
    /// The possible lengths of values, in bytes.
    pub lengths: Vec<usize>,
    /// Bytes for extents, if the format has them.
    pub extent_bytes: u64,
    /// Segments of the table; `None` if it is not divided.
    pub segments: Option<u64>,
    /// Segments that the table may grow to, from its `segments`; `None` if it does not grow.
    pub most_segments: Option<u64>,
    /// Concurrent clients.
    pub clients: u32,
    /// Most clients, in all, that may replace one that died or lost its connection.
    pub newcomers: u32,
    /// One client in this many meets each kind of fault that the run has.
    pub clients_per_fault: u64,
    /// Client slots of the table: few more than clients, so that they are reused.
    pub slots: u16,
    /// Operations of each client.
    pub operations: u32,
    /// Percentage of operations that are dropped unless they end soon.
    pub drops_percent: u64,
    /// The number of keys.
    pub keys: u64,
    /// The number of hot keys, which are the first ones and the target of half of all operations; 0 if all keys are
    /// alike.
    pub hot_keys: u64,
    /// The number of keys that are put before the clients start.
    pub filled_keys: u64,
    /// A client's deadline for a lock, in nanoseconds of virtual time.
    pub deadline_ns: u64,
    /// The kinds of faults that may happen; the plan has some of them.
    pub hazards: Vec<Hazard>,
}

impl Setup {
    /// Draws the parameters of `seed`.
    pub fn of_seed(seed: u64) -> Setup {
        // The run itself draws from another stream.
        let mut rng = SplitMix64(seed ^ 0x5365_7475_7020_6f66);
        let preset = [Preset::Tiny, Preset::Hardened][rng.below(2) as usize];
        // Shared memory, where every change leaves a record, is drawn twice as often.
        let profile = [&Profile::ALL[..], &[Profile::Shm]].concat()[rng.below(5) as usize];
        let has_extents = rng.below(2) == 0;
        let clients = 2 + rng.below(10) as u32;
        let hot_keys = 1 + rng.below(MOST_HOT_KEYS);
        // Few keys, or about as many as the table holds: 3 entries a row in `tiny`, 6 or 7 in `hardened`.
        let mut segment_rng = SplitMix64(seed ^ 0x7365_676d_656e_7473);
        let segments = [None, None, None, Some(1), Some(3)][segment_rng.below(5) as usize];
        let most_segments = segments.filter(|_| segment_rng.below(2) == 0).map(|_| 8);
        // A table that grows has about as many keys as twice its segments hold.
        let room_segments = segments.unwrap_or(1) * if most_segments.is_some() { 2 } else { 1 };
        let room = ROWS * room_segments * if preset == Preset::Tiny { 3 } else { 6 };
        let (keys, hot_keys) = match rng.below(3) {
            0 => (hot_keys, hot_keys),
            1 => (room * (75 + rng.below(50)) / 100, hot_keys),
            // All keys are alike: entries move all the time, and lookups meet them.
            _ => (room * (110 + rng.below(40)) / 100, 0),
        };
        let chunk_bytes = if preset == Preset::Tiny { 4 << 10 } else { 64 << 10 };
        let mut hazards =
            vec![Hazard::Death, Hazard::Stall, Hazard::Delay, Hazard::Disconnection, Hazard::Split, Hazard::Swap];
        for rare in [Hazard::Flip, Hazard::Restart] {
            hazards.extend((rng.below(RARE) == 0).then_some(rare));
        }
        hazards.extend(Hazard::QUEUE_PAIR);
        Setup {
            seed,
            preset,
            profile,
            packet_bytes: PACKET_BYTES[SplitMix64(seed ^ 0x7061_636b_6574_7321).below(3) as usize],
            format: if has_extents { "bytes:24" } else { "fixed:8:8" },
            // Values in rows, in slots of a small class, in slots of a larger class, and in a run of chunks.
            lengths: if has_extents { vec![9, 40, 700, chunk_bytes as usize + 100] } else { vec![8] },
            extent_bytes: chunk_bytes * (4 + rng.below(40)),
            segments,
            most_segments,
            clients,
            newcomers: clients * rng.below(5) as u32,
            clients_per_fault: [1, 2, 4][rng.below(3) as usize],
            slots: clients as u16 + rng.below(3) as u16,
            operations: 20 + rng.below(40) as u32,
            drops_percent: [0, 0, 3, 30][rng.below(4) as usize],
            keys,
            hot_keys,
            filled_keys: match (rng.below(4), most_segments) {
                (0, _) => 0,
                (_, None) => keys * (70 + rng.below(31)) / 100,
                // The first splits are not far.
                (_, Some(_)) => keys * (35 + rng.below(16)) / 100,
            },
            deadline_ns: if rng.below(2) == 0 { PATIENT_NS } else { IMPATIENT_TRIPS * round_trip_ns(profile) },
            hazards,
        }
    }

    /// Draws the parameters of `seed` for a swarm in preset `paper`, with values in rows and without faults; only a
    /// queue pair takes its liberties.
    pub fn printed(seed: u64) -> Setup {
        let drawn = Setup::of_seed(seed);
        let mut rng = SplitMix64(seed ^ 0x7072_696e_7465_6421);
        let keys = 6 * ROWS * (40 + rng.below(60)) / 100;
        Setup {
            preset: Preset::Paper,
            segments: None,
            most_segments: None,
            format: "fixed:8:8",
            lengths: vec![8],
            newcomers: 0,
            slots: drawn.clients as u16 + 1,
            operations: 20 + rng.below(60) as u32,
            drops_percent: 0,
            keys,
            hot_keys: drawn.hot_keys.min(keys),
            filled_keys: keys * (50 + rng.below(51)) / 100,
            deadline_ns: PATIENT_NS,
            hazards: [&Hazard::QUEUE_PAIR[..], &[Hazard::Swap]].concat(),
            ..drawn
        }
    }

    /// Returns the promises of the run's fabric.
    pub fn caps(&self) -> Caps {
        let caps = self.profile.caps();
        let is_queue_pair = !caps.ordered_read_sampling;
        Caps { atomic_write_unit: if is_queue_pair { self.packet_bytes } else { caps.atomic_write_unit }, ..caps }
    }

    /// Creates the run's table, under the promises of its fabric.
    pub fn bench(&self) -> Bench {
        let Bench { region, table } = Bench::of_config(self.config(), self.profile, self.seed);
        Bench { region: region.with_caps(self.caps()), table }
    }

    /// Returns how long a lock or lease has to be unchanged before its holder is presumed dead, in preset `paper`:
    /// longer than any operation or repair of a live client takes by itself.
    pub fn repair_timeout_ns(&self) -> u64 {
        2_000_000 + REPAIR_TRIPS * round_trip_ns(self.profile)
    }

    /// Returns the table's configuration. A swarm in preset `paper` has the locks, the commits and the repair of the
    /// printed protocol; but changes lock both rows of their key and misses are validated, which closes holes that no
    /// death opens.
    ///
    /// # Panics
    /// If no table can have these parameters, which no seed draws.
    pub fn config(&self) -> TableConfig {
        let options = PresetOptions {
            capacity: 1,
            format: self.format.parse().expect("a valid format"),
            extent_bytes: Some(self.extent_bytes),
            max_clients: Some(self.slots),
            hash_seed: self.seed,
            device_bytes: self.caps().device_bytes,
        };
        let config = self.preset.config_of_rows(ROWS, &options).expect("valid parameters");
        let rules = Rules { lock_both_rows: true, validate_misses: true, ..config.rules };
        let config = TableConfig { rules, ..config };
        match (self.segments, self.most_segments) {
            (None, _) => config,
            (Some(segments), None) => divided(config, segments),
            (Some(segments), Some(most)) => growing(config, segments as u32, most),
        }
    }

    /// Draws the fault plan.
    pub fn plan(&self, table: &Table) -> FaultPlan {
        let swarm = Swarm {
            caps: self.caps(),
            clients: self.clients + self.newcomers,
            newcomers_from: self.clients,
            verbs_each: VERBS_OF_OPERATION * u64::from(self.operations),
            span_ns: TRIPS_OF_OPERATION * u64::from(self.operations) * round_trip_ns(self.profile),
            clients_per_fault: self.clients_per_fault,
            hazards: self.hazards.clone(),
            flips: vec![(table.geometry().row(RowId(0)), table.rows().row_words() as u64 * table.config().rows)],
        };
        swarm.draw(self.seed)
    }

    /// Returns the interval at which clients are replaced, in nanoseconds.
    pub fn replace_interval_ns(&self) -> u64 {
        10 * round_trip_ns(self.profile)
    }

    /// Whether no client has a reason to give up waiting for a lock, because its holder continues before the deadline,
    /// or is recovered. There are two reasons: a memory node that restarts, and a row with flipped bits whose lock a
    /// dead client holds, because lookups do not recover clients.
    pub fn is_patient(&self, plan: &FaultPlan) -> bool {
        let goes_on = |fault: &Fault| matches!(fault, Fault::Stall { .. } | Fault::DelayTail { .. });
        let all_go_on = plan.clients.iter().all(|fault| goes_on(&fault.fault));
        let is_no_reason = |fault: &NodeEvent| matches!(fault, NodeEvent::Flip { .. }) && all_go_on;
        self.deadline_ns == PATIENT_NS && plan.node.iter().all(|fault| is_no_reason(&fault.fault))
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: preset {}, format {}, segments {:?} to {:?}, profile {} (packets of {} bytes over a queue pair); {} clients in {} \
             slots, up to {} newcomers, {} operations each, {} % of them dropped; one in {} clients meets each kind of \
             fault; {} keys, {} of them hot, {} put first; values of {:?} bytes, {} bytes for extents; deadline {} ns; \
             hazards {:?}",
            self.seed,
            self.preset,
            self.format,
            self.segments,
            self.most_segments,
            self.profile,
            self.packet_bytes,
            self.clients,
            self.slots,
            self.newcomers,
            self.operations,
            self.drops_percent,
            self.clients_per_fault,
            self.keys,
            self.hot_keys,
            self.filled_keys,
            self.lengths,
            self.extent_bytes,
            self.deadline_ns,
            self.hazards
        )
    }
}

/// Returns the longest round trip of a batch to the memory node, without waits for its link.
pub fn round_trip_ns(profile: Profile) -> u64 {
    let network = Network::of(profile);
    network.to_node_ns + network.to_client_ns + network.fetch_ns + 2 * network.jitter_ns
}
