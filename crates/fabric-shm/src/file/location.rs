//! Locations of region files.

use std::ffi::OsStr;
use std::fmt;
use std::fs::canonicalize;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::{ShmError, Task};

/// The maximum length of a shared-memory name: less than the 255 bytes of file systems, so that tools can add a suffix.
const MAX_NAME_BYTES: usize = 200;
pub(crate) const SHM_DIRECTORY: &str = "/dev/shm";

/// The location of a region's file: a name in `/dev/shm`, or a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    path: PathBuf,
    links: Links,
}

/// The treatment of a symbolic link as the last component of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Links {
    /// The link is followed: the user chose the path.
    Follow,
    /// The link is refused: every user may create links in `/dev/shm`.
    Refuse,
}

impl Location {
    /// Returns the location of the shared-memory file `/dev/shm/<name>`.
    ///
    /// # Errors
    /// [`ShmError::BadName`] if `name` is empty, `.` or `..`, longer than 200 bytes, or has a `/` or a NUL in it.
    pub fn shm(name: &str) -> Result<Location, ShmError> {
        let refuse = |reason| Err(ShmError::BadName { name: name.to_owned(), reason });
        match name {
            "" => refuse("it is empty"),
            "." | ".." => refuse("it is a directory"),
            _ if name.len() > MAX_NAME_BYTES => refuse("it is longer than 200 bytes"),
            _ if name.contains('/') => refuse("it contains a slash"),
            _ if name.contains('\0') => refuse("it contains a NUL byte"),
            _ => Ok(Location { path: Path::new(SHM_DIRECTORY).join(name), links: Links::Refuse }),
        }
    }

    /// Returns the location of the file at `path`, on ext4, xfs (also mounted with DAX), tmpfs or hugetlbfs. A relative
    /// path is resolved against the working directory at the time of each call.
    pub fn file(path: impl Into<PathBuf>) -> Location {
        Location { path: path.into(), links: Links::Follow }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the location of the file at `path`, which is not a symbolic link.
    pub(crate) fn itself(path: PathBuf) -> Location {
        Location { path, links: Links::Refuse }
    }

    /// Returns the path of the file after resolving all links: its lock file is next to that.
    pub(crate) fn resolved(&self, task: Task<'_>) -> Result<PathBuf, ShmError> {
        match self.links {
            Links::Refuse => Ok(self.path.clone()),
            Links::Follow => canonicalize(&self.path)
                .map_err(|error| task.failed("find it")(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
        }
    }

    pub(crate) fn links(&self) -> Links {
        self.links
    }

    /// Returns the directory and the name in it.
    pub(crate) fn split(&self) -> Result<(&Path, &OsStr), ShmError> {
        let Some(name) = self.path.file_name() else {
            let name = self.path.display().to_string();
            return Err(ShmError::BadName { name, reason: "the path does not end in a file name" });
        };
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok((parent.unwrap_or(Path::new(".")), name))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let longest = "n".repeat(MAX_NAME_BYTES);
        for good in ["a", "web-cache", "...", ".hidden", "für", longest.as_str()] {
            let location = Location::shm(good).unwrap();
            assert_eq!(location.path().to_str().unwrap(), format!("/dev/shm/{good}"));
        }
        let too_long = "n".repeat(MAX_NAME_BYTES + 1);
        for bad in ["", ".", "..", "a/b", "/a", "a\0b", too_long.as_str()] {
            let error = Location::shm(bad).unwrap_err();
            assert!(matches!(error, ShmError::BadName { .. }), "{bad:?}: {error}");
        }
    }

    #[test]
    fn paths_are_split() {
        let location = Location::file("dir/name");
        assert_eq!(location.split().unwrap(), (Path::new("dir"), OsStr::new("name")));
        assert_eq!(Location::file("name").split().unwrap(), (Path::new("."), OsStr::new("name")));
        for bad in ["/", "", "dir/.."] {
            assert!(matches!(Location::file(bad).split(), Err(ShmError::BadName { .. })), "{bad:?}");
        }
    }
}
