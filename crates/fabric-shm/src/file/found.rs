//! Listing of the files in `/dev/shm` that are regions, or may be.
//!
//! Invariant: no file is mapped, written or locked; at most the first page of each is read.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, statat};

use crate::error::{Attempt, FileKind, ShmError, Task};
use crate::file::create::is_unpublished;
use crate::file::header;
use crate::file::location::{Location, SHM_DIRECTORY};
use crate::file::{open_regular, read_start, stored_bytes};
use crate::liveness::lock_file::is_lock_file;
use crate::region::Access;

/// A file in `/dev/shm` that is a region, or may be one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundRegion {
    /// Its name, as accepted by [`Location::shm`].
    pub name: String,
    /// Its kind, as far as it is known.
    pub kind: FoundKind,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes that its file system has stored for it, or reserved: fewer than `file_bytes` as long as it can grow.
    pub stored_bytes: u64,
    /// The user who owns the file.
    pub owner_uid: u32,
    /// Its permission bits.
    pub mode: u32,
}

/// The kind of a file, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FoundKind {
    /// A file that begins like a region; the rest may be damaged.
    Region,
    /// A region whose creation has not given it its name yet, and never will if the creating process has ended.
    Unpublished,
    /// A file that this user may not read: it may be a region or not.
    Unreadable,
}

/// Returns the regions in `/dev/shm`, and the files there that may be regions, sorted by name. Leaves out other files,
/// and files that are removed during the call.
///
/// # Errors
/// `Io`, `Permission` or `NotFound` if the directory cannot be read.
pub fn found_regions() -> Result<Vec<FoundRegion>, ShmError> {
    let directory = Path::new(SHM_DIRECTORY);
    let failed = |source: std::io::Error| {
        let errno = rustix::io::Errno::from_io_error(&source).unwrap_or(rustix::io::Errno::IO);
        Task::new(Attempt::Inspect, directory).failed("list its files")(errno)
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        // A name that is not valid UTF-8 is not the name of a region.
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            found.extend(inspect(name));
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Returns the file of this name, if it is a region or may be one.
fn inspect(name: String) -> Option<FoundRegion> {
    let location = Location::shm(&name).ok()?;
    let task = Task::new(Attempt::Inspect, location.path());
    let stat = statat(CWD, location.path(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileKind::irregular(stat.st_mode).is_some() {
        return None;
    }
    let start = open_regular(&location, Access::ReadOnly, task).and_then(|file| read_start(file.as_fd(), task));
    let kind = match start {
        Ok(start) if !header::is_region(&start) => return None,
        Ok(_) if is_unpublished(&name) => FoundKind::Unpublished,
        Ok(_) => FoundKind::Region,
        // Not a region but a lock file, which users who may only read the region cannot open.
        Err(ShmError::Permission { .. }) if is_lock_file(&name) => return None,
        Err(ShmError::Permission { .. }) => FoundKind::Unreadable,
        Err(_) => return None,
    };
    let (file_bytes, stored_bytes) = (u64::try_from(stat.st_size).unwrap_or(0), stored_bytes(&stat));
    Some(FoundRegion { name, kind, file_bytes, stored_bytes, owner_uid: stat.st_uid, mode: stat.st_mode & 0o777 })
}

#[cfg(test)]
mod tests {
    use guira_testing::unique_name;

    use super::*;
    use crate::{CreateOptions, ShmRegion};

    #[test]
    fn regions_are_found_and_other_files_are_not() {
        let prefix = unique_name();
        let location = Location::shm(&format!("{prefix}-region")).unwrap();
        let region = ShmRegion::create(&location, CreateOptions::new(8192, 64), |_| Ok::<(), ()>(())).unwrap();
        let foreign = Location::shm(&format!("{prefix}-foreign")).unwrap();
        std::fs::write(foreign.path(), b"GUIRA, but not a region").unwrap();
        let link = Location::shm(&format!("{prefix}-link")).unwrap();
        std::os::unix::fs::symlink(location.path(), link.path()).unwrap();
        let found = found_regions();
        for path in [location.path(), foreign.path(), link.path()] {
            std::fs::remove_file(path).unwrap();
        }
        let found: Vec<_> = found.unwrap().into_iter().filter(|found| found.name.starts_with(&prefix)).collect();
        let info = region.info().unwrap();
        assert_eq!(
            found,
            [FoundRegion {
                name: format!("{prefix}-region"),
                kind: FoundKind::Region,
                file_bytes: info.file_bytes,
                stored_bytes: info.stored_bytes,
                owner_uid: info.owner_uid,
                mode: 0o600,
            }]
        );
    }

    #[test]
    fn temporary_names_are_recognised() {
        assert!(is_unpublished(".guira-12-0.unpublished"));
        assert!(!is_unpublished("cache") && !is_unpublished("guira-12.unpublished"));
    }
}
