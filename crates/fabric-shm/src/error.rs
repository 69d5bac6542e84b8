//! What can go wrong with a region's file. Nothing here leaves a trace: a failed call changed nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use guira_fabric::ByteCount;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::create::UNNAMED;
use crate::lock_file::LockFileProblem;

/// What was attempted when an error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// [`crate::ShmRegion::create`].
    Create,
    /// [`crate::ShmRegion::open`].
    Open,
    /// [`crate::ShmRegion::destroy`].
    Destroy,
    /// [`crate::ShmRegion::verify_length`] or [`crate::ShmRegion::info`].
    Inspect,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Attempt::Create => "create",
            Attempt::Open => "open",
            Attempt::Destroy => "destroy",
            Attempt::Inspect => "inspect",
        })
    }
}

/// What a path names when it does not name a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// A symbolic link, in a directory where anybody may have put it.
    Symlink,
    /// Something else.
    Unknown,
}

impl FileKind {
    /// The kind of a mode's file type; `None` for a regular file.
    pub(crate) fn irregular(raw_mode: u32) -> Option<FileKind> {
        Some(match FileType::from_raw_mode(raw_mode) {
            FileType::RegularFile => return None,
            FileType::Directory => FileKind::Directory,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => FileKind::Device,
            FileType::Symlink => FileKind::Symlink,
            FileType::Unknown => FileKind::Unknown,
        })
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Directory => "a directory",
            FileKind::Fifo => "a named pipe",
            FileKind::Socket => "a socket",
            FileKind::Device => "a device",
            FileKind::Symlink => "a symbolic link",
            FileKind::Unknown => "of an unknown kind",
        })
    }
}

/// Where the memory of a region at `path` comes from: its directory, or this machine if it has no name.
fn storage(path: &Path) -> String {
    match path.parent() {
        Some(directory) if path != Path::new(UNNAMED) => directory.display().to_string(),
        _ => "this machine".to_owned(),
    }
}

/// A region's file could not be created, opened, inspected or destroyed. In every case nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The name cannot be a region's name.
    #[error("the region name {name:?} is refused: {reason}; nothing was changed")]
    BadName {
        /// The name, or the path without one.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The permission bits are not permission bits.
    #[error("cannot create {}: mode {mode:#o} has bits outside 0o777; nothing was changed", path.display())]
    BadMode {
        /// The file.
        path: PathBuf,
        /// The mode that was asked for.
        mode: u32,
    },
    /// The file, or for a creation its directory, does not exist.
    #[error("cannot {attempt} {}: it, or its directory, does not exist; nothing was changed", path.display())]
    NotFound {
        /// What was attempted.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
    },
    /// This user may not.
    #[error("cannot {attempt} {}: permission denied while trying to {operation}; nothing was changed", path.display())]
    Permission {
        /// What was attempted.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The step that was refused.
        operation: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A file of this name exists; a creation never replaces one.
    #[error("cannot create {}: it already exists; nothing was changed", path.display())]
    AlreadyExists {
        /// The file.
        path: PathBuf,
    },
    /// The file system cannot hold the region.
    #[error("cannot create {}: it needs {}, and {} has only {} free; nothing was changed",
            path.display(), ByteCount(*wanted), storage(path), ByteCount(*available))]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes of the whole file.
        wanted: u64,
        /// Bytes the file system has for this user.
        available: u64,
    },
    /// The sizes overflow, or exceed what a file or this process's address space can hold.
    #[error("cannot {attempt} {}: {main_bytes} main and {device_bytes} device bytes are more than can be \
             mapped; nothing was changed", path.display())]
    TooLarge {
        /// What was attempted.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// Bytes of the main space.
        main_bytes: u64,
        /// Bytes of the device space.
        device_bytes: u64,
    },
    /// The path names something that is not a regular file.
    #[error("cannot {attempt} {}: it is {kind}, not a file; nothing was changed", path.display())]
    NotAFile {
        /// What was attempted.
        attempt: Attempt,
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: FileKind,
    },
    /// The file system is not known to keep the promises a region needs (locks that die with their process, and one
    /// copy of each page).
    #[error("cannot {attempt} {}: its file system is {name} (magic {magic:#x}), and only tmpfs, hugetlbfs, \
             ext4 and xfs are known to be safe; nothing was changed", path.display())]
    UnsupportedFileSystem {
        /// What was attempted.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The file system's name, or "unknown".
        name: &'static str,
        /// Its magic number.
        magic: u64,
    },
    /// The file is not a region.
    #[error("cannot {attempt} {}: it is not a region file; nothing was changed", path.display())]
    Foreign {
        /// What was attempted.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
    },
    /// The file is a region of another version of the header.
    #[error("cannot {attempt} {}: its header has version {found}, and this program knows version {supported}; \
             nothing was changed", path.display())]
    Version {
        /// What was attempted.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The version this program reads.
        supported: u32,
    },
    /// The file began as a region, but its header does not verify.
    #[error("cannot {attempt} {}: its header is corrupt; nothing was changed", path.display())]
    HeaderCorrupt {
        /// What was attempted.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter than its header says.
    #[error("cannot {attempt} {}: it was truncated to {actual} of {expected} bytes; nothing was changed",
            path.display())]
    Truncated {
        /// What was attempted.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// Bytes the file must have.
        expected: u64,
        /// Bytes it has.
        actual: u64,
    },
    /// The lock file of the region cannot be used, so that the region can only be read: whoever locked another file
    /// than its clients do would take them for dead.
    #[error("cannot {attempt} {} for changing: its lock file {} {problem}; nothing was changed",
            path.display(), lock_path.display())]
    LockFile {
        /// The attempt.
        attempt: Attempt,
        /// The region's file.
        path: PathBuf,
        /// Where the lock file has to be.
        lock_path: PathBuf,
        /// The fault of the lock file.
        problem: LockFileProblem,
    },
    /// The caller's progress function stopped a creation.
    #[error("cannot create {}: stopped on request; nothing was changed", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// The kernel refused a step for another reason.
    #[error("cannot {attempt} {}: could not {operation}; nothing was changed", path.display())]
    Io {
        /// What was attempted.
        attempt: Attempt,
        /// The file.
        path: PathBuf,
        /// The step that failed.
        operation: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl ShmError {
    /// The same error of another attempt, of which what failed was a part.
    #[must_use]
    pub fn with_attempt(mut self, of: Attempt) -> ShmError {
        match &mut self {
            ShmError::NotFound { attempt, .. }
            | ShmError::Permission { attempt, .. }
            | ShmError::TooLarge { attempt, .. }
            | ShmError::NotAFile { attempt, .. }
            | ShmError::UnsupportedFileSystem { attempt, .. }
            | ShmError::Foreign { attempt, .. }
            | ShmError::Version { attempt, .. }
            | ShmError::HeaderCorrupt { attempt, .. }
            | ShmError::Truncated { attempt, .. }
            | ShmError::LockFile { attempt, .. }
            | ShmError::Io { attempt, .. } => *attempt = of,
            ShmError::BadName { .. }
            | ShmError::BadMode { .. }
            | ShmError::AlreadyExists { .. }
            | ShmError::NoSpace { .. }
            | ShmError::Stopped { .. } => {}
        }
        self
    }
}

/// A region could not be created. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum CreateError<E> {
    /// Its file could not be made.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// Its file was made, but the caller could not format it; the file is gone.
    #[error("cannot create {}: formatting it failed; nothing was left behind", path.display())]
    Init {
        /// The file.
        path: PathBuf,
        /// The caller's error.
        source: E,
    },
}

/// An attempt on a path: what every error names.
#[derive(Clone, Copy)]
pub(crate) struct Task<'p> {
    pub(crate) attempt: Attempt,
    pub(crate) path: &'p Path,
}

impl<'p> Task<'p> {
    pub(crate) fn new(attempt: Attempt, path: &'p Path) -> Task<'p> {
        Task { attempt, path }
    }

    /// Turns the kernel's refusal of the step `operation` into an error.
    pub(crate) fn failed(self, operation: &'static str) -> impl Fn(Errno) -> ShmError + use<'p> {
        move |errno| {
            let Task { attempt, path } = self;
            let path = path.to_owned();
            match errno {
                Errno::NOENT => ShmError::NotFound { attempt, path },
                Errno::EXIST => ShmError::AlreadyExists { path },
                Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                    ShmError::Permission { attempt, path, operation, source: errno.into() }
                }
                Errno::LOOP => ShmError::NotAFile { attempt, path, kind: FileKind::Symlink },
                Errno::ISDIR => ShmError::NotAFile { attempt, path, kind: FileKind::Directory },
                _ => ShmError::Io { attempt, path, operation, source: errno.into() },
            }
        }
    }

    pub(crate) fn stopped(self) -> ShmError {
        ShmError::Stopped { path: self.path.to_owned() }
    }

    pub(crate) fn foreign(self) -> ShmError {
        ShmError::Foreign { attempt: self.attempt, path: self.path.to_owned() }
    }

    pub(crate) fn corrupt(self) -> ShmError {
        ShmError::HeaderCorrupt { attempt: self.attempt, path: self.path.to_owned() }
    }

    pub(crate) fn truncated(self, expected: u64, actual: u64) -> ShmError {
        ShmError::Truncated { attempt: self.attempt, path: self.path.to_owned(), expected, actual }
    }

    pub(crate) fn too_large(self, main_bytes: u64, device_bytes: u64) -> ShmError {
        ShmError::TooLarge { attempt: self.attempt, path: self.path.to_owned(), main_bytes, device_bytes }
    }
}
