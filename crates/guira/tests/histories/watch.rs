//! Who holds locks: most of a worker's time passes outside of them, so that few die there if they die at any moment.

use std::thread;
use std::time::{Duration, Instant};

use guira::Store;
use guira_fabric::{Lane, Region, Submitted, Verb};
use guira_fabric_shm::{Access, Location, ShmLane, ShmRegion};
use guira_layout::{LockId, LockLayout, OwnerId};

/// Longer than locks are held by anybody who runs.
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// Reads a table's lock words, without a client.
pub struct Watch {
    locks: LockLayout,
    lane: ShmLane,
}

impl Watch {
    pub fn over(store: &Store) -> Watch {
        let path = store.stat().unwrap().region.file().unwrap().path.clone();
        let region = ShmRegion::open(&Location::file(path), Access::ReadOnly).unwrap();
        Watch { locks: *store.table().locks(), lane: region.lane() }
    }

    fn holders(&mut self) -> Vec<(LockId, OwnerId)> {
        let mut words = vec![0; self.locks.words() as usize];
        let read = Verb::Read { addr: self.locks.addr(0), into: &mut words };
        assert!(matches!(self.lane.submit(&mut [read]), Submitted::Done(Ok(()))));
        (0..).zip(words).flat_map(|(word, value)| self.locks.all_held(word, value)).collect()
    }

    /// An owner that holds a lock and does not run: it held it at two looks. Nobody, if none was found until `until`.
    pub fn holder(&mut self, until: Instant) -> Option<OwnerId> {
        let mut before = self.holders();
        while Instant::now() < until {
            thread::sleep(BETWEEN_LOOKS);
            let now = self.holders();
            if let Some((_, owner)) = now.iter().find(|held| before.contains(held)) {
                return Some(*owner);
            }
            before = now;
        }
        None
    }
}
