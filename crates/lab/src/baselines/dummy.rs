//! RPC-dummy: the least that a service at a memory node can do. Its rate is the upper bound of all stores with calls.
//!
//! Records are in an array, and clients know the place of each. A call names a place, and the service answers with the record
//! there: one access to memory, and nothing that is computed. It promises nothing beyond that; here clients check keys, and
//! nothing changes.
//!
//! Source: the paper on Outback, section 2 (figure 3).

use std::rc::Rc;

use guira_fabric::heap::HeapRegion;
use guira_fabric::memory::{Memory, Ordering};
use guira_fabric::{Caps, WORD_BYTES};
use guira_fabric_sim::{Service, SimLane, Work};

use crate::baselines::record::{append_value, checked_key, checked_value, key_in, record_words, store_record};
use crate::baselines::{BuildError, Change, Client, Cost, Error, Outcome, Places, Ports, Store};

/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;

/// An array of records, and the threads of its service.
#[derive(Clone)]
pub struct DummyStore {
    region: HeapRegion,
    shape: Shape,
    places: Places,
    threads: u32,
}

/// The size of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Records.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// An array with its records.
#[derive(Clone)]
pub struct Table {
    region: HeapRegion,
    shape: Shape,
}

impl Shape {
    /// Returns the bytes of an array.
    pub fn bytes(&self) -> u64 {
        self.records.saturating_mul(record_words(self.value_bytes) * WORD_BYTES)
    }
}

impl Table {
    /// Creates the array. `key` returns the key of the record at a place, and `value` writes its value; `is_stopped` is
    /// asked now and then, and then the result is `None`.
    ///
    /// # Errors
    /// [`BuildError::Key`] or [`BuildError::Value`].
    pub fn build(
        shape: Shape,
        caps: Caps,
        key: impl Fn(u64) -> u32,
        mut value: impl FnMut(u64, &mut Vec<u8>),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Table>, BuildError> {
        let region = HeapRegion::new(shape.bytes(), WORD_BYTES, caps);
        let (words, mut bytes) = (record_words(shape.value_bytes) as usize, Vec::new());
        for (place, record) in (0..shape.records).zip(region.memory().main.chunks_exact(words)) {
            if place % 4096 == 0 && is_stopped() {
                return Ok(None);
            }
            checked_value(place, &mut value, shape.value_bytes, &mut bytes)?;
            match key(place) {
                0 => return Err(BuildError::Key),
                key => store_record(record, key, &bytes),
            }
        }
        Ok(Some(Table { region, shape }))
    }
}

impl DummyStore {
    /// Creates the store of clients that know `places`, with a service of so many threads.
    pub fn new(table: Table, places: Places, threads: u32) -> DummyStore {
        DummyStore { region: table.region, shape: table.shape, places, threads }
    }
}

/// Answers with the record at the place that a request names; with nothing if there is none.
struct DummyService {
    record_words: usize,
}

impl Service for DummyService {
    fn handle(&mut self, memory: Memory<'_>, request: &[u64], reply: &mut Vec<u64>) -> Work {
        let place = request.first().and_then(|place| usize::try_from(*place).ok());
        let record = place.and_then(|place| memory.main.chunks_exact(self.record_words).nth(place));
        let Some(record) = record else { return Work::default() };
        reply.extend(record.iter().map(|word| word.load(Ordering::Relaxed)));
        let copied_bytes = self.record_words as u64 * WORD_BYTES;
        Work { accesses: 1, lines: copied_bytes.div_ceil(LINE_BYTES) - 1, copied_bytes, ..Work::default() }
    }

    fn restart(&mut self) {}
}

impl Store for DummyStore {
    type Client = DummyClient;
    type Host = ();
    type Thread = ();

    fn nodes(&self) -> &[HeapRegion] {
        std::slice::from_ref(&self.region)
    }

    /// Returns a handle to the same bytes, which no client changes.
    fn fork(&self) -> DummyStore {
        self.clone()
    }

    fn host(&self) {}

    fn thread(&self) {}

    fn service(&self) -> Option<(u32, Box<dyn Service>)> {
        let record_words = record_words(self.shape.value_bytes) as usize;
        Some((self.threads, Box::new(DummyService { record_words })))
    }

    fn client(&self, ports: Ports, _number: u32, _host: &Rc<()>, _thread: &Rc<()>) -> DummyClient {
        let (shape, places) = (self.shape, Rc::clone(&self.places));
        DummyClient { lane: ports.calls, shape, places, record: Vec::new() }
    }
}

/// A client that calls for each lookup.
pub struct DummyClient {
    lane: Option<SimLane>,
    shape: Shape,
    places: Places,
    record: Vec<u64>,
}

impl Client for DummyClient {
    async fn get(&mut self, key: u64, values: &mut Vec<u8>) -> Result<bool, Error> {
        let key = checked_key(key)?;
        let Some(lane) = &mut self.lane else {
            return Err(Error::refused("setting dummy calls a service, which only the simulator has"));
        };
        lane.call(&[(self.places)(key)], &mut self.record).await?;
        if self.record.is_empty() || key_in(&self.record) != key {
            return Ok(false);
        }
        append_value(&self.record, self.shape.value_bytes, values);
        Ok(true)
    }

    async fn change(&mut self, _key: u64, _change: Change<'_>) -> Result<Outcome, Error> {
        Err(Error::refused("the records of setting dummy do not change"))
    }

    fn cost(&self) -> Cost {
        self.lane.as_ref().map_or_else(Cost::default, |lane| lane.calls().into())
    }
}
