//! The cache of a client: where the chains of some keys end, as far as it knows.
//!
//! At first it has the keys of the first records, which are the most popular ones. A key that is learned displaces another one
//! when the cache is full: first those that it had from the start, the least popular one first, and then the one that has been
//! there longest. What it has from the start takes no memory, until it changes.

use std::collections::{HashMap, VecDeque};

use super::entry::Known;
use crate::baselines::Places;

/// A cache of keys, which the operations at once of a thread share.
pub struct Cache {
    places: Places,
    /// The most keys.
    capacity: u64,
    /// The records that are cached since the start: those below.
    first: u64,
    /// The records below `first` that have changed.
    changed: HashMap<u32, Known>,
    /// The other keys, and their order of arrival.
    learned: HashMap<u32, Known>,
    arrivals: VecDeque<u32>,
}

impl Cache {
    /// Creates a cache of so many keys, with those of the first of `records` records.
    pub(super) fn new(places: Places, capacity: u64, records: u64) -> Cache {
        let first = capacity.min(records);
        Cache { places, capacity, first, changed: HashMap::new(), learned: HashMap::new(), arrivals: VecDeque::new() }
    }

    /// Returns what is cached of a key.
    pub(super) fn get(&self, key: u32) -> Option<Known> {
        let record = (self.places)(key);
        if record < self.first {
            return Some(self.changed.get(&key).copied().unwrap_or(Known::of_record(record)));
        }
        self.learned.get(&key).copied()
    }

    /// Notes what is known of a key.
    pub(super) fn put(&mut self, key: u32, known: Known) {
        if (self.places)(key) < self.first {
            self.changed.insert(key, known);
        } else if let Some(cached) = self.learned.get_mut(&key) {
            *cached = known;
        } else if self.capacity > 0 {
            if self.first + self.arrivals.len() as u64 >= self.capacity {
                self.displace();
            }
            self.learned.insert(key, known);
            self.arrivals.push_back(key);
        }
    }

    fn displace(&mut self) {
        if self.first > 0 {
            self.first -= 1;
        } else if let Some(oldest) = self.arrivals.pop_front() {
            self.learned.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::entry::Pointer;
    use super::*;

    fn known(entry: u32) -> Known {
        Known { tail: Pointer::of_new(entry), shortcut: entry }
    }

    /// A cache of keys from 1, whose places are one less.
    fn cache(capacity: u64, records: u64) -> Cache {
        Cache::new(Rc::new(|key| u64::from(key) - 1), capacity, records)
    }

    fn cached(cache: &Cache) -> Vec<u32> {
        (1..20).filter(|key| cache.get(*key).is_some()).collect()
    }

    #[test]
    fn the_first_keys_are_displaced_before_those_that_were_learned() {
        let mut cache = cache(3, 10);
        assert_eq!(cached(&cache), [1, 2, 3]);
        assert_eq!(cache.get(2), Some(Known::of_record(1)));
        cache.put(2, known(77));
        assert_eq!((cached(&cache), cache.get(2)), (vec![1, 2, 3], Some(known(77))));
        let mut seen = Vec::new();
        for key in [9, 11, 12, 13, 3] {
            cache.put(key, known(key));
            seen.push(cached(&cache));
            assert_eq!(cache.get(key), Some(known(key)));
        }
        assert_eq!(seen, [vec![1, 2, 9], vec![1, 9, 11], vec![9, 11, 12], vec![11, 12, 13], vec![3, 12, 13]]);
        cache.put(12, known(88));
        assert_eq!((cached(&cache), cache.get(12)), (vec![3, 12, 13], Some(known(88))));
    }

    #[test]
    fn a_cache_has_room_for_more_than_the_records() {
        let mut cache = cache(5, 2);
        (3..8).for_each(|key| cache.put(key, known(key)));
        assert_eq!(cached(&cache), [3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_cache_without_room_has_nothing() {
        let mut cache = cache(0, 10);
        cache.put(1, known(1));
        assert!(cached(&cache).is_empty());
    }
}
