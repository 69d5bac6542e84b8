//! Where a region's file is.

use std::ffi::OsStr;
use std::fmt;
use std::fs::canonicalize;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::error::{ShmError, Task};

/// Bytes of a shared-memory name, at most: below the file systems' 255, so that tools can add a suffix.
const MAX_NAME_BYTES: usize = 200;
pub(crate) const SHM_DIRECTORY: &str = "/dev/shm";

/// The place of a region's file: a name in `/dev/shm`, or a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    path: PathBuf,
    links: Links,
}

/// What happens when the last component of the path is a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Links {
    /// It is followed: the user chose the path.
    Follow,
    /// It is refused: anybody may put links into `/dev/shm`.
    Refuse,
}

impl Location {
    /// The shared-memory file `/dev/shm/<name>`.
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

    /// The file at `path`: on ext4, xfs (also mounted with DAX), tmpfs or hugetlbfs. A relative path means the working
    /// directory at the time of each call.
    pub fn file(path: impl Into<PathBuf>) -> Location {
        Location { path: path.into(), links: Links::Follow }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file at `path`, which is no symbolic link.
    pub(crate) fn itself(path: PathBuf) -> Location {
        Location { path, links: Links::Refuse }
    }

    /// The path of the file itself, behind all links: what lies beside the file lies there.
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

    /// The directory and the name in it.
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
