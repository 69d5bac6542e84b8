//! A table on the heap and clients that act on it, under the promises of any profile.

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use guira_fabric::heap::{HeapLane, HeapRegion};
use guira_fabric::memory::Ordering;
use guira_fabric::{Caps, Lane, LocalLane, Profile, Region, SlotHold, Traffic};
use guira_layout::{Geometry, Preset, PresetOptions, Rules, Secret, Superblock, TableConfig};
use guira_rcuckoo::{
    Begun, Change, Changed, Client, ClientConfig, Continuation, Error, Expected, NewValue, Observer, Outcome, RowList,
    RowPredictor, SlotClient, Table, Token, claim_slot, format_table,
};

use crate::{Extents, Observed, Op, Prepared};

/// Polls of a pending future before its thread sleeps between them: what waits this often waits for a clock.
const EAGER_POLLS: u32 = 5_000;

/// Divides a table of 64 rows into `segments` segments of 64 rows each, which share its locks.
///
/// # Panics
/// If no table can have these parameters.
pub fn divided(config: TableConfig, segments: u64) -> TableConfig {
    let rules = Rules { map_full_rows: false, ..config.rules };
    let config = TableConfig { rows: 64 * segments, segment_rows: Some(64), rules, ..config };
    config.check().expect("valid parameters");
    config
}

/// Same as [`divided`], for a table that is created with `initial` segments and can grow to `most`. It has the locks of a
/// few segments: some share them, and some do not. It begins with a quarter of the chunks, unless that is none.
///
/// # Panics
/// If no table can have these parameters.
pub fn growing(config: TableConfig, initial: u32, most: u64) -> TableConfig {
    let config = TableConfig {
        rows: 64 * most,
        segment_rows: Some(64),
        initial_segments: Some(initial),
        initial_chunks: Some(config.chunks / 4).filter(|chunks| *chunks > 0),
        physical_locks: config.physical_locks * most.min(4),
        rules: Rules { map_full_rows: false, ..config.rules },
        ..config
    };
    config.check().expect("valid parameters");
    config
}

/// Polls `future` until it is ready.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    let mut polls = 0;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        polls += 1;
        if polls < EAGER_POLLS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A table in this process's memory.
#[derive(Clone)]
pub struct Bench {
    /// The table's bytes.
    pub region: HeapRegion,
    /// The table.
    pub table: Arc<Table>,
}

impl Bench {
    /// Creates a table of `preset` with exactly `rows` rows.
    ///
    /// # Panics
    /// If no table can have these parameters.
    pub fn of_rows(preset: Preset, format: &str, rows: u64, profile: Profile, seed: u64) -> Bench {
        let options = Bench::options(format, 1, profile, seed);
        Bench::of_config(preset.config_of_rows(rows, &options).expect("valid parameters"), profile, seed)
    }

    /// Creates a table of `preset` for `capacity` keys.
    ///
    /// # Panics
    /// If no table can have these parameters.
    pub fn of_capacity(preset: Preset, format: &str, capacity: u64, profile: Profile, seed: u64) -> Bench {
        let options = Bench::options(format, capacity, profile, seed);
        Bench::of_config(preset.config(&options).expect("valid parameters"), profile, seed)
    }

    /// Returns the options of a table for `capacity` keys, with 64 client slots.
    ///
    /// # Panics
    /// If `format` is none.
    pub fn options(format: &str, capacity: u64, profile: Profile, seed: u64) -> PresetOptions {
        PresetOptions {
            capacity,
            format: format.parse().expect("a valid format"),
            extent_bytes: Some(4 << 20),
            max_clients: Some(64),
            hash_seed: seed,
            device_bytes: profile.caps().device_bytes,
        }
    }

    /// Creates a table of `config`.
    ///
    /// # Panics
    /// If no table can have these parameters.
    pub fn of_config(config: TableConfig, profile: Profile, seed: u64) -> Bench {
        let geometry = Geometry::new(&config).expect("a table that fits");
        let region = HeapRegion::new(geometry.main_bytes(), geometry.device_bytes(), profile.caps());
        let table = Table::new(Superblock {
            incarnation: seed ^ 0x11,
            table: seed ^ 0x22,
            secret: Secret([seed ^ 0x33; 4]),
            config,
        })
        .expect("valid");
        let mut lane = region.with_caps(Profile::Shm.caps()).lane();
        block_on(format_table(&mut lane, &table, |_| ControlFlow::Continue(()))).expect("the heap takes every batch");
        Bench { region, table }
    }

    /// Opens a client in slot `slot`.
    ///
    /// # Panics
    /// If the slot is taken.
    pub fn client(&self, slot: u16) -> TestClient {
        self.client_with(slot, self.region.lane(), ClientConfig::for_table(&self.table))
    }

    /// Opens a client in slot `slot` that acts through `lane`.
    ///
    /// # Panics
    /// If the slot is taken.
    pub fn client_with<L: Lane>(&self, slot: u16, mut lane: L, config: ClientConfig) -> TestClient<L> {
        let hold = self.region.hold(slot).expect("the heap holds").expect("a free slot");
        let owner = block_on(claim_slot(&mut lane, &self.table, slot, &SlotClient::default())).expect("a slot");
        let owner = owner.expect("a slot without a dead client");
        let client = Client::new(Arc::clone(&self.table), owner, ClientConfig { seed: u64::from(slot), ..config });
        TestClient { extents: Extents::new(&self.table, owner), client, lane, _hold: hold }
    }

    /// Copies the bytes to a region of their own, under the same promises and without live clients.
    pub fn fork(&self) -> Bench {
        Bench { region: self.region.copied(), table: Arc::clone(&self.table) }
    }

    /// Copies the table with `words` in place of every word of both spaces, under the same promises and without live
    /// clients.
    ///
    /// # Panics
    /// If their number is not that of the region's words.
    pub fn with_words(&self, words: &[u64]) -> Bench {
        let region = HeapRegion::new(self.region.main_bytes(), self.region.device_bytes(), self.caps());
        let memory = region.memory();
        assert_eq!(words.len(), memory.main.len() + memory.device.len(), "words of another region");
        for (cell, word) in memory.main.iter().chain(memory.device).zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
        Bench { region, table: Arc::clone(&self.table) }
    }

    /// Returns the same bytes under the promises of `profile`.
    pub fn under(&self, profile: Profile) -> Bench {
        Bench { region: self.region.with_caps(profile.caps()), table: Arc::clone(&self.table) }
    }

    /// Returns every word of both spaces.
    pub fn words(&self) -> Vec<u64> {
        let memory = self.region.memory();
        let mut words = Vec::with_capacity(memory.main.len() + memory.device.len());
        for cells in [memory.main, memory.device] {
            words.extend(cells.iter().map(|word| word.load(Ordering::Relaxed)));
        }
        words
    }

    /// Returns what the region promises.
    pub fn caps(&self) -> Caps {
        *self.region.caps()
    }

    /// Returns the rows that the table has.
    ///
    /// # Panics
    /// If the heap refuses a batch.
    pub fn rows(&self) -> RowList {
        let mut lane = self.region.with_caps(Profile::Shm.caps()).lane();
        block_on(RowList::read(&mut lane, &self.table)).expect("the heap reads")
    }

    /// Returns how many entries are occupied, and how many rows verify.
    pub fn occupied(&self) -> (u64, u64) {
        let (mut entries, mut valid, mut words) = (0, 0, Vec::new());
        let mut lane = self.region.with_caps(Profile::Shm.caps()).lane();
        for first in self.rows().ranges().flatten().step_by(64) {
            let row = guira_layout::RowId(first);
            let sampled = guira_rcuckoo::sample_rows(&mut lane, &self.table, row, 64, &mut words, |sample| {
                entries += u64::from(self.table.rows().occupied(sample.words));
                valid += u64::from(sample.valid);
            });
            block_on(sampled).expect("the heap reads");
        }
        (entries, valid)
    }
}

/// A change with a value whose placement is not yet known.
enum Kind<'e> {
    Put,
    Insert,
    Update,
    Swap(Expected<'e>),
}

impl<'e> Kind<'e> {
    fn with<'v>(self, value: NewValue<'v>) -> Change<'v>
    where
        'e: 'v,
    {
        match self {
            Kind::Put => Change::Put(value),
            Kind::Insert => Change::Insert(value),
            Kind::Update => Change::Update(value),
            Kind::Swap(expected) => Change::Swap(expected, value),
        }
    }
}

/// A client, its lane, and the chunks from which it cuts extents.
pub struct TestClient<L = HeapLane> {
    /// The client.
    pub client: Client,
    /// The client's lane.
    pub lane: L,
    /// The client's extents.
    pub extents: Extents,
    _hold: SlotHold,
}

impl<L: Lane> TestClient<L> {
    /// Lets the client recover other clients that it finds dead on `bench`.
    #[must_use]
    pub fn recovering(self, bench: &Bench) -> TestClient<L> {
        TestClient { client: self.client.with_liveness(Box::new(bench.region.clone())), ..self }
    }

    /// Lets the client's lookups ask `predictor` which row has their key.
    #[must_use]
    pub fn predicting(self, predictor: Arc<RowPredictor>) -> TestClient<L> {
        TestClient { client: self.client.with_predictor(predictor), ..self }
    }

    /// Sets the observer, which learns of failure timers and repairs.
    #[must_use]
    pub fn observed(self, observer: Box<dyn Observer>) -> TestClient<L> {
        TestClient { client: self.client.with_observer(observer), ..self }
    }

    /// Replaces the client's lane.
    pub fn through<M: Lane>(self, lane: M) -> TestClient<M> {
        TestClient { client: self.client, lane, extents: self.extents, _hold: self._hold }
    }

    /// Looks `key` up.
    ///
    /// # Errors
    /// Same as [`guira_rcuckoo::Reader::get`].
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        let found = block_on(self.client.get(&mut self.lane, key, &mut value))?;
        Ok(found.is_some().then_some(value))
    }

    /// Looks `keys` up together, and returns one answer for each, in order.
    ///
    /// # Panics
    /// If the answers do not come in order.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let mut answers = Vec::with_capacity(keys.len());
        let visit = |i: usize, answer: Result<Option<&[u8]>, Error>| {
            assert_eq!(i, answers.len(), "answers come in the order of their keys");
            answers.push(answer.map(|value| value.map(<[u8]>::to_vec)));
        };
        block_on(self.client.get_many(&mut self.lane, keys, visit));
        answers
    }

    /// Carries out `change`.
    ///
    /// # Errors
    /// Same as [`Client::change`].
    pub fn change(&mut self, key: &[u8], change: Change<'_>) -> Result<Changed, Error> {
        block_on(self.client.change(&mut self.lane, key, change))
    }

    /// Begins `change` in place.
    ///
    /// # Panics
    /// If the table cannot store the key.
    pub fn begin(&mut self, key: &[u8], change: &Change<'_>) -> Begun
    where
        L: LocalLane,
    {
        let key = self.client.key(key).expect("a key that the table can store");
        self.client.begin_in_place(&mut self.lane, &key, change)
    }

    /// Writes an extent in place, and returns the value as a change takes it.
    ///
    /// # Panics
    /// If the lane refuses.
    pub fn write(&mut self, key: &[u8], value: &[u8], prepared: &Prepared) -> NewValue<'static>
    where
        L: LocalLane,
    {
        let key = self.client.key(key).expect("a key that the table can store");
        self.client.write_extent(&mut self.lane, prepared.extent, &key, value).expect("the heap writes")
    }

    /// Carries out the rest of a change.
    ///
    /// # Errors
    /// Same as [`Client::change_from`].
    ///
    /// # Panics
    /// If the table cannot store the key.
    pub fn finish(&mut self, key: &[u8], change: Change<'_>, rest: Continuation) -> Result<Changed, Error> {
        let key = self.client.key(key).expect("a key that the table can store");
        block_on(self.client.change_from(&mut self.lane, &key, change, Some(Begun::Continue(rest))))
    }

    /// Puts an inline value.
    ///
    /// # Errors
    /// Same as [`Client::change`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Changed, Error> {
        self.change(key, Change::Put(NewValue::Inline(value)))
    }

    /// Looks `key` up, and returns its value with the token of its state.
    ///
    /// # Errors
    /// Same as [`guira_rcuckoo::Reader::get`].
    pub fn get_versioned(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, Token)>, Error> {
        let mut value = Vec::new();
        let found = block_on(self.client.get(&mut self.lane, key, &mut value))?;
        Ok(found.map(|token| (value, token)))
    }

    /// Replaces the value of `key` if it is as expected; a value that does not fit in a row goes to an extent.
    ///
    /// # Errors
    /// Same as [`Client::change`].
    pub fn swap(&mut self, key: &[u8], expected: Expected<'_>, value: &[u8]) -> Result<Outcome, Error> {
        self.change_value(key, value, Kind::Swap(expected))
    }

    /// Removes `key` if it is as expected.
    ///
    /// # Errors
    /// Same as [`Client::change`].
    pub fn remove_if(&mut self, key: &[u8], expected: Expected<'_>) -> Result<Outcome, Error> {
        self.change(key, Change::RemoveIf(expected)).map(|changed| changed.outcome)
    }

    /// Carries out `op`; values that do not fit in a row go to an extent.
    ///
    /// # Errors
    /// Same as [`guira_rcuckoo::Reader::get`] and [`Client::change`].
    pub fn apply(&mut self, op: &Op) -> Result<Observed, Error> {
        let outcome = match op {
            Op::Get(key) => return self.get(key).map(Observed::Value),
            Op::Put(key, value) => self.change_value(key, value, Kind::Put),
            Op::Insert(key, value) => self.change_value(key, value, Kind::Insert),
            Op::Update(key, value) => self.change_value(key, value, Kind::Update),
            Op::Remove(key) => self.change(key, Change::Remove).map(|changed| changed.outcome),
            Op::Swap(key, expected, value) => self.swap(key, Expected::Value(expected), value),
            Op::RemoveIf(key, expected) => self.remove_if(key, Expected::Value(expected)),
            Op::Add(key, number) => self.change(key, Change::Add(number)).map(|changed| changed.outcome),
        };
        outcome.map(Observed::Outcome)
    }

    fn change_value(&mut self, key: &[u8], value: &[u8], kind: Kind<'_>) -> Result<Outcome, Error> {
        let prepared = self.extents.prepare(&mut self.lane, key, value);
        let value = prepared.as_ref().map_or(NewValue::Inline(value), |prepared| prepared.value());
        let changed = block_on(self.client.change(&mut self.lane, key, kind.with(value)));
        if let Some(prepared) = prepared
            && !changed.as_ref().is_ok_and(Changed::took_effect)
        {
            self.extents.give_back(prepared);
        }
        changed.map(|changed| changed.outcome)
    }

    /// Runs `action` and returns its result with the traffic it caused.
    pub fn traffic_of<T>(&mut self, action: impl FnOnce(&mut TestClient<L>) -> T) -> (T, Traffic) {
        let before = *self.lane.traffic();
        let result = action(self);
        let traffic = self.lane.traffic().since(&before);
        (result, traffic)
    }
}
