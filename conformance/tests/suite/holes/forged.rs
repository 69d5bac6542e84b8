//! Forged tables, the same for presets `paper` and `hardened`, and the violations that a schedule caused in them.

use std::collections::BTreeMap;

use guira_conformance::{Bench, KeyFinder, NextStep, Op, VerbKind, block_on};
use guira_fabric::{Caps, Profile, Region, Space};
use guira_layout::{Preset, PresetOptions, RowId, TableConfig};
use guira_rcuckoo::{ClientConfig, Reader};

pub const PRESETS: [Preset; 2] = [Preset::Paper, Preset::Hardened];
/// The write unit with which a WRITE happens wholly or not at all: a violation is then not due to torn rows.
pub const WHOLE: u64 = Caps::WHOLE_WRITE;
const SEED: u64 = 5;
const ROWS: u64 = 128;
/// Keys to choose from.
const KEYS: u64 = 300_000;
/// A deadline longer than the printed timeouts, and shorter than the time they leave a stopped client.
pub const DEADLINE_NS: u64 = 1_000_000_000;

/// A table that is full but for two entries in row `away`.
#[derive(Clone)]
pub struct Forged {
    pub bench: Bench,
    /// A key in `home` whose other row is `away`.
    pub moved: Vec<u8>,
    /// Keys in `home`; their other rows are under the same lock, and not `away`.
    pub home: Vec<Vec<u8>>,
    /// Keys in `away`; their other rows are under the same lock, and not `home`.
    pub away: Vec<Vec<u8>>,
    /// A missing key. Its first row is `home`, its second one is full: its insert moves `moved` to `away`.
    pub missing: Vec<u8>,
}

/// Returns the parameters of a table of `rows` rows.
pub fn config_of(preset: Preset, rows: u64) -> TableConfig {
    let options = PresetOptions {
        capacity: 1,
        format: "fixed:8:16".parse().expect("a format"),
        extent_bytes: None,
        max_clients: Some(16),
        hash_seed: SEED,
        device_bytes: u64::MAX,
    };
    preset.config_of_rows(rows, &options).expect("possible options")
}

/// Returns a value of two words, so that a torn WRITE mixes values visibly.
pub fn value(of: u64) -> Vec<u8> {
    [of.to_le_bytes(), of.to_le_bytes()].concat()
}

impl Forged {
    pub fn new(preset: Preset, home: RowId, away: RowId) -> Forged {
        Forged::of_config(config_of(preset, ROWS), home, away)
    }

    pub fn of_config(config: TableConfig, home: RowId, away: RowId) -> Forged {
        let bench = Bench::of_config(config, Profile::Tcp, SEED);
        let mut keys = KeyFinder::new(&bench.table, KEYS);
        let locks = *bench.table.locks();
        let moved = keys.take(home, away).expect("a key of both rows");
        let full = |row: RowId| row != away;
        let (missing, ..) =
            keys.take_any(|a, b| a == home && b != home && full(b)).expect("a key of the first row alone");
        let mut under_one_lock = |row: RowId, not: RowId| {
            let suits = |a, b| a == row && b != row && b != not && locks.lock_of(a) == locks.lock_of(b);
            keys.take_any(suits).expect("a key of two rows under one lock").0
        };
        let entries = bench.table.rows().entries();
        let home_keys: Vec<_> = (1..entries).map(|_| under_one_lock(home, away)).collect();
        let away_keys: Vec<_> = (2..entries).map(|_| under_one_lock(away, home)).collect();
        for row in (0..bench.table.config().rows).map(RowId) {
            let mut row_keys = match row {
                row if row == home => [&[moved][..], &home_keys].concat(),
                row if row == away => away_keys.clone(),
                _ => Vec::new(),
            };
            while full(row) && row_keys.len() < entries {
                let suits = |a, b| a == row && b != row && full(b);
                let near = keys.take_any(|a, b| suits(a, b) && locks.lock_of(a) == locks.lock_of(b));
                row_keys.push(near.or_else(|| keys.take_any(suits)).expect("a key of this row").0);
            }
            let old = value(0);
            let entries: Vec<(&[u8], &[u8])> = row_keys.iter().map(|key| (&key[..], &old[..])).collect();
            bench.fill_row(row, &entries);
        }
        bench.audit().expect("a table in order");
        let of = |keys: &[[u8; 8]]| keys.iter().map(|key| key.to_vec()).collect();
        Forged { bench, moved: moved.to_vec(), home: of(&home_keys), away: of(&away_keys), missing: missing.to_vec() }
    }

    /// Copies the table to a region of its own.
    pub fn fork(&self) -> Forged {
        Forged { bench: self.bench.fork(), ..self.clone() }
    }

    /// Returns a configuration as printed where there is a choice; the deadline is one second.
    pub fn config(&self) -> ClientConfig {
        let config = ClientConfig::for_table(&self.bench.table);
        ClientConfig { deadline_ns: DEADLINE_NS, backoff_ns: 10_000_000, longest_backoff_ns: 10_000_000, ..config }
    }

    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let mut reader =
            Reader::new(std::sync::Arc::clone(&self.bench.table), ClientConfig { deadline_ns: 0, ..self.config() });
        let (mut lane, mut found) = (self.bench.under(Profile::Tcp).region.lane(), Vec::new());
        match block_on(reader.get(&mut lane, key, &mut found)) {
            Ok(hit) => Ok(hit.is_some().then_some(found)),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Returns an update of `key` to `value(to)`.
pub fn update(key: &[u8], to: u64) -> Vec<Op> {
    vec![Op::Update(key.to_vec(), value(to))]
}

/// Whether an atomic is next that begins a take-over: on a repair lease, or on a client's slot.
pub fn takes_over(step: &NextStep) -> bool {
    matches!(step, NextStep::Verb { kind: VerbKind::Atomic, addr, .. } if addr.space() == Space::Main)
}

/// Returns the violations, given that each of these keys must have one of these values, or none.
pub fn wrong(forged: &Forged, expected: &[(&[u8], &[Option<u64>])]) -> Vec<String> {
    let expected: BTreeMap<&[u8], Vec<Option<Vec<u8>>>> =
        expected.iter().map(|(key, values)| (*key, values.iter().map(|it| it.map(value)).collect())).collect();
    let look = |(key, values): (&&[u8], &Vec<Option<Vec<u8>>>)| match forged.lookup(key) {
        Ok(found) if values.contains(&found) => None,
        other => Some(format!("{key:x?} is {other:x?}, and should be one of {values:x?}")),
    };
    expected.iter().filter_map(look).collect()
}

/// Returns the possible values of a key that one client was to change from 0 to `to`, by the client's answer.
pub fn changed<T, E>(answer: &Result<T, E>, to: u64) -> [Option<u64>; 1] {
    [Some(if answer.is_ok() { to } else { 0 })]
}
