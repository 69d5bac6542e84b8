//! The parameters of a run, all drawn from its seed.

use std::fmt;

use guira_fabric::{Caps, Profile, SplitMix64};
use guira_fabric_sim::{
    ClientFault, ClientId, Fault, FaultPlan, Hazard, Lost, MemoryLimit, Network, NodeEvent, NodeFault, Swarm,
};
use guira_layout::{Preset, PresetOptions, RowId, Rules, Segments, TableConfig};
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
/// One run in this many has a table that grows throughout: [`Setup::growing`].
const GROWING: u64 = 10;
/// Segments that such a table may have: so few that it becomes full, or more than a run splits.
const MOST_SEGMENTS: [u64; 4] = [16, 64, 256, 256];
/// Verbs of a split, from the WRITE of its new segment on: more than stand in front of the releases.
const VERBS_OF_SPLIT: u64 = 10;
/// Verbs of a split in front of the WRITE of the old segment: the new one and the record.
const VERBS_BEFORE_OLD: u64 = 2;
/// Most reservations that a memory node grants before a shortage of memory begins: each split makes one or two.
const MOST_GRANTS: u64 = 24;
/// The shortest interval between resets of an element, and how many there are, each twice the one before.
const RESET_INTERVAL_NS: u64 = 1_000;
const RESET_INTERVALS: u64 = 8;
/// Path MTUs: the smallest, that of Soft-RoCE, and the largest.
pub(super) const PACKET_BYTES: [u64; 3] = [256, 1024, 4096];

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
    /// Entries of a row; `None` for as many as the preset has.
    pub row_entries: Option<u8>,
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
    /// Percentage of operations that put or insert a key which was not put first, to make the table grow.
    pub growth_percent: u64,
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
    /// Whether the memory node has a card, before which verbs wait, instead of a network of latencies.
    pub is_on_cluster: bool,
}

impl Setup {
    /// Draws the parameters of `seed`.
    pub fn of_seed(seed: u64) -> Setup {
        match SplitMix64(seed ^ 0x6772_6f77_696e_6721).below(GROWING) {
            0 => Setup::growing(seed),
            _ => Setup::any(seed),
        }
    }

    /// Draws the parameters of `seed` for a table that is split many times while clients work, some of which die or are
    /// stopped in the middle of a split, or are stopped while others split.
    pub fn growing(seed: u64) -> Setup {
        let drawn = Setup::any(seed);
        let mut rng = SplitMix64(seed ^ 0x6772_6f77_746f_6673);
        let segments = 1 + rng.below(3);
        // The fewer entries a segment has, the sooner it is split.
        let row_entries = [1, 1, 1, 2, 3][rng.below(5) as usize];
        let operations = 100 + rng.below(200) as u32;
        let clients = 3 + rng.below(6) as u32;
        let filled_keys = ROWS * u64::from(row_entries) * rng.below(4);
        let growth_percent = 40 + rng.below(50);
        let new_keys = u64::from(clients * operations) * growth_percent / 100;
        Setup {
            segments: Some(segments),
            most_segments: Some(MOST_SEGMENTS[rng.below(4) as usize]),
            row_entries: Some(row_entries),
            // The longest WRITE is that of a segment.
            lengths: drawn.lengths.into_iter().filter(|length| *length <= 1_000).collect(),
            extent_bytes: drawn.extent_bytes * 4,
            clients,
            newcomers: clients * rng.below(4) as u32,
            slots: clients as u16 + rng.below(3) as u16,
            operations,
            growth_percent,
            keys: filled_keys + new_keys,
            hot_keys: drawn.hot_keys.min(filled_keys),
            filled_keys,
            hazards: drawn.hazards.into_iter().filter(|hazard| *hazard != Hazard::Restart).collect(),
            ..drawn
        }
    }

    /// Draws the parameters of `seed` for any table, which is split a few times at most.
    fn any(seed: u64) -> Setup {
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
            row_entries: None,
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
            growth_percent: 0,
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
            is_on_cluster: false,
        }
    }

    /// Draws the parameters of `seed` for clients behind an element, which is reset now and then. Between the element and
    /// the memory verbs wait for a card, so that others pass it meanwhile.
    pub fn behind_element(seed: u64) -> Setup {
        let drawn = Setup::any(seed);
        let mut rng = SplitMix64(seed ^ 0x656c_656d_656e_7473);
        let is_of_cards =
            |hazard: &Hazard| !Hazard::QUEUE_PAIR.contains(hazard) && !matches!(hazard, Hazard::Split | Hazard::Swap);
        let hazards = drawn.hazards.iter().copied().filter(is_of_cards).chain([Hazard::ElementReset]);
        Setup {
            profile: Profile::Mlx5,
            // Clients lose their connection with what the element forgets.
            newcomers: drawn.clients * 4,
            hot_keys: (1 + rng.below(2)).min(drawn.keys),
            hazards: hazards.collect(),
            is_on_cluster: true,
            ..drawn
        }
    }

    /// Draws the parameters of `seed` for a swarm in preset `paper`, with values in rows and without faults; only a
    /// queue pair takes its liberties.
    pub fn printed(seed: u64) -> Setup {
        let drawn = Setup::any(seed);
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
        packet_caps(self.profile, self.packet_bytes)
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
        let entries_per_row = self.row_entries.unwrap_or(config.entries_per_row);
        let config = TableConfig { rules, entries_per_row, ..config };
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
        let mut plan = swarm.draw(self.seed);
        if self.is_on_cluster && plan.node.iter().any(|fault| fault.fault == NodeEvent::ResetElement) {
            self.draw_resets(swarm.span_ns, &mut plan.node);
        }
        if self.growth_percent > 0 {
            self.draw_growth_faults(table, &mut plan);
            plan.memory = self.draw_shortage(table);
        }
        plan
    }

    /// Adds resets of the element, at equal intervals, for one run in two: the shortest is shorter than a round trip.
    fn draw_resets(&self, span_ns: u64, node: &mut Vec<NodeFault>) {
        let mut rng = SplitMix64(self.seed ^ 0x7265_7365_7473_2121);
        let interval_ns = RESET_INTERVAL_NS << rng.below(RESET_INTERVALS);
        if rng.below(2) == 0 {
            let at_ns = (0..span_ns / interval_ns).map(|i| i * interval_ns);
            node.extend(at_ns.map(|at_ns| NodeFault { at_ns, fault: NodeEvent::ResetElement }));
        }
    }

    /// Draws a time in which the memory node has no memory for further segments and chunks, for one run in three.
    fn draw_shortage(&self, table: &Table) -> Option<MemoryLimit> {
        let mut rng = SplitMix64(self.seed ^ 0x6e6f_206d_656d_6f72);
        let span_ns = TRIPS_OF_OPERATION * u64::from(self.operations) * round_trip_ns(self.profile);
        let (is_drawn, grants, until_ns) = (rng.below(3) == 0, rng.below(MOST_GRANTS), span_ns / (1 + rng.below(8)));
        let (segments, geometry, config) = (Segments::of(table.config())?, table.geometry(), table.config());
        let [_, first_map] = geometry.segment_bytes(&segments, self.segments? - 1);
        let later = (self.segments?..self.most_segments?).map(|segment| geometry.segment_bytes(&segments, segment));
        // The first segments have some words of the map in common with later ones.
        let later = later.flatten().filter(|part| *part != first_map);
        let chunks = config.initial_chunks.map(|first| geometry.chunk_parts(first..config.chunks));
        let holes = later.chain(chunks.into_iter().flatten()).collect();
        is_drawn.then_some(MemoryLimit { holes, grants, until_ns })
    }

    /// Adds faults in the middle of a split, or of the completion of one, and stalls during which the table grows.
    fn draw_growth_faults(&self, table: &Table, plan: &mut FaultPlan) {
        let mut rng = SplitMix64(self.seed ^ 0x6661_756c_7473_2121);
        let verbs_each = VERBS_OF_OPERATION * u64::from(self.operations);
        let span_ns = TRIPS_OF_OPERATION * u64::from(self.operations) * round_trip_ns(self.profile);
        let words = ROWS * table.rows().row_words() as u64;
        let (has_splitters, has_sleepers) = (rng.below(4) > 0, rng.below(2) == 0);
        for client in (0..self.clients + self.newcomers).map(ClientId) {
            let (kind, after_verbs) = (rng.below(14), rng.below(verbs_each));
            // Half of them while the old segment is written, when both count.
            let verbs = if rng.below(2) == 0 { VERBS_BEFORE_OLD } else { rng.below(VERBS_OF_SPLIT) };
            let time_ns = span_ns >> rng.below(8);
            // Within a segment, or within a record.
            let units = rng.below(words).min(rng.below(words));
            let lost = [Lost::Request, Lost::Reply, Lost::Late { by_ns: time_ns }][rng.below(3) as usize];
            let (hazard, fault, is_long) = match kind {
                0..3 => (Hazard::Death, Fault::Die { units }, false),
                3..6 => (Hazard::Stall, Fault::Stall { for_ns: time_ns }, false),
                6 => (Hazard::Disconnection, Fault::LoseConnection(lost), false),
                7..10 => (Hazard::Stall, Fault::Stall { for_ns: span_ns * (1 + rng.below(8)) }, true),
                _ => continue,
            };
            if !self.hazards.contains(&hazard) || hazard == Hazard::Disconnection && self.caps().local {
                continue;
            }
            let (is_drawn, after_verbs, fault) = match is_long {
                true => (has_sleepers, after_verbs / 8, fault),
                false => (has_splitters, after_verbs / 2, Fault::AfterWrite { words, verbs, then: Box::new(fault) }),
            };
            if is_drawn {
                plan.clients.push(ClientFault { client, after_verbs, fault });
            }
        }
    }

    /// Returns the interval at which clients are replaced, in nanoseconds.
    pub fn replace_interval_ns(&self) -> u64 {
        10 * round_trip_ns(self.profile)
    }

    /// Whether no client has a reason to give up waiting for a lock, because its holder continues before the deadline,
    /// or is recovered. There are two reasons: a memory node that restarts, and a row with flipped bits whose lock a
    /// dead client holds, because lookups do not recover clients.
    pub fn is_patient(&self, plan: &FaultPlan) -> bool {
        fn goes_on(fault: &Fault) -> bool {
            match fault {
                Fault::Stall { .. } | Fault::DelayTail { .. } => true,
                Fault::AfterWrite { then, .. } => goes_on(then),
                Fault::Die { .. } | Fault::LoseConnection(_) => false,
            }
        }
        let all_go_on = plan.clients.iter().all(|fault| goes_on(&fault.fault));
        let is_no_reason = |fault: &NodeEvent| matches!(fault, NodeEvent::Flip { .. }) && all_go_on;
        self.deadline_ns == PATIENT_NS && plan.node.iter().all(|fault| is_no_reason(&fault.fault))
    }
}

/// Whether a fault of the plan may cost a client its connection.
pub(super) fn can_disconnect(plan: &FaultPlan) -> bool {
    fn loses(fault: &Fault) -> bool {
        match fault {
            Fault::LoseConnection(_) => true,
            Fault::AfterWrite { then, .. } => loses(then),
            Fault::Die { .. } | Fault::Stall { .. } | Fault::DelayTail { .. } => false,
        }
    }
    plan.clients.iter().any(|fault| loses(&fault.fault))
        || plan.node.iter().any(|fault| matches!(fault.fault, NodeEvent::Restart | NodeEvent::ResetElement))
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: preset {}, format {}, entries a row {:?}, segments {:?} to {:?}, profile {} (packets of {} bytes \
             over a queue pair); {} clients in {} slots, up to {} newcomers, {} operations each, {} % of them of new \
             keys, {} % of them dropped; one in {} clients meets each kind of fault; {} keys, {} of them hot, {} put \
             first; values of {:?} bytes, {} bytes for extents; deadline {} ns; on a cluster: {}; hazards {:?}",
            self.seed,
            self.preset,
            self.format,
            self.row_entries,
            self.segments,
            self.most_segments,
            self.profile,
            self.packet_bytes,
            self.clients,
            self.slots,
            self.newcomers,
            self.operations,
            self.growth_percent,
            self.drops_percent,
            self.clients_per_fault,
            self.keys,
            self.hot_keys,
            self.filled_keys,
            self.lengths,
            self.extent_bytes,
            self.deadline_ns,
            self.is_on_cluster,
            self.hazards
        )
    }
}

/// Returns the promises of a fabric, with packets of so many bytes if it is that of a queue pair.
pub(super) fn packet_caps(profile: Profile, packet_bytes: u64) -> Caps {
    let caps = profile.caps();
    let is_queue_pair = !caps.ordered_read_sampling;
    Caps { atomic_write_unit: if is_queue_pair { packet_bytes } else { caps.atomic_write_unit }, ..caps }
}

/// Returns the longest round trip of a batch to the memory node, without waits for its link.
pub fn round_trip_ns(profile: Profile) -> u64 {
    let network = Network::of(profile);
    network.to_node_ns + network.to_client_ns + network.fetch_ns + 2 * network.jitter_ns
}
