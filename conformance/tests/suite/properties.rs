//! A table behaves like a map: drawn sequences of operations compared with a model, for every preset, format and
//! profile, and over memory nodes, and all short sequences. After each run the whole table is audited against the
//! model.
//!
//! Preset `paper` inserts under the lock of one row only, so that inserting a key that is in its other row duplicates
//! it (H12, closed by R-LOCK-7): there, existing keys are put instead.

use std::time::Duration;

use guira_conformance::{
    AnyLane, Bench, BenchNode, Model, Observed, Op, ProxyFaults, RdmaDevices, TestClient, divided, growing,
};
use guira_fabric::{Lane, MaskedCas, Profile, Region, SplitMix64};
use guira_layout::{EntryFormat, MAX_KEY_BYTES, MAX_VALUE_BYTES, Preset, PresetOptions};
use guira_rcuckoo::{Change, Error, ErrorKind, NewValue, Outcome};

/// Seeds of each combination.
const SEEDS: u64 = 3;
const OPERATIONS: u64 = 1_500;
/// Operations of a run over a connection, where a round trip takes about a thousand times as long.
const REMOTE_OPERATIONS: u64 = 300;
/// No connection is cut, because a lane that is lost stays lost at this level.
const FAULTS: ProxyFaults = ProxyFaults { longest_delay: Duration::from_micros(200), cut_after_bytes: None };

/// The sizes from which a run draws keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    /// Sizes that fit in a row.
    Inline,
    /// Sizes for rows and for extents, mixed.
    Mixed,
}

/// The executor of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    /// This process's memory, with a fabric's promises.
    Heap,
    /// A memory node, with a connection for each client.
    Node,
    /// A memory node, over connections whose data is split and delayed.
    FaultyNode,
    /// A memory node whose device executes the batches, with a queue pair for each client.
    Rdma,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    preset: Preset,
    format: &'static str,
    profile: Profile,
    backend: Backend,
    sizes: Sizes,
    /// The number of keys; in some cases more than the table holds.
    keys: u64,
    /// Segments of 64 rows; 0 if the table is not divided.
    segments: u64,
    /// Segments that the table may grow to, from these; 0 if it does not grow.
    most_segments: u64,
    seed: u64,
}

impl Case {
    /// Returns the `i`th key: all zeros, all ones, then others; in `bytes` formats of different lengths, the first one
    /// empty.
    fn key(&self, format: EntryFormat, i: u64) -> Vec<u8> {
        let bytes = match format {
            EntryFormat::Fixed { key_bytes, .. } => usize::from(key_bytes),
            EntryFormat::Bytes { .. } if i < 8 => i as usize,
            EntryFormat::Bytes { .. } if self.sizes == Sizes::Mixed && i.is_multiple_of(5) => 40 + (i % 60) as usize,
            EntryFormat::Bytes { .. } => 8 + (i % 9) as usize,
        };
        match (i, format) {
            (0, _) => vec![0; bytes],
            (1, EntryFormat::Fixed { .. }) => vec![0xff; bytes],
            _ => i.wrapping_mul(0x9e37_79b9).to_le_bytes().iter().copied().cycle().take(bytes).collect(),
        }
    }

    fn value(&self, format: EntryFormat, key_bytes: usize, rng: &mut SplitMix64) -> Vec<u8> {
        let bytes = match format {
            EntryFormat::Fixed { value_bytes, .. } => usize::from(value_bytes),
            EntryFormat::Bytes { inline_bytes } => {
                let room = usize::from(inline_bytes).saturating_sub(key_bytes);
                match (self.sizes, rng.below(4)) {
                    (_, 0) => room,
                    (_, 1) => 0,
                    (Sizes::Inline, _) => rng.below(room as u64 + 1) as usize,
                    (Sizes::Mixed, 2) => room + 1,
                    (Sizes::Mixed, _) => rng.below(1_000) as usize,
                }
            }
        };
        let word = rng.next_u64().to_le_bytes();
        word.iter().copied().cycle().take(bytes).collect()
    }

    fn op(&self, format: EntryFormat, model: &Model, rng: &mut SplitMix64) -> Op {
        let key = self.key(format, rng.below(self.keys));
        let value = self.value(format, key.len(), rng);
        match rng.below(10) {
            0 | 1 => Op::Get(key),
            2..=4 => Op::Put(key, value),
            5 if self.preset == Preset::Paper && model.0.contains_key(&key) => Op::Put(key, value),
            5 | 6 if self.preset != Preset::Paper => Op::Insert(key, value),
            5..=7 => Op::Update(key, value),
            _ => Op::Remove(key),
        }
    }

    fn run(&self) {
        let operations = if self.backend == Backend::Heap { OPERATIONS } else { REMOTE_OPERATIONS };
        println!("{self:?}, {operations} operations");
        let mut bench = Bench::of_rows(self.preset, self.format, 64, self.profile, self.seed);
        if self.segments > 0 {
            let config = bench.table.config().clone();
            let config = match self.most_segments {
                0 => divided(config, self.segments),
                most => growing(config, self.segments as u32, most),
            };
            bench = Bench::of_config(config, self.profile, self.seed);
        }
        let format = bench.table.config().format;
        let (mut model, mut rng) = (Model::default(), SplitMix64(self.seed));
        let node = match self.backend {
            Backend::Heap => None,
            Backend::Node => Some(BenchNode::over(&bench)),
            Backend::FaultyNode => Some(BenchNode::over(&bench).behind_faulty_proxy(self.seed, FAULTS)),
            Backend::Rdma => match RdmaDevices::find("properties") {
                Some(devices) => Some(BenchNode::over_rdma(&bench, &devices)),
                None => return,
            },
        };
        let lane = || node.as_ref().map_or_else(|| AnyLane::of(bench.region.lane()), BenchNode::lane);
        let mut clients = [0, 1].map(|slot| bench.client(slot).through(lane()));
        for i in 0..operations {
            let op = self.op(format, &model, &mut rng);
            let client = &mut clients[rng.below(2) as usize];
            if self.segments > 1 && i % 7 == 0 {
                client.client.forget_splits();
            }
            match client.apply(&op) {
                Ok(seen) => assert_eq!(seen, model.apply(&op), "operation {i} of seed {}: {op:x?}", self.seed),
                Err(error) => {
                    let inserts = model.clone().apply(&op) == Observed::Outcome(Outcome::Inserted);
                    let is_right = inserts && matches!(error.kind, ErrorKind::Full { .. });
                    assert!(is_right, "operation {i} of seed {}: {op:x?}: {error}", self.seed);
                }
            }
        }
        for i in 0..self.keys {
            let get = Op::Get(self.key(format, i));
            assert_eq!(clients[0].apply(&get), Ok(model.apply(&get)), "{get:x?}");
        }
        assert_eq!(bench.audit(), Ok(model.0), "{self:?}");
        if lane().caps().masked_cas != MaskedCas::CasLoop {
            assert_eq!(bench.misnoted_rows(), [], "{self:?}");
        }
        if let Some(node) = node {
            let ([pieces, delays, _], batches) = (node.proxy_counts(), node.counters().batches);
            match self.backend {
                Backend::Rdma => assert_eq!(batches, 0, "no batch went to the node's processor"),
                _ => assert!(batches > operations, "what was asked for went to the node"),
            }
            let is_faulty = self.backend == Backend::FaultyNode;
            assert!(!is_faulty || (pieces > 2 * operations && delays > 0), "{pieces} {delays}");
        }
    }
}

fn run_all(format: &'static str, sizes: Sizes) {
    for preset in Preset::ALL {
        for profile in Profile::ALL {
            for seed in 1..=SEEDS {
                let base = Case {
                    preset,
                    format,
                    profile,
                    backend: Backend::Heap,
                    sizes,
                    keys: 0,
                    segments: 0,
                    most_segments: 0,
                    seed,
                };
                // There are few keys, as many as the smallest table holds, and more.
                for keys in [10, 200, 600] {
                    Case { keys, ..base }.run();
                }
            }
        }
    }
}

/// [R-ROW-3] [R-INSERT-1] [R-UPDATE-1] Keys and values of 4 bytes, one word an entry.
#[test]
fn a_table_of_words_is_a_map() {
    run_all("fixed:4:4", Sizes::Inline);
}

/// [R-ROW-3] [R-INSERT-1] [R-UPDATE-1] Keys and values of 8 bytes.
#[test]
fn a_table_of_numbers_is_a_map() {
    run_all("fixed:8:8", Sizes::Inline);
}

/// [R-ROW-3] [R-INSERT-1] [R-UPDATE-1] Rows of several cache lines.
#[test]
fn a_table_of_long_entries_is_a_map() {
    run_all("fixed:8:56", Sizes::Inline);
}

/// [R-ROW-3] Keys and values of any length that fit in a row, empty ones too.
#[test]
fn a_table_of_short_strings_is_a_map() {
    run_all("bytes:24", Sizes::Inline);
    run_all("bytes:64", Sizes::Inline);
}

/// [R-EXTENT-1] [R-EXTENT-2] [R-EXTENT-3] [R-EXTENT-4] [R-UPDATE-2] Values that move between rows and extents.
#[test]
fn a_table_of_strings_is_a_map() {
    run_all("bytes:24", Sizes::Mixed);
    run_all("bytes:64", Sizes::Mixed);
}

/// [R-GROW-1] [R-GROW-2] [R-GROW-6] Tables of one, two and more segments are maps, too, and so are those that grow.
#[test]
fn a_table_in_segments_is_a_map() {
    for (format, sizes) in [("fixed:4:4", Sizes::Inline), ("fixed:8:8", Sizes::Inline), ("bytes:24", Sizes::Mixed)] {
        for preset in [Preset::Hardened, Preset::Tiny] {
            for profile in Profile::ALL {
                for (segments, keys) in [(1, 200), (1, 600), (2, 600), (3, 600), (5, 1_000)] {
                    let backend = Backend::Heap;
                    let base = Case {
                        preset,
                        format,
                        profile,
                        backend,
                        sizes,
                        keys,
                        segments,
                        most_segments: 0,
                        seed: segments,
                    };
                    base.run();
                    // Twice the keys, and room for them.
                    Case { keys: 2 * keys, most_segments: 64, ..base }.run();
                }
            }
        }
    }
}

/// [R-ROW-3] [R-INSERT-1] [R-UPDATE-1] [R-EXTENT-1] [R-EXTENT-2] The same through connections to a memory node, direct
/// and through a faulty proxy.
#[test]
fn a_table_behind_a_node_is_a_map() {
    for preset in [Preset::Hardened, Preset::Tiny] {
        for (format, sizes) in [("fixed:8:8", Sizes::Inline), ("bytes:64", Sizes::Mixed)] {
            for backend in [Backend::Node, Backend::FaultyNode] {
                for keys in [10, 600] {
                    let profile = Profile::Tcp;
                    let base =
                        Case { preset, format, profile, backend, sizes, keys, segments: 0, most_segments: 0, seed: 1 };
                    Case { segments: keys % 7, ..base }.run();
                    Case { segments: 1, most_segments: 64, ..base }.run();
                }
            }
        }
    }
}

/// [R-ROW-3] [R-INSERT-1] [R-UPDATE-1] [R-EXTENT-1] [R-EXTENT-2] The same over RDMA.
#[test]
fn a_table_over_rdma_is_a_map() {
    let backend = Backend::Rdma;
    for preset in [Preset::Hardened, Preset::Tiny] {
        for (format, sizes) in [("fixed:8:8", Sizes::Inline), ("bytes:64", Sizes::Mixed)] {
            for keys in [10, 600] {
                let profile = Profile::Rxe;
                let base =
                    Case { preset, format, profile, backend, sizes, keys, segments: 0, most_segments: 0, seed: 1 };
                base.run();
                Case { segments: 1, most_segments: 64, ..base }.run();
            }
        }
    }
}

/// Every sequence of up to four operations out of six, on every profile.
#[test]
fn every_short_sequence_matches_the_model() {
    let (a, b) = (vec![0; 8], vec![1; 8]);
    let value = |at: usize| vec![0x10 + at as u8; 8];
    let ops = |at: usize| {
        [
            Op::Put(a.clone(), value(at)),
            Op::Put(b.clone(), value(at)),
            Op::Insert(a.clone(), value(at)),
            Op::Update(a.clone(), value(at)),
            Op::Remove(a.clone()),
            Op::Get(a.clone()),
        ]
    };
    println!("every sequence of up to 4 of 6 operations, tiny, 64 rows");
    let empty = Bench::of_rows(Preset::Tiny, "fixed:8:8", 64, Profile::Shm, 1);
    for profile in Profile::ALL {
        for length in 1..=4u32 {
            for mut number in 0..6u32.pow(length) {
                let bench = empty.fork().under(profile);
                let (mut client, mut model) = (bench.client(0), Model::default());
                for at in 0..length as usize {
                    let op = &ops(at)[(number % 6) as usize];
                    number /= 6;
                    assert_eq!(client.apply(op), Ok(model.apply(op)), "{profile} {op:x?}");
                }
                assert_eq!(bench.audit(), Ok(model.0), "{profile}");
            }
        }
    }
}

fn large_bench(extent_bytes: u64) -> Bench {
    let options = PresetOptions {
        capacity: 1,
        format: "bytes:64".parse().expect("a valid format"),
        extent_bytes: Some(extent_bytes),
        max_clients: Some(4),
        hash_seed: 9,
        device_bytes: u64::MAX,
    };
    let config = Preset::Hardened.config_of_rows(64, &options).expect("valid parameters");
    Bench::of_config(config, Profile::Tcp, 9)
}

/// [R-EXTENT-2] The largest key with the largest value, which takes a run of chunks, and the largest key alone.
#[test]
fn the_largest_keys_and_values_round_trip() {
    let bench = large_bench(160 << 20);
    let mut client = bench.client(0);
    let mut model = Model::default();
    let long_key = vec![7; MAX_KEY_BYTES];
    let value: Vec<u8> = (0..MAX_VALUE_BYTES).map(|i| ((i * 31) >> 7) as u8).collect();
    for op in [
        Op::Put(long_key.clone(), Vec::new()),
        Op::Put(vec![], vec![1; 65]),
        Op::Update(long_key.clone(), value),
        Op::Get(long_key.clone()),
        Op::Get(vec![]),
    ] {
        assert!(client.apply(&op) == Ok(model.apply(&op)), "a key of {} bytes", op.key().len());
    }
    assert!(bench.audit() == Ok(model.0.clone()));
    let removed = client.apply(&Op::Remove(long_key));
    assert_eq!(removed, Ok(Observed::Outcome(Outcome::Removed)));
}

/// Keys and values of the wrong size are the caller's mistake, and change nothing.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    for (format, wrong_key, key) in [("fixed:8:8", 7, 8), ("fixed:4:4", 8, 4), ("bytes:24", MAX_KEY_BYTES + 1, 8)] {
        let bench = Bench::of_rows(Preset::Tiny, format, 64, Profile::Shm, 1);
        let mut client = bench.client(0);
        let before = bench.words();
        let key_error = |error: &Error| matches!(error.kind, ErrorKind::KeyLength { bytes, .. } if bytes == wrong_key);
        assert!(key_error(&client.get(&vec![1; wrong_key]).unwrap_err()));
        assert!(key_error(&client.put(&vec![1; wrong_key], &[1; 4]).unwrap_err()));
        assert!(key_error(&client.change(&vec![1; wrong_key], Change::Remove).unwrap_err()));
        let value = vec![1; 25];
        for change in [Change::Put, Change::Insert, Change::Update] {
            let error = client.change(&vec![1; key], change(NewValue::Inline(&value))).unwrap_err();
            assert!(matches!(error.kind, ErrorKind::ValueLength { bytes: 25, .. }), "{error}");
        }
        assert!(before == bench.words(), "{format}: something changed");
    }
}

/// Creates a table with another key whose digest is that of `key`, in the row where `key` is looked for first or last.
fn twin_bench(profile: Profile, key: &[u8], twins: u64, secondary: bool) -> (Bench, TestClient, Model) {
    let bench = Bench::of_rows(Preset::Hardened, "bytes:24", 64, profile, 3);
    let mut client = bench.client(0);
    let digest = bench.table.placement().digest(key);
    let pair = bench.table.placement().rows(digest);
    let row = if secondary { pair.second } else { pair.first };
    let mut model = Model::default();
    for i in 0..twins {
        // The twin has the same length, so that only its bytes differ.
        let twin: Vec<u8> = key.iter().map(|byte| byte ^ (i + 1) as u8).collect();
        let value = vec![0x70 + i as u8; 50];
        let prepared = client.extents.prepare_as(&mut client.lane, digest, &twin, &value);
        bench.plant(row, &prepared);
        model.0.insert(twin, value);
    }
    (bench, client, model)
}

/// [R-UPDATE-2] Two keys with one digest are two keys: looking one up, changing or removing it never touches the other.
#[test]
fn keys_with_equal_digests_are_distinguished() {
    let key = b"one of the twins".to_vec();
    let ops = [
        Op::Get(key.clone()),
        Op::Update(key.clone(), vec![1; 40]),
        Op::Remove(key.clone()),
        Op::Insert(key.clone(), vec![2; 40]),
        Op::Get(key.clone()),
        Op::Insert(key.clone(), vec![3; 40]),
        Op::Put(key.clone(), vec![4; 2]),
        Op::Get(key.clone()),
        Op::Put(key.clone(), vec![5; 60]),
        Op::Get(key.clone()),
        Op::Remove(key.clone()),
        Op::Get(key.clone()),
    ];
    for profile in Profile::ALL {
        for twins in [1, 2, 4] {
            for secondary in [false, true] {
                println!("{twins} twins, profile {profile}, in the secondary row: {secondary}");
                let (bench, mut client, mut model) = twin_bench(profile, &key, twins, secondary);
                for op in &ops {
                    assert_eq!(client.apply(op), Ok(model.apply(op)), "{profile} {twins} {op:x?}");
                    assert_eq!(bench.audit().as_ref(), Ok(&model.0), "{profile} {twins} {op:x?}");
                }
            }
        }
    }
}
