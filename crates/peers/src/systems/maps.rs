//! Clients of concurrent maps in this process: the cost of a table that no other process can see, the local limit.
//!
//! Keys are hashed as one word with rustc-hash, the fastest hash for them. Two clients are two threads.

use std::hash::BuildHasherDefault;
use std::sync::Arc;

use dashmap::DashMap;
use papaya::{Guard, HashMap as Papaya, LocalGuard};
use rustc_hash::FxHasher;

use crate::draws::Draws;
use crate::error::PeersError;
use crate::load::Loader;
use crate::measure::{Client, Job, Runner, run_client, verify_client};
use crate::record::{Key, Records, ValueEnds, WORD_BYTES};

/// Operations between two renewals of papaya's guard: enough to make its cost vanish, few enough to free memory.
const GUARDED_CALLS: u32 = 1024;

type Hash = BuildHasherDefault<FxHasher>;
/// A word-sized value, stored in the map itself.
type Word = [u8; WORD_BYTES];

/// A map that the threads of this process share.
pub trait SharedMap: Send + Sync {
    /// A client for the calling thread.
    fn client(&self) -> Box<dyn Runner>;
}

/// Loads a dashmap.
///
/// # Errors
/// An interruption.
pub fn load_dashmap(records: &Records, loader: &mut Loader<'_>) -> Result<Box<dyn SharedMap>, PeersError> {
    if records.value_bytes() == WORD_BYTES {
        Ok(Box::new(dashmap_of::<Word>(records, loader)?))
    } else {
        Ok(Box::new(dashmap_of::<Box<[u8]>>(records, loader)?))
    }
}

/// Loads a papaya map.
///
/// # Errors
/// An interruption.
pub fn load_papaya(records: &Records, loader: &mut Loader<'_>) -> Result<Box<dyn SharedMap>, PeersError> {
    if records.value_bytes() == WORD_BYTES {
        Ok(Box::new(papaya_of::<Word>(records, loader)?))
    } else {
        Ok(Box::new(papaya_of::<Box<[u8]>>(records, loader)?))
    }
}

fn dashmap_of<V: Value>(records: &Records, loader: &mut Loader<'_>) -> Result<SharedDashMap<V>, PeersError> {
    let map = DashMap::with_capacity_and_hasher(loader.records() as usize, Hash::default());
    loader.each(records, |key, value| {
        map.insert(u64::from_le_bytes(*key), V::of(value)?);
        Ok(())
    })?;
    Ok(SharedDashMap { map: Arc::new(map), value_bytes: records.value_bytes() })
}

fn papaya_of<V: Value>(records: &Records, loader: &mut Loader<'_>) -> Result<SharedPapaya<V>, PeersError> {
    let map = Papaya::with_capacity_and_hasher(loader.records() as usize, Hash::default());
    loader.each(records, |key, value| {
        map.pin().insert(u64::from_le_bytes(*key), V::of(value)?);
        Ok(())
    })?;
    Ok(SharedPapaya { map: Arc::new(map), value_bytes: records.value_bytes() })
}

/// A value as a map stores it.
trait Value: Send + Sync + 'static {
    fn of(value: &[u8]) -> Result<Self, PeersError>
    where
        Self: Sized;
    fn bytes(&self) -> &[u8];
    /// The ends of the value. A value longer than a word is first copied to `buffer`, as a caller that keeps it would
    /// do.
    fn ends(&self, buffer: &mut Vec<u8>, value_bytes: usize) -> ValueEnds;
}

impl Value for Word {
    fn of(value: &[u8]) -> Result<Word, PeersError> {
        value.try_into().map_err(|_| PeersError::peer("store a word", format!("the value has {} bytes", value.len())))
    }

    fn bytes(&self) -> &[u8] {
        self
    }

    #[inline(always)]
    fn ends(&self, _buffer: &mut Vec<u8>, _value_bytes: usize) -> ValueEnds {
        let word = u64::from_le_bytes(*self);
        ValueEnds { first: word, last: word }
    }
}

impl Value for Box<[u8]> {
    fn of(value: &[u8]) -> Result<Box<[u8]>, PeersError> {
        Ok(value.into())
    }

    fn bytes(&self) -> &[u8] {
        self
    }

    #[inline(always)]
    fn ends(&self, buffer: &mut Vec<u8>, value_bytes: usize) -> ValueEnds {
        buffer.clear();
        buffer.extend_from_slice(self);
        ValueEnds::of(buffer, value_bytes)
    }
}

struct SharedDashMap<V> {
    map: Arc<DashMap<u64, V, Hash>>,
    value_bytes: usize,
}

impl<V: Value> SharedMap for SharedDashMap<V> {
    fn client(&self) -> Box<dyn Runner> {
        Box::new(DashClient { map: Arc::clone(&self.map), buffer: Vec::new(), value_bytes: self.value_bytes })
    }
}

struct DashClient<V> {
    map: Arc<DashMap<u64, V, Hash>>,
    buffer: Vec<u8>,
    value_bytes: usize,
}

impl<V: Value> Client for DashClient<V> {
    #[inline(always)]
    fn get(&mut self, key: &Key) -> Result<ValueEnds, PeersError> {
        match self.map.get(&u64::from_le_bytes(*key)) {
            Some(found) => Ok(found.value().ends(&mut self.buffer, self.value_bytes)),
            None => Err(PeersError::missing(key)),
        }
    }

    #[inline(always)]
    fn update(&mut self, key: &Key, value: &[u8]) -> Result<(), PeersError> {
        match self.map.get_mut(&u64::from_le_bytes(*key)) {
            Some(mut found) => *found = V::of(value)?,
            None => return Err(PeersError::missing(key)),
        }
        Ok(())
    }

    fn fetch(&mut self, key: &Key, into: &mut Vec<u8>) -> Result<(), PeersError> {
        let found = self.map.get(&u64::from_le_bytes(*key)).ok_or_else(|| PeersError::missing(key))?;
        into.clear();
        into.extend_from_slice(found.bytes());
        Ok(())
    }
}

impl<V: Value> Runner for DashClient<V> {
    fn run(&mut self, job: &Job, draws: &Draws) -> Result<u64, PeersError> {
        run_client(self, job, draws)
    }

    fn verify(&mut self, keys: &[Key], records: &Records) -> Result<(), PeersError> {
        verify_client(self, keys, records)
    }
}

struct SharedPapaya<V> {
    map: Arc<Papaya<u64, V, Hash>>,
    value_bytes: usize,
}

impl<V: Value> SharedMap for SharedPapaya<V> {
    fn client(&self) -> Box<dyn Runner> {
        Box::new(PapayaRunner { map: Arc::clone(&self.map), value_bytes: self.value_bytes })
    }
}

struct PapayaRunner<V> {
    map: Arc<Papaya<u64, V, Hash>>,
    value_bytes: usize,
}

impl<V: Value> PapayaRunner<V> {
    fn client(&self) -> PapayaClient<'_, V> {
        let guard = self.map.guard();
        PapayaClient { map: &self.map, guard, calls: 0, buffer: Vec::new(), value_bytes: self.value_bytes }
    }
}

struct PapayaClient<'m, V> {
    map: &'m Papaya<u64, V, Hash>,
    guard: LocalGuard<'m>,
    calls: u32,
    buffer: Vec<u8>,
    value_bytes: usize,
}

impl<V> PapayaClient<'_, V> {
    #[inline(always)]
    fn renew(&mut self) {
        self.calls += 1;
        if self.calls == GUARDED_CALLS {
            self.calls = 0;
            self.guard.refresh();
        }
    }
}

impl<V: Value> Client for PapayaClient<'_, V> {
    #[inline(always)]
    fn get(&mut self, key: &Key) -> Result<ValueEnds, PeersError> {
        self.renew();
        match self.map.get(&u64::from_le_bytes(*key), &self.guard) {
            Some(found) => Ok(found.ends(&mut self.buffer, self.value_bytes)),
            None => Err(PeersError::missing(key)),
        }
    }

    #[inline(always)]
    fn update(&mut self, key: &Key, value: &[u8]) -> Result<(), PeersError> {
        self.renew();
        match self.map.insert(u64::from_le_bytes(*key), V::of(value)?, &self.guard) {
            Some(_) => Ok(()),
            None => Err(PeersError::missing(key)),
        }
    }

    fn fetch(&mut self, key: &Key, into: &mut Vec<u8>) -> Result<(), PeersError> {
        let found = self.map.get(&u64::from_le_bytes(*key), &self.guard).ok_or_else(|| PeersError::missing(key))?;
        into.clear();
        into.extend_from_slice(found.bytes());
        Ok(())
    }
}

impl<V: Value> Runner for PapayaRunner<V> {
    fn run(&mut self, job: &Job, draws: &Draws) -> Result<u64, PeersError> {
        run_client(&mut self.client(), job, draws)
    }

    fn verify(&mut self, keys: &[Key], records: &Records) -> Result<(), PeersError> {
        verify_client(&mut self.client(), keys, records)
    }
}
