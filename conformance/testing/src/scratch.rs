//! Names in /dev/shm and in the folder for temporary files, and the removal of what killed test processes left there.
//!
//! A test process has a name: its process id and a random number. It locks a file of this name in /dev/shm, which ends
//! in `.owner`, for as long as it lives, and everything that it creates has a name that begins with its own. The kernel
//! releases the lock when the process ends, in whatever way and in whatever namespace. So a file whose lock is free
//! belongs to a process that has ended, and everything whose name begins in the same way can be removed.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The folder in which tests create tables and regions, and their processes the locked files.
const SHARED_MEMORY: &str = "/dev/shm";
/// The start of the name of every test process.
const PREFIX: &str = "guira-test-";
/// The end of the name of a locked file.
const OWNER_SUFFIX: &str = ".owner";

/// Returns a name that no other call in any process returns; it is a valid name of a table. What has this name in
/// /dev/shm or in the folder for temporary files, or one that begins with it, is removed some time after this process
/// has ended.
///
/// # Panics
/// If /dev/shm refuses a file.
pub fn unique_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", process_name(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the name of this process, with which all of its names begin. The first call removes what test processes
/// that have ended left behind.
///
/// # Panics
/// If /dev/shm refuses a file.
pub fn process_name() -> &'static str {
    static PROCESS: OnceLock<(String, File)> = OnceLock::new();
    let (name, _lock) = PROCESS.get_or_init(|| {
        let folders = [PathBuf::from(SHARED_MEMORY), std::env::temp_dir()];
        remove_leftovers(&folders);
        own_name(&folders[0]).expect("a locked file in /dev/shm")
    });
    name
}

/// A folder for temporary files, which is removed with its content on drop.
#[derive(Debug)]
pub struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// Creates a folder where temporary files belong.
    ///
    /// # Panics
    /// If that is refused.
    #[expect(clippy::new_without_default, reason = "it creates a folder")]
    pub fn new() -> ScratchFolder {
        ScratchFolder::within(std::env::temp_dir())
    }

    /// Creates a folder in /dev/shm.
    ///
    /// # Panics
    /// If that is refused.
    pub fn in_shared_memory() -> ScratchFolder {
        ScratchFolder::within(PathBuf::from(SHARED_MEMORY))
    }

    fn within(parent: PathBuf) -> ScratchFolder {
        let path = parent.join(unique_name());
        fs::create_dir(&path).expect("a folder with a unique name");
        ScratchFolder(path)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // What a test made unreadable stays until its process has ended, and longer if it still is.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Chooses a name for this process, and creates and locks the file in `folder` that reserves it.
fn own_name(folder: &Path) -> std::io::Result<(String, File)> {
    loop {
        let name = format!("{PREFIX}{}-{:016x}", std::process::id(), RandomState::new().hash_one(0));
        let path = folder.join(format!("{name}{OWNER_SUFFIX}"));
        let file = File::create_new(path)?;
        file.lock()?;
        // Another process may have found it before it was locked, and removed it.
        if file.metadata()?.nlink() == 1 {
            return Ok((name, file));
        }
    }
}

/// Removes what test processes that have ended left in `folders`, the first of which has their locked files.
fn remove_leftovers(folders: &[PathBuf]) {
    for owner in entries(&folders[0]) {
        let Some(name) = owner.to_str().and_then(name_of_owner) else { continue };
        // Files of other users may be unreadable, and other processes may remove the same.
        let Ok(file) = File::open(&owner) else { continue };
        if file.try_lock().is_err() {
            continue;
        }
        for folder in folders {
            entries(folder).filter(|path| is_named_after(path, name)).for_each(|path| remove(&path));
        }
        // Last, so that nothing is forgotten if this process is killed meanwhile.
        remove(&owner);
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

/// Returns the name of the process whose locked file this is.
fn name_of_owner(path: &str) -> Option<&str> {
    let (_, file_name) = path.rsplit_once('/')?;
    file_name.strip_suffix(OWNER_SUFFIX).filter(|name| name.starts_with(PREFIX))
}

/// Whether the file belongs to the process of this name, and is not its locked file.
fn is_named_after(path: &Path, name: &str) -> bool {
    let file_name = path.file_name().and_then(|file_name| file_name.to_str());
    file_name.and_then(|file_name| file_name.strip_prefix(name)).is_some_and(|rest| rest.starts_with('-'))
}

fn remove(path: &Path) {
    // Another process may have removed it, or another user may own it.
    drop(if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_begin_with_that_of_the_process() {
        let [first, second] = [unique_name(), unique_name()];
        assert!(first != second && [&first, &second].iter().all(|name| name.starts_with(process_name())));
    }

    #[test]
    fn leftovers_of_processes_that_have_ended_are_removed() {
        let folders = [ScratchFolder::new(), ScratchFolder::new()];
        let paths = [0, 1].map(|at: usize| folders[at].path().to_owned());
        let (ended, lock) = own_name(&paths[0]).expect("a name");
        drop(lock);
        let (living, _lock) = own_name(&paths[0]).expect("another name");
        for name in [&ended, &living] {
            fs::write(paths[0].join(format!("{name}-0")), "a table").expect("a file");
            fs::write(paths[0].join(format!("{name}-0.0123456789abcdef.locks")), "its locks").expect("a file");
            fs::create_dir(paths[1].join(format!("{name}-1"))).expect("a folder");
            fs::write(paths[1].join(format!("{name}-1/file")), "a temporary file").expect("a file");
        }
        fs::write(paths[0].join("guira-quickstart"), "a table of a user").expect("a file");
        remove_leftovers(&paths);
        let mut left: Vec<_> = entries(&paths[0]).chain(entries(&paths[1])).collect();
        left.sort();
        let of_user = ["guira-quickstart".to_owned()];
        let of_living = ["-0", "-0.0123456789abcdef.locks", ".owner"].map(|end| format!("{living}{end}"));
        let mut expected: Vec<_> = of_user.iter().chain(&of_living).map(|name| paths[0].join(name)).collect();
        expected.push(paths[1].join(format!("{living}-1")));
        expected.sort();
        assert_eq!(left, expected);
    }
}
