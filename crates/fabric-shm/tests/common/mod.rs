//! Helpers of the tests: temporary regions, and single verbs.

use std::path::PathBuf;

use guira_fabric::{Addr, FabricError, Lane, Submitted, Verb};
use guira_fabric_shm::{CreateOptions, Location, ShmRegion};
use guira_testing::unique_name;

pub const MAIN_BYTES: u64 = 1 << 16;
pub const DEVICE_BYTES: u64 = 1 << 12;

/// A unique name in /dev/shm, which is removed on drop.
pub struct Scratch {
    pub location: Location,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch { location: Location::shm(&unique_name()).unwrap() }
    }

    /// Creates a region of the usual sizes under this name.
    pub fn create(&self) -> ShmRegion {
        create(&self.location)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.location.path());
        lock_files_of(&self.location).iter().for_each(|path| _ = std::fs::remove_file(path));
    }
}

/// Returns the lock files of a region at `location`, and those left by earlier ones.
pub fn lock_files_of(location: &Location) -> Vec<PathBuf> {
    let (directory, name) = (location.path().parent().unwrap(), location.path().file_name().unwrap());
    let prefix = format!("{}.", name.to_str().unwrap());
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".locks")).is_some_and(|id| id.len() == 16)
    };
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(is_one).collect()
}

/// A unique directory in /dev/shm, removed with its content on drop.
pub struct ScratchDirectory {
    pub path: PathBuf,
}

impl ScratchDirectory {
    pub fn new() -> ScratchDirectory {
        ScratchDirectory::within("/dev/shm".into())
    }

    pub fn within(parent: PathBuf) -> ScratchDirectory {
        let path = parent.join(unique_name());
        std::fs::create_dir(&path).unwrap();
        ScratchDirectory { path }
    }

    pub fn file(&self, name: &str) -> Location {
        Location::file(self.path.join(name))
    }

    pub fn entries(&self) -> usize {
        std::fs::read_dir(&self.path).unwrap().count()
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

pub fn create(location: &Location) -> ShmRegion {
    create_with_mode(location, 0o600)
}

/// Creates a region with `mode`, and with a lock file if some users may read but not write the region.
pub fn create_with_mode(location: &Location, mode: u32) -> ShmRegion {
    let options = CreateOptions::new(MAIN_BYTES, DEVICE_BYTES).with_mode(mode);
    ShmRegion::create(location, options, |_| Ok::<(), FabricError>(())).unwrap()
}

pub fn submit(lane: &mut impl Lane, batch: &mut [Verb<'_>]) -> Result<(), FabricError> {
    match lane.submit(batch) {
        Submitted::Done(result) => result,
        Submitted::InFlight => panic!("nothing is ever in flight on shared memory"),
    }
}

pub fn read(lane: &mut impl Lane, addr: Addr) -> u64 {
    let mut into = [0];
    submit(lane, &mut [Verb::Read { addr, into: &mut into }]).unwrap();
    into[0]
}

pub fn write(lane: &mut impl Lane, addr: Addr, word: u64) {
    submit(lane, &mut [Verb::Write { addr, words: &[word] }]).unwrap();
}
